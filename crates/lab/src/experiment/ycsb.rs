//! `[workload.ycsb]` of an experiment. Plain data, the shape of the file.

use crate::ycsb;
use serde::{Deserialize, Serialize};

/// `[workload.ycsb]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ycsb {
    /// `A` to `F`.
    pub letter: ycsb::Letter,
    /// Records loaded.
    pub records: u64,
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
}

impl Default for Ycsb {
    fn default() -> Ycsb {
        let (shape, options) = (ycsb::Shape::default(), ycsb::Options::of(ycsb::Letter::A));
        Ycsb {
            letter: ycsb::Letter::A,
            records: shape.records,
            fields: shape.fields,
            field_bytes: shape.field_length,
            theta: options.theta,
            max_scan: options.max_scan,
            distribution: None,
            load_seed: 1,
        }
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
