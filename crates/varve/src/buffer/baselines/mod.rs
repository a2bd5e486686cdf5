//! What is there only to be compared with, behind the feature `baselines`: InnoDB 5.6's victim strategy and cleaner
//! (`spf56`, `fixed56`), write after read (`war`), read and write as one (`rw`), doublewrite, and options that make a
//! pool like a published one ([`Baselines`]).
//!
//! A strategy of here has its line in the registry as any other has. Without the feature its name is not known.

mod doublewrite;
pub(super) mod fixed56;
pub(super) mod rw;
pub(super) mod spf56;
pub(super) mod war;

pub(crate) use doublewrite::AREA as DOUBLEWRITE_PAGES;
pub(super) use doublewrite::{BATCH, Doublewrite};

use super::config::{PoolConfig, Preset, TURN_PART};

/// Options that make a pool like a published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Baselines {
    /// The slots for pages set aside are taken from the frames; else they come on top of the cache, as published.
    pub equal_memory: bool,
    /// Pages are written twice, first to an area of their own, as InnoDB does it against torn pages; both writes are
    /// synced. Not for `rw`. The engine needs it for nothing.
    pub doublewrite: bool,
    /// Divides InnoDB's times, for pools that stand for larger ones: the cleaner's second, the second until a page may
    /// become young, the waits of a miss. 1: they are as they are.
    pub time_divisor: usize,
}

impl Default for Baselines {
    fn default() -> Baselines {
        Baselines { equal_memory: false, doublewrite: false, time_divisor: 1 }
    }
}

impl Baselines {
    /// What times are divided by.
    pub(crate) fn divisor(&self) -> u32 {
        u32::try_from(self.time_divisor).unwrap_or(u32::MAX).max(1)
    }
}

impl PoolConfig {
    /// The same pool with these options; its times are divided. (The policy's are its options'.)
    pub(crate) fn with_baselines(mut self, baselines: Baselines) -> PoolConfig {
        self.cleaner.interval /= baselines.divisor();
        self.patience /= baselines.divisor();
        PoolConfig { baselines, ..self }
    }

    /// The same pool with so many frames fewer as the slots for pages set aside take memory, if that is wanted.
    pub(crate) fn with_equal_memory(self) -> PoolConfig {
        if !self.baselines.equal_memory {
            return self;
        }
        let least = 8 * self.instances;
        let frames = self.frames.saturating_sub(self.instances * self.aside_slots()).max(least.min(self.frames));
        PoolConfig { frames, ..self }
    }
}

/// Preset `vanilla`.
pub(super) const VANILLA: Preset =
    innodb56("vanilla", "InnoDB 5.6: long scans, then single-page flushes; one cleaner", "spf56", 0);

/// Preset `war`.
pub(super) const WAR: Preset =
    innodb56("war", "write after read: dirty victims are copied aside and written later", "war", 0);

/// Preset `rw`.
pub(super) const RW: Preset =
    innodb56("rw", "the write of a dirty victim goes with the read, which alone is waited for", "rw", 0);

/// Preset `lru-c-pointer`.
pub(super) const LRU_C_POINTER: Preset = innodb56(
    "lru-c-pointer",
    "the first part of LRU-C alone: clean victims by the pointer, InnoDB 5.6's cleaner",
    "clean-first",
    TURN_PART,
);

/// A victim strategy over InnoDB 5.6's list, with its cleaner.
const fn innodb56(name: &'static str, about: &'static str, victim: &'static str, turn_part: u32) -> Preset {
    let (replacement, cleaner) = ("lru-midpoint", "fixed56");
    Preset { name, about, replacement, victim, cleaner, parallel: false, turn_part, lone_timer: true }
}
