//! Calls of the database from closures that it lends rows to: they fail, each of them and always, where they could
//! wait for the closure itself.

use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve::{
    BackupOptions, Db, Devices, Error, ErrorKind, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, Result,
    Snapshot, Transaction, TxOptions, TypedKeyspace, WriteBatch,
};
use varve_models::MemDevice;
use varve_rt::{catch_panic, sim, sleep, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn database(kind: KeyspaceKind) -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 8 << 20, ..Options::default() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace_of("rows", kind).unwrap();
    (0..10).for_each(|n| rows.put(key(n), b"value").unwrap());
    (db, rows)
}

fn kinds() -> [KeyspaceKind; 2] {
    [KeyspaceKind::Tree, KeyspaceKind::Lsm(LsmOptions::default())]
}

fn key(n: u8) -> [u8; 1] {
    [b'a' + n]
}

/// A wait for a latch looks around from time to time, so one that never ends shows in the clock alone.
fn simulated(f: impl FnOnce() + Send + 'static) {
    sim::run(sim::Config { limit: Some(600 * SECOND), ..sim::Config::default() }, f).unwrap();
}

/// Calls `f` for the first row only.
fn one(f: &mut dyn FnMut()) -> ControlFlow<()> {
    f();
    Break(())
}

type Lend = fn(&Db, &Keyspace, &mut dyn FnMut()) -> Result<()>;

/// Every way to be lent a row: key 3.
const LENDERS: [(&str, Lend); 9] = [
    ("get_with", |_, rows, f| rows.get_with(key(3), |_| f())),
    ("scan_with", |_, rows, f| rows.scan_with(&key(3)[..].., |_, _| one(f))),
    ("get_with of a snapshot", |db, rows, f| db.snapshot()?.get_with(rows, key(3), |_| f())),
    ("scan_with of a snapshot", |db, rows, f| db.snapshot()?.scan_with(rows, &key(3)[..].., |_, _| one(f))),
    ("get_with of a transaction", |db, rows, f| db.begin()?.get_with(rows, key(3), |_| f())),
    ("get_for_update_with", |db, rows, f| db.begin()?.get_for_update_with(rows, key(3), |_| f())),
    ("scan_with of a transaction", |db, rows, f| db.begin()?.scan_with(rows, &key(3)[..].., |_, _| one(f))),
    ("get_with of a read-only transaction", |db, rows, f| {
        db.begin_with(TxOptions::read_only())?.get_with(rows, key(3), |_| f())
    }),
    ("scan_with of a read-only transaction", |db, rows, f| {
        db.begin_with(TxOptions::read_only())?.scan_with(rows, &key(3)[..].., |_, _| one(f))
    }),
];

/// What a future gives at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it is refused at once"),
    }
}

type Call = fn(&Db, &Keyspace) -> Result<()>;

/// Calls that read, write, or wait for others who do.
const CALLS: [(&str, Call); 30] = [
    ("put", |_, rows| rows.put(key(3), b"new")),
    ("put of a new key", |_, rows| rows.put(b"b and more", b"new")),
    ("delete", |_, rows| rows.delete(key(3)).map(drop)),
    ("put_from", |_, rows| rows.put_from(key(3), &mut &b"new"[..]).map(drop)),
    ("update", |_, rows| rows.update(key(3), |_| None).map(drop)),
    ("delete_range", |_, rows| rows.delete_range(..)),
    ("get", |_, rows| rows.get(key(3)).map(drop)),
    ("get of a long key", |_, rows| rows.get([0; 4000]).map(drop)),
    ("get_with", |_, rows| rows.get_with(key(3), |_| ())),
    ("get_to", |_, rows| rows.get_to(key(3), &mut Vec::new()).map(drop)),
    ("multi_get", |_, rows| rows.multi_get(&[key(3), key(4)]).map(drop)),
    ("get_async", |_, rows| ready(rows.get_async(key(3))).map(drop)),
    ("multi_get_async", |_, rows| ready(rows.multi_get_async(&[key(3), key(4)])).map(drop)),
    ("get_async of types", |_, rows| {
        ready(TypedKeyspace::<[u8; 1], String>::new(rows.clone()).get_async(&[3])).map(drop)
    }),
    ("contains", |_, rows| rows.contains(key(3)).map(drop)),
    ("scan_with", |_, rows| rows.scan_with(.., |_, _| Continue(()))),
    ("iter", |_, rows| rows.iter().and_then(|mut rows| rows.try_for_each(|row| row.map(drop)))),
    ("len", |_, rows| rows.len().map(drop)),
    ("estimated_len", |_, rows| rows.estimated_len().map(drop)),
    ("set_read_only", |_, rows| rows.set_read_only(true).map(drop)),
    ("transact", |db, rows| db.transact(|tx| tx.put(rows, key(3), b"new"))),
    ("write", |db, rows| db.write(WriteBatch::new().put(rows, key(3), b"new"))),
    ("keyspace_or_create", |db, _| db.keyspace_or_create("rows").map(drop)),
    ("drop_keyspace", |db, _| db.drop_keyspace("rows")),
    ("bulk_load", |db, _| db.bulk_load("others").map(drop)),
    ("checkpoint", |db, _| db.checkpoint()),
    ("compact", |db, _| db.compact().map(drop)),
    ("check", |db, _| db.check().map(drop)),
    ("backup", |db, _| db.backup(&mut Vec::new(), BackupOptions::default()).map(drop)),
    ("close", |db, _| db.close()),
];

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    let error = result.expect_err(what);
    assert!(matches!(error, Error::Reentrant), "{what}: {error}");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Deadlock, false), "{what}");
    assert!(error.to_string().contains("copy out what is needed"), "{error}");
}

