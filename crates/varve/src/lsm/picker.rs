//! Which segments are merged next: the shape `leveled`, as LevelDB has it.
//!
//! Level 0 has what was flushed; its segments overlap, so their number is limited. Of every level below the bytes are
//! limited, ten times as many as above. The level that is the most over its limit has a segment merged into the next
//! one, together with all there that it overlaps. Pure: a version goes in, a plan comes out.

use super::version::{bounds, pages};
use super::{LAST_LEVEL, Segment, Version};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A segment overlaps at most so many times its bytes in the level after the next, or it is not moved there as it is;
/// an output ends before it would.
pub(crate) const GRANDPARENTS: u64 = 10;
/// Fruitless looks at a segment: one for so many bytes, and at least [`LEAST_LOOKS`]. (Reading 16 KB more in a merge
/// costs about as much as a look.)
const BYTES_PER_LOOK: u64 = 16 << 10;
const LEAST_LOOKS: u64 = 100;
/// A flushed segment is placed at most this far down, where nothing overlaps it.
const DEEPEST_FLUSH: usize = 2;

/// Which segment of a level goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The one after the last that was merged.
    #[default]
    RoundRobin,
    /// The one that overlaps least in the next level, for its bytes.
    LeastOverlap,
}

/// Sizes of levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leveled {
    /// Segments of level 0 from which on they are merged.
    pub trigger: usize,
    /// Bytes of level 1.
    pub base_bytes: u64,
    /// So many times the bytes of the level above has each level below.
    pub multiplier: u64,
    /// Bytes of a segment that a merge writes.
    pub segment_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    pub choice: Choice,
    /// Level 0 goes first from twice its trigger on, however much others are over their limits; LevelDB always takes
    /// the level that is the most over its limit.
    pub level_0_first: bool,
    /// Level 0 and level 1 together may give up to so many times a usual merge's input; 1: no more than usual.
    pub more_input: u64,
}

impl Leveled {
    /// LevelDB's numbers, for segments of so many bytes: level 1 has five of them, at least 10 MB.
    pub(crate) fn new(segment_bytes: u64, page_bytes: u64) -> Leveled {
        let base_bytes = (5 * segment_bytes).max(10 << 20);
        Leveled {
            trigger: 4,
            base_bytes,
            multiplier: 10,
            segment_bytes,
            page_bytes,
            choice: Choice::default(),
            level_0_first: false,
            more_input: 1,
        }
    }

    /// Bytes that a level may have; level 0 is limited by its number of segments.
    pub(crate) fn limit(&self, level: usize) -> u64 {
        assert!(level > 0, "level 0 has no limit in bytes");
        self.base_bytes.saturating_mul(self.multiplier.saturating_pow(level as u32 - 1))
    }

    /// How much a level is over its limit; from 1 on it is to be merged. The last one has no limit.
    pub(crate) fn score(&self, version: &Version, level: usize) -> f64 {
        match level {
            0 => version.level(0).len() as f64 / self.trigger as f64,
            _ if level >= LAST_LEVEL.into() => 0.0,
            _ => (version.pages(level) * self.page_bytes) as f64 / self.limit(level) as f64,
        }
    }

    /// How urgent a merge is that brings a level below its limit; none: all are.
    pub(crate) fn urgency(&self, version: &Version) -> Option<Class> {
        let over = |level| self.score(version, level) >= 1.0;
        match self.score(version, 0) {
            score if score >= 2.0 => Some(Class::Stall),
            _ => (0..usize::from(LAST_LEVEL)).any(over).then_some(Class::Shape),
        }
    }

    /// Bytes that merges read and write at most for each byte that users write, about: on every level it is met by so
    /// many times its like, and once more by its own.
    pub(crate) fn most_per_byte(&self) -> f64 {
        2.0 * (self.multiplier as f64 + 2.0) * f64::from(LAST_LEVEL)
    }

    /// Bytes that merges will read and write until no level is over its limit, about: what is over a level's limit goes
    /// to the next with all that it overlaps there.
    pub(crate) fn debt(&self, version: &Version) -> u64 {
        let bytes = |level: usize| version.pages(level) * self.page_bytes;
        let (mut debt, mut over) = (0, 0);
        if version.level(0).len() >= self.trigger {
            over = bytes(0);
            debt += over + bytes(1);
        }
        for level in 1..usize::from(LAST_LEVEL) {
            let all = bytes(level) + over;
            over = all.saturating_sub(self.limit(level));
            let overlapped = if all == 0 { 0.0 } else { bytes(level + 1) as f64 / all.max(1) as f64 };
            debt += (over as f64 * (1.0 + overlapped.min(self.multiplier as f64 + 1.0))) as u64;
        }
        2 * debt
    }
}

