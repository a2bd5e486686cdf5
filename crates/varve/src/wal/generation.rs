//! Generations: what ties the other devices of a database to its log.
//!
//! Each opening for writing and each checkpoint begins one. It is durable on the other devices before the log's
//! superblock says so, and confirmed there after: `docs/wal.md`, "Identity and generation".
//!
//! Invariants: the number rises by one with each superblock that says so, under the lock `disk`; a generation is
//! confirmed only when it is durable; the data device is told first.

use super::features::IDENTITY;
use super::log::{Disk, Log};
use super::resume::Gap;
use super::superblock::Superblock;
use crate::error::Result;
use std::sync::Arc;
use varve_volume::{Lsn, PageId};

/// Ties the files of a database to each other. Two that bear the same one belong to each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation {
    /// Counts openings for writing and checkpoints; 0: of a release that had none.
    pub number: u64,
    /// Drawn anew at each opening for writing, so that copies of a database that went different ways are told apart.
    pub tie: u64,
}

impl Generation {
    /// The first one of a database.
    pub fn first() -> Generation {
        Generation { number: 1, tie: varve_rt::rng().next_u64() }
    }
}

/// What bears the generation besides the log.
pub trait Companion: Send + Sync {
    /// Notes, durably, that the log is about to say `next`; it says `before`, and all groups that end by `durable` are
    /// durable.
    fn intend(&self, next: Generation, before: Generation, durable: Lsn) -> Result<()>;
    /// Notes, durably, that the log says it.
    fn confirm(&self) -> Result<()>;
    /// The log is about to go on behind `gap`, in an opening whose generations have this tie: [`Companion::intend`]
    /// makes that durable.
    fn opens(&self, _gap: Gap, _tie: u64) {}
}

impl Log {
    /// From here on each generation is told to `companion`, after those before it.
    pub(crate) fn accompany(&self, companion: Arc<dyn Companion>) {
        self.companions.lock().push(companion);
    }

    /// The data device has got its identity, on these pages: begins a generation that says so.
    pub(crate) fn adopt(&self, pages: [PageId; 2], companion: Arc<dyn Companion>) -> Result<()> {
        // No other device is ever ahead of the data device.
        self.companions.lock().insert(0, companion);
        let mut disk = self.disk.lock();
        let mut sb = disk.sb.clone();
        sb.identity = Some(pages);
        sb.features.set(&IDENTITY, true);
        let whole = sb.redo;
        self.store_next_generation(&mut disk, sb, whole)
    }

    /// Makes `sb` the superblock, with the next generation. Every group that begins before `whole` is durable and ends
    /// there or before. (The durable LSN may lie within a group that is written in parts, and that no crash need leave
    /// whole.)
    pub(super) fn store_next_generation(&self, disk: &mut Disk, mut sb: Superblock, whole: Lsn) -> Result<()> {
        assert!(whole <= self.durable_lsn(), "what companions are told of as whole is durable");
        let companions = self.companions.lock().clone();
        let before = disk.sb.generation;
        assert_eq!(sb.generation.number, before.number, "each generation follows the one before");
        sb.generation.number += 1;
        // After a failure nobody knows what is on media.
        let poison = |e: &crate::Error| self.poison(&format!("the generation of a device: {e}"));
        for companion in &companions {
            companion.intend(sb.generation, before, whole).inspect_err(poison)?;
        }
        self.store_superblock(disk, sb)?;
        companions.iter().try_for_each(|companion| companion.confirm().inspect_err(poison))
    }
}
