//! The sequence count by which an unlatched look at a page is believed or not (`buffer/sequence.rs`), compiled against
//! loom's atomics: loom tries every interleaving, and every value that the orders let a load see.
//!
//! Two words stand for a page. A believed look shows both as one writer left them, and everything that happened before
//! that writer.

#[allow(unreachable_pub)]
#[path = "../src/buffer/sequence.rs"]
mod sequence;

/// What the count is made of there.
mod atomic {
    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};
use loom::thread;
use sequence::Sequence;

struct Page {
    latch: Mutex<()>,
    writers: Sequence,
    words: [AtomicU64; 2],
}

impl Page {
    /// One change of the whole page, to version `n`.
    fn change(&self, n: u64) {
        let held = self.latch.lock().unwrap();
        self.writers.enter();
        self.words.iter().for_each(|word| word.store(n, Relaxed));
        self.writers.leave();
        drop(held);
    }

    /// What a look shows, if it may be believed: one version.
    fn look(&self) -> Option<u64> {
        let count = self.writers.read()?;
        let [a, b] = self.both();
        self.writers.is_still(count).then(|| assert_eq!(a, b, "a mixture of two versions"))?;
        Some(a)
    }

    fn both(&self) -> [u64; 2] {
        [self.words[0].load(Relaxed), self.words[1].load(Relaxed)]
    }
}

/// `look` runs in a thread of its own beside `change`. (Not the other way round: loom notices that two steps conflict
/// when the later one runs, and forgets a load before a store by a thread that has loaded the same word since.)
fn model(look: impl Fn(&Page) + Copy + Send + Sync + 'static, change: impl Fn(&Arc<Page>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let page = Arc::new(Page { latch: Mutex::new(()), writers: Sequence::new(), words: Default::default() });
        let reader = page.clone();
        let reader = thread::spawn(move || look(&reader));
        change(&page);
        reader.join().unwrap();
    });
}

#[test]
fn a_look_that_is_believed_shows_one_version_and_none_older_than_the_last_look() {
    let look = |page: &Page| {
        let (first, second) = (page.look(), page.look());
        assert!(second.is_none() || first <= second, "{second:?} after {first:?}");
    };
    model(look, |page| (1..=2).for_each(|n| page.change(n)));
}

#[test]
fn a_look_shows_what_two_writers_left_in_turn() {
    let look = |page: &Page| {
        page.look();
    };
    model(look, |page| {
        let other = page.clone();
        let other = thread::spawn(move || other.change(1));
        page.change(2);
        other.join().unwrap();
        assert!(page.look().is_some_and(|n| n > 0), "nobody writes any more");
    });
}

#[test]
#[should_panic = "a mixture"]
fn a_look_that_asks_nobody_is_misled() {
    let look = |page: &Page| {
        let [a, b] = page.both();
        assert_eq!(a, b, "a mixture of two versions");
    };
    model(look, |page| page.change(1));
}
