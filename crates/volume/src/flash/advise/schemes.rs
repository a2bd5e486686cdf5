//! What is tried: for each keyspace records of the sizes that its updates have, then layouts of regions.
//!
//! A page that nobody wrote is taken for one of the keyspace that has the page before it: keyspaces that were loaded in
//! bulk lie in runs. Where there are more pages than [`LOOK_AT`], one of so many is looked at, and an array as much
//! smaller.

use super::replay::Region;
use super::{Ageing, FlashAdvice, Goal, LEAST_GAIN, MOST_RESERVED, Mode, Predicted, Question, Written, refuse};
use crate::flash::{RegionConfig, Scheme};
use crate::{KeyspaceId, VolumeError, page};
use std::collections::BTreeMap;
use varve_device::flash::{CellMode, Geometry};
use varve_ftl::GcPolicy;
use varve_rt::HashMap;

/// Pages of an array for each that holds data, at most; assumed.
const ROOM: f64 = 1.25;
/// Pages of the database that are looked at.
const LOOK_AT: u64 = 1 << 16;
/// Percentiles of the changed bytes that records are made for.
const PERCENTILES: [usize; 6] = [50, 60, 70, 80, 90, 97];
/// Percentiles that are told.
pub(super) const TOLD: [usize; 6] = [10, 25, 50, 75, 90, 99];
/// Passes over the writes at most.
const PASSES: u32 = 8;

/// Records of one kind, for one keyspace on a region of its own with its share of the spare pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// N and M.
    pub scheme: Scheme,
    /// How the cells are used.
    pub mode: CellMode,
    /// The share of a page that the records take.
    pub reserved: f64,
    /// What is expected.
    pub predicted: Predicted,
    /// The gain by the goal over pages written whole.
    pub gain: f64,
}

/// What there is to say of a keyspace.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyspaceAdvice {
    /// Its number.
    pub keyspace: KeyspaceId,
    /// Its name.
    pub name: String,
    /// Its pages, as far as that is known.
    pub pages: u64,
    /// Its page writes that count.
    pub writes: u64,
    /// Of these, the ones that could be appended if there were room: the rest are new pages.
    pub updates: u64,
    /// Bytes changed by an update at percentiles.
    pub changed: Vec<(usize, u32)>,
    /// Records that were tried, those with the greatest gain first.
    pub rows: Vec<Row>,
    /// Whether the first of them pays.
    pub pays: bool,
    /// Why.
    pub why: String,
}

/// A layout that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// In words.
    pub what: String,
    /// Its regions.
    pub regions: Vec<RegionConfig>,
    /// What is expected.
    pub predicted: Predicted,
}

/// The writes, and whose each page is.
struct Sample<'q> {
    q: &'q Question,
    writes: Vec<Written>,
    from: usize,
    one_of: u64,
    /// Of each page that is looked at: its keyspace's place in `keyspaces`, and its number among its pages.
    pages: HashMap<u64, (usize, u64)>,
    keyspaces: Vec<(KeyspaceId, u64)>,
    ageing: Ageing,
}

