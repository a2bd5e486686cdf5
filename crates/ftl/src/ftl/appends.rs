//! In-place appends: how many a page has and takes, and moving pages with theirs: merged into the page, or taken along
//! as they are.
//!
//! Invariant: `deltas` of a physical page is not less than the appends that it has, or [`UNKNOWN`].

use super::{Ftl, NONE, SPARE, Source};
use std::sync::Arc;
use varve_device::flash::{Contents, FlashArray, FlashError, Page, Span};

/// The appends of a page that nobody has read since a recovery.
pub(super) const UNKNOWN: u8 = u8::MAX;

/// How a host lays out the appends of its pages: what collection must know to keep them.
pub trait Appends: Send + Sync {
    /// Bytes of the spare area that are in use, those of the translation layer included.
    fn spare_bytes(&self) -> usize;

    /// Makes of a page as it was read, and its spare area, what it is with its appends; gives how many of its bytes are
    /// to be programmed, so that the rest takes appends again.
    fn merge(&self, page: &mut [u8], spare: &[u8]) -> usize;
}

impl<A: FlashArray> Ftl<A> {
    /// Says how the host lays out its appends, so that collection can keep them. To be called before anything is
    /// written where contents are kept and appends are on.
    pub fn lays_out(&mut self, appends: Arc<dyn Appends>) {
        assert!(self.config.append_slots > 0, "a host that appends has slots for it");
        self.appends = Some(appends);
    }

    /// How many appends the page has that a logical page is on, if it takes another one; `None`: it must be written
    /// anew (never written, all slots used, not known since a recovery, or the physical page takes no appends).
    pub fn takes_append(&self, lpn: u64) -> Option<u8> {
        let ppn = *self.map.get(lpn as usize)?;
        let used = *self.deltas.get(ppn as usize)?;
        assert_eq!(self.owner[ppn as usize], lpn as u32, "a page is appended to where it is");
        let has_slot = used < self.config.append_slots && !self.worn_out;
        (has_slot && self.array.may_append(self.address(ppn)).is_ok()).then_some(used)
    }

    /// Appends to a logical page in place: bytes at an offset of its data, and of its spare area, behind what
    /// the translation layer has there. An error if it must be written anew, or the array refuses. The time is that of
    /// the program.
    pub fn append(
        &mut self,
        at: u64,
        lpn: u64,
        data: (usize, &[u8]),
        spare: (usize, &[u8]),
    ) -> Result<Span, FlashError> {
        self.check(lpn)?;
        let ppn = self.map[lpn as usize];
        if ppn == NONE {
            return Err(FlashError::NotProgrammed { block: NONE, page: NONE });
        }
        let page = self.address(ppn);
        let used = self.deltas.get(ppn as usize).copied().unwrap_or(self.config.append_slots);
        if used >= self.config.append_slots {
            return Err(FlashError::TooManyPrograms { block: page.block, page: page.page, nop: used });
        }
        debug_assert!(spare.1.is_empty() || spare.0 >= SPARE, "the translation layer's own bytes are programmed");
        let appended = self.array.append(at, page, data, spare);
        // What was refused is not tried in place again: nobody knows what is there.
        self.deltas[ppn as usize] = if appended.is_ok() { used + 1 } else { self.config.append_slots };
        let span = appended?;
        self.stats.clock += 1;
        self.stats.host_appends += 1;
        self.blocks[page.block as usize].settled = self.blocks[page.block as usize].settled.max(span.end);
        Ok(span)
    }

    /// Whether nobody has counted the appends of a logical page since a recovery.
    pub fn appends_unknown(&self, lpn: u64) -> bool {
        self.map.get(lpn as usize).and_then(|ppn| self.deltas.get(*ppn as usize)) == Some(&UNKNOWN)
    }

    /// Somebody read the page at `from`, where a logical page was: it had so many appends. What became known or moved
    /// meanwhile stays as it is.
    pub fn found_appends(&mut self, lpn: u64, from: Page, appends: u8) {
        assert!(lpn < self.logical, "a page that was read is there");
        if self.appends_unknown(lpn) && self.locate(lpn) == Some(from) {
            self.deltas[self.map[lpn as usize] as usize] = appends.min(self.config.append_slots);
        }
    }

    /// Moves a page that has an owner to the open block at `front`; gives the number of programs that it took.
    pub(super) fn move_page(&mut self, at: u64, pool: usize, front: usize, from: u32) -> Result<u64, FlashError> {
        let lpn = self.owner[from as usize];
        assert_ne!(lpn, NONE, "a page that is moved is somebody's");
        let deltas = self.deltas.get(from as usize).copied().unwrap_or(0);
        let counted = self.array.contents() == Contents::Nothing;
        if deltas == 0 || counted {
            let programs = self.place(at, pool, front, lpn, Source::Copy(from, &[]))?.1;
            self.keep_appends(lpn, deltas);
            return Ok(programs);
        }
        let appends = self.appends.clone().expect("who appends says how it lays that out");
        let mut spare = vec![0; appends.spare_bytes()];
        assert!(spare.len() >= SPARE, "the translation layer's own bytes come first");
        if !self.config.merge_appends {
            let read = self.array.read_to_move(at, self.address(from), &mut [], &mut spare)?;
            let programs = self.place(read.end, pool, front, lpn, Source::Copy(from, &spare[SPARE..]))?.1;
            self.keep_appends(lpn, deltas);
            return Ok(programs);
        }
        let mut page = vec![0; self.array.geometry().page_bytes as usize];
        let read = self.array.read_to_move(at, self.address(from), &mut page, &mut spare)?;
        let len = appends.merge(&mut page, &spare);
        assert!(len <= page.len(), "a merged page is no longer than a page");
        self.stats.merged += u64::from(deltas != UNKNOWN);
        Ok(self.place(read.end, pool, front, lpn, Source::Host(Some(&page[..len])))?.1)
    }

    /// A page that was moved as it was has as many appends as before.
    fn keep_appends(&mut self, lpn: u32, deltas: u8) {
        if deltas > 0 && !self.config.merge_appends {
            self.deltas[self.map[lpn as usize] as usize] = deltas;
        }
    }
}
