//! Which files belong together: nothing is made over a database, and files of other databases or other times are
//! refused by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::{Damage, Db, Devices, Durability, Error, Layout, Options, PageId};
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Io, Op, Ticket, read_at, write_at};
use varve_models::{FaultPlan, Faulty, Latency, MemDevice, MemOptions, PowerSupply};
use varve_rt::sim::{self, Domain};
use varve_rt::{Event, Rng, sleep, spawn};
use varve_volume::page;

const PAGE: u64 = 4096;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The devices of a database, as they are at one moment, and the rows that they hold.
#[derive(Clone)]
struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    rows: Rows,
}

fn options() -> Options {
    Options { cache_bytes: 2 << 20, cleaners: false, ..Options::default() }
}

fn reading() -> Options {
    Options { read_only: true, ..options() }
}

fn layout() -> Layout {
    Layout { page_size: PAGE as usize, log_bytes: 1 << 20, ..Layout::default() }
}

impl Machine {
    /// A closed database with rows.
    fn new() -> Machine {
        let machine = Machine { data: MemDevice::new(0), log: MemDevice::new(0), rows: Rows::new() };
        let db = Db::create_on(machine.devices(), &layout(), options()).unwrap();
        db.create_keyspace("rows").unwrap();
        db.close().unwrap();
        machine.worked("first", false)
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn copy(&self) -> Machine {
        Machine { data: self.data.clone_image(), log: self.log.clone_image(), rows: self.rows.clone() }
    }

    fn open(&self) -> varve::Result<Db> {
        Db::open_on(self.devices(), options())
    }

    /// What it is after an opening and some commits; the database is closed then, or has crashed.
    fn worked(&self, name: &str, crash: bool) -> Machine {
        let mut after = self.copy();
        let db = after.open().unwrap();
        let rows = db.keyspace("rows").unwrap();
        for n in 0..50u32 {
            let (key, value) = (format!("{name} {n}").into_bytes(), vec![n as u8; 40 * n as usize % 900]);
            rows.put(&key, &value).unwrap();
            after.rows.insert(key, value);
        }
        drop(rows);
        if crash {
            return after.copy();
        }
        db.close().unwrap();
        after
    }

    /// It crashes in the middle of a recovery: a new run has begun, and no page was written back.
    fn recovered(&self) -> Machine {
        let copy = self.copy();
        let _db = copy.open().unwrap();
        copy.copy()
    }

    /// The log of this one beside the data of another.
    fn with_data(&self, other: &Machine) -> Machine {
        Machine { data: other.data.clone(), ..self.clone() }.copy()
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        let all = |device: &MemDevice| {
            let mut bytes = vec![0; device.len() as usize];
            device.peek(0, &mut bytes);
            bytes
        };
        vec![all(&self.data), all(&self.log)]
    }

    /// Everything is there, and in order.
    #[track_caller]
    fn sound(&self) {
        let db = self.open().unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(contents(&db), self.rows);
        db.close().unwrap();
    }

    /// It is refused, both ways, with an error that has these words; nothing is written.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> Error {
        let before = self.bytes();
        let mut last = None;
        for options in [options(), reading()] {
            let error = Db::open_on(self.devices(), options).map(drop).unwrap_err();
            if matches!(error, Error::ReadOnly(_)) {
                continue;
            }
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
            last = Some(error);
        }
        assert!(self.bytes() == before, "refusing wrote something");
        last.expect("opening for writing is refused")
    }
}

fn contents(db: &Db) -> Rows {
    let rows = db.keyspace("rows").unwrap();
    db.snapshot().unwrap().scan(&rows, ..).unwrap().map(Result::unwrap).collect()
}

fn zero(device: &MemDevice, from: u64, len: u64) {
    write_at(device, from, &vec![0; len as usize], true).unwrap();
}

