//! Commits that nobody waits for: who is told, when, and of what. As a program does it that knows the standard library
//! only.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use varve::{Db, Devices, Durability, Durable, Error, Keyspace, Layout, Options, Result};
use varve_device::OpKind;
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, When};

/// Nothing is written by itself while a test runs.
fn options() -> Options {
    Options { async_delay: Duration::from_secs(3600), cache_bytes: 8 << 20, ..Options::default() }
}

fn database() -> (Db, Keyspace) {
    let db = Db::temporary(options()).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    (db, rows)
}

fn put(db: &Db, rows: &Keyspace, n: u32) -> Result<Durable> {
    let mut tx = db.begin()?;
    tx.put(rows, n.to_be_bytes(), "value")?;
    tx.commit_async()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The simplest of all executors.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_future_is_ready_when_the_commit_is_durable_though_nobody_waits_or_polls() {
    let (db, rows) = database();
    let first = put(&db, &rows, 1).unwrap();
    let lsn = first.lsn();
    assert_eq!(rows.len().unwrap(), 1, "it has taken effect");
    block_on(first).unwrap();
    assert!(db.durable_lsn() >= lsn);
    // One that is dropped is written all the same.
    let dropped = put(&db, &rows, 2).unwrap().lsn();
    while db.durable_lsn() < dropped {
        std::thread::yield_now();
    }
    let all: Vec<Durable> = (10..500).map(|n| put(&db, &rows, n).unwrap()).collect();
    let last = all.last().unwrap().lsn();
    for future in all.into_iter().rev() {
        block_on(future).unwrap();
    }
    assert!(db.durable_lsn() >= last);
    assert!(matches!(db.durable(u64::MAX), Err(Error::Invalid(_))), "a place that the log has not reached");
}

#[test]
fn a_transaction_that_only_read_is_durable_with_what_it_read() {
    let (db, rows) = database();
    rows.put_with("a", "1", Durability::Async).unwrap();
    let written = db.durable_lsn();
    let mut tx = db.begin().unwrap();
    assert!(tx.get(&rows, "a").unwrap().is_some());
    let read = tx.commit_async().unwrap();
    assert!(read.lsn() > written, "the row is not durable yet");
    block_on(read).unwrap();
}

/// What listeners were told, by their number.
type Told = Receiver<(u32, Result<()>)>;

fn listen(db: &Db, rows: &Keyspace, numbers: std::ops::Range<u32>) -> Told {
    let (sender, told) = channel();
    for n in numbers {
        let mut tx = db.begin().unwrap();
        tx.put(rows, n.to_be_bytes(), "value").unwrap();
        let (lsn, sender) = (tx.commit_ticket().unwrap(), sender.clone());
        db.on_durable(lsn, move |result| sender.send((n, result)).unwrap()).unwrap();
    }
    told
}

#[test]
fn listeners_are_told_once_each_and_before_the_database_is_closed() {
    let (db, rows) = database();
    let told = listen(&db, &rows, 0..300);
    db.close().unwrap();
    let mut numbers: Vec<u32> = told.iter().map(|(n, result)| result.map(|()| n).unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    assert!(matches!(db.on_durable(1, |_| unreachable!()), Err(Error::Closed)));
}

#[test]
fn a_listener_may_panic_and_use_the_database_and_be_the_last_handle() {
    let (db, rows) = database();
    let lsn = put(&db, &rows, 1).unwrap().lsn();
    db.on_durable(lsn, |_| panic!("a listener's own affair")).unwrap();
    db.wait_durable(lsn).unwrap();
    db.on_durable(lsn, |_| panic!("also of one that is told on the caller's thread")).unwrap();
    let (sender, told) = channel();
    let (own, own_rows) = (db.clone(), rows.clone());
    let lsn = put(&db, &rows, 2).unwrap().lsn();
    db.on_durable(lsn, move |result| {
        result.unwrap();
        own_rows.put("from within", "value").unwrap();
        assert!(own.durable_lsn() > 0);
        sender.send(own_rows.len().unwrap()).unwrap();
    })
    .unwrap();
    drop((db, rows));
    assert_eq!(told.recv().unwrap(), 3);
}

#[test]
fn when_the_log_cannot_be_written_everybody_is_told() {
    let faulty = Faulty::new(MemDevice::new(0), FaultPlan::new(1));
    let devices = Devices::new(MemDevice::new(0), faulty.clone());
    let db = Db::create_on(devices, &Layout::default(), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    faulty.set_plan(FaultPlan::new(1).rule(&[OpKind::Write], None, When::From(1), Fault::Eio));
    let before = Arc::new(Mutex::new(0));
    let told = listen(&db, &rows, 0..1);
    let (_, result) = told.recv().unwrap();
    assert!(matches!(result, Err(Error::Poisoned(_))), "{result:?}");
    // Who comes later is told at once.
    let counter = before.clone();
    let lsn = db.durable_lsn() + 1;
    db.on_durable(lsn, move |result| {
        assert!(result.is_err());
        *counter.lock().unwrap() += 1;
    })
    .unwrap();
    assert_eq!(*before.lock().unwrap(), 1);
    assert!(block_on(db.durable(lsn).unwrap()).is_err());
}
