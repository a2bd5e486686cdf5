//! A device in memory, with a durable and a volatile image, that can lose its power.
//!
//! On OS threads every request completes at submission. In a simulation each takes a seeded time and they complete out
//! of order, in virtual time: a write takes effect when it completes, a read sees the bytes of any moment while it is
//! in flight, so an engine that does not wait for a write before it flushes or reads finds out.
//!
//! A power cut ([`Powered::power_cut`]) keeps what is durable plus, for each atomic unit on its own, any of the
//! versions written since; see `docs/device.md`. While the power is off every request, those in flight too, answers
//! `PowerLost`.
//!
//! Invariants: requests take effect in the order of their times, none before its submission; a read's bytes are in
//! `arrived` from then until it is waited for; without power nothing is in flight; the image keeps rules of its own.
//!
//! Lock order: `state` only; nothing waits while holding it.

mod flights;
mod image;

pub(crate) use image::{Image, Payload, Unfinished};

use crate::power::{CutReport, Powered};
use flights::{Flight, Slot};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{
    Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, OpKind, Ticket,
};
use varve_rt::{Condvar, Instant, Mutex, Rng, hardware_mutex};

/// How long requests take in a simulation: uniform between the bounds, one in 32 of them ten times as long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Least and most time of a read.
    pub read: (Duration, Duration),
    /// Of a write or trim.
    pub write: (Duration, Duration),
    /// Of a durable write.
    pub durable: (Duration, Duration),
    /// Of a flush, and of a change of length.
    pub flush: (Duration, Duration),
}

impl Default for Latency {
    /// Roughly a solid-state drive.
    fn default() -> Latency {
        let us = |low, high| (Duration::from_micros(low), Duration::from_micros(high));
        Latency { read: us(60, 140), write: us(15, 60), durable: us(40, 200), flush: us(80, 600) }
    }
}

/// What a memory device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemOptions {
    /// Name for messages.
    pub name: String,
    /// Alignment of requests, bytes: a power of two, at least `atomic_write_unit`.
    pub block: u32,
    /// A power cut tears writes at multiples of this, bytes: a power of two.
    pub atomic_write_unit: u32,
    /// Times of requests in a simulation.
    pub latency: Latency,
    /// Seed of those times.
    pub seed: u64,
}

impl Default for MemOptions {
    /// Blocks of 4096 bytes, torn at 512.
    fn default() -> MemOptions {
        let (block, latency) = (varve_device::BLOCK as u32, Latency::default());
        MemOptions { name: "memory".into(), block, atomic_write_unit: 512, latency, seed: 0 }
    }
}

/// A device in memory with a durable and a volatile image. See the module's page, `docs/device.md`.
pub struct MemDevice {
    name: Arc<str>,
    options: MemOptions,
    state: Mutex<State>,
    /// Signalled when held requests are let go, by a cut or by power that comes back.
    changed: Condvar,
    counters: Counters,
    /// The device itself, for its tickets.
    this: Weak<MemDevice>,
}

struct State {
    image: Image,
    rng: Rng,
    power: bool,
    /// Counts power cuts; a request of an earlier epoch is lost.
    epoch: u64,
    /// New requests stay in flight until the power is cut.
    hold: bool,
    /// Requests in flight by the time at which they take effect, and number.
    flights: BTreeMap<(Instant, u64), Flight>,
    /// Bytes that reads found at their completion, until they are waited for.
    arrived: BTreeMap<u64, Box<[u8]>>,
    /// Lengths that `set_len` calls under way will set.
    growing: BTreeMap<u64, u64>,
    next: u64,
}

impl MemDevice {
    /// A device of `len` zero bytes with default options.
    pub fn new(len: u64) -> Arc<MemDevice> {
        MemDevice::with(len, MemOptions::default())
    }

    /// A device of `len` zero bytes, rounded up to whole blocks.
    pub fn with(len: u64, options: MemOptions) -> Arc<MemDevice> {
        let (block, unit) = (options.block, options.atomic_write_unit);
        assert!(block.is_power_of_two() && unit.is_power_of_two() && unit <= block, "block {block}, unit {unit}");
        let image = Image::new(len.next_multiple_of(block.into()), unit as usize);
        MemDevice::of(image, options)
    }

