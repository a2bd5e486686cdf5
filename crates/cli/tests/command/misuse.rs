//! What the command does when it is used wrongly, or what it writes to is gone: it says so, and touches nothing that is
//! not its own.

use crate::support::{Scratch, fails, ok};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Exit status and stderr of a command whose standard output is `to`.
fn into(to: impl Into<Stdio>, args: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(args)
        .stdout(to)
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn full() -> std::fs::File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

/// A pipe that nobody reads.
fn closed() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer
}

fn database(place: &Scratch) -> String {
    let dir = place.at("db");
    ok(&["load", &dir, "--create", "--format", "csv"], "a,1\nb,2\nc,3\n");
    dir
}

/// Files beside the database that are no files: nobody waits for a FIFO, or reads what does not end.
#[test]
fn settings_that_are_no_file_are_refused_at_once() {
    let place = Scratch::new("no-file");
    let db = place.at("db");
    ok(&["create", &db, "--keyspace", "t"], "");
    for target in ["/dev/zero", "/"] {
        std::os::unix::fs::symlink(target, format!("{db}/tier.json")).unwrap();
        let told = fails(&["get", &db, "t", "k"], "", 1);
        assert!(told.contains("tier.json") && told.contains("no file"), "{told}");
        std::fs::remove_file(format!("{db}/tier.json")).unwrap();
    }
    assert!(fails(&["load", &db, "--keyspace", "t"], "{\"key\":\"a\",\"value\":null}\n", 2).contains("is null"));
}

#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let place = Scratch::new("output");
    let dir = database(&place);
    let commands: &[&[&str]] = &[
        &["info", &dir],
        &["get", &dir, "default", "a"],
        &["scan", &dir, "default"],
        &["dump", &dir],
        &["check", &dir],
        &["compact", &dir],
        &["stat", &dir],
        &["stat", &dir, "--prometheus"],
        &["lab", "list"],
        &["probe", "--list"],
        &["completions", "bash"],
        &["sim", "--seeds", "1", "--once"],
    ];
    for args in commands {
        // (JSON and the format of Prometheus exclude each other.)
        let json = (!args.contains(&"--prometheus")).then(|| [&["--json"], *args].concat());
        for args in std::iter::once(args.to_vec()).chain(json) {
            let (code, said) = into(closed(), &args);
            assert_eq!((code, said.contains("panic")), (Some(0), false), "{args:?}: {said}");
            let (code, said) = into(full(), &args);
            assert!(code == Some(1) && said.contains("standard output cannot be written"), "{args:?}: {code:?} {said}");
        }
    }
}

#[test]
fn who_finds_damage_says_so_by_the_exit_status_though_nobody_reads() {
    let place = Scratch::new("verdict");
    let dir = database(&place);
    let data = Path::new(&dir).join("data");
    let mut bytes = std::fs::read(&data).expect("readable");
    // Not the first page, without which nothing opens.
    let end = bytes.len().min(20 << 14);
    bytes[1 << 14..end].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(&data, bytes).expect("writable");
    for to in [Stdio::from(closed()), Stdio::null()] {
        let (code, said) = into(to, &["check", &dir]);
        assert_eq!(code, Some(3), "{said}");
    }
}

#[test]
fn benchmarks_and_tortures_write_only_into_what_is_theirs() {
    let place = Scratch::new("foreign");
    let dir = database(&place);
    let files = place.at("files");
    std::fs::create_dir(&files).expect("a directory");
    std::fs::write(Path::new(&files).join("thesis.txt"), "years of work").expect("a file");
    let ycsb = ["bench", "ycsb", "--records", "10", "--seconds", "1", "--warmup", "0", "--threads", "1", "--dir"];
    let tpcc = ["bench", "tpcc", "--check-only", "--dir"];
    let torture = ["torture", "--rounds", "1", "--dir"];
    let big_log = ["torture", "--big-log", "1", "--dir"];
    for tool in [&ycsb[..], &tpcc, &torture, &big_log] {
        let said = fails(&[tool, &[&dir]].concat(), "", 2);
        assert!(said.contains("was not made by") && said.contains("empty or not there"), "{said}");
        let said = fails(&[tool, &[&files]].concat(), "", 2);
        assert!(said.contains("no database") && said.contains("empty or not there"), "{said}");
    }
    assert_eq!(ok(&["scan", &dir, "default"], ""), "a\t1\nb\t2\nc\t3\n");
    let info: serde_json::Value = serde_json::from_str(&ok(&["--json", "info", &dir], "")).expect("one object");
    assert_eq!(info["keyspaces"].as_array().map(Vec::len), Some(1));
    assert_eq!(std::fs::read_dir(&files).expect("there").count(), 1);
    // Their own they go on with, and an empty directory is as good as none.
    for (name, tool) in [("ycsb", &ycsb[..]), ("torture", &torture)] {
        let own = place.at(name);
        std::fs::create_dir(&own).expect("a directory");
        for _ in 0..2 {
            ok(&[tool, &[&own]].concat(), "");
        }
    }
}

