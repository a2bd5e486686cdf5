//! What a worker takes on at most.

use crate::frame::{FRAME_OVERHEAD, MAX_PAYLOAD};
use std::time::Duration;

/// What a worker takes on at most. Memory of requests and answers stays below [`Limits::memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Threads that serve requests: so many are under way at the device.
    pub threads: usize,
    /// Requests of one connection that are not answered yet.
    pub window: u32,
    /// How long the requests of a host's last connection may take to end before the host may come again.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 16, threads: 8, window: 256, drain: Duration::from_secs(10) }
    }
}

impl Limits {
    /// Most bytes of requests and answers: a frame that comes in on each connection, and for each thread one that
    /// waits, one under way and its answer.
    pub fn memory(&self) -> u64 {
        let frame = u64::from(MAX_PAYLOAD) + FRAME_OVERHEAD as u64;
        // A connection's buffer holds a frame and one read more.
        frame * (2 * self.connections as u64 + 3 * self.threads as u64)
    }

    /// Limits that keep to so many bytes, as far as one connection and one thread do.
    pub fn within(bytes: u64) -> Limits {
        let mut limits = Limits::default();
        while limits.memory() > bytes && (limits.threads > 1 || limits.connections > 2) {
            limits.threads = (limits.threads / 2).max(1);
            limits.connections = (limits.connections / 2).max(2);
        }
        limits
    }
}
