//! What changes an array: extents that move as planned, drives that come and go, and settings that stay with it.
//!
//! These commands open the database themselves, and move extents as long as they run. A command that is killed loses
//! nothing: run it again. `array pause` needs no opening: who moves extents looks at the settings now and then.

use crate::args::array::{Add, Apply, Drain, Pause, Replace, Set};
use crate::args::{Place, tier::FastPart};
use crate::array_plan::{advice, as_json, numbers, of_db, print};
use crate::array_settings::{ArraySettings, keep, settings};
use crate::closing::Closing;
use crate::curves;
use crate::open::{fast_bytes, to_write};
use crate::output::{Failure, Out, bytes, say};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use varve::{Db, DrivePart};

/// How often whoever moves extents looks whether he shall pause.
const LOOK: Duration = Duration::from_millis(500);

fn open(place: &Place) -> Result<Closing, Failure> {
    let db = to_write(place)?;
    numbers(&db, &place.dir)?;
    Ok(db)
}

/// Waits for the moves that were begun; says what became of them.
fn finish(out: Out, db: &Db, dir: &Path, moves: usize) -> Result<varve::array::Moves, Failure> {
    let progress = out.progress("moving extents", moves as u64);
    let mut paused = false;
    loop {
        let state = db.array_moves()?;
        progress.set_position(moves.saturating_sub(state.left) as u64);
        if !state.running {
            break;
        }
        let wanted = settings(dir)?.paused;
        if wanted != paused {
            out.note(if wanted { "paused: `varve array pause --resume` goes on" } else { "going on" });
            db.array_pause(wanted)?;
            paused = wanted;
        }
        varve_rt::sleep(LOOK);
    }
    progress.finish_and_clear();
    db.array_wait()?;
    let state = db.array_moves()?;
    match &state.error {
        Some(e) => Err(Failure::Failed(format!("extents stay where they are: {e}"))),
        None => Ok(state),
    }
}

pub fn apply(out: Out, a: &Apply) -> Result<(), Failure> {
    let dir = &a.place.dir;
    let db = open(&a.place)?;
    let plan = of_db(&db, dir, &a.curves)?;
    let advice = advice(&plan, format!("varve array apply {}", dir.display()));
    if !out.json {
        print(&plan)?;
    }
    let moves = if advice.command.is_some() { db.array_apply(&plan)? } else { 0 };
    let state = finish(out, &db, dir, moves)?;
    db.close()?;
    if out.json {
        let mut told = as_json(&plan, &advice);
        told["done"] = json!({ "moved": state.done, "given_up": state.given_up, "undone": state.undone });
        say!("{told}")?;
    } else if advice.command.is_none() {
        advice.print(out)?;
    } else {
        say!("{} extents moved, {} stayed because they are written too often", state.done, state.given_up)?;
    }
    Ok(())
}

pub fn pause(out: Out, a: &Pause) -> Result<(), Failure> {
    if !varve::exists(&a.dir) {
        return Err(varve::Error::NoDatabase(a.dir.display().to_string()).into());
    }
    if !varve::has_array(&a.dir) {
        return Err(Failure::Failed(format!("the pages of {} lie on no array: nothing moves", a.dir.display())));
    }
    keep(&a.dir, &ArraySettings { paused: !a.resume, ..settings(&a.dir)? })?;
    if out.json {
        say!("{}", json!({ "paused": !a.resume }))?;
    } else {
        out.note(if a.resume { "extents move again" } else { "no extent is moved" });
    }
    Ok(())
}

pub fn set(out: Out, a: &Set) -> Result<(), Failure> {
    let dir = &a.place.dir;
    let db = crate::open::to_look(out, &a.place)?;
    let numbers = numbers(&db, dir)?;
    db.close()?;
    if !a.curves.is_empty() && a.curves.len() != numbers.len() {
        let (drives, given) = (numbers.len(), a.curves.len());
        return Err(Failure::Usage(format!(
            "the array has {drives} drives, and {given} curves are given: one for each"
        )));
    }
    let mut now = settings(dir)?;
    let given = [("array_rate", &a.rate), ("array_window", &a.window), ("array_least_gain", &a.least_gain)];
    let given = given.into_iter().chain([
        ("array_quiet", &a.quiet_for),
        ("array_half_life", &a.half_life),
        ("array_replan", &a.replan),
    ]);
    let mut any = !a.curves.is_empty();
    for (name, value) in given.filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        varve::Options::default().set(name, value)?;
        now.options.insert(name.into(), value.clone());
        any = true;
    }
    if !any {
        return Err(Failure::Usage("say what to set, --rate 50M for one, or --curves A.toml,B.toml".into()));
    }
    for (number, curve) in numbers.iter().zip(&a.curves) {
        curves::keep(dir, *number, curve)?;
    }
    keep(dir, &now)?;
    if out.json {
        say!("{}", now.as_json())?;
    } else {
        out.note("kept with the database, for every later opening by this command");
    }
    Ok(())
}

