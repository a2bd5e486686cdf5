//! `bench`: loads a workload if need be, runs it, checks it, prints its figures.

mod dbbench;

use crate::args::{self, Workload};
use crate::closing::Closing;
use crate::metrics::endpoint::Endpoint;
use crate::output::{Failure, Out, about, counted, say};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::dbbench::KEYSPACE as DBBENCH;
use varve_lab::driver::{self, Interval, RunOptions, RunResult, Until};
use varve_lab::trace::Recorder;
use varve_lab::{adapter, own, tpcc, ycsb};

pub fn run(out: Out, a: &args::Bench) -> Result<(), Failure> {
    run_traced(out, &a.workload, a.workload.trace())
}

/// Runs a workload; its page references go to `trace`.
pub fn run_traced(out: Out, workload: &Workload, trace: Option<&Path>) -> Result<(), Failure> {
    match workload {
        Workload::Tpcc(a) => tpcc(out, a, trace),
        Workload::Ycsb(a) => ycsb(out, a, trace),
        Workload::Dbbench(a) => dbbench::run(out, a, trace),
        Workload::Iomix(_) if trace.is_some() => Err(Failure::Usage(
            "iomix has no buffer pool whose references could be recorded: choose tpcc, ycsb or dbbench".into(),
        )),
        Workload::Iomix(a) => crate::probe::iomix(out, a),
    }
}

/// A store, and the recorder of its page references; it records nothing before it is started.
struct Opened {
    db: Closing,
    store: Arc<VarveStore>,
    recording: Option<(Arc<Recorder>, PathBuf)>,
    endpoint: Option<Endpoint>,
}

fn open(out: Out, run: &args::Base, trace: Option<&Path>) -> Result<Opened, Failure> {
    let mut options = varve::Options { pool: run.pool.options()?, ..run.open.options() };
    // Clients that wait for each other are what is measured.
    options.lock_timeout = None;
    options = run.open.over(options);
    let recording = trace.map(|path| (Recorder::new(), path.to_path_buf()));
    options.trace = recording.as_ref().map(|(recorder, _)| recorder.handle());
    own::refuse_files(&run.dir, "bench").map_err(Failure::Usage)?;
    let db = if varve::exists(&run.dir) {
        let options = crate::open::options_with(&run.dir, options, &run.tier)?;
        crate::open::open_db(&run.dir, run.open.over(options))?
    } else {
        out.note(format!("creating {}", run.dir.display()));
        crate::open::create(&run.dir, &run.layout, &run.tier, options)?
    };
    if let Err(foreign) = own::refuse_others(&db, &run.dir, "bench", &["tpcc_meta", "ycsb_meta", DBBENCH]) {
        db.close()?;
        return Err(Failure::Usage(foreign));
    }
    let endpoint = run.metrics.as_ref().map(|address| Endpoint::start(address, &db)).transpose()?;
    if let Some(endpoint) = &endpoint {
        out.note(format!("metrics at {}", endpoint.url()));
    }
    let store = Arc::new(VarveStore::new(db.clone()).with_kind(run.kind));
    Ok(Opened { db, store, recording, endpoint })
}

fn close(out: Out, opened: Opened) -> Result<(), Failure> {
    let Opened { db, endpoint, .. } = opened;
    if let Some(endpoint) = endpoint {
        endpoint.stop();
    }
    if let Some(t) = db.stats().tier {
        out.note(format!(
            "tier ({}): {:.1} % of the reads served by the fast device, {:.1} % of its slots newer than home, {} pages copied back",
            t.manager,
            t.hit_ratio() * 100.0,
            t.dirty_share() * 100.0,
            t.counters.slow_copies
        ));
    }
    Ok(db.close()?)
}

fn durability(d: varve::Durability) -> adapter::Durability {
    match d {
        varve::Durability::Sync => adapter::Durability::Sync,
        varve::Durability::Async => adapter::Durability::Async,
        varve::Durability::None => adapter::Durability::None,
    }
}

fn tpcc(out: Out, a: &args::Tpcc, trace: Option<&Path>) -> Result<(), Failure> {
    let opened = open(out, &a.run.base, trace)?;
    let store = opened.store.clone();
    if a.check_only {
        let consistent = check_tpcc(out, &store)?;
        if out.json {
            say!("{}", serde_json::json!({ "workload": "tpcc", "consistent": consistent }))?;
        }
        close(out, opened)?;
        return verdict(Some(consistent));
    }
    load_tpcc(out, a, &store)?;
    let options = tpcc::Options {
        think_times: a.think,
        read_only: a.read_only,
        durability: durability(a.run.durability),
        seed: a.run.seed,
        ..tpcc::Options::default()
    };
    let workload = Arc::new(tpcc::Tpcc::new(&*store, options)?);
    let mut result = drive(out, &a.run, &opened, &workload)?;
    drop(workload);
    if !a.no_check {
        result.consistent = Some(check_tpcc(out, &store)?);
    }
    print(out, &result)?;
    close(out, opened)?;
    verdict(result.consistent)
}

