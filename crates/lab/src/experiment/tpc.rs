//! `[workload.tpcc]` and `[workload.tpcb]` of an experiment. Plain data, the shape of the file.

use crate::{tpcb, tpcc};
use serde::{Deserialize, Serialize};

/// `[workload.tpcc]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tpcc {
    /// Warehouses.
    pub warehouses: u32,
    /// Districts per warehouse.
    pub districts: u8,
    /// Customers per district.
    pub customers: u32,
    /// Items.
    pub items: u32,
    /// Indexes for the foreign keys that no other index serves.
    pub foreign_keys: bool,
    /// Bytes that every row has besides its columns, index entries too: record headers and the like of another engine.
    pub row_overhead: u16,
    /// Keying and think times of the specification.
    pub think_times: bool,
    /// Updates become reads; inserts and deletes are left out.
    pub read_only: bool,
    /// Weights of the five transaction types.
    pub mix: [u32; 5],
    /// Seed of the loaded rows.
    pub load_seed: u64,
}

impl Default for Tpcc {
    fn default() -> Tpcc {
        let s = tpcc::Scale::of(1);
        Tpcc {
            warehouses: s.warehouses,
            districts: s.districts,
            customers: s.customers,
            items: s.items,
            foreign_keys: s.foreign_keys,
            row_overhead: 0,
            think_times: false,
            read_only: false,
            mix: [45, 43, 4, 4, 4],
            load_seed: 1,
        }
    }
}

/// `[workload.tpcb]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tpcb {
    /// Branches.
    pub branches: u32,
    /// Accounts of each.
    pub accounts: u32,
}

impl Default for Tpcb {
    fn default() -> Tpcb {
        let tpcb::Scale { branches, accounts } = tpcb::Scale::default();
        Tpcb { branches, accounts }
    }
}

impl Tpcb {
    /// As the workload takes it.
    pub(super) fn scale(&self) -> tpcb::Scale {
        tpcb::Scale { branches: self.branches, accounts: self.accounts }
    }

    /// What is wrong: the key, and what is accepted.
    pub(super) fn validate(&self) -> Result<(), (String, String)> {
        self.scale().validate().map_err(|e| ("workload.tpcb".to_string(), e.to_string()))
    }
}
