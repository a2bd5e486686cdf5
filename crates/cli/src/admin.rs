//! Commands on the database as a whole: create, info, check, compact.

use crate::args;
use crate::args::keyspaces::kind_text;
use crate::open::{self, to_look, to_write};
use crate::output::{Failure, Out, Stdout, bytes, counted, say, table};
use crate::text;
use serde_json::json;
use std::ops::Bound;
use varve::{KeyspaceKind, Options, Stats};

/// A keyspace's name and kind, as `create --keyspace` takes them.
fn keyspace(text: &str) -> Result<(&str, KeyspaceKind), Failure> {
    let Some((name, kind)) = text.split_once('=') else { return Ok((text, KeyspaceKind::Tree)) };
    let kind = args::keyspaces::kind(kind).map_err(|e| Failure::Usage(format!("--keyspace {text}: {e}")))?;
    Ok((name, kind))
}

/// What would fail once the database is there: a keyspace that it cannot have.
fn check_keyspaces(a: &args::Create, keyspaces: &[(&str, KeyspaceKind)]) -> Result<(), Failure> {
    let remote = a.layout.devices.data.as_deref().is_some_and(|data| data.starts_with("remote:"));
    for (i, (name, kind)) in keyspaces.iter().enumerate() {
        varve::check_keyspace_name(name).map_err(|e| Failure::Usage(e.to_string()))?;
        if keyspaces[..i].iter().any(|(other, _)| other == name) {
            return Err(Failure::Usage(format!("--keyspace {name} is there twice")));
        }
        if let Some(merge) = kind.merges_near().filter(|_| !remote) {
            return Err(Failure::Usage(format!(
                "--keyspace {name}: merge={} needs a worker near the data: --data remote:HOST:PORT (docs/near.md); \
                 without one choose sequential or pcp",
                merge.name()
            )));
        }
    }
    Ok(())
}

pub fn create(out: Out, a: &args::Create) -> Result<(), Failure> {
    let options = Options { detect_lost_writes: a.detect_lost_writes.then_some(true), ..Options::default() };
    let keyspaces = a.keyspaces.iter().map(|text| keyspace(text)).collect::<Result<Vec<_>, _>>()?;
    check_keyspaces(a, &keyspaces)?;
    open::refuse_files(&a.dir, "create", &open::named(&a.layout))?;
    let db = open::create(&a.dir, &a.layout, &a.tier, options)?;
    for (name, kind) in &keyspaces {
        db.create_keyspace_of(name, *kind)?;
    }
    db.close()?;
    if out.json {
        say!(
            "{}",
            json!({ "created": a.dir.display().to_string(),
                "keyspaces": keyspaces.iter().map(|k| k.0).collect::<Vec<_>>() })
        )?;
    } else {
        out.note(format!("created {}", a.dir.display()));
        if let drives @ 2.. = a.layout.array.drives.len() {
            out.note(format!(
                "every drive is needed and nothing is kept twice: on {drives} drives it is {drives} times as likely to be \
                 lost as on one; make backups"
            ));
        }
    }
    Ok(())
}

/// What the pages lie on, in words.
fn volume(stats: &Stats) -> String {
    match (&stats.tier, &stats.array) {
        (Some(tier), _) => {
            let state = match (tier.failed, tier.attached) {
                (true, _) => ", failed",
                (false, false) => ", detached",
                (false, true) => "",
            };
            let fast = tier.slots * stats.page_size as u64;
            format!("tier ({}): a fast device with room for {} over a slow one{state}", tier.manager, bytes(fast))
        }
        (None, Some(array)) => {
            let drives = array.drives.len();
            format!("array ({}): {drives} drives, {}", array.layout, bytes(array.drives.iter().map(|d| d.bytes).sum()))
        }
        (None, None) if !stats.regions.is_empty() => {
            format!("native flash: {}", counted(stats.regions.len() as u64, "region"))
        }
        (None, None) => "one device".to_string(),
    }
}

