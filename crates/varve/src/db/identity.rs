//! The data device's own identity: two pages that say which database it belongs to and of which generation it is.
//!
//! The log's superblock says the same; what does not agree is not of one database, or not of one time. A generation is
//! begun in three durable steps: the data device *intends* it (first page), the log's superblock says it, the data
//! device *confirms* it (second page). So the data device may be one ahead of the log, by an intention, after a crash
//! between the steps. Before an opening's generation is confirmed no page is written, so a log that was put back can
//! always be told from that crash.
//!
//! The pages lie outside of the pool and are written to the device itself, also under a tier. The space map has them as
//! allocated. Bytes: `docs/format.md`, "Identity pages".
//!
//! Invariant: the record in memory is what the next write of either page says, but that it counts as confirmed only
//! when the second page says so; `durable` never falls, nor does the generation.

mod record;

use self::record::{Opening, Record};
use super::devices::Devices;
use crate::buffer::READ_RETRIES;
use crate::error::{Damage, Error, Result};
use crate::report::{CheckReport, Unreadable};
use crate::space::Core;
use crate::space::{self, SPACE_KEYSPACE};
use crate::wal::{Birth, Companion, DbHeader, FIRST_LSN, Gap, Generation, Log, LogState, Step};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_device::{AlignedBuf, Device, DeviceError, DeviceKind, Faults, Hint, Mistake, read_at, write_at};
use varve_rt::Mutex;
use varve_volume::page;
use varve_volume::{Lsn, PageDamage, PageId, PageStore, ReadWhy, Single, VolumeError};

/// Page type of an identity page.
pub(crate) const KIND_IDENTITY: u8 = 5;
/// Where the identity pages of a new database lie.
pub(super) const PAGES: [PageId; 2] = [PageId(2), PageId(3)];
/// Pages at the beginning that are made blank on a used device.
const FIRST_BLANK: u64 = 64;
/// Bytes of a block in which a device is looked over for a database.
const BLOCK: usize = 4096;

/// The identity pages of an open database.
pub(crate) struct Identity {
    device: Arc<dyn Device>,
    page_size: usize,
    pages: [PageId; 2],
    /// What the pages say.
    now: Mutex<Record>,
    /// Whose space map is counted.
    core: Mutex<Weak<Core>>,
    /// The first page, which has intentions, was not whole when the database was opened.
    intention_lost: bool,
    /// A page that was damaged when the database was opened, after a clean close.
    found_damaged: Option<Damage>,
}

impl Identity {
    /// Gives a data device its identity: both pages say that `generation` is confirmed.
    pub(super) fn create(
        device: &Arc<dyn Device>,
        page_size: usize,
        pages: [PageId; 2],
        uuid: [u8; 16],
        (generation, durable): (Generation, Lsn),
    ) -> Result<Arc<Identity>> {
        let end = (pages[0].0.max(pages[1].0) + 1) * page_size as u64;
        if device.len() < end {
            device.set_len(end)?;
        }
        // (A database of an older release, which gets its identity now, has openings that nobody listed.)
        let openings = match generation.number {
            0 => Vec::new(),
            _ => vec![Opening { start: durable, tie: generation.tie }],
        };
        let (before, gaps) = (generation, Vec::new());
        let now = Record { uuid, generation, before, confirmed: true, durable, maps: 0, gaps, openings };
        let (device, now, core) = (device.clone(), Mutex::new(now), Mutex::default());
        let identity = Identity { device, page_size, pages, now, core, intention_lost: false, found_damaged: None };
        told(&*identity.device, page_size, pages);
        for id in pages {
            identity.write(id)?;
        }
        Ok(Arc::new(identity))
    }

