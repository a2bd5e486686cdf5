//! Which extents are only read: counts per extent in a decaying window.
//!
//! An extent is read-only when it is sealed, or had no write for `quiet` and is read often enough (Yang, Wan, Fan 2017,
//! read-only data with enough read load; the window and the bounds are ours). Counts halve every `half_life`, exactly:
//! the count of an event that lies t back is 2^(-t / half_life), whenever it is asked for.
//!
//! Pure: events with their time in, answers out. Seconds are those of any clock that does not go back.
//!
//! Invariants: counts are of the moment `at` of their extent; `at` never goes back.

use super::planner::Load;
use super::uses::Used;

/// What counts as read-only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Counts halve in this time, seconds.
    pub half_life: f64,
    /// Without a write for so long, an extent is quiet, seconds.
    pub quiet: f64,
    /// Reads per second from which a quiet extent is worth isolating.
    pub reads_per_s: f64,
}

impl Default for Rules {
    /// Assumed: one minute, one minute, a read in ten seconds.
    fn default() -> Rules {
        Rules { half_life: 60.0, quiet: 60.0, reads_per_s: 0.1 }
    }
}

/// What an extent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Nothing changes it: whoever wrote it said so.
    Sealed,
    /// Nobody wrote it for a while, and it is read.
    Quiet,
    /// It is written, or was lately.
    Changing,
    /// Neither written lately nor read enough.
    Cold,
}

impl Class {
    /// It may lie on a drive that only reads.
    pub fn read_only(self) -> bool {
        matches!(self, Class::Sealed | Class::Quiet)
    }
}

/// Counts of one extent, as of `at`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    at: f64,
    reads: f64,
    writes: f64,
    read_bytes: f64,
    write_bytes: f64,
    last_write: Option<f64>,
    sealed: bool,
}

impl Counts {
    fn decay(&mut self, now: f64, half_life: f64) {
        let passed = now - self.at;
        assert!(passed.is_finite(), "events have times");
        if passed > 0.0 {
            let left = (-passed / half_life).exp2();
            debug_assert!((0.0..=1.0).contains(&left), "what lies back counts less and less");
            for count in [&mut self.reads, &mut self.writes, &mut self.read_bytes, &mut self.write_bytes] {
                *count *= left;
            }
            self.at = now;
        }
    }
}

/// What is known of an extent at some time: counts, and how long ago it was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    counts: [f64; 4],
    /// Seconds; none: never.
    written: Option<f64>,
}

impl Known {
    /// Reads a line of [`Classifier::line`].
    pub fn parse(line: &str) -> Option<Known> {
        let fields: Vec<f64> = line.split(' ').map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let [reads, writes, read_bytes, write_bytes, written] = fields[..] else { return None };
        let good = fields[..4].iter().all(|n| n.is_finite() && *n >= 0.0) && written.is_finite();
        let written = (written >= 0.0).then_some(written);
        good.then_some(Known { counts: [reads, writes, read_bytes, write_bytes], written })
    }
}

/// The extents of an array and what they are.
#[derive(Debug, Clone)]
pub struct Classifier {
    rules: Rules,
    began: f64,
    extents: Vec<Counts>,
}

impl Classifier {
    /// For `extents` extents, none of which was ever touched; watching begins at `now`.
    pub fn new(rules: Rules, extents: usize, now: f64) -> Classifier {
        assert!(rules.half_life > 0.0 && rules.quiet >= 0.0, "a window has a length");
        assert!(rules.reads_per_s >= 0.0, "a rate is no debt");
        Classifier { rules, began: now, extents: vec![Counts { at: now, ..Counts::default() }; extents] }
    }

    /// The array has so many extents now; new ones were never touched.
    pub fn resize(&mut self, extents: usize, now: f64) {
        self.extents.resize(extents, Counts { at: now, ..Counts::default() });
    }

    /// `bytes` of an extent were read.
    pub fn read(&mut self, extent: usize, bytes: u64, now: f64) {
        let half_life = self.rules.half_life;
        let c = &mut self.extents[extent];
        c.decay(now, half_life);
        c.reads += 1.0;
        c.read_bytes += bytes as f64;
    }

