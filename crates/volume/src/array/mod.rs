//! Several drives as one device.
//!
//! An array cuts its bytes into extents and has a table that says on which drive each lies ([`map`]). A [`Layout`] says
//! where new extents go: `stripe` is RAID 0, `proportional` gives the drives extents by their speed, `rodi` has an
//! explicit map (Yang, Wan, Fan 2017, "Throughput Enhancement for Heterogeneous Solid-state Drives"). No byte is kept
//! twice: with any of its drives the array is lost.
//!
//! Invariants: no slot of a drive has two extents; the table that requests go by changes as a whole; a slot that an
//! extent left is used again only after every request that may go there has ended; what lies behind the array's end in
//! its extents, from `zero_from` on, reads as zeros.
//!
//! Lock order: `mover` (an extent that moves), `state` (changes of the table), then `view`, a leaf that is never held
//! while a drive works.

mod absent;
mod advice;
mod change;
pub mod classify;
pub mod curve;
mod flight;
mod format;
mod keeper;
mod map;
mod mover;
mod open;
pub mod planner;
mod records;
mod slots;
mod stats;
#[cfg(test)]
mod tests;
mod uses;
mod watch;

pub use advice::{ArrayPlan, DrivePlan, Part};
pub use keeper::{Keeper, KeeperOptions, Moves, Promise, no_drive};
pub use map::{Entry, Map, Piece, Pieces, Place};
pub use mover::{Moved, Pace};
pub use open::{Given, Membership, NewDrive, OpenHow, membership};
pub use slots::Layout;
pub use stats::{ArrayStats, DriveStats};
pub use uses::Used;
pub use watch::Watch;

use crate::VolumeError;
use flight::{Member, Moving, Totals, View};
use records::Records;
use slots::{Slots, Taken};
use std::ops::Range;
use std::sync::{Arc, Weak};
use uses::Uses;
use varve_device::{
    AlignedBuf, Capabilities, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Hint, Io, Op, OpKind,
};
use varve_device::{Faults, Mistake, Ticket, check, write_at};
use varve_rt::Mutex;
use varve_rt::atomic::{Ordering, fence};

/// Bytes of an extent unless told otherwise.
pub const EXTENT: u64 = 8 << 20;
/// Bytes of a stripe unit unless told otherwise (assumed; the common default of software RAID is 512 KiB, of Windows
/// 64 KiB).
pub const UNIT: u64 = 1 << 20;

/// Least and most bytes of an extent, and what it is a multiple of.
const EXTENTS: (u64, u64, u64) = (2 << 20, 64 << 20, 1 << 20);
/// The same of a stripe unit.
const UNITS: (u64, u64, u64) = (64 << 10, 8 << 20, 64 << 10);
/// Most drives of an array.
pub const MOST_DRIVES: usize = 64;
/// Bytes of a write of zeros.
const ZEROS: usize = 1 << 20;
// What is chosen unless somebody says otherwise is accepted, and every extent has whole chunks and units.
const _: () = assert!(EXTENT >= EXTENTS.0 && EXTENT <= EXTENTS.1 && EXTENT.is_multiple_of(EXTENTS.2));
const _: () = assert!(UNIT >= UNITS.0 && UNIT <= UNITS.1 && EXTENT.is_multiple_of(UNIT));
const _: () = assert!(EXTENTS.2.is_multiple_of(flight::CHUNK) && ZEROS.is_multiple_of(format::BLOCK));

/// Several drives as one device.
pub struct Array {
    name: Arc<str>,
    block: u32,
    totals: Arc<Totals>,
    view: Mutex<Arc<View>>,
    state: Mutex<State>,
    /// Held while an extent moves.
    mover: Mutex<()>,
    /// Why a change of the table failed, if one did: nobody knows which table the next opening finds.
    failed: Mutex<Option<DeviceError>>,
}

/// What changes with the table.
struct State {
    slots: Slots,
    /// Bytes of the extents from here on read as zeros.
    zero_from: u64,
    /// What is noted on the drives; none: nothing, or it may not be.
    records: Option<Records>,
    faults: Faults,
    /// Views that were replaced and that somebody may still have.
    old: Vec<Weak<View>>,
    /// Slots that extents left, with the views that have them.
    left: Vec<(Vec<Weak<View>>, Vec<Place>)>,
}

