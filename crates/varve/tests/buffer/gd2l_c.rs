//! `gd2l-c` against a model over plain vectors: every victim of either kind of search, every place of the pointers.
//! `POLICY_SEED=n` runs one seed alone.

use crate::gd2l_model::{Model, coldest};
use varve::buffer::policy::{self, Ask, Gd2lOptions, Load, PolicyOptions, Replacement, Slot, Unlink};
use varve_rt::Rng;
use varve_volume::{CostClass, PageId, WriteWhy};

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Cold,
    Page(Slot),
    Ended,
}

/// GD2L's lists, and pointers into them.
struct Pointed {
    model: Model,
    write: Vec<f64>,
    at: Vec<At>,
    ended: Vec<u64>,
    evictions: u64,
}

impl Pointed {
    /// The page is about to leave its place.
    fn leaving(&mut self, slot: Slot) {
        let class = self.model.class(slot);
        if self.at[class] == At::Page(slot) {
            let list = &self.model.lists[class];
            let next = list.iter().position(|e| e.0 == slot).unwrap() + 1;
            self.at[class] = list.get(next).map_or(At::Ended, |e| At::Page(e.0));
        }
    }
    fn reopen(&mut self, class: usize) {
        if self.at[class] == At::Ended {
            self.at[class] = At::Cold;
        }
    }
    fn bound(&self) -> f64 {
        let end = |c: usize| self.model.lists[c].first().map_or(f64::INFINITY, |e| e.1 + self.write[c]);
        (0..self.at.len()).map(end).fold(f64::INFINITY, f64::min)
    }
    fn index(&self, class: usize, at: At) -> usize {
        let list = &self.model.lists[class];
        match at {
            At::Cold => 0,
            At::Page(slot) => list.iter().position(|e| e.0 == slot).unwrap(),
            At::Ended => list.len(),
        }
    }
    fn clean(&mut self, resume: bool, accept: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let bound = self.bound();
        let from = |c: usize| if resume { self.at[c] } else { At::Cold };
        let mut at: Vec<usize> = (0..self.at.len()).map(|c| self.index(c, from(c))).collect();
        let mut found = None;
        while found.is_none() {
            let mut candidates: Vec<Option<(Slot, f64)>> = vec![None; at.len()];
            for (c, list) in self.model.lists.iter().enumerate() {
                let cold = if 3 * list.len() / 8 == 0 { list.len() } else { 3 * list.len() / 8 };
                while at[c] < cold && list[at[c]].1 <= bound && self.model.dirty[list[at[c]].0 as usize] {
                    at[c] += 1;
                }
                match list[..cold].get(at[c]) {
                    None => at[c] = list.len(),
                    Some(&(slot, h)) if h <= bound => candidates[c] = Some((slot, h)),
                    Some(_) => {}
                }
            }
            let Some(c) = coldest(candidates.iter().map(|candidate| candidate.map(|e| e.1))) else { break };
            let slot = candidates[c].unwrap().0;
            at[c] += 1;
            found = accept(slot).then_some(slot);
        }
        for (c, list) in self.model.lists.iter().enumerate() {
            let before = self.at[c];
            self.at[c] = match at[c] {
                0 => At::Cold,
                i => list.get(i).map_or(At::Ended, |e| At::Page(e.0)),
            };
            if self.at[c] == At::Ended && before != At::Ended {
                self.ended[c] = self.evictions;
            }
        }
        if found.is_none() {
            self.at.fill(At::Cold);
            found = self.model.order().into_iter().find(|slot| accept(*slot));
        }
        found
    }
    /// All pages by what evicting them costs.
    fn by_cost(&self) -> Vec<Slot> {
        let mut all = Vec::new();
        for dirty in [false, true] {
            for class in (0..self.at.len()).rev() {
                let write = if dirty { self.write[class] } else { 0.0 };
                let list = self.model.lists[class].iter().filter(|e| self.model.dirty[e.0 as usize] == dirty);
                all.extend(list.map(|e| (e.0, e.1 + write)));
            }
        }
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all.into_iter().map(|e| e.0).collect()
    }
    fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.leaving(slot);
        self.model.unlink(slot, how);
        self.evictions += u64::from(how == Unlink::Evicted);
        for c in 0..self.at.len() {
            if self.evictions - self.ended[c] > 3 * self.model.lists[c].len() as u64 / 8 {
                self.reopen(c);
            }
        }
    }
    fn change(&mut self, slot: Slot, class: usize, wrote: Option<WriteWhy>) {
        if self.model.class(slot) == class {
            return;
        }
        self.leaving(slot);
        self.model.change(slot, class, wrote);
        self.reopen(class);
        if self.model.lists[class][0].0 == slot {
            self.at[class] = At::Cold;
        }
    }
}

struct World {
    policy: Box<dyn Replacement>,
    pointed: Pointed,
    present: Vec<Slot>,
    empty: Vec<Slot>,
}

