//! The process that gets killed: concurrent transfers, each acknowledged commit told on standard output.
//!
//! A line per event, written with one system call: `@open` when the database is open, `@ack THREAD NUMBER` after a
//! commit returned, `@log BYTES` now and then (log written since opening), `@array WHAT N` when something has become of
//! its drives, `@near WHAT N` of its worker, `@error TEXT` before giving up. Other lines (a test harness prints some)
//! are ignored by the parent.

use super::TortureError;
use super::drives;
use super::ledger::{ACCOUNTS, Ledger, Transfer};
use crate::flash_layout::{LayoutFile, image_driver};
use crate::own;
use crate::sim::{PoolChoice, PoolText, tier_manager};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use varve::array::KeeperOptions;
use varve::{
    Db, DriveLayout, DrivePart, Durability, Error, FlashPart, KeyspaceKind, Layout, LsmOptions, MergeBy, Options,
    RemotePart, TierOptions, TxOptions,
};
use varve_models::flash::create_image;
use varve_rt::Rng;

/// What the child is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) dir: PathBuf,
    pub(super) threads: u32,
    pub(super) seed: u64,
    pub(super) cache_bytes: u64,
    pub(super) log_bytes: u64,
    pub(super) log_max_bytes: u64,
    /// Most filler bytes of a ledger row.
    pub(super) pad: u64,
    /// Every commit is `sync`; else a mixture, of which only `sync` ones are reported.
    pub(super) sync_only: bool,
    pub(super) pool: PoolText,
    /// Directory of a tier's fast device.
    pub(super) fast: Option<PathBuf>,
    /// Address of the worker that has the pages.
    #[serde(default)]
    pub(super) remote: Option<String>,
}

const TOOL: &str = "torture";
/// An empty keyspace of the databases that are ours.
const MARK: &str = "varve-torture";

/// Who merges with a worker.
const NEAR: [MergeBy; 6] =
    [MergeBy::Near, MergeBy::Tstore, MergeBy::Cokv, MergeBy::Copro, MergeBy::CoproPlus, MergeBy::Dstore];

/// A worker lets the device go when the last request of a host that was killed is done.
const LETS_GO: Duration = Duration::from_secs(20);

/// Drives of an array, and bytes of each: more than the ledger grows to.
const DRIVES: usize = 3;
pub(super) const DRIVE_BYTES: u64 = 512 << 20;

/// Native flash: 1 GiB, more than the ledger grows to.
const FLASH: &str = r#"
profile = "slc-emulator-16"
geometry = { channels = 2, chips_per_channel = 2, blocks_per_plane = 1024 }
[[region]]
name = "ledger"
chips = "0..3"
gc = "cost-benefit"
keyspaces = ["ledger"]
[[region]]
chips = "3..4"
n = 2
m = 48
"#;

/// Bytes of a tier's fast device: less than the ledger grows to.
const FAST_BYTES: u64 = 12 << 20;

impl Orders {
    pub(super) fn options(&self) -> varve::Result<Options> {
        let (cache_bytes, log_max_bytes) = (self.cache_bytes, self.log_max_bytes);
        let PoolChoice { pool, tier, .. } = self.pool.clone().choice()?;
        // However slow the machine is, a wait for a lock is no finding.
        let lock_timeout = None;
        // Extents move as fast as they can, and again and again.
        let array = KeeperOptions { rate: 1 << 40, window: Duration::ZERO, ..KeeperOptions::default() };
        let flash = Some(image_driver());
        let options = Options { cache_bytes, log_max_bytes, pool, lock_timeout, array, flash, ..Options::default() };
        let manager = if tier.is_empty() { "none" } else { tier_manager(&tier, self.seed) };
        Ok(Options { tier: TierOptions { manager: manager.into(), ..TierOptions::default() }, ..options })
    }

