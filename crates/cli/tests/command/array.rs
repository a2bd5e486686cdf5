//! A database on an array of drives as its operator meets it: made, watched, and what a drive that is missing, swapped
//! or old means.

use crate::support::{Scratch, fails, ok};
use std::path::Path;

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

/// An emptied drive is as good as none: what the others hold is read, and saved.
#[test]
fn of_an_emptied_drive_the_others_are_read_and_saved() {
    let dir = place("emptied");
    let (db, _) = create(&dir, &["--array", "proportional", "--shares", "100,100,300"]);
    ok(&["load", &db, "--keyspace", "rows"], rows());
    ok(&["load", &db, "--keyspace", "last"], "{\"key\":\"a\",\"value\":\"1\"}\n");
    let one = file(&dir, 1);
    let len = std::fs::metadata(&one).unwrap().len();
    std::fs::write(&one, []).unwrap();
    std::fs::File::options().write(true).open(&one).unwrap().set_len(len).unwrap();
    let told = tell(&["info", &db], 3);
    assert!(told.contains("is empty") && told.contains("--without-drive"), "{told}");
    assert!(ok(&["info", &db, "--without-drive"], "").contains("rows"));
    let told = tell(&["put", &db, "last", "b", "2", "--without-drive"], 2);
    assert!(told.contains("bring the drive back"), "{told}");
    let out = dir.at("saved");
    let told = tell(&["salvage", &db, "--out", &out], 3);
    assert!(told.contains("drive 1 is missing"), "{told}");
    let saved = std::fs::read_to_string(&out).unwrap().lines().count();
    assert!(saved > 0 && saved < ROWS as usize + 1, "{saved} rows");
    // A drive that is gone is the same.
    std::fs::remove_file(&one).unwrap();
    assert!(tell(&["salvage", &db], 3).contains("drive 1 is missing"));
}

#[test]
fn what_creation_cannot_use_it_says() {
    let dir = place("refused");
    let (db, a, b) = (dir.at("db"), format!("{}:24M", dir.at("a")), format!("{}:24M", dir.at("b")));
    let refused = |args: &[&str], code| tell(&[&["create", &db], args].concat(), code);
    assert!(refused(&["--drive", &a], 2).contains("at least two drives"));
    assert!(refused(&["--drive", &a, "--drive", &a, "--extent", "2M"], 2).contains("the same drive"));
    let link = dir.at("link");
    std::os::unix::fs::symlink(dir.at("a"), &link).unwrap();
    let twice = refused(&["--drive", &a, "--drive", &format!("{link}:24M"), "--extent", "2M"], 2);
    assert!(twice.contains("the same drive"), "{twice}");
    std::fs::remove_file(link).unwrap();
    let two = ["--drive", &a, "--drive", &b];
    let with = |more: &[&'static str], code| refused(&[&two[..], more].concat(), code);
    assert!(with(&[], 2).contains("less than four extents"));
    let small = refused(&["--drive", &a, "--drive", &format!("{}:8M", dir.at("eight")), "--extent", "2M"], 2);
    assert!(small.contains("and the array's tables: give it 9437184 bytes or more"), "{small}");
    assert!(with(&["--extent", "1M"], 2).contains("2048 KiB to 65536 KiB"));
    assert!(with(&["--extent", "2M", "--unit", "4K"], 2).contains("64 KiB to 8192 KiB"));
    assert!(with(&["--extent", "3M", "--unit", "2M"], 2).contains("divides"));
    assert!(with(&["--array", "proportional"], 2).contains("varve probe"));
    assert!(with(&["--array", "proportional", "--shares", "1,2", "--unit", "1M"], 2).contains("only a stripe"));
    assert!(with(&["--shares", "1,2"], 2).contains("--array proportional"));
    assert!(refused(&["--drive", &dir.at("c"), "--drive", &b], 2).contains("how large"));
    assert!(!Path::new(&db).join("drive.0").exists(), "nothing is left of what did not come to be");
    ok(&["create", &db, "--drive", &a, "--drive", &b, "--extent", "2M"], "");
}

const CURVES: &str = "samsung-850,intel-530,ocz-vector-150";

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(&[&["--json"], args].concat(), "")).expect("one JSON object")
}

/// A database of which one keyspace is only read, with some work done on it.
fn worked(name: &str) -> (Scratch, String) {
    let dir = place(name);
    let (db, _) = create(&dir, &["--array", "rodi"]);
    ok(&["load", &db, "--keyspace", "rows", "--cache-mb", "2"], rows());
    let told = json(&["read-only", &db, "rows", "--cache-mb", "2"]);
    assert!(told["sealed_extents"].as_u64().unwrap() >= 3, "{told}");
    ok(&["scan", &db, "rows", "--count", "--cache-mb", "2"], "");
    (dir, db)
}

