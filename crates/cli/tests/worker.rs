//! `varve worker`: a database whose pages lie with another process, which is killed, started anew and refused.

mod support;

use support::serves::Serves;
use support::{Scratch, fails, ok};

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
    assert!(!std::path::Path::new(&db).join("log").exists(), "nothing is left");

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
