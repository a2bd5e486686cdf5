//! The rules of GD2L over plain vectors, for any number of classes.

use varve::buffer::policy::{Gd2lOptions, Slot, Unlink};
use varve_volume::WriteWhy;

/// Lists of (slot, H), coldest first, from the slowest class on.
pub struct Model {
    pub cost: Vec<f64>,
    pub at_midpoint: bool,
    pub inflation: f64,
    pub lists: Vec<Vec<(Slot, f64)>>,
    pub dirty: Vec<bool>,
    /// Pages evicted from each list, and how many must have been until each page is moved by a use.
    pub evicted: Vec<u64>,
    pub stays: Vec<u64>,
    pub stay_part: u32,
    /// How far beyond the H of the cold ends L may rise.
    pub grant: Vec<f64>,
}

impl Model {
    pub fn new(slots: usize, options: Gd2lOptions) -> Model {
        let classes = options.cost.len();
        Model {
            cost: options.cost.to_vec(),
            at_midpoint: options.invalidated_at_midpoint,
            inflation: 0.0,
            lists: vec![Vec::new(); classes],
            dirty: vec![false; slots],
            evicted: vec![0; classes],
            stays: vec![0; slots],
            stay_part: options.stay_part,
            grant: vec![0.0; classes],
        }
    }
    pub fn class(&self, slot: Slot) -> usize {
        self.lists.iter().position(|list| list.iter().any(|e| e.0 == slot)).unwrap_or(0)
    }
    pub fn remove(&mut self, slot: Slot) -> f64 {
        let class = self.class(slot);
        let list = &mut self.lists[class];
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
        let before = self.class(slot);
        if before == class {
            return;
        }
        self.remove(slot);
        let invalidated = wrote.is_some() || self.dirty[slot as usize];
        match (class > before, wrote) {
            (true, Some(WriteWhy::Replacement)) => self.back(slot, class),
            (false, _) if invalidated && !self.at_midpoint => self.front(slot, class),
            _ => self.middle(slot, class),
        }
    }
    pub fn unlink(&mut self, slot: Slot, how: Unlink) {
        let class = self.class(slot);
        self.evicted[class] += u64::from(how == Unlink::Evicted);
        let h = self.remove(slot);
        if how == Unlink::Evicted {
            let ends = self.lists.iter().zip(&self.grant).filter_map(|(l, grant)| l.first().map(|e| e.1 + grant));
            self.inflation = self.inflation.max(ends.fold(h, f64::min));
        }
    }
    pub fn order(&self) -> Vec<Slot> {
        let mut lists = self.lists.clone();
        let mut order = Vec::new();
        while let Some(from) = coldest(lists.iter().map(|list| list.first().map(|e| e.1))) {
            order.push(lists[from].remove(0).0);
        }
        order
    }
}

/// The class whose page has the least H; of equal ones the fastest.
pub fn coldest(ends: impl Iterator<Item = Option<f64>>) -> Option<usize> {
    let ends = ends.enumerate().filter_map(|(class, h)| Some((class, h?)));
    ends.reduce(|least, end| if end.1 <= least.1 { end } else { least }).map(|(class, _)| class)
}
