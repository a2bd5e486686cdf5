//! The three layouts over three drives in real time: files of three directories, each slowed to the pace of a modelled
//! drive (Samsung 850, OCZ Vector 150, Intel 530); with `--free` the third is as fast as it is. Random requests of
//! 2 MiB, 35 % reads, two in flight for each drive, as in `experiments/rodi.toml`. By turns, five rounds: the medians,
//! and their order. `cargo bench -p varve-volume --bench three_drives [-- [--free] DIR DIR DIR]`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, Device, DeviceError, DeviceInfo, DeviceStats, FileDevice, Io, Op, Options, Ticket};
use varve_models::{Build, Profile};
use varve_rt::{Instant, Mutex, Rng};
use varve_volume::array::{Array, EXTENT, Layout};

/// Bytes of each drive.
const LEN: u64 = 256 << 20;
const REQUEST: u64 = 2 << 20;
const DEPTH: u32 = 2;
/// Share of reads of the whole load.
const READS: f64 = 0.35;
/// And of the drives that do not only read, when one of three does.
const REST: f64 = (3.0 * READS - 1.0) / 2.0;
const ROUNDS: u64 = 5;
const RUN: Duration = Duration::from_secs(3);

/// A file whose requests take the time of a modelled drive at least.
struct Paced {
    file: Arc<dyn Device>,
    model: Arc<dyn Device>,
    /// What the model reads into, and writes.
    scratch: Mutex<Vec<AlignedBuf>>,
}

impl Paced {
    fn over(file: Arc<dyn Device>, profile: &str) -> Arc<dyn Device> {
        let profile = Profile::load(profile).expect("it is built in");
        let how = Build { len: LEN, keep: false, ..Build::default() };
        let model = profile.build_model(how).expect("the profile has a model");
        Arc::new(Paced { file, model, scratch: Mutex::default() })
    }
}

