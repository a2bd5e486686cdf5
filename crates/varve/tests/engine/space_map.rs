//! A page of the space map that was made is never taken for one that was not made yet.

use std::sync::Arc;
use varve::{Damage, Db, Devices, Durability, Error, Layout, Options, PageId};
use varve_device::{Device, read_at, write_at};
use varve_models::MemDevice;
use varve_volume::page;

const PAGE: usize = 4096;
/// Pages that a page of the space map covers.
const SPAN: u64 = 8 * 4048;
const VALUE: usize = 1 << 20;

struct Machine {
    data: Arc<MemDevice>,
    log: Arc<MemDevice>,
}

fn options() -> Options {
    Options { durability: Durability::None, ..Options::default().cache_mb(64) }
}

impl Machine {
    fn copy(&self) -> Machine {
        Machine { data: self.data.clone_image(), log: self.log.clone_image() }
    }

    fn devices(&self) -> Devices {
        Devices::new(self.data.clone(), self.log.clone())
    }

    fn write(&self, id: u64, bytes: &[u8]) {
        write_at(&*self.data, id * PAGE as u64, bytes, true).unwrap();
    }

    /// Without its second page of the space map.
    fn damaged(&self) -> Machine {
        let copy = self.copy();
        copy.write(SPAN, &[0; PAGE]);
        copy
    }

    #[track_caller]
    fn sound(&self) {
        let db = Db::open_on(self.devices(), options()).unwrap();
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        db.close().unwrap();
    }

    #[track_caller]
    fn refused(&self, options: Options) {
        let error = Db::open_on(self.devices(), options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Corrupt(Damage::Page { page: PageId(SPAN), .. })), "{error}");
        assert!(error.to_string().contains("space map"), "{error}");
    }
}

/// A database whose space map has two pages, after a checkpoint and after its close.
fn two_pages() -> (Machine, Machine) {
    let machine = Machine { data: MemDevice::new(0), log: MemDevice::new(0) };
    let layout = Layout { page_size: PAGE, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(machine.devices(), &layout, options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let value = vec![7; VALUE];
    let mut n = 0u32;
    while db.stats().pages - db.stats().free_pages < SPAN + 600 {
        rows.put(&n.to_be_bytes(), &value).unwrap();
        n += 1;
    }
    db.checkpoint().unwrap();
    let crashed = machine.copy();
    drop(rows);
    db.close().unwrap();
    (crashed, machine)
}

#[test]
fn a_blank_page_of_the_space_map_is_damage_that_is_named() {
    let (crashed, closed) = two_pages();
    crashed.copy().sound();
    crashed.damaged().refused(options());
    closed.damaged().refused(options());
    closed.damaged().refused(Options { read_only: true, ..options() });
    // A database of a release that did not count: what is blank counts as not made.
    let old = closed.damaged();
    for id in [2, 3] {
        let mut bytes = vec![0; PAGE];
        read_at(&*old.data, id * PAGE as u64, &mut bytes).unwrap();
        bytes[88..96].fill(0);
        page::seal(&mut bytes, PageId(id));
        old.write(id, &bytes);
    }
    Db::open_on(old.devices(), Options { read_only: true, ..options() }).unwrap().close().unwrap();
    // Pages that were cut off are not missed, also when the store has grown over their places.
    let db = Db::open_on(closed.devices(), options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    (0..200u32).for_each(|n| rows.delete(&n.to_be_bytes()).map(|_| ()).unwrap());
    drop(rows);
    assert!(db.compact().unwrap().pages < SPAN / 10);
    let cut = closed.copy();
    cut.data.set_len((SPAN + 600) * PAGE as u64).unwrap();
    cut.sound();
    db.close().unwrap();
    closed.sound();
}

#[test]
fn a_device_that_was_cut_below_what_is_in_use_is_opened_to_be_read_only() {
    let (crashed, closed) = two_pages();
    for machine in [crashed, closed] {
        for pages in [SPAN + 200, SPAN, SPAN - 1, 400] {
            let cut = machine.copy();
            cut.data.set_len(pages * PAGE as u64).unwrap();
            let error = Db::open_on(cut.devices(), options()).map(drop).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Corrupt(Damage::Page { .. }) | Error::Mismatch(_)), "{pages} pages: {said}");
            assert!(said.contains("salvage"), "{said}");
            assert_eq!(cut.data.len(), pages * PAGE as u64, "nothing grew");
        }
    }
}
