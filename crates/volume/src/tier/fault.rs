//! What a failed write or flush means: the rule, in one place.
//!
//! Nobody knows what a flush that failed has lost, nor which of two superblocks counts after one of them could not be
//! written. So neither is done again and believed. From then on nothing is promised that rests on that device: syncs
//! fail as the first one did, nothing new gets a slot, and the database is told at once ([`Keeper::broken`]). Reads go
//! on, and pages are written to where they are or home.
//!
//! A fast device that holds copies only is *forsaken* instead: every copy is dropped, and before the next sync promises
//! anything the database notes durably that what is there is not to be used again ([`Keeper::forsake`]), since the
//! device itself may not say so.
//!
//! Invariants: a device never gets better, but for another one that takes its place; one that was forsaken has no page
//! any more; the first error of a promise is the error of all after it.

use super::Tier;
use super::admit::{FAILURES, TierState};
use super::manager::DirtyWrites;
use super::slots::SlotState;
use crate::VolumeError;
use std::sync::Arc;
use varve_device::{DeviceError, Mistake};
use varve_rt::Mutex;

/// Answers for the database that the tier is part of.
pub trait Keeper: Send + Sync {
    /// A write or flush failed that durability rests on: nothing may be promised any more.
    fn broken(&self, cause: &VolumeError);
    /// Notes durably that what the fast device holds is not to be used again: the next opening shall begin with an
    /// empty tier.
    fn forsake(&self) -> Result<(), VolumeError>;
}

/// What the fast device is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Everything.
    Good,
    /// It failed, and held copies only: nothing is read from it any more.
    Forsaken,
    /// It, or home, failed in a way that nothing may be promised any more.
    Broken,
}

/// Work on one device that promises rest on, one after the other: who did it beside a flush that failed could not know
/// what it lost.
#[derive(Default)]
pub(super) struct Promise(Mutex<Option<VolumeError>>);

impl Promise {
    /// Does the work, unless something failed before. The first error goes through `failed`, and everything fails with
    /// it from then on.
    fn keep<T>(
        &self,
        work: impl FnOnce() -> Result<T, VolumeError>,
        failed: impl FnOnce(VolumeError) -> VolumeError,
    ) -> Result<T, VolumeError> {
        let mut first = self.0.lock();
        match &*first {
            Some(error) => Err(error.clone()),
            None => work().map_err(|error| first.insert(failed(error)).clone()),
        }
    }
}

/// The promises of a tier's devices, and whom it tells when it cannot keep them.
#[derive(Default)]
pub(super) struct Promises {
    fast: Promise,
    home: Promise,
    keeper: Mutex<Option<Arc<dyn Keeper>>>,
    /// It is noted that the fast device was forsaken.
    noted: Mutex<bool>,
}

impl Tier {
    /// Names who is told when a promise cannot be kept. Without anybody a fast device is never forsaken.
    pub fn answer_to(&self, keeper: Arc<dyn Keeper>) {
        *self.promises.keeper.lock() = Some(keeper);
        self.state.lock().answers = true;
    }

    /// Whether the fast device failed, held copies only, and is not used any more.
    pub fn forsaken(&self) -> bool {
        self.state.lock().standing == Standing::Forsaken
    }

    /// Makes what the slow store completed survive a power cut.
    pub(super) fn sync_home(&self) -> Result<(), VolumeError> {
        let believed = self.makes(Mistake::TierFailedSyncBelieved);
        let sync = || self.slow.sync().or_else(|e| if believed { Ok(()) } else { Err(e) });
        self.promises.home.keep(sync, |e| self.broken(e))
    }

    /// Writes on the fast device what recovery will believe, or flushes it.
    pub(super) fn on_fast<T>(&self, work: impl FnOnce() -> Result<T, VolumeError>) -> Result<T, VolumeError> {
        self.promises.fast.keep(work, |e| self.fast_broken(e))
    }

    fn fast_broken(&self, error: VolumeError) -> VolumeError {
        let error = self.loss(error);
        if self.state.lock().forsake() { error } else { self.broken(error) }
    }

    fn broken(&self, cause: VolumeError) -> VolumeError {
        self.state.lock().standing = Standing::Broken;
        if let Some(keeper) = &*self.promises.keeper.lock() {
            keeper.broken(&cause);
        }
        cause
    }

    /// What an error of the fast device means: when it has failed too often, what is lost with it.
    pub(super) fn loss(&self, error: VolumeError) -> VolumeError {
        let mut state = self.state.lock();
        let VolumeError::Device(device) = &error else { return error };
        state.fast_failed(device);
        if state.failed() { state.lost() } else { error }
    }

    /// Before anything is promised without a fast device that was forsaken: whoever opens the tier next must know.
    pub(super) fn note_forsaken(&self) -> Result<(), VolumeError> {
        let mut noted = self.promises.noted.lock();
        if *noted || !self.forsaken() {
            return Ok(());
        }
        let keeper = self.promises.keeper.lock().clone();
        keeper.expect("a device is forsaken only if somebody notes it").forsake()?;
        *noted = true;
        Ok(())
    }

    /// Another fast device is put to use: what the one before it failed to do is forgotten.
    pub(super) fn trust_fast(&self) -> Result<(), VolumeError> {
        if let Some(error) = &*self.promises.home.0.lock() {
            return Err(error.clone());
        }
        *self.promises.fast.0.lock() = None;
        *self.promises.noted.lock() = false;
        let mut state = self.state.lock();
        assert!(state.part.is_none(), "a device never gets better, but for another one in its place");
        (state.standing, state.failures) = (Standing::Good, 0);
        Ok(())
    }
}

impl TierState {
    /// Gives the fast device up if it holds copies only and somebody notes that: drops them all. Whether it is given
    /// up.
    fn forsake(&mut self) -> bool {
        let copies_only = self.style.dirty != DirtyWrites::Back && self.slots.newer() == 0;
        if self.standing != Standing::Good || !copies_only || !self.answers {
            return self.standing == Standing::Forsaken;
        }
        self.standing = Standing::Forsaken;
        let now = varve_rt::now().as_nanos();
        for slot in self.slots.in_use(0) {
            let state = self.slots.entry(slot).state;
            if state != SlotState::Free {
                self.drop_slot(slot, state == SlotState::Dead, now);
            }
        }
        assert_eq!(self.slots.occupied(), 0, "what was forsaken has no page");
        true
    }

    /// A request to the fast device failed.
    pub fn fast_failed(&mut self, error: &DeviceError) {
        self.counters.errors += 1;
        if *error != DeviceError::PowerLost {
            self.failures = self.failures.saturating_add(1);
        }
        if self.failed() {
            self.forsake();
        }
    }

    /// A request to the fast device succeeded.
    pub fn fast_worked(&mut self) {
        if !self.failed() {
            self.failures = 0;
        }
    }

    /// What is lost if the fast device is.
    pub fn lost(&self) -> VolumeError {
        let device = self.part.as_ref().map_or_else(|| "(none)".into(), |part| part.device.info().name);
        VolumeError::TierLost { device, pages: self.slots.newer() as u64, since: self.slots.newer_since() }
    }

    /// The fast device counts as lost.
    pub fn failed(&self) -> bool {
        self.failures >= FAILURES
    }
}
