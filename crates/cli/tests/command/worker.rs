//! `varve worker`: a database whose pages lie with another process, which is killed, started anew and refused.

use crate::support::serves::Serves;
use crate::support::{Scratch, fails, ok, varve};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// What the command says; it ends with this status.
fn run(args: &[&str], code: i32) -> String {
    if code == 0 { ok(args, "") } else { fails(args, "", code) }
}

#[test]
fn a_database_lies_with_a_worker() {
    let place = Scratch::new("lies");
    let (db, data) = (place.at("db"), place.at("data"));
    let worker = Serves::start(&data, "127.0.0.1:0", &["--memory-mb", "32"]);
    let remote = format!("remote:{}", worker.at);
    run(&["create", &db, "--data", &remote, "--keyspace", "events=lsm,merge=tstore"], 0);
    run(&["put", &db, "tree", "a", "1"], 0);
    run(&["put", &db, "events", "b", "2"], 0);
    assert_eq!(run(&["get", &db, "tree", "a"], 0).trim(), "1");
    run(&["check", &db], 0);

    // It is started anew, elsewhere or not at all: the database says so, and is whole when it is there again.
    let at = worker.at.clone();
    drop(worker);
    let gone = run(&["get", &db, "tree", "a"], 1);
    assert!(gone.contains(&at) && gone.contains("see that the worker runs"), "{gone}");
    let worker = Serves::start(&data, &at, &["--jobs", "0"]);
    assert_eq!(run(&["get", &db, "events", "b"], 0).trim(), "2");
    run(&["check", &db], 0);

    let status = run(&["worker", "status", &at, "--json"], 0);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((status["merges"].as_bool(), status["refused"].as_u64()), (Some(false), Some(0)), "{status}");
    assert!(status["read_bytes"].as_u64() > Some(0) && status["requests"].as_u64() > Some(0), "{status}");
    drop(worker);
}

/// A keyspace whose merges need a worker, where the worker serves blocks only: each opening says so in one line.
#[test]
fn merges_without_a_worker_are_warned_of() {
    let place = Scratch::new("warned");
    let (db, data) = (place.at("db"), place.at("data"));
    let worker = Serves::start(&data, "127.0.0.1:0", &[]);
    run(&["create", &db, "--data", &format!("remote:{}", worker.at), "--keyspace", "events=lsm,merge=tstore"], 0);
    let told = |args: &[&str]| {
        let out = varve(args, "");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        let [out, err] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).expect("text"));
        (out, err.lines().filter(|line| line.contains("worker")).map(String::from).collect::<Vec<_>>())
    };
    let info = ["keyspace", "info", &db, "events", "--json"];
    let without = |text: &str| {
        let info: serde_json::Value = serde_json::from_str(text).expect("JSON");
        info["without_worker"].as_bool()
    };
    assert_eq!(told(&["put", &db, "events", "a", "1"]).1, Vec::<String>::new());
    let (text, warnings) = told(&info);
    assert_eq!((without(&text), warnings.len()), (Some(false), 0));

    let at = worker.at.clone();
    drop(worker);
    let worker = Serves::start(&data, &at, &["--jobs", "0"]);
    let warning =
        "keyspace events (merge=tstore): the database has no worker near the data, so this process merges alone";
    assert_eq!(told(&["put", &db, "events", "b", "2"]).1, [warning]);
    let (text, warnings) = told(&info);
    assert_eq!((without(&text), &warnings[..]), (Some(true), &[warning.to_string()][..]));
    let stat: serde_json::Value = serde_json::from_str(&told(&["stat", &db, "--json"]).0).expect("JSON");
    assert_eq!(stat["lsm.events.without_worker"].as_str(), Some("tstore"));
    let all: serde_json::Value = serde_json::from_str(&told(&["info", &db, "--json"]).0).expect("JSON");
    assert_eq!(all["keyspaces"][0]["without_worker"].as_bool(), Some(true));
    let (text, _) = told(&["keyspace", "info", &db, "events"]);
    assert!(text.contains("none: this process merges alone, as pcp"), "{text}");
    run(&["compact", &db, "--keyspace", "events"], 0);
    // What needs none is not warned of.
    run(&["keyspace", "set", &db, "events", "merge=pcp"], 0);
    assert_eq!(told(&["put", &db, "events", "c", "3"]).1, Vec::<String>::new());
    drop(worker);
}

