//! The rows of a keyspace with types.

use super::{AsKey, Key, Rows, Snapshot, Transaction, TypedKeyspace, Value};
use crate::error::Result;
use crate::txn::KeyRange;
use std::ops::RangeBounds;

/// The rows of a range of a [`TypedKeyspace`], from both ends: [`Rows`] with types. An error ends it.
pub struct TypedRows<'t, K, V> {
    rows: Rows<'t>,
    keyspace: TypedKeyspace<K, V>,
}

impl<K, V> std::fmt::Debug for TypedRows<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rows.fmt(f)
    }
}

fn bytes_of<K: Key>(range: &impl RangeBounds<K>) -> KeyRange<'static> {
    KeyRange::from((range.start_bound().map(AsKey::to_key), range.end_bound().map(AsKey::to_key)))
}

impl<K: Key, V: Value> TypedKeyspace<K, V> {
    fn typed<'t>(&self, rows: Rows<'t>) -> TypedRows<'t, K, V> {
        TypedRows { rows, keyspace: self.clone() }
    }

    /// All rows as of the moment of the call, from both ends.
    pub fn iter(&self) -> Result<TypedRows<'static, K, V>> {
        self.range(..)
    }

    /// The rows of a range as of the moment of the call, from both ends.
    pub fn range(&self, range: impl RangeBounds<K>) -> Result<TypedRows<'static, K, V>> {
        Ok(self.typed(self.keyspace().range(bytes_of(&range))?))
    }

    /// The rows of a range as a transaction sees them, from both ends: see [`Transaction::iter`].
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let scores = db.typed_keyspace::<u32, String>("scores")?;
    /// scores.put(&7, &"ann".into())?;
    /// let best = db.transact(|tx| {
    ///     scores.put_in(tx, &9, &"bob".into())?;
    ///     scores.range_in(tx, 5..)?.next_back().transpose()
    /// })?;
    /// assert_eq!(best, Some((9, "bob".into())));
    /// # drop(scores); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn range_in<'t>(&self, tx: &'t mut Transaction, range: impl RangeBounds<K>) -> Result<TypedRows<'t, K, V>> {
        Ok(self.typed(tx.range(self.keyspace(), bytes_of(&range))?))
    }

    /// The rows of a range as of a snapshot, from both ends.
    pub fn range_at(&self, snapshot: &Snapshot, range: impl RangeBounds<K>) -> Result<TypedRows<'static, K, V>> {
        Ok(self.typed(snapshot.range(self.keyspace(), bytes_of(&range))?))
    }
}

impl<K: Key, V: Value> TypedRows<'_, K, V> {
    /// Moves the low end up to a key: see [`Rows::seek`].
    pub fn seek(&mut self, key: &(impl AsKey<K> + ?Sized)) {
        self.rows.seek(key.to_key());
    }

    /// Moves the high end down to a key: see [`Rows::seek_back`].
    pub fn seek_back(&mut self, key: &(impl AsKey<K> + ?Sized)) {
        self.rows.seek_back(key.to_key());
    }
}

impl<K: Key, V: Value> Iterator for TypedRows<'_, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.rows.next()?.and_then(|row| self.keyspace.row(row)))
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for TypedRows<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.rows.next_back()?.and_then(|row| self.keyspace.row(row)))
    }
}
