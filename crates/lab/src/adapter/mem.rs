//! An in-memory [`Store`]: the reference that workloads are tested on, and the place to see what a weaker isolation
//! level does to them. Multi-version, optimistic: a transaction reads as of its begin, keeps its writes to itself, and
//! at commit is refused if anything it read (keys and the walked part of ranges) has a newer version.
//!
//! Invariants: versions of a key ascend by commit number; a version is kept while an open transaction may read it; a
//! key whose only version is a deletion that every open transaction sees is removed.
//!
//! Locks: one mutex around everything, held for one operation at a time. Closures that are lent a value run under it
//! and must not call the store.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use varve_rt::Mutex;

use super::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use crate::error::{Error, Result};

/// How much of serializability the store keeps. All but the first are wrong on purpose, for tests of the checkers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Strictly serializable.
    #[default]
    Serializable,
    /// Only keys are validated, not ranges: phantoms.
    NoRangeChecks,
    /// Only written keys are validated: write skew.
    Snapshot,
    /// Nothing is validated and every read sees the newest committed value: lost updates, non-repeatable reads.
    ReadCommitted,
    /// Writes are visible at once: dirty and aborted reads.
    Dirty,
    /// Read-only transactions see a state some commits old: serializable, not strictly.
    StaleReadOnly,
}

/// Settings of a [`MemStore`].
#[derive(Debug, Clone, Copy, Default)]
pub struct MemOptions {
    /// Isolation kept.
    pub isolation: Isolation,
    /// Modelled CPU time of each operation in a simulation (no effect outside one).
    pub op_time: Duration,
    /// Time that each commit sleeps, in both worlds; zero: none.
    pub commit_time: Duration,
}

/// The in-memory store.
pub struct MemStore {
    options: MemOptions,
    state: Mutex<State>,
}

/// Index of a keyspace of a [`MemStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemKeyspace(usize);

type Bytes = Box<[u8]>;

struct Version {
    no: u64,
    value: Option<Bytes>,
}

#[derive(Default)]
struct State {
    commit_no: u64,
    names: Vec<String>,
    keyspaces: Vec<BTreeMap<Bytes, Vec<Version>>>,
    /// Open transactions by the commit number they read at.
    open: BTreeMap<u64, usize>,
    /// Commits that stay readable although no open transaction reads that far back.
    slack: u64,
    /// Deletions in commit order, to be purged once every open transaction sees them.
    deleted: VecDeque<(u64, usize, Bytes)>,
    stats: StoreStats,
}

impl State {
    fn oldest_needed(&self) -> u64 {
        let recent = self.commit_no.saturating_sub(self.slack);
        self.open.first_key_value().map_or(recent, |(no, _)| recent.min(*no))
    }

    fn visible(versions: &[Version], at: u64) -> Option<&[u8]> {
        versions.iter().rev().find(|v| v.no <= at).and_then(|v| v.value.as_deref())
    }

    fn newest(&self, ks: usize, key: &[u8]) -> u64 {
        self.keyspaces[ks].get(key).and_then(|v| v.last()).map_or(0, |v| v.no)
    }

    fn install(&mut self, no: u64, ks: usize, key: &[u8], value: Option<Bytes>) {
        let keep_from = self.oldest_needed();
        if value.is_none() {
            if !self.keyspaces[ks].contains_key(key) {
                return;
            }
            self.deleted.push_back((no, ks, key.into()));
        }
        let versions = self.keyspaces[ks].entry(key.into()).or_default();
        assert!(versions.last().is_none_or(|v| v.no <= no), "versions ascend");
        versions.push(Version { no, value });
        let superseded = versions.iter().filter(|v| v.no <= keep_from).count().saturating_sub(1);
        versions.drain(..superseded);
    }

    fn purge(&mut self) {
        let seen_by_all = self.oldest_needed();
        while self.deleted.front().is_some_and(|(no, _, _)| *no <= seen_by_all) {
            let (_, ks, key) = self.deleted.pop_front().expect("front was there");
            let dead = self.keyspaces[ks]
                .get(&key)
                .is_some_and(|v| v.last().is_some_and(|v| v.value.is_none() && v.no <= seen_by_all));
            if dead {
                self.keyspaces[ks].remove(&key);
            }
        }
    }
}

impl MemStore {
    /// An empty store.
    pub fn new(options: MemOptions) -> MemStore {
        let slack = if options.isolation == Isolation::StaleReadOnly { 3 } else { 0 };
        MemStore { options, state: Mutex::new(State { slack, ..State::default() }) }
    }
}

impl Default for MemStore {
    fn default() -> Self {
        MemStore::new(MemOptions::default())
    }
}

impl Store for MemStore {
    type Keyspace = MemKeyspace;
    type Txn<'a> = MemTxn<'a>;

    fn name(&self) -> &str {
        "memory"
    }

