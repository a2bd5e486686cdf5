//! The bytes of a trace: from a file or memory, plain or zstd, with a look ahead for telling the format, and with
//! positions.

use super::error::{Position, TraceError};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// Bytes looked at to tell the format.
const PEEK: u64 = 64 << 10;

/// First bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Longest line of a text trace.
const LINE: u64 = 64 << 10;

/// Where a trace's bytes come from.
pub struct Source {
    /// Name for messages.
    pub name: String,
    /// Format for messages.
    pub format: &'static str,
    /// The first bytes, uncompressed; they are read again.
    pub peek: Vec<u8>,
    input: Box<dyn BufRead + Send>,
    at: u64,
    line: u64,
}

impl Source {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Source, TraceError> {
        let io = |source| TraceError::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::Error::other("a directory, not a trace file")));
        }
        Source::of(&path.display().to_string(), Box::new(file))
    }

    /// Reads bytes in memory.
    pub fn bytes(name: &str, bytes: Vec<u8>) -> Result<Source, TraceError> {
        Source::of(name, Box::new(Cursor::new(bytes)))
    }

    fn of(name: &str, input: Box<dyn Read + Send>) -> Result<Source, TraceError> {
        let io = |source| TraceError::Io { path: name.into(), source };
        let mut input: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(1 << 20, input));
        if input.fill_buf().map_err(io)?.starts_with(&ZSTD) {
            let decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(io)?;
            input = Box::new(BufReader::with_capacity(1 << 20, decoder));
        }
        let mut source = Source { name: name.to_string(), format: "zstd", peek: Vec::new(), input, at: 0, line: 0 };
        let mut peek = Vec::new();
        (&mut source.input).take(PEEK).read_to_end(&mut peek).map_err(|e| source.failed(e))?;
        source.peek = peek.clone();
        let rest = std::mem::replace(&mut source.input, Box::new(Cursor::new(Vec::new())));
        source.input = Box::new(Cursor::new(peek).chain(rest));
        Ok(source)
    }

    /// Byte that is read next.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Fills `buf`; `Ok(false)` at a clean end of the input.
    pub fn fill(&mut self, buf: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.input.read(&mut buf[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    let why = format!("the input ends {} bytes into a unit of {}", filled, buf.len());
                    return Err(self.damaged(Position::Byte(self.at), why));
                }
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        self.at += filled as u64;
        Ok(true)
    }

    /// The next line that is neither blank nor a comment, without its end; none at the end of the input.
    pub fn line(&mut self, line: &mut String) -> Result<bool, TraceError> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let n = (&mut self.input).take(LINE).read_until(b'\n', &mut bytes).map_err(|e| self.failed(e))?;
            if n == 0 {
                return Ok(false);
            }
            self.at += n as u64;
            self.line += 1;
            let text = std::str::from_utf8(&bytes).map_err(|_| self.bad_line("not text"))?.trim();
            if n as u64 == LINE && !bytes.ends_with(b"\n") {
                return Err(self.bad_line("a line of more than 65536 bytes"));
            }
            if !text.is_empty() && !text.starts_with('#') {
                line.clear();
                line.push_str(text);
                return Ok(true);
            }
        }
    }

    /// Damage in the line read last.
    pub fn bad_line(&self, why: impl Into<String>) -> TraceError {
        self.damaged(Position::Line(self.line), why.into())
    }

    /// Damage at a position.
    pub fn damaged(&self, at: Position, why: String) -> TraceError {
        TraceError::Damaged { name: self.name.clone(), format: self.format, at, why }
    }

    fn failed(&self, e: std::io::Error) -> TraceError {
        if e.raw_os_error().is_some() {
            return TraceError::Io { path: self.name.clone().into(), source: e };
        }
        self.damaged(Position::Byte(self.at), format!("the compressed data cannot be read: {e}"))
    }
}
