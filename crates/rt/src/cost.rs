//! What the engine's work costs in processor time on a modelled host: one table, charged through
//! [`charge`](crate::charge).
//!
//! The names are those of the layers above: there is one host under all of them, so there is one table, and it lies
//! where every layer can reach it. A cost is in picoseconds, so that costs per byte add up exactly.
//!
//! Invariants: [`charge`](crate::charge) never waits (it may be called in a destructor and under any lock): it adds
//! to what the calling simulated thread settles before its next lock, wait, send or I/O. On an OS thread it is one
//! relaxed load and a branch.

macro_rules! costs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal / $unit:literal,)*) => {
        /// A kind of work that takes processor time.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Cost { $($(#[$doc])* $variant,)* }

        impl Cost {
            /// Every kind, in the order of the table.
            pub const ALL: &[Cost] = &[$(Cost::$variant,)*];

            /// Its name in profiles and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Cost::$variant => $name,)* }
            }

            /// What one unit of it is.
            pub const fn unit(self) -> &'static str {
                match self { $(Cost::$variant => $unit,)* }
            }
        }
    };
}

costs! {
    /// Looking a resident page up, latching it, recording the access, unlatching it.
    PageAccess = "page_access" / "access",
    /// Searching one node of a tree for a key: checking its header, finding the slot.
    NodeSearch = "node_search" / "node",
    /// Reading one row of a leaf in a scan, its bytes not counted.
    LeafRow = "leaf_row" / "row",
    /// Changing one cell of a leaf and describing the change for the log.
    LeafChange = "leaf_change" / "change",
    /// Taking a page into a log group: note that it is dirty, stamp it, encode its part.
    GroupPage = "group_page" / "page",
    /// Telling the replacement policy of one recorded access, under the lock of the pool instance.
    HitRecord = "hit_record" / "access",
    /// One operation on the lists of a pool instance (replacement list, dirty list, free list, page table), under its
    /// lock.
    ListMove = "list_move" / "operation",
    /// Looking at one page of a list for a victim, or for a page to clean, under the instance's lock.
    ListScan = "list_scan" / "page",
    /// A page miss beside its list operations and its I/O.
    Miss = "miss" / "miss",
    /// Appending a log group: reserve, header, publish.
    LogGroup = "log_group" / "group",
    /// Appending one byte of a group's body: checksum and copy.
    LogByte = "log_byte" / "byte",
    /// Copying.
    CopyByte = "copy_byte" / "byte",
    /// Checksums of pages.
    ChecksumByte = "checksum_byte" / "byte",
    /// Compressing, per byte of input.
    CompressByte = "compress_byte" / "byte",
    /// Decompressing, per byte of output.
    DecompressByte = "decompress_byte" / "byte",
    /// Taking a key or interval lock of a transaction.
    LockAcquire = "lock_acquire" / "lock",
    /// Comparing with one interval of a list of interval locks.
    IntervalLook = "interval_look" / "interval",
    /// Giving a lock up.
    LockRelease = "lock_release" / "lock",
    /// Beginning a transaction.
    TxnBegin = "txn_begin" / "transaction",
    /// Committing: what does not depend on how much was changed.
    TxnCommit = "txn_commit" / "transaction",
    /// A read or write call of a transaction: checks, write set, buffers.
    TxnCall = "txn_call" / "call",
    /// Handing one request to a device (system call, driver).
    IoSubmit = "io_submit" / "request",
    /// Learning that one request is done (interrupt, system call).
    IoComplete = "io_complete" / "request",
    /// Going to sleep in a wait and coming back: two switches of context.
    Park = "park" / "wait",
    /// Waking a sleeping thread.
    Unpark = "unpark" / "thread",
    /// Merging one pair of a sorted run: comparing, choosing, putting.
    MergePair = "merge_pair" / "pair",
    /// Merging, per byte of keys and values.
    MergeByte = "merge_byte" / "byte",
    /// A workload's own work per transaction: drawing inputs, bookkeeping.
    ClientTxn = "client_txn" / "transaction",
    /// A workload's own work per call of the store: making keys, reading and writing rows.
    ClientCall = "client_call" / "call",
}

/// Number of kinds.
const N: usize = Cost::ALL.len();

/// Costs of a host, picoseconds per unit. All zero by default: work takes no time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuCosts([u64; N]);

impl Default for CpuCosts {
    fn default() -> CpuCosts {
        CpuCosts([0; N])
    }
}

impl CpuCosts {
    /// Nanoseconds per unit of `cost`.
    pub fn ns(&self, cost: Cost) -> f64 {
        self.0[cost as usize] as f64 / 1000.0
    }

    /// Sets the nanoseconds per unit of `cost`, to the picosecond; negative ones and NaN count as zero.
    pub fn set_ns(&mut self, cost: Cost, ns: f64) {
        // A float to integer cast saturates, and NaN becomes zero.
        self.0[cost as usize] = (ns * 1000.0).round() as u64;
    }

    /// Picoseconds for `n` units.
    #[inline]
    pub fn ps(&self, cost: Cost, n: u64) -> u64 {
        self.0[cost as usize].saturating_mul(n)
    }

    /// Every cost times `factor`: a host whose single thread is `1 / factor` times as fast.
    pub fn scaled(&self, factor: f64) -> CpuCosts {
        let mut scaled = CpuCosts::default();
        Cost::ALL.iter().for_each(|&c| scaled.set_ns(c, self.ns(c) * factor));
        scaled
    }

    /// No work takes time.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|&c| c == 0)
    }
}

/// What processor time went to: of a thread, a modelled host, or a simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuUse {
    units: [u64; N],
    /// Time that modelled cores were occupied, summed over cores, ns. Kept by host, not by thread.
    pub core_ns: u64,
    /// Moving the words of locks between cores, ns.
    pub handoff_ns: u64,
    /// Waiting for holders of locks that ran ahead of the clock (see [`Config::slack`](crate::sim::Config::slack)), ns.
    pub spin_ns: u64,
}

impl Default for CpuUse {
    fn default() -> CpuUse {
        CpuUse { units: [0; N], core_ns: 0, handoff_ns: 0, spin_ns: 0 }
    }
}

impl CpuUse {
    #[cfg(feature = "sim")]
    #[inline]
    pub(crate) fn add(&mut self, cost: Cost, n: u64) {
        self.units[cost as usize] += n;
    }

    pub(crate) fn merge(&mut self, other: &CpuUse) {
        self.units.iter_mut().zip(&other.units).for_each(|(to, n)| *to += n);
        self.core_ns += other.core_ns;
        self.handoff_ns += other.handoff_ns;
        self.spin_ns += other.spin_ns;
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &CpuUse) -> CpuUse {
        self.merge(other);
        self
    }

    /// Units of `cost` that were charged.
    pub fn units(&self, cost: Cost) -> u64 {
        self.units[cost as usize]
    }
}
