//! The private writes of an open transaction: an ordered map per keyspace, with savepoints.
//!
//! A savepoint is a mark in a list of what each later write replaced; rolling back undoes that list from its end.
//! Nothing is noted while there is no savepoint, nor of a key that was written since the last one. Memory is charged to
//! [`Class::WriteSets`] in blocks once a transaction outgrows what each may have for nothing, before anything is
//! stored. When it has half of what there is for all, or others have the rest, what is in memory goes to scratch pages
//! as a sorted run (`spill.rs`), notes and all.
//!
//! Invariants: `bytes` is what all writes and notes of replaced ones cost, what is kept in memory of runs included, and
//! no more than is charged for; savepoints are in the order in which they were made, and so are the notes; without a
//! savepoint there is no note; a write in memory is newer than one in a run.

use super::OpenKeyspace;
use super::key::{Bounds, KeyBuf};
use super::key_map::KeyMap;
use super::spill::{self, Merged, Spill, Window};
use super::stream::Stored;
use crate::budget::{Budget, Class};
use crate::error::{Error, Result};
use crate::rows::Hint;
use crate::space::Core;
use smallvec::SmallVec;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::KeyspaceId;

/// Places of keys that are remembered, of those that were read last.
const PLACES: usize = 4;
/// Bytes that each transaction has without a charge.
const FREE: u64 = 2048;
const BLOCK: u64 = 16 * 1024;
/// Fewer bytes are not worth a run.
const LEAST_SPILLED: u64 = 8 * 1024;
/// Part of the budget that the index of a run takes at most.
const INDEX_PART: u64 = 64;
/// The same of the run that is committed, into which others look while it is applied.
const MERGED_INDEX_PART: u64 = 8;

/// A value to be.
#[derive(Clone)]
pub(super) enum Value {
    Bytes(Box<[u8]>),
    /// Written ahead of the commit.
    Stored(Arc<Stored>),
}

/// A pending write: the new value, or `None` for a deletion.
pub(super) type Write = Option<Value>;

/// A pending write, and where it will go.
pub(super) struct Pending {
    pub write: Write,
    /// The newest savepoint when it was written; 0: none.
    mark: u64,
    /// Where the key was when the transaction read it for the write.
    pub hint: Option<Hint>,
}

/// Writes to one keyspace.
pub(super) struct SpaceWrites {
    pub keyspace: Arc<OpenKeyspace>,
    pub map: KeyMap<Pending>,
}

struct Undo {
    space: usize,
    key: KeyBuf,
    /// What the write replaced: `None` when the key was not in the write set.
    old: Option<Pending>,
}

/// The pending write of a key.
pub(super) enum Found<'w> {
    Here(&'w Write),
    Spilled(Write),
}

impl Found<'_> {
    pub fn write(&self) -> &Write {
        match self {
            Found::Here(write) => write,
            Found::Spilled(write) => write,
        }
    }
}

/// A point to which a transaction can be rolled back. Made by [`crate::Transaction::savepoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    serial: u64,
}

/// The writes of one transaction.
pub(super) struct WriteSet {
    spill: Spill,
    /// Runs written.
    spills: u64,
    most_in_memory: u64,
    spaces: SmallVec<[SpaceWrites; 1]>,
    undo: Vec<Undo>,
    /// Places of the keys that were read last for a write, at most [`PLACES`], and how many were noted.
    found: Vec<(KeyspaceId, KeyBuf, Hint)>,
    noted: usize,
    /// Serial number and length of `undo` of each savepoint, oldest first.
    marks: Vec<(u64, usize)>,
    serial: u64,
    bytes: u64,
    charged: u64,
}

/// Bytes of a note of what a write replaced, that apart.
fn note(key: &[u8]) -> u64 {
    (size_of::<Undo>() + KeyBuf::heap_bytes_of(key)) as u64
}

fn cost(key: &[u8], value: usize) -> u64 {
    let map = (size_of::<KeyBuf>() + size_of::<Pending>()) * 3 / 2;
    (map + KeyBuf::heap_bytes_of(key) + value) as u64
}

