//! Changing nodes: building one from sorted cells, inserting, replacing and removing cells, splitting and joining.
//!
//! Every change goes through `PageEdit`, which records what redo needs. An insert is four small operations (move the
//! slots, write a slot, write the cell, write eight bytes of node header); a value replaced by one of the same length
//! is a single write of the bytes that differ. Only a rebuild (a node whose free bytes are scattered, or whose prefix
//! no longer holds) writes the page anew.
//!
//! Everything that can find damage does so before the first byte is changed.
//!
//! Invariants: slots and heap of a node do not meet; what is built is sound (`Node::validate`); a node's high fence
//! only comes down.

use super::node::*;
use crate::page::PageEdit;
use std::ops::Range;

/// What a node is before it has cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'k> {
    /// 0 for a leaf.
    pub level: u8,
    /// Lowest key.
    pub low: &'k [u8],
    /// Lowest key beyond the node; none for no bound.
    pub high: Option<&'k [u8]>,
    /// Leftmost child of an inner node, else 0.
    pub leftmost: u64,
    /// End of the heap: page header plus usable bytes.
    pub end: usize,
}

impl Shape<'_> {
    /// Bytes of prefix that the fences guarantee.
    pub(crate) fn base(&self) -> usize {
        self.high.map_or(0, |h| common(self.low, h))
    }

    /// Bytes for slots and cells in a node of this shape.
    pub(crate) fn capacity(&self) -> usize {
        (self.end - SLOTS).saturating_sub(self.low.len() + self.high.map_or(0, <[u8]>::len))
    }
}

/// Fills a page, cell by cell in ascending key order.
pub(crate) struct Builder<'p> {
    page: &'p mut [u8],
    prefix: usize,
    prefix_at: usize,
    heap: usize,
    count: usize,
}

impl<'p> Builder<'p> {
    /// Begins a node. All keys to come must begin with `prefix`.
    pub(crate) fn new(page: &'p mut [u8], shape: &Shape<'_>, prefix: &[u8]) -> Builder<'p> {
        let base = shape.base().min(prefix.len());
        assert!(prefix[..base] == shape.low[..base], "a prefix holds for all keys between the fences");
        assert!(shape.end <= page.len() && shape.level <= MAX_LEVEL, "a node of a page that can be");
        debug_assert!((shape.level == 0) == (shape.leftmost == 0), "inner nodes have a leftmost child");
        page[HEADER..].fill(0);
        let mut heap = shape.end;
        let mut place = |page: &mut [u8], field: usize, bytes: &[u8]| {
            heap -= bytes.len();
            page[heap..heap + bytes.len()].copy_from_slice(bytes);
            put_u16(page, field, heap);
            put_u16(page, field + 2, bytes.len());
            heap
        };
        let low_at = place(page, LOW, shape.low);
        match shape.high {
            Some(h) => {
                place(page, HIGH, h);
            }
            None => put_u16(page, HIGH + 2, NO_HIGH as usize),
        }
        let prefix_at = if shape.low.starts_with(prefix) {
            put_u16(page, PREFIX, low_at);
            put_u16(page, PREFIX + 2, prefix.len());
            low_at
        } else {
            place(page, PREFIX, prefix)
        };
        put_u16(page, BASE, base);
        put_u16(page, END, shape.end);
        page[LEVEL] = shape.level;
        page[LEFTMOST..LEFTMOST + 8].copy_from_slice(&shape.leftmost.to_le_bytes());
        Builder { page, prefix: prefix.len(), prefix_at, heap, count: 0 }
    }

    /// Whether one more cell fits.
    pub(crate) fn fits(&self, key: &[u8], payload: usize) -> bool {
        SLOTS + SLOT * (self.count + 1) + tail(&key[self.prefix..]).len() + payload <= self.heap
    }

    /// Appends a cell: `payload` is the length field and value of a leaf cell, or the child of an inner one.
    pub(crate) fn push(&mut self, key: &[u8], payload: &[u8]) {
        self.push_parts(key, [payload, &[]]);
    }

    /// As [`Builder::push`], the payload in two parts.
    pub(crate) fn push_parts(&mut self, key: &[u8], payload: [&[u8]; 2]) {
        debug_assert!(key[..self.prefix] == self.page[self.prefix_at..self.prefix_at + self.prefix]);
        let size = payload[0].len() + payload[1].len();
        assert!(self.fits(key, size), "the caller made sure that the cell fits");
        let suffix = &key[self.prefix..];
        let tail = tail(suffix);
        self.heap -= tail.len() + size;
        let leaf = self.page[LEVEL] == 0;
        let mut at = self.heap;
        let parts = if leaf { [tail, payload[0], payload[1]] } else { [payload[0], payload[1], tail] };
        for part in parts {
            self.page[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let slot = SLOTS + SLOT * self.count;
        self.page[slot..slot + SLOT].copy_from_slice(&slot_bytes(suffix, self.heap));
        self.count += 1;
    }

    /// Completes the node's header.
    pub(crate) fn finish(self) {
        put_u16(self.page, COUNT, self.count);
        put_u16(self.page, HEAP, self.heap);
        put_u16(self.page, HINT, self.count.saturating_sub(1));
        debug_assert_eq!(Node::parse(self.page).and_then(|node| node.validate()), Ok(()), "what is built is sound");
    }
}

fn put_u16(page: &mut [u8], at: usize, v: usize) {
    debug_assert!(v <= usize::from(u16::MAX), "a place in a node fits its field");
    page[at..at + 2].copy_from_slice(&(v as u16).to_le_bytes());
}

fn slot_bytes(suffix: &[u8], cell: usize) -> [u8; SLOT] {
    slot_of(head(suffix), cell, suffix.len())
}

/// The slot of a cell whose key has that head and, without the prefix, that length.
fn slot_of(head: u32, cell: usize, len: usize) -> [u8; SLOT] {
    debug_assert!(cell.max(len) <= usize::from(u16::MAX), "a cell's place and its key's length fit their fields");
    let mut s = [0; SLOT];
    s[..4].copy_from_slice(&head.to_le_bytes());
    s[4..6].copy_from_slice(&(cell as u16).to_le_bytes());
    s[6..].copy_from_slice(&(len as u16).to_le_bytes());
    s
}

/// Cells of other nodes, in key order: what a node is built from.
pub(crate) type Parts<'a> = [(Node<'a>, std::ops::Range<usize>)];

