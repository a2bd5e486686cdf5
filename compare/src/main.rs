//! The command: measures, prints the table on stdout and what it is doing on stderr.
//!
//! Exit codes: 0 done, 1 an engine failed or a check did not hold, 2 the command line was not understood.

use std::process::ExitCode;

use varve_compare::engines::ENGINES;
use varve_compare::options::{self, Command, Options, USAGE};
use varve_compare::{Error, Result, child, report, runner};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if let (Some(child::ARGUMENT), Some(job)) = (arguments.next().as_deref(), arguments.next()) {
        return done(child::main(&job));
    }
    let engines: Vec<&str> = ENGINES.iter().map(|e| e.name).collect();
    let options = match options::parse(std::env::args().skip(1), &engines) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{USAGE}\n\nrows:");
            for row in varve_compare::bench::ROWS {
                println!("  {:<12} {} ({})", row.name, row.title, row.unit);
            }
            println!("engines: {}", engines.join(", "));
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    done(measure(&options))
}

fn done(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let origin = report::Origin::here(options.seed);
    let program = std::env::current_exe().map_err(Error::store)?;
    let outcome = runner::run(options, program, |line| eprintln!("{line}"));
    print!("{}", report::markdown(options, &origin, &outcome));
    if let Some(path) = &options.out {
        let text = serde_json::to_string_pretty(&report::json(options, &origin, &outcome)).expect("plain data");
        std::fs::write(path, text + "\n")
            .map_err(|e| Error::store(format!("cannot write {}: {e}; choose another --out", path.display())))?;
    }
    match outcome.failures.len() {
        0 => Ok(()),
        n => Err(Error::store(format!("{n} failures; they are listed below the table"))),
    }
}
