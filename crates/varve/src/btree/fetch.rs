//! Asking the processor for a cache line before it is needed. A hint without any effect on results; nothing on
//! processors other than x86-64.

/// Begins to load the cache line of `bytes[at]`, if there is such a byte.
#[inline(always)]
pub(super) fn ahead(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of a byte of the slice, and a prefetch neither reads nor writes anything the
        // program could observe.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}
