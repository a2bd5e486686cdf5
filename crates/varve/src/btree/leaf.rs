//! Leaves: what a commit does to a latched leaf page, and what a reader sees of one.
//!
//! A leaf cell is the key's tail, a length field (u16, top bit: the value is an overflow reference) and the value.

use super::edit;
use super::fetch;
use super::node::*;
use crate::page::PageEdit;
use crate::rows::{OverflowRef, ValueRef};
use varve_rt::{Cost, charge};
use varve_volume::{KeyspaceId, Lsn, PageId, page};

/// Page type of a leaf.
pub(crate) const KIND_LEAF: u8 = 2;
/// Page type of an inner node.
pub(crate) const KIND_INNER: u8 = 3;

const _: () = assert!(OverflowRef::LEN < OVERFLOW as usize, "a length leaves the mark free");

/// A value to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellValue<'a> {
    /// Kept in the leaf; at most [`max_inline`] for its key.
    Inline(&'a [u8]),
    /// Kept in overflow pages.
    Overflow(OverflowRef),
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether the key was there before.
    pub existed: bool,
    /// The overflow value that is no longer referred to: free its pages.
    pub orphan: Option<OverflowRef>,
    /// Whether the leaf now holds less than a quarter of what it could: call `Tree::tidy` after the commit.
    pub underfull: bool,
}

/// Longest key, in bytes, of a tree whose pages have `usable` bytes after the page header: 2048, less with small pages.
///
/// A node holds two fences and must be able to hold one cell besides (three keys and some change), so that any split
/// makes progress.
pub(crate) fn max_key(usable: usize) -> usize {
    let body = usable + HEADER - SLOTS;
    assert!(body > 3 * 128, "pages of {usable} bytes hold no three keys");
    2048.min((usable + HEADER) / 4).min((body - 128) / 3)
}

/// Longest value kept in the leaf with a key of `key` bytes: a cell takes at most a quarter of the page. Longer ones go
/// to overflow pages.
pub(crate) fn max_inline(usable: usize, key: usize) -> usize {
    ((usable + HEADER - SLOTS) / 4).saturating_sub(SLOT + 2 + key)
}

/// Bytes of room that a cell needs at most.
pub(crate) fn cell_size(key: &[u8], value: &CellValue<'_>) -> usize {
    SLOT + key.len()
        + 2
        + match value {
            CellValue::Inline(v) => v.len(),
            CellValue::Overflow(_) => OverflowRef::LEN,
        }
}

/// Whether the page is a leaf of `keyspace` that covers `key`. False for a page that was freed or reused meanwhile.
pub(crate) fn covers(bytes: &[u8], keyspace: KeyspaceId, key: &[u8]) -> bool {
    page::kind(bytes) == KIND_LEAF
        && page::keyspace(bytes) == keyspace
        && Node::parse(bytes).is_ok_and(|n| n.level() == 0 && n.covers(key))
}

/// Bytes free for cells of keys like `key`. For several keys the least of their rooms counts. 0 for a damaged leaf.
pub(crate) fn room_for(bytes: &[u8], key: &[u8]) -> usize {
    Node::parse(bytes).map_or(0, |n| n.room_for(key))
}

/// Makes sure that `put` and `remove` will not find damage after the first change: to be called before a group's first
/// change for a leaf that will take `room` bytes of new cells. (Cheap: only a leaf that will have to be rebuilt is
/// looked at in full.)
pub(crate) fn prepare(bytes: &[u8], key: &[u8], room: usize) -> Result<(), Damage> {
    charge(Cost::NodeSearch, 1);
    let node = Node::parse(bytes)?;
    let (pos, found) = node.search(key)?;
    if found {
        node.leaf_cell(pos)?;
    }
    if node.gap() < room || !key.starts_with(node.prefix()) { node.validate() } else { Ok(()) }
}

/// Asks the processor for the bytes of a leaf that a new cell of `size` bytes would take, and for the fences at its
/// end.
#[inline]
pub(crate) fn fetch_room(bytes: &[u8], size: usize) {
    const LINE: usize = 64;
    let heap = u16_at(bytes, HEAP) as usize;
    for at in (heap.saturating_sub(size)..heap).step_by(LINE).take(4) {
        fetch::ahead(bytes, at);
    }
    fetch::ahead(bytes, u16_at(bytes, LOW) as usize);
}

/// What a leaf has to take: the writes of a commit to it, looked at one by one before the first is made. The leaf
/// covers their keys, which ascend.
pub(crate) struct Intake<'a> {
    node: Node<'a>,
    /// Bytes that the writes so far add to the leaf while it keeps its prefix.
    need: usize,
    /// Room for keys that have the prefix.
    whole: usize,
    /// The same if it has to give its prefix up, for a key that breaks it: at most, and the room then.
    most: usize,
    room: usize,
    /// Bytes of gap that they use while nothing is rebuilt.
    gap: usize,
    /// A key breaks the prefix: the leaf is rebuilt.
    unprefixed: bool,
    /// The last write lies behind all that the leaf holds, so the next one does.
    beyond: bool,
}

