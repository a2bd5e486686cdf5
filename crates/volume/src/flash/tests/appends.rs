//! Delta records under power cuts, collection and openings: each page is as its last change left it, or the one that
//! was interrupted.

use super::{PAGE, config};
use crate::VolumeError;
use crate::flash::{FlashLayout, NativeFlash, RegionConfig};
use varve_device::{Device, DeviceError, Faults, Mistake, read_at, write_at};
use varve_models::PowerSupply;
use varve_models::flash::RawModel;
use varve_rt::Rng;
use varve_rt::sim::{Config, run};

const PAGES: u64 = 300;

fn layout(merge: bool) -> FlashLayout {
    let region = RegionConfig { pages: Some(PAGES), n: 3, m: 24, merge, ..RegionConfig::of([0, 1, 2]) };
    FlashLayout { regions: vec![region] }
}

/// What a page must be, and what it may be where a change was interrupted.
#[derive(Clone)]
struct Known {
    must: Vec<u8>,
    may: Vec<u8>,
}

/// Changes some bytes of a page before its room for records; the first four are a checksum of the others.
fn changed(page: &[u8], rng: &mut Rng) -> (Vec<u8>, Vec<u16>) {
    let mut page = page.to_vec();
    let end = (PAGE - 3 * 24) as u64;
    let at: std::collections::BTreeSet<u16> = (0..rng.between(0, 8)).map(|_| rng.between(4, end - 1) as u16).collect();
    at.iter().for_each(|at| page[usize::from(*at)] = rng.next_u64() as u8);
    let sum = crc32c::crc32c(&page[4..]).to_le_bytes();
    page[..4].copy_from_slice(&sum);
    (page, at.into_iter().collect())
}

/// Changes a page in place if it takes a record, else whole; whether that is done.
fn change(flash: &NativeFlash, at: u64, known: &mut Known, rng: &mut Rng) -> bool {
    let (page, offsets) = changed(&known.must, rng);
    known.may = page.clone();
    let done = match flash.append(at, &page, &offsets).filter(|_| !rng.one_in(5)) {
        Some(mut ticket) => ticket.wait(0).is_ok(),
        None => write_at(flash, at * PAGE as u64, &page, false).is_ok(),
    };
    if done {
        known.must = page;
    }
    done
}

/// Opens what a power cut left, however often it is cut again.
fn opened(
    supply: &PowerSupply,
    raw: &std::sync::Arc<RawModel>,
    of: &FlashLayout,
    faults: &Faults,
    rng: &mut Rng,
) -> Result<std::sync::Arc<NativeFlash>, String> {
    loop {
        supply.restore();
        if rng.one_in(2) {
            supply.cut_at(supply.ops() + rng.between(1, 900), rng.next_u64());
        }
        match NativeFlash::open(raw.clone(), of, faults) {
            Ok(open) if supply.is_on() && open.set_len(open.capacity()).is_ok() => {
                supply.cut_at(0, 0);
                return Ok(open);
            }
            Err(VolumeError::Device(DeviceError::PowerLost)) | Ok(_) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Works under power cuts; the appends that were made, or what is found wrong first.
fn cuts(seed: u64, faults: Option<Mistake>) -> Result<u64, String> {
    let faults: Faults = faults.into();
    let work = move || {
        let (supply, mut rng) = (PowerSupply::new(), Rng::from_seed(seed));
        let raw = RawModel::fed(&config(), &supply).unwrap();
        let mut flash = NativeFlash::create(raw.clone(), &layout(seed.is_multiple_of(2))).unwrap();
        let (of, blank) = (flash.layout().clone(), vec![0; PAGE]);
        let mut pages = vec![Known { must: blank.clone(), may: blank }; PAGES as usize];
        let mut appends = 0;
        for _ in 0..10 {
            supply.cut_at(supply.ops() + rng.between(1, 2500), rng.next_u64());
            while supply.is_on() {
                let at = rng.below(PAGES);
                if !change(&flash, at, &mut pages[at as usize], &mut rng) {
                    break;
                }
            }
            appends += flash.region_stats()[0].host_appends;
            flash = opened(&supply, &raw, &of, &faults, &mut rng)?;
            for (at, known) in (0..).zip(&mut pages) {
                let mut found = vec![0; PAGE];
                read_at(&*flash, at * PAGE as u64, &mut found).map_err(|e| e.to_string())?;
                if found != known.must && found != known.may {
                    return Err(format!("page {at} is neither as it was left nor as it was being made"));
                }
                (known.must, known.may) = (found.clone(), found);
            }
            flash.verify();
        }
        Ok(appends)
    };
    run(Config { seed, ..Config::default() }, work).result.map_err(|failure| failure.to_string())?
}

#[test]
fn appends_survive_power_cuts_or_did_not_happen() {
    let appends: u64 = (0..30).map(|seed| cuts(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(appends > 1000, "the cuts came while it appended: {appends} appends");
}

#[test]
fn a_torn_record_that_is_believed_is_seen() {
    assert!((0..200).any(|seed| cuts(seed, Some(Mistake::FlashTornRecords)).is_err()));
}

/// Once recovery is over, a record that is not whole is damage.
#[test]
fn a_record_that_no_power_cut_tore_is_damage() {
    run(Config::default(), || {
        use varve_device::flash::{RawFlash, RawIo, RawOp};
        let raw = RawModel::new(&config()).unwrap();
        let flash = NativeFlash::create(raw.clone(), &layout(true)).unwrap();
        let (page, _) = changed(&vec![0; PAGE], &mut Rng::from_seed(1));
        write_at(&*flash, 0, &page, false).unwrap();
        let (next, offsets) = changed(&page, &mut Rng::from_seed(2));
        flash.append(0, &next, &offsets).unwrap().wait(0).unwrap();
        // Some bits of the record are lost.
        let place = varve_device::flash::Page { block: 0, page: 0 };
        let found = (0..raw.geometry().blocks()).find(|block| {
            let op = RawOp::Append {
                page: varve_device::flash::Page { block: *block, ..place },
                data: (PAGE - 72, &[0]),
                spare: (16, &[]),
            };
            raw.submit(&[RawIo { op, after: 0 }]).given(0).is_ok()
        });
        assert!(found.is_some(), "the page is somewhere");
        let read = || {
            let mut bytes = vec![0; PAGE];
            read_at(&*flash, 0, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(), page, "while recovery may be under way, it is a change that did not happen");
        flash.is_whole();
        assert_ne!(read()[..4], page[..4], "then the page has a wrong checksum");
        assert_eq!(read()[4..], page[4..]);
    })
    .result
    .unwrap();
}
