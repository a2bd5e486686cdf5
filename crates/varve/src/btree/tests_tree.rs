//! The tree against a `BTreeMap`: random operations, crashes, damage, threads, the simulation.

use super::harness::{Harness, Setup};
use crate::error::Error;
use std::collections::BTreeMap;
use std::ops::Bound::{self, *};
use std::sync::Arc;
use varve_models::MemDevice;
use varve_rt::Rng;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn devices() -> (Arc<MemDevice>, Arc<MemDevice>) {
    (MemDevice::new(0), MemDevice::new(0))
}

fn fresh(setup: &Setup) -> Harness {
    let (data, log) = devices();
    Harness::create(data, log, setup).unwrap()
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut b = vec![0; len];
    rng.fill_bytes(&mut b);
    b
}

/// Keys of several shapes, few enough to be met again.
fn random_key(rng: &mut Rng, longest: usize) -> Vec<u8> {
    match rng.below(10) {
        0 => (0..rng.below(6)).map(|_| rng.below(3) as u8).collect(),
        1 => vec![rng.below(4) as u8; 1 + rng.below(longest as u64) as usize],
        2..5 => [b"order".as_slice(), &(rng.below(20) as u32).to_be_bytes(), &(rng.below(300) as u32).to_be_bytes()]
            .concat(),
        _ => format!("user{:08}", rng.below(5000)).into_bytes(),
    }
}

fn random_value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(40) {
        0 => 5000 + rng.below(60_000),
        1..5 => rng.below(1500),
        _ => rng.below(120),
    };
    bytes(rng, len as usize)
}

fn compare(h: &Harness, model: &Model) {
    let report = h.check();
    assert!(report.is_clean(), "{:?}", report.damages);
    assert_eq!(report.keys, model.len() as u64);
    for reverse in [false, true] {
        let mut keys = Vec::new();
        h.scan(Unbounded, Unbounded, reverse, usize::MAX, |k, _| keys.push(k.to_vec())).unwrap();
        if reverse {
            keys.reverse();
        }
        assert!(keys.iter().eq(model.keys()), "scan, reverse {reverse}: {} keys of {}", keys.len(), model.len());
    }
    for (k, v) in model {
        assert_eq!(h.get(k).unwrap().as_ref(), Some(v), "{k:?}");
    }
}

fn random_range(rng: &mut Rng) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bound = |rng: &mut Rng| match rng.below(3) {
        0 => Unbounded,
        1 => Included(random_key(rng, 50)),
        _ => Excluded(random_key(rng, 50)),
    };
    (bound(rng), bound(rng))
}

fn as_slice(b: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match b {
        Unbounded => Unbounded,
        Included(k) => Included(k),
        Excluded(k) => Excluded(k),
    }
}

fn compare_range(h: &Harness, model: &Model, rng: &mut Rng) {
    let (from, to) = random_range(rng);
    let (from, to) = (as_slice(&from), as_slice(&to));
    let after = |k: &[u8]| match from {
        Unbounded => true,
        Included(f) => k >= f,
        Excluded(f) => k > f,
    };
    let before = |k: &[u8]| match to {
        Unbounded => true,
        Included(t) => k <= t,
        Excluded(t) => k < t,
    };
    let expected: Vec<&Vec<u8>> = model.keys().filter(|k| after(k) && before(k)).collect();
    let (reverse, limit) = (rng.below(2) == 1, 1 + rng.below(400) as usize);
    let mut found = Vec::new();
    h.scan(from, to, reverse, limit, |k, _| found.push(k.to_vec())).unwrap();
    let same = match reverse {
        false => expected.iter().take(limit).copied().eq(found.iter()),
        true => expected.iter().rev().take(limit).copied().eq(found.iter()),
    };
    assert!(
        same,
        "{from:?} {to:?} reverse {reverse} limit {limit}: {} found, {} expected",
        found.len(),
        expected.len()
    );
    assert_eq!(h.count(from, to).unwrap(), expected.len() as u64);
}

