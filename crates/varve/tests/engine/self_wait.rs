//! Threads that wait for themselves: found at once within `transact`, by the time-out of locks elsewhere.

use std::time::Duration;
use varve::{Db, Devices, Error, Keyspace, Layout, Options, Result, Transaction};
use varve_models::MemDevice;
use varve_rt::{now, sim, sleep, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn database(lock_timeout: Option<Duration>) -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 4 << 20, lock_timeout, ..Options::default() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn simulated(f: impl FnOnce() + Send + 'static) {
    sim::run(sim::Config::default(), f).unwrap();
}

/// The error names the key and both transactions, and is not for `transact` to repeat.
fn names(error: &Error, key: &str, holder: u64) {
    let Error::WouldDeadlock { keyspace, key: named, asker, holder: held_by } = error else { panic!("{error}") };
    assert_eq!((keyspace.as_str(), named.as_str(), *held_by), ("rows", key, holder));
    let text = error.to_string();
    assert!(
        text.contains(&format!("transaction {asker} ")) && text.contains(&format!("transaction {holder},")),
        "{text}"
    );
    assert!(!error.is_retryable());
}

#[test]
fn what_would_wait_for_the_transaction_around_it_fails_at_once() {
    type Try = fn(&Db, &Keyspace) -> Result<()>;
    let tries: [Try; 6] = [
        |_, rows| rows.put(b"k", b"single"),
        |_, rows| rows.delete(b"k").map(drop),
        |_, rows| rows.put_from(b"k", &mut &b"stream"[..]).map(drop),
        |db, rows| db.transact(|inner| inner.put(rows, b"k", b"inner")),
        |db, rows| db.begin()?.get(rows, b"k").map(drop),
        |db, rows| db.begin()?.count(rows, &b"k"[..]..).map(drop),
    ];
    simulated(move || {
        let (db, rows) = database(None);
        for (n, attempt) in tries.into_iter().enumerate() {
            let mut attempts = 0;
            let mut body = |tx: &mut Transaction| {
                attempts += 1;
                tx.put(&rows, b"k", b"outer")?;
                names(&attempt(&db, &rows).unwrap_err(), "\"k\"", tx.id());
                // Other keys are free, and the transaction goes on.
                rows.put(b"other", &[n as u8])?;
                tx.put(&rows, b"l", b"outer")
            };
            db.transact(&mut body).unwrap();
            // Let out of the closure, it ends the transaction, once.
            let error = db.transact(|tx| tx.put(&rows, b"k", b"lost").and_then(|()| attempt(&db, &rows))).unwrap_err();
            assert!(matches!(error, Error::WouldDeadlock { .. }), "{error}");
            assert_eq!((attempts, rows.get(b"k").unwrap().as_deref()), (1, Some(&b"outer"[..])));
            rows.delete(b"k").unwrap();
        }
        // A range that the transaction has scanned is locked too.
        let error = db.transact(|tx| tx.count(&rows, ..).and_then(|_| rows.put(b"new", b""))).unwrap_err();
        assert!(matches!(error, Error::WouldDeadlock { .. }), "{error}");
        assert_eq!((db.stats().txn.retries, db.stats().txn.open), (0, 0));
        db.close().unwrap();
    });
}

/// The single write waits for another thread's transaction, which waits for the transaction around the write.
#[test]
fn a_wait_for_oneself_by_way_of_another_thread_is_a_conflict() {
    simulated(|| {
        let (db, rows) = database(None);
        let mut other = db.begin().unwrap();
        other.put(&rows, b"b", b"other").unwrap();
        let mut other = Some(other);
        let mut threads = Vec::new();
        let mut attempts = 0;
        db.transact(|tx| {
            attempts += 1;
            tx.put(&rows, b"a", b"around")?;
            if let Some(mut other) = other.take() {
                let rows = rows.clone();
                threads.push(spawn("other", move || other.put(&rows, b"a", b"other").and_then(|()| other.commit())));
                sleep(SECOND);
            }
            rows.put(b"b", b"single")
        })
        .unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        assert_eq!(attempts, 2, "the transaction around it gave way once");
        assert_eq!(rows.get(b"b").unwrap().unwrap(), b"single");
        db.close().unwrap();
    });
}

#[test]
fn two_transactions_of_one_thread_end_their_wait_by_the_time_out() {
    simulated(|| {
        let (db, rows) = database(Some(3 * SECOND));
        let mut first = db.begin().unwrap();
        let mut second = db.begin().unwrap();
        first.put(&rows, b"k", b"first").unwrap();
        second.put(&rows, b"mine", b"second").unwrap();
        let holder = format!("transaction {},", first.id());
        type Wait = fn(&mut Transaction, &Db, &Keyspace) -> Result<()>;
        let waits: [Wait; 5] = [
            |second, _, rows| second.put(rows, b"k", b"second"),
            |second, _, rows| second.get(rows, b"k").map(drop),
            |second, _, rows| second.count(rows, ..).map(drop),
            |_, _, rows| rows.put(b"k", b"single"),
            |_, db, rows| db.transact(|tx| tx.put(rows, b"k", b"repeated?")),
        ];
        for wait in waits {
            let began = now();
            let error = wait(&mut second, &db, &rows).unwrap_err();
            assert_eq!(began.elapsed(), 3 * SECOND, "{error}");
            let Error::LockTimeout { keyspace, waited, .. } = &error else { panic!("{error}") };
            assert_eq!((keyspace.as_str(), *waited), ("rows", 3 * SECOND));
            let text = error.to_string();
            assert!(
                text.contains(&holder) && text.contains("waits for no lock") && text.contains("lock_timeout"),
                "{text}"
            );
            assert!(!error.is_retryable());
        }
        // Both are as they were, and whoever waits less long is not concerned.
        let (rows2, waiting) = (rows.clone(), now());
        let patient = spawn("patient", move || rows2.put(b"k", b"patient").map(|()| waiting.elapsed()));
        sleep(2 * SECOND);
        first.commit().unwrap();
        assert!(patient.join().unwrap().unwrap() < 3 * SECOND);
        second.put(&rows, b"k", b"second").unwrap();
        second.commit().unwrap();
        assert_eq!(rows.get(b"mine").unwrap().unwrap(), b"second");
        assert_eq!((db.stats().txn.retries, db.stats().txn.open), (0, 0));
        db.close().unwrap();
    });
}

/// A deadlock that the waits themselves make is broken at once, long before the time-out, and repeated by `transact`.
#[test]
fn a_deadlock_of_two_threads_is_a_conflict_as_ever() {
    simulated(|| {
        let (db, rows) = database(Some(3 * SECOND));
        let began = now();
        let clients: Vec<_> = [[b"a", b"b"], [b"b", b"a"]]
            .into_iter()
            .map(|keys| {
                let (db, rows) = (db.clone(), rows.clone());
                spawn("client", move || {
                    db.transact(|tx| {
                        tx.put(&rows, keys[0], b"")?;
                        sleep(SECOND);
                        tx.put(&rows, keys[1], b"")
                    })
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
        assert!(db.stats().txn.conflicts > 0 && began.elapsed() < 6 * SECOND);
        db.close().unwrap();
    });
}
