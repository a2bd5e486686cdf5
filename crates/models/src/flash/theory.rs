//! Write amplification in theory, for uniform random writes, TRIM, skew and in-place appends.
//!
//! `alpha` = effective physical pages per logical page, `b` = pages of a block. Sources: Menon 1995 and Desnoyers 2012
//! (FIFO), Bux and Iliadis 2010 and Van Houdt 2013 (greedy and d-choices in the mean field), Frankie, Hughes and
//! Kreutz-Delgado 2012 (TRIM). The appends follow from the same renewal argument.

/// The root of `f` between `low` and `high`, where it changes its sign.
fn root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    let rising = f(high) > 0.0;
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if (f(middle) > 0.0) == rising {
            high = middle;
        } else {
            low = middle;
        }
    }
    0.5 * (low + high)
}

/// FIFO cleaning (a circular log): A = 1 / (1 - exp(-alpha/A)), that is A = alpha / (alpha + W0(-alpha e^-alpha)).
pub fn fifo(alpha: f64) -> f64 {
    assert!(alpha > 1.0, "alpha = {alpha} leaves no spare space");
    alpha / (alpha + lambert_w0(-alpha * (-alpha).exp()))
}

/// The principal branch of Lambert's W on [-1/e, 0].
pub fn lambert_w0(x: f64) -> f64 {
    assert!((-(-1.0_f64).exp() - 1e-12..=0.0).contains(&x), "W0 is wanted on [-1/e, 0], not at {x}");
    root(-1.0, 0.0, |w| w * w.exp() - x)
}

/// Greedy cleaning with many blocks: the integer m and 0 <= p < 1 with rho b (H_b - H_m + p/m) = b - m + p; then
/// A = b / (b - m + p).
pub fn greedy(alpha: f64, b: u32) -> f64 {
    let (rho, b) = (1.0 / alpha, f64::from(b));
    // Walking m down from b, `sum` is H_b - H_m. With p = 0 the left side starts above the right one's growth.
    let mut sum = 0.0;
    let mut m = b;
    while m >= 1.0 {
        // rho b (sum + p/m) = b - m + p  =>  p = (b - m - rho b sum) / (rho b / m - 1)
        let p = (b - m - rho * b * sum) / (rho * b / m - 1.0);
        if (0.0..1.0).contains(&p) && rho * b < m.max(1.0) * 1e9 && b - m + p > 0.0 {
            return b / (b - m + p);
        }
        sum += 1.0 / m;
        m -= 1.0;
    }
    1.0
}

/// Victims are the best of `d` random blocks: i (S_i - S_{i+1}) K = 1 - S_i^d for i = b..1, S_{b+1} = 0, sum S_i = rho
/// b, A = 1 / (K rho).
pub fn d_choices(alpha: f64, b: u32, d: u32) -> f64 {
    let rho = 1.0 / alpha;
    let mean = |k: f64| {
        let (mut above, mut sum) = (0.0, 0.0);
        for i in (1..=b).rev() {
            let i = f64::from(i);
            let s = root(above, 1.0, |s: f64| i * (s - above) * k - 1.0 + s.powi(d as i32));
            sum += s;
            above = s;
        }
        sum
    };
    // The occupation falls as K grows.
    let k = root(1e-6, 1e6, |k| rho * f64::from(b) - mean(k));
    1.0 / (k * rho)
}

/// Random victims: A = 1 / (1 - rho).
pub fn random(alpha: f64) -> f64 {
    1.0 / (1.0 - 1.0 / alpha)
}

/// Share of the logical pages that live when a share `q` of the requests trims a random live page.
pub fn live_share(q: f64) -> f64 {
    assert!((0.0..0.5).contains(&q), "a trim share of {q} leaves nothing alive");
    (1.0 - 2.0 * q) / (1.0 - q)
}

/// One class of pages: its share of the data and of the writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Share of the logical pages.
    pub data: f64,
    /// Share of the writes.
    pub writes: f64,
}

/// The two classes of "`data` of the pages get `writes` of the writes".
pub fn hot_cold(data: f64, writes: f64) -> [Class; 2] {
    [Class { data, writes }, Class { data: 1.0 - data, writes: 1.0 - writes }]
}

/// Classes of different temperature on one frontier under FIFO cleaning: A = sum r_i / (1 - exp(-r_i alpha / (f_i A))).
pub fn fifo_mixed(alpha: f64, classes: &[Class]) -> f64 {
    let of =
        |a: f64| -> f64 { classes.iter().map(|c| c.writes / (1.0 - (-c.writes * alpha / (c.data * a)).exp())).sum() };
    root(1.0, 1e6, |a| a - of(a))
}

/// Two classes in pools of their own, A = sum r_i A(alpha_i), sum f_i alpha_i = alpha, with the best split; gives A and
/// the first pool's alpha.
pub fn separate_pools(alpha: f64, classes: [Class; 2], one: impl Fn(f64) -> f64) -> (f64, f64) {
    let [a, b] = classes;
    let spare = alpha - 1.0;
    // x is the share of the spare space that the first pool has.
    let of = |x: f64| {
        let (a1, a2) = (1.0 + x * spare / a.data, 1.0 + (1.0 - x) * spare / b.data);
        (a.writes * one(a1) + b.writes * one(a2), a1)
    };
    // Golden section: the sum of two convex functions has one minimum.
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (1e-4, 1.0 - 1e-4);
    for _ in 0..80 {
        let (x1, x2) = (high - ratio * (high - low), low + ratio * (high - low));
        if of(x1).0 < of(x2).0 {
            high = x2;
        } else {
            low = x1;
        }
    }
    of(0.5 * (low + high))
}

