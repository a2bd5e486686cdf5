//! What an operator meets: recovery by each way, refusals above the ceiling, admissions that are waited for, a device
//! that fails, wear.

use super::*;
use std::collections::BTreeMap;
use varve_device::{DeviceError, DeviceInfo, DeviceStats, Io, Op, OpKind, Ticket, read_at, write_at};
use varve_models::{Latency, MemOptions};
use varve_rt::Rng;

const OWNER: [u8; 16] = [3; 16];

/// A device whose requests all fail from a moment on, or its writes alone.
struct Failing {
    inner: Arc<MemDevice>,
    failed: AtomicBool,
    reads_go_on: bool,
}

impl Device for Failing {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let reads = batch.iter().all(|io| matches!(io.op, Op::Read));
        if !self.failed.load(Ordering::Acquire) || self.reads_go_on && reads {
            return self.inner.submit(batch);
        }
        let device = self.inner.info().name;
        let error = DeviceError::Io { op: OpKind::Read, device, offset: 0, len: 0, errno: 5, retryable: false };
        Ticket::ready(batch.iter().map(|_| Err(error.clone())).collect())
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn failing(manager: &str) -> (Arc<Failing>, Arc<Tier>) {
    let inner = MemDevice::new(200 * SIZE as u64);
    let fast = Arc::new(Failing { inner, failed: AtomicBool::new(false), reads_go_on: false });
    let home = Single::new(MemDevice::new(100 * SIZE as u64), SIZE).unwrap();
    let tier = Tier::create(home, fast.clone(), OWNER, named(manager)).unwrap();
    tier.start().unwrap();
    (fast, tier)
}

#[test]
fn a_lost_device_is_named_with_what_is_lost() {
    in_simulation(|| {
        let (fast, tier) = failing("lru2");
        (0..10).for_each(|n| write(&tier, &sealed(n, 50)));
        assert_eq!(tier.tier_stats().newer, 10);
        fast.failed.store(true, Ordering::Release);
        let mut last = None;
        for n in (0..10).chain(0..10) {
            last = lsn(&tier, n).err();
        }
        let stats = tier.tier_stats();
        assert!(stats.failed && stats.newer_since > 0);
        let Some(VolumeError::TierLost { pages: 10, since, .. }) = last else { panic!("{last:?}") };
        assert_eq!(since, stats.newer_since);
        assert!(last.unwrap().to_string().contains("the oldest since 20"));
        // What is written from then on goes home.
        write(&tier, &sealed(3, 60));
        assert_eq!(lsn(&tier, 3).unwrap(), 60);
        assert!(tier.sync().is_err(), "the other pages are not durable anywhere");
        tier.stop();
    });
}

#[test]
fn a_version_whose_write_failed_is_not_overtaken_by_the_one_on_its_way_home() {
    in_simulation(|| {
        let ms = (Duration::from_millis(10), Duration::from_millis(10));
        let latency = Latency { read: ms, write: ms, durable: ms, flush: ms };
        let device = |pages: u64| {
            MemDevice::with(pages * SIZE as u64, MemOptions { latency: latency.clone(), ..MemOptions::default() })
        };
        let fast = Arc::new(Failing { inner: device(200), failed: AtomicBool::new(false), reads_go_on: true });
        let tier = Tier::create(Single::new(device(100), SIZE).unwrap(), fast.clone(), OWNER, named("lru2")).unwrap();
        tier.start().unwrap();
        write(&tier, &sealed(7, 50));
        let mover = {
            let tier = tier.clone();
            varve_rt::spawn("mover", move || tier.all_home().unwrap())
        };
        // The old version is being read to go home, as the new one comes.
        varve_rt::sleep(Duration::from_millis(5));
        fast.failed.store(true, Ordering::Release);
        write(&tier, &sealed(7, 60));
        mover.join().unwrap();
        assert_eq!(lsn(&tier, 7).unwrap(), 60);
        tier.stop();
    });
}

#[test]
fn without_anything_newer_a_lost_device_costs_speed_only() {
    in_simulation(|| {
        for manager in ["dw", "cw"] {
            assert!(named(manager).survives_loss());
            let (fast, tier) = failing(manager);
            for n in 0..10 {
                let bytes = sealed(n, 50);
                write(&tier, &bytes);
                evict(&tier, &bytes);
            }
            settle();
            assert_eq!(tier.tier_stats().occupied, 10);
            fast.failed.store(true, Ordering::Release);
            for n in (0..10).chain(0..10) {
                assert_eq!(lsn(&tier, n).unwrap(), 50, "{manager}");
            }
            tier.stop();
            let without = Tier::without(tier.slow().clone(), named(manager)).unwrap();
            (0..10).for_each(|n| assert_eq!(lsn(&without, n).unwrap(), 50));
        }
        assert!(named("lc").survives_loss() && !named("cac").survives_loss() && !named("mv-fifo").survives_loss());
    });
}

fn refused(tier: &Tier, name: &str) -> u64 {
    let at = REFUSALS.iter().position(|(n, _)| *n == name).unwrap();
    tier.tier_stats().counters.refused[at]
}

#[test]
fn slots_emptied_ahead_are_for_pages_that_deserve_them() {
    in_simulation(|| {
        let Rig { tier, .. } = rig(TierOptions { reserve: Some(8), zone: 0.8, ..named("cc") });
        let free = || tier.tier_stats().slots - tier.tier_stats().occupied;
        let often = |pages: std::ops::Range<u64>, times| {
            for n in pages {
                (0..times).for_each(|_| write(&tier, &sealed(n, 9)));
                settle();
            }
        };
        let hot = free() - 16;
        often(0..hot, 3);
        assert_eq!(free(), 16, "what is free beyond the reserve costs nobody anything");
        often(hot..hot + 10, 9);
        let (cold, before) = (hot + 10..hot + 20, refused(&tier, "rank"));
        assert!(free() > 8 && (hot..hot + 10).all(|n| tier.place(PageId(n)) == Place::Fast), "the lowest made room");
        often(cold.clone(), 1);
        assert!(cold.clone().all(|n| tier.place(PageId(n)) == Place::Slow));
        assert_eq!(refused(&tier, "rank") - before, cold.count() as u64);
        tier.stop();
    });
}

#[test]
fn above_the_ceiling_dirty_pages_go_home_and_clean_ones_are_admitted() {
    in_simulation(|| {
        let Rig { tier, .. } = rig(TierOptions { dirty_ceiling: 0.5, ..named("lru2") });
        let most = tier.tier_stats().slots / 2;
        for n in 0..90 {
            write(&tier, &sealed(n, 9));
            assert!(tier.tier_stats().newer <= most);
        }
        assert!(refused(&tier, "dirty ceiling") > 10, "{:?}", tier.tier_stats());
        settle();
        let left = tier.tier_stats().newer;
        assert!(left < most, "the coldest went home in the background: {left} of {most}");
        let at_home = (0..90).find(|n| tier.place(PageId(*n)) == Place::Slow).expect("some went home");
        assert!(evict(&tier, &sealed(at_home, 9)), "there is room for what is read");
        tier.stop();
    });
}

#[test]
fn who_waits_for_admissions_finds_them_written() {
    in_simulation(|| {
        for sync_admit in [false, true] {
            let Rig { fast, tier, .. } = rig(TierOptions { sync_admit, ..named("cw") });
            let bytes = sealed(4, 9);
            write(&tier, &bytes);
            let before = fast.stats().write.count;
            assert!(evict(&tier, &bytes));
            assert_eq!(fast.stats().write.count - before, u64::from(sync_admit));
            assert_eq!(lsn(&tier, 4).unwrap(), 9);
            assert_eq!(tier.tier_stats().counters.staged_reads, u64::from(!sync_admit));
            tier.stop();
        }
    });
}

#[test]
fn wear_and_budget_outlive_a_restart() {
    in_simulation(|| {
        let options = TierOptions { daily_budget: Some(5 * SIZE as u64), ..named("lru2") };
        let Rig { fast, slow, tier } = rig(options.clone());
        (0..4).for_each(|n| write(&tier, &sealed(n, 9)));
        tier.write_map().unwrap();
        let before = tier.tier_stats();
        tier.stop();
        let home = Single::new(slow, SIZE).unwrap();
        let tier = Tier::open(home, fast, OWNER, options).unwrap();
        tier.start().unwrap();
        let after = tier.tier_stats();
        assert_eq!((after.created, after.budget_spent), (before.created, 4 * SIZE as u64));
        // The map that says so came after it.
        assert!(before.written - after.written < 20 * SIZE as u64 && after.written >= 4 * SIZE as u64);
        (10..14).for_each(|n| write(&tier, &sealed(n, 9)));
        assert_eq!(refused(&tier, "write budget"), 3, "one page was left of the day's budget");
        varve_rt::sleep(Duration::from_secs(86_400));
        (20..24).for_each(|n| write(&tier, &sealed(n, 9)));
        assert_eq!(refused(&tier, "write budget"), 3, "a new day");
        tier.stop();
    });
}

/// Work with hits, changes and evictions on more pages than slots; ends with a sync and a power cut. What was on the
/// fast device, and what keeping the map cost.
fn worked(recovery: MapRecovery) -> (Arc<MemDevice>, Arc<MemDevice>, BTreeMap<u64, u64>, TierStats) {
    worked_for(recovery, 4000, 100)
}

/// The same, so many steps with a sync after each `every` of them.
fn worked_for(
    recovery: MapRecovery,
    steps: u64,
    every: u64,
) -> (Arc<MemDevice>, Arc<MemDevice>, BTreeMap<u64, u64>, TierStats) {
    const PAGES: u64 = 600;
    let ms = |n: u64| (Duration::from_micros(100 * n), Duration::from_micros(120 * n));
    let latency = Latency { read: ms(1), write: ms(1), durable: ms(1), flush: ms(5) };
    let options = |name: &str| MemOptions { name: name.into(), latency: latency.clone(), ..MemOptions::default() };
    let fast = MemDevice::with(560 * SIZE as u64, options("fast"));
    let slow = MemDevice::with(PAGES * SIZE as u64, options("slow"));
    let home = Single::new(slow.clone(), SIZE).unwrap();
    let tier =
        Tier::create(home, fast.clone(), OWNER, TierOptions { map_recovery: recovery, ..named("lru2") }).unwrap();
    tier.start().unwrap();
    let mut rng = Rng::from_seed(5);
    let mut at: Vec<u64> = vec![0; PAGES as usize];
    for step in 1..steps {
        let page = rng.below(PAGES).min(rng.below(PAGES));
        if at[page as usize] == 0 || rng.below(4) == 0 {
            tier.dirtied(PageId(page), KeyspaceId(1), PageUse::default());
            at[page as usize] = step;
            write(&tier, &sealed(page, step));
        } else {
            assert_eq!(lsn(&tier, page).unwrap(), at[page as usize]);
            evict(&tier, &sealed(page, at[page as usize]));
        }
        if step.is_multiple_of(every) {
            tier.sync().unwrap();
        }
    }
    settle();
    tier.sync().unwrap();
    tier.stop();
    let stats = tier.tier_stats();
    let there = map_of(&tier);
    fast.power_cut(1);
    slow.power_cut(2);
    fast.restore_power();
    slow.restore_power();
    (fast, slow, there, stats)
}

/// Pages on the fast device with their LSNs.
fn map_of(tier: &Tier) -> BTreeMap<u64, u64> {
    let state = tier.state.lock();
    let entries = (0..state.slots.len() as u32).map(|slot| *state.slots.entry(slot));
    let current = |e: &super::super::slots::SlotEntry| matches!(e.state, SlotState::Clean | SlotState::Newer);
    entries.filter(current).map(|e| (e.page.0, e.lsn)).collect()
}

/// `zone` reads the slots of the scan list, `scan` all, `log` none; each pays for that in its own way while the tier
/// works.
#[test]
fn each_way_of_recovery_finds_the_same_map() {
    in_simulation(|| {
        let mut costs = Vec::new();
        for recovery in [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log] {
            let (fast, slow, there, run) = worked(recovery);
            assert!(there.len() > 300 && run.counters.evicted_clean > 50, "{recovery:?}: {run:?}");
            // What was kept as a log can be read in any way, and what was kept in zones by reading more of it.
            let ways: &[MapRecovery] = match recovery {
                MapRecovery::Zone => &[MapRecovery::Zone, MapRecovery::Scan],
                MapRecovery::Scan => &[MapRecovery::Scan],
                MapRecovery::Log => &[MapRecovery::Log, MapRecovery::Scan, MapRecovery::Zone],
            };
            for &way in ways {
                let options = TierOptions { map_recovery: way, ..named("lru2") };
                let home = Single::new(slow.clone(), SIZE).unwrap();
                let tier = Tier::open(home, fast.clone(), OWNER, options).unwrap();
                assert_eq!(map_of(&tier), there, "kept as {recovery:?}, recovered by {way:?}");
                let found = tier.tier_stats().recovery;
                assert_eq!(found.pages, there.len() as u64);
                if way == recovery {
                    println!("{recovery:?}: {found:?}");
                    let c = run.counters;
                    println!(
                        "  maps {} ({} bytes), journal {} records ({} bytes)",
                        c.maps, c.map_bytes, c.journal_records, c.journal_bytes
                    );
                    costs.push((found, c));
                }
            }
        }
        let [zone, scan, log] = &costs[..] else { panic!("three ways") };
        assert!(log.0.slots_read == 0 && zone.0.slots_read * 2 < scan.0.slots_read, "slots read");
        assert!(log.0.seconds < zone.0.seconds && zone.0.seconds < scan.0.seconds, "time of recovery");
        assert!(scan.1.map_bytes < zone.1.map_bytes, "maps are due when the zone is used up");
        assert!(log.1.journal_records > zone.1.journal_records, "a log says of each page that it came");
    });
}

/// Where nothing is synced for long, slots change hands many times between two flushes; what they may still hold fits
/// each map.
#[test]
fn maps_have_room_for_what_slots_may_hold_however_seldom_it_is_synced() {
    in_simulation(|| {
        let (fast, slow, there, run) = worked_for(MapRecovery::Log, 60_000, u64::MAX);
        assert!(run.counters.evicted_clean + run.counters.evicted_newer > 10_000, "{run:?}");
        let options = TierOptions { map_recovery: MapRecovery::Log, ..named("lru2") };
        let tier = Tier::open(Single::new(slow, SIZE).unwrap(), fast, OWNER, options).unwrap();
        assert_eq!(map_of(&tier), there);
    });
}

/// Where nothing is synced at all, maps say what would fill the journal: what was not said yet takes bounded memory,
/// and `log` finds the pages again.
#[test]
fn without_any_sync_maps_say_what_a_journal_has_no_room_for() {
    in_simulation(|| {
        let options = TierOptions { map_recovery: MapRecovery::Log, ..named("lru2") };
        let Rig { fast, slow, tier } = rig(options.clone());
        let room = tier.part().expect("it has a fast device").geometry.journal_records();
        let mut most = 0;
        for step in 1..4 * room as u64 {
            write(&tier, &sealed(step % 20, step));
            most = most.max(tier.state.lock().slots.records().len());
        }
        settle();
        tier.stop();
        assert!(most > room / 2 && most < room, "{most} records of {room} waited for a sync");
        assert!((4..10).contains(&tier.tier_stats().counters.maps), "{:?}", tier.tier_stats());
        let there: Vec<u64> = map_of(&tier).into_keys().collect();
        fast.power_cut(1);
        fast.restore_power();
        let tier = Tier::open(Single::new(slow, SIZE).unwrap(), fast, OWNER, options).unwrap();
        assert_eq!(map_of(&tier).into_keys().collect::<Vec<_>>(), there);
    });
}

/// A tier whose page 7 is at home, at LSN 20; and where an empty slot lies on its fast device.
fn with_an_empty_slot(options: &TierOptions) -> (Arc<MemDevice>, Arc<MemDevice>, u64) {
    let Rig { fast, slow, tier } = rig(options.clone());
    write(&tier, &sealed(7, 20));
    tier.sync().unwrap();
    tier.write_map().unwrap();
    tier.stop();
    assert_eq!(tier.state.lock().slots.find(PageId(7)), None);
    let at = tier.part().expect("it has a fast device").geometry.slot(9);
    (fast, slow, at)
}

fn reopened(fast: &Arc<MemDevice>, slow: &Arc<MemDevice>, options: &TierOptions) -> Arc<Tier> {
    Tier::open(Single::new(slow.clone(), SIZE).unwrap(), fast.clone(), OWNER, options.clone()).unwrap()
}

/// What page 7 reads as after a crash, if it is recovered this way; a map is written then.
fn recovered(fast: &Arc<MemDevice>, slow: &Arc<MemDevice>, options: &TierOptions) -> u64 {
    let tier = reopened(fast, slow, options);
    let found = lsn(&tier, 7).unwrap();
    tier.sync().unwrap();
    tier.write_map().unwrap();
    found
}

/// Two versions of a page were written to a slot and not synced; of a third page, a torn write left only what is the
/// same as in the first version.
#[test]
fn a_torn_slot_does_not_become_whole_again() {
    for recovery in [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log] {
        in_simulation(move || {
            let options = TierOptions { map_recovery: recovery, ..named("cw") };
            let (fast, slow, at) = with_an_empty_slot(&options);
            let first = sealed(7, 10);
            let torn_with = |end: &[u8]| {
                let mut bytes = AlignedBuf::new(SIZE);
                read_at(&*fast, at, &mut bytes).unwrap();
                bytes[3584..].copy_from_slice(&end[3584..]);
                write_at(&*fast, at, &bytes, true).unwrap();
            };
            write_at(&*fast, at, &first, true).unwrap();
            torn_with(&sealed(7, 15));
            assert_eq!(recovered(&fast, &slow, &options), 20);
            torn_with(&first);
            assert_eq!(recovered(&fast, &slow, &options), 20, "{recovery:?}");
        });
    }
}

/// A page was in a slot whose record was not synced before a crash. As a log, the tier does not look there.
#[test]
fn what_a_log_left_in_a_slot_is_not_found_by_other_ways() {
    for other in [MapRecovery::Zone, MapRecovery::Scan] {
        in_simulation(move || {
            let log = TierOptions { map_recovery: MapRecovery::Log, ..named("cw") };
            let (fast, slow, at) = with_an_empty_slot(&log);
            write_at(&*fast, at, &sealed(7, 10), true).unwrap();
            let other = TierOptions { map_recovery: other, ..named("cw") };
            for way in [&log, &log, &other, &other, &log, &other] {
                assert_eq!(recovered(&fast, &slow, way), 20, "{:?}", way.map_recovery);
            }
        });
    }
}

/// A clean copy is in a slot of the scan list when the tier begins to be kept as a log, which does not look there. Its
/// page changes, and not even a map is due before it is kept the other way again.
#[test]
fn what_was_there_before_a_log_was_kept_is_not_found_after_it() {
    for other in [MapRecovery::Zone, MapRecovery::Scan] {
        in_simulation(move || {
            let other = TierOptions { map_recovery: other, ..named("cw") };
            let (fast, slow, at) = with_an_empty_slot(&other);
            write_at(&*fast, at, &sealed(7, 20), true).unwrap();
            let log = reopened(&fast, &slow, &TierOptions { map_recovery: MapRecovery::Log, ..named("cw") });
            write(&log, &sealed(7, 30));
            log.sync().unwrap();
            drop(log);
            assert_eq!(recovered(&fast, &slow, &other), 30, "{:?}", other.map_recovery);
        });
    }
}
