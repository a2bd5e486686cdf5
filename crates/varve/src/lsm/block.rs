//! Blocks of sorted entries: keys without the beginning that they share with the key before, and restart points for
//! searching.
//!
//! Layout: 0 u64 *base*, a commit number; the entries; r restarts (u32 each), ascending: where the entries are whose
//! keys are whole, the first at 8; u32 r. An entry, in numbers of seven bits a byte: bytes of the key shared with the
//! key before; bytes of the key that follow; bytes of the value times 8, plus the kind; zigzag of its commit number
//! minus base; then the rest of the key and the value.
//!
//! What a block says is checked as far as it is looked at, so that one that is not what was written gives an error, not
//! a panic; [`Block::validate`] checks all of it.

use super::varint::{push_varint, unzigzag, varint, varint_len, zigzag};
use super::{Entry, EntryKind, order};
use crate::rows::Damage;
use std::cmp::Ordering;
use std::ops::Range;

/// Entries from one restart point to the next.
const RESTART_EVERY: u32 = 16;
/// Bytes before the first entry.
const HEAD: usize = 8;
/// Bytes that a block may have at most: more is taken for damage rather than for memory to ask for.
pub(crate) const MAX_BLOCK: usize = 64 << 20;
const _: () = assert!(MAX_BLOCK <= u32::MAX as usize, "a place in a block fits a restart");
const _: () = assert!(EntryKind::DeleteRange as u8 <= 7, "a kind fits the three bits beside a length");

type Result<T> = std::result::Result<T, Damage>;

/// A block being filled.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    since_restart: u32,
    entries: u32,
    base: u64,
    last_key: Vec<u8>,
    last_commit: u64,
}

fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl BlockBuilder {
    /// Entries in it.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// The key that was added last.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Bytes that the block would have now.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().max(HEAD) + 4 * self.restarts.len() + 4
    }

    /// Bytes that it would have with this entry too; exact but for a restart.
    pub(crate) fn len_with(&self, entry: &Entry<'_>) -> usize {
        let shared = if self.since_restart == 0 { 0 } else { shared(&self.last_key, entry.key) };
        let rest = entry.key.len() - shared;
        let numbers = varint_len(shared as u64)
            + varint_len(rest as u64)
            + varint_len(value_word(entry))
            + varint_len(zigzag(entry.commit.wrapping_sub(self.base) as i64));
        let restart = if self.since_restart == 0 { 4 } else { 0 };
        self.len() + numbers + rest + entry.value.len() + restart
    }

    /// Adds an entry, which comes after the one before.
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        let after = self.entries == 0 || order((&self.last_key, self.last_commit), (entry.key, entry.commit)).is_lt();
        assert!(after, "entries of a block ascend");
        if self.entries == 0 {
            self.base = entry.commit;
            self.bytes.extend_from_slice(&self.base.to_le_bytes());
        }
        let mut common = 0;
        if self.since_restart == 0 {
            self.restarts.push(self.bytes.len() as u32);
        } else {
            common = shared(&self.last_key, entry.key);
        }
        push_varint(&mut self.bytes, common as u64);
        push_varint(&mut self.bytes, (entry.key.len() - common) as u64);
        push_varint(&mut self.bytes, value_word(entry));
        push_varint(&mut self.bytes, zigzag(entry.commit.wrapping_sub(self.base) as i64));
        self.bytes.extend_from_slice(&entry.key[common..]);
        self.bytes.extend_from_slice(entry.value);
        self.last_key.truncate(common);
        self.last_key.extend_from_slice(&entry.key[common..]);
        self.last_commit = entry.commit;
        self.since_restart = (self.since_restart + 1) % RESTART_EVERY;
        self.entries += 1;
        assert!(self.bytes.len() < MAX_BLOCK, "a block this large cannot be read again");
    }

    /// The finished block; the builder begins another.
    pub(crate) fn finish(&mut self) -> &[u8] {
        assert!(self.entries > 0, "a block has entries");
        let all = self.entries.div_ceil(RESTART_EVERY) as usize;
        assert_eq!(self.restarts.len(), all, "every so many entries there is one whose key is whole");
        for restart in self.restarts.drain(..) {
            self.bytes.extend_from_slice(&restart.to_le_bytes());
        }
        let restarts = self.entries.div_ceil(RESTART_EVERY);
        self.bytes.extend_from_slice(&restarts.to_le_bytes());
        (self.entries, self.since_restart) = (0, 0);
        &self.bytes
    }

    /// Forgets what was finished.
    pub(crate) fn clear(&mut self) {
        assert_eq!(self.entries, 0, "what was added was finished");
        self.bytes.clear();
        self.last_key.clear();
    }
}

