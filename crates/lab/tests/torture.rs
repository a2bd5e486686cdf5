//! The SIGKILL torture, a few rounds of it.

use std::time::Duration;
use varve_lab::sim::PoolChoice;
use varve_lab::torture::{self, Command, TortureOptions};

/// Set in the process that is killed.
const VICTIM: &str = "VARVE_TEST_VICTIM";

/// What the process that is killed runs; elsewhere it has nothing to do.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_some() {
        std::process::exit(torture::child_main());
    }
}

#[test]
fn acknowledged_commits_survive_sigkill() {
    kill("tree", PoolChoice::default());
}

#[test]
fn acknowledged_commits_to_lsm_keyspaces_survive_sigkill() {
    kill("lsm", PoolChoice { lsm: true, ..PoolChoice::default() });
}

fn kill(kind: &str, pool: PoolChoice) {
    let dir = std::env::temp_dir().join(format!("varve-torture-{kind}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let child = Command::current(&["--exact", "victim", "--nocapture"]).unwrap().with_env(VICTIM, "1");
    let life = (Duration::from_millis(10), Duration::from_millis(400));
    let options = TortureOptions { rounds: 6, life, cache_bytes: 4 << 20, pool, ..TortureOptions::new(&dir, child) };
    let report = torture::run(&options, |_| {}).unwrap_or_else(|e| panic!("seed {}: {e}", options.seed));
    assert_eq!(report.rounds, 6);
    assert!(report.acknowledged > 0 && report.transfers >= report.acknowledged / 2, "{report:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
