//! Creating in directories, with other processes: killed at any moment, and pipes in the place of files. Apart from
//! other tests, since a process that is started inherits what is open for a moment.

mod directories;

use directories::{Dir, create, layout, options, sound};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use varve::array::Layout as ArrayLayout;
use varve::{BackupOptions, Db, DriveLayout, DrivePart, Layout, Options, RestoreOptions};

#[test]
fn what_is_neither_file_nor_block_device_is_refused_at_once() {
    let dir = Dir::new("kills-fifo");
    for part in ["log", "data", "lock"] {
        let whole = dir.join(part);
        create(&whole).unwrap();
        std::fs::remove_file(whole.join(part)).unwrap();
        assert!(Command::new("mkfifo").arg(whole.join(part)).status().unwrap().success());
        for read_only in [false, true] {
            let opened = Db::open(&whole, Options { read_only, ..options() });
            assert!(opened.is_err() || part == "lock");
        }
        assert!(create(&whole).is_err());
    }
}

/// In a process of its own, which is killed: creates, or restores.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("VARVE_TEST_CREATE") else { return };
    let dir = PathBuf::from(dir);
    if let Some(drives) = std::env::var_os("VARVE_TEST_DRIVES") {
        drop(Db::create(&dir, &on_drives(&PathBuf::from(drives)), options()).unwrap());
        return;
    }
    match std::env::var_os("VARVE_TEST_BACKUP") {
        None => drop(Db::open_or_create(&dir, options()).unwrap()),
        Some(backup) => {
            let mut file = std::fs::File::open(backup).unwrap();
            varve::restore(&dir, &mut [&mut file], &RestoreOptions { layout: layout() }).unwrap();
        }
    }
}

/// A layout on two files elsewhere.
fn on_drives(place: &Path) -> Layout {
    let drive = |name| DrivePart { path: place.join(name), bytes: 64 << 20 };
    let drives = vec![drive("one"), drive("two")];
    let array = DriveLayout { drives, extent: 4 << 20, layout: ArrayLayout::Stripe { unit: 1 << 20 } };
    Layout { array: Some(array), ..layout() }
}

fn has_files(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(0, |files| files.count()) > 0
}

/// A process that makes a database, killed a while after it has begun.
fn killed(child: &mut Command, made: &Path, begun: impl Fn() -> bool, micros: u64) {
    child.args(["--exact", "child"]).env("VARVE_TEST_CREATE", made).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    while !begun() && child.try_wait().unwrap().is_none() {
        varve_rt::yield_now();
    }
    varve_rt::sleep(Duration::from_micros(micros));
    let _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn an_array_is_made_again_after_a_kill_at_any_moment() {
    let dir = Dir::new("kills-array");
    let mut left = 0;
    for round in 0..24u64 {
        let (made, drives) = (dir.join(&format!("made {round}")), dir.join(&format!("drives {round}")));
        std::fs::create_dir(&drives).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        // It may take long until it comes to the second drive: where space cannot be reserved, zeros are written.
        let begun = || if round % 2 == 0 { has_files(&made) } else { drives.join("two").exists() };
        killed(child.env("VARVE_TEST_DRIVES", &drives), &made, begun, round * round * 60);
        if !varve::exists(&made) {
            left += u32::from(drives.join("two").exists());
            let db = Db::create(&made, &on_drives(&drives), options()).unwrap_or_else(|e| panic!("round {round}: {e}"));
            db.close().unwrap();
        }
        let db = Db::open(&made, options()).unwrap();
        assert!(db.check().unwrap().is_clean());
        db.close().unwrap();
    }
    assert!(left > 3, "only {left} creations were cut short with something on the drives");
}

#[test]
fn one_command_goes_on_after_a_kill_at_any_moment() {
    let dir = Dir::new("kills-killed");
    let (whole, backup) = (dir.join("whole"), dir.join("backup"));
    create(&whole).unwrap();
    let db = Db::open(&whole, options()).unwrap();
    db.backup(&mut std::fs::File::create(&backup).unwrap(), BackupOptions::default()).unwrap();
    db.close().unwrap();
    let mut left = 0;
    for round in 0..24u64 {
        let made = dir.join(&format!("made {round}"));
        let mut child = Command::new(std::env::current_exe().unwrap());
        if round % 2 == 1 {
            child.env("VARVE_TEST_BACKUP", &backup);
        }
        killed(&mut child, &made, || has_files(&made), round * round * 40);
        left += u32::from(!varve::exists(&made));
        if round % 2 == 1 && !varve::exists(&made) {
            let mut file = std::fs::File::open(&backup).unwrap();
            varve::restore(&made, &mut [&mut file], &RestoreOptions { layout: layout() }).unwrap();
            sound(&made);
        }
        let db = Db::open_or_create(&made, options()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(db.check().unwrap().is_clean());
        db.close().unwrap();
    }
    assert!(left > 3, "only {left} creations were cut short");
}
