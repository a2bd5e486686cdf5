//! The planner, on a store that has segments without contents: levels stay in shape and disjoint whatever is flushed.

use super::*;
use crate::lsm::SegmentMeta;
use varve_rt::Rng;

fn segment(id: u64, from: u64, to: u64, pages: u64) -> Arc<Segment> {
    let key = |n: u64| format!("{n:06}").into_bytes().into_boxed_slice();
    let meta = SegmentMeta { pages, smallest: key(from), largest: key(to), entries: 1, ..SegmentMeta::default() };
    Arc::new(Segment { id, meta, runs: Vec::new() })
}

fn shape(choice: Choice) -> Leveled {
    Leveled { base_bytes: 100 << 12, choice, ..Leveled::new(20 << 12, 1 << 12) }
}

fn number(key: &[u8]) -> u64 {
    String::from_utf8_lossy(key).parse().expect("digits")
}

/// Does what a plan says, without rows: the outputs cover what the inputs covered.
fn done(version: &mut Version, plan: &Plan, id: &mut u64) {
    let all: Vec<Arc<Segment>> = plan.inputs.iter().chain(&plan.next).cloned().collect();
    version.levels.resize_with(version.levels.len().max(plan.level + 2), Vec::new);
    for level in [plan.level, plan.level + 1] {
        version.levels[level].retain(|segment| !all.iter().any(|gone| gone.id == segment.id));
    }
    let (from, to) = bounds(&all).expect("inputs");
    let (from, to, pages) = (number(from), number(to), pages(&all).min(number(to) - number(from) + 1));
    let parts = pages.div_ceil(20).max(1);
    for part in 0..parts {
        let (a, b) = (from + (to - from + 1) * part / parts, from + (to - from + 1) * (part + 1) / parts - 1);
        *id += 1;
        version.levels[plan.level + 1].push(segment(*id, a, b, pages.div_ceil(parts)));
    }
    version.levels[plan.level + 1].sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest));
}

#[test]
fn levels_come_into_shape_and_stay_disjoint() {
    for choice in [Choice::RoundRobin, Choice::LeastOverlap] {
        let (shape, mut picker, mut rng) = (shape(choice), Picker::default(), Rng::from_seed(2));
        let (mut version, mut id, mut merges) = (Version { levels: vec![Vec::new(); 3] }, 0, 0);
        for _ in 0..600 {
            let from = rng.below(5000);
            let most = if rng.one_in(2) { 3000 } else { 40 };
            let to = from + rng.below(most);
            id += 1;
            let new = segment(id, from, to, 20.min(to - from + 1));
            let level = flush_level(&shape, &version, &new.meta.smallest, &new.meta.largest);
            assert!(
                (0..=level).all(|l| level == 0
                    || version.overlapping(l, Some(&new.meta.smallest), Some(&new.meta.largest)).is_empty())
            );
            let at = version.levels[level].partition_point(|s| level > 0 && s.meta.smallest < new.meta.smallest);
            version.levels[level].insert(at, new);
            while let Some(plan) = picker.pick(&shape, &version) {
                assert!(shape.score(&version, plan.level) >= 1.0, "only what is over its limit");
                check_plan(&version, &plan);
                done(&mut version, &plan, &mut id);
                picker.installed(&version);
                merges += 1;
                for level in version.levels.iter().skip(1) {
                    assert!(level.windows(2).all(|two| two[0].meta.largest < two[1].meta.smallest), "disjoint");
                }
            }
            assert!((0..5).all(|level| shape.score(&version, level) < 1.0) && shape.debt(&version) == 0);
        }
        println!("{choice:?}: {merges} merges, {:?} pages", (0..5).map(|l| version.pages(l)).collect::<Vec<_>>());
        assert!(merges > 150 && version.pages(2) > 0);
    }
}

/// Nothing older than an input may stay above or beside it, nothing newer may go below.
fn check_plan(version: &Version, plan: &Plan) {
    let (from, to) = bounds(&plan.inputs).expect("inputs");
    let is_in = |segment: &Arc<Segment>| plan.inputs.iter().chain(&plan.next).any(|s| s.id == segment.id);
    assert!(version.overlapping(plan.level + 1, Some(from), Some(to)).iter().all(is_in), "all that they overlap");
    if plan.level == 0 {
        let all = version.overlapping(0, Some(from), Some(to));
        assert!(all.iter().all(is_in), "an older segment of level 0 must not stay above a newer one");
        assert!(plan.inputs.windows(2).all(|two| two[0].id > two[1].id), "the newest first");
    }
}

