//! Groups: sets of page changes that recovery redoes whole or not at all.
//!
//! A group holds the exclusive latches of the pages it changes from [`Group::add`] until its log record has a place in
//! the log. All page bytes change through [`PageMut`] and nowhere else: each edit is made in the frame and remembered
//! as redo.
//!
//! Torn pages: a page whose last change lies at or before the image floor (the redo point of the newest checkpoint
//! begun) is logged whole. The floor is read when the group begins and checked again inside the log's reservation; when
//! a checkpoint began in between, the group is encoded anew (`docs/wal.md` has the argument and the exhaustive model
//! test).
//!
//! Invariants: everything that can fail is done before the first change. A group with changes that is dropped without
//! [`Group::commit`] has made memory differ from the log: by a panic, which poisons the database before the first page
//! is unlatched, or else that is an assertion failure. A page is in a group once. Pages are dirty, from an LSN that is
//! not past the group's place, before the group has that place; their LSNs only rise. Every change is remembered as
//! redo, or the page is logged whole.

use super::edit::PageEdit;
use super::kernel::{Counters, Kernel};
use crate::buffer::{PageBytes, PageWrite};
use crate::error::{Error, Result};
use crate::redo;
use crate::wal::{AppendError, Floor, GroupKind};
use smallvec::SmallVec;
use varve_device::{Mistake, Place};
use varve_rt::{Cost, Local, charge};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// A page's place in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageNo(usize);

struct GroupPage<'c> {
    page: PageWrite<'c>,
    /// The page's LSN before this group.
    prev: Lsn,
    /// Redo operations so far; unused once the page is to be logged whole.
    ops: Vec<u8>,
    whole: bool,
    changed: bool,
}

/// Buffers kept per thread so that groups allocate nothing, and how many bytes they have.
#[derive(Default)]
struct Scratch {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

static SCRATCH: Local<std::cell::RefCell<Scratch>> = Local::new(Default::default);

/// Most bytes kept per thread.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Bytes of a buffer that is made: the redo of a small write or two, which would else grow its buffer several times.
const SCRATCH_NEW: usize = 256;

fn scratch() -> Vec<u8> {
    let kept = SCRATCH.with(|s| {
        let mut s = s.borrow_mut();
        let buffer = s.buffers.pop()?;
        assert!(buffer.is_empty() && s.bytes >= buffer.capacity(), "buffers that are kept are empty and counted");
        s.bytes -= buffer.capacity();
        Some(buffer)
    });
    kept.unwrap_or_else(|| Vec::with_capacity(SCRATCH_NEW))
}

fn give_back(mut buf: Vec<u8>) {
    if buf.capacity() == 0 {
        return;
    }
    buf.clear();
    SCRATCH.with(|s| {
        let mut s = s.borrow_mut();
        if s.bytes + buf.capacity() <= SCRATCH_BYTES {
            s.bytes += buf.capacity();
            s.buffers.push(buf);
        }
    });
}

/// A set of page changes under way.
pub(crate) struct Group<'c> {
    core: &'c Kernel,
    kind: GroupKind,
    floor: Floor,
    pages: SmallVec<[GroupPage<'c>; 2]>,
    /// Records that are not page changes, encoded.
    records: Vec<u8>,
}

impl<'c> Group<'c> {
    /// Begins a group whose log record will need at most about `max_bytes`. Waits for log space, so no latch may be
    /// held. Fails when the database is poisoned.
    pub fn begin(core: &'c Kernel, kind: GroupKind, max_bytes: usize) -> Result<Group<'c>> {
        core.log.ensure_space(max_bytes)?;
        Ok(Group { core, kind, floor: current_floor(core), pages: SmallVec::new(), records: Vec::new() })
    }

    /// Takes a latched page into the group.
    pub fn add(&mut self, page: PageWrite<'c>) -> PageNo {
        let prev = page.lsn();
        let whole = self.core.is_due_whole(prev, self.floor.lsn);
        self.push(page, prev, whole)
    }

    /// Takes a page fresh from `Pool::create` into the group; it is logged whole.
    pub fn add_new(&mut self, page: PageWrite<'c>) -> PageNo {
        self.push(page, 0, true)
    }

    fn push(&mut self, page: PageWrite<'c>, prev: Lsn, whole: bool) -> PageNo {
        debug_assert!(self.find(page.id()).is_none(), "page {} is in the group already", page.id().0);
        let ops = if whole { Vec::new() } else { scratch() };
        self.pages.push(GroupPage { page, prev, ops, whole, changed: false });
        PageNo(self.pages.len() - 1)
    }

    /// The place of a page that is in the group.
    pub fn find(&self, id: PageId) -> Option<PageNo> {
        self.pages.iter().position(|e| e.page.id() == id).map(PageNo)
    }

    /// A page's bytes, header included, as changed so far.
    pub fn bytes(&self, n: PageNo) -> &[u8] {
        self.pages[n.0].page.bytes()
    }

    /// The page's id.
    pub fn id(&self, n: PageNo) -> PageId {
        self.pages[n.0].page.id()
    }

    /// Access for changing a page.
    pub fn page(&mut self, n: PageNo) -> PageMut<'_> {
        let GroupPage { page, ops, whole, changed, .. } = &mut self.pages[n.0];
        PageMut { page: page.bytes_mut(), ops, whole, changed }
    }

