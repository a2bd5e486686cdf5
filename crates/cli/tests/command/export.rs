//! `trace export`, `lab export`: what is in the tables that other tools read.

use crate::support::{Scratch, fails};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_ipc::reader::FileReader;
use std::fs::File;

fn ok(args: &[&str]) -> String {
    crate::support::ok(args, "")
}

/// The only batch of a small table.
fn read(path: &str) -> RecordBatch {
    let reader = FileReader::try_new(File::open(path).expect("was written"), None).expect("an Arrow file");
    let mut batches = reader.collect::<Result<Vec<_>, _>>().expect("batches");
    assert_eq!(batches.len(), 1);
    batches.pop().expect("one")
}

fn numbers(table: &RecordBatch, name: &str) -> Vec<Option<u64>> {
    table.column_by_name(name).expect(name).as_primitive::<UInt64Type>().iter().collect()
}

fn texts<'t>(table: &'t RecordBatch, name: &str) -> Vec<Option<&'t str>> {
    table.column_by_name(name).expect(name).as_string::<i32>().iter().collect()
}

#[test]
fn requests_to_devices_have_a_row_each() {
    let place = Scratch::new("export-requests");
    let trace = place.file("mqsim", "1000 0 8 8 1\n2000 3 16 24 0\n");
    ok(&["trace", "export", &trace, &place.at("t.arrow"), "--quiet"]);
    let streamed = crate::support::bytes(&["trace", "export", &trace, "-"], "");
    assert_eq!(streamed, std::fs::read(place.at("t.arrow")).expect("was written"));
    let table = read(&place.at("t.arrow"));
    assert_eq!(numbers(&table, "time_ns"), [Some(1000), Some(2000)]);
    assert_eq!(numbers(&table, "sector"), [Some(8), Some(16)]);
    assert_eq!(numbers(&table, "bytes"), [Some(8 * 512), Some(24 * 512)]);
    assert_eq!(numbers(&table, "id"), [None, None]);
    let device = table.column_by_name("device").expect("there").as_primitive::<UInt32Type>();
    assert_eq!(device.values(), &[0, 3]);
    let op = table.column_by_name("op").expect("there").as_dictionary::<UInt8Type>();
    let names = op.downcast_dict::<arrow_array::StringArray>().expect("text");
    assert_eq!(names.into_iter().collect::<Vec<_>>(), [Some("read"), Some("write")]);
}

#[test]
fn what_a_pool_did_has_its_pages_and_reasons() {
    let place = Scratch::new("export-pool");
    let (db, trace) = (place.at("db"), place.at("t.trace"));
    let run = ["ycsb", "--dir", &db, "--workload", "a", "--records", "2000", "--seconds", "1", "--warmup", "0"];
    ok(&[&["trace", "record", "--out", &trace][..], &run].concat());
    ok(&["trace", "export", &trace, &place.at("t.arrow"), "--quiet"]);
    let info: serde_json::Value = serde_json::from_str(&ok(&["trace", "info", "--json", &trace])).expect("JSON");
    let reader = FileReader::try_new(File::open(place.at("t.arrow")).expect("written"), None).expect("an Arrow file");
    let (mut rows, mut flushes) = (0, 0);
    for batch in reader {
        let batch = batch.expect("a batch");
        rows += batch.num_rows() as u64;
        let op = batch.column_by_name("op").expect("there").as_dictionary::<UInt8Type>();
        flushes += op.keys().iter().filter(|op| *op == Some(5)).count() as u64;
        let why = texts(&batch, "why").into_iter().flatten().count() as u64;
        assert_eq!(why, op.keys().iter().filter(|op| *op == Some(5)).count() as u64, "every flush has a reason");
        assert!(numbers(&batch, "id").iter().all(Option::is_some));
    }
    assert_eq!(Some(rows), info["records"].as_u64());
    assert_eq!(Some(flushes), info["flushes"].as_u64());

    // `bench` records too, where it is told to; `trace record` has a place for that already.
    let (db, other) = (place.at("other"), place.at("other.trace"));
    let run = ["ycsb", "--dir", &db, "--records", "2000", "--seconds", "1", "--warmup", "0", "--trace", &other];
    ok(&[&["bench"][..], &run].concat());
    let info: serde_json::Value = serde_json::from_str(&ok(&["trace", "info", "--json", &other])).expect("JSON");
    assert!(info["records"].as_u64().is_some_and(|records| records > 0), "{info}");
    assert!(fails(&[&["trace", "record", "--out", &trace][..], &run].concat(), "", 2).contains("leave --trace out"));
}

