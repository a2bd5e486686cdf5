//! Creating in directories: cut short at any time one command goes on, and nothing is made over what belongs to
//! somebody.

use crate::directories::{Dir, create, layout, options, sound};
use varve::{Db, Error, Layout, Options};

/// What a file holds; none: there is no file.
type Content<'a> = Option<&'a [u8]>;

/// The log of a creation that has not come to its end.
fn unfinished(log: &[u8]) -> Vec<u8> {
    let mut log = log.to_vec();
    for block in log[..8192].chunks_mut(4096) {
        block[12] |= 2;
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
    }
    log
}

#[test]
fn what_a_creation_left_is_no_database_and_is_created_anew() {
    let dir = Dir::new("creation-left");
    let whole = dir.join("whole");
    create(&whole).unwrap();
    let (log, data) = (std::fs::read(whole.join("log")).unwrap(), std::fs::read(whole.join("data")).unwrap());
    let marked = unfinished(&log);
    let zeros = vec![0; 1 << 20];
    let states: [(Content<'_>, Content<'_>); 9] = [
        (None, None),
        (Some(&[]), None),
        (Some(&zeros[..8192]), None),
        (Some(&zeros), Some(&[])),
        (Some(&zeros), Some(&zeros[..65536])),
        (Some(&marked[..8192]), None),
        (Some(&marked[..8192]), Some(&[])),
        (Some(&marked), Some(&data[..16384])),
        (Some(&marked), Some(&data)),
    ];
    for (i, (log, data)) in states.into_iter().enumerate() {
        let left = dir.join(&format!("left {i}"));
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("lock"), b"1\n").unwrap();
        let files = [("log", log), ("data", data)];
        for (name, bytes) in files.iter().filter_map(|(name, bytes)| Some((name, (*bytes)?))) {
            std::fs::write(left.join(name), bytes).unwrap();
        }
        assert!(!varve::exists(&left), "state {i}");
        let refused = Db::open(&left, options()).map(drop).unwrap_err();
        assert!(matches!(refused, Error::NoDatabase(_) | Error::Unfinished(_)), "state {i}: {refused}");
        create(&left).unwrap_or_else(|e| panic!("state {i}: {e}"));
        sound(&left);
    }
}

#[test]
fn a_log_that_is_gone_is_damage_and_nothing_is_created_beside_the_data() {
    let dir = Dir::new("creation-gone");
    for len in [None, Some(0), Some(4096)] {
        let whole = dir.join(&format!("{len:?}"));
        create(&whole).unwrap();
        let data = std::fs::read(whole.join("data")).unwrap();
        match len {
            None => std::fs::remove_file(whole.join("log")).unwrap(),
            Some(len) => std::fs::File::options().write(true).open(whole.join("log")).unwrap().set_len(len).unwrap(),
        }
        for error in [Db::open(&whole, options()).map(drop).unwrap_err(), create(&whole).unwrap_err()] {
            assert!(!matches!(error, Error::NoDatabase(_) | Error::Unfinished(_)), "{error}");
        }
        assert!(std::fs::read(whole.join("data")).unwrap() == data);
    }
}

#[test]
fn a_layout_counts_when_the_database_is_made_and_not_afterwards() {
    let dir = Dir::new("creation-layout");
    let path = dir.join("db");
    for page_size in [4096, 16384] {
        let db = Db::open_or_create_with(&path, &Layout { page_size, ..layout() }, options()).unwrap();
        let rows = db.keyspace_or_create("rows").unwrap();
        rows.put("key", "value").unwrap();
        assert_eq!(rows.size_on_disk().unwrap(), 4096, "one leaf of the first layout");
        drop(rows);
        db.close().unwrap();
    }
    let wrong = Layout { page_size: 5000, ..layout() };
    assert!(Db::open_or_create_with(dir.join("other"), &wrong, options()).is_err());
    assert!(!varve::exists(&dir.join("other")));
}

