//! The node layout of the B+-tree, and reading it.
//!
//! A node is one page: the page header (`varve-volume`), a node header, a slot array growing up, and a heap of cells
//! growing down from the end of the usable bytes. Keys are prefix-compressed: the bytes shared by all keys of the node
//! are stored once (normally as part of the low fence), the next four bytes of each key lie in its slot as a number
//! (the *head*), so that a binary search touches the slot array alone and compares full keys only when two heads are
//! equal. (Prefix truncation and fence keys: Graefe, "Modern B-Tree Techniques", 2011, sections 3.5 and 4.4; heads:
//! Lomet, "The evolution of effective B-tree page organization and techniques", SIGMOD Record 2001, and Graefe's "poor
//! man's normalized keys".)
//!
//! Invariants of a sound node (`Node::validate` tests all of them):
//! - `SLOTS + 8 * count <= heap <= end <= page size`; fences, prefix and cells lie in `heap..end` and do not overlap;
//!   what they leave is `garbage`;
//! - keys ascend strictly and lie in `low..high`; all keys begin with the prefix, of which the first `base` bytes are
//!   shared by the two fences;
//! - an inner node of `n` slots has `n + 1` children: `leftmost` for keys below slot 0, and the child of slot `i` for
//!   keys from slot `i` on.
//!
//! Nothing in here panics on damaged bytes: `Node::parse` checks what every access relies on, and each cell is
//! range-checked when it is touched.

pub(crate) use crate::rows::{Damage, u16_at, u64_at};
use std::cmp::Ordering;

/// Bytes of the page header, owned by the volume layer.
pub(crate) const HEADER: usize = varve_volume::page::HEADER;
pub(crate) const COUNT: usize = HEADER; //       u16 number of slots
pub(crate) const HEAP: usize = HEADER + 2; //    u16 lowest byte of the heap
pub(crate) const GARBAGE: usize = HEADER + 4; // u16 dead bytes inside the heap
pub(crate) const HINT: usize = HEADER + 6; //    u16 slot of the last insert (split point choice)
pub(crate) const END: usize = HEADER + 8; //     u16 end of the heap: the page header plus the usable bytes
pub(crate) const PREFIX: usize = HEADER + 10; // u16 offset, u16 length
pub(crate) const LOW: usize = HEADER + 14; //    u16 offset, u16 length; the empty key is the lowest of all
pub(crate) const HIGH: usize = HEADER + 18; //   u16 offset, u16 length, `NO_HIGH` when unbounded
pub(crate) const BASE: usize = HEADER + 22; //   u16 length of the prefix that the fences guarantee
pub(crate) const LEVEL: usize = HEADER + 24; //  u8 0 for a leaf
// HEADER + 25 .. + 32: reserved, zero
pub(crate) const LEFTMOST: usize = HEADER + 32; // u64 inner: the child below slot 0; leaf: zero
/// Where the slot array begins.
pub(crate) const SLOTS: usize = HEADER + 40;
/// Bytes of a slot: u32 head, u16 offset of the cell, u16 length of the key without the prefix.
pub(crate) const SLOT: usize = 8;
/// Length field of the high fence of a node without an upper bound.
pub(crate) const NO_HIGH: u16 = u16::MAX;
/// Set in a leaf cell's length field when the value is an overflow reference.
pub(crate) const OVERFLOW: u16 = 0x8000;
/// Largest level a tree can reach; more is damage.
pub(crate) const MAX_LEVEL: u8 = 40;

const _: () = assert!(HEAP == COUNT + 2 && GARBAGE == HEAP + 2 && HINT == GARBAGE + 2 && END == HINT + 2);
const _: () = assert!(PREFIX == END + 2 && LOW == PREFIX + 4 && HIGH == LOW + 4 && BASE == HIGH + 4);
const _: () = assert!(LEVEL == BASE + 2 && LEVEL < LEFTMOST && SLOTS == LEFTMOST + 8);
const _: () = assert!(SLOT == 4 + 2 + 2 && SLOTS.is_multiple_of(8), "a slot is one aligned word, as `peek` reads it");
const _: () = assert!(MAX_PAGE <= OVERFLOW as usize && MAX_PAGE < NO_HIGH as usize, "lengths leave the marks free");

