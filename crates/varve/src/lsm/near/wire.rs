//! A worker behind a wire: [`RemoteWorker`] is its end at the host, [`JobService`] the one at the worker. Jobs and
//! answers pass as they are; what is here says which is which. (`docs/format.md`)
//!
//! Invariant: a worker that is not reached is said to be at its job still, since it may be.
//!
//! Lock order: `load` is a leaf.

use super::share::Load;
use super::{LinkUse, Near, NotStarted, Progress};
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Instant, Mutex, now};
use varve_wire::metrics::{self, Metrics};
use varve_wire::{Fields, Handler, Op, Refusal, Request, Responder, Session, Traffic, WireError};

/// How long what a worker has to work with is believed.
const FRESH: Duration = Duration::from_millis(500);
/// How long is waited for it.
const SOON: Duration = Duration::from_secs(2);
/// How long an attachment may take: the worker ends the jobs before it.
const ATTACH: Duration = Duration::from_secs(90);
/// Between two looks at a worker that is not reached.
const PAUSE: Duration = Duration::from_millis(100);

/// A worker at the other end of a connection.
pub struct RemoteWorker {
    session: Arc<Session>,
    load: Mutex<Option<(Instant, Load)>>,
}

impl RemoteWorker {
    /// The worker that the session is connected to.
    pub fn new(session: Arc<Session>) -> Arc<RemoteWorker> {
        Arc::new(RemoteWorker { session, load: Mutex::new(None) })
    }

    fn ask(&self, op: Op, parts: &[&[u8]], limit: Duration) -> Result<Vec<u8>, WireError> {
        self.session.request(op, parts, Some(limit)).map(|reply| reply.body().to_vec())
    }
}

impl Near for RemoteWorker {
    fn attach(&self) -> Result<u64, String> {
        let body = self.ask(Op::JobAttach, &[], ATTACH).map_err(|e| e.to_string())?;
        Fields::new(&body).u64().ok_or_else(|| "the worker answered no number".to_string())
    }

    fn start(&self, id: u64, job: &[u8]) -> Result<(), NotStarted> {
        if job.len() + varve_wire::HEAD + 8 > varve_wire::MAX_PAYLOAD as usize {
            return Err(NotStarted::Refused("the job is longer than a message may be".into()));
        }
        match self.ask(Op::JobStart, &[&id.to_le_bytes(), job], self.session.options().answer) {
            Ok(_) => Ok(()),
            Err(e @ WireError::Refused { refusal: Refusal::Detached, .. }) => Err(NotStarted::Detached(e.to_string())),
            Err(e) => Err(NotStarted::Refused(e.to_string())),
        }
    }

    fn wait(&self, id: u64, most: Duration) -> Progress {
        let ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        let asked = self.session.live().and_then(|client| {
            let limit = most.saturating_add(self.session.options().answer);
            client.request(Op::JobWait, &[&id.to_le_bytes(), &ns.to_le_bytes()], Some(limit))
        });
        match asked {
            Ok(reply) => decode(reply.body()).unwrap_or(Progress::Running),
            Err(WireError::Refused { refusal: Refusal::Unsupported, why, .. }) => Progress::Lost(why.to_string()),
            // Nobody knows: it may be written to still.
            Err(_) => {
                varve_rt::sleep(most.min(PAUSE));
                Progress::Running
            }
        }
    }

    fn cancel(&self, id: u64) {
        // A worker that is not reached ends its jobs when it is attached to again.
        let _ = self.ask(Op::JobCancel, &[&id.to_le_bytes()], self.session.options().answer);
    }

    fn load(&self) -> Load {
        let known = *self.load.lock();
        match known {
            Some((at, load)) if at.elapsed() < FRESH => load,
            _ => {
                let asked = self.ask(Op::JobStatus, &[], SOON).ok().and_then(|body| decode_load(&body));
                let load = asked.or(known.map(|(_, load)| load)).unwrap_or_default();
                *self.load.lock() = Some((now(), load));
                load
            }
        }
    }

    fn link(&self) -> Option<LinkUse> {
        let Traffic { requests, sent, received } = self.session.traffic();
        Some(LinkUse { requests, sent, received })
    }
}

fn encode(progress: &Progress) -> Vec<u8> {
    assert!(!matches!(progress, Progress::Ended(answer) if answer.is_empty()), "an answer has a head at least");
    let (tag, rest) = match progress {
        Progress::Running => (0, &[][..]),
        Progress::Ended(answer) => (1, &answer[..]),
        Progress::Lost(why) => (2, why.as_bytes()),
        Progress::Further(part) => (3, &part[..]),
    };
    [&[tag], rest].concat()
}

