//! Bulk load: sorted entries become finished leaves, left to right, which go to the store as direct pages and are
//! linked many at a time.
//!
//! The tree's last leaf (the *tail*) is kept empty. New leaves take their place in front of it: the separators in the
//! parent and the tail's new low fence are one log group, so that the tree is sound at every moment and a crash loses
//! no more than what was not linked yet. The log holds the separators alone (`direct.rs`).
//!
//! Invariants: keys ascend from entry to entry and leaf to leaf; `ready_pages` are the pages of the leaves that are
//! `ready`, and those come first among the written ones.

use super::descend::Family;
use super::edit::{self, Shape};
use super::leaf::{self, CellValue, KIND_LEAF};
use super::node::*;
use super::{Tree, split};
use crate::error::{Error, Result};
use crate::page::Group;
use crate::page::PageEdit;
use crate::rows::{OverflowRef, overflow};
use crate::space::direct::{self, DirectPages};
use crate::space::extents::PageSet;
use crate::wal::GroupKind;
use varve_volume::{PageId, page};

/// Bytes of pages that are written before they are synced and linked.
const UNLINKED_BYTES: usize = 256 << 20;

/// Cells on their way into a leaf, in one piece of memory.
#[derive(Default)]
struct Cells {
    bytes: Vec<u8>,
    /// Where each begins, and the lengths of its key and of what follows in the cell.
    at: Vec<(usize, usize, usize)>,
}

impl Cells {
    fn push(&mut self, key: &[u8], parts: [&[u8]; 2]) {
        self.at.push((self.bytes.len(), key.len(), parts[0].len() + parts[1].len()));
        self.bytes.extend_from_slice(key);
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.at.clear();
    }

    fn len(&self) -> usize {
        self.at.len()
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.at.iter().map(|&(at, key, rest)| self.bytes[at..at + key + rest].split_at(key))
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.iter().next_back().map(|cell| cell.0)
    }
}

/// A leaf to be linked.
struct Leaf {
    id: PageId,
    /// Low fence of what follows.
    high: Vec<u8>,
    /// Pages that were filled for it, long values included.
    pages: usize,
}

/// Loads ascending entries into a tree. Nobody else may write to the keyspace meanwhile; readers see batch after batch.
pub(crate) struct BulkLoad {
    tree: Tree,
    /// Bytes that a leaf is filled with.
    fill: usize,
    open: Cells,
    /// Bytes of the open leaf's cells as if nothing was compressed.
    bytes: usize,
    /// Low fence of the open leaf.
    low: Vec<u8>,
    pages: DirectPages,
    ready: Vec<Leaf>,
    /// Pages of the leaves that are ready.
    ready_pages: usize,
    /// All that were linked, where there are extents to be sealed.
    linked: Option<PageSet>,
    begun: bool,
}

impl Tree {
    /// Begins a bulk load of keys above all that the tree holds. Leaves are filled to `fill` (0.5 to 1.0 of a page).
    pub(crate) fn bulk_load(&self, fill: f64) -> BulkLoad {
        let body = self.usable() + HEADER - SLOTS;
        let fill = (body as f64 * fill.clamp(0.5, 1.0)) as usize;
        BulkLoad {
            tree: self.clone(),
            fill,
            open: Cells::default(),
            bytes: 0,
            low: Vec::new(),
            pages: DirectPages::new(&self.core, self.keyspace).in_extents(),
            ready: Vec::new(),
            ready_pages: 0,
            linked: self.core.store.extent().map(|_| PageSet::default()),
            begun: false,
        }
    }
}