    /// `bytes` of an extent were written. A sealed extent is sealed no more.
    pub fn write(&mut self, extent: usize, bytes: u64, now: f64) {
        let half_life = self.rules.half_life;
        let c = &mut self.extents[extent];
        c.decay(now, half_life);
        c.writes += 1.0;
        c.write_bytes += bytes as f64;
        c.last_write = Some(now.max(c.last_write.unwrap_or(now)));
        c.sealed = false;
    }

    /// What was counted of an extent since it was told last, with its seal.
    pub fn add(&mut self, extent: usize, news: &Used, now: f64) {
        let half_life = self.rules.half_life;
        debug_assert!(news.writes == 0 || news.last_write.is_some(), "a write has its time");
        let c = &mut self.extents[extent];
        c.decay(now, half_life);
        c.reads += news.reads as f64;
        c.read_bytes += news.read_bytes as f64;
        c.writes += news.writes as f64;
        c.write_bytes += news.write_bytes as f64;
        if let Some(at) = news.last_write.filter(|_| news.writes > 0) {
            c.last_write = Some((at as f64 / 1e9).max(c.last_write.unwrap_or(0.0)));
        }
        c.sealed = news.sealed;
    }

    /// Nothing will change an extent, or something may again.
    pub fn seal(&mut self, extent: usize, sealed: bool) {
        self.extents[extent].sealed = sealed;
    }

    /// How long it has been watching, seconds.
    pub fn watched(&self, now: f64) -> f64 {
        now - self.began
    }

    /// An extent as a line of text: what [`Known::parse`] reads.
    pub fn line(&self, extent: usize, now: f64) -> String {
        let c = self.decayed(extent, now);
        let written = c.last_write.map_or(-1.0, |at| now - at);
        format!("{:.3} {:.3} {:.0} {:.0} {written:.3}\n", c.reads, c.writes, c.read_bytes, c.write_bytes)
    }

    /// Goes on from what was known at an earlier time, after `watched` seconds of watching; it counts as now.
    pub fn remember(&mut self, watched: f64, known: &[Known], now: f64) {
        assert!(watched.is_finite(), "who watched did so for some time");
        self.began = self.began.min(now - watched);
        for (c, known) in self.extents.iter_mut().zip(known) {
            let [reads, writes, read_bytes, write_bytes] = known.counts;
            let last_write = known.written.map(|age| now - age);
            *c = Counts { at: now, reads, writes, read_bytes, write_bytes, last_write, sealed: c.sealed };
        }
    }

    /// What an extent is at `now`.
    pub fn class(&self, extent: usize, now: f64) -> Class {
        let c = &self.extents[extent];
        // Before watching began there may have been writes.
        let since = now - c.last_write.unwrap_or(self.began).max(self.began);
        let quiet = since >= self.rules.quiet;
        match () {
            () if c.sealed => Class::Sealed,
            () if !quiet && c.last_write.is_some() => Class::Changing,
            () if quiet && self.rate(self.decayed(extent, now).reads) >= self.rules.reads_per_s => Class::Quiet,
            () => Class::Cold,
        }
    }

    /// The load of an extent at `now`, per second, as the planner takes it.
    pub fn load(&self, extent: usize, now: f64) -> Load {
        let c = self.decayed(extent, now);
        Load {
            read_bytes: self.rate(c.read_bytes),
            write_bytes: self.rate(c.write_bytes),
            requests: self.rate(c.reads + c.writes),
            read_only: self.class(extent, now).read_only(),
        }
    }

    fn decayed(&self, extent: usize, now: f64) -> Counts {
        let mut c = self.extents[extent];
        c.decay(now, self.rules.half_life);
        c
    }

