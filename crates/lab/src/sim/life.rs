//! One life of the database, inside its power-cut domain: open or create, compare with the model, load, run clients.

use super::book::{Ending, Goal, Must, Own, Shared};
use super::client::{Client, in_order};
use super::drives::Operator;
use super::faults::Fault;
use super::ghosts::Holder;
use super::judge::{Verdict, judge};
use super::machine::{Drives, Machine};
use super::model::{History, Kept, Restored, Row, Settled, State, Tx};
use super::near::Breaker;
use super::panics::{self, Panic};
use super::plan::Plan;
use super::rows::{self, Digest, MARKS, NAMES};
use super::script::Scripts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve::{Damage, Db, Error, Keyspace, Layout, Options, RecoveryReport};
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{JoinHandle, Mutex, Panicked, Rng};

/// A history that the next opening has to agree with.
pub(crate) struct Pending {
    pub(crate) base: State,
    pub(crate) txs: Vec<Tx>,
    pub(crate) kept: Kept,
    /// Ids of the history's transactions are above this: marks up to it are older.
    pub(crate) first_id: u64,
    /// What backups of this life restored.
    pub(crate) restored: Vec<Restored>,
    /// Keyspaces of the clients' own.
    pub(crate) own: Own,
}

/// What a life is to do.
pub(crate) struct Orders {
    pub(crate) machine: Arc<Machine>,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    /// There may be no database yet: make one then.
    pub(crate) create: bool,
    /// Make a new database, whatever is there.
    pub(crate) recreate: bool,
    /// A new one was being made when the power went: it may be there, or the one before.
    pub(crate) half_made: bool,
    pub(crate) load: bool,
    /// `None`: verify only, then close.
    pub(crate) goal: Option<Goal>,
    /// Faults of this life: those that strike while the database opens, and those that do so afterwards.
    pub(crate) faults: Vec<Fault>,
    pub(crate) panic: Option<Panic>,
    /// A power cut was ordered for the opening: take the order back if it comes to be open.
    pub(crate) disarm: bool,
    pub(crate) rng: Rng,
}

impl Orders {
    /// Injects the faults that there are for this moment.
    fn inject(&mut self, shared: &Shared, early: bool) {
        let faults: Vec<Fault> = self.faults.iter().copied().filter(|fault| fault.early == early).collect();
        shared.trace.event(|| format!("faults ahead: {faults:?}"));
        self.machine.inject(faults, self.rng.next_u64());
    }
}

/// How far a life came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Opening,
    /// Open, and compared with the model.
    Verifying,
    Loading,
    Running,
    /// The clients ended on their own, for want of a database that takes writes.
    Stopped,
    /// Closed cleanly.
    Closed,
    /// All handles were dropped.
    Dropped,
}

/// What a life leaves for its driver.
pub(crate) struct Left {
    pub(crate) phase: Phase,
    pub(crate) db: Option<Db>,
    pub(crate) settled: Option<Settled>,
    pub(crate) recovery: Option<RecoveryReport>,
    /// Device operations that opening took.
    pub(crate) open_ops: u64,
    pub(crate) loaded: bool,
    /// The error that opening ended with.
    pub(crate) open_error: Option<Error>,
    /// A check found damage, or a read did.
    pub(crate) damaged: bool,
    /// A new database is there in place of the one before.
    pub(crate) remade: bool,
    /// Of a database whose handles are dropped, until this thread's are.
    pub(crate) holder: Option<Holder>,
}

impl Left {
    pub(crate) fn new() -> Arc<Mutex<Left>> {
        Arc::new(Mutex::new(Left {
            phase: Phase::Opening,
            db: None,
            settled: None,
            recovery: None,
            open_ops: 0,
            loaded: false,
            open_error: None,
            damaged: false,
            remade: false,
            holder: None,
        }))
    }
}

