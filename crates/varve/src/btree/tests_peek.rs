//! Descents without latches: they find what latched ones find, and a page that is being changed is not believed.

use super::descend::Target;
use super::harness::{Harness, Setup};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use varve_models::MemDevice;
use varve_rt::Rng;

fn fresh(page_size: usize) -> Harness {
    Harness::create(MemDevice::new(0), MemDevice::new(0), &Setup::new(page_size, 4000)).unwrap()
}

/// Keys whose separators share heads, are prefixes of each other, and leave the node's prefix.
fn key(rng: &mut Rng) -> Vec<u8> {
    let stem: &[u8] =
        [b"".as_slice(), b"same", b"samehead", b"samehead\0\0\0\0", b"\xFF\xFF\xFF\xFF\xFF"][rng.below(5) as usize];
    let tail = (0..rng.below(40)).map(|_| b"\0ab\xFF"[rng.below(4) as usize]);
    stem.iter().copied().chain(tail).collect()
}

#[test]
fn an_unlatched_descent_finds_the_leaf_that_a_latched_one_finds() {
    for page_size in [4096, 16384] {
        let h = fresh(page_size);
        let mut rng = Rng::from_seed(page_size as u64);
        let value = vec![b'v'; page_size / 20];
        for _ in 0..8000 {
            h.put(&key(&mut rng), &value).unwrap();
        }
        let mut found = 0;
        for _ in 0..20_000 {
            let key = key(&mut rng);
            let latched = h.tree.latched_leaf_at(Target::Key(&key), None).unwrap().id();
            // None is for keys that break the prefix of a node on the way.
            if let Some(peek) = h.tree.peek_leaf(&key) {
                assert!(peek.confirm());
                assert_eq!(peek.leaf, latched, "{key:?}");
                found += 1;
            }
        }
        assert!(found > 18_000, "only {found} of 20000 found without latches");
        h.stop();
    }
}

#[test]
fn a_route_leads_where_descents_lead() {
    for page_size in [4096, 16384] {
        let h = fresh(page_size);
        let mut rng = Rng::from_seed(page_size as u64);
        let value = vec![b'v'; page_size / 20];
        for _ in 0..8000 {
            h.put(&key(&mut rng), &value).unwrap();
        }
        for many in [1, 3, 50, 4000] {
            let mut keys: Vec<Vec<u8>> = (0..many).map(|_| key(&mut rng)).collect();
            keys.sort();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let route = h.tree.ask_for(&keys);
            for (at, key) in keys.iter().enumerate() {
                let leaf = h.tree.latched_leaf_at(Target::Key(key), None).unwrap().id();
                assert_eq!(route.hint(at).map(|hint| hint.page), Some(leaf), "{key:?}, one of {many}");
                let next = keys.get(at + 1).map(|key| h.tree.latched_leaf_at(Target::Key(key), None).unwrap().id());
                assert_eq!(route.next(at), next.filter(|next| *next != leaf));
            }
            assert_eq!(route.hint(many), None);
        }
        h.stop();
    }
}

#[test]
fn a_root_that_is_a_leaf_has_no_route() {
    let h = fresh(4096);
    h.put(b"a", b"1").unwrap();
    assert_eq!(h.tree.ask_for(&[b"a", b"b"]).hint(0), None);
    h.stop();
}

#[test]
fn each_page_on_the_way_counts_once() {
    let h = fresh(4096);
    for i in 0..20_000u32 {
        h.put(&i.to_be_bytes(), &[7; 100]).unwrap();
    }
    let hits = || h.core.pool.stats().total().hits;
    let root = h.core.pool.read(h.tree.root()).unwrap().bytes()[super::node::LEVEL];
    assert!(root >= 2, "the tree has {root} levels of inner nodes");
    let before = hits();
    for i in 0..100u32 {
        h.get(&(i * 150).to_be_bytes()).unwrap().unwrap();
    }
    assert_eq!(hits() - before, 100 * u64::from(root + 1));
    h.stop();
}

#[test]
fn a_page_that_is_being_changed_is_not_believed() {
    let h = fresh(4096);
    for i in 0..2000u32 {
        h.put(&i.to_be_bytes(), &[7; 100]).unwrap();
    }
    let pool = &h.core.pool;
    let root = h.tree.root();
    let before = pool.peek(root).expect("in memory, unlatched");
    assert!(before.is_valid());
    drop(pool.read(root).unwrap());
    assert!(before.is_valid(), "shared latches change nothing");
    let held = pool.write(root).unwrap();
    assert!(pool.peek(root).is_none(), "latched exclusively");
    assert!(h.tree.peek_leaf(&5u32.to_be_bytes()).is_none());
    assert!(!before.is_valid());
    drop(held);
    assert!(!before.is_valid(), "it was latched since");
    assert!(pool.peek(root).is_some_and(|p| p.is_valid()));
    h.stop();
}

#[test]
fn keys_that_stay_are_found_while_leaves_come_and_go() {
    let (kept, others, times) = if cfg!(miri) { (20, 60, 1) } else { (2000, 8000, 6) };
    let h = Arc::new(fresh(4096));
    let stays = |i: u64| format!("stays{i:05}").into_bytes();
    for i in 0..kept {
        h.put(&stays(i), &i.to_le_bytes()).unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let reader = |seed: u64| {
        let (h, done) = (h.clone(), done.clone());
        varve_rt::spawn(format!("reader {seed}"), move || {
            let mut rng = Rng::from_seed(seed);
            while !done.load(Relaxed) {
                let i = rng.below(kept);
                assert_eq!(h.get(&stays(i)).unwrap().as_deref(), Some(i.to_le_bytes().as_slice()), "key {i}");
            }
        })
    };
    let readers = [reader(0), reader(1)];
    let mut rng = Rng::from_seed(9);
    for _ in 0..times {
        // Between the keys that stay, so that their leaves are divided and merged.
        let comes: Vec<_> = (0..others).map(|_| format!("stays{:05}x{}", rng.below(kept), rng.below(50))).collect();
        for k in &comes {
            h.put(k.as_bytes(), &[1; 120]).unwrap();
        }
        for k in &comes {
            h.remove(k.as_bytes()).unwrap();
        }
    }
    done.store(true, Relaxed);
    readers.into_iter().for_each(|r| r.join().unwrap());
    h.stop();
}
