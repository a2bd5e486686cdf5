//! The process that kills: rounds of start, kill, open, verify.

use super::child::Orders;
use super::ledger::Ledger;
use super::worker::Worker;
use super::{Command, TortureError};
use crate::sim::PoolChoice;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Condvar, Mutex, Rng};

/// How to torture.
#[derive(Clone, Debug)]
pub struct TortureOptions {
    /// The database's directory; created when there is none.
    pub dir: PathBuf,
    /// Kills, at least this many.
    pub rounds: u32,
    /// Shortest and longest time that a child works before it is killed.
    pub life: (Duration, Duration),
    /// Threads of the child.
    pub threads: u32,
    /// Cache of the database, bytes.
    pub cache_bytes: u64,
    /// Chooses the moments of the kills and the transfers.
    pub seed: u64,
    /// The buffer pool.
    pub pool: PoolChoice,
    /// Directory of the fast device, for a tier ([`PoolChoice::tier`]).
    pub fast: Option<PathBuf>,
    /// How the child is started.
    pub child: Command,
    /// How a worker is started that has the pages and merges (`--listen ADDRESS --data PATH` follow), and is killed
    /// too; none: the pages are files here. Keyspaces are LSM keyspaces then, merged by another executor each time.
    pub worker: Option<Command>,
}

impl TortureOptions {
    /// 100 rounds of up to a second and a half each, eight threads, 16 MiB of cache.
    pub fn new(dir: impl Into<PathBuf>, child: Command) -> TortureOptions {
        let life = (Duration::from_millis(20), Duration::from_millis(1500));
        let (dir, pool) = (dir.into(), PoolChoice::default());
        let (rounds, threads, cache_bytes, seed) = (100, 8, 16 << 20, 1);
        TortureOptions { dir, rounds, life, threads, cache_bytes, seed, pool, fast: None, child, worker: None }
    }
}

/// Where the torture stands, after each round.
#[derive(Clone, Copy, Debug)]
pub struct TortureProgress {
    /// Rounds done.
    pub round: u32,
    /// Rounds to do.
    pub of: u32,
    /// Commits acknowledged in all rounds so far.
    pub acknowledged: u64,
}

/// What came out. Serialises to the tool's JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TortureReport {
    /// Kills after which everything was verified.
    pub rounds: u32,
    /// Kills in all: some rounds kill the child again while it recovers.
    pub kills: u32,
    /// Kills before the child had opened the database.
    pub kills_in_open: u32,
    /// Commits acknowledged over the pipe; every one was found again.
    pub acknowledged: u64,
    /// Transfers found in the ledger, in all rounds.
    pub transfers: u64,
    /// Recoveries that had something to redo.
    pub recoveries: u32,
    /// Log groups redone.
    pub groups_redone: u64,
    /// Of an array: extents that moved, drives that were added, emptied, and replaced, by these names.
    pub array: BTreeMap<String, u64>,
    /// Kills of a worker, while its database was open or was being opened.
    pub worker_kills: u32,
    /// Children that gave up because their worker was killed.
    pub given_up: u32,
    /// Of a worker: parts of merges that it did (`merged`), that were done in its place (`instead`), times that it was
    /// attached to anew (`again`).
    pub near: BTreeMap<String, u64>,
    /// Longest time to open, seconds.
    pub slowest_open_s: f64,
    /// Whole run, seconds.
    pub seconds: f64,
}