/// A path with a slip in it makes no database, nor does a directory of other files become one.
#[test]
fn a_load_makes_a_database_only_where_it_was_told_to() {
    let place = Scratch::new("slip");
    let (slip, files, empty) = (place.at("slip"), place.at("files"), place.at("empty"));
    [&files, &empty].iter().for_each(|dir| std::fs::create_dir(dir).expect("a directory"));
    std::fs::write(Path::new(&files).join("thesis.txt"), "years of work").expect("a file");
    let row = "{\"key\":\"a\",\"value\":\"1\"}\n";
    for dir in [&slip, &files, &empty] {
        let said = fails(&["load", dir], row, 4);
        assert!(said.contains(dir) && said.contains("varve create") && said.contains("load --create"), "{said}");
    }
    assert!(!Path::new(&slip).exists());
    let said = fails(&["load", "--create", &files], row, 2);
    assert!(said.contains("no database") && said.contains("empty or not there"), "{said}");
    let there = |dir: &str| std::fs::read_dir(dir).expect("there").count();
    assert_eq!((there(&files), there(&empty)), (1, 0));
    for dir in [&slip, &empty] {
        ok(&["load", "--create", dir], row);
        // It is there now, and goes on being loaded.
        ok(&["load", "--create", dir], row.replacen("a", "b", 1));
        assert_eq!(ok(&["scan", dir, "default"], ""), "a\t1\nb\t1\n");
    }
}

#[test]
fn a_bad_row_names_its_line_and_what_is_loaded() {
    let place = Scratch::new("rows");
    let load = |name: &str, args: &[&str], input: &str| {
        fails(&[&["load", &place.at(name), "--create", "--format", "csv"], args].concat(), input, 2)
    };
    let said = load("open", &[], "a,1\nb,2\nc,\"3\nd,4\ne,5\n");
    assert!(
        said.contains("line 3") && said.contains("never closed") && said.contains("2 rows before it are loaded"),
        "{said}"
    );
    assert_eq!(ok(&["scan", &place.at("open"), "default"], ""), "a\t1\nb\t2\n");
    let said = load("names", &["--header"], "id,name\n1,x\n");
    assert!(said.contains("line 1") && said.contains("\"key\" and \"value\" are expected"), "{said}");
    let swapped = place.at("swapped");
    ok(&["load", &swapped, "--create", "--format", "csv", "--header"], "value,key\n1,a\n2,b\n");
    assert_eq!(ok(&["scan", &swapped, "default"], ""), "a\t1\nb\t2\n");
}

/// Rows before one that the database refuses are in, whichever way they are loaded.
#[test]
fn a_row_that_is_refused_is_named_and_those_before_it_are_loaded() {
    let place = Scratch::new("refused-row");
    let long = "k".repeat(3000);
    let row = |key: &str| format!("{{\"key\":\"{key}\",\"value\":\"v\"}}\n");
    for (name, before) in [("ascending", ["a", "b", "c"]), ("shuffled", ["c", "a", "b"])] {
        let db = place.at(name);
        let input = before.map(row).concat() + &row(&long) + &row("z");
        let told = fails(&["load", &db, "--create"], input, 2);
        let words = ["begins with \"kkk", "3000 bytes", "the 3 rows before it are loaded"];
        assert!(words.iter().all(|word| told.contains(word)), "{name}: {told}");
        assert_eq!(ok(&["scan", &db, "default", "--count"], "").trim(), "3");
    }
    let db = place.at("bytes");
    let told = fails(&["load", &db, "--create"], [row("a").as_bytes(), b"\xff\xfe\n"].concat(), 2);
    assert!(told.contains("line 2: not UTF-8") && told.contains("the 1 row before it is loaded"), "{told}");
    let told = fails(&["load", &db, "--create", "--keyspace", ""], row("a"), 2);
    assert!(told.contains("keyspace name") && told.contains("nothing is loaded: give all"), "{told}");
}

