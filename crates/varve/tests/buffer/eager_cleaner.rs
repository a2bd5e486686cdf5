//! Shore-MT's eager cleaner: it writes pages and keeps them. In virtual time.

use crate::pool_support::{Gate, format};
use std::time::Duration;
use varve::buffer::{Pool, PoolConfig};
use varve_models::MemDevice;
use varve_rt::sim::{self, Config};
use varve_rt::sleep;
use varve_volume::{PageId, Single};

#[test]
fn pages_that_are_written_early_stay_in_memory() {
    const PAGES: u64 = 200;
    let main = || {
        let (gate, store) = (Gate::new(), Single::new(MemDevice::new(PAGES * 4096), 4096).expect("a store"));
        let mut config = PoolConfig::new(4096, 256);
        config.replacement = "lru";
        (config.cleaner.kind, config.victim) = ("eager", "spf");
        let pool = Pool::new(config, store, gate.clone()).expect("a pool");
        pool.start().unwrap();
        (0..PAGES).for_each(|p| format(&pool, &gate, p, p));
        sleep(Duration::from_secs(2));
        let cleaned = pool.stats();
        assert!(cleaned.dirty <= 256 / 8, "at most an eighth of the frames is dirty: {cleaned:?}");
        (0..PAGES).for_each(|p| drop(pool.read(PageId(p)).expect("it is there")));
        pool.stop();
        pool.stats().kinds.iter().map(|kind| kind.misses).sum::<u64>()
    };
    assert_eq!(sim::run(Config { limit: Some(Duration::from_secs(60)), ..Config::default() }, main).unwrap(), 0);
}
