//! Reading one key, long values included, with the LSN of the leaf that showed it.

use super::Tree;
use super::leaf::LeafView;
use crate::error::{Error, Result};
use crate::rows::{Copied, Hint, OverflowRef, ValueRef, overflow};
use varve_volume::{Lsn, PageId};

/// What a look at a key's value came to.
enum Found<R> {
    /// It was handed over.
    Done(R),
    /// It is long, and has yet to be read.
    Long(OverflowRef),
}

impl Tree {
    /// Hands the value of `key` as it is now to `f` (under the leaf's latch when it is short: `f` must not wait).
    /// Holding no lock on the key is fine: a long value that is replaced meanwhile is read again.
    #[inline]
    pub(crate) fn read<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn)> {
        self.read_at(key, f).map(|(result, lsn, _)| (result, lsn))
    }

    /// As [`Tree::read`]; also says which leaf covers the key.
    #[inline]
    pub(crate) fn read_for_write<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn, Hint)> {
        let left = self.core.nodes_left();
        self.read_at(key, f).map(|(result, lsn, page)| (result, lsn, Hint { page, left, lsn }))
    }

    /// As [`Tree::read`], if the way to the key is in memory and nobody changes it; none: that takes a wait, and so
    /// does a long value.
    pub(crate) fn read_now<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<Option<(R, Lsn)>> {
        let Some(page) = self.leaf_now(key)? else { return Ok(None) };
        let leaf = LeafView::found(self.node(page.id(), page.bytes(), Some(0))?, page.id(), key);
        let found = leaf.find(key).map_err(|d| self.corrupt(leaf.id(), d))?;
        match found {
            None => Ok(Some((f(None), leaf.lsn()))),
            Some(ValueRef::Inline(value)) => Ok(Some((f(Some(value)), leaf.lsn()))),
            Some(ValueRef::Overflow(_)) => Ok(None),
        }
    }

    #[inline]
    fn read_at<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn, PageId)> {
        let mut f = Some(f);
        let mut failed: Option<(OverflowRef, Error)> = None;
        loop {
            let (found, lsn, page) = self.with_leaf(key, |leaf| {
                let found = leaf.find(key).map_err(|d| self.corrupt(leaf.id(), d))?;
                let mut done = |value| Found::Done((f.take().expect("called once"))(value));
                let found = match found {
                    None => done(None),
                    Some(ValueRef::Inline(value)) => done(Some(value)),
                    Some(ValueRef::Overflow(long)) => Found::Long(long),
                };
                Ok::<_, Error>((found, leaf.lsn(), leaf.id()))
            })??;
            let long = match found {
                Found::Done(result) => return Ok((result, lsn, page)),
                Found::Long(long) => long,
            };
            // A value that was replaced under us fails to read; whether it was, the leaf shows.
            match failed.take() {
                Some((reference, error)) if reference == long => return Err(error),
                _ => {}
            }
            let mut value = Vec::new();
            match overflow::read(&self.core, self.keyspace, &long, 0..long.len, &mut value) {
                Ok(()) => return Ok(((f.take().expect("called once"))(Some(&value)), lsn, page)),
                Err(error) => failed = Some((long, error)),
            }
        }
    }

    /// Whether a key is there now. Reads no long value.
    pub(crate) fn contains(&self, key: &[u8]) -> Result<(bool, Lsn)> {
        self.with_leaf(key, |leaf| {
            let found = leaf.find(key).map_err(|d| self.corrupt(leaf.id(), d))?;
            Ok((found.is_some(), leaf.lsn()))
        })?
    }

    /// The value of a key, as its leaf has it.
    pub(crate) fn find(&self, key: &[u8]) -> Result<(Option<Copied>, Lsn)> {
        self.with_leaf(key, |leaf| {
            let found = leaf.find(key).map_err(|d| self.corrupt(leaf.id(), d))?;
            Ok((found.map(Copied::from), leaf.lsn()))
        })?
    }
}
