//! A database takes less memory while work goes on, and as much again. A process of its own, because it reads the
//! memory of the whole process.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use varve::{Db, Durability, Error, Layout, Options};

const MB: u64 = 1 << 20;
const ROWS: u64 = 120_000;

/// Memory that this process has now, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("Linux tells");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") << 10
}

#[test]
fn a_cache_becomes_smaller_and_larger_while_work_goes_on() {
    let dir = std::env::temp_dir().join(format!("varve-cache-size-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let options = Options { cache_bytes: 96 * MB, durability: Durability::None, ..Options::default() };
    let db = Db::create(&dir, &Layout::default(), options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for first in (0..ROWS).step_by(1000) {
        db.transact(|tx| (first..first + 1000).try_for_each(|n| tx.put(&rows, n.to_be_bytes(), [n as u8; 500])))
            .unwrap();
    }
    let before = resident();
    assert!(before > 64 * MB, "the rows are in memory: {before}");

    let done = Arc::new(AtomicBool::new(false));
    let client = varve_rt::spawn("client", {
        let (db, rows, done) = (db.clone(), rows.clone(), done.clone());
        move || {
            let mut n = 0u64;
            while !done.load(SeqCst) {
                n = (n * 48271 + 11) % ROWS;
                db.transact(|tx| {
                    assert_eq!(tx.get(&rows, n.to_be_bytes())?.as_deref(), Some(&[n as u8; 500][..]));
                    tx.put(&rows, n.to_be_bytes(), [n as u8; 500])?;
                    tx.put(&rows, (ROWS + n).to_be_bytes(), [1; 100])
                })
                .unwrap();
            }
        }
    });
    db.set_cache_bytes(40 * MB).unwrap();
    let (small, stats) = (resident(), db.stats());
    assert!(small + 32 * MB < before, "{before} before, {small} now");
    assert!(stats.cache_bytes <= 40 * MB && stats.cache_bytes > 39 * MB, "{}", stats.cache_bytes);
    let frames = stats.budget.iter().find(|class| class.class.name() == "frames").unwrap();
    assert_eq!((frames.used, frames.limit), (stats.pool.frames * 8192, stats.pool.frames * 8192));
    db.set_cache_bytes(0).unwrap();
    assert_eq!(db.stats().cache_bytes, 96 * MB);
    db.set_cache_bytes(40 * MB).unwrap();
    done.store(true, SeqCst);
    client.join().unwrap();

    for refused in [97 * MB, u64::MAX, 1, 4 * MB] {
        let e = db.set_cache_bytes(refused).unwrap_err();
        assert!(matches!(&e, Error::Invalid(text) if text.contains("opened with 100663296")), "{refused}: {e}");
    }
    for n in 0..ROWS {
        assert_eq!(rows.get(n.to_be_bytes()).unwrap().as_deref(), Some(&[n as u8; 500][..]), "row {n}");
    }
    assert!(db.check().unwrap().damages.is_empty());
    db.close().unwrap();
    assert!(matches!(db.set_cache_bytes(0), Err(Error::Closed)));
    std::fs::remove_dir_all(&dir).unwrap();
}
