//! Recovery over modelled pages: random histories with torn writes and crashes inside recovery; each row of the page
//! table; what is measured and reported.

use super::checkpoint::CheckpointPages;
use super::pages::{Pages, change};
use super::recovery::{self, RecoveryOptions, RecoveryReport};
use super::*;
use crate::error::Damage;
use crate::redo;
use varve_device::{Faults, Health, Mistake, Watched};
use varve_rt::Rng;
use varve_volume::{KeyspaceId, PageId};

fn recovered(dev: &Arc<dyn Device>, pages: &Pages) -> Result<(Arc<Log>, RecoveryReport)> {
    let (log, state) = Log::open(dev.clone(), small(), false)?;
    // Small windows, so that pages are met in several of them.
    let mut options = RecoveryOptions { window_bytes: Some(6000), ..RecoveryOptions::default() };
    let report = recovery::run(&log, &state, pages, &mut options)?;
    Ok((log, report))
}

#[test]
fn random_histories_come_back_whole_also_when_recovery_is_cut_short() {
    let mut sum = RecoveryReport::default();
    for seed in 0..150 {
        let mut rng = Rng::from_seed(seed);
        let (dev, mut log) = fresh(small());
        let pages = Pages::new(4096);
        for _crash in 0..5 {
            let mut begun = None;
            for _ in 0..rng.below(60) {
                let id = PageId(rng.below(8));
                match rng.below(10) {
                    0..6 => {
                        log.ensure_space(5000).unwrap();
                        let at = 32 + rng.below(4000) as usize;
                        change(&log, &pages, id, at, &rng.next_u64().to_le_bytes());
                    }
                    6 | 7 if pages.dirty().contains(&id) => pages.write(&log, id),
                    8 if begun.is_none() => begun = Some(log.begin_checkpoint()),
                    9 => {
                        if let Some(t) = begun.take() {
                            pages.flush_older_than(t).unwrap();
                            log.complete_checkpoint(t).unwrap();
                        }
                    }
                    _ => {}
                }
                // Keep the small ring from filling up: nobody makes checkpoints in the background here.
                if log.age() > 60 << 10 {
                    let t = log.begin_checkpoint();
                    pages.flush_older_than(t).unwrap();
                    log.complete_checkpoint(t).unwrap();
                    begun = None;
                }
            }
            log.wait_durable(log.end_lsn()).unwrap();
            let expect = pages.all();
            for id in pages.dirty() {
                if rng.below(3) == 0 {
                    pages.tear(id);
                }
            }
            pages.crash();
            drop(log);
            for _ in 0..rng.below(3) {
                *pages.fuse.lock() = Some(rng.below(40));
                let cut = recovered(&dev, &pages);
                *pages.fuse.lock() = None;
                // Some of what was replayed has been written back when the power goes, some of it torn.
                for id in pages.dirty() {
                    match rng.below(4) {
                        0 => pages.tear(id),
                        1 => CheckpointPages::flush_older_than(&pages, Lsn::MAX).unwrap(),
                        _ => {}
                    }
                }
                drop(cut);
                pages.crash();
            }
            let (opened, report) = recovered(&dev, &pages).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(pages.all() == expect, "seed {seed}: pages differ");
            log = opened;
            sum.images += report.images;
            sum.applied += report.applied;
        }
    }
    assert!(sum.images > 1000 && sum.applied > 1000, "{sum:?}");
}

const PAGE: PageId = PageId(5);

/// A log with an image of a page and two changes; the page was stored after the first change.
fn three_changes() -> (Arc<dyn Device>, Pages, Vec<Vec<u8>>) {
    let (dev, log) = fresh(small());
    let pages = Pages::new(4096);
    let mut versions = Vec::new();
    for n in 0..3u8 {
        change(&log, &pages, PAGE, 100 + n as usize, &[n + 1]);
        pages.write(&log, PAGE);
        versions.push(pages.stored(PAGE).unwrap());
    }
    pages.crash();
    (dev, pages, versions)
}

