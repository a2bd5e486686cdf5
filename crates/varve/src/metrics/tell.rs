//! From [`Stats`] to samples.

use super::families::*;
use super::{Family, MetricSink};
use crate::buffer::KindStats;
use crate::db::{LsmLevel, LsmStats, MergeMode, NearStats, SideStats, Stats};
use varve_device::DeviceStats;
use varve_volume::array::{ArrayStats, DriveStats};
use varve_volume::tier::{REFUSALS, TierStats};

/// Names of the page types, by their byte; the rest is `other`.
const PAGE_KINDS: [&str; 5] = ["other", "space_map", "leaf", "inner", "overflow"];

/// A sink with shorthands.
struct To<'s>(&'s mut dyn MetricSink);

impl To<'_> {
    fn one(&mut self, family: &'static Family, value: u64) {
        self.0.sample(family, &[], value as f64);
    }

    fn seconds(&mut self, family: &'static Family, nanos: u64) {
        self.0.sample(family, &[], nanos as f64 / 1e9);
    }

    /// Count, bytes, time and errors of requests, by device and kind.
    fn requests(&mut self, families: [&'static Family; 4], devices: &[(&str, &DeviceStats)]) {
        type Read = fn(&varve_device::OpStats) -> f64;
        let figures: [Read; 4] =
            [|s| s.count as f64, |s| s.bytes as f64, |s| s.nanos as f64 / 1e9, |s| s.errors as f64];
        for (family, read) in families.into_iter().zip(figures) {
            for (name, d) in devices {
                for (op, s) in [("read", &d.read), ("write", &d.write), ("trim", &d.trim), ("flush", &d.flush)] {
                    self.0.sample(family, &[name, op], read(s));
                }
            }
        }
    }

    fn each(&mut self, family: &'static Family, values: &[(&str, u64)]) {
        values.iter().for_each(|(label, value)| self.0.sample(family, &[label], *value as f64));
    }
}

