//! Charges by the table of a modelled host: they add up exactly, lengthen hold times, and repeat.

use std::sync::Arc;
use std::time::Duration;
use varve_rt::sim::{self, Config};
use varve_rt::{Cost, CpuCosts, Mutex, RwLock, charge, now, sleep, spawn};

const US: Duration = Duration::from_micros(1);

fn plain(seed: u64) -> Config {
    Config { seed, ..Config::default() }
}

/// Charges by the host's table add up exactly, fractions of a nanosecond included, and never wait by themselves.
#[test]
fn charges_by_the_table_add_up() {
    let mut costs = CpuCosts::default();
    costs.set_ns(Cost::PageAccess, 45.25);
    costs.set_ns(Cost::LogByte, 0.125);
    assert_eq!(costs.scaled(2.0).ns(Cost::LogByte), 0.25);
    let outcome = sim::run(Config { costs, ..plain(11) }, || {
        assert!(varve_rt::costs_modelled());
        let start = now();
        charge(Cost::NodeSearch, 1_000_000);
        assert_eq!(now(), start, "free work is free");
        for i in 1..=1000u64 {
            charge(Cost::PageAccess, 1);
            charge(Cost::LogByte, 3);
            assert_eq!((now() - start).as_nanos() as u64, (45_250 + 375) * i / 1000);
        }
        // A lock, a wait and a switch in between lose nothing.
        let m = Mutex::new(());
        let mut ps = 45_625_000u64;
        for i in 0..999u64 {
            charge(Cost::LogByte, i);
            ps += 125 * i;
            drop(m.lock());
            if i % 100 == 0 {
                let before = now();
                sleep(US);
                ps += 1_000_000;
                assert_eq!(now() - before, US);
            }
        }
        assert_eq!((now() - start).as_nanos() as u64, ps / 1000);
    });
    outcome.unwrap();
    charge(Cost::PageAccess, u64::MAX);
    assert!(!varve_rt::costs_modelled());
}

/// Two threads with equal charges take turns at a lock in equal runs: same seed, same hash.
#[test]
fn charges_are_deterministic() {
    let run = |seed| {
        let mut costs = CpuCosts::default();
        costs.set_ns(Cost::ListMove, 33.3);
        costs.set_ns(Cost::Park, 900.0);
        costs.set_ns(Cost::Unpark, 700.0);
        let config = Config { cores: 2, costs, lock_handoff: Duration::from_nanos(80), ..plain(seed) };
        sim::run(config, || {
            let m = Arc::new(Mutex::new(0));
            let t: Vec<_> = (0..5)
                .map(|i| {
                    let m = m.clone();
                    spawn(format!("taker {i}"), move || {
                        for n in 0..200 {
                            charge(Cost::ListMove, n % 7 + i);
                            let mut g = m.lock();
                            charge(Cost::ListMove, 2);
                            *g += 1;
                        }
                    })
                })
                .collect();
            t.into_iter().for_each(|t| t.join().unwrap());
        })
    };
    let (a, b) = (run(5), run(5));
    assert_eq!((a.hash, a.time), (b.hash, b.time));
    assert_ne!(run(6).hash, a.hash);
}

/// One lock that four threads want `held` out of `held + apart` of their time: virtual time passed, and switches.
fn one_lock(held: u64, apart: u64, slack: Duration) -> (u64, u64) {
    let mut costs = CpuCosts::default();
    costs.set_ns(Cost::ListMove, 1.0);
    let outcome = sim::run(Config { cores: 4, costs, slack, ..plain(3) }, move || {
        let m = Arc::new(Mutex::new(0));
        let t: Vec<_> = (0..4)
            .map(|i| {
                let m = m.clone();
                spawn(format!("taker {i}"), move || {
                    for _ in 0..2000 {
                        charge(Cost::ListMove, apart);
                        let mut g = m.lock();
                        charge(Cost::ListMove, held);
                        *g += 1;
                    }
                })
            })
            .collect();
        t.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*m.lock(), 8000);
    });
    let passed = (outcome.time.as_nanos() as u64, outcome.switches);
    outcome.unwrap();
    passed
}

/// With a slack, a lock that several threads want behaves as without.
#[test]
fn slack_is_exact_at_contested_locks() {
    for (held, apart) in [(200, 100), (100, 300), (70, 290), (50, 500), (20, 1000), (1, 9)] {
        let (strict, _) = one_lock(held, apart, Duration::ZERO);
        let (lax, _) = one_lock(held, apart, US);
        // It takes the first meeting to find out.
        let off = lax.abs_diff(strict);
        assert!(off <= strict / 50 + 1000, "held {held}, apart {apart}: {strict} ns strictly, {lax} ns with slack");
    }
}

/// With a slack, locks of one's own and shared access cost no switches.
#[test]
fn slack_saves_switches() {
    let run = |slack| {
        let mut costs = CpuCosts::default();
        costs.set_ns(Cost::NodeSearch, 100.0);
        let outcome = sim::run(Config { cores: 4, costs, slack, ..plain(9) }, || {
            let root = Arc::new(RwLock::new(()));
            let t: Vec<_> = (0..4)
                .map(|i| {
                    let root = root.clone();
                    spawn(format!("reader {i}"), move || {
                        let own = Mutex::new(0);
                        for _ in 0..1000 {
                            let g = root.read();
                            charge(Cost::NodeSearch, 1);
                            drop(g);
                            charge(Cost::NodeSearch, 1);
                            *own.lock() += 1;
                        }
                    })
                })
                .collect();
            t.into_iter().for_each(|t| t.join().unwrap());
        });
        assert_eq!(outcome.time, 200 * US);
        assert_eq!(outcome.cpu.units(Cost::NodeSearch), 8000);
        outcome.switches
    };
    let (strict, lax) = (run(Duration::ZERO), run(2 * US));
    assert!(lax * 5 < strict, "{strict} switches strictly, {lax} with slack");
}

