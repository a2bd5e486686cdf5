//! `probe` and `bench iomix`: devices and device profiles measured.

use crate::output::{Failure, Out, Stdout, about, bytes, profile, say, table};
use crate::text::size;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use varve_lab::iomix::{Extent, Load};
use varve_lab::probe::{self, Point};
use varve_models::Profile;

/// What is measured: a real place or a model.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// Directory on the file system to measure (a scratch file is made there and removed).
    pub path: Option<PathBuf>,
    /// A device profile (its name, or a .toml file) to measure as a model, in virtual time.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Print the names of the device profiles.
    #[arg(long)]
    pub list: bool,
}

/// What `probe` measures.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Subject {
    /// Directory on the file system to measure (a scratch file is made there and removed).
    pub path: Option<PathBuf>,
    /// A device profile (its name, or a .toml file) to measure as a model, in virtual time.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Print the names of the device profiles.
    #[arg(long)]
    pub list: bool,
    /// Measure this machine's processor: what the engine's work costs on it, as a host profile.
    #[arg(long)]
    pub cpu: bool,
}

/// `probe`
#[derive(Debug, Args)]
pub struct Probe {
    #[command(flatten)]
    target: Subject,
    /// Write what was measured as a profile; refused if the figures cannot be believed.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Fewer points, less time.
    #[arg(long)]
    quick: bool,
    /// Measured seconds of each repeat (real devices).
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// Repeats of each point, at least 3.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=100))]
    repeats: u32,
    /// Request sizes, such as 4k,64k,2m.
    #[arg(long, value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Requests in flight, such as 1,8,32.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    depths: Vec<u32>,
    /// Sizes at which reads and writes are mixed; "none" for no mixes.
    #[arg(long, value_delimiter = ',')]
    mixes: Vec<String>,
    /// Requests in flight while mixing; left out: 32 for small requests, 2 for large ones.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    mix_depth: Option<u32>,
    /// Steps of the read share of a mix, percent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
    mix_step: Option<u32>,
    /// Part of the device that is used, such as 4g; of a directory, the size of the scratch file.
    #[arg(long, value_parser = size)]
    range: Option<u64>,
    /// Seed of places and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No chart.
    #[arg(long)]
    no_chart: bool,
}

/// `bench iomix`
#[derive(Debug, Args)]
pub struct IoMix {
    #[command(flatten)]
    target: Target,
    /// Request size, such as 4k or 2m.
    #[arg(long, default_value = "4k", value_parser = size)]
    size: u64,
    /// Share of reads, percent.
    #[arg(long, default_value_t = 100.0)]
    reads: f64,
    /// Share of requests at random places, percent.
    #[arg(long, default_value_t = 100.0)]
    random: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Measured seconds (virtual ones for a profile).
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Part of the device that is used, such as 4g; of a directory, the size of the scratch file.
    #[arg(long, value_parser = size)]
    range: Option<u64>,
    /// Put the load on a volume: pages of this size, sealed when written and verified when read.
    #[arg(long, value_parser = size)]
    page_size: Option<u64>,
    /// Seed of places and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=86_400.0).contains(&s) => Ok(s),
        _ => Err("give seconds from 0.01 to 86400".into()),
    }
}

fn list(out: Out) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for name in Profile::names() {
        let profile = profile(name)?;
        if out.json {
            let (capacity, kind) = (profile.capacity(), profile.kind());
            let json = serde_json::json!({ "name": name, "title": profile.title, "kind": kind, "capacity": capacity });
            say!("{json}")?;
        } else {
            rows.push((name.to_string(), format!("{} ({})", profile.title, bytes(profile.capacity()))));
        }
    }
    Ok(table(&mut Stdout, &rows)?)
}

