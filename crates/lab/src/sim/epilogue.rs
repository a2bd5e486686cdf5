//! The end of some seeds: a device acknowledges the write of a page and does something else. What becomes of that is
//! told apart and counted; a stale page that is believed is the only harm that may come of it.

use super::book::{Ending, Goal};
use super::faults::{Fault, Kind};
use super::seed::{Driver, Wish};
use super::tables::Table;
use std::collections::BTreeMap;

/// What became of a write that was acknowledged and not done as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A client's call failed and named the page.
    AtRead,
    /// The next opening did.
    AtOpening,
    /// The database opened, and a check named it.
    AtCheck,
    /// It was written again, made whole by recovery, or needed no more.
    Unharmed,
    /// What was there before was taken for the page.
    Believed,
}

const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::AtRead, "found at read"),
    (Outcome::AtOpening, "found at opening"),
    (Outcome::AtCheck, "found by check"),
    (Outcome::Unharmed, "unharmed"),
    (Outcome::Believed, "stale, believed"),
];

/// How often each kind of false write came to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageFaults(BTreeMap<(Kind, Outcome), u64>);

impl PageFaults {
    pub(crate) fn merge(&mut self, other: &PageFaults) {
        other.0.iter().for_each(|(cell, n)| *self.0.entry(*cell).or_default() += n);
    }

    /// Kind by outcome. Bytes that are wrong are never believed, as the checksum tells them.
    pub(crate) fn table(&self) -> Table {
        let possible = |kind, outcome| !(kind == Kind::Scribbled && outcome == Outcome::Believed);
        let count = |kind, outcome| possible(kind, outcome).then(|| self.0.get(&(kind, outcome)).copied().unwrap_or(0));
        let row = |&(kind, name): &(Kind, &str)| {
            (name.to_string(), OUTCOMES.iter().map(|(outcome, _)| count(kind, *outcome)).collect())
        };
        let columns = OUTCOMES.iter().map(|(_, name)| name.to_string()).collect();
        Table { title: "false writes", columns, rows: Kind::FALSE.iter().map(row).collect() }
    }
}

impl Driver {
    /// One more life with a false write in it, and one that looks what became of it.
    pub(super) fn epilogue(&mut self) -> Result<(), String> {
        let fault = Fault::false_write(&mut self.rng);
        let ending = match self.rng.one_in(3) {
            true => Ending::Close,
            false => Ending::Cut { after_ops: self.rng.below(200), seed: self.rng.next_u64() },
        };
        let goal = Goal { commits: self.rng.between(20, 120), ending, patient: true };
        self.live(Wish { goal: Some(goal), faults: vec![fault], ..Wish::verify() })?;
        if self.machine.falsified() == 0 {
            return Ok(());
        }
        let mut outcome = self.outcome.take();
        let looked = self.live(Wish::verify());
        outcome = outcome.or(self.outcome.take());
        let outcome = match (outcome, looked) {
            (_, Err(what)) if self.panicked => return Err(what),
            (Some(outcome), _) => outcome,
            (None, Ok(())) => Outcome::Unharmed,
            (None, Err(what)) if fault.kind() == Kind::Scribbled => {
                return Err(format!("wrong bytes believed: {what}"));
            }
            (None, Err(what)) if self.plan.always_detects() => return Err(format!("a lost write went unseen: {what}")),
            (None, Err(_)) => Outcome::Believed,
        };
        self.trace.event(|| format!("{fault:?}: {outcome:?}"));
        *self.totals.page_faults.0.entry((fault.kind(), outcome)).or_default() += 1;
        Ok(())
    }
}
