//! How a translation layer works: plain data, with errors that say what is accepted.

use varve_device::flash::FlashError;

/// Most streams that a host may name.
const MOST: u8 = 8;

/// What happens to host writes while the SLC cache is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum CacheFull {
    /// They go past it, to blocks with all bits per cell.
    #[default]
    Direct,
    /// They wait until its oldest block is folded.
    Fold,
}

/// A write cache of blocks used with one bit per cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Blocks that it takes at most.
    pub blocks: u32,
    /// What happens while it is full.
    pub full: CacheFull,
    /// Folding begins when nothing was asked for so long, nanoseconds.
    pub idle: u64,
}

/// How victims of garbage collection are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum GcPolicy {
    /// The block with the fewest valid pages.
    Greedy,
    /// The block closed first (a circular log).
    Fifo,
    /// The most (1-u) age / (1+u), u = share of valid pages, age = host writes since the block was full (Rosenblum and
    /// Ousterhout 1992).
    CostBenefit,
    /// The best of `d` random blocks (Van Houdt 2013).
    DChoices,
    /// A random block.
    Random,
}

/// Which pages share a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Streams {
    /// All together.
    Mixed,
    /// Host writes apart from pages that garbage collection moves.
    HostGc,
    /// The first `hot_share` of the logical pages apart from the others (what a host that knows would tell).
    HotRange,
    /// Pages written again within a quarter of the logical space's worth of writes apart from the others.
    Recency,
    /// As the host says with each write: `hinted_streams` of them, each with spare blocks of its own.
    Hinted,
}

/// Where a logical page may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Allocation {
    /// On its own chip (page number modulo chips); each chip collects its own garbage.
    PerChip,
    /// Anywhere; planes take turns, victims are chosen among all blocks.
    Global,
}

/// The translation layer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct FtlConfig {
    /// Logical pages; if absent, all but `spare_factor` of the effective physical pages.
    pub logical_pages: Option<u64>,
    /// Share of the effective physical pages that the host does not see, when `logical_pages` is absent.
    pub spare_factor: f64,
    /// Where pages go.
    pub allocation: Allocation,
    /// Victims of garbage collection.
    pub gc: GcPolicy,
    /// Candidates of `d-choices`.
    pub d: u32,
    /// Free blocks of a pool at which collection starts; if absent, open blocks + 1.
    pub low_watermark: Option<u32>,
    /// Free blocks of a pool at which it stops; if absent, the low watermark + 1.
    pub high_watermark: Option<u32>,
    /// Which pages share a block.
    pub streams: Streams,
    /// Share of the logical pages that `hot-range` takes as hot.
    pub hot_share: f64,
    /// Streams that `hinted` tells apart, 2 to 8; the last takes what the host numbers higher.
    pub hinted_streams: u8,
    /// Difference of erase counts within a pool at which the least worn block is moved; 0 = never.
    pub wear_delta: u32,
    /// Reads of a block since its erase after which its pages are moved; 0 = never.
    pub read_disturb: u32,
    /// Page programs between checkpoints of the map; if absent, half the physical pages.
    pub checkpoint_every: Option<u64>,
    /// Appends that a page takes before it must be written anew.
    pub append_slots: u8,
    /// Whether collection merges a page's appends into it, so that all slots are free again, or copies them as they
    /// are.
    pub merge_appends: bool,
    /// Seed of the random policies.
    pub seed: u64,
}

impl Default for FtlConfig {
    fn default() -> FtlConfig {
        FtlConfig {
            logical_pages: None,
            spare_factor: 0.1,
            allocation: Allocation::Global,
            gc: GcPolicy::Greedy,
            d: 2,
            low_watermark: None,
            high_watermark: None,
            streams: Streams::Mixed,
            hot_share: 0.2,
            hinted_streams: 8,
            wear_delta: 0,
            read_disturb: 0,
            checkpoint_every: None,
            append_slots: 0,
            merge_appends: false,
            seed: 1,
        }
    }
}

impl FtlConfig {
    /// Refuses values that cannot be used, naming the field, the value and what is accepted. What depends on how many
    /// blocks there are is checked by [`crate::Ftl::new`].
    pub fn validate(&self) -> Result<(), FlashError> {
        let err = |field: &str, value: &dyn std::fmt::Display, accepted: &str| {
            Err(FlashError::config(field, value, accepted.to_string()))
        };
        if self.logical_pages.is_none() && !(self.spare_factor > 0.0 && self.spare_factor < 1.0) {
            return err("ftl.spare_factor", &self.spare_factor, "more than 0 and less than 1");
        }
        if self.d == 0 {
            return err("ftl.d", &self.d, "at least 1 candidate");
        }
        if self.streams == Streams::HotRange && !(self.hot_share > 0.0 && self.hot_share < 1.0) {
            return err("ftl.hot_share", &self.hot_share, "more than 0 and less than 1");
        }
        if self.streams == Streams::Hinted && !(2..=MOST).contains(&self.hinted_streams) {
            return err("ftl.hinted_streams", &self.hinted_streams, "2 to 8 streams");
        }
        if self.streams == Streams::Hinted && self.gc != GcPolicy::Greedy {
            return err("ftl.gc", &format!("{:?}", self.gc).to_lowercase(), "greedy, with streams = hinted");
        }
        if self.checkpoint_every == Some(0) {
            return err("ftl.checkpoint_every", &0, "at least 1 page program");
        }
        Ok(())
    }
}
