//! Backups of a database in use restore one moment of it; what is damaged, cut short or of something else is refused.

use std::sync::Arc;
use std::time::Duration;
use varve::{BackupInfo, BackupOptions, Db, Devices, Durability, Error, Keyspace, Layout, Options, RestoreOptions};
use varve_device::{Latency, MemDevice, MemOptions};
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

/// The restored database is sound, no money came or went, and each client's count lies between what was acknowledged before and after.
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
        assert!(matches!(restored, Err(Error::Backup(_) | Error::Version { .. })), "bit of byte {at}: accepted");
    }
    for len in (0..whole.len()).step_by(whole.len() / 50) {
        let restored = restore(&[&whole[..len].to_vec()]);
        assert!(matches!(restored, Err(Error::Backup(_))), "cut to {len} bytes: accepted");
    }
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
