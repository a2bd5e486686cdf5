//! The buffer pool in the simulation, with chaos, over a store that asserts its contract: no deadlock, no lost change,
//! the log before the page, no eviction of what is in use, errors that stay where they belong, power cuts.
//!
//! `POOL_SEED=n` runs one seed; `POOL_SEEDS=n` sets how many run; `POOL_VICTIM=name` fixes the victim strategy.

use crate::pool_support::store::{CheckedStore, Shared};
use crate::pool_support::{Gate, change, format, value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use varve::Error;
use varve::buffer::{LogGate, Pool, PoolConfig, PoolStats, ReadAhead, cleaner, policy, victim};
use varve_device::Mistake;
use varve_rt::atomic::Ordering::*;
use varve_rt::sim::{self, Config, Domain};
use varve_rt::{Mutex, Rng, sleep, spawn};
use varve_volume::{KeyspaceId, PageId, PageStore, TestStore, WriteWhy, page};

fn seeds(default: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect("a number"));
    match number("POOL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("POOL_SEEDS").unwrap_or(default)).collect(),
    }
}

fn simulate<T>(seed: u64, main: impl FnOnce() -> T) -> (T, u64) {
    let config = Config { seed, chaos: true, limit: Some(Duration::from_secs(600)), ..Config::default() };
    let outcome = sim::run(config, main);
    let hash = outcome.hash;
    (outcome.unwrap(), hash)
}

/// A small pool of random shape.
fn config(rng: &mut Rng) -> PoolConfig {
    let mut config = PoolConfig::new(4096, 24 + rng.below(40) as usize);
    config.noted_changes = [0, 4, 16, 52][rng.below(4) as usize];
    config.instances = 1 + rng.below(3) as usize;
    config.replacement = policy::REGISTRY[rng.below(policy::REGISTRY.len() as u64) as usize].name;
    config.policy.midpoint.old_min = 8;
    config.policy.midpoint.tolerance = 1;
    config.policy.midpoint.old_time = 1_000_000;
    config.cleaner.kind = cleaner::REGISTRY[rng.below(cleaner::REGISTRY.len() as u64) as usize].name;
    config.victim = match std::env::var("POOL_VICTIM") {
        Ok(name) => victim::find(&name).expect("a victim strategy").name,
        Err(_) => victim::REGISTRY[rng.below(victim::REGISTRY.len() as u64) as usize].name,
    };
    if victim::find(config.victim).expect("registered").needs.cleaner && config.cleaner.kind == "off" {
        config.cleaner.kind = "fixed56";
    }
    config.cleaner.threads = 1 + rng.below(3) as usize;
    config.cleaner.wake_low = rng.below(4) > 0;
    config.cleaner.reset_on_clean = rng.below(3) == 0;
    config.cleaner.by_class = rng.below(2) == 0;
    config.cleaner.parallel = rng.below(2) == 0;
    config.cleaner.scan_depth = 1 + rng.below(12) as usize;
    config.cleaner.interval = Duration::from_millis(1 + rng.below(20));
    config.cleaner.free_target = 1 + rng.below(5) as usize;
    config.cleaner.free_low = rng.below(config.cleaner.free_target as u64 + 1) as usize;
    config.write_batch = 1 + rng.below(8) as usize;
    config.staging_pages = 1 + rng.below(12) as usize;
    config.read_ahead =
        ReadAhead { linear_threshold: 3 * rng.below(2) as u32, window: 6, batch: 4, ..config.read_ahead };
    config
}

const PAGES: u64 = 160;
/// Pages from here on are created and discarded; each worker has its own.
const VOLATILE: u64 = 120;

struct World {
    pool: Arc<Pool>,
    /// Asserts the contract of the volume crate, over `store`, which asserts ours.
    checked: Arc<TestStore>,
    store: Arc<CheckedStore>,
    gate: Arc<Gate>,
    /// Sum of all changes of the pages below `VOLATILE`.
    changes: Mutex<u64>,
}

fn world(seed: u64) -> Arc<World> {
    world_of(config(&mut Rng::from_seed(seed)), seed)
}

fn world_of(config: PoolConfig, seed: u64) -> Arc<World> {
    let gate = Gate::new();
    let store = CheckedStore::new(PAGES, &gate, seed);
    let checked = TestStore::over(Arc::new(Shared(store.clone())));
    let pool = Pool::new(config, checked.clone(), gate.clone()).unwrap();
    Arc::new(World { pool, checked, store, gate, changes: Mutex::new(0) })
}

