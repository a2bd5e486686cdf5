//! The lock table against an oracle that knows who may hold what, on OS threads; and directed cases.

use super::*;
use crate::budget::{CLASSES, Class};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Duration;
use varve_rt::{Mutex, Rng, channel, sim, sleep, spawn, yield_now};

const KEYS: u64 = 12;

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Who holds what, by the book: each grant is checked against all others.
#[derive(Default)]
struct Oracle {
    keys: BTreeMap<(usize, u64), BTreeMap<OwnerId, bool>>,
    grants: u64,
}

impl Oracle {
    fn grant(&mut self, space: usize, keys: std::ops::Range<u64>, owner: OwnerId, exclusive: bool) {
        for k in keys {
            let holders = self.keys.entry((space, k)).or_default();
            for (other, theirs) in holders.iter().filter(|(o, _)| **o != owner) {
                assert!(
                    !exclusive && !theirs,
                    "key {k}: granted to {owner} (X: {exclusive}) while {other} holds it (X: {theirs})"
                );
            }
            *holders.entry(owner).or_default() |= exclusive;
        }
        self.grants += 1;
    }

    fn release(&mut self, owner: OwnerId) {
        for holders in self.keys.values_mut() {
            holders.remove(&owner);
        }
    }
}

struct World {
    table: Arc<LockTable>,
    spaces: [Arc<KeyspaceLocks>; 2],
    oracle: Mutex<Oracle>,
    /// A transaction's share of lock memory, if it is not as usual.
    share: Option<u64>,
}

impl World {
    fn new() -> Arc<World> {
        World::with(Budget::unlimited(), None)
    }

    fn with(budget: Budget, share: Option<u64>) -> Arc<World> {
        let table = LockTable::new(Arc::new(budget));
        let spaces = [table.keyspace("one"), table.keyspace("two")];
        Arc::new(World { table, spaces, oracle: Mutex::default(), share })
    }

    fn assert_empty(&self) {
        for space in &self.spaces {
            space.check();
            assert_eq!((space.locked_keys(), space.intervals()), (0, 0));
        }
        assert_eq!(self.table.stats().waiting, 0);
    }
}

/// One transaction with a few random locks. True when it got them all.
fn random_transaction(world: &World, rng: &mut Rng) -> bool {
    let mut locks = LockSet::new(&world.table, None);
    locks.set_share(world.share);
    let owner = locks.id();
    for _ in 0..1 + rng.below(5) {
        let at = rng.below(2) as usize;
        let space = &world.spaces[at];
        let exclusive = rng.below(2) == 0;
        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
        let (a, b) = (rng.below(KEYS), rng.below(KEYS));
        let (low, high) = (a.min(b), a.max(b));
        let (result, keys, exclusive) = match rng.below(10) {
            0..7 => (locks.lock_key(space, &key(low), mode), low..low + 1, exclusive),
            7 => (locks.lock_range(space, (Included(&key(low)), Included(&key(high))), mode), low..high + 1, exclusive),
            8 => (locks.lock_range(space, (Excluded(&key(low)), Unbounded), mode), low + 1..KEYS, exclusive),
            _ => (locks.lock_range(space, (Unbounded, Excluded(&key(high))), Mode::Shared), 0..high, false),
        };
        if let Err(error) = result {
            assert!(error.is_retryable(), "{error}");
            world.oracle.lock().release(owner);
            return false;
        }
        world.oracle.lock().grant(at, keys, owner, exclusive);
        if rng.below(3) == 0 {
            yield_now();
        }
    }
    world.oracle.lock().release(owner);
    true
}

/// Random transactions on several threads; ends with an empty table.
fn stress(seed: u64, threads: u64, transactions: u64) -> (u64, u64) {
    stress_in(&World::new(), seed, threads, transactions)
}

fn stress_in(world: &Arc<World>, seed: u64, threads: u64, transactions: u64) -> (u64, u64) {
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let world = world.clone();
            spawn("client", move || {
                let mut rng = Rng::from_seed(seed * 1000 + t);
                (0..transactions).filter(|_| random_transaction(&world, &mut rng)).count() as u64
            })
        })
        .collect();
    let done = workers.into_iter().map(|w| w.join().unwrap_or_else(|p| panic!("seed {seed}: {p:?}"))).sum();
    world.assert_empty();
    (done, world.table.stats().deadlocks)
}

