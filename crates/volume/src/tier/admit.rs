//! The tier's decisions, under its lock: who gets a slot, who loses it. No I/O here.
//!
//! Invariants: a page enters a slot only while there is a device; a staged page is staged for the slot that it has,
//! until that is written or taken away; `staging` counts what is queued and what is being written from there; no more
//! is admitted on a day than its budget. [`TierState::check`] looks at them.

use super::TierOptions;
use super::fault::Standing;
use super::layout::{Geometry, Life};
use super::manager::{self, DirtyWrites, Manager, Offer, Place, Refusal, Style};
use super::map::MapFile;
use super::slots::{Slot, SlotState, Slots};
use super::stats::REFUSALS;
use super::{Counters, Recovery};
use crate::{CostClass, KeyspaceId, Lsn, PageId, VolumeError};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_device::{AlignedBuf, Device};
use varve_rt::{HashMap, Instant};

/// Class changes kept for the pool; beyond it they are dropped, which costs speed only.
const MAX_CLASS_CHANGES: usize = 1 << 16;

/// A clean page in memory, on its way to the fast device.
pub(super) struct Staged {
    pub slot: Slot,
    /// The bytes, sealed; `None` while they are being copied.
    pub bytes: Option<Arc<AlignedBuf>>,
}

/// A clean page to be written to its slot, unless it is not staged for that slot any more.
pub(super) struct Admission {
    pub page: PageId,
    pub slot: Slot,
    pub bytes: Arc<AlignedBuf>,
}

/// The fast device as it is used now.
pub(super) struct Part {
    pub device: Arc<dyn Device>,
    pub geometry: Geometry,
    pub file: MapFile,
}

/// A slot that was chosen: there is a device.
pub(super) const HAS_DEVICE: &str = "a slot belongs to a device";

impl Part {
    /// The byte at which the slot begins.
    pub fn at(&self, slot: Slot) -> u64 {
        assert!(slot < self.geometry.slots, "slot {slot} of {}", self.geometry.slots);
        self.geometry.slot(slot)
    }
}

/// Everything that is decided upon.
pub(super) struct TierState {
    /// None: every page is at home, and stays there.
    pub part: Option<Arc<Part>>,
    pub slots: Slots,
    pub manager: Box<dyn Manager>,
    pub style: Style,
    pub staged: HashMap<PageId, Staged>,
    /// Pages to be written to their slots, oldest first.
    pub queue: VecDeque<Admission>,
    /// Pages staged or being written from staging.
    pub staging: usize,
    pub class_changes: Vec<(PageId, CostClass)>,
    pub counters: Counters,
    pub recovery: Recovery,
    /// Slots that recovery found torn and that were not blanked yet.
    pub torn: Vec<Slot>,
    /// The map on the device was not kept as a log, as the next one is.
    pub to_say_log: bool,
    pub opened: Instant,
    /// The threads run.
    pub started: bool,
    /// The fast device is being given up: nothing is admitted, dirty pages go home.
    pub leaving: bool,
    /// Requests in a row that the fast device failed.
    pub failures: u32,
    /// What a failed write or flush left of the trust in it.
    pub standing: Standing,
    /// Somebody is told of it.
    pub answers: bool,
    /// Slots to keep empty.
    pub reserve: usize,
    /// Most slots that may be newer than home.
    ceiling: usize,
    pub life: Life,
    /// Bytes written when `life` was true, by these counters.
    pub life_at: u64,
    options: Shares,
}

/// What of the options depends on the number of slots, and what bounds admissions.
#[derive(Clone, Copy)]
struct Shares {
    reserve: Option<usize>,
    zone: f64,
    ceiling: f64,
    budget: Option<u64>,
    log_everything: bool,
}

/// Requests in a row that must fail before the fast device counts as lost.
pub(super) const FAILURES: u32 = 16;

/// Slots ranked anew at each search for the lowest.
const RENEWED: usize = 4;

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    varve_rt::unix_time() / 1_000_000_000
}

