//! `varve lab`: the experiments that come with the program, small; results that repeat; errors that name the place.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn varve(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_varve")).args(arguments).output().expect("the command runs")
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// Times small enough for every build of the command.
const SMALL: [&str; 6] = ["--set", "clients=2", "--set", "warmup_s=5", "--set", "run.seconds=20"];

#[test]
fn an_experiment_repeats_byte_for_byte_and_goes_on_where_it_was() {
    let dirs = [scratch("lab-a"), scratch("lab-b")];
    for dir in &dirs {
        let out = dir.to_str().expect("utf-8");
        let mut arguments = vec!["lab", "run", "tpcc-disk", "--quick", "--json", "--out", out];
        arguments.extend(SMALL);
        let output = varve(&arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().count() == 3, "a line per check: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        for line in text.lines() {
            let check: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for key in ["experiment", "check", "measured", "published", "low", "high", "holds"] {
                assert!(check.get(key).is_some(), "{key}: {line}");
            }
        }
        let missed = text.contains("\"holds\":false");
        assert_eq!(output.status.code(), Some(i32::from(missed)), "1 if a check does not hold: {text}");
    }
    let read = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).expect("a file");
    let results = read(&dirs[0], "tpcc-disk-quick.jsonl");
    assert_eq!(results, read(&dirs[1], "tpcc-disk-quick.jsonl"), "byte for byte");
    assert_eq!(results.lines().count(), 3, "a header and two points");
    let html = read(&dirs[0], "tpcc-disk-quick.html");
    assert!(html.contains("</html>") && !html.contains("src=") && !html.contains("href="), "self-contained");

    // Half of the results lost: only that half runs again, and the file comes out the same.
    let half: Vec<&str> = results.lines().take(2).collect();
    std::fs::write(dirs[0].join("tpcc-disk-quick.jsonl"), half.join("\n")).expect("writes");
    let out = dirs[0].to_str().expect("utf-8");
    let mut arguments = vec!["lab", "run", "tpcc-disk", "--quick", "--out", out];
    arguments.extend(SMALL);
    let output = varve(&arguments);
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 of 2 points were done before"), "{output:?}");
    assert_eq!(results, read(&dirs[0], "tpcc-disk-quick.jsonl"));
    assert_eq!(varve(&["lab", "report", out]).status.code(), output.status.code().map(|_| 0));
}

