//! Threads in both worlds.
//!
//! Invariant: the result is there before `done` is set, and is taken once. `RUNNING` counts a thread from before it is
//! started until its body has returned.

use crate::ended::{Panicked, PowerCut};
use crate::event::Event;
use crate::mutex::Mutex;
use crate::stack_size::stack_size;
use crate::wait::What;
use crate::world::{self, Place};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of the operating system that were started here and have not ended.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How many threads of the operating system were started here and have not ended. Reads a number and nothing else, so
/// it may be asked in a handler of `fork`.
pub fn running() -> usize {
    RUNNING.load(Ordering::Acquire)
}

/// A thread, as long as it is counted.
struct Counted;

impl Counted {
    fn new() -> Counted {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let before = RUNNING.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "it was counted");
    }
}

/// Where a thread leaves its result.
pub(crate) struct Packet<T> {
    pub(crate) result: Mutex<Option<Result<T, Panicked>>>,
    pub(crate) done: Event,
}

/// A started thread. Dropping the handle lets the thread run on its own.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
    os: Option<std::thread::JoinHandle<()>>,
    sim: Option<world::ThreadId>,
    name: String,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread to end and returns its result.
    #[track_caller]
    pub fn join(self) -> Result<T, Panicked> {
        self.packet.done.wait_inner(None, What::Join, Location::caller());
        if let Some(os) = self.os {
            // The result is there; this waits for the thread's locals to be dropped.
            let _ = os.join();
        }
        if let Some(id) = self.sim {
            world::joined(id);
        }
        let result = self.packet.result.lock().take();
        // No result: the caller is itself dying and did not wait.
        result.unwrap_or_else(|| {
            Err(Panicked { thread: self.name.clone(), message: "not waited for".into(), power_cut: true })
        })
    }

    /// True when the thread has ended and `join` will not wait.
    pub fn is_finished(&self) -> bool {
        self.packet.done.is_set()
    }

    /// Whether the calling thread is this one, which cannot wait for itself.
    pub fn is_current(&self) -> bool {
        match (&self.os, self.sim) {
            (Some(os), _) => os.thread().id() == std::thread::current().id(),
            (None, id) => id.is_some() && id == world::current_id(),
        }
    }

    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Starts a thread. In a simulation it is a coroutine of the caller's power-cut domain and on the caller's host.
///
/// Panics when the operating system refuses a new thread.
pub fn spawn<T: Send + 'static>(name: impl Into<String>, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    started(try_spawn(name, f))
}

/// As [`spawn`], with an error when the operating system refuses a new thread.
pub fn try_spawn<T: Send + 'static>(
    name: impl Into<String>,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    spawn_kind(name.into(), false, Place::default(), f)
}

/// Starts a service thread: as [`spawn`], but in a simulation it does not count as progress when looking for deadlocks
/// (a cleaner that wakes each second must not hide that everyone else is stuck).
pub fn spawn_daemon<T: Send + 'static>(
    name: impl Into<String>,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    started(try_spawn_daemon(name, f))
}

/// As [`spawn_daemon`], with an error when the operating system refuses a new thread.
pub fn try_spawn_daemon<T: Send + 'static>(
    name: impl Into<String>,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    spawn_kind(name.into(), true, Place::default(), f)
}

pub(crate) fn started<T>(thread: std::io::Result<JoinHandle<T>>) -> JoinHandle<T> {
    thread.unwrap_or_else(|e| panic!("{e}; lower the number of threads"))
}

pub(crate) fn spawn_kind<T: Send + 'static>(
    name: String,
    daemon: bool,
    place: Place,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let packet = Arc::new(Packet { result: Mutex::new(None), done: Event::new() });
    let theirs = packet.clone();
    let thread = name.clone();
    let refused = world::active() && world::refuses_spawn(place);
    let body = move |alive: bool| {
        if !alive {
            drop(f);
            let end = world::panicked(&thread, &PowerCut);
            *theirs.result.lock() = Some(Err(end));
            theirs.done.set();
            return None;
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let failure = result.as_ref().err().map(|payload| world::panicked(&thread, &**payload));
        let result = match result {
            Ok(value) => Ok(value),
            Err(_) => Err(failure.clone().expect("set for a panic")),
        };
        *theirs.result.lock() = Some(result);
        theirs.done.set();
        failure
    };
    if refused {
        body(false);
        return Ok(JoinHandle { packet, os: None, sim: None, name });
    }
    if world::active() {
        let id = world::spawn(name.clone(), daemon, place, Box::new(body));
        return Ok(JoinHandle { packet, os: None, sim: Some(id), name });
    }
    let counted = Counted::new();
    let os = std::thread::Builder::new()
        .name(name.clone())
        .stack_size(stack_size())
        .spawn(move || {
            let _counted = counted;
            body(true);
        })
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot start thread '{name}': {e}")))?;
    Ok(JoinHandle { packet, os: Some(os), sim: None, name })
}

/// Lets other threads run.
pub fn yield_now() {
    if !world::yield_now() {
        std::thread::yield_now();
    }
}

/// Threads that the machine runs at the same time, as far as this process may use it; in a simulation without bound, so
/// that nothing depends on the machine.
pub fn parallelism() -> usize {
    if in_simulation() { usize::MAX } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// True inside a simulation.
#[inline]
pub fn in_simulation() -> bool {
    world::active()
}

/// True while the calling simulated thread is being unwound after a power cut: locks are granted, waits return.
/// Always false on an OS thread.
#[inline]
pub fn dying() -> bool {
    world::dying()
}

/// True while a panic unwinds the calling thread. A power cut is no panic, nor is a panic of another simulated thread.
pub fn panicking() -> bool {
    std::thread::panicking() && world::unwinds_by_panic()
}

/// Runs `f`. A panic ends it, and nothing else: its message comes back. A power cut ends the calling thread as ever.
///
/// For who serves others and has to tell them: what `f` was changing is as the panic left it.
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> Result<T, Panicked> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).map_err(|payload| {
        if dying() {
            std::panic::resume_unwind(payload);
        }
        world::panicked(&current_name(), &*payload)
    })
}

/// The calling thread's name; empty when it has none.
pub fn current_name() -> String {
    world::current_name().unwrap_or_else(|| std::thread::current().name().unwrap_or("").to_string())
}
