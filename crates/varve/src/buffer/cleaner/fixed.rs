//! `fixed`: the cold end of the list, chunk after chunk (InnoDB's LRU flushing).
//!
//! The coldest pages are gone through until those that are clean or can be written would fill the free list to its
//! target, or the scan depth is reached. The clean ones are evicted at once; the dirty ones are written and evicted as
//! their writes end (as InnoDB 5.7 does; 5.6 frees them in the next pass).
//!
//! Over two devices ([`CleanerConfig::by_class`]) dirty pages that the slow one is to get are left to threads of their
//! own. In one batch with the others they would hold up all of it: hundreds of misses, each of which takes a clean page
//! from further up the list.
//!
//! [`CleanerConfig::by_class`]: crate::buffer::config::CleanerConfig

use super::{Cleaner, Entry, Needs, Pass, Share};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::buffer::policy::Slot;
use crate::buffer::writer::{IfLatched, Writer};
use std::sync::Arc;
use varve_rt::atomic::Ordering::*;
use varve_rt::{Cost, charge};
use varve_volume::{CostClass, WriteWhy};

/// The cleaner's line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "fixed",
    needs: Needs { by_class: true, ..Needs::LEAST },
    make: Some(|share| Arc::new(Fixed { share })),
};

struct Fixed {
    share: Share,
}

impl Cleaner for Fixed {
    fn pass(&self, pool: &Pool, mine: &[Instance]) -> Pass {
        super::in_turn(mine, |inst| self.refill(pool, inst))
    }
}

impl Fixed {
    fn refill(&self, pool: &Pool, inst: &Instance) -> Pass {
        let (clean, dirty) = self.coldest(pool, inst);
        for slot in clean {
            super::evict(pool, inst, slot);
        }
        let mut writer = Writer::new(pool, WriteWhy::Replacement);
        for slot in dirty {
            writer.add(inst, slot, IfLatched::Skip);
        }
        Pass::of(&writer.finish(), pool, inst)
    }

    /// Of the coldest pages that together would fill the free list: clean ones, dirty ones. Those that another cleaner
    /// writes are passed over by who does not write them, and count for who does nothing else.
    fn coldest(&self, pool: &Pool, inst: &Instance) -> (Vec<Slot>, Vec<Slot>) {
        let cleaner = &pool.config().cleaner;
        let (mut clean, mut dirty, mut others) = (Vec::new(), Vec::new(), 0);
        let mut lists = inst.lock();
        inst.drain_hits(&mut lists, &pool.counters);
        let need = cleaner.free_target.saturating_sub(lists.free_frames());
        if need > 0 {
            lists.policy.coldest(cleaner.scan_depth, &mut |slot| {
                charge(Cost::ListScan, 1);
                let frame = inst.frame(slot);
                let (is_clean, is_dirty) = (frame.evictable(), frame.flushable());
                let slow = is_dirty && CostClass(frame.class.load(Relaxed)) == CostClass::default();
                match self.share {
                    Share::Slow if slow => dirty.push(slot),
                    Share::ButSlow if slow => others += 1,
                    Share::Slow => others += usize::from(is_clean || is_dirty),
                    _ if is_clean => clean.push(slot),
                    _ if is_dirty => dirty.push(slot),
                    _ => {}
                }
                let passed = if self.share == Share::Slow { others } else { 0 };
                clean.len() + dirty.len() + passed < need
            });
        }
        drop(lists);
        if self.share == Share::ButSlow && others > 0 {
            inst.wake_slow_cleaner();
        }
        (clean, dirty)
    }
}
