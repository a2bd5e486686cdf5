//! Metrics: the figures of [`Stats`](crate::Stats) under stable names, for whatever gathers them.
//!
//! [`FAMILIES`] is the list of all there are, with kind, labels and unit; `docs/metrics.md` shows it (a test holds the
//! two together). A name never changes its meaning; new ones may be added. Names follow the conventions of Prometheus:
//! counters end in `_total`, sizes are in bytes, times in seconds, shares are 0 to 1.
//!
//! ```
//! # fn main() -> varve::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("varve-doc-metrics-{}", std::process::id()));
//! # let _ = std::fs::remove_dir_all(&dir);
//! let db = varve::Db::open_or_create(&dir, varve::Options::default())?;
//! // What a program answers to `GET /metrics`, with content type `varve::metrics::CONTENT_TYPE`:
//! let text = db.stats().prometheus();
//! assert!(text.contains("# TYPE varve_transactions_committed_total counter"));
//! db.close()?;
//! # let _ = std::fs::remove_dir_all(&dir);
//! # Ok(()) }
//! ```

mod families;
mod tell;
mod text;

pub use families::FAMILIES;
pub use text::CONTENT_TYPE;

/// How the values of a family are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises while the database is open; what counts is by how much.
    Counter,
    /// As it is now.
    Gauge,
}

impl Kind {
    /// Its name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Figures of one name, told apart by labels.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, with its unit.
    pub name: &'static str,
    /// How it is to be read.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it tells, in a sentence.
    pub help: &'static str,
}

/// A gatherer of metrics: the text format here, or a bridge to a metrics library of the embedding program.
pub trait MetricSink {
    /// A value; `labels` are the values of the family's labels, in its order. The samples of a family come one after
    /// the other.
    fn sample(&mut self, family: &'static Family, labels: &[&str], value: f64);
}
