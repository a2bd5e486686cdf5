//! `engine.decision`: how the sides of `merge=copro+` decide. What is left out is as published.

use serde::{Deserialize, Serialize};
use varve::{DecisionOptions, MergeMode, NearOptions};

/// `[engine.decision]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Decisions {
    /// The host.
    #[serde(skip_serializing_if = "Deciding::is_default")]
    pub host: Deciding,
    /// The worker.
    #[serde(skip_serializing_if = "Deciding::is_default")]
    pub near: Deciding,
}

/// How one side decides: the fields of [`DecisionOptions`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deciding {
    /// Weight of the processor's use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Weight of the memory's use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Weight of the share of large pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<f64>,
    /// From here on merges are linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Bytes above which a value is large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_bytes: Option<u32>,
    /// So far from the threshold a decision is not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hysteresis: Option<f64>,
    /// Pairs over which the share of large ones is taken; 0: those of the inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// How merges are done before a decision was changed: pipeline or linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<First>,
}

/// The first state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum First {
    Pipeline,
    Linear,
}

impl From<First> for MergeMode {
    fn from(first: First) -> MergeMode {
        match first {
            First::Pipeline => MergeMode::Pipeline,
            First::Linear => MergeMode::Linear,
        }
    }
}

impl Deciding {
    fn is_default(&self) -> bool {
        *self == Deciding::default()
    }

    /// With `published` where nothing is given.
    fn over(&self, published: DecisionOptions) -> DecisionOptions {
        DecisionOptions {
            cpu: self.cpu.unwrap_or(published.cpu),
            memory: self.memory.unwrap_or(published.memory),
            pairs: self.pairs.unwrap_or(published.pairs),
            threshold: self.threshold.unwrap_or(published.threshold),
            large_bytes: self.large_bytes.unwrap_or(published.large_bytes),
            hysteresis: self.hysteresis.unwrap_or(published.hysteresis),
            window: self.window.unwrap_or(published.window),
            first: self.first.map_or(published.first, MergeMode::from),
        }
    }
}

impl Decisions {
    pub(super) fn is_default(&self) -> bool {
        *self == Decisions::default()
    }

    /// Refuses what cannot be; the error names the key.
    pub(super) fn validate(&self) -> Result<(), (String, String)> {
        let check =
            |of: DecisionOptions, side: &str| of.check().map_err(|what| (format!("engine.decision.{side}"), what));
        check(self.host.over(DecisionOptions::host()), "host")?;
        check(self.near.over(DecisionOptions::device()), "near")
    }

    /// The same worker, decided about so.
    pub(super) fn put(&self, near: NearOptions) -> NearOptions {
        NearOptions { host: self.host.over(near.host), device: self.near.over(near.device), ..near }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_published() {
        let text = "[host]\ncpu = 0.8\n[near]\nlarge_bytes = 4096\nwindow = 100\nfirst = \"linear\"\n";
        let decisions: Decisions = toml::from_str(text).unwrap();
        let host = decisions.host.over(DecisionOptions::host());
        assert_eq!(host, DecisionOptions { cpu: 0.8, ..DecisionOptions::host() });
        let near = decisions.near.over(DecisionOptions::device());
        let first = MergeMode::Linear;
        assert_eq!(near, DecisionOptions { large_bytes: 4096, window: 100, first, ..DecisionOptions::device() });
        assert_eq!(decisions.validate(), Ok(()));
        let wrong: Decisions = toml::from_str("near.threshold = 2.0").unwrap();
        assert_eq!(wrong.validate().unwrap_err().0, "engine.decision.near");
        assert!(Decisions::default().is_default() && !wrong.is_default());
    }
}