impl TierState {
    pub fn new(options: &TierOptions, slots: usize) -> Result<TierState, VolumeError> {
        let entry = manager::find(&options.manager).expect("validated before");
        let manager = (entry.make)(&options.options);
        let shares = Shares {
            reserve: options.reserve,
            zone: if options.map_recovery == super::MapRecovery::Zone { options.zone } else { 1.0 },
            ceiling: options.dirty_ceiling,
            budget: options.daily_budget,
            log_everything: options.map_recovery == super::MapRecovery::Log,
        };
        let mut state = TierState {
            part: None,
            slots: Slots::new(0, shares.log_everything),
            style: manager.style(),
            manager,
            staged: HashMap::default(),
            queue: VecDeque::new(),
            staging: 0,
            class_changes: Vec::new(),
            counters: Counters::default(),
            recovery: Recovery::default(),
            torn: Vec::new(),
            to_say_log: false,
            opened: varve_rt::now(),
            started: false,
            leaving: false,
            failures: 0,
            standing: Standing::Good,
            answers: false,
            reserve: 0,
            ceiling: 0,
            life: Life { created: unix_seconds(), ..Life::default() },
            life_at: 0,
            options: shares,
        };
        state.use_slots(Slots::new(slots, shares.log_everything));
        Ok(state)
    }

    /// Empty slots for a fast device that was not used before.
    pub fn empty_slots(&self, slots: usize) -> Slots {
        // Requests that are still under way for slots of a former device shall not take these for theirs.
        let version = self.counters.attached.wrapping_add(1).wrapping_shl(20) as u32;
        Slots::new(slots, self.options.log_everything).with_versions_from(version)
    }

    /// From now on these are the slots.
    pub fn use_slots(&mut self, slots: Slots) {
        self.slots = slots;
        self.resized();
    }

    /// The number of slots changed.
    pub fn resized(&mut self) {
        let slots = self.slots.len();
        self.manager.resized(slots);
        let reserve = self.options.reserve.unwrap_or((slots / 64).clamp(1, 128));
        // Emptying ahead must leave most of the zone.
        let zone = (self.options.zone * slots as f64) as usize;
        self.reserve = reserve.min(slots / 4).min((zone / 4).max(1));
        let ceiling = self.options.ceiling.min(f64::from(self.style.dirty_percent) / 100.0);
        self.ceiling = ((ceiling * slots as f64) as usize).max(self.reserve + 1);
    }

    /// Nothing is admitted.
    pub fn closed(&self) -> bool {
        !self.started || self.leaving || self.part.is_none() || self.failed() || self.standing != Standing::Good
    }

    /// Bytes written to the fast device by the tier since it was opened.
    pub fn written(&self) -> u64 {
        let c = &self.counters;
        c.slot_bytes + c.map_bytes + c.journal_bytes + c.memory_bytes
    }

    /// The life of the fast device up to now.
    pub fn life(&self) -> Life {
        assert!(self.written() >= self.life_at, "what was written stays written");
        Life { written: self.life.written + (self.written() - self.life_at), ..self.life }
    }

    /// The lowest-ranked page that could leave. Each search renews some ranks.
    pub fn lowest(&mut self, now: u64) -> Option<(Slot, f64)> {
        let manager = &mut self.manager;
        if !self.style.append {
            self.slots.renew(RENEWED, &mut |page, newer| manager.rank(page, newer, now));
        }
        self.slots.lowest(&mut |page, newer| manager.rank(page, newer, now))
    }

    /// Whether no page could leave before the next map.
    pub fn lowest_is_none(&mut self) -> bool {
        self.lowest(varve_rt::now().as_nanos()).is_none()
    }

    pub fn refuse(&mut self, why: Refusal) -> Refusal {
        let at = REFUSALS.iter().position(|(_, r)| *r == why).expect("every refusal has a counter");
        self.counters.refused[at] += 1;
        why
    }

