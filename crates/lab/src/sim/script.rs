//! What the clients do: transactions drawn from a generator before they run, as data.
//!
//! Pure: a script is a function of the plan and of the generator's state, so it can be printed, replayed and tested
//! without an engine.

use super::plan::Mix;
use super::rows::ROW_SPACES;
use varve::Durability;
use varve_rt::Rng;

/// One step of a transaction. Keys are indexes into [`super::rows::Keys`]; ranges are half open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Get {
        space: u8,
        index: u32,
    },
    GetForUpdate {
        space: u8,
        index: u32,
    },
    /// `len` `None`: as long as the value that is there, so that it is overwritten in place.
    Put {
        space: u8,
        index: u32,
        len: Option<u32>,
    },
    Delete {
        space: u8,
        index: u32,
    },
    DeleteRange {
        space: u8,
        from: u32,
        to: u32,
    },
    Scan {
        space: u8,
        from: u32,
        to: u32,
        reverse: bool,
        limit: u32,
    },
    Count {
        space: u8,
        from: u32,
        to: u32,
    },
    Savepoint,
    /// Back to the newest savepoint that is still there.
    RollbackTo,
    /// Waits, in microseconds of virtual time.
    Pause(u32),
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Commit,
    Rollback,
    /// The handle is dropped.
    Drop,
}

/// What a client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// A read-write transaction.
    Write { steps: Vec<Step>, durability: Durability, ending: Ending },
    /// A get, put or delete outside of any transaction.
    Single { step: Step, durability: Durability },
    /// Reads at a snapshot.
    Snapshot { steps: Vec<Step> },
    /// A checkpoint asked for by hand.
    Checkpoint,
    /// A compaction.
    Compact,
    /// A backup, whole or of what changed since the one before.
    Backup,
    /// A close, while the client has a snapshot or a transaction open: it is refused.
    Close { snapshot: bool },
    /// One of the client's own keyspaces is created and filled, or dropped when it is there.
    Keyspace { which: u8, rows: u32, len: u32 },
    /// One of them changes as a whole while the client has a snapshot open.
    Reshape { which: u8, how: Reshape },
    /// A range delete that is a transaction of its own.
    Cut { space: u8, range: Option<(u32, u32)>, durability: Durability },
}

/// What may happen to a keyspace as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reshape {
    Clear,
    Rename,
    Drop,
}

/// Draws scripts for one client.
#[derive(Clone, Debug)]
pub(crate) struct Scripts {
    mix: Mix,
    rng: Rng,
}

impl Scripts {
    pub(crate) fn new(mix: Mix, rng: Rng) -> Scripts {
        Scripts { mix, rng }
    }

    /// The next script.
    pub(crate) fn next(&mut self) -> Script {
        let mix = &self.mix;
        if self.rng.one_in(mix.spill_every) {
            return self.outgrowing();
        }
        match self.rng.below(100) {
            0..=7 => self.snapshot(),
            8 if mix.backups => Script::Backup,
            9..=10 if mix.checkpoints => Script::Checkpoint,
            11 if mix.checkpoints => Script::Compact,
            12..=13 if mix.keyspaces => Script::Keyspace {
                which: self.rng.below(2) as u8,
                rows: self.rng.below(40) as u32,
                len: self.mix.lengths.draw(&mut self.rng),
            },
            14 => Script::Close { snapshot: self.rng.one_in(2) },
            23 => self.cut(),
            24..=25 if mix.keyspaces => Script::Reshape {
                which: self.rng.below(2) as u8,
                how: [Reshape::Clear, Reshape::Rename, Reshape::Drop][self.rng.below(3) as usize],
            },
            15..=22 => Script::Single { step: self.single(), durability: self.durability() },
            _ => {
                let durability = self.durability();
                let ending = match self.rng.below(24) {
                    0 => Ending::Rollback,
                    1 => Ending::Drop,
                    _ => Ending::Commit,
                };
                Script::Write { steps: self.steps(), durability, ending }
            }
        }
    }

