//! The workloads and the serializability checker on the engine: on real files with OS threads, and on memory devices in
//! a simulation with chaos. `LAB_SEED=n` runs one seed of the simulated tests, `LAB_SEEDS=n` the first n.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use varve::{Db, Devices, KeyspaceKind, Layout, LsmOptions, Mistake, Options};
use varve_lab::adapter::varve::VarveStore;
use varve_lab::adapter::{Direction, Durability, End, KeyRange, Store, TxMode, Txn, transact};
use varve_lab::driver::{RunOptions, Until, run};
use varve_lab::history::generate::recorder;
use varve_lab::history::{
    AnomalyKind, CheckOptions, GenerateOptions, Outcome, RealTime, Recorder, Report, check, generate,
};
use varve_lab::{tpcc, ycsb};
use varve_models::{MemDevice, MemOptions, PowerSupply};
use varve_rt::Rng;
use varve_rt::sim::{self, Config, Domain};

/// Seeds of a simulated test.
fn seeds(default: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect("a number"));
    match number("LAB_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("LAB_SEEDS").unwrap_or(default)).collect(),
    }
}

fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() }
}

/// A database in a directory of its own, removed in the end.
struct Dir {
    path: PathBuf,
    db: Option<Db>,
}

impl Dir {
    fn new(name: &str, options: Options) -> Dir {
        let path = std::env::temp_dir().join(format!("varve-lab-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let db = Db::create(&path, &layout(), options).expect("creates");
        Dir { path, db: Some(db) }
    }

    fn store(&self) -> Arc<VarveStore> {
        Arc::new(VarveStore::new(self.db.clone().expect("is open")))
    }

    /// Closes and opens the database.
    fn reopen(&mut self, options: Options) {
        self.db.take().expect("is open").close().expect("closes");
        self.db = Some(Db::open(&self.path, options).expect("opens"));
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Some(db) = self.db.take() {
            let _ = db.close();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn simulate<T: Send + 'static>(seed: u64, chaos: bool, body: impl FnOnce() -> T + Send + 'static) -> (T, u64) {
    let outcome = sim::run(Config { seed, chaos, ..Config::default() }, body);
    let hash = outcome.hash;
    (outcome.result.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")), hash)
}

/// Runs `body` on a database on memory devices, and closes it.
fn on_memory<T>(options: Options, body: impl FnOnce(&Arc<VarveStore>) -> T) -> T {
    let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
    let db = Db::create_on(devices, &layout(), options).expect("creates");
    let store = Arc::new(VarveStore::new(db.clone()));
    let value = body(&store);
    drop(store);
    assert!(db.check().expect("can be checked").is_clean());
    db.close().expect("closes");
    value
}

fn history(store: &Arc<VarveStore>, options: &GenerateOptions) -> Report {
    try_history(store, options).expect("the store does not fail")
}

/// An error when the clients themselves saw something that cannot be.
fn try_history(store: &Arc<VarveStore>, options: &GenerateOptions) -> varve_lab::Result<Report> {
    let recorder = Arc::new(recorder(&format!("history{}", options.seed)));
    generate(store, &recorder, options)?;
    let (undone, ranges) = (recorder.rollbacks_to_savepoint(), recorder.range_deletes());
    println!("seed {}: {undone} rollbacks to savepoints, {ranges} range deletes", options.seed);
    assert!(undone > 0 && ranges > 0, "seed {}", options.seed);
    Ok(check(&recorder.take(), &CheckOptions { real_time: RealTime::All, ..CheckOptions::default() }))
}

#[test]
fn histories_on_os_threads_are_serializable() {
    let dir = Dir::new("history", options());
    for seed in 0..3 {
        let pause = Duration::from_micros(30);
        let options = GenerateOptions { seed, pause, clients: 6, transactions: 100, ..GenerateOptions::default() };
        let report = history(&dir.store(), &options);
        assert!(report.serializable(), "seed {seed}\n{report}");
        assert!(report.committed > 300, "seed {seed}\n{report}");
    }
}

fn simulated_history(seed: u64, broken: Option<Mistake>) -> (varve_lab::Result<Report>, u64) {
    simulate(seed, true, move || {
        on_memory(Options { faults: broken.into(), cache_bytes: 4 << 20, ..Options::default() }, |store| {
            let pause = Duration::from_micros(20);
            try_history(store, &GenerateOptions { seed, pause, transactions: 40, ..GenerateOptions::default() })
        })
    })
}

#[test]
fn histories_in_a_chaotic_simulation_are_serializable_and_repeat() {
    for seed in seeds(12) {
        let sound = || {
            let (report, hash) = simulated_history(seed, None);
            (report.unwrap_or_else(|e| panic!("seed {seed}: {e}")), hash)
        };
        let first = sound();
        let report = &first.0;
        assert!(report.serializable(), "seed {seed}\n{report}");
        assert!(report.committed > 100, "seed {seed}\n{report}");
        if seed < 2 {
            assert_eq!(sound(), first, "seed {seed} repeats");
        }
    }
}

#[test]
fn a_missing_interval_lock_shows_as_phantoms() {
    let broken = Some(Mistake::SkipIntervalLock);
    let found = (0..60).any(|seed| {
        // Where a client's range delete met other keys than its scan, the history ends early.
        simulated_history(seed, broken).0.is_ok_and(|report| report.has(AnomalyKind::G2Phantom))
    });
    assert!(found, "phantoms are found within 60 seeds");
}

/// A megabyte of memory, of which some transactions need more than their part.
fn small(broken: Option<Mistake>) -> Options {
    Options { cache_bytes: 1 << 20, faults: broken.into(), ..Options::default() }
}

/// Clients some of whose transactions outgrow that memory.
fn heavy(seed: u64) -> GenerateOptions {
    GenerateOptions { seed, transactions: 25, ballast: 0.15, ..GenerateOptions::default() }
}

/// Makes the second list and the set of a history LSM keyspaces; the others are trees.
fn mixed_kinds(db: &Db, prefix: &str) {
    let options = LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..LsmOptions::default() };
    for name in ["list_b", "set"] {
        db.keyspace_or_create_of(&format!("{prefix}_{name}"), KeyspaceKind::Lsm(options)).unwrap();
    }
}

/// A history with transactions that spill and lock coarsely, over trees or over keyspaces of both kinds. Also how often
/// that happened: write sets that spilled, locks that became coarser, commits in pieces.
fn heavy_history(seed: u64, mixed: bool, broken: Option<Mistake>) -> (varve_lab::Result<Report>, [u64; 3]) {
    let body = move || {
        on_memory(small(broken), |store| {
            if mixed {
                mixed_kinds(store.db(), &format!("history{seed}"));
            }
            let report = try_history(store, &GenerateOptions { pause: Duration::from_micros(20), ..heavy(seed) });
            let stats = store.db().stats().txn;
            (report, [stats.spills, stats.lock_coarsened, stats.large_commits])
        })
    };
    simulate(seed, true, body).0
}

#[test]
fn histories_with_transactions_larger_than_memory_are_serializable_over_both_kinds() {
    for mixed in [false, true] {
        let (mut all, mut committed) = ([0; 3], 0);
        for seed in seeds(8) {
            let (report, seen) = heavy_history(seed, mixed, None);
            let report = report.unwrap_or_else(|e| panic!("seed {seed}, mixed {mixed}: {e}"));
            assert!(report.serializable(), "seed {seed}, mixed {mixed}\n{report}");
            committed += report.committed;
            all.iter_mut().zip(seen).for_each(|(all, n)| *all += n);
        }
        println!("mixed {mixed}: {committed} committed; {all:?} spills, coarser locks, commits in pieces");
        assert!(seeds(8).len() < 8 || committed > 300 && all.iter().all(|n| *n > 8), "{committed}, {all:?}");
    }
}

#[test]
fn spilled_writes_that_are_forgotten_show_in_a_history() {
    let broken = Some(Mistake::SpillForgotten);
    let found = |seed| heavy_history(seed, true, broken).0.map_or(true, |report| !report.serializable());
    assert!((0..20).any(found), "found within 20 seeds");
}

/// Clients on a machine that loses its power three times and goes on after each recovery, all in one history.
fn history_over_power_cuts(seed: u64, is_heavy: bool, broken: Option<Mistake>) -> (Report, usize) {
    let body = move || {
        let mut rng = Rng::from_seed(seed);
        let supply = PowerSupply::new();
        let device = |name: &str, seed| {
            let device = MemDevice::with(0, MemOptions { name: name.into(), seed, ..MemOptions::default() });
            supply.attach(device.clone());
            device
        };
        let devices = Devices::new(device("data", seed), device("log", seed + 1));
        let opened = match is_heavy {
            true => small(broken),
            false => Options { cache_bytes: 4 << 20, faults: broken.into(), ..Options::default() },
        };
        let db = Db::create_on(devices.clone(), &layout(), opened.clone()).unwrap();
        if is_heavy {
            mixed_kinds(&db, "history");
        }
        db.close().unwrap();
        let recorder = Arc::new(recorder("history"));
        for round in 0..4 {
            let domain = Domain::new("machine");
            let job = {
                let (devices, opened, recorder) = (devices.clone(), opened.clone(), recorder.clone());
                let seed = seed * 4 + round;
                let clients =
                    if is_heavy { heavy(seed) } else { GenerateOptions { seed, ..GenerateOptions::default() } };
                domain.spawn("database", move || machine(devices, opened, &recorder, clients, round == 3))
            };
            if round < 3 {
                varve_rt::sleep(Duration::from_micros(500 + rng.below(20_000)));
                supply.cut(rng.next_u64());
                domain.power_cut();
                let _ = job.join();
                supply.restore();
            } else {
                job.join().expect("the last round ends by itself").expect("without an error");
            }
        }
        recorder.take()
    };
    let (history, _) = simulate(seed, false, body);
    let unknown = history.txns.iter().filter(|t| t.outcome == Outcome::Unknown).count();
    (check(&history, &CheckOptions { real_time: RealTime::All, ..CheckOptions::default() }), unknown)
}

/// Opens the database and runs clients on it; to its end if nothing cuts the power.
fn machine(
    devices: Devices,
    options: Options,
    recorder: &Arc<Recorder>,
    clients: GenerateOptions,
    last: bool,
) -> varve_lab::Result<()> {
    let db = Db::open_on(devices, options)?;
    let store = Arc::new(VarveStore::new(db.clone()));
    let transactions = if last { 20 } else { 10_000 };
    generate(&store, recorder, &GenerateOptions { transactions, ..clients })?;
    drop(store);
    assert!(db.check()?.is_clean());
    Ok(db.close()?)
}

#[test]
fn histories_over_power_cuts_are_serializable() {
    let (mut unknown, mut committed) = (0, 0);
    for seed in seeds(32) {
        let (report, open) = history_over_power_cuts(seed, seed % 4 == 3, None);
        assert!(report.serializable(), "seed {seed}\n{report}");
        unknown += open;
        committed += report.committed;
    }
    let runs = seeds(32).len();
    assert!(runs < 32 || unknown > runs && committed > runs * 100, "{unknown} unknown, {committed} committed");
}

#[test]
fn a_commit_acknowledged_too_early_shows_in_a_history_over_power_cuts() {
    let broken = Some(Mistake::AckBeforeFlush);
    assert!(
        (0..40).any(|seed| !history_over_power_cuts(seed, false, broken).0.serializable()),
        "found within 40 seeds"
    );
}

/// A snapshot reads to its end while a writer holds every key, writes it and commits.
fn snapshot_under_writers(store: &Arc<VarveStore>, keys: u32, mode: TxMode) {
    let ks = store.keyspace("held").unwrap();
    let put_all = |value: &[u8], tx: &mut <VarveStore as Store>::Txn<'_>| {
        (0..keys).try_for_each(|k| tx.put(&ks, &k.to_be_bytes(), value))
    };
    let old = [7; 100];
    transact(&**store, TxMode::ReadWrite, Durability::Sync, |tx| Ok((put_all(&old, tx)?, End::Commit))).unwrap();
    let mut snapshot = store.begin(mode, Durability::Sync).unwrap();
    let mut seen = 0;
    let mut round = 0u8;
    let (mut from, step) = (0u32, keys.div_ceil(8));
    while from < keys {
        // The writer holds every key while the snapshot reads a part, and commits after it.
        let mut writer = store.begin(TxMode::ReadWrite, Durability::Sync).unwrap();
        put_all(&[round; 100], &mut writer).unwrap();
        let to = (from + step).min(keys);
        let (low, high) = (from.to_be_bytes(), to.to_be_bytes());
        let mut part = |snapshot: &mut <VarveStore as Store>::Txn<'_>| {
            snapshot
                .scan(&ks, KeyRange::new(&low, &high), Direction::Forward, |_, value| {
                    assert_eq!(value, old, "the value as of the snapshot");
                    seen += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
            snapshot.get(&ks, &low, |value| assert_eq!(value, Some(&old[..]))).unwrap();
        };
        part(&mut snapshot);
        writer.commit().unwrap();
        from = to;
        round += 1;
    }
    snapshot.commit().unwrap();
    assert_eq!(seen, keys);
    let newest = transact(&**store, TxMode::Snapshot, Durability::Sync, |tx| {
        Ok((tx.get(&ks, &0u32.to_be_bytes(), |v| v.map(|v| v[0]))?, End::Commit))
    });
    assert_eq!(newest.unwrap(), Some(round - 1));
}

#[test]
fn a_snapshot_reads_to_its_end_while_a_writer_holds_every_key_and_commits_to_each() {
    let dir = Dir::new("held", options());
    snapshot_under_writers(&dir.store(), 400, TxMode::Snapshot);
    snapshot_under_writers(&dir.store(), 400, TxMode::ReadOnly);
}

#[test]
fn tpcc_on_files_stays_consistent_over_a_reopening_and_names_an_altered_row() {
    let mut dir = Dir::new("tpcc", options());
    tpcc::load(&dir.store(), tpcc::Scale::tiny(2), 1, 2, |_| {}).unwrap();
    let store = dir.store();
    let workload = Arc::new(tpcc::Tpcc::new(&*store, tpcc::Options::default()).unwrap());
    let until = Until::Transactions(1500);
    let result = run(&store, &workload, &RunOptions { threads: 4, until, ..RunOptions::default() }, |_| {}).unwrap();
    assert_eq!(result.total.count, 1500);
    assert!(result.stats.fsyncs > 0 && result.stats.log_bytes > 0 && result.stats.hit_ratio().is_some());
    drop((store, workload));
    dir.reopen(options());
    let report = tpcc::check(&*dir.store(), |_, _| {}).unwrap();
    assert!(report.consistent(), "{report}");
    let district = dir.db.as_ref().unwrap().keyspace("district").unwrap();
    district.put(&*tpcc::schema::key::district(1, 2), b"by hand").unwrap();
    drop(district);
    let text = tpcc::check(&*dir.store(), |_, _| {}).unwrap().to_string();
    assert!(text.contains("consistency condition 1 fails") && text.contains("district 1/2"), "{text}");
}

#[test]
fn tpcc_in_a_chaotic_simulation_stays_consistent() {
    for seed in seeds(2) {
        simulate(seed, true, move || {
            on_memory(Options { cache_bytes: 4 << 20, ..Options::default() }, |store| {
                tpcc::load(store, tpcc::Scale::tiny(1), seed, 2, |_| {}).unwrap();
                let workload = Arc::new(tpcc::Tpcc::new(&**store, tpcc::Options::default()).unwrap());
                let options = RunOptions { threads: 4, until: Until::Transactions(150), ..RunOptions::default() };
                run(store, &workload, &options, |_| {}).unwrap();
                let report = tpcc::check(&**store, |_, _| {}).unwrap();
                assert!(report.consistent(), "seed {seed}\n{report}");
            });
        });
    }
}

#[test]
fn ycsb_on_files_leaves_the_records_whole() {
    let dir = Dir::new("ycsb", options());
    let shape = ycsb::Shape { records: 3000, ..ycsb::Shape::default() };
    ycsb::load(&dir.store(), shape, 1, 2, |_, _| {}).unwrap();
    for letter in [ycsb::Letter::A, ycsb::Letter::D, ycsb::Letter::E, ycsb::Letter::F] {
        let store = dir.store();
        let workload = Arc::new(ycsb::Ycsb::new(&*store, ycsb::Options::of(letter)).unwrap());
        let options = RunOptions { threads: 3, until: Until::Transactions(600), ..RunOptions::default() };
        let result = run(&store, &workload, &options, |_| {}).unwrap();
        assert_eq!(result.total.count, 600);
        let report = ycsb::check(&*store).unwrap();
        assert!(report.consistent(), "{letter:?}\n{report}");
    }
}

#[test]
fn rows_with_overhead_are_longer_in_the_database_and_read_as_they_were_written() {
    on_memory(options(), |store| {
        let wide = VarveStore::new(store.db().clone()).with_row_overhead(20);
        let rows = wide.keyspace("rows").unwrap();
        transact(&wide, TxMode::ReadWrite, Durability::None, |tx| {
            tx.put(&rows, b"a", b"one")?;
            assert_eq!(tx.get(&rows, b"a", |v| v.map(<[u8]>::len))?, Some(3));
            Ok(((), End::Commit))
        })
        .unwrap();
        wide.put_one(&rows, b"b", b"", Durability::None).unwrap();
        assert_eq!(store.get_one(&rows, b"a", |v| v.map(<[u8]>::len)).unwrap(), Some(23));
        let mut seen = Vec::new();
        for mode in [TxMode::ReadWrite, TxMode::ReadOnly, TxMode::Snapshot] {
            let mut tx = wide.begin(mode, Durability::None).unwrap();
            tx.scan(&rows, KeyRange::ALL, Direction::Forward, |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(tx.get(&rows, b"b", |v| v.map(<[u8]>::len)).unwrap(), Some(0));
            tx.commit().unwrap();
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.iter().all(|(key, value)| value == if key == b"a" { &b"one"[..] } else { b"" }));
    });
}
