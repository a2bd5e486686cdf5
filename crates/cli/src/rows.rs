//! Rows as `load` reads them, from JSON lines or CSV. By itself, so that it can be fuzzed.

use memchr::{memchr, memchr_iter, memchr2};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::error::Category;
use std::borrow::Cow;
use std::io::{BufRead, Cursor, Read};

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
    for (n, line) in without_mark(input)?.lines().enumerate() {
        let line = line.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => Bad::Row(format!(
                "line {}: not UTF-8; bytes that are no text go into \"key_hex\" and \"value_hex\"",
                n + 1
            )),
            _ => Bad::Stream(e),
        })?;
        if !line.trim().is_empty() {
            f(json_row(&line).map_err(|e| Bad::Row(format!("line {}: {e}", n + 1)))?)?;
        }
    }
    Ok(())
}

/// Hands each row of CSV to `f`, until that fails. With a header its first line names the columns, `key` and `value`,
/// in either order.
///
/// Most input is plain: no quotes, lines that end with a line feed. That is cut where the feeds and commas are, which
/// takes less time than parsing; from the first block of the input that is not so plain on, the parser has the rest.
pub fn csv<E: From<Bad>>(
    input: impl BufRead,
    header: bool,
    hex: bool,
    mut f: impl FnMut(Row<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut input = without_mark(input)?;
    let mut plain = Plain { line: 0, header, swapped: false, hex };
    // The beginning of a line whose end was not seen yet.
    let mut begun = Vec::new();
    loop {
        let block = match input.fill_buf() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            block => block.map_err(Bad::Stream)?,
        };
        if block.is_empty() || memchr2(b'"', b'\r', block).is_some() {
            return plain.leave_to_parser(begun, input, f);
        }
        let mut rest = block;
        while let Some(end) = memchr(b'\n', rest) {
            let line = if begun.is_empty() {
                &rest[..end]
            } else {
                begun.extend_from_slice(&rest[..end]);
                &begun
            };
            plain.take(line, &mut f)?;
            begun.clear();
            rest = &rest[end + 1..];
        }
        begun.extend_from_slice(rest);
        let used = block.len();
        input.consume(used);
    }
}

/// The input behind a byte order mark, if it begins with one.
fn without_mark<R: BufRead>(mut input: R) -> Result<impl BufRead, Bad> {
    let mut head = Vec::new();
    (&mut input).take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut head).map_err(Bad::Stream)?;
    if head == BYTE_ORDER_MARK {
        head.clear();
    }
    Ok(Cursor::new(head).chain(input))
}

/// Bytes of input that the parser takes apart at a time.
const PARSER_BUFFER: usize = 256 << 10;

/// Left out at the beginning of the input.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// How far plain CSV was taken apart.
struct Plain {
    /// Lines so far.
    line: u64,
    /// The next row is the header.
    header: bool,
    /// The value comes first.
    swapped: bool,
    hex: bool,
}

/// The columns of a row; of any other number of them than two, that number.
type Columns<'a> = Result<(&'a [u8], &'a [u8]), usize>;

/// What the parser gets as the last row. If it is not the last that comes out, a quote is open that has swallowed it.
const END: &[u8] = b"\x1f\x17 the end of the rows 5d0ac4e1c1d3 \x17\x1f";

