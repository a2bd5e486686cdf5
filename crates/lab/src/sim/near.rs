//! The worker's part of a simulated database: a machine of its own beside the data device, behind a link. Machine, link
//! and manners are drawn from the seed. While clients work the link is cut or stands still, and the worker is killed or
//! loses its power, mostly in the middle of a merge; when the host's power fails the worker may go on.

use super::book::Shared;
use super::plan::Plan;
use std::sync::Arc;
use std::time::Duration;
use varve::{Faults, JobService, Load, Near, NearOptions, NotStarted, Progress, RemoteWorker, WorkerOptions};
use varve_device::{DeviceError, Latched};
use varve_models::{FaultPlan, Faulty, LinkConfig, LinkModel, Port, PowerSupply};
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_rt::sim::{Domain, Host, HostConfig};
use varve_rt::{Mutex, Rng, hardware_mutex};
use varve_wire::{Handler, Limits, RemoteDevice, Session, SessionOptions, Worker};

/// Counts of what befell it.
pub(crate) const COUNTS: [&str; 16] = [
    "near: parts of merges by the worker",
    "near: parts in place of the worker",
    "near: of these taken up in the middle",
    "near: merges while detached",
    "near: attached again",
    "near: answers of others, or damaged",
    "near: link cut",
    "near: link at a standstill",
    "near: taken by another host",
    "near: worker killed",
    "near: worker without power",
    "near: of these in the middle of a job",
    "near: of these right after one",
    "near: both hosts without power",
    "near: host without power, worker killed",
    "near: host without power, worker goes on",
];

const MS: Duration = Duration::from_millis(1);
/// Most of what befalls link and worker in a life: it comes to its end.
const TROUBLES: u32 = 60;
/// Longest wait of an opening for its worker.
const OPENING: Duration = Duration::from_secs(60);

/// What a seed makes of the worker.
#[derive(Clone, Debug)]
pub(crate) struct NearPlan {
    seed: u64,
    cores: usize,
    link: LinkConfig,
    /// How long an answer may take, before the connection counts as lost.
    answer: Duration,
    /// How long a job may take, before the host does it itself.
    patience: Duration,
    /// One answer of a job in this many is another one.
    rude: u64,
}

impl NearPlan {
    pub(crate) fn draw(plan: &Plan) -> NearPlan {
        let mut rng = Rng::from_seed(plan.seed ^ 0x0ea2);
        NearPlan {
            seed: plan.seed,
            cores: rng.between(1, 2) as usize,
            link: LinkConfig {
                latency_us: rng.between(2, 200) as f64,
                mb_s: [20.0, 118.0, 1000.0][rng.below(3) as usize],
                message_us: rng.below(5) as f64,
                far_message_us: None,
            },
            answer: MS * [200, 1000, 5000][rng.below(3) as usize],
            patience: MS * [20, 200, 5000][rng.below(3) as usize],
            rude: [0, 6, 12][rng.below(3) as usize],
        }
    }
}

/// A worker that runs.
struct Running {
    domain: Domain,
    merges: Arc<varve::Worker>,
    device: Arc<Latched>,
}

/// The worker's machine, and the link to it.
pub(crate) struct NearPart {
    plan: NearPlan,
    faults: Faults,
    host: Host,
    port: Arc<Port>,
    /// Of the medium.
    supply: Arc<PowerSupply>,
    medium: Arc<Faulty>,
    running: Mutex<Option<Running>>,
    /// Times that it was started.
    starts: AtomicU64,
    /// Times that it died.
    deaths: AtomicU64,
    /// Jobs that panicked in workers that have died.
    panics: AtomicU64,
}

