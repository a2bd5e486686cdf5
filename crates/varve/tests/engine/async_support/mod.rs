//! Futures, and databases that do not fit into memory for them to read.

#![allow(dead_code)]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use varve::{Db, Devices, Durability, Keyspace, KeyspaceKind, Layout, LsmOptions, Options};
use varve_models::MemDevice;
use varve_rt::Event;

pub const ROWS: u32 = 20_000;

struct Woken(Event);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.set();
    }
}

/// The simplest of all executors: looks again when it is woken, and not before.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (mut future, woken) = (pin!(future), Arc::new(Woken(Event::new())));
    let waker = woken.clone().into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => woken.0.wait(),
        }
        woken.0.reset();
    }
}

/// What is known at once.
pub fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

pub fn options() -> Options {
    Options { cache_bytes: 8 << 20, durability: Durability::None, ..Options::default() }
}

/// Devices with a database of more rows than fit into memory.
pub fn filled(kind: KeyspaceKind, data: Arc<dyn varve_device::Device>) -> Devices {
    let devices = Devices::new(data, MemDevice::new(0));
    let db = Db::create_on(devices.clone(), &Layout::default(), options()).unwrap();
    let rows = db.create_keyspace_of("rows", kind).unwrap();
    (0..ROWS).for_each(|n| rows.put(n.to_be_bytes(), value(n)).unwrap());
    db.close().unwrap();
    devices
}

pub fn value(n: u32) -> Vec<u8> {
    n.to_be_bytes().repeat(200)
}

pub fn open(devices: &Devices) -> (Db, Keyspace) {
    let db = Db::open_on(devices.clone(), options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    (db, rows)
}

pub fn kinds() -> [KeyspaceKind; 2] {
    [KeyspaceKind::Tree, KeyspaceKind::Lsm(LsmOptions::default())]
}