impl Plain {
    fn take<E: From<Bad>>(&mut self, line: &[u8], f: &mut impl FnMut(Row<'_>) -> Result<(), E>) -> Result<(), E> {
        self.line += 1;
        if line.is_empty() {
            return Ok(());
        }
        let columns = match memchr(b',', line) {
            Some(comma) => match memchr_iter(b',', &line[comma + 1..]).count() {
                0 => Ok((&line[..comma], &line[comma + 1..])),
                more => Err(more + 2),
            },
            None => Err(1),
        };
        self.row(self.line, columns, f)
    }

    /// Hands on a row, or takes the header.
    fn row<E: From<Bad>>(
        &mut self,
        line: u64,
        columns: Columns<'_>,
        f: &mut impl FnMut(Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let named = |e: String| Bad::Row(format!("line {line}: {e}"));
        if std::mem::take(&mut self.header) {
            self.swapped = is_swapped(columns).map_err(named)?;
            return Ok(());
        }
        let columns = if self.swapped { columns.map(|(value, key)| (key, value)) } else { columns };
        f(csv_row(columns, self.hex).map_err(named)?)
    }

    /// Has the rest of the input, a part of which is `begun` already, taken apart by the parser.
    fn leave_to_parser<E: From<Bad>>(
        mut self,
        begun: Vec<u8>,
        input: impl BufRead,
        mut f: impl FnMut(Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // An empty line counts for nothing. It keeps the parser from leaving out a byte order mark that is not the
        // input's first.
        let rest = b"\n".chain(&begun[..]).chain(input).chain(&b"\n"[..]).chain(END);
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(PARSER_BUFFER)
            .from_reader(rest);
        let mut record = csv::ByteRecord::new();
        let failed = |e: csv::Error| match e.into_kind() {
            csv::ErrorKind::Io(e) => Bad::Stream(e),
            other => Bad::Row(format!("{other:?}")),
        };
        while reader.read_byte_record(&mut record).map_err(failed)? {
            // The first record begins after the empty line.
            let line = self.line + record.position().map_or(2, csv::Position::line).max(2) - 1;
            if record.len() == 1 && &record[0] == END {
                break;
            }
            if let Some(last) = record.iter().next_back()
                && last.ends_with(END)
            {
                let swallowed = memchr_iter(b'\n', last).count() as u64;
                let line = self.line + reader.position().line() - swallowed - 1;
                return Err(Bad::Row(format!("line {line}: {OPEN_QUOTE}")).into());
            }
            let columns = if record.len() == 2 { Ok((&record[0], &record[1])) } else { Err(record.len()) };
            self.row(line, columns, &mut f)?;
        }
        Ok(())
    }
}

/// A JSON row. The parser refuses a field that is there twice, or has another name: a misspelt `keyspace` would have
/// the row stored elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRow {
    #[serde(default, deserialize_with = "given")]
    keyspace: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    key: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    key_hex: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    value: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    value_hex: Option<Value>,
}

/// A field that is there, `null` too.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(field).map(Some)
}

fn json_row(line: &str) -> Result<Row<'static>, String> {
    let row: JsonRow = serde_json::from_str(line).map_err(|e| match e.classify() {
        Category::Data if line.trim_start().starts_with('{') => {
            let unknown = e.to_string().starts_with("unknown field");
            format!("{e}: {}", if unknown { "leave other fields out" } else { "give each field once" })
        }
        Category::Data => OBJECT.into(),
        _ => format!("not JSON: {e}"),
    })?;
    // (The parser would take the fields from an array, too.)
    if !line.trim_start().starts_with('{') {
        return Err(OBJECT.into());
    }
    let keyspace = match row.keyspace {
        None => None,
        Some(Value::String(s)) => Some(s.into()),
        Some(_) => return Err("\"keyspace\" must be a string".into()),
    };
    let (key, value) = (bytes("key", row.key, row.key_hex)?, bytes("value", row.value, row.value_hex)?);
    Ok(Row { keyspace, key: key.into(), value: value.into() })
}

const OBJECT: &str = "a JSON object with \"key\" and \"value\" is expected";

/// Said of the row in which the quote is.
const OPEN_QUOTE: &str = "a quote (\") that begins a column of this row is never closed: close it, or, if it belongs to the data, put the column in quotes and double it";

