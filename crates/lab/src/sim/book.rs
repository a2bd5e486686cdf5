//! What the clients of one life write down, for the reference model, and what they share.
//!
//! Lock order: the book only; nothing of the engine is called while it is held.

use super::backups::Backups;
use super::machine::Machine;
use super::model::{Act, End, Restored, Tx};
use super::plan::Plan;
use super::totals::Totals;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve::{Durability, Error};
use varve_device::Trap;
use varve_models::PowerSupply;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use varve_rt::{Event, Mutex};

/// Commits for which a power cut waits for a reader that it could harm.
const AMBUSH: u64 = 60;

/// Takes the lines of a trace.
pub(crate) type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// Prints events of one seed.
#[derive(Clone)]
pub(crate) struct Trace(Option<Sink>);

impl Trace {
    pub(crate) fn off() -> Trace {
        Trace(None)
    }

    pub(crate) fn to(sink: Sink) -> Trace {
        Trace(Some(sink))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Prints `line()`, with the virtual time before it. The run is the same as without a trace.
    pub(crate) fn event(&self, line: impl FnOnce() -> String) {
        if let Some(sink) = &self.0 {
            let ns = varve_rt::now().as_nanos();
            let line = varve_rt::sim::quietly(line);
            sink(&format!("{:>3}.{:06} ms  {line}", ns / 1_000_000, ns % 1_000_000));
        }
    }
}

/// How a life is to end once its clients have made their commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A power cut this many device operations later.
    Cut { after_ops: u64, seed: u64 },
    /// A power cut as soon as a reader is acknowledged that read from a `sync` commit whose own client still waits.
    CutAtRead { seed: u64 },
    /// A power cut this many device operations after a large transaction began its commit.
    CutInLarge { after_ops: u64, seed: u64 },
    /// The clients stop, and the database is closed.
    Close,
    /// The clients stop, and all handles are dropped; the next life begins beside what is left of this one.
    Drop,
}

/// Commits of a life, and what follows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) commits: u64,
    pub(crate) ending: Ending,
    /// It waits for a backup that is being made.
    pub(crate) patient: bool,
}

/// Whether a keyspace of a client's own must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    Exist,
    Absent,
    /// It is there, and has no row.
    Empty,
    /// Its creation or its drop had not returned.
    Either,
}

/// Keyspaces that clients made and dropped, by name. A name that is not listed must be absent.
pub(crate) type Own = BTreeMap<String, Must>;

/// A transaction that reached its commit, or a reader that reached its end.
pub(crate) struct Entry {
    tx: Tx,
    position: Arc<AtomicU64>,
}

/// What all clients of one life share.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) supply: Arc<PowerSupply>,
    pub(crate) trace: Trace,
    /// Clients end at their next transaction.
    pub(crate) stop: AtomicBool,
    pub(crate) machine: Arc<Machine>,
    pub(crate) backups: Arc<Backups>,
    /// Where the engine is to panic in this life.
    pub(crate) trap: Option<Arc<Trap>>,
    /// Requests that had failed on purpose, or not been done as asked, when this life began.
    failed_before: u64,
    /// The life has something to tell its driver.
    pub(crate) wake: Event,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    next_id: u64,
    first_id: u64,
    last_acknowledged: u64,
    commits: u64,
    goal: Option<Goal>,
    /// The power is cut at a moment that is waited for, or after so many commits.
    ambush: Option<Ambush>,
    entries: Vec<Entry>,
    own: Own,
    restored: Vec<Restored>,
    /// Backups that are being made.
    making: u32,
    totals: Totals,
    wrong: Option<String>,
    damage: Option<String>,
}

/// A power cut that waits for its moment.
#[derive(Clone, Copy)]
struct Ambush {
    /// Commits after which it waits no longer.
    until: u64,
    seed: u64,
    /// It waits for the commit of a large transaction, and then for so many device operations; none: for a reader of
    /// something that is not acknowledged.
    in_large: Option<u64>,
}

/// Handle of an entry of the book.
#[derive(Clone, Copy)]
pub(crate) struct Written(usize);

