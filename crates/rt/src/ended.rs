//! How a thread ended that has no result.

use std::any::Any;

/// What unwinds a thread whose power was cut.
pub(crate) struct PowerCut;

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
    pub(crate) fn new(thread: &str, payload: &(dyn Any + Send), place: Option<String>) -> Panicked {
        let power_cut = payload.is::<PowerCut>();
        let message = if power_cut {
            "ended by a power cut".to_string()
        } else if let Some(s) = payload.downcast_ref::<&str>() {
            (*s).to_string()
        } else if let Some(s) = payload.downcast_ref::<String>() {
            s.clone()
        } else {
            "a panic without a message".to_string()
        };
        let message = match place {
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
