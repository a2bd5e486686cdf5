//! `load`: rows from standard input.
//!
//! Rows of a keyspace that is not there or empty are bulk loaded for as long as their keys ascend: they appear
//! together, at the end. From the first key that does not ascend on, and for keyspaces with rows, rows are written in
//! batches, each of which is one transaction. The input is read and taken apart in a thread of its own.

use crate::args::{self, LoadFormat};
use crate::closing::Closing;
use crate::open;
use crate::output::{Failure, Out, complain, counted, say};
use crate::rows::{self, Bad, Row};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::os::fd::AsFd;
use varve::{BulkLoad, Db, Error, Keyspace, Layout};
use varve_lab::own;

/// How rows get into a keyspace.
enum Way {
    /// In order so far; the last key, and the number of the first row.
    Bulk(Box<BulkLoad>, Vec<u8>, u64),
    Transactions(Keyspace),
}

struct Loader<'a> {
    db: &'a Db,
    out: Out,
    default: &'a str,
    ways: BTreeMap<String, Way>,
    /// Rows for transactions, and their numbers.
    batch: Vec<Row<'static>>,
    numbers: Vec<u64>,
    batch_rows: u64,
    /// Rows written, or taken by bulk loads.
    rows: u64,
    /// Rows of the input that were taken or left out, and to leave out.
    seen: u64,
    skip: u64,
    /// The lowest number of a row that was taken and is not in.
    missing: Option<u64>,
}

/// The database to load into: one that is there, or with `--create` a new one where nothing else is.
fn database(a: &args::Load) -> Result<Closing, Failure> {
    let dir = &a.place.dir;
    let create = || open::new_db(dir, &Layout::default(), open::options(&a.place)?);
    match open::to_write(&a.place) {
        Err(Failure::Engine(Error::NoDatabase(_))) if a.create => {
            own::refuse_files(dir, "load --create").map_err(Failure::Usage)?;
            create()
        }
        Err(Failure::Engine(Error::Unfinished(_))) if a.create => create(),
        Err(Failure::Engine(Error::NoDatabase(place))) => Err(Failure::NoPlace(format!(
            "no database at {place}: if the path is right, `varve create` makes one there, or `varve load --create`"
        ))),
        other => other,
    }
}

pub fn run(out: Out, a: &args::Load) -> Result<(), Failure> {
    let db = database(a)?;
    let progress = out.progress("rows", 0);
    let mut loader = Loader {
        db: &db,
        out,
        default: &a.keyspace,
        ways: BTreeMap::new(),
        batch: Vec::new(),
        numbers: Vec::new(),
        batch_rows: a.batch,
        rows: 0,
        seen: 0,
        skip: a.skip,
        missing: None,
    };
    let result = each_row(a, |row| {
        loader.take(row)?;
        if loader.rows.is_multiple_of(1000) {
            progress.set_position(loader.rows);
        }
        Ok(())
    });
    // What came before a bad row is kept and said, so that the load can go on from there.
    let Loaded { rows, input, result: finished } = loader.finish();
    progress.finish_and_clear();
    let closed = db.close();
    result.and(finished).map_err(|failure| match failure {
        Failure::Usage(what) => Failure::Usage(format!("{what}; {}", kept(rows, input, "before it "))),
        other => {
            // With JSON the failure is the only line; without, this is for whoever wants no progress bars, too.
            let told = format!("{}, when the cause is gone", kept(rows, input, ""));
            if out.json {
                out.note(told)
            } else {
                complain(told)
            }
            other
        }
    })?;
    closed.inspect_err(|_| {
        if !out.json {
            complain(format_args!("all {rows} rows are loaded, but the database was not closed properly"));
        }
    })?;
    if out.json {
        say!("{}", serde_json::json!({ "rows": rows }))?;
    } else {
        out.note(format!("{} loaded", counted(rows, "row")));
    }
    Ok(())
}

/// What a load that failed has done, and how to go on.
fn kept(rows: u64, input: u64, which: &str) -> String {
    match (rows, input) {
        (0, 0) => "nothing is loaded: give all of it again".into(),
        (_, 0) => format!("{rows} rows are loaded, the first {which}is not: give all of it again"),
        (0, _) => format!("nothing is loaded; `--skip {input}` goes on there"),
        (1, _) => format!("the 1 row {which}is loaded; `--skip {input}` goes on after it"),
        _ => format!("the {rows} rows {which}are loaded; `--skip {input}` goes on after them"),
    }
}

