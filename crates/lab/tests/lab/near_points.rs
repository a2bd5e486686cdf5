//! Points of experiments whose merges are shared with a worker: what else hosts do, and how sides decide.

use std::collections::BTreeMap;
use varve_lab::experiment::{Request, RunHow, read, run};

/// Rows of a kilobyte in an LSM keyspace behind a link, merged by `copro+`.
const BASE: &str = r#"
[host]
profile = "copro-host"
[hosts.near]
profile = "copro-device"
[devices]
data.profile = "intel-545s"
data.link = { profile = "gigabit", latency_us = 100 }
[layout]
page_size = "4 KiB"
keyspaces = "lsm"
[engine]
cache = "16 MiB"
durability = "none"
[engine.lsm]
memtable = "256K"
segment = "128K"
block = "4K"
blocks = "4K"
level1 = "512K"
merge = "copro+"
[workload.dbbench]
benchmark = "fillrandom"
value_size = 1000
num = 4000
operations = 4000
settle = true
[run]
clients = 1
warmup_s = 0
"#;

/// Figures of each variant of these.
fn figures(name: &str, variants: &str) -> BTreeMap<String, BTreeMap<String, f64>> {
    let text = format!("{BASE}{variants}");
    let experiment = read(name, "a test", &text, Request::default()).unwrap_or_else(|e| panic!("{e}"));
    let dir = std::env::temp_dir().join(format!("varve-near-points-{name}-{}", std::process::id()));
    let how = RunHow { dir: dir.clone(), jobs: 1, fresh: true, commit: "test".into() };
    let results = run(&experiment, &how, |_| {}).unwrap_or_else(|e| panic!("{e}"));
    std::fs::remove_dir_all(dir).expect("removed");
    results.into_iter().map(|p| (p.axes[0].1.clone(), p.metrics)).collect()
}

/// A side whose processor, or memory, is busy with other work leaves the pipeline if it looks at them; the other side
/// stays in it.
#[test]
fn a_busy_side_leaves_the_pipeline_if_it_looks() {
    let all = figures(
        "busy",
        r#"
[[variant]]
name = "idle"
engine.decision = { host = { cpu = 0.8, memory = 0.2 }, near = { cpu = 0.8, memory = 0.2 } }
[[variant]]
name = "host"
host.load.other = { share = 0.9, memory = 0.5 }
engine.decision = { host = { cpu = 0.8, memory = 0.2 }, near = { cpu = 0.8, memory = 0.2 } }
[[variant]]
name = "host unseen"
host.load.other = { share = 0.9, memory = 0.5 }
[[variant]]
name = "near memory"
hosts.near.load.other = { memory = 0.9 }
engine.decision = { host = { memory = 1.0 }, near = { memory = 1.0 } }
"#,
    );
    let share = |variant: &str, side: &str| {
        let of = &all[variant];
        assert!(of[&format!("merge.{side}_tasks")] > 3.0, "{variant}: {of:?}");
        of[&format!("merge.{side}_pipelined")] / of[&format!("merge.{side}_tasks")]
    };
    assert_eq!((share("idle", "host"), share("idle", "near")), (1.0, 1.0));
    assert_eq!(share("host", "near"), 1.0);
    // The first one comes before its use was measured.
    assert!(share("host", "host") < 0.3, "{}", share("host", "host"));
    assert_eq!((share("host unseen", "host"), share("host unseen", "near")), (1.0, 1.0));
    assert_eq!((share("near memory", "host"), share("near memory", "near")), (1.0, 0.0));
    assert!(all["host"]["host.busy"] > 0.9 && all["idle"]["host.busy"] < 0.6, "{all:?}");
}

/// Merges that are left at the end of a run may take minutes, in which nobody else does anything.
#[test]
fn a_run_waits_for_merges_that_take_long() {
    let all = figures(
        "slow",
        r#"
[[variant]]
name = "slow"
engine.lsm = { pressure = "steps", merge = "sequential", l0_stop = 100 }
host.costs.merge_byte = 150_000
workload.dbbench.operations = 1000
"#,
    );
    let of = &all["slow"];
    assert!(of["lsm.merge_s"] > of["seconds"] + 90.0, "{of:?}");
}

/// Large values are where they are asked for, and merges count them.
#[test]
fn large_values_come_when_they_are_asked_for() {
    let all = figures(
        "large",
        r#"
[[variant]]
name = "none"
[[variant]]
name = "early"
workload.dbbench.large = { value_size = 40_000, share = 1.0, until = 0.25 }
[[variant]]
name = "read"
workload.dbbench.reads = 0.5
"#,
    );
    let mib = |variant: &str| all[variant]["dbbench.written_mib"] * f64::from(1 << 20);
    assert!((mib("none") - 4000.0 * 1016.0).abs() < 1.0, "{}", mib("none"));
    assert!((mib("early") - (1000.0 * 40_016.0 + 3000.0 * 1016.0)).abs() < 1.0, "{}", mib("early"));
    assert!((mib("read") / mib("none") - 0.5).abs() < 0.05, "{}", mib("read"));
}

/// A side's bandwidth is that of its sub-tasks: flushes, which come first and cost as much for each byte, are none.
#[test]
fn a_flush_that_comes_between_is_no_time_of_a_merge() {
    let all = figures(
        "flushes",
        r#"
[[variant]]
name = "flushes"
host.costs.merge_byte = 2000
engine.lsm.merge = "cokv"
engine.lsm.blocks = "128K"
workload.dbbench.batch = 10
workload.dbbench.operations = 20000
workload.dbbench.num = 20000
"#,
    );
    let of = &all["flushes"];
    assert!(of["merge.host_tasks"] > 3.0, "{of:?}");
    // A byte that is merged takes 2 us and is read and written.
    let bandwidth = of["merge.host_mb_per_s"];
    assert!((0.9..=1.05).contains(&bandwidth), "{bandwidth}");
}