/// The prefix under which the parts take least space, and the bytes of heap and slots they then take (fences included).
///
/// Candidates: what the fences guarantee, what the old node had, and what all keys of a node without an upper bound
/// share (where there are enough to tell). `next` is a key about to be inserted, which must have the prefix too.
pub(crate) fn measure(shape: &Shape<'_>, parts: &Parts<'_>, next: Option<&[u8]>) -> Result<(Vec<u8>, usize), Damage> {
    let count: usize = parts.iter().map(|p| p.1.len()).sum();
    let mut best = (shape.low[..shape.base()].to_vec(), 0);
    best.1 = size_with(shape, parts, &best.0)?;
    let filled = |p: &&(Node<'_>, std::ops::Range<usize>)| !p.1.is_empty();
    let (Some(f), Some(l)) = (parts.iter().find(filled), parts.iter().rev().find(filled)) else { return Ok(best) };
    let (first, last) = (f.0.key(f.1.start)?, l.0.key(l.1.end - 1)?);
    let shared = common(&first, &last).min(next.map_or(usize::MAX, |k| common(&first, k)));
    let old = f.0.prefix().len().min(l.0.prefix().len());
    let dynamic = if shape.high.is_none() && count >= 16 { shared } else { 0 };
    for len in [old.min(shared), dynamic] {
        if len > best.0.len() {
            let size = size_with(shape, parts, &first[..len])?;
            if size < best.1 {
                best = (first[..len].to_vec(), size);
            }
        }
    }
    Ok(best)
}

/// Bytes that the parts take, with fences, under a prefix that all keys have.
fn size_with(shape: &Shape<'_>, parts: &Parts<'_>, prefix: &[u8]) -> Result<usize, Damage> {
    let own = if shape.low.starts_with(prefix) { 0 } else { prefix.len() };
    let mut sum = shape.low.len() + shape.high.map_or(0, <[u8]>::len) + own;
    for (node, range) in parts {
        for i in range.clone() {
            let suffix = (node.prefix().len() + node.suffix_len(i)).saturating_sub(prefix.len());
            sum += SLOT + suffix.saturating_sub(4) + node.payload(i)?.len();
        }
    }
    Ok(sum)
}

/// Whether the parts fit a node of this shape.
pub(crate) fn fits(shape: &Shape<'_>, parts: &Parts<'_>) -> Result<bool, Damage> {
    Ok(measure(shape, parts, None)?.1 <= shape.end - SLOTS)
}

/// Builds a node from cells of other nodes on a page whose old bytes do not matter, under a prefix that `next` has too.
/// An error leaves a half-built node: ask `fits` first.
pub(crate) fn build(page: &mut [u8], shape: &Shape<'_>, parts: &Parts<'_>, next: Option<&[u8]>) -> Result<(), Damage> {
    let (prefix, size) = measure(shape, parts, next)?;
    if size > shape.end - SLOTS {
        return Err(Damage("cells do not fit the node"));
    }
    fill(page, shape, &prefix, parts)
}

fn fill(page: &mut [u8], shape: &Shape<'_>, prefix: &[u8], parts: &Parts<'_>) -> Result<(), Damage> {
    let mut out = Builder::new(page, shape, prefix);
    let mut key = Vec::with_capacity(64);
    for (node, range) in parts {
        for i in range.clone() {
            node.key_into(i, &mut key)?;
            out.push(&key, node.payload(i)?);
        }
    }
    out.finish();
    Ok(())
}

/// The shape of a node as it stands.
pub(crate) fn shape_of<'a>(node: &Node<'a>) -> Shape<'a> {
    Shape {
        level: node.level(),
        low: node.low(),
        high: node.high(),
        leftmost: u64_at(node.bytes(), LEFTMOST),
        end: node.end(),
    }
}

