//! Modelled hosts: each computes on its own cores by its own table, and its use is told by itself.

use std::sync::Arc;
use std::time::Duration;
use varve_rt::sim::{self, Config, Domain, Host, HostConfig};
use varve_rt::{Cost, CpuCosts, Mutex, charge, compute, now, sleep, spawn};

const US: Duration = Duration::from_micros(1);

fn plain(seed: u64) -> Config {
    Config { seed, cores: 1, ..Config::default() }
}

fn near(cores: usize, costs: CpuCosts) -> HostConfig {
    HostConfig { name: "near".into(), cores, costs, lock_handoff: Duration::ZERO, lock_data: Duration::ZERO }
}

/// A table with one cost, ns.
fn one(cost: Cost, ns: f64) -> CpuCosts {
    let mut costs = CpuCosts::default();
    costs.set_ns(cost, ns);
    costs
}

/// Two threads share one core, and two hosts with one core each compute side by side.
#[test]
fn hosts_compute_side_by_side() {
    let run = |apart: bool| {
        let outcome = sim::run(plain(1), move || {
            let other = Host::new(near(1, CpuCosts::default()));
            let work = || (0..10).for_each(|_| compute(100 * US));
            let far = if apart { other.spawn("far", work) } else { spawn("here", work) };
            work();
            far.join().unwrap();
        });
        let told: Vec<_> = outcome.hosts.iter().map(|h| (h.name.clone(), h.cpu.core_ns / 1000)).collect();
        assert_eq!(outcome.cpu.core_ns, 2_000_000, "the use of all hosts adds up");
        (outcome.time, told)
    };
    let host = |a, b| vec![("host".to_string(), a), ("near".to_string(), b)];
    assert_eq!(run(false), (2000 * US, host(2000, 0)));
    assert_eq!(run(true), (1000 * US, host(1000, 1000)));
}

/// The same charge takes longer by the table of a slow host, and none where there is no table.
#[test]
fn a_slow_host_takes_longer() {
    let outcome = sim::run(Config { costs: one(Cost::MergePair, 100.0), ..plain(2) }, || {
        let slow = Host::new(near(1, one(Cost::MergePair, 250.0)));
        let free = Host::new(near(1, CpuCosts::default()));
        let took = || {
            let began = now();
            charge(Cost::MergePair, 1000);
            sim::settle();
            now() - began
        };
        assert_eq!(took(), 100 * US);
        assert_eq!(slow.spawn("slow", took).join().unwrap(), 250 * US);
        assert_eq!(free.spawn("free", took).join().unwrap(), Duration::ZERO);
        assert!(!free.spawn("asks", varve_rt::costs_modelled).join().unwrap() && varve_rt::costs_modelled());
        let used = |host: &Host| (host.core_time(), host.cpu().units(Cost::MergePair));
        assert_eq!((used(&slow), used(&free)), ((250 * US, 1000), (Duration::ZERO, 0)));
        assert_eq!(sim::core_time(), Some(100 * US));
    });
    assert_eq!(outcome.cpu.units(Cost::MergePair), 2000);
    outcome.unwrap();
}

/// Threads inherit the host of who starts them, through a domain that was put on a host too.
#[test]
fn threads_inherit_their_host() {
    sim::run(plain(3), || {
        let here = Host::current().unwrap();
        let there = Host::new(near(2, CpuCosts::default()));
        assert_eq!((here.name(), there.name(), there.cores()), ("host".into(), "near".into(), 2));
        let grandchild = || spawn("grandchild", Host::current).join().unwrap().unwrap();
        assert_eq!(there.spawn("child", grandchild).join().unwrap(), there);
        assert_eq!(spawn("child", grandchild).join().unwrap(), here);
        let domain = Domain::new("machine");
        assert_eq!(domain.on(&there).spawn("child", grandchild).join().unwrap(), there);
        assert_eq!(domain.spawn("child", grandchild).join().unwrap(), here);
        // It is the same domain: a cut ends threads on both.
        let mut waiting = [&domain, &domain.on(&there)].map(|d| Some(d.spawn("waits", || sleep(1000 * US))));
        sleep(US);
        domain.power_cut();
        assert!(waiting.iter_mut().all(|t| t.take().unwrap().join().unwrap_err().power_cut));
        compute(US);
    })
    .unwrap();
    assert_eq!(Host::current(), None);
}

/// A lock's word costs something to move between cores of one host, and nothing between hosts.
#[test]
fn locks_move_for_nothing_between_hosts() {
    let run = |apart: bool| {
        let costly = Config { cores: 2, lock_handoff: 10 * US, lock_data: 10 * US, ..plain(4) };
        let outcome = sim::run(costly.clone(), move || {
            let there = Host::new(HostConfig { name: "near".into(), ..costly.host() });
            let lock = Arc::new(Mutex::new(0));
            let taker = |lock: Arc<Mutex<u32>>| {
                move || {
                    for _ in 0..100 {
                        compute(US);
                        *lock.lock() += 1;
                    }
                }
            };
            let a = spawn("a", taker(lock.clone()));
            let b = if apart { there.spawn("b", taker(lock.clone())) } else { spawn("b", taker(lock.clone())) };
            a.join().unwrap();
            b.join().unwrap();
            assert_eq!(*lock.lock(), 200);
        });
        outcome.hosts.iter().map(|h| h.cpu.handoff_ns).sum::<u64>()
    };
    assert!(run(false) > 20_000, "{}", run(false));
    // The thread that looks at the end is on another core than the taker of its host.
    assert!(run(true) <= 20_000, "{}", run(true));
}

/// Waits for locks are booked to the host of who waits.
#[test]
fn lock_waits_are_told_by_host() {
    sim::run(plain(5), || {
        let there = Host::new(near(1, CpuCosts::default()));
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock();
        let waiter = there.spawn("waits", {
            let lock = lock.clone();
            move || drop(lock.lock())
        });
        sleep(30 * US);
        drop(held);
        waiter.join().unwrap();
        let waits = there.lock_waits();
        assert_eq!(waits.iter().map(|w| (w.waits, w.ns)).collect::<Vec<_>>(), [(1, 30_000)]);
        assert_eq!(sim::lock_waits(), []);
    })
    .unwrap();
}
