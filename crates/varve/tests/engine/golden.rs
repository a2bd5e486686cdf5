//! Databases and backups that earlier builds left are opened, checked, salvaged and restored to the row.
//!
//! `tests/golden` has, for each change of a format, what the command of a build from then made (`zstd`): a database
//! that was closed, the same killed after some more rows, and a backup of the first. They are never made anew.
//! `segments-1` and `segments-2`: by the version of a segment's footer.

use crate::directories::Dir;
use std::collections::BTreeMap;
use std::path::Path;
use varve::{Db, Options, RestoreOptions};

const BUILDS: [&str; 2] = ["segments-1", "segments-2"];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn golden(build: &str, file: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(build).join(format!("{file}.zst"));
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    zstd::decode_all(&packed[..]).unwrap()
}

/// A database in a directory of a test's own.
fn unpacked(build: &str, which: &str, test: &str) -> Dir {
    let dir = Dir::absent(&format!("golden-{build}-{which}-{test}"));
    std::fs::create_dir_all(&dir.0).unwrap();
    for file in ["data", "log"] {
        std::fs::write(dir.0.join(file), golden(build, &format!("{which}/{file}"))).unwrap();
    }
    dir
}

/// What each of the two keyspaces has.
fn expected(which: &str) -> Rows {
    let value =
        |n: usize| if n.is_multiple_of(400) { "x".repeat(20_000) } else { format!("value of {n} ").repeat(n % 7) };
    let kept = (0..1500).filter(|n| n % 5 > 0).map(|n| (format!("row {n:06}"), value(n)));
    let late = (0..if which == "killed" { 100 } else { 0 }).map(|n| (format!("late {n:03}"), "late value".to_string()));
    kept.chain(late).map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect()
}

fn options() -> Options {
    Options { cache_bytes: 8 << 20, ..Options::default() }
}

/// Every row, then some more, a check, and the same after another opening.
fn holds(dir: &Path, rows: &Rows) {
    let db = Db::open(dir, options()).unwrap();
    for name in ["rows", "events"] {
        let space = db.keyspace(name).unwrap();
        let found: Rows = space.iter().unwrap().map(|row| row.unwrap()).collect();
        assert!(found == *rows, "{name}: {} rows of {}", found.len(), rows.len());
        space.put("new", "value").unwrap();
    }
    db.keyspace("events").unwrap().compact(None, ..).unwrap();
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
    let db = Db::open(dir, options()).unwrap();
    for name in ["rows", "events"] {
        assert_eq!(db.keyspace(name).unwrap().len().unwrap(), rows.len() as u64 + 1);
    }
    db.close().unwrap();
}

#[test]
fn databases_of_earlier_builds_are_opened() {
    for build in BUILDS {
        for which in ["closed", "killed"] {
            holds(&unpacked(build, which, "opened").0, &expected(which));
        }
    }
}

#[test]
fn databases_of_earlier_builds_are_salvaged() {
    for build in BUILDS {
        for which in ["closed", "killed"] {
            let (dir, rows) = (unpacked(build, which, "salvaged"), expected(which));
            let mut found = BTreeMap::<String, Rows>::new();
            let report = varve::salvage(&dir.0, &mut |row| {
                let of = found.entry(row.keyspace.to_string()).or_default();
                assert!(of.insert(row.key.to_vec(), row.value.to_vec()).is_none(), "a row comes once");
                Ok(())
            });
            assert!(report.unwrap().is_whole());
            let all = ["events", "rows"].map(|name| (name.to_string(), rows.clone()));
            assert!(found == BTreeMap::from(all), "{build}, {which}");
        }
    }
}

#[test]
fn backups_of_earlier_builds_are_restored() {
    for build in BUILDS {
        let dir = Dir::absent(&format!("golden-{build}-restored"));
        varve::restore(&dir.0, &mut [&mut &golden(build, "backup")[..]], &RestoreOptions::default()).unwrap();
        holds(&dir.0, &expected("closed"));
    }
}
