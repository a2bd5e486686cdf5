//! `sim` and `torture`: crashes on purpose.

use crate::args::{self, LayoutChoice, LayoutKind};
use crate::output::{Failure, Out, Stdout, bytes, say, table};
use crate::table_args::{Given, Pool};
use serde_json::json;
use varve_lab::sim::{self, EveryWriteOptions, Finding, Mistake, PoolChoice, SimOptions, SimReport};
use varve_lab::torture::{self, BigLogOptions, Command, TortureOptions};

/// Hidden command that becomes the simulation's second process.
const SIM_CHILD: &str = "sim-child";
/// Hidden command that becomes the torture's child.
const TORTURE_CHILD: &str = "torture-child";

fn jobs(asked: usize) -> usize {
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(2, usize::from) }
}

fn breakage(a: &args::Sim) -> Result<Option<Mistake>, Failure> {
    a.broken.as_ref().map(|name| name.parse().map_err(Failure::Usage)).transpose()
}

/// What the arguments say of the pool; the rest is drawn from the seed.
fn pool_choice(a: &Given<Pool>) -> Result<PoolChoice, Failure> {
    Ok(PoolChoice { pool: a.options()?, ..PoolChoice::default() })
}

/// The same, with the layout.
fn choice(pool: &Given<Pool>, layout: &LayoutChoice) -> Result<PoolChoice, Failure> {
    let tier = match layout.layout {
        LayoutKind::Tier => layout.manager.clone().unwrap_or_else(|| "all".into()),
        _ if layout.manager.is_some() => return Err(Failure::Usage("--manager is for --layout tier".into())),
        _ => String::new(),
    };
    let [array, flash, near] = [LayoutKind::Array, LayoutKind::Flash, LayoutKind::Near].map(|l| layout.layout == l);
    Ok(PoolChoice { tier, array, flash, near, ..pool_choice(pool)? })
}

/// The same, and what a mistake that is built in needs besides.
fn pool(a: &args::Sim, breakage: Option<Mistake>) -> Result<PoolChoice, Failure> {
    let pool = PoolChoice { lsm: a.kind == args::IndexKind::Lsm, ..choice(&a.pool, &a.layout)? };
    Ok(breakage.map_or(pool.clone(), |mistake| sim::layout_for(mistake, pool)))
}

/// Every mistake there is, each with as many seeds as it takes.
fn catch_all(out: Out, a: &args::Sim) -> Result<(), Failure> {
    let mut missed = Vec::new();
    for &mistake in Mistake::ALL {
        let caught = sim::catch(mistake, a.seeds, jobs(a.jobs));
        let seed = caught.seed.map_or("-".to_string(), |seed| seed.to_string());
        match out.json {
            true => say!("{}", json!(caught)),
            false => say!("{:<28} {:<12} {:<42} {seed:>5}  {}", caught.name, caught.place, caught.by, caught.finding),
        }?;
        if caught.seed.is_none() {
            missed.push(caught.name);
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Found(format!("not caught by {} seeds: {}", a.seeds, missed.join(", ")))),
    }
}

pub fn sim(out: Out, a: &args::Sim) -> Result<(), Failure> {
    if a.broken.as_deref() == Some("all") {
        return catch_all(out, a);
    }
    let breakage = breakage(a)?;
    if let Some(damages) = a.damage {
        return crate::damage::run(out, a, damages, jobs(a.jobs), breakage);
    }
    if a.every_write {
        return every_write(out, a, breakage);
    }
    if a.trace {
        let seed = a.seed.expect("the parser demands a seed with a trace");
        return match sim::trace(seed, &pool(a, breakage)?, breakage, |line| {
            // A line that nobody can read changes nothing of the finding.
            let _ = say!("{line}");
        }) {
            Some(finding) => Err(Failure::Found(finding.to_string())),
            None => Ok(()),
        };
    }
    let mut options = SimOptions::new(if a.seed.is_some() { 1 } else { a.seeds });
    options.first_seed = a.seed.unwrap_or(a.first_seed);
    options.jobs = jobs(a.jobs);
    options.breakage = breakage;
    options.pool = pool(a, breakage)?;
    if !a.once {
        options.second = Some(child(SIM_CHILD)?);
    }
    let bar = out.progress("seeds, each twice", options.seeds * if a.once { 1 } else { 2 });
    let report = sim::run(&options, |p| {
        bar.set_length(p.of);
        bar.set_position(p.done);
    });
    bar.finish_and_clear();
    print_sim(out, &report)?;
    if report.is_clean() { Ok(()) } else { Err(Failure::Found("the simulation found something wrong".into())) }
}

