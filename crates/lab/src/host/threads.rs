//! Costs that need two threads, or a device: moving a lock between cores, sleeping and waking, requests to a file.

use super::calibrate::Measured;
use crate::error::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, FileDevice};
use varve_rt::atomic::{AtomicU32, Ordering};
use varve_rt::{Event, now, spawn};

/// What two threads cost each other.
pub(super) struct Pair {
    pub handoff: Measured,
    pub with_data: Measured,
    pub park: Measured,
    pub unpark: Measured,
}

/// Measures them.
pub(super) fn pair(rounds: usize) -> Result<Pair> {
    let rounds_of = |lines| (0..rounds.max(4)).map(|_| handoff(lines)).collect::<Result<_>>();
    let handoff = Measured::of("lock word from core to core", rounds_of(0)?);
    let with_data = Measured::of("the same with four lines of data", rounds_of(LINES)?);
    let (mut park, mut unpark) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(4) {
        let (sleeping, waking) = sleep_and_wake()?;
        park.push(sleeping);
        unpark.push(waking);
    }
    Ok(Pair {
        handoff,
        with_data,
        park: Measured::of("sleeping and coming back", park),
        unpark: Measured::of("waking a thread", unpark),
    })
}

fn joined<T>(r: std::result::Result<T, varve_rt::Panicked>) -> Result<T> {
    r.map_err(|_| Error::WorkerPanicked("calibration".into()))
}

/// Cache lines of guarded data that the larger hand-off takes along: a node of a map or a few neighbours in a list, or
/// the header, a slot and a row of a page.
const LINES: usize = 4;

/// A line of its own (two: processors fetch neighbours).
#[repr(align(128))]
struct Line(AtomicU32);

/// A word, and lines that are read and changed by who has it, each found by what stands in the one before.
struct Guarded {
    word: Line,
    lines: [Line; LINES],
}

/// Two threads hand a word to each other, and `lines` lines of data; ns per move.
fn handoff(lines: usize) -> Result<f64> {
    const MOVES: u32 = 4000;
    let guarded =
        Arc::new(Guarded { word: Line(AtomicU32::new(0)), lines: std::array::from_fn(|_| Line(AtomicU32::new(0))) });
    let other = {
        let guarded = guarded.clone();
        spawn("handoff", move || play(&guarded, lines, 1, MOVES))
    };
    let began = now();
    play(&guarded, lines, 0, MOVES);
    let took = began.elapsed().as_nanos() as f64;
    joined(other.join())?;
    Ok(took / f64::from(MOVES))
}

/// Takes the word each time it is even (`me` 0) or odd (1), as a lock is taken: by compare-and-swap; changes the lines;
/// and gives it on.
fn play(guarded: &Guarded, lines: usize, me: u32, moves: u32) {
    let word = &guarded.word.0;
    let mut next = me;
    while next < moves {
        let mut tries = 0u32;
        // Bit 31: taken.
        while word.compare_exchange_weak(next, next | 1 << 31, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            tries += 1;
            if tries.is_multiple_of(20_000) {
                // The other one is not running: this round is lost anyway.
                varve_rt::yield_now();
            }
            varve_rt::spin(0);
        }
        // Always 0, which only the data says: a line cannot be asked for before the one before it has come.
        let mut hop = 0;
        for n in 0..lines {
            let line = &guarded.lines[n + hop].0;
            let count = line.load(Ordering::Relaxed);
            line.store(count.wrapping_add(1), Ordering::Relaxed);
            hop = (count >> 31) as usize;
        }
        word.store(next + 1, Ordering::Release);
        next += 2;
    }
}

/// A thread sleeps on an event and is woken: ns of processor time of the sleeper per wait, and of the waker per wake.
fn sleep_and_wake() -> Result<(f64, f64)> {
    const TIMES: usize = 100;
    let events: Arc<Vec<(Event, Event)>> = Arc::new((0..TIMES).map(|_| (Event::new(), Event::new())).collect());
    let sleeper = {
        let events = events.clone();
        spawn("sleeper", move || {
            let before = on_cpu();
            for (go, done) in events.iter() {
                go.wait();
                done.set();
            }
            on_cpu().zip(before).map(|(after, before)| after - before)
        })
    };
    let mut waking = 0.0;
    for (go, done) in events.iter() {
        // Long enough for the other to be asleep.
        while !done.is_set() {
            let until = now() + std::time::Duration::from_micros(60);
            while now() < until {
                varve_rt::spin(0);
            }
            let began = now();
            go.set();
            waking += began.elapsed().as_nanos() as f64;
            done.wait();
        }
    }
    let slept = joined(sleeper.join())?;
    let waking = waking / TIMES as f64;
    // Without the system's count: sleeping takes two switches of context where waking takes a call.
    Ok((slept.map_or(2.0 * waking, |ns| ns / TIMES as f64), waking))
}

/// Processor time of the calling thread, ns, as of when it last slept.
fn on_cpu() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Processor time of a request to a file in `dir`: half of it for handing it over, half for learning that it is done.
pub(super) fn requests(dir: &Path, rounds: usize) -> Result<(Measured, Measured)> {
    const TIMES: u64 = 256;
    let path = dir.join(format!("varve-probe-{}", std::process::id()));
    let result = || -> Result<Vec<f64>> {
        let failed = |e: varve_device::DeviceError| Error::store(e.to_string());
        let file = FileDevice::open(&path, varve_device::Options { create: true, ..varve_device::Options::default() })
            .map_err(failed)?;
        file.set_len(TIMES * 4096).map_err(failed)?;
        let mut buf = AlignedBuf::new(4096);
        for block in 0..TIMES {
            varve_device::write_at(&*file, block * 4096, &buf, false).map_err(failed)?;
        }
        let mut all = Vec::new();
        for _ in 0..rounds.max(4) {
            let (before, began) = (on_cpu(), now());
            for block in 0..TIMES {
                varve_device::read_at(&*file, block * 4096, &mut buf).map_err(failed)?;
            }
            let cpu = on_cpu().zip(before).map(|(after, before)| after - before);
            all.push(cpu.unwrap_or(began.elapsed().as_nanos() as f64) / TIMES as f64);
        }
        Ok(all)
    }();
    let _ = std::fs::remove_file(&path);
    let half: Vec<f64> = result?.into_iter().map(|ns| ns / 2.0).collect();
    Ok((Measured::of("handing a request over", half.clone()), Measured::of("learning that it is done", half)))
}
