//! The simulated world: the shared cases under many seeds, and what only a simulation has (virtual time, modelled
//! cores, deadlock reports, chaos, power cuts).

mod cases;

use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicU64, Ordering::*};
use varve_rt::sim::{self, Config, Domain, Failure};
use varve_rt::{Condvar, Event, Mutex, RwLock, channel, compute, now, sleep, spawn, spawn_daemon, yield_now};

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

fn plain(seed: u64) -> Config {
    Config { seed, ..Config::default() }
}

fn chaotic(seed: u64) -> Config {
    Config { seed, chaos: true, ..Config::default() }
}

macro_rules! sims {
    ($($name:ident),* $(,)?) => { $(
        #[test]
        fn $name() {
            for seed in 0..4 {
                sim::run(plain(seed), cases::$name).unwrap();
                sim::run(chaotic(seed), cases::$name).unwrap();
            }
        }
    )* };
}

sims!(
    mutex_excludes,
    rwlock_excludes,
    rwlock_writer_is_not_starved,
    rwlock_downgrade,
    try_and_timed_locks,
    condvar_passes_turns,
    condvar_times_out,
    event_releases_all,
    channel_keeps_order,
    channel_bounds,
    channel_disconnects,
    local_is_per_thread,
    inside_is_per_thread,
    join_reports_panics,
    sleep_takes_time,
    parking_by_address,
);

