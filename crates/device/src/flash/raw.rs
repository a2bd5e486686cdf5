//! Raw flash that can be waited for: operations on physical pages, in batches with tickets.
//!
//! There is no memory to be kept alive: what is programmed is taken over when it is submitted, and what was read is
//! copied by whoever waits for it.

use super::{CellMode, FlashError, Geometry, Page, Span};
use std::sync::Arc;

/// What is to be done. Lengths and offsets are bytes.
#[derive(Clone, Copy, Debug)]
pub enum RawOp<'a> {
    /// Reads the first bytes of a page's data and spare area; only what is asked for crosses the bus.
    Read {
        /// The page.
        page: Page,
        /// Bytes of data.
        data: usize,
        /// Bytes of the spare area.
        spare: usize,
    },
    /// Programs the next page of a block; what is not given stays erased.
    Program {
        /// The page.
        page: Page,
        /// First bytes of its data.
        data: &'a [u8],
        /// First bytes of its spare area.
        spare: &'a [u8],
    },
    /// Programs more bits of a page that was programmed before.
    Append {
        /// The page.
        page: Page,
        /// Offset, and bytes of the data.
        data: (usize, &'a [u8]),
        /// Offset, and bytes of the spare area.
        spare: (usize, &'a [u8]),
    },
    /// Copies a page's data to the next page of a block.
    Copy {
        /// The page that is read.
        from: Page,
        /// The page that is programmed.
        to: Page,
        /// First bytes of its spare area.
        spare: &'a [u8],
    },
    /// Erases a block.
    Erase {
        /// The block.
        block: u32,
    },
}

/// An operation, and what it waits for.
#[derive(Clone, Copy, Debug)]
pub struct RawIo<'a> {
    /// What is to be done.
    pub op: RawOp<'a>,
    /// A mark: the operation begins when everything is done that ends at it or before ([`Span::end`]); 0: at once.
    pub after: u64,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockInfo {
    /// It is bad.
    pub bad: bool,
    /// An interrupted erase left it unreadable: it must be erased again.
    pub torn: bool,
    /// Erases so far.
    pub erases: u32,
    /// Page reads since the last erase.
    pub reads: u32,
    /// The page that must be programmed next; pages per block when it is full.
    pub next: u32,
}

/// How one batch completes; written by each kind of raw flash, called by [`RawTicket`] only.
pub trait RawCompletion: Send {
    /// Waits for operation `i`; of a read, copies its first bytes.
    fn wait(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError>;
    /// As `wait` of a read, but at once where the bytes are known before the read is done.
    fn early(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        self.wait(i, data, spare)
    }
    /// Whether `wait(i)` would return at once. Never blocks.
    fn try_done(&self, i: usize) -> bool;
}

/// A submitted batch. It may be dropped at any time: what was begun goes on.
pub struct RawTicket {
    given: Vec<Result<Span, FlashError>>,
    source: Box<dyn RawCompletion>,
}

impl RawTicket {
    /// What was answered to each operation when it was submitted, and what completes those that were accepted.
    pub fn new(given: Vec<Result<Span, FlashError>>, source: Box<dyn RawCompletion>) -> RawTicket {
        let ordered = given.iter().flatten().all(|span| span.start <= span.end);
        debug_assert!(ordered, "an operation ends after it began");
        RawTicket { given, source }
    }

    /// What became of operation `i` when it was given: its marks, or why it was refused. A program or an erase that
    /// fails does so here.
    pub fn given(&self, i: usize) -> Result<Span, FlashError> {
        self.given[i].clone()
    }

    /// Waits for operation `i`.
    pub fn wait(&mut self, i: usize) -> Result<(), FlashError> {
        self.read(i, &mut [], &mut [])
    }

    /// Waits for operation `i`, a read, and copies the first bytes of what it read.
    pub fn read(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        assert!(i < self.given.len(), "an operation of the batch");
        self.given[i].clone()?;
        self.source.wait(i, data, spare)
    }

    /// As [`RawTicket::read`], but does not wait where the device knows the bytes before the read is done: for who
    /// gives the operations that follow from them with the read's mark ([`RawIo::after`]), and tells nobody.
    pub fn read_early(&mut self, i: usize, data: &mut [u8], spare: &mut [u8]) -> Result<(), FlashError> {
        assert!(i < self.given.len(), "an operation of the batch");
        self.given[i].clone()?;
        self.source.early(i, data, spare)
    }

    /// Whether waiting for operation `i` would return at once.
    pub fn try_done(&self, i: usize) -> bool {
        self.given[i].is_err() || self.source.try_done(i)
    }
}

/// Raw flash. Shared as `Arc<dyn RawFlash>`.
///
/// The operations of a chip are done in the order in which they are given, whatever their batches; those of different
/// chips at the same time, but for what [`RawIo::after`] says. Marks are numbers that grow; a larger one is done no
/// earlier than a smaller one.
pub trait RawFlash: Send + Sync {
    /// Name for messages.
    fn name(&self) -> Arc<str>;

    /// The shape.
    fn geometry(&self) -> Geometry;

    /// How the cells of a chip are used.
    fn mode(&self, chip: u32) -> CellMode;

    /// How often a page may be programmed between erases of its block: once, and the rest are appends.
    fn nop(&self) -> u8;

    /// What is known of a block.
    fn block(&self, block: u32) -> BlockInfo;

    /// Marks a block bad for good.
    fn mark_bad(&self, block: u32);

    /// These blocks too hold what everything rests on: they neither wear out nor fail.
    fn add_reliable(&self, blocks: Vec<u32>);

    /// Whether a page takes another append.
    fn may_append(&self, page: Page) -> Result<(), FlashError>;

    /// Begins every operation of the batch, in its order.
    fn submit(&self, batch: &[RawIo<'_>]) -> RawTicket;

    /// A ticket of one operation that does nothing and is done when everything is that ends at the mark or before, and
    /// survives a power cut. (Chips need no fence for that; an array that is kept in a file does.)
    fn fence(&self, mark: u64) -> RawTicket;

    /// Erases after which a block is bad; `None`: blocks endure any number.
    fn endurance(&self) -> Option<u32> {
        None
    }

    /// Share of the erases that the blocks endure that were done; `None`: they endure any number.
    fn life_used(&self) -> Option<f64> {
        None
    }
}
