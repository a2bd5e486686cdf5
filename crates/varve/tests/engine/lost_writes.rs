//! `detect_lost_writes`: every old version of a page is found, and nothing else is taken for one: after crashes,
//! compactions, bulk loads, restores, and when it is switched on and off.

use std::sync::Arc;
use varve::{BackupOptions, Db, Devices, Error, Layout, Mistake, Options, RestoreOptions, restore_on};
use varve_device::{AlignedBuf, Device, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice, PowerSupply, When};
use varve_volume::{PageId, page};

const PAGE: usize = 4096;

fn options(detect: Option<bool>) -> Options {
    Options { cache_bytes: 1 << 20, cleaners: false, detect_lost_writes: detect, ..Options::default() }
}

fn layout() -> Layout {
    Layout { page_size: PAGE, log_bytes: 1 << 20, ..Layout::default() }
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:07}").into_bytes()
}

/// Rows `from` to `to`, each of its `turn`.
fn put(db: &Db, rows: std::ops::Range<u32>, turn: u8) {
    let space = db.keyspace_or_create("rows").unwrap();
    for first in rows.clone().step_by(50) {
        let mut tx = db.begin().unwrap();
        for n in first..(first + 50).min(rows.end) {
            tx.put(&space, &key(n), &[turn; 150]).unwrap();
        }
        tx.commit().unwrap();
    }
}

/// Reads all rows and checks twice: the second time nothing is unknown.
fn sound(db: &Db, rows: usize) {
    let space = db.keyspace("rows").unwrap();
    assert_eq!(db.snapshot().unwrap().count(&space, ..).unwrap() as usize, rows);
    for _ in 0..2 {
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
    assert_eq!(db.stats().lost_writes.map_or(0, |s| s.found), 0);
}

struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
}

