//! The log: appending, space, checkpoints' bookkeeping and closing.
//!
//! Lock order: `disk` (superblock) before `ring`; the writer lock and the space lock are leaves. No lock
//! but `disk` is held during I/O.
//!
//! Invariants: nothing is appended before [`Log::resume_at`] made the new run known in a durable superblock; the ring
//! before the redo point is reused only after a superblock with that redo point is durable; a poisoned log never
//! becomes good again. Neither redo point nor generation ever go back, and the database's identity does not change.
//! Redo point <= durable LSN <= end, once the log was resumed.

use super::features::{Feature, Features};
use super::flusher::Flusher;
use super::format::{BLOCK, FIRST_LSN, GROUP_HEADER, GroupHeader, GroupKind, block_ceil, group_size};
use super::generation::Companion;
use super::growth::Growth;
use super::reader::LogReader;
use super::resume::Gap;
use super::ring::{RING_START, Ring};
use super::room::{Idle, Pinned};
use super::stats::{Counters, LogStats, add};
use super::superblock::{self, Birth, DbHeader, MAX_OPTIONS, Superblock};
use super::tail::{Refused, Tail};
use super::writer::Writer;
use super::{AppendError, Appended, Floor, LogConfig, LogState};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};
use varve_device::{Device, Faults, Health, Mistake, PoisonListener, Watched};
use varve_rt::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use varve_rt::{Condvar, Cost, Event, JoinHandle, Mutex, RwLock, charge};
use varve_volume::Lsn;

/// The superblock as it is on the device, and where the next one goes.
pub(super) struct Disk {
    pub sb: Superblock,
    /// A slot that holds it.
    slot: usize,
    pub idle: Idle,
    /// Of the ring, what is reserved and was never written (`zeros`).
    pub unwritten: Range<Lsn>,
}

impl Disk {
    fn new(sb: Superblock, slot: usize) -> Disk {
        Disk { sb, slot, idle: Idle::default(), unwritten: 0..0 }
    }
}

/// The redo log of a database. Shared as `Arc<Log>`.
pub struct Log {
    pub(super) dev: Arc<Watched>,
    pub(super) cfg: LogConfig,
    pub(super) salt: u32,
    read_only: bool,
    /// Damage of a superblock that opening found and went round.
    pub(super) found_damaged: Option<String>,
    pub(super) run: AtomicU32,
    pub(super) tail: Tail,
    pub(super) durable: AtomicU64,
    pub(super) writer: Mutex<Writer>,
    pub(super) disk: Mutex<Disk>,
    pub(super) ring: RwLock<Ring>,
    /// Of the ring, bytes.
    pub(super) capacity: AtomicU64,
    /// Length of the ring's longest segment: every commit asks.
    pub(super) longest_segment: AtomicU64,
    /// Place of the redo point of the last completed checkpoint: its LSN, when this opening has completed one.
    pub(super) redo: AtomicU64,
    /// First LSN past what the ring has room for.
    pub(super) limit: AtomicU64,
    pub(super) growth: Growth,
    /// The log is being read from here on, so the ring keeps it. [`Lsn::MAX`]: nobody reads.
    pub(super) held: AtomicU64,
    /// Held while the image floor is raised.
    raising: Mutex<()>,
    pub(super) resumed: AtomicBool,
    health: Arc<Health>,
    /// Waited on for log space; notified when the redo point moves, or cannot, or the log is poisoned.
    pub(super) space: Mutex<Pinned>,
    pub(super) space_freed: Condvar,
    pub(super) space_waiters: AtomicU32,
    /// The database is opening: nobody makes checkpoints yet.
    pub(super) opening: AtomicBool,
    /// Bytes of log that recovery may have to redo.
    pub(super) redo_budget: AtomicU64,
    pub(super) wanted: Arc<Event>,
    /// Somebody asked for a checkpoint since the last one was complete.
    pub(super) asked: AtomicBool,
    pub(super) flusher: Arc<Flusher>,
    daemon: Mutex<Option<JoinHandle<()>>>,
    pub(super) companions: Mutex<Vec<Arc<dyn Companion>>>,
    /// LSNs that were left out after crashes: every page that is read is held against them.
    pub(super) gaps: RwLock<Vec<Gap>>,
    /// Where the log went on behind the newest of them; 0: there is none.
    pub(super) newest_gap: AtomicU64,
    pub(super) stats: Counters,
}

