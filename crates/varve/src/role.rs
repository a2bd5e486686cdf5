//! What a thread does for the database, so that device traffic can be told apart by who caused it.
//!
//! The engine's background threads give themselves a role when they begin; every other thread is a foreground thread.

use std::cell::Cell;
use varve_rt::Local;

/// A thread's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Runs transactions.
    #[default]
    Foreground,
    /// Writes pages in the background.
    Cleaner,
    /// Makes checkpoints.
    Checkpointer,
    /// Reads ahead.
    ReadAhead,
    /// Writes the log.
    Log,
    /// Flushes memtables and merges segments.
    Merger,
}

/// Number of roles.
pub const ROLES: usize = 6;

impl Role {
    /// All roles, in the order of their numbers.
    pub const ALL: [Role; ROLES] =
        [Role::Foreground, Role::Cleaner, Role::Checkpointer, Role::ReadAhead, Role::Log, Role::Merger];

    /// Name for statistics.
    pub fn name(self) -> &'static str {
        ["foreground", "cleaner", "checkpointer", "read_ahead", "log", "merger"][self as usize]
    }
}

static ROLE: Local<Cell<Role>> = Local::new(Cell::default);

/// The calling thread's role.
pub fn current() -> Role {
    ROLE.with(Cell::get)
}

/// Gives the calling thread a role.
pub(crate) fn set(role: Role) {
    ROLE.with(|r| r.set(role));
}

/// Runs `f` in another role.
pub(crate) fn with<R>(role: Role, f: impl FnOnce() -> R) -> R {
    let before = current();
    set(role);
    let result = f();
    set(before);
    result
}
