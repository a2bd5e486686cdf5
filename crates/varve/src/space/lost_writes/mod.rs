//! `detect_lost_writes`: which version of each page was written last.
//!
//! For each page two bytes made of its LSN ([`mark`]) are kept in *mark pages* (`places`), 0 for unknown. A mark is set
//! when a write of the page completes, and compared when the page is read from the store ([`PageWatch`]); a version
//! that is whole and fits its place but is not the last one is damage. Hits know nothing of this.
//!
//! *Crashes.* Changed marks are written whenever the store is synced, before it is: at checkpoints, and before direct
//! pages are linked. Let R be the redo point found after a crash. A page that no record from R on changes was last
//! written before the sync of checkpoint R (or the sync before it was linked), so its mark is exact. For one that a
//! record changes, the first such record is an image (`docs/wal.md`): it is installed without reading the page, which
//! is dirty then, and its mark is set when it is written. So marks found in the store count only once recovery is
//! through; until then those of the writes that recovery made itself do.
//!
//! A mark page that was written and not synced before the crash may be found, and be gone later: a tier has it in a
//! slot that it takes for a copy of what the slow device lost. What differs in it are marks of pages that recovery
//! makes again, so these are set once more; the first mark that is set has the page written, also where it is what
//! was found.
//!
//! *Torn mark pages.* Each has two places, written by turns: never the one that was synced last. What cannot be read is
//! unknown. If nobody knows which one was synced last, as one of them cannot be read, the feature bit in the log's
//! superblock falls until the sync is done: after a crash in between no marks are believed, and the option is off until
//! it is asked for again.
//!
//! Invariants: a mark that is believed is that of the last write that completed, or unknown; mark pages are written to
//! the place that was not synced last; marks are looked for in blocks only once the places are known.
//!
//! Lock order: `adding`, `syncing`, then one shard. A shard is locked during the I/O of its mark pages, which goes to
//! the store below and needs nothing of the pool.

mod places;

pub(crate) use places::{pages_of, remove};

use crate::wal::{LOST_WRITES, Log};
use places::MarkPages;
use std::collections::BTreeSet;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::{HashMap, Mutex};
use varve_volume::page::{self, HEADER};
use varve_volume::{Lsn, PageDamage, PageId, PageStore, PageWatch, VolumeError};

/// Parts that are locked apart.
const SHARDS: u64 = 4;
/// Part of the cache that marks may take: one in so many.
const PART: usize = 32;

/// In place of a mark: nothing is known.
const UNKNOWN: u16 = 0;
/// In place of a mark: the page holds marks, and is not for the pool, which would not see it change.
const OURS: u16 = u16::MAX;

const _: () = assert!(UNKNOWN == 0 && OURS > UNKNOWN + 1, "marks of LSNs lie between the two");

/// What is kept of a page's LSN. (LSNs are multiples of 8.)
fn mark(lsn: Lsn) -> u16 {
    let mark = (lsn / 8 % u64::from(OURS - 1)) as u16 + 1;
    debug_assert!(mark != UNKNOWN && mark != OURS, "a version's mark says that it is known, and no mark page");
    mark
}

/// The marks of a block of neighbouring pages, in memory.
struct Block {
    marks: Box<[u16]>,
    /// Not written as they are.
    dirty: bool,
    /// Written since they were read, or made here.
    written: bool,
    /// When it was used last, in uses.
    used: u64,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Block>,
    places: HashMap<u64, MarkPages>,
    /// Blocks written since the last sync.
    unsynced: BTreeSet<u64>,
    /// The places are known: recovery is through.
    located: bool,
    /// Marks of writes made before that.
    early: HashMap<PageId, u16>,
    uses: u64,
}

/// The marks of all pages of a store.
pub(crate) struct LostWrites {
    /// The store below, which is not watched.
    store: Arc<dyn PageStore>,
    /// Its superblock says whether marks are believed when the database is opened.
    log: Arc<Log>,
    /// Tells mark pages of this database from those of another one, of which it may be a restored copy.
    identity: u64,
    /// Pages of a space map, and how many blocks they make.
    span: u64,
    per_span: u64,
    /// Pages of a block.
    per_block: u64,
    /// Blocks that a shard keeps in memory.
    most: usize,
    shards: [Mutex<Shard>; SHARDS as usize],
    /// All shards are located.
    located: AtomicBool,
    syncing: Mutex<()>,
    adding: Mutex<()>,
    found: AtomicU64,
}

