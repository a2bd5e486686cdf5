//! The flash model as a device: times, both worlds, determinism, power cuts under load, forks.

use std::sync::Arc;
use std::time::Duration;
use varve_device::*;
use varve_models::flash::{Allocation, Buffer, BufferKind, Contents, Drive, FlashConfig, Streams};
use varve_models::*;
use varve_rt::sim::{Config, Domain, run};
use varve_rt::{Mutex, Rng};

const PAGE: u64 = 4096;

/// Sixteen chips on four channels, 200 MB/s, a buffer of 64 pages.
fn config(kind: BufferKind) -> FlashConfig {
    let mut c = FlashConfig::one_plane(64, 32);
    c.name = "sixteen chips".into();
    c.geometry.channels = 4;
    c.geometry.chips_per_channel = 4;
    c.timing.channel_mb_s = 204.8;
    c.link.mb_s = 409.6;
    c.buffer = Buffer { kind, pages: if kind == BufferKind::None { 0 } else { 64 } };
    c
}

fn drive(kind: BufferKind) -> Drive {
    Drive::new(&config(kind), Contents::Spare).unwrap()
}

/// Nanoseconds as whole microseconds.
fn us(nanos: u64) -> u64 {
    (nanos + 500) / 1000
}

/// 10 us overhead; 25 us sensing, 200 us programming; a page takes 20 us on the channel and 10 us on the link.
#[test]
fn single_requests_take_their_times() {
    let page = vec![1; PAGE as usize];
    for (kind, write) in [(BufferKind::None, 240), (BufferKind::Volatile, 20), (BufferKind::Capacitor, 20)] {
        let mut d = drive(kind);
        assert_eq!(us(d.write(0, 0, &page, false).unwrap().at), write, "{kind:?}");
        let durable = if kind == BufferKind::Capacitor { 20 } else { 240 };
        assert_eq!(us(d.write(1_000_000, PAGE, &page, true).unwrap().at), 1000 + durable, "{kind:?}");
        assert_eq!(us(d.read(2_000_000, 0, PAGE).unwrap()), 2000 + 10 + 25 + 20 + 10);
        assert_eq!(us(d.read(3_000_000, 900 * PAGE, PAGE).unwrap()), 3000 + 20, "never written: no page is sensed");
        assert_eq!(us(d.flush(4_000_000).unwrap().at), 4010);
    }
    // A flush waits for what a volatile buffer holds; a read finds it there.
    let mut d = drive(BufferKind::Volatile);
    d.write(0, 0, &page, false).unwrap();
    assert_eq!(us(d.read(20_000, 0, PAGE).unwrap()), 40);
    assert_eq!(us(d.flush(20_000).unwrap().at), 240);
}

#[test]
fn chips_work_in_parallel_and_a_full_buffer_makes_writers_wait() {
    let page = vec![1; PAGE as usize];
    let mut d = drive(BufferKind::Volatile);
    let pages = 1600;
    // Four requests outstanding.
    let mut ends = vec![0; 4];
    for i in 0..pages {
        let end = d.write(ends[i as usize], i * PAGE, &page, false).unwrap().at;
        ends.push(end.max(ends[i as usize + 3]));
    }
    let end = ends.pop().unwrap();
    // Sixteen chips program a page each in 220 us; four share a channel, which is not the bottleneck.
    let expected = pages as f64 / 16.0 * 220.0;
    let took = end as f64 / 1000.0;
    assert!((took / expected - 1.0).abs() < 0.06, "{took} us, expected {expected}");
    let stats = d.stats();
    assert!(stats.buffer_waits > pages / 2 && stats.write_times.count() == pages);
    let busy = stats.gate_utilisation(end);
    assert!(busy.len() == 16 && busy.iter().all(|u| *u > 0.9), "{busy:?}");
    assert!(stats.channel_utilisation(end).iter().all(|u| (0.3..0.45).contains(u)));
}

