//! Memtable: a sorted table of entries in memory, a skip list (Pugh, CACM 1990) that many threads insert into at once.
//!
//! A node is one allocation: a head, as many links as it is high, key and value. Nodes are never changed nor removed
//! while the table lives, so readers follow links without a lock. An insertion finds its place, fills its own links and
//! swings the link before it with a compare-and-swap, from the lowest level up; when another was faster it looks again.
//!
//! Invariants: the list of the lowest level holds every node in internal order, that of each other level a part of it;
//! a node is reachable only when it is complete; no two entries have key and commit number in common.

use super::ranges::{Fragments, RangeDelete};
use super::{Entries, Entry, EntryKind};
use crate::budget::{Budget, Class};
use crate::error::Result;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering as Order;
use std::ptr::null_mut;
use std::sync::Arc;
use varve_rt::RwLock;
use varve_rt::atomic::{AtomicPtr, AtomicU64, Ordering};
use varve_volume::Lsn;

/// Most links of a node. A node has one link more with a probability of a quarter: enough for 4^12 entries.
const HEIGHT: usize = 12;

/// Head of a node; its links, its key and its value follow.
#[repr(C)]
struct Node {
    commit: Lsn,
    key: u32,
    value: u32,
    height: u8,
    kind: EntryKind,
}

type Link = AtomicPtr<Node>;
const _: () = assert!(size_of::<Node>().is_multiple_of(align_of::<Link>()), "links lie aligned behind the head");
const _: () = assert!(align_of::<Node>() >= align_of::<Link>() && HEIGHT <= u8::MAX as usize);

/// Bytes of a node's allocation.
fn size_of_node(height: usize, key: usize, value: usize) -> usize {
    size_of::<Node>() + height * size_of::<Link>() + key + value
}

fn layout(height: usize, key: usize, value: usize) -> Layout {
    Layout::from_size_align(size_of_node(height, key, value), align_of::<Node>()).expect("entries are short")
}

/// Bytes of memory that an entry takes, whatever its height turns out to be.
pub(super) fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
    (size_of_node(2, key.len(), value.len()) + 16) as u64
}

impl Node {
    fn new(height: usize, entry: &Entry<'_>) -> *mut Node {
        let layout = layout(height, entry.key.len(), entry.value.len());
        let (key, value) = (entry.key.len() as u32, entry.value.len() as u32);
        assert!((1..=HEIGHT).contains(&height), "a node has a link on the lowest level");
        // SAFETY: the layout has the size of all that is written here, and is not empty; what is written lies within.
        unsafe {
            let node = alloc(layout).cast::<Node>();
            if node.is_null() {
                handle_alloc_error(layout);
            }
            node.write(Node { commit: entry.commit, key, value, height: height as u8, kind: entry.kind });
            let links = node.add(1).cast::<Link>();
            (0..height).for_each(|level| links.add(level).write(Link::new(null_mut())));
            let bytes = links.add(height).cast::<u8>();
            bytes.copy_from_nonoverlapping(entry.key.as_ptr(), entry.key.len());
            bytes.add(entry.key.len()).copy_from_nonoverlapping(entry.value.as_ptr(), entry.value.len());
            node
        }
    }

    /// The link of a level.
    ///
    /// # Safety
    /// `node` was made by [`Node::new`], lives for `'t`, and is higher than `level`.
    unsafe fn link<'t>(node: *const Node, level: usize) -> &'t Link {
        // SAFETY: the links lie behind the head.
        unsafe {
            debug_assert!(level < (*node).height as usize, "the node has the link");
            &*node.add(1).cast::<Link>().add(level)
        }
    }

    /// What the node holds.
    ///
    /// # Safety
    /// `node` was made by [`Node::new`] and lives for `'t`.
    unsafe fn entry<'t>(node: *const Node) -> Entry<'t> {
        // SAFETY: key and value lie behind the links, and are never changed.
        unsafe {
            let Node { commit, key, value, height, kind } = *node;
            let bytes = node.add(1).cast::<Link>().add(height as usize).cast::<u8>();
            let key = std::slice::from_raw_parts(bytes, key as usize);
            let value = std::slice::from_raw_parts(bytes.add(key.len()), value as usize);
            Entry { key, commit, kind, value }
        }
    }
}

/// Deletions of ranges for which a memtable is flushed.
const MANY_RANGES: u64 = 128;

