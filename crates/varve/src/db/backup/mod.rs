//! Backup of a database in use, whole or of what changed since another backup, and its restoration.
//!
//! Every page that the space map calls allocated is read through the pool, so that it is whole and as new as can be,
//! while the log from the beginning of the backup on is held and copied behind it. A page bears the LSN of its last
//! change, so redoing that log on the copied pages gives the state at the end of the log taken: one moment, though the
//! pages were copied at many. Pages made meanwhile are in the log whole, but for direct pages (`direct.rs`), which are
//! copied when they are linked. An incremental backup leaves out the pages whose LSN lies before the beginning of its
//! base, and says how long the store was, since it may have been cut.
//!
//! Nothing past the end that a backup states is in it: a group after that may link direct pages that were not copied.

mod archive;
mod restore;

pub use archive::{BackupInfo, Packing};
pub use restore::{RestoreOptions, RestoreReport, restore, restore_on};

use super::Inner;
use super::identity;
use crate::buffer::PageRead;
use crate::error::Result;
use crate::space::Core;
use crate::wal::LogHold;
use archive::{Writer, bad};
use std::collections::BTreeSet;
use std::io::Write;
use varve_volume::{Lsn, PageId, page};

/// How a backup is made.
#[derive(Default)]
pub struct BackupOptions<'a> {
    /// Only what changed since this backup began; `None`: everything.
    pub since: Option<BackupInfo>,
    /// How it is packed.
    pub packing: Packing,
    /// Called now and then with pages looked at, and pages in all.
    pub progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

/// What a backup took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// What it is of.
    pub info: BackupInfo,
    /// Pages in it.
    pub pages: u64,
    /// Pages left out because its base has them.
    pub unchanged: u64,
    /// Groups of the log in it.
    pub groups: u64,
    /// The state that it restores: everything committed before this position of the log.
    pub end: Lsn,
    /// Bytes written.
    pub bytes: u64,
}

/// Writes a backup to `to`.
pub(super) fn make(inner: &Inner, to: &mut dyn Write, options: BackupOptions<'_>) -> Result<BackupReport> {
    let core = &inner.core;
    let header = core.log.header();
    if options.since.as_ref().is_some_and(|base| base.database != header.uuid) {
        return Err(bad("the base is of another database; give a backup of this one, or make a whole backup"));
    }
    options.since.iter().try_for_each(|base| refuse_another_way(inner, base))?;
    let mut hold = core.log.hold().ok_or_else(|| {
        bad("another backup is being made, or the file is being cut by a compaction; wait for its end")
    })?;
    let links = {
        let _stopped = core.links.stop();
        // (Another one may have begun since, if it was broken.)
        hold.check()?;
        core.backup_begins();
        // A group before the floor may change a page without an image of it, and the page may be free before it is
        // copied. From the floor on the first change of each page has one.
        hold.begin_at(core.log.begin_checkpoint());
        Links { core, number: core.links.backup_begins() }
    };
    let (used, free) = core.space.usage();
    let mut id = [0; 16];
    varve_rt::rng().fill_bytes(&mut id);
    let info = BackupInfo {
        database: header.uuid,
        id,
        base: options.since.as_ref().map(|base| base.id),
        page_size: core.page_size(),
        room: header.room.into(),
        start: hold.position(),
        time: varve_rt::unix_time(),
        pages: used + free,
        opening: inner.identity.as_ref().map_or(0, |identity| identity.opening()),
    };
    let writer = Writer::begin(to, &info, options.packing)?;
    // What memtables have from before the log that is copied is in no page: it gets some, which are linked from now on.
    inner.indexes.write_older_than(info.start)?;
    let copy = Copy { core, hold, links, writer, groups: 0, pages: 0, unchanged: 0 };
    copy.all(info, options)
}

/// Fails for a base that began where this database never was: it is of a copy of the files that was worked with
/// separately, so pages of it may be newer than those here.
fn refuse_another_way(inner: &Inner, base: &BackupInfo) -> Result<()> {
    let log = &inner.core.log;
    let known = inner.identity.as_ref().filter(|_| base.opening != 0);
    let ours = known.and_then(|identity| identity.opened_by(base.opening, base.start)).unwrap_or(true);
    if ours && base.start <= log.end_lsn() && log.gap_at(base.start).is_none() {
        return Ok(());
    }
    Err(bad("the base is of a copy of this database that went its own way (older files were put back, or both copies \
        are in use); make a whole backup"))
}

/// Bytes that the copy of the log may lie behind its end: as many as the reader fetches at once, where the ring is much
/// larger.
const LAG: u64 = 4 << 20;

/// Rounds in which direct pages are copied that were linked during the one before. Then nobody links any for the length
/// of one more.
const ROUNDS: u32 = 3;

/// Times that a page is read which the map calls allocated, though it cannot be read.
const TRIES: u32 = 16;

/// A backup has begun; dropped, it is over.
struct Links<'a> {
    core: &'a Core,
    number: u64,
}

