//! LSM keyspaces from the command line: made, looked at, changed, merged; the benchmarks of `db_bench` on them.

use crate::support::{Scratch, fails, ok};
use std::path::Path;

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(ok(args, "").lines().last().expect("a line")).expect("JSON")
}

#[test]
fn a_keyspace_is_made_looked_at_changed_and_merged() {
    let place = Scratch::new("keyspace");
    let dir = place.at("db");
    ok(&["create", &dir], "");
    ok(&["keyspace", "create", &dir, "events", "--kind", "lsm,compression=lz4,memtable=64K"], "");
    assert!(fails(&["keyspace", "create", &dir, "events"], "", 6).contains("already"));
    let twice = fails(&["keyspace", "create", &dir, "other", "--kind", "lsm,memtable=1M,memtable=2M"], "", 2);
    assert!(twice.contains("memtable is given twice"), "{twice}");
    let said = fails(&["keyspace", "create", &dir, "other", "--kind", "lsm,colour=red"], "", 2);
    assert!(said.contains("compression, filter-bits, block"), "{said}");
    let rows: String =
        (0..3000).map(|n| format!("{{\"keyspace\":\"events\",\"key\":\"k{n:05}\",\"value\":\"{n}\"}}\n")).collect();
    // Not in order: by transactions.
    ok(&["load", &dir, "--keyspace", "events"], rows.lines().rev().map(|l| format!("{l}\n")).collect::<String>());
    ok(&["delete", &dir, "events", "--range", "k00100", "k02900"], "");
    let info = json(&["keyspace", "info", &dir, "events", "--json"]);
    assert_eq!((&info["kind"], &info["options"]["compression"]), (&"lsm".into(), &"lz4".into()));
    ok(&["keyspace", "set", &dir, "events", "compression=zstd", "l0-trigger=2"], "");
    let info = ok(&["keyspace", "info", &dir, "events"], "");
    assert!(info.contains("lsm,compression=zstd") && info.contains("level 0"), "{info}");
    let said = fails(&["keyspace", "set", &dir, "events", "kind=tree"], "", 2);
    assert!(said.contains("cannot change") && said.contains("compression, filter-bits"), "{said}");
    assert!(fails(&["keyspace", "set", &dir, "events", "l0-stop=1"], "", 2).contains("l0-trigger"));
    assert!(fails(&["compact", &dir, "--keyspace", "events", "--level", "6"], "", 2).contains("0 to 5"));
    let merged = json(&["compact", &dir, "--keyspace", "events", "--json"]);
    assert!(merged["bytes"].as_u64() < merged["bytes_before"].as_u64(), "what was deleted is gone: {merged}");
    assert_eq!(ok(&["scan", &dir, "events", "--count"], "").trim(), "200");
    ok(&["keyspace", "create", &dir, "tree"], "");
    let said = fails(&["compact", &dir, "--keyspace", "tree"], "", 2);
    assert!(said.contains("is a tree"), "{said}");
    let said = fails(&["put", &dir, "events", "long"], vec![b'x'; (32 << 20) + 1000], 2);
    assert!(said.contains("longer than") && !said.contains("bytes: "), "{said}");
    assert!(fails(&["keyspace", "set", &dir, "tree", "block=4K"], "", 2).contains("is a tree"));
    assert!(ok(&["check", &dir], "").contains("no damage found"));
}

/// Merging a keyspace down all its levels takes the room of a level more, not of all of them.
#[test]
fn merging_all_levels_does_not_multiply_the_file() {
    let place = Scratch::new("room");
    let dir = place.at("db");
    ok(&["create", &dir, "--keyspace", "events=lsm,memtable=256K,segment=256K"], "");
    // In an order of its own, so that it is not loaded in bulk.
    let rows: String = (0..40_000u32).map(|n| format!("{:08},{n:060}\n", n.wrapping_mul(7919) % 40_009)).collect();
    ok(&["load", &dir, "--keyspace", "events", "--format", "csv"], rows);
    let merged = json(&["compact", &dir, "--keyspace", "events", "--json"]);
    let (stored, data) = (merged["bytes"].as_u64().expect("bytes"), Path::new(&dir).join("data"));
    let file = std::fs::metadata(data).expect("it is there").len();
    assert!(file < stored * 4, "{file} bytes of data for {stored} of segments");
    assert_eq!(ok(&["scan", &dir, "events", "--count"], "").trim(), "40000");
    assert!(ok(&["check", &dir], "").contains("no damage found"));
}