    fn keyspace(&self, name: &str) -> Result<MemKeyspace> {
        let mut state = self.state.lock();
        if let Some(i) = state.names.iter().position(|n| n == name) {
            return Ok(MemKeyspace(i));
        }
        state.names.push(name.to_string());
        state.keyspaces.push(BTreeMap::new());
        Ok(MemKeyspace(state.names.len() - 1))
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<MemKeyspace>> {
        Ok(self.state.lock().names.iter().position(|n| n == name).map(MemKeyspace))
    }

    fn begin(&self, mode: TxMode, _durability: Durability) -> Result<MemTxn<'_>> {
        varve_rt::compute(self.options.op_time);
        let mut state = self.state.lock();
        let stale = self.options.isolation == Isolation::StaleReadOnly && mode != TxMode::ReadWrite;
        let at = if stale { state.commit_no.saturating_sub(state.slack) } else { state.commit_no };
        *state.open.entry(at).or_default() += 1;
        Ok(MemTxn {
            store: self,
            mode,
            at,
            reads: Vec::new(),
            ranges: Vec::new(),
            writes: BTreeMap::new(),
            undo: Vec::new(),
            marks: Vec::new(),
            open: true,
        })
    }

    fn stats(&self) -> StoreStats {
        self.state.lock().stats
    }
}

/// A transaction of a [`MemStore`].
pub struct MemTxn<'a> {
    store: &'a MemStore,
    mode: TxMode,
    at: u64,
    reads: Vec<(usize, Bytes)>,
    ranges: Vec<(usize, Bound<Bytes>, Bound<Bytes>)>,
    writes: BTreeMap<(usize, Bytes), Option<Bytes>>,
    /// For [`Isolation::Dirty`]: what the written keys held before.
    undo: Vec<(usize, Bytes, Option<Bytes>)>,
    /// The writes as they were at each savepoint.
    marks: Vec<BTreeMap<(usize, Bytes), Option<Bytes>>>,
    open: bool,
}

impl MemTxn<'_> {
    fn isolation(&self) -> Isolation {
        self.store.options.isolation
    }

    fn read_at(&self) -> u64 {
        match (self.isolation(), self.mode) {
            (Isolation::ReadCommitted, TxMode::ReadWrite) | (Isolation::Dirty, _) => u64::MAX,
            _ => self.at,
        }
    }

    fn write(&mut self, ks: usize, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if self.mode != TxMode::ReadWrite {
            return Err(Error::store("a write in a read-only transaction"));
        }
        varve_rt::compute(self.store.options.op_time);
        if self.isolation() == Isolation::Dirty {
            let mut state = self.store.state.lock();
            let old = state.keyspaces[ks].get(key).and_then(|v| State::visible(v, u64::MAX)).map(Bytes::from);
            self.undo.push((ks, key.into(), old));
            let no = state.commit_no;
            state.install(no, ks, key, value.map(Bytes::from));
            return Ok(());
        }
        self.writes.insert((ks, key.into()), value.map(Bytes::from));
        Ok(())
    }

    fn validate(&self, state: &State) -> Result<()> {
        let isolation = self.isolation();
        if matches!(isolation, Isolation::ReadCommitted | Isolation::Dirty) || self.writes.is_empty() {
            return Ok(());
        }
        let newer = |ks: usize, key: &[u8]| state.newest(ks, key) > self.at;
        for (ks, key) in self.writes.keys() {
            if isolation == Isolation::Snapshot && newer(*ks, key) {
                return Err(Error::Conflict("a key it writes was written since it began".into()));
            }
        }
        if isolation == Isolation::Snapshot {
            return Ok(());
        }
        if self.reads.iter().any(|(ks, key)| newer(*ks, key)) {
            return Err(Error::Conflict("a key it read was written since it began".into()));
        }
        if isolation == Isolation::NoRangeChecks {
            return Ok(());
        }
        for (ks, from, to) in &self.ranges {
            let mut keys = state.keyspaces[*ks].range::<Bytes, _>((from.as_ref(), to.as_ref()));
            if keys.any(|(_, v)| v.last().is_some_and(|v| v.no > self.at)) {
                return Err(Error::Conflict("a range it read was written since it began".into()));
            }
        }
        Ok(())
    }

    fn finish(&mut self, keep: bool) -> Result<()> {
        assert!(self.open, "a transaction ends once");
        self.open = false;
        let mut guard = self.store.state.lock();
        let state = &mut *guard;
        let verdict = if keep { self.validate(state) } else { Ok(()) };
        if keep && verdict.is_ok() && !self.writes.is_empty() {
            state.commit_no += 1;
            let no = state.commit_no;
            for ((ks, key), value) in std::mem::take(&mut self.writes) {
                state.stats.log_bytes += (key.len() + value.as_ref().map_or(0, |v| v.len())) as u64;
                state.install(no, ks, &key, value);
            }
        }
        if !keep {
            let no = state.commit_no;
            for (ks, key, old) in std::mem::take(&mut self.undo).into_iter().rev() {
                state.install(no, ks, &key, old);
            }
        }
        let count = state.open.get_mut(&self.at).expect("registered at begin");
        *count -= 1;
        if *count == 0 {
            state.open.remove(&self.at);
        }
        state.purge();
        verdict
    }

    /// Notes the part of `range` that a walk has seen: all of it, or up to and including `last`.
    fn note_range(&mut self, ks: usize, range: KeyRange<'_>, direction: Direction, last: Option<Bytes>) {
        let low = Bound::Included(Bytes::from(range.from));
        let high = range.to.map_or(Bound::Unbounded, |to| Bound::Excluded(Bytes::from(to)));
        self.ranges.push(match (last, direction) {
            (None, _) => (ks, low, high),
            (Some(last), Direction::Forward) => (ks, low, Bound::Included(last)),
            (Some(last), Direction::Reverse) => (ks, Bound::Included(last), high),
        });
    }
}

