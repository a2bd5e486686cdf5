//! The curve of miss ratio over cache size as one HTML file: inline SVG, no script, no network, readable light and
//! dark.

use super::Point;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 60.0;

/// Colours that hold against both backgrounds (Okabe and Ito, with the yellow and black replaced).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6bb1", "#7f7f7f"];
/// Dashes tell lines apart that share a colour, or that print in grey.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1b1b; --dim: #666; --grid: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --dim: #a0a0a0; --grid: #3a3a3a; --paper: #161616; } }
@media print { :root { --ink: #000; --dim: #444; --grid: #ccc; --paper: #fff; } }
body { margin: 2rem auto; max-width: 900px; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.3rem; } svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
.grid { stroke: var(--grid); } .axis { stroke: var(--dim); } .legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; padding: 0; list-style: none; }
.legend svg { width: 36px; height: 10px; margin-right: .4rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; margin-top: 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--grid); } th:first-child, td:first-child { text-align: left; }
p, code { overflow-wrap: anywhere; } .dim { color: var(--dim); }";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into at most `most` parts.
fn step(span: f64, most: f64) -> f64 {
    let least = (span / most).max(1e-6);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= least * 0.999).unwrap_or(10.0 * power)
}

struct Axes {
    sizes: (f64, f64),
    ratios: (f64, f64),
}

impl Axes {
    fn of(points: &[Point]) -> Axes {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)))
        };
        let sizes = range(&mut points.iter().map(|p| (p.size as f64).log10()));
        let (low, high) = range(&mut points.iter().map(|p| p.miss_ratio));
        // From a round number below the lowest to one above the highest.
        let s = step((high - low).max(0.02), 6.0);
        let ratios = ((low / s).floor() * s, ((high / s).ceil() * s).max((low / s).floor() * s + s));
        let pad = if sizes.1 > sizes.0 { 0.0 } else { 0.5 };
        Axes { sizes: (sizes.0 - pad, sizes.1 + pad), ratios }
    }

    fn x(&self, size: usize) -> f64 {
        let share = ((size as f64).log10() - self.sizes.0) / (self.sizes.1 - self.sizes.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ratio: f64) -> f64 {
        let share = (ratio - self.ratios.0) / (self.ratios.1 - self.ratios.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, out: &mut String, sizes: &[usize]) {
        let s = step(self.ratios.1 - self.ratios.0, 8.0);
        let mut tick = (self.ratios.0 / s).ceil() * s;
        while tick <= self.ratios.1 + s / 1e3 {
            let y = self.y(tick);
            let digits = if s < 0.01 { 1 } else { 0 };
            let _ = write!(
                out,
                "<line class='grid' x1='{LEFT}' x2='{}' y1='{y:.1}' y2='{y:.1}'/>\
                 <text x='{}' y='{:.1}' text-anchor='end'>{:.digits$}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.5,
                100.0 * tick
            );
            tick += s;
        }
        let mut last = f64::MIN;
        for &size in sizes {
            let (x, label) = (self.x(size), grouped(size as u64));
            let _ = write!(
                out,
                "<line class='axis' x1='{x:.1}' x2='{x:.1}' y1='{}' y2='{}'/>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 5.0
            );
            // A label that would run into the one before is left out; the table has the number.
            let half = 4.0 * label.len() as f64;
            if x - half > last + 6.0 {
                let at = x.min(WIDTH - half);
                let _ =
                    write!(out, "<text x='{at:.1}' y='{}' text-anchor='middle'>{label}</text>", HEIGHT - BOTTOM + 20.0);
                last = at + half;
            }
        }
        let (bottom, middle) = (HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2.0);
        let _ = write!(
            out,
            "<line class='axis' x1='{LEFT}' x2='{}' y1='{bottom}' y2='{bottom}'/>\
             <line class='axis' x1='{LEFT}' x2='{LEFT}' y1='{TOP}' y2='{bottom}'/>\
             <text x='{}' y='{}' text-anchor='middle'>cache size, pages (logarithmic)</text>\
             <text transform='translate(18 {middle}) rotate(-90)' text-anchor='middle'>miss ratio, %</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 14.0
        );
    }
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn stroke(i: usize) -> String {
    let dash = DASHES[i / COLOURS.len() % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray='{dash}'") };
    format!("stroke='{}' stroke-width='2' fill='none'{dash}", COLOURS[i % COLOURS.len()])
}

/// The page. `title` names the trace, `notes` are lines below the title, `command` repeats the run.
pub fn to_html(title: &str, notes: &[String], command: &str, points: &[Point]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    points.iter().for_each(|p| {
        if !policies.contains(&p.policy.as_str()) {
            policies.push(&p.policy);
        }
    });
    let mut sizes: Vec<usize> = points.iter().map(|p| p.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of = |policy: &str| {
        let mut line: Vec<&Point> = points.iter().filter(|p| p.policy == policy).collect();
        line.sort_by_key(|p| p.size);
        line
    };
    let mut out = format!(
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>\
         <title>{0}</title><style>{STYLE}</style><h1>{0}</h1>",
        escape(title)
    );
    notes.iter().for_each(|note| out.push_str(&format!("<p>{}</p>", escape(note))));
    if !points.is_empty() {
        let axes = Axes::of(points);
        let _ = write!(out, "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='Miss ratio by cache size'>");
        axes.draw(&mut out, &sizes);
        for (i, policy) in policies.iter().enumerate() {
            let line = of(policy);
            let at: Vec<String> =
                line.iter().map(|p| format!("{:.1},{:.1}", axes.x(p.size), axes.y(p.miss_ratio))).collect();
            let _ = write!(out, "<polyline points='{}' {}/>", at.join(" "), stroke(i));
            for p in line {
                let _ = write!(
                    out,
                    "<circle cx='{:.1}' cy='{:.1}' r='3.5' fill='{}'><title>{}, {} pages: {:.2} %</title></circle>",
                    axes.x(p.size),
                    axes.y(p.miss_ratio),
                    COLOURS[i % COLOURS.len()],
                    escape(policy),
                    grouped(p.size as u64),
                    100.0 * p.miss_ratio
                );
            }
        }
        out.push_str("</svg>");
    }
    out.push_str("<ul class='legend'>");
    for (i, policy) in policies.iter().enumerate() {
        let _ =
            write!(out, "<li><svg viewBox='0 0 36 10'><path d='M0 5H36' {}/></svg>{}</li>", stroke(i), escape(policy));
    }
    out.push_str("</ul><div class='scroll'><table><tr><th>miss ratio, %</th>");
    sizes.iter().for_each(|s| out.push_str(&format!("<th>{}</th>", grouped(*s as u64))));
    out.push_str("</tr>");
    for policy in &policies {
        let _ = write!(out, "<tr><td>{}</td>", escape(policy));
        let line = of(policy);
        for size in &sizes {
            match line.iter().find(|p| p.size == *size) {
                Some(p) => out.push_str(&format!("<td>{:.2}</td>", 100.0 * p.miss_ratio)),
                None => out.push_str("<td></td>"),
            }
        }
        out.push_str("</tr>");
    }
    let _ = write!(out, "</table></div><p class='dim'>Repeat: <code>{}</code></p></html>", escape(command));
    out
}
