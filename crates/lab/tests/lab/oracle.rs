//! The serializability checker against an oracle: for small histories every serial order is tried. Histories come
//! from interleaving a few transactions on one thread over stores of each isolation level.
//!
//! What the checker reports must have no serial order (it is sound). What has no serial order must be reported, unless
//! the checker says that it could only bound what was seen of an absent set key (it is complete but for that).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use varve_lab::adapter::mem::{Isolation, MemKeyspace, MemOptions, MemStore, MemTxn};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn as _};
use varve_lab::history::{CheckOptions, History, Keyspace, KeyspaceKind, Object, Op, Outcome, RealTime, Txn, check};
use varve_rt::Rng;

const LIST: u8 = 0;
const SET: u8 = 1;
const LEDGER: u8 = 2;
const KEYS: u32 = 2;

type State = BTreeMap<Object, Vec<u64>>;

/// Runs a transaction on a serial state; false if it would have seen something else than it has.
fn replay(state: &mut State, txn: &Txn) -> bool {
    for op in &txn.ops {
        let fits = match op {
            Op::Read { object, value } => state.get(object).map_or(&[][..], |v| v) == value,
            Op::Scan { keyspace, from, to, found } => {
                let [low, high] = [*from, *to].map(|key| Object { keyspace: *keyspace, key });
                state.range(low..high).map(|(o, v)| (o.key, v.clone())).eq(found.iter().cloned())
            }
            Op::Append { object, element } => {
                state.entry(*object).or_default().push(*element);
                true
            }
            Op::Insert { object, element } => {
                state.insert(*object, vec![*element]);
                true
            }
            Op::Delete { object, .. } => {
                state.remove(object);
                true
            }
        };
        if !fits {
            return false;
        }
    }
    true
}

/// Whether some serial order of the transactions left explains what they saw.
fn serial_order(txns: &[&Txn], left: &mut Vec<usize>, state: &State, real_time: bool) -> bool {
    if left.is_empty() {
        return true;
    }
    for i in 0..left.len() {
        let t = left[i];
        let first = !real_time || left.iter().all(|other| txns[*other].end >= txns[t].begin);
        let mut next = state.clone();
        if first && replay(&mut next, txns[t]) {
            left.remove(i);
            let found = serial_order(txns, left, &next, real_time);
            left.insert(i, t);
            if found {
                return true;
            }
        }
    }
    false
}

struct Running<'a> {
    tx: Option<MemTxn<'a>>,
    left: u64,
    seen: Txn,
}

struct World<'a> {
    store: &'a MemStore,
    keyspaces: [MemKeyspace; 3],
    rng: Rng,
    element: u64,
    sets: bool,
}

