//! The benchmarks from which a host's costs are found: short loops over the real engine, in memory, on one thread.
//!
//! The same closures run on an OS thread, where they are timed, and in a simulation, where what they are charged is
//! counted.

use super::store::NullStore;
use crate::adapter::Durability;
use crate::adapter::varve::VarveStore;
use crate::driver::{Client, Workload};
use crate::error::Result;
use crate::tpcc::{self, Mix, Tpcc};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use varve::buffer::policy::{self, Ask, Load, PolicyOptions, Slot};
use varve::buffer::{LogAge, LogGate, Pool, PoolConfig};
use varve::{Db, Devices, Keyspace, Layout, Options, Transaction};
use varve_models::MemDevice;
use varve_rt::{Cost, Rng, charge};
use varve_volume::{CostClass, KeyspaceId, Lsn, PageId, WriteWhy, page};

/// Rows of the table of short rows (100 bytes), and of long ones (1000).
const SHORT: u64 = 300_000;
const LONG: u64 = 20_000;

/// The benchmark whose data is never cold.
pub(super) const SAME_ROW: &str = "transaction of 20 reads of a row";

/// What is repeated.
type Op<'a> = Box<dyn FnMut(&mut Rng) -> Result<()> + 'a>;

/// One operation, repeated.
pub(super) struct Bench<'a> {
    pub name: &'static str,
    pub op: Op<'a>,
}

/// Loaded databases, closed, to be copied for each world.
pub(super) struct Fixture {
    rows: (Arc<MemDevice>, Arc<MemDevice>),
    tpcc: (Arc<MemDevice>, Arc<MemDevice>),
}

/// The same, open in the calling world.
pub(super) struct Opened {
    rows: Db,
    short: Keyspace,
    long: Keyspace,
    tpcc: Arc<VarveStore>,
}

struct NoLog;

impl LogGate for NoLog {
    fn durable_lsn(&self) -> Lsn {
        Lsn::MAX - 1
    }
    fn force(&self, _: Lsn) -> varve::Result<()> {
        Ok(())
    }
    fn age(&self) -> LogAge {
        LogAge { bytes_since_redo: 0, capacity: 1 }
    }
}

fn options() -> Options {
    let durability = varve::Durability::None;
    Options {
        durability,
        recovery_bound: Duration::from_secs(600),
        log_max_bytes: 16 << 30,
        lock_timeout: None,
        ..Options::default()
    }
    .cache_mb(600)
}

fn key(i: u64) -> [u8; 12] {
    let mut key = *b"row 00000000";
    key[4..].copy_from_slice(&i.to_be_bytes());
    key
}

fn value(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![0; len];
    rng.fill_bytes(&mut value);
    value
}

impl Fixture {
    /// Loads the data; `warehouses` of TPC-C.
    pub fn load(warehouses: u32) -> Result<Fixture> {
        let device = || MemDevice::new(0);
        let fixture = Fixture { rows: (device(), device()), tpcc: (device(), device()) };
        let layout = Layout { log_bytes: 256 << 20, ..Layout::default() };
        let of = |d: &(Arc<MemDevice>, Arc<MemDevice>)| Devices::new(d.0.clone(), d.1.clone());
        let db = Db::create_on(of(&fixture.rows), &layout, options())?;
        let mut rng = Rng::from_seed(1);
        for (name, rows, len) in [("short", SHORT, 100), ("long", LONG, 1000)] {
            let keyspace = db.keyspace_or_create(name)?;
            for from in (0..rows).step_by(1000) {
                let mut tx = db.begin()?;
                for i in from..(from + 1000).min(rows) {
                    tx.put(&keyspace, &key(i), &value(len, &mut rng))?;
                }
                tx.commit()?;
            }
        }
        db.close()?;
        let store = Arc::new(VarveStore::new(Db::create_on(of(&fixture.tpcc), &layout, options())?));
        tpcc::load(&store, tpcc::Scale::of(warehouses), 1, 2, |_| {})?;
        store.db().clone().close()?;
        Ok(fixture)
    }

    /// Opens copies of the data in the calling world, and reads everything once.
    pub fn open(&self) -> Result<Opened> {
        let copy = |d: &(Arc<MemDevice>, Arc<MemDevice>)| Devices::new(d.0.clone_image(), d.1.clone_image());
        let rows = Db::open_on(copy(&self.rows), options())?;
        let tpcc = Db::open_on(copy(&self.tpcc), options())?;
        for db in [&rows, &tpcc] {
            let snapshot = db.snapshot()?;
            for keyspace in db.keyspaces()? {
                let mut all = snapshot.scan(&db.keyspace(&keyspace.name)?, ..)?;
                while all.next_row()?.is_some() {}
            }
        }
        let (short, long) = (rows.keyspace("short")?, rows.keyspace("long")?);
        Ok(Opened { rows, short, long, tpcc: Arc::new(VarveStore::new(tpcc)) })
    }
}