/// Whether a page is among one of `n` (Fibonacci hashing).
fn looked_at(page: u64, n: u64) -> bool {
    n == 1 || (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(n)
}

impl<'q> Sample<'q> {
    fn new(q: &'q Question) -> Result<Sample<'q>, VolumeError> {
        let reach = q.writes.iter().map(|w| w.page + 1).max().unwrap_or(0);
        let all = q.pages.max(reach);
        if all >= 1 << 40 {
            return Err(refuse(format!("a write to page {reach}: no database has so many")));
        }
        let one_of = all.div_ceil(LOOK_AT).max(1);
        let owner: HashMap<u64, KeyspaceId> = q.writes.iter().map(|w| (w.page, w.keyspace)).collect();
        let counted = |w: &&Written| looked_at(w.page, one_of);
        assert!(q.from < q.writes.len(), "some writes count");
        let from = q.writes[..q.from].iter().filter(counted).count();
        let writes: Vec<Written> = q.writes.iter().filter(counted).copied().collect();
        if writes.len() <= from {
            return Err(refuse("too few pages were written to say anything: record for longer"));
        }
        let mut keyspaces: Vec<(KeyspaceId, u64)> = Vec::new();
        let mut place = BTreeMap::new();
        let lowest = q.writes.iter().min_by_key(|w| w.page).expect("there is a write");
        let mut last = lowest.keyspace;
        let mut pages = HashMap::default();
        for page in 0..all {
            last = *owner.get(&page).unwrap_or(&last);
            if looked_at(page, one_of) {
                let at = *place.entry(last).or_insert_with(|| {
                    keyspaces.push((last, 0));
                    keyspaces.len() - 1
                });
                pages.insert(page, (at, keyspaces[at].1));
                keyspaces[at].1 += 1;
            }
        }
        let again = (2 * pages.len()).div_ceil(writes.len() - from) as u32;
        let ageing = q.ageing.unwrap_or(Ageing { random: 1.0, passes: again.clamp(1, PASSES) });
        Ok(Sample { q, writes, from, one_of, pages, keyspaces, ageing })
    }

    /// Pages of the flash that a page of the database takes.
    fn each(&self) -> u64 {
        u64::from(self.q.page_size / self.q.array.geometry.page_bytes)
    }

    /// Blocks of the array as far as they are looked at. Unless the question says how the flash was aged, no more than
    /// [`ROOM`] allows: a database grows, and on an array that is nearly empty nothing is ever collected.
    fn blocks(&self) -> f64 {
        let there = f64::from(self.q.array.geometry.blocks()) / self.one_of as f64;
        let slots = self.q.array.modes[0].mode.used_pages(self.q.array.geometry.pages_per_block).len();
        let data = (self.pages.len() as u64 * self.each()) as f64 / slots as f64;
        // The map and open blocks take some.
        let enough = data * ROOM + 16.0 + 2.0 * f64::from(self.q.array.geometry.all_planes());
        if self.q.ageing.is_some() { there } else { there.min(enough) }
    }

    /// So many blocks of the array, as chips if they are whole ones.
    fn shape(&self, blocks: f64, chips: u32) -> Geometry {
        let g = self.q.array.geometry;
        let planes = chips * g.planes;
        let per_plane = (blocks / f64::from(planes)).round() as u32;
        let (planes, per_plane) = if per_plane < 8 { (1, (blocks.round() as u32).max(1)) } else { (planes, per_plane) };
        Geometry { channels: 1, chips_per_channel: planes, planes: 1, blocks_per_plane: per_plane, ..g }
    }

    /// Replays the writes of some keyspaces on a region; none: they do not fit.
    fn predict(&self, of: &[usize], (mode, scheme): (&Mode, Scheme), (blocks, chips): (f64, u32)) -> Option<Predicted> {
        let mut firsts: BTreeMap<usize, u64> = BTreeMap::new();
        let mut used = 0;
        for at in of {
            firsts.insert(*at, used);
            used += self.keyspaces[*at].1;
        }
        assert!(used <= self.pages.len() as u64, "a keyspace's pages are pages of the database");
        let used = used * self.each();
        if used == 0 {
            return Some(Predicted { life: f64::INFINITY, ..Predicted::default() });
        }
        // Records leave less of a page for rows: the same rows on more pages, or on as much less flash.
        let room = f64::from(self.q.array.geometry.page_bytes) - page::HEADER as f64;
        let blocks_for_rows = blocks * (1.0 - scheme.area() as f64 / room);
        let geometry = self.shape(blocks_for_rows, chips);
        let region = Region { geometry, mode: mode.mode, scheme, gc: GcPolicy::Greedy, merge: true, used };
        let place = |page: u64| {
            let (at, number) = *self.pages.get(&page)?;
            Some((firsts.get(&at)? + number) * self.each())
        };
        let (writes, from) = (self.writes.iter(), self.from);
        let done = region.replay(writes, from, place, self.ageing).ok()?;
        Some(Predicted::of(&done, mode, scheme, blocks * self.one_of as f64))
    }

    /// Sizes of the updates of a keyspace, in order.
    fn changed(&self, keyspace: KeyspaceId) -> Vec<u32> {
        let counts = self.writes[self.from..].iter().filter(|w| w.keyspace == keyspace);
        let mut sizes: Vec<u32> = counts.filter_map(|w| w.changed).collect();
        sizes.sort_unstable();
        sizes
    }

    /// Records that are worth a try for updates of these sizes.
    fn schemes(&self, sizes: &[u32]) -> Vec<Scheme> {
        let bytes = f64::from(self.q.array.geometry.page_bytes);
        let mut found = Vec::new();
        if self.each() != 1 {
            return found;
        }
        for percent in PERCENTILES {
            let Some(changed) = percentile(sizes, percent) else { continue };
            let m = u64::from(changed.max(1)) * 3;
            for n in 1..self.q.array.nop {
                let fits = (u64::from(n) * m) as f64 <= bytes * MOST_RESERVED;
                let scheme = Scheme { n, m: m.min(u64::from(u16::MAX)) as u16 };
                let spare = scheme.spare_bytes() <= self.q.array.geometry.spare_bytes as usize;
                if fits && spare && !found.contains(&scheme) {
                    found.push(scheme);
                }
            }
        }
        found
    }

    fn appending(&self) -> impl Iterator<Item = &Mode> {
        let pages = self.q.array.geometry.pages_per_block;
        self.q.array.modes.iter().filter(move |mode| (0..pages.min(4)).any(|page| mode.mode.appends(page, pages)))
    }

    fn keyspace(&self, at: usize) -> KeyspaceAdvice {
        let (keyspace, pages) = self.keyspaces[at];
        let sizes = self.changed(keyspace);
        let writes = self.writes[self.from..].iter().filter(|w| w.keyspace == keyspace).count() as u64;
        let all: u64 = self.keyspaces.iter().map(|(_, pages)| pages).sum();
        let blocks = self.blocks() * pages as f64 / all as f64;
        let goal = self.q.goal;
        let first = &self.q.array.modes[0];
        let predict = |mode: &Mode, scheme| self.predict(&[at], (mode, scheme), (blocks, 1));
        let plain = if writes == 0 { None } else { predict(first, Scheme::default()) };
        let mut rows = Vec::new();
        if let Some(plain) = plain {
            for mode in self.appending() {
                for scheme in self.schemes(&sizes) {
                    let Some(predicted) = predict(mode, scheme) else { continue };
                    let reserved = scheme.area() as f64 / f64::from(self.q.page_size);
                    let gain = predicted.score(goal) / plain.score(goal) - 1.0;
                    rows.push(Row { scheme, mode: mode.mode, reserved, predicted, gain });
                }
            }
        }
        assert!(rows.iter().all(|row| row.gain.is_finite()), "a gain is a number");
        rows.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        let (pays, why) = self.verdict((writes, plain.is_some()), &sizes, &rows);
        let name = self.q.names.get(&keyspace).cloned().unwrap_or_else(|| format!("({})", keyspace.0));
        let changed = TOLD.iter().filter_map(|p| Some((*p, percentile(&sizes, *p)?))).collect();
        let (pages, updates) = (pages * self.one_of, sizes.len() as u64);
        KeyspaceAdvice { keyspace, name, pages, writes, updates, changed, rows, pays, why }
    }

    /// Whether records pay for a keyspace, and why.
    fn verdict(&self, (writes, fits): (u64, bool), sizes: &[u32], rows: &[Row]) -> (bool, String) {
        let median = percentile(sizes, 50).unwrap_or(0);
        let most = (f64::from(self.q.array.geometry.page_bytes) * MOST_RESERVED / 3.0).floor();
        match rows.first() {
            _ if writes == 0 => (false, "nothing of it was written".into()),
            _ if sizes.is_empty() => (false, "its pages are written new, and never again with few changes".into()),
            _ if !fits => (false, "on its share of the array it would not fit".into()),
            None if self.each() != 1 => {
                (false, format!("a page of {} bytes is several of the flash's", self.q.page_size))
            }
            None if self.q.array.nop < 2 || self.appending().next().is_none() => {
                (false, "this flash takes no second program of a page".into())
            }
            None => {
                (false, format!("half of its updates change {median} bytes or more; a record takes {most:.0} at most"))
            }
            Some(row) if row.gain >= LEAST_GAIN => (
                true,
                format!(
                    "{:.0} % of its writes are appended with {}; half of its updates change {median} bytes or less",
                    row.predicted.append_share * 100.0,
                    row.scheme
                ),
            ),
            Some(row) => (
                false,
                format!(
                    "the best, {}, appends {:.0} % of its writes and brings {:.1} %",
                    row.scheme,
                    row.predicted.append_share * 100.0,
                    row.gain * 100.0
                ),
            ),
        }
    }
}

fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    assert!(percent <= 100, "a percentile is of a hundred");
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(sorted.len() * percent / 100).min(last)])
}

