//! A database whose pages lie with a worker over a modelled link: the link is cut, and the worker's machine loses power
//! and comes again, while rows are written and checkpoints made. What was acknowledged is there afterwards.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, JobService, KeyspaceKind, Layout, LsmOptions, MergeBy, NearOptions, Options, RemoteWorker};
use varve_device::{Device, Latched, OpKind};
use varve_models::{
    Fault, FaultPlan, Faulty, Latency, LinkConfig, LinkModel, MemDevice, MemOptions, Port, PowerSupply,
};
use varve_rt::sim::{self, Domain, Host};
use varve_rt::{sleep, spawn, spawn_daemon};
use varve_wire::{Handler, Limits, RemoteDevice, Session, SessionOptions, Worker};

const MS: Duration = Duration::from_millis(1);

/// A host with its log, and a worker's machine with the medium.
struct Place {
    log: Arc<MemDevice>,
    medium: Arc<MemDevice>,
    supply: Arc<PowerSupply>,
    port: Arc<Port>,
    near: Host,
}

impl Place {
    fn new() -> Place {
        let link = LinkModel::new(LinkConfig { latency_us: 50.0, mb_s: 118.0, message_us: 2.0, far_message_us: None });
        // A commit takes its time, and so does a flush: most failures come in the middle of something.
        let slow = |us| (Duration::from_micros(us), Duration::from_micros(us));
        let latency = Latency { read: slow(80), write: slow(30), durable: slow(30), flush: slow(3000) };
        let medium = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
        let supply = PowerSupply::new();
        supply.attach(medium.clone());
        let near = sim::HostConfig { name: "near".into(), ..sim::Config { cores: 2, ..Default::default() }.host() };
        let latency = Latency { read: slow(0), write: slow(200), durable: slow(200), flush: slow(200) };
        let log = MemDevice::with(0, MemOptions { latency, ..MemOptions::default() });
        Place { log, medium, supply, port: Port::new(link, "remote:near"), near: Host::new(near) }
    }

    /// Starts the worker's machine.
    fn start(&self) -> Domain {
        self.start_with(self.medium.clone())
    }

    /// The same with another medium.
    fn start_with(&self, device: Arc<dyn Device>) -> Domain {
        let (domain, comes) = (Domain::new("near"), self.port.listen());
        let life = move || {
            let device = Latched::new(device);
            let jobs = JobService::new(varve::Worker::start(device.clone(), Default::default()).unwrap());
            let worker = Worker::new(device, Some(jobs as Arc<dyn Handler>), Limits::default()).unwrap();
            spawn_daemon("accepts", move || {
                while let Ok(connection) = comes.recv() {
                    let worker = worker.clone();
                    spawn_daemon("serves", move || worker.serve(connection));
                }
            });
        };
        domain.on(&self.near).spawn("starts", life).join().unwrap();
        domain
    }

    /// The worker's machine loses power; the link with it.
    fn fail(&self, domain: &Domain, seed: u64) {
        self.supply.cut(seed);
        domain.power_cut();
        self.port.cut();
        self.supply.restore();
    }

    /// The devices, over a connection of its own.
    fn devices(&self) -> Devices {
        let answer = Duration::from_secs(2);
        let options = SessionOptions { answer, patience: Duration::from_secs(2), ..SessionOptions::default() };
        let session = Session::open(self.port.clone(), options).unwrap();
        let near = NearOptions::new(RemoteWorker::new(session.clone()));
        Devices::new(RemoteDevice::new(session), self.log.clone()).with_near(near)
    }
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, cleaners: false, ..Options::default() }
}

