//! Databases on arrays of drives in memory.

#![allow(dead_code)]

use std::sync::Arc;
use varve::array::{Array, Given, Layout as ArrayLayout, NewDrive, OpenHow};
use varve::{Db, Devices, Keyspace, Layout, Options};
use varve_device::Device;
use varve_models::MemDevice;

pub const MIB: u64 = 1 << 20;
pub const EXTENT: u64 = 2 * MIB;

pub struct Rig {
    pub drives: Vec<Arc<MemDevice>>,
    pub log: Arc<MemDevice>,
}

pub fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

impl Rig {
    /// Drives of so many MiB each.
    pub fn new(sizes: &[u64]) -> Rig {
        Rig { drives: sizes.iter().map(|mib| MemDevice::new(mib * MIB)).collect(), log: MemDevice::new(0) }
    }

    pub fn array(&self, create: Option<ArrayLayout>) -> Arc<Array> {
        let drives = || self.drives.iter().map(|drive| drive.clone() as Arc<dyn Device>);
        match create {
            Some(layout) => {
                let new = |device| NewDrive { device, blank: true };
                Array::create([7; 16], drives().map(new).collect(), EXTENT, layout).unwrap()
            }
            None => {
                let given = |(i, device)| Given { name: format!("drive {i}"), device: Ok(device) };
                Array::open(drives().enumerate().map(given).collect(), OpenHow::Writing).unwrap()
            }
        }
    }

    pub fn create(&self, layout: ArrayLayout, options: Options) -> (Db, Arc<Array>) {
        let array = self.array(Some(layout));
        let devices = Devices::on_array(array.clone(), self.log.clone());
        let layout = Layout { log_bytes: 4 << 20, page_size: 4096, ..Layout::default() };
        (Db::create_on(devices, &layout, options).unwrap(), array)
    }

    pub fn open(&self, options: Options) -> (Db, Arc<Array>) {
        let array = self.array(None);
        (Db::open_on(Devices::on_array(array.clone(), self.log.clone()), options).unwrap(), array)
    }
}

/// By the drives' equal shares.
pub fn equal(drives: usize) -> ArrayLayout {
    ArrayLayout::Rodi { shares: vec![1.0; drives] }
}

pub fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// A keyspace of so many rows of 400 bytes, loaded in bulk.
pub fn load(db: &Db, name: &str, rows: u32) -> Keyspace {
    let mut load = db.bulk_load(name).unwrap();
    (0..rows).for_each(|n| load.push(&key(n), format!("{name} {n:0390}").as_bytes()).unwrap());
    load.finish().unwrap()
}

/// The same row by row.
pub fn fill(db: &Db, name: &str, rows: u32) -> Keyspace {
    let keyspace = db.create_keyspace(name).unwrap();
    (0..rows).for_each(|n| {
        keyspace.put_with(&key(n), format!("{name} {n:0390}").as_bytes(), varve::Durability::None).unwrap();
    });
    keyspace
}

/// Whether all rows are what was written.
pub fn assert_whole(keyspace: &Keyspace, rows: u32) {
    for n in 0..rows {
        let expected = format!("{} {n:0390}", keyspace.name());
        assert_eq!(keyspace.get(&key(n)).unwrap().as_deref(), Some(expected.as_bytes()), "{} {n}", keyspace.name());
    }
}

pub fn sealed(array: &Array) -> usize {
    array.used().iter().filter(|used| used.sealed).count()
}
