//! The command run as a process, and directories to run it in.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod serves;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use varve_rt::atomic::{AtomicU32, Ordering};

/// A directory that is removed again.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one, made anew; `name` tells a reader whose it is.
    pub fn new(name: &str) -> Scratch {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let program = std::env::current_exe().expect("a test program");
        let program = program.file_stem().expect("a name").to_string_lossy().into_owned();
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("varve-{program}-{}-{made}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it, as an argument.
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_string()
    }

    /// A file with these bytes.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), bytes).expect("a file");
        self.at(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command with `input` on its standard input.
pub fn varve(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.as_ref().to_vec();
    // It may end before it has read everything.
    let feeder = varve_rt::spawn("feeder", move || drop(stdin.write_all(&input)));
    let out = child.wait_with_output().expect("the command ends");
    feeder.join().expect("fed");
    out
}

/// What it prints when all goes well.
pub fn bytes(args: &[&str], input: impl AsRef<[u8]>) -> Vec<u8> {
    let out = varve(args, input);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// The same, as text.
pub fn ok(args: &[&str], input: impl AsRef<[u8]>) -> String {
    String::from_utf8(bytes(args, input)).expect("text")
}

/// What it says when it fails with this exit status.
pub fn fails(args: &[&str], input: impl AsRef<[u8]>, code: i32) -> String {
    let out = varve(args, input);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    said
}
