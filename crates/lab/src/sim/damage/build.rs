//! Makes the databases that are damaged: one client, several openings, checkpoints, a bulk load, long values, deletes,
//! a keyspace dropped; then closed, or the power cut under load, or cut once more inside recovery. Copies of the files
//! are kept all along, and the truth is made sure of by an opening without damage.

use super::State;
use super::files::{File, Files};
use super::trial::{self, Limits};
use super::truth::{Changes, LOADED, LONG, MARKS, NAMES, ROWS, Truth};
use crate::sim::book::Trace;
use std::sync::Arc;
use std::time::Duration;
use varve::{
    Db, Durability, Keyspace, Layout, MapRecovery, Mistake, Options, PoolOptions, TierOptions, TraceHandle, TxOptions,
};
use varve_models::PowerSupply;
use varve_rt::sim::{Config, Domain};
use varve_rt::{Mutex, Rng};
use varve_volume::tier::manager::REGISTRY;

/// Commits that a client makes at most while it waits for the power to be cut.
const MOST_COMMITS: u64 = 5000;
/// Virtual time after which a build has failed.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// How a database is made and opened. All drawn from its seed.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) page_size: usize,
    /// Keys of the keyspace with short rows.
    keys: u64,
    /// Frames while it is made: few, so that pages are written when they are evicted too.
    frames: usize,
    fast_bytes: u64,
    /// Trials open it with as few frames.
    tight: bool,
    tier: Option<TierOptions>,
    /// With `detect_lost_writes`.
    detect: bool,
    broken: Option<Mistake>,
}

impl Shape {
    pub(super) fn draw(seed: u64, tier: Option<&str>, large: bool, broken: Option<Mistake>) -> Shape {
        let mut rng = Rng::from_seed(seed ^ 0xda_3a9e);
        let page_size = [4096, 4096, 4096, 8192][rng.below(4) as usize];
        let keys = if large { 12_000 } else { rng.between(500, 900) };
        let tier = tier.map(|name| TierOptions {
            manager: if name == "all" { REGISTRY[rng.below(REGISTRY.len() as u64) as usize].name } else { name }.into(),
            map_recovery: [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log][rng.below(3) as usize],
            ..TierOptions::default()
        });
        let frames = if large { 200 } else { rng.between(48, 90) as usize };
        let fast_bytes = if large { 4 << 20 } else { (1 << 20) + (page_size as u64 * rng.between(30, 120)) };
        Shape { seed, page_size, keys, frames, fast_bytes, tight: rng.one_in(3), tier, detect: false, broken }
    }

    /// The same, with versions of pages remembered or not.
    pub(super) fn detecting(self, detect: bool) -> Shape {
        Shape { detect, ..self }
    }

    /// The same, for another database.
    pub(super) fn with_seed(&self, seed: u64) -> Shape {
        Shape { seed, ..self.clone() }
    }

    fn layout(&self) -> Layout {
        Layout { page_size: self.page_size, log_bytes: 1 << 20, fast_bytes: self.fast_bytes, ..Layout::default() }
    }

    /// Options of a trial's openings.
    pub(super) fn trial(&self, trace: TraceHandle) -> Options {
        let pool_frames = if self.tight { self.frames } else { 0 };
        Options { pool_frames, cleaners: false, trace: Some(trace), ..self.options() }
    }

    /// Options of the openings that make it.
    fn options(&self) -> Options {
        Options {
            cache_bytes: 4 << 20,
            pool_frames: self.frames,
            pool: PoolOptions { instances: Some(1), ..PoolOptions::default() },
            tier: self.tier.clone().unwrap_or_default(),
            faults: self.broken.into(),
            detect_lost_writes: self.detect.then_some(true),
            ..Options::default()
        }
    }
}

/// The files at an earlier moment, and what they held.
pub(super) struct Moment {
    pub(super) files: Files,
    pub(super) truth: Truth,
}

/// A database to damage.
pub(super) struct Database {
    pub(super) shape: Shape,
    pub(super) files: Files,
    /// The files at earlier moments, oldest first.
    pub(super) moments: Vec<Moment>,
    pub(super) truth: Truth,
    /// Byte of the log file where its last group begins.
    pub(super) last_group: u64,
    /// What the work of a trial takes without damage.
    pub(super) limits: Limits,
}