impl NearPart {
    /// Over a medium with a power supply of its own. `faults`: mistakes that it makes.
    pub(crate) fn new(plan: NearPlan, supply: Arc<PowerSupply>, medium: Arc<Faulty>, faults: Faults) -> NearPart {
        let costs = varve_rt::sim::Config { cores: plan.cores, ..Default::default() }.host();
        let host = Host::new(HostConfig { name: "near".into(), ..costs });
        let port = Port::new(LinkModel::new(plan.link), "remote:near");
        let [starts, deaths, panics] = [(); 3].map(|()| AtomicU64::new(0));
        NearPart { plan, faults, host, port, supply, medium, running: hardware_mutex(None), starts, deaths, panics }
    }

    /// Times that the worker died.
    pub(crate) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    /// Starts the worker, if none runs.
    fn start(&self) -> Result<(), DeviceError> {
        // Whoever was about to kill it may have lost its power meanwhile.
        self.supply.cut_at(0, 0);
        // One whose device promises nothing any more is started anew by whoever looks after it.
        let latched = self.running.lock().as_ref().is_some_and(|running| running.device.cause().is_some());
        if latched || !self.supply.is_on() {
            self.die(None);
        }
        if self.running.lock().is_some() {
            return Ok(());
        }
        let n = self.starts.fetch_add(1, Ordering::SeqCst);
        let domain = Domain::new(format!("worker {n}")).on(&self.host);
        let (device, comes) = (Latched::new(self.medium.clone()), self.port.listen());
        let served = device.clone();
        let options = WorkerOptions { faults: self.faults.clone(), ..WorkerOptions::default() };
        let life = move || -> Result<Arc<varve::Worker>, DeviceError> {
            let merges = varve::Worker::start(served.clone(), options).expect("the options are sound");
            let jobs = JobService::new(merges.clone()) as Arc<dyn Handler>;
            let limits = Limits { drain: Duration::from_secs(2), ..Limits::default() };
            let worker = Worker::new(served, Some(jobs), limits)?;
            varve_rt::spawn_daemon("near accepts", move || {
                while let Ok(connection) = comes.recv() {
                    let worker = worker.clone();
                    varve_rt::spawn_daemon("near serves", move || worker.serve(connection));
                }
            });
            Ok(merges)
        };
        let merges = domain.spawn("near starts", life).join().map_err(|_| DeviceError::PowerLost)??;
        *self.running.lock() = Some(Running { domain, merges, device });
        Ok(())
    }

    /// The worker dies, and its connections with it; with its machine's power, what was not flushed.
    fn die(&self, power: Option<u64>) {
        let running = self.running.lock().take();
        if let Some(Running { domain, merges, .. }) = running {
            self.deaths.fetch_add(1, Ordering::SeqCst);
            self.panics.fetch_add(merges.panics(), Ordering::SeqCst);
            self.port.shut();
            if let Some(seed) = power {
                self.supply.cut(seed);
            }
            domain.power_cut();
            self.port.cut();
        }
        self.supply.cut_at(0, 0);
        if !self.supply.is_on() {
            self.supply.restore();
        }
    }

    /// Jobs that run at the worker, and that it has done.
    fn jobs(&self) -> (u64, u64) {
        let merges = self.running.lock().as_ref().map(|running| running.merges.clone());
        let jobs = merges.map(|merges| merges.jobs()).unwrap_or_default();
        (jobs.running, jobs.done)
    }

    /// Another host takes the worker, and leaves it again: the jobs of now are given up.
    fn take(&self) {
        let merges = self.running.lock().as_ref().map(|running| running.merges.clone());
        // An error: a job does not end, since the worker's device is without power.
        let _ = merges.map(|merges| merges.attach());
    }

    /// A job that panicked is a finding: the host makes up for it, so nobody else would notice.
    fn tell_of_panics(&self, shared: &Shared) {
        let now = self.running.lock().as_ref().map_or(0, |running| running.merges.panics());
        let panics = self.panics.load(Ordering::SeqCst) + now;
        if panics > 0 {
            shared.wrong(format!("{panics} jobs of the worker panicked"));
        }
    }

