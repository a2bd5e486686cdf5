//! How one memory figure is divided: the pool gets what the other classes do not need.

use super::Inner;
use crate::budget::{Budget, CLASSES, Class};
use crate::buffer::PoolConfig;
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_device::{DeviceError, MemoryLimit};
use varve_rt::atomic::Ordering;

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

impl Plan {
    /// The budget by which the plan is kept; what is taken whole is charged already.
    pub fn budget(&self) -> Result<Arc<Budget>> {
        let budget = Arc::new(Budget::new(self.limits));
        for class in [Class::Frames, Class::PageTable, Class::Staging, Class::LogBuffers] {
            budget.charge(class, self.limits[class as usize])?;
        }
        Ok(budget)
    }
}

/// Least memory a database can be opened with, bytes.
pub const MIN_CACHE_BYTES: u64 = 1 << 20;

/// How much memory a database takes, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cache {
    pub bytes: u64,
    /// What it is a quarter of; none: it was asked for.
    quarter_of: Option<MemoryLimit>,
}

/// What an unset size comes to where the system says nothing of memory, and in simulations, which must not depend on
/// it.
const UNKNOWN: u64 = 256 << 20;

impl Cache {
    /// Unset (0): a quarter of the memory that the process may have.
    ///
    /// # Errors
    /// `Resources` when more is asked for than there is (the system might grant it all the same, and end the process
    /// when it is used); `Invalid` when it is less than a database works with.
    pub fn of(asked: u64) -> Result<Cache> {
        let limit = if varve_rt::in_simulation() { None } else { varve_device::memory_limit() };
        Cache::within(asked, limit)
    }

    fn within(asked: u64, limit: Option<MemoryLimit>) -> Result<Cache> {
        assert!(limit.is_none_or(|limit| limit.bytes > 0), "a process has some memory");
        let there = limit.map_or(u64::MAX, |limit| limit.bytes);
        match asked {
            0 => {
                let bytes = limit.map_or(UNKNOWN, |limit| (limit.bytes / 4).max(MIN_CACHE_BYTES));
                Ok(Cache { bytes, quarter_of: limit })
            }
            1..MIN_CACHE_BYTES => Err(Error::Invalid(format!(
                "cache of {asked} bytes: give 1 MiB at least, or 0 for a quarter of the memory that there is"
            ))),
            _ if asked > there => {
                let who = match limit.is_some_and(|limit| limit.lowered) {
                    true => "the process's control group, or `ulimit`, allows it",
                    false => "the machine has",
                };
                Err(DeviceError::no_memory(asked, &format!("the cache: {who} {there}")).into())
            }
            bytes => Ok(Cache { bytes, quarter_of: None }),
        }
    }

    /// Where the size comes from, in words.
    pub fn source(&self) -> String {
        match self.quarter_of {
            Some(limit) => {
                let who = if limit.lowered {
                    "its control group, or `ulimit`, allows the process"
                } else {
                    "the machine has"
                };
                format!("a quarter of what {who}")
            }
            None => "as asked".into(),
        }
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
    let staging = ((pool.staging_pages + pool.read_ahead.in_flight) * page_size) as u64;
    let frames = (pool.frames * page_size) as u64;
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

/// See [`Db::set_cache_bytes`](super::Db::set_cache_bytes). Frames alone come and go.
pub(super) fn resize(inner: &Inner, bytes: u64) -> Result<()> {
    inner.txns.live()?;
    let (pool, most) = (&inner.core.pool, inner.cache.bytes);
    let page = pool.page_size() as u64;
    let frames_of = |bytes: u64, others: u64| ((bytes - others) / page) as usize;
    let others = most.saturating_sub(pool.config().frames as u64 * page);
    let least = others + pool.least_frames() as u64 * page;
    let bytes = if bytes == 0 { most } else { bytes };
    if !(least..=most).contains(&bytes) {
        return Err(Error::Invalid(format!(
            "cache of {bytes} bytes: this database was opened with {most}, and may have {least} to {most} now; to give \
             it more, open it with a larger cache"
        )));
    }
    let frames = if bytes == most { pool.config().frames } else { frames_of(bytes, others) };
    let resized = pool.resize(frames.clamp(pool.least_frames(), pool.config().frames));
    // What it came to, also when two ask at a time, or not all could be done.
    let now = pool.capacity_frames() as u64 * page;
    inner.core.budget.resize(Class::Frames, now);
    inner.cache_now.store((others + now).min(most), Ordering::Release);
    resized
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
    fn unset_it_is_a_quarter_of_what_there_is() {
        let limit = |bytes, lowered| Some(MemoryLimit { bytes, lowered });
        let of = |asked, limit| Cache::within(asked, limit).map(|cache| (cache.bytes, cache.source()));
        assert_eq!(of(0, limit(8 << 30, false)).unwrap(), (2 << 30, "a quarter of what the machine has".into()));
        let (bytes, source) = of(0, limit(512 << 20, true)).unwrap();
        assert_eq!((bytes, source.contains("control group")), (128 << 20, true));
        assert_eq!(of(0, limit(1 << 20, true)).unwrap().0, MIN_CACHE_BYTES);
        assert_eq!(of(0, None).unwrap().0, UNKNOWN);
        assert_eq!(of(64 << 20, limit(8 << 30, false)).unwrap(), (64 << 20, "as asked".into()));
        let more = of(1 << 30, limit(512 << 20, true)).unwrap_err().to_string();
        assert!(more.contains("control group") && more.contains("536870912") && more.contains("smaller"), "{more}");
        assert!(of(1 << 40, limit(8 << 30, false)).unwrap_err().to_string().contains("the machine has"));
        assert!(matches!(of(1000, None), Err(Error::Invalid(_))));
    }

    #[test]
    fn the_smallest_cache_still_has_frames() {
        assert!(plan(crate::db::MIN_CACHE_BYTES, 16384).pool.frames >= 16);
    }
}
