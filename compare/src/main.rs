//! The command: measures, prints the table on stdout and what it is doing on stderr.
//!
//! Exit codes: 0 done, 1 an engine failed or a check did not hold, 2 the command line was not understood.

use std::process::ExitCode;

use varve_compare::options::{self, Command, Options, USAGE};
use varve_compare::{Error, Result, report, runner};

fn main() -> ExitCode {
    let engines: Vec<&str> = runner::ENGINES.iter().map(|e| e.name).collect();
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
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let origin = report::Origin::here(options.seed);
    let samples = runner::run(options, |line| eprintln!("{line}"))?;
    print!("{}", report::markdown(options, &origin, &samples));
    if let Some(path) = &options.out {
        let text = serde_json::to_string_pretty(&report::json(options, &origin, &samples)).expect("plain data");
        std::fs::write(path, text + "\n")
            .map_err(|e| Error::store(format!("cannot write {}: {e}; choose another --out", path.display())))?;
    }
    Ok(())
}