impl Log {
    /// Makes a new, empty log on `dev` and opens it for appending. What `dev` held is lost. A file should be one that
    /// writes what `set_len` adds (`varve_device::Options::prewrite`): durable writes to it are then much faster.
    pub fn create(dev: impl Into<Watched>, cfg: LogConfig, header: DbHeader) -> Result<Arc<Log>> {
        Log::create_at(dev, cfg, header, (FIRST_LSN, Birth::default()))
    }

    /// Says, durably, that a database is being created: whatever `dev` held is none from here on. Before anything else
    /// of it is written.
    pub(crate) fn begin_creation(dev: &dyn Device, header: &DbHeader) -> Result<()> {
        if dev.len() < RING_START + BLOCK {
            dev.set_len(RING_START + BLOCK)?;
        }
        let birth = Birth { creating: true, ..Birth::default() };
        let sb = Superblock::new(header.clone(), Ring::new(BLOCK, 1), FIRST_LSN, birth);
        superblock::store(dev, 0, &Superblock { sequence: 0, ..sb }, true)
    }

    /// The same for pages that exist already, the newest of which was changed at or before `first`: the log begins at
    /// the next block.
    pub(crate) fn create_at(
        dev: impl Into<Watched>,
        cfg: LogConfig,
        header: DbHeader,
        (first, birth): (Lsn, Birth),
    ) -> Result<Arc<Log>> {
        let dev = Arc::new(dev.into());
        let first = block_ceil(first.max(FIRST_LSN));
        cfg.check()?;
        if header.options.len() > MAX_OPTIONS {
            return Err(Error::Invalid(format!("creation options of more than {MAX_OPTIONS} bytes")));
        }
        let ring = Ring::new(cfg.segment, cfg.capacity.div_ceil(cfg.segment).max(1) as usize);
        dev.set_len(ring.device_len())?;
        let sb = Superblock::new(header, ring, first, birth);
        superblock::store(&*dev, 0, &sb, true)?;
        let log = Log::new(dev, cfg, Disk::new(sb, 0), false, None)?;
        log.begin_appending(first, first, 1);
        Ok(log)
    }

    /// The database is made: from here on it can be opened.
    pub(crate) fn finish_creation(&self) -> Result<()> {
        let mut disk = self.disk.lock();
        let mut sb = disk.sb.clone();
        sb.creating = false;
        self.store_superblock(&mut disk, sb)
    }

    /// Opens an existing log. Nothing can be appended before recovery has called [`Log::resume_at`]. Read-only opening
    /// writes nothing and is refused when the database was not closed cleanly.
    pub fn open(dev: impl Into<Watched>, cfg: LogConfig, read_only: bool) -> Result<(Arc<Log>, LogState)> {
        let (log, state) = Log::look(dev, cfg, read_only)?;
        if read_only && !state.clean {
            return Err(Error::ReadOnly(
                "the database was not closed cleanly; open it for writing once, so that it recovers, then read-only"
                    .into(),
            ));
        }
        if !read_only {
            // What an earlier process wrote but did not see completed is relied on from here: make it durable first.
            varve_device::flush(&*log.dev)?;
        }
        Ok((log, state))
    }

