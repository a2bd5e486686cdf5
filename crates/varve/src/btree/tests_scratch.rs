//! Scratch pages beside a tree: what is read back, that they are given back, and what a crash, a full device and a lost
//! write do to them.

use super::harness::{Harness, Setup};
use crate::error::{Damage, Error};
use crate::space::scratch::{Scratch, Writer};
use std::ops::Bound::Unbounded;
use std::sync::Arc;
use varve_device::{Device, OpKind, read_at, write_at};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, PowerSupply, When};
use varve_rt::sim::{self, Domain};
use varve_rt::{Mutex, Rng};

fn harness() -> Harness {
    Harness::create(MemDevice::new(0), MemDevice::new(0), &Setup::new(4096, 64)).unwrap()
}

/// Records of all lengths, some longer than a page, which bear their number.
fn record(n: u64, rng: &mut Rng) -> Vec<u8> {
    let len = if rng.below(8) == 0 { rng.below(20_000) } else { rng.below(60) } as usize;
    let mut record = vec![n as u8; len];
    record.extend_from_slice(&n.to_le_bytes());
    record
}

fn write(h: &Harness, records: u64, seed: u64) -> (Scratch, Vec<(u64, Vec<u8>)>) {
    let mut rng = Rng::from_seed(seed);
    let mut writer = Writer::new(&h.core);
    let records: Vec<_> = (0..records)
        .map(|n| {
            let record = record(n, &mut rng);
            (writer.append(&record).unwrap(), record)
        })
        .collect();
    (writer.finish().unwrap(), records)
}

fn read_all(scratch: &Scratch, from: u64, ahead: usize) -> Vec<(u64, Vec<u8>)> {
    let mut reader = scratch.reader_from(from, ahead);
    let mut all = Vec::new();
    while let Some((place, record)) = reader.next().unwrap() {
        all.push((place, record.to_vec()));
    }
    all
}

#[test]
fn records_come_back_in_order_and_at_their_places() {
    let h = harness();
    let before = h.pages();
    let scratches: Vec<_> = (0..3).map(|seed| write(&h, 400, seed)).collect();
    for (scratch, records) in &scratches {
        assert!(records.windows(2).all(|r| r[0].0 < r[1].0), "places ascend");
        assert_eq!(&read_all(scratch, 0, 1), records);
        assert_eq!(&read_all(scratch, 0, 1 << 20), records);
        assert_eq!(read_all(scratch, records[250].0, 9000), records[250..]);
        let mut bytes = Vec::new();
        for (place, record) in records.iter().rev() {
            scratch.read(*place, &mut bytes).unwrap();
            assert_eq!(&bytes, record);
        }
    }
    let stats = h.core.space.scratch_stats();
    let pages: usize = scratches.iter().map(|(scratch, _)| scratch.pages()).sum();
    assert!(pages > 300 && stats.pages == pages as u64 && stats.written == stats.pages && stats.read > stats.pages);
    assert_eq!(h.pages() - before, stats.pages, "in memory they are taken");
    let report = h.check();
    assert!(report.is_clean() && report.allocated_pages == before, "the map knows of none of them");
    drop(scratches);
    assert_eq!((h.pages(), h.core.space.scratch_stats().pages), (before, 0));
    // A writer that is given up gives its pages back too.
    let mut writer = Writer::new(&h.core);
    (0..100).for_each(|_| assert!(writer.append(&[1; 5000]).unwrap() < 600_000));
    drop(writer);
    assert_eq!((h.pages(), h.core.space.scratch_stats().pages), (before, 0));
    h.stop();
}

#[test]
fn pages_are_used_again_and_no_page_that_redo_knows_is_taken() {
    let h = harness();
    let value = [3; 900];
    (0..2000u64).for_each(|n| assert!(h.put(&n.to_be_bytes(), &value).unwrap().1 > 0));
    (0..2000u64).for_each(|n| assert!(h.remove(&n.to_be_bytes()).unwrap().1 > 0));
    h.put(b"kept", &value).unwrap();
    let unripe = h.core.space.unripe();
    assert!(unripe > 100, "{unripe} pages were freed since the last checkpoint");
    let (scratch, _) = write(&h, 300, 7);
    assert_eq!(h.core.space.unripe(), unripe, "scratch takes pages that redo does not know");
    drop(scratch);
    h.checkpoint().unwrap();
    let size = h.core.store.pages();
    for seed in 0..10 {
        let (scratch, records) = write(&h, 300, seed);
        assert_eq!(read_all(&scratch, 0, 4096), records);
        (0..200u64).for_each(|n| assert!(h.put(&n.to_be_bytes(), &value).unwrap().1 > 0));
        assert_eq!(read_all(&scratch, 0, 4096), records, "the tree uses other pages");
        (0..200u64).for_each(|n| assert!(h.remove(&n.to_be_bytes()).unwrap().1 > 0));
        h.checkpoint().unwrap();
    }
    assert_eq!(h.core.store.pages(), size, "the pages are used again");
    assert!(h.check().is_clean());
    h.stop();
}

