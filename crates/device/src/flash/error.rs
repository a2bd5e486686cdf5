//! Errors of flash: what the array refuses, what wears out, and configurations that cannot work.

use super::CellMode;
use crate::{DeviceError, OpKind};
use std::sync::Arc;

/// Why flash, or what drives it, refused or failed an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlashError {
    /// A value of the configuration cannot be used.
    #[error("flash.{field} = {value} cannot be used: {accepted}")]
    Config {
        /// The key, as in the profile file.
        field: String,
        /// Its value.
        value: String,
        /// What is accepted, and why.
        accepted: String,
    },
    /// There is no such block or page.
    #[error("block {block}, page {page} does not exist: the geometry has {blocks} blocks of {pages} pages")]
    NoSuchPage {
        /// The block asked for.
        block: u32,
        /// The page asked for.
        page: u32,
        /// Blocks there are.
        blocks: u32,
        /// Pages of a block.
        pages: u32,
    },
    /// First programs inside a block go in page order.
    #[error("page {page} of block {block} cannot be programmed now: the next one in order is {expected}")]
    OutOfOrder {
        /// The block.
        block: u32,
        /// The page asked for.
        page: u32,
        /// The page that comes next; the number of pages when the block is full.
        expected: u32,
    },
    /// The cell mode leaves this page unused.
    #[error("page {page} of block {block} is not used in {mode} mode: use only the pages that the mode lists")]
    PageNotUsed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The chip's mode.
        mode: CellMode,
    },
    /// Only an erased block can be used in another mode.
    #[error("block {block} is not erased: erase it before it is used with another number of bits per cell")]
    NotErased {
        /// The block.
        block: u32,
    },
    /// A program tried to turn a 0 into a 1.
    #[error("byte {byte} of page {page} of block {block} would have to turn a 0 into a 1: erase the block first")]
    SetsBits {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The first offending byte; spare bytes count on from the page's end.
        byte: u32,
    },
    /// The page was programmed `nop` times since its block was erased.
    #[error("page {page} of block {block} has had its {nop} programs: erase the block, or write the page elsewhere")]
    TooManyPrograms {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// Programs allowed between erases.
        nop: u8,
    },
    /// The cell mode does not allow appends to this page.
    #[error("{mode} mode allows no append to page {page} of block {block}: write the page elsewhere")]
    AppendNotAllowed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The chip's mode.
        mode: CellMode,
    },
    /// An append to a page that was never programmed.
    #[error("page {page} of block {block} is erased: program it before appending to it")]
    NotProgrammed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// More bytes than the page or its spare area has.
    #[error("{bytes} bytes at {offset} do not fit the {area} bytes of the page's {what}: check the geometry")]
    DoesNotFit {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
        /// Bytes there are.
        area: u32,
        /// "data" or "spare area".
        what: &'static str,
    },
    /// The block is marked bad.
    #[error("block {block} is bad: use another")]
    BadBlock {
        /// The block.
        block: u32,
    },
    /// The block reached its endurance with this erase and is bad from now on.
    #[error("block {block} is worn out after {erases} erases and is bad from now on: use another")]
    WornOut {
        /// The block.
        block: u32,
        /// Its erases.
        erases: u32,
    },
    /// The page could not be read: its program (or its block's erase) was interrupted, or the fault plan says so.
    #[error("page {page} of block {block} cannot be read: an operation on it was interrupted or failed")]
    Uncorrectable {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// A program failed, as the fault plan says. The page is lost, the block should be retired.
    #[error("programming page {page} of block {block} failed: write the page elsewhere and retire the block")]
    ProgramFailed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// An erase failed, as the fault plan says. The block is bad from now on.
    #[error("erasing block {block} failed; it is bad from now on: use another")]
    EraseFailed {
        /// The block.
        block: u32,
    },
    /// The logical page does not exist.
    #[error("logical page {page} does not exist: the drive has {pages}")]
    OutOfRange {
        /// The page asked for.
        page: u64,
        /// Logical pages.
        pages: u64,
    },
    /// A file that an array is kept in is none, or failed.
    #[error("the image {path} cannot be used: {why}")]
    Image {
        /// The file.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The power is off.
    #[error("the flash has lost power: restore it, then find the map again")]
    PowerLost,
    /// So many blocks are bad that the drive takes no more writes.
    #[error(
        "the drive is worn out: {bad} bad blocks leave too little space for its logical pages; it can be read only"
    )]
    EndOfLife {
        /// Bad blocks.
        bad: u32,
    },
}

impl FlashError {
    /// The same as the error of a request to a device.
    pub fn of_request(&self, op: OpKind, device: &Arc<str>, (offset, len): (u64, u64)) -> DeviceError {
        let (errno, retryable) = match self {
            FlashError::PowerLost => return DeviceError::PowerLost,
            FlashError::Uncorrectable { .. } => (libc::EIO, true),
            FlashError::EndOfLife { .. } => (libc::EROFS, false),
            _ => (libc::EIO, false),
        };
        DeviceError::Io { op, device: device.clone(), offset, len, errno, retryable }
    }

    /// The error for a configuration value that cannot be used.
    pub fn config(field: &str, value: impl std::fmt::Display, accepted: impl Into<String>) -> FlashError {
        FlashError::Config { field: field.into(), value: value.to_string(), accepted: accepted.into() }
    }
}