impl Book {
    /// Whether this reader was told of a row that a `sync` commit put there which has its number and is not
    /// acknowledged.
    fn has_read_in_doubt(&self, at: Written) -> bool {
        let reader = &self.entries[at.0].tx;
        let in_doubt = |e: &&Entry| {
            e.tx.durability == Durability::Sync && e.tx.end == End::InDoubt && e.position.load(SeqCst) != 0
        };
        let was_told = |act: &Act| matches!(act, Act::Put(row, value) if reader.saw(row, *value));
        self.entries.iter().filter(in_doubt).any(|e| e.tx.id != reader.id && e.tx.acts.iter().any(was_told))
    }
}

impl Shared {
    pub(crate) fn new(
        plan: Plan,
        (machine, backups, trap): (Arc<Machine>, Arc<Backups>, Option<Arc<Trap>>),
        trace: Trace,
        first_id: u64,
    ) -> Arc<Shared> {
        let book = Book { next_id: first_id, first_id, ..Book::default() };
        Arc::new(Shared {
            plan,
            supply: machine.supply.clone(),
            trace,
            stop: AtomicBool::new(false),
            failed_before: machine.errors() + machine.falsified(),
            machine,
            backups,
            trap,
            wake: Event::new(),
            book: Mutex::new(book),
        })
    }

