//! The command as its users meet it: data on stdout, messages on stderr, exit codes, nothing lost on bad input.

use crate::support::{Scratch, fails, ok, varve};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn keys_and_values_from_the_shell() {
    let place = Scratch::new("kv");
    let dir = place.path().to_str().unwrap();
    ok(&["create", dir, "--keyspace", "fruit"], "");
    for (key, value) in [("apple", "red"), ("banana", "yellow"), ("cherry", "dark red")] {
        ok(&["put", dir, "fruit", key, value], "");
    }
    ok(&["put", dir, "fruit", "durian"], "from standard input");
    assert_eq!(ok(&["get", dir, "fruit", "cherry"], ""), "dark red\n");
    assert_eq!(ok(&["get", dir, "fruit", "durian"], ""), "from standard input\n");
    assert_eq!(ok(&["--json", "get", dir, "fruit", "apple"], ""), "{\"value\":\"red\"}\n");
    assert_eq!(ok(&["get", "--hex", dir, "fruit", "6170706c65"], ""), "726564\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--from", "b", "--to", "d"], ""), "banana\tyellow\ncherry\tdark red\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--reverse", "--limit", "1"], ""), "durian\tfrom standard input\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--prefix", "ba"], ""), "banana\tyellow\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--count"], ""), "4\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--count", "--limit", "3"], ""), "3\n");
    assert!(fails(&["delete", dir, "fruit", "--prefix", ""], "", 2).contains("varve clear"));
    ok(&["delete", dir, "fruit", "apple"], "");
    assert!(fails(&["get", dir, "fruit", "apple"], "", 4).contains("no such key"));
    fails(&["delete", dir, "fruit", "apple"], "", 4);
    assert!(fails(&["get", dir, "fruits", "apple"], "", 4).contains("no keyspace named \"fruits\""));
    assert!(fails(&["get", "--hex", dir, "fruit", "zz"], "", 2).contains("not hexadecimal"));
    // Many at once, and keyspaces as a whole.
    ok(&["put", dir, "fruit", "bilberry", "blue"], "");
    ok(&["delete", dir, "fruit", "--prefix", "b"], "");
    ok(&["delete", dir, "fruit", "--range", "cherry", "durian"], "");
    assert_eq!(ok(&["scan", dir, "fruit"], ""), "durian\tfrom standard input\n");
    fails(&["delete", dir, "fruit"], "", 2);
    fails(&["delete", dir, "fruit", "apple", "--prefix", "b"], "", 2);
    ok(&["rename", dir, "fruit", "fruits"], "");
    assert!(fails(&["clear", dir, "fruit"], "", 4).contains("no keyspace named \"fruit\""));
    ok(&["clear", dir, "fruits"], "");
    assert_eq!(ok(&["scan", dir, "fruits", "--count"], ""), "0\n");
    ok(&["drop", dir, "fruits"], "");
    ok(&["put", dir, "fruit", "apple", "red"], "");
    // One that goes through in pieces.
    let long = "0123456789abcdef".repeat(40_000);
    ok(&["put", dir, "fruit", "long"], &long);
    assert!(ok(&["get", "--raw", dir, "fruit", "long"], "") == long);
    assert!(ok(&["check", dir], "").contains("no damage found"));
    assert!(ok(&["info", dir], "").contains("fruit"));
    let stat: serde_json::Value = serde_json::from_str(&ok(&["--json", "stat", dir], "")).expect("one JSON object");
    assert!(stat["memory.frames.limit"].as_u64().unwrap() > 0);
}

#[test]
fn reading_changes_nothing_and_readers_share() {
    let place = Scratch::new("readers");
    let dir = place.at("db");
    ok(&["create", &dir, "--keyspace", "fruit"], "");
    ok(&["put", &dir, "fruit", "apple", "red"], "");
    let files = || ["data", "log"].map(|file| std::fs::read(place.at(&format!("db/{file}"))).unwrap());
    let before = files();
    let reader = varve::Db::open(&dir, varve::Options { read_only: true, ..varve::Options::default() }).unwrap();
    assert_eq!(ok(&["get", &dir, "fruit", "apple"], ""), "red\n");
    assert_eq!(ok(&["scan", &dir, "fruit"], ""), "apple\tred\n");
    assert!(ok(&["dump", &dir], "").contains("apple"));
    drop(reader);
    assert!(files() == before);
    std::fs::remove_file(place.at("db/lock")).unwrap();
    assert_eq!(ok(&["get", &dir, "fruit", "apple"], ""), "red\n");
}