fn work(w: &World, worker: u64, seed: u64, steps: u64) {
    let mut rng = Rng::from_seed(seed * 1000 + worker);
    let World { pool, gate, .. } = w;
    let mut mine: [Option<u64>; 10] = [None; 10];
    for _ in 0..steps {
        let p = if rng.below(3) > 0 { rng.below(12) } else { rng.below(VOLATILE) };
        match rng.below(16) {
            0..5 => {
                change(pool, gate, p, |v| v + 1).unwrap();
                *w.changes.lock() += 1;
            }
            5..9 => {
                value(pool.read(PageId(p)).unwrap().bytes());
            }
            9 => pool.prefetch(&[PageId(p), PageId((p + 1) % VOLATILE), PageId((p + 2) % VOLATILE)]),
            10 => {
                // A latch held for a while, then a pin.
                let pin = {
                    let page = pool.read(PageId(p)).unwrap();
                    let before = value(page.bytes());
                    sleep(Duration::from_micros(rng.below(300)));
                    assert_eq!(value(page.bytes()), before, "changed under a shared latch");
                    page.pin()
                };
                sleep(Duration::from_micros(rng.below(300)));
                assert_eq!(pin.read().id(), PageId(p));
                assert!(pool.read_resident(PageId(p)).is_some(), "a pinned page was evicted");
            }
            11 => {
                // A second page latched while one is held, in order.
                let a = pool.load(PageId(p)).unwrap();
                let b = pool.load(PageId((p + 1).min(VOLATILE - 1))).unwrap();
                let first = a.write();
                if b.id() != a.id() {
                    assert!(value(b.read().bytes()) < u64::MAX);
                }
                drop(b);
                // One that is looked up: while it is waited for, its frame may become that of a page below, which
                // somebody holds who waits for ours.
                for q in p + 1..(p + 4).min(VOLATILE) {
                    if let Some(page) = pool.read_resident(PageId(q)) {
                        value(page.bytes());
                    }
                }
                drop(first);
            }
            12 => {
                let t = gate.end();
                let why = if rng.below(2) == 0 { WriteWhy::Checkpoint } else { WriteWhy::Recoverability };
                pool.flush_older_than(t, why).unwrap();
            }
            _ => volatile(w, &mut rng, worker, &mut mine),
        }
    }
}

/// Creates, checks, changes or discards one of the worker's own pages.
fn volatile(w: &World, rng: &mut Rng, worker: u64, mine: &mut [Option<u64>; 10]) {
    let at = rng.below(10);
    let p = VOLATILE + worker * 10 + at;
    let expected = &mut mine[at as usize];
    match (*expected, rng.below(3)) {
        (None, 0) => drop(w.pool.create(PageId(p), KeyspaceId(9)).unwrap()),
        (None, _) => {
            let v = rng.below(1 << 40);
            format(&w.pool, &w.gate, p, v);
            *expected = Some(v);
        }
        (Some(_), 0) => {
            w.pool.discard(PageId(p));
            // Linear read-ahead guesses, and may read what is free; and a page never stored need not be discarded
            // there.
            if w.pool.config().read_ahead.linear_threshold == 0 && w.store.stored(PageId(p)).is_some() {
                w.checked.discard(&[PageId(p)]).unwrap();
            }
            *expected = None;
        }
        (Some(v), 1) => {
            change(&w.pool, &w.gate, p, |old| old ^ 1).unwrap();
            *expected = Some(v ^ 1);
        }
        (Some(v), _) => assert_eq!(value(w.pool.read(PageId(p)).unwrap().bytes()), v, "page {p}"),
    }
}

fn run_workers(w: &Arc<World>, seed: u64, steps: u64) {
    let workers: Vec<_> = (0..4)
        .map(|i| {
            let w = w.clone();
            spawn(format!("worker-{i}"), move || work(&w, i, seed, steps))
        })
        .collect();
    workers.into_iter().for_each(|t| t.join().unwrap());
}

