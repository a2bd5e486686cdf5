//! The seam through which page bytes change, whoever lays them out.

/// What page changes go through. Offsets count from the page's start and never lie inside the page header.
pub(crate) trait PageEdit {
    /// The page as it is now.
    fn bytes(&self) -> &[u8];
    /// Overwrites bytes.
    fn write(&mut self, at: usize, bytes: &[u8]);
    /// Moves `len` bytes from one place to another; they may overlap.
    fn shift(&mut self, from: usize, to: usize, len: usize);
    /// Rewrites the page freely; it is logged whole.
    fn image(&mut self, f: impl FnOnce(&mut [u8]));
}
