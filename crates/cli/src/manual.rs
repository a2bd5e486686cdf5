//! Completions and manual pages, made from the definition of the command line.

use crate::args::Cli;
use crate::output::{Failure, Out, Stdout};
use clap::CommandFactory;
use std::path::Path;

pub fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "varve", &mut script);
    std::io::Write::write_all(&mut Stdout, &script)?;
    Ok(())
}

pub fn pages(out: Out, dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)?;
    out.note(format!("manual pages written to {}; read one with `man -l {}/varve.1`", dir.display(), dir.display()));
    Ok(())
}
