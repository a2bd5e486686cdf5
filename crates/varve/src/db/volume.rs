//! The volume in the life of a database: how it comes up, recovers and goes down with it. Which kind it is, and what
//! that means, only `varve_volume::plan` knows.

use super::devices::Devices;
use super::options::{Layout, Options};
use crate::error::{Error, Result};
use crate::space::{Core, PoolPages, Space};
use crate::wal::recovery::ReplayPages;
use crate::wal::{Companion, Generation, Log, LogState};
use std::sync::{Arc, Weak};
use varve_device::{AlignedBuf, DeviceError};
use varve_volume::array::Array;
use varve_volume::plan::{self, FAST, Volume, VolumeOptions};
use varve_volume::{Admin, Lsn, Opening, Owner, PageStore, ReadWhy, Stamp, VolumeError, read_pages};

/// Names of the tier managers there are.
pub fn tier_managers() -> Vec<&'static str> {
    varve_volume::tier::manager::REGISTRY.iter().map(|e| e.name).collect()
}

/// The database as its volume sees it.
struct AsOwner(Arc<Log>);

impl Owner for AsOwner {
    fn record(&self) -> Vec<u8> {
        self.0.header().options.clone()
    }

    fn note(&self, record: Vec<u8>) -> std::result::Result<(), VolumeError> {
        self.0.set_options(record).map_err(|e| match e {
            Error::Io(device) => device.into(),
            Error::Poisoned(why) => DeviceError::Refused { device: "log".into(), why: why.into() }.into(),
            other => VolumeError::Note(other.to_string()),
        })
    }

    fn broken(&self, cause: &str) {
        self.0.poison(cause);
    }
}

fn of_volume(Generation { number, tie }: Generation) -> Stamp {
    Stamp { number, tie }
}

fn volume_options(
    options: &Options,
    (page_size, room): (usize, usize),
    of: ([u8; 16], Generation),
    stamps: bool,
) -> VolumeOptions {
    let opening = Opening {
        page_size,
        room,
        identity: of.0,
        generation: of_volume(of.1),
        read_only: options.read_only,
        without: options.without_tier,
        attach: options.attach_tier,
        stamps,
    };
    VolumeOptions { opening, tier: options.tier.clone() }
}

/// Whether the superblock's options name a tier.
pub(super) fn has_tier(options: &[u8]) -> bool {
    plan::has_tier(options)
}

/// Makes the volume of a new database; returns the superblock's options too.
pub(super) fn create(
    devices: &Devices,
    layout: &Layout,
    options: &Options,
    of: ([u8; 16], Generation),
) -> Result<(Volume, Vec<u8>)> {
    if let Some(fast) = devices.part(FAST).filter(|fast| fast.len() < layout.fast_bytes) {
        fast.set_len(layout.fast_bytes)?;
    }
    Ok(plan::create(&devices.parts, &volume_options(options, (layout.page_size, devices.parts.room()), of, true))?)
}

/// Opens the volume of a database whose superblock was read. `admits` says of which generations its other parts may be.
pub(super) fn open(
    devices: &Devices,
    (log, state): (&Arc<Log>, &LogState),
    admits: &dyn Fn(Generation) -> bool,
    options: &Options,
) -> Result<Volume> {
    let of = (state.header.uuid, state.generation);
    let options = volume_options(
        options,
        (state.header.page_size as usize, state.header.room.into()),
        of,
        state.identity.is_some(),
    );
    let admits = |stamp: Stamp| admits(Generation { number: stamp.number, tie: stamp.tie });
    let owner = Arc::new(AsOwner(log.clone()));
    Ok(plan::open(&devices.parts, (&state.header.options, owner), &admits, &options)?)
}

/// Ties the volume to its log: the log answers for what cannot be promised any more, and has the devices bear its
/// generations.
pub(super) fn belongs(admin: &Arc<dyn Admin>, log: &Arc<Log>, read_only: bool) {
    admin.belongs_to(Arc::new(AsOwner(log.clone())), log.health());
    if !read_only {
        admin.answers();
        if admin.is_stamped() {
            log.accompany(Arc::new(Bearer(Arc::downgrade(admin))));
        }
    }
}

/// Has the drives of an array begin a generation whenever the database does: a drive that is put back as it was before
/// is told from the others.
pub(super) fn ages(array: &Arc<Array>, log: &Arc<Log>) {
    log.accompany(Arc::new(Ages(array.clone())));
}

struct Ages(Arc<Array>);

impl Companion for Ages {
    fn intend(&self, _: Generation, _: Generation, _: Lsn) -> Result<()> {
        Ok(self.0.begin_generation()?)
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }
}

/// What stamps the devices of the volume with each generation.
struct Bearer(Weak<dyn Admin>);

impl Companion for Bearer {
    fn intend(&self, next: Generation, _: Generation, _: Lsn) -> Result<()> {
        let admin = self.0.upgrade().ok_or(Error::Closed)?;
        Ok(admin.stamp(of_volume(next))?)
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }
}

/// After recovery: pages that are free by the log need not be looked at. Torn ones would never be written again.
pub(super) fn forget_free(admin: &dyn Admin, store: &dyn PageStore, space: &Space) -> Result<()> {
    let free: Vec<_> = admin.doubtful().into_iter().filter(|page| space.is_free(*page)).collect();
    if free.is_empty() { Ok(()) } else { Ok(store.discard(&free)?) }
}

/// Once it is known which pages hold marks (`space::lost_writes`): torn versions of those are given up. They are
/// written without the log, which cannot mend them, and their twins are whole. The same for pages that became free
/// while the database was opened.
pub(super) fn forget_torn(admin: &dyn Admin, store: &dyn PageStore, core: &Core) -> Result<()> {
    let is_marks = |page| core.lost_writes.as_ref().is_some_and(|marks| marks.is_ours(page));
    let mut buf = AlignedBuf::new(core.page_size());
    let mut torn = Vec::new();
    for page in admin.doubtful() {
        if core.space.is_free(page) || is_marks(page) {
            let read = read_pages(store, page, ReadWhy::Demand, &mut buf).swap_remove(0);
            torn.extend(matches!(read, Err(VolumeError::Damaged { .. })).then_some(page));
        }
    }
    if torn.is_empty() { Ok(()) } else { Ok(store.discard(&torn)?) }
}

/// After recovery: pages go where the options of now have them.
pub(super) fn settle(admin: &dyn Admin, pages: &PoolPages) -> Result<()> {
    // Torn versions are written again by the pool, from the log: those first.
    pages.write_back()?;
    Ok(admin.settle()?)
}
