//! What a pool can be told: plain data, every value visible in [`crate::buffer::Pool::config`].

#[cfg(feature = "baselines")]
use super::baselines::{self, Baselines};
use super::changes::Changes;
use super::cleaner;
use super::frame::Frame;
use super::policy::{self, PolicyOptions};
use super::trace::{Flush, TraceHandle};
use super::victim;
use std::ops::Range;
use std::time::Duration;
use varve_rt::atomic::AtomicU32;

/// Configuration of a [`crate::buffer::Pool`]. [`PoolConfig::new`] gives the defaults (InnoDB 5.7's shape, scaled to
/// the pool).
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// Bytes of a page, header included: 4096, 8192, 16384 or 32768.
    pub page_size: usize,
    /// Frames of the whole pool.
    pub frames: usize,
    /// Changed bytes that are noted for each page, since the store can append them: see [`PageStore::noted_changes`].
    ///
    /// [`PageStore::noted_changes`]: varve_volume::PageStore::noted_changes
    pub noted_changes: usize,
    /// Latest flushes that are kept for the flash advisor.
    pub kept_flushes: usize,
    /// Independent instances; pages are spread over them by their id.
    pub instances: usize,
    /// Replacement policy, by its name in [`policy::REGISTRY`].
    pub replacement: &'static str,
    /// Options of the policy.
    pub policy: PolicyOptions,
    /// What a miss does when the coldest pages are dirty, by its name in [`victim::REGISTRY`].
    pub victim: &'static str,
    /// Who writes in the background and how much.
    pub cleaner: CleanerConfig,
    /// Read-ahead.
    pub read_ahead: ReadAhead,
    /// Pages in flight per batch of writes.
    pub write_batch: usize,
    /// Staging buffers (pages) shared by all writers of the pool.
    pub staging_pages: usize,
    /// Each single-page flush and each batch of a cleaner ends with the store's sync, as InnoDB does it (`O_DIRECT`).
    /// Checkpoints, which sync by themselves, do not need it.
    pub sync_writes: bool,
    /// Longest wait of a miss for the cleaner between two attempts (`spf`).
    pub patience: Duration,
    /// Hits that a thread gathers before it tells the policy, per instance. A pool made inside a simulation uses 1.
    pub hit_buffer: usize,
    /// A miss that found no frame for this long fails: the pool is too small for what is pinned. While the store
    /// refuses all writes it fails after a second.
    pub frame_timeout: Duration,
    /// Listener that is told of every access and flush.
    pub trace: Option<TraceHandle>,
    /// What makes a pool like a published one.
    #[cfg(feature = "baselines")]
    pub baselines: Baselines,
}

/// Background writing.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanerConfig {
    /// Which cleaner, by its name in [`cleaner::REGISTRY`].
    pub kind: &'static str,
    /// Threads over which the instances are spread, those that write pages set aside too; at most one per instance.
    pub threads: usize,
    /// Pages examined from the cold end of an instance per pass.
    pub scan_depth: usize,
    /// Free frames that a pass tries to reach per instance.
    pub free_target: usize,
    /// A cleaner is woken when the free frames of its instance fall below this.
    pub free_low: usize,
    /// Time between passes when nobody wakes the cleaner.
    pub interval: Duration,
    /// The cleaner is also woken when free frames run low, not only on its timer.
    pub wake_low: bool,
    /// Pages that the slow of two devices is to get are written by threads of their own, as many (`fixed`).
    pub by_class: bool,
    /// After a batch the clean-first pointer goes back to the cold end, so that what was written is taken first
    /// (`dynamic`).
    pub reset_on_clean: bool,
    /// LRU-C's parallel list manipulation: misses (`clean-first`) note the dirty pages that the pointer passes, and the
    /// cleaner (`dynamic`) takes what they noted; it has no walk of its own, and no hold of the instance's lock grows
    /// with the list.
    pub parallel: bool,
    /// Recoverability writes per second that are considered normal (InnoDB's `io_capacity`).
    pub io: u32,
    /// Most recoverability writes per second (`io_capacity_max`).
    pub io_max: u32,
    /// Share of dirty pages in percent that the dirty term of the rate is measured against.
    pub max_dirty: u32,
    /// Share of dirty pages in percent from which the dirty term counts.
    pub low_water: u32,
}

