//! Storage per thread, in both worlds. (`thread_local!` would be shared by all simulated threads.)
//!
//! Invariant: a slot, once given, is not given to another `Local`: values of different types never share one.

use crate::world::{self, Table};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// One value of `T` per thread, made on first use by that thread and dropped when it ends. Lives in a `static`:
///
/// ```
/// use std::cell::Cell;
/// static HITS: varve_rt::Local<Cell<u64>> = varve_rt::Local::new(|| Cell::new(0));
/// HITS.with(|h| h.set(h.get() + 1));
/// ```
pub struct Local<T: 'static> {
    /// Position in every thread's table, plus one; 0 = not assigned yet.
    slot: AtomicU32,
    make: fn() -> T,
}

static SLOTS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new(Vec::new()) };
}

impl<T: 'static> Local<T> {
    /// Storage whose values are made by `make`.
    pub const fn new(make: fn() -> T) -> Local<T> {
        Local { slot: AtomicU32::new(0), make }
    }

    fn slot(&self) -> usize {
        let slot = self.slot.load(Acquire);
        if slot != 0 {
            return slot as usize - 1;
        }
        let mine = SLOTS.fetch_add(1, Relaxed) + 1;
        match self.slot.compare_exchange(0, mine, AcqRel, Acquire) {
            Ok(_) => mine as usize - 1,
            Err(theirs) => theirs as usize - 1,
        }
    }

    fn find(table: &Table, slot: usize) -> Option<*const T> {
        let value = table.get(slot)?.as_ref()?;
        let value: &T = value.downcast_ref().expect("a slot belongs to one Local");
        Some(std::ptr::from_ref(value))
    }

    fn insert(table: &mut Table, slot: usize, value: T) -> *const T {
        if table.len() <= slot {
            table.resize_with(slot + 1, || None);
        }
        table[slot] = Some(Box::new(value));
        Self::find(table, slot).expect("just inserted")
    }

    /// Calls `f` with the calling thread's value. Nested use is fine; the value is shared, so changes need a cell.
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let slot = self.slot();
        let found = match world::local_table(|t| Self::find(t, slot)) {
            Some(found) => found,
            None => TABLE.with(|t| Self::find(&t.borrow(), slot)),
        };
        let value = found.unwrap_or_else(|| {
            let mut made = Some((self.make)());
            let mut put = |t: &mut Table| match Self::find(t, slot) {
                Some(existing) => existing,
                None => Self::insert(t, slot, made.take().expect("used once")),
            };
            match world::local_table(&mut put) {
                Some(value) => value,
                None => TABLE.with(|t| put(&mut t.borrow_mut())),
            }
        });
        // SAFETY: the value is boxed and stays in the calling thread's table until the thread ends; a thread does not
        // end while it is in here, and only shared references are ever given out.
        f(unsafe { &*value })
    }
}

// SAFETY: a `Local` holds a slot number and a function; its values stay with the threads that made them.
unsafe impl<T: 'static> Sync for Local<T> {}
