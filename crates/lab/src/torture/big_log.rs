//! Opening after SIGKILL under full write load with a long log behind: bounded by the recovery bound.

use super::child::Orders;
use super::ledger::Ledger;
use super::parent::Victim;
use super::{Command, TortureError};
use crate::sim::PoolText;
use serde::Serialize;
use std::path::PathBuf;

/// How to make a long log.
#[derive(Clone, Debug)]
pub struct BigLogOptions {
    /// The database's directory.
    pub dir: PathBuf,
    /// The child is killed when it has written this much log, bytes.
    pub log_bytes: u64,
    /// Threads of the child.
    pub threads: u32,
    /// Cache of the database, bytes.
    pub cache_bytes: u64,
    /// How the child is started.
    pub child: Command,
}

impl BigLogOptions {
    /// A gigabyte of log, eight threads, 256 MiB of cache.
    pub fn new(dir: impl Into<PathBuf>, child: Command) -> BigLogOptions {
        BigLogOptions { dir: dir.into(), log_bytes: 1 << 30, threads: 8, cache_bytes: 256 << 20, child }
    }
}

/// What came out. Serialises to the tool's JSON.
#[derive(Clone, Debug, Serialize)]
pub struct BigLogReport {
    /// Log written before the kill, bytes.
    pub log_bytes: u64,
    /// Commits acknowledged before the kill; every one was found again.
    pub acknowledged: u64,
    /// Log redone at opening, bytes.
    pub redone_bytes: u64,
    /// Groups redone at opening.
    pub groups: u64,
    /// Time to open, seconds.
    pub open_s: f64,
    /// The recovery bound the database was opened with, seconds.
    pub bound_s: f64,
    /// Opened within the bound and two seconds.
    pub within: bool,
}

/// Allowance over the recovery bound: opening files, reading the catalog.
const ALLOWANCE_S: f64 = 2.0;

/// Kills a child under full load once it has written the asked amount of log, opens, verifies, reports.
///
/// # Errors
/// As [`super::run`]. A slow opening is no error: see [`BigLogReport::within`].
pub fn big_log(options: &BigLogOptions, mut progress: impl FnMut(u64, u64)) -> Result<BigLogReport, TortureError> {
    let orders = Orders {
        dir: options.dir.clone(),
        threads: options.threads,
        seed: 1,
        cache_bytes: options.cache_bytes,
        log_bytes: 64 << 20,
        log_max_bytes: options.log_bytes * 4,
        pad: 8000,
        sync_only: false,
        pool: PoolText::default(),
        fast: None,
        remote: None,
    };
    orders.claim()?;
    let victim = Victim::start(&options.child, &orders)?;
    let mut written = 0;
    while written < options.log_bytes {
        victim.wait(|told| told.log_bytes > written);
        let now = victim.log_bytes();
        if now == written {
            break; // the child ended
        }
        written = now;
        progress(written, options.log_bytes);
    }
    let told = victim.kill()?;
    let start = varve_rt::now();
    let bound = orders.options()?.recovery_bound.as_secs_f64();
    let db = orders.open()?;
    let open_s = start.elapsed().as_secs_f64();
    let recovery = db.recovery_report().clone();
    let ledger = Ledger::open(&db, orders.kind())?;
    ledger.verify(&db, &told.acknowledged)?;
    let check = db.check()?;
    if let Some(damage) = check.damages.first() {
        return Err(TortureError::Damage(format!("{damage} ({} findings)", check.damages.len())));
    }
    db.close()?;
    Ok(BigLogReport {
        log_bytes: told.log_bytes,
        acknowledged: told.count,
        redone_bytes: recovery.bytes,
        groups: recovery.groups,
        open_s,
        bound_s: bound,
        within: open_s <= bound + ALLOWANCE_S,
    })
}
