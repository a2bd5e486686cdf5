//! SIGKILL torture: a child process runs concurrent transfers on a real directory and reports each acknowledged commit
//! over a pipe; it is killed at a random moment; the database is opened again, and every acknowledged commit must be
//! there, no transaction half there, and the structure sound.
//!
//! A killed process loses its memory, not what it gave to the operating system: this does not test flushes. The crash
//! simulation ([`crate::sim`]) does.
//!
//! [`run`] is the parent. It starts [`Command`]s of the caller's choice that must end up in [`child_main`], which takes
//! its orders as JSON on standard input.

mod big_log;
mod child;
mod drives;
mod ledger;
mod parent;
mod worker;

pub use crate::child::Command;
pub use big_log::{BigLogOptions, BigLogReport, big_log};
pub use child::child_main;
pub use parent::{TortureOptions, TortureProgress, TortureReport, run};

/// Why a torture ended early.
#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    /// The database did wrong: the finding the torture looks for.
    #[error("wrong: {0}; keep the directory, it is the evidence")]
    Wrong(String),
    /// `check` found damage after a kill.
    #[error("check found damage after a kill: {0}; keep the directory, it is the evidence")]
    Damage(String),
    /// The database could not be opened or used.
    #[error("database: {0}")]
    Db(#[from] varve::Error),
    /// The directory holds something else.
    #[error("{0}")]
    Foreign(String),
    /// The child process could not be started, or ended in a way that no kill explains.
    #[error("child process: {0}; run the child's command by hand to see its messages")]
    Child(String),
}
