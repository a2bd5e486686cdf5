//! `tier`: what its commands do to a database that is open.

use crate::args::Place;
use crate::args::tier::{Attach, Detach, Resize, Set, TierCommand};
use crate::closing::Closing;
use crate::open::{fast_bytes, limit, open_db, options_with, to_look, to_write};
use crate::output::{Failure, Out, Stdout, bytes, figure_text, json_figure, say, table};
use crate::settings::{SETTINGS, as_json, keep, settings};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use varve::{Db, Options, TierOptions};

fn need_tier(dir: &Path) -> Result<(), Failure> {
    if !varve::exists(dir) {
        return Err(varve::Error::NoDatabase(dir.display().to_string()).into());
    }
    match varve::has_tier(dir) {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "the database in {0} has no tier: `varve tier attach {0} PATH:SIZE` gives it one",
            dir.display()
        ))),
    }
}

pub fn run(out: Out, command: &TierCommand) -> Result<(), Failure> {
    match command {
        TierCommand::Stat(place) => stat(out, place),
        TierCommand::Resize(a) => resize(out, a),
        TierCommand::Flush(place) => flush(out, place),
        TierCommand::Set(a) => set(out, a),
        TierCommand::Detach(a) => detach(out, a),
        TierCommand::Attach(a) => attach(out, a),
    }
}

/// Opens a database for a change of its tier.
fn open(place: &Place) -> Result<Closing, Failure> {
    need_tier(&place.dir)?;
    if place.tier.without_tier {
        return Err(Failure::Usage("--without-tier leaves no tier that this command could work on".into()));
    }
    to_write(place)
}

fn tell(out: Out, json: &Value, text: impl AsRef<str>) -> Result<(), Failure> {
    if out.json {
        say!("{json}")?;
    } else {
        out.note(text);
    }
    Ok(())
}

fn stat(out: Out, place: &Place) -> Result<(), Failure> {
    need_tier(&place.dir)?;
    if place.tier.without_tier {
        return Err(Failure::Usage("--without-tier leaves no tier to show".into()));
    }
    let db = to_look(out, place)?;
    let stats = db.stats();
    let rows = stats
        .rows()
        .into_iter()
        .filter(|(name, _)| ["tier.", "device.data.", "device.fast."].iter().any(|prefix| name.starts_with(prefix)));
    if out.json {
        let mut object: serde_json::Map<_, _> = rows.map(|(name, v)| (name, json_figure(v))).collect();
        object.insert("settings".into(), as_json(&settings(&place.dir)?));
        say!("{}", Value::Object(object))?;
    } else {
        let rows: Vec<_> = rows.map(|(name, figure)| (name.clone(), figure_text(&name, figure))).collect();
        table(&mut Stdout, &rows)?;
    }
    Ok(db.close()?)
}

fn resize(out: Out, a: &Resize) -> Result<(), Failure> {
    let db = open(&a.place)?;
    let progress = out.progress("copying home and moving pages", 0);
    let (before, after) = db.resize_tier(a.size)?;
    progress.finish_and_clear();
    db.close()?;
    let told = json!({ "slots_before": before, "slots": after });
    tell(out, &told, format!("{before} slots before, {after} now"))?;
    Ok(())
}

fn flush(out: Out, place: &Place) -> Result<(), Failure> {
    let db = open(place)?;
    let newer = || db.stats().tier.map_or(0, |tier| tier.newer);
    // What the pool still has may go to the fast device: that first.
    db.checkpoint()?;
    let before = newer();
    let progress = out.progress("copying home", 0);
    db.flush_tier()?;
    progress.finish_and_clear();
    let after = newer();
    db.close()?;
    let told = json!({ "newer_before": before, "newer": after });
    tell(out, &told, format!("{before} pages were newer on the fast device, {after} are now"))?;
    Ok(())
}

fn set(out: Out, a: &Set) -> Result<(), Failure> {
    need_tier(&a.dir)?;
    if a.tier.is_empty() {
        return Err(Failure::Usage(
            "say what to set, --manager for one; `varve tier stat --json` shows what is".into(),
        ));
    }
    let options = a.open.over(options_with(&a.dir, a.open.options(), &a.tier)?);
    let settings = options.tier.clone();
    // A manager that leaves nothing newer on the fast device has everything copied home at this.
    open_db(&a.dir, options)?.close()?;
    keep(&a.dir, &settings)?;
    tell(out, &as_json(&settings), format!("set: {}", a.tier.shown(&settings)))?;
    Ok(())
}

fn detach(out: Out, a: &Detach) -> Result<(), Failure> {
    need_tier(&a.dir)?;
    let device = std::fs::canonicalize(a.dir.join("fast")).unwrap_or_else(|_| PathBuf::from("the fast device"));
    let options = Options { tier: settings(&a.dir)?, ..a.open.options() };
    if a.without_tier {
        open_db(&a.dir, Options { without_tier: true, ..options })?.close()?;
    } else {
        let progress = out.progress("copying home", 0);
        Db::detach_tier(&a.dir, options)?;
        progress.finish_and_clear();
    }
    let removed = !a.without_tier && device.is_file() && std::fs::remove_file(&device).is_ok();
    let _ = std::fs::remove_file(a.dir.join(SETTINGS));
    let told = json!({ "detached": device.display().to_string(), "removed": removed });
    let what = if removed { "was removed" } else { "is not needed any more" };
    tell(out, &told, format!("every page is home; {} {what}", device.display()))?;
    Ok(())
}

fn attach(out: Out, a: &Attach) -> Result<(), Failure> {
    if !varve::exists(&a.dir) {
        return Err(varve::Error::NoDatabase(a.dir.display().to_string()).into());
    }
    if varve::has_tier(&a.dir) {
        return Err(Failure::Exists(format!(
            "the database in {0} has a tier: `varve tier detach {0}` first, with --without-tier if its fast device is lost",
            a.dir.display()
        )));
    }
    let overwrite = a.overwrite || varve::is_left_over(&a.dir, &a.fast.path);
    let bytes_wanted = fast_bytes(&a.dir, &a.fast, overwrite)?;
    let tier = a.tier.over(TierOptions::default())?;
    keep(&a.dir, &tier)?;
    let options = Options { tier, ..a.open.options() };
    let attached = Db::attach_tier(&a.dir, &a.fast.path, bytes_wanted, options);
    let db = attached.inspect_err(|_| drop(std::fs::remove_file(a.dir.join(SETTINGS))))?;
    limit(&db, &a.fast)?;
    let stats = db.stats();
    let slots = stats.tier.map_or(0, |tier| tier.slots);
    db.close()?;
    let told = json!({ "attached": a.fast.path.display().to_string(), "slots": slots, "page_size": stats.page_size });
    let room = bytes(slots * stats.page_size as u64);
    tell(out, &told, format!("{} attached, with {slots} slots ({room})", a.fast.path.display()))?;
    Ok(())
}
