//! Rows that leave a keyspace all at once: `Keyspace::clear`, `Keyspace::delete_range`.
//!
//! The range is locked as a transaction that wrote all of it would lock it. Then its rows leave the index as a tree of
//! their own (`btree/detach.rs`), in one group with an entry of the catalog that names the tree. Snapshots that are
//! older go on reading them there (`txn/former.rs`). When none is, the tree is taken apart by a thread that lives as
//! long as there is one, the entry last. An opening after a crash goes on with that.
//!
//! Lock order: key and interval locks; `freeing`; the registry's lock; then latches.
//!
//! Invariant: a tree that left has an entry in the catalog and a place in `waiting` until all of its pages are free.

use super::Inner;
use super::catalog::{FORMER, former_key};
use super::keyspaces::Registry;
use super::services::Services;
use crate::btree::{CellValue, leaf};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::page::Group;
use crate::rows::Span;
use crate::space::Core;
use crate::txn::{Durability, Former, KeyRange, Manager, OpenKeyspace, TxOptions};
use crate::wal::{FORMER_TREES, GroupKind};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{Health, Mistake};
use varve_rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use varve_rt::{JoinHandle, Mutex, MutexGuard};
use varve_volume::Lsn;

/// How long who takes trees apart stands back at a time for somebody who waits.
const TURN: Duration = Duration::from_micros(100);

/// A tree that left and is to be taken apart.
struct Waiting {
    /// Where it left, if that is open still.
    keyspace: Weak<OpenKeyspace>,
    /// No snapshot older than this must be open; 0 for trees that left before the database was opened.
    end: Lsn,
    index: Index,
}

/// The trees that left their keyspaces.
#[derive(Default)]
pub(super) struct Formers {
    waiting: Mutex<Vec<Arc<Waiting>>>,
    /// Held by who takes trees apart, or must not have it done.
    freeing: Mutex<()>,
    /// Who waits for that not to be done.
    asked: AtomicUsize,
}

impl Formers {
    /// One of which the catalog tells.
    pub fn found(&self, index: Index) {
        self.waiting.lock().push(Arc::new(Waiting { keyspace: Weak::new(), end: 0, index }));
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// All of them; they stay as they are while the guard is held.
    pub fn hold(&self) -> (MutexGuard<'_, ()>, Vec<Index>) {
        let freeing = self.freeing();
        let all = self.waiting.lock().iter().map(|waiting| waiting.index.clone()).collect();
        (freeing, all)
    }

    /// Has who takes trees apart stop after the group that it is at.
    fn freeing(&self) -> MutexGuard<'_, ()> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        let freeing = self.freeing.lock();
        let asked = self.asked.fetch_sub(1, Ordering::AcqRel);
        assert!(asked > 0, "who waited was counted");
        freeing
    }
}

impl Inner {
    /// Removes all rows of a range in one transaction, whatever their number.
    pub(super) fn delete_range(
        &self,
        shared: &Arc<OpenKeyspace>,
        range: &KeyRange<'_>,
        durability: Durability,
        tell: Option<&Arc<AtomicU64>>,
    ) -> Result<()> {
        self.txns.live_for_write()?;
        let Some(span) = range.span(shared.index().max_key()) else { return shared.check_changing() };
        let mut end = None;
        self.txns.transact(&TxOptions::durability(durability), |mut tx| {
            tell.into_iter().for_each(|tell| tx.tell_commit_number(tell.clone()));
            let left = tx.lock_to_delete(shared, range).and_then(|()| self.leave(shared, &span, (durability, tell)));
            let result = left.and_then(|left| match left {
                Some(at) => {
                    end = Some(at);
                    Ok(())
                }
                None => tx.delete_range(shared, range).map(|_| ()),
            });
            (tx, result)
        })?;
        let Some(end) = end else { return Ok(()) };
        // The empty leaf that took their place; what stays untidy costs space only.
        let _ = shared.index().tidy(&span.0);
        self.reclaimer.work()?;
        self.txns.acknowledge(end, durability, 0)
    }