/// What in-place appends do to uniform updates under FIFO cleaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Appends {
    /// Page programs per page written out of place.
    pub amplification: f64,
    /// Page programs per update.
    pub per_update: f64,
    /// Share of the updates that are appends.
    pub share: f64,
}

/// S(t) = e^-t sum_{j <= n} (e t)^j / j!: the chance that a page written `t` updates per page ago is where it was.
fn survives(t: f64, slots: u32, eligible: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for j in 1..=slots {
        term *= eligible * t / f64::from(j);
        sum += term;
    }
    (-t).exp() * sum
}

/// Appends with `slots` per page, an update being eligible with probability `eligible`; collection merges them into the
/// page (all slots free again), or copies them as they are.
pub fn appends(alpha: f64, slots: u32, eligible: f64, merge: bool) -> Appends {
    let s = |t: f64| survives(t, slots, eligible);
    let (m, a, share);
    if merge {
        let mean = |m: f64| {
            let n = 2000;
            let h = m / f64::from(n);
            // Simpson's rule.
            let inner: f64 = (1..n).map(|i| s(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            (s(0.0) + inner + s(m)) * h / 3.0
        };
        m = root(1e-9, 200.0, |m| m - alpha * mean(m));
        a = 1.0 / (1.0 - s(m));
        share = 1.0 - (alpha / m) / a;
    } else {
        let kept: f64 = (0..=slots).map(|j| eligible.powi(j as i32)).sum();
        let sum = |m: f64| {
            let mut total = 0.0;
            for j in 0.. {
                let term = s(f64::from(j) * m);
                total += term;
                if term < 1e-15 {
                    break;
                }
            }
            total
        };
        // alpha/m falls faster than the sum does.
        m = root(1e-3, 200.0, |m| sum(m) / kept - alpha / m);
        a = sum(m);
        share = 1.0 - 1.0 / kept;
    }
    Appends { amplification: a, per_update: alpha / m, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(got: f64, want: f64, tolerance: f64) {
        assert!((got / want - 1.0).abs() <= tolerance, "{got} is not {want}");
    }

    #[test]
    fn uniform_writes() {
        let table = [
            (0.05, 10.172, [7.823, 8.850, 9.461, 9.798], 13.266, 9.284, 20.0),
            (0.10, 5.179, [4.508, 4.821, 4.992, 5.083], 6.852, 5.0, 10.0),
            (0.20, 2.693, [2.514, 2.599, 2.645, 2.668], 3.533, 2.675, 5.0),
            (0.25, 2.201, [2.084, 2.140, 2.170, 2.185], 2.861, 2.198, 4.0),
            (0.40, 1.480, [1.432, 1.455, 1.467, 1.474], 1.856, 1.487, 2.5),
            (0.50, 1.255, [1.223, 1.239, 1.247, 1.251], 1.526, 1.261, 2.0),
        ];
        for (sf, f, g, d2, d10, r) in table {
            let alpha = 1.0 / (1.0 - sf);
            close(fifo(alpha), f, 5e-4);
            for (b, want) in [32, 64, 128, 256].into_iter().zip(g) {
                close(greedy(alpha, b), want, 5e-4);
            }
            close(d_choices(alpha, 64, 2), d2, 5e-4);
            close(d_choices(alpha, 64, 10), d10, 5e-4);
            close(d_choices(alpha, 64, 1), r, 5e-4);
            close(random(alpha), r, 1e-9);
        }
    }

    #[test]
    fn skew() {
        let alpha = 1.0 / 0.9;
        for (data, writes, mixed, separate) in [(0.2, 0.8, 5.54, 3.34), (0.1, 0.9, 6.17, 2.20)] {
            let classes = hot_cold(data, writes);
            close(fifo_mixed(alpha, &classes), mixed, 2e-3);
            close(separate_pools(alpha, classes, |a| greedy(a, 64)).0, separate, 5e-3);
        }
        close(fifo_mixed(alpha, &hot_cold(0.5, 0.5)), fifo(alpha), 1e-9);
    }

    #[test]
    fn trimming_half_the_requests_leaves_nothing() {
        close(live_share(0.1), 0.8 / 0.9, 1e-12);
        close(live_share(0.0), 1.0, 1e-12);
    }

    #[test]
    fn appends_in_place() {
        let table = [
            (0.9, 1, 1.0, true, 3.908, 1.137, 0.709),
            (0.9, 2, 1.0, true, 3.330, 0.580, 0.826),
            (0.9, 2, 1.0, false, 4.996, 1.665, 0.667),
            (0.9, 2, 0.75, true, 4.947, 1.376, 0.722),
            (0.9, 2, 0.75, false, 5.104, 2.207, 0.568),
            (0.8, 2, 1.0, true, 1.888, 0.447, 0.763),
        ];
        for (rho, n, e, merge, a, per_update, share) in table {
            let got = appends(1.0 / rho, n, e, merge);
            close(got.amplification, a, 1e-3);
            close(got.per_update, per_update, 1e-3);
            close(got.share, share, 2e-3);
        }
        close(appends(1.0 / 0.9, 0, 1.0, true).amplification, fifo(1.0 / 0.9), 1e-3);
    }
}
