//! Changes of the fast device while the tier works: one is put to use, given up, grown or cut.
//!
//! Each change becomes true with one superblock; a power cut before it leaves what was. What a change takes away is
//! home, and durable there, before. Invariants: one change is under way at a time; slots that go are closed, then empty
//! and idle, before a map does without them; no slot that stays moves. Lock order: `changing`, then as in the module
//! above.

use super::admit::{Admission, Part, Staged, TierState, unix_seconds};
use super::layout::{Geometry, Life};
use super::map::MapFile;
use super::slots::{Slot, SlotState};
use super::{Maintenance, Resized, Tier};
use crate::admin::Stamp;
use crate::{VolumeError, page};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, Device, DeviceError, Mistake, read_at};

/// Pages taken out of slots at a time.
const BATCH: usize = 64;

/// How long to wait for requests that are under way.
const PAUSE: Duration = Duration::from_millis(1);

impl Tier {
    /// Puts `fast` to use, whatever was there before: the tier begins empty, and admissions begin if it is started.
    /// `owner` as in [`Tier::create`]. What the database itself notes of its devices is the caller's: a new `owner`,
    /// noted before, tells a tier that was attached from what an earlier use left.
    pub fn attach(&self, fast: Arc<dyn Device>, owner: [u8; 16]) -> Result<(), VolumeError> {
        let _one = self.changing.lock();
        if let Some(part) = self.part() {
            let what = "it is in use: detach it before another one is attached".to_string();
            return Err(VolumeError::Tier { device: part.device.info().name, what });
        }
        let page_size = self.page_size as u32;
        let geometry = Geometry::fit(fast.len(), page_size).ok_or_else(|| too_small(&*fast, fast.len(), page_size))?;
        let file = MapFile::new(fast.clone(), owner);
        let mut slots = self.state.lock().empty_slots(geometry.slots as usize);
        file.prepare(&geometry)?;
        let snapshot = slots.begin_map(self.zone_slots(slots.len()), &mut |_, _| 0.0);
        let life = Life { created: unix_seconds(), ..Life::default() };
        let sequence = 1;
        let bytes = file.write_map(&geometry, sequence, &snapshot, (life, Stamp::default()))?;
        slots.end_map(true);
        self.trust_fast()?;
        *self.life_asked.lock() = None;
        let mut at = self.maintenance.lock();
        let mut state = self.state.lock();
        assert!(state.part.is_none(), "one fast device is in use at a time");
        state.counters.attached += 1;
        state.counters.maps += 1;
        state.counters.map_bytes += bytes;
        state.life_at = state.written() - bytes;
        state.life = life;
        state.part = Some(Arc::new(Part { device: fast, geometry, file }));
        state.use_slots(slots);
        *at = Maintenance::begun(sequence, Stamp::default());
        Ok(())
    }

    /// Gives the fast device up: everything newer there goes home, nothing is admitted from then on, and the device
    /// says durably that it is detached. Returns the pages that had a slot.
    pub fn detach(&self) -> Result<u64, VolumeError> {
        let _one = self.changing.lock();
        let Some(part) = self.part() else {
            return Err(VolumeError::Options("the tier has no fast device to detach".into()));
        };
        self.state.lock().leaving = true;
        let result = self.leave(&part);
        self.state.lock().leaving = false;
        result
    }

    fn leave(&self, part: &Arc<Part>) -> Result<u64, VolumeError> {
        let mut gone = 0;
        loop {
            if !self.makes(Mistake::TierNoCopies) {
                self.all_home()?;
            }
            let used = self.used_slots(0);
            if used.is_empty() {
                break;
            }
            let evicted = self.evict_idle(&used);
            gone += evicted;
            if evicted == 0 {
                varve_rt::sleep(PAUSE);
            }
        }
        let mut at = self.maintenance.lock();
        let life = self.state.lock().life();
        if !self.forsaken() {
            self.on_fast(|| part.file.write_detached(&part.geometry, at.sequence + 1, (life, at.stamp)))?;
        }
        *at = Maintenance::begun(at.sequence + 1, Stamp::default());
        let mut state = self.state.lock();
        assert!(state.slots.in_use(0).is_empty(), "a device that is given up holds nothing that counts");
        state.part = None;
        let none = state.empty_slots(0);
        state.use_slots(none);
        drop((state, at));
        self.note_forsaken()?;
        Ok(gone)
    }

