//! Cases that must hold in both worlds.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use varve_rt::channel::{self, RecvTimeoutError, TryRecvError, TrySendError};
use varve_rt::{
    Condvar, Event, Inside, Local, Mutex, RwLock, RwLockWriteGuard, catch_panic, now, parking, sleep, spawn, yield_now,
};

const MS: Duration = Duration::from_millis(1);

fn all<T>(handles: Vec<varve_rt::JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().expect("thread")).collect()
}

/// A counter under a mutex, changed in two steps, loses nothing.
pub fn mutex_excludes() {
    let m = Arc::new(Mutex::new((0u64, 0u64)));
    let threads = (0..4).map(|i| {
        let m = m.clone();
        spawn(format!("adder {i}"), move || {
            for k in 0..2_000 {
                let mut g = m.lock();
                let seen = g.0;
                if k % 64 == 0 {
                    yield_now();
                }
                g.0 = seen + 1;
                g.1 += 1;
            }
        })
    });
    all(threads.collect());
    assert_eq!(*m.lock(), (8_000, 8_000));
}

/// Readers never see a half-done write; writers lose nothing.
pub fn rwlock_excludes() {
    let l = Arc::new(RwLock::new((0u64, 0u64)));
    let writers = (0..2).map(|i| {
        let l = l.clone();
        spawn(format!("writer {i}"), move || {
            for k in 0..1_000 {
                let mut g = l.write();
                g.0 += 1;
                if k % 32 == 0 {
                    yield_now();
                }
                g.1 += 1;
            }
        })
    });
    let readers = (0..3).map(|i| {
        let l = l.clone();
        spawn(format!("reader {i}"), move || {
            for k in 0..1_000 {
                let g = l.read();
                let a = g.0;
                if k % 32 == 0 {
                    yield_now();
                }
                assert_eq!((a, a), *g);
            }
        })
    });
    all(writers.chain(readers).collect());
    assert_eq!(*l.read(), (2_000, 2_000));
}

/// With readers always overlapping, a writer still gets in.
pub fn rwlock_writer_is_not_starved() {
    let l = Arc::new(RwLock::new(0u64));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|i| {
            let (l, stop) = (l.clone(), stop.clone());
            spawn(format!("reader {i}"), move || {
                while !stop.load(Acquire) {
                    let g = l.read();
                    yield_now();
                    drop(g);
                }
            })
        })
        .collect();
    for _ in 0..50 {
        *l.write() += 1;
        yield_now();
    }
    stop.store(true, Release);
    all(readers);
    assert_eq!(*l.read(), 50);
}

/// A downgraded writer lets readers in and keeps writers out.
pub fn rwlock_downgrade() {
    let l = Arc::new(RwLock::new(0));
    let mut g = l.write();
    *g = 1;
    let l2 = l.clone();
    let reader = spawn("reader", move || *l2.read());
    yield_now();
    let g = RwLockWriteGuard::downgrade(g);
    assert_eq!(reader.join().unwrap(), 1);
    assert!(l.try_write().is_none());
    drop(g);
    assert!(l.try_write().is_some());
}

/// `try` never waits and says the truth; timed attempts give up, and leave the lock usable.
pub fn try_and_timed_locks() {
    let m = Arc::new(Mutex::new(0));
    let l = Arc::new(RwLock::new(0));
    {
        let _m = m.lock();
        let _l = l.read();
        assert!(m.try_lock().is_none());
        assert!(l.try_write().is_none());
        assert!(l.try_read().is_some());
        let (m2, l2) = (m.clone(), l.clone());
        let t = spawn("timed", move || {
            let start = now();
            assert!(m2.try_lock_for(3 * MS).is_none());
            assert!(l2.try_write_for(3 * MS).is_none());
            assert!(start.elapsed() >= 6 * MS);
            assert!(l2.try_read_for(3 * MS).is_some());
        });
        t.join().unwrap();
    }
    assert!(m.try_lock().is_some());
    assert!(l.try_write().is_some());
    assert!(m.try_lock_for(MS).is_some());
    assert!(l.try_write_for(MS).is_some());
}

