//! Native flash over the modelled array: bytes, power cuts, full regions, regions side by side.

mod appends;
mod damage;

use super::{FlashLayout, NativeFlash, RegionConfig};
use crate::VolumeError;
use varve_device::flash::{CellMode, Geometry};
use varve_device::{AlignedBuf, Device, DeviceError, Faults, Io, Mistake, flush, read_at, write_at};
use varve_models::PowerSupply;
use varve_models::flash::{FlashConfig, RawModel};
use varve_rt::Rng;
use varve_rt::sim::{Config, run};

const PAGE: usize = 4096;

/// Four chips of 24 blocks with 16 pages each.
fn config() -> FlashConfig {
    let one = FlashConfig::one_plane(24, 16);
    let geometry = Geometry { channels: 2, chips_per_channel: 2, ..one.geometry };
    FlashConfig { geometry, endurance: u32::MAX, ..one }
}

fn region(chips: impl IntoIterator<Item = u32>, pages: u64) -> RegionConfig {
    RegionConfig { pages: Some(pages), ..RegionConfig::of(chips) }
}

fn two() -> FlashLayout {
    FlashLayout { regions: vec![region([0, 3], 300), region([1, 2], 200)] }
}

fn page(fill: u64) -> Vec<u8> {
    fill.to_le_bytes().repeat(PAGE / 8)
}

fn put(device: &dyn Device, at: u64, fill: u64) -> Result<(), DeviceError> {
    write_at(device, at * PAGE as u64, &page(fill), false)
}

fn get(device: &dyn Device, at: u64) -> u64 {
    let mut bytes = vec![0; PAGE];
    read_at(device, at * PAGE as u64, &mut bytes).unwrap();
    assert!(bytes.chunks(8).all(|word| word == &bytes[..8]), "page {at} is of one piece");
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn in_sim<T: Send + 'static>(seed: u64, f: impl FnOnce() -> T + Send + 'static) -> T {
    run(Config { seed, ..Config::default() }, f).result.unwrap()
}

#[test]
fn regions_keep_their_pages_through_collection_and_openings() {
    in_sim(1, || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        assert_eq!(flash.capacity(), 500 * PAGE as u64);
        let mut rng = Rng::from_seed(5);
        let mut model = vec![0; 500];
        for step in 1..6000 {
            let at = rng.below(500);
            put(&*flash, at, step).unwrap();
            model[at as usize] = step;
        }
        varve_device::flush(&*flash).unwrap();
        let moved: Vec<u64> = flash.region_stats().iter().map(|s| s.gc_copies).collect();
        assert!(moved.iter().all(|n| *n > 0), "both regions collected garbage: {moved:?}");
        flash.verify();
        let layout = flash.layout().clone();
        let again = NativeFlash::open(raw.fork(), &layout, &Faults::default()).unwrap();
        (0..500).for_each(|at| assert_eq!(get(&*again, at), model[at as usize], "page {at} of the fork"));
        put(&*again, 7, 1 << 40).unwrap();
        assert_eq!(get(&*flash, 7), model[7], "a fork and its origin part");
    });
}

#[test]
fn a_region_does_not_touch_the_chips_of_another() {
    in_sim(2, || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        let rest = |chips: [u32; 2]| -> Vec<_> {
            use varve_device::flash::RawFlash;
            chips.iter().flat_map(|chip| chip * 24..(chip + 1) * 24).map(|b| raw.block(b)).collect()
        };
        let before = rest([1, 2]);
        (0..2000).for_each(|step| put(&*flash, step % 300, step).unwrap());
        assert!(flash.region_stats()[0].erases > 0);
        assert_eq!(rest([1, 2]), before, "the other region's blocks are as they were");
        assert_ne!(rest([0, 3]), [before.clone()].concat());
    });
}

#[test]
fn chips_in_two_modes_are_no_region_and_the_mode_must_be_the_chips() {
    in_sim(3, || {
        let mut config = config();
        config.timing.read_us.push(50.0);
        config.timing.program_us.push(900.0);
        let raw = RawModel::new(&config).unwrap();
        raw.set_mode(1, CellMode::OddMlc).unwrap();
        let why = |regions| match NativeFlash::create(raw.clone(), &FlashLayout { regions }) {
            Err(VolumeError::Options(why)) => why,
            other => panic!("{:?}", other.err()),
        };
        assert!(why(vec![region([0, 1], 100)]).contains("chips in one mode"));
        assert!(why(vec![region([1], 100)]).contains("regions.mode = SLC"));
        assert!(why(vec![region([0], 350)]).contains("ftl.logical_pages = 350"), "no room to collect");
    });
}

