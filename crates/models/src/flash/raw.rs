//! The modelled array as raw flash that can be waited for, in both worlds: [`Nand`] with its rules, times, faults and
//! power cuts, behind [`RawFlash`].
//!
//! Marks are the ends that operations were promised, nanoseconds. An operation takes effect when it is submitted; what
//! a power cut leaves of it is decided by the array's journal. A read's bytes are those of its submission.
//!
//! Invariants: an operation completes at or after its submission; without power nothing is given to the array.
//!
//! Lock order: `state` only; nothing waits while holding it.

use super::current::{self, Current, Unsettled};
use super::image::ImageFile;
use super::store::PageBytes;
use super::{CellMode, Contents, FlashConfig, FlashError, Geometry, Nand, NandCounts, Page, Span, Usage};
use crate::CutReport;
use crate::due::NEVER;
use crate::power::{PowerSupply, Powered};
use std::sync::{Arc, Weak};
use varve_device::flash::{BlockInfo, RawCompletion, RawFlash, RawIo, RawOp, RawTicket};
use varve_rt::{Condvar, Instant, Mutex, Rng, hardware_mutex};

/// Modelled raw flash. See `docs/flash.md`.
pub struct RawModel {
    name: Arc<str>,
    endurance: u32,
    state: Mutex<State>,
    /// Signalled when held operations are let go.
    changed: Condvar,
    /// Counts the operations, and cuts the power in one of them; none: nobody does.
    supply: Option<Arc<PowerSupply>>,
    /// The file that it is kept in, if it is in one.
    image: Option<Arc<ImageFile>>,
    /// The device itself, for its tickets.
    this: Weak<RawModel>,
}

struct State {
    nand: Nand,
    current: Current,
}

/// The bytes, rules and wear of raw flash that nobody uses. It has no lock, so several simulations may begin with it at
/// once: a lock belongs to one simulation, and one that finds it taken by another would wait for ever.
#[derive(Clone)]
pub struct RawAtRest {
    name: Arc<str>,
    endurance: u32,
    nand: Nand,
}

impl RawAtRest {
    /// Flash with these bytes, at the beginning of a clock. Copies tables, not data. No supply feeds it.
    pub fn wake(&self) -> Arc<RawModel> {
        assert_eq!(self.nand.counts(), NandCounts::default(), "flash at rest has done nothing yet on its clock");
        RawModel::of(self.nand.clone(), (self.name.clone(), self.endurance), None, None)
    }
}

impl RawModel {
    /// Erased flash, kept in memory. Power cuts need contents.
    pub fn new(config: &FlashConfig) -> Result<Arc<RawModel>, FlashError> {
        RawModel::on(config, None)
    }

    /// The same, fed by a supply that counts its operations.
    pub fn fed(config: &FlashConfig, supply: &Arc<PowerSupply>) -> Result<Arc<RawModel>, FlashError> {
        let model = RawModel::on(config, Some(supply.clone()))?;
        supply.attach(model.clone());
        Ok(model)
    }

    fn on(config: &FlashConfig, supply: Option<Arc<PowerSupply>>) -> Result<Arc<RawModel>, FlashError> {
        let nand = Nand::new(config, Contents::Full)?;
        Ok(RawModel::of(nand, (config.name.as_str().into(), config.endurance), supply, None))
    }

    /// An array that is kept in a file.
    pub(super) fn on_image(nand: Nand, of: (Arc<str>, u32), image: Arc<ImageFile>) -> Arc<RawModel> {
        RawModel::of(nand, of, None, Some(image))
    }

    fn of(
        nand: Nand,
        (name, endurance): (Arc<str>, u32),
        supply: Option<Arc<PowerSupply>>,
        image: Option<Arc<ImageFile>>,
    ) -> Arc<RawModel> {
        assert!(image.is_none() || supply.is_none(), "who keeps an array in a file has no model cut its power");
        let state = hardware_mutex(State { nand, current: Current::default() });
        let changed = Condvar::new();
        Arc::new_cyclic(|this| RawModel { name, endurance, state, changed, supply, image, this: this.clone() })
    }

    /// What the array holds now, nothing under way. Copies tables, not data.
    pub fn rest(&self) -> RawAtRest {
        let state = self.state.lock();
        assert!(state.current.is_on(), "flash without power has no bytes to be copied");
        let mut nand = state.nand.clone();
        drop(state);
        nand.restart_clock();
        RawAtRest { name: self.name.clone(), endurance: self.endurance, nand }
    }

