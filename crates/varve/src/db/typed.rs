//! Keyspaces whose keys and values are of Rust's types.
//!
//! Keys are written so that the order of their bytes is the order of their values: integers with the highest byte first
//! and the sign turned, text and bytes as they are. Within a tuple, text and bytes that something follows end with two
//! zeros, and a zero in them is followed by a one.

use super::reads::only;
use super::{Db, Keyspace, ReadFuture, Snapshot, Transaction};
use crate::error::{Error, Result};
use crate::txn::{TxOptions, Values};
use std::marker::PhantomData;

use std::sync::Arc;

/// What can be a key: the order of the bytes is the order of the values.
pub trait Key: Sized {
    /// Appends the key to `to`; `last`: nothing follows it, so that it needs no end of its own.
    fn encode(&self, to: &mut Vec<u8>, last: bool);

    /// Takes the key from the beginning of `from`; `None`: that is no such key.
    fn decode(from: &mut &[u8], last: bool) -> Option<Self>;
}

/// What can be a value. Every [`Key`] is one.
pub trait Value: Sized {
    /// Appends the value to `to`.
    ///
    /// # Errors
    /// `Invalid` when it cannot be written.
    fn encode(&self, to: &mut Vec<u8>) -> Result<()>;

    /// The value from all of `from`; `None`: that is no such value.
    fn decode(from: &[u8]) -> Option<Self>;
}

impl<T: Key> Value for T {
    fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
        Key::encode(self, to, true);
        Ok(())
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let value = Key::decode(&mut from, true)?;
        from.is_empty().then_some(value)
    }
}

/// What stands for a key of type `K` in calls: the key, `str` for `String`, `[u8]` for `Vec<u8>`.
pub trait AsKey<K> {
    /// The bytes of the key.
    fn to_key(&self) -> Vec<u8>;
}

impl<K: Key> AsKey<K> for K {
    fn to_key(&self) -> Vec<u8> {
        let mut to = Vec::new();
        self.encode(&mut to, true);
        debug_assert!(K::decode(&mut &to[..], true).is_some(), "what is written can be read");
        to
    }
}

impl AsKey<String> for str {
    fn to_key(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl AsKey<Vec<u8>> for [u8] {
    fn to_key(&self) -> Vec<u8> {
        self.to_vec()
    }
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl Key for $unsigned {
            fn encode(&self, to: &mut Vec<u8>, _: bool) {
                to.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(from: &mut &[u8], _: bool) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$unsigned>::from_be_bytes(*bytes))
            }
        }

        impl Key for $signed {
            fn encode(&self, to: &mut Vec<u8>, last: bool) {
                Key::encode(&(*self as $unsigned ^ (1 << (<$unsigned>::BITS - 1))), to, last);
            }

            fn decode(from: &mut &[u8], last: bool) -> Option<Self> {
                let turned = <$unsigned as Key>::decode(from, last)?;
                Some((turned ^ (1 << (<$unsigned>::BITS - 1))) as $signed)
            }
        }
    )*};
}

integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl Key for () {
    fn encode(&self, _: &mut Vec<u8>, _: bool) {}

    fn decode(_: &mut &[u8], _: bool) -> Option<Self> {
        Some(())
    }
}

impl Key for bool {
    fn encode(&self, to: &mut Vec<u8>, _: bool) {
        to.push(u8::from(*self));
    }

    fn decode(from: &mut &[u8], last: bool) -> Option<Self> {
        match <u8 as Key>::decode(from, last)? {
            n @ (0 | 1) => Some(n == 1),
            _ => None,
        }
    }
}

impl<const N: usize> Key for [u8; N] {
    fn encode(&self, to: &mut Vec<u8>, _: bool) {
        to.extend_from_slice(self);
    }

