//! The run itself: threads, warm-up, the end, intervals.
//!
//! A transaction counts if it began after the warm-up and ended before the end of the run. The calling thread waits
//! for the others and hands out interval figures meanwhile.

use std::sync::Arc;
use std::time::Duration;

use varve_rt::atomic::{AtomicBool, AtomicI64, Ordering};
use varve_rt::channel::{RecvTimeoutError, Sender, unbounded};
use varve_rt::{Cost, Event, Instant, Rng, charge, now, sleep};

use super::measure::{Interval, KindRecord, Live, LiveSum, quantiles};
use super::result::{KindResult, RunResult, peak_rss_mb};
use super::{Client, Latency, Outcome, Workload};
use crate::adapter::{Store, StoreStats, backoff, bad_option};
use crate::error::{Error, Result};

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this time, warm-up not counted.
    Time(Duration),
    /// After this many transactions over all threads, warm-up not counted.
    Transactions(u64),
}

/// How a workload is driven.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunOptions {
    /// Client threads.
    pub threads: usize,
    /// Time before anything is counted.
    pub warmup: Duration,
    /// When the run ends.
    pub until: Until,
    /// Time between interval figures.
    pub interval: Duration,
    /// Transactions per second of all threads together, whether the store keeps up or not (an open loop): response
    /// times count from when a transaction was due. `None`: each thread begins the next when one has ended.
    pub rate: Option<f64>,
}

impl Default for RunOptions {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        let until = Until::Time(30 * second);
        RunOptions { threads: 8, warmup: Duration::ZERO, until, interval: second, rate: None }
    }
}

/// What all threads of a run share.
struct Shared {
    start: Event,
    stop: AtomicBool,
    begin: Instant,
    rate: Option<f64>,
    warm_from: Instant,
    end: Instant,
    /// Transactions left to begin, if the run ends after a number of them.
    left: Option<AtomicI64>,
    counted_kind: Option<usize>,
}

struct Finished {
    kinds: Vec<KindRecord>,
    last: Instant,
    overdue: u64,
}

/// When the transactions of one thread are due, in an open loop.
struct Pace {
    begin: Instant,
    /// Nanoseconds between two.
    step: f64,
    next: f64,
}

impl Pace {
    fn new(shared: &Shared, thread: usize, threads: usize) -> Option<Pace> {
        let rate = shared.rate?;
        let step = threads as f64 / rate * 1e9;
        Some(Pace { begin: shared.begin, step, next: step * thread as f64 / threads as f64 })
    }

    fn take(&mut self) -> Instant {
        let due = self.begin + Duration::from_nanos(self.next as u64);
        self.next += self.step;
        due
    }

    /// How many are due before `end` and were not taken.
    fn overdue(&self, end: Instant) -> u64 {
        let left = (end - self.begin).as_nanos() as f64 - self.next;
        if left > 0.0 { (left / self.step).ceil() as u64 } else { 0 }
    }
}