fn invalid(what: String) -> VolumeError {
    VolumeError::Options(what)
}

/// Whether a size is within bounds and a multiple; `what` names it.
fn check_size(what: &str, bytes: u64, (least, most, multiple): (u64, u64, u64)) -> Result<(), VolumeError> {
    if bytes < least || bytes > most || !bytes.is_multiple_of(multiple) {
        let (least, most, multiple) = (least >> 10, most >> 10, multiple >> 10);
        return Err(invalid(format!(
            "{what} of an array cannot be {bytes} bytes: choose a multiple of {multiple} KiB from {least} KiB to \
            {most} KiB"
        )));
    }
    Ok(())
}

/// What is wrong with a layout for so many drives, if anything.
fn check_layout(extent: u64, layout: &Layout, drives: usize) -> Result<(), VolumeError> {
    check_size("the extent", extent, EXTENTS)?;
    match layout {
        Layout::Stripe { unit } => {
            check_size("the stripe unit", *unit, UNITS)?;
            if !extent.is_multiple_of(*unit) {
                return Err(invalid(format!(
                    "an extent of {extent} bytes is no multiple of the stripe unit of {unit} bytes: choose a unit \
                    that divides it"
                )));
            }
        }
        Layout::Proportional { shares } | Layout::Rodi { shares } => {
            let good = shares.iter().all(|s| s.is_finite() && *s >= 0.0) && shares.iter().any(|s| *s > 0.0);
            if shares.len() != drives || !good {
                return Err(invalid(format!(
                    "an array of {drives} drives needs {drives} shares, numbers from 0 up and not all of them 0, \
                    instead of {shares:?}"
                )));
            }
        }
    }
    Ok(())
}

fn check_drives(drives: &[Arc<dyn Device>], extent: u64, data_at: u64) -> Result<Vec<u32>, VolumeError> {
    if drives.is_empty() || drives.len() > MOST_DRIVES {
        return Err(invalid(format!("an array has 1 to {MOST_DRIVES} drives, not {}", drives.len())));
    }
    let slots = |(i, drive): (usize, &Arc<dyn Device>)| {
        let name = drive.info().name;
        if drives[..i].iter().any(|other| Arc::ptr_eq(other, drive)) {
            return Err(invalid(format!("{name} is given twice: an array has each drive once")));
        }
        let slots = drive.len().saturating_sub(data_at) / extent;
        match u32::try_from(slots) {
            Ok(0) => Err(invalid(format!(
                "{name} has {} bytes, too few for an extent of {extent} bytes: give it more, or choose smaller extents",
                drive.len()
            ))),
            Ok(slots) => Ok(slots),
            Err(_) => Err(invalid(format!("{name} would have {slots} extents: choose larger ones"))),
        }
    };
    drives.iter().enumerate().map(slots).collect()
}

impl Array {
    /// An array of `len` bytes without anything on disk, with the drives' bytes as they are. `extent` in bytes: 2 to
    /// 64 MiB, a multiple of 1 MiB; the drives have room for whole extents. For models and experiments: nobody finds it
    /// again.
    ///
    /// # Errors
    /// [`VolumeError::Options`] says what cannot be used, and what can.
    pub fn volatile(
        drives: Vec<Arc<dyn Device>>,
        (extent, layout): (u64, Layout),
        len: u64,
    ) -> Result<Arc<Array>, VolumeError> {
        let counts = Array::checked(&drives, extent, &layout)?;
        let mut slots = Slots::new(&counts);
        let extents = len.div_ceil(extent);
        let room: u64 = counts.iter().map(|(count, _)| u64::from(*count)).sum();
        if len == 0 || extents > room {
            let most = room * extent;
            return Err(invalid(format!("an array of these drives cannot have {len} bytes: choose 1 to {most} bytes")));
        }
        let taken = slots.place(extents as usize, &layout).expect("there is a slot for each");
        let entries = taken.iter().map(|taken| taken.entry).collect();
        Ok(Array::over(drives, (extent, layout), slots, (entries, len)))
    }

