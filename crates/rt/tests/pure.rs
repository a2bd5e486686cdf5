//! Random numbers, hashing, stack sizes and busy waiting.

use std::sync::Arc;
use varve_rt::atomic::{AtomicBool, Ordering::*};
use varve_rt::sim::{self, Config};
use varve_rt::{HashMap, HashSet, Rng, rng, spawn, spin};

/// The sequence is part of what a seed means: it must not change from build to build.
#[test]
fn rng_is_a_function_of_its_seed() {
    let take = |seed| {
        let mut r = Rng::from_seed(seed);
        [r.next_u64(), r.next_u64(), r.next_u64()]
    };
    assert_eq!(take(1), [0xb3f2_af6d_0fc7_10c5, 0x853b_5596_4736_4cea, 0x92f8_9756_082a_4514]);
    assert_ne!(take(1), take(2));
}

#[test]
fn rng_draws_are_uniform_and_in_range() {
    let mut r = Rng::from_seed(5);
    assert_eq!((r.below(0), r.below(1)), (0, 0));
    for n in [2u64, 3, 7, 1 << 40, u64::MAX] {
        assert!((0..1000).all(|_| r.below(n) < n));
    }
    let mut counts = [0u32; 10];
    (0..100_000).for_each(|_| counts[r.below(10) as usize] += 1);
    assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    assert!((0..1000).all(|_| (3..=5).contains(&r.between(3, 5))));
    assert!((0..1000).all(|_| (0.0..1.0).contains(&r.f64())));
    assert_eq!((0..100_000).filter(|_| r.one_in(0)).count(), 0);
    let mut bytes = [0u8; 13];
    r.fill_bytes(&mut bytes);
    assert!(bytes.iter().filter(|b| **b == 0).count() < 5, "{bytes:?}");
    let mut order: Vec<u32> = (0..50).collect();
    r.shuffle(&mut order);
    assert_ne!(order, (0..50).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
}

/// In a simulation a thread's generators follow from the seed and the thread; on OS threads they differ.
#[test]
fn rng_of_the_context() {
    let draw = |seed| {
        sim::run(Config { seed, ..Config::default() }, || {
            let t = spawn("other", || (rng().next_u64(), rng().next_u64()));
            (rng().next_u64(), t.join().unwrap())
        })
        .unwrap()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let (a, (b, c)) = draw(1);
    assert!(a != b && b != c);
    assert_ne!(rng().next_u64(), rng().next_u64());
}

/// Equal insertions give equal iteration order; the hash spreads.
#[test]
fn hashing_is_fixed() {
    let build = || (0..1000u64).map(|k| (k * 4096, k)).collect::<HashMap<u64, u64>>();
    assert!(build().iter().eq(build().iter()));
    use std::hash::BuildHasher;
    let hash = |x: &[u8]| varve_rt::BuildHasher.hash_one(x);
    let all: HashSet<u64> = (0..100_000u32).map(|i| hash(&i.to_le_bytes())).collect();
    assert_eq!(all.len(), 100_000);
    let low: HashSet<u64> = (0..4096u64).map(|i| varve_rt::BuildHasher.hash_one(i << 12) & 0xfff).collect();
    assert!(low.len() > 2_300, "page-aligned keys fall into {} of 4096 slots", low.len());
    assert_ne!(hash(b"ab"), hash(b"ab\0"));
}

fn deep(n: u32) -> u32 {
    let x = std::hint::black_box([n; 256]);
    if n == 0 { x[7] } else { deep(n - 1) + x[0] - n }
}

/// A larger stack holds deeper calls, in both worlds (the frames need more than the first size).
#[test]
fn stack_size_counts_in_both_worlds() {
    let config = Config { stack_size: Some(16 << 20), ..Config::default() };
    assert_eq!(sim::run(config, || spawn("deep", || deep(4_000)).join().unwrap()).unwrap(), 0);
    let before = varve_rt::stack_size();
    varve_rt::set_stack_size(16 << 20);
    let t = spawn("deep", || deep(4_000));
    varve_rt::set_stack_size(before);
    assert_eq!(t.join().unwrap(), 0);
}

/// Busy waiting with `spin` lets the other thread, and virtual time, go on.
#[test]
fn spinning_ends() {
    let case = || {
        let flag = Arc::new(AtomicBool::new(false));
        let f = flag.clone();
        let t = spawn("setter", move || {
            varve_rt::sleep(std::time::Duration::from_millis(2));
            f.store(true, Release);
        });
        let mut n = 0;
        while !flag.load(Acquire) {
            spin(n);
            n += 1;
        }
        t.join().unwrap();
    };
    case();
    sim::run(Config::default(), case).unwrap();
    sim::run(Config { chaos: true, ..Config::default() }, case).unwrap();
}