    /// A transaction of some hundred writes or reads, more than its share of a small memory: over neighbours, or here
    /// and there.
    pub(crate) fn outgrowing(&mut self) -> Script {
        let (mut steps, keys) = (Vec::new(), u64::from(self.mix.keys));
        let n = self.rng.between(120, 450).min(keys);
        let (space, from) = (self.rng.below(u64::from(ROW_SPACES)) as u8, self.rng.below(keys - n + 1) as u32);
        let (neighbours, reads) = (self.rng.one_in(2), self.rng.one_in(5));
        let (savepoint, back) = (self.rng.below(n), self.rng.one_in(3).then(|| self.rng.below(n)));
        for i in 0..n {
            let (space, index) = if neighbours { (space, from + i as u32) } else { self.anywhere() };
            steps.push(match self.rng.below(16) {
                _ if reads && i > 0 => Step::Get { space, index },
                0 => Step::Delete { space, index },
                1 => Step::Get { space, index },
                _ => Step::Put { space, index, len: Some(self.rng.below(u64::from(self.mix.lengths.medium)) as u32) },
            });
            if i == savepoint {
                steps.push(Step::Savepoint);
            }
            if back.is_some_and(|back| i == back.max(savepoint)) {
                steps.push(Step::RollbackTo);
            }
        }
        // What was spilled is read again, by itself and among the others.
        let to = (from + n as u32).min(self.mix.keys);
        steps.push(Step::Count { space, from, to });
        let (reverse, limit) = (self.rng.one_in(2), self.rng.between(1, 60) as u32);
        steps.push(Step::Scan { space, from, to, reverse, limit });
        self.updates(&mut steps, 1, 3);
        let ending = if self.rng.one_in(8) { Ending::Rollback } else { Ending::Commit };
        Script::Write { steps, durability: self.durability(), ending }
    }

    fn anywhere(&mut self) -> (u8, u32) {
        (self.rng.below(u64::from(ROW_SPACES)) as u8, self.rng.below(u64::from(self.mix.keys)) as u32)
    }

    /// Now and then of everything.
    fn cut(&mut self) -> Script {
        let (space, from, to) = self.range(self.mix.cut_span);
        let range = (!self.rng.one_in(8)).then_some((from, to));
        Script::Cut { space, range, durability: self.durability() }
    }

    /// Microseconds to think before the next script; often none.
    pub(crate) fn think(&mut self) -> u64 {
        if self.rng.one_in(3) { self.rng.below(self.mix.think_us + 1) } else { 0 }
    }

    fn durability(&mut self) -> Durability {
        let [sync, wait] = self.mix.durability;
        match self.rng.below(100) as u32 {
            d if d < sync => Durability::Sync,
            d if d < sync + wait => Durability::Async,
            _ => Durability::None,
        }
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        match self.rng.below(20) {
            0..=7 => self.updates(&mut steps, 1, 4),
            8..=9 => self.updates(&mut steps, 5, self.mix.large_tx),
            10..=11 => self.read_then_write(&mut steps),
            12..=14 => self.scan_then_write(&mut steps),
            15 => {
                let (space, from, to) = self.range(self.mix.delete_span);
                steps.push(Step::DeleteRange { space, from, to });
            }
            16 => self.run_of_inserts(&mut steps),
            17 => {
                self.updates(&mut steps, 1, 4);
                steps.push(Step::Savepoint);
                self.updates(&mut steps, 1, 6);
                if self.rng.one_in(2) {
                    let (space, from, to) = self.range(8);
                    steps.push(Step::DeleteRange { space, from, to });
                }
                steps.push(Step::RollbackTo);
                self.reads(&mut steps, 2);
                self.updates(&mut steps, 1, 2);
            }
            18 => self.reads(&mut steps, 6),
            _ => {
                let (space, from, to) = self.range(12);
                steps.push(Step::Count { space, from, to });
                self.updates(&mut steps, 1, 3);
            }
        }
        steps
    }

    fn snapshot(&mut self) -> Script {
        let mut steps = Vec::new();
        // Some are open while much is overwritten.
        let pause = if self.rng.one_in(4) { 20_000 } else { 2000 };
        for _ in 0..=self.rng.below(5) {
            self.reads(&mut steps, 2);
            steps.push(Step::Pause(self.rng.below(pause) as u32));
        }
        Script::Snapshot { steps }
    }

    fn single(&mut self) -> Step {
        let (space, index) = self.key();
        match self.rng.below(6) {
            0 | 1 => Step::Get { space, index },
            2 => Step::Delete { space, index },
            _ => Step::Put { space, index, len: Some(self.mix.lengths.draw(&mut self.rng)) },
        }
    }

    fn updates(&mut self, steps: &mut Vec<Step>, low: u64, high: u64) {
        for _ in 0..self.rng.between(low, high) {
            let (space, index) = self.key();
            match self.rng.below(12) {
                0 | 1 => steps.push(Step::Delete { space, index }),
                2 => steps.push(Step::GetForUpdate { space, index }),
                _ => {
                    let len = self.len();
                    steps.push(Step::Put { space, index, len });
                }
            }
            self.maybe_pause(steps);
        }
    }

    fn read_then_write(&mut self, steps: &mut Vec<Step>) {
        let (space, index) = self.key();
        let (other, target) = self.key();
        let shared = self.rng.one_in(2);
        steps.push(if shared { Step::Get { space, index } } else { Step::GetForUpdate { space, index } });
        self.maybe_pause(steps);
        let len = self.len();
        steps.push(if self.rng.one_in(3) {
            Step::Put { space: other, index: target, len }
        } else {
            Step::Put { space, index, len }
        });
    }