pub(super) fn advise(q: &Question) -> Result<FlashAdvice, VolumeError> {
    let sample = Sample::new(q)?;
    let all: Vec<usize> = (0..sample.keyspaces.len()).collect();
    let (chips, blocks) = (q.array.geometry.chips(), sample.blocks());
    let first = &q.array.modes[0];
    let plain = sample.predict(&all, (first, Scheme::default()), (blocks, chips)).ok_or_else(|| {
        let pages = sample.pages.len() as u64 * sample.one_of * sample.each();
        let there = u64::from(q.array.geometry.blocks()) * u64::from(q.array.geometry.pages_per_block);
        refuse(format!(
            "the {pages} pages of the flash that the database takes do not fit an array of {there} with any to spare: \
             choose a larger one"
        ))
    })?;
    let keyspaces: Vec<KeyspaceAdvice> = all.iter().map(|at| sample.keyspace(*at)).collect();
    let mut layouts = sample.layouts(&keyspaces);
    layouts.sort_by(|a, b| b.predicted.score(q.goal).total_cmp(&a.predicted.score(q.goal)));
    let gain = layouts.first().map_or(0.0, |best| best.predicted.score(q.goal) / plain.score(q.goal) - 1.0);
    let pays = gain >= LEAST_GAIN;
    let why = match layouts.first() {
        None => "no keyspace gains by records".to_string(),
        Some(best) => format!(
            "{:.0} % of the page writes become appends, erases per write go from {:.4} to {:.4}",
            best.predicted.append_share * 100.0,
            plain.erases as f64 / plain.writes.max(1) as f64,
            best.predicted.erases as f64 / best.predicted.writes.max(1) as f64
        ),
    };
    let mut keyspaces = keyspaces;
    keyspaces.sort_by_key(|keyspace| std::cmp::Reverse(keyspace.writes));
    Ok(FlashAdvice { goal: q.goal, keyspaces, plain, layouts, pays, why, one_of: sample.one_of })
}