/// Rewrites the node so that all its free bytes lie together, under a prefix that `key` has too (`key` lies between the
/// fences).
fn rebuild(page: &mut impl PageEdit, key: &[u8]) -> Result<(), Damage> {
    let old = page.bytes().to_vec();
    let node = Node::parse(&old)?;
    node.validate()?;
    let shape = shape_of(&node);
    let parts = [(node, 0..node.count())];
    let (prefix, size) = measure(&shape, &parts, Some(key))?;
    assert!(size <= shape.end - SLOTS, "the caller made room, a shorter prefix included");
    let mut filled = Ok(());
    page.image(|bytes| {
        filled = fill(bytes, &shape, &prefix, &parts);
        put_u16(bytes, HINT, node.hint());
    });
    filled
}

/// A cell's bytes, put together on the stack when small.
struct Joined {
    small: [u8; 256],
    large: Vec<u8>,
    len: usize,
}

impl Joined {
    #[inline]
    fn new(parts: [&[u8]; 3]) -> Joined {
        let len = parts.iter().map(|p| p.len()).sum();
        let mut j = Joined { small: [0; 256], large: Vec::new(), len };
        if len <= 256 {
            let mut at = 0;
            for p in parts {
                j.small[at..at + p.len()].copy_from_slice(p);
                at += p.len();
            }
        } else {
            j.large.reserve_exact(len);
            parts.iter().for_each(|p| j.large.extend_from_slice(p));
        }
        j
    }

    fn bytes(&self) -> &[u8] {
        if self.len <= 256 { &self.small[..self.len] } else { &self.large }
    }
}

/// Writes count, heap, garbage and hint.
#[inline]
fn write_counts(page: &mut impl PageEdit, count: usize, heap: usize, garbage: usize, hint: usize) {
    debug_assert!(SLOTS + SLOT * count <= heap, "slots and heap do not meet");
    let mut h = [0u8; 8];
    for (i, v) in [count, heap, garbage, hint].into_iter().enumerate() {
        h[2 * i..2 * i + 2].copy_from_slice(&(v as u16).to_le_bytes());
    }
    page.write(COUNT, &h);
}

/// Inserts a cell as slot `pos`, where `Node::search` says that the key, which the node covers and is not there yet,
/// belongs. `payload` in two parts (leaf: length field and value; inner: child and nothing). The node must have room
/// for it.
pub(crate) fn insert(page: &mut impl PageEdit, key: &[u8], pos: usize, payload: [&[u8]; 2]) -> Result<(), Damage> {
    let mut node = Node::parse(page.bytes())?;
    let size = payload[0].len() + payload[1].len();
    let fits = |n: &Node<'_>| n.suffix_covered(key).is_some_and(|s| n.gap() >= SLOT + tail(s).len() + size);
    if !fits(&node) {
        rebuild(page, key)?;
        node = Node::parse(page.bytes())?;
        assert!(fits(&node), "the caller made room for the cell");
    }
    debug_assert_eq!(node.search(key), Ok((pos, false)));
    assert!(pos <= node.count(), "slot {pos} of {}", node.count());
    let (count, garbage, plen, leaf) = (node.count(), node.garbage(), node.prefix().len(), node.level() == 0);
    let suffix = &key[plen..];
    let tail = tail(suffix);
    let at = node.heap() - tail.len() - size;
    let cell =
        if leaf { Joined::new([tail, payload[0], payload[1]]) } else { Joined::new([payload[0], payload[1], tail]) };
    page.write(at, cell.bytes());
    let slot = SLOTS + SLOT * pos;
    if pos < count {
        page.shift(slot, slot + SLOT, SLOT * (count - pos));
    }
    page.write(slot, &slot_bytes(suffix, at));
    write_counts(page, count + 1, at, garbage, pos);
    Ok(())
}

