//! Bloom filters of a segment's keys, in lines of a cache line: a look reads one line, and so one page.
//!
//! After Putze, Sanders and Singler, *Cache-, hash- and space-efficient Bloom filters* (WEA 2007): the upper half of a
//! key's hash chooses a line of 512 bits, the lower half the bits in it. The keys' beginnings of a fixed length can be
//! put in too, so that scans of a beginning can leave a segment out.

use varve_rt::{Cost, charge};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bits per key that an option may ask for at most.
pub(crate) const MAX_BITS: u32 = 32;
const _: () = assert!(8 * LINE == 1 << (32 - 23), "what is left of a hash names each bit of a line");

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

fn fold(h: u64, x: u64) -> u64 {
    let m = u128::from(h ^ x) * u128::from(MIX);
    (m as u64) ^ ((m >> 64) as u64) ^ h.rotate_left(23)
}

/// The hash that filters know a key by. It is part of the format.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut words = key.chunks_exact(8);
    let mut h = 0x243f_6a88_85a3_08d3 ^ key.len() as u64;
    for word in &mut words {
        h = fold(h, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    h = fold(h, u64::from_le_bytes(last));
    // Twice more: each bit of the key shall reach all of the hash.
    fold(fold(h, MIX), h >> 29)
}

/// The hash of a beginning of keys: another than that of a key with the same bytes.
pub(crate) fn prefix_hash(prefix: &[u8]) -> u64 {
    fold(hash(prefix), 0x7072_6566_6978)
}

/// Size of a filter, and how it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Lines; 0: there is no filter, and every key may be there.
    pub lines: u32,
    /// Bits that are set for a key.
    pub probes: u8,
}

impl Shape {
    /// For so many keys with so many bits for each of them.
    pub(crate) fn new(keys: u64, bits_per_key: u32) -> Shape {
        let bits = bits_per_key.min(MAX_BITS);
        let lines = (keys * u64::from(bits)).div_ceil(8 * LINE as u64).min(u32::MAX.into()) as u32;
        // ln 2 times the bits has the fewest false positives; lines of uneven load want a little less.
        let probes = (f64::from(bits) * 0.66).round().clamp(1.0, 16.0) as u8;
        if lines == 0 { Shape::default() } else { Shape { lines, probes } }
    }

    /// The line of a hash.
    #[inline]
    pub(crate) fn line(&self, hash: u64) -> u32 {
        (((hash >> 32) * u64::from(self.lines)) >> 32) as u32
    }

    /// The bits of a hash, in its line.
    #[inline]
    fn bits(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mut h = hash as u32;
        (0..self.probes).map(move |_| {
            h = h.wrapping_mul(0x9e37_79b9);
            (h >> 23) as usize
        })
    }

    /// Whether the key of this hash may be among those that `line` (the hash's line) was made of.
    #[inline]
    pub(crate) fn may_have(&self, line: &[u8], hash: u64) -> bool {
        self.bits(hash).all(|bit| line.get(bit / 8).is_none_or(|byte| byte & 1 << (bit % 8) != 0))
    }

    /// The lines of a filter for these hashes.
    pub(crate) fn build(&self, hashes: &[u64]) -> Vec<u8> {
        let mut lines = vec![0; self.lines as usize * LINE];
        // Some ten nanoseconds a key, as much as copying a hundred bytes.
        charge(Cost::CopyByte, 100 * hashes.len() as u64);
        for &hash in hashes.iter().filter(|_| self.lines > 0) {
            let at = self.line(hash) as usize * LINE;
            self.bits(hash).for_each(|bit| lines[at + bit / 8] |= 1 << (bit % 8));
        }
        lines
    }

    /// Share of absent keys that a filter with so many bits set takes for present, from the bits themselves.
    #[cfg(test)]
    fn expected_rate(&self, lines: &[u8]) -> f64 {
        let set = |line: &[u8]| line.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let rate = |line: &[u8]| (f64::from(set(line)) / 512.0).powi(self.probes.into());
        lines.chunks(LINE).map(rate).sum::<f64>() / f64::from(self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(shape: &Shape, lines: &[u8], hash: u64) -> bool {
        shape.may_have(&lines[shape.line(hash) as usize * LINE..][..LINE], hash)
    }

    #[test]
    fn keys_are_found_and_others_seldom() {
        // Bits per key, and the rate that a filter in lines may have (Bloom's own: .0216, .0082, .00046).
        for (bits, most) in [(8, 0.030), (10, 0.0125), (16, 0.0015)] {
            let keys: Vec<u64> = (0..20_000u64).map(|n| hash(format!("user{n:012}").as_bytes())).collect();
            let shape = Shape::new(keys.len() as u64, bits);
            let lines = shape.build(&keys);
            assert!(keys.iter().all(|hash| asked(&shape, &lines, *hash)), "no key is missed");
            let others = (0..40_000u64).filter(|n| asked(&shape, &lines, hash(format!("other{n}").as_bytes())));
            let rate = others.count() as f64 / 40_000.0;
            let expected = shape.expected_rate(&lines);
            println!("{bits} bits a key: {rate:.5} of absent keys pass, {expected:.5} by the bits that are set");
            assert!(rate <= most && (rate / expected - 1.0).abs() < 0.35, "{bits}: {rate} {expected}");
        }
    }

    #[test]
    fn no_filter_lets_everything_pass() {
        let shape = Shape::new(0, 10);
        assert!(shape.lines == 0 && shape.may_have(&[], 5) && shape.build(&[]).is_empty());
        assert_eq!(Shape::new(1000, 0), Shape::default());
    }

    #[test]
    fn the_hash_stays_what_it_is() {
        // It is part of the format.
        assert_eq!([hash(b""), hash(b"key"), prefix_hash(b"eight by")], HASHES);
        assert_ne!(hash(b"eight by"), prefix_hash(b"eight by"));
    }

    const HASHES: [u64; 3] = [5_789_940_476_721_325_916, 8_757_827_298_788_574_376, 15_185_322_939_649_591_010];
}
