//! When things happen inside the flash: array gates, buses, and the table of times.
//!
//! Pure: time comes in as nanoseconds and goes out as nanoseconds; each operation costs O(1) (a bus reservation, O(log
//! n) in what is reserved ahead). A gate (plane or chip) is taken first come, first served. A bus is reserved for the
//! time of the transfer only, in the first gap that is long enough, so that data which will be ready late does not hold
//! up data that is ready now.
//!
//! Where programs and erases can be suspended, a read goes ahead of what the gate has not begun and interrupts what it
//! has. Whatever had not ended then ends later by as long as the read took, and what is given afterwards waits for it:
//! the gate's work is conserved. The end that an operation was promised is the key by which its real end is found
//! ([`Gate::settles`]); whoever waits for it asks again. A power cut goes by the promised ends. They are the earlier
//! ones, so nothing that the host was told is lost, and what one operation promised to another stays in order.
//!
//! The reads of a die queue at it: of its units (chips of the geometry) one is sensed at a time.
//!
//! Invariants: the intervals of a bus are in order and do not overlap; what a gate was given is in order and does not
//! overlap, and neither do the reads that went ahead; nothing begins before it has arrived; an operation never ends
//! before it was promised to.

use std::collections::VecDeque;
use varve_device::flash::Span;

/// Times of a device, nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Array read, by page type.
    pub read: Vec<u64>,
    /// Array program, by page type.
    pub program: Vec<u64>,
    /// Block erase.
    pub erase: u64,
    /// Command and status cycles of one operation on the bus.
    pub command: u64,
    /// Picoseconds per byte on the bus.
    pub byte_ps: u64,
    /// Array read and program of a block used with one bit per cell, if there can be such.
    pub slc: Option<(u64, u64)>,
    /// Suspension, if the array can.
    pub suspend: Option<SuspendTable>,
}

/// Suspending a program or erase for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspendTable {
    /// From the read's arrival until the array has suspended a program, nanoseconds.
    pub program: u64,
    /// The same of an erase.
    pub erase: u64,
    /// Times that one operation is suspended at most.
    pub most: u32,
}

impl Table {
    /// Bus time of a command with `bytes` of data.
    pub fn transfer(&self, bytes: usize) -> u64 {
        self.command + (bytes as u64 * self.byte_ps).div_ceil(1000)
    }
}

/// Totals of a gate or bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Operations.
    pub ops: u64,
    /// Time worked, nanoseconds.
    pub busy: u64,
    /// Time that operations waited for it, nanoseconds.
    pub waited: u64,
}

/// What a gate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Read,
    Program,
    Erase,
}

/// An operation that a gate was given.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// When it is worked on, suspensions so far included.
    span: Span,
    /// The end that was told when it was given.
    promised: u64,
    work: Work,
    suspended: u32,
}

/// When a read that goes ahead may begin, and what it suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) start: u64,
    pub(crate) suspended: Option<Work>,
    /// What suspending cost.
    cost: u64,
}

/// A plane or chip: one operation at a time, first come, first served, but for reads that suspend others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    pub(crate) free_at: u64,
    pub(crate) usage: Usage,
    /// What has not ended, in order; empty where nothing can be suspended.
    given: VecDeque<Given>,
    /// Reads that went ahead keep the gate until then.
    reading_until: u64,
}

impl Gate {
    /// When an operation that arrives at `at` can begin; counts the wait.
    pub(crate) fn enter(&mut self, at: u64) -> u64 {
        let start = at.max(self.free_at);
        self.usage.ops += 1;
        self.usage.waited += start - at;
        start
    }

    /// The operation that entered at `start` leaves at `end`.
    pub(crate) fn leave(&mut self, start: u64, end: u64) {
        assert!(start >= self.free_at && end >= start, "a gate serves one operation at a time");
        self.usage.busy += end - start;
        self.free_at = end;
    }

    /// Keeps in mind an operation that was given, until it has ended.
    pub(crate) fn remember(&mut self, now: u64, span: Span, work: Work) {
        self.forget(now);
        let before = self.given.back().map_or(0, |g| g.span.end);
        assert!(before <= span.start && span.start <= span.end, "a gate's operations are in order");
        self.given.push_back(Given { span, promised: span.end, work, suspended: 0 });
    }

    fn forget(&mut self, now: u64) {
        while self.given.front().is_some_and(|g| g.span.end <= now) {
            self.given.pop_front();
        }
    }

