//! Appending, reading back, wrap-around, growth, clean close, poisoning.

use super::*;

#[test]
fn groups_come_back_in_order_after_a_crash_and_a_clean_close() {
    let (dev, log) = fresh(small());
    let mut expect = Vec::new();
    for n in 0..20 {
        let bytes = body(n, n as usize * 50);
        log.ensure_space(bytes.len()).unwrap();
        let at = log.append(GroupKind::Commit, None, &bytes).unwrap();
        expect.push((at.end, bytes));
        if n % 3 == 0 {
            log.wait_durable(at.end).unwrap();
        }
    }
    log.wait_durable(log.end_lsn()).unwrap();
    drop(log);
    let (log, groups, end) = recover(&dev, small()).unwrap();
    assert_eq!(groups, expect);
    assert_eq!(end.row, EndRow::TornTail);
    let more = log.append(GroupKind::System, Some(log.floor().epoch), b"more").unwrap();
    log.wait_durable(more.end).unwrap();
    drop(log);
    let (log, groups, _) = recover(&dev, small()).unwrap();
    assert_eq!(groups.len(), 21);
    assert_eq!(groups[20], (more.end, b"more".to_vec()));
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    assert!(log.close_clean().unwrap());
    assert!(matches!(log.append(GroupKind::System, None, b"late"), Err(AppendError::Poisoned(_))));
    drop(log);
    let (log, state) = Log::open(dev.clone(), small(), true).unwrap();
    assert!(state.clean && state.header == header());
    let (groups, end) = read_all(&log, state.redo).unwrap();
    assert!(groups.is_empty());
    assert_eq!(end.row, EndRow::CleanEnd);
}

#[test]
fn a_crashed_log_is_not_opened_read_only() {
    let (dev, log) = fresh(small());
    drop(log);
    assert!(matches!(Log::open(dev, small(), true), Err(Error::ReadOnly(_))));
}

#[test]
fn the_ring_wraps_and_grows() {
    let (dev, log) = fresh(small());
    let mut live = Vec::new();
    for n in 0..2000u64 {
        let bytes = body(n, (n as usize * 37) % 3000);
        if log.age() > 100 << 10 {
            let t = log.begin_checkpoint();
            log.complete_checkpoint(t).unwrap();
            live.retain(|(end, _)| *end > t);
        }
        log.ensure_space(bytes.len()).unwrap();
        let at = log.append(GroupKind::Commit, None, &bytes).unwrap();
        live.push((at.end, bytes));
        if n % 7 == 0 {
            log.wait_durable(at.end).unwrap();
        }
    }
    log.wait_durable(log.end_lsn()).unwrap();
    let stats = log.stats();
    assert!(stats.end > 8 * stats.capacity, "several laps");
    assert!(stats.growths > 0 && stats.capacity <= small().max_capacity);
    drop(log);
    let (_, groups, _) = recover(&dev, small()).unwrap();
    assert_eq!(groups, live);
}

#[test]
fn a_group_larger_than_the_buffer_is_written_in_pieces() {
    let (dev, log) = fresh(small());
    let big = body(1, 100 << 10);
    log.ensure_space(big.len()).unwrap();
    let at = log.append(GroupKind::Commit, None, &big).unwrap();
    log.wait_durable(at.end).unwrap();
    assert!(log.stats().buffer_waits > 0);
    drop(log);
    let (_, groups, _) = recover(&dev, small()).unwrap();
    assert_eq!(groups, [(at.end, big)]);
}

#[test]
fn too_large_a_group_is_refused_before_anything_happens() {
    let (_, log) = fresh(small());
    let too_large = log.max_group() as usize + 1;
    assert!(matches!(log.ensure_space(too_large), Err(Error::TransactionTooLarge { .. })));
    assert!(matches!(log.append(GroupKind::Commit, None, &vec![0; too_large]), Err(AppendError::TooLarge { .. })));
    assert_eq!(log.end_lsn(), FIRST_LSN);
}

#[test]
fn a_checkpoint_moves_the_epoch() {
    let (_, log) = fresh(small());
    let floor = log.floor();
    log.append(GroupKind::System, Some(floor.epoch), b"x").unwrap();
    let t = log.begin_checkpoint();
    assert_eq!(log.append(GroupKind::System, Some(floor.epoch), b"y"), Err(AppendError::EpochMoved));
    assert_eq!(log.floor().lsn, t);
    log.append(GroupKind::System, Some(log.floor().epoch), b"y").unwrap();
}

