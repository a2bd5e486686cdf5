//! Errors of single operations: on which device, of which operation, how it fails, once or for good. Pure.

use super::tables::Table;
use std::collections::BTreeMap;
use varve_device::OpKind;
use varve_models::{Fault as DeviceFault, FaultPlan, When};
use varve_rt::Rng;

/// A device of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Data,
    Log,
    Fast,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Read,
    Write,
    /// A write that is on media when it completes.
    Durable,
    Flush,
    SetLen,
    Trim,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Eio,
    /// `EIO`, and worth another try.
    Retryable,
    NoSpace,
    Short,
    Unsupported,
    /// A write that is acknowledged and not done.
    Lost,
    /// One that is done at another page.
    Misdirected,
    /// One of which some bytes are wrong.
    Scribbled,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Eio, "EIO"),
    (Kind::Retryable, "EIO, retryable"),
    (Kind::NoSpace, "ENOSPC"),
    (Kind::Short, "short"),
    (Kind::Unsupported, "EOPNOTSUPP"),
];

/// What the engine asks of which device; the rest never happens there.
const OPERATIONS: [(Target, Operation, &str); 13] = [
    (Target::Data, Operation::Read, "data read"),
    (Target::Data, Operation::Write, "data write"),
    (Target::Data, Operation::Flush, "data flush"),
    (Target::Data, Operation::SetLen, "data set_len"),
    (Target::Data, Operation::Trim, "data trim"),
    (Target::Log, Operation::Read, "log read"),
    (Target::Log, Operation::Durable, "log durable write"),
    (Target::Log, Operation::Flush, "log flush"),
    (Target::Log, Operation::SetLen, "log set_len"),
    (Target::Fast, Operation::Read, "fast read"),
    (Target::Fast, Operation::Write, "fast write"),
    (Target::Fast, Operation::Flush, "fast flush"),
    (Target::Fast, Operation::SetLen, "fast set_len"),
];

/// One fault: the `nth` request of its sort from now on fails, or that and all after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) cell: Cell,
    pub(crate) nth: u64,
    /// It may strike while the database opens.
    pub(crate) early: bool,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) target: Target,
    operation: Operation,
    kind: Kind,
    for_good: bool,
}

impl Cell {
    /// Draws an operation of those that are wanted, and how it fails.
    fn draw(rng: &mut Rng, wanted: impl Fn(Target, Operation) -> bool) -> Cell {
        let operations: Vec<_> =
            OPERATIONS.iter().filter(|(target, operation, _)| wanted(*target, *operation)).collect();
        let &(target, operation, _) = operations[rng.below(operations.len() as u64) as usize];
        let kinds: Vec<_> = KINDS.iter().filter(|(kind, _)| kind.fits(operation)).collect();
        let (kind, _) = *kinds[rng.below(kinds.len() as u64) as usize];
        Cell { target, operation, kind, for_good: rng.one_in(2) }
    }
}

impl Kind {
    /// Writes that are acknowledged and not done as asked.
    pub(crate) const FALSE: [(Kind, &str); 3] =
        [(Kind::Lost, "lost"), (Kind::Misdirected, "misdirected"), (Kind::Scribbled, "some bytes wrong")];

    /// Whether an operation can fail like that.
    fn fits(self, operation: Operation) -> bool {
        use Operation::*;
        match self {
            Kind::Eio => true,
            Kind::Retryable => matches!(operation, Read | Write),
            Kind::NoSpace => matches!(operation, Write | Durable | SetLen),
            Kind::Short => matches!(operation, Read | Write | Durable),
            Kind::Unsupported => matches!(operation, Durable | Flush | SetLen | Trim),
            Kind::Lost | Kind::Misdirected | Kind::Scribbled => operation == Write,
        }
    }
}

impl Fault {
    /// Draws a fault of a machine with or without a fast device. Which request it strikes is drawn evenly over orders
    /// of magnitude, since a life has thousands of some and few of others.
    pub(crate) fn draw(rng: &mut Rng, fast: bool) -> Fault {
        let cell = Cell::draw(rng, |target, _| fast || target != Target::Fast);
        let Cell { target, operation, .. } = cell;
        // The log is read when the database opens, and hardly ever afterwards.
        let opening = target == Target::Log && matches!(operation, Operation::Read | Operation::Flush);
        let early = opening || rng.one_in(5);
        let magnitudes = match operation {
            Operation::Read | Operation::Write | Operation::Durable if !early => 9,
            Operation::Trim => 5,
            Operation::SetLen => 2,
            _ => 3,
        };
        let magnitude = rng.below(magnitudes);
        Fault { cell, nth: 1 + rng.below(1 << magnitude), early }
    }

