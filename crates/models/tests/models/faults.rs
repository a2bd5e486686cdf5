//! Injected faults: what the plan says happens, and is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use varve_device::*;
use varve_models::*;

fn device() -> Arc<MemDevice> {
    MemDevice::new(1 << 20)
}

fn block(fill: u8) -> AlignedBuf {
    AlignedBuf::copy_padded(&[fill; 4096], 4096)
}

#[test]
fn scripted_errors_by_operation_number_and_range() {
    let plan = FaultPlan::new(1)
        .nth(2, OpKind::Read, Fault::TransientEio)
        .rule(&[OpKind::Read, OpKind::Write], Some(8192..12288), When::From(1), Fault::Eio)
        .nth(1, OpKind::Flush, Fault::Eio)
        .nth(1, OpKind::SetLen, Fault::NoSpace)
        .nth(3, OpKind::Write, Fault::NoSpace);
    let dev = Faulty::new(device(), plan);
    let mut buf = block(0);
    read_at(&*dev, 0, &mut buf).unwrap();
    assert!(read_at(&*dev, 0, &mut buf).unwrap_err().is_retryable());
    read_at(&*dev, 0, &mut buf).unwrap();
    for _ in 0..3 {
        assert!(!read_at(&*dev, 8192, &mut buf).unwrap_err().is_retryable());
    }
    write_at(&*dev, 0, &buf, false).unwrap();
    write_at(&*dev, 12288, &buf, false).unwrap();
    assert!(matches!(write_at(&*dev, 0, &buf, false), Err(DeviceError::NoSpace { .. })));
    assert!(write_at(&*dev, 8192, &buf, false).is_err());
    assert!(matches!(flush(&*dev), Err(DeviceError::Io { op: OpKind::Flush, errno: 5, .. })));
    flush(&*dev).unwrap();
    assert!(matches!(dev.set_len(2 << 20), Err(DeviceError::NoSpace { op: OpKind::SetLen, .. })));
    assert_eq!(dev.len(), 1 << 20);
    dev.set_len(2 << 20).unwrap();
    assert_eq!(dev.len(), 2 << 20);
    let counts = dev.counts();
    assert_eq!((counts.eio, counts.no_space), (6, 2));
}

#[test]
fn a_failed_write_may_have_happened() {
    let mut happened = [0; 2];
    for seed in 0..50 {
        let mem = device();
        let dev = Faulty::new(mem.clone(), FaultPlan::new(seed).nth(1, OpKind::Write, Fault::Eio));
        write_at(&*dev, 0, &block(1), false).unwrap_err();
        let mut byte = [0];
        mem.peek(0, &mut byte);
        happened[usize::from(byte[0])] += 1;
    }
    assert!(happened.iter().all(|&n| n > 5), "{happened:?}");
}

#[test]
fn flipped_bits() {
    let mem = device();
    let plan = FaultPlan::new(3).nth(1, OpKind::Read, Fault::FlipOnRead).nth(1, OpKind::Write, Fault::FlipAtRest);
    let dev = Faulty::new(mem.clone(), plan);
    let (data, mut buf) = (block(0), block(9));
    write_at(&*dev, 0, &data, false).unwrap();
    assert!(data.iter().all(|&b| b == 0), "the caller's bytes are left alone");
    let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    mem.peek(0, &mut buf);
    assert_eq!(ones(&buf), 1);
    read_at(&*dev, 4096, &mut buf).unwrap();
    assert_eq!(ones(&buf), 1);
    read_at(&*dev, 4096, &mut buf).unwrap();
    assert_eq!(ones(&buf), 0);
    assert_eq!((dev.counts().flips_on_read, dev.counts().flips_at_rest), (1, 1));
}

#[test]
fn delays_are_waited_for() {
    let plan = FaultPlan::new(0).nth(1, OpKind::Flush, Fault::Delay(Duration::from_millis(5)));
    let dev = Faulty::new(device(), plan);
    let started = varve_rt::now();
    let mut ticket = dev.submit(vec![Io::flush()]);
    ticket.wait(0).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(5));
    assert_eq!(dev.counts().delays, 1);
}

