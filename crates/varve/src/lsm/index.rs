//! An LSM keyspace of an open database: its memtables, its segments, and what is shared by all who use it.
//!
//! One memtable, the *active* one, takes what commits write. It is frozen when it is to be flushed: the next one takes
//! its place while no commit is between the two, so the commit numbers of one are all below those of the next. Its
//! segment takes the frozen one's place when the group that links it is durable.
//!
//! Lock order: `flushing`, then `view`; commits hold neither, but pass `view` to enter a memtable, in the order of
//! keyspaces, under the latches of leaves of keyspaces before. `view` is held exclusively only while commits end that
//! have entered, and they need nothing more of it.
//!
//! Invariants: every entry is in exactly one of the memtables and segments of a view, but between the installation of a
//! segment and the next view in both a memtable and a segment; the newer entry of a key is in the younger of two.

use super::manual::Asked;
use super::memtable::Memtable;
use super::picker::Picker;
use super::pressure::BackPressure;
use super::services::{Services, Stuck, due_bytes};
use super::stats::{Counters, LsmStats};
use super::{LsmOptions, Segments};
use crate::btree::Tree;
use crate::error::Result;
use crate::rows::Estimate;
use crate::space::Core;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{Mutex, RwLock};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// What readers see of a keyspace, all of one moment.
pub(super) struct View {
    pub active: Arc<Memtable>,
    /// Being flushed.
    pub frozen: Option<Arc<Memtable>>,
    pub segments: Arc<Segments>,
}

/// What a reader reads: a view, and as of which commit number.
pub(super) struct Pinned {
    pub view: Arc<View>,
    pub at: Lsn,
    /// No entry that shows has a greater commit number.
    pub newest: Lsn,
}

/// What the handles of a keyspace share.
pub(super) struct Shared {
    pub core: Arc<Core>,
    pub keyspace: KeyspaceId,
    options: RwLock<LsmOptions>,
    /// Lists the segments. Its rows change in groups of the log alone that make and drop segments.
    pub tree: Tree,
    pub services: Arc<Services>,
    view: RwLock<Arc<View>>,
    /// Greatest commit number of an entry; set before the entry shows.
    newest: AtomicU64,
    /// Held by who changes the list of segments.
    pub flushing: Mutex<()>,
    /// Plans merges.
    pub picker: Mutex<Picker>,
    /// A merge is under way; begun under `flushing`.
    pub merging: AtomicBool,
    /// Merges that somebody asked for.
    pub asked: Asked,
    pub counters: Counters,
    pub pressure: BackPressure,
    pub stuck: Stuck,
    /// Number of the next segment.
    next: AtomicU64,
}

/// An LSM keyspace. Clones are the same.
#[derive(Clone)]
pub(crate) struct Lsm(pub(super) Arc<Shared>);

impl Lsm {
    /// The keyspace whose segments are listed in the tree with this root. `active` has what recovery found in the log.
    pub(crate) fn open(
        core: &Arc<Core>,
        services: &Arc<Services>,
        (keyspace, root): (KeyspaceId, PageId),
        options: LsmOptions,
    ) -> Result<Lsm> {
        let tree = Tree::open(core.clone(), keyspace, root);
        let segments = Arc::new(Segments::read(core, keyspace, &tree)?);
        core.space.segments_listed(segments.all().flat_map(|open| open.page_ids()));
        let active = Arc::new(services.recovered(core, keyspace)?);
        let next = AtomicU64::new(segments.next);
        let newest = AtomicU64::new(active.newest().max(segments.newest()));
        let view = RwLock::new(Arc::new(View { active, frozen: None, segments }));
        let (core, services) = (core.clone(), services.clone());
        let (flushing, picker, merging) = (Mutex::new(()), Mutex::default(), AtomicBool::new(false));
        let options = RwLock::new(options);
        let (asked, counters, pressure) = (Asked::default(), Counters::default(), BackPressure::default());
        let shared = Shared {
            core,
            keyspace,
            options,
            tree,
            services,
            view,
            newest,
            flushing,
            picker,
            merging,
            asked,
            counters,
            pressure,
            stuck: Stuck::default(),
            next,
        };
        let this = Lsm(Arc::new(shared));
        this.0.pressure.changed(&this.0.shape(), &this.0.view().segments.version());
        this.0.services.add(&this);
        Ok(this)
    }

    /// What it stands on.
    pub(crate) fn core(&self) -> &Core {
        &self.0.core
    }

