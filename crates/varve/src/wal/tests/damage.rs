//! Damage to a log: every bit of its groups, whole ranges, stale laps, lost superblocks. What comes of it is told
//! beforehand by an oracle that knows the rule for the end of the log, not the reader's code.

use super::format::{block_floor, salt};
use super::superblock;
use super::*;
use varve_device::{read_at, write_at};

/// A group as it was when the log was whole.
#[derive(Debug, Clone)]
struct Known {
    start: Lsn,
    end: Lsn,
    durable: Lsn,
    body: Vec<u8>,
}

struct Sample {
    mem: Arc<MemDevice>,
    groups: Vec<Known>,
    /// What the superblock says was durable.
    recorded: Lsn,
}

fn scan(dev: &Arc<MemDevice>) -> Result<(Vec<Known>, LogEnd)> {
    let (log, state) = Log::open(dev.clone(), small(), false)?;
    let mut reader = log.scan(state.redo);
    let mut groups = Vec::new();
    loop {
        match reader.next_group()? {
            Step::Group(g) => {
                groups.push(Known { start: g.start, end: g.end, durable: g.durable, body: g.body.to_vec() });
            }
            Step::End(end) => return Ok((groups, end)),
        }
    }
}

/// A log with groups that were made durable one by one and in batches, the last few at once.
fn sample() -> Sample {
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    for n in 0..14u64 {
        let at = log.append(GroupKind::Commit, None, &body(n, [3, 150, 40, 4100, 700][n as usize % 5])).unwrap();
        if n == 4 {
            let t = log.begin_checkpoint();
            log.complete_checkpoint(t).unwrap();
        }
        if n % 2 == 0 && n < 12 {
            log.wait_durable(at.end).unwrap();
        }
    }
    log.wait_durable(log.end_lsn()).unwrap();
    let recorded = log.disk.lock().sb.end;
    drop(log);
    let (groups, end) = scan(&mem).unwrap();
    assert_eq!((groups.len(), end.row), (9, EndRow::TornTail));
    Sample { mem, groups, recorded }
}

fn place(log_start: &Log, lsn: Lsn) -> u64 {
    log_start.ring.read().locate(lsn).0
}

/// What damage to group `i` must come to: true for an error, false for a torn tail.
fn must_fail(s: &Sample, i: usize, in_header: bool) -> bool {
    let g = &s.groups[i];
    let whole = if in_header { g.start + GROUP_HEADER as u64 } else { g.end };
    let before = s.groups[..i].iter().map(|g| g.durable).max().unwrap_or(0).max(s.recorded);
    let after = s.groups[i + 1..].iter().map(|g| g.durable).max().unwrap_or(0);
    before.max(after) >= whole
}

#[test]
fn every_flipped_bit_is_an_error_or_a_torn_tail_as_the_rule_says() {
    let s = sample();
    let map = Log::open(s.mem.clone(), small(), false).unwrap().0;
    let (mut errors, mut tails) = (0, 0);
    for (i, g) in s.groups.iter().enumerate() {
        for at in g.start..g.end {
            // Long bodies in steps, every bit of headers.
            let in_header = at < g.start + GROUP_HEADER as u64;
            if !in_header && g.body.len() > 500 && at % 61 != 0 {
                continue;
            }
            for bit in 0..8 {
                s.mem.flip_bit(place(&map, at), bit);
                let came = scan(&s.mem);
                s.mem.flip_bit(place(&map, at), bit);
                match came {
                    Err(Error::Corrupt(crate::error::Damage::Log { lsn, .. })) => {
                        assert!(must_fail(&s, i, in_header), "group {i}, byte {at}, bit {bit}: refused");
                        assert_eq!(lsn, g.start, "the error names the group");
                        errors += 1;
                    }
                    Ok((groups, end)) => {
                        assert!(!must_fail(&s, i, in_header), "group {i}, byte {at}, bit {bit}: taken for a torn tail");
                        assert_eq!((groups.len(), end.row), (i, EndRow::TornTail));
                        assert!(groups.iter().zip(&s.groups).all(|(a, b)| a.body == b.body));
                        tails += 1;
                    }
                    Err(e) => panic!("group {i}, byte {at}, bit {bit}: {e}"),
                }
            }
        }
    }
    assert!(errors > 1000 && tails > 100, "{errors} errors, {tails} torn tails");
}

