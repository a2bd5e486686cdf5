//! What the command prints: results on stdout, messages and progress on stderr.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Value, json};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve::Figure;
use varve_models::{Profile, ProfileError};
use varve_wire::{KeyError, KeyFiles, Keys};

/// Why a command ended without its result.
#[derive(Debug)]
pub enum Failure {
    /// The engine said so.
    Engine(varve::Error),
    /// Arguments that parse but make no sense together, or input that cannot be read.
    Usage(String),
    /// Something was found to be wrong: damage, a failed condition.
    Found(String),
    /// The key is not there.
    NoKey,
    /// There is no database there; says so, and what to do.
    NoPlace(String),
    /// Another process is at it; says at what.
    Busy(String),
    /// What was to be made is there already; says so, and what to do.
    Exists(String),
    /// Reading or writing a stream failed.
    Stream(std::io::Error),
    /// Anything else, said in full.
    Failed(String),
}

impl From<varve::Error> for Failure {
    fn from(e: varve::Error) -> Failure {
        Failure::Engine(e)
    }
}

impl From<varve_lab::torture::TortureError> for Failure {
    fn from(e: varve_lab::torture::TortureError) -> Failure {
        use varve_lab::torture::TortureError::{Damage, Db, Foreign, Wrong};
        match e {
            Db(e) => Failure::Engine(e),
            e @ (Wrong(_) | Damage(_)) => Failure::Found(e.to_string()),
            Foreign(what) => Failure::Usage(what),
            e => Failure::Failed(e.to_string()),
        }
    }
}

impl From<varve_lab::Error> for Failure {
    fn from(e: varve_lab::Error) -> Failure {
        match e {
            varve_lab::Error::Option { .. } => Failure::Usage(e.to_string()),
            // What may not be opened has a status of its own.
            varve_lab::Error::Store(cause) => match cause.downcast::<varve_device::DeviceError>() {
                Ok(cause) => Failure::Engine((*cause).into()),
                Err(cause) => Failure::Failed(varve_lab::Error::Store(cause).to_string()),
            },
            e => Failure::Failed(e.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Stream(e)
    }
}

impl Failure {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        use varve::Error as E;
        match self {
            Failure::Engine(E::Corrupt(_) | E::Mismatch(_)) | Failure::Found(_) => 3,
            Failure::Engine(E::NoSuchKeyspace(_) | E::NoDatabase(_) | E::Unfinished(_)) => 4,
            Failure::NoKey | Failure::NoPlace(_) => 4,
            Failure::Engine(E::InUse(_) | E::LockTimeout { .. }) | Failure::Busy(_) => 5,
            Failure::Engine(E::AlreadyExists(_)) | Failure::Exists(_) => 6,
            Failure::Engine(E::Permission(_) | E::ReadOnly(_) | E::KeyspaceReadOnly(_)) => 7,
            Failure::Usage(_) | Failure::Engine(E::KeySize { .. } | E::ValueSize { .. }) => 2,
            Failure::Engine(e) if e.kind() == varve::ErrorKind::Invalid => 2,
            Failure::Engine(_) | Failure::Stream(_) | Failure::Failed(_) => 1,
        }
    }

    /// The failure as one line of JSON: what happened, which kind of failure that is, the exit status.
    pub fn as_json(&self) -> Value {
        json!({ "error": self.to_string(), "kind": kind(self.exit_code()), "status": self.exit_code() })
    }

    /// Whether the reader of our output went away, which is no failure of ours.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Stream(e) if e.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// The word for an exit status.
pub fn kind(status: u8) -> &'static str {
    match status {
        2 => "usage",
        3 => "damage",
        4 => "missing",
        5 => "busy",
        6 => "exists",
        7 => "permission",
        _ => "failed",
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Engine(e) => e.fmt(f),
            Failure::Usage(s)
            | Failure::Found(s)
            | Failure::NoPlace(s)
            | Failure::Busy(s)
            | Failure::Exists(s)
            | Failure::Failed(s) => f.write_str(s),
            Failure::NoKey => f.write_str("no such key"),
            Failure::Stream(e) => e.fmt(f),
        }
    }
}

/// Standard output for what a command tells in the end. A reader that went away is not missed: the command goes on, and
/// its exit status counts.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        heard(Rows.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        heard(Rows.flush(), ())
    }
}

fn heard<T>(written: std::io::Result<T>, all: T) -> std::io::Result<T> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(all),
        written => written,
    }
}

/// Standard output for as many rows as there are: without a reader there is nothing left to do
/// ([`Failure::is_broken_pipe`]).
pub struct Rows;

impl Write for Rows {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::stdout().write(bytes).map_err(unwritten)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush().map_err(unwritten)
    }
}

fn unwritten(e: std::io::Error) -> std::io::Error {
    std::io::Error::new(e.kind(), format!("standard output cannot be written: {e}"))
}

