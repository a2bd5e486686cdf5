//! Device profiles: a device described in a TOML file, every number with its source, and built as a model.
//!
//! ```toml
//! name = "my-disk"
//! title = "What it is"
//! source = "Where the numbers come from"
//! [disk]                       # or [fixed], [mix], [flash]
//! tracks = 100_000
//! # ...
//! [sources]                    # see [`crate::sources`]
//! "disk.tracks" = "product manual, table 3"
//! ```
//!
//! Profiles of the published systems' hardware and of present-day drives come with the program ([`Profile::names`]).
//! Unknown keys are refused, so that a misspelt one is not silently left at its default.

mod builtin;
mod error;
mod flash;

use crate::Sparse;
use crate::disk::DiskConfig;
use crate::fixed::FixedConfig;
use crate::flash::{Drive, FlashConfig};
use crate::mix::MixConfig;
use crate::model::{Model, ModelOptions, Modelled, Section};
use crate::sources::{self, Parameter};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use varve_device::Device;

pub use error::ProfileError;

/// A device, described.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name: what it is loaded by.
    pub name: String,
    /// What the device is, in a line.
    #[serde(default)]
    pub title: String,
    /// Where the numbers come from.
    #[serde(default)]
    pub source: String,
    /// Of a profile that was measured: model and serial number of the drive, where the system tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    /// Bytes of the device; a disk's and a flash drive's follow from their geometry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Alignment of requests, bytes.
    #[serde(default = "block")]
    pub block: u32,
    /// A power cut tears writes at multiples of this, bytes.
    #[serde(default = "sector")]
    pub sector: u32,
    /// A magnetic disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskConfig>,
    /// Fixed service times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedConfig>,
    /// Tables of measured rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<MixConfig>,
    /// Flash with a translation layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashConfig>,
    /// What each number rests on, by key path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, String>,
}

fn block() -> u32 {
    4096
}

fn sector() -> u32 {
    512
}

/// The capacity of a profile that does not say, bytes.
const DEFAULT_CAPACITY: u64 = 1 << 40;

/// Text of a profile, and its file's name for messages.
fn text_of(name_or_path: &str) -> Result<(Cow<'static, str>, String), ProfileError> {
    if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
        let read = std::fs::read_to_string(Path::new(name_or_path));
        let text = read.map_err(|e| ProfileError::Unreadable { file: name_or_path.into(), why: e.to_string() })?;
        return Ok((text.into(), name_or_path.into()));
    }
    match builtin::DEVICES.iter().find(|(name, _)| *name == name_or_path) {
        Some((name, text)) => Ok(((*text).into(), format!("{name} (built in)"))),
        None => Err(ProfileError::Unknown { name: name_or_path.into(), names: Profile::names().join(", ") }),
    }
}

/// How to build a profile's device.
#[derive(Clone, Debug)]
pub struct Build {
    /// Everything random about the device follows from it.
    pub seed: u64,
    /// Length, bytes; at most the capacity.
    pub len: u64,
    /// What the device holds at first; see [`Modelled::contents`].
    pub contents: Sparse,
    /// Keep what is written; see [`ModelOptions::keep`].
    pub keep: bool,
    /// Name for messages instead of the profile's.
    pub name: Option<String>,
    /// Of a flash drive: the drive is full, and so many times its pages were overwritten at random places, before it
    /// begins.
    pub aged: f64,
    /// Of a flash drive: begin with a copy of this one, its mapping and wear, instead of `contents` and `aged`. From
    /// [`Profile::drive`] or [`Modelled::drive`].
    pub drive: Option<Arc<Drive>>,
}

impl Default for Build {
    fn default() -> Build {
        Build { seed: 1, len: 0, contents: Sparse::new(), keep: true, name: None, aged: 0.0, drive: None }
    }
}

impl Profile {
    /// Loads a profile by its name, or from a file if `name_or_path` has a slash or ends in `.toml`.
    pub fn load(name_or_path: &str) -> Result<Profile, ProfileError> {
        let (text, file) = text_of(name_or_path)?;
        Profile::parse(&text, &file)
    }

    /// The numbers of a profile as its file states them, with what they rest on; `name_or_path` as for
    /// [`Profile::load`].
    pub fn parameters(name_or_path: &str) -> Result<Vec<Parameter>, ProfileError> {
        let (text, file) = text_of(name_or_path)?;
        let profile = Profile::parse(&text, &file)?;
        let mut table: toml::Table = text.parse().expect("a profile was read from it");
        for words in ["name", "title", "source", "sources"] {
            table.remove(words);
        }
        Ok(sources::parameters(&table, &profile.sources))
    }

