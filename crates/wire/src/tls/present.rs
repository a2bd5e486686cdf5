//! Keys, handshakes and encrypted connections.
//!
//! A handshake reads and writes the socket in turn, on one thread, within a limit. After it one thread receives and one
//! at a time sends; they share the state of the connection, under a lock that is never held while the socket is waited
//! for. What TLS itself has to send later (answers to key updates) goes out with the next bytes that are sent.

use super::{KeyError, KeyFiles};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection as Tls, DigitallySignedStruct,
    DistinguishedName, Error, PeerMisbehaved, ServerConfig, ServerConnection, SignatureScheme,
};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve_rt::{Instant, Mutex, now};

/// Bytes of one receive, and of what is encrypted at a time.
const PIECE: usize = 64 << 10;
/// A file of keys has no more bytes.
const MOST: u64 = 1 << 20;
/// Bits of a mode by which others may read, write or run.
const OTHERS: u32 = 0o077;
/// How long the last words of a failed handshake may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What one side shows, and what it expects of the other.
pub struct Keys {
    files: KeyFiles,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Keys {
    /// Reads the keys; an error says what is wrong with which file.
    pub fn read(files: &KeyFiles) -> Result<Arc<Keys>, KeyError> {
        let own = read(&files.key, true)?;
        let bad = |why: String| KeyError::NoKey(files.key.clone(), why);
        let certificate = CertificateDer::from_pem_slice(&own).map_err(|e| bad(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(&own).map_err(|e| bad(e.to_string()))?;
        let peer = peer(&files.peer)?;
        if peer == certificate {
            let why = format!("it is the certificate of {}, this side's own", files.key.display());
            return Err(KeyError::NoPeer(files.peer.clone(), why));
        }
        let provider = Arc::new(ring::default_provider());
        let pinned = Arc::new(Pinned { peer, provider: provider.clone() });
        let failed = |e: Error| bad(e.to_string());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(pinned.clone())
            .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
            .map_err(failed)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(pinned)
            .with_single_cert(vec![certificate], key)
            .map_err(failed)?;
        server.send_tls13_tickets = 0;
        Ok(Arc::new(Keys { files: files.clone(), client: Arc::new(client), server: Arc::new(server) }))
    }

    /// The handshake of who connects.
    pub(crate) fn connect(&self, stream: &TcpStream, limit: Duration) -> io::Result<Channel> {
        let name = ServerName::try_from("worker").expect("a name");
        let tls = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        self.shake(tls.into(), stream, limit)
    }

    /// The handshake of who is connected to.
    pub(crate) fn accept(&self, stream: &TcpStream, limit: Duration) -> io::Result<Channel> {
        let tls = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        self.shake(tls.into(), stream, limit)
    }

    fn shake(&self, mut tls: Tls, stream: &TcpStream, limit: Duration) -> io::Result<Channel> {
        let mut timed = Timed { stream, until: now() + limit };
        if let Err(e) = tls.complete_io(&mut timed) {
            part(stream);
            return Err(explain(&self.files, e));
        }
        stream.set_read_timeout(None)?;
        Ok(Channel { tls: Mutex::new(tls), files: self.files.clone() })
    }
}

/// The bytes of a file of keys.
fn read(path: &Path, private: bool) -> Result<Vec<u8>, KeyError> {
    let unreadable = |e: io::Error| KeyError::Unreadable(path.into(), e.to_string());
    // A pipe would be waited for.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(KeyError::Unreadable(path.into(), "it is not a file".into()));
    }
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if private && mode & OTHERS != 0 {
        return Err(KeyError::Open(path.into()));
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The one certificate of a file.
fn peer(path: &Path) -> Result<CertificateDer<'static>, KeyError> {
    let bytes = read(path, false)?;
    let bad = |why: String| KeyError::NoPeer(path.into(), why);
    if PrivateKeyDer::from_pem_slice(&bytes).is_ok() {
        return Err(bad("it holds a private key, which belongs to one side only".into()));
    }
    let mut found = CertificateDer::pem_slice_iter(&bytes);
    let first = found.next().ok_or_else(|| bad("there is none".into()))?.map_err(|e| bad(e.to_string()))?;
    match found.next() {
        None => Ok(first),
        Some(_) => Err(bad("there are several".into())),
    }
}

/// Takes one certificate only.
#[derive(Debug)]
struct Pinned {
    peer: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match *shown == self.peer {
            true => Ok(()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn signed(
        &self,
        message: &[u8],
        by: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, by, signature, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// No version before 1.3 is spoken, so nothing is signed by its rules.
fn too_old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme))
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        by: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, by, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        by: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, by, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// A socket that is waited for until a moment, however slowly bytes come.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let now = now();
        match now < self.until {
            true => Ok(Some(self.until.duration_since(now))),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => e,
        })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a connection whose handshake failed. What the other side has sent is read first: a socket that is closed with
/// unread bytes is reset, and takes with it the alert that says why.
fn part(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let timed = Timed { stream, until: now() + LAST_WORDS };
    let _ = io::copy(&mut Read::take(timed, MOST), &mut io::sink());
}

/// An encrypted connection.
pub(crate) struct Channel {
    tls: Mutex<Tls>,
    files: KeyFiles,
}

impl Channel {
    /// As [`Connection::send`](crate::Connection::send).
    pub(crate) fn send(&self, mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        let mut sealed = Vec::new();
        while !bytes.is_empty() {
            sealed.clear();
            {
                let mut tls = self.tls.lock();
                let taken = tls.writer().write(&bytes[..bytes.len().min(PIECE)])?;
                if taken == 0 {
                    return Err(ErrorKind::WriteZero.into());
                }
                bytes = &bytes[taken..];
                while tls.wants_write() {
                    tls.write_tls(&mut sealed)?;
                }
            }
            stream.write_all(&sealed)?;
        }
        Ok(())
    }

    /// As [`Connection::recv`](crate::Connection::recv).
    pub(crate) fn recv(&self, mut stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<bool> {
        let before = into.len();
        // What came with the end of the handshake.
        let mut open = self.take(&[], into)?;
        let mut piece = Vec::new();
        while open && into.len() == before {
            piece.resize(PIECE, 0);
            match stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(n) => open = self.take(&piece[..n], into)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(into.len() > before)
    }

    /// Decrypts bytes that came; false if the other side has said that no more will.
    fn take(&self, mut bytes: &[u8], into: &mut Vec<u8>) -> io::Result<bool> {
        let mut tls = self.tls.lock();
        loop {
            if !bytes.is_empty() {
                tls.read_tls(&mut bytes)?;
            }
            let state = tls.process_new_packets().map_err(|e| explain(&self.files, io::Error::other(e)))?;
            let (at, n) = (into.len(), state.plaintext_bytes_to_read());
            into.resize(at + n, 0);
            tls.reader().read_exact(&mut into[at..])?;
            if bytes.is_empty() {
                return Ok(!state.peer_has_closed());
            }
        }
    }
}

/// An error of TLS in words that say what to do.
fn explain(files: &KeyFiles, e: io::Error) -> io::Error {
    use AlertDescription::*;
    let (key, peer) = (files.key.display(), files.peer.display());
    let what = match e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(_)) => format!(
            "it shows another certificate than {peer}: copy the other side's certificate there if its key is new; if \
             not, somebody else is at the other end"
        ),
        Some(Error::AlertReceived(
            AccessDenied | BadCertificate | CertificateUnknown | UnknownCA | UnsupportedCertificate | DecryptError,
        )) => format!(
            "it does not take this side's certificate: copy the one of {key} ({key}.cert) to it, and give it that by \
             --peer"
        ),
        Some(Error::NoCertificatesPresented) => "it shows no certificate: give it --key and --peer".into(),
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. }) => {
            "it does not speak TLS: give --key and --peer to both sides".into()
        }
        Some(other) => format!("TLS failed: {other}"),
        None => match e.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                format!("it closed the connection in the TLS handshake: see that it has --key, and --peer {key}.cert")
            }
            ErrorKind::TimedOut => "it did not finish the TLS handshake in time".into(),
            _ => return e,
        },
    };
    io::Error::new(ErrorKind::InvalidData, what)
}
