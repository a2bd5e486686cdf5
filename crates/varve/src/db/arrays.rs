//! The array of an open database: what its extents are used for, plans for them, moves in the background, drives that
//! come and go.
//!
//! A thread watches the extents and moves them (`varve_volume::array::Keeper`); it seals what nothing changes once the
//! database is open, and keeps what it knows of the extents in the file `array.loads` of the database's directory. That
//! file is of use to plans alone: without it they know less. (So is the other one, of `loaded.rs`.)
//!
//! Lock order: `links` (names of drives in the directory) before everything of the array.
//!
//! Invariant: a name `drive.N` is made before drive N is taken in, and removed after it was taken out.

use super::devices::Devices;
use super::drives;
use super::loaded;
use super::options::{DrivePart, Options};
use super::read_only::{SealReport, Sealer};
use super::services::Services;
use super::{Db, Inner, Opened};
use crate::error::{Error, Result};
use crate::space::Core;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use varve_device::Health;
use varve_rt::{JoinHandle, Mutex};
use varve_volume::VolumeError;
use varve_volume::array::curve::Curve;
use varve_volume::array::{Array, ArrayPlan, Keeper, Moves, NewDrive, Promise, Watch, no_drive};

/// The file of what is known of the extents.
const LOADS: &str = "array.loads";
/// Bytes that it has at most: a line for each extent.
const MOST_LOADS: u64 = 1 << 30;
/// Between two savings of it.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The array's thread, and what it keeps.
pub(super) struct ArrayService {
    keeper: Arc<Keeper>,
    core: Arc<Core>,
    dir: Option<PathBuf>,
    /// Held while names of drives are made or removed.
    links: Mutex<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ArrayService {
    /// Over the array of a database that is being opened, if it has one; nothing runs yet.
    pub fn new(devices: &Devices, options: &Options, core: &Arc<Core>) -> Option<Arc<ArrayService>> {
        let array = devices.array.clone()?;
        let mut watch = Watch::new(&array, options.array.rules);
        let dir = devices.dir.clone();
        if let Some(text) = dir.as_ref().and_then(|dir| varve_device::read_text(dir.join(LOADS), MOST_LOADS).ok()) {
            watch.remember(&text);
        }
        if let Some(dir) = &dir {
            loaded::take(dir, &array, &core.space, !options.read_only);
        }
        let keeper = Keeper::new(array, options.array.clone(), watch);
        let (links, thread) = (Mutex::new(()), Mutex::new(None));
        Some(Arc::new(ArrayService { keeper, core: core.clone(), dir, links, thread }))
    }

    /// Starts the thread, one of `services`; `sealer` tells the array what nothing changes.
    pub fn start(self: &Arc<Self>, services: &Services, sealer: Sealer) -> Result<()> {
        services.add_array(self);
        let this = self.clone();
        let life = move || this.run(&sealer);
        let before = self.thread.lock().replace(self.core.log.health().spawn("array", life)?);
        assert!(before.is_none(), "an array has one thread");
        Ok(())
    }

    fn run(&self, sealer: &Sealer) {
        // What cannot be read now is met by whoever reads it; unsealed extents are placed by what they are used for.
        let _ = sealer.seal();
        let mut saved = varve_rt::now();
        self.keeper.serve(|keeper| {
            if self.core.log.poisoned().is_some() {
                keeper.end();
                return;
            }
            let _ = self.tidy();
            if saved.elapsed() >= SAVE_EVERY {
                self.save();
                saved = varve_rt::now();
            }
        });
        self.save();
    }

    /// Tells the thread to end; waits for nothing.
    pub fn end(&self) {
        self.keeper.end();
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.end();
        let thread = self.thread.lock().take();
        Health::join(thread);
    }

    /// The file gets its name when it is whole. What fails costs plans something, and nobody else.
    fn save(&self) {
        let Some(dir) = self.dir.as_ref().filter(|_| !self.core.log.health().has_ended()) else { return };
        let (path, partial) = (dir.join(LOADS), dir.join("array.loads.partial"));
        let text = self.keeper.watched().to_text();
        if std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, &path)).is_err() {
            let _ = std::fs::remove_file(partial);
        }
    }

    /// The database is closed, and nothing is written any more.
    pub fn closed(&self) {
        if let Some(dir) = &self.dir {
            loaded::keep(dir, self.array(), &self.core.space);
        }
    }

    fn array(&self) -> &Arc<Array> {
        self.keeper.array()
    }

    /// How far the moves are.
    pub fn moves(&self) -> Moves {
        self.keeper.moves()
    }

    /// Removes the names of drives that the array does not have any more, or never had.
    fn tidy(&self) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let _links = self.links.lock();
        let live: Vec<usize> = self.array().array_stats().drives.iter().map(|drive| drive.number).collect();
        assert!(live.len() >= 2, "an array has at least two drives");
        (0..drives::count(dir)).filter(|number| !live.contains(number)).try_for_each(|n| drives::unlink(dir, n))
    }

    fn add(&self, part: &DrivePart, share: Option<f64>, how: (&Options, bool)) -> Result<usize> {
        let dir = self.dir.as_ref().ok_or_else(|| Error::Invalid("the database has no directory".into()))?;
        let _links = self.links.lock();
        let number = self.array().next_number();
        let drive = drives::link_new(dir, number, part, how)?;
        let share = share.unwrap_or_else(|| self.mean_share());
        let added = self.array().add_drive(drive, share);
        match added {
            Ok(added) => {
                assert_eq!(added, number, "a drive gets the number that its name has");
                Ok(added)
            }
            Err(e) => {
                drives::unlink(dir, number)?;
                Err(refused(e))
            }
        }
    }

    /// Takes a drive in by `add`, with the share of another one, and begins to empty that one onto it.
    fn replace(&self, drive: usize, add: impl FnOnce(Option<f64>) -> Result<usize>) -> Result<usize> {
        self.keeper.refuse_while_moving().map_err(refused)?;
        let old = self.array().array_stats().drives.into_iter().find(|old| old.number == drive);
        // The number of one that went would be that of the one that comes.
        let old = old.ok_or_else(|| refused(no_drive(drive)))?;
        let new = add(Some(old.share))?;
        assert_ne!(new, drive, "a drive that comes has a number of its own");
        let begun = self.keeper.drain(drive, Some(new));
        if begun.is_err() {
            self.array().close_drive(new, true);
            // New extents, or others that move, may lie there by now: then it stays.
            match self.array().retire_drive(new) {
                Ok(true) => self.tidy()?,
                _ => self.array().close_drive(new, false),
            }
        }
        begun.map(|_| new).map_err(refused)
    }

    /// What the drives have on average.
    fn mean_share(&self) -> f64 {
        let drives = self.array().array_stats().drives;
        let shares = drives.iter().map(|drive| drive.share).filter(|share| *share > 0.0);
        let (sum, count) = shares.fold((0.0, 0), |(sum, count), share| (sum + share, count + 1));
        assert!(sum >= 0.0, "a share is a part");
        if count > 0 { sum / f64::from(count) } else { 1.0 }
    }
}

