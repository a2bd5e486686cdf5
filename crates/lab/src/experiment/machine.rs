//! Processor time that a point used, and where its threads waited for locks: of the modelled host in a simulation, of
//! this process and this machine on OS threads.
//!
//! On OS threads the figures come from `/proc`, in steps of a hundredth of a second; where there is none, they are left
//! out.

use serde::{Deserialize, Serialize};
use varve_rt::sim;

/// Ticks of `/proc` per second; Linux has shown this value on every architecture for decades.
const TICKS: f64 = 100.0;

/// Places of lock waits that a result keeps.
const PLACES: usize = 12;

/// Processor time so far, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HostTime {
    /// Cores there are.
    pub cores: f64,
    /// Used by the point, all cores together.
    pub used: f64,
    /// Used by other processes of this machine; none in a simulation.
    pub others: Option<f64>,
}

impl HostTime {
    /// Now; `cores` are those of the modelled host. None where work takes no time, or cannot be told.
    pub fn now(cores: usize) -> Option<HostTime> {
        if varve_rt::in_simulation() {
            let used = sim::core_time()?.as_secs_f64();
            return varve_rt::costs_modelled().then_some(HostTime { cores: cores as f64, used, others: None });
        }
        let own = own(&std::fs::read_to_string("/proc/self/stat").ok()?)?;
        let all = all(&std::fs::read_to_string("/proc/stat").ok()?)?;
        Some(HostTime { cores: real_cores() as f64, used: own, others: Some((all - own).max(0.0)) })
    }
}

/// Cores of this machine.
pub(super) fn real_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds of a process, from its `stat`: the 14th and 15th field; the second is in parentheses and may hold spaces.
fn own(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// Seconds that the machine's cores were not idle, from the first line of `/proc/stat`: all but the fourth and fifth
/// number, and without the last two, which the first ones hold already.
fn all(stat: &str) -> Option<f64> {
    let numbers = stat.lines().next()?.strip_prefix("cpu")?.split_whitespace();
    let ticks: Vec<f64> = numbers.map_while(|n| n.parse().ok()).take(8).collect();
    (ticks.len() >= 7).then(|| (ticks.iter().sum::<f64>() - ticks[3] - ticks[4]) / TICKS)
}

/// Waits for locks at one line of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LockPlace {
    /// `file:line` that asked for the lock.
    pub place: String,
    /// `mutex`, `read` or `write`.
    pub kind: String,
    /// Waits.
    pub waits: u64,
    /// Their time, all threads together, milliseconds.
    pub ms: f64,
}

/// The waits between two moments, the longest first, and the time of all of them in seconds.
pub(super) fn lock_places(before: &[sim::LockWaits], after: &[sim::LockWaits]) -> (Vec<LockPlace>, f64) {
    let mut places = Vec::new();
    for now in after {
        let then =
            before.iter().find(|b| (&b.place, b.kind) == (&now.place, now.kind)).map_or((0, 0), |b| (b.waits, b.ns));
        if now.waits > then.0 {
            let ms = (now.ns - then.1) as f64 / 1e6;
            places.push(LockPlace { place: now.place.clone(), kind: now.kind.into(), waits: now.waits - then.0, ms });
        }
    }
    let seconds = places.iter().map(|p| p.ms / 1e3).sum();
    places.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.place.cmp(&b.place)));
    places.truncate(PLACES);
    (places, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_the_right_fields() {
        assert_eq!(own("12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20"), Some(3.0));
        assert_eq!(own("nonsense"), None);
        assert_eq!(all("cpu  100 20 30 4000 500 6 4 40 99 9\ncpu0 1\n"), Some(2.0));
        assert_eq!(all("cpu 1 2"), None);
    }

    #[test]
    fn a_wait_counts_from_the_first_moment_on() {
        let of = |place: &str, waits, ns| sim::LockWaits { place: place.into(), kind: "mutex", waits, ns };
        let before = [of("a:1", 2, 5_000_000)];
        let after = [of("a:1", 3, 6_000_000), of("b:2", 1, 9_000_000), of("c:3", 0, 0)];
        let (places, seconds) = lock_places(&before, &after);
        let shown: Vec<_> = places.iter().map(|p| (p.place.as_str(), p.waits, p.ms)).collect();
        assert_eq!(shown, [("b:2", 1, 9.0), ("a:1", 1, 1.0)]);
        assert!((seconds - 0.010).abs() < 1e-12);
    }
}
