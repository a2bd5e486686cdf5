//! The advisor of native flash: which delta records the pages of a database should take, and which keyspaces should
//! share a region, from the page writes of a running engine (Hardock et al., SIGMOD 2017, has the idea; what it
//! computes is in `docs/advise.md`).
//!
//! Pure: writes and an array in, advice out. Each figure comes from a replay of the writes on the region in question,
//! with the translation layer that the region would have.

mod counted;
mod replay;
mod schemes;

pub use schemes::{Candidate, KeyspaceAdvice, Row};

use super::delta::Scheme;
use super::layout::RegionConfig;
use crate::{KeyspaceId, VolumeError};
use replay::Done;
use std::collections::BTreeMap;
use varve_device::flash::{CellMode, Geometry};

/// Least gain that is worth a change; assumed.
pub const LEAST_GAIN: f64 = 0.05;
/// Most of a page that records may take, for the advisor: the largest of the papers, [2x156] on 4 KB, takes 7.6 %.
pub const MOST_RESERVED: f64 = 0.1;

/// A page write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page of the database.
    pub page: u64,
    /// Whose it is.
    pub keyspace: KeyspaceId,
    /// Bytes that changed since it was stored, those of the page header included; none: it can be written whole only.
    pub changed: Option<u32>,
}

/// What the advice is to bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Page writes until the first region is worn out.
    #[default]
    Life,
    /// Page writes in the time that the chips work for them.
    Throughput,
}

impl std::str::FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        match text {
            "life" => Ok(Goal::Life),
            "throughput" => Ok(Goal::Throughput),
            _ => Err("choose life or throughput".into()),
        }
    }
}

/// Times of a cell mode, nanoseconds, and what its blocks endure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// The mode.
    pub mode: CellMode,
    /// Erases of a block.
    pub endurance: f64,
    /// Reading a page, and moving it over the bus.
    pub read: f64,
    /// Programming a page, over all page types that are used, and moving it over the bus.
    pub program: f64,
    /// Programming a record of so many bytes: the time of the array, and of a byte on the bus.
    pub append: (f64, f64),
    /// Erasing a block.
    pub erase: f64,
}

/// The array that advice is wanted for.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its shape.
    pub geometry: Geometry,
    /// Programs of a page between erases.
    pub nop: u8,
    /// How its cells can be used; the first is what they are meant for.
    pub modes: Vec<Mode>,
}

/// What the flash went through before the writes that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ageing {
    /// Pages overwritten at random, for each that holds data.
    pub random: f64,
    /// How often the writes are replayed; the last time counts.
    pub passes: u32,
}

/// What is known and what is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The page writes, in order.
    pub writes: Vec<Written>,
    /// The first of them that counts; those before it are a warm-up.
    pub from: usize,
    /// Names of keyspaces.
    pub names: BTreeMap<KeyspaceId, String>,
    /// Pages of the database; 0: as far as writes reach.
    pub pages: u64,
    /// Bytes of its pages.
    pub page_size: u32,
    /// The array.
    pub array: Array,
    /// The goal.
    pub goal: Goal,
    /// None: pages overwritten once at random, and the writes again until twice the data were written.
    pub ageing: Option<Ageing>,
}

/// Figures of a layout, or of a keyspace on a region of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Predicted {
    /// Page writes that count.
    pub writes: u64,
    /// Of these, appends.
    pub append_share: f64,
    /// Pages written whole.
    pub out_of_place: u64,
    /// Copies of pages that became worthless.
    pub invalidations: u64,
    /// Pages moved by collection.
    pub migrations: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Page writes until the first region is worn out.
    pub life: f64,
    /// Time of the chips for a page write, microseconds.
    pub busy_us: f64,
}

