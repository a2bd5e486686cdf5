//! `lab run --sensitivity`: which assumed numbers decide a check.

use crate::output::{Failure, Out, say};
use varve_lab::experiment::{self, Experiment, MOVES, RunHow, Trial};

pub fn run(out: Out, e: &Experiment, file: &str, how: &RunHow) -> Result<(), Failure> {
    let how = RunHow { dir: how.dir.join("sensitivity"), ..how.clone() };
    let bar = out.progress(&e.name, 1);
    let trials = experiment::sensitivity(e, file, &how, |done, all, what| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{}: {what}", e.name));
    })?;
    bar.finish_and_clear();
    if out.json {
        for trial in &trials {
            say!("{}", serde_json::to_string(trial).expect("plain data"))?;
        }
        return Ok(());
    }
    print(e, &trials)
}

fn print(e: &Experiment, trials: &[Trial]) -> Result<(), Failure> {
    say!("{}: assumed numbers, halved and doubled in {} trials, on the scaled-down set\n", e.name, trials.len())?;
    let figure = |x: Option<f64>| x.map_or("none".into(), |x| format!("{x:.3}"));
    for trial in trials {
        let name = format!("{} {} = {} instead of {}", trial.of, trial.key, trial.tried, trial.value);
        if let Some(why) = &trial.refused {
            say!("{name}: cannot be: {why}")?;
        }
        for m in &trial.moved {
            let verdict = if m.verdict { ", and with it the verdict" } else { "" };
            say!("{name}: {} goes from {} to {}{verdict}", m.check, figure(m.before), figure(m.after))?;
        }
    }
    let quiet = trials.iter().filter(|t| t.refused.is_none() && t.moved.is_empty()).count();
    say!("\n{quiet} of {} trials move no check by more than {} %", trials.len(), 100.0 * MOVES)?;
    Ok(())
}
