//! Keyspaces: named indexes, made, found and dropped through the catalog.
//!
//! Catalog changes are log groups of their own (not transactions) under the registry's lock. Dropping marks the catalog
//! entry, durably; its pages are given back once no handle is left, in bounded groups, and the entry goes last. An
//! interrupted drop is finished by the next open.
//!
//! What is made, dropped or shown becomes visible under that lock once it is durable: what the list of keyspaces shows
//! after a crash is what it showed before.
//!
//! Lock order: the registry's lock before any latch; never taken with a latch held.
//!
//! A keyspace that takes the place of another appears in one group; the next one marks the other as dropped. So after
//! a crash between the two the catalog has two entries of one name. The one with the lower number counts as dropped.
//! Its mark is made up for before any other change of the catalog, or it would come back with that.
//!
//! Invariants, under that lock: no two keyspaces have a name or a number in common; a keyspace that is being dropped is
//! found by nobody.

use super::Inner;
use super::catalog::{self, CATALOG, CATALOG_ROOT, Entry, Record, check_name};
use super::formers::Formers;
use crate::btree::{CellValue, ReadAhead, Tree, leaf};
use crate::buffer::PageWrite;
use crate::error::{Error, Result};
use crate::index::{Compression, Index, Indexes, KeyspaceKind};
use crate::page::Group;
use crate::rows::{self, Direction, ValueRef};
use crate::space::Core;
use crate::txn::lock::LockTable;
use crate::txn::{OpenKeyspace, Sealed, UNFINISHED};
use crate::wal::{FORMER_TREES, GroupKind, LSM_KEYSPACES, READ_ONLY_KEYSPACES, ZSTD_BLOCKS};
use crate::zstandard;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use varve_rt::{Mutex, MutexGuard};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// What `Db::keyspaces` tells of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Its number in log records, page headers and messages.
    pub id: KeyspaceId,
    /// What it is made of.
    pub kind: KeyspaceKind,
    /// Root page of its tree.
    pub root: PageId,
    /// Nothing may change it.
    pub read_only: bool,
}

fn entry(shared: &OpenKeyspace, dropping: bool) -> Entry {
    let (index, name) = (shared.index(), shared.name().to_string());
    let read_only = shared.sealed();
    Entry { kind: index.kind(), id: index.keyspace(), root: index.root(), name, dropping, read_only }
}

/// Switches on what a keyspace of a kind uses of features, before its first byte is written.
fn note_kind(core: &Core, kind: KeyspaceKind) -> Result<()> {
    let used = [(&ZSTD_BLOCKS, needs_zstd(kind)?), (&LSM_KEYSPACES, matches!(kind, KeyspaceKind::Lsm(_)))];
    used.into_iter().filter(|(_, used)| *used).try_for_each(|(feature, _)| core.log.set_feature(feature, true))
}

/// Whether a keyspace of a kind packs its blocks with zstd; fails in a build that has none.
fn needs_zstd(kind: KeyspaceKind) -> Result<bool> {
    let needed = matches!(kind, KeyspaceKind::Lsm(options) if options.compression == Compression::Zstd);
    if needed {
        zstandard::require("an LSM keyspace with compression=zstd")?;
    }
    Ok(needed)
}

fn opened(core: &Arc<Core>, locks: &Arc<LockTable>, indexes: &Indexes, entry: &Entry) -> Result<Arc<OpenKeyspace>> {
    needs_zstd(entry.kind)?;
    let index = Index::open(core, indexes, entry.kind, (entry.id, entry.root))?;
    let shared = OpenKeyspace::new(&entry.name, index, locks, entry.dropping);
    shared.seal(entry.read_only);
    Ok(Arc::new(shared))
}

impl Inner {
    pub(super) fn make_keyspace(&self, name: &str, kind: KeyspaceKind) -> Result<(Arc<OpenKeyspace>, bool)> {
        self.txns.live_for_write()?;
        check_name(name)?;
        let mut state = self.registry.state.lock();
        if let Some(shared) = state.live.get(name) {
            return Ok((shared.clone(), false));
        }
        let shared = self.registry.add(&self.core, &mut state, (name, kind), false)?;
        state.live.insert(name.to_string(), shared.clone());
        Ok((shared, true))
    }

