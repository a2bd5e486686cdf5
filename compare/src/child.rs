//! Work in a process of its own, so that its memory can be limited: the parent hands over a [`Job`], the child puts
//! itself into the job's control group before it opens anything, and prints each figure as a line of JSON.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use varve_lab::ycsb::{Letter, Shape};
use varve_lab::{Error, Result};

use crate::bench::drive::Measured;
use crate::bench::{ROWS, Scale, lab};
use crate::cgroup;
use crate::engine::{Engine, Settings};
use crate::engines;

/// First argument of a process that is to do a job; the second is the job.
pub const ARGUMENT: &str = "--job";

/// What a process is to do.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Name of the engine.
    pub engine: String,
    /// Directory of its database.
    pub dir: PathBuf,
    /// How it is opened.
    pub settings: Settings,
    /// Sizes and lengths.
    pub scale: Scale,
    /// Seed of data and requests.
    pub seed: u64,
    /// The work.
    pub task: Task,
    /// Control group to join, as [`cgroup::Cgroup::joint`] says.
    pub joint: Option<PathBuf>,
}

/// What is done with a database.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub enum Task {
    /// Loads the records of the larger-than-memory rows.
    LoadYcsb,
    /// Measures these rows over them.
    Ycsb(Vec<String>),
    /// Loads TPC-C.
    LoadTpcc,
    /// Measures TPC-C with this many threads.
    Tpcc(usize),
    /// Fails unless TPC-C's consistency conditions hold.
    CheckTpcc,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Line {
    row: String,
    threads: usize,
    figure: Measured,
}

/// Takes a figure: row, threads, figure.
pub type Sink<'a> = dyn FnMut(&'static str, usize, Measured) + 'a;

/// Does a job with an engine.
pub fn work<E: Engine>(job: &Job, sink: &mut Sink<'_>) -> Result<()> {
    let store = Arc::new(E::open(&job.dir, &job.settings)?);
    match &job.task {
        Task::LoadYcsb => {
            let shape = Shape { records: job.scale.large_records, ..Shape::default() };
            lab::bulk_load_ycsb(&*store, shape, job.seed)?;
        }
        Task::Ycsb(rows) => {
            let mut warmup = job.scale.warmup_large;
            for (row, letter) in [("large-c", Letter::C), ("large-b", Letter::B), ("large-a", Letter::A)] {
                if rows.iter().any(|wanted| wanted == row) {
                    let measured =
                        lab::measure_ycsb(&store, letter, LARGE_THREADS, (warmup, job.scale.measure_large), job.seed)?;
                    sink(row, LARGE_THREADS, measured);
                    warmup = job.scale.warmup;
                }
            }
        }
        Task::LoadTpcc => lab::load_tpcc(&store, &job.scale, job.seed)?,
        Task::Tpcc(threads) => sink("tpcc-cache", *threads, lab::run_tpcc(&store, &job.scale, job.seed, *threads)?),
        Task::CheckTpcc => lab::check_tpcc(&*store)?,
    }
    engines::close(store)
}

/// Threads of the larger-than-memory rows.
pub const LARGE_THREADS: usize = 8;

/// The child's side: does the job that was handed over as text.
pub fn main(text: &str) -> Result<()> {
    let job: Job = serde_json::from_str(text).map_err(Error::store)?;
    if let Some(joint) = &job.joint {
        cgroup::join(joint)?;
    }
    let entry = engines::named(&job.engine).ok_or_else(|| Error::store(format!("no engine {:?} here", job.engine)))?;
    (entry.work)(&job, &mut |row, threads, figure| {
        let line = Line { row: row.to_string(), threads, figure };
        println!("{}", serde_json::to_string(&line).expect("plain data"));
    })
}

/// The parent's side: lets `program`, this harness, do the job, and hands on its figures as they come.
///
/// Errors: it could not be started or failed; the child has said why on stderr unless it was killed.
pub fn run(program: &Path, job: &Job, sink: &mut Sink<'_>) -> Result<()> {
    let text = serde_json::to_string(job).expect("plain data");
    let mut command = Command::new(program);
    command.args([ARGUMENT, &text]).stdin(Stdio::null()).stdout(Stdio::piped());
    // glibc's allocator: one arena per thread would keep memory from all engines that free it on other threads.
    command.env("MALLOC_ARENA_MAX", "2");
    let mut child = command.spawn().map_err(Error::store)?;
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line: Line = serde_json::from_str(&line.map_err(Error::store)?).map_err(Error::store)?;
        let row = ROWS.iter().find(|row| row.name == line.row);
        sink(row.expect("a row of this program").name, line.threads, line.figure);
    }
    let status = child.wait().map_err(Error::store)?;
    match status.signal() {
        _ if status.success() => Ok(()),
        Some(libc::SIGKILL) => Err(Error::store("killed: it wanted more memory than it may have")),
        _ => Err(Error::store(format!("its process ended with {status}"))),
    }
}