/// One exit status for each kind of failure, and the same as JSON.
#[test]
fn failures_have_a_status_by_their_kind() {
    let place = Scratch::new("kinds");
    let db = database(&place);
    let (nothing, damaged) = (place.at("nothing"), place.at("damaged"));
    std::fs::create_dir(&damaged).expect("a directory");
    for file in std::fs::read_dir(&db).expect("there").flatten() {
        std::fs::copy(file.path(), Path::new(&damaged).join(file.file_name())).expect("a copy");
    }
    std::fs::write(Path::new(&damaged).join("log"), vec![0x55; 1 << 20]).expect("writable");
    let (long, kept) = ("k".repeat(5000), place.file("kept", "a backup"));
    let sealed = ["put", &db, "default", "a", "2"];
    ok(&["read-only", &db, "default"], "");
    for (args, status, kind) in [
        (&["get", &db, "default", "zz"][..], 4, "missing"),
        (&["get", &db, "none", "a"], 4, "missing"),
        (&["drop", &db, "none"], 4, "missing"),
        (&["get", &nothing, "default", "a"], 4, "missing"),
        (&["info", "/etc/passwd"], 4, "missing"),
        (&["create", &db], 6, "exists"),
        (&["keyspace", "create", &db, "default"], 6, "exists"),
        (&["backup", &db, &kept], 6, "exists"),
        (&["info", &db, "--set", "cache=1K"], 2, "usage"),
        (&sealed, 7, "permission"),
        (&["check", &damaged], 3, "damage"),
        (&["put", &db, "more", &long, "v"], 2, "usage"),
        (&["get", &db], 2, "usage"),
        (&["fetch"], 2, "usage"),
    ] {
        let said = fails(args, "", status);
        assert!(!said.contains("(os error"), "{args:?}: {said}");
        let said = fails(&[&["--json"], args].concat(), "", status);
        let told: serde_json::Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
        assert_eq!((&told["status"], &told["kind"]), (&status.into(), &kind.into()), "{args:?}: {said}");
        assert!(told["error"].as_str().is_some_and(|error| error.len() > 5), "{args:?}: {said}");
    }
    let said = fails(&["check", &damaged], "", 3);
    assert!(!said.contains("run `check`"), "who reads this has run it: {said}");
}

/// Numbers that may be written in two ways, and fields that are there twice or have other names, are no rows; a
/// directory has none.
#[test]
fn rows_that_could_be_meant_otherwise_are_refused() {
    let place = Scratch::new("meant");
    let db = database(&place);
    for (row, why) in [
        ("{\"key\":1e2,\"value\":\"v\"}\n", "\"key\" is a number"),
        ("{\"key\":\"k\",\"value\":1.10}\n", "\"value\" is a number"),
        ("{\"key\":\"k\",\"value\":\"v\",\"key\":\"l\"}\n", "duplicate field `key`"),
        ("{\"keyspcae\":\"s\",\"key\":\"k\",\"value\":\"v\"}\n", "unknown field `keyspcae`"),
        ("{\"keyspace\":\"s\",\"keyspace\":\"t\",\"key\":\"k\",\"value\":\"v\"}\n", "duplicate field `keyspace`"),
        ("[null,\"k\",null,\"v\",null]\n", "a JSON object"),
        ("{\"keyspace\":null,\"key\":\"k\",\"value\":\"v\"}\n", "\"keyspace\" must be a string"),
    ] {
        let said = fails(&["load", &db], row, 2);
        assert!(said.contains("line 1") && said.contains(why), "{said}");
    }
    // What only looks like it is a row.
    ok(&["load", &db], "{\"key\":\"a\\\":b\",\"value\":\"{x:1}\"}\n");
    assert_eq!(ok(&["get", &db, "default", "a\":b"], ""), "{x:1}\n");
    let directory = std::fs::File::open(place.path()).expect("a directory");
    let load =
        Command::new(env!("CARGO_BIN_EXE_varve")).args(["load", &db]).stdin(directory).output().expect("it runs");
    let said = String::from_utf8_lossy(&load.stderr);
    assert!(load.status.code() == Some(2) && said.contains("standard input is a directory"), "{said}");
    let said = fails(&["drop", &db, "none"], "", 4);
    assert!(said.contains("varve info") && !said.contains("create"), "{said}");
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for args in [&["help"][..], &["--version"], &["load", "--help"]] {
        let (code, said) = into(full(), args);
        assert!(code == Some(1) && said.contains("standard output cannot be written"), "{args:?}: {code:?} {said}");
        assert_eq!(into(closed(), args).0, Some(0), "{args:?}");
        assert_eq!(into(Stdio::null(), args).0, Some(0), "{args:?}");
    }
}

