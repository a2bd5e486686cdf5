//! Recoverability writes: how many of the oldest changes to write in each interval, from the share of dirty pages and
//! the age of the log (InnoDB's adaptive flushing).

use super::Service;
use crate::buffer::Pool;
use crate::buffer::config::CleanerConfig;
use crate::buffer::pool::LogAge;
use crate::role::{self, Role};
use std::time::Duration;
use varve_rt::atomic::Ordering::*;
use varve_volume::WriteWhy;

/// The life of the thread.
pub(super) fn run(service: &Service) {
    let Service { pool, wake, stop, config } = service;
    role::set(Role::Cleaner);
    let mut average = 0.0;
    loop {
        // Only the end wakes it early.
        wake.wait_for(config.interval);
        if stop.load(Acquire) {
            return;
        }
        let Some(pool) = pool.upgrade() else { return };
        if pool.failure().is_some() {
            continue;
        }
        let dirty = 100.0 * pool.dirty_pages() as f64 / pool.capacity_frames() as f64;
        let rate = pages_per_second(config, dirty, pool.gate().age(), average);
        let written = pass(&pool, (rate * config.interval.as_secs_f64()) as usize);
        average = (average + per_second(written, config.interval)) / 2.0;
    }
}

/// Writes `pages` of the oldest changes, an equal share in each instance; returns how many were written.
fn pass(pool: &Pool, pages: usize) -> usize {
    let share = pages.div_ceil(pool.instances().len());
    pool.instances().iter().map(|inst| pool.flush_oldest(inst, share, WriteWhy::Recoverability).written).sum()
}

fn per_second(pages: usize, interval: Duration) -> f64 {
    pages as f64 / interval.as_secs_f64().max(1e-3)
}

/// `dirty` is the share of dirty pages in percent. The dirty term is `100 * dirty / (max_dirty + 1)` above the
/// low-water mark; the log term is `(io_max / io) * age_factor^1.5 / 7.5` with `age_factor = 100 * age / max_age`; the
/// greater one, in percent of `io`, is averaged with the mean rate so far, and bounded by `io_max`.
fn pages_per_second(c: &CleanerConfig, dirty: f64, age: LogAge, average: f64) -> f64 {
    let (io, io_max) = (f64::from(c.io), f64::from(c.io_max));
    let dirty_term = if dirty >= f64::from(c.low_water) { 100.0 * dirty / (f64::from(c.max_dirty) + 1.0) } else { 0.0 };
    let age_factor = 100.0 * age.bytes_since_redo as f64 / age.capacity.max(1) as f64;
    let log_term = (io_max / io) * age_factor.powf(1.5) / 7.5;
    let wanted = io * dirty_term.max(log_term) / 100.0;
    ((wanted + average) / 2.0).min(io_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::PoolConfig;

    fn rate(dirty: f64, age: u64, average: f64) -> f64 {
        let cleaner =
            CleanerConfig { io: 200, io_max: 2000, max_dirty: 75, low_water: 10, ..PoolConfig::new(4096, 64).cleaner };
        pages_per_second(&cleaner, dirty, LogAge { bytes_since_redo: age, capacity: 100 }, average)
    }

    #[test]
    fn the_published_formula() {
        // Worked by hand: the greater of 100 * 38 / 76 = 50 % and 10 * 0 / 7.5 = 0 % of 200, averaged with 0.
        assert!((rate(38.0, 0, 0.0) - 50.0).abs() < 1e-9);
        // 10 * 25^1.5 / 7.5 = 166.7 % of 200 = 333.3, averaged with 100.
        assert!((rate(0.0, 25, 100.0) - (1000.0 / 3.0 + 100.0) / 2.0).abs() < 1e-9);
        // Below the low-water mark, with a young log, nothing but the mean.
        assert_eq!(rate(9.9, 0, 0.0), 0.0);
        assert_eq!(rate(9.9, 0, 80.0), 40.0);
        // Never more than io_max.
        assert_eq!(rate(99.0, 100, 5000.0), 2000.0);
    }

    #[test]
    fn the_rate_rises_with_dirt_and_age() {
        for step in 1..100u64 {
            assert!(rate(step as f64, 10, 0.0) >= rate(step as f64 - 1.0, 10, 0.0));
            assert!(rate(5.0, step, 0.0) > rate(5.0, step - 1, 0.0) || rate(5.0, step, 0.0) == 2000.0);
        }
    }
}
