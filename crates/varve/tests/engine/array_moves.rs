//! A database that plans its array, moves its extents, and takes drives in and out, while work goes on.

use crate::array_support::{EXTENT, MIB, Rig, assert_whole, equal, fill, key, load, options, sealed};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use varve::array::curve::Curve;
use varve::array::{Array, Layout as ArrayLayout, NewDrive};
use varve::{Db, Error, Options};
use varve_models::MemDevice;

/// Fast readers that differ in what writes cost them.
fn curves() -> Vec<Option<Curve>> {
    let drive = |read: f64, write: f64| {
        Curve::by(&[4096, 32 << 10, 256 << 10, MIB, 8 * MIB], |r, _| 1.0 / (r / read + (1.0 - r) / write)).ok()
    };
    vec![drive(560.0, 480.0), drive(555.0, 525.0), drive(560.0, 100.0)]
}

const ROWS: u32 = 20_000;

/// Reads one keyspace and writes another, as often.
fn work(db: &Db, rounds: u32) {
    let (facts, changing) = (db.keyspace("facts").unwrap(), db.keyspace("changing").unwrap());
    for n in 0..rounds {
        for i in 0..10 {
            facts.get(&key((n * 977 + i * 499) % ROWS)).unwrap();
        }
        for i in 0..10 {
            let row = (n * 811 + i * 503) % 5000;
            let value = format!("changing {row:0390}");
            changing.put_with(&key(row), value.as_bytes(), varve::Durability::None).unwrap();
        }
        if n % 100 == 0 {
            db.checkpoint().unwrap();
        }
    }
}

fn made(rig: &Rig, options: Options) -> (Db, Arc<Array>) {
    let (db, array) = rig.create(equal(3), options);
    fill(&db, "changing", 5000);
    load(&db, "facts", ROWS).set_read_only(true).unwrap();
    work(&db, 1500);
    (db, array)
}

fn quick() -> Options {
    let mut options = Options { cache_bytes: 2 << 20, ..options() };
    options.array.rate = 1 << 30;
    options
}

/// The drives that sealed extents lie on, and those of the others.
fn drives_of(array: &Array) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let (map, used) = (array.map(), array.used());
    let (mut sealed, mut others) = (BTreeSet::new(), BTreeSet::new());
    for (entry, used) in map.entries.iter().zip(used) {
        if used.sealed {
            sealed.insert(entry.place.drive)
        } else {
            others.insert(entry.place.drive)
        };
    }
    (sealed, others)
}

/// Some drive has nothing but what is sealed.
fn apart(array: &Array) -> bool {
    let (sealed, others) = drives_of(array);
    sealed.iter().any(|drive| !others.contains(drive))
}

fn whole(db: &Db) {
    assert_whole(&db.keyspace("facts").unwrap(), ROWS);
    assert_whole(&db.keyspace("changing").unwrap(), 5000);
    assert!(db.check().unwrap().is_clean());
}

