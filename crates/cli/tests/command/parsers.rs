//! Every fuzzed parser is fed with mutated seeds, the same ones each time: what needs a nightly compiler and hours for
//! its depth (`fuzz/`) is held here, in seconds, so that no parser loses its footing unnoticed.

#[path = "../../../../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the drivers by name are for cargo-fuzz")]
mod fuzz;

use fuzz::{TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use varve_rt::Rng;

/// Inputs for each target, and with a canary, which ends at the first that finds it.
const INPUTS: u64 = 700;
const INPUTS_FOR_CANARY: u64 = 1500;

/// A seed with a few things done to it.
fn mutated(seed: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(4) {
        // Headers and tables are at the beginning: as many changes there as everywhere else together.
        let len = if rng.one_in(2) { bytes.len().min(256) } else { bytes.len() };
        if len == 0 {
            return other.to_vec();
        }
        let at = rng.below(len as u64) as usize;
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.below(256) as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'"'][rng.below(8) as usize],
            3 => bytes.truncate(at),
            4 => drop(bytes.remove(at)),
            5 => bytes.insert(at, bytes[(at * 7) % len]),
            _ => {
                let from = rng.below(other.len().max(1) as u64) as usize;
                let n = (rng.below(16) as usize + 1).min(other.len() - from.min(other.len()));
                bytes.splice(at..(at + n).min(len), other[from.min(other.len())..][..n].iter().copied());
            }
        }
    }
    bytes
}

/// The first input at which the driver panics.
fn first_panic(target: &Target, canary: bool) -> Option<u64> {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has seeds", target.name);
    let mut rng = Rng::from_seed(1);
    (0..if canary { INPUTS_FOR_CANARY } else { INPUTS }).find(|n| {
        let pick = |rng: &mut Rng| &seeds[rng.below(seeds.len() as u64) as usize];
        let (seed, other) = (pick(&mut rng), pick(&mut rng));
        let input = if *n < seeds.len() as u64 { seeds[*n as usize].clone() } else { mutated(seed, other, &mut rng) };
        catch_unwind(AssertUnwindSafe(|| (target.run)(&input, canary))).is_err()
    })
}

#[test]
fn no_parser_panics() {
    let found = TARGETS.iter().filter_map(|target| Some((target.name, first_panic(target, false)?)));
    assert_eq!(found.collect::<Vec<_>>(), [], "targets and the number of the input at which they panic");
}

#[test]
fn seeds_are_accepted_and_canaries_are_found() {
    for target in TARGETS {
        let refused = |seed: &Vec<u8>| catch_unwind(AssertUnwindSafe(|| (target.run)(seed, true))).is_err();
        let refused = (target.seeds)().iter().position(refused);
        assert_eq!(refused, None, "{}: a seed is not accepted", target.name);
    }
    let lives = TARGETS.iter().filter(|target| first_panic(target, true).is_none()).map(|target| target.name);
    assert_eq!(lives.collect::<Vec<_>>(), [] as [&str; 0], "canaries that were not found");
}