    /// Opens an existing log whatever its state and writes nothing: groups can be read before recovery.
    pub(crate) fn look(dev: impl Into<Watched>, cfg: LogConfig, read_only: bool) -> Result<(Arc<Log>, LogState)> {
        let dev = Arc::new(dev.into());
        cfg.check()?;
        let loaded = superblock::load(&*dev)?;
        let sb = &loaded.sb;
        sb.features.check(read_only)?;
        if dev.len() < sb.ring.device_len() {
            let what =
                format!("the log is {} bytes long, {} expected: it was truncated", dev.len(), sb.ring.device_len());
            return Err(Error::corrupt_log(sb.redo, what));
        }
        if !dev.health().faults().has(Mistake::OlderSuperblockBelieved) {
            superblock::refuse_later_run(&*dev, sb)?;
        }
        let state = LogState {
            header: sb.header.clone(),
            redo: sb.redo,
            clean: sb.clean,
            end: sb.end,
            replay_rate: (sb.replay_rate > 0).then_some(sb.replay_rate),
            damaged_superblock: loaded.other,
            generation: sb.generation,
            identity: sb.identity,
        };
        // After a crash it may have been a torn write; a clean close wrote both.
        let damaged = state.damaged_superblock.clone().filter(|_| state.clean);
        let disk = Disk::new(loaded.sb, loaded.slot);
        Ok((Log::new(dev, cfg, disk, read_only, damaged)?, state))
    }

    fn new(
        dev: Arc<Watched>,
        cfg: LogConfig,
        disk: Disk,
        read_only: bool,
        found_damaged: Option<String>,
    ) -> Result<Arc<Log>> {
        let sb = &disk.sb;
        let known = if sb.clean { sb.end } else { sb.redo };
        let log = Arc::new(Log {
            salt: super::format::salt(&sb.header.uuid),
            read_only,
            found_damaged,
            run: AtomicU32::new(0),
            tail: Tail::new(cfg.buffer as usize)?,
            durable: AtomicU64::new(known),
            writer: Mutex::new(Writer::new(known)),
            capacity: AtomicU64::new(sb.ring.capacity()),
            longest_segment: AtomicU64::new(sb.ring.longest_segment()),
            ring: RwLock::new(sb.ring.clone()),
            redo: AtomicU64::new(sb.place(sb.redo)),
            limit: AtomicU64::new(sb.ring.limit(sb.place(sb.redo))),
            growth: Growth::new(),
            held: AtomicU64::new(Lsn::MAX),
            raising: Mutex::new(()),
            resumed: AtomicBool::new(false),
            health: dev.health().clone(),
            space: Mutex::default(),
            space_freed: Condvar::new(),
            space_waiters: AtomicU32::new(0),
            opening: AtomicBool::new(false),
            redo_budget: AtomicU64::new(u64::MAX),
            wanted: Arc::new(Event::new()),
            asked: AtomicBool::new(false),
            flusher: Flusher::new(),
            daemon: Mutex::new(None),
            companions: Mutex::default(),
            gaps: RwLock::default(),
            newest_gap: AtomicU64::new(0),
            stats: Counters::default(),
            disk: Mutex::new(disk),
            dev,
            cfg,
        });
        let listener: Weak<Log> = Arc::downgrade(&log);
        log.health.listen(listener);
        Ok(log)
    }

    pub(super) fn begin_appending(&self, at: Lsn, floor: Lsn, run: u32) {
        assert!(self.durable_lsn() <= at, "what is durable is not appended anew");
        self.run.store(run, Ordering::Release);
        self.tail.start(at, floor);
        self.writer.lock().restart(at);
        self.durable.store(at, Ordering::Release);
        self.resumed.store(true, Ordering::Release);
    }

    /// The image floor: a page whose last change ends at or before `lsn` is logged whole. `epoch` goes to
    /// [`Log::append`].
    pub fn floor(&self) -> Floor {
        self.tail.floor()
    }

