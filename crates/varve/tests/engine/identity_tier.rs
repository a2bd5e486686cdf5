//! A fast device belongs to its database at one moment: one of another time is refused by name, or emptied where it
//! held copies only.

use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{Damage, Db, Devices, Durability, Error, Layout, Options, TierOptions};
use varve_device::{Device, read_at, write_at};
use varve_models::{FaultPlan, Faulty, MemDevice, PowerSupply};
use varve_rt::Event;
use varve_rt::sim::{self, Domain};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A manager that leaves newest versions on the fast device, and one that leaves copies only.
const BACK: &str = "lru2";
const THROUGH: &str = "dw";

/// The devices of a database on a tier, as they are at one moment, and the rows that they hold.
#[derive(Clone)]
struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    fast: Arc<MemDevice>,
    rows: Rows,
    manager: &'static str,
}

impl Machine {
    /// A closed database with rows.
    fn new(manager: &'static str) -> Machine {
        let (data, log, fast) = (MemDevice::new(0), MemDevice::new(0), MemDevice::new(1 << 20));
        let machine = Machine { data, log, fast, rows: Rows::new(), manager };
        let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
        let db = Db::create_on(machine.devices(), &layout, machine.options()).unwrap();
        db.create_keyspace("rows").unwrap();
        db.close().unwrap();
        machine.worked("first", false)
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone()).with("fast", self.fast.clone())
    }

    /// So few frames that pages come to the fast device.
    fn options(&self) -> Options {
        let tier = TierOptions { manager: self.manager.into(), ..TierOptions::default() };
        Options { cache_bytes: 2 << 20, pool_frames: 64, tier, ..Options::default() }
    }

    fn copy(&self) -> Machine {
        let image = |device: &MemDevice| device.clone_image();
        Machine { data: image(&self.data), log: image(&self.log), fast: image(&self.fast), ..self.clone() }
    }

    fn open(&self) -> varve::Result<Db> {
        Db::open_on(self.devices(), self.options())
    }

    /// What it is after an opening and some commits; the database is closed then, or has crashed.
    fn worked(&self, name: &str, crash: bool) -> Machine {
        let mut after = self.copy();
        let db = after.open().unwrap();
        let rows = db.keyspace("rows").unwrap();
        for n in 0..800u32 {
            let (key, value) = (n.to_be_bytes().to_vec(), [name.as_bytes(), &vec![n as u8; 400]].concat());
            rows.put_with(&key, &value, Durability::None).unwrap();
            after.rows.insert(key, value);
        }
        db.sync().unwrap();
        drop(rows);
        if crash {
            drop(db)
        } else {
            db.close().unwrap()
        }
        after
    }

    /// It crashes as soon as it has recovered.
    fn recovered(&self) -> Machine {
        let copy = self.copy();
        drop(copy.open().unwrap());
        copy
    }

    /// This one beside the fast device of another.
    fn with_fast(&self, other: &Machine) -> Machine {
        Machine { fast: other.fast.clone(), ..self.clone() }.copy()
    }

    /// Everything is there, and in order; returns why the tier was emptied.
    #[track_caller]
    fn sound(&self) -> Option<String> {
        let db = self.open().unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert!(contents(&db) == self.rows, "rows differ");
        let emptied = db.recovery_report().emptied_tier.clone();
        db.close().unwrap();
        emptied
    }

    #[track_caller]
    fn refused(&self, words: &str) {
        let error = self.open().map(drop).unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)) && error.to_string().contains(words), "{error}, not {words:?}");
    }
}

fn contents(db: &Db) -> Rows {
    let rows = db.keyspace("rows").unwrap();
    db.snapshot().unwrap().scan(&rows, ..).unwrap().map(Result::unwrap).collect()
}

/// A database at several times: closed, crashed, and crashed after a recovery.
fn times(manager: &'static str) -> Vec<Machine> {
    let mut times = vec![Machine::new(manager)];
    for (name, crash) in [("one", false), ("two", true), ("three", false), ("four", true)] {
        times.push(times.last().unwrap().worked(name, crash));
    }
    let recovered = times.last().unwrap().recovered();
    times.push(recovered);
    times
}

fn words(own: usize, other: usize) -> &'static str {
    if other < own { "the fast device is older" } else { "`data` and log are older" }
}

#[test]
fn a_fast_device_of_another_time_is_refused_by_name() {
    let times = times(BACK);
    for (i, machine) in times.iter().enumerate() {
        for (j, other) in times.iter().enumerate().filter(|(j, _)| *j != i) {
            machine.with_fast(other).refused(words(i, j));
        }
        assert_eq!(machine.copy().sound(), None, "its own is taken");
    }
}

#[test]
fn a_fast_device_of_another_time_that_held_copies_is_emptied_once() {
    let times = times(THROUGH);
    for (i, machine) in times.iter().enumerate() {
        for (j, other) in times.iter().enumerate().filter(|(j, _)| *j != i) {
            let mixed = machine.with_fast(other);
            let why = mixed.sound().unwrap_or_else(|| panic!("time {i}, fast device of {j}: taken as it is"));
            assert!(why.contains(words(i, j)), "{why}");
            assert_eq!(mixed.sound(), None, "said once");
        }
        assert_eq!(machine.copy().sound(), None, "its own is taken");
    }
}

