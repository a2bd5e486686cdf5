//! The probe on modelled devices, whose parameters it must find again, and on devices that deceive it.

use std::sync::Arc;
use std::time::Duration;
use varve_device::*;
use varve_lab::iomix;
use varve_lab::probe::{self, Finding, Options, Report};
use varve_models::flash;
use varve_models::*;
use varve_rt::sim::{Config, run};
use varve_rt::{Mutex, now};

const KIB: u64 = 1 << 10;

fn options(sizes: &[u64], mixes: &[(u64, u32)]) -> Options {
    Options { sizes: sizes.to_vec(), depths: vec![1, 32], mixes: mixes.to_vec(), mix_step: 20, ..Options::default() }
}

#[track_caller]
fn close(what: &str, measured: f64, expected: f64, share: f64) {
    assert!((measured / expected - 1.0).abs() <= share, "{what}: {measured}, expected {expected} within {share}");
}

fn point(report: &Report, read: f64, random: bool, bytes: u64, depth: u32) -> &probe::Point {
    report.find(read, random, bytes, depth).expect("measured")
}

/// The profile that the report becomes, itself probed, gives the same figures.
fn round_trip(report: &Report, o: &Options) {
    let saved = probe::fit(report, "again").unwrap();
    let again = probe::on_profile(&saved, o, |_, _, _| {}).unwrap();
    for (a, b) in report.points.iter().zip(&again.points) {
        let deep = a.load.depth > 1 && (a.load.read_share == 0.0 || a.load.read_share == 1.0);
        if deep && saved.mix.as_ref().unwrap().read_latency_us < 500.0 {
            close(&format!("{}, saved: {:?}", report.device, a.load), b.mb_s(), a.mb_s(), 0.05);
        }
    }
}

fn probe_of(profile: &Profile, o: &Options) -> Report {
    let report = probe::on_profile(profile, o, |_, _, _| {}).unwrap();
    // A device of fixed times may be faster than any device is; nothing else may be found.
    let too_fast = |f: &Finding| profile.fixed.is_some() && matches!(f, Finding::Impossible(_));
    assert!(report.findings.iter().all(too_fast), "{}: {:?}\n{}", profile.name, report.findings, report.to_table());
    assert!(report.points.iter().all(|p| p.samples.len() >= 3), "at least three repeats");
    report
}

fn recovers_disk(profile: &Profile, disk: &DiskConfig) {
    let o = options(&[4 * KIB, 2048 * KIB], &[]);
    let report = probe_of(profile, &o);
    for (read, name) in [(1.0, "read"), (0.0, "write")] {
        let expected = disk.expected_random_ms(read == 0.0, 4096);
        close(
            &format!("{} {name}", profile.name),
            point(&report, read, true, 4 * KIB, 1).mean_us(),
            1e3 * expected,
            0.03,
        );
    }
    let streamed = point(&report, 1.0, false, 2048 * KIB, 4).mb_s();
    close(&format!("{} media rate", profile.name), streamed, disk.media_mb_s, 0.03);
    probe::fit(&report, "saved").unwrap();
}

fn recovers_fixed(profile: &Profile, fixed: &FixedConfig) {
    let report = probe_of(profile, &options(&[4 * KIB, 64 * KIB], &[]));
    let times = [
        (1.0, true, fixed.read_random_ms),
        (1.0, false, fixed.read_sequential_ms),
        (0.0, true, fixed.write_random_ms),
        (0.0, false, fixed.write_sequential_ms),
    ];
    for (read, random, ms) in times {
        close(&profile.name, point(&report, read, random, 4 * KIB, 1).mean_us(), 1e3 * ms, 0.001);
    }
}

fn recovers_mix(profile: &Profile, mix: &MixConfig) {
    let mixes = [(2048 * KIB, 2), (32768 * KIB, 2)];
    let o = options(&[4 * KIB, 2048 * KIB, 8192 * KIB, 32768 * KIB], &mixes);
    let report = probe_of(profile, &o);
    for p in &report.points {
        let random = p.load.random_share == 1.0;
        let mut expected = mix.throughput(p.load.read_share, !random, p.load.bytes);
        if p.load.depth == 1 {
            let least = if p.load.read_share == 1.0 { mix.read_latency_us } else { mix.write_latency_us };
            expected = expected.min(p.load.bytes as f64 / least);
        }
        close(&format!("{} {:?}", profile.name, p.load), p.mb_s(), expected, 0.03);
    }
    let saved = probe::fit(&report, "saved").unwrap().mix.unwrap();
    let alone = |write, us: f64| us.max(mix.service(write, false, 4096).as_nanos() as f64 / 1e3);
    close("read latency", saved.read_latency_us, alone(false, mix.read_latency_us), 0.03);
    close("write latency", saved.write_latency_us, alone(true, mix.write_latency_us), 0.03);
    for p in mix.mix_random.iter().filter(|p| p.c != 0.0) {
        let found = saved.mix_random.iter().find(|f| f.kib == p.kib).expect("a penalty is found where there is one");
        close("c", found.c, p.c, 0.03);
    }
    round_trip(&report, &o);
}