    fn busy(&self) -> bool {
        self.jobs().0 > 0
    }

    /// The host has lost its power, for the `n`-th time: the worker may have too, or not. Says which.
    pub(crate) fn host_is_off(&self, n: u64) -> &'static str {
        let mut rng = Rng::from_seed(self.plan.seed ^ 0x0ff0 ^ n << 20);
        match rng.below(4) {
            0 => {
                self.die(Some(rng.next_u64()));
                COUNTS[13]
            }
            1 => {
                self.die(None);
                COUNTS[14]
            }
            _ => {
                // What is on its way may arrive still.
                varve_rt::sleep(Duration::from_micros(rng.below(3000)));
                self.port.cut();
                COUNTS[15]
            }
        }
    }

    /// The worker's device as the host has it, behind the host's own power supply, and the worker for merges.
    pub(crate) fn reach(&self, supply: &Arc<PowerSupply>) -> varve::Result<(Arc<Faulty>, NearOptions)> {
        let until = varve_rt::now() + OPENING;
        let options = SessionOptions { answer: self.plan.answer, ..SessionOptions::default() };
        let session = loop {
            self.start()?;
            match Session::open(self.port.clone(), options) {
                Ok(session) => break session,
                // The connection of the host that lost its power may be looked at still.
                Err(_) if varve_rt::now() < until && supply.is_on() => varve_rt::sleep(MS),
                Err(e) => {
                    return Err(DeviceError::Lost { device: "remote:near".into(), why: e.to_string().into() }.into());
                }
            }
        };
        let n = self.starts.load(Ordering::SeqCst);
        let device = RemoteDevice::new(session.clone());
        let device = Faulty::powered(device, FaultPlan::new(self.plan.seed ^ n), supply.clone());
        let rng = Rng::from_seed(self.plan.seed ^ 0x2de ^ varve_rt::rng().next_u64());
        let manners = Manners { rng, before: None };
        let worker = Rude { inner: RemoteWorker::new(session), one_in: self.plan.rude, manners: Mutex::new(manners) };
        let near = NearOptions { patience: self.plan.patience, ..NearOptions::new(Arc::new(worker)) };
        Ok((device, near))
    }
}

/// A worker that is asked often, and now and then gives the answer before again, or a damaged one.
struct Rude {
    inner: Arc<RemoteWorker>,
    /// 0: never.
    one_in: u64,
    manners: Mutex<Manners>,
}

struct Manners {
    rng: Rng,
    before: Option<Vec<u8>>,
}

impl Near for Rude {
    fn attach(&self) -> Result<u64, String> {
        self.inner.attach()
    }

    fn start(&self, id: u64, job: &[u8]) -> Result<(), NotStarted> {
        self.inner.start(id, job)
    }

    fn wait(&self, id: u64, most: Duration) -> Progress {
        // Asked more often than in earnest: its jobs are short.
        let mut answer = match self.inner.wait(id, most.min(MS / 5)) {
            Progress::Ended(answer) => answer,
            Progress::Further(part) => {
                if self.manners.lock().rng.one_in(3) {
                    // It fails in the middle.
                    self.inner.cancel(id);
                }
                return Progress::Further(part);
            }
            other => return other,
        };
        let Manners { rng, before } = &mut *self.manners.lock();
        if !rng.one_in(self.one_in) {
            *before = Some(answer.clone());
        } else if let Some(before) = before.clone().filter(|_| !rng.one_in(3)) {
            answer = before;
        } else {
            let bit = rng.below(8 * answer.len() as u64);
            answer[bit as usize / 8] ^= 1 << (bit % 8);
        }
        Progress::Ended(answer)
    }

    fn cancel(&self, id: u64) {
        self.inner.cancel(id);
    }

    fn load(&self) -> Load {
        self.inner.load()
    }
}

