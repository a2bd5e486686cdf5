//! Creating, opening and closing a database: the order in which the layers come up and go down.
//!
//! Up: log, store, pool, recovery (the log is replayed into the pool), space map, bootstrap if the database holds
//! nothing yet, catalog, background work. Down: refuse new work, stop background work, last checkpoint, clean mark in
//! the superblock.
//!
//! Invariant: a step that fails undoes the ones before it: nothing works in the background of a database that was not
//! opened.

use super::arrays::ArrayService;
use super::catalog::{CATALOG, CATALOG_ROOT};
use super::devices::{self, Devices};
use super::formers::Reclaimer;
use super::identity::{self, Identity};
use super::keyspaces::Registry;
use super::lost_writes::Marks;
use super::memory::{self, Cache, Plan};
use super::missing;
use super::options::{Layout, MIN_LOG_BYTES, Options};
use super::read_only::Sealer;
use super::services::Services;
use super::volume;
use super::{Db, Inner, Opened};
#[cfg(feature = "baselines")]
use crate::buffer::DOUBLEWRITE_PAGES;
use crate::buffer::policy::{self, ClassCosts, Gd2lOptions};
use crate::buffer::{Pool, PoolConfig};
use crate::error::{Error, Result};
use crate::index::{Index, Indexes, KeyspaceKind, NearHost};
use crate::page::Kernel;
use crate::space::Core;
use crate::space::PoolPages;
use crate::space::{Ripening, Space};
use crate::txn::lock::LockTable;
use crate::txn::{Manager, Readers};
use crate::wal::checkpoint::{CheckpointConfig, Checkpointer};
use crate::wal::recovery::{self, IndexRecord, RecoveryOptions, RecoveryReport};
use crate::wal::{Birth, FIRST_LSN, Log, LogConfig, LogState, MAP_COUNT};
use std::path::Path;
use std::sync::Arc;
use varve_device::{Device, DeviceKind, DirLock, Health, Watched};
use varve_rt::atomic::AtomicU64;
use varve_volume::Lsn;
use varve_volume::plan::{DATA, Volume};
use varve_volume::tier::TierOptions;
use varve_volume::{Admin, PageStore, WatchedStore};

/// Bytes of the smallest hole that is punched into a file.
const HOLE: usize = 64 << 10;

pub(super) fn create_dir(dir: &Path, layout: &Layout, options: Options) -> Result<Db> {
    layout.validate(&options)?;
    check(&options)?;
    refuse_read_only(&options)?;
    let open = devices::create(dir, layout, &options)?;
    create_on(open.devices, layout, options, Some(open.lock)).inspect_err(|_| devices::take_back_later(dir, open.made))
}

pub(super) fn open_dir(dir: &Path, options: Options) -> Result<Db> {
    check(&options)?;
    let open = devices::open(dir, &options).map_err(|e| missing::explain(dir, &options, e))?;
    let ends_tier = options.without_tier && !options.read_only;
    let db = open_on(open.devices, options, Some(open.lock))?;
    if ends_tier {
        devices::unlink_fast(dir)?;
    }
    Ok(db)
}

/// Opens a database that has no tier and makes one.
pub(super) fn attach_dir(dir: &Path, fast: &Path, bytes: u64, options: Options) -> Result<Db> {
    check(&options)?;
    refuse_read_only(&options)?;
    let open = devices::open_attaching(dir, fast, bytes, &options)?;
    let options = Options { attach_tier: true, without_tier: false, ..options };
    open_on(open.devices, options, Some(open.lock)).inspect_err(|_| drop(devices::unlink_fast(dir)))
}

/// Copies everything home, then takes the fast device out of the database. Each step can be repeated after a crash.
pub(super) fn detach_dir(dir: &Path, options: Options) -> Result<()> {
    let tier = TierOptions { manager: "none".into(), ..options.tier.clone() };
    let home = open_dir(dir, Options { tier, without_tier: false, ..options.clone() })?;
    home.flush_tier()?;
    home.close()?;
    open_dir(dir, Options { without_tier: true, ..options })?.close()
}

/// Whether a database can be opened so, in this process.
fn check(options: &Options) -> Result<()> {
    options.validate()?;
    varve_rt::watch_forks().map_err(|why| Error::Resources(format!("no room to watch for forks ({why})")))?;
    if varve_rt::forked_among_threads() {
        return Err(Error::Forked("it can use none; close before the fork, or start the process anew (exec, spawn)"));
    }
    Ok(())
}

fn refuse_read_only(options: &Options) -> Result<()> {
    if options.read_only {
        return Err(Error::ReadOnly("a database cannot be created for reading only".into()));
    }
    Ok(())
}

