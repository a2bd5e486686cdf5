//! Rounds over engines. In each round every engine runs each group of rows once, on a database of its own that is
//! removed afterwards; the order of the engines turns by one each round, so that none always runs first. TPC-C
//! databases are loaded once and stay open, and the rounds go over them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_lab::adapter::varve::VarveStore;
use varve_lab::{Error, Result};

use crate::adapter::fjall::FjallStore;
use crate::adapter::lmdb::LmdbStore;
use crate::adapter::redb::RedbStore;
#[cfg(feature = "rocksdb")]
use crate::adapter::rocksdb::RocksStore;
use crate::adapter::sqlite::SqliteStore;
use crate::bench::drive::Measured;
use crate::bench::{Group, ROWS, Sample, Scale, Session, lab, small};
use crate::engine::{Description, Engine, Settings};
use crate::options::Options;

/// What can be done with an engine, whatever its types are.
pub struct Entry {
    /// Name of the engine.
    pub name: &'static str,
    /// How it is set up.
    pub describe: fn(&Settings) -> Description,
    run: fn(&Path, &Settings, Group, &mut Session<'_>) -> Result<()>,
    open_tpcc: fn(&Path, &Settings, &Scale, u64) -> Result<Box<dyn OpenTpcc>>,
}

/// The engines compiled in, Varve first.
pub const ENGINES: &[Entry] = &[
    entry::<VarveStore>(),
    entry::<SqliteStore>(),
    #[cfg(feature = "rocksdb")]
    entry::<RocksStore>(),
    entry::<LmdbStore>(),
    entry::<RedbStore>(),
    entry::<FjallStore>(),
];

const fn entry<E: Engine>() -> Entry {
    Entry { name: E::NAME, describe: E::describe, run: run_group::<E>, open_tpcc: open_tpcc::<E> }
}

/// A loaded TPC-C database.
trait OpenTpcc {
    fn name(&self) -> &'static str;
    fn run(&self, scale: &Scale, seed: u64, threads: usize) -> Result<Measured>;
    fn check(&self) -> Result<()>;
    fn close(self: Box<Self>) -> Result<()>;
}

struct Loaded<E: Engine>(Arc<E>);

impl<E: Engine> OpenTpcc for Loaded<E> {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn run(&self, scale: &Scale, seed: u64, threads: usize) -> Result<Measured> {
        lab::run_tpcc(&self.0, scale, seed, threads)
    }

    fn check(&self) -> Result<()> {
        lab::check_tpcc(&*self.0)
    }

    fn close(self: Box<Self>) -> Result<()> {
        close(self.0)
    }
}

fn close<E: Engine>(store: Arc<E>) -> Result<()> {
    Arc::into_inner(store).expect("every client of the database has ended").close()
}

fn open_tpcc<E: Engine>(dir: &Path, settings: &Settings, scale: &Scale, seed: u64) -> Result<Box<dyn OpenTpcc>> {
    let store = Arc::new(E::create(dir, settings)?);
    lab::load_tpcc(&store, scale, seed)?;
    Ok(Box::new(Loaded(store)))
}

fn run_group<E: Engine>(dir: &Path, settings: &Settings, group: Group, session: &mut Session<'_>) -> Result<()> {
    let store = Arc::new(E::create(dir, settings)?);
    match group {
        Group::Small => small::run(&store, session)?,
        Group::SmallRandom => small::run_random(&store, session)?,
        Group::Ycsb => lab::run_ycsb(&store, session)?,
        Group::Tpcc => unreachable!("TPC-C databases outlive a round"),
    }
    close(store)
}

/// The settings of a group.
pub fn settings(group: Group, scale: &Scale) -> Settings {
    match group {
        Group::Tpcc => Settings { cache_bytes: 2 * scale.cache_bytes, page_size: 8192 },
        _ => Settings { cache_bytes: scale.cache_bytes, page_size: 8192 },
    }
}

/// A directory that is removed with everything in it when the value is dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new(parent: &Path, name: &str) -> Result<TempDir> {
        let path = parent.join(format!("varve-compare-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| {
            Error::store(format!("cannot make the directory {}: {e}; choose another --dir", path.display()))
        })?;
        Ok(TempDir(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}; remove it by hand", self.0.display());
        }
    }
}