    /// Makes a keyspace that nobody finds, marked as dropped, so that a crash, or letting go of it, gives it back.
    pub(super) fn make_hidden(&self, name: &str, kind: KeyspaceKind) -> Result<Arc<OpenKeyspace>> {
        self.txns.live_for_write()?;
        check_name(name)?;
        let mut state = self.registry.state.lock();
        if state.live.contains_key(name) {
            return Err(Error::keyspace_exists(name));
        }
        self.registry.add_hidden(&self.core, &mut state, (name, kind))
    }

    /// The same, of the kind of the keyspace that it is to replace, and the number of that one.
    pub(super) fn make_hidden_for(&self, name: &str) -> Result<(Arc<OpenKeyspace>, KeyspaceId)> {
        self.txns.live_for_write()?;
        let mut state = self.registry.state.lock();
        let Some(old) = state.live.get(name) else { return Err(Error::NoSuchKeyspace(name.to_string())) };
        old.check_changing()?;
        let (kind, id) = (old.index().kind(), old.id());
        Ok((self.registry.add_hidden(&self.core, &mut state, (name, kind))?, id))
    }

    /// Makes a hidden keyspace one like any other, durably. It takes the place of the keyspace that is named, if any.
    pub(super) fn show(&self, shared: &Arc<OpenKeyspace>, replaced: Option<KeyspaceId>) -> Result<()> {
        self.txns.live_for_write()?;
        self.registry.show(&self.core, shared, replaced)
    }
}

/// Keyspaces of an open database.
pub(crate) struct Registry {
    catalog: Arc<Index>,
    locks: Arc<LockTable>,
    /// The indexes of all keyspaces that own pages.
    indexes: Arc<Indexes>,
    state: Mutex<State>,
    pub(super) formers: Formers,
}

#[derive(Default)]
struct State {
    live: BTreeMap<String, Arc<OpenKeyspace>>,
    /// Dropped, pages not yet given back.
    dropped: Vec<Arc<OpenKeyspace>>,
    /// Some of those: a newer keyspace has their name, and their entries do not say yet that they are dropped.
    unmarked: Vec<KeyspaceId>,
    /// Highest number given out. It never falls while the database is open: locks and old values of a keyspace that was
    /// dropped must not be taken for those of a new one. (Neither outlives the opening, so it need not be stored.)
    highest: u32,
}

