//! What CAC and CC know of pages: counts of reads and writes on either device, groups of pages with like logical read
//! rates, and the out-queue that remembers pages which left (CAC paper, sections 5.2 and 5.3).
//!
//! A page is remembered while it is in the pool, on the fast device, or in the out-queue. The sums of its group are
//! brought up to date lazily: when it leaves the pool, is flushed to the fast device, or leaves that.
//!
//! Invariants: a group's sums are the sums of what its pages have counted there; the out-queue has no more pages than
//! it may, and `queued` counts them.

use super::{ManagerOptions, Memory, Place};
use crate::report::{Counted, GroupUse, PageSides};
use crate::{KeyspaceId, PageId, ReadWhy};
use std::collections::VecDeque;
use std::num::NonZeroU64;
use varve_rt::HashMap;

/// Over which pages the miss-rate expansion factor is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// All pages.
    Global,
    /// Pages of a keyspace.
    Keyspace,
    /// Pages of a keyspace with like logical read rates: what the paper proposes.
    Group,
}

impl std::fmt::Display for Alpha {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Alpha::Global => "global",
            Alpha::Keyspace => "keyspace",
            Alpha::Group => "group",
        })
    }
}

impl std::str::FromStr for Alpha {
    type Err = String;

    fn from_str(s: &str) -> Result<Alpha, String> {
        match s {
            "global" => Ok(Alpha::Global),
            "keyspace" => Ok(Alpha::Keyspace),
            "group" => Ok(Alpha::Group),
            other => Err(format!("alpha {other:?}: choose global, keyspace or group")),
        }
    }
}

/// Bounds of the miss-rate expansion factor.
const ALPHA: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// Counts that age, with the page on the fast device `[0]` and not on it `[1]`.
type Pair = [f32; 2];

/// Keyspace and bucket.
type Group = (KeyspaceId, u32);

/// The largest count of that kind that one more still changes.
const MOST: f32 = (1 << 24) as f32;

/// Counts one more. What a page has too much of is halved with the rest, as if it had aged.
fn count(pairs: [&mut Pair; 2], which: usize, side: usize) {
    pairs[which][side] += 1.0;
    if pairs[which][side] >= MOST {
        pairs.into_iter().flatten().for_each(|n| *n /= 2.0);
    }
}

/// Uses of a page, as above.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    logical: [u32; 2],
    /// Physical reads, read-ahead included.
    physical: [u32; 2],
}

impl Counts {
    /// Counts `n` more. All are halved before one overflows: their ratios are what counts.
    fn add(&mut self, which: fn(&mut Counts) -> &mut [u32; 2], side: usize, n: u32) {
        if which(self)[side].checked_add(n).is_none() {
            self.logical.iter_mut().chain(&mut self.physical).for_each(|count| *count /= 2);
        }
        let count = &mut which(self)[side];
        *count = count.saturating_add(n);
    }
}

/// Sums of a group's counts: whole numbers, exact far beyond what pages can have.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    logical: [f64; 2],
    physical: [f64; 2],
}

#[derive(Debug)]
struct Stat {
    keyspace: KeyspaceId,
    /// When the page was first seen (before the clock's origin, if it is remembered from an earlier run), and last
    /// touched, nanoseconds.
    since: i64,
    touched: u64,
    /// Physical random reads and writes.
    reads: Pair,
    writes: Pair,
    counts: Counts,
    /// What of `counts` is in the sums of `group`.
    counted: Counts,
    group: Group,
    in_pool: bool,
    on_fast: bool,
    /// Its entry in the out-queue, if it has one.
    queued: Option<NonZeroU64>,
}

/// Random reads and writes of a page, on the fast device and not on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub read_fast: f64,
    pub read_slow: f64,
    pub write_fast: f64,
    pub write_slow: f64,
}

pub(super) struct Usage {
    alpha: Alpha,
    /// Nanoseconds per logical read at which a page enters bucket 1.
    bucket_width: f64,
    max_bucket: u32,
    half_life: Option<f64>,
    /// Length of the out-queue, and whether it is as many as there are slots.
    capacity: usize,
    by_slots: bool,
    pages: HashMap<PageId, Stat>,
    groups: HashMap<Group, Sums>,
    queue: VecDeque<(PageId, NonZeroU64)>,
    /// Entries of the queue that still stand for their page.
    queued: usize,
    tickets: NonZeroU64,
}

