//! Reading the log while it is being written: a backup takes every group from a position on.
//!
//! What is held stays in the ring although checkpoints pass it. Writers never wait for a reader: when the ring has grown to its largest
//! and is full, the hold is broken, and the reader is told so.

use super::log::{Disk, Log};
use super::reader::{GroupView, LogReader, Step};
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_rt::atomic::Ordering;
use varve_volume::Lsn;

/// The log from [`LogHold::position`] on, kept in the ring until it is read or the hold is dropped. A log has one at most.
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
        // Whatever is appended from here on lies at or after this position; the redo point, which only `disk` moves, does not.
        let at = self.end_lsn();
        self.held.compare_exchange(Lsn::MAX, at, Ordering::AcqRel, Ordering::Acquire).ok()?;
        drop(disk);
        Some(LogHold { log: self.clone(), at, mark: at })
    }

    /// Whether somebody holds the log.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) != Lsn::MAX
    }

    /// Where the part of the log begins that must not be overwritten.
    pub(super) fn kept_from(&self, disk: &Disk) -> Lsn {
        disk.sb.redo.min(self.held.load(Ordering::Acquire))
    }

    /// Takes over the room that the ring has now.
    pub(super) fn set_limit(&self, disk: &Disk) {
        self.limit.store(disk.sb.ring.limit(self.kept_from(disk)), Ordering::Release);
    }

    /// Gives up a hold that takes room from writers; whether there was one.
    pub(super) fn break_hold(&self) -> bool {
        let disk = self.disk.lock();
        if self.held.load(Ordering::Acquire) >= disk.sb.redo {
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

    /// Gives every group that is durable and was not read yet to `each`, and lets go of it. Returns how far the log was read.
    ///
    /// # Errors
    /// `Backup` when the ring had to be used again before; errors of the device and of `each`.
    pub(crate) fn read(&mut self, mut each: impl FnMut(GroupView<'_>) -> Result<()>) -> Result<Lsn> {
        let durable = self.log.durable_lsn();
        let mut reader = {
            let disk = self.log.disk.lock();
            LogReader::new(self.log.dev.clone(), disk.sb.clone(), self.log.salt, self.at)
        };
        reader.know(durable);
        while reader.position() < durable {
            match reader.next_group() {
                Ok(Step::Group(group)) => {
                    if group.end > durable {
                        break;
                    }
                    // The bytes are those of this group (it bears its position and a checksum), whatever happened to the ring since.
                    each(group)?;
                    self.at = group.end;
                }
                // What straddles the durable LSN is not on media yet.
                Ok(Step::End(_)) => break,
                Err(e) => return Err(if self.log.held.load(Ordering::Acquire) == self.mark { e } else { outrun() }),
            }
        }
        self.move_mark(self.at);
        Ok(self.at)
    }

    /// Keeps the log from `to` on only, unless the hold was broken.
    fn move_mark(&mut self, to: Lsn) {
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
        "the log was used again before it could be read: writers outran the reader; use a faster destination, or raise the log's largest size"
            .into(),
    )
}
