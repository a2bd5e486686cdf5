//! Mistakes that can be built into the engine on purpose, one at a time. The crash simulation turns them on to prove
//! that it would notice: a checker that cannot fail shows nothing.
//!
//! One table for all crates from here up. A place that can go wrong asks [`Broken::has`]: one comparison, and always
//! false but in such tests.

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
    FloorNotRaised "floor-not-raised" "checkpoint" "A checkpoint that begins leaves the image floor where it was."
    EpochNotCompared "epoch-not-compared" "group" "A group is placed without asking whether a checkpoint began since its images were decided."
    NoImages "no-images" "group" "Pages that are old are logged by their changes, never whole."
    PageNotStamped "page-not-stamped" "group" "A changed page keeps the LSN that it had."
    DirtyAfterAppend "dirty-after-append" "group" "A page is marked dirty after its group has its place, with the group's end."
    CheckpointSkipsPages "checkpoint-skips-pages" "checkpoint" "A checkpoint completes without writing pages."
    RedoAtCompletion "redo-at-completion" "checkpoint" "The redo point is the log's end at completion."
    DurablePastGap "durable-past-gap" "log" "The log is called durable to the end of a write while an earlier one is under way."
    RunNotRecorded "run-not-recorded" "log" "A new run is not in the superblock before it appends."
    RunIgnored "run-ignored" "recovery" "Groups of any run are believed."
    RedoAtRecovery "redo-at-recovery" "recovery" "Redo begins at the log's end before what was replayed is written."
    AckABlockEarly "ack-a-block-early" "commit" "Commits are acknowledged when the log is durable to a block before their end."
    UnlockBeforeCommit "unlock-before-commit" "commit" "Locks are released before the changes are made."
    SyncNotNoted "sync-not-noted" "commit" "Readers are not told that what they read waits for the log."
    ReadsUndurable "reads-undurable" "commit" "A reader is acknowledged before the sync commits that it read are durable."
    ReadsNotLocked "reads-not-locked" "locks" "Reads of keys take no lock."
    OldValuesNotRead "old-values-not-read" "snapshots" "A snapshot reads what is newest, whatever old values there are."
    SavepointKept "savepoint-kept" "write set" "Going back to a savepoint undoes nothing."
    CountIgnoresOwn "count-ignores-own" "transaction" "Counting does not see the transaction's own writes."
    LongValueLeaks "long-value-leaks" "commit" "The pages of a replaced long value are not freed."
    FreeNotLogged "free-not-logged" "space" "Freed pages stay allocated in the space map."
    AllocNotLogged "alloc-not-logged" "space" "Allocated pages stay free in the space map."
    ChangeDuringWrite "change-during-write" "buffer" "A page that changed while it was written counts as clean."
    PartialGroup "partial-group" "recovery" "Recovery applies the intact part of a group."
    FencesNotCompared "fences-not-compared" "tree" "Pages that were read are not compared with what their parents say of them."
    MarksNotKept "marks-not-kept" "lost writes" "Nobody remembers which version of a page was written last."
    MarksOfRecoveryLost "marks-of-recovery-lost" "lost writes" "What recovery wrote is forgotten when the marks are found."
    TierNoMaps "tier-no-maps" "tier" "A tier writes its first map only."
    TierNoJournal "tier-no-journal" "tier" "A tier's sync writes no journal."
    TierFailedSyncBelieved "tier-failed-sync-believed" "tier" "A tier goes on after a failed sync of the slow device."
    TierFailedFlushBelieved "tier-failed-flush-believed" "tier" "A tier goes on after a failed flush of the fast device."
    TierNoCopies "tier-no-copies" "tier" "Slots are emptied without copying home what is newer there."
    UsedDeviceKept "used-device-kept" "creation" "A database is made on a used device that is not made blank first."
    CloseNotRefused "close-not-refused" "close" "A close waits for nobody and refuses nobody."
    DropGoesOn "drop-goes-on" "close" "The drop of the last handle ends no thread."
    IdentityNotCompared "identity-not-compared" "identity" "Files of other times and other databases are believed."
    OlderSuperblockBelieved "older-superblock-believed" "log" "Superblocks are written in turn, and a clean one is believed whatever the log holds."
}

impl Mistake {
    /// Whether only damage at rest shows it (`varve sim --damage`), and no crash.
    pub fn is_about_damage(self) -> bool {
        matches!(
            self,
            Mistake::FencesNotCompared
                | Mistake::MarksNotKept
                | Mistake::IdentityNotCompared
                | Mistake::OlderSuperblockBelieved
        )
    }
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
