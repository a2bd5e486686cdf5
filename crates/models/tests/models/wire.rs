//! A worker and its hosts over a modelled link: devices, failures of either side, and what is no message.

use std::sync::Arc;
use std::time::Duration;
use varve_device::{Device, DeviceError, Io, Latched, OpKind, flush, read_at, write_at};
use varve_models::{Direction, Fault, FaultPlan, Faulty, LinkConfig, LinkModel, MemDevice, Port, PowerSupply};
use varve_rt::sim::{self, Config, Domain, Host, HostConfig};
use varve_rt::{sleep, spawn, spawn_daemon};
use varve_wire::metrics::{CONNECTIONS, Metrics, READ_BYTES, REFUSED, WRITTEN_BYTES};
use varve_wire::*;

const MS: Duration = Duration::from_millis(1);

fn port() -> Arc<Port> {
    let link = LinkConfig { latency_us: 50.0, mb_s: 100.0, message_us: 5.0, far_message_us: None };
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
    let worker = Worker::new(Latched::new(device), None, Limits::default()).unwrap();
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

/// An answer: its op, and the refusal if it is one.
type Answer = (u16, Option<Refusal>);

/// What a connection answers to these bytes, and whether it is closed then.
fn said(port: &Arc<Port>, pieces: &[&[u8]]) -> (Vec<Answer>, bool) {
    let connection = port.connect(MS).unwrap();
    pieces.iter().for_each(|piece| connection.send(piece).unwrap());
    let (mut decoder, mut told) = (Decoder::from_worker(), Vec::new());
    let reader = {
        let connection = connection.clone();
        spawn("reads", move || {
            while connection.recv(decoder.buffer()).unwrap() {
                while let Some(frame) = decoder.next_frame().unwrap() {
                    let mut fields = Fields::new(frame.body());
                    let refused = frame.flag & varve_wire::REFUSED != 0;
                    told.push((frame.op, refused.then(|| Refusal::of(fields.u16().unwrap()))));
                }
            }
            told
        })
    };
    sleep(100 * MS);
    let closed = reader.is_finished();
    connection.close();
    port.cut();
    (reader.join().unwrap(), closed)
}

/// Frames that are too long, damaged, of another version, unknown, replayed or before hello: a refusal that says so,
/// and a closed connection; the worker goes on with others. What is only malformed is refused.
#[test]
fn what_is_no_message_is_refused() {
    sim::run(Config { seed: 3, ..Config::default() }, || {
        let (port, supply) = (port(), PowerSupply::new());
        let worker = start(memory(&supply), &port);
        let frame = |op: u16, id: u64, body: &[u8]| encode(op, FROM_HOST, 0, id, &[body]);
        let hello = frame(1, 1, &[&[0][..], &77u64.to_le_bytes()].concat());
        let looker = frame(1, 1, &[&[1][..], &78u64.to_le_bytes()].concat());
        let read = |id| frame(2, id, &[&0u64.to_le_bytes()[..], &4096u32.to_le_bytes()].concat());
        let mut old = frame(11, 2, &[]);
        old[8] = 9;
        let end = old.len() - 4;
        let crc = crc32c::crc32c(&old[..end]);
        old[end..].copy_from_slice(&crc.to_le_bytes());
        let mut damaged = read(2);
        damaged[12] ^= 1;
        let long = [&[2, 0][..], &(MAX_PAYLOAD + 1).to_le_bytes(), &[0, 0]].concat();
        let closing: [(&[&[u8]], &[Answer]); 8] = [
            (&[&long], &[(0, Some(Refusal::Frame))]),
            (&[&hello, &damaged], &[(1, None), (0, Some(Refusal::Frame))]),
            (&[&encode(1, FROM_WORKER, 0, 1, &[])], &[(0, Some(Refusal::Frame))]),
            (&[&hello, &old], &[(1, None), (11, Some(Refusal::Version))]),
            (&[&hello, &frame(999, 2, &[])], &[(1, None), (999, Some(Refusal::UnknownOp))]),
            (&[&hello, &read(2), &read(2)], &[(1, None), (2, Some(Refusal::Replayed)), (2, None)]),
            (&[&read(1)], &[(2, Some(Refusal::NoHello))]),
            (&[&hello, &hello], &[(1, None), (1, Some(Refusal::Replayed))]),
        ];
        for (n, (pieces, expected)) in closing.iter().enumerate() {
            let (mut told, closed) = said(&port, pieces);
            // The request before a replayed one may be answered or not.
            told.retain(|answer| *answer != (2, None));
            let expected: Vec<_> = expected.iter().copied().filter(|answer| *answer != (2, None)).collect();
            assert_eq!((told, closed), (expected, true), "case {n}");
        }
        let going_on: [(&[u8], Refusal); 6] = [
            (&frame(5, 2, &u64::MAX.to_le_bytes()), Refusal::Malformed),
            (&frame(2, 2, &[1, 2, 3]), Refusal::Malformed),
            (&frame(2, 2, &[&0u64.to_le_bytes()[..], &u32::MAX.to_le_bytes()].concat()), Refusal::Malformed),
            (&frame(3, 2, &[0; 9]), Refusal::Malformed),
            (&frame(2, 2, &[&u64::MAX.to_le_bytes()[..], &4096u32.to_le_bytes()].concat()), Refusal::Device),
            (&frame(7, 2, &[0; 64]), Refusal::Unsupported),
        ];
        for (n, (bytes, refusal)) in going_on.iter().enumerate() {
            let op = u16::from_le_bytes([bytes[0], bytes[1]]);
            let (told, closed) = said(&port, &[&hello, bytes, &read(3)]);
            let mut expected = vec![(1, None), (op, Some(*refusal)), (2, None)];
            expected.sort_by_key(|answer| answer.0);
            let mut told = told;
            told.sort_by_key(|answer| (answer.0, answer.1.is_none()));
            expected.sort_by_key(|answer| (answer.0, answer.1.is_none()));
            assert_eq!((told, closed), (expected, false), "case {n}");
        }
        // Another host meanwhile, and somebody who only looks.
        let owner = Session::open(port.clone(), patient(1)).unwrap();
        let other = Session::open(port.clone(), patient(1)).map(drop).unwrap_err();
        assert!(matches!(&other, WireError::Refused { refusal: Refusal::InUse, .. }), "{other}");
        let (told, _) = said_beside(&port, &[&looker, &frame(11, 2, &[]), &read(3)]);
        assert_eq!(told, [(1, None), (11, None), (2, Some(Refusal::InUse))]);
        owner.close();
        sleep(10 * MS);
        drop(Session::open(port.clone(), patient(1)).unwrap());
        worker.stop();
    })
    .unwrap();
}

/// As [`said`], without cutting what others have.
fn said_beside(port: &Arc<Port>, pieces: &[&[u8]]) -> (Vec<Answer>, bool) {
    let connection = port.connect(MS).unwrap();
    let mut decoder = Decoder::from_worker();
    let mut told = Vec::new();
    for piece in pieces {
        connection.send(piece).unwrap();
        assert!(connection.recv(decoder.buffer()).unwrap());
        let frame = decoder.next_frame().unwrap().unwrap();
        let refused = frame.flag & varve_wire::REFUSED != 0;
        told.push((frame.op, refused.then(|| Refusal::of(Fields::new(frame.body()).u16().unwrap()))));
    }
    connection.close();
    (told, false)
}

/// A flush fails once at the worker, and those after it would succeed. Nothing is believed any more: not a flush that
/// was under way beside it, nor one that is asked for again because its answer was lost with the connection, nor
/// whatever comes over the next connection to the same worker. Reads go on.
#[test]
fn after_a_flush_that_failed_a_worker_promises_nothing() {
    for (what, cut) in [("answered", false), ("its answer lost", true)] {
        sim::run(Config { seed: 8, ..Config::default() }, move || {
            let (port, supply) = (port(), PowerSupply::new());
            let slow = FaultPlan::new(1).nth(1, OpKind::Flush, Fault::Delay(20 * MS));
            let plan = slow.nth(1, OpKind::Flush, Fault::Eio);
            let drive = Faulty::powered(memory(&supply), plan, supply.clone());
            let worker = start(drive.clone(), &port);
            let device = RemoteDevice::new(Session::open(port.clone(), patient(5)).unwrap());
            write_at(&*device, 0, &[7; 4096], false).unwrap();
            let flushes = [Duration::ZERO, 5 * MS].map(|after| {
                let device = device.clone();
                spawn("flushes", move || {
                    sleep(after);
                    flush(&*device)
                })
            });
            sleep(10 * MS);
            if cut {
                port.cut();
            }
            for result in flushes.map(|flush| flush.join().unwrap()) {
                let failed = matches!(&result, Err(DeviceError::Io { .. } | DeviceError::Refused { .. }));
                assert!(failed, "{what}: {result:?}");
            }
            device.session().client().close();
            let promises =
                [flush(&*device), write_at(&*device, 0, &[8; 4096], true), device.set_len(2 << 20), flush(&*device)];
            for result in promises {
                let said = result.unwrap_err().to_string();
                assert!(
                    said.contains("failed there before") && said.contains("open the database again"),
                    "{what}: {said}"
                );
            }
            let mut back = vec![0; 4096];
            write_at(&*device, 4096, &[9; 4096], false).unwrap();
            read_at(&*device, 0, &mut back).unwrap();
            assert!(back == [7; 4096], "{what}: a durable write that was refused is not done");
            assert_eq!(drive.counts().eio, 1, "{what}");
            // A worker that is started anew has forgotten it, and is another one: whoever had written is told.
            port.shut();
            worker.stop();
            start(drive.clone(), &port);
            let said = flush(&*device).unwrap_err().to_string();
            assert!(said.contains("started anew") && said.contains("not flushed"), "{what}: {said}");
            drop(device);
            sleep(10 * MS);
            flush(&*RemoteDevice::new(Session::open(port, patient(5)).unwrap())).unwrap();
        })
        .unwrap();
    }
}

/// A worker that takes the connection and never answers: a clear error after the time that was allowed, and the answer
/// that comes too late is dropped.
#[test]
fn a_worker_that_hangs() {
    sim::run(Config { seed: 4, ..Config::default() }, || {
        let port = port();
        let comes = port.listen();
        spawn_daemon("hangs", move || {
            let connection = comes.recv().unwrap();
            let mut bytes = Vec::new();
            while connection.recv(&mut bytes).unwrap() {}
        });
        let began = varve_rt::now();
        let error = Session::open(port.clone(), patient(1)).map(drop).unwrap_err();
        assert!(matches!(error, WireError::Timeout { .. }), "{error}");
        assert_eq!(began.elapsed().as_secs(), 1);
        port.shut();
        let error = Session::open(port.clone(), patient(1)).map(drop).unwrap_err().to_string();
        assert!(error.contains("nobody listens") && error.contains("remote:near"), "{error}");
    })
    .unwrap();
}

/// Connections that say nothing keep no host out, whether they came before it or while it works; those of hosts stay.
#[test]
fn idle_connections_give_way() {
    let outcome = sim::run(Config { seed: 1, cores: 2, ..Config::default() }, || {
        let (port, supply) = (port(), PowerSupply::new());
        let worker = start(memory(&supply), &port);
        let connect = || port.connect(Duration::from_secs(1)).unwrap();
        let mut idle: Vec<_> = (0..40).map(|_| connect()).collect();
        sleep(10 * MS);
        let device = RemoteDevice::new(Session::open(port.clone(), patient(1)).unwrap());
        write_at(&*device, 4096, &[7; 4096], true).unwrap();
        idle.extend((0..40).map(|_| connect()));
        sleep(10 * MS);
        let mut back = [0; 4096];
        read_at(&*device, 4096, &mut back).unwrap();
        assert_eq!((back, device.session().connections()), ([7; 4096], 1), "the host's own stays");
        assert!(worker.metrics().get(CONNECTIONS).unwrap() <= worker.limits().connections as u64);
    });
    outcome.unwrap();
}

/// A worker that is gone is waited for once, however many requests there are, and found again when it is back.
#[test]
fn a_worker_that_is_gone_is_waited_for_once() {
    for hangs in [false, true] {
        sim::run(Config { seed: 6, ..Config::default() }, move || {
            let (port, supply) = (port(), PowerSupply::new());
            let worker = start(memory(&supply), &port);
            let device = RemoteDevice::new(Session::open(port.clone(), patient(8)).unwrap());
            let mut block = [0; 4096];
            read_at(&*device, 0, &mut block).unwrap();
            port.shut();
            if hangs {
                let comes = port.listen();
                spawn_daemon("hangs", move || {
                    let mut all = Vec::new();
                    while let Ok(connection) = comes.recv() {
                        all.push(connection);
                    }
                });
            }
            port.cut();
            let began = varve_rt::now();
            for n in 0..3 {
                let error = read_at(&*device, 0, &mut block).unwrap_err();
                assert!(matches!(error, DeviceError::Lost { .. }), "{error}");
                // Connecting to one that hangs takes its time, at most that of one try.
                let tries = if hangs { ONE_TRY * (n + 1) } else { 10 * MS };
                assert!(began.elapsed() < Duration::from_secs(8) + tries + 10 * MS, "{n}: {:?}", began.elapsed());
            }
            serve(&worker, &port);
            read_at(&*device, 0, &mut block).unwrap();
            worker.stop();
        })
        .unwrap();
    }
}

/// The same over TCP, on OS threads.
#[test]
fn a_device_over_tcp() {
    let listener = tcp::Listener::bind(tcp::address("127.0.0.1:0", false).unwrap(), None).unwrap();
    let at = listener.address().unwrap().to_string();
    let worker = Worker::new(Latched::new(MemDevice::new(1 << 20)), None, Limits::within(8 << 20)).unwrap();
    assert!(worker.limits().memory() <= 8 << 20 || worker.limits().threads == 1);
    let accepts = {
        let (listener, worker) = (listener.clone(), worker.clone());
        spawn("accepts", move || {
            while let Some(incoming) = listener.accept().unwrap() {
                let worker = worker.clone();
                spawn("serves", move || worker.serve(incoming.establish().unwrap()));
            }
        })
    };
    let device = RemoteDevice::new(Session::open(tcp::TcpConnector::new(&at, None).unwrap(), patient(1)).unwrap());
    let threads: Vec<_> = (0..4u8)
        .map(|n| {
            let device = device.clone();
            spawn(format!("host {n}"), move || {
                for round in 0..20 {
                    let mine = vec![n ^ round; 128 << 10];
                    write_at(&*device, u64::from(n) << 18, &mine, round % 3 == 0).unwrap();
                    let mut back = vec![0; 128 << 10];
                    read_at(&*device, u64::from(n) << 18, &mut back).unwrap();
                    assert!(back == mine);
                    // The connection is lost now and then; what is under way is done again.
                    if round % 7 == n {
                        device.session().client().close();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    flush(&*device).unwrap();
    assert!(device.session().connections() > 3);
    listener.close();
    accepts.join().unwrap();
    worker.stop();
    let error = read_at(&*device, 0, &mut [0; 4096]).unwrap_err();
    assert!(matches!(&error, DeviceError::Lost { .. }), "{error}");
    sim::run(Config::default(), move || assert!(tcp::TcpConnector::new(&at, None).unwrap().connect(MS).is_err()))
        .unwrap();
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
                    assert!(error.contains("started anew") && error.contains("not flushed (1)"), "{error}");
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
