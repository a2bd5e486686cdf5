//! Entries for tests.

use super::{Entries, Entry, EntryKind, PageSink, PageSource, order};
use crate::error::{Error, Result};
use varve_rt::{Mutex, Rng};
use varve_volume::{KeyspaceId, PageId};

/// An entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub key: Vec<u8>,
    pub commit: u64,
    pub kind: EntryKind,
    pub value: Vec<u8>,
}

impl Row {
    pub(crate) fn entry(&self) -> Entry<'_> {
        Entry { key: &self.key, commit: self.commit, kind: self.kind, value: &self.value }
    }

    pub(crate) fn of(entry: Entry<'_>) -> Row {
        Row { key: entry.key.to_vec(), commit: entry.commit, kind: entry.kind, value: entry.value.to_vec() }
    }
}

/// `n` entries (or a few less) in their order: keys that share beginnings, some with several versions.
pub(crate) fn entries(rng: &mut Rng, n: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..n)
        .map(|_| {
            let key = match rng.below(8) {
                0 => Vec::new(),
                1 => format!("other/{}", rng.below(5)).into_bytes(),
                _ => format!("key/{:04}", rng.below(n as u64)).into_bytes(),
            };
            let kind = if rng.one_in(5) { EntryKind::Delete } else { EntryKind::Put };
            let most = if rng.one_in(8) { 300 } else { 20 };
            let mut value = vec![0; if kind == EntryKind::Delete { 0 } else { rng.below(most) } as usize];
            rng.fill_bytes(&mut value);
            Row { key, commit: rng.below(50), kind, value }
        })
        .collect();
    rows.sort_by(|a, b| order((&a.key, a.commit), (&b.key, b.commit)));
    rows.dedup_by(|a, b| a.key == b.key && a.commit == b.commit);
    rows
}

/// Pages in memory: a sink, and afterwards a source.
pub(crate) struct Memory {
    usable: usize,
    pub pages: Vec<Vec<u8>>,
    /// Pages that were looked at.
    pub seen: Mutex<Vec<u64>>,
}

impl Memory {
    pub(crate) fn new(usable: usize) -> Memory {
        Memory { usable, pages: Vec::new(), seen: Mutex::default() }
    }
}

impl PageSink for Memory {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let mut page = vec![0; self.usable];
        fill(&mut page);
        self.pages.push(page);
        Ok(())
    }
}

impl PageSource for Memory {
    fn usable(&self) -> usize {
        self.usable
    }

    fn page(&self, n: u64, see: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.seen.lock().push(n);
        see(self.pages.get(n as usize).ok_or_else(|| self.corrupt(n, "there is no such page"))?);
        Ok(())
    }

    fn prefetch(&self, n: u64, pages: u64) {
        assert!(n + pages <= self.pages.len() as u64, "pages that there are");
    }

    fn corrupt(&self, n: u64, what: &str) -> Error {
        Error::corrupt_page(PageId(n), Some(KeyspaceId(7)), what)
    }
}

/// A walk over a list.
pub(crate) struct List {
    rows: Vec<Row>,
    /// Where it stands, counted from 1; 0 and past the last: nowhere.
    at: usize,
}

impl List {
    pub(crate) fn new(rows: Vec<Row>) -> List {
        List { rows, at: 0 }
    }

    fn split(&self, key: &[u8], commit: u64) -> usize {
        self.rows.partition_point(|row| order((&row.key, row.commit), (key, commit)).is_lt())
    }
}

impl Entries for List {
    fn entry(&self) -> Option<Entry<'_>> {
        self.rows.get(self.at.checked_sub(1)?).map(Row::entry)
    }

    fn seek(&mut self, key: &[u8], commit: u64) -> Result<()> {
        self.at = self.split(key, commit) + 1;
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], commit: u64) -> Result<()> {
        self.at = self.split(key, commit);
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        self.at = 1;
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.at = self.rows.len();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.at -= 1;
        Ok(())
    }
}