/// Hours pass in no time, and exactly.
#[test]
fn virtual_clock_jumps() {
    let outcome = sim::run(plain(1), || {
        let t: Vec<_> = (1..=3u64)
            .map(|i| {
                spawn(format!("sleeper {i}"), move || {
                    for _ in 0..10 {
                        sleep(Duration::from_secs(360 * i));
                    }
                    now().as_nanos()
                })
            })
            .collect();
        t.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(outcome.time, Duration::from_secs(3 * 3600));
    assert_eq!(outcome.unwrap(), [3_600_000_000_000, 7_200_000_000_000, 10_800_000_000_000]);
}

/// Six threads of 10 ms on n cores take 60 / n ms; charges show in `now` before they are settled.
#[test]
fn compute_queues_for_cores() {
    for (cores, ms) in [(1, 60), (2, 30), (3, 20), (6, 10), (64, 10)] {
        let outcome = sim::run(Config { cores, ..plain(cores as u64) }, || {
            let start = now();
            compute(Duration::ZERO);
            assert_eq!(now(), start);
            let t: Vec<_> = (0..6)
                .map(|i| {
                    spawn(format!("worker {i}"), || {
                        for _ in 0..100 {
                            let before = now();
                            compute(100 * US);
                            assert!(now() - before >= 100 * US);
                        }
                    })
                })
                .collect();
            for t in t {
                t.join().unwrap();
            }
        });
        assert_eq!(outcome.time, ms * MS, "{cores} cores");
        outcome.unwrap();
    }
}

/// CPU time spent under a lock delays those who wait for it: the charge is settled before the unlock.
#[test]
fn charges_count_into_hold_times() {
    let outcome = sim::run(plain(3), || {
        let m = Arc::new(Mutex::new(()));
        let t: Vec<_> = (0..4)
            .map(|i| {
                let m = m.clone();
                spawn(format!("holder {i}"), move || {
                    let _g = m.lock();
                    compute(MS);
                })
            })
            .collect();
        for t in t {
            t.join().unwrap();
        }
    });
    assert_eq!(outcome.time, 4 * MS);
    outcome.unwrap();
}

/// Moving a lock's word between cores costs the configured time; staying on a core costs nothing.
#[test]
fn lock_handoff_is_charged() {
    let run = |threads: usize, handoff: Duration| {
        let config = Config { lock_handoff: handoff, ..plain(5) };
        sim::run(config, move || {
            let m = Arc::new(Mutex::new(0));
            let t: Vec<_> = (0..threads)
                .map(|i| {
                    let m = m.clone();
                    spawn(format!("taker {i}"), move || {
                        for _ in 0..100 {
                            compute(US);
                            *m.lock() += 1;
                        }
                    })
                })
                .collect();
            for t in t {
                t.join().unwrap();
            }
        })
        .time
    };
    assert_eq!(run(1, 10 * US), 100 * US);
    let free = run(4, Duration::ZERO);
    let costly = run(4, 10 * US);
    assert_eq!(free, 100 * US);
    assert!(costly > 1000 * US && costly <= 4100 * US, "{costly:?}");
}

/// Two threads that lock in opposite order are found, with names, even while a daemon ticks.
#[test]
fn deadlock_is_reported() {
    let outcome = sim::run(plain(7), || {
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        sim::name(&*a, "table A");
        sim::name(&*b, "table B");
        spawn_daemon("ticker", || {
            loop {
                sleep(Duration::from_secs(1));
            }
        });
        let (a2, b2) = (a.clone(), b.clone());
        let t = spawn("other", move || {
            let _b = b2.lock();
            sleep(MS);
            let _a = a2.lock();
        });
        let _a = a.lock();
        sleep(MS);
        let _b = b.lock();
        drop(_b);
        let _ = t.join();
    });
    let failure = outcome.result.unwrap_err();
    let text = failure.to_string();
    let Failure::Deadlock(report) = failure else { panic!("{text}") };
    let find = |name: &str| report.waiting.iter().find(|w| w.thread == name).unwrap_or_else(|| panic!("{text}"));
    assert!(find("main").what.contains("table B"), "{text}");
    assert_eq!(find("main").holder.as_deref(), Some("other"), "{text}");
    assert!(find("main").place.contains("simulation.rs"), "{text}");
    assert!(find("other").what.contains("table A"), "{text}");
    assert_eq!(find("other").holder.as_deref(), Some("main"), "{text}");
    assert!(find("ticker").daemon);
}

/// A daemon that works on behalf of others is progress, however long it sleeps in between.
#[test]
fn a_helpful_daemon_is_no_deadlock() {
    let outcome = sim::run(plain(8), || {
        let e = Arc::new(Event::new());
        let e2 = e.clone();
        spawn_daemon("late flusher", move || {
            sleep(Duration::from_secs(30));
            e2.set();
        });
        e.wait();
    });
    assert_eq!(outcome.time, Duration::from_secs(30));
    outcome.unwrap();
}

/// Nobody left at all is reported at once; a limit on virtual time is kept.
#[test]
fn stuck_and_late_runs_fail() {
    let outcome = sim::run(plain(9), || Event::new().wait());
    assert!(matches!(outcome.result, Err(Failure::Deadlock(_))));
    let config = Config { limit: Some(Duration::from_secs(5)), ..plain(9) };
    let outcome = sim::run(config, || {
        loop {
            sleep(MS);
        }
    });
    assert!(matches!(outcome.result, Err::<(), _>(Failure::TimeLimit(_))));
    assert!(outcome.time <= Duration::from_secs(5));
}

/// A lost update, through atomics with a gap, is found by chaos, and not without.
#[test]
fn chaos_finds_a_lost_update() {
    let lossy = || {
        let n = Arc::new(AtomicU64::new(0));
        let t: Vec<_> = (0..2)
            .map(|i| {
                let n = n.clone();
                spawn(format!("adder {i}"), move || {
                    for _ in 0..5 {
                        let seen = n.load(Acquire);
                        n.store(seen + 1, Release);
                    }
                })
            })
            .collect();
        for t in t {
            t.join().unwrap();
        }
        n.load(Acquire)
    };
    let lost =
        |chaos: bool| (0..50).filter(|&seed| sim::run(Config { chaos, ..plain(seed) }, lossy).unwrap() < 10).count();
    assert_eq!(lost(false), 0);
    assert!(lost(true) >= 5, "chaos found {} lost updates in 50 seeds", lost(true));
}

/// A panic that nobody joined fails the run; a joined one is the joiner's business.
#[test]
fn panics_are_not_lost() {
    let doomed = || std::panic::resume_unwind(Box::new("broken"));
    let outcome = sim::run(plain(11), move || {
        drop(spawn("doomed", move || -> () { doomed() }));
        sleep(MS);
    });
    match outcome.result {
        Err(Failure::Panic(p)) => assert_eq!((p.thread.as_str(), p.message.as_str()), ("doomed", "broken")),
        other => panic!("{other:?}"),
    }
    sim::run(plain(11), move || {
        assert!(spawn("doomed", move || -> () { doomed() }).join().is_err());
    })
    .unwrap();
    let outcome = sim::run(plain(11), || -> () { panic!("with a place") });
    match outcome.result {
        Err(Failure::Panic(p)) => {
            assert!(p.message.starts_with("with a place, at ") && p.message.contains("simulation.rs:"), "{p}")
        }
        other => panic!("{other:?}"),
    }
    let outcome = sim::run(plain(11), move || -> () { doomed() });
    assert!(matches!(outcome.result, Err(Failure::Panic(p)) if p.thread == "main"));
}

#[test]
fn panics_that_were_meant_are_excused_and_others_are_not() {
    let run = |message: &'static str| {
        sim::run(plain(11), move || {
            drop(spawn("doomed", move || -> () { std::panic::resume_unwind(Box::new(message)) }));
            sleep(MS);
            sim::excuse_panics(|panicked| panicked.message == "meant")
        })
    };
    assert_eq!(run("meant").unwrap(), 1);
    assert!(matches!(run("broken").result, Err(Failure::Panic(p)) if p.message == "broken"));
}

struct Tally(Arc<AtomicU64>, Arc<Mutex<u64>>);
impl Drop for Tally {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        // Granted, whoever holds it.
        *self.1.lock() += 1;
    }
}

