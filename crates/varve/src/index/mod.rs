//! Kinds of index: what a transaction, a check, a compaction and a checkpoint need of any of them.
//!
//! A keyspace's rows are in an index. Each kind is a folder of its own below this module; here is one arm for it in
//! each enum, and a call for each thing that is asked of it. To add a kind: write its folder, add its arm to [`Index`],
//! [`Planned`], [`Ready`] and [`Load`] (`upkeep`), what it remembers of a scan to [`ScanState`], its kind to
//! [`KeyspaceKind`] with a number in the catalog, and its page types to `salvage`. Nobody above names a kind, but that
//! the catalog is a tree.
//!
//! How a commit writes: [`Index::plan`] says which part of the index takes a run of its writes and makes room;
//! [`Planned::latch`] latches that part and validates the plan; the old values are read; then the parts join one log
//! group ([`Planned::join`]) and are changed ([`Planned::change`]), which cannot fail. A commit of one short value goes
//! by [`Index::latch_single`] instead.
//!
//! Invariants: a plan takes some of the writes that it was given, never none; what it finds that they replace comes in
//! their order.

mod open;
pub(crate) mod salvage;
mod upkeep;

pub(crate) use crate::btree::LeafCopy;
pub(crate) use crate::btree::Route;
use crate::btree::{self, ReadAhead, Tree};
use crate::error::Result;
pub(crate) use crate::lsm::near::Host as NearHost;
pub use crate::lsm::near::{DecisionOptions, LinkUse, Mode as MergeMode, NearOptions, NearStats, SideStats};
#[cfg(feature = "near")]
pub(crate) use crate::lsm::near::{RemoteWorker, this_machine};
use crate::lsm::{self, Lsm};
pub use crate::lsm::{Compression, LSM_OPTIONS, LsmLevel, LsmOptions, LsmStats, MergeBy, Pick, Pressure};
pub(crate) use crate::lsm::{FoundGroups, Moments};
use crate::page::Group;
use crate::rows::{BatchEnd, Copied, Direction, Hint, LongValues, OverflowRef, Seen, Single, ValueRef, Write};
use crate::space::Core;
pub(crate) use open::Indexes;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
pub(crate) use upkeep::Load;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// What a keyspace is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyspaceKind {
    /// A B+-tree.
    Tree,
    /// A log-structured merge tree.
    Lsm(LsmOptions),
}

impl KeyspaceKind {
    /// Fails for options that are out of range.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            KeyspaceKind::Tree => Ok(()),
            KeyspaceKind::Lsm(options) => options.validate(),
        }
    }

    /// How it is merged, if a worker does a part of that.
    pub fn merges_near(&self) -> Option<MergeBy> {
        match self {
            KeyspaceKind::Lsm(options) => Some(options.merge).filter(|merge| merge.needs_worker()),
            KeyspaceKind::Tree => None,
        }
    }
}

/// The index of a keyspace.
#[derive(Clone)]
pub(crate) enum Index {
    Tree(Tree),
    Lsm(Lsm),
}

/// What a scan remembers from batch to batch, of whatever kind the index is.
#[derive(Debug, Default)]
pub(crate) struct ScanState {
    tree: ReadAhead,
    lsm: lsm::ScanState,
}

impl ScanState {
    /// Whether the next batch goes on where the last one ended, at no more cost than its rows.
    pub fn goes_on(&self) -> bool {
        self.lsm.is_kept()
    }
}

impl Index {
    /// The index of a keyspace that there is.
    pub fn open(
        core: &Arc<Core>,
        indexes: &Indexes,
        kind: KeyspaceKind,
        (keyspace, root): (KeyspaceId, PageId),
    ) -> Result<Index> {
        match kind {
            KeyspaceKind::Tree => Ok(Index::Tree(Tree::open(core.clone(), keyspace, root))),
            KeyspaceKind::Lsm(options) => Lsm::open(core, &indexes.lsm, (keyspace, root), options).map(Index::Lsm),
        }
    }