    /// Has the rows of a locked range leave; none when they are so few that they are better removed one by one.
    fn leave(
        &self,
        shared: &Arc<OpenKeyspace>,
        span: &Span,
        (durability, tell): (Durability, Option<&Arc<AtomicU64>>),
    ) -> Result<Option<Lsn>> {
        let index = shared.index();
        shared.check_changing()?;
        let tell = |end| tell.into_iter().for_each(|tell| tell.store(end, Ordering::Release));
        let told = |end| {
            self.txns.note_commit(end, durability);
            tell(end);
        };
        if let Some(end) = index.delete_range(span, told)? {
            return Ok(Some(end));
        }
        if !index.is_large(span)? {
            return Ok(None);
        }
        self.core.log.set_feature(&FORMER_TREES, true)?;
        loop {
            index.align(span)?;
            let Some(pages) = index.pages_to_detach(span)? else { return Ok(None) };
            let told = |end| {
                self.txns.note_cut(end, durability);
                tell(end);
            };
            if let Some(end) = self.registry.detach(&self.core, (shared, span), pages, told)? {
                return Ok(Some(end));
            }
        }
    }
}

impl Registry {
    /// Takes the rows between the ends of a span, at which the index was aligned, out of it, in one group; none when it
    /// is not aligned any more.
    fn detach(
        &self,
        core: &Arc<Core>,
        (shared, span): (&Arc<OpenKeyspace>, &Span),
        pages: usize,
        told: impl FnOnce(Lsn),
    ) -> Result<Option<Lsn>> {
        let _state = self.lock();
        if shared.is_dropped() {
            return Err(Error::NoSuchKeyspace(shared.name().to_string()));
        }
        shared.check_changing()?;
        let reserved = core.space.reserve(core, shared.id(), pages)?;
        assert_eq!(reserved.ids().len(), pages, "a root, and what takes its place");
        let root = reserved.ids()[0];
        let (key, value) = (former_key(shared.id(), root), CellValue::Inline(&FORMER));
        let maps = pages.min(core.space.maps() as usize);
        let _resident = core.pool.load(shared.index().root())?;
        let mut group = Group::begin(core, GroupKind::Commit, (pages + 2 + maps) * (core.page_size() + 64))?;
        let page = self.leaf(&key, leaf::cell_size(&key, &value))?;
        if !shared.index().detach(&mut group, reserved.ids(), span)? {
            return Ok(None);
        }
        let n = group.add(page);
        if !core.faults().has(Mistake::FormerForgotten) {
            leaf::put(&mut group.page(n), &key, value).expect("prepared");
        }
        core.space.apply(core, &mut group, reserved.ids(), &[]);
        reserved.keep();
        let index = shared.index().former(core, root, span);
        let end = group.commit_with(|end| {
            told(end);
            shared.leave(Arc::new(Former { end, span: span.clone(), index: index.clone() }));
        })?;
        self.formers.waiting.lock().push(Arc::new(Waiting { keyspace: Arc::downgrade(shared), end, index }));
        Ok(Some(end))
    }

    /// Takes the trees apart that left their keyspaces and that no snapshot needs, as long as `on` says so. Whoever
    /// wants them to stay as they are, or to take them apart himself, gets his turn between two groups.
    fn free_formers(&self, core: &Arc<Core>, txns: &Manager, on: &dyn Fn() -> bool) -> Result<()> {
        loop {
            // To yield is not enough: this thread may be back before he is who waits for the lock.
            while on() && self.formers.asked.load(Ordering::Acquire) > 0 {
                varve_rt::sleep(TURN);
            }
            let _freeing = self.formers.freeing.lock();
            if !self.free_former(core, txns, on)? || !on() {
                return Ok(());
            }
        }
    }

    /// The same, for who waits for it: whoever does it already stands back.
    pub fn free_formers_now(&self, core: &Arc<Core>, txns: &Manager) -> Result<()> {
        loop {
            let _freeing = self.formers.freeing();
            if !self.free_former(core, txns, &|| true)? {
                return Ok(());
            }
        }
    }

