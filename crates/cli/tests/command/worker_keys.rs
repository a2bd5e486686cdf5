//! Workers that are reached from other machines: connections that are encrypted, between sides that know each other.

use crate::support::serves::Serves;
use crate::support::{Scratch, fails, ok};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::Mutex;

/// Makes a key for each name.
fn keys(place: &Scratch, names: &[&str]) {
    for name in names {
        let said = ok(&["worker", "keygen", &place.at(name)], "");
        assert!(said.contains("--key") && said.contains("--peer") && said.contains(".cert"), "{said}");
    }
}

/// A worker that anybody may reach, with the first key, for the holder of the second.
fn secured(place: &Scratch, own: &str, peer: &str) -> Serves {
    let (own, peer) = (place.at(own), place.at(&format!("{peer}.cert")));
    let mut worker = Serves::start(&place.at("data"), "0.0.0.0:0", &["--key", &own, "--peer", &peer]);
    worker.at = worker.at.replace("0.0.0.0", "127.0.0.1");
    worker
}

#[test]
fn a_database_lies_with_a_worker_that_knows_it() {
    let place = Scratch::new("knows");
    keys(&place, &["host", "worker"]);
    let worker = secured(&place, "worker", "host");
    let (db, remote) = (place.at("db"), format!("remote:{}", worker.at));
    let (key, peer) = (place.at("host"), place.at("worker.cert"));
    ok(&["create", &db, "--data", &remote, "--key", &key, "--peer", &peer, "--keyspace", "e=lsm,merge=tstore"], "");
    ok(&["put", &db, "tree", "a", "1"], "");
    ok(&["put", &db, "e", "b", "2"], "");
    assert_eq!(ok(&["get", &db, "tree", "a"], "").trim(), "1");
    ok(&["check", &db], "");
    let status = ok(&["worker", "status", &worker.at, "--json", "--key", &key, "--peer", &peer], "");
    assert!(status.contains("\"merges\":true"), "{status}");

    // In the clear nobody is heard.
    let error = fails(&["worker", "status", &worker.at], "", 1);
    assert!(error.contains("it speaks TLS: give --key and --peer"), "{error}");
    // Files that are gone, or open to others, are named when the database is opened.
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).expect("a mode");
    let error = fails(&["get", &db, "tree", "a"], "", 2);
    assert!(error.contains(&key) && error.contains("chmod 600"), "{error}");
    std::fs::remove_file(&key).expect("it was there");
    let error = fails(&["get", &db, "tree", "a"], "", 2);
    assert!(error.contains(&key) && error.contains("keygen"), "{error}");
}

#[test]
fn who_shows_another_certificate_is_refused() {
    let place = Scratch::new("another");
    keys(&place, &["host", "worker", "other"]);
    let worker = secured(&place, "worker", "host");
    let create = |db: &str, at: &str, own: &str, peer: &str, status: i32| {
        let (db, remote) = (place.at(db), format!("remote:{at}"));
        let (own, peer) = (place.at(own), place.at(&format!("{peer}.cert")));
        let error = fails(&["create", &db, "--data", &remote, "--key", &own, "--peer", &peer], "", status);
        assert!(!Path::new(&db).join("remote").exists(), "nothing is left: {error}");
        error
    };
    // A host that the worker does not know, and a worker that the host does not.
    let error = create("db", &worker.at, "other", "worker", 1);
    assert!(error.contains("does not take this side's certificate") && error.contains("other.cert"), "{error}");
    let error = create("db", &worker.at, "host", "other", 1);
    assert!(error.contains("another certificate than") && error.contains("other.cert"), "{error}");
    // Its own certificate is none of the other side.
    let error = create("db", &worker.at, "host", "host", 1);
    assert!(error.contains("this side's own"), "{error}");
    // A worker in the clear.
    let plain = Serves::start(&place.at("plain"), "127.0.0.1:0", &[]);
    let error = create("db", &plain.at, "host", "worker", 1);
    assert!(error.contains("does not speak TLS"), "{error}");
    // The right one is still served.
    let status = ["worker", "status", &worker.at, "--key", &place.at("host"), "--peer", &place.at("worker.cert")];
    ok(&status, "");
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let place = Scratch::new("silent");
    keys(&place, &["host", "worker"]);
    let worker = secured(&place, "worker", "host");
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&worker.at).expect("it listens")).collect();
    let begun = varve_rt::now();
    ok(&["worker", "status", &worker.at, "--key", &place.at("host"), "--peer", &place.at("worker.cert")], "");
    let took = varve_rt::now() - begun;
    assert!(took < Duration::from_secs(8), "it took {took:?}");
    drop(silent);
}