    /// When a read that arrives at `at` can begin, ahead of what has not begun; counts the wait.
    pub(crate) fn enter_ahead(&mut self, now: u64, at: u64, table: &SuspendTable) -> Turn {
        self.forget(now);
        let mut turn = Turn { start: at.max(self.reading_until), suspended: None, cost: 0 };
        for g in &mut self.given {
            if g.span.start >= turn.start {
                break;
            }
            if g.span.end <= turn.start {
                continue;
            }
            let cost = match g.work {
                Work::Program => table.program,
                Work::Erase => table.erase,
                Work::Read => u64::MAX,
            };
            // What is nearly done is waited for.
            if g.suspended < table.most && cost < g.span.end - turn.start {
                g.suspended += 1;
                turn = Turn { start: turn.start + cost, suspended: Some(g.work), cost };
                break;
            }
            turn.start = g.span.end;
        }
        assert!(turn.start >= at && turn.start >= turn.cost, "a read begins after it came");
        self.usage.ops += 1;
        self.usage.waited += turn.start - at;
        turn
    }

    /// When the operation really ends that was promised to end at `promised`.
    pub(crate) fn settles(&self, promised: u64) -> u64 {
        debug_assert!(self.given.iter().is_sorted_by_key(|g| g.promised), "promises are given in order");
        let at = self.given.partition_point(|g| g.promised < promised);
        self.given.get(at).filter(|g| g.promised == promised).map_or(promised, |g| g.span.end)
    }

    /// The read of `turn` leaves at `end`; what has not ended, and what is given from now on, waits for as long as it
    /// took.
    pub(crate) fn leave_ahead(&mut self, turn: Turn, end: u64) {
        assert!(turn.start >= self.reading_until && end >= turn.start, "reads follow each other");
        let took = end - turn.start + turn.cost;
        self.usage.busy += took;
        for g in self.given.iter_mut().filter(|g| g.span.end > turn.start) {
            if g.span.start >= turn.start {
                g.span.start += took;
            }
            g.span.end += took;
            assert!(g.span.end >= g.promised, "an operation ends no earlier than it was promised to");
        }
        self.free_at = if turn.start >= self.free_at { end } else { (self.free_at + took).max(end) };
        self.reading_until = end;
    }

    /// Nothing is under way at `now`.
    pub(crate) fn stop(&mut self, now: u64) {
        self.free_at = now;
        self.reading_until = now;
        self.given.clear();
    }
}

/// A bus, the host's link, or the sensing of a die: transfers fill the gaps between those reserved before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bus {
    pub(crate) busy: VecDeque<Span>,
    pub(crate) usage: Usage,
}

impl Bus {
    /// Reserves `length` from `ready` on; forgets what ended before `now`. Returns the start.
    pub(crate) fn reserve(&mut self, now: u64, ready: u64, length: u64) -> Span {
        while self.busy.front().is_some_and(|s| s.end <= now) {
            self.busy.pop_front();
        }
        let mut at = self.busy.partition_point(|s| s.end <= ready);
        let mut start = ready;
        while let Some(s) = self.busy.get(at) {
            if start + length <= s.start {
                break;
            }
            start = start.max(s.end);
            at += 1;
        }
        self.usage.ops += 1;
        self.usage.busy += length;
        assert!(start >= ready, "nothing is sent before it is ready");
        self.usage.waited += start - ready;
        let span = Span { start, end: start + length };
        self.insert(at, span);
        span
    }

    fn insert(&mut self, at: usize, span: Span) {
        let before = at.checked_sub(1).map_or(0, |i| self.busy[i].end);
        assert!(before <= span.start, "a bus sends one thing at a time");
        assert!(self.busy.get(at).is_none_or(|next| span.end <= next.start), "a bus sends one thing at a time");
        let joins_next = self.busy.get(at).is_some_and(|n| n.start == span.end);
        let joins_before = at > 0 && self.busy[at - 1].end == span.start;
        match (joins_before, joins_next) {
            (true, true) => {
                let next = self.busy.remove(at).expect("looked at above");
                self.busy[at - 1].end = next.end;
            }
            (true, false) => self.busy[at - 1].end = span.end,
            (false, true) => self.busy[at].start = span.start,
            (false, false) if span.end > span.start => self.busy.insert(at, span),
            (false, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_fills_gaps_and_never_overlaps() {
        let mut bus = Bus::default();
        assert_eq!(bus.reserve(0, 1000, 100), Span { start: 1000, end: 1100 });
        assert_eq!(bus.reserve(0, 0, 100).start, 0, "late data do not hold up early ones");
        assert_eq!(bus.reserve(0, 950, 100).start, 1100, "a gap too short is left");
        assert_eq!(bus.reserve(0, 50, 900).start, 100, "an exact gap is used");
        assert_eq!(bus.reserve(0, 0, 1).start, 1200);
        assert_eq!(bus.busy.len(), 1, "touching intervals are one");
        let mut rng = varve_rt::Rng::from_seed(3);
        let mut taken: Vec<Span> = Vec::new();
        let mut bus = Bus::default();
        for now in 0..2000 {
            let span = bus.reserve(now * 10, now * 10 + rng.below(300), 1 + rng.below(12));
            assert!(taken.iter().all(|t| t.end <= span.start || span.end <= t.start), "{span:?} overlaps");
            taken.push(span);
        }
    }
}
