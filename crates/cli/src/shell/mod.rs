//! `shell`: commands on one open database, typed or from a pipe.
//!
//! At a terminal an error is said and the next command read. From a pipe the first error ends the shell, with the exit
//! status that the command of that name has: nothing is done on top of what failed.

mod editor;

use crate::args::shell::{Line, LineCommand, OneKey, Range, Shell};
use crate::closing::Closing;
use crate::data::{print_count, print_entries};
use crate::open;
use crate::output::{Failure, Out, Rows, complain};
use crate::text;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use editor::Editor;
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufWriter, IsTerminal, Write};
use varve::{Error, KeyRange, Keyspace, Transaction};

/// A database, and the transaction that was begun, if one was.
struct Session {
    out: Out,
    /// First, as the drop goes: a database with an open transaction cannot be closed.
    tx: Option<Transaction>,
    db: Closing,
}

/// What comes after a command.
#[derive(PartialEq)]
enum Next {
    Command,
    End,
}

pub fn run(out: Out, a: &Shell) -> Result<(), Failure> {
    let db = if a.read_only { open::to_look(out, &a.place)? } else { open::to_write(&a.place)? };
    let mut session = Session { out, tx: None, db };
    let typed = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let done = if typed { typed_lines(&mut session) } else { piped_lines(&mut session) };
    let left = session.tx.take().is_some();
    done.and(session.db.close().map_err(Failure::from))?;
    match left {
        true if typed => out.note("the transaction was rolled back: it was not committed"),
        true => return Err(Failure::Failed("the transaction was rolled back: the input has no `commit`".into())),
        false => {}
    }
    Ok(())
}

fn typed_lines(session: &mut Session) -> Result<(), Failure> {
    let mut editor = Editor::new()?;
    session.out.note("`help` lists the commands; Tab completes them and keyspaces; Ctrl-D leaves");
    loop {
        let names = session.db.keyspaces()?.into_iter().map(|k| k.name).collect();
        let prompt = if session.tx.is_some() { "varve (transaction)> " } else { "varve> " };
        let Some(line) = editor.read(prompt, names)? else { return Ok(()) };
        match session.line(&line) {
            Ok(Next::Command) => {}
            Ok(Next::End) => return Ok(()),
            Err(failure) => complain(failure),
        }
    }
}