/// Threads pass a turn around under a condition.
pub fn condvar_passes_turns() {
    let state = Arc::new((Mutex::new(0usize), Condvar::new()));
    let threads = (0..3usize).map(|i| {
        let state = state.clone();
        spawn(format!("player {i}"), move || {
            for _ in 0..100 {
                let mut turn = state.0.lock();
                state.1.wait_while(&mut turn, |t| *t % 3 != i);
                *turn += 1;
                drop(turn);
                state.1.notify_all();
            }
        })
    });
    all(threads.collect());
    assert_eq!(*state.0.lock(), 300);
}

/// A wait ends at its deadline with the mutex held, and a notification ends it earlier.
pub fn condvar_times_out() {
    let state = Arc::new((Mutex::new(false), Condvar::new()));
    let mut g = state.0.lock();
    let start = now();
    assert!(state.1.wait_for(&mut g, 5 * MS));
    assert!(start.elapsed() >= 5 * MS);
    assert!(state.0.try_lock().is_none(), "the mutex is held again");
    let other = state.clone();
    let t = spawn("notifier", move || {
        *other.0.lock() = true;
        other.1.notify_one();
    });
    let mut timed_out = false;
    while !*g && !timed_out {
        timed_out = state.1.wait_for(&mut g, Duration::from_secs(100));
    }
    assert!(*g);
    drop(g);
    t.join().unwrap();
}

/// One `set` releases everyone; waiting on a set event does not wait; timeouts are reported.
pub fn event_releases_all() {
    let e = Arc::new(Event::new());
    assert!(e.wait_for(MS), "nobody sets it");
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let e = e.clone();
            spawn(format!("waiter {i}"), move || e.wait())
        })
        .collect();
    sleep(MS);
    e.set();
    all(threads);
    assert!(e.is_set());
    e.wait();
    assert!(!e.wait_for(MS));
    e.reset();
    assert!(!e.is_set());
    assert!(e.wait_for(MS));
}

/// Values of one sender arrive in order; each value arrives once.
pub fn channel_keeps_order() {
    let (tx, rx) = channel::bounded::<(usize, u64)>(4);
    let senders: Vec<_> = (0..3usize)
        .map(|i| {
            let tx = tx.clone();
            spawn(format!("sender {i}"), move || {
                for k in 0..500 {
                    tx.send((i, k)).unwrap();
                }
            })
        })
        .collect();
    drop(tx);
    let mut next = [0u64; 3];
    for (i, k) in rx.iter() {
        assert_eq!(k, next[i]);
        next[i] += 1;
    }
    all(senders);
    assert_eq!(next, [500; 3]);
}

/// A full channel refuses or delays; an empty one times out.
pub fn channel_bounds() {
    let (tx, rx) = channel::bounded(1);
    assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(rx.recv_timeout(2 * MS), Err(RecvTimeoutError::Timeout));
    tx.send(1).unwrap();
    assert_eq!(tx.try_send(2), Err(TrySendError::Full(2)));
    let t = spawn("sender", move || tx.send(3));
    assert_eq!(rx.recv(), Ok(1));
    assert_eq!(rx.recv(), Ok(3));
    t.join().unwrap().unwrap();
}

/// Each side learns that the other is gone, also when it is already waiting.
pub fn channel_disconnects() {
    let (tx, rx) = channel::unbounded::<u32>();
    tx.send(1).unwrap();
    let t = spawn("receiver", move || (rx.recv(), rx.recv()));
    sleep(MS);
    drop(tx);
    assert_eq!(t.join().unwrap(), (Ok(1), Err(channel::RecvError)));
    let (tx, rx) = channel::bounded::<u32>(1);
    tx.send(1).unwrap();
    let t = spawn("sender", move || tx.send(2).is_err());
    sleep(MS);
    drop(rx);
    assert!(t.join().unwrap());
}

