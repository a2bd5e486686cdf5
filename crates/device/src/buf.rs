//! Memory aligned for direct I/O.

use crate::DeviceError;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every [`AlignedBuf`], bytes. Enough for direct I/O on every common drive.
const ALIGN: usize = 4096;

/// Buffers from here on are not touched before they are used, bytes.
const LARGE: usize = 1 << 20;

const _: () = assert!(ALIGN.is_power_of_two() && ALIGN.is_multiple_of(size_of::<u64>()));

/// A zeroed heap buffer aligned to 4096 bytes, of any length.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes between what was allocated and `ptr`.
    skip: usize,
}

// SAFETY: AlignedBuf owns its memory exclusively, like a Box<[u8]>.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `len` zeroed bytes. Without memory the process ends, as with any small allocation.
    pub fn new(len: usize) -> AlignedBuf {
        Self::allocate(len).unwrap_or_else(|| handle_alloc_error(Self::layout(len)))
    }

    /// Allocates `len` zeroed bytes, for `what`.
    ///
    /// # Errors
    /// [`DeviceError::Resources`] where the system has not so much memory.
    pub fn try_new(len: usize, what: &str) -> Result<AlignedBuf, DeviceError> {
        Self::allocate(len).ok_or_else(|| DeviceError::no_memory(len as u64, what))
    }

    fn allocate(len: usize) -> Option<AlignedBuf> {
        if len == 0 {
            // An aligned address that is never dereferenced.
            return Some(AlignedBuf {
                ptr: NonNull::without_provenance(ALIGN.try_into().expect("not zero")),
                len,
                skip: 0,
            });
        }
        // SAFETY: the layout's size is not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) })?;
        let skip = if len < LARGE { 0 } else { raw.addr().get().next_multiple_of(ALIGN) - raw.addr().get() };
        // SAFETY: a large layout has a page more than `len`, and the others are aligned: `skip` is within it.
        let ptr = unsafe { raw.add(skip) };
        debug_assert!(ptr.addr().get().is_multiple_of(ALIGN) && skip < ALIGN);
        Some(AlignedBuf { ptr, len, skip })
    }

    /// Allocates a copy of `bytes`, lengthened with zeros to a multiple of `multiple` bytes.
    pub fn copy_padded(bytes: &[u8], multiple: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::new(bytes.len().next_multiple_of(multiple));
        buf[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// Sets every byte to zero.
    pub fn clear(&mut self) {
        self.fill(0);
    }

    /// What is allocated. A large buffer is aligned by hand: allocators give zeroed memory of the common alignment as
    /// the system does, untouched, but write the zeros themselves where more is asked for.
    fn layout(len: usize) -> Layout {
        let (size, align) = if len < LARGE { (len, ALIGN) } else { (len.saturating_add(ALIGN), align_of::<u64>()) };
        Layout::from_size_align(size, align).expect("length fits the address space")
    }
}

/// Memory of the machine, bytes; `None` where the system does not tell.
pub fn physical_memory() -> Option<u64> {
    // SAFETY: system calls without memory.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    Some(u64::try_from(pages).ok()? * u64::try_from(size).ok()?)
}

/// Bytes of addresses that the process may have, if that is limited.
#[allow(clippy::unnecessary_cast, reason = "limits have a sign on FreeBSD")]
pub(crate) fn address_space() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure outlives the call, which fills it.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    (told && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

/// Allocations below this stay on ordinary pages: the system call would cost more than it gains.
const HUGE_FROM: usize = 4 << 20;
const _: () = assert!(HUGE_FROM >= 2 * ALIGN, "whole pages lie within what huge ones are wished for");

/// Asks the system to back memory with huge pages (Linux: 2 MiB), so that random accesses to it miss the processor's
/// address cache less often. Call it before the memory is first touched. A hint: refused or unknown, it changes
/// nothing.
pub fn prefer_huge_pages<T>(start: *const T, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= HUGE_FROM {
        let from = (start as usize).next_multiple_of(ALIGN);
        let to = (start as usize + bytes) / ALIGN * ALIGN;
        // SAFETY: the advice changes how memory of this process is backed, never what it holds; addresses that are not
        // mapped are an error, which is ignored.
        unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_HUGEPAGE) };
    }
    #[cfg(any(miri, not(target_os = "linux")))]
    let _ = (start, bytes, HUGE_FROM);
}

/// Gives the memory of whole pages back to the system: it holds zeros, and takes none until it is written to. A hint:
/// refused or unknown, the memory stays as it is.
///
/// # Safety
/// The caller owns `bytes` bytes of allocated memory from `start` on, which nobody else looks at meanwhile; what they
/// hold may be lost.
pub unsafe fn forget_memory(start: *mut u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let from = start.addr().next_multiple_of(ALIGN);
        let to = (start.addr() + bytes) / ALIGN * ALIGN;
        if to > from {
            // SAFETY: the caller's promise; the range is within it.
            unsafe { libc::madvise(start.with_addr(from).cast(), to - from, libc::MADV_DONTNEED) };
        }
    }
    #[cfg(any(miri, not(target_os = "linux")))]
    let _ = (start, bytes);
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `allocate` with the same layout, `skip` bytes before; freed once.
            unsafe { dealloc(self.ptr.as_ptr().sub(self.skip), Self::layout(self.len)) }
        }
    }
}

/// Without a reference to the bytes: others may be writing them through a pointer that was taken before.
impl AlignedBuf {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes begin.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: ptr is valid for len initialised bytes (or dangling with len 0).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> AlignedBuf {
        let mut buf = AlignedBuf::new(self.len);
        buf.copy_from_slice(self);
        buf
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_size_are_aligned_and_zero_and_their_own() {
        for len in [0, 1, 4096, LARGE - 1, LARGE, LARGE + 1, 5 << 20] {
            let mut buf = AlignedBuf::try_new(len, "a test").unwrap();
            assert!(buf.as_ptr().addr().is_multiple_of(ALIGN) && buf.len() == len, "{len} bytes");
            assert!(buf.iter().all(|byte| *byte == 0), "{len} bytes");
            let copy = buf.clone();
            buf.fill(7);
            assert!(copy.iter().all(|byte| *byte == 0), "{len} bytes");
        }
    }
}
