//! The tier's threads: one writes admitted clean pages to their slots, one empties slots (copying home what is newer
//! there), one writes maps.

use super::Tier;
use super::admit::{Admission, Part, TierState};
use super::slots::{Slot, SlotState};
use crate::{KeyspaceId, Lsn, PageId, PageIo, PageUse, ReadWhy, VolumeError, WriteWhy, page};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, Health, Io, Mistake};
use varve_rt::Event;
use varve_rt::atomic::Ordering;

/// Pages written or copied at a time.
const BATCH: usize = 64;

/// How long a thread sleeps at most before it looks again.
const NAP: Duration = Duration::from_millis(500);

/// A page on its way home.
pub(super) struct Move {
    slot: Slot,
    page: PageId,
    lsn: Lsn,
    version: u32,
    /// Whether the slot is to be emptied; otherwise the page stays, equal to home.
    empty: bool,
    bytes: AlignedBuf,
    read: bool,
    /// The slot has not what it was said to have, and home has it.
    home: bool,
}

impl Tier {
    /// Starts the threads; admissions begin. May be called again after [`Tier::stop`].
    pub fn start(self: &Arc<Self>) -> Result<(), VolumeError> {
        let mut threads = self.threads.lock();
        assert!(threads.is_empty(), "the tier is started already");
        self.stopping.store(false, Ordering::Release);
        self.state.lock().started = true;
        let health = self.health();
        let mut spawn = |name: &str, run: fn(&Tier)| {
            let tier = self.clone();
            threads.push(health.spawn(name, move || run(&tier))?);
            Ok::<(), VolumeError>(())
        };
        spawn("tier-admit", |tier| tier.serve(&tier.to_admit, Tier::admit_some))?;
        spawn("tier-reclaim", |tier| tier.serve(&tier.to_reclaim, Tier::reclaim))?;
        spawn("tier-map", |tier| tier.serve(&tier.to_map, Tier::map_if_due))
    }

    /// Tells the threads to end; waits for nothing.
    pub fn end(&self) {
        self.stopping.store(true, Ordering::Release);
        [&self.to_admit, &self.to_reclaim, &self.to_map].iter().for_each(|e| e.set());
    }

    /// Ends the threads and waits for them, and saves what the manager knows of pages. What was admitted and not
    /// written is dropped: its home has it.
    pub fn stop(&self) {
        self.end();
        self.state.lock().started = false;
        let threads = std::mem::take(&mut *self.threads.lock());
        Health::join(threads);
        let mut state = self.state.lock();
        while let Some(Admission { page, slot, .. }) = state.queue.pop_front() {
            state.unstage();
            state.slots.call_off(slot);
            if state.staged.get(&page).is_some_and(|s| s.slot == slot) {
                state.drop_slot(slot, false, varve_rt::now().as_nanos());
            }
        }
        drop(state);
        if self.remember().is_err() {
            // Without it the pages earn their ranks anew.
            self.state.lock().counters.errors += 1;
        }
    }

