//! The worker of a torture: a process of its own that has the pages, and is killed like the database's.

use super::TortureError;
use crate::child::Command;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Between two tries to start it where the one before listened.
const PAUSE: Duration = Duration::from_millis(20);
/// Tries.
const TRIES: u32 = 250;

/// A worker that is started again where it was whenever it is asked for and does not run. Dropped, it is killed.
pub(super) struct Worker {
    command: Command,
    data: PathBuf,
    /// Where it listens, once that is known.
    at: String,
    process: Option<Child>,
}

impl Worker {
    /// Starts a worker over the file `data`, where the database in `dir` looks for it, or on a port that is free.
    /// `command`, with `--listen ADDRESS --data PATH` behind it, becomes it; its first line says where it listens.
    pub(super) fn start(command: &Command, data: &Path, dir: &Path) -> Result<Worker, TortureError> {
        let (command, data) = (command.clone(), data.to_path_buf());
        let named = std::fs::read_to_string(dir.join("remote")).ok();
        let named = named.and_then(|text| Some(text.lines().nth(1)?.to_string()));
        let mut worker = Worker { command, data, at: named.unwrap_or("127.0.0.1:0".into()), process: None };
        worker.ensure()?;
        Ok(worker)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> &str {
        &self.at
    }

    /// Starts it, if it does not run.
    pub(super) fn ensure(&mut self) -> Result<(), TortureError> {
        if self.process.is_some() {
            return Ok(());
        }
        let mut told = String::new();
        for _ in 0..TRIES {
            let mut command = self.command.piped();
            command.args(["--listen", &self.at, "--data"]).arg(&self.data);
            let mut process = command.spawn().map_err(|e| failed(&e))?;
            let stdout = process.stdout.take().expect("piped");
            told.clear();
            // It says nothing after that.
            BufReader::new(stdout).read_line(&mut told).map_err(|e| failed(&e))?;
            if let Some(at) = told.trim().rsplit(' ').next().filter(|at| at.contains(':')) {
                self.at = at.to_string();
                self.process = Some(process);
                return Ok(());
            }
            let _ = process.kill();
            process.wait().map_err(|e| failed(&e))?;
            // The port of a process that was killed may not be free yet.
            varve_rt::sleep(PAUSE);
        }
        Err(TortureError::Child(format!("the worker does not start: {told}")))
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<(), TortureError> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.kill().and_then(|()| process.wait()).map_err(|e| failed(&e))?;
        Ok(())
    }
}

fn failed(e: &std::io::Error) -> TortureError {
    TortureError::Child(format!("worker: {e}"))
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
