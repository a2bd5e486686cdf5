//! Opening a directory: reading only writes not a byte, and whoever cannot have it is told why.

use crate::directories::Dir;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use varve::{Db, Durability, Error, Layout, Options, TxOptions};

fn writing() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

fn reading() -> Options {
    Options { read_only: true, ..writing() }
}

/// A database with rows of all sizes, more than its cache holds; open.
fn filled(dir: &Path) -> Db {
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    let db = Db::create(dir, &layout, writing()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    for n in 0..6000u32 {
        let len = if n % 500 == 7 { 20_000 } else { 900 };
        rows.put_with(&n.to_be_bytes(), &vec![n as u8; len], Durability::None).unwrap();
    }
    db
}

/// Every file of a directory: its bytes, and when it was last written.
fn files(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, (i64, i64))> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: &PathBuf| {
        let meta = std::fs::metadata(path).unwrap();
        (std::fs::read(path).unwrap(), (meta.mtime(), meta.mtime_nsec()))
    };
    entries.map(|path| (path.clone(), read(&path))).collect()
}

fn says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
}

#[test]
fn a_closed_database_is_read_without_writing_a_byte() {
    let dir = Dir::absent("opening-read-only");
    filled(&dir.0).close().unwrap();
    let before = files(&dir.0);
    assert!(before.len() >= 3 && before.values().any(|(bytes, _)| bytes.len() > 4 << 20));
    for close in [true, false] {
        let db = Db::open(&dir.0, reading()).unwrap();
        let rows = db.keyspace("rows").unwrap();
        assert_eq!(rows.get(&7u32.to_be_bytes()).unwrap().unwrap(), vec![7; 20_000]);
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.scan(&rows, ..).unwrap().filter(|row| row.is_ok()).count(), 6000);
        let mut tx = db.begin_with(TxOptions::read_only()).unwrap();
        assert_eq!(tx.count(&rows, ..).unwrap(), 6000);
        tx.commit().unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean() && report.keys == 6000, "{report:?}");
        assert!(!db.stats().rows().is_empty());
        let refused = [
            rows.put(b"k", b"v").unwrap_err(),
            rows.delete(&7u32.to_be_bytes()).unwrap_err(),
            db.begin().map(drop).unwrap_err(),
            db.transact(|tx| tx.put(&rows, b"k", b"v")).unwrap_err(),
            db.create_keyspace("more").map(drop).unwrap_err(),
            db.keyspace_or_create("more").map(drop).unwrap_err(),
            db.drop_keyspace("rows").unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::ReadOnly(_)), "{error}");
            says(&error, &["reading only", "without read_only"]);
        }
        says(&db.checkpoint().unwrap_err(), &["read-only"]);
        drop((snapshot, rows));
        if close {
            db.close().unwrap();
        } else {
            drop(db);
        }
        assert!(files(&dir.0) == before, "a file was written, made or removed (closed: {close})");
    }
    // It is as good as before for whoever writes.
    let db = Db::open(&dir.0, writing()).unwrap();
    assert!(db.recovery_report().clean);
    db.keyspace("rows").unwrap().put(b"k", b"v").unwrap();
    db.close().unwrap();
}

#[test]
fn readers_share_a_database_and_writers_do_not() {
    let dir = Dir::absent("opening-lock");
    let writer = filled(&dir.0);
    let pid = std::process::id().to_string();
    for options in [writing(), reading()] {
        let error = Db::open(&dir.0, options).map(drop).unwrap_err();
        assert!(matches!(error, Error::InUse(_)), "{error}");
        says(&error, &["in use", &dir.0.display().to_string(), &pid, "close it"]);
    }
    let error = Db::create(&dir.0, &Layout::default(), writing()).map(drop).unwrap_err();
    assert!(matches!(error, Error::InUse(_) | Error::AlreadyExists(_)), "{error}");
    writer.keyspace("rows").unwrap().put(b"still", b"works").unwrap();
    writer.close().unwrap();

    let readers = [(); 2].map(|()| Db::open(&dir.0, reading()).unwrap());
    let error = Db::open(&dir.0, writing()).map(drop).unwrap_err();
    assert!(matches!(error, Error::InUse(_)), "{error}");
    says(&error, &["in use", &dir.0.display().to_string()]);
    for reader in readers {
        assert_eq!(reader.keyspace("rows").unwrap().get(b"still").unwrap().unwrap(), b"works");
        reader.close().unwrap();
    }
    // A handle that outlives the closing does not hold the directory.
    let writer = Db::open(&dir.0, writing()).unwrap();
    let (handle, rows) = (writer.clone(), writer.keyspace("rows").unwrap());
    writer.close().unwrap();
    assert!(matches!(rows.get(b"still"), Err(Error::Closed)));
    let next = Db::open(&dir.0, writing()).unwrap();
    drop((handle, rows));
    next.close().unwrap();
}

#[test]
fn a_database_that_was_not_closed_is_recovered_before_it_can_be_read_only() {
    let (dir, copy) = (Dir::absent("opening-unclean"), Dir::absent("opening-copy"));
    let db = filled(&dir.0);
    db.keyspace("rows").unwrap().put(b"last", b"one").unwrap();
    // What a crash would have left: nothing is written while it is copied.
    db.checkpoint().unwrap();
    std::fs::create_dir_all(&copy.0).unwrap();
    for name in ["data", "log", "lock"] {
        std::fs::copy(dir.0.join(name), copy.0.join(name)).unwrap();
    }
    db.close().unwrap();
    let before = files(&copy.0);
    let error = Db::open(&copy.0, reading()).map(drop).unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error}");
    says(&error, &["not closed cleanly", "open it for writing once"]);
    assert!(files(&copy.0) == before, "refusing wrote something");
    let db = Db::open(&copy.0, writing()).unwrap();
    assert!(!db.recovery_report().clean);
    db.close().unwrap();
    let db = Db::open(&copy.0, reading()).unwrap();
    assert_eq!(db.keyspace("rows").unwrap().get(b"last").unwrap().unwrap(), b"one");
    db.close().unwrap();
}

#[test]
fn what_is_no_database_is_said_to_be_none() {
    let dir = Dir::absent("opening-none");
    for options in [writing(), reading()] {
        let error = Db::open(&dir.0, options.clone()).map(drop).unwrap_err();
        assert!(matches!(error, Error::NoDatabase(_)), "{error}");
        says(&error, &[&dir.0.display().to_string(), "create one first"]);
        std::fs::create_dir_all(&dir.0).unwrap();
        assert!(matches!(Db::open(&dir.0, options).map(drop), Err(Error::NoDatabase(_))));
    }
    let error = Db::create(&dir.0, &Layout::default(), reading()).map(drop).unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error}");
    assert!(files(&dir.0).is_empty(), "refusing made files");
}

#[test]
fn a_lock_that_cannot_be_opened_is_named() {
    let dir = Dir::new("opening-no-lock");
    filled(&dir.0).close().unwrap();
    std::fs::remove_file(dir.join("lock")).unwrap();
    std::fs::create_dir(dir.join("lock")).unwrap();
    says(&Db::open(&dir.0, writing()).err().unwrap(), &["lock", "directory"]);
    std::fs::remove_dir(dir.join("lock")).unwrap();
    Db::open(&dir.0, writing()).unwrap();
}
