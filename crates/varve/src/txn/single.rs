//! Single operations: one-operation transactions by the shortest way.
//!
//! A read of one key needs no lock: under the leaf's latch it sees the last commit of that key, and that is a serial order.
//! A write takes the key's lock (it may meet a transaction that read the key or scanned over it), then one descent, one latch,
//! one log group.

use super::commit::{self, New, Op, Short, ShortEnd};
use super::read::{is_there, read};
use super::transaction::{check_key, check_value, is_too_long};
use crate::db::{Durability, Keyspace};
use crate::error::Result;
use varve_rt::atomic::AtomicU64;
use varve_rt::{Cost, charge};

impl Keyspace {
    /// Reads one key and hands its value (`None`: no such key) to `f`. `f` may run under a latch: it must not use the database.
    #[inline]
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        charge(Cost::TxnCall, 1);
        self.live()?;
        let (result, lsn) = read(&self.db.core, self.tree(), key, f)?;
        self.db.txns.check_read(lsn)?;
        self.db.txns.depend(lsn)?;
        Ok(result)
    }

    /// The value of a key, as last committed; `None` if there is none.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec))
    }

    /// Puts the value of a key into `into`, instead of what is there; false (and `into` empty) if there is none.
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        self.get_with(key, |value| {
            into.extend_from_slice(value.unwrap_or_default());
            value.is_some()
        })
    }

    /// Whether a key is there.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        charge(Cost::TxnCall, 1);
        self.live()?;
        let (there, lsn) = is_there(self.tree(), key)?;
        self.db.txns.check_read(lsn)?;
        self.db.txns.depend(lsn)?;
        Ok(there)
    }

    /// Sets the value of a key, in a transaction of its own with the database's default durability.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.db.txns.durability)
    }

    /// Sets the value of a key, in a transaction of its own.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_value(value)?;
        self.write(key, Some(value), durability, None).map(|_| ())
    }

    /// As [`Keyspace::put_with`] (`None`: as [`Keyspace::delete_with`]); tells its commit number as
    /// [`crate::Transaction::tell_commit_number`] does. A write that changes nothing has none.
    #[doc(hidden)]
    pub fn write_telling(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        tell: &AtomicU64,
    ) -> Result<bool> {
        check_value(value.unwrap_or_default())?;
        self.write(key, value, durability, Some(tell))
    }

    /// Removes a key, in a transaction of its own with the database's default durability; whether it was there.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.delete_with(key, self.db.txns.durability)
    }

    /// Removes a key, in a transaction of its own; whether it was there.
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<bool> {
        self.write(key, None, durability, None)
    }

    /// True when the key was there.
    fn write(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        tell: Option<&AtomicU64>,
    ) -> Result<bool> {
        charge(Cost::TxnCall, 1);
        charge(Cost::TxnCommit, 1);
        self.db.live_for_write()?;
        self.live()?;
        if value.is_none() && is_too_long(self, key) {
            return Ok(false);
        }
        check_key(self, key)?;
        let (manager, tree) = (&self.db.txns, self.tree());
        let mut attempt = 0;
        let lock = loop {
            // One key cannot deadlock by itself, but a scan that waits for it may wait for what this waits for.
            match self.locks().lock_single(key) {
                Err(error) if error.is_retryable() && attempt < 100 => {
                    attempt += 1;
                    varve_rt::yield_now();
                }
                lock => break lock?,
            }
        };
        let stripe = lock.id();
        let short =
            Short { manager, op: Op { tree, key, value: value.map(New::Bytes), leaf: None }, durability, stripe, tell };
        let (end, existed, saw, shrunk) = match short.run()? {
            ShortEnd::Done { end, existed, read, shrunk } => (end, existed, read, shrunk),
            ShortEnd::Long => {
                let (existed, saw) = match value {
                    Some(_) => (true, 0),
                    None => is_there(tree, key)?,
                };
                let done = commit::run(
                    manager,
                    &[Op { tree, key, value: value.map(New::Bytes), leaf: None }],
                    durability,
                    stripe,
                    tell,
                )?;
                (done.end, existed, saw, !done.shrunk.is_empty())
            }
        };
        drop(lock);
        if shrunk {
            // A leaf that stays underfull costs space only.
            let _ = tree.tidy(key);
        }
        // A deletion tells whether the key was there: it has read the commit that put it there, or removed it.
        manager.acknowledge(end, durability, if value.is_none() { saw } else { 0 })?;
        Ok(existed)
    }
}
