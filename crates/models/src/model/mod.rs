//! What all modelled devices share: bytes, requests in flight, tickets, power. How long a request takes is the matter
//! of a [`Timing`], which is pure; one is made for each kind of storage.
//!
//! The device is computed *lazily*: nothing runs while nobody looks. The first to submit or wait brings the model up
//! to the present, which decides what the storage did in between. That gives the same results as a thread that works
//! all along, in virtual time and (paced by the waiters' sleep) in real time, since what a device decides at one moment
//! depends on requests that arrived before it.
//!
//! A write takes effect when it completes. It is durable then, unless the timing model has a volatile cache: then when
//! the model says that it was stored. A power cut treats the rest as [`crate::MemDevice`] does.
//!
//! Invariants: a request is decided once, and done at or after its submission; each decision about a request that has
//! not completed is in `due` at its time; who waits undecided is registered as a waiter; without power nothing is in
//! flight, held, due or cached. Times may go back: threads of different modelled cores ask at their own times.
//!
//! Lock order: `state` only; nothing waits while holding it, but `set_len` on the condition `changed`.

mod cache;
mod ticket;

pub(crate) use cache::WriteCache;

use crate::flash::Drive;
use crate::mem::{Image, Payload, Unfinished};
use crate::power::Powered;
use crate::{CutReport, Sparse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use ticket::{Batch, Slot};
use varve_device::check;
use varve_device::{
    Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, OpKind, Ticket,
};
use varve_rt::{Condvar, Event, HashMap, Instant, Mutex, Rng, hardware_mutex};

/// A request as a timing model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Number of the request; later ones are larger.
    pub id: u64,
    /// What is done: read, write, trim or flush.
    pub op: OpKind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Of a write: it must be on media when it completes.
    pub durable: bool,
    /// When the device gets it.
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Done(u64),
    Stored(u64),
}

/// What a timing model has decided.
#[derive(Debug, Default)]
pub struct Schedule(Vec<(Instant, Decision)>);

impl Schedule {
    /// Request `id` completes at `at`, which may lie in the future. Once for each request.
    pub fn done(&mut self, id: u64, at: Instant) {
        self.0.push((at, Decision::Done(id)));
    }

    /// Of a model with a volatile cache: what write `id` wrote is on media at `at`, not before its completion.
    pub fn stored(&mut self, id: u64, at: Instant) {
        self.0.push((at, Decision::Stored(id)));
    }
}

/// How one kind of storage spends its time. Pure: arrivals in, decisions out.
pub trait Timing: Send + 'static {
    /// Sort of storage, for [`DeviceInfo`].
    fn kind(&self) -> DeviceKind;

    /// Takes a request in. `advance` was called with its time before, and is called again after the last of a batch.
    fn arrive(&mut self, request: Arrival, out: &mut Schedule);

    /// Decides everything that is to be decided up to `now`.
    fn advance(&mut self, now: Instant, out: &mut Schedule) {
        let _ = (now, out);
    }

    /// After `advance(now)`: the moment, later than `now`, at which to go on deciding; `None` if nothing is open.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Completed writes are not durable until stored or flushed.
    fn volatile_cache(&self) -> bool {
        false
    }

    /// The power is gone: forgets what was under way.
    fn cut(&mut self);

    /// What was counted so far.
    fn stats(&self) -> ModelStats;
}

/// The table of a profile that describes a device by its times.
pub(crate) trait Section {
    /// Name of the table.
    fn name(&self) -> &'static str;

