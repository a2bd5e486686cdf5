//! A database on an array of drives as its operator meets it: made, watched, and what a drive that is missing, swapped
//! or old means.

mod support;

use std::path::Path;
use support::{Scratch, fails, ok};

const ROWS: u32 = 20_000;

fn rows() -> Vec<u8> {
    let row = |i| format!("{{\"key\":\"row {i:06}\",\"value\":\"{i:0400}\"}}\n");
    (0..ROWS).map(row).collect::<String>().into_bytes()
}

/// Folders for three drives.
fn place(name: &str) -> Scratch {
    let dir = Scratch::new(name);
    (0..3).for_each(|i| std::fs::create_dir_all(dir.path().join(format!("d{i}"))).unwrap());
    dir
}

fn create(dir: &Scratch, more: &[&str]) -> (String, String) {
    let db = dir.at("db");
    let drives: Vec<String> = (0..3).map(|i| format!("{}:{}M", dir.at(&format!("d{i}")), 24 + 8 * i)).collect();
    let mut args = vec!["create", &db, "--extent", "2M"];
    drives.iter().for_each(|drive| args.extend(["--drive", drive.as_str()]));
    args.extend(more);
    let told = ok(&args, "");
    (db, told)
}

/// What a command says when it fails with this exit status.
fn tell(args: &[&str], code: i32) -> String {
    fails(args, "", code)
}

fn file(dir: &Scratch, drive: usize) -> String {
    dir.at(&format!("d{drive}/db.drive.{drive}"))
}

fn stat(db: &str) -> serde_json::Value {
    serde_json::from_str(&ok(&["--json", "array", "stat", db], "")).expect("one JSON object")
}

fn whole(db: &str) {
    assert_eq!(ok(&["scan", db, "rows", "--count", "--cache-mb", "2"], ""), format!("{ROWS}\n"));
    assert!(ok(&["check", db], "").contains("no damage found"));
}

#[test]
fn pages_lie_on_all_drives_and_are_found_again() {
    for (name, more, layout) in [
        ("stripe", &["--unit", "256K"][..], "stripe"),
        ("shares", &["--array", "proportional", "--shares", "100,100,300"], "proportional"),
        ("tier", &["--fast", "FAST:4M", "--manager", "cac"], "stripe"),
    ] {
        let dir = place(name);
        let fast = format!("{}:4M", dir.at("fast"));
        let more: Vec<&str> = more.iter().map(|arg| if *arg == "FAST:4M" { fast.as_str() } else { arg }).collect();
        let (db, _) = create(&dir, &more);
        ok(&["load", &db, "--keyspace", "rows", "--cache-mb", "2"], rows());
        whole(&db);
        let stat = stat(&db);
        assert!(stat["layout"] == layout && stat["extent"] == 2 << 20, "{stat}");
        let used: Vec<u64> = (0..3).map(|i| stat["drives"][i]["extents"].as_u64().unwrap()).collect();
        assert!(used.iter().all(|n| *n > 0) && used.iter().sum::<u64>() * (2 << 20) >= stat["bytes"].as_u64().unwrap());
        assert!(layout == "stripe" || used[2] > used[0] + used[1] - 2, "by their shares: {used:?}");
        // Away in a backup, and back on one device.
        let (backup, back) = (dir.at("backup"), dir.at("back"));
        ok(&["backup", &db, &backup], "");
        ok(&["restore", &back, &backup], "");
        whole(&back);
        let text = ok(&["array", "stat", &db], "");
        assert!(text.contains("drive 2") && text.contains(layout), "{text}");
        assert!(tell(&["array", "stat", &back], 1).contains("varve create DB --drive"));
    }
}

#[test]
fn a_drive_that_is_not_there_or_not_what_it_was_is_named() {
    let dir = place("drives");
    let (db, _) = create(&dir, &[]);
    ok(&["load", &db, "--keyspace", "rows"], rows());
    let (one, aside, old) = (file(&dir, 1), dir.at("aside"), dir.at("old"));
    std::fs::copy(&one, &old).unwrap();
    std::fs::rename(&one, &aside).unwrap();
    let told = tell(&["check", &db], 1);
    assert!(told.contains("drive.1") && told.contains("missing") && told.contains("bring it back"), "{told}");
    std::fs::copy(file(&dir, 2), &one).unwrap();
    let told = tell(&["check", &db], 3);
    assert!(told.contains("is drive 2 of the array"), "{told}");
    std::fs::rename(&aside, &one).unwrap();
    ok(&["put", &db, "rows", "new", "row"], "");
    std::fs::copy(&old, &one).unwrap();
    let told = tell(&["check", &db], 3);
    assert!(told.contains("drive.1") && told.contains("is older"), "{told}");
    // A database is never made over drives that are in use.
    let told = tell(&["create", &dir.at("other"), "--drive", &one, "--drive", &format!("{}:24M", dir.at("d0"))], 1);
    assert!(told.contains("holds something"), "{told}");
    assert!(!Path::new(&dir.at("other")).join("log").exists());
}

#[test]
fn what_creation_cannot_use_it_says() {
    let dir = place("refused");
    let (db, a, b) = (dir.at("db"), format!("{}:24M", dir.at("a")), format!("{}:24M", dir.at("b")));
    let refused = |args: &[&str], code| tell(&[&["create", &db], args].concat(), code);
    assert!(refused(&["--drive", &a], 1).contains("at least two drives"));
    assert!(refused(&["--drive", &a, "--drive", &a, "--extent", "2M"], 1).contains("the same drive"));
    let link = dir.at("link");
    std::os::unix::fs::symlink(dir.at("a"), &link).unwrap();
    let twice = refused(&["--drive", &a, "--drive", &format!("{link}:24M"), "--extent", "2M"], 1);
    assert!(twice.contains("the same drive"), "{twice}");
    std::fs::remove_file(link).unwrap();
    let two = ["--drive", &a, "--drive", &b];
    let with = |more: &[&'static str], code| refused(&[&two[..], more].concat(), code);
    assert!(with(&[], 1).contains("less than four extents"));
    assert!(with(&["--extent", "1M"], 1).contains("2048 KiB to 65536 KiB"));
    assert!(with(&["--extent", "2M", "--unit", "4K"], 1).contains("64 KiB to 8192 KiB"));
    assert!(with(&["--extent", "3M", "--unit", "2M"], 1).contains("divides"));
    assert!(with(&["--array", "proportional"], 2).contains("varve probe"));
    assert!(with(&["--array", "proportional", "--shares", "1,2", "--unit", "1M"], 2).contains("only a stripe"));
    assert!(with(&["--shares", "1,2"], 2).contains("--array proportional"));
    assert!(refused(&["--drive", &dir.at("c"), "--drive", &b], 2).contains("how large"));
    assert!(!Path::new(&db).join("drive.0").exists(), "nothing is left of what did not come to be");
    ok(&["create", &db, "--drive", &a, "--drive", &b, "--extent", "2M"], "");
}
