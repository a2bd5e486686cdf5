//! Cost of tree operations in memory: point reads, inserts, overwrites and scans. `cargo bench -p varve --bench btree
//! [-- NAME [KEYS]]`
//!
//! A tree of 1 M keys (16 bytes, values 100 bytes) on 16 KB pages, all resident; the log goes to memory. Reads are
//! given as median and least nanoseconds per operation of 101 short rounds (the least is what an idle machine does).
//! `NAME` runs only the operations whose name contains it.

use std::hint::black_box;
use std::ops::Bound;
use varve::tree_harness::{Harness, Setup};
use varve::wal::LogConfig;
use varve_models::MemDevice;
use varve_rt::{Rng, now};

const ROUNDS: usize = 101;

fn setup(keys: u64) -> Setup {
    let log = LogConfig {
        capacity: 256 << 20,
        max_capacity: 1 << 30,
        segment: 16 << 20,
        buffer: 16 << 20,
        ..LogConfig::default()
    };
    Setup { strict: false, log, ..Setup::new(16384, (keys as usize / 64).max(1024)) }
}

/// Keys as applications make them: text with a common beginning, or a scattered number.
fn key(scattered: bool, i: u64) -> [u8; 16] {
    let mut k = *b"user000000000000";
    if scattered {
        k[..8].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        k[8..].copy_from_slice(&i.to_be_bytes());
    } else {
        let (mut n, mut at) = (i, 15);
        while n > 0 {
            k[at] = b'0' + (n % 10) as u8;
            (n, at) = (n / 10, at - 1);
        }
    }
    k
}

fn rounds(name: &str, filter: &str, ops: u64, mut op: impl FnMut(&mut Rng)) {
    if !name.contains(filter) {
        return;
    }
    let mut times: Vec<f64> = (0..ROUNDS as u64)
        .map(|seed| {
            let mut rng = Rng::from_seed(seed);
            let began = now();
            (0..ops).for_each(|_| op(&mut rng));
            began.elapsed().as_nanos() as f64 / ops as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:<36} median {:8.0} ns/op, least {:8.0}", times[ROUNDS / 2], times[0]);
}

fn once(name: &str, ops: u64, f: impl FnOnce()) {
    let began = now();
    f();
    println!("{name:<36} {:15.0} ns/op", began.elapsed().as_nanos() as f64 / ops as f64);
}

fn shuffled(n: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..n).collect();
    let mut rng = Rng::from_seed(1);
    for i in (1..n as usize).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    order
}

fn run(scattered: bool, sorted: bool, keys: u64, filter: &str) {
    let h = Harness::create(MemDevice::new(0), MemDevice::new(0), &setup(keys)).unwrap();
    let shape = if scattered { "scattered" } else { "text" };
    let order = if sorted { (0..keys).collect() } else { shuffled(keys) };
    let value = [7u8; 100];
    once(&format!("insert {} {shape}", if sorted { "ascending" } else { "random" }), keys, || {
        for &i in &order {
            h.put(&key(scattered, i), &value).unwrap();
        }
    });
    println!("  {} pages, {:.0} % full", h.pages(), keys as f64 * 11600.0 / (h.pages() * 16384) as f64);
    rounds(&format!("get {shape}"), filter, 10_000, |rng| {
        let found = h.probe(&key(scattered, rng.below(keys))).unwrap();
        assert_eq!(black_box(found), Some(100));
    });
    rounds(&format!("get absent {shape}"), filter, 10_000, |rng| {
        let mut k = key(scattered, rng.below(keys)).to_vec();
        k.push(1);
        assert_eq!(black_box(h.probe(&k).unwrap()), None);
    });
    for reverse in [false, true] {
        let name = format!("scan 100 {shape}{}", if reverse { " reverse" } else { "" });
        rounds(&name, filter, 500, |rng| {
            let k = key(scattered, rng.below(keys));
            let (from, to) = if reverse {
                (Bound::Unbounded, Bound::Included(&k[..]))
            } else {
                (Bound::Included(&k[..]), Bound::Unbounded)
            };
            let mut sum = 0;
            h.scan(from, to, reverse, 100, |k, v| sum += k[k.len() - 1] as usize + v.len()).unwrap();
            black_box(sum);
        });
    }
    rounds(&format!("count all {shape}"), filter, 1, |_| {
        assert_eq!(h.count(Bound::Unbounded, Bound::Unbounded).unwrap(), keys);
    });
    let mut n = 0u8;
    rounds(&format!("overwrite {shape}"), filter, 2_000, |rng| {
        n = n.wrapping_add(1);
        h.put(&key(scattered, rng.below(keys)), &[n; 100]).unwrap();
    });
    h.stop();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let filter = args.first().map_or("", String::as_str);
    let keys = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    for (scattered, sorted) in [(true, false), (false, true)] {
        run(scattered, sorted, keys, filter);
    }
}
