//! Varve beside other embedded storage engines: adapters that put each behind the lab's `Store` trait, workloads, and
//! a runner that interleaves the engines and sets their medians side by side.
//!
//! - [`engine`]: what the harness asks of an engine besides `Store`; Varve's own answer;
//! - [`adapter`]: the other engines; [`engines`]: the list of all;
//! - [`bench`]: the rows, and the workloads, each over any engine;
//! - [`runner`]: rounds and samples; [`files`]: their directories;
//! - [`child`]: work in processes of their own; [`cgroup`]: what limits their memory;
//! - [`report`]: medians, ratios, what was asked, the Markdown table and the JSON file.

pub mod adapter;
pub mod bench;
pub mod cgroup;
pub mod child;
pub mod engine;
pub mod engines;
pub mod files;
pub mod options;
pub mod report;
pub mod runner;

pub use varve_lab::{Error, Result};
