//! The buffer pool at its surface, on OS threads: misses, eviction under pressure, dirty tracking, failed devices.

mod pool_support;

use pool_support::{Gate, change, format, pool_of, single, value};
use std::sync::Arc;
use std::time::Duration;
use varve::buffer::PoolConfig;
use varve_rt::{Rng, spawn};
use varve_volume::{KeyspaceId, PageId, WriteWhy};

fn config(frames: usize) -> PoolConfig {
    PoolConfig::new(4096, frames)
}

#[test]
fn pages_survive_eviction() {
    let gate = Gate::new();
    let pool = pool_of(config(32), single(200), &gate);
    for p in 0..200 {
        format(&pool, &gate, p, p * 7);
    }
    for p in 0..200 {
        let page = pool.read(PageId(p)).unwrap();
        assert_eq!(value(page.bytes()), p * 7, "page {p}");
        assert_eq!(page.id(), PageId(p));
    }
    pool.check_quiescent();
    let stats = pool.stats();
    assert!(stats.total().misses >= 168, "{stats:?}");
    assert_eq!(stats.total().created, 200);
    assert!(stats.single_page_flushes > 0, "without a cleaner the misses write: {stats:?}");
}

#[test]
fn flush_covers_exactly_the_older_pages() {
    let gate = Gate::new();
    let pool = pool_of(config(64), single(64), &gate);
    for p in 0..40 {
        format(&pool, &gate, p, p);
    }
    let t = gate.end();
    for p in 20..50 {
        change(&pool, &gate, p, |v| v + 1000).unwrap_or_else(|_| format(&pool, &gate, p, p + 1000));
    }
    assert_eq!(pool.dirty_pages(), 50);
    assert!(pool.oldest_dirty().unwrap() < t);
    pool.flush_older_than(t, WriteWhy::Checkpoint).unwrap();
    assert!(pool.oldest_dirty().unwrap() >= t, "all older changes are stored");
    assert_eq!(pool.dirty_pages(), 10, "pages 40 to 49 were first changed after t");
    assert_eq!(pool.stats().checkpoint_writes, 40);
    pool.flush_older_than(u64::MAX, WriteWhy::Checkpoint).unwrap();
    assert_eq!((pool.dirty_pages(), pool.oldest_dirty()), (0, None));
    pool.check_quiescent();
}

#[test]
fn a_pinned_page_stays_and_a_discarded_one_goes() {
    let gate = Gate::new();
    let pool = pool_of(config(16), single(100), &gate);
    format(&pool, &gate, 7, 77);
    let pin = pool.load(PageId(7)).unwrap();
    for p in 20..90 {
        format(&pool, &gate, p, p);
    }
    assert_eq!(value(pool.read_resident(PageId(7)).expect("pinned").bytes()), 77);
    // Discarded while pinned: stays, but is not dirty any more.
    change(&pool, &gate, 7, |_| 78).unwrap();
    let dirty = pool.dirty_pages();
    pool.discard(PageId(7));
    assert_eq!(pool.dirty_pages(), dirty - 1);
    assert_eq!(pin.id(), PageId(7));
    drop(pin.read());
    drop(pin);
    // A new page of the same id takes the frame over.
    format(&pool, &gate, 7, 79);
    assert_eq!(value(pool.read(PageId(7)).unwrap().bytes()), 79);
    pool.discard(PageId(7));
    assert!(pool.read_resident(PageId(7)).is_none());
    pool.discard(PageId(7));
    pool.check_quiescent();
}

#[test]
fn a_created_page_that_was_not_changed_leaves_again() {
    let gate = Gate::new();
    let pool = pool_of(config(16), single(100), &gate);
    drop(pool.create(PageId(3), KeyspaceId(1)).unwrap());
    assert!(pool.read_resident(PageId(3)).is_none());
    let err = pool.read(PageId(3)).unwrap_err().to_string();
    assert!(err.contains("page 3") && err.contains("never written"), "{err}");
    pool.check_quiescent();
    assert_eq!(pool.stats().free, 16);
}

