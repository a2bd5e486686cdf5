//! The reaper: takes the ends of writes that nobody waits for (those that a victim strategy has issued together with
//! a read).
//!
//! A ticket must not be dropped before it was waited for, so the thread outlives a pool that is dropped with writes
//! under way; the bytes that they read are shared with them.
//!
//! Invariant: a write is in the queue only while the queue is open, or is being emptied by who closed it.

use super::Service;
use crate::buffer::Pool;
use crate::buffer::aside::AsideWrite;
use crate::buffer::instance::Instance;
use crate::buffer::victim::Owed;
use crate::buffer::writer::Outcome;
use crate::role::{self, Role};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_rt::atomic::Ordering::*;
use varve_rt::{Event, Mutex};
use varve_volume::{PageTicket, WriteWhy};

/// A write that was submitted.
struct Pending {
    ticket: PageTicket,
    /// Which request of the ticket.
    request: usize,
    instance: usize,
    write: AsideWrite,
}

struct Queue {
    pending: VecDeque<Pending>,
    /// Somebody takes from it.
    open: bool,
}

/// Writes whose ends are to be taken.
pub(in crate::buffer) struct Reaper {
    queue: Mutex<Queue>,
    pub(in crate::buffer) wake: Arc<Event>,
}

impl Reaper {
    pub(in crate::buffer) fn new() -> Reaper {
        Reaper { queue: Mutex::new(Queue { pending: VecDeque::new(), open: false }), wake: Arc::new(Event::new()) }
    }

    pub(super) fn open(&self) {
        let mut queue = self.queue.lock();
        assert!(!queue.open && queue.pending.is_empty(), "one thread takes the ends of writes");
        queue.open = true;
        drop(queue);
        self.wake.reset();
    }

    fn next(&self) -> Option<Pending> {
        self.queue.lock().pending.pop_front()
    }

    /// Closes the queue if nothing is in it: who issues a write from then on takes its end. Whether it did.
    fn closes(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.open = !queue.pending.is_empty();
        !queue.open
    }
}

impl Pool {
    /// Has the end of an owed write taken in the background, or takes it here when nothing runs there.
    pub(in crate::buffer) fn reap(&self, ticket: PageTicket, request: usize, owed: Owed<'_>) {
        let at = |inst: &Instance| std::ptr::eq(inst, owed.inst);
        let instance = self.instances().iter().position(at).expect("an instance of this pool");
        let pending = Pending { ticket, request, instance, write: owed.write };
        let pending = {
            let mut queue = self.reaper.queue.lock();
            match queue.open {
                true => {
                    queue.pending.push_back(pending);
                    None
                }
                false => Some(pending),
            }
        };
        match pending {
            Some(pending) => self.take_end(pending),
            None => self.reaper.wake.set(),
        }
    }

    fn take_end(&self, pending: Pending) {
        let Pending { mut ticket, request, instance, write } = pending;
        let result = ticket.wait(request);
        let mut outcome = Outcome::default();
        let ended = std::iter::once((write.slot, result));
        self.end_asides(&self.instances()[instance], ended, WriteWhy::Replacement, &mut outcome);
    }

    /// Nobody takes ends in the background any more; those left are taken here.
    pub(super) fn close_reaper(&self) {
        self.reaper.queue.lock().open = false;
        while let Some(pending) = self.reaper.next() {
            self.take_end(pending);
        }
    }
}

/// Gives the tickets up when the thread is unwound by a power cut.
struct Cut<'a>(&'a Reaper);

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        if varve_rt::dying() {
            let pending = {
                let mut queue = self.0.queue.lock();
                queue.open = false;
                std::mem::take(&mut queue.pending)
            };
            drop(pending);
        }
    }
}

/// The life of the thread.
pub(super) fn run(service: &Service, reaper: &Reaper) {
    role::set(Role::Cleaner);
    let _cut = Cut(reaper);
    loop {
        service.wake.wait_for(service.config.interval);
        service.wake.reset();
        while let Some(mut pending) = reaper.next() {
            match service.pool.upgrade() {
                Some(pool) => pool.take_end(pending),
                None => drop(pending.ticket.wait(pending.request)),
            }
        }
        // Other threads may be at work still, of a database that is dropped: what they issue must not stay here.
        if (service.stop.load(Acquire) || service.pool.strong_count() == 0) && reaper.closes() {
            return;
        }
    }
}
