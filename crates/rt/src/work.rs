//! Work that takes processor time on a modelled host. On an OS thread the time is real, and nothing is charged.

use crate::cost::Cost;
use crate::world;
use std::time::Duration;

/// Charges `n` units of `cost` to the calling thread, as the simulated host's table says. Nothing on an OS thread,
/// where the time is real. Never waits.
#[inline]
pub fn charge(cost: Cost, n: u64) {
    if world::any() {
        world::charge(cost, n);
    }
}

/// Charges `cpu` of processor time to the calling thread. Nothing on an OS thread, where the time is real. In a
/// simulation charges add up and are settled, by occupying one of the modelled cores, before the next lock, unlock,
/// wait, send or I/O.
#[inline]
pub fn compute(cpu: Duration) {
    if world::any() {
        world::compute(cpu);
    }
}
