//! `varve lab replay` and `varve trace` as their users meet them: every format, the shape of a line, what is refused
//! and how, and a trace of a running engine beside the engine's own counters.

use crate::support::{Scratch, fails};
use serde_json::Value;
use std::path::Path;

fn ok(args: &[&str]) -> String {
    crate::support::ok(args, "")
}

/// What is said when it goes wrong, with this exit status.
fn refused(args: &[&str], code: i32) -> String {
    fails(args, "", code)
}

fn shipped(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name).to_str().unwrap().into()
}

/// The lines of `lab replay --json`.
fn replay(args: &[&str]) -> Vec<Value> {
    let text = ok(&[&["lab", "replay", "--json"], args].concat());
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

fn misses(args: &[&str]) -> u64 {
    let lines = replay(args);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0]["misses"].as_u64().unwrap()
}

/// Misses of LRU with `size` pages, the slow way.
fn lru(pages: &[u64], size: usize) -> u64 {
    let mut stack: Vec<u64> = Vec::new();
    let mut missed = 0;
    for page in pages {
        match stack.iter().position(|p| p == page) {
            Some(at) => drop(stack.remove(at)),
            None => missed += 1,
        }
        stack.insert(0, *page);
        stack.truncate(size);
    }
    missed
}

#[test]
fn a_line_has_the_keys_that_were_promised_and_figures_that_agree() {
    let args = ["--policy", "lru,fifo,belady", "--sizes", "1000,5000"];
    let text = ok(&[&["lab", "replay", &shipped("arc-OLTP.lis.zst"), "--json"], &args[..]].concat());
    let first = text.lines().next().unwrap();
    assert!(first.starts_with(r#"{"policy":"lru","size":1000,"references":914145,"misses":"#), "{first}");
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 6, "a line for each policy and size");
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 5, "{line}");
        let (n, misses) = (line["references"].as_u64().unwrap(), line["misses"].as_u64().unwrap());
        assert!((line["miss_ratio"].as_f64().unwrap() - misses as f64 / n as f64).abs() < 1e-12, "{line}");
    }
    // Hit ratios of the ARC paper's table, percent: LRU with 1000 and 5000 pages.
    let hits = |policy: &str, size: u64| -> f64 {
        let line = lines.iter().find(|l| l["policy"] == policy && l["size"] == size).unwrap();
        100.0 * (1.0 - line["miss_ratio"].as_f64().unwrap())
    };
    assert!((hits("lru", 1000) - 32.83).abs() < 0.02 && (hits("lru", 5000) - 53.65).abs() < 0.02);
    assert!(hits("belady", 1000) > hits("lru", 1000) && hits("lru", 1000) > hits("fifo", 1000));
}

#[test]
fn the_published_block_traces_are_read_compressed_and_plain() {
    let scratch = Scratch::new("published");
    let info =
        |args: &[&str]| -> Value { serde_json::from_str(&ok(&[&["trace", "info", "--json"], args].concat())).unwrap() };
    let vscsi = shipped("cloudPhysicsIO.vscsi.zst");
    let of = |v: &Value, key: &str| v[key].as_u64().unwrap();
    let pages = info(&[&vscsi]);
    assert_eq!(
        (pages["format"].as_str(), of(&pages, "references"), of(&pages, "pages")),
        (Some("vscsi1"), 1_053_519, 265_873)
    );
    assert_eq!(of(&info(&[&vscsi, "--objects", "starts"]), "references"), 113_872);
    let mqsim = shipped("mqsim-wsrch-small.trace.zst");
    let wsrch = info(&[&mqsim, "--trace-page-size", "8192"]);
    assert_eq!((wsrch["format"].as_str(), of(&wsrch, "records")), (Some("mqsim"), 24_783));
    // In our own format the same references miss as often.
    let ours = scratch.at("ours");
    ok(&["trace", "convert", &vscsi, &ours, "--quiet"]);
    assert_eq!(info(&[&ours])["format"], "varve");
    let sizes = ["--policy", "lru", "--sizes", "5000"];
    assert_eq!(misses(&[&[&ours[..]], &sizes[..]].concat()), misses(&[&[&vscsi[..]], &sizes[..]].concat()));
}