/// Schemes of layouts that are tried at most.
const MOST_SCHEMES: usize = 6;

impl Sample<'_> {
    /// Layouts with records: all in one region, or those that gain in one of their own.
    fn layouts(&self, keyspaces: &[KeyspaceAdvice]) -> Vec<Candidate> {
        // What the engine keeps for itself has no name that a layout could give.
        let of_user = |at: &usize| !keyspaces[*at].name.starts_with('(');
        let (paying, others): (Vec<usize>, Vec<usize>) =
            (0..keyspaces.len()).partition(|at| keyspaces[*at].pays && of_user(at));
        let mut tried: Vec<(Scheme, CellMode, u64)> = Vec::new();
        for at in &paying {
            for row in keyspaces[*at].rows.iter().take(3) {
                match tried.iter_mut().find(|(scheme, mode, _)| (*scheme, *mode) == (row.scheme, row.mode)) {
                    Some(found) => found.2 += keyspaces[*at].writes,
                    None => tried.push((row.scheme, row.mode, keyspaces[*at].writes)),
                }
            }
        }
        tried.sort_by_key(|(.., writes)| std::cmp::Reverse(*writes));
        let mut found = Vec::new();
        for (scheme, mode, _) in tried.into_iter().take(MOST_SCHEMES) {
            let mode = self.q.array.modes.iter().find(|of| of.mode == mode).expect("a mode of the array");
            found.extend(self.together(scheme, mode));
            if !others.is_empty() {
                found.extend(self.apart(keyspaces, (&paying, &others), scheme, mode));
            }
        }
        found
    }

    fn region(
        &self,
        name: &str,
        chips: std::ops::Range<u32>,
        (scheme, mode): (Scheme, &Mode),
        used: u64,
    ) -> RegionConfig {
        let per_chip = self.q.array.geometry.blocks_per_chip();
        let slots = mode.mode.used_pages(self.q.array.geometry.pages_per_block).len() as u64;
        let there = u64::from(chips.end - chips.start) * u64::from(per_chip) * slots;
        let spare = 1.0 - (used * self.one_of * self.each()) as f64 / there as f64;
        // Half of what is left is for growth; the rest is never given out. To the thousandth, as a person would.
        let spare_factor = ((spare / 2.0).clamp(0.02, 0.5) * 1000.0).round() / 1000.0;
        let (n, m, mode) = (scheme.n, if scheme.n == 0 { 0 } else { scheme.m }, mode.mode);
        RegionConfig { mode, n, m, spare_factor, name: name.into(), ..RegionConfig::of(chips) }
    }

    /// Everything in one region.
    fn together(&self, scheme: Scheme, mode: &Mode) -> Option<Candidate> {
        let all: Vec<usize> = (0..self.keyspaces.len()).collect();
        let chips = self.q.array.geometry.chips();
        let predicted = self.predict(&all, (mode, scheme), (self.blocks(), chips))?;
        let what = format!("all pages in one region, {scheme}, {} cells", mode.mode);
        let regions = vec![self.region("all", 0..chips, (scheme, mode), self.pages.len() as u64)];
        Some(Candidate { what, regions, predicted })
    }

    /// Those that gain in a region with records, the others in one without. Each has room for its data, and spare
    /// pages as the root of data times writes (Desnoyers 2012: so the sum of what collection moves is least).
    fn apart(
        &self,
        keyspaces: &[KeyspaceAdvice],
        (paying, others): (&[usize], &[usize]),
        scheme: Scheme,
        mode: &Mode,
    ) -> Option<Candidate> {
        let chips = self.q.array.geometry.chips();
        let slots = |mode: &Mode| mode.mode.used_pages(self.q.array.geometry.pages_per_block).len() as f64;
        let first = &self.q.array.modes[0];
        let part = |of: &[usize], mode: &Mode| {
            let pages: u64 = of.iter().map(|at| self.keyspaces[*at].1).sum();
            let writes: u64 = of.iter().map(|at| keyspaces[*at].writes).sum();
            let data = (pages * self.each()) as f64 / slots(mode);
            (data, (data * writes as f64).sqrt(), pages)
        };
        let (a, b) = (part(paying, mode), part(others, first));
        let spare = self.blocks() - a.0 - b.0;
        if chips < 2 || spare <= 0.0 {
            return None;
        }
        let per_chip = self.blocks() / f64::from(chips);
        let mine = (a.0 + spare * a.1 / (a.1 + b.1).max(1e-9)) / per_chip;
        let mine = (mine.round() as u32).clamp(1, chips - 1);
        assert!(spare > 0.0 && mine < chips, "both regions have chips");
        let blocks = |chips: u32| (f64::from(chips) * per_chip, chips);
        let one = self.predict(paying, (mode, scheme), blocks(mine))?;
        let two = self.predict(others, (first, Scheme::default()), blocks(chips - mine))?;
        let mut records = self.region("appends", 0..mine, (scheme, mode), a.2);
        records.keyspaces = paying.iter().map(|at| keyspaces[*at].name.clone()).collect();
        let rest = self.region("rest", mine..chips, (Scheme::default(), first), b.2);
        let what = format!(
            "{} in a region of {mine} chips, {scheme}, {} cells; the others on {} chips, written whole",
            records.keyspaces.join(", "),
            mode.mode,
            chips - mine
        );
        Some(Candidate { what, regions: vec![records, rest], predicted: one.beside(&two) })
    }
}

