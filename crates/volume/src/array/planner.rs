//! Where the extents of an array should lie: which layout, which drives only read, a place for each extent, and what
//! that brings. Pure: curves and loads in, a plan out.
//!
//! **What it believes.** The load keeps its proportions, so the drive that needs longest for its part holds up the
//! rest: throughput = load / max over drives of (part of the load / T_i(its share of reads, its request size)). When
//! all need equally long this is the sum of what the drives give, k TP1 + (m+n-k) TP2 of Yang, Wan, Fan 2017 with
//! unequal drives. A stripe gives every drive the same part of the same mix: n times the slowest, their (m+n) TP0.
//! Proportional deals the extents in order by T_i at the whole load's mix. RODI has a set of drives with extents that
//! are only read, and puts each extent where the longest time gets least; drives that only read may be any that are not
//! all.
//!
//! **How it searches.** Up to eight drives every set of read-only drives is tried; of more, the first by read-only gain
//! and by T(1) / T(0), up to any number. Sets are ranked by the load taken as a fluid, the best are filled: the
//! heaviest extent first onto the drive that ends first, then moves and swaps away from the drive that needs longest,
//! until none helps. Of eight extents on four drives, and less, every place is tried. At last every move that brings
//! nothing is taken back.

mod fill;
mod model;
mod order;
#[cfg(test)]
mod tests;

use super::curve::{Curve, CurveError};
use fill::{Filled, fill, take_back};
pub use model::Load;
use model::{Problem, mb_s_of, stripe_mb_s};
pub use order::order;

/// A drive of an array.
#[derive(Debug, Clone)]
pub struct PlanDrive {
    /// For messages.
    pub name: String,
    /// What it gives.
    pub curve: Curve,
    /// Extents that it has room for.
    pub extents: u32,
}

/// The layouts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// RAID 0: every drive has the same part of everything.
    Stripe,
    /// Whole extents, by the drives' speed.
    Proportional,
    /// Extents that are only read on drives of their own.
    Rodi,
}

impl Choice {
    /// Its name for options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Stripe => "stripe",
            Choice::Proportional => "proportional",
            Choice::Rodi => "rodi",
        }
    }
}

/// How the extents lie now.
#[derive(Debug, Clone, PartialEq)]
pub enum Now {
    /// Striped over all drives.
    Stripe,
    /// Each in one piece: the layout that it is called, and the drive of each.
    Placed(Choice, Vec<usize>),
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The drives.
    pub drives: Vec<PlanDrive>,
    /// The extents' loads, in order.
    pub loads: Vec<Load>,
    /// How they lie.
    pub now: Now,
    /// Of extents in places, those that must stay where they are; empty: none.
    pub pinned: Vec<bool>,
    /// Bytes of an extent.
    pub extent: u64,
    /// The least gain that is worth moving anything, as a share of the throughput now.
    pub least_gain: f64,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The layout.
    pub layout: Choice,
    /// Which drives have only extents that are only read; none unless the layout is RODI.
    pub read_only: Vec<bool>,
    /// The drive of each extent; empty for a stripe.
    pub places: Vec<usize>,
    /// Predicted throughput as things are, MB/s.
    pub before: f64,
    /// And as planned.
    pub after: f64,
    /// What each layout would give that can be had: with these drives' room, and RODI with something to isolate.
    pub predicted: Vec<(Choice, f64)>,
    /// Bytes to move.
    pub moved: u64,
}

