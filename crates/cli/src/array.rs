//! `array`: what its commands say of a database that lies on drives.

use crate::args::Place;
use crate::args::array::ArrayCommand;
use crate::open::open_to_look;
use crate::output::{Failure, Out, Stdout, bytes, say, table};
use serde_json::{Value, json};
use varve::ArrayStats;
use varve::array::DriveStats;

pub fn run(out: Out, command: &ArrayCommand) -> Result<(), Failure> {
    match command {
        ArrayCommand::Stat(place) => stat(out, place),
    }
}

fn stat(out: Out, place: &Place) -> Result<(), Failure> {
    let db = open_to_look(out, place)?;
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
            "name": drive.name, "bytes": drive.bytes, "extents": drive.used, "slots": drive.slots, "share": drive.share,
            "reads": drive.device.read.count, "read_bytes": drive.device.read.bytes,
            "writes": drive.device.write.count, "write_bytes": drive.device.write.bytes,
            "flushes": drive.device.flush.count, "access": drive.access,
        })
    };
    let drives: Vec<Value> = stats.drives.iter().map(drive).collect();
    json!({
        "layout": stats.layout, "extent": stats.extent, "unit": stats.unit, "bytes": stats.bytes, "room": stats.room,
        "generation": stats.generation, "drives": drives,
    })
}

fn rows(stats: &ArrayStats) -> Vec<(String, String)> {
    let mut rows = vec![
        ("layout".into(), stats.layout.to_string()),
        ("extent".into(), bytes(stats.extent)),
        ("unit".into(), bytes(stats.unit)),
        ("pages".into(), format!("{} of {}", bytes(stats.bytes), bytes(stats.room))),
    ];
    for (i, drive) in stats.drives.iter().enumerate() {
        let (read, written) = (bytes(drive.device.read.bytes), bytes(drive.device.write.bytes));
        let (DriveStats { name, used, slots, access, .. }, size) = (drive, bytes(drive.bytes));
        let lies = format!("{size}, {used} of {slots} extents, {read} read, {written} written, {access}");
        rows.push((format!("drive {i} {name}"), lies));
    }
    rows
}
