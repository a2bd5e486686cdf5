//! What a pool was made with, name by name: for results and reports, which must not leave anybody guessing what a
//! preset or the size of the pool came to.

use super::config::PoolConfig;
use std::time::Duration;

fn micros(time: Duration) -> String {
    format!("{} us", time.as_micros())
}

impl PoolConfig {
    /// Every setting that the pool works by, with its unit; those of policies and strategies that it does not have are
    /// left out.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let cleaner = &self.cleaner;
        let mut all = vec![
            ("page_size", format!("{} bytes", self.page_size)),
            ("frames", self.frames.to_string()),
            ("instances", self.instances.to_string()),
            ("replacement", self.replacement.to_string()),
            ("victim", self.victim.to_string()),
            ("cleaner", cleaner.kind.to_string()),
            ("cleaner_threads", self.parts().count().to_string()),
            ("scan_depth", format!("{} pages", cleaner.scan_depth)),
            ("free_target", format!("{} frames", cleaner.free_target)),
            ("free_low", format!("{} frames", cleaner.free_low)),
            ("cleaner_interval", micros(cleaner.interval)),
            ("cleaner_wake_low", cleaner.wake_low.to_string()),
            ("parallel_list", cleaner.parallel.to_string()),
            ("reset_on_clean", cleaner.reset_on_clean.to_string()),
            ("by_class", cleaner.writes_by_class().to_string()),
            ("aside_slots", format!("{} per instance", self.aside_slots())),
            ("patience", micros(self.patience)),
            ("write_batch", format!("{} pages", self.write_batch)),
            ("staging", format!("{} pages", self.staging_pages)),
            ("sync_writes", self.sync_writes.to_string()),
            ("io", format!("{} to {} pages/s", cleaner.io, cleaner.io_max)),
            ("dirty", format!("{} % counts from {} %", cleaner.max_dirty, cleaner.low_water)),
            ("hit_buffer", self.hit_buffer.to_string()),
        ];
        if self.replacement == "lru-midpoint" {
            let midpoint = &self.policy.midpoint;
            all.push(("old_part", format!("{} %", midpoint.old_percent)));
            all.push(("old_time", micros(Duration::from_nanos(midpoint.old_time))));
            all.push(("old_time_of_turn", midpoint.turn_part.to_string()));
        }
        #[cfg(feature = "baselines")]
        {
            all.push(("doublewrite", self.baselines.doublewrite.to_string()));
            all.push(("equal_memory", self.baselines.equal_memory.to_string()));
            all.push(("time_divisor", self.baselines.time_divisor.to_string()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn say_what_a_preset_came_to() {
        let of = |preset: &str, name: &str| {
            let config = PoolConfig::new(4096, 8192).with_preset(preset).unwrap();
            config.settings().into_iter().find(|(known, _)| *known == name).map(|(_, text)| text)
        };
        assert_eq!(of("lru-c", "victim").as_deref(), Some("clean-first"));
        assert_eq!(of("lru-c", "parallel_list").as_deref(), Some("true"));
        assert_ne!(of("lru-c", "cleaner_threads"), None);
        assert_eq!(of("gd2l-c", "old_time"), None);
    }
}
