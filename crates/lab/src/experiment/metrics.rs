//! From counters to named figures. Times in milliseconds, rates per second, sizes in MiB, shares from 0 to 1.

use crate::driver::RunResult;
use std::collections::BTreeMap;
use varve::buffer::policy::Turnover;
use varve::{KeyspaceUpdates, Stats, TierStats, UpdateSizes};
use varve_models::ModelStats;
use varve_volume::tier::REFUSALS;

use super::point::{Moment, OneDevice};

const MIB: f64 = (1 << 20) as f64;

/// All figures of a run, from the counters at the end of the warm-up and at the end.
pub(super) fn of(run: &RunResult, before: &Moment, after: &Moment) -> BTreeMap<String, f64> {
    let mut m = BTreeMap::new();
    let seconds = after.at - before.at;
    let mut put = |name: &str, value: f64| {
        m.insert(name.to_string(), value);
    };
    let l = &run.latency;
    let threads = run.threads as f64;
    let transactions = run.total.count as f64;
    put("ops_per_s", run.ops_per_s);
    put("transactions", transactions);
    put("rolled_back", run.total.rolled_back as f64);
    put("retries", run.total.retries as f64);
    put("seconds", run.seconds);
    put("mean_ms", l.mean_us / 1e3);
    put("p50_ms", l.p50_us / 1e3);
    put("p95_ms", l.p95_us / 1e3);
    put("p99_ms", l.p99_us / 1e3);
    put("p999_ms", l.p999_us / 1e3);
    put("max_ms", l.max_us / 1e3);
    put("hit_ratio", run.stats.hit_ratio().unwrap_or(1.0));
    put("client_writes", (after.client_writes - before.client_writes) as f64);
    let txn = (&before.engine.txn, &after.engine.txn);
    put("lock_waits", (txn.1.lock_waits - txn.0.lock_waits) as f64);
    put("lock_wait_share", (txn.1.lock_wait_ns - txn.0.lock_wait_ns) as f64 / 1e9 / (threads * seconds));
    put("conflicts", (txn.1.conflicts - txn.0.conflicts) as f64);
    for (then, now) in before.devices.iter().zip(&after.devices) {
        device(&mut put, then, now, seconds);
    }
    if let (Some(then), Some(now)) = (&before.done, &after.done) {
        let written = |devices: &[OneDevice]| devices.iter().map(|d| d.stats.write.bytes).sum::<u64>();
        let done = now.since(then);
        super::dbbench::figures(&mut put, &done, run.seconds);
        super::dbbench::amplification(&mut put, &done, written(&after.devices) - written(&before.devices));
    }
    if run.overdue > 0 {
        put("overdue", run.overdue as f64);
    }
    let stored = |stats: &Stats| ((stats.pages - stats.free_pages) * stats.page_size as u64) as f64;
    put("stored_mib", stored(&after.engine) / MIB);
    let drives = before.devices.iter().zip(&after.devices).filter(|(_, now)| now.name.starts_with("drive"));
    let bytes = |(read, all): (f64, f64), (then, now): (&OneDevice, &OneDevice)| {
        let (a, b) = (&then.stats, &now.stats);
        let reads = (b.read.bytes - a.read.bytes) as f64;
        (read + reads, all + reads + (b.write.bytes - a.write.bytes) as f64)
    };
    let (read, all) = drives.fold((0.0, 0.0), bytes);
    if all > 0.0 {
        put("array.mb_per_s", all / 1e6 / seconds);
        put("array.read_share", read / all);
    }
    let fixed: Vec<_> = run.kinds.iter().filter(|k| k.name.starts_with("fixed_") && k.count > 0).collect();
    for kind in fixed {
        put(&format!("{}.per_s", kind.name), kind.count as f64 / run.seconds);
        put(&format!("{}.mean_ms", kind.name), kind.latency.mean_us / 1e3);
        put(&format!("{}.p99_ms", kind.name), kind.latency.p99_us / 1e3);
    }
    if let Some(tpmc) = run.tpmc {
        put("tpmc", tpmc);
        let orders = tpmc * run.seconds / 60.0;
        let mut all = 0.0;
        for (then, now) in before.devices.iter().zip(&after.devices).filter(|(_, now)| now.name != "log") {
            let io = (now.model.busy.as_secs_f64() - then.model.busy.as_secs_f64()) * 1e3 / orders;
            put(&format!("{}.io_ms_per_new_order", now.name), io);
            all += io;
        }
        put("io_ms_per_new_order", all);
    }
    if let (Some(then), Some(now)) = (&before.engine.tier, &after.engine.tier) {
        tier(&mut put, then, now, seconds);
    }
    super::lsm::figures(&mut put, &before.engine.lsm, &after.engine.lsm);
    updates(&mut put, &before.engine.updates, &after.engine.updates);
    super::regions::figures(&mut put, &before.regions, &after.regions);
    if let (Some(then), Some(now)) = (&before.host, &after.host) {
        let used = (now.used - then.used) / seconds;
        put("host.busy", used / now.cores);
        put("host.cpu_us_per_txn", used * 1e6 / run.ops_per_s);
        if let (Some(then), Some(others)) = (then.others, now.others) {
            put("host.others", (others - then) / seconds / now.cores);
        }
    }
    super::near::merges(&mut put, before.merges.as_ref(), after.merges.as_ref());
    after.near.figures(&before.near, seconds, run.ops_per_s, &mut put);
    if run.clock == "virtual" {
        let (_, waited) = super::machine::lock_places(&before.locks, &after.locks);
        put("latch_wait_share", waited / (threads * seconds));
    }
    pool(&mut put, &before.engine, &after.engine, seconds);
    m
}