    /// As [`Array::volatile`], as long as `places`, which say where each extent lies, in one piece.
    ///
    /// # Errors
    /// As [`Array::volatile`]; also if a place is not there, or has two extents.
    pub fn volatile_at(
        drives: Vec<Arc<dyn Device>>,
        (extent, layout): (u64, Layout),
        places: &[Place],
    ) -> Result<Arc<Array>, VolumeError> {
        let counts = Array::checked(&drives, extent, &layout)?;
        let mut slots = Slots::new(&counts);
        for Place { drive, slot } in places {
            let there = usize::from(*drive) < drives.len();
            if !there || !slots.take(Place { drive: *drive, slot: *slot }) {
                let what =
                    if there { "is not there or has an extent already" } else { "is of a drive that is not there" };
                return Err(invalid(format!(
                    "slot {slot} of drive {drive} {what}: give each extent a place of its own"
                )));
            }
        }
        let entries = places.iter().copied().map(Entry::whole).collect();
        Ok(Array::over(drives, (extent, layout), slots, (entries, places.len() as u64 * extent)))
    }

    /// For each drive the slots, and from which on they are blank: nobody knows what is there.
    fn checked(drives: &[Arc<dyn Device>], extent: u64, layout: &Layout) -> Result<Vec<(u32, u32)>, VolumeError> {
        check_layout(extent, layout, drives.len())?;
        let counts = check_drives(drives, extent, 0)?;
        Ok(counts.into_iter().map(|count| (count, count)).collect())
    }

    fn over(
        drives: Vec<Arc<dyn Device>>,
        (extent, layout): (u64, Layout),
        slots: Slots,
        (entries, len): (Vec<Entry>, u64),
    ) -> Arc<Array> {
        let map = Map { extent, unit: layout.unit(extent), data_at: 0, len, entries };
        let zero_from = map.room();
        let members = drives.into_iter().map(Member::new).collect();
        Array::assembled(members, layout, (map, zero_from), slots, None)
    }

    fn assembled(
        members: Vec<Arc<Member>>,
        layout: Layout,
        (mut map, zero_from): (Map, u64),
        slots: Slots,
        records: Option<Records>,
    ) -> Arc<Array> {
        let there = members.iter().filter(|member| member.is_there);
        let live: Vec<DeviceInfo> = there.map(|member| member.device.info()).collect();
        let names: Vec<String> = live.iter().map(|info| info.name.to_string()).collect();
        let block = live.iter().map(|info| info.block).max().expect("there is a drive");
        map.len = map.len.next_multiple_of(block.into());
        assert_eq!(map.fault(&slots.counts()), None);
        let uses = Uses::default().with_room(map.entries.len());
        Arc::new(Array {
            name: format!("array of {}", names.join(", ")).into(),
            block,
            totals: Arc::default(),
            view: Mutex::new(Arc::new(View { map, members, layout: Arc::new(layout), moving: None, uses })),
            state: Mutex::new(State {
                slots,
                zero_from,
                records,
                faults: Faults::default(),
                old: Vec::new(),
                left: Vec::new(),
            }),
            mover: Mutex::new(()),
            failed: Mutex::new(None),
        })
    }

    /// Whether a request can be done.
    fn check(&self, io: &Io, len: u64) -> Result<(), DeviceError> {
        check(io, &self.name, self.block, len)?;
        let promises = matches!(io.op, Op::Flush | Op::Write { durable: true });
        if promises && let Some(cause) = &*self.failed.lock() {
            let why = format!("a change of the array's map failed ({cause}); open the database again");
            return Err(DeviceError::Refused { device: self.name.clone(), why: why.into() });
        }
        Ok(())
    }

    /// A change of the table failed: the first cause counts.
    fn fail(&self, cause: &DeviceError) {
        self.failed.lock().get_or_insert_with(|| cause.clone());
    }

    /// Notes a table before it counts.
    fn note(
        &self,
        state: &mut State,
        view: &View,
        (map, zero_from): (&Map, u64),
        changed: Range<usize>,
        touched: Option<Place>,
    ) -> Result<(), DeviceError> {
        if let Some(records) = state.records.as_mut().filter(|_| !state.faults.has(Mistake::ArrayNoMap)) {
            let done = records.commit(&view.devices(), (map, zero_from), changed, touched);
            done.inspect_err(|e| self.fail(e))?;
        }
        state.zero_from = zero_from;
        Ok(())
    }

    fn view(&self) -> Arc<View> {
        self.view.lock().clone()
    }

    /// Bytes of an extent.
    pub fn extent(&self) -> u64 {
        self.view().map.extent
    }

