//! Messages between a host and a worker beside its data: frames, the client that has several requests outstanding, the
//! server with bounded concurrency and memory, and a device at the other end.
//!
//! One code over any [`Connection`]: a modelled link in a simulation, TCP on OS threads. What arrives is never trusted:
//! a frame that is too long, damaged, of another kind or number than it may be is answered with an error, and its
//! connection is closed.
//!
//! Layering: knows of bytes, devices and time; nothing of pages, keys or merges. What jobs are, the engine's module for
//! near-data merges knows ([`Handler`]).
//!
//! Modules, from below: `error fields op` · `frame metrics` · `connection facts failure handshakes tls` ·
//! `client tcp` · `session` · `blocks marks` · `remote` · `limits served` · `handler` · `worker`.

mod blocks;
mod client;
mod connection;
mod error;
mod facts;
mod failure;
mod fields;
mod frame;
mod handler;
mod handshakes;
mod limits;
mod marks;
pub mod metrics;
mod op;
mod remote;
mod served;
mod session;
pub mod tcp;
mod tls;
mod worker;

pub use client::{Client, Pending, Reply, Traffic};
pub use connection::{Connection, Connector};
pub use error::{FrameError, Refusal, WireError};
pub use facts::{Facts, Role};
pub use fields::{Fields, put_bytes};
pub use frame::{Decoder, FRAME_OVERHEAD, FROM_HOST, FROM_WORKER, Frame, HEAD, MAX_PAYLOAD, REFUSED, VERSION, encode};
pub use handler::{Handler, Request, Responder};
pub use limits::Limits;
pub use op::Op;
pub use remote::RemoteDevice;
pub use session::{ONE_TRY, Session, SessionOptions};
pub use tls::{KeyError, KeyFiles, Keys};
pub use worker::Worker;
