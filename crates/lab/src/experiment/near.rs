//! `[hosts.near]` and `devices.data.link`: a machine beside the data device, and what lies between it and the host.
//!
//! With a link alone the data device answers over it by itself. With a near host too, a worker runs there, and the data
//! device is that worker's: its processor is charged for what it serves.

use super::background;
use super::decisions::Decisions;
use super::machine::HostTime;
use super::spec::{Clock, Device, Devices, Host, Spec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use toml::Value;
use varve::{JobService, KeyspaceKind, Load, NearOptions, NearStats, RemoteWorker, SideStats, WorkerOptions};
use varve_device::{Device as Storage, Latched};
use varve_models::{Direction, LinkConfig, LinkModel, Linked, Port};
use varve_rt::{Cost, CpuCosts, Instant, Mutex, now, sim};
use varve_wire::{Handler, Limits, RemoteDevice, Session, SessionOptions, Worker};

const MIB: f64 = (1 << 20) as f64;

/// Requests that the near host has under way at its device: what a SATA drive takes.
const THREADS: usize = 32;

/// A reading of a host's use covers at least so much time.
const WINDOW: Duration = Duration::from_millis(100);

/// `[hosts]`: machines besides the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hosts {
    /// The one beside the data device; the keys of `[host]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<Host>,
}

impl Hosts {
    pub(super) fn is_empty(&self) -> bool {
        self.near.is_none()
    }
}

impl Device {
    /// What lies between the host and this device: `link = "NAME"`, or `link = { profile = "NAME", latency_us = ..,
    /// mb_s = .., message_us = .. }`, where values go before the profile's.
    pub(super) fn link(&self) -> Result<Option<LinkConfig>, String> {
        let named = |name: &str| {
            let names: Vec<&str> = LinkConfig::names().collect();
            LinkConfig::named(name).ok_or_else(|| format!("no such link as {name}; there are {}", names.join(", ")))
        };
        let config = match self.0.get("link") {
            None => return Ok(None),
            Some(Value::String(name)) => named(name)?,
            Some(Value::Table(table)) => {
                let mut own = table.clone();
                let mut whole = match own.remove("profile") {
                    None => toml::Table::new(),
                    Some(Value::String(name)) => toml::Table::try_from(named(&name)?).map_err(|e| e.to_string())?,
                    Some(_) => return Err("profile is the name of a link".into()),
                };
                super::spec::merge(&mut whole, &own);
                whole.try_into().map_err(|e: toml::de::Error| e.message().to_string())?
            }
            Some(_) => return Err("give the name of a link, or a table with latency_us, mb_s and message_us".into()),
        };
        config.check().map_err(|(key, why)| format!("{key} {why}"))?;
        Ok(Some(config))
    }
}

impl Devices {
    /// The link of the data device; the error names the key.
    pub(super) fn link(&self) -> Result<Option<LinkConfig>, (String, String)> {
        self.data.link().map_err(|what| ("devices.data.link".to_string(), what))
    }
}

/// The near host's simulation values; the error names the key.
fn near_host(host: &Host) -> Result<sim::HostConfig, (String, String)> {
    let config = host.config(0).map_err(|(key, what)| (key.replacen("host", "hosts.near", 1), what))?;
    Ok(sim::HostConfig { name: "near".into(), ..config.host() })
}

/// Refuses what cannot be run; the error names the key.
pub(super) fn validate(spec: &Spec) -> Result<(), (String, String)> {
    let refuse = |key: &str, why: &str| Err((key.to_string(), why.to_string()));
    let devices = &spec.devices;
    for (key, device) in
        [("log", &devices.log), ("fast", &devices.fast), ("flash", &devices.flash), ("each", &devices.each)]
    {
        if device.0.contains_key("link") {
            return refuse(&format!("devices.{key}.link"), "only the data device may be behind a link");
        }
    }
    let link = devices.link()?;
    if link.is_some() && (!devices.drives.is_empty() || !devices.flash.is_empty()) {
        return refuse("devices.data.link", "an array and native flash have no data device that could be behind it");
    }
    if link.is_some() && spec.workload.iomix.as_ref().is_some_and(|mix| mix.volume) {
        return refuse(
            "devices.data.link",
            "requests go to the device by itself there: leave workload.iomix.volume out",
        );
    }
    background::validate(&spec.host, "host")?;
    let busy = spec.hosts.near.iter().chain([&spec.host]).any(|host| !host.load.is_empty());
    if busy && (spec.run.clock == Clock::Paced || spec.run.reopen) {
        return refuse("host.load", "other work is modelled in virtual time, and not where run.reopen is");
    }
    spec.engine.decision.validate()?;
    let lsm = matches!(spec.kind(), KeyspaceKind::Lsm(options) if options.merge.needs_worker());
    let Some(near) = &spec.hosts.near else {
        return if lsm { refuse("engine.lsm.merge", "a worker merges: give hosts.near") } else { Ok(()) };
    };
    near_host(near)?;
    background::validate(near, "hosts.near")?;
    match () {
        () if near.cores.is_some_and(|n| n == 0 || n > 1024) => refuse("hosts.near.cores", "1 to 1024 are possible"),
        () if link.is_none() => refuse("hosts.near", "give devices.data.link, which it is at the other end of"),
        () if spec.run.clock == Clock::Paced => {
            refuse("hosts.near", "hosts are modelled in virtual time only: leave run.clock = \"paced\" out")
        }
        () => Ok(()),
    }
}

