//! The metrics message: `[size u32, {flag u8, length u16, value}*, CRC-32C u32]`, little-endian. `size` is bytes of
//! entries; the checksum is of all before it. Values of 8 bytes are numbers.
//!
//! A flag that a receiver does not know is skipped, so that sides of different age understand each other.

use crate::fields::Fields;

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal,)*) => {
        $($(#[$doc])* pub const $name: u8 = $code;)*

        /// Names of the flags, for reports.
        pub const NAMES: &[(u8, &str)] = &[$(($name, $text),)*];
    };
}

flags! {
    /// Number that the worker drew when it started.
    BOOT = 1 "boot",
    /// Since it started, nanoseconds.
    UPTIME_NS = 2 "uptime_ns",
    /// Cores that it may use.
    CORES = 3 "cores",
    /// Processor time that it used, all cores together, nanoseconds.
    CPU_NS = 4 "cpu_ns",
    /// Memory that it uses, bytes.
    MEMORY_USED = 5 "memory_used",
    /// Memory that it may use, bytes.
    MEMORY_LIMIT = 6 "memory_limit",
    /// Bytes that it read from its device for hosts.
    READ_BYTES = 7 "read_bytes",
    /// Bytes that it wrote to its device for hosts.
    WRITTEN_BYTES = 8 "written_bytes",
    /// Requests that it answered.
    REQUESTS = 9 "requests",
    /// Requests and frames that it refused.
    REFUSED = 10 "refused",
    /// Connections that are open.
    CONNECTIONS = 11 "connections",
    /// Jobs that run.
    JOBS_RUNNING = 12 "jobs_running",
    /// Jobs that were done.
    JOBS_DONE = 13 "jobs_done",
    /// Jobs that failed, or were given up.
    JOBS_FAILED = 14 "jobs_failed",
    /// Bytes that jobs read.
    JOB_READ_BYTES = 15 "job_read_bytes",
    /// Bytes that jobs wrote.
    JOB_WRITTEN_BYTES = 16 "job_written_bytes",
    /// Bytes of the device.
    DEVICE_LEN = 17 "device_len",
    /// Bytes of memory that a job may take now.
    JOB_FREE_BYTES = 18 "job_free_bytes",
    /// Jobs that wait for their turn.
    JOBS_WAITING = 19 "jobs_waiting",
    /// Times that a host began to use the worker for jobs.
    ATTACHMENTS = 20 "attachments",
}

/// Entries of a metrics message, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics(pub Vec<(u8, Vec<u8>)>);

impl Metrics {
    /// Adds a number.
    pub fn put(&mut self, flag: u8, value: u64) {
        self.0.push((flag, value.to_le_bytes().to_vec()));
    }

    /// The first number with this flag.
    pub fn get(&self, flag: u8) -> Option<u64> {
        let (_, value) = self.0.iter().find(|(f, value)| *f == flag && value.len() == 8)?;
        Fields::new(value).u64()
    }

    /// The message. Panics if a value has 64 KiB or more.
    pub fn encode(&self) -> Vec<u8> {
        let mut entries = Vec::new();
        for (flag, value) in &self.0 {
            let length = u16::try_from(value.len()).expect("values are short");
            entries.push(*flag);
            entries.extend_from_slice(&length.to_le_bytes());
            entries.extend_from_slice(value);
        }
        let mut bytes = u32::try_from(entries.len()).expect("values are short").to_le_bytes().to_vec();
        bytes.extend_from_slice(&entries);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a message; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Metrics> {
        let mut fields = Fields::new(bytes);
        let size = fields.u32()?;
        let mut entries = Fields::new(fields.bytes(usize::try_from(size).ok()?)?);
        let covered = bytes.len().checked_sub(4)?;
        let crc = fields.u32()?;
        fields.end()?;
        if crc32c::crc32c(&bytes[..covered]) != crc {
            return None;
        }
        let mut metrics = Metrics::default();
        while !entries.rest().is_empty() {
            let (flag, length) = entries.u8().zip(entries.u16())?;
            metrics.0.push((flag, entries.bytes(length.into())?.to_vec()));
        }
        Some(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_a_changed_one_does_not() {
        let mut metrics = Metrics::default();
        metrics.put(CORES, 4);
        metrics.0.push((200, b"what nobody knows".to_vec()));
        metrics.put(CPU_NS, u64::MAX);
        let bytes = metrics.encode();
        assert_eq!(Metrics::decode(&bytes).as_ref(), Some(&metrics));
        assert_eq!((metrics.get(CPU_NS), metrics.get(200), metrics.get(BOOT)), (Some(u64::MAX), None, None));
        for n in 0..bytes.len() {
            assert_eq!(Metrics::decode(&bytes[..n]), None, "{n} bytes");
            let mut changed = bytes.clone();
            changed[n] ^= 0x10;
            assert_eq!(Metrics::decode(&changed), None, "byte {n}");
        }
    }
}
