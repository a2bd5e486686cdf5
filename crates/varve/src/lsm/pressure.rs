//! Back-pressure of a keyspace: what is known of its merges, and how long writers wait.
//!
//! Two things are held: the *debt*, in seconds of merging ([`super::debt`]), and level 0, whose segments, with what is
//! in memory counted by its share of a memtable, must stay below the stop. The nearer one decides.
//!
//! Writers stand in a line of bytes, which is let in at the rate of the moment: many writers together are as slow as
//! one. Who stands there looks again and again, since the rate that was right when it came may be far from right soon.
//!
//! Invariants: nobody waits for longer than a [`LOOK`] while no level is over its limit and level 0 is below its
//! trigger; writers are let in as they came. Lock order: `state` is a leaf.

use super::debt::{Average, Limits, Load};
use super::options::Pressure as How;
use super::picker::Leveled;
use super::stats::LsmStats;
use super::{LsmOptions, Version};
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Instant, Mutex, now, sleep};

/// Debt at which writers begin to wait, and the one that is not passed, in seconds of merging.
const DEBT: Limits = Limits { start: 1.0, limit: 10.0 };
const _: () = assert!(DEBT.start < DEBT.limit, "writers are slowed before they are held");

/// Where between its trigger (0) and its stop (1) level 0 begins to hold writers up. Merges that take more of its
/// segments at once write less; the nearer to the stop, the more suddenly writers are held up (measured: docs/lsm.md).
const LEVEL_0: f64 = 0.5;

/// Seconds of work, or of time, after which half of what was known of rates is forgotten.
const HALF_LIFE: f64 = 10.0;

/// A writer whose turn is this near does not wait: a shorter sleep costs more than it is worth.
const NEAR: Duration = Duration::from_micros(200);

/// A writer that waits looks this often whether it still has to, and for how long.
const LOOK: Duration = Duration::from_millis(20);

/// More memtables than this are not in memory.
const MEMTABLES: usize = 2;

/// LevelDB's delay of a write.
const STEP: Duration = Duration::from_millis(1);

#[derive(Default)]
struct State {
    /// Bytes per second that merges read and write.
    merge_rate: Average,
    /// Bytes that merges read and write for each byte that users write.
    per_byte: Average,
    /// Bytes per second that users write.
    user_rate: Average,
    /// When the last memtable was flushed, and the bytes of users and of merges by then.
    flushed: Option<(Instant, u64, u64)>,
    debt_bytes: f64,
    level_0: usize,
    line: Line,
}

/// The bytes of the writers that wait, in the order in which they came.
#[derive(Default)]
struct Line {
    /// Where the line ends: all bytes that ever came.
    end: f64,
    /// How many of them were let in, at the time `at`.
    let_in: f64,
    at: Instant,
}

impl Line {
    /// Lets in what there was time for since the last look, if a byte takes so long. Time in which nobody stood here is
    /// no credit.
    fn move_on(&mut self, at: Instant, per_byte: Duration) {
        debug_assert!(!per_byte.is_zero(), "somebody has to wait");
        let passed = (at - self.at).as_secs_f64() / per_byte.as_secs_f64();
        self.let_in = (self.let_in + passed).min(self.end);
        self.at = at;
    }

    /// A writer comes; returns where its bytes end.
    fn join(&mut self, bytes: u64) -> f64 {
        self.end += bytes as f64;
        self.end
    }

    /// How long until what ends there is let in, if a byte goes on to take so long.
    fn left(&self, until: f64, per_byte: Duration) -> Duration {
        debug_assert!(self.let_in <= self.end, "nobody is let in who did not come");
        Duration::from_secs_f64((until - self.let_in).max(0.0) * per_byte.as_secs_f64())
    }

    /// Nobody has to wait any more.
    fn let_all_in(&mut self) {
        self.let_in = self.end;
    }
}

/// The back-pressure of a keyspace.
#[derive(Default)]
pub(super) struct BackPressure {
    state: Mutex<State>,
    /// Whether anybody may have to wait.
    pressing: AtomicBool,
}

/// What holds writers up now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// 0: nothing; 1: as far as planned.
    pub pressure: f64,
    /// Time that a byte takes.
    pub per_byte: Duration,
}

