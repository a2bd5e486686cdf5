//! Batches through rings: `io_uring`, or a few threads where there is none.
//!
//! Every outstanding ticket has a ring of its own, checked out of a small pool, so that the thread that waits reaps its
//! own completions: no reaper thread, no lock while waiting, no wake-up in between.
//!
//! Invariants: a ring goes back to the pool, or is closed, only when everything that it started has completed. No
//! buffer is in the kernel's hands after that. `flying` counts the requests in flight, which have no result yet; a
//! request ends once.

use super::Inner;
use super::sys::{Ring, RingOp, raw};
use crate::{Completion, DeviceError, Io, Op, Ticket};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_rt::{Instant, Mutex};

/// Requests that a ring can queue at once; larger batches are submitted in parts.
const ENTRIES: u32 = 64;
/// Rings kept for reuse.
const IDLE: usize = 4;

/// Idle rings of a device.
pub(super) struct Rings(Mutex<Vec<Box<dyn Ring>>>);

impl Rings {
    pub(super) fn new(first: Option<Box<dyn Ring>>) -> Rings {
        Rings(Mutex::new(first.into_iter().collect()))
    }

    pub(super) fn open(sys: &dyn super::sys::Syscalls) -> Result<Box<dyn Ring>, i32> {
        sys.ring(ENTRIES)
    }

    fn take(&self, sys: &dyn super::sys::Syscalls) -> Result<Box<dyn Ring>, i32> {
        let idle = self.0.lock().pop();
        idle.map_or_else(|| Rings::open(sys), Ok)
    }

    fn give_back(&self, ring: Box<dyn Ring>) {
        let mut idle = self.0.lock();
        assert!(idle.len() <= IDLE);
        if idle.len() < IDLE {
            idle.push(ring);
        }
    }
}

/// One request of a batch.
struct Slot {
    io: Io,
    /// Write stream that it goes with; 0: none.
    stream: u8,
    /// Handed to the kernel and not yet completed.
    flying: bool,
    result: Option<Result<(), DeviceError>>,
}

/// A batch in flight.
struct Batch {
    inner: Arc<Inner>,
    /// None once every request has completed.
    ring: Option<Box<dyn Ring>>,
    slots: Vec<Slot>,
    flying: usize,
    started: Instant,
    /// The ring answered with an error of its own and is not used again.
    broken: bool,
}

/// Starts `batch`, whose requests were checked (`Some(error)`: refused already).
pub(super) fn start(inner: &Arc<Inner>, batch: Vec<(Io, Option<DeviceError>)>) -> Ticket {
    let started = varve_rt::now();
    let slot =
        |(io, refused): (Io, Option<DeviceError>)| Slot { io, stream: 0, flying: false, result: refused.map(Err) };
    let slots: Vec<Slot> = batch.into_iter().map(slot).collect();
    inner.busy.begun(slots.iter().filter(|slot| slot.result.is_none()).count() as u64, started);
    let ring = inner.uring.load(Relaxed).then(|| inner.rings.take(&*inner.sys)).and_then(|ring| match ring {
        Ok(ring) => Some(ring),
        Err(errno) => {
            let name = inner.sys.ring_name();
            inner.note(&format!("no further {name} (errno {errno}), using positional I/O where none is free"));
            None
        }
    });
    let mut batch = Batch { inner: inner.clone(), ring, slots, flying: 0, started, broken: false };
    batch.fly();
    batch.run_rest();
    let begun = |slot: &Slot| slot.flying || slot.result.is_some();
    debug_assert!(batch.slots.iter().all(begun), "a request is in flight or has ended");
    batch.reap();
    batch.retire();
    Ticket::pending(batch.slots.len(), Box::new(batch))
}

impl Batch {
    /// Hands as many requests as possible to the ring.
    fn fly(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        let mut queued: Vec<usize> = Vec::with_capacity(self.slots.len());
        let mut begun = 0;
        for i in 0..self.slots.len() {
            let slot = &self.slots[i];
            if slot.result.is_some() {
                continue;
            }
            let Some(op) = self.ring_op(&slot.io) else { continue };
            if let RingOp::Write { stream, .. } = op {
                self.slots[i].stream = stream;
            }
            // SAFETY: the makers of the Io keep its memory valid until it was waited for, which reaps its completion;
            // a dropped ticket waits in `abandon`.
            while !unsafe { ring.push(raw(&self.inner.fd), i as u64, op) } {
                let before = begun;
                self.launch(&mut *ring, &queued, &mut begun);
                if self.broken || begun == before {
                    self.broken = true;
                    self.ring = Some(ring);
                    return;
                }
            }
            queued.push(i);
        }
        self.launch(&mut *ring, &queued, &mut begun);
        self.ring = Some(ring);
    }

