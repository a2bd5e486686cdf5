//! What an array is made of changes while work goes on: drives come and go, and shares of new extents change.
//!
//! A drive that comes is noted on itself first, then on the others: what a crash leaves is one that they do not know,
//! or one that bears all that they will. A drive that goes is emptied first, extent by extent (`mover`); then the
//! others note that its place is vacant, which no later drive's number depends on.
//!
//! Invariants: a drive that goes has no extent, and gets none; a change of the shape is a generation of its own.

use super::absent::Absent;
use super::flight::Member;
use super::format::{DriveRecord, Shape, Super};
use super::map::Place;
use super::open::{NewDrive, new_id};
use super::records::find;
use super::slots::Layout;
use super::{Array, MOST_DRIVES, State, View, check_drives, check_layout, invalid};
use crate::VolumeError;
use std::sync::Arc;
use varve_device::{Device, DeviceError};

/// The first place for a drive.
fn vacant(state: &State, view: &View) -> usize {
    state.slots.counts().iter().position(|count| *count == 0).unwrap_or(view.members.len())
}

impl Array {
    /// The number that the next drive will have that is taken in.
    pub fn next_number(&self) -> usize {
        let state = self.state.lock();
        vacant(&state, &self.view())
    }

    /// Takes a drive in, with a share of new extents (of a stripe: the same as all), whatever the drive holds; returns
    /// its number. Nothing moves there by itself.
    ///
    /// # Errors
    /// [`VolumeError::Options`] says why it cannot be used, and what can; or a drive's own: the array is as before,
    /// unless the others could not be written.
    pub fn add_drive(&self, drive: NewDrive, share: f64) -> Result<usize, VolumeError> {
        let mut state = self.state.lock();
        let view = self.view();
        let NewDrive { device, blank } = drive;
        let slots = self.slots_of_new(&state, &view, &device)?;
        let number = vacant(&state, &view);
        assert!(view.members.get(number).is_none_or(|member| !member.is_there), "a drive comes to a vacant place");
        if number >= MOST_DRIVES {
            return Err(invalid(format!("an array has {MOST_DRIVES} drives at most: drain one first")));
        }
        let mut shares = view.layout.shares(view.members.len());
        shares.resize(shares.len().max(number + 1), 0.0);
        shares[number] = share;
        let layout = view.layout.with_shares(shares);
        check_layout(view.map.extent, &layout, view.members.len().max(number + 1))?;
        let blank_from = if blank { 0 } else { slots };
        let mut members = view.members.clone();
        members.resize_with(members.len().max(number + 1), || Member::absent(device.clone()));
        members[number] = Member::new(device);
        let next = View { members, layout: Arc::new(layout), ..(*view).clone() };
        let record = DriveRecord { id: new_id(), slots, blank_from, share };
        self.note_shape(&mut state, &next, Some(number), |shape| {
            shape.drives.resize(shape.drives.len().max(number + 1), record);
            shape.drives[number] = record;
        })?;
        state.slots.set_drive(number, slots, blank_from);
        self.use_view(next, &mut state);
        Ok(number)
    }

    /// The extents that a drive has room for which is to be taken in.
    fn slots_of_new(&self, state: &State, view: &View, device: &Arc<dyn Device>) -> Result<u32, VolumeError> {
        let (info, map) = (device.info(), &view.map);
        let name = &info.name;
        if info.block > self.block {
            return Err(invalid(format!(
                "{name} has blocks of {} bytes, and the array of {}: choose a drive with smaller ones",
                info.block, self.block
            )));
        }
        let (len, least) = (device.len(), super::open::least(map.extent, map.data_at));
        if len < least {
            return Err(invalid(format!(
                "{name} has {len} bytes, less than four extents and the array's tables: give it {least} bytes or more"
            )));
        }
        let Some(records) = &state.records else {
            return Ok(check_drives(std::slice::from_ref(device), map.extent, map.data_at)?[0]);
        };
        // (One that was drained has another identity than who has its place now.)
        if let Ok(Super { index, shape, .. }) = find(&**device).map(|found| found.sup)
            && shape.array == records.shape.array
            && records
                .shape
                .drives
                .get(index)
                .is_some_and(|drive| drive.slots > 0 && drive.id == shape.drives[index].id)
        {
            return Err(invalid(format!("{name} is drive {index} of the array already: give another one")));
        }
        let slots = check_drives(std::slice::from_ref(device), map.extent, map.data_at)?[0];
        let (has, room) = (state.slots.counts().iter().sum::<u32>() as usize, records.shape.map_room());
        let left = room.saturating_sub(has) as u32;
        if left < super::open::LEAST_EXTENTS as u32 {
            return Err(invalid(format!(
                "the array's map has room for {room} extents, and its drives have {has}: drain one first, or restore a \
                backup into a new database with larger extents"
            )));
        }
        assert!(has as u64 + u64::from(slots.min(left)) <= room as u64, "an array does not outgrow its map");
        Ok(slots.min(left))
    }

