//! Speed of a real file: `cargo bench -p varve-device --bench file [-- DIR]`.
//!
//! Random 4 KiB reads one and 32 at a time; durable 4 KiB writes one and four in flight, over space that is merely
//! reserved and over space that was written before; each through `io_uring` and positionally where both make sense.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, BLOCK, Device, FileDevice, Io, Options, Ticket, flush, write_at};
use varve_rt::Rng;

const LEN: u64 = 256 << 20;
const RUN: Duration = Duration::from_millis(1500);

/// Runs `step` (which returns how many requests it finished) for a while; prints requests per second.
fn measure(what: &str, mut step: impl FnMut() -> u64) {
    let started = varve_rt::now();
    let mut count = 0;
    while started.elapsed() < RUN {
        count += step();
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{what:<58} {:>9.0} /s {:>9.1} us each", count as f64 / seconds, seconds * 1e6 / count as f64);
}

fn open(path: &Path, options: Options) -> Arc<FileDevice> {
    let dev = FileDevice::open(path, options).expect("the directory can be written to");
    dev.set_len(LEN).expect("there is space for the file");
    dev
}

fn random(rng: &mut Rng) -> u64 {
    rng.below(LEN / BLOCK as u64) * BLOCK as u64
}

fn reads(dev: &dyn Device) {
    let mut rng = Rng::from_seed(1);
    let mut buf = AlignedBuf::new(BLOCK);
    measure("random read, run()", || {
        // SAFETY: `buf` outlives the request, which is waited for.
        dev.run(unsafe { Io::read(random(&mut rng), buf.as_mut_ptr(), BLOCK) }).unwrap();
        1
    });
    measure("random read, submit() of one", || {
        // SAFETY: `buf` outlives the request, which is waited for.
        dev.submit(vec![unsafe { Io::read(random(&mut rng), buf.as_mut_ptr(), BLOCK) }]).wait_all().unwrap();
        1
    });
    let mut bufs: Vec<_> = (0..32).map(|_| AlignedBuf::new(BLOCK)).collect();
    measure("random read, submit() of 32", || {
        // SAFETY: the buffers outlive the requests, which are waited for.
        let io = |b: &mut AlignedBuf| unsafe { Io::read(random(&mut rng), b.as_mut_ptr(), BLOCK) };
        dev.submit(bufs.iter_mut().map(io).collect()).wait_all().unwrap();
        32
    });
}

/// Durable writes one after the other over the file, `depth` tickets in flight.
fn durable(what: &str, dev: &dyn Device, depth: usize) {
    let buf = AlignedBuf::copy_padded(&[1; BLOCK], BLOCK);
    let mut at = 0;
    let mut flying: VecDeque<Ticket> = VecDeque::new();
    measure(&format!("durable write, {what}, {depth} in flight"), || {
        at = (at + BLOCK as u64) % LEN;
        // SAFETY: `buf` outlives the tickets, all of which are waited for.
        flying.push_back(dev.submit(vec![unsafe { Io::write(at, buf.as_ptr(), BLOCK, true) }]));
        if flying.len() == depth {
            flying.pop_front().expect("not empty").wait_all().unwrap();
        }
        1
    });
    flying.into_iter().for_each(|t| t.wait_all().unwrap());
}

fn durable_run(what: &str, dev: &dyn Device) {
    let buf = AlignedBuf::copy_padded(&[1; BLOCK], BLOCK);
    let mut at = 0;
    measure(&format!("durable write, {what}, run()"), || {
        at = (at + BLOCK as u64) % LEN;
        write_at(dev, at, &buf, true).unwrap();
        1
    });
    measure(&format!("write and flush, {what}, run()"), || {
        at = (at + BLOCK as u64) % LEN;
        write_at(dev, at, &buf, false).and_then(|()| flush(dev)).unwrap();
        1
    });
}

fn durable_threads(what: &str, dev: &Arc<FileDevice>, threads: u64) {
    let worker = |t: u64| {
        let dev = dev.clone();
        varve_rt::spawn("writer", move || {
            let buf = AlignedBuf::copy_padded(&[1; BLOCK], BLOCK);
            let (started, mut count) = (varve_rt::now(), 0);
            while started.elapsed() < RUN {
                let at = (count * threads + t) * BLOCK as u64 % LEN;
                write_at(&*dev, at, &buf, true).unwrap();
                count += 1;
            }
            count
        })
    };
    let started = varve_rt::now();
    let handles: Vec<_> = (0..threads).map(worker).collect();
    let count: u64 = handles.into_iter().map(|h| h.join().expect("no panic")).sum();
    let what = format!("durable write, {what}, {threads} threads of run()");
    println!("{what:<58} {:>9.0} /s", count as f64 / started.elapsed().as_secs_f64());
}

fn main() {
    let dir = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let dir = dir.map_or_else(std::env::temp_dir, Into::into);
    let path = dir.join(format!("varve-bench-{}", std::process::id()));
    let dev = open(&path, Options { create: true, ..Options::default() });
    println!("{}; {:?}", dev.info().access, dev.info().fallback);
    durable("reserved space", &*dev, 4);
    drop(dev);
    std::fs::remove_file(&path).expect("just created");

    let options = Options { create: true, prewrite: true, ..Options::default() };
    let started = varve_rt::now();
    let dev = open(&path, options.clone());
    println!("prewriting {} MiB took {:?}", LEN >> 20, started.elapsed());
    reads(&*dev);
    durable_run("written space", &*dev);
    for depth in [1, 4] {
        durable("written space", &*dev, depth);
    }
    durable_threads("written space", &dev, 4);
    let dev = open(&path, Options { io_uring: false, ..options });
    println!("{}", dev.info().access);
    reads(&*dev);
    durable("written space", &*dev, 1);
    std::fs::remove_file(&path).expect("just created");
}
