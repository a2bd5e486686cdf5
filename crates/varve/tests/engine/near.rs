//! Merges near the data: a worker in the same process over the same device, sound and at fault.

use crate::trap::Trap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::{
    Db, Devices, Durability, Error, Keyspace, KeyspaceKind, Layout, Load, LsmOptions, MergeBy, MergeMode, Near,
    NearOptions, NearStats, NotStarted, Options, Progress, Worker, WorkerOptions,
};
use varve_device::Latched;
use varve_models::MemDevice;
use varve_rt::{Mutex, Rng};

struct Drives {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
}

impl Drives {
    fn new() -> Drives {
        Drives { data: MemDevice::new(0), log: MemDevice::new(0) }
    }

    fn worker(&self) -> Arc<Worker> {
        Worker::start(Latched::new(self.data.clone()), WorkerOptions::default()).unwrap()
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }
}

fn options() -> Options {
    Options { cache_bytes: 16 << 20, durability: Durability::None, ..Options::default() }
}

fn lsm(merge: MergeBy) -> KeyspaceKind {
    let small = LsmOptions { segment_bytes: 64 << 10, memtable_bytes: 64 << 10, ..LsmOptions::default() };
    KeyspaceKind::Lsm(LsmOptions { block_bytes: Some(4 << 10), merge, blocks: 4 << 10, ..small })
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Puts and deletes at random, the same for a seed. What memory holds is flushed each 140, however fast the thread is
/// that does so: a merge or more each 700.
fn fill(db: &Db, keyspace: &Keyspace, rows: &mut Rows, seed: u64, n: u64) {
    let mut rng = Rng::from_seed(seed);
    for i in 0..n {
        if i % 140 == 139 {
            db.wait_for_merges().unwrap();
        }
        let key = format!("key {:05}", rng.below(6000)).into_bytes();
        if rng.one_in(5) {
            keyspace.delete(&key).unwrap();
            rows.remove(&key);
        } else {
            let mut value = vec![0; 40 + rng.below(900) as usize];
            rng.fill_bytes(&mut value);
            keyspace.put(&key, &value).unwrap();
            rows.insert(key, value);
        }
    }
}

fn all(db: &Db, keyspace: &Keyspace) -> Rows {
    db.snapshot().unwrap().scan(keyspace, ..).unwrap().map(|row| row.unwrap()).collect()
}

const BY: [MergeBy; 6] =
    [MergeBy::Cokv, MergeBy::Copro, MergeBy::CoproPlus, MergeBy::Tstore, MergeBy::Dstore, MergeBy::Near];

#[test]
fn every_executor_that_uses_a_worker_leaves_the_same_rows() {
    for by in BY {
        let drives = Drives::new();
        let worker = drives.worker();
        let devices = drives.devices().with_near(NearOptions::new(worker.clone()));
        let db = Db::create_on(devices.clone(), &Layout::default(), options()).unwrap();
        let events = db.create_keyspace_of("events", lsm(by)).unwrap();
        let mut rows = Rows::new();
        fill(&db, &events, &mut rows, 1, 3000);
        let before = rows.clone();
        let snapshot = db.snapshot().unwrap();
        fill(&db, &events, &mut rows, 2, 3000);
        db.wait_for_merges().unwrap();
        let stats = db.near_stats().unwrap();
        assert_eq!(stats.fallbacks.all(), 0, "{by:?}: {:?}", stats.last_fallback);
        // How many there are depends on how flushes and merges meet.
        assert!(stats.device.tasks > 0 && stats.device.written > 0, "{by:?}: {stats:?}");
        assert!(by == MergeBy::Near || stats.host.tasks > 0 && stats.cut > 0, "{by:?}: {stats:?}");
        assert_eq!(stats.device.pipelined > 0, by != MergeBy::Cokv, "{by:?}");
        let mode = if by == MergeBy::Cokv { MergeMode::Linear } else { MergeMode::Pipeline };
        let modes = (stats.host.mode, stats.device.mode);
        assert_eq!(modes, (Some(mode).filter(|_| by != MergeBy::Near), Some(mode)), "{by:?}");
        let loads = (stats.host.load, stats.device.load.map(|load| load.free));
        assert_eq!((loads, stats.link), ((None, Some(256 << 20)), None), "{by:?}: nobody says how busy the host is");
        assert_eq!(db.stats().lsm[0].without_worker, None);
        let seen: Rows = snapshot.scan(&events, ..).unwrap().map(|row| row.unwrap()).collect();
        assert!(seen == before, "{by:?}: a snapshot sees what it saw");
        assert!(all(&db, &events) == rows, "{by:?}");
        drop(snapshot);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{by:?}: {report:?}");
        drop(events);
        db.close().unwrap();
        // It is the host's database, worker or not.
        let db = Db::open_on(drives.devices(), options()).unwrap();
        let events = db.keyspace("events").unwrap();
        fill(&db, &events, &mut rows, 3, 1000);
        assert_eq!(db.stats().lsm[0].without_worker, Some(by));
        let told = db.stats().rows().into_iter().find(|(name, _)| name == "lsm.events.without_worker");
        assert_eq!(told.map(|(_, figure)| figure.to_string()), Some(by.name().to_string()));
        assert!(db.near_stats().is_none() && all(&db, &events) == rows, "{by:?}");
        drop(events);
        db.close().unwrap();
        worker.stop();
    }
}

/// Rows of so many bytes all over a keyspace that is merged as they come.
fn put(db: &Db, keyspace: &Keyspace, rows: std::ops::Range<u64>, bytes: usize) {
    for i in rows {
        if i % 70 == 69 {
            db.wait_for_merges().unwrap();
        }
        // Each key once, far from the one before.
        keyspace.put(format!("key {:05}", i * 4801 % 10_007).as_bytes(), &vec![7; bytes]).unwrap();
    }
    db.wait_for_merges().unwrap();
}

/// Merges of late large values take in the small ones that lie below, and are linear all the same.
#[test]
fn the_window_of_the_host_has_the_last_writes() {
    let drives = Drives::new();
    let mut near = NearOptions::new(drives.worker());
    (near.host.window, near.host.large_bytes) = (100, 500);
    let devices = drives.devices().with_near(near);
    let db = Db::create_on(devices, &Layout::default(), options()).unwrap();
    let keyspace = db.create_keyspace_of("rows", lsm(MergeBy::CoproPlus)).unwrap();
    let mut before = NearStats::default();
    let mut tasks = |db: &Db| {
        let now = db.near_stats().unwrap();
        let of = (now.host.tasks - before.host.tasks, now.host.pipelined - before.host.pipelined);
        let large = (now.host.large - before.host.large) as f64 / (now.host.pairs - before.host.pairs) as f64;
        before = now;
        (of, large)
    };
    put(&db, &keyspace, 0..7000, 40);
    let ((all, pipelined), _) = tasks(&db);
    assert!(all > 0 && pipelined == all, "small values: {pipelined} of {all}");
    put(&db, &keyspace, 7000..7140, 600);
    tasks(&db);
    put(&db, &keyspace, 7140..8540, 600);
    let ((all, pipelined), large) = tasks(&db);
    assert!(all > 0 && large < 0.7, "{all} sub-tasks merged mostly small values: {large} large ones");
    assert_eq!(pipelined, 0, "large values are written: of {all}");
    put(&db, &keyspace, 8540..8680, 40);
    tasks(&db);
    put(&db, &keyspace, 8680..10_007, 40);
    let ((all, pipelined), _) = tasks(&db);
    assert!(all > 0 && pipelined == all, "small values again: {pipelined} of {all}");
}

/// The host is busy, and the worker begins linear and stays so.
#[test]
fn each_side_decides_by_itself_and_says_by_what() {
    let drives = Drives::new();
    let worker = drives.worker();
    let mut near = NearOptions::new(worker.clone());
    near.load = Some(Arc::new(|| Load { cpu: 0.9, memory: 0.25, ..Load::default() }));
    (near.host.cpu, near.host.pairs) = (0.8, 0.2);
    (near.device.first, near.device.hysteresis) = (MergeMode::Linear, 0.7);
    let db = Db::create_on(drives.devices().with_near(near), &Layout::default(), options()).unwrap();
    let events = db.create_keyspace_of("events", lsm(MergeBy::CoproPlus)).unwrap();
    let mut rows = Rows::new();
    fill(&db, &events, &mut rows, 5, 4000);
    let stats = db.near_stats().unwrap();
    assert_eq!((stats.fallbacks.all(), stats.host.pipelined, stats.device.pipelined), (0, 0, 0), "{stats:?}");
    assert_eq!((stats.host.mode, stats.device.mode), (Some(MergeMode::Linear), Some(MergeMode::Linear)));
    let load = stats.host.load.unwrap();
    assert_eq!((load.cpu, load.memory, stats.host.large_share), (0.9, 0.25, 0.0));
    // One of the two is done before the other, and waits.
    assert!(stats.host.waited + stats.device.waited > Duration::ZERO, "{stats:?}");
    let text = db.stats().prometheus();
    for line in [
        "varve_near_pipelined{side=\"worker\"} 0\n",
        "varve_near_cpu_ratio{side=\"host\"} 0.9\n",
        "varve_near_memory_ratio{side=\"host\"} 0.25\n",
        "varve_near_large_ratio{side=\"host\"} 0\n",
        "varve_lsm_without_worker{keyspace=\"events\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    drop(events);
    db.close().unwrap();
    worker.stop();
}

#[test]
fn what_needs_a_worker_is_refused_where_none_is() {
    let drives = Drives::new();
    let db = Db::create_on(drives.devices(), &Layout::default(), options()).unwrap();
    let refused = db.create_keyspace_of("events", lsm(MergeBy::Copro)).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Invalid(what) if what.contains("copro") && what.contains("worker")), "{refused}");
    db.create_keyspace_of("events", lsm(MergeBy::Pcp)).map(drop).unwrap();
    db.close().unwrap();
    let few = WorkerOptions { jobs: 0, ..WorkerOptions::default() };
    assert!(Worker::start(Latched::new(drives.data.clone()), few).is_err());
}

