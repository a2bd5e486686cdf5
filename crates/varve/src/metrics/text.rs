//! The text format of Prometheus, version 0.0.4, which OpenMetrics scrapers read too.

use super::{Family, MetricSink};
use crate::db::Stats;
use std::fmt::Write as _;

/// Content type of [`Stats::prometheus`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Default)]
struct Text {
    out: String,
    family: &'static str,
}

impl MetricSink for Text {
    fn sample(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        assert_eq!(labels.len(), family.labels.len(), "{}: a value for each label", family.name);
        if self.family != family.name {
            self.family = family.name;
            let (name, kind) = (family.name, family.kind.name());
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        self.out.push_str(family.name);
        for (i, (name, value)) in family.labels.iter().zip(labels).enumerate() {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{}{name}=\"{escaped}\"", if i == 0 { '{' } else { ',' });
        }
        self.out.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = writeln!(self.out, "{value}");
    }
}

impl Stats {
    /// All metrics in the text format of Prometheus. An embedding program serves it over HTTP with content type
    /// [`CONTENT_TYPE`].
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        self.metrics(&mut text);
        text.out
    }
}
