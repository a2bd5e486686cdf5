//! A device that fails on purpose: a wrapper that injects the faults of a plan into any other device.
//!
//! Invariants: a rule decides the fate of no more requests than it matched; what is written in place of the caller's
//! bytes lives until the request was waited for; a request that never got to the inner device has an error to report,
//! or is a write that is acknowledged all the same.
//!
//! Lock order: `state` is never held while the inner device or the power supply is called.

mod plan;

pub use plan::{Fault, FaultCounts, FaultPlan, Rule, When};

use crate::{MemDevice, PowerSupply};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{
    AlignedBuf, Completion, Device, DeviceError, DeviceInfo, DeviceStats, Io, Op, OpKind, Ticket, Words,
};
use varve_rt::{Instant, Mutex, Rng, hardware_mutex};

/// Any device, with faults.
pub struct Faulty {
    inner: Arc<dyn Device>,
    /// The inner device, if flushes that fail are to make it forget.
    memory: Option<Arc<MemDevice>>,
    supply: Arc<PowerSupply>,
    state: Mutex<State>,
}

struct State {
    plan: FaultPlan,
    /// Requests that each rule matched so far.
    matched: Vec<u64>,
    /// Requests whose fate each rule decided.
    decided: Vec<u64>,
    /// The writes that were falsified: where and how long.
    false_writes: Vec<FalseWrite>,
    rng: Rng,
    counts: FaultCounts,
}

/// A write that was acknowledged although it was not done as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FalseWrite {
    /// What was done instead.
    pub fault: Fault,
    /// First byte that should have been written.
    pub offset: u64,
    /// Bytes that should have been written.
    pub len: u64,
    /// First byte that was written instead; for a lost write nothing was.
    pub at: u64,
}

/// What the plan has in store for one request.
#[derive(Clone, Copy, Default)]
struct Fate {
    fault: Option<Fault>,
    delay: Duration,
    /// A random number for the details of the fault.
    dice: u64,
}

