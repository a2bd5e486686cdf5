//! Which record a request is for. Zipfian numbers after Gray et al., "Quickly generating billion-record synthetic
//! databases" (SIGMOD 1994), as YCSB (Cooper et al., SoCC 2010) uses them.

use varve_rt::Rng;

use crate::adapter::bad_option;
use crate::error::Result;

/// How requests are spread over the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Distribution {
    /// A few records are asked for often; which, is scattered over all records.
    Zipfian,
    /// The records inserted last are asked for most.
    Latest,
    /// All the same.
    Uniform,
}

/// Terms of a zeta sum that are added one by one; the rest follows from the Euler-Maclaurin formula, with an error far
/// below that of the additions.
const EXACT: u64 = 100_000;

/// Ranks over which scrambled zipfian requests are drawn, as in YCSB: 10 billion, whatever the number of records.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// Sum of 1 / i^theta for i = 1 to n.
pub fn zeta(n: u64, theta: f64) -> f64 {
    let exact: f64 = (1..=n.min(EXACT)).map(|i| (i as f64).powf(-theta)).sum();
    if n <= EXACT { exact } else { exact + zeta_tail(n, theta) }
}

/// Sum of 1 / i^theta for i = EXACT + 1 to n.
fn zeta_tail(n: u64, theta: f64) -> f64 {
    let (a, b) = (EXACT as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let slope = |x: f64| -theta * x.powf(-theta - 1.0);
    integral + (b.powf(-theta) - a.powf(-theta)) / 2.0 + (slope(b) - slope(a)) / 12.0
}

/// Draws ranks 0 to n - 1, rank i with a probability proportional to 1 / (i + 1)^theta.
#[derive(Debug, Clone)]
pub struct Zipf {
    n: u64,
    theta: f64,
    /// The exact part of the sum that ends at `n` or at [`EXACT`].
    exact: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Ranks below `n`.
    ///
    /// Errors: `theta` does not lie between 0 and 1, or `n` is zero.
    pub fn new(n: u64, theta: f64) -> Result<Zipf> {
        if !(theta > 0.0 && theta < 1.0) {
            return bad_option("theta", format!("{theta} given; it must lie between 0 and 1, 0.99 is usual"));
        }
        if n == 0 {
            return bad_option("records", "there must be at least one");
        }
        let mut zipf = Zipf { n: 0, theta, exact: 0.0, zeta: 0.0, eta: 0.0 };
        zipf.grow(n);
        Ok(zipf)
    }

    /// Makes the ranks those below `n`, if there are more of them than before.
    pub fn grow(&mut self, n: u64) {
        if n <= self.n {
            return;
        }
        self.exact += (self.n + 1..=n.min(EXACT)).map(|i| (i as f64).powf(-self.theta)).sum::<f64>();
        self.n = n;
        self.zeta = self.exact + if n > EXACT { zeta_tail(n, self.theta) } else { 0.0 };
        let zeta_2 = 1.0 + 0.5f64.powf(self.theta);
        self.eta = (1.0 - (2.0 / n as f64).powf(1.0 - self.theta)) / (1.0 - zeta_2 / self.zeta);
    }

    /// Draws a rank.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.n - 1);
        }
        let rank = self.n as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (rank as u64).min(self.n - 1)
    }
}

/// A bijection of 64-bit numbers that scatters neighbours (the finalizer of splitmix64).
pub fn scatter(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws record numbers.
#[derive(Debug, Clone)]
pub struct Chooser {
    distribution: Distribution,
    zipf: Option<Zipf>,
}

impl Chooser {
    /// Draws with this distribution; `records` is the number there are now.
    pub fn new(distribution: Distribution, records: u64, theta: f64) -> Result<Chooser> {
        let zipf = match distribution {
            Distribution::Zipfian => Some(Zipf::new(SCRAMBLED_RANKS, theta)?),
            Distribution::Latest => Some(Zipf::new(records, theta)?),
            Distribution::Uniform => None,
        };
        Ok(Chooser { distribution, zipf })
    }

    /// Draws one of `records` record numbers.
    pub fn draw(&mut self, records: u64, rng: &mut Rng) -> u64 {
        match (&mut self.zipf, self.distribution) {
            (Some(zipf), Distribution::Latest) => {
                zipf.grow(records);
                (records - 1).saturating_sub(zipf.draw(rng))
            }
            (Some(zipf), _) => scatter(zipf.draw(rng)) % records,
            (None, _) => rng.below(records),
        }
    }
}
