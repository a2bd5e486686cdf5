//! `[engine.tier]` of an experiment: how the tier of a point works.

use super::named::{Named, TierNames};
use serde::{Deserialize, Serialize};
use varve::TierOptions;

/// `[engine.tier]`: the engine's options of a tier by their names, and what the result shall have of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tier {
    /// The result has what the manager counted by group and page, at the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// The options.
    #[serde(flatten)]
    pub options: Named<TierOptions, TierNames>,
}

impl Tier {
    pub(super) fn is_default(&self) -> bool {
        *self == Tier::default()
    }
}