fn row(n: u64) -> ([u8; 8], Vec<u8>) {
    ((n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes(), vec![n as u8; 300])
}

/// Writes rows until something fails or there are `most`, with a checkpoint now and then; how many were acknowledged.
fn write(db: &Db, from: u64, most: u64) -> (u64, Option<varve::Error>) {
    write_each(db, from, most, |n| if n % 50 == 49 { db.checkpoint() } else { Ok(()) })
}

/// The same, with something else after each row.
fn write_each(db: &Db, from: u64, most: u64, then: impl Fn(u64) -> varve::Result<()>) -> (u64, Option<varve::Error>) {
    let (tree, lsm) = (db.keyspace("tree").unwrap(), db.keyspace("lsm").unwrap());
    for n in from..most {
        let (key, value) = row(n);
        let done = db.transact(|tx| {
            tx.put(&tree, &key, &value)?;
            tx.put(&lsm, &key, &value)
        });
        if let Err(e) = done.and_then(|()| then(n)) {
            return (n, Some(e));
        }
    }
    (most, None)
}

/// The failure is not that of the row before the last: whether that one is there is open.
fn all_there(db: &Db, acknowledged: u64) {
    let (tree, lsm) = (db.keyspace("tree").unwrap(), db.keyspace("lsm").unwrap());
    for n in 0..acknowledged {
        let (key, value) = row(n);
        assert_eq!(tree.get(&key).unwrap().as_deref(), Some(&value[..]), "row {n} of the tree");
        assert_eq!(lsm.get(&key).unwrap().as_deref(), Some(&value[..]), "row {n} of the LSM keyspace");
    }
    assert!(db.check().unwrap().damages.is_empty());
}

#[test]
fn what_was_acknowledged_is_there_whatever_the_worker_does() {
    let mut poisoned = 0;
    for seed in 0..10 {
        let failed = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
            let place = Arc::new(Place::new());
            let domain = place.start();
            let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
            let db = Db::create_on(place.devices(), &layout, options()).unwrap();
            let lsm = LsmOptions { merge: MergeBy::Copro, memtable_bytes: 64 << 10, ..LsmOptions::default() };
            db.create_keyspace("tree").unwrap();
            db.create_keyspace_of("lsm", KeyspaceKind::Lsm(lsm)).unwrap();
            let breaks = {
                let place = place.clone();
                spawn("breaks", move || {
                    sleep(MS * (5 + varve_rt::rng().below(40) as u32));
                    place.port.cut();
                    sleep(MS * (5 + varve_rt::rng().below(60) as u32));
                    place.fail(&domain, seed);
                    sleep(MS * varve_rt::rng().below(30) as u32);
                    place.start()
                })
            };
            let (acknowledged, error) = write(&db, 0, 400);
            let domain = breaks.join().unwrap();
            let poisoned = error.is_some();
            if let Some(e) = error {
                let said = e.to_string();
                assert!(said.contains("started anew") || said.contains("open it again"), "{said}");
                assert!(db.checkpoint().is_err(), "nothing is promised any more");
                let _ = db.close();
            } else {
                db.close().unwrap();
            }
            drop(db);
            sleep(MS * 10);
            let db = Db::open_on(place.devices(), options()).unwrap();
            all_there(&db, acknowledged);
            assert_eq!(write(&db, acknowledged, acknowledged + 50).1.map(|e| e.to_string()), None);
            db.close().unwrap();
            drop((db, domain));
            poisoned
        });
        poisoned += u32::from(failed.unwrap());
    }
    assert!((1..10).contains(&poisoned), "{poisoned} of 10 were poisoned: both ways are to be seen");
}

/// A database with some rows, flushed and merged.
fn filled(place: &Place, rows: u64) -> Db {
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(place.devices(), &layout, options()).unwrap();
    let lsm = LsmOptions { merge: MergeBy::Copro, memtable_bytes: 64 << 10, ..LsmOptions::default() };
    db.create_keyspace("tree").unwrap();
    db.create_keyspace_of("lsm", KeyspaceKind::Lsm(lsm)).unwrap();
    settled(&db, 0, rows);
    db
}

/// Writes rows, and waits until nothing is under way.
fn settled(db: &Db, from: u64, to: u64) {
    assert_eq!(write(db, from, to).1.map(|e| e.to_string()), None);
    db.wait_for_merges().unwrap();
    db.checkpoint().unwrap();
}

#[test]
fn a_worker_that_was_started_anew_merges_again_for_an_open_database() {
    let main = || {
        let place = Place::new();
        let domain = place.start();
        let db = filled(&place, 600);
        let before = db.near_stats().unwrap();
        assert!(before.device.tasks > 0 && before.attached && before.attachments == 1, "{before:?}");
        let link = before.link.unwrap();
        assert!(link.requests > 0 && link.sent > 600 * 300 && link.received > 0, "{link:?}");
        place.fail(&domain, 1);
        place.start();
        let mut rows = 600;
        let after = loop {
            settled(&db, rows, rows + 300);
            rows += 300;
            let stats = db.near_stats().unwrap();
            if stats.device.tasks > before.device.tasks {
                break stats;
            }
            assert!(rows < 6000, "{stats:?}");
        };
        assert!(after.attached && after.attachments == 2 && after.orphans == 0, "{after:?}");
        let then = after.link.unwrap();
        assert!(then.requests > link.requests && then.sent > link.sent, "of both connections: {link:?}, {then:?}");
        assert!(after.fallbacks.refused > 0 && after.fallbacks.detached > 0, "merges go on meanwhile: {after:?}");
        all_there(&db, rows);
        db.close().unwrap();
    };
    sim::run(sim::Config { seed: 5, ..sim::Config::default() }, main).unwrap();
}