/// A table of entries. Its memory is charged before entries come, and given back when it is dropped.
pub(super) struct Memtable {
    head: [Link; HEIGHT],
    /// State of the generator of heights.
    heights: AtomicU64,
    entries: AtomicU64,
    /// Bytes charged for it.
    charged: AtomicU64,
    /// Writers that may still insert.
    writers: AtomicU64,
    /// Where in the log the oldest of its entries may begin; `Lsn::MAX`: it has none.
    oldest: AtomicU64,
    /// Greatest commit number in it.
    newest: AtomicU64,
    /// Deletions of ranges. There are few: each makes the list anew.
    ranges: RwLock<Arc<Fragments>>,
    /// How many.
    deleted: AtomicU64,
    budget: Arc<Budget>,
}

// SAFETY: nodes are complete before they are reachable, and never changed but for their links, which are atomic.
unsafe impl Send for Memtable {}
// SAFETY: as above.
unsafe impl Sync for Memtable {}

impl Memtable {
    pub fn new(budget: Arc<Budget>) -> Memtable {
        Memtable {
            head: std::array::from_fn(|_| Link::new(null_mut())),
            heights: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            entries: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            writers: AtomicU64::new(0),
            oldest: AtomicU64::new(Lsn::MAX),
            newest: AtomicU64::new(0),
            ranges: RwLock::new(Arc::default()),
            deleted: AtomicU64::new(0),
            budget,
        }
    }

    /// Whether it holds nothing, no deletion of a range either.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.deleted.load(Ordering::Acquire) == 0
    }

    /// Deletions of ranges in it.
    pub fn ranges(&self) -> Arc<Fragments> {
        if self.deleted.load(Ordering::Acquire) == 0 { Arc::default() } else { self.ranges.read().clone() }
    }

    /// The newest commit up to `at` that deleted a range with `key`; 0: none did.
    #[inline]
    pub fn deleted(&self, key: &[u8], at: Lsn) -> Lsn {
        if self.deleted.load(Ordering::Acquire) == 0 { 0 } else { self.ranges.read().covering(key, at) }
    }

    /// Whether it has so many deletions of ranges that it should be flushed, however few bytes they are: each makes the
    /// list anew, and looks at all that there are.
    pub fn has_many_ranges(&self) -> bool {
        self.deleted.load(Ordering::Relaxed) >= MANY_RANGES
    }

    /// Adds a deletion of a range.
    pub fn delete_range(&self, delete: RangeDelete) {
        assert!(delete.start < delete.end && delete.commit > 0, "a range has keys, and its deletion a commit number");
        let commit = delete.commit;
        let mut ranges = self.ranges.write();
        let all = ranges.deletes().chain([delete]);
        *ranges = Arc::new(Fragments::new(all.collect::<Vec<_>>()));
        self.newest.fetch_max(commit, Ordering::AcqRel);
        self.deleted.fetch_add(1, Ordering::Release);
    }

    /// Entries in it.
    pub fn len(&self) -> u64 {
        self.entries.load(Ordering::Acquire)
    }

    /// Bytes charged for its entries.
    pub fn bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Greatest commit number in it; 0: it is empty.
    pub fn newest(&self) -> Lsn {
        self.newest.load(Ordering::Acquire)
    }

    /// Where the log that it needs begins; `None`: it needs none.
    pub fn oldest_lsn_needed(&self) -> Option<Lsn> {
        let in_use = self.writers.load(Ordering::SeqCst) > 0 || !self.is_empty();
        Some(self.oldest.load(Ordering::SeqCst)).filter(|_| in_use)
    }

    /// One more may insert entries of a group that begins at or past `from`.
    pub fn writer_begins(&self, from: Lsn) {
        self.writers.fetch_add(1, Ordering::SeqCst);
        let before = self.oldest.fetch_min(from, Ordering::SeqCst);
        debug_assert!(before == Lsn::MAX || self.oldest.load(Ordering::SeqCst) <= before, "the oldest only falls");
    }

    /// The end of it.
    pub fn writer_ends(&self) {
        let before = self.writers.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a writer that ends has begun");
    }

    /// Whether somebody may still insert.
    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// So many bytes that were charged are the table's from here on.
    pub fn takes_charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds an entry, which may be as newest to its key or not.
    pub fn insert(&self, entry: &Entry<'_>) {
        assert!(entry.commit > 0 && entry.commit < Lsn::MAX, "an entry has a commit number");
        let height = self.height();
        let node = Node::new(height, entry);
        let mut places = [(std::ptr::null::<Node>(), null_mut()); HEIGHT];
        self.places(entry.key, entry.commit, &mut places);
        for level in 0..height {
            loop {
                let (before, after) = places[level];
                // SAFETY: the node is ours or in the table, which lives; it is higher than the level.
                unsafe { Node::link(node, level) }.store(after, Ordering::Relaxed);
                let link = self.link(before, level);
                if link.compare_exchange(after, node, Ordering::Release, Ordering::Relaxed).is_ok() {
                    break;
                }
                self.places(entry.key, entry.commit, &mut places);
            }
        }
        debug_assert!(self.get(entry.key, entry.commit).is_some(), "what was inserted is found");
        self.newest.fetch_max(entry.commit, Ordering::AcqRel);
        self.entries.fetch_add(1, Ordering::Release);
    }

    /// The height of the next node: xorshift (Marsaglia 2003).
    fn height(&self) -> usize {
        let step = |mut x: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            Some(x ^ (x << 17))
        };
        let x = self.heights.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).expect("always a next one");
        (1 + (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8).trailing_zeros() as usize / 2).min(HEIGHT)
    }

    /// The link of a level, of a node or of the head.
    fn link(&self, node: *const Node, level: usize) -> &Link {
        // SAFETY: a node that was found on a level is higher than it, and lives as long as the table.
        if node.is_null() { &self.head[level] } else { unsafe { Node::link(node, level) } }
    }

    /// For each level the last node before (`key`, `commit`), null for the head, and the one after it.
    fn places(&self, key: &[u8], commit: Lsn, places: &mut [(*const Node, *mut Node); HEIGHT]) {
        debug_assert_eq!(places.len(), self.head.len(), "a place for each level");
        let mut before = std::ptr::null::<Node>();
        for level in (0..HEIGHT).rev() {
            let mut after = self.link(before, level).load(Ordering::Acquire);
            while !after.is_null() && is_before(after, key, commit) {
                before = after;
                after = self.link(before, level).load(Ordering::Acquire);
            }
            places[level] = (before, after);
        }
    }

    /// The last node before (`key`, `commit`), and the first at or after it; null where there is none.
    fn around(&self, key: &[u8], commit: Lsn) -> (*const Node, *const Node) {
        let mut places = [(std::ptr::null::<Node>(), null_mut()); HEIGHT];
        self.places(key, commit, &mut places);
        (places[0].0, places[0].1)
    }

    /// The last node of all.
    fn last(&self) -> *const Node {
        let mut at = std::ptr::null::<Node>();
        for level in (0..HEIGHT).rev() {
            loop {
                let next = self.link(at, level).load(Ordering::Acquire);
                if next.is_null() {
                    break;
                }
                at = next;
            }
        }
        at
    }

    /// The newest entry of `key` that is not newer than `at`.
    pub fn get(&self, key: &[u8], at: Lsn) -> Option<Entry<'_>> {
        let (_, node) = self.around(key, at);
        if node.is_null() {
            return None;
        }
        // SAFETY: it is in the table, which is borrowed.
        let entry = unsafe { Node::entry(node) };
        debug_assert!(entry.key > key || entry.commit <= at, "what is found is at or after what was looked for");
        (entry.key == key).then_some(entry)
    }
}

