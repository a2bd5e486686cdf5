//! When a side merges in a pipeline: the decision component and the metric analyser of CoPro+ (Sun and others, 2022,
//! section 4). Each side has its own. Pure: measures go in, decisions come out.
//!
//! f = a C + b M + p V, where C is the use of the processor, M of the memory, V the share of large pairs, each from 0
//! to 1. From the threshold on merges are linear: pairs are large then, and a pipeline gains little. The published
//! setting is a = b = 0, p = 1, threshold 0.7, large above 32 KB on a host and above 16 KB on a device, no hysteresis;
//! the first state is the pipeline.
//!
//! Invariant: the counts of the window are those of the tallies in it.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use varve_volume::setting::Plain;

/// How one side decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecisionOptions {
    /// Weight of the processor's use (a).
    pub cpu: f64,
    /// Weight of the memory's use (b).
    pub memory: f64,
    /// Weight of the share of large pairs (p).
    pub pairs: f64,
    /// From here on merges are linear; 0 to 1.
    pub threshold: f64,
    /// Bytes above which a value is large.
    pub large_bytes: u32,
    /// So far from the threshold a decision is not changed; 0, as published: at the threshold itself.
    pub hysteresis: f64,
    /// Over so many pairs the share of large ones is taken: on the host the last that were written, on a worker, which
    /// sees no writes, the last that it merged. 0, as published: those of the sub-task's own inputs (by the mean size
    /// of each segment's pairs, which is all that is known of them before).
    pub window: u64,
    /// How merges are done before a decision was changed: what counts where the first one lies within the hysteresis.
    pub first: Mode,
}

impl DecisionOptions {
    /// The published setting of a host.
    pub fn host() -> DecisionOptions {
        let (large_bytes, first) = (32 << 10, Mode::Pipeline);
        let (cpu, memory, pairs, threshold) = (0.0, 0.0, 1.0, 0.7);
        DecisionOptions { cpu, memory, pairs, threshold, large_bytes, hysteresis: 0.0, window: 0, first }
    }

    /// The published setting of a device.
    pub fn device() -> DecisionOptions {
        DecisionOptions { large_bytes: 16 << 10, ..DecisionOptions::host() }
    }

    /// What is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let share = |x: f64| (0.0..=1.0).contains(&x);
        let weights = [self.cpu, self.memory, self.pairs];
        if !weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0) {
            return Err(format!("weights {weights:?} of a decision: they are numbers from 0 on"));
        }
        if !share(self.threshold) || !share(self.hysteresis) {
            let (threshold, hysteresis) = (self.threshold, self.hysteresis);
            return Err(format!("threshold {threshold} and hysteresis {hysteresis} of a decision: from 0 to 1"));
        }
        Ok(())
    }
}

/// How a side merges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Reads, merges and writes one after the other.
    Linear,
    /// At the same time.
    #[default]
    Pipeline,
}

impl Mode {
    /// All there are.
    pub const ALL: [Mode; 2] = [Mode::Pipeline, Mode::Linear];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Linear => "linear",
            Mode::Pipeline => "pipeline",
        }
    }
}

impl Plain for Mode {}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is no mode: there are pipeline and linear"))
    }
}

/// What a decision is made of, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measures {
    pub cpu: f64,
    pub memory: f64,
    pub large: f64,
}

/// The decision component.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    options: DecisionOptions,
    mode: Mode,
}

impl Decision {
    pub(crate) fn new(options: DecisionOptions) -> Decision {
        assert!(options.check().is_ok(), "options are checked where they come in");
        Decision { options, mode: options.first }
    }

    /// How it decides.
    pub(crate) fn options(&self) -> &DecisionOptions {
        &self.options
    }

    /// How the next sub-task is done.
    pub(crate) fn decide(&mut self, at: Measures) -> Mode {
        let DecisionOptions { cpu, memory, pairs, threshold, hysteresis, .. } = self.options;
        let f = cpu * at.cpu + memory * at.memory + pairs * at.large;
        self.mode = match self.mode {
            Mode::Pipeline if f >= threshold + hysteresis => Mode::Linear,
            Mode::Linear if f < threshold - hysteresis => Mode::Pipeline,
            mode => mode,
        };
        self.mode
    }
}

/// A window is counted in about so many steps: each goes out of it whole.
const STEPS: u64 = 64;

/// The metric analyser: what share of the pairs that went by was large.
#[derive(Clone, Debug, Default)]
pub(crate) struct Analyser {
    window: u64,
    /// Pairs and large ones that came together, or one after the other within a step, the oldest first.
    seen: VecDeque<(u64, u64)>,
    pairs: u64,
    large: u64,
}

impl Analyser {
    /// Over the last so many pairs.
    pub(crate) fn new(window: u64) -> Analyser {
        Analyser { window, ..Analyser::default() }
    }

    /// So many pairs went by, of which so many were large.
    pub(crate) fn note(&mut self, pairs: u64, large: u64) {
        assert!(large <= pairs, "large pairs are pairs");
        match self.seen.back_mut() {
            Some(last) if last.0 + pairs <= self.window / STEPS => *last = (last.0 + pairs, last.1 + large),
            _ => self.seen.push_back((pairs, large)),
        }
        (self.pairs, self.large) = (self.pairs + pairs, self.large + large);
        while let Some((p, l)) = self.seen.front().copied().filter(|(p, _)| self.pairs - p >= self.window) {
            self.seen.pop_front();
            (self.pairs, self.large) = (self.pairs - p, self.large - l);
        }
    }

