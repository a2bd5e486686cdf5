//! What assumed numbers decide: each is halved and doubled, and the checks that move are named.
//!
//! A number moves a check if its figure changes by more than [`MOVES`], or if its verdict does.

use super::document::{Experiment, Request};
use super::parameters::{Basis, parameters};
use super::units::Bytes;
use super::{ExperimentError, Judged, RunHow, judge_all, read, run};
use serde::{Deserialize, Serialize};
use toml::Value;

/// Least change of a figure that is told, as a share of it.
pub const MOVES: f64 = 0.05;

/// A check that an assumed number moves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Id of the check.
    pub check: String,
    /// The figure as assumed.
    pub before: Option<f64>,
    /// The figure with the number changed.
    pub after: Option<f64>,
    /// Whether the verdict changed.
    pub verdict: bool,
}

/// One assumed number, halved or doubled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Whose number it is: `experiment`, or a profile.
    pub of: String,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The value tried.
    pub tried: String,
    /// What it is assumed for, if that is told.
    pub source: Option<String>,
    /// Why it could not be tried.
    pub refused: Option<String>,
    /// The checks that moved.
    pub moved: Vec<Moved>,
}

/// The assumed numbers that can be halved and doubled.
///
/// # Errors
/// A profile that cannot be read.
pub fn assumed(e: &Experiment) -> Result<Vec<Basis>, ExperimentError> {
    let mut all = parameters(e)?;
    all.retain(|b| b.parameter.is_assumed() && !b.keys.is_empty() && times(&b.parameter.value, 2.0).is_some());
    Ok(all)
}

/// Runs the experiment once as it is, then with each assumed number halved and doubled; `told` hears what is tried.
///
/// # Errors
/// The experiment as it is cannot be run or judged.
pub fn sensitivity(
    e: &Experiment,
    file: &str,
    how: &RunHow,
    mut told: impl FnMut(usize, usize, &str),
) -> Result<Vec<Trial>, ExperimentError> {
    let numbers = assumed(e)?;
    let all = 1 + 2 * numbers.len();
    told(0, all, "as it is");
    let before = judged(e, how)?;
    let mut trials = Vec::new();
    for basis in &numbers {
        for factor in [0.5, 2.0] {
            let value = times(&basis.parameter.value, factor).expect("only such numbers are tried");
            // Half of one is one again.
            if value == basis.parameter.value {
                continue;
            }
            let tried = shown(&value);
            told(trials.len() + 1, all, &format!("{} = {tried}", basis.parameter.key));
            let mut sets = e.request.sets.clone();
            sets.extend(basis.keys.iter().map(|key| (key.clone(), value.to_string())));
            let after = read(&e.name, file, &e.text, Request { quick: e.request.quick, sets })
                .and_then(|changed| judged(&changed, how));
            let (refused, moved) = match after {
                Ok(after) => (None, compare(&before, &after)),
                Err(why) => (Some(why.to_string()), Vec::new()),
            };
            trials.push(Trial {
                of: basis.of.clone(),
                key: basis.parameter.key.clone(),
                value: shown(&basis.parameter.value),
                tried,
                source: basis.parameter.source.clone(),
                refused,
                moved,
            });
        }
    }
    Ok(trials)
}

fn judged(e: &Experiment, how: &RunHow) -> Result<Vec<Judged>, ExperimentError> {
    judge_all(&e.name, &e.checks, &run(e, how, |_| ())?)
}

/// The checks whose figure or verdict differs.
fn compare(before: &[Judged], after: &[Judged]) -> Vec<Moved> {
    let verdicts = |all: &[Judged]| {
        let one = |j: &Judged| match j {
            Judged::Verdict(v) => Some(v.clone()),
            Judged::Skipped { .. } => None,
        };
        all.iter().filter_map(one).collect::<Vec<_>>()
    };
    let after = verdicts(after);
    let moved = |b: super::Verdict| {
        let a = after.iter().find(|a| a.check == b.check)?;
        let far = match (b.measured, a.measured) {
            (Some(before), Some(after)) => (after - before).abs() > MOVES * before.abs(),
            (before, after) => before != after,
        };
        let verdict = b.holds != a.holds;
        (far || verdict).then_some(Moved { check: b.check, before: b.measured, after: a.measured, verdict })
    };
    verdicts(before).into_iter().filter_map(moved).collect()
}

/// A number, a size, a scaled size or a list of numbers, times `factor`; none of anything else, and of zero.
fn times(value: &Value, factor: f64) -> Option<Value> {
    match value {
        Value::Integer(0) => None,
        Value::Integer(n) => Some(Value::Integer((*n as f64 * factor).round().max(1.0) as i64)),
        Value::Float(x) => (*x != 0.0).then(|| Value::Float(x * factor)),
        Value::Array(all) => all.iter().map(|v| times(v, factor)).collect::<Option<Vec<_>>>().map(Value::Array),
        Value::String(text) => match text.strip_prefix("scaled(").and_then(|t| t.strip_suffix(')')) {
            Some(inner) => scaled(inner, factor).map(|size| Value::String(format!("scaled({size})"))),
            None => scaled(text, factor).map(Value::String),
        },
        _ => None,
    }
}

fn scaled(text: &str, factor: f64) -> Option<String> {
    match text.trim().parse::<f64>() {
        Ok(number) => Some((number * factor).to_string()),
        Err(_) => Bytes::parse(text).map(|size| ((size.0 as f64 * factor) as u64).to_string()),
    }
}

/// Without quotes.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sizes_and_lists_are_doubled_and_names_are_not() {
        let of = |text: &str| -> Option<String> {
            let table: toml::Table = format!("v = {text}").parse().unwrap();
            times(&table["v"], 2.0).map(|value| shown(&value))
        };
        assert_eq!(of("3").as_deref(), Some("6"));
        assert_eq!(of("0.5").as_deref(), Some("1.0"));
        assert_eq!(of("\"1 KiB\"").as_deref(), Some("2048"));
        assert_eq!(of("\"scaled(100)\"").as_deref(), Some("scaled(200)"));
        assert_eq!(of("\"scaled(1 KiB)\"").as_deref(), Some("scaled(2048)"));
        assert_eq!(of("[1, 2.5]").as_deref(), Some("[2, 5.0]"));
        for other in ["0", "0.0", "true", "\"greedy\"", "[{ kib = 4 }]"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