impl Probe {
    fn options(&self) -> Result<probe::Options, Failure> {
        let mut o = if self.quick { probe::Options::quick() } else { probe::Options::default() };
        (o.repeats, o.seed, o.range) = (self.repeats, self.seed, self.range);
        if !self.quick {
            o.time = Duration::from_secs_f64(self.seconds);
        }
        if !self.sizes.is_empty() {
            o.sizes.clone_from(&self.sizes);
            o.sizes.sort_unstable();
        }
        if !self.depths.is_empty() {
            o.depths.clone_from(&self.depths);
        }
        if !self.mixes.is_empty() {
            o.mixes.clear();
            for text in self.mixes.iter().filter(|t| *t != "none") {
                o.mixes.push((size(text).map_err(Failure::Usage)?, 0));
            }
        }
        for (bytes, depth) in &mut o.mixes {
            let usual = if *bytes <= 128 << 10 { 32 } else { 2 };
            *depth = self.mix_depth.unwrap_or(usual);
        }
        o.mix_step = self.mix_step.unwrap_or(o.mix_step);
        Ok(o)
    }
}

pub fn probe(out: Out, a: &Probe) -> Result<(), Failure> {
    if a.target.list {
        return list(out);
    }
    if a.target.cpu {
        return crate::probe_cpu::run(out, a.save.as_deref(), a.quick);
    }
    let options = a.options()?;
    let bar = out.progress("probing", 1);
    let progress = |done: usize, of: usize, p: &Point| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{:.0} IOPS, {:.1} MB/s", p.iops(), p.mb_s()));
    };
    let report = match (&a.target.profile, &a.target.path) {
        (Some(name), _) => probe::on_profile(&profile(name)?, &options, progress)?,
        (None, Some(path)) => probe::on_path(path, &options, progress)?,
        (None, None) => return Err(Failure::Usage("give a directory or --profile".into())),
    };
    bar.finish_and_clear();
    if out.json {
        say!("{}", report.to_json())?;
    } else {
        Stdout.write_all(report.to_table().as_bytes())?;
        if !a.no_chart {
            Stdout.write_all(report.to_chart().as_bytes())?;
        }
    }
    if let Some(file) = &a.save {
        if let Some(first) = report.findings.first() {
            return Err(Failure::Found(format!("nothing is saved: the figures cannot be believed ({first})")));
        }
        let name = file.file_stem().map_or_else(|| "probed".into(), |s| s.to_string_lossy().into_owned());
        std::fs::write(file, probe::fit(&report, &name)?.to_toml()).map_err(|e| about(file, &e))?;
        out.note(format!("profile written to {}", file.display()));
    }
    Ok(())
}

pub fn iomix(out: Out, a: &IoMix) -> Result<(), Failure> {
    if a.target.list {
        return list(out);
    }
    let load = Load { bytes: a.size, read_share: a.reads / 100.0, random_share: a.random / 100.0, depth: a.depth };
    let time = Duration::from_secs_f64(a.seconds);
    let extent = Extent { warm_time: time / 10, warm_requests: 1, time, requests: 1, range: 0, seed: a.seed };
    let pages = a.page_size.map(|bytes| bytes as usize);
    let sample = match (&a.target.profile, &a.target.path) {
        (Some(name), _) => probe::iomix_on_profile(&profile(name)?, a.range, pages, load, extent)?,
        (None, Some(path)) => probe::iomix_on_path(path, a.range, pages, load, extent)?,
        (None, None) => return Err(Failure::Usage("give a directory or --profile".into())),
    };
    let clock = if a.target.profile.is_some() { "virtual" } else { "real" };
    if out.json {
        let mut json = sample.to_json();
        json["load"] = serde_json::json!(load);
        json["clock"] = clock.into();
        say!("{json}")?;
        return Ok(());
    }
    let us = |x: f64| format!("{x:.1} us");
    let rows = [
        (
            "requests".to_string(),
            format!("{} ({} reads) in {:.2} s, {clock}", sample.requests, sample.reads, sample.seconds),
        ),
        ("IOPS".into(), format!("{:.1}", sample.iops())),
        ("MB/s".into(), format!("{:.2}", sample.mb_s())),
        ("mean".into(), us(sample.mean_us())),
        ("p50".into(), us(sample.percentile_us(0.5))),
        ("p95".into(), us(sample.percentile_us(0.95))),
        ("p99".into(), us(sample.percentile_us(0.99))),
        ("p99.9".into(), us(sample.percentile_us(0.999))),
        ("max".into(), us(sample.latency.max() as f64 / 1e3)),
    ];
    Ok(table(&mut Stdout, &rows)?)
}
