//! Node layer: random edits against a `BTreeMap`, redo replayed over the old page, damaged bytes.

use super::edit::{self, Shape};
use super::leaf::{self, CellValue};
use super::node::*;
use super::split;
use crate::page::PageEdit;
use crate::rows::ValueRef;
use proptest::prelude::*;
use std::collections::BTreeMap;
use varve_volume::page;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
enum Op {
    Write(usize, Vec<u8>),
    Shift(usize, usize, usize),
    Image(Vec<u8>),
}

/// A page in memory that records what is done to it.
struct Recorder {
    page: Vec<u8>,
    ops: Vec<Op>,
}

impl Recorder {
    fn leaf(size: usize, low: &[u8], high: Option<&[u8]>) -> Recorder {
        let mut page = vec![0; size];
        split::init_leaf(&mut page, low, high, size);
        Recorder { page, ops: Vec::new() }
    }

    fn node(&self) -> Node<'_> {
        Node::parse(&self.page).unwrap()
    }

    fn redo_bytes(&self) -> usize {
        self.ops
            .iter()
            .map(|o| match o {
                Op::Write(_, b) => b.len() + 5,
                Op::Shift(..) => 7,
                Op::Image(p) => p.len(),
            })
            .sum()
    }
}

impl PageEdit for Recorder {
    fn bytes(&self) -> &[u8] {
        &self.page
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at >= HEADER);
        self.page[at..at + bytes.len()].copy_from_slice(bytes);
        self.ops.push(Op::Write(at, bytes.to_vec()));
    }

    fn shift(&mut self, from: usize, to: usize, len: usize) {
        assert!(from >= HEADER && to >= HEADER);
        self.page.copy_within(from..from + len, to);
        self.ops.push(Op::Shift(from, to, len));
    }

    fn image(&mut self, f: impl FnOnce(&mut [u8])) {
        f(&mut self.page);
        self.ops.push(Op::Image(self.page.clone()));
    }
}

fn replay(page: &mut Vec<u8>, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Write(at, b) => page[*at..*at + b.len()].copy_from_slice(b),
            Op::Shift(f, t, l) => page.copy_within(*f..*f + *l, *t),
            Op::Image(b) => page.clone_from(b),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Remove(usize),
    Update(usize, Vec<u8>),
    /// Rows side by side, as far as they are.
    Run(Model),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        prop::collection::vec(0u8..3, 0..8),
        (0u32..2000).prop_map(|n| format!("user{n:08}").into_bytes()),
        (0u32..200).prop_map(|n| [b"user0000".as_slice(), &n.to_be_bytes()].concat()),
        (0u8..4, 100usize..900).prop_map(|(b, n)| vec![b; n]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..600)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Step::Put(k, v)),
        1 => (0usize..1000).prop_map(Step::Remove),
        2 => (0usize..1000, value()).prop_map(|(i, v)| Step::Update(i, v)),
        1 => prop::collection::btree_map(key(), value(), 1..12).prop_map(Step::Run),
    ];
    prop::collection::vec(step, 0..200)
}

fn check_equal(page: &[u8], model: &Model) {
    let node = Node::parse(page).unwrap();
    node.validate().unwrap();
    assert_eq!(node.count(), model.len());
    for (i, (k, v)) in model.iter().enumerate() {
        assert_eq!(&node.key(i).unwrap(), k);
        assert_eq!(leaf::get(page, k).unwrap(), Some(ValueRef::Inline(v)));
        assert_eq!(node.search(k).unwrap(), (i, true));
    }
}

