//! What happened between two moments.

use super::scrape::Scrape;

/// Two readings of the same metrics, the later one last.
pub struct Interval<'s> {
    pub before: &'s Scrape,
    pub now: &'s Scrape,
}

impl Interval<'_> {
    /// Its length, seconds.
    pub fn seconds(&self) -> f64 {
        (self.now.at - self.before.at).as_secs_f64().max(1e-9)
    }

    /// By how much a counter rose; from zero when it fell, for then the database was opened again.
    pub fn rise(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let (now, before) = (self.now.sum(name, labels)?, self.before.sum(name, labels).unwrap_or(0.0));
        Some(if now < before { now } else { now - before })
    }

    /// The same, per second.
    pub fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        Some(self.rise(name, labels)? / self.seconds())
    }

    /// A gauge as it is now.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.now.sum(name, labels)
    }

    /// Part over whole, none when the whole is nothing.
    pub fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
        whole.filter(|whole| *whole > 0.0).and_then(|whole| Some(part? / whole))
    }

    /// Share of the page accesses that found the page in memory; of one kind of page, or of all.
    pub fn hit_ratio(&self, kind: Option<&str>) -> Option<f64> {
        let labels: Vec<(&str, &str)> = kind.map(|kind| ("kind", kind)).into_iter().collect();
        let hits = self.rise("varve_pool_hits_total", &labels)?;
        Interval::share(Some(hits), Some(hits + self.rise("varve_pool_misses_total", &labels)?))
    }

    /// Share of the reads that the fast device served.
    pub fn tier_hit_ratio(&self) -> Option<f64> {
        let reads = |labels: &[(&str, &str)]| self.rise("varve_tier_reads_total", labels);
        Interval::share(reads(&[("from", "fast")]), reads(&[]))
    }

    /// Share of the pool that changed and is not yet written.
    pub fn dirty_share(&self) -> Option<f64> {
        Interval::share(self.gauge("varve_pool_dirty_pages", &[]), self.gauge("varve_pool_frames", &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(at: u64, lines: &str) -> Scrape {
        let text = format!("varve_build_info 1\n{lines}");
        Scrape { at: varve_rt::Instant::from_nanos(at * 1_000_000_000), ..Scrape::parse(&text).unwrap() }
    }

    #[test]
    fn rates_are_of_the_interval() {
        let hits = |n: u64, m: u64| {
            format!("varve_pool_hits_total{{kind=\"leaf\"}} {n}\nvarve_pool_misses_total{{kind=\"leaf\"}} {m}\n")
        };
        let (a, b) = (scrape(10, &hits(100, 50)), scrape(12, &hits(130, 60)));
        let i = Interval { before: &a, now: &b };
        assert_eq!(i.rate("varve_pool_hits_total", &[]), Some(15.0));
        assert_eq!(i.hit_ratio(Some("leaf")), Some(0.75));
        assert_eq!((i.hit_ratio(Some("inner")), i.tier_hit_ratio()), (None, None));
        let idle = Interval { before: &b, now: &b };
        assert_eq!(idle.hit_ratio(None), None, "nothing was accessed");
        let opened_again = Interval { before: &b, now: &a };
        assert_eq!(opened_again.rise("varve_pool_misses_total", &[]), Some(50.0));
    }
}