/// What the array cannot do as asked is the caller's to put right.
fn refused(e: VolumeError) -> Error {
    match e {
        VolumeError::Options(what) => Error::Invalid(what),
        e => e.into(),
    }
}

impl Inner {
    fn array(&self) -> Result<&Arc<ArrayService>> {
        self.txns.may_call()?;
        self.array.as_ref().ok_or_else(|| {
            Error::Invalid(
                "the database's pages lie on one device: `varve create DB --drive PATH:SIZE --drive ..` makes one on \
                 an array"
                    .into(),
            )
        })
    }
}

/// The array of a database.
impl Db {
    /// Where the extents should lie, and what that brings: by what was asked of them since the database was opened (and
    /// before, if it has a directory), and by what each drive gives, by its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a drive of which nobody said what it gives, or a request size that was not measured.
    pub fn array_plan(&self, curves: &[Option<Curve>]) -> Result<ArrayPlan> {
        self.array_seal()?;
        self.inner.array()?.keeper.plan(curves).map_err(refused)
    }

    /// Finds the extents again that have pages of read-only keyspaces alone, and seals them. The array's thread does it
    /// once the database is open, but may not have come to it yet; opened for reading there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] without an array; those of reading the keyspaces' inner nodes.
    pub fn array_seal(&self) -> Result<SealReport> {
        self.inner.txns.live()?;
        self.inner.array()?;
        let Opened { core, registry, walking, checkpointer, .. } = &**self.inner;
        Sealer::new((core, registry, walking), checkpointer.as_ref()).seal()
    }

