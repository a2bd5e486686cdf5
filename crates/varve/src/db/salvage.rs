//! Salvage: every row that intact pages hold, of a database that need not be able to open. Writes nothing.
//!
//! Pages are read one after another, not through their indexes, so a damaged inner node costs nothing and a damaged
//! leaf its own rows. The log is redone on the pages in memory, as far as it can be read: what a recovery would have
//! brought back is in. The space map tells leaves from what pages held before they were freed; the catalog gives the
//! names. Of LSM keyspaces every block is read that is whole (`segments`). A commit that was decided and applied in
//! part is in as a whole (`decided`). Memory: the pages that the log changes, what it has of LSM keyspaces, and the
//! keys of such commits.

mod decided;
mod segments;

use super::catalog::{CATALOG, CATALOG_ROOT, Entry, Record};
use super::devices::{self, Devices};
use super::offline::read_page;
use super::options::Options;
use super::patch::{Outcome, Window};
use super::{identity, open, volume};
use crate::btree::node::Node;
use crate::btree::{KIND_LEAF, LeafView};
use crate::error::{Error, Result};
use crate::index;
use crate::rows::{OverflowRef, ValueRef, overflow};
use crate::space::{self, KIND_SPACE};
use crate::txn::UNFINISHED;
use crate::wal::{Generation, Log, Step};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use varve_device::AlignedBuf;
use varve_rt::{HashMap, HashSet};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, PageDamage, PageId, PageStore, ReadWhy, Single, VolumeError};

/// A row found.
#[derive(Debug)]
pub struct SalvagedRow<'a> {
    /// Name of its keyspace; `keyspace-N` when the catalog's entry is lost.
    pub keyspace: &'a str,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// What was found, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Bytes of a page.
    pub page_size: usize,
    /// Pages looked at.
    pub pages: u64,
    /// Rows found, by keyspace.
    pub rows: BTreeMap<String, u64>,
    /// Pages in use whose bytes are not what was written, and why. What they held is lost.
    pub damaged: Vec<(PageId, String)>,
    /// Pages that the log goes on from in a version they are not in: their rows may be old ones.
    pub stale: Vec<(PageId, String)>,
    /// Keyspace and key of rows whose long value is not whole.
    pub without_value: Vec<(String, Vec<u8>)>,
    /// Large commits that had been decided and not all applied: their rows are here as they wrote them.
    pub finished: u64,
    /// What else was wrong, and what it means.
    pub notes: Vec<String>,
}

impl SalvageReport {
    /// Whether nothing was missing or wrong.
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.stale.is_empty() && self.without_value.is_empty() && self.notes.is_empty()
    }
}

/// Gets a page in use, or why it is damaged.
type EachPage<'a> = dyn FnMut(PageId, std::result::Result<&[u8], String>) -> Result<()> + 'a;

/// Pages read together.
const BATCH: u64 = 64;
/// Bytes of log groups redone together.
const WINDOW: usize = 16 << 20;

