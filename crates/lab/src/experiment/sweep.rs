//! Axes: the swept keys of an experiment, and those that a variant sweeps for itself.

use super::ExperimentError;
use super::source::{Source, split};
use toml::{Table, Value};

/// The axes that one variant runs over.
#[derive(Debug, Clone, Default)]
pub(super) struct Swept {
    axes: Vec<Axis>,
    /// Short names of the axes.
    names: Vec<String>,
    /// Which values of an axis the variant runs with, by the axis's place.
    only: Vec<(usize, Vec<String>)>,
}

impl Swept {
    /// The sweep of the whole file: as written, and as it is after `--set`.
    pub fn read(source: &Source<'_>, written: &Table, now: &Table) -> Result<Swept, ExperimentError> {
        let written = axes(source, &["sweep"], written)?;
        let mut axes = axes(source, &["sweep"], now)?;
        for axis in &mut axes {
            let before = written.iter().find(|w| w.path == axis.path);
            axis.given = before.is_none_or(|w| w.values != axis.values);
            axis.written = before.map_or_else(Vec::new, |w| w.values.iter().map(shown).collect());
        }
        Ok(Swept { names: names(&axes), axes, only: Vec::new() })
    }

    /// With what variant `n` sweeps for itself, less what its `only` leaves out. `--set` goes over both.
    pub fn of_variant(
        &self,
        source: &Source<'_>,
        n: usize,
        variant: &Table,
        sets: &[(Vec<String>, Value)],
    ) -> Result<Swept, ExperimentError> {
        let mut all = self.axes.clone();
        let number = n.to_string();
        let place = ["variant", number.as_str(), "sweep"];
        let own = match variant.get("sweep") {
            None => Vec::new(),
            Some(Value::Table(own)) => axes(source, &place, own)?,
            Some(_) => return Err(source.error(&place, "a table of keys and lists of their values is accepted")),
        };
        for mut axis in own {
            axis.written = axis.values.iter().map(shown).collect();
            if let Some((_, value)) = sets.iter().find(|(path, _)| *path == axis.path) {
                axis.values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
                axis.given = true;
            }
            match all.iter_mut().find(|a| a.path == axis.path) {
                Some(common) if common.given => {}
                Some(common) => *common = axis,
                None => all.push(axis),
            }
        }
        let names = names(&all);
        let only = only(source, &number, variant, (&names, &all))?;
        Ok(Swept { axes: all, names, only })
    }

    /// Whether a key is swept.
    pub fn has(&self, path: &[String]) -> bool {
        self.axes.iter().any(|axis| axis.path == path)
    }

    /// Every combination that runs, as indices; the last axis varies fastest.
    pub fn choices(&self) -> Vec<Vec<usize>> {
        let runs = |choice: &Vec<usize>| {
            self.only.iter().all(|(axis, values)| {
                let at = &self.axes[*axis];
                at.given || values.contains(&shown(&at.values[choice[*axis]]))
            })
        };
        choices(&self.axes).into_iter().filter(runs).collect()
    }

    /// The values of a choice, by short name.
    pub fn values(&self, choice: &[usize]) -> Vec<(String, String)> {
        let of = |(name, (axis, at)): (&String, (&Axis, &usize))| (name.clone(), shown(&axis.values[*at]));
        self.names.iter().zip(self.axes.iter().zip(choice)).map(of).collect()
    }

    /// The values of a choice, by key.
    pub fn chosen<'a>(&'a self, choice: &'a [usize]) -> impl Iterator<Item = (&'a [String], &'a Value)> {
        self.axes.iter().zip(choice).map(|(axis, at)| (axis.path.as_slice(), &axis.values[*at]))
    }

    /// Where in the file the axis stands that gave the value at `path`.
    pub fn place_of(&self, path: &[String]) -> Option<Vec<String>> {
        self.axes.iter().find(|axis| path.starts_with(&axis.path)).map(|axis| axis.place.clone())
    }
}

