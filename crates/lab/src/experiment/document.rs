//! An experiment file and what was asked of it on the command line, merged and expanded into points.
//!
//! Order, later wins: the file, `[quick]` (if asked for), a variant, its `quick` (likewise), the axes, `--set`. A
//! `--set` of a swept key replaces the whole axis. Points stand in the order of variants, then of axes as written (the
//! last varies fastest), then seeds.

use super::ExperimentError;
use super::check::Check;
use super::drawing::{Chart, Drawing};
use super::parameters;
use super::source::{Source, split};
use super::spec::{Spec, merge};
use super::sweep::Swept;
use super::units::Bytes;
use crate::place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::{Table, Value};
use varve_models::sources::Parameter;

/// Keys of the file that are not part of a point.
const OUTER: [&str; 11] =
    ["title", "about", "source", "sources", "seeds", "scale", "sweep", "variant", "quick", "check", "chart"];

/// The part of the file that is not a point's.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Outer {
    title: String,
    about: String,
    source: String,
    sources: BTreeMap<String, String>,
    seeds: Vec<u64>,
    scale: Scale,
    sweep: Table,
    variant: Vec<Table>,
    quick: Table,
    check: Vec<Check>,
    chart: Vec<Chart>,
}

/// `[scale]`: by how much the source's sizes are divided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scale {
    /// Every `scaled(..)` value is divided by this.
    pub factor: f64,
}

impl Scale {
    /// What is wrong with a factor, if anything.
    fn refusal(factor: f64) -> Option<String> {
        (!(1e-3..=1e9).contains(&factor)).then(|| format!("0.001 to 1e9 is possible, not {factor}"))
    }
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { factor: 1.0 }
    }
}

/// A size that is scaled down: what the source has, and what runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaled {
    /// Key path.
    pub key: String,
    /// Of the source.
    pub published: String,
    /// After division.
    pub used: String,
}

/// One point of an experiment.
#[derive(Debug, Clone)]
pub struct Point {
    /// Values of variant and axes, in order: short name and value.
    pub axes: Vec<(String, String)>,
    /// Seed of the run.
    pub seed: u64,
    /// What runs.
    pub spec: Spec,
    /// Sizes that were scaled.
    pub scaled: Vec<Scaled>,
}

impl Point {
    /// Axes as `a=1 b=2`; the seed if there are several is not part of it.
    pub fn name(&self) -> String {
        let parts: Vec<String> = self.axes.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if parts.is_empty() { "base".to_string() } else { parts.join(" ") }
    }

    /// Identifies what is computed: equal for equal configurations.
    pub fn hash(&self) -> String {
        let text = serde_json::to_string(&(&self.spec, self.seed, &self.axes)).expect("plain data");
        format!("{:016x}", super::fnv64(text.as_bytes()))
    }
}

/// What was asked for besides the file.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The scaled-down set.
    pub quick: bool,
    /// `key=value`, the value in TOML's syntax or plain text.
    pub sets: Vec<(String, String)>,
}

/// An experiment, expanded.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Name: the file's, without its ending.
    pub name: String,
    /// One line.
    pub title: String,
    /// What it shows, in a few sentences.
    pub about: String,
    /// Where the published figures come from.
    pub source: String,
    /// The file's text.
    pub text: String,
    /// The numbers that the file states for all points, and what they rest on.
    pub stated: Vec<Parameter>,
    /// How it was asked for.
    pub request: Request,
    /// All points.
    pub points: Vec<Point>,
    /// All checks that apply.
    pub checks: Vec<Check>,
    /// Charts of its own for the report.
    pub charts: Vec<Drawing>,
}

/// Reads an experiment and expands it.
///
/// # Errors
/// Whatever does not parse or is not known, with file, line, key, and what is accepted.
pub fn read(name: &str, file: &str, text: &str, request: Request) -> Result<Experiment, ExperimentError> {
    if !request.quick && request.sets.is_empty() {
        // A slip in what only quick runs use is told too, as far as the file is all that counts.
        expand(name, file, text, Request { quick: true, ..Request::default() })?;
    }
    expand(name, file, text, request)
}