impl Plan {
    /// Drives that only read: the paper's k.
    pub fn k(&self) -> usize {
        self.read_only.iter().filter(|only| **only).count()
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanError {
    /// Fewer than two drives.
    FewDrives,
    /// A drive's curve does not answer for the load.
    Curve {
        /// Name of the drive.
        drive: String,
        /// What is wrong.
        why: CurveError,
    },
    /// The extents do not fit.
    NoRoom {
        /// Extents that are too many.
        missing: usize,
    },
    /// A number that cannot be, or a place of a drive that is not there.
    Load {
        /// The extent.
        extent: usize,
    },
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlanError::FewDrives => write!(f, "an array has at least two drives: give another one"),
            PlanError::Curve { drive, why } => write!(f, "{drive}: {why}"),
            PlanError::NoRoom { missing } => {
                write!(f, "the drives have room for {missing} extents too few: give more or larger drives")
            }
            PlanError::Load { extent } => {
                write!(f, "extent {extent} has a load or a place that cannot be: measure the load again")
            }
        }
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PlanError::Curve { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// Decides where the extents should lie. Staying as it is wins over everything that is not better by more than
/// `least_gain`; a stripe over what is not better than it, and proportional over RODI.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(question: &Question) -> Result<Plan, PlanError> {
    plan_among(question, &[Choice::Stripe, Choice::Proportional, Choice::Rodi])
}

/// As [`plan`], but a stripe is told of only: for extents that can be moved, and not be cut anew.
///
/// # Errors
/// See [`PlanError`].
pub fn plan_places(question: &Question) -> Result<Plan, PlanError> {
    plan_among(question, &[Choice::Proportional, Choice::Rodi])
}

fn plan_among(question: &Question, choices: &[Choice]) -> Result<Plan, PlanError> {
    check(question)?;
    let problem = Problem::of(question);
    let before = before(question, &problem);
    let candidates = candidates(question, &problem);
    let predicted: Vec<(Choice, f64)> = candidates.iter().map(|c| (c.layout, c.after)).collect();
    let mut best = staying(question, &problem, before);
    // What cannot stay, because a drive has too many, is worth any move.
    let mut bar = if problem.fits(&question.now) { before * (1.0 + question.least_gain) } else { -1.0 };
    for candidate in candidates.into_iter().filter(|candidate| choices.contains(&candidate.layout)) {
        if candidate.after > bar * (1.0 + 1e-9) {
            bar = candidate.after;
            best = candidate;
        }
    }
    best.predicted = predicted;
    assert!(best.places.is_empty() || best.places.len() == question.loads.len(), "every extent has a place");
    let gains = best.after > before || !problem.fits(&question.now);
    assert!(best.moved == 0 || gains, "no byte moves without gain");
    Ok(best)
}

fn check(question: &Question) -> Result<(), PlanError> {
    let (drives, loads) = (&question.drives, &question.loads);
    if drives.len() < 2 {
        return Err(PlanError::FewDrives);
    }
    let possible = |x: f64| x.is_finite() && x >= 0.0;
    let wrong = |l: &Load| {
        let all = possible(l.read_bytes) && possible(l.write_bytes) && possible(l.requests);
        !all || (l.bytes() > 0.0 && l.requests == 0.0)
    };
    if let Some(extent) = loads.iter().position(wrong) {
        return Err(PlanError::Load { extent });
    }
    if let Now::Placed(_, places) = &question.now {
        let there = |e: &usize| places.get(*e).is_some_and(|d| *d < drives.len());
        if let Some(extent) = (0..loads.len().max(places.len())).find(|e| *e >= loads.len() || !there(e)) {
            return Err(PlanError::Load { extent });
        }
    }
    for drive in drives {
        for load in loads.iter().filter(|l| l.bytes() > 0.0) {
            let refuse = |why| PlanError::Curve { drive: drive.name.clone(), why };
            drive.curve.covers(load.request().round() as u64).map_err(refuse)?;
        }
    }
    let room: usize = drives.iter().map(|d| d.extents as usize).sum();
    match loads.len().checked_sub(room) {
        Some(missing) if missing > 0 => Err(PlanError::NoRoom { missing }),
        _ => Ok(()),
    }
}

fn before(question: &Question, problem: &Problem<'_>) -> f64 {
    match &question.now {
        Now::Stripe => stripe_mb_s(problem),
        Now::Placed(_, places) => mb_s_of(problem, places),
    }
}

fn staying(question: &Question, problem: &Problem<'_>, before: f64) -> Plan {
    let (layout, places) = match &question.now {
        Now::Stripe => (Choice::Stripe, Vec::new()),
        Now::Placed(layout, places) => (*layout, places.clone()),
    };
    let read_only = problem.read_only(layout, &places);
    Plan { layout, read_only, places, before, after: before, predicted: Vec::new(), moved: 0 }
}

/// The best of each layout that can be had, in the order in which they are preferred.
fn candidates(question: &Question, problem: &Problem<'_>) -> Vec<Plan> {
    let before = before(question, problem);
    let planned = |layout, places: Vec<usize>, after| {
        let read_only = problem.read_only(layout, &places);
        let moved = moved(question, layout, &places);
        let fits = places.is_empty() || problem.fits(&Now::Placed(layout, places.clone()));
        assert!(fits, "what is planned has room");
        Plan { layout, read_only, places, before, after, predicted: Vec::new(), moved }
    };
    let mut all = Vec::new();
    if problem.stripe_fits() {
        all.push(planned(Choice::Stripe, Vec::new(), stripe_mb_s(problem)));
    }
    let dealt = problem.proportional();
    all.push(planned(Choice::Proportional, dealt.clone(), mb_s_of(problem, &dealt)));
    if let Some(Filled { mut places, .. }) = fill(problem) {
        if let Now::Placed(_, now) = &question.now {
            // Drives of the set that got nothing are as good as the others.
            let set = problem.read_only(Choice::Rodi, &places);
            take_back(problem, set, &mut places, now);
        }
        let after = mb_s_of(problem, &places);
        all.push(planned(Choice::Rodi, places, after));
    }
    all
}

/// Bytes that change their drive. Of an extent that becomes one piece, or stops being one, all but an n-th.
fn moved(question: &Question, layout: Choice, places: &[usize]) -> u64 {
    let (extents, n) = (question.loads.len() as u64, question.drives.len() as u64);
    match (&question.now, layout) {
        (Now::Stripe, Choice::Stripe) => 0,
        (Now::Placed(_, now), Choice::Proportional | Choice::Rodi) => {
            now.iter().zip(places).filter(|(a, b)| a != b).count() as u64 * question.extent
        }
        _ => extents * question.extent / n * (n - 1),
    }
}
