//! Replacement policies: pure state machines that say which page should leave next.
//!
//! A policy does no I/O, takes no lock and reads no clock: events come in (with the time), slots come out. The buffer
//! pool drives one per instance under the instance's lock; trace replay and property tests drive the very same code.
//! State lives in the policy, indexed by slot, never in the frame. Every operation is O(1) (`lru-2`: O(log slots)) but
//! for the walks, which are bounded by what the caller asks for.
//!
//! A new policy is one file here, one line in `mod` and one in [`REGISTRY`].

mod arc;
mod clock;
mod fifo;
mod gd2l;
mod gd2l_c;
pub mod ghosts;
mod lirs;
pub mod list;
mod lru;
mod lru_2;
mod midpoint;
mod once;
mod random;
mod s3_fifo;
mod sieve;
mod slots;
mod two_q;

pub use gd2l::{ClassCosts, Gd2lOptions, MAX_CLASSES};
pub use lirs::LirsOptions;
pub use lru_2::{History, Lru2Options};
pub use midpoint::MidpointOptions;
use once::Once;
use varve_volume::{CostClass, PageId, WriteWhy};

/// Index of a frame within its instance, `0..slots`.
pub type Slot = u32;

/// How a page came into the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Somebody waited for it, or it was created: this counts as its first access.
    Demand,
    /// Read-ahead brought it: nobody has accessed it yet.
    Prefetch,
}

/// What became of pages in the cold part of a policy that has one, since it was made: those that came in there and were
/// not moved to the hot end since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turnover {
    /// Pages that were evicted.
    pub evicted: u64,
    /// Nanoseconds from their first access to their eviction.
    pub evicted_ns: u64,
    /// Of them, pages that were evicted before an access could have moved them to the hot end.
    pub evicted_early: u64,
    /// Pages that an access moved to the hot end.
    pub made_young: u64,
    /// Accesses that came too early for that.
    pub not_young: u64,
}

impl Turnover {
    /// Adds another's.
    pub fn plus(&mut self, other: &Turnover) {
        self.evicted += other.evicted;
        self.evicted_ns += other.evicted_ns;
        self.evicted_early += other.evicted_early;
        self.made_young += other.made_young;
        self.not_young += other.not_young;
    }
}

/// How a page leaves the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlink {
    /// As a victim; policies with history remember it.
    Evicted,
    /// The page was freed, or its read failed: it leaves no trace.
    Discarded,
}

/// What the caller looks for when it asks for a victim.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Examine at most this many pages.
    pub depth: usize,
    /// Go on where the last walk ended, not at the cold end. A walk that reached its end makes the next one begin at
    /// the cold end.
    pub resume: bool,
    /// End the walk at the first page that is not [`Replacement::cold`].
    pub cold_only: bool,
    /// The page that the frame is for, if known; policies with history look it up.
    pub incoming: Option<PageId>,
}

impl Ask {
    /// Any page of the whole pool, coldest first.
    pub fn any() -> Ask {
        Ask { depth: usize::MAX, resume: false, cold_only: false, incoming: None }
    }
}

/// A replacement policy over a fixed number of slots. Times are in nanoseconds from any fixed origin and never go back.
pub trait Replacement: Send {
    /// A page was loaded into an empty `slot`.
    fn load(&mut self, slot: Slot, page: PageId, how: Load, class: CostClass, now: u64);
    /// The page in `slot` was accessed.
    fn hit(&mut self, slot: Slot, now: u64);
    /// The page in `slot` became dirty.
    fn dirtied(&mut self, _slot: Slot, _now: u64) {}
    /// The page in `slot` became clean: it was written for this reason.
    fn cleaned(&mut self, _slot: Slot, _why: WriteWhy, _now: u64) {}
    /// The cost of reading the page in `slot` again changed. `wrote` is why it was written, if a write changed it.
    fn class_changed(&mut self, _slot: Slot, _class: CostClass, _wrote: Option<WriteWhy>, _now: u64) {}
    /// The page in `slot` leaves; the slot is empty.
    fn unlink(&mut self, slot: Slot, how: Unlink);
    /// Walks pages in the order in which they should leave and returns the first that `take` accepts. The page stays
    /// until [`Replacement::unlink`]. `take` refuses pages that are pinned, latched, dirty or being written.
    fn victim(&mut self, ask: Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;
    /// Shows up to `depth` pages in the order in which they would leave, until `visit` says stop by `false`; changes
    /// nothing.
    fn coldest(&self, depth: usize, visit: &mut dyn FnMut(Slot) -> bool);
    /// Whether the page in `slot` lies in the part of the order that the policy holds for soon to leave (the old part
    /// of `lru-midpoint`); policies without such a part hold every page for that.
    fn cold(&self, _slot: Slot) -> bool {
        true
    }
    /// Where the next resumed walk begins, if not at the cold end.
    fn cursor(&self) -> Option<Slot> {
        None
    }
    /// Makes the next resumed walk begin at the cold end.
    fn rewind(&mut self) {}
    /// Moves the place where the next resumed walk begins on to the next page that is `good`, over at most `depth`
    /// pages and not past the cold part. Policies without such a place do nothing.
    fn advance(&mut self, _depth: usize, _good: &mut dyn FnMut(Slot) -> bool) {}
    /// Pages present.
    fn len(&self) -> usize;
    /// Whether no page is present.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What became of pages in the cold part; policies without such a part count nothing.
    fn turnover(&self) -> Turnover {
        Turnover::default()
    }
    /// Asserts the policy's invariants. O(slots), for tests.
    fn check(&self) {}
}

/// What a policy may be configured with; each takes what concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicyOptions {
    /// `lru-midpoint`.
    pub midpoint: MidpointOptions,
    /// `lirs`.
    pub lirs: LirsOptions,
    /// `lru-2`.
    pub lru2: Lru2Options,
    /// `gd2l` and `gd2l-c`.
    pub gd2l: Gd2lOptions,
    /// Seed of `random`.
    pub seed: u64,
}

