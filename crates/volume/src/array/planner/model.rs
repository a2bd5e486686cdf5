//! What the planner believes: how long each drive needs for its part of the load.

use super::{Choice, Now, PlanDrive, Question};

/// What is asked of an extent, per second or in any time that is the same for all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Requests.
    pub requests: f64,
    /// It is sealed, or quiet and read often: it may lie on a drive that only reads.
    pub read_only: bool,
}

impl Load {
    /// Bytes read and written.
    pub fn bytes(&self) -> f64 {
        self.read_bytes + self.write_bytes
    }

    /// Mean bytes of a request.
    pub fn request(&self) -> f64 {
        self.bytes() / self.requests
    }
}

/// The load of a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Part {
    pub read: f64,
    pub write: f64,
    pub requests: f64,
    pub extents: u32,
}

impl Part {
    pub fn with(mut self, load: &Load) -> Part {
        self.read += load.read_bytes;
        self.write += load.write_bytes;
        self.requests += load.requests;
        self.extents += 1;
        self
    }

    pub fn without(mut self, load: &Load) -> Part {
        assert!(self.extents > 0, "what leaves a part was in it");
        self.read = (self.read - load.read_bytes).max(0.0);
        self.write = (self.write - load.write_bytes).max(0.0);
        self.requests = (self.requests - load.requests).max(0.0);
        self.extents -= 1;
        self
    }

    fn bytes(&self) -> f64 {
        self.read + self.write
    }

    /// How long a drive needs for it.
    pub fn time(&self, drive: &PlanDrive) -> f64 {
        // What rounding left of extents that went away is nothing.
        if self.requests <= 1e-12 || self.bytes() <= 1e-9 {
            return 0.0;
        }
        let share = self.read / self.bytes();
        assert!((0.0..=1.0).contains(&share), "reads are a share of the bytes");
        self.bytes() / 1e6 * drive.curve.per_mb(share, self.bytes() / self.requests)
    }
}

/// A question, with what follows from it at once.
pub(super) struct Problem<'a> {
    pub drives: &'a [PlanDrive],
    pub loads: &'a [Load],
    pub whole: Part,
    /// Where extents lie that must not move; `None`: where they are best.
    pub pins: Vec<Option<usize>>,
}

impl<'a> Problem<'a> {
    pub fn of(question: &'a Question) -> Problem<'a> {
        let whole = question.loads.iter().fold(Part::default(), |part, load| part.with(load));
        let mut pins = vec![None; question.loads.len()];
        if let Now::Placed(_, places) = &question.now {
            let pinned = question.pinned.iter().zip(places);
            pins.iter_mut().zip(pinned).filter(|(_, (pinned, _))| **pinned).for_each(|(pin, (_, at))| *pin = Some(*at));
        }
        Problem { drives: &question.drives, loads: &question.loads, whole, pins }
    }

    /// The part of each drive.
    pub fn parts(&self, places: &[usize]) -> Vec<Part> {
        assert_eq!(places.len(), self.loads.len(), "every extent has a place");
        let mut parts = vec![Part::default(); self.drives.len()];
        for (load, drive) in self.loads.iter().zip(places) {
            parts[*drive] = parts[*drive].with(load);
        }
        parts
    }

    /// Whether equal parts have room on every drive.
    pub fn stripe_fits(&self) -> bool {
        let each = self.loads.len().div_ceil(self.drives.len());
        self.drives.iter().all(|d| d.extents as usize >= each)
    }

    /// Whether things can stay as they are.
    pub fn fits(&self, now: &Now) -> bool {
        match now {
            Now::Stripe => self.stripe_fits(),
            Now::Placed(_, places) => self.parts(places).iter().zip(self.drives).all(|(p, d)| p.extents <= d.extents),
        }
    }

    /// Drives that have extents, and only such as are only read, or must not move.
    pub fn read_only(&self, layout: Choice, places: &[usize]) -> Vec<bool> {
        let free = || (0..places.len()).filter(|e| self.pins[*e].is_none());
        let only = |drive: usize| {
            let mut own = free().filter(|e| places[*e] == drive).peekable();
            layout == Choice::Rodi && own.peek().is_some() && own.all(|e| self.loads[e].read_only)
        };
        (0..self.drives.len()).map(only).collect()
    }

    /// The drives' speeds under the whole load, as MB/s; 1 each without one.
    fn speeds(&self) -> Vec<f64> {
        let mb = (self.whole.read + self.whole.write) / 1e6;
        let of = |time: f64| if time > 0.0 { mb / time } else { 1.0 };
        self.drives.iter().map(|d| of(self.whole.time(d))).collect()
    }

    /// A place for each extent: those that may move are dealt in order by the drives' speeds while they have room.
    pub fn proportional(&self) -> Vec<usize> {
        let speeds = self.speeds();
        assert!(speeds.iter().all(|speed| *speed > 0.0), "every drive has a speed");
        let mut dealt = vec![0u32; self.drives.len()];
        self.pins.iter().flatten().for_each(|drive| dealt[*drive] += 1);
        let mut next = || {
            let has_room = |d: &usize| dealt[*d] < self.drives[*d].extents;
            let ends = |d: usize| f64::from(dealt[d] + 1) / speeds[d];
            let drive = (0..dealt.len()).filter(has_room).min_by(|a, b| ends(*a).total_cmp(&ends(*b)));
            let drive = drive.expect("the room was checked");
            dealt[drive] += 1;
            drive
        };
        self.pins.iter().map(|pin| pin.unwrap_or_else(&mut next)).collect()
    }
}

/// Throughput of the whole load when the longest part takes `time`, MB/s; 0 without a load.
pub(super) fn mb_s(problem: &Problem<'_>, time: f64) -> f64 {
    assert!(time >= 0.0 && time.is_finite(), "a load takes a time");
    if time > 0.0 { problem.whole.bytes() / 1e6 / time } else { 0.0 }
}

/// Of extents in places.
pub(super) fn mb_s_of(problem: &Problem<'_>, places: &[usize]) -> f64 {
    let times = problem.parts(places).into_iter().zip(problem.drives).map(|(part, drive)| part.time(drive));
    mb_s(problem, times.fold(0.0, f64::max))
}

/// Of a stripe over all drives: each has the same part of everything.
pub(super) fn stripe_mb_s(problem: &Problem<'_>) -> f64 {
    let slowest = problem.drives.iter().map(|d| problem.whole.time(d)).fold(0.0, f64::max);
    mb_s(problem, slowest / problem.drives.len() as f64)
}
