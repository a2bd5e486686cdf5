//! Many seeds: in parallel over OS threads, and a second time in another process and the other order, to see that a
//! seed's run depends on nothing but the seed.

use super::book::Trace;
use super::plan::Plan;
use super::pool::{PoolChoice, PoolText};
use super::seed::{self, SeedResult};
use super::tables::Table;
use super::totals::Totals;
use crate::child::Command;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::Arc;
use varve::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use varve_rt::{JoinHandle, channel};

/// Seeds from which on a count of zero is a failure.
const SEEDS_FOR_ZEROS: u64 = 200;
/// Seeds from which on an empty cell of a table is one.
const SEEDS_FOR_CELLS: u64 = 2000;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The first seed.
    pub first_seed: u64,
    /// Seeds, from the first one on.
    pub seeds: u64,
    /// Seeds in parallel, in both processes together.
    pub jobs: usize,
    /// How to start the second process, which must end up in [`child_main`]; `None` leaves the second runs out.
    pub second: Option<Command>,
    /// A mistake to build in, to see it caught.
    pub breakage: Option<Mistake>,
    /// The buffer pool.
    pub pool: PoolChoice,
    /// Findings after which no further seed is begun.
    pub most_findings: usize,
}

impl SimOptions {
    /// `seeds` seeds from 1, two jobs, no second process.
    pub fn new(seeds: u64) -> SimOptions {
        let pool = PoolChoice::default();
        SimOptions { first_seed: 1, seeds, jobs: 2, second: None, breakage: None, pool, most_findings: 10 }
    }
}

/// Where a simulation stands.
#[derive(Clone, Copy, Debug)]
pub struct SimProgress {
    /// Runs done, first and second ones.
    pub done: u64,
    /// Runs to do.
    pub of: u64,
    /// Findings so far.
    pub findings: usize,
}

/// A seed that went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The seed.
    pub seed: u64,
    /// What was found, and what was expected.
    pub what: String,
    /// Arguments of the tool that show it again, event by event.
    pub replay: String,
    /// The setting that the seed drew.
    pub setting: String,
}

impl Finding {
    pub(crate) fn new(seed: u64, what: String, pool: &PoolChoice, breakage: Option<Mistake>) -> Finding {
        let broken = breakage.map_or(String::new(), |b| format!(" --broken {}", b.name()));
        let setting = format!("{:?}", Plan::draw(seed));
        Finding { seed, what, replay: format!("varve sim --seed {seed} --trace{}{broken}", pool.arguments()), setting }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\n  replay: {}\n  setting: {}", self.seed, self.what, self.replay, self.setting)
    }
}

/// What came out. Serialises to the tool's JSON.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds that went wrong, in order.
    pub findings: Vec<Finding>,
    /// Seeds whose second run differed from the first.
    pub not_deterministic: Vec<u64>,
    /// Seeds run a second time.
    pub compared: u64,
    /// Counts over all seeds, by name.
    pub totals: Vec<(&'static str, u64)>,
    /// How often things that can meet met.
    pub tables: Vec<Table>,
    /// Counts and cells that are zero and must not be, when there were seeds enough.
    pub zeros: Vec<String>,
    /// Whole run, seconds.
    pub seconds: f64,
    /// Seeds per minute, second runs included in the time.
    pub seeds_per_minute: f64,
    /// Why the second process failed, if it did.
    pub second_process: Option<String>,
}

impl SimReport {
    /// Whether nothing was found, every second run was equal, and no count stayed zero.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
            && self.not_deterministic.is_empty()
            && self.zeros.is_empty()
            && self.second_process.is_none()
    }
}

