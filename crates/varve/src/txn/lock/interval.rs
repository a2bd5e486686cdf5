//! Interval locks of one keyspace: ranges held or asked for by scans (S) and range deletions (X), and single keys asked
//! for by writers that met such a range.
//!
//! A request waits for every conflicting request that is granted, and for every earlier one that waits too, unless that
//! one already waits for this very owner (letting it pass costs nothing and avoids a deadlock). Two single keys never
//! conflict here: the shards decide between them. `published` and the filter are raised before the requester looks at
//! key locks; see `shard.rs` for the other half of the protocol. In the same way `waiting` is raised before a request
//! looks again at the key locks that it is going to wait for, and owners look at it after they released theirs.
//!
//! A wake-up only means "look again": a woken request evaluates itself anew, in its old place in the list: tickets
//! ascend, and an earlier request is one with a smaller ticket.
//!
//! Nothing looks at the whole list: requests are found by their range (`range_index.rs`), by their owner, and among
//! those that wait.
//!
//! Invariants: ranges that are held do not conflict; a request is in the list until its owner takes it out, and is
//! filed under its range and its owner; who waits does so for others; the counts that are read without the list's mutex
//! are those of the list.
//!
//! Lock order: the list's mutex is taken with no shard locked.

use super::Mode;
use super::credit::Credit;
use super::range_filter::{FilterPlace, RangeFilter, place};
use super::range_index::RangeIndex;
use super::wait::{OwnerId, WaitCell};
use crate::budget::Budget;
use crate::error::Result;
use crate::txn::key::{
    Bounds, KeyBuf, OwnedBounds, bound_owned, bound_ref, cmp_high, cmp_low, contains, overlap, within,
};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::atomic::{AtomicUsize, Ordering};
use varve_rt::{Cost, HashMap, Mutex, charge};

/// Names a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

enum RequestState {
    /// Passed the list, looks at the key locks now.
    Checking,
    Granted,
    Waiting {
        /// Owners waited for that have not ended.
        on: Vec<OwnerId>,
        cell: Arc<WaitCell>,
        /// For their key locks, not their requests in the list.
        keys: bool,
    },
}

pub(super) struct Request {
    owner: OwnerId,
    low: Bound<KeyBuf>,
    high: Bound<KeyBuf>,
    mode: Mode,
    /// A single key asked for by a reader or writer of that key.
    point: bool,
    state: RequestState,
}

impl Request {
    fn range(&self) -> Bounds<'_> {
        (bound_ref(&self.low), bound_ref(&self.high))
    }

    fn conflicts(&self, other: &Request) -> bool {
        self.owner != other.owner
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
            && !(self.point && other.point)
            && overlap(self.range(), other.range())
    }

    fn waits_for(&self, owner: OwnerId) -> bool {
        matches!(&self.state, RequestState::Waiting { on, .. } if on.contains(&owner))
    }

    /// Bytes charged for it.
    fn size(&self) -> usize {
        Request::bytes(bound_ref(&self.low), bound_ref(&self.high))
    }

    pub(super) fn bytes(low: Bound<&[u8]>, high: Bound<&[u8]>) -> usize {
        let heap = |b| match b {
            Bound::Included(k) | Bound::Excluded(k) => KeyBuf::heap_bytes_of(k),
            Bound::Unbounded => 0,
        };
        // In the list, in the index, under its owner.
        size_of::<Request>() * 2 + 2 * (heap(low) + heap(high))
    }
}

#[derive(Default)]
struct List {
    requests: HashMap<u64, Request>,
    index: RangeIndex,
    by_owner: HashMap<OwnerId, Vec<u64>>,
    waiting: BTreeSet<u64>,
    /// Exclusive ranges that are no single keys.
    exclusive: usize,
    next: u64,
    credit: Credit,
}

#[repr(align(128))]
pub(super) struct Intervals {
    /// Requests in the list.
    published: AtomicUsize,
    /// Exclusive ranges among them.
    exclusive: AtomicUsize,
    /// Requests that wait.
    waiting: AtomicUsize,
    /// Of the ranges, not of the single keys.
    filter: RangeFilter,
    list: Mutex<List>,
}

impl Intervals {
    pub fn new() -> Intervals {
        let zero = || AtomicUsize::new(0);
        let (published, exclusive, waiting) = (zero(), zero(), zero());
        Intervals { published, exclusive, waiting, filter: RangeFilter::new(), list: Mutex::new(List::default()) }
    }

