//! The worker: takes jobs, does some at a time within bounded memory, and keeps answers until they are asked for.
//!
//! Lock order: `state`, then what is finished of a job; `decides` is a leaf.
//!
//! Invariants: a job that is not in `jobs` writes nothing; one that was said not to be there never begins; an answer
//! belongs to the attachment of now; the memory that is counted is that of the jobs that run.

use super::decision::{Analyser, Decision, DecisionOptions, Measures, Mode, share_of_inputs};
use super::job::{Answer, Done, How, Job};
use super::serve::Running;
use super::share::Load;
use super::{Jobs, Near, NotStarted, Progress, serve};
use crate::error::{Error, Result};
use crate::role::{self, Role};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Device, DeviceError, Faults, Latched};
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Condvar, JoinHandle, Mutex, now};

/// Jobs that may wait.
const QUEUE: usize = 64;
/// Longest wait of an attachment for jobs of the one before.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a worker has to work with, as something outside of it knows.
pub type LoadFn = Arc<dyn Fn() -> Load + Send + Sync>;

/// How a worker works.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Jobs at a time, 1 to 64.
    pub jobs: usize,
    /// Bytes of memory for all of them together, 1 MiB at least.
    pub memory: u64,
    /// Says how busy the machine is, for decisions and for the host; none: it is idle.
    pub load: Option<LoadFn>,
    /// Mistakes to be made on purpose.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { jobs: 1, memory: 256 << 20, load: None, faults: Faults::default() }
    }
}

enum Entry {
    Waits(Arc<Job>),
    Runs(Arc<Running>),
    Ended(Vec<u8>),
}

#[derive(Default)]
struct State {
    generation: u64,
    /// Jobs of this attachment up to this number never begin any more.
    past: u64,
    /// Jobs that wait, in their order.
    queue: VecDeque<u64>,
    jobs: BTreeMap<u64, Entry>,
    /// Bytes that running jobs take.
    memory: u64,
    running: usize,
    stops: bool,
    /// What jobs came to that have ended, and attachments.
    sums: Jobs,
}

impl State {
    /// No job is wanted any more.
    fn cancel_all(&mut self) {
        self.sums.failed += self.queue.len() as u64;
        self.queue.clear();
        self.jobs.retain(|_, entry| matches!(entry, Entry::Runs(_)));
        for entry in self.jobs.values() {
            let Entry::Runs(running) = entry else { unreachable!("the others are gone") };
            running.cancelled.store(true, Ordering::Release);
        }
    }
}

/// The decision component and the metric analyser.
struct Decides {
    decision: Decision,
    analyser: Analyser,
}

struct Inner {
    device: Arc<dyn Device>,
    options: WorkerOptions,
    state: Mutex<State>,
    changed: Condvar,
    decides: Mutex<Option<Decides>>,
    panics: AtomicU64,
}

/// A worker over a device that holds the pages of a database. [`Worker::stop`] ends its threads.
pub struct Worker {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    /// Jobs that a panic ended: a mistake in the program, which a host makes up for.
    pub fn panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Starts a worker. In a simulation its threads belong to the caller's domain and host. Whoever else writes to the
    /// device does it through the same [`Latched`]: what a job flushes in vain others may have written.
    ///
    /// # Errors
    /// `Invalid` for options out of range; threads that cannot be had.
    pub fn start(device: Arc<Latched>, options: WorkerOptions) -> Result<Arc<Worker>> {
        if !(1..=QUEUE).contains(&options.jobs) || options.memory < 1 << 20 {
            let (jobs, memory) = (options.jobs, options.memory);
            let what = format!("a worker with {jobs} jobs in {memory} bytes: 1 to {QUEUE} jobs, 1 MiB at least");
            return Err(Error::Invalid(what));
        }
        // Of another start of a worker there are other attachments.
        let generation = varve_rt::rng().next_u64() >> 24 << 16;
        let (jobs, state) = (options.jobs, Mutex::new(State { generation, ..State::default() }));
        let inner = Inner {
            device,
            options,
            state,
            changed: Condvar::new(),
            decides: Mutex::new(None),
            panics: AtomicU64::new(0),
        };
        let worker = Arc::new(Worker { inner: Arc::new(inner), threads: Mutex::default() });
        for _ in 0..jobs {
            let inner = worker.inner.clone();
            let life = move || {
                role::set(Role::Merger);
                inner.serve()
            };
            let thread = varve_rt::try_spawn_daemon("near worker", life).map_err(DeviceError::no_thread)?;
            worker.threads.lock().push(thread);
        }
        Ok(worker)
    }