fn load_tpcc(out: Out, a: &args::Tpcc, store: &Arc<VarveStore>) -> Result<(), Failure> {
    if let Some(loaded) = tpcc::loaded(&**store)? {
        if loaded.scale.warehouses != a.warehouses {
            out.note(format!(
                "{} holds {} warehouses: running on these (another --dir for {})",
                a.run.base.dir.display(),
                loaded.scale.warehouses,
                a.warehouses
            ));
        }
        return Ok(());
    }
    let scale = tpcc::Scale::of(a.warehouses);
    let bar = out.progress("loading", 1);
    tpcc::load(store, scale, a.run.seed, 2, |p| {
        bar.set_length(p.total);
        bar.set_position(p.rows);
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn check_tpcc(out: Out, store: &Arc<VarveStore>) -> Result<bool, Failure> {
    let bar = out.progress("checking", 1);
    let report = tpcc::check(&**store, |done, of| {
        bar.set_length(of.into());
        bar.set_position(done.into());
    })?;
    bar.finish_and_clear();
    for failure in &report.failures {
        out.note(failure.to_string());
    }
    for note in &report.notes {
        out.note(note);
    }
    if report.consistent() {
        out.note("consistent: all twelve conditions hold");
    }
    Ok(report.consistent())
}

fn ycsb(out: Out, a: &args::Ycsb, trace: Option<&Path>) -> Result<(), Failure> {
    let letter: ycsb::Letter = a.workload.parse()?;
    let mut options = ycsb::Options::of(letter);
    options.durability = durability(a.run.durability);
    options.seed = a.run.seed;
    options.max_scan = a.max_scan;
    options.write_one_field = a.one_field;
    if let Some(distribution) = a.distribution {
        options.distribution = match distribution {
            args::Distribution::Zipfian => ycsb::Distribution::Zipfian,
            args::Distribution::Latest => ycsb::Distribution::Latest,
            args::Distribution::Uniform => ycsb::Distribution::Uniform,
        };
    }
    let opened = open(out, &a.run.base, trace)?;
    let store = opened.store.clone();
    let shape =
        ycsb::Shape { records: a.records, field_length: a.field_bytes, fields: a.fields, ..ycsb::Shape::default() };
    load_ycsb(out, a, shape, &store)?;
    let workload = Arc::new(ycsb::Ycsb::new(&*store, options)?);
    let mut result = drive(out, &a.run, &opened, &workload)?;
    drop(workload);
    if !a.no_check {
        let report = ycsb::check(&*store)?;
        out.note(report.to_string().trim_end());
        result.consistent = Some(report.consistent());
    }
    print(out, &result)?;
    close(out, opened)?;
    verdict(result.consistent)
}

fn load_ycsb(out: Out, a: &args::Ycsb, shape: ycsb::Shape, store: &Arc<VarveStore>) -> Result<(), Failure> {
    if let Some(loaded) = ycsb::loaded(&**store)? {
        if loaded.shape != shape {
            out.note(format!(
                "{} holds {}: running on these (another --dir for others)",
                a.run.base.dir.display(),
                loaded.shape
            ));
        }
        return Ok(());
    }
    let bar = out.progress("loading", shape.records);
    ycsb::load(store, shape, a.run.seed, 2, |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok(())
}

fn drive<W: driver::Workload<VarveStore>>(
    out: Out,
    run: &args::Run,
    opened: &Opened,
    workload: &Arc<W>,
) -> Result<RunResult, Failure> {
    let options = RunOptions {
        threads: run.threads as usize,
        warmup: Duration::from_secs(run.warmup),
        until: Until::Time(Duration::from_secs(run.seconds)),
        ..RunOptions::default()
    };
    let bar = out.progress("running", run.warmup + run.seconds);
    let each = |i: &Interval| {
        bar.set_position(i.at.as_secs());
        bar.set_message(format!("{:.0} tx/s, {} retries", i.per_second(), i.retries));
    };
    opened.record()?;
    let result = driver::run(&opened.store, workload, &options, each);
    opened.recorded(out)?;
    bar.finish_and_clear();
    let result = result?;
    if result.total.count == 0 {
        out.note(format!(
            "nothing was finished in the {:.1} s that were measured: give more --seconds, or fewer --threads than {}",
            result.seconds, run.threads
        ));
    }
    Ok(result)
}

impl Opened {
    /// Begins to record, if that is wanted.
    fn record(&self) -> Result<(), Failure> {
        if let Some((recorder, path)) = &self.recording {
            let page_size = self.store.db().stats().page_size as u32;
            recorder.start(path, page_size).map_err(|e| about(path, &e))?;
        }
        Ok(())
    }

    /// Ends it.
    fn recorded(&self, out: Out) -> Result<(), Failure> {
        if let Some((recorder, path)) = &self.recording {
            recorder.about(self.store.db());
            let events = recorder.finish().map_err(|e| about(path, &e))?;
            out.note(format!("{} recorded in {}", counted(events, "event"), path.display()));
        }
        Ok(())
    }
}

fn print(out: Out, result: &RunResult) -> Result<(), Failure> {
    if out.json {
        say!("{}", result.to_json())?;
    } else {
        say!("{}", result.to_table())?;
    }
    Ok(())
}

fn verdict(consistent: Option<bool>) -> Result<(), Failure> {
    if consistent == Some(false) {
        return Err(Failure::Found("the data is not consistent: the conditions above do not hold".into()));
    }
    Ok(())
}
