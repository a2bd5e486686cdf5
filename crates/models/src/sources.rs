//! What the numbers of a TOML file rest on: its table `[sources]`.
//!
//! A key of `[sources]` is a key path of the file, or the path of a table, for all that is in it; the longest counts. A
//! number without one is assumed, and so is one whose source begins with "assumed".

use std::collections::BTreeMap;
use toml::{Table, Value};

/// A value of a file, and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Key path.
    pub key: String,
    /// As it stands in the file.
    pub value: Value,
    /// Where it comes from; none: nobody says.
    pub source: Option<String>,
}

impl Parameter {
    /// Whether it has no source.
    pub fn is_assumed(&self) -> bool {
        self.source.as_deref().is_none_or(|source| source.starts_with("assumed"))
    }
}

/// All values of a table by key path, with their sources. An array is one value.
pub fn parameters(table: &Table, sources: &BTreeMap<String, String>) -> Vec<Parameter> {
    let mut found = Vec::new();
    leaves(table, "", &mut found);
    assert!(found.iter().all(|p| !p.value.is_table()), "a table is no value");
    for parameter in &mut found {
        parameter.source = source_of(&parameter.key, sources).cloned();
    }
    found
}

/// The first key of `sources` that names nothing in any of the tables.
pub fn stray<'a>(tables: &[&Table], sources: &'a BTreeMap<String, String>) -> Option<&'a str> {
    sources.keys().map(String::as_str).find(|key| !tables.iter().any(|table| names(table, key)))
}

fn names(table: &Table, key: &str) -> bool {
    let mut parts = key.split('.');
    let first = parts.next().and_then(|part| table.get(part));
    parts.fold(first, |value, part| value?.as_table()?.get(part)).is_some()
}

fn leaves(table: &Table, above: &str, found: &mut Vec<Parameter>) {
    for (key, value) in table {
        let key = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        match value {
            Value::Table(inner) => leaves(inner, &key, found),
            value => found.push(Parameter { key, value: value.clone(), source: None }),
        }
    }
}

/// The source of the longest path that leads to `key`.
fn source_of<'a>(key: &str, sources: &'a BTreeMap<String, String>) -> Option<&'a String> {
    let mut path = key;
    loop {
        match (sources.get(path), path.rsplit_once('.')) {
            (Some(source), _) => return Some(source),
            (None, Some((above, _))) => path = above,
            (None, None) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_counts_and_what_has_none_is_assumed() {
        let table: Table = "a.b = 1\na.c = 2\nd = [3]\ne.f.g = \"x\"".parse().unwrap();
        let sources: BTreeMap<String, String> =
            [("a", "a book"), ("a.c", "assumed: half of it"), ("e", "e")].map(|(k, v)| (k.into(), v.into())).into();
        let found = parameters(&table, &sources);
        let told: Vec<_> = found.iter().map(|p| (p.key.as_str(), p.source.as_deref(), p.is_assumed())).collect();
        let (half, book) = (Some("assumed: half of it"), Some("a book"));
        assert_eq!(told, [("a.b", book, false), ("a.c", half, true), ("d", None, true), ("e.f.g", Some("e"), false)]);
        assert_eq!(stray(&[&table], &sources), None);
        for key in ["a.d", "d.e", "z"] {
            let sources = [(key.to_string(), String::new())].into();
            assert_eq!(stray(&[&table], &sources), Some(key));
        }
        let more: Table = "d.e = 4".parse().unwrap();
        assert_eq!(stray(&[&table, &more], &[("d.e".to_string(), String::new())].into()), None);
    }
}