    /// A slot for the page offered, taken from the free ones or from a page that may leave at once.
    pub fn offer(&mut self, mut offer: Offer, bytes: u64) -> Result<Slot, Refusal> {
        if self.closed() {
            return Err(self.refuse(Refusal::Detached));
        }
        if offer.dirty && self.slots.newer() >= self.ceiling {
            return Err(self.refuse(Refusal::Ceiling));
        }
        self.afford(bytes).map_err(|why| self.refuse(why))?;
        // Slots that were emptied ahead, up to this many, cost the lowest page its place: what takes one must deserve
        // it more.
        let spare = self.slots.free() > self.emptied_ahead();
        let lowest = if spare { None } else { self.lowest(offer.now) };
        let least = lowest.map(|(_, rank)| rank);
        offer.lowest = if spare { None } else { least.or_else(|| self.slots.bound()) };
        if lowest.is_none() && self.slots.free() == 0 {
            return Err(self.refuse(Refusal::NoSlot));
        }
        self.manager.admits(&offer).map_err(|why| self.refuse(why))?;
        if let Some((slot, _)) = lowest
            && self.slots.entry(slot).state != SlotState::Newer
        {
            self.evict(slot, offer.now);
        }
        let slot = self.slots.take_free().ok_or_else(|| self.refuse(Refusal::NoSlot))?;
        self.spend(bytes);
        Ok(slot)
    }

    /// So many bytes will be written to a slot that a page got.
    pub fn spend(&mut self, bytes: u64) {
        self.life.spent += bytes;
        let within = self.options.budget.is_none_or(|budget| self.life.spent <= budget);
        assert!(within, "no more is admitted on a day than its budget");
        self.counters.slot_bytes += bytes;
    }

    /// A page that was staged is written, or will not be.
    pub fn unstage(&mut self) {
        assert!(self.staging > self.queue.len(), "what is staged was counted");
        self.staging -= 1;
    }

    /// Asserts what must hold; O(slots). For tests.
    pub fn check(&self) {
        self.slots.check();
        for (page, staged) in &self.staged {
            let entry = self.slots.entry(staged.slot);
            assert!(
                entry.page == *page && entry.state == SlotState::Clean,
                "page {page} is staged for slot {}",
                staged.slot
            );
        }
        assert!(self.staged.len() <= self.staging && self.queue.len() <= self.staging, "what is staged is counted");
        assert!(self.part.is_some() || self.slots.len() == 0, "slots belong to a device");
        assert!(self.slots.newer() == 0 || self.standing != Standing::Forsaken, "what was forsaken held copies only");
    }

    /// Whether the day's budget allows to admit as many bytes.
    pub fn afford(&mut self, bytes: u64) -> Result<(), Refusal> {
        let Some(budget) = self.options.budget else { return Ok(()) };
        let day = unix_seconds() / 86_400;
        if day != self.life.day {
            (self.life.day, self.life.spent) = (day, 0);
        }
        if self.life.spent + bytes > budget { Err(Refusal::Budget) } else { Ok(()) }
    }

    /// Puts the page into the slot; its write begins.
    pub fn enter(&mut self, slot: Slot, page: PageId, state: SlotState, lsn: Lsn, now: u64) {
        assert!(self.part.is_some(), "{HAS_DEVICE}");
        self.manager.entered(page, now);
        let rank = self.manager.rank(page, state == SlotState::Newer, now);
        self.slots.occupy(slot, page, state, rank);
        self.slots.begin(slot, Some(lsn));
    }

    /// Takes the page out of a slot whose version need not go home (any more).
    pub fn evict(&mut self, slot: Slot, now: u64) {
        let dead = self.slots.entry(slot).state == SlotState::Dead;
        match self.slots.entry(slot).state {
            SlotState::Newer => self.counters.evicted_newer += 1,
            _ => self.counters.evicted_clean += 1,
        }
        self.drop_slot(slot, dead, now);
    }

    /// Empties a slot and tells those who want to know.
    pub fn drop_slot(&mut self, slot: Slot, dead: bool, now: u64) {
        let page = self.slots.vacate(slot);
        if !dead {
            self.staged.remove(&page);
            self.manager.left(page, now);
            self.class_changed(page, 0);
        }
    }

    pub fn class_changed(&mut self, page: PageId, class: u8) {
        if self.class_changes.len() < MAX_CLASS_CHANGES {
            self.class_changes.push((page, CostClass(class)));
        }
    }

