//! `FileDevice` over a scripted operating system: short transfers, interruptions, refusals and errors.

use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::sys::{FileKind, OpenMode, Ring, RingOp, Syscalls, System};
use varve_device::*;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Event, Mutex};

/// What the next call of a kind does.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Fails with this error number.
    Fail(i32),
    /// Transfers at most so many bytes.
    Short(usize),
}
use Answer::{Fail, Short};

#[derive(Default)]
struct Script {
    open: VecDeque<Answer>,
    read: VecDeque<Answer>,
    write: VecDeque<Answer>,
    /// Writes that ask for `RWF_DSYNC` fail with this.
    dsync: Option<i32>,
    /// Where writes that ask for it meet before they fail.
    meet: Option<Arc<Meeting>>,
    sync: VecDeque<Answer>,
    allocate: VecDeque<Answer>,
    truncate: VecDeque<Answer>,
    punch: VecDeque<Answer>,
    ring: VecDeque<Answer>,
    /// Answers of `Ring::submit`: a short one starts so many requests.
    submit: VecDeque<Answer>,
    wait: VecDeque<Answer>,
    calls: Vec<&'static str>,
    /// Offsets of reads and writes.
    offsets: Vec<u64>,
    /// Write streams that the drive says it has.
    streams: u16,
    /// Writes in a stream are refused.
    no_streams: bool,
    /// Streams of the writes through the ring.
    written: Vec<u8>,
    /// What was said of how long writes stay.
    lifetimes: Vec<u64>,
    lifetime: VecDeque<Answer>,
}

/// Where two threads wait for each other.
#[derive(Default)]
struct Meeting {
    first: AtomicBool,
    both: Event,
}

impl Meeting {
    fn wait(&self) {
        if self.first.swap(true, Ordering::AcqRel) {
            self.both.set();
        }
        self.both.wait();
    }
}

/// The real system calls, answered from a script where it has an answer left.
struct Fake {
    script: Arc<Mutex<Script>>,
    real: System,
}

impl Fake {
    fn next(&self, name: &'static str, queue: impl Fn(&mut Script) -> &mut VecDeque<Answer>) -> Result<usize, i32> {
        let mut script = self.script.lock();
        script.calls.push(name);
        match queue(&mut script).pop_front() {
            Some(Fail(errno)) => Err(errno),
            Some(Short(n)) => Ok(n),
            None => Ok(usize::MAX),
        }
    }
}

