//! In-place appends: more bits of a page that was programmed before.

use super::Nand;
use crate::flash::journal::Undo;
use crate::flash::store::PageBytes;
use crate::flash::{Contents, FlashError, Page, Span};
use std::sync::Arc;

impl Nand {
    /// Programs more bits of a page that was programmed before: `data` at `offset`, `spare` at `spare_offset`. Every
    /// bit must be 1 before or stay 0.
    pub fn append(
        &mut self,
        at: u64,
        page: Page,
        (offset, data): (usize, &[u8]),
        (spare_offset, spare): (usize, &[u8]),
    ) -> Result<Span, FlashError> {
        self.exists(page)?;
        self.fits((offset, data.len()), (spare_offset, spare.len()))?;
        let Page { block, page: in_block } = page;
        self.may_append(page)?;
        let number = self.number(page);
        let mut changed = None;
        if self.contents != Contents::Nothing {
            let old = self.store.0.get(number).ok_or(FlashError::Uncorrectable { block, page: in_block })?;
            let area = self.geometry.page_bytes;
            let sets = |byte: usize| FlashError::SetsBits { block, page: in_block, byte: byte as u32 };
            let new_data = old.data.as_deref().map(|b| clear_bits(b, offset, data)).transpose().map_err(sets)?;
            let new_spare = clear_bits(&old.spare, spare_offset, spare).map_err(|byte| sets(byte + area as usize))?;
            changed = Some((old, PageBytes { data: new_data, spare: new_spare }));
        }
        if self.appended.is_empty() {
            self.appended = vec![0; self.blocks.len() * self.geometry.pages_per_block as usize];
        }
        self.appended[number as usize] += 1;
        assert!(self.programs_of(page) <= u32::from(self.nop), "a page takes so many programs and no more");
        self.counts.appends += 1;
        let span = self.spend_array(at, page, data.len() + spare.len());
        if let Some((old, new)) = changed {
            self.store.0.set(number, Some(new));
            self.journal.push(span, Undo::Append(page, old));
        }
        Ok(span)
    }

    /// Checks that the page takes another append.
    pub fn may_append(&self, at: Page) -> Result<(), FlashError> {
        let Page { block, page } = at;
        let mode = self.used_as(block);
        if self.blocks[block as usize].bad {
            return Err(FlashError::BadBlock { block });
        }
        if !self.uses(at) {
            return Err(FlashError::PageNotUsed { block, page, mode });
        }
        if self.is_slc(block) || !mode.appends(page, self.geometry.pages_per_block) {
            return Err(FlashError::AppendNotAllowed { block, page, mode });
        }
        match self.programs_of(at) {
            0 => Err(FlashError::NotProgrammed { block, page }),
            n if n >= u32::from(self.nop) => Err(FlashError::TooManyPrograms { block, page, nop: self.nop }),
            _ => Ok(()),
        }
    }
}

/// `old` with `new` programmed over it at `offset`; the offending byte if a bit would have to become 1.
fn clear_bits(old: &[u8], offset: usize, new: &[u8]) -> Result<Arc<[u8]>, usize> {
    let mut bytes = old.to_vec();
    bytes.resize(old.len().max(offset + new.len()), 0xff);
    for (i, byte) in new.iter().enumerate() {
        let place = &mut bytes[offset + i];
        if byte & !*place != 0 {
            return Err(offset + i);
        }
        *place = *byte;
    }
    Ok(bytes.into())
}