/// First the log says that a database is being created, and last that it is there: whatever comes between may be cut
/// short, and is begun anew.
pub(super) fn create_on(devices: Devices, layout: &Layout, options: Options, lock: Option<DirLock>) -> Result<Db> {
    layout.validate(&options)?;
    check(&options)?;
    refuse_read_only(&options)?;
    devices.check_images(&options, layout.page_size)?;
    let near = devices.attach_near(&options)?;
    let (options, cache) = sized(options)?;
    let plan = memory::plan(cache.bytes, layout.page_size);
    let mut header = devices::new_header(layout.page_size, devices.parts.room(), devices.array.as_deref());
    Log::begin_creation(&*devices.log, &header)?;
    let (watched, log_device) = watch(&devices, &options, lock);
    let (identity, birth) = identity::prepare(watched.data()?, &header, identity::PAGES, log_device.health().faults())?;
    let (volume, record) = volume::create(&watched, layout, &options, (header.uuid, birth.generation))?;
    header.options = record;
    let config = log_config(&options, Some(layout.log_bytes), &plan);
    let log = Log::create_at(log_device, config, header, (FIRST_LSN, Birth { creating: true, ..birth }))?;
    log.accompany(identity.clone());
    let parts = Parts { devices, options, cache, plan, identity: Some(identity), near };
    parts.assemble(log, volume, None)
}

pub(super) fn open_on(devices: Devices, options: Options, lock: Option<DirLock>) -> Result<Db> {
    check(&options)?;
    // Before anything is written: a page that is free may still be written to by a worker.
    let near = devices.attach_near(&options)?;
    // The log buffer's size does not depend on the page size; the rest of the plan is made once the page size is known.
    let (options, cache) = sized(options)?;
    let sketch = memory::plan(cache.bytes, Layout::default().page_size);
    let (watched, log_device) = watch(&devices, &options, lock);
    let data = watched.data()?;
    let (log, state) = Log::open(log_device, log_config(&options, None, &sketch), options.read_only)
        .map_err(|e| identity::explain(e, &**data))?;
    let identity = identity::find(data, &log, &state)?;
    let page_size = state.header.page_size as usize;
    devices.check_images(&options, page_size)?;
    let plan = memory::plan(cache.bytes, page_size);
    let admits = |fast| {
        identity.as_ref().is_some_and(|identity| identity.admits(fast, state.generation))
            || identity::believed(log.faults(), fast, state.generation)
    };
    let volume = volume::open(&watched, (&log, &state), &admits, &options)?;
    if state.clean {
        identity::refuse_blank_map(&*volume.store)?;
    }
    let parts = Parts { devices, options, cache, plan, identity, near };
    parts.assemble(log, volume, Some(state))
}

/// The devices as one database has them: for pages, and for its log. The directory's lock goes when nobody can write to
/// them any more.
fn watch(devices: &Devices, options: &Options, lock: Option<DirLock>) -> (Devices, Watched) {
    let health = Health::with(options.faults());
    lock.into_iter().for_each(|lock| health.keep(lock));
    let watched = devices.parts.iter().fold(devices.clone(), |watched, (name, device)| {
        // What fails on the other parts the volume judges itself.
        let watch = if name == DATA { Watched::new } else { Watched::until_end };
        watched.with(name, Arc::new(watch(device.clone(), &health)))
    });
    (watched, Watched::new(devices.log.clone(), &health))
}

/// The options with a size of the cache, and where it comes from.
fn sized(options: Options) -> Result<(Options, Cache)> {
    let cache = Cache::of(options.cache_bytes)?;
    Ok((Options { cache_bytes: cache.bytes, ..options }, cache))
}

struct Parts {
    devices: Devices,
    options: Options,
    cache: Cache,
    plan: Plan,
    identity: Option<Arc<Identity>>,
    near: Option<NearHost>,
}

