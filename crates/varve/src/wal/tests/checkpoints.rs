//! Checkpoints over a modelled set of pages: order, triggers, failure, closing.

use super::checkpoint::{AfterCheckpoint, CheckpointConfig, CheckpointPages, Checkpointer, LogNeeds};
use super::*;
use varve_rt::Mutex;

/// Pages that note what was asked of them.
#[derive(Default)]
struct Pages {
    dirty: Mutex<Vec<Lsn>>,
    calls: Mutex<Vec<String>>,
    fail_sync: std::sync::atomic::AtomicBool,
}

impl CheckpointPages for Pages {
    fn flush_older_than(&self, t: Lsn) -> Result<()> {
        self.dirty.lock().retain(|&first| first >= t);
        self.calls.lock().push("flush".into());
        Ok(())
    }

    fn oldest_dirty(&self) -> Option<Lsn> {
        self.dirty.lock().iter().copied().min()
    }

    fn sync(&self) -> Result<()> {
        self.calls.lock().push("sync".into());
        match self.fail_sync.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(Error::Invalid("made to fail".into())),
            false => Ok(()),
        }
    }
}

fn setup() -> (Arc<dyn Device>, Arc<Log>, Arc<Pages>, Arc<Checkpointer>) {
    let (dev, log) = fresh(small());
    let pages = Arc::new(Pages::default());
    let checkpointer = Checkpointer::new(log.clone(), pages.clone(), CheckpointConfig::default());
    (dev, log, pages, checkpointer)
}

#[test]
fn a_checkpoint_flushes_syncs_and_then_moves_the_redo_point() {
    let (dev, log, pages, checkpointer) = setup();
    let end = log.append(GroupKind::Commit, None, &body(1, 100)).unwrap().end;
    pages.dirty.lock().push(FIRST_LSN);
    checkpointer.checkpoint().unwrap();
    assert!(pages.dirty.lock().is_empty());
    assert_eq!(*pages.calls.lock(), ["flush", "sync"]);
    assert_eq!(log.completed_redo(), end);
    drop((log, checkpointer));
    assert_eq!(Log::open(dev, small(), false).unwrap().1.redo, end);
}

/// An index that needs the log from somewhere on, and who waits for checkpoints.
#[derive(Default)]
struct Index {
    oldest: Mutex<Option<Lsn>>,
    completed: std::sync::atomic::AtomicU64,
}

impl LogNeeds for Index {
    fn oldest_lsn_needed(&self) -> Option<Lsn> {
        *self.oldest.lock()
    }
}

impl AfterCheckpoint for Index {
    fn begins(&self) {}

    fn completed(&self) {
        self.completed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn redo_begins_at_the_last_checkpoint_before_what_an_index_needs() {
    let (dev, log) = fresh(small());
    let (pages, index) = (Arc::new(Pages::default()), Arc::new(Index::default()));
    let (after, needs) = (Some(index.clone() as _), Some(index.clone() as _));
    let checkpointer = Checkpointer::with(log.clone(), pages, CheckpointConfig::default(), after, needs);
    // Appends a group and makes a checkpoint: its T, where redo begins then, and whether what was freed before is ripe.
    let checkpoint = |oldest: Option<Lsn>| {
        let t = log.append(GroupKind::Commit, None, &body(1, 100)).unwrap().end;
        *index.oldest.lock() = oldest;
        checkpointer.checkpoint().unwrap();
        (t, log.completed_redo(), index.completed.swap(0, std::sync::atomic::Ordering::Relaxed) == 1)
    };
    let (first, redo, ripe) = checkpoint(None);
    assert_eq!((redo, ripe), (first, true));
    let (second, redo, ripe) = checkpoint(Some(first + 8));
    assert_eq!((redo, ripe), (first, false));
    let (third, redo, ripe) = checkpoint(Some(second));
    assert_eq!((redo, ripe), (second, false), "what was needed has moved past the second");
    let (_, redo, _) = checkpoint(Some(third + 8));
    assert_eq!(redo, third);
    // Needs that begin after the checkpoint did hold nothing back.
    let (last, redo, ripe) = checkpoint(Some(Lsn::MAX));
    assert_eq!((redo, ripe), (last, true));
    drop((log, checkpointer));
    assert_eq!(Log::open(dev, small(), false).unwrap().1.redo, last);
}

#[test]
fn a_failed_sync_poisons_and_leaves_the_redo_point() {
    let (_, log, pages, checkpointer) = setup();
    log.append(GroupKind::Commit, None, &body(1, 100)).unwrap();
    pages.fail_sync.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(checkpointer.checkpoint().is_err());
    assert_eq!(log.completed_redo(), FIRST_LSN);
    assert!(log.poisoned().unwrap().contains("made to fail"));
    pages.fail_sync.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(checkpointer.checkpoint(), Err(Error::Poisoned(_))));
}

#[test]
fn writers_that_fill_the_ring_get_checkpoints_and_go_on() {
    let (_, log, pages, checkpointer) = setup();
    log.start().unwrap();
    checkpointer.start().unwrap();
    for n in 0..3000 {
        log.ensure_space(1000).unwrap();
        let at = log.append(GroupKind::Commit, None, &body(n, 900)).unwrap();
        pages.dirty.lock().push(at.start);
    }
    assert!(checkpointer.stats().completed >= 3, "{:?}", checkpointer.stats());
    assert!(log.stats().capacity <= small().max_capacity);
    checkpointer.close().unwrap();
    log.stop();
    assert!(pages.dirty.lock().is_empty());
}

#[test]
fn closing_records_the_end() {
    let (dev, log, _, checkpointer) = setup();
    log.append(GroupKind::Commit, None, &body(1, 5000)).unwrap();
    checkpointer.close().unwrap();
    drop((log, checkpointer));
    let (log, state) = Log::open(dev.clone(), small(), false).unwrap();
    assert!(state.clean && state.redo == state.end && state.damaged_superblock.is_none());
    log.resume_at(state.end, false).unwrap();
    drop(log);
    let (_, state) = Log::open(dev, small(), false).unwrap();
    assert!(!state.clean, "open for writing is noted before anything is appended");
}

#[test]
fn a_clean_close_needs_a_checkpoint_at_the_end() {
    let (dev, log, _, checkpointer) = setup();
    log.append(GroupKind::Commit, None, b"one").unwrap();
    let t = log.begin_checkpoint();
    log.append(GroupKind::Commit, None, b"two").unwrap();
    log.complete_checkpoint(t).unwrap();
    assert!(!log.close_clean().unwrap(), "a group came after the checkpoint");
    log.append(GroupKind::Commit, None, b"three").unwrap();
    checkpointer.close().unwrap();
    assert!(matches!(log.append(GroupKind::Commit, None, b"late"), Err(AppendError::Poisoned(_))));
    assert!(Log::open(dev, small(), true).unwrap().1.clean);
}
