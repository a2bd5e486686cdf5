//! Bulk load: sorted entries become finished leaves, left to right, linked a few at a time.
//!
//! The tree's last leaf (the *tail*) is kept empty. A batch of new leaves takes its place in front of it: their images, the separators in the parent and the
//! tail's new low fence are one log group of bounded size, so that the tree is sound at every moment and a crash loses no more than the batches that were
//! not logged yet.

use super::descend::Family;
use super::edit::{self, PageEdit, Shape};
use super::leaf::{self, CellValue, KIND_LEAF};
use super::node::*;
use super::{OverflowRef, Tree, overflow, split};
use crate::error::{Error, Result};
use crate::group::{Group, PageNo};
use crate::space::Reserved;
use crate::wal::GroupKind;
use varve_volume::page;

/// Pages that a group links at most, unless a single leaf has longer values.
const BATCH_PAGES: usize = 32;

/// Entries on their way into a leaf, in one piece of memory.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    /// Where each begins, and the lengths of its key and value.
    at: Vec<(usize, usize, usize)>,
}

impl Rows {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.at.push((self.bytes.len(), key.len(), value.len()));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn len(&self) -> usize {
        self.at.len()
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.at.iter().map(|&(at, key, value)| self.bytes[at..at + key + value].split_at(key))
    }

    fn first_key(&self) -> Option<&[u8]> {
        self.iter().next().map(|row| row.0)
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.iter().next_back().map(|row| row.0)
    }
}

/// A leaf to be linked.
struct Leaf {
    rows: Rows,
    /// Low fence of what follows.
    high: Vec<u8>,
    /// Pages that it takes, long values included.
    pages: usize,
}

/// Loads ascending entries into a tree. Nobody else may write to the keyspace meanwhile; readers see batch after batch.
pub(crate) struct BulkLoad {
    tree: Tree,
    /// Bytes that a leaf is filled with.
    fill: usize,
    open: Rows,
    /// Bytes of the open leaf's cells as if nothing was compressed.
    bytes: usize,
    /// Low fence of the open leaf.
    low: Vec<u8>,
    ready: Vec<Leaf>,
    begun: bool,
}

impl Tree {
    /// Begins a bulk load of keys above all that the tree holds. Leaves are filled to `fill` (0.5 to 1.0 of a page).
    pub(crate) fn bulk_load(&self, fill: f64) -> BulkLoad {
        let body = self.usable() + HEADER - SLOTS;
        let fill = (body as f64 * fill.clamp(0.5, 1.0)) as usize;
        let tree = self.clone();
        BulkLoad { tree, fill, open: Rows::default(), bytes: 0, low: Vec::new(), ready: Vec::new(), begun: false }
    }
}