    /// Second flash with the same bytes and wear, nothing under way, at the beginning of a clock. No supply feeds it.
    pub fn fork(&self) -> Arc<RawModel> {
        self.rest().wake()
    }

    /// Totals of the operations.
    pub fn counts(&self) -> NandCounts {
        self.state.lock().nand.counts()
    }

    /// How busy each of its chips was, or each plane where they work by themselves.
    pub fn gate_usage(&self) -> Vec<Usage> {
        self.state.lock().nand.gate_usage()
    }

    /// Sets how the cells of a chip are used; its blocks must all be erased.
    pub fn set_mode(&self, chip: u32, mode: CellMode) -> Result<(), FlashError> {
        self.state.lock().nand.set_mode(chip, mode)
    }
}

/// What a read found when it was given.
struct Image {
    bytes: Result<Option<PageBytes>, FlashError>,
}

/// Gives one operation to the array.
fn give(nand: &mut Nand, now: u64, io: &RawIo<'_>) -> Result<(Span, Option<Image>, u32), FlashError> {
    let at = now.max(io.after);
    let none = |span: Span, block: u32| (span, None, block);
    let given = match io.op {
        RawOp::Read { page, data, spare } => {
            let span = nand.sense_checked(at, page, (data, spare))?;
            (span, Some(Image { bytes: nand.image(page) }), page.block)
        }
        RawOp::Program { page, data, spare } => none(nand.program(at, page, data, spare)?, page.block),
        RawOp::Append { page, data, spare } => none(nand.append(at, page, data, spare)?, page.block),
        RawOp::Copy { from, to, spare } => none(nand.copy(at, from, to, spare)?, to.block),
        RawOp::Erase { block } => none(nand.erase(at, block)?, block),
    };
    assert!(given.0.end >= now, "an operation ends after it was given");
    Ok(given)
}

/// One operation of a ticket.
struct Slot {
    /// When it completes, as it was known when it was given.
    at: Instant,
    /// The end that it was promised, and the block that it rests on.
    promised: u64,
    block: Option<u32>,
    image: Option<Image>,
    /// What the array was told before is to be durable.
    sync: bool,
}

struct Batch {
    device: Arc<RawModel>,
    epoch: u64,
    slots: Vec<Slot>,
}

impl Unsettled for State {
    fn is_lost(&self, epoch: u64) -> bool {
        self.current.is_lost(epoch)
    }
}

impl Slot {
    /// When it ends, as it is known now.
    fn settles(&self, state: &State) -> Instant {
        Instant::from_nanos(self.block.map_or(self.promised, |block| state.nand.settles(block, self.promised)))
    }
}

impl RawCompletion for Batch {
    fn wait(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        let slot = &self.slots[i];
        let lock = (&self.device.state, &self.device.changed);
        let done = current::wait(lock, self.epoch, slot.at, |state| slot.settles(state));
        drop(done.map_err(|_| FlashError::PowerLost)?);
        if let Some(image) = self.device.image.as_ref().filter(|_| slot.sync) {
            image.sync()?;
        }
        let Some(image) = &slot.image else { return Ok(()) };
        super::nand::show(image.bytes.clone()?.as_ref(), data, spare);
        Ok(())
    }

    fn early(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        if self.device.state.lock().current.is_lost(self.epoch) {
            return Err(FlashError::PowerLost);
        }
        let image = self.slots[i].image.as_ref().expect("a read has its bytes");
        super::nand::show(image.bytes.clone()?.as_ref(), data, spare);
        Ok(())
    }

    fn try_done(&self, i: usize) -> bool {
        let (state, slot, now) = (self.device.state.lock(), &self.slots[i], varve_rt::now());
        state.is_lost(self.epoch) || slot.at <= now && slot.settles(&state) <= now
    }
}

