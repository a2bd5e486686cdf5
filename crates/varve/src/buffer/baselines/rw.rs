//! `rw`: read and write as one (VLDB 2022).
//!
//! As `spf56` until no clean page is found; then the coldest dirty page is staged, its frame goes straight to the
//! reader, and its write and the read of the wanted page are given to the store in one batch. The thread waits for the
//! read alone; a background thread takes the end of the write. The staged page can be asked for again meanwhile: it is
//! copied back, dirty until its write ends.

use super::spf56::miss;
use crate::buffer::Pool;
use crate::buffer::instance::Instance;

use crate::buffer::victim::{Needs, Owed, Taken, VictimEntry, VictimStrategy};
use crate::error::Result;
use varve_volume::{PageId, page};

/// The strategy's line in the registry.
pub(in crate::buffer) const ENTRY: VictimEntry = VictimEntry {
    name: "rw",
    needs: Needs { scan_per_write: false, asides: true, reaper: true, ..Needs::LEAST },
    make: |_| Box::new(ReadWrite),
};

struct ReadWrite;

/// Dirty pages tried before the thread falls back to a flush of its own.
const TRIES: usize = 8;

impl VictimStrategy for ReadWrite {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        miss(pool, inst, incoming, |_| stage(pool, inst))
    }
}

/// Stages the coldest dirty page; the log is durable to it.
fn stage<'a>(pool: &'a Pool, inst: &'a Instance) -> Option<Taken<'a>> {
    for slot in pool.coldest_dirty(inst, TRIES) {
        let Some(held) = pool.at(inst, slot).try_claim_dirty() else { continue };
        // The latch is held while the log is forced: nobody can change the page, and nobody waits for it but a reader
        // of this page.
        let lsn = page::lsn(held.bytes());
        let durable = if pool.never_covered(lsn) { 0 } else { pool.cover(lsn) };
        if lsn <= durable {
            let mut lists = inst.lock();
            // Read by somebody's shared latch it cannot be; but a page that left the policy, or no room, sends us on.
            if held.frame().is(crate::buffer::frame::KNOWN) && lists.asides.room() > 0 {
                let aside = inst.set_aside(&mut lists, &held, pool.counters());
                let write = inst.begin_aside(&mut lists, aside, durable).expect("just set aside, and covered");
                drop(lists);
                return Some(Taken { held, owed: Some(Owed { inst, write }) });
            }
        }
        held.unlatch();
    }
    None
}
