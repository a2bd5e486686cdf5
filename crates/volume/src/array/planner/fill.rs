//! The search: which drives read only, and an extent for each place.

use super::Choice;
use super::model::{Part, Problem};
use std::collections::BTreeSet;

/// Drives up to which every set of read-only drives is looked at.
const ALL_SETS: usize = 8;
/// Sets that are filled, the best as a fluid first; all, where there are few extents.
const SETS: usize = 6;
/// Extents up to which every set is filled.
const FEW: usize = 64;
/// Extents and drives up to which every place is tried.
const EXACT: usize = 8;
const EXACT_DRIVES: usize = 4;
/// Extents of a drive that are tried in swaps, the heaviest first.
const SWAPS: usize = 48;
/// Extents of a drive that are tried in moves, heavy and light ones alike: of more, many are much the same.
const MOVES: usize = 2048;

/// What a move or a swap must bring at least, as a share of the longest time.
const WORTH: f64 = 1e-5;

/// Places with a set of read-only drives, and how long the longest part takes.
pub(super) struct Filled {
    pub set: Vec<bool>,
    pub places: Vec<usize>,
    pub time: f64,
}

/// The best that was found; none if nothing can be isolated.
pub(super) fn fill(problem: &Problem<'_>) -> Option<Filled> {
    if !problem.loads.iter().any(|l| l.read_only && l.bytes() > 0.0) {
        return None;
    }
    let mut sets: Vec<(f64, Vec<bool>)> = sets(problem).into_iter().map(|set| (fluid(problem, &set), set)).collect();
    sets.sort_by(|a, b| a.0.total_cmp(&b.0));
    sets.truncate(if problem.loads.len() <= FEW { sets.len() } else { SETS });
    let filled = sets.iter().flat_map(|(_, set)| starts(problem, set));
    let best = filled.filter(|f| isolates(problem, f)).min_by(|a, b| a.time.total_cmp(&b.time));
    if problem.loads.len() > EXACT || problem.drives.len() > EXACT_DRIVES {
        return best;
    }
    sets.iter().fold(best, |best, (_, set)| {
        let mut all = Exact { search: Search::empty(problem, set), order: by_load(problem), best };
        all.from(0);
        all.best
    })
}

/// Extents in order of their load, the heaviest first.
fn by_load(problem: &Problem<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..problem.loads.len()).collect();
    let bytes = |e: usize| problem.loads[e].bytes();
    order.sort_by(|a, b| bytes(*b).total_cmp(&bytes(*a)));
    order
}

/// All places of few extents, less those that are worse already.
struct Exact<'p> {
    search: Search<'p>,
    order: Vec<usize>,
    best: Option<Filled>,
}

impl Exact<'_> {
    /// Puts the extents from `n` on, in order, everywhere.
    fn from(&mut self, n: usize) {
        let Some(&extent) = self.order.get(n) else { return self.whole() };
        let load = self.search.problem.loads[extent];
        for drive in 0..self.search.parts.len() {
            if !self.search.has_room(drive) || !self.search.allowed(extent, drive) {
                continue;
            }
            let before = (self.search.parts[drive], self.search.times[drive]);
            let part = before.0.with(&load);
            let time = self.search.time_of(drive, part);
            // A drive with more to do needs longer.
            if self.best.as_ref().is_some_and(|best| time >= best.time * (1.0 - WORTH)) {
                continue;
            }
            self.search.places[extent] = drive;
            (self.search.parts[drive], self.search.times[drive]) = (part, time);
            self.from(n + 1);
            (self.search.parts[drive], self.search.times[drive]) = before;
        }
    }

    /// Every extent has its place.
    fn whole(&mut self) {
        let (search, time) = (&self.search, self.search.longest().1);
        let filled = Filled { places: search.places.clone(), set: search.set.clone(), time };
        if isolates(search.problem, &filled) && self.best.as_ref().is_none_or(|best| time < best.time) {
            self.best = Some(filled);
        }
    }
}