/// What an [`Intake`] says of a write.
pub(crate) enum Taken<'a> {
    /// It fits beside those before it, and replaces this.
    Fits(Option<ValueRef<'a>>),
    /// It does not fit, and is not counted.
    Full,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Intake<'a>, Damage> {
        let node = Node::parse(bytes)?;
        let whole = node.gap() + node.garbage();
        Ok(Intake { node, need: 0, whole, most: 0, room: node.room(), gap: 0, unprefixed: false, beyond: false })
    }

    /// Whether the leaf covers `key`, which lies beyond one that it covers.
    #[inline]
    pub(crate) fn covers_too(&self, key: &[u8]) -> bool {
        self.node.high().is_none_or(|high| key < high)
    }

    /// What the leaf holds for a key.
    #[inline]
    fn find(&mut self, key: &[u8]) -> Result<Option<ValueRef<'a>>, Damage> {
        charge(Cost::NodeSearch, 1);
        if self.beyond {
            debug_assert_eq!(self.node.search(key), Ok((self.node.count(), false)), "keys ascend");
            return Ok(None);
        }
        let (pos, found) = self.node.search_covered(key)?;
        self.beyond = pos == self.node.count();
        if found { value_of(self.node.leaf_cell(pos)?).map(Some) } else { Ok(None) }
    }

    /// Adds a write: `value` is the length that the cell's value will have, none for a deletion.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], value: Option<usize>) -> Result<Taken<'a>, Damage> {
        let old = self.find(key)?;
        let Some(value) = value else { return Ok(Taken::Fits(old)) };
        let suffix = self.node.suffix_covered(key);
        let cell = SLOT + tail(suffix.unwrap_or(key)).len() + 2 + value;
        let (more, most) = match old {
            None => (cell, SLOT + key.len() + 2 + value),
            Some(ValueRef::Inline(old)) => [value.saturating_sub(old.len()); 2].into(),
            Some(ValueRef::Overflow(_)) => [value.saturating_sub(OverflowRef::LEN); 2].into(),
        };
        if more > 0 {
            let unprefixed = self.unprefixed || suffix.is_none();
            let fits = if unprefixed { self.most + most <= self.room } else { self.need + more <= self.whole };
            if !fits {
                return Ok(Taken::Full);
            }
            (self.need, self.most, self.gap) = (self.need + more, self.most + most, self.gap + cell);
            self.unprefixed = unprefixed;
        }
        Ok(Taken::Fits(old))
    }

    /// Bytes that the writes so far leave.
    pub(crate) fn spare(&self) -> usize {
        debug_assert!(self.unprefixed || self.need <= self.whole, "what a leaf was said to take fits it");
        if self.unprefixed { self.room - self.most } else { self.whole - self.need }
    }

    /// Makes sure that making the writes will not find damage: a leaf that will have to be rebuilt is looked at in
    /// full.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Damage> {
        if self.unprefixed || self.gap > self.node.gap() { self.node.validate() } else { Ok(()) }
    }
}

fn value_of<'a>(cell: LeafCell<'a>) -> Result<ValueRef<'a>, Damage> {
    if cell.overflow {
        return OverflowRef::decode(cell.value)
            .map(ValueRef::Overflow)
            .ok_or(Damage("overflow reference of wrong length"));
    }
    Ok(ValueRef::Inline(cell.value))
}

/// The value of `key`.
#[inline]
pub(crate) fn get<'a>(bytes: &'a [u8], key: &[u8]) -> Result<Option<ValueRef<'a>>, Damage> {
    charge(Cost::NodeSearch, 1);
    let node = Node::parse(bytes)?;
    match node.search(key)? {
        (pos, true) => value_of(node.leaf_cell(pos)?).map(Some),
        _ => Ok(None),
    }
}

/// Inserts `key` or replaces its value. The leaf covers the key and has room ([`room_for`] at least [`cell_size`]).
///
/// An error means a damaged leaf; after [`prepare`] it cannot happen.
pub(crate) fn put(page: &mut impl PageEdit, key: &[u8], value: CellValue<'_>) -> Result<Change, Damage> {
    let encoded;
    let (field, payload): (u16, &[u8]) = match value {
        CellValue::Inline(v) => {
            assert!(v.len() < OVERFLOW as usize, "an inline value is at most a quarter page");
            (v.len() as u16, v)
        }
        CellValue::Overflow(r) => {
            encoded = r.encode();
            (OVERFLOW | OverflowRef::LEN as u16, &encoded)
        }
    };
    charge(Cost::LeafChange, 1);
    let node = Node::parse(page.bytes())?;
    debug_assert!(node.level() == 0 && node.covers(key));
    let (pos, found) = node.search_covered(key)?;
    if !found {
        edit::insert(page, key, pos, [&field.to_le_bytes(), payload])?;
        return Ok(Change::default());
    }
    let orphan = match value_of(node.leaf_cell(pos)?)? {
        ValueRef::Overflow(old) if !matches!(value, CellValue::Overflow(new) if new == old) => Some(old),
        _ => None,
    };
    edit::replace(page, key, pos, field, payload)?;
    Ok(Change { existed: true, orphan, underfull: false })
}

