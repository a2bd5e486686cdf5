//! Zstandard, in builds that have it: the feature `zstd`, which brings a library in C. Other builds refuse what needs
//! it, by name.

use crate::error::{Error, Result};

/// Whether this build has it.
pub(crate) const PRESENT: bool = cfg!(feature = "zstd");

/// Fails in a build without it; `what` needs it.
pub(crate) fn require(what: &str) -> Result<()> {
    match PRESENT {
        true => Ok(()),
        false => Err(Error::NotBuilt { what: what.to_string(), feature: "zstd" }),
    }
}

/// As one frame; `None` when there is no memory for it.
#[cfg(feature = "zstd")]
pub(crate) fn compress(raw: &[u8], level: i32) -> Option<Vec<u8>> {
    zstd::bulk::compress(raw, level).ok()
}

/// What one frame holds, `len` bytes at most.
#[cfg(feature = "zstd")]
pub(crate) fn decompress(frame: &[u8], len: usize) -> Option<Vec<u8>> {
    let raw = zstd::bulk::decompress(frame, len).ok()?;
    assert!(raw.len() <= len, "no more comes out than was asked for");
    Some(raw)
}

/// Nothing is compressed here.
#[cfg(not(feature = "zstd"))]
pub(crate) fn compress(_raw: &[u8], _level: i32) -> Option<Vec<u8>> {
    None
}

/// Nothing is read here.
#[cfg(not(feature = "zstd"))]
pub(crate) fn decompress(_frame: &[u8], _len: usize) -> Option<Vec<u8>> {
    None
}
