//! Errors of devices.

use std::fmt;
use std::sync::Arc;

/// What a failed request was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Opening a file or block device.
    Open,
    /// Reading blocks.
    Read,
    /// Writing blocks, durable or not.
    Write,
    /// Telling the device that blocks are no longer needed.
    Trim,
    /// Making completed writes durable.
    Flush,
    /// Changing the length.
    SetLen,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Open => "open",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Trim => "trim",
            OpKind::Flush => "flush",
            OpKind::SetLen => "set_len",
        })
    }
}

/// Why a device request failed. Cheap to clone, so that one failure can be told to every waiter.
// (The tag takes a word, as that of `varve::Error`.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum DeviceError {
    /// The operating system or the drive reported an error.
    Io {
        /// The failed operation.
        op: OpKind,
        /// The device's name.
        device: Arc<str>,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The operating system's error number (`EIO` = 5, ...).
        errno: i32,
        /// Whether the same request may succeed when it is made again.
        retryable: bool,
    },
    /// No space is left on the device or in the quota.
    NoSpace {
        /// The failed operation.
        op: OpKind,
        /// The device's name.
        device: Arc<str>,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
    },
    /// The (simulated) power is off: nothing works until it is restored and the database is reopened.
    PowerLost,
    /// The request reaches past the end of the device.
    OutOfRange {
        /// The refused operation.
        op: OpKind,
        /// The device's name.
        device: Arc<str>,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// Length of the device in bytes.
        device_len: u64,
    },
    /// Offset, length or memory of the request is not a multiple of the device's block.
    Misaligned {
        /// The refused operation.
        op: OpKind,
        /// The device's name.
        device: Arc<str>,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The required alignment in bytes.
        block: u32,
    },
    /// A change was asked of a device opened for reading only.
    ReadOnly {
        /// The refused operation.
        op: OpKind,
        /// The device's name.
        device: Arc<str>,
    },
    /// The device cannot do what was asked.
    Unsupported {
        /// The device's name.
        device: Arc<str>,
        /// What it cannot do.
        what: &'static str,
    },
    /// The operating system refused memory or a thread.
    Resources {
        /// What was refused, and why.
        what: Arc<str>,
        /// What helps.
        advice: &'static str,
    },
    /// The database may not write to the device any more.
    Refused {
        /// The device's name.
        device: Arc<str>,
        /// Why not.
        why: Arc<str>,
    },
    /// The device is at the other end of a connection, and is not reached, or not believed, any more.
    Lost {
        /// The device's name.
        device: Arc<str>,
        /// What happened, and what helps.
        why: Arc<str>,
    },
    /// Another process (or another handle of this one) holds the directory's lock.
    Locked {
        /// The database directory.
        dir: Arc<str>,
        /// Process id of the holder, where it could be read.
        pid: Option<u32>,
    },
    /// What has the name of a directory's lock is something else.
    NoLock {
        /// The path.
        path: Arc<str>,
        /// What it is.
        what: &'static str,
    },
    /// A real file was used inside a simulation, whose clock and crashes it would not follow.
    InSimulation {
        /// The device's name.
        device: Arc<str>,
    },
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceError::Io { op, device, offset, len, errno, retryable } => write!(
                f,
                "{} failed: {} (errno {errno}); {}",
                request(*op, device, *offset, *len),
                reason(*errno),
                advice(*op, *errno, *retryable)
            ),
            DeviceError::NoSpace { op, device, offset, len } => write!(
                f,
                "no space left for {op} of {len} bytes at offset {offset} of {device}: free some space, then try again"
            ),
            DeviceError::PowerLost => {
                write!(f, "the device has lost power: restore it, then open the database again so that it recovers")
            }
            DeviceError::OutOfRange { op, device, offset, len, device_len } => write!(
                f,
                "{op} of {len} bytes at offset {offset} reaches past the end of {device} ({device_len} bytes): the \
                 file may have been truncated; compare its length with the one at creation"
            ),
            DeviceError::Misaligned { op, device, offset, len, block } => write!(
                f,
                "{op} of {len} bytes at offset {offset} of {device} is not aligned to its blocks of {block} bytes \
                 (offset, length and memory must be): use AlignedBuf and whole blocks"
            ),
            DeviceError::ReadOnly { op, device } => {
                write!(f, "{op} refused: {device} was opened read-only; open it for writing")
            }
            DeviceError::Unsupported { device, what } => {
                write!(f, "{device} cannot {what}; choose another device or option")
            }
            DeviceError::Resources { what, advice } => write!(f, "the operating system refused {what}; {advice}"),
            DeviceError::Refused { device, why } => write!(f, "{device} is not written to: {why}"),
            DeviceError::Lost { device, why } => write!(f, "{device}: {why}"),
            DeviceError::Locked { dir, pid } => write!(f, "{dir} is in use by {}: close it there first", holder(*pid)),
            DeviceError::NoLock { path, what } => write!(
                f,
                "{path} {what}, where the file is expected that is locked while the database is open: move it away, \
                 and a new one is made"
            ),
            DeviceError::InSimulation { device } => write!(
                f,
                "{device} is a real file and cannot be used inside a simulation: use MemDevice or a device model there"
            ),
        }
    }
}