    /// Reads the identity pages, and refuses a data device that does not belong to a log of this identity and
    /// generation.
    pub(super) fn open(
        device: &Arc<dyn Device>,
        page_size: usize,
        pages: [PageId; 2],
        log: ([u8; 16], Generation),
        clean: bool,
        faults: &Faults,
    ) -> Result<Arc<Identity>> {
        told(&**device, page_size, pages);
        let read = pages.map(|id| read(&**device, page_size, id));
        let mut damaged = None;
        for (id, found) in pages.iter().zip(&read) {
            match found {
                Err(Found::Damaged(why)) => {
                    let what = format!("an identity page: {why}");
                    damaged = Some(Damage::Page { page: *id, keyspace: None, what, stored: None });
                }
                Err(Found::Failed(e)) => return Err(e.clone()),
                Ok(_) => {}
            }
        }
        let newest = read.iter().flatten().max_by_key(|record| (record.generation.number, record.confirmed));
        let Some(mut newest) = newest.cloned() else {
            return Err(Error::corrupt_page(
                pages[0],
                None,
                format!(
                    "neither this nor page {} says which database `data` is of: it was emptied, cut or overwritten; \
                    put it back",
                    pages[1]
                ),
            ));
        };
        if !believed(faults, newest.generation, log.1) {
            newest.judge(log)?;
        }
        newest.durable = read.iter().flatten().map(|record| record.durable).max().unwrap_or(0);
        // The first page is written whenever the count falls.
        newest.maps = read[0].as_ref().map_or(0, |intended| intended.maps);
        let (device, now, intention_lost) = (device.clone(), Mutex::new(newest), read[0].is_err());
        let found_damaged = damaged.filter(|_| clean);
        let core = Mutex::default();
        Ok(Arc::new(Identity { device, page_size, pages, now, core, intention_lost, found_damaged }))
    }

    /// Where the pages lie.
    pub(crate) fn pages(&self) -> [PageId; 2] {
        self.pages
    }

    /// Whether a device of this generation is of the moment of a log of that one: it may be ahead only where the data
    /// device is too.
    pub(super) fn admits(&self, other: Generation, log: Generation) -> bool {
        let ahead = self.intention_lost && other.number == log.number + 1;
        other == log || other == self.now.lock().generation || ahead
    }

    /// The log was durable to here when the pages were written last.
    pub(super) fn durable(&self) -> Lsn {
        self.now.lock().durable
    }

    /// LSNs that the log left out after crashes.
    pub(super) fn gaps(&self) -> Vec<Gap> {
        self.now.lock().gaps.clone()
    }

    /// Whether `opening` wrote the log before this position. `None`: it is so long ago that nobody knows.
    pub(super) fn opened_by(&self, opening: u32, lsn: Lsn) -> Option<bool> {
        Some(self.now.lock().openings_at(lsn)?.iter().any(|one| one.short() == opening))
    }

    /// The opening that wrote last, as a backup notes it; 0: nobody knows.
    pub(super) fn opening(&self) -> u32 {
        self.now.lock().openings.last().map_or(0, Opening::short)
    }

    /// So many pages of the space map were made at least, if that is known.
    pub(super) fn maps(&self) -> u64 {
        self.now.lock().maps
    }

    /// The pages of this space map are counted from here on.
    pub(super) fn counts(&self, core: &Arc<Core>) {
        *self.core.lock() = Arc::downgrade(core);
    }

    /// Notes, durably, that no more than `maps` pages of the space map are left: those after them are about to be cut
    /// off.
    pub(super) fn maps_are_cut(&self, maps: u64) -> Result<()> {
        {
            let mut now = self.now.lock();
            if now.maps <= maps {
                return Ok(());
            }
            now.maps = maps;
        }
        self.write(self.pages[0])
    }

    /// Notes, durably, that the log reaches `end`, before recovery writes pages with all that is in it: were the log's
    /// end lost after that, its LSNs would be given out again.
    pub(super) fn reached(&self, end: Lsn) -> Result<()> {
        {
            let mut now = self.now.lock();
            if now.durable >= end {
                return Ok(());
            }
            now.durable = end;
        }
        // The other page stays whole.
        self.write(self.pages[0])
    }