/// Two counts in a word: the upper halves of their bits, rounded.
fn short(pair: Pair) -> u32 {
    let half = |n: f32| n.to_bits().saturating_add(0x8000) >> 16;
    half(pair[0]) << 16 | half(pair[1])
}

/// What [`short`] made a word of, but nothing that is no count.
fn long(word: u32) -> Pair {
    let count = |bits: u32| Some(f32::from_bits(bits)).filter(|n| n.is_finite() && *n >= 0.0).unwrap_or(0.0);
    [count(word & 0xffff_0000), count(word << 16)]
}

fn at(place: Place) -> usize {
    match place {
        Place::Fast => 0,
        Place::Slow => 1,
    }
}

impl Usage {
    pub fn new(options: &ManagerOptions) -> Usage {
        Usage {
            alpha: options.alpha,
            bucket_width: options.bucket_width.max(1e-9),
            max_bucket: (options.max_groups / 16).max(1) as u32,
            half_life: options.half_life,
            capacity: options.outqueue.unwrap_or(0),
            by_slots: options.outqueue.is_none(),
            pages: HashMap::default(),
            groups: HashMap::default(),
            queue: VecDeque::new(),
            queued: 0,
            tickets: NonZeroU64::MIN,
        }
    }

    fn touch(&mut self, page: PageId, now: u64) -> &mut Stat {
        let half_life = self.half_life;
        let stat = self.pages.entry(page).or_insert_with(|| Stat {
            keyspace: KeyspaceId(0),
            since: now as i64,
            touched: now,
            reads: [0.0; 2],
            writes: [0.0; 2],
            counts: Counts::default(),
            counted: Counts::default(),
            group: (KeyspaceId(0), 0),
            in_pool: false,
            on_fast: false,
            queued: None,
        });
        if let Some(half_life) = half_life
            && now > stat.touched
        {
            let left = 0.5f64.powf((now - stat.touched) as f64 / 1e9 / half_life) as f32;
            stat.reads = stat.reads.map(|n| n * left);
            stat.writes = stat.writes.map(|n| n * left);
        }
        stat.touched = now;
        stat
    }

    /// The fast device has so many slots. A longer queue is cut when the next page enters it.
    pub fn resized(&mut self, slots: usize) {
        if self.by_slots {
            self.capacity = slots;
        }
    }

    pub fn read(&mut self, page: PageId, from: Place, why: ReadWhy, now: u64) {
        let queued = {
            let stat = self.touch(page, now);
            stat.in_pool = true;
            stat.counts.add(|c| &mut c.physical, at(from), 1);
            if why == ReadWhy::Demand {
                count([&mut stat.reads, &mut stat.writes], 0, at(from));
            }
            stat.queued.take()
        };
        assert!(self.queued >= usize::from(queued.is_some()), "a page that leaves the out-queue was counted");
        self.queued -= usize::from(queued.is_some());
    }

    pub fn wrote(&mut self, page: PageId, to: Place, now: u64) {
        let stat = self.touch(page, now);
        stat.in_pool = true;
        count([&mut stat.reads, &mut stat.writes], 1, at(to));
        if to == Place::Fast {
            self.settle(page);
        }
    }

    pub fn used(&mut self, page: PageId, keyspace: KeyspaceId, logical: u32, place: Place, now: u64) {
        let stat = self.touch(page, now);
        stat.keyspace = keyspace;
        stat.counts.add(|c| &mut c.logical, at(place), logical);
    }

    pub fn entered(&mut self, page: PageId, now: u64) {
        self.touch(page, now).on_fast = true;
    }

    pub fn left(&mut self, page: PageId, now: u64) {
        self.touch(page, now).on_fast = false;
        self.settle(page);
        self.park(page);
    }

    pub fn evicted(&mut self, page: PageId, now: u64) {
        self.touch(page, now).in_pool = false;
        self.settle(page);
        self.park(page);
    }

    /// Forgets the page altogether.
    pub fn discarded(&mut self, page: PageId) {
        if let Some(stat) = self.pages.remove(&page) {
            assert!(self.queued >= usize::from(stat.queued.is_some()), "a page in the out-queue was counted");
            self.queued -= usize::from(stat.queued.is_some());
            self.withdraw(&stat);
        }
    }