/// With share w of time a chip is programming, a read that arrives waits w t/2 on average at low load.
#[test]
fn a_read_waits_for_the_program_that_it_meets() {
    let mut c = config(BufferKind::Capacitor);
    c.timing.channel_mb_s = 1e6;
    c.link.mb_s = 1e6;
    c.link.overhead_us = 0.0;
    (c.ftl.spare_factor, c.ftl.checkpoint_every) = (0.5, Some(u64::MAX));
    let mut d = Drive::new(&c, Contents::Spare).unwrap();
    let pages = d.capacity() / PAGE;
    let page = vec![1; PAGE as usize];
    let mut now = 0;
    for i in 0..pages {
        now = d.write(now + 30_000, i * PAGE, &page, false).unwrap().at;
    }
    let (mut waited, mut reads, mut busy, mut time) = (0, 0, 0, 0);
    for seed in 0..12 {
        // From the filled drive on: pages are written in order, so there is no collection.
        let mut d = d.fork();
        let (mut rng, mut now, mut next) = (Rng::from_seed(seed), 0, 0);
        for _ in 0..30_000 {
            now += (-100_000.0 * (1.0 - rng.f64()).ln()) as u64;
            if rng.one_in(2) {
                let end = d.read(now, rng.below(pages) * PAGE, PAGE).unwrap();
                // Not those that the buffer answers.
                if end >= now + 25_000 {
                    waited += end - now - 25_000 - 10;
                    reads += 1;
                }
            } else {
                d.write(now, next * PAGE, &page, false).unwrap();
                next += 1;
            }
        }
        let stats = d.stats();
        assert_eq!((stats.ftl.gc_copies, stats.nand.erases), (0, 0), "only programs are met");
        busy += stats.nand.programs * 200_000;
        time += now * 16;
    }
    let w = busy as f64 / time as f64;
    let (mean, expected) = (waited as f64 / reads as f64, w * 100_000.0);
    println!("programming {w:.3} of the time: waits {mean:.0} ns, expected {expected:.0}");
    assert!((mean / expected - 1.0).abs() < 0.05, "a read waits {mean:.0} ns, expected {expected:.0}");
}

fn model(kind: BufferKind) -> Arc<FlashModel> {
    FlashModel::new(&config(kind), Contents::Full).unwrap()
}

fn filled(tag: u64, pages: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(pages * PAGE as usize);
    buf.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&tag.to_le_bytes()));
    buf
}

#[test]
fn requests_complete_in_virtual_time() {
    let outcome = run(Config::default(), || {
        let dev = model(BufferKind::None);
        let data = filled(7, 1);
        // SAFETY: `data` outlives the ticket, which is waited for.
        let write = |i: u64| unsafe { Io::write(i * PAGE, data.as_ptr(), PAGE as usize, false) };
        let mut ticket = dev.submit((0..16).map(write).collect());
        assert!(!ticket.try_done(0));
        (0..16).for_each(|i| ticket.wait(i).unwrap());
        let took = varve_rt::now().as_nanos();
        let mut back = filled(0, 16);
        read_at(&*dev, 0, &mut back).unwrap();
        assert!(back.chunks_exact(8).all(|c| c == 7_u64.to_le_bytes()));
        assert!(read_at(&*dev, dev.len(), &mut back).is_err());
        took
    });
    // Sixteen pages on sixteen chips: the link and the channels hand them out one after the other.
    let took = outcome.unwrap();
    assert!((240_000..=500_000).contains(&took), "{took}");
}