/// Whether a header names the value first.
fn is_swapped(columns: Columns<'_>) -> Result<bool, String> {
    let text = |column| String::from_utf8_lossy(column).trim().to_lowercase();
    match columns.map(|(a, b)| (text(a), text(b))) {
        Ok((a, b)) if a == "key" && b == "value" => Ok(false),
        Ok((a, b)) if a == "value" && b == "key" => Ok(true),
        Ok((a, b)) => Err(format!(
            "the header names the columns {a:?} and {b:?}; \"key\" and \"value\" are expected (without --header and this line, the first column is the key)"
        )),
        Err(n) => Err(format!("the header has {n} columns; \"key\" and \"value\" are expected")),
    }
}

fn csv_row(columns: Columns<'_>, hex: bool) -> Result<Row<'_>, String> {
    let (key, value) = columns.map_err(|n| format!("{n} columns; key and value are expected"))?;
    let take = |column| -> Result<Cow<'_, [u8]>, String> {
        if !hex {
            return Ok(Cow::Borrowed(column));
        }
        let digits = std::str::from_utf8(column).ok().and_then(from_hex);
        digits.map(Cow::from).ok_or_else(|| "not hexadecimal".to_string())
    };
    Ok(Row { keyspace: None, key: take(key)?, value: take(value)? })
}

/// Hexadecimal digits to bytes.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

