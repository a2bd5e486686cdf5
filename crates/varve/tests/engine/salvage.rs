//! Salvage finds every row of the pages that are whole, whatever else of the database is destroyed, and says what it
//! did not find.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varve::{Db, Devices, Durability, Error, Layout, Options, SalvageReport};
use varve_device::{AlignedBuf, Device, read_at, write_at};
use varve_models::MemDevice;
use varve_rt::Rng;

type Rows = BTreeMap<(String, Vec<u8>), Vec<u8>>;

const PAGE: u64 = 4096;

fn options() -> Options {
    Options { cache_bytes: 4 << 20, log_max_bytes: 64 << 20, ..Options::default() }
}

struct Built {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    rows: Rows,
}

impl Built {
    /// A database with two keyspaces that are kept and one that is dropped; closed, or left as a killed process leaves
    /// it.
    fn new(closed: bool) -> Built {
        let (data, log) = (MemDevice::new(0), MemDevice::new(0));
        let layout = Layout { page_size: PAGE as usize, log_bytes: 4 << 20, ..Layout::default() };
        let db = Db::create_on(Devices::new(data.clone(), log.clone()), &layout, options()).unwrap();
        let mut rows = Rows::new();
        let mut rng = Rng::from_seed(1);
        for name in ["books", "people", "gone"] {
            let space = db.create_keyspace(name).unwrap();
            for n in 0..6000u64 {
                let key = format!("{name} {:05}", n * 7919 % 6000).into_bytes();
                let len = if n % 500 == 0 { 30_000 } else { 20 + rng.below(120) as usize };
                let value = vec![n as u8; len];
                space.put_with(&key, &value, Durability::None).unwrap();
                rows.insert((name.to_string(), key), value);
            }
            for n in (0..6000u64).step_by(3) {
                let key = format!("{name} {n:05}").into_bytes();
                space.delete_with(&key, Durability::None).unwrap();
                rows.remove(&(name.to_string(), key));
            }
        }
        db.checkpoint().unwrap();
        db.drop_keyspace("gone").unwrap();
        rows.retain(|(name, _), _| name != "gone");
        let people = db.keyspace("people").unwrap();
        for n in 0..500u64 {
            let key = format!("late {n:05}").into_bytes();
            people.put_with(&key, b"late", Durability::None).unwrap();
            rows.insert(("people".into(), key), b"late".to_vec());
        }
        people.put(b"last", b"durable").unwrap();
        rows.insert(("people".into(), b"last".to_vec()), b"durable".to_vec());
        drop(people);
        if closed {
            db.close().unwrap();
        } else {
            // What a killed process leaves: nothing more is written.
            let fork = |device: &MemDevice| {
                let copy = MemDevice::new(device.len());
                let mut bytes = AlignedBuf::new(device.len() as usize);
                read_at(device, 0, &mut bytes).unwrap();
                write_at(&*copy, 0, &bytes, true).unwrap();
                copy
            };
            let (data, log) = (fork(&data), fork(&log));
            db.close().unwrap();
            return Built { data, log, rows };
        }
        Built { data, log, rows }
    }

    fn salvage(&self) -> (Rows, SalvageReport) {
        let mut found = Rows::new();
        let devices = Devices::new(self.data.clone(), self.log.clone());
        let report = varve::salvage_on(&devices, &mut |row| {
            let twice = found.insert((row.keyspace.to_string(), row.key.to_vec()), row.value.to_vec());
            assert!(twice.is_none(), "{}: {:?} twice", row.keyspace, row.key);
            Ok(())
        })
        .unwrap();
        assert_eq!(report.rows.values().sum::<u64>(), found.len() as u64);
        (found, report)
    }

    fn page(&self, id: u64) -> AlignedBuf {
        let mut bytes = AlignedBuf::new(PAGE as usize);
        read_at(&*self.data, id * PAGE, &mut bytes).unwrap();
        bytes
    }

    fn destroy(&self, id: u64, rng: &mut Rng) {
        let mut bytes = self.page(id);
        let at = rng.below(PAGE - 100) as usize;
        rng.fill_bytes(&mut bytes[at..at + 100]);
        write_at(&*self.data, id * PAGE, &bytes, true).unwrap();
    }
}

#[test]
fn a_sound_database_is_found_whole() {
    for closed in [true, false] {
        let built = Built::new(closed);
        let (found, report) = built.salvage();
        assert!(found == built.rows, "closed {closed}: {} rows, not {}: {report:?}", found.len(), built.rows.len());
        assert!(report.is_whole(), "closed {closed}: {report:?}");
        assert_eq!(report.page_size, PAGE as usize);
    }
}

