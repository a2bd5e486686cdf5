//! `backup`, `restore`, `salvage`.

use crate::args::rescue::{Backup, Restore, Salvage};
use crate::new_file::NewFile;
use crate::open;
use crate::output::{Failure, Out, Rows, about, bytes, complain, counted, say};
use crate::text;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use varve::{BackupInfo, BackupOptions, Layout, Options, Packing, RestoreOptions, SalvageReport};
use varve_rt::atomic::{AtomicU64, Ordering};

fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open_file(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if is_stream(path) {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::NoPlace(format!(
            "there is no file {}: give one that `varve backup` made, or - for standard input",
            path.display()
        )),
        _ => about(path, &e),
    })?;
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

/// A reader that counts what was read.
struct Counted {
    from: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(into)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

pub fn backup(out: Out, a: &Backup) -> Result<(), Failure> {
    let since = match &a.since {
        Some(path) => Some(BackupInfo::read(&mut open_file(path)?)?),
        None => None,
    };
    let db = open::to_write(&a.place)?;
    let bar = out.progress("pages", 1);
    let mut progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let options = BackupOptions { since, packing: Packing::Zstd(a.level), progress: Some(&mut progress) };
    let report = if is_stream(&a.file) {
        db.backup(&mut BufWriter::new(Rows), options)
    } else {
        let mut file = NewFile::create(&a.file)?;
        let report = db.backup(&mut file, options);
        if report.is_ok() {
            file.finish()?;
        }
        report
    };
    bar.finish_and_clear();
    let report = report?;
    db.close()?;
    let told = json!({ "id": report.info.name(), "incremental": report.info.base.is_some(), "pages": report.pages,
        "unchanged_pages": report.unchanged, "log_groups": report.groups, "bytes": report.bytes });
    match (out.json, is_stream(&a.file)) {
        // Standard output has the backup itself.
        (true, true) => complain(told),
        (true, false) => say!("{told}")?,
        (false, _) => out.note(format!(
            "{}: {} pages, {} of them left to the base, {} groups of the log, {}",
            a.file.display(),
            report.pages + report.unchanged,
            report.unchanged,
            report.groups,
            bytes(report.bytes)
        )),
    }
    Ok(())
}

pub fn restore(out: Out, a: &Restore) -> Result<(), Failure> {
    let named = [&a.flash.flash, &a.flash.regions, &a.log_dir].into_iter().flatten().chain(&a.files);
    open::refuse_files(&a.dir, "restore", &named.map(|path| &**path).collect::<Vec<_>>())?;
    if a.files.iter().filter(|path| **path == Path::new("-")).count() > 1 {
        return Err(Failure::Usage("standard input is one backup: give - once, and files for the others".into()));
    }
    let (files, read) = (a.files.iter().map(|path| open_file(path)), Arc::new(AtomicU64::new(0)));
    let counted = |file: Result<_, Failure>| file.map(|from| Counted { from, read: read.clone() });
    let mut files = files.map(counted).collect::<Result<Vec<_>, _>>()?;
    let mut readers: Vec<&mut dyn Read> = files.iter_mut().map(|f| f as &mut dyn Read).collect();
    let flash = crate::flash::part(&a.flash)?.map(|(part, _)| part);
    let (log_bytes, log_dir, overwrite) = (a.log_mb << 20, a.log_dir.clone(), a.overwrite);
    let layout = Layout { log_bytes, log_dir, flash, overwrite, ..Layout::default() };
    let sizes = a.files.iter().map(|path| std::fs::metadata(path).map_or(0, |m| m.len()));
    // Of a stream nobody knows.
    let all = if a.files.iter().any(|path| is_stream(path)) { 0 } else { sizes.sum::<u64>() >> 10 };
    let position = move || read.load(Ordering::Relaxed) >> 10;
    let work = || varve::restore(&a.dir, &mut readers, &RestoreOptions { layout });
    let report = out.watching("restoring: KiB read", all, position, work)?;
    if out.json {
        say!(
            "{}",
            json!({ "restored": a.dir.display().to_string(), "pages": report.pages, "log_groups": report.groups })
        )?;
    } else {
        out.note(format!("{}: {} pages, {} groups of the log redone", a.dir.display(), report.pages, report.groups));
    }
    Ok(())
}

pub fn salvage(out: Out, a: &Salvage) -> Result<(), Failure> {
    let out_path = a.out.as_deref().filter(|path| path.as_os_str() != "-");
    let mut file = out_path.map(NewFile::create).transpose()?;
    let mut stdout = BufWriter::new(Rows);
    let to: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => &mut stdout,
    };
    let progress = out.progress("rows", 0);
    let mut failed = None;
    let options = Options { flash: Some(crate::flash::driver()), ..Options::default() };
    let report = varve::salvage_with(&a.dir, options, &mut |row| {
        let mut object = Map::new();
        object.insert("keyspace".into(), Value::from(row.keyspace));
        text::put(&mut object, "key", row.key);
        text::put(&mut object, "value", row.value);
        progress.inc(1);
        writeln!(to, "{}", Value::Object(object)).map_err(|e| {
            let told = varve::Error::Invalid(format!("the rows cannot be written: {e}"));
            failed = Some(e);
            told
        })
    });
    progress.finish_and_clear();
    if let Some(e) = failed {
        return Err(match out_path {
            Some(path) => about(path, &e),
            None => e.into(),
        });
    }
    let report = report?;
    stdout.flush()?;
    file.map_or(Ok(()), NewFile::finish)?;
    tell(out, &report);
    if report.is_whole() {
        return Ok(());
    }
    Err(Failure::Found(format!(
        "{} damaged pages, {} stale ones, {} rows without their value, {} notes",
        report.damaged.len(),
        report.stale.len(),
        report.without_value.len(),
        report.notes.len()
    )))
}

/// The report goes to standard error: standard output may have the rows.
fn tell(out: Out, report: &SalvageReport) {
    let pages = |list: &[(varve::PageId, String)]| -> Vec<Value> {
        list.iter().map(|(id, why)| json!({ "page": id.0, "why": why })).collect()
    };
    let lost = || report.without_value.iter().map(|(space, key)| format!("{space}: {}", text::show(key, false)));
    if out.json {
        complain(json!({
            "page_size": report.page_size, "pages": report.pages, "rows": report.rows, "finished": report.finished,
            "damaged": pages(&report.damaged), "stale": pages(&report.stale),
            "without_value": lost().collect::<Vec<_>>(), "notes": report.notes,
        }));
        return;
    }
    for (name, rows) in &report.rows {
        out.note(format!("{name}: {}", counted(*rows, "row")));
    }
    if report.finished > 0 {
        out.note(format!("finished: {}, decided before the crash", counted(report.finished, "large commit")));
    }
    let lines = report.damaged.iter().map(|(id, why)| format!("page {id} is lost: {why}"));
    let lines = lines.chain(report.stale.iter().map(|(id, why)| format!("page {id} may be an old one: {why}")));
    let lines = lines.chain(lost().map(|row| format!("value lost: {row}"))).chain(report.notes.iter().cloned());
    // What is lost is said to whoever wants no progress bars, too.
    lines.for_each(complain);
}
