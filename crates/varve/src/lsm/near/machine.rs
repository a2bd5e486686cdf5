//! What this machine has to work with: `/proc`, where there is one.
//!
//! Lock order: the last reading is a leaf.

use super::share::Load;
use super::worker::LoadFn;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Instant, Mutex, now};

/// How old a reading may be.
const FRESH: Duration = Duration::from_millis(500);

/// Says how busy this machine is, by a reading of at most half a second ago. Elsewhere than on Linux it is idle.
pub fn this_machine() -> LoadFn {
    let machine = Machine::default();
    Arc::new(move || machine.load())
}

/// The last reading.
#[derive(Default)]
struct Machine(Mutex<Option<Reading>>);

struct Reading {
    at: Instant,
    /// Ticks of all cores, and those of them that were idle.
    ticks: Option<(u64, u64)>,
    load: Load,
}

impl Machine {
    fn load(&self) -> Load {
        let mut last = self.0.lock();
        if let Some(last) = last.as_ref().filter(|last| last.at.elapsed() < FRESH) {
            return last.load;
        }
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let ticks = ticks(&text("/proc/stat"));
        let (total, available) = memory(&text("/proc/meminfo")).unwrap_or((0, u64::MAX));
        let before = last.as_ref().and_then(|last| last.ticks).unwrap_or_default();
        let load = Load {
            cores: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            ghz: ghz(&text("/proc/cpuinfo")).unwrap_or(1.0),
            cpu: ticks.map_or(0.0, |now| used(before, now)),
            memory: if total == 0 { 0.0 } else { 1.0 - available as f64 / total as f64 },
            free: available,
        };
        *last = Some(Reading { at: now(), ticks, load });
        load
    }
}

/// The share of ticks between two readings in which cores were not idle.
fn used(before: (u64, u64), now: (u64, u64)) -> f64 {
    let passed = now.0.saturating_sub(before.0).max(1) as f64;
    (1.0 - now.1.saturating_sub(before.1) as f64 / passed).clamp(0.0, 1.0)
}

/// Ticks of all cores, and those of them that were idle or waited for a device.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let numbers = stat.lines().next()?.strip_prefix("cpu")?.split_whitespace();
    let ticks: Vec<u64> = numbers.map_while(|n| n.parse().ok()).take(8).collect();
    (ticks.len() >= 5).then(|| (ticks.iter().sum(), ticks[3] + ticks[4]))
}

/// Bytes of memory, and those of them that can be had.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("MemTotal")? << 10, kib("MemAvailable")? << 10))
}

/// Frequency of the first core.
fn ghz(cpuinfo: &str) -> Option<f64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    Some(line.split_once(':')?.1.trim().parse::<f64>().ok()? / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_of_a_machine_is_read_from_the_right_fields() {
        assert_eq!(ticks("cpu  100 20 30 4000 500 6 4 40 99 9\ncpu0 1\n"), Some((4700, 4500)));
        assert_eq!(ticks("intr 5"), None);
        assert_eq!((used((0, 0), (4000, 3000)), used((4000, 3000), (4100, 3090))), (0.25, 0.09999999999999998));
        assert_eq!(memory("MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n"), Some((2 << 20, 512 << 10)));
        assert_eq!(ghz("processor : 0\ncpu MHz\t\t: 2500.000\n"), Some(2.5));
        let machine = Machine::default();
        let load = machine.load();
        assert!(load.cores >= 1.0 && (0.0..=1.0).contains(&load.cpu) && load.free > 0, "{load:?}");
    }
}
