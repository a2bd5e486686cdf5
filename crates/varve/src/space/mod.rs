//! The space manager: which pages of the store are allocated.
//!
//! Page 0 and every `span`-th page after it is a space-map page: a bitmap of the `span` pages that begin with itself
//! (bit set: allocated). The bitmaps change only inside log groups, together with the change that links or unlinks the
//! pages, so a crash neither leaks nor doubles a page. In memory there is a copy of all bits in which reserved pages
//! count as taken: a page is reserved first, without any latch, then written, linked and marked in one group.
//!
//! Map pages stay pinned for as long as the space manager lives, so that marking pages never waits for a device.
//!
//! Invariants: a page is given out only when it is reserved in memory and no group in the log has it in use; a page's
//! bit in its map page changes in the group that links or unlinks it. What is in memory alone: `allocation.rs`.
//!
//! Lock order: `growing`, `trimming` and `telling`, then (released before) `state`. `state` is a leaf lock but for the
//! pool's instance locks. Map pages are latched in ascending order after all tree pages.

mod allocation;
mod core;
mod cut;
pub(crate) mod direct;
pub(crate) mod extents;
mod held;
pub(crate) mod lost_writes;
mod naming;
mod pool_pages;
mod ripe;
pub(crate) mod scratch;
mod still;
#[cfg(test)]
mod tests_ripe;
mod trim;
mod walk;
mod zones;

pub(crate) use core::Core;
pub(crate) use held::HeldPages;
pub(crate) use pool_pages::PoolPages;
pub(crate) use ripe::{PastLog, Ripening};
pub use scratch::ScratchStats;
pub use trim::TrimStats;
pub(crate) use walk::SpaceWalk;

use crate::buffer::{KeptPage, Pool};
pub(crate) use crate::error::SPACE_KEYSPACE;
use crate::error::{Damage, Error, Result};
use crate::page::Group;
use crate::page::PageEdit;
use crate::role::{self, Role};
use crate::wal::{GroupKind, Log};
use allocation::Allocation;
use ripe::Unripe;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_device::Mistake;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, Lsn, PageDamage, PageId, PageStore, Zone};
use zones::Zones;

/// Page type of a space-map page.
pub(crate) const KIND_SPACE: u8 = 1;
/// Where the page id of the index of mark pages is, 0 for none (`lost_writes`). Before it is the id of the first page
/// that the map covers (u64).
pub(crate) const INDEX: usize = HEADER + 8;
/// Where the bitmap begins.
const BITMAP: usize = HEADER + 16;
const _: () = assert!(INDEX == HEADER + 8 && BITMAP == INDEX + 8 && BITMAP.is_multiple_of(8));

/// Pages that a database begins with.
const FIRST_PAGES: u64 = 64;
/// Most bytes that the store grows by at a time.
const GROW_BYTES: u64 = 64 << 20;
/// Most freed pages remembered for trimming.
const MOST_UNTRIMMED: usize = 1 << 16;

/// The space manager of a database.
pub(crate) struct Space {
    pool: Arc<Pool>,
    store: Arc<dyn PageStore>,
    /// Which zones are worn out, where flash wears.
    worn: Option<Arc<AtomicU64>>,
    span: u64,
    state: Mutex<Allocation>,
    /// Map pages that exist. Written under the lock of `state`, read by every commit without it.
    maps: AtomicU64,
    /// Some of `state.let_go` is waiting. The same.
    has_let_go: AtomicBool,
    growing: Mutex<()>,
    /// Held while free pages are held back from use because the store is told of them.
    trimming: Mutex<()>,
    /// Held while the store is told which extents nothing changes.
    telling: Mutex<()>,
    trims: trim::Counters,
    scratch: scratch::Counters,
    /// Counts groups that changed the map: tells a check whether it ran undisturbed.
    changes: AtomicU64,
}

/// Pages set aside for one use; dropped, they are free again.
pub(crate) struct Reserved<'s> {
    space: &'s Space,
    log: &'s Log,
    ids: Vec<PageId>,
}

