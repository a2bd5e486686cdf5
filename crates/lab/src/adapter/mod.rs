//! The narrow view that workloads have of a transactional key-value store. A workload is written once over
//! [`Store`] and runs on Varve, on the in-memory reference store, and on the engines it is compared with.
//!
//! Invariants that every adapter keeps:
//! - keys of a keyspace are ordered as byte strings;
//! - a transaction reads its own writes, in `get` and in `scan`;
//! - `commit` that returns `Ok` has taken effect; an error for which [`Error::maybe_committed`] is false has not;
//! - a transaction that is dropped without `commit` changes nothing.
//!
//! Values are lent to a closure, so that an adapter can hand out bytes of its own page without a copy. Dispatch is
//! static: nothing here costs a virtual call in a speed comparison.

pub mod mem;
pub mod varve;

use std::ops::ControlFlow;

use crate::error::{Error, Result};

/// What a transaction is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum TxMode {
    /// Reads and writes, serializable.
    ReadWrite,
    /// Reads only, serializable, and current: sees every transaction whose commit returned before it began.
    ReadOnly,
    /// Reads only, as of one commit number: a consistent state that may lie in the past.
    Snapshot,
}

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum Durability {
    /// After the log is on the medium: survives a power cut.
    #[default]
    Sync,
    /// At once; on the medium after a bounded delay.
    Async,
    /// At once; on the medium whenever the store writes it for reasons of its own.
    None,
}

/// Order of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Keys from `from` (inclusive) to `to` (exclusive; `None`: to the end of the keyspace).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// First key of the range.
    pub from: &'a [u8],
    /// First key past the range.
    pub to: Option<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// The whole keyspace.
    pub const ALL: KeyRange<'static> = KeyRange { from: &[], to: None };

    /// Keys `from <= key < to`.
    pub fn new(from: &'a [u8], to: &'a [u8]) -> KeyRange<'a> {
        KeyRange { from, to: Some(to) }
    }

    /// Keys `from <= key`.
    pub fn starting_at(from: &'a [u8]) -> KeyRange<'a> {
        KeyRange { from, to: None }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from && self.to.is_none_or(|to| key < to)
    }

    /// Whether no key can lie in the range.
    pub fn is_empty(&self) -> bool {
        self.to.is_some_and(|to| to <= self.from)
    }
}

/// A store of ordered keyspaces with transactions over all of them.
pub trait Store: Send + Sync + 'static {
    /// Handle of a keyspace.
    type Keyspace: Clone + Send + Sync + 'static;
    /// An open transaction. It stays on the thread that began it.
    type Txn<'a>: Txn<Keyspace = Self::Keyspace>
    where
        Self: 'a;

    /// Name of the engine, for tables.
    fn name(&self) -> &str;

    /// Opens the keyspace of this name, creating it if there is none.
    fn keyspace(&self, name: &str) -> Result<Self::Keyspace>;

    /// Opens the keyspace of this name; `None` if there is none.
    fn find_keyspace(&self, name: &str) -> Result<Option<Self::Keyspace>>;

    /// Begins a transaction. `durability` is that of its commit.
    fn begin(&self, mode: TxMode, durability: Durability) -> Result<Self::Txn<'_>>;

    /// Reads one key by itself and lends its value (`None`: no such key) to `f`: the store's shortest way.
    fn get_one<R>(&self, ks: &Self::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let mut tx = self.begin(TxMode::ReadOnly, Durability::None)?;
        let value = tx.get(ks, key, f)?;
        tx.commit()?;
        Ok(value)
    }

    /// Sets the value of one key by itself: the store's shortest way.
    fn put_one(&self, ks: &Self::Keyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let mut tx = self.begin(TxMode::ReadWrite, durability)?;
        tx.put(ks, key, value)?;
        tx.commit()
    }

    /// Counters since the store was opened.
    fn stats(&self) -> StoreStats;
}

/// An open transaction of a [`Store`].
pub trait Txn {
    /// Handle of a keyspace of the same store.
    type Keyspace;