    /// Appends a group: reserves its place, copies header and body into the buffer. Not durable yet. With `epoch`,
    /// fails with [`AppendError::EpochMoved`] when a checkpoint began since that [`Log::floor`]. The caller has called
    /// [`Log::ensure_space`]. Waits only when the log buffer is full.
    pub fn append(&self, kind: GroupKind, epoch: Option<u32>, body: &[u8]) -> Result<Appended, AppendError> {
        if !self.resumed.load(Ordering::Acquire) || self.health.is_poisoned() {
            return Err(AppendError::Poisoned(self.why_refused()));
        }
        if body.len() as u64 > self.max_group() {
            return Err(AppendError::TooLarge { needed: body.len() as u64, limit: self.max_group() });
        }
        charge(Cost::LogGroup, 1);
        charge(Cost::LogByte, body.len() as u64);
        let body_crc = crc32c::crc32c(body);
        let size = group_size(body.len());
        let lsn = match self.tail.reserve(epoch, size) {
            Ok(lsn) => lsn,
            Err(Refused::EpochMoved) => return Err(AppendError::EpochMoved),
            Err(Refused::Closed) => return Err(AppendError::Poisoned(self.why_refused())),
            Err(Refused::Exhausted) => {
                self.poison("the log stream of this opening is used up; close the database and open it again");
                return Err(AppendError::Poisoned(self.why_refused()));
            }
        };
        let run = self.run.load(Ordering::Relaxed);
        let durable = self.durable_lsn();
        let gap = self.faults().has(Mistake::DurablePastGap);
        assert!(durable <= lsn || gap, "nothing is durable beyond a group that is not in the buffer yet");
        let header = GroupHeader { kind, lsn, durable, body_len: body.len() as u32, run, body_crc };
        let header = header.encode(self.salt);
        let end = lsn + size;
        let zeros = (size - GROUP_HEADER as u64) as usize - body.len();
        if self.has_room(end - 1) {
            self.tail.fill_two(lsn, &header, body, zeros);
        } else {
            let parts: [&[u8]; 3] = [&header, body, &[0; 8][..zeros]];
            self.fill_slowly(lsn, &parts).map_err(|_| AppendError::Poisoned(self.why_refused()))?;
        }
        if end - lsn > self.stats.largest_group.load(Ordering::Relaxed) {
            self.stats.largest_group.fetch_max(end - lsn, Ordering::Relaxed);
        }
        // Once per quarter of the buffer the flusher has a look.
        let quarter = self.pressure();
        if lsn / quarter != end / quarter {
            self.flusher.nudge();
        }
        Ok(Appended { start: lsn, end })
    }

