//! From a set of writes to one log group.
//!
//! Steps: wait where merges do not keep up; reserve pages for long values; take room for pins; have each index plan its
//! writes (find and pin what takes them, with room: groups of their own); begin the group (log space); make the long
//! values' pages; latch what was planned, in (keyspace, key) order, and validate each; set old values aside if a
//! snapshot is open; change; append; store the old values; unlatch. Everything that can fail comes before the first
//! change. A part of an index that changed between planning and latching sends us back to the planning.
//!
//! Invariants: the writer holds X locks that cover every key it writes, so neither the keys' presence nor the pages of
//! values it replaces change under it. No latch is held while pages are read, made room in or freed. A page that is
//! freed while pinned is not given out again before the pin is gone, so latching in key order cannot meet a page that
//! has moved to another place in that order (`Space::freed`).

use super::many::Ahead;
use super::registry::{Saving, Snapshots};
use super::stream::Stored;
use super::version::{Old, OldValue};
use super::{Durability, Manager, count};
use crate::error::{Error, Result};
use crate::index::{InPlace, Index, Planned};
use crate::page::{Group, OnItsWay, PageNo};
use crate::rows::{LongValues, NewValue, OverflowRef, Single, ValueRef, Write, overflow};
use crate::space::{Core, HeldPages, Reserved, direct};
use crate::wal::GroupKind;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// From so many writes of a keyspace on, a commit asks for their pages before it looks at them one by one.
const MANY: usize = 16;

/// The parts of indexes that take the writes of a commit; most commits change one or two.
type Parts<'a> = SmallVec<[Planned<'a>; 2]>;

/// A keyspace that a commit writes to. A commit has them in the order of their numbers.
pub(super) struct Target<'a> {
    pub index: &'a Index,
    /// Its writes among those of the commit.
    pub writes: Range<usize>,
    /// Values among them that lie in pages already, which the commit links.
    pub stored: Vec<&'a Stored>,
}

impl<'a> Target<'a> {
    /// The one to which the commit's write at this place goes.
    pub fn of<'t>(targets: &'t [Target<'a>], at: usize) -> &'t Target<'a> {
        let target = &targets[targets.partition_point(|target| target.writes.end <= at)];
        assert!(target.writes.contains(&at), "the keyspaces share the writes out among them");
        target
    }

    /// Writes of values that the commit writes to pages of their own: their place and the value.
    fn long<'w>(&self, writes: &'w [Write<'w>]) -> impl Iterator<Item = (usize, &'w [u8])> {
        let of = |(at, write): (usize, &Write<'w>)| match write.value {
            Some(NewValue::Bytes(value)) if self.index.is_long(write.key, value) => Some((at, value)),
            _ => None,
        };
        self.writes.clone().zip(&writes[self.writes.clone()]).filter_map(of)
    }
}

/// What a commit did.
pub(super) struct Done {
    /// End of its group: its commit number.
    pub end: Lsn,
    /// Whether anything changed: a deletion of nothing, or a value put over itself, makes no group.
    pub changed: bool,
    /// Writes (by place) after which their index should be tidied.
    pub untidy: Vec<usize>,
    /// Snapshots were open: the pages of long values that it replaced are not free yet.
    held: bool,
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
    /// A part of an index changed between planning and latching.
    Moved,
    /// Long values that are going to be replaced, and whose pages are not known yet.
    Unknown(LongValues, Group<'a>),
}

/// What a commit is beside its writes.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    /// Any number that spreads threads.
    pub stripe: u64,
    /// Told the commit number as soon as there is one.
    pub tell: Option<&'a AtomicU64>,
    /// It is a part of a commit that has this number already.
    pub piece_of: Option<Lsn>,
}

struct Run<'a> {
    manager: &'a Manager,
    core: &'a Core,
    targets: &'a [Target<'a>],
    writes: &'a [Write<'a>],
    durability: Durability,
    how: How<'a>,
    replaced: BTreeMap<usize, Replaced>,
    /// Direct pages that the group marks as allocated.
    linked: Vec<PageId>,
}

