//! What a thread waits for and how a wait ends: the words in which primitives speak to either world.

use crate::instant::Instant;

/// What a thread waits for; shown in deadlock reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Mutex,
    Read,
    Write,
    Condvar,
    Event,
    Join,
    Sleep,
    Core,
    Yield,
    Named(&'static str),
}

impl What {
    /// A small number for the running hash of a simulation.
    pub(crate) fn code(self) -> u64 {
        match self {
            What::Mutex => 1,
            What::Read => 2,
            What::Write => 3,
            What::Condvar => 4,
            What::Event => 5,
            What::Join => 6,
            What::Sleep => 7,
            What::Core => 8,
            What::Yield => 9,
            What::Named(_) => 10,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            What::Mutex => "a mutex",
            What::Read => "shared access to a read-write lock",
            What::Write => "exclusive access to a read-write lock",
            What::Condvar => "a condition",
            What::Event => "an event",
            What::Join => "the end of a thread",
            What::Sleep => "time to pass",
            What::Core => "a core",
            What::Yield => "its turn",
            What::Named(name) => name,
        }
    }
}

/// Where a wait was asked for, for deadlock reports.
pub(crate) type Caller = &'static std::panic::Location<'static>;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parked {
    /// Woken, with the waker's token.
    Unparked(usize),
    /// `validate` said no: the caller did not wait.
    Invalid,
    /// The deadline passed.
    TimedOut,
    /// The calling simulated thread is dying: it must not wait.
    Dying,
}

/// What a waker learns under the queue lock.
pub(crate) struct Woken {
    /// Threads taken off the queue.
    pub(crate) count: usize,
    /// Others stay in the queue.
    pub(crate) more: bool,
    /// The lock should be handed over, so that nobody starves.
    pub(crate) fair: bool,
}

/// A filter's verdict on one waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    Wake,
    Stop,
}

/// A request to wait.
pub(crate) struct Wait {
    pub(crate) key: usize,
    pub(crate) what: What,
    pub(crate) at: Caller,
    /// Seen by `unpark_filter`.
    pub(crate) token: usize,
    pub(crate) deadline: Option<Instant>,
}