/// One line per policy.
pub struct PolicyEntry {
    /// Name in configurations and statistics.
    pub name: &'static str,
    /// Makes one for a number of slots.
    pub make: fn(usize, &PolicyOptions) -> Box<dyn Replacement>,
    /// Pages that are not resident and remembered all the same, per slot at most; infinite: unbounded.
    pub ghosts: fn(&PolicyOptions) -> f64,
    /// A search may go in short steps, each from where the last one ended ([`Ask::resume`]).
    pub steps: bool,
}

impl PolicyEntry {
    /// Bytes per slot, for the memory budget: lists and marks, and what is remembered of other pages.
    pub fn slot_bytes(&self, options: &PolicyOptions) -> usize {
        const LISTS_AND_MARKS: usize = 48;
        LISTS_AND_MARKS + ((self.ghosts)(options) * ghosts::Ghosts::BYTES as f64).ceil() as usize
    }
}

fn none(_: &PolicyOptions) -> f64 {
    0.0
}

/// Every policy there is.
pub const REGISTRY: &[PolicyEntry] = &[
    PolicyEntry { name: "lru", ghosts: none, steps: true, make: |slots, _| Box::new(lru::Lru::new(slots)) },
    PolicyEntry {
        name: "lru-midpoint",
        ghosts: none,
        steps: true,
        make: |slots, o| Box::new(midpoint::Midpoint::new(slots, o.midpoint)),
    },
    PolicyEntry { name: "fifo", ghosts: none, steps: true, make: |slots, _| Box::new(fifo::Fifo::new(slots)) },
    PolicyEntry {
        name: "random",
        ghosts: none,
        steps: false,
        make: |slots, o| Box::new(random::Random::new(slots, o.seed)),
    },
    PolicyEntry { name: "clock", ghosts: none, steps: false, make: |slots, _| Box::new(clock::Clock::new(slots)) },
    PolicyEntry {
        name: "sieve",
        ghosts: none,
        steps: false,
        make: |slots, _| Box::new(Once::new(slots, sieve::Sieve::new(slots))),
    },
    PolicyEntry {
        name: "2q",
        ghosts: |_| 0.5,
        steps: false,
        make: |slots, _| Box::new(Once::new(slots, two_q::TwoQ::new(slots))),
    },
    PolicyEntry {
        name: "arc",
        ghosts: |_| 1.0,
        steps: false,
        make: |slots, _| Box::new(Once::new(slots, arc::Arc::new(slots))),
    },
    PolicyEntry {
        name: "s3-fifo",
        ghosts: |_| 0.9,
        steps: false,
        make: |slots, _| Box::new(Once::new(slots, s3_fifo::S3Fifo::new(slots))),
    },
    PolicyEntry {
        name: "lirs",
        ghosts: |o| o.lirs.stack.unwrap_or(f64::INFINITY),
        steps: false,
        make: |slots, o| Box::new(Once::new(slots, lirs::Lirs::new(slots, o.lirs))),
    },
    PolicyEntry {
        name: "lru-2",
        ghosts: |o| o.lru2.history.per_slot(),
        steps: false,
        make: |slots, o| Box::new(Once::new(slots, lru_2::Lru2::new(slots, o.lru2))),
    },
    PolicyEntry { name: "gd2l", ghosts: none, steps: false, make: |slots, o| Box::new(gd2l::Gd2l::new(slots, o.gd2l)) },
    PolicyEntry {
        name: "gd2l-c",
        ghosts: none,
        steps: false,
        make: |slots, o| Box::new(gd2l_c::Gd2lC::new(slots, o.gd2l)),
    },
];

/// The policy of that name.
pub fn find(name: &str) -> Option<&'static PolicyEntry> {
    REGISTRY.iter().find(|e| e.name == name)
}
