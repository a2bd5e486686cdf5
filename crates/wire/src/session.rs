//! A host's connection to a worker that is made again when it is lost.
//!
//! Lock order: `connecting`, then `state`, then the client's. Nothing waits under `state`.

use crate::client::{Client, Reply, Traffic};
use crate::connection::Connector;
use crate::error::{Refusal, WireError};
use crate::facts::{Facts, Role};
use crate::op::Op;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Instant, Mutex, now, sleep};

/// How a session behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// As what it connects.
    pub role: Role,
    /// How long an answer may take, before the connection counts as lost.
    pub answer: Duration,
    /// How long connecting may take, and a lost connection is tried to be made again, its first words included. Then
    /// the worker is gone: each later request tries once, for [`ONE_TRY`] at most, until one finds it again.
    pub patience: Duration,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { role: Role::Owner, answer: Duration::from_secs(30), patience: Duration::from_secs(15) }
    }
}

/// How long a worker that is gone is looked for by one request.
pub const ONE_TRY: Duration = Duration::from_secs(1);

/// Between two tries to connect, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Looks at a worker that was started anew, over the new connection; an error says why it is not used.
pub(crate) type Guard = Arc<dyn Fn(&Client) -> Result<(), WireError> + Send + Sync>;

/// A connection to a worker that is made again when it is lost.
pub struct Session {
    connector: Arc<dyn Connector>,
    options: SessionOptions,
    /// The host's number.
    client: u64,
    state: Mutex<State>,
    connecting: Mutex<()>,
}

struct State {
    client: Arc<Client>,
    /// Connections made.
    made: u64,
    /// What went over those before this one.
    before: Traffic,
    /// Since when there is none.
    gone: Option<Instant>,
    closed: bool,
    /// Of the device that is reached over it.
    guard: Option<Guard>,
}

impl Session {
    /// Connects, or says why that is not possible.
    pub fn open(connector: Arc<dyn Connector>, options: SessionOptions) -> Result<Arc<Session>, WireError> {
        let number = varve_rt::rng().next_u64();
        let client = connect(&*connector, &options, number, options.patience)?;
        let state =
            Mutex::new(State { client, made: 1, before: Traffic::default(), gone: None, closed: false, guard: None });
        Ok(Arc::new(Session { connector, options, client: number, state, connecting: Mutex::new(()) }))
    }

    /// The connection as it is, lost or not. Its facts hold the worker's boot number.
    pub fn client(&self) -> Arc<Client> {
        self.state.lock().client.clone()
    }

    /// What the worker said when it was last connected to.
    pub fn facts(&self) -> Facts {
        self.client().facts().clone()
    }

    /// How it behaves.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Arc<str> {
        self.connector.peer()
    }

    /// From now on a worker that was started anew is looked at before anything else is asked of it.
    pub(crate) fn set_guard(&self, guard: Guard) {
        self.state.lock().guard = Some(guard);
    }

    /// A new connection, to a worker that may be used if it is not the one of before.
    fn connect(&self, lost: &Client, limit: Duration) -> Result<Arc<Client>, WireError> {
        let client = connect(&*self.connector, &self.options, self.client, limit)?;
        let guard = self.state.lock().guard.clone();
        let Some(guard) = guard.filter(|_| client.facts().boot != lost.facts().boot) else { return Ok(client) };
        guard(&client).map(|()| client)
    }

    /// Connections made so far.
    pub fn connections(&self) -> u64 {
        self.state.lock().made
    }

    /// What went over all of them so far; answers that come over one that was given up do not count.
    pub fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        state.before.and(state.client.traffic())
    }

    /// Ends the connection; it is not made again.
    pub fn close(&self) {
        let client = {
            let mut state = self.state.lock();
            state.closed = true;
            state.client.clone()
        };
        client.close();
    }

    /// A connection that is not `lost`: the one that somebody made meanwhile, or a new one, tried for as long as the
    /// options say since it was first missed.
    pub fn instead_of(&self, lost: &Arc<Client>) -> Result<Arc<Client>, WireError> {
        // Nothing that was sent over it may be done after what is sent over the next one: the worker sees to that when
        // the next one comes.
        lost.close();
        let _turn = self.connecting.lock();
        let now_used = self.client();
        if !Arc::ptr_eq(&now_used, lost) && !now_used.is_lost() {
            return Ok(now_used);
        }
        let missed = *self.state.lock().gone.get_or_insert_with(now);
        let (deadline, mut pause) = (missed + self.options.patience, PAUSE[0]);
        loop {
            if self.state.lock().closed {
                return Err(WireError::Lost { peer: self.peer(), why: "it was closed here".into() });
            }
            let left = deadline.duration_since(now()).max(ONE_TRY.min(self.options.patience));
            let error = match self.connect(&now_used, left) {
                Ok(client) => {
                    let mut state = self.state.lock();
                    let gone = std::mem::replace(&mut state.client, client.clone());
                    state.before = state.before.and(gone.traffic());
                    state.made += 1;
                    state.gone = None;
                    return Ok(client);
                }
                Err(error) => error,
            };
            // A worker that says no says it again, but for one that still has requests of the connection before.
            let final_word = match &error {
                WireError::Refused { refusal, .. } => *refusal != Refusal::InUse,
                // What its device fails at, whoever asked tries again if that may help.
                WireError::Changed { .. } | WireError::Device(_) => true,
                _ => false,
            };
            if final_word || now() + pause > deadline || varve_rt::dying() {
                return Err(error);
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSE[1]);
        }
    }

    /// Sends a request over the connection, which is made again first if it is lost, and waits for its answer. It is
    /// sent once: whether it was done is not known after [`WireError::Lost`] and [`WireError::Timeout`].
    pub fn request(&self, op: Op, parts: &[&[u8]], limit: Option<Duration>) -> Result<Reply, WireError> {
        self.live()?.request(op, parts, limit)
    }

    /// The connection, made again if it is lost.
    pub fn live(&self) -> Result<Arc<Client>, WireError> {
        let client = self.client();
        if client.is_lost() { self.instead_of(&client) } else { Ok(client) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn connect(
    connector: &dyn Connector,
    options: &SessionOptions,
    number: u64,
    limit: Duration,
) -> Result<Arc<Client>, WireError> {
    let lost = |e: std::io::Error| WireError::Lost { peer: connector.peer(), why: e.to_string().into() };
    let connection = connector.connect(limit).map_err(lost)?;
    Client::hello(connection, options.role, number, limit.min(options.answer))
}
