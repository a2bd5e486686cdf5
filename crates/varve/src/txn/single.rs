//! Single operations: one-operation transactions by the shortest way.
//!
//! A read of one key needs no lock: under a latch it sees the last commit of that key, and that is a serial
//! order. A write takes the key's lock (it may meet a transaction that read the key or scanned over it), then one
//! descent, one latch, one log group.

use super::commit::{self, How, Short, ShortEnd, Target};
use super::keyspace::check_value;
use super::{Durability, Manager, OpenKeyspace};
use crate::error::Result;
use crate::rows::{NewValue, Write};
use varve_rt::atomic::AtomicU64;
use varve_rt::{Cost, charge};
use varve_volume::Lsn;

impl Manager {
    /// Reads one key and hands its value (`None`: no such key) to `f`, maybe under a latch.
    #[inline]
    pub fn get_with<R>(&self, keyspace: &OpenKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let (result, lsn) = self.look(keyspace, key, f)?;
        self.depend(lsn)?;
        Ok(result)
    }

    /// The same, with the LSN of what was read: the caller must not show it before that is [durable](Self::depend).
    #[inline]
    pub(super) fn look<R>(
        &self,
        keyspace: &OpenKeyspace,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<(R, Lsn)> {
        charge(Cost::TxnCall, 1);
        self.live_in(keyspace)?;
        if self.large.is_active()
            && let Some((value, commit)) = self.unapplied_value(Lsn::MAX, keyspace.id(), key)?
        {
            self.check_read(commit)?;
            return Ok((f(value.as_deref()), commit));
        }
        let (result, lsn) = keyspace.index().read(key, Lsn::MAX, f)?;
        self.check_read(lsn)?;
        Ok((result, lsn))
    }

    /// Whether a key is there.
    pub fn contains(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<bool> {
        charge(Cost::TxnCall, 1);
        self.live_in(keyspace)?;
        if self.large.is_active()
            && let Some((value, commit)) = self.unapplied(Lsn::MAX, keyspace.id(), key)?
        {
            self.check_read(commit)?;
            self.depend(commit)?;
            return Ok(value.is_some());
        }
        let (there, lsn) = keyspace.index().contains(key, Lsn::MAX)?;
        self.check_read(lsn)?;
        self.depend(lsn)?;
        Ok(there)
    }

    /// Sets the value of a key.
    pub fn put(&self, keyspace: &OpenKeyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_value(value)?;
        self.write(keyspace, key, Some(value), durability, None).map(|_| ())
    }

    /// As [`Manager::put`] (`None`: as [`Manager::delete`]); tells its commit number.
    pub fn write_telling(
        &self,
        keyspace: &OpenKeyspace,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        tell: &AtomicU64,
    ) -> Result<bool> {
        check_value(value.unwrap_or_default())?;
        self.write(keyspace, key, value, durability, Some(tell))
    }

    /// Removes a key; whether it was there.
    pub fn delete(&self, keyspace: &OpenKeyspace, key: &[u8], durability: Durability) -> Result<bool> {
        self.write(keyspace, key, None, durability, None)
    }

    /// True when the key was there.
    fn write(
        &self,
        keyspace: &OpenKeyspace,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        tell: Option<&AtomicU64>,
    ) -> Result<bool> {
        charge(Cost::TxnCall, 1);
        charge(Cost::TxnCommit, 1);
        self.live_for_write()?;
        self.live_in(keyspace)?;
        keyspace.check_changing()?;
        if value.is_none() && keyspace.is_too_long(key) {
            return Ok(false);
        }
        keyspace.check_key(key)?;
        let index = keyspace.index();
        let mut attempt = 0;
        let lock = loop {
            // One key cannot deadlock by itself, but a scan that waits for it may wait for what this waits for.
            match keyspace.locks().lock_single(key) {
                Err(error) if error.is_retryable() && attempt < 100 => {
                    attempt += 1;
                    varve_rt::yield_now();
                }
                lock => break lock?,
            }
        };
        // It may have become read-only meanwhile: who makes it so holds a lock on all of it.
        keyspace.check_changing()?;
        let stripe = lock.id();
        let write = Write { key, value: value.map(NewValue::Bytes), hint: None };
        let short = Short { manager: self, index, write: &write, durability, stripe, tell };
        let (end, existed, saw, untidy) = match short.run()? {
            ShortEnd::Done { end, existed, read, untidy } => (end, existed, read, untidy),
            ShortEnd::Long => {
                let (existed, saw) = match value {
                    Some(_) => (true, 0),
                    None => index.contains(key, Lsn::MAX)?,
                };
                let target = Target { index, writes: 0..1, stored: Vec::new() };
                let done = commit::run(self, &[target], &[write], durability, How { stripe, tell, piece_of: None })?;
                (done.end, existed, saw, !done.untidy.is_empty())
            }
        };
        drop(lock);
        if untidy {
            // What stays untidy costs space only.
            let _ = index.tidy(key);
        }
        // A deletion tells whether the key was there: it has read the commit that put it there, or removed it.
        self.acknowledge(end, durability, if value.is_none() { saw } else { 0 })?;
        Ok(existed)
    }
}
