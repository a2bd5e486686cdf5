//! Segments: immutable sorted runs of pages.
//!
//! A segment is a stream of bytes over the usable bytes of its pages, from the first page to the last: data blocks,
//! index blocks, the top of the index, the filter (its parts a page each), range deletions, the footer; and at the very
//! end of the last page a *trailer* that says where the footer is. Every part has a header with a checksum, and whoever
//! refers to it has the checksum too. A data block takes whole pages as long as little is lost by it; else it goes on
//! where the one before ended.
//!
//! An index block has for each data block a *separator*: a key not below its last and below the first of the next. The
//! top of the index has the same for the index blocks; it stays in memory, as do the range deletions.

mod cursor;
mod footer;
mod reader;
mod writer;

pub(crate) use cursor::SegmentCursor;
pub(crate) use footer::is_trailer;
#[cfg(feature = "testing")]
pub(crate) use footer::{Footer, checksum as trailer_checksum};
pub(crate) use reader::{SegmentReader, deletes};
pub(crate) use writer::{SegmentOptions, SegmentWriter};

#[cfg(test)]
mod tests;
