//! Keeps the extents of an array where they should lie: watches them, plans, and moves them in the background.
//!
//! One piece of work at a time: a plan that is applied, or a drive that is emptied. It is a queue of moves, done one
//! after the other at a limited rate ([`Pace`]). An extent that is written while it is copied stays, and has its turn
//! again later; no write waits. What fails ends the work, and is told.
//!
//! Invariants: a plan moves no extent twice within the window; a drive is retired only by who emptied it.
//!
//! Lock order: `state`, then those of the array; `state` is not held while an extent moves, or the shape changes.

use super::advice::ArrayPlan;
use super::classify::Rules;
use super::curve::Curve;
use super::mover::{Moved, Pace};
use super::planner::{self, Choice, Now, PlanDrive, Question};
use super::slots::Layout;
use super::watch::Watch;
use super::{Array, invalid};
use crate::VolumeError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Event, HashMap, Instant, Mutex};

/// How often a move of a plan is tried that writes undo.
const TRIES: u32 = 8;

/// How an array is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct KeeperOptions {
    /// Most bytes copied in a second.
    pub rate: u64,
    /// A plan moves no extent again within this time.
    pub window: Duration,
    /// How often a plan is made and applied unasked; `None`: never.
    pub replan: Option<Duration>,
    /// The least gain that is worth moving anything, as a share of the throughput now.
    pub least_gain: f64,
    /// What counts as read-only.
    pub rules: Rules,
    /// Before a move that was undone is tried again.
    pub again: Duration,
    /// Between two looks at what extents are used for, also while they move.
    pub look: Duration,
}

impl Default for KeeperOptions {
    /// Assumed: 64 MiB/s, ten minutes, five hundredths, twenty milliseconds, a second.
    fn default() -> KeeperOptions {
        let (rate, window, again) = (64 << 20, Duration::from_secs(600), Duration::from_millis(20));
        let (rules, look) = (Rules::default(), Duration::from_secs(1));
        KeeperOptions { rate, window, replan: None, least_gain: 0.05, rules, again, look }
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Nothing,
    /// Not yet: the array is being told how new extents are laid.
    Starting,
    Plan,
    /// This drive is emptied, onto one other or onto all.
    Drain(usize, Option<usize>),
    /// This drive is empty and goes: too late to give that up.
    Retire(usize),
}

/// How far the moves are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Extents that are still to move.
    pub left: usize,
    /// Extents moved since the array was opened.
    pub done: u64,
    /// Moves that a write undid.
    pub undone: u64,
    /// Moves that were given up: written too often, or no room.
    pub given_up: u64,
    /// Nothing is moved until somebody says so.
    pub paused: bool,
    /// Something is to be done.
    pub running: bool,
    /// What ended the last work, if it failed.
    pub error: Option<String>,
}

/// What a plan promised whose moves were begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The layout that it leads to.
    pub layout: Choice,
    /// Drives that only read then.
    pub k: usize,
    /// Predicted throughput as things were, MB/s.
    pub before: f64,
    /// And as planned.
    pub after: f64,
    /// Extents that were to move.
    pub moves: usize,
}

/// Promises that are remembered.
const PROMISES: usize = 64;

struct State {
    watch: Watch,
    curves: Vec<Option<Curve>>,
    work: Work,
    /// Extent, drive, and how often it was tried.
    queue: VecDeque<(usize, usize, u32)>,
    moved_at: HashMap<usize, Instant>,
    planned: Instant,
    moves: Moves,
    /// In order.
    promises: VecDeque<Promise>,
}

/// See the module.
pub struct Keeper {
    array: Arc<Array>,
    options: KeeperOptions,
    pace: Arc<Pace>,
    state: Mutex<State>,
    /// There is something to do.
    woken: Event,
    /// Set when nothing is left to do.
    idle: Event,
    stop: AtomicBool,
}

impl Keeper {
    /// Keeps an array; nothing happens before [`Keeper::serve`].
    pub fn new(array: Arc<Array>, options: KeeperOptions, watch: Watch) -> Arc<Keeper> {
        assert!(options.least_gain >= 0.0, "nothing moves for a loss");
        let (pace, planned) = (Pace::new(options.rate), varve_rt::now());
        let idle = Event::new();
        idle.set();
        let state = State {
            watch,
            curves: Vec::new(),
            work: Work::Nothing,
            queue: VecDeque::new(),
            moved_at: HashMap::default(),
            planned,
            moves: Moves::default(),
            promises: VecDeque::new(),
        };
        let state = Mutex::new(state);
        Arc::new(Keeper { array, options, pace, state, woken: Event::new(), idle, stop: AtomicBool::new(false) })
    }

