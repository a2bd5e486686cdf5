//! Totals of the translation layer.

/// Totals since the drive was made or the totals were reset. Pages unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlStats {
    /// Host writes and appends since the drive was made; the clock of ages.
    pub(crate) clock: u64,
    /// Read by the host.
    pub host_reads: u64,
    /// Written by the host, out of place.
    pub host_writes: u64,
    /// Appends by the host, in place.
    pub host_appends: u64,
    /// Trimmed that were mapped.
    pub trimmed: u64,
    /// Programs for host writes (more than these if programs failed).
    pub host_programs: u64,
    /// Programs for garbage collection ("migrations").
    pub gc_copies: u64,
    /// Of the pages that were moved, those whose appends were merged into them.
    pub merged: u64,
    /// Programs for wear levelling.
    pub wear_copies: u64,
    /// Programs because a block was read often.
    pub disturb_copies: u64,
    /// Programs for moving pages out of the SLC cache.
    pub fold_copies: u64,
    /// Blocks of the SLC cache that were folded (moved and erased).
    pub folds: u64,
    /// Of the host's writes, those into the SLC cache.
    pub cache_writes: u64,
    /// Of the host's writes, those that went past the cache because it was full.
    pub cache_bypassed: u64,
    /// Times that a host write waited for a block of the cache to be folded.
    pub cache_waits: u64,
    /// Programs for the map and its journal.
    pub map_programs: u64,
    /// Blocks erased, those of the map included.
    pub erases: u64,
    /// Of those, blocks of the map.
    pub map_erases: u64,
    /// Blocks collected.
    pub victims: u64,
    /// Valid pages that they had.
    pub victim_valid: u64,
}

impl FtlStats {
    /// Write amplification: programs for the host and for collection, levelling, refreshing and folding, per host page
    /// write. Writes of the map are apart ([`FtlStats::map_programs`]).
    pub fn write_amplification(&self) -> f64 {
        let moved = self.gc_copies + self.wear_copies + self.disturb_copies + self.fold_copies;
        let programs = self.host_programs + moved;
        programs as f64 / (self.host_writes.max(1)) as f64
    }

    /// Mean share of valid pages in victims, given the pages of a block.
    pub fn victim_share(&self, slots: u32) -> f64 {
        self.victim_valid as f64 / (self.victims.max(1) * u64::from(slots)) as f64
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &FtlStats) -> FtlStats {
        FtlStats {
            clock: self.clock,
            host_reads: self.host_reads - earlier.host_reads,
            host_writes: self.host_writes - earlier.host_writes,
            host_appends: self.host_appends - earlier.host_appends,
            trimmed: self.trimmed - earlier.trimmed,
            host_programs: self.host_programs - earlier.host_programs,
            gc_copies: self.gc_copies - earlier.gc_copies,
            merged: self.merged - earlier.merged,
            wear_copies: self.wear_copies - earlier.wear_copies,
            disturb_copies: self.disturb_copies - earlier.disturb_copies,
            fold_copies: self.fold_copies - earlier.fold_copies,
            folds: self.folds - earlier.folds,
            cache_writes: self.cache_writes - earlier.cache_writes,
            cache_bypassed: self.cache_bypassed - earlier.cache_bypassed,
            cache_waits: self.cache_waits - earlier.cache_waits,
            map_programs: self.map_programs - earlier.map_programs,
            erases: self.erases - earlier.erases,
            map_erases: self.map_erases - earlier.map_erases,
            victims: self.victims - earlier.victims,
            victim_valid: self.victim_valid - earlier.victim_valid,
        }
    }
}