/// What lies between a point's host and its data device.
#[derive(Clone, Default)]
pub(super) struct Near {
    link: Option<Arc<LinkModel>>,
    host: Option<sim::Host>,
    /// Of the worker on the near host.
    session: Option<Arc<Session>>,
    decisions: Decisions,
    /// Shares of the memory of the host and of the near host that other work takes.
    memory: [f64; 2],
}

impl Near {
    /// As the point has it. Make it where the point runs.
    pub fn of(spec: &Spec) -> crate::Result<Near> {
        let named = |(key, what)| crate::Error::Profile(format!("{key}: {what}"));
        let link = spec.devices.link().map_err(named)?.map(LinkModel::new);
        let host = spec.hosts.near.as_ref().map(near_host).transpose().map_err(named)?.map(sim::Host::new);
        let begin = |of: Option<&Host>, on: Option<&sim::Host>| {
            of.zip(on).map_or(0.0, |(h, on)| background::begin(&h.load, on))
        };
        let here = sim::Host::current();
        let memory = [begin(Some(&spec.host), here.as_ref()), begin(spec.hosts.near.as_ref(), host.as_ref())];
        Ok(Near { link, host, session: None, decisions: spec.engine.decision.clone(), memory })
    }

    /// The data device as the host sees it.
    pub fn device(&mut self, inner: Arc<dyn Storage>) -> crate::Result<Arc<dyn Storage>> {
        match (&self.link, &self.host) {
            (None, _) => Ok(inner),
            (Some(link), None) => Ok(Linked::new(inner, link.clone())),
            (Some(link), Some(host)) => {
                let port = Port::new(link.clone(), "data (behind the link)");
                let (listening, memory) = (port.clone(), self.memory[1]);
                let begun = host.spawn("near", move || serve(inner, &listening, memory)).join();
                begun.map_err(|e| crate::Error::store(e.to_string()))??;
                let session = Session::open(port, SessionOptions::default());
                let session = session.map_err(|e| crate::Error::store(e.to_string()))?;
                self.session = Some(session.clone());
                Ok(RemoteDevice::new(session))
            }
        }
    }

    /// The worker on the near host, for merges.
    pub fn merges(&self) -> Option<NearOptions> {
        let load = load_of(sim::Host::current()?, &sim::costs(), self.memory[0]);
        let worker = RemoteWorker::new(self.session.clone()?);
        Some(self.decisions.put(NearOptions { load: Some(load), ..NearOptions::new(worker) }))
    }

    /// What was used so far.
    pub fn moment(&self) -> NearMoment {
        let host = self.host.as_ref().map(|host| HostTime {
            cores: host.cores() as f64,
            used: host.core_time().as_secs_f64(),
            others: None,
        });
        let lane = |link: &LinkModel, direction| {
            let (bytes, busy) = link.sent(direction);
            [bytes as f64, busy.as_secs_f64(), link.messages(direction) as f64]
        };
        let lanes = self.link.as_ref().map(|link| [Direction::Down, Direction::Up].map(|d| lane(link, d)));
        NearMoment { host, lanes }
    }
}

