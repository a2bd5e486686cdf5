//! Tier managers: which pages deserve a slot of the fast device.
//!
//! A manager is pure: it does no I/O, takes no lock and reads no clock. It is told of reads, writes and uses of pages,
//! is asked whether a page offered to the fast device shall have a slot, and ranks the pages that are there; the lowest
//! rank leaves first. Slots, the map and the eviction zone belong to the tier, not to the manager. A new manager is one
//! file here and one line in [`REGISTRY`].
//!
//! Sources: CAC and CC from Liu and Salem, "Hybrid Storage Management for Database Systems" (VLDB 2013), with their
//! description of LRU-2 and of the rivals; LC, CW and DW from Do et al. (SIGMOD 2011); MV-FIFO is FaCE (Kang et al.,
//! VLDB 2012); TAC from Canim et al. (VLDB 2010). `docs/tier.md` says where the papers leave a choice and what was
//! chosen.

mod benefit;
mod fifo;
mod lru2;
mod tac;
mod usage;

pub use usage::Alpha;

use crate::{CostClass, Counted, KeyspaceId, PageId, ReadWhy};
use std::fmt;

/// Service times of one random page request, milliseconds: what the manager believes of the two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Read of the slow device.
    pub read_slow: f64,
    /// Write of the slow device.
    pub write_slow: f64,
    /// Read of the fast device.
    pub read_fast: f64,
    /// Write of the fast device.
    pub write_fast: f64,
}

impl Default for Costs {
    /// The disk and the SSD that the CAC paper measured (section 6.2).
    fn default() -> Costs {
        Costs { read_slow: 7.2, write_slow: 4.96, read_fast: 0.11, write_fast: 0.27 }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{}", self.read_slow, self.write_slow, self.read_fast, self.write_fast)
    }
}

impl std::str::FromStr for Costs {
    type Err = String;

    fn from_str(text: &str) -> Result<Costs, String> {
        let ms: Result<Vec<f64>, _> = text.split(',').map(|t| t.trim().parse()).collect();
        match ms.as_deref() {
            Ok(&[read_slow, write_slow, read_fast, write_fast])
                if [read_slow, write_slow, read_fast, write_fast].iter().all(|ms| ms.is_finite() && *ms > 0.0) =>
            {
                Ok(Costs { read_slow, write_slow, read_fast, write_fast })
            }
            _ => Err(format!("{text:?}: give four times in milliseconds, as in {}", Costs::default())),
        }
    }
}

/// What the managers may be configured with; each takes what concerns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManagerOptions {
    /// Measured costs of the devices.
    pub costs: Costs,
    /// Over which pages CAC averages the miss-rate expansion.
    pub alpha: Alpha,
    /// Width of a bucket of logical read rates, reads per minute (CAC groups).
    pub bucket_width: f64,
    /// Most groups of which statistics are kept.
    pub max_groups: usize,
    /// Pages whose statistics are remembered after they left the pool and the fast device; `None`: as many as the fast
    /// device has slots.
    pub outqueue: Option<usize>,
    /// Half-life of the counters, seconds; `None`: they never age.
    pub half_life: Option<f64>,
    /// MV-FIFO: pages read since they entered are passed over once.
    pub second_chance: bool,
    /// TAC: seconds between halvings of the temperatures.
    pub cooling: f64,
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions {
            costs: Costs::default(),
            alpha: Alpha::Group,
            bucket_width: 1.0,
            max_groups: 4096,
            outqueue: None,
            half_life: None,
            second_chance: true,
            cooling: 600.0,
        }
    }
}

/// Where a page was read from or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The slow device, every page's home.
    Slow,
    /// The fast device.
    Fast,
}

impl Place {
    /// What a page costs to read from there.
    pub fn class(self) -> CostClass {
        CostClass(u8::from(self == Place::Fast))
    }
}

/// A page that could have a slot.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The page.
    pub page: PageId,
    /// The keyspace that it belongs to.
    pub keyspace: KeyspaceId,
    /// Whether its bytes are newer than its home's.
    pub dirty: bool,
    /// Whether it leaves the pool with this.
    pub evicted: bool,
    /// Rank of the page that would have to leave for it; `None`: a slot is free.
    pub lowest: Option<f64>,
    /// Nanoseconds from any fixed origin.
    pub now: u64,
}

/// Why a page got no slot. Every refusal is counted under its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The manager keeps pages of higher rank.
    Rank,
    /// The manager takes no page of this kind (dirty, clean, or any).
    Kind,
    /// No slot of the eviction zone was ready: pages there are newer than home and on their way back.
    NoSlot,
    /// The memory for admissions was full.
    Staging,
    /// The daily write budget of the fast device is used up.
    Budget,
    /// The fast device is detached or has failed.
    Detached,
    /// As many pages as may be are newer than home already.
    Ceiling,
}

/// How a dirty page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyWrites {
    /// To the fast device, if it is there or admitted; home only later.
    Back,
    /// Home, and to its slot too if it has or gets one.
    Through,
    /// Home; a copy on the fast device is dropped.
    Home,
}

/// What a manager wants done beyond its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// How dirty pages are written.
    pub dirty: DirtyWrites,
    /// A page already there is written to a new slot; the old version keeps its slot, dead, until its turn comes.
    pub append: bool,
    /// Pages are offered when they are read from the slow device, not when they leave the pool.
    pub admit_on_read: bool,
    /// An out-of-date copy keeps its slot until it is refreshed or evicted.
    pub keep_invalid: bool,
    /// Each sync copies every page that is newer than home back.
    pub home_at_sync: bool,
    /// Percentage of the slots that may be newer than home, if less than the tier's own ceiling.
    pub dirty_percent: u8,
}

