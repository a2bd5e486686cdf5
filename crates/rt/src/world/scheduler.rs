//! The state of a simulation, its threads and its scheduler.
//!
//! Everything here is touched by one OS thread only. Threads are reached through raw pointers to records whose fields
//! are cells, valid from `spawn` until the record is freed at the end of the run of that thread.

use super::cores::{Cores, PS, Word};
use super::host::{HostUse, Machine};
use super::record::{Status, Thread};
use super::report::{Failure, StuckReport};
use super::stack;
use super::{CHAOTIC, Config, Outcome, SIMULATIONS, WORLD};
use crate::cost::CpuUse;
use crate::ended::Panicked;
use crate::hash::{HashMap, fold};
use crate::random::{Rng, splitmix};
use crate::wait::{Parked, What};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Identity of a simulated thread: its number in order of spawning; 0 is the main one.
pub(crate) type ThreadId = u32;

/// Where a thread is started, as far as not where its starter is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    /// Power-cut domain.
    pub(crate) domain: Option<u32>,
    /// Modelled host.
    pub(crate) host: Option<u32>,
}

/// What a simulated thread runs; told whether it is alive (a dying one only drops its closure).
pub(crate) type Body = Box<dyn FnOnce(bool) -> Option<Panicked>>;

pub(super) type Co = Coroutine<(), (), (), DefaultStack>;

/// A timer: time, order of setting, thread, epoch of its wait.
type Timer = Reverse<(u64, u64, ThreadId, u64)>;

/// The parts of the world that change under a short borrow.
pub(super) struct State {
    pub(super) threads: Vec<*const Thread>,
    pub(super) ready: Vec<ThreadId>,
    pub(super) timers: BinaryHeap<Timer>,
    pub(super) timer_seq: u64,
    /// Waits with a timer that is still of use.
    pub(super) timers_live: usize,
    /// Waiters by key, in order, with their park token.
    pub(super) queues: HashMap<usize, VecDeque<(ThreadId, usize)>>,
    pub(super) spare: Vec<VecDeque<(ThreadId, usize)>>,
    /// Reused by `unpark`.
    pub(super) woken: Vec<ThreadId>,
    pub(super) rng: Rng,
    /// By host.
    pub(super) cores: Vec<Cores>,
    /// Where the words of locks are.
    pub(super) words: HashMap<usize, Word>,
    /// Exclusive holders of locks, for reports.
    pub(super) owners: HashMap<usize, ThreadId>,
    pub(super) names: BTreeMap<usize, (usize, String)>,
    /// Panics that nobody has joined.
    pub(super) panics: BTreeMap<ThreadId, Panicked>,
    /// Names of the power-cut domains and whether they are dead; 0 is the root.
    pub(super) domains: Vec<(String, bool)>,
    /// Virtual time at which a thread that is not a daemon last ran.
    pub(super) progress: u64,
}

/// A simulation.
pub(crate) struct World {
    pub(super) config: Config,
    /// Charges, ps, at which a boundary of a lock settles.
    pub(super) lax: u64,
    /// Words of locks are followed: a slack needs it, and hosts on which their moves cost something.
    pub(super) words: Cell<bool>,
    /// The modelled hosts; 0 is the one that [`Config`] describes.
    pub(super) hosts: RefCell<Vec<Rc<Machine>>>,
    pub(super) clock: Cell<u64>,
    pub(super) hash: Cell<u64>,
    pub(super) switches: Cell<u64>,
    /// The running thread; null in the scheduler.
    pub(super) current: Cell<*const Thread>,
    pub(super) next: Cell<Option<ThreadId>>,
    main_ended: Cell<bool>,
    pub(super) quiet: Cell<u32>,
    /// Threads that wait in the middle of unwinding.
    pub(super) suspended_unwinding: Cell<u32>,
    /// One in so many chaos points switches; every so many switches a thread is held back, at most this long.
    pub(super) chaos_rate: u64,
    pub(super) chaos_hold: u64,
    /// Draws of the chaos points.
    pub(super) dice: RefCell<Rng>,
    pub(super) state: RefCell<State>,
    pub(super) stack_size: usize,
}

