//! The engines compiled in, and what can be done with each whatever its types are.

use std::path::Path;
use std::sync::Arc;

use varve_lab::Result;
use varve_lab::adapter::varve::VarveStore;

use crate::adapter::fjall::FjallStore;
use crate::adapter::lmdb::LmdbStore;
use crate::adapter::redb::RedbStore;
#[cfg(feature = "rocksdb")]
use crate::adapter::rocksdb::RocksStore;
use crate::adapter::sled::SledStore;
use crate::adapter::sqlite::SqliteStore;
use crate::adapter::varve_lsm::VarveLsm;
#[cfg(feature = "wiredtiger")]
use crate::adapter::wiredtiger::WtStore;
use crate::bench::drive::Measured;
use crate::bench::{Group, Scale, Session, lab, small};
use crate::child::{self, Job, Sink};
use crate::engine::{Description, Engine, Kind, Settings};

/// Loads TPC-C into a directory, with a seed.
pub type LoadTpcc = fn(&Path, &Settings, &Scale, u64) -> Result<Box<dyn OpenTpcc>>;

/// What can be done with an engine, whatever its types are.
pub struct Entry {
    /// Name of the engine.
    pub name: &'static str,
    /// What it is built on.
    pub kind: Kind,
    /// Whether its durable commits survive a power cut.
    pub flushes: bool,
    /// How it is set up.
    pub describe: fn(&Settings) -> Description,
    /// Loads and measures a group of rows whose databases do not outlive a round.
    pub run: fn(&Path, &Settings, Group, &mut Session<'_>) -> Result<()>,
    /// Loads TPC-C.
    pub open_tpcc: LoadTpcc,
    /// Does a job in a process of its own.
    pub work: fn(&Job, &mut Sink<'_>) -> Result<()>,
}

/// The engines compiled in, Varve first.
pub const ENGINES: &[Entry] = &[
    entry::<VarveStore>(),
    entry::<VarveLsm>(),
    entry::<SqliteStore>(),
    #[cfg(feature = "rocksdb")]
    entry::<RocksStore>(),
    entry::<LmdbStore>(),
    entry::<RedbStore>(),
    entry::<FjallStore>(),
    entry::<SledStore>(),
    #[cfg(feature = "wiredtiger")]
    entry::<WtStore>(),
];

const fn entry<E: Engine>() -> Entry {
    Entry {
        name: E::NAME,
        kind: E::KIND,
        flushes: E::FLUSHES,
        describe: E::describe,
        run: run_group::<E>,
        open_tpcc: open_tpcc::<E>,
        work: child::work::<E>,
    }
}

/// The engine of this name.
pub fn named(name: &str) -> Option<&'static Entry> {
    ENGINES.iter().find(|e| e.name == name)
}

/// A loaded TPC-C database.
pub trait OpenTpcc {
    /// Name of the engine.
    fn name(&self) -> &'static str;
    /// Measures.
    fn run(&self, scale: &Scale, seed: u64, threads: usize) -> Result<Measured>;
    /// Fails unless the consistency conditions hold.
    fn check(&self) -> Result<()>;
    /// Closes it.
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

/// Closes a database whose clients have ended.
pub fn close<E: Engine>(store: Arc<E>) -> Result<()> {
    Arc::into_inner(store).expect("every client of the database has ended").close()
}

fn open_tpcc<E: Engine>(dir: &Path, settings: &Settings, scale: &Scale, seed: u64) -> Result<Box<dyn OpenTpcc>> {
    let store = Arc::new(E::open(dir, settings)?);
    lab::load_tpcc(&store, scale, seed)?;
    Ok(Box::new(Loaded(store)))
}

fn run_group<E: Engine>(dir: &Path, settings: &Settings, group: Group, session: &mut Session<'_>) -> Result<()> {
    let store = Arc::new(E::open(dir, settings)?);
    match group {
        Group::Small => small::run(&store, session)?,
        Group::SmallSorted => small::run_sorted(&store, session)?,
        Group::SmallRandom => small::run_random(&store, session)?,
        Group::Ycsb => lab::run_ycsb(&store, session)?,
        Group::Tpcc | Group::Large | Group::TpccScarce | Group::IoBound => {
            unreachable!("the databases of this group outlive a round")
        }
    }
    close(store)
}
