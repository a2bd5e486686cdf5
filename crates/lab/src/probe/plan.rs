//! Which points are measured, and for how long.

use crate::iomix::{Extent, Load};
use std::time::Duration;

const KIB: u64 = 1 << 10;

/// How much is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Request sizes, bytes, rising.
    pub sizes: Vec<u64>,
    /// Requests in flight.
    pub depths: Vec<u32>,
    /// Sizes at which reads and writes are mixed, with the requests in flight.
    pub mixes: Vec<(u64, u32)>,
    /// Steps of the read share of a mix, percent.
    pub mix_step: u32,
    /// Repeats of each point, at least three.
    pub repeats: u32,
    /// Measured time of a repeat; real devices only.
    pub time: Duration,
    /// Requests of a repeat at least; `None`: 16 on a real device, 2000 on a model, whose time costs nothing.
    pub requests: Option<u64>,
    /// Seed of places and order.
    pub seed: u64,
    /// Bytes used from the device's beginning; `None`: what suits the device.
    pub range: Option<u64>,
}

impl Default for Options {
    /// 4 KB to 32 MB, 1 to 32 in flight, three repeats of half a second.
    fn default() -> Options {
        Options {
            sizes: [4, 16, 64, 256, 1024, 2048, 8192, 32768].map(|k| k * KIB).to_vec(),
            depths: vec![1, 2, 4, 8, 16, 32],
            mixes: vec![(4 * KIB, 32), (2048 * KIB, 2), (8192 * KIB, 2), (32768 * KIB, 2)],
            mix_step: 20,
            repeats: 3,
            time: Duration::from_millis(500),
            requests: None,
            seed: 1,
            range: None,
        }
    }
}

impl Options {
    /// Less: for a first look.
    pub fn quick() -> Options {
        Options {
            sizes: [4, 64, 2048].map(|k| k * KIB).to_vec(),
            depths: vec![1, 8, 32],
            mixes: vec![(4 * KIB, 32)],
            mix_step: 50,
            time: Duration::from_millis(200),
            ..Options::default()
        }
    }

    /// The points of these options.
    pub fn plan(&self) -> Plan {
        let mut loads: Vec<Load> = Vec::new();
        let mut add = |bytes, read_share, random: bool, depth| {
            let load = Load { bytes, read_share, random_share: f64::from(u8::from(random)), depth };
            if !loads.contains(&load) {
                loads.push(load);
            }
        };
        let kinds = [(1.0, true), (1.0, false), (0.0, true), (0.0, false)];
        let smallest = self.sizes.first().copied().unwrap_or(4 * KIB);
        for (read, random) in kinds {
            add(smallest, read, random, 1);
            self.sizes.iter().for_each(|s| add(*s, read, random, deep(*s)));
        }
        for (read, _) in [(1.0, ()), (0.0, ())] {
            self.depths.iter().for_each(|d| add(smallest, read, true, *d));
        }
        for (size, depth) in &self.mixes {
            for random in [true, false] {
                let steps = (0..=100).step_by(self.mix_step.clamp(1, 100) as usize);
                steps.for_each(|percent| add(*size, f64::from(percent) / 100.0, random, *depth));
            }
        }
        Plan {
            loads,
            repeats: self.repeats.max(3),
            time: self.time,
            requests: self.requests.unwrap_or(16),
            bytes: u64::MAX,
            buffer: 0,
            most_repeats: 4 * self.repeats.max(3),
            seed: self.seed,
        }
    }
}

/// Enough requests in flight to keep a device busy.
pub(super) fn deep(bytes: u64) -> u32 {
    match bytes {
        0..=131_072 => 32,
        131_073..=1_048_576 => 8,
        _ => 4,
    }
}

/// The points, and how long each is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The points.
    pub loads: Vec<Load>,
    /// Repeats of each.
    pub repeats: u32,
    /// Least measured time of a repeat.
    pub time: Duration,
    /// Least number of requests of a repeat ..
    pub requests: u64,
    /// .. unless they are more than so many bytes; at least 8, and twice the depth, they are.
    pub bytes: u64,
    /// Bytes of the device's write buffer, if they are known: a lone writer stays within half of it, others fill it
    /// first.
    pub buffer: u64,
    /// Repeats of a point that does not settle.
    pub most_repeats: u32,
    /// Seed.
    pub seed: u64,
}

impl Plan {
    pub(super) fn extent(&self, load: &Load) -> Extent {
        let depth = u64::from(load.depth);
        let (mut requests, mut warm_requests) = (self.requests.min((self.bytes / load.bytes).max(8)), 4 * depth);
        if self.buffer > 0 && load.read_share < 1.0 {
            match depth {
                1 => requests = requests.min((self.buffer / 2 / load.bytes).max(8)),
                _ => warm_requests = warm_requests.max(2 * self.buffer / load.bytes),
            }
        }
        Extent {
            warm_time: self.time / 5,
            warm_requests,
            time: self.time,
            requests: requests.max(2 * depth),
            range: 0,
            seed: 0,
        }
    }
}
