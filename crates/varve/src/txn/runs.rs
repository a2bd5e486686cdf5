//! Old values that found no room in memory: sorted runs on scratch pages.
//!
//! A run has the entries of one batch, in the order of (keyspace, key, end), in blocks: one record of a scratch each.
//! In memory are the first key of each block, and the block read last. Runs of one level are merged, four at a time, to
//! one of the next by a thread of their own, so a reader looks at some runs of each level, and every entry is written
//! once for each level (the logarithmic method: Bentley and Saxe, "Decomposable searching problems", 1980). A run goes
//! when no snapshot is older than its last entry; a merge leaves out entries that none needs.
//!
//! Which runs an entry is in does not matter: who looks for a value takes, of all that he finds, the oldest that ended
//! after his moment. He looks at memory first and here second, as what leaves memory is here before.
//!
//! Invariants: an entry is in one run, or in two while they are exchanged for their merger, which happens at once; a
//! run's pages stay until the last reader has let go of it.

use super::key::{Bounds, KeyBuf, contains};
use crate::error::{Error, Result};
use crate::rows::{Copied, OverflowRef, ValueRef};
use crate::space::scratch::{Reader, Scratch, Writer};
use crate::space::{Core, HeldPages};
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, Lsn};

/// Bytes of a block, but for an entry that is longer.
const BLOCK: usize = 16 << 10;
/// Runs that are merged at a time.
pub(super) const FAN_IN: usize = 4;

/// Bytes of an entry before its key: keyspace u32, length of the key u16, end u64, kind and length of the value u32.
const FIXED: usize = 18;
const _: () = assert!(FIXED == 4 + 2 + 8 + 4, "an entry begins with keyspace, length of its key, end and kind");
/// In place of a value's length + 1: there was none; it is a reference to a long value.
const NONE: u32 = 0;
const LONG: u32 = u32::MAX;

/// An old value.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub keyspace: KeyspaceId,
    pub key: &'a [u8],
    /// End of the commit that replaced it.
    pub end: Lsn,
    pub value: Option<ValueRef<'a>>,
}

impl<'a> Entry<'a> {
    fn order(&self) -> (KeyspaceId, &'a [u8], Lsn) {
        (self.keyspace, self.key, self.end)
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let reference;
        let (kind, value): (u32, &[u8]) = match self.value {
            None => (NONE, &[]),
            Some(ValueRef::Inline(value)) => (value.len() as u32 + 1, value),
            Some(ValueRef::Overflow(r)) => {
                reference = r.encode();
                (LONG, &reference)
            }
        };
        to.extend_from_slice(&self.keyspace.0.to_le_bytes());
        to.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        to.extend_from_slice(&self.end.to_le_bytes());
        to.extend_from_slice(&kind.to_le_bytes());
        to.extend_from_slice(self.key);
        to.extend_from_slice(value);
    }

    /// The entry with which the bytes begin, and what follows it.
    fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, &'a [u8])> {
        let decode = || {
            let (fixed, rest) = bytes.split_at_checked(FIXED)?;
            let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
            let end = Lsn::from_le_bytes(fixed[6..14].try_into().expect("eight bytes"));
            let (key, rest) = rest.split_at_checked(u16::from_le_bytes([fixed[4], fixed[5]]).into())?;
            let (value, rest) = match u32_at(14) {
                NONE => (None, rest),
                LONG => {
                    let (reference, rest) = rest.split_at_checked(OverflowRef::LEN)?;
                    (Some(ValueRef::Overflow(OverflowRef::decode(reference)?)), rest)
                }
                len => {
                    let (value, rest) = rest.split_at_checked(len as usize - 1)?;
                    (Some(ValueRef::Inline(value)), rest)
                }
            };
            Some((Entry { keyspace: KeyspaceId(u32_at(0)), key, end, value }, rest))
        };
        decode().ok_or_else(|| Error::Invalid("old values on scratch pages are not what was written there".into()))
    }
}

struct Block {
    keyspace: KeyspaceId,
    /// Its first key.
    key: KeyBuf,
    place: u64,
}

