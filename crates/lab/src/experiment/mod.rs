//! Experiments: a TOML file describes host, devices, engine, workload, axes to sweep and checks; each combination is a
//! point, run in virtual time on modelled devices; results are JSON lines, a table beside the published figures, and a
//! report. `docs/lab.md` is the page for those who write such files.
//!
//! - `document` reads a file and expands it into points (`source` finds lines for errors, `sweep` axes); `spec`,
//!   `units`: its shape;
//! - `near` is a second machine beside the data device, `background` what machines do besides, `decisions` how the
//!   sides of a merge decide;
//! - `layout` loads a database once; `devices` models; `machine` processor time and lock waits; `point` runs one point,
//!   `plain` and `array` one without a database; `rack` is an array under one, `regions` native
//!   flash, `moves` who watches its extents move;
//!   `metrics` names what it measured;
//! - `parameters`: what the figures rest on, `sensitivity`: what those decide that are assumed;
//! - `figure`, `check`: what is demanded; `drawing`: what is charted; `results`: files; `report`, `table`: for people;
//!   `run`: all points in parallel.
//!
//! Invariants: a result of the virtual clock is a function of configuration, seed and program. Result files hold no
//! value of the real clock and stand in the order of the points.

mod advised;
mod array;
mod background;
mod check;
mod database;
mod dbbench;
mod decisions;
mod devices;
mod document;
mod drawing;
mod figure;
mod idle;
mod iomix;
mod layout;
mod location;
mod lsm;
mod machine;
mod metrics;
mod moves;
mod named;
mod near;
mod parameters;
mod plain;
mod point;
mod rack;
mod regions;
pub(crate) mod report;
mod results;
mod run;
mod sensitivity;
mod source;
pub mod spec;
mod sweep;
pub(crate) mod table;
mod tier;
mod tpc;
mod units;
mod ycsb;

pub use check::{Bound, Check, Judged, Verdict};
pub use document::{Experiment, Point, Request, Scale, Scaled, read};
pub use drawing::{Chart, Drawing};
pub use figure::{Figure, FigureError};
pub use machine::LockPlace;
pub use parameters::{Basis, parameters};
pub use point::PointResult;
pub use report::write_report;
pub use results::{Header, Results};
pub use run::{Progress, RunHow, run};
pub use sensitivity::{MOVES, Moved, Trial, assumed, sensitivity};
pub use table::{CPU_BOUND, LOCK_BOUND, SHARED, checks_table, judge_all, points_table};
pub use units::{Bytes, Cache};

/// What can go wrong with an experiment.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The file is wrong.
    #[error("{file}:{line}: {key}: {what}")]
    File {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Key path.
        key: String,
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// A `--set` is wrong.
    #[error("--set {key}: {what}")]
    Set {
        /// The key as given.
        key: String,
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// There is no such experiment.
    #[error("{name}: no such file, and no experiment of this name comes with the program; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names of those that come with the program.
        known: String,
    },
    /// A point did not run to its end.
    #[error("point {point}: {what}")]
    Point {
        /// Name of the point.
        point: String,
        /// Why.
        what: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A result file is not one of ours.
    #[error("{path}: line {line} is no result: {what}; run the experiment again with --fresh")]
    Results {
        /// Which file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Why.
        what: String,
    },
    /// A check cannot be judged.
    #[error("{0}")]
    Check(String),
}

/// FNV-1a, 64 bits.
fn fnv64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Experiments that come with the program: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("flash-wa", include_str!("../../../../experiments/flash-wa.toml")),
    ("copro", include_str!("../../../../experiments/copro.toml")),
    ("copro-ycsb", include_str!("../../../../experiments/copro-ycsb.toml")),
    ("copro-size", include_str!("../../../../experiments/copro-size.toml")),
    ("copro-links", include_str!("../../../../experiments/copro-links.toml")),
    ("copro-plus", include_str!("../../../../experiments/copro-plus.toml")),
    ("fidelity", include_str!("../../../../experiments/fidelity.toml")),
    ("rodi", include_str!("../../../../experiments/rodi.toml")),
    ("rodi-engine", include_str!("../../../../experiments/rodi-engine.toml")),
    ("iomix-ssd", include_str!("../../../../experiments/iomix-ssd.toml")),
    ("gd2l-cac", include_str!("../../../../experiments/gd2l-cac.toml")),
    ("streams", include_str!("../../../../experiments/streams.toml")),
    ("page-images", include_str!("../../../../experiments/page-images.toml")),
    ("tier-location", include_str!("../../../../experiments/tier-location.toml")),
    ("ipa-advise", include_str!("../../../../experiments/ipa-advise.toml")),
    ("ipa-jasmine", include_str!("../../../../experiments/ipa-jasmine.toml")),
    ("ipa-emulator", include_str!("../../../../experiments/ipa-emulator.toml")),
    ("tier-zones", include_str!("../../../../experiments/tier-zones.toml")),
    ("tier-pools", include_str!("../../../../experiments/tier-pools.toml")),
    ("tier-overhead", include_str!("../../../../experiments/tier-overhead.toml")),
    ("tier-paced", include_str!("../../../../experiments/tier-paced.toml")),
    ("lru-c", include_str!("../../../../experiments/lru-c.toml")),
    ("lru-c-10g", include_str!("../../../../experiments/lru-c-10g.toml")),
    ("lru-c-sweep", include_str!("../../../../experiments/lru-c-sweep.toml")),
    ("lru-c-oltp", include_str!("../../../../experiments/lru-c-oltp.toml")),
    ("lru-c-paced", include_str!("../../../../experiments/lru-c-paced.toml")),
    ("lru-c-locks", include_str!("../../../../experiments/lru-c-locks.toml")),
    ("lsm", include_str!("../../../../experiments/lsm.toml")),
    ("lsm-debt", include_str!("../../../../experiments/lsm-debt.toml")),
    ("tpcc-disk", include_str!("../../../../experiments/tpcc-disk.toml")),
];

/// Finds an experiment: a file, or one that comes with the program by its name, or as `experiments/NAME.toml`. Returns
/// name, file and text.
///
/// # Errors
/// [`ExperimentError::Unknown`], or the file cannot be read.
pub fn find(what: &str) -> Result<(String, String, String), ExperimentError> {
    let path = std::path::Path::new(what);
    let name = path.file_stem().map_or_else(|| what.to_string(), |s| s.to_string_lossy().into_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let elsewhere = folder.is_some_and(|folder| folder != std::path::Path::new("experiments"));
    let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
    let a_file = built_in.is_none() && path.extension().is_some_and(|extension| extension == "toml");
    if elsewhere || a_file || path.is_file() {
        let text =
            std::fs::read_to_string(path).map_err(|source| ExperimentError::Io { path: what.to_string(), source })?;
        return Ok((name, what.to_string(), text));
    }
    match built_in {
        Some((_, text)) => Ok((
            name,
            format!("experiments/{}.toml", path.file_stem().unwrap_or_default().to_string_lossy()),
            text.to_string(),
        )),
        None => {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            Err(ExperimentError::Unknown { name: what.to_string(), known: known.join(", ") })
        }
    }
}