impl Opened {
    /// Closes the databases.
    pub fn close(self) -> Result<()> {
        let Opened { rows, short, long, tpcc } = self;
        drop((short, long));
        rows.close()?;
        tpcc.db().clone().close()?;
        Ok(())
    }

    /// Every benchmark.
    pub fn all(&self) -> Result<Vec<Bench<'_>>> {
        let mut all = self.reads();
        all.extend(self.writes());
        all.extend(self.transactions());
        all.extend(pools()?);
        all.extend(bytes());
        all.extend(self.tpcc()?);
        Ok(all)
    }

    fn reads(&self) -> Vec<Bench<'_>> {
        let get = |keyspace: &Keyspace, i| keyspace.get_with(&key(i), |v| black_box(v.is_some()));
        vec![
            bench("point read, 300,000 rows", move |rng| Ok(get(&self.short, rng.below(SHORT)).map(drop)?)),
            bench("scan of 100 rows", |rng| self.scan(&self.short, rng.below(SHORT - 100), 100)),
            bench("scan of 1 row", |rng| self.scan(&self.short, rng.below(SHORT - 100), 1)),
            bench("scan of 20 long rows", |rng| self.scan(&self.long, rng.below(LONG - 20), 20)),
        ]
    }

    fn scan(&self, keyspace: &Keyspace, from: u64, rows: usize) -> Result<()> {
        let mut rows_left = rows;
        let snapshot = self.rows.snapshot()?;
        let mut scan = snapshot.scan(keyspace, &key(from)..)?;
        while rows_left > 0 && scan.next_row()?.is_some() {
            rows_left -= 1;
        }
        Ok(())
    }

    fn writes(&self) -> Vec<Bench<'_>> {
        vec![
            bench("overwrite of 100 bytes", |rng| Ok(self.short.put(&key(rng.below(SHORT)), &value(100, rng))?)),
            bench("overwrite of 1000 bytes", |rng| Ok(self.long.put(&key(rng.below(LONG)), &value(1000, rng))?)),
            bench("insert and delete", |rng| {
                let mut new = [7; 13];
                new[..12].copy_from_slice(&key(rng.below(SHORT)));
                self.short.put(&new, &[1; 100])?;
                self.short.delete(&new)?;
                Ok(())
            }),
        ]
    }

    fn transactions(&self) -> Vec<Bench<'_>> {
        let begin = || -> Result<Transaction> { Ok(self.rows.begin()?) };
        vec![
            bench("empty transaction", move |_| Ok(begin()?.commit()?)),
            bench("transaction of 20 reads", move |rng| {
                let mut tx = begin()?;
                for _ in 0..20 {
                    tx.get_with(&self.short, &key(rng.below(SHORT)), |v| black_box(v.is_some()))?;
                }
                Ok(tx.commit()?)
            }),
            bench(SAME_ROW, move |rng| {
                let (mut tx, row) = (begin()?, key(rng.below(SHORT)));
                for _ in 0..20 {
                    tx.get_with(&self.short, &row, |v| black_box(v.is_some()))?;
                }
                Ok(tx.commit()?)
            }),
            bench("transaction of 20 writes", move |rng| {
                let mut tx = begin()?;
                for _ in 0..20 {
                    tx.put(&self.short, &key(rng.below(SHORT)), &[rng.below(256) as u8; 100])?;
                }
                Ok(tx.commit()?)
            }),
            bench("transaction of 20 writes to a leaf", move |rng| {
                let (mut tx, from) = (begin()?, rng.below(SHORT - 20));
                for i in 0..20 {
                    tx.put(&self.short, &key(from + i), &[rng.below(256) as u8; 100])?;
                }
                Ok(tx.commit()?)
            }),
            bench("transaction with 5 scans", move |rng| {
                let mut tx = begin()?;
                for _ in 0..5 {
                    let from = key(rng.below(SHORT - 100));
                    let mut scan = tx.scan(&self.short, &from..)?;
                    for _ in 0..10 {
                        scan.next_row()?;
                    }
                }
                Ok(tx.commit()?)
            }),
        ]
    }

    fn tpcc(&self) -> Result<Vec<Bench<'_>>> {
        let mut all = Vec::new();
        let names = ["TPC-C new-order", "TPC-C payment", "TPC-C order-status", "TPC-C delivery", "TPC-C stock-level"];
        for (kind, name) in names.into_iter().enumerate() {
            let mut weights = [0; 5];
            weights[kind] = 1;
            let (mix, durability) = (Mix::Weighted(weights), Durability::None);
            let options = tpcc::Options { mix, durability, ..tpcc::Options::default() };
            let workload = Tpcc::new(&*self.tpcc, options)?;
            let mut client = workload.client(&self.tpcc, 0, 1)?;
            all.push(bench(name, move |_| {
                charge(Cost::ClientTxn, 1);
                client.draw();
                client.attempt(&*self.tpcc).map(drop)
            }));
        }
        Ok(all)
    }
}

