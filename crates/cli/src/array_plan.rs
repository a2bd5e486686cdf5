//! `array plan`: where the extents of an array should lie, and what that brings, for a database or for a trace.

use crate::advice::Advice;
use crate::args::array::Plan;
use crate::curves;
use crate::open::to_look;
use crate::output::{Failure, Out, bytes, say};
use serde_json::{Value, json};
use std::path::Path;
use varve::Db;
use varve::array::classify::Class;
use varve::array::planner::{self, Choice, Load, Now, PlanDrive, Question};
use varve::array::{ArrayPlan, DrivePlan, EXTENT, Part};
use varve_lab::trace::{ReadOptions, Reader, Record};

/// Numbers of an array's drives.
pub fn numbers(db: &Db, dir: &Path) -> Result<Vec<usize>, Failure> {
    let stats = db.array_stats().ok_or_else(|| {
        Failure::Failed(format!(
            "the pages of {} lie on one device: `varve create DB --drive PATH:SIZE --drive ..` makes a database on an \
            array",
            dir.display()
        ))
    })?;
    Ok(stats.drives.iter().map(|drive| drive.number).collect())
}

/// The plan of an open database.
pub fn of_db(db: &Db, dir: &Path, given: &[String]) -> Result<ArrayPlan, Failure> {
    let curves = curves::for_drives(dir, &numbers(db, dir)?, given)?;
    let plan = db.array_plan(&curves)?;
    if plan.drives.iter().all(|drive| drive.now.load == 0.0) {
        return Err(Failure::Failed(
            "nothing is known of what its extents are used for: work with the database for a while, then plan again"
                .into(),
        ));
    }
    Ok(plan)
}

pub fn run(out: Out, a: &Plan) -> Result<(), Failure> {
    let (plan, command) = match (&a.dir, &a.trace) {
        (Some(dir), None) => {
            let place = crate::args::Place { dir: dir.clone(), open: a.open.clone(), tier: a.tier.clone() };
            let db = to_look(out, &place)?;
            let plan = of_db(&db, dir, &a.curves)?;
            db.close()?;
            (plan, format!("varve array apply {}", dir.display()))
        }
        (None, Some(trace)) => {
            let plan = of_trace(trace, &a.drives, a.extent.unwrap_or(EXTENT))?;
            let command = create(&plan, a.extent);
            (plan, command)
        }
        _ => return Err(Failure::Usage("give a database, or --drives A.toml,B.toml with --trace FILE".into())),
    };
    let advice = advice(&plan, command);
    if out.json {
        say!("{}", as_json(&plan, &advice))?;
        return Ok(());
    }
    print(&plan)?;
    advice.print(out)
}

/// What makes the array that a plan is for: its drives, in the plan's order, and its layout.
pub fn create(plan: &ArrayPlan, extent: Option<u64>) -> String {
    let drives = " --drive PATH:SIZE".repeat(plan.drives.len());
    let extent = extent.map_or(String::new(), |extent| format!(" --extent {}M", extent >> 20));
    format!("varve create DB --array {}{extent}{drives}", plan.layout.name())
}

/// What a plan advises; `command` does it.
pub fn advice(plan: &ArrayPlan, command: String) -> Advice {
    let only = || plan.drives.iter().filter(|drive| drive.reads_only).map(|drive| drive.number.to_string());
    let (what, why) = match plan.layout {
        Choice::Rodi if plan.k > 0 => (
            format!("keep drive {} for what is only read", only().collect::<Vec<_>>().join(" and ")),
            format!(
                "{} extents are only read, and reading alone {} more than a mix",
                plan.classes[0] + plan.classes[1],
                if plan.k == 1 { "gives that drive" } else { "gives those drives" }
            ),
        ),
        other => {
            (format!("lay the extents out as {}", other.name()), "no drive gains enough by reading alone".to_string())
        }
    };
    let pays = plan.after > plan.before * (1.0 + 1e-9) && (plan.moved > 0 || plan.layout != plan.now);
    Advice { what, why, predicted: plan.after, unit: "MB/s", command: pays.then_some(command) }
}

fn part_json(part: &Part) -> Value {
    json!({ "extents": part.extents, "load": part.load, "reads": part.reads, "mb_s": part.mb_s })
}