fn mixed(seed: u64, page_size: usize, frames: usize, steps: usize) {
    let mut rng = Rng::from_seed(seed);
    let setup = Setup::new(page_size, frames);
    let (data, log) = devices();
    let mut h = Harness::create(data.clone(), log.clone(), &setup).unwrap();
    let mut model = Model::new();
    let longest = super::leaf::max_key(page_size - 32);
    for step in 0..steps {
        // Phases of growth and of shrinking, so that divisions and merges both happen.
        let grow = (step / 1500) % 2 == 0;
        let key = random_key(&mut rng, longest);
        if rng.below(10) < if grow { 8 } else { 2 } {
            let value = random_value(&mut rng);
            let (existed, _) = h.put(&key, &value).unwrap();
            assert_eq!(existed, model.insert(key, value).is_some());
        } else {
            let key = model.range(key.clone()..).next().map_or(key, |e| e.0.clone());
            let (existed, _) = h.remove(&key).unwrap();
            assert_eq!(existed, model.remove(&key).is_some());
        }
        if step % 50 == 0 {
            compare_range(&h, &model, &mut rng);
        }
        if step % 1000 == 999 {
            compare(&h, &model);
        }
        if step % 2500 == 2499 {
            if rng.below(2) == 0 {
                h.checkpoint().unwrap();
            }
            h.sync().unwrap();
            h.stop();
            drop(h);
            h = Harness::open(data.clone(), log.clone(), &setup).unwrap();
            compare(&h, &model);
        }
    }
    h.clear().unwrap();
    compare(&h, &Model::new());
    assert_eq!(h.pages(), 2, "space map and root");
    h.stop();
}

#[test]
fn a_tree_is_a_sorted_map() {
    for (i, page_size) in [4096, 8192, 16384].into_iter().enumerate() {
        mixed(100 + i as u64, page_size, 64, 6000);
    }
}

