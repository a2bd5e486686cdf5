//! What one point of an experiment is: host, devices, layout, engine, workload, run. Plain data, the shape of the file.
//!
//! Every structure refuses keys it does not know. The defaults are those of the engine and of the workloads.

pub use super::array::{ArraySpec, Keeping, LayoutName, ReadOnly};
pub use super::background::{OtherWork, OtherWorks};
pub use super::dbbench::DbBench;
pub use super::decisions::{Deciding, Decisions};
pub use super::iomix::Iomix;
pub use super::lsm::IndexName;
use super::named::{LsmNames, Named, PoolNames};
pub use super::near::Hosts;
pub use super::tier::Tier;
pub use super::tpc::{Tpcb, Tpcc};
use super::units::{Bytes, Cache, flatten};
pub use super::ycsb::{FixedSets, Spread, Ycsb};
use super::{advised, array, database, near, regions};
use crate::adapter::Durability;
pub use crate::flash_layout::RegionSpec;
use crate::flash_wa::FlashWaPoint;
use crate::host::HostProfile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use toml::{Table, Value};
use varve::{KeyspaceKind, LsmOptions, PoolOptions};
use varve_models::Profile;
use varve_rt::{Cost, sim};

/// Everything that makes a point, its seed aside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// The modelled machine.
    pub host: Host,
    /// Modelled machines besides it.
    #[serde(skip_serializing_if = "Hosts::is_empty")]
    pub hosts: Hosts,
    /// Devices by role.
    pub devices: Devices,
    /// What is fixed when the database is created.
    pub layout: Layout,
    /// How the database is opened.
    pub engine: Engine,
    /// What runs.
    pub workload: Workload,
    /// How long, with how many clients, on which clock.
    pub run: Run,
}

/// `[host]`: a profile, or the same values inline. Values given here override the profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// A host profile, by name or file; without one, processor time is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Modelled cores; the profile's, or 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// CPU time for taking a lock that another modelled core held last, nanoseconds; the profile's, or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_handoff_ns: Option<f64>,
    /// The same for what the lock guards to follow, if another core changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_data_ns: Option<f64>,
    /// Every cost of the profile is multiplied by this.
    pub cost_factor: f64,
    /// Single costs, nanoseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: BTreeMap<String, f64>,
    /// What else the machine does, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub load: OtherWorks,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            profile: None,
            cores: None,
            lock_handoff_ns: None,
            lock_data_ns: None,
            cost_factor: 1.0,
            costs: BTreeMap::new(),
            load: BTreeMap::new(),
        }
    }
}

impl Host {
    /// The simulation on this host; the error names a key.
    pub fn config(&self, seed: u64) -> Result<sim::Config, (String, String)> {
        let mut config = match &self.profile {
            None => sim::Config { seed, ..sim::Config::default() },
            Some(name) => {
                HostProfile::find(name).map_err(|e| ("host.profile".to_string(), e.to_string()))?.config(seed)
            }
        };
        config.costs = config.costs.scaled(self.cost_factor);
        for (name, ns) in &self.costs {
            let Some(cost) = Cost::ALL.iter().find(|c| c.name() == name) else {
                let all: Vec<&str> = Cost::ALL.iter().map(|c| c.name()).collect();
                return Err((format!("host.costs.{name}"), format!("no such cost; there are {}", all.join(", "))));
            };
            config.costs.set_ns(*cost, *ns);
        }
        config.cores = self.cores.unwrap_or(config.cores);
        // The merges that are left at the end of a run may take long, while nobody else does anything.
        config.patience = Duration::from_secs(86_400);
        if let Some(ns) = self.lock_handoff_ns {
            config.lock_handoff = Duration::from_nanos(ns.max(0.0) as u64);
        }
        if let Some(ns) = self.lock_data_ns {
            config.lock_data = Duration::from_nanos(ns.max(0.0) as u64);
        }
        Ok(config)
    }
}

/// `[devices]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Devices {
    /// Pages.
    pub data: Device,
    /// The log; a second one like `data` when left out.
    #[serde(skip_serializing_if = "Device::is_empty")]
    pub log: Device,
    /// The fast device of a tier; without it there is no tier.
    #[serde(skip_serializing_if = "Device::is_empty")]
    pub fast: Device,
    /// Native flash, in place of `data`: the profile of a flash drive, of which only the array and its times count.
    #[serde(skip_serializing_if = "Device::is_empty")]
    pub flash: Device,
    /// Drives of an array, in place of `data`: device profiles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// What goes before the profile of each of the drives.
    #[serde(skip_serializing_if = "Device::is_empty")]
    pub each: Device,
}

