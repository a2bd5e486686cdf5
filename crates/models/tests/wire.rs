//! A worker and its hosts over a modelled link: devices, failures of either side, and what is no message.

use std::sync::Arc;
use std::time::Duration;
use varve_device::{Device, DeviceError, Io, flush, read_at, write_at};
use varve_models::{Direction, LinkConfig, LinkModel, MemDevice, Port, PowerSupply};
use varve_rt::sim::{self, Config, Domain, Host, HostConfig};
use varve_rt::{sleep, spawn, spawn_daemon};
use varve_wire::metrics::{Metrics, READ_BYTES, REFUSED, WRITTEN_BYTES};
use varve_wire::*;

const MS: Duration = Duration::from_millis(1);

fn port() -> Arc<Port> {
    let link = LinkConfig { latency_us: 50.0, mb_s: 100.0, message_us: 5.0 };
    Port::new(LinkModel::new(link), "remote:near")
}

fn memory(supply: &PowerSupply) -> Arc<MemDevice> {
    let device = MemDevice::new(1 << 20);
    supply.attach(device.clone());
    device
}

/// Serves what connects, each connection on a thread of its own.
fn serve(worker: &Arc<Worker>, port: &Port) {
    let (worker, comes) = (worker.clone(), port.listen());
    spawn_daemon("accepts", move || {
        while let Ok(connection) = comes.recv() {
            let worker = worker.clone();
            spawn_daemon("serves", move || worker.serve(connection));
        }
    });
}

fn start(device: Arc<dyn Device>, port: &Port) -> Arc<Worker> {
    let worker = Worker::new(device, None, Limits::default()).unwrap();
    serve(&worker, port);
    worker
}

fn patient(seconds: u64) -> SessionOptions {
    let patience = Duration::from_secs(seconds);
    SessionOptions { answer: Duration::from_secs(2), patience, ..SessionOptions::default() }
}

/// What is written is read, cut in pieces or not, by several threads; and each side computes on its own host.
#[test]
fn a_device_at_the_other_end() {
    let outcome = sim::run(Config { seed: 1, cores: 2, ..Config::default() }, || {
        let (port, supply) = (port(), PowerSupply::new());
        let here = Config { cores: 1, ..Config::default() }.host();
        let near = Host::new(HostConfig { name: "near".into(), ..here });
        let worker = {
            let (port, device) = (port.clone(), memory(&supply));
            near.spawn("starts", move || start(device, &port)).join().unwrap()
        };
        let session = Session::open(port.clone(), patient(1)).unwrap();
        let device = RemoteDevice::new(session);
        assert_eq!((device.len(), &*device.info().name), (1 << 20, "remote:near"));
        device.set_len(8 << 20).unwrap();
        assert_eq!(device.len(), 8 << 20);
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let device = device.clone();
                spawn(format!("host {n}"), move || {
                    let mine: Vec<u8> = (0..(3 << 19)).map(|i| (i * 7 + n) as u8).collect();
                    write_at(&*device, n << 21, &mine, n % 2 == 0).unwrap();
                    let mut back = vec![0; mine.len()];
                    read_at(&*device, n << 21, &mut back).unwrap();
                    assert!(mine == back, "host {n}");
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        flush(&*device).unwrap();
        device.run(Io::trim(0, 4096)).unwrap();
        let past = write_at(&*device, 8 << 20, &[0; 4096], false);
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })), "{past:?}");
        let stats = device.stats();
        assert_eq!((stats.write.bytes, stats.read.bytes, stats.flush.count), (6 << 20, 6 << 20, 1));
        let reply = device.session().request(Op::Metrics, &[], None).unwrap();
        let told = Metrics::decode(reply.body()).unwrap();
        assert_eq!(
            (told.get(WRITTEN_BYTES), told.get(READ_BYTES), told.get(REFUSED)),
            (Some(6 << 20), Some(6 << 20), Some(0))
        );
        assert!(port.link().messages(Direction::Up) > 20);
        worker.stop();
    });
    let used: Vec<_> = outcome.hosts.iter().map(|h| h.cpu.core_ns).collect();
    assert!(used[0] > 0 && used[1] > 0, "{used:?}");
    outcome.unwrap();
}

/// The link is cut again and again while hosts write, read and flush: everything is done, nothing is lost.
#[test]
fn a_link_that_is_cut_delays_and_loses_nothing() {
    for seed in 0..12 {
        let config = Config { seed, chaos: seed % 2 == 1, ..Config::default() };
        sim::run(config, move || {
            let (port, supply) = (port(), PowerSupply::new());
            let worker = start(memory(&supply), &port);
            let device = RemoteDevice::new(Session::open(port.clone(), patient(5)).unwrap());
            let threads: Vec<_> = (0..3u64)
                .map(|n| {
                    let device = device.clone();
                    spawn(format!("host {n}"), move || {
                        for round in 0..60u64 {
                            let mine = vec![(round * 3 + n) as u8; 8192];
                            write_at(&*device, n * 8192, &mine, false).unwrap();
                            if round % 8 == 0 {
                                flush(&*device).unwrap();
                            }
                            let mut back = vec![0; 8192];
                            read_at(&*device, n * 8192, &mut back).unwrap();
                            assert!(back == mine, "host {n}, round {round}");
                        }
                    })
                })
                .collect();
            for _ in 0..10 {
                sleep(MS * (1 + varve_rt::rng().below(4) as u32));
                port.cut();
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert!(device.session().connections() > 2 && device.broken().is_none());
            worker.stop();
        })
        .unwrap();
    }
}

/// The worker's machine loses power: what was flushed is there; what was not breaks the device, and only then.
#[test]
fn a_worker_that_starts_anew() {
    for seed in 0..20 {
        let unflushed = seed % 2 == 0;
        sim::run(Config { seed, ..Config::default() }, move || {
            let (port, supply) = (port(), PowerSupply::new());
            let medium = memory(&supply);
            let begin = |name: &str| {
                let (domain, port, device) = (Domain::new(name), port.clone(), medium.clone());
                let started = domain.spawn("starts", move || drop(start(device, &port)));
                started.join().unwrap();
                domain
            };
            let first = begin("first");
            let device = RemoteDevice::new(Session::open(port.clone(), patient(5)).unwrap());
            write_at(&*device, 0, &[1; 4096], false).unwrap();
            flush(&*device).unwrap();
            if unflushed {
                write_at(&*device, 4096, &[2; 4096], false).unwrap();
            } else {
                write_at(&*device, 4096, &[2; 4096], true).unwrap();
            }
            supply.cut(seed);
            first.power_cut();
            port.cut();
            sleep(10 * MS);
            supply.restore();
            let _second = begin("second");
            let mut back = [0; 4096];
            let read = read_at(&*device, 0, &mut back);
            if unflushed {
                for result in [read, flush(&*device), write_at(&*device, 0, &[3; 4096], true)] {
                    let error = result.unwrap_err().to_string();
                    assert!(error.contains("started anew") && error.contains("1 writes"), "{error}");
                }
                assert!(device.broken().is_some());
                // Opened again, it is sound.
                drop(device);
                sleep(10 * MS);
                let again = RemoteDevice::new(Session::open(port.clone(), patient(5)).unwrap());
                read_at(&*again, 0, &mut back).unwrap();
                assert_eq!(back, [1; 4096]);
            } else {
                read.unwrap();
                assert_eq!(back, [1; 4096]);
                read_at(&*device, 4096, &mut back).unwrap();
                assert_eq!(back, [2; 4096]);
                flush(&*device).unwrap();
            }
        })
        .unwrap();
    }
}
