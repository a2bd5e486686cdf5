//! Fixed-size records: vscsi versions 1 and 2 (VMware vscsiStats), and libCacheSim's oracleGeneral. All little endian.

use super::error::{Position, TraceError};
use super::{Record, Source};

/// Which record.
pub(super) enum Layout {
    Vscsi1,
    Vscsi2,
    OracleGeneral,
}

/// Requests longer than this are taken for damage, bytes.
const LONGEST: u32 = 1 << 30;

pub(super) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// SCSI operation codes: whether it is a write; none: neither read nor write.
fn is_write(code: u16) -> Option<bool> {
    match code & 0xff {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(false),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Some(true),
        _ => None,
    }
}

/// Whether 32 bytes look like a record of version 1.
pub(super) fn is_vscsi1(b: &[u8]) -> bool {
    u16_at(b, 14) >> 8 == 1 && is_write(u16_at(b, 12)).is_some() && u32_at(b, 4) <= LONGEST
}

/// Whether 40 bytes look like a record of version 2.
pub(super) fn is_vscsi2(b: &[u8]) -> bool {
    u16_at(b, 2) >> 8 == 2 && is_write(u16_at(b, 0)).is_some() && u32_at(b, 8) <= LONGEST
}

/// Whether 24 bytes look like a record of oracleGeneral: a next access, or none.
pub(super) fn is_oracle_general(b: &[u8]) -> bool {
    let next = u64_at(b, 16);
    (next == u64::MAX || next < 1 << 48) && u32_at(b, 12) <= LONGEST
}

impl Layout {
    pub(super) fn next(&self, source: &mut Source) -> Result<Option<Record>, TraceError> {
        let at = Position::Byte(source.at());
        match self {
            Layout::Vscsi1 => {
                let mut b = [0; 32];
                if !source.fill(&mut b)? {
                    return Ok(None);
                }
                if u16_at(&b, 14) >> 8 != 1 {
                    return Err(source.damaged(at, format!("version {}, not 1", u16_at(&b, 14) >> 8)));
                }
                block(source, at, u16_at(&b, 12), u32_at(&b, 4), u64_at(&b, 16), u64_at(&b, 24))
            }
            Layout::Vscsi2 => {
                let mut b = [0; 40];
                if !source.fill(&mut b)? {
                    return Ok(None);
                }
                if u16_at(&b, 2) >> 8 != 2 {
                    return Err(source.damaged(at, format!("version {}, not 2", u16_at(&b, 2) >> 8)));
                }
                block(source, at, u16_at(&b, 0), u32_at(&b, 8), u64_at(&b, 16), u64_at(&b, 24))
            }
            Layout::OracleGeneral => {
                let mut b = [0; 24];
                if !source.fill(&mut b)? {
                    return Ok(None);
                }
                let time = Some(u64::from(u32_at(&b, 0)) * 1_000_000_000);
                Ok(Some(Record::Object { time, write: false, id: u64_at(&b, 4) }))
            }
        }
    }
}

fn block(
    source: &Source,
    at: Position,
    code: u16,
    bytes: u32,
    sector: u64,
    time: u64,
) -> Result<Option<Record>, TraceError> {
    let Some(write) = is_write(code) else {
        return Err(source.damaged(at, format!("SCSI command {code:#04x} is neither a read nor a write")));
    };
    if bytes > LONGEST || sector > 1 << 60 {
        return Err(source.damaged(at, format!("a request of {bytes} bytes at sector {sector}")));
    }
    Ok(Some(Record::Block { time: time.saturating_mul(1000), write, device: 0, sector, bytes: bytes.into() }))
}
