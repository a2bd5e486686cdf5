//! Rounds over engines. In each round every engine has its turn; the order turns by one each round, so that none always
//! runs first.
//!
//! In memory, a group of rows has a new database each time, removed afterwards. TPC-C databases are loaded once and
//! stay open. Where memory is scarce, the databases are loaded once, and each turn is a process of its own in a control
//! group of its own, which finds nothing in the page cache.

use std::path::PathBuf;
use std::sync::Arc;

use varve_lab::adapter::Store;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::{Error, Result, ycsb};

use crate::bench::drive::{Measured, Timing};
use crate::bench::{Group, ROWS, Sample, Scale, Session, iobound, lab};
use crate::cgroup::Cgroup;
use crate::child::{self, Job, LARGE_THREADS, Task};
use crate::engine::{Engine, Memory, SPARE, Settings, VARVE_DATA};
use crate::engines::{self, ENGINES, Entry};
use crate::files::{TempDir, drop_page_cache};
use crate::options::Options;

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub samples: Vec<Sample>,
    /// What did not go well.
    pub failures: Vec<Failure>,
}

/// An engine that failed in a group of rows; it is not tried there again.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Failure {
    /// Name of the engine.
    pub engine: &'static str,
    /// The rows.
    pub group: Group,
    /// What went wrong.
    pub why: String,
}

/// How an engine is opened for a group of rows; `threads` that will use it.
pub fn settings(group: Group, scale: &Scale, threads: usize) -> Settings {
    let (cache_bytes, page_size) = match group {
        Group::Small | Group::SmallSorted | Group::SmallRandom | Group::Ycsb => (scale.cache_bytes, 8192),
        Group::Tpcc => (2 * scale.cache_bytes, 8192),
        Group::Large => (scale.large_cache_bytes, 8192),
        Group::TpccScarce => (scale.tpcc_cache_bytes, 8192),
        Group::IoBound => (scale.io_cache_bytes, 4096),
    };
    let memory = match group {
        Group::Large | Group::TpccScarce => Memory::Scarce { clients: threads },
        _ => Memory::Ample,
    };
    Settings { cache_bytes, page_size, memory }
}

/// Client threads of TPC-C: Varve runs with 8, the others are given the choice.
fn tpcc_threads(engine: &str) -> &'static [usize] {
    if engine == "varve" { &[8] } else { &[1, 2, 4, 8] }
}

/// Runs everything asked for; `progress` gets a line per step. `program` is this harness, for the rows whose memory is
/// limited.
pub fn run(options: &Options, program: PathBuf, mut progress: impl FnMut(String)) -> Outcome {
    let mut run = Run { options, program, progress: &mut progress, outcome: Outcome::default() };
    run.in_memory();
    run.tpcc();
    run.scarce(Group::Large, Task::LoadYcsb);
    run.scarce(Group::TpccScarce, Task::LoadTpcc);
    if !run.rows(Group::IoBound).is_empty()
        && let Err(e) = run.io_bound()
    {
        run.failed("varve", Group::IoBound, e);
    }
    run.outcome
}

struct Run<'a> {
    options: &'a Options,
    program: PathBuf,
    progress: &'a mut dyn FnMut(String),
    outcome: Outcome,
}

