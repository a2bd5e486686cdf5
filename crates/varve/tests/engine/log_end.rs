//! The end of the log: what a later group, or a page, proves to have been there is never given up as a torn tail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Layout, Options, PoolOptions, TierOptions};
use varve_device::{AlignedBuf, Device};
use varve_models::{FaultPlan, Faulty, MemDevice, PowerSupply};
use varve_rt::Event;
use varve_rt::sim::{self, Domain};
use varve_volume::page;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A group of the log, as `docs/format.md` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    lsn: u64,
    end: u64,
    durable: u64,
    run: u32,
    /// Where it is in the file.
    at: u64,
}

/// The devices of a database.
#[derive(Clone)]
struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    fast: Option<Arc<MemDevice>>,
}

fn options() -> Options {
    let tier = TierOptions { manager: "lru2".into(), ..TierOptions::default() };
    let pool = PoolOptions { instances: Some(1), ..PoolOptions::default() };
    Options { cache_bytes: 4 << 20, pool_frames: 48, pool, cleaners: false, tier, ..Options::default() }
}

impl Machine {
    /// A closed database with rows.
    fn new(tier: bool, rows: &Rows) -> Machine {
        let fast = tier.then(|| MemDevice::new(1 << 20));
        let machine = Machine { data: MemDevice::new(0), log: MemDevice::new(0), fast };
        let layout = Layout { page_size: 4096, log_bytes: 2 << 20, ..Layout::default() };
        let db = Db::create_on(machine.devices(&PowerSupply::new()), &layout, options()).unwrap();
        let keyspace = db.create_keyspace("rows").unwrap();
        rows.iter().for_each(|(key, value)| keyspace.put_with(key, value, Durability::None).unwrap());
        drop(keyspace);
        db.close().unwrap();
        machine
    }

    fn copy(&self) -> Machine {
        let fast = self.fast.as_ref().map(|fast| fast.clone_image());
        Machine { data: self.data.clone_image(), log: self.log.clone_image(), fast }
    }

    fn devices(&self, supply: &Arc<PowerSupply>) -> Devices {
        let powered = |device: &Arc<MemDevice>| -> Arc<dyn Device> {
            supply.attach(device.clone());
            Faulty::powered(device.clone(), FaultPlan::new(0), supply.clone())
        };
        let devices = Devices::new(powered(&self.data), powered(&self.log));
        self.fast.iter().fold(devices, |devices, fast| devices.with("fast", powered(fast)))
    }

    fn open(&self) -> varve::Result<Db> {
        Db::open_on(self.devices(&PowerSupply::new()), options())
    }

    /// The groups of the last run, in order.
    fn groups(&self) -> Vec<Group> {
        let mut log = vec![0; self.log.len() as usize];
        self.log.peek(0, &mut log);
        let long = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_le_bytes(log[at..at + 4].try_into().unwrap());
        let headers = (8192..log.len() - 40).step_by(8).filter(|at| log[*at..].starts_with(b"VGRP"));
        let group = |at: usize| {
            let (lsn, size) = (long(at + 8), (40 + u64::from(short(at + 24))).next_multiple_of(8));
            Group { lsn, end: lsn + size, durable: long(at + 16), run: short(at + 28), at: at as u64 }
        };
        let mut groups: Vec<Group> = headers.map(group).collect();
        let newest = groups.iter().map(|g| g.run).max().unwrap();
        groups.retain(|g| g.run == newest);
        groups.sort_unstable();
        groups
    }

    /// The same with a bit of the group's body flipped.
    fn damaged(&self, group: Group) -> Machine {
        let copy = self.copy();
        copy.log.flip_bit(group.at + 50, 3);
        copy
    }
}

/// Rows that fill more pages than there are frames, or every 180th of them from one on.
fn all_rows() -> Rows {
    (0..1800u32).map(|n| (n.to_be_bytes().to_vec(), vec![1; 250])).collect()
}

fn some_rows(from: usize, filling: u8) -> Rows {
    all_rows().into_keys().skip(from).step_by(180).map(|key| (key, vec![filling; 250])).collect()
}

fn commit(db: &Db, rows: &Rows) {
    let keyspace = db.keyspace("rows").unwrap();
    let mut tx = db.begin().unwrap();
    rows.iter().for_each(|(key, value)| tx.put(&keyspace, key, value).unwrap());
    tx.commit().unwrap();
}

