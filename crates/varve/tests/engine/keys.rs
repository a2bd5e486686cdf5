//! Keys and ranges at the edges: the empty key, keys that are too long, ranges of all kinds against a simple model.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use varve::{Db, Devices, Durability, Error, KeyRange, Keyspace, Layout, Options, TxOptions};
use varve_models::MemDevice;
use varve_rt::{Rng, sim, spawn};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn devices() -> Devices {
    Devices::new(MemDevice::new(0), MemDevice::new(0))
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, durability: Durability::None, ..Options::default() }
}

fn database() -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    let db = Db::create_on(devices(), &layout, options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

/// A key that is too long is put by nobody, so it is nowhere: whoever reads or deletes it is told just that.
#[test]
fn a_key_that_is_too_long_has_one_answer_everywhere() {
    let (db, rows) = database();
    rows.put(b"k", b"v").unwrap();
    rows.put(&[0xff; 1024], b"longest").unwrap();
    for long in [vec![0xff; 1025], vec![0; 1 << 20]] {
        let mut tx = db.begin().unwrap();
        let mut sink = std::io::sink();
        let refused = [
            rows.put(&long, b"v").unwrap_err(),
            rows.put_from(&long, &mut &b"v"[..]).unwrap_err(),
            tx.put(&rows, &long, b"v").unwrap_err(),
            tx.put_from(&rows, &long, &mut &b"v"[..]).unwrap_err(),
            db.bulk_load("more").unwrap().push(&long, b"v").unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::KeySize { len, max: 1024 } if len == long.len()), "{error}");
        }
        let snapshot = db.snapshot().unwrap();
        assert_eq!((rows.get(&long).unwrap(), tx.get(&rows, &long).unwrap()), (None, None));
        assert_eq!((snapshot.get(&rows, &long).unwrap(), tx.get_for_update(&rows, &long).unwrap()), (None, None));
        assert!(!rows.contains(&long).unwrap() && !tx.contains(&rows, &long).unwrap());
        assert_eq!(rows.get_to(&long, &mut sink).unwrap(), None);
        assert_eq!(tx.get_to(&rows, &long, &mut sink).unwrap(), None);
        assert!(!rows.delete(&long).unwrap());
        tx.delete(&rows, &long).unwrap();
        // As the end of a range it is a place between keys like any other.
        let below = tx.count(&rows, ..&long[..]).unwrap();
        assert_eq!((below, tx.count(&rows, &long[..]..).unwrap()), if long[0] == 0 { (0, 2) } else { (2, 0) });
        assert_eq!(snapshot.count(&rows, &long[..]..=&long[..]).unwrap(), 0);
        assert_eq!(tx.delete_range(&rows, &long[..]..=&long[..]).unwrap(), 0);
        tx.commit().unwrap();
    }
    assert_eq!(db.snapshot().unwrap().count(&rows, ..).unwrap(), 2);
    let reader = db.begin_with(TxOptions::read_only()).unwrap();
    drop(reader);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