/// A range-checked view of a node.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    b: &'a [u8],
    slots: &'a [[u8; SLOT]],
    prefix: &'a [u8],
}

/// A leaf cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafCell<'a> {
    /// The value's bytes, or an encoded overflow reference.
    pub value: &'a [u8],
    /// Whether `value` is an overflow reference.
    pub overflow: bool,
    /// Offset of `value` in the page.
    pub at: usize,
}

/// The first four bytes of a key suffix as a number that compares as they do; missing bytes count as zero.
#[inline]
pub(crate) fn head(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<4>() {
        Some(four) => u32::from_be_bytes(*four),
        None => suffix.iter().enumerate().fold(0, |h, (i, b)| h | (*b as u32) << (24 - 8 * i)),
    }
}

/// What is left of a key suffix after its head.
#[inline]
pub(crate) fn tail(suffix: &[u8]) -> &[u8] {
    suffix.get(4..).unwrap_or(&[])
}

/// The first eight bytes as a number that compares as they do; missing bytes count as zero.
#[inline]
pub(crate) fn word(b: &[u8]) -> u64 {
    let four = |at: usize| u64::from(u32::from_be_bytes(b[at..at + 4].try_into().expect("four bytes")));
    match b.len() {
        8.. => u64::from_be_bytes(b[..8].try_into().expect("eight bytes")),
        // The two fours overlap in bytes that both have.
        len @ 4..8 => four(0) << 32 | four(len - 4) << (8 * (8 - len)),
        len => (0..len).fold(0, |w, i| w | u64::from(b[i]) << (56 - 8 * i)),
    }
}

/// A mask for what [`word`] makes of `len` bytes.
#[inline]
pub(crate) fn first_bytes(len: usize) -> u64 {
    if len >= 8 { u64::MAX } else { !(u64::MAX >> (8 * len)) }
}

/// Length of what two keys share at their beginning.
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[inline]
fn slot_head(s: &[u8; SLOT]) -> u32 {
    u32::from_le_bytes([s[0], s[1], s[2], s[3]])
}

#[inline]
fn slot_off(s: &[u8; SLOT]) -> usize {
    u16::from_le_bytes([s[4], s[5]]) as usize
}

#[inline]
fn slot_len(s: &[u8; SLOT]) -> usize {
    u16::from_le_bytes([s[6], s[7]]) as usize
}

/// The value in slot `i` of a leaf's page; its key, without the prefix, goes to the beginning of `key`, which has room
/// for it: the key's length and the value. For a page that [`Node::parse`] took and a slot whose
/// [`leaf_cell`](Node::leaf_cell) was looked at.
#[inline]
pub(crate) fn row_at<'b>(page: &'b [u8], i: usize, key: &mut [u8]) -> (usize, &'b [u8]) {
    let s = page[SLOTS + SLOT * i..].first_chunk().expect("a slot that was looked at");
    let (off, len) = (slot_off(s), slot_len(s));
    let tail = len.saturating_sub(4);
    key[..4].copy_from_slice(&slot_head(s).to_be_bytes());
    key[4..4 + tail].copy_from_slice(&page[off..off + tail]);
    let at = off + tail;
    let value = u16_at(page, at) as usize;
    debug_assert!(value & usize::from(OVERFLOW) == 0, "the value is short");
    (len, &page[at + 2..at + 2 + value])
}

impl<'a> Node<'a> {
    /// Checks what every accessor relies on. `b` is the whole page.
    #[inline]
    pub(crate) fn parse(b: &'a [u8]) -> Result<Node<'a>, Damage> {
        let Some(h) = b.get(HEADER..SLOTS) else { return Err(Damage("page too small for a node")) };
        let f = |at: usize| u16_at(h, at - HEADER) as usize;
        let (count, heap, end) = (f(COUNT), f(HEAP), f(END));
        if end > b.len() || heap > end || SLOTS + SLOT * count > heap {
            return Err(Damage("slot array and heap overlap or exceed the page"));
        }
        let (p, pl, l, ll, hi, hl) = (f(PREFIX), f(PREFIX + 2), f(LOW), f(LOW + 2), f(HIGH), f(HIGH + 2));
        let inside = |off: usize, len: usize| len == 0 || (off >= heap && off + len <= end);
        if !(inside(p, pl) && inside(l, ll) && (hl == NO_HIGH as usize || inside(hi, hl))) {
            return Err(Damage("fence or prefix outside the heap"));
        }
        if f(BASE) > pl || f(GARBAGE) > end - heap {
            return Err(Damage("free-space accounting is wrong"));
        }
        let slots = b[SLOTS..SLOTS + SLOT * count].as_chunks::<SLOT>().0;
        let prefix = if pl == 0 { &[] } else { &b[p..p + pl] };
        Ok(Node { b, slots, prefix })
    }

    #[inline]
    fn field(&self, at: usize) -> usize {
        u16_at(self.b, at) as usize
    }

    /// Number of slots.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// 0 for a leaf.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.b[LEVEL]
    }

