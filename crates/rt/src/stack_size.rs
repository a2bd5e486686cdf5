//! The one setting for stacks, of either world.

use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Stack bytes of a new thread, in both worlds.
static STACK: AtomicUsize = AtomicUsize::new(1 << 20);

/// Sets the stack size, in bytes, of threads spawned from now on, in both worlds (at least 64 KiB; 1 MiB at the start).
/// Every stack ends in a guard page.
pub fn set_stack_size(bytes: usize) {
    STACK.store(bytes.max(64 << 10), Relaxed);
}

/// Stack bytes of new threads.
pub fn stack_size() -> usize {
    STACK.load(Relaxed)
}