impl BulkLoad {
    /// Takes the next entry. Fails when its key is not above the one before (or those in the tree), or too long; what was loaded before stays.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let max = self.tree.max_key();
        if key.len() > max {
            return Err(Error::KeySize { len: key.len(), max });
        }
        if !self.begun {
            self.begin(key)?;
        }
        if self.open.last_key().is_some_and(|last| last >= key) {
            return Err(Error::Invalid("a bulk load needs keys in ascending order, each once".into()));
        }
        let size = SLOT + key.len() + 2 + self.inline_len(key, value);
        // What all keys up to this one share with the low fence will be stored once.
        let saved = common(&self.low, key) * (self.open.len() + 1);
        let fences = self.low.len() + key.len();
        if self.open.len() > 0 && (self.bytes + size + fences).saturating_sub(saved) > self.fill {
            self.close(key)?;
        }
        self.bytes += size;
        self.open.push(key, value);
        Ok(())
    }

    /// Links what is left. Without it, the last entries are not in the tree.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(last) = self.open.last_key() else { return self.link() };
        let tail = last.to_vec();
        // The shortest key above the last one.
        let beyond = [tail.as_slice(), &[0]].concat();
        let beyond = if beyond.len() > self.tree.max_key() { successor(&tail) } else { Some(beyond) };
        let Some(beyond) = beyond else { return self.finish_one_by_one() };
        self.close(&beyond)?;
        self.link()?;
        self.tree.tidy(&beyond)
    }

    fn inline_len(&self, key: &[u8], value: &[u8]) -> usize {
        if value.len() > self.tree.max_inline(key.len()) { OverflowRef::LEN } else { value.len() }
    }

    /// Makes the tail an empty leaf with a parent, that begins at or below `key`.
    fn begin(&mut self, key: &[u8]) -> Result<()> {
        loop {
            let (count, low, is_root, last) = {
                let page = self.tree.leaf(key)?;
                let node = self.tree.node(page.id(), page.bytes(), Some(0))?;
                if node.high().is_some()
                    || node.search(key).map_err(|d| self.tree.corrupt(page.id(), d))?.0 < node.count()
                {
                    return Err(Error::Invalid("a bulk load needs keys above all that the keyspace holds".into()));
                }
                let last = match node.count() {
                    0 => None,
                    n => Some(node.key(n - 1).map_err(|d| self.tree.corrupt(page.id(), d))?),
                };
                (node.count(), node.low().to_vec(), page.id() == self.tree.root(), last)
            };
            match last {
                _ if is_root => self.tree.grow_root(0)?,
                Some(last) => self.tree.divide_at(key, SLOT, &split::separator(&last, key))?,
                None => {
                    debug_assert_eq!(count, 0);
                    (self.low, self.begun) = (low, true);
                    return Ok(());
                }
            }
        }
    }

    /// Ends the open leaf; `next` is the key that comes after it.
    fn close(&mut self, next: &[u8]) -> Result<()> {
        let rows = std::mem::take(&mut self.open);
        let high = split::separator(rows.last_key().expect("not empty"), next);
        let core = &*self.tree.core;
        let long = |(key, value): &(&[u8], &[u8])| value.len() > self.tree.max_inline(key.len());
        let pages_of = |value: &[u8]| overflow::pages_for(core, self.tree.keyspace, value.len() as u64);
        let pages = 1 + rows.iter().filter(long).map(|row| pages_of(row.1)).sum::<usize>();
        self.bytes = 0;
        self.low.clone_from(&high);
        let most = BATCH_PAGES.min(core.pool.capacity_frames() / 8).max(1);
        if !self.ready.is_empty() && pages + self.ready.iter().map(|l| l.pages).sum::<usize>() > most {
            self.link()?;
        }
        self.ready.push(Leaf { rows, high, pages });
        Ok(())
    }

    /// Links the finished leaves.
    fn link(&mut self) -> Result<()> {
        while !self.ready.is_empty() {
            let linked = self.link_some()?;
            self.ready.drain(..linked);
        }
        Ok(())
    }

    /// Links as many of the finished leaves as their parent has room for; returns how many.
    fn link_some(&mut self) -> Result<usize> {
        let (tree, core) = (&self.tree, &*self.tree.core);
        let pages: usize = self.ready.iter().map(|l| l.pages).sum();
        let reserved = core.space.reserve(core, pages)?;
        let mut group = Group::begin(core, GroupKind::System, (pages + 3) * core.page_size())?;
        let placed = overflow::place(core, &mut group, tree.keyspace, reserved.ids())?;
        let first = self.ready[0].rows.first_key().expect("not empty");
        let Some(Family { parent, child: tail }) = tree.family(first, 0)? else {
            return Err(tree.corrupt(tree.root(), Damage("the tree lost its height during a bulk load")));
        };
        let node = tree.node(tail.id(), tail.bytes(), Some(0))?;
        if node.count() > 0 || node.high().is_some() {
            return Err(Error::Invalid("the keyspace was written to during a bulk load".into()));
        }
        let (low, end) = (node.low().to_vec(), node.end());
        let above = tree.node(parent.id(), parent.bytes(), Some(1))?;
        above.validate().map_err(|d| tree.corrupt(parent.id(), d))?;
        let size = |leaf: &Leaf| SLOT + 8 + leaf.high.len();
        let mut room = self.ready.iter().map(|l| above.room_for(&l.high)).min().expect("not empty");
        let fits = self.ready.iter().take_while(|l| room.checked_sub(size(l)).inspect(|r| room = *r).is_some()).count();
        if fits == 0 {
            let (high, need) = (self.ready[0].high.clone(), size(&self.ready[0]));
            drop((parent, tail, group, reserved));
            tree.make_parent_room(&high, need)?;
            return Ok(0);
        }
        let slot = above.count();
        let (up, tail) = (group.add(parent), group.add(tail));
        let tail_id = group.id(tail);
        self.fill(&mut group, &reserved, &placed, fits, &low, end);
        let mut at = 0;
        for (i, leaf) in self.ready[..fits].iter().enumerate() {
            let id = reserved.ids()[at].0;
            at += leaf.pages;
            let follows = if i + 1 < fits { reserved.ids()[at].0 } else { tail_id.0 };
            let done = match i {
                0 => edit::set_child(&mut group.page(up), slot, id),
                _ => Ok(()),
            };
            done.and_then(|()| edit::insert(&mut group.page(up), &leaf.high, slot + i, [&follows.to_le_bytes(), &[]]))
                .expect("the parent was validated and has room");
        }
        let high = &self.ready[fits - 1].high;
        group.page(tail).image(|b| split::init_leaf(b, high, None, end));
        core.space.apply(core, &mut group, &reserved.ids()[..at], &[]);
        group.commit()?;
        reserved.keep_first(at);
        Ok(fits)
    }

    /// Fills the pages of the first `count` leaves, long values included.
    fn fill(
        &self,
        group: &mut Group<'_>,
        reserved: &Reserved<'_>,
        placed: &[PageNo],
        count: usize,
        low: &[u8],
        end: usize,
    ) {
        let (tree, core) = (&self.tree, &*self.tree.core);
        let (mut at, mut low) = (0, low);
        for leaf in &self.ready[..count] {
            let (page, mut next) = (placed[at], at + 1);
            let mut long = Vec::new();
            for (_, value) in leaf.rows.iter().filter(|(key, value)| value.len() > tree.max_inline(key.len())) {
                let pages = next..next + overflow::pages_for(core, tree.keyspace, value.len() as u64);
                next = pages.end;
                let ids = &reserved.ids()[pages.clone()];
                long.push(overflow::fill_placed(core, group, tree.keyspace, value, ids, &placed[pages]));
            }
            let shape = Shape { level: 0, low, high: Some(&leaf.high), leftmost: 0, end };
            let mut long = long.iter();
            group.page(page).image(|b| {
                // What all its keys share with the low fence, which is what `push` reckoned with; the fences may share less.
                let prefix = common(low, leaf.rows.last_key().expect("not empty"));
                let mut out = edit::Builder::new(b, &shape, &low[..prefix]);
                for (key, value) in leaf.rows.iter() {
                    if value.len() <= tree.max_inline(key.len()) {
                        out.push_parts(key, [&(value.len() as u16).to_le_bytes(), value]);
                    } else {
                        let reference = long.next().expect("one for each long value").encode();
                        out.push_parts(key, [&(OVERFLOW | OverflowRef::LEN as u16).to_le_bytes(), &reference]);
                    }
                }
                out.finish();
                page::set_kind(b, KIND_LEAF);
            });
            at += leaf.pages;
            low = &leaf.high;
        }
    }

    /// Puts the last entries into the tail, for keys above which there is none.
    fn finish_one_by_one(mut self) -> Result<()> {
        self.link()?;
        let (tree, core) = (&self.tree, &*self.tree.core);
        for (key, value) in self.open.iter() {
            let long = value.len() > tree.max_inline(key.len());
            let pages = if long { overflow::pages_for(core, tree.keyspace, value.len() as u64) } else { 0 };
            let reserved = core.space.reserve(core, pages)?;
            let room = SLOT + 2 + key.len() + self.inline_len(key, value);
            let _pin = tree.leaf_for_write(key, room)?;
            let mut group = Group::begin(core, GroupKind::System, (pages + 2) * core.page_size())?;
            let placed = overflow::place(core, &mut group, tree.keyspace, reserved.ids())?;
            let leaf = tree.leaf_exclusive(key)?;
            leaf::prepare(leaf.bytes(), key, room).map_err(|d| tree.corrupt(leaf.id(), d))?;
            let n = group.add(leaf);
            let cell = match long {
                true => CellValue::Overflow(overflow::fill_placed(
                    core,
                    &mut group,
                    tree.keyspace,
                    value,
                    reserved.ids(),
                    &placed,
                )),
                false => CellValue::Inline(value),
            };
            leaf::put(&mut group.page(n), key, cell).expect("prepared");
            core.space.apply(core, &mut group, reserved.ids(), &[]);
            group.commit()?;
            reserved.keep();
        }
        Ok(())
    }
}

/// The least key above `key` that is not longer; none when `key` is all 0xff.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let last = key.iter().rposition(|b| *b != 0xff)?;
    let mut next = key[..=last].to_vec();
    next[last] += 1;
    Some(next)
}
