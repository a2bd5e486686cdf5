//! Reads that nobody waits for: the caller goes on, and is told the values.
//!
//! What is in memory is read at once ([`Manager::get_now`]). The rest is queued, and read by a few threads that start
//! when they are needed first. Each takes as many requests as its index can ask the device for together, of whatever
//! snapshots and of the present; an index that cannot ask ahead has more of the threads instead. A value that must not
//! be seen before a commit is durable is told by the log's flusher, so no thread waits for a flush.
//!
//! Invariants: each request is told once, also when the threads end before it is read; nothing is locked meanwhile; a
//! request has no handle of the database, so the threads are never the last to hold one; it holds its snapshot open
//! ([`Snapshot::lend`]) until it is told, or nobody waits for it any more.

use super::many::Ahead;
use super::snapshot::Snapshot;
use super::told::Told;
use super::{Manager, OpenKeyspace};
use crate::error::{Error, Result};
use crate::rows::Copied;
use std::collections::VecDeque;
use std::sync::Arc;
use varve_device::Health;
use varve_rt::{Condvar, JoinHandle, Mutex};
use varve_volume::Lsn;

/// Most threads that read for others.
const MOST_THREADS: usize = 8;

/// Most requests that a thread takes at a time.
const MOST_REQUESTS: usize = 64;

/// The values of a request's keys, in their order.
pub(crate) type Values = Vec<Option<Vec<u8>>>;

/// What can be said of a key without a wait.
pub(crate) enum Now {
    /// Its value, to be told when the log is durable up to there (0: at once).
    Value(Option<Vec<u8>>, Lsn),
    /// Something would have to be waited for.
    Unknown,
}

/// Keys that are to be read.
struct Request {
    keyspace: Arc<OpenKeyspace>,
    /// None: as they are when they are read.
    at: Option<Arc<Snapshot>>,
    keys: Vec<Box<[u8]>>,
    told: Told<Result<Values>>,
}

/// A request that is being read.
struct Reading {
    values: Values,
    /// Keys that are not read yet.
    left: usize,
    /// How far the log must be durable before the values are told.
    seen: Lsn,
    at: Option<Arc<Snapshot>>,
    /// None: it was told.
    told: Option<Told<Result<Values>>>,
}

/// The threads, and what waits for them.
pub(crate) struct Readers {
    txns: Arc<Manager>,
    queue: Mutex<Queue>,
    /// Something was queued, or the end has come.
    come: Condvar,
}

#[derive(Default)]
struct Queue {
    due: VecDeque<Request>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait for a request.
    idle: usize,
    ended: bool,
}

impl Readers {
    /// Without a thread.
    pub fn new(txns: Arc<Manager>) -> Arc<Readers> {
        Arc::new(Readers { txns, queue: Mutex::default(), come: Condvar::new() })
    }

