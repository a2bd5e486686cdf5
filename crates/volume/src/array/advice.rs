//! A plan as people read it: what each drive is for, now and then, and what that brings.
//!
//! Pure. Invariant: shares of the load are between 0 and 1, and add up to 1 if there is a load.

use super::classify::Class;
use super::planner::{Choice, Load, Now, Plan, PlanDrive, Question, order};

/// What a drive has of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Extents that lie on it.
    pub extents: usize,
    /// Its share of the bytes that are read and written.
    pub load: f64,
    /// Of those bytes, the share that is read; 1 if there are none.
    pub reads: f64,
    /// What it gives under its part, MB/s.
    pub mb_s: f64,
}

/// A drive of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct DrivePlan {
    /// Its number in the array.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// It only reads, as planned.
    pub reads_only: bool,
    /// Mean bytes of a request of the whole load.
    pub request: f64,
    /// What it gives at reads alone, half reads, and writes alone, MB/s.
    pub curve: [f64; 3],
    /// What reading alone gains, MB/s.
    pub gain: f64,
    /// As things are; of a stripe, the same for all.
    pub now: Part,
    /// As planned.
    pub then: Part,
}

/// A plan for an array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayPlan {
    /// The layout as it is.
    pub now: Choice,
    /// The layout as planned.
    pub layout: Choice,
    /// How many drives only read.
    pub k: usize,
    /// The drives.
    pub drives: Vec<DrivePlan>,
    /// Predicted throughput as things are, MB/s.
    pub before: f64,
    /// And as planned.
    pub after: f64,
    /// What each layout would give that can be had, MB/s.
    pub predicted: Vec<(Choice, f64)>,
    /// Extents that move, and the drives that they move to, in an order in which no drive is overloaded on the way.
    pub moves: Vec<(usize, usize)>,
    /// Bytes to move.
    pub moved: u64,
    /// Extents that are sealed, quiet, changing, and cold.
    pub classes: [usize; 4],
}

fn part(drive: &PlanDrive, own: &[&Load], whole: f64) -> Part {
    let sum = |of: &dyn Fn(&Load) -> f64| own.iter().map(|load| of(load)).sum::<f64>();
    let (read, bytes, requests) = (sum(&|l| l.read_bytes), sum(&Load::bytes), sum(&|l| l.requests));
    if bytes <= 0.0 || requests <= 0.0 {
        return Part { extents: own.len(), reads: 1.0, ..Part::default() };
    }
    debug_assert!(read <= bytes && bytes <= whole * (1.0 + 1e-9), "a part of the load is no more than all of it");
    let mb_s = drive.curve.throughput(read / bytes, (bytes / requests) as u64).unwrap_or(0.0);
    Part { extents: own.len(), load: bytes / whole, reads: read / bytes, mb_s }
}

fn parts(question: &Question, places: &[usize]) -> Vec<Part> {
    let whole: f64 = question.loads.iter().map(Load::bytes).sum();
    let each = question.drives.iter().enumerate().map(|(drive, plan)| {
        if places.is_empty() {
            let n = question.drives.len() as f64;
            let all = part(plan, &question.loads.iter().collect::<Vec<_>>(), whole);
            return Part { extents: question.loads.len() / question.drives.len(), load: all.load / n, ..all };
        }
        let own = question.loads.iter().zip(places).filter(|(_, place)| **place == drive).map(|(load, _)| load);
        part(plan, &own.collect::<Vec<_>>(), whole)
    });
    let each: Vec<Part> = each.collect();
    let shares: f64 = each.iter().map(|part| part.load).sum();
    debug_assert!(whole < 1e-9 || (shares - 1.0).abs() < 1e-6, "the shares of a load add up to all of it");
    each
}

impl ArrayPlan {
    /// What a plan means for the drives of these numbers.
    pub fn of(question: &Question, plan: Plan, numbers: &[usize], classes: &[Class]) -> ArrayPlan {
        assert_eq!(numbers.len(), question.drives.len(), "each drive has its number");
        assert!(classes.is_empty() || classes.len() == question.loads.len(), "each extent has its class");
        let (choice, placed): (Choice, &[usize]) = match &question.now {
            Now::Stripe => (Choice::Stripe, &[]),
            Now::Placed(choice, places) => (*choice, places),
        };
        let (bytes, requests) = question.loads.iter().fold((0.0, 0.0), |(b, r), l| (b + l.bytes(), r + l.requests));
        let request = if requests > 0.0 { bytes / requests } else { 0.0 };
        let (now, then) = (parts(question, placed), parts(question, &plan.places));
        let drive = |(i, drive): (usize, &PlanDrive)| {
            let (least, most) = drive.curve.sizes();
            let size = (request as u64).clamp(least, most);
            let at = |share| drive.curve.throughput(share, size).unwrap_or(0.0);
            DrivePlan {
                number: numbers[i],
                name: drive.name.clone(),
                reads_only: plan.read_only[i],
                request,
                curve: [at(1.0), at(0.5), at(0.0)],
                gain: drive.curve.read_only_gain(size).unwrap_or(0.0),
                now: now[i],
                then: then[i],
            }
        };
        let drives = question.drives.iter().enumerate().map(drive).collect();
        let extents = question.loads.len();
        let ordered = match placed.len() == extents && plan.places.len() == extents {
            true => order(question, placed, &plan.places),
            // Of a stripe there are no moves.
            false => Vec::new(),
        };
        let moves = ordered.into_iter().map(|extent| (extent, numbers[plan.places[extent]])).collect();
        let count = |class| classes.iter().filter(|c| **c == class).count();
        ArrayPlan {
            now: choice,
            layout: plan.layout,
            k: plan.k(),
            drives,
            before: plan.before,
            after: plan.after,
            predicted: plan.predicted,
            moves,
            moved: plan.moved,
            classes: [Class::Sealed, Class::Quiet, Class::Changing, Class::Cold].map(count),
        }
    }

    /// What is gained, as a share of the throughput now.
    pub fn gain(&self) -> f64 {
        debug_assert!(self.before >= 0.0 && self.after >= 0.0, "throughput is no debt");
        if self.before > 0.0 { self.after / self.before - 1.0 } else { 0.0 }
    }

    /// Whether moves of extents lead there; else why not.
    pub(super) fn can_apply(&self) -> Result<(), String> {
        if self.layout == self.now || (self.now != Choice::Stripe && self.layout != Choice::Stripe) {
            return Ok(());
        }
        Err(format!(
            "extents of a {} array cannot be moved to a {} one: restore a backup into a new database with that layout",
            self.now.name(),
            self.layout.name()
        ))
    }

    /// Shares of new extents for so many drives: none for those that only read, else by what the drives give.
    pub(super) fn shares(&self, drives: usize) -> Vec<f64> {
        let mut shares = vec![0.0; drives];
        for drive in self.drives.iter().filter(|drive| !drive.reads_only) {
            assert!(drive.number < drives, "a plan is for the drives that there are");
            shares[drive.number] = drive.curve[1].max(1e-3);
        }
        shares
    }
}