    fn decode(from: &mut &[u8], _: bool) -> Option<Self> {
        let (bytes, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(*bytes)
    }
}

/// What follows a zero byte of text that something follows: it goes on, or ends.
const ZERO: u8 = 1;
const END: u8 = 0;

impl Key for Vec<u8> {
    fn encode(&self, to: &mut Vec<u8>, last: bool) {
        if last {
            to.extend_from_slice(self);
            return;
        }
        for byte in self {
            to.push(*byte);
            if *byte == 0 {
                to.push(ZERO);
            }
        }
        to.extend_from_slice(&[0, END]);
        debug_assert!(to.len() >= self.len() + 2, "nothing is left out, and it has an end");
    }

    fn decode(from: &mut &[u8], last: bool) -> Option<Self> {
        if last {
            return Some(std::mem::take(from).to_vec());
        }
        let mut bytes = Vec::new();
        loop {
            let (byte, rest) = from.split_first()?;
            *from = rest;
            if *byte == 0 {
                let (then, rest) = from.split_first()?;
                *from = rest;
                match *then {
                    END => return Some(bytes),
                    ZERO => {}
                    _ => return None,
                }
            }
            bytes.push(*byte);
        }
    }
}

impl Key for String {
    fn encode(&self, to: &mut Vec<u8>, last: bool) {
        match last {
            true => to.extend_from_slice(self.as_bytes()),
            false => Key::encode(&self.as_bytes().to_vec(), to, false),
        }
    }

    fn decode(from: &mut &[u8], last: bool) -> Option<Self> {
        String::from_utf8(<Vec<u8> as Key>::decode(from, last)?).ok()
    }
}

macro_rules! tuples {
    ($(($($first:ident)*; $end:ident);)*) => {$(
        impl<$($first: Key,)* $end: Key> Key for ($($first,)* $end,) {
            #[allow(non_snake_case, reason = "variables are named as their types")]
            fn encode(&self, to: &mut Vec<u8>, last: bool) {
                let ($($first,)* $end,) = self;
                $(Key::encode($first, to, false);)*
                Key::encode($end, to, last);
            }

            fn decode(from: &mut &[u8], last: bool) -> Option<Self> {
                Some(($(<$first as Key>::decode(from, false)?,)* <$end as Key>::decode(from, last)?,))
            }
        }
    )*};
}

tuples! { (A; B); (A B; C); (A B C; D); }

macro_rules! floats {
    ($($float:ty, $bits:ty;)*) => {$(
        impl Value for $float {
            fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
                Value::encode(&self.to_bits(), to)
            }

            fn decode(from: &[u8]) -> Option<Self> {
                Some(<$float>::from_bits(<$bits as Value>::decode(from)?))
            }
        }
    )*};
}

floats! { f32, u32; f64, u64; }

/// A value that is written as JSON, by serde.
#[cfg(feature = "serde")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Json<T>(
    /// The value.
    pub T,
);

#[cfg(feature = "serde")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Value for Json<T> {
    fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
        let written = serde_json::to_writer(to, &self.0);
        written.map_err(|e| Error::Invalid(format!("a {} cannot be written as JSON: {e}", std::any::type_name::<T>())))
    }

    fn decode(from: &[u8]) -> Option<Self> {
        serde_json::from_slice(from).ok().map(Json)
    }
}

/// A keyspace whose keys are of type `K` and whose values are of type `V`. Made by
/// [`Db::typed_keyspace`](crate::Db::typed_keyspace). The bytes below are those of the [`Keyspace`]; nothing in them
/// says of which type they are.
///
/// Calls fail as those of [`Keyspace`]; and with `Invalid` where a row is not of the types.
///
/// ```
/// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
/// let visits = db.typed_keyspace::<(String, i64), u32>("visits")?;
/// for day in [-3, 12, 5] {
///     visits.put(&("ada".into(), day), &1)?;
/// }
/// visits.update(&("ada".into(), 5), |n| Some(n.unwrap_or(0) + 1))?;
/// let days = visits.range(("ada".into(), i64::MIN)..=("ada".into(), i64::MAX))?;
/// let days: Vec<(i64, u32)> = days.map(|row| row.map(|((_, day), n)| (day, n))).collect::<Result<_, _>>()?;
/// assert_eq!(days, [(-3, 1), (5, 2), (12, 1)]);
/// # drop(visits);
/// db.close()?;
/// # Ok::<(), varve::Error>(())
/// ```
pub struct TypedKeyspace<K, V> {
    keyspace: Keyspace,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for TypedKeyspace<K, V> {
    fn clone(&self) -> Self {
        TypedKeyspace { keyspace: self.keyspace.clone(), types: PhantomData }
    }
}

impl<K, V> std::fmt::Debug for TypedKeyspace<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.keyspace.fmt(f)
    }
}