    /// Adds what an index remembers without a page. From here on the group is logged, or memory and log differ.
    pub fn record(&mut self, keyspace: KeyspaceId, bytes: &[u8]) {
        redo::push_index_record(&mut self.records, keyspace, bytes);
    }

    /// Whether anything was changed.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && !self.pages.iter().any(|e| e.changed)
    }

    /// Logs the group, stamps and unlatches its pages. Returns the end LSN, which is *not yet durable*.
    pub fn commit(self) -> Result<Lsn> {
        self.commit_with(|_| {})
    }

    /// As [`Group::commit`]; `f` runs with the end LSN while every page is still latched.
    pub fn commit_with(mut self, f: impl FnOnce(Lsn)) -> Result<Lsn> {
        if self.is_empty() {
            let end = self.core.log.end_lsn();
            self.recycle();
            return Ok(end);
        }
        let hint = self.set_dirty();
        self.core.faults().pass(Place::Group);
        let mut body = scratch();
        let appended = loop {
            self.encode(&mut body);
            let faults = self.core.faults();
            let blind = faults.has(Mistake::ImageRuleCompleted) || faults.has(Mistake::EpochNotCompared);
            let epoch = (!blind).then_some(self.floor.epoch);
            match self.core.log.append(self.kind, epoch, &body) {
                Ok(appended) => {
                    assert!(appended.start >= hint, "pages are dirty from before the group's place in the log");
                    break Ok(appended.end);
                }
                Err(AppendError::EpochMoved) => {
                    self.floor = current_floor(self.core);
                    Counters::add(&self.core.counters.repeated, 1);
                }
                Err(AppendError::Poisoned(cause)) => break Err(Error::Poisoned(cause.to_string())),
                Err(AppendError::TooLarge { needed, limit }) => {
                    self.core.log.poison("a group of page changes does not fit the log");
                    break Err(Error::TransactionTooLarge { what: "log", needed, limit });
                }
            }
        };
        give_back(body);
        let images = self.pages.iter().filter(|e| e.changed && e.whole).count() as u64;
        if images > 0 {
            Counters::add(&self.core.counters.images, images);
        }
        match &appended {
            Ok(end) => self.stamp(*end),
            Err(_) => self.disown(),
        }
        if let Ok(stamp) = appended {
            let _guard = self.core.log.health().poison_on_panic("a commit was not made known");
            f(stamp);
            // From here on memory and log are the same.
            self.pages.iter_mut().for_each(|e| e.changed = false);
        }
        self.recycle();
        appended
    }

    /// Gives the LSN from which on the pages count as changed.
    fn set_dirty(&self) -> Lsn {
        let hint = self.core.log.end_lsn();
        for entry in self.pages.iter().filter(|e| e.changed) {
            charge(Cost::GroupPage, 1);
            if !self.core.faults().has(Mistake::DirtyAfterAppend) {
                entry.page.set_dirty(hint);
            }
        }
        hint
    }

