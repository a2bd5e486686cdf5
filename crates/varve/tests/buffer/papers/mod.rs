//! Slow reference implementations, each written from its paper's pseudo-code over plain vectors (index 0 is the head,
//! or most recently used end), apart from the fast ones. Each is asked for a page and says whether it was a hit.

use std::collections::BTreeMap;

pub trait Reference {
    fn access(&mut self, x: u64) -> bool;
}

fn remove(list: &mut Vec<u64>, x: u64) -> bool {
    let at = list.iter().position(|y| *y == x);
    at.map(|i| list.remove(i)).is_some()
}

pub struct Lru {
    pub c: usize,
    pub list: Vec<u64>,
}

impl Reference for Lru {
    fn access(&mut self, x: u64) -> bool {
        let hit = remove(&mut self.list, x);
        if !hit && self.list.len() == self.c {
            self.list.pop();
        }
        self.list.insert(0, x);
        hit
    }
}

pub struct Fifo {
    pub c: usize,
    pub list: Vec<u64>,
}

impl Reference for Fifo {
    fn access(&mut self, x: u64) -> bool {
        if self.list.contains(&x) {
            return true;
        }
        if self.list.len() == self.c {
            self.list.pop();
        }
        self.list.insert(0, x);
        false
    }
}

/// A real ring with a hand that stays where it is while pages are exchanged under it.
pub struct Clock {
    pub c: usize,
    pub ring: Vec<(u64, bool)>,
    pub hand: usize,
}

impl Reference for Clock {
    fn access(&mut self, x: u64) -> bool {
        if let Some(frame) = self.ring.iter_mut().find(|f| f.0 == x) {
            frame.1 = true;
            return true;
        }
        if self.ring.len() < self.c {
            self.ring.push((x, false));
            return false;
        }
        while self.ring[self.hand].1 {
            self.ring[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.c;
        }
        self.ring[self.hand] = (x, false);
        self.hand = (self.hand + 1) % self.c;
        false
    }
}

/// NSDI 2024, algorithm 1.
pub struct Sieve {
    pub c: usize,
    pub queue: Vec<(u64, bool)>,
    pub hand: Option<u64>,
}

impl Reference for Sieve {
    fn access(&mut self, x: u64) -> bool {
        if let Some(o) = self.queue.iter_mut().find(|o| o.0 == x) {
            o.1 = true;
            return true;
        }
        if self.queue.len() == self.c {
            let tail = self.queue.len() - 1;
            let mut o = self.hand.map_or(tail, |h| self.queue.iter().position(|o| o.0 == h).unwrap());
            while self.queue[o].1 {
                self.queue[o].1 = false;
                o = o.checked_sub(1).unwrap_or(tail);
            }
            self.hand = o.checked_sub(1).map(|prev| self.queue[prev].0);
            self.queue.remove(o);
        }
        self.queue.insert(0, (x, false));
        false
    }
}

/// VLDB 1994, full version.
#[derive(Default)]
pub struct TwoQ {
    pub c: usize,
    pub a1in: Vec<u64>,
    pub a1out: Vec<u64>,
    pub am: Vec<u64>,
}

impl TwoQ {
    fn reclaim(&mut self) {
        if self.a1in.len() + self.am.len() < self.c {
            return;
        }
        if self.a1in.len() > self.c / 4 {
            let y = self.a1in.pop().unwrap();
            self.a1out.insert(0, y);
            self.a1out.truncate(self.c / 2);
        } else {
            self.am.pop();
        }
    }
}

impl Reference for TwoQ {
    fn access(&mut self, x: u64) -> bool {
        if remove(&mut self.am, x) {
            self.am.insert(0, x);
            true
        } else if remove(&mut self.a1out, x) {
            self.reclaim();
            self.am.insert(0, x);
            false
        } else if self.a1in.contains(&x) {
            true
        } else {
            self.reclaim();
            self.a1in.insert(0, x);
            false
        }
    }
}

/// FAST 2003, figure 4.
#[derive(Default)]
pub struct Arc {
    pub c: usize,
    pub p: f64,
    pub t1: Vec<u64>,
    pub t2: Vec<u64>,
    pub b1: Vec<u64>,
    pub b2: Vec<u64>,
}

impl Arc {
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if !self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p)) {
            self.b1.insert(0, self.t1.pop().unwrap());
        } else {
            self.b2.insert(0, self.t2.pop().unwrap());
        }
    }
}

impl Reference for Arc {
    fn access(&mut self, x: u64) -> bool {
        let c = self.c;
        // Case I.
        if remove(&mut self.t1, x) || remove(&mut self.t2, x) {
            self.t2.insert(0, x);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&x) {
            // Case II.
            let step = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + step).min(c as f64);
            self.replace(false);
            remove(&mut self.b1, x);
            self.t2.insert(0, x);
        } else if self.b2.contains(&x) {
            // Case III.
            let step = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - step).max(0.0);
            self.replace(true);
            remove(&mut self.b2, x);
            self.t2.insert(0, x);
        } else {
            // Case IV.
            let (l1, l2) = (self.t1.len() + self.b1.len(), self.t2.len() + self.b2.len());
            if l1 == c {
                if self.t1.len() < c {
                    self.b1.pop();
                    self.replace(false);
                } else {
                    self.t1.pop();
                }
            } else if l1 + l2 >= c {
                if l1 + l2 == 2 * c {
                    self.b2.pop();
                }
                self.replace(false);
            }
            self.t1.insert(0, x);
        }
        false
    }
}

