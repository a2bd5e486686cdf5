//! Every executor against the same inputs: the same rows, whatever the moments, levels and range deletions are.

use super::*;
use crate::Error;
use crate::lsm::merge::Retention;
use crate::lsm::part::Codec;
use crate::lsm::ranges::{Fragments, RangeDelete};
use crate::lsm::samples::{Memory, Row, entries};
use crate::lsm::segment::{SegmentCursor, SegmentWriter};
use crate::lsm::{Entries, order};
use std::sync::atomic::{AtomicU64, Ordering};
use varve_rt::Rng;

const USABLE: usize = 992;

fn options(codec: Codec) -> SegmentOptions {
    SegmentOptions { id: 1, block_bytes: 992, codec, bits_per_key: 10, prefix: 0 }
}

fn input(rows: &[Row], ranges: &Fragments, id: u64) -> Input {
    let mut memory = Memory::new(USABLE);
    let mut writer = SegmentWriter::new(SegmentOptions { id, ..options(Codec::Lz4) }, USABLE);
    rows.iter().for_each(|row| writer.add(&row.entry(), &mut memory).expect("memory"));
    writer.add_ranges(ranges);
    let meta = writer.finish(&mut memory).expect("memory");
    let reader = SegmentReader::open(&memory, id, meta.pages).expect("sound");
    Input { reader: Arc::new(reader), source: Arc::new(memory) }
}

/// Outputs in memory; fails at the `fails`-th page.
struct Kept {
    now: Memory,
    done: Vec<(u64, SegmentMeta, Memory)>,
    /// Of each output, the key with which the one after it begins.
    next: Vec<Option<Vec<u8>>>,
    pages: u64,
    fails: u64,
}

impl Kept {
    fn new(fails: u64) -> Kept {
        Kept { now: Memory::new(USABLE), done: Vec::new(), next: Vec::new(), pages: 0, fails }
    }

    fn rows(self, ranges: &mut Vec<RangeDelete>) -> Vec<Row> {
        let mut rows = Vec::new();
        for (id, meta, memory) in self.done {
            let reader = SegmentReader::open(&memory, id, meta.pages).expect("sound");
            reader.check(&memory).expect("sound");
            ranges.extend(reader.ranges().deletes());
            let mut cursor = SegmentCursor::new(Arc::new(reader), Arc::new(memory));
            cursor.first().expect("sound");
            while let Some(entry) = cursor.entry() {
                rows.push(Row::of(entry));
                cursor.next().expect("sound");
            }
        }
        rows
    }
}

impl PageSink for Kept {
    fn usable(&self) -> usize {
        USABLE
    }

    fn page(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.pages += 1;
        if self.pages == self.fails {
            Err(Error::NoSpace("the test's disk".into()))
        } else {
            PageSink::page(&mut self.now, fill)
        }
    }
}

impl Outputs for Kept {
    fn done(&mut self, id: u64, meta: SegmentMeta, next: Option<Vec<u8>>) -> Result<()> {
        self.next.push(next);
        assert_eq!(meta.pages, self.now.pages.len() as u64, "all its pages are there");
        self.done.push((id, meta, std::mem::replace(&mut self.now, Memory::new(USABLE))));
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        Ok(())
    }
}

struct Case {
    rows: Vec<Row>,
    ranges: Fragments,
    runs: Vec<Vec<Input>>,
    moments: Vec<Lsn>,
}

