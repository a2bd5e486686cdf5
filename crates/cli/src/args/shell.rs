//! Arguments of `shell`, and the commands that are typed in it.

use super::Place;
use clap::{Args, Parser, Subcommand};

/// `shell`
#[derive(Debug, Args)]
pub struct Shell {
    #[command(flatten)]
    pub place: Place,
    /// Open for reading only: no command that writes.
    #[arg(long)]
    pub read_only: bool,
}

/// What is typed in the shell.
#[derive(Debug, Parser)]
#[command(
    no_binary_name = true,
    name = "",
    disable_help_flag = true,
    disable_help_subcommand = true,
    arg_required_else_help = false,
    override_usage = "COMMAND [WORD]...",
    help_template = "{subcommands}{after-help}",
    after_help = RULES
)]
pub struct Line {
    #[command(subcommand)]
    pub command: LineCommand,
}

const RULES: &str = "
A word with spaces goes into quotes; 0x and hexadecimal digits is bytes, as `scan` prints what is not text.
Without `begin` each command that writes is a transaction of its own. `help COMMAND` says more.";

/// The commands of the shell.
#[derive(Debug, Subcommand)]
#[command(disable_help_flag = true)]
pub enum LineCommand {
    /// Print a key's value.
    Get(OneKey),
    /// Write a key; the keyspace is made if there is none of that name.
    Put {
        /// Keyspace.
        keyspace: String,
        /// Key.
        #[arg(allow_negative_numbers = true)]
        key: String,
        /// Value.
        #[arg(allow_negative_numbers = true)]
        value: String,
    },
    /// Remove a key.
    Delete(OneKey),
    /// Print a range of keys and values.
    Scan {
        #[command(flatten)]
        range: Range,
        /// At most this many rows.
        #[arg(long, short, value_name = "ROWS")]
        limit: Option<usize>,
        /// From the last key to the first.
        #[arg(long, short)]
        reverse: bool,
    },
    /// Print how many keys a range has.
    Count(Range),
    /// Begin a transaction: what follows takes effect at `commit`, all of it or nothing.
    Begin,
    /// End the transaction; its writes are durable when this returns.
    Commit,
    /// End the transaction without its writes.
    Rollback,
    /// Print the names of the keyspaces.
    Keyspaces,
    /// Print this, or what a command takes.
    Help {
        /// Which command.
        command: Option<String>,
    },
    /// Leave the shell.
    #[command(visible_alias = "exit")]
    Quit,
}

/// `get`, `delete`
#[derive(Debug, Args)]
pub struct OneKey {
    /// Keyspace.
    pub keyspace: String,
    /// Key.
    #[arg(allow_negative_numbers = true)]
    pub key: String,
}

/// `scan`, `count`: which rows.
#[derive(Debug, Args)]
pub struct Range {
    /// Keyspace.
    pub keyspace: String,
    /// First key (inclusive).
    #[arg(allow_negative_numbers = true)]
    pub from: Option<String>,
    /// End of the range (exclusive).
    #[arg(allow_negative_numbers = true)]
    pub to: Option<String>,
    /// Only keys that begin so.
    #[arg(long, short, conflicts_with_all = ["from", "to"], allow_negative_numbers = true)]
    pub prefix: Option<String>,
}
