//! What is to go wrong on purpose: mistakes that are built in, and panics at named places. The crash simulation turns
//! them on to prove that it would notice: a checker that cannot fail shows nothing.
//!
//! One value for all crates, handed to a database once; its [`Health`](crate::Health) carries it to every part. A place
//! that can go wrong asks [`Faults::has`]. Only builds with the feature `faults` can be told to do wrong: in others the
//! value has no size, and what would be done wrong is not compiled.
//!
//! Invariant: a trap springs once each time that it was armed, and never while its thread unwinds.

#[cfg(feature = "faults")]
use std::panic::resume_unwind;
#[cfg(feature = "faults")]
use std::sync::Arc;
#[cfg(feature = "faults")]
use varve_rt::atomic::{AtomicU64, Ordering};

/// What is to go wrong; by default nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    #[cfg(feature = "faults")]
    mistake: Option<Mistake>,
    #[cfg(feature = "faults")]
    trap: Option<Arc<Trap>>,
}

#[cfg(not(feature = "faults"))]
impl Faults {
    /// Whether this mistake is to be made: never.
    #[inline(always)]
    pub fn has(&self, _mistake: Mistake) -> bool {
        false
    }

    /// The caller is at a place that can be made to panic: not in this build.
    #[inline(always)]
    pub fn pass(&self, _place: Place) {}
}

#[cfg(feature = "faults")]
impl Faults {
    /// Whether this mistake is to be made.
    #[inline]
    pub fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The caller is at a place that can be made to panic.
    #[inline]
    pub fn pass(&self, place: Place) {
        if let Some(trap) = &self.trap {
            trap.pass(place);
        }
    }

    /// These, and a trap.
    pub fn with_trap(self, trap: Option<Arc<Trap>>) -> Faults {
        Faults { trap, ..self }
    }
}

#[cfg(feature = "faults")]
impl From<Mistake> for Faults {
    fn from(mistake: Mistake) -> Faults {
        Some(mistake).into()
    }
}

#[cfg(feature = "faults")]
impl From<Option<Mistake>> for Faults {
    fn from(mistake: Option<Mistake>) -> Faults {
        Faults { mistake, trap: None }
    }
}

/// Makes the enum, the list of all and their descriptions from one table.
macro_rules! mistakes {
    ($($name:ident $text:literal $place:literal $what:literal)*) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Mistake {
            $(#[doc = $what] $name,)*
        }

        #[cfg(feature = "faults")]
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
    RedoAtRecovery "redo-at-recovery" "recovery" "Redo begins at the log's end before what was replayed is written."
    AckABlockEarly "ack-a-block-early" "commit" "Commits are acknowledged when the log is durable to a block before their end."
    UnlockBeforeCommit "unlock-before-commit" "commit" "Locks are released before the changes are made."
    SyncNotNoted "sync-not-noted" "commit" "Readers are not told that what they read waits for the log."
    ReadsUndurable "reads-undurable" "commit" "A reader is acknowledged before the sync commits that it read are durable."
    ReadsNotLocked "reads-not-locked" "locks" "Reads of keys take no lock."
    OldValuesNotRead "old-values-not-read" "snapshots" "A snapshot reads what is newest, whatever old values there are."
    FormerForgotten "former-forgotten" "catalog" "Rows that leave a keyspace at once are not noted in the catalog."
    FormerFreedEarly "former-freed-early" "snapshots" "Rows that left a keyspace at once are freed under a snapshot."
    SpillForgotten "spill-forgotten" "write set" "A commit knows of the writes in memory alone."
    LargeCommitUnfinished "large-commit-unfinished" "recovery" "Nobody goes on with a large commit after a crash."
    VersionsDroppedEarly "versions-dropped-early" "snapshots" "Old values that leave memory are written nowhere."
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
    ArrayNoMap "array-no-map" "array" "Changes of an array's map are not written on its drives."
    ArrayCopyNotSynced "array-copy-not-synced" "array" "An extent moves before its copy is durable."
    FlashErasedEarly "flash-erased-early" "flash" "A block is erased before what replaced its pages is programmed."
    FlashNoScan "flash-no-scan" "flash" "An opening believes the map's checkpoint and looks at no page programmed since."
    FlashNoNumbers "flash-no-numbers" "flash" "An opening takes the version of a page that it finds last for the newest."
    FlashTornRecords "flash-torn-records" "flash" "A delta record is applied whatever its checksum says."
    ChangesNotNoted "changes-not-noted" "flash" "Which bytes of a page change is not noted."
    TierNoMaps "tier-no-maps" "tier" "A tier writes its first map only."
    TierNoJournal "tier-no-journal" "tier" "A tier's sync writes no journal."
    TierFailedSyncBelieved "tier-failed-sync-believed" "tier" "A tier goes on after a failed sync of the slow device."
    TierFailedFlushBelieved "tier-failed-flush-believed" "tier" "A tier goes on after a failed flush of the fast device."
    TierNoCopies "tier-no-copies" "tier" "Slots are emptied without copying home what is newer there."
    UsedDeviceKept "used-device-kept" "creation" "A database is made on a used device that is not made blank first."
    CloseNotRefused "close-not-refused" "close" "A close waits for nobody and refuses nobody."
    DropGoesOn "drop-goes-on" "close" "The drop of the last handle ends no thread."
    IdentityNotCompared "identity-not-compared" "identity" "Files of other times and other databases are believed."
    MemtableForgotten "memtable-forgotten" "lsm" "A checkpoint does not ask what log memtables need."
    SegmentUnsynced "segment-unsynced" "lsm" "A segment is listed before its pages are synced."
    SegmentPagesEarly "segment-pages-early" "lsm" "Pages of a dropped segment are used again before the drop is durable."
    NearOverlap "near-overlap" "near" "Host and worker both merge the keys from the cut on."
    NearAnyAnswer "near-any-answer" "near" "A worker's answer is believed, whatever job it is to."
    NearUnsynced "near-unsynced" "near" "A worker answers before its outputs are durable."
    NearTakenUpUnseen "near-taken-up-unseen" "near" "What a worker says is finished, before it is, is listed without a look at it."
    LiveLogGivenUp "live-log-given-up" "log" "A log that shrinks gives up what a recovery needs."
    OlderSuperblockBelieved "older-superblock-believed" "log" "Superblocks are written in turn, and a clean one is believed whatever the log holds."
}

#[cfg(feature = "faults")]
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

#[cfg(feature = "faults")]
impl std::str::FromStr for Mistake {
    type Err = String;

    fn from_str(s: &str) -> Result<Mistake, String> {
        let names = || Mistake::ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ");
        let found = Mistake::ALL.iter().copied().find(|m| m.name() == s);
        found.ok_or_else(|| format!("no broken build {s:?}; there are {}", names()))
    }
}

/// A place that can be made to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Pages were changed, and their log group has no place in the log yet.
    Group,
    /// The thread that writes the log for all that wait has claimed what it writes.
    LogLeader,
    /// The log's flusher looks what is due.
    Flusher,
    /// A checkpoint of the checkpointer has written most pages.
    Checkpointer,
    /// A cleaner begins a round.
    Cleaner,
}

