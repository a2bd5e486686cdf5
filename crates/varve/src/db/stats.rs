//! `Db::stats`: every counter of the layers, in one plain structure, and as named rows for tables and exporters.

use super::Inner;
use crate::budget::ClassUse;
use crate::buffer::{PoolStats, UpdateSizes};
use crate::index::{LinkUse, LsmStats, NearStats};
use crate::page::PageChangeStats;
use crate::space::lost_writes::LostWriteStats;
use crate::space::{SPACE_KEYSPACE, ScratchStats, TrimStats};
use crate::txn::{OpenKeyspace, TxnStats};
use crate::wal::LogStats;
use crate::wal::checkpoint::CheckpointStats;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_device::{DeviceStats, OpStats};
use varve_rt::atomic::Ordering;
use varve_volume::array::{ArrayStats, Moves};
use varve_volume::plan::{DATA, FAST};
use varve_volume::tier::{REFUSALS, TierStats};
use varve_volume::{KeyspaceId, RegionReport};

/// Counters since the database was opened, and sizes as they are now.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Nanoseconds since the database was opened.
    pub open_ns: u64,
    /// Whether a write of the log failed, so that writes are refused.
    pub poisoned: bool,
    /// Bytes of a page.
    pub page_size: usize,
    /// Pages that the data device holds.
    pub pages: u64,
    /// Of these, pages that nothing is stored in.
    pub free_pages: u64,
    /// The buffer pool.
    pub pool: PoolStats,
    /// The log.
    pub log: LogStats,
    /// Checkpoints.
    pub checkpoints: CheckpointStats,
    /// Free pages that the data device was told of.
    pub trims: TrimStats,
    /// Pages of what was too much for memory.
    pub scratch: ScratchStats,
    /// Page changes: images logged, nodes divided and joined.
    pub changes: PageChangeStats,
    /// How much updates of pages change, by keyspace; where that is counted (a trace, native flash with delta records,
    /// `update_sizes`).
    pub updates: Vec<KeyspaceUpdates>,
    /// LSM keyspaces, by name.
    pub lsm: Vec<LsmStats>,
    /// Merges near the data, where there is a worker for them.
    pub near: Option<NearStats>,
    /// Transactions.
    pub txn: TxnStats,
    /// Memory that the database may take now, bytes.
    pub cache_bytes: u64,
    /// Where that size comes from, in words.
    pub cache_source: String,
    /// Memory by class.
    pub budget: Vec<ClassUse>,
    /// The data device.
    pub data_device: DeviceStats,
    /// The log device.
    pub log_device: DeviceStats,
    /// The drives of the array, where there is one.
    pub array: Option<ArrayStats>,
    /// How far the moves of its extents are; not while the database is open for reading alone.
    pub array_moves: Option<Moves>,
    /// The tier, where there is one.
    pub tier: Option<TierStats>,
    /// The regions of native flash, where the pages lie on some.
    pub regions: Vec<RegionReport>,
    /// Of each region with keyspaces of its own, and of the others together (first): name, pages that it has for them,
    /// and how many of these are in use. None if no region has keyspaces of its own.
    pub region_use: Vec<(String, u64, u64)>,
    /// Marks of the versions written last, with `detect_lost_writes`.
    pub lost_writes: Option<LostWriteStats>,
    /// How the data and log devices are accessed, and why not in a better way if so.
    pub access: Vec<String>,
}

/// How much updates of a keyspace's pages change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceUpdates {
    /// Its number in page headers.
    pub keyspace: KeyspaceId,
    /// Its name; what the engine keeps for itself is in parentheses.
    pub name: String,
    /// Writes of its pages.
    pub sizes: UpdateSizes,
}

/// A figure of [`Stats::rows`].
#[derive(Debug, Clone, PartialEq)]
pub enum Figure {
    /// A count or a size.
    Number(u64),
    /// A ratio.
    Ratio(f64),
    /// Words.
    Text(String),
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Figure::Number(n) => n.fmt(f),
            Figure::Ratio(r) => write!(f, "{r:.4}"),
            Figure::Text(t) => f.write_str(t),
        }
    }
}

/// Names of keyspaces by number.
pub(super) fn names(inner: &Inner) -> BTreeMap<KeyspaceId, String> {
    let own = [(SPACE_KEYSPACE, "(space map)"), (inner.registry.catalog().keyspace(), "(catalog)")];
    let own = own.into_iter().map(|(id, name)| (id, name.to_string()));
    own.chain(inner.registry.live().iter().map(|shared| (shared.id(), shared.name().to_string()))).collect()
}