#[test]
fn a_page_of_another_scratch_is_an_error_that_names_it() {
    let data = MemDevice::new(0);
    let h = Harness::create(data.clone(), MemDevice::new(0), &Setup { strict: false, ..Setup::new(4096, 64) }).unwrap();
    let at = |page: u64| page * 4096;
    let copy = |page: u64| {
        let mut bytes = vec![0; 4096];
        read_at(&*data, at(page), &mut bytes).unwrap();
        bytes
    };
    let (first, _) = write(&h, 30, 1);
    let pages: Vec<u64> = first.page_ids().map(|id| id.0).collect();
    let old: Vec<Vec<u8>> = pages.iter().map(|page| copy(*page)).collect();
    drop(first);
    let (second, records) = write(&h, 30, 1);
    assert_eq!(second.page_ids().next().map(|id| id.0), Some(pages[0]), "the same pages");
    assert_eq!(read_all(&second, 0, 4096), records);
    // The write of the second one's page 1 is lost: what is there is whole, of that place, and of the first.
    write_at(&*data, at(pages[1]), &old[1], false).unwrap();
    let mut reader = second.reader_from(0, 4096);
    let error = loop {
        match reader.next() {
            Ok(record) => assert!(record.is_some(), "the loss is found"),
            Err(error) => break error,
        }
    };
    let named = |e: &Error| matches!(e, Error::Corrupt(Damage::Page { page, .. }) if page.0 == pages[1]);
    assert!(named(&error), "{error}");
    let mut damaged = old[1].clone();
    damaged[2000] ^= 1;
    write_at(&*data, at(pages[1]), &damaged, false).unwrap();
    let error = second.read(records[29].0, &mut Vec::new()).and_then(|()| read_page_1(&second)).unwrap_err();
    assert!(named(&error), "{error}");
    h.stop();
}

fn read_page_1(scratch: &Scratch) -> Result<(), Error> {
    let mut reader = scratch.reader_from(0, 4096);
    while reader.next()?.is_some() {}
    Ok(())
}

/// After a crash in the middle of it no page is lost, and none is taken for a row.
#[test]
fn a_crash_frees_them() {
    for seed in 0..6 {
        let outcome = sim::run(sim::Config { seed, ..Default::default() }, move || {
            let supply = PowerSupply::new();
            let devices = [seed, seed + 1].map(|seed| {
                let mem = MemDevice::new(0);
                supply.attach(mem.clone());
                Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
            });
            let written = Arc::new(Mutex::new(0));
            let domain = Domain::new("machine");
            let job = {
                let (devices, written) = (devices.clone(), written.clone());
                domain.spawn("database", move || {
                    let [data, log] = devices;
                    let h = Harness::create(data, log, &Setup::new(4096, 64)).unwrap();
                    let mut held = Vec::new();
                    for n in 0..100_000u64 {
                        if h.put(&n.to_be_bytes(), &[4; 300]).and_then(|_| h.sync()).is_err() {
                            break;
                        }
                        *written.lock() = n + 1;
                        let mut writer = Writer::new(&h.core);
                        let all = (0..40).try_for_each(|_| writer.append(&[5; 500]).map(drop));
                        let Ok(scratch) = all.and_then(|()| writer.finish()) else { break };
                        held.push(scratch);
                        if n % 7 == 0 {
                            held.clear();
                        }
                    }
                    drop(held);
                    h.stop();
                })
            };
            supply.cut_at(supply.ops() + 60 + 71 * seed, seed);
            supply.off().wait_for(std::time::Duration::from_secs(5));
            domain.power_cut();
            drop(job.join());
            supply.cut_at(0, 0);
            supply.restore();
            let [data, log] = devices;
            let h = Harness::open(data, log, &Setup::new(4096, 64)).unwrap();
            let report = h.check();
            assert!(report.is_clean(), "seed {seed}: {:?}", report.damages);
            assert_eq!(h.pages(), report.allocated_pages, "seed {seed}: all others are free");
            let rows = h.count(Unbounded, Unbounded).unwrap();
            let written = *written.lock();
            assert!(rows >= written && written > 0, "seed {seed}: {rows} rows of {written}");
            h.stop();
        });
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
}

/// A device that is full refuses the scratch, and nothing else is the worse for it.
#[test]
fn a_full_device_fails_the_scratch_alone() {
    // It grows some times, and no further.
    let plan = FaultPlan::new(1).rule(&[OpKind::SetLen], None, When::From(6), Fault::NoSpace);
    let data = Faulty::new(MemDevice::new(0), plan);
    let h = Harness::create(data, MemDevice::new(0), &Setup::new(4096, 64)).unwrap();
    h.put(b"before", b"1").unwrap();
    let used = h.pages();
    let mut writer = Writer::new(&h.core);
    let error = (0..10_000).find_map(|_| writer.append(&[6; 1000]).err()).expect("the device is full");
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    drop(writer);
    assert_eq!(h.pages(), used);
    (0..100u64).for_each(|n| assert!(h.put(&n.to_be_bytes(), &[7; 1000]).unwrap().1 > 0));
    assert_eq!(h.get(b"before").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(h.check().is_clean());
    h.stop();
}