impl Reserved<'_> {
    /// The pages; those of a keyspace in ascending order.
    pub(crate) fn ids(&self) -> &[PageId] {
        &self.ids
    }

    /// The pages were allocated by a group that is in the log (or that the log, which is poisoned then, refused).
    pub(crate) fn keep(mut self) {
        self.ids.clear();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        // A group that a failed log refused has linked its pages in memory: they are not for anybody else.
        if !self.ids.is_empty() && self.log.poisoned().is_none() {
            self.space.state.lock().release(&self.ids);
        }
    }
}

impl Space {
    /// Reads the space map. A store without one (`is_empty`) is new, and is to be bootstrapped, or damaged. The log
    /// was replayed into the pool before. `redone`: the pages of which it had records; none: nobody knows. `made`: so
    /// many map pages were made at least; an error names the first of them that is blank. `partly`: nothing is written,
    /// and what cannot be read of the map but for its first page is left out.
    pub(crate) fn open(
        pool: Arc<Pool>,
        store: Arc<dyn PageStore>,
        redone: Option<extents::PageSet>,
        (made, partly): (u64, bool),
    ) -> Result<Space> {
        let span = span(&*store);
        let unripe = redone.map_or_else(|| Unripe::all_below(store.pages()), Unripe::redone);
        let space = Space {
            pool,
            worn: store.worn_zones(),
            span,
            state: Mutex::new(Allocation::new(Zones::of(&*store), unripe)),
            store,
            maps: AtomicU64::new(0),
            has_let_go: AtomicBool::new(false),
            growing: Mutex::new(()),
            trimming: Mutex::new(()),
            telling: Mutex::new(()),
            trims: trim::Counters::default(),
            scratch: scratch::Counters::begun(),
            changes: AtomicU64::new(0),
        };
        let pages = space.store.pages();
        // Side by side, or a large database would open at the pace of one read after the other.
        let (ends, window) = (made.min(pages.div_ceil(span)), space.pool.read_ahead_pages().max(1) as u64);
        let mut map = 0;
        while map * span < pages {
            if map % window == 0 && ends > map + 1 {
                let ahead: Vec<PageId> = (map..ends.min(map + window)).map(|n| space.map_page(n)).collect();
                space.pool.prefetch(&ahead);
            }
            match space.load_map(map, pages) {
                Ok(true) => map += 1,
                Err(_) if partly && map > 0 => return Ok(space),
                ended => {
                    ended?;
                    break;
                }
            }
        }
        // A first one that is blank is the caller's.
        if (1..made).contains(&map) && map * span < pages {
            let what =
                format!("it is blank, but {made} pages of the space map were made: it was emptied or overwritten");
            return Err(Error::corrupt_page(space.map_page(map), Some(SPACE_KEYSPACE), what));
        }
        if map > 0 && map < made {
            space.state.lock().beyond = Some(space.map_page(made - 1));
        }
        Ok(space)
    }

    /// Fails when a page is in use that the store has no room for: its device was cut. Writing all the same would give
    /// out pages that others have.
    pub(crate) fn refuse_cut(&self) -> Result<()> {
        let Some(page) = self.state.lock().beyond else { return Ok(()) };
        Err(Error::Mismatch(format!(
            "`data` was cut: it ends after {} pages, and page {} is in use (`salvage` saves what is left)",
            self.store.pages(),
            page.0
        )))
    }

    /// Reads map page number `map`; false when it was never written.
    fn load_map(&self, map: u64, pages: u64) -> Result<bool> {
        let id = PageId(map * self.span);
        let pin = match self.pool.load(id) {
            Ok(pin) => pin,
            Err(Error::Corrupt(Damage::Page { stored: Some(PageDamage::Unwritten), .. })) => return Ok(false),
            Err(e) => return Err(e),
        };
        {
            let page = pin.read();
            self.check_map(id, page.bytes())?;
            let bit = |p: u64| is_set(page.bytes(), p - id.0);
            let mut state = self.state.lock();
            let end = pages.min(id.0 + self.span);
            state.extend(end, bit);
            self.add_map(&mut state, map, 0, pin.clone().keep(&self.pool));
            state.beyond = (end..id.0 + self.span).rfind(|&p| bit(p)).map(PageId).or(state.beyond);
        }
        Ok(true)
    }