/// Runs a simulation; see [`super::run`].
pub(super) fn run<T>(config: Config, main: impl FnOnce() -> T) -> Outcome<T> {
    assert!(WORLD.with(Cell::get).is_null(), "a simulation cannot be started inside another");
    stack::install_overflow_handler();
    super::hook::install();
    let world = World::new(config);
    let host = world.add_host(world.config.host());
    let chaos = usize::from(world.config.chaos);
    SIMULATIONS.fetch_add(1, Relaxed);
    CHAOTIC.fetch_add(chaos, Relaxed);
    WORLD.with(|w| w.set(&raw const world));

    let mut value: Option<Result<T, Panicked>> = None;
    let slot = &mut value;
    let body: Box<dyn FnOnce(bool) -> Option<Panicked> + '_> = Box::new(move |alive| {
        if !alive {
            return None;
        }
        let result = catch_unwind(AssertUnwindSafe(main)).map_err(|payload| super::panicked("main", &*payload));
        let failure = result.as_ref().err().cloned();
        *slot = Some(result);
        failure
    });
    // SAFETY: the body runs, or is dropped, on the main coroutine, and every coroutine has ended when `drive` returns,
    // before anything the body borrows goes away.
    let body: Body = unsafe { std::mem::transmute(body) };
    world.spawn("main".into(), false, (0, host), body);
    let stuck = world.drive();

    WORLD.with(|w| w.set(std::ptr::null()));
    CHAOTIC.fetch_sub(chaos, Relaxed);
    SIMULATIONS.fetch_sub(1, Relaxed);
    world.outcome(value, stuck)
}

/// Domain and host are the caller's unless `place` names others.
pub(crate) fn spawn(name: String, daemon: bool, place: Place, body: Body) -> ThreadId {
    let w = super::world().expect("called inside a simulation");
    w.settle();
    let domain = place.domain.unwrap_or(w.current().domain);
    let host = place.host.map_or_else(|| w.current().host.clone(), |id| w.host(id));
    w.spawn(name, daemon, (domain, host), body)
}

/// Somebody has the result of thread `id`, so its panic is not lost.
pub(crate) fn joined(id: ThreadId) {
    if let Some(w) = super::world() {
        w.state.borrow_mut().panics.remove(&id);
    }
}

impl World {
    fn new(config: Config) -> World {
        let mut rng = Rng::from_seed(config.seed ^ 0x7661_7276_655f_7274);
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let slack = ns(config.slack);
        let chaos_rate = [2, 4, 16, 64][rng.below(4) as usize];
        let chaos_hold = [0, 2_000, 100_000, 5_000_000][rng.below(4) as usize];
        World {
            clock: Cell::new(0),
            hash: Cell::new(fold(0x5641, config.seed)),
            switches: Cell::new(0),
            current: Cell::new(std::ptr::null()),
            next: Cell::new(None),
            main_ended: Cell::new(false),
            quiet: Cell::new(0),
            suspended_unwinding: Cell::new(0),
            chaos_rate,
            chaos_hold,
            dice: RefCell::new(rng.fork()),
            stack_size: config.stack_size.unwrap_or_else(crate::stack_size),
            state: RefCell::new(State {
                threads: Vec::new(),
                ready: Vec::new(),
                timers: BinaryHeap::new(),
                timer_seq: 0,
                timers_live: 0,
                queues: HashMap::default(),
                spare: Vec::new(),
                woken: Vec::new(),
                rng,
                cores: Vec::new(),
                words: HashMap::default(),
                owners: HashMap::default(),
                names: BTreeMap::new(),
                panics: BTreeMap::new(),
                domains: vec![("root".into(), false)],
                progress: 0,
            }),
            lax: slack.saturating_mul(PS).max(PS),
            words: Cell::new(slack > 0),
            hosts: RefCell::default(),
            config,
        }
    }

    /// The running thread.
    #[inline]
    pub(super) fn current(&self) -> &Thread {
        let t = self.current.get();
        assert!(!t.is_null(), "the scheduler itself used a primitive of the runtime");
        // SAFETY: set by `resume` to a live record, which is freed only after its coroutine has ended.
        unsafe { &*t }
    }