/// Builds a database in a state; its truth is what an opening without damage shows, and that is compared with what was
/// acknowledged.
pub(super) fn build(shape: &Shape, state: State) -> Result<Database, String> {
    let made = make(shape, state == State::Closed)?;
    let mut files = made.files.copy();
    let mut truth = made.truth;
    if state == State::Closed {
        truth.all_kept();
    }
    let (lost, limits, end) = survivors(shape, &files, &truth)?;
    truth = truth.without_last(lost);
    let (durable, last_group) = last_group(&files, end);
    truth.keep_after(durable);
    if state == State::Recovering {
        files = cut_in_recovery(shape, &files, limits.opening)?;
        let (again, ..) = survivors(shape, &files, &truth)?;
        if again > 0 {
            return Err(format!("a crash inside recovery took {again} commits"));
        }
    }
    Ok(Database { shape: shape.clone(), files, moments: made.moments, truth, last_group, limits: limits.generous() })
}

/// Opens without damage. Commits that the crash took, what that needed, and the end of the log.
fn survivors(shape: &Shape, files: &Files, truth: &Truth) -> Result<(usize, Limits, u64), String> {
    for lost in 0..=truth.loose() {
        let seen = trial::run(shape, files, &truth.without_last(lost), Limits::NONE, Trace::off());
        if seen.is_right() {
            return Ok((lost, seen.used, seen.log_end));
        }
        if lost == truth.loose() {
            return Err(format!("wrong without any damage: {}", seen.text()));
        }
    }
    unreachable!("the last one returns")
}

/// The position of the log up to which the header of its last group proves that it was durable, and the byte of the
/// file where that group begins. Read from the format alone: this is what a reader can know when the last groups are
/// damaged.
fn last_group(files: &Files, end: u64) -> (u64, u64) {
    let log = files.bytes(File::Log, 0, files.len(File::Log) as usize);
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("8 bytes"));
    let groups = (8192..log.len().saturating_sub(40)).step_by(8).filter(|at| log[*at..].starts_with(b"VGRP"));
    let live = groups.map(|at| (number(at + 8), number(at + 16), at as u64)).filter(|(lsn, ..)| *lsn < end);
    live.max().map_or((0, 0), |(_, durable, at)| (durable, at))
}

/// Cuts the power somewhere in the recovery of a crashed database.
fn cut_in_recovery(shape: &Shape, files: &Files, operations: u64) -> Result<Files, String> {
    let cut = files.copy();
    let (theirs, shape) = (cut.clone(), shape.clone());
    let outcome = varve_rt::sim::run(config(shape.seed ^ 0x2ec0), move || {
        let mut rng = Rng::from_seed(shape.seed ^ 0x2ec1);
        let supply = PowerSupply::new();
        let devices = theirs.devices(&supply);
        supply.cut_at(rng.between(1, operations.max(1)), rng.next_u64());
        let domain = Domain::new("recovery");
        let thread = domain.spawn("opening", move || Db::open_on(devices, shape.options()));
        let opened = thread.join();
        if supply.is_on() {
            supply.cut(rng.next_u64());
        }
        domain.power_cut();
        supply.restore();
        drop(opened);
    });
    outcome.result.map(|()| cut).map_err(|e| e.to_string())
}

pub(super) fn config(seed: u64) -> Config {
    Config { seed, cores: 2, limit: Some(TIME_LIMIT), ..Config::default() }
}

struct Made {
    files: Files,
    moments: Vec<Moment>,
    truth: Truth,
}

