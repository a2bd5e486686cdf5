//! The simulated world: threads are stackful coroutines on one OS thread, under a seeded scheduler with a virtual
//! clock that jumps to the next event when everyone waits.
//!
//! This file is the surface ([`crate::sim`] shows it) and the hooks that the primitives call. `scheduler` holds the
//! state and who runs next, `record` what it knows of a thread, `waits` parking and sleeping, `host` modelled machines,
//! `cores` their processors, `domain` power cuts, `report` what a stuck simulation says, `lock_waits` where locks were
//! waited for, `hook` what a panic says, `stack` stacks and their overflow.
//!
//! Invariants: a simulation lives on the OS thread that called [`run`]; several may run at once on different OS
//! threads. Nothing in here holds a borrow of the world's state across a switch or a callback.

mod cores;
mod domain;
mod hook;
mod host;
mod lock_waits;
mod record;
mod report;
mod scheduler;
mod stack;
mod waits;

pub use host::{HostConfig, HostUse};
pub use lock_waits::LockWaits;
pub use report::{Failure, StuckReport, Waiting};

pub(crate) use domain::{cut_domain, is_dead_domain, new_domain, refuses_spawn, unwind_if_possible};
pub(crate) use hook::panicked;
pub(crate) use host::{current_host, host_lock_waits, host_use, new_host};
pub(crate) use scheduler::{Place, ThreadId, joined, spawn};
pub(crate) use waits::{park, sleep, spin, unpark, yield_now};

use crate::cost::{Cost, CpuCosts, CpuUse};
use crate::instant::Instant;
use crate::random::splitmix;
use scheduler::World;
use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What one thread's [`Local`](crate::Local)s hold, by slot. Boxed, so that references survive the growth of the table.
pub(crate) type Table = Vec<Option<Box<dyn Any>>>;

/// How to run a simulation.
#[derive(Clone, Debug)]
pub struct Config {
    /// Everything random in the run follows from it.
    pub seed: u64,
    /// Explore: also switch threads at lock and atomic boundaries, and now and then hold a thread back.
    pub chaos: bool,
    /// Cores of the first host that [`compute`](crate::compute) occupies; [`sim::Host`](crate::sim::Host) adds others.
    pub cores: usize,
    /// Stack bytes of each thread; `None`: [`stack_size`](crate::stack_size).
    pub stack_size: Option<usize>,
    /// CPU time charged, one at a time per lock, for taking a lock that was last taken on another modelled core.
    pub lock_handoff: Duration,
    /// CPU time charged besides, in the same way, when what a lock guards was changed on another modelled core, or is
    /// taken to be changed while other cores have read it: its cache lines follow the lock.
    pub lock_data: Duration,
    /// What the engine's work costs on the modelled host; see [`charge`](crate::charge). Zero: no time.
    pub costs: CpuCosts,
    /// How far a thread may run ahead of the clock before it settles its charges at a lock or unlock; zero: not at all.
    /// Waits, sends, I/O and locks that several threads want always settle. See `docs/host.md` for what it blurs; it
    /// saves most switches.
    pub slack: Duration,
    /// A thread that computes longer than this lets a waiting one have its core.
    pub quantum: Duration,
    /// When only daemons have run for this long, and nobody else has a time to wait for, the simulation is stuck.
    pub patience: Duration,
    /// The run fails when virtual time passes this.
    pub limit: Option<Duration>,
    /// Print every switch on stderr.
    pub trace: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 0,
            chaos: false,
            cores: 8,
            stack_size: None,
            lock_handoff: Duration::ZERO,
            lock_data: Duration::ZERO,
            costs: CpuCosts::default(),
            slack: Duration::ZERO,
            quantum: Duration::from_millis(4),
            patience: Duration::from_secs(60),
            limit: None,
            trace: false,
        }
    }
}

/// What a simulation came to.
#[must_use = "a simulation that failed tells it by its outcome alone: `unwrap` it"]
#[derive(Debug)]
pub struct Outcome<T> {
    /// The seed it ran with.
    pub seed: u64,
    /// The value of the main closure, or why there is none.
    pub result: Result<T, Failure>,
    /// A hash over every (time, thread, event) of the run and everything given to [`note`]: equal for equal runs.
    pub hash: u64,
    /// Virtual time passed.
    pub time: Duration,
    /// Switches between threads.
    pub switches: u64,
    /// Processor time by what it was spent on, for all that the hosts' cost tables charge.
    pub cpu: CpuUse,
    /// The same by host, the first one first.
    pub hosts: Vec<HostUse>,
}