#[test]
fn numbers_below_zero_are_keys() {
    let place = Scratch::new("negative");
    let db = database(&place);
    ok(&["put", &db, "default", "-1", "-2.5"], "");
    ok(&["put", &db, "default", "-2", "x"], "");
    assert_eq!(ok(&["get", &db, "default", "-1"], ""), "-2.5\n");
    assert_eq!(ok(&["scan", &db, "default", "--prefix", "-"], ""), "-1\t-2.5\n-2\tx\n");
    assert_eq!(ok(&["scan", &db, "default", "--from", "-2", "--to", "a"], ""), "-2\tx\n");
    ok(&["delete", &db, "default", "--range", "-2", "-3"], "");
    ok(&["delete", &db, "default", "-1"], "");
    assert_eq!(ok(&["scan", &db, "default", "--count"], ""), "3\n");
    // What looks like an option and is none is not taken for a key.
    let said = fails(&["put", &db, "default", "--hx", "v"], "", 2);
    assert!(said.contains("--hx"), "{said}");
}

#[test]
fn a_load_goes_on_after_what_it_said_is_in() {
    let place = Scratch::new("skip");
    let rows = |bad: &str| format!("b,1\nc,2\na,3\nd,4\n{bad}\nf,6\n");
    for batch in ["1", "2", "100"] {
        let db = place.at(batch);
        let load = ["load", &db, "--create", "--format", "csv", "--batch", batch];
        let said = fails(&load, rows("e"), 2);
        assert!(said.contains("line 5") && said.contains("the 4 rows before it are loaded"), "{said}");
        let skip = said.split("--skip ").nth(1).expect("says how").split('`').next().expect("a number");
        // Had they been written again, these values would be there.
        let mended = rows("e,5").replace("b,1", "b,again").replace("d,4", "d,again");
        ok(&[&load[..], &["--skip", skip]].concat(), mended);
        assert_eq!(ok(&["scan", &db, "default"], ""), "a\t3\nb\t1\nc\t2\nd\t4\ne\t5\nf\t6\n");
    }
    let all = place.at("all");
    ok(&["load", &all, "--create", "--format", "csv", "--skip", "100"], rows("e,5"));
    assert!(ok(&["--json", "info", &all], "").contains("\"keyspaces\":[]"), "nothing is left to be loaded");
}

/// A copy without its lock file: the file is made, and what is wrong with the others is said.
#[test]
fn without_a_lock_file_damage_is_named_all_the_same() {
    let place = Scratch::new("no-lock");
    let db = place.at("db");
    ok(&["create", &db, "--keyspace", "a"], "");
    std::fs::remove_file(place.at("db/lock")).unwrap();
    std::fs::write(place.at("db/data"), [7; 8192]).unwrap();
    assert!(fails(&["info", &db], "", 3).contains("corruption: page 2"));
}

#[test]
fn what_is_there_already_is_named_as_what_it_is() {
    let place = Scratch::new("there");
    let db = place.at("db");
    ok(&["create", &db, "--keyspace", "a", "--keyspace", "b"], "");
    assert!(fails(&["rename", &db, "a", "b"], "", 6).contains("there is a keyspace \"b\" already"));
    assert!(fails(&["create", &db], "", 6).contains("already holds a database"));
    std::fs::remove_file(place.at("db/data")).unwrap();
    std::fs::create_dir(place.at("db/data")).unwrap();
    let told = fails(&["info", &db], "", 1);
    assert!(told.contains("open of") && told.contains("permissions") && !told.contains("0 bytes"), "{told}");
}

