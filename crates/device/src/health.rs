//! Whether a database can still keep what it promised, and the devices that know it.
//!
//! The rule, in one place: after a failed flush, durable write or change of length nobody knows what is on media. So
//! nothing of that kind is tried again and believed: the database is *poisoned*. Reads go on, and so do plain writes of
//! pages, which promise nothing; durable writes, on which every promise rests, are refused until the database is opened
//! again. A [`Watched`] device sees to that for all that is written through it.
//!
//! When the last handle of a database is gone its health *ends*: nothing at all is written through a watched device
//! from then on. The lock of the database's directory goes when nobody can write any more.
//!
//! Invariants: a database that is poisoned, or has ended, stays so; whoever sees that it is poisoned sees why; the
//! first cause is kept; the directory has one lock.
//!
//! Lock order: every lock here is a leaf, and none is held while a device or a listener is called.

use crate::{Completion, Device, DeviceError, DeviceInfo, DeviceStats, DirLock, Faults, Hint, Io, Op, OpKind, Ticket};
use std::sync::{Arc, Weak};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{JoinHandle, Mutex};

/// Is told when a database is poisoned: whoever waits for durability has to be woken.
pub trait PoisonListener: Send + Sync {
    /// Called once, in the thread that met the failure, maybe while it unwinds. Must not wait.
    fn poisoned(&self);
}

/// What the devices of one open database share. Starts sound, and never gets better.
#[derive(Default)]
pub struct Health {
    poisoned: AtomicBool,
    ended: AtomicBool,
    cause: Mutex<Option<Arc<str>>>,
    listeners: Mutex<Vec<Weak<dyn PoisonListener>>>,
    lock: Mutex<Option<DirLock>>,
    faults: Faults,
}

impl Health {
    /// Of a database that is being opened.
    pub fn new() -> Arc<Health> {
        Arc::default()
    }

    /// Nothing is promised durable any more. The first cause is kept.
    pub fn poison(&self, cause: &str) {
        self.cause.lock().get_or_insert_with(|| cause.into());
        if self.poisoned.swap(true, Ordering::AcqRel) {
            return;
        }
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.poisoned());
    }

    /// Whether promises are kept no longer.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Why promises are kept no longer, if so.
    pub fn cause(&self) -> Option<Arc<str>> {
        if !self.is_poisoned() {
            return None;
        }
        let cause = self.cause.lock().clone();
        assert!(cause.is_some(), "a database is poisoned for a reason");
        cause
    }

    /// Nothing is written from here on; what was submitted before may still be under way.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether nothing is written any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Of a database in which something is to go wrong.
    pub fn with(faults: Faults) -> Arc<Health> {
        Arc::new(Health { faults, ..Health::default() })
    }

    /// What is to go wrong in this database.
    #[inline]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Has one more told when the database is poisoned. Who waits for something looks after this whether it is already.
    pub fn listen(&self, listener: Weak<dyn PoisonListener>) {
        self.listeners.lock().push(listener);
    }

    /// Keeps the lock of the database's directory until [`Health::unlock`], or until nobody has a device that could
    /// write there.
    pub fn keep(&self, lock: DirLock) {
        let before = self.lock.lock().replace(lock);
        assert!(before.is_none(), "the directory of a database has one lock");
    }

    /// Lets go of the directory. Nothing may be under way any more.
    pub fn unlock(&self) {
        let lock = self.lock.lock().take();
        drop(lock);
    }

    /// Starts a service thread of the database. A panic in it poisons the database: what it was doing is half done, and
    /// who waits for it would wait for ever.
    pub fn spawn(
        self: &Arc<Health>,
        name: impl Into<String>,
        life: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, DeviceError> {
        let health = self.clone();
        let life = move || {
            let _guard = health.poison_on_panic("it serves the whole database");
            life();
        };
        varve_rt::try_spawn_daemon(name, life).map_err(DeviceError::no_thread)
    }

    /// While this is held, a panic poisons the database; `why` says what it leaves undone.
    pub fn poison_on_panic<'h>(&'h self, why: &'h str) -> PoisonOnPanic<'h> {
        PoisonOnPanic(self, why)
    }

    /// A panic unwinds the calling thread: poisons the database if so. True when it did.
    pub fn poison_if_panicking(&self, why: &str) -> bool {
        let panicking = varve_rt::panicking();
        if panicking {
            self.poison(&format!("thread '{}' panicked: {why}; its message is on stderr", varve_rt::current_name()));
        }
        panicking
    }

    /// Waits for threads of the database to end, but for the calling one.
    pub fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
        for thread in threads {
            if !thread.is_current() {
                // If it panicked it has poisoned the database.
                let _ = thread.join();
            }
        }
    }

    /// Why a request may not even be tried.
    fn refusal(&self, op: Op) -> Option<Arc<str>> {
        match op {
            Op::Read => None,
            _ if self.has_ended() => Some("the database is not open any more".into()),
            Op::Write { durable: true } => self.cause(),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("cause", &self.cause()).field("ended", &self.has_ended()).finish_non_exhaustive()
    }
}

