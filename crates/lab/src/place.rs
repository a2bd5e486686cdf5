//! Where things stand in a TOML file, so that an error can name file, line and key.
//!
//! Values from different sources (the file, `--set`, axes) are merged into one table before they are understood; an
//! error of the merged table is traced back by its key path.

use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Extends `path` by the keys that cover the byte at `at`; whether there are any. Arrays are entered by number.
fn deepest(table: &DeTable<'_>, at: usize, path: &mut Vec<String>) -> bool {
    for (key, value) in table.iter() {
        path.push(key.get_ref().to_string());
        if within(value, at, path) || key.span().contains(&at) || value.span().contains(&at) {
            return true;
        }
        path.pop();
    }
    false
}

fn within(value: &Spanned<DeValue<'_>>, at: usize, path: &mut Vec<String>) -> bool {
    match value.get_ref() {
        DeValue::Table(inner) => deepest(inner, at, path),
        DeValue::Array(array) => array.iter().enumerate().any(|(n, item)| {
            path.push(n.to_string());
            let found = within(item, at, path) || item.span().contains(&at);
            if !found {
                path.pop();
            }
            found
        }),
        _ => false,
    }
}

/// The key at byte `at` of a TOML text.
pub(crate) fn path_at(text: &str, at: usize) -> Vec<String> {
    let mut path = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        deepest(table.get_ref(), at, &mut path);
    }
    path
}

/// The bytes of the key at `path`, or of the part of it that there is; arrays are entered by number.
pub(crate) fn find(text: &str, path: &[&str]) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut found = None;
    walk(table.get_ref(), path, &mut found);
    found
}

fn walk(table: &DeTable<'_>, path: &[&str], found: &mut Option<Range<usize>>) {
    // A quoted key may itself hold dots.
    for n in (1..=path.len()).rev() {
        let name = path[..n].join(".");
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref().as_ref() == name) else { continue };
        *found = Some(key.span());
        inside(value, &path[n..], found);
        return;
    }
}

fn inside(value: &Spanned<DeValue<'_>>, rest: &[&str], found: &mut Option<Range<usize>>) {
    let Some(first) = rest.first() else { return };
    match value.get_ref() {
        DeValue::Table(table) => walk(table, rest, found),
        DeValue::Array(array) => {
            if let Some(value) = first.parse().ok().and_then(|n: usize| array.get(n)) {
                *found = Some(value.span());
                inside(value, &rest[1..], found);
            }
        }
        _ => {}
    }
}

/// Line, from 1, of a byte.
pub(crate) fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n[b.c]\nd = 2\ne = \"x\"\n[[f]]\ng.h = 1\n[s]\n\"b.c.d\" = [1]\n";

    #[test]
    fn keys_are_found_by_path_and_by_place() {
        let at = |path: &[&str]| find(TEXT, path).map(|span| line(TEXT, span.start));
        assert_eq!(at(&["a"]), Some(1));
        assert_eq!(at(&["b", "c", "e"]), Some(4));
        assert_eq!(at(&["b", "c", "missing"]), Some(2), "as far as there is");
        assert_eq!(at(&["f", "0", "g", "h"]), Some(6));
        assert_eq!(at(&["s", "b", "c", "d"]), Some(8), "a quoted key");
        assert_eq!(at(&["z"]), None);
        let place = TEXT.find("e = ").unwrap();
        assert_eq!(path_at(TEXT, place), ["b", "c", "e"]);
        assert_eq!(path_at(TEXT, place + 4), ["b", "c", "e"]);
        assert_eq!(path_at(TEXT, TEXT.find("g.h").unwrap() + 2), ["f", "0", "g", "h"]);
    }
}
