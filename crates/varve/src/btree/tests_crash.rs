//! The tree under power cuts, in simulation: after each recovery the tree is sound, no page is leaked or used twice,
//! and each key has its last acknowledged value or one written after that.

use super::harness::{Harness, Setup};
use crate::error::{Error, Result};
use crate::wal::LogConfig;
use std::collections::BTreeMap;
use std::ops::Bound::Unbounded;
use std::sync::Arc;
use std::time::Duration;
use varve_device::Device;
use varve_models::{FaultPlan, Faulty, MemDevice, MemOptions, PowerSupply};
use varve_rt::sim::{self, Domain};
use varve_rt::{Mutex, Rng};

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 5;

/// What a key may hold: the last acknowledged state and all after it. None: nothing.
type History = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

#[derive(Default)]
struct Totals {
    opened: u64,
    keys: u64,
}

fn setup() -> Setup {
    let log = LogConfig {
        capacity: 256 << 10,
        max_capacity: 1 << 20,
        segment: 32 << 10,
        buffer: 32 << 10,
        ..LogConfig::default()
    };
    Setup { log, ..Setup::new(4096, 32) }
}

/// Looks at everything after a recovery, unless the power goes meanwhile.
fn verify(h: &Harness, history: &mut History, supply: &PowerSupply, seed: u64) -> Result<()> {
    let report = h.check();
    assert!(report.is_clean() || !supply.is_on(), "seed {seed}: {:?}", report.damages);
    let mut found = Vec::new();
    h.scan(Unbounded, Unbounded, false, usize::MAX, |k, _| found.push(k.to_vec()))?;
    for key in &found {
        assert!(history.contains_key(key), "seed {seed}: {key:?} was never written");
    }
    for (key, states) in history.iter_mut() {
        let now = h.get(key)?;
        assert!(states.contains(&now), "seed {seed}: {key:?} holds none of {} states", states.len());
        *states = vec![now];
    }
    Ok(())
}

fn client(h: &Harness, me: u64, history: &Mutex<History>, mut rng: Rng) -> Result<()> {
    let mut since = Vec::new();
    for step in 0..1500u64 {
        let key = format!("key{:06}", rng.below(150) * CLIENTS + me).into_bytes();
        let value = match rng.below(if (step / 200) % 2 == 0 { 10 } else { 3 }) {
            0..2 => None,
            2 if rng.below(4) == 0 => Some(vec![step as u8; 4000 + rng.below(20_000) as usize]),
            _ => Some(vec![step as u8; rng.below(400) as usize]),
        };
        // Before the attempt: it may succeed though it is never acknowledged.
        let tried = value.clone();
        history.lock().entry(key.clone()).or_insert_with(|| vec![None]).push(tried);
        match &value {
            Some(v) => h.put(&key, v)?,
            None => h.remove(&key)?,
        };
        since.push(key);
        if rng.below(8) == 0 {
            h.sync()?;
            let mut history = history.lock();
            for key in since.drain(..) {
                let states = history.get_mut(&key).expect("tried");
                states.drain(..states.len() - 1);
            }
        }
        if rng.below(300) == 0 {
            h.checkpoint()?;
        }
    }
    Ok(())
}

/// What outlives the machine.
#[derive(Clone)]
struct World {
    seed: u64,
    devices: [Arc<dyn Device>; 2],
    supply: Arc<PowerSupply>,
    history: Arc<Mutex<History>>,
    totals: Arc<Mutex<Totals>>,
}

fn machine(world: World) -> Result<()> {
    let World { seed, devices: [data, log], supply, history, totals } = world;
    let h = Arc::new(Harness::open(data, log, &setup())?);
    {
        let mut history = history.lock();
        let verified = verify(&h, &mut history, &supply, seed);
        if verified.is_err() {
            h.stop();
            return verified;
        }
        let mut totals = totals.lock();
        (totals.opened, totals.keys) = (totals.opened + 1, totals.keys + history.len() as u64);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|me| {
            let (h, history) = (h.clone(), history.clone());
            let rng = Rng::from_seed(varve_rt::rng().next_u64() ^ me);
            varve_rt::spawn("client", move || client(&h, me, &history, rng))
        })
        .collect();
    let results: Vec<_> = clients.into_iter().map(varve_rt::JoinHandle::join).collect();
    h.stop();
    for result in results {
        match result {
            Ok(Err(e @ Error::Corrupt(_))) => panic!("seed {seed}: {e}"),
            Err(e) if !varve_rt::dying() && !e.power_cut => panic!("seed {seed}: a client panicked: {}", e.message),
            _ => {}
        }
    }
    Ok(())
}

fn simulate(seed: u64) -> Totals {
    let outcome = sim::run(sim::Config { seed, chaos: seed.is_multiple_of(2), ..Default::default() }, move || {
        let mut rng = Rng::from_seed(seed);
        let supply = PowerSupply::new();
        let devices = [seed, seed + 1].map(|seed| {
            let mem = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            supply.attach(mem.clone());
            Faulty::powered(mem, FaultPlan::new(seed), supply.clone()) as Arc<dyn Device>
        });
        let h = Harness::create(devices[0].clone(), devices[1].clone(), &setup()).unwrap();
        h.sync().unwrap();
        h.stop();
        drop(h);
        let (history, totals) = (Arc::default(), Arc::default());
        let world = World { seed, devices, supply, history, totals };
        let supply = &world.supply;
        for round in 0..ROUNDS {
            // Now and then so early that it hits recovery; not in the last round, which looks at the outcome.
            let ops = if rng.below(3) == 0 { 1 + rng.below(20) } else { 50 + rng.below(1500) };
            if round + 1 < ROUNDS {
                supply.cut_at(supply.ops() + ops, rng.next_u64());
            }
            let domain = Domain::new("machine");
            let job = {
                let world = world.clone();
                domain.spawn("database", move || machine(world))
            };
            if round + 1 < ROUNDS && rng.below(2) == 0 {
                // The process dies with the machine; otherwise it sees its devices fail, and has to end by itself.
                supply.off().wait_for(Duration::from_secs(5));
                domain.power_cut();
            }
            match job.join() {
                Ok(Err(e @ Error::Corrupt(_))) => panic!("seed {seed}: open refused: {e}"),
                Ok(Err(e)) if round + 1 == ROUNDS => panic!("seed {seed}: {e}"),
                Err(e) if !e.power_cut => panic!("seed {seed}: {}", e.message),
                _ => {}
            }
            domain.power_cut();
            supply.cut_at(0, 0);
            supply.restore();
        }
        std::mem::take(&mut *world.totals.lock())
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"))
}

/// Seeds to run: `VARVE_TEST_SEEDS`, or `default`.
fn seeds(default: u64) -> u64 {
    std::env::var("VARVE_TEST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn power_cuts_leave_a_sound_tree_and_leak_nothing() {
    let mut sum = Totals::default();
    let seeds = seeds(30);
    for seed in 0..seeds {
        let totals = simulate(seed);
        (sum.opened, sum.keys) = (sum.opened + totals.opened, sum.keys + totals.keys);
    }
    assert!(sum.opened > 2 * seeds && sum.keys > 100 * seeds, "{} openings, {} keys", sum.opened, sum.keys);
}
