//! Wear of the flash model: levelling, refreshing, blocks that go bad, and the end of a drive's life.

use varve_models::flash::{Contents, Drive, FaultsEvery, FlashConfig, FlashError, Ftl, GcPolicy};
use varve_rt::Rng;

/// A tenth of the pages gets all writes; the rest is written once.
fn spread(wear_delta: u32) -> (u32, f64) {
    let mut config = FlashConfig::one_plane(256, 32);
    config.ftl.wear_delta = wear_delta;
    let mut ftl = Ftl::new(&config, Contents::Nothing).unwrap();
    let logical = ftl.capacity().logical;
    for lpn in 0..logical {
        ftl.write(0, lpn, None).unwrap();
    }
    let mut rng = Rng::from_seed(2);
    for _ in 0..100 * logical {
        ftl.write(0, rng.below(logical / 10), None).unwrap();
    }
    ftl.verify();
    let wear = ftl.wear();
    let (least, most) = (wear.iter().min().unwrap(), wear.iter().max().unwrap());
    (most - least, ftl.stats().write_amplification())
}

#[test]
fn levelling_keeps_the_wear_together_at_little_cost() {
    let (without, plain) = spread(0);
    let (with, levelled) = spread(20);
    println!("spread {without} without, {with} with; amplification {plain:.3} and {levelled:.3}");
    assert!(without > 300, "cold blocks are hardly ever erased: {without}");
    assert!(with < 50, "{with} with levelling at 20");
    assert!(levelled < plain * 1.25, "{levelled:.3} instead of {plain:.3}");
}

#[test]
fn blocks_that_are_read_often_are_refreshed() {
    let mut config = FlashConfig::one_plane(64, 16);
    config.ftl.read_disturb = 1000;
    let mut drive = Drive::new(&config, Contents::Full).unwrap();
    let pages = drive.capacity() / 4096;
    let mut now = 0;
    for lpn in 0..pages {
        now = drive.write(now, lpn * 4096, &[lpn as u8; 4096], false).unwrap().at;
    }
    for i in 0..20_000 {
        now = drive.read(now, i % 16 * 4096, 4096).unwrap();
    }
    let stats = drive.stats().ftl;
    let refreshed = stats.disturb_copies;
    assert!((16 * 17..=16 * 22).contains(&refreshed), "{refreshed} pages for 20 x 1000 reads of a block of 16");
    assert!(stats.write_amplification() > 1.0);
    let mut page = [0; 4096];
    for lpn in 0..16 {
        drive.peek(lpn * 4096, &mut page).unwrap();
        assert_eq!(page, [lpn as u8; 4096]);
    }
    drive.ftl().verify();
}

/// A drive that wears out can be read to the end, and says why it takes no more writes.
#[test]
fn a_worn_drive_can_be_read() {
    for faults in [FaultsEvery::default(), FaultsEvery { program: 97, ..FaultsEvery::default() }] {
        let mut config = FlashConfig::one_plane(64, 16);
        config.endurance = if faults.program == 0 { 30 } else { u32::MAX };
        config.faults = faults;
        config.ftl.gc = GcPolicy::Greedy;
        config.ftl.spare_factor = 0.3;
        let mut drive = Drive::new(&config, Contents::Full).unwrap();
        let pages = drive.capacity() / 4096;
        let mut newest = vec![0_u8; pages as usize];
        let mut rng = Rng::from_seed(3);
        let (mut now, mut writes) = (0, 0_u64);
        let error = loop {
            let lpn = rng.below(pages);
            let version = newest[lpn as usize].wrapping_add(1).max(1);
            match drive.write(now, lpn * 4096, &[version; 4096], false) {
                Ok(done) => now = done.at,
                Err(e) => break e,
            }
            newest[lpn as usize] = version;
            writes += 1;
            assert!(writes < 1_000_000, "it must end");
        };
        assert!(matches!(error, FlashError::EndOfLife { bad } if bad > 5), "{error}");
        assert!(error.to_string().contains("read only"));
        println!("{writes} writes: {error}");
        drive.advance(now);
        let mut page = [0; 4096];
        for (lpn, version) in newest.iter().enumerate() {
            drive.peek(lpn as u64 * 4096, &mut page).unwrap();
            assert_eq!(page, [*version; 4096], "page {lpn}");
        }
        assert!(drive.read(now, 0, 4096).is_ok());
        assert!(matches!(drive.write(now, 0, &[0; 4096], false), Err(FlashError::EndOfLife { .. })));
        // After a power cut too.
        drive.power_cut(now + 1_000_000_000, 1, false);
        let _ = drive.restore_power(now + 2_000_000_000);
        for (lpn, version) in newest.iter().enumerate() {
            drive.peek(lpn as u64 * 4096, &mut page).unwrap();
            assert_eq!(page, [*version; 4096], "page {lpn} after a power cut");
        }
    }
}

#[test]
fn reads_that_fail_say_so_and_nothing_else_breaks() {
    let mut config = FlashConfig::one_plane(64, 16);
    config.faults.read = 10;
    let mut drive = Drive::new(&config, Contents::Full).unwrap();
    drive.write(0, 0, &[1; 4096], true).unwrap();
    let failed = (1..=100).filter(|i| drive.read(i * 1_000_000, 0, 4096).is_err()).count();
    assert_eq!(failed, 10);
}