fn named(name: &str, e: Error) -> Error {
    Error::store(format!("{name}: {e}"))
}

/// Runs everything asked for; `progress` gets a line per step.
pub fn run(options: &Options, mut progress: impl FnMut(String)) -> Result<Vec<Sample>> {
    let wanted = |row: &str| options.only.is_empty() || options.only.iter().any(|name| name == row);
    let runs = |entry: &&Entry| {
        entry.name == "varve" || options.engines.is_empty() || options.engines.iter().any(|name| name == entry.name)
    };
    let engines: Vec<&Entry> = ENGINES.iter().filter(runs).collect();
    let mut samples = Vec::new();
    for round in 1..=options.rounds {
        for group in [Group::Small, Group::SmallRandom, Group::Ycsb] {
            if !ROWS.iter().any(|row| row.group == group && wanted(row.name)) {
                continue;
            }
            for i in 0..engines.len() {
                let entry = engines[(i + round as usize - 1) % engines.len()];
                let dir = TempDir::new(&options.dir, entry.name)?;
                let mut sink = |row: &'static str, threads: usize, Measured { value, cpu_us }: Measured| {
                    if wanted(row) {
                        progress(format!(
                            "round {round}  {:<8} {row:<12} {value:>12.0}  {cpu_us:>8.2} µs of CPU each",
                            entry.name
                        ));
                        samples.push(Sample { row, engine: entry.name, round, threads, value, cpu_us });
                    }
                };
                let scale = &options.scale;
                let mut session = Session { scale, seed: options.seed, round, wanted: &wanted, sink: &mut sink };
                (entry.run)(&dir.0, &settings(group, scale), group, &mut session).map_err(|e| named(entry.name, e))?;
            }
        }
    }
    if wanted("tpcc") {
        let peers = |entry: &&&Entry| entry.name == "varve" || options.tpcc_peers.iter().any(|name| name == entry.name);
        let engines: Vec<&Entry> = engines.iter().filter(peers).copied().collect();
        run_tpcc(options, &engines, &mut progress, &mut samples)?;
    }
    Ok(samples)
}

/// Client threads of TPC-C: Varve runs with 8, the others are given the choice.
fn tpcc_threads(engine: &str) -> &'static [usize] {
    if engine == "varve" { &[8] } else { &[1, 2, 4, 8] }
}

fn run_tpcc(
    options: &Options,
    engines: &[&Entry],
    progress: &mut impl FnMut(String),
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let scale = &options.scale;
    let mut open = Vec::new();
    for entry in engines {
        let dir = TempDir::new(&options.dir, &format!("{}-tpcc", entry.name))?;
        progress(format!("loading  {:<8} {} warehouses", entry.name, scale.warehouses));
        let settings = settings(Group::Tpcc, scale);
        let loaded = (entry.open_tpcc)(&dir.0, &settings, scale, options.seed).map_err(|e| named(entry.name, e))?;
        // The database before its directory: an error below drops both in this order.
        open.push((loaded, dir));
    }
    for round in 1..=options.rounds {
        for i in 0..open.len() {
            let (database, _) = &open[(i + round as usize - 1) % open.len()];
            for &threads in tpcc_threads(database.name()) {
                let seed = options.seed ^ (u64::from(round) << 32) ^ ((threads as u64) << 48);
                let Measured { value, cpu_us } =
                    database.run(scale, seed, threads).map_err(|e| named(database.name(), e))?;
                let name = database.name();
                progress(format!(
                    "round {round}  {name:<8} tpcc, {threads} thr. {value:>12.0}  {cpu_us:>8.2} µs of CPU each"
                ));
                samples.push(Sample { row: "tpcc", engine: name, round, threads, value, cpu_us });
            }
        }
    }
    for (database, dir) in open {
        let name = database.name();
        database.check().and_then(|()| database.close()).map_err(|e| named(name, e))?;
        progress(format!("checked  {name:<8} the twelve conditions hold"));
        drop(dir);
    }
    Ok(())
}
