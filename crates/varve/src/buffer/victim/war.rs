//! `war`: write after read (An et al., SIGMOD 2022).
//!
//! As `spf56` until no clean page is found; then the missing thread copies the dirty pages of the cold end into the instance's
//! temporary write buffer, as many as it has room for, under the instance's lock, and reads at once into one of the frames. A background
//! thread of the instance writes the slots, in a batch; while it does, copiers wait (the stalls that are counted). A page asked for
//! again while it lies in a slot is served from there and comes back dirty. Only when nothing could be copied does the thread write a
//! page itself.

use super::spf56::miss;
use super::{Entry, Needs, Taken, VictimStrategy};
use crate::buffer::Pool;
use crate::buffer::instance::Instance;
use crate::error::Result;
use varve_volume::PageId;

/// The strategy's line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "war",
    needs: Needs { scan_per_write: false, asides: true, drainer: true, ..Needs::LEAST },
    make: |_| Box::new(WriteAfterRead),
};

struct WriteAfterRead;

impl VictimStrategy for WriteAfterRead {
    fn take_frame<'a>(&self, pool: &'a Pool, inst: &'a Instance, incoming: PageId) -> Result<Taken<'a>> {
        miss(pool, inst, incoming, |stall| pool.copy_aside(inst, || stall.begin()).map(Taken::from))
    }
}
