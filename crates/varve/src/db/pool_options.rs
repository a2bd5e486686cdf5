//! How the buffer pool works: a preset, and single choices that override it. [`OPTIONS`] has a line for each option.
//! Text form: `name=value,name=value`, or a preset's name and then such pairs.

#[cfg(feature = "baselines")]
use crate::buffer::Baselines;
use crate::buffer::policy::{self, PolicyOptions};
use crate::buffer::{PRESETS, PoolConfig, cleaner, victim};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use varve_volume::setting::{Accepts, Setting, Table};

/// Choices for the buffer pool. What is `None` is left to the preset, or to the size of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Preset of replacement policy, victim strategy and cleaner: `lru-c`, `lru-c-batch`, `vanilla57`, `gd2l-c`,
    /// `shore-eager`, `shore-lazy`; with the feature `baselines` also `vanilla`, `war`, `rw`, `lru-c-pointer`. `None`:
    /// `lru-c`, over a tier `vanilla57` with `gd2l`.
    pub preset: Option<String>,
    /// Which page should leave, by the policy's registered name.
    pub replacement: Option<String>,
    /// What a miss does about dirty victims: `spf` (InnoDB 5.7), `clean-first`; with the feature `baselines`
    /// also `spf56`, `war`, `rw`.
    pub victim: Option<String>,
    /// Who writes in the background: `fixed` (InnoDB 5.7), `dynamic`, `eager`, `off`; with the feature `baselines` also
    /// `fixed56`.
    pub cleaner: Option<String>,
    /// Independent instances; `None`: by memory and cores.
    pub instances: Option<usize>,
    /// Threads of cleaners, and of those that write pages set aside, over which the instances are spread.
    pub cleaner_threads: Option<usize>,
    /// Pages examined from the cold end per instance and pass, and slots for pages set aside.
    pub scan_depth: Option<usize>,
    /// Hits that a thread gathers per instance before it tells the policy.
    pub hit_buffer: Option<usize>,
    /// The clean-first pointer goes back to the cold end after each batch of the `dynamic` cleaner.
    pub reset_on_clean: bool,
    /// Cleaners run when free frames run low, not on their timer alone.
    pub wake_low: Option<bool>,
    /// LRU-C's parallel list manipulation: misses note the dirty pages that they pass, and the cleaner walks no list.
    pub parallel_list: Option<bool>,
    /// Single-page flushes and cleaners' batches end with a sync of the data device, as InnoDB's do.
    pub sync_writes: bool,
    /// Pages that scans will want are read ahead.
    pub read_ahead: bool,
    /// Share of dirty pages, percent, from which they are written for that alone.
    pub low_water: Option<usize>,
    /// Microseconds between a page's first access and one that makes it young, in `lru-midpoint`. `None`: a second;
    /// with the presets of LRU-C at most an eighth of what pages spend in the old part of the list.
    pub old_time_us: Option<usize>,
    /// What makes a pool like a published one.
    #[cfg(feature = "baselines")]
    pub baselines: Baselines,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            preset: None,
            replacement: None,
            victim: None,
            cleaner: None,
            instances: None,
            cleaner_threads: None,
            scan_depth: None,
            hit_buffer: None,
            reset_on_clean: false,
            wake_low: None,
            parallel_list: None,
            sync_writes: false,
            read_ahead: true,
            low_water: None,
            old_time_us: None,
            #[cfg(feature = "baselines")]
            baselines: Baselines::default(),
        }
    }
}

/// The option that stands for a whole pool: text that begins without a name is its value.
const FIRST: &str = "preset";

/// What is left to the preset.
const PRESET: &str = "the preset's";

type Line = Setting<PoolOptions>;

