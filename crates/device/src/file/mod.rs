//! A real file.

use crate::{Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, OpKind, Ticket, device};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Create the file if it is missing.
    pub create: bool,
    /// Refuse every change.
    pub read_only: bool,
}

/// A real file by positional reads and writes.
pub struct FileDevice {
    name: Arc<str>,
    file: File,
    len: AtomicU64,
    read_only: bool,
    counters: Counters,
}

impl FileDevice {
    /// Opens `path`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<FileDevice>, DeviceError> {
        let name: Arc<str> = path.as_ref().display().to_string().into();
        if varve_rt::in_simulation() {
            return Err(DeviceError::InSimulation { device: name });
        }
        let fail = |e: std::io::Error| {
            DeviceError::from_errno(OpKind::Open, &name, 0, 0, e.raw_os_error().unwrap_or(libc::EIO))
        };
        let mut open = OpenOptions::new();
        open.read(true).write(!options.read_only).create(options.create && !options.read_only).truncate(false);
        let file = open.open(path.as_ref()).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len() & !(device::BLOCK as u64 - 1);
        let (read_only, counters) = (options.read_only, Counters::default());
        Ok(Arc::new(FileDevice { name: name.clone(), file, len: len.into(), read_only, counters }))
    }

    fn execute(&self, io: &Io) -> Result<(), DeviceError> {
        use std::os::unix::fs::FileExt;
        device::check(io, &self.name, device::BLOCK as u32, self.len())?;
        let op = io.op.kind();
        if self.read_only && op != OpKind::Read {
            return Err(DeviceError::ReadOnly { op, device: self.name.clone() });
        }
        let result = match io.op {
            Op::Read => {
                // SAFETY: the caller of `Io::read` promised valid, exclusive memory until the request was waited for.
                let buf = unsafe { std::slice::from_raw_parts_mut(io.buf.as_mut_ptr(), io.len()) };
                self.file.read_exact_at(buf, io.offset)
            }
            Op::Write { durable } => {
                // SAFETY: the caller of `Io::write` promised valid, unchanging memory until the request was waited for.
                let buf = unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) };
                let result = self.file.write_all_at(buf, io.offset);
                if durable { result.and_then(|()| self.file.sync_data()) } else { result }
            }
            Op::Trim => Ok(()),
            Op::Flush => self.file.sync_data(),
        };
        result.map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            DeviceError::from_errno(op, &self.name, io.offset, io.len() as u64, errno)
        })
    }
}

impl Device for FileDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: DeviceKind::File,
            block: device::BLOCK as u32,
            atomic_write_unit: 512,
            queue_depth: 64,
            direct: false,
            access: "cached, positional".into(),
            fallback: None,
            capabilities: Capabilities::default(),
        }
    }

    fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let len = len.next_multiple_of(device::BLOCK as u64);
        if self.read_only {
            return Err(DeviceError::ReadOnly { op: OpKind::SetLen, device: self.name.clone() });
        }
        // SAFETY: plain system calls on a descriptor that `self.file` keeps open.
        let allocated = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, len as i64) };
        let result = if allocated == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        result.or_else(|e| if e.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(e) })
            .and_then(|()| self.file.set_len(len))
            .and_then(|()| self.file.sync_all())
            .map_err(|e| DeviceError::from_errno(OpKind::SetLen, &self.name, 0, len, e.raw_os_error().unwrap_or(libc::EIO)))?;
        self.len.store(len, Relaxed);
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let one = |io: &Io| {
            let started = varve_rt::now();
            let result = self.execute(io);
            self.counters.finished(io.op.kind(), io.len() as u64, started.elapsed().as_nanos() as u64, result.is_ok());
            result
        };
        Ticket::ready(batch.iter().map(one).collect())
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}
