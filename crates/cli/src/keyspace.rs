//! `keyspace`: one keyspace made, shown, changed.

use crate::args::keyspaces::{CreateKeyspace, KeyspaceCommand, OneKeyspace, SetKeyspace, kind_text};
use crate::open::{to_look, to_write};
use crate::output::{Failure, Out, Stdout, bytes, say, table};
use serde_json::json;
use varve::setting::Setting;
use varve::{KeyspaceInfo, KeyspaceKind, LSM_OPTIONS, LsmLevel, LsmOptions, LsmStats};

pub fn run(out: Out, command: &KeyspaceCommand) -> Result<(), Failure> {
    match command {
        KeyspaceCommand::Create(a) => create(out, a),
        KeyspaceCommand::Set(a) => set(out, a),
        KeyspaceCommand::Info(a) => info(out, a),
    }
}

fn create(out: Out, a: &CreateKeyspace) -> Result<(), Failure> {
    let db = to_write(&a.place)?;
    let made = db.create_keyspace_of(&a.keyspace, a.kind).map(drop);
    db.close()?;
    made?;
    if out.json {
        say!("{}", json!({ "created": a.keyspace, "kind": kind_text(a.kind) }))?;
    } else {
        out.note(format!("created {} ({})", a.keyspace, kind_text(a.kind)));
    }
    Ok(())
}

fn find(db: &varve::Db, name: &str) -> Result<KeyspaceInfo, Failure> {
    let found = db.keyspaces()?.into_iter().find(|k| k.name == name);
    found.ok_or_else(|| varve::Error::NoSuchKeyspace(name.into()).into())
}

fn set(out: Out, a: &SetKeyspace) -> Result<(), Failure> {
    let db = to_write(&a.place)?;
    let result = changed(&db, a);
    db.close()?;
    let kind = result?;
    if out.json {
        say!("{}", json!({ "keyspace": a.keyspace, "kind": kind }))?;
    } else {
        out.note(format!("{} is {kind}", a.keyspace));
    }
    Ok(())
}

fn changed(db: &varve::Db, a: &SetKeyspace) -> Result<String, Failure> {
    let can: Vec<&str> = LSM_OPTIONS.settings.iter().map(|setting| setting.name).collect();
    let can = can.join(", ");
    let KeyspaceKind::Lsm(mut options) = find(db, &a.keyspace)?.kind else {
        return Err(Failure::Usage(format!("{} is a tree, which has no options to be changed", a.keyspace)));
    };
    for text in &a.options {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Failure::Usage(format!("{text:?}: give OPTION=VALUE; there are {can}")))?;
        if name == "kind" {
            return Err(Failure::Usage(format!(
                "what a keyspace is made of cannot change; these options can: {can}. Make another one and copy: \
                 `varve dump --keyspace {}` and `varve load`",
                a.keyspace
            )));
        }
        options.set(name, value).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    db.keyspace(&a.keyspace)?.set_lsm_options(options)?;
    Ok(kind_text(KeyspaceKind::Lsm(options)))
}

fn info(out: Out, a: &OneKeyspace) -> Result<(), Failure> {
    let db = to_look(out, &a.place)?;
    let found = find(&db, &a.keyspace);
    let stats = db.stats().lsm.into_iter().find(|s| s.name == a.keyspace);
    db.close()?;
    let info = found?;
    if out.json {
        say!("{}", as_json(&info, stats.as_ref()))?;
        return Ok(());
    }
    let mut rows = vec![
        ("kind".to_string(), kind_text(info.kind)),
        ("id".to_string(), info.id.0.to_string()),
        ("read-only".to_string(), if info.read_only { "yes" } else { "no" }.to_string()),
    ];
    if let Some(merge) = stats.as_ref().and_then(|stats| stats.without_worker) {
        rows.push(("worker".into(), format!("none: this process merges alone, as {}", merge.local())));
    }
    if let KeyspaceKind::Lsm(options) = info.kind {
        rows.extend(LSM_OPTIONS.settings.iter().map(|s| (format!("  {}", s.name), in_words(s, &options))));
    }
    let mut stdout = Stdout;
    table(&mut stdout, &rows)?;
    if let Some(stats) = stats {
        table(&mut stdout, &levels(&stats))?;
    }
    Ok(())
}

/// An option's value; where it is none, what that means.
fn in_words(setting: &Setting<LsmOptions>, of: &LsmOptions) -> String {
    match setting.value(of) {
        none if setting.none.is_some() && none == setting.value(&LsmOptions::default()) => setting.default(),
        value => value,
    }
}

/// The levels of an LSM keyspace, a row for each.
fn levels(of: &LsmStats) -> Vec<(String, String)> {
    let row = |(n, l): (usize, &LsmLevel)| {
        let limit = l.limit_bytes.map_or(String::new(), |limit| format!(" of {}", bytes(limit)));
        (format!("  level {n}"), format!("{} segments, {}{limit}", l.segments, bytes(l.bytes)))
    };
    of.levels.iter().enumerate().map(row).collect()
}

fn as_json(info: &KeyspaceInfo, stats: Option<&LsmStats>) -> serde_json::Value {
    let options = match info.kind {
        KeyspaceKind::Tree => json!({}),
        KeyspaceKind::Lsm(options) => {
            LSM_OPTIONS.settings.iter().map(|s| (s.name.to_string(), json!(s.value(&options)))).collect()
        }
    };
    let level = |l: &LsmLevel| json!({ "segments": l.segments, "bytes": l.bytes, "limit_bytes": l.limit_bytes });
    let levels: Vec<_> = stats.iter().flat_map(|s| &s.levels).map(level).collect();
    json!({ "name": info.name, "id": info.id.0, "kind": kind_text(info.kind).split(',').next(),
        "read_only": info.read_only, "options": options, "levels": levels,
        "without_worker": stats.is_some_and(|s| s.without_worker.is_some()) })
}
