//! A worker: owns a device, serves its blocks to one host at a time, and hands jobs to who does them.
//!
//! Each connection has a thread that receives; requests go to a few threads that all connections share. A connection
//! that sends faster than they work is not read until they have caught up: so memory is bounded.
//!
//! Lock order: `owner` is held while a host's last connection drains; `guests` is a leaf.

use crate::blocks::{self, BlockRequest, Traffic};
use crate::connection::Connection;
use crate::error::Refusal;
use crate::facts::{Facts, Role, read_hello};
use crate::frame::{Decoder, Frame, VERSION};
use crate::handler::{Handler, Request, Responder};
use crate::limits::Limits;
use crate::metrics::{self, Metrics};
use crate::op::Op;
use crate::served::{Guest, Served};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Count;
use std::sync::atomic::Ordering::Relaxed;
use varve_device::{Device, DeviceError, Latched};
use varve_rt::atomic::Ordering;
use varve_rt::channel::{Receiver, Sender, bounded};
use varve_rt::{Instant, JoinHandle, Mutex, now, try_spawn_daemon};

/// A worker.
pub struct Worker {
    core: Arc<Core>,
    queue: Mutex<Option<Sender<Work>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Core {
    device: Arc<Latched>,
    jobs: Option<Arc<dyn Handler>>,
    limits: Limits,
    boot: u64,
    started: Instant,
    traffic: Traffic,
    requests: Count,
    refusals: Arc<Count>,
    /// The host that uses the device, and its connection.
    owner: Mutex<Option<(u64, Arc<Served>)>>,
    guests: Mutex<Vec<Arc<Served>>>,
}

/// A request that waits for a thread.
struct Work {
    to: Arc<Served>,
    guest: Guest,
    op: Op,
    id: u64,
    payload: Vec<u8>,
}

/// What is known of a connection as its frames come.
struct Seen {
    guest: Option<Guest>,
    last: u64,
}

impl Worker {
    /// A worker that serves `device`, and has `jobs` done, if it does any: over the same device, since what fails for
    /// one fails for all. Its boot number is drawn here.
    pub fn new(
        device: Arc<Latched>,
        jobs: Option<Arc<dyn Handler>>,
        limits: Limits,
    ) -> Result<Arc<Worker>, DeviceError> {
        let (queue, work) = bounded(limits.threads.max(1));
        let core = Arc::new(Core {
            device,
            jobs,
            limits,
            boot: varve_rt::rng().next_u64(),
            started: now(),
            traffic: Traffic::default(),
            requests: Count::new(0),
            refusals: Arc::default(),
            owner: Mutex::new(None),
            guests: Mutex::default(),
        });
        let spawn = |n| {
            let (core, work) = (core.clone(), work.clone());
            try_spawn_daemon(format!("worker {n}"), move || core.work(&work)).map_err(DeviceError::no_thread)
        };
        let threads = (0..limits.threads.max(1)).map(spawn).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Worker { core, queue: Mutex::new(Some(queue)), threads: Mutex::new(threads) }))
    }

    /// The number that it drew.
    pub fn boot(&self) -> u64 {
        self.core.boot
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// What it counted.
    pub fn metrics(&self) -> Metrics {
        self.core.metrics()
    }

    /// Serves a connection on the calling thread, until it ends.
    pub fn serve(&self, connection: Arc<dyn Connection>) {
        let served = Served::new(connection, self.core.refusals.clone());
        let (full, mute) = {
            let mut guests = self.core.guests.lock();
            guests.retain(|guest| guest.is_open());
            // Who has said nothing gives way, or idle connections would keep the host out.
            let full = guests.len() >= self.core.limits.connections;
            let mute = guests.iter().find(|guest| full && guest.is_mute()).cloned();
            guests.push(served.clone());
            (full && mute.is_none(), mute)
        };
        mute.iter().for_each(|mute| mute.close());
        let queue = self.queue.lock().clone();
        let mut seen = Seen { guest: None, last: 0 };
        match queue {
            Some(queue) if !full => self.core.receive(&served, &queue, &mut seen),
            _ => served.turn_away(0, 0, Refusal::TooMany, "it has as many connections as it takes: try again later"),
        }
        served.close();
        self.core.leave(&served, &seen);
    }

    /// Ends all connections, and waits for the requests that have begun.
    pub fn stop(&self) {
        *self.queue.lock() = None;
        let guests = self.core.guests.lock().clone();
        guests.iter().for_each(|guest| guest.close());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A panic of theirs has been printed.
            let _ = thread.join();
        }
    }
}

