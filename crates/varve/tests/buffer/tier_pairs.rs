//! Pool policy and tier manager together, below the engine: a small pool over a tier shows what the pairs of the CAC
//! paper do to pages (Liu, Salem, VLDB 2013, sections 4 to 6). `SEED=n` runs another sequence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::buffer::policy::{self, Ask, Gd2lOptions, Load, PolicyOptions, Replacement, Slot, Unlink};
use varve_device::AlignedBuf;
use varve_models::{MemDevice, Powered};
use varve_rt::Rng;
use varve_rt::sim::{Config, run};
use varve_volume::tier::{Costs, ManagerOptions, Place, Tier, TierOptions};
use varve_volume::{CostClass, KeyspaceId, PageId, PageIo, PageStore, PageUse, ReadWhy, Single, WriteWhy, page};

const SIZE: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Frame {
    page: u64,
    lsn: u64,
    dirty: bool,
    logical: u32,
}

/// What happened to a page while it was on the fast device `[1]` and while it was not `[0]`.
#[derive(Clone, Copy, Default, Debug)]
struct Life {
    logical: [u64; 2],
    misses: [u64; 2],
    writes: [u64; 2],
    /// References to any page.
    time: [u64; 2],
    since: u64,
    fast: bool,
}

struct Pool {
    tier: Arc<Tier>,
    options: TierOptions,
    policy_options: PolicyOptions,
    replacement: String,
    fast: Arc<MemDevice>,
    slow: Arc<MemDevice>,
    policy: Box<dyn Replacement>,
    frames: Vec<Frame>,
    at: BTreeMap<u64, Slot>,
    empty: Vec<Slot>,
    lives: Vec<Life>,
    lsn: u64,
    now: u64,
    buf: AlignedBuf,
}

impl Pool {
    fn new(replacement: &str, manager: &str, frames: usize, slots: u64, pages: u64) -> Pool {
        let costs = Costs::default();
        let options = TierOptions {
            manager: manager.into(),
            // Times are scaled down with the sizes: a bucket for each rate of use.
            options: ManagerOptions { costs, bucket_width: 600.0, ..ManagerOptions::default() },
            memory_interval: Some(5.0),
            ..TierOptions::default()
        };
        // Slots, and room for the tables of so few.
        let fast = MemDevice::new((slots + 150) * SIZE as u64);
        let slow = MemDevice::new(pages * SIZE as u64);
        let home = Single::new(slow.clone(), SIZE).unwrap();
        let tier = Tier::create(home, fast.clone(), [1; 16], options.clone()).unwrap();
        tier.start().unwrap();
        let gd2l = Gd2lOptions {
            cost: [costs.read_slow, costs.read_fast].into(),
            write_cost: [costs.write_slow, costs.write_fast].into(),
            ..Gd2lOptions::default()
        };
        let policy_options = PolicyOptions { gd2l, ..PolicyOptions::default() };
        let mut pool = Pool {
            policy: (policy::find(replacement).unwrap().make)(frames, &policy_options),
            options,
            policy_options,
            replacement: replacement.to_string(),
            fast,
            slow,
            tier,
            frames: vec![Frame::default(); frames],
            at: BTreeMap::new(),
            empty: (0..frames as Slot).collect(),
            lives: vec![Life::default(); pages as usize],
            lsn: 1,
            now: 0,
            buf: AlignedBuf::new(SIZE),
        };
        // Every page is at home once; nothing of it is known to the manager.
        for page in 0..pages {
            pool.seal(page, 1);
            let home: &dyn PageStore = &**pool.tier.slow();
            // SAFETY: the buffer outlives the ticket, which is waited for.
            let io = unsafe {
                PageIo::write(
                    PageId(page),
                    KeyspaceId(1),
                    WriteWhy::Checkpoint,
                    PageUse::default(),
                    pool.buf.as_ptr(),
                    None,
                )
            };
            home.submit(vec![io]).wait_all().unwrap();
        }
        pool
    }

    fn seal(&mut self, page: u64, lsn: u64) {
        page::set_kind(&mut self.buf, 1);
        page::set_lsn(&mut self.buf, lsn);
        page::set_keyspace(&mut self.buf, KeyspaceId(1));
        page::seal(&mut self.buf, PageId(page));
    }

    fn usage(&mut self, slot: Slot) -> PageUse {
        let logical = std::mem::take(&mut self.frames[slot as usize].logical);
        PageUse { logical_reads: logical, ..PageUse::default() }
    }

