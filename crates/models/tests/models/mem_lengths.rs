//! Lengths of a memory device, and processes that end while they change them.

use std::time::Duration;
use varve_device::Device;
use varve_models::{MemDevice, MemOptions, Powered};
use varve_rt::sim::{self, Domain};

/// What a process had asked for that was killed is forgotten: a power cut much later does not bring it back.
#[test]
fn a_length_that_a_killed_process_had_asked_for_is_not_set_by_a_later_power_cut() {
    for seed in 0..16 {
        let lengths = sim::run(sim::Config { seed, ..sim::Config::default() }, move || {
            let device = MemDevice::with(0, MemOptions { seed, ..MemOptions::default() });
            let domain = Domain::new("worker");
            let killed = device.clone();
            let job = domain.spawn("shrinks", move || killed.set_len(1 << 20));
            varve_rt::sleep(Duration::from_micros(1));
            domain.power_cut();
            let ended = job.join();
            device.set_len(4 << 20).unwrap();
            device.power_cut(seed);
            device.restore_power();
            (ended.is_err(), device.len())
        });
        assert_eq!(lengths.result.unwrap(), (true, 4 << 20), "seed {seed}");
    }
}
