//! A transaction that several handles refer to: the caller's, and those of iterators.

use crate::{Failure, Result};
use std::ptr::NonNull;
use std::sync::Arc;
use varve::Transaction;
use varve_rt::Mutex;

/// A transaction, to be used by one thread at a time; others are refused, not made to wait.
///
/// Invariant: a lent transaction is reached only between [`SharedTx::lend`]'s beginning and end.
#[derive(Clone)]
pub struct SharedTx(Arc<Mutex<State>>);

enum State {
    Owned(Box<Transaction>),
    Lent(NonNull<Transaction>),
    Ended,
}

// SAFETY: `Transaction` may move between threads; the pointer of a lent one is used under the lock alone, and is taken
// back under it before the loan ends.
unsafe impl Send for State {}

impl SharedTx {
    /// One that ends with [`SharedTx::end`], or with its last handle.
    pub fn new(tx: Transaction) -> SharedTx {
        SharedTx(Arc::new(Mutex::new(State::Owned(Box::new(tx)))))
    }

    /// Lends a transaction to `f`; handles that are left when it returns find it ended.
    pub fn lend<R>(tx: &mut Transaction, f: impl FnOnce(&SharedTx) -> R) -> R {
        /// Takes it back, also when `f` panics.
        struct Loan(SharedTx);
        impl Drop for Loan {
            fn drop(&mut self) {
                *self.0.0.lock() = State::Ended;
            }
        }
        let loan = Loan(SharedTx(Arc::new(Mutex::new(State::Lent(NonNull::from(tx))))));
        f(&loan.0)
    }

    /// Does something with the transaction.
    ///
    /// # Errors
    /// `Closed` when it has ended, `Invalid` while another thread uses it, and those of `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut Transaction) -> Result<R>) -> Result<R> {
        let mut state = self.0.try_lock().ok_or_else(busy)?;
        match &mut *state {
            State::Owned(tx) => f(tx),
            // SAFETY: the loan has not ended, for it ends under the lock; the lock makes this the only use.
            State::Lent(tx) => f(unsafe { tx.as_mut() }),
            State::Ended => Err(Failure::ended()),
        }
    }

    /// Takes the transaction out, to be committed or rolled back.
    ///
    /// # Errors
    /// `Closed` when it has ended, `Invalid` while another thread uses it, or when it was lent: who lends it ends it.
    pub fn end(&self) -> Result<Transaction> {
        let mut state = self.0.try_lock().ok_or_else(busy)?;
        match std::mem::replace(&mut *state, State::Ended) {
            State::Owned(tx) => Ok(*tx),
            lent @ State::Lent(_) => {
                *state = lent;
                Err(Failure::invalid("whoever runs this transaction ends it: return from the function"))
            }
            State::Ended => Err(Failure::ended()),
        }
    }
}

fn busy() -> Failure {
    Failure::invalid("another thread is using this transaction: one thread at a time")
}