/// Where full blocks alone are written, the next write begins within a group, and no header after it lies at a
/// block's start.
#[test]
fn a_group_is_proved_by_one_that_begins_within_a_block() {
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let append = |n, len| log.append(GroupKind::Commit, None, &body(n, len)).unwrap();
    let (lost, _) = (append(0, 2000), append(1, 6000));
    log.drain(0);
    assert_eq!(log.durable_lsn(), 2 * BLOCK);
    let last = append(2, 100);
    log.wait_durable(last.end).unwrap();
    assert_ne!(last.start % BLOCK, 0);
    let at = place(&log, lost.start + 100);
    drop(log);
    mem.flip_bit(at, 3);
    let refused = scan(&mem).unwrap_err().to_string();
    assert!(refused.contains("[L6]") && refused.contains(&format!("group at LSN {}", last.start)), "{refused}");
}

#[test]
fn a_hole_in_the_middle_is_corruption_and_a_zeroed_end_is_a_torn_tail() {
    let s = sample();
    let map = Log::open(s.mem.clone(), small(), false).unwrap().0;
    let wipe = |from: Lsn, to: Lsn| {
        let copy = s.mem.clone_image();
        for block in (block_floor(from)..to).step_by(BLOCK as usize) {
            write_at(&*copy, place(&map, block), &[0; BLOCK as usize], true).unwrap();
        }
        copy
    };
    let middle = wipe(s.groups[2].start, s.groups[4].end);
    let refused = scan(&middle).unwrap_err().to_string();
    assert!(refused.contains("[L6]") || refused.contains("[L5]"), "{refused}");
    assert!(refused.contains("salvage") && refused.contains("LSN"), "{refused}");
    let tail = wipe(s.groups[8].start, s.groups[8].end);
    let (groups, end) = scan(&tail).unwrap();
    assert!(groups.len() < 9 && end.row == EndRow::TornTail);
}

#[test]
fn bytes_of_an_earlier_lap_are_not_taken_for_live_ones() {
    let mem = MemDevice::new(0);
    let cfg = LogConfig { max_capacity: 128 << 10, ..small() };
    let log = Log::create(mem.clone(), cfg.clone(), header()).unwrap();
    let write = |n: u64| {
        let at = log.append(GroupKind::Commit, None, &body(n, 2000)).unwrap();
        log.wait_durable(at.end).unwrap();
        at
    };
    let mut lap = Vec::new();
    for n in 0..400 {
        let t = log.begin_checkpoint();
        log.complete_checkpoint(t).unwrap();
        lap.push(write(n));
    }
    let old = mem.clone_image();
    let first = write(1000);
    write(1001);
    let last = write(1002);
    let at = place(&log, block_floor(last.start));
    drop(log);
    let (groups, _) = scan(&mem).unwrap();
    assert_eq!(groups.len(), 4, "the last of the lap, and three");
    let mut stale = vec![0; BLOCK as usize];
    read_at(&*old, at, &mut stale).unwrap();
    assert!(stale.iter().any(|&b| b != 0), "the place held groups a lap ago");
    write_at(&*mem, at, &stale, true).unwrap();
    let (groups, end) = scan(&mem).unwrap();
    assert_eq!(groups.len(), 3);
    assert!(groups[1].start == first.start && end.row == EndRow::TornTail);
}

#[test]
fn what_a_crashed_run_left_past_its_end_is_never_taken_up_again() {
    // Run 1 leaves a hole in a block, with whole groups after it: a torn tail with orphans.
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let places: Vec<_> = (0..6u64).map(|n| log.append(GroupKind::Commit, None, &body(n, 4048)).unwrap()).collect();
    log.wait_durable(log.end_lsn()).unwrap();
    let hole = place(&log, block_floor(places[2].start));
    drop(log);
    write_at(&*mem, hole, &[0; BLOCK as usize], true).unwrap();
    let dev: Arc<dyn Device> = mem.clone();
    let (log, groups, end) = recover(&dev, small()).unwrap();
    assert_eq!((groups.len(), end.row), (2, EndRow::TornTail));
    assert!(end.orphans > 0);
    // Run 2 writes groups of the same lengths, so that its own end falls just before an orphan, and crashes.
    let again = log.append(GroupKind::Commit, None, &body(10, 4048)).unwrap();
    log.wait_durable(again.end).unwrap();
    drop(log);
    let (_, groups, _) = recover(&dev, small()).unwrap();
    let numbers: Vec<u64> = groups.iter().map(|(_, b)| u64::from_le_bytes(b[..8].try_into().unwrap())).collect();
    assert_eq!(numbers, [0, 1, 10]);
}

