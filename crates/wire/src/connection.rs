//! Connections: bytes in order, both ways. The one seam to what they travel over.

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// One end of a connection. Several threads may use it: one of them receives, and one at a time sends.
pub trait Connection: Send + Sync {
    /// Sends bytes, waiting while the way is full. After an error nothing more can be sent.
    fn send(&self, bytes: &[u8]) -> io::Result<()>;

    /// Appends what comes next, at least a byte, waiting for it; false when the other side has closed, or this one.
    fn recv(&self, into: &mut Vec<u8>) -> io::Result<bool>;

    /// Ends both ways. Whoever waits in `recv` or `send` at either end comes back. Never waits.
    fn close(&self);

    /// Who is at the other end, for messages.
    fn peer(&self) -> Arc<str>;
}

/// Makes connections to one worker.
pub trait Connector: Send + Sync {
    /// A new connection, waited for about so long at most, or why there is none.
    fn connect(&self, limit: Duration) -> io::Result<Arc<dyn Connection>>;

    /// Who is at the other end, for messages.
    fn peer(&self) -> Arc<str>;
}
