//! From a history to versions and dependencies.
//!
//! 1. Which transactions count: the committed ones, and those of unknown outcome of which another that counts has
//!    seen something.
//! 2. The chain of versions of each list: the longest value seen or written, of which every other must be a prefix.
//!    The chain of a set key is that of its ledger.
//! 3. Each observation (a key read, or a key of the history that lies in a range read) names a place in the chain, or,
//!    for an absent set key, a span of places.
//! 4. The edges.

use std::collections::BTreeMap;

use varve_rt::{HashMap, HashSet};

use super::check::{Anomaly, AnomalyKind};
use super::graph::{Dependency, Edge};
use super::{Element, History, KeyspaceKind, Object, Op, Outcome, Txn};

/// No node: the transaction does not count.
pub(super) const NONE: u32 = u32::MAX;

/// The one write of an element to a list, or the one insertion or deletion of a set key.
#[derive(Clone, Copy)]
struct Write {
    txn: u32,
    object: Object,
    delete: bool,
    /// Whether its transaction wrote the object again afterwards.
    again: bool,
}

/// Versions of an object: version 0 is "absent", version i is what the write of `elements[i - 1]` left.
#[derive(Default)]
pub(super) struct Chain {
    pub elements: Vec<Element>,
    /// Node of the writer of each element, or [`NONE`].
    pub writers: Vec<u32>,
    /// For the ledger of a set key: the versions in which the key is absent, ascending, 0 among them.
    pub absent: Vec<u32>,
}

impl Chain {
    /// Node of the transaction that wrote version `i`; none for version 0 and past the end.
    pub fn writer(&self, version: u32) -> Option<u32> {
        let at = (version as usize).checked_sub(1)?;
        self.writers.get(at).copied().filter(|node| *node != NONE)
    }
}

/// What a transaction knew of an object when it looked at it.
struct Look<'a> {
    object: Object,
    value: &'a [Element],
    /// What the object holds if the transaction sees its own writes; `None`: it has not written it.
    own: Option<Vec<Element>>,
    /// Looked at by a range read that did not find it.
    phantom: bool,
}

/// Something in a range read that is wrong in itself.
struct BadScan(String);

/// An absent set key that may have been seen in any of several versions: places `low` to `high` in `Chain::absent`.
#[derive(Clone, Copy)]
pub(super) struct Ambiguous {
    pub node: u32,
    pub object: u32,
    pub low: usize,
    pub high: usize,
    pub phantom: bool,
}

/// All that was inferred.
#[derive(Default)]
pub(super) struct Inferred {
    /// Index into the history of each node's transaction.
    pub txns: Vec<usize>,
    pub objects: Vec<Object>,
    pub chains: Vec<Chain>,
    pub edges: Vec<Edge>,
    pub ambiguous: Vec<Ambiguous>,
    /// Absent keys that a deletion of unknown outcome may explain.
    pub unexplained: usize,
    /// What is wrong without any cycle.
    pub anomalies: Vec<Anomaly>,
}

/// Infers versions and dependencies. `before(a, b)`: whether transaction `a` certainly precedes `b` by the clock.
pub(super) fn infer(history: &History, before: impl Fn(&Txn, &Txn) -> bool) -> Inferred {
    let mut inference = Inference::new(history);
    inference.index_writes();
    inference.choose_transactions();
    inference.note_maybe_deleted();
    inference.register_objects();
    inference.build_chains();
    inference.observe(&before);
    inference.write_edges();
    inference.out
}

struct Inference<'h> {
    history: &'h History,
    out: Inferred,
    /// Node of each transaction of the history.
    node: Vec<u32>,
    appends: HashMap<Element, Write>,
    set_writes: HashMap<Element, Write>,
    index: BTreeMap<Object, u32>,
    /// Deletions of set keys by transactions that do not count because nothing shows that they took effect: the
    /// transaction, and the length of the ledger it read. A reader that finds the key absent may have seen that, since
    /// a deletion leaves no element to be seen.
    maybe_deleted: HashMap<Object, Vec<(u32, usize)>>,
    /// Place of each element in its list's chain, counted from 1.
    place: HashMap<Element, u32>,
    /// Conflicting list values already reported: object and place.
    reported: HashSet<(Object, usize)>,
}