#[test]
fn threads_never_hold_conflicting_locks_and_all_finish() {
    for seed in 0..20 {
        let (done, deadlocks) = stress(seed, 4, 400);
        assert!(done > 400, "seed {seed}: only {done} transactions got their locks, {deadlocks} deadlocks");
    }
}

type Order = Box<dyn FnOnce(&mut LockSet) -> Result<()> + Send>;

/// Bytes of locks that are a handful, as a share.
const TINY: u64 = 500;

/// The oracle knows what was asked for; coarser locks hold that at least, and give all of it back.
#[test]
fn coarser_locks_conflict_with_what_the_fine_ones_did() {
    for seed in 0..5 {
        let world = World::with(Budget::unlimited(), Some(TINY));
        let (done, deadlocks) = stress_in(&world, seed, 4, 200);
        assert!(done > 100, "seed {seed}: only {done} transactions got their locks, {deadlocks} deadlocks");
        assert!(world.table.stats().coarsened > 50, "seed {seed}: {:?}", world.table.stats());
    }
    for seed in 0..60 {
        let config = sim::Config { seed, chaos: true, cores: 4, ..sim::Config::default() };
        let (done, _) =
            sim::run(config, move || stress_in(&World::with(Budget::unlimited(), Some(TINY)), seed, 5, 40)).unwrap();
        assert!(done > 20, "seed {seed}: only {done} transactions got their locks");
    }
}

/// However many keys a transaction locks, in whatever order, its locks stay within its share, nearly.
#[test]
fn a_transaction_locks_any_number_of_keys() {
    let mut limits = [u64::MAX / 2; CLASSES.len()];
    limits[Class::Locks as usize] = 256 << 10;
    for (mode, other) in [(Mode::Shared, Mode::Exclusive), (Mode::Exclusive, Mode::Shared)] {
        for stride in [1, 7919] {
            let world = World::with(Budget::new(limits), None);
            let space = &world.spaces[0];
            let mut locks = LockSet::new(&world.table, None);
            for n in 0..20_000 {
                locks.lock_key(space, &key(1000 + n * stride % 20_000), mode).unwrap();
            }
            let used = world.table.budget.used(Class::Locks);
            assert!(used < 96 << 10, "{used} bytes of locks");
            assert!(world.table.stats().coarsened > 0);
            space.check();
            // Far away from all of them nobody is in the way, and between them the others are.
            let mut apart = LockSet::new(&world.table, None);
            for n in [0, 999, 21_000, 1 << 40] {
                apart.lock_key(space, &key(n), Mode::Exclusive).unwrap();
            }
            world.table.set_timeout(Some(Duration::from_millis(1)));
            for n in [1000, 7777, 20_999] {
                let error = apart.lock_key(space, &key(n), other).unwrap_err();
                assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
            }
            if mode == Mode::Shared {
                apart.lock_key(space, &key(7777), Mode::Shared).unwrap();
            }
            drop((locks, apart));
            world.assert_empty();
        }
    }
}

/// Where others stand between, a transaction that reads keeps fine locks as long as there is memory; where waiting
/// closes a cycle, one gives way.
#[test]
fn coarser_locks_are_waited_for_and_deadlocks_found() {
    sim::run(sim::Config::default(), || {
        let world = World::with(Budget::unlimited(), Some(TINY));
        let space = world.spaces[0].clone();
        let [old, young] = [Client::new(&world.table), Client::new(&world.table)];
        young.key(&space, 5, Mode::Exclusive);
        young.results.recv().unwrap().unwrap();
        // It needs an interval over key 5 soon, and waits for the young one.
        let many = space.clone();
        old.send(|l| {
            l.set_share(Some(TINY));
            Ok(())
        });
        old.results.recv().unwrap().unwrap();
        old.send(move |l| (0..40).filter(|n| *n != 5).try_for_each(|n| l.lock_key(&many, &key(n), Mode::Exclusive)));
        sleep(Duration::from_millis(1));
        assert!(old.results.try_recv().is_err(), "it waits");
        // The young one waits for the old one now: a cycle.
        young.key(&space, 0, Mode::Exclusive);
        assert!(young.results.recv().unwrap().unwrap_err().is_retryable());
        old.results.recv().unwrap().unwrap();
        old.end();
        drop((old, young));
        assert!(world.table.stats().coarsened > 0);
        world.assert_empty();
    })
    .unwrap();
}