impl State {
    fn load(&self) -> Load {
        Load {
            debt_bytes: self.debt_bytes,
            merge_rate: self.merge_rate.get().unwrap_or(0.0),
            // Before it was measured: each byte is merged once and what it meets with it.
            per_byte: self.per_byte.get().unwrap_or(4.0),
        }
    }

    /// `memory`: memtables, as a share of one.
    fn held(&self, options: &LsmOptions, memory: f64) -> Held {
        let load = self.load();
        let (trigger, stop) = (f64::from(options.l0_trigger), f64::from(options.l0_stop));
        // What is in memory will be a segment: one that is half full counts as half.
        let begin = trigger + LEVEL_0 * (stop - trigger);
        let level_0 = (self.level_0 as f64 + memory.min(MEMTABLES as f64) - begin) / (stop - begin).max(1.0);
        let pressure = DEBT.pressure(&load).max(level_0).max(0.0);
        Held { pressure, per_byte: super::debt::delay(pressure, &load) }
    }
}

/// Sleeps, and says how long it was.
fn sleep_for(time: Duration) -> Duration {
    let from = now();
    sleep(time);
    now() - from
}

impl BackPressure {
    /// The list of segments has changed.
    pub fn changed(&self, shape: &Leveled, version: &Version) {
        let mut state = self.state.lock();
        state.debt_bytes = shape.debt(version) as f64;
        state.level_0 = version.level(0).len();
        let pressing = state.level_0 + MEMTABLES > shape.trigger || DEBT.pressure(&state.load()) > 0.0;
        self.pressing.store(pressing, Ordering::Relaxed);
    }

    /// A merge read and wrote so many bytes in this time.
    pub fn merged(&self, bytes: u64, time: Duration) {
        let seconds = time.as_secs_f64();
        if seconds > 0.0 {
            self.state.lock().merge_rate.add(bytes as f64 / seconds, seconds, HALF_LIFE);
        }
    }

    /// A memtable was flushed; bytes that users have written, and merges read and written, until now. What merges did
    /// beyond `most` for each byte of users, they did for bytes that came before.
    pub fn flushed(&self, (user, merge): (u64, u64), most: f64) {
        let (mut state, at) = (self.state.lock(), now());
        if let Some((before, user_before, merge_before)) = state.flushed.replace((at, user, merge)) {
            let (seconds, bytes) = ((at - before).as_secs_f64(), (user - user_before) as f64);
            if seconds > 0.0 && bytes > 0.0 {
                state.user_rate.add(bytes / seconds, seconds, HALF_LIFE);
                let per_byte = (merge - merge_before) as f64 / bytes;
                state.per_byte.add(per_byte.min(most), seconds, HALF_LIFE);
            }
        }
    }

    /// Waits as a writer of so many bytes has to, and says how long it was. It ends when `merges` says that there are
    /// none any more. `memory`: memtables, as a share of one.
    pub fn wait(
        &self,
        options: impl FnOnce() -> LsmOptions,
        memory: impl Fn() -> f64,
        bytes: impl FnOnce() -> u64,
        merges: impl Fn() -> bool,
    ) -> Duration {
        if !self.pressing.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let options = &options();
        match options.pressure {
            How::Smooth => self.stand_in_line(options, memory, bytes, merges),
            How::Steps if self.state.lock().level_0 >= options.l0_slowdown.into() => sleep_for(STEP),
            How::Steps => Duration::ZERO,
        }
    }

    fn stand_in_line(
        &self,
        options: &LsmOptions,
        memory: impl Fn() -> f64,
        bytes: impl FnOnce() -> u64,
        merges: impl Fn() -> bool,
    ) -> Duration {
        let (mut until, mut waited) = (0.0, Duration::ZERO);
        // Counted by who stands in the line, not by all who look whether there is one.
        let mut bytes = Some(bytes);
        loop {
            let memory = memory();
            let left = {
                let mut state = self.state.lock();
                let per_byte = state.held(options, memory).per_byte;
                let line = &mut state.line;
                if per_byte.is_zero() {
                    line.let_all_in();
                    return waited;
                }
                line.move_on(now(), per_byte);
                if let Some(bytes) = bytes.take() {
                    until = line.join(bytes());
                }
                line.left(until, per_byte)
            };
            if left < NEAR || !merges() {
                return waited;
            }
            waited += sleep_for(left.min(LOOK));
        }
    }

