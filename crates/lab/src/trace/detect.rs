//! Telling a trace's format from its first bytes.

use super::compact::MAGIC;
use super::error::TraceError;
use super::{Format, Source, binary};

/// Records looked at.
const LOOK: usize = 200;

pub(super) fn format(source: &Source) -> Result<Format, TraceError> {
    let peek = &source.peek;
    let unknown = |why: &str| TraceError::Unknown { name: source.name.clone(), why: why.to_string() };
    if peek.is_empty() {
        return Err(unknown("it is empty"));
    }
    if peek.starts_with(&MAGIC) {
        return Ok(Format::Varve);
    }
    let head = &peek[..peek.len().min(4096)];
    if head.iter().all(|b| matches!(b, b'\t' | b'\n' | b'\r' | 0x20..=0x7e)) {
        return text(head).ok_or_else(|| unknown("text, but neither columns of numbers nor a table with commas"));
    }
    let fits =
        |size: usize, looks: fn(&[u8]) -> bool| peek.len() >= size && peek.chunks_exact(size).take(LOOK).all(looks);
    if fits(32, binary::is_vscsi1) {
        return Ok(Format::Vscsi1);
    }
    if fits(40, binary::is_vscsi2) {
        return Ok(Format::Vscsi2);
    }
    let times: Vec<u32> = peek.chunks_exact(24).take(LOOK).map(|b| binary::u32_at(b, 0)).collect();
    if fits(24, binary::is_oracle_general) && times.is_sorted() {
        return Ok(Format::OracleGeneral);
    }
    Err(unknown("binary, and no record of the known sizes"))
}

/// Decides by the first line that is neither blank nor a comment.
fn text(head: &[u8]) -> Option<Format> {
    let head = std::str::from_utf8(head).ok()?;
    let line = head.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#'))?;
    if line.contains(',') {
        return Some(Format::Csv);
    }
    let columns: Vec<&str> = line.split_whitespace().collect();
    let whole = |s: &&str| s.parse::<u64>().is_ok();
    match columns.len() {
        1 if whole(&columns[0]) => Some(Format::Ids),
        4 if columns.iter().all(whole) => Some(Format::Lis),
        5 if columns.iter().all(whole) => Some(Format::Mqsim),
        5 if columns[0].parse::<f64>().is_ok() && columns[1..4].iter().all(whole) => Some(Format::Disksim),
        _ => None,
    }
}
