//! The memory device inside simulations: virtual time, order of completion, power cuts under load, determinism.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use varve_device::*;
use varve_models::*;
use varve_rt::sim::{Config, Domain, run};
use varve_rt::{Mutex, Rng};

const UNIT: usize = 512;
const CLIENTS: usize = 6;
const OWN: usize = 12;

fn config(seed: u64) -> Config {
    Config { seed, chaos: seed.is_multiple_of(2), ..Config::default() }
}

fn small(seed: u64) -> Arc<MemDevice> {
    let len = (CLIENTS * OWN * UNIT) as u64;
    MemDevice::with(len, MemOptions { block: UNIT as u32, seed, ..MemOptions::default() })
}

fn tagged(units: usize, tag: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(units * UNIT);
    buf.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&tag.to_le_bytes()));
    buf
}

#[test]
fn requests_take_time_and_complete_out_of_order() {
    let order = |seed| {
        run(config(1), move || {
            let dev = small(seed);
            let started = varve_rt::now();
            let data = tagged(1, 7);
            // SAFETY: `data` outlives the ticket, which is waited for.
            let write = |i: usize| unsafe { Io::write((i * UNIT) as u64, data.as_ptr(), UNIT, false) };
            let mut ticket = dev.submit((0..16).map(write).collect());
            let mut order = Vec::new();
            while order.len() < 16 {
                varve_rt::sleep(Duration::from_micros(1));
                (0..16).filter(|i| ticket.try_done(*i)).collect::<Vec<_>>().into_iter().for_each(|i| {
                    if !order.contains(&i) {
                        order.push(i);
                    }
                });
            }
            ticket.wait_all().unwrap();
            assert!(started.elapsed() >= Duration::from_micros(15), "a write takes virtual time");
            let stats = dev.stats().write;
            assert!(stats.count == 16 && stats.nanos >= 16 * 15_000, "{stats:?}");
            order
        })
        .unwrap()
    };
    assert_ne!(order(1), (0..16).collect::<Vec<_>>());
    assert_ne!(order(1), order(2));
    assert_eq!(order(1), order(1));
}

#[test]
fn a_flush_covers_completed_writes_only_and_reads_see_completed_writes_only() {
    let (mut lost, mut old) = (0, 0);
    for seed in 0..60 {
        let (found, seen) = run(config(seed), move || {
            let dev = small(seed);
            let (data, mut back) = (tagged(1, 7), tagged(1, 9));
            // SAFETY: `data` outlives the ticket, which is waited for.
            let mut write = dev.submit(vec![unsafe { Io::write(0, data.as_ptr(), UNIT, false) }]);
            // SAFETY: `back` outlives the ticket, which is waited for.
            let read = dev.submit(vec![Io::flush(), unsafe { Io::read(0, back.as_mut_ptr(), UNIT) }]);
            read.wait_all().unwrap();
            let _ = write.wait(0);
            dev.power_cut(seed);
            let mut kept = [0; 8];
            dev.peek(0, &mut kept);
            (kept[0], back[0])
        })
        .unwrap();
        assert!([0, 7].contains(&found) && [0, 7].contains(&seen));
        lost += u32::from(found == 0);
        old += u32::from(seen == 0);
    }
    assert!(lost > 5, "a flush that was submitted too early protects nothing");
    assert!(old > 5, "a read that does not wait for the write sees the old bytes at times");
}

#[test]
fn what_a_failed_flush_forgets_is_read_and_is_not_durable_until_it_is_written_again() {
    let (mut forgotten, mut kept) = (0, 0);
    for seed in 0..60 {
        run(config(seed), move || {
            let dev = small(seed);
            let flaky = Faulty::forgetful(
                dev.clone(),
                FaultPlan::new(seed).rule(&[OpKind::Flush], None, When::Nth(1), Fault::Eio),
                PowerSupply::new(),
            );
            write_at(&*flaky, 0, &tagged(8, 7), false).unwrap();
            varve_device::flush(&*flaky).unwrap_err();
            write_at(&*flaky, 0, &tagged(1, 8), false).unwrap();
            varve_device::flush(&*flaky).unwrap();
            let (mut before, mut after) = (tagged(8, 0), tagged(8, 0));
            read_at(&*flaky, 0, &mut before).unwrap();
            dev.power_cut(seed);
            dev.peek(0, &mut after);
            let units = |bytes: &AlignedBuf| bytes.chunks(UNIT).map(|unit| unit[0]).collect::<Vec<_>>();
            assert_eq!(units(&before), [8, 7, 7, 7, 7, 7, 7, 7], "all is read as long as there is power");
            assert_eq!(units(&after)[0], 8, "what was written again is durable");
            units(&after)
        })
        .unwrap()[1..]
            .iter()
            .for_each(|unit| if *unit == 0 { forgotten += 1 } else { kept += 1 });
    }
    assert!(forgotten > 60 && kept > 60, "{forgotten} forgotten, {kept} kept");
}

/// What each unit may hold after a power cut at this moment, its present bytes last.
type Allowed = Arc<Mutex<Vec<Vec<u64>>>>;