    /// Refuses values that describe nothing: the key, and what is accepted.
    fn check(&self) -> Result<(), (&'static str, String)>;

    /// The device; everything random about it follows from `seed`.
    fn timing(&self, seed: u64) -> Box<dyn Timing>;

    /// Bytes, where they follow from the table.
    fn capacity(&self) -> Option<u64> {
        None
    }

    /// Requests that it takes at a time.
    fn queue_depth(&self) -> u32 {
        64
    }
}

/// What a model knows of itself and its real twin would hide.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelStats {
    /// Time that the parts doing the work were busy, summed over parts.
    pub busy: Duration,
    /// Number of those parts (a disk: 1; flash: its chips).
    pub parts: u32,
    /// Time that requests waited for their turn, summed.
    pub waited: Duration,
    /// Requests that were served.
    pub served: u64,
    /// Most requests inside at one time.
    pub deepest: u32,
    /// Figures of this kind of storage, by name (unit in the name).
    pub details: Vec<(&'static str, f64)>,
}

impl ModelStats {
    /// What the model tells under this name.
    pub fn detail(&self, name: &str) -> Option<f64> {
        self.details.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
    }
}

impl ModelStats {
    /// Share of `elapsed` that the parts were busy.
    pub fn utilisation(&self, elapsed: Duration) -> f64 {
        self.busy.as_secs_f64() / (elapsed.as_secs_f64() * f64::from(self.parts.max(1))).max(1e-12)
    }
}

/// What modelled devices can do beyond [`Device`].
pub trait Modelled: Device + Powered {
    /// The bytes as they are now, completed writes included, as a cheap copy: what [`crate::Build`] takes.
    fn contents(&self) -> Sparse;
    /// Of a flash drive: a copy with the same bytes, mapping and wear, nothing under way, that [`crate::Build::drive`]
    /// takes. Bytes are shared until one of them changes.
    fn drive(&self) -> Option<Arc<Drive>> {
        None
    }
    /// What the model counted.
    fn model_stats(&self) -> ModelStats;
}

/// What a model stores, apart from how long it takes.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Name for messages.
    pub name: String,
    /// Alignment of requests, bytes: a power of two, at least `sector`.
    pub block: u32,
    /// Power cuts tear writes at multiples of this, bytes: a power of two.
    pub sector: u32,
    /// The device cannot be longer, bytes.
    pub capacity: u64,
    /// Requests in flight that the device can use.
    pub queue_depth: u32,
    /// Keep what is written. Otherwise reads leave their buffers alone: enough for measuring, and takes no memory.
    pub keep: bool,
}

/// A modelled device: bytes, and a [`Timing`] that says when.
pub struct Model {
    name: Arc<str>,
    options: ModelOptions,
    kind: DeviceKind,
    state: Mutex<State>,
    /// Signalled by power cuts.
    changed: Condvar,
    counters: Counters,
    this: Weak<Model>,
}

struct Flight {
    op: OpKind,
    offset: u64,
    len: usize,
    payload: Payload,
    durable: bool,
    mark: u64,
    started: Instant,
    /// When it completes, once decided.
    at: Option<Instant>,
}

struct State {
    timing: Box<dyn Timing>,
    image: Image,
    out: Schedule,
    power: bool,
    hold: bool,
    /// Counts power cuts; requests of an earlier epoch are lost.
    epoch: u64,
    next: u64,
    /// Requests that have not completed.
    flights: HashMap<u64, Flight>,
    /// Requests submitted while held.
    held: BTreeMap<u64, Flight>,
    /// What happens when, by time and order of decision.
    due: BTreeMap<(Instant, u64), Decision>,
    decisions: u64,
    /// Completed writes in the volatile cache: sequence in the image, place.
    cached: HashMap<u64, (u64, u64, usize)>,
    /// Those who wait, by request.
    waiters: BTreeMap<u64, Arc<Event>>,
    /// Of these, the ones whose request is not decided yet.
    undecided: BTreeSet<u64>,
    /// The undecided waiter that wakes at the timing model's next decision.
    leader: Option<u64>,
}

