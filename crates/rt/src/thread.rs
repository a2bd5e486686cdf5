//! Threads in both worlds.

use crate::event::Event;
use crate::mutex::Mutex;
use crate::park::What;
use crate::sim;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Stack bytes of a new thread, in both worlds.
static STACK: AtomicUsize = AtomicUsize::new(1 << 20);

/// Sets the stack size, in bytes, of threads spawned from now on, in both worlds (at least 64 KiB; 1 MiB at the start).
/// Every stack ends in a guard page.
pub fn set_stack_size(bytes: usize) {
    STACK.store(bytes.max(64 << 10), Relaxed);
}

/// Stack bytes of new threads.
pub fn stack_size() -> usize {
    STACK.load(Relaxed)
}

/// How a thread failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Panicked {
    /// The thread's name.
    pub thread: String,
    /// The panic's message; in a simulation with the source line.
    pub message: String,
    /// The thread did not panic: a power cut of its simulated domain, or the end of the simulation, ended it.
    pub power_cut: bool,
}

impl Panicked {
    pub(crate) fn new(thread: &str, payload: &(dyn Any + Send)) -> Panicked {
        let power_cut = payload.is::<sim::PowerCut>();
        let message = if power_cut {
            "ended by a power cut".to_string()
        } else if let Some(s) = payload.downcast_ref::<&str>() {
            (*s).to_string()
        } else if let Some(s) = payload.downcast_ref::<String>() {
            s.clone()
        } else {
            "a panic without a message".to_string()
        };
        let message = match sim::panic_place() {
            Some(place) if !power_cut => format!("{message}, at {place}"),
            _ => message,
        };
        Panicked { thread: thread.to_string(), message, power_cut }
    }
}

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.power_cut {
            write!(f, "thread '{}' was ended by a power cut", self.thread)
        } else {
            write!(f, "thread '{}' panicked: {}", self.thread, self.message)
        }
    }
}

impl std::error::Error for Panicked {}

/// Where a thread leaves its result.
pub(crate) struct Packet<T> {
    pub(crate) result: Mutex<Option<Result<T, Panicked>>>,
    pub(crate) done: Event,
}

/// A started thread. Dropping the handle lets the thread run on its own.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
    os: Option<std::thread::JoinHandle<()>>,
    sim: Option<sim::ThreadId>,
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
            sim::joined(id);
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
            (None, id) => id.is_some() && id == sim::current_id(),
        }
    }

    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Starts a thread. In a simulation it is a coroutine of the caller's power-cut domain.
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
    spawn_kind(name.into(), false, None, f)
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
    spawn_kind(name.into(), true, None, f)
}

pub(crate) fn started<T>(thread: std::io::Result<JoinHandle<T>>) -> JoinHandle<T> {
    thread.unwrap_or_else(|e| panic!("{e}; lower the number of threads"))
}

pub(crate) fn spawn_kind<T: Send + 'static>(
    name: String,
    daemon: bool,
    domain: Option<u32>,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let packet = Arc::new(Packet { result: Mutex::new(None), done: Event::new() });
    let theirs = packet.clone();
    let thread = name.clone();
    let refused = sim::active() && sim::refuses_spawn(domain);
    let body = move |alive: bool| {
        if !alive {
            drop(f);
            let end = Panicked::new(&thread, &sim::PowerCut);
            *theirs.result.lock() = Some(Err(end));
            theirs.done.set();
            return None;
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let failure = result.as_ref().err().map(|payload| Panicked::new(&thread, &**payload));
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
    if sim::active() {
        let id = sim::spawn(name.clone(), daemon, domain, Box::new(body));
        return Ok(JoinHandle { packet, os: None, sim: Some(id), name });
    }
    let os = std::thread::Builder::new()
        .name(name.clone())
        .stack_size(stack_size())
        .spawn(move || {
            body(true);
        })
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot start thread '{name}': {e}")))?;
    Ok(JoinHandle { packet, os: Some(os), sim: None, name })
}

/// Lets other threads run.
pub fn yield_now() {
    if !sim::yield_now() {
        std::thread::yield_now();
    }
}

/// True inside a simulation.
#[inline]
pub fn in_simulation() -> bool {
    sim::active()
}

/// True while the calling simulated thread is being unwound after a power cut: locks are granted, waits return.
/// Always false on an OS thread.
#[inline]
pub fn dying() -> bool {
    sim::dying()
}

/// True while a panic unwinds the calling thread. A power cut is no panic, nor is a panic of another simulated thread.
pub fn panicking() -> bool {
    std::thread::panicking() && sim::unwinds_by_panic()
}

/// The calling thread's name; empty when it has none.
pub fn current_name() -> String {
    sim::current_name().unwrap_or_else(|| std::thread::current().name().unwrap_or("").to_string())
}
