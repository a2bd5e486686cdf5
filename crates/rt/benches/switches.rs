//! Coroutine switches per second of CPU time of a simulation, on one OS thread.
//!
//! `cargo bench -p varve-rt --bench switches`. Required: at least ten million a second for yields.

use std::sync::Arc;
use std::time::Duration;
use varve_rt::sim::{self, Config};
use varve_rt::{Event, Mutex, channel, compute, sleep, spawn, yield_now};

const THREADS: usize = 8;

/// CPU seconds of this thread: on a machine shared with others, what the run itself took.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the given structure only.
    let r = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    assert_eq!(r, 0);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Runs `f` on every thread of a simulation; prints switches per second.
fn measure(name: &str, f: fn(usize)) {
    let mut rates: Vec<f64> = (0..7)
        .map(|seed| {
            let start = cpu_seconds();
            let outcome = sim::run(Config { seed, ..Config::default() }, move || {
                let threads: Vec<_> = (0..THREADS).map(|i| spawn(format!("thread {i}"), move || f(i))).collect();
                threads.into_iter().for_each(|t| t.join().expect("thread"));
            });
            let switches = outcome.switches;
            outcome.unwrap();
            switches as f64 / (cpu_seconds() - start)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!("{name:<34} {:>7.2} million switches/s (median of 7)", rates[3] / 1e6);
}

/// Two threads answer each other through events.
fn ping_pong() {
    let mut rates: Vec<f64> = (0..7)
        .map(|seed| {
            let start = cpu_seconds();
            let outcome = sim::run(Config { seed, ..Config::default() }, || {
                let pair = Arc::new((Event::new(), Event::new()));
                let other = pair.clone();
                let t = spawn("pong", move || {
                    for _ in 0..500_000 {
                        other.0.wait();
                        other.0.reset();
                        other.1.set();
                    }
                });
                for _ in 0..500_000 {
                    pair.0.set();
                    pair.1.wait();
                    pair.1.reset();
                }
                t.join().expect("pong");
            });
            outcome.switches as f64 / (cpu_seconds() - start)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!("{:<34} {:>7.2} million switches/s (median of 7)", "two threads, events", rates[3] / 1e6);
}

fn main() {
    measure("eight threads, yields", |_| (0..1_000_000).for_each(|_| yield_now()));
    measure("eight threads, sleeps", |i| (0..200_000).for_each(|_| sleep(Duration::from_nanos(100 + i as u64))));
    ping_pong();
    measure("eight threads, one mutex, compute", |_| {
        static LOCK: Mutex<u64> = Mutex::new(0);
        for _ in 0..100_000 {
            compute(Duration::from_nanos(200));
            *LOCK.lock() += 1;
            compute(Duration::from_nanos(100));
        }
    });
    measure("eight threads, a channel each", |_| {
        let (tx, rx) = channel::bounded(1);
        let t = spawn("sender", move || (0..50_000).for_each(|i| tx.send(i).expect("receiver")));
        assert_eq!(rx.iter().count(), 50_000);
        t.join().expect("sender");
    });
}