#[test]
fn a_worker_that_comes_back_with_something_else_is_refused() {
    for (which, said) in [("older", "copy of another time"), ("other", "another database"), ("short", "another device")]
    {
        let main = move || {
            let place = Place::new();
            let domain = place.start();
            let older = filled(&place, 100);
            older.close().unwrap();
            drop(older);
            sleep(MS * 10);
            let copy = place.medium.clone_image();
            let db = Db::open_on(place.devices(), options()).unwrap();
            settled(&db, 100, 300);
            let other = match which {
                "older" => {
                    copy.set_len(place.medium.len()).unwrap();
                    copy
                }
                "other" => {
                    let elsewhere = Place::new();
                    elsewhere.start();
                    filled(&elsewhere, 300).close().unwrap();
                    elsewhere.medium.set_len(place.medium.len()).unwrap();
                    elsewhere.medium.clone_image()
                }
                _ => MemDevice::new(1 << 20),
            };
            let untouched = other.clone_image();
            place.fail(&domain, 1);
            let domain = place.start_with(other.clone());
            let error = write(&db, 300, 3000).1.expect("nothing can be written any more").to_string();
            let told = db.checkpoint().unwrap_err().to_string();
            assert!(error.contains(said) || told.contains(said), "{which}: {error}; {told}");
            assert_eq!(db.near_stats().unwrap().attachments, 1, "no merge goes there");
            let _ = db.close();
            drop(db);
            sleep(MS * 10);
            assert!(other.len() == untouched.len(), "nothing was changed there");
            let (mut a, mut b) = (vec![0; other.len() as usize], vec![0; other.len() as usize]);
            other.peek(0, &mut a);
            untouched.peek(0, &mut b);
            assert!(a == b, "{which}: nothing is written there");
            let refused = Db::open_on(place.devices(), options()).map(drop).unwrap_err();
            sleep(MS * 10);
            assert!(matches!(refused, varve::Error::Mismatch(_) | varve::Error::Corrupt(_)), "{which}: {refused}");
            place.fail(&domain, 2);
            place.start();
            let db = Db::open_on(place.devices(), options()).unwrap();
            all_there(&db, 300);
            db.close().unwrap();
        };
        sim::run(sim::Config { seed: 6, ..sim::Config::default() }, main).unwrap();
    }
}

/// A job's flush fails once, and about half of what the host had written and not flushed is lost by that, as with file
/// systems. The host hears of it by its own next flush, and is poisoned as by a flush of its own: reads go on, and what
/// was acknowledged is there when worker and database were started again.
#[test]
fn a_flush_that_fails_for_a_job_poisons_the_host() {
    let mut by_jobs = 0;
    for seed in 0..12 {
        let main = move || {
            let place = Place::new();
            let drive = Faulty::forgetful(place.medium.clone(), FaultPlan::new(seed), place.supply.clone());
            let domain = place.start_with(drive.clone());
            let db = filled(&place, 400);
            let before = db.near_stats().unwrap();
            drive.set_plan(FaultPlan::new(seed).nth(1 + seed, OpKind::Flush, Fault::Eio));
            // Checkpoints flush too. They are left to the end: until then it is jobs, and merges of the host.
            let (acknowledged, error) = write_each(&db, 400, 3000, |_| Ok(()));
            let said = error.unwrap_or_else(|| db.checkpoint().unwrap_err()).to_string();
            assert!(drive.counts().eio == 1 && matches!(db.checkpoint(), Err(varve::Error::Poisoned(_))), "{said}");
            let (tree, lsm) = (db.keyspace("tree").unwrap(), db.keyspace("lsm").unwrap());
            let (key, value) = row(17);
            assert_eq!(tree.get(&key).unwrap().as_deref(), Some(&value[..]), "reads go on");
            assert_eq!(lsm.get(&key).unwrap().as_deref(), Some(&value[..]), "reads go on");
            // The host heard of it by the job's answer, or by a write that the worker refused before that.
            let answered = db.near_stats().unwrap().fallbacks.failed > before.fallbacks.failed;
            let failed = answered || said.contains("failed there before");
            let _ = db.close();
            drop((db, tree, lsm));
            sleep(MS * 10);
            place.fail(&domain, seed);
            let domain = place.start();
            let db = Db::open_on(place.devices(), options()).unwrap();
            all_there(&db, acknowledged);
            db.close().unwrap();
            drop((db, domain));
            failed
        };
        by_jobs += u32::from(sim::run(sim::Config { seed, ..sim::Config::default() }, main).unwrap());
    }
    assert!(by_jobs > 0, "some of the flushes that failed were those of jobs");
}