/// What became of a load.
struct Loaded {
    /// Rows that are in.
    rows: u64,
    /// Rows at the beginning of the input that are in, or were left out.
    input: u64,
    result: Result<(), Failure>,
}

/// Begins with a keyspace: a bulk load if there is nothing in it. `number` is that of its first row.
fn begin(db: &Db, name: &str, number: u64) -> varve::Result<Way> {
    let load = match db.keyspace(name) {
        Ok(keyspace) => {
            if db.snapshot()?.scan(&keyspace, ..)?.next_row()?.is_some() {
                return Ok(Way::Transactions(keyspace));
            }
            // It stays, with its kind and its options, until the rows are there: a load that is killed loses nothing.
            db.bulk_replace(name)?
        }
        Err(varve::Error::NoSuchKeyspace(_)) => db.bulk_load(name)?,
        Err(e) => return Err(e),
    };
    Ok(Way::Bulk(Box::new(load), Vec::new(), number))
}

impl Loader<'_> {
    fn take(&mut self, row: Row<'_>) -> Result<(), Failure> {
        if self.seen >= self.skip {
            self.add(row)?;
        }
        self.seen += 1;
        Ok(())
    }

    fn add(&mut self, row: Row<'_>) -> Result<(), Failure> {
        let name = row.keyspace.as_deref().unwrap_or(self.default);
        if !self.ways.contains_key(name) {
            let way = begin(self.db, name, self.seen).map_err(|e| refused(&row, e))?;
            self.ways.insert(name.to_string(), way);
        }
        let way = self.ways.get_mut(name).expect("put in above");
        if let Way::Bulk(load, last, _) = way
            && (load.rows() == 0 || **last < *row.key)
        {
            load.push(&row.key, &row.value).map_err(|e| refused(&row, e))?;
            last.clear();
            last.extend_from_slice(&row.key);
            self.rows += 1;
            return Ok(());
        }
        if matches!(way, Way::Bulk(..))
            && let Some((name, Way::Bulk(load, _, first))) = self.ways.remove_entry(name)
        {
            let n = load.rows();
            let keyspace = load.finish().inspect_err(|_| {
                self.rows -= n;
                self.missing = Some(first);
            })?;
            self.out
                .note(format!("{name}: the keys ascend for {n} rows; what follows is loaded by transactions, slower"));
            self.ways.insert(name, Way::Transactions(keyspace));
        }
        self.batch.push(row.into_owned());
        self.numbers.push(self.seen);
        if self.batch.len() as u64 >= self.batch_rows { self.write() } else { Ok(()) }
    }

    /// Writes the rows that wait for a transaction.
    fn write(&mut self) -> Result<(), Failure> {
        let (batch, numbers) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.numbers));
        match put_all(self.db, &self.ways, self.default, &batch) {
            Ok(()) => self.rows += batch.len() as u64,
            // Rows before the one that is refused are kept.
            Err(e) if is_of_row(&e) => {
                for (row, number) in batch.iter().zip(&numbers) {
                    let one = std::slice::from_ref(row);
                    put_all(self.db, &self.ways, self.default, one).map_err(|e| {
                        self.lost(*number);
                        refused(row, e)
                    })?;
                    self.rows += 1;
                }
            }
            Err(e) => {
                numbers.first().iter().for_each(|number| self.lost(**number));
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Notes that a row that was taken is not in.
    fn lost(&mut self, number: u64) {
        self.missing = Some(self.missing.map_or(number, |missing| missing.min(number)));
    }

    /// Makes everything appear that was taken; how many rows that are, and what went wrong with the others.
    fn finish(mut self) -> Loaded {
        let mut result = self.write();
        for way in std::mem::take(&mut self.ways).into_values() {
            if let Way::Bulk(load, _, first) = way {
                let rows = load.rows();
                if let Err(e) = load.finish() {
                    self.rows -= rows;
                    self.lost(first);
                    result = result.and(Err(e.into()));
                }
            }
        }
        let input = self.missing.unwrap_or(self.seen);
        assert!(input <= self.seen, "what is missing was seen");
        Loaded { rows: self.rows, input, result }
    }
}

/// Whether an error says that a row cannot be taken, whatever else there is.
fn is_of_row(e: &varve::Error) -> bool {
    use varve::Error::{Invalid, KeySize, KeyspaceReadOnly, TransactionTooLarge, ValueSize};
    matches!(e, KeySize { .. } | ValueSize { .. } | Invalid(_) | KeyspaceReadOnly(_) | TransactionTooLarge { .. })
}

/// The failure of a row, which is named by the beginning of its key.
fn refused(row: &Row<'_>, e: varve::Error) -> Failure {
    if !is_of_row(&e) {
        return e.into();
    }
    let begins: String = String::from_utf8_lossy(&row.key).chars().take(32).collect();
    Failure::Usage(format!("the row whose key begins with {begins:?}: {e}"))
}

/// Writes the rows in one transaction, or in halves when they are too large for one.
fn put_all(db: &Db, ways: &BTreeMap<String, Way>, default: &str, rows: &[Row<'_>]) -> varve::Result<()> {
    let result = db.transact(|tx| {
        for row in rows {
            let name = row.keyspace.as_deref().unwrap_or(default);
            let Way::Transactions(keyspace) = &ways[name] else { unreachable!("a bulk load takes its rows at once") };
            tx.put(keyspace, &row.key, &row.value)?;
        }
        Ok(())
    });
    match result {
        Err(varve::Error::TransactionTooLarge { .. } | varve::Error::OverBudget { .. }) if rows.len() > 1 => {
            let (a, b) = rows.split_at(rows.len() / 2);
            put_all(db, ways, default, a)?;
            put_all(db, ways, default, b)
        }
        other => other,
    }
}

/// Bytes of rows that go from thread to thread at a time, and how many such blocks may wait.
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 8;

/// Rows in one piece of memory.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    /// Keyspace, and the lengths of key and value.
    rows: Vec<(Option<String>, usize, usize)>,
}

impl Block {
    fn push(&mut self, row: &Row<'_>) {
        self.bytes.extend_from_slice(&row.key);
        self.bytes.extend_from_slice(&row.value);
        self.rows.push((row.keyspace.as_deref().map(str::to_string), row.key.len(), row.value.len()));
    }

    fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let mut rest = &self.bytes[..];
        self.rows.iter().map(move |(keyspace, key, value)| {
            let (row, after) = rest.split_at(key + value);
            rest = after;
            let (key, value) = row.split_at(*key);
            Row { keyspace: keyspace.as_deref().map(Into::into), key: key.into(), value: value.into() }
        })
    }
}

