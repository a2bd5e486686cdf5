//! `[workload.iomix]` of an experiment. Plain data, the shape of the file.

use super::spec::{Layout, ReadOnly};
use super::units::Bytes;
use serde::{Deserialize, Serialize};
use varve_models::Profile;

/// `[workload.iomix]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Iomix {
    /// Bytes of a request.
    pub request: Bytes,
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Share of requests at random places, 0 to 1; the others go on one after the other.
    pub random_share: f64,
    /// Requests in flight.
    pub depth: u32,
    /// The part of the device that is used, from its beginning.
    pub range: Bytes,
    /// Requests go through a volume: pages of `layout.page_size`, sealed and verified; with `devices.fast` a tier.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub volume: bool,
    /// Of an array: each drive has its own part of the requests in flight, at the extents that lie on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_drive: bool,
    /// The part of load and range that is only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly: Option<ReadOnly>,
}

impl Default for Iomix {
    fn default() -> Iomix {
        Iomix {
            request: Bytes(4096),
            read_share: 1.0,
            random_share: 1.0,
            depth: 1,
            range: Bytes(1 << 30),
            volume: false,
            per_drive: false,
            readonly: None,
        }
    }
}

impl Iomix {
    /// What is wrong: the key, and what is accepted.
    pub(super) fn validate(&self, profile: &Profile, capacity: u64, layout: &Layout) -> Result<(), (String, String)> {
        let refuse = |key: &str, what: String| Err((format!("workload.iomix.{key}"), what));
        let flash_page = profile.flash.as_ref().map_or(0, |f| f.geometry.page_bytes.into());
        let unit = match self.volume {
            true => layout.page_size.0.max(1),
            false => u64::from(profile.block).max(flash_page).min(4096),
        };
        for (key, share) in [("read_share", self.read_share), ("random_share", self.random_share)] {
            if !(0.0..=1.0).contains(&share) {
                return refuse(key, "0 to 1 are possible".into());
            }
        }
        match () {
            () if self.request.0 == 0 || !self.request.0.is_multiple_of(unit) => {
                refuse("request", format!("multiples of {unit} bytes are possible"))
            }
            () if layout.fast.is_some() && !self.volume => {
                refuse("volume", "true is needed to use devices.fast: a tier is a volume".into())
            }
            () if self.depth == 0 || self.depth > 1024 => refuse("depth", "1 to 1024 are possible".into()),
            () if self.range.0 < 4 * self.request.0 || self.range.0 > capacity => {
                refuse("range", format!("four requests to {capacity} bytes, the device's, are possible"))
            }
            () => Ok(()),
        }
    }
}
