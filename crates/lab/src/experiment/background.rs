//! `host.load` and `hosts.near.load`: what else a modelled machine does, by name. What it could not do in time it makes
//! up for. Modelled threads are not interrupted: one that computes keeps its core until it waits or yields.

use super::spec::Host;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use varve_rt::{now, sim};

/// It computes in pieces of this length, and then lets others have the core.
const PIECE: Duration = Duration::from_millis(1);

/// Longest that a cost may be, nanoseconds: an hour.
const MOST_NS: f64 = 3.6e12;

/// One kind of other work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherWork {
    /// The share of all cores that it takes, from 0 to less than 1.
    pub share: f64,
    /// The share of the memory that it takes, from 0 to 1: what decisions of `merge=copro+` are told.
    pub memory: f64,
}

/// By name.
pub type OtherWorks = BTreeMap<String, OtherWork>;

/// Shares of cores and of memory of all of them together.
fn sums(works: &OtherWorks) -> (f64, f64) {
    works.values().fold((0.0, 0.0), |(share, memory), work| (share + work.share, memory + work.memory))
}

/// What is wrong with the costs and other works of the host whose keys stand in `table`: the key, and what is accepted.
pub(super) fn validate(host: &Host, table: &str) -> Result<(), (String, String)> {
    let costs = host.costs.iter().map(|(name, ns)| (format!("costs.{name}"), *ns, MOST_NS, "nanoseconds"));
    let locks = [("lock_handoff_ns", host.lock_handoff_ns), ("lock_data_ns", host.lock_data_ns)];
    let locks = locks.into_iter().filter_map(|(key, ns)| Some((key.to_string(), ns?, MOST_NS, "nanoseconds")));
    let factor = ("cost_factor".to_string(), host.cost_factor, 1e6, "times the profile's costs");
    for (key, value, most, what) in costs.chain(locks).chain([factor]) {
        if !(0.0..=most).contains(&value) {
            return Err((format!("{table}.{key}"), format!("0 to {most} {what} are possible, not {value}")));
        }
    }
    let refuse = |name: &str, what: &str| Err((format!("{table}.load.{name}"), what.to_string()));
    for (name, work) in &host.load {
        if !(0.0..1.0).contains(&work.share) {
            return refuse(&format!("{name}.share"), "0 and more, less than 1 are possible");
        }
        if !(0.0..=1.0).contains(&work.memory) {
            return refuse(&format!("{name}.memory"), "0 to 1 are possible");
        }
    }
    let (share, memory) = sums(&host.load);
    if share >= 1.0 || memory > 1.0 {
        return Err((format!("{table}.load"), "all of it together takes more than there is".into()));
    }
    Ok(())
}

/// Begins the other work of a machine, on the machine `on`; the share of its memory that is in use from now on.
pub(super) fn begin(works: &OtherWorks, on: &sim::Host) -> f64 {
    for (name, work) in works.iter().filter(|(_, work)| work.share > 0.0) {
        let every = PIECE.div_f64(work.share);
        for core in 0..on.cores() {
            // One after the other, so that they do not take all cores at once.
            let first = every.mul_f64(core as f64 / on.cores() as f64);
            on.spawn_daemon(format!("{name} {core}"), move || life(first, every));
        }
    }
    sums(works).1
}

/// Computes a piece after `first`, and then each time that `every` has passed.
fn life(first: Duration, every: Duration) {
    varve_rt::sleep(first);
    let mut due = now();
    while !varve_rt::dying() {
        varve_rt::compute(PIECE);
        sim::settle();
        due += every;
        let left = due - now();
        if left.is_zero() {
            varve_rt::yield_now();
        } else {
            varve_rt::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of a host's two cores that other work and a thread beside it had in two seconds; the thread wants one
    /// core, and works for `works` seconds.
    fn shares(share: f64, works: f64) -> (f64, f64) {
        let load = BTreeMap::from([("other".to_string(), OtherWork { share, memory: 0.0 })]);
        let main = move || {
            let host = sim::Host::current().expect("a simulation has one");
            begin(&load, &host);
            let begun = now();
            let mut own = Duration::ZERO;
            while own.as_secs_f64() < works && now().duration_since(begun) < Duration::from_secs(2) {
                varve_rt::compute(Duration::from_micros(100));
                sim::settle();
                varve_rt::yield_now();
                own += Duration::from_micros(100);
            }
            let left = Duration::from_secs(2).saturating_sub(now().duration_since(begun));
            varve_rt::sleep(left);
            let all = host.core_time().as_secs_f64() / 4.0;
            let own = own.as_secs_f64() / 4.0;
            (all - own, own)
        };
        sim::run(sim::Config { seed: 1, cores: 2, ..sim::Config::default() }, main).unwrap()
    }

    #[test]
    fn other_work_takes_its_share_and_leaves_the_rest() {
        let (other, own) = shares(0.3, 0.0);
        assert!((other - 0.3).abs() < 0.01 && own == 0.0, "{other} and {own}");
        let (other, own) = shares(0.3, 1.9);
        assert!((other - 0.3).abs() < 0.01 && (own - 1.9 / 4.0).abs() < 0.01, "both fit: {other} and {own}");
        // Both want 1.4 times what there is: a core for the thread is not to be had, and it takes turns.
        let (other, own) = shares(0.9, 2.0);
        assert!(other > 0.6 && own > 0.05 && own < 0.4 && other + own < 1.001, "{other} and {own}");
        // What was not done in time is made up for.
        let (other, _) = shares(0.9, 0.2);
        assert!((other - 0.9).abs() < 0.01, "{other}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let key = |share: f64, memory: f64| {
            let load = BTreeMap::from([("web".to_string(), OtherWork { share, memory })]);
            validate(&Host { load, ..Host::default() }, "host").err().map(|(key, _)| key)
        };
        assert_eq!(key(0.9, 1.0), None);
        assert_eq!(key(1.0, 0.0).as_deref(), Some("host.load.web.share"));
        assert_eq!(key(0.5, 1.1).as_deref(), Some("host.load.web.memory"));
        let two = ["a", "b"].map(|name| (name.to_string(), OtherWork { share: 0.6, memory: 0.0 }));
        let host = Host { load: BTreeMap::from(two), ..Host::default() };
        assert_eq!(validate(&host, "hosts.near").unwrap_err().0, "hosts.near.load");
    }
}