/// What both superblocks were is written back: a drive that lost two writes.
fn set_back(mem: &Arc<MemDevice>, to: &Arc<MemDevice>) {
    let mut old = vec![0; 2 * BLOCK as usize];
    read_at(&**to, 0, &mut old).unwrap();
    write_at(&**mem, 0, &old, true).unwrap();
}

/// A first run, what the device was after it, and a second run with a group.
fn two_runs(close_first: bool) -> (Arc<MemDevice>, Arc<MemDevice>) {
    let mem = MemDevice::new(0);
    let dev: Arc<dyn Device> = mem.clone();
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let at = log.append(GroupKind::Commit, None, b"first run").unwrap();
    log.wait_durable(at.end).unwrap();
    if close_first {
        let t = log.begin_checkpoint();
        log.complete_checkpoint(t).unwrap();
        assert!(log.close_clean().unwrap());
    }
    drop(log);
    let before = mem.clone_image();
    let (log, _, _) = recover(&dev, small()).unwrap();
    let at = log.append(GroupKind::Commit, None, b"second run").unwrap();
    log.wait_durable(at.end).unwrap();
    (mem, before)
}

#[test]
fn superblocks_older_than_the_log_are_refused() {
    for (close_first, row) in [(false, "[L10]"), (true, "S7")] {
        let (mem, before) = two_runs(close_first);
        assert_eq!(scan(&mem).unwrap().0.last().unwrap().body, b"second run");
        set_back(&mem, &before);
        let refused = scan(&mem).unwrap_err().to_string();
        assert!(refused.contains(row) && refused.contains("salvage"), "{refused}");
    }
}

#[test]
fn damage_of_one_superblock_loses_nothing_and_is_mended() {
    for close_first in [false, true] {
        let (mem, _) = two_runs(close_first);
        // All bits of the fields, and of the zeros behind them some.
        for bit in (0..2 * BLOCK * 8).filter(|bit| bit % (8 * BLOCK) < 8 * 512 || bit % 61 == 0) {
            mem.flip_bit(bit / 8, (bit % 8) as u8);
            let found = scan(&mem).unwrap().0;
            assert_eq!(found.last().unwrap().body, b"second run", "bit {bit}");
            mem.flip_bit(bit / 8, (bit % 8) as u8);
        }
        write_at(&*mem, 0, &[0; BLOCK as usize], true).unwrap();
        let dev: Arc<dyn Device> = mem.clone();
        let (log, groups, _) = recover(&dev, small()).unwrap();
        assert_eq!(groups.last().unwrap().1, b"second run");
        drop(log);
        let (_, state) = Log::open(mem, small(), false).unwrap();
        assert_eq!(state.damaged_superblock, None, "the opening before mended it");
    }
}

#[test]
fn a_feature_is_durable_when_it_is_switched() {
    let (dev, log) = fresh(small());
    assert!(!log.features().has(&IDENTITY));
    log.set_feature(&IDENTITY, true).unwrap();
    drop(log);
    let (log, _) = Log::open(dev.clone(), small(), false).unwrap();
    assert_eq!(log.features().names(), ["identity"]);
    log.resume_at(FIRST_LSN, false).unwrap();
    log.set_feature(&IDENTITY, false).unwrap();
    drop(log);
    // It was not closed.
    assert_eq!(Log::open(dev, small(), false).unwrap().0.features().names(), ["log-gaps"]);
}

#[test]
fn an_earlier_run_that_lost_its_end_is_corruption() {
    let mem = MemDevice::new(0);
    let dev: Arc<dyn Device> = mem.clone();
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let at = log.append(GroupKind::Commit, None, b"first run").unwrap();
    log.wait_durable(at.end).unwrap();
    drop(log);
    let (log, _, _) = recover(&dev, small()).unwrap();
    let offset = place(&log, at.start);
    drop(log);
    mem.flip_bit(offset + 20, 3);
    let refused = scan(&mem).unwrap_err().to_string();
    assert!(refused.contains("[L4]"), "{refused}");
}

#[test]
fn a_clean_end_that_is_not_there_is_corruption() {
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let at = log.append(GroupKind::Commit, None, b"group").unwrap();
    log.wait_durable(at.end).unwrap();
    let mut sb = log.disk.lock().sb.clone();
    drop(log);
    (sb.clean, sb.end, sb.sequence) = (true, at.end + 9000, 9);
    superblock::store(&*mem, 0, &sb, true).unwrap();
    let refused = scan(&mem).unwrap_err().to_string();
    assert!(refused.contains("[L9]"), "{refused}");
}

