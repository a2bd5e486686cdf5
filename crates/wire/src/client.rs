//! The host's end of one connection: requests that are outstanding together, answers in any order.
//!
//! Invariants: numbers of requests ascend in the order in which they are sent, from 1 on; an answer is given to its
//! request once, or dropped if nobody waits for it any more; when the connection is lost every request that is
//! outstanding learns it, and none is sent after.
//!
//! Lock order: `sending`, then `table`. Nothing waits under `table`.

use crate::connection::Connection;
use crate::error::WireError;
use crate::facts::{Facts, Role, hello};
use crate::failure;
use crate::frame::{Decoder, FRAME_OVERHEAD, FROM_HOST, Frame, HEAD, REFUSED, VERSION, encode};
use crate::op::Op;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Condvar, Event, HashMap, Mutex, spawn_daemon};

/// How the answer begins of who speaks TLS, to bytes in the clear (RFC 8446, 5.1).
const TLS_ALERT: &[u8] = &[21, 3];

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(Vec<u8>);

impl Reply {
    /// What it holds.
    pub fn body(&self) -> &[u8] {
        &self.0[HEAD..]
    }
}

/// Where an answer is left.
struct Slot {
    op: Op,
    answer: Mutex<Option<Result<Reply, WireError>>>,
    done: Event,
}

impl Slot {
    fn set(&self, answer: Result<Reply, WireError>) {
        *self.answer.lock() = Some(answer);
        self.done.set();
    }
}

#[derive(Default)]
struct Table {
    /// Number of the last request.
    last: u64,
    outstanding: HashMap<u64, Arc<Slot>>,
    lost: Option<Arc<str>>,
    /// Answers that nobody waited for.
    late: u64,
    /// Bytes of frames that were received.
    received: u64,
    /// Bytes of frames that were sent.
    sent: u64,
}

/// What went over connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests sent.
    pub requests: u64,
    /// Bytes of the frames that were sent, before encryption.
    pub sent: u64,
    /// Bytes of the frames that were received, after decryption.
    pub received: u64,
}

impl Traffic {
    /// Both together.
    pub(crate) fn and(self, other: Traffic) -> Traffic {
        Traffic {
            requests: self.requests + other.requests,
            sent: self.sent + other.sent,
            received: self.received + other.received,
        }
    }
}

struct Shared {
    connection: Arc<dyn Connection>,
    peer: Arc<str>,
    table: Mutex<Table>,
    /// One of the outstanding requests was answered, or all were lost.
    room: Condvar,
}

/// The host's end of one connection. Dropping it closes the connection.
pub struct Client {
    shared: Arc<Shared>,
    sending: Mutex<()>,
    facts: Facts,
}

impl Client {
    /// Says hello over a new connection and waits for the answer, at most for `limit`.
    pub fn hello(
        connection: Arc<dyn Connection>,
        role: Role,
        client: u64,
        limit: Duration,
    ) -> Result<Arc<Client>, WireError> {
        let peer = connection.peer();
        let shared = Shared { connection, peer, table: Mutex::default(), room: Condvar::new() };
        let shared = Arc::new(shared);
        let reading = shared.clone();
        spawn_daemon("wire reader", move || reading.read());
        let mut made = Client { shared, sending: Mutex::new(()), facts: Facts::nothing() };
        let reply = made.request(Op::Hello, &[&hello(role, client)], Some(limit))?;
        made.facts = Facts::decode(reply.body()).ok_or_else(|| {
            made.shared.lose("it closed after a bad hello");
            WireError::Garbage { peer: made.shared.peer.clone(), why: "its hello cannot be read".into() }
        })?;
        Ok(Arc::new(made))
    }