    /// The keyspace's number.
    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.0.keyspace
    }

    /// What was chosen when it was made.
    pub(crate) fn options(&self) -> LsmOptions {
        self.0.options()
    }

    /// What is written from here on is written so.
    pub(crate) fn set_options(&self, options: LsmOptions) {
        debug_assert!(options.validate().is_ok(), "options are checked before they are stored");
        *self.0.options.write() = options;
        self.0.pressure.changed(&self.0.shape(), &self.0.view().segments.version());
        self.0.services.wake();
    }

    /// The tree that lists its segments.
    pub(crate) fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// What it has counted. The name is the caller's to fill in.
    pub(crate) fn stats(&self) -> LsmStats {
        let (shared, view) = (&*self.0, self.0.view());
        let mut stats = shared.counters.stats(&shared.shape(), &view.segments.version());
        stats.memtable_bytes = view.memory();
        shared.pressure.tell(&shared.options(), shared.memtables(), &mut stats);
        stats
    }

    /// Rows and pages, about: each entry counts as a row, but that a deletion is taken to hide one.
    pub(crate) fn estimate(&self) -> Result<Estimate> {
        let view = self.0.view();
        let mut estimate = Estimate { rows: 0, pages: self.0.tree.estimate()?.pages };
        let (mut entries, mut deletions) = (view.in_memory(), 0);
        for segment in view.segments.levels.iter().flatten().map(|open| &open.segment) {
            entries += segment.meta.entries;
            deletions += segment.meta.deletions;
            assert!(segment.meta.deletions <= segment.meta.entries, "deletions are entries");
            estimate.pages += segment.runs.iter().map(|(_, pages)| pages).sum::<u64>();
        }
        estimate.rows = entries.saturating_sub(2 * deletions);
        Ok(estimate)
    }

    /// Whether level 0 has so many segments that merges go before flushes: writers wait when memory is used up.
    pub(super) fn is_full(&self) -> bool {
        self.0.view().segments.newest_level() >= self.0.options().l0_stop.into()
    }

    /// Longest key, in bytes.
    pub(crate) fn max_key(&self) -> usize {
        self.0.tree.max_key()
    }

    /// Where in the log the oldest entry begins that is in no segment; `None`: there is none.
    pub(crate) fn oldest_lsn_needed(&self) -> Option<Lsn> {
        if self.0.core.faults().has(Mistake::MemtableForgotten) {
            return None;
        }
        let view = self.0.view();
        let frozen = view.frozen.as_ref().and_then(|table| table.oldest_lsn_needed());
        frozen.into_iter().chain(view.active.oldest_lsn_needed()).min()
    }
}

impl View {
    /// Entries of both memtables.
    fn in_memory(&self) -> u64 {
        self.active.len() + self.frozen.as_ref().map_or(0, |table| table.len())
    }

    /// Bytes of both memtables.
    pub fn memory(&self) -> u64 {
        self.active.bytes() + self.frozen.as_ref().map_or(0, |table| table.bytes())
    }
}

impl Shared {
    /// What was chosen for it; what is written next is written so.
    pub fn options(&self) -> LsmOptions {
        *self.options.read()
    }

    /// What is in memory, as a share of a memtable.
    pub fn memtables(&self) -> f64 {
        self.view().memory() as f64 / due_bytes(&self.options(), &self.core.budget).max(1) as f64
    }

    pub fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// What there is to be read as of a commit number; `Lsn::MAX`: as of now.
    pub fn pin(&self, at: Lsn) -> Pinned {
        let horizon = &self.core.horizon;
        if at != Lsn::MAX {
            horizon.wait(&self.core.log, at);
        }
        let view = self.view.read();
        // With the lock held: what the horizon has passed is in no younger memtable than this view's. The horizon
        // before the newest commit: what shows at the one is not past the other.
        let at = if at == Lsn::MAX { horizon.reached() } else { at };
        let newest = self.newest.load(Ordering::SeqCst).min(at);
        Pinned { view: view.clone(), at, newest }
    }

    /// An entry of this commit number will be in the active memtable.
    pub fn note_newest(&self, commit: Lsn) {
        self.newest.fetch_max(commit, Ordering::SeqCst);
    }

    /// A number for a segment, above that of every one before.
    pub fn next_id(&self) -> u64 {
        self.next_ids(1)
    }

    /// The first of so many.
    pub fn next_ids(&self, n: u64) -> u64 {
        self.next.fetch_add(n, Ordering::Relaxed)
    }

    /// Greatest commit number of an entry, shown or not.
    pub fn newest(&self) -> Lsn {
        self.newest.load(Ordering::SeqCst)
    }

    /// The active memtable, which the caller writes to: it is not frozen before [`Memtable::writer_ends`].
    pub fn enter(&self) -> Arc<Memtable> {
        let view = self.view.read();
        let table = view.active.clone();
        debug_assert!(view.frozen.as_ref().is_none_or(|frozen| !Arc::ptr_eq(frozen, &table)), "a frozen table is full");
        table.writer_begins(self.core.log.end_lsn());
        table
    }

    /// Freezes the active memtable; what it was, unless it has no entries. `flushing` is held.
    pub fn freeze(&self) -> Option<Arc<Memtable>> {
        let mut view = self.view.write();
        if let Some(frozen) = &view.frozen {
            // It could not be flushed.
            return Some(frozen.clone());
        }
        let mut rounds = 0;
        while view.active.has_writers() {
            if varve_rt::dying() {
                return None;
            }
            varve_rt::spin(rounds);
            rounds += 1;
        }
        if view.active.is_empty() {
            return None;
        }
        let frozen = view.active.clone();
        assert!(frozen.newest() <= self.newest(), "who enters an entry notes its commit number");
        let active = Arc::new(Memtable::new(self.core.budget.clone()));
        *view = Arc::new(View { active, frozen: Some(frozen.clone()), segments: view.segments.clone() });
        Some(frozen)
    }

    /// The segments are others from here on; `flushed`: they have what is in the frozen memtable. `flushing` is held.
    pub fn set_segments(&self, segments: Arc<Segments>, flushed: bool) {
        let mut view = self.view.write();
        assert!(!flushed || view.frozen.is_some(), "what was flushed was frozen");
        let frozen = view.frozen.clone().filter(|_| !flushed);
        *view = Arc::new(View { active: view.active.clone(), frozen, segments });
    }

    /// Forgets what memtables hold: nobody uses the keyspace any more.
    pub fn forget(&self) {
        let mut view = self.view.write();
        let active = Arc::new(Memtable::new(self.core.budget.clone()));
        *view = Arc::new(View { active, frozen: None, segments: view.segments.clone() });
    }
}