    /// Makes an empty index on a reserved page, inside `group`, which also marks the page as allocated.
    pub fn create<'c>(
        core: &'c Core,
        group: &mut Group<'c>,
        kind: KeyspaceKind,
        (keyspace, root): (KeyspaceId, PageId),
    ) -> Result<()> {
        match kind {
            KeyspaceKind::Tree => Tree::create_root(core, group, keyspace, root),
            KeyspaceKind::Lsm(_) => Lsm::create(core, group, keyspace, root),
        }
    }

    /// What it is.
    pub fn kind(&self) -> KeyspaceKind {
        match self {
            Index::Tree(_) => KeyspaceKind::Tree,
            Index::Lsm(lsm) => KeyspaceKind::Lsm(lsm.options()),
        }
    }

    /// What it stands on.
    #[inline]
    pub fn core(&self) -> &Core {
        match self {
            Index::Tree(tree) => tree.core(),
            Index::Lsm(lsm) => lsm.core(),
        }
    }

    /// The keyspace's number.
    #[inline]
    pub fn keyspace(&self) -> KeyspaceId {
        match self {
            Index::Tree(tree) => tree.keyspace(),
            Index::Lsm(lsm) => lsm.keyspace(),
        }
    }

    /// The page by which the catalog finds it.
    pub fn root(&self) -> PageId {
        match self {
            Index::Tree(tree) => tree.root(),
            Index::Lsm(lsm) => lsm.tree().root(),
        }
    }

    /// Longest key, in bytes.
    #[inline]
    pub fn max_key(&self) -> usize {
        match self {
            Index::Tree(tree) => tree.max_key(),
            Index::Lsm(lsm) => lsm.max_key(),
        }
    }

    /// Whether a value goes to pages of its own.
    #[inline]
    pub fn is_long(&self, key: &[u8], value: &[u8]) -> bool {
        match self {
            Index::Tree(tree) => tree.is_long(key, value),
            Index::Lsm(_) => false,
        }
    }

    /// Longest value that it takes from a reader, when it has no pages of their own for long ones.
    pub fn max_streamed(&self) -> Option<u64> {
        match self {
            Index::Tree(_) => None,
            Index::Lsm(lsm) => Some(lsm.max_value()),
        }
    }

    /// Whether long values have pages of their own.
    pub fn keeps_long_apart(&self) -> bool {
        self.max_streamed().is_none()
    }

    /// Whether it keeps old values for snapshots by itself, and is read as of any moment that an open snapshot is of.
    #[inline]
    pub fn keeps_versions(&self) -> bool {
        matches!(self, Index::Lsm(_))
    }
}

/// Reading.
impl Index {
    /// Hands the value of `key` to `f` (maybe under a latch: `f` must not wait), and says as of which LSN. The value is
    /// the present one, or as of the moment `at` (`Lsn::MAX`: now) if the index
    /// [keeps versions](Index::keeps_versions).
    #[inline]
    pub fn read<R>(&self, key: &[u8], at: Lsn, f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn)> {
        match self {
            Index::Tree(tree) => tree.read(key, f),
            Index::Lsm(lsm) => lsm.read(key, at, f),
        }
    }

    /// As [`Index::read`] of the present, if that takes no wait; none: it does, or nobody can say.
    pub fn read_now<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<Option<(R, Lsn)>> {
        match self {
            Index::Tree(tree) => tree.read_now(key, f),
            // Whether its segments' blocks are in memory only a search finds out.
            Index::Lsm(_) => Ok(None),
        }
    }

