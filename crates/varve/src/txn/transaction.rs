//! Read-write transactions, and read-only ones that are a snapshot under the same interface.
//!
//! Invariants: a transaction that had to give way in a deadlock has let go of its locks and writes at once; every later
//! call returns the same `Conflict`. Other errors leave it as it was. What it writes it has locked; one that reads a
//! snapshot has neither locks nor writes.

use super::commit::{self, How, Target};
use super::cursor::{Cursor, Overlay};
use super::key::{Bounds, KeyBuf, bound_ref, contains, is_possible, shortened};
use super::keyspace::check_value;
use super::lock::{LockSet, Mode};
use super::range::KeyRange;
use super::retry::TxOptions;
use super::snapshot::Snapshot;
use super::write_set::{Found, Savepoint, Value, WriteSet};
use super::{Durability, Manager, OpenKeyspace, count};
use crate::budget::Class;
use crate::error::{Error, Result};
use crate::rows::{NewValue, ValueRef, Write as RowWrite};
use crate::space::Core;
use smallvec::SmallVec;
use std::ops::Bound;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Cost, Kept, charge};
use varve_volume::Lsn;

/// An open transaction. Its calls are described where users have them, in `db/transaction.rs`.
pub(crate) struct Transaction {
    locks: Kept<LockSet>,
    writes: Kept<WriteSet>,
    /// Greatest LSN of a page it read.
    read: Lsn,
    durability: Durability,
    /// Reads come from here, and writes are refused.
    snapshot: Option<Arc<Snapshot>>,
    /// Told the commit number as soon as there is one.
    tell: Option<Arc<AtomicU64>>,
    /// It had to give way.
    doomed: Option<Error>,
    /// There was no memory for what was asked for last among what there was none for.
    refused: Option<Error>,
    committed: bool,
    pub(super) manager: Arc<Manager>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.id())
            .field("writes", &self.writes.len())
            .field("doomed", &self.doomed)
            .finish()
    }
}

impl Transaction {
    /// `birth`: age of the first attempt, when this is a retry.
    pub fn begin(manager: &Arc<Manager>, options: &TxOptions, birth: Option<u64>) -> Result<Transaction> {
        manager.live()?;
        let snapshot = if options.read_only { Some(Arc::new(Snapshot::open(manager)?)) } else { None };
        if snapshot.is_none() {
            manager.live_for_write()?;
        }
        charge(Cost::TxnBegin, 1);
        manager.enter();
        let transaction = Transaction {
            locks: Kept::new(LockSet::new(&manager.locks, birth)),
            writes: Kept::new(WriteSet::new(&manager.core)),
            read: 0,
            durability: options.durability.unwrap_or(manager.durability),
            snapshot,
            tell: None,
            doomed: None,
            refused: None,
            committed: false,
            manager: manager.clone(),
        };
        // A close that did not see the transaction is seen by it.
        manager.live()?;
        Ok(transaction)
    }

    /// Has the commit number put into `to` as soon as the commit has one: before it is durable, so also when `commit`
    /// never returns. How a crash test knows the order of commits that were in flight.
    #[doc(hidden)]
    pub fn tell_commit_number(&mut self, to: Arc<AtomicU64>) {
        self.tell = Some(to);
    }

