//! How little disk time a tier could need: the experiment `gd2l-cac` with a fast device whose pages never change.
//!
//! Records the page references of the experiment's TPC-C, then runs the pool's policy over them with a fixed set of
//! pages on the fast device: those that would have saved most disk time in the orders so far, or will in the orders to
//! come. Prints the disk's milliseconds per new order; `data.io_ms_per_new_order` of the experiment is what the
//! managers need. A manager that needs less than the first learns from change; none can be expected to come near the
//! second.
//!
//! `cargo run --release -p varve-lab --example fixed_placement [DIRECTORY]` takes some minutes, 2 GiB in the directory
//! (the system's for temporary files) and 3 GiB of memory.

use std::path::PathBuf;
use std::sync::Arc;
use varve::buffer::policy::{self, Ask, Gd2lOptions, Load, PolicyOptions, Replacement, Unlink};
use varve::{Db, Durability, Layout, Options, PageId, TraceEvent, TraceHandle, TraceSink};
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{self, RunOptions, Until};
use varve_lab::tpcc::{self, Mix, Scale};
use varve_rt::Mutex;
use varve_volume::CostClass;

/// Milliseconds of a read and a write of the disk, and of a read of the fast device (the paper, section 6.2).
const READ: f64 = 7.2;
const WRITE: f64 = 4.96;
const READ_FAST: f64 = 0.11;
/// Slots of the fast device in the experiment.
const SLOTS: usize = 16_412;
/// Pools of the experiment: name, and frames that are left by the out-queue of `cac`.
const POOLS: [(&str, usize); 3] = [("26 MiB", 1552), ("52 MiB", 3216), ("104 MiB", 6544)];
/// New orders before those that are measured, measured, and known in all.
const ORDERS: [f64; 3] = [25_000.0, 6_000.0, 65_000.0];

/// A reference: the page, and whether it was changed or made.
#[derive(Clone, Copy)]
struct Reference {
    page: u32,
    write: bool,
    made: bool,
}

/// Takes down references while there is a list.
#[derive(Default)]
struct Recorder(Mutex<Option<Vec<Reference>>>);

impl TraceSink for Recorder {
    fn event(&self, event: TraceEvent) {
        let (page, write, made) = match event {
            TraceEvent::Read(page) => (page, false, false),
            TraceEvent::Write(page) => (page, true, false),
            TraceEvent::Create(page) => (page, true, true),
            _ => return,
        };
        if let Some(list) = &mut *self.0.lock() {
            list.push(Reference { page: page.0 as u32, write, made });
        }
    }
}

/// Loads the experiment's database in memory, runs its transactions by one client, and returns the references.
fn record(dir: PathBuf) -> Result<Vec<Reference>, Box<dyn std::error::Error>> {
    let recorder = Arc::new(Recorder::default());
    let trace = Some(TraceHandle(recorder.clone()));
    let options = Options { cache_bytes: 2 << 30, durability: Durability::None, trace, ..Options::default() };
    let layout = Layout { page_size: 16_384, log_bytes: 512 << 20, ..Layout::default() };
    let store = Arc::new(VarveStore::new(Db::create(&dir, &layout, options)?));
    let scale = Scale { warehouses: 91, districts: 1, customers: 3000, items: 10_000, foreign_keys: true };
    tpcc::load(&store, scale, 1, 2, |_| ())?;
    let weights = [45, 43, 4, 40, 4];
    let workload = tpcc::Tpcc::new(&*store, tpcc::Options { mix: Mix::Weighted(weights), ..tpcc::Options::default() })?;
    let transactions = ORDERS[2] * f64::from(weights.iter().sum::<u32>()) / f64::from(weights[0]);
    let run = RunOptions { threads: 1, until: Until::Transactions(transactions as u64), ..RunOptions::default() };
    *recorder.0.lock() = Some(Vec::new());
    driver::run(&store, &Arc::new(workload), &run, |_| ())?;
    let references = recorder.0.lock().take().expect("it was recording");
    store.db().clone().close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(references)
}

/// What a run over the references needed of the disk, and how long pages of the disk stayed in the pool, in references.
#[derive(Default)]
struct Outcome {
    reads: u64,
    writes: u64,
    left: u64,
    stayed: u64,
}

/// A pool over a fixed set of fast pages.
struct Pool<'a> {
    policy: Box<dyn Replacement>,
    fast: &'a [bool],
    /// By page: the slot plus one, and whether it is dirty.
    at: Vec<(u32, bool)>,
    /// By slot: the page, and when it came.
    pages: Vec<(u32, u64)>,
    frames: usize,
    now: u64,
    outcome: Outcome,
}

