//! The clean-first pointer under random events (load, hit, promote, dirty, clean, pin, unlink), step by step beside a
//! naive one: it never gives a pinned or dirty victim and never stands on a page that has left.
//!
//! The order of the pages is the policy's own (`policies.rs` holds it against naive models); the pointer's is computed
//! here.

use varve::buffer::policy::{self, Ask, Load, PolicyOptions, Replacement, Slot, Unlink};
use varve_rt::Rng;
use varve_volume::{CostClass, PageId};

const SLOTS: usize = 40;
const STEP: usize = 6;

#[derive(Clone, Copy, Default)]
struct Page {
    resident: bool,
    dirty: bool,
    pins: u32,
}

struct World {
    policy: Box<dyn Replacement>,
    pages: [Page; SLOTS],
    /// Where the next search begins, as it must be.
    pointer: Option<Slot>,
    name: &'static str,
    seed: u64,
}

fn order(policy: &dyn Replacement) -> Vec<Slot> {
    let mut order = Vec::new();
    policy.coldest(usize::MAX, &mut |slot| {
        order.push(slot);
        true
    });
    order
}

fn hotter(order: &[Slot], slot: Slot) -> Option<Slot> {
    let at = order.iter().position(|s| *s == slot).expect("in the order");
    order.get(at + 1).copied()
}

impl World {
    fn good(&self, slot: Slot) -> bool {
        let page = self.pages[slot as usize];
        page.resident && !page.dirty && page.pins == 0
    }

    /// The pages a search meets from `from` on, and whether it ended at the end of the cold part.
    fn search(&self, order: &[Slot], from: Option<Slot>, depth: usize) -> (Option<Slot>, Option<Slot>) {
        let start = from.map_or(0, |slot| order.iter().position(|s| *s == slot).expect("the pointer is in the list"));
        for (n, slot) in order[start..].iter().enumerate() {
            if n == depth {
                return (None, Some(*slot));
            }
            if !self.policy.cold(*slot) {
                return (None, None);
            }
            if self.good(*slot) {
                return (Some(*slot), hotter(order, *slot));
            }
        }
        (None, None)
    }

    fn evict(&mut self, now: u64) {
        let before = order(&*self.policy);
        let (expected, place) = self.search(&before, self.pointer, STEP);
        let ask = Ask { depth: STEP, resume: true, cold_only: true, incoming: Some(PageId(now)) };
        let pages = self.pages;
        let good = |slot: Slot| !pages[slot as usize].dirty && pages[slot as usize].pins == 0;
        let victim = self.policy.victim(ask, &mut |slot| good(slot));
        assert_eq!(victim, expected, "{} seed {} at {now}: victim", self.name, self.seed);
        self.pointer = place;
        let Some(victim) = victim else { return };
        assert!(self.good(victim), "a pinned or dirty victim");
        self.policy.unlink(victim, Unlink::Evicted);
        self.pages[victim as usize] = Page::default();
        if let Some(from) = self.pointer {
            // Eagerly on to the next clean page.
            let after = order(&*self.policy);
            let (found, place) = self.search(&after, Some(from), STEP);
            self.pointer = found.or(place);
        }
        self.policy.advance(STEP, &mut |slot| good(slot));
    }

    fn leave(&mut self, slot: Slot) {
        if self.pointer == Some(slot) {
            self.pointer = hotter(&order(&*self.policy), slot);
        }
        self.policy.unlink(slot, Unlink::Discarded);
        self.pages[slot as usize] = Page::default();
    }

    fn hit(&mut self, slot: Slot, now: u64) {
        let before = order(&*self.policy);
        self.policy.hit(slot, now);
        if self.pointer == Some(slot) {
            let moved = order(&*self.policy) != before;
            // The hottest page that is promoted stays where it is, and yet has left its place.
            let hottest = before.last() == Some(&slot);
            self.pointer = match (moved, hottest) {
                (true, _) => hotter(&before, slot),
                (false, true) => self.policy.cursor(),
                (false, false) => Some(slot),
            };
        }
    }
}

fn run(name: &'static str, seed: u64) -> (u64, u64) {
    let mut options = PolicyOptions::default();
    options.midpoint.old_min = 12;
    options.midpoint.tolerance = 1;
    options.midpoint.old_time = 20;
    let policy = (policy::find(name).unwrap().make)(SLOTS, &options);
    let mut w = World { policy, pages: [Page::default(); SLOTS], pointer: None, name, seed };
    let mut rng = Rng::from_seed(seed);
    let (mut evicted, mut dry) = (0, 0);
    for now in 1..600u64 {
        let slot = rng.below(SLOTS as u64) as Slot;
        let page = w.pages[slot as usize];
        match rng.below(10) {
            0..3 if !page.resident => {
                let how = if rng.one_in(4) { Load::Prefetch } else { Load::Demand };
                w.policy.load(slot, PageId(now), how, CostClass::default(), now);
                w.pages[slot as usize].resident = true;
            }
            _ if !page.resident => continue,
            0..3 => w.hit(slot, now),
            3 | 4 => w.pages[slot as usize].dirty = true,
            5 => w.pages[slot as usize].dirty = false,
            6 => w.pages[slot as usize].pins = 1 - page.pins,
            7 if rng.one_in(4) => w.leave(slot),
            _ => {
                let before = w.policy.len();
                w.evict(now);
                if w.policy.len() < before { evicted += 1 } else { dry += 1 }
            }
        }
        assert_eq!(w.policy.cursor(), w.pointer, "{name} seed {seed} at {now}: pointer");
        w.policy.check();
    }
    (evicted, dry)
}

#[test]
fn the_pointer_agrees_with_a_naive_one() {
    for name in ["lru", "lru-midpoint"] {
        let (mut evicted, mut dry) = (0, 0);
        for seed in 0..150 {
            let (e, d) = run(name, seed);
            (evicted, dry) = (evicted + e, dry + d);
        }
        assert!(evicted > 1000 && dry > 100, "{name}: {evicted} victims, {dry} searches without one");
    }
}

/// Going back to the cold end makes the next victim the coldest clean page (`reset_on_clean`).
#[test]
fn rewinding_takes_the_coldest_clean_page() {
    let mut policy = (policy::find("lru").unwrap().make)(8, &PolicyOptions::default());
    for slot in 0..8 {
        policy.load(slot, PageId(u64::from(slot)), Load::Demand, CostClass::default(), 1);
    }
    let ask = Ask { resume: true, cold_only: true, ..Ask::any() };
    assert_eq!(policy.victim(ask, &mut |slot| slot >= 3), Some(3), "the first three are dirty");
    policy.unlink(3, Unlink::Evicted);
    assert_eq!(policy.victim(ask, &mut |_| true), Some(4), "it goes on, though they are clean now");
    policy.rewind();
    assert_eq!(policy.victim(ask, &mut |_| true), Some(0));
}