/// How much updates of pages changed between two moments, of all keyspaces.
fn updates(put: &mut impl FnMut(&str, f64), then: &[KeyspaceUpdates], now: &[KeyspaceUpdates]) {
    let all = |of: &[KeyspaceUpdates]| of.iter().fold(UpdateSizes::default(), |sum, of| sum.plus(&of.sizes));
    let (a, b) = (all(then), all(now));
    let (count, sized) = ((b.updates - a.updates) as f64, (b.updates - b.more - (a.updates - a.more)) as f64);
    if count == 0.0 {
        return;
    }
    put("updates.count", count);
    put("updates.new_share", (b.new - a.new) as f64 / (count + (b.new - a.new) as f64));
    for ((bound, net, gross), (_, net_before, gross_before)) in b.within().into_iter().zip(a.within()) {
        let Some(bound) = bound else { continue };
        put(&format!("updates.gross_within_{bound}"), (gross - gross_before) as f64 / count);
        put(&format!("updates.net_within_{bound}"), (net - net_before) as f64 / count);
    }
    if sized > 0.0 {
        put("updates.gross_bytes", (b.bytes.1 - a.bytes.1) as f64 / sized);
        put("updates.net_bytes", (b.bytes.0 - a.bytes.0) as f64 / sized);
        put("updates.meta_bytes", ((b.bytes.1 - b.bytes.0) - (a.bytes.1 - a.bytes.0)) as f64 / sized);
    }
}

/// What a tier did between two moments.
pub(super) struct TierRun {
    /// Reads waited for that the fast device served, of all.
    pub hit_ratio: f64,
}

impl TierRun {
    pub fn between(then: &TierStats, now: &TierStats) -> TierRun {
        let (a, b) = (&then.counters, &now.counters);
        let fast = (b.fast_reads - a.fast_reads) as f64;
        TierRun { hit_ratio: fast / (fast + (b.slow_reads - a.slow_reads) as f64).max(1.0) }
    }
}

