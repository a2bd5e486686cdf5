//! `probe --cpu`: what the engine's work costs on this machine's processor, as a host profile.

use crate::output::{Failure, Out, say};
use std::path::Path;
use varve_lab::host::{CalibrateOptions, HostProfile, calibrate};

/// Rounds of each benchmark: of 1 ms, so the whole takes about half a minute.
const ROUNDS: usize = 40;
const QUICK_ROUNDS: usize = 8;

/// Calibrates, prints the table, and writes the profile to `save`.
pub fn run(out: Out, save: Option<&Path>, quick: bool) -> Result<(), Failure> {
    let name =
        save.and_then(Path::file_stem).map_or_else(|| "this-machine".into(), |s| s.to_string_lossy().into_owned());
    let guess = HostProfile::builtin("vm-2core")?;
    let (rounds, warehouses) = if quick { (QUICK_ROUNDS, 1) } else { (ROUNDS, 2) };
    let bar = out.progress("calibrating", 1);
    let dir = std::env::temp_dir();
    let found = calibrate(&CalibrateOptions { name, rounds, warehouses, guess }, &dir, |what| {
        bar.set_message(what.to_string());
    })?;
    bar.finish_and_clear();
    if out.json {
        let measured = found.measured.iter().map(|m| {
            serde_json::json!({ "name": m.name, "least_ns": m.least, "quartile_ns": m.quartile,
                "median_ns": m.median, "explained_ns": m.explained })
        });
        let costs: serde_json::Map<_, _> = varve_lab::host::rows(&found.host.costs)
            .into_iter()
            .map(|(name, _, ns)| (name.into(), ns.into()))
            .collect();
        say!(
            "{}",
            serde_json::json!({ "name": found.host.name, "cores": found.host.cores, "ratio": found.ratio,
                "lock_handoff_ns": found.host.lock_handoff_ns,
                "lock_data_ns": found.host.lock_data_ns, "costs_ns": costs,
                "measured": measured.collect::<Vec<_>>() })
        )?;
    } else {
        say!("{:<38} {:>12} {:>12} {:>12} {:>12}", "ns per operation", "least", "quartile", "median", "by the table")?;
        for m in &found.measured {
            let explained = m.explained.map_or(String::new(), |ns| format!("{ns:12.0}"));
            say!("{:<38} {:12.0} {:12.0} {:12.0} {explained}", m.name, m.least, m.quartile, m.median)?;
        }
        say!("\ncost on this processor, {:.2} times the times of vm-2core as a whole", found.ratio)?;
        for (name, unit, ns) in varve_lab::host::rows(&found.host.costs) {
            say!("{name:<38} {ns:12.3} ns per {unit}")?;
        }
        say!("{:<38} {:12.1} ns", "lock hand-off", found.host.lock_handoff_ns)?;
        say!("{:<38} {:12.1} ns", "data that follows a lock", found.host.lock_data_ns)?;
    }
    if let Some(file) = save {
        std::fs::write(file, found.host.to_toml())?;
        out.note(format!("profile written to {}", file.display()));
    }
    Ok(())
}
