//! Damage at rest: a bit of a used page, of a superblock or of the log flips while the database is closed. Nothing may
//! be read wrong and nothing may panic; what the flip hit is named by an error, from `check` and from reads.
//!
//! Pages that hold nothing are exempt, and so is log before the redo point: neither is read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{Damage, Db, Devices, Durability, Error, Layout, Options, TxOptions};
use varve_device::Device;
use varve_models::MemDevice;
use varve_rt::Rng;

const PAGE: usize = 4096;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
}

impl Machine {
    fn new() -> Machine {
        Machine { data: MemDevice::new(0), log: MemDevice::new(0) }
    }

    /// A copy, to be damaged.
    fn copy(&self) -> Machine {
        Machine { data: self.data.clone_image(), log: self.log.clone_image() }
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn open(&self) -> varve::Result<Db> {
        Db::open_on(self.devices(), options())
    }
}

fn options() -> Options {
    Options { cache_bytes: 2 << 20, cleaners: false, ..Options::default() }
}

/// A database with rows of many sizes, overflow values among them, in two keyspaces; nothing was ever freed.
fn filled(machine: &Machine, commits: u64) -> (Db, [Rows; 2]) {
    let layout = Layout { page_size: PAGE, log_bytes: 1 << 20, ..Layout::default() };
    let db = Db::create_on(machine.devices(), &layout, options()).unwrap();
    let spaces = ["one", "two"].map(|name| db.keyspace_or_create(name).unwrap());
    let mut rng = Rng::from_seed(7);
    let mut rows = [Rows::new(), Rows::new()];
    for commit in 0..commits {
        let mut tx = db.begin_with(TxOptions { durability: Some(Durability::Sync), ..TxOptions::default() }).unwrap();
        for _ in 0..4 {
            let space = rng.below(2) as usize;
            let key = format!("key-{:08}-{commit}", rng.below(100_000_000)).into_bytes();
            let len = if rng.one_in(20) { 6000 } else { rng.below(300) };
            let mut value = vec![0; len as usize];
            rng.fill_bytes(&mut value);
            tx.put(&spaces[space], &key, &value).unwrap();
            rows[space].insert(key, value);
        }
        tx.commit().unwrap();
    }
    (db, rows)
}

/// Reads everything both ways: whatever is returned must be right. Returns the first error.
fn read(db: &Db, rows: &[Rows; 2]) -> Result<(), Error> {
    let mut first = Ok(());
    for (name, rows) in ["one", "two"].iter().zip(rows) {
        let space = db.keyspace(name)?;
        for (key, value) in rows {
            match space.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "a wrong value"),
                Err(e) => first = first.and(Err(e)),
            }
        }
        let snapshot = db.snapshot()?;
        let mut expected = rows.iter();
        for row in snapshot.scan(&space, ..)? {
            match row {
                Ok((key, value)) => assert_eq!(expected.next(), Some((&key, &value)), "a wrong row"),
                Err(e) => {
                    first = first.and(Err(e));
                    break;
                }
            }
        }
    }
    first
}

/// Whether the error names the page.
fn names(error: &Error, page: u64) -> bool {
    error.to_string().contains(&format!("page {page}"))
}

