//! The library as an embedder has it who turns no feature on: a program of its own, built apart from this workspace, in
//! which other crates turn features on. It works, and what it cannot do it refuses by the feature's name.

use std::path::Path;
use std::process::Command;
use varve::{BackupOptions, Compression, Db, KeyspaceKind, Layout, LsmOptions, Options, RestoreOptions, restore};

const PROGRAM: &str = include_str!("embedder/program.rs");

/// Builds the program and runs it; what it says.
fn run(dir: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("embedder");
    std::fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"embedder\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         varve = {{ path = {:?} }}\n[profile.dev]\ndebug = false\n",
        root.join("crates/varve")
    );
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(package.join("src/main.rs"), PROGRAM).unwrap();
    std::fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["run", "--quiet", "--offline", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(package.join("target"))
        .arg("--")
        .arg(dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_library_without_features_works_and_names_the_feature_that_it_lacks() {
    let dir = std::env::temp_dir().join(format!("varve-embedder-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let zstd = KeyspaceKind::Lsm(LsmOptions { compression: Compression::Zstd, ..LsmOptions::default() });
    // Its options say zstd no more when the program opens it, some of its blocks are still packed so.
    let db = Db::create(dir.join("zstd"), &Layout::default(), Options::default()).unwrap();
    let events = db.create_keyspace_of("events", zstd).unwrap();
    events.put("a", vec![1; 10_000]).unwrap();
    events.compact(None, ..).unwrap();
    events.set_lsm_options(LsmOptions::default()).unwrap();
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions::default()).unwrap();
    std::fs::write(dir.join("zstd.backup"), backup).unwrap();
    drop(events);
    db.close().unwrap();
    Db::create(dir.join("remote"), &Layout::default(), Options::default()).unwrap().close().unwrap();
    std::fs::remove_file(dir.join("remote/data")).unwrap();
    std::fs::write(dir.join("remote/remote"), "varve remote 1\n127.0.0.1:1\n").unwrap();

    let said = run(&dir);
    println!("{said}");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 8 && lines[0] == "all the rest: done", "{said}");
    for (line, (what, feature)) in lines[1..].iter().zip([
        ("open zstd", "zstd"),
        ("salvage zstd", "zstd"),
        ("open remote", "near"),
        ("restore zstd", "zstd"),
        ("create zstd", "zstd"),
        ("set zstd", "zstd"),
        ("create remote", "near"),
    ]) {
        let named = format!("needs varve built with its feature `{feature}`");
        assert!(line.starts_with(&format!("{what}: Version: ")) && line.contains(&named), "{line}");
    }
    // What it made, a build with all features opens.
    let backup = std::fs::read(dir.join("own.backup")).unwrap();
    restore(dir.join("again"), &mut [&mut &backup[..]], &RestoreOptions::default()).unwrap();
    for made in ["own", "again"] {
        let db = Db::open(dir.join(made), Options::default()).unwrap();
        assert_eq!(db.keyspace("events").unwrap().iter().unwrap().count(), 1000, "{made}");
        db.close().unwrap();
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
