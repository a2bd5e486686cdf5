//! Backup, restoration and salvage as their users meet them.

use crate::support::{Scratch, bytes, fails, ok, varve};
use std::path::Path;

fn rows(n: u32) -> Vec<u8> {
    (0..n).map(|i| format!("{{\"key\":\"row {i:06}\",\"value\":\"{}\"}}\n", i * i)).collect::<String>().into_bytes()
}

#[test]
fn a_backup_and_what_changed_since_become_a_database() {
    let place = Scratch::new("backup");
    let (db, whole, later, copy) = (place.at("db"), place.at("whole"), place.at("later"), place.at("copy"));
    ok(&["load", &db, "--create", "--keyspace", "numbers"], rows(5000));
    let told = ok(&["--json", "backup", &db, &whole], "");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["pages"].as_u64().unwrap() > 10 && told["incremental"] == false, "{told}");
    ok(&["put", &db, "numbers", "row 000007", "changed"], "");
    let told = ok(&["--json", "backup", &db, &later, "--since", &whole], "");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["pages"].as_u64().unwrap() < 5 && told["incremental"] == true, "{told}");

    ok(&["restore", &copy, &whole, &later], "");
    assert_eq!(ok(&["dump", &copy], ""), ok(&["dump", &db], ""));
    assert!(ok(&["check", &copy], "").contains("no damage found"));
    assert!(fails(&["restore", &copy, &whole], "", 6).contains("already holds a database"));
    assert!(fails(&["restore", &place.at("x"), &later], "", 1).contains("begin with the whole backup"));
    assert!(fails(&["backup", &db, &whole], "", 6).contains("exists"));
    assert!(fails(&["backup", &db, &place.at("y"), "--since", &place.at("db/lock")], "", 1).contains("backup"));

    // Through a pipe.
    let piped = bytes(&["backup", &db, "-"], "");
    ok(&["restore", &place.at("piped"), "-"], &piped);
    assert_eq!(ok(&["dump", &place.at("piped")], ""), ok(&["dump", &db], ""));
    // A backup that was cut short leaves no database, and no database is called one.
    let cut = varve(&["restore", &place.at("cut"), "-"], &piped[..piped.len() - 10]);
    assert_eq!(cut.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("cut short"));
    assert!(fails(&["get", &place.at("cut"), "numbers", "row 000007"], "", 4).contains("no database"));
}

#[test]
fn salvage_brings_back_what_is_not_damaged() {
    let place = Scratch::new("salvage");
    let (db, out, again) = (place.at("db"), place.at("rows"), place.at("again"));
    ok(&["load", &db, "--create", "--keyspace", "numbers"], rows(5000));
    assert_eq!(ok(&["salvage", &db], "").lines().count(), 5000);
    // The root of the catalog and one page in the middle: the database does not open any more.
    let data = std::path::Path::new(&db).join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let middle = bytes.windows(6).position(|w| w == b"002500").map_or(9 * 8192, |at| at / 8192 * 8192);
    bytes[8192 + 100] ^= 1;
    bytes[middle + 50] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    assert!(fails(&["get", &db, "numbers", "row 000007"], "", 3).contains("salvage"));
    let told = fails(&["salvage", &db, "--out", &out], "", 3);
    assert!(told.contains("is lost") && told.contains("the catalog is damaged"), "{told}");
    let found = std::fs::read(&out).unwrap();
    ok(&["load", &again, "--create"], &found);
    let count = ok(&["scan", &again, "keyspace-1", "--count"], "");
    let count: u32 = count.trim().parse().unwrap();
    assert!((4000..5000).contains(&count), "{count} rows");
    assert!(fails(&["salvage", &place.at("nothing")], "", 4).contains("no database"));
}

/// What is in the log is lost with it; the pages are there.
/// What rows do not say is said.
#[test]
fn a_dump_tells_what_it_leaves_out() {
    let place = Scratch::new("left-out");
    let (db, copy) = (place.at("db"), place.at("copy"));
    ok(&["create", &db, "--keyspace", "t", "--keyspace", "l=lsm,compression=zstd", "--keyspace", "empty"], "");
    ok(&["put", &db, "l", "k", "v"], "");
    ok(&["put", &db, "t", "k", "v"], "");
    ok(&["read-only", &db, "t"], "");
    let out = varve(&["dump", &db], "");
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    for line in ["l is lsm,compression=zstd", "empty, which is empty", "t is read-only"] {
        assert!(told.contains(&format!("not in the dump: {line}")), "{line}: {told}");
    }
    // The commands that it tells.
    ok(&["create", &copy], "");
    let command = told.lines().find_map(|line| line.split_once("varve keyspace create DB ")).expect("a command").1;
    ok(&[&["keyspace", "create", &copy], &command.split(' ').collect::<Vec<_>>()[..]].concat(), "");
    ok(&["load", &copy], out.stdout);
    assert!(ok(&["keyspace", "info", &copy, "l"], "").contains("lsm,compression=zstd"));
    assert_eq!(ok(&["salvage", &copy, "--out", "-"], "").lines().count(), 2);
}

