//! Handles in a process that was forked: the child of `fork` must not touch a database that its parent opened
//! (`varve_rt::Process` says why), and can open none if one was open at the time of the fork.
//!
//! Invariant: what was made before the last fork is neither used nor dropped in the child; nothing is made in a child
//! of a process that had threads of the engine. `exec` ends all that.

use crate::{Code, Failure, Result};

/// Something of the engine that is used, and dropped, only in the process that made it.
#[derive(Debug)]
pub struct Kept<T>(varve_rt::Kept<T>);

impl<T> Kept<T> {
    /// Keeps for this process what `make` makes.
    ///
    /// # Errors
    /// `Forked` in a child of a process that had a database open; `OutOfMemory` when forks cannot be watched for; those
    /// of `make`.
    pub fn make(make: impl FnOnce() -> Result<T>) -> Result<Kept<T>> {
        varve_rt::watch_forks().map_err(|why| {
            Failure::new(Code::OutOfMemory, format!("the system has no room to watch for forks ({why})"))
        })?;
        if varve_rt::forked_among_threads() {
            return Err(Failure::new(
                Code::Forked,
                "a database was open when this process was forked, so it can use none: close before the fork, or \
                 start the process anew (exec, spawn)",
            ));
        }
        Ok(Kept(varve_rt::Kept::new(make()?)))
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
        varve_rt::Kept::is_here(&self.0)
    }

    /// What is kept.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub fn get(&self) -> Result<&T> {
        self.here()?;
        Ok(&self.0)
    }

    /// As [`Kept::get`].
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.here()?;
        Ok(&mut self.0)
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
