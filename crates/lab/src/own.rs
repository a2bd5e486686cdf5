//! Databases that a tool makes for itself: what it finds must be its own, or nothing.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use varve::Db;

/// Refuses a directory with files that are no database: the tool would make one among them.
pub fn refuse_files(dir: &Path, tool: &str) -> Result<(), String> {
    refuse_files_but(dir, tool, &|_| false)
}

/// The same, but for files by these names.
pub fn refuse_files_but(dir: &Path, tool: &str, but: &dyn Fn(&OsStr) -> bool) -> Result<(), String> {
    // What a failed creation leaves behind is in nobody's way, nor what a file system has in its root.
    let foreign = |name: OsString| name != "lock" && name != "lost+found" && !but(&name);
    let occupied = || std::fs::read_dir(dir).is_ok_and(|files| files.flatten().any(|file| foreign(file.file_name())));
    if varve::exists(dir) || !occupied() {
        return Ok(());
    }
    Err(format!(
        "{} has files in it that are no database: give `varve {tool}` a directory that is empty or not there",
        dir.display()
    ))
}

/// Refuses a database that has keyspaces, and none of those that the tool makes first of all.
pub fn refuse_others(db: &Db, dir: &Path, tool: &str, marks: &[&str]) -> Result<(), String> {
    let keyspaces = db.keyspaces().map_err(|e| e.to_string())?;
    if keyspaces.is_empty() || keyspaces.iter().any(|k| marks.contains(&k.name.as_str())) {
        return Ok(());
    }
    Err(format!(
        "the database in {} was not made by `varve {tool}`, which would write into it: give a directory that is empty or not there",
        dir.display()
    ))
}
