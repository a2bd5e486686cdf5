//! A magnetic disk: seek by distance, rotation by the angle in (virtual) time, transfer, command overhead, a queue with
//! a choice of scheduling, read-ahead of sequential reads and, optionally, a volatile write cache.
//!
//! One surface, addresses laid out along a spiral of `tracks` turns, the same number of bytes on each (figures at the
//! middle of a real disk). The seek curve is fitted to three numbers of the data sheet (track to track, average over
//! random pairs, full stroke): seek(d) = t1 + a sqrt(d) + b d (Lee, Katz 1993).

mod queue;
mod write_cache;

use crate::fixed::{millis, within};
use crate::model::{Section, Timing};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(crate) use queue::Disk;

/// Seek times, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seek {
    /// To the next track.
    pub track_ms: f64,
    /// Average over random pairs of tracks.
    pub average_ms: f64,
    /// Over all tracks.
    pub full_ms: f64,
}

/// In which order waiting requests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// As they came.
    Fifo,
    /// The nearest track first.
    Sstf,
    /// Onward in one direction until nothing is left there, then back.
    Elevator,
    /// The one that the head reaches first, seek and rotation together.
    #[default]
    Sptf,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Number of tracks.
    pub tracks: u64,
    /// Time of a rotation, milliseconds.
    pub rotation_ms: f64,
    /// Media transfer rate, MB/s (decimal).
    pub media_mb_s: f64,
    /// Of a command, milliseconds; overlaps with other commands' service.
    pub overhead_ms: f64,
    /// Before reads.
    pub read_seek: Seek,
    /// Before writes: longer, since the head must settle better.
    pub write_seek: Seek,
    /// Order of service.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Commands that the disk knows of and chooses among.
    #[serde(default = "ncq")]
    pub queue_depth: u32,
    /// Sequential reads go on into a buffer.
    #[serde(default = "yes")]
    pub read_ahead: bool,
    /// Volatile write cache, bytes; 0: off.
    #[serde(default)]
    pub write_cache: u64,
    /// Rate of the interface, MB/s, for what the caches serve.
    #[serde(default = "sas")]
    pub interface_mb_s: f64,
}

fn ncq() -> u32 {
    32
}

fn yes() -> bool {
    true
}

fn sas() -> f64 {
    600.0
}

impl DiskConfig {
    /// What is wrong with the values: the key, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        within("tracks", self.tracks as f64, 2.0, 1e9)?;
        within("rotation_ms", self.rotation_ms, 0.1, 1000.0)?;
        within("media_mb_s", self.media_mb_s, 0.1, 1e5)?;
        within("overhead_ms", self.overhead_ms, 0.0, 1e3)?;
        within("queue_depth", f64::from(self.queue_depth), 1.0, 4096.0)?;
        within("interface_mb_s", self.interface_mb_s, 1.0, 1e6)?;
        for (key, s) in [("read_seek", self.read_seek), ("write_seek", self.write_seek)] {
            let rising = 0.0 <= s.track_ms && s.track_ms <= s.average_ms && s.average_ms <= s.full_ms;
            if !rising || s.full_ms > 1e4 {
                return Err((key, "must have track_ms <= average_ms <= full_ms".into()));
            }
        }
        Ok(())
    }

    /// Bytes of a track.
    pub fn track_bytes(&self) -> u64 {
        (self.media_mb_s * self.rotation_ms * 1e3).round() as u64
    }

    /// Bytes of the disk.
    pub fn capacity(&self) -> u64 {
        (self.tracks * self.track_bytes()) / 4096 * 4096
    }

    /// Expected time of one random request of `len` bytes on an idle disk: overhead, average seek, half a rotation,
    /// transfer.
    pub fn expected_random_ms(&self, write: bool, len: u64) -> f64 {
        let seek = if write { self.write_seek } else { self.read_seek };
        self.overhead_ms + seek.average_ms + self.rotation_ms / 2.0 + len as f64 / self.media_mb_s / 1e3
    }
}

impl Section for DiskConfig {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        DiskConfig::check(self)
    }

    fn timing(&self, _: u64) -> Box<dyn Timing> {
        Box::new(Disk::new(self.clone()))
    }

    fn capacity(&self) -> Option<u64> {
        Some(DiskConfig::capacity(self))
    }

    fn queue_depth(&self) -> u32 {
        self.queue_depth
    }
}

/// The curve through a disk's three seek times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeekCurve {
    t1: f64,
    a: f64,
    b: f64,
}

impl SeekCurve {
    pub(crate) fn new(tracks: u64, s: Seek) -> SeekCurve {
        let (n, t1, ta, tf) = (tracks as f64, s.track_ms, s.average_ms, s.full_ms);
        let a = (-10.0 * t1 + 15.0 * ta - 5.0 * tf) / (3.0 * n.sqrt());
        let b = (7.0 * t1 - 15.0 * ta + 8.0 * tf) / (3.0 * n);
        SeekCurve { t1, a, b }
    }

    /// The time over `distance` tracks.
    pub(crate) fn time(&self, distance: u64) -> Duration {
        let d = distance as f64;
        if distance == 0 { Duration::ZERO } else { millis((self.t1 + self.a * d.sqrt() + self.b * d).max(0.0)) }
    }
}
