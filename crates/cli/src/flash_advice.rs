//! What the flash advisor says, as text and as JSON, in the form of all advice.

use crate::advice::Advice;
use crate::output::{self, Failure, Out, say};
use serde_json::{Value, json};
use std::fmt::Write as _;
use varve::Db;
use varve::flash::advise::{Array, FlashAdvice, Goal, KeyspaceAdvice, Predicted};
use varve_lab::advise;

/// The array of a profile.
pub fn array(profile: &str) -> Result<Array, Failure> {
    let found = output::profile(profile)?;
    let none =
        || Failure::Usage(format!("--flash {profile}: a profile with [flash] is needed, such as slc-emulator-16"));
    Ok(advise::array(&found.flash.ok_or_else(none)?))
}

/// What makes a database like that.
pub fn command(layout: &str) -> String {
    format!("varve create DB --flash image:PATH --layout {layout}")
}

pub fn name(goal: Goal) -> &'static str {
    match goal {
        Goal::Life => "life",
        Goal::Throughput => "throughput",
    }
}

/// Prints the flash advisor's tables and advice; `command` does what is advised.
pub fn print(out: Out, advice: &FlashAdvice, command: &str) -> Result<(), Failure> {
    match out.json {
        true => say!("{}", as_json(advice, command))?,
        false => say!("{}", text(advice, command).trim_end())?,
    }
    Ok(())
}

/// The flash advisor's words in the form of all advice: the layout first, then each keyspace.
pub fn pieces(advice: &FlashAdvice, command: &str) -> Vec<Advice> {
    let unit = advice.goal.unit();
    let best = advice.layouts.first();
    let whole = Advice {
        what: best.map_or("leave pages without delta records".to_string(), |best| best.what.clone()),
        why: advice.why.clone(),
        predicted: if best.is_some() { 1.0 + advice.gain() } else { 1.0 },
        unit,
        command: advice.pays.then(|| command.to_string()),
    };
    let keyspace = |of: &KeyspaceAdvice| {
        let best = of.rows.first();
        Advice {
            what: match best {
                Some(row) => format!("keyspace {}: {} in {} cells", of.name, row.scheme, row.mode),
                None => format!("keyspace {}: delta records", of.name),
            },
            why: of.why.clone(),
            predicted: best.map_or(1.0, |row| 1.0 + row.gain),
            unit,
            command: (of.pays && advice.pays).then(|| command.to_string()),
        }
    };
    std::iter::once(whole).chain(advice.keyspaces.iter().map(keyspace)).collect()
}

fn predicted_json(p: &Predicted) -> Value {
    json!({
        "writes": p.writes, "append_share": p.append_share, "out_of_place": p.out_of_place,
        "invalidations": p.invalidations, "migrations": p.migrations, "erases": p.erases, "life_writes": p.life,
        "busy_us_per_write": p.busy_us,
    })
}

/// As JSON.
pub fn as_json(advice: &FlashAdvice, command: &str) -> Value {
    let keyspace = |of: &KeyspaceAdvice| {
        let rows = of.rows.iter().map(|row| {
            let mut json = predicted_json(&row.predicted);
            json["n"] = row.scheme.n.into();
            json["m"] = row.scheme.m.into();
            json["mode"] = row.mode.to_string().into();
            json["reserved"] = row.reserved.into();
            json["gain"] = row.gain.into();
            json
        });
        json!({
            "keyspace": of.name, "pages": of.pages, "writes": of.writes, "updates": of.updates, "pays": of.pays,
            "changed": of.changed, "why": of.why, "schemes": rows.collect::<Vec<_>>(),
        })
    };
    let layouts: Vec<Value> = advice
        .layouts
        .iter()
        .map(|of| json!({ "what": of.what, "predicted": predicted_json(&of.predicted) }))
        .collect();
    json!({
        "goal": name(advice.goal), "one_page_of": advice.one_of, "plain": predicted_json(&advice.plain),
        "layouts": layouts, "keyspaces": advice.keyspaces.iter().map(keyspace).collect::<Vec<_>>(),
        "advice": pieces(advice, command).iter().map(Advice::as_json).collect::<Vec<_>>(),
    })
}

/// Rows of a keyspace's table.
const ROWS: usize = 5;

/// For people.
pub fn text(advice: &FlashAdvice, command: &str) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let gain = |p: &Predicted| p.score(advice.goal) / advice.plain.score(advice.goal);
    for of in advice.keyspaces.iter().filter(|of| of.writes > 0) {
        line(format!("{}: {} pages, {} writes, {} updates", of.name, of.pages, of.writes, of.updates));
        if !of.changed.is_empty() {
            let each: Vec<String> = of.changed.iter().map(|(p, bytes)| format!("p{p} {bytes}")).collect();
            line(format!("  bytes changed: {}", each.join("  ")));
        }
        if !of.rows.is_empty() {
            line("   N x M   cells    appends  reserved  out of place  invalidated  erases  life".into());
        }
        for row in of.rows.iter().take(ROWS) {
            let p = &row.predicted;
            line(format!(
                "  {:>8}  {:<8} {:>5.1} %  {:>6.1} %  {:>12}  {:>11}  {:>6}  {:.2}",
                row.scheme.to_string(),
                row.mode.to_string(),
                p.append_share * 100.0,
                row.reserved * 100.0,
                p.out_of_place,
                p.invalidations,
                p.erases,
                1.0 + row.gain
            ));
        }
    }
    let figures = |what: &str, p: &Predicted| {
        format!(
            "  {:>5.1} % appends, {} erases for {} writes, {:.0} us of the chips each, {:.2}: {what}",
            p.append_share * 100.0,
            p.erases,
            p.writes,
            p.busy_us,
            gain(p)
        )
    };
    line(format!("layouts (the last figure: {}, to pages written whole):", advice.goal.unit()));
    line(figures("all pages in one region, written whole", &advice.plain));
    advice.layouts.iter().take(ROWS).for_each(|of| line(figures(&of.what, &of.predicted)));
    if advice.one_of > 1 {
        line(format!("one page of {} was looked at", advice.one_of));
    }
    pieces(advice, command).iter().for_each(|piece| line(piece.text()));
    text
}

/// What a running database is told that another process has open, by `flash=PROFILE&goal=GOAL`; `json=1` for JSON.
pub fn of_running(db: &Db, query: &str) -> Result<String, Failure> {
    let given = |key: &str| query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    let profile = given("flash").ok_or_else(|| Failure::Usage("name the flash: /advise?flash=PROFILE".into()))?;
    // A name alone: whoever asks reads no files of this process.
    if !profile.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(Failure::Usage(format!(
            "flash={profile}: the name of a built-in profile, such as slc-emulator-16"
        )));
    }
    let goal = given("goal").unwrap_or("life").parse().map_err(Failure::Usage)?;
    let advice = db.advise_flash(&array(profile)?, goal)?;
    let command = command("layout.toml");
    match given("json") {
        Some("1") => Ok(format!("{}\n", as_json(&advice, &command))),
        _ => Ok(text(&advice, &command)),
    }
}
