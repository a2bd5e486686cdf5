//! A worker's metrics as text, from its metrics message and what the system says of the process.

use std::fmt::Write;
use varve_wire::metrics::{self as wire, Metrics};

/// Flag, name, type, help, and what a unit of the flag is in units of the metric.
const FAMILIES: &[(u8, &str, &str, &str, f64)] = &[
    (wire::UPTIME_NS, "uptime_seconds", "gauge", "Time since it was started.", 1e-9),
    (wire::DEVICE_LEN, "device_bytes", "gauge", "Bytes of its device.", 1.0),
    (wire::READ_BYTES, "read_bytes_total", "counter", "Bytes read from the device for hosts.", 1.0),
    (wire::WRITTEN_BYTES, "written_bytes_total", "counter", "Bytes written to the device for hosts.", 1.0),
    (wire::REQUESTS, "requests_total", "counter", "Requests answered.", 1.0),
    (wire::REFUSED, "refused_total", "counter", "Requests and frames refused.", 1.0),
    (wire::CONNECTIONS, "connections", "gauge", "Connections that are open.", 1.0),
    (wire::MEMORY_LIMIT, "request_memory_bytes", "gauge", "Memory that requests may take.", 1.0),
    (wire::CORES, "cores", "gauge", "Cores that it may use.", 1.0),
    (wire::CPU_NS, "cpu_seconds_total", "counter", "Processor time that the process used, all cores together.", 1e-9),
    (wire::MEMORY_USED, "resident_bytes", "gauge", "Memory of the process that is in RAM.", 1.0),
    (wire::JOB_FREE_BYTES, "merge_free_bytes", "gauge", "Memory that another merge may take now.", 1.0),
    (wire::ATTACHMENTS, "attachments_total", "counter", "Times that a host began to have merges done.", 1.0),
    (wire::JOBS_WAITING, "merges_waiting", "gauge", "Parts of merges that wait.", 1.0),
    (wire::JOBS_RUNNING, "merges_running", "gauge", "Parts of merges that run.", 1.0),
    (wire::JOBS_DONE, "merges_done_total", "counter", "Parts of merges done.", 1.0),
    (wire::JOBS_FAILED, "merges_failed_total", "counter", "Parts of merges that failed, or were given up.", 1.0),
    (wire::JOB_READ_BYTES, "merge_read_bytes_total", "counter", "Bytes that merges read.", 1.0),
    (wire::JOB_WRITTEN_BYTES, "merge_written_bytes_total", "counter", "Bytes that merges wrote.", 1.0),
];

/// Nanoseconds of a tick, the unit of processor time in `/proc`.
const TICK_NS: u64 = 10_000_000;

/// The text of what the message has, and of processor time and memory of this process.
pub fn text(mut message: Metrics) -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    if let Some(ticks) = ticks(&read("/proc/self/stat")) {
        message.put(wire::CPU_NS, ticks.saturating_mul(TICK_NS));
    }
    if let Some(bytes) = resident(&read("/proc/self/status")) {
        message.put(wire::MEMORY_USED, bytes);
    }
    let mut text = String::new();
    for (flag, name, kind, help, unit) in FAMILIES {
        let Some(n) = message.get(*flag) else { continue };
        let _ = writeln!(text, "# HELP varve_worker_{name} {help}");
        let _ = writeln!(text, "# TYPE varve_worker_{name} {kind}");
        let _ = writeln!(text, "varve_worker_{name} {}", n as f64 * unit);
    }
    text
}

/// Ticks of processor time of a process and of the kernel for it. Its name may hold anything, parentheses too.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_ascii_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    Some(times.next()? + times.next()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_and_memory_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 90 0 3 0 250 17 4 5 20 0 9 0 100 1000 200 0\n";
        assert_eq!(ticks(stat), Some(267));
        assert_eq!((ticks(""), ticks("7 (a) S 1"), resident("VmPeak: 9 kB\n")), (None, None, None));
        assert_eq!(resident("VmPeak:\t 9 kB\nVmRSS:\t  12 kB\n"), Some(12 << 10));
    }
}