    /// A live thread.
    #[inline]
    pub(super) fn thread(&self, state: &State, id: ThreadId) -> &Thread {
        // SAFETY: callers pass ids of threads that have not ended; their records are in place until then.
        unsafe { &*state.threads[id as usize] }
    }

    /// Threads that have not ended, in order of spawning.
    pub(super) fn alive(&self) -> Vec<ThreadId> {
        let state = self.state.borrow();
        (0..state.threads.len() as ThreadId).filter(|&id| !state.threads[id as usize].is_null()).collect()
    }

    #[inline]
    pub(super) fn note(&self, x: u64) {
        self.hash.set(fold(self.hash.get(), x));
    }

    fn spawn(&self, name: String, daemon: bool, (domain, host): (u32, Rc<Machine>), body: Body) -> ThreadId {
        let stack = stack::take(self.stack_size);
        let stack_low = stack::low(&stack);
        let co = Co::with_stack(stack, move |yielder, ()| World::enter(yielder, body));
        let mut state = self.state.borrow_mut();
        let id = ThreadId::try_from(state.threads.len()).expect("fewer than 2^32 threads");
        let mut seeds = fold(self.config.seed, u64::from(id) + 1);
        splitmix(&mut seeds);
        let thread = Box::new(Thread {
            id,
            name,
            daemon,
            domain,
            host,
            status: Cell::new(Status::Ready),
            yielder: Cell::new(std::ptr::null()),
            co: UnsafeCell::new(Some(co)),
            stack_low,
            wait: Cell::new((What::Sleep, 0, None)),
            event: Cell::new(0),
            woken: Cell::new(None),
            epoch: Cell::new(0),
            timed: Cell::new(false),
            pending: Cell::new(0),
            core: Cell::new(usize::MAX),
            on_core: Cell::new(false),
            used: Cell::new(0),
            cpu: RefCell::default(),
            since: Cell::new(0),
            asleep: Cell::new(false),
            yields: Cell::new(0),
            seeds: Cell::new(seeds),
            locals: RefCell::new(Vec::new()),
            dying: Cell::new(false),
            unwinding: Cell::new(false),
            refused: Cell::new(0),
            ghosts: RefCell::new(Vec::new()),
            panic_place: RefCell::new(None),
        });
        state.threads.push(Box::into_raw(thread));
        state.ready.push(id);
        self.note(0x5350 ^ u64::from(id));
        id
    }

    /// The first frame of every coroutine.
    fn enter(yielder: &Yielder<(), ()>, body: Body) {
        let w = super::world().expect("resumed inside its simulation");
        let me = w.current();
        me.yielder.set(yielder);
        let alive = !me.dying.get();
        let end = catch_unwind(AssertUnwindSafe(|| {
            let failure = body(alive);
            loop {
                let locals = std::mem::take(&mut *me.locals.borrow_mut());
                if locals.is_empty() {
                    break;
                }
                drop(locals);
            }
            failure
        }));
        let failure = end.unwrap_or_else(|payload| Some(super::panicked(&me.name, &*payload)));
        if let Some(p) = failure
            && !p.power_cut
            && !me.dying.get()
        {
            w.state.borrow_mut().panics.insert(me.id, p);
        }
    }

    /// Resumes thread `id` until it switches away or ends. Called by the scheduler and by power cuts.
    pub(super) fn resume(&self, id: ThreadId) {
        let ptr = self.state.borrow().threads[id as usize];
        // SAFETY: `id` has not ended, so its record is in place; it is freed below, after its coroutine has ended.
        let thread = unsafe { &*ptr };
        // SAFETY: only `resume` touches the cell, and a thread that is being resumed is not resumed again before it
        // has switched away or ended (the scheduler picks suspended threads only).
        let co = unsafe { &mut *thread.co.get() };
        let before = self.current.replace(ptr);
        let result = co.as_mut().expect("a suspended thread has its coroutine").resume(());
        self.current.set(before);
        match result {
            CoroutineResult::Yield(()) => {}
            CoroutineResult::Return(()) => {
                let co = co.take().expect("just resumed");
                stack::give_back(self.stack_size, co.into_stack());
                if id == 0 {
                    self.main_ended.set(true);
                }
                let mut state = self.state.borrow_mut();
                self.leave_core(&mut state, thread);
                thread.host.used.borrow_mut().merge(&thread.cpu.borrow());
                state.threads[id as usize] = std::ptr::null();
                self.note(0x454e ^ u64::from(id));
                drop(state);
                // SAFETY: made by `Box::into_raw` in `spawn`, no longer in the table, and its coroutine has ended.
                drop(unsafe { Box::from_raw(ptr.cast_mut()) });
            }
        }
    }

