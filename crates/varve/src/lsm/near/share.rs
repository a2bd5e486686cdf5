//! What share of a merge the host takes. Pure.
//!
//! TStore goes by time: each side's bandwidth in its last sub-tasks, smoothed. DStore goes by resources: cores,
//! frequency and how idle they are, within what the memories hold. (Formulas: the project's specification, section 3;
//! the papers of 2019 and 2018 are not at hand.)

use std::time::Duration;

/// Weight of the newest sub-task in the smoothed bandwidth. Assumed.
const NEWEST: f64 = 0.3;

/// How the share is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareRule {
    /// Half of the bytes.
    Half,
    /// By bandwidth.
    Time,
    /// By cores, frequency and idleness.
    Resources,
    /// The worker does it all.
    Near,
}

/// What a side has to work with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Processor cores.
    pub cores: f64,
    /// Their frequency, GHz.
    pub ghz: f64,
    /// Share of them that is in use, 0 to 1.
    pub cpu: f64,
    /// Share of the memory that is in use, 0 to 1.
    pub memory: f64,
    /// Bytes of memory that a sub-task may take.
    pub free: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load { cores: 1.0, ghz: 1.0, cpu: 0.0, memory: 0.0, free: u64::MAX }
    }
}

impl Load {
    fn power(&self) -> f64 {
        let power = self.cores.max(0.0) * self.ghz.max(0.0) * (1.0 - self.cpu.clamp(0.0, 1.0));
        if power.is_finite() { power } else { 0.0 }
    }
}

/// A smoothed bandwidth, bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bandwidth(Option<f64>);

impl Bandwidth {
    /// A sub-task read and wrote so many bytes in this time.
    pub(crate) fn note(&mut self, bytes: u64, time: Duration) {
        if time.is_zero() {
            return;
        }
        let new = bytes as f64 / time.as_secs_f64();
        self.0 = Some(self.0.map_or(new, |old| NEWEST * new + (1.0 - NEWEST) * old));
    }

    /// None: there was no sub-task yet.
    pub(crate) fn get(self) -> Option<f64> {
        self.0
    }
}

/// What is known of both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    pub host: Bandwidth,
    pub device: Bandwidth,
}

impl Shares {
    /// The host's share, 0 to 1, of a merge of so many bytes. A side that was not measured yet counts as the other one.
    pub(crate) fn host_share(&self, rule: ShareRule, bytes: u64, host: &Load, device: &Load) -> f64 {
        let share = match rule {
            ShareRule::Half => 0.5,
            ShareRule::Near => 0.0,
            ShareRule::Time => match (self.host.get(), self.device.get()) {
                (Some(host), Some(device)) if host + device > 0.0 => host / (host + device),
                _ => 0.5,
            },
            ShareRule::Resources => {
                let (host_power, device_power) = (host.power(), device.power());
                let all = host_power + device_power;
                let share = if all > 0.0 { host_power / all } else { 0.5 };
                let room = |load: &Load| load.free as f64 / bytes.max(1) as f64;
                // The host yields last: what fits neither is its own.
                share.min(room(host)).max(1.0 - room(device))
            }
        };
        share.clamp(0.0, 1.0)
    }

    /// Whether the device takes a merge that cannot be cut: it is faster, or nobody knows.
    pub(crate) fn device_is_faster(&self) -> bool {
        match (self.host.get(), self.device.get()) {
            (Some(host), Some(device)) => device >= host,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_finds_the_balance_of_the_published_bandwidths() {
        let mut shares = Shares::default();
        let load = Load::default();
        assert_eq!(shares.host_share(ShareRule::Time, 1, &load, &load), 0.5, "nothing is known");
        for _ in 0..20 {
            shares.host.note(2_090_000, Duration::from_secs(1));
            shares.device.note(25_680_000, Duration::from_secs(1));
        }
        let linear = shares.host_share(ShareRule::Time, 1, &load, &load);
        assert!((linear - 0.0753).abs() < 0.001, "{linear}");
        assert!(shares.device_is_faster());
        // A side that slows down loses its share within some sub-tasks.
        (0..10).for_each(|_| shares.device.note(2_090_000, Duration::from_secs(1)));
        assert!((shares.host_share(ShareRule::Time, 1, &load, &load) - 0.5).abs() < 0.1);
        shares.host.note(7, Duration::ZERO);
        assert_eq!(shares.host_share(ShareRule::Half, 1, &load, &load), 0.5);
        assert_eq!(shares.host_share(ShareRule::Near, 1, &load, &load), 0.0);
    }

    #[test]
    fn resources_count_cores_frequency_idleness_and_memory() {
        let shares = Shares::default();
        let host = Load { cores: 2.0, ghz: 3.2, cpu: 0.5, ..Load::default() };
        let device = Load { cores: 4.0, ghz: 1.6, cpu: 0.5, ..Load::default() };
        let of = |host: &Load, device: &Load| shares.host_share(ShareRule::Resources, 1000, host, device);
        assert_eq!(of(&host, &device), 0.5);
        assert_eq!(of(&Load { cpu: 1.0, ..host }, &device), 0.0, "a host that is busy gives all away");
        assert_eq!(of(&Load { cpu: 1.0, ..host }, &Load { cpu: 1.0, ..device }), 0.5);
        assert_eq!(of(&host, &Load { free: 250, ..device }), 0.75, "what the device has no memory for stays here");
        assert_eq!(of(&Load { free: 100, ..host }, &device), 0.1);
        assert_eq!(of(&Load { ghz: f64::INFINITY, ..host }, &device), 0.0, "what cannot be is not believed");
    }
}
