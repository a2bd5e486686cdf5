//! Tests of the log at its own surface: in memory, in simulation, with power cuts and damage.

mod basic;
mod checkpoints;
mod cuts;
mod damage;
mod growing;
mod pages;
mod recoveries;
mod shrinking;
mod stress;
mod torn_model;

use super::*;
use varve_device::Device;
use varve_models::MemDevice;
use varve_volume::Lsn;

/// A small log: 64 KiB segments, 16 KiB buffer, so that wrap-around, growth and full buffers happen at once.
pub(super) fn small() -> LogConfig {
    LogConfig {
        capacity: 128 << 10,
        max_capacity: 256 << 10,
        segment: 16 << 10,
        buffer: 16 << 10,
        ..LogConfig::default()
    }
}

pub(super) fn header() -> DbHeader {
    DbHeader { uuid: *b"0123456789abcdef", page_size: 4096, room: 0, created: 7, options: b"opts".to_vec() }
}

pub(super) fn fresh(cfg: LogConfig) -> (Arc<dyn Device>, Arc<Log>) {
    let dev: Arc<dyn Device> = MemDevice::new(0);
    let log = Log::create(dev.clone(), cfg, header()).unwrap();
    (dev, log)
}

/// Ends and bodies of groups.
pub(super) type Groups = Vec<(Lsn, Vec<u8>)>;

/// Every group from `from` on, and the end.
pub(super) fn read_all(log: &Log, from: Lsn) -> Result<(Groups, LogEnd)> {
    let mut reader = log.scan(from);
    let mut groups = Vec::new();
    loop {
        match reader.next_group()? {
            Step::Group(g) => groups.push((g.end, g.body.to_vec())),
            Step::End(end) => return Ok((groups, end)),
        }
    }
}

/// Opens after a crash: reads everything from the redo point, and goes on at the end.
pub(super) fn recover(dev: &Arc<dyn Device>, cfg: LogConfig) -> Result<(Arc<Log>, Groups, LogEnd)> {
    let (log, state) = Log::open(dev.clone(), cfg, false)?;
    let (groups, end) = read_all(&log, state.redo)?;
    log.note_recovered(end.at);
    log.resume_at(end.at, false)?;
    Ok((log, groups, end))
}

/// A body that tells its number and has a given length.
pub(super) fn body(n: u64, len: usize) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|i| (n as usize * 31 + i * 7) as u8));
    bytes
}