/// `[devices.ROLE]`: `profile = "NAME"`, the keys of a device profile, or both. Values given
/// here override the profile. Besides: `share`, the part of the device's bytes that is modelled, `aged`, see
/// [`Device::aged`], and of the data device `link`, what lies between it and the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Device(pub Table);

impl Device {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of a flash drive: so many times its pages are overwritten at random places, after it was filled, before the
    /// point begins; 0: it is fresh.
    pub fn aged(&self) -> Result<f64, String> {
        number(&self.0, "aged", 0.0, 0.0..=100.0)
    }

    /// The whole profile.
    pub fn profile(&self) -> Result<Profile, String> {
        let mut own = self.0.clone();
        let aged = self.aged()?;
        let share = number(&own, "share", 1.0, 1e-6..=1.0)?;
        own.remove("aged");
        own.remove("share");
        own.remove("link");
        let mut whole = match own.remove("profile") {
            None => Table::new(),
            Some(Value::String(name)) => {
                let profile = Profile::load(&name).map_err(|e| e.to_string())?;
                profile.to_toml().parse().map_err(|e: toml::de::Error| e.to_string())?
            }
            Some(_) => return Err("profile is the name of a device profile, or a file".into()),
        };
        if whole.is_empty() && own.is_empty() {
            return Err(format!("give profile = one of {}", Profile::names().join(", ")));
        }
        merge(&mut whole, &own);
        whole.entry("name").or_insert_with(|| Value::String("inline".into()));
        let text = toml::to_string(&whole).map_err(|e| e.to_string())?;
        let profile = Profile::parse(&text, "the device as merged").map_err(|e| e.to_string())?;
        if aged > 0.0 && profile.flash.is_none() {
            return Err("aged is for flash drives; this device has no [flash]".into());
        }
        Ok(if share < 1.0 { profile.scaled(share) } else { profile })
    }
}

/// A number of a table, within a range.
fn number(table: &Table, key: &str, default: f64, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let value = match table.get(key) {
        None => Some(default),
        Some(value) => value.as_float().or_else(|| value.as_integer().map(|n| n as f64)),
    };
    value
        .filter(|v| range.contains(v))
        .ok_or_else(|| format!("{key}: a number from {} to {} is accepted", range.start(), range.end()))
}

/// Puts `from` over `into`, table by table.
pub(super) fn merge(into: &mut Table, from: &Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Table(inner)), Value::Table(from)) => merge(inner, from),
            _ => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

impl Devices {
    /// The log device, which is like the data device where it is not given.
    pub fn log_device(&self) -> &Device {
        if self.log.is_empty() { &self.data } else { &self.log }
    }

    /// Profiles of data and log device; the error names the role. Of an array, and of native flash, the log's stands
    /// for both: there is no data device.
    pub fn profiles(&self) -> Result<(Profile, Profile), (String, String)> {
        if !self.drives.is_empty() || !self.flash.is_empty() {
            let log = self.log.profile().map_err(|what| ("devices.log".to_string(), what))?;
            return Ok((log.clone(), log));
        }
        let data = self.data.profile().map_err(|what| ("devices.data".to_string(), what))?;
        let log = match self.log.is_empty() {
            true => data.clone(),
            false => self.log.profile().map_err(|what| ("devices.log".to_string(), what))?,
        };
        Ok((data, log))
    }

    /// Profile of the fast device, if there is one; the error names the role.
    pub fn fast(&self) -> Result<Option<Profile>, (String, String)> {
        match self.fast.is_empty() {
            true => Ok(None),
            false => self.fast.profile().map(Some).map_err(|what| ("devices.fast".to_string(), what)),
        }
    }
}

/// `[layout]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layout {
    /// Bytes of a page.
    pub page_size: Bytes,
    /// Log preallocated.
    pub log: Bytes,
    /// Size of the fast device, where there is one: bytes, or a share of the loaded data. The tier is made for each
    /// point, empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast: Option<Cache>,
    /// Regions of native flash; none: one over all chips.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionSpec>,
    /// Delta records of the regions that state none themselves, such as `2x48`; left out: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// What the workload's keyspaces are made of.
    #[serde(skip_serializing_if = "IndexName::is_default")]
    pub keyspaces: IndexName,
}

impl Default for Layout {
    fn default() -> Layout {
        let layout = varve::Layout::default();
        Layout {
            page_size: Bytes(layout.page_size as u64),
            // So large that it need not grow while a point is measured.
            log: Bytes(64 << 20),
            fast: None,
            regions: Vec::new(),
            scheme: None,
            keyspaces: IndexName::default(),
        }
    }
}

