//! Some chips of an array as an array of their own: what a region of native flash owns.
//!
//! Blocks are numbered through the chips in the order in which they are listed. Whoever drives the part cannot name a
//! block of another chip, so two parts that share no chip do not touch each other.
//!
//! Invariant: a block of the part is a block of a listed chip, and of no other.

use varve_device::flash::{CellMode, Contents, FlashArray, FlashError, Geometry, Page, Span};

/// Chips of `A`, which is a handle on an array that several parts may share.
#[derive(Clone)]
pub struct Chips<A> {
    array: A,
    chips: Vec<u32>,
    geometry: Geometry,
}

impl<A: FlashArray> Chips<A> {
    /// These chips of an array. Refuses chips that there are not, one named twice, and cells used in different ways.
    pub fn new(array: A, chips: &[u32]) -> Result<Chips<A>, FlashError> {
        let whole = array.geometry();
        let err = |value: u32, accepted: String| Err(FlashError::config("chips", value, accepted));
        let Some(first) = chips.first() else { return err(0, "at least one chip".into()) };
        for (i, chip) in chips.iter().enumerate() {
            if *chip >= whole.chips() {
                return err(*chip, format!("chips 0 to {}", whole.chips() - 1));
            }
            if chips[..i].contains(chip) {
                return err(*chip, "each chip once".into());
            }
            if array.mode(*chip) != array.mode(*first) {
                return err(*chip, format!("chips in one mode: chip {first} is in {} mode", array.mode(*first)));
            }
        }
        let geometry = Geometry { channels: 1, chips_per_channel: chips.len() as u32, ..whole };
        assert_eq!(geometry.blocks_per_chip(), whole.blocks_per_chip(), "a chip has as many blocks in a part");
        Ok(Chips { array, chips: chips.to_vec(), geometry })
    }

    /// The whole array.
    pub fn array(&self) -> &A {
        &self.array
    }

    /// The same, for what is not about single chips.
    pub fn array_mut(&mut self) -> &mut A {
        &mut self.array
    }

    /// The array's number of a block of the part.
    #[inline]
    fn block(&self, block: u32) -> u32 {
        let per = self.geometry.blocks_per_chip();
        let chip = self.chips.get((block / per) as usize).expect("a block of the part");
        debug_assert!(block < self.geometry.blocks(), "a block of the part");
        chip * per + block % per
    }

    #[inline]
    fn page(&self, at: Page) -> Page {
        Page { block: self.block(at.block), page: at.page }
    }
}

impl<A: FlashArray> FlashArray for Chips<A> {
    #[inline]
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn mode(&self, chip: u32) -> CellMode {
        self.array.mode(self.chips[chip as usize])
    }

    fn contents(&self) -> Contents {
        self.array.contents()
    }

    fn set_reliable(&mut self, blocks: Vec<u32>) {
        let blocks = blocks.into_iter().map(|b| self.block(b)).collect();
        self.array.set_reliable(blocks);
    }

    fn is_alive(&self) -> bool {
        self.array.is_alive()
    }

    fn is_bad(&self, block: u32) -> bool {
        self.array.is_bad(self.block(block))
    }

    fn mark_bad(&mut self, block: u32) {
        self.array.mark_bad(self.block(block));
    }

    fn is_torn(&self, block: u32) -> bool {
        self.array.is_torn(self.block(block))
    }

    fn erases(&self, block: u32) -> u32 {
        self.array.erases(self.block(block))
    }

    fn reads_since_erase(&self, block: u32) -> u32 {
        self.array.reads_since_erase(self.block(block))
    }

    fn next_page(&self, block: u32) -> u32 {
        self.array.next_page(self.block(block))
    }

    fn read(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        self.array.read(at, self.page(page), data, spare)
    }

    fn read_to_move(&mut self, at: u64, page: Page, data: &mut [u8], spare: &mut [u8]) -> Result<Span, FlashError> {
        self.array.read_to_move(at, self.page(page), data, spare)
    }

    fn read_spares(&mut self, at: u64, pages: &[Page], spares: &mut [u8]) -> Vec<Result<Span, FlashError>> {
        let pages: Vec<Page> = pages.iter().map(|page| self.page(*page)).collect();
        self.array.read_spares(at, &pages, spares)
    }

    fn sense(&mut self, at: u64, page: Page, bytes: usize) -> Result<Span, FlashError> {
        self.array.sense(at, self.page(page), bytes)
    }

    fn program(&mut self, at: u64, page: Page, data: &[u8], spare: &[u8]) -> Result<Span, FlashError> {
        self.array.program(at, self.page(page), data, spare)
    }

    fn append(&mut self, at: u64, page: Page, data: (usize, &[u8]), spare: (usize, &[u8])) -> Result<Span, FlashError> {
        self.array.append(at, self.page(page), data, spare)
    }

    fn may_append(&self, page: Page) -> Result<(), FlashError> {
        self.array.may_append(self.page(page))
    }

    fn copy(&mut self, at: u64, from: Page, to: Page, spare: &[u8]) -> Result<Span, FlashError> {
        self.array.copy(at, self.page(from), self.page(to), spare)
    }

    fn erase(&mut self, at: u64, block: u32) -> Result<Span, FlashError> {
        self.array.erase(at, self.block(block))
    }

    fn idle_at(&self) -> u64 {
        self.array.idle_at()
    }

    fn forget_data(&mut self, page: Page) {
        self.array.forget_data(self.page(page));
    }

    fn forgets(&self) -> bool {
        self.array.forgets()
    }
}
