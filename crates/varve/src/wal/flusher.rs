//! The flusher: a daemon that writes out what nobody waits for.
//!
//! It keeps the promise of `async` commits (durable within a bounded delay), tells those who listen for a place to be
//! durable (`listeners`), has the ring grown before it is full (`growth`), and drains the buffer when a good part of it
//! is filled. It holds the log weakly, so a log that is dropped without being stopped ends its flusher.
//!
//! Invariants: `wanted` only rises, and is raised before `due` is set; `due` is 0 or lies at most the delay ahead, and
//! who finds it 0 sets it and wakes the daemon; it is told of every listener that is due.

use super::log::Log;
use crate::error::Result;
use crate::role::{self, Role};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{Health, Place};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Event, Instant, JoinHandle, now};
use varve_volume::Lsn;

/// What the daemon and the log share.
pub(super) struct Flusher {
    wake: Event,
    stop: AtomicBool,
    /// When the oldest asked-for flush is due, nanoseconds; 0 for none.
    due: AtomicU64,
    /// The newest LSN asked for.
    wanted: AtomicU64,
}

impl Flusher {
    pub fn new() -> Arc<Flusher> {
        let (due, wanted) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Flusher { wake: Event::new(), stop: AtomicBool::new(false), due, wanted })
    }

    /// Asks for everything below `lsn` to be durable `delay` from now. The flush begins at half of that, so the promise
    /// holds as long as the device needs no more than the other half for it, and for the write that may be under way
    /// before it.
    pub fn ask(&self, lsn: Lsn, delay: Duration) {
        self.wanted.fetch_max(lsn, Ordering::SeqCst);
        if self.due.load(Ordering::SeqCst) == 0 {
            let due = (now() + delay / 2).as_nanos().max(1);
            if self.due.compare_exchange(0, due, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                self.wake.set();
            }
        }
    }

    /// Asks for everything below `lsn` to be durable as soon as can be.
    pub fn hurry(&self, lsn: Lsn) {
        self.wanted.fetch_max(lsn, Ordering::SeqCst);
        // A moment that has passed.
        self.due.store(1, Ordering::SeqCst);
        self.wake.set();
    }

    /// Tells that the buffer fills up, or that there is somebody to be told.
    pub fn nudge(&self) {
        self.wake.set();
    }

    /// Ends the daemon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.set();
    }

    /// Starts the daemon.
    pub fn start(self: &Arc<Self>, log: Weak<Log>, health: &Arc<Health>) -> Result<JoinHandle<()>> {
        let flusher = self.clone();
        self.stop.store(false, Ordering::Release);
        let life = move || {
            role::set(Role::Log);
            flusher.run(&log)
        };
        Ok(health.spawn("log-flusher", life)?)
    }

    fn run(&self, log: &Weak<Log>) {
        while !self.stop.load(Ordering::Acquire) && !varve_rt::dying() {
            self.wake.reset();
            let due = self.due.load(Ordering::Acquire);
            let Some(log) = log.upgrade() else { return };
            log.faults().pass(Place::Flusher);
            log.tell_listeners(false);
            log.grow_ahead();
            log.drain(log.pressure());
            let time = Instant::from_nanos(due);
            if due != 0 && now() >= time {
                // After this, an asker who does not see it cleared has raised `wanted` before we read it.
                self.due.store(0, Ordering::SeqCst);
                // A failure poisons the log, which tells everyone.
                let wanted = self.wanted.load(Ordering::SeqCst);
                assert!(wanted > 0, "what is wanted is said before when it is due");
                let _ = log.wait_durable(wanted);
                continue;
            }
            drop(log);
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            if due == 0 {
                self.wake.wait();
            } else {
                self.wake.wait_for(time - now());
            }
        }
        if let Some(log) = log.upgrade() {
            log.tell_listeners(true);
        }
    }
}
