//! Drives come and go while the array is in use, and the power fails on the way.

use super::*;
use varve_models::PowerSupply;

const EXTENT: u64 = 2 * MIB;

struct Machine {
    drives: Vec<Arc<MemDevice>>,
    /// One for each drive; the same for all, if they lose power together.
    supplies: Vec<Arc<PowerSupply>>,
}

impl Machine {
    fn new() -> Machine {
        Machine::with(true)
    }

    fn with(together: bool) -> Machine {
        let drives: Vec<Arc<MemDevice>> = (0..4).map(|_| MemDevice::new(16 * MIB)).collect();
        let one = PowerSupply::new();
        let supplies: Vec<_> = (0..4).map(|_| if together { one.clone() } else { PowerSupply::new() }).collect();
        drives.iter().zip(&supplies).for_each(|(drive, supply)| supply.attach(drive.clone()));
        Machine { drives, supplies }
    }

    fn restore(&self) {
        self.supplies.iter().for_each(|supply| supply.restore());
    }

    fn device(&self, drive: usize, cut: Option<(u64, u64)>) -> Arc<dyn Device> {
        let plan = cut.map_or(FaultPlan::new(1), |(at, seed)| {
            FaultPlan::new(seed).rule(&[], None, When::Nth(at), Fault::PowerCut)
        });
        Faulty::powered(self.drives[drive].clone(), plan, self.supplies[drive].clone())
    }

    fn array(&self, layout: Layout) -> Arc<Array> {
        let new = |drive| NewDrive { device: self.device(drive, None), blank: true };
        let array = Array::create([7; 16], (0..3).map(new).collect(), EXTENT, layout).unwrap();
        array.set_len(12 * MIB).unwrap();
        for at in (0..12 * MIB).step_by(64 << 10) {
            write_at(&*array, at, &[fill(at); 4096], false).unwrap();
        }
        flush(&*array).unwrap();
        array
    }

    fn open(&self, drives: &[usize]) -> Result<Arc<Array>, VolumeError> {
        let given = |drive: &usize| Given { name: format!("drive.{drive}"), device: Ok(self.device(*drive, None)) };
        Array::open(drives.iter().map(given).collect(), OpenHow::Writing)
    }
}

fn fill(at: u64) -> u8 {
    (at >> 16) as u8 + 1
}

fn whole(array: &Array) {
    assert_eq!(array.len(), 12 * MIB);
    for at in (0..12 * MIB).step_by(64 << 10) {
        let mut found = AlignedBuf::new(4096);
        read_at(array, at, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == fill(at)), "byte {at}");
    }
}

fn empty(array: &Array, drive: usize) -> Result<(), VolumeError> {
    array.close_drive(drive, true);
    let pace = Pace::new(1 << 30);
    for (n, extent) in array.extents_on(drive).into_iter().enumerate() {
        let others = (0..array.drives().len()).filter(|other| *other != drive && array.usage()[*other].1 > 0);
        let others: Vec<usize> = others.collect();
        assert_eq!(array.move_extent(extent, others[n % others.len()], &pace)?, Moved::Done);
    }
    while !array.retire_drive(drive)? {}
    Ok(())
}

#[test]
fn drives_come_and_go_and_are_found_again() {
    for layout in layouts() {
        let machine = Machine::new();
        let array = machine.array(layout);
        let number = array.add_drive(NewDrive { device: machine.device(3, None), blank: false }, 1.0).unwrap();
        assert_eq!(number, 3);
        array.set_len(20 * MIB).unwrap();
        array.set_len(12 * MIB).unwrap();
        whole(&array);
        empty(&array, 1).unwrap();
        whole(&array);
        assert_eq!(array.usage()[1], (0, 0));
        drop(array);
        // What lies in the vacant place is not looked at, nor is it missed.
        for given in [[0, 1, 2, 3], [0, 0, 2, 3]] {
            let array = machine.open(&given).unwrap();
            whole(&array);
            assert_eq!(array.array_stats().drives.iter().map(|drive| drive.number).collect::<Vec<_>>(), [0, 2, 3]);
        }
        let array = machine.open(&[0, 1, 2, 3]).unwrap();
        let back = array.add_drive(NewDrive { device: machine.device(1, None), blank: false }, 2.0).unwrap();
        assert_eq!(back, 1, "the vacant place is taken again");
        drop(array);
        whole(&machine.open(&[0, 1, 2, 3]).unwrap());
        let told = machine.open(&[0, 1, 2]).err().unwrap().to_string();
        assert!(told.contains("4 drives, and 3 are given") && told.contains("bring it back"), "{told}");
    }
}

#[test]
fn what_cannot_be_added_or_taken_away_is_said() {
    let machine = Machine::new();
    let array = machine.array(Layout::Proportional { shares: vec![1.0; 3] });
    let add = |device: Arc<dyn Device>| {
        array.add_drive(NewDrive { device, blank: false }, 1.0).expect_err("it is refused").to_string()
    };
    assert!(add(machine.device(1, None)).contains("is drive 1 of the array already"));
    assert!(add(MemDevice::new(6 * MIB)).contains("less than four extents"));
    let told = add(MemDevice::new(9 * MIB - 4096));
    assert!(told.contains("four extents and the array's tables: give it 9437184 bytes"), "{told}");
    let enough = array.add_drive(NewDrive { device: MemDevice::new(9 * MIB), blank: false }, 1.0).unwrap();
    assert_eq!(array.usage()[enough], (0, 4));
    assert!(array.retire_drive(1).err().unwrap().to_string().contains("extents lie on drive 1"));
    array.close_drive(enough, true);
    assert!(array.retire_drive(enough).unwrap());
    empty(&array, 1).unwrap();
    let told = array.retire_drive(0).err().unwrap().to_string();
    assert!(told.contains("at least two drives"), "{told}");
    whole(&array);
    let stripe = Machine::new().array(Layout::Stripe { unit: MIB });
    assert!(stripe.set_shares(vec![1.0; 3]).err().unwrap().to_string().contains("no shares"));
}

