//! Memory that one thread writes while others may look at it.
//!
//! A reader without a lock, as that of a sequence lock, loads bytes that somebody may be storing at that moment. Plain
//! loads and stores that meet like this are undefined; relaxed atomic ones are not, if all of them have the same size:
//! hence whole aligned words here, and a part of a word is stored by storing the word. What is seen may be torn between
//! words and out of order: the reader finds out afterwards whether to believe it.
//!
//! There is only one thread that stores (it holds a latch, or the request that a buffer belongs to), so its two
//! steps, load and store, are one. It and others whom the latch keeps apart from it may also read the memory plainly.
//! What the operating system reads into a buffer counts as such stores.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;
const _: () = assert!(size_of::<AtomicU64>() == WORD && align_of::<AtomicU64>() <= WORD);

/// A view of such memory: whole words.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    start: *const AtomicU64,
    /// In bytes.
    len: usize,
    memory: PhantomData<&'a [AtomicU64]>,
}

impl<'a> Words<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes are initialised and valid for reads and writes for the lifetime. While it lasts, whoever may use them
    /// at the same time as a user of this view does so through such views, too, or only reads them where this view is
    /// only read.
    #[inline]
    pub unsafe fn new(start: *mut u8, len: usize) -> Words<'a> {
        debug_assert!(start.cast::<u64>().is_aligned() && len.is_multiple_of(WORD));
        Words { start: start.cast(), len, memory: PhantomData }
    }

    /// Number of bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.len
    }

    /// Where the bytes are.
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.start.cast()
    }

    /// The little-endian number in the word that has byte `at`; zero beyond the end.
    #[inline]
    pub fn word(self, at: usize) -> u64 {
        if at >= self.len {
            return 0;
        }
        // SAFETY: `new` was promised `len` bytes, whole words from `start` on, and byte `at` is one of them.
        u64::from_le(unsafe { &*self.start.add(at / WORD) }.load(Relaxed))
    }

    /// So many whole words from byte `at` on, a multiple of eight; none when they are not all within.
    #[inline]
    pub fn slice(self, at: usize, words: usize) -> Option<&'a [AtomicU64]> {
        debug_assert!(at.is_multiple_of(WORD));
        // SAFETY: as promised to `new`.
        let all = unsafe { std::slice::from_raw_parts(self.start, self.len / WORD) };
        all.get(at / WORD..)?.get(..words)
    }

    /// As [`Words::word`] of the eight bytes from any byte on.
    #[inline]
    pub fn unaligned_word(self, at: usize) -> u64 {
        match 8 * (at % WORD) as u32 {
            0 => self.word(at),
            shift => self.word(at) >> shift | self.word(at + WORD) << (64 - shift),
        }
    }

    /// Byte `at`; zero beyond the end.
    #[inline]
    pub fn byte(self, at: usize) -> u8 {
        (self.word(at) >> (8 * (at % WORD))) as u8
    }

    /// Overwrites the bytes from `at` on.
    #[inline]
    pub fn store(self, at: usize, bytes: &[u8]) {
        debug_assert!(at <= self.len && bytes.len() <= self.len - at, "what is stored lies within the memory");
        let (head, rest) = bytes.split_at(to_boundary(at).min(bytes.len()));
        let (whole, tail) = rest.as_chunks();
        let (middle, end) = (at + head.len(), at + bytes.len());
        self.splice(at, head);
        for (to, bytes) in self.cells(middle..end - tail.len()).iter().zip(whole) {
            to.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        self.splice(end - tail.len(), tail);
    }

    /// Overwrites the bytes of a range by zeros: whole words.
    pub fn clear(self, range: Range<usize>) {
        assert!(range.start.is_multiple_of(WORD) && range.end.is_multiple_of(WORD));
        self.cells(range).iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Moves `len` bytes from one place to another; they may overlap.
    pub fn shift(self, from: usize, to: usize, len: usize) {
        assert!(from.max(to) <= self.len && len <= self.len - from.max(to), "a move beyond the end");
        let head = to_boundary(to).min(len);
        let tail = (len - head) % WORD;
        let edge = |at: usize, n: usize| {
            self.splice(to + at, &self.unaligned_word(from + at).to_le_bytes()[..n]);
        };
        let whole = || self.shift_words(from + head, to + head..to + len - tail);
        // From the end that no later step reads.
        if to <= from {
            edge(0, head);
            whole();
            edge(len - tail, tail);
        } else {
            edge(len - tail, tail);
            whole();
            edge(0, head);
        }
    }

    /// Fills whole words with the bytes from `from` on.
    fn shift_words(self, from: usize, to: Range<usize>) {
        let (down, shift) = (to.start <= from, 8 * (from % WORD) as u32);
        let to = self.cells(to);
        let from = &self.cells(from - from % WORD..self.len);
        if shift == 0 {
            let move_one = |(from, to): (&AtomicU64, &AtomicU64)| to.store(from.load(Relaxed), Relaxed);
            return in_order(from.iter().zip(to), down, move_one);
        }
        let load = |word: &AtomicU64| u64::from_le(word.load(Relaxed));
        in_order(from.windows(2).zip(to), down, |(from, to)| {
            let word = load(&from[0]) >> shift | load(&from[1]) << (64 - shift);
            to.store(word.to_le(), Relaxed);
        });
    }

    /// Overwrites less than a word, within one.
    #[inline]
    fn splice(self, at: usize, bytes: &[u8]) {
        let [.., _] = bytes else { return };
        debug_assert!(bytes.len() < WORD && at % WORD + bytes.len() <= WORD, "a part of one word");
        let word = &self.cells(at - at % WORD..at - at % WORD + WORD)[0];
        let shift = 8 * (at % WORD) as u32;
        let mask = (1 << (8 * bytes.len())) - 1;
        let kept = u64::from_le(word.load(Relaxed)) & !(mask << shift);
        word.store((kept | number(bytes) << shift).to_le(), Relaxed);
    }

    /// The words of a range of bytes, which begins and ends between words unless it is empty.
    #[inline]
    fn cells(self, range: Range<usize>) -> &'a [AtomicU64] {
        // SAFETY: as promised to `new`.
        let all = unsafe { std::slice::from_raw_parts(self.start, self.len / WORD) };
        let (first, count) = (range.start / WORD, range.len() / WORD);
        debug_assert!(count == 0 || range.start.is_multiple_of(WORD) && range.end.is_multiple_of(WORD));
        if count == 0 { &[] } else { &all[first..first + count] }
    }
}