/// A cut ends every thread of the domain wherever it waits, runs its destructors, and leaves the others alone; locks
/// shared with the outside stay consistent.
#[test]
fn power_cut_unwinds_everything() {
    for seed in 0..100 {
        let config = Config { cores: 2, ..if seed % 2 == 0 { plain(seed) } else { chaotic(seed) } };
        sim::run(config, move || power_cut_case(seed)).unwrap();
    }
}

fn power_cut_case(seed: u64) {
    let domain = Domain::new("victim");
    let dropped = Arc::new(AtomicU64::new(0));
    let shared = Arc::new(Mutex::new(0u64));
    let latch = Arc::new(RwLock::new(0u64));
    let blocked = Arc::new((Mutex::new(()), Condvar::new()));
    let tally = || Tally(dropped.clone(), shared.clone());
    let mut handles = Vec::new();
    let mut start = |name: &str, f: Box<dyn FnOnce() + Send>| {
        let t = tally();
        handles.push(domain.spawn(name, move || {
            let _t = t;
            f();
        }));
    };
    let b = blocked.clone();
    start("on a condition", Box::new(move || b.1.wait(&mut b.0.lock())));
    let b = blocked.clone();
    start("on a timed condition", Box::new(move || while !b.1.wait_for(&mut b.0.lock(), 10_000 * MS) {}));
    start("asleep", Box::new(|| sleep(Duration::from_secs(1000))));
    start("on an event", Box::new(|| Event::new().wait()));
    let (tx, rx) = channel::bounded::<u32>(1);
    let tx2 = tx.clone();
    start(
        "receiving",
        Box::new(move || {
            while rx.recv().is_ok() {
                sleep(MS)
            }
        }),
    );
    start("sending", Box::new(move || while tx2.send(1).is_ok() {}));
    for i in 0..3 {
        let (m, l) = (shared.clone(), latch.clone());
        start(
            ["busy 0", "busy 1", "busy 2"][i],
            Box::new(move || {
                loop {
                    let mut g = m.lock();
                    compute(10 * US);
                    *g += 1;
                    drop(g);
                    *l.write() += 1;
                    let r = l.read();
                    compute(US);
                    yield_now();
                    drop(r);
                }
            }),
        );
    }
    start(
        "parent",
        Box::new(|| {
            let child = spawn("child", || sleep(Duration::from_secs(1000)));
            let _ = child.join();
        }),
    );
    let outside = {
        let (m, l) = (shared.clone(), latch.clone());
        spawn("outside", move || {
            for _ in 0..50 {
                let mut g = m.lock();
                let seen = *g;
                sleep(10 * US);
                *g = seen + 1;
                drop(g);
                *l.write() += 1;
            }
        })
    };
    sleep(Duration::from_micros(200 + seed * 37 % 5_000));
    domain.power_cut();
    assert_eq!(dropped.load(SeqCst), 10);
    assert!(domain.is_dead());
    for h in handles {
        assert!(h.is_finished());
        // One that was switched away from, rather than waiting, may get to its end first.
        assert!(h.join().err().is_none_or(|p| p.power_cut));
    }
    // The outside goes on, and the locks work.
    outside.join().unwrap();
    *shared.lock() += 1;
    *latch.write() += 1;
    drop(tx);
    let late = tally();
    assert!(domain.spawn("too late", move || drop(late)).join().unwrap_err().power_cut);
    assert_eq!(dropped.load(SeqCst), 11);
    // A new domain is alive.
    assert_eq!(Domain::new("reborn").spawn("alive", || 5).join().unwrap(), 5);
}