/// The scaled-down sets of the experiments that neither take long nor need this machine for themselves: their checks
/// hold.
#[test]
fn quick_sets_hold() {
    let dir = scratch("lab-quick");
    let out = dir.to_str().expect("utf-8");
    let named = ["iomix-ssd", "tpcc-disk", "flash-wa", "lru-c", "gd2l-cac"];
    let output = varve(&[&["lab", "run"], &named[..], &["--quick", "--json", "--out", out]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let missed: Vec<&str> = text.lines().filter(|l| l.contains("\"holds\":false")).collect();
    assert!(output.status.success(), "{missed:#?}\n{}", String::from_utf8_lossy(&output.stderr));
    // Those of the tier need longer runs than these.
    for name in &named[..4] {
        assert!(text.contains(&format!("\"experiment\":\"{name}\"")), "{name} was judged: {text}");
    }
    let points = std::fs::read_to_string(dir.join("gd2l-cac-quick.jsonl")).expect("its results");
    assert_eq!(points.lines().count(), 8, "a header and the seven combinations");
}

/// Many clients on one district wait for its lock rather than for the disk, and are told so.
#[test]
fn a_point_bound_by_locks_is_flagged() {
    let dir = scratch("lab-locks");
    let mut arguments = vec!["lab", "run", "tpcc-disk", "--quick", "--out", dir.to_str().expect("utf-8")];
    for set in ["districts=1", "customers=600", "clients=12", "warmup_s=2", "run.seconds=10"] {
        arguments.extend(["--set", set]);
    }
    let text = String::from_utf8_lossy(&varve(&arguments).stdout).into_owned();
    assert!(text.contains("buffer=10 %: not I/O-bound: clients wait for locks"), "{text}");
    let html = std::fs::read_to_string(dir.join("tpcc-disk-quick.html")).expect("a report");
    assert!(html.contains("not I/O-bound") && html.contains("Waits for locks of the program"));
}

/// The same point on both clocks, short: paced points run, after the others, and tell what the machine did meanwhile.
/// How near they come to virtual ones is for a machine that does nothing else.
#[test]
fn paced_points_run_beside_virtual_ones() {
    let dir = scratch("lab-paced");
    let out = dir.to_str().expect("utf-8");
    let mut arguments = vec!["lab", "run", "fidelity", "--quick", "--json", "--out", out];
    for set in ["warehouses=1", "run.warmup_s=0.5", "run.seconds=2", "run.interval_s=0.5"] {
        arguments.extend(["--set", set]);
    }
    let output = varve(&arguments);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let results = std::fs::read_to_string(dir.join("fidelity-quick.jsonl")).expect("a file");
    let points: Vec<serde_json::Value> =
        results.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(points.len(), 4);
    for p in points {
        let (name, metrics) = (p["point"].as_str().expect("a name"), &p["metrics"]);
        let figure = |name: &str| metrics[name].as_f64();
        assert_eq!(p["clock"], if name.ends_with("-paced") { "paced" } else { "virtual" }, "{name}");
        // A paced point has as much of the processor as the machine's other work leaves.
        let least = if name.ends_with("-paced") { 1.0 } else { 10.0 };
        assert!(figure("transactions").is_some_and(|n| n >= least), "{name} did something: {metrics}");
        assert!(figure("host.busy").is_some_and(|b| (0.0..=1.05).contains(&b)), "{name}: {metrics}");
        assert_eq!(figure("host.others").is_some(), name.ends_with("-paced"), "{name}: {metrics}");
        if name == "variant=cpu-virtual" {
            assert!(figure("host.busy").is_some_and(|b| b > 0.9), "CPU-bound: {metrics}");
        }
        if name == "variant=io-virtual" {
            assert!(figure("host.busy").is_some_and(|b| b < 0.5), "bound by its disk: {metrics}");
        }
    }
}

/// A database on modelled drives, small: what the engine found out of its extents is told.
#[test]
fn a_database_on_an_array_is_planned_by_the_engine() {
    let dir = scratch("lab-array");
    let mut arguments = vec!["lab", "run", "rodi-engine", "--quick", "--out", dir.to_str().expect("utf-8")];
    for set in ["scale.factor=1000", "run.clients=4"] {
        arguments.extend(["--set", set]);
    }
    let output = varve(&arguments);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let results = std::fs::read_to_string(dir.join("rodi-engine-quick.jsonl")).expect("a file");
    for line in results.lines().skip(1) {
        let point: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let figure = |name: &str| point["metrics"][name].as_f64().unwrap_or_else(|| panic!("{name}: {point}"));
        assert!(figure("plan.predicted") > 0.0 && figure("plan.best") >= figure("plan.predicted") * 0.999, "{point}");
        assert!(figure("fixed_read.per_s") > 0.0 && figure("array.mb_per_s") > 0.0, "{point}");
        assert!((0.3..=1.0).contains(&figure("array.read_share")), "{point}");
        assert_eq!(figure("array.moved_again"), 0.0, "{point}");
    }
    assert_eq!(results.lines().count(), 9, "a header and eight points");
}

#[test]
fn every_shipped_experiment_can_be_read() {
    let output = varve(&["lab", "list"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    for entry in std::fs::read_dir(folder).expect("experiments") {
        let name = entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(text.contains(&name), "{name} does not come with the program:\n{text}");
    }
}

#[test]
fn mistakes_name_file_line_key_and_what_is_accepted() {
    let dir = scratch("lab-bad");
    let good = include_str!("../../../../experiments/tpcc-disk.toml");
    for (from, to, wanted) in [
        ("cores = 8", "coers = 8", vec![":7: host.coers: unknown field", "`cores`"]),
        ("\"disk-15k\"\nlog", "\"disk-99k\"\nlog", vec![":10: devices.data", "disk-7k2"]),
        ("page_size = \"8 KiB\"", "page_size = \"9 KiB\"", vec![":14: layout.page_size", "4096"]),
        ("[\"10 %\", \"20 %\"]", "[\"10 %\", \"many\"]", vec![":29: engine.buffer", "\"10 %\""]),
        ("hit_ratio[buffer=10 %]", "hit_ratio[bufer=10 %]", vec![":40: check", "no axis \"bufer\""]),
        ("low = 0.8", "lwo = 0.8", vec!["check.2.lwo: unknown field", "`low`"]),
        ("[workload.tpcc]", "[engine]\npool = \"lru-d\"\n[workload.tpcc]", vec![":18: engine.pool", "lru-c"]),
        ("[run]", "[run", vec![":22: [run: unclosed table"]),
        ("\"disk-15k\"\nlog", "\"disk-15k\"\ndata.aged = 2\nlog", vec![": devices.data", "flash drives"]),
        ("[run]", "[workload.iomix]\ndepth = 0\n[run]", vec![":23: workload.iomix.depth", "1 to 1024"]),
        ("cores = 8", "cost_factor = -1", vec![":7: host.cost_factor", "0 to 1000000"]),
        (
            "cores = 8",
            "costs.page_access = nan",
            vec![":7: host.costs.page_access", "nanoseconds are possible, not NaN"],
        ),
        ("cores = 8", "lock_handoff_ns = -5", vec![":7: host.lock_handoff_ns", "not -5"]),
        ("[run]", "[engine]\nrecovery_bound_s = -1\n[run]", vec![":23: engine.recovery_bound_s", "0.000001 to"]),
        ("[run]", "[engine]\nasync_delay_ms = inf\n[run]", vec![":23: engine.async_delay_ms", "not inf"]),
        ("[run]", "[scale]\nfactor = -1\n[run]", vec![":23: scale.factor", "0.001 to 1e9"]),
        ("[quick]\n", "[quick]\nrun.secnds = 1\n", vec!["run.secnds: unknown field", "`seconds`"]),
        ("low = 0.8", "low = \"5 parsecs\"", vec![": check.2: something is left over", "\"5 parsecs\""]),
        (
            "[run]",
            "[engine.array]\nlayout = \"rodi\"\n[run]",
            vec![": engine.array: it changes nothing", "devices.drives"],
        ),
        ("[run]", "[devices.each]\naged = 1\n[run]", vec![": devices.each: it changes nothing"]),
    ] {
        let bad = dir.join("bad.toml");
        assert!(good.contains(from), "{from}");
        std::fs::write(&bad, good.replacen(from, to, 1)).expect("writes");
        let output = varve(&["lab", "run", bad.to_str().expect("utf-8")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{to}: {text}");
        assert!(
            text.contains("bad.toml") && wanted.iter().all(|w| text.contains(w)),
            "{to}: wanted {wanted:?} in {text}"
        );
    }
    for (set, wanted) in [
        ("nonsense.key=1", "nonsense"),
        ("run.seconds=soon", "run.seconds"),
        ("seconds", "key=value"),
        ("scale.factor=nan", "not NaN"),
    ] {
        let output = varve(&["lab", "run", "tpcc-disk", "--set", set]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(wanted), "{set}: {text}");
    }
    let text = String::from_utf8_lossy(&varve(&["lab", "run", "nothing"]).stderr).into_owned();
    assert!(text.contains("tpcc-disk"), "says what there is: {text}");
}

/// What the ways of finding a tier's map again look into after a crash: a zone, everything, nothing.
#[test]
fn a_point_is_opened_again_as_after_a_crash() {
    let dir = scratch("lab-reopen");
    let mut arguments = vec!["lab", "run", "tier-zones", "--quick", "--out", dir.to_str().expect("utf-8")];
    let small = ["warehouses=1", "districts=1", "customers=1000", "items=20000", "run.warmup_s=10", "run.seconds=10"];
    for set in small.into_iter().chain(["layout.fast=\"6 MB\"", "engine.buffer=\"4 MB\""]) {
        arguments.extend(["--set", set]);
    }
    let output = varve(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = std::fs::read_to_string(dir.join("tier-zones-quick.jsonl")).expect("a file");
    let figure = |variant: &str, name: &str| {
        let point = results.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON"));
        let point: serde_json::Value =
            point.into_iter().find(|p: &serde_json::Value| p["axes"]["variant"] == variant).expect("the point");
        point["metrics"][name].as_f64().unwrap_or_else(|| panic!("{variant}: {name}: {point}"))
    };
    for variant in ["1 %", "10 %", "scan", "log"] {
        assert!(figure(variant, "reopen.pages") > 0.0 && figure(variant, "reopen.redo_mib") > 0.0, "{variant}");
        assert!(figure(variant, "reopen.open_s") > figure(variant, "reopen.tier_s"), "{variant}");
    }
    let read = |variant| figure(variant, "reopen.slots_read");
    assert!(read("10 %") < read("scan"), "a zone: {}, all: {}", read("10 %"), read("scan"));
    assert_eq!(read("scan"), figure("scan", "tier.slots"));
    // Only slots that may hold two versions which do not count.
    assert!(read("log") * 10.0 < read("scan"), "the log alone: {}, all: {}", read("log"), read("scan"));
    assert!(figure("1 %", "reopen.tier_s") < figure("scan", "reopen.tier_s"));
}

/// What has no source is assumed, and is halved and doubled; what decides a check is named.
#[test]
fn assumed_numbers_that_decide_a_check_are_named() {
    let dir = scratch("lab-sensitivity");
    let (file, out) = (dir.join("e.toml"), dir.join("out"));
    let text = "[devices]\ndata.profile = \"nvme-fixed\"\n[workload.iomix]\ndepth = 32\nread_share = 1.0\n[run]\n\
                warmup_s = 0.1\nseconds = 0.2\n[sources]\n\"workload.iomix.depth\" = \"the test\"\n[[check]]\n\
                id = \"reads\"\nfigure = \"data.reads_per_s\"\nlow = 300_000\n";
    std::fs::write(&file, text).expect("writes");
    let [file, out] = [&file, &out].map(|path| path.to_str().expect("utf-8"));
    let output = varve(&["lab", "run", file, "--sensitivity", "--json", "--out", out]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trials: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |key: &str| trials.iter().filter(|t| t["key"] == key).collect::<Vec<_>>();
    let servers = of("fixed.servers");
    assert_eq!((servers[0]["of"].as_str(), servers[0]["tried"].as_str()), (Some("nvme-fixed"), Some("16")));
    assert_eq!(servers[0]["moved"][0]["check"], "reads", "16 servers serve half as many: {}", servers[0]);
    assert_eq!(servers[0]["moved"][0]["verdict"], true);
    assert_eq!(servers[1]["moved"].as_array().map(Vec::len), Some(0), "32 requests need no 64 servers");
    assert_eq!(of("run.seconds").len(), 2);
    assert!(of("workload.iomix.depth").is_empty() && of("fixed.read_random_ms").is_empty(), "these have a source");
    // A source of nothing is a slip of the pen.
    std::fs::write(file, text.replace("iomix.depth\"", "iomix.dept\"")).expect("writes");
    let output = varve(&["lab", "run", file, "--out", out]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("\"workload.iomix.dept\" has a source"), "{told}");
}

/// With `run.fill` nothing is missed in a buffer that holds everything.
#[test]
fn a_buffer_can_begin_full() {
    let dir = scratch("lab-fill");
    let (file, out) = (dir.join("e.toml"), dir.join("out"));
    let text = "[host]\nprofile = \"vm-2core\"\n[devices]\ndata.profile = \"nvme-fixed\"\n\
                [engine]\nbuffer = \"300 %\"\n[workload.ycsb]\nletter = \"C\"\nrecords = 2000\n\
                [run]\nwarmup_s = 0\nseconds = 1\n[[variant]]\nname = \"empty\"\n[[variant]]\n\
                name = \"full\"\nrun.fill = true\n[[check]]\nid = \"full\"\nfigure = \"pool.misses[variant=full]\"\n\
                high = 0\n[[check]]\nid = \"empty\"\nfigure = \"pool.misses[variant=empty]\"\nlow = 100\n";
    std::fs::write(&file, text).expect("writes");
    let [path, out] = [&file, &out].map(|path| path.to_str().expect("utf-8"));
    let output = varve(&["lab", "run", path, "--out", out]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    // Without a host reads from memory take no time, and a second never ends.
    std::fs::write(&file, text.replace("profile = \"vm-2core\"", "cores = 2")).expect("writes");
    let output = varve(&["lab", "run", path, "--out", out]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("host.profile"), "{told}");
    let output = varve(&["lab", "run", "iomix-ssd", "--quick", "--set", "run.fill=true", "--out", out]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("run.fill"), "{told}");
}
