//! The system calls under a [`crate::FileDevice`], behind a trait so that tests can script short transfers,
//! interruptions and errors. Numbers of errors are `errno` values.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
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

/// A queue of requests in flight (`io_uring`). Used by one ticket at a time.
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

/// `F_LINUX_SPECIFIC_BASE` + 12 of `linux/fcntl.h`; the inode takes the hint.
const F_SET_RW_HINT: libc::c_int = 1024 + 12;

/// Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A new file in memory, without a name.
pub fn memory_file(name: &str) -> Result<OwnedFd, i32> {
    let name = std::ffi::CString::new(name).map_err(|_| libc::EINVAL)?;
    // SAFETY: `name` is a valid C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: a descriptor just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: i32) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

fn count(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| errno())
}

impl Syscalls for Linux {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, i32> {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        // Opening a FIFO would wait for its other end; what is no file or block device is refused after.
        let flags = libc::O_CLOEXEC
            | libc::O_NONBLOCK
            | if mode.write { libc::O_RDWR } else { libc::O_RDONLY }
            | if mode.create { libc::O_CREAT } else { 0 }
            | if mode.direct { libc::O_DIRECT } else { 0 };
        // SAFETY: `path` is a valid C string.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: a descriptor just opened, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: system calls without memory. Requests wait for their completion from here on.
        done(unsafe {
            libc::fcntl(raw(&fd), libc::F_SETFL, libc::fcntl(raw(&fd), libc::F_GETFL) & !libc::O_NONBLOCK)
        })?;
        Ok(fd)
    }

    fn kind(&self, fd: RawFd) -> Result<FileKind, i32> {
        // SAFETY: `stat` is plain data, filled by fstat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writes.
        done(unsafe { libc::fstat(fd, &mut stat) })?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(FileKind { len: stat.st_size as u64, block_device: false }),
            libc::S_IFBLK => {
                // SAFETY: a system call without memory. Nothing uses the file position.
                let len = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
                if len < 0 { Err(errno()) } else { Ok(FileKind { len: len as u64, block_device: true }) }
            }
            libc::S_IFDIR => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    fn clear_direct(&self, fd: RawFd) -> Result<(), i32> {
        // SAFETY: system calls without memory.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 {
            return Err(errno());
        }
        // SAFETY: as above.
        done(unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) })
    }

    unsafe fn pread(&self, fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
        // SAFETY: promised by the caller.
        count(unsafe { libc::pread(fd, ptr.cast(), len, offset as i64) })
    }

    unsafe fn pwrite(&self, fd: RawFd, ptr: *const u8, len: usize, offset: u64, dsync: bool) -> Result<usize, i32> {
        if !dsync {
            // SAFETY: promised by the caller.
            return count(unsafe { libc::pwrite(fd, ptr.cast(), len, offset as i64) });
        }
        let part = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len };
        // SAFETY: promised by the caller; one iovec.
        count(unsafe { libc::pwritev2(fd, &part, 1, offset as i64, libc::RWF_DSYNC) })
    }

    fn fdatasync(&self, fd: RawFd) -> Result<(), i32> {
        // SAFETY: a system call without memory.
        done(unsafe { libc::fdatasync(fd) })
    }

    fn allocate(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32> {
        // SAFETY: a system call without memory.
        done(unsafe { libc::fallocate(fd, 0, offset as i64, len as i64) })
    }

    fn truncate(&self, fd: RawFd, len: u64) -> Result<(), i32> {
        // SAFETY: a system call without memory.
        done(unsafe { libc::ftruncate(fd, len as i64) })
    }

    fn punch(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a system call without memory.
        done(unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) })
    }

    fn set_lifetime(&self, fd: RawFd, lifetime: u64) -> Result<(), i32> {
        // SAFETY: the call reads the number, which outlives it.
        done(unsafe { libc::fcntl(fd, F_SET_RW_HINT, &raw const lifetime) })
    }

    fn write_streams(&self, fd: RawFd) -> u16 {
        let limit = super::wear::drive(fd).map(|drive| drive.join("queue/max_write_streams"));
        let text = limit.and_then(|path| std::fs::read_to_string(path).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn ring(&self, entries: u32) -> Result<Box<dyn Ring>, i32> {
        let raw = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOSYS);
        let ring = io_uring::IoUring::builder().dontfork().build(entries).map_err(raw)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(raw)?;
        use io_uring::opcode::{Fsync, Read, Write};
        let able = [Read::CODE, Write::CODE, Fsync::CODE].iter().all(|&op| probe.is_supported(op));
        // Without NODROP a full completion queue would lose completions.
        if able && ring.params().is_feature_nodrop() { Ok(Box::new(Uring(ring))) } else { Err(libc::ENOSYS) }
    }
}

struct Uring(io_uring::IoUring);

impl Ring for Uring {
    unsafe fn push(&mut self, fd: RawFd, tag: u64, op: RingOp) -> bool {
        use io_uring::{opcode, types};
        let fd = types::Fd(fd);
        let entry = match op {
            RingOp::Read { ptr, len, offset } => opcode::Read::new(fd, ptr, len).offset(offset).build(),
            RingOp::Write { ptr, len, offset, dsync, stream } => {
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, ptr, len).offset(offset).rw_flags(flags).write_stream(stream).build()
            }
            RingOp::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the caller keeps the memory valid until the completion was popped.
        unsafe { self.0.submission().push(&entry.user_data(tag)) }.is_ok()
    }

    fn submit(&mut self) -> Result<usize, i32> {
        self.0.submit().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn wait(&mut self) -> Result<(), i32> {
        if !self.0.completion().is_empty() {
            return Ok(());
        }
        // IORING_ENTER_GETEVENTS. Nothing is submitted here: what could not be started is done without the ring.
        const GETEVENTS: u32 = 1;
        // SAFETY: no argument memory is passed.
        unsafe { self.0.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) }
            .map(|_| ())
            .map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn pop(&mut self) -> Option<(u64, i32)> {
        self.0.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }
}

/// The number of an open file.
pub(super) fn raw(fd: &OwnedFd) -> RawFd {
    fd.as_raw_fd()
}
