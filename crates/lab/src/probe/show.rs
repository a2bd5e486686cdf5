//! A report as a table and a chart for the terminal.

use super::{Point, Report};
use std::fmt::Write as _;

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MB", bytes >> 20) } else { format!("{} KB", bytes >> 10) }
}

fn order(p: &Point) -> &'static str {
    if p.load.random_share > 0.0 { "random" } else { "sequential" }
}

impl Report {
    /// The points as a table, with what is wrong with them below.
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            let _ = writeln!(out, "{}", text.trim_end());
        };
        let clock = if self.clock == "virtual" { ", virtual time" } else { "" };
        line(format!("{} ({}{clock}), {} MiB used", self.device, self.access, self.range >> 20));
        line(String::new());
        line(format!(
            "{:<11}{:>7}{:>9}{:>6}{:>12}{:>11}{:>12}{:>12}{:>9}",
            "order", "reads", "size", "depth", "IOPS", "MB/s", "mean us", "p99 us", "spread"
        ));
        for p in &self.points {
            line(format!(
                "{:<11}{:>5.0} %{:>9}{:>6}{:>12.1}{:>11.1}{:>12.1}{:>12.1}{:>7.1} %",
                order(p),
                p.load.read_share * 100.0,
                size(p.load.bytes),
                p.load.depth,
                p.iops(),
                p.mb_s(),
                p.mean_us(),
                p.p99_us(),
                p.spread() * 100.0
            ));
        }
        if let Some(r) = self.reread {
            line(String::new());
            line(format!("a block read again: {:.1} us, the first time: {:.1} us", r.again_us, r.first_us));
        }
        if !self.parameters.is_empty() {
            line(String::new());
            line(format!("{:<36}{:>14}{:>14}{:>12}", "parameter of the profile", "given", "measured", "difference"));
        }
        for p in &self.parameters {
            let name = if p.unit.is_empty() { p.name.clone() } else { format!("{}, {}", p.name, p.unit) };
            let figure = |x: f64| if p.unit == "s/MB" { format!("{x:.6}") } else { format!("{x:.2}") };
            let difference = format!("{:+.2} %", p.difference() * 100.0);
            line(format!("{name:<36}{:>14}{:>14}{difference:>12}", figure(p.given), figure(p.measured)));
        }
        for finding in &self.findings {
            line(format!("NOT PLAUSIBLE  {finding}"));
        }
        out
    }

    /// Rates by request size as bars (of the logarithm), and by read share where that was measured.
    pub fn to_chart(&self) -> String {
        let mut out = String::new();
        let pure = |p: &&Point| p.load.depth == super::plan::deep(p.load.bytes);
        for (read, what) in [(1.0, "reads"), (0.0, "writes")] {
            for random in [1.0, 0.0] {
                let kind = self.points.iter().filter(|p| p.load.read_share == read && p.load.random_share == random);
                let mut points: Vec<&Point> = kind.filter(pure).collect();
                points.sort_by_key(|p| p.load.bytes);
                let title = points.first().map(|p| format!("{} {what}, MB/s by request size", order(p)));
                bars(&mut out, title, points.iter().map(|p| (size(p.load.bytes), p.mb_s())).collect());
            }
        }
        let mut mixes: Vec<(u64, u32, bool)> = Vec::new();
        for p in self.points.iter().filter(|p| p.load.read_share > 0.0 && p.load.read_share < 1.0) {
            let key = (p.load.bytes, p.load.depth, p.load.random_share > 0.0);
            if !mixes.contains(&key) {
                mixes.push(key);
            }
        }
        for (bytes, depth, random) in mixes {
            let share = f64::from(u8::from(random));
            let mix = |p: &&Point| p.load.bytes == bytes && p.load.depth == depth && p.load.random_share == share;
            let mut points: Vec<&Point> = self.points.iter().filter(mix).collect();
            points.sort_by(|a, b| a.load.read_share.total_cmp(&b.load.read_share));
            let order = if random { "random" } else { "sequential" };
            let title = Some(format!("{order} {}, {depth} in flight, MB/s by read share", size(bytes)));
            let label = |p: &&Point| (format!("{:.0} %", p.load.read_share * 100.0), p.mb_s());
            bars(&mut out, title, points.iter().map(label).collect());
        }
        out
    }
}

/// Horizontal bars; on a logarithmic scale where the values lie far apart.
fn bars(out: &mut String, title: Option<String>, values: Vec<(String, f64)>) {
    const WIDTH: f64 = 44.0;
    let (Some(title), true) = (title, values.len() > 1) else { return };
    let high = values.iter().map(|v| v.1).fold(0.0, f64::max).max(1e-9);
    let low = values.iter().map(|v| v.1).fold(f64::MAX, f64::min).max(1e-9);
    let log = high / low > 20.0;
    let _ = writeln!(out, "\n{title}{}", if log { " (logarithmic)" } else { "" });
    for (label, value) in values {
        let share = if log { (value / low * 1.2).ln() / (high / low * 1.2).ln() } else { value / high };
        let _ = writeln!(out, "{label:>9} {:<44} {value:.1}", "█".repeat((share * WIDTH).round().max(1.0) as usize));
    }
}