/// Hands each row of standard input to `f`, until one of the two fails. Rows before a bad one are handed on.
fn each_row(a: &args::Load, mut f: impl FnMut(Row<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
    let (to, blocks) = varve_rt::channel::bounded(BLOCKS);
    let (format, header, hex) = (a.format, a.header, a.hex.hex);
    let parser = varve_rt::spawn("load-parser", move || {
        let mut block = Block::default();
        let take = |row: Row<'_>| -> Result<(), Bad> {
            block.push(&row);
            if block.bytes.len() < BLOCK {
                return Ok(());
            }
            let gone = |_| Bad::Stream(std::io::Error::other("the load has ended"));
            to.send(std::mem::take(&mut block)).map_err(gone)
        };
        // Past the standard library's buffer, which is small.
        let stdin = match std::io::stdin().as_fd().try_clone_to_owned() {
            Ok(stdin) => BufReader::with_capacity(BLOCK, std::fs::File::from(stdin)),
            Err(e) => return Err(Bad::Stream(e)),
        };
        let result = match format {
            LoadFormat::Jsonl => rows::jsonl(stdin, take),
            LoadFormat::Csv => rows::csv(stdin, header, hex, take),
        };
        let _ = to.send(block);
        result
    });
    // (Who fails here does not wait for the parser, which may be waiting for input.)
    for block in blocks.iter() {
        block.iter().try_for_each(&mut f)?;
    }
    Ok(parser.join().map_err(|e| Failure::Usage(e.to_string()))??)
}

impl From<Bad> for Failure {
    fn from(bad: Bad) -> Failure {
        match bad {
            Bad::Stream(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
                Failure::Usage("standard input is a directory: give a file with rows".into())
            }
            Bad::Stream(e) => Failure::Failed(format!("standard input cannot be read: {e}")),
            Bad::Row(what) => Failure::Usage(what),
        }
    }
}
