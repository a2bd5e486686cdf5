//! Rows as `load` reads them, from JSON lines or CSV. By itself, so that it can be fuzzed.

use serde_json::{Map, Value};
use std::borrow::Cow;
use std::io::BufRead;

/// A row of the input.
pub struct Row<'r> {
    pub keyspace: Option<Cow<'r, str>>,
    pub key: Cow<'r, [u8]>,
    pub value: Cow<'r, [u8]>,
}

impl Row<'_> {
    /// The same, on its own.
    pub fn into_owned(self) -> Row<'static> {
        Row {
            keyspace: self.keyspace.map(|name| Cow::Owned(name.into_owned())),
            key: Cow::Owned(self.key.into_owned()),
            value: Cow::Owned(self.value.into_owned()),
        }
    }
}

/// Why the input cannot be read on.
#[derive(Debug)]
pub enum Bad {
    Stream(std::io::Error),
    /// Names the line.
    Row(String),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Stream(e) => e.fmt(f),
            Bad::Row(what) => f.write_str(what),
        }
    }
}

/// Hands each row of JSON lines to `f`, until that fails.
pub fn jsonl<E: From<Bad>>(input: impl BufRead, mut f: impl FnMut(Row<'_>) -> Result<(), E>) -> Result<(), E> {
    for (n, line) in input.lines().enumerate() {
        let line = line.map_err(Bad::Stream)?;
        if !line.trim().is_empty() {
            f(json_row(&line).map_err(|e| Bad::Row(format!("line {}: {e}", n + 1)))?)?;
        }
    }
    Ok(())
}

/// Bytes of input that are taken apart at a time.
const BUFFER: usize = 256 << 10;

/// Hands each row of CSV to `f`, until that fails.
pub fn csv<E: From<Bad>>(
    input: impl BufRead,
    header: bool,
    hex: bool,
    mut f: impl FnMut(Row<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut reader =
        csv::ReaderBuilder::new().has_headers(header).flexible(true).buffer_capacity(BUFFER).from_reader(input);
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|e| Bad::Row(e.to_string()))? {
        let line = record.position().map_or(0, csv::Position::line);
        f(csv_row(&record, hex).map_err(|e| Bad::Row(format!("line {line}: {e}")))?)?;
    }
    Ok(())
}

fn json_row(line: &str) -> Result<Row<'static>, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
    let Value::Object(object) = value else {
        return Err("a JSON object with \"key\" and \"value\" is expected".into());
    };
    let keyspace = match object.get("keyspace") {
        None => None,
        Some(Value::String(s)) => Some(s.clone().into()),
        Some(_) => return Err("\"keyspace\" must be a string".into()),
    };
    Ok(Row { keyspace, key: take(&object, "key")?.into(), value: take(&object, "value")?.into() })
}

fn csv_row(record: &csv::ByteRecord, hex: bool) -> Result<Row<'_>, String> {
    if record.len() != 2 {
        return Err(format!("{} columns; key and value are expected", record.len()));
    }
    let take = |i: usize| -> Result<Cow<'_, [u8]>, String> {
        if !hex {
            return Ok(record[i].into());
        }
        let digits = std::str::from_utf8(&record[i]).ok().and_then(from_hex);
        digits.map(Cow::from).ok_or_else(|| "not hexadecimal".to_string())
    };
    Ok(Row { keyspace: None, key: take(0)?, value: take(1)? })
}

/// Hexadecimal digits to bytes.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

/// Takes bytes from a JSON object by the convention of `text::put`.
pub fn take(object: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let hex_name = format!("{name}_hex");
    match (object.get(name), object.get(&hex_name)) {
        (Some(Value::String(text)), None) => Ok(text.as_bytes().to_vec()),
        (None, Some(Value::String(text))) => from_hex(text).ok_or_else(|| format!("{hex_name:?} is not hexadecimal")),
        (Some(Value::Number(n)), None) => Ok(n.to_string().into_bytes()),
        (None, None) => Err(format!("no {name:?} (a string; or {hex_name:?} with hexadecimal digits)")),
        _ => Err(format!("give {name:?} as a string, or {hex_name:?} as hexadecimal digits, not both")),
    }
}