    /// What was asked of each extent since the array was opened. Of a stripe, of each stretch as long as an extent.
    pub fn used(&self) -> Vec<Used> {
        let view = self.view();
        view.uses.read_out(view.map.entries.len())
    }

    /// The drives, in order.
    pub fn drives(&self) -> Vec<Arc<dyn Device>> {
        self.view().devices()
    }

    /// The table as it is now.
    pub fn map(&self) -> Map {
        self.view().map.clone()
    }

    /// Slots of each drive that extents have, and slots that there are.
    pub fn usage(&self) -> Vec<(u32, u32)> {
        let state = self.state.lock();
        state.slots.used().into_iter().zip(state.slots.counts()).collect()
    }

    /// How new extents are laid over the drives.
    pub fn layout(&self) -> Arc<Layout> {
        self.view().layout.clone()
    }

    /// Begins a generation: from now on a drive as it was before is told apart from the others. For moments after which
    /// the drives must not be exchanged for older copies of themselves: the database's checkpoints.
    ///
    /// # Errors
    /// A drive's own.
    pub fn begin_generation(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let (view, zero_from) = (self.view(), state.zero_from);
        self.note(&mut state, &view, (&view.map, zero_from), 0..0, None)
    }

    /// The array's identity, and the number of its generation; none of one that has nothing on its drives.
    pub fn identity(&self) -> Option<([u8; 16], u64)> {
        let state = self.state.lock();
        state.records.as_ref().map(|records| (records.shape.array, records.generation.number))
    }

    /// Builds mistakes in, for the crash simulation's own tests.
    #[doc(hidden)]
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    fn grow(&self, state: &mut State, view: &View, len: u64) -> Result<(), DeviceError> {
        let mut map = view.map.clone();
        let needed = (len.div_ceil(map.extent) as usize).saturating_sub(map.entries.len());
        state.reuse();
        let full = DeviceError::NoSpace { op: OpKind::SetLen, device: self.name.clone(), offset: map.len, len };
        let taken = state.slots.place(needed, &view.layout).ok_or(full)?;
        let give_back = |state: &mut State| taken.iter().for_each(|taken| state.slots.give_back(taken.entry.place));
        make_blank(state, view, &taken, len).inspect_err(|_| give_back(state))?;
        let first = map.entries.len();
        map.entries.extend(taken.iter().map(|taken| taken.entry));
        map.len = len;
        assert!(len <= map.room(), "an array that grew has extents for its length");
        let (zero_from, changed) = (state.zero_from.max(len), first..map.entries.len());
        self.note(state, view, (&map, zero_from), changed, None)?;
        self.use_map(map, view.moving.clone(), state);
        Ok(())
    }

    fn shrink(&self, state: &mut State, view: &Arc<View>, len: u64) -> Result<(), DeviceError> {
        let mut map = view.map.clone();
        let extents = len.div_ceil(map.extent) as usize;
        // A set stays or goes as a whole.
        let keep = if extents == 0 { 0 } else { map.set_of(extents - 1).end };
        let gone: Vec<Place> = map.entries.drain(keep..).map(|entry| entry.place).collect();
        map.len = len;
        let (zero_from, end) = (state.zero_from.min(map.room()), map.entries.len());
        self.note(state, view, (&map, zero_from), end..end, None)?;
        let moving = view.moving.clone().filter(|moving| !gone.contains(&moving.from));
        self.use_map(map, moving, state);
        state.left.push((state.old.clone(), gone));
        Ok(())
    }

    /// Requests go by this table from now on.
    fn use_map(&self, map: Map, moving: Option<Moving>, state: &mut State) {
        let view = self.view();
        self.use_view(View { map, moving, ..(*view).clone() }, state);
    }

    /// Requests go by this view from now on.
    fn use_view(&self, next: View, state: &mut State) {
        debug_assert_eq!(next.map.fault(&state.slots.counts()), None);
        assert!(state.zero_from >= next.map.len, "what is in use is not said to be blank");
        assert!(state.zero_from <= next.map.room(), "what is blank lies within the extents");
        let uses = next.uses.clone().with_room(next.map.entries.len());
        let mut view = self.view.lock();
        state.old.retain(|old| old.strong_count() > 0);
        state.old.push(Arc::downgrade(&view));
        *view = Arc::new(View { uses, ..next });
    }
}

