//! Hello and its answer: who comes, and what the worker has.

use crate::fields::{Fields, put_bytes};
use std::sync::Arc;
use varve_device::{Capabilities, DeviceInfo, DeviceKind};

/// As what somebody connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A host that uses the device. There is one at a time.
    Owner,
    /// Somebody who looks at metrics.
    Looker,
}

/// The body of a hello: role, and a number that the host drew. Connections with the same number are one host's.
pub(crate) fn hello(role: Role, client: u64) -> Vec<u8> {
    let mut body = vec![u8::from(role == Role::Looker)];
    body.extend_from_slice(&client.to_le_bytes());
    body
}

/// Reads the body of a hello.
pub(crate) fn read_hello(body: &[u8]) -> Option<(Role, u64)> {
    let mut fields = Fields::new(body);
    let role = match fields.u8()? {
        0 => Role::Owner,
        1 => Role::Looker,
        _ => return None,
    };
    let client = fields.u64()?;
    fields.end()?;
    Some((role, client))
}

/// What a worker says of itself and of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Number that the worker drew when it started: another one, and what was not flushed may be gone.
    pub boot: u64,
    /// Requests that it takes before it has answered the first, on one connection.
    pub window: u32,
    /// Whether it does jobs.
    pub jobs: bool,
    /// Bytes of the device.
    pub len: u64,
    /// What the device says of itself; of name, access and fallback, the worker's.
    pub info: DeviceInfo,
}

const KINDS: [DeviceKind; 7] = [
    DeviceKind::File,
    DeviceKind::Block,
    DeviceKind::Memory,
    DeviceKind::Disk,
    DeviceKind::Ssd,
    DeviceKind::Flash,
    DeviceKind::Array,
];

impl Facts {
    /// What is known before a worker has said anything.
    pub(crate) fn nothing() -> Facts {
        let info = DeviceInfo {
            name: Arc::from(""),
            kind: DeviceKind::File,
            block: 4096,
            atomic_write_unit: 512,
            queue_depth: 1,
            direct: false,
            access: String::new(),
            fallback: None,
            capabilities: Capabilities::default(),
        };
        Facts { boot: 0, window: 1, jobs: false, len: 0, info }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let info = &self.info;
        let kind = KINDS.iter().position(|kind| *kind == info.kind).expect("every kind is listed");
        let mut body = Vec::new();
        body.extend_from_slice(&self.boot.to_le_bytes());
        body.extend_from_slice(&self.window.to_le_bytes());
        body.push(u8::from(self.jobs));
        body.extend_from_slice(&self.len.to_le_bytes());
        body.push(kind as u8);
        body.extend_from_slice(&info.block.to_le_bytes());
        body.extend_from_slice(&info.atomic_write_unit.to_le_bytes());
        body.extend_from_slice(&info.queue_depth.to_le_bytes());
        body.push(u8::from(info.direct));
        body.push(u8::from(info.capabilities.trim));
        body.extend_from_slice(&info.capabilities.extent.to_le_bytes());
        for text in [&*info.name, &info.access, info.fallback.as_deref().unwrap_or_default()] {
            put_bytes(&mut body, text.as_bytes());
        }
        body
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Facts> {
        let mut f = Fields::new(body);
        let (boot, window, jobs, len) = (f.u64()?, f.u32()?, f.u8()? != 0, f.u64()?);
        let kind = *KINDS.get(usize::from(f.u8()?))?;
        let (block, atomic_write_unit, queue_depth) = (f.u32()?, f.u32()?, f.u32()?);
        let (direct, trim, extent) = (f.u8()? != 0, f.u8()? != 0, f.u64()?);
        let (name, access, fallback) = (f.text()?, f.text()?.to_string(), f.text()?);
        // Fields that a newer worker adds are behind these.
        if !block.is_power_of_two() || block > 1 << 20 || !len.is_multiple_of(block.into()) || window == 0 {
            return None;
        }
        let info = DeviceInfo {
            name: Arc::from(name),
            kind,
            block,
            atomic_write_unit,
            queue_depth,
            direct,
            access,
            fallback: (!fallback.is_empty()).then(|| fallback.to_string()),
            capabilities: Capabilities { trim, extent },
        };
        Some(Facts { boot, window, jobs, len, info })
    }
}
