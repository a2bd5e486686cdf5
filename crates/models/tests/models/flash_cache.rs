//! The SLC cache of a drive, and reads that suspend: times, what happens when the cache is full, folding while the
//! drive idles, counters, configurations that are refused.

use varve_models::flash::{
    Buffer, BufferKind, CacheFull, CellMode, Contents, Drive, FlashConfig, FlashError, Ftl, SlcCache, Suspend,
};
use varve_rt::Rng;

const PAGE: u64 = 4096;
const MS: u64 = 1_000_000;

/// Four chips of TLC; a cache of 20 blocks of 8 pages. A write takes 10 us, 10 us on the link, 20 us on the channel,
/// and its program: 100 us in the cache, 600 us past it.
fn config(full: CacheFull) -> FlashConfig {
    let mut c = FlashConfig::one_plane(64, 24);
    (c.geometry.channels, c.cell) = (4, CellMode::Tlc);
    (c.timing.read_us, c.timing.program_us) = (vec![50.0; 3], vec![600.0; 3]);
    (c.timing.channel_mb_s, c.link.mb_s) = (204.8, 409.6);
    c.slc_cache = Some(SlcCache { blocks: 20, read_us: 20.0, program_us: 100.0, full, idle_ms: 50.0 });
    c
}

/// Nanoseconds as whole microseconds.
fn us(nanos: u64) -> u64 {
    (nanos + 500) / 1000
}

fn bytes(lpn: u64, version: u64) -> Vec<u8> {
    (lpn << 8 | version).to_le_bytes().repeat(PAGE as usize / 8)
}

/// Writes a page, waits for it; gives the time that it took and when it was done.
fn write(d: &mut Drive, at: u64, lpn: u64, version: u64) -> (u64, u64) {
    let end = d.write(at, lpn * PAGE, &bytes(lpn, version), false).unwrap().at;
    (us(end - at), end)
}

#[test]
fn writes_are_fast_until_the_cache_is_full_and_again_after_a_rest() {
    let mut d = Drive::new(&config(CacheFull::Direct), Contents::Full).unwrap();
    let mut now = 0;
    let mut lpn = 0;
    let mut run = |d: &mut Drive, now: &mut u64, pages: u64| -> Vec<u64> {
        (0..pages)
            .map(|_| {
                let (took, end) = write(d, *now, lpn, 1);
                (*now, lpn) = (end, lpn + 1);
                took
            })
            .collect()
    };
    assert!(run(&mut d, &mut now, 160).iter().all(|t| *t == 140), "20 blocks of 8 pages");
    assert!(run(&mut d, &mut now, 40).iter().all(|t| *t == 640), "past the full cache");
    let s = d.stats();
    assert_eq!((s.ftl.cache_writes, s.ftl.cache_bypassed, s.ftl.folds, s.ftl.cache_waits), (160, 40, 0, 0));
    assert_eq!((s.nand.slc_programs, s.nand.programs), (160, 200));
    // In the cache, and past it.
    assert_eq!(us(d.read(now, 0, PAGE).unwrap() - now), 10 + 20 + 20 + 10);
    assert_eq!(us(d.read(now + MS, 199 * PAGE, PAGE).unwrap() - now - MS), 10 + 50 + 20 + 10);
    // Not idle for long enough: nothing is folded. Then everything.
    now += 45 * MS;
    d.read(now, 0, PAGE).unwrap();
    assert_eq!(d.stats().ftl.folds, 0);
    now += 2_000 * MS;
    assert_eq!(us(d.read(now, 0, PAGE).unwrap() - now), 10 + 50 + 20 + 10, "it was folded");
    let s = d.stats();
    assert_eq!((s.ftl.folds, s.ftl.fold_copies), (20, 160));
    assert!((s.ftl.write_amplification() - 360.0 / 200.0).abs() < 1e-9, "{:?}", s.ftl);
    now += MS;
    assert!(run(&mut d, &mut now, 160).iter().all(|t| *t == 140), "fast again");
    for page in 0..360 {
        let mut found = vec![0; PAGE as usize];
        d.peek(page * PAGE, &mut found).unwrap();
        assert_eq!(found, bytes(page, 1), "page {page}");
    }
    d.ftl().verify();
}

#[test]
fn a_rest_that_is_too_short_folds_a_part() {
    let mut d = Drive::new(&config(CacheFull::Direct), Contents::Spare).unwrap();
    let mut now = 0;
    for lpn in 0..160 {
        now = write(&mut d, now, lpn, 1).1;
    }
    // Four blocks at a time take 8 pages x (20 + 20 + 20 + 600 us) and an erase.
    now += 50 * MS + 2 * MS;
    d.read(now, 0, PAGE).unwrap();
    assert_eq!(d.stats().ftl.folds, 4);
    now += 50 * MS + 10 * MS;
    d.read(now, 0, PAGE).unwrap();
    let folds = d.stats().ftl.folds;
    assert!((8..=16).contains(&folds), "{folds}");
}