/// `[engine]`. A key that is none of these is an option of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// Memory for everything; at least what the buffer needs.
    pub cache: Cache,
    /// Frames of the buffer pool alone: what papers call the buffer. Left out: what the cache has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Cache>,
    /// Background page writers.
    pub cleaners: bool,
    /// Of the workload's commits.
    pub durability: Sync,
    /// Longest time before an `async` commit is durable, milliseconds.
    pub async_delay_ms: f64,
    /// Redo work that a crash may leave, seconds.
    pub recovery_bound_s: f64,
    /// Size to which the log may grow.
    pub log_max: Bytes,
    /// Sizes of page updates are counted (`updates.*`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub update_sizes: bool,
    /// Pages are logged whole at their first change after a checkpoint; only native flash may do without.
    #[serde(skip_serializing_if = "is_on")]
    pub page_images: bool,
    /// The tier, where there is a fast device.
    #[serde(skip_serializing_if = "Tier::is_default")]
    pub tier: Tier,
    /// The array, where there are several drives.
    #[serde(skip_serializing_if = "ArraySpec::is_default")]
    pub array: ArraySpec,
    /// LSM keyspaces, where `layout.keyspaces` has them.
    #[serde(skip_serializing_if = "super::lsm::is_default")]
    pub lsm: Named<LsmOptions, LsmNames>,
    /// How the sides of `merge=copro+` decide.
    #[serde(skip_serializing_if = "Decisions::is_default")]
    pub decision: Decisions,
    /// How the pool works: the engine's options by name, `pool` for the preset.
    #[serde(flatten)]
    pub pool: Named<PoolOptions, PoolNames>,
}

fn is_on(flag: &bool) -> bool {
    *flag
}

impl Default for Engine {
    fn default() -> Engine {
        let o = varve::Options::default();
        Engine {
            // Not a share of whatever machine the experiment runs on.
            cache: Cache::Bytes(Bytes(256 << 20)),
            buffer: None,
            cleaners: o.cleaners,
            durability: Sync::Sync,
            async_delay_ms: o.async_delay.as_secs_f64() * 1e3,
            recovery_bound_s: o.recovery_bound.as_secs_f64(),
            log_max: Bytes(o.log_max_bytes),
            update_sizes: false,
            page_images: o.page_images,
            tier: Tier::default(),
            array: ArraySpec::default(),
            lsm: Named::default(),
            decision: Decisions::default(),
            pool: Named::default(),
        }
    }
}

/// `engine.durability`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Commits survive a power cut.
    Sync,
    /// They do after `async_delay_ms`.
    Async,
    /// They do whenever the log is written.
    None,
}

impl From<Sync> for Durability {
    fn from(s: Sync) -> Durability {
        match s {
            Sync::Sync => Durability::Sync,
            Sync::Async => Durability::Async,
            Sync::None => Durability::None,
        }
    }
}

/// `[workload]`: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// TPC-C.
    pub tpcc: Option<Tpcc>,
    /// A mix like that of TPC-B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpcb: Option<Tpcb>,
    /// YCSB.
    pub ycsb: Option<Ycsb>,
    /// One of the benchmarks of `db_bench`.
    pub dbbench: Option<DbBench>,
    /// Write amplification of the flash model; needs no devices, and no run length.
    #[serde(rename = "flash-wa")]
    pub flash_wa: Option<FlashWaPoint>,
    /// Requests to the data device, without a database.
    pub iomix: Option<Iomix>,
}

impl Workload {
    /// Whether a database is loaded for it.
    pub fn has_database(&self) -> bool {
        self.flash_wa.is_none() && self.iomix.is_none()
    }

    /// Bytes that every row has besides its columns.
    pub fn row_overhead(&self) -> usize {
        self.tpcc.as_ref().map_or(0, |t| usize::from(t.row_overhead))
    }
}

/// Which clock a point runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// In a simulation: as fast as the real machine computes it, the same at every run.
    Virtual,
    /// On OS threads, the modelled devices paced in real time.
    Paced,
}

impl Clock {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Virtual => "virtual",
            Clock::Paced => "paced",
        }
    }
}

/// Most intervals of a run.
const MOST_INTERVALS: f64 = 1e5;

/// `[run]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// The clock.
    pub clock: Clock,
    /// Clients.
    pub clients: usize,
    /// Seconds before anything is counted.
    pub warmup_s: f64,
    /// Seconds that are counted.
    pub seconds: f64,
    /// Seconds between the values of a time series.
    pub interval_s: f64,
    /// Transactions per second of all clients, whether the store keeps up or not; response times count from when each
    /// was due. Left out: each client begins the next when one has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Check the workload's consistency conditions afterwards.
    pub check: bool,
    /// Read every row once before the clients begin, so that the buffer is full from the start.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fill: bool,
    /// Open the database again from what the devices hold at the end of the run, as after a crash, and measure that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reopen: bool,
    /// Ask the flash advisor about the run, and run what it recommends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub advise: bool,
    /// Most points at the same time, for want of memory; 0: any number. Not part of what a point is.
    #[serde(skip_serializing)]
    pub jobs: usize,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            clock: Clock::Virtual,
            clients: 8,
            warmup_s: 10.0,
            seconds: 60.0,
            interval_s: 1.0,
            rate: None,
            check: false,
            fill: false,
            reopen: false,
            advise: false,
            jobs: 0,
        }
    }
}