impl Goal {
    /// What its figure is.
    pub fn unit(self) -> &'static str {
        match self {
            Goal::Life => "times the page writes until the flash is worn out",
            Goal::Throughput => "times the page writes in the time that the chips work",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Array, advise};
    use super::*;
    use varve_rt::Rng;

    fn array() -> Array {
        let geometry = Geometry {
            channels: 2,
            chips_per_channel: 2,
            planes: 1,
            blocks_per_plane: 32,
            pages_per_block: 32,
            page_bytes: 4096,
            spare_bytes: 128,
        };
        let slc = Mode {
            mode: CellMode::Slc,
            endurance: 1e5,
            read: 125e3,
            program: 300e3,
            append: (200e3, 24.0),
            erase: 1.5e6,
        };
        Array { geometry, nop: 4, modes: vec![slc] }
    }

    /// Three keyspaces: updates of few bytes, updates of many, and new pages only.
    fn question() -> Question {
        let mut rng = Rng::from_seed(1);
        let id = KeyspaceId;
        let mut fresh = 2600;
        let mut write = |n: u64| match n % 4 {
            0 | 1 => Written { page: rng.below(1000), keyspace: id(1), changed: Some(8 + rng.below(8) as u32) },
            2 => Written { page: 1000 + rng.below(1000), keyspace: id(2), changed: Some(200 + rng.below(90) as u32) },
            _ => {
                fresh = if fresh == 2599 { 2000 } else { fresh + 1 };
                fresh = 2000 + (fresh - 2000) % 600;
                Written { page: fresh, keyspace: id(3), changed: None }
            }
        };
        let writes = (0..8000).map(&mut write).collect();
        let names = [(1, "stock"), (2, "blobs"), (3, "history")].map(|(n, name)| (id(n), name.to_string())).into();
        let (goal, ageing) = (Goal::Life, Some(Ageing { random: 0.5, passes: 1 }));
        Question { writes, from: 2000, names, pages: 2600, page_size: 4096, array: array(), goal, ageing }
    }