    /// Starts what is queued; `begun` counts the started ones of `queued`.
    fn launch(&mut self, ring: &mut dyn Ring, queued: &[usize], begun: &mut usize) {
        let mut tries = 0;
        while *begun < queued.len() {
            match ring.submit() {
                Ok(n) => {
                    assert!(n <= queued.len() - *begun, "no more begins than is queued");
                    for &i in &queued[*begun..*begun + n] {
                        let slot = &mut self.slots[i];
                        assert!(!slot.flying && slot.result.is_none(), "a request begins once");
                        slot.flying = true;
                        if slot.stream == 0 {
                            self.inner.goes_without(&slot.io);
                        }
                    }
                    self.flying += n;
                    *begun += n;
                    if n == 0 {
                        self.broken = true;
                        return;
                    }
                }
                Err(libc::EINTR) => {}
                // Short of kernel memory or of completion slots: completions make room.
                Err(libc::EAGAIN | libc::EBUSY) if tries < 100 => {
                    tries += 1;
                    while let Some((tag, result)) = ring.pop() {
                        self.complete(tag, result);
                    }
                    varve_rt::sleep(Duration::from_micros(100));
                }
                Err(errno) => {
                    let name = self.inner.sys.ring_name();
                    self.inner.note(&format!("{name} failed to submit (errno {errno}), using positional I/O"));
                    self.broken = true;
                    return;
                }
            }
        }
    }

    fn ring_op(&self, io: &Io) -> Option<RingOp> {
        let (offset, len) = (io.offset, u32::try_from(io.len()).ok()?);
        match io.op {
            Op::Read => Some(RingOp::Read { ptr: io.buf.as_mut_ptr(), len, offset }),
            Op::Write { durable } => {
                // Without RWF_DSYNC a durable write is two calls, which the positional path makes.
                let able = !durable || self.inner.dsync.load(Relaxed);
                let stream = if able { self.inner.stream_number(io) } else { 0 };
                able.then(|| RingOp::Write { ptr: io.buf.as_ptr(), len, offset, dsync: durable, stream })
            }
            Op::Flush => Some(RingOp::Sync),
            Op::Trim => None,
        }
    }

    /// Executes in this thread what the ring did not take.
    fn run_rest(&mut self) {
        for i in 0..self.slots.len() {
            let slot = &self.slots[i];
            if slot.result.is_none() && !slot.flying {
                if slot.io.op != Op::Trim {
                    self.inner.counters.fallback();
                }
                self.inner.goes_without(&slot.io);
                let result = self.inner.execute(&slot.io, 0);
                self.finish(i, result);
            }
        }
    }

    /// Takes in every completion that is there.
    fn reap(&mut self) {
        while let Some((tag, result)) = self.ring.as_mut().and_then(|ring| ring.pop()) {
            self.complete(tag, result);
        }
    }

    fn complete(&mut self, tag: u64, result: i32) {
        let i = tag as usize;
        let slot = &mut self.slots[i];
        assert!(slot.flying, "a completion belongs to a request in flight");
        slot.flying = false;
        assert!(self.flying > 0, "requests in flight are counted");
        self.flying -= 1;
        let (io, inner) = (&slot.io, &*self.inner);
        let result = match result {
            n if n >= 0 && (n as usize == io.len() || io.op == Op::Flush) => Ok(()),
            // Short: the rest positionally. Direct I/O continues at a whole block.
            n if n >= 0 => {
                inner.counters.retry();
                let done = n as usize;
                inner.execute(io, if inner.direct.load(Relaxed) { done - done % crate::device::BLOCK } else { done })
            }
            // Interrupted, cancelled with its submitting thread, or refused as such: positional I/O knows what to do.
            n if matches!(-n, libc::EINTR | libc::EAGAIN | libc::ECANCELED) => {
                inner.counters.retry();
                inner.execute(io, 0)
            }
            n if matches!(-n, libc::EINVAL | libc::EOPNOTSUPP) && io.op != Op::Flush => {
                let direct = inner.direct.load(Relaxed);
                let result = inner.execute(io, 0);
                // Without a stream, and else in the same manner, it was taken.
                if slot.stream > 0 && result.is_ok() && direct == inner.direct.load(Relaxed) {
                    inner.stream_refused();
                }
                result
            }
            n => Err(inner.error(io, 0, -n)),
        };
        let result = if io.op == Op::Flush { inner.flushed(result) } else { result };
        self.finish(i, result);
    }

    fn finish(&mut self, i: usize, result: Result<(), DeviceError>) {
        let slot = &mut self.slots[i];
        assert!(!slot.flying && slot.result.is_none(), "a request ends once");
        self.inner.count(&slot.io, self.started, result.is_ok());
        slot.result = Some(result);
    }

    /// Gives the ring back when nothing is in flight any more.
    fn retire(&mut self) {
        debug_assert_eq!(self.flying, self.slots.iter().filter(|slot| slot.flying).count());
        if self.flying == 0
            && let Some(ring) = self.ring.take()
            && !self.broken
        {
            self.inner.rings.give_back(ring);
        }
    }

    /// Waits for at least one completion and takes in what is there.
    fn wait_some(&mut self) {
        let ring = self.ring.as_mut().expect("requests in flight have a ring");
        match ring.wait() {
            Ok(()) | Err(libc::EINTR) => {}
            // The kernel will not let us sleep: completions still arrive in the queue, so look again soon.
            Err(_) => varve_rt::sleep(Duration::from_micros(100)),
        }
        self.reap();
        self.retire();
    }
}

impl Completion for Batch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let slot = &self.slots[i];
        assert!(
            slot.flying || slot.result.is_some(),
            "a request that is waited for is in flight, or its result is there"
        );
        while self.slots[i].result.is_none() {
            self.wait_some();
        }
        self.slots[i].result.take().expect("loop ends when it is there")
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.reap();
        self.retire();
        self.slots[i].result.is_some()
    }

    /// Real I/O is never simulated, so waiting here is allowed, and it is the only way to get the buffers back.
    fn abandon(&mut self) {
        while self.flying > 0 {
            self.wait_some();
        }
    }
}
