//! Varve's lab: workloads written once over a small adapter trait, a driver that runs and measures them on OS threads
//! or in a simulation, and a checker that decides whether a history of transactions is serializable.
//!
//! - [`advise`]: the flash advisor's questions from traces and profiles;
//! - [`adapter`]: the view that workloads have of a store; the in-memory reference store;
//! - [`dbbench`]: the benchmarks of `db_bench`;
//! - [`demo`]: a small shop, recorded and replayed, as a page with pictures;
//! - [`driver`]: threads, warm-up, response times, results;
//! - [`experiment`]: experiments from files, on modelled devices, with checks and reports;
//! - [`flash_layout`]: how native flash is divided, as a file;
//! - [`flash_wa`]: write amplification of the flash model beside theory;
//! - [`history`]: histories of concurrent transactions and the serializability checker;
//! - [`host`]: host profiles, the costs of processor time on a modelled machine;
//! - [`iomix`]: an Iometer-like load on a device;
//! - [`lsm_wa`]: write amplification of levelled LSMs, theory and a Monte Carlo;
//! - [`models`]: a database's devices as models of profiles;
//! - [`own`]: which databases a tool may write into;
//! - [`probe`]: measures devices and makes profiles of them;
//! - [`replay`]: traces through the replacement policies;
//! - [`sim`]: the crash simulation against a reference model;
//! - [`torture`]: kills of a real process;
//! - [`tpcb`]: a mix like that of TPC-B;
//! - [`tpcc`]: TPC-C with its consistency conditions;
//! - [`trace`]: trace formats, and recording;
//! - [`ycsb`]: YCSB, workloads A to F.
//!
//! Modules, from below: `child error flash_wa own place trace` · `adapter flash_layout iomix lsm_wa models replay
//! sim` · `advise batch driver history probe torture` · `dbbench tpcb tpcc ycsb` · `host` · `experiment` · `demo`.

pub mod adapter;
pub mod advise;
mod batch;
mod child;
pub mod dbbench;
pub mod demo;
pub mod driver;
mod error;
pub mod experiment;
pub mod flash_layout;
pub mod flash_wa;
pub mod history;
pub mod host;
pub mod iomix;
pub mod lsm_wa;
pub mod models;
pub mod own;
mod place;
pub mod probe;
pub mod replay;
pub mod sim;
pub mod torture;
pub mod tpcb;
pub mod tpcc;
pub mod trace;
pub mod ycsb;

pub use error::{Error, Result};