impl CleanerConfig {
    /// Whether pages that the slow of two devices is to get have threads of their own.
    pub(super) fn writes_by_class(&self) -> bool {
        self.by_class && self.entry().needs.by_class
    }

    /// The same with the cleaner of this name in [`cleaner::REGISTRY`].
    pub(crate) fn of_kind(self, name: &'static str) -> CleanerConfig {
        let every = cleaner::find(name).and_then(|entry| entry.needs.every);
        CleanerConfig { kind: name, interval: every.unwrap_or(self.interval), ..self }
    }

    /// The cleaner of that name. The configuration was validated.
    pub(super) fn entry(&self) -> &'static cleaner::Entry {
        cleaner::find(self.kind).expect("the configuration was validated")
    }
}

/// A choice of policy, victim strategy and cleaner under one name.
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it stands for.
    pub about: &'static str,
    pub(super) replacement: &'static str,
    pub(super) victim: &'static str,
    pub(super) cleaner: &'static str,
    pub(super) parallel: bool,
    /// `turn_part` of [`policy::MidpointOptions`].
    pub(super) turn_part: u32,
    /// One cleaner thread for all instances, on its timer alone.
    pub(super) lone_timer: bool,
}

/// Of a turn of the list's old part, until a page may become young: an eighth. A page met again after it would be met
/// many times.
pub(super) const TURN_PART: u32 = 8;

/// Every preset there is.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "vanilla57",
        about: "InnoDB 5.7: short scans, then single-page flushes; a cleaner per instance",
        replacement: "lru-midpoint",
        victim: "spf",
        cleaner: "fixed",
        parallel: false,
        turn_part: 0,
        lone_timer: false,
    },
    #[cfg(feature = "baselines")]
    baselines::VANILLA,
    #[cfg(feature = "baselines")]
    baselines::WAR,
    #[cfg(feature = "baselines")]
    baselines::RW,
    #[cfg(feature = "baselines")]
    baselines::LRU_C_POINTER,
    Preset {
        name: "lru-c-batch",
        about: "the first two parts of LRU-C: the pointer, and dynamic batch writes",
        replacement: "lru-midpoint",
        victim: "clean-first",
        cleaner: "dynamic",
        parallel: false,
        turn_part: TURN_PART,
        lone_timer: false,
    },
    Preset {
        name: "lru-c",
        about: "LRU-C: the pointer, dynamic batch writes, and a list that both work on in short steps",
        replacement: "lru-midpoint",
        victim: "clean-first",
        cleaner: "dynamic",
        parallel: true,
        turn_part: TURN_PART,
        lone_timer: false,
    },
    Preset {
        name: "gd2l-c",
        about: "for a tier: LRU-C's pointers and batch writes over GD2L's lists, evictions by the cost of reading again and of writing",
        replacement: "gd2l-c",
        victim: "clean-first",
        cleaner: "dynamic",
        parallel: false,
        turn_part: 0,
        lone_timer: false,
    },
    Preset {
        name: "shore-eager",
        about: "Shore-MT: dirty pages are written from an eighth of the frames on, and from a quarter of the log on",
        replacement: "lru-midpoint",
        victim: "spf",
        cleaner: "eager",
        parallel: false,
        turn_part: 0,
        lone_timer: false,
    },
    Preset {
        name: "shore-lazy",
        about: "Shore-MT without cleaners: dirty pages are written when they are evicted",
        replacement: "lru-midpoint",
        victim: "spf",
        cleaner: "off",
        parallel: false,
        turn_part: 0,
        lone_timer: false,
    },
];

