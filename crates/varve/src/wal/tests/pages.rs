//! Pages in memory over a stored image, for tests of checkpoints and recovery without the buffer pool.

use super::checkpoint::CheckpointPages;
use super::recovery::{Change, ReplayPages};
use super::*;
use crate::redo;
use std::collections::BTreeMap;
use varve_rt::Mutex;
use varve_volume::{KeyspaceId, PageId, page};

struct Frame {
    bytes: Vec<u8>,
    first_dirty: Option<Lsn>,
}

/// The pages: frames in memory, and what is stored.
pub(super) struct Pages {
    size: usize,
    frames: Mutex<BTreeMap<PageId, Frame>>,
    stored: Mutex<BTreeMap<PageId, Vec<u8>>>,
    /// Replay fails after this many page changes, as if the power went.
    pub fuse: Mutex<Option<u64>>,
    /// Pages asked for ahead.
    pub prefetched: Mutex<u64>,
    pub write_backs: Mutex<u64>,
}

impl Pages {
    pub fn new(size: usize) -> Pages {
        Pages {
            size,
            frames: Mutex::new(BTreeMap::new()),
            stored: Mutex::new(BTreeMap::new()),
            fuse: Mutex::new(None),
            prefetched: Mutex::new(0),
            write_backs: Mutex::new(0),
        }
    }

    /// The page in memory.
    pub fn bytes(&self, id: PageId) -> Option<Vec<u8>> {
        self.frames.lock().get(&id).map(|f| f.bytes.clone())
    }

    /// The page in memory, or as stored.
    pub fn load(&self, id: PageId) -> Option<Vec<u8>> {
        let mut bytes = self.bytes(id).or_else(|| self.fetch(id).ok().map(|f| f.bytes))?;
        // Sealing sets header fields that a frame does not have.
        page::seal(&mut bytes, id);
        Some(bytes)
    }

    /// Stores an empty page, as if from before the log.
    pub fn store_empty(&self, id: PageId) {
        let mut bytes = vec![0; self.size];
        page::set_keyspace(&mut bytes, KeyspaceId(1));
        page::seal(&mut bytes, id);
        self.stored.lock().insert(id, bytes);
    }

    fn fetch(&self, id: PageId) -> Result<Frame> {
        let Some(bytes) = self.stored.lock().get(&id).cloned() else {
            return Err(Error::Volume(varve_volume::VolumeError::Damaged {
                page: id,
                damage: varve_volume::PageDamage::Unwritten,
            }));
        };
        page::verify(&bytes, id)
            .map_err(|damage| Error::Volume(varve_volume::VolumeError::Damaged { page: id, damage }))?;
        Ok(Frame { bytes, first_dirty: None })
    }

    /// Stores a page, log first.
    pub fn write(&self, log: &Log, id: PageId) {
        let mut frames = self.frames.lock();
        let frame = frames.get_mut(&id).unwrap();
        log.wait_durable(page::lsn(&frame.bytes)).unwrap();
        self.store(id, frame);
    }

    fn store(&self, id: PageId, frame: &mut Frame) {
        let mut bytes = frame.bytes.clone();
        page::seal(&mut bytes, id);
        self.stored.lock().insert(id, bytes);
        frame.first_dirty = None;
    }

    /// The stored page becomes half of what it is in memory now.
    pub fn tear(&self, id: PageId) {
        let bytes = self.load(id).expect("a page that is whole");
        let mut stored = self.stored.lock();
        let old = stored.entry(id).or_insert_with(|| vec![0; self.size]);
        let half = self.size / 2;
        // Every write changes the header, so that old and new halves never match.
        old[..half].copy_from_slice(&bytes[..half]);
        old[self.size - 1] ^= 0x55;
    }

    fn burn(&self) -> Result<()> {
        match &mut *self.fuse.lock() {
            None => Ok(()),
            Some(0) => Err(varve_device::DeviceError::PowerLost.into()),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
        }
    }