pub(super) fn tier(put: &mut impl FnMut(&str, f64), then: &TierStats, now: &TierStats, seconds: f64) {
    let (a, b) = (&then.counters, &now.counters);
    put("tier.hit_ratio", TierRun::between(then, now).hit_ratio);
    put("tier.slots", now.slots as f64);
    put("tier.dirty_share", now.newer as f64 / now.slots.max(1) as f64);
    put("tier.occupied_share", now.occupied as f64 / now.slots.max(1) as f64);
    put("tier.memory_mib", now.memory as f64 / MIB);
    for (name, then, now) in [
        ("fast_reads", a.fast_reads, b.fast_reads),
        ("slow_reads", a.slow_reads, b.slow_reads),
        ("staged_reads", a.staged_reads, b.staged_reads),
        ("prefetches", a.fast_prefetches + a.slow_prefetches, b.fast_prefetches + b.slow_prefetches),
        ("overwrites", a.overwrites, b.overwrites),
        ("dirty_admitted", a.dirty_admitted, b.dirty_admitted),
        ("clean_admitted", a.clean_admitted, b.clean_admitted),
        ("home_writes", a.home_writes, b.home_writes),
        ("invalidated", a.invalidated, b.invalidated),
        ("evicted_clean", a.evicted_clean, b.evicted_clean),
        ("evicted_newer", a.evicted_newer, b.evicted_newer),
        ("copied_back", a.slow_copies, b.slow_copies),
        ("maps", a.maps, b.maps),
    ] {
        put(&format!("tier.{name}"), (now - then) as f64);
    }
    put("tier.maps_per_s", (b.maps - a.maps) as f64 / seconds);
    for (n, (name, _)) in REFUSALS.iter().enumerate() {
        put(&format!("tier.refused_{}", name.replace(' ', "_")), (b.refused[n] - a.refused[n]) as f64);
    }
}

/// Share of the time that a device's parts were busy.
pub(super) fn utilisation(then: &ModelStats, now: &ModelStats, seconds: f64) -> f64 {
    let busy = now.busy.as_secs_f64() - then.busy.as_secs_f64();
    (busy / seconds / f64::from(now.parts.max(1))).clamp(0.0, 1.0)
}

pub(super) fn device(put: &mut impl FnMut(&str, f64), before: &OneDevice, after: &OneDevice, seconds: f64) {
    let (name, then, now) = (after.name, &before.stats, &after.stats);
    let ops = [
        ("reads", "read", &then.read, &now.read),
        ("writes", "write", &then.write, &now.write),
        ("flushes", "flush", &then.flush, &now.flush),
    ];
    let mut flying = 0.0;
    for (many, one, then, now) in ops {
        let (count, nanos) = ((now.count - then.count) as f64, (now.nanos - then.nanos) as f64);
        put(&format!("{name}.{many}"), count);
        put(&format!("{name}.{many}_per_s"), count / seconds);
        put(&format!("{name}.{one}_ms"), if count > 0.0 { nanos / 1e6 / count } else { 0.0 });
        if one != "flush" {
            put(&format!("{name}.{one}_mib"), (now.bytes - then.bytes) as f64 / MIB);
            flying += nanos / 1e9 / seconds;
        }
    }
    put(&format!("{name}.in_flight"), flying);
    let (then, now) = (&before.model, &after.model);
    put(&format!("{name}.utilisation"), utilisation(then, now, seconds));
    let served = (now.served - then.served) as f64;
    let waited = now.waited.as_secs_f64() - then.waited.as_secs_f64();
    put(&format!("{name}.queue_ms"), if served > 0.0 { waited * 1e3 / served } else { 0.0 });
    for (detail, value) in &now.details {
        put(&format!("{name}.{detail}"), *value);
    }
    let more = |detail| now.detail(detail).zip(then.detail(detail)).map(|(now, then)| now - then);
    if let (Some(writes), Some(copies)) = (more("host_writes").filter(|n| *n > 0.0), more("gc_copies")) {
        put(&format!("{name}.wa"), 1.0 + copies / writes);
    }
}

/// How long pages stay in the cold part of the replacement list, and whether that is long enough to become young.
fn turnover(put: &mut impl FnMut(&str, f64), then: &Turnover, now: &Turnover) {
    let (evicted, early) = ((now.evicted - then.evicted) as f64, (now.evicted_early - then.evicted_early) as f64);
    let (young, not) = ((now.made_young - then.made_young) as f64, (now.not_young - then.not_young) as f64);
    if evicted > 0.0 {
        put("pool.residence_ms", (now.evicted_ns - then.evicted_ns) as f64 / 1e6 / evicted);
        put("pool.evicted_early", early / evicted);
    }
    put("pool.made_young", young);
    put("pool.not_young", not);
}