    /// Has keys read; returns at once, with what is going to be told their values.
    ///
    /// # Errors
    /// `Closed`; `Resources` when the first thread is refused.
    pub fn read(
        self: &Arc<Self>,
        keyspace: &Arc<OpenKeyspace>,
        at: Option<Arc<Snapshot>>,
        keys: Vec<Box<[u8]>>,
    ) -> Result<Told<Result<Values>>> {
        let told = Told::new();
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(Error::Closed);
        }
        queue.due.push_back(Request { keyspace: keyspace.clone(), at, keys, told: told.clone() });
        if queue.wants_thread()
            && let Err(error) = self.start(&mut queue)
            && queue.threads.is_empty()
        {
            queue.due.pop_back();
            return Err(error);
        }
        drop(queue);
        self.come.notify_one();
        Ok(told)
    }

    fn start(self: &Arc<Self>, queue: &mut Queue) -> Result<()> {
        let (this, n) = (self.clone(), queue.threads.len());
        let thread = self.txns.core.log.health().spawn(format!("reader {n}"), move || this.run())?;
        queue.threads.push(thread);
        Ok(())
    }

    /// A thread's life.
    fn run(&self) {
        while let Some(requests) = self.next() {
            if varve_rt::dying() {
                return;
            }
            self.serve(requests);
        }
    }

    /// Requests of one keyspace; none: the end has come.
    fn next(&self) -> Option<Vec<Request>> {
        let mut queue = self.queue.lock();
        loop {
            if varve_rt::dying() {
                return None;
            }
            if let Some(first) = queue.due.pop_front() {
                return Some(queue.take_with(first));
            }
            if queue.ended {
                return None;
            }
            queue.idle += 1;
            debug_assert!(queue.idle <= queue.threads.len(), "who waits for a request is one of the threads");
            self.come.wait(&mut queue);
            assert!(queue.idle > 0, "who waited was counted");
            queue.idle -= 1;
        }
    }

    /// Reads what these ask for, in the order of its keys, and tells each when its last key is read.
    fn serve(&self, mut requests: Vec<Request>) {
        requests.retain(|request| request.told.is_awaited());
        let Some(keyspace) = requests.first().map(|request| request.keyspace.clone()) else { return };
        let (keys, mut readings): (Vec<_>, Vec<_>) = requests.into_iter().map(Reading::of).unzip();
        let places = |(n, keys): (usize, &Vec<Box<[u8]>>)| (0..keys.len()).map(move |at| (n, at));
        let mut order: Vec<(usize, usize)> = keys.iter().enumerate().flat_map(places).collect();
        order.sort_unstable_by_key(|(n, at)| &keys[*n][*at]);
        let index = keyspace.index();
        let mut ahead = Ahead::new(index);
        for (i, (n, at)) in order.iter().enumerate() {
            let key = |i: usize| &*keys[order[i].0][order[i].1];
            ahead.reach(index, i, order.len(), key);
            let reading = &mut readings[*n];
            // Another key of it may have failed.
            if reading.told.is_none() {
                continue;
            }
            let copied = |value: Option<&[u8]>| value.map(<[u8]>::to_vec);
            let looked = match &reading.at {
                Some(snapshot) => snapshot.look(&keyspace, key(i), copied),
                None => self.txns.look(&keyspace, key(i), copied),
            };
            match looked {
                Ok((value, lsn)) => reading.take(*at, value, self.txns.dependence(lsn)),
                Err(error) => reading.end(&self.txns, Err(error)),
            }
            if reading.left == 0 {
                let values = std::mem::take(&mut reading.values);
                reading.end(&self.txns, Ok(values));
            }
        }
        debug_assert!(readings.iter().all(|reading| reading.told.is_none()), "each request is told");
    }

    /// Tells everything that waits that the database is closed, and the threads to end; waits for none.
    pub fn end(&self) {
        let due = {
            let mut queue = self.queue.lock();
            queue.ended = true;
            std::mem::take(&mut queue.due)
        };
        self.come.notify_all();
        if !varve_rt::dying() {
            due.iter().for_each(|request| tell(&request.told, Err(Error::Closed)));
        }
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.end();
        let threads = std::mem::take(&mut self.queue.lock().threads);
        assert!(threads.len() <= MOST_THREADS, "no more threads than that");
        Health::join(threads);
        assert!(self.queue.lock().due.is_empty() || varve_rt::dying(), "nothing is queued after the end");
    }
}

impl Queue {
    /// Whether what is due is more than the threads that there are should be left with.
    fn wants_thread(&self) -> bool {
        let asks_ahead = |request: &Request| request.keyspace.index().most_asked_for() > 1;
        let each = if self.due.back().is_some_and(asks_ahead) { MOST_REQUESTS } else { 1 };
        let most = if self.threads.is_empty() { 0 } else { self.idle * each };
        self.due.len() > most && self.threads.len() < MOST_THREADS.min(1 + self.due.len() / each)
    }