/// How a worker is at fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Hung,
    Dead,
    Refuses,
    Garbage,
    /// It dies when it has told of something that is finished.
    DiesMidway,
    /// The same, and on the pages of what was finished is something else, as sound.
    DiesAndForgets,
    /// It answers with what it answered before.
    Late,
    /// The answer has the right form, but nothing is on the pages.
    Lies,
}

/// A worker that is at fault every second time.
struct AtFault {
    worker: Arc<Worker>,
    fault: Fault,
    before: Mutex<Option<Vec<u8>>>,
    /// Number of the last job of which something was told to be finished.
    told: Mutex<u64>,
}

/// A part of an answer in which the checksum of the last segment's last page is another one.
fn unlike(mut part: Vec<u8>) -> Vec<u8> {
    // The lowest bits of the last number, and the checksum of head and body (`docs/format.md`).
    *part.last_mut().unwrap() ^= 1;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&part[4..12]), &part[16..]);
    part[12..16].copy_from_slice(&sum.to_le_bytes());
    part
}

impl AtFault {
    /// Something is finished, or all of it; afterwards it is lost.
    fn die_midway(&self, id: u64) -> Progress {
        let dies = *self.told.lock() == id;
        if dies {
            self.worker.cancel(id);
        }
        loop {
            match self.worker.wait(id, Duration::ZERO) {
                Progress::Ended(_) if dies => return Progress::Lost("it was restarted".into()),
                Progress::Further(part) if !dies => {
                    *self.told.lock() = id;
                    return Progress::Further(if self.fault == Fault::DiesAndForgets { unlike(part) } else { part });
                }
                Progress::Running | Progress::Further(_) => varve_rt::yield_now(),
                ended => return ended,
            }
        }
    }
}

