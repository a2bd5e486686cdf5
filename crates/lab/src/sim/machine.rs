//! The simulated machine: a data and a log device, and a fast one for a tier, in memory on one power supply, with
//! faults. Several drives may stand for the data device, as an array, or native flash.

use super::array::ArrayPlan;
use super::book::Trace;
use super::faults::{Fault, Struck, Target};
use super::flash::{FlashPart, FlashPlan};
use super::ghosts::Fences;
use super::near::{NearPart, NearPlan};
use super::plan::{self, Plan};
use super::tier::TierPlan;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Hint, Io, Op, Ticket};
use varve_models::{FaultPlan, Faulty, Latency, MemDevice, MemOptions, PowerSupply, Powered};
use varve_rt::{Mutex, hardware_mutex};

/// The drives of an array, as an opening gets them; of none, nothing.
pub(crate) type Drives = Vec<Arc<dyn Device>>;

/// The devices and their power.
pub(crate) struct Machine {
    pub(crate) supply: Arc<PowerSupply>,
    /// The data device, or the drives of an array.
    data: Vec<Arc<Faulty>>,
    log: Arc<Faulty>,
    /// Of a tier.
    fast: Option<Arc<Faulty>>,
    /// What the data device is made of, or the drives.
    memory: Vec<Arc<MemDevice>>,
    array: Option<ArrayPlan>,
    /// In place of the data device.
    flash: Option<FlashPart>,
    /// Who has the data device, if it is not this machine.
    pub(crate) near: Option<NearPart>,
    injected: Mutex<Injected>,
    /// Around the devices of each opening.
    pub(crate) fences: Fences,
    trace: Trace,
}

/// The faults in force, and what those before did.
#[derive(Default)]
struct Injected {
    faults: Vec<Fault>,
    struck: Struck,
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
    pub(crate) fn new(
        plan: &Plan,
        (tier, array, flash): (Option<&TierPlan>, Option<ArrayPlan>, Option<FlashPlan>),
        near: Option<(NearPlan, varve::Faults)>,
        trace: Trace,
    ) -> Machine {
        let supply = PowerSupply::new();
        // The worker's machine has power of its own.
        let of_data = if near.is_some() { PowerSupply::new() } else { supply.clone() };
        let device_on = |supply: &Arc<PowerSupply>, name: &str, len, l, seed| {
            let options = MemOptions { name: name.into(), latency: latency(l), seed, ..MemOptions::default() };
            let mem = MemDevice::with(len, options);
            supply.attach(mem.clone());
            (Faulty::forgetful(mem.clone(), FaultPlan::new(seed), supply.clone()), mem)
        };
        let device = |name: &str, len, l, seed| device_on(&supply, name, len, l, seed);
        let mut drives = array.as_ref().map_or(vec![("data".to_string(), 0)], ArrayPlan::drives);
        let flash = flash.map(|flash| {
            drives.clear();
            FlashPart::new(flash, &supply)
        });
        let drive = |(i, (name, len)): (u64, &(String, u64))| {
            device_on(&of_data, name, *len, plan.data_latency, plan.seed ^ 0xda7a ^ (i << 32))
        };
        let (data, memory): (Vec<Arc<Faulty>>, _) = (0..).zip(&drives).map(drive).unzip();
        let near = near.map(|(plan, faults)| NearPart::new(plan, of_data.clone(), data[0].clone(), faults));
        let (log, _) = device("log", 0, plan.log_latency, plan.seed ^ 0x106);
        let fast = tier.map(|tier| device("fast", 0, tier.latency, plan.seed ^ 0xfa57).0);
        let (injected, fences) = (hardware_mutex(Injected::default()), Fences::new());
        Machine { supply, data, log, fast, memory, array, flash, near, injected, fences, trace }
    }

    /// Whether an array holds the pages.
    pub(crate) fn has_array(&self) -> bool {
        self.array.is_some()
    }

