//! What a drive gives at a share of reads and a request size: T(r, s) between measured points.
//!
//! Between two shares the time per byte is interpolated, between two sizes the time of a request: a drive whose reads
//! and writes do not disturb each other is exact in between (T(r) = 1 / (r/R + (1-r)/W)). Nothing is guessed beyond
//! what was measured, nor across a gap: such a curve, or such a question, is refused.

/// Most of the share of reads that may lie between two measurements.
pub const SHARE_GAP: f64 = 0.25;
/// Most that a request size may be above the one measured before it, as a factor.
pub const SIZE_GAP: f64 = 16.0;
/// No drive is faster, MB/s (assumed: four times what sixteen lanes of PCI Express 5 carry).
pub const MOST_MB_S: f64 = 250_000.0;
/// No drive is slower, MB/s (assumed: a disk's random requests of 512 bytes).
pub const LEAST_MB_S: f64 = 0.01;

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Bytes of a request.
    pub bytes: u64,
    /// Share of the bytes that are read, 0 to 1.
    pub read_share: f64,
    /// Throughput with enough requests in flight, MB/s (decimal).
    pub mb_s: f64,
}

/// What is wrong with a curve, or with what it is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum CurveError {
    /// There are no measurements.
    Empty,
    /// A share, a size or a rate that cannot be.
    Value(CurvePoint),
    /// The same was measured twice.
    Twice(CurvePoint),
    /// Nothing was measured between two shares of reads, at a request size.
    ShareGap {
        /// Bytes of the requests.
        bytes: u64,
        /// Share measured before the gap, or 0.
        from: f64,
        /// Share measured after it, or 1.
        to: f64,
    },
    /// Nothing was measured between two request sizes.
    SizeGap {
        /// Bytes measured before the gap.
        from: u64,
        /// Bytes measured after it.
        to: u64,
    },
    /// A request size outside of what was measured.
    Beyond {
        /// Bytes asked for.
        bytes: u64,
        /// Smallest size measured.
        from: u64,
        /// Largest one.
        to: u64,
    },
}

impl std::fmt::Display for CurveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CurveError::Empty => write!(f, "the curve has no measurements: measure the drive with mixes of reads"),
            CurveError::Value(m) => write!(
                f,
                "the curve has {} MB/s at a read share of {} with requests of {} bytes: shares are 0 to 1, sizes \
                 above 0, rates from {LEAST_MB_S} to {MOST_MB_S}",
                m.mb_s, m.read_share, m.bytes
            ),
            CurveError::Twice(m) => {
                write!(f, "the curve has a read share of {} with requests of {} bytes twice", m.read_share, m.bytes)
            }
            CurveError::ShareGap { bytes, from, to } => write!(
                f,
                "the curve has a gap: with requests of {bytes} bytes nothing was measured between read shares of \
                 {from} and of {to}; measure at 0 and 1, and in between at most {SHARE_GAP} apart"
            ),
            CurveError::SizeGap { from, to } => write!(
                f,
                "the curve has a gap: nothing was measured between requests of {from} and of {to} bytes; measure \
                 sizes at most a factor of {SIZE_GAP} apart"
            ),
            CurveError::Beyond { bytes, from, to } => write!(
                f,
                "the load has requests of {bytes} bytes, and the curve was measured with {from} to {to}: measure that \
                 size too"
            ),
        }
    }
}

impl std::error::Error for CurveError {}

/// One size: bytes, and rising shares of reads with seconds per MB.
type Row = (u64, Vec<(f64, f64)>);

/// A drive's throughput by share of reads and request size.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve(Vec<Row>);