fn bytes_of<V: Value>(value: &V) -> Result<Vec<u8>> {
    let mut to = Vec::new();
    value.encode(&mut to)?;
    debug_assert!(V::decode(&to).is_some(), "what is written can be read");
    Ok(to)
}

fn bytes_of_keys<'k, K, Q: AsKey<K> + ?Sized + 'k>(keys: impl IntoIterator<Item = &'k Q>) -> Vec<Vec<u8>> {
    keys.into_iter().map(AsKey::to_key).collect()
}

/// `name`: what the keyspace is called.
fn value_of<V: Value>(bytes: &[u8], name: impl FnOnce() -> Arc<str>) -> Result<V> {
    V::decode(bytes).ok_or_else(|| wrong::<V>(&name(), "value", bytes))
}

fn value_if_any<V: Value>(bytes: Option<Vec<u8>>, name: impl FnOnce() -> Arc<str>) -> Result<Option<V>> {
    bytes.map(|bytes| value_of(&bytes, name)).transpose()
}

/// What a future makes of the value of a key; `name`: what the keyspace is called.
fn one_of<V: Value>(name: Arc<str>) -> impl Fn(Values) -> Result<Option<V>> + Send + Sync + 'static {
    move |values| value_if_any(only(values), || name.clone())
}

fn all_of<V: Value>(name: Arc<str>) -> impl Fn(Values) -> Result<Vec<Option<V>>> + Send + Sync + 'static {
    move |values| values.into_iter().map(|value| value_if_any(value, || name.clone())).collect()
}

fn wrong<T>(keyspace: &str, what: &str, bytes: &[u8]) -> Error {
    let begins: String = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let of = std::any::type_name::<T>();
    Error::Invalid(format!(
        "keyspace {keyspace:?}: the {what} that begins with 0x{begins} is no {of}; it was written as another type"
    ))
}

impl<K: Key, V: Value> TypedKeyspace<K, V> {
    /// `keyspace` with types.
    pub fn new(keyspace: Keyspace) -> Self {
        TypedKeyspace { keyspace, types: PhantomData }
    }