fn bench<'a>(name: &'static str, op: impl FnMut(&mut Rng) -> Result<()> + 'a) -> Bench<'a> {
    Bench { name, op: Box::new(op) }
}

fn pool(pages: u64, frames: usize) -> Result<Arc<Pool>> {
    let pool = Pool::new(PoolConfig::new(4096, frames), NullStore::new(pages), Arc::new(NoLog))?;
    for id in 0..pages.min(frames as u64 / 2) {
        pool.create(PageId(id), KeyspaceId(1))?.set_dirty(1);
    }
    pool.flush_older_than(2, WriteWhy::Checkpoint)?;
    Ok(pool)
}

/// Pages of the list that is scanned, in no order that memory knows, as after some time at work: with 4 KiB a page, a
/// pool of 1 GiB.
const LISTED: Slot = 1 << 18;

/// The buffer pool alone, over a store that does nothing.
fn pools<'a>() -> Result<Vec<Bench<'a>>> {
    const PAGES: u64 = 32_768;
    let (hit, miss, dirty) = (pool(PAGES, 2 * PAGES as usize)?, pool(PAGES, 4096)?, pool(PAGES, 2 * PAGES as usize)?);
    let mut lsn = 2;
    let mut list = (policy::find("lru").expect("registered").make)(LISTED as usize, &PolicyOptions::default());
    let mut slots: Vec<Slot> = (0..LISTED).collect();
    Rng::from_seed(1).shuffle(&mut slots);
    slots.iter().for_each(|s| list.load(*s, PageId(u64::from(*s)), Load::Demand, CostClass::default(), 0));
    let frames: Vec<[u64; 8]> = vec![[0; 8]; LISTED as usize];
    Ok(vec![
        bench("page access", move |rng| {
            black_box(hit.read(PageId(rng.below(PAGES)))?.bytes()[40]);
            Ok(())
        }),
        bench("page miss", move |rng| {
            black_box(miss.read(PageId(rng.below(PAGES)))?.bytes()[40]);
            Ok(())
        }),
        bench("100 pages dirtied and written", move |rng| {
            for _ in 0..100 {
                dirty.write(PageId(rng.below(PAGES)))?.set_dirty(lsn);
            }
            lsn += 1;
            Ok(dirty.flush_older_than(lsn, WriteWhy::Checkpoint)?)
        }),
        bench("scan of 1000 pages for a victim", move |_| {
            let mut left = 1000;
            let ask = Ask { depth: usize::MAX, resume: true, cold_only: false, incoming: None };
            black_box(list.victim(ask, &mut |slot| {
                charge(Cost::ListScan, 1);
                left -= 1;
                left == 0 || frames[slot as usize][0] != 0
            }));
            Ok(())
        }),
    ])
}

/// Work on bytes and pairs.
fn bytes<'a>() -> Vec<Bench<'a>> {
    const PAGE: usize = 8192;
    // Pages of a large pool, cold, are copied into the buffers that writers share.
    const COLD: usize = 256 << 20;
    const STAGING: usize = 1 << 20;
    let from: Vec<u8> = (0..COLD).map(|i| i as u8).collect();
    let (mut to, mut sealed) = (vec![0; STAGING], from[..PAGE].to_vec());
    let runs = from[..16 << 20].to_vec();
    let place = |rng: &mut Rng, len: usize| rng.below((len / PAGE) as u64) as usize * PAGE;
    let mut all = vec![
        bench("copy of a page", move |rng| {
            let (at, to_at) = (place(rng, COLD), place(rng, STAGING));
            charge(Cost::CopyByte, PAGE as u64);
            to[to_at..to_at + PAGE].copy_from_slice(&from[at..at + PAGE]);
            black_box(&mut to);
            Ok(())
        }),
        bench("checksum of a page", move |rng| {
            page::seal(&mut sealed, PageId(rng.below(1000)));
            black_box(&mut sealed);
            Ok(())
        }),
    ];
    for (name, len) in [("merge of 100 short pairs", 16), ("merge of 100 long pairs", 400)] {
        let from = runs.clone();
        all.push(bench(name, move |rng| {
            merge(&from, rng, len);
            Ok(())
        }));
    }
    all
}

/// Merges two runs of 50 pairs each: compares keys of 16 bytes, puts the smaller pair.
fn merge(from: &[u8], rng: &mut Rng, len: usize) {
    let pair = 16 + len;
    let starts = [0, 1].map(|_| rng.below((from.len() - 51 * pair) as u64) as usize);
    let (mut at, mut out) = ([0, 0], Vec::with_capacity(100 * pair));
    for _ in 0..100 {
        let keys = [0, 1].map(|r: usize| &from[starts[r] + at[r] * pair..][..16]);
        let r = usize::from(at[0] == 50 || (at[1] < 50 && keys[1] < keys[0]));
        charge(Cost::MergePair, 1);
        charge(Cost::MergeByte, pair as u64);
        out.extend_from_slice(&from[starts[r] + at[r] * pair..][..pair]);
        at[r] += 1;
    }
    black_box(&out);
}