#[test]
fn in_simulation_with_chaos_too() {
    for seed in 0..60 {
        let config = sim::Config { seed, chaos: true, cores: 4, ..sim::Config::default() };
        // A wake-up that is lost makes the simulation stuck, which is a failure.
        let (done, _) = sim::run(config, move || stress(seed, 5, 40)).unwrap();
        assert!(done > 40, "seed {seed}: only {done} transactions got their locks");
    }
}

struct Client {
    orders: channel::Sender<Order>,
    results: channel::Receiver<Result<()>>,
}

impl Client {
    /// A thread with a transaction of its own; older clients are those made first.
    fn new(table: &Arc<LockTable>) -> Client {
        let (orders, inbox) = channel::unbounded::<Order>();
        let (outbox, results) = channel::unbounded();
        let mut locks = LockSet::new(table, None);
        spawn("client", move || {
            while let Ok(order) = inbox.recv() {
                let result = order(&mut locks);
                if result.is_err() {
                    locks.release();
                }
                let _ = outbox.send(result);
            }
        });
        Client { orders, results }
    }

    fn send(&self, order: impl FnOnce(&mut LockSet) -> Result<()> + Send + 'static) {
        self.orders.send(Box::new(order)).unwrap_or_else(|_| panic!("client thread ended"));
    }

    fn key(&self, space: &Arc<KeyspaceLocks>, n: u64, mode: Mode) {
        let space = space.clone();
        self.send(move |l| l.lock_key(&space, &key(n), mode));
    }

    fn range(&self, space: &Arc<KeyspaceLocks>, low: u64, high: u64, mode: Mode) {
        let space = space.clone();
        self.send(move |l| l.lock_range(&space, (Included(&key(low)), Included(&key(high))), mode));
    }

    fn end(&self) {
        self.send(|l| {
            l.release();
            Ok(())
        });
        self.results.recv().unwrap().unwrap();
    }

    fn got(&self) -> Result<()> {
        self.results.recv().expect("client thread ended")
    }
}

fn until_waiting(table: &LockTable, n: u64) {
    while table.stats().waiting != n {
        sleep(Duration::from_micros(50));
    }
}

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// Many locks are given up shard by shard: at once where nobody else has any, one by one beside those of others.
#[test]
fn of_many_locks_those_of_others_stay_and_who_waits_gets_his() {
    let w = World::new();
    let [many, other, waiter] = [(); 3].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    let space = s.clone();
    many.send(move |l| (0..500).try_for_each(|n| l.lock_key(&space, &key(n), if n % 3 == 0 { S } else { X })));
    many.got().unwrap();
    for n in [0, 1000] {
        other.key(s, n, S);
        other.got().unwrap();
    }
    s.check();
    waiter.key(s, 7, X);
    until_waiting(&w.table, 1);
    many.end();
    waiter.got().unwrap();
    s.check();
    assert_eq!(s.locked_keys(), 3, "those of the two others");
    other.key(s, 499, X);
    other.got().unwrap();
    [&waiter, &other].iter().for_each(|client| client.end());
    w.assert_empty();
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let w = World::new();
    let [a, b, c] = [(); 3].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    a.key(s, 1, S);
    a.got().unwrap();
    b.key(s, 1, X);
    until_waiting(&w.table, 1);
    c.key(s, 1, S);
    until_waiting(&w.table, 2);
    a.end();
    b.got().unwrap();
    until_waiting(&w.table, 1);
    b.end();
    c.got().unwrap();
    c.end();
    w.assert_empty();
}

#[test]
fn two_upgrades_cost_the_younger_only() {
    let w = World::new();
    let [a, b] = [(); 2].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    a.key(s, 1, S);
    a.got().unwrap();
    b.key(s, 1, S);
    b.got().unwrap();
    b.key(s, 1, X);
    until_waiting(&w.table, 1);
    a.key(s, 1, X);
    let error = b.got().unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("0x0000000000000001"), "{error}");
    a.got().unwrap();
    a.end();
    w.assert_empty();
}