    /// Time on either side, up to now.
    fn clock(&mut self, page: u64) {
        let now = self.now;
        let fast = self.tier.place(PageId(page)) == Place::Fast;
        let life = &mut self.lives[page as usize];
        life.time[usize::from(life.fast)] += now - life.since;
        (life.since, life.fast) = (now, fast);
    }

    fn classes(&mut self) {
        let mut changes = Vec::new();
        self.tier.drain_class_changes(&mut changes);
        for (page, class) in changes {
            self.clock(page.0);
            if let Some(&slot) = self.at.get(&page.0) {
                self.policy.class_changed(slot, class, None, self.now);
            }
        }
    }

    fn write(&mut self, slot: Slot, why: WriteWhy) {
        let Frame { page, lsn, .. } = self.frames[slot as usize];
        self.seal(page, lsn);
        let usage = self.usage(slot);
        // SAFETY: the buffer outlives the ticket, which is waited for, and does not change meanwhile.
        let io = unsafe { PageIo::write(PageId(page), KeyspaceId(1), why, usage, self.buf.as_ptr(), None) };
        let mut ticket = self.tier.submit(vec![io]);
        let class = ticket.wait(0).unwrap();
        self.frames[slot as usize].dirty = false;
        self.policy.cleaned(slot, why, self.now);
        self.policy.class_changed(slot, class, Some(why), self.now);
        self.lives[page as usize].writes[usize::from(class.0 > 0)] += 1;
        self.clock(page);
    }

    fn evict(&mut self) -> Slot {
        let slot = self.policy.victim(Ask::any(), &mut |_| true).expect("a page");
        if self.frames[slot as usize].dirty {
            self.write(slot, WriteWhy::Replacement);
        }
        let Frame { page, lsn, .. } = self.frames[slot as usize];
        self.policy.unlink(slot, Unlink::Evicted);
        self.at.remove(&page);
        self.seal(page, lsn);
        let usage = self.usage(slot);
        let bytes = &self.buf[..];
        self.tier.evict_clean(PageId(page), bytes, usage);
        self.clock(page);
        slot
    }

    fn read(&mut self, page: u64, slot: Slot) {
        // SAFETY: the buffer outlives the ticket, which is waited for.
        let io = unsafe { PageIo::read(PageId(page), ReadWhy::Demand, self.buf.as_mut_ptr()) };
        let mut ticket = self.tier.submit(vec![io]);
        let class: CostClass = ticket.wait(0).unwrap();
        self.lives[page as usize].misses[usize::from(class.0 > 0)] += 1;
        self.frames[slot as usize] = Frame { page, lsn: page::lsn(&self.buf), dirty: false, logical: 0 };
        self.at.insert(page, slot);
        self.policy.load(slot, PageId(page), Load::Demand, class, self.now);
        self.clock(page);
    }

    fn access(&mut self, page: u64, change: bool) {
        self.now += 1;
        if self.now.is_multiple_of(8) {
            varve_rt::sleep(Duration::from_millis(4));
            self.classes();
        }
        let slot = match self.at.get(&page) {
            Some(&slot) => {
                self.policy.hit(slot, self.now);
                slot
            }
            None => {
                let slot = self.empty.pop().unwrap_or_else(|| self.evict());
                self.read(page, slot);
                slot
            }
        };
        let frame = &mut self.frames[slot as usize];
        frame.logical += 1;
        let place = usize::from(self.tier.place(PageId(page)) == Place::Fast);
        self.lives[page as usize].logical[place] += 1;
        if change {
            self.lsn += 1;
            let clean = !std::mem::replace(&mut frame.dirty, true);
            frame.lsn = self.lsn;
            if clean {
                let usage = self.usage(slot);
                self.policy.dirtied(slot, self.now);
                self.tier.dirtied(PageId(page), KeyspaceId(1), usage);
                self.classes();
                self.clock(page);
            }
        }
    }

    /// Writes a page that has changed, as the log asks for.
    fn recoverability(&mut self, page: u64) {
        if let Some(&slot) = self.at.get(&page)
            && self.frames[slot as usize].dirty
        {
            self.write(slot, WriteWhy::Recoverability);
        }
    }