    /// What a read-only transaction reads.
    pub(super) fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.snapshot.as_ref()
    }

    /// Its number in error messages; never used twice while the database is open.
    pub fn id(&self) -> u64 {
        self.locks.id()
    }

    /// Age for the next attempt.
    pub(super) fn birth(&self) -> u64 {
        self.locks.birth()
    }

    /// Whether it had to give way.
    pub(super) fn is_doomed(&self) -> bool {
        self.doomed.is_some()
    }

    pub(super) fn check(&self, keyspace: &Arc<OpenKeyspace>) -> Result<()> {
        charge(Cost::TxnCall, 1);
        match &self.doomed {
            Some(error) => {
                assert!(
                    self.writes.is_empty() && self.locks.is_empty(),
                    "who had to give way has let go of everything"
                );
                Err(error.clone())
            }
            None => keyspace.belongs_to(&self.manager).and_then(|()| self.manager.live_in(keyspace)),
        }
    }

    fn check_write(&self, keyspace: &Arc<OpenKeyspace>) -> Result<()> {
        self.check(keyspace)?;
        if self.snapshot.is_some() {
            return Err(Error::ReadOnly("the transaction was begun with read_only".into()));
        }
        keyspace.check_changing()
    }

    /// Waits until nobody else writes to the keyspace; nobody does until the transaction ends.
    pub fn lock_all(&mut self, keyspace: &Arc<OpenKeyspace>) -> Result<()> {
        self.check(keyspace)?;
        self.lock_range(keyspace, (Bound::Unbounded, Bound::Unbounded), Mode::Exclusive)
    }

    /// Locks a range as if all of it was written.
    pub fn lock_to_delete(&mut self, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Result<()> {
        self.check_write(keyspace)?;
        self.lock_range(keyspace, range.bounds(), Mode::Exclusive)?;
        // It may have become read-only meanwhile: who makes it so holds a lock on all of it.
        keyspace.check_changing()
    }

    /// Passes a result on; after a conflict, lets go of everything first.
    fn note<T>(&mut self, result: Result<T>) -> Result<T> {
        match &result {
            Err(error @ Error::Conflict { .. }) => {
                self.doomed = Some(error.clone());
                self.writes.clear();
                self.locks.release();
                count(&self.manager.counters.conflicts);
            }
            Err(error @ Error::OverBudget { .. }) => self.refused = Some(error.clone()),
            _ => {}
        }
        result
    }

    /// What it was told where there was no memory for it.
    pub fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }

    /// The memory that it holds, by class.
    pub(super) fn held_memory(&self) -> [(Class, u64); 2] {
        [(Class::Locks, self.locks.bytes()), (Class::WriteSets, self.writes.charged())]
    }

    fn write(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let written = self.writes.put(keyspace, key, value);
        if written.is_ok() { written } else { self.note(written) }
    }

    fn lock(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], mode: Mode) -> Result<()> {
        if mode == Mode::Shared && self.manager.core.faults().has(Mistake::ReadsNotLocked) {
            return Ok(());
        }
        let result = self.locks.lock_key(keyspace.locks(), key, mode);
        if result.is_ok() { result } else { self.note(result) }
    }

    pub(super) fn lock_range(&mut self, keyspace: &Arc<OpenKeyspace>, range: Bounds<'_>, mode: Mode) -> Result<()> {
        if self.manager.core.faults().has(Mistake::SkipIntervalLock) {
            return Ok(());
        }
        let range = shortened(range, keyspace.index().max_key());
        if !is_possible(range.0, range.1) {
            return Ok(());
        }
        let result = self.locks.lock_range(keyspace.locks(), range, mode);
        self.note(result)
    }

    fn read_locked<R>(
        &mut self,
        keyspace: &Arc<OpenKeyspace>,
        key: &[u8],
        mode: Mode,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        if keyspace.is_too_long(key) {
            return Ok(f(None));
        }
        self.lock(keyspace, key, mode)?;
        if let Some(pending) = self.writes.get(keyspace.id(), key)? {
            return Ok(match pending.write() {
                None => f(None),
                Some(Value::Bytes(value)) => f(Some(value)),
                Some(Value::Stored(stored)) => f(Some(&stored.read(&self.manager.core, keyspace.id())?)),
            });
        }
        let (result, lsn, hint) = keyspace.index().read_for_write(key, f)?;
        self.saw(lsn)?;
        if let Some(hint) = hint.filter(|_| mode == Mode::Exclusive) {
            self.writes.note_place(keyspace.id(), key, hint);
        }
        Ok(result)
    }

    /// What is needed to read a key outside: the lock. False when nobody can ever write it.
    pub(super) fn lock_to_read(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<bool> {
        self.check(keyspace)?;
        if keyspace.is_too_long(key) {
            return Ok(false);
        }
        self.lock(keyspace, key, Mode::Shared).map(|()| true)
    }

    /// What is needed to write a key: the lock.
    pub(super) fn lock_to_write(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<()> {
        self.check_write(keyspace)?;
        keyspace.check_key(key)?;
        self.lock(keyspace, key, Mode::Exclusive)
    }

    /// The pending write of a key.
    pub(super) fn pending(&self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<Option<Found<'_>>> {
        self.writes.get(keyspace.id(), key)
    }

    /// Adds a write of a key that is locked.
    pub(super) fn put_value(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: Value) -> Result<()> {
        debug_assert!(self.snapshot.is_none() && self.doomed.is_none(), "who writes reads no snapshot, and may go on");
        let written = self.writes.put_value(keyspace, key, value);
        if written.is_ok() { written } else { self.note(written) }
    }

    pub(super) fn own_writes(&self) -> &WriteSet {
        &self.writes
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.manager.core
    }

    /// It has read under its locks what is in pages up to `lsn`.
    pub(super) fn saw(&mut self, lsn: Lsn) -> Result<()> {
        self.manager.check_read(lsn)?;
        if self.manager.large.is_active() {
            // A commit in pieces that failed half way has let go of its locks: these alone would show half of it.
            self.manager.core.log.check_sound()?;
        }
        self.read = self.read.max(lsn);
        Ok(())
    }

    /// Reads one key and hands its value (`None`: no such key) to `f`. `f` may run under a latch.
    pub fn get_with<R>(
        &mut self,
        keyspace: &Arc<OpenKeyspace>,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.check(keyspace)?;
        if let Some(snapshot) = &self.snapshot {
            // A snapshot may look twice.
            let mut value = Vec::new();
            let found = snapshot.get_with(keyspace, key, |found| {
                value.clear();
                value.extend_from_slice(found.unwrap_or_default());
                found.is_some()
            })?;
            return Ok(f(found.then_some(&value)));
        }
        self.read_locked(keyspace, key, Mode::Shared, f)
    }

    /// Whether a key is there.
    pub fn contains(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<bool> {
        if let Some(snapshot) = &self.snapshot {
            return snapshot.contains(keyspace, key);
        }
        if !self.lock_to_read(keyspace, key)? {
            return Ok(false);
        }
        if let Some(pending) = self.pending(keyspace, key)? {
            return Ok(pending.write().is_some());
        }
        let (there, lsn) = keyspace.index().contains(key, Lsn::MAX)?;
        self.saw(lsn)?;
        Ok(there)
    }

    /// As [`Transaction::get_with`], for a key that will be written.
    pub fn get_for_update_with<R>(
        &mut self,
        keyspace: &Arc<OpenKeyspace>,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.check_write(keyspace)?;
        self.read_locked(keyspace, key, Mode::Exclusive, f)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `KeySize`, `ValueSize`; `TransactionTooLarge` or `OverBudget` when the writes no longer fit in memory;
    /// `Conflict`.
    pub fn put(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        self.lock_to_write(keyspace, key)?;
        if value.len() as u64 > self.writes.most_in_memory() && keyspace.index().keeps_long_apart() {
            return self.put_ahead(keyspace, key, value);
        }
        self.write(keyspace, key, Some(value))
    }

    /// Removes a key if it is there. Errors as for [`Transaction::put`], but for `KeySize`: a key that is too long is
    /// not there.
    pub fn delete(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<()> {
        if keyspace.is_too_long(key) {
            return self.check_write(keyspace);
        }
        self.lock_to_write(keyspace, key)?;
        self.write(keyspace, key, None)
    }

    /// Removes every key of a range; returns how many there were. Keeps others from inserting into it until the
    /// transaction ends. On an error none of them is removed. Errors as for [`Transaction::put`].
    pub fn delete_range(&mut self, keyspace: &Arc<OpenKeyspace>, range: &KeyRange<'_>) -> Result<u64> {
        self.check_write(keyspace)?;
        if !is_possible(range.bounds().0, range.bounds().1) {
            return Ok(0);
        }
        self.lock_range(keyspace, range.bounds(), Mode::Exclusive)?;
        let mark = self.writes.savepoint(0);
        let result = self.delete_rows(keyspace, range.bounds());
        if result.is_err() {
            self.writes.rollback_to(0, mark)?;
        }
        self.writes.release(mark);
        result
    }

    fn delete_rows(&mut self, keyspace: &Arc<OpenKeyspace>, range: Bounds<'_>) -> Result<u64> {
        let mut cursor = Cursor::of_keys(range);
        let mut n = 0;
        let mut key = Vec::new();
        loop {
            while let Some(next) = cursor.take_key() {
                key.clear();
                key.extend_from_slice(next);
                self.write(keyspace, &key, None)?;
                n += 1;
            }
            if cursor.is_done() {
                return Ok(n);
            }
            self.next_batch(keyspace, &mut cursor)?;
        }
    }

    /// Reads and locks the next batch of a scan.
    pub(super) fn next_batch(&mut self, keyspace: &Arc<OpenKeyspace>, cursor: &mut Cursor) -> Result<()> {
        self.check(keyspace)?;
        let index = keyspace.index();
        let moves = index.moves();
        let spilled = self.writes.is_spilled() && self.writes.touches(keyspace.id());
        let mut window = if spilled { Some(self.window(keyspace, cursor)?) } else { None };
        let mut filled = match &window {
            None => cursor.fill(index, Lsn::MAX, None)?,
            Some((_, part, rest)) => {
                let mut filled = cursor.fill(index, Lsn::MAX, Some((bound_ref(&part.0), bound_ref(&part.1))))?;
                filled.rest = filled.rest.or_else(|| rest.clone());
                filled
            }
        };
        self.lock_range(keyspace, filled.bounds(), Mode::Shared)?;
        if !index.is_unchanged(filled.seen, moves) {
            // The rows changed before the lock was held. Now it is: what a second read of the same part finds stays.
            let rest = filled.rest.take();
            let locked = filled.covered;
            filled = cursor.fill(index, Lsn::MAX, Some((bound_ref(&locked.0), bound_ref(&locked.1))))?;
            if filled.rest.is_none() {
                filled.rest = rest;
            }
        }
        self.saw(filled.seen.lsn)?;
        let value = |value: &Value| match value {
            Value::Bytes(bytes) => cursor.copied(ValueRef::Inline(bytes)),
            Value::Stored(stored) => cursor.copied(ValueRef::Overflow(stored.reference)),
        };
        let overlay: Vec<Overlay> = match window.take() {
            Some((mut writes, ..)) => {
                writes.retain(|key, _| contains(filled.bounds(), key));
                writes.into_iter().map(|(key, write)| (key, write.as_ref().map(value))).collect()
            }
            None if self.writes.touches(keyspace.id()) => {
                let pending = self.writes.range(keyspace.id(), filled.bounds());
                pending.map(|(key, write)| (KeyBuf::new(key), write.as_ref().map(value))).collect()
            }
            None => Vec::new(),
        };
        cursor.finish(&self.manager.core, keyspace.id(), filled, overlay)
    }

    /// Marks the present state, to return to it with [`Transaction::rollback_to`].
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        self.manager.may_call()?;
        if let Some(error) = &self.doomed {
            return Err(error.clone());
        }
        Ok(self.writes.savepoint(self.locks.id()))
    }

    /// Undoes every write since the savepoint, which can be used again. Locks stay.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.manager.may_call()?;
        if let Some(error) = &self.doomed {
            return Err(error.clone());
        }
        if self.manager.core.faults().has(Mistake::SavepointKept) {
            return Ok(());
        }
        self.writes.rollback_to(self.locks.id(), savepoint)
    }

    /// Makes the changes take effect, all of them or (with an error) none, and returns when they are as durable as
    /// asked for, and when everything that was read is durable if its writers asked for that.
    ///
    /// # Errors
    /// `Conflict` if the transaction had to give way before; `TransactionTooLarge`; device errors; after `Poisoned` it
    /// is unknown whether the changes are found when the database is opened again.
    pub fn commit(self) -> Result<()> {
        self.commit_numbered().map(|_| ())
    }

    /// As [`Transaction::commit`] with a durability of `Async`, but waits for nothing that was read either; returns the
    /// place in the log up to which it must be durable to be durable itself.
    pub fn commit_ticket(mut self) -> Result<Lsn> {
        (self.durability, self.read) = (Durability::Async, 0);
        self.commit_numbered().map(|(lsn, _)| lsn)
    }

    /// As [`Transaction::commit`]; returns its place in the serial order: the commit number of a writer, else the
    /// newest commit number when it let go of its locks. True when it changed something.
    pub(super) fn commit_numbered(mut self) -> Result<(Lsn, bool)> {
        self.manager.may_call()?;
        if let Some(error) = &self.doomed {
            return Err(error.clone());
        }
        charge(Cost::TxnCommit, 1);
        assert!(self.snapshot.is_none() || self.writes.is_empty() && self.locks.is_empty(), "a snapshot is only read");
        self.committed = true;
        if self.writes.is_empty() {
            let end = self.snapshot.as_ref().map_or_else(|| self.manager.core.log.end_lsn(), |snapshot| snapshot.lsn());
            self.locks.release();
            return self.manager.depend(self.read).map(|()| (end, false));
        }
        let result = self.apply();
        if result.is_err() {
            self.committed = false;
        }
        result
    }

    fn apply(&mut self) -> Result<(Lsn, bool)> {
        self.manager.live_for_write()?;
        self.writes.forget_savepoints();
        for space in self.writes.spaces() {
            self.manager.live_in(&space.keyspace)?;
            space.keyspace.check_changing()?;
        }
        if self.manager.core.faults().has(Mistake::SpillForgotten) {
            self.writes.forget_spilled();
        }
        if self.writes.is_spilled() {
            return self.apply_large();
        }
        match self.apply_at_once() {
            // No group takes so much: it goes in pieces.
            Err(Error::TransactionTooLarge { .. }) if self.writes.len() > 1 => self.apply_large(),
            applied => applied,
        }
    }

    /// All writes in one log group.
    fn apply_at_once(&mut self) -> Result<(Lsn, bool)> {
        let stripe = self.locks.id();
        let mut writes: SmallVec<[RowWrite<'_>; 4]> = SmallVec::with_capacity(self.writes.len());
        let spaces = self.writes.spaces();
        let mut targets: SmallVec<[Target<'_>; 2]> = SmallVec::with_capacity(spaces.len());
        for space in spaces {
            let (first, mut stored) = (writes.len(), Vec::new());
            for (key, pending) in &space.map {
                debug_assert!(
                    self.manager.core.faults().has(Mistake::SkipIntervalLock)
                        || self.locks.holds_exclusive(space.keyspace.locks(), key),
                    "what is written is locked: {key:?}"
                );
                let value = match &pending.write {
                    Some(Value::Bytes(bytes)) => Some(NewValue::Bytes(bytes)),
                    Some(Value::Stored(value)) => {
                        stored.push(&**value);
                        Some(NewValue::Stored(value.reference))
                    }
                    None => None,
                };
                writes.push(RowWrite { key, value, hint: pending.hint });
            }
            targets.push(Target { index: space.keyspace.index(), writes: first..writes.len(), stored });
        }
        if self.manager.core.faults().has(Mistake::UnlockBeforeCommit) {
            self.locks.release();
        }
        let how = How { stripe, tell: self.tell.as_deref(), piece_of: None };
        let done = commit::run(&self.manager, &targets, &writes, self.durability, how)?;
        self.locks.release();
        for at in done.untidy {
            // What stays untidy costs space only; what failed here will be met again where it matters.
            let _ = Target::of(&targets, at).index.tidy(writes[at].key);
        }
        drop((targets, writes));
        self.writes.clear();
        self.manager.acknowledge(done.end, self.durability, self.read)?;
        Ok((done.end, done.changed))
    }

    /// One log group that decides, and more that apply the writes.
    #[cold]
    fn apply_large(&mut self) -> Result<(Lsn, bool)> {
        let (spaces, writes) = self.writes.take_merged()?;
        let told = (self.locks.id(), self.tell.as_deref());
        let end = self.manager.commit_large(&spaces, writes, self.durability, told)?;
        self.locks.release();
        self.writes.clear();
        self.manager.acknowledge(end, self.durability, self.read)?;
        Ok((end, true))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.manager.leave();
        if !self.committed {
            count(&self.manager.counters.rollbacks);
        }
        if self.writes.spills() > 0 {
            self.manager.counters.spills.fetch_add(self.writes.spills(), Ordering::Relaxed);
        }
    }
}