impl Model {
    /// A device of `len` bytes, rounded up to whole blocks, that holds `contents` (durably).
    pub fn new(timing: Box<dyn Timing>, len: u64, contents: Sparse, options: ModelOptions) -> Arc<Model> {
        let (block, sector) = (options.block, options.sector);
        assert!(block.is_power_of_two() && sector.is_power_of_two() && sector <= block, "block {block}, unit {sector}");
        let len = len.next_multiple_of(block.into());
        let kind = timing.kind();
        let state = State {
            timing,
            image: Image::of(contents, len, sector as usize),
            out: Schedule::default(),
            power: true,
            hold: false,
            epoch: 0,
            next: 0,
            flights: HashMap::default(),
            held: BTreeMap::new(),
            due: BTreeMap::new(),
            decisions: 0,
            cached: HashMap::default(),
            waiters: BTreeMap::new(),
            undecided: BTreeSet::new(),
            leader: None,
        };
        let (state, changed, counters) = (hardware_mutex(state), Condvar::new(), Counters::default());
        let name = options.name.as_str().into();
        Arc::new_cyclic(|this| Model { name, options, kind, state, changed, counters, this: this.clone() })
    }

    /// Starts one request: refuses it, or hands it to the timing model.
    fn start(&self, state: &mut State, io: &Io, now: Instant) -> Slot {
        debug_assert!(state.power, "requests come to a model that has power");
        if let Err(e) = check(io, &self.name, self.options.block, state.image.len()) {
            return Slot { id: u64::MAX, refused: Some(e) };
        }
        let (op, len, durable) = (io.op.kind(), io.len(), matches!(io.op, Op::Write { durable: true }));
        let payload = match io.op {
            Op::Write { .. } if self.options.keep => {
                // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
                let bytes = unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), len) };
                Payload::bytes(bytes)
            }
            _ => Payload::zeros(),
        };
        if durable {
            self.counters.durable_write();
        }
        let id = state.next;
        state.next += 1;
        let mark = state.image.mark();
        let flight = Flight { op, offset: io.offset, len, payload, durable, mark, started: now, at: None };
        if varve_rt::in_simulation() {
            varve_rt::sim::note(flight.digest());
        }
        if state.hold {
            state.held.insert(id, flight);
        } else {
            let arrival = Arrival { id, op, offset: io.offset, len: len as u64, durable, at: now };
            state.flights.insert(id, flight);
            state.timing.arrive(arrival, &mut state.out);
        }
        Slot { id, refused: None }
    }

    /// Brings the model up to `now`.
    fn settle(&self, state: &mut State, now: Instant) {
        if !state.power {
            assert!(state.flights.is_empty() && state.held.is_empty() && state.due.is_empty());
            return;
        }
        state.timing.advance(now, &mut state.out);
        for (at, decision) in std::mem::take(&mut state.out.0) {
            state.decisions += 1;
            state.due.insert((at, state.decisions), decision);
            if let Decision::Done(id) = decision {
                let flight = state.flights.get_mut(&id).expect("a request completes once");
                assert!(flight.at.is_none(), "a request is decided once");
                assert!(at >= flight.started, "a request is done after it came");
                flight.at = Some(at);
                if state.undecided.remove(&id) {
                    state.waiters[&id].set();
                }
            }
        }
        while let Some(entry) = state.due.first_entry() {
            let at = entry.key().0;
            if at > now {
                break;
            }
            let decision = entry.remove();
            self.apply(state, at, decision);
        }
    }

    fn apply(&self, state: &mut State, at: Instant, decision: Decision) {
        let id = match decision {
            Decision::Done(id) => id,
            Decision::Stored(id) => {
                if let Some((seq, offset, len)) = state.cached.remove(&id) {
                    state.image.store(offset, len, seq);
                }
                return;
            }
        };
        let flight = state.flights.remove(&id).expect("a request completes once");
        assert_eq!(flight.at, Some(at), "a request completes when it was decided to");
        self.counters.finished(flight.op, flight.len as u64, (at - flight.started).as_nanos() as u64, true);
        match flight.op {
            OpKind::Write | OpKind::Trim if self.options.keep => {
                let durable = flight.durable || !state.timing.volatile_cache();
                state.image.write(flight.offset, flight.len, flight.payload, durable);
                if !durable {
                    state.cached.insert(id, (state.image.mark(), flight.offset, flight.len));
                }
            }
            OpKind::Flush => state.image.flush(flight.mark),
            _ => {}
        }
    }
}

