//! One seed: lives and crashes of one database on one simulated machine, until it has seen enough.
//!
//! The driver is the simulation's first thread, outside every power-cut domain. Each life runs in a domain of its own
//! on the same devices. A life ends by a power cut at a chosen device operation (in the middle of the clients' work or
//! of recovery), by a clean close, or because the database poisoned itself after an injected fault; the power is cut
//! afterwards in every case. What the clients of a life wrote down is settled when the next life has opened.

use super::array::ArrayPlan;
use super::backups::Backups;
use super::book::{Ending, Goal, Shared, Trace};
use super::epilogue::Outcome;
use super::faults::Fault;
use super::flash::FlashPlan;
use super::life::{self, Left, Orders, Pending, Phase};
use super::machine::Machine;
use super::model::{Kept, State};
use super::near::NearPlan;
use super::panics::{self, Panic};
use super::plan::{COMMITS, CRASHES, Plan};
use super::pool::PoolChoice;
use super::tier::TierPlan;
use super::totals::Totals;
use std::sync::Arc;
use std::time::Duration;
use varve::array::KeeperOptions;
use varve::{Faults, Layout, Options, TierOptions};
use varve_rt::sim::{Config, Domain};
use varve_rt::{JoinHandle, Mutex, Rng};

/// Lives after which a seed that still lacks commits or crashes is a finding: nothing moves.
const MOST_LIVES: u64 = 60;
/// Virtual time after which a seed is a finding.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// What one seed came to.
#[derive(Clone, Debug)]
pub(crate) struct SeedResult {
    pub(crate) seed: u64,
    /// Equal for equal runs.
    pub(crate) hash: u64,
    pub(crate) totals: Totals,
    /// What went wrong.
    pub(crate) wrong: Option<String>,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, pool: &PoolChoice, broken: Option<varve::Mistake>, trace: Trace) -> SeedResult {
    let plan = Plan::draw(seed);
    simulate(plan, pool, broken, trace, None)
}

/// Runs a plan; `cut_at`: a single life, cut at this device operation, and one more that verifies.
pub(crate) fn simulate(
    plan: Plan,
    pool: &PoolChoice,
    broken: Option<varve::Mistake>,
    trace: Trace,
    cut_at: Option<u64>,
) -> SeedResult {
    let (seed, pool) = (plan.seed, pool.clone());
    let config = Config { seed, chaos: true, cores: plan.cores, limit: Some(TIME_LIMIT), ..Config::default() };
    let outcome = varve_rt::sim::run(config, move || {
        let mut driver = Driver::new(plan, pool, broken, trace);
        let result = match cut_at {
            Some(op) => driver.cut_once(op),
            None => driver.run(),
        };
        (result, std::mem::take(&mut driver.totals))
    });
    let (wrong, totals) = match outcome.result {
        Ok((result, totals)) => (result.err(), totals),
        Err(failure) => (Some(failure.to_string()), Totals::default()),
    };
    SeedResult { seed, hash: outcome.hash, totals, wrong }
}

pub(super) struct Driver {
    pub(super) plan: Plan,
    pool: PoolChoice,
    tier: Option<TierPlan>,
    broken: Option<varve::Mistake>,
    pub(super) trace: Trace,
    pub(super) machine: Arc<Machine>,
    backups: Arc<Backups>,
    /// Lives whose database was dropped, and of which something may still run.
    ghosts: Vec<(Domain, JoinHandle<()>)>,
    /// In some lives the log has no page images.
    may_leave_images: bool,
    /// A database was to be made in place of this one, and the power went meanwhile.
    half_made: bool,
    pub(super) rng: Rng,
    pending: Arc<Mutex<Option<Pending>>>,
    next_id: u64,
    created: bool,
    loaded: bool,
    /// The last life that opened was closed cleanly.
    clean: bool,
    recovery_ops: u64,
    /// Pages that the last power cut left torn.
    torn: u64,
    lives: u64,
    commits: u64,
    crashes: u64,
    in_recovery: u64,
    pub(super) totals: Totals,
    /// What became of a write that was not done as asked, if that is known.
    pub(super) outcome: Option<Outcome>,
    /// A thread of the last life panicked.
    pub(super) panicked: bool,
}

/// What the driver wants of a life.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) goal: Option<Goal>,
    /// Cut the power at this operation of the opening.
    pub(super) cut_open: Option<u64>,
    pub(super) faults: Vec<Fault>,
    pub(super) panic: Option<Panic>,
    /// Make a new database over the one there is; the cut is for the time from then on.
    pub(super) recreate: bool,
}

impl Wish {
    /// To look at everything, and close.
    pub(super) fn verify() -> Wish {
        Wish { goal: None, cut_open: None, faults: Vec::new(), panic: None, recreate: false }
    }
}

