//! Reads that nobody waits for: futures for any executor.

use super::Inner;
use crate::error::Result;
use crate::txn::{Now, OpenKeyspace, Snapshot, Told, Values};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What is being read: a future, for any executor. It may be dropped. Made by
/// [`Keyspace::get_async`](crate::Keyspace::get_async) and the other calls whose names end so.
#[must_use = "nobody reads what nobody waits for"]
pub struct ReadFuture<T> {
    state: State,
    make: Make<T>,
}

/// What makes of the values what the caller has of them, where the future is polled.
type Make<T> = Box<dyn Fn(Values) -> Result<T> + Send + Sync>;

impl<T> std::fmt::Debug for ReadFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFuture").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum State {
    /// It is known; none: it was handed over.
    Known(Option<Result<Values>>),
    Awaited(Told<Result<Values>>),
}

impl<T> Future for ReadFuture<T> {
    type Output = Result<T>;

    /// # Panics
    /// When it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let result = match &mut self.state {
            State::Known(result) => Poll::Ready(result.take()),
            State::Awaited(told) => told.poll(context, Option::take),
        };
        result.map(|result| result.expect("a future is polled until it is ready").and_then(&self.make))
    }
}

/// The value of the one key that was asked for.
pub(super) fn only(mut values: Values) -> Option<Vec<u8>> {
    assert_eq!(values.len(), 1, "one key was asked for");
    values.pop().flatten()
}

impl Inner {
    /// Reads keys, as they are or as of a snapshot: at once what is in memory, else by the threads that read for
    /// others.
    pub(super) fn read_async<T>(
        &self,
        at: Option<&Snapshot>,
        keyspace: &Arc<OpenKeyspace>,
        keys: &[&[u8]],
        make: impl Fn(Values) -> Result<T> + Send + Sync + 'static,
    ) -> ReadFuture<T> {
        let read = || match self.values_now(at, keyspace, keys)? {
            Some(state) => Ok(state),
            None => {
                let at = at.map(Snapshot::lend).transpose()?;
                let owned = keys.iter().map(|key| Box::from(*key)).collect();
                self.readers.read(keyspace, at, owned).map(State::Awaited)
            }
        };
        let state = read().unwrap_or_else(|error| State::Known(Some(Err(error))));
        ReadFuture { state, make: Box::new(make) }
    }

    /// All of the values, if that takes no wait.
    fn values_now(&self, at: Option<&Snapshot>, keyspace: &OpenKeyspace, keys: &[&[u8]]) -> Result<Option<State>> {
        match at {
            Some(snapshot) => snapshot.check(keyspace)?,
            None => self.txns.live_in(keyspace)?,
        }
        let (mut values, mut durable) = (Vec::with_capacity(keys.len()), 0);
        for key in keys {
            let now = match at {
                Some(snapshot) => snapshot.get_now(keyspace, key)?,
                None => self.txns.get_now(keyspace, key)?,
            };
            match now {
                Now::Value(value, seen) => {
                    values.push(value);
                    durable = durable.max(seen);
                }
                Now::Unknown => return Ok(None),
            }
        }
        assert_eq!(values.len(), keys.len(), "a value for each key");
        if durable == 0 {
            return Ok(Some(State::Known(Some(Ok(values)))));
        }
        let told = Told::new();
        self.txns.tell_durable(durable, &told, values);
        Ok(Some(State::Awaited(told)))
    }
}
