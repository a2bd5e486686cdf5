//! Backups beside everything else: one that succeeds is restored at once and read; when the life is settled the model says whether
//! that was the state of its moment.

use super::client::{Client, Next};
use super::life;
use super::model::Restored;
use super::rows::NAMES;
use std::collections::BTreeMap;
use varve::{BackupInfo, BackupOptions, Db, Devices, Error, Keyspace, Layout, Options, RestoreOptions};
use varve_device::MemDevice;

/// Backups that go on from each other, before a whole one is made again.
const LONGEST: usize = 4;

/// A client's backups: a whole one, and those that go on from it.
#[derive(Default)]
pub(crate) struct Chain {
    files: Vec<Vec<u8>>,
    last: Option<BackupInfo>,
}

impl Client {
    /// Makes a backup, and restores it with those that it goes on from.
    pub(super) fn backup(&mut self) -> Next {
        if self.backups.files.len() == LONGEST {
            self.backups = Chain::default();
        }
        let (mut file, since) = (Vec::new(), self.backups.last.clone());
        let kind = if since.is_some() { "backups, incremental" } else { "backups, whole" };
        match self.db.backup(&mut file, BackupOptions { since, ..BackupOptions::default() }) {
            Ok(report) => {
                self.shared.trace.event(|| format!("client {}: {kind}, to {}", self.number, report.end));
                self.shared.count(kind, 1);
                self.backups.files.push(file);
                self.backups.last = Some(report.info);
                self.restore(report.end)
            }
            Err(Error::Backup(why)) => {
                self.shared.trace.event(|| format!("client {}: backup refused: {why}", self.number));
                self.shared.count("backups refused", 1);
                Next::Go
            }
            Err(e) => self.after(&e, "backup"),
        }
    }

    fn restore(&self, at: u64) -> Next {
        match self.restored() {
            Ok(rows) => {
                self.shared.restored(Restored { at, rows });
                Next::Go
            }
            Err(e) => {
                if self.shared.supply.is_on() {
                    let n = self.backups.files.len();
                    self.shared.wrong(format!("client {}: restoring a chain of {n}, to {at}: {e}", self.number));
                }
                Next::End
            }
        }
    }

    /// Every row of the database that the backups make.
    fn restored(&self) -> Result<BTreeMap<super::model::Row, super::rows::Digest>, String> {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let mut files: Vec<&[u8]> = self.backups.files.iter().map(|file| &file[..]).collect();
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
