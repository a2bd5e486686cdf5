//! Conflicts and `transact`: what is repeated and what is not, how long it waits, and whom a deadlock costs.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, Result, TxOptions};
use varve_models::MemDevice;
use varve_rt::{Event, now, sim, sleep, spawn};

fn database() -> (Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 4 << 20, durability: Durability::None, ..Options::default() };
    let db = Db::create_on(devices, &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

/// In simulations with chaos, and once on OS threads.
fn in_both_worlds(seeds: u64, f: fn()) {
    for seed in 0..seeds {
        sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, f).unwrap();
    }
    f();
}

fn conflict() -> Error {
    Error::Conflict { keyspace: "rows".into(), reason: "made up".into() }
}

#[test]
fn conflicts_are_repeated_with_growing_waits_until_the_retries_are_used_up() {
    let body = |exact: bool| {
        let (db, rows) = database();
        let mut began = Vec::new();
        let result = db.transact(|tx| {
            began.push(now());
            tx.put(&rows, b"attempts", &[began.len() as u8])?;
            if began.len() < 6 { Err(conflict()) } else { Ok(began.len()) }
        });
        assert_eq!(result.unwrap(), 6);
        assert_eq!(rows.get(b"attempts").unwrap().unwrap(), [6]);
        assert_eq!(db.stats().txn.retries, 5);
        if exact {
            let waits: Vec<Duration> = began.windows(2).map(|w| w[1] - w[0]).collect();
            let most = |n: usize| Duration::from_micros(20 << n);
            assert!(waits.iter().enumerate().all(|(n, wait)| *wait <= most(n)), "{waits:?}");
            assert!(waits.iter().sum::<Duration>() > Duration::ZERO, "{waits:?}");
        }
        let mut attempts = 0;
        let result: Result<()> = db.transact_with(TxOptions { retries: 3, ..TxOptions::default() }, |tx| {
            attempts += 1;
            tx.put(&rows, b"never", b"")?;
            Err(conflict())
        });
        assert!(matches!(result, Err(Error::Conflict { .. })));
        assert_eq!((attempts, rows.get(b"never").unwrap()), (4, None));
        db.close().unwrap();
    };
    for seed in 0..20 {
        sim::run(sim::Config { seed, ..sim::Config::default() }, || body(true)).unwrap();
    }
    body(false);
}

#[test]
fn other_errors_end_it_at_once_and_nothing_is_left() {
    let (db, rows) = database();
    for error in [
        Error::Invalid("mine".into()),
        Error::KeySize { len: 0, max: 1 },
        Error::TransactionTooLarge { what: "things", needed: 2, limit: 1 },
        Error::OverBudget { class: "things", requested: 2, available: 1 },
        Error::NoSpace("disk".into()),
        Error::Poisoned("log".into()),
    ] {
        assert!(!error.is_retryable());
        let mut attempts = 0;
        let result: Result<()> = db.transact(|tx| {
            attempts += 1;
            tx.put(&rows, b"k", b"v")?;
            Err(error.clone())
        });
        assert_eq!(result.unwrap_err().to_string(), error.to_string());
        assert_eq!((attempts, rows.get(b"k").unwrap()), (1, None));
    }
    // An error of the commit, too.
    let mut attempts = 0;
    let result = db.transact(|tx| {
        attempts += 1;
        tx.put(&rows, &[0; 5000], b"v")
    });
    assert!(matches!(result, Err(Error::KeySize { .. })));
    assert_eq!((attempts, db.stats().txn.retries, db.stats().txn.open), (1, 0, 0));
    db.close().unwrap();
}

/// Waits until so many waits for locks have begun.
fn until_lock_waits(db: &Db, n: u64) {
    while db.stats().txn.lock_waits < n {
        sleep(Duration::from_micros(100));
    }
}

