//! The simulated machine: a data and a log device, and a fast one for a tier, in memory on one power supply, with faults.

use super::book::Trace;
use super::plan::{self, Fault, Plan};
use super::tier::TierPlan;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{
    Device, DeviceError, DeviceInfo, DeviceStats, FaultPlan, Faulty, Io, Latency, MemDevice, MemOptions, Op, OpKind,
    PowerSupply, Ticket, When,
};

/// Two or three devices and their power.
pub(crate) struct Machine {
    pub(crate) supply: Arc<PowerSupply>,
    data: Arc<Faulty>,
    log: Arc<Faulty>,
    /// Of a tier.
    fast: Option<Arc<Faulty>>,
    /// What the data device is made of.
    memory: Arc<MemDevice>,
    trace: Trace,
}

fn latency(l: plan::Latency) -> Latency {
    let us = |low, high| (Duration::from_micros(low), Duration::from_micros(high));
    Latency {
        read: us(l.low_us, l.high_us),
        write: us(l.low_us / 2, l.high_us),
        durable: us(l.low_us, l.high_us * 2),
        flush: us(l.low_us * 2, l.high_us * 4),
    }
}

impl Machine {
    pub(crate) fn new(plan: &Plan, tier: Option<&TierPlan>, trace: Trace) -> Machine {
        let supply = PowerSupply::new();
        let device = |name: &str, l, seed| {
            let options = MemOptions { name: name.into(), latency: latency(l), seed, ..MemOptions::default() };
            let mem = MemDevice::with(0, options);
            supply.attach(mem.clone());
            (Faulty::powered(mem.clone(), FaultPlan::new(seed), supply.clone()), mem)
        };
        let (data, memory) = device("data", plan.data_latency, plan.seed ^ 0xda7a);
        let (log, _) = device("log", plan.log_latency, plan.seed ^ 0x106);
        let fast = tier.map(|tier| device("fast", tier.latency, plan.seed ^ 0xfa57).0);
        Machine { supply, data, log, fast, memory, trace }
    }

    /// The devices, as the engine gets them.
    pub(crate) fn devices(&self) -> varve::Devices {
        let traced = |device: &Arc<Faulty>, name: &'static str| -> Arc<dyn Device> {
            match self.trace.is_on() {
                true => Arc::new(Traced { inner: device.clone(), name, trace: self.trace.clone() }),
                false => device.clone(),
            }
        };
        let fast = self.fast.as_ref().map(|fast| traced(fast, "fast"));
        varve::Devices { fast, ..varve::Devices::new(traced(&self.data, "data"), traced(&self.log, "log")) }
    }

    /// Arranges for a fault at about the `after`-th request from now of the kind it needs.
    pub(crate) fn inject(&self, fault: Fault, after: u64, seed: u64) {
        use varve_device::Fault as F;
        let plan = FaultPlan::new(seed);
        let nth = When::Nth(1 + after / 8);
        // Over a tier the data device sees few reads, and most writes go to the fast one.
        let (reads, any) = if self.fast.is_some() { (60, 8) } else { (2, 1) };
        // Full for a while: a plan is in force until the life ends, but only some requests find it so.
        let some = When::OneIn(3);
        let (device, plan) = match fault {
            Fault::DataRetryable => {
                let requests = [OpKind::Read, OpKind::Write];
                (&self.data, plan.rule(&requests, None, When::Nth(1 + after / any), F::TransientEio))
            }
            Fault::DataRead => (&self.data, plan.rule(&[OpKind::Read], None, When::Nth(1 + after / reads), F::Eio)),
            Fault::DataWrite => (&self.data, plan.rule(&[OpKind::Write], None, When::Nth(1 + after / 2), F::Eio)),
            Fault::DataFlush => (&self.data, plan.rule(&[OpKind::Flush], None, When::Nth(1 + after / 200), F::Eio)),
            Fault::DataFull => (
                &self.data,
                plan.rule(&[OpKind::SetLen], None, some, F::NoSpace).rule(&[OpKind::Write], None, nth, F::NoSpace),
            ),
            Fault::LogWrite => (&self.log, plan.rule(&[OpKind::Write], None, nth, F::Eio)),
            Fault::LogFull => (
                &self.log,
                plan.rule(&[OpKind::SetLen], None, some, F::NoSpace).rule(&[OpKind::Write], None, nth, F::NoSpace),
            ),
        };
        device.set_plan(plan);
    }

    /// Takes all faults back.
    pub(crate) fn heal(&self) {
        self.data.set_plan(FaultPlan::new(0));
        self.log.set_plan(FaultPlan::new(0));
    }

    /// Pages of the data device that a power cut left torn: their checksum is wrong.
    pub(crate) fn torn_pages(&self, page_size: usize) -> u64 {
        let mut page = vec![0; page_size];
        let mut torn = 0;
        for number in 0..self.memory.len() / page_size as u64 {
            self.memory.peek(number * page_size as u64, &mut page);
            let found = varve_volume::page::verify(&page, varve_volume::PageId(number));
            torn += u64::from(matches!(found, Err(varve_volume::PageDamage::Checksum { .. })));
        }
        torn
    }

    /// Errors injected so far.
    pub(crate) fn injected(&self) -> u64 {
        [&self.data, &self.log].iter().map(|d| d.counts()).map(|c| c.eio + c.no_space).sum()
    }
}

/// A device that prints what it is asked.
struct Traced {
    inner: Arc<Faulty>,
    name: &'static str,
    trace: Trace,
}

impl Device for Traced {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let result = self.inner.set_len(len);
        self.trace.event(|| format!("{}: set_len {len}: {result:?}", self.name));
        result
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        self.trace.event(|| {
            let one = |io: &Io| match io.op {
                Op::Flush => "flush".to_string(),
                Op::Write { durable } => {
                    let way = if durable { "write, durable" } else { "write" };
                    format!("{way} {}+{}", io.offset, io.len())
                }
                _ => format!("{} {}+{}", io.op.kind(), io.offset, io.len()),
            };
            let ops: Vec<String> = batch.iter().map(one).collect();
            format!("{} (op {}): {}", self.name, self.inner.supply().ops() + 1, ops.join("; "))
        });
        self.inner.submit(batch)
    }

    fn run(&self, io: Io) -> Result<(), DeviceError> {
        self.trace.event(|| {
            let op = self.inner.supply().ops() + 1;
            format!("{} (op {op}): {} {}+{}, at once", self.name, io.op.kind(), io.offset, io.len())
        });
        self.inner.run(io)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}
