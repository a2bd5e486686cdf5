//! Tables whose checksums are right and which say what cannot be: an error, or an array that can be used.

use super::super::format::{BLOCK as SIZE, Change, Generation, Super, encode_confirmed};
use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes before the slots.
const TABLES: usize = MIB as usize;

fn given(devices: &[Arc<dyn Device>]) -> Vec<Given> {
    let each = devices.iter().zip(0..);
    each.map(|(device, i)| Given { name: format!("drive.{i}"), device: Ok(device.clone()) }).collect()
}

/// Drives with an array that has some changes in its journal, and their tables.
fn made(layout: Layout) -> (Vec<Arc<dyn Device>>, Vec<AlignedBuf>) {
    let (_, devices) = memory(&[12, 9, 15]);
    let new = |device: &Arc<dyn Device>| NewDrive { device: device.clone(), blank: true };
    let array = Array::create([7; 16], devices.iter().map(new).collect(), 2 * MIB, layout).unwrap();
    for mib in [9, 3, 14] {
        array.set_len(mib * MIB).unwrap();
    }
    drop(array);
    let tables = devices.iter().map(|device| {
        let mut tables = AlignedBuf::new(TABLES);
        read_at(&**device, 0, &mut tables).unwrap();
        tables
    });
    let tables = tables.collect();
    (devices, tables)
}

fn seal(block: &mut [u8]) {
    let checksum = crc32c::crc32c(&block[4..]).to_le_bytes();
    block[..4].copy_from_slice(&checksum);
}

/// Opens the array in every way and uses it; whether it panics.
fn panics(devices: &[Arc<dyn Device>]) -> bool {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut without = given(devices);
        without[1].device = Err("there is no such file".into());
        let _ = Array::open_without(without);
        let _ = Array::open(given(devices), OpenHow::Reading);
        let Ok(array) = Array::open(given(devices), OpenHow::Writing) else { return };
        let mut block = AlignedBuf::new(BLOCK as usize);
        for at in (0..array.len().min(20 * MIB)).step_by(MIB as usize) {
            let _ = read_at(&*array, at, &mut block);
        }
        let _ = array.set_len(MIB).and_then(|()| array.set_len(8 * MIB));
    }));
    opened.is_err()
}

#[test]
fn whole_tables_that_say_what_cannot_be_are_errors() {
    const NUMBERS: [u64; 8] = [0, 1, 3, 255, 0xffff, u32::MAX as u64, 1 << 62, u64::MAX];
    for (n, layout) in layouts().into_iter().enumerate() {
        let (devices, tables) = made(layout);
        let used: Vec<usize> =
            (0..TABLES / SIZE).filter(|i| tables[0][i * SIZE..][..SIZE].iter().any(|b| *b != 0)).collect();
        let mut rng = Rng::from_seed(n as u64);
        for round in 0..300 {
            let mut damaged: Vec<AlignedBuf> = tables.iter().map(|t| AlignedBuf::copy_padded(t, SIZE)).collect();
            for _ in 0..=rng.below(2) {
                let block = used[rng.below(used.len() as u64) as usize] * SIZE;
                let (width, part) = ([2, 4, 8][rng.below(3) as usize], if rng.one_in(4) { 4000 } else { 200 });
                let at = block + 16 + rng.below(part) as usize / width * width;
                let number = NUMBERS[rng.below(NUMBERS.len() as u64) as usize].to_le_bytes();
                let drives = if rng.one_in(2) { 3 } else { 1 };
                for table in damaged.iter_mut().take(drives) {
                    table[at..at + width].copy_from_slice(&number[..width]);
                    seal(&mut table[block..block + SIZE]);
                }
            }
            for (device, table) in devices.iter().zip(&damaged) {
                write_at(&**device, 0, table, false).unwrap();
            }
            assert!(!panics(&devices), "layout {n}, round {round}");
        }
    }
}

/// The newest superblock of drive 0, and the byte at which its journal begins.
fn newest(table: &[u8]) -> (Super, usize) {
    let sup = table[..2 * SIZE].chunks(SIZE).filter_map(Super::decode).max_by_key(|sup| sup.sequence).unwrap();
    let journal = sup.shape.journal_at(sup.sequence) as usize;
    (sup, journal)
}

