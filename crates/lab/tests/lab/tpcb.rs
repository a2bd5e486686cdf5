//! The mix like TPC-B's on the in-memory store: what transfers leave, a second run, and what the check finds; and on
//! the engine, as a point of an experiment.

use std::sync::Arc;

use varve_lab::adapter::mem::MemStore;
use varve_lab::adapter::{Durability, End, Store, TxMode, Txn, transact};
use varve_lab::driver::{RunOptions, RunResult, Until, run};
use varve_lab::experiment::{self, Request, RunHow};
use varve_lab::tpcb::{Options, Scale, Tpcb, check, load};

fn loaded() -> Arc<MemStore> {
    let store = Arc::new(MemStore::default());
    load(&store, Scale { branches: 3, accounts: 100 }).expect("loaded");
    store
}

fn drive(store: &Arc<MemStore>, seed: u64, threads: usize) -> RunResult {
    let workload = Tpcb::new(&**store, Options { durability: Durability::Sync, seed }).expect("it is loaded");
    let options = RunOptions { threads, until: Until::Transactions(500), ..RunOptions::default() };
    run(store, &Arc::new(workload), &options, |_| {}).expect("runs")
}

#[test]
fn transfers_leave_all_balances_in_step() {
    let store = loaded();
    for runs in 1..=2 {
        assert_eq!(drive(&store, runs, 4).total.count, 500);
        let report = check(&*store).expect("read");
        assert!(report.consistent(), "{report}");
        assert!(report.transfers >= 500 * runs, "a later run adds to the history of an earlier one: {report}");
    }
    let refused = load(&store, Scale::default()).expect_err("of another scale").to_string();
    assert!(refused.contains("not loaded"), "{refused}");
    assert!(Tpcb::new(&MemStore::default(), Options { durability: Durability::Sync, seed: 1 }).is_err());
    assert!(Scale { branches: 0, accounts: 1 }.validate().is_err());
}

#[test]
fn what_is_wrong_is_named() {
    let report = |table: &str, key: &[u8], value: Option<&[u8]>| {
        let store = loaded();
        // One thread, so that its first row of history is there.
        drive(&store, 1, 1);
        let table = store.keyspace(table).expect("a keyspace");
        transact(&*store, TxMode::ReadWrite, Durability::Sync, |tx| {
            match value {
                Some(value) => tx.put(&table, key, value)?,
                None => tx.delete(&table, key)?,
            }
            Ok(((), End::Commit))
        })
        .expect("written");
        let report = check(&*store).expect("read");
        assert!(!report.consistent(), "{report}");
        report.to_string()
    };
    let branch = [0, 0, 0, 1];
    assert!(report("tpcb_branch", &branch, Some(&[7; 100])).contains("branch 0x1: balance 506381209866536711"));
    assert!(report("tpcb_branch", &branch, Some(b"short")).contains("5 bytes long"));
    assert!(report("tpcb_branch", &branch, None).contains("branch: 2 rows, 3 were loaded"));
    assert!(report("tpcb_teller", &[0, 0, 0, 1, 0, 0, 0, 11], Some(&[0; 100])).contains("teller: 31 rows"));
    // A transfer that is not in the history: its account, its teller and its branch have moved.
    let lost = report("tpcb_history", &[0; 12], None);
    assert!(["branch", "teller", "account"].iter().all(|table| lost.contains(table)), "{lost}");
}

#[test]
fn it_is_a_workload_of_experiments() {
    let text = "[devices]\ndata.profile = \"nvme-fixed\"\n[engine]\ncache = \"4 MiB\"\n[run]\nclients = 4\n\
                warmup_s = 0.01\nseconds = 0.05\ninterval_s = 0.05\ncheck = true\n[workload.tpcb]\nbranches = 4\n\
                accounts = 2000\n";
    let experiment = experiment::read("tpcb", "a test", text, Request::default()).expect("read");
    let dir = std::env::temp_dir().join(format!("varve-tpcb-{}", std::process::id()));
    let how = RunHow { dir: dir.clone(), jobs: 1, fresh: true, commit: "test".into() };
    let points = experiment::run(&experiment, &how, |_| {}).unwrap_or_else(|e| panic!("{e}"));
    std::fs::remove_dir_all(dir).expect("removed");
    assert!(points[0].metrics["transactions"] > 50.0, "{:?}", points[0].metrics);
    assert!(points[0].kinds.contains_key("transfer"));
}