impl Stats {
    /// Tells `sink` every metric, in the order of [`FAMILIES`].
    pub fn metrics(&self, sink: &mut dyn MetricSink) {
        let to = &mut To(sink);
        to.0.sample(&BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        to.seconds(&OPEN, self.open_ns);
        to.one(&PAGE_SIZE, self.page_size as u64);
        let allocated = self.pages.saturating_sub(self.free_pages);
        to.each(&PAGES, &[("allocated", allocated), ("free", self.free_pages)]);
        self.tell_transactions(to);
        self.tell_pool(to);
        self.tell_log(to);
        let class = |f: fn(&crate::budget::ClassUse) -> u64| {
            self.budget.iter().map(move |c| (c.class.name().replace(' ', "_"), f(c))).collect::<Vec<_>>()
        };
        for (family, values) in [
            (&MEMORY_USED, class(|c| c.used)),
            (&MEMORY_PEAK, class(|c| c.peak)),
            (&MEMORY_LIMIT, class(|c| c.limit)),
            (&MEMORY_REFUSED, class(|c| c.refused)),
        ] {
            values.iter().for_each(|(class, value)| to.each(family, &[(class, *value)]));
        }
        to.one(&TRIMMED, self.trims.pages);
        to.one(&TRIMS_FAILED, self.trims.failed);
        self.tell_devices(to);
        if let Some(array) = &self.array {
            tell_array(array, to);
        }
        if let Some(moves) = &self.array_moves {
            to.one(&ARRAY_MOVED, moves.done);
            to.one(&ARRAY_UNDONE, moves.undone);
            to.one(&ARRAY_LEFT, moves.left as u64);
        }
        tell_lsm(&self.lsm, to);
        if let Some(near) = &self.near {
            tell_near(near, to);
        }
        if let Some(tier) = &self.tier {
            tell_tier(tier, to);
        }
    }

    fn tell_transactions(&self, to: &mut To<'_>) {
        let t = &self.txn;
        to.one(&COMMITTED, t.commits);
        to.one(&ROLLED_BACK, t.rollbacks);
        to.one(&CONFLICTS, t.conflicts);
        to.one(&RETRIES, t.retries);
        to.one(&RELATCHED, t.relatched);
        to.one(&LOCK_WAITS, t.lock_waits);
        to.seconds(&LOCK_WAIT, t.lock_wait_ns);
        to.one(&OPEN_TXNS, t.open);
        to.one(&SNAPSHOTS, t.snapshots);
        to.one(&SNAPSHOTS_OPENED, t.snapshots_opened);
        to.one(&SNAPSHOTS_EVICTED, t.snapshots_evicted);
        to.one(&VERSIONS, t.versions_kept);
    }

    fn tell_pool(&self, to: &mut To<'_>) {
        let p = &self.pool;
        to.one(&FRAMES, p.frames);
        to.one(&FREE_FRAMES, p.free);
        to.one(&DIRTY, p.dirty);
        to.one(&ASIDE, p.aside);
        let kinds = |f: fn(&KindStats) -> u64| -> Vec<(&str, u64)> {
            let mut sums = PAGE_KINDS.map(|name| (name, 0));
            for (kind, stats) in p.kinds.iter().enumerate() {
                sums[if kind < sums.len() { kind } else { 0 }].1 += f(stats);
            }
            sums.to_vec()
        };
        to.each(&HITS, &kinds(|k| k.hits));
        to.each(&HITS, &[("unknown", p.hits_dropped)]);
        to.each(&MISSES, &kinds(|k| k.misses));
        to.each(&PREFETCHED, &kinds(|k| k.prefetched));
        to.each(&PREFETCH_USED, &kinds(|k| k.prefetch_used));
        to.each(&PREFETCH_WASTED, &kinds(|k| k.prefetch_wasted));
        to.each(&CREATED, &kinds(|k| k.created));
        to.each(&EVICTED_CLEAN, &kinds(|k| k.evicted_clean));
        to.each(&EVICTED_DIRTY, &kinds(|k| k.evicted_dirty));
        to.each(
            &WRITTEN,
            &[
                ("replacement", p.replacement_writes),
                ("recoverability", p.recoverability_writes),
                ("checkpoint", p.checkpoint_writes),
                ("load", p.load_writes),
            ],
        );
        to.one(&FOREGROUND, p.foreground_writes);
        to.one(&SINGLE, p.single_page_flushes);
        to.one(&BATCHES, p.write_batches);
        to.one(&STALLS, p.stalls);
        to.seconds(&STALL_TIME, p.stall_ns);
        to.each(&SCANNED, &[("misses", p.scanned), ("cleaners", p.cleaner_scanned)]);
        to.one(&LOG_FORCES, p.log_forces);
        to.seconds(&LIST_WAIT, p.list_wait_ns);
        to.each(&POOL_ERRORS, &[("read", p.read_errors), ("write", p.write_errors)]);
        to.one(&READ_RETRIES, p.read_retries);
        self.tell_updates(to);
        to.one(&IMAGES, self.changes.images);
        to.one(&SPLITS, self.changes.splits);
        to.one(&MERGES, self.changes.merges);
    }

    fn tell_updates(&self, to: &mut To<'_>) {
        self.updates.iter().for_each(|of| to.0.sample(&UPDATES_NEW, &[&of.name], of.sizes.new as f64));
        for family in [&UPDATES, &UPDATES_NET] {
            for of in &self.updates {
                for (bound, net, gross) in of.sizes.within() {
                    let le = bound.map_or("+Inf".into(), |bound| bound.to_string());
                    let n = if std::ptr::eq(family, &UPDATES_NET) { net } else { gross };
                    to.0.sample(family, &[&of.name, &le], n as f64);
                }
            }
        }
    }

    fn tell_log(&self, to: &mut To<'_>) {
        let (l, c) = (&self.log, &self.checkpoints);
        to.one(&POISONED, self.poisoned.into());
        to.one(&GROUPS, l.groups);
        to.one(&GROUP_BYTES, l.group_bytes);
        to.one(&LOG_WRITES, l.writes);
        to.one(&LOG_BYTES, l.written_bytes);
        to.one(&LOG_WAITS, l.waits);
        to.one(&BUFFER_WAITS, l.buffer_waits);
        to.one(&SPACE_WAITS, l.space_waits);
        to.seconds(&SPACE_WAIT, l.space_wait_ns);
        to.one(&LOG_CAPACITY, l.capacity);
        to.one(&LOG_AGE, l.age);
        to.one(&LOG_END, l.end);
        to.one(&LOG_DURABLE, l.durable);
        to.one(&REDO_BUDGET, c.redo_budget);
        to.one(&CHECKPOINTS, c.completed);
        to.one(&CHECKPOINTS_FAILED, c.failed);
        to.seconds(&CHECKPOINT_LAST, c.last_ns);
        to.seconds(&CHECKPOINT_AGE, c.age_ns);
    }

    fn tell_devices(&self, to: &mut To<'_>) {
        let fast = self.tier.as_ref().map(|tier| &tier.fast);
        let devices = [("data", Some(&self.data_device)), ("log", Some(&self.log_device)), ("fast", fast)];
        let devices: Vec<(&str, &DeviceStats)> = devices.into_iter().filter_map(|(n, d)| Some((n, d?))).collect();
        to.requests([&OPS, &OP_BYTES, &OP_TIME, &OP_ERRORS], &devices);
        let busy = || devices.iter().filter_map(|(name, d)| Some((*name, d.busy?)));
        busy().for_each(|(name, b)| to.0.sample(&BUSY, &[name], b.nanos as f64 / 1e9));
        busy().for_each(|(name, b)| to.0.sample(&IN_FLIGHT, &[name], b.in_flight as f64));
    }
}

fn tell_array(a: &ArrayStats, to: &mut To<'_>) {
    let named: Vec<(String, &DriveStats)> = a.drives.iter().map(|drive| (drive.number.to_string(), drive)).collect();
    let each = || named.iter().map(|(number, drive)| (number.as_str(), *drive));
    to.each(&ARRAY_SLOTS, &each().map(|(n, d)| (n, d.slots.into())).collect::<Vec<_>>());
    to.each(&ARRAY_USED, &each().map(|(n, d)| (n, d.used.into())).collect::<Vec<_>>());
    let devices: Vec<(&str, &DeviceStats)> = each().map(|(n, d)| (n, &d.device)).collect();
    to.requests([&ARRAY_OPS, &ARRAY_BYTES, &ARRAY_TIME, &ARRAY_ERRORS], &devices);
    let busy = devices.iter().filter_map(|(n, d)| Some((*n, d.busy?)));
    busy.for_each(|(n, b)| to.0.sample(&ARRAY_BUSY, &[n], b.nanos as f64 / 1e9));
}

/// What is known of host and worker.
fn of_sides(family: &'static Family, s: &NearStats, read: impl Fn(&SideStats) -> Option<f64>, to: &mut To<'_>) {
    for (side, of) in [("host", &s.host), ("worker", &s.device)] {
        read(of).into_iter().for_each(|value| to.0.sample(family, &[side], value));
    }
}

/// Of merges near the data.
fn tell_near(s: &NearStats, to: &mut To<'_>) {
    let sides = [("host", &s.host), ("worker", &s.device)];
    to.one(&NEAR_ATTACHED, s.attached.into());
    to.one(&NEAR_ATTACHMENTS, s.attachments);
    sides.iter().for_each(|(side, of)| to.0.sample(&NEAR_TASKS, &[side], of.tasks as f64));
    sides.iter().for_each(|(side, of)| to.0.sample(&NEAR_PIPELINED_TASKS, &[side], of.pipelined as f64));
    let last = |of: &SideStats| of.mode.map(|mode| f64::from(u8::from(mode == MergeMode::Pipeline)));
    of_sides(&NEAR_PIPELINED, s, last, to);
    for (side, of) in sides {
        to.0.sample(&NEAR_BYTES, &[side, "read"], of.read as f64);
        to.0.sample(&NEAR_BYTES, &[side, "write"], of.written as f64);
    }
    sides.iter().for_each(|(side, of)| to.0.sample(&NEAR_TIME, &[side], of.time.as_secs_f64()));
    to.0.sample(&NEAR_SHARE, &[], s.share);
    of_sides(&NEAR_CPU, s, |of| of.load.map(|load| load.cpu), to);
    of_sides(&NEAR_MEMORY, s, |of| of.load.map(|load| load.memory), to);
    of_sides(&NEAR_LARGE, s, |of| of.mode.map(|_| of.large_share), to);
    to.0.sample(&NEAR_WAITED, &[], s.host.waited.as_secs_f64());
    to.0.sample(&NEAR_WORKER_WAITED, &[], s.device.waited.as_secs_f64());
    if let Some(link) = s.link {
        to.each(&NEAR_LINK, &[("to_worker", link.sent), ("from_worker", link.received)]);
        to.one(&NEAR_REQUESTS, link.requests);
    }
    to.each(&NEAR_FALLBACKS, &s.fallbacks.each());
    to.one(&NEAR_RESUMED, s.resumed);
    to.one(&NEAR_GIVEN_UP, s.orphans);
}

/// Of each LSM keyspace; family by family.
fn tell_lsm(all: &[LsmStats], to: &mut To<'_>) {
    type OfLevel = fn(&LsmLevel) -> f64;
    let by_level: [(&'static Family, OfLevel); 4] = [
        (&LSM_SEGMENTS, |l| l.segments as f64),
        (&LSM_BYTES, |l| l.bytes as f64),
        (&LSM_SCORE, |l| l.score),
        (&LSM_LEVEL_WRITTEN, |l| l.written_bytes as f64),
    ];
    let levels = |s: &LsmStats| (0..s.levels.len()).map(|n| n.to_string()).collect::<Vec<_>>();
    for (family, of) in by_level {
        for s in all {
            s.levels.iter().zip(levels(s)).for_each(|(l, n)| to.0.sample(family, &[&s.name, &n], of(l)));
        }
    }
    for s in all {
        for (l, n) in s.levels.iter().zip(levels(s)) {
            for (outcome, count) in
                [("filtered", l.filter_hits), ("found", l.found), ("false_positive", l.false_positives)]
            {
                to.0.sample(&LSM_FILTER, &[&s.name, &n, outcome], count as f64);
            }
        }
    }
    tell_lsm_totals(all, to);
}

fn tell_lsm_totals(all: &[LsmStats], to: &mut To<'_>) {
    type Read = fn(&LsmStats) -> Option<f64>;
    const NS: f64 = 1e9;
    let figures: [(&'static Family, &[&str], Read); 23] = [
        (&LSM_MEMTABLES, &[], |s| Some(s.memtable_bytes as f64)),
        (&LSM_USER, &[], |s| Some(s.user_bytes as f64)),
        (&LSM_LOG, &[], |s| Some(s.log_bytes as f64)),
        (&LSM_FLUSHES, &[], |s| Some(s.flushes as f64)),
        (&LSM_FLUSHED, &[], |s| Some(s.flushed_bytes as f64)),
        (&LSM_MERGES, &["seek"], |s| Some(s.seek_merges as f64)),
        (&LSM_MERGES, &["other"], |s| Some((s.merges - s.seek_merges) as f64)),
        (&LSM_MERGES, &["move"], |s| Some(s.moves as f64)),
        (&LSM_MERGED, &["read"], |s| Some(s.merged_bytes.0 as f64)),
        (&LSM_MERGED, &["write"], |s| Some(s.merged_bytes.1 as f64)),
        (&LSM_MERGE_TIME, &[], |s| Some(s.merge_ns as f64 / NS)),
        (&LSM_LOOKUPS, &[], |s| Some(s.lookups as f64)),
        (&LSM_WAITS, &["delay"], |s| Some(s.delays.0 as f64)),
        (&LSM_WAITS, &["stall"], |s| Some(s.stalls.0 as f64)),
        (&LSM_WAIT, &["delay"], |s| Some(s.delays.1 as f64 / NS)),
        (&LSM_WAIT, &["stall"], |s| Some(s.stalls.1 as f64 / NS)),
        (&LSM_DEBT, &[], |s| Some(s.debt_bytes as f64)),
        (&LSM_DEBT_TIME, &[], |s| s.debt_seconds),
        (&LSM_PRESSURE, &[], |s| Some(s.pressure)),
        (&LSM_AMPLIFICATION, &["write"], LsmStats::write_amplification),
        (&LSM_AMPLIFICATION, &["read"], LsmStats::read_amplification),
        (&LSM_AMPLIFICATION, &["space"], LsmStats::space_amplification),
        (&LSM_ALONE, &[], |s| Some(f64::from(u8::from(s.without_worker.is_some())))),
    ];
    for group in figures.chunk_by(|a, b| std::ptr::eq(a.0, b.0)) {
        for s in all {
            for (family, labels, read) in group {
                if let Some(value) = read(s) {
                    let labels: Vec<&str> = std::iter::once(&*s.name).chain(labels.iter().copied()).collect();
                    to.0.sample(family, &labels, value);
                }
            }
        }
    }
}

fn tell_tier(t: &TierStats, to: &mut To<'_>) {
    let c = &t.counters;
    to.one(&TIER_SLOTS, t.slots);
    to.one(&TIER_OCCUPIED, t.occupied);
    to.one(&TIER_NEWER, t.newer);
    to.one(&TIER_ATTACHED, t.attached.into());
    to.one(&TIER_FAILED, t.failed.into());
    if let Some(life) = t.life_used {
        to.0.sample(&TIER_LIFE, &[], life);
    }
    to.one(&TIER_MEMORY, t.memory);
    to.each(&TIER_READS, &[("fast", c.fast_reads), ("slow", c.slow_reads)]);
    to.each(&TIER_PREFETCHES, &[("fast", c.fast_prefetches), ("slow", c.slow_prefetches)]);
    to.each(&TIER_ADMITTED, &[("clean", c.clean_admitted), ("dirty", c.dirty_admitted)]);
    to.one(&TIER_OVERWRITES, c.overwrites);
    to.one(&TIER_HOME, c.home_writes);
    to.each(&TIER_EVICTED, &[("clean", c.evicted_clean), ("dirty", c.evicted_newer)]);
    to.one(&TIER_COPIED, c.slow_copies);
    for ((name, _), n) in REFUSALS.iter().zip(c.refused) {
        to.each(&TIER_REFUSED, &[(&name.replace(' ', "_"), n)]);
    }
    to.one(&TIER_WRITTEN, t.written);
    to.one(&TIER_BUDGET, t.budget_spent);
    let errors = [("failed", c.errors), ("damaged", c.damaged), ("repaired", c.repaired), ("lost", c.lost)];
    to.each(&TIER_ERRORS, &errors);
}
