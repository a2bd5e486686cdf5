//! A device at the other end of a connection.
//!
//! Requests are cut in pieces of at most [`PIECE`] bytes, sent at once, and waited for one by one. When the connection
//! is lost it is made again, and what has no answer yet is asked again: every request does the same when it is done
//! twice, and the worker ends what it began for the connection before it takes the next one of the same host.
//!
//! A worker that was started anew (its boot number is another one) may have lost what was written and not flushed. If
//! there is any, the device is *broken*: every request fails from then on, reads too, since they could find what was
//! there before. The flush that fails poisons the database (`varve_device::Health`); opening it again recovers. It is
//! broken too if what the worker has now is another device, or does not belong to the same database and time (`marks`).
//! That is found before the session gives the connection to anybody: to who has jobs done neither.
//!
//! Invariants: an answer counts only if it came from the boot that the device is at; a device that is broken stays so.
//!
//! Lock order: `state` is a leaf.

use crate::blocks::{BlockRequest, PIECE};
use crate::client::{Client, Pending, Reply};
use crate::error::WireError;
use crate::facts::Facts;
use crate::fields::Fields;
use crate::marks::Marks;
use crate::session::Session;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{
    Busy, Completion, Counters, Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, OpKind, Ticket, check,
};
use varve_rt::{Instant, Mutex, now};

/// A worker's device, as a device of this host.
pub struct RemoteDevice {
    core: Arc<Core>,
}

struct Core {
    session: Arc<Session>,
    info: DeviceInfo,
    state: Mutex<State>,
    counters: Counters,
    busy: Busy,
}

struct State {
    /// The worker's boot number, as last seen.
    boot: u64,
    len: u64,
    /// Writes that completed without being durable, and how many of them a flush covers that completed.
    written: u64,
    flushed: u64,
    marks: Marks,
    /// Why nothing is believed any more.
    broken: Option<Arc<str>>,
}

impl RemoteDevice {
    /// The device of the worker that the session is connected to.
    pub fn new(session: Arc<Session>) -> Arc<RemoteDevice> {
        let Facts { boot, len, info, .. } = session.facts();
        let peer = session.peer();
        let access = format!("{} at {peer}: {}", info.name, info.access);
        let info = DeviceInfo { name: peer, access, ..info };
        let state = State { boot, len, written: 0, flushed: 0, marks: Marks::default(), broken: None };
        let (state, counters, busy) = (Mutex::new(state), Counters::default(), Busy::default());
        let core = Arc::new(Core { session, info, state, counters, busy });
        let guards = Arc::downgrade(&core);
        core.session.set_guard(Arc::new(move |client| guards.upgrade().map_or(Ok(()), |core| core.admit(client))));
        Arc::new(RemoteDevice { core })
    }

    /// The connection, for other requests to the same worker.
    pub fn session(&self) -> &Arc<Session> {
        &self.core.session
    }

    /// Why the device does nothing any more, if so.
    pub fn broken(&self) -> Option<Arc<str>> {
        self.core.state.lock().broken.clone()
    }
}

impl Core {
    fn error(&self, e: WireError) -> DeviceError {
        match e {
            WireError::Device(e) => e,
            WireError::Changed { why, .. } => DeviceError::Lost { device: self.info.name.clone(), why },
            e => DeviceError::Lost { device: self.info.name.clone(), why: e.to_string().into() },
        }
    }