    /// Whether a device failed in this life, or a thread panicked as ordered, so that errors are no surprise.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_panicked() || self.machine.errors() + self.machine.falsified() > self.failed_before
    }

    /// Whether a thread panicked as ordered.
    pub(crate) fn has_panicked(&self) -> bool {
        self.trap.as_ref().is_some_and(|trap| trap.has_sprung())
    }

    /// A backup is being made from here on.
    pub(crate) fn backup_begins(&self) {
        self.book.lock().making += 1;
    }

    /// It is made, or failed.
    pub(crate) fn backup_ends(&self) {
        self.book.lock().making -= 1;
    }

    /// A fresh transaction id, and the highest commit number acknowledged so far.
    pub(crate) fn begin(&self) -> (u64, u64) {
        let mut book = self.book.lock();
        book.next_id += 1;
        (book.next_id, book.last_acknowledged)
    }

    /// Writes a transaction down just before its commit, or a reader just before its end.
    pub(crate) fn write_down(&self, tx: Tx, position: Arc<AtomicU64>) -> Written {
        let mut book = self.book.lock();
        book.entries.push(Entry { tx, position });
        Written(book.entries.len() - 1)
    }

    /// The entry's `commit` returned: it is acknowledged, and counts towards the life's goal when it wrote something.
    ///
    /// Not if the power is off: a client goes on until it waits the next time, beside others that have ended in the
    /// middle of a change, and nobody hears of it any more.
    pub(crate) fn acknowledged(&self, at: Written) {
        if !self.supply.is_on() {
            return;
        }
        let mut book = self.book.lock();
        let highest = book.entries.iter().map(|e| e.position.load(SeqCst)).max().unwrap_or(0);
        let last_id = book.next_id;
        let entry = &mut book.entries[at.0];
        entry.tx.end = End::Acknowledged;
        entry.tx.ended_by = highest;
        entry.tx.last_beside = last_id;
        let (position, durability) = (entry.position.load(SeqCst), entry.tx.durability);
        if let Some(ambush) = book.ambush
            && (book.commits >= ambush.until || ambush.in_large.is_none() && book.has_read_in_doubt(at))
        {
            drop(book);
            self.supply.cut(ambush.seed);
            return;
        }
        if position == 0 {
            return;
        }
        book.last_acknowledged = book.last_acknowledged.max(position);
        book.commits += 1;
        book.totals.add("commits", 1);
        book.totals.add(
            match durability {
                Durability::Sync => "commits sync",
                Durability::Async => "commits async",
                Durability::None => "commits none",
            },
            1,
        );
        let waits = |goal: &Goal| goal.patient && book.making > 0;
        let due = book.goal.filter(|goal| book.commits >= goal.commits && !waits(goal)).map(|goal| goal.ending);
        if due.is_some() {
            book.goal = None;
        }
        let until = book.commits + AMBUSH;
        match due {
            Some(Ending::CutAtRead { seed }) => book.ambush = Some(Ambush { until, seed, in_large: None }),
            Some(Ending::CutInLarge { after_ops, seed }) => {
                book.ambush = Some(Ambush { until, seed, in_large: Some(after_ops) });
            }
            _ => {}
        }
        drop(book);
        match due {
            Some(Ending::Cut { after_ops, seed }) => self.supply.cut_at(self.supply.ops() + 1 + after_ops, seed),
            Some(Ending::Close | Ending::Drop) => self.stop.store(true, SeqCst),
            Some(Ending::CutAtRead { .. } | Ending::CutInLarge { .. }) | None => {}
        }
    }

    /// Whether a power cut waits for a large transaction.
    pub(crate) fn wants_large(&self) -> bool {
        self.book.lock().ambush.is_some_and(|ambush| ambush.in_large.is_some())
    }

    /// A large transaction begins its commit.
    pub(crate) fn large_commit_begins(&self) {
        let mut book = self.book.lock();
        let Some(Ambush { in_large: Some(after_ops), seed, .. }) = book.ambush else { return };
        book.ambush = None;
        book.totals.add("cuts in a large commit", 1);
        drop(book);
        self.supply.cut_at(self.supply.ops() + 1 + after_ops, seed);
    }

    /// What is known of a client's own keyspace.
    pub(crate) fn own(&self, name: &str) -> Must {
        self.book.lock().own.get(name).copied().unwrap_or(Must::Absent)
    }

    /// What is known of it from here on.
    pub(crate) fn set_own(&self, name: &str, must: Must) {
        self.book.lock().own.insert(name.to_string(), must);
    }

    /// The keyspaces as this life left them.
    pub(crate) fn all_own(&self) -> Own {
        self.book.lock().own.clone()
    }

    /// A backup was restored; the model looks at it when the life is settled.
    pub(crate) fn restored(&self, restored: Restored) {
        self.book.lock().restored.push(restored);
    }

    /// What the life's backups restored.
    pub(crate) fn all_restored(&self) -> Vec<Restored> {
        std::mem::take(&mut self.book.lock().restored)
    }

    /// What an operation did is known when it has returned.
    pub(crate) fn amend(&self, at: Written, acts: Vec<Act>) {
        self.book.lock().entries[at.0].tx.acts = acts;
    }

    /// The entry's `commit` failed before it changed anything.
    pub(crate) fn refused(&self, at: Written) {
        self.book.lock().entries[at.0].tx.end = End::None;
    }

    /// Commits counted from here on lead to `goal`.
    pub(crate) fn set_goal(&self, goal: Goal) {
        let mut book = self.book.lock();
        book.goal = Some(Goal { commits: book.commits + goal.commits, ..goal });
    }

    /// Commits of clients acknowledged in this life.
    pub(crate) fn commits(&self) -> u64 {
        self.book.lock().commits
    }

    pub(crate) fn count(&self, name: &'static str, n: u64) {
        self.book.lock().totals.add(name, n);
    }

    /// Tells of an error of the engine; the first one is kept, and the life ends.
    pub(crate) fn wrong(&self, what: impl Into<String>) {
        let what = what.into();
        self.trace.event(|| format!("WRONG: {what}"));
        self.book.lock().wrong.get_or_insert(what);
        self.stop.store(true, SeqCst);
        self.wake.set();
    }

    /// Tells of a page that is damaged, as it may be here; the life ends.
    pub(crate) fn damage(&self, what: &Error) {
        self.trace.event(|| format!("DAMAGE: {what}"));
        self.book.lock().damage.get_or_insert(what.to_string());
        self.stop.store(true, SeqCst);
    }

    /// The first damage told.
    pub(crate) fn first_damage(&self) -> Option<String> {
        self.book.lock().damage.clone()
    }

    /// The first error told.
    pub(crate) fn first_wrong(&self) -> Option<String> {
        self.book.lock().wrong.clone()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// Ends the life's book: every transaction with its commit number, the next free id, and the totals.
    pub(crate) fn close_book(&self) -> (Vec<Tx>, u64, Totals) {
        let mut book = self.book.lock();
        let entries = std::mem::take(&mut book.entries);
        let txs = entries.into_iter().map(|e| Tx { position: e.position.load(SeqCst), ..e.tx }).collect();
        (txs, book.next_id, std::mem::take(&mut book.totals))
    }

    /// Ids of this life's transactions are above this.
    pub(crate) fn first_id(&self) -> u64 {
        self.book.lock().first_id
    }
}

/// A transaction to be written down.
pub(crate) fn tx(id: u64, began_after: u64, durability: Durability, acts: Vec<Act>) -> Tx {
    Tx {
        id,
        durability,
        acts,
        end: End::InDoubt,
        position: 0,
        began_after,
        ended_by: u64::MAX,
        last_beside: u64::MAX,
        snapshot: None,
        single: false,
        as_of_horizon: false,
    }
}
