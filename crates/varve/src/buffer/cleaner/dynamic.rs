//! `dynamic`: LRU-C's dynamic batch write (Lee, An, Lee, VLDB 2023).
//!
//! From the cold end to the first of the clean-first pointer, the midpoint, or an eighth of the list: every dirty page
//! on the way is written in one asynchronous batch. So the batch is the dirty backlog behind the pointer, and grows
//! when the cleaner lags. Written pages stay in the list, clean; the pointer finds them in its next sweep. A thread
//! that has several instances submits the batches of all before it waits for any.

use super::{Cleaner, Entry, Needs, Pass};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Slot;
use crate::buffer::writer::{IfLatched, Writer};
use std::sync::Arc;
use varve_rt::{Cost, charge};

/// The cleaner's line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "dynamic",
    needs: Needs { passed: true, refill: false, ..Needs::LEAST },
    make: Some(|_| Arc::new(Dynamic)),
};

struct Dynamic;

impl Cleaner for Dynamic {
    fn pass(&self, pool: &Pool, mine: &[Instance]) -> Pass {
        let mut writer = Writer::keeping(pool);
        let mut sent = Vec::new();
        for inst in mine {
            // Every slot is tried: `any` would stop at the first.
            let added = backlog(pool, inst).into_iter().filter(|slot| writer.add(inst, *slot, IfLatched::Skip)).count();
            writer.submit();
            sent.extend((added > 0).then_some(inst));
        }
        let outcome = writer.finish();
        if outcome.written > 0 && pool.config().cleaner.reset_on_clean {
            sent.iter().for_each(|inst| inst.lock().policy.rewind());
        }
        Pass { written: outcome.written, well: outcome.failed == 0, low: false }
    }
}

/// The dirty pages behind the pointer: with the parallel list those that misses noted as the pointer passed them, else
/// by a walk under one hold of the instance's lock. What has become of them since is looked at as each is written.
fn backlog(pool: &Pool, inst: &Instance) -> Vec<Slot> {
    let mut lists = inst.lock();
    if inst.lists_passed {
        // Those passed last may still be in use; they go with the next batch, if there is enough without them.
        let batch = pool.config().write_batch;
        let take = if lists.passed.len() >= 2 * batch { lists.passed.len() - batch } else { lists.passed.len() };
        let last = lists.passed.split_off(take);
        return std::mem::replace(&mut lists.passed, last);
    }
    inst.drain_hits(&mut lists, &pool.counters);
    let policy = &lists.policy;
    let (mut dirty, mut seen, most) = (Vec::new(), 0, (policy.len() / 8).max(1));
    let pointer = policy.cursor();
    policy.coldest(most, &mut |slot| {
        charge(Cost::ListScan, 1);
        seen += 1;
        let go_on = Some(slot) != pointer;
        // A policy of several lists mixes pages past the middle of a short one with those behind the middle of a long
        // one.
        if go_on && policy.cold(slot) && inst.frame(slot).flushable() {
            dirty.push(slot);
        }
        go_on
    });
    drop(lists);
    pool.counters.cleaner_scanned.add(seen);
    dirty
}
