//! Scans that go from leaf to leaf without their parents: they see what descents would see, whatever happens between
//! two leaves.

use super::ReadAhead;
use super::harness::{Harness, Setup};
use crate::rows::{Direction, ValueRef};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use varve_models::MemDevice;
use varve_rt::Rng;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn fresh() -> Harness {
    Harness::create(MemDevice::new(0), MemDevice::new(0), &Setup::new(4096, 4000)).unwrap()
}

fn key(n: u64) -> Vec<u8> {
    format!("row{n:06}").into_bytes()
}

/// Reads a leaf's rows from a bound on; where to go on.
fn batch(h: &Harness, from: &[u8], ahead: &mut ReadAhead) -> (Rows, Option<Vec<u8>>) {
    let mut rows = Rows::new();
    let range = (Bound::Included(from), Bound::Unbounded);
    let end = h.tree.read_leaf_batch(range.0, range.1, Direction::Forward, ahead, |_, key, value| {
        let ValueRef::Inline(value) = value else { panic!("a short value") };
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    (rows, end.unwrap().next)
}

/// Puts or removes rows around `at`, so many that leaves are divided, merged and given up.
fn change(h: &Harness, model: &mut Model, at: &[u8], rng: &mut Rng) {
    let here = String::from_utf8_lossy(at).trim_start_matches("row").get(..6).map_or(0, |n| n.parse().unwrap_or(0));
    let from = (here + rng.below(200)).saturating_sub(80);
    let removes = rng.below(2) == 0;
    for n in from..from + rng.below(120) {
        if removes {
            h.remove(&key(n)).unwrap();
            model.remove(&key(n));
        } else {
            let value = vec![n as u8; rng.below(400) as usize];
            h.put(&key(n), &value).unwrap();
            model.insert(key(n), value);
        }
    }
}

#[test]
fn each_leaf_of_a_scan_is_as_it_is_when_the_scan_comes_to_it() {
    let (rows, seeds) = if cfg!(miri) { (100, 1) } else { (6000, 12) };
    for seed in 0..seeds {
        let (h, mut model, mut rng) = (fresh(), Model::new(), Rng::from_seed(seed));
        for n in 0..rows {
            h.put(&key(n), &[7; 100]).unwrap();
            model.insert(key(n), vec![7; 100]);
        }
        let (mut from, mut ahead) = (Vec::new(), ReadAhead::default());
        loop {
            let (rows, next) = batch(&h, &from, &mut ahead);
            let end = next.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let expected = model.range((Bound::Included(from), end)).map(|(k, v)| (k.clone(), v.clone()));
            assert_eq!(rows, expected.collect::<Vec<_>>(), "seed {seed}");
            let Some(next) = next else { break };
            if rng.below(3) == 0 {
                change(&h, &mut model, &next, &mut rng);
            }
            from = next;
        }
        h.stop();
    }
}

#[test]
fn a_scan_looks_at_a_parent_once_for_some_leaves() {
    let h = fresh();
    for n in 0..20_000 {
        h.put(&key(n), &[7; 100]).unwrap();
    }
    let hits = || h.core.pool.stats().total().hits;
    let (mut from, mut ahead, mut leaves) = (Vec::new(), ReadAhead::default(), 0);
    let before = hits();
    while let (_, Some(next)) = batch(&h, &from, &mut ahead) {
        leaves += 1;
        from = next;
    }
    let looked = hits() - before;
    assert!(leaves > 500 && looked < leaves * 3 / 2, "{looked} pages were looked at for {leaves} leaves");
    h.stop();
}
