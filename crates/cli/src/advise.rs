//! `advise`: what the advisors say of a database or a trace; and the flash advisor by itself.

use crate::advice::{Said, print_all};
use crate::args::Place;
use crate::args::advise::{Advise, Command, Flash};
use crate::array_plan;
use crate::flash_advice::{array, command, name, pieces, print};
use crate::open::to_look;
use crate::output::{Failure, Out, about};
use std::path::Path;
use varve::flash::advise::{FlashAdvice, Goal};
use varve_lab::advise;
use varve_lab::trace::{ReadOptions, Reader};

pub fn run(out: Out, a: &Advise) -> Result<(), Failure> {
    match (&a.command, &a.of) {
        (Some(Command::Flash(a)), _) => flash(out, a),
        (None, Some(of)) if varve::exists(of) => of_db(out, a, of),
        (None, Some(of)) if of.is_dir() => Err(Failure::Usage(format!("{} is no database", of.display()))),
        (None, Some(of)) => of_trace(out, a, of),
        (None, None) => Err(Failure::Usage("give a database or a trace".into())),
    }
}

fn advice_of_trace(trace: &Path, profile: &str, goal: Goal) -> Result<FlashAdvice, Failure> {
    let array = array(profile)?;
    let mut reader = Reader::open(trace, &ReadOptions::default())?;
    let question = advise::question(&mut reader, array, goal)?;
    varve::flash::advise::advise(&question).map_err(|e| Failure::Usage(e.to_string()))
}

fn flash(out: Out, a: &Flash) -> Result<(), Failure> {
    let advice = advice_of_trace(&a.trace, &a.flash, a.goal)?;
    let mut does = match &a.out {
        Some(file) => command(&file.display().to_string()),
        None => {
            let again = format!("varve advise flash {} --flash {} --goal {}", a.trace.display(), a.flash, name(a.goal));
            format!("{again} --out layout.toml && {}", command("layout.toml"))
        }
    };
    if let Some(file) = &a.out {
        match advice.regions() {
            Some(regions) => {
                let text = advise::layout_file(&a.flash, regions).to_toml();
                std::fs::write(file, text).map_err(|e| about(file, &e))?;
                out.note(format!("regions written to {}", file.display()));
            }
            None => out.note(format!("nothing pays: {} is not written", file.display())),
        }
        does = command(&file.display().to_string());
    }
    print(out, &advice, &does)
}

const NO_PROFILE: &str = "name the flash, --flash PROFILE (such as slc-emulator-16)";

fn of_db(out: Out, a: &Advise, dir: &Path) -> Result<(), Failure> {
    let place = Place { dir: dir.into(), open: a.open.clone(), tier: a.tier.clone() };
    let db = to_look(out, &place)?;
    let array: Said = match db.array_stats() {
        None => Err(format!(
            "the pages of {} lie on one device; `varve array plan --drives A.toml,B.toml --trace T` says what several \
             drives would bring",
            dir.display()
        )),
        Some(_) => array_plan::of_db(&db, dir, &a.curves)
            .map(|plan| vec![array_plan::advice(&plan, format!("varve array apply {}", dir.display()))])
            .map_err(|e| e.to_string()),
    };
    db.close()?;
    let flash: Said = Err(format!(
        "it goes by page writes: `varve trace record --out T tpcc --dir {} ..`, then `varve advise flash T --flash \
         PROFILE`; of a process at work with it (update_sizes=true): `varve stat http://HOST:PORT --advise PROFILE`",
        dir.display()
    ));
    print_all(out, &[("array", array), ("flash", flash)])
}

fn of_trace(out: Out, a: &Advise, trace: &Path) -> Result<(), Failure> {
    // A file that is no trace is nobody's advice.
    drop(Reader::open(trace, &ReadOptions::default())?);
    let flash: Said = match &a.flash {
        None => Err(NO_PROFILE.into()),
        Some(profile) => {
            let again = format!("varve advise flash {} --flash {profile} --goal {}", trace.display(), name(a.goal));
            advice_of_trace(trace, profile, a.goal)
                .map(|advice| pieces(&advice, &format!("{again} --out layout.toml && {}", command("layout.toml"))))
                .map_err(|e| e.to_string())
        }
    };
    let array: Said = match a.curves.is_empty() {
        true => Err("name the drives, --curves A.toml,B.toml (it goes by traces of block devices)".into()),
        false => array_plan::of_trace(trace, &a.curves, varve::array::EXTENT)
            .map(|plan| vec![array_plan::advice(&plan, array_plan::create(&plan, None))])
            .map_err(|e| e.to_string()),
    };
    print_all(out, &[("array", array), ("flash", flash)])
}
