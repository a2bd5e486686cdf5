//! `tier`, and what other commands need for databases on a tier: the settings that stay with the database, and its creation.
//!
//! The settings are in `tier.json` in the directory: without them a database made with a manager that keeps every page at home would
//! be opened with one that does not. They are written before a tier begins, and removed after it ended.

use crate::args::tier::{Attach, Detach, FastPart, Resize, Set, TierArgs, TierCommand};
use crate::args::{LayoutArgs, Place};
use crate::output::{Failure, Out, Stdout, bytes, say, table};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use varve::{Alpha, Costs, Db, Layout, MapRecovery, Options, TierOptions};

const SETTINGS: &str = "tier.json";
/// How much of a device is looked at to see whether it holds something.
const LOOK: u64 = 1 << 20;

fn about(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {e}", path.display()))
}

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

/// The settings that stay with the database.
fn settings(dir: &Path) -> Result<TierOptions, Failure> {
    let path = dir.join(SETTINGS);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(TierOptions::default()),
        Err(e) => return Err(about(&path, &e)),
    };
    let options = serde_json::from_str(&text).ok().and_then(|value: Value| parse(&value));
    options.filter(|options| options.validate().is_ok()).ok_or_else(|| {
        Failure::Failed(format!(
            "{} cannot be read as settings of a tier: remove it, then choose them again with `varve tier set`",
            path.display()
        ))
    })
}

fn parse(value: &Value) -> Option<TierOptions> {
    let mut options = TierOptions { manager: value["manager"].as_str()?.into(), ..TierOptions::default() };
    options.options.alpha = value["alpha"].as_str()?.parse().ok()?;
    options.zone = value["zone"].as_f64()?;
    options.map_recovery = value["map_recovery"].as_str()?.parse().ok()?;
    options.dirty_ceiling = value["dirty_ceiling"].as_f64()?;
    options.daily_budget = value["daily_budget"].as_u64()?;
    let ms = |name: &str| value["costs_ms"][name].as_f64();
    options.options.costs = Costs {
        read_slow: ms("read_slow")?,
        write_slow: ms("write_slow")?,
        read_fast: ms("read_fast")?,
        write_fast: ms("write_fast")?,
    };
    Some(options)
}

fn as_json(options: &TierOptions) -> Value {
    let alpha = match options.options.alpha {
        Alpha::Global => "global",
        Alpha::Keyspace => "keyspace",
        Alpha::Group => "group",
    };
    let map_recovery = match options.map_recovery {
        MapRecovery::Zone => "zone",
        MapRecovery::Scan => "scan",
        MapRecovery::Log => "log",
    };
    let c = &options.options.costs;
    json!({ "manager": options.manager, "alpha": alpha, "zone": options.zone, "map_recovery": map_recovery,
        "dirty_ceiling": options.dirty_ceiling, "daily_budget": options.daily_budget,
        "costs_ms": { "read_slow": c.read_slow, "write_slow": c.write_slow, "read_fast": c.read_fast, "write_fast": c.write_fast } })
}

/// The file gets its name when it is whole and durable.
fn keep(dir: &Path, options: &TierOptions) -> Result<(), Failure> {
    let (path, partial) = (dir.join(SETTINGS), dir.join("tier.json.partial"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        writeln!(file, "{:#}", as_json(options))?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| about(&path, &e))
}

/// `options` with what was chosen.
fn with(mut options: TierOptions, a: &TierArgs) -> Result<TierOptions, Failure> {
    options.manager = a.manager.clone().unwrap_or(options.manager);
    options.options.alpha = a.alpha.unwrap_or(options.options.alpha);
    options.zone = a.zone.unwrap_or(options.zone);
    options.map_recovery = a.map_recovery.unwrap_or(options.map_recovery);
    options.dirty_ceiling = a.dirty_ceiling.unwrap_or(options.dirty_ceiling);
    options.daily_budget = a.daily_budget.unwrap_or(options.daily_budget);
    options.options.costs = a.tier_costs.unwrap_or(options.options.costs);
    options.validate().map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(options)
}

fn is_chosen(a: &TierArgs) -> bool {
    let shares = a.zone.is_some() || a.dirty_ceiling.is_some() || a.daily_budget.is_some();
    shares || a.manager.is_some() || a.alpha.is_some() || a.map_recovery.is_some() || a.tier_costs.is_some()
}

/// How the database is to be opened: as asked, and as its tier is set.
pub fn options(place: &Place) -> Result<Options, Failure> {
    let args = TierArgs { manager: place.tier.manager.clone(), ..TierArgs::default() };
    let options = options_with(&place.dir, place.open.options(), &args)?;
    Ok(Options { without_tier: place.tier.without_tier, ..options })
}

/// `options` for the database in `dir`, its tier as set, and as chosen for this time.
pub fn options_with(dir: &Path, options: Options, a: &TierArgs) -> Result<Options, Failure> {
    if is_chosen(a) && !varve::has_tier(dir) {
        return Err(Failure::Usage(format!("{} has no tier that could be opened like that", dir.display())));
    }
    Ok(Options { tier: with(settings(dir)?, a)?, ..options })
}

/// Whether something but zeros is at the beginning of a file or block device.
fn holds_something(path: &Path) -> Result<bool, Failure> {
    let kind = std::fs::metadata(path).map_err(|e| about(path, &e))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::Failed(format!("{} is neither a file nor a block device", path.display())));
    }
    let mut found = Vec::new();
    let file = File::open(path).map_err(|e| about(path, &e))?;
    file.take(LOOK).read_to_end(&mut found).map_err(|e| about(path, &e))?;
    Ok(found.iter().any(|b| *b != 0))
}

