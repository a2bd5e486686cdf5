//! One thread merges for all LSM keyspaces of a database: those whose writers would have to wait go first.

use std::time::Duration;
use varve::{Db, Devices, Durability, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use varve_models::{Latency, MemDevice, MemOptions};
use varve_rt::{JoinHandle, sim, sleep, spawn};

/// Small segments, and nobody is slowed down.
fn kind() -> KeyspaceKind {
    let shape = LsmOptions { l0_trigger: 2, l0_slowdown: 100, l0_stop: 100, ..LsmOptions::default() };
    let small =
        LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, level1_bytes: Some(128 << 10), ..shape };
    KeyspaceKind::Lsm(small)
}

fn put(rows: &Keyspace, n: u32) {
    rows.put_with((n * 7919 % 100_003).to_be_bytes(), [n as u8; 500], Durability::None).unwrap();
}

fn merges(db: &Db, name: &str) -> u64 {
    db.stats().lsm.iter().find(|stats| stats.name == name).unwrap().merges
}

#[test]
fn what_keeps_writers_from_waiting_goes_before_a_merge_by_hand_of_another_keyspace() {
    let outcome = sim::run(sim::Config::default(), || {
        let ms = Duration::from_millis;
        let latency = Latency { write: (ms(5), ms(10)), ..Latency::default() };
        let data = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
        let layout = Layout { page_size: 4096, log_bytes: 16 << 20, ..Layout::default() };
        let options = Options { cache_bytes: 16 << 20, ..Options::default() };
        let db = Db::create_on(Devices::new(data, MemDevice::new(0)), &layout, options).unwrap();
        let [first, busy] = ["first", "busy"].map(|name| db.create_keyspace_of(name, kind()).unwrap());
        (0..10_000).for_each(|n| put(&first, n));
        db.wait_for_merges().unwrap();
        let before = (merges(&db, "first"), merges(&db, "busy"));
        let asked: JoinHandle<()> = {
            let first = first.clone();
            spawn("by hand", move || first.compact(None, ..).unwrap())
        };
        for n in 0.. {
            if asked.is_finished() {
                break;
            }
            put(&busy, n);
            sleep(Duration::from_micros(200));
        }
        let by_hand = merges(&db, "first") - before.0;
        let beside = merges(&db, "busy") - before.1;
        assert!(by_hand > 4 && beside > 4, "{by_hand} merges by hand, {beside} of the busy keyspace beside them");
        asked.join().unwrap();
        drop((first, busy));
        db.close().unwrap();
    });
    outcome.result.unwrap_or_else(|e| panic!("{e:?}"));
}