impl RawModel {
    /// Gives a batch to the array.
    fn begin(&self, batch: &[RawIo<'_>]) -> RawTicket {
        let mut state = self.state.lock();
        let (now, epoch) = (varve_rt::now().as_nanos(), state.current.epoch());
        if !state.current.is_on() {
            return self.ticket(batch.iter().map(|_| Err(FlashError::PowerLost)).collect(), epoch, Vec::new());
        }
        state.nand.advance(now);
        let (mut given, mut slots) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for io in batch {
            let sound = |given| self.image.as_ref().map_or(Ok(()), |image| image.sound()).map(|()| given);
            let done = give(&mut state.nand, now, io).and_then(sound);
            let (promised, block) = done.as_ref().map_or((now, None), |(span, _, block)| (span.end, Some(*block)));
            let at = if state.current.holds() { NEVER } else { Instant::from_nanos(promised) };
            if varve_rt::in_simulation() {
                varve_rt::sim::note(promised.rotate_left(20) ^ u64::from(block.unwrap_or(u32::MAX)));
            }
            let (span, image) = match done {
                Ok((span, image, _)) => (Ok(span), image),
                Err(e) => (Err(e), None),
            };
            given.push(span);
            slots.push(Slot { at, promised, block, image, sync: false });
        }
        assert_eq!(given.len(), batch.len(), "every operation is answered");
        drop(state);
        self.ticket(given, epoch, slots)
    }

    fn ticket(&self, given: Vec<Result<Span, FlashError>>, epoch: u64, slots: Vec<Slot>) -> RawTicket {
        let answered = slots.is_empty() || slots.len() == given.len();
        assert!(answered, "what is accepted has a slot");
        let device = self.this.upgrade().expect("a device that is used is alive");
        RawTicket::new(given, Box::new(Batch { device, epoch, slots }))
    }
}

impl RawFlash for RawModel {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        *self.state.lock().nand.geometry()
    }

    fn mode(&self, chip: u32) -> CellMode {
        self.state.lock().nand.mode(chip)
    }

    fn nop(&self) -> u8 {
        self.state.lock().nand.nop()
    }

    fn block(&self, block: u32) -> BlockInfo {
        let state = self.state.lock();
        let nand = &state.nand;
        assert!(block < nand.geometry().blocks(), "a block of the flash");
        let (erases, reads, next) = (nand.erases(block), nand.reads_since_erase(block), nand.next_page(block));
        BlockInfo { bad: nand.is_bad(block), torn: nand.is_torn(block), erases, reads, next }
    }

    fn mark_bad(&self, block: u32) {
        self.state.lock().nand.mark_bad(block);
    }

    fn add_reliable(&self, blocks: Vec<u32>) {
        self.state.lock().nand.set_reliable(blocks);
    }

    fn may_append(&self, page: Page) -> Result<(), FlashError> {
        self.state.lock().nand.may_append(page)
    }

    fn submit(&self, batch: &[RawIo<'_>]) -> RawTicket {
        varve_rt::sim::settle();
        let Some(supply) = &self.supply else { return self.begin(batch) };
        let cut = if supply.is_on() { supply.tick(batch.len() as u64) } else { None };
        if cut.is_some() {
            supply.hold();
        }
        let ticket = self.begin(batch);
        if let Some(seed) = cut {
            supply.cut(seed);
        }
        ticket
    }

    fn fence(&self, mark: u64) -> RawTicket {
        let state = self.state.lock();
        let epoch = state.current.epoch();
        if !state.current.is_on() {
            drop(state);
            return self.ticket(vec![Err(FlashError::PowerLost)], epoch, Vec::new());
        }
        let at = if state.current.holds() { NEVER } else { Instant::from_nanos(mark) };
        drop(state);
        let slot = Slot { at, promised: mark, block: None, image: None, sync: true };
        self.ticket(vec![Ok(Span { start: 0, end: mark })], epoch, vec![slot])
    }

    fn endurance(&self) -> Option<u32> {
        Some(self.endurance).filter(|most| *most < u32::MAX)
    }

    fn life_used(&self) -> Option<f64> {
        let state = self.state.lock();
        let blocks = state.nand.geometry().blocks();
        let erases: u64 = (0..blocks).map(|b| u64::from(state.nand.erases(b))).sum();
        (self.endurance < u32::MAX).then(|| erases as f64 / (f64::from(blocks) * f64::from(self.endurance)))
    }
}

impl Powered for RawModel {
    fn hold(&self) {
        self.state.lock().current.hold();
    }

    fn power_cut(&self, seed: u64) -> CutReport {
        let mut state = self.state.lock();
        if !state.current.is_on() {
            return CutReport::default();
        }
        let (now, held) = (varve_rt::now().as_nanos(), state.current.holds());
        let mut rng = Rng::from_seed(seed);
        state.nand.advance(now);
        let at = state.nand.moment_of_cut(held, &mut rng);
        assert!(at >= now, "what is done is not undone");
        let cut = state.nand.power_cut(at, rng.next_u64());
        state.current.cut();
        drop(state);
        self.changed.notify_all();
        cut.into()
    }

    fn restore_power(&self) {
        let mut state = self.state.lock();
        if !state.current.is_on() {
            state.current.restore();
        }
    }
}
