//! The raw locks on real OS threads: exclusion, no lost wake-ups, no starvation, under every way to take and leave
//! them at once. Simulations cannot show wrong memory orders; this can. A lost wake-up shows as a test that hangs.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use varve_rt::lock_api::{
    RawMutex as _, RawMutexFair as _, RawMutexTimed as _, RawRwLock as _, RawRwLockDowngrade as _, RawRwLockFair as _,
    RawRwLockTimed as _,
};
use varve_rt::{Condvar, Event, Mutex, RawMutex, RawRwLock, Rng, spawn};

const THREADS: u64 = 6;
const ROUNDS: u64 = if cfg!(miri) { 30 } else { 20_000 };

/// Plain memory that only a lock protects.
struct Guarded<L> {
    lock: L,
    words: UnsafeCell<[u64; 4]>,
    exclusive: AtomicU64,
}

// SAFETY: the words are touched under the lock only, which is what is tested.
unsafe impl<L: Sync> Sync for Guarded<L> {}

impl<L> Guarded<L> {
    fn new(lock: L) -> Arc<Guarded<L>> {
        Arc::new(Guarded { lock, words: UnsafeCell::new([0; 4]), exclusive: AtomicU64::new(0) })
    }

    /// One exclusive change, word by word.
    fn change(&self) {
        // SAFETY: the caller has exclusive access.
        let words = unsafe { &mut *self.words.get() };
        let before = words[0];
        for w in words.iter_mut() {
            assert_eq!(*w, before, "a torn write is visible");
            *w += 1;
        }
        self.exclusive.fetch_add(1, Relaxed);
    }

    /// All words agree.
    fn check(&self) {
        // SAFETY: the caller has shared access.
        let words = unsafe { *self.words.get() };
        assert!(words.iter().all(|w| *w == words[0]), "a torn write is visible: {words:?}");
    }

    fn end(&self) {
        // SAFETY: every other thread has been joined.
        let words = unsafe { *self.words.get() };
        assert_eq!(words, [self.exclusive.load(Relaxed); 4], "a change was lost");
    }
}

fn on_threads(f: impl Fn(u64, &mut Rng) + Send + Sync + 'static) {
    let f = Arc::new(f);
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let f = f.clone();
            spawn(format!("stress {i}"), move || {
                let mut rng = Rng::from_seed(i);
                (0..ROUNDS).for_each(|_| f(i, &mut rng));
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Holds a lock for nothing, a few pauses, or long enough for others to park.
fn linger(rng: &mut Rng) {
    match rng.below(64) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(60))),
        1..8 => (0..rng.below(100)).for_each(|_| std::hint::spin_loop()),
        8..12 => std::thread::yield_now(),
        _ => {}
    }
}

#[test]
fn raw_mutex() {
    let g = Guarded::new(RawMutex::INIT);
    let g2 = g.clone();
    on_threads(move |_, rng| {
        let taken = match rng.below(8) {
            0 => g2.lock.try_lock(),
            1 => g2.lock.try_lock_for(Duration::from_micros(rng.below(30))),
            _ => {
                g2.lock.lock();
                true
            }
        };
        if taken {
            g2.change();
            linger(rng);
            // SAFETY: taken above.
            unsafe { if rng.one_in(16) { g2.lock.unlock_fair() } else { g2.lock.unlock() } }
        }
    });
    g.end();
    assert!(!g.lock.is_locked());
    assert!(g.lock.try_lock());
}

#[test]
fn raw_rwlock() {
    let g = Guarded::new(RawRwLock::INIT);
    let g2 = g.clone();
    on_threads(move |_, rng| {
        let l = &g2.lock;
        let wait = Duration::from_micros(rng.below(30));
        if rng.below(3) == 0 {
            let taken = match rng.below(8) {
                0 => l.try_lock_exclusive(),
                1 => l.try_lock_exclusive_for(wait),
                _ => {
                    l.lock_exclusive();
                    true
                }
            };
            if taken {
                g2.change();
                linger(rng);
                // SAFETY: taken above.
                unsafe {
                    match rng.below(16) {
                        0 => {
                            l.downgrade();
                            g2.check();
                            linger(rng);
                            l.unlock_shared();
                        }
                        1 => l.unlock_exclusive_fair(),
                        _ => l.unlock_exclusive(),
                    }
                }
            }
        } else {
            let taken = match rng.below(8) {
                0 => l.try_lock_shared(),
                1 => l.try_lock_shared_for(wait),
                _ => {
                    l.lock_shared();
                    true
                }
            };
            if taken {
                g2.check();
                linger(rng);
                g2.check();
                // SAFETY: taken above.
                unsafe { if rng.one_in(16) { l.unlock_shared_fair() } else { l.unlock_shared() } }
            }
        }
    });
    g.end();
    assert!(!g.lock.is_locked());
    assert!(g.lock.try_lock_exclusive());
}

/// A token is handed round by notifications; each one counts.
#[test]
fn condvar_loses_no_notification() {
    let state = Arc::new((Mutex::new((0u64, 0u64)), Condvar::new()));
    let s = state.clone();
    on_threads(move |i, rng| {
        let mut g = s.0.lock();
        if i % 2 == 0 {
            g.0 += 1;
            drop(g);
            s.1.notify_one();
        } else {
            while g.0 == g.1 {
                if rng.one_in(4) {
                    s.1.wait_for(&mut g, Duration::from_millis(20));
                } else {
                    s.1.wait(&mut g);
                }
            }
            g.1 += 1;
        }
    });
    let g = state.0.lock();
    assert_eq!(*g, (ROUNDS * THREADS / 2, ROUNDS * THREADS / 2));
}

/// Events that live on a waiter's stack, set by another thread, as requests in flight are.
#[test]
fn events_are_seen_and_may_be_freed_at_once() {
    let (tx, rx) = varve_rt::channel::bounded::<Arc<Event>>(8);
    let setter = spawn("setter", move || rx.iter().for_each(|e| e.set()));
    on_threads(move |_, rng| {
        let e = Arc::new(Event::new());
        tx.send(e.clone()).unwrap();
        linger(rng);
        match rng.below(3) {
            0 => while e.wait_for(Duration::from_micros(5)) {},
            _ => e.wait(),
        }
        assert!(e.is_set());
    });
    setter.join().unwrap();
}

/// With the lock always wanted by others, everybody gets it in a bounded number of turns of everybody.
#[test]
fn nobody_starves() {
    let lock = Arc::new(RawRwLock::INIT);
    let stop = Arc::new(AtomicBool::new(false));
    let greedy: Vec<_> = (0..4)
        .map(|i| {
            let (lock, stop) = (lock.clone(), stop.clone());
            spawn(format!("greedy {i}"), move || {
                while !stop.load(Relaxed) {
                    // SAFETY: each taken just before.
                    unsafe {
                        if i % 2 == 0 {
                            lock.lock_shared();
                            lock.unlock_shared();
                        } else {
                            lock.lock_exclusive();
                            lock.unlock_exclusive();
                        }
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        // SAFETY: each taken just before. A starved writer or reader hangs here.
        unsafe {
            lock.lock_exclusive();
            lock.unlock_exclusive();
            lock.lock_shared();
            lock.unlock_shared();
        }
    }
    stop.store(true, Relaxed);
    greedy.into_iter().for_each(|t| t.join().unwrap());
}
