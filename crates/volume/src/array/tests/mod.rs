//! An array against a plain vector of bytes, its drives' faults, and its speed on modelled drives.

mod change;
mod damage;
mod found;
mod moving;
mod speed;

use super::*;
use proptest::prelude::*;
use varve_device::{flush, read_at};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, Powered, When};
use varve_rt::Rng;
use varve_rt::sim::{Config, run};

pub(super) const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn memory(sizes: &[u64]) -> (Vec<Arc<MemDevice>>, Vec<Arc<dyn Device>>) {
    let drives: Vec<Arc<MemDevice>> = sizes.iter().map(|mib| MemDevice::new(mib * MIB)).collect();
    let devices = drives.iter().map(|drive| drive.clone() as Arc<dyn Device>).collect();
    (drives, devices)
}

fn layouts() -> [Layout; 4] {
    [
        Layout::Stripe { unit: 64 << 10 },
        Layout::Stripe { unit: 2 * MIB },
        Layout::Proportional { shares: vec![3.0, 1.0, 2.0] },
        Layout::Rodi { shares: vec![0.0, 1.0, 1.0] },
    ]
}

/// Random work on an array and on a vector of bytes.
fn work(array: &dyn Device, seed: u64, steps: usize) {
    let mut rng = Rng::from_seed(seed);
    let most = array.len();
    let mut bytes = vec![0u8; most as usize];
    for step in 0..steps {
        let len = bytes.len() as u64;
        let blocks = (len / BLOCK).max(1);
        let from = rng.below(blocks) * BLOCK;
        let some = (1 + rng.below(400)).min((len.saturating_sub(from)) / BLOCK) * BLOCK;
        let range = from as usize..(from + some) as usize;
        match rng.below(10) {
            0 => {
                let to = rng.below(most / BLOCK + 1) * BLOCK;
                array.set_len(to).unwrap();
                bytes.resize(to as usize, 0);
            }
            1..=4 if some > 0 => {
                bytes[range.clone()].fill(step as u8 + 1);
                write_at(array, from, &bytes[range], rng.one_in(3)).unwrap();
            }
            5 => flush(array).unwrap(),
            _ if some > 0 => {
                let mut found = AlignedBuf::new(some as usize);
                read_at(array, from, &mut found).unwrap();
                assert!(found[..] == bytes[range], "{some} bytes at {from}, step {step}");
            }
            _ => {}
        }
        assert_eq!(array.len(), bytes.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn an_array_is_a_device(seed in any::<u64>(), layout in 0usize..4) {
        let (_, devices) = memory(&[6, 4, 9]);
        let array = Array::volatile(devices, (2 * MIB, layouts()[layout].clone()), 18 * MIB).unwrap();
        prop_assert_eq!(array.len(), 18 * MIB);
        work(&*array, seed, 120);
    }

    #[test]
    fn also_where_requests_complete_in_any_order(seed in any::<u64>(), layout in 0usize..4) {
        let layout = layouts()[layout].clone();
        let outcome = run(Config { seed, ..Config::default() }, move || {
            let (_, devices) = memory(&[4, 4, 4]);
            let array = Array::volatile(devices, (2 * MIB, layout), 12 * MIB).unwrap();
            let workers: Vec<_> = (0..3u64).map(|worker| {
                let array = array.clone();
                varve_rt::spawn("worker", move || batches(&*array, worker * 4 * MIB, seed ^ worker))
            }).collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        outcome.result.unwrap();
    }
}

/// Batches on 4 MiB from `base`: what was written is read, and each request is waited for in any order.
fn batches(array: &dyn Device, base: u64, seed: u64) {
    let mut rng = Rng::from_seed(seed);
    for round in 0..6u8 {
        let mut cuts: Vec<u64> = (0..8).map(|_| rng.below(1024) * BLOCK).chain([0, 4 * MIB]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut bufs: Vec<(u64, AlignedBuf)> =
            cuts.windows(2).map(|w| (base + w[0], AlignedBuf::new((w[1] - w[0]) as usize))).collect();
        bufs.iter_mut().for_each(|(_, buf)| buf.fill(round + 1));
        // SAFETY: the buffers outlive the requests, which are waited for.
        let writes = bufs.iter().map(|(at, b)| unsafe { Io::write(*at, b.as_ptr(), b.len(), false) });
        let mut ticket = array.submit(writes.collect());
        let mut order: Vec<usize> = (0..bufs.len()).collect();
        rng.shuffle(&mut order);
        order.iter().for_each(|i| ticket.wait(*i).unwrap());
        bufs.iter_mut().for_each(|(_, buf)| buf.clear());
        // SAFETY: as above.
        let reads = bufs.iter_mut().map(|(at, b)| unsafe { Io::read(*at, b.as_mut_ptr(), b.len()) });
        array.submit(reads.collect()).wait_all().unwrap();
        assert!(bufs.iter().all(|(_, buf)| buf.iter().all(|byte| *byte == round + 1)));
    }
}

#[test]
fn a_flush_goes_to_the_drives_that_were_written() {
    let (drives, devices) = memory(&[4, 4, 4]);
    let array = Array::volatile(devices, (2 * MIB, Layout::Stripe { unit: MIB }), 12 * MIB).unwrap();
    let flushes = || drives.iter().map(|drive| drive.stats().flush.count).collect::<Vec<_>>();
    flush(&*array).unwrap();
    assert_eq!(flushes(), [1, 1, 1], "nobody knows what was written before");
    write_at(&*array, MIB, &[7; 4096], false).unwrap();
    write_at(&*array, 2 * MIB, &[7; 4096], true).unwrap();
    flush(&*array).unwrap();
    assert_eq!(flushes(), [1, 2, 1]);
    flush(&*array).unwrap();
    assert_eq!(flushes(), [1, 2, 1]);
    write_at(&*array, 2 * MIB - BLOCK, &[9; 8192], false).unwrap();
    flush(&*array).unwrap();
    assert_eq!(flushes(), [1, 3, 2]);
    drives.iter().for_each(|drive| assert!(drive.power_cut(3).units < 9));
    drives.iter().for_each(|drive| drive.restore_power());
    let mut found = AlignedBuf::new(8192);
    read_at(&*array, 2 * MIB - BLOCK, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 9), "what was flushed is there after a power cut");
}

/// Whoever is told that a flush succeeded knows of all that the drive was given before.
#[test]
fn a_flush_that_failed_counts_before_its_waiter_has_looked() {
    let (_, mut devices) = memory(&[4, 4]);
    let plan = FaultPlan::new(1).nth(1, OpKind::Flush, Fault::Eio);
    devices[1] = Faulty::new(devices[1].clone(), plan);
    let array = Array::volatile(devices, (2 * MIB, Layout::Stripe { unit: MIB }), 8 * MIB).unwrap();
    // The first fails on the drive, and nobody has waited for it; the second succeeds there.
    let first = array.submit(vec![Io::flush()]);
    assert!(matches!(flush(&*array), Err(DeviceError::Io { op: OpKind::Flush, .. })));
    assert!(matches!(first.wait_all(), Err(DeviceError::Io { op: OpKind::Flush, .. })));
    assert!(array.view().members[1].flush().is_err(), "so it is for who moves extents");
}

/// A waiter that unwinds takes its flush along: nothing is left that somebody else would drop.
#[test]
fn a_flush_whose_waiter_unwinds_is_nobodys() {
    let (_, mut devices) = memory(&[4, 4]);
    devices[1] = Faulty::new(devices[1].clone(), FaultPlan::new(1));
    let array = Array::volatile(devices, (2 * MIB, Layout::Stripe { unit: MIB }), 8 * MIB).unwrap();
    let member = array.view().members[1].clone();
    let begun = member.begin_flush().expect("what an earlier opening left is not flushed");
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _begun = begun;
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(unwound.is_err());
    flush(&*array).unwrap();
    // Its ticket would complain here.
    drop((member, array));
}

/// What a flush that failed should have made durable may be forgotten: a later one that succeeds says nothing of it.
#[test]
fn after_a_flush_that_failed_no_later_one_is_believed() {
    let (drives, mut devices) = memory(&[4, 4]);
    let plan = FaultPlan::new(1).nth(1, OpKind::Flush, Fault::Eio);
    devices[1] = Faulty::new(devices[1].clone(), plan);
    let open = || Array::volatile(devices.clone(), (2 * MIB, Layout::Stripe { unit: MIB }), 8 * MIB).unwrap();
    let array = open();
    for _ in 0..3 {
        assert!(matches!(flush(&*array), Err(DeviceError::Io { op: OpKind::Flush, .. })));
        write_at(&*array, MIB, &[7; 4096], false).unwrap();
    }
    drop(array);
    // What recovery finds and writes again is flushed again.
    flush(&*open()).unwrap();
    assert!(drives.iter().all(|drive| drive.stats().flush.count > 0));
}

#[test]
fn an_error_has_the_drives_name_and_place() {
    let (_, mut devices) = memory(&[4, 4]);
    let plan = FaultPlan::new(1).rule(&[OpKind::Read], Some(MIB..2 * MIB), When::From(1), Fault::Eio);
    devices[1] = Faulty::new(devices[1].clone(), plan);
    let name = devices[1].info().name;
    let array = Array::volatile(devices, (2 * MIB, Layout::Stripe { unit: MIB }), 8 * MIB).unwrap();
    let mut buf = AlignedBuf::new(2 * MIB as usize);
    read_at(&*array, 0, &mut buf).unwrap();
    let error = read_at(&*array, 2 * MIB, &mut buf).unwrap_err();
    assert!(matches!(&error, DeviceError::Io { device, offset: MIB, .. } if *device == name), "{error}");
    let past = read_at(&*array, 8 * MIB, &mut buf).unwrap_err();
    assert!(matches!(past, DeviceError::OutOfRange { device_len, .. } if device_len == 8 * MIB));
    let stats = array.stats();
    assert_eq!((stats.read.count, stats.read.errors), (2, 1), "what was refused is none");
}

#[test]
fn the_end_moves_and_what_was_there_does_not_come_back() {
    let (_, devices) = memory(&[8, 8]);
    for layout in [Layout::Stripe { unit: 64 << 10 }, Layout::Proportional { shares: vec![1.0, 1.0] }] {
        let array = Array::volatile(devices.clone(), (2 * MIB, layout), 16 * MIB).unwrap();
        let all = vec![5u8; 16 * MIB as usize];
        write_at(&*array, 0, &all, false).unwrap();
        array.set_len(3 * MIB + 1).unwrap();
        assert_eq!(array.len(), 3 * MIB + BLOCK);
        array.set_len(16 * MIB).unwrap();
        let mut found = AlignedBuf::new(16 * MIB as usize);
        read_at(&*array, 0, &mut found).unwrap();
        let end = (3 * MIB + BLOCK) as usize;
        assert!(found[..end].iter().all(|b| *b == 5) && found[end..].iter().all(|b| *b == 0));
        let full = array.set_len(16 * MIB + 1).unwrap_err();
        assert!(matches!(full, DeviceError::NoSpace { op: OpKind::SetLen, .. }), "{full}");
        assert_eq!(array.len(), 16 * MIB);
    }
}

#[test]
fn a_slot_is_not_used_again_while_a_request_may_go_there() {
    let (_, devices) = memory(&[8, 8]);
    let array = Array::volatile(devices, (2 * MIB, Layout::Proportional { shares: vec![1.0, 1.0] }), 16 * MIB).unwrap();
    let mut buf = AlignedBuf::new(4096);
    // SAFETY: the buffer outlives the request, which is waited for.
    let ticket = array.submit(vec![unsafe { Io::read(15 * MIB, buf.as_mut_ptr(), buf.len()) }]);
    array.set_len(2 * MIB).unwrap();
    assert!(array.set_len(4 * MIB).is_err(), "all slots but one are waited for");
    ticket.wait_all().unwrap();
    array.set_len(16 * MIB).unwrap();
}

#[test]
fn what_an_array_says_of_itself_is_true_of_all_its_drives() {
    let (_, devices) = memory(&[4, 4]);
    let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.info()).collect();
    let array = Array::volatile(devices, (2 * MIB, Layout::Stripe { unit: MIB }), 8 * MIB).unwrap();
    let info = array.info();
    assert_eq!((info.kind, info.block), (DeviceKind::Array, infos[0].block));
    assert_eq!(array.usage(), [(2, 2), (2, 2)]);
    assert_eq!(info.queue_depth, infos[0].queue_depth + infos[1].queue_depth);
    assert_eq!(info.atomic_write_unit, infos[0].atomic_write_unit);
    assert!(info.access.starts_with("stripe over 2 drives"), "{}", info.access);
}

#[test]
fn what_cannot_be_used_is_refused_with_a_way_out() {
    let (_, devices) = memory(&[4, 4]);
    let stripe = |unit| Layout::Stripe { unit };
    let refused = |drives: &[Arc<dyn Device>], extent, layout| match Array::volatile(
        drives.to_vec(),
        (extent, layout),
        2 * MIB,
    ) {
        Err(VolumeError::Options(why)) => why,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert!(refused(&devices, MIB, stripe(MIB)).contains("2048 KiB to 65536 KiB"));
    assert!(refused(&devices, 2 * MIB + 1, stripe(MIB)).contains("multiple"));
    assert!(refused(&devices, 2 * MIB, stripe(4096)).contains("64 KiB to 8192 KiB"));
    assert!(refused(&devices, 2 * MIB, stripe(192 << 10)).contains("divides"));
    assert!(refused(&devices, 2 * MIB, Layout::Proportional { shares: vec![1.0] }).contains("needs 2 shares"));
    assert!(refused(&devices, 2 * MIB, Layout::Rodi { shares: vec![0.0, 0.0] }).contains("not all of them 0"));
    assert!(refused(&devices, 8 * MIB, stripe(MIB)).contains("too few"));
    assert!(refused(&[], 2 * MIB, stripe(MIB)).contains("1 to 64 drives"));
    let twice = [devices[0].clone(), devices[0].clone()];
    assert!(refused(&twice, 2 * MIB, stripe(MIB)).contains("given twice"));
    let long = Array::volatile(devices.clone(), (2 * MIB, stripe(MIB)), 8 * MIB + 1).err().unwrap();
    assert!(long.to_string().contains("choose 1 to 8388608 bytes"), "{long}");
    let shares = Layout::Rodi { shares: vec![1.0, 1.0] };
    for (places, why) in [([(0, 0), (0, 0)], "already"), ([(0, 0), (0, 9)], "not there"), ([(0, 0), (2, 0)], "drive 2")]
    {
        let places = places.map(|(drive, slot)| Place { drive, slot });
        let error = Array::volatile_at(devices.clone(), (2 * MIB, shares.clone()), &places).err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
    }
}