/// Two ordered sources walked as one; the write set hides the committed value of the same key.
fn merge<'m>(
    committed: impl Iterator<Item = (&'m [u8], &'m [u8])>,
    own: impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)>,
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Option<Bytes> {
    let (mut committed, mut own) = (committed.peekable(), own.peekable());
    loop {
        let order = match (committed.peek(), own.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(c), Some(o)) if direction == Direction::Forward => c.0.cmp(o.0),
            (Some(c), Some(o)) => o.0.cmp(c.0),
        };
        let item = match order {
            std::cmp::Ordering::Less => committed.next(),
            std::cmp::Ordering::Equal => {
                committed.next();
                own.next().and_then(|(k, v)| v.map(|v| (k, v)))
            }
            std::cmp::Ordering::Greater => own.next().and_then(|(k, v)| v.map(|v| (k, v))),
        };
        if let Some((k, v)) = item
            && each(k, v).is_break()
        {
            return Some(k.into());
        }
    }
}

impl Txn for MemTxn<'_> {
    type Keyspace = MemKeyspace;

    fn get<R>(&mut self, ks: &MemKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        varve_rt::compute(self.store.options.op_time);
        if !self.writes.is_empty()
            && let Some(own) = self.writes.get(&(ks.0, Bytes::from(key)))
        {
            return Ok(f(own.as_deref()));
        }
        if self.mode == TxMode::ReadWrite {
            self.reads.push((ks.0, key.into()));
        }
        let mut state = self.store.state.lock();
        state.stats.hits += 1;
        Ok(f(state.keyspaces[ks.0].get(key).and_then(|v| State::visible(v, self.read_at()))))
    }

    fn put(&mut self, ks: &MemKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(ks.0, key, Some(value))
    }

    fn delete(&mut self, ks: &MemKeyspace, key: &[u8]) -> Result<()> {
        self.write(ks.0, key, None)
    }

    fn scan(
        &mut self,
        ks: &MemKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        varve_rt::compute(self.store.options.op_time);
        if range.is_empty() {
            return Ok(());
        }
        let at = self.read_at();
        let low = Bytes::from(range.from);
        let high = range.to.map(Bytes::from);
        let bounds = (Bound::Included(&low), high.as_ref().map_or(Bound::Unbounded, Bound::Excluded));
        let own_low = (ks.0, low.clone());
        let own_high = high.clone().map_or((ks.0 + 1, Bytes::default()), |h| (ks.0, h));
        let mut state = self.store.state.lock();
        state.stats.hits += 1;
        let committed = state.keyspaces[ks.0].range::<Bytes, _>(bounds);
        let committed = committed.filter_map(|(k, v)| State::visible(v, at).map(|v| (&k[..], v)));
        let own = self.writes.range(own_low..own_high).map(|((_, k), v)| (&k[..], v.as_deref()));
        let last = match direction {
            Direction::Forward => merge(committed, own, direction, each),
            Direction::Reverse => merge(committed.rev(), own.rev(), direction, each),
        };
        drop(state);
        if self.mode == TxMode::ReadWrite {
            self.note_range(ks.0, range, direction, last);
        }
        Ok(())
    }

    fn savepoint(&mut self) -> Result<Option<usize>> {
        if self.isolation() == Isolation::Dirty {
            return Ok(None);
        }
        self.marks.push(self.writes.clone());
        Ok(Some(self.marks.len() - 1))
    }

    fn rollback_to(&mut self, savepoint: usize) -> Result<()> {
        self.writes = self.marks[savepoint].clone();
        Ok(())
    }

    fn commit(mut self) -> Result<()> {
        self.finish(true)?;
        if !self.store.options.commit_time.is_zero() {
            varve_rt::sleep(self.store.options.commit_time);
        }
        Ok(())
    }

    fn rollback(mut self) {
        self.finish(false).expect("a rollback cannot conflict");
    }
}

impl Drop for MemTxn<'_> {
    fn drop(&mut self) {
        if self.open {
            self.finish(false).expect("a rollback cannot conflict");
        }
    }
}
