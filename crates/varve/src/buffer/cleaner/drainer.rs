//! The drainer: a thread that writes the pages set aside of its instances, one instance after the other, as soon as
//! there is one.

use super::Service;
use crate::role::{self, Role};
use std::ops::Range;
use varve_rt::atomic::Ordering::*;
use varve_volume::{Lsn, WriteWhy};

/// The life of the drainer of the instances of these numbers.
pub(super) fn run(mine: Range<usize>, service: &Service) {
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
        well = pool.failure().is_none();
        let began = varve_rt::now();
        for inst in &pool.instances()[mine.clone()] {
            let drained = pool.drain_aside(inst, Lsn::MAX, WriteWhy::Replacement);
            well &= drained.failed == 0 && drained.uncovered == 0;
        }
        pool.counters.drainer_ns.add(began.elapsed().as_nanos() as u64);
    }
}