    /// Puts a page that is nowhere else into the out-queue, at the cost of its oldest.
    fn park(&mut self, page: PageId) {
        let Some(stat) = self.pages.get_mut(&page) else { return };
        if stat.in_pool || stat.on_fast {
            return;
        }
        debug_assert!(self.queue.back().is_none_or(|(_, last)| *last < self.tickets), "the queue is in order of time");
        let ticket = self.tickets;
        self.tickets = ticket.saturating_add(1);
        self.queued += usize::from(stat.queued.replace(ticket).is_none());
        self.queue.push_back((page, ticket));
        while self.queued > self.capacity {
            let (oldest, ticket) = self.queue.pop_front().expect("a queued page has an entry");
            if self.pages.get(&oldest).is_some_and(|s| s.queued == Some(ticket)) {
                self.discarded(oldest);
            }
        }
        assert!(self.queued <= self.queue.len(), "a page that is queued has an entry");
        // Entries of pages that came back since would pile up.
        if self.queue.len() > 2 * self.capacity + 16 {
            let pages = &self.pages;
            self.queue.retain(|(page, ticket)| pages.get(page).is_some_and(|s| s.queued == Some(*ticket)));
        }
    }

    fn bucket(&self, stat: &Stat) -> u32 {
        match self.alpha {
            Alpha::Global | Alpha::Keyspace => 0,
            Alpha::Group => {
                let minutes = ((stat.touched as i64).saturating_sub(stat.since) as f64 / 60e9).max(1.0 / 60.0);
                let [fast, slow] = stat.counts.logical.map(f64::from);
                let rate = (fast + slow) / minutes;
                ((rate / self.bucket_width) as u32).min(self.max_bucket)
            }
        }
    }

    fn key(&self, keyspace: KeyspaceId, bucket: u32) -> Group {
        if self.alpha == Alpha::Global { (KeyspaceId(0), 0) } else { (keyspace, bucket) }
    }

    /// Brings the sums of the page's group up to date; its counts move along when its bucket changed.
    fn settle(&mut self, page: PageId) {
        let Some(mut stat) = self.pages.remove(&page) else { return };
        self.withdraw(&stat);
        stat.group = self.key(stat.keyspace, self.bucket(&stat));
        stat.counted = stat.counts;
        let sums = self.groups.entry(stat.group).or_default();
        for i in 0..2 {
            sums.logical[i] += f64::from(stat.counted.logical[i]);
            sums.physical[i] += f64::from(stat.counted.physical[i]);
        }
        self.pages.insert(page, stat);
    }

    fn withdraw(&mut self, stat: &Stat) {
        if let Some(sums) = self.groups.get_mut(&stat.group) {
            for i in 0..2 {
                sums.logical[i] -= f64::from(stat.counted.logical[i]);
                sums.physical[i] -= f64::from(stat.counted.physical[i]);
                assert!(
                    sums.logical[i] >= 0.0 && sums.physical[i] >= 0.0,
                    "a group's sums have what its pages counted"
                );
            }
        }
    }

    /// Reads and writes of the page so far; zeros if it is unknown.
    pub fn rates(&self, page: PageId) -> Rates {
        self.pages.get(&page).map_or(Rates::default(), |s| Rates {
            read_fast: s.reads[0].into(),
            read_slow: s.reads[1].into(),
            write_fast: s.writes[0].into(),
            write_slow: s.writes[1].into(),
        })
    }

    /// Miss-rate expansion factor of the page's group: its miss rate on the fast device over that off it.
    pub fn expansion(&self, page: PageId) -> f64 {
        let Some(stat) = self.pages.get(&page) else { return 1.0 };
        let Some(sums) = self.groups.get(&self.key(stat.keyspace, self.bucket(stat))) else { return 1.0 };
        let miss = |i: usize| (sums.logical[i] > 0.0).then(|| sums.physical[i] / sums.logical[i]);
        match (miss(0), miss(1).unwrap_or(0.0)) {
            (None, _) => 1.0,
            (Some(fast), slow) if fast == 0.0 && slow == 0.0 => 1.0,
            (Some(fast), slow) => (fast / slow).clamp(*ALPHA.start(), *ALPHA.end()),
        }
    }

    /// By group and page, for reports.
    pub fn counted(&self) -> Counted {
        let groups = self.groups.iter().map(|(&(keyspace, bucket), sums)| GroupUse {
            keyspace,
            rate: f64::from(bucket) * self.bucket_width,
            logical: sums.logical,
            physical: sums.physical,
        });
        let pages = self.pages.iter().map(|(&page, s)| PageSides {
            page,
            logical: s.counts.logical.map(f64::from),
            physical: s.counts.physical.map(f64::from),
            writes: s.writes.map(f64::from),
        });
        Counted { groups: groups.collect(), pages: pages.collect() }
    }

