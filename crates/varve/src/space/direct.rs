//! Direct pages: new pages that are written to the store before the log knows of them, so that it need not hold their
//! contents.
//!
//! For what is too much to be written twice: the leaves of bulk loads, and long values on their way into a transaction.
//! The pages are set aside, filled, written and synced; then a group links them (marks them as allocated and names them
//! in the tree), and of that alone the log holds a record. Before it is in the log nobody can reach the pages, and
//! after a crash without it they are free.
//!
//! - *Torn pages*: a direct page bears the image floor as its LSN, so its first change is logged whole. (One of a
//!   segment never changes. It bears the end of the durable log, if that is greater: see `ripe.rs`.)
//! - *Pages used again*: recovery must not find older records of the page in the log. So a direct page is one that was
//!   never used, or whose freeing lies before the redo point ([`Space::reserve_ripe`](crate::space::Space)); segments
//!   get pages of other segments too, of which there are no records.
//! - *Backups* copy what is allocated, and the log. They are told of the direct pages that are linked meanwhile and
//!   copy them too. A backup of what changed since another goes by the LSN: one that begins raises the floor, and
//!   direct pages written before that get a new LSN when they are linked.
//!
//! Invariants: pages are linked only when all of them are written and synced, and bear a floor of the newest backup's
//! time; they are sent in the order in which they were filled; what is neither linked nor given back is in `sent` or
//! `pages`.

