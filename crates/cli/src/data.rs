//! Commands on keys and values (get, put, delete, scan, dump), and on keyspaces as a whole.

use crate::args::{self, keyspaces::kind_text};
use crate::output::{Failure, Out, Rows, say};
use crate::text;
use serde_json::{Map, Value};
use std::io::{BufWriter, Read, Write};
use std::ops::Bound;
use varve::{KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind, Snapshot};

pub fn get(out: Out, a: &args::Get) -> Result<(), Failure> {
    let db = crate::open::to_look(out, &a.place)?;
    let (keyspace, key) = (db.keyspace(&a.keyspace)?, text::parse(&a.key, a.hex.hex)?);
    let mut stdout = Rows;
    let found = if out.json || a.hex.hex {
        let value = keyspace.get(&key)?;
        if let Some(value) = &value {
            if out.json {
                let mut object = Map::new();
                text::put(&mut object, "value", value);
                writeln!(stdout, "{}", Value::Object(object))?;
            } else {
                writeln!(stdout, "{}", text::to_hex(value))?;
            }
        }
        value.is_some()
    } else {
        // However long it is.
        let found = keyspace.get_to(&key, &mut stdout)?.is_some();
        if found && !a.raw {
            stdout.write_all(b"\n")?;
        }
        found
    };
    drop(keyspace);
    db.close()?;
    if found { Ok(()) } else { Err(Failure::NoKey) }
}

pub fn put(out: Out, a: &args::Put) -> Result<(), Failure> {
    let key = text::parse(&a.key, a.hex.hex)?;
    let value = match &a.value {
        Some(value) => Some(text::parse(value, a.hex.hex)?),
        None if a.hex.hex => {
            let mut input = String::new();
            std::io::stdin().lock().read_to_string(&mut input)?;
            Some(text::parse(input.trim(), true)?)
        }
        None => None,
    };
    let db = crate::open::to_write(&a.place)?;
    let keyspace = db.keyspace_or_create(&a.keyspace)?;
    match value {
        Some(value) => keyspace.put(&key, &value)?,
        // However long it is.
        None => drop(keyspace.put_from(&key, &mut std::io::stdin().lock())?),
    }
    drop(keyspace);
    db.close()?;
    done(out, "written")
}

pub fn delete(out: Out, a: &args::Delete) -> Result<(), Failure> {
    let parse = |s: &String| text::parse(s, a.hex.hex);
    let (key, prefix) = (a.key.as_ref().map(parse).transpose()?, a.prefix.as_ref().map(parse).transpose()?);
    let ends = a.range.iter().flatten().map(parse).collect::<Result<Vec<_>, _>>()?;
    if prefix.as_ref().is_some_and(Vec::is_empty) {
        let what = format!("every key begins with an empty prefix; `varve clear` removes all rows of {:?}", a.keyspace);
        return Err(Failure::Usage(what));
    }
    let db = crate::open::to_write(&a.place)?;
    let keyspace = db.keyspace(&a.keyspace)?;
    let was_there = match (key, prefix, &ends[..]) {
        (Some(key), _, _) => keyspace.delete(&key)?,
        (None, Some(prefix), _) => keyspace.delete_range(KeyRange::prefix(&prefix)).map(|()| true)?,
        (None, None, [from, to]) => keyspace.delete_range(from..to).map(|()| true)?,
        _ => unreachable!("one of them is required"),
    };
    drop(keyspace);
    db.close()?;
    if was_there { done(out, "deleted") } else { Err(Failure::NoKey) }
}

pub fn clear(out: Out, a: &args::keyspaces::OneKeyspace) -> Result<(), Failure> {
    let db = crate::open::to_write(&a.place)?;
    db.keyspace(&a.keyspace)?.clear()?;
    db.close()?;
    done(out, "cleared")
}

/// What was to be dropped or renamed is not made first.
fn not_there(e: varve::Error) -> Failure {
    match e {
        varve::Error::NoSuchKeyspace(name) => {
            Failure::NoPlace(format!("no keyspace named {name:?}: `varve info` lists those that there are"))
        }
        e => e.into(),
    }
}

pub fn drop_keyspace(out: Out, a: &args::keyspaces::OneKeyspace) -> Result<(), Failure> {
    let db = crate::open::to_write(&a.place)?;
    db.drop_keyspace(&a.keyspace).map_err(not_there)?;
    db.close()?;
    done(out, "dropped")
}

pub fn rename(out: Out, a: &args::keyspaces::Rename) -> Result<(), Failure> {
    let db = crate::open::to_write(&a.place)?;
    db.rename_keyspace(&a.keyspace, &a.name).map_err(not_there)?;
    db.close()?;
    done(out, "renamed")
}

fn done(out: Out, what: &str) -> Result<(), Failure> {
    if out.json {
        say!("{}", serde_json::json!({ "done": what }))?;
    }
    Ok(())
}

/// The smallest byte string above every string that begins with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