fn print_sim(out: Out, r: &SimReport) -> Result<(), Failure> {
    if out.json {
        let totals: serde_json::Map<_, _> = r.totals.iter().map(|(n, v)| (n.to_string(), json!(v))).collect();
        say!(
            "{}",
            json!({ "seeds": r.seeds, "findings": r.findings, "not_deterministic": r.not_deterministic, "compared": r.compared,
                "totals": totals, "tables": r.tables, "zeros": r.zeros, "seconds": r.seconds, "seeds_per_minute": r.seeds_per_minute, "clean": r.is_clean() })
        )?;
        return Ok(());
    }
    print_findings(&r.findings)?;
    for seed in &r.not_deterministic {
        say!("seed {seed}: the second run differs from the first")?;
    }
    let rows: Vec<(String, String)> = r.totals.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    table(&mut Stdout, &rows)?;
    for table in &r.tables {
        say!("\n{table}\n")?;
    }
    for zero in &r.zeros {
        say!("never happened: {zero}")?;
    }
    if let Some(trouble) = &r.second_process {
        say!("second process: {trouble}")?;
    }
    say!(
        "{} seeds in {:.1} s ({:.0} per minute), {} compared with a second run: {}",
        r.seeds,
        r.seconds,
        r.seeds_per_minute,
        r.compared,
        if r.is_clean() { "0 lost, 0 half, 0 wrong, deterministic" } else { "WRONG" }
    )?;
    Ok(())
}

fn print_findings(findings: &[Finding]) -> Result<(), Failure> {
    for finding in findings {
        say!("{finding}")?;
    }
    Ok(())
}

fn every_write(out: Out, a: &args::Sim, breakage: Option<Mistake>) -> Result<(), Failure> {
    let mut options = EveryWriteOptions::new();
    options.seed = a.seed.unwrap_or(a.first_seed);
    options.jobs = jobs(a.jobs);
    options.breakage = breakage;
    options.pool = pool(a, breakage)?;
    let bar = out.progress("cuts", 0);
    let report = sim::every_write(&options, |n| bar.set_position(n));
    bar.finish_and_clear();
    if out.json {
        say!("{}", json!({ "operations": report.operations, "findings": report.findings, "seconds": report.seconds }))?;
    } else {
        print_findings(&report.findings)?;
        say!("cut at each of {} device operations in {:.1} s", report.operations, report.seconds)?;
    }
    if report.findings.is_empty() { Ok(()) } else { Err(Failure::Found("a cut lost or invented something".into())) }
}

/// The simulation's second process.
pub fn sim_child() -> Result<(), Failure> {
    child_status(sim::child_main())
}

/// The torture's child process.
pub fn torture_child() -> Result<(), Failure> {
    child_status(torture::child_main())
}

/// This same program, to be run as `name`.
fn child(name: &str) -> Result<Command, Failure> {
    this(&[name])
}

/// This same program, with these arguments.
fn this(args: &[&str]) -> Result<Command, Failure> {
    Command::current(args).map_err(|e| Failure::Failed(format!("this program's own file is not known: {e}")))
}

fn child_status(code: i32) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Failed(format!("child process: code {code}"))) }
}

