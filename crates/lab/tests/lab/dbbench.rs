//! The benchmarks of `db_bench` on the reference store, and on both kinds of keyspace.

use std::sync::Arc;

use varve::{Db, KeyspaceKind, LsmOptions, Options as DbOptions};
use varve_lab::adapter::Store;
use varve_lab::adapter::mem::MemStore;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::dbbench::{Benchmark, DbBench, Large, Options, Step, Totals, line};
use varve_lab::driver::{self, RunOptions, Until, run};

const NUM: u64 = 400;

fn options() -> Options {
    Options { num: NUM, value_size: 50, ..Options::default() }
}

fn bench<S: Store>(store: &Arc<S>, benchmark: Benchmark, options: Options, threads: usize) -> Totals {
    let workload = Arc::new(DbBench::new(&**store, benchmark, options).expect("options"));
    let until = Until::Transactions(options.requests(benchmark, NUM, threads));
    let run_options = RunOptions { threads: threads + benchmark.more_threads(), until, ..RunOptions::default() };
    run(store, &workload, &run_options, |_| {}).expect("runs");
    workload.totals()
}

fn all<S: Store>(store: &Arc<S>) {
    let o = options();
    let filled = bench(store, Benchmark::FillSeq, o, 1);
    assert_eq!((filled.operations, filled.written), (NUM, NUM * o.entry()));
    // Every key is there, once.
    let seen = bench(store, Benchmark::ReadSeq, o, 1);
    assert_eq!((seen.operations, seen.bytes), (NUM, NUM * o.entry()));
    assert_eq!(bench(store, Benchmark::ReadReverse, o, 1), seen);
    let read = bench(store, Benchmark::ReadRandom, o, 2);
    assert_eq!((read.operations, read.found, read.written), (2 * NUM, 2 * NUM, 0));
    let missing = bench(store, Benchmark::ReadMissing, o, 1);
    assert_eq!((missing.operations, missing.found), (NUM, 0));
    let sought = bench(store, Benchmark::SeekRandom, Options { seek_nexts: 2, ..o }, 1);
    assert_eq!((sought.operations, sought.found), (NUM, NUM));
    assert!(sought.bytes > 2 * NUM * o.entry(), "it goes on with the next rows");
    let written = bench(store, Benchmark::Overwrite, Options { batch: 10, ..o }, 1);
    assert_eq!((written.operations, written.written), (NUM, NUM * o.entry()));
    let beside = bench(store, Benchmark::ReadWhileWriting, o, 2);
    assert_eq!((beside.operations, beside.found), (2 * NUM, 2 * NUM), "only those who read count");
    let deleted = bench(store, Benchmark::DeleteRandom, Options { batch: 10, ..o }, 1);
    assert_eq!((deleted.operations, deleted.bytes), (NUM, 0));
    let read = bench(store, Benchmark::ReadRandom, o, 1);
    assert!(read.found < NUM * 3 / 4 && read.found > NUM / 10, "of 400, 400 random ones went: {}", read.found);
}

