//! What was shown is not lost, and what was promised is kept, whenever the power fails: on a simulated machine whose
//! log takes its time, so that there is always a moment between a commit's place in the log and its durability.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Durability, Faults, KeyRange, Keyspace, Layout, Mistake, Options, Result, TxOptions};
use varve_models::{Latency, MemDevice, MemOptions, PowerSupply};
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::sim::{self, Domain};
use varve_rt::{Event, Mutex, now, sleep, spawn};

/// What a write to the log takes; now and then ten times as long.
const LOG_WRITE: Duration = ms(2);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two devices on one supply of power. Its log is slow.
struct Machine {
    supply: Arc<PowerSupply>,
    devices: Devices,
    options: Options,
}

impl Machine {
    fn new(seed: u64, options: Options) -> Machine {
        let supply = PowerSupply::new();
        let device = |name: &str, latency| {
            let device = MemDevice::with(0, MemOptions { name: name.into(), latency, seed, ..MemOptions::default() });
            supply.attach(device.clone());
            device
        };
        let slow = (LOG_WRITE, LOG_WRITE);
        let log = Latency { read: (ms(0), ms(0)), write: slow, durable: slow, flush: slow };
        let devices = Devices::new(device("data", Latency::default()), device("log", log));
        let options = Options { cache_bytes: 4 << 20, cleaners: false, ..options };
        Machine { supply, devices, options }
    }

    /// Makes the database, runs `f` on it and cuts the power as soon as it returns; then opens the database again.
    fn cut_after<T: Send + 'static>(&self, seed: u64, f: impl FnOnce(&Db) -> T + Send + 'static) -> (T, Db) {
        let (devices, options) = (self.devices.clone(), self.options.clone());
        let (returned, result) = (Arc::new(Event::new()), Arc::new(Mutex::new(None)));
        let domain = Domain::new("machine");
        {
            let (returned, result) = (SetOnDrop(returned.clone()), result.clone());
            domain.spawn("database", move || {
                let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
                let db = Db::create_on(devices, &layout, options).unwrap();
                let value = f(&db);
                *result.lock() = Some(value);
                drop(returned);
                // What runs in the background goes on until the power fails.
                loop {
                    sleep(ms(1000));
                }
            })
        };
        returned.wait();
        self.supply.cut(seed);
        domain.power_cut();
        self.supply.restore();
        let value = result.lock().take().expect("the client ended with its value");
        let db = Db::open_on(self.devices.clone(), Options { faults: Faults::default(), ..self.options.clone() });
        (value, db.unwrap())
    }
}

/// Tells when it is dropped, be it by a panic.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Runs in simulations with seeds from 1 on; `broken` acknowledges commits before they are durable.
fn options(broken: bool) -> Options {
    Options { faults: broken.then_some(Mistake::AckBeforeFlush).into(), ..Options::default() }
}

fn simulate<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let config = sim::Config { seed, chaos: seed.is_multiple_of(2), ..sim::Config::default() };
    sim::run(config, f).unwrap()
}

/// Something that tells whether `key` is there.
type Look = fn(&Db, &Keyspace, &[u8]) -> Result<bool>;