static DROPS: AtomicUsize = AtomicUsize::new(0);
struct Counted(Cell<u64>);
impl Drop for Counted {
    fn drop(&mut self) {
        DROPS.fetch_add(1, SeqCst);
    }
}

/// Every thread has its own value, dropped when the thread ends.
pub fn local_is_per_thread() {
    static VALUE: Local<Counted> = Local::new(|| Counted(Cell::new(7)));
    static OTHER: Local<Cell<u64>> = Local::new(|| Cell::new(100));
    let before = DROPS.load(SeqCst);
    let threads = (0..3u64).map(|i| {
        spawn(format!("local {i}"), move || {
            for _ in 0..10 {
                VALUE.with(|v| {
                    OTHER.with(|o| o.set(o.get() + 1));
                    let seen = v.0.get();
                    yield_now();
                    v.0.set(seen + i);
                });
            }
            VALUE.with(|v| v.0.get()) * 1000 + OTHER.with(Cell::get)
        })
    });
    assert_eq!(all(threads.collect()), vec![7_110, 17_110, 27_110]);
    assert_eq!(DROPS.load(SeqCst), before + 3);
}

/// A thread is inside of what it has entered and not left, by a panic too, and no other thread is.
pub fn inside_is_per_thread() {
    let (one, two, three) = (2, 4, 6);
    let inside = move || [one, two, three].map(Inside::of);
    let threads = (0..3u64).map(|i| {
        spawn(format!("inside {i}"), move || {
            let outer = (i > 0).then(|| Inside::enter(one));
            sleep(MS);
            assert_eq!(inside(), [i > 0, false, false]);
            let panicked = catch_panic(|| {
                let _same = Inside::enter(one);
                let _inner = Inside::enter(two);
                sleep(MS);
                // Inside of two, it is taken to be inside of all.
                assert_eq!(inside(), [true; 3]);
                panic!("on purpose");
            });
            assert!(panicked.is_err());
            sleep(MS);
            assert_eq!(inside(), [i > 0, false, false]);
            drop(outer);
            assert_eq!(inside(), [false; 3]);
            i
        })
    });
    assert_eq!(all(threads.collect()), vec![0, 1, 2]);
    assert_eq!(inside(), [false; 3]);
}

/// A panic is the joiner's error, with name and message.
pub fn join_reports_panics() {
    let t = spawn("doomed", || {
        if now().as_nanos() < u64::MAX {
            std::panic::resume_unwind(Box::new("out of luck".to_string()));
        }
        5
    });
    let e = t.join().unwrap_err();
    assert_eq!((e.thread.as_str(), e.message.as_str(), e.power_cut), ("doomed", "out of luck", false));
}

/// The clock moves by at least the time slept.
pub fn sleep_takes_time() {
    let start = now();
    sleep(3 * MS);
    assert!(start.elapsed() >= 3 * MS);
    assert!(now() > start);
}

/// Waiting on a bare address: nothing is lost between the check and the wait.
pub fn parking_by_address() {
    let word = Arc::new(AtomicU64::new(0));
    let key = Arc::as_ptr(&word) as usize;
    let waiter = {
        let word = word.clone();
        spawn("waiter", move || {
            for round in 1..=100u64 {
                while word.load(Acquire) < round {
                    // Not through `word` inside: the check must not be a chaos point.
                    parking::park(key, "the next round", None, || word.load(Acquire) < round);
                }
                yield_now();
            }
        })
    };
    for _ in 0..100 {
        word.fetch_add(1, AcqRel);
        parking::unpark_all(key);
        yield_now();
    }
    waiter.join().unwrap();
    let end = now() + MS;
    assert_eq!(parking::park(key, "nothing", Some(end), || true), parking::Wake::TimedOut);
    assert_eq!(parking::park(key, "nothing", Some(end), || false), parking::Wake::Invalid);
}
