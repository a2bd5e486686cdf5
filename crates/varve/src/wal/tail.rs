//! The growing end of the log: lock-free reservation, the circular buffer, and which of its blocks are filled.
//!
//! One atomic word packs a closed bit, the checkpoint epoch (15 bits) and the position (48 bits, in units of 8 bytes
//! from a base), so a reservation and the check that no checkpoint began since the caller looked at the image floor are
//! one compare-and-swap, and closing leaves no reservation behind.
//!
//! Each block of the buffer counts the bytes filled in it (low half of the count) and the groups that begin in it (high
//! half). A block with [`BLOCK`] bytes is complete and immutable: it may be written out, straight from the buffer.
//! The thread that reserved bytes fills them exactly once; padding is reserved like a group.
//!
//! Invariants: byte `x` is in the buffer at `x mod capacity`, and is filled only when `x < reclaimed + capacity`;
//! `reclaimed` (the durable LSN) moves only after the counts of the blocks below it were set back to zero, and never
//! past a block that is being written. The release increment of a count pairs with the writer's acquire load of it.

use super::Floor;
use super::format::{ALIGN, BLOCK, GROUP_HEADER, PAD_MARK, block_ceil, block_floor, pad_mark};
use varve_device::{AlignedBuf, DeviceError};
use varve_rt::atomic::{AtomicU32, AtomicU64, Ordering};
use varve_volume::Lsn;

const POSITION_BITS: u32 = 48;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const EPOCH_MASK: u32 = 0x7fff;
const CLOSED: u64 = 1 << 63;
/// One group in a block's count.
const ONE_GROUP: u32 = 1 << 16;
/// Floors kept: a reader that was overtaken by this many checkpoints notices by the epoch.
const FLOORS: usize = 8;

// The word has a place for each bit of it, and no more.
const _: () = assert!((EPOCH_MASK as u64) << POSITION_BITS ^ POSITION_MASK ^ CLOSED == u64::MAX);
// A count's low half holds a whole block, its high half as many groups as may begin in one.
const _: () = assert!(BLOCK < ONE_GROUP as u64 && BLOCK / (GROUP_HEADER as u64) < (1 << (32 - ONE_GROUP.ilog2())));
// When the epoch begins anew, the next floor still takes the place of the oldest.
const _: () = assert!((EPOCH_MASK as usize + 1).is_multiple_of(FLOORS));

/// Why a reservation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// A checkpoint began since the caller read the floor.
    EpochMoved,
    /// The position does not fit its bits any more.
    Exhausted,
    /// See [`Tail::close`].
    Closed,
}

/// See the module.
pub struct Tail {
    word: AtomicU64,
    base: AtomicU64,
    /// Where the newest padding begins: the end of the last group before it.
    padded_from: AtomicU64,
    floors: [AtomicU64; FLOORS],
    /// Start of `memory`, taken before it was shared: all access goes through it.
    start: *mut u8,
    memory: AlignedBuf,
    filled: Box<[AtomicU32]>,
}

// SAFETY: `start` points into `memory`, which is owned, never moves and is freed with the struct; who may access which
// bytes when is the reservation protocol above.
unsafe impl Send for Tail {}
// SAFETY: as above.
unsafe impl Sync for Tail {}

