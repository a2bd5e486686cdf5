//! Creating, opening and closing a database: the order in which the layers come up and go down.
//!
//! Up: log, store, pool, recovery (the log is replayed into the pool), space map, bootstrap if the database holds nothing
//! yet, catalog, background work. Down: refuse new work, stop background work, last checkpoint, clean mark in the superblock.

use super::catalog::{CATALOG, CATALOG_ROOT};
use super::devices::{self, Devices};
use super::keyspaces::Registry;
use super::memory::{self, Plan};
use super::options::{Layout, Options};
use super::{Db, Inner};
use crate::btree::Tree;
use crate::budget::{Budget, Class};
use crate::buffer::{CleanerKind, Pool, PoolConfig};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::space::Space;
use crate::txn::Manager;
use crate::wal::PoolPages;
use crate::wal::checkpoint::{CheckpointConfig, Checkpointer};
use crate::wal::recovery::{self, RecoveryOptions, RecoveryReport};
use crate::wal::{DbHeader, Log, LogConfig, LogState};
use std::path::Path;
use std::sync::Arc;
use varve_device::DirLock;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_volume::{PageStore, Single};

pub(super) fn create_dir(dir: &Path, layout: &Layout, options: Options) -> Result<Db> {
    layout.validate()?;
    options.validate()?;
    refuse_read_only(&options)?;
    let open = devices::create(dir, layout, &options)?;
    create_on(open.devices, layout, options, Some(open.lock))
}

pub(super) fn open_dir(dir: &Path, options: Options) -> Result<Db> {
    options.validate()?;
    let open = devices::open(dir, &options)?;
    open_on(open.devices, options, Some(open.lock))
}

fn refuse_read_only(options: &Options) -> Result<()> {
    if options.read_only {
        return Err(Error::ReadOnly("a database cannot be created for reading only".into()));
    }
    Ok(())
}

/// Makes an empty log (and with it the superblocks), then opens what it made. The space map and the catalog's root are the
/// first log group; a database whose log holds no group yet makes it at any open, so that a crash in between is harmless.
pub(super) fn create_on(devices: Devices, layout: &Layout, options: Options, lock: Option<DirLock>) -> Result<Db> {
    layout.validate()?;
    options.validate()?;
    refuse_read_only(&options)?;
    let plan = memory::plan(options.cache_bytes, layout.page_size);
    let header = DbHeader {
        uuid: uuid(),
        page_size: layout.page_size as u32,
        created: varve_rt::unix_time(),
        options: Vec::new(),
    };
    let log = Log::create(devices.log.clone(), log_config(&options, Some(layout.log_bytes), &plan), header)?;
    let parts = Parts { devices, options, plan, lock };
    parts.assemble(log, layout.page_size, None)
}

pub(super) fn open_on(devices: Devices, options: Options, lock: Option<DirLock>) -> Result<Db> {
    options.validate()?;
    // The log buffer's size does not depend on the page size; the rest of the plan is made once the page size is known.
    let sketch = memory::plan(options.cache_bytes, Layout::default().page_size);
    let (log, state) = Log::open(devices.log.clone(), log_config(&options, None, &sketch), options.read_only)?;
    let page_size = state.header.page_size as usize;
    let plan = memory::plan(options.cache_bytes, page_size);
    let parts = Parts { devices, options, plan, lock };
    parts.assemble(log, page_size, Some(state))
}

struct Parts {
    devices: Devices,
    options: Options,
    plan: Plan,
    lock: Option<DirLock>,
}

impl Parts {
    /// Puts the layers on each other; `found` is what opening an existing log found.
    fn assemble(self, log: Arc<Log>, page_size: usize, found: Option<LogState>) -> Result<Db> {
        let store: Arc<dyn PageStore> = Single::new(self.devices.data.clone(), page_size)?;
        let config = pool_config(&self.options, &self.plan)?;
        let pool = Pool::new(config, store.clone(), log.clone(), self.options.broken.page_before_log)?;
        let pages = PoolPages::new(pool.clone(), store.clone());
        self.bring_up(log.clone(), pages, found).inspect_err(|_| {
            // What was started must not outlive a failed open.
            log.poison("the database could not be opened");
            pool.stop();
            log.stop();
        })
    }

