//! Backups of a database in use restore one moment of it; what is damaged, cut short or of something else is refused.

use std::sync::Arc;
use std::time::Duration;
use varve::{
    BackupInfo, BackupOptions, Damage, Db, Devices, Durability, Error, Keyspace, Layout, Options, Packing,
    RestoreOptions,
};
use varve_device::{Faults, Place, Trap};
use varve_models::{Latency, MemDevice, MemOptions};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::sim;
use varve_rt::{JoinHandle, Rng, spawn};

const ACCOUNTS: u64 = 400;
const START: u64 = 1000;
const CLIENTS: u64 = 3;

fn options() -> Options {
    Options { cache_bytes: 4 << 20, pool_frames: 96, log_max_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

fn devices(seed: u64, latency: Latency) -> Devices {
    let device = |name: &str| {
        MemDevice::with(0, MemOptions { name: name.into(), latency: latency.clone(), seed, ..MemOptions::default() })
    };
    Devices::new(device("data"), device("log"))
}

fn key(n: u64) -> Vec<u8> {
    format!("account {n:05}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Money that moves between accounts, long values that come and go, and per client a count of what was acknowledged.
struct Bank {
    db: Db,
    accounts: Keyspace,
    acknowledged: Arc<Vec<AtomicU64>>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Bank {
    fn open(devices: &Devices) -> Bank {
        let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
        let accounts = db.create_keyspace("accounts").unwrap();
        db.create_keyspace("counts").unwrap();
        db.create_keyspace("papers").unwrap();
        for n in 0..ACCOUNTS {
            let value = [&START.to_le_bytes()[..], &[7; 300]].concat();
            accounts.put_with(&key(n), &value, Durability::None).unwrap();
        }
        let acknowledged = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
        Bank { db, accounts, acknowledged, stop: Arc::default(), clients: Vec::new() }
    }

    fn begin_traffic(&mut self, seed: u64) {
        for client in 0..CLIENTS {
            let (db, accounts) = (self.db.clone(), self.accounts.clone());
            let (acknowledged, stop) = (self.acknowledged.clone(), self.stop.clone());
            let mut rng = Rng::from_seed(seed ^ client << 32);
            self.clients.push(spawn("client", move || {
                let (counts, papers) = (db.keyspace("counts").unwrap(), db.keyspace("papers").unwrap());
                for n in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (from, to, amount) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS), rng.below(9));
                    let paper = format!("{client} {}", rng.below(20)).into_bytes();
                    let pages = rng.below(12) as usize * 3000;
                    let moved = db.transact(|tx| {
                        for (n, amount) in [(from, amount.wrapping_neg()), (to, amount)] {
                            let mut value = tx.get_for_update(&accounts, &key(n))?.expect("an account");
                            let sum = number(&value).wrapping_add(amount);
                            value[..8].copy_from_slice(&sum.to_le_bytes());
                            tx.put(&accounts, &key(n), &value)?;
                        }
                        match pages {
                            0 => tx.delete(&papers, &paper)?,
                            n => tx.put(&papers, &paper, &vec![1; n])?,
                        }
                        tx.put(&counts, &client.to_le_bytes(), &u64::to_le_bytes(n))
                    });
                    moved.unwrap();
                    acknowledged[client as usize].store(n, Ordering::Release);
                }
            }));
        }
    }

    fn counts(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|n| n.load(Ordering::Acquire)).collect()
    }

    fn end_traffic(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.drain(..).for_each(|c| c.join().unwrap());
        self.stop.store(false, Ordering::Relaxed);
    }

    fn back_up(&self, since: Option<BackupInfo>) -> (Vec<u8>, varve::BackupReport) {
        let mut file = Vec::new();
        let report = self.db.backup(&mut file, BackupOptions { since, ..BackupOptions::default() }).unwrap();
        assert_eq!(report.bytes, file.len() as u64);
        (file, report)
    }
}

fn restore(files: &[&Vec<u8>]) -> varve::Result<Db> {
    let devices = devices(9, Latency::default());
    let mut files: Vec<&[u8]> = files.iter().map(|f| &f[..]).collect();
    let mut readers: Vec<&mut dyn std::io::Read> = files.iter_mut().map(|f| f as &mut dyn std::io::Read).collect();
    varve::restore_on(&devices, &mut readers, &RestoreOptions { layout: layout() })?;
    Db::open_on(devices, options())
}

/// The restored database is sound, no money came or went, and each client's count lies between what was acknowledged
/// before and after.
fn is_one_moment(db: &Db, before: &[u64], after: &[u64]) {
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let accounts = db.keyspace("accounts").unwrap();
    let snapshot = db.snapshot().unwrap();
    let sum = snapshot.scan(&accounts, ..).unwrap().fold(0u64, |sum, row| sum.wrapping_add(number(&row.unwrap().1)));
    assert_eq!(sum, ACCOUNTS * START);
    let counts = db.keyspace("counts").unwrap();
    for (client, (before, after)) in before.iter().zip(after).enumerate() {
        let count = snapshot.get(&counts, &(client as u64).to_le_bytes()).unwrap().map_or(0, |v| number(&v));
        // A commit may be in that was not acknowledged yet.
        assert!((*before..=after + 1).contains(&count), "client {client}: {count}, not {before} to {after}");
    }
    drop(snapshot);
    accounts.put(b"goes on", b"yes").unwrap();
}

#[test]
fn a_backup_of_a_database_in_use_restores_one_moment() {
    let wrapped = Arc::new(AtomicU64::new(0));
    for seed in 1..=20u64 {
        let config = sim::Config { seed, chaos: seed.is_multiple_of(2), ..sim::Config::default() };
        let wraps = wrapped.clone();
        let run = move || {
            let micros = |a, b| (Duration::from_micros(a), Duration::from_micros(b));
            let latency = Latency {
                read: micros(50, 100),
                write: micros(50, 200),
                durable: micros(50, 200),
                flush: micros(50, 100),
            };
            let mut bank = Bank::open(&devices(seed, latency));
            bank.begin_traffic(seed);
            varve_rt::sleep(Duration::from_millis(20 + seed * 3));
            let mut files = Vec::new();
            let mut base = None;
            for _ in 0..3 {
                let before = bank.counts();
                let (file, report) = bank.back_up(base.take());
                let after = bank.counts();
                wraps.fetch_add((report.end - report.info.start) / (1 << 20), Ordering::Relaxed);
                files.push(file);
                base = Some(report.info);
                let copy = restore(&files.iter().collect::<Vec<_>>()).unwrap();
                is_one_moment(&copy, &before, &after);
                copy.close().unwrap();
            }
            bank.end_traffic();
            bank.db.clone().close().unwrap();
        };
        println!("seed {seed}");
        sim::run(config, run).unwrap();
    }
    assert!(
        wrapped.load(Ordering::Relaxed) > 3,
        "the log never went round during a backup: the test misses what it is for"
    );
}

#[test]
fn an_incremental_backup_holds_what_changed_and_needs_its_base() {
    let mut bank = Bank::open(&devices(1, Latency::default()));
    let (whole, first) = bank.back_up(None);
    bank.accounts.put(&key(3), &START.to_le_bytes()).unwrap();
    let (small, second) = bank.back_up(Some(first.info.clone()));
    assert!(second.pages < 12 && second.unchanged > 20, "{second:?}");
    assert_eq!(BackupInfo::read(&mut &small[..]).unwrap(), second.info);
    bank.begin_traffic(5);
    let (third_file, third) = bank.back_up(Some(second.info.clone()));
    bank.end_traffic();

    let db = restore(&[&whole, &small]).unwrap();
    assert_eq!(db.keyspace("accounts").unwrap().get(&key(3)).unwrap().unwrap(), START.to_le_bytes());
    is_one_moment(&restore(&[&whole, &small, &third_file]).unwrap(), &[0; 3], &[third.end; 3]);

    let refused = |files: &[&Vec<u8>], why: &str| match restore(files).map(|_| ()) {
        Err(Error::Backup(what)) => assert!(what.contains(why), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(&[&small], "begin with the whole backup");
    refused(&[&whole, &third_file], "does not go on from");
    refused(&[&whole, &whole], "does not go on from");
    refused(&[], "none was given");
    let other = Bank::open(&devices(2, Latency::default()));
    let since = Some(first.info);
    let of_another = other.db.backup(&mut Vec::new(), BackupOptions { since, ..BackupOptions::default() });
    assert!(matches!(of_another, Err(Error::Backup(_))), "{of_another:?}");
}

#[test]
fn a_damaged_or_shortened_backup_is_refused() {
    let bank = Bank::open(&devices(1, Latency::default()));
    bank.db.keyspace("papers").unwrap().put(b"long", &[3; 50_000]).unwrap();
    let (whole, _) = bank.back_up(None);
    let mut rng = Rng::from_seed(4);
    for round in 0..300 {
        let mut file = whole.clone();
        let at = if round < 128 { round } else { rng.below(file.len() as u64) as usize };
        file[at] ^= 1 << rng.below(8);
        let restored = restore(&[&file]);
        assert!(
            matches!(restored, Err(Error::Backup(_) | Error::Corrupt(_) | Error::Version { .. })),
            "bit of byte {at}: accepted"
        );
    }
    for len in (0..whole.len()).step_by(whole.len() / 50) {
        let restored = restore(&[&whole[..len].to_vec()]);
        assert!(
            matches!(restored, Err(Error::Backup(_) | Error::Corrupt(Damage::Backup(_)))),
            "cut to {len} bytes: accepted"
        );
    }
    // Two in one file would be restored as the first alone.
    let twice = [whole.as_slice(), &whole].concat();
    assert!(matches!(restore(&[&twice]), Err(Error::Backup(what)) if what.contains("follows its end")));
    restore(&[&whole]).unwrap();
}

#[test]
fn writers_do_not_wait_for_a_destination_that_does_not_move() {
    /// Takes nothing until it is told to.
    struct Stuck(Arc<AtomicBool>);
    impl std::io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            while !self.0.load(Ordering::Acquire) {
                varve_rt::sleep(Duration::from_millis(1));
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let bank = Bank::open(&devices(1, Latency::default()));
    let free = Arc::new(AtomicBool::new(false));
    let (db, to) = (bank.db.clone(), Stuck(free.clone()));
    let backup = spawn("backup", move || db.backup(&mut { to }, BackupOptions::default()));
    let papers = bank.db.keyspace("papers").unwrap();
    // Several times the largest log.
    for n in 0..400u64 {
        papers.put(&(n % 7).to_le_bytes(), &vec![n as u8; 60_000]).unwrap();
    }
    free.store(true, Ordering::Release);
    match backup.join().unwrap() {
        Err(Error::Backup(what)) => assert!(what.contains("outran"), "{what}"),
        other => panic!("{other:?}"),
    }
    // The next one finds the log free.
    bank.back_up(None);
}

#[test]
fn a_directory_is_restored_once_and_a_failure_leaves_nothing() {
    let dir = std::env::temp_dir().join(format!("varve-restore-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let bank = Bank::open(&devices(1, Latency::default()));
    let (whole, _) = bank.back_up(None);
    let cut = &whole[..whole.len() - 1];
    assert!(varve::restore(&dir, &mut [&mut &cut[..]], &RestoreOptions::default()).is_err());
    assert!(!varve::exists(&dir), "what a failed restoration left looks like a database");
    varve::restore(&dir, &mut [&mut &whole[..]], &RestoreOptions::default()).unwrap();
    let again = varve::restore(&dir, &mut [&mut &whole[..]], &RestoreOptions::default());
    assert!(matches!(again, Err(Error::AlreadyExists(_))), "{again:?}");
    let db = Db::open(&dir, options()).unwrap();
    is_one_moment(&db, &[0; 3], &[0; 3]);
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill_bytes(&mut bytes);
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}

fn is_whole(value: &[u8]) -> bool {
    value == bytes(number(value), value.len())
}

/// Two copies of one database, worked with separately: a backup of one is no base for the other.
#[test]
fn a_base_of_a_copy_that_went_its_own_way_is_refused() {
    let open = |files: &(Arc<MemDevice>, Arc<MemDevice>)| {
        Db::open_on(Devices::new(files.0.clone(), files.1.clone()), options()).unwrap()
    };
    let back_up = |db: &Db, since: Option<&BackupInfo>| {
        let options = BackupOptions { since: since.cloned(), ..BackupOptions::default() };
        db.backup(&mut Vec::new(), options).map(|report| report.info)
    };
    let put = |db: &Db, n: u64| db.keyspace("filler").unwrap().put(&n.to_be_bytes(), b"changed").unwrap();
    let refused = |made: varve::Result<BackupInfo>, when: &str| match made {
        Err(Error::Backup(what)) => assert!(what.contains("went its own way"), "{when}: {what}"),
        other => panic!("{when}: {other:?}"),
    };
    let files = (MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(Devices::new(files.0.clone(), files.1.clone()), &layout(), options()).unwrap();
    let mut load = db.bulk_load("filler").unwrap();
    (0..1000u64).for_each(|n| load.push(&n.to_be_bytes(), &bytes(n, 300)).unwrap());
    drop(load.finish().unwrap());
    let common = back_up(&db, None).unwrap();
    let snapshot = (files.0.clone_image(), files.1.clone_image());
    put(&db, 1);
    let later = back_up(&db, Some(&common)).unwrap();
    db.close().unwrap();
    let closed = (files.0.clone_image(), files.1.clone_image());
    let own = |files, rows: u64| {
        let db = open(files);
        (0..rows).for_each(|n| put(&db, n));
        db
    };
    let db = own(&files, 5);
    let third = back_up(&db, Some(&later)).unwrap();
    // A copy of the files at rest: what was made before it is a base, what was made after it is none.
    let copy = own(&closed, 50);
    refused(back_up(&copy, Some(&third)), "after the copy");
    let fourth = back_up(&copy, Some(&later)).unwrap();
    refused(back_up(&db, Some(&fourth)), "of the copy");
    // The same for one that was taken in the middle of an opening, and however often it is opened.
    for rows in [0, 7, 500] {
        let copy = own(&snapshot, rows);
        refused(back_up(&copy, Some(&later)), "after the snapshot");
        refused(back_up(&copy, Some(&third)), "long after the snapshot");
        back_up(&copy, Some(&common)).unwrap();
        copy.close().unwrap();
    }
    // Made by a release that did not say: nothing is known.
    let older = BackupInfo { opening: 0, ..third };
    back_up(&copy, Some(&older)).unwrap();
    back_up(&db, Some(&third)).unwrap();
}

/// A database of `rows` rows that no log holds.
fn loaded(options: Options, rows: u64) -> (Db, Devices) {
    let devices = devices(1, Latency::default());
    let db = Db::create_on(devices.clone(), &layout(), options).unwrap();
    let mut load = db.bulk_load("filler").unwrap();
    (0..rows).for_each(|n| load.push(&n.to_be_bytes(), &bytes(n, 300)).unwrap());
    drop(load.finish().unwrap());
    (db, devices)
}

/// Somebody who does something once while a backup is being written to it.
struct Meanwhile<F> {
    file: Vec<u8>,
    what: Option<F>,
}

impl<F: FnOnce()> Meanwhile<F> {
    fn new(what: F) -> Meanwhile<F> {
        Meanwhile { file: Vec::new(), what: Some(what) }
    }
}

impl<F: FnOnce()> std::io::Write for Meanwhile<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.extend_from_slice(bytes);
        if self.file.len() > 200_000
            && let Some(what) = self.what.take()
        {
            what();
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn slow_devices(seed: u64) -> Devices {
    let us = |low, high| (Duration::from_micros(low), Duration::from_micros(high));
    let latency = Latency { read: us(50, 100), write: us(50, 200), durable: us(50, 2000), flush: us(50, 100) };
    devices(seed, latency)
}

/// Values from readers come and go, whose pages the log does not hold, and the log's writes complete in any order. A
/// backup that took a group past its end has links to pages that it has not; one that takes a half-written group for
/// damage fails.
#[test]
fn what_is_written_while_a_backup_or_a_check_ends_is_neither_in_it_nor_damage() {
    for seed in 1..=6 {
        let run = move || {
            let many = Options { log_max_bytes: 64 << 20, cache_bytes: 16 << 20, pool_frames: 1500, ..options() };
            let db = Db::create_on(slow_devices(seed), &layout(), many).unwrap();
            let papers = db.create_keyspace("papers").unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let client = |c: u64| {
                let (papers, stop) = (papers.clone(), stop.clone());
                spawn("client", move || {
                    for n in (0u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let key = format!("{c} {}", n % 6).into_bytes();
                        let value = bytes(c << 32 | n, 70_000 + (n as usize % 5) * 12_000);
                        if c.is_multiple_of(2) {
                            papers.put_from(&key, &mut &value[..]).unwrap();
                        } else {
                            papers.put(&key, &value[..30_000]).unwrap();
                        }
                    }
                })
            };
            let clients: Vec<_> = (0..4).map(client).collect();
            varve_rt::sleep(Duration::from_millis(10));
            for round in 0..4 {
                // (Of pages that change a check knows the truth only when it is quiet.)
                let mut damages = db.check().unwrap().damages.into_iter();
                let of_log = damages.find(|d| matches!(d, Damage::Log { .. }));
                assert!(of_log.is_none(), "seed {seed} round {round}: {of_log:?}");
                let mut file = Vec::new();
                db.backup(&mut file, BackupOptions::default()).unwrap();
                let copy = restore(&[&file]).unwrap();
                let check = copy.check().unwrap();
                assert!(check.is_clean(), "seed {seed} round {round}: {:?}", check.damages);
                let papers = copy.keyspace("papers").unwrap();
                for key in (0..24).map(|n| format!("{} {}", n / 6, n % 6)) {
                    let value = papers.get(key.as_bytes()).unwrap();
                    assert!(value.is_none_or(|v| v.len() == 30_000 || is_whole(&v)), "seed {seed}: {key}");
                }
                copy.close().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            clients.into_iter().for_each(|c| c.join().unwrap());
            drop(papers);
            db.close().unwrap();
        };
        sim::run(sim::Config { seed, chaos: seed % 2 == 0, ..sim::Config::default() }, run).unwrap();
    }
}

/// A compaction cuts off pages that the base has, a page of the space map among them.
#[test]
fn an_incremental_backup_after_a_cut_restores_a_sound_database() {
    let options = || Options { cache_bytes: 32 << 20, log_max_bytes: 64 << 20, ..Options::default() };
    let db = Db::create_on(devices(1, Latency::default()), &layout(), options()).unwrap();
    db.create_keyspace("small").unwrap().put(b"k", b"v").unwrap();
    let mut load = db.bulk_load("big").unwrap();
    (0..75_000u64).for_each(|n| load.push(&n.to_be_bytes(), &[7; 1800]).unwrap());
    drop(load.finish().unwrap());
    let (mut whole, mut more) = (Vec::new(), Vec::new());
    let base = db.backup(&mut whole, BackupOptions::default()).unwrap();
    assert!(base.pages > 8 * 4096, "more than one page of the map covers");
    db.drop_keyspace("big").unwrap();
    assert!(db.compact().unwrap().pages < 1000);
    let second = db.backup(&mut more, BackupOptions { since: Some(base.info.clone()), ..BackupOptions::default() });
    assert!(second.unwrap().info.pages < 1000);
    let copy = restore(&[&whole, &more]).unwrap();
    let check = copy.check().unwrap();
    assert!(check.is_clean(), "{} damages: {:?}", check.damages.len(), check.damages.first());
    assert!(check.allocated_pages < 1000);
    assert_eq!(copy.keyspace("small").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    // It grows over what was cut off as any database does.
    let mut load = copy.bulk_load("again").unwrap();
    (0..75_000u64).for_each(|n| load.push(&n.to_be_bytes(), &[8; 1800]).unwrap());
    drop(load.finish().unwrap());
    assert!(copy.check().unwrap().is_clean());
}

#[test]
fn a_backup_that_writers_outran_fails_though_it_could_read_everything() {
    let (db, _) = loaded(options(), 4000);
    let rows = db.create_keyspace("rows").unwrap();
    rows.put(b"long", b"short").unwrap();
    let outrun = || {
        // Until the log is not held any more: another backup can be made, which takes what is linked for itself.
        let other = |n: u64| {
            rows.put(&(n % 50).to_be_bytes(), &bytes(n, 800)).unwrap();
            n.is_multiple_of(16) && db.backup(&mut std::io::sink(), BackupOptions::default()).is_ok()
        };
        assert!((1..100_000).any(other));
        rows.put_from(b"long", &mut &bytes(4711, 100_000)[..]).unwrap();
    };
    match db.backup(&mut Meanwhile::new(outrun), BackupOptions::default()) {
        Err(Error::Backup(why)) => assert!(why.contains("outran"), "{why}"),
        other => panic!("{other:?}"),
    }
    db.backup(&mut std::io::sink(), BackupOptions::default()).unwrap();
}

#[test]
fn a_database_that_is_closed_during_a_backup_fails_it() {
    let (db, devices) = loaded(options(), 4000);
    let closes = {
        let db = db.clone();
        move || {
            db.close().unwrap();
            // Somebody else has it from then on.
            let again = Db::open_on(devices, options()).unwrap();
            let filler = again.keyspace("filler").unwrap();
            for n in 0..4000u64 {
                filler.put_with(&n.to_be_bytes(), &bytes(n + 1_000_000, 500), Durability::None).unwrap();
            }
            again.checkpoint().unwrap();
        }
    };
    match db.backup(&mut Meanwhile::new(closes), BackupOptions::default()) {
        Err(Error::Backup(why)) => assert!(why.contains("closed"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// A file whose header says that it is of another version.
fn of_version(file: &[u8], version: u32) -> Vec<u8> {
    let mut file = file.to_vec();
    file[8..12].copy_from_slice(&version.to_le_bytes());
    if version == 1 {
        file[80..88].fill(0);
    }
    let crc = crc32c::crc32c(&file[..92]);
    file[92..96].copy_from_slice(&crc.to_le_bytes());
    file
}

#[test]
fn a_backup_of_the_first_version_is_restored_and_one_of_a_newer_refused() {
    let (db, _) = loaded(options(), 1000);
    let mut file = Vec::new();
    let report = db.backup(&mut file, BackupOptions::default()).unwrap();
    assert!(report.info.pages > 0);
    let old = of_version(&file, 1);
    assert_eq!(BackupInfo::read(&mut &old[..]).unwrap(), BackupInfo { pages: 0, ..report.info });
    let copy = restore(&[&old]).unwrap();
    assert_eq!(copy.check().unwrap().keys, 1000);
    let newer = restore(&[&of_version(&file, 4)]).map(drop);
    assert!(matches!(newer, Err(Error::Version { found: 4, .. })), "{newer:?}");
}

#[test]
fn a_backup_packed_with_lz4_is_restored_and_kept_from_releases_that_know_zstd_alone() {
    let (db, _) = loaded(options(), 1000);
    let version = |packing| {
        let mut file = Vec::new();
        db.backup(&mut file, BackupOptions { packing, ..BackupOptions::default() }).unwrap();
        assert_eq!(restore(&[&file]).unwrap().check().unwrap().keys, 1000, "{packing:?}");
        u32::from_le_bytes(file[8..12].try_into().unwrap())
    };
    assert_eq!((version(Packing::Lz4), version(Packing::Zstd(3))), (3, 2));
}

#[test]
fn a_change_that_the_log_never_had_is_in_no_backup() {
    let trap = Arc::new(Trap::new(Place::Group));
    let options = Options { faults: Faults::default().with_trap(Some(trap.clone())), ..options() };
    let db = Db::create_on(devices(1, Latency::default()), &layout(), options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    rows.put(b"key", b"value").unwrap();
    trap.arm(1);
    assert!(spawn("client", move || rows.put(b"key", b"other")).join().is_err());
    assert!(trap.has_sprung());
    match db.backup(&mut Vec::new(), BackupOptions::default()) {
        Err(Error::Poisoned(why)) => assert!(why.contains("panicked"), "{why}"),
        other => panic!("{other:?}"),
    }
}