impl Driver {
    fn new(mut plan: Plan, pool: PoolChoice, broken: Option<varve::Mistake>, trace: Trace) -> Driver {
        let tier = (!pool.tier.is_empty()).then(|| TierPlan::draw(&pool.tier, &plan));
        let array = pool.array.then(|| ArrayPlan::draw(&plan));
        let flash = pool.flash.then(|| FlashPlan::draw(&plan));
        if pool.lsm || pool.near {
            // The first keyspace, and of the others as the seed has it.
            plan.lsm = 1 | Rng::from_seed(plan.seed ^ 0x0015_3000).next_u64();
        }
        // A write that goes astray may hit what the array has noted, which refuses the drive then. The host may notice
        // one of a worker's job, and does the job again.
        plan.false_write &= array.is_none() && flash.is_none() && !pool.near;
        plan.near = pool.near;
        let near = pool.near.then(|| (NearPlan::draw(&plan), Faults::from(broken)));
        let may_leave_images = flash.as_ref().is_some_and(|flash| flash.may_leave_images);
        let machine = Arc::new(Machine::new(&plan, (tier.as_ref(), array, flash), near, trace.clone()));
        let rng = Rng::from_seed(plan.seed ^ 0xd21e_0000);
        let pending = Arc::new(Mutex::new(None));
        Driver {
            plan,
            pool,
            tier,
            broken,
            trace,
            machine,
            backups: Backups::new(),
            ghosts: Vec::new(),
            may_leave_images,
            half_made: false,
            rng,
            pending,
            next_id: 0,
            created: false,
            loaded: false,
            clean: false,
            recovery_ops: 0,
            torn: 0,
            lives: 0,
            commits: 0,
            crashes: 0,
            in_recovery: 0,
            totals: Totals::default(),
            outcome: None,
            panicked: false,
        }
    }

    /// Lives until the seed has its commits and crashes; the last one only verifies.
    fn run(&mut self) -> Result<(), String> {
        while self.commits < COMMITS || self.crashes < CRASHES || self.in_recovery == 0 {
            if self.lives == MOST_LIVES {
                return Err(format!(
                    "after {MOST_LIVES} lives: {} commits, {} crashes, {} inside recovery",
                    self.commits, self.crashes, self.in_recovery
                ));
            }
            let wish = self.wish();
            self.live(wish)?;
        }
        self.live(Wish::verify())?;
        self.live(Wish::verify())?;
        if self.plan.false_write { self.epilogue() } else { Ok(()) }
    }

    /// A small fixed workload, cut at device operation `op`; then a verification.
    fn cut_once(&mut self, op: u64) -> Result<(), String> {
        self.machine.supply.cut_at(op, self.plan.seed ^ op);
        let goal = Goal { commits: COMMITS / 3, ending: Ending::Close, patient: false };
        self.live(Wish { goal: Some(goal), ..Wish::verify() })?;
        self.live(Wish::verify())?;
        self.live(Wish::verify())
    }

    fn wish(&mut self) -> Wish {
        let rng = &mut self.rng;
        let crashed = self.crashes > 0 && self.loaded && !self.clean;
        // A life of a few commits after a crash leaves most of the log's end as that crash left it.
        let short = crashed && rng.one_in(4);
        let commits = if short { rng.between(1, 6) } else { rng.between(COMMITS / 8, COMMITS / 2) };
        let after_ops = match rng.below(3) {
            _ if short => rng.below(4),
            0 => rng.below(10),
            _ => rng.below(400),
        };
        let ending = match rng.below(8) {
            0 => Ending::Close,
            1 => Ending::Drop,
            2 | 3 if !short => Ending::CutAtRead { seed: rng.next_u64() },
            4 if !short => Ending::CutInLarge { after_ops, seed: rng.next_u64() },
            _ => Ending::Cut { after_ops, seed: rng.next_u64() },
        };
        // (Cuts while a database that is half made is opened count for nothing, and must come to an end.)
        let wanted = self.in_recovery == 0 && self.recovery_ops > 0 && !self.half_made;
        let cut_open = (crashed && (wanted || rng.one_in(5))).then(|| rng.between(1, self.recovery_ops.max(8)));
        let faults = match cut_open {
            None if self.loaded && !self.pool.array && !self.pool.flash && rng.one_in(16) => vec![Fault::full()],
            None => self.plan.faults(rng, self.tier.is_some(), self.created),
            Some(_) => Vec::new(),
        };
        let goal = Goal { commits, ending, patient: !rng.one_in(8) };
        let mut wish = Wish { goal: Some(goal), cut_open, faults, ..Wish::verify() };
        if self.created && !self.half_made && wish.cut_open.is_none() && wish.faults.is_empty() {
            match rng.below(40) {
                // (In a directory the log says first that the array is made anew; flash is erased before it does.)
                0..=1 if !self.pool.array && !self.pool.flash => {
                    wish.recreate = true;
                    wish.cut_open = rng.one_in(2).then(|| rng.between(1, 60));
                }
                2..=13 => wish.panic = Some(Panic::draw(rng)),
                _ => {}
            }
        }
        wish
    }