impl Faulty {
    /// `inner` with the faults of `plan`, on a power supply of its own.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Arc<Faulty> {
        Faulty::powered(inner, plan, PowerSupply::new())
    }

    /// `inner` with the faults of `plan`, sharing `supply` with other devices. Devices that lose bytes with the power
    /// ([`crate::Powered`]) are attached to the supply by whoever makes them.
    pub fn powered(inner: Arc<dyn Device>, plan: FaultPlan, supply: Arc<PowerSupply>) -> Arc<Faulty> {
        let state = State::new(plan);
        Arc::new(Faulty { inner, memory: None, supply, state: hardware_mutex(state) })
    }

    /// As [`Faulty::powered`], over memory that forgets what a flush with an `EIO` should have made durable
    /// ([`MemDevice::fail_flush`]).
    pub fn forgetful(memory: Arc<MemDevice>, plan: FaultPlan, supply: Arc<PowerSupply>) -> Arc<Faulty> {
        let state = hardware_mutex(State::new(plan));
        Arc::new(Faulty { inner: memory.clone(), memory: Some(memory), supply, state })
    }

    /// Replaces the plan; counts go on.
    pub fn set_plan(&self, plan: FaultPlan) {
        let mut state = self.state.lock();
        let counts = state.counts;
        *state = State { counts, ..State::new(plan) };
    }

    /// Faults injected so far.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().counts
    }

    /// How often each rule of the plan in force decided the fate of a request.
    pub fn decided(&self) -> Vec<u64> {
        self.state.lock().decided.clone()
    }

    /// The writes falsified by the plan in force, in order.
    pub fn false_writes(&self) -> Vec<FalseWrite> {
        self.state.lock().false_writes.clone()
    }

    /// The power supply.
    pub fn supply(&self) -> &Arc<PowerSupply> {
        &self.supply
    }

    fn error(&self, op: OpKind, offset: u64, len: u64, fault: Fault) -> DeviceError {
        let device = self.inner.info().name;
        match fault {
            Fault::NoSpace => DeviceError::NoSpace { op, device, offset, len },
            _ => {
                let retryable = fault == Fault::TransientEio;
                let errno = if fault == Fault::Unsupported { libc::EOPNOTSUPP } else { libc::EIO };
                DeviceError::Io { op, device, offset, len, errno, retryable }
            }
        }
    }

    /// Does something else than the write that is asked for.
    fn falsify(&self, mut io: Io, fault: Fault, dice: u64, mut slot: Slot) -> (Slot, Option<Io>) {
        let (offset, len, durable) = (io.offset, io.len() as u64, matches!(io.op, Op::Write { durable: true }));
        let at = match fault {
            Fault::Misdirected(by) => (offset + by) % self.inner.len().saturating_sub(len).max(1) / len * len,
            _ => offset,
        };
        self.state.lock().false_writes.push(FalseWrite { fault, offset, len, at });
        match fault {
            Fault::Lost => return (slot, None),
            Fault::Misdirected(_) => io.offset = at,
            _ => {
                let mut copy = AlignedBuf::new(io.len());
                // SAFETY: the caller of `Io::write` promised `len` valid, unchanging bytes.
                copy.copy_from_slice(unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) });
                let mut rng = Rng::from_seed(dice);
                let from = rng.below(len) as usize;
                let noise = (1 + rng.below(64) as usize).min(io.len() - from);
                copy[from..from + noise].iter_mut().for_each(|byte| *byte ^= 1 + rng.below(255) as u8);
                // SAFETY: `copy` is kept in the ticket's slot until the request was waited for.
                io = unsafe { Io::write(offset, copy.as_ptr(), copy.len(), durable) }.in_stream(io.stream);
                slot.copy = Some(copy);
            }
        }
        (slot, Some(io))
    }

    /// Counts `n` operations; the seed of the cut if the supply's order or the plan wants the power to fail in them.
    fn cut_due(&self, n: u64, fates: &[Fate]) -> Option<u64> {
        let ordered = self.supply.tick(n);
        ordered.or_else(|| fates.iter().find(|f| f.fault == Some(Fault::PowerCut)).map(|f| f.dice))
    }

    /// Prepares one request for the inner device, or decides that it never gets there.
    fn prepare(&self, mut io: Io, fate: Fate) -> (Slot, Option<Io>) {
        let (op, offset, len) = (io.op.kind(), io.offset, io.len() as u64);
        let mut slot = Slot { delay: fate.delay, ..Slot::default() };
        match fate.fault {
            Some(fault @ (Fault::Eio | Fault::TransientEio)) => {
                slot.verdict = Some(self.error(op, offset, len, fault));
                if let (OpKind::Flush, Some(memory)) = (op, &self.memory) {
                    memory.fail_flush(fate.dice);
                }
                // A failed write may have reached the media all the same.
                if op != OpKind::Write || fate.dice & 1 == 0 {
                    return (slot, None);
                }
            }
            Some(fault @ (Fault::NoSpace | Fault::Unsupported)) => {
                slot.verdict = Some(self.error(op, offset, len, fault));
                return (slot, None);
            }
            Some(fault @ Fault::Short) => {
                slot.verdict = Some(self.error(op, offset, len, fault));
                let block = u64::from(self.inner.info().block);
                match fate.dice % (len / block) * block {
                    0 => return (slot, None),
                    some => io = io.split_at(some as usize).0,
                }
            }
            Some(fault @ (Fault::Lost | Fault::Misdirected(_) | Fault::Scribbled)) => {
                return self.falsify(io, fault, fate.dice, slot);
            }
            Some(Fault::FlipOnRead) => slot.flip = Some((io.buf.as_mut_ptr() as usize, fate.dice % (len * 8))),
            Some(Fault::FlipAtRest) => {
                let mut copy = AlignedBuf::new(io.len());
                // SAFETY: the caller of `Io::write` promised `len` valid, unchanging bytes.
                copy.copy_from_slice(unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) });
                let bit = fate.dice % (len * 8);
                copy[(bit / 8) as usize] ^= 1 << (bit % 8);
                let durable = matches!(io.op, Op::Write { durable: true });
                // SAFETY: `copy` is kept in the ticket's slot until the request was waited for.
                io = unsafe { Io::write(offset, copy.as_ptr(), copy.len(), durable) }.in_stream(io.stream);
                slot.copy = Some(copy);
            }
            Some(Fault::Delay(_) | Fault::PowerCut) | None => {}
        }
        (slot, Some(io))
    }
}

