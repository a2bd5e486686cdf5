//! Commits that nobody waits for: who is told, and futures for any executor.

use super::{Db, Transaction};
use crate::error::Result;
use crate::txn::Told;
use std::pin::Pin;
use std::task::{Context, Poll};
use varve_volume::Lsn;

/// When a place in the log is durable: a future, for any executor. It needs nobody who polls it to come true, and may
/// be dropped. Made by [`Transaction::commit_async`] and [`Db::durable`].
#[derive(Debug)]
pub struct Durable {
    lsn: Lsn,
    told: Told<Result<()>>,
}

impl Durable {
    /// The place in the log.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }
}

impl Future for Durable {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.told.poll(context, |result| result.clone().expect("it stays, once told"))
    }
}

impl Db {
    /// Calls `tell` when everything up to a place in the log is durable, a commit's as
    /// [`Transaction::commit_ticket`] gives it, or with an error when that is never going to be. The log is written
    /// at once if nobody else does.
    ///
    /// `tell` is called once, by a thread of the database that calls one after the other, or by the caller if the
    /// answer is known already. It should be short: it may begin work on the database, but others are told later the
    /// longer it takes, and [`Db::close`] waits for it. Its panic is printed and goes no further.
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let entries = db.keyspace_or_create("entries")?;
    /// let (sender, durable) = std::sync::mpsc::channel();
    /// for n in 0..10u32 {
    ///     let mut tx = db.begin()?;
    ///     tx.put(&entries, n.to_be_bytes(), "entry")?;
    ///     let sender = sender.clone();
    ///     db.on_durable(tx.commit_ticket()?, move |result| sender.send(result.map(|()| n)).unwrap())?;
    /// }
    /// assert_eq!(durable.iter().take(10).collect::<Result<Vec<_>, _>>()?, (0..10).collect::<Vec<_>>());
    /// # Ok::<(), varve::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a place past the end of the log; `Closed`. `tell` is not called then.
    pub fn on_durable(&self, lsn: Lsn, tell: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.inner.txns.live()?;
        self.inner.core.log.on_durable(lsn, Box::new(tell))
    }

    /// The same as a future: ready when everything up to a place in the log is durable.
    ///
    /// # Errors
    /// Those of [`Db::on_durable`]; the future gives `Poisoned` when the log cannot be written.
    pub fn durable(&self, lsn: Lsn) -> Result<Durable> {
        let told = Told::new();
        let later = told.clone();
        self.on_durable(lsn, move |result| later.tell(result))?;
        Ok(Durable { lsn, told })
    }
}

impl Transaction {
    /// As [`Transaction::commit`], but returns as soon as the changes have taken effect, with a future that is ready
    /// when they are durable, and what was read. The log is written at once; commits that come meanwhile share the next
    /// write. The call itself may wait for pages to be read.
    ///
    /// ```
    /// # async fn example() -> Result<(), varve::Error> {
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let entries = db.keyspace_or_create("entries")?;
    /// let mut tx = db.begin()?;
    /// tx.put(&entries, "key", "value")?;
    /// tx.commit_async()?.await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Transaction::commit`]: nothing was changed. The future gives `Poisoned` when the log cannot be
    /// written: it is unknown then whether the changes are found when the database is opened again.
    pub fn commit_async(self) -> Result<Durable> {
        let db = Db { inner: self._db.clone() };
        db.durable(self.commit_ticket()?)
    }
}
