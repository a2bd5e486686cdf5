//! What a drive is told of the streams of writes.
//!
//! A block device that has write streams (flexible data placement, Linux 6.16) gets the number of one with each write
//! through `io_uring`; streams take numbers as they come, and those that find none left take the last. A file system
//! passes no streams on: a file, and a block device without any, has one expected lifetime for all that is written to
//! it (`F_SET_RW_HINT`): it is told that of the first stream that is written, and every other stream is ignored, which
//! is counted and said ([`crate::DeviceInfo::fallback`]).
//!
//! Invariants: two streams have one number only if it is the last; a lifetime is told once; no write is made or not
//! made for its stream's sake.

use super::Inner;
use super::sys::raw;
use crate::{Io, Op, Stream};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use varve_rt::Mutex;

/// `RWH_WRITE_LIFE_SHORT`, `_MEDIUM` and `_LONG` of `fcntl(2)`.
const SHORT: u64 = 2;
const MEDIUM: u64 = 3;
const LONG: u64 = 4;
const _: () = assert!(SHORT < MEDIUM && MEDIUM < LONG && LONG <= 5, "lifetimes are RWH_WRITE_LIFE_*, in their order");

const IGNORED: &str = "write streams are ignored, a file and a drive without any keep none apart";
const REFUSED: &str = "the system takes no word of how long writes stay (F_SET_RW_HINT)";
const FULL: &str = "more streams are written than the drive has, the last of them share one";
const GONE: &str = "the drive refused a write in a stream, write streams are ignored";

/// What is known of a device's streams.
pub(super) struct Streams {
    /// Streams that the drive has; 0: none.
    most: u16,
    /// A write in a stream was refused: there are none after all.
    gone: AtomicBool,
    /// The streams that were written, where the drive has some: the number of one is its place and one.
    seen: Mutex<Vec<Stream>>,
    /// The first stream that was written without a number; none yet: [`Stream::NONE`].
    told: AtomicU8,
    /// What is ignored was said.
    said: AtomicBool,
}

impl Streams {
    /// Of an open device with so many write streams.
    pub(super) fn new(most: u16) -> Streams {
        let no = || AtomicBool::new(false);
        Streams { most, gone: no(), seen: Mutex::default(), told: AtomicU8::new(Stream::NONE.code()), said: no() }
    }

    /// Numbers that writes can have.
    fn numbers(&self) -> u8 {
        if self.gone.load(Relaxed) { 0 } else { self.most.try_into().unwrap_or(u8::MAX) }
    }
}

/// Whether the request is a write of which its stream is known.
fn is_of_stream(io: &Io) -> bool {
    io.stream != Stream::NONE && matches!(io.op, Op::Write { .. })
}

/// How long what a stream writes stays, as the system wants to hear it.
fn lifetime(stream: Stream) -> u64 {
    match stream {
        Stream::LOG => SHORT,
        Stream::BULK => LONG,
        _ => MEDIUM,
    }
}

impl Inner {
    /// Whether a write must go through a ring: a system call names no stream.
    pub(super) fn wants_ring(&self, io: &Io) -> bool {
        is_of_stream(io) && self.streams.numbers() > 0 && self.uring.load(Relaxed)
    }

    /// The number that a request through a ring gets along; 0: none.
    pub(super) fn stream_number(&self, io: &Io) -> u8 {
        let most = self.streams.numbers();
        if most == 0 || !is_of_stream(io) {
            return 0;
        }
        let mut seen = self.streams.seen.lock();
        let place = seen.iter().position(|stream| *stream == io.stream).unwrap_or_else(|| {
            seen.push(io.stream);
            seen.len() - 1
        });
        drop(seen);
        if place >= usize::from(most) {
            self.ignored(FULL);
        }
        let number = u8::try_from(place + 1).unwrap_or(u8::MAX).min(most);
        assert!(number > 0, "0 stands for no stream");
        number
    }

    /// Takes note of a write that goes without a number.
    pub(super) fn goes_without(&self, io: &Io) {
        if !is_of_stream(io) {
            return;
        }
        let (none, own) = (Stream::NONE.code(), io.stream.code());
        match self.streams.told.compare_exchange(none, own, Relaxed, Relaxed) {
            Ok(_) => {
                if self.sys.set_lifetime(raw(&self.fd), lifetime(io.stream)).is_err() {
                    self.note(REFUSED);
                }
            }
            Err(told) if told != own => self.ignored(IGNORED),
            Err(_) => {}
        }
    }

    fn ignored(&self, why: &str) {
        self.counters.stream_ignored();
        if !self.streams.said.load(Relaxed) {
            self.streams.said.store(true, Relaxed);
            self.note(why);
        }
    }

    /// The drive refused a write in a stream: no other is tried.
    pub(super) fn stream_refused(&self) {
        if !self.streams.gone.swap(true, Relaxed) {
            self.streams.said.store(true, Relaxed);
            self.note(GONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_soon_and_what_is_loaded_stays() {
        let [log, keyspace, bulk] = [Stream::LOG, Stream::of_keyspace(7), Stream::BULK].map(lifetime);
        assert!(log < keyspace && keyspace < bulk);
    }
}
