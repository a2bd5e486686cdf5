//! Memory stays within the limit + 64 MB while one transaction writes, reads or deletes far more rows than the cache
//! holds. A process of its own, because it reads the peak of the whole process. `VARVE_TEST_ROWS=10000000` for the full
//! run, in a release build.

#![cfg(target_os = "linux")]

use varve::{Db, Durability, Layout, Options};

const MB: u64 = 1 << 20;
const CACHE: u64 = 16 * MB;
/// What code, stacks and buffers below the engine may take on top of the budget.
const REST: u64 = 64 * MB;

/// A figure of this process, bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") << 10
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn a_transaction_of_many_rows_stays_within_the_memory_limit() {
    let rows: u64 = std::env::var("VARVE_TEST_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(6_000);
    let base = std::env::var_os("VARVE_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = base.join(format!("varve-large-{}", std::process::id()));
    let options = Options { cache_bytes: CACHE, ..Options::default() };
    let db = Db::create(&dir, &Layout { log_bytes: 16 * MB, ..Layout::default() }, options).unwrap();
    let space = db.keyspace_or_create("rows").unwrap();
    space.put(b"warm", b"up").unwrap();
    let baseline = memory("VmRSS").min(40 * MB);
    let began = varve_rt::now();
    let done = |what: &str| {
        let stats = db.stats();
        let (peak, took) = (memory("VmHWM").saturating_sub(baseline) / MB, began.elapsed().as_secs_f64());
        let (spills, coarse, peak_scratch) = (stats.txn.spills, stats.txn.lock_coarsened, stats.scratch.peak);
        println!(
            "{took:8.1} s {what}: {peak} MB more at the peak, {spills} spills, {coarse} times coarser locks, \
             {peak_scratch} scratch pages"
        );
    };
    let mut tx = db.begin().unwrap();
    for n in 0..rows {
        tx.put(&space, &key(n), &key(n)).unwrap();
        // Others go on meanwhile.
        if n % (rows / 10) == 0 {
            space.put_with(b"apart", &key(n), Durability::None).unwrap();
        }
    }
    done("written");
    tx.commit().unwrap();
    done("committed");
    let mut tx = db.begin().unwrap();
    for n in 0..rows {
        assert_eq!(tx.get(&space, &key(n)).unwrap().as_deref(), Some(&key(n)[..]));
    }
    tx.commit().unwrap();
    done("read");
    let mut tx = db.begin().unwrap();
    for n in 0..rows {
        tx.delete(&space, &key(n)).unwrap();
    }
    tx.commit().unwrap();
    done("deleted");
    assert_eq!(db.snapshot().unwrap().count(&space, ..).unwrap(), 2);
    let used = memory("VmHWM").saturating_sub(baseline);
    assert!(used <= CACHE + REST, "{} MB more than at the beginning", used / MB);
    assert_eq!(db.stats().scratch.pages, 0);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
