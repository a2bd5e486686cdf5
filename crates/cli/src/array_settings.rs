//! The settings of an array that stay with its database: `array.json` in the directory.

use crate::output::{Failure, about};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use varve::Options;

/// Their file.
const SETTINGS: &str = "array.json";

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArraySettings {
    /// Options by name, as text.
    pub options: BTreeMap<String, String>,
    /// No extent is to be moved.
    pub paused: bool,
}

impl ArraySettings {
    pub fn as_json(&self) -> Value {
        json!({ "options": self.options, "paused": self.paused })
    }

    fn parse(value: &Value) -> Option<ArraySettings> {
        let paused = value["paused"].as_bool()?;
        let options = value["options"].as_object()?.iter();
        let options = options.map(|(name, value)| Some((name.clone(), value.as_str()?.to_string())));
        Some(ArraySettings { options: options.collect::<Option<_>>()?, paused })
    }

    /// These over other options.
    pub fn over(&self, mut options: Options) -> Result<Options, Failure> {
        self.options.iter().try_for_each(|(name, value)| options.set(name, value))?;
        Ok(options)
    }
}

/// The settings that stay with the database.
pub fn settings(dir: &Path) -> Result<ArraySettings, Failure> {
    let path = dir.join(SETTINGS);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(ArraySettings::default());
        }
        Err(e) => return Err(about(&path, &e)),
    };
    let settings = serde_json::from_str(&text).ok().and_then(|value: Value| ArraySettings::parse(&value));
    let good = settings.filter(|settings| settings.over(Options::default()).is_ok());
    good.ok_or_else(|| {
        Failure::Failed(format!(
            "{} cannot be read as settings of an array: remove it, then choose them again with `varve array set`",
            path.display()
        ))
    })
}

/// The file gets its name when it is whole and durable.
pub fn keep(dir: &Path, settings: &ArraySettings) -> Result<(), Failure> {
    let (path, partial) = (dir.join(SETTINGS), dir.join("array.json.partial"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        writeln!(file, "{:#}", settings.as_json())?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| about(&path, &e))
}