fn pool(put: &mut impl FnMut(&str, f64), before: &Stats, after: &Stats, seconds: f64) {
    let (then, now) = (&before.pool, &after.pool);
    let (t0, t1) = (then.total(), now.total());
    for (name, then, now) in [
        ("misses", t0.misses, t1.misses),
        ("evicted_clean", t0.evicted_clean, t1.evicted_clean),
        ("evicted_dirty", t0.evicted_dirty, t1.evicted_dirty),
        ("written", t0.written, t1.written),
        ("single_page_flushes", then.single_page_flushes, now.single_page_flushes),
        ("stalls", then.stalls, now.stalls),
        ("replacement_writes", then.replacement_writes, now.replacement_writes),
        ("recoverability_writes", then.recoverability_writes, now.recoverability_writes),
        ("checkpoint_writes", then.checkpoint_writes, now.checkpoint_writes),
        ("load_writes", then.load_writes, now.load_writes),
        ("log_forces", then.log_forces, now.log_forces),
        ("cleaner_passes", then.cleaner_passes, now.cleaner_passes),
        ("clean_stalls", then.clean_stalls, now.clean_stalls),
        ("scanned", then.scanned, now.scanned),
        ("cleaner_scanned", then.cleaner_scanned, now.cleaner_scanned),
        ("set_aside", then.set_aside, now.set_aside),
        ("readmitted", then.readmitted, now.readmitted),
        ("write_batches", then.write_batches, now.write_batches),
        ("batched_pages", then.batched_pages, now.batched_pages),
        ("list_locks", then.list_locks, now.list_locks),
        ("foreground_writes", then.foreground_writes, now.foreground_writes),
    ] {
        put(&format!("pool.{name}"), (now - then) as f64);
    }
    put("pool.list_wait_ms", (now.list_wait_ns - then.list_wait_ns) as f64 / 1e6);
    put("pool.list_hold_ms", (now.list_hold_ns - then.list_hold_ns) as f64 / 1e6);
    put("pool.list_hold_max_us", now.list_hold_max_ns as f64 / 1e3);
    put("pool.scanned_per_miss", (now.scanned - then.scanned) as f64 / ((t1.misses - t0.misses) as f64).max(1.0));
    let batches = now.batch_sizes.iter().zip(&then.batch_sizes).map(|(now, then)| now - then);
    for (n, count) in batches.enumerate().filter(|(_, count)| *count > 0) {
        put(&format!("pool.batches_from_{}", 1 << n), count as f64);
    }
    put("pool.stall_ms", (now.stall_ns - then.stall_ns) as f64 / 1e6);
    put("pool.frames", now.frames as f64);
    put("pool.dirty_share", now.dirty as f64 / now.frames.max(1) as f64);
    let busy = |nanos: u64| nanos as f64 / 1e9 / seconds / now.cleaners.max(1) as f64;
    put("pool.cleaner_busy", busy(now.cleaner_ns - then.cleaner_ns));
    if now.set_aside > 0 {
        put("pool.drainer_busy", busy(now.drainer_ns - then.drainer_ns));
    }
    turnover(put, &then.turnover, &now.turnover);
    let (c0, c1) = (&before.checkpoints, &after.checkpoints);
    put("checkpoints", (c1.completed - c0.completed) as f64);
    put("page_images", (after.changes.images - before.changes.images) as f64);
}

/// Figures by transaction type.
pub(super) fn kinds(run: &RunResult) -> BTreeMap<String, BTreeMap<String, f64>> {
    let of = |k: &crate::driver::KindResult| {
        let l = &k.latency;
        let pairs = [
            ("count", k.count as f64),
            ("rolled_back", k.rolled_back as f64),
            ("retries", k.retries as f64),
            ("mean_ms", l.mean_us / 1e3),
            ("p50_ms", l.p50_us / 1e3),
            ("p95_ms", l.p95_us / 1e3),
            ("p99_ms", l.p99_us / 1e3),
            ("p999_ms", l.p999_us / 1e3),
            ("max_ms", l.max_us / 1e3),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    };
    run.kinds.iter().filter(|k| k.count > 0).map(|k| (k.name.to_string(), of(k))).collect()
}