/// Pages may be written as of a block's end: the padding there counts, but not the place of a group that is missing.
#[test]
fn a_log_that_lost_the_last_group_of_a_block_does_not_reach_the_block_s_end() {
    let (mem, pages) = (MemDevice::new(0), Pages::new(4096));
    let log = Log::create(mem.clone(), small(), header()).unwrap();
    change(&log, &pages, PAGE, 100, &[1]);
    let second = log.end_lsn();
    change(&log, &pages, PageId(6), 100, &[2]);
    let end = log.end_lsn();
    log.wait_durable(end).unwrap();
    let written = log.begin_checkpoint();
    assert!(end < written && written.is_multiple_of(BLOCK));
    let at = log.ring.read().locate(end - 4).0;
    drop(log);
    let reopened = |written| {
        let (log, state) = Log::open(mem.clone_image(), small(), false).unwrap();
        let mut options = RecoveryOptions { written, ..RecoveryOptions::default() };
        recovery::run(&log, &state, &pages, &mut options)
    };
    assert_eq!(reopened(written).unwrap().end, end);
    mem.flip_bit(at, 3);
    let refused = reopened(written).unwrap_err().to_string();
    assert!(refused.contains("[L11]") && refused.contains(&format!("LSN {second}")), "{refused}");
    assert_eq!(reopened(second).unwrap().end, second);
}

#[test]
fn a_page_that_missed_a_write_is_corruption() {
    // Without the image: the redo point lies after it.
    let (dev, pages, versions) = three_changes();
    let (log, _) = recovered(&dev, &pages).unwrap();
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    // Made without an image, as a build that breaks the rule would: the store then gives an older version.
    let prev = varve_volume::page::lsn(&versions[2]);
    let (mut ops, mut body) = (Vec::new(), Vec::new());
    redo::push_write(&mut ops, 100, b"x");
    redo::push_ops_record(&mut body, PAGE, KeyspaceId(1), prev, &ops);
    let at = log.append(GroupKind::Commit, None, &body).unwrap();
    log.wait_durable(at.end).unwrap();
    drop(log);
    for (version, row) in [(0, Some("[P3]")), (1, Some("[P3]")), (2, None)] {
        pages.crash();
        pages.set_stored(PAGE, versions[version].clone());
        let (log, state) = Log::open(dev.clone(), small(), false).unwrap();
        match (recovery::run(&log, &state, &pages, &mut RecoveryOptions::default()), row) {
            (Err(Error::Corrupt(Damage::Page { page: PAGE, keyspace: Some(KeyspaceId(1)), what, .. })), Some(row)) => {
                assert!(what.contains(row), "{what}");
            }
            (Ok(report), None) => assert_eq!(report.applied, 1),
            (other, _) => panic!("version {version}: {other:?}"),
        }
        drop(log);
    }
}

#[test]
fn a_torn_page_without_an_image_is_corruption_that_names_it() {
    let (dev, pages, versions) = three_changes();
    let (log, _) = recovered(&dev, &pages).unwrap();
    let t = log.begin_checkpoint();
    pages.flush_older_than(t).unwrap();
    log.complete_checkpoint(t).unwrap();
    let (mut ops, mut body) = (Vec::new(), Vec::new());
    redo::push_write(&mut ops, 100, b"x");
    redo::push_ops_record(&mut body, PAGE, KeyspaceId(1), varve_volume::page::lsn(&versions[2]), &ops);
    let at = log.append(GroupKind::Commit, None, &body).unwrap();
    log.wait_durable(at.end).unwrap();
    drop(log);
    pages.tear(PAGE);
    pages.crash();
    let refused = recovered(&dev, &pages).map(|(_, r)| r).unwrap_err().to_string();
    assert!(refused.contains("[P6]") && refused.contains("page 5") && refused.contains("keyspace 1"), "{refused}");
}

#[test]
fn a_torn_page_with_an_image_is_healed() {
    let (dev, pages, _) = three_changes();
    let mut torn = pages.stored(PAGE).unwrap();
    torn[3000] ^= 1;
    pages.set_stored(PAGE, torn);
    let (_, report) = recovered(&dev, &pages).unwrap();
    assert_eq!((report.images, report.groups, report.end_row), (1, 3, "L7"));
    assert_eq!(pages.load(PAGE).unwrap()[100..103], [1, 2, 3]);
}