/// Some drive of the set reads, and nothing else.
fn isolates(problem: &Problem<'_>, filled: &Filled) -> bool {
    let reads = |e: usize| problem.pins[e].is_none() && problem.loads[e].bytes() > 0.0;
    filled.places.iter().enumerate().any(|(extent, drive)| filled.set[*drive] && reads(extent))
}

/// Sets of read-only drives to look at: not none, not all unless nothing changes.
fn sets(problem: &Problem<'_>) -> Vec<Vec<bool>> {
    let n = problem.drives.len();
    let most = if problem.loads.iter().all(|l| l.read_only) { n } else { n - 1 };
    if n <= ALL_SETS {
        let set = |bits: u32| (0..n).map(|d| bits >> d & 1 == 1).collect::<Vec<bool>>();
        let all = (1u32..1 << n).filter(|bits| bits.count_ones() as usize <= most);
        return all.map(set).collect();
    }
    let request = (problem.whole.read + problem.whole.write) / problem.whole.requests;
    let rate = |d: usize, share: f64| 1.0 / problem.drives[d].curve.per_mb(share, request);
    let gain = |d: usize| rate(d, 1.0) - (1..20).map(|r| rate(d, f64::from(r) / 20.0)).sum::<f64>() / 19.0;
    let ratio = |d: usize| rate(d, 1.0) / rate(d, 0.0);
    let mut found = BTreeSet::new();
    for rank in [&gain as &dyn Fn(usize) -> f64, &ratio] {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
        found.extend((1..=most).map(|k| (0..n).map(|d| order[..k].contains(&d)).collect::<Vec<bool>>()));
    }
    found.into_iter().collect()
}

/// How long the load takes if extents could be cut at will: what is only read fills the set, the rest goes to the
/// others with what changes.
fn fluid(problem: &Problem<'_>, set: &[bool]) -> f64 {
    let mut only = Part::default();
    let mut rest = Part::default();
    for load in problem.loads {
        let part = if load.read_only { &mut only } else { &mut rest };
        *part = part.with(load);
    }
    // Drives side by side need 1 / sum(1 / time) for one load.
    let together = |part: &Part, of_set: bool| {
        let drives = problem.drives.iter().zip(set).filter(|(_, s)| **s == of_set);
        let speed: f64 = drives.map(|(drive, _)| 1.0 / part.time(drive).max(1e-30)).sum();
        if speed > 0.0 { 1.0 / speed } else { f64::INFINITY }
    };
    let split = |kept: f64| {
        let (mut inside, mut outside) = (only, rest);
        (inside.read, inside.requests) = (only.read * kept, only.requests * kept);
        outside.read += only.read * (1.0 - kept);
        outside.requests += only.requests * (1.0 - kept);
        together(&inside, true).max(together(&outside, false))
    };
    (0..=32).map(|n| split(f64::from(n) / 32.0)).fold(f64::INFINITY, f64::min)
}

/// The set filled from several starts.
fn starts(problem: &Problem<'_>, set: &[bool]) -> Vec<Filled> {
    let mut by_load = by_load(problem);
    let mut orders = vec![by_load.clone()];
    // What changes first, as it has fewer drives to go to; what is written most first, as drives differ most in that.
    by_load.sort_by_key(|e| problem.loads[*e].read_only);
    orders.push(by_load.clone());
    by_load.sort_by(|a, b| problem.loads[*b].write_bytes.total_cmp(&problem.loads[*a].write_bytes));
    orders.push(by_load);
    let filled = |order: &Vec<usize>| {
        let mut search = Search::greedy(problem, set, order)?;
        search.improve();
        Some(Filled { set: set.to_vec(), time: search.longest().1, places: search.places })
    };
    orders.iter().filter_map(filled).collect()
}

/// Places under way.
struct Search<'p> {
    problem: &'p Problem<'p>,
    /// The extents, the heaviest first.
    heaviest: Vec<usize>,
    set: Vec<bool>,
    places: Vec<usize>,
    parts: Vec<Part>,
    times: Vec<f64>,
}

