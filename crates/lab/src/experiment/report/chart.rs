//! Charts as SVG text. Colours come from the page's style sheet (classes `c0` to `c7`), so that one drawing serves
//! light and dark, screen and paper. Pure.

use super::super::table::short;
use super::escape;
use std::fmt::Write as _;

/// Lines that a chart tells apart.
pub(crate) const COLOURS: usize = 8;

/// A line: name and points.
pub(crate) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Round numbers from 0 or `low` to at least `high`, about five of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let span = (high - low).max(1e-12);
    let raw = span / 5.0;
    let unit = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * unit).find(|s| *s >= raw * 0.999).unwrap_or(raw);
    let first = (low / step).floor() as i64;
    let mut all: Vec<f64> = (first..).map(|i| i as f64 * step).take_while(|t| *t < high + step * 0.999).collect();
    if all.len() < 2 {
        all.push(all.first().copied().unwrap_or(0.0) + step);
    }
    all
}

/// Powers of ten (and their doubles and fives where there is room) around `low` to `high`.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let dense = last - first <= 3;
    let mut all = Vec::new();
    for exponent in first..=last {
        for m in if dense { &[1.0, 2.0, 5.0][..] } else { &[1.0][..] } {
            all.push(m * 10f64.powi(exponent));
        }
    }
    let from = all.iter().rposition(|t| *t <= low).unwrap_or(0);
    let to = all.iter().position(|t| *t >= high).unwrap_or(all.len() - 1);
    all[from..=to.max(from + 1).min(all.len() - 1)].to_vec()
}

fn tick(value: f64) -> String {
    let text = short(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    }
}

