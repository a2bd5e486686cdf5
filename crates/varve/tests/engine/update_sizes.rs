//! Sizes of page updates: how many are small is told to the byte.

use varve::{Db, Devices, Layout, Options};
use varve_models::MemDevice;

const ROWS: u64 = 2000;
/// Rows apart that lie on different leaves.
const APART: u64 = 50;

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn every_update_is_in_the_class_of_the_bytes_that_it_changed() {
    varve_rt::sim::run(varve_rt::sim::Config::default(), || {
        let devices = Devices::new(MemDevice::new(0), MemDevice::new(0));
        let options = Options { cleaners: false, update_sizes: true, ..Options::default().cache_mb(8) };
        let layout = Layout { page_size: 4096, ..Layout::default() };
        let db = Db::create_on(devices.clone(), &layout, options.clone()).unwrap();
        let rows = db.create_keyspace("rows").unwrap();
        (0..ROWS).for_each(|n| rows.put(&key(n), &[7; 200]).unwrap());
        drop(rows);
        db.close().unwrap();

        let db = Db::open_on(devices, options).unwrap();
        let rows = db.keyspace("rows").unwrap();
        // Of every other row of these three bytes change, of the others twenty.
        for n in (0..ROWS).step_by(APART as usize) {
            let mut value = [7; 200];
            let changed = if (n / APART).is_multiple_of(2) { 3 } else { 20 };
            value[100..100 + changed].fill(8);
            rows.put(&key(n), &value).unwrap();
        }
        db.checkpoint().unwrap();
        let updates = db.stats().updates;
        let sizes = updates.iter().find(|of| of.name == "rows").expect("its pages were written").sizes;
        let each = ROWS / APART / 2;
        assert_eq!((sizes.new, sizes.updates, sizes.more), (0, 2 * each, 0), "{sizes:?}");
        assert_eq!(sizes.net[0], each, "three bytes: {sizes:?}");
        assert_eq!(sizes.net[4], each, "twenty bytes: {sizes:?}");
        assert_eq!(sizes.bytes.0, each * 23, "{sizes:?}");
        // With the header's, which has the page's LSN.
        let small: u64 = sizes.gross[..4].iter().sum();
        assert!(small == each && sizes.bytes.1 > sizes.bytes.0, "{sizes:?}");
        drop(rows);
        db.close().unwrap();
    })
    .unwrap();
}