#[test]
fn more_than_the_capacity_is_no_space() {
    in_sim(4, || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        flash.set_len(0).unwrap();
        flash.set_len(flash.capacity()).unwrap();
        assert!(matches!(flash.set_len(flash.capacity() + 1), Err(DeviceError::NoSpace { .. })));
        put(&*flash, 499, 3).unwrap();
        flash.set_len(499 * PAGE as u64).unwrap();
        flash.set_len(flash.capacity()).unwrap();
        assert_eq!(get(&*flash, 499), 0, "what was cut off is gone");
        flash.set_len(350 * PAGE as u64).unwrap();
        let again = NativeFlash::open(raw.fork(), flash.layout(), &Faults::default()).unwrap();
        assert_eq!(again.len(), 350 * PAGE as u64, "an opening finds the length");
        flash.set_len(flash.capacity()).unwrap();
        let again = NativeFlash::open(raw.fork(), flash.layout(), &Faults::default()).unwrap();
        assert_eq!(again.len(), flash.capacity(), "also where nothing was written");
        assert!(matches!(put(&*flash, 500, 1), Err(DeviceError::OutOfRange { .. })));
    });
}

/// Works under power cuts at operations of the flash; what is found wrong first.
fn cuts(seed: u64, faults: Option<Mistake>) -> Result<u64, String> {
    let faults: Faults = faults.into();
    let work = move || {
        let supply = PowerSupply::new();
        let mut config = config();
        (config.faults.program, config.faults.erase) = ([0, 701][seed as usize % 2], [0, 61][seed as usize / 2 % 2]);
        let raw = RawModel::fed(&config, &supply).unwrap();
        let mut flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        let (layout, mut rng) = (flash.layout().clone(), Rng::from_seed(seed));
        // The last version that must be there, and the one that may be.
        let mut model = vec![(0, 0); 500];
        let mut step = 0;
        for _ in 0..12 {
            supply.cut_at(supply.ops() + rng.between(1, 2500), rng.next_u64());
            while supply.is_on() {
                step += 1;
                let batch: Vec<(u64, AlignedBuf)> = (0..rng.between(1, 8))
                    .map(|_| rng.below(500))
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .map(|at| (at, filled(step << 16 | at)))
                    .collect();
                batch.iter().for_each(|(at, _)| model[*at as usize].1 = step << 16 | at);
                // SAFETY: the batch lives until its ticket was waited for.
                let io = |(at, b): &(u64, AlignedBuf)| unsafe { Io::write(at * PAGE as u64, b.as_ptr(), PAGE, false) };
                let mut ticket = flash.submit(batch.iter().map(io).collect());
                for (i, (at, _)) in batch.iter().enumerate() {
                    if ticket.wait(i).is_ok() {
                        model[*at as usize].0 = step << 16 | at;
                    }
                }
                if step % 50 == 0 && supply.is_on() {
                    let _ = flush(&*flash);
                }
            }
            loop {
                supply.restore();
                // Every other opening is cut too.
                if rng.one_in(2) {
                    supply.cut_at(supply.ops() + rng.between(1, 1500), rng.next_u64());
                }
                match NativeFlash::open(raw.clone(), &layout, &faults) {
                    Ok(open) if supply.is_on() && open.set_len(open.capacity()).is_ok() => {
                        flash = open;
                        break;
                    }
                    Err(VolumeError::Device(DeviceError::PowerLost)) | Ok(_) => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
            supply.cut_at(0, 0);
            for (at, (must, may)) in (0..).zip(&mut model) {
                let found = get(&*flash, at);
                if found != *must && found != *may {
                    return Err(format!("page {at}: {found:#x}, not {must:#x} nor {may:#x}"));
                }
                (*must, *may) = (found, found);
            }
        }
        Ok(step)
    };
    // A page that cannot be read, or a map that does not hold together, ends in a panic.
    run(Config { seed, ..Config::default() }, work).result.map_err(|failure| failure.to_string())?
}

fn filled(fill: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(PAGE);
    buf.copy_from_slice(&page(fill));
    buf
}

#[test]
fn power_cuts_lose_nothing_and_bring_nothing_back() {
    let steps: u64 = (0..40).map(|seed| cuts(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(steps > 1000, "the cuts came while it worked: {steps} steps");
}

#[test]
fn mistakes_of_the_map_are_seen() {
    for mistake in [Mistake::FlashErasedEarly, Mistake::FlashNoScan, Mistake::FlashNoNumbers] {
        let found = (0..60).find_map(|seed| cuts(seed, Some(mistake)).err());
        assert!(found.is_some(), "{} is not seen", mistake.name());
    }
}

/// A database that forgets its last pages still has as many when it is opened again.
#[test]
fn forgetting_the_last_page_leaves_the_length() {
    in_sim(9, || {
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &two()).unwrap();
        flash.set_len(40 * PAGE as u64).unwrap();
        (0..40).for_each(|at| put(&*flash, at, at + 1).unwrap());
        flash.submit(vec![Io::trim(30 * PAGE as u64, 10 * PAGE)]).wait_all().unwrap();
        flush(&*flash).unwrap();
        assert_eq!((get(&*flash, 29), get(&*flash, 30), get(&*flash, 39)), (30, 0, 0));
        let again = NativeFlash::open(raw.fork(), flash.layout(), &Faults::default()).unwrap();
        assert_eq!(again.len(), 40 * PAGE as u64);
        assert_eq!((get(&*again, 29), get(&*again, 39)), (30, 0));
    });
}
