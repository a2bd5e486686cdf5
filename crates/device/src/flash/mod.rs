//! Raw flash, as those who drive it and those who model it speak of it: shape, cell modes, addresses, errors, and the
//! seams between them: an array that is driven ([`FlashArray`]), and flash whose operations are waited for
//! ([`RawFlash`]).
//!
//! Times are nanoseconds, or whatever else an array counts in: they only order its operations.

mod array;
mod error;
mod geometry;
mod raw;

pub use array::FlashArray;
pub use error::FlashError;
pub use geometry::{CellMode, Geometry, LEAST_SPARE};
pub use raw::{BlockInfo, RawCompletion, RawFlash, RawIo, RawOp, RawTicket};

/// A page: block of the device, and page in the block (unused ones are counted too).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page {
    /// Block of the device.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
}

/// Start and end of an operation, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When the array (or bus) begins to work on it.
    pub start: u64,
    /// When it is done.
    pub end: u64,
}

/// What an array keeps of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Data and spare areas.
    Full,
    /// Spare areas; data read as zeros. Power cuts work, and memory is small.
    Spare,
    /// Nothing, and no times either: rules and counts only, for studies of write amplification.
    Nothing,
}
