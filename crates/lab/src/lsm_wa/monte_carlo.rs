//! A levelled LSM of nothing but keys: drawn, flushed and merged, the written ones counted.

use super::{Amplification, Shape};
use varve_rt::Rng;

type Segment = Vec<u32>;

struct Store {
    shape: Shape,
    limits: Vec<f64>,
    /// Flushed segments.
    zero: Vec<Segment>,
    /// Levels 1, 2, ..: disjoint segments in key order.
    levels: Vec<Vec<Segment>>,
    /// Per level, the largest key that was merged last.
    after: Vec<Option<u32>>,
    flushed: u64,
    merged: Vec<u64>,
}

/// The sorted keys of two sorted lists, each once.
fn union(a: &[u32], b: &[u32]) -> Segment {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut all = Segment::new();
    while let Some(next) = [a.peek(), b.peek()].into_iter().flatten().min() {
        let key = **next;
        a.next_if(|k| **k == key);
        b.next_if(|k| **k == key);
        all.push(key);
    }
    all
}

impl Store {
    fn new(shape: &Shape) -> Store {
        let limits = shape.levels();
        let n = limits.len();
        let (levels, after, merged) = (vec![Vec::new(); n], vec![None; n], vec![0; n]);
        Store { shape: shape.clone(), limits, zero: Vec::new(), levels, after, flushed: 0, merged }
    }

    fn flush(&mut self, mut keys: Segment) {
        keys.sort_unstable();
        keys.dedup();
        self.flushed += keys.len() as u64;
        self.zero.push(keys);
        if self.zero.len() as f64 >= self.shape.trigger {
            let all = self.zero.drain(..).fold(Segment::new(), |all, segment| union(&all, &segment));
            self.merge_into(0, &all);
        }
        for level in 0..self.levels.len() - 1 {
            while self.levels[level].iter().map(Vec::len).sum::<usize>() as f64 > self.limits[level] {
                let after = self.after[level];
                let next = self.levels[level].iter().position(|s| after.is_none_or(|after| s.last() > Some(&after)));
                let segment = self.levels[level].remove(next.unwrap_or(0));
                self.after[level] = segment.last().copied();
                self.merge_into(level + 1, &segment);
            }
        }
    }

    /// Merges keys into a level: with every segment there that they overlap.
    fn merge_into(&mut self, level: usize, keys: &[u32]) {
        let segments = &mut self.levels[level];
        let from = segments.partition_point(|segment| segment.last() < keys.first());
        let to = segments.partition_point(|segment| segment.first() <= keys.last());
        let old: Segment = segments[from..to.max(from)].concat();
        let all = union(keys, &old);
        // Nothing there: the segment moves without being written. (Level 1 is made of several, which are written.)
        if !old.is_empty() || level == 0 {
            self.merged[level] += all.len() as u64;
        }
        let new = all.chunks(self.shape.segment as usize).map(<[u32]>::to_vec);
        segments.splice(from..to.max(from), new);
    }
}

/// Draws keys until the store has forgotten how it began, and then as many again, of which the cost is counted.
pub fn simulate(shape: &Shape, seed: u64) -> Amplification {
    let (mut store, mut rng) = (Store::new(shape), Rng::from_seed(seed));
    let keys = shape.keys as u64;
    // Every key is there from the beginning, on the last level.
    let all: Segment = (0..keys as u32).collect();
    let last = store.levels.len() - 1;
    store.levels[last] = all.chunks(shape.segment as usize).map(<[u32]>::to_vec).collect();
    let memtables = |store: &mut Store, rng: &mut Rng, n: u64| {
        for _ in 0..n {
            store.flush((0..shape.memtable as u64).map(|_| rng.below(keys) as u32).collect());
        }
    };
    let rounds = (10 * keys / shape.memtable as u64).max(400);
    memtables(&mut store, &mut rng, rounds);
    store.flushed = 0;
    store.merged.fill(0);
    memtables(&mut store, &mut rng, rounds);
    let writes = rounds as f64 * shape.memtable;
    let levels = store.merged.iter().map(|n| *n as f64 / writes).collect();
    Amplification { log: 1.0, flush: store.flushed as f64 / writes, levels }
}
