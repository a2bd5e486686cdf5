//! Restoring a database from a whole backup and the incremental ones that follow it.
//!
//! Pages go to their places, and the backup's log is redone on them, a window of groups at a time, in page order. A
//! page that the log does not fit yet comes later in the backup, with the log's changes in it: what is left of such
//! pages at the end is an error. The log of the new database begins behind the last LSN of the backup, so the restored
//! pages are as if a checkpoint had made that log superfluous. Its superblocks say so last: a restoration that was cut
//! short leaves no database, and is begun anew.

use super::super::devices::{self, Devices, OpenDir};
use super::super::identity::{self, Identity};
use super::super::offline::{read_page, write_pages};
use super::super::open;
use super::super::options::{Layout, Options};
use super::super::patch::{Outcome, Window};
use super::archive::{BackupInfo, Kind, Reader, bad, damage, parts, u64_at};
use crate::error::{Error, Result};
use crate::index::{FoundGroups, Indexes};
use crate::redo::{self, Record};
use crate::space;
use crate::wal::{Birth, DbHeader, Generation, GroupKind, LSM_KEYSPACES, Log};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, write_at};
use varve_rt::HashMap;
use varve_volume::{Lsn, PageId, PageStore, Single, page};

/// How a database is restored.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// Where data and log go, and how much log there is at first. The page size is the backup's.
    pub layout: Layout,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Pages written from backups.
    pub pages: u64,
    /// Groups of the log redone.
    pub groups: u64,
    /// The state restored: everything committed before this position of the log.
    pub end: Lsn,
    /// Bytes of a page.
    pub page_size: usize,
}

/// Bytes of log groups that are redone together.
const WINDOW: usize = 16 << 20;
/// Pages written together.
const BATCH: usize = 64;

/// Makes a database in `dir` from `backups`: a whole one, then those that go on from it, in the order they were made.
///
/// # Errors
/// `Corrupt` when one is damaged or cut short, `Backup` when it is none or not the one that follows; `AlreadyExists`
/// when there is a database; errors of the device. No database is there then.
pub fn restore(
    dir: impl AsRef<Path>,
    backups: &mut [&mut dyn Read],
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    let OpenDir { devices: on, lock, made } = devices::create(dir.as_ref(), &options.layout, &Options::default())?;
    let restored = restore_on(&on, backups, options);
    drop(on);
    restored.inspect_err(|_| devices::take_back(dir.as_ref(), made, lock))
}

/// [`restore`] to devices, which must hold nothing of use.
///
/// # Errors
/// As [`restore`].
pub fn restore_on(devices: &Devices, backups: &mut [&mut dyn Read], options: &RestoreOptions) -> Result<RestoreReport> {
    let mut last: Option<(BackupInfo, Restoration)> = None;
    for (number, backup) in backups.iter_mut().enumerate() {
        let mut reader = Reader::begin(*backup)?;
        let info = reader.info.clone();
        let mut work = match last.take() {
            None if info.base.is_some() => {
                return Err(bad("the first one is incremental; begin with the whole backup that it goes on from"));
            }
            None => Restoration::begin(devices, (info.page_size, info.room))?,
            Some((before, work)) if info.base == Some(before.id) && info.database == before.database => work,
            Some(_) => {
                return Err(bad(format!(
                    "number {} does not go on from the one before it; give them in the order they were made",
                    number + 1
                )));
            }
        };
        work.cut_to(info.pages)?;
        work.take(&mut reader)?;
        reader.end()?;
        last = Some((info, work));
    }
    let (_, work) = last.ok_or_else(|| bad("none was given"))?;
    work.finish(devices, options)
}

/// Puts what is in no page into the new log, group by group: the next opening finds it there, as after a crash.
fn remember(log: &Log, groups: &FoundGroups) -> Result<()> {
    log.set_feature(&LSM_KEYSPACES, true)?;
    log.set_opening(true);
    for records in groups.values() {
        let mut body = Vec::new();
        records.iter().for_each(|(keyspace, bytes)| redo::push_index_record(&mut body, *keyspace, bytes));
        log.ensure_space(body.len())?;
        log.append(GroupKind::Commit, None, &body).map_err(|e| bad(format!("the new log takes no more: {e}")))?;
    }
    log.wait_durable(log.end_lsn())?;
    log.finish_creation()
}