#[test]
fn nothing_is_made_over_a_database_whose_data_is_blank_or_cut() {
    let closed = Machine::new();
    let crashed = closed.worked("crash", true);
    for machine in [&closed, &crashed] {
        let damaged = |damage: &dyn Fn(&Machine)| {
            let copy = machine.copy();
            damage(&copy);
            copy
        };
        for pages in [2, machine.data.len() / PAGE - 2] {
            damaged(&|m| zero(&m.data, 2 * PAGE, pages * PAGE)).refused(&["page 2", "`data`", "salvage"]);
        }
        damaged(&|m| zero(&m.data, 0, m.data.len())).refused(&["page 2", "`data`", "salvage"]);
        for len in [0, PAGE] {
            damaged(&|m| m.data.set_len(len).unwrap()).refused(&["page 2", "`data`", "cut", "salvage"]);
        }
        for len in [0, 4096] {
            let cut = damaged(&|m| m.log.set_len(len).unwrap());
            let error = cut.refused(&["superblock", "`data` holds pages", "salvage"]);
            assert!(matches!(error, Error::Corrupt(Damage::Superblock(_))), "{error}");
        }
        damaged(&|m| zero(&m.log, 0, 8192)).refused(&["superblock", "`data` holds pages", "salvage"]);
    }
    let first = closed.copy();
    zero(&first.data, 0, PAGE);
    first.refused(&["page 0", "`data`", "salvage"]);
    let mut found = Rows::new();
    varve::salvage_on(&first.devices(), &mut |row| {
        found.insert(row.key.to_vec(), row.value.to_vec());
        Ok(())
    })
    .unwrap();
    assert_eq!(found, closed.rows, "refused, so that it can be salvaged");
}

#[test]
fn files_of_other_times_and_databases_are_refused_by_name() {
    let mut times = vec![Machine::new()];
    for (name, crash) in [("one", false), ("two", true), ("three", false), ("four", true), ("five", true)] {
        times.push(times.last().unwrap().worked(name, crash));
    }
    let recovered = times.last().unwrap().recovered();
    times.push(recovered);
    for (i, log) in times.iter().enumerate() {
        log.copy().sound();
        for (j, data) in times.iter().enumerate().filter(|(j, _)| *j != i) {
            let words = if j < i { "`data` is older" } else { "the log is older" };
            let error = log.with_data(data).refused(&["do not belong together", words]);
            assert!(matches!(error, Error::Mismatch(_)), "log {i}, data {j}: {error}");
        }
    }
    let other = Machine::new();
    times[3].with_data(&other).refused(&["`data` is of another database"]);
    other.with_data(&times[3]).refused(&["`data` is of another database"]);
}

#[test]
fn copies_that_went_different_ways_are_told_apart() {
    let whole = Machine::new();
    for crash in [false, true] {
        let (here, there) = (whole.worked("here", crash), whole.worked("there", crash));
        here.with_data(&there).refused(&["went different ways"]);
        there.with_data(&here).refused(&["went different ways"]);
        here.sound();
        there.sound();
    }
}

#[test]
fn a_log_of_a_moment_ago_is_refused() {
    // Of the same opening and generation: only what it ends with tells.
    let machine = Machine::new();
    let db = machine.open().unwrap();
    let rows = db.keyspace("rows").unwrap();
    let early = machine.log.clone_image();
    for n in 0..400u32 {
        rows.put(&n.to_be_bytes(), &[7; 200]).unwrap();
    }
    db.checkpoint().unwrap();
    let late = machine.copy();
    Machine { log: early, ..late }.refused(&["the log is older"]);
}

#[test]
fn a_flipped_bit_of_a_superblock_loses_no_commit() {
    let closed = Machine::new();
    let crashed = closed.worked("crash", true);
    let states = [("closed", closed), ("recovered", crashed.recovered()), ("crashed", crashed)];
    let mut rng = Rng::from_seed(3);
    for (name, machine) in &states {
        for round in 0..150 {
            let copy = machine.copy();
            // Most of a superblock is zeros.
            let at = rng.below(2) * 4096 + if rng.one_in(3) { rng.below(4096) } else { rng.below(300) };
            let bit = rng.below(8) as u8;
            copy.log.flip_bit(at, bit);
            let db = copy.open().unwrap_or_else(|e| panic!("{name}, round {round}, byte {at}, bit {bit}: {e}"));
            assert!(contents(&db) == machine.rows, "{name}, round {round}, byte {at}, bit {bit}: commits are gone");
            assert!(db.recovery_report().mended_superblock.is_some());
            db.close().unwrap();
            let db = copy.open().unwrap();
            assert_eq!(db.recovery_report().mended_superblock, None, "mended by the first opening");
            assert_eq!(db.check().unwrap().warnings.len(), usize::from(*name == "closed"));
        }
    }
}