/// What is left when the main thread returns is unwound too.
#[test]
fn the_end_unwinds_the_rest() {
    let dropped = Arc::new(AtomicU64::new(0));
    let shared = Arc::new(Mutex::new(0));
    let (d, s) = (dropped.clone(), shared.clone());
    sim::run(plain(12), move || {
        for i in 0..5 {
            let t = Tally(d.clone(), s.clone());
            spawn(format!("left {i}"), move || {
                let _t = t;
                Event::new().wait();
            });
        }
        sleep(MS);
        let t = Tally(d.clone(), s.clone());
        drop(spawn("never begun", move || drop(t)));
    })
    .unwrap();
    assert_eq!(dropped.load(SeqCst), 6);
    assert_eq!(*shared.lock(), 6, "and the lock works outside the simulation");
}

/// Locks that were used on OS threads before work, contended, inside a simulation, and afterwards outside again.
#[test]
fn locks_move_between_worlds() {
    let m = Arc::new(Mutex::new(0u64));
    let l = Arc::new(RwLock::new(0u64));
    for round in 0..3u64 {
        *m.lock() += 1;
        *l.write() += 1;
        let (m2, l2) = (m.clone(), l.clone());
        sim::run(if round == 1 { chaotic(round) } else { plain(round) }, move || {
            let t: Vec<_> = (0..4)
                .map(|i| {
                    let (m, l) = (m2.clone(), l2.clone());
                    spawn(format!("mover {i}"), move || {
                        for _ in 0..20 {
                            let mut g = m.lock();
                            let seen = *g;
                            sleep(US);
                            *g = seen + 1;
                            drop(g);
                            let r = l.read();
                            sleep(US);
                            drop(r);
                            let mut g = l.write();
                            let seen = *g;
                            sleep(US);
                            *g = seen + 1;
                        }
                    })
                })
                .collect();
            t.into_iter().for_each(|t| t.join().unwrap());
        })
        .unwrap();
        assert_eq!((*m.lock(), *l.read()), (81 * (round + 1), 81 * (round + 1)));
    }
}

