//! Where a merge is cut in two, for two sides that do a part each: at a bound of a segment of the next level, so that
//! no segment there is rewritten by both, where the bytes to the left come closest to the wanted share.

/// A segment that goes in: its bounds and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share<'s> {
    pub smallest: &'s [u8],
    pub largest: &'s [u8],
    pub bytes: u64,
}

/// Where between two keys another one lies, as if keys were spread evenly; from their first eight bytes that differ.
fn fraction(smallest: &[u8], largest: &[u8], key: &[u8]) -> f64 {
    let common = smallest.iter().zip(largest).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = key.get(common..).unwrap_or(&[]);
        let len = rest.len().min(8);
        bytes[..len].copy_from_slice(&rest[..len]);
        u64::from_be_bytes(bytes) as f64
    };
    let (low, high) = (number(smallest), number(largest));
    if high > low { ((number(key) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
}

/// Bytes of a segment that lie below a key, about.
fn below(share: &Share<'_>, key: &[u8]) -> f64 {
    match key {
        key if key <= share.smallest => 0.0,
        key if key > share.largest => share.bytes as f64,
        key => share.bytes as f64 * fraction(share.smallest, share.largest, key),
    }
}

/// The key from which on the second side merges; the first has what is below. `next` are the inputs of the next level,
/// whose bounds are the candidates; `inputs` all others. None: no bound leaves both sides something to do, and one of
/// them takes all.
pub(crate) fn cut<'s>(next: &[Share<'s>], inputs: &[Share<'s>], ratio: f64) -> Option<&'s [u8]> {
    let left = |key: &[u8]| next.iter().chain(inputs).map(|share| below(share, key)).sum::<f64>();
    let total = next.iter().chain(inputs).map(|share| share.bytes).sum::<u64>() as f64;
    let distance = |key: &[u8]| (left(key) - ratio * total).abs();
    let usable = next.iter().map(|share| share.smallest).filter(|key| left(key) > 0.0 && left(key) < total);
    usable.min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(keys: &[(u64, u64)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        keys.iter().map(|(a, b)| (format!("{a:08}").into_bytes(), format!("{b:08}").into_bytes())).collect()
    }

    fn view(bounds: &[(Vec<u8>, Vec<u8>)], bytes: u64) -> Vec<Share<'_>> {
        bounds.iter().map(|(smallest, largest)| Share { smallest, largest, bytes }).collect()
    }

    #[test]
    fn the_cut_is_the_bound_closest_to_the_share() {
        let next = shares(&(0..10).map(|n| (1000 * n, 1000 * n + 999)).collect::<Vec<_>>());
        let wide = shares(&[(0, 9999)]);
        let (next, wide) = (view(&next, 2 << 20), view(&wide, 2 << 20));
        for (ratio, expected) in [(0.5, "00005000"), (0.1, "00001000"), (0.93, "00009000"), (0.0, "00001000")] {
            let key = cut(&next, &wide, ratio).map(String::from_utf8_lossy);
            assert_eq!(key.as_deref(), Some(expected), "{ratio}");
        }
        // Half of the bytes lie in the last tenth of the keys.
        let heavy = shares(&[(9000, 9999)]);
        assert_eq!(cut(&next, &view(&heavy, 20 << 20), 0.5).map(String::from_utf8_lossy).as_deref(), Some("00009000"));
    }

    #[test]
    fn without_a_usable_bound_there_is_no_cut() {
        let (one, above) = (shares(&[(10, 20)]), shares(&[(30, 40)]));
        assert_eq!(cut(&view(&one, 100), &view(&above, 100), 0.5), None, "all is to the right of the only bound");
        assert_eq!(cut(&[], &view(&above, 100), 0.5), None);
        assert!(cut(&view(&above, 100), &view(&one, 100), 0.5).is_some());
    }
}