    /// The rank of a page that is there may have changed. (In a queue of versions ranks change when their turn comes
    /// only.)
    pub fn rerank(&mut self, slot: Slot, now: u64) {
        if self.style.append {
            return;
        }
        let entry = self.slots.entry(slot);
        if matches!(entry.state, SlotState::Clean | SlotState::Newer) {
            let rank = self.manager.rank(entry.page, entry.state == SlotState::Newer, now);
            self.slots.set_rank(slot, rank);
        }
    }

    /// A page in the pool was changed: a copy equal to home is out of date.
    pub fn dirtied(&mut self, page: PageId, now: u64) {
        let Some(slot) = self.slots.find(page) else { return };
        if self.slots.entry(slot).state != SlotState::Clean {
            return;
        }
        self.counters.invalidated += 1;
        if self.style.keep_invalid {
            self.staged.remove(&page);
            self.slots.set_state(slot, SlotState::Invalid);
            self.class_changed(page, 0);
        } else {
            self.drop_slot(slot, false, now);
        }
    }

    /// The page was freed.
    pub fn discard(&mut self, page: PageId, now: u64) {
        // A page on its way home stays mapped until it is there, or its old bytes could overwrite new ones.
        if let Some(slot) = self.slots.find(page)
            && !self.slots.entry(slot).moving
        {
            self.drop_slot(slot, false, now);
            assert!(self.slots.find(page).is_none(), "a freed page has no slot");
        }
        self.manager.discarded(page);
        self.counters.discarded += 1;
    }

    /// Counts a read and where it goes.
    pub fn note_read(&mut self, page: PageId, from: Place, why: crate::ReadWhy, now: u64) {
        self.manager.read(page, from, why, now);
        let c = &mut self.counters;
        match (from, why) {
            (Place::Fast, crate::ReadWhy::Demand) => c.fast_reads += 1,
            (Place::Fast, crate::ReadWhy::Prefetch) => c.fast_prefetches += 1,
            (Place::Slow, crate::ReadWhy::Demand) => c.slow_reads += 1,
            (Place::Slow, crate::ReadWhy::Prefetch) => c.slow_prefetches += 1,
        }
        if let Some(slot) = self.slots.find(page) {
            self.rerank(slot, now);
        }
    }

    /// The pool's report of how a page was used.
    pub fn note_use(&mut self, page: PageId, keyspace: KeyspaceId, logical: u32, now: u64) {
        let at = self.slots.place(page);
        self.manager.used(page, keyspace, logical, at, now);
    }

    /// Whether a dirty page would get a slot now whatever it deserves, as nobody had to leave for it.
    pub fn room_for_any(&self) -> bool {
        let room = self.slots.free() > self.emptied_ahead() && self.slots.newer() < self.ceiling;
        room && !self.closed() && self.style.dirty == DirtyWrites::Back
    }

    /// So many slots are free after pages were made to leave for what may come.
    pub fn emptied_ahead(&self) -> usize {
        2 * self.reserve
    }

    /// Free slots are fewer than wanted, or the pages newer than home come near the ceiling.
    pub fn needs_reclaim(&self) -> bool {
        !self.closed() && (self.slots.free() < self.reserve || self.slots.newer() + self.reserve > self.ceiling)
    }

    /// Pages newer than home that shall go home, so that there is room below the ceiling for a while.
    pub fn surplus(&self) -> usize {
        let near = self.slots.newer() + self.reserve > self.ceiling;
        if near { (self.slots.newer() + 2 * self.reserve).saturating_sub(self.ceiling) } else { 0 }
    }

    /// So much of the zone has been given away that the next map is due; or nothing was synced for so long that what
    /// happened since would soon fill a journal, or that a map would soon have no room for what slots may still hold.
    pub fn needs_map(&self, zone: usize) -> bool {
        let journal = self.part.as_ref().map_or(0, |part| part.geometry.journal_records());
        let unsaid = self.slots.records().len() * 4 > journal * 3;
        let crowded = self.slots.left_over() * 4 > self.slots.len() * 3;
        !self.closed() && (self.slots.given_away() >= zone.div_ceil(2) || unsaid || crowded)
    }
}
