//! Tickets of modelled devices: who wakes when.
//!
//! A waiter whose request is decided sleeps until its completion. Of those whose requests are not decided yet (a disk
//! that chooses among its queue decides late) one is the *leader*: it wakes at the model's next decision and brings the
//! model up to the present; a decision wakes the waiter concerned.
//!
//! Invariants: while somebody waits undecided, `leader` names one of them, and that one was woken or wakes by itself; a
//! ticket waits for one request at a time.
//!
//! Bytes of a read are copied by the waiter, those of a write at submission: no buffer is touched by anybody but the
//! thread that submits or waits, so a ticket can be abandoned without waiting.

use super::{Model, State};
use std::sync::Arc;
use varve_device::{Completion, DeviceError, Io, Op};
use varve_rt::{Event, MutexGuard};

/// One request of a ticket.
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) refused: Option<DeviceError>,
}

/// A ticket's side of a batch in flight.
pub(super) struct Batch {
    device: Arc<Model>,
    epoch: u64,
    slots: Vec<(Io, Slot)>,
    woken: Arc<Event>,
    /// The request that this ticket is registered for as a waiter.
    registered: Option<u64>,
}

impl Batch {
    pub(super) fn new(device: Arc<Model>, epoch: u64, slots: Vec<(Io, Slot)>) -> Batch {
        Batch { device, epoch, slots, woken: Arc::new(Event::new()), registered: None }
    }

    fn lost(&self, state: &MutexGuard<'_, State>) -> bool {
        state.epoch != self.epoch || varve_rt::dying()
    }

    /// Registers as a waiter for request `id`, and looks when to wake if nobody sets the event.
    fn register(&mut self, state: &mut State, id: u64) -> Option<varve_rt::Instant> {
        assert!(self.registered.is_none_or(|before| before == id), "a ticket waits for one request at a time");
        self.registered = Some(id);
        state.waiters.insert(id, self.woken.clone());
        match state.flights.get(&id).map(|f| f.at) {
            Some(Some(at)) => {
                hand_on(state, id);
                Some(at)
            }
            Some(None) => {
                state.undecided.insert(id);
                (*state.leader.get_or_insert(id) == id).then(|| state.timing.next()).flatten()
            }
            None => None,
        }
    }

    /// Takes the registration back, and hands the lead on.
    fn unregister(&mut self, state: &mut State) {
        let Some(id) = self.registered.take() else { return };
        state.waiters.remove(&id);
        state.undecided.remove(&id);
        hand_on(state, id);
        assert!(state.leader.is_none_or(|leader| state.waiters.contains_key(&leader)), "the leader waits");
    }
}

/// Makes somebody else the leader if `id`, which does not wait for a decision any more, is it.
fn hand_on(state: &mut State, id: u64) {
    if state.leader == Some(id) {
        state.leader = state.undecided.first().copied();
        if let Some(next) = state.leader {
            state.waiters[&next].set();
        }
    }
}

impl Completion for Batch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let mut state = device.state.lock();
        let result = loop {
            if self.lost(&state) {
                let io = &self.slots[i].0;
                device.counters.finished(io.op.kind(), io.len() as u64, 0, false);
                break Err(DeviceError::PowerLost);
            }
            let (io, slot) = &mut self.slots[i];
            if let Some(error) = slot.refused.take() {
                device.counters.finished(io.op.kind(), io.len() as u64, 0, false);
                break Err(error);
            }
            let id = slot.id;
            device.settle(&mut state, varve_rt::now());
            if !state.flights.contains_key(&id) && !state.held.contains_key(&id) {
                if io.op == Op::Read && device.options.keep {
                    let mut bytes = vec![0; io.len()];
                    state.image.read(io.offset, &mut bytes);
                    // SAFETY: the request is waited for just now.
                    unsafe { io.buf.fill(&bytes) };
                }
                break Ok(());
            }
            self.woken.reset();
            let wake = self.register(&mut state, id);
            drop(state);
            match wake {
                Some(at) => drop(self.woken.wait_until(at)),
                None => self.woken.wait(),
            }
            state = device.state.lock();
        };
        self.unregister(&mut state);
        result
    }

    fn try_done(&mut self, i: usize) -> bool {
        let device = self.device.clone();
        let mut state = device.state.lock();
        if self.lost(&state) || self.slots[i].1.refused.is_some() {
            return true;
        }
        device.settle(&mut state, varve_rt::now());
        let id = self.slots[i].1.id;
        !state.flights.contains_key(&id) && !state.held.contains_key(&id)
    }

    fn abandon(&mut self) {
        let device = self.device.clone();
        self.unregister(&mut device.state.lock());
    }
}
