//! What trees and transactions share: the kernel below, the space manager, the gate of direct pages and the marks of
//! lost writes.
//!
//! Lock order, outermost first: key and interval locks; the gate of direct pages (`direct.rs`); inner-node latches,
//! top down; leaf latches in (keyspace, key) order; space-map latches in page order; the log's reservation.
//! Pool-instance locks are leaves of this order and are never held during device I/O.

use super::Space;
use super::direct::Links;
use super::lost_writes::LostWrites;
use crate::page::Kernel;
use std::ops::Deref;
use std::sync::Arc;

/// The engine below trees and transactions. What the kernel has, it has too.
pub(crate) struct Core {
    kernel: Kernel,
    pub space: Space,
    pub links: Links,
    /// With `detect_lost_writes`.
    pub lost_writes: Option<Arc<LostWrites>>,
}

impl Core {
    /// Puts the parts together.
    pub fn new(kernel: Kernel, space: Space, lost_writes: Option<Arc<LostWrites>>) -> Core {
        Core { kernel, space, links: Links::default(), lost_writes }
    }
}

impl Deref for Core {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}