#[test]
fn shares_are_kept() {
    let machine = Machine::new();
    let array = machine.array(Layout::Proportional { shares: vec![1.0; 3] });
    array.set_shares(vec![0.0, 1.0, 0.0]).unwrap();
    drop(array);
    let array = machine.open(&[0, 1, 2]).unwrap();
    assert_eq!(*array.layout(), Layout::Rodi { shares: vec![0.0, 1.0, 0.0] });
    let before = array.usage()[1].0;
    array.set_len(18 * MIB).unwrap();
    assert_eq!(array.usage()[1].0, before + 3);
}

#[test]
fn with_a_drive_missing_the_others_can_be_read() {
    let machine = Machine::new();
    let array = machine.array(Layout::Proportional { shares: vec![1.0; 3] });
    let there = array.map().entries.iter().position(|entry| entry.place.drive != 1).unwrap() as u64;
    let gone = array.extents_on(1)[0] as u64;
    drop(array);
    let given = |drive: usize| Given {
        name: format!("drive.{drive}"),
        device: if drive == 1 { Err("it was stolen".into()) } else { Ok(machine.device(drive, None)) },
    };
    let drives = || (0..3).map(given).collect();
    let told = Array::open(drives(), OpenHow::Reading).err().unwrap().to_string();
    assert!(told.contains("drive.1 (drive 1 of 3): it was stolen"), "{told}");
    let (array, missing) = Array::open_without(drives()).unwrap();
    assert_eq!(missing, [1]);
    let mut bytes = AlignedBuf::new(4096);
    read_at(&*array, there * EXTENT, &mut bytes).unwrap();
    assert_eq!(bytes[0], fill(there * EXTENT));
    let told = read_at(&*array, gone * EXTENT, &mut bytes).err().unwrap().to_string();
    assert!(told.contains("drive 1 of the array, which is missing"), "{told}");
    // Nothing was written: with the drive back all is well.
    drop(array);
    whole(&machine.open(&[0, 1, 2]).unwrap());
}

/// All drives lose power at an operation of one of them, or that one alone, while a drive comes and another one goes.
#[test]
fn a_power_cut_at_any_operation_loses_nothing() {
    let mut cuts = 0;
    for (drive, together) in (0..4).flat_map(|drive| [(drive, true), (drive, false)]) {
        for at in 1.. {
            let machine = Machine::with(together);
            drop(machine.array(Layout::Rodi { shares: vec![1.0; 3] }));
            let device = |n: usize| machine.device(n, (n == drive).then_some((at, at * 7 + drive as u64)));
            let given = |n: usize| Given { name: format!("drive.{n}"), device: Ok(device(n)) };
            let life = || -> Result<(), VolumeError> {
                let array = Array::open((0..3).map(given).collect(), OpenHow::Writing)?;
                array.add_drive(NewDrive { device: device(3), blank: false }, 1.0)?;
                array.set_shares(vec![1.0, 0.0, 1.0, 2.0])?;
                empty(&array, 1)
            };
            let done = life();
            machine.restore();
            let array = machine.open(&[0, 1, 2, 3]).unwrap_or_else(|e| panic!("drive {drive}, operation {at}: {e}"));
            whole(&array);
            if done.is_ok() {
                break;
            }
            cuts += 1;
            // The rest can be done now, whatever was done.
            if array.usage().len() < 4 {
                array.add_drive(NewDrive { device: machine.device(3, None), blank: false }, 1.0).unwrap();
            }
            if array.usage()[1].1 > 0 {
                empty(&array, 1).unwrap();
            }
            whole(&array);
        }
    }
    assert!(cuts > 120, "{cuts}");
}

/// The other drives fail while one is emptied: it stays, and new extents may lie on it as before.
#[test]
fn a_drive_that_could_not_be_emptied_takes_new_extents() {
    let outcome = run(Config::default(), || {
        let (_, mut drives) = memory(&[20, 20, 20]);
        let failing = Faulty::new(drives[1].clone(), FaultPlan::new(1));
        drives[1] = failing.clone();
        let layout = Layout::Proportional { shares: vec![1.0, 1.0, 1.0] };
        let array = Array::volatile(drives, (EXTENT, layout), 12 * MIB).unwrap();
        let options = keeper::KeeperOptions::default();
        let keeper = keeper::Keeper::new(array.clone(), options.clone(), watch::Watch::new(&array, options.rules));
        let serving = keeper.clone();
        let server = varve_rt::spawn("keeper", move || serving.serve(|_| {}));
        failing.set_plan(FaultPlan::new(1).rule(&[OpKind::Write], None, When::From(1), Fault::Eio));
        assert!(keeper.drain(0, Some(1)).unwrap() > 0);
        assert!(!keeper.wait() && keeper.moves().error.is_some(), "{:?}", keeper.moves());
        failing.set_plan(FaultPlan::new(1));
        let before = array.extents_on(0).len();
        array.set_len(36 * MIB).unwrap();
        assert!(array.extents_on(0).len() > before, "{:?}", array.usage());
        keeper.end();
        server.join().unwrap();
    });
    outcome.result.expect("the simulation ends");
}