/// Whether a node of a table that lives comes before (`key`, `commit`).
fn is_before(node: *const Node, key: &[u8], commit: Lsn) -> bool {
    // SAFETY: the node was found in a table that lives.
    let entry = unsafe { Node::entry(node) };
    match entry.key.cmp(key) {
        Order::Less => true,
        Order::Equal => entry.commit > commit,
        Order::Greater => false,
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        let mut node = *self.head[0].get_mut();
        while !node.is_null() {
            // SAFETY: nobody else has the table; each node of the lowest level is met once, made with this layout.
            unsafe {
                let next = Node::link(node, 0).load(Ordering::Relaxed);
                let Node { key, value, height, .. } = *node;
                dealloc(node.cast(), layout(height as usize, key as usize, value as usize));
                node = next;
            }
        }
        self.budget.release(Class::Memtables, *self.charged.get_mut());
    }
}

/// A walk over a memtable, which may grow meanwhile.
pub(super) struct MemtableEntries {
    table: Arc<Memtable>,
    at: *const Node,
}

// SAFETY: the node lives as long as the table, which the walk holds.
unsafe impl Send for MemtableEntries {}

impl MemtableEntries {
    pub fn new(table: Arc<Memtable>) -> MemtableEntries {
        MemtableEntries { table, at: std::ptr::null() }
    }
}