impl<T> Outcome<T> {
    /// The value; panics with the seed and the failure when there is none. For tests.
    #[track_caller]
    pub fn unwrap(self) -> T {
        match self.result {
            Ok(value) => value,
            Err(failure) => panic!("simulation with seed {} failed: {failure}", self.seed),
        }
    }
}

/// Runs `main` as the first thread of a new simulation on the calling OS thread, until it returns. Threads that are
/// left then are unwound as by a power cut. A panic of a thread that nobody joined makes the run a failure.
///
/// Panics when called inside a simulation.
pub fn run<T>(config: Config, main: impl FnOnce() -> T) -> Outcome<T> {
    scheduler::run(config, main)
}

/// Folds `x` into the running hash: for devices and tests, so that equal hashes mean equal input and output too.
/// Nothing outside a simulation.
pub fn note(x: u64) {
    if let Some(w) = world() {
        w.note(x);
    }
}

/// Panics of threads that nobody joined, and of which `of` says that they were meant: they do not make the run a
/// failure. How many those are.
pub fn excuse_panics(of: impl Fn(&crate::Panicked) -> bool) -> usize {
    let Some(w) = world() else { return 0 };
    let panics = &mut w.state.borrow_mut().panics;
    let before = panics.len();
    panics.retain(|_, panicked| !of(panicked));
    before - panics.len()
}

/// Does something that is no part of what is simulated, as printing is: it costs nothing, and no other thread runs
/// meanwhile. It must not wait.
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    let _quiet = Quiet::new();
    f()
}

/// Settles the calling thread's CPU charges now, as is done before every lock, unlock, wait and send. Devices call it
/// before they look at the clock. Nothing outside a simulation.
pub fn settle() {
    before_send();
}

/// Names `thing` (a lock, condition, event..) in reports of a stuck simulation. Nothing outside a simulation.
pub fn name<T: ?Sized>(thing: &T, name: impl Into<String>) {
    if let Some(w) = world() {
        let start = std::ptr::from_ref(thing).cast::<u8>() as usize;
        w.state.borrow_mut().names.insert(start, (size_of_val(thing), name.into()));
    }
}

/// The seed of the simulation the caller is in.
pub fn seed() -> Option<u64> {
    world().map(|w| w.config.seed)
}

/// Simulations that exist in this process, and those of them with chaos.
static SIMULATIONS: AtomicUsize = AtomicUsize::new(0);
static CHAOTIC: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The simulation running on this OS thread.
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
}

/// The simulation the caller is in.
#[inline]
fn world() -> Option<&'static World> {
    if SIMULATIONS.load(Relaxed) == 0 {
        return None;
    }
    // SAFETY: the pointer is null or the world that `run` keeps alive, and in place, until it clears the pointer; the
    // references made here do not outlive the call that made them, which happens within that run.
    unsafe { WORLD.with(Cell::get).as_ref() }
}

#[inline]
pub(crate) fn any() -> bool {
    SIMULATIONS.load(Relaxed) != 0
}

#[inline]
pub(crate) fn any_chaos() -> bool {
    CHAOTIC.load(Relaxed) != 0
}

/// The caller is a simulated thread.
#[inline]
pub(crate) fn active() -> bool {
    world().is_some()
}

/// A place inside a primitive's slow path where another thread may change its word: a chaos point, so that chaotic
/// simulations explore the interleavings of the lock algorithms themselves.
#[inline]
pub(crate) fn race_point() {
    if any_chaos() {
        chaos_point();
    }
}

#[cold]
pub(crate) fn chaos_point() {
    if let Some(w) = world() {
        w.chaos_point();
    }
}

pub(crate) fn virtual_now() -> Option<Instant> {
    world().map(|w| Instant::from_nanos(w.local_now()))
}

pub(crate) fn next_seed() -> Option<u64> {
    world().map(|w| {
        let seeds = &w.current().seeds;
        let mut state = seeds.get();
        let seed = splitmix(&mut state);
        seeds.set(state);
        seed
    })
}

pub(crate) fn dying() -> bool {
    world().is_some_and(|w| w.current().dying.get())
}

/// Whether the unwinding that is under way on this OS thread is the calling thread's own, by a panic.
pub(crate) fn unwinds_by_panic() -> bool {
    world().is_none_or(|w| {
        let me = w.current();
        !me.dying.get() && (w.suspended_unwinding.get() == 0 || me.unwinding.get())
    })
}

