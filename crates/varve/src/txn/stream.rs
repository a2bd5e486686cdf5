//! Values that need not fit in memory: written from a reader, read into a writer.
//!
//! What comes from a reader goes to direct pages (`direct.rs`) as it comes; the transaction's commit syncs and links
//! them. Without a commit they are free again. So a long value passes the log by, and takes a few buffers of memory
//! however long it is.
//!
//! Invariant: the pages of a value that is stored belong to the transaction until its commit has linked them, and to
//! nobody after a rollback.

use super::retry::TxOptions;
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use super::write_set::{Found, Value};
use super::{MAX_VALUE, Manager, OpenKeyspace};
use crate::error::{Error, Result};
use crate::rows::{Copied, OverflowRef, overflow};
use crate::space::Core;
use crate::space::direct::DirectPages;
use std::io::{Read, Write};
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn};

/// Values up to this length are kept in memory until the commit, and logged.
const SHORT: u64 = 64 << 10;
/// Bytes handed to a writer at a time.
const PIECE: usize = 256 << 10;

/// A value whose pages are written, not linked.
pub(super) struct Stored {
    pub reference: OverflowRef,
    pub pages: Mutex<DirectPages>,
    /// Bytes that its list of pages takes.
    pub memory: usize,
}

impl Stored {
    /// The whole value.
    pub(super) fn read(&self, core: &Core, keyspace: KeyspaceId) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        overflow::read(core, keyspace, &self.reference, 0..self.reference.len, &mut value)?;
        Ok(value)
    }
}

fn failed(what: &str, e: &std::io::Error) -> Error {
    Error::Stream(format!("{what}: {e}"))
}

fn read_some(from: &mut dyn Read, to: &mut [u8]) -> Result<usize> {
    loop {
        match from.read(to) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other.map_err(|e| failed("the value could not be read", &e)),
        }
    }
}

fn write_all(to: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    to.write_all(bytes).map_err(|e| failed("the value could not be written on", &e))
}

/// Hands the bytes of a long value from `done` on to `to`; moves `done` with them.
fn copy(core: &Core, keyspace: KeyspaceId, value: OverflowRef, done: &mut u64, to: &mut dyn Write) -> Result<()> {
    let mut reader = overflow::Reader::new(core, keyspace, value, *done..value.len)?;
    let mut piece = Vec::with_capacity(PIECE.min(reader.left() as usize) + core.page_size());
    while reader.left() > 0 {
        piece.clear();
        while reader.left() > 0 && piece.len() < PIECE {
            reader.step(core, keyspace, &mut piece)?;
        }
        write_all(to, &piece)?;
        *done += piece.len() as u64;
    }
    Ok(())
}

/// Writes a value to pages of its own. `read` puts its next bytes into what it is given and says how many they are;
/// none: that was all.
fn store(core: &Arc<Core>, keyspace: &OpenKeyspace, read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Value> {
    store_in(core, keyspace.id(), read).map(|stored| Value::Stored(Arc::new(stored)))
}

/// The same, in the keyspace of this number.
pub(super) fn store_in(
    core: &Arc<Core>,
    keyspace: KeyspaceId,
    read: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<Stored> {
    let mut pages = DirectPages::new(core, keyspace);
    let reference = overflow::write_direct(core, &mut pages, keyspace, read)?;
    pages.flush()?;
    let memory = pages.memory();
    Ok(Stored { reference, pages: Mutex::new(pages), memory })
}

/// Writes a value that is in memory to pages of its own.
pub(super) fn store_bytes(core: &Arc<Core>, keyspace: KeyspaceId, mut bytes: &[u8]) -> Result<Arc<Stored>> {
    store_in(core, keyspace, |to| read_some(&mut bytes, to)).map(Arc::new)
}

impl Transaction {
    /// Sets the value of a key to all that comes from `from`, to its end; returns how many bytes came.
    pub fn put_from(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], from: &mut dyn Read) -> Result<u64> {
        self.lock_to_write(keyspace, key)?;
        let mut head = Vec::new();
        // An index that has no pages of their own for long values takes them as any other.
        let short = keyspace.index().max_streamed().unwrap_or(SHORT);
        from.take(short + 1).read_to_end(&mut head).map_err(|e| failed("the value could not be read", &e))?;
        if head.len() as u64 <= short {
            self.put(keyspace, key, &head)?;
            return Ok(head.len() as u64);
        }
        if keyspace.index().max_streamed().is_some() {
            return Err(Error::ValueSize { len: head.len() as u64, max: short });
        }
        let core = self.core().clone();
        let (mut all, mut len) = (head.chain(from), 0);
        let stored = store(&core, keyspace, |to| {
            let n = read_some(&mut all, to)?;
            len += n as u64;
            if len > MAX_VALUE { Err(Error::ValueSize { len, max: MAX_VALUE }) } else { Ok(n) }
        })?;
        assert!(matches!(&stored, Value::Stored(s) if s.reference.len == len), "all that was read is stored");
        self.put_value(keyspace, key, stored)?;
        Ok(len)
    }

    /// Sets the value of a key that is locked to one that is too long to be kept in memory.
    pub(super) fn put_ahead(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], value: &[u8]) -> Result<()> {
        let stored = store_bytes(self.core(), keyspace.id(), value)?;
        self.put_value(keyspace, key, Value::Stored(stored))
    }

    /// Puts the long value of a key again, into the lowest pages that are free and ripe, piece by piece. False when the
    /// key has none.
    pub(crate) fn put_again(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8]) -> Result<bool> {
        self.lock_to_write(keyspace, key)?;
        let (found, lsn) = keyspace.index().find(key, Lsn::MAX)?;
        self.saw(lsn)?;
        let Some(Copied::Long(value)) = found else { return Ok(false) };
        let core = self.core().clone();
        let mut reader = overflow::Reader::new(&core, keyspace.id(), value, 0..value.len)?;
        let (mut piece, mut done) = (Vec::with_capacity(core.page_size()), 0);
        let stored = store(&core, keyspace, |to| {
            if done == piece.len() && reader.left() > 0 {
                piece.clear();
                done = 0;
                reader.step(&core, keyspace.id(), &mut piece)?;
            }
            let n = to.len().min(piece.len() - done);
            to[..n].copy_from_slice(&piece[done..done + n]);
            done += n;
            Ok(n)
        })?;
        assert!(matches!(&stored, Value::Stored(s) if s.reference.len == value.len), "the value is as long as it was");
        self.put_value(keyspace, key, stored)?;
        Ok(true)
    }

    /// Writes the value of a key to `to`, piece by piece; returns its length, `None` if there is no such key.
    pub fn get_to(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], to: &mut dyn Write) -> Result<Option<u64>> {
        if let Some(snapshot) = self.snapshot() {
            return snapshot.get_to(keyspace, key, to);
        }
        if !self.lock_to_read(keyspace, key)? {
            return Ok(None);
        }
        let core = self.core().clone();
        let pending = self.pending(keyspace, key)?;
        let found = match pending.as_ref().map(Found::write) {
            Some(None) => return Ok(None),
            Some(Some(Value::Bytes(value))) => {
                write_all(to, value)?;
                return Ok(Some(value.len() as u64));
            }
            Some(Some(Value::Stored(stored))) => Copied::Long(stored.reference),
            None => {
                let (found, lsn) = keyspace.index().find(key, Lsn::MAX)?;
                self.saw(lsn)?;
                let Some(found) = found else { return Ok(None) };
                found
            }
        };
        match found {
            Copied::Bytes(value) => write_all(to, &value).map(|()| Some(value.len() as u64)),
            Copied::Long(value) => copy(&core, keyspace.id(), value, &mut 0, to).map(|()| Some(value.len)),
        }
    }
}