    /// A scan of a range and then a write into or near it: what phantoms break.
    fn scan_then_write(&mut self, steps: &mut Vec<Step>) {
        let (space, from, to) = self.range(16);
        let reverse = self.rng.one_in(2);
        let limit = if self.rng.one_in(3) { 1 + self.rng.below(4) as u32 } else { u32::MAX };
        steps.push(Step::Scan { space, from, to, reverse, limit });
        steps.push(Step::Pause(self.rng.below(self.mix.pause_us + 1) as u32));
        let index = from + self.rng.below(u64::from(to - from).max(1)) as u32;
        let len = self.len();
        steps.push(match self.rng.below(4) {
            0 => Step::Delete { space, index },
            1 => Step::Put { space: (space + 1) % ROW_SPACES, index, len },
            _ => Step::Put { space, index, len },
        });
    }

    /// Neighbouring keys, all put: fills leaves in order, and splits them.
    fn run_of_inserts(&mut self, steps: &mut Vec<Step>) {
        let (space, from, to) = self.range(self.mix.large_tx as u32);
        for index in from..to {
            steps.push(Step::Put { space, index, len: Some(self.mix.lengths.draw_small(&mut self.rng)) });
        }
    }

    fn reads(&mut self, steps: &mut Vec<Step>, most: u64) {
        for _ in 0..self.rng.between(1, most) {
            let step = match self.rng.below(6) {
                0..=2 => {
                    let (space, index) = self.key();
                    Step::Get { space, index }
                }
                3 => {
                    let (space, from, to) = self.range(40);
                    Step::Count { space, from, to }
                }
                _ => {
                    let (space, from, to) = self.range(40);
                    let limit = if self.rng.one_in(2) { u32::MAX } else { 1 + self.rng.below(10) as u32 };
                    Step::Scan { space, from, to, reverse: self.rng.one_in(2), limit }
                }
            };
            steps.push(step);
            self.maybe_pause(steps);
        }
    }

    fn maybe_pause(&mut self, steps: &mut Vec<Step>) {
        if self.rng.one_in(4) {
            steps.push(Step::Pause(self.rng.below(self.mix.pause_us + 1) as u32));
        }
    }

    /// A key: half the time one of the hot ones, which lie in one short range so that they share leaves.
    fn key(&mut self) -> (u8, u32) {
        let space = self.rng.below(u64::from(ROW_SPACES)) as u8;
        let index = if self.rng.below(100) < u64::from(self.mix.hot_percent) {
            self.mix.hot_from + self.rng.below(u64::from(self.mix.hot)) as u32
        } else {
            self.rng.below(u64::from(self.mix.keys)) as u32
        };
        (space, index)
    }

    /// A range of at most `span` indexes, around a hot key as often as keys are hot.
    fn range(&mut self, span: u32) -> (u8, u32, u32) {
        let (space, index) = self.key();
        let span = 1 + self.rng.below(u64::from(span.max(1))) as u32;
        let from = index.saturating_sub(self.rng.below(u64::from(span)) as u32);
        (space, from, (from + span).min(self.mix.keys))
    }

    fn len(&mut self) -> Option<u32> {
        if self.rng.below(5) < 2 { None } else { Some(self.mix.lengths.draw(&mut self.rng)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan::Plan;

    fn drawn(seed: u64, n: usize) -> Vec<Script> {
        let mut scripts = Scripts::new(Plan::draw(seed).mix, Rng::from_seed(seed));
        (0..n).map(|_| scripts.next()).collect()
    }

    #[test]
    fn scripts_are_a_function_of_the_seed() {
        assert_eq!(drawn(7, 50), drawn(7, 50));
        assert_ne!(drawn(7, 50), drawn(8, 50));
    }

    #[test]
    fn every_kind_of_step_is_drawn_and_stays_within_the_keys() {
        let keys = Plan::draw(3).mix.keys;
        let mut seen = [false; 10];
        for script in drawn(3, 2000) {
            let (Script::Write { steps, .. } | Script::Snapshot { steps, .. }) = script else { continue };
            for step in steps {
                let (kind, top) = match step {
                    Step::Get { index, .. } => (0, index),
                    Step::GetForUpdate { index, .. } => (1, index),
                    Step::Put { index, .. } => (2, index),
                    Step::Delete { index, .. } => (3, index),
                    Step::DeleteRange { from, to, .. } => (4, from.max(to - 1)),
                    Step::Scan { from, to, .. } => (5, from.max(to - 1)),
                    Step::Count { from, to, .. } => (6, from.max(to - 1)),
                    Step::Savepoint => (7, 0),
                    Step::RollbackTo => (8, 0),
                    Step::Pause(_) => (9, 0),
                };
                seen[kind] = true;
                assert!(top < keys, "{step:?} beyond {keys}");
            }
        }
        assert_eq!(seen, [true; 10]);
    }
}
