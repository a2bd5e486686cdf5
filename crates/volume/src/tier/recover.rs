//! What a crash left on the fast device.
//!
//! The map on the device says what was in each slot when it was written; the journal, what was freed or became newer
//! than home up to the last sync. The slots of the scan list are read: what they hold counts, unless a record says that
//! it is out of date. What is out of date stays known as long as a slot may hold it, or a later recovery would take it
//! for current. A slot of the scan list that holds nothing whole, but held a page newer than home, keeps its claim if
//! home is older: then the page is damaged until the engine writes it again from the log, and reading it is an error,
//! never an old version.
//!
//! A torn slot may become whole again by a torn write of another page, where their bytes are the same: as a version
//! that nobody knows of any more. So such slots are blanked before anything is written ([`Tier::begin_writing`]).
//!
//! A map that was kept as a log has no scan list, and says nothing of what unrecorded occupations left in its slots. So
//! whoever keeps it another way from now on looks into all of them; and whoever begins to keep it as a log says so by a
//! map, before anything is written.

use super::Recovery;
use super::admit::TierState;
use super::layout::{BLOCK, Geometry};
use super::manager::Memory;
use super::map::Loaded;
use super::records::{Found, MapEntry, Record, Snapshot};
use super::slots::{Slot, SlotState};
use super::{MapRecovery, Tier, TierOptions};
use crate::{Lsn, PageDamage, PageId, PageIo, PageStore, ReadWhy, VolumeError, page};
use std::cell::Cell;
use varve_device::{AlignedBuf, Device, Io, read_at, write_at};
use varve_rt::{HashMap, HashSet};

/// Slots read at a time.
const BATCH: usize = 64;

/// Fills `state` with what is there; returns how many records the journal holds already, and whether map and journal no
/// longer tell all that is known of old versions: then the next sync must write a map.
pub(super) fn run(
    state: &mut TierState,
    slow: &dyn PageStore,
    fast: &dyn Device,
    loaded: Loaded,
    memories: &[Memory],
    options: &TierOptions,
) -> Result<(usize, bool), VolumeError> {
    let geometry = loaded.superblock.geometry;
    let slots = geometry.slots as usize;
    let known = loaded.map.is_some();
    let mut map = loaded.map.unwrap_or_else(|| Snapshot {
        entries: vec![MapEntry { page: None, lsn: 0, newer: false, scan: true }; slots],
        records: Vec::new(),
    });
    assert!(map.entries.len() == slots && state.slots.len() == slots, "map and table have the slots of the layout");
    let is_log = options.map_recovery == MapRecovery::Log;
    let was_log =
        map.entries.iter().all(|e| !e.scan) || loaded.journal.iter().any(|r| matches!(r, Record::Clean { .. }));
    let ways = Ways {
        // Nobody will believe what is not recorded, so nobody need look for it.
        log_only: known && is_log && map.entries.iter().all(|e| e.scan),
        all: known && !is_log && was_log,
    };
    state.to_say_log = is_log && map.entries.iter().any(|e| e.scan);
    let mut freed: Freed = HashMap::default();
    for record in &map.records {
        if let Record::Freed { slot, page, lsn } = *record {
            freed.entry(slot).or_default().push((page, lsn));
        }
    }
    let mut claims: HashMap<PageId, Slot> = HashMap::default();
    claims.extend(map.entries.iter().enumerate().filter_map(|(slot, e)| Some((e.page?, slot as Slot))));
    for record in &loaded.journal {
        supersede(&mut map.entries, record, &mut freed, &mut claims);
        apply(&mut map.entries, record, &mut freed);
    }
    let reader = Reader { slow, fast, geometry, home_reads: Cell::new(0) };
    let Looked { mut found, held, torn } = reader.look(&map.entries, &freed, ways)?;
    state.torn = torn;
    if !known {
        found = reader.newer_than_home(found)?;
    }
    for f in &found {
        // Of several versions one will count; a slot of the others that nobody looks into holds what it holds.
        if !held.contains_key(&f.slot) {
            freed.entry(f.slot).or_default().push((f.page, f.lsn));
        }
    }
    let found = newest(found);
    assert!(found.windows(2).all(|f| f[0].slot < f[1].slot), "a slot holds one version");
    let stale = stale(&found, &held, &freed);
    let renew = !stale.is_empty();
    let scan = map.entries.iter().map(|e| e.scan).collect();
    let (now, count) = (varve_rt::now().as_nanos(), loaded.journal.len());
    state.recovery = Recovery {
        seconds: 0.0,
        slots_read: held.len() as u64,
        home_reads: reader.home_reads.get(),
        records: count as u64,
        pages: found.len() as u64,
        remembered: memories.len() as u64,
    };
    found.iter().for_each(|f| state.manager.entered(f.page, now));
    state.manager.recall(memories, now);
    let manager = &mut state.manager;
    state.slots.recover(scan, loaded.journal, found, &stale, &mut |page, newer| manager.rank(page, newer, now));
    Ok(if known { (count, renew) } else { (0, true) })
}

/// Versions that a slot may hold and that do not count, up to an LSN.
type Freed = HashMap<Slot, Vec<(PageId, Lsn)>>;