impl<'h> Inference<'h> {
    fn new(history: &'h History) -> Self {
        Inference {
            history,
            out: Inferred::default(),
            node: vec![NONE; history.txns.len()],
            appends: HashMap::default(),
            set_writes: HashMap::default(),
            index: BTreeMap::new(),
            maybe_deleted: HashMap::default(),
            place: HashMap::default(),
            reported: HashSet::default(),
        }
    }

    fn ledger(&self, object: Object) -> Option<Object> {
        match self.history.keyspaces.get(object.keyspace as usize)?.kind {
            KeyspaceKind::List => None,
            KeyspaceKind::Set { ledger } => Some(Object { keyspace: ledger, key: object.key }),
        }
    }

    fn anomaly(&mut self, kind: AnomalyKind, txns: &[usize], text: String) {
        self.out.anomalies.push(Anomaly::direct(kind, txns.to_vec(), text));
    }

    fn name(&self, object: Object) -> String {
        super::print::object(self.history, object)
    }

    fn index_writes(&mut self) {
        for (t, txn) in self.history.txns.iter().enumerate() {
            for (i, op) in txn.ops.iter().enumerate() {
                let Some((object, element)) = op.written() else { continue };
                let again = txn.ops[i + 1..].iter().any(|o| o.written().is_some_and(|(other, _)| other == object));
                let write = Write { txn: t as u32, object, delete: matches!(op, Op::Delete { .. }), again };
                let map = if matches!(op, Op::Append { .. }) { &mut self.appends } else { &mut self.set_writes };
                if let Some(first) = map.insert(element, write) {
                    let text = format!("element {element} is written twice; the history cannot be judged");
                    self.anomaly(AnomalyKind::Malformed, &[first.txn as usize, t], text);
                }
            }
        }
    }

    /// Gives a node to each transaction that counts.
    fn choose_transactions(&mut self) {
        let txns = &self.history.txns;
        let mut counts: Vec<bool> = txns.iter().map(|t| t.outcome == Outcome::Committed).collect();
        let mut todo: Vec<usize> = (0..txns.len()).filter(|t| counts[*t]).collect();
        while let Some(t) = todo.pop() {
            let mut see = |elements: &[Element]| {
                for element in elements {
                    let writers = [self.appends.get(element), self.set_writes.get(element)];
                    for w in writers.into_iter().flatten().map(|write| write.txn as usize) {
                        if !counts[w] && txns[w].outcome == Outcome::Unknown {
                            counts[w] = true;
                            todo.push(w);
                        }
                    }
                }
            };
            for op in &txns[t].ops {
                match op {
                    Op::Read { value, .. } => see(value),
                    Op::Scan { found, .. } => found.iter().for_each(|(_, value)| see(value)),
                    _ => {}
                }
            }
        }
        for t in (0..txns.len()).filter(|t| counts[*t]) {
            self.node[t] = self.out.txns.len() as u32;
            self.out.txns.push(t);
        }
    }

    fn note_maybe_deleted(&mut self) {
        for (t, txn) in self.history.txns.iter().enumerate() {
            if txn.outcome != Outcome::Unknown || self.node[t] != NONE {
                continue;
            }
            let mut written: Vec<(Object, usize)> = Vec::new();
            self.walk(txn, |_| {}, |object, value| written.push((object, value.len() - 1)));
            for op in &txn.ops {
                let Op::Delete { object, .. } = op else { continue };
                let ledger = self.ledger(*object);
                let read = written.iter().find(|(o, _)| Some(*o) == ledger).map_or(usize::MAX, |(_, len)| *len);
                self.maybe_deleted.entry(*object).or_default().push((t as u32, read));
            }
        }
    }

    fn register_objects(&mut self) {
        let mut add = |object| _ = self.index.entry(object).or_insert(0);
        for t in &self.out.txns {
            for op in &self.history.txns[*t].ops {
                match op {
                    Op::Scan { keyspace, found, .. } => {
                        found.iter().for_each(|(key, _)| add(Object { keyspace: *keyspace, key: *key }));
                    }
                    Op::Read { object, .. } => add(*object),
                    other => add(other.written().expect("neither read nor scan").0),
                }
            }
        }
        for (i, (object, index)) in self.index.iter_mut().enumerate() {
            *index = i as u32;
            self.out.objects.push(*object);
            self.out.chains.push(Chain::default());
        }
    }