impl Tail {
    /// A tail with a buffer of `capacity` bytes (a power of two of blocks).
    ///
    /// # Errors
    /// The system has not so much memory.
    pub fn new(capacity: usize) -> Result<Tail, DeviceError> {
        assert!(capacity.is_power_of_two() && capacity as u64 >= 2 * BLOCK, "buffer of a power of two blocks");
        let mut memory = AlignedBuf::try_new(capacity, "the log's buffer")?;
        Ok(Tail {
            word: AtomicU64::new(0),
            base: AtomicU64::new(0),
            padded_from: AtomicU64::new(0),
            floors: Default::default(),
            start: memory.as_mut_ptr(),
            memory,
            filled: (0..capacity as u64 / BLOCK).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Bytes of the buffer.
    pub fn capacity(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Sets the position and the image floor before any reservation. `at` is a block boundary.
    pub fn start(&self, at: Lsn, floor: Lsn) {
        assert!(at.is_multiple_of(BLOCK), "the log goes on at a block boundary");
        assert!(floor <= at, "the image floor lies in what was appended");
        debug_assert!(self.filled.iter().all(|n| n.load(Ordering::Relaxed) == 0), "the buffer is empty");
        self.base.store(at, Ordering::Relaxed);
        let epoch = unpack(self.word.load(Ordering::Relaxed)).0;
        self.floors[epoch as usize % FLOORS].store(floor, Ordering::Relaxed);
        self.word.store(pack(epoch, 0), Ordering::Release);
    }

    fn lsn(&self, word: u64) -> Lsn {
        self.base.load(Ordering::Relaxed) + (word & POSITION_MASK) * ALIGN
    }

    /// End of everything reserved.
    pub fn position(&self) -> Lsn {
        self.lsn(self.word.load(Ordering::Acquire))
    }

    /// The newest image floor, and the epoch to check it by.
    pub fn floor(&self) -> Floor {
        loop {
            let epoch = unpack(self.word.load(Ordering::Acquire)).0;
            let lsn = self.floors[epoch as usize % FLOORS].load(Ordering::Acquire);
            if unpack(self.word.load(Ordering::Acquire)).0 == epoch {
                debug_assert!(lsn <= self.position(), "the image floor lies in what was appended");
                return Floor { epoch, lsn };
            }
        }
    }

    /// Begins a checkpoint: takes the position as the new floor and moves the epoch, in one step. One caller at a time.
    pub fn raise_floor(&self) -> Lsn {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (epoch, position) = unpack(word);
            let next = (epoch + 1) & EPOCH_MASK;
            let lsn = self.lsn(word);
            self.floors[next as usize % FLOORS].store(lsn, Ordering::Release);
            if self.word.compare_exchange(word, pack(next, position), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let before = self.floors[epoch as usize % FLOORS].load(Ordering::Relaxed);
                assert!(before <= lsn, "the image floor does not sink");
                return lsn;
            }
        }
    }

    /// Reserves `size` bytes (a multiple of [`ALIGN`]). With an epoch: only while it is the current one.
    pub fn reserve(&self, epoch: Option<u32>, size: u64) -> Result<Lsn, Refused> {
        assert!(size.is_multiple_of(ALIGN) && size > 0, "a group ends where the next one may begin");
        let mut word = self.word.load(Ordering::Acquire);
        let mut tries = 0;
        loop {
            let (now, position) = unpack(word);
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            if epoch.is_some_and(|e| e != now) {
                return Err(Refused::EpochMoved);
            }
            let moved = position + size / ALIGN;
            if moved > POSITION_MASK {
                return Err(Refused::Exhausted);
            }
            match self.word.compare_exchange_weak(word, pack(now, moved), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(self.lsn(word)),
                Err(found) => word = found,
            }
            varve_rt::spin(tries.min(3));
            tries += 1;
        }
    }

    /// Refuses every reservation from now on, provided that the last group ends at or before `t` and the block it ends
    /// in is closed. Returns the position then.
    pub fn close(&self, t: Lsn) -> Option<Lsn> {
        let word = self.word.load(Ordering::Acquire);
        let at = self.lsn(word);
        assert!(t <= at, "the redo point lies in what was appended");
        // Nothing but the padding from `t` to the end of its block lies past `t`.
        let last = at == t || (at == block_ceil(t) && self.padded_from.load(Ordering::Relaxed) == t);
        let closed =
            last && self.word.compare_exchange(word, word | CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        closed.then_some(at)
    }

    /// Pads the open block if it lies below `limit`, so that it can be written. Returns the block boundary up to which
    /// everything is reserved.
    pub fn close_block(&self, limit: Lsn, salt: u32, run: u32) -> Lsn {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let at = self.lsn(word);
            let end = block_ceil(at);
            if end == at || end > limit {
                return block_floor(at);
            }
            let (epoch, position) = unpack(word);
            let moved = position + (end - at) / ALIGN;
            if moved > POSITION_MASK {
                return block_floor(at);
            }
            match self.word.compare_exchange_weak(word, pack(epoch, moved), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.padded_from.fetch_max(at, Ordering::Relaxed);
                    self.pad(at, end, salt, run);
                    return end;
                }
                Err(found) => word = found,
            }
        }
    }

    fn pad(&self, at: Lsn, end: Lsn, salt: u32, run: u32) {
        assert!(at < end && end - at < BLOCK && end.is_multiple_of(BLOCK), "padding fills the rest of a block");
        let mut bytes = [0u8; BLOCK as usize];
        bytes[..PAD_MARK].copy_from_slice(&pad_mark(salt, run, at));
        self.fill(at, &bytes[..(end - at) as usize], false);
    }

    /// Fills reserved bytes from `at` on and publishes them; `begins`: a group begins at `at`. They must lie below
    /// `reclaimed + capacity`.
    pub fn fill(&self, at: Lsn, bytes: &[u8], begins: bool) {
        let offset = (at % self.capacity()) as usize;
        let first = bytes.len().min(self.memory.len() - offset);
        self.copy(offset, &bytes[..first]);
        self.copy(0, &bytes[first..]);
        self.publish(at, bytes.len() as u64, begins);
    }

    /// Fills a whole group: `a`, `b` and zeros, published at once.
    pub fn fill_two(&self, at: Lsn, a: &[u8], b: &[u8], zeros: usize) {
        let offset = (at % self.capacity()) as usize;
        let total = a.len() + b.len() + zeros;
        debug_assert!(
            at.is_multiple_of(ALIGN) && (total as u64).is_multiple_of(ALIGN),
            "a group ends where the next one may begin"
        );
        if offset + total > self.memory.len() {
            self.fill(at, a, true);
            self.fill(at + a.len() as u64, b, false);
            if zeros > 0 {
                self.fill(at + (a.len() + b.len()) as u64, &[0; ALIGN as usize][..zeros], false);
            }
            return;
        }
        self.copy(offset, a);
        self.copy(offset + a.len(), b);
        self.copy(offset + a.len() + b.len(), &[0; ALIGN as usize][..zeros]);
        self.publish(at, total as u64, true);
    }

    fn copy(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.len(), "what is filled fits the buffer");
        // SAFETY: in bounds (asserted above). The range was reserved by this caller
        // alone and is below reclaimed + capacity, so nobody else writes it, and nobody reads it before its block's
        // count is full, which this caller's `publish` (release) has to precede.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len());
        }
    }