fn value_word(entry: &Entry<'_>) -> u64 {
    (entry.value.len() as u64) << 3 | entry.kind as u64
}

/// What a block's bytes say of its parts, once they were parsed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Frame {
    /// Where the restarts begin.
    end: usize,
    restarts: usize,
    base: u64,
}

/// A finished block.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    frame: Frame,
}

/// An entry's numbers, and where its bytes lie.
struct Cell {
    shared: usize,
    suffix: Range<usize>,
    value: Range<usize>,
    commit: u64,
    kind: EntryKind,
}

/// What a look for a key in a block came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look<'a> {
    /// This one.
    Found(Entry<'a>),
    /// The block has greater keys, and not this one (as of then).
    Absent,
    /// All that the block has comes before: if there is one, it is in the block that follows.
    Past,
}

impl<'a> Block<'a> {
    /// The block in these bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Block<'a>> {
        let tail = bytes.len().checked_sub(4).ok_or(Damage("block: shorter than its number of restarts"))?;
        let restarts = u32::from_le_bytes(bytes[tail..].try_into().expect("four bytes")) as usize;
        let end = restarts.checked_mul(4).and_then(|all| tail.checked_sub(all));
        match end {
            Some(end) if end > HEAD && restarts > 0 => {
                let base = u64::from_le_bytes(bytes[..HEAD].try_into().expect("eight bytes"));
                Ok(Block { bytes, frame: Frame { end, restarts, base } })
            }
            _ => Err(Damage("block: its restarts do not fit")),
        }
    }

    /// The block in bytes that were parsed before: `frame` is what was found then.
    #[inline]
    pub(crate) fn again(bytes: &'a [u8], frame: Frame) -> Block<'a> {
        debug_assert!(frame.end < bytes.len(), "the frame is of these bytes");
        Block { bytes, frame }
    }

    /// What was found when it was parsed.
    pub(crate) fn frame(&self) -> Frame {
        self.frame
    }

    fn restart(&self, i: usize) -> Result<usize> {
        let at = self.frame.end + 4 * i;
        let restart = u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")) as usize;
        let fits = (HEAD..self.frame.end).contains(&restart) && (i > 0 || restart == HEAD);
        if fits { Ok(restart) } else { Err(Damage("block: a restart outside of the entries")) }
    }

    #[inline]
    fn cell(&self, mut at: usize) -> Result<Cell> {
        const SHORT: Damage = Damage("block: an entry goes past the end");
        let entries = &self.bytes[..self.frame.end];
        let mut next = || varint(entries, &mut at).ok_or(SHORT);
        let (shared, suffix, word, commit) = (next()?, next()?, next()?, next()?);
        let kind = EntryKind::from_code(word as u8 & 7).ok_or(Damage("block: an entry of unknown kind"))?;
        let middle = at as u64 + suffix.min(MAX_BLOCK as u64);
        let end = middle + (word >> 3).min(MAX_BLOCK as u64);
        if end > self.frame.end as u64 || shared > MAX_BLOCK as u64 {
            return Err(SHORT);
        }
        let commit = self.frame.base.wrapping_add(unzigzag(commit) as u64);
        let (middle, end) = (middle as usize, end as usize);
        Ok(Cell { shared: shared as usize, suffix: at..middle, value: middle..end, commit, kind })
    }

    /// The whole key at restart `i`.
    fn restart_key(&self, i: usize) -> Result<(&'a [u8], u64)> {
        let cell = self.cell(self.restart(i)?)?;
        if cell.shared != 0 {
            return Err(Damage("block: a key at a restart is not whole"));
        }
        Ok((&self.bytes[cell.suffix], cell.commit))
    }

    /// The last restart whose entry comes before (or is) what is looked for, if any does; else the first.
    fn restart_before(&self, key: &[u8], commit: u64) -> Result<usize> {
        let (mut low, mut high) = (0, self.frame.restarts);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if order(self.restart_key(middle)?, (key, commit)).is_le() {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The first entry at or after (`key`, `commit`), and whether it is one of `key`. No key is put together: of the
    /// key looked for it is enough to know how much of it the keys before share.
    fn first_from(&self, key: &[u8], commit: u64) -> Result<Option<(Cell, bool)>> {
        let mut at = self.restart(self.restart_before(key, commit)?)?;
        let mut matched = 0;
        while at < self.frame.end {
            let cell = self.cell(at)?;
            at = cell.value.end;
            if cell.shared > matched {
                continue;
            }
            // A key that shares less with its predecessor, which is smaller, is greater where that one still matched.
            // (One that shares nothing is whole here, as at a restart.)
            if cell.shared < matched && cell.shared > 0 {
                return Ok(Some((cell, false)));
            }
            let (rest, suffix) = (&key[cell.shared..], &self.bytes[cell.suffix.clone()]);
            let common = shared(rest, suffix);
            matched = cell.shared + common;
            match suffix[common..].cmp(&rest[common..]) {
                Ordering::Less => {}
                Ordering::Equal if cell.commit > commit => {}
                equal => return Ok(Some((cell, equal.is_eq()))),
            }
        }
        Ok(None)
    }

    /// The newest entry of `key` whose commit number is at most `as_of`.
    pub(crate) fn find<'k>(&self, key: &'k [u8], as_of: u64) -> Result<Look<'k>>
    where
        'a: 'k,
    {
        Ok(match self.first_from(key, as_of)? {
            None => Look::Past,
            Some((_, false)) => Look::Absent,
            Some((cell, true)) => {
                Look::Found(Entry { key, commit: cell.commit, kind: cell.kind, value: &self.bytes[cell.value] })
            }
        })
    }

    /// The value of the first entry at or after (`key`, `commit`).
    pub(crate) fn value_from(&self, key: &[u8], commit: u64) -> Result<Option<&'a [u8]>> {
        Ok(self.first_from(key, commit)?.map(|(cell, _)| &self.bytes[cell.value]))
    }

    /// Checks every byte of it.
    pub(crate) fn validate(&self) -> Result<()> {
        let (mut at, mut restart, mut n) = (HEAD, 0, 0);
        let mut last: Option<(Vec<u8>, u64)> = None;
        while at < self.frame.end {
            let cell = self.cell(at)?;
            if n % RESTART_EVERY == 0 {
                if restart == self.frame.restarts || self.restart(restart)? != at || cell.shared != 0 {
                    return Err(Damage("block: restarts do not stand where they should"));
                }
                restart += 1;
            }
            let before = last.as_ref().map_or(&[][..], |(key, _)| key);
            let start = before.get(..cell.shared).ok_or(Damage("block: a key shares more than there is"))?;
            let more =
                before.get(cell.shared).is_some_and(|byte| self.bytes[cell.suffix.clone()].first() == Some(byte));
            if more && n % RESTART_EVERY != 0 {
                return Err(Damage("block: a key shares more with the one before than it says"));
            }
            let key = [start, &self.bytes[cell.suffix]].concat();
            if last.as_ref().is_some_and(|(last, commit)| order((last, *commit), (&key, cell.commit)).is_ge()) {
                return Err(Damage("block: entries do not ascend"));
            }
            last = Some((key, cell.commit));
            (at, n) = (cell.value.end, n + 1);
        }
        if restart == self.frame.restarts { Ok(()) } else { Err(Damage("block: more restarts than entries need")) }
    }
}

