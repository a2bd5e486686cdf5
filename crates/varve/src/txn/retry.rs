//! Running a transaction until it goes through.

use super::transaction::Transaction;
use super::{Durability, Manager, count};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// How a transaction behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxOptions {
    /// What its commit waits for; `None`: as the database was opened.
    pub durability: Option<Durability>,
    /// Reads as of its beginning, takes no locks, refuses writes.
    pub read_only: bool,
    /// How often [`Db::transact_with`](crate::Db::transact_with) repeats it, after a conflict or for want of memory
    /// that others hold, before it gives the error back. Default: 1000, with waits of some five seconds in all.
    pub retries: u32,
}

impl Default for TxOptions {
    fn default() -> TxOptions {
        TxOptions { durability: None, read_only: false, retries: 1000 }
    }
}

impl TxOptions {
    /// Default options but for the durability.
    pub fn durability(durability: Durability) -> TxOptions {
        TxOptions { durability: Some(durability), ..TxOptions::default() }
    }

    /// Options of a read-only transaction.
    pub fn read_only() -> TxOptions {
        TxOptions { read_only: true, ..TxOptions::default() }
    }
}

/// Longest wait before the first repetition; each further one may wait twice as long.
const FIRST_WAIT: Duration = Duration::from_micros(20);
/// Doublings of the wait.
const DOUBLINGS: u32 = 9;

impl Manager {
    /// Runs `f` in a transaction, which it gives back, and commits it; again, after a wait that grows, as long as that
    /// fails with an error that [`crate::Error::is_retryable`], or for want of memory that others hold.
    pub fn transact<T>(
        self: &Arc<Self>,
        options: &TxOptions,
        mut f: impl FnMut(Transaction) -> (Transaction, Result<T>),
    ) -> Result<T> {
        let mut birth = None;
        let mut attempt = 0;
        loop {
            let transaction = Transaction::begin(self, options, birth)?;
            birth = Some(transaction.birth());
            let running = self.locks.run(transaction.id());
            let (transaction, result) = f(transaction);
            drop(running);
            let lacks_memory = result.as_ref().is_err_and(|error| transaction.lacks_memory_of_others(error));
            // A conflict that `f` swallowed shows in the commit.
            let result = match result {
                Err(_) if transaction.is_doomed() => transaction.commit().map(|()| unreachable!("it gave way")),
                Err(error) => {
                    drop(transaction);
                    Err(error)
                }
                Ok(value) => transaction.commit().map(|()| value),
            };
            match result {
                Err(error) if (lacks_memory || error.is_retryable()) && attempt < options.retries => {
                    count(&self.counters.retries);
                    let most = FIRST_WAIT * (1 << attempt.min(DOUBLINGS));
                    let wait = varve_rt::rng().below(most.as_nanos() as u64 + 1);
                    varve_rt::sleep(Duration::from_nanos(wait));
                    attempt += 1;
                    assert!(attempt <= options.retries, "it is repeated as often as was allowed at most");
                }
                result => return result,
            }
        }
    }
}

impl Transaction {
    /// Whether this error is one of memory that others hold, who will give it back: without them there would be room
    /// for what was asked for, and they are there, or have given it back already.
    fn lacks_memory_of_others(&self, error: &Error) -> bool {
        let Error::OverBudget { class, requested, .. } = error else { return false };
        let held = self.held_memory().into_iter().find(|(held, _)| held.name() == *class);
        // Frames are waited for where they are needed, and for long.
        let Some((class, own)) = held else { return false };
        let budget = &self.manager.core.budget;
        let fits = |used: u64| used.saturating_add(*requested) <= budget.limit(class);
        fits(own) && (self.manager.has_others_open() || fits(budget.used(class)))
    }
}