#[test]
fn longest_keys_work_with_every_page_size() {
    for page_size in [4096, 8192, 16384] {
        let h = fresh(&Setup::new(page_size, 128));
        let longest = super::leaf::max_key(page_size - 32);
        assert_eq!(longest, if page_size == 4096 { 1024 } else { 2048 });
        let mut rng = Rng::from_seed(page_size as u64);
        let mut model = Model::new();
        for i in 0..300u32 {
            // Differing at the end, at the beginning, and anywhere.
            let mut key = match i % 3 {
                0 => vec![b'x'; longest],
                1 => vec![rng.below(250) as u8; longest],
                _ => bytes(&mut rng, longest),
            };
            if i % 3 == 0 {
                key[longest - 4..].copy_from_slice(&i.to_be_bytes());
            }
            let value = bytes(&mut rng, 300);
            h.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        compare(&h, &model);
        let too_long = vec![0; longest + 1];
        assert!(matches!(h.put(&too_long, b""), Err(Error::KeySize { max, .. }) if max == longest));
        for key in model.keys().cloned().collect::<Vec<_>>() {
            assert!(h.remove(&key).unwrap().0);
        }
        compare(&h, &Model::new());
        assert!(h.pages() <= 4, "{} pages remain", h.pages());
        h.stop();
    }
}

#[test]
fn space_comes_back() {
    let h = fresh(&Setup::new(4096, 256));
    let mut most = 0;
    for round in 0..4 {
        for i in 0..3000u32 {
            h.put(&(i * 7919 % 3000).to_be_bytes(), &[round; 100]).unwrap();
        }
        h.put(b"long", &vec![round; 100_000]).unwrap();
        if round == 0 {
            most = h.pages();
        }
        assert!(h.pages() <= most + most / 4, "{} pages, {most} at first", h.pages());
        for i in 0..3000u32 {
            assert!(h.remove(&i.to_be_bytes()).unwrap().0);
        }
        h.remove(b"long").unwrap();
        assert!(h.pages() <= 3, "{} pages remain", h.pages());
        assert!(h.check().is_clean());
    }
    h.stop();
}

#[test]
fn an_ascending_load_fills_its_pages() {
    let h = fresh(&Setup::new(16384, 256));
    let n = 20_000u32;
    for i in 0..n {
        h.put(format!("user{i:08}").as_bytes(), &[1; 100]).unwrap();
    }
    let used = n as u64 * 116 / 16384;
    assert!(h.pages() < used + used / 12 + 4, "{} pages for {used} of data", h.pages());
    assert!(h.check().is_clean());
    h.stop();
}

#[test]
fn bulk_loads_add_to_what_is_there() {
    for seed in 0..12u64 {
        let mut rng = Rng::from_seed(seed);
        let page_size = [4096, 8192, 16384][seed as usize % 3];
        let h = fresh(&Setup::new(page_size, 96));
        let longest = super::leaf::max_key(page_size - 32);
        let mut model = Model::new();
        // Some of the loads come upon an empty tree, some upon a leaf, some upon more; with long keys, long values, and
        // the last of all keys.
        for part in 0..3u8 {
            for _ in 0..rng.below(2) * rng.below(300) {
                let key = [&[b'0' + 2 * part], &random_key(&mut rng, longest - 1)[..]].concat();
                let value = random_value(&mut rng);
                h.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            let mut new = Model::new();
            for _ in 0..rng.below(3) * rng.below(2000) {
                new.insert(
                    [&[b'1' + 2 * part], &random_key(&mut rng, longest - 1)[..]].concat(),
                    random_value(&mut rng),
                );
            }
            if part == 2 {
                new.insert(vec![0xff; longest], b"last".to_vec());
            }
            h.load(new.iter().map(|(k, v)| (&k[..], &v[..])), 0.9).unwrap();
            model.extend(new);
            compare(&h, &model);
        }
        assert!(matches!(h.load([(&b"1"[..], &b""[..])], 1.0), Err(Error::Invalid(_))));
        assert!(matches!(h.load([(&[0xff; 3000][..], &b""[..])], 1.0), Err(Error::KeySize { .. })));
        for key in model.keys().step_by(3).cloned().collect::<Vec<_>>() {
            h.remove(&key).unwrap();
            model.remove(&key);
        }
        compare(&h, &model);
        h.stop();
    }
}

#[test]
fn a_bulk_load_fills_its_pages() {
    let h = fresh(&Setup::new(8192, 128));
    let keys: Vec<_> = (0..30_000u32).map(|i| format!("user{i:08}").into_bytes()).collect();
    h.load(keys.iter().map(|k| (&k[..], &[1; 100][..])), 1.0).unwrap();
    let used = keys.len() as u64 * 112 / 8192;
    assert!(h.pages() < used + used / 15 + 4, "{} pages for {used} of data", h.pages());
    assert!(h.check().is_clean());
    h.stop();
}

#[test]
fn threads_and_a_small_pool() {
    let h = Arc::new(fresh(&Setup::new(4096, 48)));
    run_threads(&h, 4, 3000, 11);
    h.stop();
}

/// Each thread has keys of its own, spread among those of the others, and a model of them; all scan everything now and
/// then.
fn run_threads(h: &Arc<Harness>, threads: u64, steps: usize, seed: u64) {
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let h = h.clone();
            varve_rt::spawn("worker", move || work(&h, t, threads, steps, Rng::from_seed(seed * 1000 + t)))
        })
        .collect();
    let mut all = Model::new();
    for worker in workers {
        match worker.join() {
            Ok(model) => all.extend(model),
            Err(_) => panic!("a worker panicked, seed {seed}"),
        }
    }
    compare(h, &all);
}

fn work(h: &Harness, me: u64, threads: u64, steps: usize, mut rng: Rng) -> Model {
    let mut model = Model::new();
    for step in 0..steps {
        let n = rng.below(400) * threads + me;
        let key = format!("key{n:05}").into_bytes();
        match rng.below(if (step / 500) % 2 == 0 { 12 } else { 30 }) {
            0..8 => {
                let len = if rng.below(50) == 0 { 9000 } else { rng.below(300) };
                let value = bytes(&mut rng, len as usize);
                let (existed, _) = h.put(&key, &value).unwrap();
                assert_eq!(existed, model.insert(key, value).is_some());
            }
            8..10 => assert_eq!(h.get(&key).unwrap(), model.get(&key).cloned()),
            10 if step % 20 == 0 => scan_own(h, me, threads, &model, rng.below(2) == 0),
            _ => {
                let (existed, _) = h.remove(&key).unwrap();
                assert_eq!(existed, model.remove(&key).is_some());
            }
        }
    }
    model
}