impl World {
    fn new(slots: usize, gd2l: Gd2lOptions) -> World {
        let options = PolicyOptions { gd2l, ..PolicyOptions::default() };
        let classes = gd2l.cost.len();
        let write: Vec<f64> = gd2l.write_cost.to_vec();
        let model = Model { grant: write.clone(), ..Model::new(slots, gd2l) };
        World {
            policy: (policy::find("gd2l-c").unwrap().make)(slots, &options),
            pointed: Pointed { model, write, at: vec![At::Cold; classes], ended: vec![0; classes], evictions: 0 },
            present: Vec::new(),
            empty: (0..slots as Slot).collect(),
        }
    }

    fn load(&mut self, rng: &mut Rng, class: u8, now: u64) {
        let slot = self.empty.swap_remove(rng.below(self.empty.len() as u64) as usize);
        let how = if rng.below(3) == 0 { Load::Prefetch } else { Load::Demand };
        self.policy.load(slot, PageId(now), how, CostClass(class), now);
        match how {
            Load::Demand => self.pointed.model.front(slot, class.into()),
            Load::Prefetch => self.pointed.model.middle(slot, class.into()),
        }
        self.pointed.model.dirty[slot as usize] = false;
        self.present.push(slot);
    }

    fn gone(&mut self, slot: Slot, how: Unlink) {
        self.policy.unlink(slot, how);
        self.pointed.unlink(slot, how);
        self.present.retain(|s| *s != slot);
        self.empty.push(slot);
    }

    fn search(&mut self, rng: &mut Rng, now: u64) {
        let refused: Vec<bool> = self.pointed.model.dirty.iter().map(|_| rng.below(4) == 0).collect();
        let clean_only = rng.below(3) > 0;
        let dirty = self.pointed.model.dirty.clone();
        let accept = |slot: Slot| !(refused[slot as usize] || clean_only && dirty[slot as usize]);
        let resume = rng.below(8) > 0;
        let (wanted, ask) = if clean_only {
            (self.pointed.clean(resume, &accept), Ask { resume, cold_only: true, ..Ask::any() })
        } else {
            (self.pointed.by_cost().into_iter().find(|slot| accept(*slot)), Ask::any())
        };
        assert_eq!(self.policy.victim(ask, &mut |slot| accept(slot)), wanted, "step {now}: victim, {ask:?}");
        if let Some(slot) = wanted {
            self.gone(slot, Unlink::Evicted);
        }
    }

    fn event(&mut self, rng: &mut Rng, now: u64) {
        let slot = self.present[rng.below(self.present.len() as u64) as usize];
        let why = [WriteWhy::Replacement, WriteWhy::Recoverability, WriteWhy::Checkpoint][rng.below(3) as usize];
        match rng.below(9) {
            0 | 1 => {
                if !self.pointed.model.stays(slot) {
                    self.pointed.leaving(slot);
                }
                self.pointed.model.hit(slot);
                self.policy.hit(slot, now);
            }
            2 | 3 => {
                self.pointed.model.dirty[slot as usize] = true;
                self.policy.dirtied(slot, now);
            }
            4 | 5 => {
                self.pointed.model.dirty[slot as usize] = false;
                let class = self.pointed.model.class(slot);
                self.pointed.reopen(class);
                self.policy.cleaned(slot, why, now);
            }
            6 | 7 => {
                let (class, wrote) =
                    (rng.below(self.pointed.at.len() as u64) as u8, (rng.below(2) == 0).then_some(why));
                self.pointed.change(slot, class.into(), wrote);
                self.policy.class_changed(slot, CostClass(class), wrote, now);
            }
            _ => self.gone(slot, Unlink::Discarded),
        }
    }
}

fn run(seed: u64) -> u64 {
    let mut rng = Rng::from_seed(seed);
    let slots = [1, 2, 3, 7, 40][rng.below(5) as usize];
    let few = [[70.0, 1.0], [3.0, 2.0], [1.0, 1.0]][rng.below(3) as usize];
    let writes = [[50.0, 3.0], [0.5, 0.25], [0.0, 0.0]][rng.below(3) as usize];
    let (cost, write_cost) = match rng.below(3) {
        0 => ([70.0, 20.0, 1.0].into(), [50.0, 9.0, 3.0].into()),
        _ => (few.into(), writes.into()),
    };
    let gd2l = Gd2lOptions {
        cost,
        invalidated_at_midpoint: rng.below(2) == 0,
        stay_part: [0, 1, 4][rng.below(3) as usize],
        write_cost,
    };
    let mut world = World::new(slots, gd2l);
    for now in 0..2000 {
        let class = rng.below(gd2l.cost.len() as u64) as u8;
        match rng.below(10) {
            0..4 if !world.empty.is_empty() => world.load(&mut rng, class, now),
            4..7 if !world.present.is_empty() => world.search(&mut rng, now),
            _ if !world.present.is_empty() => world.event(&mut rng, now),
            _ => {}
        }
        world.policy.check();
        let mut order = Vec::new();
        world.policy.coldest(usize::MAX, &mut |slot| {
            order.push(slot);
            true
        });
        assert_eq!(order, world.pointed.model.order(), "step {now}: order");
    }
    world.pointed.evictions
}