    /// Pages on the fast device and in the pool first, then the out-queue, its newest first. Counts to three digits.
    pub fn remember(&self, now: u64) -> Vec<(u64, Memory)> {
        let memory = |(&page, s): (&PageId, &Stat)| {
            let age = ((now as i64).saturating_sub(s.since) / 1_000_000).clamp(0, i64::from(u32::MAX)) as u32;
            let [logical, physical] = [s.counts.logical, s.counts.physical].map(|pair| pair.map(|n| n as f32));
            let [reads, writes, logical, physical] = [s.reads, s.writes, logical, physical].map(short);
            let words = [age, reads, writes, logical, physical];
            let order = if s.on_fast { 0 } else { s.queued.map_or(1, |ticket| u64::MAX - ticket.get()) };
            (order, Memory { page, keyspace: s.keyspace, words })
        };
        self.pages.iter().map(memory).collect()
    }

    /// Pages that are not on the fast device go to the out-queue.
    pub fn recall(&mut self, memories: &[Memory], now: u64) {
        for m in memories.iter().rev() {
            let stat = self.touch(m.page, now);
            stat.keyspace = m.keyspace;
            stat.since = now as i64 - i64::from(m.words[0]) * 1_000_000;
            let [_, reads, writes, logical, physical] = m.words;
            (stat.reads, stat.writes) =
                (long(reads).map(|n| n.min(MOST / 2.0)), long(writes).map(|n| n.min(MOST / 2.0)));
            let whole = |word| long(word).map(|n| n as u32);
            stat.counts = Counts { logical: whole(logical), physical: whole(physical) };
            self.settle(m.page);
            self.park(m.page);
        }
    }

    /// Pages of which something is known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Bytes that the out-queue takes when it is full.
    pub fn outqueue_memory(&self) -> usize {
        self.capacity * (size_of::<(PageId, Stat)>() + 1 + size_of::<(PageId, NonZeroU64)>())
    }

