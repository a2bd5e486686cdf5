//! A commit's writes to leaves: which leaf takes which of them, whether it has room, and the changes.
//!
//! The writer holds X locks that cover every key it writes, so neither the keys' presence nor the pages of values that
//! it replaces change under it. A leaf is looked at once when it is found. When it is latched it is looked at again
//! only if its LSN is another: as long as that is the same, the leaf is. No latch is held while a page is read or
//! divided.
//!
//! Invariants: a leaf is pinned, then latched, then joined to the group ([`Progress`]), and changed only then; it takes
//! at least one write, all of them of keys that it covers.

use super::Tree;
use super::leaf::{self, CellValue, Change, Intake, Taken};
use super::split;
use crate::buffer::{Latched, PagePin, PageRead, PageWrite};
use crate::error::{Error, Result};
use crate::page::{Group, PageMut, PageNo};
use crate::rows::{Damage, Hint, LongValues, NewValue, OverflowRef, Single, ValueRef, Write};
use varve_volume::{Lsn, PageId};

/// A leaf that takes a run of a commit's writes.
pub(crate) struct LeafWrites<'a> {
    tree: &'a Tree,
    pin: PagePin<'a>,
    writes: &'a [Write<'a>],
    /// Place of the first of them among the commit's writes.
    first: usize,
    /// What was found when the leaf was looked at, and its LSN then.
    seen: Option<(Lsn, LongValues)>,
    state: Progress<'a>,
}

/// How far a leaf is on its way into the commit's group.
enum Progress<'a> {
    Pinned,
    Latched(PageWrite<'a>),
    Joined(PageNo),
}

/// What a look at a leaf for a run of writes shows: how many of them fit, the bytes that they leave, and the long
/// values that they replace.
struct Look {
    fits: usize,
    spare: usize,
    long: LongValues,
}

impl Tree {
    fn damaged(&self, page: PageId) -> impl Fn(Damage) -> Error {
        move |damage| self.corrupt(page, damage)
    }

    /// Whether a value goes to pages of its own.
    pub(crate) fn is_long(&self, key: &[u8], value: &[u8]) -> bool {
        value.len() > self.max_inline(key.len())
    }

    /// Bytes that the leaf's cell will hold as the value; none for a deletion.
    fn cell_value_len(&self, write: &Write<'_>) -> Option<usize> {
        write.value.map(|value| match value {
            NewValue::Bytes(value) if !self.is_long(write.key, value) => value.len(),
            _ => OverflowRef::LEN,
        })
    }

    /// Bytes of room that the write needs in a leaf without the key.
    fn need(&self, write: &Write<'_>) -> usize {
        let len = self.cell_value_len(write);
        len.map_or(0, |len| leaf::cell_size(write.key, &CellValue::Inline(&[])) + len)
    }