    /// The whole page.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.b
    }

    /// The bytes that every key of the node begins with.
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// The lowest key the node may hold.
    #[inline]
    pub(crate) fn low(&self) -> &'a [u8] {
        let (off, len) = (self.field(LOW), self.field(LOW + 2));
        if len == 0 { &[] } else { &self.b[off..off + len] }
    }

    /// The lowest key beyond the node; none when the node has no upper bound.
    #[inline]
    pub(crate) fn high(&self) -> Option<&'a [u8]> {
        let (off, len) = (self.field(HIGH), self.field(HIGH + 2));
        match len {
            0 => Some(&[]),
            l if l == NO_HIGH as usize => None,
            l => Some(&self.b[off..off + l]),
        }
    }

    /// Whether `key` belongs into this node.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        key >= self.low() && self.high().is_none_or(|h| key < h)
    }

    pub(crate) fn end(&self) -> usize {
        self.field(END)
    }

    pub(crate) fn heap(&self) -> usize {
        self.field(HEAP)
    }

    pub(crate) fn garbage(&self) -> usize {
        self.field(GARBAGE)
    }

    /// Slot of the last insert.
    pub(crate) fn hint(&self) -> usize {
        self.field(HINT)
    }

    /// Length of the prefix that every key between the fences has.
    pub(crate) fn base(&self) -> usize {
        self.field(BASE)
    }

    /// Free bytes between slot array and heap.
    pub(crate) fn gap(&self) -> usize {
        self.heap() - SLOTS - SLOT * self.count()
    }

    /// Bytes that may be filled with cells (slots included), whatever keys between the fences they have: a prefix
    /// longer than what the fences guarantee may have to be given up, so what that would cost is not counted as free.
    pub(crate) fn room(&self) -> usize {
        (self.gap() + self.garbage()).saturating_sub(self.count() * (self.prefix.len() - self.base()))
    }

    /// Bytes that may be filled with cells of keys like `key`: exact when it has the node's prefix, else as `room`.
    pub(crate) fn room_for(&self, key: &[u8]) -> usize {
        if key.starts_with(self.prefix) { self.gap() + self.garbage() } else { self.room() }
    }

    /// Bytes in use by slots and cells, fences and prefix not counted.
    pub(crate) fn used(&self) -> usize {
        let fixed = self.low().len() + self.high().map_or(0, <[u8]>::len) + self.own_prefix();
        (SLOT * self.count() + self.end() - self.heap()).saturating_sub(self.garbage() + fixed)
    }

    /// Bytes of a prefix that is stored apart from the low fence.
    pub(crate) fn own_prefix(&self) -> usize {
        if self.field(PREFIX) == self.field(LOW) && self.prefix.len() <= self.low().len() {
            0
        } else {
            self.prefix.len()
        }
    }

    /// Length of slot `i`'s key without the prefix.
    #[inline]
    pub(crate) fn suffix_len(&self, i: usize) -> usize {
        slot_len(&self.slots[i])
    }

    /// Offset of slot `i`'s cell in the page, unchecked.
    #[inline]
    pub(crate) fn cell_at(&self, i: usize) -> usize {
        slot_off(&self.slots[i])
    }

    /// Where the key tail of slot `i` lies, and its length.
    #[inline]
    fn tail_at(&self, i: usize) -> (usize, usize) {
        let s = &self.slots[i];
        let payload = if self.level() == 0 { 0 } else { 8 };
        (slot_off(s) + payload, slot_len(s).saturating_sub(4))
    }

    #[inline]
    fn tail(&self, i: usize) -> Result<&'a [u8], Damage> {
        let (at, len) = self.tail_at(i);
        self.b.get(at..at + len).ok_or(Damage("cell outside the page"))
    }

    /// Compares slot `i`'s key with a suffix of the same head, the beginning of whose tail is `start`. (Tails are
    /// short, and a call would take longer than the comparison.)
    #[inline]
    fn compare_tail(&self, i: usize, suffix: &[u8], start: u64) -> Result<Ordering, Damage> {
        let (at, len) = self.tail_at(i);
        let outside = Damage("cell outside the page");
        let beginning = match self.b.get(at..).ok_or(outside)?.first_chunk() {
            Some(eight) if len <= 8 => u64::from_be_bytes(*eight) & first_bytes(len),
            _ => word(self.tail(i)?),
        };
        let order = match beginning.cmp(&start) {
            Ordering::Equal if len > 8 && suffix.len() > 12 => self.tail(i)?[8..].cmp(&suffix[12..]),
            order => order,
        };
        // Where one ends and the other has zeros, the longer one is greater.
        Ok(order.then(self.suffix_len(i).cmp(&suffix.len())))
    }

    /// The first slot whose key is at or after `key`, and whether it is `key`.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<(usize, bool), Damage> {
        match key.strip_prefix(self.prefix) {
            Some(suffix) => self.search_suffix(suffix),
            None => Ok((if key < self.prefix { 0 } else { self.count() }, false)),
        }
    }

    /// As `search`, for a key that the node is known to cover: what its fences share need not be compared (it lies at
    /// the far end of the page).
    #[inline]
    pub(crate) fn search_covered(&self, key: &[u8]) -> Result<(usize, bool), Damage> {
        match self.suffix_covered(key) {
            Some(suffix) => self.search_suffix(suffix),
            None => self.search(key),
        }
    }

    /// What `key`, which the node is known to cover, has after the node's prefix; none when it does not have that.
    #[inline]
    pub(crate) fn suffix_covered<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let (base, len) = (self.base(), self.prefix.len());
        key.get(len..).filter(|_| len == base || key[base..len] == self.prefix[base..])
    }

    #[inline]
    fn search_suffix(&self, suffix: &[u8]) -> Result<(usize, bool), Damage> {
        let h = head(suffix);
        let first = self.lower_bound(h);
        match self.slots.get(first) {
            Some(s) if slot_head(s) == h => {}
            _ => return Ok((first, false)),
        }
        let start = word(tail(suffix));
        match self.compare_tail(first, suffix, start)? {
            Ordering::Equal => Ok((first, true)),
            Ordering::Greater => Ok((first, false)),
            Ordering::Less => self.search_ties(first + 1, h, suffix, start),
        }
    }

    /// The first slot whose head is at least `h`.
    ///
    /// Divides by eight: the seven heads of a step are independent of each other, so that their cache misses overlap,
    /// which those of a bisection cannot.
    #[inline]
    fn lower_bound(&self, h: u32) -> usize {
        let mut slots = self.slots;
        let mut base = 0;
        while slots.len() > 16 {
            let step = slots.len() / 8;
            let below = (1..8).map(|k| (slot_head(&slots[k * step - 1]) < h) as usize).sum::<usize>();
            base += below * step;
            slots = if below == 7 { &slots[7 * step..] } else { &slots[below * step..(below + 1) * step] };
        }
        base + slots.iter().map(|s| (slot_head(s) < h) as usize).sum::<usize>()
    }

    /// Continues a search among the slots from `from` on that have the head `h`.
    #[cold]
    fn search_ties(&self, from: usize, h: u32, suffix: &[u8], start: u64) -> Result<(usize, bool), Damage> {
        // Bisects up to the first greater head.
        let (mut lo, mut hi) = (from, h.checked_add(1).map_or(self.count(), |h| self.lower_bound(h)));
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let order = match slot_head(&self.slots[mid]).cmp(&h) {
                Ordering::Equal => self.compare_tail(mid, suffix, start)?,
                other => other,
            };
            if order == Ordering::Less { lo = mid + 1 } else { hi = mid }
        }
        let found = lo < self.count()
            && slot_head(&self.slots[lo]) == h
            && self.compare_tail(lo, suffix, start)? == Ordering::Equal;
        Ok((lo, found))
    }

    /// Appends slot `i`'s key, without the prefix, to `into`.
    #[inline]
    pub(crate) fn append_suffix(&self, i: usize, into: &mut Vec<u8>) -> Result<(), Damage> {
        let s = &self.slots[i];
        into.extend_from_slice(&slot_head(s).to_be_bytes()[..slot_len(s).min(4)]);
        into.extend_from_slice(self.tail(i)?);
        Ok(())
    }

    /// Writes slot `i`'s key without the prefix to the beginning of `into` if it fits there; returns its length.
    #[inline]
    pub(crate) fn copy_suffix(&self, i: usize, into: &mut [u8]) -> Result<usize, Damage> {
        let s = &self.slots[i];
        let (len, tail) = (slot_len(s), self.tail(i)?);
        if let Some(out) = into.get_mut(..4 + tail.len()) {
            out[..4].copy_from_slice(&slot_head(s).to_be_bytes());
            out[4..].copy_from_slice(tail);
        }
        Ok(len)
    }

    /// Asks the processor for slot `i`'s cell, if there is such a slot.
    #[inline]
    pub(crate) fn fetch_cell(&self, i: usize) {
        if let Some(s) = self.slots.get(i) {
            super::fetch::ahead(self.b, slot_off(s));
        }
    }

    /// Sets `into` to slot `i`'s whole key.
    pub(crate) fn key_into(&self, i: usize, into: &mut Vec<u8>) -> Result<(), Damage> {
        into.clear();
        into.extend_from_slice(self.prefix);
        self.append_suffix(i, into)
    }

    /// Slot `i`'s whole key.
    pub(crate) fn key(&self, i: usize) -> Result<Vec<u8>, Damage> {
        let mut k = Vec::with_capacity(self.prefix.len() + self.suffix_len(i));
        self.key_into(i, &mut k)?;
        Ok(k)
    }

    /// Slot `i`'s value.
    #[inline]
    pub(crate) fn leaf_cell(&self, i: usize) -> Result<LeafCell<'a>, Damage> {
        let s = &self.slots[i];
        let at = slot_off(s) + slot_len(s).saturating_sub(4);
        let len = match self.b.get(at..at + 2) {
            Some(l) => u16_at(l, 0),
            None => return Err(Damage("cell outside the page")),
        };
        let (overflow, len) = (len & OVERFLOW != 0, (len & !OVERFLOW) as usize);
        match self.b.get(at + 2..at + 2 + len) {
            Some(value) => Ok(LeafCell { value, overflow, at: at + 2 }),
            None => Err(Damage("value outside the page")),
        }
    }

    /// Slot `i`'s cell after the key tail (leaf) or before it (inner): what a rebuild carries along.
    pub(crate) fn payload(&self, i: usize) -> Result<&'a [u8], Damage> {
        if self.level() == 0 {
            let cell = self.leaf_cell(i)?;
            Ok(&self.b[cell.at - 2..cell.at + cell.value.len()])
        } else {
            let at = self.cell_at(i);
            self.b.get(at..at + 8).ok_or(Damage("cell outside the page"))
        }
    }

    /// Bytes of slot `i`'s cell in the heap.
    pub(crate) fn cell_len(&self, i: usize) -> Result<usize, Damage> {
        Ok(self.suffix_len(i).saturating_sub(4) + self.payload(i)?.len())
    }

    /// Child number `i` of an inner node, 0 to `count` inclusive; 0 is the leftmost.
    #[inline]
    pub(crate) fn child(&self, i: usize) -> Result<u64, Damage> {
        if i == 0 {
            return Ok(u64_at(self.b, LEFTMOST));
        }
        let at = slot_off(&self.slots[i - 1]);
        match self.b.get(at..at + 8) {
            Some(c) => Ok(u64_at(c, 0)),
            None => Err(Damage("cell outside the page")),
        }
    }

    /// Number of the child that covers `key`, which the node covers.
    #[inline]
    pub(crate) fn child_for(&self, key: &[u8]) -> Result<usize, Damage> {
        let (at, found) = self.search_covered(key)?;
        Ok(at + found as usize)
    }

    /// Number of the child that covers the keys just below `key`.
    pub(crate) fn child_below(&self, key: &[u8]) -> Result<usize, Damage> {
        Ok(self.search(key)?.0)
    }

    /// Tests every invariant of the node.
    pub(crate) fn validate(&self) -> Result<(), Damage> {
        if self.level() > MAX_LEVEL || (self.level() == 0) != (u64_at(self.b, LEFTMOST) == 0) {
            return Err(Damage("level or leftmost child is wrong"));
        }
        let (low, high) = (self.low(), self.high());
        if high.is_some_and(|h| low >= h) {
            return Err(Damage("fences out of order"));
        }
        if self.base() != high.map_or(0, |h| common(low, h)).min(self.prefix.len()) {
            return Err(Damage("prefix does not agree with the fences"));
        }
        if self.prefix.get(..self.base()) != low.get(..self.base()) {
            return Err(Damage("prefix does not agree with the fences"));
        }
        let mut heap = HeapMap::new(self);
        heap.take(self.field(LOW), low.len())?;
        heap.take(self.field(HIGH), high.map_or(0, <[u8]>::len))?;
        heap.take(self.field(PREFIX), self.own_prefix())?;
        for i in 0..self.count() {
            let (len, h) = (self.suffix_len(i), slot_head(&self.slots[i]));
            if i > 0 && self.compare_slots(i - 1, i)? != Ordering::Less {
                return Err(Damage("keys out of order or outside the fences"));
            }
            if len < 4 && h & (u32::MAX >> (8 * len)) != 0 {
                return Err(Damage("slot head and key length do not agree"));
            }
            heap.take(self.cell_at(i), self.cell_len(i)?)?;
        }
        // They ascend: with the first and the last all lie between the fences.
        if self.count() > 0 && !(self.covers(&self.key(0)?) && self.covers(&self.key(self.count() - 1)?)) {
            return Err(Damage("keys out of order or outside the fences"));
        }
        heap.finish(self.garbage())
    }

    /// Compares the keys of two slots.
    #[inline]
    fn compare_slots(&self, a: usize, b: usize) -> Result<Ordering, Damage> {
        let heads = slot_head(&self.slots[a]).cmp(&slot_head(&self.slots[b]));
        if heads != Ordering::Equal {
            return Ok(heads);
        }
        Ok(self.tail(a)?.cmp(self.tail(b)?).then(self.suffix_len(a).cmp(&self.suffix_len(b))))
    }
}