/// Makes the writes of a transaction take effect, those of each target in key order. Not durable yet on return.
///
/// # Errors
/// `TransactionTooLarge` before any change; device errors and `Poisoned`. After an error nothing was changed, except
/// that with `Poisoned` the changes may show in memory, where reads of them fail.
pub(super) fn run(
    manager: &Manager,
    targets: &[Target<'_>],
    writes: &[Write<'_>],
    durability: Durability,
    how: How<'_>,
) -> Result<Done> {
    debug_assert!(in_order(targets, writes), "writes come in the order of (keyspace, key)");
    let (core, replaced, linked) = (&*manager.core, BTreeMap::new(), Vec::new());
    let is_piece = how.piece_of.is_some();
    let done = Run { manager, core, targets, writes, durability, how, replaced, linked }.run()?;
    if !is_piece {
        count(&manager.counters.commits);
    }
    Ok(done)
}

impl<'a> Run<'a> {
    fn run(mut self) -> Result<Done> {
        let long = self.pages_of_long_values();
        self.check_pages(long)?;
        self.targets.iter().for_each(|target| target.index.hold_up(&self.writes[target.writes.clone()]));
        let mut stored: Vec<_> = self.targets.iter().flat_map(|t| &t.stored).map(|s| s.pages.lock()).collect();
        let reserved = if long > 0 { Some(self.reserve_long()?) } else { None };
        let mut hints = true;
        let (done, linking) = loop {
            let mut room = self.core.pool.room_for_pins(self.most_pages(long));
            let mut parts = self.plan(long, hints)?;
            let pages = long + parts.iter().map(Planned::pages).sum::<usize>();
            room.keep(pages);
            direct::write_out(self.core, &mut stored)?;
            self.linked = stored.iter().flat_map(|pages| pages.written()).collect();
            let beside = parts.iter().map(Planned::log_bytes).sum::<usize>();
            let group = Group::begin(self.core, GroupKind::Commit, self.log_bytes(pages, long) + beside)?;
            // Last: who links must not wait for a flush, or for room in the log.
            let linking = direct::link(self.core, &mut stored)?;
            match self.attempt(group, &mut parts, reserved.as_ref())? {
                Attempt::Done(done) => break (done, linking),
                Attempt::Moved => {
                    count(&self.manager.counters.relatched);
                    hints = false;
                }
                Attempt::Unknown(found, group) => {
                    drop((group, parts, room, linking));
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

    fn keyspace(&self, at: usize) -> KeyspaceId {
        Target::of(self.targets, at).index.keyspace()
    }

    /// Pages that the long values of a target take.
    fn long_of(&self, target: &Target<'_>) -> usize {
        let keyspace = target.index.keyspace();
        let pages = |(_, value): (usize, &[u8])| overflow::pages_for(self.core, keyspace, value.len() as u64);
        target.long(self.writes).map(pages).sum()
    }

    fn pages_of_long_values(&self) -> usize {
        self.targets.iter().map(|target| self.long_of(target)).sum()
    }

    /// Sets pages for the long values aside, those of each target in its keyspace.
    fn reserve_long(&self) -> Result<Reserved<'a>> {
        let wanted = self.targets.iter().map(|target| (target.index.keyspace(), self.long_of(target)));
        let wanted: Vec<_> = wanted.filter(|(_, pages)| *pages > 0).collect();
        self.core.space.reserve_all(self.core, &wanted)
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

    /// Pages that the commit may have to pin, `long` of them for long values: at most one for each write.
    fn most_pages(&self, long: usize) -> usize {
        (long + self.writes.len()).min(self.core.pool.pin_limit())
    }

    /// Has the indexes find what takes each write, and make room in it. `hints`: where keys were read is believed.
    fn plan(&self, long: usize, hints: bool) -> Result<Parts<'a>> {
        let mut parts: Parts<'a> = Parts::new();
        let mut pages = long;
        for target in self.targets {
            let Range { start: mut at, end } = target.writes;
            let (start, mut ahead) = (at, Ahead::new(target.index));
            while at < end {
                let found = |at: usize| self.writes[at].hint.filter(|_| hints);
                let mut hint = found(at);
                if end - start >= MANY {
                    ahead.reach(target.index, at - start, end - start, |i| self.writes[start + i].key);
                    hint = hint.or(ahead.hint(target.index, at - start));
                }
                let next = if at + 1 < end { found(at + 1) } else { None };
                let part = target.index.plan(&self.writes[at..end], (at, self.how.piece_of.is_some()), [hint, next])?;
                at += part.len();
                assert!(at <= end, "a plan is of one keyspace");
                pages += part.pages();
                parts.push(part);
                self.check_pages(pages)?;
            }
        }
        Ok(parts)
    }

    /// Most bytes that the group's record can take, of so many pages.
    fn log_bytes(&self, pages: usize, long: usize) -> usize {
        let freed: usize = self.replaced.values().map(|r| r.pages.len()).sum();
        let maps = (long + freed + self.linked.len()).min(self.core.space.maps() as usize);
        (pages + maps) * (self.core.page_size() + 64)
    }

    /// Finds the pages of long values before they are replaced.
    fn learn(&mut self, found: LongValues) -> Result<()> {
        for (at, reference) in found {
            let pages = overflow::pages(self.core, self.keyspace(at), &reference)?;
            self.replaced.insert(at, Replaced { reference, pages });
        }
        Ok(())
    }

    fn known(&self, at: usize, reference: OverflowRef) -> Option<&Replaced> {
        self.replaced.get(&at).filter(|r| r.reference == reference)
    }

    fn attempt(
        &self,
        mut group: Group<'a>,
        parts: &mut Parts<'a>,
        reserved: Option<&Reserved<'_>>,
    ) -> Result<Attempt<'a>> {
        let ids = reserved.map_or(&[][..], |r| r.ids());
        let values = self.place_long_values(&mut group, ids)?;
        let mut unknown = Vec::new();
        if !latch(parts, &mut unknown)? {
            parts.iter_mut().for_each(Planned::unlatch);
            return Ok(Attempt::Moved);
        }
        unknown.retain(|&(at, reference)| self.known(at, reference).is_none());
        if !unknown.is_empty() {
            parts.iter_mut().for_each(Planned::unlatch);
            return Ok(Attempt::Unknown(unknown, group));
        }
        let saving = self.manager.snapshots.begin_commit(self.how.stripe);
        let held = matches!(saving, Saving::Yes);
        let old = if held { self.old_values(parts) } else { Vec::new() };
        assert!(!held || old.len() == self.places().count(), "each write replaces something, or nothing");
        // From here on nothing fails.
        parts.iter_mut().for_each(|part| part.join(&mut group));
        let references = self.write_long_values(&mut group, values);
        let untidy = change(&mut group, parts, &references);
        let freed = self.replaced_pages();
        let ids = [ids, &self.linked].concat();
        self.core.space.apply(self.core, &mut group, &ids, &freed);
        let manager = self.manager;
        let mut changed = false;
        let mut in_place: Vec<InPlace<'a>> = Vec::new();
        parts.drain(..).for_each(|part| in_place.extend(part.in_place()));
        let way = manager.set_out(!in_place.is_empty(), self.how.stripe);
        let end = group.commit_with(|end| {
            changed = true;
            manager.note_commit(end, self.durability);
            if let Some(tell) = self.how.tell {
                tell.store(end, Ordering::Release);
            }
            self.keep_old(&manager.snapshots, end, old);
            manager.put_in_place(way, in_place, end);
        })?;
        drop(saving);
        Ok(Attempt::Done(Done { end, changed, untidy, held }))
    }

    /// The values that the writes replace, in their order.
    fn old_values(&self, parts: &[Planned<'_>]) -> Vec<Option<Before>> {
        let mut old = Vec::with_capacity(self.writes.len());
        for part in parts {
            part.old_values(|value| {
                old.push(value.map(|value| match value {
                    ValueRef::Inline(value) => Before::Bytes(value.into()),
                    ValueRef::Overflow(_) => Before::Long,
                }))
            });
        }
        old
    }

    fn keep_old(&self, snapshots: &Snapshots, end: Lsn, old: Vec<Option<Before>>) {
        if old.is_empty() {
            return;
        }
        let value = |at: usize, before: Before| match before {
            Before::Bytes(bytes) => Old::Bytes(bytes),
            Before::Long => {
                let Replaced { reference, pages } = &self.replaced[&at];
                Old::Long(*reference, Arc::new(HeldPages::new(&self.manager.core, pages)))
            }
        };
        // Snapshots that see the whole commit need no old values of its pieces.
        let end = self.how.piece_of.map_or(end, |number| number.min(end));
        let catalog = self.manager.large.catalog();
        let old = old.into_iter().zip(self.places());
        let kept = old.map(|(b, (keyspace, at))| (keyspace, self.writes[at].key, b.map(|before| value(at, before))));
        // The catalog is not read as of a moment.
        snapshots.keep(end, kept.filter(|(keyspace, ..)| *keyspace != catalog));
    }

    /// Keyspace and place of each write whose old value is kept here for snapshots.
    fn places(&self) -> impl Iterator<Item = (KeyspaceId, usize)> {
        let targets = self.targets.iter().filter(|t| !t.index.keeps_versions());
        targets.flat_map(|t| t.writes.clone().map(|at| (t.index.keyspace(), at)))
    }

    /// Takes the pages of long values into the group, unchanged so far.
    fn place_long_values<'i>(&self, group: &mut Group<'a>, ids: &'i [PageId]) -> Result<Vec<LongValue<'a, 'i>>> {
        let (mut placed, mut rest) = (Vec::new(), ids);
        for target in self.targets {
            let keyspace = target.index.keyspace();
            for (at, value) in target.long(self.writes) {
                let (ids, others) = rest.split_at(overflow::pages_for(self.core, keyspace, value.len() as u64));
                rest = others;
                let pages = overflow::place(self.core, group, keyspace, ids)?;
                placed.push(LongValue { at, keyspace, value, ids, pages });
            }
        }
        assert!(rest.is_empty(), "every reserved page is some value's");
        Ok(placed)
    }

    fn write_long_values(&self, group: &mut Group<'a>, placed: Vec<LongValue<'_, '_>>) -> LongValues {
        let fill = |v: LongValue<'_, '_>| {
            (v.at, overflow::fill_placed(self.core, group, v.keyspace, v.value, v.ids, &v.pages))
        };
        placed.into_iter().map(fill).collect()
    }
}

/// Latches the parts in order; false when one of them no longer does for its writes. Appends the long values that will
/// be replaced.
fn latch(parts: &mut [Planned<'_>], long: &mut LongValues) -> Result<bool> {
    for at in 0..parts.len() {
        if at > 0 && parts[at].is_with(&parts[at - 1]) || !parts[at].latch(long)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the changes; returns the writes after which their index should be tidied.
fn change<'a>(group: &mut Group<'a>, parts: &[Planned<'a>], references: &[(usize, OverflowRef)]) -> Vec<usize> {
    let mut untidy = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        // What the next part touches comes from far while this one is changed.
        if let Some(next) = parts.get(i + 1) {
            next.fetch(group);
        }
        untidy.extend(part.change(group, references));
    }
    untidy
}

/// A long value to be written, and its pages.
struct LongValue<'a, 'i> {
    at: usize,
    keyspace: KeyspaceId,
    value: &'a [u8],
    ids: &'i [PageId],
    pages: Vec<PageNo>,
}

/// A write of one short value or a deletion, by the short way.
pub(super) struct Short<'a> {
    pub manager: &'a Manager,
    pub index: &'a Index,
    pub write: &'a Write<'a>,
    pub durability: Durability,
    pub stripe: u64,
    /// Told the commit number as soon as there is one.
    pub tell: Option<&'a AtomicU64>,
}

/// What the short way came to.
pub(super) enum ShortEnd {
    /// End of the group; whether the key was there, and the LSN that says so; whether the index should be tidied.
    Done { end: Lsn, existed: bool, read: Lsn, untidy: bool },
    /// It takes the long way: a long value is involved.
    Long,
}

impl Manager {
    /// Takes the commit's slot of the horizon, if it keeps something in memory alone; last before its group gets its
    /// place. One for all of it: who has a slot must not wait for another.
    #[inline]
    fn set_out(&self, needed: bool, stripe: u64) -> Option<OnItsWay<'_>> {
        needed.then(|| self.core.horizon.set_out(&self.core.log, stripe))
    }

    /// Puts in place what a commit keeps in memory alone; its pages are still latched, so all that it wrote shows at
    /// once.
    #[inline]
    fn put_in_place<'p>(&self, way: Option<OnItsWay<'_>>, parts: impl IntoIterator<Item = InPlace<'p>>, end: Lsn) {
        parts.into_iter().for_each(|part| part.take_effect(end));
        if let Some(way) = way {
            drop(way);
            self.core.horizon.wait(&self.core.log, end);
        }
    }
}

impl Short<'_> {
    /// One search, one latched page, one group.
    pub fn run(self) -> Result<ShortEnd> {
        let Short { manager, index, write, durability, stripe, tell } = self;
        let core = &*manager.core;
        match write.value {
            None => {}
            Some(NewValue::Bytes(value)) if !index.is_long(write.key, value) => {}
            Some(_) => return Ok(ShortEnd::Long),
        }
        index.hold_up(std::slice::from_ref(write));
        // A leaf takes a short value; a record of the log whatever memtables take.
        let long = write.value.as_ref().filter(|_| index.keeps_versions());
        let record = if let Some(NewValue::Bytes(value)) = long { write.key.len() + value.len() } else { 0 };
        let mut group = Group::begin(core, GroupKind::Commit, core.page_size() + 64 + record)?;
        let single = index.latch_single(write, |old| {
            let saving = manager.snapshots.begin_commit(stripe);
            let saves = matches!(saving, Saving::Yes) && !index.keeps_versions();
            let saved: Option<OldValue> = saves.then(|| old.map(|value| Old::Bytes(value.into())));
            (saving, saved)
        })?;
        let (ready, (saving, saved)) = match single {
            Single::Ready(ready, old) => (ready, old),
            Single::Nothing(lsn) => return Ok(ShortEnd::Done { end: lsn, existed: false, read: lsn, untidy: false }),
            Single::Long => return Ok(ShortEnd::Long),
        };
        let read = ready.lsn();
        let (change, in_place) = ready.change(&mut group, write);
        let way = manager.set_out(in_place.is_some(), stripe);
        let end = group.commit_with(|end| {
            manager.note_commit(end, durability);
            if let Some(tell) = tell {
                tell.store(end, Ordering::Release);
            }
            if let Some(saved) = saved {
                manager.snapshots.keep(end, std::iter::once((index.keyspace(), write.key, saved)));
            }
            manager.put_in_place(way, in_place, end);
        })?;
        drop(saving);
        count(&manager.counters.commits);
        Ok(ShortEnd::Done { end, existed: change.existed, read, untidy: change.untidy })
    }
}

/// Whether writes are in the order that commits keep.
fn in_order(targets: &[Target<'_>], writes: &[Write<'_>]) -> bool {
    let keys = |t: &Target<'_>| writes[t.writes.clone()].windows(2).all(|w| w[0].key < w[1].key);
    targets.windows(2).all(|t| t[0].index.keyspace() < t[1].index.keyspace() && t[0].writes.end == t[1].writes.start)
        && targets.iter().all(keys)
}
