//! How one memory figure is divided: the pool gets what the other classes do not need.

use crate::budget::{CLASSES, Class};
use crate::buffer::PoolConfig;
use crate::error::Result;
use varve_device::DeviceError;

/// The division of `Options::cache_bytes`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// The pool that fits.
    pub pool: PoolConfig,
    /// Log buffer, bytes, a power of two.
    pub log_buffer: u64,
    /// Limits per class, in the order of [`CLASSES`].
    pub limits: [u64; CLASSES.len()],
}

/// Fails when the machine has not so much memory. (The system may grant it all the same, and end the process when it is
/// used.)
pub(crate) fn check(cache_bytes: u64) -> Result<()> {
    let there = if varve_rt::in_simulation() { None } else { varve_device::physical_memory() };
    match there {
        Some(there) if cache_bytes > there => {
            Err(DeviceError::no_memory(cache_bytes, &format!("the cache: the machine has {there}")).into())
        }
        _ => Ok(()),
    }
}

/// Divides `cache_bytes` for pages of `page_size` bytes.
pub(crate) fn plan(cache_bytes: u64, page_size: usize) -> Plan {
    let log_buffer = prev_power_of_two(cache_bytes / 16).clamp(64 << 10, 16 << 20);
    let locks = (cache_bytes / 16).clamp(64 << 10, 256 << 20);
    let write_sets = (cache_bytes / 16).clamp(128 << 10, 1 << 30);
    let versions = (cache_bytes / 16).clamp(64 << 10, 1 << 30);
    let others = log_buffer + locks + write_sets + versions;
    let pool = PoolConfig::with_memory(page_size, cache_bytes.saturating_sub(others) as usize);
    let (frames, staging) = ((pool.frames * page_size) as u64, (pool.staging_pages * page_size) as u64);
    let mut limits = [0; CLASSES.len()];
    for (class, bytes) in [
        (Class::Frames, frames),
        (Class::PageTable, pool.memory_bytes() as u64 - frames - staging),
        (Class::Staging, staging),
        (Class::LogBuffers, log_buffer),
        (Class::Locks, locks),
        (Class::WriteSets, write_sets),
        (Class::Versions, versions),
    ] {
        limits[class as usize] = bytes;
    }
    Plan { pool, log_buffer, limits }
}

fn prev_power_of_two(n: u64) -> u64 {
    if n == 0 { 0 } else { 1 << (63 - n.leading_zeros()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_whole_and_most_goes_to_frames() {
        for mb in [4u64, 16, 100, 1024, 16384] {
            for page in [4096, 8192, 16384] {
                let p = plan(mb << 20, page);
                let sum: u64 = p.limits.iter().sum();
                assert!(sum <= mb << 20, "{mb} MiB, pages of {page}: {sum}");
                assert!(p.limits[Class::Frames as usize] >= (mb << 20) * 6 / 10, "{mb} MiB, pages of {page}: {p:?}");
                assert!(p.log_buffer.is_power_of_two());
            }
        }
    }

    #[test]
    fn the_smallest_cache_still_has_frames() {
        assert!(plan(crate::db::MIN_CACHE_BYTES, 16384).pool.frames >= 16);
    }
}