#[test]
fn a_file_that_a_database_owns_is_refused() {
    let dir = Dir::new("creation-owned");
    let (device, first) = (dir.join("device"), dir.join("first"));
    std::fs::write(&device, b"").unwrap();
    let on_it = Layout { data: Some(device.clone()), ..layout() };
    // Fresh: nothing but its creation was ever written.
    let db = Db::create(&first, &on_it, options()).unwrap();
    for overwrite in [false, true] {
        let refused = Db::create(dir.join("second"), &Layout { overwrite, ..on_it.clone() }, options()).map(drop);
        assert!(matches!(&refused, Err(Error::InUse(what)) if what.contains("`data`")), "{refused:?}");
        assert!(!dir.join("second").exists(), "nothing is left of a directory that was made for it");
    }
    db.close().unwrap();
    for place in [&on_it, &Layout { fast: Some(device.clone()), ..layout() }] {
        let refused = Db::create(dir.join("second"), place, options()).map(drop).unwrap_err();
        assert!(matches!(&refused, Error::AlreadyExists(what) if what.contains("second")), "{refused}");
        assert!(!dir.join("second").exists(), "nothing is left of a directory that was made for it");
    }
    std::fs::create_dir(dir.join("there")).unwrap();
    assert!(Db::create(dir.join("there"), &on_it, options()).is_err());
    assert!(dir.join("there").exists(), "a directory that was there stays");
    let db = Db::open(&first, options()).unwrap();
    db.create_keyspace("rows").unwrap().put(b"key", b"value").unwrap();
    db.close().unwrap();
    sound(&first);
    let db = Db::create(dir.join("second"), &Layout { overwrite: true, ..on_it }, options()).unwrap();
    assert!(db.keyspaces().unwrap().is_empty());
    db.close().unwrap();
    let error = Db::open(&first, options()).map(drop).unwrap_err().to_string();
    assert!(error.contains("`data` is of another database"), "{error}");
}

/// A copy of a directory has the same links.
#[test]
fn what_is_linked_is_not_open_in_two_directories() {
    let dir = Dir::new("creation-links");
    let (device, first, copy) = (dir.join("device"), dir.join("first"), dir.join("copy"));
    let on_it = Layout { data: Some(device.clone()), ..layout() };
    let db = Db::create(&first, &on_it, options()).unwrap();
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(first.join("log"), copy.join("log")).unwrap();
    std::fs::copy(first.join("lock"), copy.join("lock")).unwrap();
    std::os::unix::fs::symlink(&device, copy.join("data")).unwrap();
    let read_only = || Options { read_only: true, ..options() };
    for how in [options(), read_only()] {
        let refused = Db::open(&copy, how).map(drop);
        assert!(matches!(&refused, Err(Error::InUse(what)) if what.contains("`data`")), "{refused:?}");
    }
    db.create_keyspace("rows").unwrap().put(b"key", b"value").unwrap();
    db.close().unwrap();
    sound(&first);
    // Who reads is not alone.
    let (one, other) = (Db::open(&first, read_only()).unwrap(), Db::open(&first, read_only()).unwrap());
    assert!(matches!(Db::open(&first, options()), Err(Error::InUse(_))));
    drop((one, other));
    for part in ["data", "log", "lock"] {
        let refused = Db::attach_tier(&first, first.join(part), 4 << 20, options()).map(drop);
        assert!(matches!(&refused, Err(Error::Invalid(what)) if what.contains("own")), "{refused:?}");
    }
    sound(&first);
}

#[test]
fn an_attachment_that_was_cut_short_is_made_again() {
    let dir = Dir::new("creation-attach");
    let (whole, fast) = (dir.join("db"), dir.join("fast file"));
    create(&whole).unwrap();
    // The link and an empty file; then a tier that the superblock does not know of.
    for bytes in [None, Some(4 << 20)] {
        std::fs::write(&fast, vec![0; bytes.unwrap_or(0)]).unwrap();
        std::os::unix::fs::symlink(&fast, whole.join("fast")).unwrap();
        assert!(!varve::has_tier(&whole));
        sound(&whole);
        Db::attach_tier(&whole, &fast, 4 << 20, options()).unwrap().close().unwrap();
        assert!(varve::has_tier(&whole));
        sound(&whole);
        Db::detach_tier(&whole, options()).unwrap();
        assert!(!varve::has_tier(&whole));
        sound(&whole);
    }
}