    /// Takes a tree apart, or a part of it if others ask for their turn; false: there is none. With `freeing` held.
    fn free_former(&self, core: &Arc<Core>, txns: &Manager, on: &dyn Fn() -> bool) -> Result<bool> {
        debug_assert!(self.formers.freeing.is_locked(), "one tree is taken apart at a time");
        let early = core.faults().has(Mistake::FormerFreedEarly);
        let oldest = if early { Lsn::MAX } else { txns.oldest_snapshot() };
        let next = self.formers.waiting.lock().iter().find(|waiting| waiting.end <= oldest).cloned();
        let Some(next) = next else { return Ok(false) };
        if let Some(keyspace) = next.keyspace.upgrade() {
            keyspace.forget_former(next.index.root());
        }
        if !next.index.dismantle(&|| on() && self.formers.asked.load(Ordering::Acquire) == 0)? {
            return Ok(true);
        }
        self.remove_former(core, &next.index)?;
        let mut waiting = self.formers.waiting.lock();
        let before = waiting.len();
        waiting.retain(|other| !Arc::ptr_eq(other, &next));
        assert_eq!(waiting.len() + 1, before, "a tree is taken apart once");
        Ok(true)
    }

    /// Removes the entry of a tree that was taken apart, and frees its root, in one log group.
    fn remove_former(&self, core: &Core, index: &Index) -> Result<()> {
        let _state = self.lock();
        let key = former_key(index.keyspace(), index.root());
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let page = self.leaf(&key, 0)?;
        let root = index.free_root(&mut group)?;
        assert_eq!(root, index.root(), "the root of a tree that left stays where it is");
        let n = group.add(page);
        leaf::remove(&mut group.page(n), &key).expect("prepared");
        core.space.apply(core, &mut group, &[], &[root]);
        group.commit()?;
        core.space.freed(&[root]);
        Ok(())
    }
}

/// The thread that takes trees apart. There is none while there are no such trees.
pub(super) struct Reclaimer {
    core: Arc<Core>,
    txns: Arc<Manager>,
    registry: Arc<Registry>,
    ended: AtomicBool,
    /// The thread, and whether it still looks for work.
    thread: Mutex<(Option<JoinHandle<()>>, bool)>,
}

impl Reclaimer {
    /// Goes on with what an earlier opening left.
    pub fn begin(
        services: &Services,
        (core, txns, registry): (&Arc<Core>, &Arc<Manager>, &Arc<Registry>),
        read_only: bool,
    ) -> Result<Arc<Reclaimer>> {
        let (core, txns, registry) = (core.clone(), txns.clone(), registry.clone());
        let (ended, thread) = (AtomicBool::new(read_only), Mutex::new((None, false)));
        let reclaimer = Arc::new(Reclaimer { core, txns, registry, ended, thread });
        services.add_reclaimer(&reclaimer);
        reclaimer.work().map(|()| reclaimer)
    }

    /// There may be something to do.
    pub fn work(self: &Arc<Self>) -> Result<()> {
        let mut thread = self.thread.lock();
        if self.ended.load(Ordering::Acquire) || !self.registry.formers.any() {
            return Ok(());
        }
        if thread.1 {
            self.txns.snapshot_ended().set();
            return Ok(());
        }
        Health::join(thread.0.take());
        let this = self.clone();
        thread.0 = Some(self.core.log.health().spawn("reclaimer", move || this.run())?);
        thread.1 = true;
        Ok(())
    }

    fn run(&self) {
        let on = || !self.ended.load(Ordering::Acquire) && self.core.log.poisoned().is_none() && !varve_rt::dying();
        loop {
            self.txns.snapshot_ended().reset();
            let freed = self.registry.free_formers(&self.core, &self.txns, &on);
            let mut thread = self.thread.lock();
            // After an error the next opening tries again: what is damaged stays.
            if freed.is_err() || !on() || !self.registry.formers.any() {
                assert!(thread.1, "one thread takes trees apart");
                thread.1 = false;
                return;
            }
            drop(thread);
            self.txns.snapshot_ended().wait();
        }
    }

    /// Tells the thread to end; waits for nothing.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.txns.snapshot_ended().set();
        self.txns.end_merging();
    }

    /// Ends the thread and waits for it. What it was taking apart the next opening goes on with.
    pub fn stop(&self) {
        self.end();
        let thread = self.thread.lock().0.take();
        Health::join(thread);
        self.txns.stop_merging();
    }
}
