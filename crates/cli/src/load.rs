//! `load`: rows from standard input, in batches; each batch is one transaction.

use crate::args::{self, LoadFormat};
use crate::output::{Failure, Out};
use crate::text;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::BufRead;
use varve::{Db, Keyspace, Layout};

struct Row {
    keyspace: Option<String>,
    key: Vec<u8>,
    value: Vec<u8>,
}

pub fn run(out: Out, a: &args::Load) -> Result<(), Failure> {
    let options = a.place.open.options();
    let db = if varve::exists(&a.place.dir) {
        Db::open(&a.place.dir, options)?
    } else {
        Db::create(&a.place.dir, &Layout::default(), options)?
    };
    let mut keyspaces = BTreeMap::new();
    let mut batch = Vec::new();
    let mut rows = 0u64;
    let progress = out.progress("rows", 0);
    let result = each_row(a, |row| {
        batch.push(row);
        if batch.len() as u64 >= a.batch {
            rows += write(&db, &mut keyspaces, &a.keyspace, &mut batch)?;
            progress.set_position(rows);
        }
        Ok(())
    });
    // What came before a bad row is kept and said, so that the load can go on from there.
    let last = write(&db, &mut keyspaces, &a.keyspace, &mut batch);
    progress.finish_and_clear();
    rows += last?;
    db.close()?;
    if let Err(failure) = result {
        out.note(format!("{rows} rows before the failure were loaded"));
        return Err(failure);
    }
    if out.json {
        println!("{}", serde_json::json!({ "rows": rows }));
    } else {
        out.note(format!("{rows} rows loaded"));
    }
    Ok(())
}

fn write(
    db: &Db,
    keyspaces: &mut BTreeMap<String, Keyspace>,
    default: &str,
    batch: &mut Vec<Row>,
) -> Result<u64, Failure> {
    for row in batch.iter() {
        let name = row.keyspace.as_deref().unwrap_or(default);
        if !keyspaces.contains_key(name) {
            keyspaces.insert(name.to_string(), db.keyspace_or_create(name)?);
        }
    }
    put_all(db, keyspaces, default, batch)?;
    let n = batch.len() as u64;
    batch.clear();
    Ok(n)
}

/// Writes the rows in one transaction, or in halves when they are too large for one.
fn put_all(db: &Db, keyspaces: &BTreeMap<String, Keyspace>, default: &str, rows: &[Row]) -> varve::Result<()> {
    let result = db.transact(|tx| {
        for row in rows {
            let name = row.keyspace.as_deref().unwrap_or(default);
            tx.put(&keyspaces[name], &row.key, &row.value)?;
        }
        Ok(())
    });
    match result {
        Err(varve::Error::TransactionTooLarge { .. } | varve::Error::OverBudget { .. }) if rows.len() > 1 => {
            let (a, b) = rows.split_at(rows.len() / 2);
            put_all(db, keyspaces, default, a)?;
            put_all(db, keyspaces, default, b)
        }
        other => other,
    }
}

fn each_row(a: &args::Load, mut f: impl FnMut(Row) -> Result<(), Failure>) -> Result<(), Failure> {
    let stdin = std::io::stdin().lock();
    match a.format {
        LoadFormat::Jsonl => {
            for (n, line) in stdin.lines().enumerate() {
                let line = line?;
                if !line.trim().is_empty() {
                    f(json_row(&line).map_err(|e| Failure::Usage(format!("line {}: {e}", n + 1)))?)?;
                }
            }
        }
        LoadFormat::Csv => {
            let mut reader = csv::ReaderBuilder::new().has_headers(a.header).flexible(true).from_reader(stdin);
            let mut record = csv::ByteRecord::new();
            loop {
                let more = reader.read_byte_record(&mut record).map_err(|e| Failure::Usage(e.to_string()))?;
                if !more {
                    break;
                }
                let line = record.position().map_or(0, csv::Position::line);
                f(csv_row(&record, a.hex.hex).map_err(|e| Failure::Usage(format!("line {line}: {e}")))?)?;
            }
        }
    }
    Ok(())
}

fn json_row(line: &str) -> Result<Row, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
    let Value::Object(object) = value else {
        return Err("a JSON object with \"key\" and \"value\" is expected".into());
    };
    let keyspace = match object.get("keyspace") {
        None => None,
        Some(Value::String(s)) => Some(s.clone()),
        Some(_) => return Err("\"keyspace\" must be a string".into()),
    };
    Ok(Row { keyspace, key: text::take(&object, "key")?, value: text::take(&object, "value")? })
}

fn csv_row(record: &csv::ByteRecord, hex: bool) -> Result<Row, String> {
    if record.len() != 2 {
        return Err(format!("{} columns; key and value are expected", record.len()));
    }
    let take = |i: usize| -> Result<Vec<u8>, String> {
        if !hex {
            return Ok(record[i].to_vec());
        }
        let digits = std::str::from_utf8(&record[i]).ok().and_then(text::from_hex);
        digits.ok_or_else(|| "not hexadecimal".to_string())
    };
    Ok(Row { keyspace: None, key: take(0)?, value: take(1)? })
}
