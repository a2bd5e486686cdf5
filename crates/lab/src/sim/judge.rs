//! Which errors are the database's right, and which are findings.

use super::book::Shared;
use varve::Error;

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Run the transaction again.
    Retry,
    /// The transaction was refused before anything changed.
    TooLarge,
    /// A device failed; the transaction is given up, and the next may work.
    Failed,
    /// Writes are refused from here on.
    Poisoned,
    /// The power is off.
    PowerOff,
    /// A page is damaged, after a write that was not done as asked.
    Damage,
    /// No such error may happen here.
    Wrong,
}

/// Judges an error that the engine gave a client.
pub(crate) fn judge(error: &Error, shared: &Shared) -> Verdict {
    if !shared.supply.is_on() || is_power_loss(error) {
        return Verdict::PowerOff;
    }
    let faults = shared.has_failed();
    if shared.machine.falsified() > 0 && is_damage(error) {
        return Verdict::Damage;
    }
    match error {
        e if e.is_retryable() => Verdict::Retry,
        Error::TransactionTooLarge { .. } | Error::OverBudget { .. } => Verdict::TooLarge,
        // A tree takes values of any length; the longest of an LSM keyspace depends on its memory.
        Error::ValueSize { .. } if shared.plan.lsm != 0 => Verdict::TooLarge,
        // A thread of the engine panicked, and not as ordered.
        Error::Poisoned(why) if why.contains("panicked") && !shared.has_panicked() => Verdict::Wrong,
        Error::Poisoned(_) if faults => Verdict::Poisoned,
        Error::NoSpace(_) | Error::Io(_) | Error::Volume(_) if faults => Verdict::Failed,
        _ => Verdict::Wrong,
    }
}

/// Whether the error names a damaged page.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt(varve::Damage::Page { .. }) | Error::Volume(varve_volume::VolumeError::Damaged { .. })
    )
}

/// Whether the error says that the power is gone.
pub(crate) fn is_power_loss(error: &Error) -> bool {
    match error {
        Error::Io(_) | Error::Poisoned(_) | Error::Volume(_) => error.to_string().contains("lost power"),
        _ => false,
    }
}
