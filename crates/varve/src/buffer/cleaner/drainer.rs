//! WAR's drainer: the thread that writes the temporary write buffer of one instance, as soon as something is in it.

use super::Service;
use crate::role::{self, Role};
use varve_rt::atomic::Ordering::*;
use varve_volume::{Lsn, WriteWhy};

/// The life of the drainer of the instance of this number.
pub(super) fn run(instance: usize, service: &Service) {
    let Service { pool, wake, stop, config } = service;
    role::set(Role::Cleaner);
    let mut well = true;
    loop {
        if well {
            wake.wait_for(config.interval);
        } else {
            // After a failed write nobody can hurry it.
            varve_rt::sleep(config.interval);
        }
        if stop.load(Acquire) {
            return;
        }
        wake.reset();
        let Some(pool) = pool.upgrade() else { return };
        let drained = pool.drain_aside(&pool.instances()[instance], Lsn::MAX, WriteWhy::Replacement);
        well = pool.failure().is_none() && drained.failed == 0 && drained.uncovered == 0;
    }
}