impl<'a> Pool<'a> {
    fn new(name: &str, frames: usize, fast: &'a [bool]) -> Pool<'a> {
        let gd2l = Gd2lOptions { cost: [READ, READ_FAST].into(), ..Gd2lOptions::default() };
        let options = PolicyOptions { gd2l, ..PolicyOptions::default() };
        let policy = (policy::find(name).expect("a policy of the engine").make)(frames, &options);
        let (at, pages) = (vec![(0, false); fast.len()], Vec::new());
        Pool { policy, fast, at, pages, frames, now: 0, outcome: Outcome::default() }
    }

    fn evict(&mut self) -> u32 {
        let slot = self.policy.victim(Ask::any(), &mut |_| true).expect("nothing is pinned");
        self.policy.unlink(slot, Unlink::Evicted);
        let (page, came) = self.pages[slot as usize];
        let (_, dirty) = std::mem::take(&mut self.at[page as usize]);
        if !self.fast[page as usize] {
            self.outcome.writes += u64::from(dirty);
            self.outcome.left += 1;
            self.outcome.stayed += self.now - came;
        }
        slot
    }

    fn refer(&mut self, r: Reference) {
        let page = r.page as usize;
        self.now += 1;
        if self.at[page].0 > 0 {
            self.policy.hit(self.at[page].0 - 1, self.now);
        } else {
            let slot = if self.pages.len() < self.frames { self.pages.len() as u32 } else { self.evict() };
            match self.pages.get_mut(slot as usize) {
                Some(place) => *place = (r.page, self.now),
                None => self.pages.push((r.page, self.now)),
            }
            let class = CostClass(u8::from(self.fast[page]));
            self.policy.load(slot, PageId(r.page.into()), Load::Demand, class, self.now);
            self.outcome.reads += u64::from(!self.fast[page] && !r.made);
            self.at[page] = (slot + 1, false);
        }
        self.at[page].1 |= r.write;
    }
}

/// The pages that cost most disk time in these references, if each stays in the pool so many references after its last
/// use.
fn dearest(references: &[Reference], pages: usize, stay: usize) -> Vec<bool> {
    let mut costs = vec![0.0; pages];
    let mut last: Vec<Option<(usize, bool)>> = vec![None; pages];
    for (now, r) in references.iter().enumerate() {
        let page = r.page as usize;
        let written = match last[page] {
            Some((then, written)) if now - then <= stay => written,
            _ => {
                costs[page] += READ;
                false
            }
        };
        costs[page] += if r.write && !written { WRITE } else { 0.0 };
        last[page] = Some((now, written || r.write));
    }
    let mut order: Vec<usize> = (0..pages).collect();
    order.sort_by(|a, b| f64::total_cmp(&costs[*b], &costs[*a]));
    let mut fast = vec![false; pages];
    order.iter().take(SLOTS).for_each(|page| fast[*page] = true);
    fast
}

/// Milliseconds of the disk per new order of those measured, with the best set that `known` tells of.
fn best(name: &str, frames: usize, references: &[Reference], known: &[Reference]) -> f64 {
    let pages = references.iter().map(|r| r.page as usize + 1).max().unwrap_or(0);
    let [from, to] = [ORDERS[0], ORDERS[0] + ORDERS[1]].map(|n| (n / ORDERS[2] * references.len() as f64) as usize);
    let (mut stay, mut least) = (frames * 10, f64::INFINITY);
    // How long pages stay depends on which are on the fast device.
    for _ in 0..4 {
        let fast = dearest(known, pages, stay);
        let mut pool = Pool::new(name, frames, &fast);
        references[from / 2..from].iter().for_each(|r| pool.refer(*r));
        pool.outcome = Outcome::default();
        references[from..to].iter().for_each(|r| pool.refer(*r));
        let Outcome { reads, writes, left, stayed } = pool.outcome;
        least = least.min((reads as f64 * READ + writes as f64 * WRITE) / ORDERS[1]);
        stay = (stayed / left.max(1)) as usize;
    }
    least
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let references = record(dir.join(format!("fixed-placement-{}", std::process::id())))?;
    let now = (ORDERS[0] / ORDERS[2] * references.len() as f64) as usize;
    println!("disk ms per new order, pages on the fast device fixed\n");
    println!("{:<10} {:<6} {:>20} {:>20}", "pool", "policy", "by orders to come", "by orders so far");
    for (pool, frames) in POOLS {
        for name in ["lru", "gd2l"] {
            let [future, past] =
                [&references[now..], &references[..now]].map(|known| best(name, frames, &references, known));
            println!("{pool:<10} {name:<6} {future:>20.1} {past:>20.1}");
        }
    }
    Ok(())
}
