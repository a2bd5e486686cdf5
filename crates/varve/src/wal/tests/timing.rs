//! How long recovery takes. Ignored: prints, asserts nothing about time.
//! `cargo test --release -p varve --lib wal::tests::timing -- --ignored --nocapture`

use super::recovery::{self, RecoveryOptions};
use super::*;
use crate::buffer::{Pool, PoolConfig};
use crate::redo;
use varve_device::{FileDevice, Options};
use varve_rt::{Rng, now};
use varve_volume::{KeyspaceId, PageId, PageStore, Single};

const PAGE: usize = 4096;

/// A log of `bytes` that changes random ones of `pages` pages, three to a group, by the house rule.
fn fill(log: &Log, bytes: u64, pages: u64) {
    let mut rng = Rng::from_seed(1);
    let mut lsns = vec![0; pages as usize];
    let image = vec![7u8; PAGE];
    while log.end_lsn() < bytes {
        let mut body = Vec::new();
        let changed: Vec<u64> = (0..3).map(|_| rng.below(pages)).collect();
        for &p in &changed {
            if lsns[p as usize] == 0 {
                redo::push_image_record(&mut body, PageId(p), &image, 0..0);
            } else {
                let mut ops = Vec::new();
                redo::push_write(&mut ops, 100 + rng.below(3000) as usize, &[1; 120]);
                redo::push_ops_record(&mut body, PageId(p), KeyspaceId(1), lsns[p as usize], &ops);
            }
        }
        if changed[0] == changed[1] || changed[1] == changed[2] || changed[0] == changed[2] {
            continue;
        }
        let at = log.append(GroupKind::Commit, None, &body).unwrap();
        changed.iter().for_each(|&p| lsns[p as usize] = at.end);
    }
    log.wait_durable(log.end_lsn()).unwrap();
}

#[test]
#[ignore = "prints timings"]
fn cost_of_recovery() {
    let dir = std::env::temp_dir().join(format!("varve-recovery-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for (what, bytes, pages, frames, window) in [
        ("all pages fit, window 2 MB", 1u64 << 30, 20_000u64, 24_000, 2 << 20),
        ("all pages fit, window 16 MB", 1 << 30, 20_000, 24_000, 16 << 20),
        ("two in five fit, window 2 MB", 256 << 20, 40_000, 16_000, 2 << 20),
        ("two in five fit, window 16 MB", 256 << 20, 40_000, 16_000, 16 << 20),
    ] {
        let open = |name: &str, prewrite| -> Arc<dyn Device> {
            let path = dir.join(name);
            let _ = std::fs::remove_file(&path);
            FileDevice::open(path, Options { create: true, prewrite, ..Options::default() }).unwrap()
        };
        let (log_dev, data) = (open("log", true), open("data", false));
        let cfg = LogConfig { capacity: bytes + (64 << 20), max_capacity: 2 << 30, ..LogConfig::default() };
        let log = Log::create(log_dev.clone(), cfg.clone(), header()).unwrap();
        log.start();
        fill(&log, bytes, pages);
        log.stop();
        drop(log);
        let store: Arc<dyn PageStore> = Single::new(data, PAGE).unwrap();
        store.grow(pages).unwrap();
        let (log, state) = Log::open(log_dev, cfg, false).unwrap();
        let pool = Pool::new(PoolConfig::new(PAGE, frames), store.clone(), log.clone(), false).unwrap();
        pool.start();
        let began = now();
        let mut options = RecoveryOptions { window_bytes: Some(window), ..RecoveryOptions::default() };
        let report = recovery::run(&log, &state, &*PoolPages::new(pool.clone(), store), &mut options);
        let (report, time) = (report.unwrap(), began.elapsed());
        println!(
            "{what}: {} MB of log in {time:?} ({} MB/s), {} images, {} changes",
            report.bytes >> 20,
            report.rate.unwrap_or(0) >> 20,
            report.images,
            report.applied
        );
        let s = pool.stats();
        println!("  {} writes for replacement, {} for recoverability", s.replacement_writes, s.recoverability_writes);
        log.poison("the test is over");
        pool.stop();
    }
    let _ = std::fs::remove_dir_all(&dir);
}
