//! Metrics as those who gather them meet them: the endpoint of a working process, the text format, what is documented
//! and charted.

use crate::support::serves::Serves;
use crate::support::{Scratch, fails, ok};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use varve::metrics::{CONTENT_TYPE, FAMILIES, Kind};

/// A benchmark that works until it is dropped, and where its metrics are.
struct Working {
    child: Child,
    at: String,
}

impl Working {
    fn new(dir: &str, more: &[&str]) -> Working {
        let mut child = Command::new(env!("CARGO_BIN_EXE_varve"))
            .args(["bench", "ycsb", "--dir", dir, "--records", "2000", "--seconds", "600", "--threads", "2"])
            .args(["--metrics", "127.0.0.1:0", "--cache-mb", "4", "--durability", "none"])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut working = Working { child, at: String::new() };
        let (mut said, mut line) = (String::new(), String::new());
        while stderr.read_line(&mut line).expect("text") > 0 {
            if let Some(url) = line.strip_prefix("metrics at http://") {
                working.at = url.trim().strip_suffix("/metrics").expect("the path").to_string();
                // What else it says is of no interest, but must not fill the pipe.
                varve_rt::spawn("listener", move || drop(std::io::copy(&mut stderr, &mut std::io::sink())));
                return working;
            }
            said += &std::mem::take(&mut line);
        }
        panic!("no endpoint: {said}");
    }

    /// Status line and headers, and body, of an answer.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.at).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_string(), body.to_string())
    }

    fn scrape(&self) -> BTreeMap<String, f64> {
        let (head, body) = self.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Type: {CONTENT_TYPE}")), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
        parse(&body)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'))
}

/// Reads the text format strictly: every sample belongs to the family begun last by HELP and TYPE, each family comes
/// once, as it is declared, with its labels in order; values are finite. Gives the samples.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let (mut samples, mut begun, mut helped) = (BTreeMap::new(), BTreeSet::new(), None);
    let mut family = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and its help");
            assert!(is_name(name) && help.ends_with('.') && help == help.trim(), "{line}");
            helped = Some(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and its type");
            assert_eq!(helped.take(), Some(name), "HELP comes before TYPE");
            assert!(begun.insert(name), "{name} comes twice");
            let found = FAMILIES.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name} is not declared"));
            assert_eq!(kind, found.kind.name(), "{name}");
            family = Some(*found);
        } else {
            let family = family.expect("a sample belongs to a family");
            let rest = line.strip_prefix(family.name).unwrap_or_else(|| panic!("{line} is not of {}", family.name));
            let (labels, value) = rest.rsplit_once(' ').expect("a value");
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let inner = labels.strip_prefix('{').map_or("", |l| l.strip_suffix('}').expect("a closing brace"));
            let pairs: Vec<&str> = inner.split(',').filter(|p| !p.is_empty()).collect();
            assert_eq!(pairs.len(), family.labels.len(), "{line}");
            for (pair, name) in pairs.iter().zip(family.labels) {
                let value = pair.strip_prefix(&format!("{name}=\"")).and_then(|v| v.strip_suffix('"'));
                assert!(value.is_some_and(|v| !v.is_empty() && !v.contains(['"', '\\'])), "{line}");
            }
            assert!(
                samples.insert(line.rsplit_once(' ').unwrap().0.to_string(), value).is_none(),
                "{line} comes twice"
            );
        }
    }
    samples
}