/// Where an entry is in a block, and what it says besides its key.
#[derive(Clone, Default, Debug)]
struct Spot {
    /// Where the entry is, and the next one.
    at: usize,
    next: usize,
    commit: u64,
    /// None: it is no entry.
    kind: Option<EntryKind>,
    value: Range<usize>,
}

/// A place in a block. It borrows nothing: whoever has the block's bytes gives them with each call.
///
/// Keys are put together from a restart point on, so the way back goes there and forward again. What is passed on that
/// way is remembered: the next steps back are to those entries.
#[derive(Clone, Default, Debug)]
pub(crate) struct Place {
    spot: Spot,
    key: Vec<u8>,
    /// Entries of this block that follow each other and were passed on the way, the last one last, each with where its
    /// key lies in `keys`.
    passed: Vec<(Spot, Range<usize>)>,
    keys: Vec<u8>,
}

impl Place {
    /// Whether it stands on an entry.
    pub(crate) fn is_valid(&self) -> bool {
        self.spot.kind.is_some()
    }

    /// The entry that it stands on.
    pub(crate) fn entry<'a>(&'a self, block: &Block<'a>) -> Entry<'a> {
        let kind = self.spot.kind.expect("it stands on an entry");
        Entry { key: &self.key, commit: self.spot.commit, kind, value: &block.bytes[self.spot.value.clone()] }
    }

