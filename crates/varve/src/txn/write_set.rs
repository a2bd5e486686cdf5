//! The private writes of an open transaction: an ordered map per keyspace, with savepoints.
//!
//! A savepoint is a mark in a list of what each later write replaced; rolling back undoes that list from its end.
//! Nothing is noted while there is no savepoint, nor of a key that was written since the last one. Memory is charged to
//! [`Class::WriteSets`] in blocks once a transaction outgrows what each may have for nothing, before anything is
//! stored.
//!
//! Invariants: `bytes` is what all writes and notes of replaced ones cost, and no more than is charged for; savepoints
//! are in the order in which they were made, and so are the notes; without a savepoint there is no note.

use super::OpenKeyspace;
use super::key::{Bounds, KeyBuf};
use super::stream::Stored;
use crate::budget::{Budget, Class};
use crate::error::{Error, Result};
use crate::rows::Hint;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use varve_volume::KeyspaceId;

/// Bytes that each transaction has without a charge.
const FREE: u64 = 2048;
const BLOCK: u64 = 16 * 1024;

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
    pub map: BTreeMap<KeyBuf, Pending>,
}

struct Undo {
    space: usize,
    key: KeyBuf,
    /// What the write replaced: `None` when the key was not in the write set.
    old: Option<Pending>,
}

/// A point to which a transaction can be rolled back. Made by [`crate::Transaction::savepoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    serial: u64,
}

/// The writes of one transaction.
pub(super) struct WriteSet {
    budget: Arc<Budget>,
    spaces: Vec<SpaceWrites>,
    undo: Vec<Undo>,
    /// Places of keys read for a write, one per keyspace.
    found: Vec<(KeyspaceId, KeyBuf, Hint)>,
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
    pub fn new(budget: Arc<Budget>) -> WriteSet {
        WriteSet {
            budget,
            spaces: Vec::new(),
            undo: Vec::new(),
            found: Vec::new(),
            marks: Vec::new(),
            serial: 0,
            bytes: 0,
            charged: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.spaces.iter().all(|s| s.map.is_empty())
    }

    /// Keys written.
    pub fn len(&self) -> usize {
        self.spaces.iter().map(|s| s.map.len()).sum()
    }

    /// Writes by keyspace, in the order of their ids.
    pub fn spaces(&mut self) -> &[SpaceWrites] {
        assert!(self.marks.is_empty(), "undo refers to keyspaces by place: end the savepoints first");
        debug_assert!(self.is_sound());
        self.spaces.sort_by_key(|s| s.keyspace.id());
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
        in_order && noted && mine && self.bytes == writes.sum::<u64>() + notes.sum::<u64>()
    }

    fn space(&self, id: KeyspaceId) -> Option<&SpaceWrites> {
        self.spaces.iter().find(|s| s.keyspace.id() == id)
    }

    /// The pending write of a key.
    #[inline]
    pub fn get(&self, id: KeyspaceId, key: &[u8]) -> Option<&Write> {
        if self.spaces.is_empty() {
            return None;
        }
        self.space(id)?.map.get(key).map(|pending| &pending.write)
    }

    /// Whether the keyspace has pending writes.
    pub fn touches(&self, id: KeyspaceId) -> bool {
        self.space(id).is_some_and(|s| !s.map.is_empty())
    }

    /// The pending writes of a range, in key order.
    pub fn range(&self, id: KeyspaceId, range: Bounds<'_>) -> impl DoubleEndedIterator<Item = (&[u8], &Write)> {
        let map = self.space(id).map(|s| s.map.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range));
        map.into_iter().flatten().map(|(key, pending)| (&**key, &pending.write))
    }

    /// Notes where a key was that will probably be written; the last one of each keyspace is remembered.
    #[inline]
    pub fn note_place(&mut self, id: KeyspaceId, key: &[u8], hint: Hint) {
        let found = (id, KeyBuf::new(key), hint);
        match self.found.iter_mut().find(|f| f.0 == id) {
            Some(place) => *place = found,
            None => self.found.push(found),
        }
    }

    /// Adds a write, in place of an earlier one of the same key.
    ///
    /// # Errors
    /// `TransactionTooLarge` when this transaction alone would fill the budget of all write sets; `OverBudget` when all
    /// open transactions together do. The write set is as before.
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
        let mut bytes = self.bytes + cost(key, value);
        if !self.marks.is_empty() {
            bytes += note(key);
        }
        self.charge(bytes)?;
        self.bytes = bytes;
        assert!(self.bytes <= FREE + self.charged, "what is stored was charged for");
        Ok(())
    }

    fn insert(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], write: Write) {
        let at = self.spaces.iter().position(|s| s.keyspace.id() == keyspace.id()).unwrap_or_else(|| {
            self.spaces.push(SpaceWrites { keyspace: keyspace.clone(), map: BTreeMap::new() });
            self.spaces.len() - 1
        });
        let found = self.found.iter().find(|f| f.0 == keyspace.id()).filter(|f| *f.1 == *key);
        let mark = self.marks.last().map_or(0, |m| m.0);
        let pending = Pending { write, mark, hint: found.map(|f| f.2) };
        let old = self.spaces[at].map.insert(KeyBuf::new(key), pending);
        match old {
            // Nobody goes back to it: there is no savepoint, or it was written after the last one.
            Some(old) if old.mark >= mark => {
                self.bytes -= cost(key, held(&old.write)) + if mark > 0 { note(key) } else { 0 };
            }
            old if mark > 0 => self.undo.push(Undo { space: at, key: KeyBuf::new(key), old }),
            _ => {}
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        if bytes <= FREE + self.charged {
            return Ok(());
        }
        let limit = self.budget.limit(Class::WriteSets);
        if bytes > limit {
            return Err(Error::TransactionTooLarge { what: "write set", needed: bytes, limit });
        }
        let more = (bytes - FREE - self.charged).next_multiple_of(BLOCK).min(limit - self.charged);
        self.budget.charge(Class::WriteSets, more)?;
        self.charged += more;
        Ok(())
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
            self.bytes -= cost(&key, held(&undone.write)) + note(&key);
            match old {
                Some(old) => drop(map.insert(key, old)),
                None => drop(map.remove(&key)),
            }
        }
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
        self.budget.release(Class::WriteSets, std::mem::take(&mut self.charged));
        self.bytes = 0;
    }
}

impl Drop for WriteSet {
    fn drop(&mut self) {
        if self.charged > 0 {
            self.budget.release(Class::WriteSets, self.charged);
        }
    }
}