/// A version recorded later counts for more than one of the same LSN: the engine writes a page again from the log under
/// the LSN that it had, and the slot of the first one may be torn.
fn supersede(entries: &mut [MapEntry], record: &Record, freed: &mut Freed, claims: &mut HashMap<PageId, Slot>) {
    let (Record::Newer { page, lsn, .. } | Record::Clean { page, lsn, .. }) = *record else { return };
    let Some(before) = claims.insert(page, record.slot()).filter(|slot| *slot != record.slot()) else { return };
    let entry = &mut entries[before as usize];
    if entry.page == Some(page) && entry.lsn <= lsn {
        freed.entry(before).or_default().push((page, entry.lsn));
        *entry = MapEntry { page: None, lsn: 0, newer: false, scan: entry.scan };
    }
}

/// What a record changes in the map.
fn apply(entries: &mut [MapEntry], record: &Record, freed: &mut Freed) {
    let slot = record.slot();
    let entry = &mut entries[slot as usize];
    let scan = entry.scan;
    match *record {
        Record::Freed { page, lsn, .. } => {
            freed.entry(slot).or_default().push((page, lsn));
            if entry.page == Some(page) && entry.lsn <= lsn {
                *entry = MapEntry { page: None, lsn: 0, newer: false, scan };
            }
        }
        // The slot was written: whatever it held before is gone.
        Record::Newer { page, lsn, .. } | Record::Clean { page, lsn, .. } => {
            freed.remove(&slot);
            *entry = MapEntry { page: Some(page), lsn, newer: matches!(record, Record::Newer { .. }), scan };
        }
    }
}

/// What the slots that are free now may hold: what was found in them, or, where nobody looked, any version of what was
/// freed.
fn stale(found: &[Found], held: &HashMap<Slot, Option<(PageId, Lsn)>>, freed: &Freed) -> Vec<Record> {
    let current: HashSet<Slot> = found.iter().map(|f| f.slot).collect();
    let looked = held.iter().filter_map(|(&slot, held)| held.map(|(page, lsn)| Record::Freed { slot, page, lsn }));
    let unseen = freed.iter().filter(|(slot, _)| !held.contains_key(slot));
    let unseen = unseen
        .flat_map(|(&slot, pages)| pages.iter().map(move |&(page, _)| Record::Freed { slot, page, lsn: Lsn::MAX }));
    let mut stale: Vec<Record> = looked.chain(unseen).filter(|r| !current.contains(&r.slot())).collect();
    stale.sort_by_key(Record::slot);
    stale
}

/// Of several versions of a page, the newest.
fn newest(found: Vec<Found>) -> Vec<Found> {
    let mut best: HashMap<PageId, Found> = HashMap::default();
    for f in found {
        let at = best.entry(f.page).or_insert(f);
        if (f.lsn, f.newer, f.slot) > (at.lsn, at.newer, at.slot) {
            *at = f;
        }
    }
    let mut found: Vec<Found> = best.into_values().collect();
    found.sort_unstable_by_key(|f| f.slot);
    found
}

/// Which slots are looked into besides those of the scan list.
#[derive(Clone, Copy)]
struct Ways {
    /// None, and not those of the list either.
    log_only: bool,
    /// All of them, and only what is recorded counts.
    all: bool,
}

/// What a look into the slots gave.
struct Looked {
    found: Vec<Found>,
    /// What each slot looked into holds, if it is a whole page.
    held: HashMap<Slot, Option<(PageId, Lsn)>>,
    /// Slots that hold parts of pages, or what would be forgotten.
    torn: Vec<Slot>,
}

struct Reader<'a> {
    slow: &'a dyn PageStore,
    fast: &'a dyn Device,
    geometry: Geometry,
    home_reads: Cell<u64>,
}

