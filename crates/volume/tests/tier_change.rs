//! Changes of the fast device under power cuts: attached, detached, grown, cut and flushed, while clients work and by
//! itself with the power cut at each operation in turn.

mod tier_support;

use std::sync::Arc;
use std::time::Duration;
use tier_support::{SIZE, Seen, crashes, crashes_with, device, options, read, sealed, write};
use varve_device::{Device, Mistake};
use varve_models::{FaultPlan, Faulty, PowerSupply};
use varve_rt::sim::{Config, Domain, run};
use varve_rt::{Event, Mutex};
use varve_volume::tier::{MapRecovery, Tier, TierOptions};
use varve_volume::{PageId, PageStore, PageUse, Single, VolumeError, page};

#[test]
fn nothing_is_lost_while_the_fast_device_changes() {
    for (i, manager) in varve_volume::tier::manager::REGISTRY.iter().enumerate() {
        let mut sum = Seen::default();
        let recovery = [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log][i % 3];
        let last = std::env::var("SEEDS").map_or(14, |n| n.parse().expect("SEEDS is a number"));
        for seed in 0..last {
            let options = TierOptions { memory_interval: Some(0.02), ..options(manager.name, recovery) };
            let seen = crashes(seed, options, true);
            let seen = seen.unwrap_or_else(|e| panic!("{}, {recovery:?}, seed {seed}: {e}", manager.name));
            (0..5).for_each(|i| sum.changes[i] += seen.changes[i]);
            sum.fast_hits += seen.fast_hits;
        }
        println!("{}: {sum:?}", manager.name);
        assert!(sum.changes.iter().all(|n| *n > 5), "{}: {sum:?}", manager.name);
        assert!(manager.name == "none" || sum.fast_hits > 50, "{}: {sum:?}", manager.name);
    }
}

#[test]
fn slots_emptied_without_copies_are_caught() {
    let caught = (0..30)
        .any(|seed| crashes_with(Mistake::TierNoCopies.into(), seed, options("cac", MapRecovery::Zone), true).is_err());
    assert!(caught, "newest versions were given up");
}

#[test]
fn changes_that_skip_the_map_are_caught() {
    let caught = (0..30)
        .any(|seed| crashes_with(Mistake::TierNoMaps.into(), seed, options("cac", MapRecovery::Zone), true).is_err());
    assert!(caught, "an old map was believed");
}

const PAGES: u64 = 60;
const OWNER: [u8; 16] = [1; 16];
/// Identity of the second life of the device.
const AGAIN: [u8; 16] = [2; 16];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Grow,
    /// To so many slots that the tables move behind them.
    GrowMuch,
    Shrink,
    /// From there.
    ShrinkMuch,
    Detach,
    Attach,
    Flush,
}

fn version(n: u64) -> u64 {
    100 + n
}

/// What is done before the power may fail.
fn prepare(tier: &Arc<Tier>, change: Change) -> Result<(), VolumeError> {
    tier.start().unwrap();
    if change == Change::ShrinkMuch {
        tier.resize(640 * SIZE as u64)?;
    }
    for n in 0..PAGES {
        let bytes = sealed(n, version(n));
        write(tier, &bytes)?;
        if n == 20 {
            tier.all_home()?;
        }
        if n % 2 == 0 {
            tier.evict_clean(PageId(n), &bytes, PageUse { logical_reads: 3, ..PageUse::default() });
        }
    }
    tier.sync()?;
    if change == Change::Attach {
        tier.detach()?;
        // From here on the device's former pages are out of date.
        for n in 0..PAGES {
            write(tier, &sealed(n, version(n) + 1000))?;
        }
        tier.sync()?;
    }
    Ok(())
}

