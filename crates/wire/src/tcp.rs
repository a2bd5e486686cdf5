//! Connections over TCP, on OS threads: the one place that knows of sockets.
//!
//! Whoever reaches the port of a connection in the clear reads and writes the device, so that only loopback addresses
//! are taken without keys. With keys ([`Keys`]) any address is.

use crate::connection::{Connection, Connector};
use crate::handshakes::Handshakes;
use crate::tls::{Channel, Keys};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_rt::{Condvar, Mutex};

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

/// How long bytes may find no room in a connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Handshakes at a time, of a listener.
const HANDSHAKES: usize = 32;

/// Of those who were sent away so many may not have gone yet. With more of them who comes waits until one has.
const GOING: usize = 32;

/// Over a connection on which nothing comes for so long the other side is asked whether it is still there, so often,
/// and after as many questions without an answer it is lost: a machine that lost power does not say so.
const SILENCE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 4);

/// Why an address is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is none.
    #[error("{0}: give an address as HOST:PORT, such as 127.0.0.1:7070 ({1})")]
    NotOne(String, String),
    /// It can be reached from other machines.
    #[error(
        "{0} is not a loopback address, and without keys a connection is neither encrypted nor authenticated: whoever \
         reaches it could read and write the whole device; make keys by `varve worker keygen` on both sides and give \
         --key and --peer (docs/near.md), or use 127.0.0.1 or [::1], and a tunnel (ssh -L) to another machine"
    )]
    NotLoopback(String),
}

/// The address of the text `HOST:PORT`; without keys only a loopback address is taken.
pub fn address(text: &str, keys: bool) -> Result<SocketAddr, AddressError> {
    let not_one = |why: String| AddressError::NotOne(text.into(), why);
    let mut found = text.to_socket_addrs().map_err(|e| not_one(e.to_string()))?;
    let address = found.next().ok_or_else(|| not_one("it stands for no address".into()))?;
    if keys || address.ip().is_loopback() && found.all(|other| other.ip().is_loopback()) {
        return Ok(address);
    }
    Err(AddressError::NotLoopback(text.into()))
}

fn on_threads() -> io::Result<()> {
    match varve_rt::in_simulation() {
        true => Err(io::Error::other("sockets are real and have no place in a simulation: use a modelled link")),
        false => Ok(()),
    }
}

/// A TCP connection.
struct Tcp {
    stream: TcpStream,
    peer: Arc<str>,
    closed: AtomicBool,
    /// `None`: in the clear.
    channel: Option<Channel>,
}

/// How connections behave that do not say so themselves.
fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (idle, pause, times) = SILENCE;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(pause).with_retries(times))?;
    // Elsewhere keep-alive alone finds out, while nothing is being sent.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PATIENCE))?;
    Ok(())
}

