//! Which block garbage collection takes next. Pure: blocks come in when they are full and go out when taken; the age of
//! a block is counted in host writes since it was closed.
//!
//! Greedy keeps a list of blocks for each number of valid pages, and takes the last of the first: it has no eye for
//! age, and of its candidates the one that got there first would be the coldest. FIFO keeps one list, in the order of
//! closing. The random policies draw from a dense table; cost-benefit looks at all of it.
//!
//! Invariants: a closed block is in the table once, `place` says where; it is in one list, with Greedy that of its
//! number of valid pages; `lowest` is not above the first list that has a block; time does not go back.

use super::NONE;
use crate::GcPolicy;
use varve_rt::Rng;

#[derive(Clone)]
pub(super) struct Victims {
    policy: GcPolicy,
    d: u32,
    /// Pages of a block.
    slots: u32,
    /// First block of the pool; the tables below are indexed from it.
    first: u32,
    prev: Vec<u32>,
    next: Vec<u32>,
    /// The list that a block is in.
    list: Vec<u32>,
    /// When the block was closed, host writes.
    since: Vec<u64>,
    head: Vec<u32>,
    tail: Vec<u32>,
    /// No list before this has a block.
    lowest: u32,
    closed: Vec<u32>,
    place: Vec<u32>,
}

impl Victims {
    pub(super) fn new(policy: GcPolicy, d: u32, slots: u32, first: u32, blocks: u32) -> Victims {
        let (n, lists) = (blocks as usize, slots as usize + 1);
        Victims {
            policy,
            d,
            slots,
            first,
            prev: vec![NONE; n],
            next: vec![NONE; n],
            list: vec![NONE; n],
            since: vec![0; n],
            head: vec![NONE; lists],
            tail: vec![NONE; lists],
            lowest: slots,
            closed: Vec::new(),
            place: vec![NONE; n],
        }
    }

    fn sorted(&self) -> bool {
        self.policy == GcPolicy::Greedy
    }

    /// Full blocks.
    pub(super) fn closed(&self) -> &[u32] {
        &self.closed
    }

    pub(super) fn contains(&self, block: u32) -> bool {
        self.place[(block - self.first) as usize] != NONE
    }

    /// A block is full.
    pub(super) fn insert(&mut self, block: u32, valid: u32, now: u64) {
        let i = (block - self.first) as usize;
        assert_eq!(self.place[i], NONE, "block {block} is closed once");
        assert!(valid <= self.slots, "a block has no more valid pages than pages");
        self.place[i] = self.closed.len() as u32;
        self.closed.push(block);
        self.since[i] = now;
        self.link(i as u32, if self.sorted() { valid } else { 0 });
    }

    /// A block is taken.
    pub(super) fn remove(&mut self, block: u32) {
        let i = (block - self.first) as usize;
        let place = std::mem::replace(&mut self.place[i], NONE);
        assert_ne!(place, NONE, "a block that is taken is closed");
        self.closed.swap_remove(place as usize);
        if let Some(moved) = self.closed.get(place as usize) {
            self.place[(moved - self.first) as usize] = place;
        }
        self.unlink(i as u32);
    }

    /// A block lost a page and has `valid` left.
    #[inline]
    pub(super) fn lost(&mut self, block: u32, valid: u32) {
        let i = block - self.first;
        if self.sorted() && self.list[i as usize] != NONE {
            assert_eq!(self.list[i as usize], valid + 1, "block {block} is in the list of its valid pages");
            self.unlink(i);
            self.link(i, valid);
        }
    }

    #[inline]
    fn link(&mut self, i: u32, list: u32) {
        debug_assert_eq!(self.list[i as usize], NONE, "a block is in one list");
        let l = list as usize;
        let last = std::mem::replace(&mut self.tail[l], i);
        match last {
            NONE => self.head[l] = i,
            last => self.next[last as usize] = i,
        }
        self.prev[i as usize] = last;
        self.next[i as usize] = NONE;
        self.list[i as usize] = list;
        self.lowest = self.lowest.min(list);
    }

    #[inline]
    fn unlink(&mut self, i: u32) {
        let list = std::mem::replace(&mut self.list[i as usize], NONE) as usize;
        let (prev, next) = (self.prev[i as usize], self.next[i as usize]);
        match prev {
            NONE => self.head[list] = next,
            prev => self.next[prev as usize] = next,
        }
        match next {
            NONE => self.tail[list] = prev,
            next => self.prev[next as usize] = prev,
        }
    }

    /// The next victim; it stays where it is.
    pub(super) fn pick(&mut self, rng: &mut Rng, now: u64, valid: impl Fn(u32) -> u32) -> Option<u32> {
        match self.policy {
            GcPolicy::Fifo => self.first_of(0),
            GcPolicy::Greedy => {
                while self.lowest < self.slots && self.head[self.lowest as usize] == NONE {
                    self.lowest += 1;
                }
                debug_assert!(self.head[..self.lowest as usize].iter().all(|head| *head == NONE));
                let last = self.tail[self.lowest as usize];
                (last != NONE).then(|| self.first + last)
            }
            GcPolicy::CostBenefit => self.best_benefit(now, valid),
            GcPolicy::Random => self.draw(rng),
            GcPolicy::DChoices => {
                let mut best = self.draw(rng)?;
                for _ in 1..self.d {
                    let other = self.draw(rng)?;
                    if valid(other) < valid(best) {
                        best = other;
                    }
                }
                Some(best)
            }
        }
    }

    /// Walks over the table and the lists; panics where they do not agree. `valid` counts the valid pages of a block.
    pub(super) fn verify(&self, valid: impl Fn(u32) -> u32) {
        for (at, block) in self.closed.iter().enumerate() {
            let i = (block - self.first) as usize;
            assert_eq!(self.place[i], at as u32, "place of closed block {block}");
            let list = if self.sorted() { valid(*block) } else { 0 };
            assert_eq!(self.list[i], list, "list of closed block {block}");
            assert!(self.lowest <= list || !self.sorted());
        }
        let mut listed = 0;
        for (list, head) in self.head.iter().enumerate() {
            let (mut before, mut at) = (NONE, *head);
            while at != NONE {
                assert_eq!(
                    (self.prev[at as usize], self.list[at as usize]),
                    (before, list as u32),
                    "links of list {list}"
                );
                (before, at) = (at, self.next[at as usize]);
                listed += 1;
                assert!(listed <= self.closed.len(), "lists hold closed blocks, each once");
            }
            assert_eq!(self.tail[list], before, "end of list {list}");
        }
        assert_eq!(listed, self.closed.len(), "every closed block is in a list");
    }

    fn first_of(&self, list: u32) -> Option<u32> {
        let head = self.head[list as usize];
        (head != NONE).then(|| self.first + head)
    }

    fn draw(&self, rng: &mut Rng) -> Option<u32> {
        self.closed.get(rng.below(self.closed.len() as u64) as usize).copied()
    }

    /// The most (1-u) age / (1+u), where u is the share of valid pages.
    fn best_benefit(&self, now: u64, valid: impl Fn(u32) -> u32) -> Option<u32> {
        let mut best = (-1.0, None);
        for block in &self.closed {
            let since = self.since[(block - self.first) as usize];
            assert!(since <= now, "a block was closed in the past");
            let (u, age) = (valid(*block), now - since + 1);
            let benefit = age as f64 * f64::from(self.slots - u) / f64::from(self.slots + u);
            if benefit > best.0 {
                best = (benefit, Some(*block));
            }
        }
        best.1
    }
}
