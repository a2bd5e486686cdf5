//! Merges that somebody asked for: what a range has on a level goes to the next one.
//!
//! They are done by the thread that does all merges, when level 0 is not in danger, ahead of those that only keep
//! levels within their limits.
//!
//! Invariant: a request that has ended is not listed any more. Lock order: `asked`, then those of a request.

use super::index::{Lsm, Shared};
use super::picker::{self, Class, Leveled, Plan};
use super::{LAST_LEVEL, Version};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_rt::Mutex;

/// One request.
pub(super) struct Request {
    level: usize,
    to: Option<Vec<u8>>,
    /// Where it goes on.
    from: Mutex<Option<Vec<u8>>>,
    ended: Mutex<Option<Result<()>>>,
}

impl Request {
    /// How it ended; none: it did not.
    pub fn result(&self) -> Option<Result<()>> {
        self.ended.lock().clone()
    }
}

/// Requests that wait, the oldest first.
#[derive(Default)]
pub(super) struct Asked(Mutex<VecDeque<Arc<Request>>>);

/// What is done for a request next.
pub(super) struct Next {
    pub plan: Plan,
    request: Arc<Request>,
    more: Option<Vec<u8>>,
}

impl Asked {
    /// The next merge of the oldest request that has one; requests without are done.
    pub fn next(&self, version: &Version) -> Option<Next> {
        let mut asked = self.0.lock();
        while let Some(request) = asked.front().cloned() {
            let from = request.from.lock().clone();
            match picker::manual(version, request.level, from.as_deref(), request.to.as_deref()) {
                Some((plan, more)) => return Some(Next { plan, request, more }),
                None => {
                    asked.pop_front();
                    *request.ended.lock() = Some(Ok(()));
                }
            }
        }
        None
    }

    /// How the merge ended that [`next`](Asked::next) gave.
    pub fn done(&self, next: &Next, result: Result<()>) {
        let over = result.is_err() || next.more.is_none();
        if over {
            self.0.lock().retain(|other| !Arc::ptr_eq(other, &next.request));
            *next.request.ended.lock() = Some(result);
        } else {
            *next.request.from.lock() = next.more.clone();
        }
    }
}

impl Asked {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What goes before all that was asked for fails.
    pub fn fail(&self, error: &Error) {
        for request in std::mem::take(&mut *self.0.lock()) {
            *request.ended.lock() = Some(Err(error.clone()));
        }
    }
}

impl Shared {
    /// The merge that is done next: one that keeps writers from having to wait, one that was asked for, any other.
    pub(super) fn next_merge(&self, shape: &Leveled, version: &Version) -> Option<(Plan, Option<Next>)> {
        if shape.urgency(version) != Some(Class::Stall)
            && let Some(next) = self.asked.next(version)
        {
            return Some((next.plan.clone(), Some(next)));
        }
        // Flash that is worn out keeps what it has for what has to be written.
        self.core.space.check_wear(self.keyspace).ok()?;
        self.picker.lock().pick(shape, version).map(|plan| (plan, None))
    }
}

impl Lsm {
    /// Merges what lies between two keys (both included; none: no bound) on a level into the next one; without a level,
    /// from level 0 on down to the lowest that has segments. What memtables hold is flushed first. `ripen` makes a
    /// checkpoint: before each level, so that the pages that the one before gave up are written again.
    ///
    /// # Errors
    /// `Invalid` for a level that cannot be merged down; what flushes and merges fail with; `Closed`.
    pub(crate) fn compact(
        &self,
        level: Option<u8>,
        (from, to): (Option<&[u8]>, Option<&[u8]>),
        ripen: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let shared = &*self.0;
        if let Some(level) = level.filter(|level| *level >= LAST_LEVEL) {
            let last = LAST_LEVEL - 1;
            return Err(Error::Invalid(format!(
                "level {level}: there is none to merge it into; 0 to {last} are possible"
            )));
        }
        shared.services.flush_older_than(varve_volume::Lsn::MAX)?;
        let mut at = level.unwrap_or(0).into();
        loop {
            let lowest = shared.view().segments.version().last_level().unwrap_or(0);
            if level.is_none() && at >= lowest.max(1) {
                return Ok(());
            }
            ripen()?;
            let (from, to) = (Mutex::new(from.map(<[u8]>::to_vec)), to.map(<[u8]>::to_vec));
            let request = Arc::new(Request { level: at, to, from, ended: Mutex::new(None) });
            shared.asked.0.lock().push_back(request.clone());
            shared.services.wait_until(|| request.result().is_some())?;
            request.result().unwrap_or(Err(Error::Closed))?;
            at += 1;
            if level.is_some() {
                return Ok(());
            }
        }
    }
}
