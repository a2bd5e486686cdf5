//! Tables of an experiment that change nothing, since no point has what they are for.

use super::spec::Spec;
use varve::{KeyspaceKind, MergeBy};

/// A table, whether a point gives it, whether the point has what it is for, and what that is.
type Rule = (&'static str, fn(&Spec) -> bool, fn(&Spec) -> bool, &'static str);

const RULES: [Rule; 6] = [
    ("devices.each", |s| !s.devices.each.is_empty(), on_array, "drives of an array: give devices.drives"),
    ("devices.log", |s| !s.devices.log.is_empty(), |s| s.workload.has_database(), "a database: this workload has none"),
    ("engine.array", |s| !s.engine.array.is_default(), on_array, "an array: give devices.drives"),
    ("engine.tier", |s| !s.engine.tier.is_default(), |s| !s.devices.fast.is_empty(), "a tier: give devices.fast"),
    (
        "engine.lsm",
        |s| !super::lsm::is_default(&s.engine.lsm),
        on_lsm,
        "LSM keyspaces: give layout.keyspaces = \"lsm\"",
    ),
    ("engine.decision", |s| !s.engine.decision.is_default(), decides, "engine.lsm.merge = \"copro+\""),
];

fn on_array(spec: &Spec) -> bool {
    !spec.devices.drives.is_empty()
}

fn on_lsm(spec: &Spec) -> bool {
    spec.workload.has_database() && matches!(spec.kind(), KeyspaceKind::Lsm(_))
}

fn decides(spec: &Spec) -> bool {
    matches!(spec.kind(), KeyspaceKind::Lsm(options) if options.merge == MergeBy::CoproPlus)
}

/// Refuses a table that no point has a use for; names it. What some points have a use for, all may be given.
pub(super) fn refuse<'a>(points: impl Iterator<Item = &'a Spec> + Clone) -> Result<(), (&'static str, String)> {
    let idle = |(_, given, used, _): &&Rule| points.clone().any(given) && !points.clone().any(used);
    match RULES.iter().find(idle) {
        Some((key, _, _, what)) => Err((key, format!("it changes nothing: it is for {what}"))),
        None => Ok(()),
    }
}