/// The bytes that a JSON object has under a name, as text or as hexadecimal digits: the convention of `text::put`.
pub fn bytes(name: &str, text: Option<Value>, hex: Option<Value>) -> Result<Vec<u8>, String> {
    match (text, hex) {
        (Some(Value::String(text)), None) => Ok(text.into_bytes()),
        (None, Some(Value::String(hex))) => from_hex(&hex).ok_or_else(|| format!("\"{name}_hex\" is not hexadecimal")),
        (Some(Value::Number(n)), None) => Err(format!(
            "{name:?} is a number, whose digits may be written in other ways: give it as a string, \"{n}\""
        )),
        (Some(Value::Null), None) | (None, Some(Value::Null)) => {
            Err(format!("{name:?} is null: leave the row out, or give a string, which may be empty"))
        }
        (None, None) => Err(format!("no {name:?} (a string; or \"{name}_hex\" with hexadecimal digits)")),
        _ => Err(format!("give {name:?} as a string, or \"{name}_hex\" as hexadecimal digits, not both")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use std::io::BufReader;

    type Outcome = (Vec<(Vec<u8>, Vec<u8>)>, Option<String>);

    /// Reads the input `at_a_time` bytes at a time. Returns the rows before its end or its failure, and the failure.
    fn read(text: &[u8], at_a_time: usize, header: bool) -> Outcome {
        let mut rows = Vec::new();
        let input = BufReader::with_capacity(at_a_time, text);
        let done = csv(input, header, false, |row| {
            rows.push((row.key.into_owned(), row.value.into_owned()));
            Ok::<(), Bad>(())
        });
        (rows, done.err().map(|e| e.to_string()))
    }

    /// Whether a quote is open at the end.
    fn is_open(text: &[u8]) -> bool {
        let (mut begins, mut open, mut closed) = (true, false, false);
        for byte in text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) {
            (begins, open, closed) = match byte {
                b'"' if open => (false, false, true),
                b'"' if begins || closed => (false, true, false),
                b',' | b'\n' | b'\r' if !open => (true, false, false),
                _ => (false, open, false),
            };
        }
        open
    }

    /// The same by the parser alone, without the number of the line.
    fn parsed(text: &[u8]) -> Outcome {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        let mut rows = Vec::new();
        let mut records = reader.byte_records().peekable();
        while let Some(record) = records.next() {
            let record = record.expect("a flexible reader takes all bytes");
            if records.peek().is_none() && is_open(text) {
                return (rows, Some(OPEN_QUOTE.into()));
            }
            if record.len() != 2 {
                return (rows, Some(format!("{} columns; key and value are expected", record.len())));
            }
            rows.push((record[0].to_vec(), record[1].to_vec()));
        }
        (rows, None)
    }

    /// Plain CSV, or with all that makes it less plain.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let plain: [&[u8]; 5] = [b"a", b"b", b",", b"c,d\n", b"\n"];
        let all = [&plain[..], &[b"\"", b"\"x,\n\"", b"\r\n", BYTE_ORDER_MARK]].concat();
        let pieces = |of: Vec<&'static [u8]>| vec(select(of), 0..20).prop_map(|pieces| pieces.concat());
        prop_oneof![pieces(plain.to_vec()), pieces(all)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn csv_is_what_the_parser_makes_of_it_wherever_the_input_breaks(
            text in text(),
            at_a_time in 1..9_usize,
        ) {
            let (rows, failure) = read(&text, at_a_time, false);
            let (expected, reason) = parsed(&text);
            prop_assert_eq!(rows, expected);
            let failure = failure.map(|e| e.split_once(": ").expect("the line comes first").1.to_string());
            prop_assert_eq!(failure, reason);
        }
    }

    #[test]
    fn a_header_says_which_column_is_the_key() {
        let rows = |text: &str, at_a_time| read(text.as_bytes(), at_a_time, true);
        let expected = vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
        for text in [
            "key,value\na,1\nb,2\n",
            "\nValue , KEY\n1,a\n2,b\n",
            "\"value\",key\r\n1,a\r\n\"2\",b",
            "value,key\n1,a\n\"2\",b\n",
        ] {
            for at_a_time in [1, 3, 100] {
                assert_eq!(rows(text, at_a_time), (expected.clone(), None), "{text:?}");
            }
        }
        assert_eq!(rows("", 10), (vec![], None));
        for (text, why) in [
            ("id,name\n1,x\n", "\"id\" and \"name\""),
            ("key\na\n", "1 columns"),
            ("key,\"key\"\n", "\"key\" and \"key\""),
        ] {
            let (none, failure) = rows(text, 100);
            assert!(
                none.is_empty()
                    && failure.as_ref().is_some_and(|f| f.starts_with("line 1: the header") && f.contains(why)),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_byte_order_mark_is_left_out_of_json_too() {
        let row = r#"{"key":"a","value":"b"}"#;
        for (text, whole) in [(format!("\u{feff}{row}\n"), true), (format!("{row}\n\u{feff}{row}\n"), false)] {
            let mut keys = Vec::new();
            let read = jsonl::<Bad>(text.as_bytes(), |row| {
                keys.push(row.key.into_owned());
                Ok(())
            });
            assert!(keys == [b"a"] && read.is_ok() == whole, "{text}: {keys:?}, {read:?}");
        }
    }

    #[test]
    fn a_quote_that_is_left_open_is_an_error_of_its_row() {
        for (text, line, before) in [
            ("a,1\nb,\"2\nc,3\nd,4\n", 2, 1),
            ("\"a,1", 1, 0),
            ("a,1\n\nb,\"\"\"\n", 3, 1),
            ("\"a\",\"1\n2\"\nb,\"", 3, 1),
        ] {
            for at_a_time in [1, 4, 100] {
                let (rows, failure) = read(text.as_bytes(), at_a_time, false);
                assert_eq!((rows.len(), failure), (before, Some(format!("line {line}: {OPEN_QUOTE}"))), "{text:?}");
            }
        }
        assert_eq!(read(b"a,\"\"\nb,x\"y\n\"c\"\"\",z\"", 3, false).1, None, "empty, inside, doubled");
    }

    #[test]
    fn a_bad_row_of_csv_is_named_by_its_line() {
        for (text, line) in
            [("a,1\n\nb\n", 3), ("a,1\n\"b\",2\nc\n", 3), ("a,1\nb,2\r\nc,3\nd", 4), ("\"a\nb\",1\nc", 3)]
        {
            for at_a_time in [1, 2, 5, 100] {
                let (_, failure) = read(text.as_bytes(), at_a_time, false);
                let expected = format!("line {line}: 1 columns; key and value are expected");
                assert_eq!(failure, Some(expected), "{text:?}");
            }
        }
    }
}