    /// Names of the profiles that come with the program.
    pub fn names() -> Vec<&'static str> {
        builtin::DEVICES.iter().map(|(name, _)| *name).collect()
    }

    /// Reads a profile from the text of `file` (its name, for messages).
    pub fn parse(text: &str, file: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text).map_err(|e| ProfileError::of_toml(file, text, &e))?;
        profile.check().map_err(|(key, message)| ProfileError::of_key(file, text, &key, message))?;
        let table: toml::Table = text.parse().expect("it was read just now");
        if let Some(key) = sources::stray(&[&table], &profile.sources) {
            let message = format!("{key:?} has a source, but is no key of the profile");
            return Err(ProfileError::of_key(file, text, "sources", message));
        }
        Ok(profile)
    }

    /// The profile as text that [`Profile::parse`] reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile has no map keys that are not strings")
    }

    fn check(&self) -> Result<(), (String, String)> {
        let err = |key: &str, message: String| Err((key.to_string(), message));
        for (key, n) in [("block", self.block), ("sector", self.sector)] {
            if !n.is_power_of_two() || !(512..=65536).contains(&n) {
                return err(key, format!("is {n}, but must be a power of two from 512 to 65536"));
            }
        }
        if self.sector > self.block {
            return err("sector", "must not be larger than the block".into());
        }
        if self.sections().count() + usize::from(self.flash.is_some()) != 1 {
            return err("name", "a profile has exactly one of the sections [disk], [fixed], [mix], [flash]".into());
        }
        match self.sections().next() {
            Some(section) => section.check().map_err(|(key, why)| (key.to_string(), why)),
            None => self.flash.as_ref().map_or(Ok(()), flash::check),
        }
    }

    /// The models that are described by their times alone: of a checked profile, one or none.
    fn sections(&self) -> impl Iterator<Item = &dyn Section> {
        let disk = self.disk.as_ref().map(|s| s as &dyn Section);
        let fixed = self.fixed.as_ref().map(|s| s as &dyn Section);
        let mix = self.mix.as_ref().map(|s| s as &dyn Section);
        [disk, fixed, mix].into_iter().flatten()
    }

    /// Bytes of the device.
    pub fn capacity(&self) -> u64 {
        let own = self.sections().find_map(|s| s.capacity()).or(self.flash.as_ref().map(flash::capacity));
        own.or(self.capacity).unwrap_or(DEFAULT_CAPACITY)
    }

    /// Bytes that a probe of the model uses: a disk whole, since its seeks depend on the distance, of others a part.
    pub fn probe_range(&self) -> u64 {
        let part = if self.flash.is_some() { 1 << 30 } else { 64 << 30 };
        if self.disk.is_some() { self.capacity() } else { self.capacity().min(part) }
    }

    /// The section that describes it: `disk`, `fixed`, `mix` or `flash`.
    pub fn kind(&self) -> &'static str {
        self.sections().next().map_or("flash", |section| section.name())
    }

    /// Whether reads of places never written take another time than of others.
    pub fn needs_laying(&self) -> bool {
        self.flash.is_some()
    }

    /// The same device with `share` of its bytes, for scaled experiments: a flash drive with fewer blocks in each
    /// plane, so that parallelism and over-provisioning stay. Others only become smaller.
    pub fn scaled(&self, share: f64) -> Profile {
        let mut scaled = self.clone();
        scaled.capacity = self.capacity.map(|n| ((n as f64 * share) as u64).max(1 << 20) / 65536 * 65536);
        if let Some(flash) = &mut scaled.flash {
            let (before, blocks) = (flash.geometry.blocks_per_plane, &mut flash.geometry.blocks_per_plane);
            *blocks = ((f64::from(before) * share).ceil() as u32).clamp(before.min(64), before);
            let kept = f64::from(*blocks) / f64::from(before);
            flash.ftl.logical_pages = flash.ftl.logical_pages.map(|n| (n as f64 * kept) as u64);
            if let Some(cache) = &mut flash.slc_cache {
                // At least a block more than there are planes, the least that a cache works with.
                let least = (flash.geometry.all_planes() + 1).min(cache.blocks);
                cache.blocks = ((f64::from(cache.blocks) * kept) as u32).max(least);
            }
        }
        scaled
    }

    /// The device as a model of `len` bytes.
    pub fn build(&self, seed: u64, len: u64) -> Result<Arc<dyn Device>, ProfileError> {
        let device: Arc<dyn Modelled> = self.build_model(Build { seed, len, ..Build::default() })?;
        Ok(device)
    }

    /// Of a flash drive: made once as `how` says, to be copied for many devices (see [`Build::drive`]); `None` of
    /// others.
    pub fn drive(&self, how: &Build) -> Result<Option<Arc<Drive>>, ProfileError> {
        let Some(config) = &self.flash else { return Ok(None) };
        let capacity = self.capacity();
        if how.len > capacity {
            return Err(ProfileError::TooLong { name: self.name.clone(), len: how.len, capacity });
        }
        let name = how.name.clone().unwrap_or_else(|| self.name.clone());
        flash::drive(config, name, how).map(|drive| Some(Arc::new(drive)))
    }

    /// The device as a model, with the model's own abilities. Build it in the world (simulation or threads) that uses
    /// it.
    pub fn build_model(&self, how: Build) -> Result<Arc<dyn Modelled>, ProfileError> {
        let capacity = self.capacity();
        if how.len > capacity {
            return Err(ProfileError::TooLong { name: self.name.clone(), len: how.len, capacity });
        }
        if let Some(config) = &self.flash {
            let name = how.name.clone().unwrap_or_else(|| self.name.clone());
            return flash::build(config, name, &how);
        }
        assert_eq!(self.sections().count(), 1, "a checked profile has one section");
        let section = self.sections().next().expect("counted just now");
        let options = ModelOptions {
            name: how.name.unwrap_or_else(|| self.name.clone()),
            block: self.block,
            sector: self.sector,
            capacity,
            queue_depth: section.queue_depth(),
            keep: how.keep,
        };
        Ok(Model::new(section.timing(how.seed), how.len, how.contents, options))
    }
}