    /// The keyspace without types.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    fn key(&self, mut bytes: &[u8]) -> Result<K> {
        let all = bytes;
        let key = K::decode(&mut bytes, true).filter(|_| bytes.is_empty());
        key.ok_or_else(|| wrong::<K>(&self.keyspace.name(), "key", all))
    }

    fn value(&self, value: Option<Vec<u8>>) -> Result<Option<V>> {
        value_if_any(value, || self.keyspace.name())
    }

    fn values(&self, values: Values) -> Result<Vec<Option<V>>> {
        values.into_iter().map(|value| self.value(value)).collect()
    }

    pub(super) fn row(&self, row: (Vec<u8>, Vec<u8>)) -> Result<(K, V)> {
        Ok((self.key(&row.0)?, value_of(&row.1, || self.keyspace.name())?))
    }

    /// The value of a key, as last committed; `None` if there is none.
    pub fn get(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>> {
        self.value(self.keyspace.get(key.to_key())?)
    }

    /// The value of a key as a transaction sees it: see [`Transaction::get`].
    pub fn get_in(&self, tx: &mut Transaction, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>> {
        self.value(tx.get(&self.keyspace, key.to_key())?)
    }

    /// The value of a key as of a snapshot.
    pub fn get_at(&self, snapshot: &Snapshot, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>> {
        self.value(snapshot.get(&self.keyspace, key.to_key())?)
    }

    /// The values of many keys, in their order: see [`Keyspace::multi_get`].
    ///
    /// ```
    /// let db = varve::Db::temporary(varve::Options::default().cache_mb(8))?;
    /// let ages = db.typed_keyspace::<String, u8>("ages")?;
    /// ages.put("ada", &36)?;
    /// assert_eq!(ages.multi_get(["ada", "eve"])?, [Some(36), None]);
    /// # drop(ages); db.close()?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    pub fn multi_get<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> Result<Vec<Option<V>>> {
        self.values(self.keyspace.multi_get(&bytes_of_keys(keys))?)
    }

    /// The values of many keys, in their order, as a transaction sees them: see [`Transaction::multi_get`].
    pub fn multi_get_in<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        tx: &mut Transaction,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> Result<Vec<Option<V>>> {
        self.values(tx.multi_get(&self.keyspace, &bytes_of_keys(keys))?)
    }

    /// The values of many keys, in their order, as of a snapshot.
    pub fn multi_get_at<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        snapshot: &Snapshot,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> Result<Vec<Option<V>>> {
        self.values(snapshot.multi_get(&self.keyspace, &bytes_of_keys(keys))?)
    }

    /// As [`TypedKeyspace::get`], but returns at once, with a future: see [`Keyspace::get_async`]. The value is decoded
    /// where the future is polled.
    pub fn get_async(&self, key: &(impl AsKey<K> + ?Sized)) -> ReadFuture<Option<V>> {
        self.keyspace.db.read_async(None, &self.keyspace.shared, &[&key.to_key()], one_of(self.keyspace.name()))
    }

    /// As [`TypedKeyspace::get_at`], but returns at once, with a future: see [`Snapshot::get_async`].
    pub fn get_at_async(&self, snapshot: &Snapshot, key: &(impl AsKey<K> + ?Sized)) -> ReadFuture<Option<V>> {
        snapshot.read_async(&self.keyspace, &[&key.to_key()], one_of(self.keyspace.name()))
    }

    /// As [`TypedKeyspace::multi_get`], but returns at once, with a future: see [`TypedKeyspace::get_async`].
    pub fn multi_get_async<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> ReadFuture<Vec<Option<V>>> {
        let keys = bytes_of_keys(keys);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.keyspace.db.read_async(None, &self.keyspace.shared, &keys, all_of(self.keyspace.name()))
    }

    /// As [`TypedKeyspace::multi_get_at`], but returns at once, with a future: see [`Snapshot::get_async`].
    pub fn multi_get_at_async<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        snapshot: &Snapshot,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> ReadFuture<Vec<Option<V>>> {
        let keys = bytes_of_keys(keys);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        snapshot.read_async(&self.keyspace, &keys, all_of(self.keyspace.name()))
    }

    /// Whether a key is there.
    pub fn contains(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<bool> {
        self.keyspace.contains(key.to_key())
    }

    /// Sets the value of a key, in a transaction of its own.
    pub fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &V) -> Result<()> {
        self.keyspace.put(key.to_key(), bytes_of(value)?)
    }

    /// Sets the value of a key in a transaction.
    pub fn put_in(&self, tx: &mut Transaction, key: &(impl AsKey<K> + ?Sized), value: &V) -> Result<()> {
        tx.put(&self.keyspace, key.to_key(), bytes_of(value)?)
    }

    /// Removes a key, in a transaction of its own; whether it was there.
    pub fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<bool> {
        self.keyspace.delete(key.to_key())
    }

    /// Removes a key in a transaction, if it is there.
    pub fn delete_in(&self, tx: &mut Transaction, key: &(impl AsKey<K> + ?Sized)) -> Result<()> {
        tx.delete(&self.keyspace, key.to_key())
    }

    /// Sets the value of a key unless it is there; whether it did.
    pub fn insert_if_absent(&self, key: &(impl AsKey<K> + ?Sized), value: &V) -> Result<bool> {
        self.keyspace.insert_if_absent(key.to_key(), bytes_of(value)?)
    }

    /// Sets a key to what `f` makes of its value: see [`Keyspace::update`].
    pub fn update(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        mut f: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>> {
        let key = key.to_key();
        self.keyspace.db.transact(TxOptions::default(), |tx| {
            let old = self.value(tx.get_for_update(&self.keyspace, &key)?)?;
            let new = f(old);
            match &new {
                Some(value) => tx.put(&self.keyspace, &key, bytes_of(value)?)?,
                None => tx.delete(&self.keyspace, &key)?,
            }
            Ok(new)
        })
    }

    /// The row with the lowest key.
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.keyspace.first()?.map(|row| self.row(row)).transpose()
    }

    /// The row with the highest key.
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.keyspace.last()?.map(|row| self.row(row)).transpose()
    }
}