/// One page of a hundred is destroyed: every row is found but those of the destroyed leaves and values, and nothing
/// else is found.
#[test]
fn every_key_of_intact_pages_is_found() {
    let mut lost_some = 0;
    for seed in 0..12u64 {
        let built = Built::new(true);
        let mut rng = Rng::from_seed(seed);
        let pages = built.data.len() / PAGE;
        let broken: BTreeSet<u64> = (0..pages / 100).map(|_| 2 + rng.below(pages - 2)).collect();
        // What may be missing: rows of leaves among them, and rows whose long value lies in one of them.
        broken.iter().for_each(|&id| built.destroy(id, &mut rng));
        let (found, report) = built.salvage();
        let named: BTreeSet<u64> = report.damaged.iter().map(|d| d.0.0).collect();
        assert!(named.is_subset(&broken), "seed {seed}: {named:?} are called damaged, {broken:?} are");
        assert!(report.notes.is_empty() && report.stale.is_empty(), "{report:?}");
        for (row, value) in &found {
            assert_eq!(built.rows.get(row), Some(value), "seed {seed}: {row:?} was never there, or not so");
        }
        let missing: Vec<_> = built.rows.keys().filter(|row| !found.contains_key(*row)).collect();
        lost_some += usize::from(!missing.is_empty());
        // A leaf holds some forty rows.
        assert!(
            missing.len() <= 60 * named.len() + report.without_value.len(),
            "seed {seed}: {} missing",
            missing.len()
        );
        for lost in &report.without_value {
            assert!(missing.contains(&lost), "{lost:?} was found after all");
        }
    }
    assert!(lost_some > 6);
}

#[test]
fn root_catalog_map_or_log_may_be_gone() {
    let built = Built::new(true);
    let names = |rows: &Rows| rows.keys().map(|r| r.0.clone()).collect::<BTreeSet<_>>();
    let mut rng = Rng::from_seed(3);
    // The catalog's only leaf: rows come back under the numbers of their keyspaces.
    built.destroy(1, &mut rng);
    let (found, report) = built.salvage();
    assert!(names(&found).iter().all(|n| n.starts_with("keyspace-")), "{:?}", names(&found));
    assert!(found.len() >= built.rows.len() && !report.notes.is_empty());
    // And the space map.
    built.destroy(0, &mut rng);
    let (found, report) = built.salvage();
    assert!(found.len() >= built.rows.len() && report.notes.len() >= 2, "{report:?}");
    // And both superblocks.
    write_at(&*built.log, 0, &AlignedBuf::new(8192), true).unwrap();
    let (found, report) = built.salvage();
    assert!(found.len() >= built.rows.len() && report.notes.iter().any(|n| n.contains("the log cannot be used")));
}

#[test]
fn a_damaged_log_costs_what_lies_behind_the_damage() {
    let built = Built::new(false);
    let mut bytes = AlignedBuf::new(built.log.len() as usize);
    read_at(&*built.log, 0, &mut bytes).unwrap();
    let at = bytes.windows(7).rposition(|w| w == b"durable").expect("the last commit is in the log");
    // A byte of the group before: found damaged because a later one is known to be durable, or cut off with what
    // follows.
    bytes[at - 200] ^= 0xff;
    write_at(&*built.log, 0, &bytes, true).unwrap();
    let (found, _) = built.salvage();
    for (row, value) in &found {
        assert_eq!(built.rows.get(row), Some(value), "{row:?} was never there, or not so");
    }
    assert!(found.len() < built.rows.len() && found.len() > built.rows.len() - 600);
}

/// Files that are not of one database, or of one time, are salvaged, but never called whole.
#[test]
fn files_that_do_not_belong_together_are_told() {
    let (one, other) = (Built::new(false), Built::new(true));
    let mixed = Built { data: other.data.clone(), log: one.log.clone(), rows: other.rows.clone() };
    let (found, report) = mixed.salvage();
    assert!(found == other.rows, "what `data` has, and nothing of the log: {} rows", found.len());
    assert!(report.notes.iter().any(|note| note.contains("another database")), "{report:?}");
}

#[test]
fn swapped_files_are_told() {
    let built = Built::new(true);
    let salvaged = varve::salvage_on(&Devices::new(built.log.clone(), built.data.clone()), &mut |_| Ok(()));
    assert!(matches!(&salvaged, Err(Error::Mismatch(what)) if what.contains("swapped")), "{salvaged:?}");
}