pub fn info(out: Out, place: &args::Place) -> Result<(), Failure> {
    let db = to_look(out, place)?;
    let keyspaces = db.keyspaces()?;
    let stats = db.stats();
    if out.json {
        let alone = |name: &str| stats.lsm.iter().any(|s| s.name == name && s.without_worker.is_some());
        let one = |k: &varve::KeyspaceInfo| {
            json!({ "name": k.name, "id": k.id.0, "root": k.root.0, "kind": kind_text(k.kind),
                "without_worker": alone(&k.name) })
        };
        let list: Vec<_> = keyspaces.iter().map(one).collect();
        say!(
            "{}",
            json!({ "dir": place.dir.display().to_string(), "page_size": stats.page_size, "pages": stats.pages,
                "free_pages": stats.free_pages, "log_bytes": stats.log.capacity,
                "detect_lost_writes": stats.lost_writes.is_some(), "volume": volume(&stats),
                "keyspaces": list })
        )?;
    } else {
        let rows = [
            ("volume".to_string(), volume(&stats)),
            ("page size".to_string(), bytes(stats.page_size as u64)),
            (
                "pages".to_string(),
                format!("{} ({} free), {}", stats.pages, stats.free_pages, bytes(stats.pages * stats.page_size as u64)),
            ),
            ("log".to_string(), bytes(stats.log.capacity)),
            ("lost writes".to_string(), (if stats.lost_writes.is_some() { "detected" } else { "not detected" }).into()),
            ("keyspaces".to_string(), keyspaces.len().to_string()),
        ];
        let mut stdout = Stdout;
        table(&mut stdout, &rows)?;
        table(
            &mut stdout,
            &keyspaces
                .iter()
                .map(|k| (format!("  {}", k.name), format!("id {}, {}", k.id.0, kind_text(k.kind))))
                .collect::<Vec<_>>(),
        )?;
        for of in &stats.lsm {
            let stored: u64 = of.levels.iter().map(|level| level.bytes).sum();
            say!("  {} has {} levels, {}: `varve keyspace info`", of.name, of.levels.len(), bytes(stored))?;
        }
    }
    // Only the catalog was read: what else is gone shows by the length.
    let whole = db.check_length();
    db.close()?;
    Ok(whole?)
}

/// Damage because of which there is no check: who reads it has run the check.
fn found(failure: Failure) -> Failure {
    match failure {
        Failure::Engine(varve::Error::Corrupt(damage)) => Failure::Found(format!(
            "corruption: {damage}; the rest cannot be checked: restore a backup, or save the rows with `varve salvage`"
        )),
        other => other,
    }
}

pub fn check(out: Out, place: &args::Place) -> Result<(), Failure> {
    let db = to_look(out, place).map_err(found)?;
    let stats = db.stats();
    let (watched, page_size) = (db.clone(), stats.page_size.max(1) as u64);
    let pages_read = move || watched.stats().data_device.read.bytes / page_size;
    let report = out.watching("pages read", stats.pages - stats.free_pages, pages_read, || db.check());
    let report = report.map_err(|e| found(e.into()))?;
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
            "{}, {}, {} read, {} allocated, {} free (unallocated space is not checked)",
            counted(report.keyspaces, "keyspace"),
            counted(report.keys, "key"),
            counted(report.pages, "page"),
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
    let (found, lost) = (counted(damages.len() as u64, "damage"), counted(unreadable.len() as u64, "page"));
    let what = format!("{found} found, {lost} could not be read");
    Err(Failure::Found(what))
}

pub fn compact(out: Out, a: &args::keyspaces::Compact) -> Result<(), Failure> {
    let db = to_write(&a.place)?;
    if let Some(name) = &a.keyspace {
        let result = merge_down(out, &db, name, a);
        db.close()?;
        return result;
    }
    let page_size = db.stats().page_size as u64;
    let watched = db.clone();
    let pages_written = move || watched.stats().data_device.write.bytes / page_size.max(1);
    let report = out.watching("compacting: pages written", 0, pages_written, || db.compact())?;
    db.close()?;
    if out.json {
        say!(
            "{}",
            json!({ "bytes_before": report.pages_before * page_size, "bytes": report.pages * page_size, "pages_before": report.pages_before,
                "pages": report.pages, "merged": report.merged, "moved": report.moved, "free": report.free,
                "values_left": report.values_left })
        )?;
        return Ok(());
    }
    say!(
        "{} before, {} now; {} pages merged, {} moved",
        bytes(report.pages_before * page_size),
        bytes(report.pages * page_size),
        report.merged,
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

/// Merges the levels of an LSM keyspace.
fn merge_down(out: Out, db: &varve::Db, name: &str, a: &args::keyspaces::Compact) -> Result<(), Failure> {
    let bound = |s: &Option<String>| s.as_deref().map(|s| text::parse(s, a.hex.hex)).transpose();
    let (from, to) = (bound(&a.from)?, bound(&a.to)?);
    let range = (
        from.as_deref().map_or(Bound::Unbounded, Bound::Included),
        to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    );
    let keyspace = db.keyspace(name)?;
    if db.keyspaces()?.iter().any(|k| k.name == name && matches!(k.kind, KeyspaceKind::Tree)) {
        return Err(Failure::Usage(format!(
            "keyspace {name:?} is a tree, which has no levels to merge: `varve compact` without --keyspace gives its \
             space back"
        )));
    }
    let levels = |db: &varve::Db| db.stats().lsm.into_iter().find(|s| s.name == name);
    let before = levels(db);
    let progress = out.progress("merging", 0);
    keyspace.compact(a.level, range)?;
    progress.finish_and_clear();
    drop(keyspace);
    let stored = |s: &Option<varve::LsmStats>| s.iter().flat_map(|s| &s.levels).map(|l| l.bytes).sum::<u64>();
    let after = levels(db);
    if out.json {
        say!("{}", json!({ "keyspace": name, "bytes_before": stored(&before), "bytes": stored(&after) }))?;
    } else {
        say!("{} before, {} now", bytes(stored(&before)), bytes(stored(&after)))?;
    }
    Ok(())
}
