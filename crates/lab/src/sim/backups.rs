//! Backups beside everything else: one that succeeds is restored at once and read; when the life is settled the model
//! says whether that was the state of its moment. Incremental ones go on from what earlier lives made.

use super::book::Shared;
use super::client::{Client, Next};
use super::life;
use super::model::{Restored, Row};
use super::rows::{Digest, NAMES};
use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{BackupInfo, BackupOptions, Db, Devices, Error, Keyspace, Layout, Options, RestoreOptions};
use varve_models::MemDevice;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

/// Backups that go on from each other, before a whole one is made again.
const LONGEST: usize = 4;

/// A whole backup, and those that go on from it.
#[derive(Default)]
struct Chain {
    files: Vec<Vec<u8>>,
    last: Option<BackupInfo>,
    /// Compactions and bulk loads before the last one.
    before: [u64; 2],
}

/// The backups of one database, over all its lives.
pub(crate) struct Backups {
    /// None while one is being made.
    chain: Mutex<Option<Chain>>,
    pub(crate) compactions: AtomicU64,
    pub(crate) loads: AtomicU64,
}

impl Backups {
    /// Of a database that has none yet.
    pub(crate) fn new() -> Arc<Backups> {
        let (compactions, loads) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Backups { chain: Mutex::new(Some(Chain::default())), compactions, loads })
    }

    /// Compactions and bulk loads so far.
    fn changes(&self) -> [u64; 2] {
        [&self.compactions, &self.loads].map(|n| n.load(SeqCst))
    }
}

/// Making a backup; given back when it is over, by a power cut too.
struct Turn<'s> {
    shared: &'s Shared,
    chain: Chain,
}

impl<'s> Turn<'s> {
    /// None: somebody else is making one.
    fn take(shared: &'s Shared) -> Option<Turn<'s>> {
        let chain = shared.backups.chain.lock().take()?;
        shared.backup_begins();
        let chain = if chain.files.len() == LONGEST { Chain::default() } else { chain };
        Some(Turn { shared, chain })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.shared.backups.chain.lock() = Some(std::mem::take(&mut self.chain));
        self.shared.backup_ends();
    }
}

impl Client {
    /// Makes a backup, and restores it with those that it goes on from. Now and then while another one is being made,
    /// which is refused.
    pub(super) fn backup(&mut self) -> Next {
        let shared = self.shared.clone();
        match Turn::take(&shared) {
            Some(mut turn) => self.back_up(&mut turn.chain),
            None if self.rng.one_in(4) => self.back_up(&mut Chain::default()),
            None => Next::Go,
        }
    }

    fn back_up(&self, chain: &mut Chain) -> Next {
        let (mut file, since) = (Vec::new(), chain.last.clone());
        let kind = if since.is_some() { "backups, incremental" } else { "backups, whole" };
        let (changes, before) = (self.shared.backups.changes(), self.db.stats());
        self.shared.trace.event(|| format!("client {}: begins {kind}", self.number));
        match self.db.backup(&mut file, BackupOptions { since, ..BackupOptions::default() }) {
            Ok(report) => {
                self.shared.trace.event(|| format!("client {}: {kind}, to {}", self.number, report.end));
                self.shared.count(kind, 1);
                let now = self.db.stats();
                if now.checkpoints.completed > before.checkpoints.completed {
                    self.shared.count("backups beside a checkpoint", 1);
                }
                if now.txn.large_commits > before.txn.large_commits {
                    self.shared.count("backups beside a commit in pieces", 1);
                }
                let after = ["incremental backups after a compaction", "incremental backups after a bulk load"];
                for (n, name) in after.into_iter().enumerate() {
                    if chain.last.is_some() && changes[n] > chain.before[n] {
                        self.shared.count(name, 1);
                    }
                }
                chain.files.push(file);
                chain.last = Some(report.info);
                chain.before = changes;
                self.restore(chain, report.end)
            }
            Err(Error::Backup(why)) => {
                self.shared.trace.event(|| format!("client {}: backup refused: {why}", self.number));
                self.shared.count("backups refused", 1);
                Next::Go
            }
            Err(e) => self.after(&e, "backup"),
        }
    }

    fn restore(&self, chain: &mut Chain, at: u64) -> Next {
        let restored = self.restored(chain);
        if self.shared.machine.falsified() > 0 && (restored.is_err() || !self.shared.plan.always_detects()) {
            // It may hold a stale page that was believed, or whose check found it: direct pages that follow one another
            // may bear the same LSN.
            *chain = Chain::default();
            return Next::Go;
        }
        match restored {
            Ok(rows) => {
                self.shared.restored(Restored { at, rows });
                Next::Go
            }
            Err(e) => {
                if self.shared.supply.is_on() {
                    let n = chain.files.len();
                    self.shared.wrong(format!("client {}: restoring a chain of {n}, to {at}: {e}", self.number));
                }
                Next::End
            }
        }
    }

    /// Every row of the database that the backups make.
    fn restored(&self, chain: &Chain) -> Result<BTreeMap<Row, Digest>, String> {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let mut files: Vec<&[u8]> = chain.files.iter().map(|file| &file[..]).collect();
        let mut readers: Vec<&mut dyn std::io::Read> = files.iter_mut().map(|f| f as &mut dyn std::io::Read).collect();
        let layout = Layout { page_size: self.shared.plan.page_size, log_bytes: 1 << 20, ..Layout::default() };
        let text = |e: Error| e.to_string();
        varve::restore_on(&devices, &mut readers, &RestoreOptions { layout }).map_err(text)?;
        let options = Options { cache_bytes: 4 << 20, pool_frames: 64, cleaners: false, ..Options::default() };
        let copy = Db::open_on(devices, options).map_err(text)?;
        if let Some(damage) = copy.check().map_err(text)?.damages.first() {
            return Err(format!("check finds damage: {damage}"));
        }
        let spaces: Result<Vec<Keyspace>, Error> = NAMES.iter().map(|name| copy.keyspace(name)).collect();
        let spaces = spaces.map_err(text)?.try_into().map_err(|_| "three keyspaces".to_string())?;
        let rows = life::read_all(&copy, &spaces).map_err(text)?;
        copy.clone().close().map_err(text)?;
        Ok(rows)
    }
}
