//! `dynamic`: LRU-C's dynamic batch write (Lee, An, Lee, VLDB 2023).
//!
//! From the cold end to the first of the clean-first pointer, the midpoint, or an eighth of the list: every dirty page on the way is
//! written in one asynchronous batch. So the batch is the dirty backlog behind the pointer, and grows when the cleaner lags. Written
//! pages stay in the list, clean; the pointer finds them in its next sweep.

use super::{Cleaner, Pass};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Slot;
use crate::buffer::writer::{Latch, Writer};
use varve_rt::{Cost, charge};

pub(super) struct Dynamic;

impl Cleaner for Dynamic {
    fn pass(&self, pool: &Pool, inst: &Instance) -> Pass {
        let mut writer = Writer::keeping(pool);
        for slot in backlog(pool, inst) {
            writer.add(inst, slot, Latch::Skip);
        }
        let outcome = writer.finish();
        if outcome.written > 0 && pool.config().cleaner.reset_on_clean {
            inst.lock().policy.rewind();
        }
        Pass { written: outcome.written, well: outcome.failed == 0 }
    }
}

/// The dirty pages behind the pointer.
fn backlog(pool: &Pool, inst: &Instance) -> Vec<Slot> {
    let mut dirty = Vec::new();
    let mut lists = inst.lock();
    inst.drain_hits(&mut lists, &pool.counters);
    let policy = &lists.policy;
    let pointer = policy.cursor();
    policy.coldest((policy.len() / 8).max(1), &mut |slot| {
        charge(Cost::ListScan, 1);
        if Some(slot) == pointer || !policy.cold(slot) {
            return false;
        }
        if inst.frame(slot).flushable() {
            dirty.push(slot);
        }
        true
    });
    dirty
}