impl Entries for MemtableEntries {
    fn entry(&self) -> Option<Entry<'_>> {
        // SAFETY: the node lives as long as the table, which the walk holds.
        if self.at.is_null() { None } else { Some(unsafe { Node::entry(self.at) }) }
    }

    fn seek(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.at = self.table.around(key, commit).1;
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], commit: Lsn) -> Result<()> {
        self.at = self.table.around(key, commit).0;
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        self.at = self.table.head[0].load(Ordering::Acquire);
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.at = self.table.last();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        assert!(!self.at.is_null(), "the walk stands at an entry");
        self.at = self.table.link(self.at, 0).load(Ordering::Acquire);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        assert!(!self.at.is_null(), "the walk stands at an entry");
        // SAFETY: the node lives as long as the table, which the walk holds.
        let Entry { key, commit, .. } = unsafe { Node::entry(self.at) };
        self.at = self.table.around(key, commit).0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use varve_rt::{sim, spawn};

    fn table() -> Memtable {
        Memtable::new(Arc::new(Budget::unlimited()))
    }

    fn put<'a>(key: &'a [u8], commit: Lsn, value: &'a [u8]) -> Entry<'a> {
        Entry { key, commit, kind: EntryKind::Put, value }
    }

    fn all(table: &Arc<Memtable>) -> Vec<(Vec<u8>, Lsn, Vec<u8>)> {
        let (mut walk, mut found) = (MemtableEntries::new(table.clone()), Vec::new());
        walk.first().unwrap();
        while let Some(entry) = walk.entry() {
            found.push((entry.key.to_vec(), entry.commit, entry.value.to_vec()));
            walk.next().unwrap();
        }
        found
    }

    #[test]
    fn versions_of_a_key_are_found_by_their_moment() {
        let table = table();
        for (key, commit, value) in [(&b"a"[..], 10, &b"x"[..]), (b"b", 10, b"y"), (b"a", 30, b"z"), (b"", 20, b"")] {
            table.insert(&put(key, commit, value));
        }
        let get = |key: &[u8], at| table.get(key, at).map(|entry| entry.value.to_vec());
        assert_eq!(get(b"a", 9), None);
        assert_eq!(get(b"a", 10), Some(b"x".to_vec()));
        assert_eq!(get(b"a", 29), Some(b"x".to_vec()));
        assert_eq!(get(b"a", 30), Some(b"z".to_vec()));
        assert_eq!(get(b"", Lsn::MAX), Some(Vec::new()));
        assert_eq!(get(b"c", Lsn::MAX), None);
        assert_eq!((table.newest(), table.len()), (30, 4));
    }

    #[test]
    fn a_walk_goes_both_ways_in_internal_order() {
        let table = Arc::new(table());
        let mut expected = BTreeMap::new();
        for n in 0..500u64 {
            let (key, commit) = ((n * 7919 % 97).to_be_bytes(), 1 + n);
            table.insert(&put(&key, commit, &n.to_le_bytes()));
            expected.insert((key.to_vec(), Lsn::MAX - commit), n.to_le_bytes().to_vec());
        }
        let expected: Vec<_> = expected.into_iter().map(|((key, commit), v)| (key, Lsn::MAX - commit, v)).collect();
        assert_eq!(all(&table), expected);
        let mut walk = MemtableEntries::new(table.clone());
        walk.last().unwrap();
        for (key, commit, value) in expected.iter().rev() {
            assert_eq!(walk.entry(), Some(put(key, *commit, value)));
            walk.prev().unwrap();
        }
        assert!(walk.entry().is_none());
        let (key, commit, _) = &expected[200];
        walk.seek(key, *commit).unwrap();
        assert_eq!(walk.entry().map(|e| e.commit), Some(*commit));
        walk.seek_before(key, *commit).unwrap();
        assert_eq!(walk.entry().map(|e| (e.key.to_vec(), e.commit)), Some((expected[199].0.clone(), expected[199].1)));
    }

    /// Threads that insert next to each other lose nothing, wherever they are interrupted.
    #[test]
    fn insertions_beside_each_other_are_all_there() {
        for seed in 0..40 {
            sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, || {
                let table = Arc::new(table());
                let threads: Vec<_> = (0..3u64)
                    .map(|t| {
                        let table = table.clone();
                        spawn("writer", move || {
                            (0..20u64).for_each(|n| table.insert(&put(&(n % 5).to_be_bytes(), 3 * n + t + 1, b"v")));
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                let found = all(&table);
                assert_eq!(found.len(), 60);
                assert!(found.windows(2).all(|w| (&w[0].0, Lsn::MAX - w[0].1) < (&w[1].0, Lsn::MAX - w[1].1)));
            })
            .unwrap();
        }
    }

    #[test]
    fn threads_of_the_system_insert_beside_each_other() {
        let table = Arc::new(table());
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let table = table.clone();
                spawn("writer", move || {
                    (0..2000u64).for_each(|n| table.insert(&put(&(n * 31 % 512).to_be_bytes(), 4 * n + t + 1, b"v")));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = all(&table);
        assert_eq!((found.len(), table.len()), (8000, 8000));
        assert!(found.windows(2).all(|w| (&w[0].0, Lsn::MAX - w[0].1) < (&w[1].0, Lsn::MAX - w[1].1)));
    }
}