/// Runs the simulation. `progress` is called from the calling thread.
pub fn run(options: &SimOptions, mut progress: impl FnMut(SimProgress)) -> SimReport {
    let start = varve_rt::now();
    let (sender, receiver) = channel::unbounded();
    let jobs = options.jobs.max(1);
    let child_jobs = if options.second.is_some() { (jobs / 2).max(1) } else { 0 };
    let workers = Workers::start(options, (jobs - child_jobs).max(1), false, sender.clone());
    let second = options.second.as_ref().map(|command| Second::start(command, options, child_jobs, sender.clone()));
    drop(sender);

    let (mut totals, mut findings) = (Totals::default(), Vec::new());
    let (mut first, mut again): (BTreeMap<u64, u64>, BTreeMap<u64, u64>) = Default::default();
    let of = options.seeds * if second.is_some() { 2 } else { 1 };
    let mut done = 0;
    while let Ok(event) = receiver.recv() {
        done += 1;
        match event {
            Event::First(result) => {
                first.insert(result.seed, result.hash);
                totals.merge(&result.totals);
                if let Some(what) = result.wrong {
                    findings.push(Finding::new(result.seed, what, &options.pool, options.breakage));
                    if findings.len() >= options.most_findings {
                        workers.stop.store(true, SeqCst);
                    }
                }
            }
            Event::Second(seed, hash) => {
                again.insert(seed, hash);
            }
        }
        progress(SimProgress { done, of, findings: findings.len() });
        if workers.stop.load(SeqCst) && workers.idle() {
            break;
        }
    }
    let stopped = workers.stop.load(SeqCst);
    workers.join();
    let second_process = second.and_then(|second| second.finish(stopped).err());
    findings.sort_by_key(|f| f.seed);
    let differ = |(seed, hash): (&u64, &u64)| again.get(seed).is_some_and(|h| h != hash).then_some(*seed);
    let seconds = start.elapsed().as_secs_f64();
    let mut excused = if options.pool.never_evicts_dirty() { vec!["evictions dirty"] } else { Vec::new() };
    if options.pool.array {
        excused.extend(ARRAY_EXCUSED);
    }
    if options.pool.flash {
        excused.extend(FLASH_EXCUSED);
    }
    if options.pool.near {
        excused.extend(NEAR_EXCUSED);
    }
    SimReport {
        seeds: first.len() as u64,
        findings,
        not_deterministic: first.iter().filter_map(differ).collect(),
        compared: again.len() as u64,
        zeros: zeros(&totals, first.len() as u64, &excused),
        totals: totals.all(),
        tables: totals.tables(),
        seconds,
        seeds_per_minute: first.len() as f64 * 60.0 / seconds.max(1e-9),
        second_process,
    }
}

/// What does not happen on an array: its drives keep their lengths, torn pages of several drives are not counted, and
/// no other database is made over one.
const ARRAY_EXCUSED: [&str; 5] = [
    "made over another database",
    "cuts while that is made, or right after",
    "torn pages healed",
    "data set_len",
    "large transactions refused by a full device",
];

/// What does not happen on native flash: no requests to it fail but for its own failed programs and erases, torn pages
/// are not counted, no other database is made over one, no write is done otherwise than asked, and the log has no
/// sector under way in two versions.
const FLASH_EXCUSED: [&str; 6] = [
    "made over another database",
    "cuts while that is made, or right after",
    "torn pages healed",
    "sectors reordered",
    "data",
    "large transactions refused by a full device",
];

/// What hardly happens beside a worker: a sector with two versions that were not flushed. The log has none, and a page
/// of the worker's device is seldom written twice between two flushes.
const NEAR_EXCUSED: [&str; 1] = ["sectors reordered"];

/// What never happened in so many seeds and should have.
fn zeros(totals: &Totals, seeds: u64, excused: &[&str]) -> Vec<String> {
    let mut zeros = Vec::new();
    if seeds >= SEEDS_FOR_ZEROS {
        zeros.extend(totals.zeros(excused).into_iter().map(String::from));
    }
    if seeds >= SEEDS_FOR_CELLS {
        let never = totals.never_struck().into_iter();
        zeros.extend(never.filter(|cell| !excused.iter().any(|excused| cell.contains(excused))));
    }
    zeros
}

enum Event {
    First(SeedResult),
    Second(u64, u64),
}