    /// Gives up what runs and ends the threads.
    pub fn stop(&self) {
        self.inner.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl Near for Worker {
    fn attach(&self) -> Result<u64, String> {
        let until = now() + PATIENCE;
        let mut state = self.inner.state.lock();
        // From here on jobs of the attachment before are refused.
        state.generation += 1;
        state.past = 0;
        state.sums.attachments += 1;
        let generation = state.generation;
        state.cancel_all();
        while state.running > 0 {
            if !self.inner.changed.wait_until(&mut state, until) && now() >= until {
                return Err("a job of the worker does not end; start the worker again".into());
            }
        }
        if state.generation == generation { Ok(generation) } else { Err("another host took the worker".into()) }
    }

    fn start(&self, id: u64, bytes: &[u8]) -> Result<(), NotStarted> {
        let refused = |why: &str| Err(NotStarted::Refused(why.into()));
        let job = match Job::decode(bytes) {
            Ok(job) => job,
            Err(what) => return refused(&format!("the worker cannot read the job: {what}")),
        };
        let mut state = self.inner.state.lock();
        if state.stops || job.generation != state.generation {
            return Err(NotStarted::Detached("the job is of another attachment".into()));
        }
        if job.id != id || id <= state.past {
            return refused("the job comes too late, or is another one");
        }
        let (needed, limit) = (memory(&job), self.inner.options.memory);
        if needed > limit {
            return refused(&format!("the job needs {needed} bytes of memory; the worker has {limit}"));
        }
        if state.jobs.contains_key(&id) {
            return refused("there is a job of this number");
        }
        if state.queue.len() >= QUEUE {
            return refused("too many jobs wait");
        }
        state.jobs.insert(id, Entry::Waits(Arc::new(job)));
        state.queue.push_back(id);
        self.inner.changed.notify_all();
        Ok(())
    }

    fn wait(&self, id: u64, most: Duration) -> Progress {
        let until = now() + most;
        let mut state = self.inner.state.lock();
        loop {
            match state.jobs.get(&id) {
                None => {
                    state.past = state.past.max(id);
                    return Progress::Lost("the worker has no such job".into());
                }
                Some(Entry::Ended(_)) => {
                    let Some(Entry::Ended(answer)) = state.jobs.remove(&id) else { unreachable!("seen above") };
                    return Progress::Ended(answer);
                }
                Some(entry) => {
                    if let Entry::Runs(running) = entry
                        && let Some(part) = running.news()
                    {
                        return Progress::Further(part.encode());
                    }
                    if now() >= until || varve_rt::dying() {
                        return Progress::Running;
                    }
                    self.inner.changed.wait_until(&mut state, until);
                }
            }
        }
    }

    fn cancel(&self, id: u64) {
        let mut state = self.inner.state.lock();
        match state.jobs.get(&id) {
            Some(Entry::Runs(running)) => running.cancelled.store(true, Ordering::Release),
            Some(entry) => {
                let waits = matches!(entry, Entry::Waits(_));
                state.sums.failed += u64::from(waits);
                state.jobs.remove(&id);
                state.queue.retain(|other| *other != id);
            }
            None => state.past = state.past.max(id),
        }
        self.inner.changed.notify_all();
    }

    fn load(&self) -> Load {
        self.inner.load()
    }

    fn jobs(&self) -> Jobs {
        let state = self.inner.state.lock();
        Jobs { waiting: state.queue.len() as u64, running: state.running as u64, ..state.sums }
    }
}

/// Bytes of memory that a job takes, about: a window and the top of the index of each input, batches and pieces on
/// their way, the segment that is being written.
fn memory(job: &Job) -> u64 {
    let inputs = job.runs.iter().flatten();
    let tops: u64 = inputs.clone().map(|segment| segment.meta.pages * 8).sum();
    let windows = inputs.count() as u64 * (job.request.max(job.pages.size) as u64 + (64 << 10));
    windows.saturating_add(tops).saturating_add(job.segment_bytes / 8 + (2 << 20))
}

impl Inner {
    fn end(&self) {
        let mut state = self.state.lock();
        state.stops = true;
        state.cancel_all();
        drop(state);
        self.changed.notify_all();
    }

    fn load(&self) -> Load {
        let free = self.options.memory - self.state.lock().memory.min(self.options.memory);
        let load = self.options.load.as_ref().map(|load| load()).unwrap_or_default();
        Load { free: load.free.min(free), ..load }
    }

    /// The life of a thread.
    fn serve(&self) {
        while let Some((job, running)) = self.next() {
            // A panic ends this job, not the thread that serves others.
            let done = varve_rt::catch_panic(|| self.run(&job, &running));
            let done = done.unwrap_or_else(|panicked| {
                self.panics.fetch_add(1, Ordering::Relaxed);
                Err(Error::Resources(format!("the worker failed: {panicked}")))
            });
            let answer = Answer { generation: job.generation, id: job.id, done: done.map_err(|e| e.to_string()) };
            self.ended(&job, answer);
        }
    }

    /// The next job for which there is memory; none: the worker ends.
    fn next(&self) -> Option<(Arc<Job>, Arc<Running>)> {
        let mut state = self.state.lock();
        loop {
            if state.stops || varve_rt::dying() {
                return None;
            }
            if let Some(job) = state.queue.front().map(|id| match &state.jobs[id] {
                Entry::Waits(job) => job.clone(),
                _ => unreachable!("what is in the queue waits"),
            }) && state.memory + memory(&job) <= self.options.memory
            {
                state.queue.pop_front();
                state.memory += memory(&job);
                state.running += 1;
                assert!(state.running <= self.options.jobs, "a thread runs one job at a time");
                let running = Arc::new(Running::new(&job));
                state.jobs.insert(job.id, Entry::Runs(running.clone()));
                return Some((job, running));
            }
            self.changed.wait(&mut state);
        }
    }

    fn ended(&self, job: &Job, answer: Answer) {
        let mut state = self.state.lock();
        state.memory -= memory(job);
        state.running -= 1;
        assert!(state.running > 0 || state.memory == 0, "the memory that is counted is that of the jobs that run");
        match &answer.done {
            Ok(Done { tally, .. }) => {
                let sums = &mut state.sums;
                (sums.done, sums.read, sums.written) =
                    (sums.done + 1, sums.read + tally.read, sums.written + tally.written);
            }
            Err(_) => state.sums.failed += 1,
        }
        let removed = state.jobs.remove(&job.id);
        assert!(matches!(removed, Some(Entry::Runs(_))), "a job that runs is known");
        if job.generation == state.generation && !state.stops {
            state.jobs.insert(job.id, Entry::Ended(answer.encode()));
        }
        drop(state);
        self.changed.notify_all();
    }

    fn run(&self, job: &Job, running: &Running) -> Result<Done> {
        let (mode, share, large) = self.decide(job);
        let done = serve::run(&self.device, job, (mode, share, large), running, &self.options.faults)?;
        if let Some(decides) = &mut *self.decides.lock() {
            decides.analyser.note(done.tally.pairs, done.tally.large);
        }
        Ok(done)
    }

    /// How a job is done, by what share of large pairs that was decided, and from how many bytes on they are large.
    fn decide(&self, job: &Job) -> (Mode, f64, usize) {
        let options = match job.how {
            How::As(_) => DecisionOptions::device(),
            How::Decides(options) => options,
        };
        let segments = job.runs.iter().flatten().map(|segment| (segment.meta.entries, segment.meta.bytes));
        let of_inputs = share_of_inputs(segments, options.large_bytes);
        let load = self.load();
        let mut decides = self.decides.lock();
        if decides.as_ref().is_none_or(|decides| *decides.decision.options() != options) {
            let (decision, analyser) = (Decision::new(options), Analyser::new(options.window));
            *decides = Some(Decides { decision, analyser });
        }
        let Decides { decision, analyser } = decides.as_mut().expect("made above");
        let large = analyser.share().unwrap_or(of_inputs);
        let mode = match job.how {
            How::As(mode) => mode,
            How::Decides(_) => decision.decide(Measures { cpu: load.cpu, memory: load.memory, large }),
        };
        (mode, large, options.large_bytes as usize)
    }
}
