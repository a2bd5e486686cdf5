//! What programs over redb do, by Varve: a table with types, transactions that read and write, values of a type of
//! one's own, threads that read while others write, values in pieces. Comments name what redb calls it.
//!
//! Run: `cargo run --release -p varve --example from_redb`
#![allow(clippy::disallowed_methods, reason = "a program of a user's has the threads of the standard library")]

use std::io::Read;
use varve::{Db, Options, Result, Snapshot, TypedKeyspace, Value};

/// `TableDefinition`: a name; the types are said where the table is opened.
const PRICES: &str = "prices";

fn write_and_read(db: &Db) -> Result<()> {
    let prices = db.typed_keyspace::<String, u64>(PRICES)?;

    // `begin_write`, `open_table`, `insert`, `commit`
    let mut write = db.begin()?;
    for (name, price) in [("tea", 3), ("milk", 1), ("cocoa", 4)] {
        prices.put_in(&mut write, name, &price)?;
    }
    assert_eq!(prices.range_in(&mut write, ..)?.rev().count(), 3);
    write.commit()?;

    // `begin_read`, `open_table`, `get`, `range`
    let read: Snapshot = db.snapshot()?;
    prices.delete("milk")?;
    assert_eq!(prices.get_at(&read, "milk")?, Some(1));
    for row in prices.range_at(&read, "m".to_string()..)? {
        let (name, price) = row?;
        println!("{name} costs {price}");
    }

    // `savepoint`, `restore_savepoint`: within a transaction
    let mut write = db.begin()?;
    let before = write.savepoint()?;
    prices.put_in(&mut write, "tea", &100)?;
    write.rollback_to(before)?;
    write.commit()?;
    assert_eq!(prices.get("tea")?, Some(3));

    // `retain`, `pop_first`, `len`
    db.transact(|tx| tx.retain(prices.keyspace(), .., |name, _| name != b"cocoa"))?;
    assert_eq!((prices.first()?, prices.keyspace().len()?), (Some(("tea".into(), 3)), 1));
    Ok(())
}

/// A value of one's own: what `redb::Value` says by several types and functions.
#[derive(Debug, PartialEq)]
struct Reading {
    celsius: i32,
    place: String,
}

impl Value for Reading {
    fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
        to.extend_from_slice(&self.celsius.to_be_bytes());
        to.extend_from_slice(self.place.as_bytes());
        Ok(())
    }

    fn decode(from: &[u8]) -> Option<Reading> {
        let (celsius, place) = from.split_first_chunk()?;
        Some(Reading { celsius: i32::from_be_bytes(*celsius), place: String::from_utf8(place.to_vec()).ok()? })
    }
}

fn own_types(db: &Db) -> Result<()> {
    let readings = db.typed_keyspace::<(u32, u64), Reading>("readings")?;
    let reading = Reading { celsius: -4, place: "roof".into() };
    readings.put(&(7, 1_700_000_000), &reading)?;
    assert_eq!(readings.get(&(7, 1_700_000_000))?, Some(reading));
    Ok(())
}

/// `Arc<Database>`: a `Db` is a handle already, to be cloned for each thread, or lent.
fn threads(db: &Db) -> Result<()> {
    let seen: TypedKeyspace<String, u32> = db.typed_keyspace("seen")?;
    seen.put("a", &0)?;
    let write = |writer: u32| -> Result<()> {
        for _ in 0..20 {
            // Writers do not wait for each other, unless they want the same rows.
            let mut write = db.begin()?;
            seen.put_in(&mut write, &writer.to_string(), &writer)?;
            write.commit()?;
        }
        Ok(())
    };
    let read = || -> Result<usize> {
        let read = db.snapshot()?;
        seen.range_at(&read, "0".to_string()..)?.map(|row| row.map(|_| 1)).sum()
    };
    std::thread::scope(|scope| {
        let writers = [1, 2].map(|n| scope.spawn(move || write(n)));
        let readers = [(); 4].map(|()| scope.spawn(read));
        for reader in readers {
            assert!((1..=3).contains(&reader.join().expect("a reader does not panic")?));
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })
}

/// Values that are too long for memory need no file beside the database.
fn long_values(db: &Db) -> Result<()> {
    let films = db.keyspace_or_create("films")?;
    films.put_from("noise", &mut std::io::repeat(7).take(2_000_000))?;
    assert_eq!(films.get_to("noise", &mut std::io::sink())?, Some(2_000_000));
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("varve-from-redb-{}", std::process::id()));
    // `Database::create`
    let db = Db::open_or_create(&path, Options::default().cache_mb(16))?;
    write_and_read(&db)?;
    own_types(&db)?;
    threads(&db)?;
    long_values(&db)?;
    // `list_tables`
    for keyspace in db.keyspaces()? {
        println!("table {}", keyspace.name);
    }
    // `check_integrity`, `compact`
    assert!(db.check()?.is_clean());
    db.compact()?;
    db.close()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