    /// Everything in memory is gone; the tier is opened again under an empty pool.
    fn crash(&mut self) {
        self.tier.sync().unwrap();
        self.fast.power_cut(1);
        self.slow.power_cut(2);
        // Its threads end when they find the power off.
        self.tier.stop();
        self.fast.restore_power();
        self.slow.restore_power();
        let home = Single::new(self.slow.clone(), SIZE).unwrap();
        self.tier = Tier::open(home, self.fast.clone(), [1; 16], self.options.clone()).unwrap();
        self.tier.start().unwrap();
        let frames = self.frames.len();
        self.policy = (policy::find(&self.replacement).unwrap().make)(frames, &self.policy_options);
        self.at.clear();
        self.empty = (0..frames as Slot).collect();
    }

    /// Share of the reads in the next `n` references that the fast device serves.
    fn hit_ratio(&mut self, n: u64, next: &mut dyn FnMut() -> (u64, bool)) -> f64 {
        let before = self.tier.tier_stats().counters;
        for _ in 0..n {
            let (page, change) = next();
            self.access(page, change);
        }
        let after = self.tier.tier_stats().counters;
        let (fast, slow) = (after.fast_reads - before.fast_reads, after.slow_reads - before.slow_reads);
        fast as f64 / (fast + slow) as f64
    }

    fn end(mut self) -> Vec<Life> {
        (0..self.lives.len() as u64).for_each(|page| self.clock(page));
        self.tier.stop();
        self.lives
    }
}

fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"))
}

/// Hot pages are `0..HOT`.
const HOT: u64 = 4;

/// Hot pages are admitted while there is room; then the rest of the database comes in. How many of them are on the fast
/// device at the end, and how often they were read from there.
fn hot(manager: &'static str) -> (usize, u64, u64) {
    run(Config::default(), move || {
        let mut rng = Rng::from_seed(seed());
        let mut pool = Pool::new("gd2l", manager, 60, 100, 700);
        for n in 0..4000 {
            pool.access(n % HOT, false);
        }
        for page in 0..HOT {
            pool.access(page, true);
            pool.recoverability(page);
            assert_eq!(pool.tier.place(PageId(page)), Place::Fast, "{manager}: there is room");
        }
        for n in 0..120_000 {
            // One reference in three is to a hot page.
            let page = if n % 3 == 0 { rng.below(HOT) } else { HOT + rng.below(700 - HOT) };
            let change = rng.below(10) == 0;
            pool.access(page, change);
            if page < HOT && change {
                pool.recoverability(page);
            }
        }
        let there = (0..HOT).filter(|page| pool.tier.place(PageId(*page)) == Place::Fast).count();
        let lives = pool.end();
        let sum = |f: fn(&Life) -> u64| lives[..HOT as usize].iter().map(f).sum::<u64>();
        (there, sum(|l| l.misses[1]), sum(|l| l.logical[0] + l.logical[1]))
    })
    .unwrap()
}

#[test]
fn cac_expels_hot_pages_that_came_while_there_was_room_and_cc_keeps_them() {
    let (cac, cc) = (hot("cac"), hot("cc"));
    println!("on the fast device, read from there, of references: cac {cac:?}, cc {cc:?}");
    assert_eq!(cac.0, 0, "off the fast device the pool keeps them");
    assert_eq!(cc.0, HOT as usize, "their reads count for them, though they come of being there");
    // Who came to a slot stays there until a flush has made certain that the one before is gone.
    assert!(cac.1 * 20 < cac.2, "{cac:?}");
    assert!(cc.1 * 2 > cc.2, "{cc:?}");
}

/// With GD2L a hot page on the fast device is cheap, so it leaves the pool, and comes back with the next reference.
/// LRU-2 sees that it is used, and keeps it there.
#[test]
fn lru2_makes_hot_pages_bounce() {
    let (lru2, cac) = (hot("lru2"), hot("cac"));
    assert!(lru2.1 * 2 > lru2.2, "{lru2:?}");
    assert!(lru2.1 > 20 * cac.1, "{lru2:?} {cac:?}");
}

