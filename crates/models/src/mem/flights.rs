//! Requests of a memory device in flight, and the tickets that wait for them.
//!
//! A write's bytes are copied at submission, a read's bytes are copied to the caller by the waiter: no buffer is
//! touched by anybody but the thread that submits or waits, so a ticket can be abandoned without waiting.
//!
//! Invariants: a request takes effect before it completes; a read that completed has its bytes until it is waited for.

use super::{MemDevice, State};
use crate::due;
use crate::mem::image::Payload;
use std::sync::Arc;
use varve_device::{Completion, DeviceError, Io, Op, OpKind, Ticket};
use varve_rt::Instant;

/// A request in flight.
pub(super) struct Flight {
    pub(super) op: OpKind,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) durable: bool,
    pub(super) payload: Payload,
    /// For a flush: the writes that it covers.
    pub(super) mark: u64,
}

impl Flight {
    /// A number that differs between different requests, for the running hash of a simulation.
    pub(super) fn digest(&self, device: &str) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        };
        add(device.as_bytes());
        add(&[self.op as u8, u8::from(self.durable)]);
        add(&self.offset.to_le_bytes());
        add(&self.len.to_le_bytes());
        add(self.payload.as_deref().unwrap_or_default());
        hash
    }
}

/// One request of a ticket.
pub(super) struct Slot {
    /// When it completes.
    at: Instant,
    /// When it takes effect: its place among the requests in flight.
    effect: Instant,
    id: u64,
    refused: Option<DeviceError>,
}

impl Slot {
    pub(super) fn refused(error: DeviceError) -> Slot {
        Slot { at: Instant::ORIGIN, effect: Instant::ORIGIN, id: u64::MAX, refused: Some(error) }
    }

    pub(super) fn flying(at: Instant, effect: Instant, id: u64) -> Slot {
        assert!(effect <= at, "a request takes effect before it completes");
        Slot { at, effect, id, refused: None }
    }
}

/// A ticket's side of a batch in flight.
pub(super) struct Batch {
    device: Arc<MemDevice>,
    epoch: u64,
    started: Instant,
    slots: Vec<(Io, Slot)>,
}

impl MemDevice {
    pub(super) fn submit_batch(&self, batch: Vec<Io>) -> Ticket {
        let timed = varve_rt::in_simulation();
        varve_rt::sim::settle();
        let mut state = self.state.lock();
        let started = varve_rt::now();
        state.settle(started);
        if !state.power {
            return Ticket::ready(batch.iter().map(|_| Err(DeviceError::PowerLost)).collect());
        }
        let epoch = state.epoch;
        let slots: Vec<_> = batch
            .into_iter()
            .map(|io| {
                let slot = self.start(&mut state, &io, started, timed);
                (io, slot)
            })
            .collect();
        let device = self.this.upgrade().expect("a device that is used is alive");
        if timed || state.hold {
            drop(state);
            return Ticket::pending(slots.len(), Box::new(Batch { device, epoch, started, slots }));
        }
        let results = slots.into_iter().map(|(io, slot)| self.collect(&mut state, &io, slot.id, slot.refused, started));
        Ticket::ready(results.collect())
    }

    /// The result of a request whose time has come.
    fn collect(
        &self,
        state: &mut State,
        io: &Io,
        id: u64,
        refused: Option<DeviceError>,
        started: Instant,
    ) -> Result<(), DeviceError> {
        let result = refused.map_or(Ok(()), Err);
        if result.is_ok() && io.op == Op::Read {
            let bytes = state.arrived.remove(&id).expect("a completed read has its bytes");
            // SAFETY: the request is waited for just now.
            unsafe { io.buf.fill(&bytes) };
        }
        let nanos = started.elapsed().as_nanos() as u64;
        self.counters.finished(io.op.kind(), io.len() as u64, nanos, result.is_ok());
        result
    }
}

impl Batch {
    /// Whether the request was lost with the power.
    fn lost(&self, state: &State) -> bool {
        state.epoch != self.epoch || varve_rt::dying()
    }
}

impl Completion for Batch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let due = due::wait(&device.state, &device.changed, self.slots[i].1.at, |state| self.lost(state));
        let (io, slot) = &mut self.slots[i];
        let Ok(mut state) = due else {
            device.counters.finished(io.op.kind(), io.len() as u64, 0, false);
            return Err(DeviceError::PowerLost);
        };
        state.settle(varve_rt::now());
        device.collect(&mut state, io, slot.id, slot.refused.take(), self.started)
    }

    fn try_done(&mut self, i: usize) -> bool {
        let state = self.device.state.lock();
        self.lost(&state) || self.slots[i].1.at <= varve_rt::now()
    }

    fn abandon(&mut self) {
        // Requests in flight go on without us: their bytes are copies. Only reads that have arrived leave something.
        let mut state = self.device.state.lock();
        for (_, slot) in &self.slots {
            state.arrived.remove(&slot.id);
            if let Some(flight) = state.flights.get(&(slot.effect, slot.id))
                && flight.op == OpKind::Read
            {
                state.flights.remove(&(slot.effect, slot.id));
            }
        }
    }
}