impl Parts {
    /// Puts the layers on each other; `found` is what opening an existing log found.
    fn assemble(self, log: Arc<Log>, volume: Volume, found: Option<LogState>) -> Result<Db> {
        let marks = Marks::choose(&log, &volume.store, &self.options)?;
        let config = pool_config(&self.options, &self.plan, &*volume.admin)?;
        let (store, config) = match &marks.map {
            None => (volume.store.clone(), config),
            Some(map) => {
                let watched: Arc<dyn PageStore> = WatchedStore::new(volume.store.clone(), map.clone());
                // (Simulations count their frames.)
                let less = if self.options.pool_frames > 0 { 0 } else { map.memory() };
                (watched, config.with_less_memory(less))
            }
        };
        let counted = self.options.pool_frames > 0;
        let (noted, kept) = self.options.update_notes();
        let config = config.noting(noted.max(store.noted_changes()), counted).keeping_flushes(kept, counted);
        let pool = Pool::new(config, store.clone(), log.clone())?;
        let pages = PoolPages::new(pool.clone(), store, marks.found());
        volume::belongs(&volume.admin, &log, self.options.read_only);
        if let Some(array) = self.devices.array.as_ref().filter(|_| !self.options.read_only) {
            volume::ages(array, &log);
        }
        // What was started ends with it when the opening fails.
        let services = Services::new(log.clone(), pool, volume.admin.clone());
        self.bring_up(services, log, pages, volume, marks, found)
    }

    fn bring_up(
        self,
        services: Services,
        log: Arc<Log>,
        pages: Arc<PoolPages>,
        mut volume: Volume,
        marks: Marks,
        found: Option<LogState>,
    ) -> Result<Db> {
        let Parts { devices, options, cache, plan, mut identity, near } = self;
        let budget = plan.budget()?;
        let mut recovery = RecoveryReport { clean: true, ..RecoveryReport::default() };
        let indexes = Arc::new(Indexes::with_near(near, devices.near.is_some()));
        if options.read_only {
            indexes.set_read_only();
        } else {
            pages.pool.start()?;
            if let Some(state) = &found {
                recovery = recover((&log, state), &pages, identity.as_ref(), &indexes)?;
            }
            log.start()?;
            log.set_opening(true);
        }
        let maps = identity.as_ref().map_or(0, |identity| identity.maps());
        let redone = pages.take_redone();
        let space = Space::open(pages.pool.clone(), pages.store.clone(), Some(redone), (maps, options.without_drive))?;
        identity.iter().for_each(|identity| space.set_fixed(&identity.pages()));
        if !options.read_only {
            // Nothing is moved before: a torn page that is free by now would be in the way.
            volume::forget_free(&*volume.admin, &*volume.store, &space)?;
            volume.admin.start()?;
        }
        let kernel = Kernel::new(pages.pool.clone(), log, pages.store.clone(), budget)
            .with_images(options.page_images || marks.map.is_some());
        let core = Arc::new(Core::new(kernel, space, marks.map.clone()));
        match found {
            None => bootstrap(&core)?,
            Some(_) if core.space.is_empty() => return Err(identity::blank_map()),
            Some(_) if options.read_only => {}
            Some(state) => {
                core.space.refuse_cut()?;
                recovery.identified = identity::settle(&core, &devices, &state, &mut identity)?;
            }
        }
        if let Some(identity) = identity.as_ref().filter(|_| !options.read_only) {
            core.log.set_feature(&MAP_COUNT, true)?;
            identity.counts(&core);
        }
        recovery.emptied_tier = volume.emptied.take();
        if !options.read_only {
            volume.admin.note_stamped()?;
        }
        marks.begin(&core, options.read_only)?;
        if !options.read_only {
            settle_volume(&*volume.admin, &*volume.store, (&core, &pages))?;
        }
        #[cfg(feature = "baselines")]
        reserve_doublewrite(&core, &pages, &options)?;
        // Before the first checkpoint, which asks the indexes.
        let (locks, registry) = keyspaces(&core, &indexes, &options)?;
        let data = &**devices.data()?;
        let checkpointer = (!options.read_only).then(|| checkpointer(&core, pages, indexes.clone(), &options, data));
        checkpointer.iter().try_for_each(|checkpointer| services.start_checkpointer(checkpointer))?;
        core.log.set_opening(false);
        services.add_indexes(&indexes);
        registry.finish_drops(&core)?;
        let walking = Arc::default();
        let array = ArrayService::new(&devices, &options, &core);
        if let (Some(array), Some(checkpointer)) = (&array, &checkpointer) {
            let sealer = Sealer::new((&core, &registry, &walking), (!recovery.clean).then_some(checkpointer));
            array.start(&services, sealer)?;
        }
        let txns = transactions(&core, locks, &registry, &options);
        indexes.begin(&core, txns.clone())?;
        recovery.finished = finish_commits(&txns, &registry)?;
        let reclaimer = Reclaimer::begin(&services, (&core, &txns, &registry), options.read_only)?;
        let readers = Readers::new(txns.clone());
        services.add_readers(&readers);
        let opened = Opened {
            services,
            core,
            txns,
            registry,
            indexes,
            options,
            cache_now: AtomicU64::new(cache.bytes),
            cache,
            checkpointer,
            devices,
            volume,
            identity,
            recovery,
            opened: varve_rt::now(),
            walking,
            reclaimer,
            readers,
            array,
        };
        Ok(Db { inner: Arc::new(Inner::new(opened)) })
    }
}

