//! The handle of a submitted batch.
//!
//! Invariant: a request counts as pending until `wait` returned its result; only then may its buffer be touched. A
//! ticket knows nothing of how a device completes requests: devices hand it a [`Completion`].

use crate::DeviceError;

/// How one batch completes; written by each kind of device, called by [`Ticket`] only.
pub trait Completion: Send {
    /// Waits for request `i` and gives its result. Called at most once for each `i`.
    fn wait(&mut self, i: usize) -> Result<(), DeviceError>;
    /// Whether `wait(i)` would return at once. Never blocks.
    fn try_done(&mut self, i: usize) -> bool;
    /// The ticket is dropped with requests pending: makes sure that no buffer is touched from now on. A device that is
    /// used in simulations must not block here.
    fn abandon(&mut self);
}

/// A submitted batch. Wait for each request (or all) before dropping it and before touching the buffers.
///
/// Dropping a ticket with pending requests is an assertion failure: a destructor never waits. It is allowed while the
/// thread unwinds, from a panic or from a simulated power cut.
#[must_use = "requests must be waited for"]
pub struct Ticket {
    results: Vec<Option<Result<(), DeviceError>>>,
    source: Option<Box<dyn Completion>>,
}

impl Ticket {
    /// A ticket whose requests all completed at submission.
    pub fn ready(results: Vec<Result<(), DeviceError>>) -> Ticket {
        Ticket { results: results.into_iter().map(Some).collect(), source: None }
    }

    /// A ticket of `len` requests that `source` completes.
    pub fn pending(len: usize, source: Box<dyn Completion>) -> Ticket {
        Ticket { results: vec![None; len], source: Some(source) }
    }

    /// Number of requests of the batch.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Waits for request `i` (its index in the batch) and returns its result; again the same result when called again.
    pub fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        if self.results[i].is_none() {
            let source = self.source.as_mut().expect("a pending request has a source");
            self.results[i] = Some(source.wait(i));
        }
        self.results[i].clone().expect("set above")
    }

    /// Whether `wait(i)` would return at once. The buffer may be touched after that `wait` only.
    pub fn try_done(&mut self, i: usize) -> bool {
        self.results[i].is_some() || self.source.as_mut().expect("a pending request has a source").try_done(i)
    }

    /// Waits for every request; returns the first error in batch order.
    pub fn wait_all(mut self) -> Result<(), DeviceError> {
        let mut first = Ok(());
        for i in 0..self.len() {
            let result = self.wait(i);
            if first.is_ok() {
                first = result;
            }
        }
        debug_assert!(self.results.iter().all(Option::is_some), "nothing is pending any more");
        first
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let pending = self.results.iter().filter(|r| r.is_none()).count();
        if pending == 0 {
            return;
        }
        if let Some(source) = self.source.as_mut() {
            source.abandon();
        }
        if !varve_rt::dying() && !std::thread::panicking() {
            panic!("a ticket was dropped with {pending} pending requests: wait for each of them first");
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("results", &self.results).finish_non_exhaustive()
    }
}