/// The same references in every format miss alike, and as often as the slow way says.
#[test]
fn every_format_gives_the_same_references() {
    let scratch = Scratch::new("formats");
    let mut state = 88172645463325252_u64;
    let pages: Vec<u64> = (0..4000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 60) * (state / 64 % 20)
        })
        .collect();
    let text = |line: &dyn Fn(usize, u64) -> String| -> String {
        pages.iter().enumerate().map(|(i, p)| line(i, *p) + "\n").collect()
    };
    let binary = |record: &dyn Fn(u64, u64) -> Vec<u8>| -> Vec<u8> {
        pages.iter().enumerate().flat_map(|(i, p)| record(i as u64, *p)).collect()
    };
    let join = |parts: &[&[u8]]| parts.concat();
    // A page of 4 KiB each; vscsi pages begin at sector 63.
    let sector = |p: u64| 63 + 8 * p;
    let files = [
        ("ids", scratch.file("ids", text(&|_, p| p.to_string()))),
        ("lis", scratch.file("lis", text(&|i, p| format!("{p} 1 0 {i}")))),
        ("csv", scratch.file("csv", "time,obj_id,obj_size\n".to_string() + &text(&|i, p| format!("{i},{p},1")))),
        ("mqsim", scratch.file("mqsim", text(&|i, p| format!("{} 0 {} 8 1", i * 1000, 8 * p)))),
        ("disksim", scratch.file("disksim", text(&|i, p| format!("{}.500 0 {} 8 1", i, 8 * p)))),
        (
            "oracle-general",
            scratch.file(
                "oracle",
                binary(&|i, p| {
                    join(&[
                        &(i as u32 / 100).to_le_bytes(),
                        &p.to_le_bytes(),
                        &4096_u32.to_le_bytes(),
                        &(-1_i64).to_le_bytes(),
                    ])
                }),
            ),
        ),
        (
            "vscsi1",
            scratch.file(
                "vscsi1",
                binary(&|i, p| {
                    let head = [&(i as u32).to_le_bytes()[..], &4096_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
                    join(&[
                        &head,
                        &0x28_u16.to_le_bytes(),
                        &0x100_u16.to_le_bytes(),
                        &sector(p).to_le_bytes(),
                        &(i * 100).to_le_bytes(),
                    ])
                }),
            ),
        ),
        (
            "vscsi2",
            scratch.file(
                "vscsi2",
                binary(&|i, p| {
                    let head =
                        [&0x28_u16.to_le_bytes()[..], &0x200_u16.to_le_bytes(), &(i as u32).to_le_bytes()].concat();
                    let sizes = [&4096_u32.to_le_bytes()[..], &1_u32.to_le_bytes()].concat();
                    join(&[&head, &sizes, &sector(p).to_le_bytes(), &(i * 100).to_le_bytes(), &50_u64.to_le_bytes()])
                }),
            ),
        ),
    ];
    let expected = lru(&pages, 100);
    assert!(expected > 500 && expected < 3500, "{expected} misses tell nothing");
    for (format, file) in &files {
        let told: Value = serde_json::from_str(&ok(&["trace", "info", "--json", file])).unwrap();
        assert_eq!(told["format"], *format, "told from the content");
        assert_eq!(misses(&[file, "--policy", "lru", "--sizes", "100"]), expected, "{format}");
        assert_eq!(
            misses(&[file, "--format", format, "--policy", "lru", "--sizes", "100"]),
            expected,
            "{format}, named"
        );
    }
    // Columns in another order, without names.
    let swapped = scratch.file("swapped", text(&|i, p| format!("{p}\t{i}\tread")));
    let columns = ["--format", "csv", "--csv", "id=1,time=2,op=3,delimiter=tab"];
    assert_eq!(misses(&[&[&swapped[..], "--policy", "lru", "--sizes", "100"], &columns[..]].concat()), expected);
}

