//! `fixed56`: InnoDB 5.6's page cleaner, there one thread for all instances.
//!
//! At each interval (and, unless configured otherwise, when free frames run low) it goes through its instances. In each
//! it writes chunks of at most 100 pages from the cold end and waits for each, until the scan depth is used up or
//! nothing was written. The clean pages that it meets go to the free list until that is as long as the scan depth; a
//! page that it has written stays, and is freed by the next pass over the cold end.

use crate::buffer::Pool;
use crate::buffer::cleaner::{Cleaner, Entry, Needs, Pass, evict, in_turn};
use crate::buffer::instance::Instance;
use crate::buffer::policy::Slot;
use crate::buffer::writer::{IfLatched, Outcome, Writer};
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Cost, charge};

/// Pages per chunk.
const CHUNK: usize = 100;

/// The cleaner's line in the registry.
pub(in crate::buffer) const ENTRY: Entry =
    Entry { name: "fixed56", needs: Needs::LEAST, make: Some(|_| Arc::new(Fixed56)) };

struct Fixed56;

impl Cleaner for Fixed56 {
    fn pass(&self, pool: &Pool, mine: &[Instance]) -> Pass {
        in_turn(mine, |inst| chunks(pool, inst))
    }
}

/// Chunk after chunk of an instance.
fn chunks(pool: &Pool, inst: &Instance) -> Pass {
    let depth = pool.config().cleaner.scan_depth;
    let mut sum = Outcome::default();
    for _ in 0..depth.div_ceil(CHUNK) {
        let (clean, dirty) = coldest(pool, inst, depth);
        for slot in clean {
            evict(pool, inst, slot);
        }
        if dirty.is_empty() {
            break;
        }
        let outcome = chunk(pool, inst, &dirty);
        let nothing = outcome.written == 0;
        sum.plus(outcome);
        if nothing {
            break;
        }
    }
    Pass::of(&sum, pool, inst)
}

impl Instance {
    /// Whether a cleaner's batch is being put together.
    pub(super) fn batch_starting(&self) -> bool {
        self.lock().batch.0
    }

    fn set_batch_starting(&self, starting: bool) {
        let before = std::mem::replace(&mut self.lock().batch.0, starting);
        assert_ne!(before, starting, "one batch of an instance is put together at a time");
    }

    fn batch_ended(&self) {
        {
            let mut lists = self.lock();
            lists.batch.1 += 1;
            lists.scan_pays = true;
        }
        self.wake_all();
    }

    /// Waits for the end of the batch that is starting.
    pub(super) fn wait_for_batch(&self) {
        let mut lists = self.lock();
        let ended = lists.batch.1;
        while lists.batch.1 == ended && !varve_rt::dying() {
            self.wait_for_write(&mut lists, Duration::from_millis(100));
            if !lists.batch.0 && lists.batch.1 == ended {
                // Submitted; its writes may have ended before we looked.
                self.wait_for_write(&mut lists, Duration::from_millis(1));
                return;
            }
        }
    }
}

/// One batch: begun, submitted, waited for. Misses that come while it is being put together wait for its end.
fn chunk(pool: &Pool, inst: &Instance, dirty: &[Slot]) -> Outcome {
    let mut writer = Writer::keeping(pool);
    inst.set_batch_starting(true);
    for slot in dirty {
        writer.add(inst, *slot, IfLatched::Skip);
    }
    writer.submit();
    inst.set_batch_starting(false);
    let outcome = writer.finish();
    inst.batch_ended();
    outcome
}

/// The coldest clean pages that the free list wants, and the dirty ones among them up to a chunk.
fn coldest(pool: &Pool, inst: &Instance, depth: usize) -> (Vec<Slot>, Vec<Slot>) {
    let (mut clean, mut dirty) = (Vec::new(), Vec::new());
    let mut lists = inst.lock();
    inst.drain_hits(&mut lists, &pool.counters);
    let need = depth.saturating_sub(lists.free_frames());
    let mut seen = 0;
    if need > 0 {
        lists.policy.coldest(depth, &mut |slot| {
            seen += 1;
            charge(Cost::ListScan, 1);
            let frame = inst.frame(slot);
            if frame.evictable() {
                clean.push(slot);
            } else if frame.flushable() {
                dirty.push(slot);
            }
            clean.len() < need && dirty.len() < CHUNK
        });
    }
    drop(lists);
    pool.counters.cleaner_scanned.add(seen);
    (clean, dirty)
}
