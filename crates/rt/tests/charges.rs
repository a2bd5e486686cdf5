//! Charges by the table of a modelled host: they add up exactly, lengthen hold times, and repeat.

use std::sync::Arc;
use std::time::Duration;
use varve_rt::sim::{self, Config};
use varve_rt::{Cost, CpuCosts, Mutex, charge, now, sleep, spawn};

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
        assert!(sim::costs_modelled());
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
    assert!(!sim::costs_modelled());
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
