//! Moving pages with their appends: merged into the page, or taken along as they are.

use super::{Ftl, NONE, SPARE, Source, UNKNOWN};
use varve_device::flash::{Contents, FlashArray, FlashError};

impl<A: FlashArray> Ftl<A> {
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
        if !self.config.merge_appends {
            self.array.read(at, self.address(from), &mut [], &mut spare)?;
            let programs = self.place(at, pool, front, lpn, Source::Copy(from, &spare[SPARE..]))?.1;
            self.keep_appends(lpn, deltas);
            return Ok(programs);
        }
        let mut page = vec![0; self.array.geometry().page_bytes as usize];
        let read = self.array.read(at, self.address(from), &mut page, &mut spare)?;
        let len = appends.merge(&mut page, &spare);
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
