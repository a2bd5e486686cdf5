//! What the damages came to: classes, counts by file and kind of damage, and the report.

use super::blow::{Blow, Damage, KINDS};
use super::files::File;
use super::trial::{Seen, Untrue};
use serde::Serialize;
use std::collections::BTreeMap;

/// What one damage came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Everything was read and right, before and after writing, and `check` found nothing.
    Right,
    /// Everything was right since a damaged superblock was mended from its copy, and that was said.
    Mended,
    /// An error, or `check`, named the page, the position of the log, the superblock or the file.
    Named,
    /// The last commits are gone, as after a torn write: their groups lie behind everything that the log proves to have
    /// been durable.
    Tail,
    /// An older copy of a page was taken for the newest, since its fences fit (`detect_lost_writes` would have found
    /// it), or an older log of the same generation, since no page is newer than its end.
    Stale,
    /// An error that names no place, or a superblock that was mended without a word.
    Unnamed,
    /// Rows were missing, and nothing was said.
    SilentLoss,
    /// Something else than what was written was read.
    Wrong,
    /// The engine panicked.
    Panic,
    /// The engine did not come to an end.
    Hang,
}

impl Class {
    /// All of them, from good to bad.
    pub const ALL: [Class; 10] = [
        Class::Right,
        Class::Mended,
        Class::Named,
        Class::Tail,
        Class::Stale,
        Class::Unnamed,
        Class::SilentLoss,
        Class::Wrong,
        Class::Panic,
        Class::Hang,
    ];

    /// Its name in the histogram.
    pub fn name(self) -> &'static str {
        match self {
            Class::Right => "right",
            Class::Mended => "mended, said",
            Class::Named => "place named",
            Class::Tail => "log's tail",
            Class::Stale => "stale believed",
            Class::Unnamed => "no place said",
            Class::SilentLoss => "silent loss",
            Class::Wrong => "wrong",
            Class::Panic => "panic",
            Class::Hang => "hang",
        }
    }

    /// Whether it must never happen.
    pub fn is_fault(self) -> bool {
        matches!(self, Class::Unnamed | Class::SilentLoss | Class::Wrong | Class::Panic | Class::Hang)
    }
}

/// Judges what was seen after a damage. `stale`: it left an older page, or log, that nothing tells from the newest.
pub(super) fn judge(damage: &Damage, seen: &Seen, stale: bool) -> Class {
    if seen.endless.is_some() {
        Class::Hang
    } else if seen.panic.is_some() {
        Class::Panic
    } else if let Some(untrue) = &seen.untrue {
        match untrue {
            _ if stale => Class::Stale,
            Untrue::Missing(_) => Class::SilentLoss,
            Untrue::Other(_) => Class::Wrong,
        }
    } else if seen.lost > 0 {
        // What the truth can take back is what the log's last groups do not prove.
        if damage.file == File::Log { Class::Tail } else { Class::SilentLoss }
    } else if seen.errors.iter().any(|e| !e.named) {
        Class::Unnamed
    } else if seen.errors.is_empty() && seen.check.is_empty() {
        match seen.mended {
            true => Class::Mended,
            false if strikes_superblock(damage) => Class::Unnamed,
            false => Class::Right,
        }
    } else {
        Class::Named
    }
}

/// Whether it leaves a superblock of the log that is none. An older one may be what a crash between the two writes
/// leaves.
fn strikes_superblock(damage: &Damage) -> bool {
    let at = match damage.blow {
        Blow::Flip { at, .. } | Blow::Zero { at } | Blow::Noise { at } => at,
        _ => return false,
    };
    damage.file == File::Log && at < 8192
}

/// A damage that came to what must not be.
#[derive(Clone, Debug, Serialize)]
pub struct DamageFinding {
    /// Its number.
    pub number: u64,
    /// What it came to.
    pub class: Class,
    /// What was done.
    pub damage: String,
    /// What was seen.
    pub seen: String,
    /// Arguments of the tool that show it again.
    pub replay: String,
}

impl std::fmt::Display for DamageFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DamageFinding { number, class, damage, seen, replay } = self;
        write!(f, "damage {number}: {}: {damage}\n  {seen}\n  replay: {replay}", class.name())
    }
}

/// One line of the histogram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamageRow {
    /// State of the database.
    pub state: &'static str,
    /// File damaged.
    pub file: &'static str,
    /// Kind of damage.
    pub kind: &'static str,
    /// Damages by class, in the order of [`Class::ALL`].
    pub counts: [u64; Class::ALL.len()],
}

/// Counts by state, file and kind.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<(usize, File, usize), [u64; Class::ALL.len()]>);

impl Tally {
    pub(super) fn add(&mut self, state: usize, damage: &Damage, class: Class) {
        let at = Class::ALL.iter().position(|c| *c == class).expect("listed");
        self.0.entry((state, damage.file, damage.blow.kind())).or_default()[at] += 1;
    }

    pub(super) fn rows(&self, states: &[&'static str]) -> Vec<DamageRow> {
        let row = |(&(state, file, kind), &counts): (&(usize, File, usize), &[u64; Class::ALL.len()])| DamageRow {
            state: states[state],
            file: file.name(),
            kind: KINDS[kind],
            counts,
        };
        self.0.iter().map(row).collect()
    }
}
