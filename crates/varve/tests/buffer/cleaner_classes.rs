//! Cleaning over two devices: what the slow one is to get does not hold up what the fast one gets. In virtual time.

use crate::pool_support::{Gate, change, format};
use std::sync::Arc;
use std::time::Duration;
use varve::buffer::{Pool, PoolConfig};
use varve_models::MemDevice;
use varve_rt::sim::{self, Config};
use varve_rt::{Instant, now, sleep};
use varve_volume::{
    CostClass, KeyspaceId, PageCompletion, PageId, PageIo, PageStore, PageTicket, PageUse, Single, VolumeError,
    VolumeStats,
};

/// Pages of even numbers are on a device that takes a second for each write; the others are written in 0.1 ms.
struct TwoSpeeds(Arc<dyn PageStore>);

const SLOW: Duration = Duration::from_secs(1);
const FAST: Duration = Duration::from_micros(100);

fn class(page: PageId) -> CostClass {
    CostClass((page.0 % 2) as u8)
}

struct Ends(Vec<(Instant, Option<Result<CostClass, VolumeError>>)>);

impl PageCompletion for Ends {
    fn wait(&mut self, i: usize) -> Result<CostClass, VolumeError> {
        sleep(self.0[i].0 - now());
        self.0[i].1.take().expect("waited for once")
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.0[i].0 <= now()
    }

    fn abandon(&mut self) {}
}

impl PageStore for TwoSpeeds {
    fn page_size(&self) -> usize {
        self.0.page_size()
    }

    fn pages(&self) -> u64 {
        self.0.pages()
    }

    fn grow(&self, pages: u64) -> Result<(), VolumeError> {
        self.0.grow(pages)
    }

    fn usable_bytes(&self, keyspace: KeyspaceId) -> usize {
        self.0.usable_bytes(keyspace)
    }

    fn submit(&self, batch: Vec<PageIo>) -> PageTicket {
        let end = |io: &PageIo| match io {
            PageIo::Write(w) if class(w.page) == CostClass(0) => now() + SLOW,
            _ => now() + FAST,
        };
        let plan: Vec<_> = batch.iter().map(|io| (io.page(), end(io))).collect();
        let mut ticket = self.0.submit(batch);
        let ends = plan.into_iter().enumerate().map(|(i, (id, end))| (end, Some(ticket.wait(i).map(|_| class(id)))));
        let ends: Vec<_> = ends.collect();
        PageTicket::pending(ends.len(), Box::new(Ends(ends)))
    }

    fn evict_clean(&self, id: PageId, bytes: &[u8], usage: PageUse) -> bool {
        self.0.evict_clean(id, bytes, usage)
    }

    fn dirtied(&self, id: PageId, keyspace: KeyspaceId, usage: PageUse) {
        self.0.dirtied(id, keyspace, usage);
    }

    fn discard(&self, pages: &[PageId]) -> Result<(), VolumeError> {
        self.0.discard(pages)
    }

    fn drain_class_changes(&self, _: &mut Vec<(PageId, CostClass)>) {}

    fn sync(&self) -> Result<(), VolumeError> {
        self.0.sync()
    }

    fn stats(&self) -> VolumeStats {
        self.0.stats()
    }
}

/// Misses that had to write a page themselves while a client changes fast pages, one a millisecond, with some slow ones
/// dirty.
fn stalls(by_class: bool) -> u64 {
    const PAGES: u64 = 400;
    let main = move || {
        let (gate, store) = (Gate::new(), Single::new(MemDevice::new(PAGES * 4096), 4096).expect("a store"));
        let mut config = PoolConfig::new(4096, 64);
        config.replacement = "lru";
        (config.cleaner.kind, config.cleaner.by_class) = ("fixed", by_class);
        (config.cleaner.free_target, config.cleaner.free_low) = (8, 6);
        (config.cleaner.low_water, config.cleaner.max_dirty, config.staging_pages) = (99, 99, 64);
        let pool = Pool::new(config, Arc::new(TwoSpeeds(store)), gate.clone()).expect("a pool");
        pool.start().unwrap();
        for p in 0..PAGES {
            format(&pool, &gate, p, p);
        }
        pool.flush_older_than(gate.end(), varve_volume::WriteWhy::Checkpoint).expect("all is written");
        // Everything comes from the store again, with its class.
        for p in (101..PAGES).step_by(2) {
            drop(pool.read(PageId(p)).expect("it is stored"));
        }
        for p in [0, 2, 4, 6] {
            change(&pool, &gate, p, |v| v + 1).expect("a page");
        }
        let before = pool.stats().stalls;
        for p in (1..PAGES).step_by(2) {
            change(&pool, &gate, p, |v| v + 1).expect("a page");
            sleep(Duration::from_millis(1));
        }
        let stalls = pool.stats().stalls - before;
        pool.stop();
        stalls
    };
    sim::run(Config { limit: Some(Duration::from_secs(600)), ..Config::default() }, main).unwrap()
}

#[test]
fn writes_to_the_slow_device_hold_up_no_others() {
    assert_eq!(stalls(true), 0, "the fast pages are written meanwhile");
    assert!(stalls(false) > 0, "in one batch with slow pages they are not");
}