    fn check_map(&self, id: PageId, bytes: &[u8]) -> Result<()> {
        let first = u64::from_le_bytes(bytes[HEADER..HEADER + 8].try_into().expect("eight bytes"));
        if page::kind(bytes) != KIND_SPACE || first != id.0 || bytes[BITMAP] & 1 == 0 {
            return Err(Error::corrupt_page(id, Some(SPACE_KEYSPACE), "not the space-map page that belongs here"));
        }
        Ok(())
    }

    /// Whether the store holds no space map yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().made.is_empty()
    }

    /// These pages belong to no tree, and are not to be given out. The map says so after [`Space::allocate_fixed`], or
    /// a bootstrap.
    pub(crate) fn set_fixed(&self, ids: &[PageId]) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.fixed = ids.to_vec();
        for id in ids {
            if id.0 < state.pages && !state.is_taken(id.0) {
                state.taken[id.0 as usize / 64] |= 1 << (id.0 % 64);
                state.count_taken(&[*id]);
            }
        }
    }

    /// Whether a page is one of those.
    pub(crate) fn is_fixed(&self, id: PageId) -> bool {
        self.state.lock().fixed.contains(&id)
    }

    /// Makes the map say that they are allocated.
    pub(crate) fn allocate_fixed(&self, core: &Core) -> Result<()> {
        let fixed = self.state.lock().fixed.clone();
        let mut missing = Vec::new();
        for id in fixed {
            if !self.is_allocated(id)? {
                missing.push(id);
            }
        }
        if !missing.is_empty() {
            let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
            self.apply(core, &mut group, &missing, &[]);
            group.commit()?;
        }
        Ok(())
    }

    /// Makes the space map and the page after it, which `init` fills (the catalog's root), in one group; returns the
    /// group's end.
    pub(crate) fn bootstrap<'c>(&self, core: &'c Core, init: impl FnOnce(&mut Group<'c>) -> Result<()>) -> Result<Lsn> {
        assert!(self.is_empty(), "the space map of a store begins once");
        self.store.grow(FIRST_PAGES)?;
        let mut group = Group::begin(core, GroupKind::System, 4 * core.page_size())?;
        let mut taken = vec![PageId(0), PageId(1)];
        taken.extend(&self.state.lock().fixed);
        let (end, kept) = {
            let map = core.pool.create(PageId(0), SPACE_KEYSPACE)?;
            let kept = map.pin().keep(&self.pool);
            init(&mut group)?;
            let n = group.add_new(map);
            group.page(n).image(|b| init_map(b, PageId(0), &taken));
            (group.commit()?, kept)
        };
        let mut state = self.state.lock();
        state.extend(self.store.pages().min(self.span), |id| taken.contains(&PageId(id)));
        self.add_map(&mut state, 0, end, kept);
        Ok(end)
    }

    /// The pages of a keyspace of this name come from the region that names it.
    pub(crate) fn place(&self, keyspace: KeyspaceId, name: &str) {
        self.state.lock().place(keyspace, name);
    }

    /// Sets `n` free pages of a keyspace aside, growing the store when it has not enough. No latch may be held.
    ///
    /// Errors: the store cannot grow, or the keyspace's region is full; the log is poisoned.
    pub(crate) fn reserve<'s>(&'s self, core: &'s Core, keyspace: KeyspaceId, n: usize) -> Result<Reserved<'s>> {
        self.free_let_go();
        for attempt in 0.. {
            let zone = {
                let mut state = self.state.lock();
                if !state.pinned.is_empty() {
                    self.release_unpinned(&mut state);
                }
                let zone = state.zone_of(keyspace);
                if state.free_in(zone) >= n as u64 {
                    let ids = state.take(zone, n);
                    assert!(ids.len() == n && ids.is_sorted(), "as many pages are free as are counted");
                    return Ok(Reserved { space: self, log: &core.log, ids });
                }
                zone
            };
            if attempt == 0 {
                // Pages that the store is being told of are free in a moment.
                drop(self.trimming.lock());
            } else {
                self.grow(core, zone, n as u64)?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Pages set aside for several keyspaces at once, so many for each; those of the first come first.
    pub(crate) fn reserve_all<'s>(&'s self, core: &'s Core, wanted: &[(KeyspaceId, usize)]) -> Result<Reserved<'s>> {
        let mut all = Reserved { space: self, log: &core.log, ids: Vec::new() };
        for (keyspace, n) in wanted {
            let mut one = self.reserve(core, *keyspace, *n)?;
            all.ids.append(&mut one.ids);
        }
        Ok(all)
    }

    /// Grows the store so that `n` pages of a zone are free, and gives what is new mark pages.
    fn grow(&self, core: &Core, zone: usize, n: u64) -> Result<()> {
        match self.grow_store(core, zone, n) {
            // Better used than nothing.
            Err(Error::NoSpace(_)) if self.state.lock().let_use() => return Ok(()),
            grown => grown?,
        }
        core.lost_writes.as_ref().map_or(Ok(()), |lost| lost.cover(core, self.store.pages()))
    }

    fn grow_store(&self, core: &Core, zone: usize, n: u64) -> Result<()> {
        let _growing = self.growing.lock();
        let (covered, maps, least) = {
            let state = self.state.lock();
            let (free, zones) = (state.free_in(zone), &state.zones);
            if free >= n {
                return Ok(());
            }
            let more = (n - free) + (n / (self.span - 1) + 1);
            // A region is used to its end.
            let least = zones.reach(zone, state.pages, more).unwrap_or_else(|| zones.end_of(zone));
            if least <= state.pages {
                return Err(zones.full(zone));
            }
            (state.pages, state.maps(), least)
        };
        let most = (GROW_BYTES / self.store.page_size() as u64).max(1);
        let wanted = least + (covered / 8).clamp(16, most);
        if self.store.pages() < wanted {
            match self.store.grow(wanted).map_err(Error::from) {
                // Room of a fixed size is used to its end.
                Err(Error::NoSpace(_)) if self.store.pages() < least => self.store.grow(least)?,
                Err(Error::NoSpace(_)) => {}
                grown => grown?,
            }
        }
        let pages = self.store.pages();
        let mut map = maps;
        self.state.lock().extend(pages.min(maps * self.span), |_| false);
        while map * self.span < pages {
            let (end, kept) = self.create_map(core, map)?;
            let mut state = self.state.lock();
            state.extend(pages.min((map + 1) * self.span), |id| id == map * self.span);
            self.add_map(&mut state, map, end, kept);
            map += 1;
        }
        Ok(())
    }

    fn create_map(&self, core: &Core, map: u64) -> Result<(Lsn, KeptPage)> {
        let id = PageId(map * self.span);
        // Who grows the store does not wait for a checkpoint, which may wait for a flush, and that for the store.
        let mut group = role::with(Role::Merger, || Group::begin(core, GroupKind::System, 2 * core.page_size()))?;
        // One that is there already was cut off with what it covered.
        let page = core.pool.create(id, SPACE_KEYSPACE)?;
        let kept = page.pin().keep(&self.pool);
        let n = group.add_new(page);
        group.page(n).image(|b| init_map(b, id, &[id]));
        Ok((group.commit()?, kept))
    }

    /// Marks pages as allocated and as free: the last step of a group, after all its tree pages. After the group's
    /// commit the caller calls [`Reserved::keep`] and [`Space::freed`].
    pub(crate) fn apply<'c>(&self, core: &'c Core, group: &mut Group<'c>, alloc: &[PageId], free: &[PageId]) {
        // Bytes to change: map page, byte in the bitmap, bits to set and to clear.
        let mut bytes: BTreeMap<(u64, usize), (u8, u8)> = BTreeMap::new();
        let alloc = if core.faults().has(Mistake::AllocNotLogged) { &[] } else { alloc };
        let free = if core.faults().has(Mistake::FreeNotLogged) { &[] } else { free };
        for (ids, set) in [(alloc, true), (free, false)] {
            for id in ids {
                let (map, at) = (id.0 / self.span, id.0 % self.span);
                let entry = bytes.entry((map, BITMAP + at as usize / 8)).or_default();
                if set { entry.0 |= 1 << (at % 8) } else { entry.1 |= 1 << (at % 8) }
            }
        }
        if bytes.is_empty() {
            return;
        }
        let reserved = |state: &Allocation| alloc.iter().all(|id| state.is_taken(id.0));
        debug_assert!(reserved(&self.state.lock()), "pages are reserved before a group takes them");
        self.changes.fetch_add(1, Ordering::AcqRel);
        let (mut run, mut run_at): (Vec<u8>, (u64, usize)) = (Vec::new(), (0, 0));
        for ((map, at), (set, clear)) in bytes {
            let page = self.map_in(core, group, map);
            // In a sound database no bit of `set` is there yet and every bit of `clear` is; where damage had its way,
            // `check` names the pages.
            let old = group.bytes(page)[at];
            if run.is_empty() || (map, at) != (run_at.0, run_at.1 + run.len()) {
                self.flush_run(core, group, run_at, &run);
                (run_at, run) = ((map, at), Vec::new());
            }
            run.push((old | set) & !clear);
        }
        self.flush_run(core, group, run_at, &run);
    }

    fn flush_run<'c>(&self, core: &'c Core, group: &mut Group<'c>, at: (u64, usize), run: &[u8]) {
        if !run.is_empty() {
            let page = self.map_in(core, group, at.0);
            group.page(page).write(at.1, run);
        }
    }

    fn map_in<'c>(&self, core: &'c Core, group: &mut Group<'c>, map: u64) -> crate::page::PageNo {
        let id = PageId(map * self.span);
        if let Some(n) = group.find(id) {
            return n;
        }
        let page = core.pool.write_resident(id).expect("map pages are pinned");
        group.add(page)
    }

    /// The pages were freed by a group that is in the log: they may be given out again. No latch may be held.
    pub(crate) fn freed(&self, ids: &[PageId]) {
        self.unused(ids, true);
    }

    /// Pages that were freed, and have counted as taken so far, may be given out again; `unripe`: they were freed just
    /// now.
    ///
    /// Not as long as they are pinned, though: a commit pins its leaves before it latches them in key order. If one of
    /// them were freed and used again meanwhile for other keys, it would wait for a latch out of order, and two commits
    /// could wait for each other for ever.
    fn unused(&self, ids: &[PageId], unripe: bool) {
        let (pinned, free): (Vec<_>, Vec<_>) = ids.iter().partition(|id| self.pool.discard(**id));
        self.still_no_more(ids);
        let mut state = self.state.lock();
        if unripe {
            state.unripe.freed(ids);
        }
        state.release(&free);
        Space::note_untrimmed(&mut state, &free);
        state.pinned.extend(pinned);
    }

    fn release_unpinned(&self, state: &mut Allocation) {
        let (pinned, free) = std::mem::take(&mut state.pinned).into_iter().partition(|id| self.pool.is_pinned(*id));
        state.pinned = pinned;
        state.release(&free);
        Space::note_untrimmed(state, &free);
    }

    /// Keeps the list of pages to trim short: what falls off stays allocated in the file, no more.
    fn note_untrimmed(state: &mut Allocation, ids: &[PageId]) {
        state.untrimmed.extend_from_slice(ids);
        if state.untrimmed.len() > MOST_UNTRIMMED {
            state.untrimmed.sort_unstable();
            state.untrimmed.dedup();
            state.untrimmed.truncate(MOST_UNTRIMMED / 2);
        }
    }

    /// Whether nothing is stored in the page, and it is not reserved either.
    pub(crate) fn is_free(&self, id: PageId) -> bool {
        !self.state.lock().is_taken(id.0)
    }

    /// Pages allocated or reserved, and pages free.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.pages - state.free(), state.free())
    }

    /// Of each region that has keyspaces of its own, and of the others together: its name, the pages that it has, and
    /// how many of them are in use; none if the store has no such regions.
    pub(crate) fn zone_usage(&self) -> Vec<(String, u64, u64)> {
        let state = self.state.lock();
        let usage = |(number, zone): (usize, &Zone)| {
            let used = state.zones.pages_before(number, state.pages) - state.free_in(number);
            (zone.name.clone(), state.zones.pages_before(number, u64::MAX), used)
        };
        if state.zones.len() == 1 { Vec::new() } else { state.zones.iter().enumerate().map(usage).collect() }
    }

    /// Fails when the flash that has a keyspace's pages is worn out, or that of the pages that every change needs.
    #[inline]
    pub(crate) fn check_wear(&self, keyspace: KeyspaceId) -> Result<()> {
        match self.worn.as_ref().map_or(0, |worn| worn.load(Ordering::Acquire)) {
            0 => Ok(()),
            worn => self.refuse_worn(worn, keyspace),
        }
    }

    fn refuse_worn(&self, worn: u64, keyspace: KeyspaceId) -> Result<()> {
        let state = self.state.lock();
        let is_worn = |zone: &usize| worn >> zone & 1 == 1;
        let zone = [0, state.zone_of(keyspace)].into_iter().find(is_worn);
        zone.map_or(Ok(()), |zone| Err(state.zones.worn_out(zone)))
    }

    /// Map pages there are.
    pub(crate) fn maps(&self) -> u64 {
        self.maps.load(Ordering::Acquire)
    }

    /// Map page number `map` is there.
    fn add_map(&self, state: &mut Allocation, map: u64, made: Lsn, page: KeptPage) {
        state.add_map(map, made, page);
        self.maps.store(state.maps(), Ordering::Release);
    }

    /// Those of them that the log made before `lsn`.
    pub(crate) fn maps_by(&self, lsn: Lsn) -> u64 {
        self.state.lock().made.iter().take_while(|end| **end <= lsn).count() as u64
    }

    /// The page of map number `map`.
    pub(crate) fn map_page(&self, map: u64) -> PageId {
        PageId(map * self.span)
    }

    /// The pages covered by the `map`-th map page that it calls allocated, in ascending order, itself included.
    pub(crate) fn allocated(&self, map: u64) -> Result<Vec<PageId>> {
        let pages = self.state.lock().pages;
        let first = map * self.span;
        let page = self.pool.read(PageId(first))?;
        self.check_map(PageId(first), page.bytes())?;
        let covered = first..pages.min(first + self.span);
        Ok(covered.filter(|&p| is_set(page.bytes(), p - first)).map(PageId).collect())
    }

    /// Whether the map says that a page is allocated.
    pub(crate) fn is_allocated(&self, id: PageId) -> Result<bool> {
        let first = id.0 / self.span * self.span;
        let page = self.pool.read(PageId(first))?;
        Ok(is_set(page.bytes(), id.0 - first))
    }

    /// Past the last page that is in use.
    pub(crate) fn end_in_use(&self) -> u64 {
        self.state.lock().end_in_use(self.span)
    }
}

/// Pages that a map page of this store covers.
pub(crate) fn span(store: &dyn PageStore) -> u64 {
    let usable = store.usable_bytes(SPACE_KEYSPACE).min(store.page_size() - HEADER);
    let span = 8 * ((usable - (BITMAP - HEADER)) & !7) as u64;
    assert!(span > FIRST_PAGES && span.is_multiple_of(64), "a map page covers whole words of pages");
    span
}

/// Whether a map page says that the `n`-th page that it covers is allocated.
pub(crate) fn is_set(map: &[u8], n: u64) -> bool {
    map[BITMAP + (n / 8) as usize] >> (n % 8) & 1 == 1
}

fn init_map(bytes: &mut [u8], id: PageId, allocated: &[PageId]) {
    assert!(allocated.contains(&id) && allocated.iter().all(|page| *page >= id), "a map page covers itself first");
    bytes[HEADER..].fill(0);
    page::set_kind(bytes, KIND_SPACE);
    bytes[HEADER..HEADER + 8].copy_from_slice(&id.0.to_le_bytes());
    for bit in allocated.iter().map(|page| (page.0 - id.0) as usize) {
        bytes[BITMAP + bit / 8] |= 1 << (bit % 8);
    }
}