impl std::error::Error for DeviceError {}

fn request(op: OpKind, device: &str, offset: u64, len: u64) -> String {
    if op == OpKind::Open {
        format!("open of {device}")
    } else {
        format!("{op} of {len} bytes at offset {offset} of {device}")
    }
}

/// What the operating system calls an error, without its number.
pub fn reason(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let number = format!(" (os error {errno})");
    text.strip_suffix(&number).map_or(text.clone(), str::to_string)
}

fn advice(op: OpKind, errno: i32, retryable: bool) -> &'static str {
    match (op, retryable) {
        _ if errno == libc::EMFILE => "the process has as many files open as it may: raise the limit (`ulimit -n`)",
        _ if errno == libc::ENFILE => "the system has as many files open as it may: close some",
        (_, true) => "it may be tried again",
        (OpKind::Open, _) => "see what is at this path, and its permissions",
        _ => "check the drive and the kernel log",
    }
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => format!("this process (pid {pid})"),
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}

impl DeviceError {
    /// Builds the error for an `errno`: `ENOSPC`, `EDQUOT` and `EFBIG` become [`DeviceError::NoSpace`].
    pub fn from_errno(op: OpKind, device: &Arc<str>, offset: u64, len: u64, errno: i32) -> DeviceError {
        let device = device.clone();
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => DeviceError::NoSpace { op, device, offset, len },
            _ => {
                let retryable =
                    matches!(errno, libc::EINTR | libc::EAGAIN | libc::ETIMEDOUT | libc::EBUSY | libc::ENOMEM);
                DeviceError::Io { op, device, offset, len, errno, retryable }
            }
        }
    }

    /// A thread was refused.
    pub fn no_thread(e: std::io::Error) -> DeviceError {
        let advice = "raise the limit of threads (`ulimit -u`) or of memory, or use fewer databases at a time";
        DeviceError::Resources { what: format!("a thread ({e})").into(), advice }
    }

    /// So many bytes for something were refused.
    pub fn no_memory(bytes: u64, what: &str) -> DeviceError {
        let advice = "choose a smaller cache, or raise the limit of memory (`ulimit -v`)";
        DeviceError::Resources { what: format!("{bytes} bytes of memory for {what}").into(), advice }
    }

    /// Whether the same request may succeed when it is made again. Never true of a failed flush: what it should have
    /// made durable may be gone, and a second flush may report success all the same.
    pub fn is_retryable(&self) -> bool {
        match self {
            DeviceError::Io { op, retryable, .. } => *retryable && *op != OpKind::Flush,
            DeviceError::NoSpace { .. } | DeviceError::Locked { .. } => true,
            _ => false,
        }
    }
}
