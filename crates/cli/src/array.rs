//! `array`: what its commands say of a database that lies on drives.

use crate::args::Place;
use crate::args::array::{ArrayCommand, ReadOnly};
use crate::open::{to_look, to_write};
use crate::output::{Failure, Out, Stdout, bytes, say, table};
use crate::{array_change, array_plan};
use serde_json::{Value, json};
use varve::array::DriveStats;
use varve::{ArrayStats, SealReport};

pub fn run(out: Out, command: &ArrayCommand) -> Result<(), Failure> {
    match command {
        ArrayCommand::Stat(place) => stat(out, place),
        ArrayCommand::Plan(a) => array_plan::run(out, a),
        ArrayCommand::Apply(a) => array_change::apply(out, a),
        ArrayCommand::Pause(a) => array_change::pause(out, a),
        ArrayCommand::Set(a) => array_change::set(out, a),
        ArrayCommand::Add(a) => array_change::add(out, a),
        ArrayCommand::Drain(a) => array_change::drain(out, a),
        ArrayCommand::Replace(a) => array_change::replace(out, a),
    }
}

/// Marks a keyspace, and says what an array makes of that.
pub fn read_only(out: Out, a: &ReadOnly) -> Result<(), Failure> {
    let db = to_write(&a.place)?;
    let report = db.keyspace(&a.keyspace)?.set_read_only(!a.undo)?;
    let on_array = db.array_stats().is_some();
    db.close()?;
    if out.json {
        say!(
            "{}",
            json!({ "keyspace": a.keyspace, "read_only": !a.undo, "pages": report.pages,
                "sealed_pages": report.sealed_pages, "sealed_extents": report.sealed_extents })
        )?;
        return Ok(());
    }
    let name = &a.keyspace;
    out.note(format!("{name} {}", if a.undo { "can be changed again" } else { "is read-only" }));
    let SealReport { pages, sealed_pages, sealed_extents } = report;
    if on_array && pages > 0 {
        out.note(format!(
            "of {pages} pages that nothing changes, {sealed_pages} lie in {sealed_extents} extents of their own"
        ));
    }
    if on_array && !a.undo && sealed_pages * 2 < pages {
        out.note("the others share extents with what changes: `dump` and `load` it anew, in bulk, to set it apart");
    }
    Ok(())
}

fn stat(out: Out, place: &Place) -> Result<(), Failure> {
    let db = to_look(out, place)?;
    // What lies on a drive that is missing cannot be looked at.
    let _ = db.array_seal();
    let stats = db.array_stats().ok_or_else(|| {
        Failure::Failed(format!(
            "the pages of {} lie on one device: `varve create DB --drive PATH:SIZE --drive ..` makes a database on \
            an array",
            place.dir.display()
        ))
    })?;
    if out.json {
        say!("{}", as_json(&stats))?;
    } else {
        table(&mut Stdout, &rows(&stats))?;
    }
    Ok(db.close()?)
}

fn as_json(stats: &ArrayStats) -> Value {
    let drive = |drive: &DriveStats| {
        json!({
            "number": drive.number, "name": drive.name, "bytes": drive.bytes, "extents": drive.used,
            "slots": drive.slots, "share": drive.share,
            "reads": drive.device.read.count, "read_bytes": drive.device.read.bytes,
            "writes": drive.device.write.count, "write_bytes": drive.device.write.bytes,
            "flushes": drive.device.flush.count, "access": drive.access,
        })
    };
    let drives: Vec<Value> = stats.drives.iter().map(drive).collect();
    json!({
        "layout": stats.layout, "extent": stats.extent, "unit": stats.unit, "bytes": stats.bytes, "room": stats.room,
        "sealed": stats.sealed, "generation": stats.generation, "drives": drives,
    })
}

fn rows(stats: &ArrayStats) -> Vec<(String, String)> {
    let mut rows = vec![
        ("layout".into(), stats.layout.to_string()),
        ("extent".into(), bytes(stats.extent)),
        ("unit".into(), bytes(stats.unit)),
        ("pages".into(), format!("{} of {}", bytes(stats.bytes), bytes(stats.room))),
        ("sealed".into(), format!("{} extents", stats.sealed)),
    ];
    for drive in &stats.drives {
        let (read, written) = (bytes(drive.device.read.bytes), bytes(drive.device.write.bytes));
        let (DriveStats { number, name, used, slots, access, .. }, size) = (drive, bytes(drive.bytes));
        let lies = format!("{size}, {used} of {slots} extents, {read} read, {written} written, {access}");
        rows.push((format!("drive {number} {name}"), lies));
    }
    rows
}
