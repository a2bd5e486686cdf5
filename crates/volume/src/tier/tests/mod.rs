//! Directed tests of the tier, and its slot table against events in random order.

mod operation;

use super::manager::Place;
use super::slots::{SlotState, Slots};
use super::*;
use crate::{KeyspaceId, PageId, PageIo, PageUse, ReadWhy, Single, TestStore, WriteWhy, page};
use proptest::prelude::*;
use std::time::Duration;
use varve_device::{AlignedBuf, Faults, Mistake};
use varve_models::{MemDevice, Powered};
use varve_rt::sim::{Config, run};

const SIZE: usize = 4096;

fn sealed(id: u64, lsn: u64) -> AlignedBuf {
    let mut bytes = AlignedBuf::new(SIZE);
    bytes[page::HEADER..].fill(lsn as u8);
    page::set_kind(&mut bytes, 1);
    page::set_lsn(&mut bytes, lsn);
    page::set_keyspace(&mut bytes, KeyspaceId(1));
    page::seal(&mut bytes, PageId(id));
    bytes
}

fn lsn(store: &dyn PageStore, id: u64) -> Result<u64, VolumeError> {
    let mut bytes = AlignedBuf::new(SIZE);
    // SAFETY: `bytes` outlives the ticket, which is waited for.
    let mut ticket = store.submit(vec![unsafe { PageIo::read(PageId(id), ReadWhy::Demand, bytes.as_mut_ptr()) }]);
    ticket.wait(0).map(|_| page::lsn(&bytes))
}

fn write(store: &dyn PageStore, bytes: &AlignedBuf) {
    let usage = PageUse { logical_reads: 1, ..PageUse::default() };
    // SAFETY: `bytes` outlives the ticket, which is waited for.
    let io =
        unsafe { PageIo::write(page::id(bytes), KeyspaceId(1), WriteWhy::Replacement, usage, bytes.as_ptr(), None) };
    store.submit(vec![io]).wait_all().unwrap();
}

fn evict(store: &dyn PageStore, bytes: &AlignedBuf) -> bool {
    store.evict_clean(page::id(bytes), bytes, PageUse { logical_reads: 1, ..PageUse::default() })
}

struct Rig {
    fast: Arc<MemDevice>,
    slow: Arc<MemDevice>,
    tier: Arc<Tier>,
}

fn rig(options: TierOptions) -> Rig {
    let (fast, slow) = (MemDevice::new(200 * SIZE as u64), MemDevice::new(100 * SIZE as u64));
    let home = Single::new(slow.clone(), SIZE).unwrap();
    let tier = Tier::create(home, fast.clone(), [3; 16], options).unwrap();
    tier.start().unwrap();
    Rig { fast, slow, tier }
}

fn named(manager: &str) -> TierOptions {
    TierOptions { manager: manager.into(), ..TierOptions::default() }
}

/// Waits until what was admitted is on the fast device.
fn settle() {
    varve_rt::sleep(Duration::from_secs(2));
}

fn in_simulation(f: impl FnOnce() + Send + 'static) {
    run(Config::default(), f).unwrap();
}

/// A clean copy is dropped because its page changed; the new version goes home. After a crash the old copy must not
/// come back.
fn resurrected(faults: Faults) -> u64 {
    run(Config::default(), move || {
        let options = named("cw");
        let Rig { fast, slow, tier } = rig(options.clone());
        tier.belongs_to(&Health::with(faults));
        let old = sealed(7, 10);
        write(&tier, &old);
        assert!(evict(&tier, &old));
        settle();
        tier.write_map().unwrap();
        tier.dirtied(PageId(7), KeyspaceId(0), PageUse::default());
        write(&tier, &sealed(7, 20));
        tier.sync().unwrap();
        tier.stop();
        fast.power_cut(1);
        slow.power_cut(2);
        fast.restore_power();
        slow.restore_power();
        let home = Single::new(slow, SIZE).unwrap();
        lsn(&Tier::open(home, fast, [3; 16], options).unwrap(), 7).unwrap()
    })
    .unwrap()
}

