//! Extents that move while clients write, with and without power cuts.

use super::*;
use std::time::Duration;
use varve_models::{Latency, MemOptions, PowerSupply};
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, Ordering};

const CLIENTS: u64 = 3;
/// Blocks of a client, spread over the whole array.
const OWN: u64 = 24;
const LEN: u64 = 10 * MIB;

/// What is known of a block: every sector bears a version.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    durable: u64,
    done: u64,
    begun: u64,
}

type Model = Arc<Mutex<Vec<Known>>>;

/// Where block `n` of all clients lies.
fn place(n: u64) -> u64 {
    n * 7919 % (LEN / BLOCK) * BLOCK
}

fn versions(array: &dyn Device, n: u64) -> Result<Vec<u64>, DeviceError> {
    let mut bytes = AlignedBuf::new(BLOCK as usize);
    read_at(array, place(n), &mut bytes)?;
    Ok(bytes.chunks(512).map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap())).collect())
}

/// Writes, reads and flushes until `steps` are done or the power is gone.
fn client(array: &dyn Device, model: &Model, first: u64, seed: u64, steps: u64) -> Result<(), DeviceError> {
    let (mut rng, mut bytes) = (Rng::from_seed(seed), AlignedBuf::new(BLOCK as usize));
    for _ in 0..steps {
        let n = first + rng.below(OWN);
        let known = model.lock()[n as usize];
        match rng.below(8) {
            0 => {
                let done: Vec<Known> = model.lock().clone();
                flush(array)?;
                for n in first..first + OWN {
                    model.lock()[n as usize].durable = done[n as usize].done;
                }
            }
            1..=3 => {
                let (version, durable) = (known.begun + 1, rng.one_in(4));
                bytes.chunks_mut(512).for_each(|sector| sector[..8].copy_from_slice(&version.to_le_bytes()));
                model.lock()[n as usize].begun = version;
                write_at(array, place(n), &bytes, durable)?;
                let mut model = model.lock();
                model[n as usize].done = version;
                if durable {
                    model[n as usize].durable = version;
                }
            }
            _ => {
                let found = versions(array, n)?;
                assert!(found.iter().all(|v| *v == known.done), "block {n} is {known:?} and was read as {found:?}");
            }
        }
        varve_rt::sleep(Duration::from_micros(rng.below(3000)));
    }
    Ok(())
}

fn drives(seed: u64, supply: &Arc<PowerSupply>) -> Vec<Arc<dyn Device>> {
    let us = |low, high| (Duration::from_micros(low), Duration::from_micros(high));
    let latency = Latency { read: us(20, 200), write: us(20, 300), durable: us(30, 400), flush: us(50, 900) };
    let drive = |i| {
        let options =
            MemOptions { name: format!("d{i}"), latency: latency.clone(), seed: seed + i, ..MemOptions::default() };
        let drive = MemDevice::with(12 * MIB, options);
        supply.attach(drive.clone());
        Faulty::powered(drive, FaultPlan::new(seed + i), supply.clone()) as Arc<dyn Device>
    };
    (0..3).map(drive).collect()
}

fn open(drives: &[Arc<dyn Device>]) -> Arc<Array> {
    let given = |drive: &Arc<dyn Device>| Given { name: drive.info().name.to_string(), device: Ok(drive.clone()) };
    Array::open(drives.iter().map(given).collect(), OpenHow::Writing).unwrap()
}

/// Moves extents about until the power is gone or somebody says stop; how many moves were done, and given up.
fn mover(array: &Array, pace: &Pace, seed: u64) -> (u64, u64) {
    let (mut rng, mut done, mut written) = (Rng::from_seed(seed), 0, 0);
    loop {
        let (index, drive) = (rng.below(6) as usize, rng.below(3) as usize);
        match array.move_extent(index, drive, pace) {
            Ok(Moved::Done) => done += 1,
            Ok(Moved::Written) => written += 1,
            Ok(Moved::Stopped) | Err(_) => return (done, written),
            Ok(Moved::There | Moved::Full | Moved::Gone) => {}
        }
        varve_rt::sleep(Duration::from_micros(100));
    }
}

