//! Power cuts in simulation: random groups from several writers over a small ring with checkpoints and growth, cuts at
//! random device operations (in recovery too), then reopening. What must hold: every group acknowledged as durable is
//! found, groups come back in the order of their LSNs without a gap, per writer without a gap, and nothing comes back
//! that was not appended.

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;
use varve_device::{Faults, Health, Mistake, OpKind, Watched};
use varve_models::{Fault, FaultPlan, Faulty, MemOptions, PowerSupply};
use varve_rt::sim::{self, Domain};
use varve_rt::{Mutex, Rng, now, sleep, spawn};

const WRITERS: u64 = 4;
const ROUNDS: u64 = 5;
/// Of four spans of so many nanoseconds, writers of a log that shrinks pause during one.
const LULL: u64 = 12_000_000;

/// What the writers know. Numbers of groups are per writer and go on from round to round.
#[derive(Default)]
struct History {
    /// Numbers begun by each writer.
    begun: [u64; WRITERS as usize],
    /// End LSN of every group whose append returned, by writer and number.
    ends: BTreeMap<(u64, u64), Lsn>,
    /// Greatest LSN acknowledged as durable.
    acked: Lsn,
    /// Groups that recovery found in an earlier round, by end: they must be found again until a checkpoint passes them.
    found: BTreeMap<Lsn, (u64, u64)>,
    recovered: u64,
    violations: Vec<String>,
    opened: u64,
    orphans: u64,
    shrinks: u64,
}

fn group_body(seed: u64, writer: u64, n: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(seed ^ writer << 32 ^ n.wrapping_mul(0x9e37_79b9));
    let len = match rng.below(40) {
        0 => 20_000 + rng.below(20_000),
        1..8 => rng.below(4000),
        _ => rng.below(300),
    };
    let mut bytes = vec![0; 16 + len as usize];
    rng.fill_bytes(&mut bytes);
    bytes[..8].copy_from_slice(&writer.to_le_bytes());
    bytes[8..16].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// Checks what came back against what is known.
fn check(seed: u64, h: &mut History, redo: Lsn, groups: &[(Lsn, Vec<u8>)], end: LogEnd) {
    let mut bad = Vec::new();
    if end.at < h.acked {
        bad.push(format!("durable to {} was acknowledged, the log ends at {}", h.acked, end.at));
    }
    let mut found = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, body) in groups {
        let (writer, n) = (read_u64(body, 0), read_u64(body, 8));
        if writer >= WRITERS || n >= h.begun[writer as usize] || *body != group_body(seed, writer, n) {
            bad.push(format!("the group ending at {at} was never appended (writer {writer}, number {n})"));
            continue;
        }
        if let Some(before) = last.insert(writer, n)
            && n <= before
        {
            bad.push(format!("writer {writer}: {n} comes after {before}"));
        }
        if h.ends.get(&(writer, n)).is_some_and(|e| e != at) {
            bad.push(format!("writer {writer}: {n} moved to {at}"));
        }
        found.insert(*at, (writer, n));
    }
    for (&(writer, n), &at) in h.ends.iter().filter(|(_, at)| **at > redo && **at <= end.at) {
        if found.get(&at) != Some(&(writer, n)) {
            bad.push(format!("writer {writer}: {n} at {at} is below the end {} but missing", end.at));
        }
    }
    for (&at, who) in h.found.range(redo + 1..) {
        if found.get(&at) != Some(who) {
            bad.push(format!("{who:?} at {at} was recovered before and is missing now"));
        }
    }
    // What was cut off is gone for good.
    h.ends.retain(|_, at| *at <= end.at);
    h.found = found;
    h.recovered += groups.len() as u64;
    h.orphans += end.orphans;
    h.violations.extend(bad);
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(u64::MAX, |b| u64::from_le_bytes(b.try_into().unwrap()))
}

fn round(seed: u64, dev: Watched, cfg: LogConfig, history: &Arc<Mutex<History>>) -> Result<()> {
    let (log, state) = Log::open(dev, cfg, false)?;
    let (groups, end) = read_all(&log, state.redo)?;
    check(seed, &mut history.lock(), state.redo, &groups, end);
    log.note_recovered(end.at);
    log.resume_at(end.at, log.must_checkpoint_on_resume())?;
    history.lock().opened += 1;
    log.start().unwrap();
    let workers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let (log, history) = (log.clone(), history.clone());
            spawn(format!("writer-{w}"), move || writer(seed, w, &log, &history))
        })
        .collect();
    let checkpoints = {
        let log = log.clone();
        spawn("checkpoints", move || {
            while log.poisoned().is_none() {
                log.checkpoint_wanted().wait_for(Duration::from_millis(2));
                log.checkpoint_wanted().reset();
                let t = log.begin_checkpoint();
                sleep(Duration::from_micros(300));
                if log.complete_checkpoint(t).is_err() {
                    return;
                }
            }
        })
    };
    for worker in workers {
        let _ = worker.join();
    }
    let _ = checkpoints.join();
    log.stop();
    history.lock().shrinks += log.stats().shrinks;
    Ok(())
}

