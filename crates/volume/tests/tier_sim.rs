//! The tier under power cuts: clients that behave like a buffer pool write, read, evict and free pages of their own
//! while the power is cut at any operation of either device. After each cut the tier is opened again.
//!
//! What must hold is what the engine builds on: a page that was not written since the last sync is there at its last
//! version. A page written since may be there at any of its versions, or damaged: the log has its image, and the engine
//! writes it anew.

mod tier_support;

use tier_support::{Seen, crashes, crashes_with, options};
use varve_device::Mistake;
use varve_volume::tier::MapRecovery;

fn sweep(manager: &str, recovery: MapRecovery, seeds: std::ops::Range<u64>) -> Seen {
    let mut sum = Seen::default();
    for seed in seeds {
        let seen = crashes(seed, options(manager, recovery), false);
        let seen = seen.unwrap_or_else(|e| panic!("{manager}, {recovery:?}, seed {seed}: {e}"));
        sum.fast_hits += seen.fast_hits;
        sum.copied_home += seen.copied_home;
        sum.maps += seen.maps;
        sum.invalidated += seen.invalidated;
        sum.damaged += seen.damaged;
        sum.rounds += seen.rounds;
        sum.recovered += seen.recovered;
    }
    sum
}

#[test]
fn nothing_is_lost_and_nothing_comes_back_from_the_dead() {
    for manager in varve_volume::tier::manager::REGISTRY {
        let sum = sweep(manager.name, MapRecovery::Zone, 0..12);
        println!("{}: {sum:?}", manager.name);
        if manager.name != "none" {
            assert!(sum.fast_hits > 50 && sum.maps > 10 && sum.recovered > 50, "{}: {sum:?}", manager.name);
        }
    }
}

#[test]
fn every_way_of_finding_the_map_again() {
    for recovery in [MapRecovery::Scan, MapRecovery::Log] {
        for manager in ["cac", "lru2", "mv-fifo"] {
            let sum = sweep(manager, recovery, 100..112);
            println!("{manager}, {recovery:?}: {sum:?}");
            assert!(sum.fast_hits > 50 && sum.recovered > 50, "{manager}, {recovery:?}: {sum:?}");
        }
    }
}

#[test]
fn a_tier_that_skips_its_maps_is_caught() {
    for manager in ["cac", "mv-fifo"] {
        let caught = (0..60).any(|seed| {
            crashes_with(Mistake::TierNoMaps.into(), seed, options(manager, MapRecovery::Zone), false).is_err()
        });
        assert!(caught, "{manager}: an old map was believed");
    }
}