impl State {
    /// Slots that were left can be taken again once nobody has a view with them.
    fn reuse(&mut self) {
        let slots = &mut self.slots;
        self.left.retain(|(views, places)| {
            let idle = are_gone(views);
            if idle {
                places.iter().for_each(|place| slots.give_back(*place));
            }
            !idle
        });
    }
}

/// Whether every request that went by these views has ended.
fn are_gone(views: &[Weak<View>]) -> bool {
    let gone = views.iter().all(|view| view.strong_count() == 0);
    // What those requests did comes before what their end allows.
    fence(Ordering::Acquire);
    gone
}

/// Writes zeros where new bytes of the array would show old ones, and makes them durable.
fn make_blank(state: &State, view: &View, taken: &[Taken], len: u64) -> Result<(), DeviceError> {
    let map = &view.map;
    let end = len.min(state.zero_from).min(map.room()).max(map.len);
    let mut old: Vec<Piece> = map.pieces(map.len, end - map.len).collect();
    let used = taken.iter().filter(|taken| !taken.blank).map(|taken| taken.entry.place);
    if let Some(moving) = &view.moving {
        old.iter().for_each(|piece| moving.spoil(map, piece));
    }
    old.extend(used.map(|place| Piece { drive: place.drive.into(), at: map.slot_at(place.slot), len: map.extent }));
    let zeros = AlignedBuf::new(if old.is_empty() { 0 } else { ZEROS });
    for piece in &old {
        let member = &view.members[piece.drive];
        for from in (0..piece.len).step_by(ZEROS) {
            let bytes = &zeros[..(piece.len - from).min(ZEROS as u64) as usize];
            write_at(&*member.device, piece.at + from, bytes, false)?;
            member.wrote();
        }
    }
    old.iter().try_for_each(|piece| view.members[piece.drive].flush())
}

/// Every note that there is, with the name of its drive.
fn merged_fallback(infos: &[DeviceInfo]) -> Option<String> {
    let notes: Vec<String> =
        infos.iter().filter_map(|i| Some(format!("{}: {}", i.name, i.fallback.as_ref()?))).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

impl Device for Array {
    fn info(&self) -> DeviceInfo {
        let view = self.view();
        let there = view.members.iter().filter(|member| member.is_there);
        let infos: Vec<DeviceInfo> = there.map(|member| member.device.info()).collect();
        let mut access: Vec<&str> = infos.iter().map(|info| &*info.access).collect();
        access.dedup();
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::Array,
            block: self.block,
            atomic_write_unit: infos.iter().map(|info| info.atomic_write_unit).min().expect("there is a drive"),
            queue_depth: infos.iter().map(|info| info.queue_depth).sum(),
            direct: infos.iter().all(|info| info.direct),
            access: format!("{} over {} drives: {}", view.layout.name(), infos.len(), access.join(" | ")),
            fallback: merged_fallback(&infos),
            // On the drives that cannot it does nothing.
            capabilities: Capabilities {
                trim: infos.iter().any(|info| info.capabilities.trim),
                extent: if view.layout.unit(view.map.extent) == view.map.extent { view.map.extent } else { 0 },
            },
        }
    }

    fn len(&self) -> u64 {
        self.view.lock().map.len
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(self.block.into());
        let mut state = self.state.lock();
        let view = self.view();
        match len.cmp(&view.map.len) {
            std::cmp::Ordering::Greater => self.grow(&mut state, &view, len),
            std::cmp::Ordering::Less => self.shrink(&mut state, &view, len),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let view = self.view();
        let len = view.map.len;
        flight::submit(view, &self.totals, batch, |io| self.check(io, len))
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        let view = self.view();
        self.check(&io, view.map.len)?;
        flight::run(view, &self.totals, io)
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats { busy: Some(self.totals.busy.snapshot()), ..self.totals.counters.snapshot() }
    }

    fn life_used(&self) -> Option<f64> {
        let used = self.view().members.iter().filter_map(|member| member.device.life_used()).collect::<Vec<_>>();
        used.into_iter().reduce(f64::max)
    }

    fn hint(&self, range: Range<u64>, hint: Hint) {
        let view = self.view();
        view.uses.hint(&range, view.map.extent, hint);
    }
}
