//! Replacement policies against naive models: random event sequences, compared step by step.
//!
//! A seed is printed on failure; `POLICY_SEED=n` runs that one alone.

use varve::buffer::policy::{self, Ask, Load, MidpointOptions, PolicyOptions, Replacement, Slot, Unlink};
use varve_rt::Rng;
use varve_volume::{CostClass, PageId, WriteWhy};

/// A policy as a list of slots, hottest first, with everything else spelled out in linear time.
trait Model {
    fn load(&mut self, slot: Slot, how: Load, now: u64);
    fn hit(&mut self, slot: Slot, now: u64);
    fn unlink(&mut self, slot: Slot, how: Unlink);
    /// The victim, given what is accepted.
    fn victim(&mut self, ask: Ask, accept: &dyn Fn(Slot) -> bool) -> Option<Slot>;
    /// All pages, coldest first.
    fn coldest(&self) -> Vec<Slot>;
}

/// The resumable walk over a list, hottest first.
#[derive(Default)]
struct Walk(Option<Slot>);

impl Walk {
    fn leaving(&mut self, order: &[Slot], slot: Slot) {
        if self.0 == Some(slot) {
            let at = order.iter().position(|s| *s == slot).unwrap();
            self.0 = at.checked_sub(1).map(|i| order[i]);
        }
    }

    /// The walk ends at the `hot` slots at the front.
    fn victim(&mut self, order: &[Slot], hot: usize, ask: Ask, accept: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let start = match self.0 {
            Some(slot) if ask.resume => order.iter().position(|s| *s == slot).unwrap() + 1,
            _ => order.len(),
        };
        let walked: Vec<Slot> = order.get(hot..start).unwrap_or(&[]).iter().rev().copied().collect();
        let beyond = if hot == 0 { None } else { order[..hot.min(start)].last().copied() };
        let found = walked.iter().take(ask.depth).position(|s| accept(*s));
        let next = found.map_or(ask.depth.min(walked.len()), |i| i + 1);
        // A victim just short of the hot part leaves the cursor on the first hot slot; a walk that ends there, at the
        // cold end.
        self.0 =
            walked
                .get(next)
                .copied()
                .or(beyond
                    .filter(|_| found.is_some() || (next == ask.depth && next == walked.len() && !walked.is_empty())));
        found.map(|i| walked[i])
    }
}

struct NaiveLru {
    order: Vec<Slot>,
    walk: Walk,
    /// FIFO when false.
    moves: bool,
}

impl Model for NaiveLru {
    fn load(&mut self, slot: Slot, _: Load, _: u64) {
        self.order.insert(0, slot);
    }
    fn hit(&mut self, slot: Slot, _: u64) {
        if self.moves {
            self.walk.leaving(&self.order, slot);
            self.order.retain(|s| *s != slot);
            self.order.insert(0, slot);
        }
    }
    fn unlink(&mut self, slot: Slot, _: Unlink) {
        self.walk.leaving(&self.order, slot);
        self.order.retain(|s| *s != slot);
    }
    fn victim(&mut self, ask: Ask, accept: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        self.walk.victim(&self.order, 0, ask, accept)
    }
    fn coldest(&self) -> Vec<Slot> {
        self.order.iter().rev().copied().collect()
    }
}

/// A hand over a ring: here the ring is a queue whose front is under the hand.
#[derive(Default)]
struct NaiveClock(Vec<(Slot, bool)>);

impl Model for NaiveClock {
    fn load(&mut self, slot: Slot, _: Load, _: u64) {
        self.0.push((slot, false));
    }
    fn hit(&mut self, slot: Slot, _: u64) {
        self.0.iter_mut().find(|e| e.0 == slot).unwrap().1 = true;
    }
    fn unlink(&mut self, slot: Slot, _: Unlink) {
        self.0.retain(|e| e.0 != slot);
    }
    fn victim(&mut self, ask: Ask, accept: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        for _ in 0..ask.depth.min(2 * self.0.len()) {
            let (slot, referenced) = self.0[0];
            if !referenced && accept(slot) {
                return Some(slot);
            }
            self.0.remove(0);
            self.0.push((slot, false));
        }
        None
    }
    fn coldest(&self) -> Vec<Slot> {
        let pass = |want| self.0.iter().filter(move |e| e.1 == want).map(|e| e.0);
        pass(false).chain(pass(true)).collect()
    }
}

