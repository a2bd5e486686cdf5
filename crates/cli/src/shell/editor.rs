//! The line editor of the shell: completion of commands and keyspaces, history in the user's state directory.

use super::names;
use crate::output::Failure;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Helper};
use std::path::PathBuf;

/// Commands whose first word is a keyspace.
const WITH_KEYSPACE: [&str; 5] = ["get", "put", "delete", "scan", "count"];

pub struct Editor {
    editor: rustyline::Editor<Words, DefaultHistory>,
    history: Option<PathBuf>,
}

/// What can be completed.
struct Words {
    commands: Vec<String>,
    keyspaces: Vec<String>,
}

/// Where the history is kept: `$XDG_STATE_HOME/varve/history`, or below `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("varve").join("history"))
}

impl Editor {
    /// An editor with the history of former shells, as far as that can be read.
    pub fn new() -> Result<Editor, Failure> {
        let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true).build();
        let mut editor = rustyline::Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Words { commands: names(), keyspaces: Vec::new() }));
        let history = history_file();
        if let Some(file) = &history {
            // The first shell has none.
            let _ = editor.load_history(file);
        }
        Ok(Editor { editor, history })
    }

    /// The next line; none: the user leaves. `keyspaces` are those that can be completed.
    pub fn read(&mut self, prompt: &str, keyspaces: Vec<String>) -> Result<Option<String>, Failure> {
        if let Some(words) = self.editor.helper_mut() {
            words.keyspaces = keyspaces;
        }
        loop {
            match self.editor.readline(prompt) {
                Ok(line) => return Ok(Some(line)),
                // Ctrl-C gives up the line, not the shell.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

impl Drop for Editor {
    /// Keeps the history; a directory that cannot be written to keeps nobody from leaving.
    fn drop(&mut self) {
        if let Some(file) = &self.history {
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = self.editor.append_history(file);
        }
    }
}

fn failed(e: ReadlineError) -> Failure {
    Failure::Failed(format!("the terminal cannot be read: {e}"))
}

impl Words {
    /// Where the word that ends at `pos` begins, and what it may become.
    fn candidates(&self, line: &str, pos: usize) -> (usize, Vec<String>) {
        let before = &line[..pos];
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let mut earlier = before[..start].split_whitespace();
        let of = match (earlier.next(), earlier.next()) {
            (None, _) | (Some("help"), None) => &self.commands,
            (Some(command), None) if WITH_KEYSPACE.contains(&command) => &self.keyspaces,
            _ => return (start, Vec::new()),
        };
        let word = &before[start..];
        (start, of.iter().filter(|name| name.starts_with(word)).cloned().collect())
    }
}

impl Completer for Words {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(line, pos))
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Validator for Words {}

impl Helper for Words {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_keyspaces_are_completed_where_they_stand() {
        let keyspaces = ["fruit", "fish", "größe"].map(String::from).to_vec();
        let words = Words { commands: names(), keyspaces };
        let candidates = |line: &str| words.candidates(line, line.len());
        assert_eq!(candidates("sc"), (0, vec!["scan".to_string()]));
        assert_eq!(candidates("  co").1, ["count", "commit"]);
        assert_eq!(candidates("get f"), (4, vec!["fruit".to_string(), "fish".to_string()]));
        assert_eq!(candidates("get gr").1, ["größe"]);
        assert_eq!(candidates("help ro").1, ["rollback"]);
        for line in ["get fruit f", "commit f", "x"] {
            assert_eq!(candidates(line).1, [""; 0], "{line}");
        }
        for command in WITH_KEYSPACE {
            assert!(words.commands.iter().any(|name| name == command), "{command} is none");
        }
    }
}