/// A reader in the queue waits for a holder that asks for more after it, although only a writer stood between them
/// then.
#[test]
fn a_deadlock_over_an_upgrade_that_came_later_is_found() {
    let w = World::new();
    let [holder, upgrader, reader, writer] = [(); 4].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    for client in [&holder, &upgrader] {
        client.key(s, 1, S);
        client.got().unwrap();
    }
    reader.key(s, 2, X);
    reader.got().unwrap();
    writer.key(s, 1, X); // waits for both holders
    until_waiting(&w.table, 1);
    reader.key(s, 1, S); // waits for the writer
    until_waiting(&w.table, 2);
    upgrader.key(s, 1, X); // waits for the holder, ahead of all
    until_waiting(&w.table, 3);
    holder.key(s, 2, S); // waits for the reader: two cycles, one of them not through the writer
    assert!(writer.got().unwrap_err().is_retryable());
    assert!(reader.got().unwrap_err().is_retryable());
    holder.got().unwrap();
    holder.end();
    upgrader.got().unwrap();
    upgrader.end();
    w.assert_empty();
    assert_eq!(w.table.stats().deadlocks, 2);
}

#[test]
fn a_scan_waits_for_writers_and_keeps_new_ones_out() {
    let w = World::new();
    let [a, b, c] = [(); 3].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    a.key(s, 5, X);
    a.got().unwrap();
    b.range(s, 1, 9, S);
    until_waiting(&w.table, 1);
    c.key(s, 6, X);
    until_waiting(&w.table, 2);
    // The scan waits for `a`, so `a` may still write inside of it.
    a.key(s, 7, X);
    a.got().unwrap();
    a.end();
    b.got().unwrap();
    until_waiting(&w.table, 1);
    // Its owner does not wait for the writer that waits for it.
    b.key(s, 6, X);
    b.got().unwrap();
    b.end();
    c.got().unwrap();
    c.end();
    w.assert_empty();
}

#[test]
fn a_range_deletion_excludes_readers_of_its_keys() {
    let w = World::new();
    let [a, b, c] = [(); 3].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    a.key(s, 5, S);
    a.got().unwrap();
    b.range(s, 4, 6, X);
    until_waiting(&w.table, 1);
    a.end();
    b.got().unwrap();
    c.key(s, 6, S);
    until_waiting(&w.table, 1);
    b.key(s, 6, X);
    b.got().unwrap();
    b.end();
    c.got().unwrap();
    c.end();
    w.assert_empty();
}

#[test]
fn a_cycle_through_keys_and_intervals_costs_its_youngest() {
    let w = World::new();
    let [a, b, c] = [(); 3].map(|()| Client::new(&w.table));
    let s = &w.spaces[0];
    a.key(s, 1, X);
    a.got().unwrap();
    b.range(s, 10, 20, S);
    b.got().unwrap();
    c.key(s, 2, X);
    c.got().unwrap();
    a.key(s, 15, X); // waits for b
    until_waiting(&w.table, 1);
    c.key(s, 1, S); // waits for a
    until_waiting(&w.table, 2);
    b.key(s, 2, S); // waits for c: the cycle a, b, c
    assert!(c.got().unwrap_err().is_retryable());
    b.got().unwrap();
    b.end();
    a.got().unwrap();
    a.end();
    w.assert_empty();
    assert_eq!(w.table.stats().deadlocks, 1);
}

#[test]
fn a_full_lock_budget_is_an_error_and_costs_nothing_held() {
    let mut limits = [0; CLASSES.len()];
    limits[Class::Locks as usize] = 256 * 1024;
    let budget = Arc::new(Budget::new(limits));
    let table = LockTable::new(budget.clone());
    let space = table.keyspace("one");
    // Owners of one key each: nothing can be made coarser.
    let mut owners: Vec<LockSet> = Vec::new();
    let error = loop {
        let mut locks = LockSet::new(&table, None);
        match locks.lock_key(&space, &key(owners.len() as u64), X) {
            Ok(()) => owners.push(locks),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OverBudget { class: "locks", .. }), "{error}");
    assert!(owners.len() > 500, "{}", owners.len());
    assert_eq!(space.locked_keys(), owners.len());
    space.check();
    owners[0].lock_key(&space, &key(0), X).unwrap();
    owners.iter_mut().for_each(LockSet::release);
    assert_eq!(space.locked_keys(), 0);
    drop((owners, space));
    assert_eq!(budget.used(Class::Locks), 0);
}