fn case(rng: &mut Rng, n: usize) -> Case {
    let rows = entries(rng, n);
    let mut parts = vec![Vec::new(); 1 + rng.below(4) as usize];
    let count = parts.len() as u64;
    rows.iter().for_each(|row| parts[rng.below(count) as usize].push(row.clone()));
    parts.retain(|part| !part.is_empty());
    let draw = |rng: &mut Rng| {
        let start = rng.below(n as u64);
        let key = |n: u64| format!("key/{n:04}").into_bytes();
        RangeDelete { start: key(start), end: key(start + 1 + rng.below(40)), commit: rng.below(50) }
    };
    let ranges: Vec<_> = (0..rng.below(3)).map(|_| draw(rng)).collect();
    let mut runs = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        // A run is one segment, or two that are disjoint.
        let half = part[part.len() / 2].key.clone();
        let at = part.partition_point(|row| row.key < half);
        let own = Fragments::new(ranges.iter().filter(|r| r.commit % parts.len() as u64 == i as u64).cloned());
        let whole = at == 0 || !own.is_empty() || rng.one_in(2);
        let none = Fragments::default();
        runs.push(if whole {
            vec![input(part, &own, 10 + i as u64)]
        } else {
            vec![input(&part[..at], &none, 20 + i as u64), input(&part[at..], &none, 30 + i as u64)]
        });
    }
    let mut moments: Vec<Lsn> = (0..rng.below(3)).map(|_| rng.below(50)).collect();
    moments.sort_unstable();
    Case { rows, ranges: Fragments::new(ranges), runs, moments }
}

fn task(case: &Case, segment_bytes: u64, codec: Codec) -> Arc<Task> {
    let id = AtomicU64::new(100);
    Arc::new(Task {
        runs: case.runs.clone(),
        moments: case.moments.clone(),
        below: Below::default(),
        grandparents: Vec::new(),
        most_overlap: u64::MAX,
        options: options(codec),
        next_id: Arc::new(move || id.fetch_add(1, Ordering::Relaxed)),
        segment_bytes,
        usable: USABLE,
        large: 100,
        range: Span::default(),
    })
}

#[test]
fn every_executor_leaves_the_same_rows() {
    let mut rng = Rng::from_seed(12);
    let mut segments = 0;
    for round in 0..24 {
        let case = case(&mut rng, [30, 400, 1200][round % 3]);
        let mut retention = Retention::new(case.moments.clone(), Below::default(), case.ranges.clone());
        let expected: Vec<Row> =
            case.rows.iter().filter(|row| retention.keeps(&row.entry()).expect("rows ascend")).cloned().collect();
        for name in NAMES {
            let executor = by_name(name, 128 << 10).expect("it is listed");
            assert_eq!(executor.name(), *name);
            let mut kept = Kept::new(0);
            let codec = Codec::ALL[rng.below(3) as usize].1;
            executor.run(task(&case, 6000, codec), &mut kept).expect("memory");
            segments += kept.done.len();
            assert!(kept.done.windows(2).all(|two| {
                let (one, other) = (&two[0].1, &two[1].1);
                one.largest < other.smallest || one.open_end && one.largest == other.smallest
            }));
            let mut ranges = Vec::new();
            assert_eq!(kept.rows(&mut ranges), expected, "{name}");
            assert_eq!(Fragments::new(ranges), retention.ranges(), "{name}");
        }
    }
    assert!(segments > 60, "{segments}");
    assert!(by_name("cokv", 0).is_none());
}

/// A task over a range; its outputs have numbers from `first` on.
fn part(case: &Case, range: Span, first: u64) -> Arc<Task> {
    let id = AtomicU64::new(first);
    let mut task = task(case, 6000, Codec::None);
    let changed = Arc::get_mut(&mut task).expect("ours");
    changed.next_id = Arc::new(move || id.fetch_add(1, Ordering::Relaxed));
    changed.range = range;
    task
}

