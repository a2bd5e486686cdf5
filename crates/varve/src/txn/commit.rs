//! From a set of writes to one log group.
//!
//! Steps: reserve pages for long values; take room for pins; find and pin the leaves, dividing those without room
//! (groups of their own); begin the group (log space); make the long values' pages; latch the leaves in (keyspace, key)
//! order and validate each; set old values aside if a snapshot is open; change; append; store the old values; unlatch.
//! Everything that can fail comes before the first change. A leaf that changed between pinning and latching sends us
//! back to the pinning.
//!
//! Invariants: the writer holds X locks that cover every key it writes, so neither the keys' presence nor the pages of
//! values it replaces change under it. No latch is held while pages are read, split or freed. A page that is freed
//! while pinned is not given out again before the pin is gone, so latching in key order cannot meet a page that has
//! moved to another place in that order (`Space::freed`).

use super::registry::{Saving, Snapshots};
use super::stream::Stored;
use super::version::{Old, OldValue};
use super::{Durability, Manager, count};
use crate::btree::leaf::Intake;
use crate::btree::{CellValue, OverflowRef, Tree, ValueRef, corrupt, leaf, overflow};
use crate::buffer::{Latched, PagePin, PageRead, PageWrite};
use crate::error::{Error, Result};
use crate::page::FoundLeaf;
use crate::page::{Group, PageNo};
use crate::space::Core;
use crate::space::direct;
use crate::space::{HeldPages, Reserved};
use crate::wal::GroupKind;
use std::collections::BTreeMap;
use std::ops::Range;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::{Lsn, PageId};

/// A value that a commit writes.
#[derive(Clone, Copy)]
pub(super) enum New<'a> {
    Bytes(&'a [u8]),
    /// In pages that the commit links.
    Stored(&'a Stored),
}

/// One write of a commit; a commit has them in (keyspace, key) order.
pub(super) struct Op<'a> {
    pub tree: &'a Tree,
    pub key: &'a [u8],
    /// `None`: delete.
    pub value: Option<New<'a>>,
    /// A leaf that covered the key a while ago.
    pub leaf: Option<FoundLeaf>,
}

impl<'a> Op<'a> {
    /// The value, when it is one that the commit writes to pages of its own.
    fn long(&self) -> Option<&'a [u8]> {
        match self.value {
            Some(New::Bytes(value)) if value.len() > self.tree.max_inline(self.key.len()) => Some(value),
            _ => None,
        }
    }

    /// The value, when it lies in pages already.
    fn stored(&self) -> Option<&'a Stored> {
        match self.value {
            Some(New::Stored(stored)) => Some(stored),
            _ => None,
        }
    }

    /// Bytes that the leaf's cell will hold as the value; none for a deletion.
    fn cell_value_len(&self) -> Option<usize> {
        self.value.map(|value| match value {
            New::Bytes(value) if self.long().is_none() => value.len(),
            _ => OverflowRef::LEN,
        })
    }

    /// Bytes of room that the write needs in a leaf without the key.
    fn need(&self) -> usize {
        self.cell_value_len().map_or(0, |len| leaf::cell_size(self.key, &CellValue::Inline(&[])) + len)
    }
}

/// What a commit did.
pub(super) struct Done {
    /// End of its group: its commit number.
    pub end: Lsn,
    /// Whether anything changed: a deletion of nothing, or a value put over itself, makes no group.
    pub changed: bool,
    /// Writes (by place) whose leaf should be tidied.
    pub shrunk: Vec<usize>,
    /// Snapshots were open: the pages of long values that it replaced are not free yet.
    held: bool,
}

/// A leaf that takes a run of the writes.
struct Leaf<'a> {
    pin: PagePin<'a>,
    ops: Range<usize>,
    /// What was found when it was looked at, and the leaf's LSN then: as long as that is its LSN, the leaf is the same.
    seen: Option<(Lsn, LongValues)>,
}

/// Long values that writes (by place) replace.
type LongValues = Vec<(usize, OverflowRef)>;

