//! The result of a run, as a table for people and as one JSON object for programs.

use std::fmt::Write as _;

use super::measure::{KindRecord, Latency};
use crate::adapter::StoreStats;

/// Result of one transaction type.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KindResult {
    /// Name of the type.
    pub name: &'static str,
    /// Transactions that ended as they should, rolled-back ones included.
    pub count: u64,
    /// Of these, rolled back of their own will.
    pub rolled_back: u64,
    /// Attempts that the store asked to repeat.
    pub retries: u64,
    /// Response times, first attempt to end.
    #[serde(flatten)]
    pub latency: Latency,
}

impl KindResult {
    pub(super) fn of(name: &'static str, record: &KindRecord) -> KindResult {
        KindResult {
            name,
            count: record.latency.len(),
            rolled_back: record.rolled_back,
            retries: record.retries,
            latency: Latency::of(&record.latency),
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Name of the workload.
    pub workload: String,
    /// Name of the store.
    pub store: String,
    /// New orders per minute, for TPC-C. Rolled-back ones count, as clause 2.4.1.4 and 5.4 have it.
    pub tpmc: Option<f64>,
    /// Transactions of all types per second.
    pub ops_per_s: f64,
    /// Client threads.
    pub threads: usize,
    /// Length of the run in seconds, warm-up not counted.
    pub seconds: f64,
    /// `real` or `virtual`.
    pub clock: &'static str,
    /// Response times over all types.
    pub latency: Latency,
    /// Response times by quantile over all types: share of transactions, and microseconds within which they ended.
    pub quantiles: Vec<(f64, f64)>,
    /// Sum over all types.
    pub total: KindResult,
    /// Of an open loop: transactions that were due before the end and had not begun by then.
    pub overdue: u64,
    /// By type.
    pub kinds: Vec<KindResult>,
    /// What the store counted during the run.
    pub stats: StoreStats,
    /// Peak resident memory of the process in MiB, if the system tells.
    pub peak_rss_mb: Option<f64>,
    /// Whether the data was found consistent afterwards; `None`: not checked.
    pub consistent: Option<bool>,
}

impl RunResult {
    /// The result as a JSON object; absent figures are null.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({
            "workload": self.workload,
            "store": self.store,
            "ops_per_s": self.ops_per_s,
            "threads": self.threads,
            "seconds": self.seconds,
            "clock": self.clock,
            "mean_us": self.latency.mean_us,
            "p50_us": self.latency.p50_us,
            "p95_us": self.latency.p95_us,
            "p99_us": self.latency.p99_us,
            "p999_us": self.latency.p999_us,
            "max_us": self.latency.max_us,
            "transactions": self.total.count,
            "rolled_back": self.total.rolled_back,
            "retries": self.total.retries,
            "overdue": self.overdue,
            "hit_ratio": self.stats.hit_ratio(),
            "page_hits": self.stats.hits,
            "page_misses": self.stats.misses,
            "frames": self.stats.frames,
            "device_reads": self.stats.device_reads,
            "device_writes": self.stats.device_writes,
            "bytes_read": self.stats.bytes_read,
            "bytes_written": self.stats.bytes_written,
            "log_bytes": self.stats.log_bytes,
            "fsyncs": self.stats.fsyncs,
            "stalls": self.stats.stalls,
            "peak_rss_mb": self.peak_rss_mb,
            "consistent": self.consistent,
            "kinds": self.kinds,
        });
        if let Some(tpmc) = self.tpmc {
            json["tpmc"] = tpmc.into();
        }
        json
    }

    /// The result as a table.
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        let clock = if self.clock == "virtual" { " of virtual time" } else { "" };
        let mut line = |text: String| {
            let _ = writeln!(out, "{}", text.trim_end());
        };
        line(format!("{} on {}: {} threads, {:.1} s{clock}", self.workload, self.store, self.threads, self.seconds));
        line(String::new());
        line(format!(
            "{:<14}{:>10}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}{:>9}",
            "transaction", "count", "per s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms", "retries"
        ));
        for kind in self.kinds.iter().filter(|k| k.count > 0).chain([&self.total]) {
            let ms = |us: f64| format!("{:.3}", us / 1000.0);
            line(format!(
                "{:<14}{:>10}{:>11.1}{:>10}{:>10}{:>10}{:>10}{:>10}{:>9}",
                kind.name,
                kind.count,
                kind.count as f64 / self.seconds,
                ms(kind.latency.p50_us),
                ms(kind.latency.p95_us),
                ms(kind.latency.p99_us),
                ms(kind.latency.p999_us),
                ms(kind.latency.max_us),
                kind.retries
            ));
        }
        line(String::new());
        match self.tpmc {
            Some(tpmc) => line(format!("tpmC          {tpmc:.0}")),
            None => line(format!("ops/s         {:.0}", self.ops_per_s)),
        }
        let stats = &self.stats;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        match stats.hit_ratio() {
            Some(ratio) => line(format!("hit ratio     {:.3} %", 100.0 * ratio)),
            None => line("hit ratio     no page was accessed".to_string()),
        }
        line(format!("reads         {} ({:.1} MiB)", stats.device_reads, mib(stats.bytes_read)));
        line(format!("writes        {} ({:.1} MiB)", stats.device_writes, mib(stats.bytes_written)));
        line(format!("log           {:.1} MiB, {} fsyncs", mib(stats.log_bytes), stats.fsyncs));
        line(format!("stalls        {}", stats.stalls));
        if let Some(mb) = self.peak_rss_mb {
            line(format!("peak memory   {mb:.0} MiB"));
        }
        if let Some(consistent) = self.consistent {
            line(format!("consistent    {}", if consistent { "yes" } else { "NO" }));
        }
        out
    }
}

/// Peak resident memory of this process in MiB (VmHWM); `None` where the system does not tell.
pub fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