/// Simulations on several OS threads of one process do not disturb each other.
#[test]
fn simulations_run_in_parallel() {
    let alone: Vec<u64> = (0..8).map(|seed| busy(seed, true).hash).collect();
    let threads: Vec<_> = (0..8).map(|seed| spawn(format!("lab {seed}"), move || busy(seed, true).hash)).collect();
    let together: Vec<u64> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(alone, together);
}

/// A run that uses about everything.
fn busy(seed: u64, chaos: bool) -> sim::Outcome<u64> {
    sim::run(Config { seed, chaos, cores: 3, lock_handoff: US, ..Config::default() }, || {
        let state = Arc::new((Mutex::new(0u64), Condvar::new(), RwLock::new(0u64), AtomicU64::new(0)));
        let (tx, rx) = channel::bounded(3);
        let threads: Vec<_> = (0..6u64)
            .map(|i| {
                let (state, tx) = (state.clone(), tx.clone());
                spawn(format!("worker {i}"), move || {
                    let mut rng = varve_rt::rng();
                    for k in 0..40 {
                        compute(Duration::from_nanos(rng.below(3_000)));
                        *state.2.write() += k;
                        let mut g = state.0.lock();
                        *g += 1;
                        state.1.notify_all();
                        if rng.one_in(3) {
                            state.1.wait_for(&mut g, Duration::from_nanos(rng.below(50_000)));
                        }
                        drop(g);
                        state.3.fetch_add(*state.2.read(), Relaxed);
                        tx.send(rng.next_u64()).unwrap();
                        if rng.one_in(5) {
                            sleep(Duration::from_nanos(rng.below(20_000)));
                        }
                    }
                })
            })
            .collect();
        drop(tx);
        let mut sum = 0u64;
        for x in rx.iter() {
            sum = sum.wrapping_mul(31).wrapping_add(x);
            sim::note(x);
        }
        for t in threads {
            t.join().unwrap();
        }
        sum
    })
}

/// Each seed gives the same hash in another process, in another order; different seeds give different ones.
#[test]
fn seeds_repeat_in_two_processes() {
    let seeds: Vec<(u64, bool)> = (0..40).flat_map(|s| [(s, false), (s, true)]).collect();
    let line = |(seed, chaos)| {
        let o = busy(seed, chaos);
        format!("hash {seed} {chaos} {:016x} {} {:?}", o.hash, o.switches, o.time)
    };
    if std::env::var_os("VARVE_RT_CHILD").is_some() {
        for &s in seeds.iter().rev() {
            println!("\n{}", line(s));
        }
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let out = std::process::Command::new(exe)
        .args(["--exact", "seeds_repeat_in_two_processes", "--nocapture"])
        .env("VARVE_RT_CHILD", "1")
        .output()
        .unwrap();
    assert!(out.status.success());
    let text = String::from_utf8(out.stdout).unwrap();
    let mut theirs: Vec<&str> = text.lines().filter(|l| l.starts_with("hash ")).collect();
    theirs.reverse();
    let ours: Vec<String> = seeds.iter().map(|&s| line(s)).collect();
    assert_eq!(ours, theirs);
    let mut distinct: Vec<&str> = ours.iter().map(|l| l.split(' ').nth(3).unwrap()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), seeds.len());
}

/// An overflow names the simulated thread and the seed, and does not corrupt anything.
#[test]
fn stack_overflow_is_reported() {
    fn deep(n: u64) -> u64 {
        let x = std::hint::black_box([n; 64]);
        if n == u64::MAX { 0 } else { deep(n + 1) + x[3] }
    }
    if std::env::var_os("VARVE_RT_CHILD").is_some() {
        sim::run(plain(4711), || spawn("too deep", || deep(0)).join()).unwrap().unwrap();
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let out = std::process::Command::new(exe)
        .args(["--exact", "stack_overflow_is_reported", "--nocapture"])
        .env("VARVE_RT_CHILD", "1")
        .output()
        .unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("stack overflow in simulated thread 'too deep', seed 4711"), "{text}");
}
