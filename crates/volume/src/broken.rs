//! Mistakes that can be built into the engine on purpose, one at a time. The crash simulation turns them on to prove that it
//! would notice: a checker that cannot fail shows nothing.
//!
//! One table for all crates from here up. A place that can go wrong asks [`Broken::has`]: one comparison, and always false
//! but in such tests.

/// Makes the enum, the list of all and their descriptions from one table.
macro_rules! mistakes {
    ($($name:ident $text:literal $place:literal $what:literal)*) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Mistake {
            $(#[doc = $what] $name,)*
        }

        impl Mistake {
            /// All of them, in the order of the table.
            pub const ALL: &[Mistake] = &[$(Mistake::$name),*];

            /// Name for options and reports.
            pub fn name(self) -> &'static str {
                match self { $(Mistake::$name => $text),* }
            }

            /// The part of the engine that makes it.
            pub fn place(self) -> &'static str {
                match self { $(Mistake::$name => $place),* }
            }

            /// What is done wrong.
            pub fn what(self) -> &'static str {
                match self { $(Mistake::$name => $what),* }
            }
        }
    };
}

mistakes! {
    PageBeforeLog "page-before-log" "buffer" "Pages are written before the log that describes them."
    ImageRuleCompleted "image-rule-completed" "group" "Page images are decided by the last completed checkpoint, not the newest begun."
    RedoFromFirstChange "redo-from-first-change" "checkpoint" "The redo point is the smallest first-change LSN of the pages dirty at completion."
    AckBeforeFlush "ack-before-flush" "commit" "Commits are acknowledged before they are durable."
    SkipLogFlush "skip-log-flush" "log" "Log writes are not made durable."
    SkipSuperblockFlush "skip-superblock-flush" "checkpoint" "Superblocks, and the pages before them, are not made durable."
    SkipIntervalLock "skip-interval-lock" "locks" "Scans lock no intervals."
    PartialGroup "partial-group" "recovery" "Recovery applies the intact part of a group."
    TierNoMaps "tier-no-maps" "tier" "A tier writes its first map only."
    TierNoJournal "tier-no-journal" "tier" "A tier's sync writes no journal."
    TierNoCopies "tier-no-copies" "tier" "Slots are emptied without copying home what is newer there."
}

/// The mistake that is built in, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken(Option<Mistake>);

impl Broken {
    /// Whether this mistake is to be made.
    #[inline]
    pub fn has(self, mistake: Mistake) -> bool {
        self.0 == Some(mistake)
    }

    /// The mistake, if there is one.
    pub fn mistake(self) -> Option<Mistake> {
        self.0
    }
}

impl From<Mistake> for Broken {
    fn from(mistake: Mistake) -> Broken {
        Broken(Some(mistake))
    }
}

impl From<Option<Mistake>> for Broken {
    fn from(mistake: Option<Mistake>) -> Broken {
        Broken(mistake)
    }
}

impl std::str::FromStr for Mistake {
    type Err = String;

    fn from_str(s: &str) -> Result<Mistake, String> {
        let names = || Mistake::ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ");
        let found = Mistake::ALL.iter().copied().find(|m| m.name() == s);
        found.ok_or_else(|| format!("no broken build {s:?}; there are {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leads_back_to_its_mistake_alone() {
        for &mistake in Mistake::ALL {
            assert_eq!(mistake.name().parse(), Ok(mistake));
            let has: Vec<_> = Mistake::ALL.iter().filter(|m| Broken::from(mistake).has(**m)).collect();
            assert_eq!(has, [&mistake]);
            assert!(!Broken::default().has(mistake));
        }
        assert!("none-such".parse::<Mistake>().unwrap_err().contains("partial-group"));
    }
}