impl Snapshot {
    /// As [`Transaction::get_to`].
    pub fn get_to(&self, keyspace: &OpenKeyspace, key: &[u8], to: &mut dyn Write) -> Result<Option<u64>> {
        let (mut done, mut failed): (u64, Option<(OverflowRef, Error)>) = (0, None);
        loop {
            self.check(keyspace)?;
            let unapplied = self.unapplied(keyspace, key)?;
            let (found, lsn) = self.find(keyspace, key)?;
            let found = unapplied.unwrap_or(found);
            self.admit(lsn)?;
            let reference = match found {
                None => return Ok(None),
                Some(Copied::Bytes(value)) => {
                    write_all(to, &value)?;
                    return Ok(Some(value.len() as u64));
                }
                Some(Copied::Long(reference)) => reference,
            };
            match failed.take() {
                Some((before, error)) if before == reference => return Err(error),
                _ => {}
            }
            match copy(self.core(), keyspace.id(), reference, &mut done, to) {
                Ok(()) => return Ok(Some(reference.len)),
                Err(error @ Error::Stream(_)) => return Err(error),
                Err(error) => failed = Some((reference, error)),
            }
        }
    }
}

impl Manager {
    /// As [`Transaction::put_from`], in a transaction of its own.
    pub fn put_from(self: &Arc<Self>, keyspace: &Arc<OpenKeyspace>, key: &[u8], from: &mut dyn Read) -> Result<u64> {
        keyspace.check_key(key)?;
        loop {
            let mut tx = Transaction::begin(self, &TxOptions::default(), None)?;
            // A conflict can only be met here, before anything was read.
            match tx.lock_to_write(keyspace, key) {
                Err(e) if e.is_retryable() => varve_rt::yield_now(),
                locked => {
                    locked?;
                    let len = tx.put_from(keyspace, key, from)?;
                    return tx.commit().map(|()| len);
                }
            }
        }
    }

    /// As [`Transaction::get_to`], of the value as last committed.
    pub fn get_to(
        self: &Arc<Self>,
        keyspace: &Arc<OpenKeyspace>,
        key: &[u8],
        to: &mut dyn Write,
    ) -> Result<Option<u64>> {
        if self.read_only {
            return Snapshot::open(self)?.get_to(keyspace, key, to);
        }
        loop {
            let mut tx = Transaction::begin(self, &TxOptions::default(), None)?;
            match tx.lock_to_read(keyspace, key) {
                Err(e) if e.is_retryable() => varve_rt::yield_now(),
                locked => {
                    locked?;
                    let len = tx.get_to(keyspace, key, to)?;
                    return tx.commit().map(|()| len);
                }
            }
        }
    }
}