/// A scan is in order and finds every own key exactly once.
fn scan_own(h: &Harness, me: u64, threads: u64, model: &Model, reverse: bool) {
    let mut found: Vec<Vec<u8>> = Vec::new();
    h.scan(Unbounded, Unbounded, reverse, usize::MAX, |k, _| found.push(k.to_vec())).unwrap();
    if reverse {
        found.reverse();
    }
    assert!(found.is_sorted_by(|a, b| a < b));
    let own = |k: &&Vec<u8>| std::str::from_utf8(&k[3..]).unwrap().parse::<u64>().unwrap() % threads == me;
    assert!(found.iter().filter(own).eq(model.keys()));
}

#[test]
fn simulated_threads_with_chaos() {
    for seed in 1..=12 {
        let config = varve_rt::sim::Config { seed, chaos: true, ..Default::default() };
        let outcome = varve_rt::sim::run(config, move || {
            let h = Arc::new(fresh(&Setup::new(4096, 40)));
            run_threads(&h, 4, 700, seed);
            h.stop();
        });
        assert!(outcome.result.is_ok(), "seed {seed}: {:?}", outcome.result.err());
    }
}

#[test]
fn damage_is_named_and_never_a_panic() {
    let setup = Setup::new(4096, 64);
    let (data, log) = devices();
    let h = Harness::create(data.clone(), log.clone(), &setup).unwrap();
    for i in 0..2000u32 {
        h.put(&i.to_be_bytes(), &[i as u8; 50]).unwrap();
    }
    h.put(b"long", &[1; 20_000]).unwrap();
    h.checkpoint().unwrap();
    h.stop();
    drop(h);
    let mut rng = Rng::from_seed(5);
    let pages = data.len_pages(4096);
    let mut found = 0;
    for _ in 0..150 {
        // Below the checksum: the content is wrong, the checksum right.
        let copy = data.clone_image();
        let page = 1 + rng.below(pages - 1);
        let mut b = vec![0; 4096];
        copy.peek(page * 4096, &mut b);
        if b.iter().all(|x| *x == 0) {
            continue;
        }
        for _ in 0..1 + rng.below(3) {
            let within = if rng.below(2) == 0 { 100 } else { 4064 };
            let at = 32 + rng.below(within) as usize;
            b[at] = rng.below(256) as u8;
        }
        varve_volume::page::seal(&mut b, varve_volume::PageId(page));
        varve_device::write_at(&*copy, page * 4096, &b, true).unwrap();
        let Ok(h) = Harness::open(copy, log.clone_image(), &setup) else { continue };
        found += !h.check().is_clean() as u32;
        for i in 0..2000u32 {
            let _ = h.get(&i.to_be_bytes());
        }
        let _ = h.get(b"long");
        let _ = h.scan(Unbounded, Unbounded, false, usize::MAX, |_, _| {});
        let _ = h.scan(Unbounded, Unbounded, true, usize::MAX, |_, _| {});
        h.stop();
    }
    assert!(found > 20, "{found}");
}

trait Pages {
    fn len_pages(&self, size: u64) -> u64;
}

impl Pages for MemDevice {
    fn len_pages(&self, size: u64) -> u64 {
        varve_device::Device::len(self) / size
    }
}

/// An empty leaf cannot join a full one whose cells would grow with the shorter prefix of the two: clearing has to go
/// on behind it.
#[test]
fn clearing_goes_on_past_leaves_that_do_not_join() {
    let tree = fresh(&Setup::new(4096, 64));
    tree.put(b"a", b"first").unwrap();
    let long = vec![7u8; 3000];
    for group in 0..12u8 {
        let prefix = [vec![b'b' + group], vec![b'p'; 700]].concat();
        for i in 0..40u32 {
            let key = [&prefix[..], &i.to_be_bytes()].concat();
            let value: &[u8] = if i % 3 == 0 { &long } else { b"short" };
            tree.put(&key, value).unwrap();
        }
    }
    tree.clear().unwrap();
    assert_eq!(tree.count(Bound::Unbounded, Bound::Unbounded).unwrap(), 0);
    let report = tree.check();
    assert!(report.damages.is_empty(), "{report:?}");
    tree.stop();
}
