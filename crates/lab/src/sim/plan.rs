//! What one seed does: the database's geometry, the clients' mix, the faults and the crashes, all drawn from the seed.
//!
//! Pure. A plan is printed with a failing seed, so that a reader knows the setting before replaying.

use super::faults::Fault;
use super::rows::{Keys, ROW_SPACES};
use varve::{Compression, KeyspaceKind, LsmOptions, MergeBy};
use varve_rt::Rng;

/// Commits of clients that a seed makes at least, over all its lives.
pub(crate) const COMMITS: u64 = 300;
/// Crashes of a seed, one of them inside recovery.
pub(crate) const CRASHES: u64 = 3;
/// The data is at least this many times the pool.
pub(crate) const DATA_OVER_POOL: u64 = 5;

/// Who merges with a worker.
const NEAR: [MergeBy; 7] =
    [MergeBy::Near, MergeBy::Cokv, MergeBy::Tstore, MergeBy::Copro, MergeBy::Near, MergeBy::CoproPlus, MergeBy::Dstore];

/// Lengths of values, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Most values are up to this long.
    pub(crate) small: u32,
    /// Some are up to this long.
    pub(crate) medium: u32,
    /// A few are up to this long, which still fits a leaf.
    pub(crate) inline: u32,
    /// One in `overflow_every` is up to this long and needs pages of its own.
    pub(crate) overflow: u32,
    pub(crate) overflow_every: u64,
}

impl Lengths {
    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        if rng.one_in(self.overflow_every) {
            return rng.between(u64::from(self.inline), u64::from(self.overflow)) as u32;
        }
        match rng.below(20) {
            0 => rng.below(8) as u32,
            1..=12 => self.draw_small(rng),
            13..=17 => rng.below(u64::from(self.medium)) as u32,
            _ => rng.below(u64::from(self.inline)) as u32,
        }
    }

    pub(crate) fn draw_small(&self, rng: &mut Rng) -> u32 {
        8 + rng.below(u64::from(self.small)) as u32
    }
}

/// What the clients do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// Indexes of keys, per keyspace.
    pub(crate) keys: u32,
    pub(crate) hot: u32,
    pub(crate) hot_from: u32,
    pub(crate) hot_percent: u32,
    pub(crate) lengths: Lengths,
    /// Percent of `sync` and of `async` commits; the rest is `none`.
    pub(crate) durability: [u32; 2],
    /// Most writes of a large transaction.
    pub(crate) large_tx: u64,
    /// Longest range delete within a transaction, in indexes.
    pub(crate) delete_span: u32,
    /// Longest one that is a transaction of its own.
    pub(crate) cut_span: u32,
    /// One script in this many is a transaction that outgrows its share of memory; 0 = none.
    pub(crate) spill_every: u64,
    /// Longest pause inside a transaction, and between two, microseconds.
    pub(crate) pause_us: u64,
    pub(crate) think_us: u64,
    /// Clients ask for checkpoints.
    pub(crate) checkpoints: bool,
    /// Clients create and drop keyspaces of their own.
    pub(crate) keyspaces: bool,
    /// Clients make backups.
    pub(crate) backups: bool,
}

/// Latency of a device, microseconds: each request takes between these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) low_us: u64,
    pub(crate) high_us: u64,
}

/// The plan of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) page_size: usize,
    /// Frames of the pool.
    pub(crate) frames: u64,
    /// Memory of the database but for those.
    pub(crate) cache_bytes: u64,
    /// Most bytes of old values on scratch pages.
    pub(crate) snapshot_disk: Option<u64>,
    pub(crate) instances: usize,
    pub(crate) log_bytes: u64,
    pub(crate) log_max_bytes: u64,
    pub(crate) recovery_bound_ms: u64,
    pub(crate) async_delay_ms: u64,
    pub(crate) cleaners: bool,
    pub(crate) cores: usize,
    pub(crate) clients: u32,
    pub(crate) keys: Keys,
    pub(crate) mix: Mix,
    /// Bytes of keys and values loaded before the clients start.
    pub(crate) load_bytes: u64,
    pub(crate) marks_by_client: bool,
    pub(crate) data_latency: Latency,
    pub(crate) log_latency: Latency,
    /// One life in this many meets a fault; 0 = none.
    pub(crate) fault_every: u64,
    /// The seed ends with a write that is acknowledged and not done as asked.
    pub(crate) false_write: bool,
    /// A worker merges them.
    pub(crate) near: bool,
    /// Keyspaces that are LSM keyspaces, by the bits of their numbers modulo 64.
    pub(crate) lsm: u64,
}

