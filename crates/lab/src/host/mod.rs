//! Host profiles: how many cores a modelled machine has, what the engine's work costs on them, and what it costs to
//! move a lock between them. Text in TOML; every number has a source.
//!
//! ```toml
//! name = "server-32"
//! description = "32-core server, 2.9 GHz"
//! cores = 32
//! lock_handoff_ns = 90.0
//! lock_data_ns = 200.0
//! sources = ["costs: vm-2core, divided by the ratio of single-thread ratings, 1.25", "lock hand-off: ..."]
//! scaled_from = "vm-2core"        # the costs of another profile ..
//! scale = 0.8                     # .. times this
//!
//! [costs]                         # nanoseconds; what stands here goes before what is scaled
//! page_access = 45.0
//! ```
//!
//! Without `scaled_from` every cost must be there: a cost left out would silently be free.

mod bench;
mod calibrate;
mod solve;
mod store;
mod threads;

pub use calibrate::{CalibrateOptions, Calibration, Measured, calibrate};

use crate::error::{Result, bad_file};
use crate::place;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use varve_rt::{Cost, CpuCosts, sim};

/// The profiles that come with the program, by name.
const BUILTIN: &[(&str, &str)] = &[
    ("arm-4core", include_str!("../../../../profiles/hosts/arm-4core.toml")),
    ("copro-device", include_str!("../../../../profiles/hosts/copro-device.toml")),
    ("copro-host", include_str!("../../../../profiles/hosts/copro-host.toml")),
    ("gd2l-6core", include_str!("../../../../profiles/hosts/gd2l-6core.toml")),
    ("ipa-32core", include_str!("../../../../profiles/hosts/ipa-32core.toml")),
    ("rodi-4core", include_str!("../../../../profiles/hosts/rodi-4core.toml")),
    ("server-32core", include_str!("../../../../profiles/hosts/server-32core.toml")),
    ("vm-2core", include_str!("../../../../profiles/hosts/vm-2core.toml")),
];

/// How far a thread may run ahead of the virtual clock between locks that nobody else wants.
const SLACK: Duration = Duration::from_micros(1);

/// Most cores and longest hand-off that are taken for meant.
const MAX_CORES: usize = 4096;
const MAX_HANDOFF_NS: f64 = 1e6;

/// A modelled host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostProfile {
    /// Its name.
    pub name: String,
    /// What machine it is.
    pub description: String,
    /// Cores that run threads.
    pub cores: usize,
    /// Nanoseconds to take a lock word that another core took last.
    pub lock_handoff_ns: f64,
    /// Nanoseconds for what a lock guards to follow it, if another core changed it.
    pub lock_data_ns: f64,
    /// Costs of the engine's work.
    pub costs: CpuCosts,
    /// Where the numbers come from.
    pub sources: Vec<String>,
}

/// A profile as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    #[serde(default)]
    description: String,
    cores: usize,
    lock_handoff_ns: f64,
    lock_data_ns: f64,
    #[serde(default)]
    sources: Vec<String>,
    scaled_from: Option<String>,
    scale: Option<f64>,
    #[serde(default)]
    costs: BTreeMap<String, f64>,
}

impl HostProfile {
    /// Names of the profiles that come with the program.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// A profile that comes with the program.
    pub fn builtin(name: &str) -> Result<HostProfile> {
        match BUILTIN.iter().find(|(n, _)| *n == name) {
            Some((_, text)) => HostProfile::parse(text, name),
            None => {
                let names: Vec<&str> = HostProfile::builtin_names().collect();
                bad_file(name, None, "name", format!("no such host profile; there are {}", names.join(", ")))
            }
        }
    }

    /// A profile by its name, or from the file at that path.
    pub fn find(name: &str) -> Result<HostProfile> {
        if BUILTIN.iter().any(|(n, _)| *n == name) || !Path::new(name).exists() {
            return HostProfile::builtin(name);
        }
        HostProfile::load(Path::new(name))
    }