/// Every way of reading, each with the least durability its caller can ask for.
const LOOKS: [(&str, Look); 19] = [
    ("get", |_, rows, key| Ok(rows.get(key)?.is_some())),
    ("get_with", |_, rows, key| rows.get_with(key, |value| value.is_some())),
    ("get_into", |_, rows, key| rows.get_into(key, &mut Vec::new())),
    ("contains", |_, rows, key| rows.contains(key)),
    ("delete", |_, rows, key| rows.delete_with(key, Durability::None)),
    ("delete, async", |_, rows, key| rows.delete_with(key, Durability::Async)),
    ("snapshot: get", |db, rows, key| Ok(db.snapshot()?.get(rows, key)?.is_some())),
    ("snapshot: count", |db, rows, _| Ok(db.snapshot()?.count(rows, ..)? == 1)),
    ("snapshot: scan", |db, rows, _| Ok(db.snapshot()?.scan(rows, ..)?.next().transpose()?.is_some())),
    ("read-only: get", |db, rows, key| {
        let mut tx = db.begin_with(TxOptions::read_only())?;
        let found = tx.get(rows, key)?.is_some();
        tx.commit().map(|()| found)
    }),
    ("read-only: scan_rev", |db, rows, key| {
        let mut tx = db.begin_with(TxOptions::read_only())?;
        let found = tx.scan_rev(rows, KeyRange::prefix(key))?.next().transpose()?.is_some();
        tx.commit().map(|()| found)
    }),
    ("transaction without writes: get", |db, rows, key| lazily(db, |tx| Ok(tx.get(rows, key)?.is_some()))),
    ("transaction without writes: scan", |db, rows, _| {
        lazily(db, |tx| Ok(tx.scan(rows, ..)?.next().transpose()?.is_some()))
    }),
    ("transaction without writes: count", |db, rows, _| lazily(db, |tx| Ok(tx.count(rows, ..)? == 1))),
    ("transaction without writes: get_for_update", |db, rows, key| {
        lazily(db, |tx| Ok(tx.get_for_update(rows, key)?.is_some()))
    }),
    ("transaction that writes elsewhere", |db, rows, key| {
        let other = db.keyspace("other")?;
        lazily(db, |tx| {
            tx.put(&other, b"x", b"y")?;
            tx.contains(rows, key)
        })
    }),
    ("transaction that deletes what is not there", |db, rows, key| {
        let other = db.keyspace("other")?;
        lazily(db, |tx| {
            tx.delete(&other, b"nothing")?;
            tx.contains(rows, key)
        })
    }),
    ("range delete", |db, rows, _| lazily(db, |tx| Ok(tx.delete_range(rows, ..)? == 1))),
    ("a reader of what a reader wrote", |db, rows, key| {
        let other = db.keyspace("other")?;
        let (db2, rows2, other2, key2) = (db.clone(), rows.clone(), other.clone(), key.to_vec());
        // It is in the log at once, and waits for what it read; what it wrote shows meanwhile.
        let middle = spawn("middle", move || {
            lazily(&db2, |tx| {
                let found = [u8::from(tx.contains(&rows2, &key2)?)];
                tx.put(&other2, b"found", &found)
            })
        });
        sleep(LOG_WRITE / 8);
        let found = other.get(b"found")?.expect("it shows as soon as it has its place in the log")[0] == 1;
        middle.join().expect("no panic")?;
        Ok(found)
    }),
];

/// A transaction that asks for no durability of its own.
fn lazily<T>(db: &Db, f: impl FnMut(&mut varve::Transaction) -> Result<T>) -> Result<T> {
    db.transact_with(TxOptions::durability(Durability::None), f)
}

/// A `Sync` commit that inserts a key (or deletes it) and leaves a mark; while it waits for the log, `look` runs, and
/// the power fails when that returns. True when the mark is still there.
fn mark_survives(seed: u64, broken: bool, inserts: bool, len: usize, name: &'static str, look: Look) -> bool {
    simulate(seed, move || {
        let machine = Machine::new(seed, options(broken));
        let (waited, db) = machine.cut_after(seed, move |db| {
            let [rows, marks, _] = ["rows", "marks", "other"].map(|name| db.create_keyspace(name).unwrap());
            if !inserts {
                rows.put(b"key", &vec![1; len]).unwrap();
            }
            db.checkpoint().unwrap();
            let began = now();
            let writer = {
                let (db, rows) = (db.clone(), rows.clone());
                spawn("writer", move || {
                    db.transact(|tx| {
                        if inserts {
                            tx.put(&rows, b"key", &vec![1; len])?
                        } else {
                            tx.delete(&rows, b"key")?
                        }
                        tx.put(&marks, b"mark", b"")
                    })
                })
            };
            sleep(ms(1));
            let found = look(db, &rows, b"key").unwrap();
            assert_eq!(found, inserts, "{name} was to see the commit");
            let waited = began.elapsed();
            // Its thread ends with the machine.
            drop(writer);
            waited
        });
        let survived = db.keyspace("marks").unwrap().contains(b"mark").unwrap();
        assert!(broken || waited >= LOG_WRITE, "{name} returned after {waited:?}, nothing can have been durable");
        db.close().unwrap();
        survived
    })
}

