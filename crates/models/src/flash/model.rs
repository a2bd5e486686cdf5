//! The drive as a [`Device`], in both worlds.
//!
//! In a simulation requests complete in virtual time. On OS threads they are paced: they complete when as much real
//! time has passed. A request takes effect when it is submitted, in the order of submission; a read's bytes are copied
//! by whoever waits for it, so no buffer is touched by anybody else.
//!
//! Invariants: the length is a multiple of the block, and at most the capacity; a request completes at or after its
//! submission; a new epoch begins when the power goes, and without power nothing is given to the drive.
//!
//! Lock order: `state` only; nothing waits while holding it.

use super::current::{self, Current, Unsettled};
use super::drive::{Done, Drive, FlashStats};
use super::store::PageContents;
use super::{Contents, FlashConfig, FlashError, Recovery};
use crate::CutReport;
use crate::due::NEVER;
use crate::power::Powered;
use std::sync::{Arc, Weak};
use varve_device::{
    Capabilities, Completion, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, OpKind,
    Stream, Ticket,
};
use varve_rt::{Condvar, Instant, Mutex, hardware_mutex};

/// A modelled flash drive. See `docs/flash.md`.
pub struct FlashModel {
    name: Arc<str>,
    block: u32,
    queue_depth: u32,
    state: Mutex<State>,
    /// Signalled when held requests are let go, by a cut or by power that comes back.
    changed: Condvar,
    counters: Counters,
    /// The device itself, for its tickets.
    this: Weak<FlashModel>,
}

struct State {
    drive: Drive,
    len: u64,
    current: Current,
    recovery: Option<Recovery>,
}

impl FlashModel {
    /// An empty drive of full capacity, kept in memory. [`Contents::Spare`] keeps no data (they read as zeros), for
    /// experiments on times and write amplification; power cuts need the spare areas, so `Contents::Nothing` is
    /// refused.
    pub fn new(config: &FlashConfig, contents: Contents) -> Result<Arc<FlashModel>, FlashError> {
        FlashModel::refuse_nothing(contents)?;
        Ok(FlashModel::of(Drive::new(config, contents)?))
    }

    /// An empty drive of full capacity whose pages are kept in `store`, which must be empty.
    pub fn with_store(
        config: &FlashConfig,
        contents: Contents,
        store: Box<dyn PageContents>,
    ) -> Result<Arc<FlashModel>, FlashError> {
        FlashModel::refuse_nothing(contents)?;
        Ok(FlashModel::of(Drive::with_store(config, contents, store)?))
    }

    fn refuse_nothing(contents: Contents) -> Result<(), FlashError> {
        if contents == Contents::Nothing {
            let accepted = "Full or Spare for a device; for counts alone use Ftl";
            return Err(FlashError::config("contents", "Nothing", accepted));
        }
        Ok(())
    }

    /// A device over `drive`, of `len` bytes, rounded up to whole blocks.
    pub(crate) fn with_drive(drive: Drive, len: u64) -> Arc<FlashModel> {
        let model = FlashModel::of(drive);
        let len = len.next_multiple_of(model.block.into());
        let mut state = model.state.lock();
        state.len = len.min(state.drive.capacity());
        drop(state);
        model
    }

    fn of(drive: Drive) -> Arc<FlashModel> {
        let config = drive.config();
        let (name, block) = (config.name.as_str().into(), config.geometry.page_bytes.min(varve_device::BLOCK as u32));
        let gates = config.geometry.chips() * if config.multi_plane { config.geometry.planes } else { 1 };
        let len = drive.capacity();
        let state = State { drive, len, current: Current::default(), recovery: None };
        Arc::new_cyclic(|this| FlashModel {
            name,
            block,
            queue_depth: (2 * gates).clamp(32, 1024),
            state: hardware_mutex(state),
            changed: Condvar::new(),
            counters: Counters::default(),
            this: this.clone(),
        })
    }

    /// A second drive with the same bytes, mapping and wear, nothing under way, at the beginning of a clock: for
    /// loading a layout once and using it for many experiments. Copies tables, not data.
    pub fn fork(&self) -> Arc<FlashModel> {
        let copy = FlashModel::of(self.fork_drive());
        copy.state.lock().len = self.state.lock().len;
        copy
    }

    /// The drive inside, as [`FlashModel::fork`] copies it.
    pub(crate) fn fork_drive(&self) -> Drive {
        let state = self.state.lock();
        assert!(state.current.is_on(), "a drive without power is not forked");
        state.drive.fork()
    }