impl Curve {
    /// A curve through measurements, in any order.
    ///
    /// # Errors
    /// Measurements that cannot be, and gaps: each size is needed at shares 0 and 1 and at most [`SHARE_GAP`] apart.
    pub fn new(mut points: Vec<CurvePoint>) -> Result<Curve, CurveError> {
        let possible = |p: &CurvePoint| {
            p.bytes > 0 && (0.0..=1.0).contains(&p.read_share) && (LEAST_MB_S..=MOST_MB_S).contains(&p.mb_s)
        };
        if let Some(wrong) = points.iter().find(|p| !possible(p)) {
            return Err(CurveError::Value(*wrong));
        }
        points.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.read_share.total_cmp(&b.read_share)));
        let same = |w: &[CurvePoint]| w[0].bytes == w[1].bytes && w[0].read_share == w[1].read_share;
        if let Some(pair) = points.windows(2).find(|w| same(w)) {
            return Err(CurveError::Twice(pair[0]));
        }
        let mut rows: Vec<Row> = Vec::new();
        for p in points {
            match rows.last_mut() {
                Some((bytes, row)) if *bytes == p.bytes => row.push((p.read_share, 1.0 / p.mb_s)),
                _ => rows.push((p.bytes, vec![(p.read_share, 1.0 / p.mb_s)])),
            }
        }
        rows.iter().try_for_each(whole)?;
        match rows.windows(2).find(|w| w[1].0 as f64 > w[0].0 as f64 * SIZE_GAP) {
            Some(pair) => Err(CurveError::SizeGap { from: pair[0].0, to: pair[1].0 }),
            None if rows.is_empty() => Err(CurveError::Empty),
            None => Ok(Curve(rows)),
        }
    }

    /// A curve by a rule, at the sizes given and shares a twentieth apart.
    ///
    /// # Errors
    /// As for [`Curve::new`].
    pub fn by(sizes: &[u64], mb_s: impl Fn(f64, u64) -> f64) -> Result<Curve, CurveError> {
        let shares = (0..=20).map(|n| f64::from(n) / 20.0);
        let point = |bytes: u64, read_share| CurvePoint { bytes, read_share, mb_s: mb_s(read_share, bytes) };
        Curve::new(shares.flat_map(|share| sizes.iter().map(move |bytes| point(*bytes, share))).collect())
    }

    /// Smallest and largest request that was measured, bytes.
    pub fn sizes(&self) -> (u64, u64) {
        (self.0[0].0, self.0[self.0.len() - 1].0)
    }

    /// Refuses a request size that lies outside.
    pub fn covers(&self, bytes: u64) -> Result<(), CurveError> {
        let (from, to) = self.sizes();
        if (from..=to).contains(&bytes) { Ok(()) } else { Err(CurveError::Beyond { bytes, from, to }) }
    }

    /// MB/s at a share of reads and a request size.
    ///
    /// # Errors
    /// The size lies outside of what was measured.
    pub fn throughput(&self, read_share: f64, bytes: u64) -> Result<f64, CurveError> {
        self.covers(bytes)?;
        Ok(1.0 / self.per_mb(read_share, bytes as f64))
    }

    /// What reading alone gains at a request size: the throughput at pure reading less the mean over read shares 5 %
    /// to 95 % by 5 (Yang, Wan, Fan 2017), MB/s.
    ///
    /// # Errors
    /// As for [`Curve::throughput`].
    pub fn read_only_gain(&self, bytes: u64) -> Result<f64, CurveError> {
        let mixed = (1..20).map(|n| self.throughput(f64::from(n) / 20.0, bytes));
        let mean = mixed.sum::<Result<f64, _>>()? / 19.0;
        Ok(self.throughput(1.0, bytes)? - mean)
    }

    /// Seconds per MB. The size is known to lie within, but for rounding.
    pub(super) fn per_mb(&self, read_share: f64, bytes: f64) -> f64 {
        let above = self.0.iter().position(|(size, _)| *size as f64 > bytes).unwrap_or(self.0.len());
        let lower = &self.0[above.saturating_sub(1)];
        match self.0.get(above).filter(|_| above > 0) {
            None => at(&lower.1, read_share),
            Some(upper) => {
                let (a, b) = (lower.0 as f64, upper.0 as f64);
                let (first, last) = (a * at(&lower.1, read_share), b * at(&upper.1, read_share));
                (first + (last - first) * (bytes - a) / (b - a)) / bytes
            }
        }
    }
}