use crate::buffer::Keep;
use crate::error::{Error, Result};
use crate::runs::Runs;
use crate::space::{Core, PastLog};
use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::Arc;
use varve_device::{AlignedBuf, DeviceError, Mistake};
use varve_rt::channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use varve_rt::{JoinHandle, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use varve_volume::{KeyspaceId, Lsn, PageId, PageWatch, page};

/// Writes that may be under way at a time.
const IN_FLIGHT: usize = 2;

/// What direct pages and backups know of each other.
#[derive(Default)]
pub(crate) struct Links {
    /// Held shared while direct pages are linked, exclusively while a backup begins and ends.
    gate: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Backups begun.
    backups: u64,
    /// Direct pages linked since the newest of them began, but for those that it took already.
    linked: Option<Vec<PageId>>,
}

impl Links {
    /// Nobody links direct pages as long as this is held.
    pub(crate) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// A backup begins; [`Links::stop`] is held, and the image floor was raised. Its number.
    pub(crate) fn backup_begins(&self) -> u64 {
        debug_assert!(self.gate.try_read().is_none(), "nobody links pages while a backup begins");
        let mut state = self.state.lock();
        state.backups += 1;
        state.linked = Some(Vec::new());
        state.backups
    }

    /// The pages linked since the backup began, or since this was asked last. (None once another one has begun: the log
    /// is not held for this one then, which fails it.)
    pub(crate) fn take_linked(&self, backup: u64) -> Vec<PageId> {
        let mut state = self.state.lock();
        let backups = state.backups;
        state.linked.as_mut().filter(|_| backups == backup).map(std::mem::take).unwrap_or_default()
    }

    /// The backup is over.
    pub(crate) fn backup_ends(&self, backup: u64) {
        let mut state = self.state.lock();
        if state.backups == backup {
            state.linked = None;
        }
    }

    fn backups(&self) -> u64 {
        self.state.lock().backups
    }
}

/// A buffer of pages to be written.
struct Batch {
    pages: Vec<PageId>,
    buf: AlignedBuf,
}

/// Writes batches in the background.
struct Worker {
    to: Sender<Batch>,
    back: Receiver<AlignedBuf>,
    thread: JoinHandle<Result<()>>,
    /// Buffers it may still be given anew.
    unmade: usize,
}

/// New pages of a keyspace, being written one after the other. Dropped, those that were not linked are free again.
pub(crate) struct DirectPages {
    core: Arc<Core>,
    keyspace: KeyspaceId,
    /// Filled, given to the worker, and not linked.
    sent: Runs,
    /// Set aside; the first `filled` of them are in `buf`.
    pages: VecDeque<PageId>,
    filled: usize,
    /// All that were filled survive a power cut.
    synced: bool,
    buf: Option<AlignedBuf>,
    worker: Option<Worker>,
    /// Backups begun before the first of the pages was filled.
    backups: u64,
    /// Pages come in whole extents.
    whole_extents: bool,
    whose: PastLog,
    /// Most pages of a batch; the caller writes it himself.
    inline: Option<usize>,
    keep: Keep,
}

impl DirectPages {
    pub(crate) fn new(core: &Arc<Core>, keyspace: KeyspaceId) -> DirectPages {
        DirectPages {
            core: core.clone(),
            keyspace,
            sent: Runs::default(),
            pages: VecDeque::new(),
            filled: 0,
            synced: true,
            buf: None,
            worker: None,
            backups: 0,
            whole_extents: false,
            whose: PastLog::Other,
            inline: None,
            keep: Keep::Nothing,
        }
    }

    /// `n` pages of segments that somebody else will fill, past the pool.
    pub(crate) fn for_others(core: &Arc<Core>, keyspace: KeyspaceId, n: usize) -> Result<DirectPages> {
        let mut pages = DirectPages::new(core, keyspace).of_segment();
        pages.pages.extend(core.space.reserve_ripe(core, keyspace, n, pages.whose)?);
        // The pool has nothing of their former life that it could still write.
        for id in &pages.pages {
            core.pool.discard(*id);
        }
        pages.backups = core.links.backups();
        Ok(pages)
    }

    /// The first `n` pages that were set aside were filled by somebody else, with this LSN, and synced.
    pub(crate) fn were_filled(&mut self, n: usize, lsn: Lsn) {
        assert!(self.filled == 0 && self.sent.len() == 0, "they are filled by others, or here");
        for id in self.pages.drain(..n.min(self.pages.len())) {
            // A backup may have read what the page held before, or be about to.
            while self.core.pool.discard(id) {
                varve_rt::yield_now();
            }
            if let Some(marks) = &self.core.lost_writes {
                PageWatch::written(&**marks, id, lsn);
            }
            self.sent.push(id);
        }
        // Marks are synced with the pages.
        self.synced = self.core.lost_writes.is_none();
    }

    /// The same, in batches of at most `bytes`, which are written by whoever fills them: no thread is begun, and what
    /// failed is known at once.
    pub(crate) fn written_inline(mut self, bytes: usize) -> DirectPages {
        self.inline = Some((bytes / self.core.page_size()).max(1));
        self
    }

    /// The same, for segments.
    pub(crate) fn of_segment(mut self) -> DirectPages {
        self.whose = PastLog::Segment;
        self
    }

    /// The same; pages stay in the pool while frames are free. (Not over a tier, to whose fast device a page that was
    /// never linked could come from the pool, and be taken for its next life.)
    pub(crate) fn kept_in_free_frames(mut self) -> DirectPages {
        self.keep = if self.core.store.has_two_places() { Keep::Nothing } else { Keep::InFreeFrames };
        self
    }

    /// The LSN that pages are filled with from now on.
    pub(crate) fn lsn(&self) -> Lsn {
        let log = &self.core.log;
        match self.whose {
            PastLog::Segment => log.floor().lsn.max(log.durable_lsn()),
            PastLog::Other => log.floor().lsn,
        }
    }

    /// The same, for so many pages that they have extents of their own, where the volume has extents.
    pub(crate) fn in_extents(mut self) -> DirectPages {
        self.whole_extents = true;
        self
    }

    /// Pages that a batch has.
    fn batch(&self) -> usize {
        let most = self.core.pool.direct_pages();
        self.inline.map_or(most, |pages| pages.min(most))
    }

    /// Pages that were filled and not linked, in the order in which they were filled.
    pub(crate) fn written(&self) -> impl Iterator<Item = PageId> + '_ {
        self.sent.iter().chain(self.pages.range(..self.filled).copied())
    }

    /// How many those are.
    pub(crate) fn written_len(&self) -> usize {
        self.sent.len() + self.filled
    }

    /// Bytes of memory that the list of written pages takes.
    pub(crate) fn memory(&self) -> usize {
        self.sent.memory()
    }

    /// The page that will be filled after `n` others.
    pub(crate) fn next(&mut self, n: usize) -> Result<PageId> {
        while self.pages.len() <= self.filled + n {
            if self.whole_extents
                && let Some(pages) = self.core.space.reserve_extent(&self.core, self.whose)?
            {
                self.pages.extend(pages);
                continue;
            }
            let more = self.batch().max(n + 1);
            self.pages.extend(self.core.space.reserve_ripe(&self.core, self.keyspace, more, self.whose)?);
        }
        Ok(self.pages[self.filled + n])
    }

    /// Pages that were set aside and not filled yet, in the order in which they will be.
    pub(crate) fn set_aside(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.range(self.filled..).copied()
    }

    /// Fills the next page: `fill` sets the page's type and all that comes after the header. No latch may be held.
    pub(crate) fn fill(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<PageId> {
        let id = self.next(0)?;
        if self.written_len() == 0 {
            self.backups = self.core.links.backups();
        }
        let (size, lsn) = (self.core.page_size(), self.lsn());
        let buf = match &mut self.buf {
            Some(buf) => buf,
            None => {
                let buf = self.buffer()?;
                self.buf.insert(buf)
            }
        };
        assert!(self.filled < self.pages.len(), "a page that is filled was set aside");
        let bytes = &mut buf[self.filled * size..][..size];
        bytes[..page::HEADER].fill(0);
        page::set_keyspace(bytes, self.keyspace);
        fill(bytes);
        // Asked for after the number of backups: see above.
        page::set_lsn(bytes, lsn);
        page::seal(bytes, id);
        self.filled += 1;
        self.synced = false;
        if self.filled == self.batch() {
            self.send()?;
        }
        Ok(id)
    }

    /// An empty buffer: one that the worker is done with, if it has had its share.
    fn buffer(&mut self) -> Result<AlignedBuf> {
        let bytes = self.batch() * self.core.page_size();
        match &mut self.worker {
            Some(worker) if worker.unmade == 0 => match worker.back.recv() {
                Ok(buf) => Ok(buf),
                Err(_) => self.end_worker().and(Err(Error::Closed)),
            },
            Some(worker) => {
                assert!(worker.unmade <= IN_FLIGHT, "a worker has its share of buffers");
                worker.unmade -= 1;
                Ok(AlignedBuf::new(bytes))
            }
            None => Ok(AlignedBuf::new(bytes)),
        }
    }

    /// Has the pages in the buffer written.
    fn send(&mut self) -> Result<()> {
        let Some(buf) = self.buf.take() else { return Ok(()) };
        assert!(self.filled > 0 && self.filled * self.core.page_size() <= buf.len(), "what is sent lies in its buffer");
        let pages: Vec<PageId> = self.pages.drain(..self.filled).collect();
        pages.iter().for_each(|id| self.sent.push(*id));
        self.filled = 0;
        if self.inline.is_some() {
            let (buf, done) = self.core.pool.write_direct(self.keyspace, &pages, buf, self.keep)?.finish();
            self.buf = Some(buf);
            return done;
        }
        let worker = match &mut self.worker {
            Some(worker) => worker,
            None => {
                let (to, batches) = bounded(1);
                let (give, back) = unbounded();
                let (core, of) = (self.core.clone(), (self.keyspace, self.keep));
                let thread = varve_rt::try_spawn("direct-writer", move || write(&core, of, &batches, &give))
                    .map_err(DeviceError::no_thread)?;
                self.worker.insert(Worker { to, back, thread, unmade: IN_FLIGHT })
            }
        };
        match worker.to.send(Batch { pages, buf }) {
            Ok(()) => Ok(()),
            // It failed with an earlier batch.
            Err(_) => self.end_worker().and(Err(Error::Closed)),
        }
    }

    fn end_worker(&mut self) -> Result<()> {
        let Some(Worker { to, thread, .. }) = self.worker.take() else { return Ok(()) };
        drop(to);
        // A panic in it has poisoned the database.
        thread.join().unwrap_or_else(|_| self.core.log.check_sound().and(Err(Error::Closed)))
    }

    /// All pages that were filled are written.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.send()?;
        }
        self.end_worker()
    }

    /// No more pages will be filled: all are written, and what was set aside beyond them is free again.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        assert_eq!(self.filled, 0, "what was filled was sent");
        self.buf = None;
        let rest: Vec<PageId> = self.pages.drain(..).collect();
        self.core.space.give_back(&self.core.log, &rest);
        Ok(())
    }

    /// The pages that were written, from the `n`-th on. All that were filled are written.
    pub(crate) fn written_from(&self, n: usize) -> impl Iterator<Item = PageId> + '_ {
        debug_assert!(self.filled == 0 && n <= self.sent.len(), "pages are looked for that were written");
        self.sent.iter_from(n)
    }

    /// Gives the pages that were written an LSN that no backup that has begun takes for older than itself.
    fn stamp_again(&mut self) -> Result<()> {
        let (size, lsn) = (self.core.page_size(), self.lsn());
        let pages: Vec<PageId> = self.written().collect();
        for batch in pages.chunks(self.batch()) {
            let mut buf = AlignedBuf::new(batch.len() * size);
            for (bytes, id) in buf.chunks_mut(size).zip(batch) {
                bytes.copy_from_slice(self.core.pool.read(*id)?.bytes());
                page::set_lsn(bytes, lsn);
                page::seal(bytes, *id);
            }
            self.core.pool.write_direct(self.keyspace, batch, buf, self.keep)?.finish().1?;
        }
        Ok(())
    }
}

