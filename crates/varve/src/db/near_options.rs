//! How both sides of `merge=copro+` decide, where the database's directory names a worker. [`OPTIONS`] has a line for
//! each option.

use crate::error::{Error, Result};
use crate::index::{DecisionOptions, MergeMode};
use varve_volume::setting::{Accepts, Setting, Table};

/// How host and worker decide when they merge in a pipeline (`docs/near.md`), with `merge=copro+`. It counts where the
/// directory names the worker; what is opened over [`Devices`](crate::Devices) has it in
/// [`NearOptions`](crate::NearOptions).
#[derive(Debug, Clone, PartialEq)]
pub struct NearDecisions {
    /// The host.
    pub host: DecisionOptions,
    /// The worker.
    pub worker: DecisionOptions,
}

impl Default for NearDecisions {
    /// As published.
    fn default() -> NearDecisions {
        NearDecisions { host: DecisionOptions::host(), worker: DecisionOptions::device() }
    }
}

type Line = Setting<NearDecisions>;

const WEIGHT: Accepts = Accepts::Real(0.0..=1.0, "a weight");
const SHARE: Accepts = Accepts::Real(0.0..=1.0, "a share");
const BYTES: Accepts = Accepts::Bytes(0..=u32::MAX as u64);
const PAIRS: Accepts = Accepts::Number(0..=1 << 40, "pairs");
const MODE: Accepts = Accepts::Name(|| MergeMode::ALL.map(MergeMode::name).to_vec());

/// The lines of both sides.
macro_rules! lines {
    ($($side:ident: $($name:literal $field:ident $accepts:ident $doc:literal;)*)*) => {
        &[$($(Line::new(concat!(stringify!($side), ".", $name), $accepts, $doc, |o| &mut o.$side.$field),)*)*]
    };
}

/// The options of the decisions.
pub const OPTIONS: Table<NearDecisions> = Table {
    of: "near",
    settings: lines! {
        host:
            "cpu" cpu WEIGHT "Weight of the use of the host's processor.";
            "memory" memory WEIGHT "Weight of the use of the host's memory.";
            "pairs" pairs WEIGHT "Weight of the share of pairs with large values.";
            "threshold" threshold SHARE "From here on the weighted sum makes the host's part linear.";
            "hysteresis" hysteresis SHARE "So far from the threshold the sum changes nothing.";
            "large" large_bytes BYTES "Bytes above which a value is large.";
            "window" window PAIRS "The share is that of the last pairs written; 0: of the merge's own inputs.";
            "first" first MODE "How the host merges before a decision changes it.";
        worker:
            "cpu" cpu WEIGHT "Weight of the use of the worker's processor.";
            "memory" memory WEIGHT "Weight of the use of the worker's memory.";
            "pairs" pairs WEIGHT "Weight of the share of pairs with large values.";
            "threshold" threshold SHARE "From here on the weighted sum makes the worker's part linear.";
            "hysteresis" hysteresis SHARE "So far from the threshold the sum changes nothing.";
            "large" large_bytes BYTES "Bytes above which a value is large.";
            "window" window PAIRS "The share is that of the last pairs merged; 0: of the merge's own inputs.";
            "first" first MODE "How the worker merges before a decision changes it.";
    },
};

impl NearDecisions {
    pub(super) fn validate(&self) -> Result<()> {
        OPTIONS.check(self).map_err(Error::Invalid)
    }
}