    /// Whether nothing in the list can matter to a lock of this mode on this key for `owner`. Asked after the key lock
    /// was taken.
    #[inline]
    pub fn is_idle_for(&self, owner: OwnerId, mode: Mode, key: &[u8]) -> bool {
        let count = if mode == Mode::Exclusive { &self.published } else { &self.exclusive };
        count.load(Ordering::SeqCst) == 0 || !self.filter.may_hold_beside(owner, key)
    }

    /// Whether `owner` holds a range that makes a key lock needless.
    pub fn covers(&self, owner: OwnerId, key: &[u8], mode: Mode) -> bool {
        // A writer's own shared ranges do not help it.
        let none = mode == Mode::Exclusive && self.exclusive.load(Ordering::SeqCst) == 0;
        if none || !self.filter.may_hold(key) {
            return false;
        }
        let list = self.list.lock();
        list.at_key(key).any(|r| {
            let held = r.owner == owner && !r.point && matches!(r.state, RequestState::Granted);
            held && (mode == Mode::Shared || r.mode == Mode::Exclusive) && contains(r.range(), key)
        })
    }

    /// Whether a key lock just taken has to be given back because of a range of another owner.
    pub fn blocks_key(&self, owner: OwnerId, key: &[u8], mode: Mode) -> bool {
        let list = self.list.lock();
        list.at_key(key).any(|r| {
            let matters = r.owner != owner && !r.point && (mode == Mode::Exclusive || r.mode == Mode::Exclusive);
            matters && !r.waits_for(owner) && contains(r.range(), key)
        })
    }

    /// Puts a request into the list; `None` when the owner holds as much already.
    pub fn publish(
        &self,
        budget: &Budget,
        owner: OwnerId,
        range: Bounds<'_>,
        mode: Mode,
        point: bool,
    ) -> Result<Option<Ticket>> {
        let mut list = self.list.lock();
        charge(Cost::LockAcquire, 1);
        let covered = !point
            && list.near(range).any(|(_, r)| {
                let held = r.owner == owner && !r.point && matches!(r.state, RequestState::Granted);
                held && (mode == Mode::Shared || r.mode == Mode::Exclusive) && within(range, r.range())
            });
        if covered {
            return Ok(None);
        }
        list.credit.take(budget, Request::bytes(range.0, range.1))?;
        let ticket = list.next;
        list.next += 1;
        let (low, high) = (bound_owned(range.0), bound_owned(range.1));
        if !point {
            self.filter.add(place(range), owner);
        }
        // Until it is evaluated it stands in the way of all, as a range that is being checked.
        list.insert(ticket, Request { owner, low, high, mode, point, state: RequestState::Checking });
        self.recount(&list);
        Ok(Some(Ticket(ticket)))
    }

    fn recount(&self, list: &List) {
        debug_assert!(list.exclusive.max(list.waiting.len()) <= list.requests.len(), "what is counted is in the list");
        debug_assert!(list.by_owner.len() <= list.requests.len(), "an owner that is listed has a request");
        self.published.store(list.requests.len(), Ordering::SeqCst);
        self.exclusive.store(list.exclusive, Ordering::SeqCst);
        self.note_waiting(list);
    }

    /// Every owner that ends reads the number: it is written only when it changed.
    fn note_waiting(&self, list: &List) {
        if self.waiting.load(Ordering::Relaxed) != list.waiting.len() {
            self.waiting.store(list.waiting.len(), Ordering::SeqCst);
        }
    }

    /// Looks whether other requests stand in the way: `None` when they do not, else what to wait on.
    pub fn evaluate(&self, ticket: Ticket) -> Option<(Arc<WaitCell>, Vec<OwnerId>)> {
        let mut list = self.list.lock();
        let me = list.of(ticket);
        let owner = me.owner;
        let mut on: Vec<OwnerId> = Vec::new();
        for (at, other) in list.near(me.range()) {
            let ahead = match other.state {
                RequestState::Checking | RequestState::Granted => at != ticket.0,
                RequestState::Waiting { .. } => at < ticket.0 && !other.waits_for(owner),
            };
            if ahead && me.conflicts(other) && !on.contains(&other.owner) {
                on.push(other.owner);
            }
        }
        if on.is_empty() {
            let state = if me.point { RequestState::Granted } else { RequestState::Checking };
            list.set_state(ticket, state);
            self.note_waiting(&list);
            return None;
        }
        assert!(!on.contains(&owner), "nobody waits for himself");
        // Not in the order in which they were found: what is waited on does not depend on where ranges are filed.
        on.sort_unstable();
        let cell = WaitCell::new(owner);
        list.set_state(ticket, RequestState::Waiting { on: on.clone(), cell: cell.clone(), keys: false });
        self.note_waiting(&list);
        Some((cell, on))
    }