/// Lives. Findings go to `shared`; everything else to `left`.
pub(crate) fn live(mut orders: Orders, shared: &Arc<Shared>, left: &Mutex<Left>, pending: &Mutex<Option<Pending>>) {
    if !orders.machine.fences.wait_alone() {
        return shared.wrong("a database that was dropped keeps its devices");
    }
    let ops = shared.supply.ops();
    orders.inject(shared, true);
    let (db, drives) = match open(&orders, shared, left, pending) {
        Ok(opened) => opened,
        Err(e) => {
            shared.trace.event(|| format!("open failed: {e}"));
            left.lock().open_error = Some(e);
            return;
        }
    };
    if orders.disarm {
        shared.supply.cut_at(0, 0);
    }
    orders.machine.heal();
    {
        let mut left = left.lock();
        left.phase = Phase::Verifying;
        left.db = Some(db.clone());
        left.open_ops = shared.supply.ops() - ops;
        left.recovery = Some(db.recovery_report().clone());
    }
    shared.trace.event(|| format!("open: {:?}", db.recovery_report()));
    // A cut that was due while the database opened may still come.
    let checked = keyspaces(&db, &shared.plan)
        .inspect_err(|_| left.lock().damaged = true)
        .map_err(|e| format!("keyspaces: {e}"))
        .and_then(|spaces| {
            verify((&db, orders.half_made), &spaces, shared, left, pending)?;
            Ok(spaces)
        });
    let spaces = match checked {
        Ok(spaces) => spaces,
        Err(_) if !shared.supply.is_on() || left.lock().open_error.is_some() => return,
        Err(what) => return shared.wrong(what),
    };
    run(orders, shared, left, (&db, drives), &spaces);
}

/// Opens the database, or makes it; puts a new one's history, which is empty, in place of what there was before.
fn open(
    orders: &Orders,
    shared: &Shared,
    left: &Mutex<Left>,
    pending: &Mutex<Option<Pending>>,
) -> varve::Result<(Db, Drives)> {
    let (machine, options) = (&orders.machine, &orders.options);
    let create = || {
        let (devices, drives) = machine.devices(true, &options.faults)?;
        Db::create_on(devices, &orders.layout, options.clone()).map(|db| (db, drives, true))
    };
    let open = || {
        let (devices, drives) = machine.devices(false, &options.faults)?;
        let db = Db::open_on(devices, options.clone())?;
        // One that was made over another one, and then lost its power, has nothing at all.
        let new = orders.half_made && db.keyspaces()?.is_empty();
        Ok((db, drives, new))
    };
    let opened = match orders.recreate {
        true => create(),
        false => match open() {
            // The power may have gone while it was being made.
            Err(Error::NoDatabase(_) | Error::Unfinished(_) | Error::Corrupt(Damage::Superblock(_)))
                if orders.create || orders.half_made =>
            {
                create()
            }
            // An array is there when all drives have it.
            Err(Error::Mismatch(_)) if orders.create && machine.has_array() => create(),
            opened => opened,
        },
    };
    let (db, drives, new) = opened?;
    if new && !orders.create {
        shared.trace.event(|| "a new database in place of the one before".to_string());
        left.lock().remade = true;
        let first_id = shared.first_id();
        let (base, own) = (State::new(), Own::new());
        *pending.lock() =
            Some(Pending { base, own, first_id, txs: Vec::new(), kept: Kept::Sync, restored: Vec::new() });
    }
    Ok((db, drives))
}

fn keyspaces(db: &Db, plan: &Plan) -> varve::Result<[Keyspace; 3]> {
    let open = |n: usize| db.keyspace_or_create_of(NAMES[n], plan.kind(n));
    Ok([open(0)?, open(1)?, open(2)?])
}

/// Checks the structure and reads everything. A database over which another was to be made, and which is there still,
/// may have a torn superblock.
fn look(db: &Db, half_made: bool, spaces: &[Keyspace; 3], shared: &Shared) -> Result<BTreeMap<Row, Digest>, String> {
    let mut check = db.check().map_err(|e| format!("check: {e}"))?;
    check.damages.retain(|damage| !half_made || !matches!(damage, Damage::Superblock(_)));
    if let Some(damage) = check.damages.first() {
        shared.count("damage found by check", check.damages.len() as u64);
        return Err(format!("check found {} damages, the first: {damage}", check.damages.len()));
    }
    if let Some(page) = check.unreadable.first() {
        return Err(format!("check: {page}"));
    }
    read_all(db, spaces).map_err(|e| match judge(&e, shared) {
        Verdict::Failed | Verdict::Poisoned => format!("{UNREADABLE}: {e}"),
        _ => format!("reading everything: {e}"),
    })
}

/// How a device's error begins that ends the reading of everything.
const UNREADABLE: &str = "not everything can be read";

/// Looks once more where faults struck while the database opened: requests that were under way when they were taken
/// back have failed too, and pages wait to be written again.
fn look_again(
    what: String,
    (db, half_made): (&Db, bool),
    spaces: &[Keyspace; 3],
    shared: &Shared,
) -> Result<BTreeMap<Row, Digest>, String> {
    if !shared.has_failed() || !shared.supply.is_on() || shared.machine.falsified() > 0 {
        return Err(what);
    }
    shared.trace.event(|| format!("looks again after: {what}"));
    varve_rt::sleep(Duration::from_secs(3));
    look(db, half_made, spaces, shared)
}

