//! Waiting for locks: one cell per wait, and the waits-for graph in which deadlocks are found.
//!
//! Only a thread that is about to wait touches the graph. It first stands in a lock's queue, then enters the owners it
//! waits for, then looks for a cycle through itself: the last member of a cycle to enter sees all of it. The youngest
//! member (by birth, then by identity) gives way. A cell is decided once, by compare-and-swap: `GRANTED` by whoever
//! hands the lock over, `VICTIM` by whoever found the cycle, or `GIVEN_UP` by the waiter itself; the loser of that race
//! changes nothing.
//!
//! A transaction that the waiting thread runs in `transact` waits, in effect, for that wait to end: it stands in the
//! graph too meanwhile.
//!
//! Invariants: a cell is decided once; an owner is in the graph only while it waits; nobody waits for himself.
//!
//! Lock order: the graph's mutex is taken with no shard or interval list locked, or inside one of them; inside it, or
//! inside a shard, the list of a cell's later blockers.

use std::collections::BTreeMap;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU8, Ordering};
use varve_rt::{Event, Instant, Mutex};

/// Identity of a lock owner; never used twice.
pub(crate) type OwnerId = u64;

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const VICTIM: u8 = 2;
const GIVEN_UP: u8 = 3;

/// One wait of one owner.
pub(super) struct WaitCell {
    pub owner: OwnerId,
    /// Owners that came to stand ahead after the cell was queued: holders that ask for more.
    later: Mutex<Vec<OwnerId>>,
    state: AtomicU8,
    decided: Event,
}

impl WaitCell {
    pub fn new(owner: OwnerId) -> Arc<WaitCell> {
        let (state, decided) = (AtomicU8::new(WAITING), Event::new());
        Arc::new(WaitCell { owner, later: Mutex::new(Vec::new()), state, decided })
    }

    /// The waiter now waits for `owner` too. To be said before `owner` enters the graph, so that one of the two sees
    /// it.
    pub fn also_waits_for(&self, owner: OwnerId) {
        self.later.lock().push(owner);
    }

    fn decide(&self, state: u8) -> bool {
        let won = self.state.compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won {
            self.decided.set();
        }
        won
    }

    /// Ends the wait with the lock in hand; false when the waiter was told to give way first.
    pub fn grant(&self) -> bool {
        self.decide(GRANTED)
    }

    /// The waiter ends its wait without the lock; false when that was decided before.
    pub fn give_up(&self) -> bool {
        self.decide(GIVEN_UP)
    }

    fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    /// This owner has to give way.
    Victim,
    /// It waited as long as it may.
    TimedOut,
}

struct Node {
    cell: Arc<WaitCell>,
    birth: u64,
    on: Vec<OwnerId>,
}

impl Node {
    /// The owner at place `i` of those waited for.
    fn waits_for(&self, i: usize) -> Option<OwnerId> {
        self.on.get(i).copied().or_else(|| self.cell.later.lock().get(i - self.on.len()).copied())
    }
}

/// Who waits for whom.
pub(super) struct WaitGraph {
    nodes: Mutex<BTreeMap<OwnerId, Node>>,
}

impl WaitGraph {
    pub fn new() -> WaitGraph {
        WaitGraph { nodes: Mutex::new(BTreeMap::new()) }
    }

    /// Waits until `cell` is decided, or until `deadline`. `on`: the owners ahead, as of the moment the cell was
    /// queued. `behind`: transactions that cannot end before this wait does.
    pub fn wait(
        &self,
        cell: &Arc<WaitCell>,
        birth: u64,
        on: Vec<OwnerId>,
        behind: &[OwnerId],
        deadline: Option<Instant>,
    ) -> Outcome {
        assert!(!on.contains(&cell.owner) && !behind.contains(&cell.owner), "nobody waits for himself");
        {
            let mut nodes = self.nodes.lock();
            nodes.insert(cell.owner, Node { cell: cell.clone(), birth, on });
            for owner in behind {
                // Older than anybody: it does not wait itself, so it is not the one to give way.
                let node = || Node { cell: cell.clone(), birth: 0, on: vec![cell.owner] };
                nodes.entry(*owner).or_insert_with(node);
            }
            while let Some(victim) = youngest_of_cycle(&nodes, cell.owner) {
                // A member that was granted its lock meanwhile is no longer waiting: the cycle is gone either way.
                let node = nodes.remove(&victim).expect("members of the cycle are in the graph");
                node.cell.decide(VICTIM);
                if victim == cell.owner {
                    break;
                }
            }
        }
        while cell.is_waiting() && !varve_rt::dying() {
            match deadline {
                None => cell.decided.wait(),
                Some(deadline) if cell.decided.wait_until(deadline) && cell.give_up() => break,
                Some(_) => {}
            }
        }
        debug_assert!(!cell.is_waiting() || varve_rt::dying(), "a wait ends when it is decided");
        let mut nodes = self.nodes.lock();
        for owner in std::iter::once(&cell.owner).chain(behind) {
            if nodes.get(owner).is_some_and(|node| Arc::ptr_eq(&node.cell, cell)) {
                nodes.remove(owner);
            }
        }
        match cell.state.load(Ordering::Acquire) {
            GRANTED => Outcome::Granted,
            GIVEN_UP => Outcome::TimedOut,
            _ => Outcome::Victim,
        }
    }

    /// An owner that a waiting one waits for.
    pub fn waits_for(&self, owner: OwnerId) -> Option<OwnerId> {
        self.nodes.lock().get(&owner)?.waits_for(0)
    }

    /// Owners waiting now.
    pub fn waiting(&self) -> usize {
        self.nodes.lock().len()
    }
}

/// The youngest member of a cycle through `start`, if there is one. Depth first, in the order of the queues.
fn youngest_of_cycle(nodes: &BTreeMap<OwnerId, Node>, start: OwnerId) -> Option<OwnerId> {
    let mut seen = std::collections::BTreeSet::new();
    // The path from `start`: a node and how many of its edges were followed.
    let mut path: Vec<(OwnerId, usize)> = vec![(start, 0)];
    while let Some((at, next)) = path.last_mut() {
        let node = nodes.get(at).filter(|n| n.cell.is_waiting());
        let Some(to) = node.and_then(|n| n.waits_for(*next)) else {
            path.pop();
            continue;
        };
        *next += 1;
        if to == start {
            return path.iter().map(|&(id, _)| id).max_by_key(|id| (nodes[id].birth, *id));
        }
        if seen.insert(to) {
            path.push((to, 0));
        }
    }
    None
}