/// What a modelled host has to work with. Its frequency is in pairs merged per nanosecond, times a hundred: by the
/// table of costs, which is all that is known of its speed; `memory` is the share of its memory that is in use.
fn load_of(host: sim::Host, costs: &CpuCosts, memory: f64) -> Arc<dyn Fn() -> Load + Send + Sync> {
    let pair = costs.ns(Cost::MergePair);
    let ghz = if pair > 0.0 { 100.0 / pair } else { 1.0 };
    let last: Mutex<(Instant, Duration, f64)> = Mutex::new((now(), host.core_time(), 0.0));
    Arc::new(move || {
        let (cores, used) = (host.cores() as f64, host.core_time());
        let mut last = last.lock();
        let passed = now() - last.0;
        if passed >= WINDOW {
            let cpu = (used - last.1).as_secs_f64() / passed.as_secs_f64() / cores;
            *last = (now(), used, cpu.clamp(0.0, 1.0));
        }
        Load { cores, ghz, cpu: last.2, memory, free: u64::MAX }
    })
}

/// Starts a worker over `device` on the calling thread's host.
fn serve(device: Arc<dyn Storage>, port: &Port, memory: f64) -> crate::Result<()> {
    let limits = Limits { threads: THREADS, ..Limits::default() };
    let here = sim::Host::current().expect("a point with hosts is simulated");
    let options = WorkerOptions { load: Some(load_of(here, &sim::costs(), memory)), ..WorkerOptions::default() };
    let device = Latched::new(device);
    let jobs = JobService::new(varve::Worker::start(device.clone(), options)?) as Arc<dyn Handler>;
    let worker = Worker::new(device, Some(jobs), limits).map_err(|e| crate::Error::store(e.to_string()))?;
    let comes = port.listen();
    varve_rt::spawn_daemon("near accepts", move || {
        while let Ok(connection) = comes.recv() {
            let worker = worker.clone();
            varve_rt::spawn_daemon("near serves", move || worker.serve(connection));
        }
    });
    Ok(())
}

/// A worker in the same process, to load a database whose merges need one; there is none where no host is near.
pub(super) fn loader(spec: &Spec, device: Arc<dyn Storage>) -> crate::Result<Option<NearOptions>> {
    if spec.hosts.near.is_none() {
        return Ok(None);
    }
    Ok(Some(NearOptions::new(varve::Worker::start(Latched::new(device), WorkerOptions::default())?)))
}

/// Figures of merges near the data between two moments.
pub(super) fn merges(put: &mut impl FnMut(&str, f64), then: Option<&NearStats>, now: Option<&NearStats>) {
    let (Some(a), Some(b)) = (then, now) else { return };
    let side = |name: &str, a: &SideStats, b: &SideStats, put: &mut dyn FnMut(&str, f64)| {
        let (bytes, seconds) = ((b.read + b.written - a.read - a.written) as f64, (b.time - a.time).as_secs_f64());
        put(&format!("merge.{name}_tasks"), (b.tasks - a.tasks) as f64);
        put(&format!("merge.{name}_pipelined"), (b.pipelined - a.pipelined) as f64);
        put(&format!("merge.{name}_mib"), bytes / MIB);
        put(&format!("merge.{name}_s"), seconds);
        if seconds > 0.0 {
            put(&format!("merge.{name}_mb_per_s"), bytes / 1e6 / seconds);
        }
    };
    side("host", &a.host, &b.host, put);
    side("near", &a.device, &b.device, put);
    put("merge.cut", (b.cut - a.cut) as f64);
    put("merge.share", b.share);
    put("merge.host_waited_s", (b.host.waited - a.host.waited).as_secs_f64());
    put("merge.fallbacks", (b.fallbacks.all() - a.fallbacks.all()) as f64);
    put("merge.message_mib", (b.message_bytes - a.message_bytes) as f64 / MIB);
}

/// Counters of one moment: of the near host, and of the link's directions (bytes, seconds busy, messages).
#[derive(Clone, Default)]
pub(super) struct NearMoment {
    host: Option<HostTime>,
    lanes: Option<[[f64; 3]; 2]>,
}

impl NearMoment {
    /// Share of the near host's cores that was busy since `then`, if there is one.
    pub fn busy(&self, then: &NearMoment, seconds: f64) -> Option<f64> {
        let (a, b) = (then.host?, self.host?);
        Some((b.used - a.used) / (b.cores * seconds))
    }