impl Registry {
    /// Reads the catalog.
    pub fn load(core: &Arc<Core>, locks: Arc<LockTable>, indexes: Arc<Indexes>) -> Result<Registry> {
        let index = Arc::new(Index::Tree(Tree::open(core.clone(), CATALOG, CATALOG_ROOT)));
        let catalog = tree_of(&index);
        let mut state = State::default();
        let formers = Formers::default();
        let (mut from, mut ahead): (Vec<u8>, _) = (Vec::new(), ReadAhead::default());
        loop {
            let mut rows = Vec::new();
            let range = (Bound::Included(&from[..]), Bound::Unbounded);
            let end = catalog.read_leaf_batch(range.0, range.1, Direction::Forward, &mut ahead, |_, key, value| {
                if key.starts_with(&UNFINISHED) {
                    return ControlFlow::Continue(());
                }
                rows.push(match value {
                    ValueRef::Inline(value) => Record::decode(key, value),
                    ValueRef::Overflow(_) => Err(bad_catalog("an entry is too long")),
                });
                ControlFlow::Continue(())
            })?;
            for entry in rows {
                let entry = match entry? {
                    Record::Keyspace(entry) => entry,
                    Record::Former(keyspace, root) => {
                        state.highest = state.highest.max(keyspace.0);
                        formers.found(Index::found_former(core, keyspace, root));
                        continue;
                    }
                };
                state.highest = state.highest.max(entry.id.0);
                core.space.place(entry.id, &entry.name);
                let shared = opened(core, &locks, &indexes, &entry)?;
                indexes.add(shared.index());
                if entry.dropping {
                    state.dropped.push(shared);
                } else if let Some(old) = state.live.insert(entry.name, shared) {
                    // In the order of their numbers: a crash came between the two groups of a replacement.
                    old.drop_it(0);
                    state.unmarked.push(old.id());
                    state.dropped.push(old);
                }
            }
            match end.next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(Registry { catalog: index, locks, indexes, state: Mutex::new(state), formers })
    }

    /// Makes a keyspace's entry and its empty index, durably.
    fn add(
        &self,
        core: &Arc<Core>,
        state: &mut State,
        (name, kind): (&str, KeyspaceKind),
        dropping: bool,
    ) -> Result<Arc<OpenKeyspace>> {
        self.indexes.refuse_without_worker(kind)?;
        note_kind(core, kind)?;
        let id = KeyspaceId(state.highest + 1);
        core.space.place(id, name);
        core.space.check_wear(id)?;
        let reserved = core.space.reserve(core, id, 1)?;
        let root = reserved.ids()[0];
        let entry = Entry { kind, id, root, name: name.to_string(), dropping, read_only: None };
        debug_assert!(
            state.live.values().chain(&state.dropped).all(|other| other.id() != id),
            "no two keyspaces have a number in common"
        );
        state.highest = id.0;
        let end = self.set(core, state, &entry, Some(root))?;
        reserved.keep();
        core.log.wait_durable(end)?;
        let shared = opened(core, &self.locks, &self.indexes, &entry)?;
        self.indexes.add(shared.index());
        self.indexes.start(core)?;
        Ok(shared)
    }

    /// Makes a keyspace that is marked as dropped from the beginning.
    fn add_hidden(
        &self,
        core: &Arc<Core>,
        state: &mut State,
        named: (&str, KeyspaceKind),
    ) -> Result<Arc<OpenKeyspace>> {
        let shared = self.add(core, state, named, true)?;
        state.dropped.push(shared.clone());
        Ok(shared)
    }

    /// Makes a hidden keyspace one like any other, in the place of another if `replaced` names one.
    fn show(&self, core: &Arc<Core>, shared: &Arc<OpenKeyspace>, replaced: Option<KeyspaceId>) -> Result<()> {
        let mut state = self.state.lock();
        let name = shared.name();
        let old = match (state.live.get(&*name).cloned(), replaced) {
            (None, Some(_)) => return Err(Error::NoSuchKeyspace(name.to_string())),
            (Some(old), Some(id)) if old.id() == id => Some(old),
            (Some(_), _) => return Err(Error::keyspace_exists(name)),
            (None, None) => None,
        };
        let mut shown = entry(shared, false);
        if let Some(old) = &old {
            old.check_changing()?;
            assert!(old.id() < shared.id(), "of two entries of one name the higher number is the newer one");
            // Its options may have changed since the load began.
            shown.kind = old.index().kind();
            note_kind(core, shown.kind)?;
        }
        let end = self.set(core, &mut state, &shown, None)?;
        // Its rows are older in the log than its entry, and durable with it.
        core.log.wait_durable(end)?;
        let before = state.dropped.len();
        state.dropped.retain(|other| !Arc::ptr_eq(other, shared));
        assert_eq!(state.dropped.len() + 1, before, "what appears was hidden until then");
        shared.appear(end);
        state.live.insert(name.to_string(), shared.clone());
        let Some(old) = old else { return Ok(()) };
        shared.index().set_kind(shown.kind);
        old.drop_it(end);
        state.unmarked.push(old.id());
        state.dropped.push(old);
        drop(state);
        // It is replaced, durably. What cannot be marked and given back now is so later.
        let _ = self.finish_drops(core);
        Ok(())
    }

    /// Says in the catalog what a replacement left to be said: that the older keyspace is dropped.
    fn mark_dropped(&self, core: &Core, state: &mut State) -> Result<()> {
        while let Some(id) = state.unmarked.last() {
            let old = state.dropped.iter().find(|shared| shared.id() == *id).expect("dropped until it is marked");
            self.write_entry(core, &entry(old, true), None)?;
            state.unmarked.pop();
        }
        Ok(())
    }

    /// Takes the mark of a dropped keyspace back, as if it had failed.
    #[cfg(test)]
    pub(super) fn unmark(&self, core: &Core, shared: &OpenKeyspace) -> Result<()> {
        let mut state = self.state.lock();
        let end = self.write_entry(core, &entry(shared, false), None)?;
        state.unmarked.push(shared.id());
        core.log.wait_durable(end)
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.state.lock().live.get(name).cloned()
    }

    /// All keyspaces, by name.
    pub(super) fn infos(&self) -> Vec<KeyspaceInfo> {
        let info = |s: &Arc<OpenKeyspace>| KeyspaceInfo {
            name: s.name().to_string(),
            id: s.id(),
            kind: s.index().kind(),
            root: s.index().root(),
            read_only: s.sealed().is_some(),
        };
        self.state.lock().live.values().map(info).collect()
    }

    /// Holds up changes of the catalog.
    pub(super) fn lock(&self) -> MutexGuard<'_, impl Sized> {
        self.state.lock()
    }

