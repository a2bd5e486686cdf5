//! What goes wrong, where and when: the settings of a [`crate::Faulty`] device. Pure data.

use std::ops::Range;
use std::time::Duration;
use varve_device::OpKind;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails with `EIO`, not to be retried. A write may have happened all the same, wholly or not at all.
    Eio,
    /// As `Eio`, but marked as worth another try.
    TransientEio,
    /// Fails with "no space left" (writes and `set_len`; ignored elsewhere).
    NoSpace,
    /// A read or write ends after some of its blocks, then fails with `EIO`; a request of one block transfers nothing.
    Short,
    /// Fails with `EOPNOTSUPP`; nothing is done.
    Unsupported,
    /// A write is acknowledged and not done.
    Lost,
    /// A write is acknowledged and done somewhere else on the device: this many bytes further, around its end.
    Misdirected(u64),
    /// A write is acknowledged, and some bytes of it, not more than 64 in one place, are noise.
    Scribbled,
    /// A read returns with one bit flipped; the stored bytes are sound.
    FlipOnRead,
    /// A write stores one flipped bit and reports success.
    FlipAtRest,
    /// The request takes this much longer.
    Delay(Duration),
    /// The power of every device of the supply fails while the request is in flight.
    PowerCut,
}

/// Which of the requests that a rule matches fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Each with probability 1/n; none when n is 0.
    OneIn(u64),
    /// The n-th alone; the first is 1.
    Nth(u64),
    /// The n-th and all after it.
    From(u64),
}

/// One rule of a plan. The first rule that fires decides the fate of a request, delays apart, which add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The operations that it matches; all if empty.
    pub ops: Vec<OpKind>,
    /// Matches requests that touch these bytes; all if none. Flushes touch no bytes and match rules without a range
    /// only.
    pub range: Option<Range<u64>>,
    /// Matches writes only that are durable, or only those that are not; all if none.
    pub durable: Option<bool>,
    /// Which of the matched requests fail.
    pub when: When,
    /// How they fail.
    pub fault: Fault,
}

/// A seeded list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of every choice.
    pub seed: u64,
    /// The rules, tried in order.
    pub rules: Vec<Rule>,
}

impl FaultPlan {
    /// A plan without faults.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { seed, rules: Vec::new() }
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, ops: &[OpKind], range: Option<Range<u64>>, when: When, fault: Fault) -> FaultPlan {
        self.rules.push(Rule { ops: ops.to_vec(), range, durable: None, when, fault });
        self
    }

    /// Restricts the last rule to writes that are durable, or to those that are not.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> FaultPlan {
        self.rules.last_mut().expect("there is a rule").durable = Some(durable);
        self
    }

    /// One in `n` requests of kind `op` suffers `fault`.
    #[must_use]
    pub fn one_in(self, n: u64, op: OpKind, fault: Fault) -> FaultPlan {
        self.rule(&[op], None, When::OneIn(n), fault)
    }

    /// The `n`-th request of kind `op` suffers `fault`; the first is 1.
    #[must_use]
    pub fn nth(self, n: u64, op: OpKind, fault: Fault) -> FaultPlan {
        self.rule(&[op], None, When::Nth(n), fault)
    }
}

/// How often each fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// `EIO`, transient ones included.
    pub eio: u64,
    /// "No space left".
    pub no_space: u64,
    /// Requests that ended early.
    pub short: u64,
    /// `EOPNOTSUPP`.
    pub unsupported: u64,
    /// Writes that were acknowledged and not done, done elsewhere, or done in part with noise.
    pub false_writes: u64,
    /// Bits flipped in what a read returned.
    pub flips_on_read: u64,
    /// Bits flipped in what a write stored.
    pub flips_at_rest: u64,
    /// Requests delayed.
    pub delays: u64,
    /// Power cuts begun by this device.
    pub power_cuts: u64,
}

impl FaultCounts {
    /// Requests that were answered with an error.
    pub fn errors(&self) -> u64 {
        self.eio + self.no_space + self.short + self.unsupported
    }

    /// Adds the counts of another device.
    pub fn add(&mut self, other: FaultCounts) {
        self.eio += other.eio;
        self.no_space += other.no_space;
        self.short += other.short;
        self.unsupported += other.unsupported;
        self.false_writes += other.false_writes;
        self.flips_on_read += other.flips_on_read;
        self.flips_at_rest += other.flips_at_rest;
        self.delays += other.delays;
        self.power_cuts += other.power_cuts;
    }
}