/// A lone read of a page: controller, command, sensing, channel, link. A lone write to a buffer: controller, command,
/// link.
fn recovers_flash(profile: &Profile, flash: &flash::FlashConfig) {
    let small = profile.scaled(0.05);
    let page = u64::from(flash.geometry.page_bytes).max(4 * KIB);
    let o = Options { range: Some(32 << 20), requests: Some(1_000), ..options(&[page], &[]) };
    let report = probe::on_profile(&small, &o, |_, _, _| {}).unwrap();
    let t = &flash.timing;
    let sensing = t.read_us.iter().take(flash.cell.page_types()).sum::<f64>() / flash.cell.page_types() as f64;
    // The range is in the SLC cache where there is one.
    let sensing = flash.slc_cache.map_or(sensing, |c| c.read_us);
    let pages = page as f64 / f64::from(flash.geometry.page_bytes);
    // The pages of a request on one chip: sensed and moved one after the other, the last then crosses the link.
    let each = f64::from(flash.geometry.page_bytes) / t.channel_mb_s + t.command_us + sensing;
    let link = f64::from(flash.geometry.page_bytes) / flash.link.mb_s;
    let told = flash.link.overhead_us + flash.link.command_us;
    let read = told + each * pages + link;
    close(&format!("{} read", profile.name), point(&report, 1.0, true, page, 1).mean_us(), read, 0.03);
    if flash.buffer.kind != flash::BufferKind::None {
        let write = told + page as f64 / flash.link.mb_s;
        close(
            &format!("{} write", profile.name),
            point(&report, 0.0, true, page, 1).samples[0].percentile_us(0.1),
            write,
            0.03,
        );
    }
}

#[test]
fn the_parameters_of_every_profile_are_found_again() {
    for name in Profile::names() {
        let profile = Profile::load(name).unwrap();
        match (&profile.disk, &profile.fixed, &profile.mix) {
            (Some(disk), _, _) => recovers_disk(&profile, disk),
            (_, Some(fixed), _) => recovers_fixed(&profile, fixed),
            (_, _, Some(mix)) => recovers_mix(&profile, mix),
            _ => recovers_flash(&profile, profile.flash.as_ref().expect("some section")),
        }
    }
}

/// The published read-only gains of four drives, MB/s, at queue depth 2: sequential 2, 8, 32 MB, random 2, 8, 32 MB.
const GAINS: [(&str, [f64; 6]); 4] = [
    ("samsung-830", [103.86, 105.28, 108.24, 105.46, 111.73, 103.61]),
    ("samsung-850", [42.93, 47.37, 39.80, 79.15, 50.34, 39.51]),
    ("intel-530", [13.86, 15.26, 15.13, 54.01, 44.93, 55.15]),
    ("ocz-vector-150", [192.38, 182.79, 181.06, 192.64, 201.09, 204.81]),
];

#[test]
fn the_published_gains_are_found_on_the_modelled_drives() {
    let mixes: Vec<(u64, u32)> = [2048, 8192, 32768].map(|k| (k * KIB, 2)).to_vec();
    for (name, published) in GAINS {
        let mut profile = Profile::load(name).unwrap();
        // The gains are small differences of large rates: without jitter few requests show them.
        profile.mix.as_mut().unwrap().jitter = 0.0;
        let (requests, mixes) = (Some(400), mixes.clone());
        let o = Options { sizes: vec![], depths: vec![], mixes, mix_step: 5, requests, ..Options::default() };
        let report = probe::on_profile(&profile, &o, |_, _, _| {}).unwrap();
        let mut expected = published.iter();
        for random in [false, true] {
            for (bytes, depth) in &o.mixes {
                let gain = probe::read_only_gain(&report, random, *bytes, *depth).unwrap();
                close(&format!("{name} random {random} {bytes}"), gain, *expected.next().unwrap(), 0.03);
            }
        }
    }
}

