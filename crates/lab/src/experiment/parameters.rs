//! What the figures of an experiment rest on: the numbers of its file, of its devices' profiles and of its host, each
//! with its source or as assumed.

use super::ExperimentError;
use super::document::Experiment;
use super::source::Source;
use super::spec::Device;
use crate::host::HostProfile;
use std::collections::BTreeMap;
use toml::{Table, Value};
use varve_models::Profile;
use varve_models::sources::{self, Parameter};

/// A number that an experiment rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    /// Whose it is: `experiment`, or the name of a profile.
    pub of: String,
    /// Key path in its file, value, source.
    pub parameter: Parameter,
    /// Key paths of the experiment by which `--set` changes it everywhere; none if nothing can.
    pub keys: Vec<String>,
}

/// Keys that are no parameters: names of profiles, and what changes no figure.
fn is_name(key: &str) -> bool {
    key.ends_with(".profile")
        || ["devices.drives", "run.jobs", "run.clock", "run.check", "run.fill", "run.reopen"].contains(&key)
}

/// The numbers that a file states for all points: not those that are swept. A source may also be that of a key which
/// only variants set.
pub(super) fn stated(
    source: &Source<'_>,
    base: &Table,
    given: &BTreeMap<String, String>,
    swept: &Table,
    variants: &[Table],
) -> Result<Vec<Parameter>, ExperimentError> {
    let tables: Vec<&Table> = std::iter::once(base).chain(variants).collect();
    if let Some(key) = sources::stray(&tables, given) {
        return Err(source.error(&["sources"], format!("{key:?} has a source, but is no key of the experiment")));
    }
    let axes: Vec<String> = sources::parameters(swept, given).into_iter().map(|axis| axis.key).collect();
    let mut all = sources::parameters(base, given);
    all.retain(|p| !is_name(&p.key) && !axes.contains(&p.key));
    Ok(all)
}

/// All numbers that the experiment rests on.
///
/// # Errors
/// A profile that cannot be read.
pub fn parameters(e: &Experiment) -> Result<Vec<Basis>, ExperimentError> {
    let own =
        e.stated.iter().map(|p| Basis { of: "experiment".into(), parameter: p.clone(), keys: vec![p.key.clone()] });
    let mut all: Vec<Basis> = own.collect();
    for (profile, roles) in profiles(e) {
        let parameters = Profile::parameters(&profile).map_err(|why| ExperimentError::Check(why.to_string()))?;
        for parameter in parameters {
            let keys: Vec<String> = roles.iter().map(|role| format!("{role}.{}", parameter.key)).collect();
            let stated = |key: &String| e.stated.iter().any(|p| p.key == *key || p.key.starts_with(&format!("{key}.")));
            if !keys.is_empty() && keys.iter().all(stated) {
                continue;
            }
            let keys = keys.into_iter().filter(|key| !stated(key)).collect();
            all.push(Basis { of: profile.clone(), parameter, keys });
        }
    }
    let mut hosts: Vec<&str> = e.points.iter().filter_map(|p| p.spec.host.profile.as_deref()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    for name in hosts {
        all.extend(of_host(e, name).map_err(ExperimentError::Check)?);
    }
    Ok(all)
}

/// Device profiles of the points, with the roles that have one and the same profile in all points.
fn profiles(e: &Experiment) -> BTreeMap<String, Vec<String>> {
    let name = |d: &Device| d.0.get("profile").and_then(Value::as_str).map(String::from);
    let mut roles: BTreeMap<&str, Vec<Option<String>>> = BTreeMap::new();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for d in e.points.iter().map(|p| &p.spec.devices) {
        let roles_of = [
            ("devices.data", &d.data),
            ("devices.log", &d.log),
            ("devices.fast", &d.fast),
            ("devices.flash", &d.flash),
        ];
        for (role, device) in roles_of {
            let name = name(device);
            found.entry(name.clone().unwrap_or_default()).or_default();
            let names = roles.entry(role).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for drive in &d.drives {
            found.entry(drive.clone()).or_default();
        }
    }
    found.remove("");
    for (role, names) in roles {
        if let [Some(name)] = &names[..] {
            found.get_mut(name).expect("it was found above").push(role.into());
        }
    }
    found
}

/// The numbers of a host profile: its sources are lines of the form `key, key: text`; the first is about all others.
fn of_host(e: &Experiment, name: &str) -> Result<Vec<Basis>, String> {
    let host = HostProfile::find(name).map_err(|why| why.to_string())?;
    let about = |line: &&String, key: &str| {
        line.split_once(':').is_some_and(|(keys, _)| keys.split(',').any(|k| k.trim() == key))
    };
    let source = |key: &str| match host.sources.iter().find(|line| about(line, key)) {
        Some(line) => line.split_once(':').map(|(_, text)| text.trim().to_string()),
        None => host.sources.first().cloned(),
    };
    let numbers = [
        ("cores", Value::Integer(host.cores as i64), "host.cores"),
        ("lock_handoff_ns", Value::Float(host.lock_handoff_ns), "host.lock_handoff_ns"),
        ("lock_data_ns", Value::Float(host.lock_data_ns), "host.lock_data_ns"),
        ("scale", Value::Float(1.0), "host.cost_factor"),
    ];
    let stated = |key: &str| e.stated.iter().any(|p| p.key == key);
    let numbers = numbers.into_iter().filter(|(_, _, path)| !stated(path));
    let basis = |(key, value, path): (&str, Value, &str)| {
        let parameter = Parameter { key: key.into(), value, source: source(key) };
        Basis { of: name.into(), parameter, keys: vec![path.into()] }
    };
    Ok(numbers.map(basis).collect())
}
