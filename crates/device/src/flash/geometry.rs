//! The shape of a flash device, and the cell modes with their rules.
//!
//! Blocks are numbered through the whole device: the blocks of one plane follow each other, the planes of one chip too.
//! Chip c sits on channel c mod channels, so that neighbouring chips do not share a bus.

use super::FlashError;
use std::fmt;

/// Channels x chips per channel x planes x blocks x pages x (page bytes + spare bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Geometry {
    /// Buses.
    pub channels: u32,
    /// Chips on each bus.
    pub chips_per_channel: u32,
    /// Planes of a chip.
    pub planes: u32,
    /// Blocks of a plane.
    pub blocks_per_plane: u32,
    /// Pages of a block, those that a cell mode leaves unused included.
    pub pages_per_block: u32,
    /// Data bytes of a page: a power of two.
    pub page_bytes: u32,
    /// Spare bytes of a page.
    pub spare_bytes: u32,
}

/// Least bytes of a page's spare area: what the translation layer writes there.
pub const LEAST_SPARE: u32 = 16;

impl Geometry {
    /// Chips of the device.
    pub fn chips(&self) -> u32 {
        self.channels * self.chips_per_channel
    }

    /// Planes of the device.
    pub fn all_planes(&self) -> u32 {
        self.chips() * self.planes
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.all_planes() * self.blocks_per_plane
    }

    /// Blocks of a chip.
    pub fn blocks_per_chip(&self) -> u32 {
        self.planes * self.blocks_per_plane
    }

    /// The plane (of the device) that a block is in.
    pub fn plane_of(&self, block: u32) -> u32 {
        debug_assert!(block < self.blocks());
        block / self.blocks_per_plane
    }

    /// The chip that a block is in.
    pub fn chip_of(&self, block: u32) -> u32 {
        debug_assert!(block < self.blocks());
        block / self.blocks_per_chip()
    }

    /// The channel that a chip is on.
    pub fn channel_of(&self, chip: u32) -> u32 {
        debug_assert!(chip < self.chips());
        chip % self.channels
    }

    /// Refuses shapes that nothing can be built of.
    pub fn validate(&self) -> Result<(), FlashError> {
        let counts = [
            ("geometry.channels", self.channels),
            ("geometry.chips_per_channel", self.chips_per_channel),
            ("geometry.planes", self.planes),
            ("geometry.blocks_per_plane", self.blocks_per_plane),
        ];
        for (field, value) in counts {
            if value == 0 || value > 1 << 20 {
                return Err(FlashError::config(field, value, "1 to 1048576"));
            }
        }
        if !(2..=4096).contains(&self.pages_per_block) {
            return Err(FlashError::config("geometry.pages_per_block", self.pages_per_block, "2 to 4096"));
        }
        if !self.page_bytes.is_power_of_two() || !(512..=1 << 20).contains(&self.page_bytes) {
            let accepted = "a power of two from 512 to 1048576";
            return Err(FlashError::config("geometry.page_bytes", self.page_bytes, accepted));
        }
        if self.spare_bytes < LEAST_SPARE || self.spare_bytes > self.page_bytes {
            let accepted = "at least 16 (the translation layer keeps 16 bytes there), at most a page";
            return Err(FlashError::config("geometry.spare_bytes", self.spare_bytes, accepted));
        }
        let factors = [self.channels, self.chips_per_channel, self.planes, self.blocks_per_plane, self.pages_per_block];
        let pages = factors.iter().try_fold(1_u32, |n, f| n.checked_mul(*f));
        if pages.is_none_or(|n| n == u32::MAX) {
            let product = factors.iter().map(|f| f64::from(*f)).product::<f64>();
            return Err(FlashError::config("geometry", format!("{product} pages"), "fewer than 2^32 - 1 pages in all"));
        }
        Ok(())
    }
}

/// How the cells are used: which pages exist, how fast they are, and which take appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum CellMode {
    /// One bit per cell: all pages, appends on all.
    Slc,
    /// Two bits: LSB and MSB pages, no appends.
    Mlc,
    /// Two bits, and appends on the LSB pages (every second page).
    OddMlc,
    /// Two-bit cells used with one bit: LSB pages only, half the capacity, appends on all of them.
    Pslc,
    /// Three bits: no appends.
    Tlc,
    /// Four bits: no appends.
    Qlc,
}

impl fmt::Display for CellMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CellMode::Slc => "SLC",
            CellMode::Mlc => "MLC",
            CellMode::OddMlc => "odd-MLC",
            CellMode::Pslc => "pSLC",
            CellMode::Tlc => "TLC",
            CellMode::Qlc => "QLC",
        })
    }
}

impl CellMode {
    /// Page types, from the fastest to the slowest; the timing table has an entry for each.
    pub fn page_types(self) -> usize {
        match self {
            CellMode::Slc | CellMode::Pslc => 1,
            CellMode::Mlc | CellMode::OddMlc => 2,
            CellMode::Tlc => 3,
            CellMode::Qlc => 4,
        }
    }

    /// The type of a page of a block of `pages`: 0 = LSB. Two-bit cells follow the common shared-page order, in which
    /// an MSB page's LSB partner comes three pages before it: pages 0, 1, 3, 5, .. are LSB, 2, 4, 6, .. and the last
    /// are MSB.
    pub fn page_type(self, page: u32, pages: u32) -> usize {
        debug_assert!(page < pages, "a page of the block");
        match self {
            CellMode::Slc => 0,
            CellMode::Mlc | CellMode::OddMlc | CellMode::Pslc => {
                let lsb = page == 0 || page % 2 == 1 && page + 1 != pages;
                usize::from(!lsb)
            }
            CellMode::Tlc => page as usize % 3,
            CellMode::Qlc => page as usize % 4,
        }
    }

    /// Whether the mode uses the page at all.
    pub fn uses(self, page: u32, pages: u32) -> bool {
        self != CellMode::Pslc || self.page_type(page, pages) == 0
    }

    /// Whether a programmed page can be appended to.
    pub fn appends(self, page: u32, pages: u32) -> bool {
        match self {
            CellMode::Slc | CellMode::Pslc => true,
            CellMode::OddMlc => self.page_type(page, pages) == 0,
            CellMode::Mlc | CellMode::Tlc | CellMode::Qlc => false,
        }
    }

    /// The pages that the mode uses, in the order in which they are programmed.
    pub fn used_pages(self, pages: u32) -> Vec<u32> {
        (0..pages).filter(|p| self.uses(*p, pages)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_msb_page_comes_three_pages_after_its_partner() {
        let lsb: Vec<u32> = (0..128).filter(|p| CellMode::Mlc.page_type(*p, 128) == 0).collect();
        assert_eq!(lsb.len(), 64);
        assert_eq!(lsb[..5], [0, 1, 3, 5, 7]);
        for msb in (4..127).step_by(2) {
            assert_eq!(CellMode::Mlc.page_type(msb, 128), 1);
            assert_eq!(CellMode::Mlc.page_type(msb - 3, 128), 0, "the partner of MSB page {msb}");
        }
        assert_eq!(CellMode::Pslc.used_pages(128), lsb);
        assert_eq!(CellMode::Mlc.page_type(127, 128), 1);
    }
}