impl Machine {
    fn new() -> Machine {
        Machine { data: MemDevice::new(0), log: MemDevice::new(0) }
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn open(&self, detect: Option<bool>) -> varve::Result<Db> {
        Db::open_on(self.devices(), options(detect))
    }

    fn page(&self, id: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        self.data.peek(id * PAGE as u64, &mut bytes);
        bytes
    }

    fn put_page(&self, id: u64, bytes: &[u8]) {
        let mut block = AlignedBuf::new(PAGE);
        block.copy_from_slice(bytes);
        varve_device::write_at(&*self.data, id * PAGE as u64, &block, true).unwrap();
    }
}

#[test]
fn an_old_version_that_fits_is_found_with_marks_only() {
    let marks_not_kept = Options { faults: Mistake::MarksNotKept.into(), ..options(Some(true)) };
    for (detect, options) in [(false, options(Some(false))), (true, options(Some(true))), (false, marks_not_kept)] {
        let open =
            |machine: &Machine| Db::open_on(machine.devices(), Options { detect_lost_writes: None, ..options.clone() });
        let machine = Machine::new();
        let db = Db::create_on(machine.devices(), &layout(), options.clone()).unwrap();
        put(&db, 0..400, 1);
        db.close().unwrap();
        let leaf =
            (2..).find(|id| page::kind(&machine.page(*id)) == 2 && machine.page(*id)[60..].contains(&1)).unwrap();
        let old = machine.page(leaf);
        let db = open(&machine).unwrap();
        put(&db, 0..400, 2);
        db.close().unwrap();
        assert_ne!(old, machine.page(leaf));
        machine.put_page(leaf, &old);
        let db = open(&machine).unwrap();
        let space = db.keyspace("rows").unwrap();
        let reads: Vec<_> = (0..400).map(|n| space.get(&key(n))).collect();
        let stale = reads.iter().filter(|r| matches!(r, Ok(Some(value)) if value[0] == 1)).count();
        let named = |e: &Error| e.to_string().contains(&format!("page {leaf} ")) && e.to_string().contains("was lost");
        let found = reads.iter().filter(|r| matches!(r, Err(e) if named(e))).count();
        assert_eq!((stale > 0, found > 0), (!detect, detect), "{stale} stale, {found} found");
        assert_eq!(db.check().unwrap().is_clean(), !detect);
    }
}

#[test]
fn switched_on_later_a_check_makes_everything_known_and_off_gives_the_pages_back() {
    let machine = Machine::new();
    let db = Db::create_on(machine.devices(), &layout(), options(None)).unwrap();
    put(&db, 0..2000, 1);
    let before = db.stats();
    db.close().unwrap();
    let db = machine.open(Some(true)).unwrap();
    sound(&db, 2000);
    let on = db.stats();
    assert!(on.lost_writes.unwrap().mark_pages > 0);
    db.close().unwrap();
    // A page that was not written since: its mark is the check's.
    let leaf = (2..).find(|id| page::kind(&machine.page(*id)) == 2).unwrap();
    let right = machine.page(leaf);
    let mut old = right.clone();
    let lsn = page::lsn(&old) - 8;
    page::set_lsn(&mut old, lsn);
    page::seal(&mut old, PageId(leaf));
    machine.put_page(leaf, &old);
    assert!(!machine.open(None).unwrap().check().unwrap().is_clean());
    machine.put_page(leaf, &right);
    let db = machine.open(Some(false)).unwrap();
    sound(&db, 2000);
    let used = |s: &varve::Stats| s.pages - s.free_pages;
    assert_eq!((used(&db.stats()), db.stats().lost_writes), (used(&before), None));
    db.close().unwrap();
    sound(&machine.open(Some(true)).unwrap(), 2000);
}

#[test]
fn more_marks_than_fit_in_memory() {
    let machine = Machine::new();
    let db = Db::create_on(machine.devices(), &layout(), options(Some(true))).unwrap();
    let mut load = db.bulk_load("rows").unwrap();
    (0..14_000u32).for_each(|n| load.push(&key(n), &vec![n as u8; 6000]).unwrap());
    load.finish().unwrap();
    let stats = db.stats().lost_writes.unwrap();
    assert!(stats.mark_pages > stats.in_memory, "{stats:?}");
    put(&db, 3000..3400, 2);
    sound(&db, 14_000);
    drop(db); // as after a crash
    let db = machine.open(None).unwrap();
    put(&db, 9000..9400, 3);
    sound(&db, 14_000);
    db.close().unwrap();
    sound(&machine.open(None).unwrap(), 14_000);
}

#[test]
fn compactions_and_restores_know_what_they_move() {
    let machine = Machine::new();
    let db = Db::create_on(machine.devices(), &layout(), options(Some(true))).unwrap();
    put(&db, 0..60_000, 1);
    let space = db.keyspace("rows").unwrap();
    for first in (0..20_000).step_by(200) {
        let (from, to) = (key(first), key(first + 200));
        db.transact(|tx| tx.delete_range(&space, from.as_slice()..to.as_slice()).map(drop)).unwrap();
    }
    db.checkpoint().unwrap();
    let report = db.compact().unwrap();
    assert!(report.pages < report.pages_before * 4 / 5, "{report:?}");
    sound(&db, 40_000);
    put(&db, 20_000..60_000, 2);
    sound(&db, 40_000);
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions::default()).unwrap();
    db.close().unwrap();
    sound(&machine.open(None).unwrap(), 40_000);
    let copy = Machine::new();
    restore_on(&copy.devices(), &mut [&mut &backup[..]], &RestoreOptions::default()).unwrap();
    for detect in [None, Some(true), None] {
        let db = copy.open(detect).unwrap();
        sound(&db, 40_000);
        db.close().unwrap();
    }
}

#[test]
fn what_recovery_writes_is_remembered() {
    for (broken, clean) in [(None, true), (Some(Mistake::MarksOfRecoveryLost), false)] {
        let machine = Machine::new();
        let db = Db::create_on(machine.devices(), &layout(), options(Some(true))).unwrap();
        put(&db, 0..3000, 1);
        db.checkpoint().unwrap();
        put(&db, 0..3000, 2);
        drop(db); // as after a crash
        let db = Db::open_on(machine.devices(), Options { faults: broken.into(), pool_frames: 24, ..options(None) })
            .unwrap();
        assert!(db.recovery_report().groups > 0);
        assert_eq!(db.check().unwrap().is_clean(), clean);
    }
}

