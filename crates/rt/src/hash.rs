//! Fast hashing with no random state, so that a run is a function of its seed.
//!
//! Invariant: the same keys inserted in the same order give the same iteration order in every process. (Not for keys
//! that are addresses.) Not resistant to chosen keys: do not use it on keys an adversary picks freely.

use std::hash::Hasher;

/// A `HashMap` with deterministic, fast hashing. Make one with `HashMap::default()`.
pub type HashMap<K, V, S = BuildHasher> = std::collections::HashMap<K, V, S>;
/// A `HashSet` with deterministic, fast hashing. Make one with `HashSet::default()`.
pub type HashSet<K, S = BuildHasher> = std::collections::HashSet<K, S>;

const K: u64 = 0x9e37_79b9_7f4a_7c15;

/// Builds [`FastHasher`]s; every one starts from the same state.
#[derive(Clone, Copy, Default, Debug)]
pub struct BuildHasher;

impl std::hash::BuildHasher for BuildHasher {
    type Hasher = FastHasher;
    #[inline]
    fn build_hasher(&self) -> FastHasher {
        FastHasher(0x243f_6a88_85a3_08d3)
    }
}

/// A multiply-fold hasher: each word is mixed by the two halves of a 64 by 64 bit product.
#[derive(Clone, Copy, Debug)]
pub struct FastHasher(u64);

/// Mixes `x` into `h`.
#[inline]
pub(crate) fn fold(h: u64, x: u64) -> u64 {
    let m = u128::from(h ^ x) * u128::from(K);
    (m as u64) ^ ((m >> 64) as u64) ^ h.rotate_left(23)
}

impl Hasher for FastHasher {
    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its tag from the top and its slot from the bottom bits: spread both.
        let m = u128::from(self.0) * u128::from(K | 1);
        (m as u64) ^ ((m >> 64) as u64)
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for c in &mut chunks {
            self.0 = fold(self.0, u64::from_le_bytes(c.try_into().expect("eight bytes")));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0u8; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.0 = fold(self.0, u64::from_le_bytes(last) ^ ((rest.len() as u64) << 56));
        }
        self.0 = fold(self.0, bytes.len() as u64);
    }
    #[inline]
    fn write_u8(&mut self, i: u8) {
        self.write_u64(u64::from(i));
    }
    #[inline]
    fn write_u16(&mut self, i: u16) {
        self.write_u64(u64::from(i));
    }
    #[inline]
    fn write_u32(&mut self, i: u32) {
        self.write_u64(u64::from(i));
    }
    #[inline]
    fn write_u64(&mut self, i: u64) {
        self.0 = fold(self.0, i);
    }
    #[inline]
    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }
}