impl Db {
    /// Opens a keyspace with keys of type `K` and values of type `V`, making it if there is none of that name.
    ///
    /// # Errors
    /// Those of [`Db::keyspace_or_create`].
    pub fn typed_keyspace<K: Key, V: Value>(&self, name: &str) -> Result<TypedKeyspace<K, V>> {
        Ok(TypedKeyspace::new(self.keyspace_or_create(name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is written is read again, whole, and its bytes are ordered as it is.
    fn holds<K: Key + Ord + Clone + std::fmt::Debug>(a: &K, b: &K) {
        for last in [true, false] {
            let bytes = |key: &K| {
                let mut to = Vec::new();
                key.encode(&mut to, last);
                to
            };
            let (x, y) = (bytes(a), bytes(b));
            assert_eq!(x.cmp(&y), a.cmp(b), "{a:?}, {b:?}");
            // (Nothing but an end may follow where nothing else tells the end.)
            let behind: &[u8] = if last { &[] } else { &[0, 1, 255] };
            let with = [&x[..], behind].concat();
            let mut from = &with[..];
            assert_eq!((K::decode(&mut from, last).as_ref(), from), (Some(a), behind), "{a:?}");
        }
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(254), Just(255)], 0..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_order_of_keys_is_that_of_their_bytes(
            a in (text(), any::<i16>(), text()),
            b in (text(), any::<i16>(), text()),
            n in (any::<i64>(), any::<i64>(), any::<u32>(), any::<u32>()),
            s in (".{0,3}", ".{0,3}"),
        ) {
            holds(&a, &b);
            holds(&(a.0.clone(), b.0.clone()), &(b.0.clone(), a.0.clone()));
            holds(&((a.0.clone(), a.1), a.2.clone()), &((b.0.clone(), b.1), b.2.clone()));
            holds(&n.0, &n.1);
            holds(&n.2, &n.3);
            holds(&s.0, &s.1);
            holds(&(s.0.clone(), n.0 % 2 == 0), &(s.1.clone(), n.1 % 2 == 0));
        }
    }

    #[test]
    fn bytes_of_another_type_are_no_value() {
        assert_eq!(<u32 as Value>::decode(&[0, 0, 1]), None);
        assert_eq!(<u32 as Value>::decode(&[0, 0, 1, 0, 0]), None);
        assert_eq!(<bool as Value>::decode(&[2]), None);
        assert_eq!(<String as Value>::decode(&[0xff]), None);
        assert_eq!(<(String, u8) as Value>::decode(&[b'a', 0, 7, 1]), None);
        assert_eq!(<(String, u8) as Value>::decode(b"a"), None);
        assert_eq!(<f64 as Value>::decode(&bytes_of(&-0.5f64).unwrap()), Some(-0.5));
    }
}