#[test]
fn salvage_needs_neither_log_nor_lock() {
    let place = Scratch::new("salvage-bare");
    let db = place.at("db");
    ok(&["load", &db, "--keyspace", "numbers", "--create"], rows(5000));
    for file in ["log", "lock"] {
        std::fs::remove_file(format!("{db}/{file}")).expect("was there");
    }
    let out = place.at("rows");
    fails(&["salvage", &db, "--out", &out], "", 3);
    assert_eq!(std::fs::read_to_string(&out).expect("rows").lines().count(), 5000);
    let bare = place.at("bare");
    std::fs::create_dir(&bare).expect("a directory");
    fails(&["salvage", &bare], "", 4);
    assert_eq!(std::fs::read_dir(&bare).expect("there").count(), 0, "nothing is made where there is no database");
    assert!(fails(&["restore", &place.at("new"), "-", "-"], "", 2).contains("standard input is one backup"));
    assert!(fails(&["array", "pause", &db], "", 4).contains("no database"));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let place = Scratch::new("manual");
    let script = ok(&["completions", "bash"], "");
    let dir = place.at("man");
    ok(&["man", &dir], "");
    for command in ["create", "load", "backup", "restore", "salvage", "bench", "lab"] {
        assert!(script.contains(command), "{command} is not completed");
        assert!(std::path::Path::new(&dir).join(format!("varve-{command}.1")).exists(), "no page of {command}");
    }
}

/// What a file that was cut short held is missed, and said to be.
#[test]
fn salvage_of_data_that_was_cut_short_says_what_is_lost() {
    let place = Scratch::new("cut");
    let dir = place.at("db");
    ok(&["create", &dir], "");
    let rows: String = (0..20_000).map(|n| format!("{{\"key\":\"k{n:06}\",\"value\":\"{n:060}\"}}\n")).collect();
    ok(&["load", &dir], rows);
    let data = std::fs::OpenOptions::new().write(true).open(place.path().join("db/data")).expect("a file");
    data.set_len(20 * 16384).expect("it can be cut");
    let said = fails(&["salvage", &dir], "", 3);
    assert!(said.contains("the data ends at page"), "{said}");
    // The check names the pages as damaged, with the cause.
    let said = String::from_utf8(varve(&["check", &dir], "").stdout).expect("text");
    assert!(said.contains("the data was cut: it ends after") && !said.contains("grow"), "{said}");
    assert!(!said.contains("could not be read"), "{said}");
    let said = fails(&["restore", &place.at("q"), &place.at("nofile")], "", 4);
    assert!(said.contains("nofile") && said.contains("varve backup"), "{said}");
}

/// Two commands that write a backup of the same name: one does, the other is refused, whichever databases they are of.
#[test]
fn a_log_that_was_cut_short_is_damage() {
    let place = Scratch::new("cut-log");
    let db = place.at("db");
    ok(&["load", &db, "--create", "--keyspace", "numbers"], rows(5000));
    let log = Path::new(&db).join("log");
    let whole = std::fs::read(&log).unwrap();
    for length in [0, 4096, 8192, 100_000, whole.len() / 2, whole.len() - 4096] {
        std::fs::write(&log, &whole[..length]).unwrap();
        for command in ["check", "info"] {
            let told = fails(&[command, &db], "", 3);
            let says = told.contains("truncated") || told.contains("emptied or cut");
            assert!(says && told.contains("salvage"), "{command} with {length} bytes left: {told}");
        }
        // It was closed cleanly, so `data` has it all.
        let out = varve(&["salvage", &db], "");
        assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 5000, "{out:?}");
    }
    std::fs::write(&log, whole).unwrap();
    assert!(ok(&["check", &db], "").contains("no damage found"));
}

/// The log says how large pages are; where it is another's, the pages say so themselves.
#[test]
fn salvage_does_not_believe_the_log_of_another_database() {
    let place = Scratch::new("foreign-log");
    let (db, other) = (place.at("db"), place.at("other"));
    for (dir, size) in [(&db, "8192"), (&other, "16384")] {
        ok(&["create", dir, "--page-size", size], "");
        ok(&["load", dir, "--keyspace", "numbers"], rows(5000));
    }
    std::fs::copy(Path::new(&other).join("log"), Path::new(&db).join("log")).unwrap();
    let out = varve(&["salvage", &db], "");
    assert_eq!(out.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&out.stderr).contains("the log is of another database"), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 5000);
}

#[test]
fn a_backup_that_is_being_written_is_not_written_by_another_command() {
    let place = Scratch::new("two-writers");
    let (dir, file) = (place.at("db"), place.at("backup"));
    ok(&["load", &dir, "--create", "--format", "csv"], "a,1\n");
    let partial = place.file("backup.partial", "what a killed command left, longer than the whole backup ".repeat(100));
    let writer = std::fs::File::open(&partial).expect("it is there");
    writer.lock().expect("as another process has it");
    let said = fails(&["backup", &dir, &file], "", 5);
    assert!(said.contains("another process is writing") && !Path::new(&file).exists(), "{said}");
    assert!(std::fs::metadata(&partial).expect("it is there").len() > 5000, "nobody touched it");
    drop(writer);
    ok(&["backup", &dir, &file], "");
    ok(&["restore", &place.at("again"), &file], "");
    assert_eq!(ok(&["get", &place.at("again"), "default", "a"], "").trim(), "1");
}

/// Rows that cannot be written are a failure that names the file, and leave nothing.
#[test]
fn a_salvage_whose_file_cannot_be_written_leaves_none() {
    let place = Scratch::new("unwritten");
    let (dir, file) = (place.at("db"), place.at("out"));
    ok(&["load", &dir, "--create"], rows(60_000));
    // A limit on the size of files stands for a full disk.
    let run = format!("trap '' XFSZ; ulimit -f 1000; exec {} salvage {dir} --out {file}", env!("CARGO_BIN_EXE_varve"));
    let out = std::process::Command::new("sh").args(["-c", &run]).output().expect("a shell");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains(&file), "{said}");
    assert!(!Path::new(&format!("{file}.partial")).exists() && !Path::new(&file).exists(), "nothing is left");
}
