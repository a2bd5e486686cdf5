//! Arrays that are found again: after power cuts at every operation, and with drives that are not what they were.

use super::*;
use varve_models::PowerSupply;

const SIZES: [u64; 3] = [12, 9, 15];

/// Drives that lose their bytes with the power, each with a supply, the same or its own.
struct Rig {
    drives: Vec<Arc<MemDevice>>,
    supplies: Vec<Arc<PowerSupply>>,
    devices: Vec<Arc<dyn Device>>,
}

impl Rig {
    fn new(together: bool) -> Rig {
        let drives: Vec<Arc<MemDevice>> = SIZES.iter().map(|mib| MemDevice::new(mib * MIB)).collect();
        let one = PowerSupply::new();
        let supply = |_: &u64| if together { one.clone() } else { PowerSupply::new() };
        let supplies: Vec<Arc<PowerSupply>> = SIZES.iter().map(supply).collect();
        let power = |(drive, supply): (&Arc<MemDevice>, &Arc<PowerSupply>)| {
            supply.attach(drive.clone());
            Faulty::powered(drive.clone(), FaultPlan::new(1), supply.clone()) as Arc<dyn Device>
        };
        let devices = drives.iter().zip(&supplies).map(power).collect();
        Rig { drives, supplies, devices }
    }

    fn create(&self, layout: Layout) -> Result<Arc<Array>, VolumeError> {
        let new = |device: &Arc<dyn Device>| NewDrive { device: device.clone(), blank: true };
        Array::create([7; 16], self.devices.iter().map(new).collect(), 2 * MIB, layout)
    }

    fn open(&self) -> Result<Arc<Array>, VolumeError> {
        Array::open(given(&self.devices), OpenHow::Writing)
    }

    /// Ends every power cut.
    fn restore(&self) {
        for supply in &self.supplies {
            supply.cut_at(0, 0);
            supply.cut(9);
            supply.restore();
        }
    }
}

fn given(devices: &[Arc<dyn Device>]) -> Vec<Given> {
    let each = devices.iter().zip(0..);
    each.map(|(device, i)| Given { name: format!("drive.{i}"), device: Ok(device.clone()) }).collect()
}

fn refused(drives: Vec<Given>) -> String {
    Array::open(drives, OpenHow::Writing).err().expect("it is refused").to_string()
}

/// What must be there.
#[derive(Clone, Debug, Default)]
struct Model {
    bytes: Vec<u8>,
    /// The array may have this length instead.
    or_len: Option<u64>,
    /// Bytes that may be anything.
    torn: std::ops::Range<u64>,
}

impl Model {
    fn set_len(&mut self, array: &Array, mib: u64) -> Result<(), DeviceError> {
        self.or_len = Some(mib * MIB);
        array.set_len(mib * MIB)?;
        self.or_len = None;
        self.bytes.resize((mib * MIB) as usize, 0);
        Ok(())
    }

    fn write(&mut self, array: &Array, at: u64, fill: u8) -> Result<(), DeviceError> {
        let bytes = vec![fill; (3 * MIB) as usize];
        self.torn = at..at + 3 * MIB;
        write_at(array, at, &bytes, false)?;
        flush(array)?;
        self.torn = 0..0;
        self.bytes[at as usize..(at + 3 * MIB) as usize].copy_from_slice(&bytes);
        Ok(())
    }

    fn check(&self, array: &Array) {
        let len = self.bytes.len() as u64;
        assert!(array.len() == len || Some(array.len()) == self.or_len, "{} is {len}", array.len());
        let mut found = AlignedBuf::new(array.len() as usize);
        if !found.is_empty() {
            read_at(array, 0, &mut found).unwrap();
        }
        let sure = len.min(array.len()) as usize;
        for at in (0..found.len()).step_by(BLOCK as usize) {
            let expected = if at < sure { self.bytes[at] } else { 0 };
            assert!(found[at] == expected || self.torn.contains(&(at as u64)), "byte {at} of {sure}");
        }
        array.set_len(18 * MIB).unwrap();
        let mut grown = AlignedBuf::new(MIB as usize);
        for at in (found.len() as u64..18 * MIB).step_by(MIB as usize) {
            read_at(array, at, &mut grown).unwrap();
            assert!(grown.iter().all(|byte| *byte == 0), "what is new is blank: {at}");
        }
    }
}

