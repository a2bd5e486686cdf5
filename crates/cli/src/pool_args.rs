//! The buffer pool's options on the command line, shared by `bench`, `sim` and `torture`.

use crate::output::Failure;
use clap::Args;
use varve::PoolOptions;

/// How the buffer pool works: a preset, and choices that override it.
#[derive(Debug, Args, Clone, Default)]
#[command(next_help_heading = "Buffer pool")]
pub struct PoolArgs {
    /// Preset of replacement, victim and cleaner: lru-c (default), lru-c-batch, lru-c-pointer, vanilla57 (default over
    /// a tier), vanilla, war, rw, gd2l-c.
    #[arg(long = "pool", value_name = "PRESET")]
    pub preset: Option<String>,
    /// Which page should leave: lru-midpoint, lru, clock, sieve, 2q, arc, s3-fifo, lirs, lru-2, gd2l, gd2l-c, fifo,
    /// random.
    #[arg(long, value_name = "POLICY")]
    pub replacement: Option<String>,
    /// What a miss does about dirty victims: spf, spf56, war, rw, clean-first.
    #[arg(long, value_name = "STRATEGY")]
    pub victim: Option<String>,
    /// Who writes in the background: fixed, fixed56, dynamic, off.
    #[arg(long, value_name = "CLEANER")]
    pub cleaner: Option<String>,
    /// Threads of cleaners, over which the instances are spread [default: the preset's: 1, or one per instance].
    #[arg(long, value_name = "N")]
    pub cleaner_threads: Option<usize>,
    /// Microseconds from a page's first access to one that makes it young [default: a second; with lru-c at most an
    /// eighth of what pages spend in the list's old part].
    #[arg(long, value_name = "US")]
    pub old_time_us: Option<usize>,
    /// Independent pool instances [default: by size].
    #[arg(long, value_name = "N")]
    pub pool_instances: Option<usize>,
    /// Pages examined from the cold end per instance, and slots of war and rw [default: by size].
    #[arg(long, value_name = "PAGES")]
    pub scan_depth: Option<usize>,
    /// The slots of war and rw are taken from the frames instead of coming on top of the cache.
    #[arg(long)]
    pub equal_memory: bool,
    /// LRU-C's pointer goes back to the cold end after each batch of writes.
    #[arg(long)]
    pub reset_on_clean: bool,
    /// Cleaners run once a second only, not also when free frames run low.
    #[arg(long)]
    pub timer_only: bool,
    /// Without LRU-C's parallel list manipulation.
    #[arg(long)]
    pub serial_list: bool,
    /// Single-page flushes and cleaners' batches end with a sync of the data device, as InnoDB's do.
    #[arg(long)]
    pub sync_writes: bool,
    /// Pages are written twice, first to an area of their own, as InnoDB does it.
    #[arg(long)]
    pub doublewrite: bool,
}

impl PoolArgs {
    /// The engine's options for the pool.
    pub fn options(&self) -> Result<PoolOptions, Failure> {
        let mut options = PoolOptions::default();
        let number = |n: Option<usize>| n.map(|n| n.to_string());
        let (threads, depth, old_time) =
            (number(self.cleaner_threads), number(self.scan_depth), number(self.old_time_us));
        for (name, value) in [
            ("preset", &self.preset),
            ("victim", &self.victim),
            ("cleaner", &self.cleaner),
            ("cleaner_threads", &threads),
            ("scan_depth", &depth),
            ("old_time_us", &old_time),
        ] {
            if let Some(value) = value {
                options.set(name, value).map_err(usage)?;
            }
        }
        options.baselines.equal_memory = self.equal_memory;
        options.reset_on_clean = self.reset_on_clean;
        options.timer_only = self.timer_only;
        options.serial_list = self.serial_list;
        options.sync_writes = self.sync_writes;
        options.baselines.doublewrite = self.doublewrite;
        options.validate().map_err(usage)?;
        Ok(options)
    }

    /// `to` with these choices.
    pub fn apply(&self, mut to: varve::Options) -> Result<varve::Options, Failure> {
        to.pool = self.options()?;
        to.replacement = self.replacement.clone().unwrap_or_default();
        to.pool_instances = self.pool_instances.unwrap_or(0);
        Ok(to)
    }
}

fn usage(e: varve::Error) -> Failure {
    Failure::Usage(e.to_string())
}