/// Read-ahead. Hints from above ([`crate::buffer::Pool::prefetch`]) are followed unless told otherwise; the patterns,
/// which guess and may read pages that are free, are off by default.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadAhead {
    /// Hints are followed.
    pub hints: bool,
    /// Misses in a row on ascending neighbours that start read-ahead; 0 = never.
    pub linear_threshold: u32,
    /// Pages read ahead of a recognised run, or of a long value.
    pub window: u32,
    /// Most leaves read ahead of a scan; never more than a sixteenth of the pool.
    pub scan_window: u32,
    /// Pages of a 64-page extent, loaded by misses, that make read-ahead load the rest of it; 0 = never.
    pub random_threshold: u32,
    /// Lists of hints that may wait for the reader thread; those of more are dropped and counted.
    pub queue: usize,
    /// Pages per batch of reads.
    pub batch: usize,
    /// Pages that are being read ahead at a time. The store may need as much memory to read neighbours in one piece.
    pub in_flight: usize,
}

/// The victim strategy of pools without a cleaner.
const ALONE: &str = "spf";

/// Hit buffers per instance; threads are spread over them.
pub(super) const HIT_STRIPES: usize = 8;

impl PoolConfig {
    /// Defaults for a pool of `frames` pages of `page_size` bytes.
    pub fn new(page_size: usize, frames: usize) -> PoolConfig {
        let instances = (frames / 4096).clamp(1, 8);
        let (scan_depth, free_target) = depths(frames, instances);
        PoolConfig {
            page_size,
            frames,
            noted_changes: 0,
            kept_flushes: 0,
            instances,
            replacement: "lru-midpoint",
            policy: PolicyOptions::default(),
            victim: "spf",
            cleaner: CleanerConfig {
                kind: "fixed",
                threads: usize::MAX,
                scan_depth,
                free_target,
                free_low: free_target.div_ceil(2),
                interval: Duration::from_secs(1),
                wake_low: true,
                by_class: false,
                reset_on_clean: false,
                parallel: false,
                io: 200,
                io_max: 2000,
                max_dirty: 90,
                low_water: 75,
            },
            read_ahead: ReadAhead {
                hints: true,
                linear_threshold: 0,
                window: 64,
                scan_window: 256,
                random_threshold: 0,
                queue: 64,
                batch: 32,
                in_flight: (frames / 64).clamp(4, 128),
            },
            write_batch: (frames / 32).clamp(1, 64),
            staging_pages: (frames / 16).clamp(2, 256),
            sync_writes: false,
            patience: Duration::from_millis(10),
            hit_buffer: 64,
            frame_timeout: Duration::from_secs(20),
            trace: None,
            #[cfg(feature = "baselines")]
            baselines: Baselines::default(),
        }
    }

    /// The same pool with the choices of a preset, by its name in [`PRESETS`].
    pub fn with_preset(mut self, name: &str) -> Option<PoolConfig> {
        let preset = PRESETS.iter().find(|p| p.name == name)?;
        (self.replacement, self.victim) = (preset.replacement, preset.victim);
        self.cleaner = self.cleaner.of_kind(preset.cleaner);
        self.cleaner.parallel = preset.parallel;
        self.policy.midpoint.turn_part = preset.turn_part;
        self.cleaner.wake_low = !preset.lone_timer;
        self.cleaner.threads = if preset.lone_timer { 1 } else { usize::MAX };
        Some(self)
    }

    /// Pages that a writer gathers before it submits them: with doublewrite as many as its area takes, if there is
    /// staging for them.
    pub(super) fn batch_pages(&self) -> usize {
        #[cfg(feature = "baselines")]
        if self.baselines.doublewrite && self.staging_pages >= 2 * baselines::BATCH {
            return self.write_batch.max(baselines::BATCH);
        }
        self.write_batch
    }

    /// Whether a batch of writes ends with the store's sync. With doublewrite each has been synced already.
    pub(super) fn syncs_batches(&self) -> bool {
        #[cfg(feature = "baselines")]
        if self.baselines.doublewrite {
            return false;
        }
        self.sync_writes
    }

    /// What the victim strategy needs.
    pub(super) fn victim_needs(&self) -> victim::Needs {
        victim::find(self.victim).map_or(victim::Needs::LEAST, |strategy| strategy.needs)
    }

