//! `bench dbbench`: benchmarks one after the other, printed as `db_bench` prints them.

use super::{Opened, close, durability, open};
use crate::args;
use crate::output::{Failure, Out, say};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve::KeyspaceKind;
use varve_lab::dbbench::{self, Benchmark, DbBench, KEYSPACE, Options, Step};
use varve_lab::driver::{self, Interval, RunOptions, RunResult, Until};

pub(super) fn run(out: Out, a: &args::Dbbench, trace: Option<&Path>) -> Result<(), Failure> {
    let steps = a.benchmarks.iter().map(|name| name.trim().parse()).collect::<Result<Vec<Step>, _>>()?;
    let options = Options {
        num: a.num,
        key_size: a.key_size,
        value_size: a.value_size,
        batch: a.batch_size,
        beside: 0,
        compression_ratio: a.compression_ratio,
        seek_nexts: a.seek_nexts,
        durability: durability(a.durability),
        seed: a.seed,
        ..Options::default()
    };
    options.validate()?;
    let opened = open(out, &a.base, trace)?;
    opened.record()?;
    let result = all(out, a, &opened, &steps, options);
    opened.recorded(out)?;
    close(out, opened)?;
    result
}

fn all(out: Out, a: &args::Dbbench, opened: &Opened, steps: &[Step], options: Options) -> Result<(), Failure> {
    let db = opened.store.db();
    if !out.json {
        say!("Varve:      version {}", env!("CARGO_PKG_VERSION"))?;
        say!("Keyspace:   {}", args::keyspaces::kind_text(a.base.kind))?;
        say!("{}", dbbench::head(&options))?;
    }
    for (n, step) in steps.iter().enumerate() {
        // A benchmark that comes twice draws other keys.
        let options = Options { seed: options.seed.wrapping_add(n as u64), ..options };
        match step {
            Step::Run(benchmark) => {
                if benchmark.is_fill() && db.keyspaces()?.iter().any(|k| k.name == KEYSPACE) {
                    db.drop_keyspace(KEYSPACE)?;
                }
                one(out, a, opened, *benchmark, options)?;
            }
            Step::Compact => compact(out, opened)?,
        }
    }
    Ok(())
}

fn one(out: Out, a: &args::Dbbench, opened: &Opened, benchmark: Benchmark, options: Options) -> Result<(), Failure> {
    let workload = Arc::new(DbBench::new(&*opened.store, benchmark, options)?);
    let threads = a.threads as usize;
    let reads = !benchmark.is_fill() && !matches!(benchmark, Benchmark::Overwrite | Benchmark::DeleteRandom);
    let operations = if reads { a.reads.unwrap_or(a.num) } else { a.num };
    let requests = options.requests(benchmark, operations, threads);
    let until = match a.duration {
        0 => Until::Transactions(requests),
        seconds => Until::Time(Duration::from_secs(seconds)),
    };
    let run = RunOptions { threads: threads + benchmark.more_threads(), until, ..RunOptions::default() };
    let bar = out.progress(benchmark.name(), if a.duration == 0 { requests } else { a.duration });
    let each = |i: &Interval| {
        bar.set_position(if a.duration == 0 { i.done_in_all } else { i.at.as_secs() });
        bar.set_message(format!("{:.0} requests/s", i.per_second()));
    };
    let result = driver::run(&opened.store, &workload, &run, each)?;
    bar.finish_and_clear();
    print(out, a, (benchmark, threads), &workload.totals(), &result)
}

fn print(
    out: Out,
    a: &args::Dbbench,
    (benchmark, threads): (Benchmark, usize),
    done: &dbbench::Totals,
    result: &RunResult,
) -> Result<(), Failure> {
    if out.json {
        let mut json = result.to_json();
        json["benchmark"] = benchmark.name().into();
        json["operations"] = done.operations.into();
        json["found"] = done.found.into();
        json["operations_per_s"] = (done.operations as f64 / result.seconds).into();
        json["mb_per_s"] = (done.bytes as f64 / f64::from(1 << 20) / result.seconds).into();
        say!("{json}")?;
        return Ok(());
    }
    say!("{}", dbbench::line(benchmark, done, result.seconds, threads))?;
    if a.histogram {
        let l = &result.latency;
        say!("Microseconds per request: Count: {} Average: {:.4} Max: {:.2}", result.total.count, l.mean_us, l.max_us)?;
        say!("Percentiles: P50: {:.2} P95: {:.2} P99: {:.2} P99.9: {:.2}", l.p50_us, l.p95_us, l.p99_us, l.p999_us)?;
    }
    Ok(())
}

/// Merges, or compacts, everything.
fn compact(out: Out, opened: &Opened) -> Result<(), Failure> {
    let db = opened.store.db();
    let began = varve_rt::now();
    db.wait_for_merges()?;
    for keyspace in db.keyspaces()?.iter().filter(|k| k.name == KEYSPACE) {
        match keyspace.kind {
            KeyspaceKind::Lsm(_) => db.keyspace(KEYSPACE)?.compact(None, ..)?,
            KeyspaceKind::Tree => drop(db.compact()?),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if out.json {
        say!("{}", serde_json::json!({ "benchmark": "compact", "seconds": seconds }))?;
    } else {
        say!("{:<12} : {:11.3} micros/op;", "compact", seconds * 1e6)?;
    }
    Ok(())
}
