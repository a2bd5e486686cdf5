//! What a flash device is like: plain data, read from profiles, with errors that say what is accepted.

use super::timing::{SuspendTable, Table};
use super::{CacheConfig, CacheFull, CellMode, FlashError, FtlConfig, Geometry};
use serde::{Deserialize, Serialize};

/// A flash device: array, translation layer, write buffer, host link, faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashConfig {
    /// Name for messages.
    #[serde(default = "default_name")]
    pub name: String,
    /// Shape of the array.
    pub geometry: Geometry,
    /// How the cells are used.
    pub cell: CellMode,
    /// Programs of a page between erases.
    #[serde(default = "default_nop")]
    pub nop: u8,
    /// Erases after which a block is bad.
    #[serde(default = "default_endurance")]
    pub endurance: u32,
    /// Times of the array and its buses.
    pub timing: Timing,
    /// Whether the planes of a chip work at the same time; if not, the chip does one thing at a time.
    #[serde(default)]
    pub multi_plane: bool,
    /// Chips of the geometry that are units of one die: their reads queue at it, while each is programmed and erased by
    /// itself. 1: each chip is a die. Divides `chips_per_channel`.
    #[serde(default = "one")]
    pub units_per_die: u32,
    /// Whether a page can be copied inside its plane without crossing the bus.
    #[serde(default)]
    pub copyback: bool,
    /// The translation layer.
    #[serde(default)]
    pub ftl: FtlConfig,
    /// The write buffer.
    #[serde(default)]
    pub buffer: Buffer,
    /// Suspending programs and erases for reads; absent: reads wait.
    #[serde(default)]
    pub suspend: Option<Suspend>,
    /// Blocks written with one bit per cell first; absent: none.
    #[serde(default)]
    pub slc_cache: Option<SlcCache>,
    /// The host's link.
    #[serde(default)]
    pub link: Link,
    /// Faults.
    #[serde(default)]
    pub faults: FaultsEvery,
}

/// Times of the array and its buses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Array read by page type, from the fastest (LSB), microseconds.
    pub read_us: Vec<f64>,
    /// Array program by page type, microseconds.
    pub program_us: Vec<f64>,
    /// Block erase, microseconds.
    pub erase_us: f64,
    /// Rate of a channel, 10^6 bytes per second.
    pub channel_mb_s: f64,
    /// Command and status cycles of an operation on the channel, microseconds.
    #[serde(default)]
    pub command_us: f64,
}

/// Suspending a program or erase for a read of the same array (Wu, He, FAST 2012; Kim et al., USENIX ATC 2019).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suspend {
    /// From the read's arrival until a program is suspended and the array free, microseconds.
    pub program_us: f64,
    /// The same of an erase, microseconds.
    pub erase_us: f64,
    /// Times that one operation is suspended at most; then reads wait for its end.
    #[serde(default = "default_most")]
    pub most: u32,
}

/// A write cache of blocks used with one bit per cell. What is in it is moved to blocks with all bits ("folded") while
/// the drive idles, oldest block first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlcCache {
    /// Blocks that it takes at most, of the drive; each holds its pages divided by the bits of a cell.
    pub blocks: u32,
    /// Array read of a page in it, microseconds.
    pub read_us: f64,
    /// Array program of a page in it, microseconds.
    pub program_us: f64,
    /// What happens while it is full.
    #[serde(default)]
    pub full: CacheFull,
    /// Folding begins when the drive has had nothing to do for so long, milliseconds.
    #[serde(default = "default_idle")]
    pub idle_ms: f64,
}

/// What happens to buffered writes when the power fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferKind {
    /// There is no buffer: a write completes when it is programmed.
    #[default]
    None,
    /// They are lost.
    Volatile,
    /// A capacitor lets the drive finish them.
    Capacitor,
}

/// The write buffer: a write completes when it has a place here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// What happens to it when the power fails.
    pub kind: BufferKind,
    /// Places, flash pages.
    #[serde(default)]
    pub pages: u32,
}

/// The host's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// Rate, 10^6 bytes per second.
    pub mb_s: f64,
    /// Time that the controller adds to each request, microseconds. Requests overlap in it.
    pub overhead_us: f64,
    /// Time that each request takes of the link beside that of its bytes, microseconds: what bounds the requests per
    /// second.
    pub command_us: f64,
}

impl Default for Link {
    /// SATA at 6 Gbit/s.
    fn default() -> Link {
        Link { mb_s: 550.0, overhead_us: 10.0, command_us: 0.0 }
    }
}

/// Faults, counted and not drawn, so that runs repeat. 0 = never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsEvery {
    /// Every n-th page read fails.
    pub read: u64,
    /// Every n-th page program fails; the translation layer retires the block.
    pub program: u64,
    /// Every n-th erase fails; the block is bad.
    pub erase: u64,
}

fn default_name() -> String {
    "flash".into()
}

fn one() -> u32 {
    1
}

fn default_most() -> u32 {
    10
}

fn default_idle() -> f64 {
    100.0
}

fn default_nop() -> u8 {
    4
}

fn default_endurance() -> u32 {
    100_000
}

/// Nanoseconds of a time given in microseconds.
pub(crate) fn nanos(us: f64) -> u64 {
    (us * 1000.0).round() as u64
}