fn receive(mut stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<bool> {
    let before = into.len();
    into.resize(before + PIECE, 0);
    let read = loop {
        match stream.read(&mut into[before..]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    into.truncate(before + *read.as_ref().unwrap_or(&0));
    read.map(|n| n > 0)
}

impl Connection for Tcp {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = match &self.channel {
            None => (&self.stream).write_all(bytes),
            Some(channel) => channel.send(&self.stream, bytes),
        };
        sent.map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                io::Error::new(io::ErrorKind::TimedOut, "the other side has taken nothing for 30 s")
            }
            _ => e,
        })
    }

    fn recv(&self, into: &mut Vec<u8>) -> io::Result<bool> {
        let received = match &self.channel {
            None => receive(&self.stream, into),
            Some(channel) => channel.recv(&self.stream, into),
        };
        match received {
            Err(_) if self.closed.load(Ordering::Acquire) => Ok(false),
            received => received,
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Fails where the other side was quicker.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn peer(&self) -> Arc<str> {
        self.peer.clone()
    }
}

/// Connects to a worker.
pub struct TcpConnector {
    address: SocketAddr,
    name: Arc<str>,
    keys: Option<Arc<Keys>>,
}

impl TcpConnector {
    /// To the worker at `HOST:PORT`, a loopback address if there are no keys.
    pub fn new(text: &str, keys: Option<Arc<Keys>>) -> Result<Arc<TcpConnector>, AddressError> {
        let address = address(text, keys.is_some())?;
        if address.port() == 0 {
            return Err(AddressError::NotOne(text.into(), "port 0 stands for any".into()));
        }
        Ok(Arc::new(TcpConnector { address, name: format!("remote:{text}").into(), keys }))
    }
}

impl Connector for TcpConnector {
    fn connect(&self, limit: Duration) -> io::Result<Arc<dyn Connection>> {
        on_threads()?;
        let stream = TcpStream::connect_timeout(&self.address, limit)?;
        set_up(&stream)?;
        let handshake = HANDSHAKE.min(limit);
        let channel = self.keys.as_ref().map(|keys| keys.connect(&stream, handshake)).transpose()?;
        Ok(Arc::new(Tcp { stream, peer: self.name.clone(), closed: AtomicBool::new(false), channel }))
    }

    fn peer(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// Somebody who connected, and is not known yet.
pub struct Incoming {
    stream: TcpStream,
    from: SocketAddr,
    keys: Option<Arc<Keys>>,
    /// Its place among those who are not known yet.
    number: u64,
    unknown: Arc<Unknown>,
}

/// Who is not known yet, of a listener.
struct Unknown {
    places: Handshakes<TcpStream>,
    /// How many there are, those included who lost their place.
    all: Mutex<usize>,
    /// There is one less, or the listener is closed.
    fewer: Condvar,
}

impl Incoming {
    /// From where.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// The connection, after the handshake if there are keys. Waits for the other side for some seconds at most, or
    /// until others want its place; an error says why it is not taken.
    pub fn establish(self) -> io::Result<Arc<dyn Connection>> {
        set_up(&self.stream)?;
        let channel = self.keys.as_ref().map(|keys| keys.accept(&self.stream, HANDSHAKE)).transpose();
        if !self.unknown.places.go(self.number) {
            let why = format!("{HANDSHAKES} others came while its handshake was not done: it has to try again");
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        let channel = channel?;
        let stream = self.stream.try_clone()?;
        Ok(Arc::new(Tcp { stream, peer: self.from.to_string().into(), closed: AtomicBool::new(false), channel }))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.unknown.places.go(self.number);
        *self.unknown.all.lock() -= 1;
        self.unknown.fewer.notify_all();
    }
}

/// Takes connections.
pub struct Listener {
    listener: TcpListener,
    keys: Option<Arc<Keys>>,
    closed: AtomicBool,
    unknown: Arc<Unknown>,
}

impl Listener {
    /// At an address, a loopback one if there are no keys; port 0 stands for any that is free.
    pub fn bind(address: SocketAddr, keys: Option<Arc<Keys>>) -> io::Result<Arc<Listener>> {
        on_threads()?;
        assert!(keys.is_some() || address.ip().is_loopback(), "others are refused where the address is read");
        let (listener, closed) = (TcpListener::bind(address)?, AtomicBool::new(false));
        let unknown = Unknown { places: Handshakes::new(HANDSHAKES), all: Mutex::new(0), fewer: Condvar::new() };
        Ok(Arc::new(Listener { listener, keys, closed, unknown: Arc::new(unknown) }))
    }

    /// The address with its port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next who connects; `None` after [`Listener::close`]. If too many are not known yet, one of them has to go.
    pub fn accept(&self) -> io::Result<Option<Incoming>> {
        loop {
            let accepted = self.listener.accept();
            if self.closed.load(Ordering::Acquire) {
                return Ok(None);
            }
            match accepted {
                Ok((stream, from)) => {
                    let copy = stream.try_clone()?;
                    // Who was sent away goes as soon as its thread gets to run.
                    let mut all = self.unknown.all.lock();
                    let full = |all: &mut usize| *all >= HANDSHAKES + GOING && !self.closed.load(Ordering::Acquire);
                    self.unknown.fewer.wait_while(&mut all, full);
                    if self.closed.load(Ordering::Acquire) {
                        return Ok(None);
                    }
                    *all += 1;
                    drop(all);
                    let (number, goes) = self.unknown.places.come(from.ip(), copy);
                    // Whoever waits for it finds its end.
                    goes.map(|stream| stream.shutdown(Shutdown::Both));
                    let (keys, unknown) = (self.keys.clone(), self.unknown.clone());
                    return Ok(Some(Incoming { stream, from, keys, number, unknown }));
                }
                // The other side gave up meanwhile.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes no more; whoever waits in [`Listener::accept`] comes back.
    pub fn close(&self) {
        {
            let _all = self.unknown.all.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.unknown.fewer.notify_all();
        if let Ok(mut at) = self.address() {
            if at.ip().is_unspecified() {
                at.set_ip(IpAddr::from([127, 0, 0, 1]));
            }
            // Wakes it.
            let _ = TcpStream::connect_timeout(&at, Duration::from_secs(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};

    #[test]
    fn only_loopback_addresses_are_taken() {
        assert!(address("127.0.0.1:7070", false).is_ok() && address("[::1]:0", false).is_ok());
        for far in ["0.0.0.0:7070", "192.168.1.2:7070", "[::]:1"] {
            assert_eq!(address(far, false), Err(AddressError::NotLoopback(far.into())));
            assert!(address(far, true).is_ok(), "{far}");
        }
        for none in ["", "127.0.0.1", ":7070", "127.0.0.1:99999", "no port:x"] {
            assert!(matches!(address(none, true), Err(AddressError::NotOne(..))), "{none}");
        }
        assert!(TcpConnector::new("127.0.0.1:0", None).is_err());
    }

    /// Connects from one of the addresses that a machine has for itself.
    fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    }

    #[test]
    fn who_connects_and_says_nothing_keeps_nobody_out() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let at = listener.address().unwrap();
        let come = |from| (connect_from(from, at), listener.accept().unwrap().unwrap());
        let slow = come([127, 0, 0, 2]);
        let mut idle: Vec<_> = (0..HANDSHAKES + GOING - 2).map(|_| come([127, 0, 0, 1])).collect();
        // The idle ones before lost their places to those after them, and are told.
        let (mut first, incoming) = idle.remove(0);
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        assert_eq!(incoming.establish().err().map(|e| e.kind()), Some(io::ErrorKind::ConnectionAborted));
        // Who comes is taken, and who needs its time has it.
        for (mut stream, incoming) in [come([127, 0, 0, 3]), slow] {
            incoming.establish().unwrap().send(b"!").unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 1);
        }
        let (last, _) = idle.last_mut().unwrap();
        last.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(last.read(&mut [0]).is_err(), "the newest have theirs");
        // Sent away is not gone: until they are nobody else is taken.
        assert_eq!(*listener.unknown.all.lock(), HANDSHAKES + GOING - 3);
        idle.extend((0..3).map(|_| come([127, 0, 0, 1])));
        let late = connect_from([127, 0, 0, 4], at);
        let listening = listener.clone();
        let taken = varve_rt::spawn("accepts", move || listening.accept().unwrap().unwrap().from());
        varve_rt::sleep(Duration::from_millis(20));
        assert!(!taken.is_finished(), "it waits");
        drop(idle);
        assert_eq!(taken.join().unwrap(), late.local_addr().unwrap());
        assert_eq!(*listener.unknown.all.lock(), 0);
    }
}