impl Style {
    /// Whether each page's newest version is at home, at the latest when a sync ends.
    pub fn survives_loss(&self) -> bool {
        self.dirty != DirtyWrites::Back || self.home_at_sync
    }
}

impl Default for Style {
    fn default() -> Style {
        Style {
            dirty: DirtyWrites::Back,
            append: false,
            admit_on_read: false,
            keep_invalid: false,
            home_at_sync: false,
            dirty_percent: 100,
        }
    }
}

/// What a manager remembers of a page over a restart; each has its own meaning of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The page.
    pub page: PageId,
    /// The keyspace that it belongs to, where the manager cares.
    pub keyspace: KeyspaceId,
    /// What is remembered.
    pub words: [u32; 5],
}

/// Milliseconds from `then` to `now` as a word of a [`Memory`].
fn ago(then: u64, now: u64) -> u32 {
    (now.saturating_sub(then) / 1_000_000).min(u64::from(u32::MAX)) as u32
}

/// Decides what is kept on the fast device.
pub trait Manager: Send {
    /// How it works.
    fn style(&self) -> Style;
    /// The fast device has so many slots from now on; called before it is used.
    fn resized(&mut self, _slots: usize) {}
    /// A page was read from a device.
    fn read(&mut self, page: PageId, from: Place, why: ReadWhy, now: u64);
    /// A page was written to a device.
    fn wrote(&mut self, page: PageId, to: Place, now: u64);
    /// The pool reports `logical` references to a page whose home or copy (`at`) it would be read from again.
    fn used(&mut self, page: PageId, keyspace: KeyspaceId, logical: u32, at: Place, now: u64);
    /// Whether the page shall have a slot.
    fn admits(&mut self, offer: &Offer) -> Result<(), Refusal>;
    /// The page has a slot now.
    fn entered(&mut self, page: PageId, now: u64);
    /// The page has no slot any more.
    fn left(&mut self, page: PageId, now: u64);
    /// The page left the pool (after `admits` and, if it was admitted, `entered`).
    fn evicted(&mut self, page: PageId, now: u64);
    /// The page was freed: nothing of it is worth remembering.
    fn discarded(&mut self, page: PageId);
    /// How much the page on the fast device deserves to stay; the lowest goes first. `newer`: than home.
    fn rank(&mut self, page: PageId, newer: bool, now: u64) -> f64;
    /// Bytes of memory for statistics.
    fn memory(&self) -> usize;
    /// Bytes that statistics of pages which are neither in the pool nor on the fast device may take.
    fn outqueue_memory(&self) -> usize {
        0
    }
    /// What it counted by group and page, in no order; nothing where it does not count so.
    fn counted(&self) -> Counted {
        Counted::default()
    }
    /// What it would remember over a restart, each with its place in the order: lower ones matter more.
    fn remember(&self, now: u64) -> Vec<(u64, Memory)>;
    /// Takes in what it remembered, in its order; pages that are on the fast device have entered before.
    fn recall(&mut self, memories: &[Memory], now: u64);
}

/// One line per manager.
pub struct Entry {
    /// Name in configurations and statistics.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Makes one.
    pub make: fn(&ManagerOptions) -> Box<dyn Manager>,
}

/// Every manager there is.
pub const REGISTRY: &[Entry] = &[
    Entry { name: "cac", about: "cost-adjusted caching (Liu, Salem)", make: |o| Box::new(benefit::Benefit::cac(o)) },
    Entry { name: "cc", about: "cost-based, without anticipation", make: |o| Box::new(benefit::Benefit::cc(o)) },
    Entry { name: "lru2", about: "every page, LRU-2, write back", make: |_| Box::new(lru2::Lru2::plain()) },
    Entry {
        name: "lc",
        about: "lazy cleaning, home at each checkpoint",
        make: |_| Box::new(lru2::Lru2::lazy_cleaning()),
    },
    Entry { name: "cw", about: "clean pages only", make: |_| Box::new(lru2::Lru2::clean_write()) },
    Entry { name: "dw", about: "dual write: both devices", make: |_| Box::new(lru2::Lru2::dual_write()) },
    Entry { name: "mv-fifo", about: "multi-version FIFO (FaCE)", make: |o| Box::new(fifo::MvFifo::new(o)) },
    Entry { name: "tac", about: "temperature-aware, on read, write through", make: |o| Box::new(tac::Tac::new(o)) },
    Entry { name: "none", about: "never admits", make: |_| Box::new(Never) },
];

/// The manager of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|e| e.name == name)
}

/// Admits nothing.
struct Never;

impl Manager for Never {
    fn style(&self) -> Style {
        Style { dirty: DirtyWrites::Home, ..Style::default() }
    }
    fn read(&mut self, _: PageId, _: Place, _: ReadWhy, _: u64) {}
    fn wrote(&mut self, _: PageId, _: Place, _: u64) {}
    fn used(&mut self, _: PageId, _: KeyspaceId, _: u32, _: Place, _: u64) {}
    fn admits(&mut self, _: &Offer) -> Result<(), Refusal> {
        Err(Refusal::Kind)
    }
    fn entered(&mut self, _: PageId, _: u64) {}
    fn left(&mut self, _: PageId, _: u64) {}
    fn evicted(&mut self, _: PageId, _: u64) {}
    fn discarded(&mut self, _: PageId) {}
    fn rank(&mut self, _: PageId, _: bool, _: u64) -> f64 {
        0.0
    }
    fn memory(&self) -> usize {
        0
    }
    fn remember(&self, _: u64) -> Vec<(u64, Memory)> {
        Vec::new()
    }
    fn recall(&mut self, _: &[Memory], _: u64) {}
}
