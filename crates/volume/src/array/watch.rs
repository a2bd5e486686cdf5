//! Looks at the counters of an array's extents now and then, and knows what each extent is.
//!
//! What happened between two looks counts as of the second, so somebody should look a few times in a half-life.
//!
//! Invariant: what was counted is told to the classifier once.

use super::Array;
use super::classify::{Class, Classifier, Known, Rules};
use super::planner::Load;
use super::uses::Used;

/// What the extents of an array are, and what is asked of them.
#[derive(Debug, Clone)]
pub struct Watch {
    classifier: Classifier,
    seen: Vec<Used>,
    /// When the counters were looked at last, seconds.
    now: f64,
}

/// How such a text begins.
const LOADS: &str = "varve array loads 1";

fn seconds() -> f64 {
    varve_rt::now().as_nanos() as f64 / 1e9
}

impl Watch {
    /// Begins to watch an array; what was counted so far is not counted.
    pub fn new(array: &Array, rules: Rules) -> Watch {
        let (seen, now) = (array.used(), seconds());
        Watch { classifier: Classifier::new(rules, seen.len(), now), seen, now }
    }

    /// Takes what was counted since the last look.
    pub fn look(&mut self, array: &Array) {
        let (used, now) = (array.used(), seconds());
        self.classifier.resize(used.len(), now);
        self.seen.resize(used.len(), Used::default());
        for (extent, (now_used, before)) in used.iter().zip(&self.seen).enumerate() {
            let news = Used {
                reads: now_used.reads.saturating_sub(before.reads),
                read_bytes: now_used.read_bytes.saturating_sub(before.read_bytes),
                writes: now_used.writes.saturating_sub(before.writes),
                write_bytes: now_used.write_bytes.saturating_sub(before.write_bytes),
                ..*now_used
            };
            self.classifier.add(extent, &news, now);
        }
        assert!(self.seen.len() == used.len() && now >= self.now, "clocks do not go back");
        (self.seen, self.now) = (used, now);
    }

    /// What is known of each extent, as text that [`Watch::remember`] takes: a line for the window, then one for each
    /// extent. For who opens the array again.
    pub fn to_text(&self) -> String {
        let lines = (0..self.seen.len()).map(|extent| self.classifier.line(extent, self.now));
        format!("{LOADS} {}\n{}", self.classifier.watched(self.now), lines.collect::<String>())
    }

    /// Goes on from what was known at an earlier time, which counts as now. Text that is none changes nothing.
    pub fn remember(&mut self, text: &str) -> bool {
        let mut lines = text.lines();
        let watched = lines.next().and_then(|line| line.strip_prefix(LOADS)).and_then(|age| age.trim().parse().ok());
        let known: Option<Vec<Known>> = lines.map(Known::parse).collect();
        let (Some(watched), Some(known)) = (watched, known) else { return false };
        self.classifier.remember(watched, &known, self.now);
        true
    }

    /// What each extent was at the last look.
    pub fn classes(&self) -> Vec<Class> {
        (0..self.seen.len()).map(|extent| self.classifier.class(extent, self.now)).collect()
    }

    /// The load of each extent at the last look, per second.
    pub fn loads(&self) -> Vec<Load> {
        (0..self.seen.len()).map(|extent| self.classifier.load(extent, self.now)).collect()
    }
}
