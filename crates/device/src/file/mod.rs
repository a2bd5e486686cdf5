//! A real file or block device.
//!
//! Single requests are positional system calls in the calling thread; batches go through `io_uring`, or a few threads
//! elsewhere than on Linux. Where the kernel or the file system refuses something better (`O_DIRECT`, `io_uring`,
//! `RWF_DSYNC`, hole punching), the next best is used and [`DeviceInfo::fallback`] says so.
//!
//! Invariants: the length is whole blocks, and changes under `growing` alone; a request lies within the length that the
//! device had when it was given; what was refused once (`direct`, `uring`, `dsync`, `trim`) is given up for good; from
//! the first failed flush (`lost`) on every flush fails.
//!
//! Lock order: `growing` before `flushing` before `lost`; `rings` and `notes` are leaves.

mod batch;
mod exec;
mod lock;
mod streams;
pub mod sys;
mod text;

pub use lock::DirLock;
pub use sys::{drive_identity, file_size_is_an_error};
pub use text::read_text;

use crate::{
    AlignedBuf, Busy, Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, OpKind,
    Ticket, device,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use sys::{OpenMode, Syscalls, System, raw};
use varve_rt::{Instant, Mutex, RwLock};

/// How to open a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Create the file if it is missing. Default false.
    pub create: bool,
    /// Refuse every change. Default false.
    pub read_only: bool,
    /// Bypass the operating system's cache where possible. Default true.
    pub direct: bool,
    /// Send batches through `io_uring`, or else threads, where possible. Default true.
    pub io_uring: bool,
    /// Write zeros to the part that `set_len` adds, so that later writes to it need no change of the file system's
    /// metadata: right for a log, whose durable writes get much faster; a data file can do without. Default false.
    pub prewrite: bool,
    /// A trim gives space back to the file system (which a later write must then find again). Default false.
    pub punch_holes: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { create: false, read_only: false, direct: true, io_uring: true, prewrite: false, punch_holes: false }
    }
}

/// A file or block device of the operating system.
pub struct FileDevice {
    inner: Arc<Inner>,
}

/// What tickets share with the device. The atomics order nothing but themselves.
struct Inner {
    name: Arc<str>,
    sys: Arc<dyn Syscalls>,
    fd: OwnedFd,
    len: AtomicU64,
    block_device: bool,
    options: Options,
    direct: AtomicBool,
    uring: AtomicBool,
    dsync: AtomicBool,
    trim: AtomicBool,
    rings: batch::Rings,
    growing: Mutex<()>,
    /// Held shared by each flush under way.
    flushing: RwLock<()>,
    /// The first failed flush.
    lost: Mutex<Option<DeviceError>>,
    notes: Mutex<Vec<String>>,
    streams: streams::Streams,
    counters: Counters,
    busy: Busy,
}

