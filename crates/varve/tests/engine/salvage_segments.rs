//! Salvage of LSM keyspaces: every row of the blocks that are whole is found, and what is not found is told of.

use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{Db, Devices, Durability, KeyspaceKind, Layout, LsmOptions, Options, SalvageReport};
use varve_device::{AlignedBuf, Device, read_at, write_at};
use varve_models::MemDevice;
use varve_rt::Rng;

const PAGE: u64 = 4096;
const KIND_LEAF: u8 = 2;
const KIND_SEGMENT: u8 = 9;

fn options() -> Options {
    Options { cache_bytes: 8 << 20, log_max_bytes: 64 << 20, ..Options::default() }
}

/// Of each key all that it ever was, the present last; `None`: it was deleted.
type Histories = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

struct Built {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
    rows: Histories,
}

fn fork(device: &MemDevice) -> Arc<MemDevice> {
    let copy = MemDevice::new(device.len());
    let mut bytes = AlignedBuf::new(device.len() as usize);
    read_at(device, 0, &mut bytes).unwrap();
    write_at(&*copy, 0, &bytes, true).unwrap();
    copy
}

impl Built {
    /// Rows written, overwritten, deleted one by one and by ranges, on several levels; closed, or left with the last
    /// writes in the log only.
    fn new(closed: bool) -> Built {
        let (data, log) = (MemDevice::new(0), MemDevice::new(0));
        let layout = Layout { page_size: PAGE as usize, log_bytes: 4 << 20, ..Layout::default() };
        let db = Db::create_on(Devices::new(data.clone(), log.clone()), &layout, options()).unwrap();
        let mut lsm = LsmOptions::default();
        [("memtable", "64K"), ("segment", "64K"), ("level1", "64K"), ("multiplier", "2")]
            .iter()
            .for_each(|(name, value)| lsm.set(name, value).unwrap());
        let space = db.create_keyspace_of("events", KeyspaceKind::Lsm(lsm)).unwrap();
        let mut rows = Histories::new();
        let mut rng = Rng::from_seed(1);
        for round in 0..5000u64 {
            let key = format!("{:05}", rng.below(2000)).into_bytes();
            let value =
                (rng.below(8) > 0).then(|| format!("{round} {}", "x".repeat(rng.below(200) as usize)).into_bytes());
            match &value {
                Some(value) => space.put_with(&key, value, Durability::None).unwrap(),
                None => drop(space.delete_with(&key, Durability::None).unwrap()),
            }
            rows.entry(key).or_default().push(value);
            if round % 1500 == 700 {
                let (from, to) = (format!("{:05}", round / 5), format!("{:05}", round / 5 + 90));
                space.delete_range(from.as_bytes()..to.as_bytes()).unwrap();
                let range = rows.range_mut(from.into_bytes()..to.into_bytes());
                range.for_each(|(_, history)| history.push(None));
            }
        }
        db.sync().unwrap();
        db.wait_for_merges().unwrap();
        let left = (fork(&data), fork(&log));
        db.close().unwrap();
        let (data, log) = if closed { (data, log) } else { left };
        Built { data, log, rows }
    }

    fn rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let present = |(key, history): (&Vec<u8>, &Vec<Option<Vec<u8>>>)| Some((key.clone(), history.last()?.clone()?));
        self.rows.iter().filter_map(present).collect()
    }

    fn salvage(&self) -> (BTreeMap<Vec<u8>, Vec<u8>>, SalvageReport) {
        let mut found = BTreeMap::new();
        let devices = Devices::new(self.data.clone(), self.log.clone());
        let report = varve::salvage_on(&devices, &mut |row| {
            assert_eq!(row.keyspace, "events");
            assert!(found.insert(row.key.to_vec(), row.value.to_vec()).is_none(), "{:?} twice", row.key);
            Ok(())
        })
        .unwrap();
        (found, report)
    }

    /// Pages of a kind, of those that are not of the catalog.
    fn pages(&self, kind: u8) -> Vec<u64> {
        let mut bytes = AlignedBuf::new(self.data.len() as usize);
        read_at(&*self.data, 0, &mut bytes).unwrap();
        let of_kind = |(_, page): &(usize, &[u8])| page[7] == kind && page[24..28] != [0; 4];
        bytes.chunks(PAGE as usize).enumerate().filter(of_kind).map(|(n, _)| n as u64).collect()
    }

    /// Salvages with a page destroyed; how many rows were not found as they were last.
    fn without(&self, page: u64) -> (usize, SalvageReport) {
        let mut whole = AlignedBuf::new(PAGE as usize);
        read_at(&*self.data, page * PAGE, &mut whole).unwrap();
        let mut damaged = AlignedBuf::new(PAGE as usize);
        damaged.copy_from_slice(&whole);
        damaged[100..200].iter_mut().for_each(|byte| *byte ^= 0x55);
        write_at(&*self.data, page * PAGE, &damaged, true).unwrap();
        let (found, report) = self.salvage();
        write_at(&*self.data, page * PAGE, &whole, true).unwrap();
        for (key, value) in &found {
            assert!(self.rows[key].contains(&Some(value.clone())), "page {page}: {key:?} was never so");
        }
        let rows = self.rows();
        let others = rows.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
        let back = found.keys().filter(|key| !rows.contains_key(*key)).count();
        assert!(others + back == 0 || !report.notes.is_empty(), "page {page}: {others} lost, {back} back, not told");
        (others + back, report)
    }
}

#[test]
fn a_sound_database_is_found_whole() {
    for closed in [true, false] {
        let built = Built::new(closed);
        let (found, report) = built.salvage();
        assert!(report.is_whole(), "closed {closed}: {report:?}");
        assert!(found == built.rows(), "closed {closed}: {} rows, not {}", found.len(), built.rows().len());
    }
}

/// A page holds up to some two hundred entries, of 5000. One at the end of a segment has index and footer too: without
/// it the rows of the segment are found all the same. So are those of a list of segments that is lost, but for blocks
/// in two places.
#[test]
fn what_lies_on_other_pages_is_found() {
    let built = Built::new(true);
    let pages = built.pages(KIND_SEGMENT);
    let (last, others): (Vec<u64>, Vec<u64>) = pages.iter().partition(|page| {
        let mut magic = [0; 8];
        built.data.peek((*page + 1) * PAGE - 32, &mut magic);
        &magic == b"VRVSEGMT"
    });
    let mut some = 0;
    for page in last.iter().chain(others.iter().step_by(1 + others.len() / 40)) {
        let (lost, report) = built.without(*page);
        assert!(lost < 300, "page {page}: {lost} rows lost: {report:?}");
        some += usize::from(lost > 0);
    }
    assert!(some > 10 && last.len() > 2, "{some} pages with rows, {} segments", last.len());
    for page in built.pages(KIND_LEAF) {
        let (lost, report) = built.without(page);
        assert!(lost < 300 && report.notes.len() == 1, "page {page} of the list: {report:?}");
    }
}
