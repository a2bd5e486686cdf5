//! A database that holds little takes little memory, however large its cache may get. A process of its own, because it
//! reads what the whole process has.

#![cfg(target_os = "linux")]

use varve::{Db, Options};

const MB: u64 = 1 << 20;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("Linux tells");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") << 10
}

/// What the process has more while a database with a hundred rows is open, and the cache that the database may have.
fn taken(name: &str, options: Options) -> (u64, u64) {
    let dir = std::env::temp_dir().join(format!("varve-small-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let before = resident();
    let db = Db::open_or_create(&dir, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for n in 0..100u32 {
        rows.put(n.to_be_bytes(), [7; 100]).unwrap();
    }
    let taken = (resident().saturating_sub(before), db.stats().cache_bytes);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    taken
}

#[test]
fn a_small_database_with_the_default_cache_takes_little_memory() {
    // The first brings code and allocator into memory.
    let (least, _) = taken("first", Options { cache_bytes: 8 * MB, ..Options::default() });
    // The default: a quarter of the memory that the process may have.
    let (took, cache) = taken("default", Options::default());
    println!("{} MB, for a cache of {} MB; before: {} MB", took / MB, cache / MB, least / MB);
    // Some huge pages, where the system gives such.
    assert!(took <= cache / 1000 + 8 * MB, "{} MB for a hundred rows and a cache of {} MB", took / MB, cache / MB);
}