    /// What the worker said of itself and its device.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Arc<str> {
        &self.shared.peer
    }

    /// Whether nothing can be asked over this connection any more.
    pub fn is_lost(&self) -> bool {
        self.shared.table.lock().lost.is_some()
    }

    /// Answers that came when nobody waited for them any more, so far.
    pub fn late(&self) -> u64 {
        self.shared.table.lock().late
    }

    /// What went over it so far.
    pub fn traffic(&self) -> Traffic {
        let table = self.shared.table.lock();
        Traffic { requests: table.last, sent: table.sent, received: table.received }
    }

    /// Requests that are outstanding.
    pub fn outstanding(&self) -> usize {
        self.shared.table.lock().outstanding.len()
    }

    /// Ends the connection: what is outstanding fails.
    pub fn close(&self) {
        self.shared.lose("it was closed here");
    }

    /// Sends a request whose body is the `parts`, and does not wait for its answer; waits while as many are
    /// outstanding as the worker takes.
    pub fn start(&self, op: Op, parts: &[&[u8]]) -> Result<Pending, WireError> {
        let slot = Arc::new(Slot { op, answer: Mutex::new(None), done: Event::new() });
        let _turn = self.sending.lock();
        let id = {
            let mut table = self.shared.table.lock();
            loop {
                if let Some(why) = &table.lost {
                    return Err(self.shared.lost(why));
                }
                if table.outstanding.len() < self.facts.window as usize {
                    break;
                }
                self.shared.room.wait(&mut table);
                if varve_rt::dying() {
                    return Err(self.shared.lost(&"this side lost power".into()));
                }
            }
            table.last += 1;
            table.sent += (FRAME_OVERHEAD + HEAD + parts.iter().map(|part| part.len()).sum::<usize>()) as u64;
            let id = table.last;
            table.outstanding.insert(id, slot.clone());
            id
        };
        if let Err(e) = self.shared.connection.send(&encode(op as u16, FROM_HOST, 0, id, parts)) {
            self.shared.lose(&e.to_string());
        }
        Ok(Pending { shared: self.shared.clone(), id, slot })
    }

    /// Sends a request and waits for its answer, at most for `limit`.
    pub fn request(&self, op: Op, parts: &[&[u8]], limit: Option<Duration>) -> Result<Reply, WireError> {
        self.start(op, parts)?.wait(limit)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// A request that was sent. Dropping it is to wait for it no more: its answer is dropped when it comes.
pub struct Pending {
    shared: Arc<Shared>,
    id: u64,
    slot: Arc<Slot>,
}

impl Pending {
    /// Whether [`Pending::wait`] would not wait.
    pub fn is_done(&self) -> bool {
        self.slot.done.is_set()
    }

    /// Waits for the answer, at most for `limit`; without one, until it comes or the connection is lost.
    pub fn wait(self, limit: Option<Duration>) -> Result<Reply, WireError> {
        match limit {
            None => self.slot.done.wait(),
            Some(limit) if self.slot.done.wait_for(limit) && !self.slot.done.is_set() => {
                return Err(WireError::Timeout { peer: self.shared.peer.clone(), after: limit });
            }
            Some(_) => {}
        }
        // No answer: this thread is dying, and did not wait.
        self.slot.answer.lock().take().unwrap_or_else(|| Err(self.shared.lost(&"this side lost power".into())))
    }

    /// Waits for it no more.
    pub fn forget(self) {}
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.shared.table.lock().outstanding.remove(&self.id).is_some() {
            self.shared.room.notify_all();
        }
    }
}

impl Shared {
    fn lost(&self, why: &Arc<str>) -> WireError {
        WireError::Lost { peer: self.peer.clone(), why: why.clone() }
    }

    /// Ends the connection, and tells everybody who waits for an answer. The first reason is kept.
    fn lose(&self, why: &str) {
        let (slots, why) = {
            let mut table = self.table.lock();
            let why = table.lost.get_or_insert_with(|| why.into()).clone();
            (std::mem::take(&mut table.outstanding), why)
        };
        let mut slots: Vec<_> = slots.into_iter().collect();
        slots.sort_unstable_by_key(|(id, _)| *id);
        slots.iter().for_each(|(_, slot)| slot.set(Err(self.lost(&why))));
        self.room.notify_all();
        self.connection.close();
    }

    /// The life of the thread that receives.
    fn read(&self) {
        let mut decoder = Decoder::from_worker();
        let why = loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(why) = self.take(frame) {
                        break why;
                    }
                }
                Ok(None) => match self.connection.recv(decoder.buffer()) {
                    Ok(true) => {}
                    Ok(false) if decoder.buffer().starts_with(TLS_ALERT) => {
                        break "it speaks TLS: give --key and --peer".to_string();
                    }
                    Ok(false) => break "the other side closed it".to_string(),
                    Err(e) => break e.to_string(),
                },
                Err(e) => break e.to_string(),
            }
        };
        self.lose(&why);
    }

    /// Gives an answer to its request; an error says why the connection is of no use any more.
    fn take(&self, frame: Frame) -> Result<(), String> {
        if frame.version != VERSION {
            let theirs = frame.version;
            return Err(format!(
                "it speaks version {theirs} of the messages, this side {VERSION}: update the older one"
            ));
        }
        let refused = frame.flag & REFUSED != 0;
        if frame.id == 0 && refused {
            return Err(failure::decode(frame.body(), &self.peer).to_string());
        }
        let slot = {
            let mut table = self.table.lock();
            table.received += (FRAME_OVERHEAD + HEAD + frame.body().len()) as u64;
            match table.outstanding.remove(&frame.id) {
                Some(slot) => slot,
                None if frame.id <= table.last && frame.id > 0 => {
                    table.late += 1;
                    return Ok(());
                }
                None => return Err(format!("it answered request {}, which nobody sent", frame.id)),
            }
        };
        self.room.notify_all();
        if frame.op != slot.op as u16 {
            let what = format!("it answered a {} by op {}", slot.op.name(), frame.op);
            slot.set(Err(WireError::Garbage { peer: self.peer.clone(), why: what.as_str().into() }));
            return Err(what);
        }
        let answer =
            if refused { Err(failure::decode(frame.body(), &self.peer)) } else { Ok(Reply(frame.into_payload())) };
        slot.set(answer);
        Ok(())
    }
}