/// Of the pages that spent a third of the run on each side, those whose rate is higher on the fast device, by misses
/// and by writes; and how many pages that are.
fn risen(replacement: &'static str, manager: &'static str) -> (f64, f64, usize) {
    run(Config::default(), move || {
        let mut rng = Rng::from_seed(seed());
        const PAGES: u64 = 800;
        let mut pool = Pool::new(replacement, manager, 80, 250, PAGES);
        for _ in 0..200_000 {
            // Few pages have most of the references: the page number is the least of three.
            let page = (0..3).map(|_| rng.below(PAGES)).min().expect("three of them");
            pool.access(page, rng.below(3) == 0);
        }
        let total = pool.now;
        let lives = pool.end();
        let both: Vec<&Life> = lives.iter().filter(|l| l.time.iter().all(|t| *t * 3 >= total)).collect();
        let rate = |n: [u64; 2], l: &Life, side: usize| n[side] as f64 / l.time[side] as f64;
        let share = |of: fn(&Life) -> [u64; 2]| {
            let up = both.iter().filter(|l| rate(of(l), l, 1) > rate(of(l), l, 0)).count();
            up as f64 / both.len().max(1) as f64
        };
        (share(|l| l.misses), share(|l| l.writes), both.len())
    })
    .unwrap()
}

#[test]
fn misses_and_writes_of_pages_rise_while_they_are_on_the_fast_device() {
    for manager in ["cac", "lru2"] {
        let (misses, writes, pages) = risen("gd2l", manager);
        println!("{manager}: misses rise of {misses:.2}, writes of {writes:.2} of {pages} pages");
        assert!(misses > 0.75 && writes > 0.75 && pages >= 5, "{manager}: {misses}, {writes}, {pages} pages");
    }
    // It is GD2L that does it to the misses: LRU does not look where a page would be read from.
    let (misses, _, pages) = risen("lru", "lru2");
    assert!((0.3..0.7).contains(&misses) && pages > 50, "{misses}, {pages} pages");
}

/// Hit ratio of the fast device in a minute before a crash, in the first minute after it, and in the first seconds.
fn warmth(manager: &'static str) -> [f64; 3] {
    run(Config::default(), move || {
        let mut rng = Rng::from_seed(seed());
        let mut next = || ((0..3).map(|_| rng.below(800)).min().expect("three of them"), rng.below(4) == 0);
        let mut pool = Pool::new("gd2l", manager, 80, 250, 800);
        pool.hit_ratio(60_000, &mut next);
        let before = pool.hit_ratio(30_000, &mut next);
        pool.crash();
        let first = pool.hit_ratio(2_000, &mut next);
        let after = pool.hit_ratio(28_000, &mut next);
        pool.end();
        [before, (2.0 * first + 28.0 * after) / 30.0, first]
    })
    .unwrap()
}

#[test]
fn the_tier_is_warm_after_a_crash() {
    for manager in ["cac", "lru2", "mv-fifo", "tac"] {
        let [before, after, first] = warmth(manager);
        println!("{manager}: {before:.3} before, {after:.3} after, {first:.3} at first");
        assert!(after >= 0.9 * before && first >= 0.8 * before, "{manager}: {before}, {after}, {first}");
        assert!(before > 0.1, "{manager}: {before}");
    }
}

/// Milliseconds of I/O, of both devices at the paper's service times, for a run in which a share of the references are
/// changes and a miss writes the dirty page that it evicts.
fn io_ms(replacement: &'static str, manager: &'static str, changes: u64) -> f64 {
    run(Config::default(), move || {
        let mut rng = Rng::from_seed(seed());
        let mut pool = Pool::new(replacement, manager, 80, 250, 800);
        for _ in 0..60_000 {
            let page = (0..3).map(|_| rng.below(800)).min().expect("three of them");
            pool.access(page, rng.below(100) < changes);
        }
        let costs = Costs::default();
        let of = |l: &Life| {
            l.misses[0] as f64 * costs.read_slow
                + l.misses[1] as f64 * costs.read_fast
                + l.writes[0] as f64 * costs.write_slow
                + l.writes[1] as f64 * costs.write_fast
        };
        pool.end().iter().map(of).sum()
    })
    .unwrap()
}

#[test]
fn counting_the_write_saves_io_time() {
    for changes in [0, 5, 50] {
        let [lru, gd2l, gd2l_c] =
            ["lru", "gd2l", "gd2l-c"].map(|replacement| io_ms(replacement, "cac", changes) / 1000.0);
        println!("{changes} % changes: lru {lru:.1} s, gd2l {gd2l:.1} s, gd2l-c {gd2l_c:.1} s");
        assert!(gd2l < 0.9 * lru, "{changes} %: {gd2l} {lru}");
        if changes == 0 {
            assert_eq!(gd2l, gd2l_c, "nothing to write");
        } else {
            assert!(gd2l_c < gd2l, "{changes} %: {gd2l_c} {gd2l}");
        }
    }
}