impl FileDevice {
    /// Opens a file or block device. The length of a file is rounded down to whole blocks.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<FileDevice>, DeviceError> {
        FileDevice::open_with(path, options, Arc::new(System::default()))
    }

    /// Makes a file in memory that nobody else can open and that goes with the device. `name` is for messages.
    pub fn in_memory(name: &str, options: Options) -> Result<Arc<FileDevice>, DeviceError> {
        let device: Arc<str> = name.into();
        if varve_rt::in_simulation() {
            return Err(DeviceError::InSimulation { device });
        }
        let fail = |errno| DeviceError::from_errno(OpKind::Open, &device, 0, 0, errno);
        let sys = System::default();
        let file = sys.memory_file(name).map_err(fail)?;
        FileDevice::over((file, false), device.clone(), options, Arc::new(sys), Vec::new()).map_err(fail)
    }

    /// Opens a file over the given system calls.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: Options,
        sys: Arc<dyn Syscalls>,
    ) -> Result<Arc<FileDevice>, DeviceError> {
        let name: Arc<str> = path.as_ref().display().to_string().into();
        if varve_rt::in_simulation() {
            return Err(DeviceError::InSimulation { device: name });
        }
        let fail = |errno| DeviceError::from_errno(OpKind::Open, &name, 0, 0, errno);
        let mut notes = Vec::new();
        let opened = open_file(&*sys, path.as_ref(), &options, &mut notes).map_err(fail)?;
        FileDevice::over(opened, name.clone(), options, sys, notes).map_err(fail)
    }

    /// Over an open file, and whether it was opened directly.
    fn over(
        (fd, direct): (OwnedFd, bool),
        name: Arc<str>,
        options: Options,
        sys: Arc<dyn Syscalls>,
        mut notes: Vec<String>,
    ) -> Result<Arc<FileDevice>, i32> {
        let kind = sys.kind(raw(&fd))?;
        let streams = if kind.block_device { sys.write_streams(raw(&fd)) } else { 0 };
        let ring = if options.io_uring { batch::Rings::open(&*sys).map_err(Some) } else { Err(None) };
        if let Err(Some(errno)) = ring {
            notes.push(format!("{} is not available (errno {errno}), using positional I/O", sys.ring_name()));
        }
        Ok(Arc::new(FileDevice {
            inner: Arc::new(Inner {
                fd,
                len: (kind.len & !(device::BLOCK as u64 - 1)).into(),
                block_device: kind.block_device,
                direct: direct.into(),
                uring: ring.is_ok().into(),
                dsync: true.into(),
                trim: options.punch_holes.into(),
                rings: batch::Rings::new(ring.ok()),
                growing: Mutex::new(()),
                flushing: RwLock::new(()),
                lost: Mutex::new(None),
                notes: Mutex::new(notes),
                streams: streams::Streams::new(streams),
                counters: Counters::default(),
                busy: Busy::default(),
                name,
                sys,
                options,
            }),
        }))
    }
}