    /// The array that it keeps.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// What the drives give, by their numbers; for plans that are made unasked.
    pub fn set_curves(&self, curves: Vec<Option<Curve>>) {
        self.state.lock().curves = curves;
    }

    /// What is known of the extents, as of now.
    pub fn watched(&self) -> Watch {
        let mut state = self.state.lock();
        state.watch.look(&self.array);
        state.watch.clone()
    }

    /// Where the extents should lie, by what was asked of them and by what the drives give, and what that brings. Of an
    /// array that is not striped, only what its extents can be moved to: what moved within the window stays.
    ///
    /// # Errors
    /// [`VolumeError::Options`] names a drive without a curve, or says why there is no plan.
    pub fn plan(&self, curves: &[Option<Curve>]) -> Result<ArrayPlan, VolumeError> {
        let (watch, pinned) = {
            let mut state = self.state.lock();
            state.watch.look(&self.array);
            let watch = state.watch.clone();
            let (now, extents) = (varve_rt::now(), watch.classes().len());
            let recent = |extent| state.moved_at.get(&extent).is_some_and(|at| now - *at < self.options.window);
            (watch, (0..extents).map(recent).collect())
        };
        let stats = self.array.array_stats();
        let mut drives = Vec::new();
        for drive in &stats.drives {
            let curve = curves.get(drive.number).cloned().flatten().ok_or_else(|| {
                invalid(format!(
                    "nobody said what drive {} ({}) gives: `varve probe DIR --save FILE` measures it, `varve array set \
                     DB --curves FILE,..` keeps it",
                    drive.number, drive.name
                ))
            })?;
            drives.push(PlanDrive { name: drive.name.clone(), curve, extents: drive.slots });
        }
        let numbers: Vec<usize> = stats.drives.iter().map(|drive| drive.number).collect();
        let question = Question {
            now: now(&self.array, &numbers),
            pinned,
            loads: watch.loads(),
            extent: stats.extent,
            least_gain: self.options.least_gain,
            drives,
        };
        let plan = match question.now {
            Now::Stripe => planner::plan(&question),
            Now::Placed(..) => planner::plan_places(&question),
        };
        let plan = plan.map_err(|e| invalid(e.to_string()))?;
        Ok(ArrayPlan::of(&question, plan, &numbers, &watch.classes()))
    }

    /// Begins to move extents as planned; what was moved within the window stays. Returns how many will move.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] while other extents move, and for a plan that moves cannot fulfil; a drive's own.
    pub fn apply(&self, plan: &ArrayPlan) -> Result<usize, VolumeError> {
        plan.can_apply().map_err(VolumeError::Invalid)?;
        let mut state = self.begin(Work::Starting)?;
        let (now, window) = (varve_rt::now(), self.options.window);
        state.moved_at.retain(|_, at| now - *at < window);
        let due = plan.moves.iter().filter(|(extent, _)| !state.moved_at.contains_key(extent));
        state.queue = due.map(|(extent, drive)| (*extent, *drive, 0)).collect();
        let moves = state.queue.len();
        state.moves.left = moves;
        if moves > 0 {
            let forgotten = (state.promises.len() + 1).saturating_sub(PROMISES);
            state.promises.drain(..forgotten);
            let (layout, k, before, after) = (plan.layout, plan.k, plan.before, plan.after);
            state.promises.push_back(Promise { layout, k, before, after, moves });
        }
        drop(state);
        if plan.now != Choice::Stripe {
            let shares = plan.shares(self.array.usage().len());
            self.array.set_shares(shares).inspect_err(|e| self.end_work(Some(e)))?;
        }
        let before = std::mem::replace(&mut self.state.lock().work, Work::Plan);
        assert!(before == Work::Starting, "nobody takes over a plan that starts");
        self.woken.set();
        Ok(moves)
    }

    /// Begins to empty a drive, onto all others or onto one; then the array goes without it.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] while other extents move; [`VolumeError::Options`] says how much room is missing.
    pub fn drain(&self, drive: usize, onto: Option<usize>) -> Result<usize, VolumeError> {
        let usage = self.array.usage();
        if usage.get(drive).is_none_or(|(_, slots)| *slots == 0) {
            return Err(no_drive(drive));
        }
        if usage.iter().filter(|(_, slots)| *slots > 0).count() <= 2 {
            return Err(invalid("an array has at least two drives: add another one first".into()));
        }
        let extents = self.array.extents_on(drive);
        let others = usage.iter().enumerate().filter(|(n, _)| *n != drive && onto.is_none_or(|onto| onto == *n));
        let room: u64 = others.map(|(_, (used, slots))| u64::from(slots - used)).sum();
        if let Some(missing) = (extents.len() as u64).checked_sub(room).filter(|missing| *missing > 0) {
            let (bytes, extent) = (missing * self.array.extent(), self.array.extent());
            return Err(invalid(format!(
                "{} extents of {extent} bytes lie on drive {drive}, and there is room for {room}: {bytes} bytes are \
                missing; add a drive that has them first",
                extents.len()
            )));
        }
        let mut state = self.begin(Work::Drain(drive, onto))?;
        self.array.close_drive(drive, true);
        state.queue = extents.iter().map(|extent| (*extent, drive, 0)).collect();
        state.moves.left = extents.len();
        drop(state);
        self.woken.set();
        Ok(extents.len())
    }

