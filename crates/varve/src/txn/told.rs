//! A result that another thread brings: who waits for it, as a future, is woken.
//!
//! Invariants: a result is told once; whoever polled last is woken by it.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use varve_rt::Mutex;

/// Held by who waits and by who is going to tell.
#[derive(Debug)]
pub(crate) struct Told<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    told: bool,
    result: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Told<T> {
    fn clone(&self) -> Told<T> {
        Told(self.0.clone())
    }
}

impl<T> Told<T> {
    /// Nothing is known yet.
    pub fn new() -> Told<T> {
        Told(Arc::new(Mutex::new(State { told: false, result: None, waker: None })))
    }

    /// Whether somebody else holds it: who waits.
    pub fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Tells the result. The waker may be anybody's code: nothing may be locked.
    pub fn tell(&self, result: T) {
        let waker = {
            let mut state = self.0.lock();
            assert!(!state.told, "a result is told once");
            (state.told, state.result) = (true, Some(result));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What `take` makes of the result; before there is one, whoever polls is going to be woken.
    pub fn poll<R>(&self, context: &mut Context<'_>, take: impl FnOnce(&mut Option<T>) -> R) -> Poll<R> {
        let mut state = self.0.lock();
        if state.told {
            return Poll::Ready(take(&mut state.result));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
