//! Replay: exact against slow references, and against figures published elsewhere.

use std::path::Path;
use std::sync::Arc;
use varve_lab::replay::{self, Plan, References, Shape};
use varve_lab::trace::{ReadOptions, Reader};
use varve_rt::Rng;

fn misses(refs: &References, policy: &str, size: usize) -> u64 {
    replay::point(refs, policy, size, &replay::policy_options()).unwrap().misses
}

/// MIN by looking ahead through the whole trace for every victim.
fn naive_belady(trace: &[u64], size: usize) -> u64 {
    let mut cache: Vec<u64> = Vec::new();
    let mut misses = 0;
    for (i, page) in trace.iter().enumerate() {
        if cache.contains(page) {
            continue;
        }
        misses += 1;
        if cache.len() == size {
            let next = |p: &u64| trace[i..].iter().position(|q| q == p).unwrap_or(usize::MAX);
            let farthest = (0..size).max_by_key(|at| next(&cache[*at])).unwrap();
            cache.swap_remove(farthest);
        }
        cache.push(*page);
    }
    misses
}

fn naive_lru(trace: &[u64], size: usize) -> u64 {
    let mut stack: Vec<u64> = Vec::new();
    let mut misses = 0;
    for page in trace {
        match stack.iter().position(|p| p == page) {
            Some(at) => drop(stack.remove(at)),
            None => misses += 1,
        }
        stack.insert(0, *page);
        stack.truncate(size);
    }
    misses
}

fn random_trace(rng: &mut Rng) -> Vec<u64> {
    let pages = 2 + rng.below(60) as usize;
    let skew = 1 + rng.below(4) as i32;
    (0..1200)
        .map(|i| if rng.one_in(3) { i % pages as u64 } else { (pages as f64 * rng.f64().powi(skew)) as u64 })
        .map(|page| page * 1_000_003)
        .collect()
}

#[test]
fn belady_and_lru_are_the_naive_ones_and_nothing_beats_belady() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let trace = random_trace(&mut rng);
        let refs = References::of(trace.iter().copied());
        for size in [1, 2, 7, 30] {
            let least = misses(&refs, "belady", size);
            assert_eq!(least, naive_belady(&trace, size), "belady, {size} pages, seed {seed}");
            assert_eq!(misses(&refs, "lru", size), naive_lru(&trace, size), "lru, {size} pages, seed {seed}");
            for policy in replay::policy_names() {
                assert!(misses(&refs, policy, size) >= least, "{policy} beats belady, {size} pages, seed {seed}");
            }
        }
        for policy in replay::policy_names() {
            assert_eq!(misses(&refs, policy, 1000), refs.pages() as u64, "{policy}: everything fits");
        }
    }
}

#[test]
fn points_come_in_the_plans_order_and_bad_plans_are_refused() {
    let refs = Arc::new(References::of((0..1000).map(|i| i * i % 97)));
    let plan = Plan {
        policies: vec!["lru".into(), "belady".into(), "arc".into()],
        sizes: vec![10, 3, 50],
        options: replay::policy_options(),
        jobs: 3,
    };
    let mut told = 0;
    let points = replay::run(&refs, &plan, |_| told += 1).unwrap();
    let order: Vec<(String, usize)> = points.iter().map(|p| (p.policy.clone(), p.size)).collect();
    let wanted: Vec<(String, usize)> =
        plan.policies.iter().flat_map(|p| plan.sizes.iter().map(move |s| (p.clone(), *s))).collect();
    assert_eq!((told, order), (9, wanted));
    let line = serde_json::to_string(&points[0]).unwrap();
    let (misses, ratio) = (points[0].misses, points[0].miss_ratio);
    assert_eq!(
        line,
        format!(r#"{{"policy":"lru","size":10,"references":1000,"misses":{misses},"miss_ratio":{ratio}}}"#)
    );
    let html = replay::to_html("a <trace>", &["a note".into()], "varve lab replay", &points);
    assert!(html.contains("a &lt;trace&gt;") && html.contains("<polyline") && !html.contains("NaN"));
    assert!(!html.contains("http"), "nothing is fetched");
    let bad = |policies: &[&str], sizes: &[usize]| {
        let policies = policies.iter().map(|p| p.to_string()).collect();
        replay::run(&refs, &Plan { policies, sizes: sizes.to_vec(), ..plan.clone() }, |_| {}).unwrap_err()
    };
    assert!(bad(&["best"], &[1]).contains("no policy \"best\""));
    assert!(bad(&["lru"], &[0]).contains("from 1"));
    assert!(bad(&["lru"], &[]).contains("nothing to run"));
}

fn published(file: &str) -> References {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(file);
    let mut reader = Reader::open(&path, &ReadOptions::default()).unwrap();
    References::read(&mut reader, &Shape::default()).unwrap()
}

/// Hit ratios in percent of the OLTP trace, as the ARC paper prints them (FAST 2003).
#[test]
fn oltp_agrees_with_the_arc_paper() {
    let refs = published("arc-OLTP.lis.zst");
    let published = [
        ("lru", [(1000, 32.83), (2000, 42.47), (5000, 53.65), (10_000, 60.70), (15_000, 64.63)]),
        ("arc", [(1000, 38.93), (2000, 46.08), (5000, 55.25), (10_000, 61.87), (15_000, 65.40)]),
    ];
    for (policy, figures) in published {
        for (size, wanted) in figures {
            let hits = 100.0 * (1.0 - misses(&refs, policy, size) as f64 / refs.len() as f64);
            assert!((hits - wanted).abs() < 0.02, "{policy}, {size} pages: {hits:.2} %, published {wanted} %");
        }
    }
}