    /// Whether the cleaner takes the dirty pages that searches for a victim have passed, instead of looking for them.
    pub(super) fn lists_passed(&self) -> bool {
        self.cleaner.parallel && self.cleaner.entry().needs.passed && self.victim_needs().passed
    }

    /// The same pool without a cleaner; a victim strategy that needs one gives way to one that does not.
    pub(crate) fn without_cleaner(mut self) -> PoolConfig {
        self.cleaner.kind = cleaner::OFF.name;
        if self.victim_needs().cleaner {
            self.victim = ALONE;
        }
        self
    }

    /// Which instances each background thread has, spread evenly.
    pub(super) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let (count, parts) = (self.instances, self.cleaner.threads.clamp(1, self.instances));
        (0..parts).map(move |i| i * count / parts..(i + 1) * count / parts)
    }

    /// Slots per instance for pages set aside: the scan depth with the strategies that need them.
    pub fn aside_slots(&self) -> usize {
        if self.victim_needs().asides { self.cleaner.scan_depth } else { 0 }
    }

    /// The same pool in so many instances; what is per instance (scan depth, free frames) is scaled along.
    pub fn with_instances(self, instances: usize) -> PoolConfig {
        let (scan_depth, free_target) = depths(self.frames, instances.max(1));
        let cleaner = CleanerConfig { scan_depth, free_target, free_low: free_target.div_ceil(2), ..self.cleaner };
        PoolConfig { instances, cleaner, ..self }
    }

    /// The same pool under another policy, in no more memory: what the policy remembers of other pages is paid with
    /// frames.
    pub fn with_policy(self, replacement: &'static str, policy: PolicyOptions) -> PoolConfig {
        let budget = self.memory_bytes();
        let mut config = PoolConfig { replacement, policy, ..self };
        while config.memory_bytes() > budget && config.frames > 8 * config.instances {
            let over = (config.memory_bytes() - budget).div_ceil(config.frame_bytes());
            config.frames = config.frames.saturating_sub(over).max(8 * config.instances);
        }
        config.with_instances_of_frames()
    }

    /// The same pool in so many bytes less, but with half of its frames at least.
    pub fn with_less_memory(self, bytes: usize) -> PoolConfig {
        let frames = self.frames.saturating_sub(bytes.div_ceil(self.frame_bytes())).max(self.frames.div_ceil(2));
        PoolConfig { frames, ..self }.with_instances_of_frames()
    }

    /// The same pool, which notes so many changed bytes of each page, in no more memory; or, where frames are counted,
    /// in as many of them.
    pub(crate) fn noting(mut self, changes: usize, counted: bool) -> PoolConfig {
        let bytes = Changes::bytes_per_frame(changes) * self.frames;
        self.noted_changes = changes;
        if changes == 0 || counted { self } else { self.with_less_memory(bytes) }
    }

    /// The same pool, which keeps so many flushes, in no more memory (see [`PoolConfig::noting`]).
    pub(crate) fn keeping_flushes(mut self, flushes: usize, counted: bool) -> PoolConfig {
        self.kept_flushes = flushes;
        if flushes == 0 || counted { self } else { self.with_less_memory(flushes * size_of::<Flush>()) }
    }

    /// Whether somebody asks how much the updates of pages change.
    pub(super) fn counts_updates(&self) -> bool {
        self.trace.is_some() || self.noted_changes > 0 || self.kept_flushes > 0
    }

    /// What is per instance never exceeds what the instance has.
    fn with_instances_of_frames(mut self) -> PoolConfig {
        let (scan_depth, free_target) = depths(self.frames, self.instances);
        self.cleaner.scan_depth = self.cleaner.scan_depth.min(scan_depth);
        self.cleaner.free_target = self.cleaner.free_target.min(free_target);
        self.cleaner.free_low = self.cleaner.free_low.min(self.cleaner.free_target);
        self
    }

    /// Bytes per frame: the page and everything that is kept for it.
    fn frame_bytes(&self) -> usize {
        let policy = policy::find(self.replacement).map_or(POLICY_BYTES, |p| match (p.ghosts)(&self.policy) {
            ghosts if ghosts.is_finite() => p.slot_bytes(&self.policy),
            // Refused by `validate`.
            _ => POLICY_BYTES,
        });
        self.page_size + FRAME_BYTES - POLICY_BYTES + policy
    }

    /// Defaults for a pool that takes at most `bytes` of memory, everything counted; at least 16 frames.
    pub fn with_memory(page_size: usize, bytes: usize) -> PoolConfig {
        let mut frames = bytes / (page_size + FRAME_BYTES);
        loop {
            let config = PoolConfig::new(page_size, frames.max(16));
            let used = config.memory_bytes();
            if used <= bytes || frames <= 16 {
                return config;
            }
            frames -= ((used - bytes) / (page_size + FRAME_BYTES)).max(1).min(frames - 16);
        }
    }

    /// Memory that the pool takes, bytes: arena, frames, page table, policy, dirty list, staging and hit buffers, what
    /// the store reads ahead in one piece, slots for pages set aside.
    pub fn memory_bytes(&self) -> usize {
        let hits = self.instances * HIT_STRIPES * (self.hit_buffer * 8 + 64);
        let aside = self.instances * self.aside_slots() * (self.page_size + ASIDE_BYTES);
        let staging = (self.staging_pages + self.read_ahead.in_flight) * self.page_size;
        self.frames * self.frame_bytes() + staging + hits + aside + ARENA_SLACK
    }

    /// Checks that the values make sense together; the error says which does not.
    pub fn validate(&self) -> Result<(), String> {
        let c = &self.cleaner;
        let (needs, cleaner) = (self.victim_needs(), cleaner::find(c.kind));
        let rules = [
            ([4096, 8192, 16384, 32768].contains(&self.page_size), "page_size must be 4096, 8192, 16384 or 32768"),
            (self.instances >= 1, "instances must be at least 1"),
            (self.frames >= 8 * self.instances, "a pool needs at least 8 frames per instance"),
            (self.frames < 1 << 31, "a pool has at most 2^31 frames"),
            (policy::find(self.replacement).is_some(), "replacement names no policy"),
            (
                policy::find(self.replacement).is_none_or(|p| (p.ghosts)(&self.policy).is_finite()),
                "policy: in a pool the history of lru-2 and the stack of lirs must be bounded",
            ),
            (victim::find(self.victim).is_some(), "victim names no strategy"),
            (cleaner.is_some(), "cleaner.kind names no cleaner"),
            (
                !needs.cleaner || cleaner.is_some_and(cleaner::Entry::writes),
                "the victim strategy never writes by itself and needs a cleaner",
            ),
            #[cfg(feature = "baselines")]
            (
                !self.baselines.doublewrite || !needs.reaper,
                "doublewrite is not defined for a victim strategy whose write goes with the read",
            ),
            (self.write_batch >= 1 && self.staging_pages >= 1, "write_batch and staging_pages must be at least 1"),
            (self.hit_buffer >= 1, "hit_buffer must be at least 1"),
            (c.threads >= 1, "cleaner_threads must be at least 1"),
            (c.scan_depth >= 1, "scan_depth must be at least 1"),
            (
                c.free_target < self.frames / self.instances.max(1),
                "free_target must be below the frames of an instance",
            ),
            (c.free_low <= c.free_target, "free_low must not be above free_target"),
            (c.io >= 1 && c.io <= c.io_max, "io must be from 1 to io_max"),
            (c.max_dirty <= 99 && c.low_water <= c.max_dirty, "low_water <= max_dirty <= 99 must hold"),
            (
                self.read_ahead.queue.min(self.read_ahead.batch).min(self.read_ahead.in_flight) >= 1,
                "read-ahead queue, batch and in_flight must be at least 1",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(format!("buffer pool: {rule}")),
            None => Ok(()),
        }
    }
}