impl BulkLoad {
    /// Takes the next entry. Fails when its key is not above the one before (or those in the tree), or too long; what
    /// was loaded before stays.
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
        let long = value.len() > self.tree.max_inline(key.len());
        let size = SLOT + key.len() + 2 + if long { OverflowRef::LEN } else { value.len() };
        // What all keys up to this one share with the low fence will be stored once.
        let saved = common(&self.low, key) * (self.open.len() + 1);
        let fences = self.low.len() + key.len();
        if self.open.len() > 0 && (self.bytes + size + fences).saturating_sub(saved) > self.fill {
            self.close(key)?;
        }
        if long {
            let mut rest = value;
            let (core, keyspace) = (self.tree.core.clone(), self.tree.keyspace);
            let reference = overflow::write_direct(&core, &mut self.pages, keyspace, |to| {
                let n = rest.len().min(to.len());
                to[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                Ok(n)
            })?;
            self.open.push(key, [&(OVERFLOW | OverflowRef::LEN as u16).to_le_bytes(), &reference.encode()]);
        } else {
            self.open.push(key, [&(value.len() as u16).to_le_bytes(), value]);
        }
        self.bytes += size;
        Ok(())
    }

    /// Links what is left. Without it, the last entries are not in the tree.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.link_rest()?;
        if let Some(linked) = &self.linked {
            self.tree.core.space.loaded(linked);
        }
        Ok(())
    }

    fn link_rest(&mut self) -> Result<()> {
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
                    assert_eq!(count, 0, "the tail is empty");
                    (self.low, self.begun) = (low, true);
                    return Ok(());
                }
            }
        }
    }

    /// Ends the open leaf; `next` is the key that comes after it.
    fn close(&mut self, next: &[u8]) -> Result<()> {
        let (tree, cells) = (&self.tree, &self.open);
        let last = cells.last_key().expect("not empty");
        assert!(last < next, "leaves follow each other");
        let high = split::separator(last, next);
        let low = &self.low[..];
        let shape = Shape { level: 0, low, high: Some(&high), leftmost: 0, end: HEADER + tree.usable() };
        let id = self.pages.fill(|b| {
            // What all its keys share with the low fence, which is what `push` reckoned with; the fences may share
            // less.
            let mut out = edit::Builder::new(b, &shape, &low[..common(low, last)]);
            cells.iter().for_each(|(key, rest)| out.push(key, rest));
            out.finish();
            page::set_kind(b, KIND_LEAF);
        })?;
        self.bytes = 0;
        self.open.clear();
        self.low.clone_from(&high);
        let pages = self.pages.written_len() - self.ready_pages;
        self.ready_pages += pages;
        self.ready.push(Leaf { id, high, pages });
        if self.ready_pages * tree.core.page_size() >= UNLINKED_BYTES { self.link() } else { Ok(()) }
    }

    /// Links the finished leaves.
    fn link(&mut self) -> Result<()> {
        if self.ready.is_empty() {
            return Ok(());
        }
        let ready = std::mem::take(&mut self.ready);
        let mut rest = &ready[..];
        while !rest.is_empty() {
            rest = &rest[self.link_some(rest)?..];
        }
        assert_eq!(self.ready_pages, 0, "the pages of all leaves are linked");
        Ok(())
    }

    /// Links as many of the leaves as their parent has room for; returns how many.
    fn link_some(&mut self, leaves: &[Leaf]) -> Result<usize> {
        let core = self.tree.core.clone();
        // More than a parent can ever take need not be looked at.
        let leaves = &leaves[..leaves.len().min(core.page_size() / (SLOT + 8))];
        let (tree, core) = (&self.tree, &*core);
        let most = self.ready_pages.min(core.space.maps() as usize);
        let mut group = Group::begin(core, GroupKind::System, (most + 3) * (core.page_size() + 64))?;
        let linking = direct::link(core, &mut [&mut self.pages])?.expect("of one set");
        // The tail covers it, as all that comes after.
        let first = &leaves[0].high;
        let Some(Family { parent, child: tail }) = tree.family(first, 0)? else {
            return Err(tree.corrupt(tree.root(), Damage("the tree lost its height during a bulk load")));
        };
        let node = tree.node(tail.id(), tail.bytes(), Some(0))?;
        if node.count() > 0 || node.high().is_some() {
            return Err(Error::Invalid("the keyspace was written to during a bulk load".into()));
        }
        let end = node.end();
        let above = tree.node(parent.id(), parent.bytes(), Some(1))?;
        above.validate().map_err(|d| tree.corrupt(parent.id(), d))?;
        let size = |leaf: &Leaf| SLOT + 8 + leaf.high.len();
        let mut room = leaves.iter().map(|l| above.room_for(&l.high)).min().expect("not empty");
        let fits = leaves.iter().take_while(|l| room.checked_sub(size(l)).inspect(|r| room = *r).is_some()).count();
        if fits == 0 {
            drop((parent, tail, group, linking));
            tree.make_parent_room(first, size(&leaves[0]))?;
            return Ok(0);
        }
        let slot = above.count();
        let (up, tail) = (group.add(parent), group.add(tail));
        let tail_id = group.id(tail);
        let linked: usize = leaves[..fits].iter().map(|l| l.pages).sum();
        for (i, leaf) in leaves[..fits].iter().enumerate() {
            let follows = leaves[..fits].get(i + 1).map_or(tail_id, |l| l.id);
            let done = match i {
                0 => edit::set_child(&mut group.page(up), slot, leaf.id.0),
                _ => Ok(()),
            };
            let cell = [&follows.0.to_le_bytes()[..], &[]];
            done.and_then(|()| edit::insert(&mut group.page(up), &leaf.high, slot + i, cell))
                .expect("the parent was validated and has room");
        }
        let high = &leaves[fits - 1].high;
        group.page(tail).image(|b| split::init_leaf(b, high, None, end));
        let ids: Vec<PageId> = self.pages.written().take(linked).collect();
        assert!(ids.len() == linked && linked <= self.ready_pages, "a leaf's pages are written before it is linked");
        core.space.apply(core, &mut group, &ids, &[]);
        group.commit()?;
        linking.linked(&mut self.pages, linked);
        self.linked.iter_mut().for_each(|set| ids.iter().for_each(|id| set.add(*id)));
        self.ready_pages -= linked;
        Ok(fits)
    }

    /// Puts the last entries into the tail, for keys above which there is none.
    fn finish_one_by_one(&mut self) -> Result<()> {
        self.link()?;
        let core = self.tree.core.clone();
        let (tree, core) = (&self.tree, &*core);
        for (key, rest) in self.open.iter() {
            let (head, value) = rest.split_at(2);
            let long = head[1] & (OVERFLOW >> 8) as u8 != 0;
            let cell = match OverflowRef::decode(value).filter(|_| long) {
                Some(reference) => CellValue::Overflow(reference),
                None => CellValue::Inline(value),
            };
            let pages = match &cell {
                CellValue::Overflow(r) => overflow::pages_for(core, tree.keyspace, r.len),
                CellValue::Inline(_) => 0,
            };
            let room = SLOT + key.len() + rest.len();
            let _pin = tree.leaf_for_write(key, room)?;
            let maps = pages.min(core.space.maps() as usize);
            let mut group = Group::begin(core, GroupKind::System, (maps + 2) * (core.page_size() + 64))?;
            let linking = direct::link(core, &mut [&mut self.pages])?.expect("of one set");
            let leaf = tree.leaf_exclusive(key)?;
            leaf::prepare(leaf.bytes(), key, room).map_err(|d| tree.corrupt(leaf.id(), d))?;
            let n = group.add(leaf);
            leaf::put(&mut group.page(n), key, cell).expect("prepared");
            let ids: Vec<PageId> = self.pages.written().take(pages).collect();
            core.space.apply(core, &mut group, &ids, &[]);
            group.commit()?;
            linking.linked(&mut self.pages, pages);
            self.linked.iter_mut().for_each(|set| ids.iter().for_each(|id| set.add(*id)));
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