    /// Makes the database where there is none, and refuses one that no torture has made.
    pub(super) fn claim(&self) -> Result<(), TortureError> {
        own::refuse_files(&self.dir, TOOL).map_err(TortureError::Foreign)?;
        let db = self.open()?;
        let refused = own::refuse_others(&db, &self.dir, TOOL, &[MARK]).map_err(TortureError::Foreign);
        if refused.is_ok() {
            drop(db.keyspace_or_create(MARK)?);
        }
        db.close()?;
        refused
    }

    /// What the ledger's keyspaces are made of: small memtables and segments make for many flushes and merges.
    pub(super) fn kind(&self) -> KeyspaceKind {
        // Smaller ones with a worker: it does merges only.
        let part = if self.remote.is_some() { 64 << 10 } else { 256 << 10 };
        let small = LsmOptions { memtable_bytes: part, segment_bytes: part, ..LsmOptions::default() };
        match &self.remote {
            Some(_) => KeyspaceKind::Lsm(LsmOptions { merge: NEAR[self.seed as usize % NEAR.len()], ..small }),
            None if self.pool.has_lsm() => KeyspaceKind::Lsm(small),
            None => KeyspaceKind::Tree,
        }
    }

    /// The directory of an array's drives.
    pub(super) fn beside(&self) -> PathBuf {
        PathBuf::from(format!("{}.drives", self.dir.display()))
    }

    /// Drives of an array in a directory beside the database's.
    fn drives(&self) -> varve::Result<DriveLayout> {
        let beside = self.beside();
        std::fs::create_dir_all(&beside).map_err(|e| Error::Invalid(format!("{}: {e}", beside.display())))?;
        let drives = vec![DrivePart { path: beside, bytes: DRIVE_BYTES }; DRIVES];
        Ok(DriveLayout { drives, extent: 2 << 20, layout: varve::array::Layout::Rodi { shares: vec![1.0; DRIVES] } })
    }

    /// Native flash in an image beside the database's directory: the ledger has a region of its own, the accounts take
    /// appends.
    fn flash(&self) -> varve::Result<FlashPart> {
        let path = PathBuf::from(format!("{}.flash", self.dir.display()));
        let failed = |e: &dyn std::fmt::Display| Error::Invalid(e.to_string());
        let file = LayoutFile::parse(FLASH, "torture").map_err(|e| failed(&e))?;
        let (flash, regions) = file.build(None).map_err(|e| failed(&e))?;
        if !path.exists() {
            let modes = vec![flash.cell; flash.geometry.chips() as usize];
            create_image(&path, &flash, &modes, false).map_err(|e| failed(&e))?;
        }
        Ok(FlashPart { path, regions, driver: image_driver() })
    }

    /// Opens the database that is there.
    fn open_made(&self) -> varve::Result<Db> {
        let until = varve_rt::now() + LETS_GO;
        loop {
            match Db::open(&self.dir, self.options()?) {
                Err(Error::InUse(_)) if self.remote.is_some() && varve_rt::now() < until => {
                    varve_rt::sleep(Duration::from_millis(10));
                }
                opened => return opened,
            }
        }
    }

    /// Opens the database, or makes it where there is none. For the parent: a child finds it made.
    pub(super) fn open(&self) -> varve::Result<Db> {
        match self.open_made() {
            Err(Error::NoDatabase(_)) => {
                if let Some(fast) = &self.fast {
                    std::fs::create_dir_all(fast).map_err(|e| Error::Invalid(format!("{}: {e}", fast.display())))?;
                }
                let (log_bytes, fast) = (self.log_bytes, self.fast.clone());
                let array = self.pool.has_array().then(|| self.drives()).transpose()?;
                let flash = self.pool.has_flash().then(|| self.flash()).transpose()?;
                // Delta records need pages as the flash has them.
                let page_size = if flash.is_some() { 4096 } else { Layout::default().page_size };
                let (fast_bytes, remote) = (FAST_BYTES, self.remote.as_deref().map(RemotePart::from));
                let layout =
                    Layout { page_size, log_bytes, fast, fast_bytes, array, flash, remote, ..Layout::default() };
                Db::create(&self.dir, &layout, self.options()?)
            }
            opened => opened,
        }
    }
}