#[test]
fn a_dropped_copy_does_not_come_back() {
    assert_eq!(resurrected(Faults::default()), 20);
    assert_eq!(resurrected(Mistake::TierNoJournal.into()), 10, "the journal is what prevents it");
}

#[test]
fn reads_go_to_the_copy_and_the_newest_version_comes_home_before_its_slot_is_reused() {
    in_simulation(|| {
        let Rig { slow, tier, .. } = rig(named("lru2"));
        for n in 0..90 {
            write(&tier, &sealed(n, 100 + n));
        }
        settle();
        let stats = tier.tier_stats();
        assert!(stats.counters.slow_copies > 0, "more pages than slots: {stats:?}");
        for n in 0..90 {
            assert_eq!(lsn(&tier, n).unwrap(), 100 + n);
        }
        assert!(tier.tier_stats().counters.fast_reads > 20);
        tier.all_home().unwrap();
        let home = Single::new(slow, SIZE).unwrap();
        for n in 0..90 {
            assert_eq!(lsn(&*home, n).unwrap(), 100 + n, "everything is at home");
        }
        tier.stop();
    });
}

#[test]
fn a_damaged_copy_is_replaced_by_home_and_a_damaged_newest_version_is_an_error() {
    in_simulation(|| {
        for newer in [false, true] {
            let Rig { fast, tier, .. } = rig(named(if newer { "lru2" } else { "cw" }));
            let bytes = sealed(5, 50);
            write(&tier, &bytes);
            if !newer {
                assert!(evict(&tier, &bytes));
                settle();
            }
            let slot = tier.state.lock().slots.find(PageId(5)).expect("it is there");
            varve_device::write_at(&*fast, tier.part().unwrap().geometry.slot(slot), &[7; SIZE], false).unwrap();
            match lsn(&tier, 5) {
                Ok(50) if !newer => assert_eq!(tier.tier_stats().counters.repaired, 1),
                Err(VolumeError::Damaged { page, .. }) if newer => assert_eq!(page, PageId(5)),
                other => panic!("newer {newer}: {other:?}"),
            }
            tier.stop();
        }
    });
}

#[test]
fn refusals_have_reasons() {
    in_simulation(|| {
        let Rig { tier, .. } = rig(TierOptions { daily_budget: Some(3 * SIZE as u64), ..named("lru2") });
        (0..5).for_each(|n| write(&tier, &sealed(n, 9)));
        let stats = tier.tier_stats();
        let budget = stats::REFUSALS.iter().position(|(name, _)| *name == "write budget").unwrap();
        assert_eq!((stats.counters.refused[budget], stats.occupied), (2, 3));
        tier.stop();
        assert!(!evict(&tier, &sealed(9, 9)));
        let detached = stats::REFUSALS.iter().position(|(name, _)| *name == "detached").unwrap();
        assert_eq!(tier.tier_stats().counters.refused[detached], 1);
    });
}

#[test]
fn options_that_cannot_work_are_named() {
    let home = TestStore::new(SIZE, 10);
    let message =
        |options| Tier::create(home.clone(), MemDevice::new(1 << 20), [0; 16], options).err().unwrap().to_string();
    assert!(message(named("best")).contains("mv-fifo"));
    assert!(message(TierOptions { zone: 7.0, ..TierOptions::default() }).contains("zone"));
    let small = Tier::create(home.clone(), MemDevice::new(64 << 10), [0; 16], TierOptions::default());
    assert!(small.err().unwrap().to_string().contains("too few"));
}

