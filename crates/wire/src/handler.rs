//! The seam between the server and what does jobs.

use crate::error::Refusal;
use crate::frame::HEAD;
use crate::metrics::Metrics;
use crate::op::Op;
use crate::served::Served;
use std::sync::Arc;

/// A request that came, its head taken off.
#[derive(Debug)]
pub struct Request {
    /// The host's number: equal over all connections of one host.
    pub client: u64,
    /// What it asks for.
    pub op: Op,
    payload: Vec<u8>,
}

impl Request {
    pub(crate) fn new(client: u64, op: Op, payload: Vec<u8>) -> Request {
        assert!(payload.len() >= HEAD, "the head was checked when the frame came");
        Request { client, op, payload }
    }

    /// What the op needs.
    pub fn body(&self) -> &[u8] {
        &self.payload[HEAD..]
    }
}

/// Answers one request, at once or later, from any thread. Dropped without an answer it says that there is none.
pub struct Responder {
    to: Arc<Served>,
    op: Op,
    id: u64,
    answered: bool,
}

impl Responder {
    pub(crate) fn new(to: &Arc<Served>, op: Op, id: u64) -> Responder {
        Responder { to: to.clone(), op, id, answered: false }
    }

    /// Answers with a body; what is longer than a frame may be is a refusal. Nothing, if the connection has gone.
    pub fn reply(mut self, parts: &[&[u8]]) {
        self.answered = true;
        self.to.answer(self.op as u16, self.id, parts);
    }

    /// Refuses.
    pub fn refuse(mut self, refusal: Refusal, why: &str) {
        self.answered = true;
        self.to.refuse(self.op as u16, self.id, refusal, why);
    }

    pub(crate) fn failed(mut self, error: &varve_device::DeviceError) {
        self.answered = true;
        self.to.failed(self.op as u16, self.id, error);
    }

    /// Answers nothing, and closes the connection.
    pub(crate) fn vanish(mut self) {
        self.answered = true;
        self.to.close();
    }

    /// Whether whoever asked is still connected.
    pub fn is_connected(&self) -> bool {
        self.to.is_open()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // A thread that lost its power answers nothing any more.
        if !self.answered && !varve_rt::dying() {
            self.to.refuse(self.op as u16, self.id, Refusal::Failed, "the worker gave the request up");
        }
    }
}

/// Answers the ops about jobs ([`Op::is_job`]).
pub trait Handler: Send + Sync {
    /// Takes a request. It runs on one of the few threads that serve the device too, so it must not wait for long: what
    /// takes its time goes to threads of its own, which keep `reply`.
    fn call(&self, request: Request, reply: Responder);

    /// A connection of this host ended; it may come again. `last`: it has no other one.
    fn closed(&self, client: u64, last: bool) {
        let _ = (client, last);
    }

    /// Adds what it counts.
    fn metrics(&self, into: &mut Metrics) {
        let _ = into;
    }
}