#[test]
fn both_sides_of_any_cut_leave_what_one_merge_does() {
    let mut rng = Rng::from_seed(14);
    let mut both = 0;
    for round in 0..40 {
        let case = case(&mut rng, [30, 200, 600][round % 3]);
        let mut retention = Retention::new(case.moments.clone(), Below::default(), case.ranges.clone());
        let expected: Vec<Row> =
            case.rows.iter().filter(|row| retention.keeps(&row.entry()).expect("rows ascend")).cloned().collect();
        let large = case.rows.iter().filter(|row| row.value.len() > 100).count() as u64;
        // At keys that there are, between them, and past both ends.
        let cut = match round % 4 {
            0 => format!("key/{:04}/", rng.below(600)).into_bytes(),
            1 => [&b"a"[..], b"z"][rng.below(2) as usize].to_vec(),
            _ => case.rows[rng.below(case.rows.len() as u64) as usize].key.clone(),
        };
        let sides = [Span { from: None, to: Some(cut.clone()) }, Span { from: Some(cut.clone()), to: None }];
        let (mut rows, mut ranges, mut ids, mut tally) = (Vec::new(), Vec::new(), Vec::new(), Tally::default());
        let mut used = 0;
        for (side, range) in sides.into_iter().enumerate() {
            let mut kept = Kept::new(0);
            let executor = by_name(NAMES[(side + round) % 2], 64 << 10).expect("it is listed");
            let one = executor.run(part(&case, range.clone(), 100 + 50 * side as u64), &mut kept).expect("memory");
            (tally.pairs, tally.large) = (tally.pairs + one.pairs, tally.large + one.large);
            assert_eq!(one.written, kept.pages * USABLE as u64);
            for (id, meta, _) in &kept.done {
                ids.push(*id);
                let past = if meta.open_end { *meta.largest > *cut } else { *meta.largest >= *cut };
                assert!(side == 1 || !past, "the first side has nothing of the cut");
                assert!(side == 0 || *meta.smallest >= *cut, "nor the second of what is before it");
            }
            used += usize::from(!kept.done.is_empty());
            rows.extend(kept.rows(&mut ranges));
        }
        assert_eq!(rows, expected, "cut at {}", String::from_utf8_lossy(&cut));
        assert_eq!(Fragments::new(ranges), retention.ranges());
        assert_eq!((tally.pairs, tally.large), (case.rows.len() as u64, large), "each pair went by once");
        assert!(ids.windows(2).all(|two| two[0] < two[1]), "numbers are disjoint");
        both += usize::from(used == 2);
    }
    assert!(both > 10, "{both} merges had outputs on both sides");
}

#[test]
fn a_merge_that_was_cut_off_is_taken_up_after_any_of_its_outputs() {
    let mut rng = Rng::from_seed(15);
    let mut points = 0;
    for round in 0..12 {
        let case = case(&mut rng, [400, 1200][round % 2]);
        let small = |range: Span, first: u64| {
            let mut task = part(&case, range, first);
            Arc::get_mut(&mut task).expect("ours").segment_bytes = 2000;
            task
        };
        let mut retention = Retention::new(case.moments.clone(), Below::default(), case.ranges.clone());
        let expected: Vec<Row> =
            case.rows.iter().filter(|row| retention.keeps(&row.entry()).expect("rows ascend")).cloned().collect();
        let executor = by_name(NAMES[round % 2], 64 << 10).expect("it is listed");
        let whole = || {
            let mut kept = Kept::new(0);
            executor.run(small(Span::default(), 100), &mut kept).expect("memory");
            kept
        };
        let outputs = whole().next;
        assert!(outputs.last().is_none_or(Option::is_none), "nothing follows the last output");
        for (n, next) in outputs.iter().enumerate().filter(|(n, _)| n + 1 < outputs.len()) {
            assert!(next.is_some(), "something follows output {n}");
            let (mut first, mut rest) = (whole(), Kept::new(0));
            first.done.truncate(n + 1);
            executor.run(small(Span { from: next.clone(), to: None }, 500), &mut rest).expect("memory");
            first.done.append(&mut rest.done);
            // No key is in two outputs, and none in no output.
            assert!(first.done.windows(2).all(|two| {
                let (one, other) = (&two[0].1, &two[1].1);
                one.largest < other.smallest || one.open_end && one.largest <= other.smallest
            }));
            let mut ranges = Vec::new();
            assert_eq!(first.rows(&mut ranges), expected, "from {n} on");
            assert_eq!(Fragments::new(ranges), retention.ranges());
            points += 1;
        }
    }
    assert!(points > 20, "{points}");
}