    fn of(image: Image, options: MemOptions) -> Arc<MemDevice> {
        let state = State {
            image,
            rng: Rng::from_seed(options.seed),
            power: true,
            epoch: 0,
            hold: false,
            flights: BTreeMap::new(),
            arrived: BTreeMap::new(),
            growing: BTreeMap::new(),
            next: 0,
        };
        let (state, changed, counters) = (hardware_mutex(state), Condvar::new(), Counters::default());
        let name = options.name.as_str().into();
        Arc::new_cyclic(|this| MemDevice { name, options, state, changed, counters, this: this.clone() })
    }

    /// A second device with the same bytes, un-flushed versions included, for trying several cuts of one state.
    /// Requests in flight are not copied.
    pub fn clone_image(&self) -> Arc<MemDevice> {
        let mut state = self.state.lock();
        state.settle(varve_rt::now());
        MemDevice::of(state.image.clone(), self.options.clone())
    }

    /// Reads any range without a request, even while the power is off.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) {
        let mut state = self.state.lock();
        state.settle(varve_rt::now());
        state.image.read(offset, buf);
    }

    /// Does what file systems do when a flush fails (Rebello et al., "Can Applications Recover from fsync Failures?",
    /// USENIX ATC 2020): bytes that it should have made durable, about half of them here, are taken for clean. They are
    /// read until the power goes, and no later flush makes them durable.
    pub fn fail_flush(&self, seed: u64) {
        let mut state = self.state.lock();
        state.settle(varve_rt::now());
        state.image.fail_flush(&mut Rng::from_seed(seed));
    }

    /// Flips one bit of the byte at `offset`, durably: damage at rest.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        assert!(offset < state.image.len() && bit < 8, "bit {bit} of byte {offset} exists");
        state.settle(varve_rt::now());
        state.image.flip(offset, bit);
    }

    /// Checks every invariant of what is kept, for tests; panics where one does not hold.
    pub fn verify(&self) {
        let state = self.state.lock();
        assert!(state.power || state.flights.is_empty() && state.arrived.is_empty(), "without power nothing goes on");
        assert!(state.image.len().is_multiple_of(self.options.block.into()), "a device has whole blocks");
        state.image.verify();
    }

    /// Atomic units that a power cut could change now.
    pub fn unflushed_units(&self) -> usize {
        self.state.lock().image.unflushed_units()
    }

    /// Memory that the contents take, bytes (un-flushed versions not counted).
    pub fn resident_bytes(&self) -> u64 {
        self.state.lock().image.resident()
    }

    fn time_of(&self, state: &mut State, op: OpKind, durable: bool) -> Duration {
        let l = &self.options.latency;
        let (low, high) = match op {
            OpKind::Read => l.read,
            OpKind::Write if durable => l.durable,
            OpKind::Write | OpKind::Trim => l.write,
            OpKind::Flush | OpKind::SetLen | OpKind::Open => l.flush,
        };
        let nanos = state.rng.between(low.as_nanos() as u64, high.as_nanos() as u64);
        Duration::from_nanos(if state.rng.one_in(32) { nanos * 10 } else { nanos })
    }

    /// Starts one request: refuses it, or puts it in flight.
    fn start(&self, state: &mut State, io: &Io, now: Instant, timed: bool) -> Slot {
        if let Err(e) = varve_device::check(io, &self.name, self.options.block, state.image.len()) {
            return Slot::refused(e);
        }
        let (op, len, durable) = (io.op.kind(), io.len(), matches!(io.op, Op::Write { durable: true }));
        let payload = match io.op {
            // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
            Op::Write { .. } => Payload::bytes(unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), len) }),
            _ => Payload::zeros(),
        };
        let takes = if timed { self.time_of(state, op, durable) } else { Duration::ZERO };
        // A read sees the bytes of any moment while it is in flight, a write counts from its completion.
        let early = if timed && op == OpKind::Read { state.rng.below(takes.as_nanos() as u64) } else { 0 };
        let at = if state.hold { crate::due::NEVER } else { now + takes };
        let id = state.next;
        state.next += 1;
        let flight = Flight { op, offset: io.offset, len, durable, payload, mark: state.image.mark() };
        if timed {
            varve_rt::sim::note(flight.digest(&self.name) ^ at.as_nanos());
        }
        if durable {
            self.counters.durable_write();
        }
        let effect = if state.hold { at } else { at - Duration::from_nanos(early) };
        assert!(effect >= now, "a request takes effect after it came");
        state.flights.insert((effect, id), flight);
        if at <= now {
            // On OS threads: done before the next request of the batch starts.
            state.settle(now);
        }
        Slot::flying(at, effect, id)
    }
}

