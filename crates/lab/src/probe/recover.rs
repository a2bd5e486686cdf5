//! What a model's profile says about itself, beside what the probe measured: the parameters that can be seen from
//! outside.
//!
//! Disks: service times of random reads and writes, media rate. Fixed times: the four times, and how many are served
//! side by side. Drives given by tables: each entry, the latencies of lone requests, the mix penalties. Flash: a lone
//! read and a lone write of one request of the smallest size, made of controller, array, channel and link.

use super::fit::penalties;
use super::plan::deep;
use super::{Point, Report};
use varve_device::OpKind;
use varve_models::flash::{BufferKind, FlashConfig};
use varve_models::{DiskConfig, FixedConfig, MixConfig, Penalty, Profile, Rate};

/// One parameter of a profile.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: String,
    /// `us`, `MB/s`, `s/MB`, or nothing for a number.
    pub unit: &'static str,
    /// What the profile says, or what follows from what it says.
    pub given: f64,
    /// What was measured.
    pub measured: f64,
}

impl Parameter {
    /// Measured beside given, as a share of the latter; of a parameter that is 0, the measured value itself.
    pub fn difference(&self) -> f64 {
        if self.given == 0.0 { self.measured } else { self.measured / self.given - 1.0 }
    }
}

/// Reads or writes, random or sequential.
const KINDS: [(f64, bool, &str); 4] = [
    (1.0, true, "random read"),
    (1.0, false, "sequential read"),
    (0.0, true, "random write"),
    (0.0, false, "sequential write"),
];

struct Finder<'a> {
    report: &'a Report,
    found: Vec<Parameter>,
}

impl<'a> Finder<'a> {
    fn add(&mut self, name: String, unit: &'static str, given: f64, measured: f64) {
        self.found.push(Parameter { name, unit, given, measured });
    }

