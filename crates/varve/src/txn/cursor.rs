//! A scan under way: one batch of rows at a time, either way, pending writes or old values merged in.
//!
//! A batch holds copies, so nothing is latched between calls. It covers an exact part of what is left of the range: the
//! caller can lock that part, look for pending writes or old values in it, and be sure that nothing falls between two
//! batches.
//!
//! Invariants: the parts that batches cover follow each other without gap or overlap; a batch is handed out when its
//! long values were read, each row once.

use super::key::{
    Bounds, KeyBuf, OwnedBounds, bound_owned, bound_ref, cmp_high, cmp_low, is_possible, overlap, within,
};
use crate::error::Result;
use crate::index::{Index, LeafCopy, ScanState};
use crate::rows::{Copied, Direction, OverflowRef, Seen, ValueRef, overflow};
use crate::space::Core;
use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow, Range};
use varve_rt::{Cost, charge};
use varve_volume::{KeyspaceId, Lsn};

/// Bytes of rows, long values included, after which a batch ends early.
const BATCH_BYTES: u64 = 64 * 1024;

/// Factor by which the limit of rows grows from batch to batch.
const GROWTH: usize = 8;

enum Value {
    At(Range<usize>),
    Long(OverflowRef),
}

struct Row {
    key: Range<usize>,
    value: Value,
}

/// Rows, copied out of an index.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn push_ref(&mut self, key: &[u8], value: ValueRef<'_>) {
        let key = self.copy(key);
        let value = match value {
            ValueRef::Inline(value) => Value::At(self.copy(value)),
            ValueRef::Overflow(reference) => Value::Long(reference),
        };
        self.rows.push(Row { key, value });
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.bytes[self.rows[i].key.clone()]
    }

    /// Reads the long values among the rows.
    fn resolve(&mut self, core: &Core, keyspace: KeyspaceId) -> Result<()> {
        for row in &mut self.rows {
            if let Value::Long(reference) = row.value {
                let start = self.bytes.len();
                overflow::read(core, keyspace, &reference, 0..reference.len, &mut self.bytes)?;
                row.value = Value::At(start..self.bytes.len());
            }
        }
        Ok(())
    }

    fn row(&self, i: usize) -> (&[u8], &[u8]) {
        let row = &self.rows[i];
        let Value::At(value) = &row.value else { unreachable!("long values are resolved before rows are handed out") };
        (&self.bytes[row.key.clone()], &self.bytes[value.clone()])
    }
}

/// What a read of a batch found.
pub(super) struct Filled {
    /// What was read.
    pub seen: Seen,
    /// The part of the range whose rows are in the batch.
    pub covered: OwnedBounds,
    /// What is left of the range; `None` at its end.
    pub rest: Option<OwnedBounds>,
}

impl Filled {
    /// The covered part.
    pub fn bounds(&self) -> Bounds<'_> {
        (bound_ref(&self.covered.0), bound_ref(&self.covered.1))
    }
}

/// A row that takes the place of the index's row of the same key, or hides it.
pub(super) type Overlay = (KeyBuf, Option<Copied>);

/// The state of a scan.
pub(super) struct Cursor {
    pub low: Bound<KeyBuf>,
    pub high: Bound<KeyBuf>,
    direction: Direction,
    batch: Batch,
    /// The batch, where it is a leaf; the other one is empty then.
    leaf: LeafCopy,
    /// Next row of the batch.
    at: usize,
    /// Most rows of the next batch.
    limit: usize,
    /// Most rows of the first batch, here and after rows were passed.
    first: usize,
    /// Batches that were read, since then.
    batches: u64,
    done: bool,
    /// Only keys are asked for.
    keys_only: bool,
    state: ScanState,
}

impl Cursor {
    /// A scan of `range`, descending when `reverse`. `first`: rows of the first batch; later ones have eight times as
    /// many each, to all that lie together: a scan that needs one row copies (and locks) little.
    pub fn new(range: Bounds<'_>, reverse: bool, first: usize) -> Cursor {
        Cursor {
            low: bound_owned(range.0),
            high: bound_owned(range.1),
            direction: if reverse { Direction::Reverse } else { Direction::Forward },
            batch: Batch::default(),
            leaf: LeafCopy::default(),
            at: 0,
            limit: first,
            first,
            batches: 0,
            done: !is_possible(range.0, range.1),
            keys_only: false,
            state: ScanState::default(),
        }
    }

    /// An ascending scan of keys alone, as many at a time as lie together: no value is copied, and no long one read.
    pub fn of_keys(range: Bounds<'_>) -> Cursor {
        Cursor { keys_only: true, ..Cursor::new(range, false, usize::MAX) }
    }