    /// As [`Index::read`] of the present, with a hint for a commit that writes the key.
    #[inline]
    pub fn read_for_write<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn, Option<Hint>)> {
        match self {
            Index::Tree(tree) => tree.read_for_write(key, f).map(|(result, lsn, hint)| (result, lsn, Some(hint))),
            Index::Lsm(lsm) => lsm.read(key, Lsn::MAX, f).map(|(result, lsn)| (result, lsn, None)),
        }
    }

    /// Whether a key is there; `at` as for [`Index::read`]. Reads no long value.
    pub fn contains(&self, key: &[u8], at: Lsn) -> Result<(bool, Lsn)> {
        match self {
            Index::Tree(tree) => tree.contains(key),
            Index::Lsm(lsm) => lsm.contains(key, at),
        }
    }

    /// The value of a key; a long one stays where it lies. `at` as for [`Index::read`].
    pub fn find(&self, key: &[u8], at: Lsn) -> Result<(Option<Copied>, Lsn)> {
        match self {
            Index::Tree(tree) => tree.find(key),
            Index::Lsm(lsm) => lsm.find(key, at),
        }
    }

    /// Asks for the pages of ascending keys that are not in memory, and says where they will be. Waits for no leaf,
    /// only for what leads there.
    pub fn ask_for(&self, keys: &[&[u8]]) -> Route {
        match self {
            Index::Tree(tree) => tree.ask_for(keys),
            // It has nothing that tells the pages of a key without a search.
            Index::Lsm(_) => Route::default(),
        }
    }

    /// Begins to load a page that a route leads to into the processor's cache.
    #[inline]
    pub fn expect(&self, page: PageId) {
        match self {
            Index::Tree(tree) => tree.expect_whole(page),
            Index::Lsm(_) => {}
        }
    }

    /// How many pages may be asked for at a time.
    pub fn most_asked_for(&self) -> usize {
        match self {
            Index::Tree(tree) => tree.most_asked_for(),
            Index::Lsm(_) => 1,
        }
    }

    /// Hands some rows between two bounds to `f`, which must neither touch the pool nor wait: those with which the
    /// range begins, ascending, or those with which it ends, descending. A key is valid during its call only. Before
    /// each goes the LSN that [`BatchEnd::seen`] will have. `at` as for [`Index::read`].
    #[inline]
    pub fn read_batch(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        (direction, at): (Direction, Lsn),
        state: &mut ScanState,
        f: impl FnMut(Lsn, &[u8], ValueRef<'_>) -> ControlFlow<()>,
    ) -> Result<BatchEnd> {
        match self {
            Index::Tree(tree) => tree.read_leaf_batch(range.0, range.1, direction, &mut state.tree, f),
            Index::Lsm(lsm) => lsm.read_batch(range, (direction, at), &mut state.lsm, f),
        }
    }

    /// As [`Index::read_batch`]; rows of a leaf that are no more than `most` may go to `copy` instead.
    #[inline]
    pub fn copy_batch(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        (direction, at): (Direction, Lsn),
        state: &mut ScanState,
        (copy, most): (&mut LeafCopy, usize),
        mut f: impl FnMut(&[u8], ValueRef<'_>) -> ControlFlow<()>,
    ) -> Result<BatchEnd> {
        copy.clear();
        match self {
            Index::Tree(tree) => tree.copy_leaf_batch(range, direction, &mut state.tree, (copy, most), f),
            Index::Lsm(lsm) => lsm.read_batch(range, (direction, at), &mut state.lsm, |_, key, value| f(key, value)),
        }
    }

    /// To be taken before a batch is read by who will ask [`Index::is_unchanged`].
    #[inline]
    pub fn moves(&self) -> u64 {
        match self {
            Index::Tree(tree) => tree.moves(),
            Index::Lsm(_) => 0,
        }
    }

    /// Whether what a batch was read from is as it was then.
    #[inline]
    pub fn is_unchanged(&self, seen: Seen, moves: u64) -> bool {
        match self {
            Index::Tree(tree) => tree.is_unchanged(seen, moves),
            Index::Lsm(lsm) => lsm.is_unchanged(seen),
        }
    }
}

/// A part of an index that takes a run of a commit's writes.
pub(crate) enum Planned<'a> {
    Leaf(btree::LeafWrites<'a>),
    Memtable(lsm::MemtableWrites<'a>),
}

/// A latched part of an index that takes a single short write.
pub(crate) enum Ready<'a> {
    Leaf(btree::SingleLeaf<'a>),
    Memtable(lsm::MemtableWrites<'a>),
}

/// What is to be put in place when the commit has its number.
pub(crate) struct InPlace<'a>(lsm::MemtableWrites<'a>);

impl InPlace<'_> {
    /// The group ended at `commit`, and its pages are still latched. The caller has set out for the
    /// [horizon](crate::page) before, and waits for it before it lets go of them.
    #[inline]
    pub fn take_effect(self, commit: Lsn) {
        self.0.take_effect(commit);
    }
}

/// What a single write did.
#[derive(Clone, Copy)]
pub(crate) struct Changed {
    /// The key was there before.
    pub existed: bool,
    /// [`Index::tidy`] is to be called after the commit.
    pub untidy: bool,
}

/// Writing.
impl Index {
    /// Waits as long as the writer of these has to where merges do not keep up. It may be long: nothing that others
    /// wait for may be held but the locks of what is written.
    #[inline]
    pub fn hold_up(&self, writes: &[Write<'_>]) {
        match self {
            Index::Tree(_) => {}
            Index::Lsm(lsm) => lsm.hold_up(writes),
        }
    }

    /// Plans the first of these writes and as many as go with it, makes room for them and pins what takes them.
    /// `first`: the place of that write in the commit; `decided`: the commit is made in any case; `hints`: where its
    /// key was found, and the next one's. No latch may be held.
    pub fn plan<'a>(
        &'a self,
        writes: &'a [Write<'a>],
        (first, decided): (usize, bool),
        hints: [Option<Hint>; 2],
    ) -> Result<Planned<'a>> {
        let planned = match self {
            Index::Tree(tree) => tree.plan(writes, first, hints).map(Planned::Leaf)?,
            Index::Lsm(lsm) => lsm.plan(writes, decided).map(Planned::Memtable)?,
        };
        assert!((1..=writes.len()).contains(&planned.len()), "a part of an index takes some of the writes");
        Ok(planned)
    }

    /// Latches what takes a single write of a short value, or a deletion. `told` gets the value that is there, under
    /// the latch.
    #[inline]
    pub fn latch_single<'a, T>(
        &'a self,
        write: &'a Write<'a>,
        told: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<Single<Ready<'a>, T>> {
        match self {
            Index::Tree(tree) => Ok(match tree.latch_single(write, told)? {
                Single::Ready(leaf, told) => Single::Ready(Ready::Leaf(leaf), told),
                Single::Nothing(lsn) => Single::Nothing(lsn),
                Single::Long => Single::Long,
            }),
            Index::Lsm(lsm) => Ok(match lsm.latch_single(write, told)? {
                Single::Ready(writes, told) => Single::Ready(Ready::Memtable(writes), told),
                Single::Nothing(lsn) => Single::Nothing(lsn),
                Single::Long => Single::Long,
            }),
        }
    }

    /// Puts in order what a commit left untidy at `key`.
    pub fn tidy(&self, key: &[u8]) -> Result<()> {
        match self {
            Index::Tree(tree) => tree.tidy(key),
            Index::Lsm(_) => Ok(()),
        }
    }
}

