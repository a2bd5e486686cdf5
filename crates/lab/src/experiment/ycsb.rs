//! `[workload.ycsb]` of an experiment. Plain data, the shape of the file.

use crate::adapter::Durability;
use crate::driver::Until;
use crate::ycsb;
use serde::{Deserialize, Serialize};

/// `[workload.ycsb]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ycsb {
    /// `A` to `F`.
    pub letter: ycsb::Letter,
    /// Shares of reads, updates, inserts, scans and read-modify-writes, instead of the letter's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<ycsb::Shares>,
    /// Records loaded.
    pub records: u64,
    /// Requests after which the run ends, of all clients; left out: it ends after `run.seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// Fields of a record.
    pub fields: u32,
    /// Bytes of a field.
    pub field_bytes: u32,
    /// Skew of the zipfian distributions, between 0 and 1.
    pub theta: f64,
    /// Longest scan, records.
    pub max_scan: u32,
    /// Which records are asked for; the workload's own when absent.
    pub distribution: Option<Spread>,
    /// Seed of the loaded records.
    pub load_seed: u64,
    /// Keyspaces beside it that nothing changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedSets>,
}

impl Ycsb {
    /// What is wrong: the key, and what is accepted.
    pub(super) fn validate(&self) -> Result<(), (String, String)> {
        if self.shares.is_some_and(|shares| shares.iter().all(|share| *share == 0)) {
            let what = "all are 0: five numbers are possible, one of them above 0";
            return Err(("workload.ycsb.shares".to_string(), what.to_string()));
        }
        if self.operations == Some(0) {
            return Err(("workload.ycsb.operations".to_string(), "1 and more are possible".to_string()));
        }
        self.fixed.as_ref().map_or(Ok(()), FixedSets::validate)
    }

    /// When its run ends.
    pub(super) fn until(&self, seconds: f64) -> Until {
        let time = || Until::Time(std::time::Duration::from_secs_f64(seconds));
        self.operations.map_or_else(time, Until::Transactions)
    }

    /// As the workload takes it.
    pub(super) fn options(&self, durability: Durability, seed: u64) -> ycsb::Options {
        let of = ycsb::Options::of(self.letter);
        let distribution = match self.distribution {
            Some(Spread::Zipfian) => ycsb::Distribution::Zipfian,
            Some(Spread::Latest) => ycsb::Distribution::Latest,
            Some(Spread::Uniform) => ycsb::Distribution::Uniform,
            None => of.distribution,
        };
        let shares = self.shares.unwrap_or(of.shares);
        ycsb::Options { theta: self.theta, max_scan: self.max_scan, shares, distribution, durability, seed, ..of }
    }
}

impl Default for Ycsb {
    fn default() -> Ycsb {
        let (shape, options) = (ycsb::Shape::default(), ycsb::Options::of(ycsb::Letter::A));
        Ycsb {
            letter: ycsb::Letter::A,
            shares: None,
            records: shape.records,
            operations: None,
            fields: shape.fields,
            field_bytes: shape.field_length,
            theta: options.theta,
            max_scan: options.max_scan,
            distribution: None,
            load_seed: 1,
            fixed: None,
        }
    }
}

/// `[workload.ycsb.fixed]`: keyspaces loaded in bulk, records as those of YCSB, and made read-only unless records of
/// them are overwritten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FixedSets {
    /// Records of each.
    pub records: u64,
    /// How many there are.
    pub sets: u32,
    /// Their share of all requests.
    pub share: f64,
    /// Of those, the share that overwrites a record.
    #[serde(skip_serializing_if = "is_zero")]
    pub writes: f64,
    /// Of those that do not, the share that scans; the others look one record up.
    pub scans: f64,
    /// Longest scan, records.
    pub max_scan: u32,
    /// Seconds after which requests go to the next set; never if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_s: Option<f64>,
}

fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

impl Default for FixedSets {
    fn default() -> FixedSets {
        FixedSets { records: 100_000, sets: 1, share: 0.5, writes: 0.0, scans: 0.05, max_scan: 100, turn_s: None }
    }
}

impl FixedSets {
    /// What is wrong: the key, and what is accepted.
    fn validate(&self) -> Result<(), (String, String)> {
        let refuse = |key: &str, what: &str| Err((format!("workload.ycsb.fixed.{key}"), what.to_string()));
        match () {
            () if self.records == 0 || self.records > 1 << 40 => refuse("records", "1 to 2^40 are possible"),
            () if !(1..=16).contains(&self.sets) => refuse("sets", "1 to 16 are possible"),
            () if !(0.0..=1.0).contains(&self.share) => refuse("share", "0 to 1 are possible"),
            () if !(0.0..=1.0).contains(&self.writes) => refuse("writes", "0 to 1 are possible"),
            () if !(0.0..=1.0).contains(&self.scans) => refuse("scans", "0 to 1 are possible"),
            () if self.max_scan == 0 => refuse("max_scan", "1 and more are possible"),
            () if self.turn_s.is_some_and(|s| !(1e-3..=1e9).contains(&s)) => {
                refuse("turn_s", "0.001 to 1e9 are possible")
            }
            () => Ok(()),
        }
    }

    /// As the workload takes it.
    pub(super) fn load(&self) -> ycsb::Fixed {
        let turn = self.turn_s.map(std::time::Duration::from_secs_f64);
        let FixedSets { records, sets, share, writes, scans, max_scan, .. } = *self;
        ycsb::Fixed { records, sets, share, writes, scans, max_scan, turn }
    }
}

/// `workload.ycsb.distribution`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// A few records are asked for often.
    Zipfian,
    /// The records inserted last are.
    Latest,
    /// All the same.
    Uniform,
}