#[test]
fn a_side_reads_the_blocks_of_its_range_alone() {
    let rows: Vec<Row> = (0..2000u64)
        .map(|n| {
            let key = format!("key/{n:04}").into_bytes();
            Row { key, commit: 1, kind: crate::lsm::EntryKind::Put, value: vec![7; 30] }
        })
        .collect();
    let none = Fragments::default();
    let runs = vec![rows.chunks(500).enumerate().map(|(i, part)| input(part, &none, 5 + i as u64)).collect()];
    let case = Case { ranges: none, runs, moments: Vec::new(), rows };
    let of = |range: Span| Sequential.run(part(&case, range, 100), &mut Kept::new(0)).expect("memory");
    let all = of(Span::default());
    let quarter = of(Span { from: Some(b"key/1000".to_vec()), to: Some(b"key/1500".to_vec()) });
    assert_eq!((all.pairs, quarter.pairs), (2000, 500));
    assert!(4 * quarter.read < all.read + all.read / 10, "{} of {}", quarter.read, all.read);
    assert_eq!(of(Span { from: Some(b"z".to_vec()), to: None }), Tally::default());
}

#[test]
fn what_fails_fails_the_merge_and_nobody_hangs() {
    let mut rng = Rng::from_seed(13);
    let mut case = case(&mut rng, 1500);
    case.ranges = Fragments::default();
    for name in NAMES {
        let executor = by_name(name, 64 << 10).expect("it is listed");
        for fails in [1, 20] {
            let error = executor.run(task(&case, 6000, Codec::None), &mut Kept::new(fails)).expect_err("a full disk");
            assert!(matches!(error, Error::NoSpace(_)), "{name}: {error}");
        }
    }
    // A damaged block of an input is named.
    let damaged = &case.runs[0][0];
    let mut memory = Memory::new(USABLE);
    for page in 0..damaged.reader.footer().meta.pages {
        damaged.source.page(page, &mut |bytes| memory.pages.push(bytes.to_vec())).expect("memory");
    }
    memory.pages[3][500] ^= 4;
    case.runs[0][0] = Input { reader: damaged.reader.clone(), source: Arc::new(memory) };
    for name in NAMES {
        let executor = by_name(name, 64 << 10).expect("it is listed");
        let error = executor.run(task(&case, 6000, Codec::None), &mut Kept::new(0)).expect_err("damage").to_string();
        assert!(error.contains("page 3") || error.contains("page 2"), "{name}: {error}");
        assert!(error.contains("data block of segment"), "{name}: {error}");
    }
}

/// Changes bytes so, and the four behind them in the one way in which every CRC-32C over all of them stays.
fn change(bytes: &mut [u8], by: &[u8]) {
    let balance = (!crc32c::crc32c_append(!0, by)).to_le_bytes();
    bytes.iter_mut().zip(by.iter().chain(&balance)).for_each(|(byte, by)| *byte ^= by);
}

/// Blocks whose checksums are right and whose entries are not in order, or not of a kind that a block has.
#[test]
fn entries_out_of_order_are_damage_of_their_segment() {
    let row = |n: u64| {
        let (key, value) = (format!("key/{n:04}").into_bytes(), format!("value of {n:04}").into_bytes());
        Row { key, commit: 5, kind: crate::lsm::EntryKind::Put, value }
    };
    let rows: Vec<Row> = (1..300).map(row).collect();
    let mut memory = Memory::new(USABLE);
    let mut writer = SegmentWriter::new(options(Codec::None), USABLE);
    rows.iter().for_each(|row| writer.add(&row.entry(), &mut memory).expect("memory"));
    let meta = writer.finish(&mut memory).expect("memory");
    let place = memory.pages[0].windows(14).position(|bytes| bytes == b"4value of 0004").expect("it is there");
    let reader = Arc::new(SegmentReader::open(&memory, 1, meta.pages).expect("sound"));
    // The last byte of the fourth key; the kind of its entry, which its commit number and that byte follow.
    let changes: [(_, &[u8], _); 2] = [(place, &[b'4' ^ b'1'], "do not ascend"), (place - 2, &[1 ^ 4, 0, 0], "range")];
    for (at, by, told) in changes {
        let pages = memory.pages.clone();
        let mut memory = Memory::new(USABLE);
        memory.pages = pages;
        change(&mut memory.pages[0][at..], by);
        let runs = vec![vec![Input { reader: reader.clone(), source: Arc::new(memory) }]];
        let case = Case { rows: Vec::new(), ranges: Fragments::default(), runs, moments: Vec::new() };
        for name in NAMES {
            let executor = by_name(name, 64 << 10).expect("it is listed");
            let error = executor.run(task(&case, 6000, Codec::None), &mut Kept::new(0)).expect_err("damage");
            assert!(matches!(error, Error::Corrupt(_)), "{name}: {error}");
            let (error, parts) = (error.to_string(), ["page 0 (keyspace 7)", "data block of segment 1", told]);
            assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
        }
    }
}