/// What a look at a leaf for a run of writes shows.
enum Look {
    Fits(LongValues),
    Full,
}

/// A long value that will be replaced or deleted.
struct Replaced {
    reference: OverflowRef,
    pages: Vec<PageId>,
}

/// What a write replaces, for the snapshots that need it.
enum Before {
    Bytes(Box<[u8]>),
    /// A long value, which stays where it is.
    Long,
}

enum Attempt<'a> {
    Done(Done),
    /// A leaf changed between pinning and latching.
    Moved,
    /// Long values that are going to be replaced, and whose pages are not known yet.
    Unknown(LongValues, Group<'a>),
}

struct Run<'a> {
    manager: &'a Manager,
    core: &'a Core,
    ops: &'a [Op<'a>],
    durability: Durability,
    stripe: u64,
    /// Told the commit number as soon as there is one.
    tell: Option<&'a AtomicU64>,
    replaced: BTreeMap<usize, Replaced>,
    /// Direct pages that the group marks as allocated.
    linked: Vec<PageId>,
}

/// Makes the writes of a transaction take effect. Not durable yet on return.
///
/// # Errors
/// `TransactionTooLarge` before any change; device errors and `Poisoned`. After an error nothing was changed, except
/// that with `Poisoned` the changes may show in memory, where reads of them fail.
pub(super) fn run(
    manager: &Manager,
    ops: &[Op<'_>],
    durability: Durability,
    stripe: u64,
    tell: Option<&AtomicU64>,
) -> Result<Done> {
    debug_assert!(in_order(ops));
    let (replaced, linked) = (BTreeMap::new(), Vec::new());
    let run = Run { manager, core: &manager.core, ops, durability, stripe, tell, replaced, linked };
    let done = run.run()?;
    count(&manager.counters.commits);
    Ok(done)
}

impl<'a> Run<'a> {
    fn run(mut self) -> Result<Done> {
        let long = self.pages_of_long_values();
        self.check_pages(long)?;
        let mut stored: Vec<_> = self.ops.iter().filter_map(Op::stored).map(|s| s.pages.lock()).collect();
        let linking = direct::link(self.core, &mut stored)?;
        self.linked = stored.iter().flat_map(|pages| pages.written()).collect();
        let reserved = if long > 0 { Some(self.core.space.reserve(self.core, long)?) } else { None };
        let done = loop {
            let mut room = self.core.pool.room_for_pins(self.most_pages(long));
            let leaves = self.pin_leaves(long)?;
            room.keep(long + leaves.len());
            let group = Group::begin(self.core, GroupKind::Commit, self.log_bytes(&leaves, long))?;
            match self.attempt(group, &leaves, reserved.as_ref())? {
                Attempt::Done(done) => break done,
                Attempt::Moved => count(&self.manager.counters.relatched),
                Attempt::Unknown(found, group) => {
                    drop((group, leaves, room));
                    self.learn(found)?;
                }
            }
        };
        if let Some(reserved) = reserved {
            reserved.keep();
        }
        if let Some(linking) = linking {
            stored.iter_mut().for_each(|pages| linking.linked_all(pages));
        }
        if done.held {
            // Those that no snapshot needs were let go of at once.
            self.core.space.free_let_go();
        } else if !self.replaced.is_empty() {
            self.core.space.freed(&self.replaced_pages());
        }
        Ok(done)
    }

    /// Pages of the long values that it replaces.
    fn replaced_pages(&self) -> Vec<PageId> {
        self.replaced.values().flat_map(|r| r.pages.iter().copied()).collect()
    }

    fn pages_of_long_values(&self) -> usize {
        let pages = |op: &Op<'_>| match op.long() {
            Some(value) => overflow::pages_for(self.core, op.tree.keyspace(), value.len() as u64),
            None => 0,
        };
        self.ops.iter().map(pages).sum()
    }

    /// All pages of a commit are latched at once: they must leave the pool room to work.
    fn check_pages(&self, pages: usize) -> Result<()> {
        let limit = self.core.pool.pin_limit();
        if pages <= limit {
            return Ok(());
        }
        let bytes = |pages: usize| (pages * self.core.page_size()) as u64;
        Err(Error::TransactionTooLarge { what: "changed pages", needed: bytes(pages), limit: bytes(limit) })
    }

    /// Pages that the commit may have to pin, `long` of them for long values: as many leaves as there are writes.
    fn most_pages(&self, long: usize) -> usize {
        (long + self.ops.len()).min(self.core.pool.pin_limit())
    }

    fn damaged(&self, op: usize, page: PageId) -> impl Fn(crate::btree::node::Damage) -> Error {
        let keyspace = self.ops[op].tree.keyspace();
        move |damage| corrupt(page, keyspace, damage)
    }

    /// Finds the leaf of every write and makes room in it.
    fn pin_leaves(&self, long: usize) -> Result<Vec<Leaf<'a>>> {
        let mut leaves: Vec<Leaf<'a>> = Vec::new();
        let mut at = 0;
        while at < self.ops.len() {
            let leaf = self.pin_leaf(at)?;
            at = leaf.ops.end;
            leaves.push(leaf);
            self.check_pages(long + leaves.len())?;
        }
        Ok(leaves)
    }

    /// The leaf that covers a write's key: by descent, unless it is still the one that the transaction read.
    fn leaf(&self, op: &Op<'a>) -> Result<PageRead<'a>> {
        if let Some(found) = op.leaf
            && let Some(page) = self.core.pool.read_resident(found.page)
            && page.is_compared()
            && self.core.nodes_left() == found.left
            && leaf::covers(page.bytes(), op.tree.keyspace(), op.key)
        {
            return Ok(page);
        }
        op.tree.leaf(op.key)
    }

    fn pin_leaf(&self, at: usize) -> Result<Leaf<'a>> {
        let tree = self.ops[at].tree;
        let covered = {
            let page = self.leaf(&self.ops[at])?;
            let covered = self.covered(&page, at)?;
            if let Look::Fits(long) = self.look(page.bytes(), page.id(), at..at + covered)? {
                return Ok(Leaf { pin: page.pin(), ops: at..at + covered, seen: Some((page.lsn(), long)) });
            }
            covered
        };
        // The exact need was too much; what a division is told is an upper bound. More than a page of writes fits into
        // no leaf, so the rest is not told.
        let mut sum = 0;
        let told = self.ops[at..at + covered].iter().map(|op| (op.key, op.need()));
        let sizes: Vec<(&[u8], usize)> = told
            .take_while(|(_, size)| {
                let more = sum <= self.core.page_size();
                sum += size;
                more
            })
            .collect();
        let (pin, taken) = tree.leaf_for_writes(&sizes)?;
        Ok(Leaf { pin, ops: at..at + taken, seen: None })
    }

    /// How many writes from `at` on the leaf covers, of which it covers the first.
    fn covered(&self, page: &PageRead<'_>, at: usize) -> Result<usize> {
        let keyspace = self.ops[at].tree.keyspace();
        let leaf = Intake::new(page.bytes()).map_err(self.damaged(at, page.id()))?;
        let covers = |op: &Op<'_>| op.tree.keyspace() == keyspace && leaf.covers_too(op.key);
        // Usually one, or all that are left.
        if !self.ops.get(at + 1).is_some_and(covers) {
            return Ok(1);
        }
        let same = self.ops[at..].partition_point(|op| op.tree.keyspace() == keyspace);
        if covers(&self.ops[at + same - 1]) {
            return Ok(same);
        }
        Ok(1 + self.ops[at + 1..at + same].partition_point(covers))
    }

    /// Whether the leaf has room for these writes, all of which it covers, and is sound enough to take them; which long
    /// values they replace.
    fn look(&self, bytes: &[u8], page: PageId, ops: Range<usize>) -> Result<Look> {
        let first = ops.start;
        let mut intake = Intake::new(bytes).map_err(self.damaged(first, page))?;
        let mut long = Vec::new();
        for at in ops {
            let op = &self.ops[at];
            let old = intake.add(op.key, op.cell_value_len()).map_err(self.damaged(at, page))?;
            if let Some(ValueRef::Overflow(reference)) = old {
                long.push((at, reference));
            }
            // A leaf at the end of the tree covers all that is left of a long run of writes: do not look at it all.
            if !intake.fits() {
                return Ok(Look::Full);
            }
        }
        intake.check().map_err(self.damaged(first, page))?;
        Ok(Look::Fits(long))
    }

    /// Most bytes that the group's record can take.
    fn log_bytes(&self, leaves: &[Leaf<'_>], long: usize) -> usize {
        let page = self.core.page_size() + 64;
        let freed: usize = self.replaced.values().map(|r| r.pages.len()).sum();
        let maps = (long + freed + self.linked.len()).min(self.core.space.maps() as usize);
        (leaves.len() + long + maps) * page
    }

    /// Finds the pages of long values before they are replaced.
    fn learn(&mut self, found: LongValues) -> Result<()> {
        for (at, reference) in found {
            let pages = overflow::pages(self.core, self.ops[at].tree.keyspace(), &reference)?;
            self.replaced.insert(at, Replaced { reference, pages });
        }
        Ok(())
    }

    fn known(&self, op: usize, reference: OverflowRef) -> Option<&Replaced> {
        self.replaced.get(&op).filter(|r| r.reference == reference)
    }

    fn attempt(
        &self,
        mut group: Group<'a>,
        leaves: &[Leaf<'a>],
        reserved: Option<&Reserved<'_>>,
    ) -> Result<Attempt<'a>> {
        let ids = reserved.map_or(&[][..], |r| r.ids());
        let values = self.place_long_values(&mut group, ids)?;
        let mut unknown = Vec::new();
        let Some(latched) = self.latch(leaves, &mut unknown)? else { return Ok(Attempt::Moved) };
        unknown.retain(|&(op, reference)| self.known(op, reference).is_none());
        if !unknown.is_empty() {
            return Ok(Attempt::Unknown(unknown, group));
        }
        let saving = self.manager.snapshots.begin_commit(self.stripe);
        let held = matches!(saving, Saving::Yes);
        let old = if held { self.old_values(&latched, leaves) } else { Vec::new() };
        // From here on nothing fails.
        let pages: Vec<PageNo> = latched.into_iter().map(|page| group.add(page)).collect();
        let references = self.write_long_values(&mut group, values);
        let shrunk = self.change(&mut group, &pages, leaves, &references);
        let freed = self.replaced_pages();
        let ids = [ids, &self.linked].concat();
        self.core.space.apply(self.core, &mut group, &ids, &freed);
        let manager = self.manager;
        let mut changed = false;
        let end = group.commit_with(|end| {
            changed = true;
            manager.note_commit(end, self.durability);
            if let Some(tell) = self.tell {
                tell.store(end, Ordering::Release);
            }
            self.keep_old(&manager.snapshots, end, old);
        })?;
        drop(saving);
        Ok(Attempt::Done(Done { end, changed, shrunk, held }))
    }

    fn keep_old(&self, snapshots: &Snapshots, end: Lsn, old: Vec<Option<Before>>) {
        if old.is_empty() {
            return;
        }
        let value = |at: usize, before: Before| match before {
            Before::Bytes(bytes) => Old::Bytes(bytes),
            Before::Long => {
                let Replaced { reference, pages } = &self.replaced[&at];
                Old::Long(*reference, HeldPages::new(&self.manager.core, pages))
            }
        };
        let old = old.into_iter().zip(self.ops).enumerate();
        snapshots.keep(end, old.map(|(at, (b, op))| (op.tree.keyspace(), op.key, b.map(|before| value(at, before)))));
    }

    /// Latches the leaves in order; `None` when one of them no longer does for its writes. Appends the long values that
    /// will be replaced.
    fn latch(&self, leaves: &[Leaf<'a>], long: &mut LongValues) -> Result<Option<Vec<PageWrite<'a>>>> {
        let mut latched: Vec<PageWrite<'a>> = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            if latched.last().is_some_and(|page| page.id() == leaf.pin.id()) {
                return Ok(None);
            }
            let page = leaf.pin.write();
            match &leaf.seen {
                // (What a failed log write left behind all has the same LSN.)
                Some((lsn, found)) if *lsn == page.lsn() && *lsn != Lsn::MAX => long.extend(found),
                _ => {
                    let keyspace = self.ops[leaf.ops.start].tree.keyspace();
                    let ends = [leaf.ops.start, leaf.ops.end - 1];
                    if !ends.iter().all(|&op| leaf::covers(page.bytes(), keyspace, self.ops[op].key)) {
                        return Ok(None);
                    }
                    let Look::Fits(found) = self.look(page.bytes(), page.id(), leaf.ops.clone())? else {
                        return Ok(None);
                    };
                    long.extend(found);
                }
            }
            latched.push(page);
        }
        Ok(Some(latched))
    }

    /// The values that the writes replace, in their order.
    fn old_values(&self, latched: &[PageWrite<'_>], leaves: &[Leaf<'_>]) -> Vec<Option<Before>> {
        let mut old = Vec::with_capacity(self.ops.len());
        for (page, leaf) in latched.iter().zip(leaves) {
            for op in &self.ops[leaf.ops.clone()] {
                old.push(leaf::get(page.bytes(), op.key).expect("inspected").map(|value| match value {
                    ValueRef::Inline(value) => Before::Bytes(value.into()),
                    ValueRef::Overflow(_) => Before::Long,
                }));
            }
        }
        old
    }

    /// Takes the pages of long values into the group, unchanged so far: `(write, pages)`.
    fn place_long_values<'i>(&self, group: &mut Group<'a>, ids: &'i [PageId]) -> Result<Vec<LongValue<'i>>> {
        let (mut placed, mut rest) = (Vec::new(), ids);
        for (at, op) in self.ops.iter().enumerate() {
            let Some(value) = op.long() else { continue };
            let keyspace = op.tree.keyspace();
            let (ids, others) = rest.split_at(overflow::pages_for(self.core, keyspace, value.len() as u64));
            rest = others;
            placed.push(LongValue { op: at, ids, pages: overflow::place(self.core, group, keyspace, ids)? });
        }
        Ok(placed)
    }

    fn write_long_values(&self, group: &mut Group<'a>, placed: Vec<LongValue<'_>>) -> Vec<(usize, OverflowRef)> {
        let fill = |v: LongValue<'_>| {
            let op = &self.ops[v.op];
            let value = op.long().expect("it has pages");
            (v.op, overflow::fill_placed(self.core, group, op.tree.keyspace(), value, v.ids, &v.pages))
        };
        placed.into_iter().map(fill).collect()
    }

    /// Makes the changes; returns the writes whose leaf became underfull.
    fn change(
        &self,
        group: &mut Group<'a>,
        pages: &[PageNo],
        leaves: &[Leaf<'_>],
        references: &[(usize, OverflowRef)],
    ) -> Vec<usize> {
        let mut shrunk = Vec::new();
        for (i, (&page, leaf)) in pages.iter().zip(leaves).enumerate() {
            // The next leaf's room comes from far while this one is changed.
            if let (Some(&next), Some(leaf)) = (pages.get(i + 1), leaves.get(i + 1)) {
                leaf::fetch_room(group.bytes(next), self.ops[leaf.ops.start].need());
            }
            let mut underfull = None;
            for at in leaf.ops.clone() {
                let op = &self.ops[at];
                let mut page = group.page(page);
                let change = match op.value {
                    None => leaf::remove(&mut page, op.key),
                    Some(New::Stored(stored)) => leaf::put(&mut page, op.key, CellValue::Overflow(stored.reference)),
                    Some(New::Bytes(value)) => {
                        let long = references.binary_search_by_key(&at, |(op, _)| *op).ok();
                        let cell = long.map_or(CellValue::Inline(value), |i| CellValue::Overflow(references[i].1));
                        leaf::put(&mut page, op.key, cell)
                    }
                };
                let change = change.expect("a leaf that was inspected takes the change");
                if change.underfull {
                    underfull = Some(at);
                }
            }
            shrunk.extend(underfull);
        }
        shrunk
    }
}

