//! Which extents of an array bulk loads filled that nobody has written since, from a close to the next opening: the
//! file `array.loaded` of the database's directory has their numbers, one a line.
//!
//! It is of use to plans alone. A close writes it when all else is written, and the next opening for writing takes it
//! away, so that it is there only while it is true: a database that was left without a close has none.
//!
//! Invariant: nothing is believed that could not be taken away.

use super::devices::sync_parent;
use crate::space::Space;
use std::path::Path;
use varve_volume::array::Array;

/// The file.
const LOADED: &str = "array.loaded";
const HEAD: &str = "varve array loaded 1";
/// Bytes that it has at most: a line for each extent.
const MOST: u64 = 1 << 28;

fn parse(text: &str) -> Option<Vec<usize>> {
    let mut lines = text.lines();
    let head = lines.next()?;
    let extents = lines.map(|line| line.parse().ok()).collect::<Option<Vec<usize>>>();
    extents.filter(|extents| head == HEAD && extents.is_sorted_by(|a, b| a < b))
}

/// Seals what the last close found sealed. `writes`: pages may be written from here on.
pub(super) fn take(dir: &Path, array: &Array, space: &Space, writes: bool) {
    let path = dir.join(LOADED);
    let Some(extents) = varve_device::read_text(&path, MOST).ok().and_then(|text| parse(&text)) else { return };
    if writes && std::fs::remove_file(&path).map_or(true, |()| sync_parent(&path).is_err()) {
        return;
    }
    let used = array.used();
    let unwritten = |n: &usize| used.get(*n).is_some_and(|used| used.last_write.is_none());
    space.still_loaded(&extents.into_iter().filter(unwritten).collect::<Vec<_>>());
}

/// Notes what is sealed. Nothing is written to the array any more. What fails costs plans something, and nobody else.
pub(super) fn keep(dir: &Path, array: &Array, space: &Space) {
    let used = array.used();
    let sealed = |n: &usize| used.get(*n).is_some_and(|used| used.sealed);
    let extents: Vec<usize> = space.loaded_extents().into_iter().filter(sealed).collect();
    debug_assert!(extents.is_sorted(), "extents are in order");
    if extents.is_empty() {
        return;
    }
    let (path, partial) = (dir.join(LOADED), dir.join("array.loaded.partial"));
    let lines: String = extents.iter().map(|extent| format!("{extent}\n")).collect();
    if std::fs::write(&partial, format!("{HEAD}\n{lines}")).and_then(|()| std::fs::rename(&partial, &path)).is_err() {
        let _ = std::fs::remove_file(partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_none_says_nothing() {
        assert_eq!(parse(&format!("{HEAD}\n3\n17\n")), Some(vec![3, 17]));
        for text in ["", "3\n", "varve array loads 1\n3\n", &format!("{HEAD}\n3\nx\n"), &format!("{HEAD}\n17\n3\n")] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
