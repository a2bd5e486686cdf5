//! What the engine writes says what it belongs to, so that a device can keep it apart.

use std::sync::Arc;
use varve::{Db, Devices, Layout, Options};
use varve_device::Stream;
use varve_models::flash::{Contents, FlashConfig, Streams};
use varve_models::{FlashModel, MemDevice, MemOptions};

fn drive(blocks: u32) -> Arc<FlashModel> {
    let mut config = FlashConfig::one_plane(blocks, 64);
    config.ftl.streams = Streams::Hinted;
    FlashModel::new(&config, Contents::Full).unwrap()
}

/// The streams of the writes to data and log device of a small database; behind a tier or not.
fn written(fast: Option<Arc<FlashModel>>) -> (Vec<Stream>, Vec<Stream>) {
    let (data, log) = (drive(256), drive(128));
    let mut devices = Devices::new(data.clone(), log.clone());
    let mut layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    if let Some(fast) = &fast {
        devices = devices.with("fast", fast.clone());
        layout.fast_bytes = 8 << 20;
    }
    let db = Db::create_on(devices, &layout, Options::default().cache_mb(8)).unwrap();
    let names = ["one", "two"];
    for name in names {
        let rows = db.create_keyspace(name).unwrap();
        (0..400_u64).for_each(|n| rows.put(&n.to_be_bytes(), &[7; 100]).unwrap());
    }
    let mut load = db.bulk_load("loaded").unwrap();
    (0..800_u64).for_each(|n| load.push(&n.to_be_bytes(), &[8; 1000]).unwrap());
    load.finish().unwrap();
    db.checkpoint().unwrap();
    db.close().unwrap();
    let data = fast.map_or(data.streams(), |fast| fast.streams());
    (data, log.streams())
}

#[test]
fn log_trees_loads_and_each_keyspace_are_streams() {
    let (data, log) = written(None);
    assert!(log.contains(&Stream::LOG), "{log:?}");
    assert!(log.iter().all(|stream| [Stream::LOG, Stream::NONE].contains(stream)), "{log:?}");
    assert!(data.contains(&Stream::TREE) && data.contains(&Stream::BULK), "{data:?}");
    let fixed = [Stream::NONE, Stream::LOG, Stream::TREE, Stream::BULK];
    let own = data.iter().filter(|stream| !fixed.contains(stream)).count();
    assert_eq!(own, 3, "each keyspace has a stream of its own: {data:?}");
    assert!(!data.contains(&Stream::LOG));
}

#[test]
fn a_tier_passes_streams_on() {
    let (fast, _) = written(Some(drive(256)));
    let fixed = [Stream::NONE, Stream::LOG, Stream::TREE, Stream::BULK];
    assert!(fast.iter().filter(|stream| !fixed.contains(stream)).count() >= 1, "{fast:?}");
}

/// A device that keeps nothing apart has nothing to say.
#[test]
fn a_mixed_drive_counts_no_streams() {
    let drive = FlashModel::new(&FlashConfig::one_plane(64, 64), Contents::Full).unwrap();
    let log = MemDevice::with(0, MemOptions::default());
    let layout = Layout { page_size: 4096, log_bytes: 4 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(drive.clone(), log), &layout, Options::default().cache_mb(8)).unwrap();
    db.create_keyspace("rows").unwrap().put(b"k", b"v").unwrap();
    db.close().unwrap();
    assert!(drive.streams().is_empty());
}
