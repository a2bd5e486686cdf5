//! A doubly linked list over index arrays: every operation but [`List::iter`] is O(1), nothing is allocated after
//! `new`.
//!
//! Invariants: a slot is in the list at most once; links go both ways; a cursor stands at a slot of its list, or
//! nowhere. The front is the hottest end (most recently used), the back the coldest.

use super::{Ask, Slot};

/// No slot.
pub const NIL: Slot = Slot::MAX;

/// Links of one list. Several lists over the same slots each have their own arrays.
#[derive(Debug, Clone)]
pub struct List {
    prev: Vec<Slot>,
    next: Vec<Slot>,
    member: Vec<bool>,
    front: Slot,
    back: Slot,
    len: usize,
}

impl Default for List {
    fn default() -> List {
        List::new(0)
    }
}

impl List {
    /// An empty list over slots `0..slots`.
    pub fn new(slots: usize) -> List {
        assert!(slots < NIL as usize, "slots are numbered with 32 bits");
        List {
            // Zeros come untouched from the system; nobody looks at the links of who is no member.
            prev: vec![0; slots],
            next: vec![0; slots],
            member: vec![false; slots],
            front: NIL,
            back: NIL,
            len: 0,
        }
    }

    /// Makes room for slots `0..slots`; shrinks nothing.
    pub fn grow(&mut self, slots: usize) {
        assert!(slots < NIL as usize, "slots are numbered with 32 bits");
        if slots > self.member.len() {
            self.prev.resize(slots, 0);
            self.next.resize(slots, 0);
            self.member.resize(slots, false);
        }
    }

    /// Number of slots in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hottest slot, or [`NIL`].
    pub fn front(&self) -> Slot {
        self.front
    }

    /// The coldest slot, or [`NIL`].
    pub fn back(&self) -> Slot {
        self.back
    }

    /// The neighbour towards the front (hotter), or [`NIL`].
    pub fn hotter(&self, slot: Slot) -> Slot {
        debug_assert!(self.contains(slot));
        self.prev[slot as usize]
    }

    /// The neighbour towards the back (colder), or [`NIL`].
    pub fn colder(&self, slot: Slot) -> Slot {
        debug_assert!(self.contains(slot));
        self.next[slot as usize]
    }

    /// Whether `slot` is in the list.
    pub fn contains(&self, slot: Slot) -> bool {
        self.member[slot as usize]
    }

    /// Adds `slot` at the hot end.
    pub fn push_front(&mut self, slot: Slot) {
        let front = self.front;
        self.link(NIL, slot, front);
    }

    /// Adds `slot` at the cold end.
    pub fn push_back(&mut self, slot: Slot) {
        let back = self.back;
        self.link(back, slot, NIL);
    }

    /// Adds `slot` just colder than `at`.
    pub fn insert_colder(&mut self, at: Slot, slot: Slot) {
        let next = self.colder(at);
        self.link(at, slot, next);
    }

    /// Adds `slot` just hotter than `at`.
    pub fn insert_hotter(&mut self, at: Slot, slot: Slot) {
        let prev = self.hotter(at);
        self.link(prev, slot, at);
    }

    /// Takes `slot` out.
    pub fn remove(&mut self, slot: Slot) {
        assert!(self.contains(slot), "slot {slot} is not in the list");
        let (prev, next) = (self.prev[slot as usize], self.next[slot as usize]);
        match prev {
            NIL => self.front = next,
            p => self.next[p as usize] = next,
        }
        match next {
            NIL => self.back = prev,
            n => self.prev[n as usize] = prev,
        }
        self.member[slot as usize] = false;
        self.len -= 1;
    }

    /// Moves `slot` to the hot end.
    pub fn move_front(&mut self, slot: Slot) {
        if self.front != slot {
            self.remove(slot);
            self.push_front(slot);
        }
    }

    /// Slots from hottest to coldest.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let mut at = self.front;
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(at)?;
            at = self.next[slot as usize];
            Some(slot)
        })
    }

    /// Slots from coldest to hottest.
    pub fn iter_cold(&self) -> impl Iterator<Item = Slot> + '_ {
        let mut at = self.back;
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(at)?;
            at = self.prev[slot as usize];
            Some(slot)
        })
    }

    /// Bytes per slot, for the memory budget.
    pub const BYTES_PER_SLOT: usize = 2 * size_of::<Slot>() + 1;

    fn link(&mut self, prev: Slot, slot: Slot, next: Slot) {
        assert!(!self.contains(slot), "slot {slot} is in the list already");
        self.prev[slot as usize] = prev;
        self.next[slot as usize] = next;
        debug_assert!(prev == NIL || self.next[prev as usize] == next, "a slot is put between neighbours");
        debug_assert!(next == NIL || self.prev[next as usize] == prev, "a slot is put between neighbours");
        match prev {
            NIL => self.front = slot,
            p => self.next[p as usize] = slot,
        }
        match next {
            NIL => self.back = slot,
            n => self.prev[n as usize] = slot,
        }
        self.member[slot as usize] = true;
        self.len += 1;
    }

    /// Walks both ways and asserts that links, membership and length agree. For tests: O(slots).
    pub fn check(&self) {
        let mut count = 0;
        let mut before = NIL;
        for slot in self.iter() {
            assert!(self.member[slot as usize], "slot {slot} is linked but no member");
            assert_eq!(self.prev[slot as usize], before, "back link of slot {slot}");
            before = slot;
            count += 1;
            assert!(count <= self.len, "the list is longer than its length, or runs in a circle");
        }
        assert_eq!(self.back, before, "back end");
        assert_eq!(count, self.len, "length");
        assert_eq!(self.member.iter().filter(|m| **m).count(), self.len, "members");
    }
}

