//! TPC-C in memory, on this machine and on the modelled host: `cargo bench -p varve-lab --bench host -- [PROFILE]
//! [KEY=VALUE ..]`
//!
//! Loads `warehouses` once, then runs the same point (`clients` threads, no think times, all data in memory) on OS
//! threads for `real` seconds and in a simulation for `virtual` ones, without durability and with a log whose durable
//! writes take `flush` microseconds. `rounds` repeats the real run; `sweep=1` adds half and twice the lock hand-off,
//! `detail=1` what was charged, `slack` is in nanoseconds. `calibrate=1` measures this machine instead, as `varve probe
//! --cpu` does. Prints rates, processor time per transaction, and what the simulation cost.

use std::sync::Arc;
use std::time::Duration;
use varve::{Db, Devices, Layout, Options};
use varve_device::{Capabilities, Counters, Device, DeviceError, DeviceInfo, DeviceKind, DeviceStats, Io, Op, Ticket};
use varve_lab::adapter::Durability;
use varve_lab::adapter::varve::VarveStore;
use varve_lab::driver::{self, RunOptions, RunResult, Until};
use varve_lab::host::{CalibrateOptions, HostProfile, calibrate};
use varve_lab::tpcc;
use varve_rt::{Cost, RwLock, now, sim};

const CHUNK: usize = 1 << 20;

/// Memory as a device, the same in both worlds. Durable writes sleep.
struct Ram {
    chunks: RwLock<Vec<Box<[u8]>>>,
    flush: Duration,
    counters: Counters,
}

impl Ram {
    fn new(flush: Duration) -> Arc<Ram> {
        Arc::new(Ram { chunks: RwLock::new(Vec::new()), flush, counters: Counters::default() })
    }

    fn copy(&self, flush: Duration) -> Arc<Ram> {
        let chunks = RwLock::new(self.chunks.read().clone());
        Arc::new(Ram { chunks, flush, counters: Counters::default() })
    }

    fn one(&self, io: &Io) {
        let (mut at, mut done, len) = (io.offset as usize, 0, io.len());
        let chunks = self.chunks.read();
        while done < len && matches!(io.op, Op::Read | Op::Write { .. }) {
            let n = (CHUNK - at % CHUNK).min(len - done);
            let inside = chunks[at / CHUNK].as_ptr().wrapping_add(at % CHUNK).cast_mut();
            // SAFETY: the engine keeps the buffer valid until the request was waited for, does not overlap requests in
            // flight, and the chunks do not move; the program is a benchmark.
            unsafe {
                match io.op {
                    Op::Read => std::ptr::copy_nonoverlapping(inside, io.buf.as_mut_ptr().add(done), n),
                    _ => std::ptr::copy_nonoverlapping(io.buf.as_ptr().add(done), inside, n),
                }
            }
            (at, done) = (at + n, done + n);
        }
    }
}

impl Device for Ram {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "ram".into(),
            kind: DeviceKind::Memory,
            block: 4096,
            atomic_write_unit: 512,
            queue_depth: 64,
            direct: true,
            access: "memory".into(),
            fallback: None,
            capabilities: Capabilities::default(),
        }
    }

    fn len(&self) -> u64 {
        (self.chunks.read().len() * CHUNK) as u64
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let chunk = || vec![0; CHUNK].into_boxed_slice();
        self.chunks.write().resize_with((len as usize).div_ceil(CHUNK), chunk);
        Ok(())
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        sim::settle();
        batch.iter().for_each(|io| self.one(io));
        if batch.iter().any(|io| matches!(io.op, Op::Flush | Op::Write { durable: true })) && !self.flush.is_zero() {
            varve_rt::sleep(self.flush);
        }
        Ticket::ready(batch.iter().map(|_| Ok(())).collect())
    }

    fn stats(&self) -> DeviceStats {
        self.counters.snapshot()
    }
}

struct Args {
    profile: String,
    values: Vec<(String, f64)>,
}

impl Args {
    fn get(&self, key: &str, default: f64) -> f64 {
        self.values.iter().find(|(k, _)| k == key).map_or(default, |(_, v)| *v)
    }
}

fn args() -> Args {
    let mut args = Args { profile: "vm-2core".into(), values: Vec::new() };
    for arg in std::env::args().skip(1).filter(|a| !a.starts_with("--")) {
        match arg.split_once('=') {
            Some((key, value)) => args.values.push((key.into(), value.parse().expect("KEY=NUMBER"))),
            None => args.profile = arg,
        }
    }
    args
}

fn options(args: &Args) -> Options {
    let cache = (args.get("warehouses", 4.0) * 180.0 + 200.0) as u64;
    Options { recovery_bound: Duration::from_secs(60), log_max_bytes: 8 << 30, ..Options::default() }.cache_mb(cache)
}

/// A loaded database, closed.
fn load(args: &Args) -> (Arc<Ram>, Arc<Ram>) {
    let (data, log) = (Ram::new(Duration::ZERO), Ram::new(Duration::ZERO));
    let devices = Devices::new(data.clone(), log.clone());
    let db = Db::create_on(devices, &Layout { log_bytes: 512 << 20, ..Layout::default() }, options(args)).unwrap();
    let store = Arc::new(VarveStore::new(db));
    tpcc::load(&store, tpcc::Scale::of(args.get("warehouses", 4.0) as u32), 1, 2, |_| {}).unwrap();
    store.db().clone().close().unwrap();
    (data, log)
}

