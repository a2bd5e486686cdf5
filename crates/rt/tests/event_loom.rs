//! A loom model of `Event` (`event.rs`) and of the parking that it relies on: a byte with a flag and a mark that
//! somebody may be queued; the queue has a lock, and who queues looks at the byte once more under it.
//!
//! It repeats the orders of the real code, as loom needs its own atomics. Loom reports a deadlock when a waiter is
//! forgotten, and its cell a read that is not ordered after what happened before `set`. The last test shows that the
//! model can fail.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, Ordering, Ordering::*};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const SET: u8 = 1;
const PARKED: u8 = 2;

struct Event {
    state: AtomicU8,
    /// How often everybody in the queue was woken.
    queue: Mutex<u32>,
    woken: Condvar,
    /// What is done before the event is set.
    work: UnsafeCell<u32>,
    /// Order of the swap in `set`.
    publish: Ordering,
}

// SAFETY: the cell is kept apart by the event; finding out whether it is is what loom is for.
unsafe impl Sync for Event {}
// SAFETY: as above.
unsafe impl Send for Event {}

impl Event {
    fn set(&self) {
        if self.state.swap(SET, self.publish) & PARKED != 0 {
            *self.queue.lock().unwrap() += 1;
            self.woken.notify_all();
        }
    }

    fn wait(&self) {
        loop {
            let s = self.state.load(Acquire);
            if s & SET != 0 {
                return;
            }
            if s & PARKED == 0 && self.state.compare_exchange(s, s | PARKED, Relaxed, Relaxed).is_err() {
                continue;
            }
            let mut queue = self.queue.lock().unwrap();
            // Without this look a waiter could be forgotten.
            if self.state.load(Relaxed) != PARKED {
                continue;
            }
            let before = *queue;
            while *queue == before {
                queue = self.woken.wait(queue).unwrap();
            }
            return;
        }
    }
}

fn model(waiters: usize, publish: Ordering) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let event = Arc::new(Event {
            state: AtomicU8::new(0),
            queue: Mutex::new(0),
            woken: Condvar::new(),
            work: UnsafeCell::new(0),
            publish,
        });
        let wait = |event: Arc<Event>| {
            thread::spawn(move || {
                event.wait();
                // SAFETY: written before the event was set.
                assert_eq!(event.work.with(|work| unsafe { *work }), 1);
            })
        };
        let waiting: Vec<_> = (0..waiters).map(|_| wait(event.clone())).collect();
        // SAFETY: nobody looks before the event is set.
        event.work.with_mut(|work| unsafe { *work = 1 });
        event.set();
        waiting.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn nobody_who_waits_is_forgotten_and_all_see_what_was_done_before() {
    model(1, AcqRel);
    model(2, AcqRel);
}

#[test]
#[should_panic]
fn without_the_release_a_waiter_may_see_nothing() {
    model(1, Relaxed);
}