    fn options(&self) -> Options {
        let options = Options {
            cache_bytes: self.plan.cache_bytes,
            snapshot_disk_bytes: self.plan.snapshot_disk,
            pool_frames: self.plan.frames as usize,
            cleaners: self.plan.cleaners,
            async_delay: Duration::from_millis(self.plan.async_delay_ms),
            lock_timeout: None,
            recovery_bound: Duration::from_millis(self.plan.recovery_bound_ms),
            log_max_bytes: self.plan.log_max_bytes,
            log_idle_checkpoints: 1 + self.plan.clients % 3,
            detect_lost_writes: self.plan.detect_lost_writes(self.lives),
            // Never, always, or now and then.
            page_images: !self.may_leave_images
                || (self.plan.seed + self.lives * (self.plan.seed % 2)).is_multiple_of(3),
            tier: self.tier.as_ref().map_or(TierOptions::default(), |t| t.options(&self.plan, self.lives)),
            // Extents move between two writes of the clients.
            array: KeeperOptions {
                rate: 1 << 40,
                window: Duration::ZERO,
                again: Duration::from_micros(200),
                ..KeeperOptions::default()
            },
            ..Options::default()
        };
        self.pool.settle(&self.plan, options)
    }

    /// One life, from opening to the power cut after it.
    pub(super) fn live(&mut self, wish: Wish) -> Result<(), String> {
        let torn = self.torn;
        self.lives += 1;
        self.totals.add("lives", 1);
        let supply = self.machine.supply.clone();
        let trap = wish.panic.map(Panic::trap);
        let parts = (self.machine.clone(), self.backups.clone(), trap.clone());
        let shared = Shared::new(self.plan.clone(), parts, self.trace.clone(), self.next_id);
        if let Some(op) = wish.cut_open {
            supply.cut_at(supply.ops() + op, self.rng.next_u64());
        }
        let left = Left::new();
        let orders = Orders {
            machine: self.machine.clone(),
            layout: Layout {
                page_size: self.plan.page_size,
                log_bytes: self.plan.log_bytes,
                fast_bytes: self.tier.as_ref().map_or(0, |t| t.fast_bytes),
                ..Layout::default()
            },
            options: Options { faults: Faults::from(self.broken).with_trap(trap), ..self.options() },
            create: !self.created,
            recreate: wish.recreate,
            half_made: self.half_made,
            load: !self.loaded,
            goal: wish.goal,
            faults: wish.faults.clone(),
            panic: wish.panic,
            disarm: wish.cut_open.is_some() && !wish.recreate,
            rng: self.rng.fork(),
        };
        self.trace.event(|| {
            let Wish { goal, panic, recreate, .. } = &wish;
            format!("life {}: {goal:?}, {panic:?}, made anew: {recreate}", self.lives)
        });
        let crashes = self.crashes;
        self.in_domain(orders, &shared, &left)?;
        if wish.recreate && wish.cut_open.is_some() && self.crashes > crashes {
            self.totals.add("cuts while that is made, or right after", 1);
        }
        let healed = left.lock().settled.is_some();
        self.totals.add("torn pages healed", if healed { torn } else { 0 });
        self.after(wish, &shared, &left)
    }

    /// Runs the life in a fresh domain and returns when the power is off and the domain is gone.
    fn in_domain(&mut self, orders: Orders, shared: &Arc<Shared>, left: &Arc<Mutex<Left>>) -> Result<(), String> {
        let supply = self.machine.supply.clone();
        let wake = shared.clone();
        supply.on_cut(move || wake.wake.set());
        let domain = Domain::new(format!("life {}", self.lives));
        let (theirs, leaves, pending) = (shared.clone(), left.clone(), self.pending.clone());
        let thread = domain.spawn("life", move || {
            life::live(orders, &theirs, &leaves, &pending);
            // After the last handle of this thread.
            let holder = leaves.lock().holder.take();
            drop(holder);
            theirs.wake.set();
        });
        shared.wake.wait();
        let dropped = left.lock().phase == Phase::Dropped;
        if dropped && supply.is_on() && shared.first_wrong().is_none() {
            self.totals.add("dropped without a close", 1);
            self.machine.heal();
            supply.on_cut(|| {});
            self.ghosts.push((domain, thread));
            self.torn = 0;
            return Ok(());
        }
        // A finding sets the event too; the life may still be running.
        let cut = !supply.is_on();
        if !cut {
            supply.cut(self.rng.next_u64());
        }
        self.trace.event(|| format!("power {}: {:?}", if cut { "cut" } else { "off" }, supply.last_cut()));
        domain.power_cut();
        self.ghosts.iter().for_each(|(domain, _)| domain.power_cut());
        if let Some(near) = &self.machine.near {
            let what = near.host_is_off(self.lives);
            self.totals.add(what, u64::from(cut));
        }
        varve_rt::sim::excuse_panics(panics::is_ordered);
        if let Some(what) = self.machine.fences.written_after_the_end() {
            return Err(format!("a database whose last handle was dropped writes: {what}"));
        }
        self.machine.heal();
        self.machine.fences.forget();
        supply.cut_at(0, 0);
        // The callback holds what holds the supply: without this no simulated machine would ever be freed.
        supply.on_cut(|| {});
        supply.restore();
        for thread in self.ghosts.drain(..).map(|(_, thread)| thread).chain([thread]) {
            match thread.join() {
                Err(panicked) if !panicked.power_cut => {
                    self.panicked = true;
                    return Err(panicked.to_string());
                }
                _ => {}
            }
        }
        let report = supply.last_cut();
        self.torn = self.machine.torn_pages(self.plan.page_size);
        self.totals.add("sectors lost", report.lost);
        self.totals.add("sectors reordered", report.reordered);
        self.totals.add("writes torn", report.torn_writes);
        if cut {
            self.crashes += 1;
            self.totals.add("crashes", 1);
        }
        Ok(())
    }