    /// The key check found locks of `on` in the way: the request waits for these owners, and lets them pass.
    pub fn wait_for_keys(&self, ticket: Ticket, on: &[OwnerId]) -> Arc<WaitCell> {
        let mut list = self.list.lock();
        let list = &mut *list;
        let me = list.of(ticket).owner;
        debug_assert!(!on.is_empty() && !on.contains(&me), "who waits for keys waits for others");
        let cell = WaitCell::new(me);
        list.set_state(ticket, RequestState::Waiting { on: on.to_vec(), cell: cell.clone(), keys: true });
        self.note_waiting(list);
        for at in &list.waiting {
            let request = list.requests.get_mut(at).expect("listed");
            // Not those that wait for key locks: nothing changes for them, and two could wake each other for ever.
            if on.contains(&request.owner)
                && matches!(&request.state, RequestState::Waiting { on, keys: false, .. } if on.contains(&me))
            {
                request.wake();
            }
        }
        cell
    }

    /// The key check found nothing: the range is held, joined with neighbours of the same owner.
    pub fn grant(&self, budget: &Budget, ticket: Ticket) {
        let mut list = self.list.lock();
        let list = &mut *list;
        let mut joined = list.remove(ticket.0);
        assert!(matches!(joined.state, RequestState::Checking), "a range is held after it was checked");
        assert!(!joined.point, "a point is held in its shard");
        joined.state = RequestState::Granted;
        let mut gone: Vec<FilterPlace> = vec![place(joined.range())];
        loop {
            let meets = |r: &Request| {
                let same = r.owner == joined.owner && r.mode == joined.mode && !r.point;
                same && matches!(r.state, RequestState::Granted) && touch(r.range(), joined.range())
            };
            let Some(at) = list.near(joined.range()).find_map(|(at, r)| meets(r).then_some(at)) else { break };
            let other = list.remove(at);
            gone.push(place(other.range()));
            let before = joined.size() + other.size();
            if cmp_low(bound_ref(&other.low), bound_ref(&joined.low)).is_lt() {
                joined.low = other.low;
            }
            if cmp_high(bound_ref(&other.high), bound_ref(&joined.high)).is_gt() {
                joined.high = other.high;
            }
            list.credit.give(budget, before - joined.size());
        }
        self.filter.add(place(joined.range()), joined.owner);
        gone.into_iter().for_each(|at| self.filter.take_out(at, joined.owner));
        // A granted request's place in the list has no meaning.
        debug_assert!(
            list.near(joined.range()).all(|(_, r)| !matches!(r.state, RequestState::Granted) || !joined.conflicts(r)),
            "no two hold ranges that exclude each other"
        );
        list.insert(ticket.0, joined);
        self.recount(list);
    }

    /// The ranges of this mode that an owner holds, and the bytes that they take.
    pub fn held(&self, owner: OwnerId, mode: Mode) -> (Vec<OwnedBounds>, usize) {
        let list = self.list.lock();
        let tickets = list.by_owner.get(&owner).map_or(&[][..], |tickets| tickets);
        let requests = tickets.iter().map(|ticket| &list.requests[ticket]);
        let held = requests.filter(|r| r.mode == mode && !r.point && matches!(r.state, RequestState::Granted));
        let (mut ranges, mut bytes) = (Vec::new(), 0);
        for request in held {
            bytes += request.size();
            ranges.push((request.low.clone(), request.high.clone()));
        }
        (ranges, bytes)
    }

    /// Takes one request out, and wakes whoever waited for its owner, to look again.
    pub fn remove(&self, budget: &Budget, ticket: Ticket) {
        let mut list = self.list.lock();
        let request = list.remove(ticket.0);
        self.left(&request);
        list.credit.give(budget, request.size());
        self.recount(&list);
        list.owner_moved(request.owner);
    }

    /// The owner's key locks are gone: takes its requests out and wakes those that waited for it.
    pub fn end_owner(&self, budget: &Budget, owner: OwnerId) {
        let mut list = self.list.lock();
        let list = &mut *list;
        let mut gone = 0;
        while let Some(&ticket) = list.by_owner.get(&owner).and_then(|tickets| tickets.last()) {
            let request = list.remove(ticket);
            self.left(&request);
            gone += request.size();
        }
        if gone > 0 {
            list.credit.give(budget, gone);
            self.recount(list);
        }
        assert!(!list.by_owner.contains_key(&owner), "an owner that ended has no request");
        list.owner_moved(owner);
    }

