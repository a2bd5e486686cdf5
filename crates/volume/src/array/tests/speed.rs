//! Arrays of the paper's drives, in virtual time (Yang, Wan, Fan 2017; `profiles/devices`).

use super::*;
use std::time::Duration;
use varve_models::{Build, Profile};
use varve_rt::atomic::{AtomicU64, Ordering};

/// Drives of these profiles, 64 MiB each.
fn drives(names: &[&str]) -> Vec<Arc<dyn Device>> {
    let build = |name: &&str| {
        let how = Build { len: 64 * MIB, keep: false, ..Build::default() };
        Profile::load(name).unwrap().build_model(how).unwrap() as Arc<dyn Device>
    };
    names.iter().map(build).collect()
}

/// MB/s of requests of 2 MiB one after the other, so many in flight.
fn sequential(array: &Arc<Array>, depth: u64, write: bool, requests: u64) -> f64 {
    let (next, from) = (Arc::new(AtomicU64::new(0)), varve_rt::now());
    let worker = |_| {
        let (array, next) = (array.clone(), next.clone());
        varve_rt::spawn("worker", move || {
            let mut buf = AlignedBuf::new(2 * MIB as usize);
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= requests {
                    break;
                }
                let at = i * 2 * MIB % array.len();
                match write {
                    true => write_at(&*array, at, &buf, false).unwrap(),
                    false => read_at(&*array, at, &mut buf).unwrap(),
                }
            }
        })
    };
    let workers: Vec<_> = (0..depth).map(worker).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    (requests * 2 * MIB) as f64 / 1e6 / (varve_rt::now() - from).as_secs_f64()
}

fn speed(names: &'static [&'static str], layout: Layout, write: bool) -> f64 {
    let outcome = run(Config::default(), move || {
        let array = Array::volatile(drives(names), (2 * MIB, layout), 32 * MIB * names.len() as u64).unwrap();
        varve_rt::sleep(Duration::from_millis(1));
        sequential(&array, 6, write, 600)
    });
    outcome.result.unwrap()
}

const PAPER: [&str; 3] = ["samsung-850", "intel-530", "ocz-vector-150"];

#[test]
fn raid_0_runs_at_the_pace_of_its_slowest_drive() {
    let stripe = || Layout::Stripe { unit: 2 * MIB };
    // Pure reads at 560, 555 and 560 MB/s; pure writes at 479, 528 and 257.
    let (reads, writes) = (speed(&PAPER, stripe(), false), speed(&PAPER, stripe(), true));
    assert!((1580.0..=1675.0).contains(&reads), "{reads}");
    assert!((720.0..=790.0).contains(&writes), "three times the slowest: {writes}");
}

#[test]
fn shares_by_speed_lift_the_bucket() {
    let shares = || Layout::Proportional { shares: vec![479.0, 528.0, 257.0] };
    let writes = speed(&PAPER, shares(), true);
    assert!((1000.0..=1264.0).contains(&writes), "up to the sum of all: {writes}");
}

#[test]
fn one_drive_is_no_faster_or_slower_as_an_array() {
    let alone = |layout| speed(&["samsung-850"], layout, false);
    let whole = alone(Layout::Proportional { shares: vec![1.0] });
    let cut = alone(Layout::Stripe { unit: 64 << 10 });
    assert!((whole - 560.0).abs() < 20.0, "{whole}");
    assert_eq!(whole, cut, "neighbours on a drive are one piece");
}
