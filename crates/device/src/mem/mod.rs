//! A device in memory.

mod image;

pub use image::CutReport;

use crate::{Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, Ticket, device};
use image::{Image, Payload};
use std::sync::Arc;
use varve_rt::Mutex;

/// A device in memory with a durable and a volatile image.
pub struct MemDevice {
    name: Arc<str>,
    image: Mutex<Image>,
    counters: Counters,
}

impl MemDevice {
    /// A device of `len` zero bytes.
    pub fn new(len: u64) -> Arc<MemDevice> {
        let image = Mutex::new(Image::new(len.next_multiple_of(device::BLOCK as u64), 512));
        Arc::new(MemDevice { name: "memory".into(), image, counters: Counters::default() })
    }

    fn execute(&self, io: &Io) -> Result<(), DeviceError> {
        let mut image = self.image.lock();
        device::check(io, &self.name, device::BLOCK as u32, image.len())?;
        match io.op {
            Op::Read => {
                // SAFETY: the caller of `Io::read` promised valid, exclusive memory until the request was waited for.
                let buf = unsafe { std::slice::from_raw_parts_mut(io.buf.as_mut_ptr(), io.len()) };
                image.read(io.offset, buf);
            }
            Op::Write { durable } => {
                // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
                let buf = unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) };
                image.write(io.offset, io.len(), Payload::bytes(buf), durable);
            }
            Op::Trim => image.write(io.offset, io.len(), Payload::zeros(), false),
            Op::Flush => {
                let mark = image.mark();
                image.flush(mark);
            }
        }
        Ok(())
    }
}

impl Device for MemDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::Memory,
            block: device::BLOCK as u32,
            atomic_write_unit: 512,
            queue_depth: 64,
            direct: true,
            access: "memory".into(),
            fallback: None,
            capabilities: Capabilities { trim: true, ..Default::default() },
        }
    }

    fn len(&self) -> u64 {
        self.image.lock().len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.image.lock().set_len(len.next_multiple_of(device::BLOCK as u64));
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let one = |io: &Io| {
            let result = self.execute(io);
            self.counters.finished(io.op.kind(), io.len() as u64, 0, result.is_ok());
            result
        };
        Ticket::ready(batch.iter().map(one).collect())
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}