    /// Runs threads until the main one ends or nobody can run; then unwinds what is left.
    fn drive(&self) -> Option<Failure> {
        self.next.set(self.pick().ok().flatten());
        let mut failure = None;
        while !self.main_ended.get() {
            match self.next.take() {
                Some(id) => self.resume(id),
                None => {
                    failure = Some(self.stuck());
                    break;
                }
            }
            if self.next.get().is_none() && !self.main_ended.get() {
                // The thread ended rather than switched: choose here.
                match self.pick() {
                    Ok(next) => self.next.set(next),
                    Err(f) => {
                        failure = Some(f);
                        break;
                    }
                }
            }
        }
        self.state.borrow_mut().domains.iter_mut().for_each(|d| d.1 = true);
        self.kill(self.alive());
        failure
    }

    fn outcome<T>(self, value: Option<Result<T, Panicked>>, stuck: Option<Failure>) -> Outcome<T> {
        let mut state = self.state.into_inner();
        let lost = state.panics.pop_first().map(|(_, p)| p);
        let result = match (stuck, value) {
            (Some(failure), _) => Err(failure),
            (None, Some(Err(p))) => Err(Failure::Panic(p)),
            (None, Some(Ok(value))) => lost.map_or(Ok(value), |p| Err(Failure::Panic(p))),
            (None, None) => unreachable!("the main thread ended without a result"),
        };
        let hosts: Vec<HostUse> = self.hosts.into_inner().iter().map(|host| host.told()).collect();
        Outcome {
            seed: self.config.seed,
            result,
            hash: self.hash.get(),
            time: Duration::from_nanos(self.clock.get()),
            switches: self.switches.get(),
            cpu: hosts.iter().fold(CpuUse::default(), |sum, host| sum.plus(&host.cpu)),
            hosts,
        }
    }

    /// Gives the processor to the thread the scheduler picks; returns when the caller is picked again. The caller has
    /// arranged for that (ready list, timer, queue).
    pub(super) fn switch(&self) {
        let me = self.current();
        assert!(!me.dying.get(), "a dying thread was about to wait");
        match self.pick() {
            Ok(Some(id)) if id == me.id => {
                me.status.set(Status::Running);
                return;
            }
            Ok(next) => self.next.set(next),
            // The scheduler looks again and reports.
            Err(_) => self.next.set(None),
        }
        let quiet = self.quiet.replace(0);
        let panicking = std::thread::panicking() && (self.suspended_unwinding.get() == 0 || me.unwinding.get());
        if panicking {
            me.unwinding.set(true);
            self.suspended_unwinding.set(self.suspended_unwinding.get() + 1);
        }
        // SAFETY: set when the coroutine was entered, and valid while it runs.
        unsafe { (*me.yielder.get()).suspend(()) };
        if panicking {
            self.suspended_unwinding.set(self.suspended_unwinding.get() - 1);
            if !me.dying.get() {
                me.unwinding.set(false);
            }
        }
        self.quiet.set(quiet);
        if !me.dying.get() {
            me.status.set(Status::Running);
        }
    }

