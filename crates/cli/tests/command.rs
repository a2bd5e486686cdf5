//! The command as its users meet it: data on stdout, messages on stderr, exit codes, nothing lost on bad input.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("varve-command-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Place(dir)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn varve(args: &[&str], input: Option<&str>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    if let Some(input) = input {
        stdin.write_all(input.as_bytes()).expect("the command reads its input");
    }
    drop(stdin);
    child.wait_with_output().expect("the command ends")
}

fn ok(args: &[&str], input: Option<&str>) -> String {
    let out = varve(args, input);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn fails(args: &[&str], input: Option<&str>, code: i32) -> String {
    let out = varve(args, input);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stderr).expect("text")
}

#[test]
fn keys_and_values_from_the_shell() {
    let place = Place::new("kv");
    let dir = place.path().to_str().unwrap();
    ok(&["create", dir, "--keyspace", "fruit"], None);
    for (key, value) in [("apple", "red"), ("banana", "yellow"), ("cherry", "dark red")] {
        ok(&["put", dir, "fruit", key, value], None);
    }
    ok(&["put", dir, "fruit", "durian"], Some("from standard input"));
    assert_eq!(ok(&["get", dir, "fruit", "cherry"], None), "dark red\n");
    assert_eq!(ok(&["get", dir, "fruit", "durian"], None), "from standard input\n");
    assert_eq!(ok(&["--json", "get", dir, "fruit", "apple"], None), "{\"value\":\"red\"}\n");
    assert_eq!(ok(&["get", "--hex", dir, "fruit", "6170706c65"], None), "726564\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--from", "b", "--to", "d"], None), "banana\tyellow\ncherry\tdark red\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--reverse", "--limit", "1"], None), "durian\tfrom standard input\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--prefix", "ba"], None), "banana\tyellow\n");
    assert_eq!(ok(&["scan", dir, "fruit", "--count"], None), "4\n");
    ok(&["delete", dir, "fruit", "apple"], None);
    assert!(fails(&["get", dir, "fruit", "apple"], None, 4).contains("no such key"));
    fails(&["delete", dir, "fruit", "apple"], None, 4);
    assert!(fails(&["get", dir, "fruits", "apple"], None, 1).contains("no keyspace named \"fruits\""));
    assert!(fails(&["get", "--hex", dir, "fruit", "zz"], None, 2).contains("not hexadecimal"));
    assert!(ok(&["check", dir], None).contains("no damage found"));
    assert!(ok(&["info", dir], None).contains("fruit"));
    let stat: serde_json::Value = serde_json::from_str(&ok(&["--json", "stat", dir], None)).expect("one JSON object");
    assert!(stat["memory.frames.limit"].as_u64().unwrap() > 0);
}

#[test]
fn what_is_dumped_can_be_loaded() {
    let (a, b) = (Place::new("dump-a"), Place::new("dump-b"));
    let (from, to) = (a.path().to_str().unwrap(), b.path().to_str().unwrap());
    let csv: String = (0..2500).map(|i| format!("key{i:05},value {i}\n")).collect();
    ok(&["load", from, "--format", "csv", "--keyspace", "rows"], Some(&csv));
    ok(&["put", from, "--hex", "bytes", "ff00", "fe0a"], None);
    let dump = ok(&["dump", from], None);
    assert_eq!(dump.lines().count(), 2501);
    ok(&["load", to], Some(&dump));
    assert_eq!(ok(&["dump", to], None), dump);
    assert_eq!(ok(&["get", to, "rows", "key01234"], None), "value 1234\n");
    assert_eq!(ok(&["get", "--hex", to, "bytes", "ff00"], None), "fe0a\n");
}

#[test]
fn rows_out_of_order_and_keyspaces_with_rows_are_loaded_all_the_same() {
    let place = Place::new("orders");
    let dir = place.path().to_str().unwrap();
    // Ascending, then not, a key twice, and a second keyspace in between.
    let row = |ks: &str, k: u32, v: u32| format!("{{\"keyspace\":\"{ks}\",\"key\":\"{k:05}\",\"value\":\"{v}\"}}\n");
    let mut rows = String::new();
    (0..3000).for_each(|k| rows += &row("a", 2 * k, k));
    (0..3000).for_each(|k| rows += &(row("b", k, 7) + &row("a", 6000 - k, k)));
    rows += &row("a", 1, 9);
    let said = String::from_utf8(varve(&["load", dir], Some(&rows)).stderr).unwrap();
    assert!(said.contains("a: the keys ascend for 3001 rows") && !said.contains("b:"), "{said}");
    assert_eq!(ok(&["scan", dir, "a", "--count"], None), "4502\n");
    assert_eq!(ok(&["scan", dir, "b", "--count"], None), "3000\n");
    assert_eq!(ok(&["get", dir, "a", "05998"], None), "2\n", "the later row of a key counts");
    assert_eq!(ok(&["get", dir, "a", "00010"], None), "5\n");
    // Into what is there: nothing of it is lost.
    ok(&["load", dir, "--keyspace", "b"], Some("{\"key\":\"x\",\"value\":\"1\"}\n"));
    assert_eq!(ok(&["scan", dir, "b", "--count"], None), "3001\n");
    ok(&["delete", dir, "b", "x"], None);
    assert!(ok(&["check", dir], None).contains("no damage found"));
}

#[test]
fn bad_input_is_named_and_loses_nothing() {
    let place = Place::new("bad");
    let dir = place.path().to_str().unwrap();
    let rows = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n{\"key\":\"c\"}\n";
    let message = fails(&["load", dir], Some(rows), 2);
    assert!(message.contains("line 3") && message.contains("no \"value\""), "{message}");
    assert_eq!(ok(&["scan", dir, "default", "--count"], None), "2\n");
    assert!(fails(&["load", dir], Some("nonsense\n"), 2).contains("line 1: not JSON"));
    assert!(fails(&["load", dir, "--format", "csv"], Some("a,b,c\n"), 2).contains("3 columns"));
    assert!(fails(&["create", dir], None, 1).contains("already holds a database"));
    assert!(fails(&["get", "/nonexistent", "k", "k"], None, 1).contains("create one first"));
    fails(&["create", dir, "--page-size", "1000"], None, 2);
    fails(&["no-such-command"], None, 2);
    assert_eq!(ok(&["get", dir, "default", "b"], None), "2\n");
}

#[test]
fn a_database_in_use_is_refused() {
    let place = Place::new("in-use");
    let dir = place.path().to_str().unwrap();
    ok(&["create", dir], None);
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
    assert!(fails(&["get", dir, "default", "a"], None, 5).contains("in use"));
    drop(stdin);
    assert!(holder.wait().unwrap().success());
    assert_eq!(ok(&["get", dir, "default", "a"], None), "1\n");
}

#[test]
fn flipped_bits_are_damage_with_an_exit_code_of_its_own() {
    let place = Place::new("flip");
    let dir = place.path().to_str().unwrap();
    let csv: String = (0..3000).map(|i| format!("key{i:05},{}\n", "x".repeat(100))).collect();
    ok(&["load", dir, "--format", "csv"], Some(&csv));
    let data = place.path().join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let at = bytes.windows(20).position(|w| w == [b'x'; 20]).expect("the values are in the data file");
    bytes[at] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    let out = varve(&["check", dir], None);
    assert_eq!(out.status.code(), Some(3));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("page") && text.contains("checksum"), "{text}");
    let message = fails(&["scan", dir, "default"], None, 3);
    assert!(message.contains("checksum"), "{message}");
}