#[test]
fn whoever_saw_a_sync_commit_returns_when_it_is_durable() {
    for (name, look) in LOOKS {
        for (inserts, len) in [(true, 10), (false, 10), (true, 9000), (false, 9000)] {
            for seed in 1..4 {
                let case = format!("{name}, {inserts}, {len} bytes, seed {seed}");
                assert!(mark_survives(seed, false, inserts, len, name, look), "{case}: shown, and lost");
            }
        }
    }
}

#[test]
fn without_the_wait_every_way_of_reading_shows_what_is_then_lost() {
    for (name, look) in LOOKS {
        let lost = (1..40).any(|seed| !mark_survives(seed, true, true, 10, name, look));
        assert!(lost, "{name}: nothing was lost in 40 power cuts, so the test above shows nothing");
    }
}

/// A commit that returned: its place in the serial order, the moment, and what it was promised.
#[derive(Clone, Debug)]
struct Acknowledged {
    number: u64,
    at: Duration,
    durability: Durability,
    place: u64,
}

/// Clients that commit with the given durabilities at moments of their own, until the power fails at `cut_at`; each
/// commit writes down its number under the number's own key. Returns what was acknowledged, and the numbers found
/// afterwards.
fn commit_until(
    seed: u64,
    durabilities: &'static [Durability],
    cut_at: Duration,
) -> (Vec<Acknowledged>, Duration, Vec<u64>) {
    simulate(seed, move || {
        let machine = Machine::new(seed, options(false));
        let (acknowledged, db) = machine.cut_after(seed, move |db| {
            let rows = db.create_keyspace("rows").unwrap();
            let began = now();
            let acknowledged = Arc::new(Mutex::new(Vec::new()));
            for client in 0..3 {
                let (db, rows, acknowledged) = (db.clone(), rows.clone(), acknowledged.clone());
                let mut rng = varve_rt::Rng::from_seed(seed * 31 + client);
                spawn(format!("client {client}"), move || {
                    for n in (client..).step_by(3) {
                        sleep(Duration::from_micros(rng.below(40_000)));
                        let durability = durabilities[rng.below(durabilities.len() as u64) as usize];
                        let place = Arc::new(AtomicU64::new(0));
                        let mut tx = db.begin_with(TxOptions::durability(durability)).unwrap();
                        tx.tell_commit_number(place.clone());
                        tx.put(&rows, &n.to_be_bytes(), &[7; 100]).unwrap();
                        tx.commit().unwrap();
                        let place = place.load(Ordering::SeqCst);
                        acknowledged.lock().push(Acknowledged { number: n, at: began.elapsed(), durability, place });
                    }
                });
            }
            sleep(cut_at);
            let seen: Vec<Acknowledged> = acknowledged.lock().clone();
            (seen, began.elapsed())
        });
        let rows = db.keyspace("rows").unwrap();
        let found = db.snapshot().unwrap().scan(&rows, ..).unwrap().map(|row| row.unwrap().0);
        let found = found.map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect();
        db.close().unwrap();
        (acknowledged.0, acknowledged.1, found)
    })
}

#[test]
fn an_async_commit_is_durable_after_its_delay_to_the_nanosecond() {
    let delay = Options::default().async_delay;
    let (mut due, mut young_lost) = (0, 0);
    for seed in 1..60 {
        let cut_at = ms(110) + Duration::from_micros(seed * 7_919 % 300_000);
        let (acknowledged, at, found) = commit_until(seed, &[Durability::Async], cut_at);
        for commit in &acknowledged {
            let there = found.contains(&commit.number);
            let old = at >= commit.at + delay;
            assert!(there || !old, "seed {seed}: cut at {at:?}, {commit:?} is lost");
            due += u32::from(old);
            young_lost += u32::from(!there);
        }
    }
    assert!(due > 100 && young_lost > 50, "{due} commits were due, {young_lost} younger ones were lost");
}

