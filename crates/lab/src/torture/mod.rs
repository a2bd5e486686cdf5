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
mod ledger;
mod parent;

pub use big_log::{BigLogOptions, BigLogReport, big_log};
pub use child::child_main;
pub use parent::{TortureOptions, TortureProgress, TortureReport, run};

use std::process::Stdio;

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

/// How a child process that runs [`child_main`] is started.
#[derive(Clone, Debug)]
pub struct Command {
    /// The executable.
    pub program: std::path::PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to its environment: name, value.
    pub env: Vec<(String, String)>,
}

impl Command {
    /// The current executable, with these arguments.
    ///
    /// # Errors
    /// [`TortureError::Child`] when the operating system does not tell the executable's path.
    pub fn current(args: &[&str]) -> Result<Command, TortureError> {
        let program = std::env::current_exe().map_err(|e| TortureError::Child(e.to_string()))?;
        Ok(Command { program, args: args.iter().map(|a| a.to_string()).collect(), env: Vec::new() })
    }

    /// The same with one more variable in its environment.
    pub fn with_env(mut self, name: &str, value: &str) -> Command {
        self.env.push((name.to_string(), value.to_string()));
        self
    }

    /// The process to be spawned, its input and output piped.
    pub(crate) fn piped(&self) -> std::process::Command {
        let mut process = std::process::Command::new(&self.program);
        process.args(&self.args).envs(self.env.iter().cloned());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        process
    }
}