/// SOSP 2023, algorithm 1.
#[derive(Default)]
pub struct S3Fifo {
    pub c: usize,
    pub s: Vec<(u64, u8)>,
    pub m: Vec<(u64, u8)>,
    pub g: Vec<u64>,
    pub evicted: bool,
}

impl S3Fifo {
    fn share(&self) -> usize {
        (self.c / 10).max(1)
    }

    fn evict_s(&mut self) -> bool {
        while let Some((t, freq)) = self.s.pop() {
            if freq > 1 {
                self.m.insert(0, (t, 0));
            } else {
                self.g.insert(0, t);
                self.g.truncate(self.c - self.share());
                return true;
            }
        }
        false
    }

    fn evict_m(&mut self) -> bool {
        while let Some((t, freq)) = self.m.pop() {
            if freq == 0 {
                return true;
            }
            self.m.insert(0, (t, freq - 1));
        }
        false
    }
}

impl Reference for S3Fifo {
    fn access(&mut self, x: u64) -> bool {
        if let Some(o) = self.s.iter_mut().chain(&mut self.m).find(|o| o.0 == x) {
            o.1 = (o.1 + 1).min(3);
            return true;
        }
        let remembered = remove(&mut self.g, x);
        if self.s.len() + self.m.len() == self.c {
            let evicted = if self.s.len() >= self.share() { self.evict_s() || self.evict_m() } else { self.evict_m() };
            assert!(evicted);
            self.evicted = true;
        }
        if remembered || !self.evicted && self.s.len() >= self.share() {
            self.m.insert(0, (x, 0))
        } else {
            self.s.insert(0, (x, 0))
        }
        false
    }
}

/// SIGMETRICS 1993, figure 2.1, with K = 2.
#[derive(Default)]
pub struct Lru2 {
    pub c: usize,
    pub crp: u64,
    /// Pages that left and are remembered at most; the one that left first is forgotten first.
    pub remembered: usize,
    pub t: u64,
    pub buffer: Vec<u64>,
    /// HIST(p, 1), HIST(p, 2), LAST(p).
    pub known: BTreeMap<u64, (u64, u64, u64)>,
    pub left: Vec<u64>,
}

impl Reference for Lru2 {
    fn access(&mut self, p: u64) -> bool {
        self.t += 1;
        let t = self.t;
        if self.buffer.contains(&p) {
            let (hist1, _, last) = self.known[&p];
            let entry = if t - last > self.crp {
                let correlated_period = last - hist1;
                (t, hist1 + correlated_period, t)
            } else {
                (hist1, self.known[&p].1, t)
            };
            self.known.insert(p, entry);
            return true;
        }
        remove(&mut self.left, p);
        if self.buffer.len() == self.c {
            let key = |q: &u64| (self.known[q].1, self.known[q].0);
            let eligible = |q: &&u64| t - self.known[*q].2 > self.crp;
            let victim = self.buffer.iter().filter(eligible).min_by_key(|q| key(q));
            let victim = *victim.or_else(|| self.buffer.iter().min_by_key(|q| key(q))).unwrap();
            remove(&mut self.buffer, victim);
            self.left.insert(0, victim);
            while self.left.len() > self.remembered {
                let forgotten = self.left.pop().unwrap();
                self.known.remove(&forgotten);
            }
        }
        let hist2 = self.known.get(&p).map_or(0, |k| k.0);
        self.known.insert(p, (t, hist2, t));
        self.buffer.push(p);
        false
    }
}

/// SIGMETRICS 2002, section 3.
#[derive(Default)]
pub struct Lirs {
    pub c: usize,
    pub hirs: usize,
    pub stack_limit: usize,
    /// Pages by recency, most recent first.
    pub s: Vec<u64>,
    /// Resident HIR pages, newest first.
    pub q: Vec<u64>,
    pub lir: Vec<u64>,
}

impl Lirs {
    fn top(&mut self, x: u64) {
        remove(&mut self.s, x);
        self.s.insert(0, x);
    }

    fn prune(&mut self) {
        while self.s.last().is_some_and(|y| !self.lir.contains(y)) {
            self.s.pop();
        }
    }

    fn make_lir(&mut self, x: u64) {
        self.lir.push(x);
        if self.lir.len() > self.c - self.hirs {
            // A cache of one page has no LIR page otherwise.
            self.prune();
            let bottom = self.s.pop().unwrap();
            assert!(remove(&mut self.lir, bottom));
            self.q.insert(0, bottom);
        }
        self.prune();
    }

    fn bound(&mut self) {
        while self.s.len() > self.stack_limit {
            let absent = |y: &u64| !self.lir.contains(y) && !self.q.contains(y);
            let Some(at) = self.s.iter().rposition(absent) else { return };
            self.s.remove(at);
        }
    }

    fn reference(&mut self, x: u64) -> bool {
        if self.lir.contains(&x) {
            self.top(x);
            self.prune();
            return true;
        }
        let in_stack = self.s.contains(&x);
        let resident = remove(&mut self.q, x);
        if !resident && self.lir.len() + self.q.len() == self.c {
            self.q.pop().expect("a resident HIR page");
        }
        self.top(x);
        if in_stack || (!resident && self.lir.len() < self.c - self.hirs) {
            self.make_lir(x);
        } else {
            self.q.insert(0, x);
        }
        resident
    }
}

impl Reference for Lirs {
    fn access(&mut self, x: u64) -> bool {
        let hit = self.reference(x);
        self.bound();
        hit
    }
}