#[test]
fn how_the_sides_decide_is_set_and_told() {
    let place = Scratch::new("decides");
    let (db, data) = (place.at("db"), place.at("data"));
    let worker = Serves::start(&data, "127.0.0.1:0", &[]);
    run(&["create", &db, "--data", &format!("remote:{}", worker.at), "--keyspace", "events=lsm,merge=copro+"], 0);
    for (option, says) in [
        ("near.host.threshold=1.5", "give a share from 0 to 1"),
        ("near.worker.pairs=-1", "give a weight from 0 to 1"),
        ("near.worker.first=soon", "give pipeline, linear"),
        ("near.threshold=0.5", "there are: host.cpu"),
    ] {
        let said = run(&["put", &db, "events", "a", "1", "--set", option], 2);
        assert!(said.contains(says), "{option}: {said}");
    }
    // The threshold is reached by whatever there is, so both are linear; there is no other way to be told over the
    // worker's metrics, so that it is accepted is what is seen here.
    let linear = ["--set", "near.host.threshold=0", "--set", "near.worker.first=linear"];
    run(&[&["put", &db, "events", "a", "1"][..], &linear].concat(), 0);
    run(&[&["compact", &db, "--keyspace", "events"][..], &linear].concat(), 0);
    assert_eq!(run(&["get", &db, "events", "a"], 0).trim(), "1");
    drop(worker);
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comes for a request over HTTP.
fn ask(at: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.write_all(format!("{request} HTTP/1.1\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Each of these metrics has its line in the documentation, and no other is there.
fn documented(text: &str) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let mut rows = 0;
    for help in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = help.split_once(' ').expect("a name");
        let kind = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).expect("a type");
        let row = format!("| `{name}` | {kind} | {help} |\n");
        assert!(page.contains(&row), "docs/metrics.md lacks {row}");
        rows += 1;
    }
    assert_eq!(page.matches("| `varve_worker_").count(), rows, "docs/metrics.md tells of metrics that are gone");
}

#[test]
fn a_worker_serves_its_metrics() {
    let place = Scratch::new("metrics");
    let (db, data) = (place.at("db"), place.at("data"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
    command.args(["worker", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data", &data, "--buffered"]);
    let mut process = Ends(command.arg("--json").stdout(Stdio::piped()).spawn().expect("the command runs"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let told: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let (at, url) = (told["listen"].as_str().expect("an address"), told["metrics"].as_str().expect("a URL"));
    let host = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("of metrics");
    let number = |name: &str| {
        let text = ask(host, "GET /metrics");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains(&format!("# TYPE varve_worker_{name} ")), "{text}");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("varve_worker_{name} ")));
        line.and_then(|n| n.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    };
    assert_eq!((number("written_bytes_total"), number("attachments_total")), (0.0, 0.0));
    run(&["create", &db, "--data", &format!("remote:{at}"), "--keyspace", "events=lsm,merge=tstore"], 0);
    run(&["put", &db, "events", "b", "2"], 0);
    run(&["compact", &db, "--keyspace", "events"], 0);
    run(&["put", &db, "events", "b", "3"], 0);
    run(&["compact", &db, "--keyspace", "events"], 0);
    let sent = ["written_bytes_total", "read_bytes_total", "requests_total", "attachments_total"];
    let merged = ["merges_done_total", "merge_read_bytes_total", "merge_written_bytes_total"];
    let machine = ["device_bytes", "uptime_seconds", "request_memory_bytes", "merge_free_bytes", "resident_bytes"];
    for name in [&sent[..], &merged, &machine].concat() {
        assert!(number(name) > 0.0, "{name}");
    }
    let idle = ["merges_waiting", "merges_running", "merges_failed_total", "refused_total", "connections"];
    assert_eq!(idle.map(number), [0.0; 5]);
    let (cores, used) = (number("cores"), number("cpu_seconds_total"));
    assert!(cores >= 1.0 && used >= 0.0, "{cores}, {used}");
    documented(&ask(host, "GET /metrics"));
    // Whoever is connected is counted.
    let _host = TcpStream::connect(at).expect("it listens");
    while number("connections") < 1.0 {
        varve_rt::sleep(std::time::Duration::from_millis(5));
    }
    assert!(ask(host, "GET /advise").starts_with("HTTP/1.1 404 "));
    let taken = run(&["worker", "--listen", "127.0.0.1:0", "--metrics", host, "--data", &place.at("other")], 1);
    assert!(taken.contains("another process listens there"), "{taken}");
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Scratch::new("refused");
    let (db, data) = (place.at("db"), place.at("data"));
    for far in ["0.0.0.0:0", "192.168.1.1:7070", "[::]:0"] {
        let error = run(&["worker", "--listen", far, "--data", &data], 2);
        assert!(error.contains("loopback") && error.contains("encrypted"), "{error}");
        let error = run(&["create", &db, "--data", &format!("remote:{far}")], 2);
        assert!(error.contains("loopback"), "{error}");
    }
    for wrong in ["nowhere", "127.0.0.1", "127.0.0.1:99999"] {
        let error = run(&["worker", "--listen", wrong, "--data", &data], 2);
        assert!(error.contains("HOST:PORT"), "{error}");
        run(&["worker", "status", wrong], 2);
    }
    run(&["worker", "--listen", "127.0.0.1:0"], 2);
    run(&["worker", "--listen", "127.0.0.1:0", "--data", "/dev/null"], 1);
    run(&["worker", "status", "127.0.0.1:1"], 1);
    run(&["create", &db, "--data", "remote:127.0.0.1:1"], 1);
    assert!(!std::path::Path::new(&db).exists(), "nothing is left");

    let worker = Serves::start(&data, "127.0.0.1:0", &[]);
    let error = run(&["worker", "--listen", "127.0.0.1:0", "--data", &data], 5);
    assert!(error.contains("in use by another worker"), "{error}");
    let error = run(&["worker", "--listen", &worker.at, "--data", &place.at("other")], 1);
    assert!(error.contains("another process listens there"), "{error}");
    let remote = format!("remote:{}", worker.at);
    run(&["create", &db, "--data", &remote, "--fast", &format!("{}:16M", place.at("fast"))], 2);
    run(&["create", &db, "--data", &remote], 0);
    // Its device belongs to that database now.
    let error = run(&["create", &place.at("second"), "--data", &remote], 6);
    assert!(error.contains("already holds a database"), "{error}");
    run(&["put", &db, "k", "a", "1"], 0);
    // What is in the directory may be damaged.
    std::fs::write(place.path().join("db/remote"), "varve remote 9\nwho knows\n").expect("a file");
    let error = run(&["get", &db, "k", "a"], 3);
    assert!(error.contains("remote") && error.contains("HOST:PORT"), "{error}");
}

/// One that takes connections and says nothing is not waited for any longer than the documentation says.
#[test]
fn a_worker_that_says_nothing_is_given_up() {
    let place = Scratch::new("silent");
    let db = place.at("db");
    let worker = Serves::start(&place.at("data"), "127.0.0.1:0", &[]);
    run(&["create", &db, "--data", &format!("remote:{}", worker.at)], 0);
    let at = worker.at.clone();
    drop(worker);
    let listener = std::net::TcpListener::bind(&at).expect("nobody listens there");
    let said = run(&["get", &db, "k", "a"], 1);
    assert!(said.contains("did not answer within 15000 ms"), "{said}");
    // It was tried once.
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_ok() && listener.accept().is_err());
}

/// What a database cannot have is said before anything is made.
#[test]
fn a_creation_that_cannot_be_finished_leaves_nothing() {
    let place = Scratch::new("nothing");
    for keyspaces in [["a", "events=lsm,merge=copro"], ["a", "a"], ["a", ""]] {
        let said = run(&["create", &place.at("db"), "--keyspace", keyspaces[0], "--keyspace", keyspaces[1]], 2);
        assert!(said.contains("keyspace"), "{said}");
        assert!(!place.path().join("db").exists(), "{keyspaces:?}");
    }
}

#[test]
fn a_torture_kills_worker_and_database() {
    let place = Scratch::new("torture");
    let dir = place.at("db");
    let args = ["torture", "--worker", "--dir", &dir, "--rounds", "1", "--threads", "1"];
    let told = run(&args, 0);
    assert!(told.contains("every acknowledged commit is there") && told.contains("worker: killed"), "{told}");
    assert!(run(&["torture", "--worker", "--layout", "array", "--dir", &dir], 2).contains("--worker"));
    run(&["torture", "--layout", "near", "--dir", &dir], 2);
}