    #[test]
    fn small_updates_pay_and_large_ones_and_new_pages_do_not() {
        let advice = advise(&question()).unwrap();
        let of = |name: &str| advice.keyspaces.iter().find(|k| k.name == name).unwrap();
        assert!(of("stock").pays && of("stock").rows[0].predicted.append_share > 0.6, "{:?}", of("stock"));
        assert!(!of("blobs").pays && of("blobs").why.contains("136 at most"), "{}", of("blobs").why);
        assert!(!of("history").pays && of("history").why.contains("written new"), "{}", of("history").why);
        let best = &advice.layouts[0];
        assert!(advice.pays && advice.gain() > 0.2, "{:?}", best);
        // The regions are those of an array, and have all of its chips.
        let layout = crate::flash::FlashLayout { regions: best.regions.clone() };
        layout.validate(&array().geometry, array().nop).unwrap();
        assert_eq!(best.regions.iter().map(|r| r.chips.len()).sum::<usize>(), 4);
        let again = advise(&question()).unwrap();
        assert_eq!(again, advice, "advice is a function of the question");
    }

    #[test]
    fn what_cannot_be_advised_says_why() {
        let said = |change: &dyn Fn(&mut Question)| {
            let mut q = question();
            change(&mut q);
            advise(&q).map(|advice| advice.pays).map_err(|e| e.to_string())
        };
        assert!(said(&|q| q.pages = 90_000).unwrap_err().contains("do not fit an array of 4096"));
        assert!(said(&|q| q.writes.clear()).unwrap_err().contains("no page was written"));
        assert!(said(&|q| q.page_size = 2048).unwrap_err().contains("pages of 2048 bytes"));
        assert_eq!(said(&|q| q.array.nop = 1), Ok(false), "a page that is programmed once takes no records");
        assert_eq!(said(&|q| q.writes.iter_mut().for_each(|w| w.changed = None)), Ok(false));
    }
}
