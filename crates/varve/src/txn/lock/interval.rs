//! Interval locks of one keyspace: ranges held or asked for by scans (S) and range deletions (X), and single keys asked for
//! by writers that met such a range.
//!
//! A request waits for every conflicting request that is granted, and for every earlier one that waits too, unless that one
//! already waits for this very owner (letting it pass costs nothing and avoids a deadlock). Two single keys never conflict
//! here: the shards decide between them. `published` is raised before the requester looks at key locks; see `shard.rs` for the
//! other half of the protocol.
//!
//! A wake-up only means "look again": a woken request evaluates itself anew, in its old place in the list.
//!
//! Lock order: the list's mutex is taken with no shard locked.

use super::Mode;
use super::credit::Credit;
use super::wait::{OwnerId, WaitCell};
use crate::budget::Budget;
use crate::error::Result;
use crate::txn::key::{Bounds, KeyBuf, bound_owned, bound_ref, cmp_high, cmp_low, contains, overlap, within};
use std::ops::Bound;
use std::sync::Arc;
use varve_rt::atomic::{AtomicUsize, Ordering};
use varve_rt::{Cost, Mutex, charge};

/// Names a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

enum State {
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

struct Request {
    ticket: Ticket,
    owner: OwnerId,
    low: Bound<KeyBuf>,
    high: Bound<KeyBuf>,
    mode: Mode,
    /// A single key asked for by a reader or writer of that key.
    point: bool,
    state: State,
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
        matches!(&self.state, State::Waiting { on, .. } if on.contains(&owner))
    }

    /// Bytes charged for it.
    fn size(&self) -> usize {
        Request::bytes(bound_ref(&self.low), bound_ref(&self.high))
    }

    fn bytes(low: Bound<&[u8]>, high: Bound<&[u8]>) -> usize {
        let heap = |b| match b {
            Bound::Included(k) | Bound::Excluded(k) => KeyBuf::heap_bytes_of(k),
            Bound::Unbounded => 0,
        };
        size_of::<Request>() * 2 + heap(low) + heap(high)
    }
}

struct List {
    requests: Vec<Request>,
    next: u64,
    credit: Credit,
}

#[repr(align(128))]
pub(super) struct Intervals {
    /// Requests in the list.
    published: AtomicUsize,
    /// Exclusive ranges among them.
    exclusive: AtomicUsize,
    list: Mutex<List>,
}

impl Intervals {
    pub fn new() -> Intervals {
        let list = List { requests: Vec::new(), next: 0, credit: Credit::default() };
        Intervals { published: AtomicUsize::new(0), exclusive: AtomicUsize::new(0), list: Mutex::new(list) }
    }

    /// Whether nothing in the list can matter to a key lock of this mode. Asked after the key lock was taken.
    #[inline]
    pub fn is_idle_for(&self, mode: Mode) -> bool {
        let count = if mode == Mode::Exclusive { &self.published } else { &self.exclusive };
        count.load(Ordering::SeqCst) == 0
    }

    /// Whether `owner` holds a range that makes a key lock needless.
    pub fn covers(&self, owner: OwnerId, key: &[u8], mode: Mode) -> bool {
        let list = self.list.lock();
        charge(Cost::IntervalLook, list.requests.len() as u64);
        list.requests.iter().any(|r| {
            let held = r.owner == owner && !r.point && matches!(r.state, State::Granted);
            held && (mode == Mode::Shared || r.mode == Mode::Exclusive) && contains(r.range(), key)
        })
    }

