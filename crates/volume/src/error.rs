//! Errors of volumes.

use crate::PageId;
use varve_device::DeviceError;

/// What is wrong with the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PageDamage {
    /// All zeros: the page was never written, or was discarded.
    Unwritten,
    /// The bytes do not match their checksum.
    Checksum {
        /// The checksum stored in the page.
        found: u32,
        /// The checksum of the page's bytes.
        computed: u32,
    },
    /// A sound page, but another one: a write went astray.
    WrongId {
        /// The id that the page carries.
        found: PageId,
    },
    /// A sound checksum over something that is no page.
    WrongMagic {
        /// The magic found.
        found: u16,
    },
    /// A sound page, but an older version than the one that was stored: a write was lost.
    Older {
        /// LSN found.
        found: crate::Lsn,
        /// Least LSN that must be there.
        expected: crate::Lsn,
    },
    /// A sound page, but not the version that was written last, of which the low bytes of the LSN are known.
    NotLast {
        /// LSN found.
        found: crate::Lsn,
    },
    /// Written by a newer release.
    NewerVersion {
        /// The version found.
        found: u8,
    },
}

impl std::fmt::Display for PageDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageDamage::Unwritten => write!(f, "it was never written"),
            PageDamage::Checksum { found, computed } => {
                write!(f, "its checksum is {found:#010x} but its bytes give {computed:#010x}")
            }
            PageDamage::WrongId { found } => write!(f, "it holds page {found}"),
            PageDamage::WrongMagic { found } => write!(f, "its magic is {found:#06x}, not that of a page"),
            PageDamage::Older { found, expected } => write!(f, "it is at LSN {found}, but LSN {expected} was stored"),
            PageDamage::NotLast { found } => write!(
                f,
                "it is at LSN {found}, which is not the version that was written last: a write was lost, or went \
                 astray"
            ),
            PageDamage::NewerVersion { found } => {
                write!(f, "it has format version {found}, newer than this release understands: use a newer release")
            }
        }
    }
}

impl std::error::Error for PageDamage {}

fn oldest(seconds: u64) -> String {
    if seconds == 0 { String::new() } else { format!(", the oldest since {}", utc(seconds)) }
}

/// Date and time of day, UTC, of seconds since 1970 (proleptic Gregorian calendar).
fn utc(seconds: u64) -> String {
    let (days, time) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days since 1 March of the year 0, in eras of 400 years.
    let z = days + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", time / 3600, time / 60 % 60, time % 60)
}

fn loss_advice(pages: u64) -> &'static str {
    match pages {
        0 => "every page is at home; open the database without the tier",
        _ => "bring the device back, or restore the database from a backup",
    }
}

/// Why a page request failed.
// (The tag takes a word, as that of `varve::Error`.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum VolumeError {
    /// The device under the page failed.
    Page {
        /// The page asked for.
        page: PageId,
        /// The device's error.
        source: DeviceError,
    },
    /// The device failed in something that concerns no single page.
    Device(DeviceError),
    /// The page was read but is not what was written.
    Damaged {
        /// The page asked for.
        page: PageId,
        /// What is wrong.
        damage: PageDamage,
    },
    /// No such page: the store is smaller.
    OutOfRange {
        /// The page asked for.
        page: PageId,
        /// Pages that the store has.
        pages: u64,
    },
    /// The page size is not supported.
    PageSize {
        /// The size asked for, bytes.
        size: usize,
    },
    /// The fast device of a tier is not what it should be.
    Tier {
        /// The fast device.
        device: std::sync::Arc<str>,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// What the fast device of a tier says of itself is damaged: its pages cannot be found.
    TierWrecked {
        /// The fast device.
        device: std::sync::Arc<str>,
        /// What is wrong with it, and what was there.
        what: String,
    },
    /// The fast device of a tier is lost, and with it the newest versions of pages.
    TierLost {
        /// The fast device.
        device: std::sync::Arc<str>,
        /// Pages whose newest version was there only.
        pages: u64,
        /// Since when the oldest of them was, seconds since 1970; 0: not known, or there are none.
        since: u64,
    },
    /// A volume cannot be configured like that.
    Options(String),
    /// The database cannot be opened like that.
    Invalid(String),
    /// A part of the volume is not there.
    Missing(String),
    /// A drive of an array is not there.
    DriveMissing(String),
    /// Parts of the volume are of different times or databases.
    Mismatch(String),
    /// The database could not note what the volume needs.
    Note(String),
}

impl std::fmt::Display for VolumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VolumeError::Page { page, source } => write!(f, "page {page}: {source}"),
            VolumeError::Device(source) => source.fmt(f),
            VolumeError::Damaged { page, damage } => {
                write!(f, "page {page} is damaged: {damage}; run `varve check`, then restore it from a backup")
            }
            VolumeError::OutOfRange { page, pages } => {
                write!(f, "page {page} is past the end of the store, which has {pages} pages")
            }
            VolumeError::PageSize { size } => {
                write!(f, "page size {size} is not supported: use 4096, 8192, 16384 or 32768 bytes")
            }
            VolumeError::Tier { device, what } | VolumeError::TierWrecked { device, what } => {
                write!(f, "tier on {device}: {what}")
            }
            VolumeError::TierLost { device, pages, since } => write!(
                f,
                "the tier's fast device {device} is lost with {pages} pages newer than their homes{}: {}",
                oldest(*since),
                loss_advice(*pages)
            ),
            VolumeError::Options(what) => write!(f, "{what}"),
            VolumeError::Invalid(what) => write!(f, "{what}"),
            VolumeError::Missing(what) => write!(f, "a part of the volume is missing: {what}"),
            VolumeError::DriveMissing(what) => write!(f, "a drive of the database's array is missing: {what}"),
            VolumeError::Mismatch(what) => write!(f, "the parts of the volume do not belong together: {what}"),
            VolumeError::Note(what) => write!(f, "the superblock could not be written: {what}"),
        }
    }
}

impl std::error::Error for VolumeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            VolumeError::Page { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<DeviceError> for VolumeError {
    fn from(source: DeviceError) -> VolumeError {
        VolumeError::Device(source)
    }
}
