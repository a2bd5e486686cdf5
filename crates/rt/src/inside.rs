//! Whose code the calling thread runs on behalf of an owner that it must not call meanwhile: for layers above that call
//! their users back with something latched. Works in both worlds. To ask costs a look at a word of the thread.
//!
//! Invariants: a thread's mark is what it was when a section ends, by a panic too; a mark of one thread says nothing of
//! another, also of those of a simulation.

use crate::local::Local;
use crate::world;
use std::cell::Cell;
use std::marker::PhantomData;

/// The mark of who is inside sections of several owners: taken to be inside of all there are.
const SEVERAL: usize = !SIMULATED;
/// Set in the mark of an OS thread once a simulated thread on it has been inside a section.
const SIMULATED: usize = 1;

thread_local! {
    /// The mark of an OS thread: the owner, zero outside of all sections.
    static MARK: Cell<usize> = const { Cell::new(0) };
}

/// The marks of simulated threads.
static MARKS: Local<Cell<usize>> = Local::new(Cell::default);

/// A section of code, by the calling thread, in which [`Inside::of`] its owner is true; it ends when this is dropped.
#[must_use = "the section ends when it is dropped"]
pub struct Inside {
    before: usize,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Inside {
    /// Begins a section of an owner, by an even number of its own that is not zero: its address, say.
    #[inline]
    pub fn enter(owner: usize) -> Inside {
        debug_assert!(owner != 0 && owner != SEVERAL && owner & SIMULATED == 0, "an owner has a number");
        let before = mark();
        set(if before == 0 || before == owner { owner } else { SEVERAL });
        Inside { before, thread: PhantomData }
    }

    /// Whether the calling thread is inside a section of an owner; within sections of two
    /// others, it is too.
    #[inline]
    pub fn of(owner: usize) -> bool {
        MARK.get() != 0 && is_marked(owner)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        set(self.before);
    }
}

#[cold]
fn is_marked(owner: usize) -> bool {
    [owner, SEVERAL].contains(&mark())
}

#[inline]
fn mark() -> usize {
    if world::active() { MARKS.with(Cell::get) } else { MARK.get() & !SIMULATED }
}

#[inline]
fn set(mark: usize) {
    if world::active() {
        MARKS.with(|marks| marks.set(mark));
        MARK.set(MARK.get() | SIMULATED);
    } else {
        MARK.set(mark | MARK.get() & SIMULATED);
    }
}
