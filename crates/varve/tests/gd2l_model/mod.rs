//! The rules of GD2L over plain vectors.

use varve::buffer::policy::{Gd2lOptions, Slot, Unlink};
use varve_volume::WriteWhy;

/// Lists of (slot, H), coldest first; 0 = slow, 1 = fast.
pub struct Model {
    pub cost: [f64; 2],
    pub at_midpoint: bool,
    pub inflation: f64,
    pub lists: [Vec<(Slot, f64)>; 2],
    pub dirty: Vec<bool>,
    /// Pages evicted from each list, and how many must have been until each page is moved by a use.
    pub evicted: [u64; 2],
    pub stays: Vec<u64>,
    pub stay_part: u32,
    /// How far beyond the H of the cold ends L may rise.
    pub grant: [f64; 2],
}

impl Model {
    pub fn new(slots: usize, options: Gd2lOptions) -> Model {
        Model {
            cost: options.cost,
            at_midpoint: options.invalidated_at_midpoint,
            inflation: 0.0,
            lists: [Vec::new(), Vec::new()],
            dirty: vec![false; slots],
            evicted: [0; 2],
            stays: vec![0; slots],
            stay_part: options.stay_part,
            grant: [0.0; 2],
        }
    }
    pub fn class(&self, slot: Slot) -> usize {
        usize::from(self.lists[1].iter().any(|e| e.0 == slot))
    }
    pub fn remove(&mut self, slot: Slot) -> f64 {
        let list = &mut self.lists[usize::from(self.lists[1].iter().any(|e| e.0 == slot))];
        let at = list.iter().position(|e| e.0 == slot).expect("the slot holds a page");
        list.remove(at).1
    }
    pub fn front(&mut self, slot: Slot, class: usize) {
        self.lists[class].push((slot, self.inflation + self.cost[class]));
        let len = self.lists[class].len();
        let part = if self.stay_part == 0 { 0 } else { (len - 3 * len / 8) as u64 / u64::from(self.stay_part) };
        self.stays[slot as usize] = if self.stay_part == 0 { 0 } else { self.evicted[class] + part };
    }
    pub fn stays(&self, slot: Slot) -> bool {
        let class = self.class(slot);
        let list = &self.lists[class];
        let behind = 3 * list.len() / 8;
        let at = list.iter().position(|e| e.0 == slot).expect("the slot holds a page");
        behind > 0 && at >= behind && self.evicted[class] < self.stays[slot as usize]
    }
    pub fn hit(&mut self, slot: Slot) {
        if !self.stays(slot) {
            let class = self.class(slot);
            self.remove(slot);
            self.front(slot, class);
        }
    }
    pub fn middle(&mut self, slot: Slot, class: usize) {
        self.stays[slot as usize] = 0;
        let list = &mut self.lists[class];
        match list.get(3 * list.len() / 8) {
            Some(&(_, h)) => list.insert(3 * list.len() / 8, (slot, h)),
            None => self.front(slot, class),
        }
    }
    pub fn back(&mut self, slot: Slot, class: usize) {
        self.stays[slot as usize] = 0;
        let h = self.lists[class].first().map_or(self.inflation, |e| e.1);
        self.lists[class].insert(0, (slot, h));
    }
    pub fn change(&mut self, slot: Slot, class: usize, wrote: Option<WriteWhy>) {
        if self.class(slot) == class {
            return;
        }
        self.remove(slot);
        match (class, wrote) {
            (1, Some(WriteWhy::Replacement)) => self.back(slot, 1),
            (1, _) => self.middle(slot, 1),
            _ if (wrote.is_some() || self.dirty[slot as usize]) && !self.at_midpoint => self.front(slot, 0),
            _ => self.middle(slot, 0),
        }
    }
    pub fn unlink(&mut self, slot: Slot, how: Unlink) {
        self.evicted[self.class(slot)] += u64::from(how == Unlink::Evicted);
        let h = self.remove(slot);
        if how == Unlink::Evicted {
            let ends = self.lists.iter().zip(self.grant).filter_map(|(l, grant)| l.first().map(|e| e.1 + grant));
            self.inflation = self.inflation.max(ends.fold(h, f64::min));
        }
    }
    pub fn order(&self) -> Vec<Slot> {
        let mut lists = self.lists.clone();
        let mut order = Vec::new();
        while !lists[0].is_empty() || !lists[1].is_empty() {
            let from = match (lists[0].first(), lists[1].first()) {
                (Some(slow), Some(fast)) => usize::from(slow.1 >= fast.1),
                (slow, _) => usize::from(slow.is_none()),
            };
            order.push(lists[from].remove(0).0);
        }
        order
    }
}