    /// A decayed count as a rate: events at a steady rate x add up to x * half_life / ln 2.
    fn rate(&self, count: f64) -> f64 {
        count * std::f64::consts::LN_2 / self.rules.half_life
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Event {
        Read(u64),
        Write(u64),
        Seal(bool),
    }

    fn event() -> impl Strategy<Value = (f64, usize, Event)> {
        let kind = prop_oneof![
            4 => (1u64..1 << 20).prop_map(Event::Read),
            1 => (1u64..1 << 20).prop_map(Event::Write),
            1 => any::<bool>().prop_map(Event::Seal),
        ];
        (0.0..20.0, 0usize..4, kind)
    }

    /// The rules, word for word, over the list of everything that happened.
    fn reference(rules: Rules, history: &[(f64, usize, Event)], extent: usize, now: f64) -> (Class, f64, f64) {
        let own = || history.iter().filter(|(_, e, _)| *e == extent);
        let weight = |at: f64| (-(now - at) / rules.half_life).exp2() * std::f64::consts::LN_2 / rules.half_life;
        let sum = |f: &dyn Fn(&Event) -> f64| own().map(|(at, _, event)| weight(*at) * f(event)).sum::<f64>();
        let reads = sum(&|e| f64::from(u8::from(matches!(e, Event::Read(_)))));
        let read_bytes = sum(&|e| if let Event::Read(n) = e { *n as f64 } else { 0.0 });
        let write_bytes = sum(&|e| if let Event::Write(n) = e { *n as f64 } else { 0.0 });
        let sealed = own().fold(false, |sealed, (_, _, event)| match event {
            Event::Seal(sealed) => *sealed,
            Event::Write(_) => false,
            Event::Read(_) => sealed,
        });
        let last = own().filter(|(.., event)| matches!(event, Event::Write(_))).map(|(at, ..)| *at).next_back();
        let class = match last {
            _ if sealed => Class::Sealed,
            Some(at) if now - at < rules.quiet => Class::Changing,
            _ if now - last.unwrap_or(0.0) >= rules.quiet && reads >= rules.reads_per_s => Class::Quiet,
            _ => Class::Cold,
        };
        (class, read_bytes, write_bytes)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn classes_and_loads_are_those_of_the_reference(
            events in prop::collection::vec(event(), 0..60),
            (half_life, quiet, reads_per_s) in (1.0..100.0, 0.0..60.0, 0.001..0.3),
        ) {
            let rules = Rules { half_life, quiet, reads_per_s };
            let mut classifier = Classifier::new(rules, 4, 0.0);
            let (mut now, mut history) = (0.0, Vec::new());
            for (passed, extent, event) in events {
                now += passed;
                match event {
                    Event::Read(bytes) => classifier.read(extent, bytes, now),
                    Event::Write(bytes) => classifier.write(extent, bytes, now),
                    Event::Seal(sealed) => classifier.seal(extent, sealed),
                }
                history.push((now, extent, event));
                for extent in 0..4 {
                    let (class, read_bytes, write_bytes) = reference(rules, &history, extent, now);
                    let load = classifier.load(extent, now);
                    prop_assert_eq!(classifier.class(extent, now), class);
                    prop_assert_eq!(load.read_only, class.read_only());
                    prop_assert!((load.read_bytes - read_bytes).abs() <= 1e-9 * read_bytes.max(1.0));
                    prop_assert!((load.write_bytes - write_bytes).abs() <= 1e-9 * write_bytes.max(1.0));
                }
            }
        }
    }

    #[test]
    fn an_extent_goes_through_all_classes() {
        let mut c = Classifier::new(Rules { half_life: 100.0, quiet: 50.0, reads_per_s: 0.05 }, 1, 0.0);
        assert_eq!(c.class(0, 0.0), Class::Cold);
        c.write(0, 4096, 1.0);
        assert_eq!(c.class(0, 1.0), Class::Changing);
        (0..60).for_each(|n| c.read(0, 4096, f64::from(n)));
        assert_eq!(c.class(0, 50.0), Class::Changing, "49 seconds are not quiet yet");
        assert_eq!(c.class(0, 60.0), Class::Quiet);
        assert_eq!(c.class(0, 2000.0), Class::Cold, "nobody reads it any more");
        c.seal(0, true);
        assert_eq!(c.class(0, 2000.0), Class::Sealed);
        c.write(0, 4096, 2001.0);
        assert_eq!(c.class(0, 2001.0), Class::Changing, "a write breaks the seal");
    }
}