impl Syscalls for Fake {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, i32> {
        self.next(if mode.direct { "open direct" } else { "open" }, |s| &mut s.open)?;
        // The cache takes any alignment, so that scripted short transfers can be continued.
        self.real.open(path, OpenMode { direct: false, ..mode })
    }
    fn kind(&self, fd: RawFd) -> Result<FileKind, i32> {
        let kind = self.real.kind(fd)?;
        // What has streams is a block device.
        Ok(FileKind { block_device: kind.block_device || self.script.lock().streams > 0, ..kind })
    }
    fn clear_direct(&self, fd: RawFd) -> Result<(), i32> {
        self.script.lock().calls.push("clear direct");
        self.real.clear_direct(fd)
    }
    unsafe fn pread(&self, fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
        self.script.lock().offsets.push(offset);
        let most = self.next("read", |s| &mut s.read)?;
        // SAFETY: passed on from the caller.
        unsafe { self.real.pread(fd, ptr, len.min(most), offset) }
    }
    unsafe fn pwrite(&self, fd: RawFd, ptr: *const u8, len: usize, offset: u64, dsync: bool) -> Result<usize, i32> {
        let most = self.next(if dsync { "write dsync" } else { "write" }, |s| &mut s.write)?;
        let (refused, meet) = {
            let script = self.script.lock();
            (script.dsync, script.meet.clone())
        };
        match refused {
            Some(errno) if dsync => {
                meet.inspect(|meeting| meeting.wait());
                Err(errno)
            }
            // SAFETY: passed on from the caller.
            _ => unsafe { self.real.pwrite(fd, ptr, len.min(most), offset, dsync) },
        }
    }
    fn fdatasync(&self, _fd: RawFd) -> Result<(), i32> {
        self.next("sync", |s| &mut s.sync).map(|_| ())
    }
    fn allocate(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32> {
        self.next("allocate", |s| &mut s.allocate)?;
        self.real.allocate(fd, offset, len)
    }
    fn truncate(&self, fd: RawFd, len: u64) -> Result<(), i32> {
        self.next("truncate", |s| &mut s.truncate)?;
        self.real.truncate(fd, len)
    }
    fn punch(&self, fd: RawFd, offset: u64, len: u64) -> Result<(), i32> {
        self.next("punch", |s| &mut s.punch)?;
        self.real.punch(fd, offset, len)
    }

    fn set_lifetime(&self, fd: RawFd, lifetime: u64) -> Result<(), i32> {
        self.next("lifetime", |s| &mut s.lifetime)?;
        self.script.lock().lifetimes.push(lifetime);
        self.real.set_lifetime(fd, lifetime)
    }
    fn write_streams(&self, _fd: RawFd) -> u16 {
        self.script.lock().streams
    }
    fn ring(&self, _entries: u32) -> Result<Box<dyn Ring>, i32> {
        self.next("ring", |s| &mut s.ring)?;
        let sys = Fake { script: self.script.clone(), real: System::default() };
        Ok(Box::new(FakeRing { sys, queued: VecDeque::new(), done: Vec::new() }))
    }
}

/// A ring of four places that executes requests when they are submitted and completes the last first.
struct FakeRing {
    sys: Fake,
    queued: VecDeque<(RawFd, u64, RingOp)>,
    done: Vec<(u64, i32)>,
}

// SAFETY: the raw pointers in the queue are the requests' own; see `Io`.
unsafe impl Send for FakeRing {}

impl Ring for FakeRing {
    unsafe fn push(&mut self, fd: RawFd, tag: u64, op: RingOp) -> bool {
        let room = self.queued.len() < 4;
        if room {
            self.queued.push_back((fd, tag, op));
        }
        room
    }
    fn submit(&mut self) -> Result<usize, i32> {
        let most = self.sys.next("submit", |s| &mut s.submit)?;
        let count = self.queued.len().min(most);
        for (fd, tag, op) in self.queued.drain(..count) {
            // SAFETY: the pusher of the request promised valid memory.
            let result = unsafe {
                match op {
                    RingOp::Read { ptr, len, offset } => self.sys.pread(fd, ptr, len as usize, offset),
                    RingOp::Write { ptr, len, offset, dsync, stream } => {
                        let refused = {
                            let mut script = self.sys.script.lock();
                            script.written.push(stream);
                            script.no_streams && stream > 0
                        };
                        if refused { Err(libc::EINVAL) } else { self.sys.pwrite(fd, ptr, len as usize, offset, dsync) }
                    }
                    RingOp::Sync => self.sys.fdatasync(fd).map(|()| 0),
                }
            };
            self.done.push((tag, result.map_or_else(|errno| -errno, |n| n as i32)));
        }
        Ok(count)
    }
    fn wait(&mut self) -> Result<(), i32> {
        self.sys.next("wait", |s| &mut s.wait)?;
        assert!(!self.done.is_empty(), "nobody waits for a ring in which nothing is in flight");
        Ok(())
    }
    fn pop(&mut self) -> Option<(u64, i32)> {
        self.done.pop()
    }
}

struct Rig {
    dev: Arc<FileDevice>,
    script: Arc<Mutex<Script>>,
    path: PathBuf,
}

impl Rig {
    fn new(name: &str, options: Options, prepare: impl FnOnce(&mut Script)) -> Rig {
        let path = std::env::temp_dir().join(format!("varve-sys-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let script = Arc::new(Mutex::new(Script::default()));
        prepare(&mut script.lock());
        let sys = Arc::new(Fake { script: script.clone(), real: System::default() });
        let dev = FileDevice::open_with(&path, Options { create: true, ..options }, sys).unwrap();
        Rig { dev, script, path }
    }

    /// Cached, positional, 64 KiB long.
    fn plain(name: &str) -> Rig {
        let rig = Rig::new(name, Options { direct: false, io_uring: false, ..Options::default() }, |_| {});
        rig.dev.set_len(65536).unwrap();
        rig.script.lock().calls.clear();
        rig
    }

    /// Cached, batches through the fake ring, 64 KiB long.
    fn ring(name: &str) -> Rig {
        let rig = Rig::new(name, Options { direct: false, ..Options::default() }, |_| {});
        rig.dev.set_len(65536).unwrap();
        rig.script.lock().calls.clear();
        rig
    }

    fn set(&self, f: impl FnOnce(&mut Script)) {
        f(&mut self.script.lock());
    }

    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.script.lock().calls)
    }