/// A thread keeps its core while it does not wait: two threads on one core change places once per quantum, not at every
/// lock.
#[test]
fn a_core_is_kept_for_a_quantum() {
    let mut costs = CpuCosts::default();
    costs.set_ns(Cost::ListMove, 1000.0);
    let outcome = sim::run(Config { cores: 1, costs, quantum: 100 * US, ..plain(4) }, || {
        let turns = Arc::new(Mutex::new(Vec::new()));
        let t: Vec<_> = (0..2)
            .map(|i| {
                let turns = turns.clone();
                spawn(format!("worker {i}"), move || {
                    for _ in 0..1000 {
                        charge(Cost::ListMove, 1);
                        turns.lock().push(i);
                    }
                })
            })
            .collect();
        t.into_iter().for_each(|t| t.join().unwrap());
        let turns = turns.lock();
        turns.windows(2).filter(|w| w[0] != w[1]).count()
    });
    assert_eq!(outcome.time, 2000 * US);
    let changes = outcome.unwrap();
    assert!((15..=25).contains(&changes), "{changes} changes in twenty quanta");
}

/// A charge in a destructor neither waits nor unwinds, alive, dying of a power cut, or panicking.
#[test]
fn charges_in_destructors_do_not_wait() {
    struct Charges(Arc<Mutex<u64>>);
    impl Drop for Charges {
        fn drop(&mut self) {
            let before = now();
            charge(Cost::PageAccess, 1_000_000);
            assert!(varve_rt::dying() || (now() - before).as_nanos() == 1_000_000_000);
            *self.0.lock() += 1;
        }
    }
    for seed in 0..50 {
        let mut costs = CpuCosts::default();
        costs.set_ns(Cost::PageAccess, 1000.0);
        costs.set_ns(Cost::Park, 500.0);
        let config = Config { costs, cores: 2, slack: US, chaos: seed % 2 == 0, ..plain(seed) };
        let dropped = sim::run(config, || {
            let (dropped, lock) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0u64)));
            let domain = sim::Domain::new("machine");
            let t: Vec<_> = (0..5)
                .map(|i| {
                    let (dropped, lock) = (dropped.clone(), lock.clone());
                    domain.spawn(format!("worker {i}"), move || {
                        let _charges = Charges(dropped);
                        loop {
                            charge(Cost::PageAccess, 1);
                            *lock.lock() += 1;
                            if i == 4 && *lock.lock() > 12 {
                                return;
                            }
                            sleep(US);
                        }
                    })
                })
                .collect();
            sleep(20 * US);
            domain.power_cut();
            t.into_iter().for_each(|t| drop(t.join()));
            *dropped.lock()
        });
        assert_eq!(dropped.unwrap(), 5, "seed {seed}");
    }
}

/// Time on cores is counted for all threads, and a wait for a lock is booked to the line that asked for it.
#[test]
fn core_time_and_lock_waits_are_told() {
    assert_eq!((sim::core_time(), sim::lock_waits()), (None, Vec::new()));
    let config = Config { cores: 2, ..plain(3) };
    let (busy, waits) = sim::run(config, || {
        let m = Arc::new(Mutex::new(()));
        let other = {
            let m = m.clone();
            spawn("holder", move || {
                let _held = m.lock();
                varve_rt::compute(100 * US);
                sleep(50 * US);
            })
        };
        sleep(10 * US);
        drop(m.lock());
        varve_rt::compute(30 * US);
        sleep(US);
        other.join().unwrap();
        (sim::core_time().unwrap(), sim::lock_waits())
    })
    .unwrap();
    assert_eq!(busy, 130 * US);
    let [wait] = &waits[..] else { panic!("one wait: {waits:?}") };
    assert!(wait.place.contains("charges.rs:") && wait.kind == "mutex", "{wait:?}");
    assert_eq!((wait.waits, wait.ns), (1, 140_000));
}

/// What a lock guards follows it when another core changed it, and when it is taken to be changed while others have
/// read it; reading what is not changed moves the word alone.
#[test]
fn data_follows_a_lock_when_it_was_changed() {
    let config = Config { cores: 2, lock_handoff: US, lock_data: 10 * US, ..plain(9) };
    let outcome = sim::run(config, || {
        let l = Arc::new(RwLock::new(()));
        // Both on cores of their own first; then one action after the other: (time, exclusive).
        let actors = [vec![(100, true), (300, false), (500, true), (600, true)], vec![(200, false), (400, false)]];
        let threads = actors.map(|actions| {
            let l = l.clone();
            spawn("actor", move || {
                varve_rt::compute(10 * US);
                let start = now();
                for (at, exclusive) in actions {
                    let until = start + at * US;
                    sleep(until - now());
                    if exclusive { drop(l.write()) } else { drop(l.read()) }
                }
            })
        });
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    // First to change: free. Read elsewhere: 11. Read twice more: 1 + 1. Changed again: 11, and once more: 0.
    assert_eq!(outcome.cpu.handoff_ns, 24_000);
    outcome.unwrap();
}