#[test]
fn a_working_process_is_scraped() {
    let place = Scratch::new("scraped");
    let working = Working::new(&place.at("db"), &[]);
    let first = working.scrape();
    varve_rt::sleep(std::time::Duration::from_millis(300));
    let second = working.scrape();
    for (name, value) in &first {
        let family = FAMILIES.iter().find(|f| name.split('{').next() == Some(f.name)).unwrap();
        if family.kind == Kind::Counter {
            assert!(second[name] >= *value, "{name} fell from {value} to {}", second[name]);
        }
    }
    let rose = |name: &str| second[name] - first[name];
    assert!(rose("varve_transactions_committed_total") > 0.0);
    assert!(rose("varve_pool_hits_total{kind=\"leaf\"}") > 0.0 && rose("varve_log_groups_total") > 0.0);
    assert!(rose("varve_open_seconds") >= 0.3);
    assert!(second["varve_device_busy_seconds_total{device=\"log\"}"] > 0.0);

    let (head, body) = working.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty());
    assert!(working.ask("GET / HTTP/1.1\r\n\r\n").1.contains("/metrics"));
    assert!(working.ask("GET /other HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404"));
    let (head, _) = working.ask("POST /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405") && head.contains("Allow: GET, HEAD"));

    // What the command makes of it.
    let url = format!("http://{}", working.at);
    let lines = ok(&["--json", "stat", &url, "--watch", "0.2", "--count", "3"], "");
    let lines: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert!(line["seconds"].as_f64().unwrap() >= 0.2);
        assert!(line["gauges"]["varve_pool_frames"].as_u64().unwrap() > 0);
    }
    let committed = |line: &serde_json::Value| line["counters"]["varve_transactions_committed_total"].as_u64().unwrap();
    assert!(lines.iter().map(committed).sum::<u64>() > 0);
    let table = ok(&["stat", &url, "--watch", "0.1", "--count", "2"], "");
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().all(|l| l.len() == table.lines().next().unwrap().len()), "{table}");
    parse(&ok(&["stat", &url, "--prometheus"], ""));
    assert!(ok(&["stat", &url], "").contains("varve_pool_frames"));
    assert!(fails(&["top", &url], "", 2).contains("top draws on a terminal"));
    let once = ok(&["top", &url, "--once", "--every", "0.2"], "");
    assert!(once.lines().count() == 24 && once.lines().all(|line| line.chars().count() <= 80), "{once}");
    assert!(["transactions", "hit ratio", "checkpoint"].iter().all(|title| once.contains(title)), "{once}");
    assert!(fails(&["stat", &place.at("db")], "", 5).contains("varve stat http://HOST:PORT"));

    let other = place.at("other");
    let said = fails(&["bench", "ycsb", "--dir", &other, "--metrics", &working.at], "", 1);
    assert!(said.contains("another process listens there"), "{said}");
    drop(working);
    let said = fails(&["stat", &url], "", 1);
    assert!(said.contains("no process serves metrics at"), "{said}");
}

#[test]
fn a_database_with_a_tier_tells_of_it() {
    let place = Scratch::new("tier");
    let fast = format!("{}:1M", place.at("fast-part"));
    let slow = place.at("slow-part");
    let working = Working::new(&place.at("db"), &["--slow", &slow, "--fast", &fast]);
    let told = working.scrape();
    let families: BTreeSet<&str> = told.keys().map(|name| name.split('{').next().unwrap()).collect();
    // What a file does not report of itself is left out.
    let missing: Vec<_> = FAMILIES.iter().map(|f| f.name).filter(|name| !families.contains(name)).collect();
    let elsewhere = ["varve_array_", "varve_page_updates_", "varve_new_pages_", "varve_lsm_", "varve_near_"];
    let elsewhere = |name: &&str| elsewhere.iter().any(|start| name.starts_with(start));
    let missing: Vec<_> = missing.into_iter().filter(|name| !elsewhere(name)).collect();
    assert_eq!(missing, ["varve_tier_life_used_ratio"]);
}

/// Host and worker are told of by the metrics, and seen in `top`.
#[test]
fn a_database_with_a_worker_tells_of_both_sides() {
    let place = Scratch::new("sides");
    let worker = Serves::start(&place.at("data"), "127.0.0.1:0", &["--memory-mb", "32"]);
    let kind = "lsm,merge=copro+,memtable=64K,segment=64K,blocks=4K,block=4K";
    let decided = ["--set", "near.worker.first=linear", "--set", "near.worker.hysteresis=0.7"];
    let remote = format!("remote:{}", worker.at);
    let working = Working::new(
        &place.at("db"),
        &[&["--data", &remote, "--kind", kind, "--workload", "a"], &decided[..]].concat(),
    );
    let of = |side: &str, name: &str| format!("varve_near_{name}{{side=\"{side}\"}}");
    let told = loop {
        let told = working.scrape();
        if ["host", "worker"].iter().all(|side| told[&of(side, "tasks_total")] > 0.0) {
            break told;
        }
        varve_rt::sleep(std::time::Duration::from_millis(20));
    };
    let names: BTreeSet<&str> = told.keys().map(|name| name.split('{').next().unwrap()).collect();
    let near: Vec<&str> = FAMILIES.iter().map(|f| f.name).filter(|name| name.starts_with("varve_near_")).collect();
    assert!(near.len() > 15 && near.iter().all(|name| names.contains(name)), "{near:?}");
    assert_eq!((told[&of("host", "pipelined")], told[&of("worker", "pipelined")]), (1.0, 0.0));
    assert_eq!(told[&of("worker", "pipelined_tasks_total")], 0.0);
    for ratio in ["cpu_ratio", "memory_ratio", "large_ratio"] {
        assert!(["host", "worker"].iter().all(|side| (0.0..=1.0).contains(&told[&of(side, ratio)])), "{ratio}");
    }
    assert!(
        told[&of("host", "memory_ratio")] > 0.0 && told["varve_near_link_bytes_total{direction=\"to_worker\"}"] > 1e5
    );
    let once = ok(&["top", &working.at, "--once", "--every", "0.2"], "");
    let panels = ["┌ lsm ", "┌ lsm reads ", "┌ near ", "┌ near: host ", "┌ near: worker ", "piped/linear", "fallbacks"];
    assert!(once.lines().count() == 32 && panels.iter().all(|title| once.contains(title)), "{once}");
    let refused = fails(&["bench", "ycsb", "--dir", &place.at("x"), "--set", "near.host.threshold=2"], "", 2);
    assert!(refused.contains("give a share from 0 to 1"), "{refused}");
}

