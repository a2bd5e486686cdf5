//! Reading the log while it is being written: a backup takes every group from a position on.
//!
//! What is held stays in the ring although checkpoints pass it. Writers never wait for a reader: when the ring has
//! grown to its largest and is full, the hold is broken, and so it is when the database is closed. The reader is told
//! so, whatever it could still read: while the log is held, nobody else begins a backup or cuts the file.
//!
//! Invariants: `held` and `limit` change under the lock `disk` alone; neither what is kept nor the room that writers
//! were told of ever moves back; a hold's mark moves forward only, and groups are read in order.

use super::log::{Disk, Log};
use super::reader::{GroupView, LogReader, Step};
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_rt::atomic::Ordering;
use varve_volume::Lsn;

/// The log from [`LogHold::position`] on, kept in the ring until it is read or the hold is dropped. A log has one at
/// most.
pub(crate) struct LogHold {
    log: Arc<Log>,
    at: Lsn,
    /// What this hold wrote into `held`; something else there means that it was broken.
    mark: Lsn,
}

impl Log {
    /// Holds the log from its end on. `None` when somebody holds it already.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<LogHold> {
        let disk = self.disk.lock();
        // Whatever is appended from here on lies at or after this position; the redo point, which only `disk` moves,
        // does not.
        let at = self.end_lsn();
        let resumed = self.resumed.load(Ordering::Acquire);
        assert!(!resumed || at >= self.completed_redo(), "the log ends at its redo point or later");
        self.held.compare_exchange(Lsn::MAX, at, Ordering::AcqRel, Ordering::Acquire).ok()?;
        drop(disk);
        Some(LogHold { log: self.clone(), at, mark: at })
    }

    /// Whether somebody holds the log.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) != Lsn::MAX
    }

    /// Where the part of the log begins that must not be overwritten: it moves under the lock `disk` alone.
    pub(super) fn kept_from(&self, _: &Disk) -> Lsn {
        self.completed_redo().min(self.held.load(Ordering::Acquire))
    }

    /// Gives up the hold, if there is one: the database is being closed.
    pub(super) fn end_hold(&self) {
        let disk = self.disk.lock();
        self.held.store(Lsn::MAX, Ordering::Release);
        self.set_limit(&disk);
    }

    /// Gives up a hold that takes room from writers; whether there was one.
    pub(super) fn break_hold(&self) -> bool {
        let disk = self.disk.lock();
        if self.held.load(Ordering::Acquire) >= self.completed_redo() {
            return false;
        }
        self.held.store(Lsn::MAX, Ordering::Release);
        self.set_limit(&disk);
        true
    }
}

impl LogHold {
    /// How far the log was read.
    pub(crate) fn position(&self) -> Lsn {
        self.at
    }

    /// Lets go of the log before `position`: what is read begins there.
    pub(crate) fn begin_at(&mut self, position: Lsn) {
        assert!(position >= self.at, "a hold goes forwards");
        self.at = position;
        self.move_mark(position);
    }

    /// Fails when the log is not held any more.
    ///
    /// # Errors
    /// `Backup`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.log.held.load(Ordering::Acquire) == self.mark { Ok(()) } else { Err(outrun()) }
    }

    /// Gives every group that ends at or before `to`, is durable and was not read yet to `each`, and lets go of it.
    ///
    /// # Errors
    /// `Backup` when the log is not held any more; errors of the device and of `each`.
    pub(crate) fn read(&mut self, to: Lsn, mut each: impl FnMut(GroupView<'_>) -> Result<()>) -> Result<()> {
        let to = self.log.durable_lsn().min(to);
        let mut reader = {
            let disk = self.log.disk.lock();
            LogReader::new(self.log.dev.clone(), disk.sb.clone(), self.log.salt, self.at).in_use(to)
        };
        loop {
            match reader.next_group() {
                Ok(Step::Group(group)) => {
                    // The bytes are those of this group (it bears its position and a checksum), whatever happened to
                    // the ring since.
                    assert!(group.start >= self.at && group.end <= to, "groups are read in order, up to where asked");
                    each(group)?;
                    self.at = group.end;
                }
                Ok(Step::End(_)) => break,
                Err(e) => return self.check().and(Err(e)),
            }
        }
        self.move_mark(self.at);
        self.check()
    }

    /// Keeps the log from `to` on only, unless the hold was broken.
    fn move_mark(&mut self, to: Lsn) {
        assert!(to >= self.mark, "a hold lets go of the log forwards");
        let disk = self.log.disk.lock();
        let moved = self.log.held.compare_exchange(self.mark, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if moved {
            self.mark = to;
            self.log.set_limit(&disk);
            drop(disk);
            self.log.tell_of_space();
        }
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        if !varve_rt::dying() {
            self.move_mark(Lsn::MAX);
        }
    }
}

fn outrun() -> Error {
    Error::Backup(
        "the log is not kept for it any more: writers outran the reader (use a faster destination, or raise the log's largest size), or the database was closed"
            .into(),
    )
}