#[test]
fn a_command_that_is_refused_leaves_nothing_to_recover() {
    let place = Scratch::new("refused");
    let dir = place.at("db");
    ok(&["create", &dir, "--keyspace", "fruit"], "");
    ok(&["put", &dir, "fruit", "apple", "red"], "");
    ok(&["read-only", &dir, "fruit"], "");
    for (refused, status) in
        [(["put", &dir, "fruit", "apple", "green"].as_slice(), 7), (&["delete", &dir, "vegetables", "leek"], 4)]
    {
        fails(refused, "", status);
        let next = varve(&["get", &dir, "fruit", "apple"], "");
        let told = String::from_utf8_lossy(&next.stderr);
        assert!(next.status.success() && !told.contains("recovering"), "after {refused:?}: {told}");
    }
}

#[test]
fn compaction_gives_the_space_of_what_was_deleted_back() {
    let place = Scratch::new("compact");
    let (dir, data) = (place.at("db"), place.at("db/data"));
    let size = || std::fs::metadata(&data).unwrap().len();
    ok(&["create", &dir], "");
    let minimum = size();
    let csv: String = (0..20_000).map(|i| format!("key{i:05},{}\n", "x".repeat(100))).collect();
    ok(&["load", &dir, "--format", "csv"], &csv);
    assert!(size() > 4 * minimum);
    let keys: String = (0..20_000).map(|i| format!("key{i:05},\n")).collect();
    ok(&["load", &dir, "--format", "csv", "--keyspace", "short"], &keys);
    let dropped = varve::Db::open(&dir, varve::Options::default()).unwrap();
    dropped.drop_keyspace("default").unwrap();
    dropped.close().unwrap();
    let full = size();
    let said = ok(&["compact", &dir], "");
    assert!(said.contains("before") && size() < full / 2, "{said}");
    assert_eq!(ok(&["scan", &dir, "short", "--count"], ""), "20000\n");
    let db = varve::Db::open(&dir, varve::Options::default()).unwrap();
    db.drop_keyspace("short").unwrap();
    db.close().unwrap();
    let said: serde_json::Value = serde_json::from_str(&ok(&["--json", "compact", &dir], "")).expect("one object");
    assert!(size() < 2 * minimum && said["bytes"] == size(), "{said}");
    assert!(ok(&["check", &dir], "").contains("no damage found"));
    let (slow, fast) = (place.at("slow"), format!("{}:1M", place.at("fast")));
    let tiered = place.at("tiered");
    ok(&["create", &tiered, "--slow", &slow, "--fast", &fast], "");
    assert!(fails(&["compact", &tiered], "", 2).contains("varve tier detach"));
}

#[test]
fn what_is_dumped_can_be_loaded() {
    let (a, b) = (Scratch::new("dump-a"), Scratch::new("dump-b"));
    let (from, to) = (a.path().to_str().unwrap(), b.path().to_str().unwrap());
    let csv: String = (0..2500).map(|i| format!("key{i:05},value {i}\n")).collect();
    ok(&["load", from, "--create", "--format", "csv", "--keyspace", "rows"], &csv);
    ok(&["put", from, "--hex", "bytes", "ff00", "fe0a"], "");
    let dump = ok(&["dump", from], "");
    assert_eq!(dump.lines().count(), 2501);
    ok(&["load", to, "--create"], &dump);
    assert_eq!(ok(&["dump", to], ""), dump);
    assert_eq!(ok(&["get", to, "rows", "key01234"], ""), "value 1234\n");
    assert_eq!(ok(&["get", "--hex", to, "bytes", "ff00"], ""), "fe0a\n");
}