/// Looks at everything, and compares with the model.
fn verify(
    (db, half_made): (&Db, bool),
    spaces: &[Keyspace; 3],
    shared: &Shared,
    left: &Mutex<Left>,
    pending: &Mutex<Option<Pending>>,
) -> Result<(), String> {
    let found = look(db, half_made, spaces, shared);
    let found = found.or_else(|what| look_again(what, (db, half_made), spaces, shared));
    let found = found.inspect_err(|what| {
        // Where all commits are durable already, a sync has nothing to fail at.
        let cause = db.sync().and_then(|()| db.checkpoint()).err();
        let cause = cause.filter(|e| shared.has_failed() && matches!(e, Error::Poisoned(_)));
        // Poisoned as it was opened, and everything that recovery made anew is dirty: no frame is left to read into.
        left.lock().open_error = cause.filter(|_| what.contains(UNREADABLE));
    });
    let found = found.inspect_err(|_| left.lock().damaged = true)?;
    let keyspaces = db.keyspaces().map_err(|e| format!("listing keyspaces: {e}"))?;
    let keyspaces: Vec<String> = keyspaces.into_iter().map(|k| k.name).collect();
    let Some(pending) = pending.lock().take() else { return Ok(()) };
    compare_own(&pending.own, &keyspaces, db, shared)?;
    let marks: Vec<u64> = found
        .range((MARKS, Vec::new())..)
        .filter_map(|((_, key), _)| rows::mark_id(key))
        .filter(|id| *id > pending.first_id)
        .collect();
    let mut history = History::new(pending.base);
    let known: std::collections::BTreeSet<u64> = pending.txs.iter().map(|tx| tx.id).collect();
    if let Some(ghost) = marks.iter().find(|id| !known.contains(id)) {
        return Err(format!("transaction {ghost} is in the database, but never came to its commit"));
    }
    pending.txs.into_iter().for_each(|tx| history.add(tx));
    pending.restored.into_iter().for_each(|restored| history.add_restored(restored));
    let settled = history.settle(&marks, pending.kept, Some(&found)).map_err(|wrong| wrong.0)?;
    left.lock().settled = Some(settled);
    Ok(())
}

/// Compares the keyspaces there are with those that must be.
fn compare_own(expected: &Own, found: &[String], db: &Db, shared: &Shared) -> Result<(), String> {
    for (name, must) in expected {
        match (must, found.contains(name)) {
            (Must::Exist | Must::Empty, false) => return Err(format!("lost: keyspace {name} was created and is gone")),
            (Must::Absent, true) => return Err(format!("keyspace {name} was dropped and is there again")),
            _ => {}
        }
    }
    for name in found.iter().filter(|name| !NAMES.contains(&name.as_str())) {
        let Some(must) = expected.get(name) else {
            return Err(format!("keyspace {name} is there, and nobody made it"));
        };
        if *must == Must::Empty {
            let rows = db.keyspace(name).and_then(|space| db.snapshot()?.count(&space, ..));
            match rows.map_err(|e| format!("keyspace {name}: {e}"))? {
                0 => shared.set_own(name, Must::Empty),
                n => return Err(format!("keyspace {name} was cleared, and {n} rows are there again")),
            }
        } else {
            shared.set_own(name, Must::Exist);
        }
    }
    Ok(())
}

/// Every row, by one snapshot; the second keyspace backwards.
pub(super) fn read_all(db: &Db, spaces: &[Keyspace; 3]) -> varve::Result<BTreeMap<Row, Digest>> {
    let snapshot = db.snapshot()?;
    let mut found = BTreeMap::new();
    for (number, space) in spaces.iter().enumerate() {
        let rows: Box<dyn Iterator<Item = _>> = match number {
            1 => Box::new(snapshot.scan_rev(space, ..)?),
            _ => Box::new(snapshot.scan(space, ..)?),
        };
        for row in in_order(rows) {
            let (key, value) = row?;
            found.insert((number as u8, key), Digest::of(&value));
        }
    }
    Ok(found)
}

