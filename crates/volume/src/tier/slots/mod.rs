//! The slots of the fast device and the map of pages to them: pure, in memory.
//!
//! A slot is free or holds a version of a page: equal to its home (clean), newer than it, out of date but kept
//! (invalid), or overtaken by a newer version in another slot (dead). A slot with requests in flight is not given away.
//!
//! **Eviction zone** (CAC paper, section 6; the holes of the published scheme closed). The map on the device is written
//! whole at times and says, besides, which slots recovery must look into: the *scan list*. Until the next map is
//! written only slots of the scan list are given to other pages. The scan list is: the zone (the `k` slots of lowest
//! rank), the free slots, and slots whose last write is not known to be durable. While a new map is being written, a
//! slot must be in both lists.
//!
//! **Records.** A freed slot still holds its page on the device. Recovery must not find it again once its home has
//! moved on, so each sync writes down which slots were freed, and up to which LSN; and which slots became newer than
//! home, so that damage to them is told from a write cut short. A map that is written carries over the records of slots
//! whose old content may still be there.
//!
//! **Fewer slots.** Slots from a limit on can be closed: they are not given away, and once they are empty and idle they
//! can be cut off.
//!
//! Invariants ([`Slots::check`] looks at them all): a page has one slot in the map, and that one is neither free nor
//! dead; a slot has one page at most, and no second write while one is in flight; only an empty and idle slot is given
//! away, each is in one list of free slots at most; `newer`, `occupied` and `left_over` count what they are named for;
//! a slot may hold no more versions than a map has room to name.

mod maps;
mod versions;

use super::manager::Place;
use super::records::Record;
use crate::{Lsn, PageId};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use varve_rt::HashMap;
use versions::{MOST_STALE, Stale};

/// Number of a slot.
pub type Slot = u32;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Nothing.
    Free,
    /// A version equal to the home's.
    Clean,
    /// A version newer than the home's, the only current one on a device.
    Newer,
    /// A version older than the page in the pool, kept to be refreshed.
    Invalid,
    /// A version older than the one in another slot.
    Dead,
}

/// A rank with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank(f64);

impl Eq for Rank {}
impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Rank) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Rank {
    fn cmp(&self, other: &Rank) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// One slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotEntry {
    /// The page that it holds, or held when it was freed.
    pub page: PageId,
    /// LSN of the last write that completed; 0: none has.
    pub lsn: Lsn,
    /// LSN of the write in flight, or of one that failed and may have reached the device all the same.
    pub writing: Lsn,
    /// Requests in flight.
    pub io: u16,
    /// What it holds.
    pub state: SlotState,
    /// Writes in flight among them.
    pub writes: u8,
    /// Its page is on its way home.
    pub moving: bool,
    /// Found at recovery and not read since.
    pub unverified: bool,
    /// Counts overwrites in place.
    pub version: u32,
    /// Since when it holds versions newer than home, seconds since 1970.
    pub newer_since: u32,
    rank: Rank,
}

const EMPTY: SlotEntry = SlotEntry {
    page: PageId(u64::MAX),
    lsn: 0,
    writing: 0,
    io: 0,
    state: SlotState::Free,
    writes: 0,
    moving: false,
    unverified: false,
    version: 0,
    newer_since: 0,
    rank: Rank(0.0),
};

/// Since when a slot that goes over to `state` holds what is newer than home.
fn since(before: u32, state: SlotState) -> u32 {
    match (state, before) {
        (SlotState::Newer, 0) => (varve_rt::unix_time() / 1_000_000_000).clamp(1, u64::from(u32::MAX)) as u32,
        (SlotState::Newer, before) => before,
        _ => 0,
    }
}

/// Asks the manager for the rank of a page; `true`: it is newer than home.
pub type Ranker<'a> = &'a mut dyn FnMut(PageId, bool) -> f64;