    /// Makes the fast part as large as fits `bytes` of its device, which grows or is cut accordingly where it is a
    /// file. The best pages of the slots that go move to others as long as there are worse ones there.
    pub fn resize(&self, bytes: u64) -> Result<Resized, VolumeError> {
        let _one = self.changing.lock();
        let part = self.part().ok_or_else(|| VolumeError::Options("the tier has no fast device to resize".into()))?;
        let now = part.geometry;
        let next = now.resized(bytes).ok_or_else(|| too_small(&*part.device, bytes, now.page_size))?;
        let mut resized = Resized { before: now.slots.into(), after: next.slots.into(), relocated: 0, evicted: 0 };
        if bytes > part.device.len() {
            self.set_fast_len(&part, bytes)?;
        }
        if next == now {
            return Ok(resized);
        }
        let moved = self.state.lock().counters.relocated;
        if next.slots < now.slots {
            self.state.lock().slots.close(next.slots as usize);
            resized.evicted = self.clear(&part, next.slots).inspect_err(|_| self.reopen(now.slots))?;
        }
        resized.relocated = self.state.lock().counters.relocated - moved;
        self.switch(&part, next).inspect_err(|_| self.reopen(now.slots))?;
        // The map that counts does without the rest.
        if bytes < part.device.len() && next.end() <= bytes {
            self.set_fast_len(&part, bytes)?;
        }
        Ok(resized)
    }

    /// A device that changes its length flushes what was written: when that fails, more than the length is in doubt.
    /// Not when there is no room for it.
    fn set_fast_len(&self, part: &Part, bytes: u64) -> Result<(), VolumeError> {
        self.on_fast(|| match part.device.set_len(bytes) {
            refused @ Err(DeviceError::NoSpace { .. } | DeviceError::Unsupported { .. }) => Ok(refused),
            done => Ok(Ok(done?)),
        })??;
        Ok(())
    }

    fn reopen(&self, slots: u32) {
        self.state.lock().slots.close(slots as usize);
    }

    /// Makes the new layout the one that counts.
    fn switch(&self, part: &Arc<Part>, next: Geometry) -> Result<(), VolumeError> {
        assert!(self.used_slots(next.slots.min(part.geometry.slots)).is_empty(), "slots that go are empty and idle");
        if next.slots < part.geometry.slots {
            // From now on nothing durable refers to the slots that go, where the new tables may be.
            self.write_map()?;
        }
        part.file.prepare_resized(&part.geometry, &next)?;
        self.flush_fast(part)?;
        let mut at = self.maintenance.lock();
        let file = MapFile::new(part.device.clone(), part.file.owner());
        self.write_map_for(&mut at, &Arc::new(Part { device: part.device.clone(), geometry: next, file }))
    }

    /// Slots from `first` on that are in use.
    fn used_slots(&self, first: Slot) -> Vec<Slot> {
        self.state.lock().slots.in_use(first)
    }

    /// Empties what holds nothing newer than home and has no request under way.
    fn evict_idle(&self, slots: &[Slot]) -> u64 {
        let now = varve_rt::now().as_nanos();
        let mut state = self.state.lock();
        let mut evicted = 0;
        for &slot in slots {
            let entry = *state.slots.entry(slot);
            let newer = entry.state == SlotState::Newer && !self.makes(Mistake::TierNoCopies);
            if entry.state != SlotState::Free && !newer && !entry.moving && entry.io == 0 {
                state.evict(slot, now);
                evicted += 1;
            }
        }
        evicted
    }

    /// Empties the slots from `first` on; returns how many pages lost their slots for good.
    fn clear(&self, part: &Arc<Part>, first: Slot) -> Result<u64, VolumeError> {
        let mut evicted = 0;
        loop {
            let used = self.used_slots(first);
            if used.is_empty() {
                return Ok(evicted);
            }
            for some in used.chunks(BATCH) {
                self.copy_home(part, some)?;
            }
            let left = self.relocate(part, &used);
            let gone = self.evict_idle(&left);
            evicted += gone;
            if gone == 0 && left.len() == used.len() {
                varve_rt::sleep(PAUSE);
            }
        }
    }