/// One array over several power cuts; what its moves came to.
fn lives(seed: u64, layout: Layout) -> (u64, u64) {
    let outcome = run(Config { seed, chaos: true, ..Config::default() }, move || {
        let (supply, mut rng) = (PowerSupply::new(), Rng::from_seed(seed));
        let drives = drives(seed, &supply);
        let new = drives.iter().map(|drive| NewDrive { device: drive.clone(), blank: true });
        let array = Array::create([7; 16], new.collect(), 2 * MIB, layout).unwrap();
        array.set_len(LEN).unwrap();
        drop(array);
        let model: Model = Arc::new(Mutex::new(vec![Known::default(); (CLIENTS * OWN) as usize]));
        let mut sum = (0, 0);
        for life in 0..4 {
            let array = open(&drives);
            for n in 0..CLIENTS * OWN {
                let (found, known) = (versions(&*array, n).unwrap(), model.lock()[n as usize]);
                let good = |v: &u64| (known.durable..=known.begun).contains(v);
                assert!(found.iter().all(good), "seed {seed}, life {life}: block {n} is {known:?}, found {found:?}");
                // From here on it is known again.
                let version = known.begun + 1;
                let bytes = AlignedBuf::copy_padded(&version.to_le_bytes().repeat(BLOCK as usize / 8), BLOCK as usize);
                write_at(&*array, place(n), &bytes, true).unwrap();
                model.lock()[n as usize] = Known { durable: version, done: version, begun: version };
            }
            // The last life is left to end by itself.
            let cut = life < 3;
            if cut {
                supply.cut_at(supply.ops() + 20 + rng.below(400), rng.next_u64());
            }
            let pace = Pace::new(400 << 20);
            let (theirs, its) = (array.clone(), pace.clone());
            let moves = varve_rt::spawn("mover", move || mover(&theirs, &its, seed + life));
            let clients: Vec<_> = (0..CLIENTS)
                .map(|i| {
                    let (array, model, steps) = (array.clone(), model.clone(), if cut { 100_000 } else { 150 });
                    varve_rt::spawn("client", move || client(&*array, &model, i * OWN, seed ^ (life * 10 + i), steps))
                })
                .collect();
            clients.into_iter().for_each(|client| drop(client.join().unwrap()));
            pace.stop();
            let (done, written) = moves.join().unwrap();
            sum = (sum.0 + done, sum.1 + written);
            assert_eq!(array.map().fault(&[64; 3]), None);
            drop(array);
            if cut {
                supply.cut_at(0, 0);
                supply.restore();
            }
        }
        sum
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

#[test]
fn nothing_is_lost_when_extents_move_under_writes_and_power_cuts() {
    let mut sum = (0, 0);
    for seed in 0..24 {
        let layouts = layouts();
        let (done, written) = lives(seed, layouts[seed as usize % layouts.len()].clone());
        sum = (sum.0 + done, sum.1 + written);
    }
    assert!(sum.0 > 100, "moves that were done, and that were given up: {sum:?}");
}

#[test]
fn an_extent_that_is_written_all_the_time_moves() {
    let outcome = run(Config { seed: 5, chaos: true, ..Config::default() }, || {
        let supply = PowerSupply::new();
        let array =
            Array::volatile(drives(5, &supply), (2 * MIB, Layout::Rodi { shares: vec![1.0; 3] }), 6 * MIB).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        // A block each, in the middle of a chunk; each version is read back before the next is written.
        let writers: Vec<_> = (0..8u64)
            .map(|n| {
                let (array, stop) = (array.clone(), stop.clone());
                varve_rt::spawn("writer", move || {
                    let (at, mut version) = (n * 50 * BLOCK, 0);
                    let (mut found, mut rng) = (AlignedBuf::new(BLOCK as usize), Rng::from_seed(n));
                    while !stop.load(Ordering::Acquire) {
                        version += 1;
                        let bytes = AlignedBuf::copy_padded(&[version as u8; BLOCK as usize], BLOCK as usize);
                        write_at(&*array, at, &bytes, version % 3 == 0).unwrap();
                        read_at(&*array, at, &mut found).unwrap();
                        assert!(found[..] == bytes[..], "block {n} has version {version}");
                        varve_rt::sleep(Duration::from_micros(rng.below(10_000)));
                    }
                    version
                })
            })
            .collect();
        let pace = Pace::new(64 * MIB);
        let first = usize::from(array.map().entries[0].place.drive);
        for round in 1..=12 {
            assert_eq!(array.move_extent(0, (first + round) % 3, &pace), Ok(Moved::Done), "round {round}");
        }
        stop.store(true, Ordering::Release);
        let versions: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        assert!(versions > 500, "{versions} writes beside twelve moves");
    });
    outcome.result.unwrap();
}

#[test]
fn moves_keep_their_pace_and_say_what_became_of_them() {
    let outcome = run(Config::default(), || {
        let (_, devices) = memory(&[6, 6, 2]);
        let layout = Layout::Rodi { shares: vec![1.0, 0.0, 0.0] };
        let array = Array::volatile(devices, (2 * MIB, layout), 6 * MIB).unwrap();
        let all = vec![3u8; 6 * MIB as usize];
        write_at(&*array, 0, &all, false).unwrap();
        let (pace, began) = (Pace::new(MIB), varve_rt::now());
        assert_eq!(array.move_extent(1, 1, &pace), Ok(Moved::Done));
        assert!((varve_rt::now() - began).as_secs_f64() >= 2.0);
        assert_eq!(array.map().entries[1].place, Place { drive: 1, slot: 0 });
        assert_eq!(array.move_extent(1, 1, &pace), Ok(Moved::There));
        assert_eq!(array.move_extent(7, 1, &pace), Ok(Moved::Gone));
        assert_eq!(array.move_extent(0, 2, &pace), Ok(Moved::Done));
        assert_eq!(array.move_extent(2, 2, &pace), Ok(Moved::Full));
        assert_eq!(array.usage(), [(1, 3), (1, 3), (1, 1)], "what was left is free");
        pace.pause();
        let (theirs, its) = (array.clone(), pace.clone());
        let paused = varve_rt::spawn("mover", move || theirs.move_extent(2, 1, &its));
        varve_rt::sleep(Duration::from_secs(60));
        assert_eq!(array.map().entries[2].place.drive, 0, "as long as it is paused it stays");
        pace.resume();
        assert_eq!(paused.join().unwrap(), Ok(Moved::Done));
        let mut found = AlignedBuf::new(all.len());
        read_at(&*array, 0, &mut found).unwrap();
        assert!(found[..] == all[..]);
        pace.stop();
        assert_eq!(array.move_extent(2, 0, &pace), Ok(Moved::Stopped));
    });
    outcome.result.unwrap();
}
