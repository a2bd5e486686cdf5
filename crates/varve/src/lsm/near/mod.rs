//! Merges near the data: parts of merges are done by a *worker*, a machine or a drive that reaches the data device
//! without the host's link. After Co-KV (2018) and CoPro (Sun and others, 2022); specification: `docs/near.md`.
//!
//! The host plans a merge, cuts its keys in two, sets pages aside for the worker's outputs, and sends the worker a
//! [`Job`]: all that it must know. It merges its own part meanwhile. The worker writes on the pages that were set aside
//! and nowhere else, makes them durable, and answers. The host looks at what came, and lists the outputs of both parts
//! by one group of the log. Whatever goes wrong with the worker, the host does that part itself.
//!
//! A job that is cut off in the middle is taken up: the worker says which outputs are finished as it goes, and what a
//! worker that is gone had finished the host looks at, whole, and goes on from there.
//!
//! What is never linked is free: so nothing that a worker does, or leaves half done, changes what a database holds.
//! Only pages that a worker may still be writing to must not be given to anybody else. So whoever reports that a job
//! has ended promises that nothing more is written for it ([`Progress`]), and an opening of the database waits in
//! [`Near::attach`] until the jobs of earlier ones have ended.
//!
//! Pure parts: `bytes`, `job`, `decision`, `share`. A worker knows a device, and none of a database: `serve`, `worker`.
//! The host's side is `host`, and what ties it to the engine `lsm/offload.rs`.

mod bytes;
mod decision;
mod host;
mod job;
#[cfg(feature = "near")]
mod machine;
mod serve;
mod share;
#[cfg(feature = "near")]
mod wire;
mod worker;

pub use decision::{DecisionOptions, Mode};
pub(crate) use host::{Fallback, Host, Offer, merges_near};
pub use host::{Fallbacks, NearOptions, NearStats, SideStats};
pub(crate) use job::Part;
pub(crate) use job::{Job, Pages};
#[cfg(feature = "near")]
pub use machine::this_machine;
pub use share::Load;
pub(crate) use share::ShareRule;
#[cfg(feature = "near")]
pub use wire::{JobService, RemoteWorker};
pub use worker::{Worker, WorkerOptions};
#[cfg(feature = "testing")]
pub(crate) use {bytes::Kind, bytes::seal, job::Answer, job::examples};

use std::time::Duration;

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It waits, or is under way, or nobody knows.
    Running,
    /// It is under way, and more of it is finished than when it was asked for before: this much.
    Further(Vec<u8>),
    /// It has ended with this answer. Nothing more is written for it.
    Ended(Vec<u8>),
    /// There will be no answer, and this is why. Nothing more is written for it, and it does not begin later.
    Lost(String),
}

/// Why a job did not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotStarted {
    /// It is of another attachment: the worker was started anew, or another host took it. It never begins.
    Detached(String),
    /// For another reason. Whether it begins nobody knows.
    Refused(String),
}

/// A worker, as a host reaches it: in the same process, or behind a wire.
///
/// Jobs and answers are bytes with a version and a checksum (`docs/format.md`). Errors are sentences for a report: the
/// host does the work itself then.
pub trait Near: Send + Sync {
    /// A host begins to use the worker: when this returns, the jobs that came before have ended, and none of them
    /// begins any more. Returns the number of the attachment, which its jobs bear; no two are the same.
    fn attach(&self) -> Result<u64, String>;

    /// Begins a job of this number, or puts it in the queue. Numbers ascend within an attachment.
    fn start(&self, id: u64, job: &[u8]) -> Result<(), NotStarted>;

    /// Waits at most so long for the end of a job. An answer is given once.
    fn wait(&self, id: u64, most: Duration) -> Progress;

    /// The job's answer is not wanted any more: it ends as soon as can be. It has ended when [`Near::wait`] says so.
    fn cancel(&self, id: u64);

    /// What the worker has to work with. May be a little old.
    fn load(&self) -> Load;

    /// What went over the connection to it, if there is one. Waits for nothing.
    fn link(&self) -> Option<LinkUse> {
        None
    }

    /// What became of jobs, where the worker is; zeros elsewhere.
    fn jobs(&self) -> Jobs {
        Jobs::default()
    }
}

/// What went over the connection to a worker, with all that belongs to its messages but encryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Requests sent.
    pub requests: u64,
    /// Bytes sent to the worker.
    pub sent: u64,
    /// Bytes that came from it.
    pub received: u64,
}

/// What became of a worker's jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Times that a host began to use it.
    pub attachments: u64,
    /// Jobs that wait for their turn.
    pub waiting: u64,
    /// Jobs that run.
    pub running: u64,
    /// Jobs done so far.
    pub done: u64,
    /// Jobs that failed, or were given up.
    pub failed: u64,
    /// Bytes of blocks that jobs read.
    pub read: u64,
    /// Bytes of pages that they wrote.
    pub written: u64,
}