#[test]
fn what_is_only_read_goes_to_the_drives_that_gain_most_from_it() {
    let rig = Rig::new(&[64, 64, 64]);
    let (db, array) = made(&rig, quick());
    let told = db.array_plan(&curves()[..2]).unwrap_err().to_string();
    assert!(told.contains("drive 2") && told.contains("varve array set"), "{told}");
    let plan = db.array_plan(&curves()).unwrap();
    assert!(plan.k >= 1 && plan.after > plan.before * 1.05, "{plan:?}");
    let only: Vec<u16> = plan.drives.iter().filter(|d| d.reads_only).map(|d| d.number as u16).collect();
    assert!(plan.moved > 0 && plan.moved == plan.moves.len() as u64 * EXTENT, "{plan:?}");
    let loads: f64 = plan.drives.iter().map(|drive| drive.then.load).sum();
    assert!((loads - 1.0).abs() < 1e-9, "{plan:?}");
    // Clients go on meanwhile.
    let (other, stop) = (db.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let client = varve_rt::spawn("client", move || {
        while !stopped.load(Ordering::Relaxed) {
            work(&other, 50);
        }
    });
    let moves = db.array_apply(&plan).unwrap();
    assert_eq!(moves, plan.moves.len());
    if let Err(e) = db.array_apply(&plan) {
        assert!(matches!(e, Error::Invalid(_)) && e.to_string().contains("are moving"), "{e}");
    }
    let done = db.array_wait().unwrap();
    stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    let moved = db.array_moves().unwrap();
    assert!(done && moved.done > 0 && moved.left == 0 && !moved.running, "{moved:?}");
    let (_, others) = drives_of(&array);
    let apart = only.iter().all(|drive| !others.contains(drive));
    assert!(apart || moved.given_up > 0, "what changes is not on drives that only read: {others:?} {only:?} {moved:?}");
    assert!(
        matches!(&*array.layout(), ArrayLayout::Rodi { shares } if only.iter().all(|d| shares[usize::from(*d)] == 0.0))
    );
    // Another plan within the window moves nothing twice.
    let again = db.array_plan(&curves()).unwrap();
    let before = db.array_moves().unwrap().done;
    assert_eq!(
        db.array_apply(&again).unwrap(),
        again.moves.iter().filter(|(e, _)| !plan.moves.iter().any(|(m, _)| m == e)).count()
    );
    db.array_wait().unwrap();
    assert!(db.array_moves().unwrap().done <= before + again.moves.len() as u64);
    whole(&db);
    db.close().unwrap();
    // After an opening, the same extents are sealed again.
    let (db, array) = rig.open(quick());
    for _ in 0..100 {
        if sealed(&array) > 0 {
            break;
        }
        varve_rt::sleep(Duration::from_millis(50));
    }
    assert!(sealed(&array) >= 4);
    whole(&db);
    db.close().unwrap();
}

#[test]
fn unasked_too_once_the_curves_are_known() {
    let rig = Rig::new(&[64, 64, 64]);
    let mut options = quick();
    options.array.replan = Some(Duration::from_secs(1));
    let (db, array) = made(&rig, options);
    db.set_array_curves(curves()).unwrap();
    for _ in 0..40 {
        work(&db, 100);
        if apart(&array) {
            break;
        }
        varve_rt::sleep(Duration::from_millis(200));
    }
    assert!(apart(&array), "{:?}", db.array_moves());
    whole(&db);
    db.close().unwrap();
}

#[test]
fn paused_moves_go_on_when_they_are_told_to() {
    let rig = Rig::new(&[64, 64, 64]);
    let (db, _) = made(&rig, quick());
    db.array_pause(true).unwrap();
    let plan = db.array_plan(&curves()).unwrap();
    let moves = db.array_apply(&plan).unwrap();
    assert!(!db.array_wait().unwrap(), "it is paused");
    assert_eq!((db.array_moves().unwrap().left, db.array_moves().unwrap().done), (moves, 0));
    db.array_pause(false).unwrap();
    assert!(db.array_wait().unwrap());
    // A close in the middle of moves waits for none of them.
    db.array_pause(true).unwrap();
    let _ = db.array_plan(&curves()).and_then(|plan| db.array_apply(&plan));
    db.close().unwrap();
    let (db, _) = rig.open(quick());
    whole(&db);
    db.close().unwrap();
}

#[test]
fn drives_come_and_go_while_work_goes_on() {
    for layout in [equal(3), ArrayLayout::Stripe { unit: 256 << 10 }] {
        let mut rig = Rig::new(&[24, 24, 24]);
        let (db, array) = rig.create(layout, quick());
        fill(&db, "changing", 5000);
        load(&db, "facts", ROWS);
        let told = db.array_drain(7).unwrap_err().to_string();
        assert!(told.contains("no drive 7"), "{told}");
        let new = MemDevice::new(64 * MIB);
        let number = db.array_add_on(NewDrive { device: new.clone(), blank: true }, None).unwrap();
        assert_eq!(number, 3);
        rig.drives.push(new);
        let (other, stop) = (db.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let client = varve_rt::spawn("client", move || {
            while !stopped.load(Ordering::Relaxed) {
                work(&other, 50);
            }
        });
        assert!(db.array_drain(1).unwrap() > 0);
        assert!(db.array_wait().unwrap(), "{:?}", db.array_moves());
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap();
        assert_eq!(array.usage()[1], (0, 0));
        whole(&db);
        db.close().unwrap();
        rig.drives[1] = MemDevice::new(0);
        let (db, _) = rig.open(quick());
        whole(&db);
        db.close().unwrap();
    }
}

#[test]
fn a_drive_is_not_drained_without_room_for_its_extents() {
    let rig = Rig::new(&[24, 10, 10]);
    let (db, array) = rig.create(equal(3), quick());
    load(&db, "facts", ROWS * 3 / 2);
    let told = db.array_drain(0).unwrap_err().to_string();
    assert!(told.contains("bytes are missing") && told.contains("add a drive"), "{told}");
    assert!(!array.extents_on(0).is_empty() && !db.array_moves().unwrap().running);
    assert_whole(&db.keyspace("facts").unwrap(), ROWS * 3 / 2);
    db.close().unwrap();
}