fn expand(name: &str, file: &str, text: &str, request: Request) -> Result<Experiment, ExperimentError> {
    let source = Source { file, text };
    let mut whole = source.parse()?;
    if request.quick {
        let quick = whole.get("quick").and_then(Value::as_table).cloned().unwrap_or_default();
        merge(&mut whole, &quick);
    }
    let mut outer_table = Table::new();
    for key in OUTER {
        if let Some(value) = whole.remove(key) {
            outer_table.insert(key.to_string(), value);
        }
    }
    let mut outer: Outer = understand(&source, &outer_table, &[])?;
    for (n, variant) in outer.variant.iter_mut().enumerate() {
        match variant.remove("quick") {
            None => {}
            Some(Value::Table(quick)) if request.quick => merge(variant, &quick),
            Some(Value::Table(_)) => {}
            Some(_) => return Err(source.error(&["variant", &n.to_string(), "quick"], "a table of keys is needed")),
        }
    }
    if let Some(what) = Scale::refusal(outer.scale.factor) {
        return Err(source.error(&["scale", "factor"], what));
    }
    let written = outer.sweep.clone();
    let sets = settle_sets(&whole, &mut outer, &request.sets)?;
    let stated = parameters::stated(&source, &whole, &outer.sources, &written, &outer.variant)?;
    let common = Swept::read(&source, &written, &outer.sweep)?;
    let mut points = Vec::new();
    let mut variants: Vec<Option<(usize, Table)>> = outer.variant.into_iter().enumerate().map(Some).collect();
    if variants.is_empty() {
        variants.push(None);
    }
    let seeds = if outer.seeds.is_empty() { vec![1] } else { outer.seeds };
    for variant in &variants {
        let swept = match variant {
            None => common.clone(),
            Some((n, table)) => common.of_variant(&source, *n, table, &sets)?,
        };
        let sets: Vec<_> = sets.iter().filter(|(path, _)| !swept.has(path)).cloned().collect();
        let builder = Builder { source: &source, base: &whole, swept: &swept, sets: &sets, factor: outer.scale.factor };
        for choice in swept.choices() {
            let (spec, scaled) = builder.point(variant.as_ref(), &choice)?;
            let mut values = Vec::new();
            if let Some((n, table)) = variant {
                values.push(("variant".to_string(), variant_name(&source, *n, table)?));
            }
            values.extend(swept.values(&choice));
            for seed in &seeds {
                points.push(Point { axes: values.clone(), seed: *seed, spec: spec.clone(), scaled: scaled.clone() });
            }
        }
    }
    if points.is_empty() {
        return Err(source.error(&["variant"], "the variants' only keys leave no point"));
    }
    // (A quick run may leave out the points that a table is for.)
    if !request.quick {
        let path = |key: &'static str| key.split('.').collect::<Vec<_>>();
        super::idle::refuse(points.iter().map(|p| &p.spec)).map_err(|(key, what)| source.error(&path(key), what))?;
    }
    let checks = super::check::expand(outer.check, &points, request.quick)
        .map_err(|(n, what)| source.error(&["check", &n.to_string()], what))?;
    let charts = super::drawing::expand(outer.chart, &points)
        .map_err(|(n, what)| source.error(&["chart", &n.to_string()], what))?;
    Ok(Experiment {
        name: name.to_string(),
        title: outer.title,
        about: outer.about,
        source: outer.source,
        text: text.to_string(),
        stated,
        request,
        points,
        checks,
        charts,
    })
}

fn put(table: &mut Table, path: &[String], value: Value) {
    let (last, front) = path.split_last().expect("a path is not empty");
    let mut table = table;
    for key in front {
        let entry = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
        if !entry.is_table() {
            *entry = Value::Table(Table::new());
        }
        table = entry.as_table_mut().expect("made one");
    }
    table.insert(last.clone(), value);
}

fn variant_name(source: &Source<'_>, n: usize, table: &Table) -> Result<String, ExperimentError> {
    match table.get("name") {
        Some(Value::String(name)) if !name.is_empty() => Ok(name.clone()),
        _ => Err(source.error(&["variant", &n.to_string()], "a variant needs a name = \"..\"")),
    }
}

