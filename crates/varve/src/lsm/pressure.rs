//! Back-pressure of a keyspace: what is known of its merges, and how long writers wait.
//!
//! Two things are held: the *debt*, in seconds of merging ([`super::debt`]), and level 0, whose segments, with what is
//! in memory counted by its share of a memtable, must stay below the stop. The nearer one decides.
//!
//! Writers have turns: each takes as much time as its bytes are to take, after the one before, so that many writers
//! together are as slow as one.
//!
//! Invariants: nobody waits while no level is over its limit and level 0 is below its trigger; a turn ends after the
//! one before. Lock order: `state` is a leaf.

use super::debt::{Average, Limits, Load};
use super::options::Pressure as How;
use super::picker::Leveled;
use super::stats::LsmStats;
use super::{LsmOptions, Version};
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Instant, Mutex, now, sleep};

/// Debt at which writers begin to wait, and the one that is not passed, in seconds of merging.
const DEBT: Limits = Limits { start: 1.0, limit: 10.0 };

/// Where between its trigger (0) and its stop (1) level 0 begins to hold writers up. Merges that take more of its
/// segments at once write less; the nearer to the stop, the more suddenly writers are held up (measured: docs/lsm.md).
const LEVEL_0: f64 = 0.5;

/// Seconds of work, or of time, after which half of what was known of rates is forgotten.
const HALF_LIFE: f64 = 10.0;

/// A writer whose turn is this near does not wait: a shorter sleep costs more than it is worth.
const NEAR: Duration = Duration::from_micros(200);

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
}

/// The back-pressure of a keyspace.
#[derive(Default)]
pub(super) struct BackPressure {
    state: Mutex<State>,
    /// Whether anybody may have to wait.
    pressing: AtomicBool,
    /// When the last turn ends, in nanoseconds of the clock.
    turn: AtomicU64,
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

    /// A memtable was flushed; bytes that users have written, and merges read and written, until now.
    pub fn flushed(&self, user: u64, merge: u64) {
        let (mut state, at) = (self.state.lock(), now());
        if let Some((before, user_before, merge_before)) = state.flushed.replace((at, user, merge)) {
            let (seconds, bytes) = ((at - before).as_secs_f64(), (user - user_before) as f64);
            if seconds > 0.0 && bytes > 0.0 {
                state.user_rate.add(bytes / seconds, seconds, HALF_LIFE);
                state.per_byte.add((merge - merge_before) as f64 / bytes, seconds, HALF_LIFE);
            }
        }
    }

    /// Waits as a writer of so many bytes has to, and says how long it was.
    /// `memory`: memtables, as a share of one.
    pub fn wait(
        &self,
        options: impl FnOnce() -> LsmOptions,
        memory: impl FnOnce() -> f64,
        bytes: impl FnOnce() -> u64,
    ) -> Duration {
        if !self.pressing.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let (at, options) = (now(), &options());
        let until = match options.pressure {
            How::Smooth => {
                let memory = memory();
                let per_byte = self.state.lock().held(options, memory).per_byte;
                if per_byte.is_zero() {
                    return Duration::ZERO;
                }
                self.turn(at, per_byte.mul_f64(bytes() as f64))
            }
            How::Steps => {
                if self.state.lock().level_0 < options.l0_slowdown.into() {
                    return Duration::ZERO;
                }
                at + STEP
            }
        };
        if until - at < NEAR {
            return Duration::ZERO;
        }
        sleep(until - at);
        now() - at
    }

    /// The end of the turn of a writer that takes so long.
    fn turn(&self, at: Instant, takes: Duration) -> Instant {
        let takes = takes.as_nanos() as u64;
        let mut end = 0;
        let _ = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            end = before.max(at.as_nanos()) + takes;
            Some(end)
        });
        Instant::from_nanos(end)
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
