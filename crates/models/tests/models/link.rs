//! Links: times of messages, pipes, devices behind a link.

use std::sync::Arc;
use std::time::Duration;
use varve_device::*;
use varve_models::*;
use varve_rt::sim::{Config, run};
use varve_rt::{now, spawn};

fn link() -> Arc<LinkModel> {
    LinkModel::new(LinkConfig { latency_us: 50.0, mb_s: 100.0, message_us: 0.0, far_message_us: None })
}

#[test]
fn messages_share_a_direction_and_overlap_in_latency() {
    run(Config::default(), || {
        let link = link();
        let begun = now();
        let ms = |n: u64| begun + Duration::from_micros(n);
        assert_eq!(link.send(Direction::Down, 100_000), ms(1050));
        assert_eq!(link.send(Direction::Down, 100_000), ms(2050));
        assert_eq!(link.send(Direction::Up, 100_000), ms(1050), "the other direction is free");
        link.transfer(Direction::Up, 50_000);
        assert_eq!(begun.elapsed(), Duration::from_micros(1550));
        assert_eq!(link.sent(Direction::Up), (150_000, Duration::from_micros(1500)));
    })
    .unwrap();
}

#[test]
fn a_pipe_delivers_in_order_and_in_time() {
    run(Config::default(), || {
        let (sender, receiver) = link().pipe::<u32>(Direction::Up, 4);
        let begun = now();
        let t = spawn("sender", move || (0..5).for_each(|i| sender.send(i, 10_000).unwrap()));
        for i in 0..5 {
            assert_eq!(receiver.recv(), Some(i));
            assert_eq!(begun.elapsed(), Duration::from_micros(50 + 100 * (u64::from(i) + 1)));
        }
        assert_eq!(receiver.recv(), None);
        t.join().unwrap();
        let (sender, receiver) = link().pipe::<u32>(Direction::Up, 1);
        drop(receiver);
        assert_eq!(sender.send(7, 1), Err(7));
    })
    .unwrap();
}

/// Each message takes processor time of who sends it and of who receives it, each on its own host.
#[test]
fn messages_take_processor_time_at_both_ends() {
    let config = Config { cores: 1, ..Config::default() };
    let outcome = run(config.clone(), move || {
        let link =
            LinkModel::new(LinkConfig { latency_us: 50.0, mb_s: 100.0, message_us: 7.0, far_message_us: Some(9.0) });
        let near = varve_rt::sim::Host::new(varve_rt::sim::HostConfig { name: "near".into(), ..config.host() });
        let (sender, receiver) = link.pipe::<u32>(Direction::Down, 100);
        let got = near.spawn("receiver", move || std::iter::from_fn(|| receiver.recv()).count());
        (0..10).for_each(|i| sender.send(i, 1000).unwrap());
        drop(sender);
        assert_eq!((got.join().unwrap(), link.messages(Direction::Down)), (10, 10));
        let begun = now();
        let dev = Linked::new(Profile::load("gd2l-ssd").unwrap().build(1, 1 << 20).unwrap(), link);
        write_at(&*dev, 4096, &[5; 4096], false).unwrap();
        assert_eq!(
            begun.elapsed(),
            Duration::from_nanos(50_000 + 41_600 + 270_000 + 50_000 + 640 + 2 * (7_000 + 9_000))
        );
    });
    let used: Vec<_> = outcome.hosts.iter().map(|h| h.cpu.core_ns).collect();
    assert_eq!(used, [12 * 7_000, 10 * 9_000], "ten messages and two, and ten received");
}

#[test]
fn links_that_come_with_the_program_can_be_used() {
    for name in LinkConfig::names() {
        assert_eq!(LinkConfig::named(name).unwrap().check(), Ok(()), "{name}");
    }
    assert_eq!(LinkConfig::named("carrier pigeon"), None);
}

#[test]
fn a_device_behind_a_link_takes_the_way_there_and_back() {
    let check = || {
        let inner = Profile::load("gd2l-ssd").unwrap().build(1, 1 << 20).unwrap();
        let dev = Linked::new(inner, link());
        let begun = now();
        write_at(&*dev, 4096, &[5; 4096], false).unwrap();
        // Command and data down, 0.27 ms of writing, the answer up: bytes at 100 MB/s, 50 us each way.
        let expected = Duration::from_nanos(50_000 + 41_600 + 270_000 + 50_000 + 640);
        let took = begun.elapsed();
        let mut back = [0; 4096];
        read_at(&*dev, 4096, &mut back).unwrap();
        assert_eq!(back, [5; 4096]);
        (took, expected)
    };
    let (took, expected) = run(Config::default(), check).unwrap();
    assert_eq!(took, expected);
    let (took, expected) = check();
    assert!(took >= expected, "in real time as well");
}