/// A life of an array, up to the first error.
fn life(rig: &Rig, model: &mut Model, layout: Layout) -> Result<(), VolumeError> {
    let array = rig.create(layout)?;
    model.set_len(&array, 7)?;
    model.write(&array, 4 * MIB, 5)?;
    array.begin_generation()?;
    model.set_len(&array, 16)?;
    model.write(&array, 10 * MIB, 6)?;
    model.set_len(&array, 5)?;
    drop(array);
    let array = rig.open()?;
    model.set_len(&array, 12)?;
    model.write(&array, 0, 7)?;
    model.set_len(&array, 0)?;
    model.set_len(&array, 3)?;
    Ok(())
}

/// Cuts the power of these drives at operation `at` of their supply; false if there are no more.
fn cut_once(at: u64, seed: u64, drive: Option<usize>, layout: &Layout) -> bool {
    let rig = Rig::new(drive.is_none());
    let mut model = Model::default();
    rig.supplies[drive.unwrap_or(0)].cut_at(at, seed);
    let ended = life(&rig, &mut model, layout.clone()).is_ok();
    rig.restore();
    // Another one at an operation of the opening.
    rig.supplies[drive.unwrap_or(0)].cut_at(rig.supplies[drive.unwrap_or(0)].ops() + 1 + seed % 40, seed + 1);
    let _ = rig.open();
    rig.restore();
    match rig.open() {
        Ok(array) => model.check(&array),
        Err(e) => {
            assert!(!ended && model.bytes.is_empty() && model.or_len.is_none(), "operation {at}, seed {seed}: {e}");
        }
    }
    !ended
}

#[test]
fn power_cuts_at_every_operation_lose_nothing() {
    let layouts = layouts();
    for (layout, drive) in [(0, None), (0, Some(1)), (2, None), (2, Some(2)), (3, Some(0))] {
        let cuts = (1..).take_while(|at| cut_once(*at, 20 + at, drive, &layouts[layout])).count();
        assert!(cuts > 20, "{cuts}");
    }
}

fn made(layout: Layout) -> Rig {
    let rig = Rig::new(false);
    let array = rig.create(layout).unwrap();
    array.set_len(9 * MIB).unwrap();
    rig
}

#[test]
fn a_long_journal_and_many_extents_are_found_again() {
    let rig = made(Layout::Stripe { unit: MIB });
    for round in 0..5u64 {
        let array = rig.open().unwrap();
        for step in 0..=40 + round {
            array.set_len((3 + (step * 7 + round) % 20) * MIB).unwrap();
        }
        let (len, map) = (array.len(), array.map());
        drop(array);
        let read = Array::open(given(&rig.devices), OpenHow::Reading).unwrap();
        assert_eq!((read.len(), read.map()), (len, map));
        assert!(read.set_len(len + MIB).is_ok() && rig.open().unwrap().len() == len, "nothing is noted for reading");
    }
}

#[test]
fn a_drive_that_is_not_what_it_was_is_named() {
    let rig = made(Layout::Stripe { unit: MIB });
    let missing = |i: usize| {
        let mut drives = given(&rig.devices);
        drives[i].device = Err("there is no such file".into());
        drives
    };
    let told = refused(missing(1));
    assert!(told.contains("drive.1 (drive 1 of 3): there is no such file") && told.contains("bring it back"), "{told}");
    let told = refused(given(&rig.devices[..2]));
    assert!(told.contains("has 3 drives, and 2 are given"), "{told}");
    let swapped = [1, 0, 2].map(|i| rig.devices[i].clone());
    let told = refused(given(&swapped));
    assert!(told.contains("drive.0 is drive 1 of the array") && told.contains("swap"), "{told}");
    let other = Rig::new(true);
    let new = |device: &Arc<dyn Device>| NewDrive { device: device.clone(), blank: true };
    let drives = other.devices.iter().map(new).collect();
    Array::create([8; 16], drives, 2 * MIB, Layout::Stripe { unit: MIB }).unwrap();
    let foreign = [rig.devices[0].clone(), other.devices[1].clone(), rig.devices[2].clone()];
    let told = refused(given(&foreign));
    assert!(told.contains("drive.1 is of another array"), "{told}");
    let empty = [rig.devices[0].clone(), rig.devices[1].clone(), MemDevice::new(15 * MIB)];
    let told = refused(given(&empty));
    assert!(told.contains("drive.2 is not of the array: it is empty"), "{told}");
    let cut = rig.drives[2].clone_image();
    cut.set_len(10 * MIB).unwrap();
    let told = refused(given(&[rig.devices[0].clone(), rig.devices[1].clone(), cut]));
    assert!(told.contains("drive.2 has 10485760 bytes") && told.contains("cut"), "{told}");
    rig.open().unwrap();
}