#[test]
fn a_trace_is_not_converted_onto_itself() {
    let place = Scratch::new("convert");
    let trace = place.file("trace", "1\n2\n1\n");
    let said = fails(&["trace", "convert", &trace, &trace], "", 2);
    assert!(said.contains("would be overwritten"), "{said}");
    assert_eq!(std::fs::read_to_string(&trace).expect("there"), "1\n2\n1\n");
}

#[test]
fn absurd_values_of_an_experiment_are_refused_with_their_range() {
    let place = Scratch::new("absurd");
    for (set, range) in [
        ("run.interval_s=1e-7", "0.001 to 1000000"),
        ("run.interval_s=nan", "0.001 to 1000000"),
        ("run.interval_s=0.001", "a 100000th of run.seconds"),
        ("run.seconds=1e300", "at most 1000000"),
        ("run.clients=0", "1 to 10000"),
    ] {
        let args =
            ["lab", "run", "tpcc-disk", "--quick", "--set", "run.seconds=600", "--set", set, "--out", &place.at("out")];
        let (code, said) = into(Stdio::null(), &args);
        let key = set.split_once('=').expect("key and value").0;
        assert!(code != Some(0) && said.contains(key) && said.contains(range), "{set}: {code:?} {said}");
    }
}

/// With too little memory the command says so, or does its work; it never dies of a signal.
#[test]
fn a_limit_of_memory_is_said() {
    let place = Scratch::new("memory");
    let dir = database(&place);
    let (mut refused, mut done) = (0, 0);
    for mb in [48, 64, 80, 96, 112, 128, 160, 192, 256, 4096] {
        let limited = format!("ulimit -v {} && exec \"$0\" check \"$1\" --cache-mb 64", mb << 10);
        let out =
            Command::new("sh").args(["-c", &limited, env!("CARGO_BIN_EXE_varve"), &dir]).output().expect("sh runs");
        let said = String::from_utf8_lossy(&out.stderr);
        match out.status.code() {
            Some(0) => done += 1,
            Some(_) if said.contains("memory") || said.contains("threads") => refused += 1,
            code => panic!("{mb} MB: {code:?}, {said}"),
        }
    }
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}

