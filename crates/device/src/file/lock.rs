//! The advisory lock of a database directory.

use crate::{DeviceError, OpKind};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Name of the lock file in the directory.
const FILE: &str = "lock";

/// Held while a database is open, through `flock` on the file `lock` of its directory; the system lets go of it when
/// the process ends, however it ends. Writers hold it alone, read-only users together.
#[derive(Debug)]
pub struct DirLock {
    /// None: nobody can write there, so that there is nothing to lock.
    file: Option<File>,
}

impl DirLock {
    /// Takes the lock for writing. Creates the lock file if it is missing and writes the process id to it.
    ///
    /// # Errors
    /// [`DeviceError::Locked`], with the holder's process id where known, if anybody holds it.
    pub fn exclusive(dir: impl AsRef<Path>) -> Result<DirLock, DeviceError> {
        let dir = dir.as_ref();
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        let mut file = open.open(dir.join(FILE)).map_err(|e| failed(dir, &e))?;
        lock(&mut file, libc::LOCK_EX, dir)?;
        // Informative only, so its failure (a full disk) is no reason not to open.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(DirLock { file: Some(file) })
    }

    /// Takes the lock for reading, without writing a byte. The lock file must exist, unless the directory is on a file
    /// system that is mounted for reading only.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if a writer holds it.
    pub fn shared(dir: impl AsRef<Path>) -> Result<DirLock, DeviceError> {
        let dir = dir.as_ref();
        let mut open = OpenOptions::new();
        let mut file = match open.read(true).custom_flags(libc::O_NONBLOCK).open(dir.join(FILE)) {
            Err(e) if e.kind() == ErrorKind::NotFound && is_read_only(dir) => return Ok(DirLock { file: None }),
            opened => opened.map_err(|e| failed(dir, &e))?,
        };
        lock(&mut file, libc::LOCK_SH, dir)?;
        Ok(DirLock { file: Some(file) })
    }
}

/// Whether a directory is on a file system that is mounted for reading only.
fn is_read_only(dir: &Path) -> bool {
    let Ok(name) = CString::new(dir.as_os_str().as_bytes()) else { return false };
    // SAFETY: zeros are a value of the structure, which the system call fills.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero, and both outlive the call.
    let told = unsafe { libc::statvfs(name.as_ptr(), &raw mut found) };
    told == 0 && found.f_flag & libc::ST_RDONLY != 0
}

impl Drop for DirLock {
    /// Unlocks the file before it is closed: a process that was just started shares it until it begins its own program,
    /// and the lock is the file's, not the descriptor's.
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        // SAFETY: a system call without memory, on a descriptor that `file` keeps open.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
    }
}

fn failed(dir: &Path, e: &std::io::Error) -> DeviceError {
    let name: Arc<str> = dir.join(FILE).display().to_string().into();
    DeviceError::from_errno(OpKind::Open, &name, 0, 0, e.raw_os_error().unwrap_or(libc::EIO))
}

fn lock(file: &mut File, how: i32, dir: &Path) -> Result<(), DeviceError> {
    assert!(matches!(how, libc::LOCK_EX | libc::LOCK_SH), "writers are alone, readers together");
    loop {
        // SAFETY: a system call without memory, on a descriptor that `file` keeps open.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EWOULDBLOCK) => {
                return Err(DeviceError::Locked { dir: dir.display().to_string().into(), pid: holder(file) });
            }
            _ => return Err(failed(dir, &error)),
        }
    }
}

/// The process id in the lock file. Readers leave none, so after a writer's end it may be that of a dead process.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    // SAFETY: signal 0 only asks whether the process exists.
    let alive = unsafe { libc::kill(pid as i32, 0) } == 0
        || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    alive.then_some(pid)
}
