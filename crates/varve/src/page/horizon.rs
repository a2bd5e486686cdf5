//! The horizon: up to which commit number everything that commits keep in memory, and in no page, is in place.
//!
//! A commit changes latched pages, so nobody sees half of it. Entries of a memtable are under no latch: they come after
//! the group has its place in the log, one after the other. So readers of memtables read as of the horizon, and a
//! commit lets go of its latches and locks only when the horizon has reached its number: then all that it wrote shows
//! at once, in pages and memtables alike.
//!
//! How: before its group gets a place, a commit takes a slot and notes the end of the log there; when its entries are
//! in place it lets go of the slot. Whoever looks takes the end of the log first and the slots afterwards: a commit
//! that he does not see has its place later, or is done. The horizon is the least of all that.
//!
//! Who has a slot waits for no latch, since others wait for the horizon with latches held; nor for another slot: a
//! commit has one, however many memtables it writes to.
//!
//! Invariants: the horizon only rises; a slot holds a bound that is not past the place of its commit's group.

use crate::wal::Log;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::Lsn;

/// Commits that may be between log and memory at a time; one more waits.
const SLOTS: usize = 64;
/// No commit has the slot. (A bound is the end of a log, and no log ends at 0.)
const FREE: u64 = 0;

#[repr(align(64))]
struct Slot(AtomicU64);
const _: () = assert!(size_of::<Slot>() == 64, "no two slots share a cache line");

pub(crate) struct Horizon {
    reached: Slot,
    slots: [Slot; SLOTS],
}

/// A commit that will put something in place. Dropped, it has done so, or its group has no place in the log.
pub(crate) struct OnItsWay<'h>(&'h Slot);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let before = self.0.0.swap(FREE, Ordering::SeqCst);
        assert_ne!(before, FREE, "who lets go of a slot has it");
    }
}

impl Horizon {
    /// Everything up to `end`, the end of the log at the opening, is in place: recovery put it there.
    pub(super) fn new(end: Lsn) -> Horizon {
        let slot = || Slot(AtomicU64::new(FREE));
        Horizon { reached: Slot(AtomicU64::new(end)), slots: std::array::from_fn(|_| slot()) }
    }

    /// A commit whose group gets a place from here on. `spread`: any number that spreads threads.
    pub(crate) fn set_out(&self, log: &Log, spread: u64) -> OnItsWay<'_> {
        let mut rounds = 0;
        loop {
            for i in 0..SLOTS {
                let slot = &self.slots[(spread as usize + i) % SLOTS];
                if slot.0.load(Ordering::Relaxed) != FREE {
                    continue;
                }
                let bound = log.end_lsn();
                assert_ne!(bound, FREE, "no log ends where it begins");
                if slot.0.compare_exchange(FREE, bound, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                    return OnItsWay(slot);
                }
            }
            varve_rt::spin(rounds);
            rounds += 1;
        }
    }

    /// All that commits up to this number put into memory is in place.
    #[inline]
    pub(crate) fn reached(&self) -> Lsn {
        self.reached.0.load(Ordering::SeqCst)
    }

    /// Returns when it has reached `lsn`, which is not past the end of the log. For those who have let go of their own
    /// slot.
    pub(crate) fn wait(&self, log: &Log, lsn: Lsn) {
        debug_assert!(lsn <= log.end_lsn(), "nobody waits for what is not appended");
        let mut rounds = 0;
        while self.reached() < lsn && !varve_rt::dying() {
            self.look(log);
            if self.reached() < lsn {
                varve_rt::spin(rounds);
                rounds += 1;
            }
        }
    }

    fn look(&self, log: &Log) {
        // First the end of the log: see above.
        let end = log.end_lsn();
        let on_their_way = self.slots.iter().map(|slot| slot.0.load(Ordering::SeqCst)).filter(|bound| *bound != FREE);
        let reached = on_their_way.fold(end, Lsn::min);
        debug_assert!(reached <= end, "nothing is in place that has no place in the log");
        self.reached.0.fetch_max(reached, Ordering::SeqCst);
    }
}