#[test]
fn writers_may_wait_for_folding_instead() {
    let mut d = Drive::new(&config(CacheFull::Fold), Contents::Spare).unwrap();
    let (mut now, mut slowest) = (0, 0);
    for lpn in 0..400 {
        let (took, end) = write(&mut d, now, lpn, 1);
        (now, slowest) = (end, slowest.max(took));
    }
    let s = d.stats();
    assert_eq!((s.ftl.cache_writes, s.ftl.cache_bypassed), (400, 0));
    assert!(s.ftl.cache_waits >= 25 && s.ftl.folds == s.ftl.cache_waits, "{:?}", s.ftl);
    assert!(slowest > 600, "a writer waited for a chip that folds: {slowest} us");
}

#[test]
fn what_was_overwritten_in_the_cache_is_never_folded() {
    for full in [CacheFull::Direct, CacheFull::Fold] {
        let mut d = Drive::new(&config(full), Contents::Spare).unwrap();
        let mut now = 0;
        for i in 0..2_000 {
            now = write(&mut d, now, i % 10, i).1;
        }
        let f = d.stats().ftl;
        assert_eq!((f.cache_writes, f.fold_copies, f.cache_waits), (2_000, 0, 0), "{full:?}: {f:?}");
        assert!(f.folds > 200 && f.write_amplification() == 1.0, "{full:?}: {f:?}");
    }
}

#[test]
fn a_cache_that_is_too_small_or_leaves_too_little_is_refused() {
    let refused = |change: &dyn Fn(&mut FlashConfig)| -> String {
        let mut c = config(CacheFull::Direct);
        change(&mut c);
        let Err(FlashError::Config { field, accepted, .. }) = Ftl::new(&c, Contents::Full) else { panic!("accepted") };
        assert!(!accepted.is_empty());
        field
    };
    assert_eq!(refused(&|c| c.slc_cache.as_mut().unwrap().blocks = 4), "slc_cache.blocks");
    assert_eq!(refused(&|c| c.slc_cache.as_mut().unwrap().program_us = -1.0), "slc_cache.program_us");
    assert_eq!(refused(&|c| c.slc_cache.as_mut().unwrap().idle_ms = f64::NAN), "slc_cache.idle_ms");
    assert_eq!(
        refused(&|c| c.suspend = Some(Suspend { program_us: 1.0, erase_us: -2.0, most: 1 })),
        "suspend.erase_us"
    );
    // The cache's blocks are no space for data.
    assert_eq!(refused(&|c| c.ftl.logical_pages = Some(230 * 24)), "ftl.logical_pages");
    let fits = FlashConfig { slc_cache: None, ..config(CacheFull::Direct) };
    let mut fits = FlashConfig { cell: CellMode::Tlc, ..fits };
    fits.ftl.logical_pages = Some(230 * 24);
    assert!(Ftl::new(&fits, Contents::Full).is_ok(), "without a cache they are");
}

/// Counts alone, no times: uniform writes under all the same pressure end, and every page has its place.
#[test]
fn collection_and_folding_go_on_when_the_drive_is_full() {
    for full in [CacheFull::Direct, CacheFull::Fold] {
        let mut c = config(full);
        c.ftl.spare_factor = 0.1;
        let mut ftl = Ftl::new(&c, Contents::Nothing).unwrap();
        let logical = ftl.capacity().logical;
        let mut rng = Rng::from_seed(5);
        (0..logical).for_each(|lpn| _ = ftl.write(0, lpn, None).unwrap());
        (0..30 * logical).for_each(|_| _ = ftl.write(0, rng.below(logical), None).unwrap());
        let f = ftl.stats();
        assert_eq!(f.host_writes, 31 * logical);
        assert!(f.gc_copies > 0 && f.cache_writes > 0, "{full:?}: {f:?}");
        ftl.verify();
    }
}

/// With share w of time programming, a read waits w t/2 on average; where programs can be suspended, w times what that
/// takes.
#[test]
fn reads_wait_for_suspending_and_no_longer() {
    let mean_wait = |suspend: Option<Suspend>| -> f64 {
        let mut c = FlashConfig::one_plane(4096, 64);
        c.timing.program_us = vec![1_000.0];
        c.buffer = Buffer { kind: BufferKind::Volatile, pages: 64 };
        c.suspend = suspend;
        let mut d = Drive::new(&c, Contents::Spare).unwrap();
        let mut rng = Rng::from_seed(9);
        let page = vec![0; PAGE as usize];
        let mut now = d.write(0, 0, &page, true).unwrap().at + MS;
        let (mut waited, reads) = (0, 4_000);
        for i in 0..reads {
            // A program of 1 ms (and 100 us on the channel) in each 4 ms, and a read at any moment of them.
            d.write(now, (1 + i % 1000) * PAGE, &page, false).unwrap();
            let at = now + rng.below(4 * MS);
            let alone = 10_000 + 25_000 + 100_000 + (PAGE as f64 / 550.0 * 1000.0) as u64;
            waited += d.read(at, 0, PAGE).unwrap() - at - alone;
            now += 4 * MS;
        }
        waited as f64 / reads as f64 / 1e3
    };
    let without = mean_wait(None);
    let with = mean_wait(Some(Suspend { program_us: 40.0, erase_us: 40.0, most: 10 }));
    let busy = 1_100.0_f64;
    let share = busy / 4_000.0;
    assert!((without / (share * busy / 2.0) - 1.0).abs() < 0.1, "{without} us without");
    assert!((with / (share * 40.0) - 1.0).abs() < 0.1, "{with} us with");
}