    /// Refuses what needs the moves for itself.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] while extents move.
    pub fn refuse_while_moving(&self) -> Result<(), VolumeError> {
        self.refuse_second(&self.state.lock())
    }

    fn refuse_second(&self, state: &State) -> Result<(), VolumeError> {
        if state.work != Work::Nothing {
            return Err(VolumeError::Invalid(
                "extents of the array are moving: wait for the end, or give it up with `varve array pause`".into(),
            ));
        }
        Ok(())
    }

    fn begin(&self, work: Work) -> Result<varve_rt::MutexGuard<'_, State>, VolumeError> {
        let mut state = self.state.lock();
        self.refuse_second(&state)?;
        assert!(state.queue.is_empty() && work != Work::Nothing, "work that ended left nothing");
        assert!(!state.moves.running, "one piece of work is done at a time");
        (state.work, state.moves.error, state.moves.running) = (work, None, true);
        self.idle.reset();
        Ok(state)
    }

    /// Nothing is moved any more, or it goes on.
    pub fn pause(&self, paused: bool) {
        self.state.lock().moves.paused = paused;
        if paused {
            self.pace.pause()
        } else {
            self.pace.resume()
        }
        self.woken.set();
    }

    /// What is left to move is given up; what moves now is finished or undone. A drive that is empty already goes.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        state.queue.clear();
        if let Work::Drain(drive, _) = state.work {
            self.array.close_drive(drive, false);
            state.work = Work::Plan;
        }
        drop(state);
        self.woken.set();
    }

    /// How far the moves are.
    pub fn moves(&self) -> Moves {
        let state = self.state.lock();
        Moves { left: state.queue.len(), ..state.moves.clone() }
    }

    /// What the plans promised that were applied since the array was opened, in order; of many the first ones and the
    /// newest.
    pub fn promises(&self) -> Vec<Promise> {
        self.state.lock().promises.iter().copied().collect()
    }

    /// Waits until nothing is left to move; false: it is paused, was stopped, or failed.
    pub fn wait(&self) -> bool {
        while !self.stopping() {
            let timed_out = self.idle.wait_for(Duration::from_secs(1));
            let moves = self.moves();
            if !timed_out || moves.paused {
                return !moves.running && moves.error.is_none();
            }
        }
        false
    }

    /// Tells [`Keeper::serve`] to return soon.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.pace.stop();
        self.woken.set();
        self.idle.set();
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) || varve_rt::dying()
    }

    /// Watches and moves until [`Keeper::end`]; `each` is called with each look, about, also while extents move.
    pub fn serve(&self, mut each: impl FnMut(&Keeper)) {
        let mut look = || {
            self.state.lock().watch.look(&self.array);
            each(self);
            varve_rt::now()
        };
        while !self.stopping() {
            self.woken.wait_for(self.options.look);
            self.woken.reset();
            let mut looked = look();
            self.replan();
            while !self.stopping() && self.step() {
                if looked.elapsed() >= self.options.look {
                    looked = look();
                }
            }
        }
    }

    /// Plans and applies unasked, if that is wanted and it is time.
    fn replan(&self) {
        let Some(every) = self.options.replan else { return };
        let curves = {
            let mut state = self.state.lock();
            let now = varve_rt::now();
            if state.work != Work::Nothing || now - state.planned < every || state.curves.is_empty() {
                return;
            }
            state.planned = now;
            state.curves.clone()
        };
        let applied = self.plan(&curves).and_then(|plan| match plan.moves.is_empty() {
            true => Ok(0),
            false => self.apply(&plan),
        });
        if let Err(e) = applied {
            self.state.lock().moves.error = Some(e.to_string());
        }
    }

    /// Makes one move; false: there is nothing to do now.
    fn step(&self) -> bool {
        let (work, next) = {
            let mut state = self.state.lock();
            if matches!(state.work, Work::Nothing | Work::Starting) || state.moves.paused {
                return false;
            }
            (state.work, state.queue.pop_front())
        };
        let Some((extent, drive, tries)) = next else { return self.finish(work) };
        let to = match work {
            Work::Drain(from, onto) => self.roomiest(from, onto),
            _ => Some(drive),
        };
        let moved = to.map_or(Ok(Moved::Full), |to| self.array.move_extent(extent, to, &self.pace));
        match moved {
            Ok(moved) => self.note(work, (extent, drive, tries), moved),
            Err(e) => {
                self.end_work(Some(&e.into()));
                false
            }
        }
    }

    /// The drive with the largest share of its slots free, of those that may take extents of one that is emptied.
    fn roomiest(&self, from: usize, onto: Option<usize>) -> Option<usize> {
        let usage = self.array.usage();
        assert!(from < usage.len(), "a drive that is emptied is one of the array");
        let free = |n: usize| f64::from(usage[n].1 - usage[n].0) / f64::from(usage[n].1.max(1));
        let others = (0..usage.len()).filter(|n| *n != from && onto.is_none_or(|onto| onto == *n) && free(*n) > 0.0);
        others.max_by(|a, b| free(*a).total_cmp(&free(*b)))
    }

    /// What became of a move; false: nothing more can be done now.
    fn note(&self, work: Work, (extent, drive, tries): (usize, usize, u32), moved: Moved) -> bool {
        let mut state = self.state.lock();
        assert!(work != Work::Nothing, "a move is a part of some work");
        let drains = matches!(work, Work::Drain(..));
        match moved {
            Moved::Done => {
                state.moves.done += 1;
                state.moved_at.insert(extent, varve_rt::now());
            }
            Moved::There | Moved::Gone => {}
            Moved::Stopped => return false,
            Moved::Written | Moved::Full if drains || tries < TRIES => {
                state.moves.undone += u64::from(moved == Moved::Written);
                state.queue.push_back((extent, drive, tries + 1));
                drop(state);
                if drains && moved == Moved::Full && tries >= TRIES {
                    let why = "the other drives are full: add a drive, then drain again".to_string();
                    self.end_work(Some(&invalid(why)));
                    return false;
                }
                varve_rt::sleep(self.options.again);
            }
            Moved::Written | Moved::Full => state.moves.given_up += 1,
        }
        true
    }

    /// Nothing is left in the queue. A drive that was emptied goes, unless new extents lie on it.
    fn finish(&self, work: Work) -> bool {
        if let Work::Drain(drive, _) = work {
            let left = self.array.extents_on(drive);
            let mut state = self.state.lock();
            if state.work != work {
                // It was given up meanwhile.
                return true;
            }
            if !left.is_empty() {
                state.queue = left.into_iter().map(|extent| (extent, drive, 0)).collect();
                return true;
            }
            state.work = Work::Retire(drive);
            drop(state);
            match self.array.retire_drive(drive) {
                Ok(true) => {}
                Ok(false) => {
                    let before = std::mem::replace(&mut self.state.lock().work, work);
                    assert!(before == Work::Retire(drive), "a drive is retired by who emptied it alone");
                    varve_rt::sleep(self.options.again);
                    return true;
                }
                Err(e) => {
                    self.end_work(Some(&e));
                    return false;
                }
            }
        }
        self.end_work(None);
        false
    }

    fn end_work(&self, error: Option<&VolumeError>) {
        let mut state = self.state.lock();
        assert!(state.moves.running, "work that ends was begun");
        if let (Some(_), Work::Drain(drive, _) | Work::Retire(drive)) = (error, state.work) {
            // It stays, and new extents may lie on it again.
            self.array.close_drive(drive, false);
        }
        state.queue.clear();
        (state.work, state.moves.running) = (Work::Nothing, false);
        state.moves.error = error.map(ToString::to_string);
        self.idle.set();
    }
}

/// There is no drive of this number.
pub fn no_drive(drive: usize) -> VolumeError {
    invalid(format!("the array has no drive {drive}: `varve array stat` lists them"))
}

/// How the extents lie now, by places among the drives that there are.
fn now(array: &Array, numbers: &[usize]) -> Now {
    let choice = match *array.layout() {
        Layout::Stripe { .. } => return Now::Stripe,
        Layout::Proportional { .. } => Choice::Proportional,
        Layout::Rodi { .. } => Choice::Rodi,
    };
    let at = |drive: u16| numbers.iter().position(|n| *n == usize::from(drive)).expect("extents lie on drives");
    Now::Placed(choice, array.map().entries.iter().map(|entry| at(entry.place.drive)).collect())
}
