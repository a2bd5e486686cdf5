//! Errors of volumes.

use crate::PageId;
use varve_device::DeviceError;

/// What is wrong with the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageDamage {
    /// All zeros: the page was never written, or was discarded.
    #[error("it was never written")]
    Unwritten,
    /// The bytes do not match their checksum.
    #[error("its checksum is {found:#010x} but its bytes give {computed:#010x}")]
    Checksum {
        /// The checksum stored in the page.
        found: u32,
        /// The checksum of the page's bytes.
        computed: u32,
    },
    /// A sound page, but another one: a write went astray.
    #[error("it holds page {found}")]
    WrongId {
        /// The id that the page carries.
        found: PageId,
    },
    /// A sound checksum over something that is no page.
    #[error("its magic is {found:#06x}, not that of a page")]
    WrongMagic {
        /// The magic found.
        found: u16,
    },
    /// A sound page, but an older version than the one that was stored: a write was lost.
    #[error("it is at LSN {found}, but LSN {expected} was stored")]
    Older {
        /// LSN found.
        found: crate::Lsn,
        /// Least LSN that must be there.
        expected: crate::Lsn,
    },
    /// Written by a newer release.
    #[error("it has format version {found}, newer than this release understands: use a newer release")]
    NewerVersion {
        /// The version found.
        found: u8,
    },
}

/// Why a page request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The device under the page failed.
    #[error("page {page}: {source}")]
    Page {
        /// The page asked for.
        page: PageId,
        /// The device's error.
        #[source]
        source: DeviceError,
    },
    /// The device failed in something that concerns no single page.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The page was read but is not what was written.
    #[error("page {page} is damaged: {damage}; run `varve check`, then restore it from a backup")]
    Damaged {
        /// The page asked for.
        page: PageId,
        /// What is wrong.
        damage: PageDamage,
    },
    /// No such page: the store is smaller.
    #[error("page {page} is past the end of the store ({pages} pages): grow the store first")]
    OutOfRange {
        /// The page asked for.
        page: PageId,
        /// Pages that the store has.
        pages: u64,
    },
    /// The page size is not supported.
    #[error("page size {size} is not supported: use 4096, 8192, 16384 or 32768 bytes")]
    PageSize {
        /// The size asked for, bytes.
        size: usize,
    },
    /// The fast device of a tier is not what it should be.
    #[error("tier on {device}: {what}")]
    Tier {
        /// The fast device.
        device: std::sync::Arc<str>,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// A volume cannot be configured like that.
    #[error("{0}")]
    Options(String),
}