/// The pages of a backup have too little room for the delta records of what it is restored onto.
fn no_room(needed: usize, room: usize) -> Error {
    Error::Invalid(format!(
        "regions of this flash keep {needed} bytes of each page for delta records, the pages of the backup leave \
         {room}: restore it onto regions with n = 0, or dump the database and load it here"
    ))
}

struct Restoration {
    store: Arc<Single>,
    page_size: usize,
    pages: u64,
    groups: u64,
    end: Lsn,
    device: Arc<dyn Device>,
    header: DbHeader,
    /// Where identity pages were.
    identity: BTreeSet<PageId>,
    /// Pages that the log did not fit, and that have not come since.
    unfit: HashMap<PageId, String>,
    /// What indexes remember without a page, of the last backup: before it began all of it was in pages.
    indexes: Indexes,
}

impl Restoration {
    fn begin(devices: &Devices, (page_size, room): (usize, usize)) -> Result<Restoration> {
        if devices.parts.room() > room {
            return Err(no_room(devices.parts.room(), room));
        }
        // Another identity than the original's: both may live on.
        let mut header = devices::new_header(page_size, room, devices.array.as_deref());
        header.options = devices.parts.record()?;
        Log::begin_creation(&*devices.log, &header)?;
        let device = devices.data()?.clone();
        identity::blank(&device, (page_size, room))?;
        let store = Single::with_room(device.clone(), page_size, room)?;
        let (identity, unfit, indexes) = (BTreeSet::new(), HashMap::default(), Indexes::default());
        Ok(Restoration { store, page_size, pages: 0, groups: 0, end: 0, device, header, identity, unfit, indexes })
    }

    /// The database had so many pages: map pages past them, of the backup before, are not its own. (They are blanked,
    /// since not every device can be cut.)
    fn cut_to(&self, pages: u64) -> Result<()> {
        if pages == 0 {
            return Ok(());
        }
        let span = space::span(&*self.store);
        let blank = AlignedBuf::new(self.page_size);
        for map in pages.div_ceil(span)..self.store.pages().div_ceil(span) {
            write_at(&*self.device, map * span * self.page_size as u64, &blank, false)?;
        }
        Ok(())
    }

    /// Takes one backup whole.
    fn take(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let (mut window, mut body) = (Window::default(), Vec::new());
        let (pages, groups) = (self.pages, self.groups);
        self.indexes = Indexes::default();
        let end = loop {
            let frame = reader.next_frame()?;
            match frame.kind {
                Kind::Pages => self.write_frame(&frame.body)?,
                Kind::Log => self.take_log(&frame.body, &mut body, &mut window)?,
                Kind::End if frame.body.len() == 24 => break frame.body,
                Kind::End => return Err(damage("its end is damaged")),
            }
        };
        self.redo(&mut window)?;
        self.end = u64_at(&end, 0);
        if (self.pages - pages, self.groups - groups) != (u64_at(&end, 8), u64_at(&end, 16)) || !body.is_empty() {
            return Err(damage("it has not as many pages and groups as it should"));
        }
        match self.unfit.iter().min_by_key(|page| page.0.0) {
            None => Ok(()),
            Some((id, why)) => {
                Err(damage(format!("its log does not fit {} pages, the first is {id}: {why}", self.unfit.len())))
            }
        }
    }

    fn take_log(&mut self, frame: &[u8], body: &mut Vec<u8>, window: &mut Window) -> Result<()> {
        for part in parts(frame)? {
            body.extend_from_slice(part.bytes);
            if (body.len() as u64) < part.whole {
                continue;
            }
            for record in redo::decode(body, self.page_size, part.start) {
                if let Record::Index { keyspace, bytes } = record? {
                    self.indexes.replay((part.start, part.end), keyspace, bytes)?;
                }
            }
            window.push(part.start, part.end, std::mem::take(body));
            self.groups += 1;
            if window.bytes() >= WINDOW {
                self.redo(window)?;
            }
        }
        Ok(())
    }

