//! Values that compress to a known share, as `db_bench` makes them.

use varve_rt::Rng;

/// Bytes that values are cut from.
const BYTES: usize = 1 << 20;

/// Bytes within which the random part is repeated.
const PIECE: usize = 100;

/// A megabyte and more of which every value is a part.
pub struct Values {
    bytes: Vec<u8>,
}

impl Values {
    /// Of pieces of 100 bytes, of which a share of `ratio` is random text and the rest its repetition; long enough for
    /// values of `size` bytes.
    pub fn new(ratio: f64, size: u32, seed: u64) -> Values {
        let mut rng = Rng::from_seed(seed);
        let raw = ((PIECE as f64 * ratio) as usize).clamp(1, PIECE);
        let mut bytes = Vec::with_capacity(BYTES + PIECE);
        while bytes.len() < BYTES.max(size as usize) {
            let piece: Vec<u8> = (0..raw).map(|_| b' ' + rng.below(95) as u8).collect();
            bytes.extend(piece.iter().cycle().take(PIECE));
        }
        Values { bytes }
    }

    /// The next value of `size` bytes; `at` moves on.
    pub fn next(&self, at: &mut usize, size: usize) -> &[u8] {
        if *at + size > self.bytes.len() {
            *at = 0;
        }
        let value = &self.bytes[*at..*at + size];
        *at += size;
        value
    }
}