/// See [`Health::poison_on_panic`].
pub struct PoisonOnPanic<'h>(&'h Health, &'h str);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        self.0.poison_if_panicking(self.1);
    }
}

/// Whether a change of length that ended like this changed nothing, as on a full device. Any other failure may be that
/// of a flush, which stood for the writes of everybody.
pub(crate) fn resized_nothing(e: &DeviceError) -> bool {
    match e {
        DeviceError::NoSpace { op, .. } => *op != OpKind::Flush,
        DeviceError::Unsupported { .. } | DeviceError::ReadOnly { .. } => true,
        _ => false,
    }
}

/// A device of a database: see the module.
#[derive(Clone)]
pub struct Watched {
    inner: Arc<dyn Device>,
    health: Arc<Health>,
    /// A failure poisons.
    poisons: bool,
}

impl Watched {
    /// A device on which promises rest.
    pub fn new(inner: Arc<dyn Device>, health: &Arc<Health>) -> Watched {
        Watched { inner, health: health.clone(), poisons: true }
    }

    /// A device whose failures its user judges himself; nothing is written to it after the end either.
    pub fn until_end(inner: Arc<dyn Device>, health: &Arc<Health>) -> Watched {
        Watched { inner, health: health.clone(), poisons: false }
    }

    /// What it shares with the other devices of the database.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn refuse(&self, op: Op) -> Result<(), DeviceError> {
        let why = match op {
            Op::Write { durable: true } if !self.poisons && !self.health.has_ended() => None,
            op => self.health.refusal(op),
        };
        why.map_or(Ok(()), |why| Err(DeviceError::Refused { device: self.inner.info().name, why }))
    }

    /// Whether the failure of a request poisons.
    fn matters(&self, op: Op) -> bool {
        self.poisons && matches!(op, Op::Flush | Op::Write { durable: true })
    }

    fn resize(&self, resize: impl FnOnce(&dyn Device) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.refuse(Op::Write { durable: true })?;
        let result = resize(&*self.inner);
        if let Err(e) = &result
            && self.poisons
            && !resized_nothing(e)
        {
            self.failed(e);
        }
        result
    }

    fn failed(&self, error: &DeviceError) {
        self.health.poison(&error.to_string());
    }
}

impl From<Arc<dyn Device>> for Watched {
    /// A device with a health of its own.
    fn from(inner: Arc<dyn Device>) -> Watched {
        Watched::new(inner, &Health::new())
    }
}

impl<D: Device + 'static> From<Arc<D>> for Watched {
    fn from(inner: Arc<D>) -> Watched {
        let inner: Arc<dyn Device> = inner;
        inner.into()
    }
}

impl Device for Watched {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.resize(|device| device.set_len(len))
    }

    fn reserve_len(&self, len: u64) -> Result<(), DeviceError> {
        self.resize(|device| device.reserve_len(len))
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        if let Some(refused) = batch.iter().find_map(|io| self.refuse(io.op).err()) {
            return Ticket::ready(batch.iter().map(|_| Err(refused.clone())).collect());
        }
        let matters: Vec<bool> = batch.iter().map(|io| self.matters(io.op)).collect();
        let ticket = self.inner.submit(batch);
        assert_eq!(ticket.len(), matters.len(), "a device answers every request");
        if !matters.contains(&true) {
            return ticket;
        }
        Ticket::pending(matters.len(), Box::new(Watch { device: self.clone(), ticket, matters }))
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.refuse(io.op)?;
        let matters = self.matters(io.op);
        self.inner.run(io).inspect_err(|e| {
            if matters {
                self.failed(e);
            }
        })
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn life_used(&self) -> Option<f64> {
        self.inner.life_used()
    }

    fn hint(&self, range: std::ops::Range<u64>, hint: Hint) {
        self.inner.hint(range, hint);
    }
}

/// A batch some of whose requests matter.
struct Watch {
    device: Watched,
    ticket: Ticket,
    matters: Vec<bool>,
}

impl Completion for Watch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let result = self.ticket.wait(i);
        if let Err(e) = &result
            && self.matters[i]
        {
            self.device.failed(e);
        }
        result
    }

    fn try_done(&mut self, i: usize) -> bool {
        self.ticket.try_done(i)
    }

    fn abandon(&mut self) {
        // The ticket under this one, dropped right after, does it.
    }
}