/// Arguments need not be UTF-8: what takes paths only takes them, and the rest says that it does not.
#[test]
fn arguments_that_are_not_utf8_are_no_panic() {
    let place = Scratch::new("bytes");
    let run = |args: &[&OsStr]| {
        let out = Command::new(env!("CARGO_BIN_EXE_varve")).args(args).current_dir(place.path()).output();
        let out = out.expect("it runs");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (dir, drive) = (OsStr::from_bytes(b"x\xff\xfe"), OsStr::from_bytes(b"d\xff:100M"));
    let words = |words: &[&'static str]| words.iter().map(|word| OsStr::new(*word)).collect::<Vec<_>>();
    for option in ["--drive", "--fast"] {
        let (code, said) = run(&[&words(&["create", option])[..], &[drive, dir]].concat());
        assert!(code == Some(2) && said.contains("UTF-8") && !said.contains("panic"), "{option}: {code:?} {said}");
        assert!(said.contains(r"d\xFF:100M"), "byte by byte: {said}");
    }
    let (code, said) =
        run(&[&words(&["create", "db", "--data"])[..], &[OsStr::from_bytes(b"remote:h\xffst:99")]].concat());
    assert!(code == Some(2) && said.contains(r"h\xFFst:99") && said.contains("UTF-8"), "{code:?} {said}");
    let keys = [OsStr::new("--key"), OsStr::from_bytes(b"k\xff"), OsStr::new("--peer"), OsStr::new("p")];
    let (code, said) = run(&[&words(&["create", "db", "--data", "remote:127.0.0.1:9"])[..], &keys].concat());
    assert!(code == Some(2) && said.contains(r"k\xFF") && said.contains("UTF-8"), "{code:?} {said}");
    assert!(!place.path().join("db").exists(), "nothing was made");
    // The note of where a worker is, overwritten.
    ok(&["create", &place.at("far")], "");
    std::fs::remove_file(place.path().join("far/data")).expect("a file");
    std::fs::write(place.path().join("far/remote"), b"varve remote 1\nh\xffst:99\n").expect("a file");
    assert!(fails(&["info", &place.at("far")], "", 3).contains("the address of a worker"));
    assert_eq!(run(&[OsStr::new("create"), dir]).0, Some(0));
    let (code, said) = run(&[OsStr::new("backup"), dir, OsStr::from_bytes(b"b\xff")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(place.path().join(OsStr::from_bytes(b"b\xff")).exists(), "the backup has the name that was asked for");
}

/// Who looks at a database whose data was cut is told so, though the catalog is whole.
#[test]
fn info_and_stat_say_that_the_data_was_cut() {
    let place = Scratch::new("cut");
    let dir = place.at("db");
    let rows: String = (0..20_000).map(|n| format!("{n:06},{n:030}\n")).collect();
    ok(&["load", &dir, "--create", "--format", "csv"], rows);
    ok(&["info", &dir], "");
    let data = OpenOptions::new().write(true).open(Path::new(&dir).join("data")).expect("writable");
    data.set_len(400_000).expect("shorter");
    for command in ["info", "stat"] {
        let out = crate::support::varve(&[command, &dir], "");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{command}: {said}");
        assert!(said.contains("`data` was cut") && !out.stdout.is_empty(), "{command}: {said}");
        assert!(fails(&[command, &dir, "--json"], "", 3).contains("\"kind\":\"damage\""));
    }
}

/// What a load that fails says of how to go on is no less with `--quiet`, and nothing is skipped if nothing is in.
#[test]
fn a_load_that_fails_says_how_to_go_on() {
    let place = Scratch::new("on");
    let dir = place.at("db");
    let load = |input: &str| fails(&["load", &dir, "--create", "--format", "csv", "--quiet"], input, 2);
    let said = load("a\n");
    assert!(said.contains("nothing is loaded: give all of it again") && !said.contains("--skip"), "{said}");
    let said = load("a,1\nb\n");
    assert!(said.contains("the 1 row before it is loaded; `--skip 1` goes on after it"), "{said}");
    let folder = File::open(place.path()).expect("a directory");
    let out = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["load", &dir, "--quiet", "--format", "csv"])
        .stdin(folder)
        .output()
        .expect("it runs");
    assert!(String::from_utf8_lossy(&out.stderr).contains("give a file with rows; nothing is loaded"), "{out:?}");
}

/// A directory that cannot be made: the status tells why, and the message what stands in the way.
#[test]
fn a_directory_that_cannot_be_made_is_told_by_its_reason() {
    let place = Scratch::new("unmade");
    std::os::unix::fs::symlink("nowhere", place.path().join("link")).expect("a link");
    place.file("file", "");
    for name in ["link", "file"] {
        let said = fails(&["create", &place.at(name)], "", 2);
        assert!(said.contains("a file, or a link to nothing, has this name"), "{said}");
    }
    let sealed = place.path().join("sealed");
    std::fs::create_dir(&sealed).expect("a directory");
    std::fs::set_permissions(&sealed, std::fs::Permissions::from_mode(0o555)).expect("its owner may");
    let shut = place.path().join("shut");
    std::fs::create_dir_all(shut.join("within")).expect("a directory");
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).expect("its owner may");
    let all_is_allowed = File::create(sealed.join("all is allowed")).is_ok();
    let (create, sealed, within) = (place.at("sealed/db"), place.at("sealed"), place.at("shut/within"));
    for args in [&["create", &create][..], &["probe", &sealed, "--quick"], &["probe", &within, "--quick"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
        command.args(args);
        if all_is_allowed {
            command.uid(65534).gid(65534);
        }
        // (Where the user of that number may not start the command there is nothing to see.)
        let Ok(out) = command.output() else { return };
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(7), "{args:?}: {said}");
        assert!(said.contains("no permission") && said.contains("owner and mode"), "{said}");
    }
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o700)).expect("its owner may");
}