/// The test of all: none of these calls may hang, and none depends on who else is about.
#[test]
fn calls_within_a_closure_that_was_lent_a_row_fail() {
    for kind in kinds() {
        simulated(move || {
            let (db, rows) = database(kind);
            for (lender, lend) in LENDERS {
                let mut lent = 0;
                let mut within = || {
                    lent += 1;
                    CALLS.iter().for_each(|(name, call)| refused(call(&db, &rows), &format!("{name} within {lender}")));
                };
                lend(&db, &rows, &mut within).unwrap();
                assert!(lent > 0, "{lender} lends");
                // Nothing was done, and all is well again afterwards.
                assert_eq!((rows.len().unwrap(), rows.get(key(3)).unwrap().unwrap()), (10, b"value".to_vec()));
                rows.put(key(3), b"value").unwrap();
            }
            db.check().unwrap();
            db.close().unwrap();
        });
    }
}

/// What was begun before can only be dropped, which ends it.
#[test]
fn what_is_open_already_goes_no_further_within_the_closure() {
    simulated(|| {
        let (db, rows) = database(KeyspaceKind::Tree);
        for (lender, lend) in LENDERS {
            let snapshot: Snapshot = db.snapshot().unwrap();
            let scanned = db.snapshot().unwrap();
            let mut unread = scanned.scan(&rows, ..).unwrap();
            let mut tx: Transaction = db.begin().unwrap();
            tx.put(&rows, key(7), b"new").unwrap();
            let savepoint = tx.savepoint().unwrap();
            let mut open = Some((tx, snapshot));
            let mut within = || {
                let Some((mut tx, snapshot)) = open.take() else { return };
                refused(snapshot.get(&rows, key(3)), lender);
                refused(snapshot.count(&rows, ..), lender);
                refused(ready(snapshot.get_async(&rows, key(3))), lender);
                refused(ready(snapshot.multi_get_async(&rows, &[key(3), key(4)])), lender);
                refused(unread.next_row(), lender);
                refused(tx.get(&rows, key(7)), lender);
                refused(tx.put(&rows, key(3), b"new"), lender);
                refused(tx.delete_range(&rows, ..), lender);
                refused(tx.savepoint().map(drop), lender);
                refused(tx.rollback_to(savepoint), lender);
                refused(tx.commit(), lender);
            };
            lend(&db, &rows, &mut within).unwrap();
            assert!(open.is_none(), "{lender} lends");
            drop((unread, scanned));
            assert_eq!(rows.get(key(7)).unwrap().unwrap(), b"value", "it was rolled back");
            assert_eq!((db.stats().txn.open, db.stats().txn.snapshots), (0, 0), "{lender}");
        }
        db.close().unwrap();
    });
}