    /// What the drive is like.
    pub fn config(&self) -> FlashConfig {
        self.state.lock().drive.config().clone()
    }

    /// Totals.
    pub fn flash_stats(&self) -> FlashStats {
        self.state.lock().drive.stats()
    }

    /// Starts the totals anew (the device's own counters go on).
    pub fn reset_stats(&self) {
        self.state.lock().drive.reset_stats();
    }

    /// What the last recovery from a power cut found.
    pub fn recovery(&self) -> Option<Recovery> {
        self.state.lock().recovery
    }

    /// Reads any range without a request, even while the power is off: the bytes that would be read now.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) -> Result<(), FlashError> {
        self.state.lock().drive.peek(offset, buf)
    }

    /// The streams that it keeps apart ([`Drive::streams`]).
    pub fn streams(&self) -> Vec<Stream> {
        self.state.lock().drive.streams().to_vec()
    }

    /// Checks every invariant of the drive's tables, for tests; panics where one does not hold.
    pub fn verify(&self) {
        self.state.lock().drive.ftl().verify();
    }

    /// Gives one request to the drive.
    fn start(&self, state: &mut State, io: &Io, now: u64) -> Result<Done, DeviceError> {
        assert!(state.current.is_on(), "a drive without power takes no requests");
        assert!(state.len.is_multiple_of(self.block.into()) && state.len <= state.drive.capacity());
        varve_device::check(io, &self.name, self.block, state.len)?;
        let (op, len) = (io.op.kind(), io.len() as u64);
        let drive = &mut state.drive;
        let done = match io.op {
            Op::Read => drive.read(now, io.offset, len).map(Done::at),
            Op::Write { durable } => {
                // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
                let data = unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) };
                if durable {
                    self.counters.durable_write();
                }
                if varve_rt::in_simulation() {
                    varve_rt::sim::note(digest(data));
                }
                drive.write_in(now, (io.offset, data), io.stream, durable)
            }
            Op::Trim => drive.trim(now, io.offset, len).map(Done::at),
            Op::Flush => drive.flush(now),
        };
        let done = done.map_err(|e| self.error(e, op, io.offset, len))?;
        assert!(done.at >= now, "a request completes after its submission");
        if varve_rt::in_simulation() {
            varve_rt::sim::note(io.offset.rotate_left(32) ^ len ^ done.at ^ (op as u64) << 56);
        }
        Ok(done)
    }

    fn error(&self, error: FlashError, op: OpKind, offset: u64, len: u64) -> DeviceError {
        error.of_request(op, &self.name, (offset, len))
    }

    /// The result of a request whose time has come.
    fn collect(
        &self,
        state: &State,
        io: &Io,
        started: Instant,
        refused: Option<DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut result = refused.map_or(Ok(()), Err);
        if result.is_ok() && io.op == Op::Read && io.len() > 0 {
            let mut bytes = vec![0; io.len()];
            let peeked = state.drive.peek(io.offset, &mut bytes);
            // SAFETY: the request is waited for just now.
            unsafe { io.buf.fill(&bytes) };
            result = peeked.map_err(|e| self.error(e, OpKind::Read, io.offset, io.len() as u64));
        }
        self.counters.finished(io.op.kind(), io.len() as u64, started.elapsed().as_nanos() as u64, result.is_ok());
        result
    }
}

/// A number that differs between different bytes, for the running hash of a simulation.
fn digest(data: &[u8]) -> u64 {
    data.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// One request of a ticket.
struct Slot {
    io: Io,
    /// When it completes, as it was known when it was given.
    at: Instant,
    /// What it rests on; that may end later than it was to.
    done: Done,
    refused: Option<DeviceError>,
}

/// A ticket's side of a batch in flight.
struct Batch {
    device: Arc<FlashModel>,
    epoch: u64,
    started: Instant,
    slots: Vec<Slot>,
}

impl Batch {
    /// When a request ends, as it is known now.
    fn settles(&self, state: &State, i: usize) -> Instant {
        Instant::from_nanos(state.drive.settles(&self.slots[i].done))
    }
}

impl Unsettled for State {
    fn is_lost(&self, epoch: u64) -> bool {
        self.current.is_lost(epoch)
    }
}

impl Completion for Batch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let lock = (&device.state, &device.changed);
        let due = current::wait(lock, self.epoch, self.slots[i].at, |state| self.settles(state, i));
        let Ok(state) = due else {
            let io = &self.slots[i].io;
            device.counters.finished(io.op.kind(), io.len() as u64, 0, false);
            return Err(DeviceError::PowerLost);
        };
        let slot = &mut self.slots[i];
        device.collect(&state, &slot.io, self.started, slot.refused.take())
    }

    fn try_done(&mut self, i: usize) -> bool {
        let state = self.device.state.lock();
        let (now, slot) = (varve_rt::now(), &self.slots[i]);
        state.is_lost(self.epoch) || slot.at <= now && self.settles(&state, i) <= now
    }

    fn abandon(&mut self) {
        // Requests took effect when they were submitted; only a waiter copies a read's bytes.
    }
}