    /// The point of one request in flight, of the smallest size measured so.
    fn alone(&self, read: f64, random: bool) -> Option<&'a Point> {
        let share = f64::from(u8::from(random));
        let lone = self.report.points.iter().filter(|p| p.load.depth == 1);
        lone.filter(|p| p.load.read_share == read && p.load.random_share == share).min_by_key(|p| p.load.bytes)
    }

    fn disk(&mut self, disk: &DiskConfig) {
        for (read, name) in [(1.0, "random read"), (0.0, "random write")] {
            if let Some(p) = self.alone(read, true) {
                let given = 1e3 * disk.expected_random_ms(read == 0.0, p.load.bytes);
                self.add(format!("{name} {} KB", p.load.bytes >> 10), "us", given, p.mean_us());
            }
        }
        let streams = self.report.points.iter().filter(|p| p.load.read_share == 1.0 && p.load.random_share == 0.0);
        if let Some(p) = streams.filter(|p| p.load.bytes >= 1 << 20).max_by_key(|p| p.load.bytes) {
            self.add("media_mb_s".into(), "MB/s", disk.media_mb_s, p.mb_s());
        }
    }

    fn fixed(&mut self, fixed: &FixedConfig) {
        for (read, random, name) in KINDS {
            let Some(p) = self.alone(read, random) else { continue };
            let op = if read == 1.0 { OpKind::Read } else { OpKind::Write };
            let given = fixed.service(op, !random, p.load.bytes).as_secs_f64();
            self.add(format!("{name} {} KB", p.load.bytes >> 10), "us", given * 1e6, p.mean_us());
            let many = self.report.find(read, random, p.load.bytes, deep(p.load.bytes));
            if let Some(many) = many.filter(|m| m.load.depth >= 2 * fixed.servers) {
                self.add(format!("servers ({name})"), "", fixed.servers.into(), many.iops() * given);
            }
        }
    }

    fn mix(&mut self, mix: &MixConfig) {
        for (read, random, name) in KINDS {
            let table: &[Rate] = match (read == 1.0, random) {
                (true, true) => &mix.read_random,
                (true, false) => &mix.read_sequential,
                (false, true) => &mix.write_random,
                (false, false) => &mix.write_sequential,
            };
            for rate in table {
                let bytes = (rate.kib * 1024.0) as u64;
                if let Some(p) = self.report.find(read, random, bytes, deep(bytes)) {
                    self.add(format!("{name} {} KB", rate.kib), "MB/s", rate.mb_s, p.mb_s());
                }
            }
        }
        for (read, least, name) in [(1.0, mix.read_latency_us, "read"), (0.0, mix.write_latency_us, "write")] {
            if let Some(p) = self.alone(read, true) {
                let service = mix.service(read == 0.0, false, p.load.bytes).as_secs_f64() * 1e6;
                self.add(format!("{name}_latency_us"), "us", least.max(service), p.mean_us());
            }
        }
        for (random, table, name) in [(true, &mix.mix_random, "random"), (false, &mix.mix_sequential, "sequential")] {
            let found = penalties(self.report, random);
            let at = |p: &Penalty| found.iter().find(|f| f.kib == p.kib).map_or(0.0, |f| f.c);
            let mixed = |p: &&Point| p.load.read_share > 0.0 && p.load.read_share < 1.0;
            for c in table {
                if self.report.points.iter().filter(mixed).any(|p| p.load.bytes == (c.kib * 1024.0) as u64) {
                    self.add(format!("c of {name} mixes, {} KB", c.kib), "s/MB", c.c, at(c));
                }
            }
        }
    }

    fn flash(&mut self, flash: &FlashConfig) {
        let (t, page) = (&flash.timing, f64::from(flash.geometry.page_bytes));
        let mean =
            |times: &[f64]| times.iter().take(flash.cell.page_types()).sum::<f64>() / flash.cell.page_types() as f64;
        // What was laid before is in the SLC cache if that holds it.
        let rows = flash.geometry.pages_per_block / flash.cell.page_types() as u32;
        let holds = |blocks: u32| f64::from(blocks) * f64::from(rows) * page >= self.report.range as f64;
        let cache = flash.slc_cache.filter(|c| holds(c.blocks));
        let sensing = cache.map_or(mean(&t.read_us), |c| c.read_us);
        let programming = cache.map_or(mean(&t.program_us), |c| c.program_us);
        for (read, name) in [(1.0, "lone read"), (0.0, "lone write")] {
            let Some(p) = self.alone(read, true) else { continue };
            let bytes = p.load.bytes as f64;
            // The pages of a request follow each other on a chip; the last part then crosses the link.
            let (pages, part) = ((bytes / page).max(1.0), bytes.min(page));
            let moved = t.command_us + part / t.channel_mb_s;
            let given = match (read == 1.0, flash.buffer.kind) {
                (true, _) => (sensing + moved) * pages + part / flash.link.mb_s,
                (false, BufferKind::None) => part / flash.link.mb_s + (moved + programming) * pages,
                (false, _) => bytes / flash.link.mb_s,
            };
            let given = flash.link.overhead_us + flash.link.command_us + given;
            let measured = if read == 1.0 { p.mean_us() } else { p.mean(|s| s.percentile_us(0.5)) };
            self.add(format!("{name} {} KB", p.load.bytes >> 10), "us", given, measured);
        }
    }
}

/// The parameters of a model's profile that a report shows.
pub fn parameters(profile: &Profile, report: &Report) -> Vec<Parameter> {
    let mut finder = Finder { report, found: Vec::new() };
    match (&profile.disk, &profile.fixed, &profile.mix, &profile.flash) {
        (Some(disk), ..) => finder.disk(disk),
        (_, Some(fixed), ..) => finder.fixed(fixed),
        (_, _, Some(mix), _) => finder.mix(mix),
        (_, _, _, Some(flash)) => finder.flash(flash),
        _ => {}
    }
    finder.found
}
