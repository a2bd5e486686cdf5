//! Write amplification and share of appends of native flash, against the formulas for FIFO collection
//! (`varve_models::flash::theory`), through the page store that a database has.

use varve_device::AlignedBuf;
use varve_device::flash::Geometry;
use varve_models::flash::{FlashConfig, GcPolicy, RawModel, theory};
use varve_rt::Rng;
use varve_rt::sim::{Config, run};
use varve_volume::flash::{FlashLayout, NativeFlash, RegionConfig};
use varve_volume::plan::{self, Parts, VolumeOptions};
use varve_volume::tier::TierOptions;
use varve_volume::{KeyspaceId, Opening, PageId, PageIo, PageStore, PageUse, Stamp, WriteWhy, page};

const SIZE: usize = 4096;

fn store(flash: &std::sync::Arc<NativeFlash>) -> std::sync::Arc<dyn PageStore> {
    let opening = Opening {
        page_size: SIZE,
        room: flash.room(),
        identity: [1; 16],
        generation: Stamp::default(),
        read_only: false,
        without: false,
        attach: false,
        stamps: false,
    };
    let options = VolumeOptions { opening, tier: TierOptions::default() };
    plan::create(&Parts::on_flash(flash.clone()), &options).unwrap().0.store
}

/// Updates random pages; an update is small with this chance.
struct Load {
    store: std::sync::Arc<dyn PageStore>,
    pages: u64,
    eligible: f64,
    rng: Rng,
    buf: AlignedBuf,
}

impl Load {
    fn update(&mut self, id: u64, small: bool) {
        let changed = small.then(|| vec![100]);
        page::seal(&mut self.buf, PageId(id));
        // SAFETY: the buffer lives until the request was waited for, just below.
        let io = unsafe {
            let (page, use_) = (PageId(id), PageUse::default());
            PageIo::write(page, KeyspaceId(1), WriteWhy::Replacement, use_, self.buf.as_ptr(), changed)
        };
        self.store.submit(vec![io]).wait_all().unwrap();
    }

    fn updates(&mut self, count: u64) {
        for _ in 0..count {
            let (id, small) = (self.rng.below(self.pages), self.rng.f64() < self.eligible);
            self.buf[100] ^= self.rng.next_u64() as u8;
            self.update(id, small);
        }
    }
}

/// Page programs per page written out of place, and the share of appends; what the formulas say of them.
fn measured(n: u8, eligible: f64, merge: bool) -> [(f64, f64); 2] {
    let work = move || {
        let one = FlashConfig::one_plane(384, 32);
        let raw = RawModel::new(&FlashConfig { geometry: Geometry { ..one.geometry }, endurance: u32::MAX, ..one });
        let region = RegionConfig { gc: GcPolicy::Fifo, spare_factor: 0.1, n, m: 12, merge, ..RegionConfig::of([0]) };
        let flash = NativeFlash::create(raw.unwrap(), &FlashLayout { regions: vec![region] }).unwrap();
        let capacity = flash.region_capacity()[0];
        let (pages, store) = (capacity.logical, store(&flash));
        let (rng, buf) = (Rng::from_seed(3), AlignedBuf::new(SIZE));
        let mut load = Load { store, pages, eligible, rng, buf };
        (0..pages).for_each(|id| load.update(id, false));
        load.updates(8 * pages);
        let before = flash.region_stats()[0];
        load.updates(12 * pages);
        let done = flash.region_stats()[0].since(&before);
        let theory = theory::appends(capacity.effective / capacity.logical as f64, n.into(), eligible, merge);
        let updates = (done.host_appends + done.host_writes) as f64;
        [(done.write_amplification(), theory.amplification), (done.host_appends as f64 / updates, theory.share)]
    };
    run(Config::default(), work).result.unwrap()
}

#[test]
fn appends_agree_with_the_formulas() {
    for (n, eligible, merge) in [(2, 1.0, true), (2, 1.0, false), (2, 0.75, true), (2, 0.75, false), (1, 1.0, true)] {
        for (what, (found, formula)) in ["amplification", "share"].into_iter().zip(measured(n, eligible, merge)) {
            let off = found / formula - 1.0;
            println!("n {n}, eligible {eligible}, merge {merge}: {what} {found:.4}, by the formula {formula:.4}");
            assert!(off.abs() < 0.01, "n {n}, eligible {eligible}, merge {merge}: {what} {found}, not {formula}");
        }
    }
}
