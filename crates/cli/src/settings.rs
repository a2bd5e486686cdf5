//! The settings of a tier that stay with its database: `tier.json` in the directory.
//!
//! Without them a database made with a manager that keeps every page at home would be opened with one that does not.
//! They are written before a tier begins, and removed after it ended.

use crate::args::tier::TierArgs;
use crate::output::{Failure, about};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use varve::{Alpha, Costs, MapRecovery, TierOptions};

/// Their file.
pub const SETTINGS: &str = "tier.json";

/// The settings that stay with the database.
pub fn settings(dir: &Path) -> Result<TierOptions, Failure> {
    let path = dir.join(SETTINGS);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(TierOptions::default()),
        Err(e) => return Err(about(&path, &e)),
    };
    let options = serde_json::from_str(&text).ok().and_then(|value: Value| parse(&value));
    options.filter(|options| options.validate().is_ok()).ok_or_else(|| {
        Failure::Failed(format!(
            "{} cannot be read as settings of a tier: remove it, then choose them again with `varve tier set`",
            path.display()
        ))
    })
}

fn parse(value: &Value) -> Option<TierOptions> {
    let mut options = TierOptions { manager: value["manager"].as_str()?.into(), ..TierOptions::default() };
    options.options.alpha = value["alpha"].as_str()?.parse().ok()?;
    options.zone = value["zone"].as_f64()?;
    options.map_recovery = value["map_recovery"].as_str()?.parse().ok()?;
    options.dirty_ceiling = value["dirty_ceiling"].as_f64()?;
    options.daily_budget = value["daily_budget"].as_u64()?;
    let ms = |name: &str| value["costs_ms"][name].as_f64();
    options.options.costs = Costs {
        read_slow: ms("read_slow")?,
        write_slow: ms("write_slow")?,
        read_fast: ms("read_fast")?,
        write_fast: ms("write_fast")?,
    };
    Some(options)
}

pub fn as_json(options: &TierOptions) -> Value {
    let alpha = match options.options.alpha {
        Alpha::Global => "global",
        Alpha::Keyspace => "keyspace",
        Alpha::Group => "group",
    };
    let map_recovery = match options.map_recovery {
        MapRecovery::Zone => "zone",
        MapRecovery::Scan => "scan",
        MapRecovery::Log => "log",
    };
    let c = &options.options.costs;
    let (slow, fast) = ((c.read_slow, c.write_slow), (c.read_fast, c.write_fast));
    json!({ "manager": options.manager, "alpha": alpha, "zone": options.zone, "map_recovery": map_recovery,
        "dirty_ceiling": options.dirty_ceiling, "daily_budget": options.daily_budget,
        "costs_ms": { "read_slow": slow.0, "write_slow": slow.1, "read_fast": fast.0, "write_fast": fast.1 } })
}

/// The file gets its name when it is whole and durable.
pub fn keep(dir: &Path, options: &TierOptions) -> Result<(), Failure> {
    let (path, partial) = (dir.join(SETTINGS), dir.join("tier.json.partial"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        writeln!(file, "{:#}", as_json(options))?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| about(&path, &e))
}

/// `options` with what was chosen.
pub fn with(mut options: TierOptions, a: &TierArgs) -> Result<TierOptions, Failure> {
    options.manager = a.manager.clone().unwrap_or(options.manager);
    options.options.alpha = a.alpha.unwrap_or(options.options.alpha);
    options.zone = a.zone.unwrap_or(options.zone);
    options.map_recovery = a.map_recovery.unwrap_or(options.map_recovery);
    options.dirty_ceiling = a.dirty_ceiling.unwrap_or(options.dirty_ceiling);
    options.daily_budget = a.daily_budget.unwrap_or(options.daily_budget);
    options.options.costs = a.tier_costs.unwrap_or(options.options.costs);
    options.validate().map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(options)
}

pub fn is_chosen(a: &TierArgs) -> bool {
    let shares = a.zone.is_some() || a.dirty_ceiling.is_some() || a.daily_budget.is_some();
    shares || a.manager.is_some() || a.alpha.is_some() || a.map_recovery.is_some() || a.tier_costs.is_some()
}
