//! Advice, in one form whoever gives it: what, why, the predicted figure, the command that does it, or that it does not
//! pay.

use crate::output::{Failure, Out, say};
use serde_json::{Value, json};

/// One piece of advice.
pub struct Advice {
    /// What should be done.
    pub what: String,
    /// Why.
    pub why: String,
    /// What that brings, as a figure; 0: nothing.
    pub predicted: f64,
    /// The unit of the figure.
    pub unit: &'static str,
    /// What does it; none: it does not pay.
    pub command: Option<String>,
}

impl Advice {
    /// As JSON, for a field `advice` of what a command prints.
    pub fn as_json(&self) -> Value {
        json!({
            "what": self.what, "why": self.why, "predicted": self.predicted, "unit": self.unit,
            "command": self.command, "pays": self.command.is_some(),
        })
    }

    /// Prints it, for people.
    pub fn print(&self, out: Out) -> Result<(), Failure> {
        assert!(!out.json, "JSON has it as a field");
        say!("{}: {}", self.what, self.why)?;
        match &self.command {
            Some(command) => say!("  predicted {:.1} {}; do it: {command}", self.predicted, self.unit)?,
            None => say!("  predicted {:.1} {}: does not pay", self.predicted, self.unit)?,
        }
        Ok(())
    }
}
