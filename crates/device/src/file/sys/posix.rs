//! System calls that every Unix has.

use super::{FileKind, OpenMode, raw};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that one call transfers at most: some systems refuse more than `i32::MAX` instead of transferring a part.
const AT_ONCE: usize = 1 << 30;

pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn done(result: i32) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

pub(super) fn count(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| errno())
}

/// Opens `path` by `mode`, with these flags besides.
pub(super) fn open(path: &Path, mode: OpenMode, flags: i32) -> Result<OwnedFd, i32> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    // Opening a FIFO would wait for its other end; what is no file or block device is refused after.
    let flags = flags
        | libc::O_CLOEXEC
        | libc::O_NONBLOCK
        | if mode.write { libc::O_RDWR } else { libc::O_RDONLY }
        | if mode.create { libc::O_CREAT } else { 0 };
    // SAFETY: `path` is a valid C string.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: a descriptor just opened, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: system calls without memory. Requests wait for their completion from here on.
    done(unsafe { libc::fcntl(raw(&fd), libc::F_SETFL, libc::fcntl(raw(&fd), libc::F_GETFL) & !libc::O_NONBLOCK) })?;
    Ok(fd)
}

/// Length and kind of an open file.
pub(super) fn kind(fd: RawFd) -> Result<FileKind, i32> {
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

/// # Safety
/// As [`super::Syscalls::pread`].
pub(super) unsafe fn pread(fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
    debug_assert!(i64::try_from(offset).is_ok(), "the system counts with a sign");
    // SAFETY: promised by the caller.
    count(unsafe { libc::pread(fd, ptr.cast(), len.min(AT_ONCE), offset as libc::off_t) })
}

/// # Safety
/// As [`super::Syscalls::pwrite`].
pub(super) unsafe fn pwrite(fd: RawFd, ptr: *const u8, len: usize, offset: u64) -> Result<usize, i32> {
    debug_assert!(i64::try_from(offset).is_ok(), "the system counts with a sign");
    // SAFETY: promised by the caller.
    count(unsafe { libc::pwrite(fd, ptr.cast(), len.min(AT_ONCE), offset as libc::off_t) })
}

pub(super) fn truncate(fd: RawFd, len: u64) -> Result<(), i32> {
    assert!(i64::try_from(len).is_ok(), "the system counts with a sign");
    // SAFETY: a system call without memory.
    done(unsafe { libc::ftruncate(fd, len as libc::off_t) })
}

/// From here on a file that grows past the process's limit (`ulimit -f`) is an error of the write, `NoSpace`, and no
/// signal that ends the process. It holds for the whole process, so it is for a program to choose.
pub fn file_size_is_an_error() {
    // SAFETY: to ignore a signal touches no memory.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
