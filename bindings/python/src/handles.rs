//! What is open, so that closing a database can end it.
//!
//! Invariant: what a slot held is dropped once, by the close or with the last handle, and in the process that made it.

use std::sync::{Arc, Weak};
use varve_bindings::{Code, Failure, Kept, Result, SharedTx};
use varve_rt::{Mutex, MutexGuard};

/// Something of the engine that a handle has until it, or the database, is closed.
pub struct Slot<T>(Kept<Mutex<Option<T>>>);

impl<T> Slot<T> {
    /// With something in it, made now.
    pub fn new(inner: T) -> Result<Slot<T>> {
        Ok(Slot(Kept::new(Mutex::new(Some(inner)))?))
    }

    /// Does something with it. Threads take turns.
    ///
    /// # Errors
    /// `Closed`, `Forked`, those of `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let mut inner: MutexGuard<'_, Option<T>> = self.0.get()?.lock();
        f(inner.as_mut().ok_or_else(closed)?)
    }

    /// Takes it out; none: it was taken before.
    pub fn take(&self) -> Result<Option<T>> {
        Ok(self.0.get()?.lock().take())
    }
}

pub fn closed() -> Failure {
    Failure::new(Code::Closed, "it was closed, or its database was: open it again")
}

/// What a close ends.
pub trait Ends: Send + Sync {
    /// Lets go of what the engine counts as open.
    fn end(&self) -> Result<()>;
}

impl<T: Send> Ends for Slot<T> {
    fn end(&self) -> Result<()> {
        drop(self.take()?);
        Ok(())
    }
}

/// A transaction; a close rolls it back.
pub struct TxSlot(Kept<SharedTx>);

impl TxSlot {
    pub fn new(tx: SharedTx) -> Result<TxSlot> {
        Ok(TxSlot(Kept::new(tx)?))
    }

    pub fn get(&self) -> Result<&SharedTx> {
        self.0.get()
    }
}

impl Ends for TxSlot {
    fn end(&self) -> Result<()> {
        match self.get()?.end() {
            Ok(tx) => tx.rollback(),
            Err(Failure { code: Code::Closed, .. }) => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

/// A database, and what is open of it.
pub struct Opened {
    db: Kept<varve::Db>,
    open: Mutex<Vec<Weak<dyn Ends>>>,
}

/// Handles in the list before it is looked through for those that are gone.
const LOOK: usize = 64;

impl Opened {
    pub fn new(open: impl FnOnce() -> Result<varve::Db>) -> Result<Opened> {
        Ok(Opened { db: Kept::make(open)?, open: Mutex::new(Vec::new()) })
    }

    /// The database.
    pub fn db(&self) -> Result<&varve::Db> {
        self.db.get()
    }

    /// Remembers what a close must end.
    pub fn note<E: Ends + 'static>(&self, handle: E) -> Result<Arc<E>> {
        self.db()?;
        let handle = Arc::new(handle);
        let mut open = self.open.lock();
        if open.len() >= LOOK && open.len().is_power_of_two() {
            open.retain(|handle| handle.strong_count() > 0);
        }
        let weak: Weak<E> = Arc::downgrade(&handle);
        open.push(weak);
        Ok(handle)
    }

    /// Ends what is open, rolling transactions back, and closes the database. One that is closed stays so.
    pub fn close(&self) -> Result<()> {
        let db = self.db()?;
        let open = std::mem::take(&mut *self.open.lock());
        for handle in open.iter().filter_map(Weak::upgrade) {
            handle.end()?;
        }
        match db.close() {
            Err(varve::Error::Closed) => Ok(()),
            closed => Ok(closed?),
        }
    }
}