impl<'a> Planned<'a> {
    /// How many writes it takes.
    pub fn len(&self) -> usize {
        match self {
            Planned::Leaf(leaf) => leaf.len(),
            Planned::Memtable(writes) => writes.len(),
        }
    }

    /// Pages that it has pinned, each of which may be logged whole.
    pub fn pages(&self) -> usize {
        match self {
            Planned::Leaf(_) => 1,
            Planned::Memtable(_) => 0,
        }
    }

    /// Most bytes of log that it takes beside its pages.
    pub fn log_bytes(&self) -> usize {
        match self {
            Planned::Leaf(_) => 0,
            Planned::Memtable(writes) => writes.log_bytes(),
        }
    }

    /// Whether both are the same part: then the plan is no longer true.
    pub fn is_with(&self, other: &Planned<'_>) -> bool {
        match (self, other) {
            (Planned::Leaf(leaf), Planned::Leaf(other)) => leaf.is_with(other),
            (Planned::Memtable(writes), Planned::Memtable(other)) => writes.is_with(other),
            _ => false,
        }
    }

    /// Latches it; false when it no longer does for its writes. Appends the long values that they replace.
    pub fn latch(&mut self, long: &mut LongValues) -> Result<bool> {
        let before = long.len();
        let latched = match self {
            Planned::Leaf(leaf) => leaf.latch(long)?,
            Planned::Memtable(writes) => {
                writes.enter();
                true
            }
        };
        assert!(long.len() - before <= self.len(), "a write replaces one value");
        debug_assert!(long.windows(2).all(|w| w[0].0 < w[1].0), "the values come in the order of the writes");
        Ok(latched)
    }

    /// Lets go of the latch.
    pub fn unlatch(&mut self) {
        match self {
            Planned::Leaf(leaf) => leaf.unlatch(),
            Planned::Memtable(writes) => writes.leave(),
        }
    }

    /// Hands over the values that the writes replace, in their order; none of an index that keeps versions. It is
    /// latched.
    pub fn old_values(&self, each: impl FnMut(Option<ValueRef<'_>>)) {
        match self {
            Planned::Leaf(leaf) => leaf.old_values(each),
            Planned::Memtable(_) => {}
        }
    }

    /// What is latched goes into the group, not changed yet.
    pub fn join(&mut self, group: &mut Group<'a>) {
        match self {
            Planned::Leaf(leaf) => leaf.join(group),
            Planned::Memtable(_) => {}
        }
    }

    /// Asks the processor for what the changes will touch.
    pub fn fetch(&self, group: &Group<'a>) {
        match self {
            Planned::Leaf(leaf) => leaf.fetch(group),
            Planned::Memtable(_) => {}
        }
    }

    /// Makes the changes; `long` are the values that the commit wrote to pages of their own, by the place of their
    /// write. Returns the place of a write whose key is to be tidied.
    pub fn change(&self, group: &mut Group<'a>, long: &[(usize, OverflowRef)]) -> Option<usize> {
        match self {
            Planned::Leaf(leaf) => leaf.change(group, long),
            Planned::Memtable(writes) => {
                writes.record(group);
                None
            }
        }
    }

    /// What is to be put in place when the commit has its number.
    pub fn in_place(self) -> Option<InPlace<'a>> {
        match self {
            Planned::Leaf(_) => None,
            Planned::Memtable(writes) => Some(InPlace(writes)),
        }
    }
}

impl<'a> Ready<'a> {
    /// As of which LSN it was latched.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        match self {
            Ready::Leaf(leaf) => leaf.lsn(),
            Ready::Memtable(_) => 0,
        }
    }

    /// Makes the change in the group.
    #[inline]
    pub fn change(self, group: &mut Group<'a>, write: &Write<'_>) -> (Changed, Option<InPlace<'a>>) {
        match self {
            Ready::Leaf(leaf) => {
                let change = leaf.change(group, write);
                (Changed { existed: change.existed, untidy: change.underfull }, None)
            }
            Ready::Memtable(writes) => {
                writes.record(group);
                (Changed { existed: write.value.is_none(), untidy: false }, Some(InPlace(writes)))
            }
        }
    }
}