    /// Says what the drives give, for plans that are made unasked (`array_replan` of the options).
    pub fn set_array_curves(&self, curves: Vec<Option<Curve>>) -> Result<()> {
        self.inner.array()?.keeper.set_curves(curves);
        Ok(())
    }

    /// Moves the extents as planned, in the background, while work goes on. Returns how many will move; those that a
    /// plan moved a short while ago stay. New extents go by the plan too.
    ///
    /// # Errors
    /// [`Error::Invalid`] while other extents move.
    pub fn array_apply(&self, plan: &ArrayPlan) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        self.inner.array()?.keeper.apply(plan).map_err(refused)
    }

    /// Moves nothing any more, or goes on. The database forgets it when it is closed.
    pub fn array_pause(&self, paused: bool) -> Result<()> {
        self.inner.array()?.keeper.pause(paused);
        Ok(())
    }

    /// Gives up what is left to move.
    pub fn array_give_up(&self) -> Result<()> {
        self.inner.array()?.keeper.give_up();
        Ok(())
    }

    /// How far the moves are.
    pub fn array_moves(&self) -> Result<Moves> {
        Ok(self.inner.array()?.moves())
    }

    /// What the plans promised that were applied since the database was opened, asked for or not, in
    /// order.
    pub fn array_promises(&self) -> Result<Vec<Promise>> {
        Ok(self.inner.array()?.keeper.promises())
    }

    /// Waits until nothing is left to move. False: it is paused, or failed.
    pub fn array_wait(&self) -> Result<bool> {
        let service = self.inner.array()?;
        let done = service.keeper.wait();
        service.tidy()?;
        Ok(done)
    }

    /// Takes a drive into the array, while work goes on; returns its number. New extents go there by its share, such as
    /// the MB/s that it gives (`None`: as much as the others on average); old ones stay until a plan moves them.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if it holds something of a database, unless that is overwritten; [`Error::Invalid`]
    /// says why it cannot be used.
    pub fn array_add(&self, part: &DrivePart, share: Option<f64>, overwrite: bool) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        self.inner.array()?.add(part, share, (&self.inner.options, overwrite))
    }

    /// As [`Db::array_add`], for a database on devices.
    pub fn array_add_on(&self, drive: NewDrive, share: Option<f64>) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        let service = self.inner.array()?;
        service.array().add_drive(drive, share.unwrap_or_else(|| service.mean_share())).map_err(refused)
    }

    /// Moves all extents of a drive to the others, in the background, while work goes on; then the array goes without
    /// it. Returns how many will move. A crash, or a close, ends it half way: drain again.
    ///
    /// # Errors
    /// [`Error::Invalid`] while other extents move, if there is no such drive, or says how much room is missing.
    pub fn array_drain(&self, drive: usize) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        self.inner.array()?.keeper.drain(drive, None).map_err(refused)
    }

    /// Takes a drive in and moves all extents of another one there. Returns the number of the new one.
    ///
    /// # Errors
    /// As for [`Db::array_add`] and [`Db::array_drain`]: the array is as before then, unless something lies on the new
    /// drive by that time, which stays in the array.
    pub fn array_replace(&self, drive: usize, part: &DrivePart, overwrite: bool) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        let service = self.inner.array()?;
        service.replace(drive, |share| service.add(part, share, (&self.inner.options, overwrite)))
    }

    /// As [`Db::array_replace`], for a database on devices.
    pub fn array_replace_on(&self, drive: usize, new: NewDrive) -> Result<usize> {
        self.inner.txns.live_for_write()?;
        let service = self.inner.array()?;
        service.replace(drive, |share| {
            let share = share.unwrap_or_else(|| service.mean_share());
            service.array().add_drive(new, share).map_err(refused)
        })
    }

    /// Drives that the database was opened without, by their numbers.
    pub fn missing_drives(&self) -> &[usize] {
        &self.inner.devices.missing
    }
}