/// Where `--set` puts its values: full paths; a bare name is looked for among the keys there are.
fn settle_sets(
    base: &Table,
    outer: &mut Outer,
    sets: &[(String, String)],
) -> Result<Vec<(Vec<String>, Value)>, ExperimentError> {
    let mut known = Vec::new();
    paths(base, &mut Vec::new(), &mut known);
    for variant in &outer.variant {
        let mut keys = variant.clone();
        keys.remove("only");
        if let Some(Value::Table(own)) = keys.remove("sweep") {
            paths(&own, &mut Vec::new(), &mut known);
        }
        paths(&keys, &mut Vec::new(), &mut known);
    }
    let mut swept = Vec::new();
    paths(&outer.sweep, &mut Vec::new(), &mut swept);
    known.extend(swept.iter().cloned());
    paths(&defaults(), &mut Vec::new(), &mut known);
    known.sort();
    known.dedup();
    let mut settled = Vec::new();
    for (key, text) in sets {
        let value = literal(text);
        let refuse = |what: String| ExperimentError::Set { key: key.clone(), what };
        if key == "seeds" || key == "seed" {
            let seeds = match value {
                Value::Array(all) => all.iter().map(|v| v.as_integer().and_then(|n| n.try_into().ok())).collect(),
                other => other.as_integer().and_then(|n| n.try_into().ok()).map(|n| vec![n]),
            };
            outer.seeds = seeds
                .filter(|s: &Vec<u64>| !s.is_empty())
                .ok_or_else(|| refuse("a seed is an integer from 0, or a list of them".into()))?;
            continue;
        }
        if key == "scale.factor" {
            let factor = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
            outer.scale.factor = factor.ok_or_else(|| refuse("a number is accepted".into()))?;
            Scale::refusal(outer.scale.factor).map_or(Ok(()), |what| Err(refuse(what)))?;
            continue;
        }
        let path = if key.contains('.') { split(key) } else { bare(key, &known, base).map_err(refuse)? };
        if swept.contains(&path) {
            let list = if value.is_array() { value } else { Value::Array(vec![value]) };
            outer.sweep = without(&outer.sweep, &path);
            put(&mut outer.sweep, &path, list);
        } else {
            settled.push((path, value));
        }
    }
    Ok(settled)
}

/// The sweep without the axis of this path, however it was written.
fn without(sweep: &Table, path: &[String]) -> Table {
    let mut rest = Table::new();
    for (key, value) in sweep {
        let head = split(key);
        match value {
            _ if head == path => {}
            Value::Table(inner) if path.starts_with(&head) => {
                rest.insert(key.clone(), Value::Table(without(inner, &path[head.len()..])));
            }
            other => drop(rest.insert(key.clone(), other.clone())),
        }
    }
    rest
}

/// A point's keys with their defaults, every workload included.
fn defaults() -> Table {
    Table::try_from(Spec::default()).unwrap_or_default()
}

fn paths(table: &Table, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (key, value) in table {
        let depth = path.len();
        path.extend(split(key));
        match value {
            Value::Table(inner) => paths(inner, path, found),
            _ => found.push(path.clone()),
        }
        path.truncate(depth);
    }
}

/// The one known path that ends in `key`. A key of the table of the workload that runs goes before others.
fn bare(key: &str, known: &[Vec<String>], base: &Table) -> Result<Vec<String>, String> {
    let mut found: Vec<&Vec<String>> = known.iter().filter(|p| p.last().is_some_and(|l| l == key)).collect();
    if found.is_empty()
        && let Some(Value::Table(workload)) = base.get("workload")
        && let Some((kind, _)) = workload.iter().next()
    {
        return Ok(vec!["workload".into(), kind.clone(), key.into()]);
    }
    if found.len() > 1 {
        let of_workload = |p: &&Vec<String>| p[0] == "workload";
        if found.iter().any(of_workload) {
            found.retain(of_workload);
        }
    }
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err("no key has this name; give its whole path, such as workload.tpcc.warehouses".into()),
        _ => {
            let all: Vec<String> = found.iter().map(|p| p.join(".")).collect();
            Err(format!("several keys have this name; say which: {}", all.join(", ")))
        }
    }
}

/// A value in TOML's syntax; what is not TOML is text.
fn literal(text: &str) -> Value {
    let line = format!("v = {text}");
    line.parse::<Table>().ok().and_then(|mut t| t.remove("v")).unwrap_or_else(|| Value::String(text.to_string()))
}

struct Builder<'a> {
    source: &'a Source<'a>,
    base: &'a Table,
    swept: &'a Swept,
    sets: &'a [(Vec<String>, Value)],
    factor: f64,
}

