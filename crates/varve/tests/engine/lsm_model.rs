//! An LSM keyspace beside a map: writes, deletions, deletions of ranges, snapshots, bulk loads, flushes and merges at
//! any moment, openings in between.

use crate::directories::Dir;
use std::collections::BTreeMap;
use std::ops::Bound;
use varve::{Db, Durability, Keyspace, KeyspaceKind, LsmOptions, Options, Snapshot};
use varve_rt::Rng;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 300;

fn options() -> Options {
    Options { cache_bytes: 2 << 20, durability: Durability::None, ..Options::default() }
}

/// Small, so that everything is flushed and merged again and again.
fn lsm(rng: &mut Rng) -> KeyspaceKind {
    let mut options = LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..LsmOptions::default() };
    options.l0_trigger = 1 + rng.below(3) as u16;
    options.level1_bytes = Some(64 << 10);
    options.multiplier = 2;
    options.block_bytes = Some(1 << 10);
    options.filter_bits = if rng.one_in(3) { 0 } else { 10 };
    options.set("merge", ["sequential", "pcp"][rng.below(2) as usize]).expect("there is one");
    KeyspaceKind::Lsm(options)
}

fn key(n: u64) -> Vec<u8> {
    format!("key/{n:04}").into_bytes()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![0; 50 + rng.below(700) as usize];
    rng.fill_bytes(&mut value);
    value
}

fn count(db: &Db, keyspace: &Keyspace) -> usize {
    db.snapshot().expect("opens").scan(keyspace, ..).expect("scans").count()
}

/// What a keyspace, or a snapshot of it, is to hold.
fn compare(what: &str, expected: &Map, rows: impl Iterator<Item = varve::Result<(Vec<u8>, Vec<u8>)>>) {
    let rows: Vec<_> = rows.map(|row| row.expect("sound")).collect();
    let expected: Vec<_> = expected.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(rows == expected, "{what}: {} rows, {} expected", rows.len(), expected.len());
}

fn including<'k>(rng: &mut Rng, key: &'k [u8]) -> Bound<&'k [u8]> {
    if rng.one_in(2) { Bound::Included(key) } else { Bound::Excluded(key) }
}

struct Case {
    db: Db,
    events: Keyspace,
    map: Map,
    snapshots: Vec<(Snapshot, Map)>,
}

impl Case {
    fn check(&self, rng: &mut Rng) {
        let now = self.db.snapshot().expect("opens");
        compare("now", &self.map, now.scan(&self.events, ..).expect("scans"));
        for (snapshot, map) in &self.snapshots {
            compare("then", map, snapshot.scan(&self.events, ..).expect("scans"));
            let mut back: Vec<_> =
                snapshot.scan_rev(&self.events, ..).expect("scans").map(|row| row.expect("sound")).collect();
            back.reverse();
            compare("then, backwards", map, back.into_iter().map(Ok));
            self.check_part(snapshot, map, rng);
        }
        for _ in 0..20 {
            let key = key(rng.below(KEYS));
            assert_eq!(self.events.get(&key).expect("reads").as_ref(), self.map.get(&key));
            for (snapshot, map) in &self.snapshots {
                assert_eq!(snapshot.get(&self.events, &key).expect("reads").as_ref(), map.get(&key));
            }
        }
    }

    /// A part of the keys, of which some rows are taken, either way.
    fn check_part(&self, snapshot: &Snapshot, map: &Map, rng: &mut Rng) {
        let (from, to) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
        let (from, to) = (from.clone().min(to.clone()), from.max(to));
        let bounds = |rng: &mut Rng| (including(rng, &from), including(rng, &to));
        let (range, take) = (bounds(rng), 1 + rng.below(KEYS) as usize);
        let within = map.iter().filter(|(key, _)| std::ops::RangeBounds::<[u8]>::contains(&range, &key[..]));
        let within: Vec<_> = within.map(|(k, v)| (k.clone(), v.clone())).collect();
        let rows = snapshot.scan(&self.events, range).expect("scans").take(take);
        compare("a part", &within.iter().take(take).cloned().collect(), rows);
        let back: Map =
            snapshot.scan_rev(&self.events, range).expect("scans").take(take).map(|row| row.expect("sound")).collect();
        compare("a part, backwards", &within.iter().rev().take(take).cloned().collect(), back.into_iter().map(Ok));
    }