    /// A request is out of the list.
    fn left(&self, request: &Request) {
        if !request.point {
            self.filter.take_out(place(request.range()), request.owner);
        }
    }

    /// Whether some request waits. Asked by an owner that ends, after its key locks were released.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Asserts what must hold of the list and what is counted of it.
    #[cfg(test)]
    pub fn check(&self) {
        let list = self.list.lock();
        let count = |f: &dyn Fn(&Request) -> bool| list.requests.values().filter(|r| f(r)).count();
        let waiting = count(&|r| matches!(r.state, RequestState::Waiting { .. }));
        let exclusive = count(&|r| r.mode == Mode::Exclusive && !r.point);
        assert_eq!((list.waiting.len(), list.exclusive), (waiting, exclusive));
        let told = [&self.published, &self.exclusive, &self.waiting].map(|n| n.load(Ordering::SeqCst));
        assert_eq!(told, [list.requests.len(), exclusive, waiting], "what is told without the lock");
        assert_eq!(list.by_owner.values().map(Vec::len).sum::<usize>(), list.requests.len());
        let held = |r: &Request| matches!(r.state, RequestState::Granted) && !r.point;
        for a in list.requests.values().filter(|r| held(r)) {
            assert!(
                list.requests.values().all(|b| !held(b) || !a.conflicts(b)),
                "ranges that are held do not conflict"
            );
        }
    }

    /// Requests in the list.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.published.load(Ordering::Relaxed)
    }
}

impl Request {
    /// Makes a waiting request look again.
    fn wake(&mut self) {
        if let RequestState::Waiting { on, cell, .. } = &mut self.state {
            on.clear();
            cell.grant();
        }
    }
}

impl List {
    fn of(&self, ticket: Ticket) -> &Request {
        self.requests.get(&ticket.0).expect("a request stays until its owner takes it out")
    }

    /// Requests that may have to do with `range`.
    fn near(&self, range: Bounds<'_>) -> impl Iterator<Item = (u64, &Request)> {
        self.index.near(range).map(|at| {
            charge(Cost::IntervalLook, 1);
            (at, &self.requests[&at])
        })
    }

    /// Requests that may have to do with `key`.
    fn at_key(&self, key: &[u8]) -> impl Iterator<Item = &Request> {
        self.index.near_key(key).map(|at| {
            charge(Cost::IntervalLook, 1);
            &self.requests[&at]
        })
    }

    fn insert(&mut self, ticket: u64, request: Request) {
        self.index.insert(request.range(), ticket);
        self.by_owner.entry(request.owner).or_default().push(ticket);
        self.exclusive += usize::from(request.mode == Mode::Exclusive && !request.point);
        let before = self.requests.insert(ticket, request);
        assert!(before.is_none() && ticket < self.next, "a ticket names one request");
    }

    fn remove(&mut self, ticket: u64) -> Request {
        let request = self.requests.remove(&ticket).expect("a request stays until its owner takes it out");
        self.index.remove(request.range(), ticket);
        self.waiting.remove(&ticket);
        self.exclusive -= usize::from(request.mode == Mode::Exclusive && !request.point);
        let mine = self.by_owner.get_mut(&request.owner).expect("listed under its owner");
        // The last one most often.
        let at = mine.iter().rposition(|&t| t == ticket).expect("listed under its owner");
        mine.remove(at);
        if mine.is_empty() {
            self.by_owner.remove(&request.owner);
        }
        request
    }

    fn set_state(&mut self, ticket: Ticket, state: RequestState) {
        match state {
            RequestState::Waiting { .. } => self.waiting.insert(ticket.0),
            _ => self.waiting.remove(&ticket.0),
        };
        self.requests.get_mut(&ticket.0).expect("a request stays until its owner takes it out").state = state;
    }

    fn owner_moved(&mut self, owner: OwnerId) {
        for at in &self.waiting {
            let request = self.requests.get_mut(at).expect("listed");
            if let RequestState::Waiting { on, .. } = &mut request.state
                && on.contains(&owner)
            {
                on.retain(|&o| o != owner);
                if on.is_empty() {
                    request.wake();
                }
            }
        }
    }
}

/// Whether two ranges overlap or meet without a gap.
pub(super) fn touch(a: Bounds<'_>, b: Bounds<'_>) -> bool {
    let meet = |high, low| match (high, low) {
        (Bound::Included(h), Bound::Excluded(l)) | (Bound::Excluded(h), Bound::Included(l)) => h == l,
        _ => false,
    };
    overlap(a, b) || meet(a.1, b.0) || meet(b.1, a.0)
}
