//! One request to a device.
//!
//! Invariant: the memory behind an [`IoBuf`] stays valid and is used by nobody else (but by who looks at it through
//! [`Words`]) until the request was waited for; whoever called the unsafe constructor promised it. An `Io` cannot be
//! cloned, so safe code cannot use a buffer twice.

use crate::{OpKind, Words};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer.
    Read,
    /// Store the buffer.
    Write {
        /// On media when it completes (force unit access): survives a power cut without a flush.
        durable: bool,
    },
    /// The range is no longer needed: it reads as zeros or as its old bytes from now on.
    Trim,
    /// Every write that *completed* before this request was submitted survives a power cut.
    Flush,
}

impl Op {
    /// The operation without its options, for errors and counters.
    pub fn kind(self) -> OpKind {
        match self {
            Op::Read => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Trim => OpKind::Trim,
            Op::Flush => OpKind::Flush,
        }
    }
}

/// What a write belongs to: what is of one stream is overwritten at about the same time, so a device that can does well
/// to keep streams apart. Writing in the right one saves work, in a wrong one it costs work and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(u8);

const _: () =
    assert!(Stream::NONE.0 < Stream::LOG.0 && Stream::BULK.0 < Stream::FIXED, "streams have codes of their own");

impl Stream {
    /// Nothing is known.
    pub const NONE: Stream = Stream(0);
    /// A log, overwritten from its beginning to its end.
    pub const LOG: Stream = Stream(1);
    /// Pages of the engine's own trees and maps.
    pub const TREE: Stream = Stream(2);
    /// What is written in one go and goes as a whole: bulk loads, long values, segments.
    pub const BULK: Stream = Stream(3);
    /// Streams before those of keyspaces.
    const FIXED: u8 = 4;

    /// Its number; 0 is that of [`Stream::NONE`].
    pub fn code(self) -> u8 {
        self.0
    }

    /// The own one of the keyspace of this number. There are 252 of them.
    pub fn of_keyspace(number: u32) -> Stream {
        let stream = Stream::FIXED + (number % u32::from(u8::MAX - Stream::FIXED + 1)) as u8;
        assert!(stream >= Stream::FIXED, "the first streams are not a keyspace's");
        Stream(stream)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    Mut,
    Const,
}

/// The memory of a request: address and length. Trim has a length only, flush has nothing.
#[derive(Debug)]
pub struct IoBuf {
    ptr: *mut u8,
    len: usize,
    access: Access,
}

// SAFETY: an IoBuf is the promise that the memory is exclusively the request's (read) or unchanged (write) until it was
// waited for, from whichever thread; see the constructors of `Io`.
unsafe impl Send for IoBuf {}

impl IoBuf {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address as a number, for alignment checks.
    pub fn addr(&self) -> usize {
        self.ptr as usize
    }

    /// The memory to fill. Panics if this is not the buffer of a read.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        assert_eq!(self.access, Access::Mut, "only a read's buffer may be written to");
        self.ptr
    }

    /// Fills a read's buffer. Panics if this is none, or has another length.
    ///
    /// # Safety
    /// The request was not waited for yet.
    pub unsafe fn fill(&self, bytes: &[u8]) {
        assert_eq!(self.len, bytes.len(), "a read is answered as a whole");
        // SAFETY: the caller of `Io::read` promised valid memory that nobody else writes; devices take aligned memory
        // only.
        unsafe { Words::new(self.as_mut_ptr(), self.len) }.store(0, bytes);
    }

    /// The bytes to store. Panics if this is not the buffer of a write.
    pub fn as_ptr(&self) -> *const u8 {
        assert_eq!(self.access, Access::Const, "only a write's buffer may be read from");
        self.ptr
    }
}

/// One request: what, where, and the memory.
#[derive(Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// First byte, a multiple of the device's block. Zero for a flush.
    pub offset: u64,
    /// The memory.
    pub buf: IoBuf,
    /// Of a write: what it belongs to.
    pub stream: Stream,
}

impl Io {
    /// A read of `len` bytes at `offset` into `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr+len` is initialised and valid for writes, and nobody else uses it until the request was waited for,
    /// unless through [`Words`] and to read it.
    pub unsafe fn read(offset: u64, ptr: *mut u8, len: usize) -> Io {
        assert!(!ptr.is_null(), "a read has somewhere to go");
        Io { op: Op::Read, offset, buf: IoBuf { ptr, len, access: Access::Mut }, stream: Stream::NONE }
    }

    /// A write of `len` bytes from `ptr` to `offset`.
    ///
    /// # Safety
    /// `ptr..ptr+len` is valid for reads and nobody changes it until the request was waited for.
    pub unsafe fn write(offset: u64, ptr: *const u8, len: usize, durable: bool) -> Io {
        assert!(!ptr.is_null(), "a write has something to store");
        let buf = IoBuf { ptr: ptr.cast_mut(), len, access: Access::Const };
        Io { op: Op::Write { durable }, offset, buf, stream: Stream::NONE }
    }

    /// The same write, as one of a stream.
    pub fn in_stream(self, stream: Stream) -> Io {
        debug_assert!(matches!(self.op, Op::Write { .. }), "only writes are of a stream");
        Io { stream, ..self }
    }

    /// A trim of `len` bytes at `offset`.
    pub fn trim(offset: u64, len: usize) -> Io {
        let buf = IoBuf { ptr: std::ptr::null_mut(), len, access: Access::None };
        Io { op: Op::Trim, offset, buf, stream: Stream::NONE }
    }

    /// A flush of the whole device.
    pub fn flush() -> Io {
        let buf = IoBuf { ptr: std::ptr::null_mut(), len: 0, access: Access::None };
        Io { op: Op::Flush, offset: 0, buf, stream: Stream::NONE }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buf.len
    }

    /// Splits the request into its first `at` bytes and the rest, both on the same device offsets as before.
    /// Panics if `at` is past the end.
    pub fn split_at(self, at: usize) -> (Io, Io) {
        let Io { op, offset, buf: IoBuf { ptr, len, access }, stream } = self;
        assert!(op != Op::Flush, "a flush has no parts");
        assert!(at <= len, "split at {at} of a request of {len} bytes");
        let first = IoBuf { ptr, len: at, access };
        let rest = IoBuf { ptr: ptr.wrapping_add(at), len: len - at, access };
        let (second, first) = (offset + at as u64, Io { op, offset, buf: first, stream });
        (first, Io { op, offset: second, buf: rest, stream })
    }
}
