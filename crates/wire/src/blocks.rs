//! The block service: requests for the worker's device.

use crate::fields::Fields;
use crate::op::Op;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use varve_device::{AlignedBuf, Device, DeviceError, Io, flush, read_at, write_at};

/// Most bytes of one read or write.
pub(crate) const PIECE: usize = 1 << 20;

/// Longest device that may be asked for: what file systems know, and far from where sums overflow.
const LONGEST: u64 = 1 << 62;

/// A request for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRequest<'a> {
    Read { offset: u64, len: u32 },
    Write { offset: u64, durable: bool, bytes: &'a [u8] },
    Trim { offset: u64, len: u64 },
    Flush,
    SetLen(u64),
}

impl<'a> BlockRequest<'a> {
    /// Reads the body of a request; `None` if it is not what the op needs, or asks for too much.
    pub fn decode(op: Op, body: &'a [u8]) -> Option<BlockRequest<'a>> {
        let mut f = Fields::new(body);
        let request = match op {
            Op::Read => BlockRequest::Read { offset: f.u64()?, len: f.u32()? },
            Op::Write => {
                let (offset, durable) = (f.u64()?, f.u8()? != 0);
                let bytes = f.rest();
                return (1..=PIECE).contains(&bytes.len()).then_some(BlockRequest::Write { offset, durable, bytes });
            }
            Op::Trim => BlockRequest::Trim { offset: f.u64()?, len: f.u64()? },
            Op::Flush => BlockRequest::Flush,
            Op::SetLen => BlockRequest::SetLen(f.u64()?),
            _ => return None,
        };
        f.end()?;
        match request {
            BlockRequest::Read { len, .. } if !(1..=PIECE).contains(&(len as usize)) => None,
            BlockRequest::SetLen(len) if len > LONGEST => None,
            BlockRequest::Trim { len, .. } if usize::try_from(len).is_err() => None,
            request => Some(request),
        }
    }

    /// What goes before the bytes, for [`BlockRequest::decode`].
    pub fn head(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            BlockRequest::Read { offset, len } => {
                body.extend_from_slice(&offset.to_le_bytes());
                body.extend_from_slice(&len.to_le_bytes());
            }
            BlockRequest::Write { offset, durable, .. } => {
                body.extend_from_slice(&offset.to_le_bytes());
                body.push(u8::from(*durable));
            }
            BlockRequest::Trim { offset, len } => {
                body.extend_from_slice(&offset.to_le_bytes());
                body.extend_from_slice(&len.to_le_bytes());
            }
            BlockRequest::Flush => {}
            BlockRequest::SetLen(len) => body.extend_from_slice(&len.to_le_bytes()),
        }
        body
    }

    pub fn op(&self) -> Op {
        match self {
            BlockRequest::Read { .. } => Op::Read,
            BlockRequest::Write { .. } => Op::Write,
            BlockRequest::Trim { .. } => Op::Trim,
            BlockRequest::Flush => Op::Flush,
            BlockRequest::SetLen(_) => Op::SetLen,
        }
    }
}

/// What the block service did.
#[derive(Default)]
pub(crate) struct Traffic {
    pub read: AtomicU64,
    pub written: AtomicU64,
}

/// Does a request; its answer's body.
pub(crate) fn run(device: &dyn Device, request: BlockRequest<'_>, traffic: &Traffic) -> Result<Vec<u8>, DeviceError> {
    match request {
        BlockRequest::Read { offset, len } => {
            let mut buf = AlignedBuf::new(len as usize);
            read_at(device, offset, &mut buf)?;
            traffic.read.fetch_add(len.into(), Relaxed);
            Ok(buf.to_vec())
        }
        BlockRequest::Write { offset, durable, bytes } => {
            write_at(device, offset, bytes, durable)?;
            traffic.written.fetch_add(bytes.len() as u64, Relaxed);
            Ok(Vec::new())
        }
        BlockRequest::Trim { offset, len } => {
            device.run(Io::trim(offset, usize::try_from(len).expect("checked when it came")))?;
            Ok(Vec::new())
        }
        BlockRequest::Flush => {
            flush(device)?;
            Ok(Vec::new())
        }
        BlockRequest::SetLen(len) => {
            device.set_len(len)?;
            Ok(device.len().to_le_bytes().to_vec())
        }
    }
}
