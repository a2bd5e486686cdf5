//! `varve probe` and `varve bench iomix` as their users meet them: figures, saved profiles, what is refused.

use crate::support::{Scratch, fails};

fn ok(args: &[&str]) -> String {
    crate::support::ok(args, "")
}

fn refused(args: &[&str], words: &[&str]) {
    let said = fails(args, "", 2);
    words.iter().for_each(|w| assert!(said.contains(w), "{said:?} lacks {w:?}"));
}

#[test]
fn a_model_is_probed_saved_and_loaded_again() {
    let dir = Scratch::new("saved");
    let (file, bad) = (&dir.at("saved.toml")[..], dir.file("bad.toml", "name = \"x\"\n[mix]\nread_rnd = 1\n"));
    let quick = ["probe", "--quick", "--mixes", "none", "--profile"];
    let json = ok(&[&quick[..], &["samsung-850", "--json", "--save", file]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["plausible"] == true && json["points"].as_array().unwrap().len() > 10);
    let text = ok(&[&quick[..], &["disk-15k"]].concat());
    assert!(text.contains("184.") && text.contains("MB/s by request size"), "{text}");

    let load = ["bench", "iomix", "--size", "2m", "--depth", "4", "--seconds", "2", "--json", "--profile"];
    let sample: serde_json::Value = serde_json::from_str(&ok(&[&load[..], &[file]].concat())).unwrap();
    let rate = sample["mb_s"].as_f64().unwrap();
    assert!((rate / 560.0 - 1.0).abs() < 0.05, "the saved drive reads at {rate} MB/s");

    refused(&["probe", "--profile", &bad], &["line 3", "read_rnd", "read_random"]);
}

/// Probes a profile's model in little time; the report, and the text if it was not believed.
fn probed(name: &str, kind: &str) -> serde_json::Value {
    // A flash drive is written once before it is measured; seeks depend on the range, those of a disk.
    let range: &[&str] = if kind == "flash" { &["--range", "64m"] } else { &[] };
    let less = ["probe", "--sizes", "4k,2m,8m", "--mixes", "2m", "--depths", "1", "--json"];
    serde_json::from_str(&ok(&[&less[..], range, &["--profile", name]].concat())).expect("one JSON object")
}

#[test]
fn every_profile_that_ships_gives_its_parameters_back() {
    let names = ok(&["probe", "--list", "--json"]);
    let names: Vec<serde_json::Value> = names.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(names.len() >= 14, "{names:?}");
    for listed in &names {
        let (name, kind) = (listed["name"].as_str().unwrap(), listed["kind"].as_str().unwrap());
        let report = probed(name, kind);
        // A device of fixed times may be faster than any device is; nothing else may be found.
        let found = report["findings"].as_array().unwrap();
        let too_fast = |f: &serde_json::Value| kind == "fixed" && f.as_str().unwrap().starts_with("impossible");
        assert!(found.iter().all(too_fast), "{name}: {found:?}");
        let parameters = report["parameters"].as_array().unwrap();
        assert!(parameters.len() >= 2, "{name}: {parameters:?}");
        for p in parameters {
            assert!(p["difference"].as_f64().unwrap().abs() <= 0.03, "{name}: {p}");
            assert!(p["given"].as_f64().unwrap() != 0.0 || p["measured"].as_f64().unwrap() == 0.0, "{name}: {p}");
        }
    }
}

#[test]
fn the_table_shows_what_the_profile_says_beside_what_was_measured() {
    let text = ok(&["probe", "--quick", "--mixes", "none", "--no-chart", "--profile", "gd2l-ssd"]);
    let line = text.lines().find(|l| l.starts_with("random write 4 KB, us")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_whitespace().rev().collect();
    assert_eq!(words[3], "270.00", "given: {line}");
    assert!(words[0] == "%" && words[1].parse::<f64>().unwrap().abs() < 3.0, "difference: {line}");
}

#[test]
fn a_directory_is_probed_and_left_as_it_was() {
    let dir = Scratch::new("dir");
    let path = dir.path().to_str().unwrap();
    let less = [
        "probe",
        path,
        "--sizes",
        "4k",
        "--mixes",
        "none",
        "--depths",
        "1",
        "--range",
        "8m",
        "--seconds",
        "0.02",
        "--json",
    ];
    let report: serde_json::Value = serde_json::from_str(&ok(&less)).unwrap();
    assert!(report["clock"] == "real" && report["parameters"].as_array().unwrap().is_empty(), "{report}");
    for p in report["points"].as_array().unwrap() {
        let (iops, spread, repeats) = (p["iops"].as_f64(), p["spread"].as_f64(), p["repeats"].as_u64());
        assert!(iops.unwrap() > 0.0 && spread.unwrap() >= 0.0 && (3..=12).contains(&repeats.unwrap()), "{p}");
    }
    let load: serde_json::Value = serde_json::from_str(&ok(&[
        "bench",
        "iomix",
        path,
        "--seconds",
        "0.05",
        "--depth",
        "2",
        "--reads",
        "50",
        "--range",
        "8m",
        "--json",
    ]))
    .unwrap();
    assert!(load["iops"].as_f64().unwrap() > 0.0 && load["clock"] == "real", "{load}");
    let volume = ["bench", "iomix", path, "--seconds", "0.05", "--page-size", "8k", "--size", "16k", "--reads", "50"];
    let on_pages: serde_json::Value =
        serde_json::from_str(&ok(&[&volume[..], &["--range", "8m", "--json"]].concat())).unwrap();
    assert!(on_pages["iops"].as_f64().unwrap() > 0.0 && on_pages["load"]["bytes"] == 16384, "{on_pages}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no scratch file is left");
}

#[test]
fn wrong_arguments_are_told_what_is_right() {
    refused(&["probe"], &["--profile"]);
    refused(&["probe", "--profile", "disk-99k"], &["disk-15k", "nvme-tlc"]);
    refused(&["bench", "iomix", "--profile", "disk-15k", "--size", "5k"], &["4096"]);
    refused(&["bench", "iomix", "--profile", "disk-15k", "--seconds", "no"], &["seconds"]);
    refused(&["bench", "iomix", "--profile", "disk-15k", "--page-size", "8k", "--size", "4k"], &["pages of 8192"]);
    refused(&["bench", "iomix", "--profile", "disk-15k", "--page-size", "12k"], &["4096, 8192"]);
    assert!(ok(&["probe", "--list"]).contains("openssd-jasmine"));
}

/// The scratch file of a probe that is killed goes with it.
#[test]
fn a_killed_probe_leaves_no_file() {
    let dir = Scratch::new("killed");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["probe", &dir.at("")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the command starts");
    let place = dir.path().to_owned();
    // It has a name for a moment, then the system says of the open file that it was deleted.
    let open = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        names.filter(|name| name.starts_with(&place)).any(|name| name.to_string_lossy().ends_with(" (deleted)"))
    };
    while !open(child.id()) {
        assert!(child.try_wait().expect("a child").is_none(), "it keeps a file without a name while it works");
        varve_rt::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "no scratch file is left");
}