/// Refuses a size with gaps between its shares.
fn whole((bytes, row): &Row) -> Result<(), CurveError> {
    let gap = |from, to| Err(CurveError::ShareGap { bytes: *bytes, from, to });
    match (row[0].0, row[row.len() - 1].0) {
        (first, _) if first > 0.0 => gap(0.0, first),
        (_, last) if last < 1.0 => gap(last, 1.0),
        _ => match row.windows(2).find(|w| w[1].0 - w[0].0 > SHARE_GAP + 1e-9) {
            Some(pair) => gap(pair[0].0, pair[1].0),
            None => Ok(()),
        },
    }
}

/// Seconds per MB at a share of reads.
fn at(row: &[(f64, f64)], share: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    debug_assert!(row.len() > 1, "a row was measured with writes alone and with reads alone, at least");
    let above = row.partition_point(|(r, _)| *r < share).clamp(1, row.len() - 1);
    let ((r0, t0), (r1, t1)) = (row[above - 1], row[above]);
    t0 + (t1 - t0) * (share - r0) / (r1 - r0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The model fitted to the paper's drives, and its read-only gains (MB/s, sequential, 2 MB): OCZ, 830, 850, 530.
    #[test]
    fn published_gains_come_out() {
        let drives = [(560.0, 257.0, 192.38), (530.0, 349.0, 103.86), (560.0, 479.0, 42.93), (555.0, 528.0, 13.86)];
        for (read, write, published) in drives {
            let curve = Curve::by(&[2 * MIB], |r, _| 1.0 / (r / read + (1.0 - r) / write)).unwrap();
            let gain = curve.read_only_gain(2 * MIB).unwrap();
            assert!((gain / published - 1.0).abs() < 0.03, "{gain} {published}");
        }
    }

    #[test]
    fn between_points_times_are_interpolated() {
        let rate = |r: f64, bytes: u64| 1.0 / ((r / 500.0 + (1.0 - r) / 250.0) * (1.0 + 65536.0 / bytes as f64));
        let curve = Curve::by(&[MIB, 4 * MIB], rate).unwrap();
        for (share, bytes) in [(0.0, MIB), (0.33, MIB), (0.5, 2 * MIB), (0.97, 3 * MIB), (1.0, 4 * MIB)] {
            let got = curve.throughput(share, bytes).unwrap();
            assert!((got / rate(share, bytes) - 1.0).abs() < 1e-9, "{share} {bytes}: {got}");
        }
        assert!(matches!(curve.throughput(0.5, 5 * MIB), Err(CurveError::Beyond { .. })));
    }

    #[test]
    fn gaps_and_impossible_values_are_refused() {
        let point = |read_share, mb_s| CurvePoint { bytes: MIB, read_share, mb_s };
        let all = |shares: &[f64]| Curve::new(shares.iter().map(|s| point(*s, 100.0)).collect());
        assert_eq!(Curve::new(Vec::new()), Err(CurveError::Empty));
        assert!(all(&[0.0, 0.25, 0.5, 0.75, 1.0]).is_ok());
        for (shares, from, to) in [
            (&[0.1, 0.3, 0.5, 0.75, 1.0][..], 0.0, 0.1),
            (&[0.0, 0.25, 0.75, 1.0], 0.25, 0.75),
            (&[0.0, 0.25, 0.5, 0.75], 0.75, 1.0),
        ] {
            assert_eq!(all(shares), Err(CurveError::ShareGap { bytes: MIB, from, to }));
        }
        assert!(matches!(all(&[0.0, 0.0]), Err(CurveError::Twice(_))));
        for wrong in [point(-0.1, 1.0), point(1.1, 1.0), point(0.5, 1e9), point(0.5, 0.0), point(0.5, f64::NAN)] {
            assert!(matches!(Curve::new(vec![wrong]), Err(CurveError::Value(_))), "{wrong:?}");
        }
        let far = Curve::by(&[4096, MIB], |_, _| 100.0);
        assert_eq!(far, Err(CurveError::SizeGap { from: 4096, to: MIB }));
    }
}
