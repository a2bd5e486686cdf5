//! What a volume is made of: the one place that knows every kind of page store. (An array of drives is a device, and
//! may be any of the devices here; the engine's `db/drives.rs` puts it together.)
//!
//! A database's superblock has a record that says what its volume is: nothing for one device, a tier's record for a
//! fast device over a slow one, the regions of native flash. [`create`] makes the volume and its first record, [`open`]
//! reads the record and puts the stores on each other. The engine has a [`PageStore`] and an [`Admin`] then, and knows
//! no more of what is below.

use crate::admin::{Admin, Opening, Owner, Stamp};
use crate::flash::{FlashLayout, FlashStore, NativeFlash};
use crate::tier::{TierOptions, TierVolume};
use crate::{PageStore, Single, VolumeError, tier};
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_device::Device;

/// The device of [`Single`], and the home of a tier's pages.
pub const DATA: &str = "data";
/// The fast device of a tier.
pub const FAST: &str = "fast";

/// Devices by what they are for.
#[derive(Clone, Default)]
pub struct Parts {
    devices: BTreeMap<&'static str, Arc<dyn Device>>,
    /// What [`DATA`] is, if it is native flash.
    flash: Option<Arc<NativeFlash>>,
}

impl Parts {
    /// One device for all pages.
    pub fn new(data: Arc<dyn Device>) -> Parts {
        Parts::default().with(DATA, Some(data))
    }

    /// Native flash for all pages.
    pub fn on_flash(flash: Arc<NativeFlash>) -> Parts {
        Parts { flash: Some(flash.clone()), ..Parts::new(flash) }
    }

    /// Whether a power cut may leave a page of so many bytes half written. Native flash programs each of its own pages
    /// as a whole, to a new place.
    pub fn tear(&self, page_size: usize) -> bool {
        self.flash.as_ref().is_none_or(|flash| flash.page_bytes() != page_size as u64)
    }

    /// The same with one part more, if there is one.
    pub fn with(mut self, name: &'static str, device: Option<Arc<dyn Device>>) -> Parts {
        self.devices.extend(device.map(|device| (name, device)));
        self
    }

    /// The same without one part.
    pub fn without(mut self, name: &str) -> Parts {
        self.devices.remove(name);
        self
    }

    /// Each part by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Device>)> {
        self.devices.iter().map(|(name, device)| (*name, device))
    }

    /// The part of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Device>> {
        self.devices.get(name)
    }

    /// What a superblock says of the native flash that holds the pages; nothing, if none does.
    pub fn record(&self) -> Result<Vec<u8>, VolumeError> {
        let Some(flash) = &self.flash else { return Ok(Vec::new()) };
        if self.get(FAST).is_some() {
            return Err(VolumeError::Options("a tier over native flash cannot be made: give one of the two".into()));
        }
        flash.layout().encode(&flash.geometry())
    }

    /// Bytes at the end of each page that a database which is made here leaves alone.
    pub fn room(&self) -> usize {
        self.flash.as_ref().map_or(0, |flash| flash.room())
    }

    /// The device that holds the pages.
    pub fn data(&self) -> Result<&Arc<dyn Device>, VolumeError> {
        self.get(DATA).ok_or_else(|| VolumeError::Missing("the device that holds the pages is not given".into()))
    }
}

/// A volume, open.
pub struct Volume {
    /// The pages.
    pub store: Arc<dyn PageStore>,
    /// The rest.
    pub admin: Arc<dyn Admin>,
    /// A part began empty, because it was of another time: which.
    pub emptied: Option<String>,
}

impl Volume {
    fn single(store: Arc<Single>) -> Volume {
        Volume { store: store.clone(), admin: store, emptied: None }
    }

    fn on_flash(flash: &Arc<NativeFlash>, single: Arc<Single>) -> Result<Volume, VolumeError> {
        let store = FlashStore::new(flash.clone(), single)?;
        Ok(Volume { store: store.clone(), admin: store, emptied: None })
    }

    fn over(volume: TierVolume, emptied: Option<String>) -> Volume {
        Volume { store: Arc::new(volume.tier().clone()), admin: Arc::new(volume), emptied }
    }
}

/// How a volume is made or opened, whatever its kind.
#[derive(Clone)]
pub struct VolumeOptions {
    /// What the database says.
    pub opening: Opening,
    /// Of a tier.
    pub tier: TierOptions,
}

/// Makes the volume of a new database; returns the superblock's record too.
pub fn create(parts: &Parts, options: &VolumeOptions) -> Result<(Volume, Vec<u8>), VolumeError> {
    let single = Single::with_room(parts.data()?.clone(), options.opening.page_size, options.opening.room)?;
    let record = parts.record()?;
    if let Some(flash) = &parts.flash {
        return Ok((Volume::on_flash(flash, single)?, record));
    }
    let Some(fast) = parts.get(FAST) else { return Ok((Volume::single(single), record)) };
    let (tier, record) = TierVolume::create(single, fast, options.tier.clone(), &options.opening)?;
    Ok((Volume::over(tier, None), record))
}

/// Opens the volume that the superblock's `record` names. `admits` says of which generations its other parts may be.
pub fn open(
    parts: &Parts,
    (record, owner): (&[u8], Arc<dyn Owner>),
    admits: &dyn Fn(Stamp) -> bool,
    options: &VolumeOptions,
) -> Result<Volume, VolumeError> {
    let single = Single::with_room(parts.data()?.clone(), options.opening.page_size, options.opening.room)?;
    if let Some(flash) = &parts.flash {
        let known =
            FlashLayout::decode(record).is_ok_and(|of| Ok(of) == parts.record().and_then(|r| FlashLayout::decode(&r)));
        return if known { Volume::on_flash(flash, single) } else { Err(other_flash(record, parts)) };
    }
    if FlashLayout::is_record(record) {
        return Err(other_flash(record, parts));
    }
    let fast = parts.get(FAST).filter(|_| !options.opening.without);
    match TierVolume::open(single.clone(), fast, record, owner, admits, options.tier.clone(), &options.opening)? {
        None => Ok(Volume::single(single)),
        Some((tier, emptied)) => Ok(Volume::over(tier, emptied)),
    }
}

/// Why the parts are not what the superblock's record names, one of the two being native flash.
fn other_flash(record: &[u8], parts: &Parts) -> VolumeError {
    VolumeError::Mismatch(match (FlashLayout::is_record(record), &parts.flash) {
        (true, None) => "the pages lie on native flash: open the database on that, not on a file".into(),
        (false, _) => "the pages lie on a file or drive, not on native flash: open the database on that".into(),
        (true, Some(flash)) => match FlashLayout::decode(record) {
            Ok((_, made)) if made != flash.geometry() => {
                format!("the database was made on flash of another shape: {made:?}, not {:?}", flash.geometry())
            }
            Ok((made, _)) => format!("the database was made with other regions: {made:?}"),
            Err(e) => e.to_string(),
        },
    })
}

/// Whether a superblock's record names a fast device.
pub fn has_tier(record: &[u8]) -> bool {
    tier::is_record(record)
}