impl Spec {
    /// Refuses what parses but cannot be run; names the key.
    pub fn validate(&self) -> Result<(), (String, String)> {
        self.host.config(0)?;
        near::validate(self)?;
        database::validate(&self.engine)?;
        self.engine.pool.validate("engine", "engine.pool")?;
        self.engine.tier.options.validate("engine.tier", "engine.tier")?;
        self.engine.lsm.validate("engine.lsm", "engine.lsm")?;
        self.workload.dbbench.as_ref().map_or(Ok(()), DbBench::validate)?;
        regions::validate(self)?;
        advised::validate(self)?;
        let w = &self.workload;
        let (oltp, plain) = ([w.tpcc.is_some(), w.tpcb.is_some()], [w.flash_wa.is_some(), w.iomix.is_some()]);
        let given = [oltp, [w.ycsb.is_some(), w.dbbench.is_some()], plain].concat();
        let workloads = given.into_iter().filter(|g| *g).count();
        match &w.flash_wa {
            Some(point) => point.validate().map_err(|(key, what)| (format!("workload.flash-wa.{key}"), what))?,
            None if self.devices.drives.is_empty() => drop((self.devices.profiles()?, self.devices.fast()?)),
            None => drop((array::validate(self)?, self.devices.fast()?)),
        }
        w.ycsb.as_ref().map_or(Ok(()), Ycsb::validate)?;
        w.tpcb.as_ref().map_or(Ok(()), Tpcb::validate)?;
        if let Some(iomix) = w.iomix.as_ref().filter(|_| self.devices.drives.is_empty()) {
            let profile = self.devices.profiles()?.0;
            iomix.validate(&profile, profile.capacity(), &self.layout)?;
        }
        let refuse = |key: &str, why: &str| Err((key.to_string(), why.to_string()));
        match () {
            () if workloads != 1 => {
                refuse("workload", "give exactly one of the tables tpcc, tpcb, ycsb, dbbench, iomix, flash-wa")
            }
            () if self.layout.fast.is_none() != self.devices.fast.is_empty() => {
                refuse("layout.fast", "a tier needs both devices.fast and layout.fast, its size")
            }
            () if self.host.cores.is_some_and(|n| n == 0 || n > 1024) => refuse("host.cores", "1 to 1024 are possible"),
            () if (self.run.reopen || self.run.fill) && !w.has_database() => {
                let key = if self.run.fill { "run.fill" } else { "run.reopen" };
                refuse(key, "there is no database to open again or to read")
            }
            () if self.run.clients == 0 || self.run.clients > 10_000 => {
                refuse("run.clients", "1 to 10000 are possible")
            }
            () if !(self.run.seconds > 0.0 && self.run.seconds <= 1e6) => {
                refuse("run.seconds", "more than 0 and at most 1000000 are possible")
            }
            () if !(self.run.warmup_s >= 0.0 && self.run.warmup_s <= 1e6) => {
                refuse("run.warmup_s", "0 to 1000000 are possible")
            }
            () if self.run.rate.is_some_and(|rate| !(1e-6..=1e9).contains(&rate)) => {
                refuse("run.rate", "more than 0 and at most 1e9 transactions per second are possible")
            }
            () if !(1e-3..=1e6).contains(&self.run.interval_s) => {
                refuse("run.interval_s", "0.001 to 1000000 are possible")
            }
            () if self.run.seconds / self.run.interval_s > MOST_INTERVALS => {
                refuse("run.interval_s", "at least a 100000th of run.seconds is possible: each interval is kept")
            }
            () if ![4096, 8192, 16384].contains(&self.layout.page_size.0) => {
                refuse("layout.page_size", "choose 4096, 8192 or 16384")
            }
            () => Ok(()),
        }
    }

    /// What the workload's keyspaces are made of.
    pub fn kind(&self) -> KeyspaceKind {
        match self.layout.keyspaces {
            IndexName::Tree => KeyspaceKind::Tree,
            IndexName::Lsm => KeyspaceKind::Lsm(self.engine.lsm.0),
        }
    }

    /// The values as text, by key path, for tables and reports.
    pub fn rows(&self) -> BTreeMap<String, String> {
        let mut rows = BTreeMap::new();
        let value = serde_json::to_value(self).expect("plain data");
        flatten("", &value, &mut rows);
        rows
    }
}
