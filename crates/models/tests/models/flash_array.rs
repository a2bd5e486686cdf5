//! The raw array: each rule refused by its own error, times of single operations, copies, modes.

use varve_models::flash::{
    CacheFull, CellMode, Contents, FaultsEvery, FlashConfig, FlashError, Nand, Page, SlcCache, Span, Suspend,
};

fn config(cell: CellMode) -> FlashConfig {
    let mut c = FlashConfig::one_plane(8, 16);
    c.geometry.channels = 2;
    c.geometry.chips_per_channel = 2;
    c.geometry.planes = 2;
    c.geometry.blocks_per_plane = 4;
    c.cell = cell;
    c.timing.read_us = vec![25.0, 50.0, 60.0, 70.0];
    c.timing.program_us = vec![200.0, 1200.0, 1500.0, 2000.0];
    c
}

fn nand(cell: CellMode) -> Nand {
    Nand::new(&config(cell), Contents::Full).unwrap()
}

fn at(block: u32, page: u32) -> Page {
    Page { block, page }
}

#[test]
fn first_programs_go_in_page_order() {
    let mut n = nand(CellMode::Slc);
    n.program(0, at(1, 0), b"a", b"").unwrap();
    let error = n.program(0, at(1, 2), b"a", b"").unwrap_err();
    assert_eq!(error, FlashError::OutOfOrder { block: 1, page: 2, expected: 1 });
    assert_eq!(
        n.program(0, at(1, 0), b"a", b"").unwrap_err(),
        FlashError::OutOfOrder { block: 1, page: 0, expected: 1 }
    );
    for page in 1..16 {
        n.program(0, at(1, page), b"a", b"").unwrap();
    }
    assert_eq!(n.next_page(1), 16);
    n.erase(0, 1).unwrap();
    n.program(0, at(1, 0), b"b", b"").unwrap();
    assert!(matches!(n.program(0, at(32, 0), b"", b"").unwrap_err(), FlashError::NoSuchPage { blocks: 32, .. }));
    assert!(matches!(n.read(0, at(0, 16), &mut [], &mut []).unwrap_err(), FlashError::NoSuchPage { pages: 16, .. }));
}

#[test]
fn a_program_only_clears_bits() {
    let mut n = nand(CellMode::Slc);
    n.program(0, at(0, 0), &[0xf0, 0x0f], &[0xaa]).unwrap();
    let error = n.append(0, at(0, 0), (1, &[0x1f]), (0, &[])).unwrap_err();
    assert_eq!(error, FlashError::SetsBits { block: 0, page: 0, byte: 1 });
    let error = n.append(0, at(0, 0), (0, &[]), (0, &[0xab])).unwrap_err();
    assert_eq!(error, FlashError::SetsBits { block: 0, page: 0, byte: 4096 });
    // What was left erased takes anything once.
    n.append(0, at(0, 0), (0, &[0x70]), (1, &[0x12])).unwrap();
    n.append(0, at(0, 0), (4000, b"delta"), (2, &[0x34])).unwrap();
    let (mut data, mut spare) = (vec![0; 4096], [0; 4]);
    n.read(0, at(0, 0), &mut data, &mut spare).unwrap();
    assert_eq!(
        (&data[..3], &data[4000..4006], spare),
        (&[0x70, 0x0f, 0xff][..], &b"delta\xff"[..], [0xaa, 0x12, 0x34, 0xff])
    );
    let error = n.append(0, at(0, 0), (4094, b"xyz"), (0, &[])).unwrap_err();
    assert!(matches!(error, FlashError::DoesNotFit { area: 4096, what: "data", .. }), "{error}");
    let error = n.program(0, at(0, 1), &[], &[0; 129]).unwrap_err();
    assert!(matches!(error, FlashError::DoesNotFit { area: 128, what: "spare area", .. }), "{error}");
}

