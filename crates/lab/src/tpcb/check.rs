//! The consistency conditions of TPC-B (clause 2.3): every transfer moved its account, its teller and its branch alike,
//! and has its row of history. All of it is read in one transaction, so the check also holds while others write.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use super::{Scale, TELLERS, Tables, Transfer, balance_of, loaded};
use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};
use crate::error::{Error, Result};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Rows of history.
    pub transfers: u64,
    /// Number of failures.
    pub failures: u64,
    /// The first failures, readable.
    pub first: Vec<String>,
}

impl CheckReport {
    /// Whether everything holds.
    pub fn consistent(&self) -> bool {
        self.failures == 0
    }

    fn fail(&mut self, text: String) {
        self.failures += 1;
        if self.first.len() < 10 {
            self.first.push(text);
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.first {
            writeln!(f, "{failure}")?;
        }
        match self.consistent() {
            true => writeln!(f, "consistent: {} transfers", self.transfers),
            false => writeln!(f, "NOT consistent: {} failures in {} transfers", self.failures, self.transfers),
        }
    }
}

/// What the history says that balances are, by number; those of a branch's own members by branch and number.
#[derive(Default)]
struct Sums {
    branches: BTreeMap<u64, i64>,
    tellers: BTreeMap<u64, i64>,
    accounts: BTreeMap<u64, i64>,
}

/// Checks that balances are what the history makes them, and that no row of the scale is missing.
///
/// Errors: there is no loaded data, or the store failed. Rows that are wrong are not an error but a report that says
/// so.
pub fn check<S: Store>(store: &S) -> Result<CheckReport> {
    let loaded = loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete TPC-B data".into()))?;
    let Scale { branches, accounts } = loaded.scale;
    let tables = Tables::open(store)?;
    let mut report = CheckReport::default();
    let mut sums = Sums::default();
    let mut tx = store.begin(TxMode::ReadOnly, Durability::None)?;
    tx.scan(&tables.history, KeyRange::ALL, Direction::Forward, |key, row| {
        report.transfers += 1;
        match Transfer::decode(row) {
            Some(t) => {
                let member = |branch: u32, n: u32| u64::from(branch) << 32 | u64::from(n);
                *sums.branches.entry(t.branch.into()).or_default() += t.amount;
                *sums.tellers.entry(member(t.branch, t.teller)).or_default() += t.amount;
                *sums.accounts.entry(member(t.home, t.account)).or_default() += t.amount;
            }
            None => report.fail(format!("history {key:02x?}: {} bytes long, no transfer", row.len())),
        }
        ControlFlow::Continue(())
    })?;
    let branches = u64::from(branches);
    let parts = [
        ("branch", &tables.branches, sums.branches, branches),
        ("teller", &tables.tellers, sums.tellers, branches * u64::from(TELLERS)),
        ("account", &tables.accounts, sums.accounts, branches * u64::from(accounts)),
    ];
    for (name, keyspace, sums, rows) in parts {
        balances(&mut tx, (name, keyspace), sums, rows, &mut report)?;
    }
    tx.commit()?;
    Ok(report)
}

/// Holds the balances of a table against what the history says.
fn balances<T: Txn>(
    tx: &mut T,
    (name, keyspace): (&str, &T::Keyspace),
    mut sums: BTreeMap<u64, i64>,
    rows: u64,
    report: &mut CheckReport,
) -> Result<()> {
    let mut seen = 0;
    tx.scan(keyspace, KeyRange::ALL, Direction::Forward, |key, row| {
        seen += 1;
        let number = key.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let wanted = sums.remove(&number).unwrap_or(0);
        match balance_of(row) {
            Some(balance) if balance == wanted => (),
            Some(balance) => report.fail(format!("{name} {number:#x}: balance {balance}, the history has {wanted}")),
            None => report.fail(format!("{name} {number:#x}: {} bytes long, it has no balance", row.len())),
        }
        ControlFlow::Continue(())
    })?;
    if seen != rows {
        report.fail(format!("{name}: {seen} rows, {rows} were loaded"));
    }
    if let Some((number, _)) = sums.first_key_value() {
        report.fail(format!("{name} {number:#x}: the history names it, it is not there"));
    }
    Ok(())
}