    /// Calls `look` for all that a transaction looked at, keys absent from its range reads included, and `wrote` for
    /// each list value it wrote.
    fn walk(
        &self,
        txn: &'h Txn,
        mut look: impl FnMut(Result<Look<'h>, BadScan>),
        mut wrote: impl FnMut(Object, &[Element]),
    ) {
        let mut own: Vec<(Object, Vec<Element>)> = Vec::new();
        let mut read: Vec<(Object, &'h [Element])> = Vec::new();
        for op in &txn.ops {
            let own_of = |object: Object| own.iter().rev().find(|(o, _)| *o == object).map(|(_, value)| value.clone());
            match op {
                Op::Read { object, value } => {
                    look(Ok(Look { object: *object, value, own: own_of(*object), phantom: false }));
                    read.push((*object, value));
                }
                Op::Scan { keyspace, from, to, found } => {
                    let ascending = found.windows(2).all(|pair| pair[0].0 < pair[1].0);
                    if !ascending || found.iter().any(|(key, _)| !(*from..*to).contains(key)) {
                        let keys: Vec<u32> = found.iter().map(|(key, _)| *key).collect();
                        look(Err(BadScan(format!("a range read of {from}..{to} found the keys {keys:?}"))));
                        continue;
                    }
                    if from >= to {
                        continue;
                    }
                    let [low, high] = [*from, *to].map(|key| Object { keyspace: *keyspace, key });
                    for (object, _) in self.index.range(low..high) {
                        let place = found.binary_search_by_key(&object.key, |(key, _)| *key).ok();
                        let value: &[Element] = place.map_or(&[], |i| &found[i].1);
                        look(Ok(Look { object: *object, value, own: own_of(*object), phantom: place.is_none() }));
                    }
                }
                Op::Append { object, element } => {
                    let last_read = || read.iter().rev().find(|(o, _)| o == object).map(|(_, value)| value.to_vec());
                    if let Some(mut value) = own_of(*object).or_else(last_read) {
                        value.push(*element);
                        wrote(*object, &value);
                        own.push((*object, value));
                    }
                }
                Op::Insert { object, element } => own.push((*object, vec![*element])),
                Op::Delete { object, .. } => own.push((*object, Vec::new())),
            }
        }
    }

    fn build_chains(&mut self) {
        for t in self.out.txns.clone() {
            let mut values: Vec<(Object, Vec<Element>)> = Vec::new();
            let mut seen: Vec<(Object, &[Element])> = Vec::new();
            self.walk(
                &self.history.txns[t],
                |look| {
                    if let Ok(look) = look
                        && self.ledger(look.object).is_none()
                    {
                        seen.push((look.object, look.value));
                    }
                },
                |object, value| values.push((object, value.to_vec())),
            );
            seen.into_iter().for_each(|(object, value)| self.offer(t, object, value));
            values.into_iter().for_each(|(object, value)| self.offer(t, object, &value));
        }
        for (i, chain) in self.out.chains.iter_mut().enumerate() {
            let object = self.out.objects[i];
            chain.absent.push(0);
            for (place, element) in (1..).zip(&chain.elements) {
                let write = self.appends.get(element).filter(|write| write.object == object);
                chain.writers.push(write.map_or(NONE, |write| self.node[write.txn as usize]));
                self.place.insert(*element, place);
                if self.set_writes.get(element).is_some_and(|write| write.delete) {
                    chain.absent.push(place);
                }
            }
        }
    }

    /// Takes a value of a list for its chain if it is longer.
    fn offer(&mut self, t: usize, object: Object, value: &[Element]) {
        let chain = &mut self.out.chains[self.index[&object] as usize].elements;
        let at = chain.iter().zip(value).position(|(a, b)| a != b);
        match at {
            None if value.len() > chain.len() => *chain = value.to_vec(),
            None => {}
            Some(at) => {
                let (ours, theirs) = (chain[at], value[at]);
                let chain = chain.clone();
                if self.reported.insert((object, at)) {
                    self.conflicting(t, object, at, (ours, &chain), (theirs, value));
                }
            }
        }
    }

    /// Two values of a list, neither of which is a prefix of the other.
    fn conflicting(
        &mut self,
        t: usize,
        object: Object,
        at: usize,
        (a, left): (Element, &[Element]),
        (b, right): (Element, &[Element]),
    ) {
        let name = self.name(object);
        let after = |element: Element| {
            let write = self.appends.get(&element)?;
            let txn = &self.history.txns[write.txn as usize];
            let mut start = None;
            self.walk(
                txn,
                |_| {},
                |o, v| start = start.or((o == object && v.last() == Some(&element)).then_some(v.len())),
            );
            (start == Some(at + 1) && self.node[write.txn as usize] != NONE).then_some(write.txn as usize)
        };
        if let (Some(x), Some(y)) = (after(a), after(b)) {
            let text = format!("of {name}, both read {:?}; one appended {a} to it, the other {b}", &left[..at]);
            self.anomaly(AnomalyKind::LostUpdate, &[x, y], text);
            return;
        }
        let text = format!("{name} was seen as {left:?} and as {right:?}: neither continues the other");
        let writers = [a, b].into_iter().filter_map(|e| self.appends.get(&e)).map(|w| w.txn as usize);
        let txns: Vec<usize> = [t].into_iter().chain(writers).collect();
        self.anomaly(AnomalyKind::IncompatibleOrder, &txns, text);
    }

    fn observe(&mut self, before: &impl Fn(&Txn, &Txn) -> bool) {
        for node in 0..self.out.txns.len() as u32 {
            let t = self.out.txns[node as usize];
            let mut looks = Vec::new();
            self.walk(&self.history.txns[t], |look| looks.push(look), |_, _| {});
            for look in looks {
                match look {
                    Err(BadScan(text)) => self.anomaly(AnomalyKind::Malformed, &[t], text),
                    Ok(look) => match self.ledger(look.object) {
                        None => self.observe_list(node, t, &look),
                        Some(ledger) => self.observe_set_key(node, t, &look, ledger, before),
                    },
                }
            }
        }
    }

    /// Reports a value that does not show the transaction's own writes.
    fn check_own(&mut self, t: usize, look: &Look<'_>) -> bool {
        match &look.own {
            Some(own) if *own != look.value => {
                let text = format!("{} is {own:?} by its own writes, read as {:?}", self.name(look.object), look.value);
                self.anomaly(AnomalyKind::Internal, &[t], text);
                false
            }
            _ => true,
        }
    }

    /// Reports an element that was never written, or by a transaction that aborted.
    fn check_element(&mut self, t: usize, object: Object, element: Element, set: bool) -> bool {
        let map = if set { &self.set_writes } else { &self.appends };
        let name = self.name(object);
        match map.get(&element).copied() {
            Some(write) if write.object == object && !(set && write.delete) => {
                let txn = write.txn as usize;
                let fine = self.node[txn] != NONE || txn == t;
                if !fine {
                    let text = format!("{name} was read with {element}, whose transaction was rolled back");
                    self.anomaly(AnomalyKind::G1a, &[t, txn], text);
                }
                fine
            }
            _ => {
                self.anomaly(
                    AnomalyKind::Garbage,
                    &[t],
                    format!("{name} was read with {element}, never written to it"),
                );
                false
            }
        }
    }

    fn observe_list(&mut self, node: u32, t: usize, look: &Look<'_>) {
        if !self.check_own(t, look) {
            return;
        }
        let object = self.index[&look.object];
        let chain = &self.out.chains[object as usize];
        let version = look.value.len() as u32;
        let fits = look.value.len() <= chain.elements.len() && *look.value == chain.elements[..look.value.len()];
        // Elements of the chain with a node were written by transactions that count; only the others need a look.
        let suspects: Vec<Element> = match fits {
            true => look.value.iter().zip(&chain.writers).filter(|(_, n)| **n == NONE).map(|(e, _)| *e).collect(),
            false => look.value.to_vec(),
        };
        let mut fine = fits;
        for element in suspects {
            fine &= self.check_element(t, look.object, element, false);
        }
        if !fine {
            return;
        }
        if let Some(last) = look.value.last() {
            let write = self.appends[last];
            if write.again && write.txn as usize != t {
                let text =
                    format!("{} was read as {:?}, which its writer changed again", self.name(look.object), look.value);
                return self.anomaly(AnomalyKind::G1b, &[t, write.txn as usize], text);
            }
        }
        self.edges_of_version(node, object, object, version, look.phantom);
    }

    /// Edges of a transaction that saw version `version` of `object`, whose chain is that of `ledger`.
    fn edges_of_version(&mut self, node: u32, object: u32, ledger: u32, version: u32, phantom: bool) {
        let chain = &self.out.chains[ledger as usize];
        let before = chain.writer(version).filter(|w| *w != node);
        let after = chain.writer(version + 1).filter(|w| *w != node);
        let kind = if phantom { Dependency::PhantomReadWrite } else { Dependency::ReadWrite };
        let edge = |from, to, kind| Edge { from, to, kind, object, version };
        self.out.edges.extend(before.map(|w| edge(w, node, Dependency::WriteRead)));
        self.out.edges.extend(after.map(|w| edge(node, w, kind)));
    }

    fn observe_set_key(
        &mut self,
        node: u32,
        t: usize,
        look: &Look<'_>,
        ledger: Object,
        before: &impl Fn(&Txn, &Txn) -> bool,
    ) {
        if !self.check_own(t, look) {
            return;
        }
        let object = self.index[&look.object];
        let Some(ledger) = self.index.get(&ledger).copied() else {
            // Nobody ever wrote the key, so it can only be absent.
            look.value.iter().for_each(|element| _ = self.check_element(t, look.object, *element, true));
            return;
        };
        match look.value {
            [] if look.own.is_some() => {} // its own deletion
            [] => self.observe_absent(node, t, (object, ledger), look.phantom, before),
            [element] => {
                if !self.check_element(t, look.object, *element, true) {
                    return;
                }
                match self.place.get(element).copied() {
                    Some(version) => self.edges_of_version(node, object, ledger, version, look.phantom),
                    None => {
                        let name = self.name(look.object);
                        let text =
                            format!("{name} was read with {element}, which its ledger lacks: half a transaction");
                        let writer = self.set_writes[element].txn as usize;
                        self.anomaly(AnomalyKind::IncompatibleOrder, &[t, writer], text);
                    }
                }
            }
            more => {
                let text = format!("{} was read as {more:?}; it holds one element or none", self.name(look.object));
                self.anomaly(AnomalyKind::Garbage, &[t], text);
            }
        }
    }

    /// Bounds the version in which an absent key was seen by the clock.
    fn observe_absent(
        &mut self,
        node: u32,
        t: usize,
        (object, ledger): (u32, u32),
        phantom: bool,
        before: &impl Fn(&Txn, &Txn) -> bool,
    ) {
        let chain = &self.out.chains[ledger as usize];
        let txn = |node: u32| &self.history.txns[self.out.txns[node as usize]];
        let me = &self.history.txns[t];
        let key = self.out.objects[object as usize];
        // After the last version the key may be gone if a deletion of unknown outcome followed on the whole chain.
        let end = chain.elements.len();
        let maybe = self.maybe_deleted.get(&key).is_some_and(|deletions| {
            deletions.iter().any(|(t, read)| *read >= end && !before(me, &self.history.txns[*t as usize]))
        });
        let mut places = chain.absent.clone();
        places.extend(maybe.then_some(end as u32 + 1));
        let mut high = places.len() - 1;
        // What it wrote to the key itself came after this look at it.
        let written = |op: &Op| match op {
            Op::Insert { object, element } | Op::Delete { object, element } => {
                (*object == key).then(|| self.place.get(element).copied()).flatten()
            }
            _ => None,
        };
        if let Some(own) = me.ops.iter().find_map(written) {
            high = places.partition_point(|place| *place < own).max(1) - 1;
        }
        while high > 0 && chain.writer(places[high]).is_some_and(|w| before(me, txn(w))) {
            high -= 1;
        }
        let mut low = 0;
        while low < high && chain.writer(places[low] + 1).is_some_and(|w| before(txn(w), me)) {
            low += 1;
        }
        if places[high] as usize > end {
            // Any later version is possible; what is certain is that the first possible one was there.
            self.out.unexplained += 1;
            let writer = chain.writer(places[low]).filter(|w| *w != node);
            let (kind, version) = (Dependency::WriteRead, places[low]);
            self.out.edges.extend(writer.map(|from| Edge { from, to: node, kind, object, version }));
            return;
        }
        let ambiguous = Ambiguous { node, object, low, high, phantom };
        self.out.edges_of_absent(ambiguous, ledger);
        if low < high {
            self.out.ambiguous.push(Ambiguous { object: ledger, ..ambiguous });
        }
    }

    fn write_edges(&mut self) {
        for (object, chain) in self.out.chains.iter().enumerate() {
            for (i, pair) in chain.writers.windows(2).enumerate() {
                let [from, to] = [pair[0], pair[1]];
                if from != to && from != NONE && to != NONE {
                    let (object, version) = (object as u32, i as u32 + 1);
                    self.out.edges.push(Edge { from, to, kind: Dependency::WriteWrite, object, version });
                }
            }
        }
    }
}