/// Opens the file, directly if asked and possible.
fn open_file(
    sys: &dyn Syscalls,
    path: &Path,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(OwnedFd, bool), i32> {
    let write = !options.read_only;
    let mode = OpenMode { write, create: options.create && write, direct: options.direct };
    let open = |mode| {
        loop {
            match sys.open(path, mode) {
                Err(libc::EINTR) => {}
                other => return other,
            }
        }
    };
    match open(mode) {
        Ok(fd) => Ok((fd, options.direct)),
        Err(libc::EINVAL) if options.direct => {
            notes.push("the file system has no direct I/O, using its cache".into());
            Ok((open(OpenMode { direct: false, ..mode })?, false))
        }
        Err(errno) => Err(errno),
    }
}

impl Inner {
    /// Remembers, once, why something slower is used.
    fn note(&self, text: &str) {
        let mut notes = self.notes.lock();
        if !notes.iter().any(|n| n == text) {
            notes.push(text.into());
        }
    }

    fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Whether `io` may be executed at all.
    fn admit(&self, io: &Io) -> Result<(), DeviceError> {
        let op = io.op.kind();
        if varve_rt::in_simulation() {
            return Err(DeviceError::InSimulation { device: self.name.clone() });
        }
        if self.options.read_only && op != OpKind::Read {
            return Err(DeviceError::ReadOnly { op, device: self.name.clone() });
        }
        device::check(io, &self.name, device::BLOCK as u32, self.len())
    }

    fn count(&self, io: &Io, started: Instant, ok: bool) {
        self.busy.ended();
        self.counters.finished(io.op.kind(), io.len() as u64, started.elapsed().as_nanos() as u64, ok);
        if matches!(io.op, crate::Op::Write { durable: true }) {
            self.counters.durable_write();
        }
    }

    /// Reserves `len` bytes at `from`, so that writing there cannot run out of space. Returns whether it could.
    fn reserve(&self, from: u64, len: u64) -> Result<bool, i32> {
        loop {
            match self.sys.allocate(raw(&self.fd), from, len) {
                Ok(()) => return Ok(true),
                Err(libc::EINTR) => self.counters.retry(),
                Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn truncate(&self, len: u64) -> Result<(), i32> {
        loop {
            match self.sys.truncate(raw(&self.fd), len) {
                Err(libc::EINTR) => self.counters.retry(),
                other => return other,
            }
        }
    }

    /// Gives the file another length, durably; `prewrite`: what is new is written.
    fn resize(&self, len: u64, prewrite: bool) -> Result<(), DeviceError> {
        let (op, device) = (OpKind::SetLen, self.name.clone());
        if varve_rt::in_simulation() {
            return Err(DeviceError::InSimulation { device });
        }
        if self.options.read_only {
            return Err(DeviceError::ReadOnly { op, device });
        }
        let _guard = self.growing.lock();
        let (old, len) = (self.len(), len.next_multiple_of(device::BLOCK as u64));
        if self.block_device {
            let fits = len <= old;
            return if fits { Ok(()) } else { Err(DeviceError::NoSpace { op, device, offset: old, len: len - old }) };
        }
        if len > old {
            self.grow((old, len), prewrite)?;
        } else if len < old {
            // Requests past the new end are refused from here on, before the bytes go.
            self.len.store(len, Relaxed);
            self.truncate(len).map_err(|e| DeviceError::from_errno(op, &self.name, len, old - len, e))?;
        }
        self.execute(&Io::flush(), 0)?;
        self.len.store(len, Relaxed);
        Ok(())
    }

    /// Lengthens the file. On an error the old length is restored as far as possible.
    fn grow(&self, (old, len): (u64, u64), prewrite: bool) -> Result<(), DeviceError> {
        debug_assert!(self.growing.is_locked(), "one changes the length at a time");
        assert!(len > old && (old | len).is_multiple_of(device::BLOCK as u64), "a file grows by whole blocks");
        let fail = |errno| DeviceError::from_errno(OpKind::SetLen, &self.name, old, len - old, errno);
        // What lies past the last whole block is no part of the device and must not show up as its bytes.
        let result = self.truncate(old).map_err(fail).and_then(|()| {
            let reserved = self.reserve(old, len - old).map_err(fail)?;
            if !reserved {
                self.note("space cannot be reserved (fallocate), writing zeros instead");
                self.truncate(len).map_err(fail)?;
            }
            if !reserved || prewrite { self.write_zeros(old, len) } else { Ok(()) }
        });
        if result.is_err() {
            // The error that matters is the first; a file left longer than the device does no harm.
            let _ = self.truncate(old);
        }
        result
    }

    fn write_zeros(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        assert!(from < to && (from | to).is_multiple_of(device::BLOCK as u64), "zeros fill whole blocks");
        let zeros = AlignedBuf::new((1 << 20).min((to - from) as usize));
        let mut at = from;
        while at < to {
            let part = zeros.len().min((to - at) as usize);
            // SAFETY: `zeros` outlives the call, which executes the request.
            self.execute(&unsafe { Io::write(at, zeros.as_ptr(), part, false) }, 0)?;
            at += part as u64;
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn life_used(&self) -> Option<f64> {
        self.inner.sys.life_used(raw(&self.inner.fd))
    }

    fn info(&self) -> DeviceInfo {
        let d = &*self.inner;
        let notes = d.notes.lock();
        let cache = if d.direct.load(Relaxed) { "O_DIRECT" } else { "cached" };
        let batches = if d.uring.load(Relaxed) { d.sys.ring_name() } else { "positional" };
        DeviceInfo {
            name: d.name.clone(),
            kind: if d.block_device { DeviceKind::Block } else { DeviceKind::File },
            block: device::BLOCK as u32,
            atomic_write_unit: 512,
            queue_depth: 64,
            direct: d.direct.load(Relaxed),
            access: format!("{cache}, {batches}"),
            fallback: (!notes.is_empty()).then(|| notes.join("; ")),
            capabilities: Capabilities { trim: d.trim.load(Relaxed), extent: 0 },
        }
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.resize(len, self.inner.options.prewrite)
    }

    fn reserve_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.resize(len, false)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let admit = |io: Io| {
            let refused = self.inner.admit(&io).err();
            (io, refused)
        };
        batch::start(&self.inner, batch.into_iter().map(admit).collect())
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.inner.admit(&io)?;
        if self.inner.wants_ring(&io) {
            return batch::start(&self.inner, vec![(io, None)]).wait_all();
        }
        self.inner.goes_without(&io);
        let started = varve_rt::now();
        self.inner.busy.begun(1, started);
        let result = self.inner.execute(&io, 0);
        self.inner.count(&io, started, result.is_ok());
        result
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats { busy: Some(self.inner.busy.snapshot()), ..self.inner.counters.snapshot() }
    }
}