#[test]
fn a_database_on_an_array_tells_of_each_drive() {
    let place = Scratch::new("drives");
    let drives = [format!("{}:64M", place.at("a")), format!("{}:64M", place.at("b"))];
    let working = Working::new(&place.at("db"), &["--drive", &drives[0], "--drive", &drives[1]]);
    let told = working.scrape();
    let families: BTreeSet<&str> = told.keys().map(|name| name.split('{').next().unwrap()).collect();
    let missing: Vec<_> = FAMILIES.iter().map(|f| f.name).filter(|name| !families.contains(name)).collect();
    let elsewhere = ["varve_tier_", "varve_page_updates_", "varve_new_pages_", "varve_lsm_", "varve_near_"];
    assert!(missing.iter().all(|name| elsewhere.iter().any(|start| name.starts_with(start))), "{missing:?}");
    for drive in ["0", "1"] {
        assert!(told[&format!("varve_array_operations_total{{drive=\"{drive}\",op=\"write\"}}")] > 0.0);
        assert_eq!(told[&format!("varve_array_errors_total{{drive=\"{drive}\",op=\"write\"}}")], 0.0);
    }
}

#[test]
fn a_database_with_an_lsm_keyspace_tells_of_it() {
    let place = Scratch::new("lsm");
    let working = Working::new(&place.at("db"), &["--kind", "lsm,memtable=64K,segment=64K,block=4K"]);
    // Levels are told of when there are segments on them: a while after the writes.
    let told = (0..600)
        .find_map(|_| {
            varve_rt::sleep(std::time::Duration::from_millis(50));
            let told = working.scrape();
            let has = |name: &str| told.keys().any(|key| key.starts_with(name));
            let done = has("varve_lsm_segments{") && has("varve_lsm_looks_total{") && has("varve_lsm_debt_seconds{");
            done.then_some(told)
        })
        .expect("segments are written");
    let families: BTreeSet<&str> = told.keys().map(|name| name.split('{').next().unwrap()).collect();
    let missing = FAMILIES.iter().map(|f| f.name).filter(|name| name.starts_with("varve_lsm_"));
    let missing: Vec<_> = missing.filter(|name| !families.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(told["varve_lsm_flushes_total{keyspace=\"ycsb\"}"] > 0.0, "it holds 2 MB");
    assert!(told["varve_lsm_amplification{keyspace=\"ycsb\",of=\"write\"}"] > 2.0, "log, flush and merges");
}

/// With a pool smaller than its data a database writes pages all the time, and says how much they changed.
#[test]
fn sizes_of_updates_are_told_by_keyspace() {
    let place = Scratch::new("updates");
    let working = Working::new(&place.at("db"), &["--fields", "20", "--set", "update_sizes=true"]);
    let url = format!("http://{}", working.at);
    let rows = (0..600)
        .find_map(|_| {
            varve_rt::sleep(std::time::Duration::from_millis(50));
            let told = working.scrape();
            let done = told.get("varve_page_updates_total{keyspace=\"ycsb\",le=\"+Inf\"}").is_some_and(|n| *n > 50.0);
            done.then(|| serde_json::from_str::<serde_json::Value>(&ok(&["--json", "stat", &url, "--updates"], "")))
        })
        .expect("updates are written");
    let rows = rows.expect("JSON");
    let table = rows.as_array().unwrap().iter().find(|row| row["keyspace"] == "ycsb").expect("of the workload");
    let share = |which: &str, at: usize| table[which][at][1].as_f64().unwrap();
    assert!(table["updates"].as_f64().unwrap() > 50.0, "{table}");
    for at in 0..14 {
        // Gross sizes count the page's metadata too; a share of all smaller ones never falls.
        assert!(share("net", at) >= share("gross", at), "{table}");
        assert!(at == 0 || share("gross", at) >= share("gross", at - 1), "{table}");
    }
    assert!(ok(&["stat", &url, "--updates"], "").contains("ycsb"));
    drop(working);
    let said = fails(&["stat", &place.at("db"), "--updates"], "", 1);
    assert!(said.contains("--set update_sizes=true"), "{said}");
}

#[test]
fn stat_of_a_directory() {
    let place = Scratch::new("stat");
    let dir = place.at("db");
    ok(&["create", &dir], "");
    ok(&["put", &dir, "fruit", "apple", "red"], "");
    let told = parse(&ok(&["stat", &dir, "--prometheus"], ""));
    assert_eq!(told["varve_pages{state=\"allocated\"}"] + told["varve_pages{state=\"free\"}"], 64.0);
    let line = ok(&["--json", "stat", &dir, "--watch", "0.1", "--count", "1"], "");
    let line: serde_json::Value = serde_json::from_str(&line).expect("one object");
    assert_eq!(line["counters"]["varve_transactions_committed_total"], 0);
    assert!(fails(&["--json", "stat", &dir, "--prometheus"], "", 2).contains("choose one"));
    assert!(fails(&["stat", &dir, "--watch", "0"], "", 2).contains("0.1 to 86400"));
    fails(&["stat", &dir, "--count", "2"], "", 2);
    assert!(fails(&["stat", "http://nowhere"], "", 2).contains("HOST:PORT"));
    assert!(fails(&["bench", "ycsb", "--metrics", "nonsense"], "", 2).contains("HOST:PORT"));
    assert!(fails(&["top", "nonsense"], "", 2).contains("HOST:PORT"));
}

#[test]
fn what_answers_is_not_always_varve() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = ["HTTP/1.0 200 OK\r\n\r\nup 1\n", "HTTP/1.0 500 Oh\r\n\r\n", "SSH-2.0\n"];
    let server = varve_rt::spawn("server", move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    assert!(fails(&["stat", &url], "", 1).contains("not with metrics of Varve"));
    assert!(fails(&["stat", &url], "", 1).contains("status 500"));
    assert!(fails(&["stat", &url], "", 1).contains("does not speak HTTP"));
    server.join().unwrap();
}

fn root(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_metric_is_declared_well_and_documented() {
    let page = root("docs/metrics.md");
    let mut names = BTreeSet::new();
    let mut missing = String::new();
    for f in FAMILIES {
        assert!(f.name.starts_with("varve_") && is_name(f.name) && names.insert(f.name), "{}", f.name);
        assert_eq!(f.name.ends_with("_total"), f.kind == Kind::Counter, "{}", f.name);
        let foreign = ["ns", "ms", "us", "kb", "mib", "percent", "nanos", "millis"];
        assert!(!f.name.split('_').any(|word| foreign.contains(&word)), "{}: base units only", f.name);
        let row = format!("| `{}` | {} | {} | {} |\n", f.name, f.kind.name(), f.labels.join(", "), f.help);
        if !page.contains(&row) {
            missing += &row;
        }
    }
    assert!(missing.is_empty(), "docs/metrics.md lacks:\n{missing}");
    let (_, list) = page.split_once("## All of them").expect("the list");
    let rows = list.lines().filter(|line| line.starts_with("| `varve_")).count();
    assert_eq!(rows, FAMILIES.len(), "docs/metrics.md tells of metrics that are gone");
}

/// Names of metrics in a text, each with the labels asked of it.
fn used(expr: &str) -> Vec<(String, Vec<String>)> {
    let ident = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in expr.match_indices("varve_") {
        let rest = &expr[at..];
        let name: String = rest.chars().take_while(|c| ident(*c)).collect();
        let labels = rest[name.len()..].strip_prefix('{').map_or("", |l| l.split('}').next().unwrap());
        let labels = labels.split(',').filter_map(|l| Some(l.split(['=', '!']).next()?.trim().to_string()));
        found.push((name, labels.filter(|l| !l.is_empty() && l != "instance").collect()));
    }
    found
}

#[test]
fn the_dashboard_shows_what_there_is() {
    let dashboard: serde_json::Value = serde_json::from_str(&root("contrib/grafana/varve.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut count = 0;
    for panel in panels {
        assert!(!panel["title"].as_str().unwrap().is_empty());
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().expect("an expression");
            for (name, labels) in used(expr) {
                let family = FAMILIES.iter().find(|f| f.name == name);
                let family = family.unwrap_or_else(|| panic!("{}: there is no {name}", panel["title"]));
                let known = labels.iter().all(|l| family.labels.contains(&l.as_str()));
                assert!(known, "{name} has labels {:?}, not {labels:?}", family.labels);
                let rated = ["rate(", "increase("].iter().any(|f| expr.contains(&format!("{f}{name}")));
                assert_eq!(rated, family.kind == Kind::Counter, "{expr}: rates of counters, and of nothing else");
                count += 1;
            }
        }
    }
    assert!(panels.len() >= 12 && count >= 25, "{} panels, {count} metrics", panels.len());
    assert_eq!(
        used("rate(varve_a_total{op=\"x\",instance=~\"$i\"}[5m])"),
        [("varve_a_total".into(), vec!["op".into()])]
    );
}
