//! How the buffer pool works: a preset, and single choices that override it. Text form: `name=value,name=value`, or
//! a preset's name and then such pairs.

#[cfg(feature = "baselines")]
use crate::buffer::Baselines;
use crate::buffer::policy::PolicyOptions;
use crate::buffer::{self, PRESETS, PoolConfig};
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Choices for the buffer pool. What is empty, `None` or 0 is left to the preset, or to the size of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolOptions {
    /// Preset of replacement policy, victim strategy and cleaner: `lru-c`, `lru-c-batch`, `vanilla57`, `gd2l-c`; with
    /// the feature `baselines` also `vanilla`, `war`, `rw`, `lru-c-pointer`. When empty: `lru-c`, over a tier
    /// `vanilla57`.
    pub preset: String,
    /// What a miss does about dirty victims: `spf` (InnoDB 5.7), `clean-first`; with the feature `baselines`
    /// also `spf56`, `war`, `rw`.
    pub victim: String,
    /// Who writes in the background: `fixed` (InnoDB 5.7), `dynamic`, `off`; with the feature `baselines` also
    /// `fixed56`.
    pub cleaner: String,
    /// Threads of cleaners, and of those that write pages set aside, over which the instances are spread.
    pub cleaner_threads: usize,
    /// Pages examined from the cold end per instance and pass, and slots for pages set aside.
    pub scan_depth: usize,
    /// Hits that a thread gathers per instance before it tells the policy.
    pub hit_buffer: usize,
    /// The clean-first pointer goes back to the cold end after each batch of the `dynamic` cleaner.
    pub reset_on_clean: bool,
    /// Cleaners run on their timer alone, not also when free frames run low.
    pub timer_only: bool,
    /// Without LRU-C's parallel list manipulation.
    pub serial_list: bool,
    /// Single-page flushes and cleaners' batches end with a sync of the data device, as InnoDB's do.
    pub sync_writes: bool,
    /// No read-ahead of pages that scans will want.
    pub no_read_ahead: bool,
    /// Share of dirty pages, percent, from which they are written for that alone; 0: the pool's own (75).
    pub low_water: usize,
    /// Microseconds between a page's first access and one that makes it young, in `lru-midpoint`. 0: a second; with the
    /// presets of LRU-C at most an eighth of what pages spend in the old part of the list.
    pub old_time_us: usize,
    /// What makes a pool like a published one.
    #[cfg(feature = "baselines")]
    pub baselines: Baselines,
}

/// The names that [`PoolOptions::set`] knows.
const NAMES: &[&str] = &[
    "preset",
    "victim",
    "cleaner",
    "cleaner_threads",
    "scan_depth",
    "hit_buffer",
    #[cfg(feature = "baselines")]
    "equal_memory",
    "reset_on_clean",
    "timer_only",
    "serial_list",
    "sync_writes",
    #[cfg(feature = "baselines")]
    "doublewrite",
    "no_read_ahead",
    "low_water",
    "old_time_us",
    #[cfg(feature = "baselines")]
    "time_divisor",
];

impl PoolOptions {
    /// The options of a preset.
    pub fn preset(name: &str) -> Result<PoolOptions> {
        let mut options = PoolOptions::default();
        options.set("preset", name)?;
        Ok(options)
    }