#[test]
fn rows_out_of_order_and_keyspaces_with_rows_are_loaded_all_the_same() {
    let place = Scratch::new("orders");
    let dir = place.path().to_str().unwrap();
    // Ascending, then not, a key twice, and a second keyspace in between.
    let row = |ks: &str, k: u32, v: u32| format!("{{\"keyspace\":\"{ks}\",\"key\":\"{k:05}\",\"value\":\"{v}\"}}\n");
    let mut rows = String::new();
    (0..3000).for_each(|k| rows += &row("a", 2 * k, k));
    (0..3000).for_each(|k| rows += &(row("b", k, 7) + &row("a", 6000 - k, k)));
    rows += &row("a", 1, 9);
    let said = String::from_utf8(varve(&["load", dir, "--create"], &rows).stderr).unwrap();
    assert!(said.contains("a: the keys ascend for 3001 rows") && !said.contains("b:"), "{said}");
    assert_eq!(ok(&["scan", dir, "a", "--count"], ""), "4502\n");
    assert_eq!(ok(&["scan", dir, "b", "--count"], ""), "3000\n");
    assert_eq!(ok(&["get", dir, "a", "05998"], ""), "2\n", "the later row of a key counts");
    assert_eq!(ok(&["get", dir, "a", "00010"], ""), "5\n");
    // Into what is there: nothing of it is lost.
    ok(&["load", dir, "--keyspace", "b"], "{\"key\":\"x\",\"value\":\"1\"}\n");
    assert_eq!(ok(&["scan", dir, "b", "--count"], ""), "3001\n");
    ok(&["delete", dir, "b", "x"], "");
    assert!(ok(&["check", dir], "").contains("no damage found"));
}

#[test]
fn bad_input_is_named_and_loses_nothing() {
    let place = Scratch::new("bad");
    let dir = place.path().to_str().unwrap();
    let rows = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n{\"key\":\"c\"}\n";
    let message = fails(&["load", dir, "--create"], rows, 2);
    assert!(message.contains("line 3") && message.contains("no \"value\""), "{message}");
    assert_eq!(ok(&["scan", dir, "default", "--count"], ""), "2\n");
    assert!(fails(&["load", dir], "nonsense\n", 2).contains("line 1: not JSON"));
    assert!(fails(&["load", dir, "--format", "csv"], "a,b,c\n", 2).contains("3 columns"));
    assert!(fails(&["create", dir], "", 6).contains("already holds a database"));
    assert!(fails(&["get", "/nonexistent", "k", "k"], "", 4).contains("create one first"));
    fails(&["create", dir, "--page-size", "1000"], "", 2);
    fails(&["no-such-command"], "", 2);
    assert_eq!(ok(&["get", dir, "default", "b"], ""), "2\n");
}

#[test]
fn a_database_in_use_is_refused() {
    let place = Scratch::new("in-use");
    let dir = place.path().to_str().unwrap();
    ok(&["create", dir], "");
    // The load holds the database until its input ends.
    let mut holder = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["load", dir, "--batch", "1"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let holder_pid = holder.id().to_string();
    let mut stdin = holder.stdin.take().unwrap();
    writeln!(stdin, "{{\"key\":\"a\",\"value\":\"1\"}}").unwrap();
    stdin.flush().unwrap();
    let held = || std::fs::read_to_string(place.path().join("lock")).is_ok_and(|pid| pid.trim() == holder_pid);
    while !held() {
        assert!(holder.try_wait().unwrap().is_none(), "the load ended early");
        varve_rt::sleep(std::time::Duration::from_millis(10));
    }
    assert!(fails(&["get", dir, "default", "a"], "", 5).contains("in use"));
    drop(stdin);
    assert!(holder.wait().unwrap().success());
    assert_eq!(ok(&["get", dir, "default", "a"], ""), "1\n");
}

#[test]
fn flipped_bits_are_damage_with_an_exit_code_of_its_own() {
    let place = Scratch::new("flip");
    let dir = place.path().to_str().unwrap();
    let csv: String = (0..3000).map(|i| format!("key{i:05},{}\n", "x".repeat(100))).collect();
    ok(&["load", dir, "--create", "--format", "csv"], &csv);
    let data = place.path().join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let at = bytes.windows(20).position(|w| w == [b'x'; 20]).expect("the values are in the data file");
    bytes[at] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    let out = varve(&["check", dir], "");
    assert_eq!(out.status.code(), Some(3));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("page") && text.contains("checksum"), "{text}");
    let message = fails(&["scan", dir, "default"], "", 3);
    assert!(message.contains("checksum"), "{message}");
}
