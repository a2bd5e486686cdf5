//! Reading one key of a tree, overflow values included, with the LSN of the page that showed it.

use crate::btree::{OverflowRef, Tree, ValueRef, corrupt, overflow};
use crate::error::{Error, Result};
use crate::space::Core;
use varve_volume::{Lsn, PageId};

/// What a look at a key's value came to.
pub(super) enum Found<R> {
    /// It was handed over.
    Done(R),
    /// It is long, and has yet to be read.
    Long(OverflowRef),
}

/// A value taken out of where it was found; a long one stays where it lies.
pub(super) enum Copied {
    Bytes(Box<[u8]>),
    Long(OverflowRef),
}

impl Copied {
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Copied::Bytes(bytes) => ValueRef::Inline(bytes),
            Copied::Long(reference) => ValueRef::Overflow(*reference),
        }
    }
}

impl From<ValueRef<'_>> for Copied {
    fn from(value: ValueRef<'_>) -> Copied {
        match value {
            ValueRef::Inline(bytes) => Copied::Bytes(bytes.into()),
            ValueRef::Overflow(reference) => Copied::Long(reference),
        }
    }
}

/// Hands the value of `key` as it is now to `f` (under the leaf's latch when it is short: `f` must not wait). Holding
/// no lock on the key is fine: a long value that is replaced meanwhile is read again.
#[inline]
pub(super) fn read<R>(core: &Core, tree: &Tree, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<(R, Lsn)> {
    read_at(core, tree, key, f).map(|(result, lsn, _)| (result, lsn))
}

/// As [`read`]; also says which leaf covers the key.
#[inline]
pub(super) fn read_at<R>(
    core: &Core,
    tree: &Tree,
    key: &[u8],
    f: impl FnOnce(Option<&[u8]>) -> R,
) -> Result<(R, Lsn, PageId)> {
    let mut f = Some(f);
    let mut failed: Option<(OverflowRef, Error)> = None;
    loop {
        let (found, lsn, page) = tree.with_leaf(key, |leaf| {
            let found = leaf.find(key).map_err(|d| corrupt(leaf.id(), tree.keyspace(), d))?;
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
        match overflow::read(core, tree.keyspace(), &long, 0..long.len, &mut value) {
            Ok(()) => return Ok(((f.take().expect("called once"))(Some(&value)), lsn, page)),
            Err(error) => failed = Some((long, error)),
        }
    }
}

/// Whether a key is there now, with the LSN of the page that showed it. Reads no long value.
pub(super) fn is_there(tree: &Tree, key: &[u8]) -> Result<(bool, Lsn)> {
    tree.with_leaf(key, |leaf| {
        let found = leaf.find(key).map_err(|d| corrupt(leaf.id(), tree.keyspace(), d))?;
        Ok((found.is_some(), leaf.lsn()))
    })?
}