#[test]
fn damage_of_an_identity_page_is_named_and_mended() {
    let machine = Machine::new();
    for id in [2, 3] {
        let copy = machine.copy();
        copy.data.flip_bit(id * PAGE + 50, 3);
        for options in [reading(), options()] {
            let db = Db::open_on(copy.devices(), options).unwrap();
            let damages = db.check().unwrap().damages;
            assert!(matches!(damages[..], [Damage::Page { page: PageId(p), .. }] if p == id), "{damages:?}");
            db.close().unwrap();
        }
        copy.sound();
    }
}

/// A process that was killed as it opened the database leaves the second page as it was before.
#[test]
fn a_generation_that_a_crash_left_unconfirmed_is_no_damage() {
    let machine = Machine::new();
    let before = machine.copy();
    machine.open().unwrap().close().unwrap();
    let mut page = vec![0; PAGE as usize];
    let put_back = |id: u64, page: &mut [u8]| {
        let copy = machine.copy();
        before.data.peek(id * PAGE, page);
        write_at(&*copy.data, id * PAGE, page, true).unwrap();
        copy
    };
    let killed = put_back(3, &mut page);
    let db = Db::open_on(killed.devices(), reading()).unwrap();
    let report = db.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    db.close().unwrap();
    killed.sound();
    // The first page is written first, so no crash leaves that one behind.
    let db = Db::open_on(put_back(2, &mut page).devices(), reading()).unwrap();
    assert_eq!(db.check().unwrap().damages.len(), 1);
}