    fn write_frame(&mut self, body: &[u8]) -> Result<()> {
        let one = 8 + self.page_size;
        if !body.len().is_multiple_of(one) {
            return Err(damage("a frame of pages has a part of a page"));
        }
        let pages: Vec<(PageId, &[u8])> = body.chunks(one).map(|p| (PageId(u64_at(p, 0)), &p[8..])).collect();
        self.pages += pages.len() as u64;
        self.identity.extend(pages.iter().filter(|p| page::kind(p.1) == identity::KIND_IDENTITY).map(|p| p.0));
        pages.iter().for_each(|(id, _)| drop(self.unfit.remove(id)));
        pages.chunks(BATCH).try_for_each(|batch| self.write(batch))
    }

    fn write(&self, pages: &[(PageId, &[u8])]) -> Result<()> {
        let Some(most) = pages.iter().map(|p| p.0.0).max() else { return Ok(()) };
        if most >= self.store.pages() {
            // More at a time than is needed: growing makes the device's length durable.
            self.store.grow(most.saturating_add(1).max(self.store.pages() + self.store.pages() / 8))?;
        }
        write_pages(&*self.store, pages)
    }

    fn redo(&mut self, window: &mut Window) -> Result<()> {
        let mut changed: Vec<(PageId, Vec<u8>)> = Vec::new();
        let store = self.store.clone();
        window.apply(
            self.page_size,
            |id| read_page(&*store, id),
            |id, outcome| {
                match outcome {
                    Outcome::Unchanged => {}
                    Outcome::Changed(bytes) => {
                        self.unfit.remove(&id);
                        changed.push((id, bytes));
                    }
                    Outcome::Lost(why) => drop(self.unfit.insert(id, why)),
                }
                if changed.len() == BATCH { self.write_all(&mut changed) } else { Ok(()) }
            },
        )?;
        self.write_all(&mut changed)
    }

    fn write_all(&self, changed: &mut Vec<(PageId, Vec<u8>)>) -> Result<()> {
        let pages: Vec<(PageId, &[u8])> = changed.iter().map(|(id, bytes)| (*id, bytes.as_slice())).collect();
        self.write(&pages)?;
        changed.clear();
        Ok(())
    }

    /// Makes the store as long as its space map says. Mark pages that were made while the backup was are allocated, and
    /// neither pages of it nor in its log: they are given back by the next opening, which must find room for them.
    fn reach_allocated(&self) -> Result<()> {
        let (span, mut most) = (space::span(&*self.store), 0);
        for map in (0..self.store.pages()).step_by(span as usize) {
            if let Some(bytes) = read_page(&*self.store, PageId(map))? {
                most = most.max((map..map + span).rfind(|id| space::is_set(&bytes, id - map)).unwrap_or(0));
            }
        }
        if most >= self.store.pages() {
            self.store.grow(most + 1)?;
        }
        assert!(most < self.store.pages(), "what is allocated lies within the store");
        Ok(())
    }

    fn finish(self, devices: &Devices, options: &RestoreOptions) -> Result<RestoreReport> {
        self.reach_allocated()?;
        self.store.sync()?;
        let mut birth = Birth::default();
        if let [first, second] = self.identity.iter().copied().collect::<Vec<_>>()[..] {
            (birth.generation, birth.identity) = (Generation::first(), Some([first, second]));
            let made = (birth.generation, self.end);
            Identity::create(&self.device, self.page_size, [first, second], self.header.uuid, made)?;
        }
        let config = open::restored_log_config(options.layout.log_bytes);
        let remembered = self.indexes.take_replayed();
        birth.creating = !remembered.is_empty();
        let log = Log::create_at(devices.log.clone(), config, self.header, (self.end, birth))?;
        if remembered.is_empty() {
            log.close_clean()?;
        } else {
            remember(&log, &remembered)?;
        }
        Ok(RestoreReport { pages: self.pages, groups: self.groups, end: self.end, page_size: self.page_size })
    }
}