#[test]
fn another_database_s_log_is_not_taken_for_this_one_s() {
    assert_ne!(salt(b"0123456789abcdef"), salt(b"0123456789abcdeg"));
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    log.append(GroupKind::Commit, None, b"old").unwrap();
    log.wait_durable(log.end_lsn()).unwrap();
    drop(log);
    let other = DbHeader { uuid: [9; 16], ..header() };
    drop(Log::create(mem.clone(), small(), other).unwrap());
    assert!(scan(&mem).unwrap().0.is_empty());
}

#[test]
fn every_flipped_bit_of_a_superblock_is_noticed() {
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    log.wait_durable(log.end_lsn()).unwrap();
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    assert!(log.close_clean().unwrap());
    drop(log);
    for bit in 0..2 * BLOCK * 8 {
        mem.flip_bit(bit / 8, (bit % 8) as u8);
        let (_, state) = Log::open(mem.clone(), small(), true).unwrap();
        mem.flip_bit(bit / 8, (bit % 8) as u8);
        assert!(state.clean && state.damaged_superblock.is_some(), "bit {bit}");
    }
}

#[test]
fn checking_an_open_log_finds_what_recovery_would_need() {
    let mem = MemDevice::new(0);
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    let places: Vec<_> = (0..9u64).map(|n| log.append(GroupKind::Commit, None, &body(n, 900)).unwrap()).collect();
    log.wait_durable(places[8].end).unwrap();
    log.append(GroupKind::Commit, None, b"not durable").unwrap();
    let sound = log.check().unwrap();
    assert!(sound.damages.is_empty());
    assert_eq!(sound.groups, 9);
    assert_eq!(log.stats().groups, 9);
    let at = place(&log, places[3].start + 100);
    mem.flip_bit(at, 1);
    let found = log.check().unwrap();
    assert!(
        matches!(&found.damages[..], [crate::error::Damage::Log { lsn, .. }] if *lsn == places[3].start),
        "{found:?}"
    );
    mem.flip_bit(at, 1);
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    assert!(log.close_clean().unwrap());
    drop(log);
    assert!(Log::open(mem.clone(), small(), true).unwrap().0.check().unwrap().damages.is_empty());
    mem.flip_bit(70, 1);
    let (log, state) = Log::open(mem.clone(), small(), false).unwrap();
    log.resume_at(state.end, false).unwrap();
    assert!(matches!(&log.check().unwrap().damages[..], [crate::error::Damage::Superblock(_)]));
    assert_eq!(log.stats().superblocks_mended, 1);
}

/// A reader of a log that is being written finds groups that are half there, beside later ones that are whole.
#[test]
fn what_lies_past_the_durable_end_of_a_log_in_use_is_no_damage() {
    let (dev, log) = fresh(small());
    let groups: Vec<_> = (0..6)
        .map(|n| {
            let at = log.append(GroupKind::Commit, None, &body(n, 700)).unwrap();
            log.wait_durable(at.end).unwrap();
            at
        })
        .collect();
    let read = |durable| {
        let mut reader = log.scan(groups[0].start).in_use(durable);
        let mut ends = Vec::new();
        loop {
            match reader.next_group()? {
                Step::Group(group) => ends.push(group.end),
                Step::End(_) => return Ok::<_, Error>(ends),
            }
        }
    };
    let half = groups[3];
    let at = place(&log, half.end - 20) / BLOCK * BLOCK;
    let mut block = varve_device::AlignedBuf::new(BLOCK as usize);
    read_at(&*dev, at, &mut block).unwrap();
    block[place(&log, half.end - 20) as usize % BLOCK as usize] ^= 1;
    write_at(&*dev, at, &block, true).unwrap();
    let whole: Vec<Lsn> = groups[..3].iter().map(|g| g.end).collect();
    for durable in [groups[2].end, half.start, half.start + 1, half.end - 1] {
        assert_eq!(read(durable).unwrap(), whole, "durable to {durable}, the group is {half:?}");
    }
    assert!(read(half.end).unwrap_err().to_string().contains("[L5]"), "it was durable, and is damaged");
    let later = read_all(&log, groups[0].start).unwrap_err().to_string();
    assert!(later.contains("[L6]"), "after a crash the later groups tell: {later}");
}
