//! Options of the engine in a file: those of a table of settings, by name. Only what is not at its default is written.

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use toml::Value;
use varve::setting::Table;
use varve::{LSM_OPTIONS, LsmOptions, POOL_OPTIONS, PoolOptions, TIER_OPTIONS, TierOptions};

/// Where the names of options come from.
pub trait Names<T: 'static> {
    /// The table.
    const TABLE: &'static Table<T>;

    /// The table's name for a key of the file.
    fn option(key: &str) -> &str {
        key
    }

    /// The file's key for a name of the table.
    fn key(option: &'static str) -> &'static str {
        option
    }

    /// Checks the options together.
    fn validate(options: &T) -> Result<(), String>;
}

/// Options of the pool: the preset is called `pool`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolNames;

impl Names<PoolOptions> for PoolNames {
    const TABLE: &'static Table<PoolOptions> = &POOL_OPTIONS;

    fn option(key: &str) -> &str {
        if key == "pool" { "preset" } else { key }
    }

    fn key(option: &'static str) -> &'static str {
        if option == "preset" { "pool" } else { option }
    }

    fn validate(options: &PoolOptions) -> Result<(), String> {
        options.validate().map_err(|e| e.to_string())
    }
}

/// Options of a tier.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TierNames;

impl Names<TierOptions> for TierNames {
    const TABLE: &'static Table<TierOptions> = &TIER_OPTIONS;

    fn validate(options: &TierOptions) -> Result<(), String> {
        options.validate().map_err(|e| e.to_string())
    }
}

/// Options of LSM keyspaces: the file may have `_` for `-`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LsmNames;

impl Names<LsmOptions> for LsmNames {
    const TABLE: &'static Table<LsmOptions> = &LSM_OPTIONS;

    fn option(key: &str) -> &str {
        let plain = key.replace('_', "-");
        LSM_OPTIONS.settings.iter().find(|s| s.name == plain).map_or(key, |s| s.name)
    }

    fn validate(options: &LsmOptions) -> Result<(), String> {
        options.validate().map_err(|e| e.to_string())
    }
}

/// Options, read and written by the names `N`. A key that is wrong is kept until [`Named::validate`] tells of it with
/// its whole path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Named<T, N>(pub T, Option<Wrong>, PhantomData<N>);

/// A key and what is wrong with it.
type Wrong = (String, String);

/// A value of the file as the text of an option: a list is its values with commas between.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The text of an option as a value of the file.
fn value(text: String) -> Value {
    match (text.parse::<i64>(), text.parse::<f64>(), text.parse::<bool>()) {
        (Ok(n), ..) => Value::Integer(n),
        (_, Ok(x), _) => Value::Float(x),
        (.., Ok(flag)) => Value::Boolean(flag),
        _ => Value::String(text),
    }
}

impl<'de, T: Clone + Default + 'static, N: Names<T>> Deserialize<'de> for Named<T, N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (mut options, mut wrong) = (T::default(), None);
        for (key, value) in BTreeMap::<String, Value>::deserialize(from)? {
            if let Err(what) = N::TABLE.set(&mut options, N::option(&key), &text(&value)) {
                wrong.get_or_insert((key, what));
            }
        }
        Ok(Named(options, wrong, PhantomData))
    }
}

impl<T: Clone + Default + 'static, N: Names<T>> Serialize for Named<T, N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let chosen: Vec<_> =
            N::TABLE.settings.iter().filter_map(|s| Some((N::key(s.name), s.chosen(&self.0)?))).collect();
        let mut map = to.serialize_map(Some(chosen.len()))?;
        for (key, text) in chosen {
            map.serialize_entry(key, &value(text))?;
        }
        map.end()
    }
}

impl<T: 'static, N: Names<T>> Named<T, N> {
    /// Refuses wrong keys and values, and what cannot work together; names the key. `table`: where the options stand in
    /// the file. `all`: the key that stands for all of them.
    pub fn validate(&self, table: &str, all: &str) -> Result<(), (String, String)> {
        match &self.1 {
            Some((key, what)) => Err((format!("{table}.{key}"), what.clone())),
            None => N::validate(&self.0).map_err(|what| (all.to_string(), what)),
        }
    }
}
