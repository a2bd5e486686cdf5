//! Errors of flash: what the array refuses, what wears out, and configurations that cannot work.

use super::CellMode;
use crate::{DeviceError, OpKind};
use std::sync::Arc;

/// Why flash, or what drives it, refused or failed an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlashError {
    /// A value of the configuration cannot be used.
    Config {
        /// The key, as in the profile file.
        field: String,
        /// Its value.
        value: String,
        /// What is accepted, and why.
        accepted: String,
    },
    /// There is no such block or page.
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
    OutOfOrder {
        /// The block.
        block: u32,
        /// The page asked for.
        page: u32,
        /// The page that comes next; the number of pages when the block is full.
        expected: u32,
    },
    /// The cell mode leaves this page unused.
    PageNotUsed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The chip's mode.
        mode: CellMode,
    },
    /// Only an erased block can be used in another mode.
    NotErased {
        /// The block.
        block: u32,
    },
    /// A program tried to turn a 0 into a 1.
    SetsBits {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The first offending byte; spare bytes count on from the page's end.
        byte: u32,
    },
    /// The page was programmed `nop` times since its block was erased.
    TooManyPrograms {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// Programs allowed between erases.
        nop: u8,
    },
    /// The cell mode does not allow appends to this page.
    AppendNotAllowed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
        /// The chip's mode.
        mode: CellMode,
    },
    /// An append to a page that was never programmed.
    NotProgrammed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// More bytes than the page or its spare area has.
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
    BadBlock {
        /// The block.
        block: u32,
    },
    /// The block reached its endurance with this erase and is bad from now on.
    WornOut {
        /// The block.
        block: u32,
        /// Its erases.
        erases: u32,
    },
    /// The page could not be read: its program (or its block's erase) was interrupted, or the fault plan says so.
    Uncorrectable {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// A program failed, as the fault plan says. The page is lost, the block should be retired.
    ProgramFailed {
        /// The block.
        block: u32,
        /// The page.
        page: u32,
    },
    /// An erase failed, as the fault plan says. The block is bad from now on.
    EraseFailed {
        /// The block.
        block: u32,
    },
    /// The logical page does not exist.
    OutOfRange {
        /// The page asked for.
        page: u64,
        /// Logical pages.
        pages: u64,
    },
    /// A file that an array is kept in is none, or failed.
    Image {
        /// The file.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A file that an array is kept in was cut or overwritten.
    ImageDamaged {
        /// The file.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The power is off.
    PowerLost,
    /// So many blocks are bad that the drive takes no more writes.
    EndOfLife {
        /// Bad blocks.
        bad: u32,
    },
}

impl std::fmt::Display for FlashError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FlashError::Config { field, value, accepted } => {
                write!(f, "flash.{field} = {value} cannot be used: {accepted}")
            }
            FlashError::NoSuchPage { block, page, blocks, pages } => write!(
                f,
                "block {block}, page {page} does not exist: the geometry has {blocks} blocks of {pages} pages"
            ),
            FlashError::OutOfOrder { block, page, expected } => {
                write!(f, "page {page} of block {block} cannot be programmed now: the next one in order is {expected}")
            }
            FlashError::PageNotUsed { block, page, mode } => write!(
                f,
                "page {page} of block {block} is not used in {mode} mode: use only the pages that the mode lists"
            ),
            FlashError::NotErased { block } => write!(
                f,
                "block {block} is not erased: erase it before it is used with another number of bits per cell"
            ),
            FlashError::SetsBits { block, page, byte } => write!(
                f,
                "byte {byte} of page {page} of block {block} would have to turn a 0 into a 1: erase the block first"
            ),
            FlashError::TooManyPrograms { block, page, nop } => write!(
                f,
                "page {page} of block {block} has had its {nop} programs: erase the block, or write the page elsewhere"
            ),
            FlashError::AppendNotAllowed { block, page, mode } => {
                write!(f, "{mode} mode allows no append to page {page} of block {block}: write the page elsewhere")
            }
            FlashError::NotProgrammed { block, page } => {
                write!(f, "page {page} of block {block} is erased: program it before appending to it")
            }
            FlashError::DoesNotFit { offset, bytes, area, what } => write!(
                f,
                "{bytes} bytes at {offset} do not fit the {area} bytes of the page's {what}: check the geometry"
            ),
            FlashError::BadBlock { block } => write!(f, "block {block} is bad: use another"),
            FlashError::WornOut { block, erases } => {
                write!(f, "block {block} is worn out after {erases} erases and is bad from now on: use another")
            }
            FlashError::Uncorrectable { block, page } => {
                write!(f, "page {page} of block {block} cannot be read: an operation on it was interrupted or failed")
            }
            FlashError::ProgramFailed { block, page } => write!(
                f,
                "programming page {page} of block {block} failed: write the page elsewhere and retire the block"
            ),
            FlashError::EraseFailed { block } => {
                write!(f, "erasing block {block} failed; it is bad from now on: use another")
            }
            FlashError::OutOfRange { page, pages } => {
                write!(f, "logical page {page} does not exist: the drive has {pages}")
            }
            FlashError::Image { path, why } => write!(f, "the image {path} cannot be used: {why}"),
            FlashError::ImageDamaged { path, why } => write!(f, "the image {path} is damaged: {why}"),
            FlashError::PowerLost => write!(f, "the flash has lost power: restore it, then find the map again"),
            FlashError::EndOfLife { bad } => write!(
                f,
                "the drive is worn out: {bad} bad blocks leave too little space for its logical pages; it can be read \
                 only"
            ),
        }
    }
}

impl std::error::Error for FlashError {}

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
