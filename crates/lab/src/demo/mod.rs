//! The demonstration: a small shop is loaded and used for a while, with its page accesses recorded; these are replayed
//! under cache sizes and policies. What came of it is a page with pictures.
//!
//! - `shop`: the rows, and what visitors do;
//! - `page`: the HTML page.
//!
//! The clock is the real one, so times belong to the machine. The accesses come from one client and a seed: they are
//! the same each time, but for what the engine does in the background, as long as the visits do not run out of time.

mod page;
mod shop;

use crate::replay::{self, Plan, Point, References, Shape};
use crate::trace::{Reader, Recorder, TraceError};
use serde::Serialize;
use shop::Shop;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Options};

pub use page::{to_html, verdict};

/// Policies that are replayed: eight are told apart in a chart. The last knows the future.
const POLICIES: [&str; 8] = ["lru", "fifo", "sieve", "s3-fifo", "2q", "arc", "lirs", "belady"];

/// Cache sizes, percent of the pages that were accessed.
const PERCENT: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0];

/// Longest time of visits; what is slower ends then.
const VISITS: Duration = Duration::from_secs(15);

/// How large, and how it is run.
#[derive(Debug, Clone, Copy)]
pub struct DemoOptions {
    /// Customers; everything else grows with them.
    pub customers: u32,
    /// Replays at once.
    pub jobs: usize,
}

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The engine failed.
    #[error(transparent)]
    Db(#[from] varve::Error),
    /// The recording cannot be written.
    #[error("the recording: {0}")]
    Io(#[from] std::io::Error),
    /// The recording cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// What is asked for cannot be done.
    #[error("{0}")]
    Invalid(String),
}

/// What was done of one kind, and how long it took. Milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Visits {
    /// Kind of visit.
    pub kind: &'static str,
    /// Visits.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_ms: f64,
    /// 99 of 100 took no longer.
    pub p99_ms: f64,
    /// Response time and the share of visits that took no longer.
    pub distribution: Vec<(f64, f64)>,
}

/// What came of the demonstration.
#[derive(Debug, Clone, Serialize)]
pub struct Demo {
    /// Rows by keyspace, as loaded.
    pub rows: Vec<(&'static str, u64)>,
    /// Bytes of the data file.
    pub bytes: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Seconds that loading took.
    pub load_seconds: f64,
    /// Visits by kind.
    pub visits: Vec<Visits>,
    /// Visits that were planned: all of them, unless time ran out.
    pub planned: u64,
    /// Seconds that the visits took.
    pub seconds: f64,
    /// Page accesses that were recorded.
    pub references: u64,
    /// Pages that were accessed.
    pub pages: u64,
    /// Misses by policy and cache size.
    pub points: Vec<Point>,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Rows are loaded; how many so far.
    Load(u64),
    /// Visitors are there; how many so far.
    Visit(u64),
    /// Accesses are replayed; points so far, and all.
    Replay(u64, u64),
}

/// Makes a database in `dir`, which must not be there or be empty, and does everything in it. `step` is told how far it
/// is.
///
/// # Errors
/// `Invalid` without customers; those of the engine and of the disk.
pub fn run(dir: &Path, options: DemoOptions, step: &mut dyn FnMut(Step)) -> Result<Demo, DemoError> {
    if options.customers == 0 {
        return Err(DemoError::Invalid("a shop needs at least one customer".into()));
    }
    let recorder = Recorder::new();
    let engine = Options { trace: Some(recorder.handle()), ..Options::default() };
    let db = Db::create(dir.join("db"), &varve::Layout::default(), engine)?;
    let begun = varve_rt::now();
    let shop = Shop::load(&db, options.customers, &mut |rows| step(Step::Load(rows)))?;
    db.checkpoint()?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let (pages, page_size) = (db.stats().pages, db.stats().page_size as u64);
    let trace = dir.join("accesses");
    recorder.start(&trace, page_size as u32)?;
    let begun = varve_rt::now();
    let visits = shop.visits(&db, VISITS, &mut |visits| step(Step::Visit(visits)));
    let seconds = begun.elapsed().as_secs_f64();
    recorder.about(&db);
    let (rows, planned) = (shop.rows(), shop.planned());
    drop(shop);
    let closed = db.close();
    recorder.finish()?;
    let visits = visits?;
    closed?;
    let (refs, points) = replayed(&trace, options.jobs, step)?;
    Ok(Demo {
        rows,
        bytes: pages * page_size,
        page_size,
        load_seconds,
        visits,
        planned,
        seconds,
        references: refs.len(),
        pages: refs.pages() as u64,
        points,
    })
}

/// The recorded accesses under every policy and size.
fn replayed(trace: &Path, jobs: usize, step: &mut dyn FnMut(Step)) -> Result<(Arc<References>, Vec<Point>), DemoError> {
    let mut reader = Reader::open(trace, &Default::default())?;
    let refs = Arc::new(References::read(&mut reader, &Shape::default())?);
    let mut sizes: Vec<usize> =
        PERCENT.iter().map(|percent| ((refs.pages() as f64 * percent / 100.0).round() as usize).max(1)).collect();
    sizes.dedup();
    let policies = POLICIES.map(String::from).to_vec();
    let plan = Plan { policies, sizes, options: replay::policy_options(), jobs };
    let all = (plan.policies.len() * plan.sizes.len()) as u64;
    let mut done = 0;
    let points = replay::run(&refs, &plan, |_| {
        done += 1;
        step(Step::Replay(done, all));
    });
    Ok((refs, points.map_err(DemoError::Invalid)?))
}

/// What a tenth of the pages as a cache comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenth<'a> {
    /// Pages of cache.
    pub size: usize,
    /// With `lru`.
    pub lru: &'a Point,
    /// With the policy that misses least of those that know no future.
    pub best: &'a Point,
    /// With `belady`, which knows the future: nothing misses less.
    pub least: &'a Point,
}

impl Demo {
    /// The points at the cache size next to a tenth of the pages; none where nothing was accessed.
    pub fn tenth(&self) -> Option<Tenth<'_>> {
        let size = self.points.iter().map(|p| p.size).min_by_key(|size| size.abs_diff(self.pages as usize / 10))?;
        let at = || self.points.iter().filter(move |p| p.size == size);
        let of = |policy: &str| at().find(|p| p.policy == policy);
        let best = at().filter(|p| p.policy != "belady").min_by_key(|p| p.misses)?;
        Some(Tenth { size, lru: of("lru")?, best, least: of("belady")? })
    }
}
