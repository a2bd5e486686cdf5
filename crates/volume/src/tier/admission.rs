//! Clean pages on their way to the fast device: staged in memory, or written at once.

use super::Tier;
use super::admit::{Admission, Part, Staged};
use super::manager::Refusal;
use super::slots::SlotState;
use crate::{PageId, page};
use std::sync::Arc;
use varve_device::{AlignedBuf, write_at};

impl Tier {
    /// Stages a clean page that the manager wants. True when it was taken.
    pub(super) fn admit_clean(&self, page: PageId, bytes: &[u8], evicted: bool) -> bool {
        let now = varve_rt::now().as_nanos();
        let (lsn, keyspace) = (page::lsn(bytes), page::keyspace(bytes));
        let slot = {
            let mut state = self.state.lock();
            if state.staging >= self.options.staging_pages && !self.options.sync_admit {
                state.refuse(Refusal::Staging);
                return false;
            }
            let offered = state.offer(self.offer_of(page, keyspace, false, evicted, now), self.page_size as u64);
            self.wake(&state);
            let Ok(slot) = offered else { return false };
            state.enter(slot, page, SlotState::Clean, lsn, now);
            state.counters.clean_admitted += 1;
            state.staging += 1;
            state.staged.insert(page, Staged { slot, bytes: None });
            slot
        };
        let mut copy = AlignedBuf::new(bytes.len());
        copy.copy_from_slice(bytes);
        page::seal(&mut copy, page);
        let copy = Arc::new(copy);
        if self.options.sync_admit {
            return self.admit_now(Admission { page, slot, bytes: copy });
        }
        let mut state = self.state.lock();
        // If it was dropped meanwhile, the writer finds that out.
        if let Some(staged) = state.staged.get_mut(&page).filter(|s| s.slot == slot) {
            staged.bytes = Some(copy.clone());
        }
        state.queue.push_back(Admission { page, slot, bytes: copy });
        drop(state);
        self.to_admit.set();
        true
    }

    /// Writes an admitted page to its slot and waits. True when it is there.
    fn admit_now(&self, Admission { page, slot, bytes }: Admission) -> bool {
        let part = self.part();
        let at = part.as_ref().map(|part| (part, part.at(slot)));
        let current = self.state.lock().staged.get(&page).is_some_and(|s| s.slot == slot);
        let write = |(part, at): (&Arc<Part>, u64)| write_at(&*part.device, at, &bytes, false);
        let done = at.filter(|_| current).map(write);
        let mut state = self.state.lock();
        state.unstage();
        let well = matches!(done, Some(Ok(())));
        match &done {
            Some(_) => state.slots.end_write(slot, well),
            None => state.slots.call_off(slot),
        }
        match &done {
            Some(Ok(())) => state.fast_worked(),
            Some(Err(e)) => state.fast_failed(e),
            None => {}
        }
        if state.staged.get(&page).is_some_and(|s| s.slot == slot) {
            state.staged.remove(&page);
            if !well {
                state.drop_slot(slot, false, varve_rt::now().as_nanos());
            }
        }
        well
    }
}
