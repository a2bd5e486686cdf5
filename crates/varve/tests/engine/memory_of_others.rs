//! Memory that other transactions hold: `transact` waits for it and begins anew, a bounded number of times. What one
//! transaction alone needs too much of is an error at once.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, Result, Transaction, TxOptions};
use varve_models::MemDevice;
use varve_rt::{Event, sim, sleep, spawn};

fn database() -> (Db, Keyspace) {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let options = Options { cache_bytes: 4 << 20, durability: Durability::None, ..Options::default() };
    let db = Db::create_on(devices, &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

fn key(n: usize) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn is_over(error: &Error, class: &str) -> bool {
    matches!(error, Error::OverBudget { class: found, .. } if *found == class)
}

/// Opens transactions of one call each until there is no memory for one more: for the call of that number, since locks
/// have their memory in parts.
fn all_taken(db: &Db, class: &str, mut call: impl FnMut(&mut Transaction, usize) -> Result<()>) -> Vec<Transaction> {
    let mut all = Vec::new();
    loop {
        let mut tx = db.begin().unwrap();
        match call(&mut tx, all.len()) {
            Ok(()) => all.push(tx),
            Err(error) => {
                assert!(is_over(&error, class), "{error}");
                return all;
            }
        }
    }
}

type Call<'a> = Box<dyn Fn(&mut Transaction, usize) -> Result<()> + Send + 'a>;

/// What takes memory for locks, and what takes it for writes: of the latter as much as is not worth a run by itself.
fn calls(rows: &Keyspace) -> [(&'static str, Call<'_>); 2] {
    [
        ("locks", Box::new(|tx, n| tx.get(rows, key(n)).map(drop))),
        ("write sets", Box::new(|tx, n| tx.put(rows, key(n), [7; 6000]))),
    ]
}

#[test]
fn a_transaction_waits_for_memory_that_others_give_back() {
    for seed in 0..4 {
        let config = sim::Config { seed, ..sim::Config::default() };
        sim::run(config, || {
            let (db, rows) = database();
            for (class, call) in calls(&rows) {
                let others = all_taken(&db, class, &call);
                let next = others.len();
                let refused = Arc::new(Event::new());
                let holder = {
                    let refused = refused.clone();
                    spawn("holder", move || {
                        refused.wait();
                        sleep(Duration::from_millis(5));
                        drop(others);
                    })
                };
                let before = db.stats().txn.retries;
                let mut attempts = 0;
                db.transact(|tx| {
                    attempts += 1;
                    let done = call(tx, next);
                    if done.is_err() {
                        refused.set();
                    }
                    done
                })
                .unwrap();
                holder.join().unwrap();
                assert!(attempts > 1, "{class}: there was no memory at first");
                assert_eq!(db.stats().txn.retries, before + attempts - 1);
            }
            db.close().unwrap();
        })
        .unwrap();
    }
}

/// Of errors of the caller's own, too.
#[test]
fn memory_that_is_not_given_back_is_an_error_in_the_end() {
    let (db, rows) = database();
    for (class, call) in calls(&rows) {
        let others = all_taken(&db, class, &call);
        let next = others.len();
        let options = TxOptions { retries: 3, ..TxOptions::default() };
        let mut attempts = 0;
        let result = db.transact_with(options, |tx| {
            attempts += 1;
            call(tx, next)
        });
        assert!(is_over(&result.unwrap_err(), class));
        assert_eq!(attempts, 4, "{class}");
        let result = db.try_transact(options, |tx| -> Result<(), Box<dyn std::error::Error>> {
            attempts += 1;
            call(tx, next).map_err(|error| format!("mine: {error}").into())
        });
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("mine: memory budget exhausted for"), "{error}");
        assert_eq!(attempts, 8, "{class}: the closure's own error hides it");
        drop(others);
        db.transact_with(options, |tx| call(tx, next)).unwrap();
    }
    db.close().unwrap();
}

/// Many keyspaces with one long key locked in each: there is nothing to make coarser.
fn lock_many(tx: &mut Transaction, keyspaces: &[Keyspace]) -> Result<()> {
    keyspaces.iter().try_for_each(|rows| tx.get_for_update(rows, [b'k'; 1000]).map(drop))
}

fn many(db: &Db, n: usize) -> Vec<Keyspace> {
    (0..n).map(|n| db.create_keyspace(&format!("rows{n}")).unwrap()).collect()
}

#[test]
fn two_transactions_that_need_more_than_half_each_both_go_through() {
    for seed in 0..4 {
        sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, || {
            let (db, _) = database();
            let limit = db.stats().budget.iter().find(|class| class.class.name() == "locks").unwrap().limit;
            let parts: [Vec<Keyspace>; 2] = {
                let all = many(&db, limit as usize * 7 / 5 / 2000);
                [all[..all.len() / 2].to_vec(), all[all.len() / 2..].to_vec()]
            };
            let threads: Vec<_> = parts
                .into_iter()
                .enumerate()
                .map(|(n, keyspaces)| {
                    let db = db.clone();
                    spawn(format!("client {n}"), move || {
                        for _ in 0..5 {
                            db.transact(|tx| {
                                lock_many(tx, &keyspaces)?;
                                sleep(Duration::from_millis(1));
                                tx.put(&keyspaces[0], "done", "")
                            })
                            .unwrap();
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let refused = db.stats().budget.iter().find(|class| class.class.name() == "locks").unwrap().refused;
            assert!(refused > 0 && db.stats().txn.retries > 0, "both at once are to be too much");
            db.close().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn what_one_transaction_alone_needs_too_much_of_is_not_repeated() {
    let (db, _) = database();
    let limit = db.stats().budget.iter().find(|class| class.class.name() == "locks").unwrap().limit;
    let keyspaces = many(&db, limit as usize / 900);
    // Others are there, but what they hold would not help.
    let mut other = Some(db.begin().unwrap());
    other.as_mut().unwrap().put(&keyspaces[0], "other", "").unwrap();
    for _ in 0..2 {
        let mut attempts = 0;
        let result = db.transact(|tx| {
            attempts += 1;
            lock_many(tx, &keyspaces)
        });
        assert!(is_over(&result.unwrap_err(), "locks"));
        assert_eq!((attempts, db.stats().txn.retries), (1, 0));
        drop(other.take());
    }
    db.close().unwrap();
}