#[test]
fn one_plan_and_seed_give_one_course_of_events() {
    let run = |seed| {
        let plan = FaultPlan::new(seed).one_in(5, OpKind::Read, Fault::Eio).one_in(3, OpKind::Write, Fault::NoSpace);
        let dev = Faulty::new(device(), plan);
        let mut buf = block(1);
        let outcomes: Vec<bool> =
            (0..200)
                .map(|i| {
                    if i % 2 == 0 {
                        read_at(&*dev, 0, &mut buf).is_ok()
                    } else {
                        write_at(&*dev, 0, &buf, false).is_ok()
                    }
                })
                .collect();
        (outcomes, dev.counts())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
    let counts = run(7).1;
    assert!(counts.eio > 5 && counts.no_space > 10, "{counts:?}");
}

/// Writes a counter to two devices of one supply until the power fails; returns how many writes were acknowledged.
fn count_up(devices: &[Arc<Faulty>; 2]) -> u64 {
    for i in 1u64.. {
        let mut buf = block(0);
        buf[..8].copy_from_slice(&i.to_le_bytes());
        for dev in devices {
            if write_at(&**dev, 0, &buf, i.is_multiple_of(2)).and_then(|()| flush(&**dev)).is_err() {
                return i - 1;
            }
        }
    }
    unreachable!()
}

#[test]
fn the_power_fails_at_each_operation_in_turn() {
    let mut torn = 0;
    for n in 1..60 {
        let (a, b) = (device(), device());
        let supply = PowerSupply::new();
        supply.attach(a.clone());
        supply.attach(b.clone());
        let fired = Arc::new(AtomicU64::new(0));
        let seen = fired.clone();
        supply.on_cut(move || {
            seen.fetch_add(1, SeqCst);
        });
        let devices = [&a, &b].map(|m| Faulty::powered(m.clone(), FaultPlan::new(n), supply.clone()));
        supply.cut_at(n, n * 31);
        let acknowledged = count_up(&devices);
        assert_eq!((supply.ops(), supply.cuts(), fired.load(SeqCst)), (n, 1, 1));
        assert!(supply.off().is_set() && !supply.is_on());
        for dev in &devices {
            assert_eq!(flush(&**dev), Err(DeviceError::PowerLost));
            assert_eq!(dev.set_len(0), Err(DeviceError::PowerLost));
        }
        assert_eq!(supply.ops(), n, "nothing is counted while the power is off");
        supply.restore();
        for dev in &devices {
            let mut buf = block(0);
            read_at(&**dev, 0, &mut buf).unwrap();
            let found = u64::from_le_bytes(buf[..8].try_into().unwrap());
            assert!(found == acknowledged || found == acknowledged + 1, "{found} after {acknowledged}");
            torn += u64::from(found == acknowledged);
        }
    }
    assert!(torn > 20 && torn < 110, "{torn}");
}

#[test]
fn a_plan_can_cut_the_power() {
    let mem = device();
    let supply = PowerSupply::new();
    supply.attach(mem.clone());
    let plan = FaultPlan::new(5).nth(3, OpKind::Write, Fault::PowerCut);
    let dev = Faulty::powered(mem, plan, supply.clone());
    let buf = block(1);
    write_at(&*dev, 0, &buf, false).unwrap();
    write_at(&*dev, 4096, &buf, false).unwrap();
    assert_eq!(write_at(&*dev, 8192, &buf, false), Err(DeviceError::PowerLost));
    assert_eq!(dev.counts().power_cuts, 1);
    assert!(supply.last_cut().units >= 16);
    supply.restore();
    write_at(&*dev, 8192, &buf, true).unwrap();
}

#[test]
fn a_set_len_cut_short_happens_or_not() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mem = device();
        let supply = PowerSupply::new();
        supply.attach(mem.clone());
        let dev = Faulty::powered(mem, FaultPlan::new(seed), supply.clone());
        supply.cut_at(1, seed);
        assert_eq!(dev.set_len(2 << 20), Err(DeviceError::PowerLost));
        supply.restore();
        lengths.insert(dev.len());
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1 << 20, 2 << 20]);
}

/// A thread that orders a cut "two operations from here" may be overtaken: a cut ordered too late is late, not lost.
#[test]
fn a_cut_ordered_for_an_operation_already_begun_comes_with_the_next() {
    let mem = device();
    let supply = PowerSupply::new();
    supply.attach(mem.clone());
    let dev = Faulty::powered(mem, FaultPlan::new(9), supply.clone());
    let buf = block(1);
    for _ in 0..3 {
        write_at(&*dev, 0, &buf, false).unwrap();
    }
    supply.cut_at(2, 1);
    assert_eq!(write_at(&*dev, 4096, &buf, false), Err(DeviceError::PowerLost));
    assert_eq!((supply.ops(), supply.cuts()), (4, 1));
    supply.restore();
    write_at(&*dev, 4096, &buf, false).expect("one order, one cut");
}
