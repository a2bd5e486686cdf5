//! The serializability checker on histories that are known to be bad or good, and generator and checker together on
//! stores of each isolation level.

use std::sync::Arc;
use std::time::Duration;

use varve_lab::adapter::TxMode;
use varve_lab::adapter::mem::{Isolation, MemOptions, MemStore};
use varve_lab::history::generate::recorder;
use varve_lab::history::{
    AnomalyKind, CheckOptions, GenerateOptions, History, Keyspace, KeyspaceKind, Object, Op, Outcome, RealTime, Report,
    Txn, check, generate,
};
use varve_rt::sim;

fn list(key: u32) -> Object {
    Object { keyspace: 0, key }
}
fn set(key: u32) -> Object {
    Object { keyspace: 1, key }
}
fn ledger(key: u32) -> Object {
    Object { keyspace: 2, key }
}
fn read(object: Object, value: &[u64]) -> Op {
    Op::Read { object, value: value.to_vec() }
}
fn append(object: Object, element: u64) -> Op {
    Op::Append { object, element }
}
fn scan(keyspace: u8, from: u32, to: u32, found: &[(u32, &[u64])]) -> Op {
    let found = found.iter().map(|(key, value)| (*key, value.to_vec())).collect();
    Op::Scan { keyspace, from, to, found }
}

/// Transactions that all overlap unless a test says otherwise.
struct Maker(History);

impl Maker {
    fn new() -> Maker {
        let keyspaces =
            [("list", KeyspaceKind::List), ("set", KeyspaceKind::Set { ledger: 2 }), ("ledger", KeyspaceKind::List)];
        let keyspaces = keyspaces.map(|(name, kind)| Keyspace { name: name.into(), kind }).to_vec();
        Maker(History { keyspaces, txns: Vec::new() })
    }

    fn txn(&mut self, ops: &[Op]) -> &mut Txn {
        let client = self.0.txns.len() as u32;
        let (mode, outcome) = (TxMode::ReadWrite, Outcome::Committed);
        self.0.txns.push(Txn { client, mode, begin: 0, end: 1_000_000, outcome, ops: ops.to_vec() });
        self.0.txns.last_mut().unwrap()
    }

    /// A transaction that began and ended at these ticks.
    fn at(&mut self, begin: u64, end: u64, ops: &[Op]) -> &mut Txn {
        let txn = self.txn(ops);
        (txn.begin, txn.end) = (begin, end);
        txn
    }

    fn check(&self) -> Report {
        check(&self.0, &CheckOptions::default())
    }

    /// Checks that exactly one anomaly of this class is found.
    #[track_caller]
    fn expect(&self, kind: AnomalyKind, real_time: bool) -> Report {
        let report = self.check();
        let found: Vec<_> = report.anomalies.iter().map(|a| (a.kind, a.real_time)).collect();
        assert_eq!(found, [(kind, real_time)], "{report}");
        report
    }

    #[track_caller]
    fn expect_good(&self) {
        let report = self.check();
        assert!(report.serializable(), "{report}");
    }
}

#[test]
fn a_serial_history_is_good() {
    let mut h = Maker::new();
    h.at(1, 2, &[read(list(1), &[]), append(list(1), 1), read(list(1), &[1])]);
    h.at(3, 4, &[read(list(1), &[1]), append(list(1), 2), scan(0, 0, 9, &[(1, &[1, 2])])]);
    h.at(5, 6, &[scan(0, 0, 9, &[(1, &[1, 2])]), read(list(2), &[])]);
    h.at(
        7,
        8,
        &[read(set(5), &[]), Op::Insert { object: set(5), element: 3 }, read(ledger(5), &[]), append(ledger(5), 3)],
    );
    h.at(9, 10, &[scan(1, 0, 9, &[(5, &[3])])]);
    h.at(
        11,
        12,
        &[read(set(5), &[3]), Op::Delete { object: set(5), element: 4 }, read(ledger(5), &[3]), append(ledger(5), 4)],
    );
    h.at(13, 14, &[scan(1, 0, 9, &[]), read(set(5), &[])]);
    h.expect_good();
}

#[test]
fn overlapping_transactions_may_be_ordered_either_way() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[2]), read(list(1), &[2]), append(list(1), 1)]);
    h.txn(&[read(list(1), &[]), append(list(1), 2)]);
    h.txn(&[read(list(1), &[2, 1])]);
    h.txn(&[read(list(1), &[])]);
    h.expect_good();
}

#[test]
fn lost_update() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1)]);
    h.txn(&[read(list(1), &[]), append(list(1), 2)]);
    h.txn(&[read(list(1), &[2])]);
    let report = h.check();
    assert!(report.has(AnomalyKind::LostUpdate), "{report}");
    assert_eq!(report.anomalies[0].txns, [0, 1]);
}

