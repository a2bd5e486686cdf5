//! Merging walks against a sorted list; what a merge keeps against what every open moment sees.

use super::*;
use crate::lsm::SegmentMeta;
use crate::lsm::ranges::RangeDelete;
use crate::lsm::samples::{List, Row, entries};
use varve_rt::Rng;

#[test]
fn several_walks_are_as_one() {
    let mut rng = Rng::from_seed(4);
    for _ in 0..80 {
        let rows = entries(&mut rng, 60);
        let mut parts = vec![Vec::new(); 1 + rng.below(7) as usize];
        let count = parts.len() as u64;
        rows.iter().for_each(|row| parts[rng.below(count) as usize].push(row.clone()));
        let mut walk = Merging::new(parts.into_iter().map(List::new).collect());
        for _ in 0..20 {
            let key = rows[rng.below(rows.len() as u64) as usize].key.clone();
            let commit = rng.below(60);
            let split = rows.partition_point(|row| order((&row.key, row.commit), (&key, commit)).is_lt());
            let (mut at, moved) = match rng.below(4) {
                0 => (Some(0), walk.first()),
                1 => (Some(rows.len() - 1), walk.last()),
                2 => (Some(split), walk.seek(&key, commit)),
                _ => (split.checked_sub(1), walk.seek_before(&key, commit)),
            };
            moved.expect("memory");
            for _ in 0..rng.below(30) {
                assert_eq!(walk.entry().map(Row::of).as_ref(), at.and_then(|at| rows.get(at)));
                let Some(here) = at.filter(|at| *at < rows.len()) else { break };
                let back = rng.one_in(3);
                if back { walk.prev() } else { walk.next() }.expect("memory");
                at = if back { here.checked_sub(1) } else { Some(here + 1) };
            }
        }
    }
}

/// What a moment sees of a key: entries and range deletions of the merged, then of what lies below.
fn seen(rows: &[Row], ranges: &Fragments, below: &[Row], key: &[u8], moment: Lsn) -> Option<Vec<u8>> {
    let newest = |rows: &[Row]| rows.iter().find(|row| row.key == key && row.commit <= moment).cloned();
    let row = newest(rows).or_else(|| newest(below))?;
    let there = row.kind == EntryKind::Put && ranges.covering(key, moment) <= row.commit;
    there.then_some(row.value)
}

fn below(rows: &[Row]) -> Below {
    let one = |row: &Row| {
        let (smallest, largest) = (row.key.as_slice().into(), row.key.as_slice().into());
        let meta = SegmentMeta { smallest, largest, ..SegmentMeta::default() };
        Arc::new(Segment { id: 1, meta, runs: Vec::new() })
    };
    let mut segments: Vec<_> = rows.iter().map(one).collect();
    segments.dedup_by(|a, b| a.meta.smallest == b.meta.smallest);
    Below(vec![Vec::new(), segments])
}

#[test]
fn what_is_kept_is_what_somebody_sees() {
    let mut rng = Rng::from_seed(5);
    let (mut dropped, mut deletions) = (0, 0);
    for _ in 0..300 {
        let rows = entries(&mut rng, 60);
        // What lies below is older than all that is merged.
        let mut older = if rng.one_in(2) { entries(&mut rng, 20) } else { Vec::new() };
        older.iter_mut().for_each(|row| row.commit = 0);
        older.dedup_by(|a, b| a.key == b.key);
        let mut moments: Vec<Lsn> = (0..rng.below(4)).map(|_| rng.below(50)).collect();
        moments.sort_unstable();
        let draw = |rng: &mut Rng| {
            let (start, length) = (rng.below(60), 1 + rng.below(30));
            let key = |n: u64| format!("key/{n:04}").into_bytes();
            RangeDelete { start: key(start), end: key(start + length), commit: 1 + rng.below(50) }
        };
        let ranges = Fragments::new((0..rng.below(3)).map(|_| draw(&mut rng)).collect::<Vec<_>>());
        let mut retention = Retention::new(moments.clone(), below(&older), ranges.clone());
        let kept: Vec<Row> =
            rows.iter().filter(|row| retention.keeps(&row.entry()).expect("rows ascend")).cloned().collect();
        let kept_ranges = retention.ranges();
        for row in rows.iter().chain(&older) {
            for moment in moments.iter().copied().chain([Lsn::MAX]) {
                let before = seen(&rows, &ranges, &older, &row.key, moment);
                assert_eq!(seen(&kept, &kept_ranges, &older, &row.key, moment), before, "{row:?} as of {moment}");
            }
        }
        let stripe = |row: &Row| moments.partition_point(|moment| *moment < row.commit);
        let twice = kept.windows(2).any(|two| two[0].key == two[1].key && stripe(&two[0]) == stripe(&two[1]));
        assert!(!twice, "one entry of a key in a stripe is enough");
        dropped += rows.len() - kept.len();
        let gone = |row: &&Row| row.kind == EntryKind::Delete && !kept.contains(row);
        deletions += rows.iter().filter(gone).count();
    }
    assert!(dropped > 1000 && deletions > 200, "{dropped} {deletions}");
}