/// Leaf cells that go side by side into a node: put together first, then written at once.
#[derive(Default)]
pub(crate) struct Run {
    /// The cells, in the order in which they are added.
    cells: Vec<u8>,
    /// Where each cell begins in them, the head of its key and the length of that without the prefix.
    slots: Vec<(usize, u32, usize)>,
}

impl Run {
    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Adds a cell: a key without the node's prefix, behind those before it, and the length field and value. False if
    /// it does not fit into so many bytes beside them.
    pub(crate) fn add(&mut self, suffix: &[u8], payload: [&[u8]; 2], gap: usize) -> bool {
        let tail = tail(suffix);
        let size = tail.len() + payload[0].len() + payload[1].len();
        if self.cells.len() + size + SLOT * (self.slots.len() + 1) > gap {
            return false;
        }
        self.slots.push((self.cells.len(), head(suffix), suffix.len()));
        [tail, payload[0], payload[1]].iter().for_each(|part| self.cells.extend_from_slice(part));
        true
    }

    /// Inserts the cells from slot `pos` on, where their keys belong. They fit the node's gap.
    pub(crate) fn insert(self, page: &mut impl PageEdit, pos: usize) -> Result<(), Damage> {
        let node = Node::parse(page.bytes())?;
        let (count, garbage, rows) = (node.count(), node.garbage(), self.rows());
        assert!(pos <= count && rows > 0, "{rows} rows at slot {pos} of {count}");
        assert!(node.level() == 0 && self.cells.len() + SLOT * rows <= node.gap(), "the cells were made to fit a leaf");
        let at = node.heap() - self.cells.len();
        page.write(at, &self.cells);
        let (slot, end) = (SLOTS + SLOT * pos, SLOTS + SLOT * count);
        if pos < count {
            page.shift(slot, slot + SLOT * rows, end - slot);
        }
        let slots: Vec<u8> = self.slots.iter().flat_map(|(cell, head, len)| slot_of(*head, at + cell, *len)).collect();
        page.write(slot, &slots);
        write_counts(page, count + rows, at, garbage, pos + rows - 1);
        Ok(())
    }
}

/// Removes slot `pos`.
pub(crate) fn remove(page: &mut impl PageEdit, pos: usize) -> Result<(), Damage> {
    let node = Node::parse(page.bytes())?;
    let (count, heap, garbage, hint) = (node.count(), node.heap(), node.garbage(), node.hint());
    assert!(pos < count, "slot {pos} of {count}");
    let (at, len) = (node.cell_at(pos), node.cell_len(pos)?);
    if at < heap || garbage + len > node.end() - heap {
        return Err(Damage("free-space accounting is wrong"));
    }
    let slot = SLOTS + SLOT * pos;
    if pos + 1 < count {
        page.shift(slot + SLOT, slot, SLOT * (count - pos - 1));
    }
    let hint = if pos < hint { hint - 1 } else { hint };
    // The lowest cell goes back to the gap between slots and heap, any other becomes garbage.
    let (heap, garbage) = if at == heap { (heap + len, garbage) } else { (heap, garbage + len) };
    write_counts(page, count - 1, heap, garbage, hint);
    Ok(())
}