/// Breaks the link and kills the worker while clients work.
pub(crate) struct Breaker {
    shared: Arc<Shared>,
    /// The clients have ended.
    done: Arc<AtomicBool>,
    rng: Rng,
    /// Times that the worker may die yet.
    deaths: u64,
}

impl Breaker {
    /// Of a life.
    pub(crate) fn new(shared: Arc<Shared>, done: Arc<AtomicBool>, mut rng: Rng) -> Breaker {
        let deaths = rng.below(3);
        Breaker { shared, done, rng, deaths }
    }

    /// Works until the life ends.
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        let Some(near) = &shared.machine.near else { return };
        for _ in 0..TROUBLES {
            varve_rt::sleep(Duration::from_micros(self.rng.between(500, 60_000)));
            if self.rng.one_in(2) {
                self.wait_for(MS * 20, || near.busy());
            }
            if self.is_over() {
                break;
            }
            match self.rng.below(10) {
                0..=2 => {
                    near.port.cut();
                    self.count(6);
                }
                3..=5 => {
                    let longest = if self.rng.one_in(8) { 1_000_000 } else { 20_000 };
                    near.port.link().stall(Duration::from_micros(self.rng.below(longest)));
                    self.count(7);
                }
                6 if near.busy() => {
                    self.count(8);
                    near.take();
                }
                6 => {}
                what if self.deaths > 0 => {
                    self.deaths -= 1;
                    self.kill(near, what >= 8);
                }
                _ => {}
            }
        }
        while !self.is_over() {
            near.tell_of_panics(&shared);
            varve_rt::sleep(MS * 20);
        }
    }

    fn kill(&mut self, near: &NearPart, power: bool) {
        let (seed, done) = (self.rng.next_u64(), near.jobs().1);
        match self.rng.below(4) {
            // In the middle of one of its next requests.
            0 if power => {
                self.wait_for(MS * 2000, || near.busy());
                near.supply.cut_at(near.supply.ops() + 1 + self.rng.below(12), seed);
                self.wait_for(MS * 20, || !near.supply.is_on());
            }
            // While the host lists what it has answered, or soon after.
            1 | 2 => {
                self.wait_for(MS * 2000, || near.jobs().1 > done);
                varve_rt::sleep(Duration::from_micros(self.rng.below(15_000)));
            }
            _ => {
                self.wait_for(MS * 2000, || near.busy());
                varve_rt::sleep(Duration::from_micros(self.rng.below(20_000)));
            }
        }
        self.count(if power { 10 } else { 9 });
        if near.busy() {
            self.count(11);
        } else if near.jobs().1 > done {
            self.count(12);
        }
        self.shared.trace.event(|| format!("the worker dies, power {}", if power { "cut" } else { "on" }));
        near.die(power.then_some(seed));
        varve_rt::sleep(Duration::from_micros(self.rng.below(30_000)));
        let started = near.start();
        self.shared.trace.event(|| format!("the worker is started anew: {started:?}"));
    }

    fn wait_for(&self, most: Duration, there: impl Fn() -> bool) {
        let until = varve_rt::now() + most;
        while !there() && !self.is_over() && varve_rt::now() < until {
            varve_rt::sleep(Duration::from_micros(50));
        }
    }

    fn is_over(&self) -> bool {
        self.shared.is_stopping() || self.done.load(Ordering::SeqCst) || !self.shared.supply.is_on()
    }

    fn count(&self, n: usize) {
        self.shared.count(COUNTS[n], 1);
    }
}

/// Counts of one life.
pub(crate) fn stats(stats: &varve::NearStats, shared: &Shared) {
    shared.machine.near.iter().for_each(|near| near.tell_of_panics(shared));
    let by = &stats.fallbacks;
    for (name, n) in COUNTS.iter().zip([
        stats.device.tasks,
        by.all() - by.detached,
        stats.resumed,
        by.detached,
        stats.attachments.saturating_sub(1),
        by.garbage,
    ]) {
        shared.count(name, n);
    }
}