    /// What is left of the range.
    pub fn bounds(&self) -> Bounds<'_> {
        (bound_ref(&self.low), bound_ref(&self.high))
    }

    /// What the scan needs of a value that takes the place of one in the index.
    pub fn copied(&self, value: ValueRef<'_>) -> Copied {
        if self.keys_only { Copied::Bytes(Box::default()) } else { value.into() }
    }

    /// Whether keys ascend.
    pub fn is_forward(&self) -> bool {
        self.direction == Direction::Forward
    }

    /// Rows in the batch.
    pub fn rows(&self) -> usize {
        self.batch.rows.len() + self.leaf.rows()
    }

    /// Takes the key of the next row of the batch.
    pub fn take_key(&mut self) -> Option<&[u8]> {
        if self.is_drained() {
            return None;
        }
        self.at += 1;
        Some(self.batch.key(self.at - 1))
    }

    /// Whether the batch has no row left.
    pub fn is_drained(&self) -> bool {
        self.at == self.rows()
    }

    /// Whether the range has nothing beyond the batch.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Takes the next row of the batch.
    pub fn take(&mut self) -> Option<(&[u8], &[u8])> {
        if self.is_drained() {
            return None;
        }
        self.at += 1;
        Some(if self.leaf.rows() > 0 { self.leaf.row(self.at - 1) } else { self.batch.row(self.at - 1) })
    }

    /// Key `n` of the batch, in the direction of the scan.
    fn key(&mut self, n: usize) -> &[u8] {
        if self.leaf.rows() > 0 { self.leaf.row(n).0 } else { self.batch.key(n) }
    }

    /// Passes the rows that come before `key`: those of the batch, and all others without reading them. The scan never
    /// goes back.
    pub fn skip_to(&mut self, key: &[u8]) {
        let forward = self.is_forward();
        let comes_first = |ordering| ordering == if forward { Ordering::Less } else { Ordering::Greater };
        let (mut at, mut end) = (self.at, self.rows());
        while at < end {
            let middle = at + (end - at) / 2;
            if comes_first(self.key(middle).cmp(key)) { at = middle + 1 } else { end = middle }
        }
        assert!(self.at <= at && at <= self.rows(), "a row of the batch, or its end");
        self.at = at;
        if !self.is_drained() || self.done {
            return;
        }
        let goes_on = if forward {
            cmp_low(bound_ref(&self.low), Bound::Included(key)).is_lt()
        } else {
            cmp_high(bound_ref(&self.high), Bound::Included(key)).is_gt()
        };
        if goes_on {
            let end = if forward { &mut self.low } else { &mut self.high };
            *end = Bound::Included(KeyBuf::new(key));
            // What was remembered is of another place, and few rows may be wanted at this one.
            (self.state, self.limit, self.batches) = (ScanState::default(), self.first, 0);
            self.done = !is_possible(bound_ref(&self.low), bound_ref(&self.high));
        }
    }

    /// Ends the range where `left`, which is a part of it, ends in the direction of the scan.
    pub fn narrow(&mut self, left: Bounds<'_>) {
        let forward = self.is_forward();
        let further = if forward {
            cmp_high(bound_ref(&self.high), left.1).is_gt()
        } else {
            cmp_low(bound_ref(&self.low), left.0).is_lt()
        };
        if further {
            if forward {
                self.high = bound_owned(left.1)
            } else {
                self.low = bound_owned(left.0)
            }
            self.done |= !is_possible(bound_ref(&self.low), bound_ref(&self.high));
        }
        debug_assert!(self.done || within(self.bounds(), left), "what is left of the range holds what is left here");
    }

    /// Ends the scan.
    pub fn stop(&mut self) {
        self.batch.clear();
        self.leaf.clear();
        self.at = 0;
        self.done = true;
    }

    /// What is left of the range of which this is the beginning, in the direction of the scan.
    pub fn to_its_end(&self, (low, high): OwnedBounds) -> OwnedBounds {
        debug_assert!(!self.done, "there is something left of it");
        if self.is_forward() { (low, self.high.clone()) } else { (self.low.clone(), high) }
    }

    /// Reads rows from where the scan stands into the batch, instead of what is in there. `within`: read only
    /// this part. `at`: as for [`Index::read`].
    pub fn fill(&mut self, index: &Index, at: Lsn, within: Option<Bounds<'_>>) -> Result<Filled> {
        let (low, high) = (self.low.clone(), self.high.clone());
        let (from, to) = within.unwrap_or((bound_ref(&low), bound_ref(&high)));
        assert!(!self.done, "nothing is read beyond the end of the range");
        let forward = self.direction == Direction::Forward;
        self.batch.clear();
        self.at = 0;
        let (batch, limit, keys_only) = (&mut self.batch, self.limit, self.keys_only);
        let (mut broke, mut long) = (false, 0);
        // A leaf as a whole holds values.
        let copy = (&mut self.leaf, if keys_only { 0 } else { limit });
        let end = index.copy_batch((from, to), (self.direction, at), &mut self.state, copy, |key, value| {
            let value = if keys_only { ValueRef::Inline(&[]) } else { value };
            batch.push_ref(key, value);
            if let ValueRef::Overflow(reference) = value {
                long += reference.len;
            }
            broke = batch.rows.len() >= limit || batch.bytes.len() as u64 + long >= BATCH_BYTES;
            if broke { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        charge(Cost::CopyByte, (batch.bytes.len() + self.leaf.bytes()) as u64);
        assert!(batch.rows.is_empty() || self.leaf.rows() == 0, "a batch is one or the other");
        // Forward, the batch covers keys to `edge` (inclusive when it is a row's); in reverse, from it.
        let edge = match (broke, end.next) {
            (true, _) => Some((KeyBuf::new(batch.key(batch.rows.len() - 1)), true)),
            (false, Some(next)) => Some((KeyBuf::new(&next), false)),
            (false, None) => None,
        };
        let (covered, rest) = match (edge, forward) {
            (None, _) => ((bound_owned(from), bound_owned(to)), None),
            (Some((k, true)), true) => {
                ((bound_owned(from), Bound::Included(k.clone())), Some((Bound::Excluded(k), high.clone())))
            }
            (Some((k, false)), true) => {
                ((bound_owned(from), Bound::Excluded(k.clone())), Some((Bound::Included(k), high.clone())))
            }
            (Some((k, true)), false) => {
                ((Bound::Included(k.clone()), bound_owned(to)), Some((low.clone(), Bound::Excluded(k))))
            }
            (Some((k, false)), false) => {
                ((Bound::Included(k.clone()), bound_owned(to)), Some((low.clone(), Bound::Excluded(k))))
            }
        };
        let rest = rest.filter(|(l, h)| is_possible(bound_ref(l), bound_ref(h)));
        Ok(Filled { seen: end.seen, covered, rest })
    }

    /// Completes the batch: reads its long values and merges rows that take the place of the index's (ascending keys,
    /// all within the covered part); then moves past the covered part.
    pub fn finish(&mut self, core: &Core, keyspace: KeyspaceId, filled: Filled, overlay: Vec<Overlay>) -> Result<()> {
        assert!(self.at == 0 && !self.done, "a batch is completed before its first row is taken");
        debug_assert!(
            filled.rest.as_ref().is_none_or(|(low, high)| {
                let rest = (bound_ref(low), bound_ref(high));
                within(rest, self.bounds()) && !overlap(rest, filled.bounds())
            }),
            "what is left of a range is a part of it, and no part of the batch"
        );
        if !overlay.is_empty() {
            self.merge(overlay);
        }
        self.batch.resolve(core, keyspace)?;
        // The second batch is as large as the first where it need not find its place again: many scans end in it.
        if self.batches > 0 || !self.state.goes_on() {
            self.limit = self.limit.saturating_mul(GROWTH);
        }
        self.batches += 1;
        match filled.rest {
            Some((low, high)) => (self.low, self.high) = (low, high),
            None => self.done = true,
        }
        Ok(())
    }

    fn merge(&mut self, mut overlay: Vec<Overlay>) {
        let forward = self.direction == Direction::Forward;
        for n in 0..self.leaf.rows() {
            let (key, value) = self.leaf.row(n);
            self.batch.push_ref(key, ValueRef::Inline(value));
        }
        self.leaf.clear();
        debug_assert!(overlay.windows(2).all(|rows| rows[0].0 < rows[1].0), "keys ascend, each once");
        if !forward {
            overlay.reverse();
        }
        let old = std::mem::take(&mut self.batch);
        let new = &mut self.batch;
        let mut i = 0;
        let copy = |new: &mut Batch, i: usize| {
            let key = new.copy(old.key(i));
            let value = match &old.rows[i].value {
                Value::At(range) => Value::At(new.copy(&old.bytes[range.clone()])),
                Value::Long(reference) => Value::Long(*reference),
            };
            new.rows.push(Row { key, value });
        };
        for (key, value) in overlay {
            let before = |i: usize| if forward { old.key(i) < &*key } else { old.key(i) > &*key };
            while i < old.rows.len() && before(i) {
                copy(new, i);
                i += 1;
            }
            if i < old.rows.len() && old.key(i) == &*key {
                i += 1;
            }
            if let Some(value) = value {
                new.push_ref(&key, value.as_ref());
            }
        }
        for i in i..old.rows.len() {
            copy(new, i);
        }
    }
}
