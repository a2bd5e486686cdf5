//! Threads that repeat an operation for a while, and their rate.

use std::sync::Arc;
use std::time::Duration;

use varve_lab::{Error, Result};
use varve_rt::{Event, Rng, now};

/// How long an operation is repeated.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Time before anything counts.
    pub warmup: Duration,
    /// Time that counts.
    pub measure: Duration,
}

/// Repeats `body` on `threads` threads. It returns how many operations it did, a few at a time if they are short, so
/// that reading the clock does not show. Returns operations per second.
///
/// Errors: the first that a thread met.
pub fn rate<S, F>(store: &Arc<S>, threads: usize, timing: Timing, seed: u64, body: F) -> Result<f64>
where
    S: Send + Sync + 'static,
    F: Fn(&S, &mut Rng) -> Result<u64> + Send + Sync + 'static,
{
    let (start, body) = (Arc::new(Event::new()), Arc::new(body));
    let mut workers = Vec::new();
    for thread in 0..threads {
        let (store, start, body) = (store.clone(), start.clone(), body.clone());
        let mut rng = Rng::from_seed(seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        workers.push(varve_rt::spawn(format!("bench-{thread}"), move || -> Result<u64> {
            start.wait();
            let warm_from = now() + timing.warmup;
            let end = warm_from + timing.measure;
            let mut counted = 0;
            let mut began = now();
            while began < end {
                let done = body(&store, &mut rng)?;
                let ended = now();
                if began >= warm_from && ended <= end {
                    counted += done;
                }
                began = ended;
            }
            Ok(counted)
        }));
    }
    start.set();
    let mut counted = 0;
    for worker in workers {
        let name = worker.name().to_string();
        counted += worker.join().map_err(|_| Error::WorkerPanicked(name))??;
    }
    Ok(counted as f64 / timing.measure.as_secs_f64())
}