#[test]
fn marks_lie_where_nothing_of_before_a_crash_is_written_any_more() {
    for crash_again in [false, true] {
        let machine = Machine::new();
        // Room for all of it, so that nothing is written before it must be.
        let roomy = |detect| Options { cache_bytes: 16 << 20, ..options(detect) };
        let db = Db::create_on(machine.devices(), &layout(), roomy(Some(false))).unwrap();
        put(&db, 0..3000, 1);
        let space = db.keyspace("rows").unwrap();
        db.transact(|tx| tx.delete_range(&space, ..).map(drop)).unwrap();
        drop((db, space)); // as after a crash
        // Recovery makes the freed pages again, and then frees them: they are dirty, and not in use.
        let mut db = Db::open_on(machine.devices(), roomy(Some(true))).unwrap();
        assert!(db.recovery_report().images > 20, "{:?}", db.recovery_report());
        let is_marks = |id: &u64| page::kind(&machine.page(*id)) == 7;
        let marks: Vec<u64> = (0..400).filter(is_marks).collect();
        assert!(!marks.is_empty());
        put(&db, 0..100, 2);
        if crash_again {
            drop(db);
            db = Db::open_on(machine.devices(), roomy(None)).unwrap();
        }
        db.checkpoint().unwrap();
        assert!(
            marks.iter().all(is_marks),
            "{marks:?}, of which {:?} are left",
            (0..400).filter(is_marks).collect::<Vec<_>>()
        );
        sound(&db, 100);
        db.close().unwrap();
        sound(&machine.open(None).unwrap(), 100);
    }
}

/// So many that the marks take more than one unit that a power cut tears off.
const MANY: u32 = 8000;

/// A database of that many rows that was closed, and its two mark pages.
fn with_two_mark_pages() -> (Machine, [u64; 2]) {
    let machine = Machine::new();
    let db = Db::create_on(machine.devices(), &layout(), options(Some(true))).unwrap();
    (1..6).for_each(|turn| {
        put(&db, 0..MANY, turn);
        db.checkpoint().unwrap();
    });
    db.close().unwrap();
    let copies: Vec<u64> = (2..900).filter(|id| page::kind(&machine.page(*id)) == 7).collect();
    (machine, copies.try_into().expect("two"))
}

#[test]
fn a_mark_page_that_cannot_be_read_accuses_nobody() {
    let (machine, copies) = with_two_mark_pages();
    for when in [When::Nth(1), When::From(1)] {
        for unread in &copies {
            let range = unread * PAGE as u64..(unread + 1) * PAGE as u64;
            let plan = FaultPlan::new(1).rule(&[OpKind::Read], Some(range), when, Fault::Eio);
            let data = Faulty::new(machine.data.clone(), plan);
            let db = Db::open_on(Devices::new(data.clone(), machine.log.clone()), options(None)).unwrap();
            assert!(data.counts().errors() > 0, "page {unread} was asked for");
            let space = db.keyspace("rows").unwrap();
            assert_eq!(db.snapshot().unwrap().count(&space, ..).unwrap(), u64::from(MANY));
            assert_eq!(db.stats().lost_writes.unwrap().found, 0, "page {unread}, {when:?}");
            put(&db, 0..MANY, 9);
            drop(space);
            db.close().unwrap();
            let db = machine.open(None).unwrap();
            sound(&db, MANY as usize);
            db.close().unwrap();
        }
    }
}

#[test]
fn power_that_goes_while_marks_are_written_over_what_cannot_be_read_accuses_nobody() {
    let (closed, copies) = with_two_mark_pages();
    let range = |page: u64| page * PAGE as u64..(page + 1) * PAGE as u64;
    for seed in 0..48 {
        let machine = Machine { data: closed.data.clone_image(), log: closed.log.clone_image() };
        let unread = copies[seed as usize % 2];
        let when = if seed % 4 < 2 { When::Nth(1) } else { When::From(1) };
        let supply = PowerSupply::new();
        supply.attach(machine.data.clone());
        supply.attach(machine.log.clone());
        let plan = FaultPlan::new(seed)
            .rule(&[OpKind::Read], Some(range(unread)), when, Fault::Eio)
            .rule(&[OpKind::Write], Some(range(copies[0])), When::Nth(1), Fault::PowerCut)
            .rule(&[OpKind::Write], Some(range(copies[1])), When::Nth(1), Fault::PowerCut);
        let data = Faulty::powered(machine.data.clone(), plan, supply.clone());
        let db = Db::open_on(Devices::new(data, machine.log.clone()), options(None)).unwrap();
        // The other pages are as the marks on the device say, or should.
        put(&db, 0..10, 9);
        db.checkpoint().unwrap_err();
        drop(db);
        supply.restore();
        let db = machine.open(None).unwrap();
        sound(&db, MANY as usize);
        db.close().unwrap();
    }
}