    fn bring_up(self, log: Arc<Log>, pages: Arc<PoolPages>, found: Option<LogState>) -> Result<Db> {
        let Parts { devices, options, plan, lock } = self;
        let budget = Arc::new(Budget::new(plan.limits));
        for class in [Class::Frames, Class::PageTable, Class::Staging, Class::LogBuffers] {
            budget.charge(class, plan.limits[class as usize])?;
        }
        let mut recovery = RecoveryReport { clean: true, ..RecoveryReport::default() };
        if !options.read_only {
            pages.pool.start();
            if let Some(state) = &found {
                let broken_partial_group = options.broken.partial_group;
                let mut how = RecoveryOptions { broken_partial_group, ..RecoveryOptions::default() };
                recovery = recovery::run(&log, state, &*pages, &mut how)?;
            }
            log.start();
        }
        let space = Space::open(pages.pool.clone(), pages.store.clone(), options.read_only)?;
        let core = Arc::new(Core::new(pages.pool.clone(), log, pages.store.clone(), space, budget, options.broken));
        if core.space.is_empty() {
            if options.read_only {
                return Err(Error::NoDatabase("this device (its creation did not finish)".into()));
            }
            bootstrap(&core)?;
        }
        let checkpointer = (!options.read_only).then(|| checkpointer(&core, pages, &options));
        let registry = Registry::load(&core)?;
        registry.finish_drops(&core)?;
        let txns = Manager::new(core.clone(), options.durability);
        let inner = Inner {
            core,
            txns,
            registry,
            options,
            checkpointer,
            devices,
            recovery,
            closed: AtomicBool::new(false),
            lock: Mutex::new(lock),
        };
        Ok(Db { inner: Arc::new(inner) })
    }
}

/// The first group of a database: the space map's first page and the catalog's empty root.
fn bootstrap(core: &Arc<Core>) -> Result<()> {
    let end = core.space.bootstrap(core, |group| Tree::create_root(core, group, CATALOG, CATALOG_ROOT))?;
    core.log.wait_durable(end)
}

fn log_config(options: &Options, capacity: Option<u64>, plan: &Plan) -> LogConfig {
    let capacity = capacity.unwrap_or(LogConfig::default().capacity);
    let max_capacity = options.log_max_bytes.max(capacity);
    // An eighth of the first size, but so that a superblock can list the segments of the largest.
    let segment = (capacity / 8).clamp(64 << 10, 16 << 20).max(max_capacity / 512).next_multiple_of(4096);
    LogConfig {
        capacity,
        max_capacity,
        segment,
        buffer: plan.log_buffer,
        async_delay: options.async_delay,
        broken_skip_flush: options.broken.skip_log_flush,
        broken_skip_superblock_flush: options.broken.skip_superblock_flush,
        ..LogConfig::default()
    }
}

fn pool_config(options: &Options, plan: &Plan) -> Result<PoolConfig> {
    let mut config = plan.pool.clone();
    if options.pool_frames > 0 {
        config = PoolConfig::new(config.page_size, options.pool_frames);
    }
    if options.pool_instances > 0 {
        config = config.with_instances(options.pool_instances);
    }
    let mut config = options.pool.apply(config)?;
    if !options.replacement.is_empty() {
        let replacement = crate::buffer::policy_name(&options.replacement).ok_or_else(|| {
            Error::Invalid(format!(
                "no replacement policy {:?}; there are: {}",
                options.replacement,
                crate::buffer::policy_names()
            ))
        })?;
        config = config.with_policy(replacement, options.policy);
    } else {
        let replacement = config.replacement;
        config = config.with_policy(replacement, options.policy);
    }
    if !options.cleaners || options.read_only {
        config.cleaner.kind = CleanerKind::Off;
        if config.victim == "clean-first" {
            // Without cleaners nothing would ever become clean.
            config.victim = "spf";
        }
    }
    config.trace = options.trace.clone();
    if options.pool.equal_memory {
        config = config.with_equal_memory();
    }
    Ok(config)
}

fn checkpointer(core: &Core, pages: Arc<PoolPages>, options: &Options) -> Arc<Checkpointer> {
    let cfg = CheckpointConfig {
        recovery_bound: options.recovery_bound,
        broken_redo_from_first_change: options.broken.redo_from_first_change,
        broken_skip_sync: options.broken.skip_superblock_flush,
        ..CheckpointConfig::default()
    };
    let checkpointer = Checkpointer::new(core.log.clone(), pages, cfg);
    checkpointer.start();
    checkpointer
}

pub(super) fn close(inner: &Arc<Inner>) -> Result<()> {
    if let Some(open) = inner.txns.open_count() {
        return Err(Error::Invalid(format!("{open}; end them before closing the database")));
    }
    if inner.closed.swap(true, Ordering::AcqRel) {
        return Err(Error::Closed);
    }
    let result = match &inner.checkpointer {
        Some(checkpointer) => inner.registry.finish_drops(&inner.core).and_then(|()| checkpointer.close()),
        None => Ok(()),
    };
    inner.core.pool.stop();
    inner.core.log.stop();
    inner.lock.lock().take();
    result
}

fn uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    varve_rt::rng().fill_bytes(&mut bytes);
    bytes
}