    /// The devices, as the engine gets them. An array is made, or found on its drives.
    pub(crate) fn devices(&self, create: bool, faults: &varve::Faults) -> varve::Result<(varve::Devices, Drives)> {
        let traced = |device: &Arc<Faulty>, name: &'static str| -> Arc<dyn Device> {
            match self.trace.is_on() {
                true => Arc::new(Traced { inner: device.clone(), name, trace: self.trace.clone() }),
                false => device.clone(),
            }
        };
        let flash = self.flash.as_ref().map(|flash| flash.open(create, faults)).transpose()?;
        let reached = self.near.as_ref().map(|near| near.reach(&self.supply)).transpose()?;
        let pages = flash.iter().map(|flash| flash.clone() as Arc<dyn Device>);
        let here = self.data.iter().filter(|_| reached.is_none()).map(|drive| traced(drive, "data"));
        let there = reached.iter().map(|(device, _)| traced(device, "data"));
        let data = here.chain(there).chain(pages);
        let rest = [Some(traced(&self.log, "log")), self.fast.as_ref().map(|fast| traced(fast, "fast"))];
        let mut devices = self.fences.around(data.map(Some).chain(rest).collect());
        let fast = devices.pop().expect("as many as before");
        let log = devices.pop().flatten().expect("there is a log");
        let mut drives: Vec<Arc<dyn Device>> = devices.into_iter().flatten().collect();
        let devices = match &self.array {
            None => match flash {
                None => varve::Devices::new(drives.remove(0), log),
                Some(flash) => varve::Devices::on_flash(flash, log).with("data", drives.remove(0)),
            },
            Some(array) => varve::Devices::on_array(array.array(drives.clone(), create, faults)?, log),
        };
        let devices = reached.into_iter().fold(devices, |devices, (_, worker)| devices.with_near(worker));
        Ok((fast.into_iter().fold(devices, |devices, fast| devices.with("fast", fast)), drives))
    }

    /// The power of one drive fails, before that of the others.
    pub(crate) fn cut_drive(&self, drive: usize, seed: u64) {
        self.memory[drive].power_cut(seed);
    }

    /// Arranges for faults from now on, in place of those before.
    pub(crate) fn inject(&self, faults: Vec<Fault>, seed: u64) {
        self.memory.iter().for_each(|memory| memory.verify());
        let mut injected = self.injected.lock();
        for (target, device) in self.all() {
            let of_it = |f: &&Fault| f.cell.target == target;
            let before = injected.faults.clone();
            let struck = before.iter().filter(of_it).zip(device.decided());
            struck.for_each(|(fault, n)| injected.struck.add(fault.cell, n));
            let plan = faults.iter().filter(of_it).fold(FaultPlan::new(seed), |plan, fault| fault.add_to(plan));
            device.set_plan(plan);
        }
        injected.faults = faults;
    }

    /// Takes all faults back.
    pub(crate) fn heal(&self) {
        self.inject(Vec::new(), 0);
    }

    /// How often each fault that was taken back had struck, since this was asked last.
    pub(crate) fn struck(&self) -> Struck {
        std::mem::take(&mut self.injected.lock().struck)
    }

    fn all(&self) -> impl Iterator<Item = (Target, &Arc<Faulty>)> {
        let fast = self.fast.iter().map(|fast| (Target::Fast, fast));
        let data = self.data.iter().map(|drive| (Target::Data, drive));
        data.chain([(Target::Log, &self.log)]).chain(fast)
    }

    /// Pages of the data device that a power cut left torn: their checksum is wrong. On an array nobody counts them.
    pub(crate) fn torn_pages(&self, page_size: usize) -> u64 {
        let [memory] = &self.memory[..] else { return 0 };
        let mut page = vec![0; page_size];
        let mut torn = 0;
        for number in 0..memory.len() / page_size as u64 {
            memory.peek(number * page_size as u64, &mut page);
            let found = varve_volume::page::verify(&page, varve_volume::PageId(number));
            torn += u64::from(matches!(found, Err(varve_volume::PageDamage::Checksum { .. })));
        }
        torn
    }

    /// Writes so far that were not done as asked.
    pub(crate) fn falsified(&self) -> u64 {
        self.data.iter().map(|drive| drive.counts().false_writes).sum()
    }

    /// Requests that failed on purpose so far, and deaths of a worker.
    pub(crate) fn errors(&self) -> u64 {
        let requests: u64 = self.all().map(|(_, device)| device.counts().errors()).sum();
        requests + self.near.as_ref().map_or(0, NearPart::deaths)
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

    fn hint(&self, range: std::ops::Range<u64>, hint: Hint) {
        self.inner.hint(range, hint);
    }
}