pub fn torture(out: Out, a: &args::Torture) -> Result<(), Failure> {
    let child = child(TORTURE_CHILD)?;
    if let Some(mib) = a.big_log {
        return big_log(out, a, mib, child);
    }
    let mut options = TortureOptions::new(&a.dir, child);
    options.rounds = a.rounds;
    options.threads = a.threads;
    options.seed = a.seed;
    options.cache_bytes = a.open.cache_mb.map_or(256 << 20, |mib| mib << 20);
    options.pool = PoolChoice { lsm: a.kind == args::IndexKind::Lsm, ..choice(&a.pool, &a.layout)? };
    if a.layout.layout == LayoutKind::Near || a.worker && a.layout.layout != LayoutKind::Single {
        return Err(Failure::Usage("--worker is what puts a torture's pages with a worker: give no --layout".into()));
    }
    if a.worker {
        options.worker = Some(this(&["worker", "--buffered", "--memory-mb", "64"])?);
    }
    if a.layout.layout == LayoutKind::Tier {
        let beside = || std::path::PathBuf::from(format!("{}.fast", a.dir.display()));
        options.fast = Some(a.fast_dir.clone().unwrap_or_else(beside));
    }
    let bar = out.progress("kills", a.rounds.into());
    let report = torture::run(&options, |p| {
        bar.set_position(p.round.into());
        bar.set_message(format!("kills, {} commits acknowledged", p.acknowledged));
    })?;
    bar.finish_and_clear();
    if out.json {
        say!(
            "{}",
            json!({ "rounds": report.rounds, "kills": report.kills, "kills_in_open": report.kills_in_open,
                "acknowledged": report.acknowledged, "transfers": report.transfers, "recoveries": report.recoveries,
                "groups_redone": report.groups_redone, "array": report.array, "slowest_open_s": report.slowest_open_s,
                "worker_kills": report.worker_kills, "given_up": report.given_up, "near": report.near,
                "seconds": report.seconds })
        )?;
    } else {
        say!(
            "{} kills ({} while opening), {} commits acknowledged, {} recoveries redid {} groups, slowest open {:.2} s, {:.0} s in all: \
             every acknowledged commit is there, none is half there, check is clean",
            report.kills,
            report.kills_in_open,
            report.acknowledged,
            report.recoveries,
            report.groups_redone,
            report.slowest_open_s,
            report.seconds
        )?;
        let drives: Vec<String> = report.array.iter().map(|(what, n)| format!("{n} {what}")).collect();
        if !drives.is_empty() {
            say!("extents and drives: {}", drives.join(", "))?;
        }
        if a.worker {
            let n = |what: &str| report.near.get(what).copied().unwrap_or(0);
            let (kills, up, merged, instead, again) =
                (report.worker_kills, report.given_up, n("merged"), n("instead"), n("again"));
            say!(
                "worker: killed {kills} times ({up} databases gave up with it), did {merged} parts of merges, \
                 {instead} were done in its place, {again} times it was attached to again"
            )?;
        }
    }
    Ok(())
}

fn big_log(out: Out, a: &args::Torture, mib: u64, child: Command) -> Result<(), Failure> {
    let mut options = BigLogOptions::new(&a.dir, child);
    options.log_bytes = mib << 20;
    options.threads = a.threads;
    options.cache_bytes = a.open.cache_mb.map_or(256 << 20, |mib| mib << 20);
    let bar = out.progress("log written", mib << 20);
    let report = torture::big_log(&options, |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if out.json {
        say!(
            "{}",
            json!({ "log_bytes": report.log_bytes, "acknowledged": report.acknowledged, "redone_bytes": report.redone_bytes,
                "groups": report.groups, "open_s": report.open_s, "bound_s": report.bound_s, "within": report.within })
        )?;
    } else {
        say!(
            "killed after {} of log; the open redid {} ({} groups) in {:.2} s; recovery bound {:.0} s",
            bytes(report.log_bytes),
            bytes(report.redone_bytes),
            report.groups,
            report.open_s,
            report.bound_s
        )?;
    }
    if report.within {
        Ok(())
    } else {
        Err(Failure::Found("the open took longer than the recovery bound and 2 s".into()))
    }
}