#[test]
fn a_plan_is_made_applied_and_kept() {
    let (dir, db) = worked("plan");
    let told = tell(&["put", &db, "rows", "row 000001", "x"], 7);
    assert!(told.contains("\"rows\" is read-only") && told.contains("--undo"), "{told}");
    let told = tell(&["array", "plan", &db], 2);
    assert!(told.contains("what drive 0") && told.contains("varve array set"), "{told}");
    let told = tell(&["array", "plan", &db, "--curves", "samsung-850"], 2);
    assert!(told.contains("one for each"), "{told}");
    let told = tell(&["array", "set", &db, "--curves", "samsung-850,intel-530,disk-7k2"], 2);
    assert!(told.contains("does not say what the drive gives"), "{told}");
    ok(&["array", "set", &db, "--curves", CURVES, "--rate", "1G", "--window", "0s"], "");
    // Opened for reading, it knows what is sealed, and what was asked of it before.
    let plan = json(&["array", "plan", &db]);
    assert!(plan["extents"]["sealed"].as_u64().unwrap() >= 3, "{plan}");
    let text = ok(&["array", "plan", &db], "");
    assert!(text.contains("drive  class") && text.contains("to move: ") && text.contains("predicted"), "{text}");
    let applied = json(&["array", "apply", &db]);
    assert_eq!(applied["done"]["given_up"], 0, "{applied}");
    whole(&db);
    ok(&["array", "pause", &db], "");
    ok(&["array", "pause", &db, "--resume"], "");
    drop(dir);
}

#[test]
fn a_trace_is_planned_without_a_database() {
    let dir = Scratch::new("trace");
    let trace = dir.at("trace");
    // MQSim's form: nanoseconds, device, first sector, sectors, whether it reads. Two extents of four are only read,
    // one is written, one is not used.
    let line = |n: u64| {
        let (extent, read) = [(0, 1), (1, 1), (3, 0)][(n % 3) as usize];
        format!("{} 0 {} 4096 {read}\n", n * 1000, (extent * (8 << 20) + n % 4 * (2 << 20)) / 512)
    };
    std::fs::write(&trace, (0..3000).map(line).collect::<String>()).unwrap();
    let args = ["array", "plan", "--drives", CURVES, "--trace", &trace];
    let plan = json(&args);
    assert_eq!(plan["extents"], serde_json::json!({ "sealed": 0, "quiet": 2, "changing": 1, "cold": 1 }), "{plan}");
    assert_eq!((&plan["layout_now"], &plan["layout"]), (&"stripe".into(), &"rodi".into()), "{plan}");
    assert!(plan["after"].as_f64() > plan["before"].as_f64(), "{plan}");
    let does = "varve create DB --array rodi --drive PATH:SIZE --drive PATH:SIZE --drive PATH:SIZE";
    assert_eq!(plan["advice"][0]["command"], does, "{plan}");
    let text = ok(&args, "");
    assert!(text.contains("2 extents are only read") && text.contains(does), "{text}");
    let smaller = ok(&[&args[..], &["--extent", "4M"]].concat(), "");
    assert!(smaller.contains("--extent 4M --drive"), "{smaller}");
    std::fs::write(dir.at("keys"), "1\n2\n3\n").unwrap();
    let told = tell(&["array", "plan", "--drives", CURVES, "--trace", &dir.at("keys")], 2);
    assert!(told.contains("no requests to a block device"), "{told}");
}

