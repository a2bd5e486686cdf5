//! Traces of lines: lis, MQSim and DiskSim ASCII, libCacheSim's csv, plain ids.

use super::error::TraceError;
use super::{Format, Record, Source};
use std::hash::Hasher;

/// Blocks of one request of a lis trace, and bytes of one of the others, above which it is taken for damage.
const LONGEST_RUN: u64 = 1 << 20;
const LONGEST: u64 = 1 << 30;

/// Columns of a csv trace, counted from 1; those not given are found by the names in the first line, or are time, id,
/// size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsvColumns {
    /// Object id: a number, or any text (which is hashed).
    pub id: Option<usize>,
    /// Time in seconds.
    pub time: Option<usize>,
    /// Operation; what begins with `w` or `s` (set), or is `2a`, is a write.
    pub op: Option<usize>,
    /// Separator; a comma by default.
    pub delimiter: Option<char>,
}

impl std::str::FromStr for CsvColumns {
    type Err = String;

    /// `id=5,time=2,op=3,delimiter=;`
    fn from_str(s: &str) -> Result<CsvColumns, String> {
        let mut columns = CsvColumns::default();
        for part in s.split(',').filter(|p| !p.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?}: give name=column"))?;
            let column = || match value.parse::<usize>() {
                Ok(n) if n >= 1 => Ok(Some(n)),
                _ => Err(format!("{part:?}: columns are numbered from 1")),
            };
            match name.trim() {
                "id" => columns.id = column()?,
                "time" => columns.time = column()?,
                "op" => columns.op = column()?,
                "delimiter" => {
                    let one = if value == "tab" { Some('\t') } else { value.chars().next() };
                    columns.delimiter = Some(one.ok_or("an empty delimiter")?);
                }
                other => return Err(format!("{other:?}: choose id, time, op, delimiter")),
            }
        }
        Ok(columns)
    }
}

/// State of reading lines.
pub(super) struct Lines {
    format: Format,
    columns: CsvColumns,
    /// Whether somebody said that this is the format.
    named: bool,
    first: bool,
    line: String,
}

impl Lines {
    pub(super) fn begin(format: Format, columns: &CsvColumns, named: bool) -> Lines {
        Lines { format, columns: columns.clone(), named, first: true, line: String::new() }
    }

    pub(super) fn next(&mut self, source: &mut Source) -> Result<Option<Record>, TraceError> {
        loop {
            if !source.line(&mut self.line)? {
                return Ok(None);
            }
            let record = match self.format {
                Format::Csv => self.csv(source)?,
                // Any text has lines: only who says so has ids that are no numbers.
                Format::Ids if !self.named && self.line.parse::<u64>().is_err() => {
                    let why =
                        format!("{:?} is no number, as the first line is; --format ids takes any text", self.line);
                    return Err(source.bad_line(why));
                }
                Format::Ids => Some(Record::Object { time: None, write: false, id: id(&self.line) }),
                Format::Lis => Some(lis(source, &self.line)?),
                Format::Disksim => Some(disksim(source, &self.line, 1e6)?),
                _ => Some(disksim(source, &self.line, 1.0)?),
            };
            self.first = false;
            if record.is_some() {
                return Ok(record);
            }
        }
    }

    /// None for the line of names.
    fn csv(&mut self, source: &Source) -> Result<Option<Record>, TraceError> {
        let delimiter = self.columns.delimiter.unwrap_or(',');
        let fields: Vec<&str> = self.line.split(delimiter).map(|f| f.trim().trim_matches('"')).collect();
        if self.first && name_columns(&mut self.columns, &fields) {
            return Ok(None);
        }
        let c = &self.columns;
        let id_column = c.id.unwrap_or(if fields.len() == 1 { 1 } else { 2 });
        let Some(text) = fields.get(id_column - 1) else {
            let why = format!("{} columns, and the object id should be column {id_column}", fields.len());
            return Err(source.bad_line(why));
        };
        let time = match c.time.or((c.id.is_none() && fields.len() > 1).then_some(1)) {
            None => None,
            Some(column) => {
                let text = fields.get(column - 1).copied().unwrap_or("");
                let seconds: f64 =
                    text.parse().map_err(|_| source.bad_line(format!("{text:?} in column {column} is no time")))?;
                Some((seconds.max(0.0) * 1e9) as u64)
            }
        };
        let op = c.op.and_then(|column| fields.get(column - 1)).map_or("", |op| op);
        let write = op == "2a" || op.starts_with(['w', 'W', 's', 'S']);
        Ok(Some(Record::Object { time, write, id: id(text) }))
    }
}

