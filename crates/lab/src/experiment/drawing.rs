//! `[[chart]]` of an experiment: figures over an axis, drawn as lines in its report.

use super::check::{axes, combinations, fill, known_axes};
use super::document::Point;
use super::figure::{Figure, FigureError, Values};
use super::point::PointResult;
use serde::Deserialize;

/// `[[chart]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chart {
    /// Above it; may hold `{axis}` when `each` is given.
    pub title: String,
    /// The axis from left to right.
    pub x: String,
    /// Its label, unit included; the axis's name if left out.
    #[serde(default)]
    pub x_label: String,
    /// The expression that is drawn; `{axis}` as in checks.
    pub y: String,
    /// What it is, unit included.
    pub y_label: String,
    /// Axes: one chart for each combination of their values.
    #[serde(default)]
    pub each: Vec<String>,
    /// Axes: one line for each combination of their values.
    #[serde(default)]
    pub lines: Vec<String>,
    /// The vertical axis begins at zero.
    #[serde(default = "yes")]
    pub from_zero: bool,
}

fn yes() -> bool {
    true
}

/// One chart, its figures ready to be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// Title.
    pub title: String,
    /// Labels from left to right and upwards.
    pub labels: (String, String),
    /// Lines: name and figure, over the axis.
    pub lines: Vec<(String, Figure)>,
    /// The vertical axis begins at zero.
    pub from_zero: bool,
}

/// The charts of a file. The error has the chart's position.
pub(super) fn expand(charts: Vec<Chart>, points: &[Point]) -> Result<Vec<Drawing>, (usize, String)> {
    let mut all = Vec::new();
    for (n, chart) in charts.into_iter().enumerate() {
        all.extend(drawings(&chart, points).map_err(|what| (n, what))?);
    }
    Ok(all)
}

fn drawings(chart: &Chart, points: &[Point]) -> Result<Vec<Drawing>, String> {
    let both: Vec<String> = chart.each.iter().chain(&chart.lines).cloned().collect();
    let known = axes(points);
    let mut all: Vec<Drawing> = Vec::new();
    for values in combinations(&both, points)? {
        let filled = |text: &str| both.iter().zip(&values).fold(text.to_string(), |t, (name, v)| fill(&t, name, v));
        let (title, text) = (filled(&chart.title), format!("along({}, {})", chart.x, filled(&chart.y)));
        let figure = Figure::parse(&text).map_err(|e| e.to_string())?;
        known_axes(&figure, &known)?;
        let named = both.iter().zip(&values).skip(chart.each.len()).map(|(axis, value)| match axis.as_str() {
            "variant" => value.to_string(),
            _ => format!("{axis}={value}"),
        });
        let line = (named.collect::<Vec<_>>().join(", "), figure);
        match all.iter_mut().find(|d| d.title == title) {
            Some(drawing) => drawing.lines.push(line),
            None => {
                let x = if chart.x_label.is_empty() { chart.x.clone() } else { chart.x_label.clone() };
                let labels = (x, chart.y_label.clone());
                all.push(Drawing { title, labels, lines: vec![line], from_zero: chart.from_zero });
            }
        }
    }
    Ok(all)
}

/// A line: its name, and places and values.
type Drawn = (String, Vec<(f64, f64)>);

impl Drawing {
    /// The lines over the results: of those that were measured, places and values. If there is none since no point has
    /// such a metric, says so.
    pub(super) fn drawn(&self, results: &[PointResult]) -> Result<Vec<Drawn>, String> {
        let values: Vec<Values<'_>> = results.iter().map(|r| Values { axes: &r.axes, metrics: &r.metrics }).collect();
        let (mut lines, mut wrong) = (Vec::new(), None);
        for (name, figure) in &self.lines {
            match figure.along(&values) {
                Ok(points) => lines.push((name.clone(), points)),
                Err(FigureError::NotMeasured(_)) => {}
                Err(FigureError::Syntax(what)) => wrong = Some(what),
            }
        }
        wrong.filter(|_| lines.is_empty()).map_or(Ok(lines), Err)
    }
}
