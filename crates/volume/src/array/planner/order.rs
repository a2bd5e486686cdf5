//! In which order extents move to where a plan has them.
//!
//! On the way the drives have parts of the old places and parts of the new ones; were one of them given all that it
//! shall have before it is rid of what it had, it would hold up the rest. So the next move is always the one after
//! which the drive that needs longest needs least; of equal ones that of the heaviest extent.

use super::Question;
use super::model::{Part, Problem};
use std::collections::BTreeMap;

/// The extents that move from their places in `from` to those in `to`, in order.
pub fn order(question: &Question, from: &[usize], to: &[usize]) -> Vec<usize> {
    assert_eq!(from.len(), to.len(), "every extent has a place before and after");
    let problem = Problem::of(question);
    let bytes = |e: usize| question.loads[e].bytes();
    // By the drives that a move concerns, the heaviest extent last.
    let mut waiting: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for extent in (0..from.len()).filter(|e| from[*e] != to[*e]) {
        waiting.entry((from[extent], to[extent])).or_default().push(extent);
    }
    waiting.values_mut().for_each(|extents| extents.sort_by(|a, b| bytes(*a).total_cmp(&bytes(*b))));
    let mut state = State::of(&problem, problem.parts(from));
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let heads = waiting.iter().map(|(drives, extents)| (*drives, extents[extents.len() - 1]));
        let rated = heads.map(|(drives, extent)| {
            // A drive that is full would only be asked in vain.
            let full = state.parts[drives.1].extents >= question.drives[drives.1].extents;
            (full, state.longest_after(&problem, extent, drives), -bytes(extent), drives)
        });
        let least = rated.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)));
        let (.., drives) = least.expect("something waits");
        let extents = waiting.get_mut(&drives).expect("it was found there");
        let extent = extents.pop().expect("no list is empty");
        if extents.is_empty() {
            waiting.remove(&drives);
        }
        state.change(&problem, extent, drives);
        order.push(extent);
    }
    order
}

/// What each drive has at some moment, and how long it needs for that.
struct State {
    parts: Vec<Part>,
    times: Vec<f64>,
}

impl State {
    fn of(problem: &Problem<'_>, parts: Vec<Part>) -> State {
        let times = parts.iter().zip(problem.drives).map(|(part, drive)| part.time(drive)).collect();
        State { parts, times }
    }

    fn moved(&self, problem: &Problem<'_>, extent: usize, (from, to): (usize, usize)) -> [(usize, Part); 2] {
        let load = &problem.loads[extent];
        [(from, self.parts[from].without(load)), (to, self.parts[to].with(load))]
    }

    /// The longest time once an extent has moved.
    fn longest_after(&self, problem: &Problem<'_>, extent: usize, drives: (usize, usize)) -> f64 {
        let others = (0..self.times.len()).filter(|d| *d != drives.0 && *d != drives.1).map(|d| self.times[d]);
        let both = self.moved(problem, extent, drives).map(|(drive, part)| part.time(&problem.drives[drive]));
        others.chain(both).fold(0.0, f64::max)
    }

    fn change(&mut self, problem: &Problem<'_>, extent: usize, drives: (usize, usize)) {
        for (drive, part) in self.moved(problem, extent, drives) {
            (self.parts[drive], self.times[drive]) = (part, part.time(&problem.drives[drive]));
        }
    }
}
