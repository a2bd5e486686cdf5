//! How commands make and open databases: with the settings of their tier, and saying what an opening changed.

use crate::args::array::{ArrayArgs, ArrayLayout};
use crate::args::tier::FastPart;
use crate::args::{LayoutArgs, Place};
use crate::closing::Closing;
use crate::output::{Failure, Out, about, complain, read_keys};
use crate::settings::{keep, settings};
use crate::table_args::{Given, Tier};
use crate::{array_settings, curves, flash};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use varve::array::{EXTENT, Layout, UNIT};
use varve::{Db, DriveLayout, DrivePart, Layout as DbLayout, LsmStats, Options, RemotePart};
use varve_lab::own;
use varve_wire::tcp;

/// How much of a device is looked at to see whether it holds something.
const LOOK: u64 = 1 << 20;

/// How the database is to be opened: as asked, and as its tier is set.
pub fn options(place: &Place) -> Result<Options, Failure> {
    let args = Given::one("manager", place.tier.manager.clone());
    let options = options_with(&place.dir, place.open.options(), &args)?;
    let without_drive = place.tier.without_drive;
    let options = Options { without_tier: place.tier.without_tier, without_drive, ..options };
    Ok(place.open.over(array_settings::settings(&place.dir)?.over(options)?))
}

/// `options` for the database in `dir`, its tier as set, and as chosen for this time.
pub fn options_with(dir: &Path, options: Options, a: &Given<Tier>) -> Result<Options, Failure> {
    if !a.is_empty() && !varve::has_tier(dir) {
        return Err(Failure::Usage(format!("{} has no tier that could be opened like that", dir.display())));
    }
    Ok(Options { tier: a.over(settings(dir)?)?, ..options })
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

/// Fails if a part of the database in `dir` holds something that is not to be lost. What a creation left there that was
/// cut short is nothing: the next one begins anew.
fn refuse_used(dir: &Path, path: &Path, overwrite: bool) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(Failure::Failed(format!("{}: there is no folder {}", path.display(), folder.display())));
    }
    if overwrite || !path.exists() || path.is_dir() || !holds_something(path)? || varve::is_left_over(dir, path) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} holds something: choose another, or say --overwrite if it may be lost",
        path.display()
    )))
}

/// Bytes that a fast device shall have at least; 0: what it has.
pub fn fast_bytes(dir: &Path, fast: &FastPart, overwrite: bool) -> Result<u64, Failure> {
    refuse_used(dir, &fast.path, overwrite)?;
    let there = std::fs::metadata(&fast.path).ok().filter(|m| m.file_type().is_block_device() || m.is_file());
    match (fast.bytes, there) {
        (Some(bytes), _) => Ok(bytes),
        (None, Some(m)) if m.file_type().is_block_device() || m.len() > 0 => Ok(0),
        (None, _) => {
            Err(Failure::Usage(format!("how large shall it be? Give {0}:SIZE, as in {0}:10G", fast.path.display())))
        }
    }
}

/// A device that is larger than asked for is used only as far.
pub fn limit(db: &Db, fast: &FastPart) -> Result<(), Failure> {
    if let Some(bytes) = fast.bytes {
        db.resize_tier(bytes)?;
    }
    Ok(())
}

/// The drives and layout of an array, if one is asked for.
fn drives(dir: &Path, a: &LayoutArgs) -> Result<Option<DriveLayout>, Failure> {
    let ArrayArgs { drives, array, extent, unit, shares } = &a.array;
    if drives.is_empty() {
        return Ok(None);
    }
    let part = |drive: &FastPart| {
        let bytes = fast_bytes(dir, drive, a.devices.overwrite)?;
        Ok(DrivePart { path: drive.path.clone(), bytes })
    };
    let parts = drives.iter().map(part).collect::<Result<_, Failure>>()?;
    let by_shares = || match shares.len() {
        n if n == drives.len() => Ok(shares.clone()),
        n => Err(Failure::Usage(format!(
            "{} drives need as many shares, not {n}: give --shares, such as the MB/s that `varve probe DIR` measures of each",
            drives.len()
        ))),
    };
    let layout = match array.unwrap_or(ArrayLayout::Stripe) {
        ArrayLayout::Stripe if !shares.is_empty() => {
            return Err(Failure::Usage(
                "a stripe gives all drives the same: leave --shares out, or say --array proportional".into(),
            ));
        }
        ArrayLayout::Stripe => Layout::Stripe { unit: unit.unwrap_or(UNIT) },
        _ if unit.is_some() => {
            return Err(Failure::Usage("only a stripe has a unit: leave --unit out".into()));
        }
        ArrayLayout::Proportional => Layout::Proportional { shares: by_shares()? },
        ArrayLayout::Rodi if shares.is_empty() => Layout::Rodi { shares: vec![1.0; drives.len()] },
        ArrayLayout::Rodi => Layout::Rodi { shares: by_shares()? },
    };
    Ok(Some(DriveLayout { drives: parts, extent: extent.unwrap_or(EXTENT), layout }))
}

