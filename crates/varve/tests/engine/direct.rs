//! Pages that go to the store without the log: bulk loads and values from readers, through crashes, backups, rollbacks
//! and in little memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use varve::{BackupOptions, Db, Devices, Durability, Error, Layout, Options, RestoreOptions, Transaction};
use varve_models::{Latency, MemDevice, MemOptions, PowerSupply};
use varve_rt::sim::{self, Domain};
use varve_rt::{Mutex, Rng};

fn options() -> Options {
    Options { cache_bytes: 4 << 20, pool_frames: 96, log_max_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

fn memory() -> Devices {
    Devices::new(MemDevice::new(0), MemDevice::new(0))
}

/// Bytes that tell where they are, and of which value.
fn value(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::from_seed(id);
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Gives a value in pieces of odd lengths.
struct Pieces<'v>(&'v [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.len().min(to.len()).min(777);
        to[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        Ok(n)
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Spaces = BTreeMap<String, Rows>;

/// Does what it is told, and knows what the database must hold.
struct Model {
    db: Db,
    spaces: Spaces,
    rng: Rng,
}

fn row(rng: &mut Rng, n: u64) -> (Vec<u8>, Vec<u8>) {
    let len = match rng.below(40) {
        0 => 2000 + rng.below(30_000),
        1 => 900 + rng.below(3000),
        _ => rng.below(200),
    };
    (format!("row {n:06}").into_bytes(), value(rng.below(u64::MAX), len as usize))
}

impl Model {
    /// One random step, of which `about_to` hears what the database will hold if it succeeds.
    fn step(&mut self, about_to: impl FnOnce(&Spaces)) -> varve::Result<()> {
        let mut after = self.spaces.clone();
        let name = format!("space {}", self.rng.below(3));
        let load = |rng: &mut Rng| (0..rng.below(1500)).map(|n| row(rng, n)).collect::<Rows>();
        let done = match self.rng.below(10) {
            0..=2 if after.contains_key(&name) => {
                after.remove(&name);
                about_to(&after);
                self.db.drop_keyspace(&name)
            }
            0..=2 => {
                let rows = load(&mut self.rng);
                after.insert(name.clone(), rows.clone());
                about_to(&after);
                self.db.bulk_load(&name).and_then(|mut load| {
                    rows.iter().try_for_each(|(key, value)| load.push(key, value))?;
                    load.finish().map(drop)
                })
            }
            3 => self.db.checkpoint(),
            _ if !after.contains_key(&name) => Ok(()),
            _ => {
                let tx = self.write(&name, after.get_mut(&name).expect("seen"))?;
                about_to(&after);
                tx.commit()
            }
        };
        done.map(|()| self.spaces = after)
    }

    /// A transaction of some writes, short and long.
    fn write(&mut self, name: &str, rows: &mut Rows) -> varve::Result<Transaction> {
        let keyspace = self.db.keyspace(name)?;
        let mut tx = self.db.begin()?;
        for _ in 0..1 + self.rng.below(4) {
            let n = self.rng.below(1500);
            let (key, short) = row(&mut self.rng, n);
            match self.rng.below(4) {
                0 => {
                    let long = value(self.rng.below(u64::MAX), 65_000 + self.rng.below(200_000) as usize);
                    tx.put_from(&keyspace, &key, &mut Pieces(&long))?;
                    rows.insert(key, long);
                }
                1 => {
                    tx.delete(&keyspace, &key)?;
                    rows.remove(&key);
                }
                _ => {
                    tx.put(&keyspace, &key, &short)?;
                    rows.insert(key, short);
                }
            }
        }
        Ok(tx)
    }
}

/// What a database holds.
fn contents(db: &Db) -> varve::Result<Spaces> {
    let snapshot = db.snapshot()?;
    db.keyspaces()?
        .into_iter()
        .map(|k| Ok((k.name.clone(), snapshot.scan(&db.keyspace(&k.name)?, ..)?.collect::<varve::Result<Rows>>()?)))
        .collect()
}

/// What the database holds for sure, and what it may hold if the step that was under way was done.
type Known = (Spaces, Spaces);

/// Opens the database that a power cut left, looks whether it holds what is known, and goes on with random steps.
fn client(
    (devices, supply): (Devices, &PowerSupply),
    seed: u64,
    known: &Mutex<Known>,
    ends: &Mutex<(u32, u32)>,
) -> varve::Result<()> {
    let db = match seed % 10 {
        0 => Db::create_on(devices, &layout(), options()),
        _ => Db::open_on(devices, options()),
    }?;
    let (before, after) = known.lock().clone();
    let report = db.check()?;
    // Where the cut comes within the check, pages cannot be read; that is no damage.
    let cut = !supply.is_on() && report.damages.is_empty();
    assert!(report.is_clean() || cut, "life {seed}: {report:?}");
    let spaces = contents(&db)?;
    let done = spaces == after;
    assert!(done || spaces == before, "life {seed}: neither what was nor what was to be");
    if before != after {
        let mut ends = ends.lock();
        *(if done { &mut ends.0 } else { &mut ends.1 }) += 1;
    }
    *known.lock() = (spaces.clone(), spaces.clone());
    let mut model = Model { db, spaces, rng: Rng::from_seed(seed) };
    loop {
        model.step(|after| known.lock().1 = after.clone())?;
        *known.lock() = (model.spaces.clone(), model.spaces.clone());
    }
}

#[test]
fn what_was_acknowledged_survives_power_cuts_and_no_page_is_lost() {
    let ends = Arc::new(Mutex::new((0, 0)));
    for seed in 1..=40u64 {
        println!("seed {seed}");
        let config = sim::Config { seed, chaos: seed.is_multiple_of(2), ..sim::Config::default() };
        let ends = ends.clone();
        let lives = move || {
            let supply = PowerSupply::new();
            let micros = |a, b| (Duration::from_micros(a), Duration::from_micros(b));
            let (write, flush) = (micros(20, 400), micros(50, 300));
            let latency = Latency { read: micros(20, 100), write, durable: write, flush };
            let device = |name: &str| {
                let latency = latency.clone();
                let device =
                    MemDevice::with(0, MemOptions { name: name.into(), latency, seed, ..MemOptions::default() });
                supply.attach(device.clone());
                device
            };
            let devices = Devices::new(device("data"), device("log"));
            let known = Arc::new(Mutex::new(Known::default()));
            for life in 0..6 {
                let seed = seed * 10 + life;
                let domain = Domain::new("machine");
                {
                    let (devices, supply) = (devices.clone(), supply.clone());
                    let (known, ends) = (known.clone(), ends.clone());
                    domain.spawn("client", move || {
                        let failed = client((devices, &supply), seed, &known, &ends);
                        assert!(!supply.is_on(), "life {seed}: {failed:?}");
                    });
                }
                varve_rt::sleep(Duration::from_micros(20_000 + seed * 7_919 % 300_000));
                supply.cut(seed);
                domain.power_cut();
                supply.restore();
            }
        };
        sim::run(config, lives).unwrap();
    }
    let (done, undone) = *ends.lock();
    assert!(done > 0 && undone > 0, "{done} steps done, {undone} undone: the cuts miss one side");
}

#[test]
fn backups_hold_what_the_log_does_not() {
    for seed in 1..=12 {
        let db = Db::create_on(memory(), &layout(), options()).unwrap();
        let mut model = Model { db, spaces: Spaces::new(), rng: Rng::from_seed(seed) };
        let (mut files, mut since) = (Vec::new(), None);
        for _ in 0..4 {
            for _ in 0..6 {
                model.step(|_| ()).unwrap();
            }
            // One value is on its way when the backup begins, a load is half done, and both end after it.
            let other = model.db.keyspace_or_create("other").unwrap();
            let (early, late) = (value(seed, 150_000), value(seed + 1, 120_000));
            let mut tx: Transaction = model.db.begin().unwrap();
            tx.put_from(&other, b"early", &mut Pieces(&early)).unwrap();
            let mut load = model.db.bulk_load("half").unwrap();
            for n in 0..800u64 {
                load.push(&n.to_be_bytes(), &value(n, 100)).unwrap();
            }
            let mut file = Vec::new();
            let report = model.db.backup(&mut file, BackupOptions { since, ..BackupOptions::default() }).unwrap();
            files.push(file);
            since = Some(report.info);
            tx.put_from(&other, b"late", &mut Pieces(&late)).unwrap();
            tx.commit().unwrap();
            for n in 800..1600u64 {
                load.push(&n.to_be_bytes(), &value(n, 100)).unwrap();
            }
            load.finish().unwrap();
            let mut file = Vec::new();
            let report = model.db.backup(&mut file, BackupOptions { since, ..BackupOptions::default() }).unwrap();
            files.push(file);
            since = Some(report.info);

            let expected = contents(&model.db).unwrap();
            let mut parts: Vec<&[u8]> = files.iter().map(|f| &f[..]).collect();
            let mut parts: Vec<&mut dyn Read> = parts.iter_mut().map(|f| f as &mut dyn Read).collect();
            let devices = memory();
            varve::restore_on(&devices, &mut parts, &RestoreOptions { layout: layout() }).unwrap();
            let copy = Db::open_on(devices, options()).unwrap();
            let report = copy.check().unwrap();
            assert!(report.is_clean(), "seed {seed}: {report:?}");
            assert!(contents(&copy).unwrap() == expected, "seed {seed}: the copy differs");
            copy.close().unwrap();
            model.db.drop_keyspace("half").unwrap();
        }
    }
}

#[test]
fn a_value_is_read_back_by_its_transaction_and_gone_without_a_commit() {
    let db = Db::create_on(memory(), &layout(), options()).unwrap();
    let films = db.create_keyspace("films").unwrap();
    let before = db.check().unwrap().allocated_pages;
    let long = value(5, 500_000);
    {
        let mut tx = db.begin().unwrap();
        assert_eq!(tx.put_from(&films, b"a", &mut Pieces(&long)).unwrap(), 500_000);
        assert_eq!(tx.get(&films, b"a").unwrap().as_deref(), Some(&long[..]));
        let mut copy = Vec::new();
        assert_eq!(tx.get_to(&films, b"a", &mut copy).unwrap(), Some(500_000));
        assert!(copy == long);
        assert_eq!(tx.scan(&films, ..).unwrap().map(|row| row.unwrap().1.len()).collect::<Vec<_>>(), [500_000]);
        let mark = tx.savepoint().unwrap();
        tx.put_from(&films, b"a", &mut Pieces(&long[..100_000])).unwrap();
        tx.rollback_to(mark).unwrap();
        assert_eq!(tx.get(&films, b"a").unwrap().map(|v| v.len()), Some(500_000));
    }
    assert_eq!(films.get(b"a").unwrap(), None);
    assert_eq!(films.get_to(b"a", &mut Vec::new()).unwrap(), None);
    assert_eq!(db.check().unwrap().allocated_pages, before);

    // A reader that fails, and one that gives too much for a row in the write set, leave the row as it was.
    films.put(b"a", b"first").unwrap();
    struct Breaks(usize);
    impl Read for Breaks {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(std::io::Error::other("the tape tore"))?;
            Ok(to.len())
        }
    }
    match films.put_from(b"a", &mut Breaks(40)) {
        Err(Error::Stream(what)) => assert!(what.contains("the tape tore"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(films.get(b"a").unwrap().as_deref(), Some(&b"first"[..]));
    assert_eq!(films.put_from(b"a", &mut Pieces(b"short")).unwrap(), 5);
    assert_eq!(films.get(b"a").unwrap().as_deref(), Some(&b"short"[..]));
    db.close().unwrap();
}

#[test]
fn snapshots_see_the_old_value_however_long_it_is() {
    let db = Db::create_on(memory(), &layout(), options()).unwrap();
    let films = db.create_keyspace("films").unwrap();
    let (first, second) = (value(1, 100_000), value(2, 3_000_000));
    films.put_from(b"a", &mut Pieces(&first)).unwrap();
    let snapshot = db.snapshot().unwrap();
    films.put_from(b"a", &mut Pieces(&second)).unwrap();
    let mut copy = Vec::new();
    assert_eq!(snapshot.get_to(&films, b"a", &mut copy).unwrap(), Some(100_000));
    assert!(copy == first);
    // The second is longer than the memory for all old values.
    let later = db.snapshot().unwrap();
    films.put_from(b"a", &mut Pieces(&first)).unwrap();
    copy.clear();
    assert_eq!(later.get_to(&films, b"a", &mut copy).unwrap(), Some(3_000_000));
    assert!(copy == second && snapshot.get(&films, b"a").unwrap().unwrap() == first);
    assert!(db.check().unwrap().is_clean());
    films.delete(b"a").unwrap();
    drop((snapshot, later));
    db.close().unwrap();
}

/// Values go into what others left free: their pages lie in stretches of many lengths.
#[test]
fn values_in_scattered_pages_are_read_and_freed_whole() {
    let devices = memory();
    let roomy = Options { cache_bytes: 16 << 20, pool_frames: 1024, ..options() };
    let db = Db::create_on(devices.clone(), &layout(), roomy.clone()).unwrap();
    let films = db.create_keyspace("films").unwrap();
    let empty = db.check().unwrap().allocated_pages;
    let mut rng = Rng::from_seed(11);
    let mut lengths: BTreeMap<u64, usize> = (0..120).map(|n| (n, 66_000 + rng.below(200_000) as usize)).collect();
    let put = |n: u64, len: usize| films.put_from(&n.to_be_bytes(), &mut Pieces(&value(n, len))).unwrap();
    for (n, len) in &lengths {
        put(*n, *len);
    }
    for n in (0..120).filter(|n| n % 3 != 0) {
        films.delete(&u64::to_be_bytes(n)).unwrap();
        lengths.remove(&n);
    }
    // What is free now may be used once no log from before is needed.
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    for (n, len) in [(1000, 1_000_000), (1001, 3_500_000), (1002, 70_000), (1003, 2_000_000)] {
        lengths.insert(n, len);
        put(n, len);
    }
    // Through the log, too.
    lengths.insert(1004, 900_000);
    films.put(&u64::to_be_bytes(1004), &value(1004, 900_000)).unwrap();
    let pages = devices.part("data").unwrap().len() / 4096;
    let bytes: usize = lengths.values().sum();
    assert!(pages < bytes as u64 / 3900 * 2, "the free pages were used: {pages} for {bytes} bytes");
    drop(films);
    db.close().unwrap();

    // The pool is empty: read-ahead brings the pages.
    let db = Db::open_on(devices, roomy).unwrap();
    let films = db.keyspace("films").unwrap();
    for (n, len) in &lengths {
        let mut copy = Vec::new();
        assert_eq!(films.get_to(&n.to_be_bytes(), &mut copy).unwrap(), Some(*len as u64));
        assert!(copy == value(*n, *len), "value {n}");
    }
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    for n in lengths.keys() {
        films.delete(&n.to_be_bytes()).unwrap();
    }
    assert!(db.check().unwrap().is_clean());
    assert_eq!(db.check().unwrap().allocated_pages, empty);
    drop(films);
    db.close().unwrap();
}

#[test]
fn the_log_holds_neither_bulk_loads_nor_long_values() {
    let db = Db::create_on(memory(), &layout(), options()).unwrap();
    let log = |db: &Db| db.stats().log.group_bytes;
    let before = log(&db);
    let mut load = db.bulk_load("rows").unwrap();
    for n in 0..50_000u64 {
        load.push(&n.to_be_bytes(), &value(n, 100)).unwrap();
    }
    load.finish().unwrap();
    let loaded = log(&db) - before;
    assert!(loaded < 50_000 * 108 / 20, "{loaded} bytes of log for 5.4 MB of rows");
    let films = db.create_keyspace("films").unwrap();
    let before = log(&db);
    films.put_from(b"long", &mut Pieces(&value(3, 4 << 20))).unwrap();
    let put = log(&db) - before;
    assert!(put < 64 << 10, "{put} bytes of log for a value of 4 MiB");
    // Larger than the pool, and there.
    let mut copy = Vec::new();
    films.get_to(b"long", &mut copy).unwrap();
    assert!(copy == value(3, 4 << 20));
    films.put_with(b"other", b"value", Durability::Sync).unwrap();
    films.delete(b"long").unwrap();
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

/// A leaf that was loaded and is changed, written and torn before there was any checkpoint: the log must have it whole.
#[test]
fn the_first_change_of_a_loaded_page_survives_a_torn_write() {
    for seed in 1..=24u64 {
        println!("seed {seed}");
        let lives = move || {
            let supply = PowerSupply::new();
            let time = (Duration::from_micros(100), Duration::from_micros(400));
            let latency = Latency { read: time, write: time, durable: time, flush: time };
            let device = |name: &str| {
                let latency = latency.clone();
                let device =
                    MemDevice::with(0, MemOptions { name: name.into(), latency, seed, ..MemOptions::default() });
                supply.attach(device.clone());
                device
            };
            let devices = Devices::new(device("data"), device("log"));
            let (domain, began) = (Domain::new("machine"), Arc::new(Mutex::new(false)));
            {
                let (devices, supply, began) = (devices.clone(), supply.clone(), began.clone());
                domain.spawn("client", move || {
                    let log_max_bytes = 64 << 20;
                    let (layout, options) =
                        (Layout { log_bytes: log_max_bytes, ..layout() }, Options { log_max_bytes, ..options() });
                    let db = Db::create_on(devices, &layout, options).unwrap();
                    let mut load = db.bulk_load("rows").unwrap();
                    for n in 0..20_000u64 {
                        load.push(&n.to_be_bytes(), &value(n, 100)).unwrap();
                    }
                    let rows = load.finish().unwrap();
                    *began.lock() = true;
                    let mut rng = Rng::from_seed(seed);
                    loop {
                        let n = rng.below(20_000);
                        if rows.put_with(&n.to_be_bytes(), &value(n, 100 + n as usize % 5), Durability::None).is_err() {
                            assert!(!supply.is_on());
                            return;
                        }
                        varve_rt::sleep(Duration::from_micros(20));
                    }
                });
            }
            while !*began.lock() {
                varve_rt::sleep(Duration::from_millis(1));
            }
            varve_rt::sleep(Duration::from_micros(10_000 + seed * 7_919 % 60_000));
            supply.cut(seed);
            domain.power_cut();
            supply.restore();
            let db = Db::open_on(devices, options()).unwrap();
            let report = db.check().unwrap();
            assert!(report.is_clean(), "{report:?}");
            let rows = db.snapshot().unwrap().count(&db.keyspace("rows").unwrap(), ..).unwrap();
            assert_eq!(rows, 20_000);
        };
        sim::run(sim::Config { seed, ..sim::Config::default() }, lives).unwrap();
    }
}

/// Where a backup goes: does something with the database in between.
struct Meddles<'a> {
    file: Vec<u8>,
    db: &'a Db,
    loads: u64,
}

impl std::io::Write for Meddles<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.extend_from_slice(bytes);
        if self.file.len() as u64 >= self.loads << 18 && self.loads < 3 {
            self.loads += 1;
            let mut load = self.db.bulk_load(&format!("meanwhile {}", self.loads)).unwrap();
            for n in 0..300u64 {
                load.push(&n.to_be_bytes(), &value(n, 200)).unwrap();
            }
            let keyspace = load.finish().unwrap();
            keyspace.put_from(b"long", &mut Pieces(&value(self.loads, 100_000))).unwrap();
            keyspace.put(&7u64.to_be_bytes(), b"changed").unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_backup_copies_what_is_linked_while_it_is_made() {
    let db = Db::create_on(memory(), &layout(), options()).unwrap();
    let mut load = db.bulk_load("rows").unwrap();
    for n in 0..40_000u64 {
        load.push(&n.to_be_bytes(), &value(n, 100)).unwrap();
    }
    load.finish().unwrap();
    let mut to = Meddles { file: Vec::new(), db: &db, loads: 0 };
    db.backup(&mut to, BackupOptions::default()).unwrap();
    assert_eq!(to.loads, 3, "the backup was too short for what this is about");
    let devices = memory();
    varve::restore_on(&devices, &mut [&mut &to.file[..]], &RestoreOptions { layout: layout() }).unwrap();
    let copy = Db::open_on(devices, options()).unwrap();
    let report = copy.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(contents(&copy).unwrap() == contents(&db).unwrap());
}
