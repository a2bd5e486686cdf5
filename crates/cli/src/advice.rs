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

    /// For people, two lines.
    pub fn text(&self) -> String {
        // Figures of MB/s, and ratios: three digits that say something.
        let predicted =
            if self.predicted < 10.0 { format!("{:.2}", self.predicted) } else { format!("{:.1}", self.predicted) };
        let end = match &self.command {
            Some(command) => format!("; do it: {command}"),
            None => ": does not pay".into(),
        };
        format!("{}: {}\n  predicted {predicted} {}{end}", self.what, self.why, self.unit)
    }

    /// Prints it, for people.
    pub fn print(&self, out: Out) -> Result<(), Failure> {
        assert!(!out.json, "JSON has it as a field");
        say!("{}", self.text())?;
        Ok(())
    }
}

/// What an advisor says: advice, or what it must know first.
pub type Said = Result<Vec<Advice>, String>;

/// What several advisors say, by their names.
pub fn print_all(out: Out, said: &[(&str, Said)]) -> Result<(), Failure> {
    if out.json {
        let one = |said: &Said| match said {
            Ok(advice) => json!({ "advice": advice.iter().map(Advice::as_json).collect::<Vec<_>>() }),
            Err(needs) => json!({ "advice": [], "needs": needs }),
        };
        let all: serde_json::Map<String, Value> =
            said.iter().map(|(name, said)| (name.to_string(), one(said))).collect();
        say!("{}", Value::Object(all))?;
        return Ok(());
    }
    for (name, said) in said {
        say!("{name}:")?;
        match said {
            Ok(advice) => advice.iter().try_for_each(|advice| advice.print(out))?,
            Err(needs) => say!("  no advice: {needs}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_has_one_form() {
        let advice = |command: Option<&str>| Advice {
            what: "do it".into(),
            why: "it helps".into(),
            predicted: 1.5,
            unit: "times",
            command: command.map(str::to_string),
        };
        assert_eq!(advice(Some("varve x")).text(), "do it: it helps\n  predicted 1.50 times; do it: varve x");
        assert!(advice(None).text().ends_with("times: does not pay"));
        assert_eq!(advice(None).as_json()["pays"], false);
    }
}
