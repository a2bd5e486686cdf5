//! A device that several use, none of whom sees what the others are told: a host at the other end of a connection, and
//! the merges beside the data.
//!
//! After a failed flush, durable write or change of length nobody knows what is on media, whoever asked for it: what
//! somebody else has written may be lost, and the next flush may succeed all the same. So from then on all of these
//! fail, with the first cause. Reads go on, and so do plain writes, which promise nothing. A [`Health`](crate::Health)
//! does the same for one database on its own host; here, nobody can be told but by an error.
//!
//! Invariants: a device that is latched stays so; nothing is promised while something that promises is under way and
//! may have failed.
//!
//! Lock order: `under_way` is held while the device is asked; `cause` is a leaf.

use crate::health::resized_nothing;
use crate::{Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, Ticket};
use std::ops::Range;
use std::sync::Arc;
use varve_rt::{Mutex, RwLock};

/// A device that promises nothing after a failed promise: see the module.
pub struct Latched {
    inner: Arc<dyn Device>,
    /// Held for reading by what promises something.
    under_way: RwLock<()>,
    /// The first failure.
    cause: Mutex<Option<Arc<str>>>,
}

impl Latched {
    /// `device`, of which nothing has failed yet. Everybody who uses it has to use the same `Latched`.
    pub fn new(device: Arc<dyn Device>) -> Arc<Latched> {
        Arc::new(Latched { inner: device, under_way: RwLock::new(()), cause: Mutex::new(None) })
    }

    /// The failure after which nothing is promised any more, if there was one.
    pub fn cause(&self) -> Option<Arc<str>> {
        self.cause.lock().clone()
    }

    fn refuse(&self) -> Result<(), DeviceError> {
        self.cause().map_or(Ok(()), |cause| {
            let why = format!(
                "a flush or durable write failed there before, and what had been written may be lost ({cause}); look \
                 at the drive, start what serves it anew, then open the database again so that it recovers"
            );
            Err(DeviceError::Refused { device: self.inner.info().name, why: why.into() })
        })
    }

    /// Asks for what promises something; what came of it counts if nothing has failed by then.
    fn promise(
        &self,
        harmless: impl FnOnce(&DeviceError) -> bool,
        ask: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.refuse()?;
        let result = {
            let _under_way = self.under_way.read();
            ask().inspect_err(|e| {
                if !harmless(e) {
                    self.cause.lock().get_or_insert_with(|| e.to_string().into());
                }
            })
        };
        // Those that were under way have noted by now what they were told: a loss is told once, and maybe to them.
        drop(self.under_way.write());
        result.and_then(|()| self.refuse())
    }
}

/// Whether something rests on a request.
fn promises(io: &Io) -> bool {
    matches!(io.op, Op::Flush | Op::Write { durable: true })
}

/// Whether a request was refused before anything was done for it.
fn not_begun(e: &DeviceError) -> bool {
    matches!(e, DeviceError::OutOfRange { .. } | DeviceError::Misaligned { .. } | DeviceError::ReadOnly { .. })
}

impl Device for Latched {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.promise(resized_nothing, || self.inner.set_len(len))
    }

    fn reserve_len(&self, len: u64) -> Result<(), DeviceError> {
        self.promise(resized_nothing, || self.inner.reserve_len(len))
    }

    /// A batch that promises something is waited for here.
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let promised: Vec<bool> = batch.iter().map(promises).collect();
        if !promised.contains(&true) {
            return self.inner.submit(batch);
        }
        let (n, mut results) = (batch.len(), Vec::new());
        let done = self.promise(not_begun, || {
            let mut ticket = self.inner.submit(batch);
            assert_eq!(ticket.len(), n, "a device answers every request");
            results.extend((0..n).map(|i| ticket.wait(i)));
            let failed = promised.iter().zip(&results).find_map(|(promised, result)| match result {
                Err(e) if *promised && !not_begun(e) => Some(e),
                _ => None,
            });
            failed.map_or(Ok(()), |e| Err(e.clone()))
        });
        if let Err(e) = done {
            results.resize(n, Err(e.clone()));
            let kept = promised.iter().zip(&mut results).filter(|(promised, result)| **promised && result.is_ok());
            kept.for_each(|(_, result)| *result = Err(e.clone()));
        }
        assert_eq!(results.len(), n, "every request has an answer");
        Ticket::ready(results)
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        if promises(&io) { self.promise(not_begun, || self.inner.run(io)) } else { self.inner.run(io) }
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn life_used(&self) -> Option<f64> {
        self.inner.life_used()
    }

    fn hint(&self, range: Range<u64>, hint: Hint) {
        self.inner.hint(range, hint);
    }
}