    /// Fills in what the figures say of it.
    pub fn tell(&self, options: &LsmOptions, memory: f64, stats: &mut LsmStats) {
        let state = self.state.lock();
        let load = state.load();
        stats.debt_seconds = state.merge_rate.get().map(|_| load.seconds());
        stats.pressure = state.held(options, memory).pressure;
        stats.seconds_to_limit = state.user_rate.get().and_then(|rate| DEBT.time_left(&load, rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A merge that took very long, and much before it: a byte takes a second.
    fn pressing() -> BackPressure {
        let pressure = BackPressure::default();
        pressure.merged(1, Duration::from_secs(1000));
        pressure.state.lock().debt_bytes = 1e9;
        pressure.pressing.store(true, Ordering::Relaxed);
        pressure
    }

    fn writes(pressure: &BackPressure, bytes: u64) -> Duration {
        pressure.wait(LsmOptions::default, || 0.0, || bytes, || true)
    }

    #[test]
    fn writers_are_let_in_one_after_the_other_at_the_rate_of_the_moment() {
        varve_rt::sim::run(varve_rt::sim::Config::default(), || {
            let pressure = Arc::new(pressing());
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let pressure = pressure.clone();
                    varve_rt::spawn("writer", move || writes(&pressure, 10))
                })
                .collect();
            let mut waited: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap().as_secs()).collect();
            waited.sort();
            assert_eq!(waited, [10, 20, 30], "as slow as one writer");
            sleep(Duration::from_secs(100));
            assert_eq!(writes(&pressure, 10).as_secs(), 10, "time in which nobody wrote is no credit");
        })
        .unwrap();
    }

    #[test]
    fn who_waits_is_let_in_when_the_pressure_goes() {
        varve_rt::sim::run(varve_rt::sim::Config::default(), || {
            let pressure = Arc::new(pressing());
            let waiting = pressure.clone();
            let writer = varve_rt::spawn("writer", move || writes(&waiting, 3600));
            sleep(Duration::from_secs(5));
            pressure.state.lock().debt_bytes = 0.0;
            let waited = writer.join().unwrap();
            assert!(waited >= Duration::from_secs(5) && waited <= Duration::from_secs(5) + LOOK, "{waited:?}");
            pressure.state.lock().debt_bytes = 1e9;
            assert_eq!(writes(&pressure, 2).as_secs(), 2, "nobody waits for those who are gone");
        })
        .unwrap();
    }

    #[test]
    fn merges_of_what_came_before_do_not_count_for_the_few_bytes_that_come_now() {
        varve_rt::sim::run(varve_rt::sim::Config::default(), || {
            let pressure = BackPressure::default();
            pressure.flushed((0, 0), 100.0);
            sleep(Duration::from_secs(1));
            pressure.flushed((10, 1 << 20), 100.0);
            assert_eq!(pressure.state.lock().load().per_byte, 100.0);
            sleep(Duration::from_secs(1));
            pressure.flushed((20, (1 << 20) + 500), 100.0);
            assert!((50.0..100.0).contains(&pressure.state.lock().load().per_byte));
        })
        .unwrap();
    }

    #[test]
    fn who_does_not_wait_counts_no_bytes() {
        varve_rt::sim::run(varve_rt::sim::Config::default(), || {
            let pressure = pressing();
            pressure.state.lock().debt_bytes = 0.0;
            let counted = || -> u64 { panic!("nobody asked") };
            assert_eq!(pressure.wait(LsmOptions::default, || 0.0, counted, || true), Duration::ZERO);
            let steps = || LsmOptions { pressure: How::Steps, ..LsmOptions::default() };
            assert_eq!(pressure.wait(steps, || 0.0, counted, || true), Duration::ZERO);
        })
        .unwrap();
    }

    #[test]
    fn who_waits_is_let_in_when_there_are_no_merges_any_more() {
        varve_rt::sim::run(varve_rt::sim::Config::default(), || {
            let waited = pressing().wait(LsmOptions::default, || 0.0, || 1000, || now() < Instant::from_nanos(1 << 30));
            assert!(waited <= Duration::from_secs(2), "{waited:?}");
        })
        .unwrap();
    }
}
