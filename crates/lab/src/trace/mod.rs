//! Traces of storage and page references: public formats, and our own compact one.
//!
//! [`Reader::open`] tells the format from the content, and yields [`Record`]s whatever it is. [`compact`] writes our
//! format, and [`Recorder`] writes it from a running engine. Whatever bytes come in, what comes out is records or an
//! error with a position.

mod binary;
pub mod compact;
mod detect;
mod error;
mod record;
mod source;
mod text;

pub use error::{Position, TraceError};
pub use record::Recorder;
pub use source::Source;
pub use text::CsvColumns;

use std::path::Path;
use std::str::FromStr;
use varve::buffer::TraceEvent;

/// Formats of trace files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Our own.
    Varve,
    /// `start_block number_of_blocks ignored request_number` (ARC paper).
    Lis,
    /// VMware vscsiStats, version 1: records of 32 bytes.
    Vscsi1,
    /// The same, version 2: records of 40 bytes.
    Vscsi2,
    /// `time_ns device sector sectors type`, 1 = read.
    Mqsim,
    /// The same with the time in milliseconds and the type's low bit for reads.
    Disksim,
    /// libCacheSim: a table, one request a line.
    Csv,
    /// libCacheSim: records of 24 bytes.
    OracleGeneral,
    /// libCacheSim: one object id a line.
    Ids,
}

impl Format {
    /// Names for `--format`.
    pub const NAMES: [&'static str; 9] =
        ["varve", "lis", "vscsi1", "vscsi2", "mqsim", "disksim", "csv", "oracle-general", "ids"];
    const ALL: [Format; 9] = [
        Format::Varve,
        Format::Lis,
        Format::Vscsi1,
        Format::Vscsi2,
        Format::Mqsim,
        Format::Disksim,
        Format::Csv,
        Format::OracleGeneral,
        Format::Ids,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Format::NAMES[self as usize]
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(s: &str) -> Result<Format, String> {
        let at = Format::NAMES.iter().position(|n| *n == s);
        at.map(|i| Format::ALL[i]).ok_or_else(|| format!("choose one of {}", Format::NAMES.join(", ")))
    }
}

/// One line or record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A request to a block device.
    Block {
        /// Arrival, nanoseconds from the trace's own origin.
        time: u64,
        /// A write, not a read.
        write: bool,
        /// Device number.
        device: u32,
        /// First sector of 512 bytes.
        sector: u64,
        /// Length, bytes.
        bytes: u64,
    },
    /// A run of blocks of the trace's own size.
    Run {
        /// First block.
        first: u64,
        /// Number of blocks.
        count: u64,
    },
    /// A request for a whole object.
    Object {
        /// Time, nanoseconds, if the trace has any.
        time: Option<u64>,
        /// A write, if the trace tells.
        write: bool,
        /// Its id.
        id: u64,
    },
    /// What a buffer pool did.
    Pool {
        /// Time, nanoseconds since the recording began.
        time: u64,
        /// What.
        event: TraceEvent,
    },
}

/// How a trace is to be read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Its format; told from the content if none.
    pub format: Option<Format>,
    /// Columns of `csv`.
    pub csv: CsvColumns,
}

/// Reads a trace.
pub struct Reader {
    format: Format,
    source: Source,
    parser: Parser,
}

enum Parser {
    Varve(Box<compact::Blocks>),
    Text(text::Lines),
    Binary(binary::Layout),
}

impl Reader {
    /// Opens a file, plain or zstd-compressed.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Reader, TraceError> {
        Reader::of(Source::open(path)?, options)
    }

    /// Reads from a source.
    pub fn of(mut source: Source, options: &ReadOptions) -> Result<Reader, TraceError> {
        let format = match options.format {
            Some(format) => format,
            None => detect::format(&source)?,
        };
        source.format = format.name();
        let parser = match format {
            Format::Varve => Parser::Varve(Box::new(compact::Blocks::begin(&mut source)?)),
            Format::Vscsi1 => Parser::Binary(binary::Layout::Vscsi1),
            Format::Vscsi2 => Parser::Binary(binary::Layout::Vscsi2),
            Format::OracleGeneral => Parser::Binary(binary::Layout::OracleGeneral),
            text => Parser::Text(text::Lines::begin(text, &options.csv, options.format.is_some())),
        };
        Ok(Reader { format, source, parser })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes of a page, if the trace says.
    pub fn page_size(&self) -> Option<u32> {
        match &self.parser {
            Parser::Varve(blocks) => Some(blocks.page_size()),
            _ => None,
        }
    }

    /// What the trace says of its database; complete at the end.
    pub fn about(&self) -> compact::About {
        match &self.parser {
            Parser::Varve(blocks) => blocks.about().clone(),
            _ => compact::About::default(),
        }
    }

    /// Version of our own format.
    pub fn version(&self) -> Option<u16> {
        match &self.parser {
            Parser::Varve(blocks) => Some(blocks.version()),
            _ => None,
        }
    }

    /// The next record; none at the end.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        match &mut self.parser {
            Parser::Varve(blocks) => blocks.next(&mut self.source),
            Parser::Text(lines) => lines.next(&mut self.source),
            Parser::Binary(layout) => layout.next(&mut self.source),
        }
    }
}