    /// One key, so often that its versions are jumped over.
    fn write_again_and_again(&mut self, rng: &mut Rng) {
        let key = key(rng.below(KEYS));
        for _ in 0..1 + rng.below(20) {
            if rng.one_in(6) {
                self.events.delete_with(&key, Durability::None).expect("deletes");
                self.map.remove(&key);
            } else {
                let value = value(rng);
                self.events.put_with(&key, &value, Durability::None).expect("puts");
                self.map.insert(key.clone(), value);
            }
            if self.snapshots.len() < 3 && rng.one_in(8) {
                self.snapshots.push((self.db.snapshot().expect("opens"), self.map.clone()));
            }
        }
    }

    fn delete_range(&mut self, rng: &mut Rng) {
        let from = rng.below(KEYS);
        let (from, to) = (key(from), key(from + 1 + rng.below(60)));
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = match rng.below(6) {
            0 => (Bound::Unbounded, Bound::Excluded(&to)),
            1 => (Bound::Included(&from), Bound::Unbounded),
            2 if rng.one_in(4) => (Bound::Unbounded, Bound::Unbounded),
            3 => (Bound::Excluded(&from), Bound::Included(&to)),
            _ => (Bound::Included(&from), Bound::Excluded(&to)),
        };
        self.events.delete_range(bounds).expect("deletes");
        self.map.retain(|key, _| !std::ops::RangeBounds::<[u8]>::contains(&bounds, &key[..]));
    }

    fn transaction(&mut self, rng: &mut Rng) {
        let mut tx = self.db.begin().expect("begins");
        for _ in 0..1 + rng.below(20) {
            let key = key(rng.below(KEYS));
            if rng.one_in(4) {
                tx.delete(&self.events, &key).expect("deletes");
                self.map.remove(&key);
            } else {
                let value = value(rng);
                tx.put(&self.events, &key, &value).expect("puts");
                self.map.insert(key, value);
            }
        }
        tx.commit().expect("commits");
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(20) {
            0..=10 => self.transaction(rng),
            11 | 12 => self.delete_range(rng),
            13 if self.snapshots.len() < 3 => {
                self.snapshots.push((self.db.snapshot().expect("opens"), self.map.clone()));
            }
            14 if !self.snapshots.is_empty() => {
                self.snapshots.remove(rng.below(self.snapshots.len() as u64) as usize);
            }
            15 => self.db.checkpoint().expect("flushes"),
            16 if rng.one_in(3) => self.db.wait_for_merges().expect("merges"),
            17 => {
                let level = if rng.one_in(2) { None } else { Some(rng.below(4) as u8) };
                let (from, to) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
                let ends: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(&from), Bound::Excluded(&to));
                self.events.compact(level, ends).expect("merges");
            }
            18 => self.write_again_and_again(rng),
            _ => {
                let (key, value) = (key(rng.below(KEYS)), value(rng));
                self.events.put_with(&key, &value, Durability::None).expect("puts");
                self.map.insert(key, value);
            }
        }
    }
}

/// What a kill would leave now, opened: everything that was committed, and nothing that was deleted.
fn killed(from: &Dir, name: &str, case: &Case) {
    case.db.sync().expect("durable");
    let copy = Dir::new(name);
    std::fs::create_dir_all(&copy.0).expect("made");
    // All files of one moment: nothing is flushed, merged or checkpointed meanwhile.
    let moment = || {
        let stats = case.db.stats();
        (stats.log.end, stats.checkpoints.completed, stats.lsm[0].flushes, stats.lsm[0].merges)
    };
    loop {
        let before = moment();
        for file in std::fs::read_dir(&from.0).expect("a directory").flatten().filter(|f| f.file_name() != "lock") {
            std::fs::copy(file.path(), copy.0.join(file.file_name())).expect("copied");
        }
        if moment() == before {
            break;
        }
    }
    let db = Db::open(&copy.0, options()).expect("recovers");
    let events = db.keyspace("events").expect("there");
    compare("after a kill", &case.map, db.snapshot().expect("opens").scan(&events, ..).expect("scans"));
    assert!(db.check().expect("checks").is_clean());
    drop(events);
    db.close().expect("closes");
}

