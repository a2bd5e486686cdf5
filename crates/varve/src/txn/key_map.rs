//! An ordered map of keys that is cheap while it is small, or while keys come in order: as most write sets are.
//!
//! Rows lie in blocks, one behind the other, so a key behind all others costs no search and moves nothing. A map of one
//! short block takes keys anywhere. From the first key on that would go into the middle of more, it is a tree.
//!
//! Invariants: keys ascend, within a block and from one to the next; no block is empty; all blocks but the last are
//! full.

use super::key::{Bounds, KeyBuf};
use std::collections::{BTreeMap, btree_map};
use std::ops::{Bound, Range};

/// Rows of a block.
const BLOCK: usize = 256;
/// Rows among which one more finds its place by moving those behind it.
const FEW: usize = 16;

/// An ordered map.
pub(super) struct KeyMap<V> {
    rows: Rows<V>,
}

enum Rows<V> {
    Blocks(Vec<Vec<(KeyBuf, V)>>),
    Tree(BTreeMap<KeyBuf, V>),
}

use Rows::{Blocks, Tree};

impl<V> KeyMap<V> {
    pub fn new() -> KeyMap<V> {
        KeyMap { rows: Blocks(Vec::new()) }
    }

    pub fn len(&self) -> usize {
        match &self.rows {
            Blocks(blocks) => blocks.last().map_or(0, |last| (blocks.len() - 1) * BLOCK + last.len()),
            Tree(map) => map.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match &self.rows {
            Blocks(blocks) => blocks.is_empty(),
            Tree(map) => map.is_empty(),
        }
    }

    pub fn clear(&mut self) {
        self.rows = Blocks(Vec::new());
    }

    pub fn get(&self, key: &[u8]) -> Option<&V> {
        match &self.rows {
            Blocks(blocks) => {
                let (block, at) = find(blocks, key)?;
                at.ok().map(|at| &blocks[block][at].1)
            }
            Tree(map) => map.get(key),
        }
    }

    /// Puts a value; returns the one that it replaces.
    pub fn insert(&mut self, key: KeyBuf, value: V) -> Option<V> {
        let blocks = match &mut self.rows {
            Blocks(blocks) => blocks,
            Tree(map) => return map.insert(key, value),
        };
        if blocks.last().and_then(|block| block.last()).is_none_or(|(last, _)| *last < key) {
            match blocks.last_mut().filter(|block| block.len() < BLOCK) {
                Some(block) => block.push((key, value)),
                None => blocks.push(vec![(key, value)]),
            }
            debug_assert!(
                blocks.len() == 1 || blocks[blocks.len() - 2].len() == BLOCK,
                "blocks before the last are full"
            );
            return None;
        }
        match find(blocks, &key).expect("there is a block") {
            (block, Ok(at)) => Some(std::mem::replace(&mut blocks[block][at].1, value)),
            (0, Err(at)) if blocks.len() == 1 && blocks[0].len() < FEW => {
                blocks[0].insert(at, (key, value));
                None
            }
            _ => self.tree().insert(key, value),
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        if let Blocks(blocks) = &mut self.rows {
            let (block, Ok(at)) = find(blocks, key)? else { return None };
            if block + 1 == blocks.len() {
                let (_, value) = blocks[block].remove(at);
                if blocks[block].is_empty() {
                    blocks.pop();
                }
                debug_assert!(blocks.last().is_none_or(|block| !block.is_empty()), "no block is empty");
                return Some(value);
            }
        }
        self.tree().remove(key)
    }

    /// The same rows as a tree, from here on.
    fn tree(&mut self) -> &mut BTreeMap<KeyBuf, V> {
        let len = self.len();
        if let Blocks(blocks) = &mut self.rows {
            let rows: BTreeMap<_, _> = std::mem::take(blocks).into_iter().flatten().collect();
            assert_eq!(rows.len(), len, "each key was there once");
            self.rows = Tree(rows);
        }
        let Tree(map) = &mut self.rows else { unreachable!("it was just made one") };
        map
    }

    pub fn iter(&self) -> Iter<'_, V> {
        self.range((Bound::Unbounded, Bound::Unbounded))
    }

    /// The rows of a range that can hold keys, in order.
    pub fn range(&self, (low, high): Bounds<'_>) -> Iter<'_, V> {
        match &self.rows {
            Blocks(blocks) => {
                let place = |key: &[u8], behind: bool| match find(blocks, key) {
                    None => (0, 0),
                    Some((block, Ok(at))) => (block, at + usize::from(behind)),
                    Some((block, Err(at))) => (block, at),
                };
                let start = match low {
                    Bound::Unbounded => (0, 0),
                    Bound::Included(key) => place(key, false),
                    Bound::Excluded(key) => place(key, true),
                };
                let end = match high {
                    Bound::Unbounded => (blocks.len(), 0),
                    Bound::Included(key) => place(key, true),
                    Bound::Excluded(key) => place(key, false),
                };
                let index = |(block, at): (usize, usize)| (block * BLOCK + at).min(self.len());
                let (start, end) = (index(start), index(end));
                assert!(start <= end, "a range that can hold keys");
                Iter::Blocks(blocks, start..end)
            }
            Tree(map) => Iter::Tree(map.range::<[u8], _>((low, high))),
        }
    }
}

/// The block that has the key, or would, and the place there; `None`: there are no rows.
fn find<V>(blocks: &[Vec<(KeyBuf, V)>], key: &[u8]) -> Option<(usize, Result<usize, usize>)> {
    if blocks.is_empty() {
        return None;
    }
    let block = blocks.partition_point(|block| *block[0].0 <= *key).saturating_sub(1);
    Some((block, blocks[block].binary_search_by(|(other, _)| (**other).cmp(key))))
}

/// Rows in order, from both ends.
pub(super) enum Iter<'m, V> {
    /// By their number.
    Blocks(&'m [Vec<(KeyBuf, V)>], Range<usize>),
    Tree(btree_map::Range<'m, KeyBuf, V>),
}

fn row<V>(blocks: &[Vec<(KeyBuf, V)>], n: usize) -> (&KeyBuf, &V) {
    let (key, value) = &blocks[n / BLOCK][n % BLOCK];
    (key, value)
}

impl<'m, V> Iterator for Iter<'m, V> {
    type Item = (&'m KeyBuf, &'m V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Blocks(blocks, numbers) => numbers.next().map(|n| row(blocks, n)),
            Iter::Tree(range) => range.next(),
        }
    }
}

impl<V> DoubleEndedIterator for Iter<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Blocks(blocks, numbers) => numbers.next_back().map(|n| row(blocks, n)),
            Iter::Tree(range) => range.next_back(),
        }
    }
}