fn decode(value: Option<&[u8]>) -> Vec<u64> {
    value.unwrap_or_default().chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

impl<'a> World<'a> {
    fn read(&self, running: &mut Running<'a>, object: Object) -> Vec<u64> {
        let tx = running.tx.as_mut().unwrap();
        let value = tx.get(&self.keyspaces[object.keyspace as usize], &object.key.to_be_bytes(), decode).unwrap();
        running.seen.ops.push(Op::Read { object, value: value.clone() });
        value
    }

    fn put(&self, running: &mut Running<'a>, object: Object, value: &[u64]) {
        let bytes: Vec<u8> = value.iter().flat_map(|e| e.to_le_bytes()).collect();
        let ks = &self.keyspaces[object.keyspace as usize];
        running.tx.as_mut().unwrap().put(ks, &object.key.to_be_bytes(), &bytes).unwrap();
    }

    fn append(&self, running: &mut Running<'a>, object: Object, element: u64) {
        let mut value = self.read(running, object);
        value.push(element);
        self.put(running, object, &value);
        running.seen.ops.push(Op::Append { object, element });
    }

    fn step(&mut self, running: &mut Running<'a>) {
        let key = self.rng.below(u64::from(KEYS)) as u32;
        let writes = running.seen.mode == TxMode::ReadWrite;
        match self.rng.below(if self.sets { 7 } else { 4 }) {
            0 => {
                self.read(running, Object { keyspace: LIST, key });
            }
            1 | 2 if writes => {
                self.element += 1;
                self.append(running, Object { keyspace: LIST, key }, self.element);
            }
            4 | 5 if writes => self.write_set_key(running, Object { keyspace: SET, key }),
            4..=6 => self.scan(running, SET),
            _ => self.scan(running, LIST),
        }
    }

    fn write_set_key(&mut self, running: &mut Running<'a>, object: Object) {
        if running.seen.ops.iter().any(|op| op.written().is_some_and(|(o, _)| o == object)) {
            return;
        }
        self.element += 1;
        let element = self.element;
        if self.read(running, object).is_empty() {
            self.put(running, object, &[element]);
            running.seen.ops.push(Op::Insert { object, element });
        } else {
            let ks = &self.keyspaces[SET as usize];
            running.tx.as_mut().unwrap().delete(ks, &object.key.to_be_bytes()).unwrap();
            running.seen.ops.push(Op::Delete { object, element });
        }
        self.append(running, Object { keyspace: LEDGER, key: object.key }, element);
    }

    fn scan(&mut self, running: &mut Running<'a>, keyspace: u8) {
        let from = self.rng.below(u64::from(KEYS)) as u32;
        let to = from + 1 + self.rng.below(u64::from(KEYS - from)) as u32;
        let mut found = Vec::new();
        let tx = running.tx.as_mut().unwrap();
        let (low, high) = (from.to_be_bytes(), to.to_be_bytes());
        let range = KeyRange::new(&low, &high);
        tx.scan(&self.keyspaces[keyspace as usize], range, Direction::Forward, |k, v| {
            found.push((u32::from_be_bytes(k.try_into().unwrap()), decode(Some(v))));
            ControlFlow::Continue(())
        })
        .unwrap();
        running.seen.ops.push(Op::Scan { keyspace, from, to, found });
    }
}

/// Whether the committed transactions and some of those of unknown outcome have a serial order.
fn explained(history: &History, real_time: bool) -> bool {
    let of = |outcome| history.txns.iter().filter(move |t| t.outcome == outcome);
    let unknown: Vec<&Txn> = of(Outcome::Unknown).collect();
    (0..1 << unknown.len()).any(|subset| {
        let taken = unknown.iter().enumerate().filter(|(i, _)| subset & (1 << i) != 0).map(|(_, t)| *t);
        let txns: Vec<&Txn> = of(Outcome::Committed).chain(taken).collect();
        serial_order(&txns, &mut (0..txns.len()).collect(), &State::new(), real_time)
    })
}

/// Interleaves a few transactions on one thread.
fn interleave(seed: u64, isolation: Isolation, sets: bool, unknown: bool) -> History {
    let store = MemStore::new(MemOptions { isolation, ..MemOptions::default() });
    let keyspaces = ["list", "set", "ledger"].map(|name| store.keyspace(name).unwrap());
    let mut world = World { store: &store, keyspaces, rng: Rng::from_seed(seed), element: 0, sets };
    let (mut clock, mut running, mut history) = (0, Vec::<Running>::new(), Vec::new());
    let mut to_begin = world.rng.between(3, 7);
    while to_begin > 0 || !running.is_empty() {
        clock += 1;
        if to_begin > 0 && (running.is_empty() || running.len() < 4 && world.rng.one_in(3)) {
            to_begin -= 1;
            let mode = [TxMode::ReadWrite, TxMode::ReadWrite, TxMode::ReadOnly][world.rng.below(3) as usize];
            let tx = Some(world.store.begin(mode, Durability::Sync).unwrap());
            let (client, outcome) = (to_begin as u32, Outcome::Unknown);
            let seen = Txn { client, mode, begin: clock, end: u64::MAX, outcome, ops: Vec::new() };
            running.push(Running { tx, left: world.rng.between(1, 4), seen });
            continue;
        }
        let i = world.rng.below(running.len() as u64) as usize;
        if running[i].left > 0 {
            running[i].left -= 1;
            world.step(&mut running[i]);
            continue;
        }
        let mut done = running.swap_remove(i);
        let tx = done.tx.take().unwrap();
        done.seen.outcome = match world.rng.one_in(8) {
            true => {
                tx.rollback();
                Outcome::Aborted
            }
            false if tx.commit().is_ok() => Outcome::Committed,
            false => Outcome::Aborted,
        };
        done.seen.end = clock;
        if unknown && world.rng.one_in(4) {
            (done.seen.end, done.seen.outcome) = (u64::MAX, Outcome::Unknown);
        }
        history.push(done.seen);
    }
    let kinds = [KeyspaceKind::List, KeyspaceKind::Set { ledger: LEDGER }, KeyspaceKind::List];
    let name = |(name, kind): (&str, KeyspaceKind)| Keyspace { name: name.into(), kind };
    let keyspaces = ["list", "set", "ledger"].into_iter().zip(kinds).map(name).collect();
    History { keyspaces, txns: history }
}

#[test]
fn the_checker_agrees_with_trying_every_order() {
    let isolations = [
        Isolation::Serializable,
        Isolation::NoRangeChecks,
        Isolation::Snapshot,
        Isolation::ReadCommitted,
        Isolation::Dirty,
        Isolation::StaleReadOnly,
    ];
    let (mut bad, mut good, mut open) = (0, 0, 0);
    for seed in 0..800 {
        for isolation in isolations {
            for shape in 0..8 {
                let [sets, real_time, unknown] = [1, 2, 4].map(|bit| shape & bit != 0);
                let history = interleave(seed, isolation, sets, unknown);
                let expected = explained(&history, real_time);
                let demand = if real_time { RealTime::All } else { RealTime::None };
                let report = check(&history, &CheckOptions { real_time: demand, ..CheckOptions::default() });
                let what = || format!("seed {seed}, {isolation:?}, {sets}, {real_time}, {unknown}\n{report}");
                match (expected, report.serializable()) {
                    (true, true) => good += 1,
                    (false, false) => bad += 1,
                    (true, false) => panic!("reported, though there is a serial order: {}", what()),
                    (false, true) if report.ambiguous > 0 => open += 1,
                    (false, true) => panic!("not reported, though there is no serial order: {}\n{history:?}", what()),
                }
                assert!(isolation != Isolation::Serializable || expected, "the oracle is wrong: {}", what());
            }
        }
    }
    println!("{good} good, {bad} bad, {open} not decided");
    assert!(bad > 500 && good > 5000, "{good} good, {bad} bad");
    assert!(open * 50 < bad, "{open} not decided of {bad}");
}
