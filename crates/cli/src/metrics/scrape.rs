//! Metrics at one moment, read from the text format.

use varve_rt::Instant;

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
    /// Only rises.
    pub counter: bool,
}

impl Sample {
    /// The value of a label, if it has that.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }

    /// Name and labels as in the text format.
    pub fn title(&self) -> String {
        if self.labels.is_empty() {
            return self.name.clone();
        }
        let labels: Vec<String> = self.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        format!("{}{{{}}}", self.name, labels.join(","))
    }
}

/// All values at one moment.
#[derive(Debug, Clone)]
pub struct Scrape {
    pub at: Instant,
    pub samples: Vec<Sample>,
}

impl Scrape {
    /// Reads the text format. Fails when it is not that, or not of a Varve database.
    pub fn parse(text: &str) -> Result<Scrape, String> {
        let (at, mut samples, mut counters) = (varve_rt::now(), Vec::new(), Vec::new());
        for (n, line) in text.lines().enumerate() {
            let wrong = || format!("line {} is no metric: {line:?}", n + 1);
            if let Some(of) = line.strip_prefix("# TYPE ") {
                if let Some(name) = of.strip_suffix(" counter") {
                    counters.push(name.to_string());
                }
            } else if !line.starts_with('#') && !line.trim().is_empty() {
                let mut sample = sample(line).ok_or_else(wrong)?;
                sample.counter = counters.last().is_some_and(|name| *name == sample.name);
                samples.push(sample);
            }
        }
        if !samples.iter().any(|s| s.name == "varve_build_info") {
            let worker = samples.iter().any(|s| s.name.starts_with("varve_worker_"));
            return Err(if worker {
                "these are the figures of a worker, which `varve worker status HOST:PORT` shows".into()
            } else {
                "there is no varve_build_info".into()
            });
        }
        Ok(Scrape { at, samples })
    }

    /// The values of a metric whose labels include these.
    pub fn of<'s>(&'s self, name: &'s str, labels: &'s [(&str, &str)]) -> impl Iterator<Item = &'s Sample> {
        let has = |s: &Sample| labels.iter().all(|(n, v)| s.labels.iter().any(|(name, value)| n == name && v == value));
        self.samples.iter().filter(move |s| s.name == name && has(s))
    }

    /// Their sum; none when there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.of(name, labels).map(|s| s.value).fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.into(), labels, value, counter: false })
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, c) => value.push(c),
            }
        };
        found.push((name.into(), value));
        rest = after[end..].strip_prefix(',').unwrap_or(&after[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_is_read() {
        let text = "# HELP varve_build_info x\n# TYPE varve_build_info gauge\nvarve_build_info{version=\"1 \\\"a\\\\\"} 1\n\
            # TYPE ops_total counter\nops_total{device=\"data\",op=\"read\"} 12\nops_total{device=\"log\",op=\"read\"} 3.5\n";
        let scrape = Scrape::parse(text).unwrap();
        assert_eq!(scrape.samples[0].labels[0].1, "1 \"a\\");
        assert_eq!(scrape.samples[1].title(), "ops_total{device=\"data\",op=\"read\"}");
        assert!(scrape.samples[1].counter && !scrape.samples[0].counter);
        assert_eq!(scrape.sum("ops_total", &[]), Some(15.5));
        assert_eq!(scrape.sum("ops_total", &[("device", "log")]), Some(3.5));
        assert_eq!(scrape.sum("ops_total", &[("device", "fast")]), None);
        for bad in ["<html>\n", "varve_build_info{ 1\n", "varve_build_info x\n", "up 1\n", ""] {
            assert!(Scrape::parse(bad).is_err(), "{bad:?}");
        }
    }
}
