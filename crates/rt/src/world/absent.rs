//! The simulated world where there is none, without the feature `sim`: no thread is simulated, and the compiler takes
//! out what would ask. What each function is for says its namesake in `world/mod.rs`.

use crate::cost::Cost;
use crate::ended::Panicked;
use crate::instant::Instant;
use crate::wait::{Parked, Pick, Wait, Woken};
use std::any::Any;
use std::time::Duration;

pub(crate) type Table = Vec<Option<Box<dyn Any>>>;
pub(crate) type ThreadId = u32;
pub(crate) type Body = Box<dyn FnOnce(bool) -> Option<Panicked>>;

/// Threads are in the process, and nowhere else.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place(());

/// There is no switch to hold back.
pub(crate) struct Quiet;

impl Quiet {
    pub(crate) fn new() -> Quiet {
        Quiet
    }
}

/// Whether the calling simulated thread is on a host whose work takes time; false on an OS thread.
pub fn costs_modelled() -> bool {
    false
}

/// The number of the calling simulated thread, in order of spawning.
pub fn thread_number() -> Option<u32> {
    None
}

pub(crate) const fn any() -> bool {
    false
}

pub(crate) const fn any_chaos() -> bool {
    false
}

pub(crate) const fn active() -> bool {
    false
}

pub(crate) const fn dying() -> bool {
    false
}

pub(crate) const fn is_ghost(_key: usize) -> bool {
    false
}

pub(crate) const fn unwinds_by_panic() -> bool {
    true
}

pub(crate) const fn virtual_now() -> Option<Instant> {
    None
}

pub(crate) const fn next_seed() -> Option<u64> {
    None
}

pub(crate) const fn current_id() -> Option<ThreadId> {
    None
}

pub(crate) const fn current_name() -> Option<String> {
    None
}

pub(crate) fn local_table<R>(_f: impl FnOnce(&mut Table) -> R) -> Option<R> {
    None
}

pub(crate) fn panicked(thread: &str, payload: &(dyn Any + Send)) -> Panicked {
    Panicked::new(thread, payload, None)
}

pub(crate) const fn sleep(_d: Duration) -> bool {
    false
}

pub(crate) const fn spin(_n: u32) -> bool {
    false
}

pub(crate) const fn yield_now() -> bool {
    false
}

pub(crate) const fn race_point() {}
pub(crate) const fn before_send() {}
pub(crate) const fn lock_boundary(_key: usize) {}

// What follows is called by simulated threads alone.

const NOBODY: &str = "there are no simulated threads without the feature `sim`";

pub(crate) fn chaos_point() {
    unreachable!("{NOBODY}")
}

pub(crate) fn charge(_cost: Cost, _n: u64) {
    unreachable!("{NOBODY}")
}

pub(crate) fn compute(_cpu: Duration) {
    unreachable!("{NOBODY}")
}

pub(crate) fn unwind_if_possible() {
    unreachable!("{NOBODY}")
}

pub(crate) fn ghost_lock(_key: usize) {
    unreachable!("{NOBODY}")
}

pub(crate) fn ghost_unlock(_key: usize) -> bool {
    unreachable!("{NOBODY}")
}

pub(crate) fn after_lock(_key: usize, _exclusive: bool, _fresh: bool) {
    unreachable!("{NOBODY}")
}

pub(crate) fn released(_key: usize, _exclusive: bool) {
    unreachable!("{NOBODY}")
}

pub(crate) fn refuses_spawn(_place: Place) -> bool {
    unreachable!("{NOBODY}")
}

pub(crate) fn spawn(_name: String, _daemon: bool, _place: Place, _body: Body) -> ThreadId {
    unreachable!("{NOBODY}")
}

pub(crate) fn joined(_id: ThreadId) {
    unreachable!("{NOBODY}")
}

pub(crate) fn park(
    _wait: Wait,
    _validate: impl FnOnce() -> bool,
    _before_sleep: impl FnOnce(),
    _timed_out: impl FnOnce(bool),
) -> Parked {
    unreachable!("{NOBODY}")
}

pub(crate) fn unpark(_key: usize, _filter: impl FnMut(usize) -> Pick, _callback: impl FnOnce(Woken) -> usize) {
    unreachable!("{NOBODY}")
}