#[test]
fn victims_and_pointers_agree_with_the_naive_ones() {
    let seeds = match std::env::var("POLICY_SEED") {
        Ok(seed) => vec![seed.parse().expect("POLICY_SEED is a number")],
        Err(_) => (0..150).collect(),
    };
    let mut evicted = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(n) => evicted += n,
            Err(panic) => {
                eprintln!("POLICY_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(evicted > 1000, "{evicted} victims");
}

/// One class, everything clean: the victims of LRU, by either search.
#[test]
fn of_one_class_and_clean_it_is_lru() {
    for class in [0, 1] {
        let mut rng = Rng::from_seed(u64::from(class));
        let make = |name: &str| (policy::find(name).unwrap().make)(30, &PolicyOptions::default());
        let (mut ours, mut lru) = (make("gd2l-c"), make("lru"));
        let mut present: Vec<Slot> = Vec::new();
        for now in 0..5000 {
            if rng.below(3) > 0 && !present.is_empty() {
                let slot = present[rng.below(present.len() as u64) as usize];
                ours.hit(slot, now);
                lru.hit(slot, now);
                continue;
            }
            let slot = if present.len() < 30 {
                present.len() as Slot
            } else {
                let ask = Ask { resume: true, cold_only: rng.below(2) == 0, ..Ask::any() };
                let victim = ours.victim(ask, &mut |_| true);
                assert_eq!(victim, lru.victim(Ask::any(), &mut |_| true), "step {now}");
                let slot = victim.unwrap();
                present.retain(|s| *s != slot);
                ours.unlink(slot, Unlink::Evicted);
                lru.unlink(slot, Unlink::Evicted);
                slot
            };
            ours.load(slot, PageId(now), Load::Demand, CostClass(class), now);
            lru.load(slot, PageId(now), Load::Demand, CostClass(class), now);
            present.push(slot);
        }
    }
}

/// Once the pointers have passed the dirty pages, the next clean page is two steps away however many there are.
#[test]
fn the_next_clean_page_is_near_however_many_are_dirty() {
    const N: Slot = 8000;
    let mut policy = (policy::find("gd2l-c").unwrap().make)(N as usize, &PolicyOptions::default());
    for slot in 0..N {
        policy.load(slot, PageId(slot.into()), Load::Demand, CostClass((slot % 2) as u8), 0);
        if slot < N / 4 {
            policy.dirtied(slot, 0);
        }
    }
    let ask = Ask { resume: true, cold_only: true, ..Ask::any() };
    let mut clean = |slot: Slot| slot >= N / 4;
    let first = policy.victim(ask, &mut clean).expect("there are clean pages behind the middle");
    policy.unlink(first, Unlink::Evicted);
    for _ in 0..200 {
        let slot = policy.victim(Ask { depth: 2, ..ask }, &mut clean).expect("the next clean page");
        policy.unlink(slot, Unlink::Evicted);
    }
}

/// A dear clean page stays while a cheap one is clean, though many are dirty; when none is, it leaves at once: nobody
/// waits for a write while there is a clean page.
#[test]
fn a_miss_finds_a_clean_page_if_there_is_one() {
    let gd2l = Gd2lOptions { cost: [70.0, 1.0].into(), write_cost: [50.0, 3.0].into(), ..Gd2lOptions::default() };
    let make = policy::find("gd2l-c").unwrap().make;
    let mut policy = make(24, &PolicyOptions { gd2l, ..PolicyOptions::default() });
    (0..4).for_each(|slot| policy.load(slot, PageId(slot.into()), Load::Demand, CostClass(0), 0));
    (4..24).for_each(|slot| policy.load(slot, PageId(slot.into()), Load::Demand, CostClass(1), 0));
    let dirty = |slot: Slot| slot > 4;
    (5..24).for_each(|slot| policy.dirtied(slot, 0));
    let ask = Ask { resume: true, cold_only: true, ..Ask::any() };
    for wanted in [4, 0, 1, 2, 3] {
        let victim = policy.victim(ask, &mut |slot| !dirty(slot));
        assert_eq!(victim, Some(wanted), "the slow pages cost 70, the fast ones 1 and a write of 3");
        policy.unlink(wanted, Unlink::Evicted);
    }
    assert_eq!(policy.victim(ask, &mut |slot| !dirty(slot)), None);
    policy.cleaned(9, WriteWhy::Replacement, 0);
    assert_eq!(policy.victim(ask, &mut |slot| slot == 9), Some(9), "cleaned, and behind the middle");
}