    /// Whether a key lock just taken has to be given back because of a range of another owner.
    pub fn blocks_key(&self, owner: OwnerId, key: &[u8], mode: Mode) -> bool {
        let list = self.list.lock();
        charge(Cost::IntervalLook, list.requests.len() as u64);
        list.requests.iter().any(|r| {
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
        charge(Cost::IntervalLook, list.requests.len() as u64);
        let covered = list.requests.iter().any(|r| {
            let held = r.owner == owner && !r.point && matches!(r.state, State::Granted);
            held && (mode == Mode::Shared || r.mode == Mode::Exclusive) && within(range, r.range())
        });
        if covered && !point {
            return Ok(None);
        }
        list.credit.take(budget, Request::bytes(range.0, range.1))?;
        let ticket = Ticket(list.next);
        list.next += 1;
        let (low, high) = (bound_owned(range.0), bound_owned(range.1));
        // Until it is evaluated it stands in the way of all, as a range that is being checked.
        list.requests.push(Request { ticket, owner, low, high, mode, point, state: State::Checking });
        self.recount(&list);
        Ok(Some(ticket))
    }

    fn recount(&self, list: &List) {
        let exclusive = list.requests.iter().filter(|r| r.mode == Mode::Exclusive && !r.point).count();
        self.published.store(list.requests.len(), Ordering::SeqCst);
        self.exclusive.store(exclusive, Ordering::SeqCst);
    }

    /// Looks whether other requests stand in the way: `None` when they do not, else what to wait on.
    pub fn evaluate(&self, ticket: Ticket) -> Option<(Arc<WaitCell>, Vec<OwnerId>)> {
        let mut list = self.list.lock();
        charge(Cost::IntervalLook, list.requests.len() as u64);
        let at = list.position(ticket);
        let me = &list.requests[at];
        let owner = me.owner;
        let mut on: Vec<OwnerId> = Vec::new();
        for (i, other) in list.requests.iter().enumerate() {
            let ahead = match other.state {
                State::Checking | State::Granted => i != at,
                State::Waiting { .. } => i < at && !other.waits_for(owner),
            };
            if ahead && me.conflicts(other) && !on.contains(&other.owner) {
                on.push(other.owner);
            }
        }
        if on.is_empty() {
            list.requests[at].state = if me.point { State::Granted } else { State::Checking };
            return None;
        }
        let cell = WaitCell::new(owner);
        list.requests[at].state = State::Waiting { on: on.clone(), cell: cell.clone(), keys: false };
        Some((cell, on))
    }

    /// The key check found locks of `on` in the way: the request waits for these owners, and lets them pass.
    pub fn wait_for_keys(&self, ticket: Ticket, on: &[OwnerId]) -> Arc<WaitCell> {
        let mut list = self.list.lock();
        let at = list.position(ticket);
        let cell = WaitCell::new(list.requests[at].owner);
        list.requests[at].state = State::Waiting { on: on.to_vec(), cell: cell.clone(), keys: true };
        let me = list.requests[at].owner;
        for request in list.requests.iter_mut().filter(|r| on.contains(&r.owner)) {
            // Not those that wait for key locks: nothing changes for them, and two could wake each other for ever.
            if matches!(&request.state, State::Waiting { on, keys: false, .. } if on.contains(&me)) {
                request.wake();
            }
        }
        cell
    }

    /// The key check found nothing: the range is held, joined with neighbours of the same owner.
    pub fn grant(&self, budget: &Budget, ticket: Ticket) {
        let mut list = self.list.lock();
        let at = list.position(ticket);
        let mut joined = list.requests.remove(at);
        joined.state = State::Granted;
        let mut i = 0;
        while i < list.requests.len() {
            let other = &list.requests[i];
            let same = other.owner == joined.owner && other.mode == joined.mode && !other.point;
            if same && matches!(other.state, State::Granted) && touch(other.range(), joined.range()) {
                let other = list.requests.remove(i);
                let before = joined.size() + other.size();
                if cmp_low(bound_ref(&other.low), bound_ref(&joined.low)).is_lt() {
                    joined.low = other.low;
                }
                if cmp_high(bound_ref(&other.high), bound_ref(&joined.high)).is_gt() {
                    joined.high = other.high;
                }
                list.credit.give(budget, before - joined.size());
            } else {
                i += 1;
            }
        }
        // A granted request's place in the list has no meaning.
        list.requests.push(joined);
        self.recount(&list);
    }

    /// Takes one request out, and wakes whoever waited for its owner, to look again.
    pub fn remove(&self, budget: &Budget, ticket: Ticket) {
        let mut list = self.list.lock();
        let at = list.position(ticket);
        let request = list.requests.remove(at);
        list.credit.give(budget, request.size());
        self.recount(&list);
        list.owner_moved(request.owner);
    }

    /// The owner's key locks are gone: takes its requests out and wakes those that waited for it.
    pub fn end_owner(&self, budget: &Budget, owner: OwnerId) {
        let mut list = self.list.lock();
        let list = &mut *list;
        let before = list.requests.len();
        let credit = &mut list.credit;
        list.requests.retain(|r| {
            if r.owner == owner {
                credit.give(budget, r.size());
            }
            r.owner != owner
        });
        if list.requests.len() != before {
            self.recount(list);
        }
        list.owner_moved(owner);
    }

    /// Whether the list is empty. Asked by an owner that ends, after its key locks were released.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.published.load(Ordering::SeqCst) == 0
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
        if let State::Waiting { on, cell, .. } = &mut self.state {
            on.clear();
            cell.grant();
        }
    }
}

impl List {
    fn position(&self, ticket: Ticket) -> usize {
        self.requests.iter().position(|r| r.ticket == ticket).expect("a request stays until its owner takes it out")
    }

    fn owner_moved(&mut self, owner: OwnerId) {
        for request in &mut self.requests {
            if let State::Waiting { on, .. } = &mut request.state
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
fn touch(a: Bounds<'_>, b: Bounds<'_>) -> bool {
    let meet = |high, low| match (high, low) {
        (Bound::Included(h), Bound::Excluded(l)) | (Bound::Excluded(h), Bound::Included(l)) => h == l,
        _ => false,
    };
    overlap(a, b) || meet(a.1, b.0) || meet(b.1, a.0)
}