struct NaiveMidpoint {
    o: MidpointOptions,
    order: Vec<Slot>,
    /// Length of the old end; none while the list is short.
    old: Option<usize>,
    /// By slot: time of first access, evictions when last put in front.
    first_access: Vec<Option<u64>>,
    stamp: Vec<u64>,
    evictions: u64,
    /// Evictions when the turn of the old part began, its time, and the wait that the last one gave.
    turn: (u64, u64),
    wait: u64,
    walk: Walk,
}

impl NaiveMidpoint {
    fn new(slots: usize, o: MidpointOptions) -> NaiveMidpoint {
        let (order, walk) = (Vec::new(), Walk::default());
        NaiveMidpoint {
            o,
            order,
            old: None,
            first_access: vec![None; slots],
            stamp: vec![0; slots],
            evictions: 0,
            turn: (0, 0),
            wait: o.old_time,
            walk,
        }
    }
    fn is_old(&self, slot: Slot) -> bool {
        let at = self.order.iter().position(|s| *s == slot).unwrap();
        self.old.is_some_and(|old| at >= self.order.len() - old)
    }
    fn adjust(&mut self) {
        if self.order.len() < self.o.old_min {
            self.old = None;
            return;
        }
        let share = (self.order.len() as f64 * self.o.old_percent / 100.0) as usize;
        let share = share.clamp(1, self.order.len() - self.o.tolerance - 5);
        let old = self.old.unwrap_or(1).max(1);
        self.old = Some(old.clamp(share.saturating_sub(self.o.tolerance).max(1), share + self.o.tolerance));
    }
    fn take_out(&mut self, slot: Slot) {
        self.walk.leaving(&self.order, slot);
        let at = self.order.iter().position(|s| *s == slot).unwrap();
        // Removing the page at the midpoint makes its hotter neighbour old in its stead.
        if let Some(old) = &mut self.old
            && at > self.order.len() - *old
        {
            *old -= 1;
        }
        self.order.remove(at);
        if self.order.len() < self.o.old_min {
            self.old = None;
        }
    }
    fn put_front(&mut self, slot: Slot) {
        self.order.insert(0, slot);
        self.stamp[slot as usize] = self.evictions;
    }
}

impl Model for NaiveMidpoint {
    fn load(&mut self, slot: Slot, how: Load, now: u64) {
        self.first_access[slot as usize] = (how == Load::Demand).then_some(now);
        let (evictions, began) = self.turn;
        if self.evictions == 0 {
            self.turn = (0, now);
        } else if self.evictions >= evictions + self.old.unwrap_or(1) as u64 {
            if self.o.turn_part > 0 {
                self.wait = ((now - began) / u64::from(self.o.turn_part)).min(self.o.old_time);
            }
            self.turn = (self.evictions, now);
        }
        match self.old {
            Some(old) if how == Load::Prefetch || self.o.demand_at_midpoint => {
                self.stamp[slot as usize] = 0;
                self.order.insert(self.order.len() - old + 1, slot);
                self.old = Some(old + 1);
            }
            _ => self.put_front(slot),
        }
        self.adjust();
    }
    fn hit(&mut self, slot: Slot, now: u64) {
        let young = (self.order.len() as f64 * (100.0 - self.o.old_percent) / 100.0 / 4.0) as u64;
        let moves = if self.is_old(slot) {
            self.first_access[slot as usize].is_some_and(|first| now - first >= self.wait)
        } else {
            self.evictions - self.stamp[slot as usize] >= young
        };
        if moves && self.evictions > 0 {
            self.take_out(slot);
            self.put_front(slot);
            self.adjust();
        }
        self.first_access[slot as usize].get_or_insert(now);
    }
    fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.take_out(slot);
        self.evictions += u64::from(how == Unlink::Evicted);
        self.adjust();
    }
    fn victim(&mut self, ask: Ask, accept: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let hot = if ask.cold_only { self.old.map_or(0, |old| self.order.len() - old) } else { 0 };
        self.walk.victim(&self.order, hot, ask, accept)
    }
    fn coldest(&self) -> Vec<Slot> {
        self.order.iter().rev().copied().collect()
    }
}

fn coldest(policy: &dyn Replacement) -> Vec<Slot> {
    let mut all = Vec::new();
    policy.coldest(usize::MAX, &mut |slot| {
        all.push(slot);
        true
    });
    all
}