/// Why segments are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A level is over its limit.
    Size,
    /// A segment was looked at too often in vain.
    Seek,
    /// Somebody asked for it.
    Manual,
}

/// How urgent a merge is: the greater, the sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// It tidies up.
    Tidy,
    /// It brings a level below its limit.
    Shape,
    /// Without it writers will have to wait: level 0 is at twice its trigger.
    Stall,
}

/// A merge to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub reason: Reason,
    /// Level that the inputs come from; the outputs go to the next.
    pub level: usize,
    /// Segments of the level, in the order that they have there.
    pub inputs: Vec<Arc<Segment>>,
    /// Segments of the next level that they overlap, in key order.
    pub next: Vec<Arc<Segment>>,
    /// Segments of the level after that which all of them overlap.
    pub grandparents: Vec<Arc<Segment>>,
}

impl Plan {
    /// Whether the only input can go to the next level as it is: nothing there overlaps it, and a later merge of it
    /// will not be too large.
    pub(crate) fn is_move(&self, shape: &Leveled) -> bool {
        let far = pages(&self.grandparents) * shape.page_bytes;
        // Who merges by hand wants to be rid of what is deleted.
        let tidy = |segment: &Arc<Segment>| segment.meta.deletions + segment.meta.ranges == 0;
        (self.reason != Reason::Manual || self.inputs.iter().all(tidy))
            && self.inputs.len() == 1
            && self.next.is_empty()
            && far <= GRANDPARENTS * shape.segment_bytes
    }

    /// Bytes that go in.
    pub(crate) fn input_bytes(&self, shape: &Leveled) -> u64 {
        (pages(&self.inputs) + pages(&self.next)) * shape.page_bytes
    }
}

/// The planner of a keyspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picker {
    /// Per level: the largest key of the segment that was merged last.
    after: BTreeMap<usize, Vec<u8>>,
    /// Fruitless looks that are left to segments, by number.
    looks: BTreeMap<u64, u64>,
    /// Segments that were looked at too often.
    worn: Vec<u64>,
}

impl Picker {
    /// What is most urgent.
    pub(crate) fn pick(&mut self, shape: &Leveled, version: &Version) -> Option<Plan> {
        let stalls = shape.urgency(version) == Some(Class::Stall);
        let most = |a: &usize, b: &usize| shape.score(version, *a).total_cmp(&shape.score(version, *b)).then(b.cmp(a));
        let first = stalls && shape.level_0_first;
        let level = if first { Some(0) } else { (0..usize::from(LAST_LEVEL)).max_by(most) };
        let level = level.filter(|level| shape.score(version, *level) >= 1.0);
        match level {
            Some(level) => {
                let seed = self.seed(shape, version, level)?;
                Some(self.plan(shape, version, Reason::Size, level, seed))
            }
            None => self.pick_worn(shape, version),
        }
    }

    /// The segment of a level that is merged next.
    fn seed(&self, shape: &Leveled, version: &Version, level: usize) -> Option<Arc<Segment>> {
        let segments = version.level(level);
        let after = self.after.get(&level).map_or(&[][..], |key| key);
        if level == 0 {
            return segments.last().cloned();
        }
        let cost = |segment: &Arc<Segment>| {
            let (from, to) = (&*segment.meta.smallest, &*segment.meta.largest);
            pages(&version.overlapping(level + 1, Some(from), Some(to))) as f64 / segment.meta.pages as f64
        };
        match shape.choice {
            Choice::RoundRobin => segments.iter().find(|s| *s.meta.largest > *after).or(segments.first()).cloned(),
            Choice::LeastOverlap => segments.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).cloned(),
        }
    }

    /// All that has to be merged along with a segment.
    fn plan(&mut self, shape: &Leveled, version: &Version, reason: Reason, level: usize, seed: Arc<Segment>) -> Plan {
        let mut inputs = vec![seed];
        if level == 0 {
            inputs = with_all_overlapping(version, inputs);
        } else if shape.more_input > 1 {
            inputs = more(version.level(level), &inputs[0], shape.more_input as usize);
        }
        let plan = complete(version, reason, level, inputs);
        debug_assert!(
            plan.inputs.iter().all(|input| version.level(level).iter().any(|s| s.id == input.id)),
            "the inputs of a merge are of its level"
        );
        if let Some((_, largest)) = bounds(&plan.inputs) {
            self.after.insert(level, largest.to_vec());
        }
        plan
    }

    fn pick_worn(&mut self, shape: &Leveled, version: &Version) -> Option<Plan> {
        while let Some(id) = self.worn.pop() {
            let found = (0..usize::from(LAST_LEVEL))
                .find_map(|level| Some((level, version.level(level).iter().find(|s| s.id == id)?.clone())));
            if let Some((level, segment)) = found {
                return Some(self.plan(shape, version, Reason::Seek, level, segment));
            }
        }
        None
    }

    /// A look at a segment found nothing, and went on to the next one. Whether that makes it worn: `pick` has a job.
    pub(crate) fn fruitless(&mut self, shape: &Leveled, segment: &Segment) -> bool {
        let all = (segment.meta.pages * shape.page_bytes / BYTES_PER_LOOK).max(LEAST_LOOKS);
        let left = self.looks.entry(segment.id).or_insert(all);
        *left = left.saturating_sub(1);
        if *left == 0 && !self.worn.contains(&segment.id) {
            self.worn.push(segment.id);
            *left = all;
            return true;
        }
        false
    }

    /// Forgets segments that are gone.
    pub(crate) fn installed(&mut self, version: &Version) {
        let there = |id: &u64| version.levels.iter().flatten().any(|segment| segment.id == *id);
        self.looks.retain(|id, _| there(id));
        self.worn.retain(there);
    }
}