/// All slots.
pub struct Slots {
    entries: Vec<SlotEntry>,
    map: HashMap<PageId, Slot>,
    /// Free slots of the scan list, ready for use.
    free: Vec<Slot>,
    /// Free slots that must wait for the next map.
    parked: Vec<Slot>,
    /// Free slots that must wait for the next flush, as they may hold as many versions as a map can name.
    blocked: Vec<Slot>,
    /// Free slots that may hold as many, of which no flush makes any certain: writes to them failed.
    retired: Vec<Slot>,
    /// Occupied slots by rank: all, and those of the scan list.
    ranked: BTreeSet<(Rank, Slot)>,
    zone: BTreeSet<(Rank, Slot)>,
    /// The slot that was ranked anew last, in turn.
    renewed: Slot,
    scan: Vec<bool>,
    scan_next: Option<Vec<bool>>,
    /// What slots may still hold on the device besides what they should: a write that was called off leaves what was
    /// there before.
    stale: HashMap<Slot, Vec<Stale>>,
    /// How many these are.
    left_over: usize,
    /// Slots written since the last flush, with the number of the flush that will cover them.
    unflushed: HashMap<Slot, u64>,
    flushes: u64,
    records: Vec<Record>,
    /// Records were dropped since the map begun last, or before it: only a map tells everything.
    unsaid: bool,
    unsaid_before: bool,
    /// Records before this one belong to the map being written.
    snapshot_at: usize,
    /// Every slot may be given away at any time, and every occupation is recorded.
    log_everything: bool,
    /// Slots from this one on are closed.
    limit: Slot,
    newer: usize,
    occupied: usize,
    /// Slots occupied since the map was begun, and occupied ones of the zone that were emptied since.
    given_away: usize,
    taken: usize,
    /// The highest rank among the slots that were chosen for the zone. Pages above it are in the scan list for
    /// recovery's sake alone.
    bound: Rank,
}