/// A new database is not made among files of somebody else.
#[test]
fn a_database_is_made_only_where_nothing_else_is() {
    let place = Scratch::new("among");
    let (dir, backup) = (place.at("etc"), place.at("backup"));
    let db = database(&place);
    ok(&["backup", &db, &backup], "");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(place.path().join("etc/passwd"), "root").expect("a file");
    for args in [&["create", &dir][..], &["restore", &dir, &backup]] {
        let said = fails(args, "", 2);
        assert!(
            said.contains("files in it") && said.contains(args[0]) && said.contains("empty or not there"),
            "{said}"
        );
        assert_eq!(std::fs::read_dir(&dir).expect("it is there").count(), 1, "nothing was made");
    }
    // What a file system has of itself, what is given for the database, and what a creation left that was cut short.
    std::fs::remove_file(place.path().join("etc/passwd")).expect("a file");
    std::fs::create_dir(place.path().join("etc/lost+found")).expect("a directory");
    let (pages, unfinished) = (place.at("etc/pages"), place.at("etc/data"));
    std::fs::write(&pages, "").expect("a file");
    std::fs::write(unfinished, "").expect("a file");
    std::fs::write(place.path().join("etc/log"), "").expect("a file");
    ok(&["create", &dir, "--slow", &pages], "");
    assert!(fails(&["create", &dir], "", 6).contains("already holds a database"));
}

/// Where nobody can write there is nothing to lock: a copy without the lock file can be read.
#[test]
fn a_read_only_mount_needs_no_lock_file() {
    let place = Scratch::new("mounted");
    let dir = database(&place);
    std::fs::remove_file(place.path().join("db/lock")).expect("it is there");
    let mounted = |script: &str| {
        let script = format!("mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 77; {script}");
        let args = ["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh", &dir];
        let out = Command::new("unshare").args(args).env("VARVE", env!("CARGO_BIN_EXE_varve")).output();
        out.ok().filter(|out| out.status.code() != Some(77) && !out.stderr.starts_with(b"unshare:"))
    };
    // (Where mounting is not allowed there is nothing to see.)
    let Some(out) = mounted("\"$VARVE\" get \"$1\" default a && \"$VARVE\" check \"$1\"") else { return };
    let (told, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && told.starts_with("1\n") && told.contains("no damage found"), "{told} {said}");
    let out = mounted("\"$VARVE\" put \"$1\" default a 2").expect("as before");
    assert_eq!(out.status.code(), Some(7), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!place.path().join("db/lock").exists(), "nothing was written");
    // Where it can be made it is.
    assert_eq!(ok(&["get", &dir, "default", "a"], ""), "1\n");
    assert!(place.path().join("db/lock").exists());
}

/// What is named and cannot be read has a status by its reason: it is not there, or it may not be read.
#[test]
fn what_cannot_be_read_is_told_by_its_reason() {
    let place = Scratch::new("unread");
    ok(&["worker", "keygen", &place.at("peer")], "");
    let all_is_allowed = {
        let shut = place.file("shut.toml", "name = \"x\"\n");
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).expect("its owner may");
        File::open(&shut).is_ok()
    };
    let (image, data, peer) = (format!("image:{}", place.at("chips")), place.at("data"), place.at("peer.cert"));
    for (name, status) in [("absent.toml", 4), ("shut.toml", 7)] {
        let file = place.at(name);
        for args in [
            &["create", &place.at("db"), "--flash", &image, "--layout", &file][..],
            &["probe", "--quick", "--profile", &file],
            &["advise", "flash", &file, "--flash", "slc-emulator-16"],
            &["array", "plan", "--drives", &format!("samsung-850,{file}"), "--trace", &file],
            &["array", "plan", "--drives", "samsung-850,samsung-830", "--trace", &file],
            &["trace", "info", &file],
            &["lab", "replay", &file, "--policy", "lru", "--sizes", "1"],
            &["lab", "run", &file],
            &["worker", "--listen", "127.0.0.1:0", "--data", &data, "--key", &file, "--peer", &peer],
            &["create", &place.at("db"), "--data", "remote:127.0.0.1:1", "--key", &file, "--peer", &peer],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
            command.args(args);
            if all_is_allowed {
                command.uid(65534).gid(65534);
            }
            // (Where the user of that number may not start the command there is nothing to see.)
            let Ok(out) = command.output() else { return };
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
            assert!(said.contains(&file), "{args:?}: {said}");
        }
    }
    // An experiment at a path is that file, and not one of the same name that comes with the program.
    fails(&["lab", "run", &place.at("tpcc-disk.toml"), "--quick"], "", 4);
}