    pub fn memory(&self) -> usize {
        self.pages.capacity() * (size_of::<(PageId, Stat)>() + 1)
            + self.groups.capacity() * (size_of::<(Group, Sums)>() + 1)
            + self.queue.capacity() * size_of::<(PageId, NonZeroU64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PageId = PageId(7);

    fn usage(outqueue: usize) -> Usage {
        Usage::new(&ManagerOptions { outqueue: Some(outqueue), alpha: Alpha::Keyspace, ..ManagerOptions::default() })
    }

    #[test]
    fn expansion_is_the_ratio_of_miss_rates() {
        let mut u = usage(10);
        assert_eq!(u.expansion(P), 1.0, "an unknown page");
        u.read(P, Place::Slow, ReadWhy::Demand, 0);
        u.used(P, KeyspaceId(1), 10, Place::Slow, 0);
        u.evicted(P, 0);
        assert_eq!(u.expansion(P), 1.0, "never on the fast device");
        u.entered(P, 0);
        u.read(P, Place::Fast, ReadWhy::Demand, 0);
        u.read(P, Place::Fast, ReadWhy::Prefetch, 0);
        u.used(P, KeyspaceId(1), 10, Place::Fast, 0);
        u.evicted(P, 0);
        assert!((u.expansion(P) - 2.0).abs() < 1e-6, "2 of 10 against 1 of 10: {}", u.expansion(P));
        let rates = u.rates(P);
        assert_eq!((rates.read_fast, rates.read_slow), (1.0, 1.0), "read-ahead is not random");
    }

    #[test]
    fn expansion_is_clamped() {
        let mut u = usage(10);
        u.entered(P, 0);
        u.read(P, Place::Fast, ReadWhy::Demand, 0);
        u.used(P, KeyspaceId(1), 10, Place::Fast, 0);
        u.evicted(P, 0);
        assert_eq!(u.expansion(P), 1000.0);
    }

    #[test]
    fn the_outqueue_forgets_its_oldest() {
        let mut u = usage(2);
        for n in 0..4 {
            u.read(PageId(n), Place::Slow, ReadWhy::Demand, 0);
            u.evicted(PageId(n), 0);
        }
        assert_eq!(u.len(), 2);
        assert_eq!(u.rates(PageId(0)), Rates::default());
        assert_eq!(u.rates(PageId(3)).read_slow, 1.0);
        u.read(PageId(2), Place::Slow, ReadWhy::Demand, 0);
        assert_eq!(u.rates(PageId(2)).read_slow, 2.0, "a page that comes back is remembered");
        for n in 10..13 {
            u.read(PageId(n), Place::Slow, ReadWhy::Demand, 0);
            u.evicted(PageId(n), 0);
        }
        assert_eq!(u.rates(PageId(2)).read_slow, 2.0, "what is in the pool is not in the queue");
    }

    #[test]
    fn what_is_remembered_comes_back() {
        let mut u = usage(3);
        for n in 0..6 {
            for _ in 0..100 * n {
                u.read(PageId(n), Place::Slow, ReadWhy::Demand, 7_000_000_000);
            }
            u.used(PageId(n), KeyspaceId(4), 1000, Place::Slow, 7_000_000_000);
            if n > 2 {
                u.entered(PageId(n), 0);
                u.read(PageId(n), Place::Fast, ReadWhy::Demand, 0);
            }
            u.evicted(PageId(n), 0);
        }
        let mut kept = u.remember(9_000_000_000);
        kept.sort_by_key(|(order, m)| (*order, m.page));
        let kept: Vec<Memory> = kept.into_iter().map(|(_, m)| m).collect();
        let mut again = usage(3);
        (3..6).for_each(|n| again.entered(PageId(n), 0));
        again.recall(&kept, 20_000_000_000);
        for n in 0..6 {
            let (was, is) = (u.rates(PageId(n)), again.rates(PageId(n)));
            assert!((was.read_slow - is.read_slow).abs() <= was.read_slow / 100.0, "{n}: {was:?} {is:?}");
            assert_eq!(was.read_fast, is.read_fast);
            let (was, is) = (u.expansion(PageId(n)), again.expansion(PageId(n)));
            assert!((was - is).abs() <= was / 50.0, "{n}: {was} {is}");
        }
        assert_eq!(again.queued, 3, "what is on neither is in the out-queue");
        let nonsense = Memory { page: P, keyspace: KeyspaceId(0), words: [u32::MAX; 5] };
        again.recall(&[nonsense], 0);
        assert_eq!(again.rates(P), Rates::default());
    }

    /// Busy pages have hundreds of millions of uses; what others add to the sums of their group still counts.
    #[test]
    fn sums_count_on_whatever_they_are() {
        let mut u = usage(1 << 20);
        let mut use_pages = |pages: std::ops::Range<u64>, uses| {
            for n in pages {
                u.read(PageId(n), Place::Slow, ReadWhy::Demand, 0);
                u.used(PageId(n), KeyspaceId(1), uses, Place::Slow, 0);
                u.evicted(PageId(n), 0);
            }
        };
        use_pages(0..100, 30_000_000);
        use_pages(1000..201_000, 8);
        let counted = u.counted();
        let own: f64 = counted.pages.iter().map(|page| page.logical[1]).sum();
        assert_eq!((counted.groups[0].logical, own), ([0.0, 3e9 + 1.6e6], 3e9 + 1.6e6));
        assert_eq!(counted.groups[0].physical, [0.0, 200_100.0]);
    }

    /// A page has no more of anything than can be counted: its ratios stay.
    #[test]
    fn counts_of_a_page_are_halved_before_they_stop() {
        let mut u = usage(10);
        for _ in 0..10 {
            u.used(P, KeyspaceId(1), 1 << 30, Place::Slow, 0);
            u.used(P, KeyspaceId(1), 1 << 29, Place::Fast, 0);
        }
        let [fast, slow] = u.counted().pages[0].logical;
        assert!((1.4..3.0).contains(&(slow / fast)) && slow > 1e9, "{fast} {slow}");
        for _ in 0..1 << 24 {
            u.read(P, Place::Slow, ReadWhy::Demand, 0);
        }
        let before = u.rates(P).read_slow;
        u.read(P, Place::Slow, ReadWhy::Demand, 0);
        assert_eq!(u.rates(P).read_slow, before + 1.0);
    }

    #[test]
    fn counters_age() {
        let options = ManagerOptions { half_life: Some(10.0), outqueue: Some(4), ..ManagerOptions::default() };
        let mut u = Usage::new(&options);
        u.wrote(P, Place::Slow, 0);
        u.wrote(P, Place::Slow, 10_000_000_000);
        assert!((u.rates(P).write_slow - 1.5).abs() < 1e-6);
    }
}