/// Runs the torture.
///
/// # Errors
/// The first finding ([`TortureError::Wrong`], [`TortureError::Damage`]), or what kept the torture from running.
pub fn run(options: &TortureOptions, mut progress: impl FnMut(TortureProgress)) -> Result<TortureReport, TortureError> {
    let start = varve_rt::now();
    let mut rng = Rng::from_seed(options.seed);
    let mut report = TortureReport::default();
    let mut worker =
        options.worker.as_ref().map(|command| Worker::start(command, &beside(options), &options.dir)).transpose()?;
    let orders = |seed, worker: &Option<Worker>| orders(options, seed, worker.as_ref());
    orders(0, &worker).claim()?;
    while report.rounds < options.rounds {
        let orders = orders(rng.next_u64(), &worker);
        let mut acknowledged = BTreeMap::new();
        let life = rng.between(options.life.0.as_millis() as u64, options.life.1.as_millis() as u64);
        let mut kill = |moment, rng: &mut Rng| {
            let killed = worker.as_mut().map(|worker| (worker, Kill::draw(rng)));
            kill_one(options, &orders, (moment, killed), &mut acknowledged, &mut report)
        };
        kill(Moment::AfterOpen(life), &mut rng)?;
        while rng.one_in(4) {
            kill(Moment::AfterStart(rng.below(60)), &mut rng)?;
        }
        verify(&orders, &acknowledged, &mut report)?;
        report.rounds += 1;
        progress(TortureProgress { round: report.rounds, of: options.rounds, acknowledged: report.acknowledged });
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The file that a worker has.
fn beside(options: &TortureOptions) -> PathBuf {
    PathBuf::from(format!("{}.worker", options.dir.display()))
}

fn orders(options: &TortureOptions, seed: u64, worker: Option<&Worker>) -> Orders {
    Orders {
        dir: options.dir.clone(),
        threads: options.threads,
        seed,
        cache_bytes: options.cache_bytes,
        log_bytes: 16 << 20,
        log_max_bytes: 256 << 20,
        pad: 1500,
        sync_only: false,
        pool: (&options.pool).into(),
        fast: options.fast.clone(),
        remote: worker.map(|worker| worker.address().to_string()),
    }
}

/// Who is killed, where there is a worker.
#[derive(Clone, Copy)]
enum Kill {
    /// The database's process.
    Host,
    /// Both at once.
    Both,
    /// The worker, which is started anew after so many milliseconds; the database goes on for so many more.
    Worker(u64, u64),
}

impl Kill {
    fn draw(rng: &mut Rng) -> Kill {
        match rng.below(4) {
            0 => Kill::Host,
            1 => Kill::Both,
            _ => Kill::Worker(rng.below(200), rng.below(1000)),
        }
    }
}

/// When to kill, in milliseconds.
#[derive(Clone, Copy)]
enum Moment {
    AfterOpen(u64),
    AfterStart(u64),
}

fn kill_one(
    options: &TortureOptions,
    orders: &Orders,
    (moment, worker): (Moment, Option<(&mut Worker, Kill)>),
    acknowledged: &mut BTreeMap<u32, u64>,
    report: &mut TortureReport,
) -> Result<(), TortureError> {
    let victim = Victim::start(&options.child, orders)?;
    let wait = match moment {
        Moment::AfterOpen(ms) => {
            victim.wait_open();
            ms
        }
        Moment::AfterStart(ms) => ms,
    };
    varve_rt::sleep(Duration::from_millis(wait));
    let told = match worker {
        None => victim.kill()?,
        Some((worker, kill)) => kill_with(victim, worker, kill, report)?,
    };
    report.kills += 1;
    report.kills_in_open += u32::from(!told.open);
    report.acknowledged += told.count;
    for (what, n) in told.array {
        *report.array.entry(what).or_default() += n;
    }
    for (what, n) in told.near {
        *report.near.entry(what).or_default() += n;
    }
    for (thread, number) in told.acknowledged {
        let last = acknowledged.entry(thread).or_insert(0);
        *last = (*last).max(number);
    }
    Ok(())
}

/// Kills a child that has a worker, the worker, or both; the worker runs afterwards.
fn kill_with(
    victim: Victim,
    worker: &mut Worker,
    kill: Kill,
    report: &mut TortureReport,
) -> Result<Told, TortureError> {
    let told = match kill {
        Kill::Host => victim.kill()?,
        Kill::Both => {
            worker.kill()?;
            victim.kill_after(true)?
        }
        Kill::Worker(away, after) => {
            worker.kill()?;
            varve_rt::sleep(Duration::from_millis(away));
            worker.ensure()?;
            varve_rt::sleep(Duration::from_millis(after));
            victim.kill_after(true)?
        }
    };
    report.worker_kills += u32::from(!matches!(kill, Kill::Host));
    report.given_up += u32::from(told.error.is_some());
    worker.ensure()?;
    Ok(told)
}

fn verify(orders: &Orders, acknowledged: &BTreeMap<u32, u64>, report: &mut TortureReport) -> Result<(), TortureError> {
    let start = varve_rt::now();
    let db = orders.open()?;
    report.slowest_open_s = report.slowest_open_s.max(start.elapsed().as_secs_f64());
    let recovery = db.recovery_report();
    report.recoveries += u32::from(!recovery.clean && recovery.groups > 0);
    report.groups_redone += recovery.groups;
    let ledger = Ledger::open(&db, orders.kind())?;
    report.transfers += ledger.verify(&db, acknowledged)?;
    let check = db.check()?;
    if let Some(damage) = check.damages.first() {
        return Err(TortureError::Damage(format!("{damage} ({} findings)", check.damages.len())));
    }
    ledger.settle(&db)?;
    db.close()?;
    Ok(())
}

/// What a child told before it died.
#[derive(Default, Clone)]
pub(super) struct Told {
    pub(super) open: bool,
    /// Last acknowledged number by thread.
    pub(super) acknowledged: BTreeMap<u32, u64>,
    pub(super) count: u64,
    pub(super) log_bytes: u64,
    /// What became of an array's drives, and how often.
    array: BTreeMap<String, u64>,
    /// What became of its worker, and how often.
    near: BTreeMap<String, u64>,
    pub(super) error: Option<String>,
    /// The pipe is closed.
    ended: bool,
}

impl Told {
    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("@open") => self.open = true,
            Some("@ack") => {
                if let (Some(Ok(thread)), Some(Ok(number))) =
                    (words.next().map(str::parse), words.next().map(str::parse))
                {
                    self.acknowledged.insert(thread, number);
                    self.count += 1;
                }
            }
            Some("@log") => self.log_bytes = words.next().and_then(|w| w.parse().ok()).unwrap_or(self.log_bytes),
            Some(of @ ("@array" | "@near")) => {
                let counts = if of == "@near" { &mut self.near } else { &mut self.array };
                if let (Some(what), Some(Ok(n))) = (words.next(), words.next().map(str::parse::<u64>)) {
                    *counts.entry(what.to_string()).or_default() += n;
                }
            }
            Some("@error") => self.error = Some(line.to_string()),
            _ => {}
        }
    }
}