impl Flight {
    /// A number that differs between different requests, for the running hash of a simulation: kind, place and a sample
    /// of the bytes.
    fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |word: u64| hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        add(self.op as u64 * 2 + u64::from(self.durable));
        add(self.offset);
        add(self.len as u64);
        for sample in self.payload.as_deref().unwrap_or_default().chunks_exact(8).step_by(16) {
            add(u64::from_le_bytes(sample.try_into().expect("eight bytes")));
        }
        hash
    }
}

impl Device for Model {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: self.kind,
            block: self.options.block,
            atomic_write_unit: self.options.sector,
            queue_depth: self.options.queue_depth,
            direct: true,
            access: "model".into(),
            fallback: None,
            capabilities: Capabilities { trim: self.kind != DeviceKind::Disk, extent: 0 },
        }
    }

    fn len(&self) -> u64 {
        self.state.lock().image.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(self.options.block.into());
        varve_rt::sim::note(len);
        varve_rt::sim::settle();
        let mut state = self.state.lock();
        self.settle(&mut state, varve_rt::now());
        if !state.power {
            return Err(DeviceError::PowerLost);
        }
        let epoch = state.epoch;
        while state.hold && state.epoch == epoch && !varve_rt::dying() {
            self.changed.wait(&mut state);
        }
        if state.epoch != epoch || varve_rt::dying() {
            return Err(DeviceError::PowerLost);
        }
        if len > self.options.capacity {
            let device = self.name.clone();
            return Err(DeviceError::NoSpace { op: OpKind::SetLen, device, offset: self.options.capacity, len });
        }
        state.image.set_len(len);
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        varve_rt::sim::settle();
        let mut state = self.state.lock();
        let now = varve_rt::now();
        self.settle(&mut state, now);
        if !state.power {
            return Ticket::ready(batch.iter().map(|_| Err(DeviceError::PowerLost)).collect());
        }
        let mut slots = Vec::with_capacity(batch.len());
        for io in batch {
            let slot = self.start(&mut state, &io, now);
            slots.push((io, slot));
        }
        self.settle(&mut state, now);
        let epoch = state.epoch;
        drop(state);
        let device = self.this.upgrade().expect("a device that is used is alive");
        Ticket::pending(slots.len(), Box::new(Batch::new(device, epoch, slots)))
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}

impl Modelled for Model {
    fn contents(&self) -> Sparse {
        let mut state = self.state.lock();
        self.settle(&mut state, varve_rt::now());
        state.image.contents().clone()
    }

    fn model_stats(&self) -> ModelStats {
        let mut state = self.state.lock();
        self.settle(&mut state, varve_rt::now());
        state.timing.stats()
    }
}

impl Powered for Model {
    fn hold(&self) {
        let mut state = self.state.lock();
        self.settle(&mut state, varve_rt::now());
        state.hold = state.power;
    }

    fn power_cut(&self, seed: u64) -> CutReport {
        let mut state = self.state.lock();
        if !state.power {
            return CutReport::default();
        }
        self.settle(&mut state, varve_rt::now());
        let mut flights: Vec<_> = std::mem::take(&mut state.flights).into_iter().collect();
        flights.sort_by_key(|(id, _)| *id);
        flights.extend(std::mem::take(&mut state.held));
        let writes = flights.into_iter().map(|(_, f)| f).filter(|f| matches!(f.op, OpKind::Write | OpKind::Trim));
        let unfinished: Vec<_> =
            writes.map(|f| Unfinished { offset: f.offset, len: f.len, payload: f.payload }).collect();
        let report = match self.options.keep {
            true => state.image.cut(&mut Rng::from_seed(seed), &unfinished),
            false => CutReport::default(),
        };
        state.timing.cut();
        state.due.clear();
        state.cached.clear();
        (state.power, state.hold) = (false, false);
        state.epoch += 1;
        state.undecided.clear();
        state.leader = None;
        state.waiters.values().for_each(|w| w.set());
        drop(state);
        self.changed.notify_all();
        report
    }

    fn restore_power(&self) {
        self.state.lock().power = true;
    }
}