/// The index leaves out no range that a look at all of them would find, and gives none twice.
#[test]
fn the_index_of_ranges_finds_all_that_meet() {
    use super::interval::touch;
    use super::range_index::RangeIndex;
    use crate::txn::key::{contains, overlap};
    use std::ops::Bound::{self, Excluded, Included, Unbounded};
    type Owned = (Bound<Vec<u8>>, Bound<Vec<u8>>);
    fn borrowed(range: &Owned) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (range.0.as_ref().map(|k| &k[..]), range.1.as_ref().map(|k| &k[..]))
    }
    for seed in 0..200u64 {
        let mut rng = Rng::from_seed(seed);
        // Few bytes, short keys: common beginnings of every length.
        let key = |rng: &mut Rng| (0..rng.below(5)).map(|_| rng.below(3) as u8).collect::<Vec<u8>>();
        let bound = |rng: &mut Rng, key: Vec<u8>| match rng.below(5) {
            0 => Unbounded,
            1 | 2 => Excluded(key),
            _ => Included(key),
        };
        let (mut index, mut all) = (RangeIndex::default(), Vec::<(u64, Owned)>::new());
        for ticket in 0..120u64 {
            let (mut a, mut b) = (key(&mut rng), key(&mut rng));
            if a > b {
                std::mem::swap(&mut a, &mut b);
            }
            let range: Owned = match rng.below(4) {
                0 => (Included(a.clone()), Included(a)),
                _ => (bound(&mut rng, a), bound(&mut rng, b)),
            };
            let mut near: Vec<u64> = index.near(borrowed(&range)).collect();
            near.sort_unstable();
            let found = near.len();
            near.dedup();
            assert_eq!(found, near.len(), "seed {seed}: a range is found twice");
            let one = key(&mut rng);
            let near_key: Vec<u64> = index.near_key(&one).collect();
            for (other, there) in &all {
                let meets = overlap(borrowed(&range), borrowed(there)) || touch(borrowed(&range), borrowed(there));
                assert!(!meets || near.contains(other), "seed {seed}: {there:?} is not near {range:?}");
                let holds = contains(borrowed(there), &one);
                assert!(!holds || near_key.contains(other), "seed {seed}: {there:?} is not near {one:?}");
            }
            index.insert(borrowed(&range), ticket);
            all.push((ticket, range));
            if rng.below(3) == 0 {
                let (ticket, range) = all.swap_remove(rng.below(all.len() as u64) as usize);
                index.remove(borrowed(&range), ticket);
            }
        }
        for (ticket, range) in all.drain(..) {
            index.remove(borrowed(&range), ticket);
        }
        assert_eq!(index.near((Unbounded, Unbounded)).count(), 0);
    }
}

/// The filter misses no range of another owner, and lets the owner of the only range there pass.
#[test]
fn the_filter_of_ranges_misses_none_of_another() {
    use super::range_filter::{RangeFilter, place};
    fn range(of: &[u8; 2], to: u8) -> Bounds<'_> {
        (Included(&of[..]), if to == 0 { Included(&of[..]) } else { Excluded(&[0xff, 0xff][..]) })
    }
    let mut rng = Rng::from_seed(7);
    let filter = RangeFilter::new();
    let mut held: Vec<(OwnerId, [u8; 2], u8)> = Vec::new();
    for _ in 0..4000 {
        if held.len() > 6 || (!held.is_empty() && rng.below(3) == 0) {
            let (owner, of, to) = held.swap_remove(rng.below(held.len() as u64) as usize);
            filter.take_out(place(range(&of, to)), owner);
        } else {
            let (owner, of, to) = (1 + rng.below(3), [rng.below(4) as u8, rng.below(4) as u8], rng.below(8) as u8);
            filter.add(place(range(&of, to)), owner);
            held.push((owner, of, to));
        }
        let key = [rng.below(4) as u8, rng.below(4) as u8];
        let holds = |(_, of, to): &&(OwnerId, [u8; 2], u8)| if *to == 0 { *of == key } else { *of <= key };
        for asker in 1..4 {
            let others = held.iter().filter(holds).any(|(owner, ..)| *owner != asker);
            assert!(!others || filter.may_hold_beside(asker, &key), "{held:?}: {key:?} asked by {asker}");
        }
        assert!(filter.may_hold(&key) || !held.iter().any(|r| holds(&r)));
    }
    for (owner, of, to) in held {
        filter.take_out(place(range(&of, to)), owner);
    }
    filter.add(place(range(&[1, 1], 0)), 5);
    assert!(!filter.may_hold_beside(5, &[1, 1]) && filter.may_hold_beside(6, &[1, 1]) && filter.may_hold(&[1, 1]));
}