    fn publish(&self, at: Lsn, len: u64, begins: bool) {
        let (mut at, end) = (at, at + len);
        let mut group = if begins { ONE_GROUP } else { 0 };
        while at < end {
            let stop = end.min(block_floor(at) + BLOCK);
            let old = self.filled[self.index(at)].fetch_add((stop - at) as u32 + group, Ordering::Release);
            group = 0;
            assert!(u64::from(old % ONE_GROUP) + (stop - at) <= BLOCK, "block {at} filled twice");
            at = stop;
        }
    }

    fn index(&self, lsn: Lsn) -> usize {
        (lsn / BLOCK) as usize & (self.filled.len() - 1)
    }

    /// Whether the block at `block` is complete.
    pub fn is_full(&self, block: Lsn) -> bool {
        u64::from(self.filled[self.index(block)].load(Ordering::Acquire) % ONE_GROUP) == BLOCK
    }

    /// Address of a complete block, and how many bytes from there on are contiguous in memory.
    pub fn address(&self, block: Lsn) -> (*const u8, u64) {
        debug_assert!(block.is_multiple_of(BLOCK) && self.is_full(block), "whole blocks are written, and no others");
        let offset = block % self.capacity();
        (self.start.wrapping_add(offset as usize), self.capacity() - offset)
    }

    /// Makes the blocks of `[start, end)` free for another lap; the number of groups that begin in them. The caller
    /// then moves the durable LSN (release).
    pub fn reclaim(&self, start: Lsn, end: Lsn) -> u64 {
        assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK), "blocks are reclaimed whole");
        let (mut block, mut groups) = (start, 0);
        while block < end {
            let count = &self.filled[self.index(block)];
            let filled = count.load(Ordering::Relaxed);
            assert_eq!(u64::from(filled % ONE_GROUP), BLOCK, "block {block} is reclaimed and was never whole");
            groups += u64::from(filled / ONE_GROUP);
            count.store(0, Ordering::Relaxed);
            block += BLOCK;
        }
        groups
    }
}

fn pack(epoch: u32, position: u64) -> u64 {
    debug_assert!(epoch <= EPOCH_MASK && position <= POSITION_MASK, "epoch and position fit their bits");
    u64::from(epoch) << POSITION_BITS | position
}

fn unpack(word: u64) -> (u32, u64) {
    ((word >> POSITION_BITS) as u32 & EPOCH_MASK, word & POSITION_MASK)
}