    /// Draws a fault of the life in which the database is created and loaded: that is when devices change their
    /// lengths.
    pub(crate) fn of_creation(rng: &mut Rng, fast: bool) -> Fault {
        if rng.one_in(2) {
            return Fault::draw(rng, fast);
        }
        let resized = |target, operation| operation == Operation::SetLen && (fast || target != Target::Fast);
        let cell = Cell::draw(rng, resized);
        let early = cell.target == Target::Fast || rng.one_in(3);
        Fault { cell, nth: 1 + rng.below(3), early }
    }

    /// The data device has the length that it has, once the database is open.
    pub(crate) fn full() -> Fault {
        let cell = Cell { target: Target::Data, operation: Operation::SetLen, kind: Kind::NoSpace, for_good: true };
        Fault { cell, nth: 1, early: false }
    }

    /// Draws a write of a page that is acknowledged and not done as asked.
    pub(crate) fn false_write(rng: &mut Rng) -> Fault {
        let (kind, _) = Kind::FALSE[rng.below(3) as usize];
        let cell = Cell { target: Target::Data, operation: Operation::Write, kind, for_good: false };
        let magnitude = rng.below(8);
        Fault { cell, nth: 1 + rng.below(1 << magnitude), early: false }
    }

    /// How it fails.
    pub(crate) fn kind(self) -> Kind {
        self.cell.kind
    }

    /// Adds the fault to the plan of its device.
    pub(crate) fn add_to(self, plan: FaultPlan) -> FaultPlan {
        let Cell { operation, kind, for_good, .. } = self.cell;
        let op = match operation {
            Operation::Read => OpKind::Read,
            Operation::Write | Operation::Durable => OpKind::Write,
            Operation::Flush => OpKind::Flush,
            Operation::SetLen => OpKind::SetLen,
            Operation::Trim => OpKind::Trim,
        };
        let fault = match kind {
            Kind::Eio => DeviceFault::Eio,
            Kind::Retryable => DeviceFault::TransientEio,
            Kind::NoSpace => DeviceFault::NoSpace,
            Kind::Short => DeviceFault::Short,
            Kind::Unsupported => DeviceFault::Unsupported,
            Kind::Lost => DeviceFault::Lost,
            // Far enough for any page size, and not far.
            Kind::Misdirected => DeviceFault::Misdirected((1 + self.nth % 40) << 14),
            Kind::Scribbled => DeviceFault::Scribbled,
        };
        let when = if for_good { When::From(self.nth) } else { When::Nth(self.nth) };
        let plan = plan.rule(&[op], None, when, fault);
        if op == OpKind::Write { plan.durable(operation == Operation::Durable) } else { plan }
    }
}

/// How often each fault struck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Struck(BTreeMap<Cell, u64>);

impl Struck {
    pub(crate) fn add(&mut self, cell: Cell, n: u64) {
        *self.0.entry(cell).or_default() += n;
    }

    pub(crate) fn merge(&mut self, other: &Struck) {
        other.0.iter().for_each(|(cell, n)| self.add(*cell, *n));
    }

    /// Operation by fault; the fast device's rows where there is one.
    pub(crate) fn table(&self, fast: bool) -> Table {
        let columns: Vec<(Kind, bool, String)> = KINDS
            .iter()
            .flat_map(|&(kind, name)| [(false, "once"), (true, "for good")].map(|(g, how)| (kind, g, how, name)))
            .map(|(kind, for_good, how, name)| (kind, for_good, format!("{name} {how}")))
            .collect();
        let count = |target, operation, &(kind, for_good, _): &(Kind, bool, String)| {
            let cell = Cell { target, operation, kind, for_good };
            kind.fits(operation).then(|| self.0.get(&cell).copied().unwrap_or(0))
        };
        let rows = OPERATIONS
            .iter()
            .filter(|(target, ..)| fast || *target != Target::Fast)
            .map(|&(t, op, name)| (name.to_string(), columns.iter().map(|column| count(t, op, column)).collect()))
            .collect();
        Table { title: "operation x fault", columns: columns.into_iter().map(|c| c.2).collect(), rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_drawn_with_and_without_a_fast_device() {
        for fast in [false, true] {
            let (mut rng, mut struck) = (Rng::from_seed(1), Struck::default());
            for _ in 0..3000 {
                let fault = Fault::draw(&mut rng, fast);
                assert!(fast || fault.cell.target != Target::Fast);
                struck.add(fault.cell, 1);
            }
            assert_eq!(struck.table(fast).empty_cells(), Vec::<String>::new());
        }
    }
}
