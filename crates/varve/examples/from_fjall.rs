//! What programs over fjall do, by Varve: keyspaces as LSM trees, batches over several of them, a second index, a
//! counter and a queue that threads share. Comments name what fjall calls it.
//!
//! Run: `cargo run --release -p varve --example from_fjall`
#![allow(clippy::disallowed_methods, reason = "a program of a user's has the threads of the standard library")]

use varve::{Db, Durability, Keyspace, KeyspaceKind, LsmOptions, Options, Result, WriteBatch};

/// `keyspace` (`open_partition` before version 3): an LSM tree. `keyspace_or_create` makes a B+-tree instead.
fn lsm(db: &Db, name: &str) -> Result<Keyspace> {
    db.keyspace_or_create_of(name, KeyspaceKind::Lsm(LsmOptions::default()))
}

fn first_steps(db: &Db) -> Result<()> {
    let items = lsm(db, "items")?;
    assert!(items.is_empty()?);

    // `insert`, `get`, `remove`
    items.put("user1/name", "ann")?;
    items.put("user1/town", "ulm")?;
    items.put("user2/name", "bob")?;
    assert_eq!(items.get("user1/name")?.as_deref(), Some(&b"ann"[..]));
    items.delete("user1/town")?;

    // `prefix`, `range`, `iter`, `rev`: a call that makes rows may fail, and so may each row.
    for row in items.prefix("user1")? {
        let (key, value) = row?;
        println!("{} is {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
    }
    assert_eq!(items.range("user1".."user2")?.count(), 1);
    let (last, _) = items.iter()?.next_back().expect("there are rows")?;
    assert_eq!(last, b"user2/name");

    // `persist(PersistMode::SyncAll)`: each commit is durable when it returns, unless it was asked to be quicker.
    items.put_with("visits", "1", Durability::Async)?;
    db.sync()
}

/// Albums, and an index of their years in a keyspace of its own: both are written by one batch.
fn second_index(db: &Db) -> Result<()> {
    let (albums, by_year) = (lsm(db, "albums")?, lsm(db, "albums by year")?);
    let mut batch = WriteBatch::new(); // `batch`
    for (id, (year, name)) in [(1_959, "Kind of Blue"), (1_977, "Low"), (1_991, "Laughing Stock")].iter().enumerate() {
        batch.put(&albums, id.to_be_bytes(), name);
        batch.put(&by_year, [&u64::to_be_bytes(*year)[..], &id.to_be_bytes()].concat(), "");
    }
    db.write(&batch)?; // `commit`

    // `snapshot`: one view over all keyspaces
    let snapshot = db.snapshot()?;
    let mut found = Vec::new();
    for row in snapshot.range(&by_year, 1_970u64.to_be_bytes()..1_990u64.to_be_bytes())? {
        let (key, _) = row?;
        found.push(snapshot.get(&albums, &key[8..])?.expect("each row of the index has an album"));
    }
    assert_eq!(found, [b"Low"]);
    Ok(())
}

/// `write_tx` and `commit` of a transactional database: every database has transactions. They are serializable, and
/// run again by themselves when another one stands in the way.
fn counter(db: &Db) -> Result<()> {
    let counters = lsm(db, "counters")?;
    counters.put("c", 0u64.to_be_bytes())?;
    let work = || -> Result<()> {
        for _ in 0..25 {
            db.transact(|tx| {
                let n = tx.get_for_update(&counters, "c")?.expect("it was put");
                let n = u64::from_be_bytes(n.try_into().expect("eight bytes"));
                tx.put(&counters, "c", (n + 1).to_be_bytes())
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers = [(); 4].map(|()| scope.spawn(work));
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    assert_eq!(counters.get("c")?, Some(100u64.to_be_bytes().to_vec()));
    Ok(())
}

/// A queue: `first_key_value` and `remove` in a transaction are one call.
fn queue(db: &Db) -> Result<()> {
    let tasks = lsm(db, "tasks")?;
    for n in 0..40u32 {
        tasks.put_with(n.to_be_bytes(), "to do", Durability::Async)?;
    }
    let take = || -> Result<u32> {
        let mut done = 0;
        while tasks.pop_first()?.is_some() {
            done += 1;
        }
        Ok(done)
    };
    let done: u32 = std::thread::scope(|scope| {
        let takers = [(); 4].map(|()| scope.spawn(take));
        takers.into_iter().map(|taker| taker.join().expect("a taker does not panic")).sum::<Result<_>>()
    })?;
    assert_eq!(done, 40);
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // `Database::builder(path).temporary(true).open()`; with a path: `Db::open_or_create`
    let db = Db::temporary(Options::default().cache_mb(32))?;
    first_steps(&db)?;
    second_index(&db)?;
    counter(&db)?;
    queue(&db)?;
    // `delete_keyspace`
    db.drop_keyspace("tasks")?;
    db.close()?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