#[test]
fn a_flipped_bit_of_a_used_page_is_named_and_never_read() {
    let machine = Machine::new();
    let (db, rows) = filled(&machine, 120);
    db.close().unwrap();
    let pages = machine.data.len() / PAGE as u64;
    let mut page = vec![0; PAGE];
    let used: Vec<u64> = (0..pages)
        .filter(|p| {
            machine.data.peek(p * PAGE as u64, &mut page);
            page.iter().any(|b| *b != 0)
        })
        .collect();
    assert!(used.len() > 40, "{} pages", used.len());
    let seed = 11;
    let mut rng = Rng::from_seed(seed);
    let mut by_read = 0;
    for round in 0..2000 {
        let page = used[rng.below(used.len() as u64) as usize];
        // The header is short and matters most.
        let at = if rng.one_in(3) { rng.below(64) } else { rng.below(PAGE as u64) };
        let bit = rng.below(8) as u8;
        let place = format!("seed {seed}, round {round}: page {page}, byte {at}, bit {bit}");
        let damaged = machine.copy();
        damaged.data.flip_bit(page * PAGE as u64 + at, bit);
        let db = match damaged.open() {
            Ok(db) => db,
            Err(e) => {
                assert!(names(&e, page), "{place}: open says {e}");
                continue;
            }
        };
        match db.check() {
            Ok(report) => {
                let named = |d: &Damage| matches!(d, Damage::Page { page: p, .. } if p.0 == page);
                assert!(report.damages.iter().any(named), "{place}: check found {:?}", report.damages);
            }
            Err(e) => assert!(names(&e, page), "{place}: check says {e}"),
        }
        if let Err(e) = read(&db, &rows) {
            assert!(names(&e, page), "{place}: a read says {e}");
            by_read += 1;
        }
    }
    assert!(by_read > 500, "reads met the damage {by_read} times only");
}

#[test]
fn a_flipped_bit_of_a_superblock_is_survived_or_named() {
    let machine = Machine::new();
    let (db, rows) = filled(&machine, 30);
    db.close().unwrap();
    let seed = 12;
    let mut rng = Rng::from_seed(seed);
    for round in 0..600 {
        let (at, bit) = (rng.below(2 * 4096), rng.below(8) as u8);
        let damaged = machine.copy();
        damaged.log.flip_bit(at, bit);
        let place = format!("seed {seed}, round {round}: byte {at}, bit {bit} of the log device");
        match damaged.open() {
            Ok(db) => {
                assert!(read(&db, &rows).is_ok(), "{place}");
                let damages = db.check().unwrap_or_else(|e| panic!("{place}: {e}")).damages;
                let only_superblocks = damages.iter().all(|d| matches!(d, Damage::Superblock(_)));
                assert!(only_superblocks, "{place}: {damages:?}");
            }
            Err(e) => assert!(e.to_string().contains("superblock") || e.to_string().contains("log"), "{place}: {e}"),
        }
    }
}

#[test]
fn a_flipped_bit_of_a_log_record_is_refused_or_cuts_the_end_only() {
    let machine = Machine::new();
    let (db, rows) = filled(&machine, 60);
    drop(db); // as after a crash: recovery needs the log
    let total: usize = rows.iter().map(Rows::len).sum();
    let mut used = Vec::new();
    let mut block = vec![0; 4096];
    for at in (8192..machine.log.len()).step_by(4096) {
        machine.log.peek(at, &mut block);
        if block.iter().any(|b| *b != 0) {
            used.push(at);
        }
    }
    assert!(used.len() > 20, "{} blocks of log", used.len());
    let seed = 13;
    let mut rng = Rng::from_seed(seed);
    let (mut refused, mut cut) = (0, 0);
    for round in 0..600 {
        let at = used[rng.below(used.len() as u64) as usize] + rng.below(4096);
        let bit = rng.below(8) as u8;
        let place = format!("seed {seed}, round {round}: byte {at}, bit {bit} of the log device");
        let damaged = machine.copy();
        damaged.log.flip_bit(at, bit);
        match damaged.open() {
            Err(Error::Corrupt(Damage::Log { .. })) => refused += 1,
            Err(e) => panic!("{place}: {e}"),
            Ok(db) => {
                // Padding, log before the redo point, or the very end, which could as well be a torn write.
                let mut found = 0;
                for (name, rows) in ["one", "two"].iter().zip(&rows) {
                    let space = db.keyspace_or_create(name).unwrap();
                    for (key, value) in rows {
                        if let Some(v) = space.get(key).unwrap_or_else(|e| panic!("{place}: {e}")) {
                            assert_eq!(&v, value, "{place}: a wrong value");
                            found += 1;
                        }
                    }
                }
                assert!(found % 4 == 0 && found + 8 >= total, "{place}: {found} rows of {total}");
                assert!(db.check().unwrap().damages.is_empty(), "{place}");
                cut += u32::from(found < total);
            }
        }
    }
    assert!(refused > 100, "{refused} refused, {cut} cut the end");
}