/// Longest page, bytes.
const MAX_PAGE: usize = 32 << 10;

/// Which bytes of a node's heap belong to a piece that was seen: a bit for each.
struct HeapMap {
    bits: [u64; MAX_PAGE / 64],
    heap: usize,
    end: usize,
    live: usize,
}

impl HeapMap {
    fn new(node: &Node<'_>) -> HeapMap {
        HeapMap { bits: [0; MAX_PAGE / 64], heap: node.heap(), end: node.end().min(MAX_PAGE), live: 0 }
    }

    /// Adds a piece, which must lie in the heap and overlap none before it.
    #[inline]
    fn take(&mut self, off: usize, len: usize) -> Result<(), Damage> {
        if len == 0 {
            return Ok(());
        }
        if off < self.heap || off + len > self.end {
            return Err(Damage("cell outside the heap"));
        }
        self.live += len;
        let (first, last) = (off / 64, (off + len - 1) / 64);
        let (from, to) = (u64::MAX << (off % 64), u64::MAX >> (63 - (off + len - 1) % 64));
        for (i, word) in self.bits[first..=last].iter_mut().enumerate() {
            let mask = if i == 0 { from } else { u64::MAX } & if first + i == last { to } else { u64::MAX };
            if *word & mask != 0 {
                return Err(Damage("cells overlap"));
            }
            *word |= mask;
        }
        Ok(())
    }

    /// Tests that the pieces leave as many bytes as are counted as garbage.
    fn finish(self, garbage: usize) -> Result<(), Damage> {
        if self.live + garbage == self.end - self.heap {
            return Ok(());
        }
        Err(Damage("free-space accounting is wrong"))
    }
}
