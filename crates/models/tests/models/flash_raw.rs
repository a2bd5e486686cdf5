//! Raw flash that is waited for: batches, marks, rules, power cuts, forks.

use std::time::Duration;
use varve_device::flash::{FlashError, Geometry, Page, RawFlash, RawIo, RawOp};
use varve_models::flash::{FaultsEvery, FlashConfig, RawModel};
use varve_models::{PowerSupply, Powered};
use varve_rt::sim::{Config, run};

/// Two chips of 8 blocks with 16 pages each: reads take 25, programs 200, erases 1500 us, a page on the bus 100 us.
fn config() -> FlashConfig {
    let one = FlashConfig::one_plane(8, 16);
    FlashConfig { geometry: Geometry { channels: 2, ..one.geometry }, ..one }
}

fn at(block: u32, page: u32) -> Page {
    Page { block, page }
}

fn program(block: u32, page: u32, data: &[u8]) -> RawOp<'_> {
    RawOp::Program { page: at(block, page), data, spare: &[] }
}

fn now(op: RawOp<'_>) -> RawIo<'_> {
    RawIo { op, after: 0 }
}

fn in_sim(f: impl FnOnce() + Send + 'static) {
    run(Config::default(), f).result.unwrap();
}

fn read(raw: &RawModel, page: Page) -> Result<u8, FlashError> {
    let (mut data, mut spare) = ([0; 4], [0; 2]);
    let mut ticket = raw.submit(&[now(RawOp::Read { page, data: 4, spare: 2 })]);
    ticket.read(0, &mut data, &mut spare)?;
    assert_eq!(data, [data[0]; 4]);
    Ok(data[0])
}

#[test]
fn chips_work_at_the_same_time_and_each_in_order() {
    in_sim(|| {
        let raw = RawModel::new(&config()).unwrap();
        let page = vec![7; 4096];
        let start = varve_rt::now();
        let mut ticket = raw.submit(&[
            now(program(0, 0, &page)),
            now(program(8, 0, &page)),
            now(RawOp::Copy { from: at(0, 0), to: at(1, 0), spare: &[3, 3] }),
            now(RawOp::Append { page: at(8, 0), data: (4, &[0, 1]), spare: (0, &[1]) }),
        ]);
        assert!(!ticket.try_done(0));
        ticket.wait(1).unwrap();
        assert_eq!(start.elapsed(), Duration::from_micros(300), "chips do not wait for each other");
        assert!(ticket.try_done(0) && !ticket.try_done(2));
        ticket.wait(2).unwrap();
        // Read 25, over the bus and back with two spare bytes, program.
        assert!(start.elapsed() > Duration::from_micros(725), "a copy comes after the program of its chip");
        ticket.wait(3).unwrap();
        assert_eq!(read(&raw, at(1, 0)), Ok(7));
        assert_eq!(read(&raw, at(1, 1)), Ok(0xff), "an erased page is all ones");
    });
}

#[test]
fn what_waits_for_a_mark_begins_when_that_is_done() {
    in_sim(|| {
        let raw = RawModel::new(&config()).unwrap();
        let page = vec![1; 4096];
        raw.submit(&[now(program(8, 0, &page))]).wait(0).unwrap();
        let mut first = raw.submit(&[now(program(0, 0, &page))]);
        let mark = first.given(0).unwrap().end;
        // On another chip, which has nothing to do.
        let erase = raw.submit(&[RawIo { op: RawOp::Erase { block: 8 }, after: mark }]).given(0).unwrap();
        assert!(erase.start >= mark, "{erase:?} waits for {mark}");
        raw.fence(mark).wait(0).unwrap();
        assert!(first.try_done(0), "a fence is done when what is before it is");
        first.wait(0).unwrap();
    });
}

#[test]
fn rules_and_counted_faults_are_answered_at_once() {
    in_sim(|| {
        let mut config = config();
        config.faults = FaultsEvery { program: 4, ..FaultsEvery::default() };
        let raw = RawModel::new(&config).unwrap();
        let data = [0; 16];
        let ticket = raw.submit(&[
            now(program(0, 1, &data)),
            now(program(0, 0, &data)),
            now(RawOp::Append { page: at(0, 0), data: (0, &[1]), spare: (0, &[]) }),
            now(program(99, 0, &data)),
            now(RawOp::Read { page: at(0, 0), data: 5000, spare: 0 }),
        ]);
        assert_eq!(ticket.given(0).unwrap_err(), FlashError::OutOfOrder { block: 0, page: 1, expected: 0 });
        assert!(ticket.given(1).is_ok());
        assert_eq!(ticket.given(2).unwrap_err(), FlashError::SetsBits { block: 0, page: 0, byte: 0 });
        assert!(matches!(ticket.given(3), Err(FlashError::NoSuchPage { block: 99, .. })));
        assert!(matches!(ticket.given(4), Err(FlashError::DoesNotFit { bytes: 5000, .. })));
        let more: Vec<_> = (1..4).map(|page| now(program(0, page, &data))).collect();
        let mut ticket = raw.submit(&more);
        assert_eq!(ticket.wait(2), Err(FlashError::ProgramFailed { block: 0, page: 3 }), "the fourth program");
        assert_eq!(raw.block(0).next, 4, "a failed program uses its page up");
    });
}

#[test]
fn a_cut_keeps_what_was_done_and_forgets_what_had_not_begun() {
    in_sim(|| {
        let supply = PowerSupply::new();
        let raw = RawModel::fed(&config(), &supply).unwrap();
        let page = vec![5; 4096];
        let mut done = raw.submit(&[now(program(0, 0, &page))]);
        done.wait(0).unwrap();
        let mut ticket = raw.submit(&[now(program(0, 1, &page)), now(program(0, 2, &page))]);
        varve_rt::sleep(Duration::from_micros(150));
        supply.cut(3);
        assert_eq!(ticket.wait(0), Err(FlashError::PowerLost));
        assert_eq!(raw.submit(&[now(program(1, 0, &page))]).given(0), Err(FlashError::PowerLost));
        assert_eq!(raw.fence(1).wait(0), Err(FlashError::PowerLost));
        supply.restore();
        assert_eq!(raw.block(0).next, 2, "the third program had not begun");
        assert_eq!(read(&raw, at(0, 0)), Ok(5));
        assert_eq!(read(&raw, at(0, 1)), Err(FlashError::Uncorrectable { block: 0, page: 1 }), "torn");
        assert_eq!(read(&raw, at(0, 2)), Ok(0xff));
    });
}

#[test]
fn a_supply_cuts_in_the_operation_that_was_ordered() {
    in_sim(|| {
        let supply = PowerSupply::new();
        let raw = RawModel::fed(&config(), &supply).unwrap();
        supply.cut_at(3, 9);
        for block in 0..2 {
            assert!(raw.submit(&[now(RawOp::Erase { block })]).wait(0).is_ok());
        }
        assert_eq!(raw.submit(&[now(RawOp::Erase { block: 2 })]).wait(0), Err(FlashError::PowerLost));
        assert!(!supply.is_on() && supply.cuts() == 1);
    });
}

#[test]
fn forks_part_and_real_time_is_paced() {
    let raw = RawModel::new(&config()).unwrap();
    let started = varve_rt::now();
    raw.submit(&[now(program(0, 0, &[9; 4]))]).wait(0).unwrap();
    assert!(started.elapsed() >= Duration::from_micros(200), "on a thread a program takes its time");
    let copy = raw.fork();
    copy.submit(&[now(program(0, 1, &[8; 4]))]).wait(0).unwrap();
    assert_eq!((read(&copy, at(0, 0)), read(&copy, at(0, 1))), (Ok(9), Ok(8)));
    assert_eq!(read(&raw, at(0, 1)), Ok(0xff), "the origin has no second page");
    assert_eq!(copy.counts().programs, 1, "a fork counts anew");
    copy.power_cut(1);
    copy.restore_power();
    assert_eq!(read(&copy, at(0, 1)), Ok(8));
}