    /// Stands on no entry.
    pub(crate) fn leave(&mut self) {
        self.spot.kind = None;
    }

    fn read(&mut self, block: &Block<'_>, at: usize) -> Result<()> {
        self.leave();
        if at >= block.frame.end {
            return Ok(());
        }
        let cell = block.cell(at)?;
        if cell.shared > self.key.len() {
            return Err(Damage("block: a key shares more than there is"));
        }
        self.key.truncate(cell.shared);
        self.key.extend_from_slice(&block.bytes[cell.suffix]);
        let next = cell.value.end;
        self.spot = Spot { at, next, commit: cell.commit, kind: Some(cell.kind), value: cell.value };
        Ok(())
    }

    fn go_restart(&mut self, block: &Block<'_>, restart: usize) -> Result<()> {
        self.key.clear();
        self.passed.clear();
        self.keys.clear();
        self.read(block, block.restart(restart)?)
    }

    /// To the entry that ends at `goal`, from the restart point before it; what lies between is remembered.
    fn go_up_to(&mut self, block: &Block<'_>, goal: usize) -> Result<()> {
        while self.is_valid() && self.spot.next < goal {
            if self.passed.len() >= RESTART_EVERY as usize {
                return Err(Damage("block: more entries behind a restart than there should be"));
            }
            let start = self.keys.len();
            self.keys.extend_from_slice(&self.key);
            self.passed.push((self.spot.clone(), start..self.keys.len()));
            self.read(block, self.spot.next)?;
        }
        Ok(())
    }

    /// To the first entry.
    pub(crate) fn first(&mut self, block: &Block<'_>) -> Result<()> {
        self.go_restart(block, 0)
    }

    /// To the last entry.
    pub(crate) fn last(&mut self, block: &Block<'_>) -> Result<()> {
        self.go_restart(block, block.frame.restarts - 1)?;
        self.go_up_to(block, block.frame.end)
    }

    /// To the next entry; past the last it stands on none.
    pub(crate) fn next(&mut self, block: &Block<'_>) -> Result<()> {
        debug_assert!(self.is_valid(), "it stands on an entry");
        self.read(block, self.spot.next)
    }

    /// To the entry before; before the first it stands on none.
    pub(crate) fn prev(&mut self, block: &Block<'_>) -> Result<()> {
        debug_assert!(self.is_valid(), "it stands on an entry");
        let goal = self.spot.at;
        if let Some((spot, key)) = self.passed.pop_if(|(spot, _)| spot.next == goal) {
            self.key.clear();
            self.key.extend_from_slice(&self.keys[key.clone()]);
            self.keys.truncate(key.start);
            self.spot = spot;
            return Ok(());
        }
        if goal == HEAD {
            self.leave();
            return Ok(());
        }
        let (mut low, mut high) = (0, block.frame.restarts);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if block.restart(middle)? < goal { low = middle } else { high = middle }
        }
        self.go_restart(block, low)?;
        self.go_up_to(block, goal)?;
        // A damaged block may have entries that do not meet.
        if self.is_valid() && self.spot.next == goal { Ok(()) } else { Err(Damage("block: entries do not meet")) }
    }

    /// To the first entry at or after (`key`, `commit`).
    pub(crate) fn seek(&mut self, block: &Block<'_>, key: &[u8], commit: u64) -> Result<()> {
        self.go_restart(block, block.restart_before(key, commit)?)?;
        while self.is_valid() && order((&self.key, self.spot.commit), (key, commit)).is_lt() {
            self.read(block, self.spot.next)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests_block.rs"]
mod tests;