#[test]
fn what_is_asked_for_is_done_on_every_store() {
    all(&Arc::new(MemStore::default()));
    for kind in [KeyspaceKind::Tree, KeyspaceKind::Lsm(LsmOptions::default())] {
        let dir = std::env::temp_dir().join(format!("varve-dbbench-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let db = Db::open_or_create(&dir, DbOptions { cache_bytes: 8 << 20, ..DbOptions::default() }).expect("made");
        all(&Arc::new(VarveStore::new(db.clone()).with_kind(kind)));
        db.close().expect("closes");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}

/// Larger values come where they are asked for, in the share that is asked for, and look-ups between the writes.
#[test]
fn large_values_and_look_ups_come_as_asked() {
    let o = Options { value_size: 50, num: 4000, ..options() };
    let large = |share, from, until| Some(Large { value_size: 1000, share, from, until });
    let run = |o: Options, n: u64| {
        let (store, kind) = (Arc::new(MemStore::default()), Benchmark::FillRandom);
        let workload = Arc::new(DbBench::new(&*store, kind, o).expect("options"));
        let until = Until::Transactions(o.requests(kind, n, 1));
        driver::run(&store, &workload, &RunOptions { threads: 1, until, ..RunOptions::default() }, |_| {})
            .expect("runs");
        let done = workload.totals();
        (done, (done.written as f64 / 66.0 - done.operations as f64) * 66.0 / 950.0)
    };
    // Half of the second quarter of 4000 entries.
    let some = Options { large: large(0.5, 1000, 2000), ..o };
    let (done, larger) = run(some, 4000);
    assert!(done.operations == 4000 && (larger - 500.0).abs() < 60.0, "{done:?}: {larger} large ones");
    assert!(run(some, 1000).1.abs() < 1e-6, "none before");
    assert!((run(some, 2000).1 - larger).abs() < 1e-6, "none after");
    // By tens, all of them large.
    let (done, larger) = run(Options { large: large(1.0, 0, u64::MAX), batch: 10, ..o }, 4000);
    assert!(done.operations == 4000 && (larger - 4000.0).abs() < 1e-6, "{done:?}");
    // Three quarters of the requests look a key up; what is found was written.
    let (done, _) = run(Options { reads: 0.75, ..o }, 4000);
    let writes = done.written / 66;
    assert!(done.operations == 4000 && (900..1100).contains(&writes) && done.found > 100, "{done:?}");
    for wrong in [
        Options { reads: 1.0, ..o },
        Options { large: large(1.5, 0, 1), ..o },
        Options { large: large(0.5, 2, 2), ..o },
    ] {
        assert!(wrong.validate().is_err(), "{wrong:?}");
    }
    assert!(some.fit(Benchmark::ReadRandom).is_err() && some.fit(Benchmark::Overwrite).is_ok());
}

#[test]
fn names_and_lines_are_those_of_db_bench() {
    assert_eq!("fillrandom".parse::<Step>().expect("there is one"), Step::Run(Benchmark::FillRandom));
    assert_eq!("compact".parse::<Step>().expect("there is one"), Step::Compact);
    let error = "fillsync".parse::<Step>().expect_err("there is none").to_string();
    assert!(error.contains("fillseq, fillrandom, overwrite") && error.contains("compact"), "{error}");
    let done = Totals { operations: 1_000_000, found: 864_322, bytes: 116 << 20, written: 0 };
    let text = line(Benchmark::ReadRandom, &done, 2.0, 1);
    let expected = "readrandom   :       2.000 micros/op 500000 ops/sec 2.000 seconds 1000000 operations; \
                    \x20 58.0 MB/s (864322 of 1000000 found)";
    assert_eq!(text, expected);
}

#[test]
fn values_compress_to_what_was_asked_for() {
    for ratio in [0.2, 0.5, 1.0] {
        let values = varve_lab::dbbench::Values::new(ratio, 100, 1);
        let (mut at, mut all) = (0, Vec::new());
        (0..2000).for_each(|_| all.extend_from_slice(values.next(&mut at, 100)));
        let packed = zstd::bulk::compress(&all, 1).expect("memory").len() as f64 / all.len() as f64;
        // Printable text takes less than its bytes.
        assert!((0.6 * ratio..1.1 * ratio).contains(&packed), "{ratio}: {packed}");
    }
}

/// In an open loop response times count from when a request was due: a store that is too slow cannot hide it.
#[test]
fn an_open_loop_counts_from_when_it_was_due() {
    let config = varve_rt::sim::Config { seed: 1, ..Default::default() };
    let outcome = varve_rt::sim::run(config, || {
        let store = Arc::new(MemStore::default());
        let workload = Arc::new(DbBench::new(&*store, Benchmark::FillRandom, options()).expect("options"));
        let second = std::time::Duration::from_secs(1);
        let open = RunOptions { threads: 2, until: Until::Time(second), rate: Some(100.0), ..RunOptions::default() };
        run(&store, &workload, &open, |_| {}).expect("runs")
    });
    let result = outcome.result.expect("it ends");
    assert_eq!((result.total.count, result.overdue), (100, 0), "no more than was asked for");
}