/// The point, on copies of the loaded devices.
fn point(args: &Args, data: Arc<Ram>, log: Arc<Ram>, durable: bool, seconds: f64) -> RunResult {
    let db = Db::open_on(Devices::new(data, log), options(args)).unwrap();
    let store = Arc::new(VarveStore::new(db));
    let durability = if durable { Durability::Sync } else { Durability::None };
    let workload = tpcc::Tpcc::new(&*store, tpcc::Options { durability, ..tpcc::Options::default() }).unwrap();
    let run = RunOptions {
        threads: args.get("clients", 8.0) as usize,
        warmup: Duration::from_secs_f64(seconds / 4.0),
        until: Until::Time(Duration::from_secs_f64(seconds)),
        ..RunOptions::default()
    };
    let result = driver::run(&store, &Arc::new(workload), &run, |_| {}).unwrap();
    store.db().clone().close().unwrap();
    result
}

/// Processor time of this process, seconds, to a hundredth.
fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let args = args();
    let host = HostProfile::find(&args.profile).unwrap();
    if args.get("calibrate", 0.0) > 0.0 {
        return print_calibration(&args, host);
    }
    let began = now();
    let (data, log) = load(&args);
    println!("loaded in {:.1} s", began.elapsed().as_secs_f64());
    let flush = Duration::from_secs_f64(args.get("flush", 200.0) / 1e6);
    for durable in [false, true] {
        let flush = if durable { flush } else { Duration::ZERO };
        let name = if durable { "durable" } else { "not durable" };
        let seconds = args.get("real", 5.0);
        for _ in 0..args.get("rounds", 1.0) as usize {
            if seconds > 0.0 {
                let (wall, cpu) = (now(), cpu_time());
                let result = point(&args, data.copy(Duration::ZERO), log.copy(flush), durable, seconds);
                let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_time() - cpu);
                let per = cpu / wall / result.ops_per_s * 1e6;
                let how = format!(
                    "{:.2} cores used, {per:.0} us per tx: {:.0} tx/s on {} cores",
                    cpu / wall,
                    host.cores as f64 / per * 1e6,
                    host.cores
                );
                report(&format!("{name}, this machine"), &result, &how);
            }
        }
        let seconds = args.get("virtual", 1.0);
        let sweep = [0.5, 1.0, 2.0];
        for &factor in if args.get("sweep", 0.0) > 0.0 { &sweep[..] } else { &sweep[1..2] } {
            let mut config = host.config(1);
            config.lock_handoff = config.lock_handoff.mul_f64(factor);
            config.lock_data = config.lock_data.mul_f64(factor);
            config.slack = Duration::from_nanos(args.get("slack", config.slack.as_nanos() as f64) as u64);
            config.cores = args.get("cores", config.cores as f64) as usize;
            let (data, log) = (data.copy(Duration::ZERO), log.copy(flush));
            let (began, cpu) = (now(), cpu_time());
            let outcome = sim::run(config, || point(&args, data, log, durable, seconds));
            let real = began.elapsed().as_secs_f64();
            let cpu = cpu_time() - cpu;
            let (virt, switches, used) = (outcome.time.as_secs_f64(), outcome.switches as f64, outcome.cpu.clone());
            let result = outcome.unwrap();
            let all = result.ops_per_s * virt;
            if args.get("detail", 0.0) > 0.0 {
                for &cost in Cost::ALL {
                    let per = used.units(cost) as f64 / all;
                    println!("  {:<16} {per:9.1} per tx, {:8.0} ns per tx", cost.name(), per * host.costs.ns(cost));
                }
                let (handoff, spin) = (used.handoff_ns as f64 / all, used.spin_ns as f64 / all);
                println!("  hand-off {handoff:8.0} ns per tx, spin {spin:8.0} ns per tx");
            }
            let how = format!(
                "{real:.1} s ({cpu:.1} s of processor) for {virt:.1} s; {:.2} M switches/s, {:.0} switches and {:.0} us per tx",
                switches / cpu / 1e6,
                switches / all,
                cpu * 1e6 / all
            );
            report(&format!("{name}, {} (hand-off x {factor})", host.name), &result, &how);
        }
    }
}

fn print_calibration(args: &Args, guess: HostProfile) {
    let (rounds, warehouses) = (args.get("rounds", 30.0) as usize, args.get("warehouses", 2.0) as u32);
    let options = CalibrateOptions { name: guess.name.clone(), rounds, warehouses, guess };
    let found = calibrate(&options, &std::env::temp_dir(), |what| eprintln!("{what}")).unwrap();
    for m in &found.measured {
        let explained = m.explained.map_or(String::new(), |ns| format!("{ns:12.1}"));
        println!("{:<38} {:12.1} {:12.1} {:12.1} {explained}", m.name, m.least, m.quartile, m.median);
    }
    println!("ratio {:.2}\n{}", found.ratio, found.host.to_toml());
}

fn report(name: &str, r: &RunResult, more: &str) {
    let retries: u64 = r.kinds.iter().map(|k| k.retries).sum();
    println!(
        "{name:<44} {:8.0} tx/s  p50 {:6.0} us  p99 {:6.0} us  {retries} retries; {more}",
        r.ops_per_s, r.latency.p50_us, r.latency.p99_us
    );
}
