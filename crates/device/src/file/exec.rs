//! One request executed in the calling thread, whatever the operating system answers on the way.
//!
//! Short transfers are continued, `EINTR` and `EAGAIN` repeated, `O_DIRECT` and `RWF_DSYNC` given up where the file
//! system refuses them; other errors are returned at once. A failed flush is never repeated.
//!
//! Invariants: what is done of a request only grows between two steps, but for the part of a block that direct I/O does
//! again; what the system refused is not tried again; after the first failed flush every flush fails.

use super::Inner;
use super::sys::raw;
use crate::{DeviceError, Io, Op, OpKind, device};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Times that `EAGAIN` is taken for an answer before it is returned as an error; the pauses between add up to 0.1 s.
const AGAIN: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// What a step of a transfer relies on.
#[derive(Clone, Copy)]
struct Means {
    direct: bool,
    dsync: bool,
}

impl Inner {
    /// Executes `io`, of which the first `done` bytes were already transferred.
    pub(super) fn execute(&self, io: &Io, done: usize) -> Result<(), DeviceError> {
        match io.op {
            Op::Read | Op::Write { .. } => self.transfer(io, done),
            Op::Trim => self.trim(io),
            Op::Flush => self.flush(io),
        }
    }

    fn transfer(&self, io: &Io, mut done: usize) -> Result<(), DeviceError> {
        assert!(done <= io.len(), "{done} bytes done of {}", io.len());
        let mut again = 0;
        while done < io.len() {
            let used = self.means(io);
            match self.step(io, done, used) {
                Ok(0) => return Err(self.ended(io, done)),
                Ok(n) => {
                    assert!(n <= io.len() - done, "no more is transferred than there was to do");
                    done += n;
                    if done < io.len() {
                        self.counters.retry();
                        // The kernel may stop anywhere when the cache is used, direct I/O needs whole blocks.
                        if self.direct.load(Relaxed) {
                            done -= done % device::BLOCK;
                        }
                    }
                }
                Err(errno) => {
                    self.counters.retry();
                    self.retry(io, done, errno, used, &mut again)?;
                }
            }
        }
        let durable = matches!(io.op, Op::Write { durable: true });
        if durable && !self.dsync.load(Relaxed) { self.flush(io) } else { Ok(()) }
    }

    /// How a step is made now.
    fn means(&self, io: &Io) -> Means {
        let durable = matches!(io.op, Op::Write { durable: true });
        Means { direct: self.direct.load(Relaxed), dsync: durable && self.dsync.load(Relaxed) }
    }

    /// One system call for the rest of a read or write.
    fn step(&self, io: &Io, done: usize, used: Means) -> Result<usize, i32> {
        assert!(done < io.len(), "the memory below is within the request's");
        let (rest, offset) = (io.len() - done, io.offset + done as u64);
        match io.op {
            Op::Read => {
                let ptr = io.buf.as_mut_ptr().wrapping_add(done);
                // SAFETY: the caller of `Io::read` promised valid, exclusive memory; `done` is less than its length.
                unsafe { self.sys.pread(raw(&self.fd), ptr, rest, offset) }
            }
            Op::Write { .. } => {
                let ptr = io.buf.as_ptr().wrapping_add(done);
                // SAFETY: the caller of `Io::write` promised valid, unchanging memory; `done` is less than its length.
                unsafe { self.sys.pwrite(raw(&self.fd), ptr, rest, offset, used.dsync) }
            }
            Op::Trim | Op::Flush => unreachable!("only reads and writes are transferred"),
        }
    }

    /// Decides whether the step that failed with `errno` is made again. What was refused is given up for good; another
    /// request that was under way in the same manner is refused too, so what counts is what this step used, not what is
    /// in use by now.
    fn retry(&self, io: &Io, done: usize, errno: i32, used: Means, again: &mut u32) -> Result<(), DeviceError> {
        match errno {
            libc::EINTR => Ok(()),
            libc::EAGAIN if *again < AGAIN => {
                *again += 1;
                varve_rt::sleep(PAUSE);
                Ok(())
            }
            libc::EINVAL if used.direct => {
                self.sys.clear_direct(raw(&self.fd)).map_err(|e| self.error(io, done, e))?;
                self.direct.store(false, Relaxed);
                self.note("direct I/O was refused by the file system (EINVAL), using its cache");
                Ok(())
            }
            libc::EOPNOTSUPP | libc::EINVAL if used.dsync => {
                self.dsync.store(false, Relaxed);
                self.note("durable writes (RWF_DSYNC) were refused, using fdatasync after each");
                Ok(())
            }
            _ => Err(self.error(io, done, errno)),
        }
    }

    /// Makes what was written durable. The system tells of a write that was lost once, to one caller: from then on
    /// every flush fails, also one that is under way meanwhile and was told that all is well.
    fn flush(&self, io: &Io) -> Result<(), DeviceError> {
        self.flushed(Ok(()))?;
        {
            let _under_way = self.flushing.read();
            self.flushed(self.sync(io))?;
        }
        // Those that are under way have noted by now what they were told.
        drop(self.flushing.write());
        self.flushed(Ok(()))
    }

    /// Notes the result of a flush; what it is worth: nothing after one that failed.
    pub(super) fn flushed(&self, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
        let mut lost = self.lost.lock();
        if let Err(e) = result {
            lost.get_or_insert(e);
        }
        lost.clone().map_or(Ok(()), Err)
    }

    fn sync(&self, io: &Io) -> Result<(), DeviceError> {
        loop {
            match self.sys.fdatasync(raw(&self.fd)) {
                Ok(()) => return Ok(()),
                // Interrupted before anything was done; every other failure may have dropped dirty data.
                Err(libc::EINTR) => self.counters.retry(),
                Err(errno) => return Err(self.error(io, 0, errno)),
            }
        }
    }

    fn trim(&self, io: &Io) -> Result<(), DeviceError> {
        if !self.trim.load(Relaxed) || io.len() == 0 {
            return Ok(());
        }
        loop {
            match self.sys.punch(raw(&self.fd), io.offset, io.len() as u64) {
                Ok(()) => return Ok(()),
                Err(libc::EINTR) => self.counters.retry(),
                Err(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    self.trim.store(false, Relaxed);
                    self.note("trim was refused by the file system, space is not given back");
                    return Ok(());
                }
                Err(errno) => return Err(self.error(io, 0, errno)),
            }
        }
    }

    /// The error for a transfer that stopped before `io`'s end: the file is shorter than it was.
    fn ended(&self, io: &Io, done: usize) -> DeviceError {
        match io.op.kind() {
            OpKind::Read => DeviceError::OutOfRange {
                op: OpKind::Read,
                device: self.name.clone(),
                offset: io.offset,
                len: io.len() as u64,
                device_len: io.offset + done as u64,
            },
            // A write that transfers nothing and reports no error: the drive is full or broken.
            _ => self.error(io, done, libc::EIO),
        }
    }

    pub(super) fn error(&self, io: &Io, done: usize, errno: i32) -> DeviceError {
        let (offset, len) = (io.offset + done as u64, (io.len() - done) as u64);
        DeviceError::from_errno(io.op.kind(), &self.name, offset, len, errno)
    }
}
