//! The simulated world: hooks used by the primitives.

use crate::local::Table;
use crate::park::{Parked, Pick, Wait, Woken};
use crate::thread::Panicked;
use crate::time::Instant;
use std::time::Duration;

/// The payload that unwinds a dying thread.
pub(crate) struct PowerCut;

/// Identity of a simulated thread.
pub(crate) type ThreadId = u32;

/// Keeps the calling simulated thread from being switched away from.
pub(crate) struct Quiet;

impl Quiet {
    pub(crate) fn new() -> Quiet {
        Quiet
    }
}

#[inline]
pub(crate) fn any() -> bool {
    false
}
#[inline]
pub(crate) fn active() -> bool {
    false
}
#[inline]
pub(crate) fn any_chaos() -> bool {
    false
}
pub(crate) fn chaos_point() {}
pub(crate) fn virtual_now() -> Option<Instant> {
    None
}
pub(crate) fn next_seed() -> Option<u64> {
    None
}
pub(crate) fn sleep(_d: Duration) -> bool {
    false
}
pub(crate) fn spin(_n: u32) -> bool {
    false
}
pub(crate) fn yield_now() -> bool {
    false
}
pub(crate) fn compute(_d: Duration) {}
pub(crate) fn dying() -> bool {
    false
}
pub(crate) fn current_name() -> Option<String> {
    None
}
pub(crate) fn before_lock() {}
pub(crate) fn after_lock(_key: usize, _exclusive: bool) {}
pub(crate) fn before_unlock() {}
pub(crate) fn before_send() {}
pub(crate) fn released(_key: usize) {}
pub(crate) fn ghost_lock(_key: usize) {}
pub(crate) fn ghost_unlock(_key: usize) -> bool {
    false
}
pub(crate) fn is_ghost(_key: usize) -> bool {
    false
}
pub(crate) fn unwind_if_possible() {}
pub(crate) fn joined(_id: ThreadId) {}
pub(crate) fn local_table<R>(_f: impl FnOnce(&mut Table) -> R) -> Option<R> {
    None
}
pub(crate) fn park(
    _wait: Wait,
    _validate: impl FnOnce() -> bool,
    _before_sleep: impl FnOnce(),
    _timed_out: impl FnOnce(bool),
) -> Parked {
    unreachable!("not in a simulation")
}
pub(crate) fn unpark(_key: usize, _filter: impl FnMut(usize) -> Pick, _callback: impl FnOnce(Woken) -> usize) {}
pub(crate) fn spawn(
    _name: String,
    _daemon: bool,
    _domain: Option<u32>,
    _body: Box<dyn FnOnce() -> Option<Panicked>>,
) -> ThreadId {
    unreachable!("not in a simulation")
}
