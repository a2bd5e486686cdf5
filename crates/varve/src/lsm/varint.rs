//! Numbers of seven bits a byte.

/// Appends a number, seven bits a byte, the least significant first.
pub(crate) fn push_varint(to: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

/// Bytes that [`push_varint`] takes.
pub(crate) fn varint_len(n: u64) -> usize {
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// The number at `at`, which moves past it; none when the bytes end before it does, or it is longer than 64 bits.
#[inline]
pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(first.into());
    }
    let mut n = 0;
    for (i, byte) in bytes[*at..].iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            return None;
        }
        n |= bits << (7 * i);
        if byte & 0x80 == 0 {
            *at += i + 1;
            return Some(n);
        }
    }
    None
}

/// A difference as a number that is small when the difference is.
pub(crate) fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

/// What [`zigzag`] was given.
pub(crate) fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut rng = varve_rt::Rng::from_seed(1);
        let edges = [0, 1, 127, 128, 16_383, 16_384, u64::MAX, u64::MAX >> 1];
        for n in edges.into_iter().chain((0..2000).map(|i| rng.next_u64() >> (i % 64))) {
            let mut bytes = vec![9];
            push_varint(&mut bytes, n);
            assert_eq!(bytes.len(), 1 + varint_len(n));
            let mut at = 1;
            assert_eq!((varint(&bytes, &mut at), at), (Some(n), bytes.len()));
            assert_eq!(varint(&bytes[..bytes.len() - 1], &mut 1), None, "cut short");
            assert_eq!(unzigzag(zigzag(n as i64)), n as i64);
        }
        assert_eq!(varint(&[0xff; 11], &mut 0), None, "it has no end");
        assert!(zigzag(-1) == 1 && zigzag(1) == 2);
    }
}
