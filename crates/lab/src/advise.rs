//! The flash advisor's questions: from traces and profiles; and its answer as the file of a layout.

use crate::flash_layout::{Chips, LayoutFile, RegionSpec};
use crate::trace::{Reader, Record, TraceError};
use varve::flash::RegionConfig;
use varve::flash::advise::{Array, Goal, Mode, Question, Written};
use varve::{Flush, TraceEvent};
use varve_device::flash::CellMode;
use varve_models::flash::FlashConfig;

/// The array of a profile, and how its cells can be used. pSLC and odd-MLC cells are taken to endure as much as the
/// profile says of its own mode.
pub fn array(flash: &FlashConfig) -> Array {
    let modes = match flash.cell {
        CellMode::Mlc => vec![CellMode::Mlc, CellMode::OddMlc, CellMode::Pslc],
        mode => vec![mode],
    };
    let modes = modes.into_iter().map(|cells| mode(flash, cells)).collect();
    Array { geometry: flash.geometry, nop: flash.nop, modes }
}

fn mode(flash: &FlashConfig, mode: CellMode) -> Mode {
    let (g, table) = (&flash.geometry, flash.table());
    let byte = table.byte_ps as f64 / 1e3;
    let bus = f64::from(g.page_bytes) * byte + table.command as f64;
    let used = mode.used_pages(g.pages_per_block);
    assert!(!used.is_empty(), "a mode uses pages");
    let mean = |times: &[u64]| {
        let of = |page: &u32| times[mode.page_type(*page, g.pages_per_block).min(times.len() - 1)] as f64;
        used.iter().map(of).sum::<f64>() / used.len() as f64
    };
    Mode {
        mode,
        endurance: f64::from(flash.endurance),
        read: mean(&table.read) + bus,
        program: mean(&table.program) + bus,
        append: (table.program[0] as f64 + table.command as f64, byte),
        erase: table.erase as f64,
    }
}

/// The question of a trace. Errors: those of the trace; one without keyspaces, or of no buffer pool.
pub fn question(reader: &mut Reader, array: Array, goal: Goal) -> Result<Question, TraceError> {
    let how = "record one with keyspaces: `varve trace record --out FILE tpcc --dir DB ..`, or `varve bench .. --trace \
               FILE`, of this release";
    let (mut writes, mut without): (Vec<Written>, bool) = (Vec::new(), false);
    while let Some(record) = reader.next_record()? {
        if let Record::Pool { event: TraceEvent::Flush(flush), .. } = record {
            without |= flush.keyspace.is_none();
            writes.extend(flush.written());
        }
    }
    if without || reader.version().is_some_and(|version| version < 2) {
        return Err(TraceError::Option(format!("this trace does not say whose pages are written: {how}")));
    }
    if writes.is_empty() {
        return Err(TraceError::Option(format!("this trace has no page writes of a database: {how}")));
    }
    let (about, page_size) = (reader.about(), reader.page_size().unwrap_or(0));
    Ok(Question { writes, from: 0, names: about.keyspaces, pages: about.pages, page_size, array, goal, ageing: None })
}

/// The writes of a recorded run, as the advisor has them.
pub fn writes(flushes: &[Flush]) -> Vec<Written> {
    flushes.iter().filter_map(Flush::written).collect()
}

/// Regions as a file that `varve create --layout` reads.
pub fn layout_file(profile: &str, regions: &[RegionConfig]) -> LayoutFile {
    let region = |of: &RegionConfig| RegionSpec {
        name: of.name.clone(),
        chips: Some(Chips(of.chips.clone())),
        mode: Some(of.mode),
        n: Some(of.n),
        m: Some(of.m),
        spare_factor: Some(of.spare_factor),
        keyspaces: of.keyspaces.clone(),
        ..RegionSpec::default()
    };
    LayoutFile { profile: Some(profile.into()), regions: regions.iter().map(region).collect(), ..LayoutFile::default() }
}