    /// Gives a keyspace another name, durably.
    pub(super) fn rename(&self, core: &Core, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let mut state = self.state.lock();
        let Some(shared) = state.live.get(from).cloned() else {
            return Err(Error::NoSuchKeyspace(from.to_string()));
        };
        if from == to {
            return Ok(());
        }
        if state.live.contains_key(to) {
            return Err(Error::keyspace_exists(to));
        }
        let end = self.set(core, &mut state, &Entry { name: to.to_string(), ..entry(&shared, false) }, None)?;
        // Callers that ask meanwhile wait: none is told what a power cut could take back.
        core.log.wait_durable(end)?;
        shared.rename(to);
        // Its new pages come from where the next opening has them come from.
        core.space.place(shared.id(), to);
        state.live.remove(from);
        state.live.insert(to.to_string(), shared);
        Ok(())
    }

    /// Drops a keyspace, durably.
    pub(super) fn drop_keyspace(&self, core: &Arc<Core>, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        let Some(shared) = state.live.get(name).cloned() else {
            return Err(Error::NoSuchKeyspace(name.to_string()));
        };
        shared.check_changing()?;
        let end = self.set(core, &mut state, &entry(&shared, true), None)?;
        // Callers that ask meanwhile wait: none is told what a power cut could take back.
        core.log.wait_durable(end)?;
        shared.drop_it(end);
        state.live.remove(name);
        state.dropped.push(shared);
        drop(state);
        self.finish_drops(core)
    }

    /// Marks a keyspace as one that nothing changes, or takes the mark away; durably.
    pub(super) fn seal(&self, core: &Core, shared: &OpenKeyspace, sealed: Option<Sealed>) -> Result<()> {
        let mut state = self.state.lock();
        if shared.is_dropped() {
            return Err(Error::NoSuchKeyspace(shared.name().to_string()));
        }
        if sealed.is_some() {
            core.log.set_feature(&READ_ONLY_KEYSPACES, true)?;
        }
        let end = self.set(core, &mut state, &Entry { read_only: sealed, ..entry(shared, false) }, None)?;
        core.log.wait_durable(end)?;
        shared.seal(sealed);
        Ok(())
    }

    /// Changes the options of a keyspace, durably. What it is made of stays.
    pub(super) fn set_kind(&self, core: &Core, shared: &OpenKeyspace, kind: KeyspaceKind) -> Result<()> {
        let mut state = self.state.lock();
        if shared.is_dropped() {
            return Err(Error::NoSuchKeyspace(shared.name().to_string()));
        }
        // What it merges by already may be left over from a time with a worker.
        if kind.merges_near() != shared.index().kind().merges_near() {
            self.indexes.refuse_without_worker(kind)?;
        }
        note_kind(core, kind)?;
        let end = self.set(core, &mut state, &Entry { kind, ..entry(shared, false) }, None)?;
        core.log.wait_durable(end)?;
        shared.index().set_kind(kind);
        Ok(())
    }

    /// Switches on what the catalog uses of features. They are on already, but in a log that was made by a restore.
    pub fn note_features(&self, core: &Core) -> Result<()> {
        let live = self.live();
        live.iter().try_for_each(|shared| note_kind(core, shared.index().kind()))?;
        let used = [
            (&READ_ONLY_KEYSPACES, live.iter().any(|shared| shared.sealed().is_some())),
            (&FORMER_TREES, self.formers.any()),
        ];
        used.into_iter().filter(|(_, used)| *used).try_for_each(|(feature, _)| core.log.set_feature(feature, true))
    }

    /// The keyspaces that can be used.
    pub fn live(&self) -> Vec<Arc<OpenKeyspace>> {
        self.state.lock().live.values().cloned().collect()
    }

    /// The catalog's own tree.
    pub fn catalog(&self) -> &Tree {
        tree_of(&self.catalog)
    }

    /// The same, as an index.
    pub fn catalog_index(&self) -> &Arc<Index> {
        &self.catalog
    }

    /// Keyspaces that own pages, for `check`.
    pub fn all(&self) -> Vec<Arc<OpenKeyspace>> {
        let state = self.state.lock();
        state.live.values().chain(&state.dropped).cloned().collect()
    }