#[test]
fn reading_does_without_a_fast_device_of_another_time() {
    let old = Machine::new(THROUGH);
    let mixed = old.worked("later", false).with_fast(&old);
    let db = Db::open_on(mixed.devices(), Options { read_only: true, ..mixed.options() }).unwrap();
    assert!(contents(&db) == mixed.rows);
    db.close().unwrap();
    assert!(mixed.sound().is_some(), "reading changed nothing");
}

#[test]
fn fast_devices_of_copies_that_went_different_ways_are_told_apart() {
    let whole = Machine::new(BACK);
    for crash in [false, true] {
        // Neither makes a checkpoint but at its end.
        let (here, there) = (whole.worked("here", crash), whole.worked("there", crash));
        let error = here.with_fast(&there).open().map(drop).unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)), "{error}");
        here.sound();
    }
    let (here, there) = (whole.recovered(), whole.recovered());
    here.with_fast(&there).refused("went different ways");
}

#[test]
fn a_fast_device_from_before_the_last_checkpoint_is_refused() {
    let machine = Machine::new(BACK);
    let db = machine.open().unwrap();
    let early = machine.fast.clone_image();
    db.keyspace("rows").unwrap().put(b"key", b"value").unwrap();
    db.checkpoint().unwrap();
    drop(db);
    Machine { fast: early, ..machine }.refused("the fast device is older");
}

/// Makes a database one of a release whose fast devices bore no generation: the log does not say that it has one.
fn forget_the_stamp(machine: &Machine) {
    for at in [0, 4096] {
        let mut block = vec![0; 4096];
        read_at(&*machine.log, at, &mut block).unwrap();
        let runs = u32::from_le_bytes(block[100..104].try_into().unwrap()) as usize;
        let flags = 168 + 24 * runs + 1;
        assert_eq!(block[flags] & 2, 2);
        block[flags] &= !2;
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        write_at(&*machine.log, at, &block, true).unwrap();
    }
}

#[test]
fn a_fast_device_of_an_older_release_is_stamped_at_the_first_opening_for_writing() {
    for crash in [false, true] {
        let old = Machine::new(BACK).worked("old", crash);
        forget_the_stamp(&old);
        let before = old.copy();
        assert_eq!(old.sound(), None);
        old.with_fast(&before).refused("the fast device is older");
    }
}

/// Sets the event when the machine's work ends, however it ends.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Opens the database, commits, makes checkpoints and closes it, with a power cut at operation `n`; whether it ended
/// before.
fn work_until_cut(devices: &Devices, options: Options, supply: &Arc<PowerSupply>, n: u64) -> bool {
    let (domain, ended) = (Domain::new("machine"), Arc::new(Event::new()));
    supply.cut_at(supply.ops() + n, n);
    {
        let (devices, ended) = (devices.clone(), ended.clone());
        domain.spawn("database", move || {
            let ended = SetOnDrop(ended);
            let closed = Db::open_on(devices, options).and_then(|db| {
                db.checkpoint()?;
                db.keyspace("rows")?.put(&0u32.to_be_bytes(), b"later")?;
                db.checkpoint()?;
                db.close()
            });
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
    done
}

/// A power cut at operation `n` of an opening, and at an earlier one of the next; whether the work ended before the
/// first.
fn cut_at(whole: &Machine, n: u64, earlier: u64) -> bool {
    let (supply, machine) = (PowerSupply::new(), whole.copy());
    let powered = |device: &Arc<MemDevice>| -> Arc<dyn Device> {
        supply.attach(device.clone());
        Faulty::powered(device.clone(), FaultPlan::new(n), supply.clone())
    };
    let devices = Devices::new(powered(&machine.data), powered(&machine.log)).with("fast", powered(&machine.fast));
    let done = work_until_cut(&devices, machine.options(), &supply, n);
    if (1..n).contains(&earlier) {
        work_until_cut(&devices, machine.options(), &supply, n - earlier);
    }
    let place = format!("cuts at operation {n}, then {earlier} before");
    let db = Db::open_on(devices, machine.options()).unwrap_or_else(|e| panic!("{place}: {e}"));
    assert_eq!(db.recovery_report().emptied_tier, None, "{place}");
    let mut rows = contents(&db);
    rows.insert(0u32.to_be_bytes().to_vec(), whole.rows[&0u32.to_be_bytes()[..]].clone());
    assert!(rows == whole.rows, "{place}");
    let mut damages = db.check().unwrap().damages;
    // Between the two marks of a clean close a torn write cannot be told from damage.
    damages.retain(|damage| !matches!(damage, Damage::Superblock(_)));
    assert!(damages.is_empty(), "{place}: {damages:?}");
    db.close().unwrap();
    done
}

#[test]
fn after_power_cuts_at_any_moment_the_fast_device_still_belongs_to_the_database() {
    for manager in [BACK, THROUGH] {
        let whole = Machine::new(manager);
        let mut cuts = 0;
        for n in 1.. {
            let cut = |earlier: u64| {
                let (config, whole) = (sim::Config { seed: n, ..sim::Config::default() }, whole.clone());
                sim::run(config, move || cut_at(&whole, n, earlier)).unwrap()
            };
            if (0..4).map(cut).fold(false, |done, now| done | now) {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 30, "{manager}: only {cuts} operations");
    }
}
