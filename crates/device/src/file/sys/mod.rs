//! The system calls under a [`crate::FileDevice`], behind a trait so that tests can script short transfers,
//! interruptions and errors. Numbers of errors are `errno` values.
//!
//! Two systems implement it: `Linux`, with all that it has for storage, and [`Portable`], with what every Unix has.
//! [`System`] is the one that files go through: `Portable` elsewhere than on Linux, and with the feature `portable`.

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
mod portable;
mod posix;
mod threads;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub use linux::Linux as System;
pub use portable::Portable;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
pub use portable::Portable as System;
pub use posix::file_size_is_an_error;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// For reading and writing; else for reading.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Past the operating system's cache (`O_DIRECT`).
    pub direct: bool,
}

/// What is behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileKind {
    /// Length in bytes.
    pub len: u64,
    /// A block device; else a regular file.
    pub block_device: bool,
}

/// The operating system as a `FileDevice` sees it. All methods may be called from several threads.
pub trait Syscalls: Send + Sync {
    /// Opens `path`.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, i32>;
    /// Length and kind of an open file.
    fn kind(&self, fd: RawFd) -> Result<FileKind, i32>;
    /// Turns `O_DIRECT` off.
    fn clear_direct(&self, fd: RawFd) -> Result<(), i32>;
    /// Reads at most `len` bytes at `offset`; 0 at the end of the file.
    ///
    /// # Safety
    /// `ptr..ptr+len` is valid for writes and used by nobody else during the call.
    unsafe fn pread(&self, fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> Result<usize, i32>;
    /// Writes at most `len` bytes at `offset`, on media when it returns if `dsync` (`EOPNOTSUPP` where it cannot).
    ///
    /// # Safety
    /// `ptr..ptr+len` is valid for reads and does not change during the call.
    unsafe fn pwrite(&self, fd: RawFd, ptr: *const u8, len: usize, offset: u64, dsync: bool) -> Result<usize, i32>;
    /// Makes data, and what is needed to find it, durable.
    fn fdatasync(&self, fd: RawFd) -> Result<(), i32>;
    /// Reserves space, lengthening the file if needed. The new part reads as zeros.
    fn allocate(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32>;
    /// Sets the file's length.
    fn truncate(&self, fd: RawFd, len: u64) -> Result<(), i32>;
    /// Frees the space of a range, which then reads as zeros.
    fn punch(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32>;
    /// Says how long what is written to the file will stay (`F_SET_RW_HINT`, Linux 4.13: `RWH_WRITE_LIFE_*`).
    fn set_lifetime(&self, fd: RawFd, lifetime: u64) -> Result<(), i32>;
    /// Write streams of the block device, numbered from 1 (Linux 6.16); 0: none, or nobody says.
    fn write_streams(&self, fd: RawFd) -> u16;
    /// A new submission ring for `entries` requests.
    fn ring(&self, entries: u32) -> Result<Box<dyn Ring>, i32>;
    /// What carries the requests of a ring, in one word.
    fn ring_name(&self) -> &'static str {
        "io_uring"
    }
    /// A new file that nobody else can open and that goes with its descriptor, in memory where there is such.
    fn memory_file(&self, _name: &str) -> Result<OwnedFd, i32> {
        Err(libc::ENOSYS)
    }
    /// Share of its rated life that the drive under the open file has used up, 1.0 for all of it (it may go on);
    /// `None`: not reported.
    fn life_used(&self, _fd: RawFd) -> Option<f64> {
        None
    }
    /// Model and serial number of the drive under a path; `None`: the system tells neither.
    fn drive_identity(&self, _path: &Path) -> Option<String> {
        None
    }
}

/// One request to a [`Ring`].
#[derive(Clone, Copy, Debug)]
pub enum RingOp {
    /// Read `len` bytes at `offset` to `ptr`.
    Read {
        /// Where to.
        ptr: *mut u8,
        /// Bytes.
        len: u32,
        /// Position in the file, bytes.
        offset: u64,
    },
    /// Write `len` bytes from `ptr` to `offset`.
    Write {
        /// Where from.
        ptr: *const u8,
        /// Bytes.
        len: u32,
        /// Position in the file, bytes.
        offset: u64,
        /// On media when it completes.
        dsync: bool,
        /// Write stream of the block device; 0: none.
        stream: u8,
    },
    /// `fdatasync`.
    Sync,
}

/// A queue of requests in flight. Used by one ticket at a time.
pub trait Ring: Send {
    /// Queues a request; false if the queue is full (submit, then push again).
    ///
    /// # Safety
    /// The memory is valid, and used by nobody else, until the completion with this `tag` was popped.
    unsafe fn push(&mut self, fd: RawFd, tag: u64, op: RingOp) -> bool;
    /// Starts queued requests, oldest first; returns how many were started.
    fn submit(&mut self) -> Result<usize, i32>;
    /// Waits until a completion can be popped.
    fn wait(&mut self) -> Result<(), i32>;
    /// The next completion: its tag, and bytes transferred or `-errno`.
    fn pop(&mut self) -> Option<(u64, i32)>;
}

/// Model and serial number of the drive under a file, directory or block device; `None`: the system tells neither, or
/// there is no single drive (a file system over several, or in memory).
pub fn drive_identity(path: &Path) -> Option<String> {
    System::default().drive_identity(path)
}

/// The number of an open file.
pub(super) fn raw(fd: &OwnedFd) -> RawFd {
    fd.as_raw_fd()
}
