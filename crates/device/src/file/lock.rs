//! The advisory lock of a database directory.

use crate::{DeviceError, OpKind};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = DirLock::FILE;

/// Held while a database is open, through `flock` on the file `lock` of its directory; the system lets go of it when
/// the process ends, however it ends. Writers hold it alone, read-only users together.
#[derive(Debug)]
pub struct DirLock {
    /// None: nobody can write there, so that there is nothing to lock.
    file: Option<File>,
    /// The parts of the database: another directory may have links to them.
    parts: Vec<(PathBuf, File)>,
}

impl DirLock {
    /// Name of the lock file in the directory.
    pub const FILE: &str = "lock";

    /// Takes the lock for writing. Creates the lock file if it is missing and writes the process id to it.
    ///
    /// # Errors
    /// [`DeviceError::Locked`], with the holder's process id where known, if anybody holds it; [`DeviceError::NoLock`]
    /// if the file is something else, which stays as it is.
    pub fn exclusive(dir: impl AsRef<Path>) -> Result<DirLock, DeviceError> {
        let dir = dir.as_ref();
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut file = loop {
            let mut file = open.open(dir.join(FILE)).map_err(|e| failed(dir, &e))?;
            lock(&mut file, libc::LOCK_EX, dir)?;
            refuse_others(&mut file, dir)?;
            // Who had it may have removed the file meanwhile: the lock is then nobody's.
            if is_named(&file, dir) {
                break file;
            }
        };
        // Informative only, so its failure (a full disk) is no reason not to open.
        let _ = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(DirLock { file: Some(file), parts: Vec::new() })
    }

    /// Takes the lock of a part of the database, too, a file or a block device: alone if `alone`, else together with
    /// other readers. One that it has already stays as it is. Where the file system has no such locks
    /// there is none.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if it is in use from another directory; errors of opening it.
    pub fn add(&mut self, path: &Path, alone: bool) -> Result<(), DeviceError> {
        assert!(!path.ends_with(FILE), "the lock is no part");
        let name: Arc<str> = path.display().to_string().into();
        let fail = |e: std::io::Error| {
            DeviceError::from_errno(OpKind::Open, &name, 0, 0, e.raw_os_error().unwrap_or(libc::EIO))
        };
        let whole = std::fs::canonicalize(path).map_err(fail)?;
        if self.parts.iter().any(|(had, _)| *had == whole) {
            return Ok(());
        }
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&whole).map_err(fail)?;
        match try_lock(&file, if alone { libc::LOCK_EX } else { libc::LOCK_SH }) {
            Ok(true) => self.parts.push((whole, file)),
            Ok(false) => return Err(DeviceError::Locked { dir: name, pid: None }),
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes the lock for reading, without writing a byte. The lock file must exist, unless the directory is on a file
    /// system that is mounted for reading only.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if a writer holds it.
    pub fn shared(dir: impl AsRef<Path>) -> Result<DirLock, DeviceError> {
        let dir = dir.as_ref();
        let mut open = OpenOptions::new();
        let mut file = match open.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(dir.join(FILE)) {
            Err(e) if e.kind() == ErrorKind::NotFound && is_read_only(dir) => {
                return Ok(DirLock { file: None, parts: Vec::new() });
            }
            opened => opened.map_err(|e| failed(dir, &e))?,
        };
        lock(&mut file, libc::LOCK_SH, dir)?;
        Ok(DirLock { file: Some(file), parts: Vec::new() })
    }
}

/// Refuses a file that nobody made as a lock: what is in it would be lost. (A crash may leave zeros in one.)
fn refuse_others(file: &mut File, dir: &Path) -> Result<(), DeviceError> {
    const MOST: u64 = 64;
    let mut text = Vec::new();
    let is_file = file.metadata().is_ok_and(|found| found.is_file());
    let read = is_file && file.rewind().and_then(|()| file.take(MOST).read_to_end(&mut text)).is_ok();
    let is_of_lock = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || *byte == 0;
    if read && text.len() < MOST as usize && text.iter().all(is_of_lock) {
        return Ok(());
    }
    let path = dir.join(FILE).display().to_string().into();
    Err(DeviceError::NoLock { path, what: if is_file { "holds something else" } else { "is no file" } })
}

/// Whether a file is the one that has the name of the lock.
fn is_named(file: &File, dir: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(dir.join(FILE))) {
        (Ok(locked), Ok(named)) => (locked.dev(), locked.ino()) == (named.dev(), named.ino()),
        (_, Err(e)) => e.kind() != ErrorKind::NotFound,
        _ => true,
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
        for file in self.parts.iter().map(|(_, file)| file).chain(&self.file) {
            // SAFETY: a system call without memory, on a descriptor that `file` keeps open.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

fn failed(dir: &Path, e: &std::io::Error) -> DeviceError {
    let name: Arc<str> = dir.join(FILE).display().to_string().into();
    if e.raw_os_error() == Some(libc::ELOOP) {
        return DeviceError::NoLock { path: name, what: "is a link" };
    }
    DeviceError::from_errno(OpKind::Open, &name, 0, 0, e.raw_os_error().unwrap_or(libc::EIO))
}

fn lock(file: &mut File, how: i32, dir: &Path) -> Result<(), DeviceError> {
    match try_lock(file, how) {
        Ok(true) => Ok(()),
        Ok(false) => Err(DeviceError::Locked { dir: dir.display().to_string().into(), pid: holder(file) }),
        Err(e) => Err(failed(dir, &e)),
    }
}

/// Whether the lock was free.
fn try_lock(file: &File, how: i32) -> std::io::Result<bool> {
    assert!(matches!(how, libc::LOCK_EX | libc::LOCK_SH), "writers are alone, readers together");
    loop {
        // SAFETY: a system call without memory, on a descriptor that `file` keeps open.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EWOULDBLOCK) => return Ok(false),
            _ => return Err(error),
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