/// What is known of lost writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostWriteStats {
    /// Mark pages that there are, twice each in the data file.
    pub mark_pages: u64,
    /// Of these, how many are in memory.
    pub in_memory: u64,
    /// Reads that found a page that was not the last version.
    pub found: u64,
}

impl LostWrites {
    /// The marks of the pages in `store`, with a share of `cache` bytes. Reads nothing.
    pub(crate) fn new(store: Arc<dyn PageStore>, log: Arc<Log>, cache: u64) -> Arc<LostWrites> {
        let (span, per_block) = (crate::space::span(&*store), places::marks_per_page(&*store));
        let most = (cache as usize / PART / store.page_size() / SHARDS as usize).max(1);
        Arc::new(LostWrites {
            identity: u64::from_le_bytes(log.header().uuid[..8].try_into().expect("eight bytes")),
            log,
            span,
            per_span: span.div_ceil(per_block),
            per_block,
            most,
            shards: Default::default(),
            located: AtomicBool::new(false),
            syncing: Mutex::new(()),
            adding: Mutex::new(()),
            found: AtomicU64::new(0),
            store,
        })
    }

    /// Bytes of memory that the marks take at most, from what the cache is given.
    pub(crate) fn memory(&self) -> usize {
        self.most * SHARDS as usize * self.store.page_size()
    }

    /// The block of a page, and its place there.
    fn block_of(&self, page: PageId) -> (u64, usize) {
        let within = page.0 % self.span;
        (page.0 / self.span * self.per_span + within / self.per_block, (within % self.per_block) as usize)
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        &self.shards[(block % SHARDS) as usize]
    }

    /// What of the page's LSN is known; 0 for nothing.
    fn known(&self, page: PageId) -> u16 {
        let (n, at) = self.block_of(page);
        let mut shard = self.shard(n).lock();
        match shard.located {
            true => self.block(&mut shard, n).marks[at],
            false => shard.early.get(&page).copied().unwrap_or(UNKNOWN),
        }
    }

    /// Sets the page's mark; `only_unknown`: if there is none.
    fn set(&self, page: PageId, to: u16, only_unknown: bool) {
        let (n, at) = self.block_of(page);
        let mut shard = self.shard(n).lock();
        if !shard.located {
            shard.early.insert(page, to);
            return;
        }
        let block = self.block(&mut shard, n);
        // What was found may be lost still: see *Crashes*.
        let is_stored = block.marks[at] == to && (block.written || to == OURS);
        if !is_stored && (block.marks[at] == UNKNOWN || !only_unknown) {
            block.marks[at] = to;
            block.dirty = true;
        }
    }

    /// Whether nothing is known of a page.
    pub(crate) fn is_unknown(&self, page: PageId) -> bool {
        self.known(page) == UNKNOWN
    }

    /// Whether the page holds marks.
    pub(crate) fn is_ours(&self, page: PageId) -> bool {
        self.known(page) == OURS
    }

    /// A check found the page to be sound at `lsn`: known from now on, if nothing is.
    pub(crate) fn checked(&self, page: PageId, lsn: Lsn) {
        self.set(page, mark(lsn), true);
    }