#[test]
fn after_a_change_of_the_map_that_failed_nothing_is_promised_and_the_cause_is_said() {
    let rig = made(Layout::Stripe { unit: MIB });
    let array = rig.open().unwrap();
    rig.supplies[1].cut_at(1, 5);
    array.set_len(20 * MIB).unwrap_err();
    for promise in [flush(&*array), write_at(&*array, 0, &[1; 4096], true)] {
        let told = promise.unwrap_err().to_string();
        assert!(told.contains("change of the array's map failed") && told.contains("lost power"), "{told}");
    }
    write_at(&*array, 0, &[1; 4096], false).unwrap();
}

#[test]
fn an_older_drive_is_told_from_a_crash() {
    let rig = made(Layout::Stripe { unit: MIB });
    let images: Vec<Arc<MemDevice>> = rig.drives.iter().map(|drive| drive.clone_image()).collect();
    let old = |i: usize| {
        let mut devices: Vec<Arc<dyn Device>> = rig.devices.clone();
        devices[i] = images[i].clone_image();
        given(&devices)
    };
    // One checkpoint is enough.
    rig.open().unwrap();
    for i in 0..3 {
        let told = refused(old(i));
        assert!(told.contains(&format!("drive.{i} is older")), "{told}");
    }
    // Two copies that went on by themselves.
    let copies: Vec<Arc<dyn Device>> = rig.drives.iter().map(|drive| drive.clone_image() as _).collect();
    Array::open(given(&copies), OpenHow::Writing).unwrap();
    rig.open().unwrap();
    let mixed = [copies[0].clone(), rig.devices[1].clone(), rig.devices[2].clone()];
    let told = refused(given(&mixed));
    assert!(told.contains("went different ways"), "{told}");
}

#[test]
fn damage_of_the_tables_is_found_and_put_right_where_others_have_them() {
    let rig = made(Layout::Stripe { unit: MIB });
    let array = rig.open().unwrap();
    let (len, map) = (array.len(), array.map());
    drop(array);
    for i in 0..3 {
        // A byte of each block, not the same one.
        for at in (0..MIB).step_by(BLOCK as usize + 24) {
            let copy: Vec<Arc<MemDevice>> = rig.drives.iter().map(|drive| drive.clone_image()).collect();
            copy[i].flip_bit(at, (at / 512 % 8) as u8);
            let devices: Vec<Arc<dyn Device>> = copy.into_iter().map(|drive| drive as _).collect();
            match Array::open(given(&devices), OpenHow::Writing) {
                Ok(array) => assert_eq!((array.len(), array.map()), (len, map.clone()), "{at}"),
                Err(e) => assert!(at < 2 * BLOCK && e.to_string().contains(&format!("drive.{i}")), "{at}: {e}"),
            }
        }
    }
}