fn updates(inner: &Inner) -> Vec<KeyspaceUpdates> {
    let sizes = inner.core.pool.update_sizes();
    let names = if sizes.is_empty() { BTreeMap::new() } else { names(inner) };
    let named = |(keyspace, sizes): (KeyspaceId, UpdateSizes)| {
        let name = names.get(&keyspace).cloned().unwrap_or_else(|| format!("(dropped {})", keyspace.0));
        KeyspaceUpdates { keyspace, name, sizes }
    };
    sizes.into_iter().map(named).collect()
}

fn lsm(inner: &Inner) -> Vec<LsmStats> {
    let of = |shared: &Arc<OpenKeyspace>| {
        let stats = shared.index().lsm_stats()?;
        let without_worker = inner.indexes.without_worker(shared.index().kind());
        Some(LsmStats { name: shared.name().to_string(), without_worker, ..stats })
    };
    inner.registry.live().iter().filter_map(of).collect()
}

pub(super) fn collect(inner: &Inner) -> Stats {
    let core = &inner.core;
    let access = |name: &str, device: &dyn varve_device::Device| {
        let info = device.info();
        let fallback = info.fallback.map(|f| format!(" (fallback: {f})")).unwrap_or_default();
        format!("{name}: {}{fallback}", info.access)
    };
    Stats {
        open_ns: inner.opened.elapsed().as_nanos() as u64,
        poisoned: core.log.poisoned().is_some(),
        page_size: core.page_size(),
        pages: core.store.pages(),
        free_pages: core.space.usage().1,
        pool: core.pool.stats(),
        log: core.log.stats(),
        checkpoints: inner.checkpointer.as_ref().map(|c| c.stats()).unwrap_or_default(),
        trims: core.space.trim_stats(),
        scratch: core.space.scratch_stats(),
        changes: core.counters.get(),
        updates: updates(inner),
        lsm: lsm(inner),
        near: inner.indexes.near_stats(),
        txn: inner.txns.stats(),
        cache_bytes: inner.cache_now.load(Ordering::Acquire),
        cache_source: inner.cache.source(),
        budget: core.budget.report(),
        data_device: inner.devices.part(DATA).map(|data| data.stats()).unwrap_or_default(),
        log_device: inner.devices.log.stats(),
        array: inner.devices.array.as_ref().map(|array| array.array_stats()),
        array_moves: inner.array.as_ref().map(|service| service.moves()),
        tier: inner.volume.admin.report().tier,
        regions: inner.volume.admin.report().regions,
        region_use: core.space.zone_usage(),
        lost_writes: core.lost_writes.as_ref().map(|marks| marks.stats()),
        access: [(DATA, inner.devices.part(DATA)), ("log", Some(&inner.devices.log)), (FAST, inner.devices.part(FAST))]
            .into_iter()
            .filter_map(|(name, device)| Some(access(name, &**device?)))
            .collect(),
    }
}

impl Stats {
    /// The figures by name, in a stable order.
    pub fn rows(&self) -> Vec<(String, Figure)> {
        let mut rows = Rows(Vec::new());
        rows.number("page_size", self.page_size as u64);
        rows.number("pages", self.pages);
        rows.number("free_pages", self.free_pages);
        self.pool_rows(&mut rows);
        self.log_rows(&mut rows);
        self.engine_rows(&mut rows);
        rows.number("lost_writes.detected", u64::from(self.lost_writes.is_some()));
        if let Some(marks) = &self.lost_writes {
            rows.number("lost_writes.mark_pages", marks.mark_pages);
            rows.number("lost_writes.in_memory", marks.in_memory);
            rows.number("lost_writes.found", marks.found);
        }
        let fast = self.tier.as_ref().map(|tier| &tier.fast);
        if let Some(tier) = &self.tier {
            rows.tier(tier);
        }
        self.region_rows(&mut rows);
        let devices = [("data", Some(&self.data_device)), ("log", Some(&self.log_device)), ("fast", fast)];
        for (name, device) in devices.into_iter().filter_map(|(name, device)| Some((name, device?))) {
            for (op, s) in [("reads", &device.read), ("writes", &device.write), ("flushes", &device.flush)] {
                rows.operation(&format!("device.{name}.{op}"), s);
            }
            if let Some(tier) = &self.tier {
                let nanos = device.read.nanos + device.write.nanos + device.flush.nanos;
                let under_way = nanos as f64 / 1e9 / tier.seconds.max(1e-9);
                rows.0.push((format!("device.{name}.under_way"), Figure::Ratio(under_way)));
            }
        }
        for of in &self.updates {
            let (name, s) = (&of.name, &of.sizes);
            rows.number(&format!("updates.{name}.new"), s.new);
            rows.number(&format!("updates.{name}.updates"), s.updates);
            let sized = s.updates - s.more;
            rows.number(&format!("updates.{name}.net_bytes"), s.bytes.0.checked_div(sized).unwrap_or(0));
            rows.number(&format!("updates.{name}.gross_bytes"), s.bytes.1.checked_div(sized).unwrap_or(0));
        }
        self.lsm.iter().for_each(|of| rows.lsm(of));
        self.near.iter().for_each(|near| rows.near(near));
        rows.number("memory.cache", self.cache_bytes);
        rows.0.push(("memory.cache_source".into(), Figure::Text(self.cache_source.clone())));
        for class in &self.budget {
            let name = class.class.name().replace(' ', "_");
            rows.number(&format!("memory.{name}.used"), class.used);
            rows.number(&format!("memory.{name}.limit"), class.limit);
        }
        for (name, text) in ["device.data.access", "device.log.access", "device.fast.access"].iter().zip(&self.access) {
            rows.0.push((name.to_string(), Figure::Text(text.clone())));
        }
        rows.0
    }