fn seeds(n: u64) -> Vec<u64> {
    match std::env::var("POLICY_SEED") {
        Ok(seed) => vec![seed.parse().expect("POLICY_SEED is a number")],
        Err(_) => (0..n).collect(),
    }
}

/// Drives policy and model (if there is one) with the same random events.
fn agree(name: &str, options: PolicyOptions, model: impl Fn(usize) -> Option<Box<dyn Model>>) {
    for seed in seeds(60) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut rng = Rng::from_seed(seed);
            let slots = [1, 2, 5, 40, 120][rng.below(5) as usize];
            drive(name, options, &mut rng, slots, model(slots));
        }));
        if let Err(panic) = outcome {
            eprintln!("policy {name}: POLICY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn drive(name: &str, options: PolicyOptions, rng: &mut Rng, slots: usize, mut model: Option<Box<dyn Model>>) {
    let mut policy = (policy::find(name).unwrap().make)(slots, &options);
    let mut present: Vec<Slot> = Vec::new();
    let mut empty: Vec<Slot> = (0..slots as Slot).collect();
    let mut now = 0;
    for step in 0..1500 {
        now += rng.below(40);
        match rng.below(12) {
            0..4 if !empty.is_empty() => {
                let slot = empty.swap_remove(rng.below(empty.len() as u64) as usize);
                // A page is in one slot at most.
                let next_page = PageId(1000 * slot as u64 + rng.below(8));
                let how = if rng.below(3) == 0 { Load::Prefetch } else { Load::Demand };
                policy.load(slot, next_page, how, CostClass(0), now);
                model.iter_mut().for_each(|m| m.load(slot, how, now));
                present.push(slot);
            }
            4..8 if !present.is_empty() => {
                let slot = present[rng.below(present.len() as u64) as usize];
                policy.hit(slot, now);
                model.iter_mut().for_each(|m| m.hit(slot, now));
            }
            8 if !present.is_empty() => {
                let slot = present[rng.below(present.len() as u64) as usize];
                policy.dirtied(slot, now);
                policy.cleaned(slot, WriteWhy::Recoverability, now);
                policy.class_changed(slot, CostClass(rng.below(2) as u8), None, now);
            }
            9 if !present.is_empty() => {
                let at = rng.below(present.len() as u64) as usize;
                let slot = present.swap_remove(at);
                policy.unlink(slot, Unlink::Discarded);
                model.iter_mut().for_each(|m| m.unlink(slot, Unlink::Discarded));
                empty.push(slot);
            }
            10.. => {
                let incoming = (rng.below(2) == 0).then(|| PageId(1000 * rng.below(slots as u64) + rng.below(8)));
                let depth = [1, 3, 10, usize::MAX][rng.below(4) as usize];
                let ask = Ask { depth, resume: rng.below(2) == 0, cold_only: rng.below(2) == 0, incoming };
                let refused: Vec<bool> = (0..slots).map(|_| rng.below(3) == 0).collect();
                let accept = |slot: Slot| !refused[slot as usize];
                let mut asked = 0usize;
                let victim = policy.victim(ask, &mut |slot| {
                    asked += 1;
                    assert!(present.contains(&slot), "step {step}: asked for a slot that holds no page");
                    accept(slot)
                });
                assert!(asked <= depth, "step {step}: examined {asked} pages of {depth}");
                assert!(victim.is_none_or(accept), "step {step}: a refused page was taken");
                if let Some(model) = &mut model {
                    assert_eq!(victim, model.victim(ask, &accept), "step {step}: victim");
                }
                if let Some(slot) = victim {
                    policy.unlink(slot, Unlink::Evicted);
                    model.iter_mut().for_each(|m| m.unlink(slot, Unlink::Evicted));
                    present.retain(|s| *s != slot);
                    empty.push(slot);
                }
            }
            _ => {}
        }
        policy.check();
        assert_eq!(policy.len(), present.len(), "step {step}: pages present");
        let order = coldest(&*policy);
        if let Some(model) = &model {
            assert_eq!(order, model.coldest(), "step {step}: order");
        }
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let mut all = present.clone();
        all.sort_unstable();
        assert_eq!(sorted, all, "step {step}: every page is a flush candidate once");
    }
    // What leaves when everybody may is what the order says leaves.
    while let Some(&first) = coldest(&*policy).first() {
        assert_eq!(policy.victim(Ask::any(), &mut |_| true), Some(first), "the coldest page leaves first");
        policy.unlink(first, Unlink::Evicted);
    }
}

#[test]
fn lru_is_the_naive_one() {
    agree("lru", PolicyOptions::default(), |_| {
        Some(Box::new(NaiveLru { order: Vec::new(), walk: Walk::default(), moves: true }))
    });
}

#[test]
fn fifo_is_the_naive_one() {
    agree("fifo", PolicyOptions::default(), |_| {
        Some(Box::new(NaiveLru { order: Vec::new(), walk: Walk::default(), moves: false }))
    });
}

#[test]
fn clock_is_the_naive_one() {
    agree("clock", PolicyOptions::default(), |_| Some(Box::<NaiveClock>::default()));
}

#[test]
fn lru_midpoint_is_the_naive_one() {
    for (old_percent, tolerance, demand_at_midpoint, turn_part) in
        [(37.5, 2, true, 0), (37.5, 2, false, 0), (5.0, 0, true, 4), (95.0, 3, true, 0), (37.5, 2, true, 4)]
    {
        let o = MidpointOptions { old_percent, old_time: 500, turn_part, demand_at_midpoint, old_min: 16, tolerance };
        agree("lru-midpoint", PolicyOptions { midpoint: o, ..PolicyOptions::default() }, move |slots| {
            Some(Box::new(NaiveMidpoint::new(slots, o)))
        });
    }
}

/// Policies with models of their own elsewhere (`paper_policies.rs`, `gd2l.rs`): here the rules that hold for all.
#[test]
fn every_policy_keeps_the_rules() {
    for entry in policy::REGISTRY {
        agree(entry.name, PolicyOptions::default(), |_| None);
    }
    let lru2 = policy::Lru2Options { correlated: 20, history: policy::History::Full };
    agree("lru-2", PolicyOptions { lru2, ..PolicyOptions::default() }, |_| None);
    let lirs = policy::LirsOptions { hir_percent: 25.0, stack: None };
    agree("lirs", PolicyOptions { lirs, ..PolicyOptions::default() }, |_| None);
}

#[test]
fn random_keeps_the_rules_and_its_seed() {
    agree("random", PolicyOptions { seed: 7, ..PolicyOptions::default() }, |_| None);
    let victims = |seed| {
        let mut policy =
            (policy::find("random").unwrap().make)(64, &PolicyOptions { seed, ..PolicyOptions::default() });
        (0..64).for_each(|s| policy.load(s, PageId(s as u64), Load::Demand, CostClass(0), 0));
        let mut next = || {
            let slot = policy.victim(Ask::any(), &mut |_| true).unwrap();
            policy.unlink(slot, Unlink::Evicted);
            slot
        };
        (0..64).map(|_| next()).collect::<Vec<_>>()
    };
    assert_eq!(victims(1), victims(1));
    assert_ne!(victims(1), victims(2));
}

/// Misses of a trace on a cache of `slots` pages.
fn misses(name: &str, slots: usize, trace: impl Iterator<Item = (u64, u64)>) -> usize {
    misses_with(name, &PolicyOptions::default(), slots, trace)
}

fn misses_with(name: &str, options: &PolicyOptions, slots: usize, trace: impl Iterator<Item = (u64, u64)>) -> usize {
    let mut policy = (policy::find(name).unwrap().make)(slots, options);
    let mut at = std::collections::BTreeMap::new();
    let mut pages = vec![None; slots];
    let mut misses = 0;
    for (now, page) in trace {
        if let Some(slot) = at.get(&page) {
            policy.hit(*slot, now);
            continue;
        }
        misses += 1;
        let free = pages.iter().position(Option::is_none);
        let slot = free.map_or_else(|| policy.victim(Ask::any(), &mut |_| true).unwrap(), |s| s as Slot);
        if let Some(old) = pages[slot as usize].replace(page) {
            at.remove(&old);
            policy.unlink(slot, Unlink::Evicted);
        }
        at.insert(page, slot);
        policy.load(slot, PageId(page), Load::Demand, CostClass(0), now);
    }
    misses
}

/// Pages in use, then one pass over a large table with each page touched twice at once, then the pages in use again.
#[test]
fn a_scan_does_not_flush_the_midpoint_list() {
    const SECOND: u64 = 1_000_000_000;
    let hot = |from: u64| (0..20u64).flat_map(move |r| (0..300).map(move |p| (from + r * SECOND, p)));
    let scan = (1000..9000u64).flat_map(|p| [(40 * SECOND, p), (40 * SECOND, p)]);
    // Evictions must have begun before promotions count.
    let warm = (20_000..21_000).map(|p| (0, p));
    let again = || (0..300).map(|p| (60 * SECOND, p));
    let lost = |name| {
        let before = misses(name, 1000, warm.clone().chain(hot(SECOND)).chain(scan.clone()));
        misses(name, 1000, warm.clone().chain(hot(SECOND)).chain(scan.clone()).chain(again())) - before
    };
    assert_eq!(lost("lru"), 300, "plain LRU forgets everything");
    assert!(lost("lru-midpoint") < 40, "the midpoint keeps {} of 300", 300 - lost("lru-midpoint"));
}

/// Where pages pass through the old part in far less than a second, a page in steady use becomes young all the same, if
/// the time is bounded by the turn; with InnoDB's fixed second what was young at first stays so for ever, unused.
#[test]
fn pages_become_young_however_fast_others_pass() {
    const SLOTS: usize = 1000;
    let lost = |turn_part| {
        let midpoint = MidpointOptions { turn_part, ..MidpointOptions::default() };
        let options = PolicyOptions { midpoint, ..PolicyOptions::default() };
        // 80 pages in use that come after the cache was filled with others; 3 accesses in 4 are to pages met once.
        let cold = |at: u64| (at * 1000, 100_000 + at);
        let hot = |at: u64| (at * 1000, (at / 4) % 80);
        let trace =
            (0..2000).map(cold).chain((2000..80_000).map(move |at| if at % 4 == 0 { hot(at) } else { cold(at) }));
        misses_with("lru-midpoint", &options, SLOTS, trace) - 2000 - 58_500
    };
    let (fixed, bounded) = (lost(0), lost(8));
    assert!(fixed > 9_000, "with a fixed second {fixed} of 19,500 accesses miss");
    assert!(bounded < 100, "with a bound {bounded} of 19,500 accesses miss");
}

/// One page comes and one leaves at a time: each stays for as many steps as the old part has pages. Accesses before the
/// time is over make none young, later ones do.
#[test]
fn the_midpoint_list_tells_how_long_pages_stay_in_its_old_part() {
    let midpoint = MidpointOptions { old_time: 500, ..MidpointOptions::default() };
    let entry = policy::find("lru-midpoint").expect("a policy");
    let mut list = (entry.make)(1000, &PolicyOptions { midpoint, ..PolicyOptions::default() });
    (0..1000).for_each(|slot| list.load(slot, PageId(slot.into()), Load::Demand, CostClass(0), 0));
    let mut came = Vec::new();
    let mut before = list.turnover();
    for at in 1..=3000 {
        let slot = list.victim(Ask::any(), &mut |_| true).expect("a victim");
        list.unlink(slot, Unlink::Evicted);
        list.load(slot, PageId(1000 + at), Load::Demand, CostClass(0), at);
        came.push(slot);
        if at == 2000 {
            before = list.turnover();
        }
    }
    let now = list.turnover();
    let (evicted, stayed) = (now.evicted - before.evicted, now.evicted_ns - before.evicted_ns);
    assert_eq!(evicted, 1000);
    assert!((350..=400).contains(&(stayed / evicted)), "{} steps in an old part of 375 pages", stayed / evicted);
    assert_eq!(now.evicted_early - before.evicted_early, 1000, "all left within 500 steps");
    let slot = came[2900];
    list.hit(slot, 3300);
    list.hit(slot, 3600);
    let hits = list.turnover();
    assert_eq!((hits.not_young - now.not_young, hits.made_young - now.made_young), (1, 1));
    list.hit(slot, 3700);
    list.unlink(slot, Unlink::Evicted);
    assert_eq!(list.turnover(), hits, "a page that was young counts no more");
}

/// On a skewed trace of independent references the order is known: LRU and CLOCK beat FIFO and random.
#[test]
fn recency_pays_on_skewed_references() {
    let mut rng = Rng::from_seed(11);
    let trace: Vec<(u64, u64)> = (0..60_000).map(|i| (i, (5000.0 * rng.f64().powi(4)) as u64)).collect();
    let miss = |name| misses(name, 500, trace.iter().copied());
    let (lru, clock, fifo, random) = (miss("lru"), miss("clock"), miss("fifo"), miss("random"));
    assert!(lru < fifo && clock < fifo && lru < random, "lru {lru}, clock {clock}, fifo {fifo}, random {random}");
}
