//! What programs over sled do, by Varve: maps of bytes, compare and swap, updates, batches, transactions over several
//! trees that may be given up. Comments name what sled calls it.
//!
//! Run: `cargo run --release -p varve --example from_sled`

use varve::{Db, Error, Keyspace, Options, Result, WriteBatch};

fn first_steps(db: &Db) -> Result<()> {
    // `open_tree`; the tree that `Db` itself is there needs a name here.
    let tree: Keyspace = db.keyspace_or_create("default")?;

    // `insert`, `get`, `contains_key`, `remove`
    tree.put(b"greeting", b"hello")?;
    assert_eq!(tree.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
    assert!(tree.contains(b"greeting")?);

    // `compare_and_swap`: `None` is a key that is not there
    assert_eq!(tree.compare_and_swap(b"greeting", Some(b"hello"), Some(b"good day"))?, Ok(()));
    let refused = tree.compare_and_swap(b"greeting", Some(b"hello"), None)?;
    assert_eq!(refused, Err(Some(b"good day".to_vec())));

    // `range`, `iter`, `scan_prefix`
    let from: &[u8] = b"a key that is not there";
    let mut rows = tree.range(from..)?;
    assert_eq!(rows.next().transpose()?, Some((b"greeting".to_vec(), b"good day".to_vec())));
    assert!(rows.next().is_none());
    assert_eq!(tree.prefix("gre")?.count(), 1);

    // `remove` gives whether it was there
    assert!(tree.delete(b"greeting")?);
    assert!(tree.is_empty()?);
    Ok(())
}

/// `update_and_fetch`, `generate_id`
fn updates(db: &Db) -> Result<()> {
    let counts = db.keyspace_or_create("counts")?;
    let one_more = |n: Option<&[u8]>| {
        let n = n.map_or(0, |n| u64::from_be_bytes(n.try_into().expect("eight bytes")));
        Some((n + 1).to_be_bytes().to_vec())
    };
    for expected in 1..=3u64 {
        assert_eq!(counts.update("next id", one_more)?, Some(expected.to_be_bytes().to_vec()));
    }
    // `pop_min`, `pop_max`, `first`, `last`, `clear`
    assert!(counts.pop_first()?.is_some() && counts.first()?.is_none());
    counts.clear()
}

/// `Batch`, `apply_batch`: here over any number of trees
fn batch(db: &Db) -> Result<()> {
    let (names, ages) = (db.keyspace_or_create("names")?, db.keyspace_or_create("ages")?);
    names.put("3", "eve")?;
    let mut batch = WriteBatch::new();
    batch.put(&names, "1", "ann").put(&ages, "1", [41]).put(&names, "2", "bob").delete(&names, "3");
    db.write(&batch)?;
    assert_eq!((names.len()?, ages.len()?), (2, 1));
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Refused {
    NotEnough(u8),
    Store(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error.to_string())
    }
}

/// `(&tree, &tree).transaction(|..| ..)`, `abort`: a closure that fails in its own way changes nothing.
fn transfer(db: &Db, amount: u8) -> std::result::Result<u8, Refused> {
    let (from, to) = (db.keyspace_or_create("from")?, db.keyspace_or_create("to")?);
    db.try_transact(Default::default(), |tx| {
        let there = tx.get_for_update(&from, "coins")?.map_or(0, |n| n[0]);
        let left = there.checked_sub(amount).ok_or(Refused::NotEnough(there))?;
        let others = tx.get_for_update(&to, "coins")?.map_or(0, |n| n[0]);
        tx.put(&from, "coins", [left])?;
        tx.put(&to, "coins", [others + amount])?;
        Ok(left)
    })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("varve-from-sled-{}", std::process::id()));
    // `sled::open`
    let db = Db::open_or_create(&path, Options::default().cache_mb(16))?;
    first_steps(&db)?;
    updates(&db)?;
    batch(&db)?;
    db.keyspace_or_create("from")?.put("coins", [5])?;
    assert_eq!(transfer(&db, 3), Ok(2));
    assert_eq!(transfer(&db, 3), Err(Refused::NotEnough(2)));
    // `flush`: only what was written with a durability of `Async` or `None` needs it
    db.sync()?;
    println!("{} trees", db.keyspaces()?.len());
    db.close()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
