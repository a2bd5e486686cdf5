//! How little disk time a tier could need: the experiment `gd2l-cac` with a placement that knows more than a manager.
//!
//! Records the page references of the experiment's TPC-C, then runs the pool's policy over them with
//!
//! - a fixed set of pages on the fast device: those that would have saved most disk time in the orders so far, in all
//!   orders to come, or in the very orders that are measured;
//! - a set that changes: a page that leaves the pool goes to the fast device if it is used again sooner than one of
//!   those there, of which the one with the farthest next use leaves (Belady 1966). A page is in one place only.
//!
//! Prints the disk's milliseconds per new order; `data.io_ms_per_new_order` of the experiment is what the managers
//! need. None of the columns is a bound: each chooses pages by a rule of its own, and the pool's policy knows nothing
//! of the future. They show how much is there to be had by knowing more: a manager that needs less than a fixed set of
//! the past learns from change.
//!
//! `cargo run --release -p varve-lab --example fixed_placement [DIRECTORY]` takes some minutes, 2 GiB in the directory
//! (the system's for temporary files) and 3 GiB of memory.

use std::collections::BTreeSet;
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

/// Which pages are on the fast device.
enum Fast<'a> {
    /// Always these.
    Fixed(&'a [bool]),
    /// Those that are used again soonest.
    Soonest(Soonest<'a>),
}

/// Pages that left the pool, by their next use.
struct Soonest<'a> {
    /// By reference: the next one to the same page, or the end.
    next: &'a [u32],
    /// Next use and page.
    order: BTreeSet<(u32, u32)>,
    /// By page: its next use while it is here, and whether it is newer than the disk's.
    here: Vec<(Option<u32>, bool)>,
}

impl Fast<'_> {
    /// A page comes into the pool: whether from the fast device, and whether it is newer than the disk's.
    fn take(&mut self, page: usize) -> (bool, bool) {
        match self {
            Fast::Fixed(pages) => (pages[page], false),
            Fast::Soonest(s) => match std::mem::take(&mut s.here[page]) {
                (Some(next), newer) => (s.order.remove(&(next, page as u32)), newer),
                (None, _) => (false, false),
            },
        }
    }

    /// A page leaves the pool, used last at `last`: the disk's writes.
    fn give(&mut self, page: usize, newer: bool, last: usize) -> u64 {
        let s = match self {
            Fast::Fixed(pages) => return u64::from(newer && !pages[page]),
            Fast::Soonest(s) => s,
        };
        let next = s.next[last];
        s.order.insert((next, page as u32));
        s.here[page] = (Some(next), newer);
        if s.order.len() <= SLOTS {
            return 0;
        }
        let (_, gone) = s.order.pop_last().expect("more than there is room for");
        let (_, newer) = std::mem::take(&mut s.here[gone as usize]);
        u64::from(newer)
    }
}

/// A page of the pool.
#[derive(Clone, Copy, Default)]
struct Held {
    /// The slot plus one; 0: it is not in the pool.
    at: u32,
    /// Newer than the disk's.
    newer: bool,
    /// It came from the fast device.
    fast: bool,
    /// Its last reference.
    last: usize,
}

/// A pool over a fast device.
struct Pool<'a> {
    policy: Box<dyn Replacement>,
    fast: Fast<'a>,
    held: Vec<Held>,
    /// By slot: the page, and when it came.
    pages: Vec<(u32, u64)>,
    frames: usize,
    now: u64,
    outcome: Outcome,
}

