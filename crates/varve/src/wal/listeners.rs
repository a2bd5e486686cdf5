//! Who is told when a place in the log is durable, without a thread that waits for it.
//!
//! The flusher tells them, one after the other, outside of all locks: a listener that takes its time holds up the other
//! listeners at most. Who comes when the answer is known already is told at once, on its own thread.
//!
//! Invariants: a listener is told once, never before its place is durable but with an error; one that comes after the
//! flusher has ended is told so; after a power cut nobody is told anything. A listener's panic is printed and ends with
//! the listener, whichever thread called it.

use super::log::Log;
use super::writer::Writer;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use varve_volume::Lsn;

/// What is called when it is known what became of a place in the log.
pub(crate) type Tell = Box<dyn FnOnce(Result<()>) + Send>;

/// Those that have not been told yet, under the writer's lock.
#[derive(Default)]
pub(super) struct Listeners {
    /// By place and number.
    waiting: BTreeMap<(Lsn, u64), Tell>,
    number: u64,
    /// Nobody will tell any more.
    ended: bool,
}

impl Listeners {
    fn add(&mut self, lsn: Lsn, tell: Tell) {
        assert!(!self.ended, "there is somebody who tells");
        self.number += 1;
        let before = self.waiting.insert((lsn, self.number), tell);
        assert!(before.is_none(), "listeners are numbered");
    }

    /// Whether somebody is to be told that everything up to `durable` is.
    pub(super) fn has_due(&self, durable: Lsn) -> bool {
        self.waiting.first_key_value().is_some_and(|((lsn, _), _)| *lsn <= durable)
    }

    /// Takes those whose place is durable.
    fn due(&mut self, durable: Lsn) -> BTreeMap<(Lsn, u64), Tell> {
        let later = self.waiting.split_off(&(durable + 1, 0));
        let due = std::mem::replace(&mut self.waiting, later);
        debug_assert!(!self.has_due(durable), "nobody who is due is left waiting");
        due
    }
}

impl Log {
    /// Calls `tell` when everything below `lsn` is on media, or when that is never going to be. The flusher sees to it
    /// that it is written.
    ///
    /// # Errors
    /// `Invalid` for a place past the end of the log; `tell` is not called then.
    pub(crate) fn on_durable(&self, lsn: Lsn, tell: Tell) -> Result<()> {
        self.check_appended(lsn)?;
        let mut writer = self.writer.lock();
        match self.known(&writer, lsn) {
            Some(result) => {
                drop(writer);
                call(tell, result);
            }
            None => {
                writer.listeners.add(lsn, tell);
                drop(writer);
                self.flusher.hurry(lsn);
            }
        }
        Ok(())
    }

    /// What is to be told of a place, if that is known.
    fn known(&self, writer: &Writer, lsn: Lsn) -> Option<Result<()>> {
        if self.durable_lsn() >= lsn {
            return Some(Ok(()));
        }
        self.check_sound().err().or(writer.listeners.ended.then_some(Error::Closed)).map(Err)
    }

    /// Tells all of whose place it is known what became of it; `last`: everybody, since the flusher ends.
    pub(super) fn tell_listeners(&self, last: bool) {
        if varve_rt::dying() {
            return;
        }
        let mut writer = self.writer.lock();
        let sound = self.check_sound();
        let durable = writer.listeners.due(self.durable_lsn());
        writer.listeners.ended |= last;
        let lost = if last || sound.is_err() { std::mem::take(&mut writer.listeners.waiting) } else { BTreeMap::new() };
        drop(writer);
        let why = sound.err().unwrap_or(Error::Closed);
        let told = durable.into_values().map(|tell| (tell, Ok(())));
        for (tell, result) in told.chain(lost.into_values().map(|tell| (tell, Err(why.clone())))) {
            call(tell, result);
        }
    }
}

/// Calls a listener. Its panic was printed; the others are told all the same, and who came too late for the flusher
/// goes on as if it had come in time.
fn call(tell: Tell, result: Result<()>) {
    let _ = varve_rt::catch_panic(|| tell(result));
}