/// Entries on scratch pages, in order.
pub(super) struct Run {
    scratch: Scratch,
    blocks: Vec<Block>,
    /// Least and greatest end of an entry.
    ends: (Lsn, Lsn),
    /// How often its entries were merged.
    pub level: u32,
    /// Bytes of scratch pages, and of memory, that are charged for it.
    pub size: (u64, u64),
    /// Pages of long values among the entries, kept from use; and the ends of those.
    pub held: Mutex<Vec<(Lsn, Arc<HeldPages>)>>,
    /// The block that was read last.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

/// Writes a run.
pub(super) struct RunWriter {
    writer: Writer,
    block: Vec<u8>,
    blocks: Vec<Block>,
    ends: (Lsn, Lsn),
}

impl RunWriter {
    pub fn new(core: &Arc<Core>) -> RunWriter {
        RunWriter { writer: Writer::new(core), block: Vec::new(), blocks: Vec::new(), ends: (Lsn::MAX, 0) }
    }

    /// Takes the next entry. [`RunWriter::end_full_block`] comes after it.
    pub fn take(&mut self, entry: &Entry<'_>) {
        assert!(entry.end > 0 && entry.key.len() <= u16::MAX.into(), "a commit ended it, and its key was stored");
        if self.block.is_empty() {
            let (keyspace, key) = (entry.keyspace, KeyBuf::new(entry.key));
            self.blocks.push(Block { keyspace, key, place: 0 });
        }
        self.ends = (self.ends.0.min(entry.end), self.ends.1.max(entry.end));
        entry.encode(&mut self.block);
    }

    /// Writes what was taken, when it is enough for a block.
    pub fn end_full_block(&mut self) -> Result<()> {
        if self.block.len() >= BLOCK { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            let place = self.writer.append(&self.block)?;
            self.blocks.last_mut().expect("it has a first key").place = place;
            self.block.clear();
        }
        Ok(())
    }

    /// No more entries come.
    pub fn finish(mut self, level: u32) -> Result<Run> {
        self.end_block()?;
        let (scratch, mut blocks) = (self.writer.finish()?, self.blocks);
        debug_assert!(blocks.is_sorted_by_key(|block| (block.keyspace, block.key.clone())), "entries come in order");
        assert!(blocks.windows(2).all(|w| w[0].place < w[1].place), "each block has a place of its own");
        assert!(blocks.is_empty() || self.ends.0 <= self.ends.1, "a block has entries");
        blocks.shrink_to_fit();
        let (ends, size) = (self.ends, (0, 0));
        Ok(Run { scratch, blocks, ends, level, size, held: Mutex::default(), last: Mutex::default() })
    }
}

impl Run {
    /// Greatest end of an entry.
    pub fn newest(&self) -> Lsn {
        self.ends.1
    }

    /// Pages that it takes.
    pub fn pages(&self) -> u64 {
        self.scratch.pages() as u64
    }

    /// Bytes of memory that it takes, a block in memory included.
    pub fn memory(&self) -> u64 {
        let keys: usize = self.blocks.iter().map(|block| block.key.heap_bytes()).sum();
        let held: usize =
            self.held.lock().iter().map(|(_, pages)| pages.memory() + size_of::<(Lsn, Arc<HeldPages>)>()).sum();
        (keys + self.blocks.len() * size_of::<Block>() + self.scratch.memory() + held) as u64
    }

    fn block(&self, n: usize) -> Result<Arc<Vec<u8>>> {
        assert!(n < self.blocks.len(), "a block of the run");
        if let Some((_, bytes)) = self.last.lock().as_ref().filter(|(number, _)| *number == n) {
            return Ok(bytes.clone());
        }
        let mut bytes = Vec::new();
        self.scratch.read(self.blocks[n].place, &mut bytes)?;
        let bytes = Arc::new(bytes);
        *self.last.lock() = Some((n, bytes.clone()));
        Ok(bytes)
    }