/// The options of a pool.
pub const OPTIONS: Table<PoolOptions> = Table {
    of: "pool",
    settings: &[
        Line::new(
            "preset",
            Accepts::Name(|| PRESETS.iter().map(|preset| preset.name).collect()),
            "Replacement policy, victim strategy and cleaner together.",
            |o| &mut o.preset,
        )
        .cli("pool")
        .or_none("lru-c, over a tier vanilla57 with gd2l"),
        Line::new(
            "replacement",
            Accepts::Name(|| policy::REGISTRY.iter().map(|policy| policy.name).collect()),
            "Which page should leave.",
            |o| &mut o.replacement,
        )
        .cli("replacement")
        .or_none(PRESET),
        Line::new(
            "victim",
            Accepts::Name(|| victim::REGISTRY.iter().map(|victim| victim.name).collect()),
            "What a miss does about dirty victims.",
            |o| &mut o.victim,
        )
        .cli("victim")
        .or_none(PRESET),
        Line::new(
            "cleaner",
            Accepts::Name(|| cleaner::REGISTRY.iter().map(|cleaner| cleaner.name).collect()),
            "Who writes in the background.",
            |o| &mut o.cleaner,
        )
        .cli("cleaner")
        .or_none(PRESET),
        Line::new(
            "instances",
            Accepts::Number(1..=1024, "instances"),
            "Independent parts of the pool, over which pages are spread.",
            |o| &mut o.instances,
        )
        .cli("pool-instances")
        .or_none("by memory and cores"),
        Line::new(
            "cleaner_threads",
            Accepts::Number(1..=1024, "threads"),
            "Threads of cleaners, over which the instances are spread.",
            |o| &mut o.cleaner_threads,
        )
        .cli("cleaner-threads")
        .or_none("the preset's: 1, or one per instance, and no more than there are cores"),
        Line::new(
            "scan_depth",
            Accepts::Number(1..=1 << 30, "pages"),
            "Pages examined from the cold end per instance and pass, and slots for pages set aside.",
            |o| &mut o.scan_depth,
        )
        .cli("scan-depth")
        .or_none("a quarter of an instance, 1024 at most"),
        Line::new(
            "hit_buffer",
            Accepts::Number(1..=1 << 16, "hits"),
            "Hits that a thread gathers per instance before it tells the policy.",
            |o| &mut o.hit_buffer,
        )
        .or_none("64, in simulations 1"),
        Line::new(
            "reset_on_clean",
            Accepts::Flag,
            "LRU-C's pointer goes back to the cold end after each batch of writes.",
            |o| &mut o.reset_on_clean,
        )
        .cli("reset-on-clean"),
        Line::new("wake_low", Accepts::Flag, "Cleaners run when free frames run low, not on their timer alone.", |o| {
            &mut o.wake_low
        })
        .cli("wake-low")
        .or_none(PRESET),
        Line::new("parallel_list", Accepts::Flag, "LRU-C's parallel list manipulation.", |o| &mut o.parallel_list)
            .cli("parallel-list")
            .or_none(PRESET),
        Line::new(
            "sync_writes",
            Accepts::Flag,
            "Single-page flushes and cleaners' batches end with a sync of the data device, as InnoDB's do.",
            |o| &mut o.sync_writes,
        )
        .cli("sync-writes"),
        Line::new("read_ahead", Accepts::Flag, "Pages that scans will want are read ahead.", |o| &mut o.read_ahead)
            .cli("read-ahead"),
        Line::new(
            "low_water",
            Accepts::Number(1..=99, "percent"),
            "Share of dirty pages from which they are written for that alone.",
            |o| &mut o.low_water,
        )
        .or_none("75"),
        Line::new(
            "old_time_us",
            Accepts::Number(1..=1 << 40, "microseconds"),
            "Time from a page's first access to one that makes it young.",
            |o| &mut o.old_time_us,
        )
        .cli("old-time-us")
        .or_none("a second; with lru-c at most an eighth of what pages spend in the list's old part"),
        #[cfg(feature = "baselines")]
        Line::new(
            "equal_memory",
            Accepts::Flag,
            "The slots of war and rw are taken from the frames instead of coming on top of the cache.",
            |o| &mut o.baselines.equal_memory,
        )
        .cli("equal-memory"),
        #[cfg(feature = "baselines")]
        Line::new(
            "doublewrite",
            Accepts::Flag,
            "Pages are written twice, first to an area of their own, as InnoDB does it.",
            |o| &mut o.baselines.doublewrite,
        )
        .cli("doublewrite"),
        #[cfg(feature = "baselines")]
        Line::new(
            "time_divisor",
            Accepts::Number(1..=1 << 20, ""),
            "Divides InnoDB's times, for pools that stand for larger ones.",
            |o| &mut o.baselines.time_divisor,
        ),
    ],
};

impl PoolOptions {
    /// The options of a preset.
    pub fn preset(name: &str) -> Result<PoolOptions> {
        let mut options = PoolOptions::default();
        options.set(FIRST, name)?;
        Ok(options)
    }

