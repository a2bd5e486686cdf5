//! Child processes: the second half of a simulation's seeds, the victim of a torture.

use std::process::Stdio;

/// How a child process is started.
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
    /// The operating system does not tell the executable's path.
    pub fn current(args: &[&str]) -> std::io::Result<Command> {
        let program = std::env::current_exe()?;
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