/// Whether a link of the database leads there.
fn is_drive_of(dir: &Path, path: &Path) -> bool {
    let links = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut drives = links.filter(|link| link.file_name().as_encoded_bytes().starts_with(b"drive."));
    std::fs::canonicalize(path)
        .is_ok_and(|path| drives.any(|d| std::fs::canonicalize(d.path()).is_ok_and(|d| d == path)))
}

fn part(dir: &Path, drive: &FastPart, overwrite: bool) -> Result<DrivePart, Failure> {
    // Of one that the array has already the engine says so: nothing of it may be lost.
    let overwrite = overwrite || is_drive_of(dir, &drive.path);
    Ok(DrivePart { path: drive.path.clone(), bytes: fast_bytes(dir, drive, overwrite)? })
}

pub fn add(out: Out, a: &Add) -> Result<(), Failure> {
    let dir = &a.place.dir;
    if let Some(curve) = &a.curve {
        curves::load(curve)?;
    }
    let (db, part) = (open(&a.place)?, part(&a.place.dir, &a.drive, a.overwrite)?);
    let measured = a.measure.then(|| curves::measured(&part.path)).transpose()?;
    let number = db.array_add(&part, a.share, a.overwrite)?;
    db.close()?;
    curves::forget(dir, number);
    a.curve.as_ref().map_or(Ok(()), |curve| curves::keep(dir, number, curve))?;
    measured.as_ref().map_or(Ok(()), |profile| curves::keep_profile(dir, number, profile))?;
    if out.json {
        say!("{}", json!({ "added": number, "path": part.path }))?;
        return Ok(());
    }
    out.note(format!("{} is drive {number}; new extents go there", part.path.display()));
    out.note("nothing is kept twice: the database is lost with any of its drives");
    if a.curve.is_none() && !a.measure {
        out.note(format!(
            "for plans, measure it (`--measure` does that here): `varve probe DIR --save FILE`, then give the \
            curves of all drives to `varve array set {} --curves ..`",
            dir.display()
        ));
    }
    Ok(())
}

pub fn drain(out: Out, a: &Drain) -> Result<(), Failure> {
    let dir = &a.place.dir;
    let db = open(&a.place)?;
    let moves = db.array_drain(a.drive)?;
    let state = finish(out, &db, dir, moves)?;
    db.close()?;
    curves::forget(dir, a.drive);
    if out.json {
        say!("{}", json!({ "drained": a.drive, "moved": state.done }))?;
    } else {
        out.note(format!("{} extents moved; drive {} is not needed any more", state.done, a.drive));
    }
    Ok(())
}

pub fn replace(out: Out, a: &Replace) -> Result<(), Failure> {
    let dir = &a.place.dir;
    if let Some(curve) = &a.curve {
        curves::load(curve)?;
    }
    let (db, part) = (open(&a.place)?, part(&a.place.dir, &a.by, a.overwrite)?);
    let before = db.array_stats().and_then(|stats| stats.drives.into_iter().find(|drive| drive.number == a.drive));
    let extents = before.map_or(0, |drive| drive.used as usize);
    let number = db.array_replace(a.drive, &part, a.overwrite)?;
    let state = finish(out, &db, dir, extents)?;
    let extent = db.array_stats().map_or(0, |stats| stats.extent);
    db.close()?;
    curves::forget(dir, a.drive);
    a.curve.as_ref().map_or(Ok(()), |curve| curves::keep(dir, number, curve))?;
    if out.json {
        say!("{}", json!({ "replaced": a.drive, "by": number, "moved": state.done }))?;
    } else {
        let moved = bytes(state.done * extent);
        out.note(format!(
            "{moved} moved to {}, drive {number}; drive {} is not needed any more",
            part.path.display(),
            a.drive
        ));
    }
    Ok(())
}