    /// Reads one key and lends its value (`None`: no such key) to `f`.
    fn get<R>(&mut self, ks: &Self::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;

    /// As [`Txn::get`], and announces that the key will be written: a locking store takes the exclusive lock now,
    /// which spares it the deadlock of two readers that both want to write.
    fn get_for_update<R>(&mut self, ks: &Self::Keyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.get(ks, key, f)
    }

    /// Sets the value of a key.
    fn put(&mut self, ks: &Self::Keyspace, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key; no error if there is none.
    fn delete(&mut self, ks: &Self::Keyspace, key: &[u8]) -> Result<()>;

    /// Lends each key and value of `range` to `each`, in order, until it breaks or the range ends.
    fn scan(
        &mut self,
        ks: &Self::Keyspace,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Removes each key of `range`; returns how many there were.
    fn delete_range(&mut self, ks: &Self::Keyspace, range: KeyRange<'_>) -> Result<u64> {
        let mut keys = Vec::new();
        self.scan(ks, range, Direction::Forward, |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        keys.iter().try_for_each(|key| self.delete(ks, key))?;
        Ok(keys.len() as u64)
    }

    /// Marks the present state and returns the mark's number; `None` when the store has no savepoints.
    fn savepoint(&mut self) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Undoes every write since a savepoint, which can be used again.
    fn rollback_to(&mut self, savepoint: usize) -> Result<()> {
        bad_option("savepoint", format!("{savepoint}: the store has none"))
    }

    /// Makes the changes take effect, all or none.
    fn commit(self) -> Result<()>;

    /// Drops the changes.
    fn rollback(self);
}

/// Counters of a store; a store reports zero for what it does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreStats {
    /// Page (or block) accesses that found the page in memory.
    pub hits: u64,
    /// Page (or block) accesses that had to wait for a device.
    pub misses: u64,
    /// Pages (or blocks) that the memory for them holds; no count, but what it is now.
    pub frames: u64,
    /// Read requests sent to devices.
    pub device_reads: u64,
    /// Write requests sent to devices.
    pub device_writes: u64,
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Bytes written to devices, log included.
    pub bytes_written: u64,
    /// Bytes of log written.
    pub log_bytes: u64,
    /// Flushes (fsync, or durable writes that stand in for one).
    pub fsyncs: u64,
    /// Times a transaction had to wait for room: a free frame, log space, the version store.
    pub stalls: u64,
}

impl StoreStats {
    /// Counts since `earlier`. A counter that a reopened store restarted reads as its new value.
    pub fn since(&self, earlier: &StoreStats) -> StoreStats {
        let d = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        StoreStats {
            hits: d(self.hits, earlier.hits),
            misses: d(self.misses, earlier.misses),
            frames: self.frames,
            device_reads: d(self.device_reads, earlier.device_reads),
            device_writes: d(self.device_writes, earlier.device_writes),
            bytes_read: d(self.bytes_read, earlier.bytes_read),
            bytes_written: d(self.bytes_written, earlier.bytes_written),
            log_bytes: d(self.log_bytes, earlier.log_bytes),
            fsyncs: d(self.fsyncs, earlier.fsyncs),
            stalls: d(self.stalls, earlier.stalls),
        }
    }

    /// Share of accesses that found their page in memory; `None` when there was no access.
    pub fn hit_ratio(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// Whether a transaction body wants its changes kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Commit.
    Commit,
    /// Roll back; not an error.
    Rollback,
}

/// Waits before attempt `attempt` (1: the first repetition) of a transaction: a random time up to 25 µs doubled with
/// each attempt, at most 12.8 ms, so that transactions that met once do not meet again in step.
pub fn backoff(attempt: u32, rng: &mut varve_rt::Rng) {
    let cap = 25_000u64 << attempt.clamp(1, 10).saturating_sub(1);
    varve_rt::sleep(std::time::Duration::from_nanos(rng.below(cap) + 1));
}

/// Runs `body` in a transaction, again with backoff as long as the store asks for it.
///
/// Errors: whatever the store or `body` returned that cannot be retried.
pub fn transact<S: Store, T>(
    store: &S,
    mode: TxMode,
    durability: Durability,
    mut body: impl FnMut(&mut S::Txn<'_>) -> Result<(T, End)>,
) -> Result<T> {
    let mut rng = varve_rt::rng();
    let mut attempt = 0;
    loop {
        let mut once = || -> Result<T> {
            let mut tx = store.begin(mode, durability)?;
            let (value, end) = body(&mut tx)?;
            match end {
                End::Commit => tx.commit()?,
                End::Rollback => tx.rollback(),
            }
            Ok(value)
        };
        match once() {
            Err(e) if e.retryable() => {
                attempt += 1;
                backoff(attempt, &mut rng);
            }
            other => return other,
        }
    }
}

/// An error for an option that cannot be used.
pub(crate) fn bad_option<T>(name: &'static str, why: impl Into<String>) -> Result<T> {
    Err(Error::Option { name, why: why.into() })
}
