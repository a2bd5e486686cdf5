//! A link of two directions, each with a latency and a bandwidth: a network or a bus between a host and something that
//! stores or computes. [`Pipe`] sends values over it, [`Linked`] puts it in front of a device.
//!
//! A direction transfers one message after the other; the latency overlaps. Virtual time in a simulation, real time on
//! threads: the same code. In a simulation a message is received when it has arrived, never before.
//!
//! Invariant: a direction sends one message at a time, so the time at which it is free does not go back.
//!
//! Lock order: a direction's `free_at` only; nothing waits while holding it.

use crate::fixed::{millis, within};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Completion, Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, Ticket};
use varve_rt::atomic::{AtomicU64, Ordering::Relaxed};
use varve_rt::channel::{Receiver, Sender, bounded};
use varve_rt::{Instant, Mutex, hardware_mutex};

/// Bytes of a command or of an answer without data.
const COMMAND: u64 = 64;

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// One way, microseconds.
    pub latency_us: f64,
    /// Of each direction, MB/s (decimal).
    pub mb_s: f64,
    /// Processor time that a message takes at each end, microseconds: of the thread that sends it, and of the one that
    /// receives it. Behind a [`Linked`] there is no thread: there it is a wait.
    #[serde(default)]
    pub message_us: f64,
    /// The same at the far end; left out: as at this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_message_us: Option<f64>,
}

/// Links that come with the program: a name and the text of a [`LinkConfig`].
const LINKS: &[(&str, &str)] = &[("gigabit", include_str!("../profiles/links/gigabit.toml"))];

/// A link's file: the values, and what each rests on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    #[serde(rename = "title")]
    _title: String,
    link: LinkConfig,
    #[serde(rename = "sources")]
    _sources: std::collections::BTreeMap<String, String>,
}

impl LinkConfig {
    /// What is wrong with the values: the key, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        within("latency_us", self.latency_us, 0.0, 1e9)?;
        within("mb_s", self.mb_s, 1e-3, 1e6)?;
        within("message_us", self.message_us, 0.0, 1e6)?;
        within("far_message_us", self.far_message_us.unwrap_or(0.0), 0.0, 1e6)
    }

    /// The link that comes with the program under this name.
    pub fn named(name: &str) -> Option<LinkConfig> {
        let (_, text) = LINKS.iter().find(|(n, _)| *n == name)?;
        let file: LinkFile = toml::from_str(text).expect("links that come with the program are read by a test");
        assert_eq!(file.link.check(), Ok(()), "a link that comes with the program can be used");
        Some(file.link)
    }

    /// Names for [`LinkConfig::named`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        LINKS.iter().map(|(name, _)| *name)
    }

    /// What a message takes of a processor at the host's end, and at the far one.
    fn message(&self, far: bool) -> Duration {
        let far = self.far_message_us.filter(|_| far);
        millis(far.unwrap_or(self.message_us) / 1e3)
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host.
    Down,
    /// To the host.
    Up,
}

struct Lane {
    free_at: Mutex<Instant>,
    bytes: AtomicU64,
    messages: AtomicU64,
    busy_nanos: AtomicU64,
}

impl Default for Lane {
    fn default() -> Lane {
        let (bytes, messages, busy_nanos) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Lane { free_at: hardware_mutex(Instant::default()), bytes, messages, busy_nanos }
    }
}

/// A modelled link.
pub struct LinkModel {
    config: LinkConfig,
    lanes: [Lane; 2],
}

impl LinkModel {
    /// An idle link. Panics when the values cannot be used; see [`LinkConfig::check`].
    pub fn new(config: LinkConfig) -> Arc<LinkModel> {
        if let Err((key, why)) = config.check() {
            panic!("link: {key} {why}");
        }
        Arc::new(LinkModel { config, lanes: Default::default() })
    }

    /// Puts a message of `bytes` that is ready at `from` on its way; when it has arrived whole.
    pub fn send_at(&self, from: Instant, direction: Direction, bytes: u64) -> Instant {
        let lane = &self.lanes[direction as usize];
        let takes = millis(bytes as f64 / self.config.mb_s / 1e3);
        lane.bytes.fetch_add(bytes, Relaxed);
        lane.messages.fetch_add(1, Relaxed);
        lane.busy_nanos.fetch_add(takes.as_nanos() as u64, Relaxed);
        let mut free_at = lane.free_at.lock();
        let before = *free_at;
        *free_at = before.max(from) + takes;
        assert!(*free_at >= before, "a direction is free later, never earlier");
        *free_at + millis(self.config.latency_us / 1e3)
    }

    /// As [`LinkModel::send_at`], from now.
    pub fn send(&self, direction: Direction, bytes: u64) -> Instant {
        varve_rt::sim::settle();
        self.send_at(varve_rt::now(), direction, bytes)
    }

    /// Stands still for so long: what is sent meanwhile, either way, sets out after that.
    pub fn stall(&self, time: Duration) {
        let now = varve_rt::now();
        for lane in &self.lanes {
            let mut free_at = lane.free_at.lock();
            *free_at = (*free_at).max(now) + time;
        }
    }

    /// Sends a message and waits until it has arrived.
    pub fn transfer(&self, direction: Direction, bytes: u64) {
        let arrives = self.send(direction, bytes);
        sleep_until(arrives);
    }

