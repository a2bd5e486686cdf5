//! Checks: a figure of an experiment, what was published, and the range that is accepted.

use super::document::Point;
use super::figure::{Figure, FigureError, Values, median};
use super::point::PointResult;
use super::sweep::shown;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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
    /// One check for each row; `{name}` in the other keys stands for the row's value of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<BTreeMap<String, toml::Value>>,
    /// The figure is shown beside the published one and not judged: it has no range.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reported: bool,
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
            Bound::Figure(text) => Figure::parse(text).map(drop).map_err(|e| e.to_string()),
        }
    }

    fn value(&self, values: &[Values<'_>]) -> Result<f64, FigureError> {
        match self {
            Bound::Number(n) => Ok(*n),
            Bound::Figure(text) => Figure::parse(text)?.value(values),
        }
    }

    fn fill(&mut self, name: &str, value: &str) {
        if let Bound::Figure(text) = self {
            *text = fill(text, name, value);
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
    /// The figure; of several seeds the median.
    pub measured: Option<f64>,
    /// Least and largest of the seeds, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds: Option<(f64, f64)>,
    /// The published value.
    pub published: Option<f64>,
    /// Least value accepted.
    pub low: Option<f64>,
    /// Largest value accepted.
    pub high: Option<f64>,
    /// Whether the figure lies within; none if it is only reported.
    pub holds: Option<bool>,
    /// The seeds do not agree on that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub narrowly: bool,
    /// The figure is a comparison: 1 for yes, 0 for no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub order: bool,
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

/// Every axis that some point has.
pub(super) fn axes(points: &[Point]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for (name, _) in points.iter().flat_map(|p| &p.axes) {
        if !all.contains(&name.as_str()) {
            all.push(name);
        }
    }
    all
}

/// The combinations of values of `each` that points have, in their order; refuses an axis that there is not.
pub(super) fn combinations<'a>(each: &[String], points: &'a [Point]) -> Result<Vec<Vec<&'a str>>, String> {
    let known = axes(points);
    if let Some(axis) = each.iter().find(|axis| !known.contains(&axis.as_str())) {
        return Err(format!("there is no axis {axis:?}; there are {}", known.join(", ")));
    }
    let value = |p: &'a Point, axis: &String| p.axes.iter().find(|(name, _)| name == axis).map(|(_, v)| v.as_str());
    let mut found: Vec<Vec<&str>> = Vec::new();
    for values in points.iter().filter_map(|p| each.iter().map(|axis| value(p, axis)).collect()) {
        if !found.contains(&values) {
            found.push(values);
        }
    }
    match found.is_empty() {
        true => Err(format!("no point has all of {}", each.join(", "))),
        false => Ok(found),
    }
}

/// Puts a value for `{name}`, and its percent for `{name:%}`.
pub(super) fn fill(text: &str, name: &str, value: &str) -> String {
    text.replace(&format!("{{{name}}}"), value).replace(&format!("{{{name}:%}}"), &percent(value))
}

/// One check for each row and each combination of `each`, those of the quick run only if `quick`; refuses what cannot
/// be computed. The error has the check's position in the file.
pub(super) fn expand(checks: Vec<Check>, points: &[Point], quick: bool) -> Result<Vec<Check>, (usize, String)> {
    let axes = axes(points);
    let mut all: Vec<Check> = Vec::new();
    for (n, check) in checks.into_iter().enumerate() {
        if quick && !check.quick {
            continue;
        }
        let combinations = match check.each.is_empty() {
            true => vec![Vec::new()],
            false => combinations(&check.each, points).map_err(|what| (n, format!("each: {what}")))?,
        };
        for row in in_rows(&check) {
            for values in &combinations {
                let named = row.each.iter().map(String::as_str).zip(values.iter().copied());
                let one = instance(&row, named);
                validate(&one, &axes).map_err(|what| (n, what))?;
                if all.iter().any(|c| c.id == one.id) {
                    return Err((n, format!("there is another check with the id {:?}", one.id)));
                }
                all.push(one);
            }
        }
    }
    Ok(all)
}

/// The check with each of its rows put in.
fn in_rows(check: &Check) -> Vec<Check> {
    let of = |row: &BTreeMap<String, toml::Value>| {
        let values: Vec<(&str, String)> = row.iter().map(|(name, value)| (name.as_str(), shown(value))).collect();
        instance(check, values.iter().map(|(name, value)| (*name, value.as_str())))
    };
    if check.rows.is_empty() { vec![check.clone()] } else { check.rows.iter().map(of).collect() }
}

fn instance<'a>(check: &Check, values: impl Iterator<Item = (&'a str, &'a str)>) -> Check {
    let mut check = Check { rows: Vec::new(), ..check.clone() };
    for (name, value) in values {
        check.id = fill(&check.id, name, value);
        check.figure = fill(&check.figure, name, value);
        for bound in [&mut check.published, &mut check.low, &mut check.high].into_iter().flatten() {
            bound.fill(name, value);
        }
    }
    check
}