    fn pool_rows(&self, rows: &mut Rows) {
        let (p, t) = (&self.pool, self.pool.total());
        rows.0.push(("pool.hit_ratio".into(), Figure::Ratio(p.hit_ratio())));
        for (name, n) in [
            ("frames", p.frames),
            ("free", p.free),
            ("dirty", p.dirty),
            ("hits", t.hits),
            ("misses", t.misses),
            ("prefetched", t.prefetched),
            ("evicted_clean", t.evicted_clean),
            ("evicted_dirty", t.evicted_dirty),
            ("written", t.written),
            ("single_page_flushes", p.single_page_flushes),
            ("stalls", p.stalls),
            ("stall_ns", p.stall_ns),
            ("clean_stalls", p.clean_stalls),
            ("scanned", p.scanned),
            ("cleaner_scanned", p.cleaner_scanned),
            ("set_aside", p.set_aside),
            ("readmitted", p.readmitted),
            ("aside", p.aside),
            ("write_batches", p.write_batches),
            ("batched_pages", p.batched_pages),
            ("largest_batch", p.largest_batch),
            ("foreground_writes", p.foreground_writes),
            ("replacement_writes", p.replacement_writes),
            ("recoverability_writes", p.recoverability_writes),
            ("checkpoint_writes", p.checkpoint_writes),
            ("load_writes", p.load_writes),
            ("log_forces", p.log_forces),
            ("list_locks", p.list_locks),
            ("list_wait_ns", p.list_wait_ns),
            ("list_hold_ns", p.list_hold_ns),
            ("list_hold_max_ns", p.list_hold_max_ns),
            ("write_errors", p.write_errors),
            ("read_errors", p.read_errors),
            ("read_retries", p.read_retries),
        ] {
            rows.number(&format!("pool.{name}"), n);
        }
        for (n, count) in p.batch_sizes.iter().enumerate().filter(|(_, count)| **count > 0) {
            rows.number(&format!("pool.batches_from_{}", 1 << n), *count);
        }
    }

    fn log_rows(&self, rows: &mut Rows) {
        let (l, c) = (&self.log, &self.checkpoints);
        for (name, n) in [
            ("log.groups", l.groups),
            ("log.group_bytes", l.group_bytes),
            ("log.writes", l.writes),
            ("log.written_bytes", l.written_bytes),
            ("log.padding_bytes", l.padding_bytes),
            ("log.waits", l.waits),
            ("log.space_waits", l.space_waits),
            ("log.growths", l.growths),
            ("log.shrinks", l.shrinks),
            ("log.capacity", l.capacity),
            ("log.age", l.age),
            ("log.end_lsn", l.end),
            ("log.durable_lsn", l.durable),
            ("log.superblocks_mended", l.superblocks_mended),
            ("checkpoint.completed", c.completed),
            ("checkpoint.failed", c.failed),
            ("trim.pages", self.trims.pages),
            ("trim.extents", self.trims.extents),
            ("trim.failed", self.trims.failed),
            ("scratch.pages", self.scratch.pages),
            ("scratch.peak", self.scratch.peak),
            ("scratch.written", self.scratch.written),
            ("scratch.read", self.scratch.read),
            ("checkpoint.last_ns", c.last_ns),
            ("checkpoint.redo_budget", c.redo_budget),
        ] {
            rows.number(name, n);
        }
    }