/// Less than eight bytes, and at least one, as a little-endian number.
#[inline]
fn number(b: &[u8]) -> u64 {
    let four = |at: usize| u64::from(u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes")));
    let two = |at: usize| u64::from(u16::from_le_bytes([b[at], b[at + 1]]));
    match b.len() {
        // The two fours, or twos, overlap in bytes that both have.
        len @ 4.. => four(0) | four(len - 4) << (8 * (len - 4)),
        len @ 2..4 => two(0) | two(len - 2) << (8 * (len - 2)),
        _ => u64::from(b[0]),
    }
}

/// Hands on the items from the first to the last, or from the last to the first.
#[inline]
fn in_order<I: DoubleEndedIterator + ExactSizeIterator>(items: I, forward: bool, f: impl FnMut(I::Item)) {
    if forward { items.for_each(f) } else { items.rev().for_each(f) }
}

/// Bytes from `at` to where the next word begins.
#[inline]
fn to_boundary(at: usize) -> usize {
    at.wrapping_neg() % WORD
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    const LEN: usize = 96;

    fn noise(rng: &mut Rng) -> Box<[u64; LEN / WORD]> {
        Box::new(std::array::from_fn(|_| rng.next_u64()))
    }

    fn view(memory: &mut [u64]) -> Words<'_> {
        // SAFETY: the memory is borrowed exclusively.
        unsafe { Words::new(memory.as_mut_ptr().cast(), size_of_val(memory)) }
    }

    fn bytes(words: Words<'_>) -> Vec<u8> {
        (0..words.bytes()).map(|at| words.byte(at)).collect()
    }

    #[test]
    fn bytes_are_stored_and_moved_as_in_a_slice() {
        let mut rng = Rng::from_seed(1);
        let mut memory = noise(&mut rng);
        let words = view(&mut memory[..]);
        let mut model = bytes(words);
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            let (a, b) = (rng.below(LEN as u64 + 1) as usize, rng.below(LEN as u64 + 1) as usize);
            let len = rng.below((LEN - a.max(b)) as u64 + 1) as usize;
            if rng.below(2) == 0 {
                let new: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                words.store(a, &new);
                model[a..a + len].copy_from_slice(&new);
            } else {
                words.shift(a, b, len);
                model.copy_within(a..a + len, b);
            }
            assert_eq!(bytes(words), model, "{a} {b} {len}");
        }
        words.clear(8..LEN);
        assert!(bytes(words)[8..].iter().all(|b| *b == 0) && bytes(words)[..8] == model[..8]);
    }

    #[test]
    fn nothing_is_read_or_written_beyond_the_end() {
        let mut memory = [u64::MAX; 4];
        let words = view(&mut memory[..3]);
        assert_eq!((words.word(24), words.byte(24), words.unaligned_word(24)), (0, 0, 0));
        assert_eq!(words.unaligned_word(20), 0xFFFF_FFFF);
        let outside = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        assert!(outside(&|| words.store(20, &[0; 5])));
        assert!(outside(&|| words.store(23, &[0; 16])));
        assert!(outside(&|| words.shift(0, 20, 5)));
        assert!(outside(&|| words.shift(20, 0, 5)));
        assert_eq!(memory[3], u64::MAX);
    }
}