/// A device that grows while a backup is made gets mark pages that the backup does not have, nor its log. A restored
/// database gives them back, wherever they lie.
#[test]
fn mark_pages_that_are_made_during_a_backup_do_not_hinder_its_restoration() {
    struct Grows {
        to: Vec<u8>,
        db: Db,
        rows: varve::Keyspace,
        grown: bool,
    }
    impl std::io::Write for Grows {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !self.grown && self.to.len() > 500_000 {
                self.grown = true;
                // Stored, and taken back: what stays of it are marks.
                let mut tx = self.db.begin().unwrap();
                tx.put_from(&self.rows, b"long", &mut std::io::Read::take(std::io::repeat(1), 24 << 20)).unwrap();
            }
            self.to.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let devices = || Devices::new(MemDevice::new(0), MemDevice::new(0));
    let options = Options { cache_bytes: 8 << 20, ..options(Some(true)) };
    let db = Db::create_on(devices(), &layout(), options.clone()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    rows.put(b"short", b"value").unwrap();
    let mut rng = varve_rt::Rng::from_seed(1);
    for n in 0..6000 {
        let mut value = vec![0; 1000];
        rng.fill_bytes(&mut value);
        rows.put(key(n), value).unwrap();
    }
    db.checkpoint().unwrap();
    let marks = || db.stats().lost_writes.unwrap().mark_pages;
    let before = marks();
    let mut to = Grows { to: Vec::new(), db: db.clone(), rows: rows.clone(), grown: false };
    db.backup(&mut to, BackupOptions::default()).unwrap();
    assert!(marks() > before, "marks were made meanwhile");
    let restored = devices();
    restore_on(&restored, &mut [&mut &to.to[..]], &RestoreOptions::default()).unwrap();
    let db = Db::open_on(restored, options).unwrap();
    assert_eq!(db.keyspace("rows").unwrap().get(b"short").unwrap().unwrap(), b"value");
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

/// Growing makes the store longer first, and then the page of the space map that covers what is new.
#[test]
fn a_store_that_a_crash_left_longer_than_its_map_is_opened() {
    let machine = Machine::new();
    let db = Db::create_on(machine.devices(), &layout(), options(Some(true))).unwrap();
    put(&db, 0..200, 1);
    drop(db); // as after a crash
    machine.data.set_len(200 << 20).unwrap();
    let db = machine.open(None).unwrap();
    sound(&db, 200);
    put(&db, 200..2000, 2);
    db.close().unwrap();
    sound(&machine.open(None).unwrap(), 2000);
}

/// A tier may go back to what its slow device holds of a page that was written and not synced before a crash. Pages
/// that the log makes again are written anew; marks have to be too, though they are what was found.
#[test]
fn marks_that_were_not_synced_before_a_crash_are_written_again_after_it() {
    let (closed, copies) = with_two_mark_pages();
    let before = copies.map(|page| closed.page(page));
    let mut tried = 0;
    for cut in 1..10 {
        let machine = Machine { data: closed.data.clone_image(), log: closed.log.clone_image() };
        let supply = PowerSupply::new();
        supply.attach(machine.data.clone());
        supply.attach(machine.log.clone());
        // At a write of the log's superblocks: the pages may be written, and the log not say so yet.
        let plan = FaultPlan::new(cut).rule(&[OpKind::Write], Some(0..8192), When::Nth(cut), Fault::PowerCut);
        let log = Faulty::powered(machine.log.clone(), plan, supply.clone());
        let data = Faulty::powered(machine.data.clone(), FaultPlan::new(cut), supply.clone());
        if let Ok(db) = Db::open_on(Devices::new(data, log), options(None)) {
            put(&db, 0..10, 9);
            let _ = db.checkpoint();
        }
        supply.restore();

        let db = machine.open(None).unwrap();
        let written = (0..2).find(|i| machine.page(copies[*i]) != before[*i]);
        // Where the checkpoint was complete the marks are of what is not made again.
        let made_again = db.recovery_report().images > 0;
        if let Some(i) = written.filter(|_| made_again) {
            machine.put_page(copies[i], &before[i]);
            tried += 1;
        }
        db.close().unwrap();
        let db = machine.open(None).unwrap();
        sound(&db, MANY as usize);
        db.close().unwrap();
    }
    assert!(tried > 0, "in some of the crashes marks are written");
}