impl Plan {
    /// What the `n`-th keyspace is made of.
    pub(crate) fn kind(&self, n: usize) -> KeyspaceKind {
        if self.lsm >> (n % 64) & 1 == 0 {
            return KeyspaceKind::Tree;
        }
        let compression = [Compression::None, Compression::Lz4, Compression::Zstd][self.seed as usize % 3];
        let (block_bytes, segment_bytes, memtable_bytes) = (Some(4 << 10), 64 << 10, 64 << 10);
        let mut options =
            LsmOptions { compression, block_bytes, segment_bytes, memtable_bytes, ..LsmOptions::default() };
        if self.near {
            options.merge = NEAR[(self.seed as usize / 3 + n) % NEAR.len()];
            options.blocks = [4 << 10, 256 << 10][self.seed as usize % 2];
        }
        KeyspaceKind::Lsm(options)
    }

    /// The plan of `seed`.
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut rng = Rng::from_seed(seed ^ 0x5641_5256_4500_0000);
        let page_size = [4096, 4096, 4096, 8192, 16384][rng.below(5) as usize];
        let frames = rng.between(48, 80);
        let lengths = lengths(page_size as u32, &mut rng);
        let load_bytes = frames * page_size as u64 * (DATA_OVER_POOL + 1);
        let count = (load_bytes / average_row(&lengths) / u64::from(ROW_SPACES)) as u32 * 5 / 4 + 64;
        let clients = rng.between(4, 8) as u32;
        // A generator of its own: what was drawn before there was this stays as it was.
        let mut memory = Rng::from_seed(seed ^ 0x5b11_1000);
        Plan {
            seed,
            page_size,
            frames,
            cache_bytes: [1 << 20, 1 << 20, 2 << 20, 4 << 20][memory.below(4) as usize],
            snapshot_disk: [None, None, Some(0), Some(64 << 10), Some(512 << 10)][memory.below(5) as usize],
            instances: rng.between(1, 3) as usize,
            log_bytes: 1 << 20,
            // With the largest the ring grows by longer and longer segments.
            log_max_bytes: [1 << 20, 2 << 20, 3 << 20, 64 << 20][rng.below(4) as usize],
            recovery_bound_ms: [1, 5, 50, 10_000][rng.below(4) as usize],
            async_delay_ms: rng.between(1, 20),
            cleaners: !rng.one_in(5),
            cores: rng.between(1, 4) as usize,
            clients,
            keys: Keys {
                count,
                prefix: [rng.below(24) as usize, rng.below(6) as usize],
                pad: rng.below(24) as usize,
                long_every: if rng.one_in(2) { rng.between(20, 60) as u32 } else { 0 },
                long_pad: page_size / 16,
            },
            mix: mix(count, lengths, &mut rng),
            load_bytes,
            marks_by_client: rng.one_in(2),
            data_latency: latency(&mut rng, 40, 2000),
            log_latency: latency(&mut rng, 20, 800),
            fault_every: [0, 2, 2, 3][rng.below(4) as usize],
            false_write: rng.one_in(4),
            near: false,
            lsm: 0,
        }
    }

    /// A plan with little data and few commits, for cutting at each of its device operations.
    pub(crate) fn small(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let count = 800;
        plan.page_size = 4096;
        plan.frames = 48;
        plan.clients = 4;
        plan.load_bytes = 360 << 10;
        plan.mix.durability = [60, 20];
        plan.keys.count = count;
        plan.mix.keys = count;
        plan.mix.cut_span = count / 4;
        plan.mix.spill_every = 40;
        plan.mix.hot = plan.mix.hot.min(20);
        plan.mix.hot_from = 40;
        plan.mix.checkpoints = true;
        plan.mix.lengths = lengths(4096, &mut Rng::from_seed(seed));
        plan.fault_every = 0;
        plan.false_write = false;
        plan
    }

    /// Whether the database remembers in life number `life` what was written last: in a third of the plans always, in
    /// another now and then.
    pub(crate) fn detect_lost_writes(&self, life: u64) -> Option<bool> {
        match self.seed % 3 {
            _ if self.always_detects() => Some(true),
            1 => [Some(true), None, None, Some(false)][(self.seed / 3 + life) as usize % 4],
            _ => None,
        }
    }

    /// Whether it does in every life, so that no stale page may be believed.
    pub(crate) fn always_detects(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// The faults of a life: none, one, or a few that may meet. The life that creates the database meets some less
    /// often, since it has most to do before others can begin.
    pub(crate) fn faults(&self, rng: &mut Rng, fast: bool, created: bool) -> Vec<Fault> {
        if !rng.one_in(self.fault_every) || !created && !rng.one_in(4) {
            return Vec::new();
        }
        (0..rng.between(1, 3))
            .map(|_| if created { Fault::draw(rng, fast) } else { Fault::of_creation(rng, fast) })
            .collect()
    }
}