fn contents(db: &Db) -> Rows {
    let rows = db.keyspace("rows").unwrap();
    db.snapshot().unwrap().scan(&rows, ..).unwrap().map(Result::unwrap).collect()
}

fn run<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    sim::run(sim::Config { seed, ..sim::Config::default() }, f).unwrap()
}

#[test]
fn groups_of_a_run_that_was_cut_short_are_not_believed_behind_those_of_the_next() {
    run(3, || {
        let machine = Machine::new(false, &some_rows(0, 1));
        let db = machine.open().unwrap();
        commit(&db, &some_rows(0, 2));
        let before = machine.copy();
        // Blocks of one write, and a commit while they are under way: it begins with the next block.
        let rows = db.keyspace("rows").unwrap();
        for n in 0..40u32 {
            rows.put_with(&n.to_be_bytes(), &[3; 900], Durability::None).unwrap();
        }
        let blocks = db.stats().log.end.next_multiple_of(4096);
        rows.put_with(b"last", &[3; 20], Durability::Async).unwrap();
        while db.stats().log.end < blocks {
            varve_rt::sleep(Duration::from_micros(10));
        }
        rows.put_with(b"ghost", &[9; 20], Durability::None).unwrap();
        drop(rows);
        db.sync().unwrap();
        let groups = machine.groups();
        let meanwhile = |g: &&Group| g.lsn.is_multiple_of(4096) && g.durable + 4096 <= g.lsn;
        let ghost = *groups.iter().rev().find(meanwhile).expect("the commit that came meanwhile");
        // The power went: what was under way before that commit is lost.
        let crashed = Machine { log: machine.log.clone_image(), ..before };
        let lost = AlignedBuf::new((ghost.lsn - ghost.durable) as usize);
        varve_device::write_at(&*crashed.log, ghost.at - lost.len() as u64, &lost, true).unwrap();
        drop(db);
        // The next run ends, block by block, where that commit begins.
        let db = crashed.open().unwrap();
        let rows = db.keyspace("rows").unwrap();
        let until = db.stats().log.durable + ghost.lsn - ghost.durable;
        for n in 0u8.. {
            rows.put(b"again", &[n; 20]).unwrap();
            if db.stats().log.durable >= until {
                break;
            }
        }
        assert_eq!(db.stats().log.durable, until);
        let again = crashed.copy();
        drop((rows, db));
        let db = again.open().unwrap();
        assert!(!contents(&db).contains_key(&b"ghost"[..]));
    });
}

#[test]
fn a_commit_is_proved_by_a_group_that_begins_anywhere() {
    run(1, || {
        let machine = Machine::new(false, &all_rows());
        let db = machine.open().unwrap();
        let rows = db.keyspace("rows").unwrap();
        let long_ago = db.stats().log.durable;
        // Nobody waits: the blocks that are full are written, and the groups after them begin within a block.
        for n in 0..600u32 {
            rows.put_with(&n.to_be_bytes(), &[2; 250], Durability::None).unwrap();
            varve_rt::sleep(Duration::from_micros(100));
        }
        assert!(db.stats().log.durable > long_ago, "nothing was written");
        db.sync().unwrap();
        let crashed = machine.copy();
        let groups = crashed.groups();
        let within = |lost: &Group| {
            let mut proofs = groups.iter().filter(|g| g.durable >= lost.end).peekable();
            proofs.peek().is_some() && proofs.all(|g| g.lsn % 4096 != 0)
        };
        let lost: Vec<Group> = groups.iter().copied().filter(within).collect();
        assert!(!lost.is_empty(), "each is proved by a group at the start of a block");
        for group in [lost[0], lost[lost.len() / 2], lost[lost.len() - 1]] {
            let error = crashed.damaged(group).open().map(drop).unwrap_err().to_string();
            assert!(error.contains("[L6]") && error.contains(&format!("LSN {}", group.lsn)), "{error}");
        }
        drop(rows);
        drop(db);
    });
}

/// Sets the event when the machine's work ends, however it ends.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Recovers with a power cut at operation `n`; whether it ended before.
fn recovery_cut_at(machine: &Machine, n: u64) -> bool {
    let supply = PowerSupply::new();
    let (devices, domain, ended) = (machine.devices(&supply), Domain::new("machine"), Arc::new(Event::new()));
    supply.cut_at(n, n);
    let ends = SetOnDrop(ended.clone());
    domain.spawn("opening", move || {
        let opened = Db::open_on(devices, options());
        drop((opened, ends));
    });
    ended.wait();
    let done = supply.is_on();
    if done {
        supply.cut(n);
    }
    domain.power_cut();
    supply.restore();
    done
}