/// An empty keyspace stays what it is when a load into it is killed.
#[test]
fn a_keyspace_outlives_a_load_that_is_killed() {
    use std::io::Write;
    let place = Scratch::new("killed");
    let dir = place.at("db");
    ok(&["create", &dir], "");
    ok(&["keyspace", "create", &dir, "events", "--kind", "lsm,compression=lz4,memtable=64K"], "");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["load", &dir, "--keyspace", "events"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("piped");
    // More than the pipe and what waits between the threads hold: some of it has been taken.
    for row in 0..100_000 {
        writeln!(input, "{{\"key\":\"k{row:06}\",\"value\":\"{row:0100}\"}}").expect("it reads");
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let info = json(&["keyspace", "info", &dir, "events", "--json"]);
    assert_eq!((&info["kind"], &info["options"]["compression"]), (&"lsm".into(), &"lz4".into()));
    assert_eq!(ok(&["scan", &dir, "events", "--count"], "").trim(), "0");
    ok(&["load", &dir, "--keyspace", "events"], "{\"key\":\"a\",\"value\":\"1\"}\n");
    let info = json(&["keyspace", "info", &dir, "events", "--json"]);
    assert_eq!(&info["kind"], "lsm");
}

/// What changes in the four bytes behind a byte that changes so, for every CRC-32C over all of them to stay.
fn balance(change: u8) -> [u8; 4] {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    (0..8).fold(u32::from(change), step).to_le_bytes()
}

/// Checksums are right, entries are not in order: damage of a segment, not a mistake of the engine.
#[test]
fn a_merge_tells_entries_out_of_order_as_damage() {
    let place = Scratch::new("order");
    let dir = place.at("db");
    ok(&["create", &dir, "--keyspace", "events=lsm,compression=none"], "");
    let rows: String = (0..2000).map(|n| format!("k{n:05},value of {n:05}\n")).collect();
    ok(&["load", &dir, "--keyspace", "events", "--format", "csv"], rows);
    let data = Path::new(&dir).join("data");
    let mut bytes = std::fs::read(&data).expect("it is there");
    let at = bytes.windows(15).position(|found| found == b"4value of 00004").expect("it is there");
    bytes[at] ^= b'4' ^ b'1';
    bytes[at + 1..].iter_mut().zip(balance(b'4' ^ b'1')).for_each(|(byte, change)| *byte ^= change);
    std::fs::write(&data, bytes).expect("written");
    fails(&["check", &dir], "", 3);
    ok(&["put", &dir, "events", "k00000", "new"], "");
    let said = fails(&["compact", &dir, "--keyspace", "events"], "", 3);
    for part in ["keyspace", "segment", "page", "entries do not ascend"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(ok(&["get", &dir, "events", "k01000"], ""), "value of 01000\n");
}

#[test]
fn db_bench_runs_on_both_kinds() {
    for kind in ["tree", "lsm,memtable=64K,segment=64K,block=4K"] {
        let place = Scratch::new(kind.split(',').next().expect("a name"));
        let dir = place.at("db");
        let run = |benchmarks: &str| {
            let args =
                ["bench", "dbbench", "--quiet", "--dir", &dir, "--kind", kind, "--num", "2000", "--cache-mb", "8"];
            ok(&[&args[..], &["--benchmarks", benchmarks]].concat(), "")
        };
        let told =
            run("fillrandom,overwrite,readrandom,readseq,readreverse,seekrandom,readwhilewriting,deleterandom,compact");
        let line = |name: &str| told.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name}: {told}"));
        assert!(told.contains("Entries:    2000") && told.contains("Keys:       16 bytes each"), "{told}");
        for name in ["fillrandom", "overwrite", "readseq", "readreverse", "deleterandom"] {
            assert!(line(name).contains("micros/op") && line(name).contains(" operations;"), "{told}");
        }
        assert!(line("readrandom").contains("of 2000 found)") && line("compact").contains("micros/op"), "{told}");
        // The keyspace stays; what fills begins anew.
        let told = run("fillseq,readmissing,readrandom");
        assert!(told.contains("(0 of 2000 found)") && told.contains("(2000 of 2000 found)"), "{told}");
        assert!(ok(&["check", &dir], "").contains("no damage found"));
    }
    let place = Scratch::new("wrong");
    let said = fails(&["bench", "dbbench", "--dir", &place.at("db"), "--benchmarks", "fillsync"], "", 2);
    assert!(said.contains("fillseq, fillrandom"), "{said}");
}