    /// Hands the entries to `f` in order until it returns false, from the block on in which the first for this key can
    /// be.
    fn from(&self, keyspace: KeyspaceId, key: &[u8], mut f: impl FnMut(&Entry<'_>) -> bool) -> Result<()> {
        let first = self.blocks.partition_point(|block| (block.keyspace, &*block.key) < (keyspace, key));
        for n in first.saturating_sub(1)..self.blocks.len() {
            let block = self.block(n)?;
            let mut rest = &block[..];
            while !rest.is_empty() {
                let (entry, after) = Entry::decode(rest)?;
                if !f(&entry) {
                    return Ok(());
                }
                rest = after;
            }
        }
        Ok(())
    }

    /// The oldest value of a key that ended after `at`, and when.
    pub fn find(&self, keyspace: KeyspaceId, key: &[u8], at: Lsn) -> Result<Option<(Lsn, Option<Copied>)>> {
        let mut found = None;
        if self.newest() <= at {
            return Ok(None);
        }
        self.from(keyspace, key, |entry| {
            let order = (entry.keyspace, entry.key).cmp(&(keyspace, key));
            if order.is_eq() && entry.end > at {
                found = Some((entry.end, entry.value.map(Copied::from)));
            }
            order.is_lt() || order.is_eq() && found.is_none()
        })?;
        Ok(found)
    }

    /// Hands, for each key of a range, the oldest value that ended after `at` to `f`, ascending.
    pub fn range(
        &self,
        keyspace: KeyspaceId,
        range: Bounds<'_>,
        at: Lsn,
        mut f: impl FnMut(&[u8], Lsn, Option<ValueRef<'_>>),
    ) -> Result<()> {
        if self.newest() <= at {
            return Ok(());
        }
        let low = match range.0 {
            Bound::Unbounded => &[],
            Bound::Included(key) | Bound::Excluded(key) => key,
        };
        let past = |key: &[u8]| match range.1 {
            Bound::Unbounded => false,
            Bound::Included(high) => key > high,
            Bound::Excluded(high) => key >= high,
        };
        let mut last: Option<KeyBuf> = None;
        self.from(keyspace, low, |entry| {
            if entry.keyspace > keyspace || entry.keyspace == keyspace && past(entry.key) {
                return false;
            }
            let wanted = entry.keyspace == keyspace && entry.end > at && contains(range, entry.key);
            if wanted && last.as_deref() != Some(entry.key) {
                last = Some(KeyBuf::new(entry.key));
                f(entry.key, entry.end, entry.value);
            }
            true
        })
    }
}

/// A run that is being read from its beginning to its end.
struct Source<'r> {
    reader: Reader<'r>,
    block: Vec<u8>,
    at: usize,
}

impl Source<'_> {
    /// The entry that comes next, and where the one after it lies.
    fn peek(&mut self) -> Result<Option<(Entry<'_>, usize)>> {
        if self.at == self.block.len() {
            let Some((_, block)) = self.reader.next()? else { return Ok(None) };
            self.block.clear();
            self.block.extend_from_slice(block);
            self.at = 0;
        }
        let (entry, rest) = Entry::decode(&self.block[self.at..])?;
        Ok(Some((entry, self.block.len() - rest.len())))
    }
}

/// Merges runs to one of the next level, without the entries that ended by `oldest`; none when nothing is left, or `on`
/// says that it is not wanted any more. The pages of long values stay with the old runs.
pub(super) fn merge(core: &Arc<Core>, runs: &[Arc<Run>], oldest: Lsn, on: &dyn Fn() -> bool) -> Result<Option<Run>> {
    assert!(runs.windows(2).all(|w| w[0].level == w[1].level), "runs of one level are merged");
    let level = runs[0].level + 1;
    let source = |run| Source { reader: Run::reader(run), block: Vec::new(), at: 0 };
    let mut sources: Vec<Source<'_>> = runs.iter().map(source).collect();
    let mut out = RunWriter::new(core);
    let mut count = 0u64;
    loop {
        let mut least: Option<(usize, (KeyspaceId, KeyBuf, Lsn))> = None;
        for (n, source) in sources.iter_mut().enumerate() {
            let Some((entry, _)) = source.peek()? else { continue };
            let (keyspace, key, end) = entry.order();
            if least.as_ref().is_none_or(|(_, (k, least, e))| (keyspace, key, end) < (*k, &**least, *e)) {
                least = Some((n, (keyspace, KeyBuf::new(key), end)));
            }
        }
        let Some((n, _)) = least else { break };
        let (entry, next) = sources[n].peek()?.expect("seen above");
        debug_assert!(runs[n].ends.0 <= entry.end && entry.end <= runs[n].ends.1, "an entry ends as its run says");
        if entry.end > oldest {
            out.take(&entry);
        }
        out.end_full_block()?;
        sources[n].at = next;
        count += 1;
        if count.is_multiple_of(256) && !on() {
            return Ok(None);
        }
    }
    let run = out.finish(level)?;
    Ok((!run.blocks.is_empty()).then_some(run))
}

impl Run {
    fn reader(run: &Arc<Run>) -> Reader<'_> {
        run.scratch.reader_from(0, 2 * BLOCK)
    }
}