fn make(tier: &Tier, fast: &Arc<dyn Device>, change: Change) -> Result<(), VolumeError> {
    let resize = |pages: u64| tier.resize(pages * SIZE as u64).map(|_| ());
    match change {
        Change::Grow => resize(220),
        Change::GrowMuch => resize(640),
        Change::Shrink => resize(165),
        Change::ShrinkMuch => resize(200),
        Change::Detach => tier.detach().map(|_| ()),
        Change::Attach => tier.attach(fast.clone(), AGAIN),
        Change::Flush => tier.all_home(),
    }
}

/// Makes the change with a power cut at its operation number `at`; what the pages are afterwards. True when the change
/// ended before.
fn cut(change: Change, manager: &'static str, at: u64) -> Result<bool, String> {
    run(Config { seed: at, ..Config::default() }, move || {
        let (slow, fast) = (device(PAGES, "slow", at, 4), device(180, "fast", at + 1, 1));
        let supply = PowerSupply::new();
        supply.attach(slow.clone());
        supply.attach(fast.clone());
        let slow: Arc<dyn Device> = Faulty::powered(slow, FaultPlan::new(at), supply.clone());
        let fast: Arc<dyn Device> = Faulty::powered(fast, FaultPlan::new(at), supply.clone());
        let home: Arc<dyn PageStore> = Single::new(slow, SIZE).unwrap();
        let options = options(manager, MapRecovery::Zone);
        let (ended, result) = (Arc::new(Event::new()), Arc::new(Mutex::new(None)));
        let domain = Domain::new("work");
        let (arm, theirs, end) = (supply.clone(), result.clone(), ended.clone());
        let (h, f, o) = (home.clone(), fast.clone(), options.clone());
        let thread = domain.spawn("work", move || {
            let tier = Tier::create(h, f.clone(), OWNER, o).unwrap();
            prepare(&tier, change).unwrap();
            arm.cut_at(arm.ops() + at, at * 77);
            *theirs.lock() = Some(make(&tier, &f, change).map_err(|e| e.to_string()));
            arm.cut_at(0, 0);
            end.set();
        });
        while ended.wait_for(Duration::from_millis(5)) && supply.is_on() {}
        let outcome = result.lock().clone();
        let done = matches!(outcome, Some(Ok(())));
        if let Some(Err(e)) = outcome
            && !e.contains("lost power")
        {
            return Err(format!("the change failed: {e}"));
        }
        if done {
            let _ = thread.join();
        }
        if supply.is_on() {
            supply.cut(at);
        }
        domain.power_cut();
        supply.restore();
        let owner = if change == Change::Attach { AGAIN } else { OWNER };
        let tier = match Tier::open(home.clone(), fast.clone(), owner, options.clone()) {
            Err(VolumeError::Tier { .. } | VolumeError::TierWrecked { .. }) if change == Change::Attach && !done => {
                Tier::without(home, options)
            }
            other => other,
        };
        let tier = tier.map_err(|e| format!("open: {e}"))?;
        for n in 0..PAGES {
            let expected = version(n) + if change == Change::Attach { 1000 } else { 0 };
            match read(&tier, n).map(|bytes| page::lsn(&bytes)) {
                Ok(lsn) if lsn == expected => {}
                other => return Err(format!("page {n}: {other:?}, not {expected}")),
            }
        }
        Ok(done)
    })
    .unwrap()
}

#[test]
fn a_power_cut_at_each_operation_of_a_change_loses_nothing() {
    use Change::{Attach, Detach, Flush, Grow, GrowMuch, Shrink, ShrinkMuch};
    for change in [Grow, GrowMuch, Shrink, ShrinkMuch, Detach, Attach, Flush] {
        for manager in ["cac", "dw"] {
            let mut cuts = 0;
            for at in 1.. {
                let done =
                    cut(change, manager, at).unwrap_or_else(|e| panic!("{change:?}, {manager}, cut at {at}: {e}"));
                if done {
                    break;
                }
                cuts += 1;
            }
            println!("{change:?}, {manager}: {cuts} cuts");
            assert!(cuts > 1 || (change == Flush && manager == "dw"), "{change:?}, {manager}: {cuts} cuts");
        }
    }
}