impl Reader<'_> {
    /// Takes the map at its word outside the scan list, and looks into the slots of the list.
    fn look(&self, entries: &[MapEntry], freed: &Freed, ways: Ways) -> Result<Looked, VolumeError> {
        assert!(!(ways.all && ways.log_only), "slots are looked into, or not");
        let (mut found, mut list, mut torn) = (Vec::new(), Vec::new(), Vec::new());
        let mut all_held = HashMap::default();
        for (slot, entry) in entries.iter().enumerate() {
            let slot = slot as Slot;
            // Of what a slot may hold a map can name two versions: one that may hold more is looked into.
            let crowded = freed.get(&slot).is_some_and(|versions| versions.len() > 1);
            match entry.page {
                _ if entry.scan && !ways.log_only || crowded || ways.all => list.push(slot),
                Some(page) => {
                    found.push(Found { slot, page, lsn: entry.lsn, newer: entry.newer, verified: false });
                }
                None => {}
            }
        }
        let size = self.geometry.page_size as usize;
        let mut buf = AlignedBuf::new(BATCH * size);
        for batch in list.chunks(BATCH) {
            let base = buf.as_mut_ptr();
            let reads = batch.iter().enumerate().map(|(i, &slot)| {
                // SAFETY: the parts of `buf` do not overlap and are waited for below.
                unsafe { Io::read(self.geometry.slot(slot), base.add(i * size), size) }
            });
            let mut ticket = self.fast.submit(reads.collect());
            let done: Vec<_> = (0..batch.len()).map(|i| ticket.wait(i)).collect();
            for ((done, &slot), bytes) in done.into_iter().zip(batch).zip(buf.chunks(size)) {
                done?;
                let held = whole(bytes);
                all_held.insert(slot, held);
                let entry = &entries[slot as usize];
                let stale = |(page, lsn): &(PageId, Lsn)| {
                    let current = entry.page == Some(*page) && *lsn >= entry.lsn;
                    !current && freed.get(&slot).is_some_and(|f| f.iter().any(|(p, upto)| p == page && lsn <= upto))
                };
                // Outside the scan list every occupation is recorded: another page there is one whose record came to
                // nothing.
                let listed = entry.scan && !ways.log_only && !ways.all;
                let recorded = |(page, _): &(PageId, Lsn)| listed || entry.page == Some(*page);
                let judged = self.judge(slot, entry, held.filter(|h| recorded(h) && !stale(h)))?;
                found.extend(judged);
                // Beside a claim nobody would remember what the slot holds.
                let forgotten = held.is_some() && judged.is_some_and(|f| !f.verified);
                if forgotten || held.is_none() && is_torn(bytes) {
                    torn.push(slot);
                    all_held.insert(slot, None);
                }
            }
        }
        Ok(Looked { found, held: all_held, torn })
    }

    /// What a slot of the scan list is good for, which holds `whole`.
    fn judge(&self, slot: Slot, entry: &MapEntry, whole: Option<(PageId, Lsn)>) -> Result<Option<Found>, VolumeError> {
        if let Some((page, lsn)) = whole
            && (entry.page != Some(page) || lsn >= entry.lsn)
        {
            let equal = entry.page == Some(page) && lsn == entry.lsn && !entry.newer;
            return Ok(Some(Found { slot, page, lsn, newer: !equal, verified: true }));
        }
        // The version that was there and newer than home is gone, unless it went home before.
        let MapEntry { page: Some(page), lsn, newer: true, .. } = *entry else { return Ok(None) };
        let at_home = self.home_lsn(page)?;
        Ok((at_home < Some(lsn)).then_some(Found { slot, page, lsn, newer: true, verified: false }))
    }

    /// LSN of the page at home; `None` when it has no whole version there.
    fn home_lsn(&self, page: PageId) -> Result<Option<Lsn>, VolumeError> {
        self.home_reads.set(self.home_reads.get() + 1);
        let mut buf = AlignedBuf::new(self.geometry.page_size as usize);
        // SAFETY: `buf` outlives the request, waited for below.
        let read = unsafe { PageIo::read(page, ReadWhy::Demand, buf.as_mut_ptr()) };
        let mut ticket = self.slow.submit(vec![read]);
        match ticket.wait(0) {
            Ok(_) => Ok(Some(page::lsn(&buf))),
            Err(VolumeError::Damaged { .. } | VolumeError::OutOfRange { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Without a map, what is older than home is out of date.
    fn newer_than_home(&self, found: Vec<Found>) -> Result<Vec<Found>, VolumeError> {
        let mut kept = Vec::new();
        for f in found {
            let home = self.home_lsn(f.page)?;
            if home.is_none_or(|lsn| lsn <= f.lsn) {
                kept.push(Found { newer: home != Some(f.lsn), ..f });
            }
        }
        Ok(kept)
    }
}

impl Tier {
    /// Recovery was right to believe this device: makes it ready to be written. Blanks the slots that were found torn,
    /// durably, and says by a map if it is kept as a log from now on. Nothing may be written before.
    pub(super) fn begin_writing(&self) -> Result<(), VolumeError> {
        let (torn, to_say_log) = {
            let mut state = self.state.lock();
            assert!(!state.started, "nothing was written yet");
            (std::mem::take(&mut state.torn), std::mem::take(&mut state.to_say_log))
        };
        let Some(part) = self.part() else { return Ok(()) };
        let mut bytes = AlignedBuf::new(self.page_size);
        for &slot in &torn {
            // A version that was misread, and is the only one there is, is not lost.
            read_at(&*part.device, part.geometry.slot(slot), &mut bytes)?;
            let claim = *self.state.lock().slots.entry(slot);
            if claim.state == SlotState::Free || page::verify(&bytes, claim.page).is_err() {
                write_at(&*part.device, part.geometry.slot(slot), &[0; BLOCK], false)?;
            }
        }
        if !torn.is_empty() {
            varve_device::flush(&*part.device)?;
        }
        if to_say_log { self.write_map() } else { Ok(()) }
    }
}

/// Whether a slot holds a part of a page, or of several.
fn is_torn(bytes: &[u8]) -> bool {
    page::claims(bytes) && matches!(page::verify(bytes, page::id(bytes)), Err(PageDamage::Checksum { .. }))
}

/// Page and LSN of a sound page.
fn whole(bytes: &[u8]) -> Option<(PageId, Lsn)> {
    let id = page::id(bytes);
    page::verify(bytes, id).ok().map(|()| (id, page::lsn(bytes)))
}