    /// Fills a group for which the buffer has no room yet, piece by piece as it drains.
    fn fill_slowly(&self, start: Lsn, parts: &[&[u8]]) -> Result<()> {
        let mut at = start;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                if !self.has_room(at) {
                    self.wait_room(at)?;
                }
                let room = self.durable_lsn() + self.tail.capacity() - at;
                let n = rest.len().min(room as usize);
                assert!(n > 0, "a byte with room in the buffer can be filled");
                self.tail.fill(at, &rest[..n], at == start);
                at += n as u64;
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    /// Bytes waiting in the buffer past which the flusher writes them out.
    pub(super) fn pressure(&self) -> u64 {
        self.cfg.buffer / 4
    }

    /// Everything below is on media.
    pub fn durable_lsn(&self) -> Lsn {
        self.durable.load(Ordering::Acquire)
    }

    /// End of everything appended.
    pub fn end_lsn(&self) -> Lsn {
        if self.resumed.load(Ordering::Acquire) { self.tail.position() } else { self.durable_lsn() }
    }

    /// As [`Log::end_lsn`]; none while recovery is looking for it.
    pub(crate) fn known_end(&self) -> Option<Lsn> {
        self.resumed.load(Ordering::Acquire).then(|| self.tail.position())
    }

    /// Asks for everything below `lsn` to become durable within the configured delay, without waiting: `async` commits.
    pub fn flush_soon(&self, lsn: Lsn) {
        if self.durable_lsn() < lsn {
            self.flusher.ask(lsn, self.cfg.async_delay);
        }
    }

    /// Begins a checkpoint: the returned T is the end of the log and the new image floor, taken in one step with the
    /// epoch's move. (A floor that is higher than where redo begins costs images, no more.)
    pub fn begin_checkpoint(&self) -> Lsn {
        let _one = self.raising.lock();
        if self.faults().has(Mistake::FloorNotRaised) {
            return self.tail.position();
        }
        self.tail.raise_floor()
    }

    /// Completes a checkpoint: every page dirty when `t` was taken has been written and synced. Makes `t` the redo
    /// point (durably) and frees the ring before it.
    pub fn complete_checkpoint(&self, t: Lsn) -> Result<()> {
        self.wait_durable(t)?;
        self.check_sound()?;
        let mut disk = self.disk.lock();
        let before = self.completed_redo();
        if t > before {
            let mut sb = disk.sb.clone();
            sb.redo = t;
            sb.end = self.durable_lsn().max(sb.end);
            assert!(t <= sb.end && t <= self.end_lsn(), "redo begins in what is durable");
            sb.prune_runs();
            self.store_next_generation(&mut disk, sb, t)?;
            self.redo.store(t, Ordering::Release);
            self.set_limit(&disk);
        }
        self.shrink_if_idle(&mut disk, before);
        drop(disk);
        self.asked.store(false, Ordering::Release);
        add(&self.stats.checkpoints, 1);
        self.tell_of_space();
        Ok(())
    }

    /// Records the replay rate (bytes per second) with the next superblock.
    pub fn set_replay_rate(&self, rate: u64) {
        self.disk.lock().sb.replay_rate = rate;
    }

    /// Replay rate of the last recovery, bytes per second.
    pub fn replay_rate(&self) -> Option<u64> {
        Some(self.disk.lock().sb.replay_rate).filter(|&r| r > 0)
    }

    /// Replaces the upper layers' options, durably.
    pub fn set_options(&self, options: Vec<u8>) -> Result<()> {
        assert!(options.len() <= MAX_OPTIONS && !self.read_only, "options fit, and the log is writable");
        let mut disk = self.disk.lock();
        let mut sb = disk.sb.clone();
        sb.header.options = options;
        self.store_superblock(&mut disk, sb)
    }

    /// The mistake that is built in.
    pub(crate) fn faults(&self) -> &Faults {
        self.health.faults()
    }

    /// The features that the database uses.
    pub fn features(&self) -> Features {
        self.disk.lock().sb.features.clone()
    }

    /// Switches a feature on or off; durable when it returns. On before its first byte is written, off after its last.
    pub fn set_feature(&self, feature: &Feature, on: bool) -> Result<()> {
        assert!(!self.read_only, "the log is writable");
        let mut disk = self.disk.lock();
        if disk.sb.features.has(feature) == on {
            return Ok(());
        }
        let mut sb = disk.sb.clone();
        sb.features.set(feature, on);
        self.store_superblock(&mut disk, sb)
    }

    pub(super) fn store_superblock(&self, disk: &mut Disk, mut sb: Superblock) -> Result<()> {
        assert!(!self.read_only, "a log that is open for reading is not written to");
        let before = &disk.sb;
        assert!(sb.redo >= before.redo && sb.generation.number >= before.generation.number, "a superblock goes back");
        assert_eq!(sb.header.uuid, before.header.uuid, "a database keeps its identity");
        sb.sequence = before.sequence + 1;
        // The older copy first, if they differ. After a failure nobody knows what is on media.
        let (slot, durable) = (1 - disk.slot, !self.faults().has(Mistake::SkipSuperblockFlush));
        if self.faults().has(Mistake::OlderSuperblockBelieved) {
            superblock::store_one(&*self.dev, slot, &sb, durable)?;
            (disk.sb, disk.slot) = (sb, slot);
            return Ok(());
        }
        superblock::store(&*self.dev, slot, &sb, durable)
            .inspect_err(|e| self.poison(&format!("superblock write: {e}")))?;
        add(&self.stats.superblock_writes, 2);
        disk.sb = sb;
        Ok(())
    }

    /// Records a clean close, durably, if the last completed checkpoint lies at the end of the log; refuses appends
    /// from here on. False when groups were appended since: make another checkpoint first.
    pub fn close_clean(&self) -> Result<bool> {
        self.wait_durable(self.end_lsn())?;
        let mut disk = self.disk.lock();
        let Some(end) = self.tail.close(self.completed_redo()) else { return Ok(false) };
        assert_eq!(self.durable_lsn(), end, "a log that is closed is durable to its end");
        let mut sb = disk.sb.clone();
        (sb.clean, sb.redo, sb.end) = (true, end, end);
        sb.prune_runs();
        // Nothing is live any more: the next run begins in the first segments of the device.
        self.held.store(Lsn::MAX, Ordering::Release);
        let emptied = sb.ring.emptied(end, sb.ring.least);
        emptied.into_iter().for_each(|ring| sb.set_ring(ring));
        self.store_superblock(&mut disk, sb)?;
        self.redo.store(end, Ordering::Release);
        self.limit.store(disk.sb.ring.limit(end), Ordering::Release);
        self.use_ring(&disk.sb.ring);
        // The close counts; a file that stays longer is cut by the next one.
        let _ = self.cut_device(&disk);
        Ok(true)
    }

    /// Walks the groups from `from` (a redo point) on.
    pub fn scan(&self, from: Lsn) -> LogReader {
        let disk = self.disk.lock();
        LogReader::new(self.dev.clone(), disk.sb.clone(), self.salt, from).with_faults(self.faults())
    }

    /// Recovery has replayed everything below `lsn`: it is on media.
    pub fn note_recovered(&self, lsn: Lsn) {
        assert!(!self.resumed.load(Ordering::Acquire), "recovery is over");
        self.durable.fetch_max(lsn, Ordering::AcqRel);
    }

    /// What identifies the database.
    pub(crate) fn header(&self) -> DbHeader {
        self.disk.lock().sb.header.clone()
    }

    /// Whether the log was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Redo point of the last completed checkpoint; before this opening has completed one, its place: as far behind the
    /// end as there are bytes to redo.
    pub fn completed_redo(&self) -> Lsn {
        self.redo.load(Ordering::Acquire)
    }

    /// What it shares with the other devices of the database.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Why the log is poisoned, if it is.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.health.cause()
    }