/// Two transactions lock two keys crosswise. `old_first`: the elder one waits first, so that the younger closes the
/// cycle.
fn deadlock(old_first: bool) {
    let (db, rows) = database();
    let mut elder = db.begin().unwrap();
    let mut younger = db.begin().unwrap();
    elder.put(&rows, b"x", b"elder").unwrap();
    younger.put(&rows, b"y", b"younger").unwrap();
    younger.put(&rows, b"z", b"younger").unwrap();
    let (elder_goes, younger_goes) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let one = {
        let (rows, go) = (rows.clone(), elder_goes.clone());
        spawn("elder", move || {
            go.wait();
            elder.put(&rows, b"y", b"elder").unwrap();
            elder.commit().unwrap();
        })
    };
    let other = {
        let (rows, go) = (rows.clone(), younger_goes.clone());
        spawn("younger", move || {
            go.wait();
            let error = younger.get(&rows, b"x").unwrap_err();
            assert!(error.is_retryable() && matches!(error, Error::Conflict { .. }), "{error}");
            assert!(error.to_string().contains("rows") && error.to_string().contains("run the transaction again"));
            // Everything it is asked from now on has the same answer; nothing of it is left.
            let same = |result: Result<()>| assert_eq!(result.unwrap_err().to_string(), error.to_string());
            same(younger.put(&rows, b"w", b""));
            same(younger.delete(&rows, b"w"));
            same(younger.get(&rows, b"y").map(drop));
            same(younger.count(&rows, ..).map(drop));
            same(younger.scan(&rows, ..).map(drop));
            same(younger.savepoint().map(drop));
            same(younger.commit());
        })
    };
    let (first, second) = if old_first { (elder_goes, younger_goes) } else { (younger_goes, elder_goes) };
    first.set();
    until_lock_waits(&db, 1);
    second.set();
    one.join().unwrap();
    other.join().unwrap();
    let get = |key: &[u8]| rows.get(key).unwrap();
    assert_eq!((get(b"x"), get(b"y"), get(b"z")), (Some(b"elder".to_vec()), Some(b"elder".to_vec()), None));
    let stats = db.stats().txn;
    assert_eq!((stats.conflicts, stats.open), (1, 0), "one conflict ends the deadlock");
    db.close().unwrap();
}

#[test]
fn a_deadlock_costs_the_youngest_whoever_closes_it() {
    in_both_worlds(20, || {
        deadlock(true);
        deadlock(false);
    });
}

#[test]
fn a_repeated_transaction_keeps_its_age() {
    in_both_worlds(20, || {
        let (db, rows) = database();
        let (first_try, again) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let repeated = {
            let (db, rows, first_try, again) = (db.clone(), rows.clone(), first_try.clone(), again.clone());
            spawn("repeated", move || {
                let mut attempts = 0;
                db.transact(|tx| {
                    attempts += 1;
                    tx.put(&rows, b"x", b"repeated")?;
                    if attempts == 1 {
                        first_try.set();
                        return Err(conflict());
                    }
                    again.wait();
                    tx.put(&rows, b"y", b"repeated")
                })
                .map(|()| attempts)
            })
        };
        first_try.wait();
        // Younger than the first attempt, older than the second.
        let mut between = db.begin().unwrap();
        between.put(&rows, b"y", b"between").unwrap();
        let between = {
            let rows = rows.clone();
            spawn("between", move || between.put(&rows, b"x", b"between").and_then(|()| between.commit()))
        };
        // It either waits for the second attempt, or was faster than it and is done.
        while db.stats().txn.lock_waits == 0 && db.stats().txn.commits == 0 {
            sleep(Duration::from_micros(100));
        }
        again.set();
        let between = between.join().unwrap();
        let attempts = repeated.join().unwrap().unwrap();
        let conflicts = db.stats().txn.conflicts;
        assert_eq!(attempts, 2, "the repeated one is the elder of the two; {conflicts} conflicts");
        assert_eq!(between.is_err(), conflicts == 1, "{between:?}");
        assert_eq!(rows.get(b"y").unwrap().unwrap(), b"repeated");
        db.close().unwrap();
    });
}

#[test]
fn crosswise_increments_all_go_through() {
    in_both_worlds(10, || {
        let (db, rows) = database();
        let add = |tx: &mut varve::Transaction, rows: &Keyspace, key: &[u8]| {
            let n = tx.get(rows, key)?.map_or(0, |v| u64::from_be_bytes(v.try_into().unwrap()));
            tx.put(rows, key, &(n + 1).to_be_bytes())
        };
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (db, rows) = (db.clone(), rows.clone());
                spawn(format!("client {client}"), move || {
                    for _ in 0..25 {
                        let keys: [&[u8]; 2] = if client % 2 == 0 { [b"a", b"b"] } else { [b"b", b"a"] };
                        // What a conflict is answered with does not matter: the commit tells.
                        db.transact(|tx| keys.iter().try_for_each(|key| add(tx, &rows, key)).or(Ok(()))).unwrap();
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        for key in [b"a", b"b"] {
            assert_eq!(rows.get(key).unwrap().unwrap(), 100u64.to_be_bytes());
        }
        let stats = db.stats().txn;
        assert_eq!(stats.conflicts, stats.retries, "every conflict was repeated");
        db.close().unwrap();
    });
}
