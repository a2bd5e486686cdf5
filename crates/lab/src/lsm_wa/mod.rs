//! Write amplification of a levelled LSM under overwrites of uniformly drawn keys: the mean-field model, and a Monte
//! Carlo that it is checked against.
//!
//! After Lim, Andersen and Kaminsky, *Towards accurate and fast evaluation of multi-stage log-structured designs* (FAST
//! 2016): what counts is how many *different* keys there are among so many writes. Of N keys drawn uniformly, t writes
//! hit the share u(t) = 1 - exp(-t/N). Level l gives each of its keys to the next level once in T(l) writes (its
//! *interval*): a merge passes over the key space, and comes back. Then at any place
//!
//! - level l holds the keys of the writes since its merge was there, at most T(l) ago, in steps of T(l-1), the
//!   interval of the level above. Its size is the mean of u over these, times N; so its size gives T(l). It is at its
//!   limit, less half a segment, when what was too much has gone down;
//! - level 1 is merged with all of level 0 at once, at every place, and what is too much goes down right after that:
//!   so a place that has just been given to level 2 waits for a whole interval of level 0 until it gets keys again.
//!   Further down the level above comes to a place at any time;
//! - each merge from the level above, once in T(l-1) writes, writes what level l holds afterwards at that place;
//! - a merge that takes one segment of level l - 1 rewrites, beside what it overlaps, a segment of level l at its
//!   edges, half of one at each;
//! - the last level holds all keys: u = 1.
//!
//! Pure.

mod monte_carlo;

pub use monte_carlo::simulate;

/// Sizes of an LSM, in keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Different keys.
    pub keys: f64,
    /// Keys of a memtable: it is flushed when it has had so many writes.
    pub memtable: f64,
    /// Flushed segments that are merged into level 1 together.
    pub trigger: f64,
    /// Keys of a segment that a merge writes.
    pub segment: f64,
    /// Keys of level 1.
    pub base: f64,
    /// Times the keys of the level above that a level may have.
    pub multiplier: f64,
}

/// What each written key costs, in keys written.
#[derive(Clone, Debug, PartialEq)]
pub struct Amplification {
    /// The log.
    pub log: f64,
    /// Flushes.
    pub flush: f64,
    /// Merges into level 1, level 2, ..
    pub levels: Vec<f64>,
}

impl Amplification {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.log + self.flush + self.levels.iter().sum::<f64>()
    }
}

/// Steps of the averages.
const STEPS: u32 = 400;

impl Shape {
    /// LevelDB's: four flushed segments, ten times as much on each level; `memtable`, `segment` and `base` as given.
    pub fn leveldb(keys: f64, memtable: f64, segment: f64, base: f64) -> Shape {
        Shape { keys, memtable, trigger: 4.0, segment, base, multiplier: 10.0 }
    }

    /// Keys that each level below 0 may have, the last of which takes all that there are.
    pub fn levels(&self) -> Vec<f64> {
        let mut levels = vec![self.base];
        while levels.iter().sum::<f64>() < self.keys {
            levels.push(levels[levels.len() - 1] * self.multiplier);
        }
        levels
    }

    /// Share of the keys that so many writes hit.
    fn hit(&self, writes: f64) -> f64 {
        -(-writes / self.keys).exp_m1()
    }

    /// The mean of `of` over one interval of a level, given the level above's: it is told how many writes the keys of a
    /// place are of, right before a merge from above comes to it. `together`: merges from above come to all places at
    /// once, and what is too much goes down right after them.
    fn mean(interval: f64, above: f64, together: bool, of: impl Fn(f64) -> f64) -> f64 {
        let mut sum = 0.0;
        for i in 0..STEPS {
            let age = interval * (f64::from(i) + 0.5) / f64::from(STEPS);
            let phase = if together { 0.0 } else { above * phase(i) };
            sum += of(((age + phase) / above).floor() * above);
        }
        sum / f64::from(STEPS)
    }

    /// The interval of a level that has so many keys on average, given the level above's.
    fn interval(&self, keys: f64, above: f64, together: bool) -> f64 {
        let size = |interval: f64| self.keys * Self::mean(interval, above, together, |writes| self.hit(writes));
        let (mut low, mut high) = (above / 4.0, above);
        while size(high) < keys && high < self.keys * 1e6 {
            high *= 2.0;
        }
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if size(middle) < keys { low = middle } else { high = middle }
        }
        (low * high).sqrt()
    }

    /// What the model says.
    pub fn amplification(&self) -> Amplification {
        let levels = self.levels();
        let flush = self.keys * self.hit(self.memtable) / self.memtable;
        let mut above = self.trigger * self.memtable;
        let mut costs = Vec::new();
        for (l, limit) in levels.iter().enumerate() {
            let last = l + 1 == levels.len();
            let together = l == 0;
            let full = limit - self.segment / 2.0;
            let interval = if last { f64::INFINITY } else { self.interval(full, above, together) };
            // What is there after a merge: what was there, and what came with it.
            let held =
                if last { 1.0 } else { Self::mean(interval, above, together, |writes| self.hit(writes + above)) };
            // Level 1 is rewritten whole; below, a merge also rewrites what a segment of it overlaps at its edges.
            let edges = if l == 0 { 0.0 } else { self.hit(above) };
            costs.push(self.keys * (held + edges) / above);
            above = interval;
        }
        Amplification { log: 1.0, flush, levels: costs }
    }
}

/// The phases of the steps, evenly spread, in an order that has nothing to do with the steps'.
fn phase(i: u32) -> f64 {
    (f64::from(i) * 0.618_033_988_749_894_9).fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_monte_carlo_agree() {
        for (keys, memtable, segment, base) in
            [(20_000.0, 100.0, 50.0, 500.0), (6_000.0, 60.0, 30.0, 300.0), (3_000.0, 100.0, 50.0, 500.0)]
        {
            let shape = Shape::leveldb(keys, memtable, segment, base);
            let (model, drawn) = (shape.amplification(), simulate(&shape, 1));
            let (m, d) = (model.total(), drawn.total());
            println!("{keys} keys: model {m:.2} {:.2?}, Monte Carlo {d:.2} {:.2?}", model.levels, drawn.levels);
            assert!((m / d - 1.0).abs() < 0.04, "{m} {d}");
        }
    }

    #[test]
    fn it_rises_with_the_keys_and_falls_with_the_memtable() {
        let total = |keys: f64, memtable: f64| Shape::leveldb(keys, memtable, 1e4, 1e5).amplification().total();
        let rises: Vec<f64> = [1e6, 3e6, 1e7, 3e7, 1e8].iter().map(|keys| total(*keys, 2e4)).collect();
        assert!(rises.windows(2).all(|two| two[0] < two[1]), "{rises:?}");
        assert!(total(1e7, 4e4) < total(1e7, 2e4) && total(1e7, 2e4) < total(1e7, 1e4));
        // A level that takes everything at once: each key is written to the log, flushed, and merged.
        let one = Shape { keys: 1000.0, memtable: 1000.0, trigger: 1.0, segment: 1e3, base: 1e4, multiplier: 10.0 };
        let expected = 1.0 + 0.632 + 1.0;
        assert!((one.amplification().total() - expected).abs() < 0.01, "{:?}", one.amplification());
    }
}