impl Drop for Links<'_> {
    fn drop(&mut self) {
        if !varve_rt::dying() {
            self.core.links.backup_ends(self.number);
            self.core.backup_ends();
        }
    }
}

/// A backup under way.
struct Copy<'a, 'w> {
    core: &'a Core,
    hold: LogHold,
    links: Links<'a>,
    writer: Writer<'w>,
    groups: u64,
    pages: u64,
    unchanged: u64,
}

impl<'a> Copy<'a, '_> {
    fn all(mut self, info: BackupInfo, mut options: BackupOptions<'_>) -> Result<BackupReport> {
        let since = options.since.map_or(0, |base| base.start);
        let in_all = self.core.space.usage().0;
        let mut done = 0;
        // Maps that come meanwhile, and pages that come to maps copied before, are in the log whole.
        for map in 0..self.core.space.maps() {
            for id in self.core.space.allocated(map)? {
                self.page(id, since)?;
                if done % 64 == 0 {
                    self.log()?;
                    if let Some(progress) = &mut options.progress {
                        progress(done.min(in_all), in_all);
                    }
                }
                done += 1;
            }
        }
        let core = self.core;
        for _ in 0..ROUNDS {
            self.direct_pages()?;
        }
        let end = {
            let _stopped = core.links.stop();
            self.direct_pages()?;
            // Every page copied is no newer than this; all that was acknowledged before is older.
            core.log.end_lsn()
        };
        assert!(end >= info.start, "a backup ends behind where it begins");
        self.core.log.wait_durable(end)?;
        // Nothing of what comes after: that may link pages which were not copied.
        self.log_to(end, 0)?;
        let bytes = self.writer.finish(end, self.pages, self.groups)?;
        Ok(BackupReport { info, pages: self.pages, unchanged: self.unchanged, groups: self.groups, end, bytes })
    }

    /// Copies the direct pages that were linked since the last time.
    fn direct_pages(&mut self) -> Result<()> {
        // Some may have been copied before, with what they held then: pages of a frame have no order, frames have.
        self.writer.flush_pages()?;
        let linked: BTreeSet<PageId> = self.core.links.take_linked(self.links.number).into_iter().collect();
        for id in linked {
            self.page(id, 0)?;
            self.log()?;
        }
        Ok(())
    }

    /// Reads a page that the map called allocated; `None` when it was freed meanwhile, and perhaps discarded.
    fn read(&self, id: PageId) -> Result<Option<PageRead<'a>>> {
        let core = self.core;
        let mut tries = 1..TRIES;
        loop {
            match core.pool.read(id) {
                Ok(page) => return Ok(Some(page)),
                Err(e) => {
                    self.hold.check()?;
                    if !core.space.is_allocated(id)? {
                        return Ok(None);
                    }
                    // Freed and allocated again since, it is in the pool.
                    tries.next().map(drop).ok_or(e)?;
                }
            }
        }
    }

    /// Copies a page.
    fn page(&mut self, id: PageId, since: Lsn) -> Result<()> {
        if self.core.space.is_fixed(id) {
            // Outside of the pool; a restored database gets an identity of its own there.
            self.pages += 1;
            self.writer.page(id, &identity::place_holder(self.core.page_size()));
            return self.writer.flush_if_full();
        }
        if self.core.lost_writes.as_ref().is_some_and(|marks| marks.is_ours(id)) {
            // Of no use elsewhere: what is restored has none, and gives these pages back.
            self.pages += 1;
            self.writer.page(id, &vec![0; self.core.page_size()]);
            return self.writer.flush_if_full();
        }
        let Some(page) = self.read(id)? else { return Ok(()) };
        if page::lsn(page.bytes()) == Lsn::MAX {
            // Of a group that the log refused, or that a panic cut short: in memory only, and the database is poisoned.
            self.core.log.check_sound()?;
        }
        // (A direct page may bear the very position at which the base began.)
        if page::lsn(page.bytes()) < since {
            self.unchanged += 1;
            return Ok(());
        }
        self.pages += 1;
        self.writer.page(id, page.bytes());
        drop(page);
        self.writer.flush_if_full()
    }

    /// Copies the part of the log that is durable, if it is so much that reading it is worth while.
    fn log(&mut self) -> Result<()> {
        self.log_to(Lsn::MAX, LAG.min(self.core.log.max_capacity() / 8))
    }

    /// Copies the part of the log that is durable and ends at or before `to`, if it is more than `lag` bytes.
    fn log_to(&mut self, to: Lsn, lag: u64) -> Result<()> {
        if self.core.log.durable_lsn() <= self.hold.position() + lag {
            return self.hold.check();
        }
        let (writer, groups) = (&mut self.writer, &mut self.groups);
        self.hold.read(to, |group| {
            *groups += 1;
            writer.group(group.start, group.end, group.body)
        })
    }
}

/// Bytes of an identity, for people.
fn show(id: &[u8; 16]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

impl BackupInfo {
    /// The backup's identity in hexadecimal.
    pub fn name(&self) -> String {
        show(&self.id)
    }
}