#[test]
fn drives_are_added_drained_and_replaced() {
    let dir = place("days");
    let (db, _) = create(&dir, &[]);
    ok(&["load", &db, "--keyspace", "rows"], rows());
    ok(&["array", "set", &db, "--rate", "1G"], "");
    let new = format!("{}:64M", dir.at("new"));
    assert_eq!(json(&["array", "add", &db, &new])["added"], 3);
    for overwrite in [&[][..], &["--overwrite"]] {
        let told = tell(&[&["array", "add", &db, &dir.at("new")], overwrite].concat(), 2);
        assert!(told.contains("is drive 3 of the array already"), "{told}");
    }
    let other = dir.file("other", "rows of somebody else");
    let told = tell(&["array", "add", &db, &other], 1);
    assert!(told.contains("holds something"), "{told}");
    let told = tell(&["array", "add", &db, &format!("{}:3M", dir.at("small"))], 2);
    assert!(told.contains("less than four extents"), "{told}");
    let told = tell(&["array", "drain", &db, "9"], 2);
    assert!(told.contains("no drive 9"), "{told}");
    assert_eq!(json(&["array", "drain", &db, "1"])["drained"], 1);
    assert!(Path::new(&db).join("drive.1").symlink_metadata().is_err());
    whole(&db);
    // The number of the new drive would be that of the one that went.
    let by = format!("{}:64M", dir.at("by"));
    let told = tell(&["array", "replace", &db, "1", &by], 2);
    assert!(told.contains("no drive 1"), "{told}");
    let replaced = json(&["array", "replace", &db, "0", &by]);
    assert_eq!(replaced["by"], 1, "the vacant place is taken");
    whole(&db);
    std::fs::remove_file(file(&dir, 0)).unwrap();
    std::fs::remove_file(file(&dir, 1)).unwrap();
    whole(&db);
    let stat = stat(&db);
    let numbers: Vec<u64> = stat["drives"].as_array().unwrap().iter().map(|d| d["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_drive_is_not_replaced_by_one_that_is_too_small_for_it() {
    let dir = place("small");
    let (db, _) = create(&dir, &[]);
    ["rows", "more", "again", "last"].iter().for_each(|name| drop(ok(&["load", &db, "--keyspace", name], rows())));
    let extents = stat(&db)["drives"][2]["extents"].as_u64().unwrap();
    assert!(extents > 4, "{extents}");
    let small = format!("{}:9M", dir.at("small"));
    let told = tell(&["array", "replace", &db, "2", &small], 2);
    let missing = (extents - 4) * (2 << 20);
    assert!(told.contains(&format!("{extents} extents of 2097152 bytes lie on drive 2, and there is room for 4")));
    assert!(told.contains(&format!("{missing} bytes are missing")), "{told}");
    let now = stat(&db);
    assert!(now["drives"].as_array().unwrap().len() == 3 && now["drives"][2]["extents"] == extents, "{now}");
    assert!(Path::new(&db).join("drive.3").symlink_metadata().is_err(), "the one that came has gone again");
    whole(&db);
    // With what is missing it goes.
    let enough = format!("{}:{}M", dir.at("enough"), 1 + 2 * extents);
    assert_eq!(json(&["array", "replace", &db, "2", &enough])["by"], 3);
    whole(&db);
}

#[test]
fn with_a_drive_missing_the_rest_can_be_read() {
    let dir = place("rest");
    let (db, _) = create(&dir, &["--array", "proportional", "--shares", "1,1,1"]);
    ok(&["put", &db, "small", "a", "b"], "");
    ok(&["load", &db, "--keyspace", "rows"], rows());
    // The first extent, with the catalog, is on drive 0.
    let (gone, aside) = (file(&dir, 1), dir.at("aside"));
    std::fs::rename(&gone, &aside).unwrap();
    let told = tell(&["info", &db], 1);
    assert!(told.contains("drive.1") && told.contains("keyspaces with pages on it: rows; whole: small"), "{told}");
    assert!(told.contains("--without-drive"), "{told}");
    assert_eq!(ok(&["get", &db, "small", "a", "--without-drive"], ""), "b\n");
    let told = tell(&["scan", &db, "rows", "--count", "--without-drive"], 1);
    assert!(told.contains("drive 1 of the array, which is missing"), "{told}");
    let told = tell(&["put", &db, "small", "a", "c", "--without-drive"], 2);
    assert!(told.contains("only read") && told.contains("bring the drive back"), "{told}");
    std::fs::rename(&aside, &gone).unwrap();
    whole(&db);
}

/// SIGKILL in the middle of moves: nothing is lost, and the same command goes on.
#[test]
fn a_kill_in_the_middle_of_moves_loses_nothing() {
    let dir = place("kill");
    let (db, _) = create(&dir, &[]);
    ok(&["load", &db, "--keyspace", "rows"], rows());
    ok(&["array", "set", &db, "--rate", "20M"], "");
    for round in 0..6u64 {
        let new = format!("{}:64M", dir.at(&format!("new{round}")));
        let number = json(&["array", "add", &db, &new])["added"].as_u64().unwrap();
        let now = stat(&db);
        let numbers = now["drives"].as_array().unwrap().iter().map(|d| d["number"].as_u64().unwrap());
        let goes = numbers.filter(|n| *n != number).min().unwrap().to_string();
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_varve"))
            .args(["array", "drain", &db, &goes])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        varve_rt::sleep(std::time::Duration::from_millis(90 + 130 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        whole(&db);
        if stat(&db)["drives"].as_array().unwrap().iter().any(|d| d["number"].as_u64().unwrap().to_string() == goes) {
            ok(&["array", "set", &db, "--rate", "1G"], "");
            ok(&["array", "drain", &db, &goes], "");
            ok(&["array", "set", &db, "--rate", "20M"], "");
        }
        whole(&db);
    }
}
