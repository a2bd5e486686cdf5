//! The worker's end of one connection.
//!
//! Invariant: after [`Served::close`] nothing is sent.
//!
//! Lock order: `sending` alone is held while bytes are sent; `doing` is a leaf.

use crate::connection::Connection;
use crate::error::Refusal;
use crate::facts::Role;
use crate::failure;
use crate::frame::{FROM_WORKER, HEAD, MAX_PAYLOAD, REFUSED, encode};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Count;
use std::time::Duration;
use varve_device::DeviceError;
use varve_rt::atomic::{AtomicBool, AtomicU32, Ordering};
use varve_rt::{Condvar, Mutex};

/// A connection that is served.
pub(crate) struct Served {
    connection: Arc<dyn Connection>,
    sending: Mutex<()>,
    open: AtomicBool,
    /// The other end has said who it is.
    greeted: AtomicBool,
    /// Requests that came and are not answered.
    pub(crate) outstanding: AtomicU32,
    /// Requests for the device that are under way or wait for their turn.
    doing: Mutex<u32>,
    idle: Condvar,
    /// Refusals, of all connections.
    refusals: Arc<Count>,
}

/// Who is at the other end, once it has said so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    pub role: Role,
    pub client: u64,
}

impl Served {
    pub(crate) fn new(connection: Arc<dyn Connection>, refusals: Arc<Count>) -> Arc<Served> {
        Arc::new(Served {
            connection,
            sending: Mutex::new(()),
            open: AtomicBool::new(true),
            greeted: AtomicBool::new(false),
            outstanding: AtomicU32::new(0),
            doing: Mutex::new(0),
            idle: Condvar::new(),
            refusals,
        })
    }

    pub(crate) fn connection(&self) -> &Arc<dyn Connection> {
        &self.connection
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The other end has said who it is.
    pub(crate) fn greeted(&self) {
        self.greeted.store(true, Ordering::Release);
    }

    /// Whether it has not said so yet, and may: nobody is lost with the connection.
    pub(crate) fn is_mute(&self) -> bool {
        self.is_open() && !self.greeted.load(Ordering::Acquire)
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Release);
        self.connection.close();
    }

    fn send(&self, op: u16, flag: u8, id: u64, parts: &[&[u8]]) {
        let bytes = encode(op, FROM_WORKER, flag, id, parts);
        let _turn = self.sending.lock();
        if self.is_open() && self.connection.send(&bytes).is_err() {
            self.close();
        }
    }

    /// A request that came is answered with these parts.
    pub(crate) fn answer(&self, op: u16, id: u64, parts: &[&[u8]]) {
        if HEAD + parts.iter().map(|part| part.len()).sum::<usize>() > MAX_PAYLOAD as usize {
            return self.refuse(op, id, Refusal::Failed, "the answer is longer than a frame may be");
        }
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.send(op, 0, id, parts);
    }

    /// A request that came is refused.
    pub(crate) fn refuse(&self, op: u16, id: u64, refusal: Refusal, why: &str) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.turn_away(op, id, refusal, why);
    }

    /// The device failed at a request.
    pub(crate) fn failed(&self, op: u16, id: u64, error: &DeviceError) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.send(op, REFUSED, id, &[&failure::encode_device(error)]);
    }

    /// Refuses what is not counted as a request.
    pub(crate) fn turn_away(&self, op: u16, id: u64, refusal: Refusal, why: &str) {
        self.refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.send(op, REFUSED, id, &[&failure::encode(refusal, why)]);
    }

    /// A request for the device came.
    pub(crate) fn begin(&self) {
        *self.doing.lock() += 1;
    }

    /// It is done.
    pub(crate) fn end(&self) {
        let mut doing = self.doing.lock();
        *doing -= 1;
        if *doing == 0 {
            self.idle.notify_all();
        }
    }

    /// Waits until no request for the device is under way, at most so long; whether that is so.
    pub(crate) fn drain(&self, limit: Duration) -> bool {
        let deadline = varve_rt::now() + limit;
        let mut doing = self.doing.lock();
        while *doing > 0 && !varve_rt::dying() {
            if self.idle.wait_until(&mut doing, deadline) {
                break;
            }
        }
        *doing == 0
    }
}