#[test]
fn what_survives_is_a_prefix_of_the_commit_order() {
    use Durability::{Async, None, Sync};
    let mixes: [&[Durability]; 4] = [&[None], &[None, Async], &[None, None, Async, Sync], &[Sync]];
    let (mut lost, mut kept) = (0, 0);
    for seed in 1..80 {
        let mix = mixes[seed as usize % mixes.len()];
        let cut_at = ms(20) + Duration::from_micros(seed * 7_919 % 300_000);
        let (mut acknowledged, at, found) = commit_until(seed, mix, cut_at);
        acknowledged.sort_by_key(|commit| commit.place);
        let is_there = |commit: &Acknowledged| found.contains(&commit.number);
        let hole = acknowledged.windows(2).find(|w| !is_there(&w[0]) && is_there(&w[1]));
        assert!(hole.is_none(), "seed {seed}: cut at {at:?}, the first of {hole:?} is lost, the second is there");
        for commit in &acknowledged {
            let there = is_there(commit);
            assert!(there || commit.durability != Sync, "seed {seed}: {commit:?} was acknowledged and is lost");
            if there { kept += 1 } else { lost += 1 }
        }
    }
    assert!(lost > 20 && kept > 100, "{lost} commits were lost, {kept} survived");
}

/// A way of finding that a keyspace is gone.
type Gone = fn(&Db, &Keyspace) -> bool;

#[test]
fn a_keyspace_that_was_seen_to_be_gone_stays_gone() {
    let looks: [(&str, Gone); 3] = [
        ("its name", |db, _| db.keyspace("rows").is_err()),
        ("the list", |db, _| db.keyspaces().unwrap().is_empty()),
        ("a handle", |_, rows| matches!(rows.get(b"key"), Err(varve::Error::NoSuchKeyspace(_)))),
    ];
    for (what, gone) in looks {
        for seed in 1..21 {
            let exists = simulate(seed, move || {
                let machine = Machine::new(seed, options(false));
                let ((), db) = machine.cut_after(seed, move |db| {
                    let rows = db.create_keyspace("rows").unwrap();
                    rows.put(b"key", b"value").unwrap();
                    let dropper = db.clone();
                    spawn("dropper", move || dropper.drop_keyspace("rows"));
                    while !gone(db, &rows) {
                        sleep(Duration::from_micros(100));
                    }
                });
                db.keyspace("rows").is_ok()
            });
            assert!(!exists, "seed {seed}: {what} said that the keyspace is gone, and the power cut brought it back");
        }
    }
}

/// Commits that nobody waits for, until the power fails; returns how many were told to be durable, and how many of
/// those are there afterwards.
fn told_until(seed: u64, cut_at: Duration) -> (usize, usize) {
    simulate(seed, move || {
        let machine = Machine::new(seed, options(false));
        let (told, db) = machine.cut_after(seed, move |db| {
            let rows = db.create_keyspace("rows").unwrap();
            let told = Arc::new(Mutex::new(Vec::new()));
            for client in 0..2 {
                let (db, rows, told) = (db.clone(), rows.clone(), told.clone());
                let mut rng = varve_rt::Rng::from_seed(seed * 31 + client);
                spawn(format!("client {client}"), move || {
                    for n in (client..).step_by(2) {
                        sleep(Duration::from_micros(rng.below(3000)));
                        let mut tx = db.begin().unwrap();
                        tx.put(&rows, n.to_be_bytes(), [7; 100]).unwrap();
                        let (told, place) = (told.clone(), tx.commit_ticket().unwrap());
                        let tell = move |result: Result<()>| result.map_or((), |()| told.lock().push(n));
                        db.on_durable(place, tell).unwrap();
                    }
                });
            }
            sleep(cut_at);
            let told: Vec<u64> = told.lock().clone();
            told
        });
        let rows = db.keyspace("rows").unwrap();
        let found = told.iter().filter(|n| rows.contains(n.to_be_bytes()).unwrap()).count();
        db.close().unwrap();
        (told.len(), found)
    })
}

#[test]
fn what_listeners_were_told_of_is_there_after_a_power_cut() {
    let mut all = 0;
    for seed in 1..30 {
        let (told, found) = told_until(seed, Duration::from_micros(20_000 + 777 * seed));
        assert_eq!(told, found, "seed {seed}: some are lost");
        all += told;
    }
    assert!(all > 100, "only {all} commits were told of");
}
