//! How a database ends: closed, dropped, refused to close, or never quite opened. Afterwards nobody writes to its
//! devices any more, its directory is free, and what was acknowledged is there.

use crate::directories::{Dir, layout};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use varve::{Db, Devices, Durability, Error, Keyspace, Options};
use varve_device::{Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, PowerSupply};
use varve_rt::sim;

fn options() -> Options {
    // Asynchronous commits would wait long for the flusher.
    Options { cache_bytes: 4 << 20, async_delay: Duration::from_secs(3600), ..Options::default() }
}

/// Devices in memory on one supply of power.
struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    supply: Arc<PowerSupply>,
}

impl Machine {
    fn new() -> Machine {
        let (data, log, supply) = (MemDevice::new(0), MemDevice::new(0), PowerSupply::new());
        supply.attach(data.clone());
        supply.attach(log.clone());
        Machine { data, log, supply }
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn create(&self) -> (Db, Keyspace) {
        let db = Db::create_on(self.devices(), &layout(), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        (db, rows)
    }

    /// Asserts that nobody holds the devices, who could write to them.
    fn assert_alone(&self, what: &str) {
        let held = (Arc::strong_count(&self.data) - 1, Arc::strong_count(&self.log) - 1);
        assert_eq!(held, (0, 0), "{what}: somebody still holds the devices of data and log");
    }

    /// The rows that a power cut leaves.
    fn rows_after_a_cut(&self) -> usize {
        self.supply.cut(1);
        self.supply.restore();
        let db = Db::open_on(self.devices(), options()).unwrap();
        let rows = db.keyspace("rows").unwrap();
        let count = count(&db, &rows);
        assert!(db.check().unwrap().is_clean());
        drop(rows);
        db.close().unwrap();
        count
    }
}

fn count(db: &Db, rows: &Keyspace) -> usize {
    db.snapshot().unwrap().count(rows, ..).unwrap() as usize
}

fn put(rows: &Keyspace, n: std::ops::Range<u64>, durability: Durability) {
    n.for_each(|n| rows.put_with(&n.to_be_bytes(), &[n as u8; 300], durability).unwrap());
}

#[test]
fn what_was_acknowledged_survives_the_drop_of_the_last_handle() {
    for durability in [Durability::Sync, Durability::Async, Durability::None] {
        let machine = Machine::new();
        let (db, rows) = machine.create();
        put(&rows, 0..500, durability);
        drop(db);
        drop(rows);
        machine.assert_alone("dropped");
        assert_eq!(machine.rows_after_a_cut(), 500, "{durability:?}");
    }
}

#[test]
fn whatever_handle_is_the_last_everything_ends_with_it() {
    type Keep = fn(&Db, &Keyspace) -> Box<dyn std::any::Any>;
    let last: [(&str, Keep); 6] = [
        ("a keyspace", |_, rows| Box::new(rows.clone())),
        ("a snapshot", |db, _| Box::new(db.snapshot().unwrap())),
        ("a transaction", |db, rows| {
            let mut tx = db.begin().unwrap();
            tx.put(rows, b"pending", b"never committed").unwrap();
            Box::new(tx)
        }),
        ("a transaction with a long value", |db, rows| {
            let mut tx = db.begin().unwrap();
            tx.put_from(rows, b"pending", &mut &vec![1; 1 << 20][..]).unwrap();
            Box::new(tx)
        }),
        ("a bulk load", |db, _| {
            let mut load = db.bulk_load("half").unwrap();
            (0..5000u32).for_each(|n| load.push(&n.to_be_bytes(), &[2; 200]).unwrap());
            Box::new(load)
        }),
        ("a checkpoint in another thread", |db, _| {
            let db = db.clone();
            Box::new(Joined(Some(varve_rt::spawn("checkpoint", move || drop(db.checkpoint())))))
        }),
    ];
    for (what, keep) in last {
        let machine = Machine::new();
        let (db, rows) = machine.create();
        put(&rows, 0..2000, Durability::None);
        let kept = keep(&db, &rows);
        drop((db, rows));
        drop(kept);
        machine.assert_alone(what);
        assert_eq!(machine.rows_after_a_cut(), 2000, "{what}");
    }
}

/// A thread that is waited for when this is dropped.
struct Joined(Option<varve_rt::JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.take().unwrap().join().unwrap();
    }
}

#[test]
fn sync_makes_durable_what_was_acknowledged_before() {
    let machine = Machine::new();
    let (db, rows) = machine.create();
    put(&rows, 0..100, Durability::Async);
    put(&rows, 100..200, Durability::None);
    let checkpoints = db.stats().checkpoints.completed;
    db.sync().unwrap();
    assert_eq!(db.stats().checkpoints.completed, checkpoints);
    machine.supply.cut(3);
    drop((db, rows));
    machine.supply.restore();
    assert_eq!(machine.rows_after_a_cut(), 200);
}

#[test]
fn a_close_that_is_refused_leaves_the_database_as_it_was() {
    let machine = Machine::new();
    let (db, rows) = machine.create();
    let snapshot = db.snapshot().unwrap();
    assert!(matches!(db.close(), Err(Error::Invalid(what)) if what.contains("1 snapshots")));
    put(&rows, 0..10, Durability::Sync);
    assert_eq!(snapshot.count(&rows, ..).unwrap(), 0);
    drop(snapshot);
    let tx = db.begin().unwrap();
    assert!(matches!(db.close(), Err(Error::Invalid(what)) if what.contains("1 transactions")));
    drop(tx);
    assert_eq!(count(&db, &rows), 10);
    db.close().unwrap();
    assert!(matches!(db.close(), Err(Error::Closed)));
    assert!(matches!(rows.get(b"x"), Err(Error::Closed)) && matches!(db.sync(), Err(Error::Closed)));
    drop((db, rows));
    machine.assert_alone("closed");
}

/// A close whose last work fails at any point lets go all the same.
#[test]
fn a_close_that_fails_lets_go() {
    for op in [OpKind::Flush, OpKind::Write, OpKind::Read] {
        for nth in 1..60 {
            let machine = Machine::new();
            let data = Faulty::new(machine.data.clone(), FaultPlan::default());
            let devices = machine.devices().with("data", data.clone());
            let db = Db::create_on(devices, &layout(), options()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            put(&rows, 0..300, Durability::Sync);
            // So that the close has to give pages back.
            let gone = db.create_keyspace("gone").unwrap();
            put(&gone, 0..300, Durability::None);
            db.drop_keyspace("gone").unwrap();
            drop((gone, rows));
            data.set_plan(FaultPlan::new(1).nth(nth, op, Fault::Eio));
            let closed = db.close();
            let failed = data.counts().eio > 0;
            assert!(matches!(db.sync(), Err(Error::Closed)));
            drop((db, data));
            machine.assert_alone(&format!("{op} {nth}: {closed:?}"));
            assert_eq!(machine.rows_after_a_cut(), 300);
            if !failed {
                assert!(closed.is_ok());
                break;
            }
        }
    }
}

/// Each way in which an opening fails leaves nothing behind.
#[test]
fn an_opening_that_fails_leaves_no_thread_behind() {
    let machine = Machine::new();
    let (db, rows) = machine.create();
    put(&rows, 0..500, Durability::Sync);
    db.checkpoint().unwrap();
    put(&rows, 500..1000, Durability::Sync);
    drop((db, rows));
    let mut failures = 0;
    for op in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        for on_data in [false, true] {
            for nth in 1.. {
                let plan = FaultPlan::new(1).nth(nth, op, Fault::Eio);
                let faulty = Faulty::new(if on_data { machine.data.clone() } else { machine.log.clone() }, plan);
                let devices = match on_data {
                    true => machine.devices().with("data", faulty.clone()),
                    false => Devices { log: faulty.clone(), ..machine.devices() },
                };
                let opened = Db::open_on(devices, options());
                failures += u32::from(opened.is_err());
                let met = faulty.counts().eio > 0;
                drop((opened, faulty));
                machine.assert_alone(&format!("{op} {nth}, on data: {on_data}"));
                if !met {
                    break;
                }
            }
        }
    }
    assert!(failures > 5, "{failures}");
    assert_eq!(machine.rows_after_a_cut(), 1000);
}

/// A process that is started shares every open file until it runs its own program.
#[test]
fn a_closed_database_is_free_though_processes_are_started_meanwhile() {
    let dir = Dir::absent("closing-spawning");
    Db::create(&dir.0, &layout(), options()).unwrap().close().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let starters: Vec<_> = (0..2)
        .map(|_| {
            let done = done.clone();
            varve_rt::spawn("starter", move || {
                while !done.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            })
        })
        .collect();
    let refused = (0..60).filter(|n| match Db::open(&dir.0, options()) {
        Ok(db) if n % 2 == 0 => db.close().is_err(),
        opened => opened.is_err(),
    });
    let refused = refused.count();
    done.store(true, Ordering::Relaxed);
    starters.into_iter().for_each(|starter| starter.join().unwrap());
    assert_eq!(refused, 0, "openings or closes of 60");
}

#[test]
fn a_panic_that_drops_the_last_handle_frees_the_directory_without_waiting() {
    let dir = Dir::absent("closing-panic");
    let path = dir.0.clone();
    let thread = varve_rt::spawn("panics", move || {
        let db = Db::create(&path, &layout(), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        put(&rows, 0..100, Durability::Sync);
        put(&rows, 100..200, Durability::None);
        panic!("a panic of the program's own");
    });
    assert!(thread.join().is_err());
    let db = loop {
        match Db::open(&dir.0, options()) {
            // Its threads end by themselves.
            Err(Error::InUse(_)) => varve_rt::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let count = count(&db, &db.keyspace("rows").unwrap());
    assert!((100..=200).contains(&count), "{count}");
    db.close().unwrap();
}

/// Counts what is written.
struct Counted(Arc<dyn Device>, Arc<AtomicU64>);

impl Device for Counted {
    fn info(&self) -> varve_device::DeviceInfo {
        self.0.info()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> Result<(), varve_device::DeviceError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.set_len(len)
    }
    fn submit(&self, batch: Vec<varve_device::Io>) -> varve_device::Ticket {
        let writes = batch.iter().filter(|io| io.op != varve_device::Op::Read).count();
        self.1.fetch_add(writes as u64, Ordering::Relaxed);
        self.0.submit(batch)
    }
    fn stats(&self) -> varve_device::DeviceStats {
        self.0.stats()
    }
}

/// In a simulation a destructor neither waits nor writes; the threads find out.
#[test]
fn in_a_simulation_the_drop_of_the_last_handle_writes_nothing() {
    for seed in 1..30 {
        let config = sim::Config { seed, chaos: seed % 2 == 0, ..sim::Config::default() };
        let (written, kept) = sim::run(config, move || {
            let machine = Machine::new();
            let count = Arc::new(AtomicU64::new(0));
            let counted = |device: Arc<dyn Device>| Arc::new(Counted(device, count.clone()));
            let devices = Devices::new(counted(machine.data.clone()), counted(machine.log.clone()));
            let db = Db::create_on(devices, &layout(), options()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            put(&rows, 0..200, Durability::Sync);
            put(&rows, 200..3000, Durability::None);
            let checkpoint = {
                let db = db.clone();
                varve_rt::spawn("checkpoint", move || drop(db.checkpoint()))
            };
            varve_rt::sleep(Duration::from_micros(50 * seed));
            drop((db, rows));
            checkpoint.join().unwrap();
            let before = count.load(Ordering::Relaxed);
            varve_rt::sleep(Duration::from_secs(10));
            let written = count.load(Ordering::Relaxed) - before;
            machine.assert_alone("the threads ended");
            (written, machine.rows_after_a_cut())
        })
        .unwrap();
        assert_eq!(written, 0, "seed {seed}: writes after the drop");
        assert!((200..=3000).contains(&kept), "seed {seed}: {kept}");
    }
}
