//! Atomics that are chaos points: in a chaotic simulation each operation may first let another thread run, so that
//! interleavings around them are explored. Elsewhere each costs one relaxed load of a static more than `std`'s.
//!
//! Simulated threads share one OS thread, so a simulation shows wrong *interleavings*, never wrong memory orders:
//! those need the OS-thread stress tests.

use crate::world;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
pub use std::sync::atomic::{Ordering, compiler_fence, fence};

#[inline(always)]
fn point() {
    if world::any_chaos() {
        world::chaos_point();
    }
}

macro_rules! common {
    ($name:ident, $std:ty, $t:ty $(, $g:ident)?) => {
        impl$(<$g>)? $name$(<$g>)? {
            /// A new atomic holding `v`.
            pub const fn new(v: $t) -> Self { Self(<$std>::new(v)) }
            /// Loads the value.
            #[inline] pub fn load(&self, o: Ordering) -> $t { point(); self.0.load(o) }
            /// Stores `v`.
            #[inline] pub fn store(&self, v: $t, o: Ordering) { point(); self.0.store(v, o) }
            /// Stores `v`, returns the old value.
            #[inline] pub fn swap(&self, v: $t, o: Ordering) -> $t { point(); self.0.swap(v, o) }
            /// Stores `new` if the value is `old`; `Err` holds the value found.
            #[inline] pub fn compare_exchange(&self, old: $t, new: $t, ok: Ordering, err: Ordering) -> Result<$t, $t> {
                point(); self.0.compare_exchange(old, new, ok, err)
            }
            /// As `compare_exchange`, but may fail for no reason.
            #[inline] pub fn compare_exchange_weak(&self, old: $t, new: $t, ok: Ordering, err: Ordering) -> Result<$t, $t> {
                point(); self.0.compare_exchange_weak(old, new, ok, err)
            }
            /// Replaces the value by `f(value)` until it succeeds or `f` says `None`.
            #[inline] pub fn fetch_update(&self, set: Ordering, get: Ordering, f: impl FnMut($t) -> Option<$t>) -> Result<$t, $t> {
                point(); self.0.fetch_update(set, get, f)
            }
            /// The value, by exclusive access.
            #[inline] pub fn get_mut(&mut self) -> &mut $t { self.0.get_mut() }
            /// The value, by ownership.
            #[inline] pub fn into_inner(self) -> $t { self.0.into_inner() }
        }
        impl$(<$g>)? std::fmt::Debug for $name$(<$g>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.0.fmt(f) }
        }
    };
}

macro_rules! integer {
    ($name:ident, $std:ty, $t:ty) => {
        /// An atomic integer whose operations are chaos points.
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name($std);
        common!($name, $std, $t);
        impl $name {
            /// So many of them, all zero. The system gives zeroed memory as it is first touched: a long table of which
            /// little is used costs little.
            pub fn zeros(len: usize) -> Box<[Self]> {
                let layout = Layout::array::<Self>(len).expect("the length fits the address space");
                if layout.size() == 0 {
                    return Box::new([]);
                }
                // SAFETY: the layout's size is not zero.
                let start = unsafe { alloc_zeroed(layout) }.cast::<Self>();
                if start.is_null() {
                    handle_alloc_error(layout);
                }
                // SAFETY: allocated with the layout of such a slice; zeroed bytes are an atomic that holds zero.
                unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len)) }
            }

            /// Adds (wrapping), returns the old value.
            #[inline]
            pub fn fetch_add(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_add(v, o)
            }
            /// Subtracts (wrapping), returns the old value.
            #[inline]
            pub fn fetch_sub(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_sub(v, o)
            }
            /// Bitwise and, returns the old value.
            #[inline]
            pub fn fetch_and(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_and(v, o)
            }
            /// Bitwise or, returns the old value.
            #[inline]
            pub fn fetch_or(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_or(v, o)
            }
            /// Bitwise exclusive or, returns the old value.
            #[inline]
            pub fn fetch_xor(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_xor(v, o)
            }
            /// Maximum, returns the old value.
            #[inline]
            pub fn fetch_max(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_max(v, o)
            }
            /// Minimum, returns the old value.
            #[inline]
            pub fn fetch_min(&self, v: $t, o: Ordering) -> $t {
                point();
                self.0.fetch_min(v, o)
            }
        }
        impl From<$t> for $name {
            fn from(v: $t) -> Self {
                Self::new(v)
            }
        }
    };
}

integer!(AtomicU8, std::sync::atomic::AtomicU8, u8);
integer!(AtomicU16, std::sync::atomic::AtomicU16, u16);
integer!(AtomicU32, std::sync::atomic::AtomicU32, u32);
integer!(AtomicU64, std::sync::atomic::AtomicU64, u64);
integer!(AtomicI64, std::sync::atomic::AtomicI64, i64);
integer!(AtomicUsize, std::sync::atomic::AtomicUsize, usize);

/// An atomic boolean whose operations are chaos points.
#[derive(Default)]
#[repr(transparent)]
pub struct AtomicBool(std::sync::atomic::AtomicBool);
common!(AtomicBool, std::sync::atomic::AtomicBool, bool);
impl AtomicBool {
    /// Logical and, returns the old value.
    #[inline]
    pub fn fetch_and(&self, v: bool, o: Ordering) -> bool {
        point();
        self.0.fetch_and(v, o)
    }
    /// Logical or, returns the old value.
    #[inline]
    pub fn fetch_or(&self, v: bool, o: Ordering) -> bool {
        point();
        self.0.fetch_or(v, o)
    }
}

/// An atomic pointer whose operations are chaos points.
#[repr(transparent)]
pub struct AtomicPtr<T>(std::sync::atomic::AtomicPtr<T>);
common!(AtomicPtr, std::sync::atomic::AtomicPtr<T>, *mut T, T);
impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}