/// The pages of an input; whoever asks for one panics.
struct Panics;

impl crate::lsm::PageSource for Panics {
    fn usable(&self) -> usize {
        USABLE
    }

    fn page(&self, _n: u64, _see: &mut dyn FnMut(&[u8])) -> Result<()> {
        panic!("a mistake in a stage");
    }

    fn prefetch(&self, _n: u64, _pages: u64) {}

    fn corrupt(&self, _n: u64, what: &str) -> Error {
        Error::Invalid(what.into())
    }
}

/// It would panic again each time that the merge is begun anew: whoever runs it has to hear of it.
#[test]
fn a_panic_in_a_merge_is_one_of_who_runs_it() {
    let mut rng = Rng::from_seed(16);
    let mut case = case(&mut rng, 1500);
    let reader = case.runs[0][0].reader.clone();
    case.runs[0][0] = Input { reader, source: Arc::new(Panics) };
    for name in NAMES {
        let executor = by_name(name, 64 << 10).expect("it is listed");
        let merge = || executor.run(task(&case, 6000, Codec::None), &mut Kept::new(0)).map(drop);
        let panicked = varve_rt::catch_panic(merge).expect_err("a stage panics");
        assert!(panicked.to_string().contains("a mistake in a stage"), "{name}: {panicked}");
    }
}

#[test]
fn an_output_overlaps_few_grandparents_and_keeps_a_keys_versions_together() {
    let row = |key: u64, commit| Row {
        key: format!("key/{key:04}").into_bytes(),
        commit,
        kind: crate::lsm::EntryKind::Put,
        value: vec![7; 30],
    };
    let mut rows: Vec<Row> = (0..200).map(|n| row(n, 1)).collect();
    rows.extend((2..400).map(|commit| row(100, commit)));
    rows.sort_by(|a, b| order((&a.key, a.commit), (&b.key, b.commit)));
    let case = Case {
        ranges: Fragments::default(),
        runs: vec![vec![input(&rows, &Fragments::default(), 5)]],
        moments: (1..400).collect(),
        rows,
    };
    let parent = |n: u64| {
        let key = |n: u64| format!("key/{n:04}").into_bytes().into_boxed_slice();
        let meta = SegmentMeta { pages: 10, smallest: key(50 * n), largest: key(50 * n + 49), ..Default::default() };
        Arc::new(Segment { id: n, meta, runs: Vec::new() })
    };
    let mut task = task(&case, 3000, Codec::None);
    let changed = Arc::get_mut(&mut task).expect("ours");
    (changed.grandparents, changed.most_overlap) = ((0..4).map(parent).collect(), 9);
    let mut kept = Kept::new(0);
    Sequential.run(task, &mut kept).expect("memory");
    let bounds: Vec<_> = kept.done.iter().map(|(_, meta, _)| (meta.smallest.clone(), meta.largest.clone())).collect();
    assert!(bounds.windows(2).all(|two| two[0].1 < two[1].0), "no key is in two outputs");
    for edge in [50, 100, 150] {
        let key = format!("key/{edge:04}").into_bytes();
        assert!(bounds.iter().any(|(smallest, _)| **smallest == *key), "an output begins where a grandparent does");
    }
    let large = kept.done.iter().map(|(_, meta, _)| meta.entries).max();
    assert!(large >= Some(399), "the versions of a key are in one output: {large:?}");
}
