//! `varve shell` from a pipe: what it prints, transactions, errors and their exit status.

use crate::support::{Scratch, fails, ok};
use std::io::{BufRead, BufReader, Write};

fn database(place: &Scratch) -> String {
    let dir = place.at("db");
    ok(&["create", &dir, "--keyspace", "fruit"], "");
    dir
}

/// An open database is in use, by whatever way somebody comes to its files, and whatever became of `lock`.
#[test]
fn nobody_else_writes_what_a_shell_has_open() {
    let place = Scratch::new("held");
    let (db, other) = (place.at("db"), place.at("other"));
    ok(&["create", &db, "--keyspace", "t"], "");
    std::fs::create_dir(&other).unwrap();
    for part in ["data", "log"] {
        std::os::unix::fs::symlink(format!("../db/{part}"), format!("{other}/{part}")).unwrap();
    }
    let mut shell = std::process::Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["shell", &db, "--quiet"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = shell.stdin.take().unwrap();
    to.write_all(b"put t a 1\nget t a\n").unwrap();
    let mut said = BufReader::new(shell.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains('1') {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the shell answers");
    }
    assert!(fails(&["put", &other, "t", "b", "2"], "", 5).contains("in use from elsewhere"));
    std::fs::remove_file(format!("{db}/lock")).unwrap();
    assert!(fails(&["put", &db, "t", "b", "2"], "", 5).contains("in use from elsewhere"));
    assert!(fails(&["get", &db, "t", "a"], "", 5).contains("in use from elsewhere"));
    drop(to);
    assert!(shell.wait().unwrap().success());
    assert_eq!(ok(&["get", &db, "t", "a"], ""), "1\n");
    assert!(ok(&["check", &db], "").contains("no damage found"));
    // A lock that leads to the log is refused, and the log stays.
    std::fs::remove_file(format!("{db}/lock")).unwrap();
    std::os::unix::fs::symlink("log", format!("{db}/lock")).unwrap();
    let told = fails(&["put", &db, "t", "b", "2"], "", 2);
    assert!(told.contains("is a link") && told.contains("move it away") && !told.contains("backup"), "{told}");
    std::fs::remove_file(format!("{db}/lock")).unwrap();
    ok(&["put", &db, "t", "b", "2"], "");
}

#[test]
fn commands_come_from_a_pipe() {
    let place = Scratch::new("commands");
    let dir = database(&place);
    let script = "\
put fruit apple red
put fruit 'bitter orange' orange
put fruit 0x00ff 0x0102

put fruit -1 -2.5
put more x y
keyspaces
get fruit 'bitter orange'
get fruit -1
scan fruit
scan fruit --prefix a
scan fruit -r -l 1
scan fruit a b
count fruit
count fruit b
delete fruit apple
count fruit --prefix a
quit
get fruit apple
";
    let said = ok(&["shell", &dir, "--quiet"], script);
    let expected = [
        "fruit\nmore\norange\n-2.5\n",
        "0x00ff\t0x0102\n-1\t-2.5\napple\tred\nbitter orange\torange\n",
        "apple\tred\n",
        "bitter orange\torange\n",
        "apple\tred\n",
        "4\n1\n0\n",
    ]
    .concat();
    assert_eq!(said, expected);
    let json = ok(&["shell", &dir, "--json"], "get fruit -1\nscan fruit 0x00\ncount fruit\nkeyspaces\n");
    let lines: Vec<&str> = json.lines().collect();
    assert_eq!(lines[0], r#"{"value":"-2.5"}"#);
    assert_eq!(lines[1], r#"{"key_hex":"00ff","value":"\u0001\u0002"}"#);
    assert_eq!(lines[4..], [r#"{"count":3}"#, r#"{"keyspace":"fruit"}"#, r#"{"keyspace":"more"}"#]);
}

#[test]
fn a_transaction_is_all_or_nothing() {
    let place = Scratch::new("transaction");
    let dir = database(&place);
    let seen = ok(
        &["shell", &dir],
        "begin\nput fruit a 1\nget fruit a\ncount fruit\nrollback\ncount fruit\n\
         begin\nput fruit b 2\nput fruit c 3\ndelete fruit b\nscan fruit\ncommit\nscan fruit\n",
    );
    assert_eq!(seen, "1\n1\n0\nc\t3\nc\t3\n");
    // Without `commit`, and after an error, nothing of it is there.
    let said = fails(&["shell", &dir], "begin\nput fruit d 4\n", 1);
    assert!(said.contains("rolled back: the input has no `commit`"), "{said}");
    let said = fails(&["shell", &dir], "begin\nput fruit e 5\nget fruit none\ncommit\n", 4);
    assert!(said.contains("line 3 of the input failed") && said.contains("no such key"), "{said}");
    assert_eq!(ok(&["scan", &dir, "fruit"], ""), "c\t3\n");
    for (script, what) in [("commit", "no transaction is open"), ("begin\nbegin", "open already")] {
        let said = fails(&["shell", &dir], script, 2);
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn errors_have_the_status_of_their_kind_and_end_a_script() {
    let place = Scratch::new("errors");
    let dir = database(&place);
    for (script, code, what) in [
        ("fly", 2, "there is no command \"fly\"; there are: "),
        ("get fruit", 2, "KEY"),
        ("put fruit a", 2, "VALUE"),
        ("put fruit 'a", 2, "quote"),
        ("help fly", 2, "there are: get, put"),
        ("get fruit a", 4, "no such key"),
        ("delete fruit a", 4, "no such key"),
    ] {
        let said = fails(&["shell", &dir], format!("{script}\nput fruit after 1\n"), code);
        assert!(said.contains(what) && said.contains("line 1"), "{script}: {said}");
    }
    assert_eq!(ok(&["scan", &dir, "fruit"], ""), "");
    let help = ok(&["shell", &dir], "help\nhelp scan\n");
    assert!(help.contains("rollback") && help.contains("--prefix") && help.contains("hexadecimal"), "{help}");
    // Each of them closed the database.
    let info = crate::support::varve(&["info", &dir], "");
    assert_eq!(String::from_utf8_lossy(&info.stderr), "");
}

#[test]
fn a_shell_for_reading_writes_nothing() {
    let place = Scratch::new("reading");
    let dir = database(&place);
    ok(&["put", &dir, "fruit", "a", "1"], "");
    assert_eq!(ok(&["shell", &dir, "--read-only"], "get fruit a\ncount fruit\n"), "1\n1\n");
    let said = fails(&["shell", &dir, "--read-only"], "put fruit b 2\n", 7);
    assert!(said.contains("read-only"), "{said}");
}