    /// Ids of dirty pages.
    pub fn dirty(&self) -> Vec<PageId> {
        self.frames.lock().iter().filter(|(_, f)| f.first_dirty.is_some()).map(|(id, _)| *id).collect()
    }

    /// Every page as it is.
    pub fn all(&self) -> BTreeMap<PageId, Vec<u8>> {
        let mut ids: Vec<PageId> = self.frames.lock().keys().copied().collect();
        ids.extend(self.stored.lock().keys());
        ids.iter().filter_map(|&id| Some((id, self.load(id)?))).collect()
    }

    /// The page as stored.
    pub fn stored(&self, id: PageId) -> Option<Vec<u8>> {
        self.stored.lock().get(&id).cloned()
    }

    /// Puts bytes in the store's place of a page.
    pub fn set_stored(&self, id: PageId, bytes: Vec<u8>) {
        self.stored.lock().insert(id, bytes);
    }

    /// Memory is lost.
    pub fn crash(&self) {
        self.frames.lock().clear();
    }
}

impl CheckpointPages for Pages {
    fn flush_older_than(&self, t: Lsn) -> Result<()> {
        for (id, frame) in self.frames.lock().iter_mut() {
            if frame.first_dirty.is_some_and(|first| first < t) {
                self.store(*id, frame);
            }
        }
        Ok(())
    }

    fn oldest_dirty(&self) -> Option<Lsn> {
        self.frames.lock().values().filter_map(|f| f.first_dirty).min()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl ReplayPages for Pages {
    fn page_size(&self) -> usize {
        self.size
    }

    fn prefetch(&self, pages: &[PageId]) {
        *self.prefetched.lock() += pages.len() as u64;
    }

    fn change(&self, id: PageId, fresh: Option<KeyspaceId>, first_change: Lsn, change: &mut Change<'_>) -> Result<()> {
        self.burn()?;
        let mut frames = self.frames.lock();
        if let Some(keyspace) = fresh {
            let mut bytes = vec![0; self.size];
            page::set_keyspace(&mut bytes, keyspace);
            frames.insert(id, Frame { bytes, first_dirty: None });
        } else if let std::collections::btree_map::Entry::Vacant(place) = frames.entry(id) {
            place.insert(self.fetch(id)?);
        }
        let frame = frames.get_mut(&id).unwrap();
        if let Some(lsn) = change(&mut frame.bytes)? {
            page::set_lsn(&mut frame.bytes, lsn);
            frame.first_dirty.get_or_insert(first_change);
        }
        Ok(())
    }

    fn write_back(&self) -> Result<()> {
        *self.write_backs.lock() += 1;
        self.flush_older_than(Lsn::MAX)
    }
}

/// Changes bytes of a page in a group of its own, by the rule of the house; a page that is nowhere is created.
pub(super) fn change(log: &Log, pages: &Pages, id: PageId, at: usize, bytes: &[u8]) -> Lsn {
    let mut frames = pages.frames.lock();
    let frame = frames.entry(id).or_insert_with(|| {
        pages.fetch(id).unwrap_or_else(|_| {
            let mut bytes = vec![0; pages.size];
            page::set_keyspace(&mut bytes, KeyspaceId(1));
            Frame { bytes, first_dirty: None }
        })
    });
    let prev = page::lsn(&frame.bytes);
    frame.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    frame.first_dirty.get_or_insert(log.end_lsn());
    let end = loop {
        let floor = log.floor();
        let mut body = Vec::new();
        if prev <= floor.lsn {
            redo::push_image_record(&mut body, id, &frame.bytes, redo::zero_hole(&frame.bytes));
        } else {
            let mut ops = Vec::new();
            redo::push_write(&mut ops, at, bytes);
            redo::push_ops_record(&mut body, id, KeyspaceId(1), prev, &ops);
        }
        match log.append(GroupKind::Commit, Some(floor.epoch), &body) {
            Ok(appended) => break appended.end,
            Err(AppendError::EpochMoved) => {}
            Err(e) => panic!("{e}"),
        }
    };
    page::set_lsn(&mut frame.bytes, end);
    end
}