#[test]
fn creation_says_what_it_cannot_use() {
    let rig = Rig::new(true);
    let refused = |devices: &[Arc<dyn Device>], extent| {
        let new = |device: &Arc<dyn Device>| NewDrive { device: device.clone(), blank: false };
        Array::create([7; 16], devices.iter().map(new).collect(), extent, Layout::Stripe { unit: MIB })
            .err()
            .unwrap()
            .to_string()
    };
    assert!(refused(&rig.devices[..1], 2 * MIB).contains("at least two drives"));
    assert!(refused(&rig.devices, 3 * MIB).contains("less than four extents"));
    let of = |mib: u64| MemDevice::new(mib * MIB) as Arc<dyn Device>;
    let told = refused(&[of(64), of(8)], 2 * MIB);
    assert!(told.contains("8388608 bytes, less than four extents and the array's tables"), "{told}");
    assert!(told.contains("give it 9437184 bytes or more"), "{told}");
    let new = |device| NewDrive { device, blank: true };
    let layout = Layout::Stripe { unit: MIB };
    let array = Array::create([7; 16], vec![new(of(64)), new(of(9))], 2 * MIB, layout).unwrap();
    assert_eq!(array.usage()[1], (0, 4), "so many bytes are enough");
    // The tables of large drives are larger, and a small one has them too.
    let told = refused(&[of(1 << 20), of(8)], 2 * MIB);
    assert!(!told.contains("9437184") && told.contains("bytes or more"), "{told}");
    let again = Faulty::new(rig.drives[0].clone(), FaultPlan::new(2));
    let twice = [rig.devices[0].clone(), rig.devices[1].clone(), again as Arc<dyn Device>];
    assert!(refused(&twice, 2 * MIB).contains("the same drive"), "also where two handles lead to it");
}

/// Puts eight bytes into the newest superblock of a drive, or a block of its journal, under a right checksum.
fn overwrite(drive: &Arc<dyn Device>, at: u64, (within, bytes): (usize, &[u8])) {
    let mut block = AlignedBuf::new(BLOCK as usize);
    read_at(&**drive, at, &mut block).unwrap();
    block[within..within + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    write_at(&**drive, at, &block, true).unwrap();
}

fn noted() -> (Rig, Vec<records::Found>) {
    let rig = Rig::new(true);
    let array = rig.create(Layout::Stripe { unit: 64 << 10 }).unwrap();
    array.set_len(10 * MIB).unwrap();
    drop(array);
    let found = rig.devices.iter().map(|drive| records::find(&**drive).ok().expect("it is there")).collect();
    (rig, found)
}

#[test]
fn a_superblock_that_says_what_cannot_be_is_none() {
    let (rig, found) = noted();
    let mut good = AlignedBuf::new(BLOCK as usize);
    read_at(&*rig.devices[0], format::Shape::super_at(found[0].sup.sequence), &mut good).unwrap();
    let with = |changes: &[(usize, &[u8])]| {
        let mut block = good.to_vec();
        changes.iter().for_each(|(at, bytes)| block[*at..at + bytes.len()].copy_from_slice(bytes));
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        format::Super::decode(&block)
    };
    assert!(with(&[]).is_some(), "nothing is changed");
    let (sequence, data_at, generation, most) = (16, 96, 120, u64::MAX.to_le_bytes());
    for at in [sequence, data_at, generation] {
        assert_eq!(with(&[(at, &most)]), None, "the largest number at byte {at}");
    }
    // A map that has room for so many extents, which the drives have not.
    let (map_blocks, extents) = (1u32 << 20, 1u32 << 27);
    let far = (3 * u64::from(map_blocks) * BLOCK).to_le_bytes();
    let room: [(usize, &[u8]); 2] = [(104, &map_blocks.to_le_bytes()), (data_at, &far)];
    assert!(with(&room).is_some());
    assert_eq!(with(&[room[0], room[1], (112, &extents.to_le_bytes())]), None, "no drive has slots for them");
}

#[test]
fn a_change_of_a_slot_that_there_cannot_be_is_damage() {
    let (rig, found) = noted();
    for (drive, found) in rig.devices.iter().zip(&found) {
        let journal = found.sup.shape.journal_at(found.sup.sequence);
        // The slot of the first entry of the first change, which follows the confirmation of the map.
        overwrite(drive, journal + BLOCK, (80 + 4, &u32::MAX.to_le_bytes()));
        let read = records::find(&**drive).ok().expect("the superblock is whole");
        assert!(read.map().is_none(), "no drive has such a slot");
    }
    refused(given(&rig.devices));
}
