//! The body of a refusal: its number, a text, and the device's error if that is what it is about.

use crate::error::{Refusal, WireError};
use crate::fields::{Fields, put_bytes};
use std::sync::Arc;
use varve_device::{DeviceError, OpKind};

const OPS: [OpKind; 6] = [OpKind::Open, OpKind::Read, OpKind::Write, OpKind::Trim, OpKind::Flush, OpKind::SetLen];

/// The longest text that is sent.
const TEXT: usize = 1000;

pub(crate) fn encode(refusal: Refusal, why: &str) -> Vec<u8> {
    let mut body = (refusal as u16).to_le_bytes().to_vec();
    let mut end = why.len().min(TEXT);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    put_bytes(&mut body, &why.as_bytes()[..end]);
    body
}

/// Of a request that the device failed.
pub(crate) fn encode_device(error: &DeviceError) -> Vec<u8> {
    let why = match error {
        DeviceError::Refused { why, .. } => why.to_string(),
        error => error.to_string(),
    };
    let mut body = encode(Refusal::Device, &why);
    let (tag, op, numbers) = match error {
        DeviceError::Io { op, offset, len, errno, retryable, .. } => {
            (0u8, *op, [*offset, *len, u64::from(errno.unsigned_abs()), u64::from(*retryable)])
        }
        DeviceError::NoSpace { op, offset, len, .. } => (1, *op, [*offset, *len, 0, 0]),
        DeviceError::OutOfRange { op, offset, len, device_len, .. } => (2, *op, [*offset, *len, *device_len, 0]),
        DeviceError::ReadOnly { op, .. } => (3, *op, [0; 4]),
        DeviceError::Unsupported { .. } => (4, OpKind::Open, [0; 4]),
        _ => (5, OpKind::Open, [0; 4]),
    };
    let op = OPS.iter().position(|o| *o == op).expect("every operation is listed");
    body.extend_from_slice(&[tag, op as u8]);
    numbers.iter().for_each(|n| body.extend_from_slice(&n.to_le_bytes()));
    body
}

/// What a refusal by `peer` says.
pub(crate) fn decode(body: &[u8], peer: &Arc<str>) -> WireError {
    let read = || {
        let mut fields = Fields::new(body);
        let refusal = Refusal::of(fields.u16()?);
        let why: Arc<str> = fields.text()?.into();
        if refusal != Refusal::Device {
            return Some(WireError::Refused { peer: peer.clone(), refusal, why });
        }
        let (tag, op) = (fields.u8()?, *OPS.get(usize::from(fields.u8()?))?);
        let mut number = || fields.u64();
        let (offset, len, third, fourth) = (number()?, number()?, number()?, number()?);
        let device = peer.clone();
        Some(WireError::Device(match tag {
            0 => {
                let errno = i32::try_from(third).unwrap_or(0);
                DeviceError::Io { op, device, offset, len, errno, retryable: fourth != 0 }
            }
            1 => DeviceError::NoSpace { op, device, offset, len },
            2 => DeviceError::OutOfRange { op, device, offset, len, device_len: third },
            3 => DeviceError::ReadOnly { op, device },
            4 => DeviceError::Unsupported { device, what: "do that: its worker's device does not" },
            _ => DeviceError::Refused { device, why },
        }))
    };
    read().unwrap_or_else(|| WireError::Garbage { peer: peer.clone(), why: "a refusal that says nothing".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_device_come_back_with_the_name_of_the_worker() {
        let (there, here): (Arc<str>, Arc<str>) = ("/dev/there".into(), "remote".into());
        let of = |device: &Arc<str>| {
            let (op, device, offset, len) = (OpKind::Write, device.clone(), 8192, 4096);
            [
                DeviceError::Io { op, device: device.clone(), offset, len, errno: 5, retryable: true },
                DeviceError::NoSpace { op, device: device.clone(), offset, len },
                DeviceError::OutOfRange { op, device: device.clone(), offset, len, device_len: 77 },
                DeviceError::ReadOnly { op: OpKind::Flush, device: device.clone() },
                DeviceError::Refused { device, why: "a flush failed before".into() },
            ]
        };
        for (sent, expected) in of(&there).iter().zip(of(&here)) {
            assert_eq!(decode(&encode_device(sent), &here), WireError::Device(expected));
        }
        let long = "é".repeat(TEXT);
        assert!(
            matches!(decode(&encode(Refusal::InUse, &long), &here), WireError::Refused { why, .. } if why.len() <= TEXT)
        );
        assert!(matches!(decode(&[], &here), WireError::Garbage { .. }));
    }
}