    /// Looks at a worker that was started anew, and moves on to it if nothing can be lost by that.
    fn admit(&self, client: &Client) -> Result<(), WireError> {
        let known = self.state.lock().marks.known();
        let len = client.facts().len;
        let mut found = Vec::new();
        for range in known.into_iter().filter(|range| range.end <= len) {
            let request = BlockRequest::Read { offset: range.start, len: (range.end - range.start) as u32 };
            let limit = self.session.options().answer.min(self.session.options().patience);
            let reply = client.request(request.op(), &[&request.head()], Some(limit))?;
            found.push((range, reply));
        }
        let mut state = self.state.lock();
        let facts = client.facts();
        if facts.boot != state.boot && state.broken.is_none() {
            state.broken = self.changed(&state, facts, &found).map(Arc::from);
            state.boot = facts.boot;
        }
        match &state.broken {
            Some(why) => Err(WireError::Changed { peer: self.session.peer(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Why a worker that was started anew cannot go on for the one before; `found`: what it has where marks are.
    fn changed(&self, state: &State, facts: &Facts, found: &[(Range<u64>, Reply)]) -> Option<String> {
        if state.written > state.flushed {
            let lost = state.written - state.flushed;
            return Some(format!(
                "its worker was started anew, and writes that were not flushed ({lost}) may be gone: close the \
                 database and open it again, so that it recovers"
            ));
        }
        if facts.len != state.len || facts.info.block != self.info.block {
            return Some(format!("its worker was started anew with another device, of {} bytes", facts.len));
        }
        found.iter().any(|(range, reply)| state.marks.denies(range, reply.body())).then(|| {
            "its worker was started anew with a device of another database, or with a copy of another time: start it \
             with the right one, close the database and open it again"
                .to_string()
        })
    }

    /// Starts a request over `client`.
    fn start(&self, client: &Arc<Client>, request: BlockRequest<'_>) -> Started {
        let bytes = if let BlockRequest::Write { bytes, .. } = request { bytes } else { &[] };
        let written = {
            let mut state = self.state.lock();
            match request {
                BlockRequest::Write { offset, bytes, .. } => state.marks.forget(offset..offset + bytes.len() as u64),
                BlockRequest::Trim { offset, len } => state.marks.forget(offset..offset + len),
                BlockRequest::SetLen(len) => state.marks.forget(len..u64::MAX),
                BlockRequest::Read { .. } | BlockRequest::Flush => {}
            }
            state.written
        };
        Started {
            client: client.clone(),
            written,
            pending: Some(client.start(request.op(), &[&request.head(), bytes])),
        }
    }

    /// Waits for a request, and asks again over new connections as often as needed.
    fn finish(&self, started: Started, request: BlockRequest<'_>) -> Result<Reply, DeviceError> {
        let deadline = now() + self.session.options().patience + self.session.options().answer;
        let mut started = started;
        loop {
            let limit = self.session.options().answer;
            let error = match started.wait(limit) {
                Ok(reply) if self.count(&started, request, &reply)? => return Ok(reply),
                Ok(_) => None,
                Err(e @ (WireError::Lost { .. } | WireError::Timeout { .. } | WireError::Garbage { .. })) => Some(e),
                Err(e) => return Err(self.error(e)),
            };
            if varve_rt::dying() || now() > deadline {
                let gone = WireError::Lost { peer: self.session.peer(), why: "it was lost again and again".into() };
                return Err(self.error(error.unwrap_or(gone)));
            }
            let client = self.session.instead_of(&started.client).map_err(|e| self.error(e))?;
            started = self.start(&client, request);
        }
    }

    /// Books a request that was answered; false when the answer is of an earlier boot, so that it has to be done again.
    fn count(&self, started: &Started, request: BlockRequest<'_>, reply: &Reply) -> Result<bool, DeviceError> {
        let mut state = self.state.lock();
        self.sound(&state)?;
        if started.client.facts().boot != state.boot {
            return Ok(false);
        }
        match request {
            BlockRequest::Read { offset, .. } => state.marks.holds(offset, reply.body()),
            BlockRequest::Write { offset, bytes, .. } => state.marks.holds(offset, bytes),
            _ => {}
        }
        match request {
            BlockRequest::Write { durable: false, .. } => state.written += 1,
            BlockRequest::Flush => state.flushed = state.flushed.max(started.written),
            _ => {}
        }
        Ok(true)
    }

    fn sound(&self, state: &State) -> Result<(), DeviceError> {
        match &state.broken {
            Some(why) => Err(DeviceError::Lost { device: self.info.name.clone(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// A connection that requests may be sent over.
    fn client(&self) -> Result<Arc<Client>, DeviceError> {
        self.sound(&self.state.lock())?;
        self.session.live().map_err(|e| self.error(e))
    }
}

/// A request that was sent, or could not be.
struct Started {
    client: Arc<Client>,
    /// Writes that had completed before.
    written: u64,
    /// Until it was waited for.
    pending: Option<Result<Pending, WireError>>,
}

impl Started {
    fn wait(&mut self, limit: Duration) -> Result<Reply, WireError> {
        self.pending.take().expect("a request is waited for once").and_then(|pending| pending.wait(Some(limit)))
    }
}

/// The request that an `Io` is.
fn request(io: &Io) -> BlockRequest<'_> {
    let offset = io.offset;
    match io.op {
        Op::Read => BlockRequest::Read { offset, len: io.len() as u32 },
        Op::Write { durable } => {
            // SAFETY: whoever made the request promised that the memory is valid and unchanged until it was waited
            // for; the slice lives as long as the borrow of the request, which the ticket holds until then.
            let bytes = unsafe { std::slice::from_raw_parts(io.buf.as_ptr(), io.len()) };
            BlockRequest::Write { offset, durable, bytes }
        }
        Op::Trim => BlockRequest::Trim { offset, len: io.len() as u64 },
        Op::Flush => BlockRequest::Flush,
    }
}

/// Cuts a request in pieces.
fn pieces(mut io: Io) -> Vec<Io> {
    let mut pieces = Vec::new();
    while matches!(io.op, Op::Read | Op::Write { .. }) && io.len() > PIECE {
        let (first, rest) = io.split_at(PIECE);
        pieces.push(first);
        io = rest;
    }
    pieces.push(io);
    pieces
}

/// One request of a batch.
struct Flight {
    kind: OpKind,
    bytes: u64,
    began: Instant,
    pieces: Vec<(Io, Option<Started>)>,
}

/// A batch that was sent.
struct Batch {
    core: Arc<Core>,
    flights: Vec<Flight>,
}

impl Batch {
    fn piece(core: &Core, (io, started): &mut (Io, Option<Started>)) -> Result<(), DeviceError> {
        let Some(started) = started.take() else { return Ok(()) };
        let reply = core.finish(started, request(io))?;
        if io.op != Op::Read {
            return Ok(());
        }
        if reply.body().len() != io.len() {
            let why = format!("it answered {} bytes where {} were asked for", reply.body().len(), io.len());
            return Err(core.error(WireError::Garbage { peer: core.session.peer(), why: why.into() }));
        }
        // SAFETY: the request has not been waited for: that is what happens here.
        unsafe { io.buf.fill(reply.body()) };
        Ok(())
    }
}

impl Completion for Batch {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        let Flight { kind, bytes, began, pieces } = &mut self.flights[i];
        let mut result = Ok(());
        for piece in pieces {
            let done = Batch::piece(&self.core, piece);
            result = result.and(done);
        }
        self.core.counters.finished(*kind, *bytes, began.elapsed().as_nanos() as u64, result.is_ok());
        self.core.busy.ended();
        result
    }

    fn try_done(&mut self, i: usize) -> bool {
        let done = |started: &Option<Started>| match started.as_ref().and_then(|s| s.pending.as_ref()) {
            Some(Ok(pending)) => pending.is_done(),
            _ => true,
        };
        self.flights[i].pieces.iter().all(|(_, started)| done(started))
    }

    fn abandon(&mut self) {
        // Buffers are filled by who waits, and what was to be written is on its way.
    }
}

impl Device for RemoteDevice {
    fn info(&self) -> DeviceInfo {
        self.core.info.clone()
    }

    fn len(&self) -> u64 {
        self.core.state.lock().len
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let request = BlockRequest::SetLen(len);
        let client = self.core.client()?;
        let reply = self.core.finish(self.core.start(&client, request), request)?;
        let len = Fields::new(reply.body()).u64().ok_or_else(|| {
            self.core.error(WireError::Garbage { peer: self.core.session.peer(), why: "a length is missing".into() })
        })?;
        self.core.state.lock().len = len;
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let (core, device_len, n) = (&self.core, self.len(), batch.len());
        let refused = |io: &Io| check(io, &core.info.name, core.info.block, device_len);
        if let Some(results) = batch.iter().any(|io| refused(io).is_err()).then(|| batch.iter().map(refused).collect())
        {
            return Ticket::ready(results);
        }
        let client = match core.client() {
            Ok(client) => client,
            Err(e) => return Ticket::ready(vec![Err(e); n]),
        };
        core.busy.begun(n as u64, now());
        let flight = |io: Io| {
            let (kind, bytes, began) = (io.op.kind(), io.len() as u64, now());
            if matches!(io.op, Op::Write { durable: true }) {
                core.counters.durable_write();
            }
            let start = |io: Io| {
                let empty = io.len() == 0 && io.op != Op::Flush;
                let started = (!empty).then(|| core.start(&client, request(&io)));
                (io, started)
            };
            Flight { kind, bytes, began, pieces: pieces(io).into_iter().map(start).collect() }
        };
        let flights = batch.into_iter().map(flight).collect();
        Ticket::pending(n, Box::new(Batch { core: core.clone(), flights }))
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats { busy: Some(self.core.busy.snapshot()), ..self.core.counters.snapshot() }
    }

    fn hint(&self, range: Range<u64>, hint: Hint) {
        if hint == Hint::Identity {
            self.core.state.lock().marks.add(range);
        }
    }
}