impl Slots {
    /// `count` free slots, all in the scan list. `log_everything`: no zone; each occupation is recorded.
    pub fn new(count: usize, log_everything: bool) -> Slots {
        Slots {
            entries: vec![EMPTY; count],
            map: HashMap::default(),
            free: (0..count as Slot).rev().collect(),
            parked: Vec::new(),
            blocked: Vec::new(),
            retired: Vec::new(),
            ranked: BTreeSet::new(),
            zone: BTreeSet::new(),
            renewed: 0,
            scan: vec![true; count],
            scan_next: None,
            stale: HashMap::default(),
            left_over: 0,
            unflushed: HashMap::default(),
            flushes: 0,
            records: Vec::new(),
            unsaid: false,
            unsaid_before: false,
            snapshot_at: 0,
            log_everything,
            limit: Slot::MAX,
            newer: 0,
            occupied: 0,
            given_away: 0,
            taken: 0,
            bound: Rank(f64::INFINITY),
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The slot that holds the current version of `page`, or its invalid copy.
    pub fn find(&self, page: PageId) -> Option<Slot> {
        self.map.get(&page).copied()
    }

    /// The slot.
    pub fn entry(&self, slot: Slot) -> &SlotEntry {
        &self.entries[slot as usize]
    }

    /// Whether the slot still holds what it held at that version.
    pub fn same(&self, slot: Slot, version: u32) -> bool {
        self.entries.get(slot as usize).is_some_and(|e| e.version == version)
    }

    /// The rank that the occupied slot was given last.
    pub fn rank(&self, slot: Slot) -> f64 {
        self.entry(slot).rank.0
    }

    /// Where `page` would be read from.
    pub fn place(&self, page: PageId) -> Place {
        match self.find(page).map(|slot| self.entry(slot).state) {
            Some(SlotState::Clean | SlotState::Newer) => Place::Fast,
            _ => Place::Slow,
        }
    }

    /// Free slots that could be used now.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots that hold something.
    pub fn occupied(&self) -> usize {
        self.occupied
    }

    /// Slots that hold a version newer than home.
    pub fn newer(&self) -> usize {
        self.newer
    }

    /// Occupied slots that may be given away before the next map.
    pub fn zone(&self) -> usize {
        self.zone.len()
    }

    /// Slots given away since the map was begun, or taken from pages for that (where a map is needed for that), and
    /// free slots that wait for the next one.
    pub fn given_away(&self) -> usize {
        let gone = if self.log_everything { 0 } else { self.given_away.max(self.taken) };
        gone + self.parked.len() + self.blocked.len()
    }

    /// What a page must deserve at least when nothing of the zone is left: its highest rank. None: there is no such
    /// limit.
    pub fn bound(&self) -> Option<f64> {
        self.bound.0.is_finite().then_some(self.bound.0)
    }

    fn usable(&self, slot: Slot) -> bool {
        let at = slot as usize;
        if slot >= self.limit || self.is_crowded(slot) {
            return false;
        }
        self.log_everything || (self.scan[at] && self.scan_next.as_ref().is_none_or(|next| next[at]))
    }

    /// A free slot, no longer free.
    pub fn take_free(&mut self) -> Option<Slot> {
        let slot = self.free.pop()?;
        assert!(self.entry(slot).state == SlotState::Free && self.entry(slot).io == 0, "a free slot is empty and idle");
        assert!(slot < self.limit, "a closed slot is not given away");
        Some(slot)
    }

    /// Puts `page` into a slot taken; its write is about to begin.
    pub fn occupy(&mut self, slot: Slot, page: PageId, state: SlotState, rank: f64) {
        let entry = &mut self.entries[slot as usize];
        assert!(entry.state == SlotState::Free && entry.io == 0, "only an empty and idle slot is given away");
        assert!(matches!(state, SlotState::Clean | SlotState::Newer), "a page enters with its current version");
        let version = entry.version.wrapping_add(1);
        *entry = SlotEntry { page, state, version, rank: Rank(rank), ..EMPTY };
        entry.newer_since = since(EMPTY.newer_since, state);
        self.occupied += 1;
        self.given_away += 1;
        self.newer += usize::from(state == SlotState::Newer);
        if let Some(old) = self.map.insert(page, slot) {
            self.kill(old);
        }
        self.index(slot);
    }

    /// The version in `slot` was overtaken by one in another slot.
    fn kill(&mut self, slot: Slot) {
        let state = self.entries[slot as usize].state;
        assert!(!matches!(state, SlotState::Free | SlotState::Dead), "what is overtaken counted until now");
        self.newer -= usize::from(self.entries[slot as usize].state == SlotState::Newer);
        self.entries[slot as usize].state = SlotState::Dead;
        self.record_freed(slot);
    }

    fn index(&mut self, slot: Slot) {
        let rank = self.entries[slot as usize].rank;
        let new = self.ranked.insert((rank, slot));
        assert!(new, "a slot has one rank");
        if self.usable(slot) {
            self.zone.insert((rank, slot));
        }
    }

    fn unindex(&mut self, slot: Slot) {
        let key = (self.entries[slot as usize].rank, slot);
        let removed = self.ranked.remove(&key);
        assert!(removed, "an occupied slot has a rank");
        self.zone.remove(&key);
    }

    /// Gives the occupied slot another rank.
    pub fn set_rank(&mut self, slot: Slot, rank: f64) {
        if self.entries[slot as usize].rank != Rank(rank) {
            self.unindex(slot);
            self.entries[slot as usize].rank = Rank(rank);
            self.index(slot);
        }
    }

    /// The occupied slot holds a version of this standing from now on; an overwrite in place counts.
    pub fn set_state(&mut self, slot: Slot, state: SlotState) {
        let entry = &mut self.entries[slot as usize];
        assert!(
            !matches!(entry.state, SlotState::Free | SlotState::Dead),
            "an occupied slot that counts changes its standing"
        );
        assert!(!matches!(state, SlotState::Free | SlotState::Dead), "a slot is emptied or overtaken elsewhere");
        self.newer -= usize::from(entry.state == SlotState::Newer);
        self.newer += usize::from(state == SlotState::Newer);
        entry.state = state;
        entry.newer_since = since(entry.newer_since, state);
        entry.version = entry.version.wrapping_add(1);
        if state == SlotState::Invalid {
            self.record_freed(slot);
        }
    }

    /// Marks the page in the slot as being copied home, or no longer.
    pub fn set_moving(&mut self, slot: Slot, moving: bool) {
        let entry = &mut self.entries[slot as usize];
        assert!(!moving || entry.state != SlotState::Free && !entry.moving, "a page is on its way home once");
        entry.moving = moving;
    }

    /// The slot's content was read and is its page, at this LSN.
    pub fn verified(&mut self, slot: Slot, lsn: Lsn) {
        let entry = &mut self.entries[slot as usize];
        assert!(
            entry.state != SlotState::Free && lsn >= entry.lsn,
            "a version that is there is not older than was said"
        );
        if entry.unverified {
            entry.unverified = false;
            entry.lsn = lsn;
        }
    }

    fn release_if_idle(&mut self, slot: Slot) {
        let entry = &self.entries[slot as usize];
        if entry.state == SlotState::Free && entry.io == 0 {
            self.release(slot);
        }
    }

    /// Empties the slot.
    pub fn vacate(&mut self, slot: Slot) -> PageId {
        self.taken += usize::from(self.zone.contains(&(self.entries[slot as usize].rank, slot)));
        self.unindex(slot);
        let lsn = self.record_freed(slot);
        let entry = &mut self.entries[slot as usize];
        let (page, was) = (entry.page, entry.state);
        assert_ne!(was, SlotState::Free, "a slot is emptied once");
        entry.state = SlotState::Free;
        entry.unverified = false;
        entry.moving = false;
        entry.version = entry.version.wrapping_add(1);
        self.occupied -= 1;
        self.newer -= usize::from(was == SlotState::Newer);
        if self.map.get(&page) == Some(&slot) {
            self.map.remove(&page);
        }
        if lsn > 0 {
            self.stale.entry(slot).or_default().push(Stale { page, lsn, rewritten: None });
            self.left_over += 1;
        }
        self.release_if_idle(slot);
        page
    }

    fn release(&mut self, slot: Slot) {
        if slot >= self.limit {
            // Closed: nobody gets it any more.
            return;
        }
        let entry = &self.entries[slot as usize];
        assert!(entry.state == SlotState::Free && entry.io == 0, "a slot that is free for others is empty and idle");
        let list = match self.stale.get(&slot).filter(|_| self.is_crowded(slot)) {
            Some(stale) if stale.iter().any(|s| s.rewritten.is_some()) => &mut self.blocked,
            Some(_) => &mut self.retired,
            None if self.usable(slot) => &mut self.free,
            None => &mut self.parked,
        };
        list.push(slot);
    }

    /// The slot of lowest rank that may be given away and has no request in flight; ranks that changed are put right on
    /// the way.
    pub fn lowest(&mut self, ranker: Ranker<'_>) -> Option<(Slot, f64)> {
        // A rank that changed sends the slot elsewhere in the order; after a few of them any low one will do.
        for _ in 0..16 {
            let (slot, old) = self.lowest_idle()?;
            let entry = &self.entries[slot as usize];
            if entry.state == SlotState::Dead {
                return Some((slot, old));
            }
            let rank = ranker(entry.page, entry.state == SlotState::Newer);
            if rank <= old {
                self.set_rank(slot, rank);
                return Some((slot, rank));
            }
            self.set_rank(slot, rank);
        }
        self.lowest_idle()
    }

    /// Ranks the next `n` slots anew, in turn: a page that nobody reads or writes would keep the rank of when somebody
    /// last did, although that depends on others as well.
    pub fn renew(&mut self, n: usize, ranker: Ranker<'_>) {
        for _ in 0..n.min(self.entries.len()) {
            self.renewed = (self.renewed + 1) % self.entries.len() as Slot;
            let entry = self.entry(self.renewed);
            // One that cannot go home was given the highest rank of all, and keeps it until it is written.
            if matches!(entry.state, SlotState::Clean | SlotState::Newer) && entry.rank.0.is_finite() {
                let rank = ranker(entry.page, entry.state == SlotState::Newer);
                self.set_rank(self.renewed, rank);
            }
        }
    }

    /// The lowest of the zone, by the ranks given last, that has no request in flight.
    fn lowest_idle(&self) -> Option<(Slot, f64)> {
        let idle = |slot: Slot| self.entries[slot as usize].io == 0 && !self.entries[slot as usize].moving;
        let mut zone = self.zone.iter().take(64).take_while(|(rank, _)| *rank <= self.bound);
        zone.find(|(_, slot)| idle(*slot)).map(|&(rank, slot)| (slot, rank.0))
    }

    /// Up to `n` slots newer than home and idle, of the `depth` lowest ones: candidates for being copied home.
    pub fn coldest_newer(&self, n: usize, depth: usize) -> Vec<Slot> {
        let idle = |slot: &Slot| {
            let e = self.entry(*slot);
            e.state == SlotState::Newer && e.writes == 0 && !e.moving
        };
        self.ranked.iter().take(depth).map(|&(_, slot)| slot).filter(idle).take(n).collect()
    }

    /// Since when the oldest version newer than home is there, seconds since 1970; 0: there is none. O(slots).
    pub fn newer_since(&self) -> u64 {
        let newer = self.entries.iter().filter(|e| e.state == SlotState::Newer);
        newer.map(|e| u64::from(e.newer_since)).min().unwrap_or(0)
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<SlotEntry>()
            + self.map.capacity() * (size_of::<(PageId, Slot)>() + 1)
            + (self.ranked.len() + self.zone.len()) * 24
            + self.scan.len()
    }

    /// Asserts what must hold; O(slots). For tests.
    pub fn check(&self) {
        let mut newer = 0;
        let mut occupied = 0;
        let lists = [&self.free, &self.parked, &self.blocked, &self.retired];
        let mut free: Vec<Slot> = lists.into_iter().flatten().copied().collect();
        free.sort_unstable();
        assert!(free.windows(2).all(|w| w[0] != w[1]), "a slot is free twice");
        assert!(free.last().is_none_or(|slot| *slot < self.limit), "a closed slot is free");
        for (at, e) in self.entries.iter().enumerate() {
            let slot = at as Slot;
            newer += usize::from(e.state == SlotState::Newer);
            occupied += usize::from(e.state != SlotState::Free);
            assert!(e.writes as u16 <= e.io);
            let stale = self.stale.get(&slot).map_or(0, Vec::len);
            assert!(
                stale + usize::from(e.state != SlotState::Free) <= MOST_STALE,
                "slot {slot} may hold {stale} versions"
            );
            if e.state == SlotState::Free {
                assert!(!self.ranked.contains(&(e.rank, slot)));
                assert!(e.io > 0 || free.binary_search(&slot).is_ok() || free.len() + occupied < self.len());
            } else {
                assert!(free.binary_search(&slot).is_err(), "slot {slot} is free and holds page {}", e.page);
                assert!(self.ranked.contains(&(e.rank, slot)));
                assert_eq!(self.zone.contains(&(e.rank, slot)), self.usable(slot));
                assert_eq!(self.map.get(&e.page) == Some(&slot), e.state != SlotState::Dead, "slot {slot}");
            }
        }
        assert_eq!((newer, occupied), (self.newer, self.occupied));
        assert_eq!(self.ranked.len(), occupied);
        assert_eq!(self.left_over, self.stale.values().map(Vec::len).sum::<usize>());
        for (page, slot) in &self.map {
            let entry = self.entry(*slot);
            let counts = !matches!(entry.state, SlotState::Free | SlotState::Dead);
            assert!(entry.page == *page && counts, "page {page} is in slot {slot}");
        }
        assert!(self.snapshot_at <= self.records.len() || self.scan_next.is_none());
        assert!(self.scan.len() == self.len() && self.scan_next.as_ref().is_none_or(|next| next.len() == self.len()));
    }
}
