//! How extents of an array moved while a workload ran, seen from outside: the map and the throughput at each interval;
//! and what was promised.

use super::spec::Spec;
use crate::driver::Interval;
use std::sync::Arc;
use varve::Db;
use varve_volume::array::Array;
use varve_volume::array::curve::Curve;
use varve_volume::array::planner::Choice;

/// One interval.
struct Sample {
    /// Its end, seconds since the run began.
    at: f64,
    length: f64,
    /// Transactions that ended.
    done: f64,
    /// Extents moved from its beginning to its end.
    moving: bool,
}

/// Watches the extents of a point's array.
pub(super) struct Moves {
    array: Arc<Array>,
    curves: Vec<Curve>,
    /// The drive of each extent, and when it was seen to have another one than before.
    places: Vec<(u16, Option<f64>)>,
    window: f64,
    moved: u64,
    /// Moves of an extent that had moved within the window.
    again: u64,
    running: bool,
    samples: Vec<Sample>,
}

fn drives(array: &Array) -> impl Iterator<Item = u16> {
    array.map().entries.into_iter().map(|entry| entry.place.drive)
}

impl Moves {
    /// Of a database that was just opened; says what its drives give, if it is to plan by itself.
    pub fn begin(spec: &Spec, db: &Db, array: &Arc<Array>, curves: &[Curve]) -> crate::Result<Moves> {
        let options = spec.engine.array.keeper();
        if options.replan.is_some() {
            db.set_array_curves(curves.iter().cloned().map(Some).collect())?;
        }
        let places = drives(array).map(|drive| (drive, None)).collect();
        let (window, curves) = (options.window.as_secs_f64(), curves.to_vec());
        let (moved, again, running, samples) = (0, 0, false, Vec::new());
        Ok(Moves { array: array.clone(), curves, places, window, moved, again, running, samples })
    }

    /// An interval has ended.
    pub fn look(&mut self, interval: &Interval, db: &Db) {
        let at = interval.at.as_secs_f64();
        for (extent, drive) in drives(&self.array).enumerate() {
            let Some((before, when)) = self.places.get_mut(extent) else {
                self.places.push((drive, None));
                continue;
            };
            if *before != drive {
                self.moved += 1;
                self.again += u64::from(when.is_some_and(|when| at - when < self.window));
                (*before, *when) = (drive, Some(at));
            }
        }
        let running = db.array_moves().is_ok_and(|moves| moves.running);
        let (length, done) = (interval.length.as_secs_f64(), interval.done as f64);
        self.samples.push(Sample { at, length, done, moving: running && self.running });
        self.running = running;
    }

    /// Transactions per second in those intervals; none if there are none.
    fn rate(&self, which: impl Fn(&Sample) -> bool) -> Option<f64> {
        let sum = |of: fn(&Sample) -> f64| self.samples.iter().filter(|s| which(s)).map(of).sum::<f64>();
        let seconds = sum(|s| s.length);
        (seconds > 0.0).then(|| sum(|s| s.done) / seconds)
    }

    /// What was seen and promised.
    pub fn figures(&self, db: &Db) -> crate::Result<Vec<(String, f64)>> {
        let curves: Vec<Option<Curve>> = self.curves.iter().cloned().map(Some).collect();
        let (plan, promises) = (db.array_plan(&curves)?, db.array_promises()?);
        let mut figures = vec![
            ("plan.predicted", plan.before),
            ("plan.best", plan.after),
            ("plan.k", plan.k as f64),
            ("plan.rodi", f64::from(u8::from(plan.layout == Choice::Rodi && plan.k > 0))),
            ("plan.applied", promises.len() as f64),
            ("array.moved", self.moved as f64),
            ("array.moved_again", self.again as f64),
        ];
        if let (Some(first), Some(last)) = (promises.first(), promises.last()) {
            figures.extend([("plan.first", first.before), ("plan.last", last.after)]);
        }
        if let Some(first) = self.samples.iter().find(|s| s.moving).map(|s| s.at - s.length) {
            let before = self.rate(|s| s.at <= first && s.at > first / 2.0);
            figures.extend(before.map(|rate| ("move.before_ops_per_s", rate)));
            figures.extend(self.rate(|s| s.moving).map(|rate| ("move.ops_per_s", rate)));
            let lasted = self.samples.iter().filter(|s| s.moving).map(|s| s.length).sum();
            figures.push(("move.seconds", lasted));
        }
        Ok(figures.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    }
}
