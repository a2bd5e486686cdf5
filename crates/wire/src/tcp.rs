//! Connections over TCP, on OS threads: the one place that knows of sockets.
//!
//! Nothing here encrypts, so only loopback addresses are taken: whoever reaches the port reads and writes the device.

use crate::connection::{Connection, Connector};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use varve_rt::atomic::{AtomicBool, Ordering};

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

/// How long a connection is waited for, and how long bytes may find no room in it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why an address is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is none.
    #[error("{0}: give an address as HOST:PORT, such as 127.0.0.1:7070 ({1})")]
    NotOne(String, String),
    /// It can be reached from other machines.
    #[error(
        "{0} is not a loopback address: the connection is neither encrypted nor authenticated, so whoever reaches it \
         could read and write the whole device; use 127.0.0.1 or [::1], and a tunnel (ssh -L) to another machine"
    )]
    NotLoopback(String),
}

/// A loopback address of the text `HOST:PORT`; others are refused.
pub fn loopback(text: &str) -> Result<SocketAddr, AddressError> {
    let not_one = |why: String| AddressError::NotOne(text.into(), why);
    let mut found = text.to_socket_addrs().map_err(|e| not_one(e.to_string()))?;
    let address = found.next().ok_or_else(|| not_one("it stands for no address".into()))?;
    if address.ip().is_loopback() && found.all(|other| other.ip().is_loopback()) {
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
}

impl Tcp {
    fn over(stream: TcpStream, peer: Arc<str>) -> io::Result<Arc<dyn Connection>> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Arc::new(Tcp { stream, peer, closed: AtomicBool::new(false) }))
    }
}

impl Connection for Tcp {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                io::Error::new(io::ErrorKind::TimedOut, "the other side has taken nothing for 30 s")
            }
            _ => e,
        })
    }

    fn recv(&self, into: &mut Vec<u8>) -> io::Result<bool> {
        let before = into.len();
        into.resize(before + PIECE, 0);
        let read = loop {
            match (&self.stream).read(&mut into[before..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        into.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(n) => Ok(n > 0),
            Err(_) if self.closed.load(Ordering::Acquire) => Ok(false),
            Err(e) => Err(e),
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
}

impl TcpConnector {
    /// To the worker at a loopback address `HOST:PORT`.
    pub fn new(text: &str) -> Result<Arc<TcpConnector>, AddressError> {
        let address = loopback(text)?;
        if address.port() == 0 {
            return Err(AddressError::NotOne(text.into(), "port 0 stands for any".into()));
        }
        Ok(Arc::new(TcpConnector { address, name: format!("remote:{text}").into() }))
    }
}

impl Connector for TcpConnector {
    fn connect(&self) -> io::Result<Arc<dyn Connection>> {
        on_threads()?;
        Tcp::over(TcpStream::connect_timeout(&self.address, PATIENCE)?, self.name.clone())
    }

    fn peer(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// Takes connections.
pub struct Listener {
    listener: TcpListener,
    closed: AtomicBool,
}

impl Listener {
    /// At a loopback address; port 0 stands for any that is free.
    pub fn bind(address: SocketAddr) -> io::Result<Arc<Listener>> {
        on_threads()?;
        assert!(address.ip().is_loopback(), "others are refused where the address is read");
        Ok(Arc::new(Listener { listener: TcpListener::bind(address)?, closed: AtomicBool::new(false) }))
    }

    /// The address with its port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection; `None` after [`Listener::close`].
    pub fn accept(&self) -> io::Result<Option<Arc<dyn Connection>>> {
        loop {
            let accepted = self.listener.accept();
            if self.closed.load(Ordering::Acquire) {
                return Ok(None);
            }
            match accepted {
                Ok((stream, from)) => return Tcp::over(stream, from.to_string().into()).map(Some),
                // The other side gave up meanwhile.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes no more; whoever waits in [`Listener::accept`] comes back.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
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

    #[test]
    fn only_loopback_addresses_are_taken() {
        assert!(loopback("127.0.0.1:7070").is_ok() && loopback("[::1]:0").is_ok());
        for far in ["0.0.0.0:7070", "192.168.1.2:7070", "[::]:1"] {
            assert_eq!(loopback(far), Err(AddressError::NotLoopback(far.into())));
        }
        for none in ["", "127.0.0.1", ":7070", "127.0.0.1:99999", "no port:x"] {
            assert!(matches!(loopback(none), Err(AddressError::NotOne(..))), "{none}");
        }
        assert!(TcpConnector::new("127.0.0.1:0").is_err());
    }
}
