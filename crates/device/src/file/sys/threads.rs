//! Requests in flight where the system has no queue for them: a few threads make positional calls.
//!
//! Threads are started as requests need them, stay for the next ones, and end when the device is gone.
//!
//! Invariants: `started` counts threads that run until the last sender is gone, at most `MOST`; `open` counts the
//! requests that were handed over and not answered; each is answered once; its memory is touched by one thread, before
//! it is answered.

use super::portable::sync;
use super::{Ring, RingOp, posix};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use varve_rt::channel::{Receiver, Sender, unbounded};
use varve_rt::{Condvar, Mutex, try_spawn_daemon};

/// Most threads of a device, and so requests that it has in flight.
const MOST: usize = 8;

/// The threads of a device.
pub(super) struct Threads {
    to: Sender<Job>,
    from: Receiver<Job>,
    started: Mutex<usize>,
    /// Requests under way and waiting. Orders nothing.
    open: Arc<AtomicUsize>,
}

impl Default for Threads {
    fn default() -> Threads {
        let (to, from) = unbounded();
        Threads { to, from, started: Mutex::new(0), open: Arc::default() }
    }
}

/// A request, and where its answer goes.
struct Job {
    fd: RawFd,
    tag: u64,
    op: RingOp,
    answers: Arc<Answers>,
    open: Arc<AtomicUsize>,
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
            RingOp::Read { ptr, len, offset } => unsafe { posix::pread(self.fd, ptr, len as usize, offset) },
            RingOp::Write { dsync: true, .. } => Err(libc::EOPNOTSUPP),
            // SAFETY: as above.
            RingOp::Write { ptr, len, offset, .. } => unsafe { posix::pwrite(self.fd, ptr, len as usize, offset) },
            RingOp::Sync => sync(self.fd).map(|()| 0),
        };
        let result = result.map_or_else(|errno| -errno, |n| i32::try_from(n).expect("one call transfers less"));
        let mut there = self.answers.there.lock();
        there.push_back((self.tag, result));
        let open = self.open.fetch_sub(1, Relaxed);
        drop(there);
        self.answers.some.notify_one();
        assert!(open > 0, "what is answered was handed over");
    }
}

impl Threads {
    /// How many there are.
    pub fn started(&self) -> usize {
        let started = *self.started.lock();
        assert!(started <= MOST, "no more than there may be");
        started
    }

    /// Counts `n` more requests, for which there are threads then, as far as there may be. Fails when there is none.
    fn begin(&self, n: usize) -> Result<(), i32> {
        let mut started = self.started.lock();
        let wanted = (self.open.load(Relaxed) + n).min(MOST);
        while *started < wanted {
            let from = self.from.clone();
            if let Err(e) = try_spawn_daemon("file I/O", move || from.iter().for_each(Job::run)) {
                if *started == 0 {
                    return Err(e.raw_os_error().unwrap_or(libc::EAGAIN));
                }
                break;
            }
            *started += 1;
        }
        assert!(*started <= MOST, "a few threads");
        self.open.fetch_add(n, Relaxed);
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
        let n = self.queued.len();
        self.threads.begin(n)?;
        for (fd, tag, op) in self.queued.drain(..) {
            let (answers, open) = (self.answers.clone(), self.threads.open.clone());
            let sent = self.threads.to.send(Job { fd, tag, op, answers, open });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_request_that_takes_long_holds_up_no_other() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let threads = Arc::new(Threads::default());
        let mut bytes = [[0u8; 16]; 2];
        let mut rings = [ThreadRing::new(&threads, 4), ThreadRing::new(&threads, 4)];
        let slow = rings[0].answers.clone();
        // Its thread cannot end it.
        let held = slow.there.lock();
        for (i, (ring, bytes)) in rings.iter_mut().zip(&mut bytes).enumerate() {
            let op = RingOp::Read { ptr: bytes.as_mut_ptr(), len: 16, offset: 0 };
            // SAFETY: `bytes` outlives the request, which is waited for.
            assert!(unsafe { ring.push(file.as_raw_fd(), 7, op) });
            assert_eq!(ring.submit(), Ok(1));
            assert_eq!(*threads.started.lock(), i + 1, "a thread for each");
            // A thread has taken it.
            while !threads.from.is_empty() {
                varve_rt::yield_now();
            }
        }
        rings[1].wait().unwrap();
        assert_eq!(rings[1].pop(), Some((7, 16)));
        drop(held);
        rings[0].wait().unwrap();
        assert_eq!((rings[0].pop(), rings[0].pop()), (Some((7, 16)), None));
        assert_eq!(threads.open.load(Relaxed), 0);
        assert_eq!(bytes[0], bytes[1]);
    }
}