fn scenario(seed: u64) -> PoolStats {
    let w = world(seed);
    w.pool.start().unwrap();
    (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
    run_workers(&w, seed, 150);
    ended(&w)
}

/// The same while the pool becomes smaller and larger all the time.
fn scenario_of_sizes(seed: u64) -> PoolStats {
    let mut rng = Rng::from_seed(seed);
    let mut config = config(&mut rng);
    config.frames = 96 + rng.below(64) as usize;
    let w = world_of(config, seed);
    w.pool.start().unwrap();
    (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
    let done = Arc::new(AtomicBool::new(false));
    let resizer = spawn("resizer", {
        let (w, done) = (w.clone(), done.clone());
        move || {
            let (least, most) = (w.pool.least_frames() as u64, w.pool.config().frames as u64);
            while !done.load(SeqCst) {
                let frames = least + rng.below(most - least + 1);
                w.pool.resize(frames as usize).unwrap();
                assert_eq!(w.pool.stats().frames, frames);
                sleep(Duration::from_micros(rng.below(2_000)));
            }
            w.pool.resize(least as usize).unwrap();
        }
    });
    run_workers(&w, seed, 150);
    done.store(true, SeqCst);
    resizer.join().unwrap();
    ended(&w)
}

/// Nothing is lost, in memory or in the store.
fn ended(w: &World) -> PoolStats {
    w.pool.stop();
    w.pool.check_quiescent();
    w.checked.assert_idle();
    let sum: u64 = (0..VOLATILE).map(|p| value(w.pool.read(PageId(p)).unwrap().bytes())).sum();
    assert_eq!(sum, *w.changes.lock(), "no change is lost in memory");
    w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap();
    let stored: u64 = (0..VOLATILE).map(|p| value(&w.store.stored(PageId(p)).expect("stored"))).sum();
    assert_eq!(stored, sum, "no change is lost in the store");
    w.pool.check_quiescent();
    w.pool.stats()
}

#[test]
fn chaos_while_the_pool_changes_its_size() {
    for seed in seeds(60) {
        let (stats, hash) = simulate(seed, || scenario_of_sizes(seed));
        let t = stats.total();
        assert!(t.evicted_clean + t.evicted_dirty > 0, "seed {seed}: a pool that becomes small evicts");
        if seed % 30 == 0 {
            assert_eq!(simulate(seed, || scenario_of_sizes(seed)).1, hash, "seed {seed} is not deterministic");
        }
    }
}

#[test]
fn chaos() {
    let mut seen = [0u64; 16];
    for seed in seeds(150) {
        let (stats, hash) = simulate(seed, || scenario(seed));
        if seed % 30 == 0 {
            assert_eq!(simulate(seed, || scenario(seed)).1, hash, "seed {seed} is not deterministic");
        }
        let t = stats.total();
        let counts = [
            ("hits", t.hits),
            ("misses", t.misses),
            ("clean evictions", t.evicted_clean),
            ("evictions after a write", t.evicted_dirty),
            ("read ahead", t.prefetched),
            ("read ahead and used", t.prefetch_used),
            ("read ahead in vain", t.prefetch_wasted),
            ("discarded", stats.discarded),
            ("single-page flushes", stats.single_page_flushes),
            ("stalls", stats.stalls),
            ("replacement writes", stats.replacement_writes),
            ("recoverability writes", stats.recoverability_writes),
            ("changed during their write", stats.redirtied),
            ("changes of class", stats.class_changes),
            ("pages set aside", stats.set_aside),
            ("pages set aside and readmitted", stats.readmitted),
        ];
        for (sum, (name, n)) in seen.iter_mut().zip(counts) {
            *sum += n;
            let last = seed == 149 && std::env::var("POOL_VICTIM").is_err();
            assert!(!last || *sum > 0, "150 seeds without any {name}");
        }
    }
}

/// Threads that latch pages in ascending order, looking them up while they hold others, never wait in a circle, though
/// frames change their pages all the time.
#[test]
fn ascending_latches_never_deadlock() {
    for seed in seeds(300) {
        simulate(seed, || {
            let gate = Gate::new();
            let store = CheckedStore::new(PAGES, &gate, seed);
            let config = PoolConfig { frame_timeout: Duration::from_secs(300), ..PoolConfig::new(4096, 10) };
            let pool = Pool::new(config, Arc::new(Shared(store)), gate.clone()).unwrap();
            (0..30).for_each(|p| format(&pool, &gate, p, p));
            pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap();
            let workers: Vec<_> = (0..4)
                .map(|i| {
                    let pool = pool.clone();
                    spawn(format!("worker-{i}"), move || {
                        let mut rng = Rng::from_seed(seed * 10 + i);
                        for _ in 0..60 {
                            let p = rng.below(28);
                            let pin = pool.load(PageId(p)).unwrap();
                            let _first = pin.write();
                            for q in p + 1..30 {
                                if let Some(page) = pool.write_resident(PageId(q)) {
                                    assert_eq!(value(page.bytes()), q);
                                }
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|t| t.join().unwrap());
            pool.check_quiescent();
        });
    }
}

/// With clean-first victims no foreground thread writes a page.
#[test]
fn clean_first_never_writes_in_the_foreground() {
    for seed in seeds(30) {
        simulate(seed, || {
            let config = PoolConfig { frame_timeout: Duration::from_secs(300), ..PoolConfig::new(4096, 40) };
            let w = world_of(config.with_preset("lru-c").unwrap(), seed);
            w.pool.start().unwrap();
            (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
            run_workers(&w, seed, 60);
            let stats = w.pool.stats();
            assert_eq!((stats.single_page_flushes, stats.foreground_writes), (0, 0));
            assert!(stats.replacement_writes > 0 && stats.total().evicted_clean > 0);
            assert_eq!(stats.total().evicted_dirty, 0, "written pages stay in the list, clean");
            w.pool.stop();
            w.pool.check_quiescent();
        });
    }
}

/// With WAR a page is written in the foreground only when there is none to copy: not because the slots are full or
/// being drained.
#[test]
fn war_waits_for_its_slots() {
    let (mut stalls, mut set_aside, mut alone) = (0, 0, 0);
    for seed in seeds(30) {
        simulate(seed, || {
            let mut config = PoolConfig { frame_timeout: Duration::from_secs(300), ..PoolConfig::new(4096, 40) };
            config.cleaner.scan_depth = 3;
            let w = world_of(config.with_preset("war").unwrap(), seed);
            w.pool.start().unwrap();
            (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
            run_workers(&w, seed, 60);
            let stats = w.pool.stats();
            assert!(stats.set_aside > 0);
            stalls += stats.stalls;
            set_aside += stats.set_aside;
            alone += stats.foreground_writes;
            w.pool.stop();
            w.pool.check_quiescent();
        });
    }
    assert!(stalls > 0, "nobody ever waited for a slot");
    // In few seeds there is a moment at which all others have their pages latched.
    assert!(alone * 1000 < set_aside, "{alone} written in the foreground, {set_aside} set aside");
}

/// Writes that fail for a while leave their pages dirty and are tried again; nothing is lost.
#[test]
fn passing_write_errors() {
    for seed in seeds(40) {
        simulate(seed, || {
            let w = world(seed);
            w.store.faults.write_retryable.store(100, Relaxed);
            w.pool.start().unwrap();
            (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
            run_workers(&w, seed, 60);
            w.store.faults.write_retryable.store(0, Relaxed);
            w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap();
            w.pool.stop();
            w.pool.check_quiescent();
            let stored: u64 = (0..VOLATILE).map(|p| value(&w.store.stored(PageId(p)).expect("stored"))).sum();
            assert_eq!(stored, *w.changes.lock());
            assert!(w.pool.stats().write_errors > 0, "no error was met");
            assert!(w.pool.failure().is_none());
        });
    }
}

/// A write that fails for good poisons the pool: the page stays dirty, flushes fail, reads of what is there go on.
#[test]
fn a_lasting_write_error() {
    for seed in seeds(20) {
        simulate(seed, || {
            let w = world(seed);
            let frames = w.pool.capacity_frames() as u64;
            (0..frames / 2).for_each(|p| format(&w.pool, &w.gate, p, p));
            w.store.faults.write_eio.store(1000, Relaxed);
            let err = w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap_err();
            assert!(matches!(err, Error::Volume(_)) && err.to_string().contains("page"), "{err}");
            assert_eq!(w.pool.dirty_pages() as u64, frames / 2, "all pages stay dirty");
            assert!(w.pool.failure().is_some());
            w.store.faults.write_eio.store(0, Relaxed);
            assert!(w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).is_err(), "poisoned for good");
            (0..frames / 2).for_each(|p| assert_eq!(value(w.pool.read(PageId(p)).unwrap().bytes()), p));
            w.pool.check_quiescent();
        });
    }
}

/// When the log has failed, what it covers is still written and evicted, so that reads go on; what it does not cover
/// never is.
#[test]
fn a_failed_log() {
    for seed in seeds(40) {
        simulate(seed, || {
            let w = world(seed);
            let frames = w.pool.capacity_frames() as u64;
            w.pool.start().unwrap();
            (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, p));
            w.gate.force(w.gate.end()).unwrap();
            w.gate.poisoned.store(true, SeqCst);
            let covered = w.gate.durable_lsn();
            (0..frames / 8).for_each(|p| change(&w.pool, &w.gate, p, |v| v + 1000).unwrap());
            for _ in 0..2 {
                for p in 0..VOLATILE {
                    let expected = if p < frames / 8 { p + 1000 } else { p };
                    assert_eq!(value(w.pool.read(PageId(p)).unwrap().bytes()), expected, "reads go on");
                }
            }
            let err = w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap_err();
            assert!(matches!(err, Error::Poisoned(_)), "{err}");
            assert_eq!(w.pool.dirty_pages() as u64, frames / 8, "what the log covers was written");
            w.pool.stop();
            w.pool.check_quiescent();
            for p in 0..VOLATILE {
                match w.store.stored(PageId(p)) {
                    Some(stored) => assert!(page::lsn(&stored) <= covered),
                    None => assert!(p < frames / 8, "page {p} is covered but was not stored"),
                }
            }
        });
    }
}

/// A failed or damaged read is an error that names the page, for every waiter, and the next attempt may succeed.
#[test]
fn read_errors() {
    for seed in seeds(20) {
        simulate(seed, || {
            let w = world(seed);
            (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, p));
            w.pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap();
            for p in 0..VOLATILE {
                w.pool.discard(PageId(p));
            }
            w.store.faults.read_eio.store(1000, Relaxed);
            let readers: Vec<_> = (0..4)
                .map(|i| {
                    let pool = w.pool.clone();
                    spawn(format!("reader-{i}"), move || pool.read(PageId(5)).unwrap_err().to_string())
                })
                .collect();
            for reader in readers {
                let err = reader.join().unwrap();
                assert!(err.contains("page 5"), "{err}");
            }
            w.store.faults.read_eio.store(0, Relaxed);
            assert_eq!(value(w.pool.read(PageId(5)).unwrap().bytes()), 5);
            w.store.damage(PageId(6), 2000);
            let err = w.pool.read(PageId(6)).unwrap_err();
            assert!(matches!(err, Error::Corrupt(_)) && err.to_string().contains("page 6"), "{err}");
            // A damaged page can be replaced.
            format(&w.pool, &w.gate, 6, 66);
            assert_eq!(value(w.pool.read(PageId(6)).unwrap().bytes()), 66);
            w.pool.check_quiescent();
        });
    }
}

/// Power fails in the midst of everything; nothing hangs, and what is stored is covered by the log (the store asserts
/// that at each write).
#[test]
fn power_cuts() {
    for seed in seeds(60) {
        simulate(seed, || {
            let domain = Domain::new("machine");
            let stores = Arc::new(Mutex::new(None));
            let shared = stores.clone();
            let machine = domain.spawn("machine", move || {
                let w = world(seed);
                *shared.lock() = Some((w.store.clone(), w.gate.clone()));
                w.pool.start().unwrap();
                (0..VOLATILE).for_each(|p| format(&w.pool, &w.gate, p, 0));
                run_workers(&w, seed, 100_000);
            });
            sleep(Duration::from_micros(200 + Rng::from_seed(seed).below(30_000)));
            domain.power_cut();
            assert!(machine.join().is_err());
            let (store, gate) = stores.lock().take().expect("made");
            for p in 0..PAGES {
                if let Some(bytes) = store.stored(PageId(p)) {
                    assert!(page::lsn(&bytes) <= gate.end());
                    value(&bytes);
                }
            }
        });
    }
}

/// The deliberate fault is one: pages are written before their log, and the store notices.
#[test]
#[should_panic(expected = "the log is durable to")]
fn page_before_log_is_noticed() {
    simulate(0, || {
        let gate = Gate::with(Mistake::PageBeforeLog.into());
        let store = CheckedStore::new(PAGES, &gate, 0);
        let pool = Pool::new(PoolConfig::new(4096, 32), Arc::new(Shared(store)), gate.clone()).unwrap();
        (0..VOLATILE).for_each(|p| format(&pool, &gate, p, 0));
    });
}