fn refuse_used(path: &Path, overwrite: bool) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(Failure::Failed(format!("{}: there is no folder {}", path.display(), folder.display())));
    }
    if overwrite || !path.exists() || path.is_dir() || !holds_something(path)? {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} holds something: choose another, or say --overwrite if it may be lost",
        path.display()
    )))
}

/// Bytes that a fast device shall have at least; 0: what it has.
fn fast_bytes(fast: &FastPart, overwrite: bool) -> Result<u64, Failure> {
    refuse_used(&fast.path, overwrite)?;
    let there = std::fs::metadata(&fast.path).ok().filter(|m| m.file_type().is_block_device() || m.is_file());
    match (fast.bytes, there) {
        (Some(bytes), _) => Ok(bytes),
        (None, Some(m)) if m.file_type().is_block_device() || m.len() > 0 => Ok(0),
        (None, _) => Err(Failure::Usage(format!(
            "how large shall the fast part be? Give {0}:SIZE, as in {0}:10G",
            fast.path.display()
        ))),
    }
}

/// A device that is larger than asked for is used only as far.
fn limit(db: &Db, fast: &FastPart) -> Result<(), Failure> {
    if let Some(bytes) = fast.bytes {
        db.resize_tier(bytes)?;
    }
    Ok(())
}

/// Makes a database, on a tier if a fast device is given.
pub fn create(dir: &Path, a: &LayoutArgs, tier: &TierArgs, options: Options) -> Result<Db, Failure> {
    let mut layout = Layout { data: a.devices.slow.clone(), overwrite: a.devices.overwrite, ..a.layout() };
    if let Some(slow) = &a.devices.slow {
        refuse_used(slow, a.devices.overwrite)?;
    }
    let Some(fast) = &a.devices.fast else {
        if is_chosen(tier) {
            return Err(Failure::Usage("a tier needs a fast device: give --fast PATH:SIZE".into()));
        }
        return Ok(Db::create(dir, &layout, options)?);
    };
    (layout.fast, layout.fast_bytes) = (Some(fast.path.clone()), fast_bytes(fast, a.devices.overwrite)?);
    let options = Options { tier: with(TierOptions::default(), tier)?, ..options };
    let settings = options.tier.clone();
    let db = Db::create(dir, &layout, options)?;
    keep(dir, &settings)?;
    limit(&db, fast)?;
    Ok(db)
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
fn open(place: &Place) -> Result<Db, Failure> {
    need_tier(&place.dir)?;
    if place.tier.without_tier {
        return Err(Failure::Usage("--without-tier leaves no tier that this command could work on".into()));
    }
    Ok(crate::admin::open_db(&place.dir, options(place)?)?)
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
    let db = crate::admin::open_to_look(out, place)?;
    let stats = db.stats();
    let rows = stats
        .rows()
        .into_iter()
        .filter(|(name, _)| ["tier.", "device.data.", "device.fast."].iter().any(|prefix| name.starts_with(prefix)));
    if out.json {
        let mut object: serde_json::Map<_, _> = rows.map(|(name, v)| (name, crate::stat::json_figure(v))).collect();
        object.insert("settings".into(), as_json(&settings(&place.dir)?));
        say!("{}", Value::Object(object))?;
    } else {
        let rows: Vec<_> = rows.map(|(name, figure)| (name, figure.to_string())).collect();
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
    if !is_chosen(&a.tier) {
        return Err(Failure::Usage(
            "say what to set, --manager for one; `varve tier stat --json` shows what is".into(),
        ));
    }
    let options = options_with(&a.dir, a.open.options(), &a.tier)?;
    let settings = options.tier.clone();
    // A manager that leaves nothing newer on the fast device has everything copied home at this.
    crate::admin::open_db(&a.dir, options)?.close()?;
    keep(&a.dir, &settings)?;
    tell(out, &as_json(&settings), format!("the tier's manager is {}", settings.manager))?;
    Ok(())
}

fn detach(out: Out, a: &Detach) -> Result<(), Failure> {
    need_tier(&a.dir)?;
    let device = std::fs::canonicalize(a.dir.join("fast")).unwrap_or_else(|_| PathBuf::from("the fast device"));
    let options = Options { tier: settings(&a.dir)?, ..a.open.options() };
    if a.without_tier {
        crate::admin::open_db(&a.dir, Options { without_tier: true, ..options })?.close()?;
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
        return Err(Failure::Failed(format!(
            "the database in {0} has a tier: `varve tier detach {0}` first, with --without-tier if its fast device is lost",
            a.dir.display()
        )));
    }
    let overwrite = a.overwrite || varve::is_left_over(&a.dir, &a.fast.path);
    let bytes_wanted = fast_bytes(&a.fast, overwrite)?;
    let tier = with(TierOptions::default(), &a.tier)?;
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
