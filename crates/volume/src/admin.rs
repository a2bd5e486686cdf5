//! What a volume and the database that it belongs to ask of each other besides pages.

use crate::report::{Counted, RegionReport, Resized, TierStats};
use crate::{PageId, VolumeError};
use std::sync::Arc;
use varve_device::Health;

/// Which opening of a database a device was written in last; the database gives it a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Counts openings for writing and checkpoints.
    pub number: u64,
    /// Tells copies of a database apart that went different ways.
    pub tie: u64,
}

/// The database that a volume belongs to.
pub trait Owner: Send + Sync {
    /// What its superblock says of the volume.
    fn record(&self) -> Vec<u8>;
    /// Makes its superblock say something else of the volume, durably.
    fn note(&self, record: Vec<u8>) -> Result<(), VolumeError>;
    /// A write or flush failed that durability rests on: nothing may be promised any more.
    fn broken(&self, cause: &str);
}

/// How a database makes or opens its volume.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Bytes of a page.
    pub page_size: usize,
    /// Bytes at the end of each page that are left alone, for delta records of native flash.
    pub room: usize,
    /// The database's identity, by which the parts know each other.
    pub identity: [u8; 16],
    /// The database's generation by its log.
    pub generation: Stamp,
    /// Nothing may be written.
    pub read_only: bool,
    /// Go on without the parts that can be done without, if nothing is lost with them.
    pub without: bool,
    /// Make a tier on a fast device that the record does not know.
    pub attach: bool,
    /// The database stamps its devices. (Those of older releases did not.)
    pub stamps: bool,
}

/// What a page costs, in the unit of all costs: microseconds, or whatever the operator measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PageCost {
    /// Reading it again.
    pub read: f64,
    /// Writing it.
    pub write: f64,
}

/// What a volume counted, by the parts that it has.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Of a tier.
    pub tier: Option<TierStats>,
    /// Of the regions of native flash.
    pub regions: Vec<RegionReport>,
}

fn no_tier() -> VolumeError {
    VolumeError::Invalid("the database has no tier".into())
}

/// What a database does with its volume as a whole. What a volume has no use for does nothing.
pub trait Admin: Send + Sync {
    /// Cost of a page by [`crate::CostClass`]; one: all cost the same.
    fn costs(&self) -> Vec<PageCost> {
        vec![PageCost::default()]
    }

    /// Bytes of memory that it takes from the cache.
    fn memory(&self) -> usize {
        0
    }

    /// Ties it to its database, and to the health of the database's devices. Before anything below.
    fn belongs_to(&self, _owner: Arc<dyn Owner>, _health: &Arc<Health>) {}

    /// From now on the owner answers for what the volume cannot promise any more.
    fn answers(&self) {}

    /// Starts its threads: recovery has told which pages are free.
    fn start(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Tells its threads to end; waits for none.
    fn end(&self) {}

    /// Ends its threads and waits for them.
    fn stop(&self) {}

    /// Pages whose newest version was not looked at since recovery: it may be torn.
    fn doubtful(&self) -> Vec<PageId> {
        Vec::new()
    }

    /// Whether pages must be moved before work begins ([`Admin::settle`]).
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Moves pages to where the options of now have them. What recovery made anew was written before.
    fn settle(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Whether parts of it bear the database's generation ([`Admin::stamp`]).
    fn is_stamped(&self) -> bool {
        false
    }

    /// The devices bear the generation from now on; before a generation is confirmed.
    fn stamp(&self, _stamp: Stamp) -> Result<(), VolumeError> {
        Ok(())
    }

    /// The devices bear a generation: an opening may rely on it.
    fn note_stamped(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// The database was closed: notes what the next opening is spared thereby.
    fn closed(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Why its last pages cannot be given back, if they cannot.
    fn why_uncut(&self) -> Option<&'static str> {
        None
    }

    /// What it did since it was opened, and what it holds.
    fn report(&self) -> Report {
        Report::default()
    }

    /// What was counted by group and page; for experiments.
    fn counted(&self) -> Counted {
        Counted::default()
    }

    /// Copies home what only a fast device has; the pages keep their places there.
    fn all_home(&self) -> Result<(), VolumeError> {
        Err(no_tier())
    }

    /// Makes the fast part as large as fits `bytes`, while work goes on.
    fn resize(&self, _bytes: u64) -> Result<Resized, VolumeError> {
        Err(no_tier())
    }
}