impl FlashConfig {
    /// A device of one plane with 4 KB pages for studies of write amplification: SLC times, one pool, no buffer.
    pub fn one_plane(blocks: u32, pages_per_block: u32) -> FlashConfig {
        FlashConfig {
            name: default_name(),
            geometry: Geometry {
                channels: 1,
                chips_per_channel: 1,
                planes: 1,
                blocks_per_plane: blocks,
                pages_per_block,
                page_bytes: 4096,
                spare_bytes: 128,
            },
            cell: CellMode::Slc,
            nop: default_nop(),
            endurance: u32::MAX,
            timing: Timing {
                read_us: vec![25.0],
                program_us: vec![200.0],
                erase_us: 1500.0,
                channel_mb_s: 40.96,
                command_us: 0.0,
            },
            multi_plane: false,
            units_per_die: 1,
            copyback: false,
            ftl: FtlConfig::default(),
            buffer: Buffer::default(),
            suspend: None,
            slc_cache: None,
            link: Link::default(),
            faults: FaultsEvery::default(),
        }
    }

    /// Refuses values that cannot be used, naming the field, the value and what is accepted. What depends on how many
    /// blocks the translation layer has is checked by [`super::Ftl::new`].
    pub fn validate(&self) -> Result<(), FlashError> {
        self.geometry.validate()?;
        let err = |field: &str, value: &dyn std::fmt::Display, accepted: &str| {
            Err(FlashError::config(field, value, accepted.to_string()))
        };
        if self.nop == 0 {
            return err("nop", &self.nop, "at least 1");
        }
        if self.endurance == 0 {
            return err("endurance", &self.endurance, "at least 1 erase");
        }
        let per_channel = self.geometry.chips_per_channel;
        if self.units_per_die == 0 || !per_channel.is_multiple_of(self.units_per_die) {
            let accepted = format!("a divisor of geometry.chips_per_channel = {per_channel}");
            return err("units_per_die", &self.units_per_die, &accepted);
        }
        self.validate_timing()?;
        if self.buffer.kind != BufferKind::None && self.buffer.pages == 0 {
            return err("buffer.pages", &0, "at least 1 with this buffer.kind; for no buffer say kind = \"none\"");
        }
        if self.buffer.kind == BufferKind::None && self.buffer.pages != 0 {
            return err("buffer.pages", &self.buffer.pages, "0, since buffer.kind is \"none\"");
        }
        let f = &self.ftl;
        f.validate()?;
        if self.slc_cache.is_some() && !matches!(self.cell, CellMode::Mlc | CellMode::Tlc | CellMode::Qlc) {
            return err("slc_cache", &self.cell, "cells of two bits or more: mlc, tlc or qlc");
        }
        if self.slc_cache.is_some() && f.append_slots > 0 {
            return err("ftl.append_slots", &f.append_slots, "0 with an slc_cache: its pages are written once");
        }
        if f.append_slots > 0 && f.append_slots >= self.nop {
            let accepted = format!("at most nop - 1 = {}: each append is a program of its page", self.nop - 1);
            return err("ftl.append_slots", &f.append_slots, &accepted);
        }
        if f.append_slots > 0 && !(0..2).any(|p| self.cell.appends(p, self.geometry.pages_per_block)) {
            let accepted = format!("0: {} mode allows no appends", self.cell);
            return err("ftl.append_slots", &f.append_slots, &accepted);
        }
        Ok(())
    }

    fn validate_timing(&self) -> Result<(), FlashError> {
        let t = &self.timing;
        let types = self.cell.page_types();
        for (field, times) in [("timing.read_us", &t.read_us), ("timing.program_us", &t.program_us)] {
            if times.len() < types {
                let accepted = format!("{types} times, one for each page type of {} cells, fastest first", self.cell);
                return Err(FlashError::config(field, format!("{times:?}"), accepted));
            }
            if !times.iter().all(|us| (0.0..1e9).contains(us)) {
                return Err(FlashError::config(field, format!("{times:?}"), "times from 0 to 1e9 microseconds"));
            }
        }
        let mut times = vec![
            ("timing.erase_us", t.erase_us),
            ("timing.command_us", t.command_us),
            ("link.overhead_us", self.link.overhead_us),
            ("link.command_us", self.link.command_us),
        ];
        if let Some(s) = &self.suspend {
            times.extend([("suspend.program_us", s.program_us), ("suspend.erase_us", s.erase_us)]);
        }
        if let Some(c) = &self.slc_cache {
            let idle = ("slc_cache.idle_ms", c.idle_ms * 1e3);
            times.extend([("slc_cache.read_us", c.read_us), ("slc_cache.program_us", c.program_us), idle]);
        }
        for (field, us) in times {
            if !(0.0..1e9).contains(&us) {
                return Err(FlashError::config(field, us, "a time from 0 to 1e9 microseconds"));
            }
        }
        for (field, rate) in [("timing.channel_mb_s", t.channel_mb_s), ("link.mb_s", self.link.mb_s)] {
            if !(0.001..=1e6).contains(&rate) {
                return Err(FlashError::config(field, rate, "a rate from 0.001 to 1e6 (10^6 bytes per second)"));
            }
        }
        Ok(())
    }

    /// The write cache as the translation layer knows it.
    pub(super) fn cache(&self) -> Option<CacheConfig> {
        let nanos = |ms: f64| (ms * 1e6) as u64;
        self.slc_cache.map(|c| CacheConfig { blocks: c.blocks, full: c.full, idle: nanos(c.idle_ms) })
    }

    /// The times in nanoseconds.
    pub fn table(&self) -> Table {
        let all = |us: &[f64]| us.iter().map(|t| nanos(*t)).collect();
        Table {
            read: all(&self.timing.read_us),
            program: all(&self.timing.program_us),
            erase: nanos(self.timing.erase_us),
            command: nanos(self.timing.command_us),
            byte_ps: (1e6 / self.timing.channel_mb_s).round() as u64,
            slc: self.slc_cache.map(|c| (nanos(c.read_us), nanos(c.program_us))),
            suspend: self.suspend.map(|s| SuspendTable {
                program: nanos(s.program_us),
                erase: nanos(s.erase_us),
                most: s.most,
            }),
        }
    }
}
