//! Maps on the flash, and records of a superblock, that say what cannot be: an error, or regions that can be used.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use varve_device::flash::{Page, RawFlash, RawIo, RawOp};

const SPARE: usize = 16;
/// What a page of the map begins with.
const MAGIC: [u8; 4] = 0x5641_524d_u32.to_le_bytes();

fn now(op: RawOp<'_>) -> RawIo<'_> {
    RawIo { op, after: 0 }
}

/// A page's data and spare area; none where it cannot be read.
fn read(raw: &RawModel, page: Page) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut data, mut spare) = (vec![0; PAGE], vec![0; SPARE]);
    let mut ticket = raw.submit(&[now(RawOp::Read { page, data: PAGE, spare: SPARE })]);
    ticket.read(0, &mut data, &mut spare).ok().map(|()| (data, spare))
}

/// Erases a block and programs it again with what `change` made of its pages.
fn rewrite(raw: &RawModel, block: u32, change: impl FnOnce(&mut Vec<(Vec<u8>, Vec<u8>)>)) {
    let mut pages = (0..raw.block(block).next).map_while(|page| read(raw, Page { block, page })).collect();
    change(&mut pages);
    raw.submit(&[now(RawOp::Erase { block })]).wait(0).unwrap();
    for ((data, spare), page) in pages.iter().zip(0..) {
        let page = Page { block, page };
        raw.submit(&[now(RawOp::Program { page, data, spare })]).wait(0).unwrap();
    }
}

fn is_of_map(raw: &RawModel, block: u32) -> bool {
    read(raw, Page { block, page: 0 }).is_some_and(|(data, _)| data[..4] == MAGIC)
}

#[test]
fn a_map_that_says_what_cannot_be_is_an_error() {
    in_sim(3, || {
        const NUMBERS: [u32; 9] = [0, 1, 2, 70, 400, 1 << 16, 1 << 31, u32::MAX - 1, u32::MAX];
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        let mut rng = Rng::from_seed(5);
        for step in 1..1500 {
            put(&*flash, rng.below(500), step).unwrap();
        }
        flash.submit(vec![Io::trim(30 * PAGE as u64, 10 * PAGE)]).wait_all().unwrap();
        varve_device::flush(&*flash).unwrap();
        let layout = flash.layout().clone();
        let blocks: Vec<u32> = (0..raw.geometry().blocks()).filter(|block| raw.block(*block).next > 0).collect();
        let maps: Vec<u32> = blocks.iter().copied().filter(|block| is_of_map(&raw, *block)).collect();
        assert!(maps.len() > 1 && maps.len() < blocks.len(), "{maps:?}");
        let (mut refused, mut rounds) = (0, 0);
        for round in 0..400 {
            let raw = raw.fork();
            let some = if rng.one_in(4) { &blocks } else { &maps };
            let block = some[rng.below(some.len() as u64) as usize];
            rewrite(&raw, block, |pages| {
                let page = rng.below(pages.len() as u64) as usize;
                let number = NUMBERS[rng.below(NUMBERS.len() as u64) as usize].to_le_bytes();
                let (data, spare) = &mut pages[page];
                match rng.below(4) {
                    0 => spare[4 * rng.below(4) as usize..][..4].copy_from_slice(&number),
                    // Header, table and trims are at the beginning.
                    1 => data[4 * rng.below(PAGE as u64 / 4) as usize..][..4].copy_from_slice(&number),
                    _ => data[4 * rng.below(24) as usize..][..4].copy_from_slice(&number),
                }
            });
            rounds += 1;
            let opened = catch_unwind(AssertUnwindSafe(|| {
                let Ok(again) = NativeFlash::open(raw.clone(), &layout, &Faults::default()) else { return false };
                for at in 0..500 {
                    let mut bytes = vec![0; PAGE];
                    let _ = read_at(&*again, at * PAGE as u64, &mut bytes);
                }
                (0..200).for_each(|at| put(&*again, at * 7 % 500, 9).unwrap());
                true
            }));
            refused += usize::from(!opened.unwrap_or_else(|_| panic!("round {round}, block {block}")));
        }
        assert!(refused > 20 && refused < rounds, "{refused} of {rounds} refused");
    });
}

#[test]
fn a_record_with_numbers_that_cannot_be_is_an_error() {
    in_sim(4, || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        put(&*flash, 7, 7).unwrap();
        varve_device::flush(&*flash).unwrap();
        let record = flash.layout().encode(&flash.geometry()).unwrap();
        let mut rng = Rng::from_seed(6);
        for round in 0..3000 {
            let mut damaged = record.clone();
            for _ in 0..=rng.below(2) {
                let at = 2 + rng.below(damaged.len() as u64 - 2) as usize;
                damaged[at] = [0, 1, 0x7f, 0x80, 0xff, rng.next_u64() as u8][rng.below(6) as usize];
            }
            let opened = catch_unwind(AssertUnwindSafe(|| {
                let Ok((layout, shape)) = FlashLayout::decode(&damaged) else { return };
                if shape == raw.geometry() {
                    let _ = NativeFlash::open(raw.fork(), &layout, &Faults::default());
                }
            }));
            assert!(opened.is_ok(), "round {round}: {damaged:?}");
        }
    });
}
