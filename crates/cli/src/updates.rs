//! How much updates of pages change, by keyspace: distributions as tables and as JSON, from statistics, from metrics of
//! another process, or from a trace.

use crate::metrics::scrape::Scrape;
use crate::output::{Failure, Out, say};
use serde_json::{Value, json};
use varve::{UPDATE_BOUNDS, UpdateSizes};

/// A keyspace's writes.
pub struct Row {
    pub name: String,
    /// Pages that were made here and not read back since.
    pub new: u64,
    pub updates: u64,
    /// Updates within so many bytes, net and gross; the last are all.
    within: Vec<(Option<u32>, u64, u64)>,
}

/// Sizes that a table has columns for, bytes.
const COLUMNS: [u32; 7] = [16, 22, 32, 42, 52, 85, 200];

impl Row {
    pub fn of(name: &str, sizes: &UpdateSizes) -> Row {
        Row { name: name.into(), new: sizes.new, updates: sizes.updates, within: sizes.within() }
    }

    fn share(&self, n: u64) -> f64 {
        n as f64 / self.updates.max(1) as f64
    }

    fn cells(&self, gross: bool) -> String {
        let share = |bytes: u32| {
            let at = self.within.iter().find(|(bound, ..)| *bound == Some(bytes));
            let n = at.map_or(0, |(_, net, all)| if gross { *all } else { *net });
            format!("{:>6.1}", self.share(n) * 100.0)
        };
        COLUMNS.map(share).join("")
    }

    fn as_json(&self) -> Value {
        let curve = |gross: bool| -> Vec<Value> {
            let bounded = self.within.iter().filter_map(|(bound, net, all)| Some((*bound.as_ref()?, *net, *all)));
            bounded.map(|(bytes, net, all)| json!([bytes, self.share(if gross { all } else { net })])).collect()
        };
        json!({
            "keyspace": self.name, "new": self.new, "updates": self.updates, "gross": curve(true), "net": curve(false),
        })
    }
}

/// The rows that metrics tell.
pub fn of_scrape(scrape: &Scrape) -> Vec<Row> {
    let value = |name: &str, keyspace: &str, le: &str| {
        scrape.of(name, &[("keyspace", keyspace), ("le", le)]).next().map_or(0, |sample| sample.value as u64)
    };
    let rows = scrape.of("varve_new_pages_written_total", &[]).filter_map(|sample| {
        let name = sample.labels.iter().find(|(label, _)| label == "keyspace")?.1.clone();
        let both = |le: &str| {
            let net = value("varve_page_updates_net_total", &name, le);
            (net, value("varve_page_updates_total", &name, le))
        };
        let bounded = UPDATE_BOUNDS.map(|bound| {
            let (net, gross) = both(&bound.to_string());
            (Some(bound), net, gross)
        });
        let (net, updates) = both("+Inf");
        let within = bounded.into_iter().chain([(None, net, updates)]).collect();
        Some(Row { new: sample.value as u64, updates, within, name })
    });
    rows.collect()
}

/// For a field `updates` of what a command prints.
pub fn as_json(rows: &[Row]) -> Value {
    rows.iter().map(Row::as_json).collect()
}

/// Prints a table: of each keyspace two lines, with the bytes of the page header and without them.
pub fn print(out: Out, rows: &[Row]) -> Result<(), Failure> {
    if out.json {
        say!("{}", as_json(rows))?;
        return Ok(());
    }
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max("keyspace".len());
    let heads: String = COLUMNS.iter().map(|bytes| format!("{bytes:>6}")).collect();
    say!("share of updates, percent, that change at most so many bytes of a page")?;
    say!("{:<width$}  {:>9}  {:>9}        {heads}", "keyspace", "new", "updates")?;
    for row in rows {
        say!("{:<width$}  {:>9}  {:>9}  gross {}", row.name, row.new, row.updates, row.cells(true))?;
        say!("{:<width$}  {:>9}  {:>9}  net   {}", "", "", "", row.cells(false))?;
    }
    say!("gross counts the page header too (but for its checksum); new pages were not read back since they were made")?;
    Ok(())
}
