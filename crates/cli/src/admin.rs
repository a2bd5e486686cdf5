//! Commands on the database as a whole: create, info, check, compact.

use crate::args;
use crate::output::{Failure, Out, Stdout, bytes, complain, say, table};
use crate::tier;
use serde_json::json;
use std::path::Path;
use varve::{Db, Options};

pub fn create(out: Out, a: &args::Create) -> Result<(), Failure> {
    let options = Options { detect_lost_writes: a.detect_lost_writes.then_some(true), ..Options::default() };
    let db = tier::create(&a.dir, &a.layout, &a.tier, options)?;
    for name in &a.keyspaces {
        db.create_keyspace(name)?;
    }
    db.close()?;
    if out.json {
        say!("{}", json!({ "created": a.dir.display().to_string(), "keyspaces": a.keyspaces }))?;
    } else {
        out.note(format!("created {}", a.dir.display()));
    }
    Ok(())
}

/// Opens a database, and says what the opening changed that nobody asked for.
pub fn open_db(dir: &Path, options: Options) -> Result<Db, varve::Error> {
    let db = Db::open(dir, options)?;
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
    Ok(db)
}

/// Opens for reading only where that is possible, so that looking changes nothing; else recovers, or switches what is asked for.
pub fn open_to_look(out: Out, place: &args::Place) -> Result<Db, Failure> {
    if place.open.detect_lost_writes.is_some() {
        return Ok(open_db(&place.dir, tier::options(place)?)?);
    }
    let read_only = Options { read_only: true, ..tier::options(place)? };
    match open_db(&place.dir, read_only) {
        Err(varve::Error::ReadOnly(_)) => {
            out.note("the database was not closed: recovering it first");
            Ok(open_db(&place.dir, tier::options(place)?)?)
        }
        // Readers create nothing: where the lock file is missing, a writer makes it.
        Err(varve::Error::Io(e)) => Ok(open_db(&place.dir, tier::options(place)?).map_err(|_| varve::Error::Io(e))?),
        other => Ok(other?),
    }
}

pub fn info(out: Out, place: &args::Place) -> Result<(), Failure> {
    let db = open_to_look(out, place)?;
    let keyspaces = db.keyspaces()?;
    let stats = db.stats();
    if out.json {
        let list: Vec<_> =
            keyspaces.iter().map(|k| json!({ "name": k.name, "id": k.id.0, "root": k.root.0 })).collect();
        say!(
            "{}",
            json!({ "dir": place.dir.display().to_string(), "page_size": stats.page_size, "pages": stats.pages,
                "free_pages": stats.free_pages, "log_bytes": stats.log.capacity,
                "detect_lost_writes": stats.lost_writes.is_some(), "keyspaces": list })
        )?;
    } else {
        let rows = [
            ("page size".to_string(), bytes(stats.page_size as u64)),
            ("pages".to_string(), format!("{} ({} free)", stats.pages, stats.free_pages)),
            ("log".to_string(), bytes(stats.log.capacity)),
            ("lost writes".to_string(), (if stats.lost_writes.is_some() { "detected" } else { "not detected" }).into()),
            ("keyspaces".to_string(), keyspaces.len().to_string()),
        ];
        let mut stdout = Stdout;
        table(&mut stdout, &rows)?;
        table(
            &mut stdout,
            &keyspaces.iter().map(|k| (format!("  {}", k.name), format!("id {}", k.id.0))).collect::<Vec<_>>(),
        )?;
    }
    db.close()?;
    Ok(())
}

pub fn check(out: Out, place: &args::Place) -> Result<(), Failure> {
    let progress = out.progress("checking", 0);
    let db = open_to_look(out, place)?;
    let report = db.check()?;
    progress.finish_and_clear();
    let damages: Vec<String> = report.damages.iter().map(ToString::to_string).collect();
    let unreadable: Vec<String> = report.unreadable.iter().map(ToString::to_string).collect();
    if out.json {
        say!(
            "{}",
            json!({ "clean": report.is_clean(), "damages": damages, "unreadable": unreadable, "warnings": report.warnings, "pages": report.pages, "allocated_pages": report.allocated_pages,
                "free_pages": report.free_pages, "keyspaces": report.keyspaces, "keys": report.keys })
        )?;
    } else {
        say!(
            "{} keyspaces, {} keys, {} pages read, {} allocated, {} free (unallocated space is not checked)",
            report.keyspaces,
            report.keys,
            report.pages,
            report.allocated_pages,
            report.free_pages
        )?;
        for line in damages.iter().chain(&unreadable).chain(&report.warnings) {
            say!("{line}")?;
        }
        say!(
            "{}",
            match (damages.is_empty(), unreadable.is_empty()) {
                (true, true) => "no damage found",
                (true, false) => "NOT ALL COULD BE READ",
                (false, _) => "DAMAGED",
            }
        )?;
    }
    db.close()?;
    if report.is_clean() {
        return Ok(());
    }
    let what = format!("{} damages found, {} pages could not be read", damages.len(), unreadable.len());
    Err(Failure::Found(what))
}

pub fn compact(out: Out, place: &args::Place) -> Result<(), Failure> {
    let db = open_db(&place.dir, tier::options(place)?)?;
    let page_size = db.stats().page_size as u64;
    let progress = out.progress("compacting", 0);
    let report = db.compact()?;
    progress.finish_and_clear();
    db.close()?;
    if out.json {
        say!(
            "{}",
            json!({ "bytes_before": report.pages_before * page_size, "bytes": report.pages * page_size, "pages_before": report.pages_before,
                "pages": report.pages, "moved": report.moved, "free": report.free, "values_left": report.values_left })
        )?;
        return Ok(());
    }
    say!(
        "{} before, {} now; {} pages moved",
        bytes(report.pages_before * page_size),
        bytes(report.pages * page_size),
        report.moved
    )?;
    if report.values_left > 0 {
        out.note(format!(
            "{} long values stayed where they are: too little is free before them; a larger --cache-mb needs less",
            report.values_left
        ));
    }
    Ok(())
}