#[test]
fn figures_of_results_have_a_row_each() {
    let place = Scratch::new("export-results");
    let point = |name: &str, axes: &str| {
        format!(
            r#"{{"experiment":"e","point":"{name}","axes":{axes},"seed":7,"config":"c","commit":"0","clock":"virtual",
            "scaled":[],"metrics":{{"tps":2.5}},"kinds":{{"pay":{{"count":3.0}}}},"latency":[],
            "series":{{"t":[1.0,2.0],"tps":[2.0,3.0]}}}}"#
        )
        .replace('\n', "")
    };
    let header = r#"{"experiment":"e","quick":false,"sets":[],"commit":"0","text":""}"#;
    let lines = [header, &point("one", r#"{"cache":"1"}"#), &point("two", r#"{"policy":"lru"}"#)].join("\n");
    place.file("e.jsonl", lines);
    ok(&["lab", "export", &place.at(""), &place.at("r.arrow")]);
    let table = read(&place.at("r.arrow"));
    let one = |name: &str| texts(&table, name)[..4].to_vec();
    assert_eq!(table.num_rows(), 8);
    assert_eq!(one("point"), [Some("one"); 4]);
    assert_eq!(one("axis:cache"), [Some("1"); 4]);
    assert_eq!(one("axis:policy"), [None; 4]);
    assert_eq!(texts(&table, "axis:policy")[4..], [Some("lru"); 4]);
    assert_eq!(one("figure"), [Some("tps"), Some("count"), Some("tps"), Some("tps")]);
    assert_eq!(one("kind"), [None, Some("pay"), None, None]);
    let floats = |name: &str| -> Vec<Option<f64>> {
        table.column_by_name(name).expect(name).as_primitive::<Float64Type>().iter().take(4).collect()
    };
    assert_eq!(floats("value"), [Some(2.5), Some(3.0), Some(2.0), Some(3.0)]);
    assert_eq!(floats("seconds"), [None, None, Some(1.0), Some(2.0)]);
    assert_eq!(numbers(&table, "seed"), [Some(7); 8]);
}

#[test]
fn a_table_is_not_written_over_what_it_is_made_of() {
    let place = Scratch::new("export-onto");
    let trace = place.file("trace", "1\n2\n1\n");
    let said = fails(&["trace", "export", &trace, &trace], "", 2);
    assert!(said.contains("would be overwritten"), "{said}");
    assert_eq!(std::fs::read_to_string(&trace).expect("there"), "1\n2\n1\n");
    let said = fails(&["lab", "export", &place.at(""), &place.at("r.arrow")], "", 2);
    assert!(said.contains("no results"), "{said}");
    assert!(!std::path::Path::new(&place.at("r.arrow")).exists());
}

#[test]
fn an_export_that_fails_leaves_the_table_of_before() {
    let place = Scratch::new("export-fails");
    let (good, table) = (place.file("good", "1000 0 8 8 1\n"), place.at("t.arrow"));
    let bad = place.file("bad", "1000 0 8 8 1\n2000 3 16 x 0\n");
    ok(&["trace", "export", &good, &table, "--quiet"]);
    let before = std::fs::read(&table).expect("written");
    fails(&["trace", "export", &bad, &table, "--quiet"], "", 3);
    assert_eq!(std::fs::read(&table).expect("still there"), before);
    assert!(!std::path::Path::new(&place.at("t.arrow.partial")).exists());
    std::os::unix::fs::symlink(&table, place.at("link")).expect("a link");
    ok(&["trace", "export", &good, &place.at("link"), "--quiet"]);
    assert!(std::fs::symlink_metadata(place.at("link")).expect("there").is_symlink(), "the link stays a link");
    let said = fails(&["trace", "export", &good, "/dev/null"], "", 2);
    assert!(said.contains("no file"), "{said}");
}