impl Builder<'_> {
    fn point(
        &self,
        variant: Option<&(usize, Table)>,
        choice: &[usize],
    ) -> Result<(Spec, Vec<Scaled>), ExperimentError> {
        let mut table = self.base.clone();
        if let Some((_, variant)) = variant {
            let mut changes = variant.clone();
            changes.remove("name");
            changes.remove("only");
            changes.remove("sweep");
            merge(&mut table, &changes);
        }
        for (path, value) in self.swept.chosen(choice) {
            put(&mut table, path, value.clone());
        }
        for (path, value) in self.sets {
            put(&mut table, path, value.clone());
        }
        let mut scaled = Vec::new();
        let mut path = Vec::new();
        scale(&mut table, self.factor, &mut path, &mut scaled)
            .map_err(|(path, what)| self.error(variant, &path, what))?;
        let spec: Spec = from_table(&table).map_err(|(path, what)| self.error(variant, &path, what))?;
        spec.validate().map_err(|(key, what)| self.error(variant, &split(&key), what))?;
        Ok((spec, scaled))
    }

    /// Blames whoever gave the value at `path`: `--set`, an axis, the variant, or the file.
    fn error(&self, variant: Option<&(usize, Table)>, path: &[String], what: String) -> ExperimentError {
        let related = |other: &[String]| other.starts_with(path) || path.starts_with(other);
        if let Some((set, _)) = self.sets.iter().find(|(p, _)| related(p)) {
            return ExperimentError::Set { key: set.join("."), what };
        }
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let mut prefix: Vec<String> = Vec::new();
        if let Some(place) = self.swept.place_of(path) {
            prefix.extend(place);
        } else if let Some((n, table)) = variant
            && place_in(table, &parts)
        {
            prefix.extend(["variant".into(), n.to_string()]);
        }
        let full: Vec<&str> = prefix.iter().map(String::as_str).chain(parts.iter().copied()).collect();
        match self.source.error(&full, what) {
            ExperimentError::File { file, line, what, .. } => {
                ExperimentError::File { file, line, key: path.join("."), what }
            }
            other => other,
        }
    }
}

fn place_in(table: &Table, path: &[&str]) -> bool {
    match (path, path.first().and_then(|key| table.get(*key))) {
        ([_], Some(_)) => true,
        ([_, rest @ ..], Some(Value::Table(inner))) => place_in(inner, rest),
        _ => false,
    }
}

/// Replaces every `"scaled(X)"` by X / factor.
fn scale(
    table: &mut Table,
    factor: f64,
    path: &mut Vec<String>,
    done: &mut Vec<Scaled>,
) -> Result<(), (Vec<String>, String)> {
    for (key, value) in table.iter_mut() {
        path.push(key.clone());
        match value {
            Value::Table(inner) => scale(inner, factor, path, done)?,
            Value::String(text) => {
                if let Some(published) = text.strip_prefix("scaled(").and_then(|t| t.strip_suffix(')')) {
                    let of = Bytes::parse(published)
                        .ok_or_else(|| (path.clone(), format!("scaled({published}) is not a number or a size")))?;
                    let used = (of.0 as f64 / factor).round().max(1.0) as u64;
                    let plain = published.trim().parse::<f64>().is_ok();
                    let used_text = if plain { used.to_string() } else { Bytes(used).to_string() };
                    done.push(Scaled { key: path.join("."), published: published.trim().into(), used: used_text });
                    *value = Value::Integer(used as i64);
                }
            }
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

/// Understands a merged table; the error names the key path.
fn from_table<T: for<'a> Deserialize<'a>>(table: &Table) -> Result<T, (Vec<String>, String)> {
    let text = toml::to_string(table).map_err(|e| (Vec::new(), e.to_string()))?;
    toml::from_str(&text).map_err(|e| {
        let path = e.span().map(|span| place::path_at(&text, span.start)).unwrap_or_default();
        (path, e.message().to_string())
    })
}

fn understand<T: for<'a> Deserialize<'a>>(
    source: &Source<'_>,
    table: &Table,
    prefix: &[&str],
) -> Result<T, ExperimentError> {
    from_table(table).map_err(|(path, what)| {
        let full: Vec<&str> = prefix.iter().copied().chain(path.iter().map(String::as_str)).collect();
        source.error(&full, what)
    })
}