#[test]
fn on_threads_requests_are_paced() {
    let mut c = config(BufferKind::None);
    c.timing.program_us = vec![5000.0];
    let dev = FlashModel::new(&c, Contents::Full).unwrap();
    let (data, mut back) = (filled(9, 4), filled(0, 4));
    let started = varve_rt::now();
    write_at(&*dev, 4 * PAGE, &data, true).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(5), "four chips program for 5 ms of real time");
    read_at(&*dev, 4 * PAGE, &mut back).unwrap();
    assert_eq!(back[..], data[..]);
    flush(&*dev).unwrap();
    let stats = dev.stats();
    assert_eq!((stats.write.count, stats.read.count, stats.flush.count, stats.durable_writes), (1, 1, 1, 1));
    assert!(dev.info().kind == DeviceKind::Ssd && dev.info().capabilities.trim);
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let hash = |seed| {
        let outcome = run(Config { seed, chaos: true, ..Config::default() }, move || {
            load(&model(BufferKind::Volatile), 300, seed)
        });
        let hash = outcome.hash;
        (hash, outcome.unwrap())
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1).0, hash(2).0);
}

/// Four threads write, read and flush their own pages.
fn load(dev: &Arc<FlashModel>, requests: u64, seed: u64) -> u64 {
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let dev = dev.clone();
            varve_rt::spawn("client", move || {
                let mut rng = Rng::from_seed(seed * 4 + t);
                let mut buf = filled(0, 1);
                for i in 0..requests {
                    let at = (rng.below(200) * 4 + t) * PAGE;
                    match rng.below(10) {
                        0 => flush(&*dev).unwrap(),
                        1..4 => read_at(&*dev, at, &mut buf).unwrap(),
                        _ => write_at(&*dev, at, &filled(i + 1, 1), false).unwrap(),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    varve_rt::now().as_nanos()
}

#[test]
fn a_fork_starts_where_the_original_was_and_goes_its_own_way() {
    run(Config::default(), || {
        let dev = model(BufferKind::Volatile);
        load(&dev, 100, 3);
        write_at(&*dev, 0, &filled(1, 1), true).unwrap();
        let (mut a, mut b) = (filled(0, 1), filled(0, 1));
        let fork = dev.fork();
        // What the original still keeps of overwritten pages, the fork has given up.
        let bytes = fork.flash_stats().resident_bytes;
        assert!(bytes <= dev.flash_stats().resident_bytes);
        write_at(&*dev, 0, &filled(2, 1), true).unwrap();
        write_at(&*fork, 0, &filled(3, 1), true).unwrap();
        read_at(&*dev, 0, &mut a).unwrap();
        read_at(&*fork, 0, &mut b).unwrap();
        assert_eq!((a[0], b[0]), (2, 3));
        assert_eq!(fork.flash_stats().ftl.host_writes, 1, "totals of its own");
        assert!(fork.flash_stats().resident_bytes >= bytes);
        dev.verify();
        fork.verify();
    })
    .unwrap();
}

/// Bytes that nobody can ask for again, whatever happens, are not kept.
#[test]
fn overwritten_pages_take_no_memory() {
    let mut d = Drive::new(&config(BufferKind::Volatile), Contents::Full).unwrap();
    let mut at = 0;
    for i in 0..200u64 {
        at = d.write(at, i % 4 * PAGE, &vec![i as u8; PAGE as usize], true).unwrap().at;
    }
    d.advance(at);
    let kept = d.stats().resident_bytes;
    assert!(kept < 8 * PAGE + 200 * 64, "{kept} bytes for four pages, and the spare areas of two hundred");
    let mut page = vec![0; PAGE as usize];
    d.peek(3 * PAGE, &mut page).unwrap();
    assert!(page.iter().all(|b| *b == 199));
}

#[test]
fn the_length_may_shrink_and_grow_within_the_capacity() {
    run(Config::default(), || {
        let dev = model(BufferKind::Volatile);
        let capacity = dev.len();
        assert!(matches!(dev.set_len(capacity + 1), Err(DeviceError::NoSpace { .. })));
        write_at(&*dev, 0, &filled(5, 8), false).unwrap();
        dev.set_len(3 * PAGE).unwrap();
        assert_eq!(dev.len(), 3 * PAGE);
        let mut buf = filled(1, 1);
        assert!(matches!(read_at(&*dev, 3 * PAGE, &mut buf), Err(DeviceError::OutOfRange { .. })));
        dev.set_len(8 * PAGE).unwrap();
        read_at(&*dev, 3 * PAGE, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 0), "what was cut off reads as zeros");
        dev.power_cut(1);
        dev.restore_power();
        read_at(&*dev, 3 * PAGE, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 0), "after a power cut too");
        read_at(&*dev, 2 * PAGE, &mut buf).unwrap();
    })
    .unwrap();
}

/// Clients of a machine whose power fails at a chosen operation; what they were told is durable is there afterwards.
#[test]
fn power_fails_under_load() {
    let kinds = [BufferKind::None, BufferKind::Volatile, BufferKind::Capacitor];
    for seed in 0..24 {
        let kind = kinds[seed as usize % 3];
        run(Config { seed, ..Config::default() }, move || {
            let mut c = config(kind);
            c.geometry.blocks_per_plane = 12;
            if seed % 2 == 0 {
                c.ftl.allocation = Allocation::PerChip;
            }
            let flash = FlashModel::new(&c, Contents::Full).unwrap();
            let supply = PowerSupply::new();
            supply.attach(flash.clone());
            let dev = Faulty::powered(flash.clone(), FaultPlan::new(seed), supply.clone());
            let safe: Arc<Mutex<Vec<(u64, u64)>>> = Arc::new(Mutex::new(vec![(0, 0); 64]));
            for round in 0..4_u64 {
                supply.cut_at(supply.ops() + 50 + 97 * (seed % 5), seed + round);
                let domain = Domain::new("machine");
                let off = supply.clone();
                for t in 0..4_u64 {
                    let (dev, safe) = (dev.clone(), safe.clone());
                    domain.spawn("client", move || client(&*dev, &safe, t, seed * 100 + round));
                }
                off.off().wait();
                domain.power_cut();
                supply.restore();
                flash.verify();
                let mut page = filled(0, 1);
                for (i, (durable, newest)) in safe.lock().iter_mut().enumerate() {
                    read_at(&*dev, i as u64 * PAGE, &mut page).unwrap();
                    let found = u64::from_le_bytes(page[..8].try_into().unwrap());
                    assert!(page.chunks_exact(8).all(|c| c == &page[..8]), "page {i} is whole");
                    assert!(
                        (*durable..=*newest).contains(&found),
                        "seed {seed}, {kind:?}: page {i} has {found}, not {durable}..={newest}"
                    );
                    (*durable, *newest) = (found, found);
                }
            }
        })
        .unwrap();
    }
}

/// Writes its pages until the power fails. The table holds the newest durable and the newest tried version of each.
fn client(dev: &dyn Device, safe: &Mutex<Vec<(u64, u64)>>, t: u64, seed: u64) {
    let mut rng = Rng::from_seed(seed * 4 + t);
    loop {
        let page = rng.below(16) * 4 + t;
        let version = {
            let mut safe = safe.lock();
            safe[page as usize].1 += 1;
            safe[page as usize].1
        };
        let durable = rng.one_in(3);
        if write_at(dev, page * PAGE, &filled(version, 1), durable).is_err() {
            return;
        }
        let covered: Vec<(u64, u64)> = if durable {
            vec![(page, version)]
        } else if rng.one_in(4) {
            // Everything this client has written is complete, so a flush covers it.
            let mine = {
                let safe = safe.lock();
                (0..16).map(|i| (i * 4 + t, safe[(i * 4 + t) as usize].1)).collect()
            };
            if flush(dev).is_err() {
                return;
            }
            mine
        } else {
            Vec::new()
        };
        let mut safe = safe.lock();
        covered.into_iter().for_each(|(p, v)| safe[p as usize].0 = safe[p as usize].0.max(v));
    }
}

/// A durable write is told when its program has ended, however often that was suspended; so is a flush.
#[test]
fn what_rests_on_a_suspended_program_is_told_when_it_has_ended() {
    let wait = |reads: u32, flush: bool| {
        run(Config::default(), move || {
            let mut c = config(BufferKind::Volatile);
            (c.geometry.channels, c.geometry.chips_per_channel) = (1, 1);
            c.timing.program_us = vec![2000.0];
            c.suspend = Some(varve_models::flash::Suspend { program_us: 50.0, erase_us: 50.0, most: 10 });
            let device = FlashModel::new(&c, Contents::Spare).unwrap();
            let (page, mut into) = (filled(0, 1), filled(1, 1));
            write_at(&*device, PAGE, &page, true).unwrap();
            let began = varve_rt::now();
            // SAFETY: `page` outlives the tickets.
            let write = unsafe { Io::write(0, page.as_ptr(), PAGE as usize, !flush) };
            let mut tickets = vec![device.submit(vec![write])];
            if flush {
                tickets.push(device.submit(vec![Io::flush()]));
            }
            varve_rt::sleep(Duration::from_micros(200));
            for _ in 0..reads {
                read_at(&*device, PAGE, &mut into).unwrap();
            }
            tickets.iter_mut().for_each(|t| t.wait(0).unwrap());
            us((varve_rt::now() - began).as_nanos() as u64)
        })
        .result
        .unwrap()
    };
    for flush in [false, true] {
        let alone = wait(0, flush);
        // 50 us until it is suspended, 25 us sensing, 20 us on the channel; three times.
        assert_eq!(wait(3, flush), alone + 3 * 95, "flush: {flush}");
    }
}

/// What the link takes for each request bounds how many there are.
#[test]
fn commands_bound_the_requests_per_second() {
    let mut c = config(BufferKind::Volatile);
    c.link.command_us = 3.5;
    let mut d = Drive::new(&c, Contents::Spare).unwrap();
    let last = (0..1000).map(|i| d.read(0, i * PAGE, PAGE).unwrap()).max().unwrap();
    assert_eq!(us(last + 1000) / 10, (10 + 13_500) / 10, "13.5 us each: pages never written need no sensing");
}

/// Two streams, a fifth of the pages with four fifths of the writes: kept apart they cost less.
#[test]
fn streams_that_are_kept_apart_cost_less() {
    let amplification = |streams| {
        let mut config = FlashConfig::one_plane(96, 32);
        (config.ftl.streams, config.ftl.hinted_streams) = (streams, 2);
        let drive = FlashModel::new(&config, Contents::Spare).unwrap();
        let (pages, page) = (drive.len() / 4096, AlignedBuf::new(4096));
        let write = |n: u64| {
            let stream = if n < pages / 5 { Stream::of_keyspace(1) } else { Stream::of_keyspace(2) };
            // SAFETY: the buffer outlives the request, which is waited for.
            drive.run(unsafe { Io::write(n * 4096, page.as_ptr(), 4096, true) }.in_stream(stream)).unwrap();
        };
        (0..pages).for_each(write);
        let mut rng = varve_rt::Rng::from_seed(7);
        let mut draw = || if rng.f64() < 0.8 { rng.below(pages / 5) } else { pages / 5 + rng.below(pages - pages / 5) };
        (0..2 * pages).for_each(|_| write(draw()));
        drive.reset_stats();
        (0..2 * pages).for_each(|_| write(draw()));
        drive.verify();
        (drive.flash_stats().ftl.write_amplification(), drive.streams())
    };
    let in_simulation = move || (amplification(Streams::Mixed), amplification(Streams::Hinted));
    let ((mixed, none), (apart, two)) =
        varve_rt::sim::run(varve_rt::sim::Config::default(), in_simulation).result.unwrap();
    assert!(none.is_empty());
    assert_eq!(two, [Stream::of_keyspace(1), Stream::of_keyspace(2)]);
    assert!(apart < 0.75 * mixed, "{apart} apart, {mixed} mixed");
}
