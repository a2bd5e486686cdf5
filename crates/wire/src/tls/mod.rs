//! Connections that are encrypted, between sides that know each other's certificate: TLS 1.3, by `rustls`.
//!
//! Each side has a private key with a certificate of its own, and the other's certificate in a file. No authority signs
//! them, no name and no date in them counts: a certificate is taken if it is, byte for byte, the one in the file, and
//! its holder proves by TLS to have the key. A build without the feature `tls` has none of it, and says so.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod present;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::Channel;
#[cfg(not(feature = "tls"))]
pub use absent::Keys;
#[cfg(feature = "tls")]
pub(crate) use present::Channel;
#[cfg(feature = "tls")]
pub use present::Keys;

use std::path::PathBuf;

/// Where the keys of one side are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// Its private key and its certificate, as `varve worker keygen` makes them; nobody but its owner may read it.
    pub key: PathBuf,
    /// The certificate of the other side.
    pub peer: PathBuf,
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read.
    #[error(
        "{}: {}; keys are made by `varve worker keygen FILE` on each side, and FILE.cert is copied to the other",
        .0.display(), .1
    )]
    Unreadable(PathBuf, String),
    /// Others may read the private key.
    #[error(
        "{file}: others than its owner may read this private key: `chmod 600 {file}`, or make a new one if somebody \
         may have read it", file = .0.display()
    )]
    Open(PathBuf),
    /// It does not hold a key and a certificate.
    #[error(
        "{}: not a certificate and its private key in PEM ({}); make one by `varve worker keygen`",
        .0.display(), .1
    )]
    NoKey(PathBuf, String),
    /// It does not hold the other side's certificate, and that alone.
    #[error("{}: not one certificate in PEM ({}); copy the other side's FILE.cert here", .0.display(), .1)]
    NoPeer(PathBuf, String),
    /// Built without it.
    #[error("this build has no TLS: build varve with its feature `tls`, or use a loopback address")]
    Absent,
}
