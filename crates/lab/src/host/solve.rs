//! From times of benchmarks and what each was charged to costs: a least-squares fit in which no cost is negative.
//!
//! Pure. Each benchmark says `sum of units x cost = time`. There are about as many benchmarks as costs, and not all
//! costs can be told apart by them; so each cost is also drawn, weakly, towards a guess: what it is on a host that was
//! measured before, times how much faster or slower this one is.

/// Weight of the guess beside the benchmarks, whose errors count relative to their times.
const PULL: f64 = 0.02;
/// A cost stays above this share of its guess: work is never free.
const LEAST: f64 = 0.25;
const ROUNDS: usize = 20_000;

/// One benchmark: units of each cost per operation, and its time, ns.
pub(super) struct Row {
    pub units: Vec<f64>,
    pub time: f64,
    /// How much its error counts.
    pub weight: f64,
}

impl Row {
    /// What the costs say it takes.
    pub fn predicted(&self, costs: &[f64]) -> f64 {
        self.units.iter().zip(costs).map(|(u, c)| u * c).sum()
    }
}

/// The host's speed beside the one that the guesses are from: the median over the benchmarks of measured by predicted
/// time.
pub(super) fn ratio(rows: &[Row], guesses: &[f64]) -> f64 {
    let mut ratios: Vec<f64> = rows.iter().map(|r| r.time / r.predicted(guesses).max(1e-9)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

/// The costs that fit best. A cost that no benchmark has keeps its guess.
pub(super) fn fit(rows: &[Row], guesses: &[f64]) -> Vec<f64> {
    let mut costs = guesses.to_vec();
    let mut off: Vec<f64> = rows.iter().map(|r| r.predicted(&costs) / r.time - 1.0).collect();
    for _ in 0..ROUNDS {
        let mut moved = 0.0f64;
        for j in 0..costs.len() {
            let guess = guesses[j].max(1e-6);
            let slope = |r: &Row| r.units[j] / r.time;
            let (mut up, mut down) = (PULL * (costs[j] / guess - 1.0) / guess, PULL / (guess * guess));
            for (r, off) in rows.iter().zip(&off) {
                up += r.weight * slope(r) * off;
                down += r.weight * slope(r) * slope(r);
            }
            let next = (costs[j] - up / down).max(LEAST * guess);
            let step = next - costs[j];
            costs[j] = next;
            moved = moved.max((step / guess).abs());
            rows.iter().zip(&mut off).for_each(|(r, off)| *off += slope(r) * step);
        }
        if moved < 1e-9 {
            break;
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_that_benchmarks_can_tell_apart_are_found_and_others_keep_to_the_guess() {
        let row = |units: [f64; 4], time| Row { units: units.to_vec(), time, weight: 1.0 };
        // True costs: 40, 3, 200; the last is in no benchmark.
        let rows =
            [row([1.0, 0.0, 0.0, 0.0], 40.0), row([2.0, 100.0, 0.0, 0.0], 380.0), row([1.0, 10.0, 5.0, 0.0], 1070.0)];
        let found = fit(&rows, &[60.0, 2.0, 150.0, 7.0]);
        for (found, right) in found.iter().zip([40.0, 3.0, 200.0, 7.0]) {
            assert!((found / right - 1.0).abs() < 0.03, "{found} instead of {right}");
        }
        assert!((ratio(&rows, &[20.0, 1.5, 100.0, 1.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn no_cost_becomes_negative() {
        let row = |units: [f64; 2], time| Row { units: units.to_vec(), time, weight: 1.0 };
        let rows = [row([1.0, 1.0], 10.0), row([1.0, 0.0], 20.0)];
        assert!(fit(&rows, &[10.0, 10.0]).iter().all(|&c| c >= 2.5));
    }
}
