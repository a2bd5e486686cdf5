//! Response times in logarithmic buckets: sixteen to each power of two, so a bucket is at most 1/16 wide.
//!
//! Invariants: every time is in one bucket, whose bounds hold it; the buckets add up to the count.

const SUB: u64 = 16;

/// A histogram of times, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let exponent = u64::from(nanos.ilog2()) - 4;
    ((exponent + 1) * SUB + (nanos >> exponent) - SUB) as usize
}

/// The largest time in a bucket.
fn upper(bucket: usize) -> u64 {
    let b = bucket as u64;
    if b < SUB {
        return b;
    }
    let exponent = b / SUB - 1;
    let next = u128::from(b % SUB + SUB + 1) << exponent;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Adds a time.
    pub fn record(&mut self, nanos: u64) {
        let b = bucket(nanos);
        assert!(upper(b) >= nanos, "a time is in its bucket");
        if self.buckets.len() <= b {
            self.buckets.resize(b + 1, 0);
        }
        self.buckets[b] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.max = self.max.max(nanos);
    }

    /// Times added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 if there are none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The greatest.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The time that a share `q` of them does not exceed, at most 1/16 too large.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (b, n) in self.buckets.iter().enumerate() {
            seen += n;
            assert!(seen <= self.count, "the buckets add up to the count");
            if seen >= wanted {
                return upper(b).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = 0;
        for shift in 0..60 {
            for k in 0..SUB {
                let v = (SUB + k) << shift;
                let b = bucket(v);
                assert!(b >= last && upper(b) >= v && upper(b) - v <= v / SUB, "{v} in bucket {b}");
                last = b;
            }
        }
        let mut h = Histogram::default();
        (1..=1000).for_each(|v| h.record(v * 1000));
        assert!((h.quantile(0.5) as f64 / 500_000.0 - 1.0).abs() < 0.07 && h.quantile(1.0) == 1_000_000);
        assert_eq!((h.count(), h.mean()), (1000, 500_500.0));
        assert_eq!(upper(bucket(u64::MAX)), u64::MAX);
    }
}