impl<'m, V> IntoIterator for &'m KeyMap<V> {
    type Item = (&'m KeyBuf, &'m V);
    type IntoIter = Iter<'m, V>;

    fn into_iter(self) -> Iter<'m, V> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::is_possible;
    use super::*;
    use varve_rt::Rng;

    fn same(map: &KeyMap<u64>, model: &BTreeMap<Vec<u8>, u64>, range: Bounds<'_>) {
        let found: Vec<_> = map.range(range).map(|(key, value)| (key.to_vec(), *value)).collect();
        let wanted: Vec<_> = model.range::<[u8], _>(range).map(|(key, value)| (key.clone(), *value)).collect();
        assert_eq!(found, wanted, "{range:?}");
        assert!(map.range(range).rev().map(|(_, n)| n).eq(wanted.iter().rev().map(|(_, n)| n)), "{range:?}");
    }

    #[test]
    fn it_is_a_map_whatever_order_keys_come_in() {
        for seed in 0..300 {
            let mut rng = Rng::from_seed(seed);
            let (mut map, mut model) = (KeyMap::new(), BTreeMap::new());
            let (keys, steps) = (1 << (2 + rng.below(10)), rng.below(900));
            // How many of a hundred writes go behind all others.
            let ascending = [0, 90, 100][rng.below(3) as usize];
            for step in 0..steps {
                let behind = rng.below(100) < ascending;
                let key = if behind { (keys + step).to_be_bytes() } else { rng.below(keys).to_be_bytes() };
                match rng.below(20) {
                    0 => assert_eq!(map.remove(&key), model.remove(&key[..])),
                    1 => assert_eq!(map.get(&key), model.get(&key[..])),
                    2 => {
                        let (low, high) = (rng.below(2 * keys).to_be_bytes(), rng.below(2 * keys).to_be_bytes());
                        let bound = |key, kind| match kind {
                            0 => Bound::Unbounded,
                            1 => Bound::Included(key),
                            _ => Bound::Excluded(key),
                        };
                        let range = (bound(&low[..], rng.below(3)), bound(&high[..], rng.below(3)));
                        if is_possible(range.0, range.1) {
                            same(&map, &model, range);
                        }
                    }
                    _ => assert_eq!(map.insert(KeyBuf::new(&key), step), model.insert(key.to_vec(), step)),
                }
                assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()), "seed {seed}");
            }
            same(&map, &model, (Bound::Unbounded, Bound::Unbounded));
        }
    }

    #[test]
    fn keys_in_order_need_no_tree() {
        let mut map = KeyMap::new();
        for n in 0..2000u64 {
            map.insert(KeyBuf::new(&n.to_be_bytes()), n);
            map.insert(KeyBuf::new(&(n / 2).to_be_bytes()), n);
        }
        assert!(matches!(map.rows, Blocks(_)) && map.len() == 2000);
        map.remove(&1999u64.to_be_bytes());
        assert!(matches!(map.rows, Blocks(_)) && map.len() == 1999);
        map.remove(&5u64.to_be_bytes());
        assert!(matches!(map.rows, Tree(_)) && map.len() == 1998 && map.get(&5u64.to_be_bytes()).is_none());
    }
}