    /// A request, and those that can be read together with it.
    fn take_with(&mut self, first: Request) -> Vec<Request> {
        let keyspace = first.keyspace.clone();
        let most = if keyspace.index().most_asked_for() > 1 { MOST_REQUESTS } else { 1 };
        let mut taken = vec![first];
        while taken.len() < most && self.due.front().is_some_and(|next| Arc::ptr_eq(&next.keyspace, &keyspace)) {
            taken.extend(self.due.pop_front());
        }
        assert!(taken.len() <= most, "no more than can be asked for together");
        taken
    }
}

impl Reading {
    /// The keys, and what becomes of them.
    fn of(request: Request) -> (Vec<Box<[u8]>>, Reading) {
        let Request { at, keys, told, .. } = request;
        let reading = Reading { values: vec![None; keys.len()], left: keys.len(), seen: 0, at, told: Some(told) };
        (keys, reading)
    }

    fn take(&mut self, at: usize, value: Option<Vec<u8>>, seen: Lsn) {
        assert!(self.left > 0, "each key is read once");
        self.values[at] = value;
        self.left -= 1;
        self.seen = self.seen.max(seen);
    }

    /// Tells what came out, as soon as it may be seen.
    fn end(&mut self, txns: &Manager, result: Result<Values>) {
        let Some(told) = self.told.take() else { return };
        self.at = None;
        match result {
            Ok(values) if self.seen > 0 => txns.tell_durable(self.seen, &told, values),
            result => {
                assert!(result.is_err() || self.left == 0, "all of its keys were read");
                tell(&told, result);
            }
        }
    }
}

/// A waker's panic is its owner's affair: it was printed.
fn tell(told: &Told<Result<Values>>, result: Result<Values>) {
    let _ = varve_rt::catch_panic(|| told.tell(result));
}

impl Manager {
    /// The value of a key, if that takes no wait. See [`Now`].
    pub fn get_now(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<Now> {
        self.live_in(keyspace)?;
        if self.large.is_active() {
            return Ok(Now::Unknown);
        }
        let Some((value, lsn)) = keyspace.index().read_now(key, |value| value.map(<[u8]>::to_vec))? else {
            return Ok(Now::Unknown);
        };
        self.check_read(lsn)?;
        Ok(Now::Value(value, self.dependence(lsn)))
    }

    /// Tells values when the log is durable up to `seen`, or that this is never going to be.
    pub fn tell_durable(&self, seen: Lsn, told: &Told<Result<Values>>, values: Values) {
        let later = told.clone();
        let told_later = move |durable: Result<()>| later.tell(durable.map(|()| values));
        if let Err(error) = self.core.log.on_durable(seen, Box::new(told_later)) {
            tell(told, Err(error));
        }
    }
}

impl Snapshot {
    /// The value that a key had, if that takes no wait. See [`Now`].
    pub fn get_now(&self, keyspace: &OpenKeyspace, key: &[u8]) -> Result<Now> {
        self.check(keyspace)?;
        let (manager, at) = (&self.manager, self.as_of());
        if manager.large.is_active() {
            return Ok(Now::Unknown);
        }
        // As [`Snapshot::look`]: the index first, then what left it, then the old values.
        let Some((found, lsn)) = keyspace.index().read_now(key, |value| value.map(<[u8]>::to_vec))? else {
            return Ok(Now::Unknown);
        };
        if keyspace.formers().of(at, key).is_some() {
            return Ok(Now::Unknown);
        }
        let old = manager.snapshots.versions.get(keyspace.id(), key, at, |_, value| value.map(Copied::from));
        if manager.snapshots.runs().is_some() {
            return Ok(Now::Unknown);
        }
        let seen = manager.dependence(self.intact(lsn)?);
        match old {
            None => Ok(Now::Value(found, seen)),
            Some(None) => Ok(Now::Value(None, seen)),
            Some(Some(Copied::Bytes(value))) => Ok(Now::Value(Some(value.into()), seen)),
            Some(Some(Copied::Long(_))) => Ok(Now::Unknown),
        }
    }
}
