//! LSM keyspaces in an experiment: which point has them, and their figures between two moments, all keyspaces of a
//! database together.

use super::named::{LsmNames, Named};
use super::spec::Spec;
use crate::dbbench::Benchmark;
use crate::lsm_wa::Shape;
use serde::{Deserialize, Serialize};
use varve::{LsmLevel, LsmOptions, LsmStats};

const MIB: f64 = (1 << 20) as f64;

/// `layout.keyspaces`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexName {
    /// B+-trees.
    #[default]
    Tree,
    /// Log-structured merge trees, of `engine.lsm`.
    Lsm,
}

impl IndexName {
    pub(super) fn is_default(&self) -> bool {
        *self == IndexName::default()
    }
}

/// Whether nothing was chosen in `engine.lsm`.
pub(super) fn is_default(lsm: &Named<LsmOptions, LsmNames>) -> bool {
    lsm.0 == LsmOptions::default()
}

/// The sum of a counter over keyspaces.
fn sum(of: &[LsmStats], read: impl Fn(&LsmStats) -> u64) -> f64 {
    of.iter().map(read).sum::<u64>() as f64
}

fn levels(of: &[LsmStats], read: impl Fn(&LsmLevel) -> u64) -> f64 {
    of.iter().flat_map(|s| &s.levels).map(read).sum::<u64>() as f64
}

pub(super) fn figures(put: &mut impl FnMut(&str, f64), then: &[LsmStats], now: &[LsmStats]) {
    if now.is_empty() {
        return;
    }
    let rise = |read: fn(&LsmStats) -> u64| sum(now, read) - sum(then, read);
    let (user, log) = (rise(|s| s.user_bytes), rise(|s| s.log_bytes));
    let (flushed, merged) = (rise(|s| s.flushed_bytes), rise(|s| s.merged_bytes.1));
    put("lsm.user_mib", user / MIB);
    put("lsm.flushes", rise(|s| s.flushes));
    put("lsm.flushed_mib", flushed / MIB);
    put("lsm.merges", rise(|s| s.merges));
    put("lsm.moves", rise(|s| s.moves));
    put("lsm.seek_merges", rise(|s| s.seek_merges));
    put("lsm.merge_read_mib", rise(|s| s.merged_bytes.0) / MIB);
    put("lsm.merge_written_mib", merged / MIB);
    let seconds = rise(|s| s.merge_ns) / 1e9;
    put("lsm.merge_s", seconds);
    if seconds > 0.0 {
        put("lsm.merge_mb_per_s", (rise(|s| s.merged_bytes.0) + merged) / 1e6 / seconds);
    }
    if user > 0.0 {
        put("lsm.write_amplification", (log + flushed + merged) / user);
        put("lsm.log_amplification", log / user);
    }
    put("lsm.delays", rise(|s| s.delays.0));
    put("lsm.delay_s", rise(|s| s.delays.1) / 1e9);
    put("lsm.stalls", rise(|s| s.stalls.0));
    put("lsm.stall_s", rise(|s| s.stalls.1) / 1e9);
    let looks = |read: fn(&LsmLevel) -> u64| levels(now, read) - levels(then, read);
    let (lookups, vain) = (rise(|s| s.lookups), looks(|l| l.false_positives));
    put("lsm.lookups", lookups);
    put("lsm.filter_hits", looks(|l| l.filter_hits));
    put("lsm.false_positives", vain);
    if lookups > 0.0 {
        put("lsm.blocks_per_lookup", (vain + looks(|l| l.found)) / lookups);
    }
    put("lsm.debt_mib", sum(now, |s| s.debt_bytes) / MIB);
    put("lsm.pressure", now.iter().map(|s| s.pressure).fold(0.0, f64::max));
    put("lsm.stored_mib", levels(now, |l| l.bytes) / MIB);
    let deepest = now.iter().map(|s| s.levels.len()).max().unwrap_or(0);
    for n in 0..deepest {
        let level = |of: &[LsmStats], read: fn(&LsmLevel) -> u64| {
            of.iter().filter_map(|s| s.levels.get(n)).map(read).sum::<u64>() as f64
        };
        put(&format!("lsm.level{n}.mib"), level(now, |l| l.bytes) / MIB);
        put(&format!("lsm.level{n}.segments"), level(now, |l| l.segments));
        let written = level(now, |l| l.written_bytes) - level(then, |l| l.written_bytes);
        put(&format!("lsm.level{n}.written_mib"), written / MIB);
    }
}

/// What the mean-field model says of overwrites of uniformly drawn keys, where that is what ran and all keys are there;
/// sizes in keys from the bytes of the segments that were flushed.
pub(super) fn model(put: &mut impl FnMut(&str, f64), spec: &Spec, then: &[LsmStats], now: &[LsmStats]) {
    let Some(bench) = spec.workload.dbbench.as_ref().filter(|b| b.benchmark == Benchmark::Overwrite) else { return };
    let rise = |read: fn(&LsmStats) -> u64| sum(now, read) - sum(then, read);
    let (flushes, user, log) = (rise(|s| s.flushes), rise(|s| s.user_bytes), rise(|s| s.log_bytes));
    let (keys, entry) = (bench.num as f64, bench.options(0, Default::default(), 1).entry() as f64);
    if bench.load == Some(Benchmark::FillSeq) {
        put("dbbench.live_mib", keys * entry / MIB);
    }
    if flushes < 1.0 || user == 0.0 {
        return;
    }
    let memtable = user / entry / flushes;
    let distinct = -keys * (-memtable / keys).exp_m1();
    let stored = rise(|s| s.flushed_bytes) / flushes / distinct;
    let options = &spec.engine.lsm.0;
    let segment = options.segment_bytes as f64;
    let base = options.level1_bytes.map_or((5.0 * segment).max(10.0 * MIB), |bytes| bytes as f64);
    let shape = Shape {
        keys,
        memtable,
        trigger: options.l0_trigger.into(),
        segment: segment / stored,
        base: base / stored,
        multiplier: options.multiplier.into(),
    };
    let model = shape.amplification();
    let written = model.flush + model.levels.iter().sum::<f64>();
    put("lsm.model_write_amplification", log / user + written * stored / entry);
}