/// Segments of a level below 0 that a manual merge takes at a time: the space of all of them is taken twice meanwhile.
const MANUAL: usize = 8;

/// A merge of what a level has between two keys (both included; none: no bound) into the next, if there is anything;
/// and the key from which on there is more, where that is too much for one.
pub(crate) fn manual(
    version: &Version,
    level: usize,
    from: Option<&[u8]>,
    to: Option<&[u8]>,
) -> Option<(Plan, Option<Vec<u8>>)> {
    let mut inputs = version.overlapping(level, from, to);
    if inputs.is_empty() || level >= LAST_LEVEL.into() {
        return None;
    }
    let mut more = None;
    if level == 0 {
        inputs = with_all_overlapping(version, inputs);
    } else if inputs.len() > MANUAL {
        more = Some(inputs[MANUAL].meta.smallest.to_vec());
        inputs.truncate(MANUAL);
    }
    Some((complete(version, Reason::Manual, level, inputs), more))
}

/// The level where a segment with keys from `smallest` to `largest` can be placed that is newer than all there is:
/// below level 0 only where nothing on the way overlaps it, and where a later merge of it will not be too large.
pub(crate) fn flush_level(shape: &Leveled, version: &Version, smallest: &[u8], largest: &[u8]) -> usize {
    let overlapping = |level: usize| version.overlapping(level, Some(smallest), Some(largest));
    let mut level = 0;
    while level < DEEPEST_FLUSH && overlapping(level).is_empty() && overlapping(level + 1).is_empty() {
        if pages(&overlapping(level + 2)) * shape.page_bytes > GRANDPARENTS * shape.segment_bytes {
            break;
        }
        level += 1;
    }
    level
}

/// The segments of level 0 that overlap these, or one that does, and so on; in the level's order, newest first.
fn with_all_overlapping(version: &Version, mut inputs: Vec<Arc<Segment>>) -> Vec<Arc<Segment>> {
    loop {
        let (from, to) = bounds(&inputs).expect("there is one");
        let more = version.overlapping(0, Some(from), Some(to));
        assert!(more.len() >= inputs.len(), "what was chosen overlaps what was chosen");
        if more.len() == inputs.len() {
            return more;
        }
        inputs = more;
    }
}

/// The segment and those after it, `most` in all.
fn more(level: &[Arc<Segment>], seed: &Arc<Segment>, most: usize) -> Vec<Arc<Segment>> {
    let at = level.iter().position(|segment| segment.id == seed.id).expect("it is of the level");
    level[at..(at + most).min(level.len())].to_vec()
}

fn complete(version: &Version, reason: Reason, level: usize, inputs: Vec<Arc<Segment>>) -> Plan {
    assert!(level < LAST_LEVEL.into(), "below the last level is nothing to merge with");
    let (from, to) = bounds(&inputs).expect("a merge has an input");
    let next = version.overlapping(level + 1, Some(from), Some(to));
    let all: Vec<Arc<Segment>> = inputs.iter().chain(&next).cloned().collect();
    let (from, to) = bounds(&all).expect("a merge has an input");
    let grandparents = version.overlapping(level + 2, Some(from), Some(to));
    Plan { reason, level, inputs, next, grandparents }
}

#[cfg(test)]
#[path = "tests_picker.rs"]
mod tests;
