//! What `varve` needs can be published: descriptions, licences, keywords, and versions beside the paths of crates that
//! use each other. `.ci/release` packs the crates and builds them from their packages.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn packages() -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let out = Command::new(cargo).args(metadata).current_dir(root).output().expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    json["packages"].as_array().expect("packages").clone()
}

fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().expect("dependencies").iter().filter(|d| d["path"].is_string())
}

/// What a package lacks.
fn lacks(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().expect("a name");
    let folder = Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a folder");
    let mut found = Vec::new();
    for key in ["description", "license", "rust_version"] {
        if package[key].as_str().is_none_or(str::is_empty) {
            found.push(format!("{name}: no {key}"));
        }
    }
    for key in ["keywords", "categories"] {
        if !package[key].as_array().is_some_and(|all| (1..=5).contains(&all.len())) {
            found.push(format!("{name}: one to five {key} are needed"));
        }
    }
    if !package["publish"].is_null() {
        found.push(format!("{name}: it says that it is not published"));
    }
    if !folder.join("LICENSE").exists() {
        found.push(format!("{name}: no LICENSE"));
    }
    let version = format!("^{}", package["version"].as_str().expect("a version"));
    for used in dependencies(package) {
        // A crate's own tests turn its features on: cargo leaves that out of a package.
        let own = used["name"] == package["name"];
        if !own && used["req"] != version[..] {
            found.push(format!("{name}: {} needs the version {version} beside its path", used["name"]));
        }
    }
    found
}

#[test]
fn what_varve_needs_can_be_published() {
    let all = packages();
    let named = |name: &str| all.iter().find(|p| p["name"] == name).expect("a crate of the workspace");
    let (mut needed, mut next) = (BTreeSet::new(), vec!["varve"]);
    while let Some(name) = next.pop() {
        if needed.insert(name) {
            next.extend(dependencies(named(name)).map(|d| d["name"].as_str().expect("a name")));
        }
    }
    assert!(needed.contains("varve-rt") && needed.contains("varve-models"), "{needed:?}");
    let problems: Vec<String> = needed.iter().flat_map(|name| lacks(named(name))).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    // Nothing else goes out by mistake.
    for other in all.iter().filter(|p| !needed.contains(p["name"].as_str().expect("a name"))) {
        assert_eq!(other["publish"], Value::Array(Vec::new()), "{}: publish = false is missing", other["name"]);
    }
}