/// Ends what the volume had under way when the database was left.
fn settle_volume(admin: &dyn Admin, store: &dyn PageStore, (core, pages): (&Core, &PoolPages)) -> Result<()> {
    volume::forget_torn(admin, store, core)?;
    if admin.is_unsettled() {
        volume::settle(admin, pages)?;
    }
    Ok(())
}

/// The keyspaces that the catalog lists, and the locks of their rows.
fn keyspaces(core: &Arc<Core>, indexes: &Arc<Indexes>, options: &Options) -> Result<(Arc<LockTable>, Arc<Registry>)> {
    let locks = LockTable::new(core.budget.clone());
    locks.set_timeout(options.lock_timeout);
    let registry = Registry::load(core, locks.clone(), indexes.clone())?;
    if !options.read_only {
        registry.note_features(core)?;
    }
    Ok((locks, Arc::new(registry)))
}

/// Redoes what the log has from its redo point on, in pages and in what indexes keep in memory.
fn recover(
    (log, state): (&Log, &LogState),
    pages: &PoolPages,
    identity: Option<&Arc<Identity>>,
    indexes: &Indexes,
) -> Result<RecoveryReport> {
    let written = identity.map_or(0, |identity| identity.durable());
    let write_back = identity.is_none();
    let mut note = |end| identity.iter().try_for_each(|identity| identity.reached(end));
    let reached: Option<&mut dyn FnMut(Lsn) -> Result<()>> = Some(&mut note);
    let mut replay = |group: (Lsn, Lsn), keyspace, bytes: &[u8]| indexes.replay(group, keyspace, bytes);
    let index: Option<&mut IndexRecord<'_>> = Some(&mut replay);
    let mut how = RecoveryOptions { write_back, written, reached, index, ..RecoveryOptions::default() };
    recovery::run(log, state, pages, &mut how)
}

/// What transactions share.
fn transactions(core: &Arc<Core>, locks: Arc<LockTable>, registry: &Registry, options: &Options) -> Arc<Manager> {
    let catalog = registry.catalog_index().clone();
    Arc::new(Manager::new(
        core.clone(),
        locks,
        catalog,
        (options.durability, options.read_only),
        options.snapshot_disk_bytes,
    ))
}

/// Applies what is left of commits larger than one log group; how many there were.
fn finish_commits(txns: &Manager, registry: &Registry) -> Result<u64> {
    let live = registry.live();
    txns.finish(&|id| live.iter().find(|space| space.id() == id).cloned())
}

/// Sets pages aside for double writes. Taken in memory alone: after the next open they are free again.
#[cfg(feature = "baselines")]
fn reserve_doublewrite(core: &Core, pages: &PoolPages, options: &Options) -> Result<()> {
    if options.pool.baselines.doublewrite && !options.read_only {
        let area = core.space.reserve(core, crate::space::SPACE_KEYSPACE, DOUBLEWRITE_PAGES)?;
        pages.pool.set_doublewrite_area(area.ids().to_vec());
        area.keep();
    }
    Ok(())
}

/// The first group of a database: the space map's first page and the catalog's empty root. Then it is there.
fn bootstrap(core: &Arc<Core>) -> Result<()> {
    let end =
        core.space.bootstrap(core, |group| Index::create(core, group, KeyspaceKind::Tree, (CATALOG, CATALOG_ROOT)))?;
    core.log.wait_durable(end)?;
    core.log.finish_creation()
}

fn log_config(options: &Options, capacity: Option<u64>, plan: &Plan) -> LogConfig {
    let (capacity, max_capacity) = (capacity.unwrap_or(MIN_LOG_BYTES), options.log_max_bytes);
    // A sixteenth of the first size, but so that a superblock can list the segments of any size.
    let segment = (capacity / 16).clamp(64 << 10, 16 << 20).max(capacity / 128).next_multiple_of(4096);
    LogConfig {
        capacity,
        max_capacity,
        segment,
        buffer: plan.log_buffer,
        async_delay: options.async_delay,
        idle_checkpoints: options.log_idle_checkpoints,
        ..LogConfig::default()
    }
}

/// Memory by which the log's buffer is made while a database is restored, bytes.
const RESTORE_CACHE: u64 = 256 << 20;