pub fn scan(out: Out, a: &args::Scan) -> Result<(), Failure> {
    let parse = |s: &Option<String>| s.as_deref().map(|s| text::parse(s, a.hex.hex)).transpose();
    let (mut from, mut to) = (parse(&a.from)?, parse(&a.to)?);
    if let Some(prefix) = parse(&a.prefix)? {
        to = after_prefix(&prefix);
        from = Some(prefix);
    }
    let from = from.map_or(Bound::Unbounded, Bound::Included);
    let to = to.map_or(Bound::Unbounded, Bound::Excluded);
    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));

    let db = crate::open::to_look(out, &a.place)?;
    let keyspace = db.keyspace(&a.keyspace)?;
    let snapshot = db.snapshot()?;
    let limit = usize::try_from(a.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let mut stdout = BufWriter::new(Rows);
    if a.count {
        let n = match a.limit {
            // No more rows are looked at than are counted.
            Some(_) => snapshot.scan(&keyspace, range)?.take(limit).try_fold(0, |n, row| row.map(|_| n + 1))?,
            None => snapshot.count(&keyspace, range)?,
        };
        print_count(out, &mut stdout, n)?;
    } else if a.reverse {
        print_entries(out, a.hex.hex, &mut stdout, snapshot.scan_rev(&keyspace, range)?.take(limit))?;
    } else {
        print_entries(out, a.hex.hex, &mut stdout, snapshot.scan(&keyspace, range)?.take(limit))?;
    }
    stdout.flush()?;
    drop(snapshot);
    db.close()?;
    Ok(())
}

/// Prints a number of keys.
pub fn print_count(out: Out, to: &mut impl Write, n: u64) -> Result<(), Failure> {
    match out.json {
        true => writeln!(to, "{}", serde_json::json!({ "count": n }))?,
        false => writeln!(to, "{n}")?,
    }
    Ok(())
}

/// Prints rows, a line each.
pub fn print_entries(
    out: Out,
    hex: bool,
    to: &mut impl Write,
    entries: impl Iterator<Item = varve::Result<(Vec<u8>, Vec<u8>)>>,
) -> Result<(), Failure> {
    for entry in entries {
        let (key, value) = entry?;
        if out.json {
            let mut object = Map::new();
            text::put(&mut object, "key", &key);
            text::put(&mut object, "value", &value);
            writeln!(to, "{}", Value::Object(object))?;
        } else {
            writeln!(to, "{}\t{}", text::show(&key, hex), text::show(&value, hex))?;
        }
    }
    Ok(())
}

pub fn dump(out: Out, a: &args::Dump) -> Result<(), Failure> {
    let db = crate::open::to_look(out, &a.place)?;
    let names: Vec<String> = if a.keyspaces.is_empty() {
        db.keyspaces()?.into_iter().map(|k| k.name).collect()
    } else {
        a.keyspaces.clone()
    };
    let keyspaces: Vec<Keyspace> = names.iter().map(|n| db.keyspace(n)).collect::<varve::Result<_>>()?;
    let snapshot = db.snapshot()?;
    let mut stdout = BufWriter::new(Rows);
    let progress = out.progress("rows", 0);
    for keyspace in &keyspaces {
        for entry in snapshot.scan(keyspace, ..)? {
            let (key, value) = entry?;
            let mut object = Map::new();
            object.insert("keyspace".into(), Value::from(&*keyspace.name()));
            text::put(&mut object, "key", &key);
            text::put(&mut object, "value", &value);
            writeln!(stdout, "{}", Value::Object(object))?;
            progress.inc(1);
        }
    }
    stdout.flush()?;
    progress.finish_and_clear();
    let left = left_out(&db.keyspaces()?, &keyspaces, &snapshot)?;
    drop((snapshot, keyspaces));
    db.close()?;
    left.iter().for_each(|what| out.note(what));
    Ok(())
}

/// What rows do not say of keyspaces: kinds and options, that there is one, that nothing may change it.
fn left_out(all: &[KeyspaceInfo], dumped: &[Keyspace], snapshot: &Snapshot) -> Result<Vec<String>, Failure> {
    let mut left = Vec::new();
    for keyspace in dumped {
        let name = keyspace.name();
        let Some(info) = all.iter().find(|info| *info.name == *name) else { continue };
        if info.kind != KeyspaceKind::Tree {
            let kind = kind_text(info.kind);
            left.push(format!(
                "not in the dump: {name} is {kind}; before it is loaded: varve keyspace create DB {name} --kind {kind}"
            ));
        } else if snapshot.scan(keyspace, ..)?.next_row()?.is_none() {
            left.push(format!("not in the dump: {name}, which is empty"));
        }
        if info.read_only {
            left.push(format!("not in the dump: {name} is read-only; after it is loaded: varve read-only DB {name}"));
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(&[1, 0xff]), Some(vec![2]));
        assert_eq!(after_prefix(&[0xff]), None);
        assert_eq!(after_prefix(b""), None);
    }
}