/// Gives every row of a damaged database's intact pages to `each`, in no order. The database must not be open. What
/// lay on a drive of its array that is not there, or empty, is missed; the report says so.
///
/// # Errors
/// `NoDatabase`, `InUse`, `NotBuilt`; `Mismatch` when nothing there is a database's; what `each` returns; device errors
/// other than of single pages.
pub fn salvage(dir: impl AsRef<Path>, each: &mut dyn FnMut(SalvagedRow<'_>) -> Result<()>) -> Result<SalvageReport> {
    salvage_with(dir, Options::default(), each)
}

/// [`salvage`] of a database that lies on what only the program can open: native flash, by [`Options::flash`].
///
/// # Errors
/// As [`salvage`].
pub fn salvage_with(
    dir: impl AsRef<Path>,
    options: Options,
    each: &mut dyn FnMut(SalvagedRow<'_>) -> Result<()>,
) -> Result<SalvageReport> {
    let options = Options { read_only: true, without_drive: true, ..options };
    let open = devices::open_to_salvage(dir.as_ref(), &options)?;
    let missing: Vec<String> = open.devices.missing.iter().map(usize::to_string).collect();
    let mut report = salvage_on(&open.devices, each)?;
    if !missing.is_empty() {
        let what = format!("of the array, drive {} is missing, and the pages on it with it", missing.join(" and "));
        report.notes.insert(0, what);
    }
    Ok(report)
}

/// [`salvage`] of devices.
///
/// # Errors
/// As [`salvage`].
pub fn salvage_on(devices: &Devices, each: &mut dyn FnMut(SalvagedRow<'_>) -> Result<()>) -> Result<SalvageReport> {
    let mut report = SalvageReport::default();
    let view = View::open(devices, &mut report)?;
    // All of the log was there, and all devices: no page is newer than what was redone, or older.
    let current = report.is_whole();
    report.page_size = view.store.page_size();
    let map = view.space_map(&mut report)?;
    if let Some((first, pages)) = map.in_use_from(view.store.pages()) {
        let ends = view.store.pages();
        report.notes.push(format!(
            "the data ends at page {ends}: {pages} pages in use behind it, from page {first} on, are lost, and what \
             they held"
        ));
    }
    let names = view.names(&map, &mut report)?;
    let gone = view.former_leaves(&names, &mut report)?;
    let lsm = view.lsm_keyspaces(&map, &names)?;
    let mut found_segments = segments::Found::default();
    let decided = view.decided(&names, current, &mut report)?;
    let mut rows = Rows { view: &view, names, decided, report: &mut report, each };
    view.scan(&map, &mut |id, found| match found {
        _ if gone.contains(&id) => Ok(()),
        Ok(bytes) if lsm.contains(&page::keyspace(bytes)) => {
            if index::salvage::is_segment(bytes) {
                found_segments.page(page::keyspace(bytes), id);
            }
            Ok(())
        }
        Ok(bytes) => rows.page(id, bytes),
        Err(why) => {
            rows.report.damaged.push((id, why));
            Ok(())
        }
    })?;
    rows.segments(&map, &lsm, found_segments)?;
    rows.of_decided()?;
    report.pages = view.store.pages();
    Ok(report)
}

/// The pages as they are on the devices, and those that the log changes.
struct View {
    store: Arc<dyn PageStore>,
    /// Pages as the log leaves them.
    redone: HashMap<PageId, Vec<u8>>,
    /// What the log has of LSM keyspaces.
    records: segments::Records,
}

/// Which pages are in use; a page that nobody can tell of is.
struct SpaceMap {
    span: u64,
    /// Map pages by number, where they are whole.
    maps: Vec<Option<Vec<u8>>>,
}

impl SpaceMap {
    fn in_use(&self, id: PageId) -> bool {
        match self.maps.get((id.0 / self.span) as usize) {
            Some(Some(map)) => space::is_set(map, id.0 % self.span),
            _ => true,
        }
    }

    /// The first page in use at or behind `end`, and how many there are, as far as the map pages before it tell.
    fn in_use_from(&self, end: u64) -> Option<(u64, u64)> {
        let told = self.maps.len() as u64 * self.span;
        let whole = |id: &u64| self.maps[(id / self.span) as usize].is_some();
        let mut behind = (end..told).filter(whole).filter(|id| self.in_use(PageId(*id)));
        behind.next().map(|first| (first, 1 + behind.count() as u64))
    }
}

impl View {
    fn open(devices: &Devices, report: &mut SalvageReport) -> Result<View> {
        let options = Options { read_only: true, ..Options::default() };
        let (log, state) = match Log::look(devices.log.clone(), open::restored_log_config(64 << 20), true) {
            Ok(opened) => opened,
            // Another build finds all of it.
            Err(e @ Error::NotBuilt { .. }) => return Err(e),
            Err(e) => {
                return View::without_log(devices, report, format!("cannot be used, what only it held is lost: {e}"));
            }
        };
        if devices.data().is_ok_and(|data| identity::is_foreign(data, &state)) {
            let why = "is of another database and was not used: what is found is of `data`".into();
            return View::without_log(devices, report, why);
        }
        let page_size = state.header.page_size as usize;
        // A crash may have left it one ahead; whether the data device is too does not matter here.
        let admits = |fast: Generation| matches!(fast.number.checked_sub(state.generation.number), Some(0 | 1));
        let store: Arc<dyn PageStore> = match volume::open(devices, (&log, &state), &admits, &options) {
            Ok(volume) => volume.store,
            Err(e) => {
                report
                    .notes
                    .push(format!("the fast device cannot be used, pages that were newer there are old ones: {e}"));
                Single::with_room(devices.data()?.clone(), page_size, state.header.room.into())?
            }
        };
        let mut view = View { store, redone: HashMap::default(), records: segments::Records::new() };
        let data = devices.data().ok();
        if let Some(Err(e @ Error::Mismatch(_))) = data.map(|data| identity::find(data, &log, &state)) {
            report.notes.push(format!("{e}; rows may be of different times"));
        }
        if !state.clean {
            view.redo(&log, state.redo, report)?;
        }
        Ok(view)
    }

    /// The pages of the data device alone, whose size is found out.
    fn without_log(devices: &Devices, report: &mut SalvageReport, why: String) -> Result<View> {
        report.notes.push(format!("the log {why}"));
        let store = Single::new(devices.data()?.clone(), guess_page_size(devices)?)?;
        Ok(View { store, redone: HashMap::default(), records: segments::Records::new() })
    }

    fn redo(&mut self, log: &Log, from: varve_volume::Lsn, report: &mut SalvageReport) -> Result<()> {
        let (mut reader, mut window) = (log.scan(from), Window::default());
        let mut stale: BTreeMap<PageId, String> = BTreeMap::new();
        loop {
            let ended = match reader.next_group() {
                Ok(Step::Group(group)) => {
                    let page_size = self.store.page_size();
                    segments::take(&mut self.records, (group.start, group.end), group.body, page_size);
                    window.push(group.start, group.end, group.body.to_vec());
                    false
                }
                Ok(Step::End(_)) => true,
                Err(Error::Corrupt(damage)) => {
                    report.notes.push(format!("the log is damaged, what lies behind is lost: {damage}"));
                    true
                }
                Err(e) => return Err(e),
            };
            if ended || window.bytes() >= WINDOW {
                let (store, redone) = (self.store.clone(), &self.redone);
                let mut changed = Vec::new();
                window.apply(
                    store.page_size(),
                    |id| redone.get(&id).map_or_else(|| read_page(&*store, id), |page| Ok(Some(page.clone()))),
                    |id, outcome| {
                        match outcome {
                            Outcome::Unchanged => {}
                            Outcome::Changed(bytes) => {
                                stale.remove(&id);
                                changed.push((id, bytes));
                            }
                            Outcome::Lost(why) => drop(stale.insert(id, why)),
                        }
                        Ok(())
                    },
                )?;
                self.redone.extend(changed);
            }
            if ended {
                report.stale.extend(stale);
                return Ok(());
            }
        }
    }

    /// A page, if it is whole.
    fn page(&self, id: PageId) -> Result<Option<Vec<u8>>> {
        match self.redone.get(&id) {
            Some(bytes) => Ok(Some(bytes.clone())),
            None => read_page(&*self.store, id),
        }
    }

    fn space_map(&self, report: &mut SalvageReport) -> Result<SpaceMap> {
        let span = space::span(&*self.store);
        let mut map = SpaceMap { span, maps: Vec::new() };
        for first in (0..self.store.pages()).step_by(span as usize) {
            let page = self.page(PageId(first))?.filter(|b| page::kind(b) == KIND_SPACE);
            if page.is_none() {
                report.notes.push(format!(
                    "space-map page {first} is lost: of the {span} pages after it, rows deleted long ago may come back"
                ));
            }
            map.maps.push(page);
        }
        Ok(map)
    }

    /// The catalog: through its tree, else from whichever of its leaves is whole.
    fn names(&self, map: &SpaceMap, report: &mut SalvageReport) -> Result<Names> {
        let mut names =
            Names { known: BTreeMap::new(), formers: Vec::new(), unfinished: BTreeMap::new(), complete: true };
        let mut todo = vec![CATALOG_ROOT];
        let mut pages = 0;
        while let Some(id) = todo.pop() {
            pages += 1;
            let bytes = self.page(id)?;
            let node = bytes.as_deref().filter(|b| page::keyspace(b) == CATALOG).and_then(|b| Node::parse(b).ok());
            names.complete &= match node {
                Some(node) if pages <= self.store.pages() => names.node(&node, &mut todo),
                _ => false,
            };
        }
        if !names.complete {
            self.scan(map, &mut |_, found| {
                if let Ok(bytes) = found
                    && page::kind(bytes) == KIND_LEAF
                    && page::keyspace(bytes) == CATALOG
                    && let Ok(node) = Node::parse(bytes)
                {
                    names.node(&node, &mut Vec::new());
                }
                Ok(())
            })?;
            report.notes.push(
                "the catalog is damaged: keyspaces without a name are called keyspace-N, dropped ones may come back"
                    .into(),
            );
        }
        names.mark_replaced();
        Ok(names)
    }

    /// The leaves of trees that left their keyspaces, whose pages are not all free yet.
    fn former_leaves(&self, names: &Names, report: &mut SalvageReport) -> Result<HashSet<PageId>> {
        let mut leaves = HashSet::default();
        for (keyspace, root) in &names.formers {
            let mut todo = vec![(*root, None)];
            while let Some((id, level)) = todo.pop() {
                if level == Some(0) {
                    leaves.insert(id);
                    continue;
                }
                let bytes = self.page(id)?;
                let node =
                    bytes.as_deref().filter(|b| page::keyspace(b) == *keyspace).and_then(|b| Node::parse(b).ok());
                let node = node.filter(|node| level.is_none_or(|level| level == node.level()));
                let children =
                    node.map(|n| (0..=n.count()).map(|i| n.child(i)).collect::<std::result::Result<Vec<_>, _>>());
                match (node, children) {
                    (Some(node), _) if node.level() == 0 => drop(leaves.insert(id)),
                    (Some(node), Some(Ok(children))) => {
                        todo.extend(children.into_iter().map(|child| (PageId(child), Some(node.level() - 1))));
                    }
                    _ => report.notes.push(format!("page {} is damaged: rows that were deleted may come back", id.0)),
                }
            }
        }
        Ok(leaves)
    }

    /// Every page in use, or why it is damaged.
    fn scan(&self, map: &SpaceMap, each: &mut EachPage<'_>) -> Result<()> {
        let size = self.store.page_size();
        let mut bytes = AlignedBuf::new(BATCH as usize * size);
        for first in (0..self.store.pages()).step_by(BATCH as usize) {
            let n = BATCH.min(self.store.pages() - first) as usize;
            let read = varve_volume::read_pages(&*self.store, PageId(first), ReadWhy::Prefetch, &mut bytes[..n * size]);
            for (i, read) in read.into_iter().enumerate() {
                let id = PageId(first + i as u64);
                if !map.in_use(id) {
                    continue;
                }
                match (self.redone.get(&id), read) {
                    (Some(bytes), _) => each(id, Ok(bytes))?,
                    (None, Ok(_)) => each(id, Ok(&bytes[i * size..(i + 1) * size]))?,
                    // Nothing is lost with a page of which nobody knows that it was ever in use.
                    (None, Err(VolumeError::Damaged { damage: PageDamage::Unwritten, .. }))
                        if map.maps[(id.0 / map.span) as usize].is_none() => {}
                    (None, Err(e)) => each(id, Err(e.to_string()))?,
                }
            }
        }
        Ok(())
    }

    /// A long value, if all of it is whole.
    fn value(&self, keyspace: KeyspaceId, r: &OverflowRef) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let whole = self.parts(keyspace, r, &mut |part| {
            value.extend_from_slice(part);
            Ok(true)
        })?;
        Ok(whole.then_some(value))
    }

    /// Hands the parts of a long value to `each`, in order, until it says that it wants no more; whether all of it was
    /// whole, and wanted.
    fn parts(
        &self,
        keyspace: KeyspaceId,
        r: &OverflowRef,
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let room = overflow::room(self.store.usable_bytes(keyspace).min(self.store.page_size() - HEADER));
        if r.len > self.store.pages().saturating_mul(room as u64) {
            return Ok(false);
        }
        let (mut done, mut next, mut number) = (0, r.head, 0);
        while done < r.len {
            let Some(bytes) = self.page(next)? else { return Ok(false) };
            let Some((part, after)) = overflow::part(&bytes, keyspace, r, number, room) else { return Ok(false) };
            if !each(part)? {
                return Ok(false);
            }
            done += part.len() as u64;
            (next, number) = (after, number + 1);
        }
        Ok(true)
    }
}

struct Names {
    known: BTreeMap<KeyspaceId, Entry>,
    /// Rows that left a keyspace: the roots of their trees.
    formers: Vec<(KeyspaceId, PageId)>,
    /// Commits that were decided and are being applied, a piece at a time: where their writes are, by the row's key.
    unfinished: BTreeMap<Vec<u8>, OverflowRef>,
    complete: bool,
}

impl Names {
    /// Takes up a node of the catalog; whether all of it could be read.
    fn node(&mut self, node: &Node<'_>, children: &mut Vec<PageId>) -> bool {
        if node.level() > 0 {
            return (0..=node.count()).all(|i| node.child(i).map(|id| children.push(PageId(id))).is_ok());
        }
        let leaf = LeafView::new(*node, PageId(0));
        (0..node.count()).all(|i| {
            let (Ok(key), Ok(value)) = (node.key(i), leaf.value(i)) else { return false };
            let value = match value {
                // Of the two rows of such a commit the writes are the one that is long.
                ValueRef::Overflow(writes) if key.starts_with(&UNFINISHED) => {
                    self.unfinished.insert(key, writes);
                    return true;
                }
                ValueRef::Inline(_) if key.starts_with(&UNFINISHED) => return true,
                ValueRef::Inline(value) => value,
                ValueRef::Overflow(_) => return false,
            };
            match Record::decode(&key, value) {
                Ok(Record::Keyspace(entry)) => drop(self.known.insert(entry.id, entry)),
                Ok(Record::Former(keyspace, root)) => self.formers.push((keyspace, root)),
                Err(_) => return false,
            }
            true
        })
    }

    /// Of two keyspaces with one name the one with the lower number was being replaced by the other.
    fn mark_replaced(&mut self) {
        let mut newer: HashSet<String> = HashSet::default();
        for entry in self.known.values_mut().rev().filter(|entry| !entry.dropping) {
            entry.dropping = !newer.insert(entry.name.clone());
        }
    }

    /// What a keyspace's rows are exported under; `None`: they are not wanted.
    fn of(&self, id: KeyspaceId) -> Option<String> {
        match self.known.get(&id) {
            Some(entry) => (!entry.dropping).then(|| entry.name.clone()),
            None => (!self.complete).then(|| format!("keyspace-{}", id.0)),
        }
    }
}

struct Rows<'a> {
    view: &'a View,
    names: Names,
    decided: decided::Decided,
    report: &'a mut SalvageReport,
    each: &'a mut dyn FnMut(SalvagedRow<'_>) -> Result<()>,
}