/// Inserts rows at once: the first of them, as many as belong between the same two keys and fit.
fn check_run(r: &mut Recorder, model: &mut Model, rows: &Model) {
    let usable = r.page.len() - HEADER;
    let fits = |k: &[u8], v: &[u8]| k.len() <= leaf::max_key(usable) && v.len() <= leaf::max_inline(usable, k.len());
    let node = r.node();
    let covered = rows.iter().filter(|(k, v)| node.covers(k) && fits(k, v));
    let rows: Vec<(&[u8], &[u8])> = covered.map(|(k, v)| (&k[..], &v[..])).collect();
    let Some(first) = rows.first().map(|row| row.0) else { return };
    let next = model.range(first.to_vec()..).next().map(|(k, _)| k.clone());
    let beside = rows.iter().take_while(|row| next.as_ref().is_none_or(|next| row.0 < &next[..])).count();
    let (gap, prefix) = (node.gap(), node.prefix().to_vec());
    let mut need = 0;
    let fit = rows.iter().take_while(|row| {
        need += SLOT + tail(row.0.get(prefix.len()..).unwrap_or_default()).len() + 2 + row.1.len();
        row.0.starts_with(&prefix) && need <= gap
    });
    let expected = fit.count().min(beside);
    assert_eq!(leaf::insert_run(r, rows.iter().copied(), 2).unwrap(), if expected < 2 { 0 } else { expected });
    if expected >= 2 {
        assert!(r.ops.len() <= 4, "a run is written at once");
        model.extend(rows[..expected].iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
    }
}

/// Splits the model's keys as each kind of plan says.
fn check_split(r: &Recorder, model: &Model, key: &[u8], room: usize) {
    let node = r.node();
    if let Some(plan) = split::plan_leaf(&node, key, room).unwrap() {
        check_plan(r, model, &plan);
    }
    if let Some(plan) = split::plan_append(&node, key, room).unwrap() {
        assert!(model.last_key_value().is_none_or(|(last, _)| &last[..] < key));
        check_plan(r, model, &plan);
    }
}

fn check_plan(r: &Recorder, model: &Model, plan: &split::Plan) {
    let old = r.page.clone();
    let node = Node::parse(&old).unwrap();
    let mut right = vec![0; old.len()];
    split::fill_right(&mut right, &node, plan).unwrap();
    page::set_kind(&mut right, leaf::KIND_LEAF);
    let mut left = Recorder { page: old.clone(), ops: Vec::new() };
    split::cut_left(&mut left, plan).unwrap();
    let (mut l, h) = (model.clone(), plan.separator.clone());
    let rest = l.split_off(&h);
    check_equal(&left.page, &l);
    check_equal(&right, &rest);
    let right_node = Node::parse(&right).unwrap();
    assert_eq!(left.node().high(), Some(right_node.low()));
    assert_eq!(right_node.high(), node.high());
    if split::can_join(&left.node(), &right_node).unwrap() {
        split::join(&mut left, &right_node).unwrap();
        check_equal(&left.page, model);
        assert_eq!(left.node().high(), node.high());
    }
    let mut again = old;
    replay(&mut again, &left.ops);
    assert_eq!(again, left.page);
}

fn run(size: usize, low: &[u8], high: Option<&[u8]>, steps: Vec<Step>) {
    let usable = size - HEADER;
    let mut r = Recorder::leaf(size, low, high);
    let mut model: Model = BTreeMap::new();
    for step in steps {
        let pick = |i: usize| model.keys().nth(i % model.len().max(1)).cloned();
        let before = r.page.clone();
        r.ops.clear();
        match step {
            Step::Remove(i) => {
                let Some(k) = pick(i) else { continue };
                assert!(leaf::remove(&mut r, &k).unwrap().existed);
                model.remove(&k);
                assert!(r.ops.len() <= 2);
            }
            Step::Run(rows) => check_run(&mut r, &mut model, &rows),
            Step::Put(..) | Step::Update(..) => {
                let (k, v) = match step {
                    Step::Put(k, v) => (k, v),
                    Step::Update(i, v) => match pick(i) {
                        Some(k) => (k, v),
                        None => continue,
                    },
                    Step::Remove(_) | Step::Run(_) => unreachable!(),
                };
                if k.len() > leaf::max_key(usable)
                    || v.len() > leaf::max_inline(usable, k.len())
                    || !r.node().covers(&k)
                {
                    continue;
                }
                let cell = CellValue::Inline(&v);
                let need = leaf::cell_size(&k, &cell);
                if leaf::room_for(&r.page, &k) < need {
                    check_split(&r, &model, &k, need);
                    continue;
                }
                leaf::prepare(&r.page, &k, need).unwrap();
                let same_length = model.get(&k).is_some_and(|o| o.len() == v.len());
                let change = leaf::put(&mut r, &k, cell).unwrap();
                assert_eq!(change.existed, model.insert(k, v).is_some());
                assert!(!same_length || r.ops.len() <= 1);
                assert!(r.ops.len() <= 6 || r.ops.iter().any(|o| matches!(o, Op::Image(_))));
            }
        }
        let mut redone = before;
        replay(&mut redone, &r.ops);
        assert_eq!(redone, r.page);
        check_equal(&r.page, &model);
    }
    if r.node().covers(b"user00001000") {
        check_split(&r, &model, b"user00001000", 100);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_leaf_is_a_sorted_map(steps in steps(), size in prop::sample::select(vec![4096usize, 8192, 16384])) {
        run(size, b"", None, steps);
    }

    #[test]
    fn a_leaf_between_fences_is_a_sorted_map(steps in steps(), a in key(), b in key()) {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        if low < high {
            run(4096, &low, Some(&high), steps);
        }
    }

    #[test]
    fn damaged_bytes_never_panic(flips in prop::collection::vec((32usize..4096, any::<u8>()), 1..40), few in any::<bool>(), k in key(), v in value()) {
        let mut r = Recorder::leaf(4096, b"", None);
        for i in 0..30u32 {
            leaf::put(&mut r, format!("user{i:06}").as_bytes(), CellValue::Inline(&[7; 40])).unwrap();
        }
        for (at, b) in flips {
            // Either anywhere, or among header and slots, where it hurts.
            let at = if few { HEADER + (at - HEADER) % 300 } else { at };
            r.page[at] = b;
        }
        exercise(&mut r, &k, &v);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 4096), header in prop::collection::vec(0u16..5000, 12), k in key(), v in value()) {
        let mut r = Recorder { page: bytes, ops: Vec::new() };
        for (i, h) in header.iter().enumerate() {
            r.page[HEADER + 2 * i..HEADER + 2 * i + 2].copy_from_slice(&h.to_le_bytes());
        }
        exercise(&mut r, &k, &v);
    }
}

/// Everything that is done to pages read from a device.
fn exercise(r: &mut Recorder, k: &[u8], v: &[u8]) {
    let _ = leaf::get(&r.page, k);
    let _ = leaf::covers(&r.page, page::keyspace(&r.page), k);
    if let Ok(node) = Node::parse(&r.page) {
        let _ = (node.validate(), node.room(), node.used(), node.high(), node.low());
        let _ = (node.child_for(k), node.child_below(k));
        for i in 0..node.count() {
            let _ = (node.key(i), node.leaf_cell(i), node.child(i), node.payload(i));
        }
        if node.validate().is_ok() && node.level() == 0 {
            let _ = split::plan_leaf(&node, k, 100);
        }
        // (Not validated: an append leaves the cells alone.)
        if let Ok(Some(plan)) = split::plan_append(&node, k, 100) {
            let mut right = vec![0; r.page.len()];
            split::fill_right(&mut right, &node, &plan).unwrap();
            let mut left = Recorder { page: r.page.clone(), ops: Vec::new() };
            split::cut_left(&mut left, &plan).unwrap();
        }
    }
    let cell = CellValue::Inline(&v[..v.len().min(200)]);
    let need = leaf::cell_size(k, &cell);
    if leaf::room_for(&r.page, k) >= need
        && leaf::covers(&r.page, page::keyspace(&r.page), k)
        && leaf::prepare(&r.page, k, need).is_ok()
    {
        let _ = leaf::put(r, k, cell);
        let _ = leaf::remove(r, k);
    }
}

#[test]
fn redo_is_small() {
    let mut r = Recorder::leaf(16384, b"", None);
    for i in (0..200u32).step_by(2) {
        leaf::put(&mut r, format!("user{i:08}").as_bytes(), CellValue::Inline(&[1; 50])).unwrap();
    }
    r.ops.clear();
    leaf::put(&mut r, b"user00000101", CellValue::Inline(&[2; 50])).unwrap();
    assert_eq!(r.ops.len(), 4);
    assert!(r.redo_bytes() < 50 + 12 + 45, "{}", r.redo_bytes());
    r.ops.clear();
    let mut v = [2; 50];
    (v[10], v[20]) = (3, 3);
    leaf::put(&mut r, b"user00000101", CellValue::Inline(&v)).unwrap();
    assert!(matches!(&r.ops[..], [Op::Write(_, b)] if b.len() == 11));
    r.ops.clear();
    leaf::put(&mut r, b"user00000101", CellValue::Inline(&v)).unwrap();
    assert!(r.ops.is_empty());
}

#[test]
fn an_ascending_load_leaves_full_leaves_and_divides_without_an_image() {
    let mut r = Recorder::leaf(16384, b"", None);
    let cell = CellValue::Inline(&[1; 100]);
    let (mut i, mut leaves) = (0u32, 0);
    while leaves < 20 {
        let k = format!("user{i:08}").into_bytes();
        if leaf::room_for(&r.page, &k) < leaf::cell_size(&k, &cell) {
            let copy = r.page.clone();
            let node = Node::parse(&copy).unwrap();
            let plan = split::plan_leaf(&node, &k, leaf::cell_size(&k, &cell)).unwrap().unwrap();
            assert_eq!(plan.at, node.count());
            let mut right = vec![0; 16384];
            split::fill_right(&mut right, &node, &plan).unwrap();
            page::set_kind(&mut right, leaf::KIND_LEAF);
            r.ops.clear();
            split::cut_left(&mut r, &plan).unwrap();
            assert!(r.redo_bytes() < 100);
            let left = r.node();
            left.validate().unwrap();
            assert!(leaves == 0 || left.used() * 100 > 97 * 16384, "fill {}", left.used());
            r = Recorder { page: right, ops: Vec::new() };
            leaves += 1;
        }
        leaf::put(&mut r, &k, cell).unwrap();
        i += 1;
    }
}

#[test]
fn inner_nodes_divide_and_join() {
    for longest in [8usize, 1024] {
        let mut r = Recorder { page: vec![0; 4096], ops: Vec::new() };
        let shape = Shape { level: 1, low: b"", high: None, leftmost: 99, end: 4096 };
        edit::Builder::new(&mut r.page, &shape, b"").finish();
        let mut rng = varve_rt::Rng::from_seed(longest as u64);
        let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for child in 100u64.. {
            let k: Vec<u8> = (0..1 + rng.below(longest as u64)).map(|_| rng.below(4) as u8).collect();
            if model.contains_key(&k) {
                continue;
            }
            if r.node().room_for(&k) < SLOT + 8 + k.len() {
                break;
            }
            let pos = r.node().search(&k).unwrap().0;
            edit::insert(&mut r, &k, pos, [&child.to_le_bytes(), &[]]).unwrap();
            r.node().validate().unwrap();
            model.insert(k, child);
            for (i, (k, c)) in model.iter().enumerate() {
                assert_eq!(r.node().child_for(k).unwrap(), i + 1);
                assert_eq!(r.node().child(i + 1).unwrap(), *c);
                assert_eq!(r.node().child_below(k).unwrap(), i);
            }
        }
        let copy = r.page.clone();
        let node = Node::parse(&copy).unwrap();
        let plan = split::plan_inner(&node, &vec![2; longest]).unwrap().unwrap();
        let mut right = vec![0; 4096];
        split::fill_right(&mut right, &node, &plan).unwrap();
        split::cut_left(&mut r, &plan).unwrap();
        let right = Node::parse(&right).unwrap();
        r.node().validate().unwrap();
        right.validate().unwrap();
        assert_eq!(r.node().count() + right.count() + 1, model.len());
        assert_eq!(right.child(0).unwrap(), model[&plan.separator]);
        // Thin both out until they fit one node.
        let (mut l, mut rr) = (r, Recorder { page: right.bytes().to_vec(), ops: Vec::new() });
        while !split::can_join(&l.node(), &rr.node()).unwrap() {
            for p in [&mut l, &mut rr] {
                if p.node().count() > 0 {
                    let k = p.node().key(0).unwrap();
                    model.remove(&k);
                    edit::remove(p, 0).unwrap();
                }
            }
        }
        split::join(&mut l, &rr.node()).unwrap();
        l.node().validate().unwrap();
        assert_eq!(l.node().count(), model.len());
        for (k, c) in &model {
            let n = l.node();
            assert_eq!(n.child(n.child_for(k).unwrap()).unwrap(), *c);
        }
        edit::set_child(&mut l, 0, 5).unwrap();
        assert_eq!(l.node().child(0).unwrap(), 5);
    }
}

#[test]
fn each_broken_invariant_is_named() {
    let mut r = Recorder::leaf(4096, b"b", Some(b"x"));
    for key in [&b"ca"[..], b"cab", b"cabbage", b"cabbages", b"kale"] {
        leaf::put(&mut r, key, CellValue::Inline(&[7; 100])).unwrap();
    }
    r.node().validate().unwrap();
    // A slot is head u32, offset of the cell u16, length of the key u16; a cell is the key from its fifth byte on, and
    // the value.
    let slot = |i: usize| SLOTS + SLOT * i;
    let cell = r.node().cell_at(3);
    let order = "keys out of order or outside the fences";
    let cases: [(&str, usize, &[u8]); 8] = [
        (order, slot(0), &u32::from_be_bytes(*b"aa\0\0").to_le_bytes()),
        (order, slot(4), &u32::from_be_bytes(*b"zale").to_le_bytes()),
        (order, slot(2), &u32::from_be_bytes(*b"ca\0\0").to_le_bytes()),
        (order, cell, b"aaaa"),
        ("slot head and key length do not agree", slot(0) + 6, &1u16.to_le_bytes()),
        ("cells overlap", slot(1) + 4, &(r.node().cell_at(0) as u16).to_le_bytes()),
        ("cell outside the heap", slot(4) + 4, &(r.node().heap() as u16 - 102).to_le_bytes()),
        ("free-space accounting is wrong", GARBAGE, &1u16.to_le_bytes()),
    ];
    for (what, at, bytes) in cases {
        let mut page = r.page.clone();
        page[at..at + bytes.len()].copy_from_slice(bytes);
        let found = Node::parse(&page).unwrap().validate();
        assert_eq!(found, Err(Damage(what)), "{bytes:?} at {at}");
    }
}

proptest! {
    #[test]
    fn bytes_that_differ_are_found_as_byte_by_byte(
        a in proptest::collection::vec(0u8..3, 0..60),
        flips in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut b = a.clone();
        for flip in flips.iter().filter(|_| !a.is_empty()) {
            b[flip.index(a.len())] ^= 1;
        }
        let differ = |i: &usize| a[*i] != b[*i];
        let slow = (0..a.len()).find(differ).map_or(0..0, |first| first..(0..a.len()).rfind(differ).unwrap() + 1);
        prop_assert_eq!(edit::differing(&a, &b), slow);
    }
}
