//! Merges near the data over the wire: the worker behind a modelled link, on a host of its own.

use std::time::Duration;
use varve::{
    Db, Devices, Durability, JobService, KeyspaceKind, Layout, LsmOptions, MergeBy, NearOptions, Options, RemoteWorker,
    WorkerOptions,
};
use varve_device::Latched;
use varve_models::{LinkConfig, LinkModel, MemDevice, Port};
use varve_rt::sim;
use varve_wire::{Limits, RemoteDevice, Session, SessionOptions, Worker};

/// Rows that are put in `rounds` rounds, with a merge or more after each; what the worker did, and whether all rows are
/// there.
fn run(merge: MergeBy, cut_after: Option<u64>) -> (varve::NearStats, bool) {
    let main = move || {
        let link = LinkModel::new(LinkConfig { latency_us: 50.0, mb_s: 118.0, message_us: 10.0, far_message_us: None });
        let (data, log) = (MemDevice::new(0), MemDevice::new(0));
        let port = Port::new(link, "data");
        let (listening, there) = (port.clone(), data.clone());
        let near = sim::Host::new(sim::HostConfig { name: "near".into(), ..sim::Config::default().host() });
        let serve = move || {
            let there = Latched::new(there);
            let merges = varve::Worker::start(there.clone(), WorkerOptions::default()).unwrap();
            let worker = Worker::new(there, Some(JobService::new(merges.clone())), Limits::default()).unwrap();
            let comes = listening.listen();
            varve_rt::spawn_daemon("accepts", move || {
                while let Ok(connection) = comes.recv() {
                    let worker = worker.clone();
                    varve_rt::spawn_daemon("serves", move || worker.serve(connection));
                }
            });
            merges
        };
        let merges = near.spawn("near", serve).join().unwrap();
        let session = Session::open(port, SessionOptions::default()).unwrap();
        let remote = RemoteWorker::new(session.clone());
        let devices = Devices::new(RemoteDevice::new(session), log);
        let near = NearOptions { patience: Duration::from_millis(200), ..NearOptions::new(remote) };
        let options = Options { cache_bytes: 16 << 20, durability: Durability::None, ..Options::default() };
        let db = Db::create_on(devices.with_near(near), &Layout::default(), options).unwrap();
        let small = LsmOptions { segment_bytes: 64 << 10, memtable_bytes: 64 << 10, ..LsmOptions::default() };
        let kind = KeyspaceKind::Lsm(LsmOptions { block_bytes: Some(4 << 10), merge, blocks: 4 << 10, ..small });
        let events = db.create_keyspace_of("events", kind).unwrap();
        let key = |n: u64| format!("key {:05}", n * 7919 % 10_007).into_bytes();
        for round in 0..20u64 {
            if cut_after == Some(round) {
                merges.stop();
            }
            for n in round * 120..(round + 1) * 120 {
                events.put(&key(n), &[n as u8; 500]).unwrap();
            }
            db.wait_for_merges().unwrap();
        }
        let all = (0..2400).all(|n| events.get(&key(n)).unwrap().as_deref() == Some(&[n as u8; 500][..]));
        let stats = db.near_stats().unwrap();
        assert!(db.check().unwrap().is_clean());
        drop(events);
        db.close().unwrap();
        (stats, all)
    };
    sim::run(sim::Config { seed: 3, ..sim::Config::default() }, main).unwrap()
}

#[test]
fn a_worker_behind_a_link_merges_its_part() {
    let (stats, all) = run(MergeBy::Copro, None);
    assert!(all && stats.fallbacks.all() == 0, "{stats:?}");
    assert!(stats.device.tasks >= 3 && stats.host.tasks > 0 && stats.message_bytes > 500, "{stats:?}");
    assert_eq!(run(MergeBy::Copro, None).0, stats, "the same again");
    let (near, all) = run(MergeBy::Near, None);
    assert!(all && near.host.tasks == 0 && near.device.tasks >= 3, "{near:?}");
}

#[test]
fn when_the_worker_stops_the_host_goes_on_alone() {
    let (stats, all) = run(MergeBy::Tstore, Some(11));
    assert!(all && stats.fallbacks.refused > 0 && stats.device.tasks > 0, "{stats:?}");
    assert!(stats.last_fallback.is_some());
}