#[test]
fn every_segment_has_its_turn() {
    let (shape, mut picker) = (shape(Choice::RoundRobin), Picker::default());
    let level: Vec<_> = (0..8).map(|n| segment(n, 100 * n, 100 * n + 50, 20)).collect();
    let version = Version { levels: vec![Vec::new(), level] };
    let picked: Vec<u64> = (0..10).map(|_| picker.pick(&shape, &version).expect("too large").inputs[0].id).collect();
    assert_eq!(picked, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
    let plan = picker.pick(&shape, &version).expect("too large");
    assert!(plan.is_move(&shape) && plan.reason == Reason::Size);
    let three = Leveled { more_input: 3, ..shape.clone() };
    assert_eq!(picker.pick(&three, &version).expect("too large").inputs.len(), 3);
}

#[test]
fn what_prevents_a_stall_goes_first() {
    let (leveldb, mut picker) = (shape(Choice::RoundRobin), Picker::default());
    let shape = Leveled { level_0_first: true, ..leveldb.clone() };
    let level: Vec<_> = (0..80).map(|n| segment(n, 100 * n, 100 * n + 50, 20)).collect();
    let flushed = |n: u64| (0..n).rev().map(|n| segment(100 + n, 0, 9000, 20)).collect::<Vec<_>>();
    let version = |n| Version { levels: vec![flushed(n), level.clone()] };
    let plan = |picker: &mut Picker, n| picker.pick(&shape, &version(n));
    assert_eq!(plan(&mut picker, 5).map(|plan| plan.level), Some(1), "16 times too large");
    assert_eq!(plan(&mut picker, 8).map(|plan| plan.level), Some(0));
    assert_eq!(picker.pick(&leveldb, &version(12)).map(|plan| plan.level), Some(1), "LevelDB takes what is most over");
    let urgency = |n, level: &[Arc<Segment>]| shape.urgency(&Version { levels: vec![flushed(n), level.to_vec()] });
    assert_eq!([5, 8].map(|n| urgency(n, &level)), [Some(Class::Shape), Some(Class::Stall)]);
    assert_eq!([3, 4].map(|n| urgency(n, &[])), [None, Some(Class::Shape)]);
    assert!(Class::Stall > Class::Shape && Class::Shape > Class::Tidy);
}

#[test]
fn a_segment_that_is_looked_at_in_vain_is_merged() {
    let (shape, mut picker) = (shape(Choice::RoundRobin), Picker::default());
    let level: Vec<_> = (0..3).map(|n| segment(n, 100 * n, 100 * n + 50, 20)).collect();
    let version = Version { levels: vec![Vec::new(), level.clone()] };
    assert!((0..99).all(|_| !picker.fruitless(&shape, &level[1])) && picker.pick(&shape, &version).is_none());
    assert!(picker.fruitless(&shape, &level[1]), "the hundredth");
    let plan = picker.pick(&shape, &version).expect("worn");
    assert_eq!((plan.reason, plan.inputs[0].id), (Reason::Seek, 1));
    assert!(picker.pick(&shape, &version).is_none(), "once");
    let large = segment(9, 0, 1, 4000);
    assert_eq!((1..).find(|_| picker.fruitless(&shape, &large)), Some(1000), "a look for 16 KB");
}

#[test]
fn asked_for_it_takes_what_is_there() {
    let level: Vec<_> = (0..3).map(|n| segment(n, 100 * n, 100 * n + 50, 20)).collect();
    let version = Version { levels: vec![vec![segment(7, 0, 10, 5), segment(6, 10, 900, 5)], level] };
    let ids = |plan: Plan| [plan.inputs, plan.next].concat().iter().map(|s| s.id).collect::<Vec<_>>();
    assert_eq!(manual(&version, 0, Some(b"000000"), Some(b"000005")).map(|m| ids(m.0)), Some(vec![7, 6, 0, 1, 2]));
    assert_eq!(manual(&version, 1, Some(b"000120"), None).map(|m| ids(m.0)), Some(vec![1, 2]));
    assert!(
        manual(&version, 1, Some(b"000060"), Some(b"000070")).is_none() && manual(&version, 6, None, None).is_none()
    );
}