#[test]
fn a_poisoned_log_says_why_and_promises_nothing() {
    let (_, log) = fresh(small());
    let a = log.append(GroupKind::Commit, None, b"a").unwrap();
    log.wait_durable(a.end).unwrap();
    let b = log.append(GroupKind::Commit, None, b"b").unwrap();
    log.poison("the cable was pulled");
    log.poison("something later");
    assert_eq!(log.poisoned().as_deref(), Some("the cable was pulled"));
    log.wait_durable(a.end).unwrap();
    assert!(matches!(log.wait_durable(b.end), Err(Error::Poisoned(why)) if why.contains("cable")));
    assert!(matches!(log.append(GroupKind::Commit, None, b"c"), Err(AppendError::Poisoned(_))));
    assert!(log.ensure_space(10).is_err());
}

#[test]
fn a_damaged_superblock_is_survived_and_reported_two_are_an_error() {
    let (dev, log) = fresh(small());
    drop(log);
    let flip = |slot: u64| {
        let mut block = vec![0; 4096];
        varve_device::read_at(&*dev, slot * 4096, &mut block).unwrap();
        block[50] ^= 1;
        varve_device::write_at(&*dev, slot * 4096, &block, true).unwrap();
    };
    flip(1);
    let (_, state) = Log::open(dev.clone(), small(), false).unwrap();
    assert!(state.damaged_superblock.unwrap().contains("checksum"));
    flip(0);
    assert!(matches!(Log::open(dev.clone(), small(), false), Err(Error::Corrupt(_))));
    let blank: Arc<dyn Device> = MemDevice::new(1 << 20);
    assert!(matches!(Log::open(blank, small(), false), Err(Error::NoDatabase(_))));
}

/// A log that grew is small again after a clean close, and after some checkpoints that need little of it; what it then
/// holds is found.
#[test]
fn a_log_goes_back_to_its_first_size_when_little_of_it_is_needed() {
    let cfg = LogConfig { capacity: 256 << 10, max_capacity: 64 << 20, segment: 16 << 10, ..small() };
    let (dev, log) = fresh(cfg.clone());
    let fill = |log: &Log, bytes: u64| {
        let end = log.end_lsn() + bytes;
        while log.end_lsn() < end {
            log.ensure_space(5000).unwrap();
            log.append(GroupKind::Commit, None, &body(1, 4990)).unwrap();
        }
        log.wait_durable(log.end_lsn()).unwrap();
    };
    let first = dev.len();
    fill(&log, 6 << 20);
    assert!(dev.len() > 6 << 20, "{}", dev.len());
    let grown = dev.len();
    for n in 1..=20 {
        let t = log.begin_checkpoint();
        log.complete_checkpoint(t).unwrap();
        // The first found 6 MiB to redo.
        assert_eq!(dev.len() < grown, n > 10, "after {n} checkpoints: {}", dev.len());
    }
    assert_eq!(dev.len(), first);
    fill(&log, 100 << 10);
    let (log, groups, _) = recover(&dev, cfg.clone()).unwrap();
    assert_eq!(groups.len(), 21);
    fill(&log, 3 << 20);
    assert!(dev.len() > 3 << 20);
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    assert!(log.close_clean().unwrap());
    assert_eq!(dev.len(), first);
    let (log, state) = Log::open(dev.clone(), cfg, false).unwrap();
    assert!(state.clean);
    log.resume_at(state.end, false).unwrap();
    fill(&log, 1 << 20);
}

/// While the log is in use it shrinks only behind what is live, by and by.
#[test]
fn a_log_in_use_shrinks_without_moving_what_is_live() {
    let cfg = LogConfig { capacity: 256 << 10, max_capacity: 64 << 20, idle_checkpoints: 3, ..small() };
    let (dev, log) = fresh(cfg.clone());
    let mut n = 0;
    let mut write = |log: &Log, groups: u64| {
        for _ in 0..groups {
            log.ensure_space(5000).unwrap();
            log.append(GroupKind::Commit, None, &body(n, 4990)).unwrap();
            n += 1;
        }
        log.wait_durable(log.end_lsn()).unwrap();
    };
    write(&log, 1200);
    let grown = dev.len();
    let mut lengths = Vec::new();
    for _ in 0..120 {
        let t = log.begin_checkpoint();
        write(&log, 3);
        log.complete_checkpoint(t).unwrap();
        lengths.push(dev.len());
    }
    assert!(lengths.is_sorted_by(|a, b| a >= b) && lengths[119] < grown / 8, "{grown}, then {lengths:?}");
    write(&log, 10);
    let (_, groups, _) = recover(&dev, cfg).unwrap();
    assert_eq!(groups.len(), 13, "those since the last redo point");
}