    /// Sets one option by its name. The error of a wrong name or value lists what there is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        OPTIONS.set(self, name, value).map_err(invalid)
    }

    /// Checks each value, and that victim and cleaner go together.
    pub fn validate(&self) -> Result<()> {
        self.apply(PoolConfig::new(4096, 64), false)?.validate().map_err(Error::Invalid)
    }

    /// `config` with these choices; the caller adds its replacement policy and instances first. `tier`: the pool is
    /// over a tier.
    pub(crate) fn apply(&self, config: PoolConfig, tier: bool) -> Result<PoolConfig> {
        OPTIONS.check(self).map_err(invalid)?;
        let preset = self.preset.as_deref().unwrap_or(if tier { "vanilla57" } else { "lru-c" });
        let mut config = config.with_preset(preset).expect("a name that was checked");
        if let Some(name) = &self.victim {
            config.victim = victim::find(name).expect("a name that was checked").name;
        }
        if let Some(name) = &self.cleaner {
            let cleaner = cleaner::find(name).expect("a name that was checked");
            config.cleaner = config.cleaner.of_kind(cleaner.name);
            if !cleaner.writes() && self.preset.is_none() && self.victim.is_none() {
                config = config.without_cleaner();
            }
        }
        let cleaner = &mut config.cleaner;
        // More threads than run at a time would only stand around, in each database of the process.
        cleaner.threads = self.cleaner_threads.unwrap_or(cleaner.threads.min(varve_rt::parallelism()));
        cleaner.scan_depth = self.scan_depth.unwrap_or(cleaner.scan_depth);
        cleaner.reset_on_clean = self.reset_on_clean;
        cleaner.wake_low = self.wake_low.unwrap_or(cleaner.wake_low);
        cleaner.parallel = self.parallel_list.unwrap_or(cleaner.parallel);
        if let Some(percent) = self.low_water {
            cleaner.low_water = percent as u32;
            cleaner.max_dirty = cleaner.max_dirty.max(cleaner.low_water);
        }
        config.hit_buffer = self.hit_buffer.unwrap_or(config.hit_buffer);
        config.sync_writes = self.sync_writes;
        config.read_ahead.hints = self.read_ahead;
        #[cfg(feature = "baselines")]
        {
            config = config.with_baselines(self.baselines);
        }
        Ok(config)
    }

    /// Options of the replacement policy of a pool: those given, with the times that these choices and the preset want.
    pub(crate) fn policy(&self, config: &PoolConfig, mut policy: PolicyOptions) -> PolicyOptions {
        #[cfg(feature = "baselines")]
        {
            policy.midpoint.old_time /= u64::from(self.baselines.divisor());
        }
        policy.midpoint.turn_part = policy.midpoint.turn_part.max(config.policy.midpoint.turn_part);
        if let Some(us) = self.old_time_us {
            (policy.midpoint.old_time, policy.midpoint.turn_part) = (us as u64 * 1000, 0);
        }
        policy
    }
}

fn invalid(what: String) -> Error {
    Error::Invalid(format!("buffer pool: {what}"))
}

impl fmt::Display for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&OPTIONS.text(self))
    }
}

impl FromStr for PoolOptions {
    type Err = Error;

    fn from_str(s: &str) -> Result<PoolOptions> {
        let mut options = PoolOptions::default();
        OPTIONS.parse(&mut options, s, FIRST).map_err(invalid)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_both_ways() {
        for text in [
            "",
            "preset=war",
            "preset=lru-c,reset_on_clean=true",
            "victim=rw,cleaner=dynamic,scan_depth=64",
            "cleaner_threads=2,read_ahead=false,old_time_us=900",
        ] {
            let options: PoolOptions = text.parse().unwrap();
            assert_eq!(options.to_string(), text);
            options.validate().unwrap();
        }
    }

    #[test]
    fn presets_set_all_three_and_single_options_override() {
        for preset in PRESETS {
            let config = PoolOptions::preset(preset.name).unwrap().apply(PoolConfig::new(4096, 1024), false).unwrap();
            config.validate().unwrap();
        }
        let options: PoolOptions = "preset=war,cleaner=dynamic".parse().unwrap();
        let config = options.apply(PoolConfig::new(4096, 1024), false).unwrap();
        assert_eq!((config.victim, config.cleaner.kind), ("war", "dynamic"));
    }

    #[test]
    fn errors_list_what_there_is() {
        for (text, listed) in [
            ("preset=best", "vanilla57, vanilla, war, rw"),
            ("victim=nobody", "spf, spf56, war, rw, clean-first"),
            ("cleaner=me", "fixed, fixed56, dynamic, eager, off"),
            ("depth=3", "scan_depth"),
            ("victim", "lru-c-batch"),
            ("scan_depth=many", "pages from 1 to"),
            ("scan_depth=0", "from 1 to"),
        ] {
            let error = text.parse::<PoolOptions>().unwrap_err().to_string();
            assert!(error.contains(listed), "{error}");
        }
        let short: PoolOptions = "war,scan_depth=8".parse().unwrap();
        assert_eq!(short.to_string(), "preset=war,scan_depth=8");
        "cleaner=off".parse::<PoolOptions>().unwrap().validate().unwrap();
        let alone: PoolOptions = "preset=lru-c,cleaner=off".parse().unwrap();
        assert!(alone.validate().unwrap_err().to_string().contains("needs a cleaner"));
        let direct = PoolOptions { low_water: Some(100), ..PoolOptions::default() };
        assert!(direct.validate().unwrap_err().to_string().contains("from 1 to 99"));
    }
}
