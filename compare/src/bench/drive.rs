//! Threads that repeat an operation for a while: their rate, and the processor time of the process per operation.
//!
//! The processor time includes the engine's background threads. On a machine with other work it says more than the
//! rate does, which then depends on how much of the machine one gets.

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

/// A rate and its cost.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// Operations per second (or whatever the row's unit is).
    pub value: f64,
    /// Processor time of the whole process per operation, microseconds.
    pub cpu_us: f64,
}

/// Processor time that this process has used.
#[expect(clippy::disallowed_methods, reason = "the runtime has no clock of processor time")]
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the value it is given.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time since `before` per operation.
pub fn cpu_us(before: Duration, operations: f64) -> f64 {
    (cpu_time() - before).as_secs_f64() * 1e6 / operations.max(1.0)
}

/// Repeats `body` on `threads` threads. It returns how many operations it did, a few at a time if they are short, so
/// that reading the clock does not show.
///
/// Errors: the first that a thread met.
pub fn rate<S, F>(store: &Arc<S>, threads: usize, timing: Timing, seed: u64, body: F) -> Result<Measured>
where
    S: Send + Sync + 'static,
    F: Fn(&S, &mut Rng) -> Result<u64> + Send + Sync + 'static,
{
    let (start, body) = (Arc::new(Event::new()), Arc::new(body));
    let mut workers = Vec::new();
    for thread in 0..threads {
        let (store, start, body) = (store.clone(), start.clone(), body.clone());
        let mut rng = Rng::from_seed(seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        workers.push(varve_rt::spawn(format!("bench-{thread}"), move || -> Result<(u64, u64)> {
            start.wait();
            let warm_from = now() + timing.warmup;
            let end = warm_from + timing.measure;
            let (mut counted, mut all) = (0, 0);
            let mut began = now();
            while began < end {
                let done = body(&store, &mut rng)?;
                let ended = now();
                all += done;
                if began >= warm_from && ended <= end {
                    counted += done;
                }
                began = ended;
            }
            Ok((counted, all))
        }));
    }
    let before = cpu_time();
    start.set();
    let (mut counted, mut all) = (0, 0);
    for worker in workers {
        let name = worker.name().to_string();
        let of_worker = worker.join().map_err(|_| Error::WorkerPanicked(name))??;
        counted += of_worker.0;
        all += of_worker.1;
    }
    let value = counted as f64 / timing.measure.as_secs_f64();
    Ok(Measured { value, cpu_us: cpu_us(before, all as f64) })
}