    /// Sets one option by its name. The error of a wrong name or value lists what there is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "preset" => self.preset = known("pool preset", value, PRESETS.iter().map(|p| p.name))?,
            "victim" => self.victim = known("victim strategy", value, buffer::victim::REGISTRY.iter().map(|v| v.name))?,
            "cleaner" => self.cleaner = known("cleaner", value, buffer::cleaner::REGISTRY.iter().map(|c| c.name))?,
            "cleaner_threads" => self.cleaner_threads = parsed(name, value)?,
            "scan_depth" => self.scan_depth = parsed(name, value)?,
            "hit_buffer" => self.hit_buffer = parsed(name, value)?,
            #[cfg(feature = "baselines")]
            "equal_memory" => self.baselines.equal_memory = parsed(name, value)?,
            "reset_on_clean" => self.reset_on_clean = parsed(name, value)?,
            "timer_only" => self.timer_only = parsed(name, value)?,
            "serial_list" => self.serial_list = parsed(name, value)?,
            "sync_writes" => self.sync_writes = parsed(name, value)?,
            #[cfg(feature = "baselines")]
            "doublewrite" => self.baselines.doublewrite = parsed(name, value)?,
            "no_read_ahead" => self.no_read_ahead = parsed(name, value)?,
            "low_water" => self.low_water = parsed(name, value)?,
            "old_time_us" => self.old_time_us = parsed(name, value)?,
            #[cfg(feature = "baselines")]
            "time_divisor" => self.baselines.time_divisor = parsed(name, value)?,
            _ => return Err(Error::Invalid(format!("no pool option {name:?}; there are: {}", NAMES.join(", ")))),
        }
        Ok(())
    }

    /// Checks the names, and that victim and cleaner go together.
    pub fn validate(&self) -> Result<()> {
        let again: PoolOptions = self.to_string().parse()?;
        let config = again.apply(PoolConfig::new(4096, 64), false)?;
        config.validate().map_err(Error::Invalid)
    }

    /// `config` with these choices; the caller adds its replacement policy and instances first. `tier`: the pool is
    /// over a tier.
    pub(crate) fn apply(&self, config: PoolConfig, tier: bool) -> Result<PoolConfig> {
        let default = if tier { "vanilla57" } else { "lru-c" };
        let preset = if self.preset.is_empty() { default } else { &self.preset };
        let mut checked = PoolOptions::default();
        checked.set("preset", preset)?;
        let mut config = config.with_preset(&checked.preset).expect("a name that was checked");
        if !self.victim.is_empty() {
            checked.set("victim", &self.victim)?;
            config.victim = buffer::victim_name(&self.victim).expect("a name that was checked");
        }
        if !self.cleaner.is_empty() {
            checked.set("cleaner", &self.cleaner)?;
            let cleaner = buffer::cleaner::find(&self.cleaner).expect("a name that was checked");
            config.cleaner.kind = cleaner.name;
            if !cleaner.writes() && self.preset.is_empty() && self.victim.is_empty() {
                config = config.without_cleaner();
            }
        }
        if self.cleaner_threads > 0 {
            config.cleaner.threads = self.cleaner_threads;
        }
        if self.scan_depth > 0 {
            config.cleaner.scan_depth = self.scan_depth;
        }
        if self.hit_buffer > 0 {
            config.hit_buffer = self.hit_buffer;
        }
        config.cleaner.reset_on_clean = self.reset_on_clean;
        config.cleaner.wake_low &= !self.timer_only;
        config.sync_writes = self.sync_writes;
        config.cleaner.parallel &= !self.serial_list;
        config.read_ahead.hints = !self.no_read_ahead;
        #[cfg(feature = "baselines")]
        {
            config = config.with_baselines(self.baselines);
        }
        if self.low_water > 0 {
            config.cleaner.low_water = self.low_water.min(99) as u32;
            config.cleaner.max_dirty = config.cleaner.max_dirty.max(config.cleaner.low_water);
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
        if self.old_time_us > 0 {
            (policy.midpoint.old_time, policy.midpoint.turn_part) = (self.old_time_us as u64 * 1000, 0);
        }
        policy
    }
}

fn known<'a>(what: &str, value: &str, names: impl Iterator<Item = &'a str>) -> Result<String> {
    let names: Vec<&str> = names.collect();
    match names.contains(&value) {
        true => Ok(value.to_string()),
        false => Err(Error::Invalid(format!("no {what} {value:?}; there are: {}", names.join(", ")))),
    }
}

fn parsed<T: FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| {
        Error::Invalid(format!(
            "pool option {name}: {value:?} is no {}",
            std::any::type_name::<T>().replace("usize", "number")
        ))
    })
}

impl fmt::Display for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let flag = |set: bool| if set { "true".to_string() } else { String::new() };
        let values: &[String] = &[
            self.preset.clone(),
            self.victim.clone(),
            self.cleaner.clone(),
            number(self.cleaner_threads),
            number(self.scan_depth),
            number(self.hit_buffer),
            #[cfg(feature = "baselines")]
            flag(self.baselines.equal_memory),
            flag(self.reset_on_clean),
            flag(self.timer_only),
            flag(self.serial_list),
            flag(self.sync_writes),
            #[cfg(feature = "baselines")]
            flag(self.baselines.doublewrite),
            flag(self.no_read_ahead),
            number(self.low_water),
            number(self.old_time_us),
            #[cfg(feature = "baselines")]
            number(self.baselines.time_divisor),
        ];
        let set = NAMES.iter().zip(values).filter(|(_, value)| !value.is_empty());
        let text: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&text.join(","))
    }
}

impl FromStr for PoolOptions {
    type Err = Error;

    fn from_str(s: &str) -> Result<PoolOptions> {
        let mut options = PoolOptions::default();
        for part in s.split(',').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((name, value)) => options.set(name.trim(), value.trim())?,
                None => options.set("preset", part.trim())?,
            }
        }
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
            "cleaner_threads=2,old_time_us=900",
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
            ("cleaner=me", "fixed, fixed56, dynamic, off"),
            ("depth=3", "scan_depth"),
            ("victim", "lru-c-batch"),
            ("scan_depth=many", "number"),
        ] {
            let error = text.parse::<PoolOptions>().unwrap_err().to_string();
            assert!(error.contains(listed), "{error}");
        }
        let short: PoolOptions = "war,scan_depth=8".parse().unwrap();
        assert_eq!(short.to_string(), "preset=war,scan_depth=8");
        "cleaner=off".parse::<PoolOptions>().unwrap().validate().unwrap();
        let alone: PoolOptions = "preset=lru-c,cleaner=off".parse().unwrap();
        assert!(alone.validate().unwrap_err().to_string().contains("needs a cleaner"));
    }
}