impl Device for FlashModel {
    fn life_used(&self) -> Option<f64> {
        self.state.lock().drive.life_used()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::Ssd,
            block: self.block,
            atomic_write_unit: self.block,
            queue_depth: self.queue_depth,
            direct: true,
            access: "flash model".into(),
            fallback: None,
            capabilities: Capabilities { trim: true, extent: 0 },
        }
    }

    fn len(&self) -> u64 {
        self.state.lock().len
    }

    /// The length may be anything up to the drive's capacity. What is cut off is trimmed.
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(self.block.into());
        varve_rt::sim::settle();
        let (done, epoch) = {
            let mut state = self.state.lock();
            if !state.current.is_on() {
                return Err(DeviceError::PowerLost);
            }
            let (old, capacity) = (state.len, state.drive.capacity());
            if len > capacity {
                return Err(DeviceError::NoSpace { op: OpKind::SetLen, device: self.name.clone(), offset: 0, len });
            }
            let now = varve_rt::now().as_nanos();
            let cut = |drive: &mut Drive| {
                if len < old {
                    // The rest of a page that is cut in the middle, then whole pages.
                    let page = u64::from(drive.config().geometry.page_bytes);
                    let whole = len.next_multiple_of(page).min(old);
                    if whole > len {
                        drive.write(now, len, &vec![0; (whole - len) as usize], true)?;
                    }
                    drive.trim(now, whole, old.next_multiple_of(page) - whole)?;
                }
                drive.flush(now)
            };
            let done = cut(&mut state.drive).map_err(|e| self.error(e, OpKind::SetLen, 0, len))?.at;
            state.len = len;
            (Instant::from_nanos(done), state.current.epoch())
        };
        varve_rt::sleep(done - varve_rt::now());
        if self.state.lock().current.is_lost(epoch) {
            return Err(DeviceError::PowerLost);
        }
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        varve_rt::sim::settle();
        let mut state = self.state.lock();
        if !state.current.is_on() {
            return Ticket::ready(batch.iter().map(|_| Err(DeviceError::PowerLost)).collect());
        }
        let (started, epoch) = (varve_rt::now(), state.current.epoch());
        state.drive.advance(started.as_nanos());
        let slots: Vec<Slot> = batch
            .into_iter()
            .map(|io| match self.start(&mut state, &io, started.as_nanos()) {
                Err(e) => Slot { io, at: started, done: Done::default(), refused: Some(e) },
                Ok(done) if state.current.holds() => Slot { io, at: NEVER, done, refused: None },
                Ok(done) => Slot { io, at: Instant::from_nanos(done.at), done, refused: None },
            })
            .collect();
        let device = self.this.upgrade().expect("a device that is used is alive");
        Ticket::pending(slots.len(), Box::new(Batch { device, epoch, started, slots }))
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}

impl Powered for FlashModel {
    fn hold(&self) {
        let mut state = self.state.lock();
        state.current.hold();
    }

    fn power_cut(&self, seed: u64) -> CutReport {
        let mut state = self.state.lock();
        if !state.current.is_on() {
            return CutReport::default();
        }
        let held = state.current.holds();
        let cut = state.drive.power_cut(varve_rt::now().as_nanos(), seed, held);
        state.current.cut();
        drop(state);
        self.changed.notify_all();
        cut.into()
    }

    /// Turns the power on: the map is found again from spare areas, checkpoint and journal, which takes its time.
    fn restore_power(&self) {
        let mut state = self.state.lock();
        if state.current.is_on() {
            return;
        }
        match state.drive.restore_power(varve_rt::now().as_nanos()) {
            Ok(found) => state.recovery = Some(found),
            // Worn out: what was written can be read, writes are refused.
            Err(FlashError::EndOfLife { .. }) => state.recovery = None,
            Err(e) => panic!("recovery of a modelled drive failed: {e}"),
        }
        state.current.restore();
    }
}