    fn stamp(&mut self, lsn: Lsn) {
        let faults = self.core.faults();
        for entry in self.pages.iter_mut().filter(|e| e.changed) {
            if faults.has(Mistake::DirtyAfterAppend) {
                entry.page.set_dirty(lsn);
            }
            assert!(lsn >= entry.prev, "a page's LSN rises");
            if !faults.has(Mistake::PageNotStamped) {
                entry.page.stamp(lsn);
            }
        }
    }

    /// The group is not logged, so its pages are changed in memory only. The database is poisoned: they are never
    /// written, and a stamp that no log reaches makes every reader that depends on them fail with the same error.
    fn disown(&mut self) {
        self.set_dirty();
        self.stamp(Lsn::MAX);
    }

    fn encode(&mut self, body: &mut Vec<u8>) {
        body.clear();
        body.extend_from_slice(&self.records);
        for entry in self.pages.iter_mut().filter(|e| e.changed) {
            entry.whole |= self.core.is_due_whole(entry.prev, self.floor.lsn);
            let bytes = entry.page.bytes();
            if entry.whole {
                redo::push_image_record(body, entry.page.id(), bytes, redo::zero_hole(bytes));
            } else {
                assert!(!entry.ops.is_empty(), "a page that changed has redo, or is logged whole");
                redo::push_ops_record(body, entry.page.id(), page::keyspace(bytes), entry.prev, &entry.ops);
            }
        }
    }

    fn recycle(mut self) {
        self.records.clear();
        for entry in self.pages.drain(..) {
            give_back(entry.ops);
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if self.is_empty() || varve_rt::dying() {
            return;
        }
        let panicking = self.core.log.health().poison_if_panicking("a change of pages is half made");
        assert!(panicking, "a group with changes was dropped without being logged");
        self.disown();
    }
}

fn current_floor(core: &Kernel) -> Floor {
    if core.faults().has(Mistake::ImageRuleCompleted) {
        return Floor { epoch: 0, lsn: core.log.completed_redo() };
    }
    core.log.floor()
}

/// A latched page being changed. Offsets count from the start of the page; the header is out of reach but for
/// [`PageMut::image`], which may set page type and keyspace.
pub(crate) struct PageMut<'g> {
    page: PageBytes<'g>,
    ops: &'g mut Vec<u8>,
    whole: &'g mut bool,
    changed: &'g mut bool,
}

impl PageMut<'_> {
    /// Sets the page type of a page that is logged whole.
    pub fn set_kind(&mut self, kind: u8) {
        assert!(*self.whole, "no operation of the log sets a page's type");
        self.page.header(|header| page::set_kind(header, kind));
        *self.changed = true;
    }

    fn note(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        if *self.whole {
            return;
        }
        push(self.ops);
        // Past this much redo the image is the smaller record.
        if self.ops.len() > self.page.bytes().len() {
            *self.whole = true;
        }
    }
}

impl PageEdit for PageMut<'_> {
    /// The whole page as it is now.
    fn bytes(&self) -> &[u8] {
        self.page.bytes()
    }

    /// Overwrites bytes at `at`.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at >= HEADER, "the page header is not the engine's to write");
        assert!(at + bytes.len() <= self.page.bytes().len(), "an edit ends within its page");
        *self.changed = true;
        self.page.write(at, bytes);
        self.note(|ops| redo::push_write(ops, at, bytes));
    }

    /// Moves `len` bytes within the page; the ranges may overlap.
    fn shift(&mut self, from: usize, to: usize, len: usize) {
        assert!(from >= HEADER && to >= HEADER, "the page header is not the engine's to write");
        assert!(from.max(to) + len <= self.page.bytes().len(), "an edit ends within its page");
        *self.changed = true;
        self.page.shift(from, to, len);
        self.note(|ops| redo::push_shift(ops, from, to, len));
    }

    /// Rewrites the page freely; it is logged whole. Only type and keyspace of the header may be set.
    fn image(&mut self, f: impl FnOnce(&mut [u8])) {
        // First, for a panic of `f`.
        (*self.whole, *self.changed) = (true, true);
        let lsn = page::lsn(self.page.bytes());
        self.page.rewrite(f);
        assert_eq!(page::lsn(self.page.bytes()), lsn, "a page gets its LSN when its group has a place in the log");
    }
}