pub(crate) fn current_id() -> Option<ThreadId> {
    world().map(|w| w.current().id)
}

pub(crate) fn current_name() -> Option<String> {
    world().map(|w| w.current().name.clone())
}

/// Adds to the calling thread's CPU charges.
pub(crate) fn compute(cpu: Duration) {
    if let Some(w) = world() {
        w.charge(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Adds to the calling thread's charges as the host's table says; never waits.
#[inline(never)]
pub(crate) fn charge(cost: Cost, n: u64) {
    if let Some(w) = world()
        && w.current().host.costed
    {
        w.charge_cost(cost, n);
    }
}

/// Whether the calling simulated thread is on a host whose work takes time; false on an OS thread.
pub fn costs_modelled() -> bool {
    world().is_some_and(|w| w.current().host.costed)
}

/// The table of the calling simulated thread's host; all zero on an OS thread.
pub fn costs() -> CpuCosts {
    world().map_or_else(CpuCosts::default, |w| w.current().host.costs.clone())
}

/// What the calling simulated thread was charged so far, without hand-offs and spins; `None` on an OS thread.
pub fn thread_cpu() -> Option<CpuUse> {
    world().map(|w| w.current().cpu.borrow().clone())
}

/// Time that the cores of the calling thread's host were occupied so far, summed over cores; `None` on an OS thread.
pub fn core_time() -> Option<Duration> {
    world().map(|w| Duration::from_nanos(w.current().host.used.borrow().core_ns))
}

/// Waits for locks on the calling thread's host that ended so far, by the source line that asked for the lock, in the
/// order of lines; empty on an OS thread.
pub fn lock_waits() -> Vec<LockWaits> {
    world().map_or_else(Vec::new, |w| w.current().host.lock_waits.borrow().all())
}

/// The number of the calling simulated thread, in order of spawning.
pub fn thread_number() -> Option<u32> {
    world().map(|w| w.current().id)
}

pub(crate) fn before_send() {
    if let Some(w) = world() {
        w.settle();
        if w.config.chaos {
            w.chaos_point();
        }
    }
}

/// Before the lock at `key` is taken or released.
pub(crate) fn lock_boundary(key: usize) {
    if let Some(w) = world() {
        w.settle_lax(key);
        if w.config.chaos {
            w.chaos_point();
        }
    }
}

/// Books the lock at `key` to the calling thread. `fresh`: no simulated thread has taken it before.
pub(crate) fn after_lock(key: usize, exclusive: bool, fresh: bool) {
    if let Some(w) = world() {
        w.took_lock(key, exclusive, fresh);
    }
}

pub(crate) fn released(key: usize, exclusive: bool) {
    if let Some(w) = world() {
        w.released_lock(key, exclusive);
    }
}

/// Lends the lock at `key`, which someone holds, to the calling thread, which is dying: it runs its destructors while
/// every other thread stands still, and the lock's word keeps saying what is true for the others.
pub(crate) fn ghost_lock(key: usize) {
    if let Some(w) = world() {
        w.current().ghosts.borrow_mut().push(key);
    }
}

/// Gives a lent lock back; false when the lock at `key` was not lent to the calling thread.
pub(crate) fn ghost_unlock(key: usize) -> bool {
    let Some(w) = world() else { return false };
    let mut ghosts = w.current().ghosts.borrow_mut();
    match ghosts.iter().rposition(|&g| g == key) {
        Some(i) => {
            ghosts.remove(i);
            true
        }
        None => false,
    }
}

pub(crate) fn is_ghost(key: usize) -> bool {
    world().is_some_and(|w| w.current().ghosts.borrow().contains(&key))
}

/// The calling simulated thread's locals; `None` on an OS thread.
pub(crate) fn local_table<R>(f: impl FnOnce(&mut Table) -> R) -> Option<R> {
    world().map(|w| f(&mut w.current().locals.borrow_mut()))
}

/// While it lives, settling and chaos do not switch away from the calling simulated thread.
pub(crate) struct Quiet;

impl Quiet {
    pub(crate) fn new() -> Quiet {
        if let Some(w) = world() {
            w.quiet.set(w.quiet.get() + 1);
        }
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(w) = world() {
            w.quiet.set(w.quiet.get() - 1);
        }
    }
}