/// Runs `workload` on `store`; `each_interval` is called on this thread.
///
/// Errors: an option cannot be used, or a transaction failed with an error that cannot be retried; the other threads
/// then stop after the transaction they are in.
pub fn run<S: Store, W: Workload<S>>(
    store: &Arc<S>,
    workload: &Arc<W>,
    options: &RunOptions,
    mut each_interval: impl FnMut(&Interval),
) -> Result<RunResult> {
    if options.threads == 0 || options.threads > 10_000 {
        return bad_option("threads", format!("{} given, 1 to 10000 possible", options.threads));
    }
    if options.rate.is_some_and(|rate| !(1e-6..=1e9).contains(&rate)) {
        return bad_option("rate", "more than 0 and at most 1e9 transactions per second are possible");
    }
    if options.interval.is_zero() {
        return bad_option("interval", "it is zero; a tenth of a second is a good least value");
    }
    let begin = now();
    let warm_from = begin + options.warmup;
    let (end, left) = match options.until {
        Until::Time(time) => (warm_from + time, None),
        Until::Transactions(n) => (Instant::from_nanos(u64::MAX), Some(AtomicI64::new(n.min(i64::MAX as u64) as i64))),
    };
    let counted_kind = workload.counted_kind();
    let (stop, rate) = (AtomicBool::new(false), options.rate);
    let shared = Arc::new(Shared { start: Event::new(), stop, begin, rate, warm_from, end, left, counted_kind });
    let (send, receive) = unbounded();
    let mut workers = Vec::new();
    let mut live = Vec::new();
    for thread in 0..options.threads {
        live.push(Arc::new(Live::default()));
        let (store, workload, shared, live) = (store.clone(), workload.clone(), shared.clone(), live[thread].clone());
        let (send, threads): (Sender<()>, _) = (send.clone(), options.threads);
        workers.push(varve_rt::spawn(format!("client-{thread}"), move || {
            let outcome = work(&*store, &store, &*workload, (thread, threads), &shared, &live);
            if outcome.is_err() {
                shared.stop.store(true, Ordering::Relaxed);
            }
            drop(send);
            outcome
        }));
    }
    drop(send);
    shared.start.set();

    let mut base = store.stats();
    let mut warming_up = !options.warmup.is_zero();
    let mut previous = (now(), LiveSum::default(), base);
    loop {
        let mut next = previous.0 + options.interval;
        if warming_up {
            next = next.min(warm_from.max(now()));
        }
        // Nothing is ever sent: the channel closes when the last thread has ended.
        let ended = matches!(receive.recv_timeout(next - now()), Err(RecvTimeoutError::Disconnected));
        let (at, stats) = (now(), store.stats());
        let sum = LiveSum::of(live.iter().map(|l| &**l));
        let interval = since(&previous, (at, sum, stats), begin, warming_up);
        if warming_up && at >= warm_from {
            warming_up = false;
            base = stats;
        }
        previous = (at, sum, stats);
        if !interval.length.is_zero() {
            each_interval(&interval);
        }
        if ended {
            break;
        }
    }
    let mut finished = Vec::new();
    for worker in workers {
        let name = worker.name().to_string();
        finished.push(worker.join().map_err(|_| Error::WorkerPanicked(name))?);
    }
    let finished: Vec<Finished> = finished.into_iter().collect::<Result<_>>()?;
    Ok(summary(store, workload, options, &shared, finished, store.stats().since(&base)))
}

fn since(
    then: &(Instant, LiveSum, StoreStats),
    now: (Instant, LiveSum, StoreStats),
    begin: Instant,
    warming_up: bool,
) -> Interval {
    Interval {
        at: now.0 - begin,
        length: now.0 - then.0,
        warming_up,
        done: now.1.done - then.1.done,
        counted: now.1.counted - then.1.counted,
        retries: now.1.retries - then.1.retries,
        done_in_all: now.1.done,
        stats: now.2.since(&then.2),
    }
}

fn summary<S: Store, W: Workload<S>>(
    store: &Arc<S>,
    workload: &Arc<W>,
    options: &RunOptions,
    shared: &Shared,
    finished: Vec<Finished>,
    stats: StoreStats,
) -> RunResult {
    let last = finished.iter().map(|f| f.last).max().unwrap_or(shared.warm_from);
    let length = match options.until {
        Until::Time(time) => time,
        Until::Transactions(_) => last - shared.warm_from,
    };
    let seconds = length.as_secs_f64().max(1e-9);
    let mut all = KindRecord::new();
    let mut kinds = Vec::new();
    for (kind, name) in workload.kinds().iter().enumerate() {
        let mut record = KindRecord::new();
        for thread in &finished {
            record.merge(&thread.kinds[kind]);
        }
        all.merge(&record);
        kinds.push(KindResult::of(name, &record));
    }
    let total = KindResult::of("total", &all);
    let overdue = finished.iter().map(|f| f.overdue).sum();
    let tpmc = shared.counted_kind.map(|kind| 60.0 * kinds[kind].count as f64 / seconds);
    RunResult {
        workload: workload.name().to_string(),
        store: store.name().to_string(),
        tpmc,
        ops_per_s: total.count as f64 / seconds,
        threads: options.threads,
        seconds,
        clock: if varve_rt::in_simulation() { "virtual" } else { "real" },
        latency: Latency::of(&all.latency),
        quantiles: quantiles(&all.latency),
        total,
        overdue,
        kinds,
        stats,
        peak_rss_mb: peak_rss_mb(),
        consistent: None,
    }
}