struct LongValue<'i> {
    op: usize,
    ids: &'i [PageId],
    pages: Vec<PageNo>,
}

/// A write of one short value or a deletion, by the short way.
pub(super) struct Short<'a> {
    pub manager: &'a Manager,
    pub op: Op<'a>,
    pub durability: Durability,
    pub stripe: u64,
    /// Told the commit number as soon as there is one.
    pub tell: Option<&'a AtomicU64>,
}

/// What the short way came to.
pub(super) enum ShortEnd {
    /// End of the group; whether the key was there, and the LSN of the page that said so; whether the leaf should be
    /// tidied.
    Done { end: Lsn, existed: bool, read: Lsn, shrunk: bool },
    /// It takes the long way: a long value is involved.
    Long,
}

impl Short<'_> {
    /// One descent, one latched leaf, one group.
    pub fn run(self) -> Result<ShortEnd> {
        let Short { manager, op, durability, stripe, tell } = self;
        let core = &*manager.core;
        let value = match op.value {
            None => None,
            Some(New::Bytes(value)) if op.long().is_none() => Some(value),
            Some(_) => return Ok(ShortEnd::Long),
        };
        let mut group = Group::begin(core, GroupKind::Commit, core.page_size() + 64)?;
        let damaged = |page: PageId| move |damage| corrupt(page, op.tree.keyspace(), damage);
        let mut page = op.tree.write_leaf(op.key, 0)?;
        let (saved, saving) = loop {
            let mut intake = Intake::new(page.bytes()).map_err(damaged(page.id()))?;
            let old = intake.add(op.key, op.cell_value_len()).map_err(damaged(page.id()))?;
            if !intake.fits() {
                drop(page);
                page = op.tree.write_leaf(op.key, op.need())?;
                continue;
            }
            let old = match old {
                Some(ValueRef::Overflow(_)) => return Ok(ShortEnd::Long),
                None if op.value.is_none() => {
                    return Ok(ShortEnd::Done { end: page.lsn(), existed: false, read: page.lsn(), shrunk: false });
                }
                Some(ValueRef::Inline(value)) => Some(value),
                None => None,
            };
            intake.check().map_err(damaged(page.id()))?;
            let saving = manager.snapshots.begin_commit(stripe);
            let saved: Option<OldValue> =
                matches!(saving, Saving::Yes).then(|| old.map(|value| Old::Bytes(value.into())));
            break (saved, saving);
        };
        let read = page.lsn();
        let n = group.add(page);
        let change = match value {
            Some(value) => leaf::put(&mut group.page(n), op.key, CellValue::Inline(value)),
            None => leaf::remove(&mut group.page(n), op.key),
        };
        let change = change.expect("a leaf that was prepared takes the change");
        let end = group.commit_with(|end| {
            manager.note_commit(end, durability);
            if let Some(tell) = tell {
                tell.store(end, Ordering::Release);
            }
            if let Some(saved) = saved {
                manager.snapshots.keep(end, std::iter::once((op.tree.keyspace(), op.key, saved)));
            }
        })?;
        drop(saving);
        count(&manager.counters.commits);
        Ok(ShortEnd::Done { end, existed: change.existed, read, shrunk: change.underfull })
    }
}

/// Whether writes are in the order that commits keep.
fn in_order(ops: &[Op<'_>]) -> bool {
    ops.windows(2).all(|w| (w[0].tree.keyspace(), w[0].key) < (w[1].tree.keyspace(), w[1].key))
}