/// A device in front of another, with something wrong about it.
struct Deceiver {
    inner: Arc<dyn Device>,
    kind: Deceit,
    began: varve_rt::Instant,
    seen: Mutex<varve_rt::HashSet<u64>>,
    serial: Mutex<()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Deceit {
    /// Blocks read once are answered at once.
    Caches,
    /// After 3 s everything takes three times as long.
    Throttles,
    /// Whatever the request, it takes no time to speak of.
    Lies,
    /// Small reads are served by prefetching as if they were one after the other.
    Prefetches,
    /// Goes through the system's cache.
    Buffered,
}

impl Device for Deceiver {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { direct: self.kind != Deceit::Buffered, ..self.inner.info() }
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let fast = |io: &Io| match self.kind {
            Deceit::Caches => io.op == Op::Read && !self.seen.lock().insert(io.offset),
            Deceit::Lies => true,
            _ => false,
        };
        let small = |io: &Io| self.kind == Deceit::Prefetches && io.op == Op::Read && io.len() <= 8192;
        if batch.iter().all(fast) {
            varve_rt::sleep(Duration::from_nanos(500));
            return Ticket::ready(batch.iter().map(|_| Ok(())).collect());
        }
        if batch.iter().all(small) {
            varve_rt::sleep(Duration::from_nanos(8_000));
            return Ticket::ready(batch.iter().map(|_| Ok(())).collect());
        }
        let _one_at_a_time = (self.kind == Deceit::Throttles).then(|| self.serial.lock());
        let began = now();
        let results = self.inner.submit(batch).wait_all();
        if self.kind == Deceit::Throttles && self.began.elapsed() > Duration::from_secs(3) {
            varve_rt::sleep(2 * began.elapsed());
        }
        Ticket::ready(vec![results])
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

fn deceived(kind: Deceit) -> Report {
    run(Config::default(), move || {
        let range = 64 << 20;
        let profile = Profile::load("samsung-830").unwrap();
        let how = Build { len: range, keep: false, ..Build::default() };
        let inner: Arc<dyn Device> = profile.build_model(how).unwrap();
        let device: Arc<dyn Device> = Arc::new(Deceiver {
            inner,
            kind,
            began: now(),
            seen: Mutex::new(Default::default()),
            serial: Mutex::new(()),
        });
        let plan = probe::Plan { time: Duration::ZERO, requests: 3_000, ..options(&[4 * KIB, 2048 * KIB], &[]).plan() };
        probe::run(&device, &plan, range, |_, _, _| {}).unwrap()
    })
    .unwrap()
}

#[test]
fn devices_that_deceive_are_found_out_and_not_saved() {
    let is = |kind, of: fn(&Finding) -> bool| {
        let report = deceived(kind);
        assert!(report.findings.iter().any(of), "{:?}\n{}", report.findings, report.to_table());
        let refused = probe::fit(&report, "nonsense").unwrap_err().to_string();
        assert!(refused.contains("cannot be believed"), "{refused}");
    };
    is(Deceit::Caches, |f| matches!(f, Finding::Cached(_)));
    is(Deceit::Buffered, |f| matches!(f, Finding::Cached(_)));
    is(Deceit::Throttles, |f| matches!(f, Finding::Throttled(_)));
    is(Deceit::Lies, |f| matches!(f, Finding::Impossible(_)));
    is(Deceit::Prefetches, |f| matches!(f, Finding::Bandwidth(_)));
}

#[test]
fn a_probe_of_a_directory_leaves_nothing_behind() {
    let dir = std::env::temp_dir().join(format!("varve-probe-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let o = Options {
        sizes: vec![4 * KIB],
        depths: vec![1],
        mixes: vec![],
        time: Duration::from_millis(5),
        range: Some(4 << 20),
        ..Options::default()
    };
    let report = probe::on_path(&dir, &o, |_, _, _| {}).unwrap();
    assert!(report.clock == "real" && report.points.iter().all(|p| p.iops() > 0.0));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
    let missing = probe::on_path(&dir, &o, |_, _, _| {}).unwrap_err().to_string();
    assert!(missing.contains("no directory"), "{missing}");
}

#[test]
fn iomix_measures_what_was_asked_for() {
    let profile = Profile::load("gd2l-ssd").unwrap();
    let load = iomix::Load { bytes: 4096, read_share: 0.7, random_share: 0.5, depth: 4 };
    let extent = iomix::Extent {
        warm_time: Duration::ZERO,
        warm_requests: 100,
        time: Duration::ZERO,
        requests: 4_000,
        range: 0,
        seed: 1,
    };
    let sample = probe::iomix_on_profile(&profile, None, None, load, extent).unwrap();
    close("IOPS", sample.iops(), 1e3 / (0.7 * 0.11 + 0.3 * 0.27), 0.005);
    close("share of reads", sample.reads as f64 / sample.requests as f64, 0.7, 0.005);
    close("response time", sample.mean_us(), 4e6 / sample.iops(), 0.01);
    let wrong = iomix::Load { bytes: 1000, ..load };
    assert!(probe::iomix_on_profile(&profile, None, None, wrong, extent).unwrap_err().to_string().contains("blocks"));
}
