//! Linux: direct I/O, durable writes, batches through `io_uring`, space that is reserved and given back, words to the
//! drive on streams, and what the drive says of itself.

mod identity;
mod wear;

use super::posix::{self, count, done, errno};
use super::{FileKind, OpenMode, Ring, RingOp, Syscalls};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// `F_LINUX_SPECIFIC_BASE` + 12 of `linux/fcntl.h`; the inode takes the hint.
const F_SET_RW_HINT: libc::c_int = 1024 + 12;

/// Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux(());

impl Syscalls for Linux {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, i32> {
        posix::open(path, mode, if mode.direct { libc::O_DIRECT } else { 0 })
    }

    fn kind(&self, fd: RawFd) -> Result<FileKind, i32> {
        posix::kind(fd)
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
        unsafe { posix::pread(fd, ptr, len, offset) }
    }

    unsafe fn pwrite(&self, fd: RawFd, ptr: *const u8, len: usize, offset: u64, dsync: bool) -> Result<usize, i32> {
        if !dsync {
            // SAFETY: promised by the caller.
            return unsafe { posix::pwrite(fd, ptr, len, offset) };
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
        posix::truncate(fd, len)
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
        let limit = wear::drive(fd).map(|drive| drive.join("queue/max_write_streams"));
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

    fn memory_file(&self, name: &str) -> Result<OwnedFd, i32> {
        let name = std::ffi::CString::new(name).map_err(|_| libc::EINVAL)?;
        // SAFETY: `name` is a valid C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: a descriptor just opened, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn life_used(&self, fd: RawFd) -> Option<f64> {
        wear::life_used(fd)
    }

    fn drive_identity(&self, path: &Path) -> Option<String> {
        identity::drive_identity(path)
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