fn decode(body: &[u8]) -> Option<Progress> {
    let (tag, rest) = body.split_first()?;
    match tag {
        0 => Some(Progress::Running),
        1 => Some(Progress::Ended(rest.to_vec())),
        2 => Some(Progress::Lost(String::from_utf8_lossy(rest).into_owned())),
        3 => Some(Progress::Further(rest.to_vec())),
        _ => None,
    }
}

fn encode_load(load: &Load) -> Vec<u8> {
    let shares = [load.cpu, load.memory].map(|share| if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) });
    let numbers = [load.cores, load.ghz, shares[0], shares[1]].map(f64::to_bits);
    let body: Vec<u8> = numbers.into_iter().chain([load.free]).flat_map(u64::to_le_bytes).collect();
    assert_eq!(body.len(), 40, "five numbers");
    body
}

fn decode_load(body: &[u8]) -> Option<Load> {
    let mut fields = Fields::new(body);
    let mut number = || fields.u64().map(f64::from_bits).filter(|n| n.is_finite() && *n >= 0.0);
    let (cores, ghz, cpu, memory) = (number()?, number()?, number()?, number()?);
    Some(Load { cores, ghz, cpu, memory, free: fields.u64()? })
}

/// Has a worker do what hosts at the other ends of connections ask for.
pub struct JobService(Arc<dyn Near>);

impl JobService {
    /// Over this worker.
    pub fn new(worker: Arc<dyn Near>) -> Arc<JobService> {
        Arc::new(JobService(worker))
    }
}

/// Does what may wait on a thread of its own; a thread that is refused refuses the request.
fn aside(name: &str, reply: Responder, life: impl FnOnce(Responder) + Send + 'static) {
    // When there is no thread the responder is dropped with the closure, and says that the request was given up.
    let _ = varve_rt::try_spawn_daemon(name, move || life(reply));
}

impl Handler for JobService {
    fn call(&self, request: Request, reply: Responder) {
        let worker = self.0.clone();
        let mut fields = Fields::new(request.body());
        match request.op {
            Op::JobAttach => aside("near attach", reply, move |reply| match worker.attach() {
                Ok(number) => reply.reply(&[&number.to_le_bytes()]),
                Err(why) => reply.refuse(Refusal::Job, &why),
            }),
            Op::JobStatus => reply.reply(&[&encode_load(&worker.load())]),
            Op::JobStart => match fields.u64().map(|id| worker.start(id, fields.rest())) {
                Some(Ok(())) => reply.reply(&[]),
                Some(Err(NotStarted::Detached(why))) => reply.refuse(Refusal::Detached, &why),
                Some(Err(NotStarted::Refused(why))) => reply.refuse(Refusal::Job, &why),
                None => reply.refuse(Refusal::Malformed, "a job start without a number"),
            },
            Op::JobWait => match fields.u64().zip(fields.u64()) {
                Some((id, ns)) => aside("near wait", reply, move |reply| {
                    let progress = worker.wait(id, Duration::from_nanos(ns).min(ATTACH));
                    reply.reply(&[&encode(&progress)]);
                }),
                None => reply.refuse(Refusal::Malformed, "a job wait without number and time"),
            },
            Op::JobCancel => match fields.u64() {
                Some(id) => {
                    worker.cancel(id);
                    reply.reply(&[]);
                }
                None => reply.refuse(Refusal::Malformed, "a job cancel without a number"),
            },
            op => reply.refuse(Refusal::Unsupported, &format!("{} is not about jobs", op.name())),
        }
    }

    fn metrics(&self, into: &mut Metrics) {
        let (jobs, load) = (self.0.jobs(), self.0.load());
        for (flag, n) in [
            (metrics::ATTACHMENTS, jobs.attachments),
            (metrics::JOBS_WAITING, jobs.waiting),
            (metrics::JOBS_RUNNING, jobs.running),
            (metrics::JOBS_DONE, jobs.done),
            (metrics::JOBS_FAILED, jobs.failed),
            (metrics::JOB_READ_BYTES, jobs.read),
            (metrics::JOB_WRITTEN_BYTES, jobs.written),
            (metrics::CORES, load.cores as u64),
            (metrics::JOB_FREE_BYTES, load.free),
        ] {
            into.put(flag, n);
        }
    }
}