/// A database as a release before generations left it: superblocks of version 1, no identity pages.
fn of_an_older_release(new: &Machine) -> Machine {
    let old = new.copy();
    let mut map = vec![0; PAGE as usize];
    read_at(&*old.data, 0, &mut map).unwrap();
    map[48] &= !0b1100;
    page::seal(&mut map, PageId(0));
    write_at(&*old.data, 0, &map, true).unwrap();
    zero(&old.data, 2 * PAGE, 2 * PAGE);
    for at in [0, 4096] {
        let mut block = vec![0; 4096];
        read_at(&*old.log, at, &mut block).unwrap();
        let rest = block[168..4092].to_vec();
        block[104..].fill(0);
        block[104..104 + rest.len()].copy_from_slice(&rest);
        block[8] = 1;
        // The names of features come last.
        for name in ["identity", "map-count"] {
            let at = block.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
            block[at - 1..at + name.len()].fill(0);
        }
        block[16] += (at == 4096) as u8;
        let crc = crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        write_at(&*old.log, at, &block, true).unwrap();
    }
    old
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &b| {
        (0..8).fold(crc ^ u32::from(b), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

#[test]
fn a_database_of_an_older_release_gets_its_identity_at_the_first_opening_for_writing() {
    let old = of_an_older_release(&Machine::new());
    let before = old.bytes();
    let db = Db::open_on(old.devices(), reading()).unwrap();
    assert!(contents(&db) == old.rows && db.check().unwrap().is_clean());
    db.close().unwrap();
    assert!(old.bytes() == before, "reading only changes nothing");

    let db = old.open().unwrap();
    assert!(db.recovery_report().identified);
    assert!(db.check().unwrap().is_clean());
    // It may crash at once.
    let crashed = old.copy();
    db.close().unwrap();
    for machine in [&old, &crashed] {
        let db = machine.open().unwrap();
        assert!(!db.recovery_report().identified, "once only");
        db.close().unwrap();
        machine.sound();
    }
    let later = old.worked("later", false);
    later.with_data(&old).refused(&["`data` is older"]);
}

#[test]
fn a_new_database_on_used_devices_is_empty() {
    let used = Machine::new().worked("long ago", true);
    let db = Db::create_on(used.devices(), &layout(), options()).unwrap();
    assert!(db.keyspaces().unwrap().is_empty(), "a former database's rows came back");
    db.create_keyspace("rows").unwrap().put_with(b"key", b"acknowledged", Durability::Sync).unwrap();
    let crashed = Machine { rows: Rows::from([(b"key".to_vec(), b"acknowledged".to_vec())]), ..used.copy() };
    crashed.sound();
}

/// Sets the event when the machine's work ends, however it ends.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Creates a database, on blank devices or over another one, with a power cut at operation `n`; whether it ended
/// before.
fn creation_cut_at(n: u64, used: bool) -> bool {
    let supply = PowerSupply::new();
    let device = |name: &str| {
        let device = MemDevice::with(0, MemOptions { name: name.into(), seed: n, ..MemOptions::default() });
        supply.attach(device.clone());
        Faulty::powered(device, FaultPlan::new(n), supply.clone())
    };
    let devices = Devices::new(device("data"), device("log"));
    if used {
        let db = Db::create_on(devices.clone(), &layout(), options()).unwrap();
        db.create_keyspace("old").unwrap();
        db.close().unwrap();
    }
    let (domain, ended) = (Domain::new("machine"), Arc::new(Event::new()));
    supply.cut_at(supply.ops() + n, n);
    {
        let (devices, ended) = (devices.clone(), ended.clone());
        domain.spawn("database", move || {
            let ended = SetOnDrop(ended);
            let closed = Db::create_on(devices, &layout(), options()).and_then(|db| db.close());
            drop((closed, ended));
        });
    }
    ended.wait();
    let done = supply.is_on();
    if done {
        supply.cut(n);
    }
    domain.power_cut();
    supply.cut_at(0, 0);
    supply.restore();
    let left = Db::open_on(devices.clone(), options());
    match &left {
        Ok(db) => {
            let keyspaces = db.keyspaces().unwrap();
            assert!(keyspaces.is_empty() || (used && !done && keyspaces[0].name == "old"), "{keyspaces:?}");
            assert!(db.check().unwrap().damages.iter().all(|d| matches!(d, Damage::Superblock(_))));
        }
        Err(e) => assert!(!done && matches!(e, Error::Unfinished(_) | Error::NoDatabase(_)), "operation {n}: {e}"),
    }
    if let Ok(db) = left {
        db.close().unwrap();
    }
    // One command goes on.
    let db = Db::create_on(devices, &layout(), options()).unwrap();
    assert!(db.keyspaces().unwrap().is_empty() && db.check().unwrap().is_clean());
    db.close().unwrap();
    done
}

#[test]
fn a_creation_that_is_cut_leaves_what_was_or_what_will_be() {
    for used in [false, true] {
        let mut cuts = 0;
        for n in 1.. {
            let config = sim::Config { seed: n, ..sim::Config::default() };
            if sim::run(config, move || creation_cut_at(n, used)).unwrap() {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 15, "only {cuts} operations");
    }
}

/// A device that has what is written to it only after a while.
struct Late(Arc<MemDevice>);

impl Device for Late {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.0.set_len(len)
    }
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        if batch.iter().any(|io| matches!(io.op, Op::Write { .. })) {
            sleep(Duration::from_millis(2));
        }
        self.0.submit(batch)
    }
    fn stats(&self) -> DeviceStats {
        self.0.stats()
    }
}

#[test]
fn a_check_beside_checkpoints_finds_nothing_wrong() {
    for seed in 1..6 {
        let config = sim::Config { seed, chaos: true, ..sim::Config::default() };
        let checks = sim::run(config, move || {
            let latency = Latency { read: (Duration::ZERO, Duration::from_millis(1)), ..Latency::default() };
            let data = MemDevice::with(0, MemOptions { latency, seed, ..MemOptions::default() });
            let devices = Devices::new(Arc::new(Late(data)), MemDevice::new(0));
            let db = Db::create_on(devices, &layout(), options()).unwrap();
            let rows = db.create_keyspace("rows").unwrap();
            let checkpoints = {
                let db = db.clone();
                spawn("checkpoints", move || {
                    for n in 0..20u32 {
                        rows.put(n.to_be_bytes(), "value").unwrap();
                        db.checkpoint().unwrap();
                    }
                })
            };
            let (mut checks, mut rng) = (0, Rng::from_seed(seed));
            while !checkpoints.is_finished() {
                // A check ends when no checkpoint is being noted: the next one is to begin at any moment of the next.
                sleep(Duration::from_micros(rng.below(12_000)));
                let report = db.check().unwrap();
                assert!(report.is_clean(), "seed {seed}, check {checks}: {report:?}");
                checks += 1;
            }
            checkpoints.join().unwrap();
            db.close().unwrap();
            checks
        });
        assert!(checks.unwrap() > 10, "seed {seed}");
    }
}