/// Whether this is a line of names; takes the columns from it that were not given.
fn name_columns(columns: &mut CsvColumns, fields: &[&str]) -> bool {
    let find = |names: &[&str]| {
        let named = |f: &&str| names.contains(&f.trim_start_matches('#').trim().to_lowercase().as_str());
        fields.iter().position(named).map(|i| i + 1)
    };
    let id = find(&["obj_id", "object_id", "object", "obj", "id", "key", "lbn", "lba", "block", "page"]);
    let time = find(&["time", "timestamp", "clock_time", "ts"]);
    let op = find(&["op", "operation", "type"]);
    if id.is_none() && time.is_none() {
        return false;
    }
    columns.id = columns.id.or(id);
    columns.time = columns.time.or(time);
    columns.op = columns.op.or(op);
    true
}

/// A number is its own id, other text is hashed.
fn id(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| {
        let mut hasher = std::hash::BuildHasher::build_hasher(&varve_rt::BuildHasher);
        hasher.write(text.as_bytes());
        hasher.finish()
    })
}

fn number(source: &Source, text: &str, what: &str) -> Result<u64, TraceError> {
    text.parse().map_err(|_| source.bad_line(format!("{text:?} is no {what} (a whole number, not negative)")))
}

fn columns<const N: usize>(source: &Source, line: &str, what: &str) -> Result<[String; N], TraceError> {
    let fields: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    let found = fields.len();
    fields.try_into().map_err(|_| source.bad_line(format!("{found} columns, not the {N} of {what}")))
}

fn lis(source: &Source, line: &str) -> Result<Record, TraceError> {
    let [first, count, _, _] = columns::<4>(source, line, "start, number of blocks, ignored, request")?;
    let (first, count) = (number(source, &first, "block")?, number(source, &count, "number of blocks")?);
    if count > LONGEST_RUN || first.checked_add(count).is_none() {
        return Err(source.bad_line(format!("a run of {count} blocks from {first}")));
    }
    Ok(Record::Run { first, count })
}

/// `scale` is nanoseconds per unit of the time column.
fn disksim(source: &Source, line: &str, scale: f64) -> Result<Record, TraceError> {
    let [time, device, sector, sectors, kind] = columns::<5>(source, line, "time, device, sector, sectors, type")?;
    let time = match time.parse::<u64>() {
        Ok(ns) if scale == 1.0 => ns,
        _ => match time.parse::<f64>() {
            Ok(t) if t >= 0.0 && t.is_finite() => (t * scale) as u64,
            _ => return Err(source.bad_line(format!("{time:?} is no time"))),
        },
    };
    let device = number(source, &device, "device")?;
    let device = device.try_into().map_err(|_| source.bad_line(format!("device {device}")))?;
    let (sector, sectors) = (number(source, &sector, "sector")?, number(source, &sectors, "number of sectors")?);
    let kind = number(source, &kind, "type")?;
    if scale == 1.0 && kind > 1 {
        return Err(source.bad_line(format!("type {kind}, neither 0 (write) nor 1 (read)")));
    }
    if sectors > LONGEST / 512 || sector > 1 << 60 {
        return Err(source.bad_line(format!("a request of {sectors} sectors at {sector}")));
    }
    Ok(Record::Block { time, write: kind & 1 == 0, device, sector, bytes: sectors * 512 })
}
