//! The settings of a tier that stay with its database: `tier.json` in the directory.
//!
//! Without them a database made with a manager that keeps every page at home would be opened with one that does not.
//! They are written before a tier begins, and removed after it ended.

use crate::output::{Failure, about};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use varve::setting::Setting;
use varve::{TIER_OPTIONS, TierOptions};

/// Their file.
pub const SETTINGS: &str = "tier.json";
/// Bytes that it has at most.
const MOST: u64 = 64 << 10;

/// The settings that stay with the database.
pub fn settings(dir: &Path) -> Result<TierOptions, Failure> {
    let path = dir.join(SETTINGS);
    let text = match varve_device::read_text(&path, MOST) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(TierOptions::default());
        }
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

/// The times of `costs_ms`, in the order of the option's text.
const COSTS: [&str; 4] = ["read_slow", "write_slow", "read_fast", "write_fast"];

/// The options that are kept.
fn kept() -> impl Iterator<Item = &'static Setting<TierOptions>> {
    TIER_OPTIONS.settings.iter().filter(|setting| setting.cli.is_some())
}

fn parse(value: &Value) -> Option<TierOptions> {
    let mut options = TierOptions::default();
    for setting in kept() {
        let text = match &value[setting.name] {
            Value::String(text) => text.clone(),
            Value::Object(costs) => COSTS.map(|name| costs.get(name).map_or(String::new(), Value::to_string)).join(","),
            Value::Number(n) if n.as_u64() == Some(0) && setting.none.is_some() => "none".into(),
            Value::Number(n) => n.to_string(),
            _ => return None,
        };
        setting.set(&mut options, &text).ok()?;
    }
    Some(options)
}

pub fn as_json(options: &TierOptions) -> Value {
    let number = |text: &str| text.parse::<u64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from));
    let value = |setting: &Setting<TierOptions>| match setting.plain(options) {
        text if setting.name == "costs_ms" => {
            let costs = COSTS.into_iter().zip(text.split(','));
            Value::Object(costs.map(|(name, ms)| (name.into(), number(ms).unwrap_or_default())).collect())
        }
        text if setting.none.is_some() && text == "none" => Value::from(0),
        text => number(&text).unwrap_or_else(|_| Value::from(text)),
    };
    Value::Object(kept().map(|setting| (setting.name.to_string(), value(setting))).collect())
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
