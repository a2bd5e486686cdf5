//! Requests in flight where the system has no queue for them: a few threads make positional calls.
//!
//! Threads are started as requests need them, stay for the next ones, and end when the device is gone.
//!
//! Invariants: `started` counts threads that run until the last sender is gone, at most `MOST`; each request that was
//! handed over is answered once; its memory is touched by one thread, before it is answered.

use super::portable::sync;
use super::{Ring, RingOp, posix};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use varve_rt::channel::{Receiver, Sender, unbounded};
use varve_rt::{Condvar, Mutex, try_spawn_daemon};

/// Most threads of a device, and so requests that it has in flight.
const MOST: usize = 8;
/// Bytes that one call transfers at most: fewer than an answer can tell. What is left is done positionally.
const AT_ONCE: usize = 1 << 30;

/// The threads of a device.
pub(super) struct Threads {
    to: Sender<Job>,
    from: Receiver<Job>,
    started: Mutex<usize>,
}

impl Default for Threads {
    fn default() -> Threads {
        let (to, from) = unbounded();
        Threads { to, from, started: Mutex::new(0) }
    }
}

/// A request, and where its answer goes.
struct Job {
    fd: RawFd,
    tag: u64,
    op: RingOp,
    answers: Arc<Answers>,
}

// SAFETY: who pushed the request keeps its memory valid, and for it alone, until it is answered (`Ring::push`).
unsafe impl Send for Job {}

/// Answers that nobody has taken yet: tags, and bytes or `-errno`.
#[derive(Default)]
struct Answers {
    there: Mutex<VecDeque<(u64, i32)>>,
    some: Condvar,
}

impl Job {
    fn run(self) {
        let result = match self.op {
            // SAFETY: as `Ring::push` promises.
            RingOp::Read { ptr, len, offset } => unsafe {
                posix::pread(self.fd, ptr, (len as usize).min(AT_ONCE), offset)
            },
            RingOp::Write { dsync: true, .. } => Err(libc::EOPNOTSUPP),
            // SAFETY: as above.
            RingOp::Write { ptr, len, offset, .. } => unsafe {
                posix::pwrite(self.fd, ptr, (len as usize).min(AT_ONCE), offset)
            },
            RingOp::Sync => sync(self.fd).map(|()| 0),
        };
        let result = result.map_or_else(|errno| -errno, |n| n as i32);
        self.answers.there.lock().push_back((self.tag, result));
        self.answers.some.notify_one();
    }
}

impl Threads {
    /// Sees to it that there are threads for `n` more requests, as far as there may be. Fails when there is none.
    fn need(&self, n: usize) -> Result<(), i32> {
        let mut started = self.started.lock();
        let wanted = (self.from.len() + n).min(MOST);
        while *started < wanted {
            let from = self.from.clone();
            if let Err(e) = try_spawn_daemon("file I/O", move || from.iter().for_each(Job::run)) {
                return if *started > 0 { Ok(()) } else { Err(e.raw_os_error().unwrap_or(libc::EAGAIN)) };
            }
            *started += 1;
        }
        assert!(*started <= MOST, "a few threads");
        Ok(())
    }
}

/// Requests of one ticket.
pub(super) struct ThreadRing {
    threads: Arc<Threads>,
    entries: usize,
    queued: Vec<(RawFd, u64, RingOp)>,
    answers: Arc<Answers>,
}

// SAFETY: the pointers of what is queued are for whoever makes the requests (`Ring::push`), on whatever thread.
unsafe impl Send for ThreadRing {}

impl ThreadRing {
    pub(super) fn new(threads: &Arc<Threads>, entries: usize) -> ThreadRing {
        ThreadRing { threads: threads.clone(), entries, queued: Vec::new(), answers: Arc::default() }
    }
}

impl Ring for ThreadRing {
    unsafe fn push(&mut self, fd: RawFd, tag: u64, op: RingOp) -> bool {
        assert!(self.queued.len() <= self.entries, "what is full takes no more");
        let room = self.queued.len() < self.entries;
        if room {
            self.queued.push((fd, tag, op));
        }
        room
    }

    fn submit(&mut self) -> Result<usize, i32> {
        self.threads.need(self.queued.len())?;
        let n = self.queued.len();
        for (fd, tag, op) in self.queued.drain(..) {
            let sent = self.threads.to.send(Job { fd, tag, op, answers: self.answers.clone() });
            assert!(sent.is_ok(), "the device has a receiver as long as it is there");
        }
        Ok(n)
    }

    fn wait(&mut self) -> Result<(), i32> {
        let mut there = self.answers.there.lock();
        while there.is_empty() {
            self.answers.some.wait(&mut there);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<(u64, i32)> {
        self.answers.there.lock().pop_front()
    }
}
