//! Cost of a buffer pool hit: lookup, shared latch, access recorded, unlatch. `cargo bench -p varve --bench pool`
//!
//! Prints nanoseconds per operation (median and least of 21 rounds) for resident pages in random order, with 1 and 2
//! threads, and the cost of the write latch and of a pin.

use std::hint::black_box;
use std::sync::Arc;
use varve::Result;
use varve::buffer::{LogAge, LogGate, Pool, PoolConfig};
use varve_models::MemDevice;
use varve_rt::{Rng, now, spawn};
use varve_volume::{KeyspaceId, Lsn, PageId, Single};

/// Pages in use: few (in the processor's cache) and many.
const SIZES: [u64; 2] = [256, 8192];
const ROUNDS: usize = 21;
const OPS: u64 = 200_000;

struct NoLog;

impl LogGate for NoLog {
    fn durable_lsn(&self) -> Lsn {
        Lsn::MAX
    }
    fn force(&self, _: Lsn) -> Result<()> {
        Ok(())
    }
    fn age(&self) -> LogAge {
        LogAge { bytes_since_redo: 0, capacity: 1 }
    }
}

fn measure(name: &str, pages: u64, threads: u64, op: fn(&Pool, PageId)) {
    let pool = pool(pages);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let began = now();
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    let pool = pool.clone();
                    spawn(format!("bench-{t}"), move || {
                        let mut rng = Rng::from_seed(round as u64 * 100 + t);
                        for _ in 0..OPS {
                            op(&pool, PageId(rng.below(pages)));
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|w| w.join().unwrap());
            began.elapsed().as_nanos() as f64 / OPS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{name:<20} {pages:>5} pages, {threads} thread(s): median {:6.1} ns/op, least {:6.1}",
        rounds[ROUNDS / 2],
        rounds[0]
    );
}

fn pool(pages: u64) -> Arc<Pool> {
    let store = Single::new(MemDevice::new(pages * 4096), 4096).unwrap();
    let pool = Pool::new(PoolConfig::new(4096, pages as usize + 64), store, Arc::new(NoLog)).unwrap();
    for p in 0..pages {
        let page = pool.create(PageId(p), KeyspaceId(0)).unwrap();
        page.set_dirty(1);
    }
    pool
}

fn main() {
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    for (pages, threads) in SIZES.into_iter().flat_map(|pages| [(pages, 1), (pages, 2)]) {
        measure("nothing (random id)", pages, threads, |_, id| {
            black_box(id);
        });
        measure("read", pages, threads, |pool, id| {
            black_box(pool.read(id).unwrap().bytes()[40]);
        });
        measure("write latch", pages, threads, |pool, id| {
            black_box(pool.write(id).unwrap().bytes()[40]);
        });
        measure("read and pin", pages, threads, |pool, id| {
            black_box(pool.read(id).unwrap().pin().id());
        });
    }
}