    /// Tells `report` what is wrong with the pages.
    pub(super) fn check(&self, report: &mut CheckReport) {
        let (now, before) = (self.now.lock(), report.damages.len());
        for id in self.pages {
            let damage = match read(&*self.device, self.page_size, id) {
                Ok(record) if record.uuid == now.uuid && record.generation == now.generation => continue,
                // A crash left the generation intended here, not confirmed there; the next opening does that.
                Ok(record) if record.uuid == now.uuid && !now.confirmed && record.generation == now.before => continue,
                Ok(found) => format!("an identity page of another database or time ({found}; it should be {})", *now),
                Err(Found::Damaged(why)) => format!("an identity page: {why}"),
                Err(Found::Failed(error)) => {
                    report.unreadable.push(Unreadable { page: id, keyspace: SPACE_KEYSPACE, error });
                    continue;
                }
            };
            report.damages.push(Damage::Page { page: id, keyspace: None, what: damage, stored: None });
        }
        // What an opening for writing mended is told of as long as it is open.
        if report.damages.len() == before {
            report.damages.extend(self.found_damaged.clone());
        }
    }

    fn write(&self, id: PageId) -> Result<()> {
        let record = self.now.lock().clone();
        self.write_record(id, &record)
    }

    fn write_record(&self, id: PageId, record: &Record) -> Result<()> {
        let bytes = record.encode(id, self.page_size);
        debug_assert_eq!(Record::decode(&bytes).as_ref(), Some(record), "an identity that is written can be read");
        Ok(write_at(&*self.device, id.0 * self.page_size as u64, &bytes, true)?)
    }
}

impl Companion for Identity {
    fn opens(&self, gap: Gap, tie: u64) {
        self.now.lock().opens(gap, tie);
    }

    fn intend(&self, next: Generation, before: Generation, durable: Lsn) -> Result<()> {
        {
            let counted = self.core.lock().upgrade().map(|core| core.space.maps_by(durable));
            let mut now = self.now.lock();
            assert!(next.number > before.number, "generations count up");
            let (durable, maps) = (durable.max(now.durable), counted.unwrap_or(now.maps));
            *now = Record { generation: next, before, confirmed: false, durable, maps, ..now.clone() };
        }
        self.write(self.pages[0])
    }

    fn confirm(&self) -> Result<()> {
        let confirmed = Record { confirmed: true, ..self.now.lock().clone() };
        self.write_record(self.pages[1], &confirmed)?;
        // Not before: who checks the pages meanwhile finds the generation before in the second one.
        self.now.lock().confirmed = true;
        Ok(())
    }
}

/// Whether a device is taken for one of the log's moment by mistake.
pub(super) fn believed(faults: &Faults, device: Generation, log: Generation) -> bool {
    let newer = device.number > log.number;
    faults.has(Mistake::IdentityNotCompared) || newer && faults.has(Mistake::OlderSuperblockBelieved)
}

fn show(uuid: &[u8; 16]) -> String {
    uuid[..4].iter().map(|b| format!("{b:02x}")).collect()
}

/// Why there is no record.
enum Found {
    Damaged(String),
    Failed(Error),
}

/// Tells a device which of its pages say what it belongs to.
fn told(device: &dyn Device, page_size: usize, pages: [PageId; 2]) {
    for PageId(n) in pages {
        let at = n.saturating_mul(page_size as u64);
        device.hint(at..at.saturating_add(page_size as u64), Hint::Identity);
    }
}