impl Core {
    fn facts(&self) -> Facts {
        let (boot, window, jobs) = (self.boot, self.limits.window, self.jobs.is_some());
        Facts { boot, window, jobs, len: self.device.len(), info: self.device.info() }
    }

    fn metrics(&self) -> Metrics {
        let mut m = Metrics::default();
        m.put(metrics::BOOT, self.boot);
        m.put(metrics::UPTIME_NS, self.started.elapsed().as_nanos() as u64);
        m.put(metrics::DEVICE_LEN, self.device.len());
        m.put(metrics::READ_BYTES, self.traffic.read.load(Relaxed));
        m.put(metrics::WRITTEN_BYTES, self.traffic.written.load(Relaxed));
        m.put(metrics::REQUESTS, self.requests.load(Relaxed));
        m.put(metrics::REFUSED, self.refusals.load(Relaxed));
        let open = self.guests.lock().iter().filter(|guest| guest.is_open()).count();
        m.put(metrics::CONNECTIONS, open as u64);
        m.put(metrics::MEMORY_LIMIT, self.limits.memory());
        if let Some(jobs) = &self.jobs {
            jobs.metrics(&mut m);
        }
        m
    }

    /// Takes frames off a connection until it ends, or sends what it may not.
    fn receive(&self, served: &Arc<Served>, queue: &Sender<Work>, seen: &mut Seen) {
        let mut decoder = Decoder::from_host();
        while served.is_open() {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    let (op, id) = (frame.op, frame.id);
                    if let Err((refusal, why)) = self.take(served, queue, seen, frame) {
                        served.turn_away(op, id, refusal, &why);
                        if refusal.closes() {
                            return;
                        }
                    }
                }
                Ok(None) => {
                    if !matches!(served.connection().recv(decoder.buffer()), Ok(true)) {
                        return;
                    }
                }
                Err(e) => return served.turn_away(0, 0, Refusal::Frame, &e.to_string()),
            }
        }
    }

    /// Takes a frame; an error refuses it.
    fn take(
        &self,
        served: &Arc<Served>,
        queue: &Sender<Work>,
        seen: &mut Seen,
        frame: Frame,
    ) -> Result<(), (Refusal, String)> {
        if frame.version != VERSION {
            let theirs = frame.version;
            let why =
                format!("this worker speaks version {VERSION} of the messages, the host {theirs}: update the older");
            return Err((Refusal::Version, why));
        }
        let op = frame.known().ok_or_else(|| (Refusal::UnknownOp, format!("there is no op {}", frame.op)))?;
        if frame.id <= seen.last {
            return Err((Refusal::Replayed, format!("request {} came after request {}", frame.id, seen.last)));
        }
        seen.last = frame.id;
        let Some(guest) = seen.guest else {
            return self.greet(served, seen, op, &frame);
        };
        if served.outstanding.load(Ordering::Acquire) >= self.limits.window {
            return Err((Refusal::TooMany, format!("{} requests are outstanding", self.limits.window)));
        }
        if op != Op::Metrics && guest.role != Role::Owner {
            return Err((Refusal::InUse, format!("{} is for the host that uses the device", op.name())));
        }
        served.outstanding.fetch_add(1, Ordering::AcqRel);
        let id = frame.id;
        served.begin();
        let work = Work { to: served.clone(), guest, op, id, payload: frame.into_payload() };
        queue.send(work).map_err(|_| (Refusal::Failed, "the worker stops".to_string()))
    }

    /// The first frame of a connection.
    fn greet(&self, served: &Arc<Served>, seen: &mut Seen, op: Op, frame: &Frame) -> Result<(), (Refusal, String)> {
        if op != Op::Hello {
            return Err((Refusal::NoHello, format!("{} came before hello", op.name())));
        }
        let Some((role, client)) = read_hello(frame.body()) else {
            return Err((Refusal::Malformed, "the hello cannot be read".into()));
        };
        if role == Role::Owner {
            let mut owner = self.owner.lock();
            if let Some((other, connection)) = &*owner {
                if *other != client && connection.is_open() {
                    let who = connection.connection().peer();
                    return Err((
                        Refusal::InUse,
                        format!("its device is in use by {who}: close the database there first"),
                    ));
                }
                // What came over the last connection is done, or never will be, before this one begins.
                connection.close();
                if !connection.drain(self.limits.drain) {
                    return Err((Refusal::InUse, "requests of the connection before are still being done".into()));
                }
            }
            *owner = Some((client, served.clone()));
        }
        seen.guest = Some(Guest { role, client });
        served.greeted();
        served.outstanding.fetch_add(1, Ordering::AcqRel);
        served.answer(Op::Hello as u16, frame.id, &[&self.facts().encode()]);
        Ok(())
    }

    /// A connection has ended.
    fn leave(&self, served: &Arc<Served>, seen: &Seen) {
        self.guests.lock().retain(|guest| !Arc::ptr_eq(guest, served));
        let Some(Guest { role: Role::Owner, client }) = seen.guest else { return };
        let last = {
            let mut owner = self.owner.lock();
            let last = owner.as_ref().is_some_and(|(_, connection)| Arc::ptr_eq(connection, served));
            if last && served.drain(self.limits.drain) {
                *owner = None;
            }
            last
        };
        if let Some(jobs) = &self.jobs {
            jobs.closed(client, last);
        }
    }

    /// The life of a thread that serves requests.
    fn work(&self, work: &Receiver<Work>) {
        while let Ok(Work { to, guest, op, id, payload }) = work.recv() {
            let reply = Responder::new(&to, op, id);
            // Nobody is there to be answered: the host asks again over its next connection.
            if to.is_open() {
                self.requests.fetch_add(1, Relaxed);
                // A panic ends this request, and not the thread: the host is told by the responder, which is dropped.
                let _ = varve_rt::catch_panic(|| self.answer(Request::new(guest.client, op, payload), reply));
            }
            to.end();
        }
    }

    fn answer(&self, request: Request, reply: Responder) {
        match (request.op, &self.jobs) {
            (Op::Hello, _) => reply.refuse(Refusal::Malformed, "hello came before"),
            (Op::Metrics, _) => reply.reply(&[&self.metrics().encode()]),
            (op, Some(jobs)) if op.is_job() => jobs.call(request, reply),
            (op, None) if op.is_job() => reply.refuse(Refusal::Unsupported, "no jobs here: it serves blocks only"),
            (op, _) => match BlockRequest::decode(op, request.body()) {
                None => reply.refuse(Refusal::Malformed, &format!("a {} that cannot be read", op.name())),
                Some(block) => match blocks::run(&*self.device, block, &self.traffic) {
                    Ok(body) => reply.reply(&[&body]),
                    // With the device's power the worker's own is gone: nothing is answered.
                    Err(DeviceError::PowerLost) => reply.vanish(),
                    Err(e) => reply.failed(&e),
                },
            },
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its threads end when they have nothing more to do.
        *self.queue.lock() = None;
        self.core.guests.lock().iter().for_each(|guest| guest.close());
    }
}
