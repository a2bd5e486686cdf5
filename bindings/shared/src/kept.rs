//! Handles in a process that was forked. The child of `fork` has the handles, but none of the engine's threads, and its
//! copies of the locks may be held for ever; so it must not touch a database that its parent opened. If threads of the
//! engine waited at the time of the fork, the list of waiting threads (one for the whole process, `parking_lot_core`)
//! names some that the child has not, on stacks that it uses for others. Then it can open no database either.
//!
//! Invariant: what was made before the last fork is neither used nor dropped in the child; nothing is made in a child
//! of a process that had threads of the engine. `exec` ends all that.

use crate::{Code, Failure, Result};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Forks between the first process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether forks are counted yet.
static COUNTED: AtomicBool = AtomicBool::new(false);
/// Whether a database was open when this process, or one that it descends from, was forked.
static SPOILT: AtomicBool = AtomicBool::new(false);

extern "C" fn in_the_child() {
    // Only this thread is there yet, and atomics may be used after a fork.
    FORKS.fetch_add(1, Ordering::Relaxed);
    if varve_rt::running_threads() > 0 {
        SPOILT.store(true, Ordering::Relaxed);
    }
}

fn count_forks() -> Result<()> {
    if COUNTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler is a function of this library, which adds to an atomic and nothing else.
    match unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) } {
        0 => Ok(()),
        errno => {
            COUNTED.store(false, Ordering::Release);
            let why = std::io::Error::from_raw_os_error(errno);
            Err(Failure::new(Code::OutOfMemory, format!("the system has no room to watch for forks ({why})")))
        }
    }
}

/// Something of the engine that is used, and dropped, only in the process that made it.
#[derive(Debug)]
pub struct Kept<T> {
    inner: ManuallyDrop<T>,
    born: u32,
}

impl<T> Kept<T> {
    /// Keeps for this process what `make` makes.
    ///
    /// # Errors
    /// `Forked` in a child of a process that had a database open; `OutOfMemory` when forks cannot be watched for; those
    /// of `make`.
    pub fn make(make: impl FnOnce() -> Result<T>) -> Result<Kept<T>> {
        count_forks()?;
        if SPOILT.load(Ordering::Relaxed) {
            return Err(Failure::new(
                Code::Forked,
                "a database was open when this process was forked, so it can use none: close before the fork, or \
                 start the process anew (exec, spawn)",
            ));
        }
        Ok(Kept { inner: ManuallyDrop::new(make()?), born: FORKS.load(Ordering::Relaxed) })
    }

    /// Keeps for this process what is there.
    ///
    /// # Errors
    /// As for [`Kept::make`].
    pub fn new(inner: T) -> Result<Kept<T>> {
        Kept::make(|| Ok(inner))
    }

    /// Whether this is the process that made it.
    pub fn is_here(&self) -> bool {
        self.born == FORKS.load(Ordering::Relaxed)
    }

    /// What is kept.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub fn get(&self) -> Result<&T> {
        self.here()?;
        Ok(&self.inner)
    }

    /// As [`Kept::get`].
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.here()?;
        Ok(&mut self.inner)
    }

    fn here(&self) -> Result<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(Failure::new(
                Code::Forked,
                "this handle is of the process that this one was forked from: open databases after the fork, in one \
                 process, or start processes anew (exec, spawn)",
            )),
        }
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) }
        }
    }
}