    /// Has new extents go to the drives by these shares; a drive with share 0 gets one only if the others are full.
    ///
    /// # Errors
    /// As [`Array::create`]; [`VolumeError::Options`] for a stripe.
    pub fn set_shares(&self, shares: Vec<f64>) -> Result<(), VolumeError> {
        let mut state = self.state.lock();
        let view = self.view();
        if matches!(*view.layout, Layout::Stripe { .. }) {
            return Err(invalid("a stripe gives all drives the same: it has no shares".into()));
        }
        let layout = Layout::Rodi { shares };
        check_layout(view.map.extent, &layout, view.members.len())?;
        if *view.layout == layout {
            return Ok(());
        }
        let next = View { layout: Arc::new(layout), ..(*view).clone() };
        self.note_shape(&mut state, &next, None, |_| ())?;
        self.use_view(next, &mut state);
        Ok(())
    }

    /// From now on no extent gets a slot of a drive, or may again. Not durable: who drains says it at each opening.
    pub fn close_drive(&self, drive: usize, closed: bool) {
        let mut state = self.state.lock();
        assert!(drive < state.slots.counts().len(), "the drive is one of the array");
        state.slots.close(drive, closed);
    }

    /// The extents that lie on a drive.
    pub fn extents_on(&self, drive: usize) -> Vec<usize> {
        let map = &self.view().map;
        let here = |index: &usize| usize::from(map.entries[*index].place.drive) == drive;
        (0..map.entries.len()).filter(here).collect()
    }

    /// Goes without a drive that is closed and has no extents. False: requests still go there; try again.
    ///
    /// # Errors
    /// [`VolumeError::Options`] if extents lie on it, or fewer than two drives would be left; or a drive's own.
    pub fn retire_drive(&self, drive: usize) -> Result<bool, VolumeError> {
        let mut state = self.state.lock();
        let view = self.view();
        assert!(drive < view.members.len(), "the drive is one of the array");
        let live = state.slots.counts().iter().filter(|count| **count > 0).count();
        if live <= 2 {
            return Err(invalid("an array has at least two drives: add another one first".into()));
        }
        let here = |place: &Place| usize::from(place.drive) == drive;
        if view.map.entries.iter().any(|entry| here(&entry.place)) {
            return Err(invalid(format!("extents lie on drive {drive}: move them first")));
        }
        state.reuse();
        if state.slots.used()[drive] > 0 {
            return Ok(false);
        }
        let device = view.members[drive].device.clone();
        let mut members = view.members.clone();
        members[drive] = Member::absent(Absent::in_place_of(&device.info().name));
        let mut shares = view.layout.shares(members.len());
        shares[drive] = 0.0;
        if shares.iter().all(|share| *share == 0.0) {
            (0..shares.len()).filter(|i| *i != drive).for_each(|i| shares[i] = 1.0);
        }
        let layout = view.layout.with_shares(shares);
        let next = View { members, layout: Arc::new(layout), ..(*view).clone() };
        let gone = DriveRecord { id: [0; 16], slots: 0, blank_from: 0, share: 0.0 };
        self.note_shape(&mut state, &next, None, |shape| shape.drives[drive] = gone)?;
        state.slots.set_drive(drive, 0, 0);
        self.use_view(next, &mut state);
        Ok(true)
    }

    /// Notes the array as another view has it; `new` is a drive that knows nothing yet.
    fn note_shape(
        &self,
        state: &mut State,
        next: &View,
        new: Option<usize>,
        change: impl FnOnce(&mut Shape),
    ) -> Result<(), DeviceError> {
        let zero_from = state.zero_from;
        let Some(records) = &mut state.records else { return Ok(()) };
        let mut shape = records.shape.clone();
        change(&mut shape);
        shape.layout = (*next.layout).clone();
        let shares = shape.layout.shares(shape.drives.len());
        shape.drives.iter_mut().zip(shares).for_each(|(drive, share)| drive.share = share);
        assert_eq!(shape.drives.len(), next.members.len(), "every drive has its record");
        let noted = records.reshape(&next.devices(), shape, (&next.map, zero_from), new);
        if let Some(cause) = records.failure() {
            self.fail(cause);
        }
        noted
    }
}