/// A thread that waits to write to the leaf keeps later readers off, the one included that is lent a row of it.
#[test]
fn a_read_behind_a_writer_that_waits_for_the_closure_fails() {
    for (lender, lend) in LENDERS {
        simulated(move || {
            let (db, rows) = database(KeyspaceKind::Tree);
            let mut writer = None;
            let mut within = || {
                let own = rows.clone();
                writer.get_or_insert_with(|| spawn("writer", move || own.put(key(4), b"written")));
                sleep(SECOND);
                refused(rows.get(key(5)), lender);
            };
            lend(&db, &rows, &mut within).unwrap();
            writer.unwrap().join().unwrap().unwrap();
            assert_eq!(rows.get(key(4)).unwrap().unwrap(), b"written");
            db.close().unwrap();
        });
    }
}

/// Each writes to the leaf of which the other was lent a row.
#[test]
fn two_closures_that_would_wait_for_each_other_fail() {
    simulated(|| {
        let (db, one) = database(KeyspaceKind::Tree);
        let two = db.create_keyspace("two").unwrap();
        two.put(key(3), b"value").unwrap();
        let copier = |from: Keyspace, to: Keyspace| {
            spawn("copier", move || {
                from.scan_with(.., |key, value| {
                    sleep(SECOND);
                    refused(to.put(key, value), "a copy of a row");
                    Break(())
                })
            })
        };
        let copiers = [copier(one.clone(), two.clone()), copier(two, one)];
        copiers.into_iter().for_each(|copier| copier.join().unwrap().unwrap());
        db.close().unwrap();
    });
}

#[test]
fn other_threads_and_other_databases_are_not_concerned() {
    simulated(|| {
        let ((db, rows), (other, copy)) = (database(KeyspaceKind::Tree), database(KeyspaceKind::Tree));
        let mut threads = Vec::new();
        rows.scan_with(&key(3)[..]..=&key(3)[..], |key, value| {
            let (own, own_db) = (rows.clone(), db.clone());
            threads.push(spawn("other", move || {
                let elsewhere = own_db.create_keyspace("elsewhere")?;
                elsewhere.put(b"key", own.get(b"a")?.unwrap())
            }));
            // The other thread comes to its end meanwhile.
            sleep(SECOND);
            assert!(db.keyspace_names().values().any(|name| name == "elsewhere"));
            copy.put(key, [value, value].concat()).unwrap();
            // Lent rows of both, it can call neither, till the inner closure has returned.
            copy.get_with(key, |value| {
                assert_eq!(value, Some(&b"valuevalue"[..]));
                refused(rows.get(b"a"), "the outer one");
                refused(copy.get(b"a"), "the inner one");
            })
            .unwrap();
            copy.put(b"more", value).unwrap();
            refused(rows.get(b"a"), "the outer one still");
            Continue(())
        })
        .unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        assert_eq!((rows.len().unwrap(), copy.len().unwrap()), (10, 11));
        db.close().unwrap();
        other.close().unwrap();
    });
}

/// On threads of the system, and on those of a simulation.
#[test]
fn a_closure_that_panics_leaves_nothing_behind() {
    let panics = || {
        let (db, rows) = database(KeyspaceKind::Tree);
        for (lender, lend) in LENDERS {
            catch_panic(|| lend(&db, &rows, &mut || panic!("the closure's own affair"))).unwrap_err();
            rows.put(key(3), lender).unwrap();
            assert_eq!(rows.get(key(3)).unwrap().unwrap(), lender.as_bytes());
            lend(&db, &rows, &mut || refused(rows.get(key(3)), lender)).unwrap();
        }
        db.close().unwrap();
    };
    panics();
    simulated(panics);
    // What a simulation leaves on its thread is nothing either.
    panics();
}

/// Rows that `retain`, `update` and `transact` hand over are copies: their closures may call.
#[test]
fn closures_that_are_handed_copies_may_call_the_database() {
    simulated(|| {
        let (db, rows) = database(KeyspaceKind::Tree);
        let others = db.create_keyspace("others").unwrap();
        others.put(key(3), b"kept").unwrap();
        let removed = db.transact(|tx| tx.retain(&rows, .., |key, _| others.contains(key).unwrap())).unwrap();
        assert_eq!((removed, rows.len().unwrap()), (9, 1));
        rows.update(key(3), |_| others.get(key(3)).unwrap()).unwrap();
        assert_eq!(rows.get(key(3)).unwrap().unwrap(), b"kept");
        db.close().unwrap();
    });
}