    /// The share of large pairs; none: there was no pair, or it looks at no window.
    pub(crate) fn share(&self) -> Option<f64> {
        debug_assert_eq!(self.pairs, self.seen.iter().map(|(pairs, _)| pairs).sum::<u64>());
        (self.window > 0 && self.pairs > 0).then(|| self.large as f64 / self.pairs as f64)
    }
}

/// The share of large pairs in segments, of which each is given by its entries and their bytes of keys and values.
pub(crate) fn share_of_inputs(segments: impl IntoIterator<Item = (u64, u64)>, large_bytes: u32) -> f64 {
    let (mut pairs, mut large) = (0u64, 0u64);
    for (entries, bytes) in segments.into_iter().filter(|(entries, _)| *entries > 0) {
        pairs = pairs.saturating_add(entries);
        if bytes / entries > large_bytes.into() {
            large = large.saturating_add(entries);
        }
    }
    if pairs == 0 { 0.0 } else { large as f64 / pairs as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    fn of(large: f64) -> Measures {
        Measures { large, ..Measures::default() }
    }

    #[test]
    fn as_published_the_share_of_large_pairs_decides_at_seven_tenths() {
        let mut host = Decision::new(DecisionOptions::host());
        let decided: Vec<Mode> = [0.0, 0.69, 0.7, 1.0, 0.7, 0.69].map(|v| host.decide(of(v))).to_vec();
        use Mode::{Linear, Pipeline};
        assert_eq!(decided, [Pipeline, Pipeline, Linear, Linear, Linear, Pipeline]);
        // Neither processor nor memory matter.
        assert_eq!(host.decide(Measures { cpu: 1.0, memory: 1.0, large: 0.1 }), Pipeline);
        assert!(DecisionOptions { threshold: 1.1, ..DecisionOptions::host() }.check().is_err());
        assert!(DecisionOptions { cpu: f64::NAN, ..DecisionOptions::host() }.check().is_err());
    }

    #[test]
    fn a_busy_side_is_linear_and_hysteresis_ends_flapping() {
        let busy = DecisionOptions { cpu: 0.5, memory: 0.5, ..DecisionOptions::host() };
        let mut side = Decision::new(busy);
        assert_eq!(side.decide(Measures { cpu: 0.9, memory: 0.6, large: 0.0 }), Mode::Linear);
        let mut rng = Rng::from_seed(2);
        let mut changes = [0; 2];
        let mut sides = [0.0, 0.1].map(|hysteresis| Decision::new(DecisionOptions { hysteresis, ..busy }));
        let mut last = [Mode::Pipeline; 2];
        for _ in 0..1000 {
            // Around the threshold, never past the hysteresis.
            let measures = of(0.62 + rng.below(160) as f64 / 1000.0);
            for (i, side) in sides.iter_mut().enumerate() {
                let mode = side.decide(measures);
                changes[i] += u64::from(mode != last[i]);
                last[i] = mode;
            }
        }
        assert!(changes[0] > 300 && changes[1] == 0, "{changes:?}");
    }

    #[test]
    fn the_first_state_stays_until_a_measure_is_past_the_band() {
        let options = DecisionOptions { hysteresis: 0.2, threshold: 0.5, ..DecisionOptions::host() };
        for first in Mode::ALL {
            let mut side = Decision::new(DecisionOptions { first, ..options });
            assert_eq!([0.5, 0.69, 0.31].map(|v| side.decide(of(v))), [first; 3]);
            assert_eq!((side.decide(of(0.2)), side.decide(of(0.5))), (Mode::Pipeline, Mode::Pipeline));
            assert_eq!(first.name().parse(), Ok(first));
        }
        assert!("fast".parse::<Mode>().is_err_and(|e| e.contains("pipeline and linear")));
    }

    #[test]
    fn a_mode_is_what_the_last_measure_past_the_band_says() {
        let mut rng = Rng::from_seed(7);
        for _ in 0..50 {
            let hysteresis = rng.below(30) as f64 / 100.0;
            let options = DecisionOptions { hysteresis, threshold: 0.5, ..DecisionOptions::device() };
            let (mut side, mut expected) = (Decision::new(options), Mode::Pipeline);
            for _ in 0..100 {
                let v = rng.below(1001) as f64 / 1000.0;
                if v >= 0.5 + hysteresis {
                    expected = Mode::Linear;
                } else if v < 0.5 - hysteresis {
                    expected = Mode::Pipeline;
                }
                assert_eq!(side.decide(of(v)), expected, "{v}");
            }
        }
    }

    #[test]
    fn the_window_has_the_last_pairs() {
        let mut window = Analyser::new(100);
        assert_eq!(window.share(), None);
        window.note(100, 100);
        assert_eq!(window.share(), Some(1.0));
        window.note(50, 0);
        assert_eq!(window.share(), Some(100.0 / 150.0), "what reaches into the window counts whole");
        window.note(50, 0);
        assert_eq!(window.share(), Some(0.0));
        let mut long = Analyser::new(64_000);
        (0..200_000).for_each(|n| long.note(1, u64::from(n >= 168_000)));
        assert_eq!(long.share(), Some(0.5));
        assert!(long.seen.len() <= 65, "however long it is, {} steps are kept", long.seen.len());
        let mut none = Analyser::new(0);
        none.note(5, 5);
        assert_eq!(none.share(), None, "the sub-task's inputs say it");
        assert_eq!(share_of_inputs([(10, 10 * 40_000), (30, 30 * 100), (0, 0)], 32 << 10), 0.25);
    }
}