#[test]
fn the_empty_key_is_the_lowest_of_all_and_like_any_other() {
    let devices = devices();
    let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
    let db = Db::create_on(devices.clone(), &layout, options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let mut model = Rows::new();
    for n in 0..3000u32 {
        // In the middle of it, so that it comes to leaves that exist, with keys that share their beginnings.
        let key = if n == 1500 { Vec::new() } else { format!("key{n:05}").into_bytes() };
        rows.put(&key, &[n as u8; 20]).unwrap();
        model.insert(key, vec![n as u8; 20]);
    }
    let snapshot = db.snapshot().unwrap();
    rows.put(b"", &[3; 9000]).unwrap();
    assert_eq!(snapshot.get(&rows, b"").unwrap().unwrap(), model[&b""[..]]);
    db.transact(|tx| {
        assert_eq!(tx.get(&rows, b"")?.unwrap().len(), 9000);
        assert_eq!(tx.count(&rows, &b""[..]..=&b""[..])?, 1);
        assert_eq!(tx.count(&rows, ..&b"\0"[..])?, 1);
        assert_eq!(tx.count(&rows, (Excluded(&b""[..]), Unbounded))?, 2999);
        tx.delete(&rows, b"")?;
        assert_eq!(tx.count(&rows, ..)?, 2999);
        tx.put(&rows, b"", b"again")
    })
    .unwrap();
    drop(snapshot);
    model.insert(Vec::new(), b"again".to_vec());
    let mut load = db.bulk_load("loaded").unwrap();
    model.iter().for_each(|(key, value)| load.push(key, value).unwrap());
    drop((load.finish().unwrap(), rows));
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
    let db = Db::open_on(devices, options()).unwrap();
    for name in ["rows", "loaded"] {
        let rows = db.keyspace(name).unwrap();
        let snapshot = db.snapshot().unwrap();
        assert!(snapshot.scan(&rows, ..).unwrap().map(|row| row.unwrap()).eq(model.clone()));
        assert!(snapshot.scan_rev(&rows, ..).unwrap().map(|row| row.unwrap()).eq(model.clone().into_iter().rev()));
        assert_eq!(snapshot.scan(&rows, KeyRange::prefix("")).unwrap().count(), 3000);
        assert_eq!(snapshot.scan_rev(&rows, ..&b"\0"[..]).unwrap().count(), 1);
        drop(snapshot);
        assert!(rows.delete(b"").unwrap() && !rows.delete(b"").unwrap());
        assert_eq!(rows.get(b"").unwrap(), None);
    }
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

/// Few bytes, so that keys are beginnings of each other; now and then a long one; now and then the empty one.
fn key(rng: &mut Rng) -> Vec<u8> {
    let mut key = match rng.below(40) {
        0 => return Vec::new(),
        _ => rng.below(400).to_be_bytes()[6..].to_vec(),
    };
    key.extend((0..rng.below(4)).map(|_| [0u8, 1, 0xff][rng.below(3) as usize]));
    key.resize(key.len() + if rng.below(8) == 0 { 900 } else { 0 }, 0x55);
    key
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(3) {
        0 => Included(key(rng)),
        1 => Excluded(key(rng)),
        _ => Unbounded,
    }
}

fn inside<'m>(
    model: &'m Rows,
    (low, high): &'m (Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)> {
    model.iter().filter(move |(k, _)| {
        let above = match low {
            Included(l) => *k >= l,
            Excluded(l) => *k > l,
            Unbounded => true,
        };
        above
            && match high {
                Included(h) => *k <= h,
                Excluded(h) => *k < h,
                Unbounded => true,
            }
    })
}

/// One call on a transaction and on what it should hold.
fn step(
    tx: &mut varve::Transaction,
    rows: &Keyspace,
    model: &mut Rows,
    marks: &mut Vec<(varve::Savepoint, Rows)>,
    rng: &mut Rng,
) {
    let range = (bound(rng), bound(rng));
    let asked = (range.0.as_ref().map(|k| &k[..]), range.1.as_ref().map(|k| &k[..]));
    match rng.below(12) {
        0..5 => {
            let (key, len) = (key(rng), if rng.below(30) == 0 { 9000 } else { rng.below(200) });
            let value = vec![rng.below(256) as u8; len as usize];
            tx.put(rows, &key, &value).unwrap();
            model.insert(key, value);
        }
        5 => {
            let key = key(rng);
            tx.delete(rows, &key).unwrap();
            model.remove(&key);
        }
        6 => {
            let found: Vec<_> = tx.scan(rows, asked).unwrap().map(|row| row.unwrap()).collect();
            assert!(found.iter().map(|(k, v)| (k, v)).eq(inside(model, &range)), "scan of {range:?}");
        }
        7 => {
            let mut found: Vec<_> = tx.scan_rev(rows, asked).unwrap().map(|row| row.unwrap()).collect();
            found.reverse();
            assert!(found.iter().map(|(k, v)| (k, v)).eq(inside(model, &range)), "reverse scan of {range:?}");
        }
        8 => assert_eq!(tx.count(rows, asked).unwrap(), inside(model, &range).count() as u64, "count of {range:?}"),
        9 if rng.below(4) == 0 => match tx.delete_range(rows, asked) {
            Ok(n) => {
                let gone: Vec<_> = inside(model, &range).map(|(k, _)| k.clone()).collect();
                assert_eq!(n, gone.len() as u64, "deletion of {range:?}");
                gone.iter().for_each(|k| drop(model.remove(k)));
            }
            Err(error) => {
                assert!(matches!(error, Error::TransactionTooLarge { .. } | Error::OverBudget { .. }), "{error}")
            }
        },
        10 => marks.push((tx.savepoint().unwrap(), model.clone())),
        11 if !marks.is_empty() => {
            let at = rng.below(marks.len() as u64) as usize;
            tx.rollback_to(marks[at].0).unwrap();
            model.clone_from(&marks[at].1);
            marks.truncate(at + 1);
        }
        _ => {}
    }
}

#[test]
fn ranges_of_all_kinds_agree_with_a_model() {
    for seed in 1..=4 {
        let (db, rows) = database();
        let mut rng = Rng::from_seed(seed);
        let mut model = Rows::new();
        for _ in 0..60 {
            let mut tx = db.begin().unwrap();
            let (mut mine, mut marks) = (model.clone(), Vec::new());
            (0..40).for_each(|_| step(&mut tx, &rows, &mut mine, &mut marks, &mut rng));
            let snapshot = db.snapshot().unwrap();
            if rng.below(4) > 0 {
                tx.commit().unwrap();
            } else {
                drop(tx);
                mine.clone_from(&model);
            }
            let before = snapshot.scan_rev(&rows, ..).unwrap().map(|row| row.unwrap());
            assert!(before.eq(model.into_iter().rev()), "seed {seed}: a snapshot shows what came after it");
            model = mine;
        }
        assert!(db.check().unwrap().is_clean());
        for class in db.stats().budget.iter().filter(|c| ["locks", "write sets", "versions"].contains(&c.class.name()))
        {
            assert!(class.used < 64 << 10, "seed {seed}: {class:?} after all transactions ended");
        }
        db.close().unwrap();
    }
}

/// Single writes beside transactions that lock ranges: everybody gets on, and nobody is told of a deadlock that was not
/// broken.
#[test]
fn single_writes_get_on_among_ranges() {
    for seed in 0..6 {
        sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, move || {
            let (db, rows) = database();
            (0..60u64).for_each(|n| rows.put(&n.to_be_bytes(), b"v").unwrap());
            let clients: Vec<_> = (0..6)
                .map(|client| {
                    let (db, rows) = (db.clone(), rows.clone());
                    spawn(format!("client {client}"), move || client_among_ranges(&db, &rows, client, seed))
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            assert!(db.check().unwrap().is_clean());
            db.close().unwrap();
        })
        .unwrap();
    }
}

fn client_among_ranges(db: &Db, rows: &Keyspace, client: u64, seed: u64) {
    let mut rng = Rng::from_seed(seed * 100 + client);
    let key = |n: u64| n.to_be_bytes();
    for _ in 0..40 {
        let (a, b, c) = (rng.below(50), rng.below(60), rng.below(60));
        match client % 3 {
            0 => rows.put(&key(b), b"single").unwrap(),
            1 => db
                .transact(|tx| {
                    let n = tx.count(rows, &key(a)[..]..&key(a + 10)[..])?;
                    tx.put(rows, &key(b), &n.to_be_bytes())?;
                    tx.put(rows, &key(c), b"counted")
                })
                .unwrap(),
            _ => db
                .transact(|tx| {
                    tx.put(rows, &key(b), b"mine")?;
                    tx.delete_range(rows, &key(a)[..]..&key(a + 5)[..])?;
                    (a..a + 5).try_for_each(|n| tx.put(rows, &key(n), b"again"))
                })
                .unwrap(),
        }
    }
}