    fn region_rows(&self, rows: &mut Rows) {
        let text = |s: &str| Figure::Text(s.into());
        for region in &self.regions {
            let of = |what: &str| format!("region.{}.{what}", region.name);
            let others = text("all that no region names");
            let names = text(&region.keyspaces.join(", "));
            rows.0.push((of("keyspaces"), if region.keyspaces.is_empty() { others } else { names }));
            rows.0.push((of("scheme"), text(&region.scheme)));
            for (name, n) in [
                ("pages", region.pages),
                ("writes", region.writes),
                ("appends", region.appends),
                ("migrations", region.migrations),
                ("programs", region.programs),
                ("erases", region.erases),
                ("all_erases", region.all_erases),
                ("bad_blocks", region.bad_blocks),
            ] {
                rows.number(&of(name), n);
            }
            let life = region.life_used.map_or_else(|| text("not limited"), Figure::Ratio);
            rows.0.push((of("life_used"), life));
            rows.0.push((of("state"), text(if region.worn_out { "worn out: read-only" } else { "in use" })));
        }
        for (name, pages, used) in &self.region_use {
            rows.number(&format!("room.{name}.pages"), *pages);
            rows.number(&format!("room.{name}.used"), *used);
        }
    }

    fn engine_rows(&self, rows: &mut Rows) {
        let c = &self.changes;
        for (name, n) in [
            ("groups.page_images", c.images),
            ("groups.repeated", c.repeated),
            ("tree.splits", c.splits),
            ("tree.merges", c.merges),
        ] {
            rows.number(name, n);
        }
        for (name, n) in self.txn.rows() {
            rows.number(&format!("txn.{name}"), n);
        }
    }
}

struct Rows(Vec<(String, Figure)>);

impl Rows {
    fn number(&mut self, name: &str, n: u64) {
        self.0.push((name.to_string(), Figure::Number(n)));
    }

    fn tier(&mut self, t: &TierStats) {
        let c = &t.counters;
        let of_life = t.bytes_per_day_of_life(varve_rt::unix_time() / 1_000_000_000);
        let life = t.life_used.map_or_else(|| Figure::Text("not reported".into()), Figure::Ratio);
        let text = |s: &str| Figure::Text(s.into());
        for (name, figure) in [
            ("manager", text(&t.manager)),
            ("device", text(&t.device)),
            (
                "state",
                text(if t.failed {
                    "failed"
                } else if t.attached {
                    "in use"
                } else {
                    "detached"
                }),
            ),
            ("life_used", life),
            ("bytes_per_day_of_life", Figure::Number(of_life as u64)),
            ("recovery_seconds", Figure::Ratio(t.recovery.seconds)),
            ("seconds", Figure::Ratio(t.seconds)),
        ] {
            self.0.push((format!("tier.{name}"), figure));
        }
        for (name, ratio) in [
            ("tier.hit_ratio", t.hit_ratio()),
            ("tier.dirty_share", t.newer as f64 / t.slots.max(1) as f64),
            ("tier.occupied_share", t.occupied as f64 / t.slots.max(1) as f64),
        ] {
            self.0.push((name.into(), Figure::Ratio(ratio)));
        }
        for (name, n) in [
            ("slots", t.slots),
            ("occupied", t.occupied),
            ("newer", t.newer),
            ("newer_since", t.newer_since),
            ("bytes_per_day", t.bytes_per_day() as u64),
            ("attached_since", t.created),
            ("written", t.written),
            ("budget_spent", t.budget_spent),
            ("zone", t.zone),
            ("memory", t.memory),
            ("fast_reads", c.fast_reads),
            ("staged_reads", c.staged_reads),
            ("slow_reads", c.slow_reads),
            ("fast_prefetches", c.fast_prefetches),
            ("slow_prefetches", c.slow_prefetches),
            ("overwrites", c.overwrites),
            ("dirty_admitted", c.dirty_admitted),
            ("clean_admitted", c.clean_admitted),
            ("home_writes", c.home_writes),
            ("invalidated", c.invalidated),
            ("evicted_clean", c.evicted_clean),
            ("evicted_newer", c.evicted_newer),
            ("copied_back", c.slow_copies),
            ("maps", c.maps),
            ("map_bytes", c.map_bytes),
            ("journal_records", c.journal_records),
            ("slot_bytes", c.slot_bytes),
            ("repaired", c.repaired),
            ("lost", c.lost),
            ("damaged", c.damaged),
            ("errors", c.errors),
        ] {
            self.number(&format!("tier.{name}"), n);
        }
        for ((name, _), n) in REFUSALS.iter().zip(c.refused) {
            self.number(&format!("tier.refused.{}", name.replace(' ', "_")), n);
        }
    }

