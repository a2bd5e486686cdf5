//! What an array costs: random 4 KiB reads and writes on a file, and on an array whose one drive is that file, one and
//! 32 in flight. By turns, nine rounds of each: the medians, and the median of the differences of a round, which other
//! work on the machine disturbs less. `cargo bench -p varve-volume --bench one_drive [-- DIR]`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, BLOCK, Device, FileDevice, Io, Options};
use varve_rt::Rng;
use varve_volume::array::{Array, EXTENT, Layout, UNIT};

const LEN: u64 = 256 << 20;
const ROUNDS: u64 = 9;
const RUN: Duration = Duration::from_millis(700);

/// Requests per second; `depth` at a time, the next ones when all have ended.
fn rate(device: &Arc<dyn Device>, write: bool, depth: usize, seed: u64) -> f64 {
    let mut rng = Rng::from_seed(seed);
    let mut bufs: Vec<_> = (0..depth).map(|_| AlignedBuf::new(BLOCK)).collect();
    bufs.iter_mut().for_each(|buf| rng.fill_bytes(buf));
    let io = |buf: &mut AlignedBuf, rng: &mut Rng| {
        let at = rng.below(LEN / BLOCK as u64) * BLOCK as u64;
        // SAFETY: the buffers outlive the requests, which are waited for before they are used again.
        unsafe { if write { Io::write(at, buf.as_ptr(), BLOCK, false) } else { Io::read(at, buf.as_mut_ptr(), BLOCK) } }
    };
    let (began, mut count) = (varve_rt::now(), 0);
    while began.elapsed() < RUN {
        match &mut bufs[..] {
            [buf] => device.run(io(buf, &mut rng)).expect("the drive works"),
            bufs => {
                let batch = bufs.iter_mut().map(|buf| io(buf, &mut rng)).collect();
                device.submit(batch).wait_all().expect("the drive works");
            }
        }
        count += depth;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn file(path: &Path) -> Arc<dyn Device> {
    let how = Options { create: true, ..Options::default() };
    let device = FileDevice::open(path, how).expect("the directory can be written to");
    device.set_len(LEN).expect("there is space for the file");
    println!("{}", device.info().access);
    let mut buf = AlignedBuf::new(4 << 20);
    Rng::from_seed(LEN).fill_bytes(&mut buf);
    (0..LEN).step_by(buf.len()).for_each(|at| varve_device::write_at(&*device, at, &buf, false).expect("it works"));
    varve_device::flush(&*device).expect("it works");
    device
}

fn main() {
    // `cargo test --benches` only wants to know that it builds.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let given = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let dir = given.map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("varve-one-drive-{}.tmp", std::process::id()));
    let device = file(&path);
    for (name, layout) in
        [("stripe", Layout::Stripe { unit: UNIT }), ("extents in one piece", Layout::Rodi { shares: vec![1.0] })]
    {
        let array: Arc<dyn Device> =
            Array::volatile(vec![device.clone()], (EXTENT, layout), LEN).expect("the drive has room");
        for (what, write, depth) in [("read", false, 1), ("write", true, 1), ("read", false, 32), ("write", true, 32)] {
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..ROUNDS {
                // Who comes first changes.
                for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let target = [&device, &array][which];
                    rates[which].push(rate(target, write, depth, round));
                }
            }
            let pairs = rates[0].iter().zip(&rates[1]);
            let differs = median(pairs.map(|(alone, below)| 100.0 * (below / alone - 1.0)).collect());
            let [alone, below] = rates.map(median);
            println!(
                "{name}, random {what}, {depth} in flight: file {alone:.0} /s, array {below:.0} /s, in a round \
                {differs:+.1} %"
            );
        }
    }
    std::fs::remove_file(&path).expect("the file is ours");
}