#[test]
fn dirty_write() {
    let mut h = Maker::new();
    h.txn(&[append(list(1), 1), append(list(2), 1001)]);
    h.txn(&[append(list(1), 2), append(list(2), 1002)]);
    h.txn(&[read(list(1), &[1, 2]), read(list(2), &[1002, 1001])]);
    h.expect(AnomalyKind::G0, false);
}

#[test]
fn aborted_read_and_dirty_read() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1)]).outcome = Outcome::Aborted;
    h.txn(&[read(list(1), &[1])]);
    h.expect(AnomalyKind::G1a, false);

    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1), read(list(1), &[1]), append(list(1), 2)]);
    h.txn(&[read(list(1), &[1])]);
    h.expect(AnomalyKind::G1b, false);
}

#[test]
fn circular_information_flow() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1), read(list(2), &[2])]);
    h.txn(&[read(list(2), &[]), append(list(2), 2), read(list(1), &[1])]);
    h.expect(AnomalyKind::G1c, false);
}

#[test]
fn non_repeatable_read_and_read_skew() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), read(list(1), &[1])]);
    h.txn(&[read(list(1), &[]), append(list(1), 1)]);
    let report = h.expect(AnomalyKind::GSingle, false);
    assert_eq!(report.anomalies[0].txns.len(), 2, "{report}");

    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1), read(list(2), &[]), append(list(2), 2)]);
    h.txn(&[read(list(1), &[]), read(list(2), &[2])]);
    h.expect(AnomalyKind::GSingle, false);
}

#[test]
fn write_skew() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), read(list(2), &[]), append(list(1), 1)]);
    h.txn(&[read(list(1), &[]), read(list(2), &[]), append(list(2), 2)]);
    h.txn(&[read(list(1), &[1]), read(list(2), &[2])]);
    let report = h.expect(AnomalyKind::G2Item, false);
    assert!(report.to_string().contains("write skew"), "{report}");
    assert!(report.to_string().contains("NOT serializable"), "{report}");
}

#[test]
fn phantoms() {
    // Two transactions each insert into a range that the other found empty.
    let mut h = Maker::new();
    h.txn(&[scan(0, 0, 10, &[]), read(list(15), &[]), append(list(15), 1)]);
    h.txn(&[scan(0, 10, 20, &[]), read(list(5), &[]), append(list(5), 2)]);
    h.txn(&[read(list(5), &[2]), read(list(15), &[1])]);
    h.expect(AnomalyKind::G2Phantom, false);

    // The same with set keys.
    let mut h = Maker::new();
    let insert = |key, e| [Op::Insert { object: set(key), element: e }, read(ledger(key), &[]), append(ledger(key), e)];
    h.txn(&[&[scan(1, 0, 10, &[])], &insert(15, 1)[..]].concat());
    h.txn(&[&[scan(1, 10, 20, &[])], &insert(5, 2)[..]].concat());
    h.expect(AnomalyKind::G2Phantom, false);

    // A range read misses an insertion whose other half it sees.
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 7), read(list(5), &[]), append(list(5), 8)]);
    h.txn(&[read(list(1), &[7]), scan(0, 4, 6, &[])]);
    h.expect(AnomalyKind::G2Phantom, false);
}

#[test]
fn a_deleted_key_that_is_still_seen() {
    let mut h = Maker::new();
    let other = |e| [read(list(1), &[]), append(list(1), e)];
    h.txn(&[Op::Insert { object: set(5), element: 1 }, read(ledger(5), &[]), append(ledger(5), 1)]);
    let delete =
        [read(set(5), &[1]), Op::Delete { object: set(5), element: 2 }, read(ledger(5), &[1]), append(ledger(5), 2)];
    h.txn(&[&delete[..], &other(9)].concat());
    h.txn(&[read(list(1), &[9]), scan(1, 0, 9, &[(5, &[1])])]);
    h.expect(AnomalyKind::GSingle, false);
}

