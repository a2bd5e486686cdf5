//! After a failed write or flush that durability rests on, nothing is retried and believed: the database is poisoned,
//! reads go on, and the next opening finds everything that was acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use varve::{Baselines, Db, Devices, Durability, Error, Keyspace, Layout, Options, PoolOptions};
use varve_device::{
    AlignedBuf, BLOCK, Device, DeviceError, DeviceInfo, DeviceStats, Io, Op, OpKind, Ticket, read_at, write_at,
};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice};
use varve_rt::Mutex;

/// A system's cache over a drive. A flush that fails is told of once, and what it should have made durable counts as
/// clean: it never reaches the drive.
struct Cached {
    cache: Arc<MemDevice>,
    drive: Arc<MemDevice>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirty: BTreeSet<u64>,
    /// The next flush fails, be it one of its own or that of a new length.
    fails: Option<Flush>,
    failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flush {
    Own,
    Length,
}

impl Cached {
    fn new() -> Arc<Cached> {
        Arc::new(Cached { cache: MemDevice::new(0), drive: MemDevice::new(0), state: Mutex::default() })
    }

    fn flush(&self, what: Flush) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let dirty = std::mem::take(&mut state.dirty);
        if state.fails == Some(what) {
            (state.fails, state.failed) = (None, true);
            let device = "cached".into();
            return Err(DeviceError::Io { op: OpKind::Flush, device, offset: 0, len: 0, errno: 5, retryable: false });
        }
        self.to_drive(dirty)
    }

    fn to_drive(&self, blocks: BTreeSet<u64>) -> Result<(), DeviceError> {
        let mut block = AlignedBuf::new(BLOCK);
        for at in blocks.into_iter().filter(|at| at + BLOCK as u64 <= self.drive.len()) {
            read_at(&*self.cache, at, &mut block)?;
            write_at(&*self.drive, at, &block, true)?;
        }
        Ok(())
    }
}

impl Device for Cached {
    fn info(&self) -> DeviceInfo {
        self.cache.info()
    }
    fn len(&self) -> u64 {
        self.cache.len()
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.cache.set_len(len)?;
        self.drive.set_len(len)?;
        self.flush(Flush::Length)
    }
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        if batch.iter().any(|io| io.op == Op::Flush) {
            return Ticket::ready(vec![self.flush(Flush::Own)]);
        }
        let blocks = |io: &Io| (io.offset..io.offset + io.len() as u64).step_by(BLOCK);
        let written = |durable| {
            let of_kind = batch.iter().filter(move |io| io.op == Op::Write { durable });
            of_kind.flat_map(blocks).collect::<BTreeSet<u64>>()
        };
        let (plain, durable, count) = (written(false), written(true), batch.len());
        if plain.is_empty() && durable.is_empty() {
            return self.cache.submit(batch);
        }
        let result = self.cache.submit(batch).wait_all();
        // Not before: a flush beside it would take the old bytes for those, and the blocks for clean.
        self.state.lock().dirty.extend(plain);
        let result = result.and_then(|()| self.to_drive(durable));
        Ticket::ready(vec![result; count])
    }
    fn stats(&self) -> DeviceStats {
        self.cache.stats()
    }
}

const ROWS: u64 = 1500;

