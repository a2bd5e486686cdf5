//! What can go wrong between a host and a worker.

use std::sync::Arc;
use std::time::Duration;
use varve_device::DeviceError;

/// Why bytes are no frame. The connection they came over is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// More bytes than a frame may have.
    #[error("a frame of {length} bytes came, at most {most} are taken")]
    TooLong {
        /// Bytes of payload that it announces.
        length: u32,
        /// The most that is taken.
        most: u32,
    },
    /// It does not have what every payload begins with.
    #[error("a frame without version and number came")]
    TooShort,
    /// The checksum is another one.
    #[error("a frame with a wrong checksum came")]
    Damaged,
    /// A host's frame came where a worker's was expected, or the other way round.
    #[error("a frame of type {0:#04x} came from the other side")]
    Type(u8),
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// Why the other side did not do what it was asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Refusal { $($(#[$doc])* $variant = $code,)* }

        impl Refusal {
            /// The refusal of this number; one that is not known counts as [`Refusal::Failed`].
            pub fn of(code: u16) -> Refusal {
                match code { $($code => Refusal::$variant,)* _ => Refusal::Failed }
            }
        }
    };
}

refusals! {
    /// What came was no frame. The connection is closed.
    Frame = 1,
    /// The sides do not speak the same version. The connection is closed.
    Version = 2,
    /// The op is not known. The connection is closed.
    UnknownOp = 3,
    /// The number of the request was there before. The connection is closed.
    Replayed = 4,
    /// No hello came before. The connection is closed.
    NoHello = 5,
    /// More requests are outstanding than the worker takes. The connection is closed.
    TooMany = 6,
    /// Another host uses the device.
    InUse = 7,
    /// What follows the head of the payload is not what the op needs.
    Malformed = 8,
    /// The device failed; the message holds its error.
    Device = 9,
    /// The op is known, and nobody there does such a thing.
    Unsupported = 10,
    /// A job's own refusal.
    Job = 11,
    /// It failed for another reason.
    Failed = 12,
    /// The job is of another attachment: the worker was started anew, or another host took it.
    Detached = 13,
}

impl Refusal {
    /// Whether whoever sends it closes the connection.
    pub fn closes(self) -> bool {
        use Refusal::*;
        matches!(self, Frame | Version | UnknownOp | Replayed | NoHello | TooMany)
    }
}

/// Why a request has no answer, or a bad one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There is no connection, or not any more. Whether the request was done is not known.
    #[error("no connection to {peer}: {why}; see that the worker runs there and is reached")]
    Lost {
        /// Who.
        peer: Arc<str>,
        /// Why not.
        why: Arc<str>,
    },
    /// No answer came in time. Whether the request was done, or will be, is not known.
    #[error("{peer} did not answer within {} ms: see whether it hangs, or allow more time", after.as_millis())]
    Timeout {
        /// Who.
        peer: Arc<str>,
        /// How long was waited.
        after: Duration,
    },
    /// The other side says no.
    #[error("{peer} refused: {why}")]
    Refused {
        /// Who.
        peer: Arc<str>,
        /// What kind of refusal.
        refusal: Refusal,
        /// In words.
        why: Arc<str>,
    },
    /// The worker was started anew, and what it has now is not what it had.
    #[error("{peer} is not used any more: {why}")]
    Changed {
        /// Who.
        peer: Arc<str>,
        /// What is not as it was.
        why: Arc<str>,
    },
    /// The device at the other side failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An answer came that is none.
    #[error("{peer} answered what is no answer: {why}; is it a worker of this version?")]
    Garbage {
        /// Who.
        peer: Arc<str>,
        /// What is wrong with it.
        why: Arc<str>,
    },
}