impl Predicted {
    /// What a goal goes by; more is better.
    pub fn score(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Life => self.life,
            Goal::Throughput => 1e6 / self.busy_us.max(1e-9),
        }
    }

    /// Of one region of `blocks` blocks.
    fn of(done: &Done, mode: &Mode, scheme: Scheme, blocks: f64) -> Predicted {
        assert!(done.invalidated <= done.whole, "only a page that is written whole leaves a copy behind");
        assert!(blocks > 0.0 && mode.endurance > 0.0, "a region has blocks that endure something");
        let writes = done.writes().max(1) as f64;
        let append = mode.append.0 + f64::from(scheme.m) * mode.append.1;
        let whole = done.whole as f64 * mode.program + done.copies as f64 * (mode.read + mode.program);
        let nanos = whole + done.appends as f64 * append + done.erases as f64 * mode.erase;
        Predicted {
            writes: done.writes(),
            append_share: done.appends as f64 / writes,
            out_of_place: done.whole,
            invalidations: done.invalidated,
            migrations: done.copies,
            erases: done.erases,
            // Half an erase where there was none: so many writes at least.
            life: writes * blocks * mode.endurance / (done.erases as f64).max(0.5),
            busy_us: nanos / writes / 1e3,
        }
    }

    /// Of two regions that work side by side.
    fn beside(&self, other: &Predicted) -> Predicted {
        let writes = (self.writes + other.writes).max(1);
        let share = |of: &Predicted| of.writes as f64 / writes as f64;
        let life = |of: &Predicted| if of.writes == 0 { f64::INFINITY } else { of.life / share(of) };
        Predicted {
            writes: self.writes + other.writes,
            append_share: self.append_share * share(self) + other.append_share * share(other),
            out_of_place: self.out_of_place + other.out_of_place,
            invalidations: self.invalidations + other.invalidations,
            migrations: self.migrations + other.migrations,
            erases: self.erases + other.erases,
            life: life(self).min(life(other)),
            busy_us: self.busy_us * share(self) + other.busy_us * share(other),
        }
    }
}

/// The advice.
#[derive(Clone, Debug, PartialEq)]
pub struct FlashAdvice {
    /// What it is to bring.
    pub goal: Goal,
    /// Keyspaces, those written most first.
    pub keyspaces: Vec<KeyspaceAdvice>,
    /// All pages in one region, written whole.
    pub plain: Predicted,
    /// Layouts that were tried, the best first.
    pub layouts: Vec<Candidate>,
    /// Whether the best is worth it.
    pub pays: bool,
    /// Why.
    pub why: String,
    /// Of so many pages one was looked at.
    pub one_of: u64,
}

impl FlashAdvice {
    /// The regions that are advised, if that pays.
    pub fn regions(&self) -> Option<&[RegionConfig]> {
        let best = self.layouts.first().filter(|_| self.pays)?;
        Some(&best.regions)
    }

    /// The gain of the best layout, as a share of what is without it.
    pub fn gain(&self) -> f64 {
        let best = self.layouts.first().map_or(0.0, |best| best.predicted.score(self.goal));
        best / self.plain.score(self.goal) - 1.0
    }
}

fn refuse(what: impl Into<String>) -> VolumeError {
    VolumeError::Options(what.into())
}

/// Gives advice. Errors: nothing to go by; an array that the pages do not fit.
pub fn advise(question: &Question) -> Result<FlashAdvice, VolumeError> {
    if question.writes.len() <= question.from {
        return Err(refuse("no page was written: record while the database is at work, for longer"));
    }
    if question.array.modes.is_empty() {
        return Err(refuse("an array has cells in some mode"));
    }
    question.array.geometry.validate().map_err(|e| refuse(e.to_string()))?;
    let page = question.array.geometry.page_bytes;
    if question.page_size == 0 || !question.page_size.is_multiple_of(page) {
        return Err(refuse(format!(
            "pages of {} bytes do not lie on pages of {page} bytes: give a profile with pages that divide them",
            question.page_size
        )));
    }
    schemes::advise(question)
}