/// One thread.
fn work<S: Store, W: Workload<S>>(
    store: &S,
    shared_store: &Arc<S>,
    workload: &W,
    (thread, threads): (usize, usize),
    shared: &Shared,
    live: &Live,
) -> Result<Finished> {
    let mut client = workload.client(shared_store, thread, threads)?;
    let mut kinds: Vec<KindRecord> = workload.kinds().iter().map(|_| KindRecord::new()).collect();
    let mut rng = Rng::from_seed(thread as u64);
    let mut last = shared.warm_from;
    let (mut pace, ends_run) = (Pace::new(shared, thread, threads), workload.ends_run(thread));
    shared.start.wait();
    let mut still = Still { at: now(), transactions: 0 };
    while !shared.stop.load(Ordering::Relaxed) {
        let draw = client.draw();
        if !draw.keying.is_zero() {
            sleep(draw.keying.min(shared.end - now()));
        }
        let due = pace.as_mut().map(Pace::take);
        if let Some(due) = due {
            sleep(due.min(shared.end) - now());
        }
        if now() >= shared.end {
            break;
        }
        let began = due.unwrap_or_else(now);
        let warm = began >= shared.warm_from;
        if warm && let Some(left) = &shared.left {
            let left = if ends_run { left.fetch_sub(1, Ordering::Relaxed) } else { left.load(Ordering::Relaxed) };
            if left <= 0 {
                break;
            }
        }
        let (outcome, retries) = attempts(&mut client, store, &mut rng, shared, live)?;
        let Some(outcome) = outcome else { break };
        let ended = now();
        still.see(ended, shared)?;
        live.done.fetch_add(1, Ordering::Relaxed);
        if shared.counted_kind.is_none_or(|kind| kind == draw.kind) {
            live.counted.fetch_add(1, Ordering::Relaxed);
        }
        if warm && ended <= shared.end {
            kinds[draw.kind].note(ended - began, outcome == Outcome::RolledBack, retries);
            last = ended;
        }
        if !draw.think.is_zero() {
            sleep(draw.think.min(shared.end - now()));
        }
    }
    // Of a run that ends after a number of transactions none is left.
    let overdue = pace.filter(|_| shared.left.is_none()).map_or(0, |pace| pace.overdue(shared.end));
    Ok(Finished { kinds, last, overdue })
}

/// A thread's transactions since its clock moved.
struct Still {
    at: Instant,
    transactions: u64,
}

impl Still {
    /// Transactions after which a run that is to last some time would never end.
    const MOST: u64 = 1_000_000;

    fn see(&mut self, now: Instant, shared: &Shared) -> Result<()> {
        self.transactions = if now == self.at { self.transactions + 1 } else { 0 };
        self.at = now;
        if self.transactions < Still::MOST || !varve_rt::in_simulation() {
            return Ok(());
        }
        if shared.left.is_some() && now >= shared.warm_from {
            return Ok(()); // It ends after a number of transactions.
        }
        let why = "a million transactions took no time at all, so the run would never end: give the host costs";
        bad_option("host.profile", why)
    }
}

/// Runs the drawn transaction until it ends; `None` if another thread failed meanwhile.
fn attempts<S: Store>(
    client: &mut impl Client<S>,
    store: &S,
    rng: &mut Rng,
    shared: &Shared,
    live: &Live,
) -> Result<(Option<Outcome>, u64)> {
    let mut retries = 0;
    loop {
        charge(Cost::ClientTxn, 1);
        match client.attempt(store) {
            Ok(outcome) => return Ok((Some(outcome), retries)),
            Err(e) if e.retryable() => {
                if shared.stop.load(Ordering::Relaxed) {
                    return Ok((None, retries));
                }
                retries += 1;
                live.retries.fetch_add(1, Ordering::Relaxed);
                backoff(retries as u32, rng);
            }
            Err(e) => return Err(e),
        }
    }
}
