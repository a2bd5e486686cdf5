//! A commit's writes to an LSM keyspace: room for them in memory, their record in the commit's group, and then, with
//! the commit number known, their entries in the memtable.
//!
//! Invariants: memory is charged before a memtable is entered; entries are in place before the commit, which has one
//! slot of the horizon for all that it writes, lets go of that.

use super::index::{Lsm, Shared};
use super::memtable::{Memtable, bytes_of};
use super::ranges::RangeDelete;
use super::upkeep::LONGEST_VALUE;
use super::{Entry, record};
use crate::budget::Class;
use crate::error::{Error, Result};
use crate::page::Group;
use crate::rows::{Single, Span, Write};
use crate::wal::GroupKind;
use std::cell::Cell;
use std::sync::Arc;
use varve_rt::{Cost, charge};
use varve_volume::Lsn;

/// Most bytes of a record in the log beside its entries.
const RECORD: usize = 32;

/// Memory charged for entries that are not in a memtable yet; given back when it is dropped.
struct Charge<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shared.core.budget.release(Class::Memtables, self.bytes);
            self.shared.services.memory_is_back();
        }
    }
}

/// A memtable that a commit has entered.
struct Entered(Arc<Memtable>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.writer_ends();
    }
}

/// A run of a commit's writes that goes to a memtable.
pub(crate) struct MemtableWrites<'a> {
    shared: &'a Shared,
    writes: &'a [Write<'a>],
    charge: Charge<'a>,
    entered: Option<Entered>,
}

impl Lsm {
    /// Makes room for all of the writes. No latch may be held: it waits for flushes when memory is short. `decided`:
    /// they are of a commit that is made whatever memtables may have.
    pub(crate) fn plan<'a>(&'a self, writes: &'a [Write<'a>], decided: bool) -> Result<MemtableWrites<'a>> {
        let shared = &*self.0;
        assert!(!writes.is_empty(), "a plan is of some writes");
        // One that is decided was looked at before.
        writes.iter().filter(|_| !decided).try_for_each(check_value)?;
        let bytes = writes.iter().map(|write| bytes_of(write.key, record::value(write))).sum();
        shared.services.admit(shared, bytes, decided)?;
        let charge = Charge { shared, bytes };
        let (bytes, limit) = (writes.iter().map(record::bytes_of).sum::<usize>() as u64, shared.core.log.max_group());
        if bytes > limit {
            return Err(Error::TransactionTooLarge { what: "log", needed: bytes, limit });
        }
        Ok(MemtableWrites { shared, writes, charge, entered: None })
    }

    /// Whether a write could ever be made by itself.
    ///
    /// # Errors
    /// `ValueSize` when no block can hold it; `TransactionTooLarge` when memory for memtables, or a log group, is less
    /// than it takes.
    pub(crate) fn check_fits(&self, write: &Write<'_>) -> Result<()> {
        check_value(write)?;
        let core = &self.0.core;
        let (entry, limit) = (bytes_of(write.key, record::value(write)), core.budget.limit(Class::Memtables));
        if entry > limit {
            return Err(Error::TransactionTooLarge { what: "memtables", needed: entry, limit });
        }
        // Its group also notes, in a page of the catalog, that it was made.
        let beside = RECORD + 2 * (core.page_size() + 64);
        let (bytes, limit) = ((record::bytes_of(write) + beside) as u64, core.log.max_group());
        if bytes > limit {
            return Err(Error::TransactionTooLarge { what: "log", needed: bytes, limit });
        }
        Ok(())
    }

    /// Lets memtables have the memory for a write, if they may not: one that was decided is made, whatever they may
    /// have by now.
    pub(crate) fn make_fit(&self, write: &Write<'_>) {
        self.0.core.budget.raise_limit(Class::Memtables, bytes_of(write.key, record::value(write)));
    }

    /// Plans and enters for a single write. `told` gets nothing of what is replaced: an LSM keyspace keeps it itself.
    pub(crate) fn latch_single<'a, T>(
        &'a self,
        write: &'a Write<'a>,
        told: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<Single<MemtableWrites<'a>, T>> {
        if write.value.is_none() {
            // The key is locked: as of now is as of the commit.
            let (there, lsn) = self.contains(write.key, Lsn::MAX)?;
            if !there {
                return Ok(Single::Nothing(lsn));
            }
        }
        debug_assert!(write.key.len() <= self.max_key(), "the key was checked");
        let mut planned = self.plan(std::slice::from_ref(write), false)?;
        planned.enter();
        Ok(Single::Ready(planned, told(None)))
    }
}

/// A block of a segment has to hold the value.
fn check_value(write: &Write<'_>) -> Result<()> {
    let len = record::value(write).len() as u64;
    if len > LONGEST_VALUE { Err(Error::ValueSize { len, max: LONGEST_VALUE }) } else { Ok(()) }
}