#[test]
fn an_absent_key_between_lives_is_placed_by_what_else_was_read() {
    let life = |e: u64, before: &[u64]| {
        let insert = Op::Insert { object: set(5), element: e };
        let delete = Op::Delete { object: set(5), element: e + 1 };
        let then = [before, &[e]].concat();
        [
            vec![read(set(5), &[]), insert, read(ledger(5), before), append(ledger(5), e)],
            vec![read(set(5), &[e]), delete, read(ledger(5), &then), append(ledger(5), e + 1)],
        ]
    };
    let make = |seen: &[u64]| {
        let mut h = Maker::new();
        let mut so_far = Vec::new();
        for e in [1, 3, 5] {
            let [mut insert, delete] = life(e, &so_far);
            // Each insertion leaves a mark in a list.
            let marks: Vec<u64> = so_far.iter().filter(|e| *e % 2 == 1).map(|e| e + 100).collect();
            insert.extend([read(list(1), &marks), append(list(1), e + 100)]);
            h.txn(&insert);
            so_far.push(e);
            if e < 5 {
                h.txn(&delete);
                so_far.push(e + 1);
            }
        }
        h.txn(&[read(list(1), seen), scan(1, 0, 9, &[])]);
        h
    };
    // Absent after the first or second life, or before all: fine. After the third insertion it never was.
    make(&[]).expect_good();
    make(&[101]).expect_good();
    make(&[101, 103]).expect_good();
    make(&[101, 103, 105]).expect(AnomalyKind::G2Phantom, false);
}

#[test]
fn stale_reads_violate_real_time_order_only() {
    let mut h = Maker::new();
    h.at(1, 2, &[read(list(1), &[]), append(list(1), 1)]);
    h.at(3, 4, &[read(list(1), &[])]).mode = TxMode::ReadOnly;
    h.expect(AnomalyKind::GSingle, true);
    let lax = CheckOptions { real_time: RealTime::None, ..CheckOptions::default() };
    assert!(check(&h.0, &lax).serializable());

    // Of a snapshot real-time order is demanded only if asked for.
    h.0.txns[1].mode = TxMode::Snapshot;
    h.expect_good();
    let strict = CheckOptions { real_time: RealTime::All, ..CheckOptions::default() };
    assert!(!check(&h.0, &strict).serializable());

    // A key deleted long ago is not seen before it was inserted.
    let mut h = Maker::new();
    h.at(1, 2, &[Op::Insert { object: set(1), element: 1 }, read(ledger(1), &[]), append(ledger(1), 1)]);
    h.at(3, 4, &[scan(1, 0, 5, &[])]);
    h.at(
        5,
        6,
        &[read(set(1), &[1]), Op::Delete { object: set(1), element: 2 }, read(ledger(1), &[1]), append(ledger(1), 2)],
    );
    h.expect(AnomalyKind::G2Phantom, true);
}

#[test]
fn long_fork_of_snapshots() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1)]);
    h.txn(&[read(list(2), &[]), append(list(2), 2)]);
    h.txn(&[read(list(1), &[1]), read(list(2), &[])]).mode = TxMode::Snapshot;
    h.txn(&[read(list(1), &[]), read(list(2), &[2])]).mode = TxMode::Snapshot;
    let report = h.expect(AnomalyKind::G2Item, false);
    assert!(report.to_string().contains("long fork"), "{report}");
    assert_eq!(report.anomalies[0].txns.len(), 4);
}

#[test]
fn values_that_cannot_be() {
    let mut h = Maker::new();
    h.txn(&[read(list(1), &[77])]);
    h.expect(AnomalyKind::Garbage, false);

    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1), read(list(1), &[])]);
    h.expect(AnomalyKind::Internal, false);

    let mut h = Maker::new();
    h.txn(&[read(list(1), &[]), append(list(1), 1)]);
    h.txn(&[read(list(2), &[]), append(list(2), 2)]);
    h.txn(&[scan(0, 0, 9, &[(2, &[2]), (1, &[1])])]);
    h.expect(AnomalyKind::Malformed, false);

    let mut h = Maker::new();
    h.txn(&[append(list(1), 1)]);
    h.txn(&[append(list(1), 2)]);
    h.txn(&[read(list(1), &[1, 2])]);
    h.txn(&[read(list(1), &[2, 1])]);
    h.expect(AnomalyKind::IncompatibleOrder, false);
}

#[test]
fn unknown_outcomes_count_only_if_seen() {
    let mut h = Maker::new();
    let txn = h.at(1, u64::MAX, &[read(list(1), &[]), append(list(1), 1)]);
    txn.outcome = Outcome::Unknown;
    h.at(3, 4, &[read(list(1), &[])]);
    h.expect_good();
    h.at(5, 6, &[read(list(1), &[1])]);
    h.expect_good();
    h.at(7, 8, &[read(list(1), &[])]);
    let report = h.check();
    assert!(!report.serializable(), "{report}");
}

/// Generates a history on the threads of where it runs, and checks it.
fn run(isolation: Isolation, options: GenerateOptions) -> Report {
    let op_time = Duration::from_micros(2);
    let store = Arc::new(MemStore::new(MemOptions { isolation, op_time, ..MemOptions::default() }));
    let recorder = Arc::new(recorder("history"));
    generate(&store, &recorder, &options).expect("the store does not fail");
    check(&recorder.take(), &CheckOptions { real_time: RealTime::All, ..CheckOptions::default() })
}

