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

/// Pages looked at under one hold of the instance's lock, with `parallel`.
const STEP: usize = 32;

/// The dirty pages behind the pointer. With `parallel` in steps of constant length: the place of the walk is kept in the list like a
/// hazard pointer, and misses choose their victims in between. Else in one hold of the lock.
fn backlog(pool: &Pool, inst: &Instance) -> Vec<Slot> {
    let step = if pool.config().cleaner.parallel { STEP } else { usize::MAX };
    let (mut dirty, mut seen) = (Vec::new(), Vec::new());
    let (mut left, mut restart) = (None, true);
    loop {
        let mut lists = inst.lock();
        let policy = match left {
            Some(_) => &mut lists.policy,
            None => {
                inst.drain_hits(&mut lists, &pool.counters);
                &mut lists.policy
            }
        };
        let rest = left.unwrap_or((policy.len() / 8).max(1));
        let pointer = policy.cursor();
        seen.clear();
        let more = policy.sweep(restart, rest.min(step), &mut |slot| {
            charge(Cost::ListScan, 1);
            let go_on = Some(slot) != pointer && seen.len() < rest;
            if go_on {
                seen.push(slot);
            }
            go_on
        });
        // A policy of several lists mixes pages past the middle of a short one with those behind the middle of a long one.
        dirty.extend(seen.iter().filter(|slot| policy.cold(**slot) && inst.frame(**slot).flushable()));
        drop(lists);
        pool.counters.cleaner_scanned.add(seen.len() as u64);
        let rest = rest - seen.len();
        if !more || rest == 0 {
            return dirty;
        }
        (left, restart) = (Some(rest), false);
    }
}