impl Rows<'_> {
    fn page(&mut self, id: PageId, bytes: &[u8]) -> Result<()> {
        let keyspace = page::keyspace(bytes);
        if keyspace == CATALOG || !index::salvage::has_rows(bytes) {
            return Ok(());
        }
        let Some(name) = self.names.of(keyspace) else { return Ok(()) };
        index::salvage::rows(bytes, &mut |found| match found {
            Ok((key, value)) => self.row(&name, keyspace, key, value),
            Err(damage) => {
                self.report.damaged.push((id, damage.0.to_string()));
                Ok(())
            }
        })
    }

    /// A row that a page holds.
    fn row(&mut self, name: &str, keyspace: KeyspaceId, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        if self.decided.wrote(keyspace, key) {
            return Ok(());
        }
        self.give(name, keyspace, key, value)
    }

    fn give(&mut self, name: &str, keyspace: KeyspaceId, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        let long;
        let value = match value {
            ValueRef::Inline(value) => value,
            ValueRef::Overflow(r) => match self.view.value(keyspace, &r)? {
                Some(value) => {
                    long = value;
                    &long
                }
                None => {
                    self.report.without_value.push((name.to_string(), key.to_vec()));
                    return Ok(());
                }
            },
        };
        *self.report.rows.entry(name.to_string()).or_default() += 1;
        (self.each)(SalvagedRow { keyspace: name, key, value })
    }
}

/// The page size with which the first pages are whole.
fn guess_page_size(devices: &Devices) -> Result<usize> {
    let sizes = [4096, 8192, 16384, 32768];
    let whole = |size: usize| -> Result<usize> {
        let store = Single::new(devices.data()?.clone(), size)?;
        let mut whole = 0;
        for id in 0..store.pages().min(256) {
            whole += usize::from(read_page(&*store, PageId(id))?.is_some());
        }
        Ok(whole)
    };
    let found = sizes.into_iter().map(|size| Ok((whole(size)?, size))).collect::<Result<Vec<_>>>()?;
    match found.into_iter().max_by_key(|(whole, size)| (*whole, std::cmp::Reverse(*size))) {
        Some((whole, size)) if whole > 0 => Ok(size),
        _ => Err(Error::Mismatch(
            "neither the log nor the first pages of `data` are a database's, so nothing can be salvaged (are the two \
             swapped?)"
                .into(),
        )),
    }
}
