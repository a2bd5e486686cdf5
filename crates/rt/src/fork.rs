//! Processes, as told apart from those that are forked from them. The child of `fork` has the memory of its parent, but
//! none of its threads, and its copies of locks may be held for ever. If threads waited at the time of the fork, the
//! list of waiting threads (one for the whole process, `parking_lot_core`) names some that the child has not, on stacks
//! that it uses for others.
//!
//! Invariant: what was made before the last fork is neither used nor dropped in the child. `exec` ends all that.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Forks between the first process that watched for them and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether they are watched for.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Whether threads ran when this process, or one that it descends from, was forked.
static SPOILT: AtomicBool = AtomicBool::new(false);

extern "C" fn in_the_child() {
    // Only this thread is there yet, and atomics may be used after a fork.
    FORKS.fetch_add(1, Relaxed);
    if crate::thread::running() > 0 {
        SPOILT.store(true, Relaxed);
    }
}

/// Has forks counted from here on.
///
/// # Errors
/// The system has no room for it.
pub fn watch_forks() -> std::io::Result<()> {
    if WATCHED.swap(true, AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler is a function of this library, which uses atomics and nothing else.
    match unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) } {
        0 => Ok(()),
        errno => {
            WATCHED.store(false, Release);
            Err(std::io::Error::from_raw_os_error(errno))
        }
    }
}

/// Whether threads of this crate ran when this process was forked: then none can be started, and nothing waited for.
pub fn forked_among_threads() -> bool {
    SPOILT.load(Relaxed)
}

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The one that runs now.
    pub fn current() -> Process {
        Process(FORKS.load(Relaxed))
    }

    /// Whether it is the one that runs now, not one that this was forked from.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Process::current()
    }
}

/// Something that is dropped only in the process that made it.
#[derive(Debug)]
pub struct Kept<T> {
    inner: ManuallyDrop<T>,
    by: Process,
}

impl<T> Kept<T> {
    /// Keeps it for this process.
    pub fn new(inner: T) -> Kept<T> {
        Kept { inner: ManuallyDrop::new(inner), by: Process::current() }
    }

    /// Whether this is the process that made it.
    pub fn is_here(this: &Kept<T>) -> bool {
        this.by.is_current()
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Kept<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        debug_assert!(self.by.is_current(), "only the process that made it changes it");
        &mut self.inner
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.by.is_current() {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) }
        }
    }
}