fn run(
    mut orders: Orders,
    shared: &Arc<Shared>,
    left: &Mutex<Left>,
    (db, drives): (&Db, Drives),
    spaces: &[Keyspace; 3],
) {
    let Orders { load, goal, .. } = orders;
    let mut rng = orders.rng.fork();
    let client = |number: u32, rng: &mut Rng| Client {
        number,
        shared: shared.clone(),
        db: db.clone(),
        spaces: spaces.clone(),
        scripts: Scripts::new(shared.plan.mix.clone(), rng.fork()),
        rng: rng.fork(),
    };
    if load {
        left.lock().phase = Phase::Loading;
        if orders.rng.one_in(2) {
            orders.inject(shared, false);
        }
        if !client(1000, &mut rng).load() {
            left.lock().phase = Phase::Stopped;
            return;
        }
        left.lock().loaded = true;
    }
    orders.inject(shared, false);
    left.lock().phase = Phase::Running;
    if let (Some(panic), Some(trap)) = (orders.panic, &shared.trap) {
        panic.arm(trap);
    }
    if let Some(goal) = goal {
        shared.set_goal(goal);
        let clients: Vec<_> = (0..shared.plan.clients)
            .map(|number| {
                let client = client(number, &mut rng);
                varve_rt::spawn(format!("client {number}"), move || client.run())
            })
            .collect();
        let done = Arc::new(AtomicBool::new(false));
        let operator = (!drives.is_empty()).then(|| {
            let (db, shared, done, rng) = (db.clone(), shared.clone(), done.clone(), rng.fork());
            let cuts = matches!(goal.ending, Ending::Cut { .. } | Ending::CutAtRead { .. } | Ending::CutInLarge { .. });
            let operator = Operator::new((db, drives), shared, done, (rng, cuts));
            varve_rt::spawn("operator", move || operator.run())
        });
        let breaker = shared.machine.near.is_some().then(|| {
            let breaker = Breaker::new(shared.clone(), done.clone(), rng.fork());
            varve_rt::spawn("breaker", move || breaker.run())
        });
        let fine = joined(clients, shared);
        done.store(true, Ordering::SeqCst);
        if !joined(operator.into_iter().chain(breaker), shared) || !fine {
            return;
        }
    }
    shared.trap.iter().for_each(|trap| trap.arm(0));
    if shared.has_panicked() {
        left.lock().phase = Phase::Stopped;
        // (The thread may be unwinding still.)
        varve_rt::sleep(Duration::from_millis(50));
        return match panics::is_poisoned(db) {
            Err(what) if shared.supply.is_on() => shared.wrong(what),
            _ => {}
        };
    }
    if goal.is_some_and(|goal| goal.ending == Ending::Drop) && shared.is_stopping() && shared.first_wrong().is_none() {
        return let_go(db, &spaces[0], shared, left, rng);
    }
    let close = goal.is_none_or(|goal| goal.ending == Ending::Close && shared.is_stopping());
    if !close || shared.first_wrong().is_some() {
        left.lock().phase = Phase::Stopped;
        return;
    }
    left.lock().db = None;
    let stats = db.stats();
    super::count::stats(&stats, shared);
    match db.clone().close() {
        Ok(()) => left.lock().phase = Phase::Closed,
        Err(e) => {
            left.lock().phase = Phase::Stopped;
            match super::judge::judge(&e, shared) {
                super::judge::Verdict::Wrong => shared.wrong(format!("close: {e}")),
                super::judge::Verdict::Damage => shared.damage(&e),
                _ => {}
            }
        }
    }
}

/// Waits for threads; false, and told, if one panicked that was not to.
fn joined(threads: impl IntoIterator<Item = JoinHandle<()>>, shared: &Shared) -> bool {
    let unordered = |panicked: &Panicked| !panicked.power_cut && !panics::is_ordered(panicked);
    let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).find(unordered);
    panicked.iter().for_each(|panicked| shared.wrong(panicked.to_string()));
    panicked.is_none()
}

/// Gives up the database's handles without a close; now and then the last one is a transaction.
fn let_go(db: &Db, space: &Keyspace, shared: &Shared, left: &Mutex<Left>, mut rng: Rng) {
    super::count::stats(&db.stats(), shared);
    let mut left = left.lock();
    (left.db, left.phase) = (None, Phase::Dropped);
    let holder = shared.machine.fences.holder();
    left.holder = Some(holder.clone());
    drop(left);
    let Ok(mut tx) = db.begin() else { return };
    if rng.one_in(2) || tx.put(space, b"never committed", b"value").is_err() {
        return;
    }
    let after = Duration::from_micros(rng.below(5000));
    varve_rt::spawn_daemon("last handle", move || {
        varve_rt::sleep(after);
        drop(tx);
        drop(holder);
    });
}