#[cfg(feature = "faults")]
impl Place {
    /// All of them.
    pub const ALL: [Place; 5] = [Place::Group, Place::LogLeader, Place::Flusher, Place::Checkpointer, Place::Cleaner];
}

/// Panics once, when a place is passed for the n-th time after it was armed.
#[cfg(feature = "faults")]
#[derive(Debug)]
pub struct Trap {
    place: Place,
    /// Passages until then, that one included; 0: not armed.
    left: AtomicU64,
    sprung: AtomicU64,
}

#[cfg(feature = "faults")]
impl Trap {
    /// How the message of such a panic begins.
    pub const MESSAGE: &str = "a panic on purpose";

    /// A trap that is not armed.
    pub fn new(place: Place) -> Trap {
        Trap { place, left: AtomicU64::new(0), sprung: AtomicU64::new(0) }
    }

    /// Panics when the place is passed for the `nth` time from now on; 0: not at all.
    pub fn arm(&self, nth: u64) {
        self.left.store(nth, Ordering::SeqCst);
    }

    /// Whether it has panicked.
    pub fn has_sprung(&self) -> bool {
        self.sprung.load(Ordering::SeqCst) > 0
    }

    /// Somebody is at `place`.
    fn pass(&self, place: Place) {
        if place != self.place || varve_rt::dying() || varve_rt::panicking() {
            return;
        }
        let less = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
            self.sprung.store(1, Ordering::SeqCst);
            // Without a word on stderr: it is no news.
            resume_unwind(Box::new(format!("{}: {place:?}", Trap::MESSAGE)));
        }
    }
}

/// The same trap.
#[cfg(feature = "faults")]
impl PartialEq for Trap {
    fn eq(&self, other: &Trap) -> bool {
        std::ptr::eq(self, other)
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn each_name_leads_back_to_its_mistake_alone() {
        for &mistake in Mistake::ALL {
            assert_eq!(mistake.name().parse(), Ok(mistake));
            let has: Vec<_> = Mistake::ALL.iter().filter(|m| Faults::from(mistake).has(**m)).collect();
            assert_eq!(has, [&mistake]);
            assert!(!Faults::default().has(mistake));
        }
        assert!("none-such".parse::<Mistake>().unwrap_err().contains("partial-group"));
    }

    #[test]
    fn it_springs_once_at_its_place_when_armed() {
        let trap = Trap::new(Place::Group);
        let panics = |place| catch_unwind(AssertUnwindSafe(|| trap.pass(place))).is_err();
        assert!(!panics(Place::Group));
        trap.arm(2);
        let seen = [Place::Flusher, Place::Group, Place::LogLeader, Place::Group, Place::Group].map(panics);
        assert_eq!(seen, [false, false, false, true, false]);
        assert!(trap.has_sprung());
    }
}