/// Scan depth and free frames to keep, per instance: InnoDB's 1024, scaled down for small pools.
fn depths(frames: usize, instances: usize) -> (usize, usize) {
    let frames = frames / instances;
    ((frames / 4).clamp(1, 1024), (frames / 32).clamp(1, 1024))
}

/// Bytes per slot for a page set aside, beside the page: the slot, its places in hash and dirty list.
const ASIDE_BYTES: usize = 192;

/// Alignment of the arena and allocator overhead.
const ARENA_SLACK: usize = 16 * 1024;

/// Bytes per frame beside the page: frame, page table (up to four heads a frame), policy (lists and times), dirty set.
const FRAME_BYTES: usize = size_of::<Frame>() + 4 * size_of::<AtomicU32>() + POLICY_BYTES + 48;

/// The policy's part of that, where it remembers resident pages only.
const POLICY_BYTES: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_budget_is_kept_and_used() {
        for page_size in [4096, 8192, 16384] {
            for bytes in [1 << 20, 5_000_000, 100 << 20, 3 << 30] {
                let config = PoolConfig::with_memory(page_size, bytes);
                config.validate().unwrap();
                assert!(config.memory_bytes() <= bytes, "{page_size}, {bytes}: {}", config.memory_bytes());
                assert!(config.memory_bytes() > bytes * 9 / 10, "{page_size}, {bytes}: {}", config.memory_bytes());
            }
        }
        assert_eq!(PoolConfig::with_memory(16384, 0).frames, 16, "the least that works");
    }

    #[test]
    fn a_policy_that_remembers_pays_with_frames() {
        let plain = PoolConfig::with_memory(4096, 16 << 20);
        for entry in policy::REGISTRY {
            let config = plain.clone().with_policy(entry.name, PolicyOptions::default());
            config.validate().unwrap();
            assert!(config.memory_bytes() <= plain.memory_bytes(), "{}", entry.name);
            assert!(config.frames > plain.frames * 9 / 10, "{}: {} frames", entry.name, config.frames);
            assert_eq!(config.frames < plain.frames, (entry.ghosts)(&config.policy) > 0.0, "{}", entry.name);
        }
        let lru2 = policy::Lru2Options { history: policy::History::Full, ..policy::Lru2Options::default() };
        let config = plain.with_policy("lru-2", PolicyOptions { lru2, ..PolicyOptions::default() });
        assert!(config.validate().unwrap_err().contains("bounded"));
    }

    #[test]
    fn a_pool_has_what_its_strategies_need() {
        // Preset; slots for pages set aside, threads for the slow device, the list of passed pages, a cleaner at least.
        let cases = [
            ("vanilla57", [false, true, false, false]),
            ("vanilla", [false, false, false, false]),
            ("war", [true, false, false, false]),
            ("rw", [true, false, false, false]),
            ("lru-c-pointer", [false, false, false, true]),
            ("lru-c-batch", [false, false, false, true]),
            ("lru-c", [false, false, true, true]),
        ];
        for (preset, needs) in cases {
            let mut config = PoolConfig::new(4096, 1024).with_preset(preset).unwrap();
            config.cleaner.by_class = true;
            let slots = config.aside_slots();
            assert!(slots == 0 || slots == config.cleaner.scan_depth, "{preset}: {slots} slots");
            let mut off = config.clone();
            off.cleaner.kind = "off";
            let has = [slots > 0, config.cleaner.writes_by_class(), config.lists_passed(), off.validate().is_err()];
            assert_eq!(has, needs, "{preset}");
        }
        for strategy in victim::REGISTRY {
            let config = PoolConfig { victim: strategy.name, ..PoolConfig::new(4096, 1024) };
            config.without_cleaner().validate().unwrap();
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        type Change = fn(&mut PoolConfig);
        let cases: [(Change, &str); 7] = [
            (|c| c.page_size = 5000, "page_size"),
            (|c| c.instances = 0, "instances"),
            (|c| c.frames = 7, "frames per instance"),
            (|c| c.replacement = "best", "replacement"),
            (|c| c.victim = "nobody", "victim"),
            (|c| c.cleaner.kind = "nobody", "cleaner.kind"),
            (|c| c.cleaner.free_target = c.frames, "free_target"),
        ];
        for (change, name) in cases {
            let mut config = PoolConfig::new(4096, 64);
            change(&mut config);
            let err = config.validate().unwrap_err();
            assert!(err.contains(name), "{err}");
        }
    }
}