    /// The leaf that covers a write's key: by descent, unless it is still the one where the key was found. Its fences
    /// lie far from what is read of it, so they are compared only if it has changed since.
    fn leaf_of(&self, write: &Write<'_>, hint: Option<Hint>) -> Result<PageRead<'_>> {
        if let Some(found) = hint
            && let Some(page) = self.core.pool.read_resident(found.page)
            && page.is_compared()
            && self.core.nodes_left() == found.left
            && (page.lsn() == found.lsn && found.lsn != Lsn::MAX
                || leaf::covers(page.bytes(), self.keyspace, write.key))
        {
            debug_assert!(leaf::covers(page.bytes(), self.keyspace, write.key), "an unchanged leaf covers its keys");
            return Ok(page);
        }
        let page = self.leaf(write.key)?;
        // Where a parent leads astray, the commit would look for a better leaf for ever.
        if leaf::covers(page.bytes(), self.keyspace, write.key) { Ok(page) } else { Err(self.astray(page.id())) }
    }

    /// Finds and pins the leaf of the first of these writes, with room for as many as it takes. Divides it if need be.
    /// `first`: the place of that write in the commit; `hints`: where its key was found, and the next one's.
    pub(crate) fn plan<'a>(
        &'a self,
        writes: &'a [Write<'a>],
        first: usize,
        hints: [Option<Hint>; 2],
    ) -> Result<LeafWrites<'a>> {
        let ([mut hint, next], mut divided) = (hints, false);
        loop {
            let (fits, spare) = {
                let page = self.leaf_of(&writes[0], hint.take())?;
                let covered = self.covered(&page, writes, next)?;
                let Look { fits, spare, long } = self.look(page.bytes(), page.id(), &writes[..covered], first)?;
                if fits > 0 && (fits == covered || divided) {
                    let (pin, seen, writes) = (page.pin(), Some((page.lsn(), long)), &writes[..fits]);
                    return Ok(LeafWrites { tree: self, pin, writes, first, seen, state: Progress::Pinned });
                }
                assert!(fits < covered, "all that fits was taken");
                (fits, spare)
            };
            if fits == 0 {
                self.make_room(writes[0].key, self.need(&writes[0]))?;
            } else {
                // What fits stays; the rest gets leaves of its own.
                let (next, boundary) = self.boundary(writes, fits, spare);
                self.divide_at(next.key, self.need(next), &boundary)?;
                divided = true;
            }
        }
    }

    /// The first of these writes that is to go into another leaf, and the fence before it: `fits` of them fit the leaf
    /// and leave so many bytes, of which the fence needs some.
    fn boundary<'w>(&self, writes: &'w [Write<'w>], mut fits: usize, mut spare: usize) -> (&'w Write<'w>, Vec<u8>) {
        loop {
            let next = &writes[fits];
            let boundary = split::separator(writes[fits - 1].key, next.key);
            if boundary.len() <= spare || fits == 1 {
                return (next, boundary);
            }
            fits -= 1;
            spare += self.need(&writes[fits]);
        }
    }

    /// How many of the writes the leaf covers, of which it covers the first. `next`: where the second one's key was
    /// found. If that is another leaf, this one covers the key only if it was divided off that one since; who latches
    /// the two then meets the same leaf twice, and plans again without hints.
    fn covered(&self, page: &PageRead<'_>, writes: &[Write<'_>], next: Option<Hint>) -> Result<usize> {
        let elsewhere = |found: Hint| found.page != page.id() && found.left == self.core.nodes_left();
        if writes.len() == 1 || next.is_some_and(elsewhere) {
            return Ok(1);
        }
        let leaf = Intake::new(page.bytes()).map_err(self.damaged(page.id()))?;
        let covers = |write: &Write<'_>| leaf.covers_too(write.key);
        // Usually one, or all that are left.
        match writes {
            [_, next, ..] if !covers(next) => Ok(1),
            [.., last] if covers(last) => Ok(writes.len()),
            _ => Ok(1 + writes[1..].partition_point(covers)),
        }
    }

    /// How many of these writes, all of which the leaf covers, it has room for and is sound enough to take; which long
    /// values they replace.
    fn look(&self, bytes: &[u8], page: PageId, writes: &[Write<'_>], first: usize) -> Result<Look> {
        let mut intake = Intake::new(bytes).map_err(self.damaged(page))?;
        let mut look = Look { fits: 0, spare: 0, long: Vec::new() };
        for write in writes {
            match intake.add(write.key, self.cell_value_len(write)).map_err(self.damaged(page))? {
                // A leaf at the end of the tree covers all that is left of a long run of writes: do not look at it all.
                Taken::Full => break,
                Taken::Fits(Some(ValueRef::Overflow(reference))) => look.long.push((first + look.fits, reference)),
                Taken::Fits(_) => {}
            }
            look.fits += 1;
        }
        intake.check().map_err(self.damaged(page))?;
        look.spare = intake.spare();
        Ok(look)
    }
}

impl<'a> LeafWrites<'a> {
    /// How many writes it takes.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether it is the same leaf.
    pub(crate) fn is_with(&self, other: &LeafWrites<'_>) -> bool {
        self.pin.id() == other.pin.id()
    }

    /// Latches the leaf; false when it no longer does for its writes. Appends the long values that they replace.
    pub(crate) fn latch(&mut self, long: &mut LongValues) -> Result<bool> {
        assert!(matches!(self.state, Progress::Pinned), "a leaf is latched once");
        let page = self.pin.write();
        match &self.seen {
            // (What a failed log write left behind all has the same LSN.)
            Some((lsn, found)) if *lsn == page.lsn() && *lsn != Lsn::MAX => long.extend(found),
            _ => {
                let ends = [&self.writes[0], &self.writes[self.writes.len() - 1]];
                if !ends.iter().all(|write| leaf::covers(page.bytes(), self.tree.keyspace, write.key)) {
                    return Ok(false);
                }
                let look = self.tree.look(page.bytes(), page.id(), self.writes, self.first)?;
                if look.fits < self.writes.len() {
                    return Ok(false);
                }
                long.extend(look.long);
            }
        }
        let covers = |write: &Write<'_>| leaf::covers(page.bytes(), self.tree.keyspace, write.key);
        debug_assert!(self.writes.iter().all(covers), "a leaf takes writes of keys that it covers");
        self.state = Progress::Latched(page);
        Ok(true)
    }

    /// Lets go of the latch.
    pub(crate) fn unlatch(&mut self) {
        assert!(!matches!(self.state, Progress::Joined(_)), "the group has the latch");
        self.state = Progress::Pinned;
    }