impl Near for AtFault {
    fn attach(&self) -> Result<u64, String> {
        self.worker.attach()
    }

    fn start(&self, id: u64, job: &[u8]) -> Result<(), NotStarted> {
        if id.is_multiple_of(2) && self.fault == Fault::Refuses {
            return Err(NotStarted::Refused("no".into()));
        }
        self.worker.start(id, job)
    }

    fn wait(&self, id: u64, most: Duration) -> Progress {
        if id.is_multiple_of(2) && self.fault == Fault::Hung {
            varve_rt::sleep(most);
            return Progress::Running;
        }
        if id.is_multiple_of(2) && matches!(self.fault, Fault::DiesMidway | Fault::DiesAndForgets) {
            return self.die_midway(id);
        }
        let mut progress = self.worker.wait(id, most);
        let Progress::Ended(answer) = &mut progress else { return progress };
        let before = self.before.lock().replace(answer.clone());
        match self.fault {
            Fault::Dead if id.is_multiple_of(2) => return Progress::Lost("it was restarted".into()),
            Fault::Garbage if id.is_multiple_of(2) => {
                let at = answer.len() / 2;
                answer[at] ^= 16;
            }
            Fault::Late if id.is_multiple_of(2) => *answer = before.unwrap_or_default(),
            _ => {}
        }
        progress
    }

    fn cancel(&self, id: u64) {
        self.worker.cancel(id);
    }

    fn load(&self) -> Load {
        self.worker.load()
    }
}