/// Bytes of keys and values.
fn user_bytes(writes: &[Write<'_>]) -> u64 {
    writes.iter().map(|write| (write.key.len() + record::value(write).len()) as u64).sum()
}

impl Lsm {
    /// Waits as long as the writer of these has to, so that merges keep up.
    pub(crate) fn hold_up(&self, writes: &[Write<'_>]) {
        let shared = &*self.0;
        let woken = Cell::new(false);
        let merges = || {
            // Once: what fails is tried again when it is time.
            if !woken.replace(true) {
                shared.services.wake();
            }
            shared.services.goes_on(&shared.core)
        };
        let waited = shared.pressure.wait(|| shared.options(), || shared.memtables(), || user_bytes(writes), merges);
        if !waited.is_zero() {
            shared.counters.delayed(waited);
        }
    }
}

impl Lsm {
    /// Deletes all keys of a span, which are locked, in a group of its own; `told` gets the commit number as soon as
    /// there is one, which is returned when what it did shows. No latch may be held.
    ///
    /// # Errors
    /// What waiting for memory and for room in the log fail with. Then nothing was deleted.
    pub(crate) fn delete_range(&self, (low, high): &Span, told: impl FnOnce(Lsn)) -> Result<Lsn> {
        let shared = &*self.0;
        // Longer than any key, so that it is past them all.
        let past = || vec![u8::MAX; self.max_key() + 1];
        let end = high.clone().unwrap_or_else(past);
        assert!(*low < end, "a span has keys");
        let bytes = bytes_of(low, &end);
        // What it hides gives its room back, on a full device too.
        shared.services.admit(shared, bytes, true)?;
        let mut charge = Charge { shared, bytes };
        let record = record::delete_range(low, &end);
        let mut group = Group::begin(&shared.core, GroupKind::Commit, record.len() + 64)?;
        let entered = Entered(shared.enter());
        group.record(shared.keyspace, &record);
        let core = &shared.core;
        let way = core.horizon.set_out(&core.log, u64::from(shared.keyspace.0));
        let commit = group.commit_with(|commit| {
            told(commit);
            shared.note_newest(commit);
            entered.0.takes_charge(std::mem::take(&mut charge.bytes));
            entered.0.delete_range(RangeDelete { start: low.clone(), end, commit });
            drop((entered, way));
        })?;
        shared.counters.wrote(0, record.len() as u64);
        core.horizon.wait(&core.log, commit);
        let view = shared.view();
        shared.services.look_at(shared, view.active.bytes());
        if view.active.has_many_ranges() {
            shared.services.wake();
        }
        Ok(commit)
    }
}

impl<'a> MemtableWrites<'a> {
    /// How many writes they are.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Bytes of their record in the log, at most.
    pub(crate) fn log_bytes(&self) -> usize {
        RECORD + self.writes.iter().map(record::bytes_of).sum::<usize>()
    }

    /// Whether both go to the same memtable.
    pub(crate) fn is_with(&self, other: &MemtableWrites<'_>) -> bool {
        std::ptr::eq(self.shared, other.shared)
    }

    /// Enters the memtable that takes them.
    pub(crate) fn enter(&mut self) {
        assert!(self.entered.is_none(), "a memtable is entered once");
        self.entered = Some(Entered(self.shared.enter()));
    }

    /// Leaves it again.
    pub(crate) fn leave(&mut self) {
        self.entered = None;
    }

    /// Puts their record into the group.
    pub(crate) fn record(&self, group: &mut Group<'_>) {
        assert!(self.entered.is_some(), "what is recorded has a memtable to go to");
        group.record(self.shared.keyspace, &record::writes(self.writes));
    }

    /// The group ended at `commit`: puts the entries in place. The commit has its slot of the horizon still.
    pub(crate) fn take_effect(mut self, commit: Lsn) {
        let Some(Entered(table)) = &self.entered else { unreachable!("what was recorded has a memtable to go to") };
        assert!(commit > self.shared.core.horizon.reached(), "nobody reads as of a commit that is not in place");
        self.shared.note_newest(commit);
        table.takes_charge(std::mem::take(&mut self.charge.bytes));
        debug_assert!(table.has_writers(), "a memtable with a writer is not frozen");
        for write in self.writes {
            charge(Cost::NodeSearch, 1);
            let (kind, value) = (record::kind(write), record::value(write));
            table.insert(&Entry { key: write.key, commit, kind, value });
        }
        self.shared.counters.wrote(user_bytes(self.writes), self.log_bytes() as u64);
        self.shared.services.wrote(self.writes.iter().map(|write| record::value(write).len()));
        let bytes = table.bytes();
        self.entered = None;
        self.shared.services.look_at(self.shared, bytes);
    }
}