impl State {
    fn new(plan: FaultPlan) -> State {
        State {
            matched: vec![0; plan.rules.len()],
            decided: vec![0; plan.rules.len()],
            false_writes: Vec::new(),
            rng: Rng::from_seed(plan.seed),
            plan,
            counts: FaultCounts::default(),
        }
    }

    /// Decides the fate of a request, and counts it.
    fn fate(&mut self, op: OpKind, durable: bool, offset: u64, len: u64) -> Fate {
        let mut fate = Fate { dice: self.rng.next_u64(), ..Fate::default() };
        let counts = self.matched.iter_mut().zip(&mut self.decided);
        for (rule, (matched, decided)) in self.plan.rules.iter().zip(counts) {
            let touches = |r: &std::ops::Range<u64>| op != OpKind::Flush && offset < r.end && r.start < offset + len;
            let here = rule.ops.is_empty() || rule.ops.contains(&op);
            let here = here && (op != OpKind::Write || rule.durable.is_none_or(|d| d == durable));
            if !here || !rule.range.as_ref().is_none_or(touches) || !fits(rule.fault, op, len) {
                continue;
            }
            *matched += 1;
            let fires = match rule.when {
                When::OneIn(n) => self.rng.one_in(n),
                When::Nth(n) => *matched == n,
                When::From(n) => *matched >= n,
            };
            match rule.fault {
                Fault::Delay(d) if fires => fate.delay += d,
                fault if fires && fate.fault.is_none() => {
                    fate.fault = Some(fault);
                    *decided += 1;
                }
                _ => {}
            }
            assert!(*decided <= *matched, "a rule decides what it matches");
        }
        self.counts.delays += u64::from(!fate.delay.is_zero());
        match fate.fault {
            Some(Fault::Eio | Fault::TransientEio) => self.counts.eio += 1,
            Some(Fault::NoSpace) => self.counts.no_space += 1,
            Some(Fault::Short) => self.counts.short += 1,
            Some(Fault::Unsupported) => self.counts.unsupported += 1,
            Some(Fault::Lost | Fault::Misdirected(_) | Fault::Scribbled) => self.counts.false_writes += 1,
            Some(Fault::FlipOnRead) => self.counts.flips_on_read += 1,
            Some(Fault::FlipAtRest) => self.counts.flips_at_rest += 1,
            Some(Fault::PowerCut) => self.counts.power_cuts += 1,
            Some(Fault::Delay(_)) | None => {}
        }
        fate
    }
}

/// Whether a fault makes sense for an operation.
fn fits(fault: Fault, op: OpKind, len: u64) -> bool {
    match fault {
        Fault::NoSpace => matches!(op, OpKind::Write | OpKind::SetLen),
        Fault::FlipOnRead => op == OpKind::Read && len > 0,
        Fault::Short => matches!(op, OpKind::Read | OpKind::Write) && len > 0,
        Fault::FlipAtRest | Fault::Lost | Fault::Misdirected(_) | Fault::Scribbled => op == OpKind::Write && len > 0,
        Fault::Unsupported | Fault::Eio | Fault::TransientEio | Fault::Delay(_) | Fault::PowerCut => true,
    }
}

impl Device for Faulty {
    fn life_used(&self) -> Option<f64> {
        self.inner.life_used()
    }