/// How often a fault struck, by what it should have led to.
fn struck(fault: Fault, stats: &NearStats) -> u64 {
    let by = &stats.fallbacks;
    match fault {
        Fault::Hung => by.late,
        Fault::Dead => by.lost,
        Fault::DiesMidway => by.lost.min(stats.resumed).min(stats.resumed_bytes),
        Fault::DiesAndForgets => by.lost.min(u64::from(stats.resumed == 0)),
        Fault::Refuses => by.refused,
        Fault::Garbage | Fault::Late => by.garbage,
        Fault::Lies => by.failed,
    }
}

#[test]
fn whatever_a_worker_does_nothing_is_lost_or_doubled() {
    use Fault::*;
    for fault in [Hung, Dead, DiesMidway, DiesAndForgets, Refuses, Garbage, Late, Lies] {
        let drives = Drives::new();
        // One that lies works on a device of its own.
        let on = if fault == Fault::Lies { drives.data.clone_image() } else { drives.data.clone() };
        let worker = Worker::start(Latched::new(on), WorkerOptions::default()).unwrap();
        let near =
            Arc::new(AtFault { worker: worker.clone(), fault, before: Mutex::default(), told: Mutex::default() });
        let patience = Duration::from_millis(if fault == Fault::Hung { 300 } else { 60_000 });
        let near = NearOptions { patience, ..NearOptions::new(near) };
        let db = Db::create_on(drives.devices().with_near(near), &Layout::default(), options()).unwrap();
        let events = db.create_keyspace_of("events", lsm(MergeBy::Copro)).unwrap();
        let mut rows = Rows::new();
        // Whether a job is still under way when it is asked for depends on how fast the threads are.
        for round in 0.. {
            fill(&db, &events, &mut rows, 5 + round, 4500);
            db.wait_for_merges().unwrap();
            let stats = db.near_stats().unwrap();
            if struck(fault, &stats) > 0 {
                break;
            }
            assert!(round < 20, "{fault:?}: {stats:?}");
        }
        let stats = db.near_stats().unwrap();
        assert!(fault == Fault::Lies || stats.device.tasks > 0, "{fault:?}: {stats:?}");
        assert!(all(&db, &events) == rows, "{fault:?}");
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{fault:?}: {report:?}");
        drop(events);
        db.close().unwrap();
        worker.stop();
    }
}

#[test]
fn a_job_that_panics_has_failed_and_the_next_is_done() {
    let drives = Drives::new();
    let there = Trap::over(drives.data.clone(), "");
    there.arm(1);
    let worker = Worker::start(Latched::new(there), WorkerOptions::default()).unwrap();
    let devices = drives.devices().with_near(NearOptions::new(worker.clone()));
    let db = Db::create_on(devices, &Layout::default(), options()).unwrap();
    let events = db.create_keyspace_of("events", lsm(MergeBy::Near)).unwrap();
    let mut rows = Rows::new();
    fill(&db, &events, &mut rows, 9, 3000);
    let (stats, jobs) = (db.near_stats().unwrap(), worker.jobs());
    assert_eq!((stats.fallbacks.failed, jobs.failed, jobs.running, jobs.waiting), (1, 1, 0, 0), "{stats:?}");
    assert!(stats.last_fallback.unwrap().contains("made to panic") && jobs.done > 0 && jobs.done == stats.device.tasks);
    assert!(all(&db, &events) == rows);
    drop(events);
    db.close().unwrap();
    worker.stop();
}

#[test]
fn a_worker_that_another_host_took_is_attached_to_again() {
    let drives = Drives::new();
    let worker = drives.worker();
    let devices = drives.devices().with_near(NearOptions::new(worker.clone()));
    let db = Db::create_on(devices, &Layout::default(), options()).unwrap();
    let events = db.create_keyspace_of("events", lsm(MergeBy::Near)).unwrap();
    let mut rows = Rows::new();
    fill(&db, &events, &mut rows, 1, 1500);
    let before = db.near_stats().unwrap();
    assert!(before.attached && before.attachments == 1 && before.device.tasks > 0, "{before:?}");
    worker.attach().unwrap();
    for round in 2.. {
        fill(&db, &events, &mut rows, round, 1500);
        let stats = db.near_stats().unwrap();
        if stats.device.tasks > before.device.tasks {
            assert!(stats.attached && stats.attachments == 2 && stats.fallbacks.refused > 0, "{stats:?}");
            break;
        }
        assert!(round < 100, "{stats:?}");
    }
    assert_eq!(worker.jobs().attachments, 3);
    assert!(all(&db, &events) == rows && db.check().unwrap().is_clean());
    drop(events);
    db.close().unwrap();
    worker.stop();
}
