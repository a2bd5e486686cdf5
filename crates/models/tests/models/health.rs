//! What a failure on a watched device means for the database over it.

use std::sync::Arc;
use varve_device::*;
use varve_models::*;

/// Two watched devices of one database, the first of which can be made to fail.
struct Rig {
    health: Arc<Health>,
    faulty: Arc<Faulty>,
    first: Watched,
    second: Watched,
}

fn rig() -> Rig {
    let health = Health::new();
    let faulty = Faulty::new(MemDevice::new(65536), FaultPlan::default());
    let (first, second) = (Watched::new(faulty.clone(), &health), Watched::new(MemDevice::new(65536), &health));
    Rig { health, faulty, first, second }
}

impl Rig {
    fn fail(&self, op: OpKind, fault: Fault) {
        self.faulty.set_plan(FaultPlan::new(1).nth(1, op, fault));
    }
}

fn write(device: &Watched, durable: bool) -> Result<(), DeviceError> {
    write_at(device, 0, &AlignedBuf::copy_padded(&[7], BLOCK), durable)
}

fn write_batch(device: &Watched, durable: bool) -> Result<(), DeviceError> {
    let data = AlignedBuf::new(2 * BLOCK);
    // SAFETY: the buffer outlives the ticket, which is waited for.
    let io = |n: usize| unsafe { Io::write((n * BLOCK) as u64, data[n * BLOCK..].as_ptr(), BLOCK, durable) };
    device.submit(vec![io(0), io(1)]).wait_all()
}

#[test]
fn after_a_failure_that_promises_rest_on_nothing_is_promised_any_more() {
    type Act = fn(&Watched) -> Result<(), DeviceError>;
    let acts: [(OpKind, Fault, Act); 5] = [
        (OpKind::Flush, Fault::Eio, |d| flush(d)),
        (OpKind::Write, Fault::Eio, |d| write(d, true)),
        (OpKind::Write, Fault::NoSpace, |d| write_batch(d, true)),
        (OpKind::SetLen, Fault::Eio, |d| d.set_len(1 << 20)),
        (OpKind::SetLen, Fault::TransientEio, |d| d.set_len(BLOCK as u64)),
    ];
    for (op, fault, act) in acts {
        let rig = rig();
        rig.fail(op, fault);
        let error = act(&rig.first).unwrap_err();
        assert_eq!(rig.health.cause().as_deref(), Some(&*error.to_string()), "{op}");
        for device in [&rig.first, &rig.second] {
            assert!(matches!(write(device, true), Err(DeviceError::Refused { .. })), "{op}");
            assert!(matches!(device.set_len(1 << 21), Err(DeviceError::Refused { .. })), "{op}");
            write(device, false).unwrap();
            read_at(device, 0, &mut AlignedBuf::new(BLOCK)).unwrap();
        }
    }
}

#[test]
fn what_changed_nothing_poisons_nothing() {
    let rig = rig();
    rig.fail(OpKind::Write, Fault::Eio);
    write(&rig.first, false).unwrap_err();
    rig.fail(OpKind::SetLen, Fault::NoSpace);
    rig.first.set_len(1 << 20).unwrap_err();
    rig.fail(OpKind::Read, Fault::Eio);
    read_at(&rig.first, 0, &mut AlignedBuf::new(BLOCK)).unwrap_err();
    assert_eq!(rig.health.cause(), None);
    // Nor does a device whose user judges its failures himself.
    let own = Watched::until_end(rig.faulty.clone(), &rig.health);
    rig.fail(OpKind::Flush, Fault::Eio);
    flush(&own).unwrap_err();
    rig.health.poison("something else");
    write(&own, true).unwrap();
}

#[test]
fn nothing_is_written_after_the_end() {
    let rig = rig();
    let own = Watched::until_end(MemDevice::new(65536), &rig.health);
    rig.health.end();
    for device in [&rig.first, &rig.second, &own] {
        for durable in [false, true] {
            assert!(matches!(write(device, durable), Err(DeviceError::Refused { .. })));
            assert!(matches!(write_batch(device, durable), Err(DeviceError::Refused { .. })));
        }
        assert!(device.set_len(1 << 20).is_err() && flush(device).is_err());
        read_at(device, 0, &mut AlignedBuf::new(BLOCK)).unwrap();
    }
}

#[test]
fn a_panic_of_a_service_thread_poisons_and_says_which() {
    let health = Health::new();
    Health::join([health.spawn("sweeper", || panic!("made to")).unwrap()]);
    assert!(health.cause().unwrap().contains("'sweeper' panicked"));
}

/// It may hold the last handle of what is ended.
#[test]
fn a_thread_does_not_wait_for_itself() {
    let health = Health::new();
    let (give, take) = varve_rt::channel::unbounded();
    let thread = health.spawn("itself", move || Health::join(take.recv())).unwrap();
    assert!(give.send(thread).is_ok());
    while Arc::strong_count(&health) > 1 {
        varve_rt::yield_now();
    }
    assert_eq!(health.cause(), None);
}