    /// A block in memory, read or made if need be.
    fn block<'s>(&self, shard: &'s mut Shard, n: u64) -> &'s mut Block {
        assert!(shard.located, "marks are looked for once their places are known");
        shard.uses += 1;
        let used = shard.uses;
        if !shard.blocks.contains_key(&n) {
            self.make_room(shard);
            let (marks, written) = match shard.places.get_mut(&n) {
                Some(place) => (place.read(self, n), false),
                None => (self.unknown(), true),
            };
            shard.blocks.insert(n, Block { marks, dirty: false, written, used });
        }
        let block = shard.blocks.get_mut(&n).expect("there since just now");
        block.used = used;
        block
    }

    fn unknown(&self) -> Box<[u16]> {
        vec![UNKNOWN; self.per_block as usize].into()
    }

    /// Drops blocks that were not used for longest. One that cannot be written stays.
    fn make_room(&self, shard: &mut Shard) {
        while shard.blocks.len() >= self.most {
            let oldest = shard.blocks.iter().min_by_key(|(_, block)| block.used);
            let n = *oldest.expect("there are some").0;
            if self.write(shard, n).is_err() {
                return;
            }
            shard.blocks.remove(&n);
        }
    }

    /// Writes a block if it is dirty and has a place. (One that has none is unknown when it is forgotten.)
    fn write(&self, shard: &mut Shard, n: u64) -> Result<(), VolumeError> {
        let Some(block) = shard.blocks.get_mut(&n).filter(|block| block.dirty) else { return Ok(()) };
        let Some(place) = shard.places.get_mut(&n) else { return Ok(()) };
        place.write(self, n, &block.marks)?;
        (block.dirty, block.written) = (false, true);
        shard.unsynced.insert(n);
        Ok(())
    }

    /// Blocks that changed, and of which nobody knows which of their pages is the newer one.
    fn doubtful(&self) -> Vec<u64> {
        let mut doubtful = Vec::new();
        for shard in &self.shards {
            let Shard { blocks, places, .. } = &mut *shard.lock();
            let dirty = blocks.iter().filter(|(_, block)| block.dirty).map(|(n, _)| *n);
            doubtful.extend(dirty.filter(|n| places.get_mut(n).is_some_and(|place| place.is_doubtful(self, *n))));
        }
        doubtful.sort_unstable();
        doubtful
    }

    /// Says durably whether marks are to be believed by whoever opens the database.
    fn believe(&self, on: bool) -> Result<(), VolumeError> {
        let noted = self.log.set_feature(&LOST_WRITES, on);
        noted.map_err(|e| VolumeError::Options(format!("whether marks are believed could not be noted: {e}")))
    }

    /// Writes what changed; gives the blocks that a sync makes durable, with their sequence.
    fn write_all(&self) -> Result<Vec<(u64, u64)>, VolumeError> {
        let mut written = Vec::new();
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            let dirty: BTreeSet<u64> = shard.blocks.iter().filter(|(_, b)| b.dirty).map(|(n, _)| *n).collect();
            dirty.into_iter().try_for_each(|n| self.write(shard, n))?;
            let places = &shard.places;
            written.extend(shard.unsynced.iter().filter_map(|n| Some((*n, places.get(n)?.sequence))));
        }
        Ok(written)
    }

    /// What is known, for [`crate::Stats`].
    pub(crate) fn stats(&self) -> LostWriteStats {
        let mut stats = LostWriteStats { found: self.found.load(Ordering::Relaxed), ..LostWriteStats::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.mark_pages += shard.places.len() as u64;
            stats.in_memory += shard.blocks.len() as u64;
        }
        stats
    }
}

impl PageWatch for LostWrites {
    fn read(&self, page: PageId, lsn: Lsn) -> Result<(), VolumeError> {
        let known = self.known(page);
        if known == UNKNOWN || known == mark(lsn) {
            return Ok(());
        }
        self.found.fetch_add(u64::from(known != OURS), Ordering::Relaxed);
        Err(VolumeError::Damaged { page, damage: PageDamage::NotLast { found: lsn } })
    }

    fn written(&self, page: PageId, lsn: Lsn) {
        if !self.log.faults().has(Mistake::MarksNotKept) {
            self.set(page, mark(lsn), false);
        }
    }

    fn sync(&self) -> Result<(), VolumeError> {
        let _one = self.syncing.lock();
        if !self.located.load(Ordering::Acquire) {
            return self.store.sync();
        }
        let doubtful = self.doubtful();
        if !doubtful.is_empty() {
            self.believe(false)?;
        }
        for n in &doubtful {
            self.shard(*n).lock().places.get_mut(n).into_iter().for_each(|place| place.end_doubt(self, *n));
        }
        let written = self.write_all()?;
        self.store.sync()?;
        for (n, sequence) in written {
            let shard = &mut *self.shard(n).lock();
            if let Some(place) = shard.places.get_mut(&n)
                && place.synced(sequence)
            {
                shard.unsynced.remove(&n);
            }
        }
        if doubtful.is_empty() { Ok(()) } else { self.believe(true) }
    }
}

/// The bytes of a mark page, or of an index, before what it holds.
fn begin(bytes: &mut [u8], kind: u8, lsn: Lsn) {
    bytes[HEADER..].fill(0);
    page::set_kind(bytes, kind);
    page::set_keyspace(bytes, crate::space::SPACE_KEYSPACE);
    page::set_lsn(bytes, lsn);
}