/// The same in virtual time: what overlaps is drawn from the seed, not left to the load of the machine.
fn simulate(isolation: Isolation, options: GenerateOptions) -> Report {
    let config = sim::Config { seed: options.seed, chaos: true, ..sim::Config::default() };
    let outcome = sim::run(config, move || run(isolation, options));
    outcome.result.unwrap_or_else(|failure| panic!("seed {}: {failure}", options.seed))
}

/// Options under which transactions overlap.
fn mixed(seed: u64) -> GenerateOptions {
    GenerateOptions {
        seed,
        clients: 4,
        transactions: 150,
        pause: Duration::from_micros(50),
        ..GenerateOptions::default()
    }
}

#[test]
fn a_serializable_store_makes_serializable_histories() {
    for seed in 0..4 {
        // On OS threads, where anything may overlap, or nothing.
        let report = run(Isolation::Serializable, mixed(seed));
        assert!(report.serializable(), "seed {seed}\n{report}");

        let report = simulate(Isolation::Serializable, mixed(seed));
        assert!(report.serializable(), "seed {seed}\n{report}");
        assert!(report.committed > 300 && report.aborted > 0, "seed {seed}\n{report}");
        assert!(report.dependencies.iter().all(|n| *n > 0), "every kind of dependency occurs\n{report}");
    }
}

/// Runs until an anomaly of one of these classes is found; at most 40 seeds.
#[track_caller]
fn finds(isolation: Isolation, change: impl Fn(&mut GenerateOptions), kinds: &[AnomalyKind], real_time: bool) {
    let mut last = String::new();
    for seed in 0..40 {
        // What a weak store deletes need not be what it has shown before.
        let mut options = GenerateOptions { range_deletes: 0.0, ..mixed(seed) };
        change(&mut options);
        let report = simulate(isolation, options);
        if report.anomalies.iter().any(|a| kinds.contains(&a.kind) && a.real_time == real_time) {
            return;
        }
        last = report.to_string();
    }
    panic!("{isolation:?}: none of {kinds:?} found in 40 seeds\n{last}");
}

#[test]
fn weaker_isolation_is_found_out() {
    use AnomalyKind::*;
    finds(Isolation::ReadCommitted, |_| {}, &[LostUpdate], false);
    let readers = |o: &mut GenerateOptions| (o.appends, o.set_writes, o.ops) = (0.1, 0.0, 12);
    finds(Isolation::ReadCommitted, readers, &[GSingle], false);
    finds(Isolation::Snapshot, |_| {}, &[G2Item], false);
    finds(Isolation::Dirty, |o| o.rollbacks = 0.3, &[G1a], false);
    finds(Isolation::StaleReadOnly, |_| {}, &[GSingle], true);
    // Phantoms of their own: ranges are read, lists are not.
    let ranges = |o: &mut GenerateOptions| (o.scans, o.set_writes, o.appends) = (0.5, 0.5, 0.0);
    finds(Isolation::NoRangeChecks, ranges, &[G2Phantom], false);
}

#[test]
fn a_hundred_thousand_transactions() {
    // Made by hand, one at a time in effect, with overlapping intervals and every kind of operation.
    let mut h = Maker::new();
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); 40_000];
    let mut rng = varve_rt::Rng::from_seed(3);
    for t in 0..100_000u64 {
        let base = (t / 4) as u32;
        let keys: Vec<u32> = (0..3).map(|_| base + rng.below(6) as u32).collect();
        let mut ops = Vec::new();
        for (n, key) in (0..).zip(&keys) {
            let value = &mut lists[*key as usize];
            ops.push(read(list(*key), value));
            if rng.one_in(2) {
                let element = t * 3 + n + 1;
                value.push(element);
                ops.push(append(list(*key), element));
            }
        }
        let found = (base..base + 6).filter(|key| !lists[*key as usize].is_empty());
        let found = found.map(|key| (key, lists[key as usize].clone())).collect();
        ops.push(Op::Scan { keyspace: 0, from: base, to: base + 6, found });
        h.at(10 * t, 10 * t + 25, &ops);
    }
    h.expect_good();
    // One read in the middle that is one version behind, by a transaction that began after that version was there.
    let t = (50_000..).find(|t| matches!(h.0.txns[*t].ops[1], Op::Append { .. })).expect("half of them append");
    let Op::Read { object, value } = h.0.txns[t].ops[0].clone() else { panic!("begins with a read") };
    h.at(10 * t as u64 + 100, 10 * t as u64 + 110, &[read(object, &value)]);
    h.expect(AnomalyKind::GSingle, true);
}
