//! A worker as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A worker that runs; killed when it is dropped.
pub struct Serves {
    process: Child,
    /// Where it listens.
    pub at: String,
}

impl Serves {
    /// One that owns `data`, and has said where it listens.
    pub fn start(data: &str, listen: &str, more: &[&str]) -> Serves {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
        command.args(["worker", "--listen", listen, "--data", data, "--buffered"]).args(more);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the command runs");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let at = line.trim().rsplit(' ').next().expect("an address").to_string();
        assert!(line.starts_with("serves "), "{line}");
        Serves { process, at }
    }
}

impl Drop for Serves {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