fn options() -> Options {
    Options { cache_bytes: 4 << 20, pool_frames: 96, log_max_bytes: 8 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

fn value(n: u64, version: u8) -> Vec<u8> {
    let mut value = vec![version; 400];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

/// Writes every row anew; all of it is acknowledged as durable.
fn write_rows(db: &Db, rows: &Keyspace, version: u8) {
    (0..ROWS).for_each(|n| rows.put_with(&n.to_be_bytes(), &value(n, version), Durability::None).unwrap());
    db.sync().unwrap();
}

fn assert_rows(rows: &Keyspace, version: u8, when: &str) {
    let wrong = (0..ROWS).filter(|n| rows.get(&n.to_be_bytes()).unwrap().as_deref() != Some(&value(*n, version)[..]));
    assert_eq!(wrong.count(), 0, "{when}: rows lost or old, of {ROWS}");
}

/// A database whose pages are in part in the cache of the system only, and in which there is something to cut.
fn dirty(data: Arc<Cached>, options: Options) -> (Db, Keyspace, Arc<MemDevice>) {
    let log = MemDevice::new(0);
    let db = Db::create_on(Devices::new(data, log.clone()), &layout(), options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    write_rows(&db, &rows, 1);
    let gone = db.create_keyspace("gone").unwrap();
    (0..1000u32).for_each(|n| gone.put_with(&n.to_be_bytes(), &[3; 1000], Durability::None).unwrap());
    drop(gone);
    db.drop_keyspace("gone").unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    write_rows(&db, &rows, 2);
    (db, rows, log)
}

/// Poisoned: nothing is promised, everything is read.
fn assert_poisoned(db: &Db, rows: &Keyspace, what: &str) {
    let poisoned = |result: Result<(), Error>| {
        assert!(matches!(&result, Err(Error::Poisoned(_))), "{what}: {result:?}");
    };
    poisoned(rows.put(b"again", b"x"));
    poisoned(db.checkpoint());
    poisoned(db.create_keyspace("more").map(drop));
    poisoned(rows.put_from(b"long", &mut &[1; 200_000][..]).map(drop));
    assert_rows(rows, 2, what);
}

#[test]
fn a_failed_flush_of_pages_is_never_believed() {
    type Act = fn(&Db, &Keyspace) -> Result<(), Error>;
    let grow: Act = |_, rows| {
        (0..200_000u64).try_for_each(|n| rows.put_with(&(ROWS + n).to_be_bytes(), &[4; 1000], Durability::None))
    };
    let acts: [(&str, Flush, Act); 4] = [
        ("growth", Flush::Length, grow),
        ("a cut", Flush::Length, |db, _| db.compact().map(drop)),
        ("a checkpoint", Flush::Own, |db, _| db.checkpoint()),
        ("direct pages", Flush::Own, |_, rows| rows.put_from(b"long", &mut &[1; 100_000][..]).map(drop)),
    ];
    for doublewrite in [false, true] {
        for (what, flush, act) in acts {
            let data = Cached::new();
            let baselines = Baselines { doublewrite, ..Baselines::default() };
            let pool = PoolOptions { baselines, ..PoolOptions::default() };
            let (db, rows, log) = dirty(data.clone(), Options { pool, ..options() });
            data.state.lock().fails = Some(flush);
            let failed = act(&db, &rows);
            assert!(data.state.lock().failed && failed.is_err(), "{what}: {failed:?}");
            assert_poisoned(&db, &rows, what);
            assert!(db.close().is_err());
            drop((db, rows));
            // The power fails.
            let db = Db::open_on(Devices::new(data.drive.clone(), log), options()).unwrap();
            assert_rows(&db.keyspace("rows").unwrap(), 2, what);
            assert!(db.check().unwrap().is_clean(), "{what}");
        }
    }
}

/// Whichever write of the log device fails, groups and superblocks alike, also while the log grows.
#[test]
fn a_failed_write_of_the_log_is_never_believed() {
    for nth in (1..400).step_by(7) {
        let (data, mem) = (MemDevice::new(0), MemDevice::new(0));
        let log = Faulty::new(mem.clone(), FaultPlan::default());
        let db = Db::create_on(Devices::new(data.clone(), log.clone()), &layout(), options()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        log.set_plan(FaultPlan::new(nth).nth(nth, OpKind::Write, Fault::Eio));
        let acknowledged = (0..20_000u64).take_while(|n| rows.put(&n.to_be_bytes(), &[*n as u8; 900]).is_ok()).count();
        assert_eq!(log.counts().eio, 1);
        assert!(matches!(rows.put(b"again", b"x"), Err(Error::Poisoned(_))), "write {nth}");
        assert!(matches!(db.checkpoint(), Err(Error::Poisoned(_))), "write {nth}");
        drop((db, rows));
        let db = Db::open_on(Devices::new(data, mem), options()).unwrap();
        let found = db.snapshot().unwrap().count(&db.keyspace("rows").unwrap(), ..).unwrap() as usize;
        assert!((acknowledged..=acknowledged + 1).contains(&found), "write {nth}: {found} of {acknowledged}");
    }
}