impl Run<'_> {
    /// The rows of a group that are wanted.
    fn rows(&self, group: Group) -> Vec<&'static str> {
        let only = &self.options.only;
        let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
        ROWS.iter().filter(|row| row.group == group && wanted(row.name)).map(|row| row.name).collect()
    }

    /// The engines for a group, in the order of `round`, without those that failed in it.
    fn engines(&self, group: Group, round: u32) -> Vec<&'static Entry> {
        let wanted = |list: &[String], name: &str| list.iter().any(|o| o == name);
        let asked = &self.options.engines;
        let mut found: Vec<&Entry> = ENGINES
            .iter()
            .filter(|e| e.name == "varve" || asked.is_empty() || wanted(asked, e.name))
            .filter(|e| match group {
                Group::Tpcc | Group::TpccScarce => e.name == "varve" || wanted(&self.options.tpcc_peers, e.name),
                _ => true,
            })
            .collect();
        let places = found.len();
        found.rotate_left((round as usize - 1) % places);
        found.retain(|e| !self.outcome.failures.iter().any(|f| f.engine == e.name && f.group == group));
        found
    }

    fn sample(&mut self, row: &'static str, engine: &'static str, (round, threads): (u32, usize), figure: Measured) {
        let Measured { value, cpu_us } = figure;
        (self.progress)(format!(
            "round {round}  {engine:<10} {row:<12} {threads:>2} thr. {value:>12.0}  {cpu_us:>8.2} µs of CPU each"
        ));
        self.outcome.samples.push(Sample { row, engine, round, threads, value, cpu_us });
    }

    fn failed(&mut self, engine: &'static str, group: Group, e: Error) {
        let why = e.to_string();
        (self.progress)(format!("FAILED   {engine:<10} {group:?}: {why}"));
        self.outcome.failures.push(Failure { engine, group, why });
    }

    fn in_memory(&mut self) {
        for round in 1..=self.options.rounds {
            for group in [Group::Small, Group::SmallSorted, Group::SmallRandom, Group::Ycsb] {
                let rows = self.rows(group);
                for entry in if rows.is_empty() { Vec::new() } else { self.engines(group, round) } {
                    if let Err(e) = self.group(entry, group, round, &rows) {
                        self.failed(entry.name, group, e);
                    }
                }
            }
        }
    }

    fn group(&mut self, entry: &Entry, group: Group, round: u32, rows: &[&str]) -> Result<()> {
        let (scale, seed) = (&self.options.scale, self.options.seed);
        let dir = TempDir::new(&self.options.dir, entry.name)?;
        let wanted = |row: &str| rows.contains(&row);
        let mut sink = |row, threads, figure| {
            if wanted(row) {
                self.sample(row, entry.name, (round, threads), figure);
            }
        };
        let mut session = Session { scale, seed, round, wanted: &wanted, sink: &mut sink };
        (entry.run)(dir.path(), &settings(group, scale, 1), group, &mut session)
    }

    fn tpcc(&mut self) {
        let (group, scale) = (Group::Tpcc, &self.options.scale);
        let mut open = Vec::new();
        for entry in if self.rows(group).is_empty() { Vec::new() } else { self.engines(group, 1) } {
            (self.progress)(format!("loading  {:<10} {} warehouses", entry.name, scale.warehouses));
            let loaded = TempDir::new(&self.options.dir, &format!("{}-tpcc", entry.name)).and_then(|dir| {
                // The database before its directory: they are dropped in this order.
                Ok(((entry.open_tpcc)(dir.path(), &settings(group, scale, 8), scale, self.options.seed)?, dir))
            });
            match loaded {
                Ok(loaded) => open.push(loaded),
                Err(e) => self.failed(entry.name, group, e),
            }
        }
        for round in 1..=self.options.rounds {
            for entry in self.engines(group, round) {
                let Some((database, _)) = open.iter().find(|(database, _)| database.name() == entry.name) else {
                    continue;
                };
                for &threads in tpcc_threads(entry.name) {
                    match database.run(scale, self.seed(round, threads), threads) {
                        Ok(figure) => self.sample("tpcc", entry.name, (round, threads), figure),
                        Err(e) => self.failed(entry.name, group, e),
                    }
                }
            }
        }
        for (database, dir) in open {
            let name = database.name();
            match database.check().and_then(|()| database.close()) {
                Ok(()) => (self.progress)(format!("checked  {name:<10} the twelve conditions hold")),
                Err(e) => self.failed(name, group, e),
            }
            drop(dir);
        }
    }

    /// Seed of the requests of a turn.
    fn seed(&self, round: u32, threads: usize) -> u64 {
        self.options.seed ^ (u64::from(round) << 32) ^ ((threads as u64) << 48)
    }

    /// A group whose memory is limited.
    fn scarce(&mut self, group: Group, load: Task) {
        let rows = self.rows(group);
        let mut loaded = Vec::new();
        for entry in if rows.is_empty() { Vec::new() } else { self.engines(group, 1) } {
            (self.progress)(format!("loading  {:<10} for {}", entry.name, rows.join(", ")));
            let dir = TempDir::new(&self.options.dir, &format!("{}-{group:?}", entry.name));
            match dir.and_then(|dir| self.job(entry, group, &dir, load.clone(), (0, 2)).map(|()| dir)) {
                Ok(dir) => loaded.push((entry.name, dir)),
                Err(e) => self.failed(entry.name, group, e),
            }
        }
        for round in 1..=self.options.rounds {
            for entry in self.engines(group, round) {
                let Some((_, dir)) = loaded.iter().find(|(name, _)| *name == entry.name) else { continue };
                let tasks = match group {
                    Group::Large => {
                        vec![(Task::Ycsb(rows.iter().map(|row| row.to_string()).collect()), LARGE_THREADS)]
                    }
                    _ => tpcc_threads(entry.name).iter().map(|threads| (Task::Tpcc(*threads), *threads)).collect(),
                };
                let mut turns = tasks.into_iter();
                if let Err(e) =
                    turns.try_for_each(|(task, threads)| self.job(entry, group, dir, task, (round, threads)))
                {
                    self.failed(entry.name, group, e);
                }
            }
        }
        for entry in if group == Group::TpccScarce { self.engines(group, 1) } else { Vec::new() } {
            let Some((_, dir)) = loaded.iter().find(|(name, _)| *name == entry.name) else { continue };
            if let Err(e) = self.job(entry, group, dir, Task::CheckTpcc, (0, 2)) {
                self.failed(entry.name, group, e);
            }
        }
    }

    /// Does a job in a process of its own. Round 0 stands for what is not measured, and is not limited.
    fn job(
        &mut self,
        entry: &Entry,
        group: Group,
        dir: &TempDir,
        task: Task,
        (round, threads): (u32, usize),
    ) -> Result<()> {
        let mut settings = settings(group, &self.options.scale, threads);
        let limit = settings.cache_bytes + SPARE;
        let cgroup = Cgroup::new(entry.name, limit)?;
        let joint = (round > 0).then(|| cgroup.joint());
        if round == 0 {
            settings.cache_bytes = self.options.scale.cache_bytes;
        }
        drop_page_cache(dir.path())?;
        let job = Job {
            engine: entry.name.to_string(),
            // The child may have another working directory one day; an absolute path is the same everywhere.
            dir: dir.path().canonicalize().map_err(Error::store)?,
            settings,
            scale: self.options.scale,
            seed: if round > 0 { self.seed(round, threads) } else { self.options.seed },
            task,
            joint,
        };
        let program = self.program.clone();
        child::run(&program, &job, &mut |row, threads, figure| {
            self.sample(row, entry.name, (round, threads), figure);
        })
    }

    /// Varve's reads from the device beside fio's, in turn, from the same file.
    fn io_bound(&mut self) -> Result<()> {
        let (group, scale) = (Group::IoBound, &self.options.scale);
        let timing = Timing { warmup: scale.warmup_large, measure: scale.measure_large };
        let shape = ycsb::Shape { records: scale.io_records, fields: 4, ..ycsb::Shape::default() };
        let dir = TempDir::new(&self.options.dir, "varve-io")?;
        (self.progress)(format!("loading  {:<10} {} records for io-reads", "varve", shape.records));
        let store = Arc::new(VarveStore::open(dir.path(), &settings(group, scale, iobound::DEPTH))?);
        lab::bulk_load_ycsb(&*store, shape, self.options.seed)?;
        let ks = store.keyspace("ycsb")?;
        for round in 1..=self.options.rounds {
            let varve = |run: &mut Self| {
                let figure = iobound::reads(&store, &ks, shape, timing, run.seed(round, iobound::DEPTH))?;
                run.sample("io-reads", "varve", (round, iobound::DEPTH), figure);
                Ok::<(), Error>(())
            };
            if round % 2 == 1 {
                varve(self)?;
            }
            for (threads, way) in iobound::FIO_WAYS {
                let figure = iobound::fio(&dir.path().join(VARVE_DATA), way, timing)?;
                self.sample("io-reads", "fio", (round, threads), figure);
            }
            if round % 2 == 0 {
                varve(self)?;
            }
        }
        drop(ks);
        engines::close(store)
    }
}