/// A recovery writes pages before the log goes on. What it read last must not be lost without a word after that.
#[test]
fn the_log_ends_no_earlier_than_a_recovery_that_was_cut_short_had_read() {
    for tier in [false, true] {
        let mut before = all_rows();
        let machine = Machine::new(tier, &before);
        let db = machine.open().unwrap();
        for from in (15..180).step_by(15) {
            commit(&db, &some_rows(from, 2));
            before.extend(some_rows(from, 2));
        }
        commit(&db, &some_rows(0, 3));
        let after: Rows = before.clone().into_iter().chain(some_rows(0, 3)).collect();
        let crashed = machine.copy();
        drop(db);
        let last = *crashed.groups().last().unwrap();
        let (mut refused, mut given_up, mut written) = (0, 0, 0);
        for n in (1..).step_by(5) {
            let copy = crashed.copy();
            let found = run(n, || {
                if recovery_cut_at(&copy, n) {
                    return None;
                }
                let sound = copy.copy().open().unwrap();
                assert!(contents(&sound) == after, "a crash inside recovery at operation {n}");
                sound.close().unwrap();
                Some(match copy.damaged(last).open() {
                    Err(error) => error.to_string(),
                    Ok(db) => {
                        assert!(contents(&db) == before, "operation {n}: neither what was before nor an error");
                        db.close().unwrap();
                        "given up".to_string()
                    }
                })
            });
            let Some(found) = found else { break };
            written += u32::from(page_past(&copy, last.lsn));
            given_up += u32::from(found == "given up");
            refused += u32::from(found.contains("[L11]"));
            assert!(["given up", "[L11]", "[L4]"].iter().any(|words| found.contains(words)), "operation {n}: {found}");
        }
        eprintln!("{refused} refused, {given_up} given up, {written} written");
        assert!(
            refused > 0 && given_up > 0 && written > 0,
            "{refused} refused, {given_up} given up, {written} written"
        );
    }
}

/// A drive that lost the end of the log, though it had said that it is durable, or an older log put back: pages have
/// what the log has not. That is seen however far the log has grown since.
#[test]
fn what_a_lost_end_of_the_log_held_is_damage_for_ever() {
    run(1, || {
        let machine = Machine::new(false, &all_rows());
        let db = machine.open().unwrap();
        commit(&db, &some_rows(0, 2));
        let (older, known) = (machine.log.clone_image(), db.stats().log.end);
        for from in (0..180).step_by(5) {
            commit(&db, &some_rows(from, 3));
        }
        let lost = db.stats().log.end - known;
        let crashed = Machine { log: older, ..machine.copy() };
        drop(db);
        assert!(page_past(&crashed, known), "no page has what the log lost");
        for opening in 0..3 {
            let db = crashed.open().unwrap();
            let more = db.keyspace("more").or_else(|_| db.create_keyspace("more")).unwrap();
            let (before, stamp) = (db.stats().log.end, [opening; 250]);
            for n in 0u32.. {
                more.put_with(&n.to_be_bytes(), &stamp, Durability::None).unwrap();
                if db.stats().log.end > before + 2 * lost {
                    break;
                }
            }
            drop(more);
            db.sync().unwrap();
            let report = db.check().unwrap();
            let first = report.damages.first().expect("damage").to_string();
            assert!(first.contains("after a crash the log ended at") || first.contains("a write was lost"), "{first}");
            let rows = db.keyspace("rows").unwrap();
            let read = db.snapshot().unwrap().scan(&rows, ..).unwrap().find_map(Result::err).expect("an error");
            assert!(read.to_string().contains("the log had lost its end"), "opening {opening}: {read}");
            drop(rows);
            // Once closed, once crashed: a gap lasts.
            if opening == 0 { db.close().unwrap() } else { drop(db) }
        }
    });
}

/// Whether a page was written that the log changed after `lsn`.
fn page_past(machine: &Machine, lsn: u64) -> bool {
    let devices = [Some(&machine.data), machine.fast.as_ref()];
    devices.into_iter().flatten().any(|device| {
        let mut bytes = [0; 4096];
        (0..device.len()).step_by(4096).any(|at| {
            device.peek(at, &mut bytes);
            let leaf = page::claims(&bytes) && page::keyspace(&bytes).0 < 100;
            leaf && page::lsn(&bytes) > lsn
        })
    })
}