/// Runs the client until it has closed the database or its power was cut.
fn make(shape: &Shape, closes: bool) -> Result<Made, String> {
    let files = Files::new(shape.tier.is_some(), shape.seed);
    let (theirs, shape) = (files.clone(), shape.clone());
    let outcome = varve_rt::sim::run(config(shape.seed), move || {
        let supply = PowerSupply::new();
        let book = Arc::new(Mutex::new(Book::default()));
        let client = Client {
            devices: theirs.devices(&supply),
            rng: Rng::from_seed(shape.seed ^ 0xc11e),
            shape,
            files: theirs,
            book: book.clone(),
            db: None,
            spaces: Vec::new(),
        };
        let domain = Domain::new("client");
        let power = supply.clone();
        let thread = domain.spawn("client", move || client.work((!closes).then_some(power)));
        if !closes {
            supply.off().wait();
            domain.power_cut();
            supply.restore();
        }
        let result = match thread.join() {
            Ok(result) => result,
            Err(panicked) if panicked.power_cut => Ok(()),
            Err(panicked) => Err(panicked.to_string()),
        };
        let book = std::mem::take(&mut *book.lock());
        result.map(|()| book)
    });
    let book = outcome.result.map_err(|e| e.to_string())??;
    Ok(Made { files, moments: book.moments, truth: book.truth })
}

/// What the client writes down.
#[derive(Default)]
struct Book {
    truth: Truth,
    moments: Vec<Moment>,
}

struct Client {
    shape: Shape,
    files: Files,
    devices: varve::Devices,
    book: Arc<Mutex<Book>>,
    rng: Rng,
    db: Option<Db>,
    spaces: Vec<Keyspace>,
}

impl Client {
    /// The whole life; with a `supply` it ends by a cut of the power, else by a clean close.
    fn work(mut self, supply: Option<Arc<PowerSupply>>) -> Result<(), String> {
        let result = self.live(supply.as_ref());
        match supply {
            // The power has failed; what the last calls said does not matter.
            Some(supply) if !supply.is_on() => Ok(()),
            _ => result.map_err(|e| format!("while it was made: {e}")),
        }
    }