/// OS threads that take seeds one after the other.
struct Workers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn start(options: &SimOptions, jobs: usize, reverse: bool, sender: channel::Sender<Event>) -> Workers {
        let (next, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let one = |job: usize| {
            let (next, stop, sender, options) = (next.clone(), stop.clone(), sender.clone(), options.clone());
            varve_rt::spawn(format!("seeds {job}"), move || {
                while !stop.load(SeqCst) {
                    let i = next.fetch_add(1, SeqCst);
                    if i >= options.seeds {
                        return;
                    }
                    let seed = options.first_seed + if reverse { options.seeds - 1 - i } else { i };
                    let result = seed::run(seed, &options.pool, options.breakage, Trace::off());
                    if sender.send(Event::First(result)).is_err() {
                        return;
                    }
                }
            })
        };
        Workers { stop: stop.clone(), threads: (0..jobs).map(one).collect() }
    }

    fn idle(&self) -> bool {
        self.threads.iter().all(|t| t.is_finished())
    }

    fn join(self) {
        for thread in self.threads {
            thread.join().expect("a seed's panics are caught by its simulation");
        }
    }
}

/// What the second process is to do, as JSON on its standard input.
#[derive(Serialize, Deserialize)]
struct SecondOrders {
    first_seed: u64,
    seeds: u64,
    jobs: usize,
    breakage: Option<String>,
    pool: PoolText,
}

/// The second process, seen from the first.
struct Second {
    child: Result<Child, String>,
    reader: Option<JoinHandle<()>>,
}

impl Second {
    fn start(command: &Command, options: &SimOptions, jobs: usize, sender: channel::Sender<Event>) -> Second {
        match Second::spawn(command, options, jobs) {
            Ok(mut child) => {
                let stdout = child.stdout.take().expect("piped");
                let reader = varve_rt::spawn("second process", move || {
                    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                        let mut words = line.split_whitespace().skip_while(|w| *w != "@sim").skip(1);
                        if let (Some(Ok(seed)), Some(Ok(hash))) =
                            (words.next().map(str::parse), words.next().map(str::parse))
                            && sender.send(Event::Second(seed, hash)).is_err()
                        {
                            return;
                        }
                    }
                });
                Second { child: Ok(child), reader: Some(reader) }
            }
            Err(e) => Second { child: Err(format!("{}: {e}", command.program.display())), reader: None },
        }
    }

    fn spawn(command: &Command, options: &SimOptions, jobs: usize) -> std::io::Result<Child> {
        let mut child = command.piped().spawn()?;
        let orders = SecondOrders {
            first_seed: options.first_seed,
            seeds: options.seeds,
            jobs,
            breakage: options.breakage.map(|b| b.name().to_string()),
            pool: (&options.pool).into(),
        };
        let text = serde_json::to_string(&orders).expect("orders are plain data");
        child.stdin.take().expect("piped").write_all(text.as_bytes())?;
        Ok(child)
    }

    fn finish(self, stopped: bool) -> Result<(), String> {
        let mut child = self.child?;
        if stopped {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        if let Some(reader) = self.reader {
            let _ = reader.join();
        }
        if stopped || status.success() { Ok(()) } else { Err(format!("the second process ended with {status}")) }
    }
}

/// The second process: reads its orders from standard input, runs the seeds in reverse, prints `@sim SEED HASH` for
/// each. Returns the exit code.
pub fn child_main() -> i32 {
    let mut text = String::new();
    if std::io::stdin().read_to_string(&mut text).is_err() {
        return 3;
    }
    let orders: SecondOrders = match serde_json::from_str(&text) {
        Ok(orders) => orders,
        Err(e) => {
            eprintln!("orders not understood: {e}");
            return 3;
        }
    };
    let breakage = orders.breakage.and_then(|name| name.parse().ok());
    let pool = match orders.pool.choice() {
        Ok(pool) => pool,
        Err(e) => {
            eprintln!("orders not understood: {e}");
            return 3;
        }
    };
    let (first_seed, jobs) = (orders.first_seed, orders.jobs);
    let options = SimOptions { first_seed, jobs, breakage, pool, ..SimOptions::new(orders.seeds) };
    let (sender, receiver) = channel::unbounded();
    let workers = Workers::start(&options, options.jobs.max(1), true, sender);
    while let Ok(Event::First(result)) = receiver.recv() {
        let mut out = std::io::stdout().lock();
        if writeln!(out, "\n@sim {} {}", result.seed, result.hash).and_then(|()| out.flush()).is_err() {
            return 4;
        }
    }
    workers.join();
    0
}