/// Bytes of memory that a pending write holds.
fn held(write: &Write) -> usize {
    match write {
        Some(Value::Bytes(bytes)) => bytes.len(),
        // Its list of pages, those that were set aside and not needed, and itself.
        Some(Value::Stored(stored)) => 2048 + stored.memory,
        None => 0,
    }
}

impl WriteSet {
    pub fn new(core: &Arc<Core>) -> WriteSet {
        let budget = &core.budget;
        WriteSet {
            spill: Spill::new(core, budget.limit(Class::WriteSets) / INDEX_PART),
            spills: 0,
            most_in_memory: budget.limit(Class::WriteSets) / 4,
            spaces: SmallVec::new(),
            undo: Vec::new(),
            found: Vec::new(),
            noted: 0,
            marks: Vec::new(),
            serial: 0,
            bytes: 0,
            charged: 0,
        }
    }

    #[inline]
    fn budget(&self) -> &Budget {
        &self.spill.core().budget
    }

    pub fn is_empty(&self) -> bool {
        self.spill.is_empty() && self.spaces.iter().all(|s| s.map.is_empty())
    }

    /// Keys written; some may be counted more than once when they were spilled.
    pub fn len(&self) -> usize {
        self.spaces.iter().map(|s| s.map.len()).sum::<usize>() + self.spill.len() as usize
    }

    /// Whether some of it is not in memory.
    pub fn is_spilled(&self) -> bool {
        !self.spill.is_empty()
    }

    /// Runs written so far.
    pub fn spills(&self) -> u64 {
        self.spills
    }

    /// Bytes of the longest value that is kept in memory.
    #[inline]
    pub fn most_in_memory(&self) -> u64 {
        self.most_in_memory
    }

    /// What a broken build does.
    pub fn forget_spilled(&mut self) {
        assert!(self.bytes >= self.spill.memory(), "what was spilled was counted");
        self.bytes -= self.spill.memory();
        self.spill.clear();
    }

    /// All writes as one run, and the keyspaces that they are of; there are none afterwards.
    pub fn take_merged(&mut self) -> Result<(Vec<Arc<OpenKeyspace>>, Merged)> {
        assert!(self.marks.is_empty(), "savepoints end before a commit");
        self.spill()?;
        assert!(self.is_spilled(), "a commit in pieces has writes");
        let most_index = self.budget().limit(Class::WriteSets) / MERGED_INDEX_PART;
        let none = Spill::new(self.spill.core(), self.budget().limit(Class::WriteSets) / INDEX_PART);
        let merged = std::mem::replace(&mut self.spill, none).into_merged(most_index)?;
        let spaces = self.spaces.iter().map(|space| space.keyspace.clone()).collect();
        // What was charged stays charged until the write set is dropped, for the run's index.
        self.spaces.clear();
        self.bytes = 0;
        Ok((spaces, merged))
    }

    /// Writes by keyspace, in the order of their ids.
    pub fn spaces(&mut self) -> &[SpaceWrites] {
        assert!(self.marks.is_empty(), "undo refers to keyspaces by place: end the savepoints first");
        debug_assert!(self.is_sound());
        self.spaces.sort_by_key(|s| s.keyspace.id());
        debug_assert!(
            self.spaces.is_sorted_by(|a, b| a.keyspace.id() < b.keyspace.id()),
            "the writes to a keyspace are in one place"
        );
        &self.spaces
    }

    /// Whether what is kept agrees with itself; looks at all of it.
    fn is_sound(&self) -> bool {
        let writes = self.spaces.iter().flat_map(|s| &s.map).map(|(key, pending)| cost(key, held(&pending.write)));
        let old = |undo: &Undo| undo.old.as_ref().map_or(0, |old| cost(&undo.key, held(&old.write)));
        let notes = self.undo.iter().map(|undo| note(&undo.key) + old(undo));
        let in_order = self.marks.windows(2).all(|m| m[0].0 < m[1].0 && m[0].1 <= m[1].1);
        let noted = self.marks.last().is_none_or(|m| m.0 <= self.serial && m.1 <= self.undo.len());
        let mine = !self.marks.is_empty() || self.undo.is_empty();
        in_order && noted && mine && self.bytes == writes.sum::<u64>() + notes.sum::<u64>() + self.spill.memory()
    }