/// Files of a database's directory; its drives are `drive.0` and so on.
const FILES: [&str; 8] = ["data", "log", "fast", "flash", "remote", "tier.json", "array.json", "lock"];

/// Refuses a directory with files that are not of a database, but for those that were `named` for this one. What a
/// creation left that was cut short is no reason.
pub fn refuse_files(dir: &Path, command: &str, named: &[&Path]) -> Result<(), Failure> {
    let whole =
        |path: &Path| std::fs::canonicalize(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok();
    let here = whole(dir);
    let is_named =
        |name: &OsStr| named.iter().any(|path| path.file_name() == Some(name) && path.parent().and_then(whole) == here);
    let is_ours = |name: &OsStr| {
        let text = name.to_str().unwrap_or_default();
        FILES.contains(&text) || text.starts_with("drive.") || text.ends_with(".json.partial")
    };
    own::refuse_files_but(dir, command, &|name| is_ours(name) || is_named(name)).map_err(Failure::Usage)
}

/// The paths that were given for the parts of a new database.
pub fn named(a: &LayoutArgs) -> Vec<&Path> {
    let (devices, flash) = (&a.devices, &a.flash);
    let data = devices.data.as_deref().map(Path::new);
    let paths = [&devices.slow, &a.log_dir, &flash.flash, &flash.regions, &devices.keys.key, &devices.keys.peer];
    let fast = devices.fast.iter().chain(&a.array.drives).map(|part| &*part.path);
    paths.into_iter().flatten().map(|path| &**path).chain(data).chain(fast).collect()
}

/// Makes a database that lies as `layout` says.
pub fn new_db(dir: &Path, layout: &DbLayout, options: Options) -> Result<Closing, Failure> {
    Ok(Closing(Db::create(dir, layout, options)?))
}

/// Makes a database, on a tier if a fast device is given.
pub fn create(dir: &Path, a: &LayoutArgs, tier: &Given<Tier>, options: Options) -> Result<Closing, Failure> {
    // An image that is made for a database which then cannot be made is of no use.
    let image = a.flash.flash.as_deref().filter(|image| !image.exists());
    create_on(dir, a, tier, options).map_err(|failure| {
        image.map(std::fs::remove_file);
        match failure {
            // What a layout says that the flash has no place for.
            Failure::Engine(varve::Error::Volume(e)) if a.flash.flash.is_some() => Failure::Usage(e.to_string()),
            other => other,
        }
    })
}

fn create_on(dir: &Path, a: &LayoutArgs, tier: &Given<Tier>, options: Options) -> Result<Closing, Failure> {
    if varve::exists(dir) {
        // Before its devices are found to be in use.
        let what = format!("{} already holds a database", dir.display());
        return Err(Failure::Engine(varve::Error::AlreadyExists(what)));
    }
    let mut layout = DbLayout { overwrite: a.devices.overwrite, ..a.layout() };
    let data = a.devices.data.as_deref();
    let keys = a.devices.keys.files();
    let address = data.and_then(|data| data.strip_prefix("remote:"));
    layout.remote = address.map(|address| RemotePart { address: address.into(), keys: keys.clone() });
    if keys.is_some() && address.is_none() {
        return Err(Failure::Usage("keys are for a worker: give --data remote:HOST:PORT, or leave them out".into()));
    }
    let path = data.filter(|_| layout.remote.is_none()).map(PathBuf::from);
    layout.data = a.devices.slow.clone().or(path);
    if let Some(slow) = &layout.data {
        refuse_used(dir, slow, a.devices.overwrite)?;
    }
    if let Some(RemotePart { address, keys }) = &layout.remote {
        if a.devices.fast.is_some() {
            return Err(Failure::Usage("a worker's device takes no fast device over it yet: leave --fast out".into()));
        }
        tcp::address(address, keys.is_some()).map_err(|e| Failure::Usage(e.to_string()))?;
        let names = keys.iter().flat_map(|keys| [&keys.key, &keys.peer]);
        if let Some(name) = names.into_iter().find(|name| name.to_str().is_none_or(|name| name.contains('\n'))) {
            return Err(Failure::Usage(format!("{name:?}: the names of keys are noted as lines of UTF-8: rename it")));
        }
        keys.as_ref().map(read_keys).transpose()?;
    }
    layout.array = drives(dir, a)?;
    if let Some((part, page)) = flash::part(&a.flash)? {
        if layout.array.is_some() || layout.data.is_some() || a.devices.fast.is_some() {
            return Err(Failure::Usage("native flash has all pages: leave --drive, --slow and --fast out".into()));
        }
        let own = (page as usize == 4096).then_some(4096);
        layout.page_size = a.page_size.or(own).unwrap_or(layout.page_size);
        layout.flash = Some(part);
    }
    let Some(fast) = &a.devices.fast else {
        if !tier.is_empty() {
            return Err(Failure::Usage("a tier needs a fast device: give --fast PATH:SIZE".into()));
        }
        return new_db(dir, &layout, options);
    };
    (layout.fast, layout.fast_bytes) = (Some(fast.path.clone()), fast_bytes(dir, fast, a.devices.overwrite)?);
    let options = Options { tier: tier.over(options.tier.clone())?, ..options };
    let settings = options.tier.clone();
    let db = new_db(dir, &layout, options)?;
    keep(dir, &settings)?;
    limit(&db, fast)?;
    Ok(db)
}

/// To write to the database of a command.
pub fn to_write(place: &Place) -> Result<Closing, Failure> {
    Ok(open_db(&place.dir, options(place)?)?)
}

/// Opens a database, and says what the opening changed that nobody asked for.
pub fn open_db(dir: &Path, options: Options) -> Result<Closing, varve::Error> {
    let db = Closing(Db::open(dir, Options { flash: Some(flash::driver()), ..options })?);
    if let Some(stats) = db.array_stats() {
        let numbers: Vec<usize> = stats.drives.iter().map(|drive| drive.number).collect();
        // What is missing, or cannot be read, is said by who plans.
        if let Ok(curves) = curves::for_drives(dir, &numbers, &[])
            && numbers.iter().all(|number| curves[*number].is_some())
        {
            db.set_array_curves(curves)?;
        }
    }
    let report = db.recovery_report();
    if report.identified {
        complain("identity was given to this database (of an older release); older releases refuse it from now on");
    }
    // After a crash it may have been a torn write.
    if let Some(what) = report.mended_superblock.as_ref().filter(|_| report.clean) {
        complain(format!("one copy of the superblock was damaged ({what}); mended from the other"));
    }
    if let Some(which) = &report.emptied_tier {
        complain(format!("{which}; it held copies only, and begins empty"));
    }
    if let Some(warning) = without_worker(&db.stats().lsm) {
        complain(warning);
    }
    Ok(db)
}

/// Names keyspaces whose merges a worker should do a part of where there is none.
fn without_worker(all: &[LsmStats]) -> Option<String> {
    let named = |s: &LsmStats| s.without_worker.map(|merge| format!("{} (merge={merge})", s.name));
    let named: Vec<String> = all.iter().filter_map(named).collect();
    let which = if named.len() == 1 { "keyspace" } else { "keyspaces" };
    let names = named.join(", ");
    (!named.is_empty())
        .then(|| format!("{which} {names}: the database has no worker near the data, so this process merges alone"))
}

/// Opens for reading only where that is possible, so that looking changes nothing; else recovers, or switches what is
/// asked for.
pub fn to_look(out: Out, place: &Place) -> Result<Closing, Failure> {
    if place.open.detect_lost_writes.is_some() {
        return to_write(place);
    }
    let read_only = Options { read_only: true, ..options(place)? };
    match open_db(&place.dir, read_only) {
        Err(varve::Error::ReadOnly(_)) => {
            out.note("the database was not closed: recovering it first");
            to_write(place).map_err(|failure| match failure {
                Failure::Engine(varve::Error::Permission(why)) => Failure::Engine(varve::Error::Permission(format!(
                    "before it can be read the database must be recovered, and so be written: {why}"
                ))),
                other => other,
            })
        }
        // Readers create nothing: where the lock file is missing, a writer makes it.
        Err(varve::Error::Io(e)) if !place.dir.join("lock").exists() => match open_db(&place.dir, options(place)?) {
            Err(varve::Error::Io(_)) => Err(varve::Error::Io(e).into()),
            other => Ok(other?),
        },
        other => Ok(other?),
    }
}