/// Inserts the first of these rows, and those after it that will lie beside it: keys that ascend, are not there, and
/// are all between the same two that are. Returns how many were inserted: none, or at least `least`, as far as the gap
/// has room for them and they have the leaf's prefix. The leaf covers the keys.
pub(crate) fn insert_run<'r>(
    page: &mut impl PageEdit,
    rows: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone,
    least: usize,
) -> Result<usize, Damage> {
    let node = Node::parse(page.bytes())?;
    // Most rows lie apart: nothing is copied before it is known that enough of them do not.
    let ends = rows.clone().next().zip(rows.clone().nth(least - 1));
    let Some(((first, _), (last, _))) = ends else { return Ok(0) };
    let (beginning, found) = node.search(first)?;
    if found || node.search(last)? != (beginning, false) {
        return Ok(0);
    }
    let mut run = edit::Run::default();
    let mut pos = None;
    for (key, value) in rows {
        let Some(suffix) = node.suffix_covered(key) else { break };
        // Behind the last one there is nothing that could come between.
        if pos != Some(node.count()) {
            let (at, found) = node.search_covered(key)?;
            if found || *pos.get_or_insert(at) != at {
                break;
            }
        }
        if !run.add(suffix, [&(value.len() as u16).to_le_bytes(), value], node.gap()) {
            break;
        }
    }
    let rows = run.rows();
    let Some(pos) = pos.filter(|_| rows >= least) else { return Ok(0) };
    charge(Cost::LeafChange, rows as u64);
    run.insert(page, pos)?;
    Ok(rows)
}

/// Removes `key` if it is there.
pub(crate) fn remove(page: &mut impl PageEdit, key: &[u8]) -> Result<Change, Damage> {
    charge(Cost::LeafChange, 1);
    let node = Node::parse(page.bytes())?;
    let (pos, found) = node.search(key)?;
    if !found {
        return Ok(Change::default());
    }
    let orphan = match value_of(node.leaf_cell(pos)?)? {
        ValueRef::Overflow(old) => Some(old),
        ValueRef::Inline(_) => None,
    };
    edit::remove(page, pos)?;
    let underfull = Node::parse(page.bytes()).is_ok_and(|n| is_underfull(&n));
    Ok(Change { existed: true, orphan, underfull })
}

/// Whether a node holds less than a quarter of what it could.
pub(crate) fn is_underfull(node: &Node<'_>) -> bool {
    node.used() * 4 < edit::shape_of(node).capacity()
}

/// A leaf under its shared latch.
#[derive(Clone, Copy)]
pub(crate) struct LeafView<'a> {
    node: Node<'a>,
    id: PageId,
    /// The key by which the leaf was found, if any: the leaf covers it.
    key: Option<&'a [u8]>,
}

impl<'a> LeafView<'a> {
    pub(crate) fn new(node: Node<'a>, id: PageId) -> LeafView<'a> {
        LeafView { node, id, key: None }
    }

    /// A leaf that covers `key`.
    #[inline]
    pub(crate) fn found(node: Node<'a>, id: PageId, key: &'a [u8]) -> LeafView<'a> {
        LeafView { node, id, key: Some(key) }
    }

    /// The leaf's page.
    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    /// LSN of the leaf's last change.
    pub(crate) fn lsn(&self) -> Lsn {
        page::lsn(self.node.bytes())
    }

    /// The value of `key`.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<ValueRef<'a>>, Damage> {
        charge(Cost::NodeSearch, 1);
        let found = match self.key {
            Some(k) if std::ptr::eq(k, key) => self.node.search_covered(key)?,
            _ => self.node.search(key)?,
        };
        match found {
            (pos, true) => self.value(pos).map(Some),
            _ => Ok(None),
        }
    }

    /// Number of entries.
    pub(crate) fn count(&self) -> usize {
        self.node.count()
    }

    /// Entry `i`'s key.
    pub(crate) fn key(&self, i: usize) -> Result<Vec<u8>, Damage> {
        self.node.key(i)
    }

    /// Entry `i`'s value.
    #[inline]
    pub(crate) fn value(&self, i: usize) -> Result<ValueRef<'a>, Damage> {
        value_of(self.node.leaf_cell(i)?)
    }
}