#[test]
fn many_crashes_without_a_checkpoint_are_survived() {
    let (dev, log) = fresh(small());
    let pages = Pages::new(4096);
    drop(log);
    let mut expect = Vec::new();
    for n in 0..80u8 {
        pages.crash();
        let (log, _) = recovered(&dev, &pages).unwrap();
        change(&log, &pages, PAGE, 64 + n as usize, &[n]);
        log.wait_durable(log.end_lsn()).unwrap();
        expect.push(n);
        assert_eq!(pages.load(PAGE).unwrap()[64..64 + expect.len()], expect);
    }
    assert!(*pages.write_backs.lock() >= 2, "the table of runs is bounded");
}

#[test]
fn the_replay_rate_is_measured_and_kept_and_progress_is_told() {
    let cfg = LogConfig { capacity: 16 << 20, max_capacity: 32 << 20, segment: 1 << 20, buffer: 1 << 20, ..small() };
    let (dev, log) = fresh(cfg.clone());
    let page = vec![7; 4096];
    for n in 0..2500 {
        let mut body = Vec::new();
        redo::push_extra(&mut body, &[n as u8]);
        redo::push_image_record(&mut body, PageId(n % 50), &page, 0..0);
        log.append(GroupKind::Commit, None, &body).unwrap();
    }
    log.wait_durable(log.end_lsn()).unwrap();
    drop(log);
    let pages = Pages::new(4096);
    let (log, state) = Log::open(dev.clone(), cfg.clone(), false).unwrap();
    assert_eq!(state.replay_rate, None);
    let (mut told, mut extras) = (0, 0);
    let mut progress = |p: recovery::Progress| told = p.bytes;
    let mut extra = |_, _: &[u8]| {
        extras += 1;
        Ok(())
    };
    let mut options =
        RecoveryOptions { progress: Some(&mut progress), extra: Some(&mut extra), ..RecoveryOptions::default() };
    let report = recovery::run(&log, &state, &pages, &mut options).unwrap();
    let rate = report.rate.expect("enough to measure");
    assert_eq!((told, extras), (report.bytes, 2500));
    drop(log);
    assert_eq!(Log::open(dev, cfg, false).unwrap().1.replay_rate, Some(rate));
}

#[test]
fn opening_read_only_writes_nothing() {
    let (dev, log) = fresh(small());
    log.append(GroupKind::Commit, None, b"x").unwrap();
    let t = log.begin_checkpoint();
    log.complete_checkpoint(t).unwrap();
    assert!(log.close_clean().unwrap());
    drop(log);
    let before = dev.stats();
    let (log, state) = Log::open(dev.clone(), small(), true).unwrap();
    let pages = Pages::new(4096);
    let report = recovery::run(&log, &state, &pages, &mut RecoveryOptions::default()).unwrap();
    assert!(report.clean);
    assert!(
        matches!(log.append(GroupKind::Commit, None, b"y"), Err(AppendError::Poisoned(why)) if why.contains("read-only"))
    );
    drop(log);
    let after = dev.stats();
    assert_eq!((before.write, before.flush), (after.write, after.flush));
}

#[test]
fn a_group_applied_in_part_is_what_the_broken_switch_does() {
    for faults in [Faults::default(), Mistake::PartialGroup.into()] {
        let mem = MemDevice::new(0);
        let log = Log::create(mem.clone(), small(), header()).unwrap();
        let pages = Pages::new(4096);
        let at = change(&log, &pages, PAGE, 100, b"whole");
        log.wait_durable(at).unwrap();
        let offset = log.ring.read().locate(at - 20).0;
        drop(log);
        pages.crash();
        mem.flip_bit(offset, 0);
        let dev = Watched::new(mem, &Health::with(faults.clone()));
        let (log, state) = Log::open(dev, small(), false).unwrap();
        let report = recovery::run(&log, &state, &pages, &mut RecoveryOptions::default()).unwrap();
        assert_eq!(report.groups, u64::from(faults != Faults::default()));
    }
}
