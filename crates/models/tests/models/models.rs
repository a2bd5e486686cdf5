//! Modelled disks and fixed-time devices in virtual time: figures, scheduling, power cuts; the same code on OS threads.

use std::sync::Arc;
use std::time::Duration;
use varve_device::*;
use varve_models::*;
use varve_rt::sim::{Config, run};
use varve_rt::{Mutex, Rng, now, spawn};

fn config(seed: u64) -> Config {
    Config { seed, ..Config::default() }
}

fn timing_only(profile: &Profile, len: u64) -> Arc<dyn Modelled> {
    profile.build_model(Build { len, keep: false, ..Build::default() }).unwrap()
}

fn request(write: bool, offset: u64, buf: &mut [u8]) -> Io {
    // SAFETY: every caller keeps its buffer until the request was waited for.
    unsafe {
        match write {
            true => Io::write(offset, buf.as_ptr(), buf.len(), true),
            false => Io::read(offset, buf.as_mut_ptr(), buf.len()),
        }
    }
}

/// Requests per second of random 4 KB requests with `depth` threads, each with one request in flight.
fn random_iops(profile: &Profile, write: bool, depth: u64, requests: u64) -> f64 {
    let profile = profile.clone();
    run(config(depth), move || {
        let len = profile.capacity();
        let dev = timing_only(&profile, len);
        let started = now();
        let threads: Vec<_> = (0..depth)
            .map(|i| {
                let dev = dev.clone();
                spawn(format!("client {i}"), move || {
                    let (mut rng, mut buf) = (Rng::from_seed(i), AlignedBuf::new(4096));
                    for _ in 0..requests / depth {
                        let offset = rng.below(len / 4096) * 4096;
                        dev.run(request(write, offset, &mut buf)).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        requests as f64 / started.elapsed().as_secs_f64()
    })
    .unwrap()
}

fn close(what: &str, measured: f64, expected: f64, share: f64) {
    assert!((measured / expected - 1.0).abs() <= share, "{what}: {measured}, expected {expected} within {share}");
}

#[test]
fn disks_reach_their_figures() {
    for (name, read, write) in [("disk-15k", 184.0, 169.0), ("disk-7k2", 84.0, 78.0)] {
        let profile = Profile::load(name).unwrap();
        close(name, random_iops(&profile, false, 1, 20_000), read, 0.02);
        close(name, random_iops(&profile, true, 1, 20_000), write, 0.02);
    }
}

#[test]
fn scheduling_shortens_the_way_of_a_deep_queue() {
    let mut profile = Profile::load("disk-15k").unwrap();
    let mut iops = |scheduling| {
        profile.disk.as_mut().unwrap().scheduling = scheduling;
        random_iops(&profile, false, 32, 8_000)
    };
    let [fifo, sstf, elevator, sptf] =
        [Scheduling::Fifo, Scheduling::Sstf, Scheduling::Elevator, Scheduling::Sptf].map(&mut iops);
    // The overhead of a queued command overlaps: 0.1 ms less than alone.
    close("fifo", fifo, 1000.0 / (3.3 + 2.0 + 0.0256), 0.02);
    assert!(sstf > 1.3 * fifo && elevator > 1.3 * fifo, "fifo {fifo}, sstf {sstf}, elevator {elevator}");
    assert!(sptf > 1.15 * sstf, "sstf {sstf}, sptf {sptf}");
}

/// MB/s of sequential requests of 64 KB, `depth` of them submitted at a time.
fn sequential(profile: &Profile, write: bool, durable: bool, depth: usize) -> f64 {
    let profile = profile.clone();
    run(config(1), move || {
        let dev = timing_only(&profile, 1 << 30);
        let mut bufs: Vec<_> = (0..depth).map(|_| AlignedBuf::new(64 << 10)).collect();
        let (started, mut at, total) = (now(), 0, 512 << 20);
        while at < total {
            let mut batch = Vec::new();
            for buf in &mut bufs {
                let mut io = request(write, at, buf);
                if write {
                    io.op = Op::Write { durable };
                }
                batch.push(io);
                at += 64 << 10;
            }
            dev.submit(batch).wait_all().unwrap();
        }
        flush(&*dev).unwrap();
        total as f64 / 1e6 / started.elapsed().as_secs_f64()
    })
    .unwrap()
}

#[test]
fn sequential_requests_stream_where_the_real_disk_does() {
    let mut profile = Profile::load("disk-15k").unwrap();
    close("reads one at a time, with read-ahead", sequential(&profile, false, false, 1), 160.0, 0.02);
    // A write that comes too late for its sector waits a rotation.
    close("writes one at a time", sequential(&profile, true, true, 1), 0.065536 / 4.4096 * 1e3, 0.01);
    profile.disk.as_mut().unwrap().write_cache = 64 << 20;
    close("writes through the cache", sequential(&profile, true, false, 1), 160.0, 0.02);
    profile.disk.as_mut().unwrap().read_ahead = false;
    close("reads without read-ahead", sequential(&profile, false, false, 1), 0.065536 / 4.4096 * 1e3, 0.01);
}

#[test]
fn fixed_times_are_exact() {
    let profile = Profile::load("gd2l-disk").unwrap();
    run(config(1), move || {
        let dev = timing_only(&profile, 1 << 30);
        let mut buf = AlignedBuf::new(4096);
        let started = now();
        dev.run(request(false, 8192, &mut buf)).unwrap();
        assert_eq!(started.elapsed(), Duration::from_micros(7200));
        dev.run(request(true, 0, &mut buf)).unwrap();
        assert_eq!(started.elapsed(), Duration::from_micros(12_160));
        let stats = dev.model_stats();
        assert_eq!((stats.busy, stats.served), (Duration::from_micros(12_160), 2));
        assert!((stats.utilisation(started.elapsed()) - 1.0).abs() < 1e-9);
    })
    .unwrap();
}

#[test]
fn bytes_written_are_read_back_and_contents_are_cloned() {
    let check = || {
        let profile = Profile::load("gd2l-ssd").unwrap();
        let first = profile.build_model(Build { len: 1 << 20, ..Build::default() }).unwrap();
        write_at(&*first, 8192, &[7; 8192], false).unwrap();
        let contents = first.contents();
        write_at(&*first, 8192, &[8; 4096], false).unwrap();
        let second = profile.build_model(Build { len: 1 << 20, contents, ..Build::default() }).unwrap();
        let mut back = [[0; 8192], [0; 8192]];
        read_at(&*first, 8192, &mut back[0]).unwrap();
        read_at(&*second, 8192, &mut back[1]).unwrap();
        assert_eq!(back[0][..4096], [8; 4096]);
        assert_eq!((&back[0][4096..], &back[1]), (&[7; 4096][..], &[7; 8192]));
    };
    check();
    run(config(1), check).unwrap();
}

/// Clients on a disk with a queue, then a power cut: with a cache off nothing that completed is lost, with it on only
/// what no flush covered, sector by sector.
fn cut_under_load(seed: u64, cache: u64) -> u64 {
    run(config(seed), move || {
        let mut profile = Profile::load("disk-15k").unwrap();
        profile.disk.as_mut().unwrap().write_cache = cache;
        let dev = profile.build_model(Build { len: 1 << 30, ..Build::default() }).unwrap();
        const PLACES: usize = 64;
        let (before, after) = (vec![0u64; PLACES], vec![0u64; PLACES]);
        // Of each place: the newest durable tag, and the newest submitted.
        let tags = Arc::new(Mutex::new((before, after)));
        let place = |i: usize| (i as u64 * 7_919 % 4096) * (256 << 10);
        let clients: Vec<_> = (0..4usize)
            .map(|me| {
                let (dev, tags) = (dev.clone(), tags.clone());
                spawn(format!("client {me}"), move || {
                    let mut rng = Rng::from_seed(seed * 10 + me as u64);
                    for tag in 1.. {
                        let i = me + 4 * rng.below(PLACES as u64 / 4) as usize;
                        tags.lock().1[i] = tag;
                        let bytes: Vec<u8> = tag.to_le_bytes().repeat(512);
                        if write_at(&*dev, place(i), &bytes, false).is_err() {
                            return;
                        }
                        if cache == 0 {
                            tags.lock().0[i] = tag;
                        } else if rng.one_in(8) {
                            let mine: Vec<_> = tags.lock().1.iter().copied().enumerate().collect();
                            if flush(&*dev).is_err() {
                                return;
                            }
                            mine.into_iter().filter(|(i, _)| i % 4 == me).for_each(|(i, tag)| tags.lock().0[i] = tag);
                        }
                    }
                })
            })
            .collect();
        varve_rt::sleep(Duration::from_millis(500 + seed * 13));
        let report = dev.power_cut(seed);
        clients.into_iter().for_each(|c| c.join().unwrap());
        assert_eq!(flush(&*dev), Err(DeviceError::PowerLost));
        dev.restore_power();
        let (durable, newest) = tags.lock().clone();
        for i in 0..PLACES {
            let mut back = vec![0; 4096];
            read_at(&*dev, place(i), &mut back).unwrap();
            for sector in back.chunks(512) {
                let tag = u64::from_le_bytes(sector[..8].try_into().unwrap());
                assert!(sector.chunks(8).all(|w| w == tag.to_le_bytes()), "seed {seed}: torn inside a sector");
                assert!((durable[i]..=newest[i]).contains(&tag), "seed {seed}, place {i}: {tag} survived");
            }
        }
        report.lost
    })
    .unwrap()
}

#[test]
fn power_cuts_lose_what_the_cache_held() {
    let lost: u64 = (0..12).map(|seed| cut_under_load(seed, 0)).sum();
    let lost_cached: u64 = (0..12).map(|seed| cut_under_load(seed, 1 << 20)).sum();
    assert!(lost_cached > lost && lost_cached > 100, "{lost} without a cache, {lost_cached} with one");
}

#[test]
fn a_paced_disk_takes_real_time() {
    let mut profile = Profile::load("gd2l-disk").unwrap();
    profile.fixed.as_mut().unwrap().read_random_ms = 2.0;
    let disk = Profile::load("disk-15k").unwrap();
    for profile in [profile, disk] {
        let dev = timing_only(&profile, 1 << 30);
        let started = now();
        let clients: Vec<_> = (0..4u64)
            .map(|i| {
                let dev = dev.clone();
                spawn(format!("client {i}"), move || {
                    let mut buf = AlignedBuf::new(4096);
                    for k in 0..5 {
                        dev.run(request(false, (k * 4 + i) * 40_960_000, &mut buf)).unwrap();
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|c| c.join().unwrap());
        let stats = dev.model_stats();
        assert_eq!(stats.served, 20);
        assert!(started.elapsed() >= stats.busy, "{:?} for {stats:?}", started.elapsed());
    }
}

#[test]
fn runs_repeat_exactly() {
    let once = || {
        run(config(3), || {
            let profile = Profile::load("disk-7k2").unwrap();
            let dev = profile.build(3, 1 << 30).unwrap();
            let mut rng = Rng::from_seed(3);
            for _ in 0..200 {
                write_at(&*dev, rng.below(1 << 18) * 4096, &[1; 4096], rng.one_in(2)).unwrap();
            }
            now().as_nanos()
        })
    };
    let (a, b) = (once(), once());
    assert_eq!((a.hash, a.time), (b.hash, b.time));
}

/// A power supply cuts the power during the n-th operation, which is in flight then: done, undone or in part.
#[test]
fn a_supply_cuts_during_any_operation() {
    let mut torn = 0;
    for (profile, n) in
        ["disk-15k", "samsung-830", "gd2l-ssd", "nand-slc-1gbit"].iter().flat_map(|p| (1..12).map(move |n| (p, n)))
    {
        torn += run(config(n), move || {
            let how = Build { len: 64 << 20, ..Build::default() };
            let model = Profile::load(profile).unwrap().build_model(how).unwrap();
            let supply = PowerSupply::new();
            supply.attach(model.clone());
            let dev = Faulty::powered(model, FaultPlan::new(n), supply.clone());
            supply.cut_at(n, n * 77);
            let (mut durable, mut tried) = (0, 0);
            for tag in 1..20u8 {
                tried = tag;
                match write_at(&*dev, 8192, &[tag; 16384], true) {
                    Ok(()) => durable = tag,
                    Err(e) => {
                        assert_eq!(e, DeviceError::PowerLost);
                        break;
                    }
                }
            }
            assert_eq!(u64::from(tried), n, "the n-th operation is struck");
            supply.restore();
            let mut back = vec![0; 16384];
            read_at(&*dev, 8192, &mut back).unwrap();
            assert!(back.iter().all(|b| *b == durable || *b == tried), "{profile}, {n}: neither old nor new");
            u32::from(back.contains(&durable) && back.contains(&tried))
        })
        .unwrap();
    }
    assert!(torn > 3, "some writes are torn: {torn}");
}
