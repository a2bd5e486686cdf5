//! `run.advise`: the flash advisor is asked about a point whose pages are written whole, and what it recommends is
//! built, loaded and run under the same load; its predictions stand beside what was measured (`advise.*`, `advised.*`).
//!
//! Only layouts of one region are run: their pages are laid out and aged as those of the point that was asked about.

use super::ExperimentError;
use super::devices::Drives;
use super::document::Point;
use super::layout::{self, Image};
use super::point::{self, PointResult};
use super::regions;
use crate::advise;
use crate::flash_layout::RegionSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use varve::flash::advise::{Ageing, Candidate, FlashAdvice, Goal, Predicted, Question};
use varve::{Flush, KeyspaceId, TraceEvent, TraceHandle, TraceSink};
use varve_rt::Mutex;

/// Takes the page writes of a run down.
#[derive(Default)]
pub(super) struct Collector {
    state: Mutex<Collected>,
}

/// What was written.
#[derive(Default)]
pub(super) struct Collected {
    flushes: Vec<Flush>,
    /// The first that counts.
    from: usize,
    /// Pages of the database at the end, and the names of its keyspaces.
    pages: u64,
    names: BTreeMap<KeyspaceId, String>,
}

impl TraceSink for Collector {
    fn event(&self, event: TraceEvent) {
        if let TraceEvent::Flush(flush) = event {
            self.state.lock().flushes.push(flush);
        }
    }
}

impl Collector {
    /// For a database's options.
    pub fn handle(self: &Arc<Self>) -> TraceHandle {
        TraceHandle(self.clone())
    }

    /// What was written so far was a warm-up.
    pub fn warm(&self) {
        let mut state = self.state.lock();
        state.from = state.flushes.len();
    }

    /// The run is over.
    pub fn end(&self, db: &varve::Db) {
        let (pages, names) = (db.stats().pages, db.keyspace_names());
        let mut state = self.state.lock();
        (state.pages, state.names) = (pages, names);
    }
}

/// Runs a point, asks, and runs what is recommended.
pub(super) fn run(
    experiment: &str,
    commit: &str,
    asked: &Point,
    (image, drives): (&Image, &Drives),
    progress: &Arc<AtomicU64>,
) -> Result<PointResult, ExperimentError> {
    let failed = |what: String| ExperimentError::Point { point: asked.name(), what };
    let collector = Arc::new(Collector::default());
    let mut result = point::run_traced(experiment, commit, asked, (image, drives), progress, Some(&collector))?;
    let question = question(asked, &collector).map_err(failed)?;
    let advice = varve::flash::advise::advise(&question).map_err(|e| failed(e.to_string()))?;
    let metrics = &mut result.metrics;
    let mut put = |name: &str, value: f64| {
        metrics.insert(name.to_string(), value);
    };
    advice.keyspaces.iter().for_each(|of| put(&format!("advise.pays.{}", of.name), f64::from(u8::from(of.pays))));
    put("advise.plain.erases_per_write", erases_per_write(&advice.plain));
    put("advise.gain", advice.gain());
    put("advise.pays", f64::from(u8::from(advice.pays)));
    let best = one_region(&advice).map(|best| (&best.regions[0], best.predicted));
    // Who advises to leave it as it is predicts that too, and has had it run.
    let (n, m, predicted) = best.as_ref().map_or((0, 0, advice.plain), |(region, of)| (region.n, region.m, *of));
    put("advise.n", f64::from(n));
    put("advise.m", f64::from(m));
    put("advise.append_share", predicted.append_share);
    put("advise.erases_per_write", erases_per_write(&predicted));
    let Some((region, _)) = best else {
        put_advised(&mut result.metrics, None);
        return Ok(result);
    };
    let mut spec = asked.spec.clone();
    spec.run.advise = false;
    (spec.layout.scheme, spec.layout.regions) = (None, vec![region_spec(asked, region)]);
    let advised = Point { spec, ..asked.clone() };
    let image = layout::load_alone(&advised.spec)?;
    let ran = point::run_traced(experiment, commit, &advised, (&image, drives), progress, None)?;
    put_advised(&mut result.metrics, Some(&ran.metrics));
    Ok(result)
}

fn erases_per_write(of: &Predicted) -> f64 {
    of.erases as f64 / of.writes.max(1) as f64
}

/// What was measured of what was advised; none: it is what was asked about.
fn put_advised(metrics: &mut BTreeMap<String, f64>, ran: Option<&BTreeMap<String, f64>>) {
    let figures = ["flash.append_share", "flash.erases_per_write", "flash.migrations_per_write", "ops_per_s"];
    let found = figures.map(|name| (name, ran.unwrap_or(&*metrics).get(name).copied()));
    for (name, value) in found.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        metrics.insert(format!("advised.{name}"), value);
    }
}

/// The best layout of one region, if the advice is to have one with records.
fn one_region(advice: &FlashAdvice) -> Option<&Candidate> {
    advice.layouts.iter().find(|layout| layout.regions.len() == 1)
}

/// The region that was asked about, with the records that are advised.
fn region_spec(asked: &Point, advised: &varve::flash::RegionConfig) -> RegionSpec {
    let of = asked.spec.layout.regions.first().cloned().unwrap_or_default();
    RegionSpec { n: Some(advised.n), m: Some(advised.m), mode: Some(advised.mode), ..of }
}

fn question(asked: &Point, collector: &Collector) -> Result<Question, String> {
    let state = std::mem::take(&mut *collector.state.lock());
    let flash = regions::config(&asked.spec)?;
    let aged = asked.spec.devices.flash.aged()?;
    Ok(Question {
        writes: advise::writes(&state.flushes),
        from: state.from,
        names: state.names,
        pages: state.pages,
        page_size: asked.spec.layout.page_size.0 as u32,
        array: advise::array(&flash),
        goal: Goal::Life,
        ageing: Some(Ageing { random: aged, passes: 1 }),
    })
}

/// Refuses points that nothing can be advised for.
pub(super) fn validate(spec: &super::spec::Spec) -> Result<(), (String, String)> {
    let refuse = |what: &str| Err(("run.advise".to_string(), what.to_string()));
    match spec.run.advise {
        true if spec.devices.flash.is_empty() => refuse("devices.flash is needed: the array that advice is wanted for"),
        true if spec.layout.regions.len() > 1 => refuse("one region is needed, or none"),
        true if spec.layout.scheme.as_deref().is_some_and(|scheme| scheme != "0x0") => {
            refuse("layout.scheme is 0x0: pages are written whole where advice is asked for")
        }
        _ => Ok(()),
    }
}
