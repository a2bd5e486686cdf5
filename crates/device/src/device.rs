//! The device trait, what a device says about itself, and safe helpers for one request at a time.

use crate::{AlignedBuf, DeviceError, DeviceStats, Io, Op, Ticket};
use std::ops::Range;
use std::sync::Arc;

/// The block of files and of the memory device, bytes: offsets, lengths and memory are multiples of it.
pub const BLOCK: usize = 4096;
const _: () = assert!(BLOCK.is_power_of_two() && BLOCK <= u32::MAX as usize);

/// What sort of storage is behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A regular file.
    File,
    /// A block device used whole.
    Block,
    /// Memory with a durable and a volatile image.
    Memory,
    /// A model of a magnetic disk.
    Disk,
    /// A model of a solid-state drive, translation layer included.
    Ssd,
    /// A model of raw flash.
    Flash,
    /// Several devices as one.
    Array,
}

/// Abilities beyond reading, writing and flushing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// A trim frees space; where false it does nothing.
    pub trim: bool,
    /// Bytes of the stretches, from byte 0 on, that lie on one drive each and that hints are about; 0: there are none.
    pub extent: u64,
}

/// What somebody knows of bytes that a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Nothing will change them.
    Sealed,
    /// They say what the device belongs to: who comes back to it later has to find them as they were left.
    Identity,
    /// Anybody may change them: what holds of bytes that nobody has said anything of.
    Changing,
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name for messages: the path, or the model's name.
    pub name: Arc<str>,
    /// Sort of storage.
    pub kind: DeviceKind,
    /// Alignment of offset, length and memory of every request, bytes.
    pub block: u32,
    /// A power cut tears a write only at multiples of this, bytes.
    pub atomic_write_unit: u32,
    /// Requests in flight that the device can use.
    pub queue_depth: u32,
    /// Whether requests bypass the operating system's cache.
    pub direct: bool,
    /// How requests are executed, for `stat` ("O_DIRECT, io_uring").
    pub access: String,
    /// Why the device does not work in the best way it knows, if so.
    pub fallback: Option<String>,
    /// Extra abilities.
    pub capabilities: Capabilities,
}

/// Storage: batches of requests on aligned blocks. Shared as `Arc<dyn Device>`.
#[allow(clippy::len_without_is_empty)]
pub trait Device: Send + Sync {
    /// What the device is and can do. May change over time (`fallback`).
    fn info(&self) -> DeviceInfo;

    /// Current length in bytes, a multiple of the block.
    fn len(&self) -> u64;

    /// Grows or shrinks the device to `len` bytes, rounded up to a block. The grown part reads as zeros; the new length
    /// is durable when this returns. Space for it is reserved where the file system can.
    fn set_len(&self, len: u64) -> Result<(), DeviceError>;

    /// As [`Device::set_len`], for what is going to be written in large pieces: a device that writes what it grows by,
    /// so that small durable writes to it are fast, need not do so.
    fn reserve_len(&self, len: u64) -> Result<(), DeviceError> {
        self.set_len(len)
    }

    /// Begins every request of the batch; they complete in any order. A flush covers the writes that *completed* before
    /// its submission. Requests that overlap while in flight, one of them a write, have no defined order.
    fn submit(&self, batch: Vec<Io>) -> Ticket;

    /// Executes one request and waits for it: what `submit` and `wait` do, for devices that can do it at less cost.
    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.submit(vec![io]).wait_all()
    }

    /// Counts, bytes and times since the device was opened.
    fn stats(&self) -> DeviceStats;

    /// Share of its rated life that the drive says is used up, 1.0 for all of it; `None`: it does not report it. The
    /// drive itself is asked, which may take milliseconds.
    fn life_used(&self) -> Option<f64> {
        None
    }

    /// What is known of a range of its bytes. Costs nothing and promises nothing: a device may forget it, and it is not
    /// there when the device is opened again.
    fn hint(&self, _range: Range<u64>, _hint: Hint) {}
}

/// Checks that `io` is aligned to `block` and lies within `len`; every device calls this first.
pub fn check(io: &Io, name: &Arc<str>, block: u32, device_len: u64) -> Result<(), DeviceError> {
    assert!(block.is_power_of_two(), "the mask below takes it for one");
    debug_assert!(device_len.is_multiple_of(block.into()), "a device has whole blocks");
    let (offset, len, op) = (io.offset, io.len() as u64, io.op.kind());
    let mask = u64::from(block) - 1;
    let misaligned = match io.op {
        Op::Flush => false,
        Op::Trim => (offset | len) & mask != 0,
        Op::Read | Op::Write { .. } => (offset | len | io.buf.addr() as u64) & mask != 0,
    };
    if misaligned {
        return Err(DeviceError::Misaligned { op, device: name.clone(), offset, len, block });
    }
    if offset.checked_add(len).is_none_or(|end| end > device_len) {
        return Err(DeviceError::OutOfRange { op, device: name.clone(), offset, len, device_len });
    }
    Ok(())
}

/// Whether memory is good for any device as it is.
fn aligned(addr: *const u8) -> bool {
    (addr as usize).is_multiple_of(BLOCK)
}

/// Reads `buf.len()` bytes at `offset` and waits. Any memory will do (unaligned memory costs a copy); offset and length
/// must be whole blocks.
pub fn read_at(dev: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
    if aligned(buf.as_ptr()) {
        // SAFETY: `buf` is borrowed exclusively until `run` has waited for the request.
        return dev.run(unsafe { Io::read(offset, buf.as_mut_ptr(), buf.len()) });
    }
    let mut bounce = AlignedBuf::new(buf.len());
    // SAFETY: `bounce` outlives the request, which `run` waits for.
    dev.run(unsafe { Io::read(offset, bounce.as_mut_ptr(), bounce.len()) })?;
    buf.copy_from_slice(&bounce);
    Ok(())
}

/// Writes `buf` at `offset` and waits; `durable` as in [`Op::Write`]. Memory and alignment as for [`read_at`].
pub fn write_at(dev: &dyn Device, offset: u64, buf: &[u8], durable: bool) -> Result<(), DeviceError> {
    if aligned(buf.as_ptr()) {
        // SAFETY: `buf` is borrowed until `run` has waited for the request.
        return dev.run(unsafe { Io::write(offset, buf.as_ptr(), buf.len(), durable) });
    }
    let mut bounce = AlignedBuf::new(buf.len());
    bounce.copy_from_slice(buf);
    // SAFETY: `bounce` outlives the request, which `run` waits for.
    dev.run(unsafe { Io::write(offset, bounce.as_ptr(), bounce.len(), durable) })
}

/// Makes every completed write durable, and waits.
pub fn flush(dev: &dyn Device) -> Result<(), DeviceError> {
    dev.run(Io::flush())
}