    /// Chooses who runs next, letting the clock jump when nobody is ready. `None`: nobody ever will be.
    fn pick(&self) -> Result<Option<ThreadId>, Failure> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        while state.ready.is_empty() {
            if !self.fire_timers(state)? {
                return Ok(None);
            }
        }
        let n = state.ready.len();
        let i = if n == 1 { 0 } else { state.rng.below(n as u64) as usize };
        let id = state.ready.swap_remove(i);
        let thread = self.thread(state, id);
        if !thread.daemon {
            state.progress = self.clock.get();
        }
        self.switches.set(self.switches.get() + 1);
        self.note(self.clock.get().rotate_left(24) ^ (u64::from(id) << 4) ^ thread.event.get());
        if self.config.trace {
            let (what, _, _) = thread.wait.get();
            let ns = self.clock.get();
            eprintln!("{}.{:09} {} (after {})", ns / 1_000_000_000, ns % 1_000_000_000, thread.name, what.text());
        }
        Ok(Some(id))
    }

    /// Jumps to the earliest timer and makes its threads ready; false when there is none.
    fn fire_timers(&self, state: &mut State) -> Result<bool, Failure> {
        let mut fired = false;
        while let Some(&Reverse((at, _, id, epoch))) = state.timers.peek() {
            if fired && at > self.clock.get() {
                break;
            }
            if !self.timer_valid(state, id, epoch) {
                state.timers.pop();
                continue;
            }
            self.check_time(state, at)?;
            state.timers.pop();
            self.clock.set(self.clock.get().max(at));
            let thread = self.thread(state, id);
            thread.timed.set(false);
            state.timers_live -= 1;
            thread.woken.set(Some(Parked::TimedOut));
            thread.status.set(Status::Ready);
            state.ready.push(id);
            fired = true;
        }
        Ok(fired)
    }

    fn timer_valid(&self, state: &State, id: ThreadId, epoch: u64) -> bool {
        let ptr = state.threads[id as usize];
        if ptr.is_null() {
            return false;
        }
        let t = self.thread(state, id);
        t.epoch.get() == epoch && t.timed.get() && matches!(t.status.get(), Status::Waiting | Status::OnCore)
    }

    /// May the clock go to `at`? Not past the limit, and not on daemons' timers alone for ever.
    fn check_time(&self, state: &mut State, at: u64) -> Result<(), Failure> {
        if let Some(limit) = self.config.limit
            && u128::from(at) > limit.as_nanos()
        {
            return Err(Failure::TimeLimit(self.report(state)));
        }
        if u128::from(at.saturating_sub(state.progress)) > self.config.patience.as_nanos() {
            let hope = state.threads.iter().any(|&t| {
                // SAFETY: records in the table that are not null are in place.
                let t = unsafe { t.as_ref() };
                t.is_some_and(|t| !t.daemon && (t.timed.get() || t.status.get() == Status::CoreQueue))
            });
            if !hope {
                return Err(Failure::Deadlock(self.report(state)));
            }
            state.progress = at;
        }
        Ok(())
    }

    /// Arranges for the current thread's wait to end at `at`.
    pub(super) fn set_timer(&self, state: &mut State, me: &Thread, at: u64) {
        state.timer_seq += 1;
        state.timers_live += 1;
        me.timed.set(true);
        if state.timers.len() > 2 * state.timers_live + 1024 {
            let mut timers = std::mem::take(&mut state.timers);
            timers.retain(|&Reverse((_, _, id, epoch))| self.timer_valid(state, id, epoch));
            state.timers = timers;
        }
        state.timers.push(Reverse((at, state.timer_seq, me.id, me.epoch.get())));
    }

    /// Nobody else has anything to do up to and including `at`, so that the caller may just move the clock.
    pub(super) fn idle_until(&self, state: &State, me: &Thread, at: u64) -> bool {
        !me.daemon
            && state.ready.is_empty()
            && state.timers.peek().is_none_or(|Reverse(t)| t.0 > at)
            && self.config.limit.is_none_or(|l| u128::from(at) <= l.as_nanos())
    }

    /// Makes a waiting thread ready; it learns `how` its wait ended.
    pub(super) fn wake(&self, state: &mut State, id: ThreadId, how: Parked) {
        let t = self.thread(state, id);
        t.woken.set(Some(how));
        if t.timed.replace(false) {
            state.timers_live -= 1;
        }
        if matches!(t.status.get(), Status::Waiting | Status::CoreQueue) {
            t.status.set(Status::Ready);
            state.ready.push(id);
        }
    }

    fn stuck(&self) -> Failure {
        match self.pick() {
            Err(failure) => failure,
            Ok(_) => Failure::Deadlock(self.report(&self.state.borrow())),
        }
    }

    pub(super) fn report(&self, state: &State) -> StuckReport {
        StuckReport::new(self, state)
    }
}