fn read(device: &dyn Device, page_size: usize, id: PageId) -> std::result::Result<Record, Found> {
    let at = id.0.saturating_mul(page_size as u64);
    if at.saturating_add(page_size as u64) > device.len() {
        return Err(Found::Damaged(format!("it lies past the end of `data` ({} bytes): it was cut", device.len())));
    }
    let mut bytes = AlignedBuf::new(page_size);
    read_patiently(device, at, &mut bytes).map_err(|e| Found::Failed(e.into()))?;
    match page::verify(&bytes, id) {
        Ok(()) => Record::decode(&bytes)
            .ok_or_else(|| Found::Damaged("it is a page of another kind, or its numbers are impossible".into())),
        Err(PageDamage::NewerVersion { found }) => {
            let supported = page::VERSION.into();
            Err(Found::Failed(Error::Version { what: "page", found: found.into(), supported }))
        }
        Err(damage) => Err(Found::Damaged(damage.to_string())),
    }
}

/// Reads, and again while the error says that it may help, as often as the pool does.
fn read_patiently(device: &dyn Device, at: u64, bytes: &mut [u8]) -> std::result::Result<(), DeviceError> {
    let mut done = read_at(device, at, bytes);
    for tries in 1..=READ_RETRIES {
        if !done.as_ref().is_err_and(DeviceError::is_retryable) || varve_rt::dying() {
            break;
        }
        varve_rt::sleep(Duration::from_millis(1 << tries));
        done = read_at(device, at, bytes);
    }
    done
}

/// The identity of a data device whose page size nobody knows; of those of older releases nothing is known.
pub(super) fn owner(device: &dyn Device) -> Option<[u8; 16]> {
    let mut read = [4096, 8192, 16384].into_iter().flat_map(|size| PAGES.map(|id| read(device, size, id)));
    read.find_map(|record| Some(record.ok()?.uuid))
}