    /// Sets a keyspace's entry in one log group; with `new_root` (a reserved page), the index's empty root appears in
    /// it too.
    fn set(&self, core: &Core, state: &mut State, entry: &Entry, new_root: Option<PageId>) -> Result<Lsn> {
        self.mark_dropped(core, state)?;
        self.write_entry(core, entry, new_root)
    }

    fn write_entry(&self, core: &Core, entry: &Entry, new_root: Option<PageId>) -> Result<Lsn> {
        let (key, value) = (catalog::key(entry.id), entry.encode());
        let value = CellValue::Inline(&value);
        let room = leaf::cell_size(&key, &value);
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let page = self.leaf(&key, room)?;
        // The leaf is latched already; a new page's latch is nobody else's, so the order of latches is kept.
        if let Some(root) = new_root {
            Index::create(core, &mut group, entry.kind, (entry.id, root))?;
        }
        let n = group.add(page);
        leaf::put(&mut group.page(n), &key, value).expect("prepared");
        core.space.apply(core, &mut group, new_root.as_slice(), &[]);
        group.commit()
    }

    /// Moves a keyspace's root to a free page before `limit`, in one log group with the entry that names it. False when
    /// there is none, or the keyspace was dropped.
    pub fn move_root(&self, core: &Core, shared: &OpenKeyspace, limit: PageId) -> Result<bool> {
        let _state = self.state.lock();
        if shared.is_dropped() {
            return Ok(false);
        }
        let Some(reserved) = core.space.reserve_before(core, shared.id(), limit) else { return Ok(false) };
        let entry = Entry { root: reserved.ids()[0], ..entry(shared, false) };
        let (key, value) = (catalog::key(entry.id), entry.encode());
        let value = CellValue::Inline(&value);
        let _resident = core.pool.load(shared.index().root())?;
        let mut group = Group::begin(core, GroupKind::System, 5 * core.page_size())?;
        let page = self.leaf(&key, leaf::cell_size(&key, &value))?;
        let n = group.add(page);
        shared.index().move_root(group, reserved, |group| {
            leaf::put(&mut group.page(n), &key, value).expect("prepared");
        })?;
        Ok(true)
    }

    /// Removes the entry of a keyspace whose index was cleared, and frees the index's root, in one log group.
    fn remove(&self, core: &Core, index: &Index) -> Result<()> {
        let key = catalog::key(index.keyspace());
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let page = self.leaf(&key, 0)?;
        let root = index.free_root(&mut group)?;
        let n = group.add(page);
        leaf::remove(&mut group.page(n), &key).expect("prepared");
        core.space.apply(core, &mut group, &[], &[root]);
        group.commit()?;
        core.space.freed(&[root]);
        self.indexes.remove(index.keyspace());
        Ok(())
    }

    /// The catalog's leaf for `key`, latched, with room, and found sound.
    pub(super) fn leaf(&self, key: &[u8], room: usize) -> Result<PageWrite<'_>> {
        let page = self.catalog().write_leaf(key, room)?;
        let id = page.id();
        leaf::prepare(page.bytes(), key, room).map_err(|damage| rows::corrupt(id, CATALOG, damage))?;
        Ok(page)
    }

    /// Gives back the pages of dropped keyspaces that nobody holds any more.
    pub fn finish_drops(&self, core: &Arc<Core>) -> Result<()> {
        let mut state = self.state.lock();
        self.mark_dropped(core, &mut state)?;
        let (ready, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.dropped).into_iter().partition(|s| Arc::strong_count(s) == 1);
        state.dropped = held;
        let mut result = Ok(());
        for shared in ready {
            debug_assert!(
                !state.live.values().any(|live| live.id() == shared.id()),
                "what is dropped is found by nobody"
            );
            if result.is_ok() {
                result = shared.index().dismantle(&|| true).and_then(|_| self.remove(core, shared.index()));
                if result.is_ok() {
                    continue;
                }
            }
            // Its pages and its number are not free yet.
            state.dropped.push(shared);
        }
        result
    }
}

/// The catalog is a tree, whatever the keyspaces are.
fn tree_of(catalog: &Index) -> &Tree {
    match catalog {
        Index::Tree(tree) => tree,
        Index::Lsm(_) => unreachable!("the catalog is opened as a tree"),
    }
}

fn bad_catalog(what: &str) -> Error {
    Error::corrupt_page(CATALOG_ROOT, Some(CATALOG), format!("catalog: {what}"))
}