/// From the first byte in which `a` and `b` differ to the last; both have the same length. Looks at words.
pub(super) fn differing(a: &[u8], b: &[u8]) -> Range<usize> {
    assert_eq!(a.len(), b.len(), "the bytes are compared one to one");
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let same = 8 * words.take_while(|(a, b)| a == b).count();
    let Some(first) = a[same..].iter().zip(&b[same..]).position(|(a, b)| a != b) else { return 0..0 };
    let start = same + first;
    let words = a[start..].as_rchunks::<8>().1.iter().zip(b[start..].as_rchunks::<8>().1);
    let end = a.len() - 8 * words.rev().take_while(|(a, b)| a == b).count();
    let last = a[start..end].iter().zip(&b[start..end]).rposition(|(a, b)| a != b).expect("they differ at the start");
    start..start + last + 1
}

/// Replaces the length field and value of leaf slot `pos`; the node must have room for a new cell when the value grows.
pub(crate) fn replace(
    page: &mut impl PageEdit,
    key: &[u8],
    pos: usize,
    field: u16,
    value: &[u8],
) -> Result<(), Damage> {
    debug_assert_eq!(usize::from(field & !OVERFLOW), value.len(), "the length field is the value's");
    let node = Node::parse(page.bytes())?;
    let cell = node.leaf_cell(pos)?;
    let (at, old) = (cell.at, cell.value);
    let same_kind = cell.overflow == (field & OVERFLOW != 0);
    if same_kind && old.len() == value.len() {
        let changed = differing(old, value);
        if !changed.is_empty() {
            page.write(at + changed.start, &value[changed]);
        }
        return Ok(());
    }
    if value.len() <= old.len() {
        let (count, heap, garbage, hint) =
            (node.count(), node.heap(), node.garbage() + old.len() - value.len(), node.hint());
        if garbage > node.end() - heap {
            return Err(Damage("free-space accounting is wrong"));
        }
        page.write(at - 2, Joined::new([&field.to_le_bytes(), value, &[]]).bytes());
        write_counts(page, count, heap, garbage, hint);
        return Ok(());
    }
    grow(page, key, pos, field, value)
}

/// Gives leaf slot `pos` a new, longer cell.
fn grow(page: &mut impl PageEdit, key: &[u8], pos: usize, field: u16, value: &[u8]) -> Result<(), Damage> {
    let node = Node::parse(page.bytes())?;
    let suffix = key.strip_prefix(node.prefix()).ok_or(Damage("key does not have the node's prefix"))?;
    let size = tail(suffix).len() + 2 + value.len();
    if node.gap() < size {
        remove(page, pos)?;
        return insert(page, key, pos, [&field.to_le_bytes(), value]);
    }
    let (count, garbage, hint, at) =
        (node.count(), node.garbage() + node.cell_len(pos)?, node.hint(), node.heap() - size);
    if garbage > node.end() - at {
        return Err(Damage("free-space accounting is wrong"));
    }
    page.write(at, Joined::new([tail(suffix), &field.to_le_bytes(), value]).bytes());
    page.write(SLOTS + SLOT * pos + 4, &(at as u16).to_le_bytes());
    write_counts(page, count, at, garbage, hint);
    Ok(())
}

/// Gives a node a (lower) high fence without touching its cells, which all lie below it. Needs `high.len()` bytes of
/// gap.
pub(crate) fn set_high(page: &mut impl PageEdit, high: &[u8]) -> Result<(), Damage> {
    let node = Node::parse(page.bytes())?;
    assert!(node.gap() >= high.len(), "the caller made sure that the fence fits");
    assert!(node.low() < high && node.high().is_none_or(|before| high <= before), "a node only gets smaller");
    let base = common(node.low(), high).min(node.prefix().len());
    let at = node.heap() - high.len();
    let garbage = node.garbage() + node.high().map_or(0, <[u8]>::len);
    let (count, hint) = (node.count(), node.hint());
    page.write(at, high);
    let mut f = [0u8; 6];
    for (i, v) in [at, high.len(), base].into_iter().enumerate() {
        f[2 * i..2 * i + 2].copy_from_slice(&(v as u16).to_le_bytes());
    }
    page.write(HIGH, &f);
    write_counts(page, count, at, garbage, hint);
    Ok(())
}

/// Points slot `pos` of an inner node to another child; 0 is the leftmost, as in `Node::child`.
pub(crate) fn set_child(page: &mut impl PageEdit, i: usize, child: u64) -> Result<(), Damage> {
    let node = Node::parse(page.bytes())?;
    assert!(node.level() > 0 && i <= node.count(), "child {i} of a node that has {}", node.count());
    let at = if i == 0 { LEFTMOST } else { node.cell_at(i - 1) };
    page.write(at, &child.to_le_bytes());
    Ok(())
}