#[test]
fn files_that_hold_no_keys_are_refused() {
    let place = Scratch::new("files");
    keys(&place, &["own", "peer"]);
    let (own, peer) = (place.at("own"), place.at("peer.cert"));
    let mode = std::fs::metadata(&own).expect("a key").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "a key is its owner's");
    let before = std::fs::read(&own).expect("a key");
    assert!(fails(&["worker", "keygen", &own], "", 6).contains("not overwritten"));
    std::fs::remove_file(place.path().join("own.cert")).expect("it was there");
    assert!(fails(&["worker", "keygen", &own], "", 6).contains("not overwritten"));
    assert!(std::fs::read(&own).expect("a key") == before && !place.path().join("own.cert").exists());

    let none = place.file("none", "no key at all");
    std::fs::set_permissions(&none, PermissionsExt::from_mode(0o600)).expect("a mode");
    let several = [std::fs::read(&peer).expect("PEM"), std::fs::read(&peer).expect("PEM")].concat();
    let several = place.file("several", several);
    let data = place.at("data");
    let serve = |key: &str, peer: &str| {
        let absent = [key, peer].iter().any(|file| file.ends_with("absent"));
        let code = if absent { 4 } else { 1 };
        fails(&["worker", "--listen", "0.0.0.0:0", "--data", &data, "--key", key, "--peer", peer], "", code)
    };
    for (key, peer, word) in [
        (&place.at("absent"), &peer, "keygen"),
        (&none, &peer, "not a certificate and its private key"),
        (&peer, &peer, "chmod 600"),
        (&own, &place.at("absent"), "FILE.cert"),
        (&own, &none, "not one certificate"),
        (&own, &several, "there are several"),
        (&own, &place.at("peer"), "private key"),
        (&own, &place.at(""), "not a file"),
    ] {
        let error = serve(key, peer);
        assert!(error.contains(word), "{word}: {error}");
    }
    // One without the other is nothing, and so are keys without a worker.
    fails(&["worker", "--listen", "127.0.0.1:0", "--data", &data, "--key", &own], "", 2);
    fails(&["worker", "--listen", "127.0.0.1:0", "--data", &data, "--peer", &peer], "", 2);
    let error = fails(&["create", &place.at("db"), "--key", &own, "--peer", &peer], "", 2);
    assert!(error.contains("remote:HOST:PORT"), "{error}");
    assert!(!Path::new(&data).exists() && !place.path().join("db").exists(), "nothing is made");
}

/// What goes through to `to` is written down, and one bit of what the host sends is changed, after as many bytes.
fn tap(to: &str, mut change: Option<usize>) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at, to) = (listener.local_addr().expect("bound").to_string(), to.to_string());
    let seen = Arc::<Mutex<Vec<u8>>>::default();
    let noted = seen.clone();
    varve_rt::spawn_daemon("tap", move || {
        for host in listener.incoming() {
            let mut host = host.expect("a connection");
            let mut worker = TcpStream::connect(&to).expect("the worker listens");
            let (mut back, mut from) = (host.try_clone().expect("a handle"), worker.try_clone().expect("a handle"));
            varve_rt::spawn_daemon("back", move || std::io::copy(&mut from, &mut back).map(drop));
            let mut piece = vec![0; 64 << 10];
            while let Ok(n @ 1..) = host.read(&mut piece) {
                let mut noted = noted.lock();
                if let Some(at) = change.filter(|at| *at < noted.len() + n) {
                    piece[at - noted.len()] ^= 1;
                    change = None;
                }
                noted.extend_from_slice(&piece[..n]);
                if worker.write_all(&piece[..n]).is_err() {
                    break;
                }
            }
            let _ = worker.shutdown(std::net::Shutdown::Both);
        }
    });
    (at, seen)
}

#[test]
fn nothing_can_be_read_or_changed_on_the_way() {
    let place = Scratch::new("way");
    keys(&place, &["host", "worker"]);
    let (key, peer) = (place.at("host"), place.at("worker.cert"));
    let secret = "nobody shall read this on the way";
    let told = |db: &str, worker: &Serves, change: Option<usize>, keys: &[&str]| {
        let (db, (at, seen)) = (place.at(db), tap(&worker.at, change));
        ok(&[&["create", &db, "--data", &format!("remote:{at}"), "--keyspace", "k"], keys].concat(), "");
        ok(&["put", &db, "k", "a", secret], "");
        assert_eq!(ok(&["get", &db, "k", "a"], "").trim(), secret);
        ok(&["check", &db], "");
        let seen = seen.lock();
        seen.windows(secret.len()).any(|bytes| bytes == secret.as_bytes())
    };
    let plain = Serves::start(&place.at("plain"), "127.0.0.1:0", &[]);
    assert!(told("clear", &plain, None, &[]), "the tap works");
    // The connection whose bytes were changed ends, and what was asked over it is asked again.
    let worker = secured(&place, "worker", "host");
    assert!(!told("sealed", &worker, Some(20_000), &["--key", &key, "--peer", &peer]));
}
