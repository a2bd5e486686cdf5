//! The standard policies against slow references written from the papers: hit or miss of every single reference must
//! agree, on random traces of several kinds and for caches from one page up.
//!
//! A seed is printed on failure; `POLICY_SEED=n` runs that one alone.

use crate::papers::{self as paper, Reference};
use varve::buffer::policy::{self, Ask, History, LirsOptions, Load, Lru2Options, PolicyOptions, Slot, Unlink};
use varve_rt::{HashMap, Rng};
use varve_volume::{CostClass, PageId};

/// A cache of `slots` pages under a policy, as trace replay drives it.
struct Cache {
    policy: Box<dyn policy::Replacement>,
    at: HashMap<u64, Slot>,
    pages: Vec<u64>,
    slots: usize,
    now: u64,
}

impl Cache {
    fn new(name: &str, slots: usize, options: &PolicyOptions) -> Cache {
        let policy = (policy::find(name).unwrap().make)(slots, options);
        Cache { policy, at: HashMap::default(), pages: Vec::new(), slots, now: 0 }
    }
}

impl Reference for Cache {
    fn access(&mut self, x: u64) -> bool {
        self.now += 1;
        if let Some(slot) = self.at.get(&x) {
            self.policy.hit(*slot, self.now);
            return true;
        }
        let slot = if self.pages.len() < self.slots {
            self.pages.push(x);
            self.pages.len() as Slot - 1
        } else {
            let ask = Ask { incoming: Some(PageId(x)), ..Ask::any() };
            let slot = self.policy.victim(ask, &mut |_| true).expect("a full cache has a victim");
            self.policy.unlink(slot, Unlink::Evicted);
            self.at.remove(&std::mem::replace(&mut self.pages[slot as usize], x));
            slot
        };
        self.policy.load(slot, PageId(x), Load::Demand, CostClass(0), self.now);
        self.at.insert(x, slot);
        false
    }
}

/// A trace with skew, loops, scans and drift in random shares.
fn trace(rng: &mut Rng, len: usize) -> Vec<u64> {
    let pages = 4 + rng.below(120);
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let run = 1 + rng.below(60);
        let base = rng.below(3) * rng.below(pages);
        match rng.below(5) {
            0 => out.extend((0..run).map(|i| base + i)),
            1 => out.extend((0..run).map(|i| base + i % (1 + run / 3))),
            2 => out.extend((0..run).map(|_| rng.below(pages))),
            _ => out.extend((0..run).map(|_| base + (pages as f64 * rng.f64().powi(3)) as u64)),
        }
    }
    out.truncate(len);
    out
}

fn agree(name: &str, options: PolicyOptions, reference: impl Fn(usize) -> Box<dyn Reference>) {
    let seeds = match std::env::var("POLICY_SEED") {
        Ok(seed) => vec![seed.parse().expect("POLICY_SEED is a number")],
        Err(_) => (0..120).collect(),
    };
    for seed in seeds {
        let mut rng = Rng::from_seed(seed);
        let slots = [1, 2, 3, 5, 8, 10, 17, 40, 100][rng.below(9) as usize];
        let (mut fast, mut slow) = (Cache::new(name, slots, &options), reference(slots));
        let mut hits = 0;
        for (i, page) in trace(&mut rng, 2000).into_iter().enumerate() {
            let hit = fast.access(page);
            assert_eq!(
                hit,
                slow.access(page),
                "{name}, {slots} slots: reference {i} to page {page}; POLICY_SEED={seed}"
            );
            hits += usize::from(hit);
            if i % 100 == 0 {
                fast.policy.check();
            }
        }
        assert!(hits > 0 || slots < 5, "{name}: a trace without hits tells nothing");
    }
}

#[test]
fn lru() {
    agree("lru", PolicyOptions::default(), |c| Box::new(paper::Lru { c, list: Vec::new() }));
}

#[test]
fn fifo() {
    agree("fifo", PolicyOptions::default(), |c| Box::new(paper::Fifo { c, list: Vec::new() }));
}

#[test]
fn clock() {
    agree("clock", PolicyOptions::default(), |c| Box::new(paper::Clock { c, ring: Vec::new(), hand: 0 }));
}

#[test]
fn sieve() {
    agree("sieve", PolicyOptions::default(), |c| Box::new(paper::Sieve { c, queue: Vec::new(), hand: None }));
}

#[test]
fn two_q() {
    agree("2q", PolicyOptions::default(), |c| Box::new(paper::TwoQ { c, ..paper::TwoQ::default() }));
}

#[test]
fn arc() {
    agree("arc", PolicyOptions::default(), |c| Box::new(paper::Arc { c, ..paper::Arc::default() }));
}

#[test]
fn s3_fifo() {
    agree("s3-fifo", PolicyOptions::default(), |c| Box::new(paper::S3Fifo { c, ..paper::S3Fifo::default() }));
}

#[test]
fn lirs() {
    for (hir_percent, stack) in [(1.0, None), (1.0, Some(2.0)), (20.0, Some(1.5)), (30.0, None)] {
        let lirs = LirsOptions { hir_percent, stack };
        agree("lirs", PolicyOptions { lirs, ..PolicyOptions::default() }, |c| {
            let hirs = ((c as f64 * hir_percent / 100.0) as usize).max(1);
            let stack_limit = stack.map_or(usize::MAX, |n| (c as f64 * n) as usize);
            Box::new(paper::Lirs { c, hirs, stack_limit, ..paper::Lirs::default() })
        });
    }
}

#[test]
fn lru_2() {
    for (correlated, history) in [
        (0, History::Full),
        (0, History::Resident),
        (0, History::PerSlot(0.5)),
        (3, History::Full),
        (10, History::Resident),
    ] {
        let lru2 = Lru2Options { correlated, history };
        agree("lru-2", PolicyOptions { lru2, ..PolicyOptions::default() }, |c| {
            let remembered = match history {
                History::Full => usize::MAX,
                History::Resident => 0,
                History::PerSlot(n) => (c as f64 * n).ceil() as usize,
            };
            Box::new(paper::Lru2 { c, crp: correlated, remembered, ..paper::Lru2::default() })
        });
    }
}

/// With every page in one class GreedyDual takes the victims that LRU takes.
#[test]
fn gd2l_of_one_class_is_lru() {
    agree("gd2l", PolicyOptions::default(), |c| Box::new(paper::Lru { c, list: Vec::new() }));
}