/// A swept key.
#[derive(Debug, Clone)]
struct Axis {
    /// Where it stands in the file: `sweep`, or that of a variant.
    place: Vec<String>,
    path: Vec<String>,
    values: Vec<Value>,
    /// Values that the file has, before `--set`.
    written: Vec<String>,
    /// `--set` gave the values.
    given: bool,
}

fn axes(source: &Source<'_>, place: &[&str], sweep: &Table) -> Result<Vec<Axis>, ExperimentError> {
    let mut found = Vec::new();
    collect_axes(source, place, sweep, &mut Vec::new(), &mut found)?;
    Ok(found)
}

fn collect_axes(
    source: &Source<'_>,
    place: &[&str],
    table: &Table,
    path: &mut Vec<String>,
    found: &mut Vec<Axis>,
) -> Result<(), ExperimentError> {
    for (key, value) in table {
        let depth = path.len();
        path.extend(split(key));
        match value {
            Value::Table(inner) => collect_axes(source, place, inner, path, found)?,
            Value::Array(values) if !values.is_empty() => {
                let place = place.iter().map(|p| (*p).to_string()).collect();
                let (path, values) = (path.clone(), values.clone());
                found.push(Axis { place, path, values, written: Vec::new(), given: false });
            }
            _ => {
                let full: Vec<&str> = place.iter().copied().chain(path.iter().map(String::as_str)).collect();
                return Err(source.error(&full, "an axis is a list of at least one value"));
            }
        }
        path.truncate(depth);
    }
    Ok(())
}

/// Short names of axes: the last part of the path, or as much of it as tells them apart.
fn names(axes: &[Axis]) -> Vec<String> {
    let short = |axis: &Axis, n: usize| axis.path[axis.path.len().saturating_sub(n)..].join(".");
    let alone =
        |i: usize, n: usize| axes.iter().enumerate().all(|(j, other)| i == j || short(other, n) != short(&axes[i], n));
    axes.iter()
        .enumerate()
        .map(|(i, axis)| {
            let n = (1..=axis.path.len()).find(|n| alone(i, *n)).unwrap_or(axis.path.len());
            short(axis, n)
        })
        .collect()
}

/// Every combination, as indices; the last axis varies fastest.
fn choices(axes: &[Axis]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |all, axis| {
        let longer = |head: &Vec<usize>, i| head.iter().copied().chain([i]).collect::<Vec<_>>();
        all.iter().flat_map(|head| (0..axis.values.len()).map(move |i| longer(head, i))).collect()
    })
}

/// A value as text.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A variant's `only = { axis = [values] }`: which of an axis's values, as the file has them, the variant runs with; by
/// the axis's place. An axis given by `--set` is run whole.
fn only(
    source: &Source<'_>,
    number: &str,
    variant: &Table,
    (named, axes): (&[String], &[Axis]),
) -> Result<Vec<(usize, Vec<String>)>, ExperimentError> {
    let Some(only) = variant.get("only") else { return Ok(Vec::new()) };
    let refuse = |what: String| source.error(&["variant", number, "only"], what);
    let table =
        only.as_table().ok_or_else(|| refuse("a table of axes and lists of their values is accepted".into()))?;
    let of = |(axis, values): (&String, &Value)| {
        let at = named.iter().position(|name| name == axis);
        let at = at.ok_or_else(|| refuse(format!("there is no axis {axis:?}; there are {}", named.join(", "))))?;
        let values: Vec<String> = match values {
            Value::Array(all) => all.iter().map(shown).collect(),
            one => vec![shown(one)],
        };
        let there = &axes[at].written;
        // Some may have been left out by `[quick]`.
        match values.iter().any(|v| there.contains(v)) {
            true => Ok((at, values)),
            false => Err(refuse(format!("{axis} has none of these values; it has {}", there.join(", ")))),
        }
    };
    table.iter().map(of).collect()
}