    fn hint(&self, range: std::ops::Range<u64>, hint: varve_device::Hint) {
        debug_assert!(range.start <= range.end, "a range ends where it begins, or later");
        self.inner.hint(range, hint);
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        if !self.supply.is_on() {
            return Err(DeviceError::PowerLost);
        }
        let fate = self.state.lock().fate(OpKind::SetLen, true, 0, len);
        if !fate.delay.is_zero() {
            varve_rt::sleep(fate.delay);
        }
        if let Some(seed) = self.cut_due(1, &[fate]) {
            // The cut comes before the new length is set or after, but before the caller hears of it.
            if fate.dice & 1 == 0 {
                let _ = self.inner.set_len(len);
            }
            self.supply.cut(seed);
            return Err(DeviceError::PowerLost);
        }
        match fate.fault {
            Some(fault @ (Fault::Eio | Fault::TransientEio | Fault::NoSpace | Fault::Unsupported)) => {
                Err(self.error(OpKind::SetLen, 0, len, fault))
            }
            _ => self.inner.set_len(len),
        }
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let cuts = self.supply.cuts();
        if !self.supply.is_on() {
            return Ticket::ready(batch.iter().map(|_| Err(DeviceError::PowerLost)).collect());
        }
        let fates: Vec<Fate> = {
            let mut state = self.state.lock();
            let durable = |io: &Io| matches!(io.op, Op::Write { durable: true });
            batch.iter().map(|io| state.fate(io.op.kind(), durable(io), io.offset, io.len() as u64)).collect()
        };
        let cut = self.cut_due(batch.len() as u64, &fates);
        if cut.is_some() {
            self.supply.hold();
        }
        let mut passed = Vec::with_capacity(batch.len());
        let mut slots = Vec::with_capacity(batch.len());
        for (io, fate) in batch.into_iter().zip(fates) {
            let falsified = matches!(fate.fault, Some(Fault::Lost));
            let (mut slot, io) = self.prepare(io, fate);
            assert!(io.is_some() || slot.verdict.is_some() || falsified, "what is not done has an error to report");
            if let Some(io) = io {
                slot.inner = Some(passed.len());
                passed.push(io);
            }
            slots.push(slot);
        }
        let started = varve_rt::now();
        let ticket = self.inner.submit(passed);
        if let Some(seed) = cut {
            self.supply.cut(seed);
        }
        let supply = self.supply.clone();
        Ticket::pending(slots.len(), Box::new(Flight { ticket, slots, started, supply, cuts }))
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// One request of a batch with faults.
#[derive(Default)]
struct Slot {
    /// Its index in the inner device's batch, if it got there.
    inner: Option<usize>,
    /// The error to report whatever the inner device says.
    verdict: Option<DeviceError>,
    delay: Duration,
    /// Address of a read's buffer, and the bit to flip in it.
    flip: Option<(usize, u64)>,
    /// What is written in place of the caller's bytes.
    copy: Option<AlignedBuf>,
}

struct Flight {
    // Dropped before the slots, whose copies its requests use.
    ticket: Ticket,
    slots: Vec<Slot>,
    started: Instant,
    supply: Arc<PowerSupply>,
    /// Power cuts when the batch was submitted; more by now means that it was lost.
    cuts: u64,
}

impl Completion for Flight {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let slot = &mut self.slots[i];
        let done = slot.inner.map_or(Ok(()), |inner| self.ticket.wait(inner));
        let late = (self.started + slot.delay) - varve_rt::now();
        if !slot.delay.is_zero() && !late.is_zero() {
            varve_rt::sleep(late);
        }
        if self.supply.cuts() != self.cuts || varve_rt::dying() {
            return Err(DeviceError::PowerLost);
        }
        done?;
        if let Some((address, bit)) = slot.flip {
            let word = (address + (bit / 64 * 8) as usize) as *mut u8;
            // SAFETY: a word of the read's buffer, which the caller of `Io::read` promised to be valid and exclusive
            // until this wait returns; the inner device is done with it.
            let word = unsafe { Words::new(word, 8) };
            word.store(0, &(word.word(0) ^ 1 << (bit % 64)).to_le_bytes());
        }
        slot.verdict.take().map_or(Ok(()), Err)
    }

    fn try_done(&mut self, i: usize) -> bool {
        let slot = &self.slots[i];
        slot.inner.is_none_or(|inner| self.ticket.try_done(inner)) && self.started + slot.delay <= varve_rt::now()
    }

    fn abandon(&mut self) {
        // The inner ticket, dropped right after this, does it.
    }
}
