//! The native flash of a simulated database: its chips and regions, drawn from the seed. It is full of forgotten pages
//! when the database is made, so that garbage is collected from the beginning.

use super::plan::Plan;
use super::rows::NAMES;
use std::sync::Arc;
use varve::Faults;
use varve::flash::{FlashLayout, NativeFlash, RegionConfig};
use varve_device::AlignedBuf;
use varve_device::flash::{CellMode, Geometry};
use varve_models::PowerSupply;
use varve_models::flash::{FaultsEvery, FlashConfig, GcPolicy, RawModel};
use varve_rt::Rng;

/// Bytes that a database of a plan comes to, in those that are loaded.
const GROWTH: u64 = 6;
/// Pages of a request that fills the flash.
const FILL: usize = 64;

/// What a seed makes of the flash.
#[derive(Clone, Debug)]
pub(crate) struct FlashPlan {
    /// In some lives the log has no page images.
    pub(crate) may_leave_images: bool,
    config: FlashConfig,
    layout: FlashLayout,
}

impl FlashPlan {
    /// Draws the flash of a plan, with room for the most that its database grows to.
    pub(crate) fn draw(plan: &Plan) -> FlashPlan {
        let mut rng = Rng::from_seed(plan.seed ^ 0xf1a5);
        let page_bytes = [2048, 4096, 4096][rng.below(3) as usize];
        let pages_per_block = [16, 32, 64][rng.below(3) as usize];
        let cell =
            [CellMode::Slc, CellMode::Slc, CellMode::Mlc, CellMode::OddMlc, CellMode::Pslc][rng.below(5) as usize];
        let (channels, chips_per_channel) = (rng.between(1, 3) as u32, rng.between(1, 2) as u32);
        let chips = u64::from(channels * chips_per_channel);
        let pages = (plan.load_bytes * GROWTH + (8 << 20)) / u64::from(page_bytes);
        let spare_factor = [0.1, 0.2, 0.3][rng.below(3) as usize];
        let used = cell.used_pages(pages_per_block).len() as u64;
        let mut regions = regions(chips as u32, (cell, spare_factor), &mut rng);
        let assigned = regions.len() > 1 && rng.one_in(2);
        if assigned {
            assign(&mut regions, &mut rng);
        }
        // Each region has room for all where one has keyspaces of its own.
        let least = if assigned { regions.iter().map(|r| r.chips.len() as u64).min().unwrap_or(1) } else { chips };
        // Some blocks of each chip hold the map, or are open or kept free.
        let blocks = (pages as f64 / (1.0 - spare_factor)) as u64 / used / least * 10 / 9 + 32;
        let one = FlashConfig::one_plane(blocks as u32, pages_per_block);
        let geometry = Geometry { channels, chips_per_channel, page_bytes, ..one.geometry };
        let mut config = FlashConfig { geometry, cell, ..one };
        (config.timing.read_us, config.timing.program_us) = (vec![25.0, 50.0], vec![200.0, 900.0]);
        if rng.one_in(3) {
            config.faults = FaultsEvery { read: 0, program: rng.between(8000, 30_000), erase: rng.between(400, 2000) };
        }
        let mut layout = FlashLayout { regions };
        if plan.page_size == page_bytes as usize {
            layout.regions.iter_mut().for_each(|region| draw_records(region, config.nop, &mut rng));
        }
        FlashPlan { may_leave_images: plan.page_size == page_bytes as usize, config, layout }
    }
}

/// One region, or two that share the chips.
fn regions(chips: u32, (mode, spare_factor): (CellMode, f64), rng: &mut Rng) -> Vec<RegionConfig> {
    let policies = [GcPolicy::Greedy, GcPolicy::Fifo, GcPolicy::CostBenefit, GcPolicy::DChoices, GcPolicy::Random];
    let first = if chips > 1 && rng.one_in(2) { rng.between(1, u64::from(chips) - 1) as u32 } else { chips };
    let parts = [0..first, first..chips];
    let region = |chips: std::ops::Range<u32>| RegionConfig {
        mode,
        spare_factor,
        gc: policies[rng.below(5) as usize],
        ..RegionConfig::of(chips)
    };
    parts.into_iter().filter(|chips| !chips.is_empty()).map(region).collect()
}

/// One of the regions is for one or two keyspaces alone, the other for all others.
fn assign(regions: &mut [RegionConfig], rng: &mut Rng) {
    let names = NAMES.iter().skip(rng.below(3) as usize).take(1 + rng.below(2) as usize);
    let region = &mut regions[rng.below(2) as usize];
    region.name = "own".into();
    region.keyspaces = names.map(|name| name.to_string()).collect();
}

/// Draws delta records for the pages of a region, where its mode allows some.
fn draw_records(region: &mut RegionConfig, nop: u8, rng: &mut Rng) {
    if region.mode == CellMode::Mlc || rng.one_in(4) {
        return;
    }
    region.n = rng.between(1, u64::from(nop) - 1) as u8;
    region.m = [12, 48, 66, 156][rng.below(4) as usize];
    region.merge = rng.one_in(2);
}

/// The flash of a machine.
pub(crate) struct FlashPart {
    plan: FlashPlan,
    raw: Arc<RawModel>,
    /// The regions as they were made, once they are.
    made: varve_rt::Mutex<Option<FlashLayout>>,
}

impl FlashPart {
    pub(crate) fn new(plan: FlashPlan, supply: &Arc<PowerSupply>) -> FlashPart {
        let raw = RawModel::fed(&plan.config, supply).expect("a plan's flash can be built");
        FlashPart { plan, raw, made: varve_rt::hardware_mutex(None) }
    }

    /// The flash, as an opening of a database gets it: made anew, or as it was left.
    pub(crate) fn open(&self, create: bool, faults: &Faults) -> varve::Result<Arc<NativeFlash>> {
        let made = self.made.lock().clone();
        match made.filter(|_| !create) {
            Some(layout) => Ok(NativeFlash::open(self.raw.clone(), &layout, faults)?),
            None => {
                let layout = self.made.lock().clone().unwrap_or_else(|| self.plan.layout.clone());
                let flash = NativeFlash::create(self.raw.clone(), &layout)?;
                *self.made.lock() = Some(flash.layout().clone());
                // (An opening that finds nothing is followed by a creation.)
                if create {
                    fill(&flash)?;
                }
                Ok(flash)
            }
        }
    }
}

/// Writes every page once.
fn fill(flash: &NativeFlash) -> varve::Result<()> {
    let page = flash.geometry().page_bytes as usize;
    let bytes = AlignedBuf::new(page * FILL);
    for at in (0..flash.capacity()).step_by(page * FILL) {
        let len = (page * FILL).min((flash.capacity() - at) as usize);
        varve_device::write_at(flash, at, &bytes[..len], false)?;
    }
    Ok(())
}