fn piped_lines(session: &mut Session) -> Result<(), Failure> {
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        match line.map_err(Failure::from).and_then(|line| session.line(&line)) {
            Ok(Next::Command) => {}
            Ok(Next::End) => return Ok(()),
            Err(failure) if failure.is_broken_pipe() => return Err(failure),
            Err(failure) => {
                session.out.note(format!("line {} of the input failed; what follows it is not done", n + 1));
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// A typed word as bytes.
fn bytes(word: &str) -> Vec<u8> {
    let digits = word.strip_prefix("0x").and_then(text::from_hex);
    digits.unwrap_or_else(|| word.as_bytes().to_vec())
}

impl Session {
    /// Does what a line says.
    fn line(&mut self, line: &str) -> Result<Next, Failure> {
        let words = shlex::split(line)
            .ok_or_else(|| Failure::Usage("a quote is left open, or nothing follows the last \\".into()))?;
        if words.is_empty() {
            return Ok(Next::Command);
        }
        let command = match Line::try_parse_from(&words) {
            Ok(line) => line.command,
            Err(e) if e.kind() == ErrorKind::InvalidSubcommand => return Err(no_command(&words[0])),
            Err(e) => return Err(Failure::Usage(e.to_string().trim_start_matches("error: ").trim_end().to_string())),
        };
        let mut to = BufWriter::new(Rows);
        let next = self.command(&command, &mut to)?;
        to.flush()?;
        Ok(next)
    }

    fn command(&mut self, command: &LineCommand, to: &mut impl Write) -> Result<Next, Failure> {
        match command {
            LineCommand::Get(a) => self.get(a, to)?,
            LineCommand::Put { keyspace, key, value } => self.put(keyspace, &bytes(key), &bytes(value))?,
            LineCommand::Delete(a) => self.delete(a)?,
            LineCommand::Scan { range, limit, reverse } => self.scan(range, *limit, *reverse, to)?,
            LineCommand::Count(range) => self.count(range, to)?,
            LineCommand::Begin if self.tx.is_some() => {
                return Err(Failure::Usage("a transaction is open already: `commit` or `rollback` ends it".into()));
            }
            LineCommand::Begin => self.tx = Some(self.db.begin()?),
            LineCommand::Commit => self.open_transaction()?.commit()?,
            LineCommand::Rollback => self.open_transaction()?.rollback(),
            LineCommand::Keyspaces => self.keyspaces(to)?,
            LineCommand::Help { command } => help(command.as_deref(), to)?,
            LineCommand::Quit => return Ok(Next::End),
        }
        Ok(Next::Command)
    }

    fn open_transaction(&mut self) -> Result<Transaction, Failure> {
        self.tx.take().ok_or_else(|| Failure::Usage("no transaction is open: `begin` opens one".into()))
    }

    fn get(&mut self, a: &OneKey, to: &mut impl Write) -> Result<(), Failure> {
        let (keyspace, key) = (self.db.keyspace(&a.keyspace)?, bytes(&a.key));
        let value = match &mut self.tx {
            Some(tx) => tx.get(&keyspace, &key)?,
            None => keyspace.get(&key)?,
        };
        let value = value.ok_or(Failure::NoKey)?;
        if self.out.json {
            let mut object = Map::new();
            text::put(&mut object, "value", &value);
            writeln!(to, "{}", Value::Object(object))?;
        } else {
            writeln!(to, "{}", text::show(&value, false))?;
        }
        Ok(())
    }

    /// The keyspace to write to; made if there is none.
    fn keyspace_to_write(&self, name: &str) -> Result<Keyspace, Failure> {
        match self.db.keyspace(name) {
            Err(Error::NoSuchKeyspace(_)) => {
                let made = self.db.create_keyspace(name)?;
                self.out.note(format!("made keyspace {name}"));
                Ok(made)
            }
            found => Ok(found?),
        }
    }

    fn put(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let keyspace = self.keyspace_to_write(keyspace)?;
        match &mut self.tx {
            Some(tx) => tx.put(&keyspace, key, value)?,
            None => keyspace.put(key, value)?,
        }
        Ok(())
    }

    fn delete(&mut self, a: &OneKey) -> Result<(), Failure> {
        let (keyspace, key) = (self.db.keyspace(&a.keyspace)?, bytes(&a.key));
        let was_there = match &mut self.tx {
            Some(tx) => {
                let was_there = tx.contains(&keyspace, &key)?;
                tx.delete(&keyspace, &key)?;
                was_there
            }
            None => keyspace.delete(&key)?,
        };
        if was_there { Ok(()) } else { Err(Failure::NoKey) }
    }

    fn scan(&mut self, range: &Range, limit: Option<usize>, reverse: bool, to: &mut impl Write) -> Result<(), Failure> {
        let (out, limit) = (self.out, limit.unwrap_or(usize::MAX));
        let keyspace = self.db.keyspace(&range.keyspace)?;
        let ends = Ends::of(range);
        match (&mut self.tx, reverse) {
            (Some(tx), false) => print_entries(out, false, to, tx.scan(&keyspace, ends.range())?.take(limit)),
            (Some(tx), true) => print_entries(out, false, to, tx.scan_rev(&keyspace, ends.range())?.take(limit)),
            (None, false) => print_entries(out, false, to, keyspace.range(ends.range())?.take(limit)),
            (None, true) => print_entries(out, false, to, keyspace.range(ends.range())?.rev().take(limit)),
        }
    }

    fn count(&mut self, range: &Range, to: &mut impl Write) -> Result<(), Failure> {
        let keyspace = self.db.keyspace(&range.keyspace)?;
        let ends = Ends::of(range);
        let n = match &mut self.tx {
            Some(tx) => tx.count(&keyspace, ends.range())?,
            None => self.db.snapshot()?.count(&keyspace, ends.range())?,
        };
        print_count(self.out, to, n)
    }

    fn keyspaces(&self, to: &mut impl Write) -> Result<(), Failure> {
        for keyspace in self.db.keyspaces()? {
            match self.out.json {
                true => writeln!(to, "{}", json!({ "keyspace": keyspace.name }))?,
                false => writeln!(to, "{}", keyspace.name)?,
            }
        }
        Ok(())
    }
}

/// The ends of a range as bytes.
struct Ends {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    prefix: Option<Vec<u8>>,
}

impl Ends {
    fn of(range: &Range) -> Ends {
        let word = |word: &Option<String>| word.as_deref().map(bytes);
        Ends { from: word(&range.from), to: word(&range.to), prefix: word(&range.prefix) }
    }

    fn range(&self) -> KeyRange<'_> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        match &self.prefix {
            Some(prefix) => KeyRange::prefix(prefix),
            None => KeyRange::new(
                self.from.as_deref().map_or(Unbounded, Included),
                self.to.as_deref().map_or(Unbounded, Excluded),
            ),
        }
    }
}

/// The names of the shell's commands.
fn names() -> Vec<String> {
    Line::command().get_subcommands().map(|command| command.get_name().to_string()).collect()
}

fn help(of: Option<&str>, to: &mut impl Write) -> Result<(), Failure> {
    let mut line = Line::command();
    line.build();
    let Some(name) = of else {
        writeln!(to, "{}", line.render_help())?;
        return Ok(());
    };
    let command = line.find_subcommand_mut(name);
    let text = command.ok_or_else(|| no_command(name))?.render_help().to_string();
    // (The name of the program is empty.)
    writeln!(to, "{}", text.replacen("Usage:  ", "Usage: ", 1))?;
    Ok(())
}

fn no_command(name: &str) -> Failure {
    Failure::Usage(format!("there is no command {name:?}; there are: {}", names().join(", ")))
}
