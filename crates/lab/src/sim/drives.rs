//! Operates the array of a simulated database: extents move as a plan drawn from the seed has it, drives come and go,
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
pub(crate) const COUNTS: [&str; 9] = [
    "array: extents moved",
    "array: moves undone",
    "array: plans",
    "array: drives added",
    "array: drives emptied",
    "array: drives replaced",
    "array: cuts while extents move",
    "array: cuts right after a move",
    "array: cuts of one drive first",
];

/// The array's operator.
pub(crate) struct Operator {
    db: Db,
    /// By their numbers; one of them is to spare.
    drives: Vec<Arc<dyn Device>>,
    shared: Arc<Shared>,
    /// The clients have ended.
    done: Arc<AtomicBool>,
    rng: Rng,
    /// Deeds after which the power is cut; none: it is not the operator who has it cut.
    until: Option<u64>,
    /// A drive may leave at any moment: one is being emptied, as far as is known.
    leaving: bool,
}

impl Operator {
    /// Of a life; `cuts`: the life is to end with a power cut.
    pub(crate) fn new(
        (db, drives): (Db, Vec<Arc<dyn Device>>),
        shared: Arc<Shared>,
        done: Arc<AtomicBool>,
        (mut rng, cuts): (Rng, bool),
    ) -> Operator {
        let until = (cuts && rng.one_in(2)).then(|| rng.between(1, 40));
        Operator { db, drives, shared, done, rng, until, leaving: true }
    }

    /// Works until the life ends.
    pub(crate) fn run(mut self) {
        let before = self.db.array_moves().unwrap_or_default();
        while !self.is_over() {
            varve_rt::sleep(Duration::from_micros(self.rng.between(50, 3_000)));
            let done = match self.rng.below(12) {
                0..=5 => self.plan(),
                6..=7 => self.add(),
                8 => self.drain(),
                9 => self.replace(),
                10 => self.db.array_give_up(),
                _ => self.pause(),
            };
            if !self.is_fine(done) {
                break;
            }
            self.until = self.until.map(|left| left.saturating_sub(1));
            if self.until == Some(0) && !self.is_over() && self.cut() {
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

    /// Cuts the power while an extent moves, or right after one has; now and then one drive loses it first. False:
    /// nothing moves, so the next deed gets its turn.
    fn cut(&mut self) -> bool {
        let (seed, after) = (self.rng.next_u64(), self.rng.one_in(2));
        let moved = self.db.array_moves().map_or(0, |moves| moves.done);
        if self.plan().is_err() {
            return false;
        }
        if after {
            for _ in 0..40 {
                varve_rt::sleep(Duration::from_micros(100));
                if self.is_over() || self.db.array_moves().map_or(0, |moves| moves.done) > moved {
                    break;
                }
            }
        } else {
            varve_rt::sleep(Duration::from_micros(self.rng.below(3_000)));
        }
        let moves = self.db.array_moves().unwrap_or_default();
        if self.is_over() || !(moves.running || moves.done > moved) {
            return false;
        }
        let name = if moves.done > moved { "array: cuts right after a move" } else { "array: cuts while extents move" };
        self.shared.count(name, 1);
        let supply = self.shared.supply.clone();
        if self.rng.one_in(3) {
            let drive = self.rng.below(self.drives.len() as u64) as usize;
            self.shared.trace.event(|| format!("power of drive {drive} cut"));
            self.shared.machine.cut_drive(drive, seed ^ 1);
            self.shared.count("array: cuts of one drive first", 1);
            varve_rt::sleep(Duration::from_micros(self.rng.below(2_000)));
            supply.cut(seed);
        } else {
            supply.cut_at(supply.ops() + 1 + self.rng.below(12), seed);
        }
        true
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
        let some = 1 + self.rng.below(6);
        let mut draw = |n: usize| self.rng.below(n as u64) as usize;
        let moves = (0..some).map(|_| (draw(extents), live[draw(live.len())])).collect();
        self.db.array_apply(&ArrayPlan { layout: plan.now, moves, ..plan }).map(|_| ())
    }

    /// The number of the drive that is to spare, if it is not in the array. None while another one may leave at any
    /// moment, for a new drive would get its number.
    fn spare(&mut self) -> Option<usize> {
        self.leaving &= self.db.array_moves().is_ok_and(|moves| moves.running);
        let live = self.live();
        (0..self.drives.len()).find(|number| !live.contains(number)).filter(|_| !self.leaving)
    }

    /// What a drive that came got as its number.
    fn expect(&self, spare: usize, number: usize) {
        if number != spare {
            self.shared.wrong(format!("array: drive {spare} was added as {number}"));
        }
    }

    /// The drive that is to spare comes in.
    fn add(&mut self) -> varve::Result<()> {
        let Some(spare) = self.spare() else { return Ok(()) };
        let share = self.rng.between(1, 5) as f64;
        let drive = NewDrive { device: self.drives[spare].clone(), blank: false };
        let number = self.db.array_add_on(drive, Some(share))?;
        self.expect(spare, number);
        self.shared.count("array: drives added", 1);
        Ok(())
    }

    /// A drive of the array.
    fn draw_live(&mut self) -> Option<usize> {
        let live = self.live();
        (!live.is_empty()).then(|| live[self.rng.below(live.len() as u64) as usize])
    }

    /// A drive is emptied, and goes.
    fn drain(&mut self) -> varve::Result<()> {
        let Some(drive) = self.draw_live() else { return Ok(()) };
        self.leaving = true;
        self.db.array_drain(drive)?;
        self.wait(drive, "array: drives emptied")
    }

    /// The drive that is to spare comes in place of another one.
    fn replace(&mut self) -> varve::Result<()> {
        let (Some(spare), Some(drive)) = (self.spare(), self.draw_live()) else { return Ok(()) };
        let new = NewDrive { device: self.drives[spare].clone(), blank: false };
        self.leaving = true;
        let number = self.db.array_replace_on(drive, new)?;
        self.expect(spare, number);
        self.wait(drive, "array: drives replaced")
    }

    /// Waits a while for a drive to go.
    fn wait(&mut self, drive: usize, count: &'static str) -> varve::Result<()> {
        for _ in 0..self.rng.between(1, 100) {
            varve_rt::sleep(Duration::from_millis(1));
            if !self.db.array_moves()?.running || self.is_over() {
                break;
            }
        }
        self.shared.count(count, u64::from(!self.live().contains(&drive)));
        Ok(())
    }

    fn pause(&mut self) -> varve::Result<()> {
        self.db.array_pause(true)?;
        varve_rt::sleep(Duration::from_millis(self.rng.below(4)));
        self.db.array_pause(false)
    }
}