    fn near(&mut self, s: &NearStats) {
        self.number("near.attached", s.attached.into());
        self.number("near.attachments", s.attachments);
        self.number("near.attach_failures", s.attach_failures);
        for (side, of) in [("host", &s.host), ("worker", &s.device)] {
            for (what, n) in [
                ("tasks", of.tasks),
                ("pipelined", of.pipelined),
                ("read_bytes", of.read),
                ("written_bytes", of.written),
                ("ns", of.time.as_nanos() as u64),
                ("waited_ns", of.waited.as_nanos() as u64),
            ] {
                self.number(&format!("near.{side}.{what}"), n);
            }
            let mut put = |what: &str, figure| self.0.push((format!("near.{side}.{what}"), figure));
            put("bytes_per_s", Figure::Ratio(of.bandwidth()));
            if let Some(mode) = of.mode {
                put("mode", Figure::Text(mode.name().into()));
                put("large_share", Figure::Ratio(of.large_share));
            }
            if let Some(load) = of.load {
                put("cpu", Figure::Ratio(load.cpu));
                put("memory", Figure::Ratio(load.memory));
            }
        }
        self.number("near.cut", s.cut);
        self.0.push(("near.host_share".into(), Figure::Ratio(s.share)));
        self.number("near.message_bytes", s.message_bytes);
        if let Some(LinkUse { requests, sent, received }) = s.link {
            self.number("near.link.requests", requests);
            self.number("near.link.sent_bytes", sent);
            self.number("near.link.received_bytes", received);
        }
        for (reason, n) in s.fallbacks.each() {
            self.number(&format!("near.fallbacks.{reason}"), n);
        }
        self.number("near.resumed", s.resumed);
        self.number("near.resumed_bytes", s.resumed_bytes);
        self.number("near.answers_dropped", s.dropped);
        self.number("near.given_up", s.orphans);
        for (what, why) in [("last_fallback", &s.last_fallback), ("last_attach_failure", &s.last_attach_failure)] {
            if let Some(why) = why {
                self.0.push((format!("near.{what}"), Figure::Text(why.clone())));
            }
        }
    }

    fn lsm(&mut self, s: &LsmStats) {
        let of = |what: &str| format!("lsm.{}.{what}", s.name);
        if let Some(merge) = s.without_worker {
            self.0.push((of("without_worker"), Figure::Text(merge.name().into())));
        }
        for (what, n) in [
            ("memtable_bytes", s.memtable_bytes),
            ("user_bytes", s.user_bytes),
            ("log_bytes", s.log_bytes),
            ("flushes", s.flushes),
            ("flushed_bytes", s.flushed_bytes),
            ("merges", s.merges),
            ("moves", s.moves),
            ("seek_merges", s.seek_merges),
            ("merge_read_bytes", s.merged_bytes.0),
            ("merge_written_bytes", s.merged_bytes.1),
            ("merge_ns", s.merge_ns),
            ("lookups", s.lookups),
            ("delays", s.delays.0),
            ("delay_ns", s.delays.1),
            ("stalls", s.stalls.0),
            ("stall_ns", s.stalls.1),
            ("debt_bytes", s.debt_bytes),
        ] {
            self.number(&of(what), n);
        }
        for (what, x) in [
            ("write_amplification", s.write_amplification()),
            ("read_amplification", s.read_amplification()),
            ("space_amplification", s.space_amplification()),
            ("merge_bytes_per_s", s.merge_bandwidth()),
            ("debt_seconds", s.debt_seconds),
            ("pressure", Some(s.pressure)),
            ("seconds_to_limit", s.seconds_to_limit),
        ] {
            if let Some(x) = x {
                self.0.push((of(what), Figure::Ratio(x)));
            }
        }
        for (n, level) in s.levels.iter().enumerate() {
            for (what, x) in [
                ("segments", level.segments),
                ("bytes", level.bytes),
                ("read_bytes", level.read_bytes),
                ("written_bytes", level.written_bytes),
                ("filter_hits", level.filter_hits),
                ("found", level.found),
                ("false_positives", level.false_positives),
            ] {
                self.number(&of(&format!("level.{n}.{what}")), x);
            }
            self.0.push((of(&format!("level.{n}.score")), Figure::Ratio(level.score)));
        }
    }

    fn operation(&mut self, name: &str, s: &OpStats) {
        self.number(name, s.count);
        self.number(&format!("{name}.bytes"), s.bytes);
        self.number(&format!("{name}.nanos"), s.nanos);
        self.number(&format!("{name}.errors"), s.errors);
    }
}
