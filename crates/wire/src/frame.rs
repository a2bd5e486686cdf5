//! Frames: `[op u16, length u32, type u8, flag u8, payload, CRC-32C u32]`, little-endian; the checksum is of all before
//! it. A payload begins with the version of the messages, u16, and the number of the request, u64; these never change
//! their place, so that sides of different versions can tell each other.
//!
//! Invariant: a decoder holds no more than one frame of the largest size, and what came in one piece after it.

use crate::error::FrameError;
use crate::fields::Fields;
use crate::op::Op;
use varve_rt::{Cost, charge};

/// Version of the messages.
pub const VERSION: u16 = 1;

/// Most bytes of a payload, its head included.
pub const MAX_PAYLOAD: u32 = (1 << 20) + 4096;

/// Bytes of version and number, at the beginning of every payload.
pub const HEAD: usize = 10;

/// Bytes before the payload.
const HEADER: usize = 8;

/// Bytes of a frame beside its payload.
pub const FRAME_OVERHEAD: usize = HEADER + 4;

/// Type of a host's frames.
pub const FROM_HOST: u8 = 0x00;
/// Type of a worker's frames.
pub const FROM_WORKER: u8 = 0x01;

/// Flag: the answer is a refusal.
pub const REFUSED: u8 = 0x01;

/// A frame whose checksum is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it asks for, or answers; maybe no [`Op`] at all.
    pub op: u16,
    /// 0x00 from the host, 0x01 from the worker.
    pub kind: u8,
    /// 0x01: a refusal.
    pub flag: u8,
    /// Version of the messages that its sender speaks.
    pub version: u16,
    /// Number of the request.
    pub id: u64,
    /// Version and number, [`HEAD`] bytes, and what the op needs.
    payload: Vec<u8>,
}

impl Frame {
    /// What the op needs.
    pub fn body(&self) -> &[u8] {
        &self.payload[HEAD..]
    }

    /// The whole payload; its first [`HEAD`] bytes are version and number.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// The op, if it is one.
    pub fn known(&self) -> Option<Op> {
        Op::of(self.op)
    }
}

/// The bytes of a frame whose payload is version, `id` and the `parts`. Panics past [`MAX_PAYLOAD`].
pub fn encode(op: u16, kind: u8, flag: u8, id: u64, parts: &[&[u8]]) -> Vec<u8> {
    let length = HEAD + parts.iter().map(|part| part.len()).sum::<usize>();
    assert!(length <= MAX_PAYLOAD as usize, "a message of {length} bytes is cut in pieces before it is sent");
    let mut bytes = Vec::with_capacity(FRAME_OVERHEAD + length);
    bytes.extend_from_slice(&op.to_le_bytes());
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind, flag]);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    charge(Cost::ChecksumByte, bytes.len() as u64);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Finds frames in the bytes of a connection.
pub struct Decoder {
    kind: u8,
    most: u32,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were given out.
    taken: usize,
}

impl Decoder {
    /// Of what a host sends.
    pub fn from_host() -> Decoder {
        Decoder { kind: FROM_HOST, most: MAX_PAYLOAD, bytes: Vec::new(), taken: 0 }
    }

    /// Of what a worker sends.
    pub fn from_worker() -> Decoder {
        Decoder { kind: FROM_WORKER, ..Decoder::from_host() }
    }

    /// Where to append what came. Take the frames out before more is appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        &mut self.bytes
    }

    /// The next whole frame; `None`: more has to come first. After an error nothing that follows means anything.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let all = &self.bytes[self.taken..];
        let mut fields = Fields::new(all);
        let Some(((op, length), (kind, flag))) =
            fields.u16().zip(fields.u32()).and_then(|head| Some((head, fields.u8().zip(fields.u8())?)))
        else {
            return Ok(None);
        };
        if length > self.most {
            return Err(FrameError::TooLong { length, most: self.most });
        }
        if kind != self.kind {
            return Err(FrameError::Type(kind));
        }
        if (length as usize) < HEAD {
            return Err(FrameError::TooShort);
        }
        let (Some(payload), Some(crc)) = (fields.bytes(length as usize), fields.u32()) else { return Ok(None) };
        let whole = HEADER + payload.len();
        charge(Cost::ChecksumByte, whole as u64);
        if crc32c::crc32c(&all[..whole]) != crc {
            return Err(FrameError::Damaged);
        }
        let mut head = Fields::new(payload);
        let (version, id) = head.u16().zip(head.u64()).expect("checked above");
        let frame = Frame { op, kind, flag, version, id, payload: payload.to_vec() };
        self.taken += whole + 4;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (Decoder::from_host(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.buffer().extend_from_slice(piece);
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bytes = [
            encode(2, FROM_HOST, 0, 7, &[b"one", b"two"]),
            encode(3, FROM_HOST, 1, 8, &[]),
            encode(999, FROM_HOST, 0, u64::MAX, &[&[5; 5000]]),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 64, 4096, bytes.len()] {
            let frames = decoded(&bytes, piece).expect("sound");
            let told: Vec<_> = frames.iter().map(|f| (f.op, f.flag, f.version, f.id, f.body().len())).collect();
            assert_eq!(told, [(2, 0, 1, 7, 6), (3, 1, 1, 8, 0), (999, 0, 1, u64::MAX, 5000)], "in pieces of {piece}");
            assert_eq!(frames[0].body(), b"onetwo");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_is_refused_or_waited_for() {
        let bytes = encode(2, FROM_HOST, 0, 7, &[b"a payload"]);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // A longer length waits for more, which never comes.
            assert!(decoded(&changed, 4096).is_err() || decoded(&changed, 4096) == Ok(vec![]), "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_frame_is_named() {
        let long = [&[2, 0][..], &(MAX_PAYLOAD + 1).to_le_bytes(), &[0, 0]].concat();
        assert_eq!(decoded(&long, 1), Err(FrameError::TooLong { length: MAX_PAYLOAD + 1, most: MAX_PAYLOAD }));
        let short = [&[2, 0][..], &9u32.to_le_bytes(), &[0, 0]].concat();
        assert_eq!(decoded(&short, 8), Err(FrameError::TooShort));
        assert_eq!(decoded(&encode(2, FROM_WORKER, 0, 1, &[]), 100), Err(FrameError::Type(1)));
    }
}