    fn space(&self, id: KeyspaceId) -> Option<&SpaceWrites> {
        self.spaces.iter().find(|s| s.keyspace.id() == id)
    }

    /// The pending write of a key.
    #[inline]
    pub fn get(&self, id: KeyspaceId, key: &[u8]) -> Result<Option<Found<'_>>> {
        if self.spaces.is_empty() {
            return Ok(None);
        }
        match self.space(id).and_then(|space| space.map.get(key)) {
            Some(pending) => Ok(Some(Found::Here(&pending.write))),
            None if self.spill.is_empty() => Ok(None),
            None => Ok(self.spill.get(id, key)?.map(Found::Spilled)),
        }
    }

    /// Whether the keyspace has pending writes.
    pub fn touches(&self, id: KeyspaceId) -> bool {
        self.space(id).is_some_and(|s| !s.map.is_empty()) || self.spill.touches(id)
    }

    /// The pending writes of a range that are in memory, in key order. They are all, unless some are spilled.
    pub fn range(&self, id: KeyspaceId, range: Bounds<'_>) -> impl DoubleEndedIterator<Item = (&[u8], &Write)> {
        let map = self.space(id).map(|s| s.map.range(range));
        map.into_iter().flatten().map(|(key, pending)| (&**key, &pending.write))
    }

    /// The pending writes at one end of a range, wherever they are: as many as fit in memory well.
    pub fn window(&self, id: KeyspaceId, range: Bounds<'_>, forward: bool) -> Result<Window> {
        let mut window = self.spill.window(id, range, forward)?;
        let within = match (&window.cut, forward) {
            (None, _) => range,
            (Some(cut), true) => (range.0, Bound::Excluded(&**cut)),
            (Some(cut), false) => (Bound::Included(&**cut), range.1),
        };
        let newer: Vec<_> = self.range(id, within).map(|(key, write)| (KeyBuf::new(key), write.clone())).collect();
        window.writes.extend(newer);
        Ok(window)
    }

    /// Notes where a key was that will probably be written.
    #[inline]
    pub fn note_place(&mut self, id: KeyspaceId, key: &[u8], hint: Hint) {
        let found = (id, KeyBuf::new(key), hint);
        match self.found.get_mut(self.noted % PLACES) {
            Some(oldest) => *oldest = found,
            None => self.found.push(found),
        }
        self.noted += 1;
    }

    /// Where a key was, if it is remembered.
    fn place(&self, id: KeyspaceId, key: &[u8]) -> Option<Hint> {
        self.found.iter().find(|f| f.0 == id && *f.1 == *key).map(|f| f.2)
    }

    /// Adds a write, in place of an earlier one of the same key.
    ///
    /// # Errors
    /// `TransactionTooLarge` when the write alone would fill the budget of all write sets; `OverBudget` when all open
    /// transactions together do, each with less than is worth a run; `NoSpace` when the device has no room for a run.
    /// The write set is as before.
    pub fn put(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.reserve(key, value.map_or(0, <[u8]>::len))?;
        self.insert(keyspace, key, value.map(|value| Value::Bytes(value.into())));
        Ok(())
    }

    /// As [`WriteSet::put`], of a value that was made already.
    pub fn put_value(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: Value) -> Result<()> {
        let write = Some(value);
        self.reserve(key, held(&write))?;
        self.insert(keyspace, key, write);
        Ok(())
    }

    /// Makes sure of memory for a write: nothing is copied before there is room for it.
    fn reserve(&mut self, key: &[u8], value: usize) -> Result<()> {
        let more = cost(key, value) + if self.marks.is_empty() { 0 } else { note(key) };
        let half = self.budget().limit(Class::WriteSets) / 2;
        if self.bytes + more > half && self.is_worth_a_run() {
            self.spill()?;
        }
        let charged = match self.charge(self.bytes + more) {
            Err(Error::OverBudget { .. } | Error::TransactionTooLarge { .. }) if self.is_worth_a_run() => {
                self.spill()?;
                self.charge(self.bytes + more)
            }
            charged => charged,
        };
        charged?;
        self.bytes += more;
        assert!(self.bytes <= FREE + self.charged, "what is stored was charged for");
        Ok(())
    }

    fn is_worth_a_run(&self) -> bool {
        self.bytes >= self.spill.memory() + LEAST_SPILLED
    }

    /// Moves all that is in memory to a run.
    ///
    /// # Errors
    /// The device has no room for it, or failed: the write set is as before.
    pub fn spill(&mut self) -> Result<()> {
        let mut versions: Vec<(KeyBuf, u64, &Write)> = Vec::new();
        for space in &self.spaces {
            let id = space.keyspace.id();
            versions.extend(space.map.iter().map(|(key, p)| (spill::path(id, key), p.mark, &p.write)));
        }
        for Undo { space, key, old } in self.undo.iter().rev() {
            let id = self.spaces[*space].keyspace.id();
            versions.extend(old.iter().map(|old| (spill::path(id, key), old.mark, &old.write)));
        }
        if versions.is_empty() {
            return Ok(());
        }
        debug_assert!(self.is_sound(), "what is spilled was counted");
        // What was in the map, or noted later, comes first of its path: it is newer.
        versions.sort_by(|a, b| a.0.cmp(&b.0));
        let marks: Vec<u64> = self.marks.iter().map(|m| m.0).collect();
        let spaces = &self.spaces;
        let apart =
            |id| spaces.iter().any(|space| space.keyspace.id() == id && space.keyspace.index().keeps_long_apart());
        self.spill.add(versions.into_iter(), &marks, apart)?;
        self.spills += 1;
        self.spaces.iter_mut().for_each(|space| space.map.clear());
        self.undo.clear();
        self.marks.iter_mut().for_each(|mark| mark.1 = 0);
        (self.found, self.noted) = (Vec::new(), 0);
        self.count_runs();
        Ok(())
    }

    /// Nothing is in memory but what runs need.
    fn count_runs(&mut self) {
        self.bytes = self.spill.memory();
        assert!(self.undo.is_empty(), "notes go to the run with what they are of");
        let needed = self.bytes.saturating_sub(FREE);
        if needed <= self.charged {
            let keep = needed.next_multiple_of(BLOCK).min(self.charged);
            self.budget().release(Class::WriteSets, self.charged - keep);
            self.charged = keep;
        }
    }

    fn insert(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], write: Write) {
        let at = self.spaces.iter().position(|s| s.keyspace.id() == keyspace.id()).unwrap_or_else(|| {
            self.spaces.push(SpaceWrites { keyspace: keyspace.clone(), map: KeyMap::new() });
            self.spaces.len() - 1
        });
        let hint = self.place(keyspace.id(), key);
        let mark = self.marks.last().map_or(0, |m| m.0);
        let pending = Pending { write, mark, hint };
        let old = self.spaces[at].map.insert(KeyBuf::new(key), pending);
        match old {
            // Nobody goes back to it: there is no savepoint, or it was written after the last one.
            Some(old) if old.mark >= mark => {
                let gone = cost(key, held(&old.write)) + if mark > 0 { note(key) } else { 0 };
                debug_assert!(self.bytes >= gone, "a write that is replaced was counted");
                self.bytes -= gone;
            }
            old if mark > 0 => self.undo.push(Undo { space: at, key: KeyBuf::new(key), old }),
            _ => {}
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        if bytes <= FREE + self.charged {
            return Ok(());
        }
        let limit = self.budget().limit(Class::WriteSets);
        if bytes > limit {
            return Err(Error::TransactionTooLarge { what: "write set", needed: bytes, limit });
        }
        let more = (bytes - FREE - self.charged).next_multiple_of(BLOCK).min(limit - self.charged);
        self.budget().charge(Class::WriteSets, more)?;
        self.charged += more;
        Ok(())
    }

    /// Bytes charged to the budget for it.
    pub fn charged(&self) -> u64 {
        debug_assert!(self.bytes <= FREE + self.charged, "what is stored was charged for");
        self.charged
    }

    /// Marks the present state.
    pub fn savepoint(&mut self, transaction: u64) -> Savepoint {
        self.serial += 1;
        self.marks.push((self.serial, self.undo.len()));
        Savepoint { transaction, serial: self.serial }
    }

    /// Undoes every write after the savepoint, which stays valid; later ones do not.
    pub fn rollback_to(&mut self, transaction: u64, savepoint: Savepoint) -> Result<()> {
        let known = self.marks.iter().position(|m| m.0 == savepoint.serial);
        let Some(at) = known.filter(|_| savepoint.transaction == transaction) else {
            return Err(Error::Invalid(
                "this savepoint is of another transaction, or an earlier one was rolled back to since".into(),
            ));
        };
        let mark = self.marks[at].1;
        self.marks.truncate(at + 1);
        for Undo { space, key, old } in self.undo.drain(mark..).rev() {
            let map = &mut self.spaces[space].map;
            let undone = map.get(&key).expect("an undone write is in the write set");
            let gone = cost(&key, held(&undone.write)) + note(&key);
            assert!(self.bytes >= gone, "a write that is undone was counted");
            self.bytes -= gone;
            match old {
                Some(old) => drop(map.insert(key, old)),
                None => drop(map.remove(&key)),
            }
        }
        let before = self.spill.memory();
        self.spill.roll_back(savepoint.serial);
        assert!(
            self.spill.memory() <= before && before <= self.bytes,
            "what was spilled was counted, and grows no more"
        );
        self.bytes -= before - self.spill.memory();
        debug_assert!(self.is_sound());
        Ok(())
    }

    /// Forgets a savepoint, keeping the writes after it.
    pub fn release(&mut self, savepoint: Savepoint) {
        let Some(at) = self.marks.iter().position(|m| m.0 == savepoint.serial) else { return };
        let (_, noted) = self.marks.remove(at);
        match self.marks.last() {
            None => self.forget_savepoints(),
            // What was written after the savepoint before it is what that one goes back to no more.
            Some(&(before, _)) if at == self.marks.len() => {
                for undo in self.undo.split_off(noted) {
                    if undo.old.as_ref().is_none_or(|old| old.mark < before) {
                        self.undo.push(undo);
                    } else {
                        self.forget(undo);
                    }
                }
            }
            Some(_) => {}
        }
    }

    /// Drops what nobody goes back to.
    fn forget(&mut self, undo: Undo) {
        let old = undo.old.map_or(0, |old| cost(&undo.key, held(&old.write)));
        assert!(self.bytes >= note(&undo.key) + old, "what is forgotten was counted");
        self.bytes -= note(&undo.key) + old;
    }

    /// Forgets the savepoints, keeping the writes.
    pub fn forget_savepoints(&mut self) {
        self.marks.clear();
        std::mem::take(&mut self.undo).into_iter().for_each(|undo| self.forget(undo));
    }

    /// Drops all writes and savepoints.
    pub fn clear(&mut self) {
        self.forget_savepoints();
        self.spaces.clear();
        self.spill.clear();
        self.found.clear();
        self.noted = 0;
        let charged = std::mem::take(&mut self.charged);
        self.budget().release(Class::WriteSets, charged);
        self.bytes = 0;
    }
}

impl Drop for WriteSet {
    fn drop(&mut self) {
        if self.charged > 0 {
            self.budget().release(Class::WriteSets, self.charged);
        }
    }
}
