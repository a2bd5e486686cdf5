//! The command line.

use std::path::PathBuf;

use crate::bench::{ROWS, Scale};

/// What the harness prints when asked, or when it does not understand.
pub const USAGE: &str = "\
Runs Varve beside other storage engines and prints one table of medians and ratios.

usage: cargo run --release --features rocksdb,wiredtiger -- [OPTIONS]

  --quick             small data and short measurements: does everything run?
  --only NAME,..      rows to measure (default: all; see below)
  --engines NAME,..   engines to run (default: all that were compiled in); varve is always run
  --tpcc-peers NAME,..  engines that TPC-C is run on beside varve (default: sqlite)
  --rounds N          rounds; every engine runs once in each (default 3; 1 with --quick)
  --seed N            seed of data and requests (default 1)
  --dir DIR           where the databases are made and removed again (default: the current directory); choose a
                      directory on the device to be measured, with 50 GB of room, not a memory file system
  --out FILE          also writes every sample and setting as JSON
  --help              this text";

/// A run as asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sizes and lengths.
    pub scale: Scale,
    /// Whether `--quick` was given.
    pub quick: bool,
    /// Rows wanted; empty: all.
    pub only: Vec<String>,
    /// Engines wanted; empty: all.
    pub engines: Vec<String>,
    /// Engines beside Varve for TPC-C.
    pub tpcc_peers: Vec<String>,
    /// Rounds.
    pub rounds: u32,
    /// Seed.
    pub seed: u64,
    /// Parent of the temporary directories.
    pub dir: PathBuf,
    /// File for the samples.
    pub out: Option<PathBuf>,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Print the usage.
    Help,
    /// Measure.
    Run(Box<Options>),
}

/// Understands the arguments, without the program's name. `engines` are the names of those compiled in.
///
/// Errors: a text that says what was not understood and what would be.
pub fn parse(args: impl Iterator<Item = String>, engines: &[&str]) -> Result<Command, String> {
    let mut options = Options {
        scale: Scale::FULL,
        quick: false,
        only: Vec::new(),
        engines: Vec::new(),
        tpcc_peers: vec!["sqlite".to_string()],
        rounds: 0,
        seed: 1,
        dir: PathBuf::from("."),
        out: None,
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; see --help"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--quick" => options.quick = true,
            "--only" => options.only = names(&value()?, &ROWS.iter().map(|r| r.name).collect::<Vec<_>>())?,
            "--engines" => options.engines = names(&value()?, engines)?,
            "--tpcc-peers" => options.tpcc_peers = names(&value()?, engines)?,
            "--rounds" => options.rounds = number(&arg, &value()?, 1, 1000)? as u32,
            "--seed" => options.seed = number(&arg, &value()?, 0, u64::MAX)?,
            "--dir" => options.dir = value()?.into(),
            "--out" => options.out = Some(value()?.into()),
            other => return Err(format!("{other:?} is not an option; see --help")),
        }
    }
    if options.quick {
        options.scale = Scale::QUICK;
    }
    if options.rounds == 0 {
        options.rounds = if options.quick { 1 } else { 3 };
    }
    Ok(Command::Run(Box::new(options)))
}

fn number(name: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("{name} {text}: a number from {least} to {most} is needed"))
}

fn names(text: &str, known: &[&str]) -> Result<Vec<String>, String> {
    text.split(',')
        .map(|name| match known.contains(&name) {
            true => Ok(name.to_string()),
            false => Err(format!("{name:?} is not known here; choose among {}", known.join(", "))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<Command, String> {
        parse(text.split_whitespace().map(str::to_string), &["varve", "sqlite"])
    }

    #[test]
    fn understands_its_options() {
        let Ok(Command::Run(options)) = run("--quick --only reads,tpcc --engines sqlite --rounds 2 --seed 7") else {
            panic!("not understood")
        };
        assert_eq!((options.only.len(), options.engines.len(), options.rounds, options.seed), (2, 1, 2, 7));
        assert_eq!(options.scale.keys, Scale::QUICK.keys);
        assert!(matches!(run("--help"), Ok(Command::Help)));
    }

    #[test]
    fn names_what_it_does_not_understand() {
        for (text, named) in
            [("--only nothing", "reads"), ("--engines db2", "sqlite"), ("--rounds 0", "1 to"), ("-x", "-x")]
        {
            let error = run(text).expect_err("not an option");
            assert!(error.contains(named), "{error}");
        }
    }
}