    /// Takes stock of an ended life.
    fn after(&mut self, wish: Wish, shared: &Shared, left: &Mutex<Left>) -> Result<(), String> {
        let mut left = left.lock();
        if let Some(db) = left.db.take() {
            super::count::stats(&db.stats(), shared);
        }
        let commits = shared.commits();
        let base_id = shared.first_id();
        let (txs, next_id, totals) = shared.close_book();
        self.totals.merge(&totals);
        self.totals.struck.merge(&self.machine.struck());
        if shared.first_damage().is_some() {
            self.outcome = Some(Outcome::AtRead);
        }
        if let Some(what) = shared.first_wrong() {
            if left.damaged && self.machine.falsified() > 0 {
                self.outcome = Some(Outcome::AtCheck);
            }
            return Err(what);
        }
        varve_rt::sim::note(commits ^ next_id << 32);
        if let Some(panic) = wish.panic.filter(|_| shared.has_panicked()) {
            self.totals.add(panic.count(), 1);
        }
        self.half_made = left.phase == Phase::Opening && (self.half_made || wish.recreate);
        if left.remade {
            (self.loaded, self.backups) = (false, Backups::new());
            self.totals.add("made over another database", 1);
        }
        let unsettled = left.settled.is_none() && self.pending.lock().is_some();
        if left.phase == Phase::Opening || unsettled {
            return self.failed_open(&left, shared.has_failed());
        }
        self.created = true;
        self.loaded |= left.loaded;
        self.next_id = next_id;
        if let Some(recovery) = left.recovery.take()
            && !recovery.clean
        {
            self.recovery_ops = left.open_ops;
            super::count::recovery(&recovery, &mut self.totals);
        }
        let base = match left.settled.take() {
            Some(settled) => {
                self.totals.add("in-flight commits that survived", settled.in_flight);
                self.totals.add("unacknowledged or lazy commits lost", settled.lost);
                settled.state
            }
            None => State::new(),
        };
        if left.loaded || wish.goal.is_some() {
            self.commits += commits;
        }
        self.clean = left.phase == Phase::Closed;
        let kept = match left.phase {
            Phase::Closed => {
                self.totals.add("clean closes", 1);
                Kept::All
            }
            Phase::Stopped => {
                self.totals.add("poisoned lives", 1);
                Kept::Sync
            }
            _ => Kept::Sync,
        };
        *self.pending.lock() = Some(Pending {
            base,
            txs,
            kept,
            first_id: base_id,
            own: shared.all_own(),
            restored: shared.all_restored(),
        });
        Ok(())
    }

    /// The database did not come to be open: the power went, or a device failed.
    fn failed_open(&mut self, left: &Left, failed: bool) -> Result<(), String> {
        let error = match &left.open_error {
            Some(error) if !super::judge::is_power_loss(error) => error,
            _ => {
                if self.created && !self.clean && !self.half_made {
                    self.in_recovery += 1;
                    self.totals.add("crashes inside recovery", 1);
                }
                return Ok(());
            }
        };
        use varve::Error;
        let device = matches!(error, Error::Io(_) | Error::NoSpace(_) | Error::Volume(_) | Error::Poisoned(_));
        if failed && device {
            self.totals.add("errors seen by clients", 1);
            return Ok(());
        }
        if self.machine.falsified() > 0 && super::judge::is_damage(error) {
            self.outcome = Some(Outcome::AtOpening);
        }
        Err(format!("open failed: {error}"))
    }
}
