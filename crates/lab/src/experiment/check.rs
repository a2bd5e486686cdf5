//! Checks: a figure of an experiment, what was published, and the range that is accepted.

use super::document::Point;
use super::figure::{Figure, FigureError, Values};
use super::point::PointResult;
use serde::{Deserialize, Serialize};

/// `[[check]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Identity, such as `tput.lruc_vanilla`; may hold `{axis}` when `each` is given.
    pub id: String,
    /// The expression.
    pub figure: String,
    /// The published value, if there is one: a number or an expression (a theory that the experiment computes).
    #[serde(default)]
    pub published: Option<Bound>,
    /// Least value accepted.
    #[serde(default)]
    pub low: Option<Bound>,
    /// Largest value accepted.
    #[serde(default)]
    pub high: Option<Bound>,
    /// Where the published value or the range comes from.
    #[serde(default)]
    pub source: String,
    /// Axes: one check for each combination of their values; `{axis}` in the other keys stands for the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<String>,
    /// Whether it is also made with `--quick`.
    #[serde(default = "yes")]
    pub quick: bool,
}

fn yes() -> bool {
    true
}

/// A number, or an expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bound {
    /// A number.
    Number(f64),
    /// A figure.
    Figure(String),
}

impl Bound {
    fn parse(&self) -> Result<(), String> {
        match self {
            Bound::Number(_) => Ok(()),
            Bound::Figure(text) => Figure::parse(text).map(drop).map_err(|e| format!("{e:?}")),
        }
    }

    fn value(&self, values: &[Values<'_>]) -> Result<f64, FigureError> {
        match self {
            Bound::Number(n) => Ok(*n),
            Bound::Figure(text) => Figure::parse(text)?.value(values),
        }
    }

    fn replace(&mut self, from: &str, to: &str) {
        if let Bound::Figure(text) = self {
            *text = text.replace(from, to);
        }
    }
}

/// A check and what came of it, as printed with `--json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the experiment.
    pub experiment: String,
    /// Id of the check.
    pub check: String,
    /// The figure.
    pub measured: Option<f64>,
    /// The published value.
    pub published: Option<f64>,
    /// Least value accepted.
    pub low: Option<f64>,
    /// Largest value accepted.
    pub high: Option<f64>,
    /// Whether the figure lies within.
    pub holds: bool,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq)]
pub enum Judged {
    /// It was measured.
    Verdict(Verdict),
    /// A point it needs was not run (because of `--set` or `--quick`).
    Skipped {
        /// Id of the check.
        check: String,
        /// What is missing.
        why: String,
    },
}

/// A percent share as ids have it: 0.1 is `010`.
fn percent(value: &str) -> String {
    value.parse::<f64>().map_or_else(|_| value.to_string(), |v| format!("{:03.0}", v * 100.0))
}

/// One check for each combination of `each`, those of the quick run only if `quick`; refuses what cannot be computed.
/// The error has the check's position in the file.
pub(super) fn expand(checks: Vec<Check>, points: &[Point], quick: bool) -> Result<Vec<Check>, (usize, String)> {
    let axes: Vec<&str> = points[0].axes.iter().map(|(name, _)| name.as_str()).collect();
    let mut all: Vec<Check> = Vec::new();
    for (n, check) in checks.into_iter().enumerate() {
        if quick && !check.quick {
            continue;
        }
        let mut some = vec![check];
        for axis in some[0].each.clone() {
            let Some(at) = axes.iter().position(|a| *a == axis) else {
                return Err((n, format!("each: there is no axis {axis:?}; there are {}", axes.join(", "))));
            };
            let mut values: Vec<&str> = points.iter().map(|p| p.axes[at].1.as_str()).collect();
            values.sort_unstable();
            values.dedup();
            some = some.iter().flat_map(|c| values.iter().map(|v| instance(c, &axis, v))).collect();
        }
        for check in &some {
            validate(check, &axes).map_err(|what| (n, what))?;
            if all.iter().any(|c| c.id == check.id) {
                return Err((n, format!("there is another check with the id {:?}", check.id)));
            }
        }
        all.extend(some);
    }
    Ok(all)
}

fn instance(check: &Check, axis: &str, value: &str) -> Check {
    let mut check = check.clone();
    for (name, text) in [(format!("{{{axis}}}"), value.to_string()), (format!("{{{axis}:%}}"), percent(value))] {
        check.id = check.id.replace(&name, &text);
        check.figure = check.figure.replace(&name, &text);
        for bound in [&mut check.published, &mut check.low, &mut check.high].into_iter().flatten() {
            bound.replace(&name, &text);
        }
    }
    check
}

fn validate(check: &Check, axes: &[&str]) -> Result<(), String> {
    if check.low.is_none() && check.high.is_none() {
        return Err(format!("check {:?} accepts everything: give low, high or both", check.id));
    }
    let figure = Figure::parse(&check.figure).map_err(|e| match e {
        FigureError::Syntax(what) | FigureError::NotMeasured(what) => what,
    })?;
    for axis in figure.axes() {
        if !axes.contains(&axis.as_str()) {
            return Err(format!("figure: there is no axis {axis:?}; there are {}", axes.join(", ")));
        }
    }
    [&check.published, &check.low, &check.high].into_iter().flatten().try_for_each(Bound::parse)
}

/// Judges a check by the results. The error is a mistake in the check.
pub(super) fn judge(experiment: &str, check: &Check, results: &[PointResult]) -> Result<Judged, String> {
    let values: Vec<Values<'_>> = results.iter().map(|r| Values { axes: &r.axes, metrics: &r.metrics }).collect();
    let numbers = || {
        let bound = |b: &Option<Bound>| b.as_ref().map(|b| b.value(&values)).transpose();
        let measured = Figure::parse(&check.figure)?.value(&values)?;
        Ok((measured, bound(&check.published)?, bound(&check.low)?, bound(&check.high)?))
    };
    match numbers() {
        Ok((measured, published, low, high)) => {
            let holds = measured.is_finite() && low.is_none_or(|l| measured >= l) && high.is_none_or(|h| measured <= h);
            let measured = measured.is_finite().then_some(measured);
            let (experiment, check) = (experiment.to_string(), check.id.clone());
            Ok(Judged::Verdict(Verdict { experiment, check, measured, published, low, high, holds }))
        }
        Err(FigureError::NotMeasured(why)) => Ok(Judged::Skipped { check: check.id.clone(), why }),
        Err(FigureError::Syntax(what)) => Err(format!("check {:?}: {what}", check.id)),
    }
}
