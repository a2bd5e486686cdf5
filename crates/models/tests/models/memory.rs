//! The memory device on OS threads: contents, power cuts against a naive model, tickets.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use varve_device::*;
use varve_models::*;

const UNIT: usize = 512;

fn small(units: usize) -> Arc<MemDevice> {
    MemDevice::with((units * UNIT) as u64, MemOptions { block: UNIT as u32, ..MemOptions::default() })
}

/// A buffer of whole units, each filled with the 64-bit number `tag`.
fn tagged(units: usize, tag: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(units * UNIT);
    buf.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&tag.to_le_bytes()));
    buf
}

/// The tag of each unit; panics if a unit is torn inside.
fn tags(dev: &MemDevice, units: usize) -> Vec<u64> {
    let mut bytes = vec![0; units * UNIT];
    dev.peek(0, &mut bytes);
    let unit = |u: &[u8]| {
        let mut words = u.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        let first = words.next().unwrap();
        assert!(words.all(|w| w == first), "a unit is torn inside");
        first
    };
    bytes.chunks_exact(UNIT).map(unit).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Write { at: usize, units: usize, durable: bool },
    Trim { at: usize, units: usize },
    Flush,
    Cut { seed: u64 },
}

fn acts(units: usize) -> impl Strategy<Value = Vec<Act>> {
    let range = (0..units).prop_flat_map(move |at| (Just(at), 1..=(units - at).min(9)));
    let act = prop_oneof![
        8 => (range.clone(), prop::bool::weighted(0.2)).prop_map(|((at, units), durable)| Act::Write { at, units, durable }),
        1 => range.prop_map(|(at, units)| Act::Trim { at, units }),
        2 => Just(Act::Flush),
        1 => any::<u64>().prop_map(|seed| Act::Cut { seed }),
    ];
    prop::collection::vec(act, 1..60)
}

/// Each unit on its own: what it may hold after a power cut, the present bytes last.
struct Model(Vec<Vec<u64>>);

impl Model {
    fn write(&mut self, at: usize, units: usize, tag: u64, durable: bool) {
        for unit in &mut self.0[at..at + units] {
            if durable {
                unit.clear();
            }
            unit.push(tag);
        }
    }
    fn flush(&mut self) {
        self.0.iter_mut().for_each(|u| *u = vec![*u.last().unwrap()]);
    }
    fn now(&self) -> Vec<u64> {
        self.0.iter().map(|u| *u.last().unwrap()).collect()
    }
}

proptest! {
    #[test]
    fn power_cuts_keep_what_the_model_allows(acts in acts(24)) {
        let dev = small(24);
        let mut model = Model(vec![vec![0]; 24]);
        for (i, act) in acts.iter().enumerate() {
            let tag = i as u64 + 1;
            match *act {
                Act::Write { at, units, durable } => {
                    write_at(&*dev, (at * UNIT) as u64, &tagged(units, tag), durable).unwrap();
                    model.write(at, units, tag, durable);
                }
                Act::Trim { at, units } => {
                    dev.run(Io::trim((at * UNIT) as u64, units * UNIT)).unwrap();
                    model.write(at, units, 0, false);
                }
                Act::Flush => {
                    flush(&*dev).unwrap();
                    model.flush();
                    prop_assert_eq!(dev.unflushed_units(), 0);
                }
                Act::Cut { seed } => {
                    dev.power_cut(seed);
                    prop_assert_eq!(flush(&*dev), Err(DeviceError::PowerLost));
                    dev.restore_power();
                    let found = tags(&dev, 24);
                    for (unit, allowed) in found.iter().zip(&model.0) {
                        prop_assert!(allowed.contains(unit), "{} is none of {:?}", unit, allowed);
                    }
                    model.0 = found.into_iter().map(|tag| vec![tag]).collect();
                    prop_assert_eq!(dev.unflushed_units(), 0);
                }
            }
            prop_assert_eq!(tags(&dev, 24), model.now());
        }
    }
}

#[test]
fn every_combination_of_versions_survives_some_cut() {
    let dev = small(2);
    write_at(&*dev, 0, &tagged(2, 1), true).unwrap();
    write_at(&*dev, 0, &tagged(2, 2), false).unwrap();
    write_at(&*dev, 0, &tagged(2, 3), false).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let copy = dev.clone_image();
        let report = copy.power_cut(seed);
        let found = tags(&copy, 2);
        assert_eq!(report.units, 2);
        assert_eq!(report.lost, found.iter().filter(|&&t| t == 1).count() as u64);
        assert_eq!(report.torn_writes, u64::from((found[0] == 3) != (found[1] == 3)));
        seen.insert(found);
    }
    assert_eq!(seen.len(), 9, "{seen:?}");
    assert_eq!(tags(&dev, 2), [3, 3], "a copy's cut leaves the original alone");
}