    /// Writes and reads back 16 KiB, singly and (if there is one) through the ring, and compares.
    fn roundtrip(&self, durable: bool, seed: u8) -> Result<(), DeviceError> {
        let data = AlignedBuf::copy_padded(&(0..16384).map(|i| (i / 7) as u8 ^ seed).collect::<Vec<_>>(), 4096);
        let mut back = AlignedBuf::new(16384);
        // SAFETY: the buffer outlives the ticket, which is waited for.
        self.dev.submit(vec![unsafe { Io::write(4096, data.as_ptr(), data.len(), durable) }]).wait_all()?;
        // SAFETY: as above.
        self.dev.submit(vec![unsafe { Io::read(4096, back.as_mut_ptr(), back.len()) }]).wait_all()?;
        assert!(back[..] == data[..]);
        back.clear();
        read_at(&*self.dev, 4096, &mut back)?;
        assert!(back[..] == data[..]);
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn short_and_interrupted_transfers_are_continued() {
    for rig in [Rig::plain("short"), Rig::ring("short-ring")] {
        rig.set(|s| {
            s.write = [Short(1), Fail(libc::EINTR), Short(5000), Fail(libc::EAGAIN)].into();
            s.read = [Short(4095), Fail(libc::EINTR), Fail(libc::EINTR), Short(1)].into();
        });
        rig.roundtrip(true, 1).unwrap();
        assert!(rig.dev.stats().retries >= 7, "{:?}", rig.dev.stats());
        assert_eq!(rig.dev.stats().write.errors, 0);
        rig.set(|s| s.read = [Fail(libc::EINTR)].into());
        rig.set(|s| s.write = [Fail(libc::ECANCELED)].into());
        let cancelled = rig.roundtrip(false, 2);
        // Cancelled with its submitting thread: made again. Nothing else may answer so.
        assert_eq!(cancelled.is_ok(), rig.dev.info().access.contains("io_uring"));
    }
}

#[test]
fn direct_transfers_continue_at_whole_blocks() {
    for io_uring in [false, true] {
        let rig = Rig::new(&format!("blocks-{io_uring}"), Options { io_uring, ..Options::default() }, |_| {});
        rig.dev.set_len(65536).unwrap();
        rig.set(|s| s.read = [Short(5000), Short(4096), Short(4097)].into());
        rig.roundtrip(false, 3).unwrap();
        assert_eq!(rig.calls().iter().filter(|c| **c == "read").count(), 5);
        assert_eq!(rig.script.lock().offsets, [4096, 8192, 12288, 16384, 4096]);
    }
}

#[test]
fn errors_are_reported_with_their_place() {
    for rig in [Rig::plain("eio"), Rig::ring("eio-ring")] {
        rig.set(|s| s.write = [Fail(libc::EIO)].into());
        let error = rig.roundtrip(false, 0).unwrap_err();
        assert!(
            matches!(
                &error,
                DeviceError::Io { op: OpKind::Write, offset: 4096, len: 16384, errno: libc::EIO, retryable: false, .. }
            ),
            "{error:?}"
        );
        rig.set(|s| s.write = [Fail(libc::ENOSPC)].into());
        assert!(matches!(rig.roundtrip(false, 0), Err(DeviceError::NoSpace { .. })));
        rig.set(|s| s.read = [Fail(libc::EIO)].into());
        assert!(matches!(rig.roundtrip(false, 0), Err(DeviceError::Io { op: OpKind::Read, .. })));
        // A write that gets nowhere does not loop for ever.
        rig.set(|s| s.write = [Short(0), Short(0)].into());
        assert!(matches!(rig.roundtrip(false, 0), Err(DeviceError::Io { errno: libc::EIO, .. })));
        rig.set(|s| s.write.clear());
        rig.roundtrip(false, 9).unwrap();
        assert_eq!((rig.dev.stats().write.errors, rig.dev.stats().read.errors), (3, 1));
    }
    let rig = Rig::plain("again");
    rig.set(|s| s.write = vec![Fail(libc::EAGAIN); 200].into());
    assert!(rig.roundtrip(false, 0).unwrap_err().is_retryable(), "EAGAIN for ever is an error that may be retried");
}

#[test]
fn a_failed_flush_is_neither_repeated_nor_forgotten() {
    for rig in [Rig::plain("sync"), Rig::ring("sync-ring")] {
        rig.set(|s| s.sync = [Fail(libc::EIO)].into());
        let error = rig.dev.submit(vec![Io::flush()]).wait_all().unwrap_err();
        assert!(matches!(error, DeviceError::Io { op: OpKind::Flush, .. }) && !error.is_retryable());
        assert_eq!(rig.calls().iter().filter(|c| **c == "sync").count(), 1);
        // The system would say that all is well: it tells once.
        assert_eq!(flush(&*rig.dev).unwrap_err(), error);
        assert_eq!(rig.dev.set_len(1 << 20).unwrap_err(), error);
    }
    let rig = Rig::plain("sync-interrupted");
    rig.set(|s| s.sync = [Fail(libc::EINTR)].into());
    flush(&*rig.dev).unwrap();
}

/// Both are refused before either knows of the other.
#[test]
fn two_durable_writes_refused_at_once_both_fall_back() {
    let rig = Rig::plain("dsync-at-once");
    rig.set(|s| (s.dsync, s.meet) = (Some(libc::EOPNOTSUPP), Some(Arc::default())));
    let write = |dev: Arc<FileDevice>, at: u64| {
        varve_rt::spawn("writer", move || write_at(&*dev, at, &AlignedBuf::copy_padded(&[1], 4096), true))
    };
    let both = [write(rig.dev.clone(), 0), write(rig.dev.clone(), 4096)];
    both.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
    assert_eq!(rig.calls().iter().filter(|c| **c == "sync").count(), 2, "each is made durable");
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn direct_io_is_given_up_where_refused() {
    let rig = Rig::new("nodirect", Options::default(), |s| s.open = [Fail(libc::EINVAL), Fail(libc::EINTR)].into());
    assert!(!rig.dev.info().direct && rig.dev.info().fallback.unwrap().contains("direct I/O"));
    assert_eq!(rig.calls()[..3], ["open direct", "open", "open"]);

    for io_uring in [true, false] {
        let options = Options { io_uring, ..Options::default() };
        let rig = Rig::new(&format!("latedirect-{io_uring}"), options, |_| {});
        rig.dev.set_len(65536).unwrap();
        assert!(rig.dev.info().direct && rig.dev.info().fallback.is_none());
        rig.set(|s| s.write = vec![Fail(libc::EINVAL); if io_uring { 2 } else { 1 }].into());
        rig.roundtrip(false, 1).unwrap();
        assert!(!rig.dev.info().direct && rig.dev.info().fallback.unwrap().contains("direct I/O"));
        assert!(rig.calls().contains(&"clear direct"));
    }
}

#[test]
fn durable_writes_fall_back_to_a_sync() {
    for rig in [Rig::plain("dsync"), Rig::ring("dsync-ring")] {
        rig.set(|s| s.dsync = Some(libc::EOPNOTSUPP));
        for seed in 0..2 {
            rig.roundtrip(true, seed).unwrap();
            let calls = rig.calls();
            assert_eq!(calls.iter().filter(|c| **c == "sync").count(), 1, "{calls:?}");
            let after_write = calls.iter().skip_while(|c| **c != "write").any(|c| *c == "sync");
            assert!(after_write, "{calls:?}");
        }
        assert!(rig.dev.info().fallback.unwrap().contains("RWF_DSYNC"));
        rig.set(|s| s.sync = [Fail(libc::EIO)].into());
        assert!(rig.roundtrip(true, 3).is_err(), "the write is not durable if the sync fails");
    }
}

#[test]
fn without_io_uring_batches_are_positional() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let rig = Rig::new(&format!("noring{errno}"), Options::default(), |s| s.ring = [Fail(errno)].into());
        rig.dev.set_len(65536).unwrap();
        rig.roundtrip(true, 1).unwrap();
        let info = rig.dev.info();
        assert!(info.fallback.unwrap().contains("io_uring") && info.access.contains("positional"), "{}", info.access);
        assert!(rig.dev.stats().fallbacks > 0);
    }
}

#[test]
fn a_ring_that_will_not_take_more_is_not_waited_for() {
    // Each case: answers of submit, and whether the ring is given up.
    let cases: [(&[Answer], bool); 6] = [
        (&[Fail(libc::EINTR), Fail(libc::EAGAIN), Fail(libc::EBUSY)], false),
        (&[Short(1), Short(2), Short(1)], false),
        (&[Short(1), Fail(libc::ENOMEM)], true),
        (&[Short(0)], true),
        (&[Short(3), Fail(libc::EBADF)], true),
        (&[Fail(libc::EBADF)], true),
    ];
    for (i, (answers, broken)) in cases.into_iter().enumerate() {
        let rig = Rig::ring(&format!("submit{i}"));
        rig.set(|s| {
            s.submit = answers.iter().copied().collect();
            s.wait = [Fail(libc::EINTR), Fail(libc::EBADF)].into();
        });
        let data: Vec<_> = (0..11u8).map(|i| AlignedBuf::copy_padded(&[i; 4096], 4096)).collect();
        // SAFETY: the buffers outlive the ticket, which is waited for.
        let write = |(i, b): (usize, &AlignedBuf)| unsafe { Io::write(i as u64 * 4096, b.as_ptr(), 4096, false) };
        rig.dev.submit(data.iter().enumerate().map(write).collect()).wait_all().unwrap();
        let mut back = AlignedBuf::new(11 * 4096);
        read_at(&*rig.dev, 0, &mut back).unwrap();
        assert!(back.chunks(4096).zip(0..).all(|(c, i)| c.iter().all(|&b| b == i)), "case {i}");
        assert_eq!(rig.dev.stats().fallbacks > 0, broken, "case {i}");
        assert_eq!(rig.dev.stats().write.count, 11);
        // A ring that broke is not used again; the next batch opens another.
        rig.calls();
        rig.roundtrip(false, 1).unwrap();
        assert_eq!(rig.calls().contains(&"ring"), broken, "case {i}");
    }
}

#[test]
fn growing_without_fallocate_writes_zeros() {
    let rig = Rig::plain("noalloc");
    rig.set(|s| {
        s.allocate = [Fail(libc::EINTR), Fail(libc::EOPNOTSUPP)].into();
        s.truncate = [Fail(libc::EINTR)].into();
    });
    rig.dev.set_len(4 << 20).unwrap();
    assert!(rig.dev.info().fallback.unwrap().contains("fallocate"));
    assert!(rig.calls().contains(&"write"));
    let mut buf = AlignedBuf::copy_padded(&[1; 4096], 4096);
    read_at(&*rig.dev, (4 << 20) - 4096, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 0));
}

#[test]
fn a_disk_that_fills_up_while_growing() {
    let rig = Rig::plain("full");
    rig.set(|s| s.allocate = [Fail(libc::ENOSPC)].into());
    assert!(matches!(rig.dev.set_len(1 << 20), Err(DeviceError::NoSpace { op: OpKind::SetLen, .. })));
    rig.set(|s| {
        s.allocate = [Fail(libc::EOPNOTSUPP)].into();
        s.write = [Short(usize::MAX), Fail(libc::ENOSPC)].into();
    });
    assert!(matches!(rig.dev.set_len(4 << 20), Err(DeviceError::NoSpace { .. })));
    assert_eq!(rig.dev.len(), 65536);
    assert_eq!(std::fs::metadata(&rig.path).unwrap().len(), 65536, "the old length is restored");
    rig.dev.set_len(1 << 20).unwrap();
    rig.set(|s| s.sync = [Fail(libc::EIO)].into());
    assert!(rig.dev.set_len(2 << 20).is_err(), "a length that may not be durable is an error");
}

#[test]
fn trims_that_are_refused_do_nothing() {
    let rig = Rig::new("punch", Options { punch_holes: true, direct: false, ..Options::default() }, |_| {});
    rig.dev.set_len(65536).unwrap();
    rig.set(|s| s.punch = [Fail(libc::EINTR), Fail(libc::EOPNOTSUPP)].into());
    assert!(rig.dev.info().capabilities.trim);
    rig.dev.submit(vec![Io::trim(0, 4096), Io::trim(4096, 4096)]).wait_all().unwrap();
    assert!(!rig.dev.info().capabilities.trim && rig.dev.info().fallback.unwrap().contains("trim"));
    assert_eq!(rig.calls().iter().filter(|c| **c == "punch").count(), 2);
}

/// Writes a block in each of the streams, singly and as batches by turns.
fn write_in(rig: &Rig, streams: &[Stream]) {
    let data = AlignedBuf::new(4096);
    for (i, stream) in streams.iter().enumerate() {
        // SAFETY: the buffer outlives the request, which is waited for.
        let io = unsafe { Io::write(i as u64 * 4096, data.as_ptr(), 4096, i % 3 == 0) }.in_stream(*stream);
        if i % 2 == 0 { rig.dev.run(io).unwrap() } else { rig.dev.submit(vec![io]).wait_all().unwrap() }
    }
}

/// A rig on a file of 64 KiB that says it is a block device with so many write streams.
fn with_streams(name: &str, streams: u16) -> Rig {
    let path = std::env::temp_dir().join(format!("varve-sys-{name}-{}", std::process::id()));
    std::fs::write(&path, vec![0; 65536]).unwrap();
    let script = Arc::new(Mutex::new(Script { streams, ..Script::default() }));
    let sys = Arc::new(Fake { script: script.clone(), real: System::default() });
    let dev = FileDevice::open_with(&path, Options { direct: false, ..Options::default() }, sys).unwrap();
    Rig { dev, script, path }
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn a_drive_with_write_streams_gets_a_number_with_each_write() {
    let rig = with_streams("streams", 3);
    let [a, b] = [Stream::of_keyspace(1), Stream::of_keyspace(2)];
    write_in(&rig, &[Stream::LOG, a, a, Stream::NONE, b, Stream::LOG]);
    // A write of no stream that comes alone needs no ring; here it came as a batch.
    assert_eq!(rig.script.lock().written, [1, 2, 2, 0, 3, 1]);
    assert_eq!((rig.dev.stats().streams_ignored, rig.dev.info().fallback), (0, None));
    // More streams than there are: the last number stands for them.
    write_in(&rig, &[Stream::BULK, Stream::TREE, b]);
    assert_eq!(rig.script.lock().written[6..], [3, 3, 3]);
    assert_eq!(rig.dev.stats().streams_ignored, 2);
    assert!(rig.dev.info().fallback.unwrap().contains("more streams"));
    assert!(rig.script.lock().lifetimes.is_empty(), "who has streams needs no lifetimes");
}

#[test]
fn a_drive_that_refuses_streams_gets_none() {
    let rig = with_streams("no-streams", 3);
    rig.set(|s| s.no_streams = true);
    let own = Stream::of_keyspace(1);
    write_in(&rig, &[own, own, own]);
    assert_eq!(rig.script.lock().written, [1, 0], "one try; a single write needs no ring");
    assert!(rig.dev.info().fallback.unwrap().contains("refused a write in a stream"));
    assert_eq!(rig.dev.stats().write.errors, 0);
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn a_file_is_told_how_long_its_writes_stay_and_ignores_other_streams() {
    for rig in [Rig::plain("lifetime"), Rig::ring("lifetime-ring")] {
        let own = Stream::of_keyspace(1);
        write_in(&rig, &[Stream::NONE, Stream::LOG, Stream::LOG]);
        assert_eq!((rig.dev.stats().streams_ignored, rig.dev.info().fallback), (0, None));
        write_in(&rig, &[own, Stream::LOG, own, Stream::BULK]);
        // RWH_WRITE_LIFE_SHORT of fcntl(2).
        assert_eq!(rig.script.lock().lifetimes, [2]);
        assert_eq!(rig.dev.stats().streams_ignored, 3);
        assert!(rig.dev.info().fallback.unwrap().contains("write streams are ignored"));
    }
    let rig = Rig::plain("no-lifetime");
    rig.set(|s| s.lifetime = [Fail(libc::EINVAL)].into());
    write_in(&rig, &[Stream::LOG, Stream::LOG]);
    assert!(rig.dev.info().fallback.unwrap().contains("F_SET_RW_HINT"));
}