impl State {
    /// Applies every request whose time has come, in order of completion.
    fn settle(&mut self, now: Instant) {
        while let Some(entry) = self.flights.first_entry() {
            let (at, id) = *entry.key();
            if at > now {
                break;
            }
            let flight = entry.remove();
            match flight.op {
                OpKind::Read => {
                    let mut bytes = vec![0; flight.len].into_boxed_slice();
                    self.image.read(flight.offset, &mut bytes);
                    let before = self.arrived.insert(id, bytes);
                    assert!(before.is_none(), "a read completes once");
                }
                OpKind::Write => self.image.write(flight.offset, flight.len, flight.payload, flight.durable),
                OpKind::Trim => self.image.write(flight.offset, flight.len, Payload::zeros(), false),
                OpKind::Flush => self.image.flush(flight.mark),
                OpKind::Open | OpKind::SetLen => unreachable!("never in flight"),
            }
        }
    }
}

impl Device for MemDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::Memory,
            block: self.options.block,
            atomic_write_unit: self.options.atomic_write_unit,
            queue_depth: 64,
            direct: true,
            access: "memory".into(),
            fallback: None,
            capabilities: Capabilities { trim: true, extent: 0 },
        }
    }

    fn len(&self) -> u64 {
        self.state.lock().image.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(self.options.block.into());
        let (growing, epoch, takes) = {
            let mut state = self.state.lock();
            if !state.power {
                return Err(DeviceError::PowerLost);
            }
            let id = state.next;
            state.next += 1;
            state.growing.insert(id, len);
            (Growing { device: self, id }, state.epoch, self.time_of(&mut state, OpKind::SetLen, true))
        };
        if varve_rt::in_simulation() {
            varve_rt::sim::note(len);
            varve_rt::sleep(takes);
        }
        let mut state = self.state.lock();
        while state.hold && state.epoch == epoch && !varve_rt::dying() {
            self.changed.wait(&mut state);
        }
        let sound = state.epoch == epoch && !varve_rt::dying();
        if sound {
            state.settle(varve_rt::now());
            state.image.set_len(len);
        }
        drop(state);
        drop(growing);
        if sound { Ok(()) } else { Err(DeviceError::PowerLost) }
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.submit_batch(batch)
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}

/// A `set_len` call under way. Its thread may end in it, with the process that called.
struct Growing<'d> {
    device: &'d MemDevice,
    id: u64,
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.device.state.lock().growing.remove(&self.id);
    }
}

impl Powered for MemDevice {
    fn hold(&self) {
        let mut state = self.state.lock();
        state.settle(varve_rt::now());
        state.hold = state.power;
    }

    fn power_cut(&self, seed: u64) -> CutReport {
        let mut state = self.state.lock();
        if !state.power {
            return CutReport::default();
        }
        state.settle(varve_rt::now());
        let flights = std::mem::take(&mut state.flights).into_values();
        let writes = flights.filter(|f| matches!(f.op, OpKind::Write | OpKind::Trim));
        let unfinished: Vec<_> =
            writes.map(|f| Unfinished { offset: f.offset, len: f.len, payload: f.payload }).collect();
        let mut rng = Rng::from_seed(seed);
        let report = state.image.cut(&mut rng, &unfinished);
        for len in std::mem::take(&mut state.growing).into_values() {
            if rng.one_in(2) {
                state.image.set_len(len);
            }
        }
        (state.power, state.hold) = (false, false);
        state.epoch += 1;
        state.arrived.clear();
        assert!(state.flights.is_empty() && state.growing.is_empty(), "without power nothing goes on");
        drop(state);
        self.changed.notify_all();
        report
    }

    fn restore_power(&self) {
        self.state.lock().power = true;
    }
}
