//! Resident memory stays within the budget. A process of its own, because it reads the peak of the whole process.

#![cfg(target_os = "linux")]

use varve::{Db, Durability, Error, Layout, Options};

const MB: u64 = 1 << 20;
const CACHE: u64 = 32 * MB;
/// What code, stacks and buffers below the engine may take on top of the budget.
const REST: u64 = 64 * MB;
const ROWS: u64 = 160_000;

/// A figure of this process, bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") << 10
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn a_scan_a_refused_transaction_and_ordinary_work_stay_within_the_budget() {
    let dir = std::env::temp_dir().join(format!("varve-memory-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    // Made before the baseline is taken: it is the caller's memory, not the engine's.
    let huge = vec![1u8; 96 << 20];
    let baseline = memory("VmRSS");
    let layout = Layout { log_bytes: 16 * MB, ..Layout::default() };
    let options = Options { cache_bytes: CACHE, durability: Durability::Async, ..Options::default() };
    let db = Db::create(&dir, &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (db, rows) = (db.clone(), rows.clone());
            varve_rt::spawn(format!("client {client}"), move || {
                for first in (client * 40..ROWS).step_by(160) {
                    db.transact(|tx| (first..first + 40).try_for_each(|n| tx.put(&rows, &key(n), &[n as u8; 600])))
                        .unwrap();
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    // The whole of it, three times the cache, is read by both kinds of scan.
    let snapshot = db.snapshot().unwrap();
    let mut scan = snapshot.scan(&rows, ..).unwrap();
    let mut seen = 0;
    while scan.next_row().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, ROWS);
    let mut tx = db.begin().unwrap();
    assert_eq!(tx.scan_rev(&rows, ..).unwrap().filter(|row| row.is_ok()).count() as u64, ROWS);
    drop(tx);
    // Old values for the snapshot, as many as there is room for.
    for n in (0..ROWS).step_by(3) {
        rows.put(&key(n), &[9; 600]).unwrap();
    }
    drop((scan, snapshot));
    large(&db, &huge);
    long_value(&rows);
    let peak = memory("VmHWM");
    let (used, allowed) = (peak.saturating_sub(baseline), CACHE + REST);
    println!("baseline {} MB, {} MB more at the peak, {} MB allowed", baseline / MB, used / MB, allowed / MB);
    assert!(
        used <= allowed,
        "{} MB on top of the {} MB at the start; {} allowed",
        used / MB,
        baseline / MB,
        allowed / MB
    );
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Transactions that are large in every way.
fn large(db: &Db, huge: &[u8]) {
    let rows = db.keyspace("rows").unwrap();
    let error = rows.put(b"huge", huge).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. } | Error::OverBudget { .. }), "{error}");
    let mut tx = db.begin().unwrap();
    tx.put(&rows, b"huge", huge).unwrap();
    (0..ROWS).for_each(|n| tx.put(&rows, &key(n), &[3; 600]).unwrap());
    assert_eq!(tx.delete_range(&rows, ..).unwrap(), ROWS + 1);
    drop(tx);
    // Few bytes, on more leaves than change at once.
    let mut tx = db.begin().unwrap();
    (0..ROWS).step_by(50).for_each(|n| tx.put(&rows, &key(n), b"x").unwrap());
    tx.commit().unwrap();
    let mut tx = db.begin().unwrap();
    (0..ROWS).for_each(|n| tx.put(&rows, &key(n * 7919 % ROWS), &[4; 600]).unwrap());
    tx.commit().unwrap();
    assert!(!rows.contains(b"huge").unwrap());
}

/// A value eight times as long as the cache is written, read, seen to be there, and deleted.
fn long_value(rows: &varve::Keyspace) {
    const LONG: u64 = 256 * MB;
    let mut value = std::io::Read::take(std::io::repeat(7), LONG);
    assert_eq!(rows.put_from(b"long", &mut value).unwrap(), LONG);
    assert_eq!(rows.get_to(b"long", &mut std::io::sink()).unwrap(), Some(LONG));
    assert!(rows.contains(b"long").unwrap());
    assert!(rows.delete(b"long").unwrap());
}