    /// Bytes sent in a direction, and the time that it was busy.
    pub fn sent(&self, direction: Direction) -> (u64, Duration) {
        let lane = &self.lanes[direction as usize];
        debug_assert!(lane.bytes.load(Relaxed) == 0 || lane.messages.load(Relaxed) > 0, "bytes travel in messages");
        (lane.bytes.load(Relaxed), Duration::from_nanos(lane.busy_nanos.load(Relaxed)))
    }

    /// Messages sent in a direction.
    pub fn messages(&self, direction: Direction) -> u64 {
        self.lanes[direction as usize].messages.load(Relaxed)
    }

    /// What it is like.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// A channel for values in one direction, with room for `room` of them under way.
    pub fn pipe<T>(self: &Arc<Self>, direction: Direction, room: usize) -> (PipeSender<T>, PipeReceiver<T>) {
        let (sender, receiver) = bounded(room.max(1));
        (PipeSender { link: self.clone(), direction, sender }, PipeReceiver { link: self.clone(), direction, receiver })
    }
}

fn sleep_until(at: Instant) {
    let left = at - varve_rt::now();
    if !left.is_zero() {
        varve_rt::sleep(left);
    }
}

/// The end of a pipe that values are put in. Clones are the same end.
pub struct PipeSender<T> {
    link: Arc<LinkModel>,
    direction: Direction,
    sender: Sender<(Instant, T)>,
}

/// The end of a pipe that values come out of.
pub struct PipeReceiver<T> {
    link: Arc<LinkModel>,
    direction: Direction,
    receiver: Receiver<(Instant, T)>,
}

impl<T> Clone for PipeSender<T> {
    fn clone(&self) -> PipeSender<T> {
        PipeSender { link: self.link.clone(), direction: self.direction, sender: self.sender.clone() }
    }
}

impl<T> PipeSender<T> {
    /// Sends a value that takes `bytes` on the link; waits for room only. Gives it back when nobody receives any more.
    pub fn send(&self, value: T, bytes: u64) -> Result<(), T> {
        varve_rt::compute(self.link.config.message(self.direction == Direction::Up));
        let arrives = self.link.send(self.direction, bytes);
        self.sender.send((arrives, value)).map_err(|e| e.0.1)
    }
}

impl<T> PipeReceiver<T> {
    /// The next value, once it has arrived; `None` when nobody sends any more.
    pub fn recv(&self) -> Option<T> {
        let (arrives, value) = self.receiver.recv().ok()?;
        sleep_until(arrives);
        varve_rt::compute(self.link.config.message(self.direction == Direction::Down));
        Some(value)
    }
}

/// A device behind a link: commands and written bytes go down, read bytes and answers come up.
///
/// A request reaches the device when its message has arrived there, so `submit` waits that long; its answer is waited
/// for with the request. A batch is one message to the device for each request, and one back. What a message takes of
/// a processor is charged to who submits and waits; at the device it is waited for.
pub struct Linked {
    inner: Arc<dyn Device>,
    link: Arc<LinkModel>,
}

impl Linked {
    /// `inner`, reached over `link`, which others may use too.
    pub fn new(inner: Arc<dyn Device>, link: Arc<LinkModel>) -> Arc<Linked> {
        Arc::new(Linked { inner, link })
    }
}

impl Device for Linked {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        relay(&self.link, Direction::Down, COMMAND, 1);
        self.inner.set_len(len)?;
        relay(&self.link, Direction::Up, COMMAND, 1);
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let down: u64 = batch.iter().map(|io| COMMAND + if io.op == Op::Read { 0 } else { data_len(io) }).sum();
        let up: Vec<u64> = batch.iter().map(|io| COMMAND + if io.op == Op::Read { data_len(io) } else { 0 }).collect();
        relay(&self.link, Direction::Down, down, up.len());
        let ticket = self.inner.submit(batch);
        Ticket::pending(up.len(), Box::new(Answers { ticket, up, link: self.link.clone() }))
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn hint(&self, range: std::ops::Range<u64>, hint: Hint) {
        self.inner.hint(range, hint);
    }
}

/// Sends so many messages as one between this end, where they take processor time, and the other, where they are waited
/// for.
fn relay(link: &LinkModel, direction: Direction, bytes: u64, messages: usize) {
    assert!(messages > 0 || bytes == 0, "bytes travel in messages");
    varve_rt::compute(link.config.message(false) * messages as u32);
    let arrives = link.send(direction, bytes);
    link.lanes[direction as usize].messages.fetch_add((messages as u64).saturating_sub(1), Relaxed);
    sleep_until(arrives + link.config.message(true) * messages as u32);
}

/// Bytes that a request moves; a trim moves none.
fn data_len(io: &Io) -> u64 {
    if io.op == Op::Trim { 0 } else { io.len() as u64 }
}

struct Answers {
    ticket: Ticket,
    up: Vec<u64>,
    link: Arc<LinkModel>,
}

impl Completion for Answers {
    fn wait(&mut self, i: usize) -> Result<(), DeviceError> {
        self.ticket.wait(i)?;
        relay(&self.link, Direction::Up, self.up[i], 1);
        Ok(())
    }

    fn try_done(&mut self, _: usize) -> bool {
        // The answer sets out when it is waited for.
        false
    }

    fn abandon(&mut self) {
        // The inner ticket, dropped right after this, does it.
    }
}