/// Whether the beginning of a device looks like pages of a database.
pub(super) fn holds_pages(device: &dyn Device) -> Result<bool> {
    let mut head = AlignedBuf::new(BLOCK);
    // The first pages of a database, for each size of a page.
    let places = [4096, 8192, 16384, 32768].into_iter().flat_map(|size| (0..4).map(move |page| page * size));
    let mut places: Vec<u64> = places.filter(|at| at + BLOCK as u64 <= device.len()).collect();
    places.sort_unstable();
    places.dedup();
    for at in places {
        read_at(device, at, &mut head)?;
        if page::claims(&head) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a data device ready for a new database: blank as far as an opening would look at what a former one left, with
/// an identity of its own.
pub(super) fn prepare(
    device: &Arc<dyn Device>,
    header: &DbHeader,
    pages: [PageId; 2],
    faults: &Faults,
) -> Result<(Arc<Identity>, Birth)> {
    let page_size = header.page_size as usize;
    if !faults.has(Mistake::UsedDeviceKept) {
        blank(device, (page_size, header.room.into()))?;
    }
    let generation = Generation::first();
    let identity = Identity::create(device, page_size, pages, header.uuid, (generation, 0))?;
    Ok((identity, Birth { creating: false, generation, identity: Some(pages) }))
}

/// What can be cut is cut; elsewhere the first pages become zeros, and the places of the space map.
pub(super) fn blank(device: &Arc<dyn Device>, (page_size, room): (usize, usize)) -> Result<()> {
    if device.info().kind != DeviceKind::Block && device.set_len(0).is_ok() {
        return Ok(());
    }
    let store = Single::with_room(device.clone(), page_size, room)?;
    let (span, pages, zeros) = (space::span(&*store), store.pages(), AlignedBuf::new(page_size));
    for page in (0..FIRST_BLANK.min(pages)).chain((span..pages).step_by(span as usize)) {
        write_at(&**device, page * page_size as u64, &zeros, false)?;
    }
    Ok(varve_device::flush(&**device)?)
}

/// The identity of the data device that belongs to a log; none in a database of an older release.
pub(super) fn find(device: &Arc<dyn Device>, log: &Log, state: &LogState) -> Result<Option<Arc<Identity>>> {
    let page_size = state.header.page_size as usize;
    let Some(pages) = state.identity else {
        // Older releases made the first group at the first opening, if creating was cut short.
        let new = !state.clean && state.redo == FIRST_LSN && !holds_pages(&**device)?;
        return match new && matches!(log.scan(FIRST_LSN).next_group()?, Step::End(_)) {
            true => Err(Error::Unfinished(device.info().name.to_string())),
            false => Ok(None),
        };
    };
    let says = (state.header.uuid, state.generation);
    let identity = Identity::open(device, page_size, pages, says, state.clean, log.faults())?;
    log.accompany(identity.clone());
    log.skipped_before(identity.gaps());
    Ok(Some(identity))
}

/// Whether the data device says that it is of another database than the log, whose pages may be of another size.
pub(super) fn is_foreign(device: &Arc<dyn Device>, state: &LogState) -> bool {
    let pages = state.identity.unwrap_or(PAGES);
    let records = pages.map(|id| read(&**device, state.header.page_size as usize, id));
    let mut whole = records.iter().flatten().peekable();
    match whole.peek() {
        Some(_) => whole.all(|record| record.uuid != state.header.uuid),
        None => owner(&**device).is_some_and(|uuid| uuid != state.header.uuid),
    }
}

/// Gives a database of an older release its identity; tells whether it did. Redo begins at the log's end, so that
/// nothing that may be replayed again changes a free page. Pages first, then the superblock that names them, then the
/// space map: a crash before the last of these is made good by the next opening.
pub(super) fn settle(
    core: &Arc<Core>,
    devices: &Devices,
    state: &LogState,
    identity: &mut Option<Arc<Identity>>,
) -> Result<bool> {
    let new = identity.is_none();
    if new {
        let reserved = core.space.reserve(core, SPACE_KEYSPACE, 2)?;
        let pages = [reserved.ids()[0], reserved.ids()[1]];
        if devices.parts.iter().count() > 1 {
            // An old copy of these pages must not come home later.
            core.store.discard(&pages)?;
            core.store.sync()?;
        }
        core.log.wait_durable(core.log.end_lsn())?;
        let first = (Generation::default(), 0);
        let made = Identity::create(devices.data()?, core.page_size(), pages, state.header.uuid, first)?;
        core.log.adopt(pages, made.clone())?;
        core.space.set_fixed(&pages);
        reserved.keep();
        *identity = Some(made);
    }
    core.space.allocate_fixed(core)?;
    Ok(new)
}

/// What a backup has in place of an identity page.
pub(super) fn place_holder(page_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; page_size];
    page::set_kind(&mut bytes, KIND_IDENTITY);
    bytes
}

/// The error of a log that is blank: there is no database, or the data device knows better.
pub(super) fn explain(error: Error, data: &dyn Device) -> Error {
    match (&error, holds_pages(data)) {
        (Error::NoDatabase(_), Ok(true)) => Error::Corrupt(Damage::Superblock(
            "S9: both are blank or gone, but `data` holds pages of a database: the log was emptied or cut, or is \
            another file"
                .into(),
        )),
        _ => error,
    }
}

/// Fails when the first page is blank: nothing has to be redone that could make it.
pub(super) fn refuse_blank_map(store: &dyn PageStore) -> Result<()> {
    let mut bytes = AlignedBuf::new(store.page_size());
    match varve_volume::read_pages(store, PageId(0), ReadWhy::Demand, &mut bytes).remove(0) {
        Err(VolumeError::Damaged { damage: PageDamage::Unwritten, .. } | VolumeError::OutOfRange { .. }) => {
            Err(blank_map())
        }
        // Another damage is named when the page is needed.
        _ => Ok(()),
    }
}

/// The error of a data device without a space map.
pub(super) fn blank_map() -> Error {
    let what = "the space map is blank, though the log is of a database in use: `data` was emptied or overwritten; put it back";
    Error::corrupt_page(PageId(0), Some(SPACE_KEYSPACE), what)
}
