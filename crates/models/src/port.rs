//! Connections of hosts and workers over a modelled link: what TCP is between real ones.
//!
//! Bytes arrive in order and whole, in the time that the link takes. A connection that is closed is so at once on the
//! side that closes it, and on the other when what was sent before has arrived.
//!
//! Invariant: what is sent over an end that is closed, or to one, is never received.
//!
//! Lock order: every lock here is a leaf; nothing waits while holding one.

use crate::link::{Direction, LinkModel, PipeReceiver, PipeSender};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::channel::{Receiver, Sender, unbounded};
use varve_wire::{Connection, Connector};

/// Bytes that opening a connection takes in each direction.
const OPENING: u64 = 64;

/// One end of a connection.
struct PipeEnd {
    out: Mutex<Option<PipeSender<Vec<u8>>>>,
    from: PipeReceiver<Vec<u8>>,
    closed: AtomicBool,
    peer: Arc<str>,
}

impl PipeEnd {
    fn new(out: PipeSender<Vec<u8>>, from: PipeReceiver<Vec<u8>>, peer: &str) -> Arc<PipeEnd> {
        Arc::new(PipeEnd { out: Mutex::new(Some(out)), from, closed: AtomicBool::new(false), peer: peer.into() })
    }
}

impl Connection for PipeEnd {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        assert!(!bytes.is_empty(), "a message has bytes: an empty one would look like the end");
        let out = self.out.lock().clone();
        let sent = out.and_then(|out| out.send(bytes.to_vec(), bytes.len() as u64).ok());
        sent.ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "the other side has closed"))
    }

    fn recv(&self, into: &mut Vec<u8>) -> io::Result<bool> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let came = self.from.recv().filter(|_| !self.closed.load(Ordering::Acquire));
        into.extend_from_slice(came.as_deref().unwrap_or_default());
        Ok(came.is_some())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let out = self.out.lock().take();
        drop(out);
        assert!(self.closed.load(Ordering::Acquire), "an end that is closed stays so");
    }

    fn peer(&self) -> Arc<str> {
        self.peer.clone()
    }
}

/// Where workers listen at the far end of a link, and hosts connect to them.
pub struct Port {
    link: Arc<LinkModel>,
    name: Arc<str>,
    listener: Mutex<Option<Sender<Arc<dyn Connection>>>>,
    /// Ends that were handed out, to be cut.
    ends: Mutex<Vec<std::sync::Weak<PipeEnd>>>,
}

impl Port {
    /// A port of this name that nobody listens at yet.
    pub fn new(link: Arc<LinkModel>, name: impl Into<Arc<str>>) -> Arc<Port> {
        let name = name.into();
        assert!(!name.is_empty(), "messages name the port");
        Arc::new(Port { link, name, listener: Mutex::new(None), ends: Mutex::default() })
    }

    /// The link under it.
    pub fn link(&self) -> &Arc<LinkModel> {
        &self.link
    }

    /// Listens: connections come out of the receiver from now on, and out of no earlier one.
    pub fn listen(&self) -> Receiver<Arc<dyn Connection>> {
        let (sender, receiver) = unbounded();
        *self.listener.lock() = Some(sender);
        receiver
    }

    /// Nobody listens any more: connecting is refused.
    pub fn shut(&self) {
        let listener = self.listener.lock().take();
        drop(listener);
    }

    /// Cuts every connection at both ends: what is under way does not arrive.
    pub fn cut(&self) {
        let ends = std::mem::take(&mut *self.ends.lock());
        ends.iter().filter_map(std::sync::Weak::upgrade).for_each(|end| end.close());
    }
}

impl Connector for Port {
    fn connect(&self, _limit: Duration) -> io::Result<Arc<dyn Connection>> {
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there");
        self.link.transfer(Direction::Down, OPENING);
        self.link.transfer(Direction::Up, OPENING);
        let listener = self.listener.lock().clone().ok_or_else(refused)?;
        let (down, far_in) = self.link.pipe(Direction::Down, usize::MAX);
        let (up, near_in) = self.link.pipe(Direction::Up, usize::MAX);
        let (host, worker) = (PipeEnd::new(down, near_in, &self.name), PipeEnd::new(up, far_in, "a host"));
        {
            let mut ends = self.ends.lock();
            ends.retain(|end| end.strong_count() > 0);
            ends.extend([&host, &worker].map(Arc::downgrade));
        }
        listener.send(worker).map_err(|_| refused())?;
        Ok(host)
    }

    fn peer(&self) -> Arc<str> {
        self.name.clone()
    }
}