    /// A profile from a file.
    pub fn load(path: &Path) -> Result<HostProfile> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => HostProfile::parse(&text, &file),
            Err(e) => bad_file(&file, None, "the file", e.to_string()),
        }
    }

    /// Reads a profile's text; `file` is for messages.
    ///
    /// Errors name the file, the line, the key, and what would be accepted.
    pub fn parse(text: &str, file: &str) -> Result<HostProfile> {
        let line = |key: &str| line_of(text, key);
        let raw: Text = match toml::from_str(text) {
            Ok(raw) => raw,
            Err(e) => {
                let at = e.span().map(|s| place::line(text, s.start));
                let path = e.span().map(|s| place::path_at(text, s.start)).unwrap_or_default();
                let key = if path.is_empty() { "the file".to_string() } else { path.join(".") };
                return bad_file(file, at, &key, e.message().to_string());
            }
        };
        if raw.cores == 0 || raw.cores > MAX_CORES {
            return bad_file(file, line("cores"), "cores", format!("{}: 1 to {MAX_CORES} are accepted", raw.cores));
        }
        for (key, ns) in [("lock_handoff_ns", raw.lock_handoff_ns), ("lock_data_ns", raw.lock_data_ns)] {
            if !(0.0..=MAX_HANDOFF_NS).contains(&ns) {
                return bad_file(file, line(key), key, format!("{ns}: 0 to {MAX_HANDOFF_NS} ns are accepted"));
            }
        }
        let mut costs = base(&raw, file, &line)?;
        for (name, &ns) in &raw.costs {
            let Some(&cost) = Cost::ALL.iter().find(|c| c.name() == name) else {
                let names: Vec<&str> = Cost::ALL.iter().map(|c| c.name()).collect();
                return bad_file(file, line(name), name, format!("no such cost; there are {}", names.join(", ")));
            };
            if !(0.0..1e12).contains(&ns) {
                return bad_file(file, line(name), name, format!("{ns}: nanoseconds from 0 on are accepted"));
            }
            costs.set_ns(cost, ns);
        }
        let Text { name, description, cores, lock_handoff_ns, lock_data_ns, sources, .. } = raw;
        Ok(HostProfile { name, description, cores, lock_handoff_ns, lock_data_ns, costs, sources })
    }

    /// The profile as text that [`HostProfile::parse`] reads.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let quoted = |s: &str| toml::Value::from(s).to_string();
        let _ = writeln!(text, "name = {}", quoted(&self.name));
        let _ = writeln!(text, "description = {}", quoted(&self.description));
        let _ = writeln!(text, "cores = {}", self.cores);
        let _ = writeln!(text, "lock_handoff_ns = {:?}", self.lock_handoff_ns);
        let _ = writeln!(text, "lock_data_ns = {:?}", self.lock_data_ns);
        text.push_str("sources = [\n");
        for source in &self.sources {
            let _ = writeln!(text, "    {},", quoted(source));
        }
        text.push_str("]\n\n# Nanoseconds.\n[costs]\n");
        for &cost in Cost::ALL {
            let _ = writeln!(text, "{:<17} = {:<10?} # per {}", cost.name(), self.costs.ns(cost), cost.unit());
        }
        text
    }

    /// A simulation on this host.
    pub fn config(&self, seed: u64) -> sim::Config {
        sim::Config {
            seed,
            cores: self.cores,
            lock_handoff: Duration::from_nanos(self.lock_handoff_ns.round() as u64),
            lock_data: Duration::from_nanos(self.lock_data_ns.round() as u64),
            costs: self.costs.clone(),
            slack: SLACK,
            ..sim::Config::default()
        }
    }
}

/// What a profile starts from: another one, scaled, or nothing.
fn base(raw: &Text, file: &str, line: &impl Fn(&str) -> Option<usize>) -> Result<CpuCosts> {
    let Some(from) = &raw.scaled_from else {
        if raw.scale.is_some() {
            return bad_file(file, line("scale"), "scale", "it needs scaled_from, the profile to scale".into());
        }
        if let Some(absent) = Cost::ALL.iter().find(|c| !raw.costs.contains_key(c.name())) {
            let why = format!("[costs] has no {}; give all of them, or scaled_from and scale", absent.name());
            return bad_file(file, line("costs"), "costs", why);
        }
        return Ok(CpuCosts::default());
    };
    let scale = raw.scale.unwrap_or(1.0);
    if !(1e-3..=1e3).contains(&scale) {
        return bad_file(file, line("scale"), "scale", format!("{scale}: 0.001 to 1000 are accepted"));
    }
    let beside = Path::new(file).parent().map(|dir| dir.join(format!("{from}.toml"))).filter(|p| p.exists());
    let from = match beside {
        Some(path) if path != Path::new(file) => HostProfile::load(&path)?,
        _ if *from == raw.name => return bad_file(file, line("scaled_from"), "scaled_from", "it is itself".into()),
        _ => HostProfile::builtin(from)?,
    };
    Ok(from.costs.scaled(scale))
}

/// The line on which `key` is set.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let is = |l: &str| {
        l.trim_start().trim_start_matches('[').strip_prefix(key).is_some_and(|r| r.trim_start().starts_with(['=', ']']))
    };
    text.lines().position(is).map(|n| n + 1)
}

/// Names and values that a report prints, in the order of the table.
pub fn rows(costs: &CpuCosts) -> Vec<(&'static str, &'static str, f64)> {
    Cost::ALL.iter().map(|&c| (c.name(), c.unit(), costs.ns(c))).collect()
}
