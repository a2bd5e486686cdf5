//! `varve demo`: a page that needs nothing else, figures that fit each other, nothing left behind.

use crate::support::Scratch;
use serde_json::Value;
use std::process::Command;

/// Runs the demonstration with temporary files below `place`.
fn demo(place: &Scratch, args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args([&["demo", "--customers", "300"], args].concat())
        .env("TMPDIR", place.path())
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn the_page_holds_everything_and_the_data_goes() {
    let place = Scratch::new("page");
    let page = place.at("page.html");
    std::fs::write(&page, "x".repeat(1 << 20)).expect("an old page");
    let (code, said, complaints) = demo(&place, &["--json", "--out", &page]);
    assert_eq!(code, Some(0), "{complaints}");
    let said: Value = serde_json::from_str(&said).expect("one object");
    let points = said["demo"]["points"].as_array().expect("points");
    let misses = |policy: &str, at: usize| {
        let of = points.iter().filter(|p| p["policy"] == policy).nth(at).expect("a point");
        of["misses"].as_u64().expect("a number")
    };
    for at in 0..points.len() / 8 {
        for policy in ["lru", "fifo", "sieve", "s3-fifo", "2q", "arc", "lirs"] {
            assert!(misses("belady", at) <= misses(policy, at), "{policy} knows the future better");
        }
    }
    assert!(misses("lru", 0) > misses("lru", 4), "a larger cache misses less");
    let visits: u64 =
        said["demo"]["visits"].as_array().expect("kinds").iter().filter_map(|v| v["count"].as_u64()).sum();
    assert_eq!((visits, said["demo"]["planned"].as_u64()), (600, Some(600)));
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"), "nothing of the old page is left");
    assert_eq!(html.matches("<svg").count(), 4);
    for elsewhere in ["http", "<script", "<link", "src=", "NaN"] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["page.html"]);
}

#[test]
fn what_is_kept_can_be_used_on() {
    let place = Scratch::new("kept");
    let page = place.at("page.html");
    let (code, said, complaints) = demo(&place, &["--keep", "--out", &page]);
    assert_eq!(code, Some(0), "{complaints}");
    let kept = said.lines().find_map(|line| line.strip_prefix("kept")).expect("says where").trim();
    let dir = kept.split(':').next().expect("the directory first");
    assert_eq!(crate::support::ok(&["scan", &format!("{dir}/db"), "customers", "--count"], ""), "300\n");
    let replay =
        crate::support::ok(&["lab", "replay", &format!("{dir}/accesses"), "--policy", "lru", "--sizes", "10%"], "");
    assert!(replay.contains("lru"), "{replay}");
}

#[test]
fn a_page_that_cannot_be_written_is_said_at_once() {
    let place = Scratch::new("nowhere");
    let (code, _, complaints) = demo(&place, &["--out", &place.at("no/such/folder.html")]);
    assert!(code == Some(1) && complaints.contains("there is no folder"), "{complaints}");
    assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 0);
}