    /// Figures of the time since `then`.
    pub fn figures(&self, then: &NearMoment, seconds: f64, ops_per_s: f64, put: &mut impl FnMut(&str, f64)) {
        if let (Some(a), Some(b), Some(busy)) = (then.host, self.host, self.busy(then, seconds)) {
            put("near.cores", b.cores);
            put("near.busy", busy);
            put("near.cpu_us_per_txn", (b.used - a.used) / seconds * 1e6 / ops_per_s);
        }
        if let (Some(a), Some(b)) = (then.lanes, self.lanes) {
            for (name, (a, b)) in ["down", "up"].into_iter().zip(a.iter().zip(&b)) {
                put(&format!("link.{name}_mib"), (b[0] - a[0]) / MIB);
                put(&format!("link.{name}_busy"), (b[1] - a[1]) / seconds);
                put(&format!("link.{name}_messages"), b[2] - a[2]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices::Drives;
    use super::super::document::Point;
    use super::super::plain::run_iomix;
    use super::super::point::PointResult;
    use super::*;

    /// Random reads of 4 KiB one by one, with these lines besides.
    fn spec(more: &str) -> Spec {
        let text = format!(
            "{more}\n[devices.data]\nprofile = \"gd2l-ssd\"\nlink = {{ latency_us = 100.0, mb_s = 100.0 }}\n\
             [workload.iomix]\nrange = \"1 MiB\"\n[run]\nwarmup_s = 0.01\nseconds = 0.2\n"
        );
        toml::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    fn run(spec: Spec) -> PointResult {
        spec.validate().unwrap();
        let mix = spec.workload.iomix.clone().unwrap();
        let point = Point { axes: Vec::new(), seed: 1, spec, scaled: Vec::new() };
        run_iomix("test", "none", (&point, &mix), &Drives::default()).unwrap()
    }

    #[test]
    fn a_link_and_a_host_behind_it_slow_the_data_device_and_are_told() {
        let mut plain = spec("");
        plain.devices.data.0.remove("link");
        let (plain, linked) = (run(plain), run(spec("")));
        let near = run(spec("[host]\nprofile = \"copro-host\"\n[hosts.near]\nprofile = \"copro-device\""));
        let ms = |result: &PointResult| result.metrics["mean_ms"];
        // 0.1 ms each way, and 4160 bytes at 100 MB/s.
        let way = ms(&linked) - ms(&plain);
        assert!((way - 0.24224).abs() < 0.001, "{way} ms on the way");
        assert!(ms(&near) > ms(&linked) && ms(&near) < ms(&linked) + 0.2, "{} and {}", ms(&near), ms(&linked));
        assert!(near.metrics["near.busy"] > 0.0 && near.metrics["near.cores"] == 4.0, "{:?}", near.metrics);
        assert!(near.metrics["link.up_mib"] > near.metrics["link.down_mib"] && near.metrics["link.up_messages"] > 10.0);
        assert!(!plain.metrics.contains_key("link.up_mib") && !linked.metrics.contains_key("near.busy"));
        assert_eq!(near, run(spec("[host]\nprofile = \"copro-host\"\n[hosts.near]\nprofile = \"copro-device\"")));
    }

    #[test]
    fn links_that_cannot_be_are_refused_by_their_key() {
        let key = |change: &dyn Fn(&mut Spec)| {
            let mut spec = spec("");
            change(&mut spec);
            spec.validate().err().map_or_else(String::new, |(key, what)| format!("{key}: {what}"))
        };
        let link = |text: &str| {
            let value = format!("link = {text}").parse::<toml::Table>().unwrap()["link"].clone();
            key(&move |spec| drop(spec.devices.data.0.insert("link".into(), value.clone())))
        };
        assert_eq!(link("\"gigabit\""), "");
        assert_eq!(link("{ profile = \"gigabit\", message_us = 3.0 }"), "");
        for (text, what) in [
            ("{ latency_us = 1.0, mb_s = 0.0 }", "mb_s"),
            ("{ latency_us = -1.0, mb_s = 1.0 }", "latency_us"),
            ("{ latency_us = 1.0 }", "mb_s"),
            ("{ profile = \"gigabit\", colour = 1 }", "colour"),
            ("\"pigeon\"", "gigabit"),
            ("7", "give the name"),
        ] {
            let error = link(text);
            assert!(error.starts_with("devices.data.link: ") && error.contains(what), "{text}: {error}");
        }
        let near = |spec: &mut Spec| spec.hosts.near = Some(Host::default());
        assert!(key(&|s| (near(s), drop(s.devices.data.0.remove("link"))).0).starts_with("hosts.near: give devices"));
        assert!(key(&|s| (near(s), s.run.clock = Clock::Paced).0).starts_with("hosts.near: "));
        let cores = |s: &mut Spec| s.hosts.near = Some(Host { cores: Some(0), ..Host::default() });
        assert!(key(&cores).starts_with("hosts.near.cores"));
        let log = |s: &mut Spec| drop(s.devices.log.0.insert("link".into(), Value::String("gigabit".into())));
        assert!(key(&log).starts_with("devices.log.link: only"));
    }
}