/// Appends until the log is poisoned.
fn writer(seed: u64, w: u64, log: &Log, history: &Mutex<History>) {
    let mut rng = Rng::from_seed(seed ^ now().as_nanos() ^ w);
    loop {
        let n = {
            let mut h = history.lock();
            h.begun[w as usize] += 1;
            h.begun[w as usize] - 1
        };
        let body = group_body(seed, w, n);
        if log.ensure_space(body.len()).is_err() {
            return;
        }
        let Ok(at) = log.append(GroupKind::Commit, None, &body) else { return };
        history.lock().ends.insert((w, n), at.end);
        match rng.below(4) {
            0 => log.flush_soon(at.end),
            1 => {}
            _ => {
                if log.wait_durable(at.end).is_err() {
                    return;
                }
                let mut h = history.lock();
                h.acked = h.acked.max(at.end);
            }
        }
        if log.cfg.idle_checkpoints < 10 && now().as_nanos() / LULL % 4 == 3 {
            sleep(Duration::from_nanos(LULL));
        }
        if rng.below(8) == 0 {
            sleep(Duration::from_micros(rng.below(500)));
        }
    }
}

/// Seeds to run: `VARVE_TEST_SEEDS`, or `default`.
fn seeds(default: u64) -> u64 {
    std::env::var("VARVE_TEST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

struct Totals {
    recovered: u64,
    opened: u64,
    orphans: u64,
    shrinks: u64,
    violations: Vec<String>,
}

/// Every third seed has a log that begins smaller, grows by longer and longer segments, and shrinks in lulls.
fn config(seed: u64) -> LogConfig {
    match seed % 3 {
        0 => LogConfig { capacity: 64 << 10, max_capacity: 16 << 20, idle_checkpoints: 2, ..small() },
        _ => small(),
    }
}

fn simulate(seed: u64, faults: Faults) -> Totals {
    let cfg = config(seed);
    let outcome = sim::run(sim::Config { seed, chaos: seed.is_multiple_of(2), ..Default::default() }, move || {
        let mut rng = Rng::from_seed(seed);
        let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
        let supply = PowerSupply::new();
        supply.attach(mem.clone());
        let mut plan = FaultPlan::new(seed);
        if seed % 5 == 4 {
            plan = plan.one_in(150, OpKind::Write, Fault::Eio);
        }
        // The superblocks of a new log are written without faults.
        drop(Log::create(mem.clone(), cfg.clone(), header()).unwrap());
        let dev: Arc<dyn Device> = Faulty::powered(mem, plan, supply.clone());
        let history = Arc::new(Mutex::new(History::default()));
        for _ in 0..ROUNDS {
            // Now and then so early that it hits recovery.
            let ops = if rng.below(3) == 0 { 1 + rng.below(6) } else { 1 + rng.below(250) };
            supply.cut_at(supply.ops() + ops, rng.next_u64());
            let domain = Domain::new("machine");
            let job = {
                let dev = Watched::new(dev.clone(), &Health::with(faults.clone()));
                let (cfg, history) = (cfg.clone(), history.clone());
                domain.spawn("database", move || round(seed, dev, cfg, &history))
            };
            if rng.below(2) == 0 {
                // The process dies with the machine; otherwise it sees its devices fail, and has to end by itself.
                supply.off().wait_for(Duration::from_secs(5));
                domain.power_cut();
            }
            if let Ok(Err(e)) = job.join()
                && matches!(e, Error::Corrupt(_))
            {
                history.lock().violations.push(format!("open refused: {e}"));
            }
            domain.power_cut();
            supply.cut_at(0, 0);
            supply.restore();
        }
        let (log, state) = Log::open(dev, cfg, true).map_or_else(|_| (None, None), |(l, s)| (Some(l), Some(s)));
        assert!(log.is_none() && state.is_none(), "not closed cleanly, so not opened read-only");
        let mut h = history.lock();
        Totals {
            recovered: h.recovered,
            opened: h.opened,
            orphans: h.orphans,
            shrinks: h.shrinks,
            violations: std::mem::take(&mut h.violations),
        }
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))
}

#[test]
fn what_was_acknowledged_survives_every_cut_and_nothing_is_invented() {
    let (mut recovered, mut opened, mut orphans, mut shrinks) = (0, 0, 0, 0);
    for seed in 0..seeds(250) {
        let totals = simulate(seed, Faults::default());
        assert!(totals.violations.is_empty(), "seed {seed}: {:#?}", totals.violations);
        recovered += totals.recovered;
        opened += totals.opened;
        orphans += totals.orphans;
        shrinks += totals.shrinks;
    }
    assert!(
        recovered > 10_000 && opened > 500 && orphans > 0 && shrinks > 20,
        "{recovered} groups, {opened} openings, {orphans} orphans, {shrinks} times shrunk"
    );
}

#[test]
fn a_log_that_skips_its_flushes_is_caught() {
    assert!((0..100).any(|seed| !simulate(seed, Mistake::SkipLogFlush.into()).violations.is_empty()));
}

#[test]
fn a_log_that_skips_the_flush_of_its_superblock_is_caught() {
    assert!((0..100).any(|seed| !simulate(seed, Mistake::SkipSuperblockFlush.into()).violations.is_empty()));
}

#[test]
fn a_log_that_gives_up_what_is_live_when_it_shrinks_is_caught() {
    assert!((0..100).any(|seed| !simulate(3 * seed, Mistake::LiveLogGivenUp.into()).violations.is_empty()));
}