/// Horizontal bars: label and value each.
pub(crate) fn bars(title: &str, unit: &str, rows: &[(String, f64)]) -> String {
    let high = rows.iter().map(|r| r.1).fold(0.0, f64::max);
    let scale = ticks(0.0, high.max(1e-9));
    let most = *scale.last().expect("at least two ticks");
    let label_width = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0).min(44) as f64 * 6.6 + 12.0;
    let (width, row, top) = (720.0, 24.0, 8.0);
    let plot = width - label_width - 70.0;
    let bottom = top + row * rows.len() as f64;
    let x = |v: f64| label_width + v / most * plot;
    let mut s = head(title, width, bottom + 44.0);
    for t in &scale {
        let _ = write!(s, r#"<line class="grid" x1="{0:.1}" x2="{0:.1}" y1="{top}" y2="{bottom}"/>"#, x(*t));
        let (at, y) = (x(*t), bottom + 15.0);
        let _ = write!(s, r#"<text class="tick" x="{at:.1}" y="{y}" text-anchor="middle">{}</text>"#, tick(*t));
    }
    for (n, (label, value)) in rows.iter().enumerate() {
        let y = top + row * n as f64;
        let label: String =
            if label.chars().count() > 44 { label.chars().take(43).chain(['…']).collect() } else { label.clone() };
        let (end, middle) = (label_width - 8.0, y + row / 2.0 + 4.0);
        let _ = write!(s, r#"<text x="{end}" y="{middle}" text-anchor="end">{}</text>"#, escape(&label));
        let (from, length) = (x(0.0), (x(*value) - x(0.0)).max(0.5));
        let (by, height) = (y + 4.0, row - 8.0);
        let _ = write!(s, r#"<rect class="c0 bar" x="{from:.1}" y="{by}" width="{length:.1}" height="{height}"/>"#);
        let _ = write!(s, r#"<text class="value" x="{:.1}" y="{middle}">{}</text>"#, x(*value) + 5.0, short(*value));
    }
    let _ = write!(
        s,
        r#"<text class="axis" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
        label_width + plot / 2.0,
        bottom + 34.0,
        escape(unit)
    );
    s + "</svg></figure>"
}

fn head(title: &str, width: f64, height: f64) -> String {
    format!(
        r#"<figure><figcaption>{0}</figcaption><svg viewBox="0 0 {width} {height}" role="img" aria-label="{0}">"#,
        escape(title)
    )
}

/// Where a value lies on an axis.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, log: bool, from_zero: bool) -> Axis {
        let low = values.clone().filter(|v| !log || *v > 0.0).fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        let ticks = match log {
            true => log_ticks(low.max(1e-6), high.max(low.max(1e-6) * 1.01)),
            false => ticks(if from_zero { 0.0 } else { low }, high.max(if from_zero { 1e-9 } else { low + 1e-9 })),
        };
        let (low, high) = (ticks[0], *ticks.last().expect("ticks"));
        Axis { low, high, log, ticks }
    }

    fn share(&self, v: f64) -> f64 {
        let share = match self.log {
            true => (v.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (v - self.low) / (self.high - self.low),
        };
        share.clamp(0.0, 1.0)
    }
}

/// How the axes of a line chart are drawn.
pub(crate) struct Axes<'a> {
    /// Label of the horizontal axis, unit included.
    pub x: &'a str,
    /// Of the vertical one.
    pub y: &'a str,
    /// Horizontal axis in powers.
    pub log_x: bool,
    /// Vertical axis begins at zero.
    pub from_zero: bool,
}

/// Lines over common axes, with a legend below.
pub(crate) fn lines(title: &str, axes: &Axes<'_>, lines: &[Line]) -> String {
    let shown = &lines[..lines.len().min(COLOURS)];
    let all = || shown.iter().flat_map(|l| l.points.iter());
    let x = Axis::of(all().map(|p| p.0), axes.log_x, false);
    let y = Axis::of(all().map(|p| p.1), false, axes.from_zero);
    let (width, left, top, right, bottom) = (720.0, 64.0, 10.0, 700.0, 250.0);
    let px = |v: f64| left + x.share(v) * (right - left);
    let py = |v: f64| bottom - y.share(v) * (bottom - top);
    let legend = shown.len().div_ceil(2) as f64 * 17.0;
    let mut s = head(title, width, bottom + 46.0 + legend);
    for t in &y.ticks {
        let _ = write!(s, r#"<line class="grid" x1="{left}" x2="{right}" y1="{0:.1}" y2="{0:.1}"/>"#, py(*t));
        let _ = write!(
            s,
            r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 6.0,
            py(*t) + 4.0,
            tick(*t)
        );
    }
    for t in &x.ticks {
        let _ = write!(s, r#"<line class="grid" x1="{0:.1}" x2="{0:.1}" y1="{top}" y2="{bottom}"/>"#, px(*t));
        let _ = write!(
            s,
            r#"<text class="tick" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
            px(*t),
            bottom + 15.0,
            tick(*t)
        );
    }
    for (n, line) in shown.iter().enumerate() {
        let points: Vec<String> = line.points.iter().map(|p| format!("{:.1},{:.1}", px(p.0), py(p.1))).collect();
        let _ = write!(s, r#"<polyline class="c{n} line" points="{}"/>"#, points.join(" "));
        let (lx, ly) = (left + (n % 2) as f64 * 320.0, bottom + 50.0 + (n / 2) as f64 * 17.0);
        let _ = write!(s, r#"<line class="c{n} line" x1="{lx}" x2="{}" y1="{1}" y2="{1}"/>"#, lx + 18.0, ly - 4.0);
        let name: String = line.name.chars().take(40).collect();
        let _ = write!(s, r#"<text x="{}" y="{ly}">{}</text>"#, lx + 24.0, escape(&name));
    }
    let _ = write!(
        s,
        r#"<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>"#,
        (left + right) / 2.0,
        bottom + 32.0,
        escape(axes.x)
    );
    let middle = (top + bottom) / 2.0;
    let _ = write!(
        s,
        r#"<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escape(axes.y)
    );
    s.push_str("</svg>");
    if lines.len() > COLOURS {
        let _ = write!(s, "<p class=\"note\">{} of {} points are drawn; the table has all.</p>", COLOURS, lines.len());
    }
    s + "</figure>"
}

/// Points over two equal axes, with the diagonal where both values are the same.
pub(crate) fn scatter(title: &str, x: &str, y: &str, points: &[(f64, f64)]) -> String {
    let axis = Axis::of(points.iter().flat_map(|p| [p.0, p.1]), false, true);
    let (width, left, top, side) = (420.0, 64.0, 10.0, 340.0);
    let (right, bottom) = (left + side, top + side);
    let (px, py) = (|v: f64| left + axis.share(v) * side, |v: f64| bottom - axis.share(v) * side);
    let mut s = head(title, width, bottom + 40.0);
    for t in &axis.ticks {
        let (at_x, at_y, text) = (px(*t), py(*t), tick(*t));
        let _ = write!(s, r#"<line class="grid" x1="{left}" x2="{right}" y1="{at_y:.1}" y2="{at_y:.1}"/>"#);
        let _ = write!(s, r#"<line class="grid" x1="{at_x:.1}" x2="{at_x:.1}" y1="{top}" y2="{bottom}"/>"#);
        let (tick_x, tick_y) = (left - 6.0, at_y + 4.0);
        let _ = write!(s, r#"<text class="tick" x="{tick_x}" y="{tick_y:.1}" text-anchor="end">{text}</text>"#);
        let below = bottom + 15.0;
        let _ = write!(s, r#"<text class="tick" x="{at_x:.1}" y="{below}" text-anchor="middle">{text}</text>"#);
    }
    let _ = write!(s, r#"<line class="c1 line" x1="{left}" y1="{bottom}" x2="{right}" y2="{top}"/>"#);
    for p in points {
        let _ = write!(s, r#"<circle class="bar" cx="{:.1}" cy="{:.1}" r="1.5"/>"#, px(p.0), py(p.1));
    }
    let (middle_x, middle_y, low) = ((left + right) / 2.0, (top + bottom) / 2.0, bottom + 32.0);
    let _ = write!(s, r#"<text class="axis" x="{middle_x}" y="{low}" text-anchor="middle">{}</text>"#, escape(x));
    let turned = format!("translate(14 {middle_y}) rotate(-90)");
    let _ = write!(s, r#"<text class="axis" transform="{turned}" text-anchor="middle">{}</text>"#, escape(y));
    s + "</svg></figure>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        for high in [0.003, 0.97, 1.0, 7.0, 99.0, 12345.0] {
            let t = ticks(0.0, high);
            assert!(t[0] == 0.0 && *t.last().unwrap() >= high && (2..=8).contains(&t.len()), "{high}: {t:?}");
        }
        for (low, high) in [(0.01, 900.0), (3.0, 4.0), (1.0, 1.0001), (0.5, 70.0)] {
            let t = log_ticks(low, high);
            assert!(t[0] <= low * 1.0001 && *t.last().unwrap() >= high * 0.9999 && t.len() >= 2, "{low} {high}: {t:?}");
        }
    }

    #[test]
    fn charts_survive_any_values() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, f64::MAX / 1e3), (2.0, 0.0)], vec![(0.0, 5.0), (0.0, 5.0)]]
        {
            for log_x in [false, true] {
                let axes = Axes { x: "x", y: "y", log_x, from_zero: true };
                let s = lines("t", &axes, &[Line { name: "<n>".into(), points: points.clone() }]);
                assert!(!s.contains("NaN") && !s.contains("inf") && s.contains("&lt;n&gt;"), "{s}");
            }
            let s = scatter("t", "<x>", "y", &points);
            assert!(!s.contains("NaN") && !s.contains("inf") && s.contains("&lt;x&gt;"), "{s}");
            assert_eq!(s.matches("<circle").count(), points.len());
        }
        assert!(bars("t", "u", &[("a".into(), 0.0)]).contains("</svg>"));
    }
}
