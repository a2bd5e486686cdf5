//! What every Unix has: files through the system's cache, positional calls, and a few threads where several requests
//! shall be under way at a time.
//!
//! Nothing here is durable before [`Syscalls::fdatasync`]: there are no durable writes, so each is a write and a flush.
//! On Apple's systems `fsync` leaves what was written in the drive's cache; the flush is `F_FULLFSYNC`, and one that is
//! refused is an error, not a weaker flush.

use super::posix;
use super::threads::{ThreadRing, Threads};
use super::{FileKind, OpenMode, Ring, Syscalls};
use std::fs::OpenOptions;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Any Unix.
#[derive(Default)]
pub struct Portable {
    threads: Arc<Threads>,
}

impl Portable {
    /// Threads that it has started to make requests.
    pub fn threads(&self) -> usize {
        self.threads.started()
    }
}

/// Makes what was written to the file durable.
#[cfg(target_vendor = "apple")]
pub(super) fn sync(fd: RawFd) -> Result<(), i32> {
    // SAFETY: a system call without memory.
    if unsafe { libc::fcntl(fd, libc::F_FULLFSYNC) } < 0 { Err(posix::errno()) } else { Ok(()) }
}

/// Makes what was written to the file durable.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn sync(fd: RawFd) -> Result<(), i32> {
    // SAFETY: a system call without memory.
    posix::done(unsafe { libc::fsync(fd) })
}

impl Syscalls for Portable {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, i32> {
        if mode.direct { Err(libc::EINVAL) } else { posix::open(path, mode, 0) }
    }

    fn kind(&self, fd: RawFd) -> Result<FileKind, i32> {
        match posix::kind(fd)? {
            // Some systems tell the length of a block device by calls of their own only.
            FileKind { len: 0, block_device: true } => Err(libc::ENODEV),
            kind => Ok(kind),
        }
    }

    fn clear_direct(&self, _fd: RawFd) -> Result<(), i32> {
        Ok(())
    }

    unsafe fn pread(&self, fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
        // SAFETY: promised by the caller.
        unsafe { posix::pread(fd, ptr, len, offset) }
    }

    unsafe fn pwrite(&self, fd: RawFd, ptr: *const u8, len: usize, offset: u64, dsync: bool) -> Result<usize, i32> {
        if dsync {
            // A flush in here would learn of lost writes which only a flush may learn of.
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: promised by the caller.
        unsafe { posix::pwrite(fd, ptr, len, offset) }
    }

    fn fdatasync(&self, fd: RawFd) -> Result<(), i32> {
        sync(fd)
    }

    fn allocate(&self, _fd: RawFd, _offset: u64, _len: u64) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    fn truncate(&self, fd: RawFd, len: u64) -> Result<(), i32> {
        posix::truncate(fd, len)
    }

    fn punch(&self, _fd: RawFd, _offset: u64, _len: u64) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    fn set_lifetime(&self, _fd: RawFd, _lifetime: u64) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    fn write_streams(&self, _fd: RawFd) -> u16 {
        0
    }

    fn ring(&self, entries: u32) -> Result<Box<dyn Ring>, i32> {
        Ok(Box::new(ThreadRing::new(&self.threads, entries as usize)))
    }

    fn ring_name(&self) -> &'static str {
        "threads"
    }

    /// A file in the folder for temporary files, whose name is gone when this returns; until then it is its owner's.
    fn memory_file(&self, name: &str) -> Result<OwnedFd, i32> {
        let mut tries = 0;
        loop {
            let file = format!("varve-{name}-{}-{:016x}", std::process::id(), varve_rt::rng().next_u64());
            let path = std::env::temp_dir().join(file);
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    std::fs::remove_file(&path).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
                    return Ok(file.into());
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(e) => return Err(e.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
    }
}
