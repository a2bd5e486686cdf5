//! Every adapter against a plain map: reads of own writes, scans both ways with bounds, rollback, several keyspaces,
//! transfers from several threads, and TPC-C with its consistency conditions.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

use varve_compare::bench::drive::Timing;
use varve_compare::bench::{lab, small};
use varve_compare::engine::{Engine, Memory, Settings};
use varve_compare::files::TempDir;
use varve_lab::adapter::{Direction, Durability, KeyRange, TxMode, Txn};
use varve_lab::tpcc;
use varve_rt::Rng;

const SETTINGS: Settings = Settings { cache_bytes: 64 << 20, page_size: 8192, memory: Memory::Ample };

fn dir(name: String) -> TempDir {
    TempDir::new(&std::env::temp_dir(), &name).expect("a directory")
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("{:03}", rng.below(200)).into_bytes()
}

fn rows<T: Txn>(
    tx: &mut T,
    ks: &T::Keyspace,
    range: KeyRange<'_>,
    way: Direction,
    limit: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    tx.scan(ks, range, way, |k, v| {
        found.push((k.to_vec(), v.to_vec()));
        if found.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("a scan");
    found
}

fn expected(map: &Map, from: &[u8], to: Option<&[u8]>, way: Direction, limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bounds = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
    let rows = map.range::<[u8], _>(bounds).map(|(k, v)| (k.clone(), v.clone()));
    match way {
        Direction::Forward => rows.take(limit).collect(),
        Direction::Reverse => rows.rev().take(limit).collect(),
    }
}

fn step<T: Txn>(tx: &mut T, ks: &T::Keyspace, map: &mut Map, rng: &mut Rng) {
    match rng.below(5) {
        0 => {
            let k = key(rng);
            assert_eq!(tx.get(ks, &k, |v| v.map(<[u8]>::to_vec)).expect("a read"), map.get(&k).cloned());
        }
        1 | 2 => {
            let (k, mut v) = (key(rng), vec![0; rng.below(2000) as usize]);
            rng.fill_bytes(&mut v);
            tx.put(ks, &k, &v).expect("a write");
            map.insert(k, v);
        }
        3 => {
            let k = key(rng);
            tx.delete(ks, &k).expect("a deletion");
            map.remove(&k);
        }
        _ => {
            let (a, b) = (key(rng), key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            let limit = 1 + rng.below(20) as usize;
            let to = (!rng.one_in(4)).then_some(&to[..]).filter(|to| *to > &from[..]);
            for way in [Direction::Forward, Direction::Reverse] {
                let range = KeyRange { from: &from, to };
                assert_eq!(rows(tx, ks, range, way, limit), expected(map, &from, to, way, limit), "{way:?} {range:?}");
            }
        }
    }
}

/// Random transactions over two keyspaces, some rolled back or dropped.
fn like_a_map<E: Engine>(seed: u64) {
    let dir = dir(format!("{}-map", E::NAME));
    let store = E::open(dir.path(), &SETTINGS).expect("a database");
    assert!(store.find_keyspace("none").expect("a look-up").is_none());
    let keyspaces = ["a", "b"].map(|name| store.keyspace(name).expect("a keyspace"));
    let mut maps = [Map::new(), Map::new()];
    let mut rng = Rng::from_seed(seed);
    for round in 0..60 {
        let how = [Durability::Sync, Durability::Async, Durability::None][round % 3];
        let mut tx = store.begin(TxMode::ReadWrite, how).expect("a transaction");
        let mut changed = maps.clone();
        for _ in 0..rng.between(1, 40) {
            let which = rng.below(2) as usize;
            step(&mut tx, &keyspaces[which], &mut changed[which], &mut rng);
        }
        match rng.below(4) {
            0 => tx.rollback(),
            1 => drop(tx),
            _ => {
                tx.commit().expect("a commit");
                maps = changed;
            }
        }
        let mut tx = store.begin(TxMode::ReadOnly, how).expect("a transaction");
        for (ks, map) in keyspaces.iter().zip(&maps) {
            let all = rows(&mut tx, ks, KeyRange::ALL, Direction::Forward, usize::MAX);
            assert_eq!(all, expected(map, &[], None, Direction::Forward, usize::MAX), "{} seed {seed}", E::NAME);
        }
        tx.commit().expect("a commit");
        let k = key(&mut rng);
        assert_eq!(
            store.get_one(&keyspaces[0], &k, |v| v.map(<[u8]>::to_vec)).expect("a read"),
            maps[0].get(&k).cloned()
        );
        store.put_one(&keyspaces[0], &k, b"single", how).expect("a write");
        maps[0].insert(k, b"single".to_vec());
    }
    let mut found = Vec::new();
    let each = |k: &[u8], v: &[u8]| {
        found.push((k.to_vec(), v.to_vec()));
        if found.len() == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.scan_from(&keyspaces[0], b"1", each).expect("a scan");
    assert_eq!(found, expected(&maps[0], b"1", None, Direction::Forward, 50));
    drop(keyspaces);
    store.close().expect("closed");
}

/// Four threads move money about; none is made or lost.
fn transfers_keep_the_sum<E: Engine>() {
    let dir = dir(format!("{}-transfers", E::NAME));
    let store = Arc::new(E::open(dir.path(), &SETTINGS).expect("a database"));
    let ks = store.keyspace("rows").expect("a keyspace");
    small::load(&*store, &ks, 1, (0..300u32).map(u64::from)).map(drop).expect("loaded");
    let timing = Timing { warmup: Duration::ZERO, measure: Duration::from_millis(200) };
    small::transfers(&store, &ks, 300, 4, timing, 1).expect("transfers");
    small::check_balances(&*store, &ks, 300).expect("the sum is kept");
}

/// Rows loaded in bulk are there, also after the database was closed and opened with little memory, and can be changed.
fn bulk_load_is_kept<E: Engine>() {
    const ROWS: u64 = 20_000;
    let dir = dir(format!("{}-bulk", E::NAME));
    let store = E::open(dir.path(), &SETTINGS).expect("a database");
    let (ks, _) = small::bulk_load(&store, 1, ROWS).expect("loaded");
    small::check_balances(&store, &ks, ROWS).expect("all rows");
    drop(ks);
    store.close().expect("closed");
    let scarce = Settings { page_size: 4096, memory: Memory::Scarce { clients: 2 }, ..SETTINGS };
    let store = E::open(dir.path(), &scarce).expect("the database");
    let ks = store.find_keyspace("rows").expect("a look-up").expect("the keyspace");
    small::check_balances(&store, &ks, ROWS).expect("all rows");
    store.put_one(&ks, &small::key(7), b"seven", Durability::Sync).expect("a write");
    let found = store.get_one(&ks, &small::key(7), |v| v.map(<[u8]>::to_vec)).expect("a read");
    assert_eq!(found.as_deref(), Some(&b"seven"[..]));
    drop(ks);
    store.close().expect("closed");
}

fn tpcc_is_consistent<E: Engine>() {
    let dir = dir(format!("{}-tpcc", E::NAME));
    let store = Arc::new(E::open(dir.path(), &SETTINGS).expect("a database"));
    tpcc::load(&store, tpcc::Scale::tiny(2), 1, 2, |_| ()).expect("loaded");
    let scale = varve_compare::bench::Scale::QUICK;
    let scale = varve_compare::bench::Scale { measure_tpcc: Duration::from_millis(300), ..scale };
    lab::run_tpcc(&store, &scale, 1, 4).expect("a run");
    lab::check_tpcc(&*store).expect("consistent");
}

macro_rules! engines {
    ($($(#[$gate:meta])* $name:ident: $store:ty),* $(,)?) => {$(
        $(#[$gate])*
        mod $name {
            #[test]
            fn like_a_map() {
                super::like_a_map::<$store>(1);
            }

            #[test]
            fn transfers_keep_the_sum() {
                super::transfers_keep_the_sum::<$store>();
            }

            #[test]
            fn bulk_load_is_kept() {
                super::bulk_load_is_kept::<$store>();
            }

            #[test]
            fn tpcc_is_consistent() {
                super::tpcc_is_consistent::<$store>();
            }
        }
    )*};
}

engines! {
    varve: varve_lab::adapter::varve::VarveStore,
    varve_lsm: varve_compare::adapter::varve_lsm::VarveLsm,
    sqlite: varve_compare::adapter::sqlite::SqliteStore,
    lmdb: varve_compare::adapter::lmdb::LmdbStore,
    redb: varve_compare::adapter::redb::RedbStore,
    fjall: varve_compare::adapter::fjall::FjallStore,
    sled: varve_compare::adapter::sled::SledStore,
    #[cfg(feature = "wiredtiger")]
    wiredtiger: varve_compare::adapter::wiredtiger::WtStore,
    #[cfg(feature = "rocksdb")]
    rocksdb: varve_compare::adapter::rocksdb::RocksStore,
}