    /// The life of a thread: works while there is something to do.
    fn serve(&self, wake: &Event, work: fn(&Tier) -> Result<bool, VolumeError>) {
        loop {
            wake.wait_for(NAP);
            wake.reset();
            loop {
                if self.stopped() {
                    return;
                }
                match work(self) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => {
                        // The thread that needs what failed meets the error itself; trying at once gains nothing.
                        self.state.lock().counters.errors += 1;
                        varve_rt::sleep(NAP);
                        break;
                    }
                }
            }
        }
    }

    /// Writes a batch of admitted pages to their slots.
    fn admit_some(&self) -> Result<bool, VolumeError> {
        let mut batch: Vec<Admission> = Vec::new();
        let part = {
            let mut state = self.state.lock();
            while batch.len() < BATCH {
                let Some(next) = state.queue.pop_front() else { break };
                if state.staged.get(&next.page).is_some_and(|s| s.slot == next.slot) {
                    batch.push(next);
                } else {
                    state.unstage();
                    state.slots.call_off(next.slot);
                }
            }
            state.part.clone()
        };
        // What waits has a slot, so the device that has the slot is there.
        let Some(part) = part.filter(|_| !batch.is_empty()) else { return Ok(false) };
        let ios = batch.iter().map(|a| {
            // SAFETY: the bytes are shared and immutable, and live in `batch` until every request was waited for.
            unsafe { Io::write(part.at(a.slot), a.bytes.as_ptr(), a.bytes.len(), false) }
        });
        let mut ticket = part.device.submit(ios.collect());
        assert_eq!(ticket.len(), batch.len(), "a device answers every request");
        let mut failed = None;
        for (i, Admission { page, slot, .. }) in batch.iter().enumerate() {
            let done = ticket.wait(i);
            let mut state = self.state.lock();
            state.unstage();
            state.slots.end_write(*slot, done.is_ok());
            match &done {
                Ok(()) => state.fast_worked(),
                Err(e) => state.fast_failed(e),
            }
            if state.staged.get(page).is_some_and(|s| s.slot == *slot) {
                state.staged.remove(page);
                if done.is_err() {
                    state.drop_slot(*slot, false, varve_rt::now().as_nanos());
                }
            }
            failed = failed.or(done.err());
        }
        failed.map_or(Ok(true), |e| Err(e.into()))
    }

    /// Empties slots until enough are free, and copies home what is too much. True when there was something to do.
    fn reclaim(&self) -> Result<bool, VolumeError> {
        if !self.state.lock().needs_reclaim() {
            return Ok(false);
        }
        let _one = self.movers.lock();
        let Some(part) = self.part() else { return Ok(false) };
        let moves = self.choose_moves();
        if moves.is_empty() {
            // What is left to choose from is being read or written, or waits for a map.
            if self.state.lock().slots.given_away() > 0 {
                self.to_map.set();
            }
            return Ok(false);
        }
        self.carry_home(&part, moves)?;
        Ok(true)
    }

    /// Frees what can be freed at once, and says what must go home first.
    fn choose_moves(&self) -> Vec<Move> {
        let now = varve_rt::now().as_nanos();
        let mut state = self.state.lock();
        let mut moves = Vec::new();
        let want = state.emptied_ahead();
        while state.slots.free() + moves.len() < want && moves.len() < BATCH {
            let Some((slot, _)) = state.lowest(now) else { break };
            if state.slots.entry(slot).state == SlotState::Newer && !self.makes(Mistake::TierNoCopies) {
                moves.push(self.begin_move(&mut state, slot, true));
            } else {
                state.evict(slot, now);
            }
        }
        let surplus = state.surplus().min(BATCH - moves.len());
        if surplus > 0 {
            let depth = 4 * BATCH + state.slots.len() / 8;
            for slot in state.slots.coldest_newer(surplus, depth) {
                moves.push(self.begin_move(&mut state, slot, false));
            }
        }
        moves
    }

    pub(super) fn begin_move(&self, state: &mut TierState, slot: Slot, empty: bool) -> Move {
        state.slots.set_moving(slot, true);
        state.slots.begin(slot, None);
        let entry = state.slots.entry(slot);
        assert!(entry.state == SlotState::Newer && entry.writes == 0, "what goes home is newer, and written whole");
        let bytes = AlignedBuf::new(self.page_size);
        Move { slot, page: entry.page, lsn: entry.lsn, version: entry.version, empty, bytes, read: false, home: false }
    }

    /// Reads pages from their slots, writes them home, makes that durable, and only then lets their slots go.
    pub(super) fn carry_home(&self, part: &Part, mut moves: Vec<Move>) -> Result<(), VolumeError> {
        let size = self.page_size;
        let reads = moves.iter_mut().map(|m| {
            // SAFETY: the buffer lives in `moves` until every request was waited for, and nobody else has it.
            unsafe { Io::read(part.at(m.slot), m.bytes.as_mut_ptr(), size) }
        });
        let mut ticket = part.device.submit(reads.collect());
        assert_eq!(ticket.len(), moves.len(), "a device answers every request");
        let mut result = Ok(());
        for (i, m) in moves.iter_mut().enumerate() {
            let done = ticket.wait(i);
            m.read = done.is_ok() && page::verify(&m.bytes, m.page).is_ok() && page::lsn(&m.bytes) >= m.lsn;
            result = result.and(done.map_err(|e| self.loss(e.into())));
        }
        for m in moves.iter_mut().filter(|m| !m.read) {
            // With a log of changes alone a slot may have been given away after the last record of it.
            m.home = self.home_has(m.page, m.lsn, &mut m.bytes);
        }
        let writes = moves.iter().filter(|m| m.read).map(|m| {
            let (keyspace, usage): (KeyspaceId, _) = (page::keyspace(&m.bytes), PageUse::default());
            // SAFETY: the buffer lives in `moves`, unchanged, until every request was waited for.
            unsafe { PageIo::write(m.page, keyspace, WriteWhy::Replacement, usage, m.bytes.as_ptr(), None) }
        });
        let written = self.slow.submit(writes.collect()).wait_all().and_then(|()| self.sync_home());
        let mut state = self.state.lock();
        let now = varve_rt::now().as_nanos();
        for m in &moves {
            state.slots.end_read(m.slot);
            state.slots.set_moving(m.slot, false);
            let entry = *state.slots.entry(m.slot);
            let same = entry.version == m.version && entry.state == SlotState::Newer;
            if !m.read && same && m.home {
                state.counters.repaired += 1;
                state.drop_slot(m.slot, false, now);
            } else if !m.read && same {
                state.counters.lost += 1;
                // Not again before everything else: it cannot go home, and its claim stays.
                state.slots.set_rank(m.slot, f64::INFINITY);
            }
            if !m.read || !same || written.is_err() {
                continue;
            }
            state.counters.slow_copies += 1;
            if m.empty {
                state.evict(m.slot, now);
            } else {
                state.counters.cleaned += 1;
                state.slots.set_state(m.slot, SlotState::Clean);
                state.rerank(m.slot, now);
            }
        }
        result.and(written)
    }

    /// Whether the page is at home, not older than `least`.
    fn home_has(&self, page: PageId, least: Lsn, buf: &mut AlignedBuf) -> bool {
        // SAFETY: the buffer is ours until the request was waited for.
        let read = unsafe { PageIo::read(page, ReadWhy::Demand, buf.as_mut_ptr()) };
        self.slow.submit(vec![read]).wait_all().is_ok() && page::lsn(buf) >= least
    }

    /// Copies everything home that is newer than home. The pages keep their slots. An error when some cannot be read.
    pub fn all_home(&self) -> Result<(), VolumeError> {
        match self.bring_home()? {
            true => Ok(()),
            false => Err(VolumeError::Tier {
                device: self.part().map_or_else(|| "fast device".into(), |part| part.device.info().name),
                what: "it holds pages newer than home that cannot be read: run `varve check`".into(),
            }),
        }
    }

    /// The same, but false when some cannot be read: the log may have them yet.
    pub(super) fn bring_home(&self) -> Result<bool, VolumeError> {
        let _one = self.movers.lock();
        loop {
            let Some(part) = self.part() else { return Ok(true) };
            let moves: Vec<Move> = {
                let mut state = self.state.lock();
                let all = state.slots.len();
                let slots = state.slots.coldest_newer(BATCH, all);
                slots.into_iter().map(|slot| self.begin_move(&mut state, slot, false)).collect()
            };
            if moves.is_empty() {
                return Ok(true);
            }
            let (count, lost) = (moves.len() as u64, self.state.lock().counters.lost);
            self.carry_home(&part, moves)?;
            if self.state.lock().counters.lost - lost == count {
                return Ok(false);
            }
        }
    }

    /// Pages whose newest version should be on the fast device, but that nobody has read since recovery: they may be
    /// torn, and nothing will write those again that are free by now.
    pub fn doubtful(&self) -> Vec<PageId> {
        let state = self.state.lock();
        let slots = state.slots.coldest_newer(usize::MAX, usize::MAX);
        slots.iter().map(|&slot| state.slots.entry(slot)).filter(|e| e.unverified).map(|e| e.page).collect()
    }

    /// An error if pages were found lost since so many were.
    pub(super) fn whole_since(&self, part: &Part, lost: u64) -> Result<(), VolumeError> {
        if self.state.lock().counters.lost == lost {
            return Ok(());
        }
        Err(VolumeError::Tier {
            device: part.device.info().name,
            what: "it holds pages newer than home that cannot be read: run `varve check`".into(),
        })
    }

    /// Writes a map when so much of the zone was given away that one is due.
    fn map_if_due(&self) -> Result<bool, VolumeError> {
        let due = {
            let mut state = self.state.lock();
            // A map also makes free slots usable that wait for it.
            let starved = state.slots.free() < state.reserve && state.slots.given_away() > 0 && state.lowest_is_none();
            let zone = self.zone_slots(state.slots.len());
            state.part.is_some() && (state.needs_map(zone) || starved)
        };
        let full = {
            let at = self.maintenance.lock();
            self.part().is_some_and(|part| at.journal_used * 4 > part.geometry.journal_blocks() * 3)
        };
        if due || full {
            self.write_map()?;
        }
        self.remember_if_due()?;
        Ok(false)
    }

    /// Saves what the manager knows of pages every so often.
    fn remember_if_due(&self) -> Result<(), VolumeError> {
        let Some(interval) = self.options.memory_interval else { return Ok(()) };
        let mut last = self.remembered.lock();
        if last.elapsed().as_secs_f64() >= interval {
            *last = varve_rt::now();
            drop(last);
            self.remember()?;
        }
        Ok(())
    }
}