/// A place in a list that a scan comes back to. The owner tells it of every removal (a move is a removal), so that it
/// never dangles: it steps to the hotter neighbour first.
#[derive(Debug, Clone)]
pub struct Cursor(Slot);

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor(NIL)
    }
}

impl Cursor {
    /// To be called before `slot` is taken out of, or moved within, `list`.
    pub fn leaving(&mut self, list: &List, slot: Slot) {
        assert!(list.contains(slot), "slot {slot} leaves a list that it is in");
        if self.0 == slot {
            self.0 = list.hotter(slot);
            debug_assert!(self.0 == NIL || list.contains(self.0), "a cursor stands at a slot of its list");
        }
    }

    /// Walks from the cold end, or with `resume` from where the last walk ended, towards the hot end, over at most
    /// `depth` slots, to the first one that `take` accepts. The next resumed walk begins past it, and at the cold end
    /// after the hot end was reached. The slot for which `end` is true, if there is one, counts as the hot end.
    pub fn walk(
        &mut self,
        list: &List,
        resume: bool,
        depth: usize,
        end: impl Fn(Slot) -> bool,
        take: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let mut at = self.start(list, resume);
        for _ in 0..depth {
            if at == NIL || end(at) {
                at = NIL;
                break;
            }
            let hotter = list.hotter(at);
            if take(at) {
                self.0 = hotter;
                return Some(at);
            }
            at = hotter;
        }
        self.0 = at;
        None
    }

    /// Where a walk begins: the cold end, or with `resume` where the last one ended.
    pub fn start(&self, list: &List, resume: bool) -> Slot {
        if resume && self.0 != NIL { self.0 } else { list.back() }
    }

    /// The next resumed walk begins here; [`NIL`]: at the cold end.
    pub fn set(&mut self, at: Slot) {
        self.0 = at;
    }

    /// Moves on to the first slot that is `good`, over at most `depth` slots and not past `end`; a place at the cold
    /// end stays.
    pub fn advance(
        &mut self,
        list: &List,
        depth: usize,
        end: impl Fn(Slot) -> bool,
        good: &mut dyn FnMut(Slot) -> bool,
    ) {
        if self.0 != NIL
            && let Some(slot) = self.walk(list, true, depth, end, good)
        {
            self.0 = slot;
        }
    }

    /// Where the next resumed walk begins, if not at the cold end.
    pub fn at(&self) -> Option<Slot> {
        (self.0 != NIL).then_some(self.0)
    }

    /// Shows up to `depth` slots from the cold end on until `visit` says stop by `false`.
    pub fn show(list: &List, depth: usize, visit: &mut dyn FnMut(Slot) -> bool) {
        Cursor::default().walk(list, false, depth, |_| false, &mut |slot| !visit(slot));
    }
}

/// A list with its cursor: one queue of a policy that has several.
#[derive(Debug, Clone)]
pub struct Queue {
    list: List,
    cursor: Cursor,
}

impl Queue {
    /// An empty queue over slots `0..slots`.
    pub fn new(slots: usize) -> Queue {
        Queue { list: List::new(slots), cursor: Cursor::default() }
    }

    /// The list, to look at.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// Number of slots in the queue.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether `slot` is in the queue.
    pub fn contains(&self, slot: Slot) -> bool {
        self.list.contains(slot)
    }

    /// Adds `slot` at the hot end.
    pub fn push_front(&mut self, slot: Slot) {
        self.list.push_front(slot);
    }

    /// Moves `slot` to the hot end.
    pub fn move_front(&mut self, slot: Slot) {
        self.cursor.leaving(&self.list, slot);
        self.list.move_front(slot);
    }

    /// Takes `slot` out.
    pub fn remove(&mut self, slot: Slot) {
        self.cursor.leaving(&self.list, slot);
        self.list.remove(slot);
    }

    /// The next resumed walk begins at the cold end.
    pub fn rewind(&mut self) {
        self.cursor = Cursor::default();
    }

    /// As [`Cursor::walk`]; takes the pages examined off `ask.depth`.
    pub fn walk(&mut self, ask: &mut Ask, take: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut examined = 0;
        let found = self.cursor.walk(&self.list, ask.resume, ask.depth, |_| false, &mut |slot| {
            examined += 1;
            take(slot)
        });
        assert!(examined <= ask.depth, "a walk examines no more pages than it may");
        ask.depth -= examined;
        found
    }
}
