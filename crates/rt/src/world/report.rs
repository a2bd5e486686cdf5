//! What a simulation says when it cannot go on.

use super::record::Status;
use super::scheduler::{State, World};
use crate::ended::Panicked;
use crate::wait::What;

/// Why a simulation has no value.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The main thread panicked, or another one did and nobody joined it.
    Panic(Panicked),
    /// No thread but daemons can ever run again.
    Deadlock(StuckReport),
    /// Virtual time passed the configured limit.
    TimeLimit(StuckReport),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Panic(p) => p.fmt(f),
            Failure::Deadlock(r) => write!(f, "deadlock: {r}"),
            Failure::TimeLimit(r) => write!(f, "the time limit has passed: {r}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Who waits for what.
#[derive(Clone, Debug)]
pub struct StuckReport {
    /// Virtual nanoseconds since the start.
    pub at_ns: u64,
    /// Every thread that has not ended.
    pub waiting: Vec<Waiting>,
    /// Panics of threads that nobody has joined: often the cause.
    pub panics: Vec<Panicked>,
}

/// One thread's wait.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The thread's name.
    pub thread: String,
    /// It is a service thread.
    pub daemon: bool,
    /// Its power-cut domain.
    pub domain: String,
    /// The kind of thing it waits for, with the name given by [`sim::name`](super::name).
    pub what: String,
    /// Source line of the wait, if known.
    pub place: String,
    /// The thread that holds the lock, if it waits for one that is held exclusively.
    pub holder: Option<String>,
}

impl StuckReport {
    pub(super) fn new(w: &World, state: &State) -> StuckReport {
        let live = state.threads.iter().enumerate().filter(|(_, t)| !t.is_null());
        let waiting = live.map(|(id, _)| Waiting::new(w, state, id as u32)).collect();
        StuckReport { at_ns: w.clock.get(), waiting, panics: state.panics.values().cloned().collect() }
    }
}

impl Waiting {
    fn new(w: &World, state: &State, id: u32) -> Waiting {
        let t = w.thread(state, id);
        let (what, key, place) = t.last_wait();
        let mut text = match t.status.get() {
            Status::Ready | Status::Running => "nothing, it can run".to_string(),
            _ => what.text().to_string(),
        };
        let named = state.names.range(..=key).next_back();
        if let Some((start, (len, name))) = named
            && key < start + len
        {
            text = format!("{text} '{name}'");
        }
        let lock = matches!(what, What::Mutex | What::Read | What::Write);
        let holder = state.owners.get(&key).filter(|_| lock);
        let holder = holder.map(|&id| match state.threads[id as usize].is_null() {
            true => "a thread that has ended".to_string(),
            false => w.thread(state, id).name.clone(),
        });
        Waiting {
            thread: t.name.clone(),
            daemon: t.daemon,
            domain: state.domains[t.domain as usize].0.clone(),
            what: text,
            place: place.map(ToString::to_string).unwrap_or_default(),
            holder,
        }
    }
}

impl std::fmt::Display for StuckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}.{:09} s", self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000)?;
        for w in &self.waiting {
            let daemon = if w.daemon { " (daemon)" } else { "" };
            write!(f, "\n  thread '{}'{daemon} waits for {}", w.thread, w.what)?;
            if let Some(holder) = &w.holder {
                write!(f, ", held by '{holder}'")?;
            }
            if !w.place.is_empty() {
                write!(f, ", at {}", w.place)?;
            }
        }
        for p in &self.panics {
            write!(f, "\n  {p}")?;
        }
        Ok(())
    }
}