#[test]
fn bad_files_and_arguments_are_told_what_is_wrong() {
    let scratch = Scratch::new("bad");
    let lis = scratch.file("cut.lis", "1 1 0 0\n2 1 0 1\n3 one 0 2\n");
    let said = refused(&["lab", "replay", &lis], 3);
    assert!(said.contains("cut.lis") && said.contains("line 3") && said.contains("--format"), "{said}");
    let mut vscsi = Vec::new();
    for i in 0..300_u64 {
        vscsi.extend([&(i as u32).to_le_bytes()[..], &4096_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat());
        vscsi.extend(
            [&0x28_u16.to_le_bytes()[..], &0x100_u16.to_le_bytes(), &i.to_le_bytes(), &i.to_le_bytes()].concat(),
        );
    }
    vscsi.truncate(vscsi.len() - 7);
    let said = refused(&["lab", "replay", &scratch.file("cut.vscsi", &vscsi)], 3);
    assert!(said.contains("cut.vscsi") && said.contains("byte 9568"), "{said}");
    let zst = std::fs::read(shipped("mqsim-tpcc-small.trace.zst")).unwrap();
    let said = refused(&["trace", "info", &scratch.file("cut.zst", &zst[..zst.len() / 2])], 3);
    assert!(said.contains("cut.zst"), "{said}");
    for (name, bytes) in
        [("empty", &b""[..]), ("noise", &[0xff, 0, 3, 9, 0x80, 7][..]), ("words", &b"no trace at all\n"[..])]
    {
        let said = refused(&["lab", "replay", &scratch.file(name, bytes)], 2);
        assert!(said.contains(name) && said.contains("oracle-general"), "the formats are listed: {said}");
    }
    let said = refused(&["lab", "replay", &scratch.at("missing")], 4);
    assert!(said.contains("missing") && said.contains("No such file"), "{said}");
    let good = scratch.file("good", "1\n2\n1\n");
    assert!(refused(&["lab", "replay", &good, "--policy", "lfu"], 2).contains("s3-fifo"), "the policies are listed");
    assert!(refused(&["lab", "replay", &good, "--sizes", "0"], 2).contains("such as 1000"));
    assert!(refused(&["lab", "replay", &good, "--format", "parquet"], 2).contains("vscsi1"));
    let said = refused(&["trace", "convert", &good, &scratch.at("no/such/place")], 1);
    assert!(said.contains("no/such/place"), "{said}");
}

/// Recorded from a running engine whose pool is an LRU, replayed at the pool's size, a trace misses what the pool
/// missed.
#[test]
fn a_recorded_run_replays_to_the_engines_own_counters() {
    let scratch = Scratch::new("record");
    let (trace, dir) = (scratch.at("run.trace"), scratch.at("db"));
    let load = "--workload c --records 20000 --seconds 1 --warmup 0 --threads 1 --no-check";
    let pool = "--cache-mb 8 --pool-instances 1 --replacement lru --cleaner off --durability none";
    let rest = format!("--dir {dir} --json --quiet {load} {pool}");
    let with = |command: &str| -> String {
        let line = format!("{command} {rest}");
        ok(&line.split_whitespace().collect::<Vec<_>>())
    };
    // Loaded and closed first: the recorded run begins with an empty pool, as replay does, and dirties nothing.
    with("bench ycsb");
    let run: Value =
        serde_json::from_str(with(&format!("trace record --out {trace} ycsb")).lines().last().unwrap()).unwrap();
    let of = |key: &str| run[key].as_u64().unwrap_or_else(|| panic!("{key}: {run}"));
    let (hits, missed, frames) = (of("page_hits"), of("page_misses"), of("frames").to_string());
    assert!(missed > 200 && hits > 500, "{run}");
    let info: Value = serde_json::from_str(&ok(&["trace", "info", "--json", &trace])).unwrap();
    assert_eq!(info["format"], "varve");
    let references = info["references"].as_u64().unwrap();
    assert!(
        references.abs_diff(hits + missed) * 1000 <= references,
        "{references} references, {hits} hits, {missed} misses"
    );
    let replayed = misses(&[&trace, "--policy", "lru", "--sizes", &frames]);
    // Hits reach the pool's policy in small batches, and a few frames are kept free: a hair of difference.
    assert!(replayed.abs_diff(missed) * 50 <= missed, "replay misses {replayed}, the pool {missed}, {frames} frames");
}
