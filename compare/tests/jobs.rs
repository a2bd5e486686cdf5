//! Jobs in processes of their own, with and without limited memory.

use std::time::Duration;

use varve_compare::bench::Scale;
use varve_compare::bench::drive::Measured;
use varve_compare::cgroup::Cgroup;
use varve_compare::child::{self, Job, Task};
use varve_compare::engine::{Memory, SPARE, Settings};
use varve_compare::files::{TempDir, drop_page_cache};
use varve_lab::Result;

const CACHE: u64 = 16 << 20;

fn job(engine: &str, dir: &TempDir, task: Task) -> Job {
    let scale = Scale { large_records: 20_000, measure_large: Duration::from_millis(200), ..Scale::QUICK };
    let settings = Settings { cache_bytes: CACHE, page_size: 8192, memory: Memory::Scarce { clients: 8 } };
    Job { engine: engine.to_string(), dir: dir.path().to_path_buf(), settings, scale, seed: 1, task, joint: None }
}

fn run(job: &Job) -> Result<Vec<(&'static str, Measured)>> {
    let mut figures = Vec::new();
    let program = env!("CARGO_BIN_EXE_varve-compare");
    child::run(program.as_ref(), job, &mut |row, _, figure| figures.push((row, figure)))?;
    Ok(figures)
}

#[test]
fn loads_and_measures_within_a_limit() {
    for engine in ["varve", "sqlite"] {
        let dir = TempDir::new(&std::env::temp_dir(), &format!("jobs-{engine}")).expect("a directory");
        run(&job(engine, &dir, Task::LoadYcsb)).expect("loaded");
        drop_page_cache(dir.path()).expect("dropped");
        let rows = ["large-c", "large-a"].map(str::to_string).to_vec();
        let mut limited = job(engine, &dir, Task::Ycsb(rows));
        let cgroup = Cgroup::new(&format!("test-{engine}"), CACHE + SPARE);
        match &cgroup {
            Ok(cgroup) => limited.joint = Some(cgroup.joint()),
            Err(e) => eprintln!("without a limit: {e}"),
        }
        let figures = run(&limited).expect("measured");
        assert_eq!(figures.iter().map(|(row, _)| *row).collect::<Vec<_>>(), ["large-c", "large-a"]);
        assert!(figures.iter().all(|(_, figure)| figure.value > 0.0), "{figures:?}");
    }
}

#[test]
fn says_when_memory_did_not_suffice() {
    let cgroup = match Cgroup::new("test-small", 4 << 20) {
        Ok(cgroup) => cgroup,
        Err(e) => return eprintln!("cannot be tested here: {e}"),
    };
    let dir = TempDir::new(&std::env::temp_dir(), "jobs-small").expect("a directory");
    let job = Job { joint: Some(cgroup.joint()), ..job("varve", &dir, Task::LoadYcsb) };
    let error = run(&job).expect_err("it has less memory than its cache").to_string();
    assert!(error.contains("memory"), "{error}");
}

#[test]
fn hands_on_failures() {
    let dir = TempDir::new(&std::env::temp_dir(), "jobs-none").expect("a directory");
    let error = run(&job("varve", &dir, Task::Ycsb(vec!["large-c".to_string()]))).expect_err("nothing is loaded");
    assert!(error.to_string().contains("exit status: 1"), "{error}");
    assert!(run(&job("none", &dir, Task::LoadYcsb)).is_err());
}