#[test]
fn a_page_has_so_many_programs() {
    let mut n = nand(CellMode::Slc);
    assert_eq!(
        n.append(0, at(0, 0), (0, b"a"), (0, &[])).unwrap_err(),
        FlashError::NotProgrammed { block: 0, page: 0 }
    );
    n.program(0, at(0, 0), b"", b"").unwrap();
    for i in 0..3 {
        n.append(0, at(0, 0), (i, b"a"), (0, &[])).unwrap();
    }
    let error = n.append(0, at(0, 0), (3, b"a"), (0, &[])).unwrap_err();
    assert_eq!(error, FlashError::TooManyPrograms { block: 0, page: 0, nop: 4 });
    n.erase(0, 0).unwrap();
    n.program(0, at(0, 0), b"", b"").unwrap();
    n.append(0, at(0, 0), (0, b"a"), (0, &[])).unwrap();
}

#[test]
fn appends_only_where_the_mode_allows() {
    for (mode, used, appendable) in [
        (CellMode::Slc, 16, 16),
        (CellMode::Mlc, 16, 0),
        (CellMode::OddMlc, 16, 8),
        (CellMode::Pslc, 8, 8),
        (CellMode::Tlc, 16, 0),
        (CellMode::Qlc, 16, 0),
    ] {
        let mut n = nand(mode);
        let (mut programmed, mut appended) = (0, 0);
        for page in 0..16 {
            match n.program(0, at(0, page), b"", b"") {
                Ok(_) => programmed += 1,
                Err(e) => assert_eq!(e, FlashError::PageNotUsed { block: 0, page, mode }),
            }
            match n.append(0, at(0, page), (0, b"a"), (0, &[])) {
                Ok(_) => appended += 1,
                Err(FlashError::AppendNotAllowed { mode: m, .. } | FlashError::PageNotUsed { mode: m, .. }) => {
                    assert_eq!(m, mode);
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!((programmed, appended), (used, appendable), "{mode}");
        assert_eq!(n.next_page(0), 16, "{mode}");
    }
}

#[test]
fn a_chip_changes_its_mode_while_it_is_erased() {
    let mut n = nand(CellMode::Mlc);
    n.set_mode(1, CellMode::Pslc).unwrap();
    n.program(0, at(8, 0), b"", b"").unwrap();
    assert!(matches!(n.set_mode(1, CellMode::Mlc).unwrap_err(), FlashError::Config { .. }));
    n.program(0, at(8, 1), b"", b"").unwrap();
    assert!(matches!(n.program(0, at(8, 2), b"", b"").unwrap_err(), FlashError::PageNotUsed { .. }));
    n.program(0, at(0, 0), b"", b"").unwrap();
    assert_eq!((n.mode(0), n.mode(1)), (CellMode::Mlc, CellMode::Pslc));
}

#[test]
fn a_worn_block_is_bad() {
    let mut c = config(CellMode::Slc);
    c.endurance = 3;
    let mut n = Nand::new(&c, Contents::Full).unwrap();
    n.erase(0, 5).unwrap();
    n.erase(0, 5).unwrap();
    assert_eq!(n.erase(0, 5).unwrap_err(), FlashError::WornOut { block: 5, erases: 3 });
    assert!(n.is_bad(5));
    assert_eq!(n.program(0, at(5, 0), b"", b"").unwrap_err(), FlashError::BadBlock { block: 5 });
    assert_eq!(n.erase(0, 5).unwrap_err(), FlashError::BadBlock { block: 5 });
}

#[test]
fn faults_come_when_they_are_due() {
    let mut c = config(CellMode::Slc);
    c.faults = FaultsEvery { read: 3, program: 4, erase: 2 };
    let mut n = Nand::new(&c, Contents::Full).unwrap();
    let failed: Vec<u32> = (0..8).filter(|p| n.program(0, at(0, *p), b"x", b"").is_err()).collect();
    assert_eq!(failed, [3, 7]);
    let mut byte = [0];
    let failed: Vec<u32> = (0..6).filter(|_| n.read(0, at(0, 0), &mut byte, &mut []).is_err()).collect();
    assert_eq!(failed, [2, 5]);
    assert_eq!(n.read(0, at(0, 3), &mut byte, &mut []).unwrap_err(), FlashError::Uncorrectable { block: 0, page: 3 });
    n.erase(0, 0).unwrap();
    assert_eq!(n.erase(0, 1).unwrap_err(), FlashError::EraseFailed { block: 1 });
}

/// SLC: 4096 bytes at 40.96 MB/s are 100 us on the bus.
#[test]
fn operations_take_their_times() {
    let mut n = nand(CellMode::Mlc);
    let page = vec![0; 4096];
    let us = |s: Span| (s.start / 1000, s.end / 1000);
    // LSB, LSB, MSB: data first, then the array.
    assert_eq!(us(n.program(0, at(0, 0), &page, b"").unwrap()), (100, 300));
    assert_eq!(us(n.program(0, at(0, 1), &page, b"").unwrap()), (400, 600));
    assert_eq!(us(n.program(0, at(0, 2), &page, b"").unwrap()), (700, 1900));
    // Chip 1 is on the other channel, chip 2 on the same one: it waits for the bus only.
    assert_eq!(us(n.program(0, at(8, 0), &page, b"").unwrap()), (100, 300));
    assert_eq!(us(n.program(0, at(16, 0), &page, b"").unwrap()), (200, 400));
    // Reads sense, then move; the other plane of a busy chip waits.
    let mut out = vec![0; 4096];
    assert_eq!(us(n.read(2_000_000, at(0, 0), &mut out, &mut []).unwrap()), (2000, 2125));
    assert_eq!(us(n.read(2_000_000, at(0, 2), &mut out, &mut []).unwrap()), (2125, 2275));
    assert_eq!(us(n.read(2_000_000, at(4, 0), &mut out[..0], &mut []).unwrap()), (2275, 2300));
    assert_eq!(us(n.erase(3_000_000, 0).unwrap()), (3000, 4500));
    let (gate, bus) = (n.gate_usage()[0], n.bus_usage()[0]);
    assert_eq!((gate.ops, gate.busy / 1000), (7, 300 + 300 + 1300 + 125 + 150 + 25 + 1500));
    assert_eq!((bus.ops, bus.busy / 1000), (8, 600));
    assert_eq!(gate.waited / 1000, 300 + 600 + 125 + 275);
}

#[test]
fn planes_work_at_the_same_time_if_they_can() {
    let mut c = config(CellMode::Slc);
    c.multi_plane = true;
    let mut n = Nand::new(&c, Contents::Full).unwrap();
    assert_eq!(n.program(0, at(0, 0), b"", b"").unwrap().end, 200_000);
    assert_eq!(n.program(0, at(4, 0), b"", b"").unwrap().end, 200_000);
    assert_eq!(n.program(0, at(1, 0), b"", b"").unwrap().end, 400_000);
    assert_eq!(n.gate_usage().len(), 8);
}

#[test]
fn a_copy_inside_its_plane_leaves_the_bus_alone() {
    for copyback in [false, true] {
        let mut c = config(CellMode::Slc);
        c.copyback = copyback;
        let mut n = Nand::new(&c, Contents::Full).unwrap();
        n.program(0, at(0, 0), &[7; 4096], b"old").unwrap();
        let bytes = n.counts().bus_bytes;
        let span = n.copy(1_000_000, at(0, 0), at(1, 0), b"new").unwrap();
        let moved = n.counts().bus_bytes - bytes;
        assert_eq!(moved, if copyback { 0 } else { 2 * 4099 });
        assert_eq!(span.end - span.start >= 425_000, !copyback, "{span:?}");
        let (mut data, mut spare) = ([0; 4096], [0; 3]);
        n.read(0, at(1, 0), &mut data, &mut spare).unwrap();
        assert_eq!((data, &spare), ([7; 4096], b"new"));
        // Another plane: over the bus in any case.
        n.copy(2_000_000, at(0, 0), at(4, 0), b"new").unwrap();
        assert_eq!(n.counts().bus_bytes - bytes, moved + 4096 + 3 + 2 * 4099);
    }
}

#[test]
fn a_cut_tears_what_is_under_way_and_undoes_the_rest() {
    let mut n = nand(CellMode::Slc);
    for page in 0..3 {
        n.program(0, at(0, page), &[page as u8; 16], b"spare").unwrap();
    }
    n.program(0, at(8, 0), &[0xf0; 64], b"").unwrap();
    let first = n.append(0, at(8, 0), (0, &[0; 64]), (0, &[])).unwrap();
    // In the middle of page 1's program and of the append.
    let cut = n.power_cut(first.start + 20_000, 5);
    assert_eq!((cut.undone, cut.torn_pages, cut.torn_blocks), (1, 2, 0), "{cut:?} {first:?}");
    let mut data = [0; 64];
    n.read(0, at(0, 0), &mut data[..16], &mut []).unwrap();
    assert_eq!(data[..16], [0; 16]);
    assert_eq!(n.read(0, at(0, 1), &mut data, &mut []).unwrap_err(), FlashError::Uncorrectable { block: 0, page: 1 });
    assert_eq!(n.next_page(0), 2, "a torn page is used up, one that had not begun is not");
    n.read(0, at(8, 0), &mut data, &mut []).unwrap();
    assert!(data.iter().all(|b| b & 0x0f == 0) && data != [0; 64] && data != [0xf0; 64], "{data:?}");
    n.program(0, at(0, 2), b"again", b"").unwrap();
    // An erase under way leaves nothing; one that had not begun leaves all.
    n.advance(1 << 30);
    let erase = n.erase(1 << 30, 0).unwrap();
    n.erase(1 << 30, 1).unwrap();
    let cut = n.power_cut(erase.start + 1, 6);
    assert_eq!(cut.torn_blocks, 1);
    assert!(n.is_torn(0) && n.read(0, at(0, 0), &mut data, &mut []).is_err());
    assert!(matches!(n.program(0, at(0, 0), b"", b""), Err(FlashError::OutOfOrder { .. })));
    n.erase(0, 0).unwrap();
    n.program(0, at(0, 0), b"", b"").unwrap();
    assert_eq!((n.erases(0), n.erases(1)), (2, 0));
}

fn with_cache(cell: CellMode) -> Result<Nand, FlashError> {
    let cache = SlcCache { blocks: 8, read_us: 20.0, program_us: 100.0, full: CacheFull::Direct, idle_ms: 1.0 };
    Nand::new(&FlashConfig { slc_cache: Some(cache), ..config(cell) }, Contents::Full)
}

#[test]
fn a_block_used_with_one_bit_per_cell_has_fewer_and_faster_pages() {
    let mut n = with_cache(CellMode::Tlc).unwrap();
    n.set_slc(2, true).unwrap();
    let first = n.program(0, at(2, 0), b"fast", b"").unwrap();
    assert_eq!(first.end - first.start, 100_000);
    for page in 1..5 {
        n.program(0, at(2, page), b"x", b"").unwrap();
    }
    // 16 pages of three bits: five rows of cells.
    let beyond = n.program(0, at(2, 5), b"x", b"").unwrap_err();
    assert_eq!(beyond, FlashError::PageNotUsed { block: 2, page: 5, mode: CellMode::Pslc });
    let refused = n.append(0, at(2, 0), (100, b"x"), (0, &[])).unwrap_err();
    assert_eq!(refused, FlashError::AppendNotAllowed { block: 2, page: 0, mode: CellMode::Pslc });
    assert_eq!((n.programs_of(at(2, 4)), n.programs_of(at(2, 5)), n.counts().slc_programs), (1, 0, 5));
    let mut data = [0; 4];
    n.read(n.idle_at(), at(2, 0), &mut data, &mut []).unwrap();
    assert_eq!(&data, b"fast");
    n.read(0, at(2, 9), &mut data, &mut []).unwrap();
    assert_eq!(data, [0xff; 4], "a page that is not used reads as erased");
    // Its use ends with the erase.
    assert_eq!(n.set_slc(2, false).unwrap_err(), FlashError::NotErased { block: 2 });
    n.erase(0, 2).unwrap();
    assert!(!n.is_slc(2));
    let slow = n.program(0, at(2, 0), b"", b"").unwrap();
    assert_eq!(slow.end - slow.start, 200_000);
    n.mark_bad(3);
    assert_eq!(n.set_slc(3, true).unwrap_err(), FlashError::BadBlock { block: 3 });
    assert!(matches!(n.set_slc(32, true).unwrap_err(), FlashError::NoSuchPage { block: 32, .. }));
}

#[test]
fn only_cells_of_several_bits_can_be_used_with_one() {
    for cell in [CellMode::Slc, CellMode::Pslc, CellMode::OddMlc] {
        let Err(FlashError::Config { field, .. }) = with_cache(cell) else { panic!("{cell} was accepted") };
        assert_eq!(field, "slc_cache");
    }
    let mut plain = nand(CellMode::Tlc);
    assert!(matches!(plain.set_slc(0, true).unwrap_err(), FlashError::Config { .. }), "no times are given");
}

fn suspending(most: u32) -> Nand {
    let suspend = Some(Suspend { program_us: 10.0, erase_us: 50.0, most });
    let mut n = Nand::new(&FlashConfig { suspend, ..config(CellMode::Slc) }, Contents::Full).unwrap();
    n.program(0, at(0, 0), b"old", b"").unwrap();
    n.advance(n.idle_at());
    n
}

#[test]
fn a_read_suspends_an_erase_or_a_program_and_later_operations_wait_for_it() {
    let mut n = suspending(2);
    let start = n.idle_at();
    let erase = n.erase(start, 1).unwrap();
    let read = |n: &mut Nand, at_time: u64| n.read(at_time, at(0, 0), &mut [0; 3], &mut []).unwrap();
    let one = read(&mut n, start + 100_000);
    assert_eq!(one.start, start + 150_000, "the array is free after 50 us");
    let two = read(&mut n, start + 101_000);
    assert_eq!(two.start, one.end + 50_000, "reads follow each other, and suspend anew");
    let three = read(&mut n, start + 102_000);
    let put_off = (one.end - one.start) + (two.end - two.start) + 100_000;
    assert_eq!(three.start, erase.end + put_off, "suspended twice, the erase is waited for");
    assert_eq!((n.counts().suspended_erases, n.counts().suspended_programs), (2, 0));
    let next = n.program(start, at(0, 1), b"", b"").unwrap();
    assert_eq!(next.start, three.end, "what comes next follows all of them");
}

/// A read ends 25 us after it came to the die, and 100 us on the channel after that.
#[test]
fn reads_of_the_units_of_a_die_queue_and_programs_do_not() {
    let ends = |units_per_die: u32| {
        let mut c = config(CellMode::Slc);
        (c.geometry.chips_per_channel, c.geometry.planes) = (4, 1);
        (c.units_per_die, c.timing.channel_mb_s) = (units_per_die, 1e6);
        let mut n = Nand::new(&c, Contents::Full).unwrap();
        // Chips 0 and 2 are on channel 0, next to each other on it.
        let blocks = [0, 8];
        let programs = blocks.map(|b| n.program(0, at(b, 0), b"x", b"").unwrap().end);
        let begin = 10_000_000;
        n.advance(begin);
        let reads = blocks.map(|b| n.read(begin, at(b, 0), &mut [0; 1], &mut []).unwrap().end - begin);
        (programs.map(|end| end / 1000), reads.map(|ns| ns / 1000), n.die_usage().len())
    };
    assert_eq!(ends(1), ([200, 200], [25, 25], 0), "each chip is a die");
    assert_eq!(ends(2), ([200, 200], [25, 50], 4), "two units of one die");
    assert_eq!(ends(4).1, [25, 50]);
    let mut c = config(CellMode::Slc);
    c.units_per_die = 3;
    let Err(FlashError::Config { field, .. }) = Nand::new(&c, Contents::Full) else { panic!("3 does not divide 2") };
    assert_eq!(field, "units_per_die");
}

#[test]
fn what_is_nearly_done_and_the_page_being_programmed_are_waited_for() {
    let mut n = suspending(10);
    let start = n.idle_at();
    let program = n.program(start, at(0, 1), b"new", b"").unwrap();
    n.advance(start);
    let own = n.read(start + 1, at(0, 1), &mut [0; 3], &mut []).unwrap();
    assert!(own.start >= program.end, "the page itself");
    let mut n = suspending(10);
    let program = n.program(start, at(0, 1), b"new", b"").unwrap();
    let late = n.read(program.end - 5_000, at(0, 0), &mut [0; 3], &mut []).unwrap();
    assert_eq!((late.start, n.counts().suspended_programs), (program.end, 0), "5 us are less than suspending takes");
    let mut n = suspending(10);
    n.program(start, at(0, 1), b"new", b"").unwrap();
    let queued = n.program(start, at(0, 2), b"new", b"").unwrap();
    let ahead = n.read(start + 1_000, at(0, 0), &mut [0; 3], &mut []).unwrap();
    assert!(ahead.end < queued.start && n.counts().suspended_programs == 1, "ahead of what has not begun");
    assert!(n.idle_at() > queued.end, "the gate owes the time of the read");
}