/// The log of a database that is restored; options count again when it is opened.
pub(super) fn restored_log_config(bytes: u64) -> LogConfig {
    let options = Options { log_max_bytes: bytes.max(Options::default().log_max_bytes), ..Options::default() };
    log_config(&options, Some(bytes), &memory::plan(RESTORE_CACHE, Layout::default().page_size))
}

fn pool_config(options: &Options, plan: &Plan, volume: &dyn Admin) -> Result<PoolConfig> {
    let costs = volume.costs();
    // Pages cost different times to read again.
    let by_class = costs.len() > 1;
    let mut config = plan.pool.clone();
    if options.pool_frames > 0 {
        config = PoolConfig::new(config.page_size, options.pool_frames);
    }
    if let Some(instances) = options.pool.instances {
        config = config.with_instances(instances);
    }
    let mut config = options.pool.apply(config, by_class)?;
    // Unless told otherwise the pool knows of that.
    let default = (by_class && options.pool.preset.is_none()).then_some("gd2l");
    let wanted = options.pool.replacement.as_deref().or(default);
    let mut policy = options.pool.policy(&config, options.policy);
    if by_class && policy.gd2l == Gd2lOptions::default() {
        policy.gd2l.cost = ClassCosts::new(costs.iter().map(|cost| cost.read));
        policy.gd2l.write_cost = ClassCosts::new(costs.iter().map(|cost| cost.write));
        // So little that nothing is lost (InnoDB's 4 cost TPC-C on a disk 3 % of its throughput), but while no page is
        // evicted, no hit moves one.
        policy.gd2l.stay_part = 64;
    }
    let replacement = match wanted {
        Some(name) => policy::find(name).expect("a name that was checked").name,
        None => config.replacement,
    };
    config = config.with_policy(replacement, policy);
    // What the volume remembers of pages that left is paid for with frames.
    config = config.with_less_memory(volume.memory());
    config.cleaner.by_class = by_class;
    if !options.cleaners || options.read_only {
        config = config.without_cleaner();
    }
    config.trace = options.trace.clone();
    #[cfg(feature = "baselines")]
    {
        config = config.with_equal_memory();
    }
    Ok(config)
}

fn checkpointer(
    core: &Arc<Core>,
    pages: Arc<PoolPages>,
    indexes: Arc<Indexes>,
    options: &Options,
    data: &dyn Device,
) -> Arc<Checkpointer> {
    let cfg = CheckpointConfig { recovery_bound: options.recovery_bound, ..CheckpointConfig::default() };
    let info = data.info();
    let trims = info.capabilities.trim && options.trim != Some(false);
    // Small holes cost a file system more than they give back.
    let least = if info.kind == DeviceKind::File { (HOLE / core.page_size()).max(1) } else { 1 };
    let after = Arc::new(Ripening::new(core.clone(), trims.then_some(least)));
    Checkpointer::with(core.log.clone(), pages, cfg, Some(after), Some(indexes))
}

pub(super) fn close(inner: &Inner) -> Result<()> {
    inner.txns.close()?;
    // What reads for futures may hold snapshots still.
    inner.readers.stop();
    inner.reclaimer.stop();
    // It asks for checkpoints: none comes after the last one.
    inner.array.iter().for_each(|array| array.stop());
    let result = write_all(inner);
    inner.services.stop();
    let result = result.and_then(|()| match inner.checkpointer {
        Some(_) => {
            inner.volume.admin.closed()?;
            inner.array.iter().for_each(|array| array.closed());
            Ok(())
        }
        None => Ok(()),
    });
    inner.services.let_go();
    result
}

/// The last work of a database that is closed.
fn write_all(inner: &Inner) -> Result<()> {
    let Some(checkpointer) = &inner.checkpointer else { return Ok(()) };
    inner.registry.finish_drops(&inner.core)?;
    inner.indexes.stop();
    match write_memory(inner, checkpointer) {
        // The log has what memory alone holds; the next opening takes it from there.
        Err(Error::NoSpace(_)) => checkpointer.leave(),
        Err(why) if why.holds_up_a_part() => checkpointer.leave().and(Err(why)),
        written => written.and_then(|()| checkpointer.close()),
    }
}

/// Puts into pages what memory alone holds.
pub(super) fn write_memory(inner: &Inner, checkpointer: &Checkpointer) -> Result<()> {
    match inner.indexes.write_older_than(Lsn::MAX) {
        Err(Error::NoSpace(_)) => {
            // What was freed since the last checkpoint can be used after another one.
            checkpointer.with_checkpoint(|make| make())?;
            inner.indexes.write_older_than(Lsn::MAX)
        }
        written => written,
    }
}