    /// Copies home what is newer there in these slots; it stays, equal to home.
    fn copy_home(&self, part: &Part, slots: &[Slot]) -> Result<(), VolumeError> {
        if self.makes(Mistake::TierNoCopies) {
            return Ok(());
        }
        let _one = self.movers.lock();
        let moves: Vec<_> = {
            let mut state = self.state.lock();
            let newer = |state: &TierState, slot: Slot| {
                let e = state.slots.entry(slot);
                e.state == SlotState::Newer && e.writes == 0 && !e.moving
            };
            let slots: Vec<Slot> = slots.iter().copied().filter(|slot| newer(&state, *slot)).collect();
            slots.into_iter().map(|slot| self.begin_move(&mut state, slot, false)).collect()
        };
        if moves.is_empty() {
            return Ok(());
        }
        let lost = self.state.lock().counters.lost;
        self.carry_home(part, moves)?;
        self.whole_since(part, lost)
    }

    /// Stages the pages of these slots that are equal to home and deserve it for other slots; returns the slots that
    /// are left.
    fn relocate(&self, part: &Part, slots: &[Slot]) -> Vec<Slot> {
        let mut left = Vec::new();
        let mut bytes = AlignedBuf::new(self.page_size);
        for &slot in slots {
            let entry = {
                let mut state = self.state.lock();
                let entry = *state.slots.entry(slot);
                if entry.state != SlotState::Clean || entry.io > 0 || !state.has_better(slot) {
                    left.push(slot);
                    continue;
                }
                state.slots.begin(slot, None);
                entry
            };
            let read = read_at(&*part.device, part.at(slot), &mut bytes);
            let good = read.is_ok() && page::verify(&bytes, entry.page).is_ok();
            let now = varve_rt::now().as_nanos();
            let mut state = self.state.lock();
            state.slots.end_read(slot);
            // It may have changed, or been overtaken by a version in another slot.
            let now_there = *state.slots.entry(slot);
            let same = now_there.version == entry.version && now_there.state == SlotState::Clean && now_there.io == 0;
            if !good || !same {
                left.push(slot);
                continue;
            }
            let Some(to) = state.better(slot, self.page_size as u64, now) else {
                left.push(slot);
                continue;
            };
            state.drop_slot(slot, false, now);
            let copy = Arc::new(std::mem::replace(&mut bytes, AlignedBuf::new(self.page_size)));
            state.enter(to, entry.page, SlotState::Clean, page::lsn(&copy), now);
            state.class_changed(entry.page, 1);
            state.counters.relocated += 1;
            state.staging += 1;
            state.staged.insert(entry.page, Staged { slot: to, bytes: Some(copy.clone()) });
            state.queue.push_back(Admission { page: entry.page, slot: to, bytes: copy });
            drop(state);
            self.to_admit.set();
        }
        left
    }
}

impl TierState {
    /// Whether the page of a slot that goes may have another: a free one, or that of a worse page.
    fn has_better(&mut self, slot: Slot) -> bool {
        let worse = |state: &mut TierState| {
            let rank = state.slots.rank(slot);
            state.lowest(varve_rt::now().as_nanos()).is_some_and(|(_, lowest)| lowest < rank)
        };
        !self.closed() && (self.slots.free() > 0 || worse(self))
    }

    /// Takes that other slot.
    fn better(&mut self, slot: Slot, bytes: u64, now: u64) -> Option<Slot> {
        if self.closed() || self.afford(bytes).is_err() {
            return None;
        }
        if self.slots.free() == 0 {
            let rank = self.slots.rank(slot);
            let (worst, lowest) = self.lowest(now)?;
            if lowest >= rank || self.slots.entry(worst).state == SlotState::Newer {
                return None;
            }
            self.evict(worst, now);
        }
        let to = self.slots.take_free()?;
        self.spend(bytes);
        Some(to)
    }
}

fn too_small(fast: &dyn Device, bytes: u64, page_size: u32) -> VolumeError {
    let what = format!("{bytes} bytes are too few for a tier of {page_size}-byte pages: give it more");
    VolumeError::Tier { device: fast.info().name, what }
}