impl<'p> Search<'p> {
    fn at(problem: &'p Problem<'p>, set: Vec<bool>, places: Vec<usize>) -> Search<'p> {
        let parts = problem.parts(&places);
        let times = parts.iter().zip(problem.drives).map(|(part, drive)| part.time(drive)).collect();
        Search { problem, heaviest: by_load(problem), set, places, parts, times }
    }

    /// Nothing is placed yet.
    fn empty(problem: &'p Problem<'p>, set: &[bool]) -> Search<'p> {
        let n = problem.drives.len();
        assert_eq!(set.len(), n, "a set tells of every drive");
        let (places, parts) = (vec![0; problem.loads.len()], vec![Part::default(); n]);
        Search { problem, heaviest: by_load(problem), set: set.to_vec(), places, parts, times: vec![0.0; n] }
    }

    /// One extent after the other onto the drive that ends first with it; none if there is no room.
    fn greedy(problem: &'p Problem<'p>, set: &[bool], order: &[usize]) -> Option<Search<'p>> {
        let n = problem.drives.len();
        let mut search = Search::empty(problem, set);
        let (pinned, free): (Vec<usize>, Vec<usize>) = order.iter().partition(|e| problem.pins[**e].is_some());
        for extent in pinned {
            let drive = problem.pins[extent].expect("it is pinned");
            search.give(extent, drive);
        }
        // Room of the other drives that what changes still needs.
        let mut needed = free.iter().filter(|e| !problem.loads[**e].read_only).count();
        for extent in free {
            let load = &problem.loads[extent];
            needed -= usize::from(!load.read_only);
            let spare = search.spare();
            let may = |d: &usize| search.has_room(*d) && search.allowed(extent, *d) && (set[*d] || spare > needed);
            let ends = |d: usize| search.parts[d].with(load).time(&problem.drives[d]);
            // Without a load, where there is most room.
            let least =
                |a: &usize, b: &usize| ends(*a).total_cmp(&ends(*b)).then(search.room(*b).cmp(&search.room(*a)));
            let drive = (0..n).filter(may).min_by(least)?;
            search.give(extent, drive);
        }
        Some(search)
    }

    /// An extent gets its first place.
    fn give(&mut self, extent: usize, drive: usize) {
        self.places[extent] = drive;
        self.parts[drive] = self.parts[drive].with(&self.problem.loads[extent]);
        self.times[drive] = self.parts[drive].time(&self.problem.drives[drive]);
    }

    fn room(&self, drive: usize) -> u32 {
        self.problem.drives[drive].extents.saturating_sub(self.parts[drive].extents)
    }

    fn has_room(&self, drive: usize) -> bool {
        self.room(drive) > 0
    }

    /// Room on drives that are not read-only.
    fn spare(&self) -> usize {
        (0..self.set.len()).filter(|d| !self.set[*d]).map(|d| self.room(d) as usize).sum()
    }

    fn allowed(&self, extent: usize, drive: usize) -> bool {
        match self.problem.pins[extent] {
            Some(home) => drive == home,
            None => self.problem.loads[extent].read_only || !self.set[drive],
        }
    }

    /// The drive that needs longest, and how long.
    fn longest(&self) -> (usize, f64) {
        let all = self.times.iter().copied().enumerate();
        all.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are drives")
    }

    fn put(&mut self, extent: usize, drive: usize) {
        let (from, load) = (self.places[extent], &self.problem.loads[extent]);
        assert!(from != drive && self.allowed(extent, drive), "an extent moves to a drive that may have it");
        self.parts[from] = self.parts[from].without(load);
        self.parts[drive] = self.parts[drive].with(load);
        self.places[extent] = drive;
        for d in [from, drive] {
            self.times[d] = self.parts[d].time(&self.problem.drives[d]);
        }
    }

    /// The extents of a drive, the heaviest first.
    fn of(&self, drive: usize) -> Vec<usize> {
        self.heaviest.iter().copied().filter(|e| self.places[*e] == drive).collect()
    }

    /// Some drive reads, and nothing else: one of the set, or one that has nothing else by now.
    fn isolates(&self) -> bool {
        let busy = |of: &[bool]| (0..of.len()).any(|d| of[d] && self.times[d] > 0.0);
        busy(&self.set) || busy(&self.problem.read_only(Choice::Rodi, &self.places))
    }

    /// Moves and swaps extents away from the drive that needs longest while that helps.
    fn improve(&mut self) {
        for _ in 0..2 * self.places.len() + 16 {
            let (from, longest) = self.longest();
            let own = self.of(from);
            let Some(change) = self.best_move(&own, longest).or_else(|| self.best_swap(&own, longest)) else { return };
            let (extent, drive, back) = change;
            self.put(extent, drive);
            if let Some(other) = back {
                self.put(other, from);
            }
        }
    }

    fn time_of(&self, drive: usize, part: Part) -> f64 {
        part.time(&self.problem.drives[drive])
    }

    /// The move that leaves the longer of the two shortest, if that is shorter than the longest now.
    fn best_move(&self, own: &[usize], longest: f64) -> Option<(usize, usize, Option<usize>)> {
        let mut best = (longest * (1.0 - WORTH), None);
        for &extent in own.iter().step_by(own.len().div_ceil(MOVES).max(1)) {
            let (from, load) = (self.places[extent], &self.problem.loads[extent]);
            let left = self.time_of(from, self.parts[from].without(load));
            let others = (0..self.parts.len()).filter(|d| *d != from && self.has_room(*d) && self.allowed(extent, *d));
            for drive in others {
                let time = left.max(self.time_of(drive, self.parts[drive].with(load)));
                if time < best.0 {
                    best = (time, Some((extent, drive, None)));
                }
            }
        }
        best.1
    }

    fn best_swap(&self, own: &[usize], longest: f64) -> Option<(usize, usize, Option<usize>)> {
        let mut best = (longest * (1.0 - WORTH), None);
        let from = self.places[*own.first()?];
        for drive in (0..self.parts.len()).filter(|d| *d != from) {
            let theirs = self.of(drive);
            for &a in own.iter().take(SWAPS) {
                for &b in theirs.iter().take(SWAPS) {
                    let (x, y) = (&self.problem.loads[a], &self.problem.loads[b]);
                    if self.allowed(a, drive) && self.allowed(b, from) {
                        let left = self.time_of(from, self.parts[from].without(x).with(y));
                        let time = left.max(self.time_of(drive, self.parts[drive].without(y).with(x)));
                        if time < best.0 {
                            best = (time, Some((a, drive, Some(b))));
                        }
                    }
                }
            }
        }
        best.1
    }
}

/// Takes back every move from `now` that brings nothing, one at a time.
pub(super) fn take_back(problem: &Problem<'_>, set: Vec<bool>, places: &mut Vec<usize>, now: &[usize]) {
    assert_eq!(places.len(), now.len(), "the same extents, now and later");
    let mut search = Search::at(problem, set, std::mem::take(places));
    let longest = search.longest().1 * (1.0 + 1e-9);
    let mut changed = true;
    while changed {
        changed = false;
        for (extent, home) in now.iter().enumerate() {
            let (at, load) = (search.places[extent], &problem.loads[extent]);
            // A drive that has nothing left is free for everything.
            search.set[*home] &= search.parts[*home].extents > 0;
            if at == *home || !search.allowed(extent, *home) || !search.has_room(*home) {
                continue;
            }
            let time = search.time_of(*home, search.parts[*home].with(load));
            search.put(extent, *home);
            // What it leaves gets longer too if its mix gets worse.
            if time > longest || search.times[at] > longest || !search.isolates() {
                search.put(extent, at);
            } else {
                changed = true;
            }
        }
    }
    *places = search.places;
}