fn lengths(page: u32, rng: &mut Rng) -> Lengths {
    Lengths {
        small: page / 40 + rng.below(u64::from(page / 16)) as u32,
        medium: page / 6,
        inline: page / 4,
        overflow: page * 5,
        overflow_every: rng.between(20, 60),
    }
}

/// Bytes of an average row, roughly.
fn average_row(l: &Lengths) -> u64 {
    let long = u64::from(l.inline + l.overflow) / 2 / l.overflow_every;
    20 + long + u64::from(l.small) * 12 / 40 + u64::from(l.medium) * 5 / 40 + u64::from(l.inline) * 2 / 40
}

fn mix(keys: u32, lengths: Lengths, rng: &mut Rng) -> Mix {
    let hot = rng.between(8, 40) as u32;
    Mix {
        keys,
        hot,
        hot_from: rng.below(u64::from(keys - hot)) as u32,
        hot_percent: rng.between(20, 70) as u32,
        lengths,
        durability: [[50, 25], [100, 0], [30, 30], [10, 45]][rng.below(4) as usize],
        large_tx: rng.between(6, 14),
        delete_span: rng.between(10, 120) as u32,
        cut_span: keys / 4,
        spill_every: [25, 50, 100][keys as usize % 3],
        pause_us: rng.between(50, 3000),
        think_us: rng.between(0, 3000),
        checkpoints: !rng.one_in(3),
        keyspaces: rng.one_in(2),
        backups: rng.one_in(5),
    }
}

fn latency(rng: &mut Rng, low: u64, high: u64) -> Latency {
    let low_us = rng.between(low / 4, low * 2);
    Latency { low_us, high_us: low_us + rng.between(low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_a_function_of_the_seed_and_keep_the_promises() {
        for seed in 0..500 {
            let plan = Plan::draw(seed);
            assert_eq!(plan, Plan::draw(seed));
            assert!(plan.clients >= 4, "seed {seed}");
            assert!(plan.load_bytes > DATA_OVER_POOL * plan.frames * plan.page_size as u64, "seed {seed}");
            assert!(plan.mix.hot_from + plan.mix.hot <= plan.keys.count, "seed {seed}");
            assert_eq!(plan.mix.keys, plan.keys.count);
            assert!(plan.keys.key(0, plan.keys.count).len() <= plan.page_size / 8, "seed {seed}");
        }
    }

    #[test]
    fn every_geometry_is_drawn() {
        let pages: std::collections::BTreeSet<_> = (0..200).map(|seed| Plan::draw(seed).page_size).collect();
        assert_eq!(pages.len(), 3);
    }
}