impl Device for Paced {
    fn info(&self) -> DeviceInfo {
        self.file.info()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> std::result::Result<(), DeviceError> {
        self.file.set_len(len)
    }

    fn submit(&self, batch: Vec<Io>) -> Ticket {
        Ticket::ready(batch.into_iter().map(|io| self.run(io)).collect())
    }

    fn run(&self, io: Io) -> std::result::Result<(), DeviceError> {
        let (at, len) = (io.offset, io.len());
        let mut buf = self.scratch.lock().pop().filter(|buf| buf.len() >= len).unwrap_or_else(|| AlignedBuf::new(len));
        let paced = match io.op {
            // SAFETY: the buffer outlives the request, which is waited for below.
            Op::Read => Some(unsafe { Io::read(at, buf.as_mut_ptr(), len) }),
            // SAFETY: the same.
            Op::Write { durable } => Some(unsafe { Io::write(at, buf.as_ptr(), len, durable) }),
            Op::Flush | Op::Trim => None,
        };
        let pace = paced.map(|io| self.model.submit(vec![io]));
        let done = self.file.run(io);
        pace.map_or(Ok(()), Ticket::wait_all)?;
        self.scratch.lock().push(buf);
        done
    }

    fn stats(&self) -> DeviceStats {
        self.file.stats()
    }
}

/// The extents of a device that requests go to, how many are in flight, and the share of reads.
#[derive(Clone)]
struct Lane {
    device: Arc<dyn Device>,
    offsets: Arc<[u64]>,
    depth: u32,
    reads: f64,
}

impl Lane {
    /// Bytes of requests that ended in time, one after the other, from `from` to `to`.
    fn serve(&self, (from, to): (Instant, Instant), seed: u64) -> u64 {
        let (mut rng, mut buf, mut bytes) = (Rng::from_seed(seed), AlignedBuf::new(REQUEST as usize), 0);
        rng.fill_bytes(&mut buf);
        loop {
            let extent = self.offsets[rng.below(self.offsets.len() as u64) as usize];
            let at = extent + rng.below(EXTENT / REQUEST) * REQUEST;
            if (rng.below(1000) as f64) < 1000.0 * self.reads {
                varve_device::read_at(&*self.device, at, &mut buf).expect("the drive works");
            } else {
                varve_device::write_at(&*self.device, at, &buf, false).expect("the drive works");
            }
            match varve_rt::now() {
                now if now > to => return bytes,
                now if now > from => bytes += REQUEST,
                _ => {}
            }
        }
    }
}

/// MB/s of lanes that run at the same time.
fn rate(lanes: &[Lane], seed: u64) -> f64 {
    let from = varve_rt::now() + RUN / 10;
    let workers = lanes.iter().flat_map(|lane| (0..lane.depth).map(move |_| lane.clone()));
    let start = |(n, lane): (usize, Lane)| {
        varve_rt::spawn(format!("worker {n}"), move || lane.serve((from, from + RUN), seed << 8 | n as u64))
    };
    let threads: Vec<_> = workers.enumerate().map(start).collect();
    let bytes: u64 = threads.into_iter().map(|thread| thread.join().expect("the worker ended")).sum();
    bytes as f64 / 1e6 / RUN.as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn file(path: &Path) -> Arc<dyn Device> {
    let how = Options { create: true, ..Options::default() };
    let device = FileDevice::open(path, how).expect("the directory can be written to");
    device.set_len(LEN).expect("there is space for the file");
    let mut buf = AlignedBuf::new(4 << 20);
    Rng::from_seed(LEN).fill_bytes(&mut buf);
    (0..LEN).step_by(buf.len()).for_each(|at| varve_device::write_at(&*device, at, &buf, false).expect("it works"));
    varve_device::flush(&*device).expect("it works");
    device
}

/// An array of the drives, and the extents that lie on each of them.
fn array(drives: &[Arc<dyn Device>], layout: Layout) -> (Arc<dyn Device>, Vec<Vec<u64>>) {
    // Half of the room: by shares no drive is full.
    let len = LEN * drives.len() as u64 / 2;
    let array = Array::volatile(drives.to_vec(), (EXTENT, layout), len).expect("the drives have room");
    let on = |drive| array.extents_on(drive).into_iter().map(|n| n as u64 * EXTENT).collect();
    let extents = (0..drives.len()).map(on).collect();
    (array.clone(), extents)
}

/// What each drive gives by itself at each of some shares of reads.
fn alone(drives: &[Arc<dyn Device>], shares: [f64; 3]) -> Vec<[f64; 3]> {
    let whole: Arc<[u64]> = (0..LEN / EXTENT).map(|n| n * EXTENT).collect();
    let of = |drive: &Arc<dyn Device>| {
        let lane = |reads| Lane { device: drive.clone(), offsets: whole.clone(), depth: DEPTH, reads };
        shares.map(|reads| median((0..3).map(|round| rate(&[lane(reads)], round)).collect()))
    };
    drives.iter().map(of).collect()
}

fn main() {
    // `cargo test --benches` only wants to know that it builds.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let free = std::env::args().any(|a| a == "--free");
    let mut dirs: Vec<PathBuf> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).map(PathBuf::from).collect();
    dirs.resize_with(3, std::env::temp_dir);
    let name = |n: usize| format!("varve-three-drives-{}-{n}.tmp", std::process::id());
    let paths: Vec<PathBuf> = dirs.iter().enumerate().map(|(n, dir)| dir.join(name(n))).collect();
    let files: Vec<Arc<dyn Device>> = paths.iter().map(|path| file(path)).collect();
    println!("{}", files[0].info().access);
    let names = ["samsung-850", "ocz-vector-150", if free { "the file" } else { "intel-530" }];
    let drive = |n: usize| if free && n == 2 { files[n].clone() } else { Paced::over(files[n].clone(), names[n]) };
    let drives: Vec<Arc<dyn Device>> = (0..3).map(drive).collect();
    let each = alone(&drives, [READS, REST, 1.0]);
    for (name, [mixed, rest, reads]) in names.iter().zip(&each) {
        println!("{name} alone: {mixed:.0} MB/s at {READS} reads, {rest:.0} at {REST:.3}, {reads:.0} at 1");
    }
    let isolated = |d: &usize| (0..3).map(|o| if o == *d { each[o][2] } else { each[o][1] }).sum::<f64>();
    let only = (0..3).max_by(|a, b| isolated(a).total_cmp(&isolated(b))).expect("there are three");
    let shares: Vec<f64> = each.iter().map(|of| of[0]).collect();
    println!("expected: proportional {:.0}, rodi {:.0} MB/s", shares.iter().sum::<f64>(), isolated(&only));
    let (stripe, extents) = array(&drives, Layout::Stripe { unit: REQUEST });
    let lane = |(device, offsets, depth, reads): (&Arc<dyn Device>, &[u64], u32, f64)| Lane {
        device: device.clone(),
        offsets: offsets.into(),
        depth,
        reads,
    };
    let all = vec![lane((&stripe, &extents.concat(), 3 * DEPTH, READS))];
    let (apart, extents) = array(&drives, Layout::Proportional { shares });
    let with = |reads: &dyn Fn(usize) -> f64| -> Vec<Lane> {
        extents.iter().enumerate().map(|(d, own)| lane((&apart, own, DEPTH, reads(d)))).collect()
    };
    let layouts =
        [("stripe", all), ("proportional", with(&|_| READS)), ("rodi", with(&|d| if d == only { 1.0 } else { REST }))];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (of, (_, lanes)) in rates.iter_mut().zip(&layouts) {
            of.push(rate(lanes, 100 + round));
        }
    }
    for ((name, _), of) in layouts.iter().zip(&rates) {
        let (least, most) = of.iter().fold((f64::MAX, 0f64), |(a, b), r| (a.min(*r), b.max(*r)));
        println!("{name}: {:.0} MB/s ({least:.0} to {most:.0})", median(of.clone()));
    }
    println!("{} only reads in rodi", names[only]);
    let [stripe, proportional, rodi] = rates.map(median);
    println!("rodi > proportional > stripe: {}", rodi > proportional && proportional > stripe);
    paths.iter().for_each(|path| std::fs::remove_file(path).expect("the file is ours"));
}