#[test]
fn everything_pinned_is_an_error_not_a_hang() {
    let gate = Gate::new();
    let config = PoolConfig { frame_timeout: Duration::from_millis(200), ..config(16) };
    let pool = pool_of(config, single(100), &gate);
    let pins: Vec<_> = (0..16)
        .map(|p| {
            format(&pool, &gate, p, p);
            pool.load(PageId(p)).unwrap()
        })
        .collect();
    let err = pool.create(PageId(50), KeyspaceId(1)).unwrap_err().to_string();
    assert!(err.contains("buffer pool frames"), "{err}");
    drop(pins);
    drop(pool.create(PageId(50), KeyspaceId(1)).unwrap());
    pool.check_quiescent();
}

/// Only what is used is resident: a gigabyte of frames costs little until pages come in.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_touched_as_it_is_used() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let before = resident();
    let device = varve_models::MemDevice::new(64 << 20);
    let store = varve_volume::Single::new(device, 16384).unwrap();
    let gate = Gate::new();
    let pool = pool_of(PoolConfig::new(16384, 65536), store, &gate);
    let made = resident() - before;
    assert!(made < 48 << 20, "{made} bytes resident for an empty pool");
    drop(pool.create(PageId(1), KeyspaceId(1)).unwrap());
}

/// Readers and writers on twenty times the pool's size, with cleaners, checkpoints and discards at the same time. Each
/// page holds a number and its inverse; a torn or stale page would show.
#[test]
fn a_look_without_the_latch_is_believed_only_when_it_shows_one_version() {
    const PAGES: u64 = 40;
    let rounds = if cfg!(miri) { 12 } else { 20_000 };
    let gate = Gate::new();
    let pool = pool_of(config(16), single(PAGES), &gate);
    (0..PAGES).for_each(|p| format(&pool, &gate, p, p));
    // Changes pages, and makes them come and go: there are more than frames.
    let writer = {
        let (pool, gate) = (pool.clone(), gate.clone());
        spawn("writer", move || {
            let mut rng = Rng::from_seed(1);
            (0..rounds).for_each(|_| change(&pool, &gate, rng.below(PAGES), |v| v + PAGES).unwrap());
        })
    };
    let mut rng = Rng::from_seed(2);
    let mut believed = 0;
    for _ in 0..10 * rounds {
        let p = rng.below(PAGES);
        let Some(look) = pool.peek(PageId(p)) else { continue };
        let seen = [32, 200, 2048, 4088].map(|at| look.word(at));
        if look.is_valid() {
            assert!(seen.iter().all(|v| *v == seen[0] && v % PAGES == p), "page {p}: {seen:?}");
            believed += 1;
        }
    }
    writer.join().unwrap();
    assert!(believed > 0);
    pool.check_quiescent();
}

#[test]
fn stress_on_threads() {
    const PAGES: u64 = 1000;
    for (frames, instances) in [(48, 1), (96, 4)] {
        let gate = Gate::new();
        let mut config = config(frames);
        config.instances = instances;
        config.cleaner.kind = "fixed";
        let pool = pool_of(config, single(PAGES), &gate);
        for p in 0..PAGES {
            format(&pool, &gate, p, 0);
        }
        pool.start().unwrap();
        let workers: Vec<_> = (0..4u64)
            .map(|w| {
                let (pool, gate) = (pool.clone(), gate.clone());
                spawn(format!("worker-{w}"), move || {
                    let mut rng = Rng::from_seed(w);
                    let mut changes = 0u64;
                    for i in 0..20_000u64 {
                        let p = if rng.below(4) > 0 { rng.below(PAGES / 10) } else { rng.below(PAGES) };
                        match rng.below(10) {
                            0..4 => {
                                change(&pool, &gate, p, |v| v + 1).unwrap();
                                changes += 1;
                            }
                            4 if i % 64 == 0 => {
                                pool.flush_older_than(gate.end(), WriteWhy::Checkpoint).unwrap();
                            }
                            5 => pool.prefetch(&[PageId(p), PageId((p + 1) % PAGES)]),
                            _ => {
                                value(pool.read(PageId(p)).unwrap().bytes());
                            }
                        }
                    }
                    changes
                })
            })
            .collect();
        let changes: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        pool.stop();
        pool.check_quiescent();
        let sum: u64 = (0..PAGES).map(|p| value(pool.read(PageId(p)).unwrap().bytes())).sum();
        assert_eq!(sum, changes, "no change is lost");
        pool.check_quiescent();
        let stats = pool.stats();
        assert!(stats.total().evicted_clean > 0 && stats.total().evicted_dirty > 0, "{stats:?}");
        assert!(Arc::strong_count(&pool) == 1, "the background threads let go");
    }
}
