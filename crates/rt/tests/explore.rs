//! The lock algorithms explored: chaos switches inside their slow paths too, so a simulation runs through interleavings
//! of their atomic steps. A lost wake-up shows as a deadlock, broken exclusion as an assertion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use varve_rt::sim::{self, Config};
use varve_rt::{Condvar, Event, Mutex, RwLock, RwLockWriteGuard, rng, spawn, yield_now};

const SEEDS: u64 = 3_000;

/// Runs `threads` copies of `f` under many seeds.
fn explore(threads: usize, f: impl Fn(usize) + Clone + Send + Sync + 'static, reset: impl Fn()) {
    for seed in 0..SEEDS {
        reset();
        let f = f.clone();
        sim::run(Config { seed, chaos: true, ..Config::default() }, move || {
            let all: Vec<_> = (0..threads)
                .map(|i| {
                    let f = f.clone();
                    spawn(format!("explorer {i}"), move || f(i))
                })
                .collect();
            all.into_iter().for_each(|t| t.join().unwrap());
        })
        .unwrap();
    }
}

fn brief() -> Duration {
    Duration::from_nanos(rng().below(20_000))
}

/// Holders inside a critical section, exclusive ones in the upper half.
struct Inside(AtomicU64);
const EXCLUSIVE: u64 = 1 << 32;

impl Inside {
    fn exclusive(&self) {
        assert_eq!(self.0.fetch_add(EXCLUSIVE, SeqCst), 0, "not alone");
        yield_now();
        assert_eq!(self.0.fetch_sub(EXCLUSIVE, SeqCst), EXCLUSIVE, "not alone");
    }

    fn shared(&self) {
        assert!(self.0.fetch_add(1, SeqCst) < EXCLUSIVE, "with a writer");
        yield_now();
        assert!(self.0.fetch_sub(1, SeqCst) < EXCLUSIVE, "with a writer");
    }
}

#[test]
fn mutex_interleavings() {
    let lock = Arc::new(Mutex::new(()));
    let inside = Arc::new(Inside(AtomicU64::new(0)));
    let (l, i) = (lock.clone(), inside.clone());
    let turn = move |_| {
        for _ in 0..3 {
            let guard = match rng().below(4) {
                0 => l.try_lock(),
                1 => l.try_lock_for(brief()),
                _ => Some(l.lock()),
            };
            if let Some(guard) = guard {
                i.exclusive();
                if rng().one_in(4) {
                    varve_rt::MutexGuard::unlock_fair(guard);
                }
            }
        }
    };
    explore(4, turn, || assert!(!lock.is_locked()));
}

#[test]
fn rwlock_interleavings() {
    let lock = Arc::new(RwLock::new(()));
    let inside = Arc::new(Inside(AtomicU64::new(0)));
    let (l, i) = (lock.clone(), inside.clone());
    let turn = move |_| {
        for _ in 0..3 {
            match rng().below(8) {
                0 => drop(l.try_write().inspect(|_| i.exclusive())),
                1 => drop(l.try_read().inspect(|_| i.shared())),
                2 => drop(l.try_write_for(brief()).inspect(|_| i.exclusive())),
                3 => drop(l.try_read_for(brief()).inspect(|_| i.shared())),
                4 => {
                    let guard = l.write();
                    i.exclusive();
                    let guard = RwLockWriteGuard::downgrade(guard);
                    i.shared();
                    drop(guard);
                }
                5 => drop(Some(l.write()).inspect(|_| i.exclusive())),
                _ => drop(Some(l.read()).inspect(|_| i.shared())),
            }
        }
    };
    explore(5, turn, || assert!(!lock.is_locked()));
}

#[test]
fn event_interleavings() {
    let events = Arc::new([Event::new(), Event::new()]);
    let e = events.clone();
    let turn = move |i: usize| match i {
        0 => {
            yield_now();
            e[0].set();
        }
        1 => {
            e[0].wait();
            e[1].set();
        }
        _ => {
            if rng().one_in(2) {
                while e[1].wait_for(brief()) {}
            } else {
                e[1].wait();
            }
            assert!(e[0].is_set());
        }
    };
    explore(4, turn, || events.iter().for_each(Event::reset));
}

#[test]
fn condvar_interleavings() {
    let state = Arc::new((Mutex::new(0u64), Condvar::new()));
    let s = state.clone();
    let turn = move |i: usize| {
        for _ in 0..2 {
            let mut tokens = s.0.lock();
            if i.is_multiple_of(2) {
                *tokens += 1;
                drop(tokens);
                s.1.notify_one();
            } else {
                while *tokens == 0 {
                    if rng().one_in(3) {
                        s.1.wait_for(&mut tokens, brief());
                    } else {
                        s.1.wait(&mut tokens);
                    }
                }
                *tokens -= 1;
            }
        }
    };
    explore(4, turn, || assert_eq!(*state.0.lock(), 0));
}