impl Drop for DirectPages {
    fn drop(&mut self) {
        if varve_rt::dying() {
            return;
        }
        // What it could not write is not wanted any more.
        let _ = self.end_worker();
        if self.keep != Keep::Nothing {
            // Nobody could read them, so nobody does.
            for id in self.sent.iter() {
                self.core.pool.discard(id);
            }
        }
        self.core.space.give_back(&self.core.log, &self.sent.iter().chain(self.pages.drain(..)).collect::<Vec<_>>());
    }
}

/// While direct pages are being linked, no backup begins or ends.
pub(crate) struct Linking<'c> {
    core: &'c Core,
    _gate: RwLockReadGuard<'c, ()>,
}

/// Writes what is not written yet, and syncs it.
pub(crate) fn write_out<P: DerefMut<Target = DirectPages>>(core: &Core, of: &mut [P]) -> Result<()> {
    if of.iter().any(|pages| !pages.synced) {
        of.iter_mut().try_for_each(|pages| pages.flush())?;
        if !core.faults().has(Mistake::SegmentUnsynced) {
            sync(core)?;
        }
        of.iter_mut().for_each(|pages| pages.synced = true);
    }
    Ok(())
}

/// Called when the group that links direct pages has room in the log, before anything is latched: writes them out. What
/// it returns is held until that group is in the log and [`Linking::linked`] was called; none when there are no pages.
///
/// Who holds it must not wait for room in the log: a backup that begins waits for it, whoever would link waits for the
/// backup, and among these may be the flush of a memtable, after which a checkpoint makes that room.
pub(crate) fn link<'c, P: DerefMut<Target = DirectPages>>(core: &'c Core, of: &mut [P]) -> Result<Option<Linking<'c>>> {
    if of.is_empty() {
        return Ok(None);
    }
    write_out(core, of)?;
    loop {
        let gate = core.links.gate.read();
        let backups = core.links.backups();
        if of.iter().all(|pages| pages.backups == backups) {
            return Ok(Some(Linking { core, _gate: gate }));
        }
        drop(gate);
        for pages in of.iter_mut().filter(|pages| pages.backups != backups) {
            pages.stamp_again()?;
            pages.backups = backups;
        }
        sync(core)?;
    }
}