fn run(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let dir = Dir::new(&format!("lsm-model-{seed}"));
    let db = Db::open_or_create(&dir.0, options()).expect("made");
    // What was loaded lies on the last level, below everything.
    let mut map = Map::new();
    let mut load = db.bulk_load_of("events", lsm(&mut rng)).expect("begins");
    for n in (0..KEYS).filter(|_| rng.one_in(2)).collect::<Vec<_>>() {
        let value = value(&mut rng);
        load.push(&key(n), &value).expect("ascends");
        map.insert(key(n), value);
    }
    let events = load.finish().expect("ends");
    let mut case = Case { db, events, map, snapshots: Vec::new() };
    for n in 0..400 {
        case.step(&mut rng);
        if n % 25 == 0 {
            case.check(&mut rng);
        }
        if n % 100 == 70 {
            killed(&dir, &format!("lsm-model-killed-{seed}"), &case);
        }
        if n % 130 == 129 {
            let Case { db, events, map, snapshots } = case;
            drop((snapshots, events));
            assert!(db.check().expect("checks").is_clean());
            db.close().expect("closes");
            drop(db);
            let db = Db::open(&dir.0, options()).expect("opens");
            let events = db.keyspace("events").expect("there");
            case = Case { db, events, map, snapshots: Vec::new() };
            case.check(&mut rng);
        }
    }
    case.check(&mut rng);
    case.snapshots.clear();
    case.db.wait_for_merges().expect("merges");
    case.check(&mut rng);
    assert!(case.db.check().expect("checks").is_clean());
    drop(case.events);
    case.db.close().expect("closes");
}

#[test]
fn it_holds_what_a_map_holds() {
    (1..=4).for_each(run);
}

/// A deletion of a range is one word, whatever the number of rows.
#[test]
fn a_deletion_of_a_range_collects_no_keys() {
    let dir = Dir::new("lsm-range");
    let db = Db::open_or_create(&dir.0, options()).expect("made");
    let mut rng = Rng::from_seed(1);
    let mut load = db.bulk_load_of("events", lsm(&mut rng)).expect("begins");
    for n in 0..5000 {
        load.push(&key(n), b"value").expect("ascends");
    }
    let events = load.finish().expect("ends");
    let (snapshot, before) = (db.snapshot().expect("opens"), db.stats().log.group_bytes);
    events.delete_range(&key(10)[..]..&key(4990)[..]).expect("deletes");
    let written = db.stats().log.group_bytes - before;
    assert!(written < 1000, "{written} bytes of log for 4980 rows");
    assert_eq!(count(&db, &events), 20);
    assert_eq!(
        (events.get(&key(4000)).expect("reads"), snapshot.scan(&events, ..).expect("scans").count()),
        (None, 5000)
    );
    // What was written after it stays, also when all is merged.
    events.put(&key(4000), b"new").expect("puts");
    db.wait_for_merges().expect("merges");
    assert_eq!(events.get(&key(4000)).expect("reads").as_deref(), Some(&b"new"[..]));
    assert_eq!(snapshot.get(&events, &key(4000)).expect("reads").as_deref(), Some(&b"value"[..]));
    drop((snapshot, events));
    db.close().expect("closes");
    drop(db);
    let db = Db::open(&dir.0, options()).expect("opens");
    let events = db.keyspace("events").expect("there");
    assert_eq!(count(&db, &events), 21);
    events.clear().expect("clears");
    assert_eq!(count(&db, &events), 0);
    drop(events);
    db.close().expect("closes");
}
