//! Values as people write them in an experiment file: `"64 MiB"`, `"10 %"`.
//!
//! Pure. A bare number is bytes.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// A number of bytes; written as an integer or as text with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A number and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let number = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim()))
}

impl Bytes {
    /// Reads text such as `64 MiB`.
    pub fn parse(text: &str) -> Option<Bytes> {
        let (number, unit) = split(text)?;
        let unit = if unit.is_empty() { "B" } else { unit };
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let bytes = number * *factor as f64;
        (bytes < 1e18).then(|| Bytes(bytes.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= factor {
                let value = self.0 as f64 / factor as f64;
                return if self.0.is_multiple_of(factor) {
                    write!(f, "{value:.0} {unit}")
                } else {
                    write!(f, "{value:.1} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Memory for the engine: bytes, or a share of the loaded data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cache {
    /// So many bytes.
    Bytes(Bytes),
    /// This share of the loaded data, 0 to 1 and above; written as `"10 %"`.
    Share(f64),
}

impl Cache {
    fn parse(text: &str) -> Option<Cache> {
        match split(text)? {
            (number, "%") if number > 0.0 => Some(Cache::Share(number / 100.0)),
            _ => Bytes::parse(text).map(Cache::Bytes),
        }
    }

    /// Bytes for data of `data` bytes.
    pub fn of(self, data: u64) -> u64 {
        match self {
            Cache::Bytes(bytes) => bytes.0,
            Cache::Share(share) => (data as f64 * share).round() as u64,
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::Bytes(bytes) => bytes.fmt(f),
            Cache::Share(share) => write!(f, "{} %", share * 100.0),
        }
    }
}

struct Text<T> {
    what: &'static str,
    parse: fn(&str) -> Option<T>,
    number: fn(u64) -> T,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<T, E> {
        (self.parse)(v).ok_or_else(|| E::invalid_value(de::Unexpected::Str(v), &self))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<T, E> {
        Ok((self.number)(v))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<T, E> {
        u64::try_from(v).map(self.number).map_err(|_| E::invalid_value(de::Unexpected::Signed(v), &self))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        let what = "bytes: an integer, or text with a unit such as \"64 MiB\"";
        d.deserialize_any(Text { what, parse: Bytes::parse, number: Bytes })
    }
}

impl<'de> Deserialize<'de> for Cache {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Cache, D::Error> {
        let what = "a share of the data such as \"10 %\", or bytes such as \"64 MiB\"";
        d.deserialize_any(Text { what, parse: Cache::parse, number: |n| Cache::Bytes(Bytes(n)) })
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl Serialize for Cache {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Cache::Bytes(bytes) => s.serialize_u64(bytes.0),
            Cache::Share(_) => s.collect_str(self),
        }
    }
}

/// Adds the values within `value` as text, by key path.
pub(super) fn flatten(path: &str, value: &serde_json::Value, rows: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, rows);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(text) => drop(rows.insert(path.to_string(), text.clone())),
        other => drop(rows.insert(path.to_string(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(Bytes::parse("64 MiB"), Some(Bytes(64 << 20)));
        assert_eq!(Bytes::parse("1.5GB"), Some(Bytes(1_500_000_000)));
        assert_eq!(Bytes::parse("4096"), Some(Bytes(4096)));
        for bad in ["", "MB", "4 mb", "-1", "4 parsecs", "1e30 TB"] {
            assert_eq!(Bytes::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Cache::parse("12.5 %"), Some(Cache::Share(0.125)));
        assert_eq!(Cache::parse("0 %"), None);
        assert_eq!(Cache::Share(0.1).of(1000), 100);
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
    }
}
