//! Who runs the array of a simulated database: extents move as a plan drawn from the seed has it, drives come and go,
//! while clients work and the power fails.

use super::book::Shared;
use super::judge::{Verdict, judge};
use std::sync::Arc;
use std::time::Duration;
use varve::array::curve::Curve;
use varve::array::{ArrayPlan, NewDrive};
use varve::{Db, Error};
use varve_device::Device;
use varve_rt::Rng;
use varve_rt::atomic::{AtomicBool, Ordering};

/// Counts of its work.
pub(crate) const COUNTS: [&str; 5] =
    ["array: extents moved", "array: moves undone", "array: plans", "array: drives added", "array: drives emptied"];

/// The array's operator.
pub(crate) struct Operator {
    pub(crate) db: Db,
    /// By their numbers; one of them is to spare.
    pub(crate) drives: Vec<Arc<dyn Device>>,
    pub(crate) shared: Arc<Shared>,
    /// The clients have ended.
    pub(crate) done: Arc<AtomicBool>,
    pub(crate) rng: Rng,
}

impl Operator {
    /// Works until the life ends.
    pub(crate) fn run(mut self) {
        let before = self.db.array_moves().unwrap_or_default();
        while !self.is_over() {
            varve_rt::sleep(Duration::from_micros(self.rng.between(500, 30_000)));
            let done = match self.rng.below(10) {
                0..=4 => self.plan(),
                5..=6 => self.add(),
                7 => self.drain(),
                8 => self.db.array_give_up(),
                _ => self.pause(),
            };
            if !self.is_fine(done) {
                break;
            }
        }
        let after = self.db.array_moves().unwrap_or_default();
        self.shared.count("array: extents moved", after.done.saturating_sub(before.done));
        self.shared.count("array: moves undone", after.undone.saturating_sub(before.undone));
    }

    fn is_over(&self) -> bool {
        self.shared.is_stopping() || self.done.load(Ordering::SeqCst) || !self.shared.supply.is_on()
    }

    /// What the array refuses, because something moves already or there is no room, is its right.
    fn is_fine(&self, done: varve::Result<()>) -> bool {
        let e = match done {
            Ok(()) | Err(Error::Invalid(_)) => return true,
            Err(e) => e,
        };
        if judge(&e, &self.shared) == Verdict::Wrong && !matches!(e, Error::Closed) {
            self.shared.wrong(format!("array: {e}"));
        }
        false
    }

    /// The drives that the array has, by their numbers.
    fn live(&self) -> Vec<usize> {
        self.db.array_stats().map_or(Vec::new(), |stats| stats.drives.iter().map(|drive| drive.number).collect())
    }

    /// Extents move to drives drawn from the seed.
    fn plan(&mut self) -> varve::Result<()> {
        let rate = |read: f64, write: f64| move |share: f64, _| 1.0 / (share / read + (1.0 - share) / write);
        let mut curve = || {
            let (read, write) = (self.rng.between(100, 600) as f64, self.rng.between(50, 500) as f64);
            Curve::by(&[512, 8 << 10, 128 << 10, 2 << 20], rate(read, write)).ok()
        };
        let curves = self.drives.iter().map(|_| curve()).collect::<Vec<_>>();
        let plan = self.db.array_plan(&curves)?;
        self.shared.count("array: plans", 1);
        let (live, extents) = (self.live(), plan.drives.iter().map(|drive| drive.now.extents).sum::<usize>());
        if live.is_empty() || extents == 0 {
            return Ok(());
        }
        let some = 1 + self.rng.below(4);
        let mut draw = |n: usize| self.rng.below(n as u64) as usize;
        let moves = (0..some).map(|_| (draw(extents), live[draw(live.len())])).collect();
        self.db.array_apply(&ArrayPlan { layout: plan.now, moves, ..plan }).map(|_| ())
    }

    /// The drive that is to spare comes in.
    fn add(&mut self) -> varve::Result<()> {
        let live = self.live();
        let Some(spare) = (0..self.drives.len()).find(|number| !live.contains(number)) else { return Ok(()) };
        let share = self.rng.between(1, 5) as f64;
        let drive = NewDrive { device: self.drives[spare].clone(), blank: false };
        let number = self.db.array_add_on(drive, Some(share))?;
        if number != spare {
            self.shared.wrong(format!("array: drive {spare} was added as {number}"));
        }
        self.shared.count("array: drives added", 1);
        Ok(())
    }

    /// A drive is emptied, and goes.
    fn drain(&mut self) -> varve::Result<()> {
        let live = self.live();
        if live.is_empty() {
            return Ok(());
        }
        let drive = live[self.rng.below(live.len() as u64) as usize];
        self.db.array_drain(drive)?;
        for _ in 0..self.rng.between(1, 200) {
            varve_rt::sleep(Duration::from_millis(2));
            if !self.db.array_moves()?.running || self.is_over() {
                break;
            }
        }
        self.shared.count("array: drives emptied", u64::from(!self.live().contains(&drive)));
        Ok(())
    }

    fn pause(&mut self) -> varve::Result<()> {
        self.db.array_pause(true)?;
        varve_rt::sleep(Duration::from_millis(self.rng.below(10)));
        self.db.array_pause(false)
    }
}