#[derive(Debug, Clone)]
enum Event {
    Admit { page: u8, newer: bool },
    Finish { well: bool },
    Vacate { nth: u8 },
    Rank { nth: u8, rank: u8 },
    Flush,
    BeginMap { zone: u8 },
    EndMap { written: bool },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (any::<u8>(), any::<bool>()).prop_map(|(page, newer)| Event::Admit { page, newer }),
        5 => prop::bool::weighted(0.9).prop_map(|well| Event::Finish { well }),
        3 => any::<u8>().prop_map(|nth| Event::Vacate { nth }),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(nth, rank)| Event::Rank { nth, rank }),
        1 => Just(Event::Flush),
        1 => any::<u8>().prop_map(|zone| Event::BeginMap { zone }),
        1 => prop::bool::weighted(0.8).prop_map(|written| Event::EndMap { written }),
    ]
}

#[test]
fn what_a_slot_held_is_forgotten_though_it_is_written_again_during_each_flush() {
    let mut slots = Slots::new(1, false);
    let mut pages = 0;
    for lsn in 1..100 {
        let flush = slots.begin_flush();
        let slot = slots.take_free();
        if let Some(slot) = slot {
            slots.occupy(slot, PageId(lsn), SlotState::Clean, 1.0);
            slots.begin(slot, Some(lsn));
            slots.end_write(slot, true);
            pages += 1;
        }
        slots.flushed(flush);
        let map = slots.begin_map(1, &mut |_, _| 1.0);
        slots.end_map(true);
        assert!(map.records.len() <= 2, "{} records after {lsn} pages", map.records.len());
        slot.inspect(|slot| _ = slots.vacate(*slot));
    }
    assert!(pages >= 49, "{pages} pages found the slot free: every second flush makes certain what it holds");
}

/// However long a flush takes, a slot never may hold more than a map has room to say, and what is recorded stays
/// bounded.
#[test]
fn what_slots_may_hold_is_bounded_though_no_flush_ends() {
    for log_everything in [false, true] {
        let mut slots = Slots::new(8, log_everything);
        let mut admitted = 0;
        for lsn in 1..40_000 {
            let Some(slot) = slots.take_free() else { continue };
            slots.occupy(slot, PageId(lsn), SlotState::Newer, 1.0);
            for write in 0..2000 * u64::from(lsn < 20) + 1 {
                slots.begin(slot, Some(lsn + write));
                slots.end_write(slot, true);
            }
            slots.vacate(slot);
            admitted += 1;
            slots.check();
        }
        assert_eq!(admitted, 16, "two pages a slot");
        assert!(slots.unsaid() && slots.records().len() < 20_000, "{} records", slots.records().len());
        let map = slots.begin_map(1, &mut |_, _| 1.0);
        let flush = slots.begin_flush();
        assert!(map.records.len() <= 16, "{} records", map.records.len());
        slots.end_map(true);
        slots.flushed(flush);
        assert!(slots.take_free().is_some() && !slots.unsaid() && slots.records().is_empty());
    }
}

/// A write that failed may have reached the device: what it wrote is not to be found again.
#[test]
fn a_write_that_failed_is_recorded_as_one_that_may_be_there() {
    let mut slots = Slots::new(4, false);
    let slot = slots.take_free().unwrap();
    slots.occupy(slot, PageId(7), SlotState::Newer, 1.0);
    slots.begin(slot, Some(10));
    slots.end_write(slot, false);
    slots.vacate(slot);
    let freed = super::records::Record::Freed { slot, page: PageId(7), lsn: 10 };
    assert_eq!(slots.records(), [freed]);
    assert_eq!(slots.begin_map(1, &mut |_, _| 1.0).records, [freed]);
}

#[test]
fn ranks_are_renewed_in_turn() {
    let mut slots = Slots::new(8, false);
    for n in 0..6u64 {
        let slot = slots.take_free().unwrap();
        slots.occupy(slot, PageId(n), SlotState::Clean, if n == 4 { f64::INFINITY } else { n as f64 });
    }
    // Page 5 has fallen below all others, and nobody read or wrote it; 4 cannot leave.
    let mut ranker = |page: PageId, _| if page.0 >= 4 { -1.0 } else { page.0 as f64 };
    let lowest = |slots: &mut Slots, ranker: &mut dyn FnMut(PageId, bool) -> f64| {
        let (slot, _) = slots.lowest(ranker).unwrap();
        slots.entry(slot).page
    };
    assert_eq!(lowest(&mut slots, &mut ranker), PageId(0));
    slots.renew(3, &mut ranker);
    slots.renew(5, &mut ranker);
    assert_eq!(lowest(&mut slots, &mut ranker), PageId(5));
    slots.check();
}