#[test]
fn a_journal_without_room_for_a_confirmation_is_one_to_begin_anew() {
    let (devices, mut tables) = made(Layout::Rodi { shares: vec![1.0; 3] });
    for (device, table) in devices.iter().zip(&mut tables) {
        let (sup, journal) = newest(table);
        for index in 0..sup.shape.journal_blocks {
            let generation = Generation { number: sup.generation.number + 1 + u64::from(index), tie: 5 };
            let change = Change { generation, sizes: sup.sizes, first: 0, entries: Vec::new(), touched: None };
            let block = change.encode(sup.sequence, index, &sup.shape.array);
            table[journal + index as usize * SIZE..][..SIZE].copy_from_slice(&block);
        }
        write_at(&**device, 0, table, false).unwrap();
    }
    assert!(!panics(&devices));
    assert_eq!(Array::open(given(&devices), OpenHow::Writing).unwrap().len(), 8 * MIB);
}

#[test]
fn a_journal_with_more_extents_than_a_map_has_room_for_is_damaged() {
    let (devices, mut tables) = made(Layout::Rodi { shares: vec![1.0; 3] });
    for (device, table) in devices.iter().zip(&mut tables) {
        let (mut sup, _) = newest(table);
        // A map of one block: the journal comes earlier.
        sup.shape.map_blocks = 1;
        sup.sizes = super::super::format::Sizes { extents: 0, len: 0, zero_from: 0 };
        let at = (sup.sequence % 2) as usize * SIZE;
        table[2 * SIZE..].fill(0);
        table[at..at + SIZE].copy_from_slice(&sup.encode());
        let (sup, journal) = newest(table);
        let (array, room, mut generation) = (sup.shape.array, sup.shape.map_room(), sup.generation);
        let entry = super::super::map::Entry::whole(super::super::map::Place { drive: 0, slot: 0 });
        for (index, (first, count)) in [(0, room - 9), (room - 9, 10)].into_iter().enumerate() {
            generation = Generation { number: generation.number + 1, tie: 5 };
            let extents = (first + count) as u32;
            let sizes = super::super::format::Sizes { extents, len: MIB, zero_from: MIB };
            let entries = vec![entry; count];
            let change = Change { generation, sizes, first: first as u32, entries, touched: None };
            let block = change.encode(sup.sequence, index as u32, &array);
            table[journal + index * SIZE..][..SIZE].copy_from_slice(&block);
        }
        table[journal + 2 * SIZE..][..SIZE].copy_from_slice(&encode_confirmed(generation, sup.sequence, 2, &array));
        write_at(&**device, 0, table, false).unwrap();
    }
    assert!(!panics(&devices));
    let told = Array::open(given(&devices), OpenHow::Writing).err().expect("it is refused").to_string();
    assert!(told.contains("damaged on every drive"), "{told}");
}

#[test]
fn a_superblock_with_more_slots_than_the_map_has_room_for_is_damaged() {
    let (devices, mut tables) = made(Layout::Rodi { shares: vec![1.0; 3] });
    let room = newest(&tables[0]).0.shape.map_room() as u32;
    for (device, table) in devices.iter().zip(&mut tables) {
        // Of drive 1, in both superblocks.
        for block in table[..2 * SIZE].chunks_mut(SIZE) {
            block[152 + 40 + 16..][..4].copy_from_slice(&(room + 1).to_le_bytes());
            seal(block);
        }
        write_at(&**device, 0, table, false).unwrap();
    }
    let mut without = given(&devices);
    without[1].device = Err("there is no such file".into());
    let refused = |opened: Result<(), VolumeError>| opened.expect_err("drive 1 cannot have them").to_string();
    let told = [
        refused(Array::open(given(&devices), OpenHow::Reading).map(drop)),
        refused(Array::open_without(without).map(drop)),
    ];
    for told in told {
        assert!(told.contains("drive.0") && told.contains("superblocks are damaged"), "{told}");
    }
}

#[test]
fn a_map_that_is_not_there_is_no_reason_to_read_all_that_it_would_be() {
    let (_, tables) = made(Layout::Rodi { shares: vec![1.0; 3] });
    let mut sup = newest(&tables[0]).0;
    let drive: Arc<dyn Device> = MemDevice::new(64 * MIB);
    (sup.shape.map_blocks, sup.shape.data_at) = (7000, 60 * MIB);
    sup.shape.drives[1].slots = 1_000_000;
    sup.sizes.extents = 1_000_000;
    write_at(&*drive, (sup.sequence % 2) * SIZE as u64, &AlignedBuf::copy_padded(&sup.encode(), SIZE), false).unwrap();
    let member = super::super::membership(&*drive).unwrap();
    assert_eq!(member.map(|member| member.drives), Some(3), "the superblock can be read");
    let read = drive.stats().read.bytes;
    assert!(read < 2 * MIB, "{read} bytes were read");
}