fn validate(check: &Check, axes: &[&str]) -> Result<(), String> {
    match (check.reported, check.low.is_none() && check.high.is_none()) {
        (false, true) => {
            return Err(format!("check {:?} accepts everything: give low, high or both, or reported", check.id));
        }
        (true, false) => return Err(format!("check {:?} is only reported: it has no low and no high", check.id)),
        _ => {}
    }
    let figure = Figure::parse(&check.figure).map_err(|e| e.to_string())?;
    known_axes(&figure, axes)?;
    [&check.published, &check.low, &check.high].into_iter().flatten().try_for_each(Bound::parse)
}

/// Refuses a figure that names an axis which no point has.
pub(super) fn known_axes(figure: &Figure, axes: &[&str]) -> Result<(), String> {
    match figure.axes().into_iter().find(|axis| !axes.contains(&axis.as_str())) {
        Some(axis) => Err(format!("figure: there is no axis {axis:?}; there are {}", axes.join(", "))),
        None => Ok(()),
    }
}

/// A figure by seed, if there are several and each has all that it needs: the median, the least and the largest. Else
/// of all points at once.
fn measure(figure: &Figure, results: &[PointResult]) -> Result<(f64, Option<(f64, f64)>), FigureError> {
    let value = |seed: Option<u64>| {
        let points = results.iter().filter(|r| seed.is_none_or(|seed| r.seed == seed));
        let values: Vec<Values<'_>> = points.map(|r| Values { axes: &r.axes, metrics: &r.metrics }).collect();
        figure.value(&values)
    };
    let seeds: BTreeSet<u64> = results.iter().map(|r| r.seed).collect();
    let of = |seed: &u64| value(Some(*seed));
    match seeds.iter().map(of).collect::<Result<Vec<f64>, _>>() {
        Ok(mut each) if each.len() > 1 && each.iter().all(|x| x.is_finite()) => {
            let middle = median(&mut each);
            Ok((middle, Some((each[0], each[each.len() - 1]))))
        }
        _ => Ok((value(None)?, None)),
    }
}

/// Judges a check by the results. The error is a mistake in the check.
pub(super) fn judge(experiment: &str, check: &Check, results: &[PointResult]) -> Result<Judged, String> {
    let values: Vec<Values<'_>> = results.iter().map(|r| Values { axes: &r.axes, metrics: &r.metrics }).collect();
    let numbers = || {
        let bound = |b: &Option<Bound>| b.as_ref().map(|b| b.value(&values)).transpose();
        let figure = Figure::parse(&check.figure)?;
        let measured = measure(&figure, results)?;
        Ok((figure.is_order(), measured, bound(&check.published)?, bound(&check.low)?, bound(&check.high)?))
    };
    match numbers() {
        Ok((order, (measured, seeds), published, low, high)) => {
            let within = |x: f64| x.is_finite() && low.is_none_or(|l| x >= l) && high.is_none_or(|h| x <= h);
            let holds = (!check.reported).then_some(within(measured));
            let split = |(least, most)| within(least) != within(measured) || within(most) != within(measured);
            let narrowly = holds.is_some() && seeds.is_some_and(split);
            let measured = measured.is_finite().then_some(measured);
            let (experiment, check) = (experiment.to_string(), check.id.clone());
            let verdict = Verdict { experiment, check, measured, seeds, published, low, high, holds, narrowly, order };
            Ok(Judged::Verdict(verdict))
        }
        Err(FigureError::NotMeasured(why)) => Ok(Judged::Skipped { check: check.id.clone(), why }),
        Err(FigureError::Syntax(what)) => Err(format!("check {:?}: {what}", check.id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(seed: u64, pool: &str, ops: f64) -> PointResult {
        let axes = format!(r#""axes":{{"pool":"{pool}"}},"metrics":{{"ops":{ops}}}"#);
        let rest = r#""config":"","commit":"","clock":"virtual","scaled":[],"kinds":{},"latency":[],"series":{}"#;
        serde_json::from_str(&format!(r#"{{"experiment":"e","point":"p","seed":{seed},{axes},{rest}}}"#)).unwrap()
    }

    fn verdict(figure: &str, low: f64, results: &[PointResult]) -> Verdict {
        let check = format!("id = \"c\"\nfigure = \"{figure}\"\nlow = {low}");
        match judge("e", &toml::from_str(&check).unwrap(), results).unwrap() {
            Judged::Verdict(verdict) => verdict,
            Judged::Skipped { why, .. } => panic!("{why}"),
        }
    }

    #[test]
    fn of_several_seeds_the_median_counts_and_the_spread_is_told() {
        let seed = |n, a, b| [result(n, "a", a), result(n, "b", b)];
        let results = [seed(1, 30.0, 10.0), seed(2, 26.0, 10.0), seed(3, 44.0, 11.0)].concat();
        let of = |low| verdict("ops[pool=a] / ops[pool=b]", low, &results);
        assert_eq!((of(2.0).measured, of(2.0).seeds), (Some(3.0), Some((2.6, 4.0))));
        assert_eq!(
            [2.0, 2.8, 3.5, 5.0].map(|low| (of(low).holds, of(low).narrowly)),
            [(Some(true), false), (Some(true), true), (Some(false), true), (Some(false), false)]
        );
        let one = verdict("ops[pool=a] > ops[pool=b] and ops[pool=a] > 1", 1.0, &results[..2]);
        assert_eq!((one.measured, one.seeds, one.order, one.narrowly), (Some(1.0), None, true, false));
        assert!(!of(2.0).order);
    }
}
