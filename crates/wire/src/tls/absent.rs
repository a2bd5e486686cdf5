//! What a build without TLS has: nothing that could be made.

use super::{KeyError, KeyFiles};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Keys of one side; there are none in this build.
pub enum Keys {}

impl Keys {
    /// Refused: this build has no TLS.
    pub fn read(_: &KeyFiles) -> Result<Arc<Keys>, KeyError> {
        Err(KeyError::Absent)
    }

    pub(crate) fn connect(&self, _: &TcpStream, _: Duration) -> io::Result<Channel> {
        match *self {}
    }

    pub(crate) fn accept(&self, _: &TcpStream, _: Duration) -> io::Result<Channel> {
        match *self {}
    }
}

/// An encrypted connection; there is none.
pub(crate) enum Channel {}

impl Channel {
    pub(crate) fn send(&self, _: &TcpStream, _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn recv(&self, _: &TcpStream, _: &mut Vec<u8>) -> io::Result<bool> {
        match *self {}
    }
}