    /// Poisons the log: nothing is appended or promised durable any more. The first cause is kept.
    pub fn poison(&self, cause: &str) {
        self.health.poison(cause);
    }

    /// Fails when the log is poisoned.
    pub(crate) fn check_sound(&self) -> Result<()> {
        if self.health.is_poisoned() {
            return Err(Error::Poisoned(self.why_refused().to_string()));
        }
        Ok(())
    }

    fn why_refused(&self) -> Arc<str> {
        match self.poisoned() {
            Some(cause) => cause,
            None if self.read_only => "opened read-only".into(),
            None => "the database is closed or not yet recovered".into(),
        }
    }

    /// Starts the flusher.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        self.set_limit(&self.disk.lock());
        let flusher = self.flusher.start(Arc::downgrade(self), &self.health)?;
        let before = self.daemon.lock().replace(flusher);
        assert!(before.is_none(), "one flusher runs at a time");
        Ok(())
    }

    /// Tells the flusher to end; waits for nothing.
    pub fn end(&self) {
        self.flusher.stop();
    }

    /// Ends the log's threads and waits for them. What is not durable stays so. Readers behind the writers are told.
    pub fn stop(&self) {
        self.end_hold();
        self.end();
        let daemon = self.daemon.lock().take();
        Health::join(daemon);
        self.stop_growing();
    }

    /// Counters, and the log's positions.
    pub fn stats(&self) -> LogStats {
        LogStats {
            capacity: self.capacity.load(Ordering::Relaxed),
            superblocks_mended: self.disk.lock().sb.mended,
            age: self.age(),
            end: self.end_lsn(),
            durable: self.durable_lsn(),
            ..self.stats.snapshot()
        }
    }
}

impl PoisonListener for Log {
    fn poisoned(&self) {
        self.wake_all();
        self.tell_of_space();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flusher.stop();
    }
}