/// Runs the child: reads its orders from standard input and works until it is killed. Returns the exit code for the
/// case that it cannot go on.
pub fn child_main() -> i32 {
    let mut text = String::new();
    let orders = match std::io::stdin().read_to_string(&mut text).map(|_| serde_json::from_str::<Orders>(&text)) {
        Ok(Ok(orders)) => orders,
        Ok(Err(e)) => return fail(&format!("orders not understood: {e}")),
        Err(e) => return fail(&format!("no orders: {e}")),
    };
    match work(&orders) {
        Ok(()) => 0,
        Err(e) => fail(&e.to_string()),
    }
}

fn fail(what: &str) -> i32 {
    say(&format!("@error {}", what.replace('\n', " ")));
    3
}

/// One line, one system call; a parent that is gone ends the child.
pub(super) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(4);
    }
}

fn work(orders: &Orders) -> Result<(), TortureError> {
    let db = orders.open_made()?;
    let ledger = Ledger::open(&db, orders.kind())?;
    say("@open");
    let mut threads = Vec::new();
    for thread in 0..orders.threads {
        let (db, ledger, orders) = (db.clone(), ledger.clone(), orders.clone());
        threads.push(varve_rt::spawn(format!("transfers {thread}"), move || transfers(&db, &ledger, &orders, thread)));
    }
    if orders.pool.has_array() {
        let (db, orders) = (db.clone(), orders.clone());
        threads.push(varve_rt::spawn("drives", move || drives::run(&db, &orders)));
    }
    let mut near = varve::NearStats::default();
    loop {
        varve_rt::sleep(Duration::from_millis(100));
        say(&format!("@log {}", db.stats().log.written_bytes));
        if let Some(now) = db.near_stats() {
            let again = |stats: &varve::NearStats| stats.attachments.saturating_sub(1);
            say(&format!("@near merged {}", now.device.tasks - near.device.tasks));
            say(&format!("@near instead {}", now.fallbacks.all() - near.fallbacks.all()));
            say(&format!("@near again {}", again(&now) - again(&near)));
            near = now;
        }
        if let Some(at) = threads.iter().position(|t| t.is_finished()) {
            return match threads.swap_remove(at).join() {
                Ok(result) => result,
                Err(panicked) => Err(TortureError::Wrong(panicked.to_string())),
            };
        }
    }
}

fn transfers(db: &Db, ledger: &Ledger, orders: &Orders, thread: u32) -> Result<(), TortureError> {
    let mut rng = Rng::from_seed(orders.seed ^ u64::from(thread) << 32);
    let mut number = ledger.last(thread)?;
    loop {
        number += 1;
        let from = rng.below(u64::from(ACCOUNTS)) as u32;
        let to = rng.below(u64::from(ACCOUNTS)) as u32;
        let t = Transfer { thread, number, from, to, amount: rng.below(1000) as i64 };
        let pad = rng.below(orders.pad + 1) as usize;
        let durability = match rng.below(4) {
            _ if orders.sync_only => Durability::Sync,
            0 => Durability::Async,
            1 => Durability::None,
            _ => Durability::Sync,
        };
        one(db, ledger, t, pad, durability)?;
        if durability == Durability::Sync {
            say(&format!("@ack {thread} {number}"));
        }
    }
}

/// One transfer, retried until it commits.
fn one(db: &Db, ledger: &Ledger, t: Transfer, pad: usize, durability: Durability) -> Result<(), TortureError> {
    let mut wait = Duration::from_micros(50);
    loop {
        let mut tx = db.begin_with(TxOptions { durability: Some(durability), ..TxOptions::default() })?;
        match ledger.transfer(&mut tx, t, pad).and_then(|()| tx.commit()) {
            Ok(()) => return Ok(()),
            Err(e) if e.is_retryable() => {
                varve_rt::sleep(wait);
                wait = (wait * 2).min(Duration::from_millis(10));
            }
            Err(e) => return Err(e.into()),
        }
    }
}