/// Prints a line on standard output; see [`Stdout`].
macro_rules! say {
    ($($text:tt)*) => { std::io::Write::write_fmt(&mut $crate::output::Stdout, format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;

/// Says on stderr what went wrong, if that can be written.
pub fn complain(what: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// How to print.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    /// JSON instead of text.
    pub json: bool,
    /// No progress.
    pub quiet: bool,
}

impl Out {
    /// A bar on stderr when that is a terminal and nobody asked for quiet; `len` 0 is a spinner.
    pub fn progress(&self, what: &str, len: u64) -> ProgressBar {
        if self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = if len == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(len) };
        let template = if len == 0 {
            "{spinner} {msg} {human_pos} ({rate}, {elapsed})"
        } else {
            "{msg} {wide_bar} {human_pos}/{human_len} ({eta})"
        };
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style.with_key("rate", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let _ = write!(to, "{}/s", digits(state.per_sec()));
        }));
        bar.set_message(what.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// As [`Out::progress`] while `work` goes on, which does not tell how far it is: `position` is asked instead.
    pub fn watching<T>(
        &self,
        what: &str,
        len: u64,
        position: impl Fn() -> u64 + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> T {
        let bar = self.progress(what, len);
        if bar.is_hidden() {
            return work();
        }
        let (done, watched) = (varve_rt::channel::bounded::<()>(1), bar.clone());
        let watcher = varve_rt::spawn("progress", move || {
            while matches!(done.1.try_recv(), Err(varve_rt::channel::TryRecvError::Empty)) {
                watched.set_position(position());
                varve_rt::sleep(Duration::from_millis(100));
            }
        });
        let result = work();
        drop(done.0);
        // It ends by itself, whether it panicked or not.
        let _ = watcher.join();
        bar.finish_and_clear();
        result
    }

    /// A message for the person at the terminal.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            complain(text.as_ref());
        }
    }
}

/// Prints `name value` lines aligned.
pub fn table(out: &mut impl Write, rows: &[(String, String)]) -> std::io::Result<()> {
    let width = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0);
    for (name, value) in rows {
        writeln!(out, "{name:<width$}  {value}")?;
    }
    Ok(())
}

/// A figure for a person: its name tells what is counted. (JSON has the plain numbers.)
pub fn figure_text(name: &str, figure: Figure) -> String {
    let name = name.split('{').next().expect("at least one part").trim_end_matches("_total");
    let n = match figure {
        Figure::Number(n) => n as f64,
        Figure::Ratio(r) => r,
        Figure::Text(text) => return text,
    };
    let is = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let memory = name.starts_with("memory.") || name == "log.capacity" || name == "log.age";
    match () {
        () if is(&["_ns", ".nanos"]) => nanos(n),
        () if is(&["bytes_per_s", "bytes_per_second"]) => format!("{}/s", bytes(n as u64)),
        () if memory || is(&["bytes", "page_size", "_bytes_per_day_of_life"]) => bytes(n as u64),
        () if is(&["seconds"]) => nanos(n * 1e9),
        () if n.fract() == 0.0 => format!("{n:.0}"),
        () => figure.to_string(),
    }
}

/// Bytes as a person reads them.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number with the digits that say something: three of them, or all before the point, in groups.
pub fn digits(n: f64) -> String {
    match n.abs() {
        a if a >= 99.95 => indicatif::HumanCount(n.round().max(0.0) as u64).to_string(),
        a if a >= 9.995 => format!("{n:.1}"),
        a if a >= 0.01 || a == 0.0 => format!("{n:.2}"),
        _ => format!("{n:.1e}"),
    }
}

/// A time in nanoseconds as a person reads it.
pub fn nanos(n: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (unit, factor) = UNITS.into_iter().rfind(|(_, factor)| n >= *factor).unwrap_or(UNITS[0]);
    if unit == "ns" { format!("{n:.0} ns") } else { format!("{} {unit}", digits(n / factor)) }
}

/// A figure of the statistics, as JSON.
pub fn json_figure(figure: Figure) -> Value {
    match figure {
        Figure::Number(n) => n.into(),
        Figure::Ratio(r) if r.fract() == 0.0 && r.abs() < 9e15 => (r as i64).into(),
        Figure::Ratio(r) => r.into(),
        Figure::Text(t) => t.into(),
    }
}

/// So many of a thing, whose plural ends with an s.
pub fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A failure that names a file.
pub fn about(path: &Path, e: &std::io::Error) -> Failure {
    match e.kind() {
        // (`EPERM`, `EACCES`, `EROFS`.)
        kind @ (ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            Failure::Engine(varve::Error::Permission(format!("{}: {kind}", path.display())))
        }
        _ => Failure::Failed(format!("{}: {e}", path.display())),
    }
}

/// A failure with this message, by what the system said of a file that was named; `other` for all that is neither its
/// absence nor a lack of permission.
pub fn by_kind(kind: Option<ErrorKind>, said: String, other: fn(String) -> Failure) -> Failure {
    match kind {
        Some(ErrorKind::PermissionDenied) => Failure::Engine(varve::Error::Permission(said)),
        Some(ErrorKind::NotFound | ErrorKind::NotADirectory) => Failure::NoPlace(said),
        _ => other(said),
    }
}

/// The same of a file that could not be read, by another attempt.
pub fn unreadable(path: &Path, said: String, other: fn(String) -> Failure) -> Failure {
    by_kind(std::fs::File::open(path).err().map(|e| e.kind()), said, other)
}

/// A device profile that comes with the program, or is in a file.
pub fn profile(name: &str) -> Result<Profile, Failure> {
    Profile::load(name).map_err(|e| match e {
        ProfileError::Unreadable { .. } => unreadable(Path::new(name), e.to_string(), Failure::Usage),
        e => Failure::Usage(e.to_string()),
    })
}

/// The keys in these files.
pub fn read_keys(files: &KeyFiles) -> Result<Arc<Keys>, Failure> {
    Keys::read(files).map_err(|e| match &e {
        KeyError::Unreadable(path, _) => unreadable(path, e.to_string(), Failure::Failed),
        _ => Failure::Failed(e.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_read_or_written_has_a_status_of_its_own() {
        for (errno, status) in [(1, 7), (13, 7), (30, 7), (2, 1), (5, 1)] {
            let failure = about(Path::new("db/tier.json"), &std::io::Error::from_raw_os_error(errno));
            assert_eq!(failure.exit_code(), status, "{failure}");
            assert!(failure.to_string().contains("db/tier.json"), "{failure}");
        }
    }
}