/// What was written survives a power cut from here on.
pub(crate) fn sync(core: &Core) -> Result<()> {
    // It stands for the writes of everybody: after a failed sync nobody knows which pages are on media.
    let failed = |e: &_| core.log.poison(&format!("sync of the pages: {e}"));
    core.store.sync().inspect_err(failed)?;
    // Somebody else may have been told of a page that this sync should have made durable.
    core.log.check_sound()
}

impl Linking<'_> {
    /// All pages are linked: as [`Linking::linked`].
    pub(crate) fn linked_all(&self, pages: &mut DirectPages) {
        self.linked(pages, pages.sent.len());
    }

    /// The first `n` pages are linked by a group that is in the log (or that the log, which is poisoned then, refused).
    pub(crate) fn linked(&self, pages: &mut DirectPages, n: usize) {
        assert!(pages.synced, "pages are synced before they are linked");
        assert_eq!(pages.filled, 0, "what is linked was sent");
        assert!(n <= pages.sent.len(), "pages are linked that were written");
        let linked = pages.sent.take_first(n);
        if let Some(list) = &mut self.core.links.state.lock().linked {
            list.extend(linked);
        }
    }
}

/// Writes batches until there are no more, some at a time.
fn write(
    core: &Core,
    (keyspace, keep): (KeyspaceId, Keep),
    batches: &Receiver<Batch>,
    back: &Sender<AlignedBuf>,
) -> Result<()> {
    let _guard = core.log.health().poison_on_panic("it was writing pages past the log");
    let mut flights = VecDeque::new();
    loop {
        let next = match flights.is_empty() {
            true => batches.recv().map_err(|_| TryRecvError::Disconnected),
            false => batches.try_recv(),
        };
        let ended = match next {
            Ok(Batch { pages, buf }) => {
                let begun = core.pool.write_direct(keyspace, &pages, buf, keep);
                match begun {
                    Ok(flight) => flights.push_back(flight),
                    Err(e) => {
                        flights.into_iter().for_each(|f| drop(f.finish()));
                        return Err(e);
                    }
                }
                false
            }
            // What is under way holds latches: it is not left alone while there is nothing to do.
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) if flights.is_empty() => return Ok(()),
            Err(TryRecvError::Disconnected) => true,
        };
        if ended || flights.len() == IN_FLIGHT {
            let (buf, done) = flights.pop_front().expect("there is one").finish();
            if let Err(e) = done {
                flights.into_iter().for_each(|f| drop(f.finish()));
                return Err(e);
            }
            let _ = back.send(buf);
        }
    }
}
