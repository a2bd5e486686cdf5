//! Memory stays within the budget whatever is done with values that are longer than it. A process of its own, because
//! it reads the peak of the whole process.

#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use varve::{Db, Keyspace, Layout, Options, Snapshot};

const MB: u64 = 1 << 20;
const CACHE: u64 = 16 * MB;
/// What code, stacks and buffers below the engine may take on top of the budget.
const REST: u64 = 64 * MB;
const FILM: u64 = 300 * MB;
/// Clips of two megabytes.
const CLIPS: u8 = 64;
const CLIP: u64 = 2 * MB;

/// A figure of this process, bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") << 10
}

/// Counts bytes, all of which must be the same.
struct Same(u8);

impl Write for Same {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(bytes.iter().all(|b| *b == self.0), "a byte is not {}", self.0);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn put(rows: &Keyspace, key: &[u8], len: u64, byte: u8) {
    assert_eq!(rows.put_from(key, &mut std::io::repeat(byte).take(len)).unwrap(), len);
}

/// What the snapshot sees is what was there when it was opened.
fn as_before(snapshot: &Snapshot, rows: &Keyspace) {
    assert_eq!(snapshot.get_to(rows, b"film", &mut Same(200)).unwrap(), Some(FILM));
    for n in 0..CLIPS {
        assert_eq!(snapshot.get_to(rows, &[n], &mut Same(n)).unwrap(), Some(CLIP), "clip {n}");
    }
    assert!(snapshot.get(rows, &[7]).unwrap().unwrap() == vec![7; CLIP as usize]);
    let mut scan = snapshot.scan_rev(rows, &[CLIPS - 2][..]..=&[CLIPS - 1][..]).unwrap();
    for n in [CLIPS - 1, CLIPS - 2] {
        let (key, value) = scan.next_row().unwrap().expect("two clips");
        assert!(key == [n] && value == vec![n; CLIP as usize]);
    }
    assert_eq!(snapshot.count(rows, ..).unwrap(), u64::from(CLIPS) + 1);
}

#[test]
fn values_longer_than_the_cache_are_written_counted_deleted_and_kept_for_snapshots_within_the_budget() {
    let dir = std::env::temp_dir().join(format!("varve-memory-long-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let baseline = memory("VmRSS");
    let layout = Layout { log_bytes: 16 * MB, ..Layout::default() };
    let db = Db::create(&dir, &layout, Options { cache_bytes: CACHE, ..Options::default() }).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    put(&rows, b"film", FILM, 200);
    (0..CLIPS).for_each(|n| put(&rows, &[n], CLIP, n));
    db.checkpoint().unwrap();
    let data = || std::fs::metadata(dir.join("data")).unwrap().len();
    let size = data();
    let snapshot = db.snapshot().unwrap();
    // Some are replaced one by one, the rest by one commit, which counts them too.
    (0..CLIPS / 2).for_each(|n| put(&rows, &[n], CLIP, n + 100));
    let mut tx = db.begin().unwrap();
    assert_eq!(tx.count(&rows, ..).unwrap(), u64::from(CLIPS) + 1);
    assert_eq!(tx.delete_range(&rows, ..).unwrap(), u64::from(CLIPS) + 1);
    tx.commit().unwrap();
    // Their pages are nobody else's as long as the snapshot is open.
    put(&rows, b"new", 80 * MB, 9);
    as_before(&snapshot, &rows);
    assert_eq!(db.stats().txn.snapshots_evicted, 0);
    drop(snapshot);
    let peak = memory("VmHWM").saturating_sub(baseline);
    assert!(peak <= CACHE + REST, "{} MB on top of the {} MB at the start", peak / MB, baseline / MB);
    // From then on they can be used again.
    let grown = data();
    assert!(grown < size + CLIP * u64::from(CLIPS) + 120 * MB, "{} MB, and then {} MB", size / MB, grown / MB);
    db.checkpoint().unwrap();
    put(&rows, b"film", FILM, 1);
    assert!(data() < grown + 80 * MB, "the data file grew from {} MB to {} MB", grown / MB, data() / MB);
    assert!(db.check().unwrap().is_clean());
    drop(rows);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