/// Writes its own units until the power fails.
fn client(dev: &dyn Device, me: usize, allowed: &Allowed, rng: &mut Rng) -> Option<()> {
    let first = me * OWN;
    loop {
        let at = rng.below(OWN as u64) as usize;
        let units = 1 + rng.below((OWN - at) as u64) as usize;
        let (tag, durable) = (rng.next_u64() | 1, rng.one_in(4));
        let data = tagged(units, tag);
        let range = first + at..first + at + units;
        allowed.lock()[range.clone()].iter_mut().for_each(|u| u.push(tag));
        // SAFETY: `data` outlives the ticket: it is waited for, or dropped first when this thread dies.
        let mut ticket =
            dev.submit(vec![unsafe { Io::write((range.start * UNIT) as u64, data.as_ptr(), data.len(), durable) }]);
        ticket.wait(0).ok()?;
        if durable {
            allowed.lock()[range].iter_mut().for_each(|u| *u = vec![tag]);
        }
        if rng.one_in(6) {
            flush(dev).ok()?;
            // Nobody else writes our units, so all of their writes had completed.
            allowed.lock()[first..first + OWN].iter_mut().for_each(|u| *u = vec![*u.last().unwrap()]);
        }
        if rng.one_in(10) {
            let mut back = AlignedBuf::new(OWN * UNIT);
            read_at(dev, (first * UNIT) as u64, &mut back).ok()?;
            let now: Vec<u64> = allowed.lock()[first..first + OWN].iter().map(|u| *u.last().unwrap()).collect();
            for (unit, now) in back.chunks_exact(UNIT).zip(now) {
                assert!(unit.chunks_exact(8).all(|w| w == now.to_le_bytes()), "a completed write is read back");
            }
        }
    }
}

fn check(dev: &MemDevice, allowed: &Allowed) {
    let mut bytes = vec![0; CLIENTS * OWN * UNIT];
    dev.peek(0, &mut bytes);
    for (i, (unit, allowed)) in bytes.chunks_exact(UNIT).zip(allowed.lock().iter_mut()).enumerate() {
        let tag = u64::from_le_bytes(unit[..8].try_into().unwrap());
        assert!(unit.chunks_exact(8).all(|w| w == tag.to_le_bytes()), "unit {i} is torn inside");
        assert!(allowed.contains(&tag), "unit {i} holds {tag}, none of {allowed:?}");
        *allowed = vec![tag];
    }
}

/// Clients under three power cuts in a row; the device is reopened by new clients each time.
fn crashes(seed: u64) -> (CutReport, u64) {
    let outcome = run(config(seed), move || {
        let dev = small(seed);
        let supply = PowerSupply::new();
        supply.attach(dev.clone());
        let faulty = Faulty::powered(dev.clone(), FaultPlan::new(seed), supply.clone());
        let allowed: Allowed = Arc::new(Mutex::new(vec![vec![0]; CLIENTS * OWN]));
        let mut rng = Rng::from_seed(seed);
        let mut sum = CutReport::default();
        for round in 0..3 {
            let domain = Domain::new("clients");
            for me in 0..CLIENTS {
                let (faulty, allowed, mut rng) = (faulty.clone(), allowed.clone(), rng.fork());
                domain.spawn(format!("client {me}"), move || {
                    client(&*faulty, me, &allowed, &mut rng);
                });
            }
            if round == 1 {
                varve_rt::sleep(Duration::from_micros(rng.below(5000)));
                supply.cut(rng.next_u64());
            } else {
                supply.cut_at(supply.ops() + 1 + rng.below(200), rng.next_u64());
                supply.off().wait();
            }
            domain.power_cut();
            sum.add(supply.last_cut());
            supply.restore();
            check(&dev, &allowed);
        }
        assert_eq!(supply.cuts(), 3);
        sum
    });
    let hash = outcome.hash;
    (outcome.unwrap(), hash)
}

#[test]
fn crashes_under_load_keep_what_the_model_allows() {
    let mut sum = CutReport::default();
    let mut hashes = BTreeSet::new();
    for seed in 0..150 {
        let (report, hash) = crashes(seed);
        sum.add(report);
        assert!(hashes.insert(hash), "seeds {seed} and another ran alike");
        if seed < 20 {
            assert_eq!(crashes(seed), (report, hash), "seed {seed} runs the same way twice");
        }
    }
    assert!(sum.lost > 100 && sum.reordered > 100 && sum.torn_writes > 100, "{sum:?}");
}

#[test]
fn a_file_in_a_simulation_is_an_error() {
    let path = std::env::temp_dir().join(format!("varve-sim-file-{}", std::process::id()));
    let outside = FileDevice::open(&path, Options { create: true, ..Options::default() }).unwrap();
    run(config(0), || {
        let refused = FileDevice::open(&path, Options::default()).err();
        assert!(matches!(refused, Some(DeviceError::InSimulation { .. })));
        assert!(matches!(outside.submit(vec![Io::flush()]).wait_all(), Err(DeviceError::InSimulation { .. })));
        assert!(matches!(flush(&*outside), Err(DeviceError::InSimulation { .. })));
        assert!(matches!(outside.set_len(1), Err(DeviceError::InSimulation { .. })));
    })
    .unwrap();
    std::fs::remove_file(&path).unwrap();
}