pub fn as_json(plan: &ArrayPlan, advice: &Advice) -> Value {
    let drive = |drive: &DrivePlan| {
        json!({
            "number": drive.number, "name": drive.name, "reads_only": drive.reads_only, "request": drive.request,
            "mb_s_reading": drive.curve[0], "mb_s_half": drive.curve[1], "mb_s_writing": drive.curve[2],
            "gain": drive.gain, "now": part_json(&drive.now), "then": part_json(&drive.then),
        })
    };
    let predicted: serde_json::Map<String, Value> =
        plan.predicted.iter().map(|(choice, mb_s)| (choice.name().into(), json!(mb_s))).collect();
    let [sealed, quiet, changing, cold] = plan.classes;
    json!({
        "layout_now": plan.now.name(), "layout": plan.layout.name(), "k": plan.k, "before": plan.before,
        "after": plan.after, "predicted": predicted, "moves": plan.moves.len(), "moved": plan.moved,
        "extents": { "sealed": sealed, "quiet": quiet, "changing": changing, "cold": cold },
        "drives": plan.drives.iter().map(drive).collect::<Vec<_>>(), "advice": [advice.as_json()],
    })
}

pub fn print(plan: &ArrayPlan) -> Result<(), Failure> {
    say!("drive  class   read/half/write MB/s   gain  load now  load then  extents now  then  name")?;
    for drive in &plan.drives {
        let class = if drive.reads_only { "reads" } else { "mixed" };
        let [read, half, write] = drive.curve;
        let curve = format!("{read:.0}/{half:.0}/{write:.0}");
        let (now, then) = (drive.now.load * 100.0, drive.then.load * 100.0);
        say!(
            "{:>5}  {class:<6}  {curve:>20}  {:>5.0}  {now:>6.1} %  {then:>7.1} %  {:>11}  {:>4}  {}",
            drive.number,
            drive.gain,
            drive.now.extents,
            drive.then.extents,
            drive.name
        )?;
    }
    let [sealed, quiet, changing, cold] = plan.classes;
    say!("extents: {sealed} sealed, {quiet} quiet, {changing} changing, {cold} cold")?;
    let each: Vec<String> = plan.predicted.iter().map(|(c, mb_s)| format!("{} {mb_s:.0}", c.name())).collect();
    say!("predicted MB/s: {:.0} now, {:.0} as planned ({})", plan.before, plan.after, each.join(", "))?;
    // Of an array that is not there yet nothing can be moved.
    if !plan.moves.is_empty() || plan.moved == 0 {
        say!("to move: {} in {} extents", bytes(plan.moved), plan.moves.len())?;
    }
    Ok(())
}

/// What a trace shows of an extent.
fn class(load: &Load) -> Class {
    match load {
        load if load.read_only => Class::Quiet,
        load if load.write_bytes > 0.0 => Class::Changing,
        _ => Class::Cold,
    }
}

/// What a trace asks of each extent. Only read is what it reads and never writes.
fn loads(trace: &Path, extent: u64) -> Result<Vec<Load>, Failure> {
    let mut reader = Reader::open(trace, &ReadOptions::default())?;
    let (mut loads, mut any): (Vec<Load>, _) = (Vec::new(), false);
    while let Some(record) = reader.next_record()? {
        let Record::Block { write, sector, bytes, .. } = record else { continue };
        any = true;
        let index = (sector * 512 / extent) as usize;
        if index >= 1 << 22 {
            return Err(Failure::Usage(format!(
                "the trace reaches past {index} extents: choose larger ones, --extent 64M"
            )));
        }
        loads.resize(loads.len().max(index + 1), Load::default());
        let load = &mut loads[index];
        load.requests += 1.0;
        if write { load.write_bytes += bytes as f64 } else { load.read_bytes += bytes as f64 }
    }
    if !any {
        return Err(Failure::Usage(format!("{} has no requests to a block device", trace.display())));
    }
    loads.iter_mut().for_each(|load| load.read_only = load.write_bytes == 0.0 && load.read_bytes > 0.0);
    Ok(loads)
}

/// The plan for an array that is not there: beside RAID 0.
pub fn of_trace(trace: &Path, drives: &[String], extent: u64) -> Result<ArrayPlan, Failure> {
    let drives = drives.iter().map(|name| {
        let (name, curve, capacity) = curves::load(name)?;
        Ok(PlanDrive { name, curve, extents: u32::try_from(capacity / extent).unwrap_or(u32::MAX) })
    });
    let drives = drives.collect::<Result<Vec<_>, Failure>>()?;
    let numbers: Vec<usize> = (0..drives.len()).collect();
    let question = Question {
        drives,
        loads: loads(trace, extent)?,
        now: Now::Stripe,
        pinned: Vec::new(),
        extent,
        least_gain: 0.01,
    };
    let plan = planner::plan(&question).map_err(|e| Failure::Usage(e.to_string()))?;
    let classes: Vec<Class> = question.loads.iter().map(class).collect();
    Ok(ArrayPlan::of(&question, plan, &numbers, &classes))
}