#[test]
fn requests_in_flight_when_the_power_fails_happen_in_part() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let dev = small(8);
        write_at(&*dev, 0, &tagged(4, 1), true).unwrap();
        dev.hold();
        let (data, mut back) = (tagged(4, 2), tagged(4, 9));
        // SAFETY: both buffers outlive the ticket, which is waited for.
        let batch = unsafe {
            vec![Io::write(0, data.as_ptr(), data.len(), true), Io::read(0, back.as_mut_ptr(), back.len()), Io::flush()]
        };
        let mut ticket = dev.submit(batch);
        assert!(!ticket.try_done(0) && !ticket.try_done(1));
        dev.power_cut(seed);
        assert!(ticket.try_done(0));
        for i in 0..3 {
            assert_eq!(ticket.wait(i), Err(DeviceError::PowerLost));
        }
        assert_eq!(&back[..], &tagged(4, 9)[..], "a lost read leaves its buffer alone");
        assert_eq!(dev.set_len(0), Err(DeviceError::PowerLost));
        assert_eq!(dev.submit(vec![Io::flush()]).wait_all(), Err(DeviceError::PowerLost));
        dev.restore_power();
        let found = tags(&dev, 4);
        assert!(found.iter().all(|&t| t == 1 || t == 2), "{found:?}");
        seen.insert(found);
    }
    assert_eq!(seen.len(), 16, "an in-flight write, durable or not, survives in any subset of its units");
}

#[test]
fn a_waiter_is_woken_by_the_cut() {
    let dev = small(8);
    dev.hold();
    let waiter = {
        let dev = dev.clone();
        varve_rt::spawn("waiter", move || dev.submit(vec![Io::flush()]).wait_all())
    };
    let grower = {
        let dev = dev.clone();
        varve_rt::spawn("grower", move || dev.set_len(1 << 20))
    };
    varve_rt::sleep(std::time::Duration::from_millis(20));
    dev.power_cut(1);
    assert_eq!(waiter.join().unwrap(), Err(DeviceError::PowerLost));
    assert_eq!(grower.join().unwrap(), Err(DeviceError::PowerLost));
}

#[test]
fn lengths_shrink_and_grow_with_zeros() {
    let dev = MemDevice::new(100_000);
    assert_eq!(dev.len(), 102_400);
    let ones = AlignedBuf::copy_padded(&[1; 102_400], 4096);
    write_at(&*dev, 0, &ones, false).unwrap();
    dev.set_len(8192).unwrap();
    assert_eq!(dev.unflushed_units(), 16);
    let mut buf = AlignedBuf::new(4096);
    let beyond = read_at(&*dev, 8192, &mut buf).unwrap_err();
    assert!(matches!(beyond, DeviceError::OutOfRange { offset: 8192, len: 4096, device_len: 8192, .. }), "{beyond}");
    dev.set_len(1 << 30).unwrap();
    read_at(&*dev, 8192, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 0), "what is grown reads as zeros");
    read_at(&*dev, 4096, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 1));
    assert!(dev.resident_bytes() <= 2 * 65536, "storage is sparse");
}

#[test]
fn alignment_is_checked_and_helpers_take_any_memory() {
    let dev = MemDevice::new(1 << 20);
    let mut bytes = vec![7; 4097];
    let (one, rest) = bytes.split_at_mut(1);
    write_at(&*dev, 4096, rest, true).unwrap();
    rest.fill(0);
    read_at(&*dev, 4096, rest).unwrap();
    assert!(rest.iter().all(|&b| b == 7));
    assert!(matches!(read_at(&*dev, 0, one), Err(DeviceError::Misaligned { block: 4096, .. })));
    let buf = AlignedBuf::new(4096);
    assert!(matches!(write_at(&*dev, 2048, &buf, true), Err(DeviceError::Misaligned { offset: 2048, .. })));
    assert!(matches!(dev.run(Io::trim(0, 100)), Err(DeviceError::Misaligned { .. })));
    // An offset near the end of the number range does not overflow.
    assert!(matches!(dev.run(Io::trim(u64::MAX - 4095, 8192)), Err(DeviceError::OutOfRange { .. })));
    let stats = dev.stats();
    assert_eq!((stats.read.count, stats.read.errors, stats.write.count, stats.durable_writes), (2, 1, 2, 1));
}

#[test]
fn damage_at_rest() {
    let dev = MemDevice::new(8192);
    dev.flip_bit(5000, 3);
    let mut buf = AlignedBuf::new(8192);
    read_at(&*dev, 0, &mut buf).unwrap();
    assert_eq!(buf.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
    assert_eq!(buf[5000], 8);
}

#[test]
#[should_panic(expected = "2 pending requests")]
fn a_ticket_is_not_dropped_while_requests_are_pending() {
    let dev = MemDevice::new(8192);
    dev.hold();
    drop(dev.submit(vec![Io::flush(), Io::flush()]));
}

proptest! {
    #[test]
    fn aligned_buffers(len in 0usize..70_000, multiple in prop::sample::select(vec![1usize, 512, 4096])) {
        let mut buf = AlignedBuf::new(len);
        prop_assert_eq!(buf.len(), len);
        prop_assert!((buf.as_ptr() as usize).is_multiple_of(4096));
        prop_assert!(buf.iter().all(|&b| b == 0));
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let copy = buf.clone();
        prop_assert_eq!(&copy[..], &buf[..]);
        let padded = AlignedBuf::copy_padded(&buf, multiple);
        prop_assert!(padded.len().is_multiple_of(multiple) && padded.len() < len + multiple);
        prop_assert_eq!(&padded[..len], &buf[..]);
        prop_assert!(padded[len..].iter().all(|&b| b == 0));
        buf.clear();
        prop_assert!(buf.iter().all(|&b| b == 0));
    }
}