#[test]
fn a_page_that_was_never_written_costs_what_it_will_cost() {
    in_simulation(|| {
        let Rig { tier, .. } = rig(named("cc"));
        assert_eq!(tier.class_of_new(), Place::Fast.class(), "there is room for any page");
        let clean = sealed(0, 9);
        assert!(evict(&tier, &clean));
        settle();
        tier.dirtied(PageId(0), KeyspaceId(1), PageUse::default());
        let mut changes = Vec::new();
        tier.drain_class_changes(&mut changes);
        assert_eq!(changes, [(PageId(0), Place::Fast.class())], "its next write gets a slot again");
        (0..60).for_each(|n| write(&tier, &sealed(n, 10)));
        assert_eq!(tier.class_of_new(), Place::Slow.class(), "somebody would have to leave for it");
        tier.stop();
        assert_eq!(rig(named("cw")).tier.class_of_new(), Place::Slow.class(), "it would be written home");
    });
}

proptest! {
    #[test]
    fn the_slot_table_keeps_its_invariants(events in prop::collection::vec(event(), 1..200)) {
        let mut slots = Slots::new(16, false);
        let (mut in_flight, mut lsn, mut writing_map) = (Vec::new(), 0, false);
        for event in events {
            match event {
                Event::Admit { page, newer } => {
                    let page = PageId(u64::from(page) % 24);
                    if slots.find(page).is_none() && let Some(slot) = slots.take_free() {
                        prop_assert_eq!(slots.entry(slot).io, 0, "a slot in use is not given away");
                        lsn += 1;
                        slots.occupy(slot, page, if newer { SlotState::Newer } else { SlotState::Clean }, lsn as f64);
                        slots.begin(slot, Some(lsn));
                        in_flight.push(slot);
                        prop_assert_eq!(slots.place(page), Place::Fast);
                    }
                }
                Event::Finish { well } => {
                    if let Some(slot) = in_flight.pop() {
                        slots.end_write(slot, well);
                    }
                }
                Event::Vacate { nth } | Event::Rank { nth, .. } => {
                    let occupied: Vec<u32> = (0..16).filter(|s| slots.entry(*s).state != SlotState::Free).collect();
                    if let Some(&slot) = occupied.get(usize::from(nth) % occupied.len().max(1)) {
                        match event {
                            Event::Rank { rank, .. } => slots.set_rank(slot, f64::from(rank)),
                            _ => _ = slots.vacate(slot),
                        }
                    }
                }
                Event::Flush => {
                    let n = slots.begin_flush();
                    slots.flushed(n);
                }
                Event::BeginMap { zone } if !writing_map => {
                    let map = slots.begin_map(usize::from(zone % 16) + 1, &mut |page, _| page.0 as f64);
                    writing_map = true;
                    for (at, entry) in map.entries.iter().enumerate() {
                        let now = slots.entry(at as u32);
                        prop_assert!(entry.page.is_none() || entry.page == Some(now.page));
                        prop_assert!(entry.scan || (now.state != SlotState::Free && now.writes == 0), "slot {}", at);
                    }
                }
                Event::EndMap { written } if writing_map => {
                    slots.end_map(written);
                    writing_map = false;
                }
                Event::BeginMap { .. } | Event::EndMap { .. } => {}
            }
            slots.check();
            if let Some((slot, _)) = slots.lowest(&mut |page, _| page.0 as f64) {
                prop_assert_eq!(slots.entry(slot).io, 0);
            }
        }
    }
}