/// A running child.
pub(super) struct Victim {
    child: Child,
    told: Arc<(Mutex<Told>, Condvar)>,
    reader: varve_rt::JoinHandle<()>,
}

impl Victim {
    pub(super) fn start(command: &Command, orders: &Orders) -> Result<Victim, TortureError> {
        let failed = |e: std::io::Error| TortureError::Child(format!("{}: {e}", command.program.display()));
        let mut child = command.piped().spawn().map_err(failed)?;
        let mut stdin = child.stdin.take().expect("piped");
        let text = serde_json::to_string(orders).expect("orders are plain data");
        stdin.write_all(text.as_bytes()).map_err(failed)?;
        drop(stdin);
        let stdout = child.stdout.take().expect("piped");
        let told = Arc::new((Mutex::new(Told::default()), Condvar::new()));
        let theirs = told.clone();
        let reader = varve_rt::spawn("torture pipe", move || {
            // The last line may be cut by the kill: it has no line end then, and counts only if it is whole.
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            while matches!(lines.read_line(&mut line), Ok(n) if n > 0) {
                if line.ends_with('\n') {
                    theirs.0.lock().line(&line);
                    theirs.1.notify_all();
                }
                line.clear();
            }
            theirs.0.lock().ended = true;
            theirs.1.notify_all();
        });
        Ok(Victim { child, told, reader })
    }

    /// Waits until the child has opened the database, or ended.
    pub(super) fn wait_open(&self) {
        self.wait(|told| told.open);
    }

    /// Waits until `enough`, or the child's end.
    pub(super) fn wait(&self, enough: impl Fn(&Told) -> bool) {
        let mut told = self.told.0.lock();
        while !enough(&told) && !told.ended {
            self.told.1.wait(&mut told);
        }
    }

    /// Log that the child has written so far, bytes.
    pub(super) fn log_bytes(&self) -> u64 {
        self.told.0.lock().log_bytes
    }

    /// Kills the child with SIGKILL and reads what it told to the end.
    pub(super) fn kill(self) -> Result<Told, TortureError> {
        self.kill_after(false)
    }

    /// The same; a child whose worker was killed may have given up before, and said so.
    fn kill_after(mut self, worker_was_killed: bool) -> Result<Told, TortureError> {
        let failed = |e: std::io::Error| TortureError::Child(e.to_string());
        self.child.kill().map_err(failed)?;
        let status = self.child.wait().map_err(failed)?;
        let _ = self.reader.join();
        let told = self.told.0.lock().clone();
        // It cannot go on with what its worker may have lost; other errors are findings.
        let lost = |error: &String| error.starts_with("@error database: ") && !error.contains("corrupt");
        if worker_was_killed && told.error.as_ref().is_some_and(lost) {
            return Ok(told);
        }
        if let Some(error) = &told.error {
            return Err(TortureError::Child(error.clone()));
        }
        if status.code().is_some() {
            return Err(TortureError::Child(format!("ended by itself with {status}")));
        }
        Ok(told)
    }
}
