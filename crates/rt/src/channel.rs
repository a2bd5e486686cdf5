//! Channels of many senders and receivers, bounded or not.
//!
//! Lock order: the channel's own mutex only, held for a few instructions and never while waiting.
//!
//! Invariants: a bounded queue never has more values than it was made for; a value is received once; the last sender or
//! receiver that goes wakes everybody who waits for the other side.

use crate::{Condvar, Instant, Mutex, now, world};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;

/// The channel has no receiver left; the value comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendError<T>(pub T);

/// Why `try_send` failed; the value comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrySendError<T> {
    /// A bounded channel is full.
    Full(T),
    /// No receiver is left.
    Disconnected(T),
}

/// The channel is empty and has no sender left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvError;

/// Why `try_recv` gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryRecvError {
    /// Nothing is there yet.
    Empty,
    /// Nothing is there and no sender is left.
    Disconnected,
}

/// Why `recv_timeout` gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvTimeoutError {
    /// Nothing came in time.
    Timeout,
    /// Nothing is there and no sender is left.
    Disconnected,
}

impl<T> std::fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the channel has no receiver left")
    }
}

impl std::fmt::Display for RecvError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the channel is empty and has no sender left")
    }
}

impl<T: std::fmt::Debug> std::error::Error for SendError<T> {}
impl std::error::Error for RecvError {}

struct Shared<T> {
    queue: Mutex<VecDeque<T>>,
    capacity: usize,
    not_empty: Condvar,
    not_full: Condvar,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The sending end; clones send to the same channel.
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving end; clones share the values, each value goes to one of them.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A channel that holds at most `capacity` values (at least one); a sender waits while it is full.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a bounded channel holds at least one value");
    let shared = Arc::new(Shared {
        queue: Mutex::new(VecDeque::new()),
        capacity,
        not_empty: Condvar::new(),
        not_full: Condvar::new(),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (Sender(shared.clone()), Receiver(shared))
}

/// A channel without a bound: sending never waits.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

impl<T> Sender<T> {
    /// Sends `value`, waiting while a bounded channel is full.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let shared = &*self.0;
        let mut queue = shared.queue.lock();
        loop {
            if shared.receivers.load(Acquire) == 0 {
                return Err(SendError(value));
            }
            if queue.len() < shared.capacity {
                break;
            }
            shared.not_full.wait(&mut queue);
            if crate::dying() {
                return Err(SendError(value));
            }
        }
        queue.push_back(value);
        drop(queue);
        shared.not_empty.notify_one();
        Ok(())
    }

    /// Sends `value` if that needs no waiting.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let shared = &*self.0;
        let mut queue = shared.queue.lock();
        if shared.receivers.load(Acquire) == 0 {
            return Err(TrySendError::Disconnected(value));
        }
        if queue.len() >= shared.capacity {
            return Err(TrySendError::Full(value));
        }
        queue.push_back(value);
        drop(queue);
        shared.not_empty.notify_one();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// The next value, waiting for one.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_inner(None).map_err(|_| RecvError)
    }

    /// The next value, waiting for at most `timeout`.
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_inner(Some(now() + timeout))
    }

    /// The next value, if one is there.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let shared = &*self.0;
        let mut queue = shared.queue.lock();
        match queue.pop_front() {
            Some(value) => {
                drop(queue);
                shared.not_full.notify_one();
                Ok(value)
            }
            None if shared.senders.load(Acquire) == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    #[track_caller]
    fn recv_inner(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let shared = &*self.0;
        let mut queue = shared.queue.lock();
        let mut timed_out = false;
        loop {
            if let Some(value) = queue.pop_front() {
                drop(queue);
                shared.not_full.notify_one();
                return Ok(value);
            }
            if shared.senders.load(Acquire) == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            if timed_out {
                return Err(RecvTimeoutError::Timeout);
            }
            match deadline {
                None => shared.not_empty.wait(&mut queue),
                Some(t) => timed_out = shared.not_empty.wait_until(&mut queue, t),
            }
            timed_out |= crate::dying();
        }
    }

    /// Values waiting to be received.
    pub fn len(&self) -> usize {
        self.0.queue.lock().len()
    }

    /// True when no value is waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Receives until no sender is left.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Relaxed);
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.receivers.fetch_add(1, Relaxed);
        Receiver(self.0.clone())
    }
}

/// Tells the other side that this side is gone. The lock makes sure that nobody is between looking at the count and
/// going to sleep; critical sections here never switch, so this does not wait in a simulation.
fn hang_up<T>(shared: &Shared<T>, count: &AtomicUsize, wake: &Condvar) {
    if count.fetch_sub(1, AcqRel) == 1 {
        let _quiet = world::Quiet::new();
        drop(shared.queue.lock());
        wake.notify_all();
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        hang_up(&self.0, &self.0.senders, &self.0.not_empty);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        hang_up(&self.0, &self.0.receivers, &self.0.not_full);
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Receiver")
    }
}