    /// Hands over the values that the writes replace, in their order. The leaf is latched.
    pub(crate) fn old_values(&self, mut each: impl FnMut(Option<ValueRef<'_>>)) {
        let Progress::Latched(page) = &self.state else { unreachable!("old values are read under the latch") };
        for write in self.writes {
            each(leaf::get(page.bytes(), write.key).expect("inspected"));
        }
    }

    /// The latched leaf goes into the group, not changed yet.
    pub(crate) fn join(&mut self, group: &mut Group<'a>) {
        let Progress::Latched(page) = std::mem::replace(&mut self.state, Progress::Pinned) else {
            unreachable!("what joins a group is latched")
        };
        self.state = Progress::Joined(group.add(page));
    }

    fn page(&self) -> PageNo {
        let Progress::Joined(page) = self.state else { unreachable!("what is changed has joined the group") };
        page
    }

    /// Asks the processor for what the first write will touch: it comes from far.
    pub(crate) fn fetch(&self, group: &Group<'a>) {
        leaf::fetch_room(group.bytes(self.page()), self.tree.need(&self.writes[0]));
    }

    /// Makes the changes; `long` are the values that the commit wrote to pages of their own. Returns the place of a
    /// write whose key's leaf became underfull.
    pub(crate) fn change(&self, group: &mut Group<'a>, long: &[(usize, OverflowRef)]) -> Option<usize> {
        let (mut underfull, mut done) = (None, 0);
        while done < self.writes.len() {
            let at = self.first + done;
            let mut page = group.page(self.page());
            let run = self.insert_run(&mut page, done);
            if run > 0 {
                done += run;
                continue;
            }
            let write = &self.writes[done];
            let change = match write.value {
                None => leaf::remove(&mut page, write.key),
                Some(NewValue::Stored(reference)) => leaf::put(&mut page, write.key, CellValue::Overflow(reference)),
                Some(NewValue::Bytes(value)) => {
                    let placed = long.binary_search_by_key(&at, |(at, _)| *at).ok();
                    let cell = placed.map_or(CellValue::Inline(value), |i| CellValue::Overflow(long[i].1));
                    leaf::put(&mut page, write.key, cell)
                }
            };
            if change.expect("a leaf that was inspected takes the change").underfull {
                underfull = Some(at);
            }
            done += 1;
        }
        underfull
    }

    /// Inserts rows that will lie side by side, from that of write `from` on, at once; returns how many. None if they
    /// are too few to be worth it.
    fn insert_run(&self, page: &mut PageMut<'_>, from: usize) -> usize {
        const WORTH_IT: usize = 4;
        let rest = &self.writes[from..];
        if rest.len() < WORTH_IT {
            return 0;
        }
        let short = |write: &Write<'a>| match write.value {
            Some(NewValue::Bytes(value)) if !self.tree.is_long(write.key, value) => Some((write.key, value)),
            _ => None,
        };
        let rows = rest.iter().map_while(short);
        leaf::insert_run(page, rows, WORTH_IT).expect("a leaf that was inspected takes the change")
    }
}

/// A latched leaf that takes a single write of a short value, or a deletion.
pub(crate) struct SingleLeaf<'a> {
    page: PageWrite<'a>,
}

impl Tree {
    /// One descent to the leaf that takes a single write, latched. `told` gets the value that is there, under the
    /// latch.
    pub(crate) fn latch_single<T>(
        &self,
        write: &Write<'_>,
        told: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<Single<SingleLeaf<'_>, T>> {
        let mut page = self.write_leaf(write.key, 0)?;
        loop {
            let mut intake = Intake::new(page.bytes()).map_err(self.damaged(page.id()))?;
            let taken = intake.add(write.key, self.cell_value_len(write)).map_err(self.damaged(page.id()))?;
            let Taken::Fits(old) = taken else {
                drop(page);
                page = self.write_leaf(write.key, self.need(write))?;
                continue;
            };
            let old = match old {
                Some(ValueRef::Overflow(_)) => return Ok(Single::Long),
                None if write.value.is_none() => return Ok(Single::Nothing(page.lsn())),
                Some(ValueRef::Inline(value)) => Some(value),
                None => None,
            };
            intake.check().map_err(self.damaged(page.id()))?;
            let told = told(old);
            return Ok(Single::Ready(SingleLeaf { page }, told));
        }
    }
}

impl<'a> SingleLeaf<'a> {
    /// LSN of the leaf's last change.
    pub(crate) fn lsn(&self) -> Lsn {
        self.page.lsn()
    }

    /// Makes the change in the group.
    pub(crate) fn change(self, group: &mut Group<'a>, write: &Write<'_>) -> Change {
        let n = group.add(self.page);
        let change = match write.value {
            Some(NewValue::Bytes(value)) => leaf::put(&mut group.page(n), write.key, CellValue::Inline(value)),
            Some(NewValue::Stored(_)) => unreachable!("a long value takes the long way"),
            None => leaf::remove(&mut group.page(n), write.key),
        };
        change.expect("a leaf that was prepared takes the change")
    }
}