    fn live(&mut self, supply: Option<&Arc<PowerSupply>>) -> varve::Result<()> {
        let sync = Durability::Sync;
        self.create()?;
        self.load()?;
        self.checkpoint()?;
        self.drop_one()?;
        self.churn(30, sync)?;
        self.close()?;
        self.open()?;
        self.churn(40, sync)?;
        self.moment();
        self.churn(20, Durability::None)?;
        self.checkpoint()?;
        self.churn(25, sync)?;
        self.moment();
        self.churn(25, sync)?;
        self.close()?;
        self.open()?;
        self.churn(15, sync)?;
        if self.rng.one_in(2) {
            self.checkpoint()?;
        }
        self.churn(15, sync)?;
        self.moment();
        self.churn(15, sync)?;
        let Some(supply) = supply else { return self.close() };
        let lazy = [Durability::None, Durability::Async, sync, sync][self.rng.below(4) as usize];
        supply.cut_at(supply.ops() + self.rng.between(1, 120), self.rng.next_u64());
        for _ in 0..MOST_COMMITS {
            let n = self.rng.between(1, 4);
            self.churn(n, lazy)?;
            self.churn(1, sync)?;
        }
        Err(varve::Error::Invalid("the power was never cut".into()))
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn moment(&self) {
        let mut book = self.book.lock();
        let mut truth = book.truth.clone();
        truth.all_kept();
        book.moments.push(Moment { files: self.files.copy(), truth });
    }

    fn create(&mut self) -> varve::Result<()> {
        let db = Db::create_on(self.devices.clone(), &self.shape.layout(), self.shape.options())?;
        self.spaces = NAMES[..LOADED].iter().map(|name| db.keyspace_or_create(name)).collect::<varve::Result<_>>()?;
        self.db = Some(db);
        self.moment();
        Ok(())
    }

    fn open(&mut self) -> varve::Result<()> {
        let db = Db::open_on(self.devices.clone(), self.shape.options())?;
        self.spaces = NAMES.iter().map(|name| db.keyspace(name)).collect::<varve::Result<_>>()?;
        self.db = Some(db);
        Ok(())
    }

    fn checkpoint(&mut self) -> varve::Result<()> {
        self.db().checkpoint()?;
        self.moment();
        Ok(())
    }

    fn close(&mut self) -> varve::Result<()> {
        self.spaces.clear();
        self.db.take().expect("open").close()?;
        self.moment();
        Ok(())
    }

    fn key(&self, space: usize, n: u64) -> Vec<u8> {
        let pad = "x".repeat((n % 7 * 3) as usize);
        format!("{}/{n:06}{pad}", NAMES[space]).into_bytes()
    }

    fn value(&mut self, space: usize) -> Vec<u8> {
        let page = self.shape.page_size as u64;
        let len = match space {
            LONG => self.rng.between(page / 2, page * 4),
            MARKS => 8,
            _ => self.rng.below(page / 16),
        };
        let mut value = vec![0; len as usize];
        self.rng.fill_bytes(&mut value);
        value
    }

    /// Everything that there is before changes begin.
    fn load(&mut self) -> varve::Result<()> {
        for from in (0..self.shape.keys).step_by(8) {
            let mut changes = Changes::new();
            for n in from..from + 8 {
                changes.insert((ROWS, self.key(ROWS, n)), Some(self.value(ROWS)));
            }
            if from % 96 == 0 {
                changes.insert((LONG, self.key(LONG, from)), Some(self.value(LONG)));
            }
            self.commit(&changes, Durability::None)?;
        }
        self.moment();
        let mut load = self.db().bulk_load(NAMES[LOADED])?;
        for n in 0..self.shape.keys / 2 {
            let (key, value) = (self.key(LOADED, n), self.value(LOADED));
            load.push(&key, &value)?;
            self.book.lock().truth.set(LOADED, &key, Some(value));
        }
        self.spaces.push(load.finish()?);
        self.book.lock().truth.all_kept();
        Ok(())
    }

    /// Makes a keyspace, fills it and drops it.
    fn drop_one(&mut self) -> varve::Result<()> {
        let space = self.db().create_keyspace("dropped")?;
        for n in 0..60 {
            let (key, value) = (self.key(ROWS, n), self.value(ROWS));
            space.put_with(&key, &value, Durability::None)?;
        }
        drop(space);
        self.db().checkpoint()?;
        self.db().drop_keyspace("dropped")
    }

    /// `n` commits: most change a few rows, some delete a run of them, some put them back.
    fn churn(&mut self, n: u64, durability: Durability) -> varve::Result<()> {
        for _ in 0..n {
            let mut changes = Changes::new();
            let mark = self.rng.below(5);
            changes.insert((MARKS, self.key(MARKS, mark)), Some(self.value(MARKS)));
            let from = self.rng.below(self.shape.keys);
            match self.rng.below(8) {
                0 => (from..from + 20).for_each(|n| drop(changes.insert((ROWS, self.key(ROWS, n)), None))),
                1 => {
                    let place = (LONG, self.key(LONG, from / 96 * 96));
                    let value = (!self.rng.one_in(3)).then(|| self.value(LONG));
                    changes.insert(place, value);
                }
                2 => drop(changes.insert((LOADED, self.key(LOADED, from / 2)), Some(self.value(LOADED)))),
                _ => {
                    for n in from..from + self.rng.below(6) {
                        changes.insert((ROWS, self.key(ROWS, n)), Some(self.value(ROWS)));
                    }
                }
            }
            self.commit(&changes, durability)?;
        }
        Ok(())
    }

    fn commit(&mut self, changes: &Changes, durability: Durability) -> varve::Result<()> {
        let options = TxOptions { durability: Some(durability), ..TxOptions::default() };
        let mut tx = self.db().begin_with(options)?;
        let changes: Changes = {
            // A delete of what is not there is no change.
            let truth = &self.book.lock().truth;
            let there = |(space, key): &(usize, Vec<u8>)| truth.spaces[*space].contains_key(key);
            changes.iter().filter(|(at, v)| v.is_some() || there(at)).map(|(at, v)| (at.clone(), v.clone())).collect()
        };
        for ((space, key), value) in &changes {
            match value {
                Some(value) => tx.put(&self.spaces[*space], key, value)?,
                None => tx.delete(&self.spaces[*space], key)?,
            }
        }
        tx.tell_commit_number(self.book.lock().truth.begin(&changes));
        tx.commit()?;
        self.book.lock().truth.acknowledge(durability == Durability::Sync);
        Ok(())
    }
}