impl<'a> Pool<'a> {
    fn new(name: &str, frames: usize, pages: usize, fast: Fast<'a>) -> Pool<'a> {
        let gd2l = Gd2lOptions { cost: [READ, READ_FAST].into(), ..Gd2lOptions::default() };
        let options = PolicyOptions { gd2l, ..PolicyOptions::default() };
        let policy = (policy::find(name).expect("a policy of the engine").make)(frames, &options);
        let held = vec![Held::default(); pages];
        Pool { policy, fast, held, pages: Vec::new(), frames, now: 0, outcome: Outcome::default() }
    }

    fn evict(&mut self) -> u32 {
        let slot = self.policy.victim(Ask::any(), &mut |_| true).expect("nothing is pinned");
        self.policy.unlink(slot, Unlink::Evicted);
        let (page, came) = self.pages[slot as usize];
        let held = std::mem::take(&mut self.held[page as usize]);
        self.outcome.writes += self.fast.give(page as usize, held.newer, held.last);
        if !held.fast {
            self.outcome.left += 1;
            self.outcome.stayed += self.now - came;
        }
        slot
    }

    /// Reference number `n` of all.
    fn refer(&mut self, n: usize, r: Reference) {
        let page = r.page as usize;
        self.now += 1;
        if self.held[page].at > 0 {
            self.policy.hit(self.held[page].at - 1, self.now);
        } else {
            let slot = if self.pages.len() < self.frames { self.pages.len() as u32 } else { self.evict() };
            match self.pages.get_mut(slot as usize) {
                Some(place) => *place = (r.page, self.now),
                None => self.pages.push((r.page, self.now)),
            }
            let (fast, newer) = self.fast.take(page);
            self.policy.load(slot, PageId(r.page.into()), Load::Demand, CostClass(u8::from(fast)), self.now);
            self.outcome.reads += u64::from(!fast && !r.made);
            self.held[page] = Held { at: slot + 1, newer, fast, last: n };
        }
        let held = &mut self.held[page];
        held.newer |= r.write;
        held.last = n;
    }

    /// Goes through the references before `from` for a while, then through those that are measured: milliseconds of the
    /// disk per new order.
    fn run(&mut self, references: &[Reference], from: usize, to: usize) -> f64 {
        (from / 2..from).for_each(|n| self.refer(n, references[n]));
        self.outcome = Outcome::default();
        (from..to).for_each(|n| self.refer(n, references[n]));
        (self.outcome.reads as f64 * READ + self.outcome.writes as f64 * WRITE) / ORDERS[1]
    }
}

/// By reference, the next one to the same page; the number of references if there is none.
fn next_uses(references: &[Reference], pages: usize) -> Vec<u32> {
    let mut next = vec![references.len() as u32; references.len()];
    let mut coming = vec![references.len() as u32; pages];
    for (n, r) in references.iter().enumerate().rev() {
        next[n] = std::mem::replace(&mut coming[r.page as usize], n as u32);
    }
    next
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

/// The references that are measured: first, and first after them.
fn measured(references: &[Reference]) -> [usize; 2] {
    [ORDERS[0], ORDERS[0] + ORDERS[1]].map(|n| (n / ORDERS[2] * references.len() as f64) as usize)
}

/// With the best fixed set that `known` tells of.
fn fixed(name: &str, frames: usize, references: &[Reference], pages: usize, known: &[Reference]) -> f64 {
    let [from, to] = measured(references);
    let (mut stay, mut least) = (frames * 10, f64::INFINITY);
    // How long pages stay depends on which are on the fast device.
    for _ in 0..4 {
        let fast = dearest(known, pages, stay);
        let mut pool = Pool::new(name, frames, pages, Fast::Fixed(&fast));
        least = least.min(pool.run(references, from, to));
        stay = (pool.outcome.stayed / pool.outcome.left.max(1)) as usize;
    }
    least
}

/// With a set that changes, the farthest next use leaving.
fn soonest(name: &str, frames: usize, references: &[Reference], pages: usize, next: &[u32]) -> f64 {
    let [from, to] = measured(references);
    let fast = Soonest { next, order: BTreeSet::new(), here: vec![(None, false); pages] };
    Pool::new(name, frames, pages, Fast::Soonest(fast)).run(references, from, to)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let references = record(dir.join(format!("fixed-placement-{}", std::process::id())))?;
    let pages = references.iter().map(|r| r.page as usize + 1).max().unwrap_or(0);
    let next = next_uses(&references, pages);
    let [from, to] = measured(&references);
    println!("disk ms per new order\n");
    println!(
        "{:<10} {:<6} {:^44} {:>20}",
        "", "", "pages on the fast device fixed, by the orders", "farthest next use"
    );
    println!("{:<10} {:<6} {:>14} {:>14} {:>14} {:>20}", "pool", "policy", "so far", "to come", "measured", "leaves");
    for (pool, frames) in POOLS {
        for name in ["lru", "gd2l"] {
            let [past, future, these] = [&references[..from], &references[from..], &references[from..to]]
                .map(|known| fixed(name, frames, &references, pages, known));
            let change = soonest(name, frames, &references, pages, &next);
            println!("{pool:<10} {name:<6} {past:>14.1} {future:>14.1} {these:>14.1} {change:>20.1}");
        }
    }
    Ok(())
}
