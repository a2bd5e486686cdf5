//! The text of an experiment file, and errors that name its lines.

use super::ExperimentError;
use crate::place;
use toml::Table;

/// The text being read, for errors.
pub(super) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Source<'_> {
    pub fn error(&self, path: &[&str], what: impl Into<String>) -> ExperimentError {
        let line = place::find(self.text, path).map_or(1, |span| place::line(self.text, span.start));
        ExperimentError::File { file: self.file.into(), line, key: path.join("."), what: what.into() }
    }

    pub fn parse(&self) -> Result<Table, ExperimentError> {
        self.text.parse().map_err(|e: toml::de::Error| {
            let at = e.span().map_or(0, |s| s.start);
            let key = self.text.lines().nth(place::line(self.text, at) - 1).unwrap_or_default().trim().to_string();
            ExperimentError::File {
                file: self.file.into(),
                line: place::line(self.text, at),
                key,
                what: e.message().to_string(),
            }
        })
    }
}

/// A key path in its parts.
pub(super) fn split(path: &str) -> Vec<String> {
    path.split('.').map(|part| part.trim().to_string()).collect()
}
