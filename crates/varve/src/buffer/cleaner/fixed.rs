//! `fixed`: the cold end of the list, chunk after chunk (InnoDB's LRU flushing).
//!
//! The coldest pages are gone through until those that are clean or can be written would fill the free list to its target, or the scan
//! depth is reached. The clean ones are evicted at once; the dirty ones are written and evicted as their writes end (as
//! InnoDB 5.7 does; 5.6 frees them in the next pass).

use super::{Cleaner, Pass};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Slot;
use crate::buffer::writer::{Latch, Writer};
use varve_rt::{Cost, charge};
use varve_volume::WriteWhy;

pub(super) struct Fixed;

impl Cleaner for Fixed {
    fn pass(&self, pool: &Pool, inst: &Instance) -> Pass {
        let (clean, dirty) = coldest(pool, inst);
        for slot in clean {
            super::evict(pool, inst, slot);
        }
        let mut writer = Writer::new(pool, WriteWhy::Replacement);
        for slot in dirty {
            writer.add(inst, slot, Latch::Skip);
        }
        let outcome = writer.finish();
        Pass { written: outcome.written, well: outcome.failed == 0 }
    }
}

/// The coldest pages that together would fill the free list: clean ones, dirty ones.
fn coldest(pool: &Pool, inst: &Instance) -> (Vec<Slot>, Vec<Slot>) {
    let cleaner = &pool.config().cleaner;
    let (mut clean, mut dirty) = (Vec::new(), Vec::new());
    let mut lists = inst.lock();
    inst.drain_hits(&mut lists, &pool.counters);
    let need = cleaner.free_target.saturating_sub(lists.free.len());
    if need > 0 {
        lists.policy.coldest(cleaner.scan_depth, &mut |slot| {
            charge(Cost::ListScan, 1);
            let frame = inst.frame(slot);
            if frame.evictable() {
                clean.push(slot);
            } else if frame.flushable() {
                dirty.push(slot);
            }
            clean.len() + dirty.len() < need
        });
    }
    (clean, dirty)
}
