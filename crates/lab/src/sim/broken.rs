//! Builds broken on purpose: each is a mistake that an engine of this kind makes easily, and that the simulation must
//! catch. A simulation that passes them shows nothing.

use varve::Broken;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breakage {
    /// Pages are written without forcing the log first.
    PageBeforeLog,
    /// Page images are decided by the last completed checkpoint instead of the newest begun.
    ImageRuleCompleted,
    /// A checkpoint's redo point is the smallest first-change LSN of the pages dirty at its completion.
    RedoFromFirstChange,
    /// Commits are acknowledged before their group is durable.
    AckBeforeFlush,
    /// Log writes are not made durable.
    SkipLogFlush,
    /// Superblocks, and the pages before them, are not made durable.
    SkipSuperblockFlush,
    /// Scans take no interval locks.
    SkipIntervalLock,
    /// Recovery applies the intact part of a group whose end is missing.
    PartialGroup,
    /// A tier writes its first map only.
    TierNoMaps,
    /// A tier's sync writes no journal.
    TierNoJournal,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Breakage; 10] = [
        Breakage::PageBeforeLog,
        Breakage::ImageRuleCompleted,
        Breakage::RedoFromFirstChange,
        Breakage::AckBeforeFlush,
        Breakage::SkipLogFlush,
        Breakage::SkipSuperblockFlush,
        Breakage::SkipIntervalLock,
        Breakage::PartialGroup,
        Breakage::TierNoMaps,
        Breakage::TierNoJournal,
    ];

    /// Name for options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Breakage::PageBeforeLog => "page-before-log",
            Breakage::ImageRuleCompleted => "image-rule-completed",
            Breakage::RedoFromFirstChange => "redo-from-first-change",
            Breakage::AckBeforeFlush => "ack-before-flush",
            Breakage::SkipLogFlush => "skip-log-flush",
            Breakage::SkipSuperblockFlush => "skip-superblock-flush",
            Breakage::SkipIntervalLock => "skip-interval-lock",
            Breakage::PartialGroup => "partial-group",
            Breakage::TierNoMaps => "tier-no-maps",
            Breakage::TierNoJournal => "tier-no-journal",
        }
    }

    /// The engine's switches for it; all off for none.
    pub(crate) fn switches(breakage: Option<Breakage>) -> Broken {
        let mut broken = Broken::default();
        match breakage {
            None => {}
            Some(Breakage::PageBeforeLog) => broken.page_before_log = true,
            Some(Breakage::ImageRuleCompleted) => broken.image_rule_completed = true,
            Some(Breakage::RedoFromFirstChange) => broken.redo_from_first_change = true,
            Some(Breakage::AckBeforeFlush) => broken.ack_before_flush = true,
            Some(Breakage::SkipLogFlush) => broken.skip_log_flush = true,
            Some(Breakage::SkipSuperblockFlush) => broken.skip_superblock_flush = true,
            Some(Breakage::SkipIntervalLock) => broken.skip_interval_lock = true,
            Some(Breakage::PartialGroup) => broken.partial_group = true,
            Some(Breakage::TierNoMaps) => broken.tier_no_maps = true,
            Some(Breakage::TierNoJournal) => broken.tier_no_journal = true,
        }
        broken
    }
}

impl std::str::FromStr for Breakage {
    type Err = String;

    fn from_str(s: &str) -> Result<Breakage, String> {
        let names = || Breakage::ALL.map(Breakage::name).join(", ");
        Breakage::ALL
            .into_iter()
            .find(|b| b.name() == s)
            .ok_or_else(|| format!("no broken build {s:?}; there are {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_breakage() {
        for breakage in Breakage::ALL {
            assert_eq!(breakage.name().parse(), Ok(breakage));
            assert_ne!(Breakage::switches(Some(breakage)), Broken::default());
        }
        assert!("none-such".parse::<Breakage>().unwrap_err().contains("partial-group"));
    }
}
