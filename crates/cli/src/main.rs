//! The `varve` command.
//!
//! Modules, from below: `closing output rows` · `advice new_file probe_cpu sensitivity table_args text` ·
//! `flash_advice` · `metrics probe` · `args` · `array_settings curves damage export flash keygen manual replay settings
//! top` · `updates` · `crash lab open` · `admin array_plan bench data keyspace load rescue stat tier worker` ·
//! `advise array_change demo shell traces` · `array`.

// Everything is printed by `output`: `println!` panics when nobody reads it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod advice;
mod advise;
mod args;
mod array;
mod array_change;
mod array_plan;
mod array_settings;
mod bench;
mod closing;
mod crash;
mod curves;
mod damage;
mod data;
mod demo;
mod export;
mod flash;
mod flash_advice;
mod keygen;
mod keyspace;
mod lab;
mod load;
mod manual;
mod metrics;
mod new_file;
mod open;
mod output;
mod probe;
mod probe_cpu;
mod replay;
mod rescue;
mod rows;
mod sensitivity;
mod settings;
mod shell;
mod stat;
mod table_args;
mod text;
mod tier;
mod top;
mod traces;
mod updates;
mod worker;

use args::{Cli, Command};
use clap::Parser;
use output::{Failure, Out};
use std::process::ExitCode;

fn main() -> ExitCode {
    varve_device::file_size_is_an_error();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.kind() == clap::error::ErrorKind::InvalidUtf8 => {
            return failed(std::env::args_os().any(|arg| arg == "--json"), &Failure::Usage(no_text()));
        }
        Err(e) if e.use_stderr() && std::env::args_os().any(|arg| arg == "--json") => {
            let told = e.to_string().trim_start_matches("error: ").trim_end().into();
            return failed(true, &Failure::Usage(told));
        }
        Err(e) => return told(&e),
    };
    let out = Out { json: cli.json, quiet: cli.quiet };
    // What is still in the buffer is written now: an error would else go unnoticed.
    let flush = |()| Ok(std::io::Write::flush(&mut output::Stdout)?);
    match run(out, &cli.command).and_then(flush) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => failed(out.json, &failure),
    }
}

/// Says what failed.
fn failed(json: bool, failure: &Failure) -> ExitCode {
    match json {
        true => output::complain(failure.as_json()),
        false => output::complain(format_args!("varve: {failure}")),
    }
    ExitCode::from(failure.exit_code())
}

/// That an argument is no text where text is asked for: which ones are none, byte by byte.
fn no_text() -> String {
    let args = std::env::args_os().skip(1).filter(|arg| arg.to_str().is_none());
    let args: Vec<String> = args.map(|arg| format!("{arg:?}")).collect();
    format!("{}: not UTF-8, which only paths, and not those with more behind them, need not be", args.join(", "))
}

/// Prints help, the version, or what is wrong with the arguments.
fn told(e: &clap::Error) -> ExitCode {
    let printed = e.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout()));
    match printed {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            output::complain(format_args!("varve: standard output cannot be written: {e}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(e.exit_code() as u8),
    }
}

fn run(out: Out, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Create(a) => admin::create(out, a),
        Command::Info(a) => admin::info(out, a),
        Command::Get(a) => data::get(out, a),
        Command::Put(a) => data::put(out, a),
        Command::Delete(a) => data::delete(out, a),
        Command::Clear(a) => data::clear(out, a),
        Command::Drop(a) => data::drop_keyspace(out, a),
        Command::Rename(a) => data::rename(out, a),
        Command::Keyspace(a) => keyspace::run(out, &a.command),
        Command::Shell(a) => shell::run(out, a),
        Command::Demo(a) => demo::run(out, a),
        Command::Scan(a) => data::scan(out, a),
        Command::Load(a) => load::run(out, a),
        Command::Dump(a) => data::dump(out, a),
        Command::Check(a) => admin::check(out, a),
        Command::Compact(a) => admin::compact(out, a),
        Command::ReadOnly(a) => array::read_only(out, a),
        Command::Backup(a) => rescue::backup(out, a),
        Command::Restore(a) => rescue::restore(out, a),
        Command::Salvage(a) => rescue::salvage(out, a),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { dir } => manual::pages(out, dir),
        Command::Stat(a) => stat::run(out, a),
        Command::Top(a) => top::run(out, a),
        Command::Tier(a) => tier::run(out, &a.command),
        Command::Array(a) => array::run(out, &a.command),
        Command::Worker(a) => worker::run(out, a),
        Command::Bench(a) => bench::run(out, a),
        Command::Probe(a) => probe::probe(out, a),
        Command::Torture(a) => crash::torture(out, a),
        Command::TortureChild => crash::torture_child(),
        Command::Sim(a) => crash::sim(out, a),
        Command::Lab(a) => lab::run(out, &a.command),
        Command::Trace(a) => traces::run(out, &a.command),
        Command::Advise(a) => advise::run(out, a),
        Command::SimChild => crash::sim_child(),
    }
}
