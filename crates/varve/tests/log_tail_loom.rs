//! A loom model of the log buffer's protocol (`wal/tail.rs` and `wal/writer.rs`): reservation by compare-and-swap,
//! filling, a count of filled bytes per block (release), the writer's acquire of a full count, reclaiming a block
//! before the durable position moves (release), and reuse of its memory by whoever sees that position (acquire).
//!
//! It repeats the orderings of the real code at a small scale, as loom needs its own atomics: two units to a block, two
//! blocks of memory, three blocks of stream, so that the first block's memory is used twice. Loom's cells report any
//! read or write that the orderings do not keep apart. The last test shows that the model can fail.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const UNITS: usize = 2;
const BLOCKS: usize = 2;
const CAPACITY: usize = UNITS * BLOCKS;
const TOTAL: usize = 6;

struct Tail {
    position: AtomicUsize,
    durable: AtomicUsize,
    filled: [AtomicUsize; BLOCKS],
    memory: [UnsafeCell<usize>; CAPACITY],
    /// Order of the count's increment, and of the writer's load of it.
    publish: Ordering,
    observe: Ordering,
}

// SAFETY: the cells are kept apart by the protocol; finding out whether they are is what loom is for.
unsafe impl Sync for Tail {}
// SAFETY: as above.
unsafe impl Send for Tail {}

impl Tail {
    fn new(publish: Ordering, observe: Ordering) -> Tail {
        Tail {
            position: AtomicUsize::new(0),
            durable: AtomicUsize::new(0),
            filled: [AtomicUsize::new(0), AtomicUsize::new(0)],
            memory: [UnsafeCell::new(9), UnsafeCell::new(9), UnsafeCell::new(9), UnsafeCell::new(9)],
            publish,
            observe,
        }
    }

    /// Reserves `n` units and fills them with their positions.
    fn append(&self, n: usize) {
        let mut at = self.position.load(Ordering::Acquire);
        while let Err(found) = self.position.compare_exchange(at, at + n, Ordering::AcqRel, Ordering::Acquire) {
            at = found;
        }
        for x in at..at + n {
            while x >= self.durable.load(Ordering::Acquire) + CAPACITY {
                thread::yield_now();
            }
            // SAFETY: reserved by this thread, and the place was reclaimed.
            self.memory[x % CAPACITY].with_mut(|p| unsafe { *p = x });
            self.filled[x / UNITS % BLOCKS].fetch_add(1, self.publish);
        }
    }

    /// Writes out block after block.
    fn write_all(&self) {
        for block in 0..TOTAL / UNITS {
            let count = &self.filled[block % BLOCKS];
            while count.load(self.observe) != UNITS {
                thread::yield_now();
            }
            for x in block * UNITS..(block + 1) * UNITS {
                // SAFETY: the block is complete, and nobody fills it again before it is reclaimed.
                let found = self.memory[x % CAPACITY].with(|p| unsafe { *p });
                assert_eq!(found, x);
            }
            count.store(0, Ordering::Relaxed);
            self.durable.store((block + 1) * UNITS, Ordering::Release);
        }
    }
}

fn model(publish: Ordering, observe: Ordering) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let tail = Arc::new(Tail::new(publish, observe));
        let writer = {
            let tail = tail.clone();
            thread::spawn(move || tail.append(3))
        };
        let flusher = {
            let tail = tail.clone();
            thread::spawn(move || tail.write_all())
        };
        tail.append(1);
        tail.append(2);
        writer.join().unwrap();
        flusher.join().unwrap();
        assert_eq!(tail.durable.load(Ordering::Acquire), TOTAL);
    });
}

#[test]
fn blocks_are_written_whole_and_reused_only_when_durable() {
    model(Ordering::Release, Ordering::Acquire);
}

#[test]
#[should_panic]
fn without_the_release_the_model_fails() {
    model(Ordering::Relaxed, Ordering::Acquire);
}
